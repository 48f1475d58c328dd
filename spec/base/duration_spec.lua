-- Durations as people write them.

local core = require "nightshift.core"

local SECOND = 1000000

local function refused(value, why)
  local us, message, code = core.duration(value)
  assert.is_nil(us)
  assert.equal("INVALID", code)
  assert.truthy(message:find(why, 1, true), message)
end

describe("a duration", function()
  it("is a number of seconds", function()
    assert.equal(0, core.duration(0))
    assert.equal(90 * SECOND, core.duration(90))
    assert.equal(1500000, core.duration(1.5))
    assert.equal("integer", math.type(core.duration(1.5)))
  end)

  it("is a text of seconds without a unit", function()
    assert.equal(30 * SECOND, core.duration "30")
    assert.equal(SECOND // 2, core.duration "0.5")
  end)

  it("is a number and a unit", function()
    local texts = {
      ["1us"] = 1, ["500ms"] = 500000, ["5s"] = 5 * SECOND, ["5m"] = 300 * SECOND,
      ["2h"] = 7200 * SECOND, ["2d"] = 2 * 86400 * SECOND, ["1w"] = 7 * 86400 * SECOND, ["0s"] = 0,
    }
    for text, us in pairs(texts) do assert.equal(us, core.duration(text), text) end
  end)

  it("is a sequence of them, from large to small", function()
    assert.equal(5400 * SECOND, core.duration "1h30m")
    assert.equal(((7 + 1) * 86400 + 3600 + 60 + 1) * SECOND + 1001, core.duration "1w1d1h1m1s1ms1us")
  end)

  it("has exact fractions, rounded to the nearest microsecond", function()
    assert.equal(100000, core.duration "0.1s")
    assert.equal(1500000, core.duration "1.5s")
    assert.equal(1, core.duration "0.5us")
    assert.equal(0, core.duration "0.4us")
    assert.equal(333333, core.duration "0.333333333333333333333333333333s")
    assert.equal(604800 * SECOND, core.duration "0.999999999999999999999w")
    assert.equal(86400000001, core.duration "1.00000000001157408d") -- 1 day and 1.0000005 µs
  end)

  it("is refused when it is negative, not a number or endless", function()
    refused(-1, "0 or more")
    refused(-0.001, "0 or more")
    refused("-5m", "negative")
    refused(0 / 0, "not a number")
    refused(1 / 0, "1000 years")
    refused("nan", "number is missing")
    refused("inf", "number is missing")
  end)

  it("is refused when it is longer than 1000 years", function()
    assert.equal(31556952000 * SECOND, core.duration(31556952000))
    assert.equal(31556952000 * SECOND, core.duration "31556952000s")
    refused(31556953000, "1000 years")
    refused("31556952000.1s", "1000 years")
    refused("52178w", "1000 years")
    refused("52177w400d", "1000 years")
    refused(("9"):rep(400), "too long")
    refused(math.maxinteger, "1000 years")
  end)

  it("is refused when it is junk, with an example of a good one", function()
    for _, text in ipairs {
      "", " ", "5 m", " 5m", "5m ", "m", "5x", "5M", "5mm", "1e3", "0x10", "+5", "1.", ".5", "1..5s", "1,5s",
      "5m\0", "\0", "1h30", "30m1h", "5m5m", "1h-5m", "5\xC2\xB5s", ("a"):rep(10000),
    } do refused(text, '"5m"') end
  end)

  it("quotes a bad text safely", function()
    local _, message = core.duration("5\n\27[31m" .. ("x"):rep(1000))
    assert.truthy(message:find("bad duration '5??[31mxxx", 1, true), message)
    assert.is_nil(message:find "%c")
    assert.is_true(#message < 300)
  end)

  it("raises for a value of another type", function()
    assert.has_error(function() core.duration() end)
    assert.has_error(function() core.duration {} end)
    assert.has_error(function() core.duration(true) end)
  end)

  it("reads back whatever random texts it accepts, and never fails otherwise", function()
    math.randomseed(42)
    local alphabet = "0123456789.wdhmsu -"
    for _ = 1, 20000 do
      local chars = {}
      for i = 1, math.random(0, 8) do
        local at = math.random(#alphabet)
        chars[i] = alphabet:sub(at, at)
      end
      local us, message, code = core.duration(table.concat(chars))
      if us then
        assert.is_true(us >= 0)
        assert.equal(us, core.duration(us .. "us"))
      else
        assert.equal("INVALID", code)
        assert.is_string(message)
      end
    end
  end)
end)
