-- When schedules tick: cron expressions, time zones and their changes, ticks that were missed.

local cron = require "nightshift.schedule.cron"
local definition = require "nightshift.schedule.definition"
local zone = require "nightshift.schedule.zone"

-- The instant of a UTC text.
local function instant(text)
  local y, m, d, h, min, s = text:match "(%d+)-(%d+)-(%d+) (%d+):(%d+):?(%d*)"
  local day = zone.days(math.tointeger(y), math.tointeger(m), math.tointeger(d))
  return math.tointeger(day * 86400 + h * 3600 + min * 60 + (tonumber(s) or 0))
end

-- The next ticks as local texts with their offsets, "03-29 03:00 +2".
local function ticks(expression, name, from, n)
  local where, list = assert(zone.open(name)), {}
  local t, parsed = instant(from), assert(cron.parse(expression))
  for i = 1, n do
    t = cron.next(parsed, t, where)
    if not t then break end
    local offset = where:span(t).offset
    list[i] = os.date("!%m-%d %H:%M", t + offset) .. (" %+g"):format(offset / 3600)
  end
  return list
end

describe("cron:", function()
  it("a fixed time that the clock leaves out runs at the end of the gap", function()
    assert.same({ "03-28 02:30 +1", "03-29 03:00 +2", "03-30 02:30 +2" },
      ticks("30 2 * * *", "Europe/Vienna", "2026-03-27 12:00", 3))
    assert.same({ "03-07 02:30 -5", "03-08 03:00 -4", "03-09 02:30 -4" },
      ticks("30 2 * * *", "America/New_York", "2026-03-07 00:00", 3))
    assert.same({ "10-03 02:15 +10.5", "10-04 02:30 +11", "10-05 02:15 +11" },
      ticks("15 2 * * *", "Australia/Lord_Howe", "2026-10-02 12:00", 3))
  end)

  it("a fixed time that comes twice runs once, the first time", function()
    assert.same({ "10-24 02:30 +2", "10-25 02:30 +2", "10-26 02:30 +1" },
      ticks("30 2 * * *", "Europe/Vienna", "2026-10-23 12:00", 3))
    assert.same({ "10-31 01:30 -4", "11-01 01:30 -4", "11-02 01:30 -5" },
      ticks("30 1 * * *", "America/New_York", "2026-10-31 00:00", 3))
    assert.same({ "04-04 01:45 +11", "04-05 01:45 +11", "04-06 01:45 +10.5" },
      ticks("45 1 * * *", "Australia/Lord_Howe", "2026-04-03 12:00", 3))
  end)

  it("* in the hour goes by the time that passes", function()
    assert.same({ "03-29 01:30 +1", "03-29 03:30 +2", "03-29 04:30 +2" },
      ticks("30 * * * *", "Europe/Vienna", "2026-03-29 00:00", 3))
    assert.same({ "10-25 02:30 +2", "10-25 02:30 +1", "10-25 03:30 +1" },
      ticks("30 */1 * * *", "Europe/Vienna", "2026-10-25 00:00", 3))
    assert.same({ "11-01 01:30 -4", "11-01 01:30 -5", "11-01 02:30 -5" },
      ticks("30 * * * *", "America/New_York", "2026-11-01 05:00", 3))
    assert.same({ "04-05 01:30 +11", "04-05 01:45 +11", "04-05 01:30 +10.5", "04-05 01:45 +10.5", "04-05 02:00 +10.5" },
      ticks("*/15 * * * *", "Australia/Lord_Howe", "2026-04-04 14:16", 5))
    assert.same({ "10-04 01:45 +10.5", "10-04 02:30 +11" },
      ticks("*/15 * * * *", "Australia/Lord_Howe", "2026-10-03 15:01", 2))
  end)

  it("changes that lie behind the table of the file follow the rule at its end", function()
    assert.same({ "03-26 03:00 +2", "03-27 02:30 +2" }, ticks("30 2 * * *", "Europe/Vienna", "2056-03-25 12:00", 2))
    assert.same({ "10-29 02:30 +2", "10-30 02:30 +1" }, ticks("30 2 * * *", "Europe/Vienna", "2056-10-28 12:00", 2))
  end)

  it("offsets are those of the system", function()
    for _, name in ipairs { "Europe/Vienna", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC",
      "America/Santiago", "Africa/Casablanca", "Pacific/Chatham", "Europe/Dublin" } do
      local where, times, t = assert(zone.open(name)), {}, 0
      for i = 1, 60 do
        t = t + 47 * 86400 + 5 * 3600 + i
        times[i] = t + 1000000000
      end
      local file = fixture.file("times", "@" .. table.concat(times, "\n@") .. "\n")
      local pipe <close> = io.popen(("TZ=%s date -f %s +%%z"):format(name, file))
      for _, at in ipairs(times) do
        local sign, h, m = pipe:read("l"):match "([+-])(%d%d)(%d%d)"
        local offset = (h * 3600 + m * 60) * (sign == "-" and -1 or 1)
        assert.equal(offset, where:span(at).offset, name .. " " .. at)
      end
    end
  end)

  it("has fields of lists, ranges, steps and names", function()
    assert.same({ "11-27 09:00 +0", "11-27 13:00 +0", "11-27 17:00 +0", "11-30 09:00 +0" },
      ticks("0 9-17/4 * * mon-fri", "UTC", "2026-11-26 18:00", 4))
    assert.same({ "01-01 00:00 +0", "07-01 00:00 +0" }, ticks("0 0 1 JAN,jul *", "UTC", "2026-11-26 00:00", 2))
    assert.same({ "11-29 00:00 +0", "12-06 00:00 +0" }, ticks("@weekly", "UTC", "2026-11-26 00:00", 2))
    assert.same(ticks("0 0 * * 0", "UTC", "2026-11-26 00:00", 3), ticks("0 0 * * 7", "UTC", "2026-11-26 00:00", 3))
    assert.same({ "02-29 00:00 +0" }, ticks("0 0 29 2 *", "UTC", "2026-11-26 00:00", 1))
    assert.same({}, ticks("0 0 30 2 *", "UTC", "2026-11-26 00:00", 1))
  end)

  it("has seconds in front, where there are six", function()
    local parsed, where = assert(cron.parse "*/20 * * * * *"), zone.open "UTC"
    assert.equal(instant "2026-11-26 00:00:20", cron.next(parsed, instant "2026-11-26 00:00", where))
    assert.equal(instant "2026-11-26 00:00:40", cron.next(parsed, instant "2026-11-26 00:00:20" + 0.5, where))
  end)

  it("either day will do where both are given", function()
    assert.same({ "11-27 12:00 +0", "12-04 12:00 +0", "12-11 12:00 +0", "12-13 12:00 +0", "12-18 12:00 +0" },
      ticks("0 12 13 * fri", "UTC", "2026-11-26 00:00", 5))
  end)

  it("says what is wrong", function()
    for expression, message in pairs {
      ["61 * * * *"] = "'61' is no minute; 0 to 59",
      ["* 22-2 * * *"] = "'22-2' ends before it begins; write it as two: 22-23,0-2",
      ["* * *"] = "has 3",
      ["* * * * moon"] = "'moon' is no weekday; 0 to 7, or a name of three letters",
      ["*/0 * * * *"] = "the step '0' of the minute must be a whole number from 1",
      ["1,,2 * * * *"] = "'1,,2' has an empty minute",
      ["@never"] = "has 1",
      ["-1 * * * *"] = "'-1' is no minute",
      ["1- * * * *"] = "'1-' is no minute",
    } do
      local parsed, why, code = cron.parse(expression)
      assert.is_nil(parsed, expression)
      assert.matches(message, why, 1, true)
      assert.equal("INVALID", code)
    end
    for _, name in ipairs { "Europe/Wien", "../../etc/passwd", "/etc/passwd", "", "Europe", "posixrules\0x" } do
      local where, why, code = zone.open(name)
      assert.is_nil(where, name)
      assert.matches("no time zone", why)
      assert.equal("INVALID", code)
    end
  end)
end)

describe("ticks that are due:", function()
  local function due(def, first, now)
    local list = {}
    for i, t in ipairs(definition.due(def, instant(first) * 1000000, instant(now) * 1000000)) do
      list[i] = os.date("!%m-%d %H:%M", t // 1000000)
    end
    return list
  end

  local function def(fields)
    fields.zone = "UTC"
    return fields
  end

  it("missed = 'one' is the last of them", function()
    assert.same({ "11-26 03:00" },
      due(def { cron = "0 3 * * *", missed = "one" }, "2026-10-01 03:00", "2026-11-26 09:00"))
    assert.same({ "11-26 09:00" },
      due(def { every = 600000000, missed = "one" }, "2026-10-01 03:00", "2026-11-26 09:05"))
  end)

  it("missed = 'all' is each, of the last thousand", function()
    assert.same({ "11-24 03:00", "11-25 03:00", "11-26 03:00" },
      due(def { cron = "0 3 * * *", missed = "all" }, "2026-11-24 03:00", "2026-11-26 09:00"))
    local list = due(def { cron = "* * * * *", missed = "all" }, "2026-11-01 00:00", "2026-11-26 00:00")
    assert.equal(1000, #list)
    assert.equal("11-26 00:00", list[1000])
    list = due(def { every = 60000000, missed = "all" }, "2026-11-01 00:00", "2026-11-26 00:00")
    assert.equal(1000, #list)
    assert.equal("11-26 00:00", list[1000])
  end)

  it("missed = 'none' is one that is under a minute old", function()
    assert.same({}, due(def { cron = "0 3 * * *", missed = "none" }, "2026-11-24 03:00", "2026-11-26 03:02"))
    assert.same({ "11-26 03:00" },
      due(def { cron = "0 3 * * *", missed = "none" }, "2026-11-24 03:00", "2026-11-26 03:00:59"))
  end)

  it("a tick a second that was missed for a year costs no more than a few", function()
    local since = os.clock()
    due(def { cron = "* * * * * *", missed = "one" }, "2025-11-26 00:00", "2026-11-26 00:00")
    assert.is_true(os.clock() - since < 0.5)
  end)

  it("every goes on from its tick, whenever that was pushed", function()
    local ten = def { every = 600000000 }
    local first = instant "2026-11-26 03:00" * 1000000
    assert.equal(first + 600000000, definition.next(ten, first + 7, first))
    assert.equal(first + 1200000000, definition.next(ten, first + 600000000, first))
  end)
end)
