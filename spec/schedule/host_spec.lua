-- Hosts that push the jobs of ticks: each once, whatever dies, and by the server's clock.

local core = require "nightshift.core"
local host = require "spec.support.host"
local proc = require "spec.support.proc"
local runner = require "nightshift.schedule.runner"

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
    for i = 1, 6 do
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
    assert.is_true(ticks >= 7)
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
    local zone = require "nightshift.schedule.zone"
    local open = zone.open
    local _ <close> = setmetatable({}, { __close = function() zone.open = open end }) -- luacheck: ignore
    zone.open = function(name) -- luacheck: ignore
      if name == "UTC" then return open(name) end
      return nil, "there is no time zone", "INVALID"
    end
    run({}, 0, function()
      assert.is_string(lacked())
      assert.is_nil(handle:schedules()[1].last)
      zone.open = open -- luacheck: ignore
    end, function() end)
    assert.same({ "schedule.no_zone t" }, logged)
    assert.is_nil(lacked())
    assert.is_number(handle:schedules()[1].last)
  end)

  it("memory that runs out is no fault of a schedule", function()
    assert(handle:schedule { name = "t", every = 60, push = { "x" } })
    handle:execute "UPDATE nightshift_schedule SET next_at = 1"
    local definition = require "nightshift.schedule.definition"
    local due = definition.due
    definition.due = function() -- luacheck: ignore
      definition.due = due
      error("not enough memory", 0)
    end
    run({}, 0, function() end)
    assert.same({ "schedule.error" }, logged)
    local row = handle:schedules()[1]
    assert.is_nil(row.error)
    assert.is_number(row.last)
  end)
end)
