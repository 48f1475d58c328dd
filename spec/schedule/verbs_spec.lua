-- Recurring jobs in programs and in the shell: adding, changing, looking, pausing, removing.

local core = require "nightshift.core"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

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

  it("leaves no transaction behind when it raises", function()
    assert(handle:schedule(daily()))
    handle:execute [[UPDATE nightshift_schedule SET definition = '5']]
    assert.is_false(pcall(handle.schedule_run, handle, "report"))
    assert.is_true(handle:transaction(function() return true end))
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
