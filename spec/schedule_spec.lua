-- Recurring jobs in programs and in the shell: adding, changing, looking, pausing, removing. When
-- they tick: cron expressions, time zones and their changes, ticks that were missed.
-- Hosts that push the jobs of ticks: each once, whatever dies, and by the clock of the server.

local calendar = require "nightshift.schedule.calendar"
local core = require "nightshift.core"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local runner = require "nightshift.schedule.runner"
local schedule = require "nightshift.schedule"

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
    local options = { queue = "low", priority = 7, timeout = "90s", max_attempts = 2, group = "tenant:7" }
    assert(handle:schedule(daily { push = { "x", nil, options } }))
    local id = assert(handle:schedule_run "report")
    local job = handle:job(id)
    assert.same({ "low", 7, 90, 2, "tenant:7" }, { job.queue, job.priority, job.timeout, job.max_attempts, job.group })
    assert.same({ priority = 7, timeout = 90, max_attempts = 2, group = "tenant:7" }, handle:schedules()[1].options)
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
    local open = calendar.zone
    local _ <close> = setmetatable({}, { __close = function() calendar.zone = open end }) -- luacheck: ignore
    calendar.zone = function() return nil, "there is no time zone", "INVALID" end -- luacheck: ignore
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
  local day = calendar.days(math.tointeger(y), math.tointeger(m), math.tointeger(d))
  return math.tointeger(day * 86400 + h * 3600 + min * 60 + (tonumber(s) or 0))
end

-- The next ticks as local texts with their offsets, "03-29 03:00 +2".
local function coming(expression, name, from, n)
  local where, list = assert(calendar.zone(name)), {}
  local t, parsed = instant(from), assert(calendar.parse(expression))
  for i = 1, n do
    t = calendar.next(parsed, t, where)
    if not t then break end
    local offset = where:span(t).offset
    list[i] = os.date("!%m-%d %H:%M", t + offset) .. (" %+g"):format(offset / 3600)
  end
  return list
end

describe("cron:", function()
  it("a fixed time that the clock leaves out runs at the end of the gap", function()
    assert.same({ "03-28 02:30 +1", "03-29 03:00 +2", "03-30 02:30 +2" },
      coming("30 2 * * *", "Europe/Vienna", "2026-03-27 12:00", 3))
    assert.same({ "03-07 02:30 -5", "03-08 03:00 -4", "03-09 02:30 -4" },
      coming("30 2 * * *", "America/New_York", "2026-03-07 00:00", 3))
    assert.same({ "10-03 02:15 +10.5", "10-04 02:30 +11", "10-05 02:15 +11" },
      coming("15 2 * * *", "Australia/Lord_Howe", "2026-10-02 12:00", 3))
  end)

  it("a fixed time that comes twice runs once, the first time", function()
    assert.same({ "10-24 02:30 +2", "10-25 02:30 +2", "10-26 02:30 +1" },
      coming("30 2 * * *", "Europe/Vienna", "2026-10-23 12:00", 3))
    assert.same({ "10-31 01:30 -4", "11-01 01:30 -4", "11-02 01:30 -5" },
      coming("30 1 * * *", "America/New_York", "2026-10-31 00:00", 3))
    assert.same({ "04-04 01:45 +11", "04-05 01:45 +11", "04-06 01:45 +10.5" },
      coming("45 1 * * *", "Australia/Lord_Howe", "2026-04-03 12:00", 3))
  end)

  it("* in the hour goes by the time that passes", function()
    assert.same({ "03-29 01:30 +1", "03-29 03:30 +2", "03-29 04:30 +2" },
      coming("30 * * * *", "Europe/Vienna", "2026-03-29 00:00", 3))
    assert.same({ "10-25 02:30 +2", "10-25 02:30 +1", "10-25 03:30 +1" },
      coming("30 */1 * * *", "Europe/Vienna", "2026-10-25 00:00", 3))
    assert.same({ "11-01 01:30 -4", "11-01 01:30 -5", "11-01 02:30 -5" },
      coming("30 * * * *", "America/New_York", "2026-11-01 05:00", 3))
    assert.same({ "04-05 01:30 +11", "04-05 01:45 +11", "04-05 01:30 +10.5", "04-05 01:45 +10.5", "04-05 02:00 +10.5" },
      coming("*/15 * * * *", "Australia/Lord_Howe", "2026-04-04 14:16", 5))
    assert.same({ "10-04 01:45 +10.5", "10-04 02:30 +11" },
      coming("*/15 * * * *", "Australia/Lord_Howe", "2026-10-03 15:01", 2))
  end)

  it("changes that lie behind the table of the file follow the rule at its end", function()
    assert.same({ "03-26 03:00 +2", "03-27 02:30 +2" }, coming("30 2 * * *", "Europe/Vienna", "2056-03-25 12:00", 2))
    assert.same({ "10-29 02:30 +2", "10-30 02:30 +1" }, coming("30 2 * * *", "Europe/Vienna", "2056-10-28 12:00", 2))
  end)

  it("offsets are those of the system", function()
    for _, name in ipairs { "Europe/Vienna", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC",
      "America/Santiago", "Africa/Casablanca", "Pacific/Chatham", "Europe/Dublin" } do
      local where, times, t = assert(calendar.zone(name)), {}, 0
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
      coming("0 9-17/4 * * mon-fri", "UTC", "2026-11-26 18:00", 4))
    assert.same({ "01-01 00:00 +0", "07-01 00:00 +0" }, coming("0 0 1 JAN,jul *", "UTC", "2026-11-26 00:00", 2))
    assert.same({ "11-29 00:00 +0", "12-06 00:00 +0" }, coming("@weekly", "UTC", "2026-11-26 00:00", 2))
    assert.same(coming("0 0 * * 0", "UTC", "2026-11-26 00:00", 3), coming("0 0 * * 7", "UTC", "2026-11-26 00:00", 3))
    assert.same({ "02-29 00:00 +0" }, coming("0 0 29 2 *", "UTC", "2026-11-26 00:00", 1))
    assert.same({}, coming("0 0 30 2 *", "UTC", "2026-11-26 00:00", 1))
  end)

  it("has seconds in front, where there are six", function()
    local parsed, where = assert(calendar.parse "*/20 * * * * *"), calendar.zone "UTC"
    assert.equal(instant "2026-11-26 00:00:20", calendar.next(parsed, instant "2026-11-26 00:00", where))
    assert.equal(instant "2026-11-26 00:00:40", calendar.next(parsed, instant "2026-11-26 00:00:20" + 0.5, where))
  end)

  it("either day will do where both are given", function()
    assert.same({ "11-27 12:00 +0", "12-04 12:00 +0", "12-11 12:00 +0", "12-13 12:00 +0", "12-18 12:00 +0" },
      coming("0 12 13 * fri", "UTC", "2026-11-26 00:00", 5))
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
      local parsed, why, code = calendar.parse(expression)
      assert.is_nil(parsed, expression)
      assert.matches(message, why, 1, true)
      assert.equal("INVALID", code)
    end
    for _, name in ipairs { "Europe/Wien", "../../etc/passwd", "/etc/passwd", "", "Europe", "posixrules\0x" } do
      local where, why, code = calendar.zone(name)
      assert.is_nil(where, name)
      assert.matches("no time zone", why)
      assert.equal("INVALID", code)
    end
  end)
end)

describe("ticks that are due:", function()
  local function due(def, first, now)
    local list = {}
    for i, t in ipairs(schedule.due(def, instant(first) * 1000000, instant(now) * 1000000)) do
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
    assert.equal(first + 600000000, schedule.next(ten, first + 7, first))
    assert.equal(first + 1200000000, schedule.next(ten, first + 600000000, first))
  end)
end)

describe("hosts push ticks:", function()
  local handle, url

  with_database(function(h, _, u) handle, url = h, u end)

  local IDLE = [[return { noop = function() return "ran" end }]]

  local function jobs(name)
    return handle:execute("SELECT id, name, payload FROM nightshift_job WHERE name = ? UNION ALL "
      .. "SELECT id, name, payload FROM nightshift_finished WHERE name = ? ORDER BY id", name, name)
  end

  local function row(name)
    for _, one in ipairs(assert(handle:schedules())) do
      if one.name == name then return one end
    end
  end

  -- As if a schedule had been left alone for so many seconds.
  local function age(name, seconds)
    assert(handle:execute("UPDATE nightshift_schedule SET next_at = next_at - ? WHERE name = ?",
      math.tointeger(seconds * 1000000), name))
  end

  -- What the doctor says of schedules: level, finding, advice.
  local function examine()
    return require "nightshift.doctor.jobs".schedules { handle = handle._handle, tables = true }
  end

  it("and the doctor names those that do not tick as they should, and what to do", function()
    assert(handle:schedule { name = "well", every = 60, push = { "x" } })
    age("well", 100) -- 40 s late
    assert.equal("ok", (examine()))
    age("well", 30)
    local level, found, advice = examine()
    assert.same({ "warn", "start a host: nightshift work" }, { level, advice })
    assert.matches("^'well' is late by 1m%d+", found)
    assert(handle:schedule_pause "well")
    assert.equal("ok", (examine()))
    assert(handle:schedule { name = "bad", every = 60, push = { "x" } })
    handle:execute "UPDATE nightshift_schedule SET error = 'it is too big', next_at = NULL WHERE name = 'bad'"
    level, found, advice = examine()
    assert.same({ "warn", "'bad' has failed: it is too big",
      "mend what it says, then nightshift schedules resume bad" }, { level, found, advice })
    handle:schedule_remove "bad"
    handle:execute [[INSERT INTO nightshift_served (holder, workers, handlers) VALUES (1, 1, '["other","tick"]')]]
    handle:execute [[INSERT INTO nightshift_holder (id, kind, host, pid, boot_id, connection, started, beat, version)
      VALUES (1, 'host', 'h', 1, '', 1, 1, 1, '')]]
    for i, job in ipairs { "tick", "gone" } do
      handle:execute([[INSERT INTO nightshift_schedule (name, definition, version, declared, next_at)
        SELECT ?, JSON_SET(definition, '$.job', ?), 1, 1, 9000000000000000 + ? FROM nightshift_schedule LIMIT 1]],
        job, job, i)
    end
    level, found, advice = examine()
    assert.same({ "warn", "no live host has the handler of 'gone'",
      "start a host with its script, or nightshift schedules remove gone" }, { level, found, advice })
    handle:execute [[UPDATE nightshift_served SET handlers = '["other",null]']]
    assert.equal("ok", (examine())) -- it may be among those that are not shown
  end)

  it("of schedules that are there when they start, or come later", function()
    assert(handle:schedule { name = "early", every = 1, push = { "noop", { n = 1 }, { queue = "a" } } })
    local h = host.start(url, IDLE)
    eventually(function() return #jobs "noop" >= 2 end)
    assert(handle:schedule_pause "early")
    assert(handle:schedule { name = "late", cron = "* * * * * *", push = { "noop", { n = 2 } } })
    local since = core.clock()
    eventually(function() return row("late").last end)
    assert.is_true(core.clock() - since < proc.limit(4)) -- unheard: ten seconds
    local last = row "late"
    assert.equal('{"n":2}', handle:execute("SELECT payload FROM nightshift_finished WHERE id = ?",
      eventually(function() return handle:job(last.last_id).state == "done" and last.last_id end))[1].payload)
    host.stop(h)
  end)

  it("each once, by many hosts that are killed at the tick", function()
    assert(handle:schedule { name = "t", cron = "* * * * * *", missed = "all", push = { "noop", { n = 1 } } })
    local hosts, first = {}, row("t").due
    for i = 1, 3 do hosts[i] = host.start(url, IDLE) end
    for i = 1, 4 do
      local at = first + i
      eventually(function() return handle:execute("SELECT UNIX_TIMESTAMP(NOW(6)) >= ? AS yes", at)[1].yes == 1 end)
      local k = i % 3 + 1
      hosts[k]:signal "KILL"
      hosts[k]:wait()
      hosts[k] = host.start(url, IDLE)
    end
    assert(handle:schedule_pause "t")
    local ticks = math.tointeger(row("t").last - first) + 1
    assert.equal(ticks, #jobs "noop")
    assert.is_true(ticks >= 5)
    for _, h in ipairs(hosts) do host.stop(h) end
  end)

  it("by the server's clock, whatever theirs says", function()
    if os.getenv "SAN" then return pending "sanitizers want to be loaded first" end
    local hosts = {}
    for i, off in ipairs { -10, 10 } do
      local path = fixture.file("clock", ("i8"):pack(off))
      hosts[i] = host.start(url, IDLE, nil, { LD_PRELOAD = proc.build .. "/meddle.so", MEDDLE_CLOCK = path })
    end
    assert(handle:schedule { name = "t", every = 2, push = { "noop" } })
    local first = row("t").due
    eventually(function() return #jobs "noop" >= 2 end)
    assert(handle:schedule_pause "t")
    local n = math.tointeger((row("t").last - first) // 2) + 1
    assert.equal(n, #jobs "noop")
    for _, job in ipairs(jobs "noop") do
      local created = handle:job(job.id).created
      local late = (created - first) % 2
      assert.is_true(created >= first and late < proc.limit(1.5))
    end
    for _, h in ipairs(hosts) do host.stop(h) end
  end)

  it("that were missed, as the schedule says", function()
    for name, missed in pairs { one = "one", all = "all", none = "none" } do
      assert(handle:schedule { name = name, every = 3600, missed = missed, push = { "of." .. name } })
      age(name, 5 * 3600 + 120)
    end
    local h = host.start(url, IDLE)
    eventually(function() return row("one").last and row("all").last and row("none").due > row("one").last end)
    assert.same({ 1, 5, 0 }, { #jobs "of.one", #jobs "of.all", #jobs "of.none" })
    assert.is_true(math.abs(row("one").last - row("all").last) < 1)
    host.stop(h)
  end)

  it("not while the last job lives, where they do not overlap", function()
    assert(handle:schedule { name = "t", every = 1, overlap = "skip", push = { "nobody" } })
    local h = host.start(url, IDLE)
    eventually(function() return row("t").skipped >= 2 end)
    assert.equal(1, #jobs "nobody")
    handle:cancel(jobs("nobody")[1].id)
    eventually(function() return #jobs "nobody" == 2 end)
    host.stop(h)
  end)

  it("and run them before they end, when they drain", function()
    assert(handle:schedule { name = "t", every = 3600, push = { "noop" } })
    for i = 1, 3 do
      age("t", 3600)
      assert.equal(0, (host.drain(url, IDLE, { "--drain" })))
      assert.equal(i, #handle:jobs { name = "noop", state = "done" })
    end
    assert.same({}, handle:jobs { name = "noop", state = "ready" })
  end)

  it("and go on when one cannot be pushed", function()
    assert(handle:schedule { name = "bad", every = 1, push = { "noop" } })
    assert(handle:schedule { name = "good", every = 1, push = { "good" } })
    assert(handle:execute([[UPDATE nightshift_schedule
      SET definition = JSON_SET(definition, '$.queue', REPEAT('q', 65)) WHERE name = 'bad']]))
    local h = host.start(url, IDLE)
    eventually(function() return #jobs "good" >= 2 end)
    assert.matches("65 bytes", row("bad").error)
    assert.is_nil(row("bad").due)
    assert.equal("bad", host.events(select(2, h:text()), "schedule.failed")[1].name)
    assert(handle:schedule { name = "bad", every = 1, push = { "noop" } })
    eventually(function() return #jobs "noop" >= 1 end)
    assert.is_nil(row("bad").error)
    host.stop(h)
  end)

  it("and go on beside one that cannot be read", function()
    assert(handle:schedule { name = "bad", every = 1, push = { "noop" } })
    assert(handle:schedule { name = "good", every = 1, push = { "good" } })
    assert(handle:execute "UPDATE nightshift_schedule SET definition = '5', next_at = 1 WHERE name = 'bad'")
    local h = host.start(url, IDLE)
    eventually(function() return #jobs "good" >= 1 end)
    local failed = handle:execute "SELECT error, next_at FROM nightshift_schedule WHERE name = 'bad'"[1]
    assert.is_string(failed.error)
    assert.is_nil(failed.next_at)
    host.stop(h)
  end)

  -- The first host without tzdata made such a schedule fail for all of them.
  it("but for those of a zone that its machine lacks, which are left to hosts that have it", function()
    assert(handle:schedule { name = "zoned", cron = "* * * * * *", zone = "Europe/Vienna", push = { "zoned" } })
    assert(handle:schedule { name = "plain", every = 1, push = { "plain" } })
    local h = host.start(url, IDLE, nil, { TZDIR = fixture.dir() })
    eventually(function() return #jobs "plain" >= 3 end)
    assert.same({ nil, nil, 0 }, { row("zoned").error, row("zoned").last, #jobs "zoned" })
    assert.is_number(row("zoned").due)
    local found, advice = select(2, examine())
    assert.matches("^%S+ lacks the zone 'Europe/Vienna' of 'zoned'", found)
    assert.matches("^install tzdata on %S+$", advice)
    local other = host.start(url, IDLE)
    eventually(function() return #jobs "zoned" >= 2 end)
    host.stop(h)
    host.stop(other)
    local told = host.events(select(2, h:text()), "schedule.no_zone")
    assert.equal(1, #told)
    assert.equal("zoned", told[1].name)
    assert.matches("there is no time zone 'Europe/Vienna'", select(2, h:text()), 1, true)
  end)

  it("when the server comes back", function()
    assert(handle:schedule { name = "t", every = 1, push = { "noop" } })
    local h = host.start(url, IDLE)
    eventually(function() return #jobs "noop" >= 1 end)
    local n = #jobs "noop"
    for _, one in ipairs(handle:execute "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()") do
      handle:execute("KILL " .. one.id)
    end
    eventually(function() return #jobs "noop" >= n + 2 end)
    host.stop(h)
  end)
end)

describe("scripts declare schedules:", function()
  local handle, url

  with_database(function(h, _, u) handle, url = h, u end)

  local function script(body) return "return { [\"tick\"] = { run = function() return 'ran' end, " .. body .. " } }" end

  local function row() return handle:schedules()[1] end

  local function write(path, text)
    local file <close> = assert(io.open(path, "wb"))
    file:write(text)
  end

  it("and keep the tick over a restart and a reload", function()
    local h = host.start(url,
      script [[cron = "0 3 * * *", zone = "Europe/Vienna", queue = "r", payload = { a = {1, 2} }]])
    local first = eventually(row)
    assert.same({ "tick", "tick", "r", true, { a = { 1, 2 } } },
      { first.name, first.job, first.queue, first.declared, first.payload })
    host.stop(h)
    handle:execute "UPDATE nightshift_schedule SET next_at = next_at - 1000000"
    h = host.start(url, h.script)
    h:signal "HUP"
    h:wait_line("reload.done", 20)
    write(h.script, script [[cron = "0 4 * * *"]])
    h:signal "HUP"
    h:wait_line("schedule.changed", 20)
    assert.equal("0 4 * * *", row().cron)
    host.stop(h)
    assert.equal(1, #host.events(select(2, h:text()), "schedule.changed"))
  end)

  it("which a restart does not move", function()
    local h = host.start(url, script [[every = "1h"]])
    local due = eventually(row).due
    host.stop(h)
    local version = handle:execute "SELECT version FROM nightshift_schedule"[1].version
    h = host.start(url, h.script)
    eventually(function() return handle:execute "SELECT version FROM nightshift_schedule"[1].version > version end)
    assert.equal(due, row().due)
    host.stop(h)
  end)

  it("and run them", function()
    local h = host.start(url, script [[every = 1]])
    eventually(function() return #handle:jobs { name = "tick", state = "done" } >= 2 end)
    host.stop(h)
  end)

  it("of two versions the one that was loaded later counts", function()
    local old = host.start(url, script [[every = "1h"]])
    eventually(row)
    local new = host.start(url, script [[every = "2h"]])
    new:wait_line("schedule.changed", 20)
    -- as if an hour had passed: the older declares again
    handle:execute "UPDATE nightshift_schedule SET version = version + 3600000000"
    old:signal "HUP"
    old:wait_line("schedule.superseded", 20)
    assert.equal(7200, row().every)
    host.stop(old)
    host.stop(new)
  end)

  it("also on a host that drains at once", function()
    for i = 1, 3 do
      assert.equal(0, (host.drain(url, script(("every = '%dh'"):format(i)), { "--drain" })))
      assert.equal(i * 3600, row().every)
    end
  end)

  it("a program keeps its name", function()
    assert(handle:schedule { name = "tick", every = 3600, push = { "x" } })
    local h = host.start(url, script [[every = "2h"]])
    h:wait_line("schedule.taken", 20)
    assert.equal(3600, row().every)
    host.stop(h)
    handle:schedule_remove "tick"
    h = host.start(url, h.script)
    eventually(row)
    local ok, message, code = handle:schedule { name = "tick", every = 3600, push = { "x" } }
    assert.is_nil(ok)
    assert.matches("is declared by handler scripts", message)
    assert.equal("STATE", code)
    host.stop(h)
  end)

  it("mistakes are told when scripts are loaded", function()
    for body, message in pairs {
      [ [[cron = "* *"]] ] = "a cron expression has five fields",
      [ [[cron = "@daily", zone = "Mars"]] ] = "there is no time zone 'Mars'",
      [ [[zone = "UTC"]] ] = "zone goes with cron or every",
      [ [[queue = ""]] ] = "queue is empty",
      [ [[cron = "@daily", every = 5]] ] = "give either cron",
      [ [[every = "soon"]] ] = "every: ",
      [ [[every = 5, missed = "never"]] ] = "missed must be one of one, all, none",
      [ [[every = 5, payload = print]] ] = "schedule",
      [ [[every = 5, payload = ("x"):rep(31000)]] ] = "its schedule has",
    } do
      local status, _, err = proc.nightshift({ "work", fixture.file("jobs.lua", script(body)) }, url)
      assert.equal(78, status, body)
      assert.matches("jobs.lua:1: handler 'tick': ", err, 1, true)
      assert.matches(message, err, 1, true)
    end
  end)

  it("a host without any has no connection for them, and no statement but the look", function()
    local function connections()
      return handle:execute "SELECT COUNT(*) AS n FROM information_schema.processlist WHERE db = DATABASE()"[1].n
    end
    local before = connections()
    local h = host.start(url, [[return { noop = function() end }]])
    local without = eventually(function() return h:text() and connections() > before and connections() end)
    core.sleep(0.3)
    without = math.max(without, connections())
    assert(handle:schedule { name = "t", every = 1, push = { "noop" } })
    eventually(function() return row().last end)
    eventually(function() return connections() == without + 1 end)
    host.stop(h)
  end)
end)

describe("plans of schedules:", function()
  local handle

  with_database(function(h) handle = h end)

  it("read by the key", function()
    handle:transaction(function()
      for i = 1, 300 do handle:schedule { name = "s" .. i, every = 3600, push = { "x" } } end
    end)
    for statement, plan in pairs { schedule_due = { "due", "[]", 10 }, schedule_next = { "due" },
      schedule_forgotten = { "declared", 10 }, schedule_declared = { "PRIMARY", [=[["s1"]]=] } } do
      local found
      for _, row in ipairs(assert(handle:execute("EXPLAIN " .. core.sql(statement), table.unpack(plan, 2)))) do
        if row.key == plan[1] then found = row end
      end
      assert.is_truthy(found, statement)
    end
  end)
end)

-- The runner by itself, as a host drives it: signs that scripts declare, and which scripts count.
describe("the runner of schedules:", function()
  local handle, url, logged

  with_database(function(h, _, u) handle, url, logged = h, u, {} end)

  local function declared(every)
    return { name = "tick", schedule = { every = every * 1000000, zone = "UTC", queue = "q", job = "tick",
      missed = "one", overlap = "allow", payload = core.null, options = {} } }
  end

  -- A host whose scripts were loaded `age` seconds ago; `rounds` are functions called between its
  -- rounds.
  local function run(list, age, ...)
    local rounds, n, generation = { ... }, 0, 1
    local one
    one = assert(runner.open(url, {
      declared = function() return core.encode(core.array(list)), generation, age end,
      log = function(_, event, key, name) logged[#logged + 1] = event .. (key == "name" and " " .. name or "") end,
      fired = function() end,
      wait = function()
        n, generation = n + 1, generation + 1
        if not rounds[n] then return true end
        rounds[n](one)
      end,
    }))
    one:run()
  end

  local function every() return handle:schedules()[1].every end

  it("scripts count from when they were loaded, not from when the server was there", function()
    run({ declared(60) }, 5)
    run({ declared(70) }, 100)
    assert.equal(60, every())
    run({ declared(80) }, 0)
    assert.equal(80, every())
    assert.same({ "schedule.added tick", "schedule.superseded tick", "schedule.changed tick" }, logged)
  end)

  it("older scripts count again when no newer ones have given a sign for a day", function()
    run({ declared(60) }, 5)
    handle:execute "UPDATE nightshift_schedule SET declared = declared - 86401000000"
    run({ declared(70) }, 100)
    assert.equal(70, every())
  end)

  it("one ends a day after it was declared last, on a host that has been there for an hour", function()
    local other = declared(60)
    other.name = "other"
    run({ declared(60), other }, 0)
    handle:execute "UPDATE nightshift_schedule SET declared = declared - 86401000000"
    run({ other }, 0, function() assert.equal(2, #handle:schedules()) end, function(one)
      assert.equal(2, #handle:schedules())
      one.since = one.since - 3600000000
    end)
    assert.equal("other", handle:schedules()[1].name)
    assert.same({ "schedule.added other", "schedule.added tick", "schedule.ended tick" }, logged)
  end)

  it("a host that was away ends nothing", function()
    run({ declared(60) }, 0)
    handle:execute "UPDATE nightshift_schedule SET declared = declared - 86401000000"
    run({}, 0, function(one) one.since, one.seen = one.since - 86400000000, one.seen - 86400000000 end)
    assert.equal(60, every())
  end)

  it("a sign for many costs two statements", function()
    local list = {}
    for i = 1, 300 do
      list[i] = declared(60)
      list[i].name = ("it's \u{1f600} %d"):format(i)
    end
    local function count()
      return handle:execute([[SELECT variable_value + 0 AS n FROM information_schema.global_status
        WHERE variable_name = 'Questions']])[1].n
    end
    local before, version
    run(list, 5, function()
      handle:execute "UPDATE nightshift_schedule SET declared = 1"
      version = handle:execute "SELECT MIN(version) AS v FROM nightshift_schedule"[1].v
      before = count()
    end, function() assert.is_true(count() - before < 50) end)
    local row = handle:execute "SELECT COUNT(*) AS n, MIN(version) AS v, MIN(declared) AS d FROM nightshift_schedule"[1]
    assert.equal(300, row.n)
    assert.is_true(row.v >= version and row.d > 1)
  end)

  it("a declaration starts one that has failed", function()
    run({ declared(60) }, 5)
    handle:execute "UPDATE nightshift_schedule SET next_at = NULL, error = 'why'"
    run({ declared(60) }, 5)
    assert.is_nil(handle:schedules()[1].error)
    assert.is_number(handle:schedules()[1].due)
  end)

  it("a zone that the machine gets is taken back", function()
    assert(handle:schedule { name = "t", cron = "* * * * *", zone = "Europe/Vienna", push = { "x" } })
    handle:execute "UPDATE nightshift_schedule SET next_at = 1"
    local function lacked() return handle:execute "SELECT lacked_by FROM nightshift_schedule"[1].lacked_by end
    local open = calendar.zone
    local _ <close> = setmetatable({}, { __close = function() calendar.zone = open end }) -- luacheck: ignore
    calendar.zone = function(name) -- luacheck: ignore
      if name == "UTC" then return open(name) end
      return nil, "there is no time zone", "INVALID"
    end
    run({}, 0, function()
      assert.is_string(lacked())
      assert.is_nil(handle:schedules()[1].last)
      calendar.zone = open -- luacheck: ignore
    end, function() end)
    assert.same({ "schedule.no_zone t" }, logged)
    assert.is_nil(lacked())
    assert.is_number(handle:schedules()[1].last)
  end)

  it("memory that runs out is no fault of a schedule", function()
    assert(handle:schedule { name = "t", every = 60, push = { "x" } })
    handle:execute "UPDATE nightshift_schedule SET next_at = 1"
    local due = schedule.due
    schedule.due = function() -- luacheck: ignore
      schedule.due = due
      error("not enough memory", 0)
    end
    run({}, 0, function() end)
    assert.same({ "schedule.error" }, logged)
    local row = handle:schedules()[1]
    assert.is_nil(row.error)
    assert.is_number(row.last)
  end)
end)
