-- Recurring jobs in programs and in the shell: adding, changing, looking, pausing, removing. When
-- they tick: cron expressions, time zones and their changes, ticks that were missed.

local core = require "nightshift.core"
local cron = require "nightshift.schedule.cron"
local definition = require "nightshift.schedule.definition"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local zone = require "nightshift.schedule.zone"

describe("db:schedule", function()
  local url, handle

  with_database(function(h, _, u) handle, url = h, u end)

  local function daily(more)
    local given = { name = "report", cron = "0 3 * * *", zone = "Europe/Vienna", push = { "report.daily", { a = 1 } } }
    for key, value in pairs(more or {}) do given[key] = value end
    return given
  end

  it("gives the instant of the next tick, and shows the next five", function()
    local due = assert(handle:schedule(daily()))
    assert.equal("03:00", os.date("!%H:%M", due + (os.date("!%H", due) == "01" and 7200 or 3600)))
    local rows = assert(handle:schedules())
    assert.equal(1, #rows)
    local row = rows[1]
    assert.equal(5, #row.upcoming)
    assert.same({ "report", "0 3 * * *", "Europe/Vienna", "default", "report.daily", "one", "allow" },
      { row.name, row.cron, row.zone, row.queue, row.job, row.missed, row.overlap })
    assert.same({ a = 1 }, row.payload)
    assert.equal(due, row.due)
    assert.is_false(row.paused)
    assert.is_false(row.declared)
  end)

  it("keeps the tick of one that says the same, and moves that of one that is changed", function()
    local due = assert(handle:schedule { name = "often", every = "10m", push = { "clean", { list = core.array {} } } })
    core.sleep(0.002)
    assert.equal(due, handle:schedule { name = "often", every = 600, push = { "clean", { list = core.array {} } } })
    assert.equal(due, handle:schedule { name = "often", every = 600, push = { "wash" } })
    assert.equal("wash", handle:schedules()[1].job)
    assert.is_true(handle:schedule { name = "often", every = 601, push = { "clean" } } > due)
    assert.equal(1, #handle:schedules())
  end)

  it("is part of the transaction it is called in", function()
    assert.is_nil(handle:transaction(function(_)
      handle:schedule(daily())
      return nil, "no"
    end))
    assert.same({}, handle:schedules())
    handle:transaction(function() assert(handle:schedule(daily())) end)
    assert.equal(1, #handle:schedules())
  end)

  it("keeps options of its push", function()
    local options = { queue = "low", priority = 7, timeout = "90s", max_attempts = 2 }
    assert(handle:schedule(daily { push = { "x", nil, options } }))
    local id = assert(handle:schedule_run "report")
    local job = handle:job(id)
    assert.same({ "low", 7, 90, 2 }, { job.queue, job.priority, job.timeout, job.max_attempts })
    assert.same({ priority = 7, timeout = 90, max_attempts = 2 }, handle:schedules()[1].options)
  end)

  it("pauses, resumes, runs and removes", function()
    assert(handle:schedule(daily()))
    assert.is_true(handle:schedule_pause "report")
    local row = handle:schedules()[1]
    assert.same({ true, nil, {} }, { row.paused, row.due, row.upcoming })
    assert.is_false(handle:schedule(daily { missed = "all" })) -- stays paused
    assert.is_true(handle:schedule_resume "report")
    assert.is_number(handle:schedules()[1].due)
    assert.equal("report.daily", handle:job(handle:schedule_run "report").name)
    assert.is_true(handle:schedule_remove "report")
    assert.same({}, handle:schedules())
    for _, verb in ipairs { "pause", "resume", "run", "remove" } do
      local ok, message, code = handle["schedule_" .. verb](handle, "report")
      assert.is_nil(ok)
      assert.matches("there is no schedule 'report'", message)
      assert.equal("NOT_FOUND", code)
    end
  end)

  it("resume starts one that has failed", function()
    local due = handle:schedule(daily())
    handle:execute "UPDATE nightshift_schedule SET next_at = NULL, error = 'why'"
    assert(handle:schedule_resume "report")
    local row = handle:schedules()[1]
    assert.same({ due, nil }, { row.due, row.error })
  end)

  -- The list raised, so that no schedule could be seen.
  it("lists a row that a hand has broken with what is wrong, and mends it", function()
    assert(handle:schedule(daily()))
    assert(handle:schedule(daily { name = "other" }))
    for broken, message in pairs {
      ["'5'"] = "it is no object", ["'[]'"] = "job is no text",
      ["JSON_SET(definition, '$.cron', 'x y')"] = "cron cannot be read",
      ["JSON_REMOVE(JSON_SET(definition, '$.every', 0), '$.cron')"] = "every is no number of µs",
      ["JSON_SET(definition, '$.options', JSON_OBJECT('timeout', 'x'))"] = "options.timeout is no whole number",
    } do
      handle:execute("UPDATE nightshift_schedule SET definition = " .. broken .. " WHERE name = 'report'")
      local rows = assert(handle:schedules())
      assert.same({ "other", "report" }, { rows[1].name, rows[2].name })
      assert.same({ nil, {} }, { rows[1].error, rows[2].upcoming })
      assert.equal("its definition cannot be read: " .. message, rows[2].error)
      local id, why, code = handle:schedule_run "report"
      assert.same({ nil, rows[2].error, "INVALID" }, { id, why, code })
      assert.is_true(handle:schedule_pause "report")
      assert.equal("INVALID", select(3, handle:schedule_resume "report"))
      assert.is_true(handle:transaction(function() return true end))
      assert.matches("report .*its definition cannot be read", (select(2, proc.nightshift({ "schedules" }, url))))
      handle:schedule(daily())
      assert.is_true(handle:schedule_resume "report")
      assert.is_number(handle:schedules()[2].due)
    end
  end)

  it("resume on a machine without the zone says so, and changes nothing", function()
    assert(handle:schedule(daily()))
    assert(handle:schedule_pause "report")
    local open = zone.open
    local _ <close> = setmetatable({}, { __close = function() zone.open = open end }) -- luacheck: ignore
    zone.open = function() return nil, "there is no time zone", "INVALID" end -- luacheck: ignore
    assert.same({ nil, "there is no time zone", "INVALID" }, { handle:schedule_resume "report" })
    assert.is_true(handle:schedules()[1].paused)
  end)

  -- Schedules are looked for by hosts alone, and never on the way of a job.
  it("costs verbs on jobs no statement", function()
    local other <close> = assert(nightshift.open(url))
    local q = other:queue "plain"
    local function statements()
      return tonumber(other:execute "SHOW SESSION STATUS LIKE 'Com_stmt_execute'"[1].Value)
    end
    local function cost()
      local least = math.huge
      for _ = 1, 4 do
        local before = statements()
        assert(q:push "a")
        assert(q:claim()):ack()
        least = math.min(least, statements() - before)
      end
      return least
    end
    local without = cost()
    for i = 1, 20 do assert(handle:schedule { name = "s" .. i, every = 60, push = { "x" } }) end
    assert.equal(without, cost())
  end)

  it("shows a thousand in a moment", function()
    handle:transaction(function()
      for i = 1, 10 do assert(handle:schedule(daily { name = "r" .. i, cron = "0 0 29 2 *" })) end
    end)
    handle:execute [[INSERT INTO nightshift_schedule (name, definition, next_at)
      SELECT CONCAT(name, '.', seq), definition, next_at FROM nightshift_schedule JOIN seq_1_to_99]]
    local since = os.clock()
    assert.equal(1000, #handle:schedules())
    assert.is_true(os.clock() - since < proc.limit(1))
  end)

  it("run gives the job that lives, where jobs do not overlap", function()
    assert(handle:schedule(daily { overlap = "skip" }))
    local id = assert(handle:schedule_run "report")
    assert.equal(id, handle:schedule_run "report")
    handle:cancel(id)
    assert.not_equal(id, handle:schedule_run "report")
  end)

  it("says what is wrong", function()
    for message, given in pairs {
      ["schedule: cron '* *': "] = false,
      ["there is no time zone 'Mars'"] = daily { zone = "Mars" },
      ["schedule: every must be a second or more"] = { name = "a", every = 0.5, push = { "x" } },
      ["schedule: missed must be one of one, all, none, got 'some'"] = daily { missed = "some" },
      ["schedule: name has a control character"] = daily { name = "a\n" },
      ["schedule: name is empty"] = daily { name = "" },
      ["schedule: job name is empty"] = daily { push = { "" } },
      ["schedule: cron '0 0 31 2 *' names a day that does not come"] = daily { cron = "0 0 31 2 *" },
      ["schedule: queue has 65 bytes"] = daily { push = { "x", nil, { queue = ("q"):rep(65) } } },
    } do
      local ok, why, code = handle:schedule(given or daily { cron = "* *" })
      if not given then message = "a cron expression has five fields" end
      assert.is_nil(ok)
      assert.matches(message, why, 1, true)
      assert.equal("INVALID", code)
    end
    for message, given in pairs {
      ["give either cron"] = { name = "a", push = { "x" } },
      ["push must be {name, payload, options}"] = { name = "a", cron = "@daily" },
      ["{name, payload, options}; it has 'payload', too"] = daily { push = { "x", payload = { a = 1 } } },
      ["{name, payload, options}; it has '4', too"] = daily { push = { "x", nil, {}, 4 } },
      ["unknown option 'crn'; did you mean 'cron'?"] = { name = "a", crn = "@daily", push = { "x" } },
      ["zone goes with cron"] = { name = "a", every = 60, zone = "UTC", push = { "x" } },
      ["unknown option 'unique'"] = daily { push = { "x", nil, { unique = "k" } } },
      ["name must be a string"] = { cron = "@daily", push = { "x" } },
    } do
      local ok, why = pcall(handle.schedule, handle, given)
      assert.is_false(ok)
      assert.matches(message, why, 1, true)
    end
  end)

  it("is one row, whoever adds it at the same time", function()
    local others = {}
    for i = 1, 4 do others[i] = assert(nightshift.open(url)) end
    for round = 1, 20 do
      for i, other in ipairs(others) do
        assert(other:schedule { name = "r" .. round, every = 60 + i, push = { "x" } })
      end
    end
    assert.equal(20, #handle:schedules())
    for _, other in ipairs(others) do other:close() end
  end)

  it("in the shell", function()
    assert(handle:schedule(daily()))
    local function run(...) return proc.nightshift({ "schedules", ... }, url) end
    local status, out = run()
    assert.equal(0, status)
    assert.matches("report +0 3 %* %* %* Europe/Vienna +default +report%.daily +%- +%d%d%d%d", out)
    assert.matches("report then: %d%d%d%d%-.* .* .* ", out)
    status, out = run "--json"
    assert.equal(0, status)
    local row = nightshift.decode(out)[1]
    assert.equal(5, #row.upcoming)
    assert.equal(row.due, row.upcoming[1])
    assert.matches("^%d%d%d%d%-%d%d%-%d%dT%d%d:00:00%.000000Z$", row.due)
    assert.equal("report paused\n", select(2, run("pause", "report")))
    assert.matches("paused", select(2, run()))
    assert.equal("report resumed\n", select(2, run("resume", "report")))
    assert.is_truthy(handle:job(math.tointeger(tonumber((select(2, run("run", "report")))))))
    assert.equal("report removed\n", select(2, run("remove", "report")))
    local _, err
    status, _, err = run("pause", "report")
    assert.equal(1, status)
    assert.matches("there is no schedule 'report'", err)
    assert.equal(2, (run "pause"))
    assert.matches("no schedules", select(2, run()))
  end)
end)

-- ------------------------------------------------------------------- ticks

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
