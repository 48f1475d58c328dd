-- nightshift.background: the checks of a definition, and its two handlers.

local background = require "nightshift.background"
local job = require "nightshift.job"
local nightshift = require "nightshift"

local function nothing() end

local function define(extra)
  local def = { start = nothing, poll = nothing }
  for key, value in pairs(extra or {}) do def[key] = value end
  return nightshift.background(def)
end

local function new_job(name, payload, polls)
  local verdicts, last_id = {}, 0
  local backend = {
    settle = function(_, verdict)
      verdicts[#verdicts + 1] = verdict
      return verdict
    end,
    take_id = function()
      last_id = last_id + 1
      return last_id
    end,
  }
  return job.new({ id = 50, run = 1, name = name, queue = "q", payload = payload, attempts = 0, polls = polls or 0 },
    backend), verdicts
end

describe("a background definition", function()
  it("is marked and has defaults", function()
    local def = define()
    assert.is_true(background.is(def))
    assert.is_false(background.is { start = nothing, poll = nothing })
    assert.is_false(background.is(nothing))
    assert.equal(5, def.every)
    assert.equal(1, def.growth)
  end)

  it("reads durations as seconds or texts", function()
    local def = define { every = "500ms", max_every = "1m", deadline = "2h", max_polls = 9 }
    assert.equal(0.5, def.every)
    assert.equal(60, def.max_every)
    assert.equal(7200, def.deadline)
    assert.equal(9, def.max_polls)
  end)

  it("does not keep the caller's table", function()
    local given = { start = nothing, poll = nothing }
    nightshift.background(given)
    assert.is_nil(given.__nightshift_background)
  end)

  it("raises at the definition and names the bad key", function()
    local cases = {
      { { start = nothing }, "'poll' is missing" },
      { { poll = nothing }, "'start' is missing" },
      { { start = nothing, poll = "x" }, "poll must be a function, got string" },
      { { start = nothing, poll = nothing, evry = 5 }, "unknown option 'evry'; did you mean 'every'" },
      { { start = nothing, poll = nothing, every = 0 }, "every must be more than zero" },
      { { start = nothing, poll = nothing, every = "often" }, "every: bad duration 'often'" },
      { { start = nothing, poll = nothing, every = true }, "every must be seconds or a text" },
      { { start = nothing, poll = nothing, growth = 0.5 }, "growth must be at least 1, got 0.5" },
      { { start = nothing, poll = nothing, growth = math.huge }, "growth must be at least 1" },
      { { start = nothing, poll = nothing, growth = "2" }, "growth must be a number, got string" },
      { { start = nothing, poll = nothing, max_every = -1 }, "max_every" },
      { { start = nothing, poll = nothing, deadline = 0 }, "deadline must be more than zero" },
      { { start = nothing, poll = nothing, max_polls = 0 }, "max_polls must be a whole number from 1" },
      { { start = nothing, poll = nothing, max_polls = 1.5 }, "max_polls must be a whole number" },
      { "start", "background wants a table, got string" },
    }
    for _, case in ipairs(cases) do
      local ok, message = pcall(nightshift.background, case[1])
      assert.is_false(ok)
      assert.is_truthy(message:find(case[2], 1, true), message)
    end
  end)
end)

describe("the pace of polls", function()
  it("is even without growth", function()
    local def = define { every = 5 }
    assert.same({ 5.0, 5.0, 5.0 }, { background.pace(def, 0), background.pace(def, 1), background.pace(def, 1000000) })
  end)

  it("grows up to max_every, however many polls there were", function()
    local def = define { every = 2, growth = 1.5, max_every = 10 }
    assert.same({ 2.0, 3.0, 4.5 }, { background.pace(def, 0), background.pace(def, 1), background.pace(def, 2) })
    assert.equal(10, background.pace(def, 50))
    assert.equal(10, background.pace(def, 1000000))
  end)

  it("has an hour as the longest pause unless told", function()
    assert.equal(3600, background.pace(define { every = 1, growth = 10 }, 100))
    assert.equal(7200, background.pace(define { every = "2h", growth = 10 }, 100))
  end)
end)

describe("the starting handler", function()
  it("ends with the operation and spawns the polling child", function()
    local def = define {
      start = function(j) return { pid = j.payload.n } end,
      deadline = "2h", max_polls = 7,
    }
    local handlers = background.expand("video.encode", def)
    local j, verdicts = new_job("video.encode", { n = 4 })
    assert.same({ pid = 4 }, handlers["video.encode"](j))
    assert.same({}, verdicts)
    assert.same({ {
      id = 1, name = "video.encode:poll",
      payload = { payload = { n = 4 }, operation = { pid = 4 } },
      options = { deadline = 7200.0, max_polls = 7 },
    } }, j._children)
  end)

  it("spawns nothing when it raises or gives a verdict of its own", function()
    local raising = background.expand("x", define { start = function() error "no" end }).x
    local j = new_job "x"
    assert.is_false(pcall(raising, j))
    assert.is_nil(j._children)

    local busy = background.expand("x", define { start = function(k) return k:again(3) end }).x
    local k, verdicts = new_job "x"
    assert.equal("again", busy(k).kind)
    assert.equal(1, #verdicts)
    assert.is_nil(k._children)
  end)

  it("fails when the operation cannot be stored", function()
    local start = background.expand("x", define { start = function() return io.stdout end }).x
    assert.error_matches(function() start(new_job "x") end, "payload%.operation: cannot encode")
  end)
end)

describe("the polling handler", function()
  local wrapped = { payload = { n = 4 }, operation = { pid = 9 } }

  it("sees the original payload and the operation", function()
    local seen
    local poll = background.expand("v", define {
      poll = function(j, op)
        seen = { j.payload, op }
        return "result"
      end,
    })["v:poll"]
    assert.equal("result", poll(new_job("v:poll", wrapped)))
    assert.same({ { n = 4 }, { pid = 9 } }, seen)
  end)

  it("comes back at its pace when `again` names no delay", function()
    local def = define { poll = function(j) return j:again() end, every = 2, growth = 2, max_every = 60 }
    local poll = background.expand("v", def)["v:poll"]
    for polls, delay in pairs { [0] = 2, 4, 8, 16, 32, 60 } do
      assert.equal(delay, poll(new_job("v:poll", wrapped, polls)).delay)
    end
  end)

  it("comes back when it says, if it names a delay", function()
    local def = define { poll = function(j) return j:again(1.5, "page 3") end }
    local verdict = background.expand("v", def)["v:poll"](new_job("v:poll", wrapped))
    assert.equal(1.5, verdict.delay)
    assert.equal("page 3", verdict.state)
  end)

  it("keeps the pace with a state alone", function()
    local def = define { poll = function(j) return j:again(nil, { page = 3 }) end, every = 7 }
    local verdict = background.expand("v", def)["v:poll"](new_job("v:poll", wrapped))
    assert.equal(7, verdict.delay)
    assert.same({ page = 3 }, verdict.state)
  end)

  it("says what is wrong with a payload that no start made", function()
    local poll = background.expand("v", define())["v:poll"]
    assert.error_matches(function() poll(new_job("v:poll", 5)) end,
      "v:poll: the payload of a poll is {payload = …, operation = …}")
  end)
end)
