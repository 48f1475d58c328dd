-- nightshift.testing, the kit for tests of applications. It has a clean database, a clock that
-- moves, and crashes at named points. Jobs run in the process of the tests, those of the examples,
-- too.

local core = require "nightshift.core"
local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local testing = require "nightshift.testing"

local t, q

-- A database of a URL, on the server of the specs: a kit's own server takes seconds to make.
local function empty(name)
  db.sql(("CREATE OR REPLACE DATABASE `%s` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"):format(name))
  return db.url(name)
end

local function states()
  local list = {}
  for i, job in ipairs(assert(t:pushed())) do list[i] = job.name .. " " .. job.state end
  return list
end

local function counts(given)
  local all = { runs = 0, done = 0, failed = 0, dead = 0, again = 0, waiting = 0, stale = 0, crashed = 0, advanced = 0,
    left = {}, errors = {} }
  for key, value in pairs(given) do all[key] = value end
  return all
end

local EMAIL = { ["email.send"] = function(job) return { sent = job.payload.to } end }

describe("the testing kit", function()
  setup(function() t = assert(testing.open(empty "kit_test")) end)
  teardown(function() t:close() end)
  before_each(function()
    assert(t:clean())
    q = assert(t.db:queue "mail")
  end)

  it("is what nightshift.open() opens meanwhile, and is given again", function()
    assert.equal(t, testing.open(t._given.url))
    local other <close> = assert(nightshift.open())
    assert(assert(other:queue "mail"):push "x")
    assert.same({ "x ready" }, states())
  end)

  it("drains a limited queue, and has none after a clean", function()
    for i = 1, 4 do assert(q:push("email.send", { to = i }, { group = "g" .. i % 2 })) end
    assert(t.db:execute "INSERT INTO nightshift_limit (queue_id, group_running) SELECT id, 1 FROM nightshift_queue")
    assert(t.db:execute "UPDATE nightshift_queue SET limited = TRUE WHERE name = 'mail'")
    assert.same(counts { runs = 4, done = 4 }, t:drain(EMAIL))
    assert(t:clean())
    assert.same({ { n = 0 } }, t.db:execute "SELECT COUNT(*) AS n FROM nightshift_queue WHERE limited")
    assert(q:push("email.send", { to = 5 }, { group = "g" }))
    assert.same(counts { runs = 1, done = 1 }, t:drain(EMAIL))
  end)

  it("shows what was pushed, with payloads, to those who look for a part of it", function()
    assert(q:push("email.send", { to = "a", list = { 1, { deep = true } } },
      { priority = 7, unique = "k", group = "tenant:7" }))
    assert(t.db:queue "other":push("email.send", { to = "b" }, { delay = "1h" }))
    local jobs = assert(t:pushed { queue = "mail" })
    assert.equal(1, #jobs)
    assert.same({ "email.send", { to = "a", list = { 1, { deep = true } } }, 7, "ready", "k", "tenant:7", 0 },
      { jobs[1].name, jobs[1].payload, jobs[1].priority, jobs[1].state, jobs[1].unique, jobs[1].group,
        jobs[1].attempts })
    local function n(filter) return #assert(t:pushed(filter)) end
    assert.equal(2, n { name = "email.send" })
    assert.equal(1, n { payload = { list = { [2] = { deep = true } } } })
    assert.equal(0, n { name = "email.send", payload = { to = "c" } })
    local later = t:pushed { payload = { to = "b" } }[1]
    assert.equal("scheduled", later.state)
    assert.near(3600, later.due - later.created, 0.01)
  end)

  it("drains jobs with their children, phases and results", function()
    assert(q:push("tree", { n = 3 }))
    local drained = assert(t:drain { ["email.send"] = EMAIL["email.send"], tree = function(job)
      if job.phase > 0 then return #job.results end
      for i = 1, job.payload.n do assert(job:spawn("email.send", { to = i }, { queue = "q" .. i })) end
      return job:wait()
    end })
    assert.same(counts { runs = 5, done = 4, waiting = 1 }, drained)
    local tree = t:pushed { name = "tree" }[1]
    assert.equal(3, t.db:job(tree.id).result)
    assert.same(drained.left, {})
  end)

  it("runs what is due, and leaves polls, retries and delays for later", function()
    local function poll(job) return job.polls == 2 and "ok" or job:again "1m" end
    assert(q:push "poll")
    assert(q:push("email.send", { to = "a" }, { delay = "1d" }))
    local both = { poll = poll, ["email.send"] = EMAIL["email.send"] }
    assert.same(counts { runs = 1, again = 1 }, assert(t:drain(both)))
    assert.same(counts {}, assert(t:drain(both)))
    assert(t:advance "59s")
    assert.same(counts {}, assert(t:drain(both)))
    assert(t:advance(1))
    assert.same(counts { runs = 1, again = 1 }, assert(t:drain(both)))
    local drained = assert(t:drain(both, { scheduled = true }))
    assert.near(86400 - 60, drained.advanced, 5)
    drained.advanced = 0
    assert.same(counts { runs = 2, done = 2 }, drained)
  end)

  it("makes jobs ready in the order of their times", function()
    for i, delay in ipairs { "3m", "1m", "2m" } do assert(q:push("note", i, { delay = delay })) end
    local seen = {}
    assert(t:advance "1h")
    assert(t:drain { note = function(job) seen[#seen + 1] = job.payload end })
    assert.same({ 2, 3, 1 }, seen)
  end)

  it("says what a handler has raised, when all has run", function()
    assert(q:push("bad", 1, { max_attempts = 2, backoff = "10s" }))
    assert(q:push("email.send", { to = "a" }))
    local both = { bad = function() return nil, "no such user" end, ["email.send"] = EMAIL["email.send"] }
    local ok, message, code, drained = t:drain(both)
    assert.same({ nil, "FAILED" }, { ok, code })
    assert.matches("^bad, job %d+, attempt 1: no such user", message)
    assert.equal(1, drained.done)
    assert.same({ "bad scheduled", "email.send done" }, states())
    drained = assert(t:drain(both, { may_fail = true, scheduled = true }))
    assert.same({ 1, 1, true, 2 }, { drained.failed, drained.dead, drained.errors[1].dead, drained.errors[1].attempt })
    assert.same({ "bad dead", "email.send done" }, states())
  end)

  it("gives handlers all that workers give", function()
    local told, ended = {}, {}
    nightshift.on("job.start", function(job) told[#told + 1] = "start " .. job.name end)
    local all = {
      full = { max_attempts = 1, on_dead = "report", on_dead_queue = "reports",
        check = function(payload) return payload.n ~= 3, "three" end,
        around = function(job, run) ended[#ended + 1] = job.payload.n return run(job) end,
        run = function(job)
          job:log("n is " .. job.payload.n)
          assert(job:progress(0.5, "half"))
          assert(not job:cancelled())
          job:checkpoint { at = 1 }
          assert(job:db():execute "DO 1")
          if job.payload.n == 1 then return nightshift.discard "no" end
          if job.payload.n == 2 then os.exit(1) end
          return job:db():transaction(function(tx) return tx:ack(job, "acked") end)
        end },
      report = function(job) return job.payload.reason end,
    }
    for n = 1, 4 do assert(q:push("full", { n = n })) end
    local drained = assert(t:drain(all, { may_fail = true }))
    assert.same({ 7, 4, 1, 3, 3 }, { drained.runs, drained.done, drained.failed, drained.dead, #drained.errors })
    assert.same({ 1, 2, 4 }, ended)
    assert.equal("start full", told[1])
    local jobs = t:pushed { name = "full" }
    assert.equal("acked", t.db:job(jobs[4].id).result)
    assert.matches("os%.exit called", t.db:job(jobs[2].id).error)
    assert.equal(3, #t:pushed { name = "report", queue = "reports" })
  end)

  it("is a worker, from its start to its stop, and another one behind a death", function()
    local told = {}
    for _, event in ipairs { "worker.start", "worker.stop" } do
      nightshift.on(event, function() if told then told[#told + 1] = event:match "%l+$" end end)
    end
    assert(q:push("email.send", { to = "a" }))
    assert(t:crash_at "settle.before_commit")
    local note = { ["email.send"] = function() told[#told + 1] = "run" end }
    assert.equal(1, assert(t:drain(note)).crashed)
    assert(t:drain(note))
    assert.same({ "start", "run", "start", "run", "stop", "start", "stop" }, told)
    nightshift.on("worker.start", function() if told then error("no redis", 0) end end)
    local _, message = t:drain(note)
    assert.matches("^worker%.start: no redis", message)
    told = nil
  end)

  it("gives batches to handlers that take them, and each job its verdict", function()
    local sizes = {}
    local many = { mail = { batch = 3, within = "1m", max_attempts = 1, run = function(jobs)
      sizes[#sizes + 1] = #jobs
      jobs[1]:discard "bounced"
      jobs[2]:log "queued"
      jobs[2]:progress(0.5)
      assert(not jobs[2]:cancelled())
      return { [2] = "sent" }
    end }, ["email.send"] = EMAIL["email.send"] }
    for i = 1, 6 do assert(q:push("mail", i)) end
    assert(q:push("email.send", { to = "a" }))
    local drained = assert(t:drain(many, { may_fail = true }))
    assert.same({ { 3, 3 }, 7, 5, 2 }, { sizes, drained.runs, drained.done, drained.dead })
    local first = t:pushed { name = "mail" }
    assert.same({ "dead", "done", "sent" }, { first[1].state, first[2].state, t.db:job(first[2].id).result })
    assert(t:crash_at "settle.before_commit")
    for i = 1, 3 do assert(q:push("mail", i)) end
    assert.equal(1, assert(t:drain({ mail = { batch = 3, run = function() end } })).crashed)
  end)

  it("leaves jobs without a handler, paused ones, and endless ones", function()
    assert(q:push "typo")
    assert(q:push("email.send", { to = "a" }))
    assert(t.db:queue "shut":pause())
    assert(t.db:queue "shut":push("email.send", { to = "b" }))
    local drained = assert(t:drain(EMAIL))
    assert.same({ 1, { typo = 1, ["email.send"] = 1 } }, { drained.done, drained.left })
    assert.equal(0, assert(t:drain { typo2 = function() end }).runs)
    local _, message, code, beyond = t:drain({ typo = function(job) return job:again(0) end }, { runs = 20 })
    assert.same({ "FAILED", 20 }, { code, beyond.runs })
    assert.matches("has run 20 jobs and does not come to an end; the last was job %d+, typo", message)
  end)

  it("ticks schedules that handlers declare, by the clock of the tests", function()
    local days = {}
    local daily = { report = { cron = "0 3 * * *", zone = "Europe/Vienna", missed = "all",
      run = function(job) days[#days + 1] = job.id end } }
    assert.same(counts {}, assert(t:drain(daily)))
    for _ = 1, 30 do
      assert(t:advance "12h")
      assert(t:drain(daily))
    end
    assert.equal(15, #days)
    assert(t:advance "3d")
    assert(t:drain(daily))
    assert.equal(18, #days)
  end)

  it("moves deadlines, claims with a lease, and signals on", function()
    assert(q:push("late", 1, { deadline = "10m" }))
    assert(q:push("email.send", { to = "a" }))
    assert(q:push "waits")
    local waits = { waits = function(job)
      if job.phase == 0 then return job:wait { signal = "go", deadline = "1d" } end
      return job.signal == nil and "nothing came"
    end }
    assert(t:drain(waits))
    local job = assert(q:claim { names = { "email.send" }, lease = "1m" })
    assert(t:advance "2m")
    assert.equal(1, assert(t:drain(EMAIL)).done)
    assert.equal("STALE", select(3, job:ack()))
    assert(t:advance "10m")
    assert.equal(0, assert(t:drain { late = function() end }).done)
    assert(t:advance "1d")
    assert(t:drain(waits))
    assert.equal("nothing came", t.db:job(t:pushed { name = "waits" }[1].id).result)
  end)

  it("moves the periods of unique keys on", function()
    local once = { unique = { key = "welcome:1", period = "1h", on_conflict = "refuse" } }
    assert(q:push("email.send", { to = "a" }, once))
    assert(t:drain(EMAIL))
    assert(t:advance "59m")
    assert.equal("DUPLICATE", select(3, q:push("email.send", { to = "a" }, once)))
    assert(t:advance "2m")
    assert(q:push("email.send", { to = "a" }, once))
  end)

  it("cleans all but queues", function()
    assert(t.db:schedule { name = "s", every = 60, push = { "x" } })
    assert(t.db:pause_all())
    assert(q:pause())
    assert(q:push("x", 1, { unique = "u" }))
    assert(t:clean())
    assert.same({}, t:pushed())
    assert.same({}, t.db:schedules())
    assert(q:push("email.send", { to = "a" }, { unique = "u" }))
    assert.equal(1, assert(t:drain(EMAIL)).done)
    assert.same({ false, 0 }, { q:stats().paused, q:stats().ready })
  end)

  -- What a point leaves behind, and what comes of it.
  describe("dies", function()
    local function sends(sent)
      return { ["email.send"] = function(job)
        sent[#sent + 1] = job.payload.to
        return #sent
      end }
    end

    local IN_A_DRAIN = { ["claim.after_commit"] = 1, ["settle.before_commit"] = 2, ["settle.after_commit"] = 1 }
    for point, runs in pairs(IN_A_DRAIN) do
      it("at " .. point .. " in a drain, and another process goes on", function()
        local sent = {}
        assert(q:push("email.send", { to = "a" }))
        assert(t:crash_at(point))
        local drained = assert(t:drain(sends(sent)))
        assert.same({ 1, runs }, { drained.crashed, #sent })
        assert.same({ "email.send done" }, states())
        local lost = t.db:execute "SELECT kind FROM nightshift_attempt"
        assert.same(point ~= "settle.after_commit" and { { kind = "lost" } } or {}, lost)
      end)
    end

    for point, n in pairs { ["push.before_commit"] = 0, ["push.after_commit"] = 1 } do
      it("at " .. point .. ", where the program is unwound", function()
        assert(t:crash_at(point))
        local went_on
        local ok, message = pcall(function()
          q:push "x"
          went_on = true
        end)
        assert.same({ false, nil, "nightshift.testing: the process died at " .. point }, { ok, went_on, message })
        assert.equal(n, #t:pushed())
        assert.is_false(pcall(q.push, q, "x"))
        assert(t.db:queue "mail":push "y")
        assert.equal(n + 1, #t:pushed())
      end)
    end

    it("at both ends of a transaction, and behind the commit of a push in it", function()
      for point, n in pairs { ["transaction.before_commit"] = 0, ["transaction.after_commit"] = 1,
        ["push.after_commit"] = 1, ["push.before_commit"] = 0 } do
        assert(t:clean())
        assert(t:crash_at(point))
        local ended
        assert.is_false(pcall(function()
          t.db:transaction(function(tx)
            tx:queue "mail":push "x"
            ended = true
          end)
        end))
        assert.equal(point ~= "push.before_commit" or nil, ended, point)
        assert.equal(n, #t:pushed(), point)
      end
    end)

    it("the third time, if that is wanted, and not after a clean", function()
      local sent = {}
      for i = 1, 4 do assert(q:push("email.send", { to = i })) end
      assert(t:crash_at("settle.before_commit", 3))
      assert.equal(1, assert(t:drain(sends(sent))).crashed)
      assert.same({ 1, 2, 3, 4, 3 }, (function()
        if sent[4] == 3 then sent[4], sent[5] = 4, 3 end -- the third came back before or behind the fourth
        return sent
      end)())
      assert(t:crash_at "push.before_commit")
      assert(t:clean())
      assert(q:push "x")
    end)

    it("in a handler, with its transaction", function()
      assert(t.db:execute "CREATE OR REPLACE TABLE invoice (id BIGINT PRIMARY KEY)")
      assert(q:push "invoice")
      local tries = 0
      assert(t:crash_at "settle.before_commit")
      assert(t:drain { invoice = function(job)
        tries = tries + 1
        return job:db():transaction(function(tx)
          assert(tx:execute("INSERT INTO invoice VALUES (?)", job.id))
          return tx:ack(job)
        end)
      end })
      assert.equal(2, tries)
      assert.equal(1, #t.db:execute "SELECT id FROM invoice")
      assert.same({ "invoice done" }, states())
    end)
  end)

  it("refuses what it is not made for", function()
    assert.equal("INVALID", select(3, t:crash_at "nowhere"))
    assert.equal("INVALID", select(3, t:crash_at("push.after_commit", 0)))
    assert.equal("INVALID", select(3, t:advance(-1)))
    assert.equal("INVALID", select(3, t:advance "soon"))
    assert.equal("INVALID", select(3, t:drain "no/such/file.lua"))
    assert.same({ nil, "drain: the table of handlers: handler 'x' is a number; it must be a function, a table with "
      .. "run = function, or a nightshift.background{…}", "INVALID" }, { t:drain { x = 1 } })
    assert.equal("STATE", select(3, testing.open(db.url "another_test")))
    assert.has_error(function() t:drain() end, "nightshift: drain: the handlers must be a table of handlers, a file or "
      .. "a list of files, got nil")
    assert.has_error(function() t:pushed { nam = "x" } end)
    assert.has_error(function() t:flush() end)
    assert.has_error(function() t.clean() end)
    assert.has_error(function() testing.open(1) end)
  end)

  it("knows all tables and all instants", function()
    local shift = core.sql "testing_shift" .. core.sql "testing_due"
    assert(t.db:queue "shut":push("x", 1, { unique = "u" }))
    assert(t:clean())
    local stay = { meta = true, id = true, queue = true, listener = true }
    -- no instants, or ones of the world outside
    local no_time = " id job_id lease holder on_id parent root seq nonce backoff timeout paused connection row_id "
      .. "server thread n token last_job version declared beat cycle dead load_began load_ended age most skew "
      .. "done failed cancelled pushed waits waited longest_wait runs ran longest_run "
      .. "job jobs rate_span group_span head stopped_by "
    local untouched = { ["job.since"] = true, ["finished.since"] = true, ["holder.started"] = true,
      ["past_holder.started"] = true, ["past_holder.ended"] = true,
      ["served.ended"] = true, ["ready.ready_at"] = true, ["mended.last"] = true, ["notice.created"] = true,
      ["source.seen"] = true, ["source.runner"] = true, ["schedule.skipped"] = true,
      ["schedule.lacked_at"] = true, ["minute.at"] = true, ["group.ready_at"] = true,
      ["backlog.ready_at"] = true, ["node.since"] = true }
    local unknown, n = {}, 0
    for _, statement in ipairs(core.schema()) do
      local tab = statement.text:match "CREATE TABLE nightshift_([%l_]+)"
      if tab and not stay[tab] then
        n = n + 1
        local rows = assert(t.db:execute("SELECT COUNT(*) AS n FROM nightshift_" .. tab))
        if rows[1].n > 0 and tab ~= "ready" and tab ~= "holder" then unknown[#unknown + 1] = tab end
        for column in statement.text:gmatch "\n%s+([%l_]+) BIGINT" do
          local moved = shift:match("UPDATE nightshift_" .. tab .. " SET ([^;]*)") or ""
          local known = (" " .. moved):find("[%s]" .. column .. " = ") or untouched[tab .. "." .. column]
            or no_time:find(" " .. column .. " ", 1, true)
          if not known then unknown[#unknown + 1] = tab .. "." .. column end
        end
      end
    end
    assert.is_true(n > 20)
    assert.same({}, unknown)
  end)
end)

describe("the examples, drained:", function()
  local globals = package.loaded._G -- of the handlers
  local print_was, said = globals.print, {}

  setup(function() t = assert(testing.open(empty "examples_test")) end)
  teardown(function() t:close() end)

  before_each(function()
    assert(t:clean())
    globals.print = function(text) said[#said + 1] = text end
    said = {}
  end)
  after_each(function() globals.print = print_was end)

  it("of the page", function()
    local file <close> = assert(io.open "doc/testing.md")
    local code = assert(file:read "a":match "\n```lua\n(.-)\n```")
    local its = {}
    local function now(fn) fn() end
    local names = { assert = assert, setup = now, teardown = function() end, before_each = now,
      it = function(name, fn)
        its[#its + 1] = name
        fn()
      end,
      describe = function(_, fn) fn() end,
      require = function() return { open = function() return t end } end }
    assert(load(code, "@doc/testing.md", "t", setmetatable(names, { __index = _G })))()
    assert.equal(1, #its)
  end)

  it("hello", function()
    assert(t.db:queue "hello":push("hello.say", { name = "Ann" }))
    assert.equal(1, assert(t:drain "examples/hello/jobs.lua").done)
    assert.same({ "hello Ann" }, said)
  end)

  it("events, in batches, each exactly once", function()
    assert(t.db:execute "DROP TABLE IF EXISTS event")
    local events = t.db:queue "events"
    for i = 1, 150 do assert(events:push("event.store", { kind = "click", n = i })) end
    assert(events:push("event.store", { page = "/" }, { max_attempts = 1 }))
    assert(t:crash_at "settle.before_commit")
    local drained = assert(t:drain("examples/events/jobs.lua", { may_fail = true, scheduled = true }))
    assert.same({ 1, 150, 1 }, { drained.crashed, drained.done, drained.dead })
    assert.equal(150, t.db:execute("SELECT COUNT(*) AS n FROM event WHERE kind = 'click'")[1].n)
  end)

  it("letters", function()
    globals.print = function(...) said[#said + 1] = table.concat({ ... }, " ") end
    dofile "examples/letters/letters.lua"
    assert.same({ "1 done", "1 dead", "1 scheduled", "done ann@example.com", "done bob@example.com",
      "done cy@example.com", "3 deleted" }, said)
  end)

  it("schedules", function()
    local jobs = "examples/schedules/jobs.lua"
    assert.equal(0, assert(t:drain(jobs)).runs)
    assert(t:advance "1d")
    assert.equal(2, assert(t:drain(jobs)).done) -- what was missed in the night is made up for once
    assert(t:advance "10m")
    assert(t:drain(jobs))
    assert.same({ "the daily report as pdf" }, said)
    assert.same({ 1, 2 }, { #t:pushed { name = "report.daily" }, #t:pushed { name = "cache.clean" } })
  end)

  local function write(path, text)
    local file <close> = assert(io.open(path, "wb"))
    assert(file:write(text))
  end

  local function shell(script)
    local pipe <close> = assert(io.popen(script))
    return pipe:read "a"
  end

  it("archive", function()
    local dir = fixture.dir()
    assert(os.execute(("mkdir -p %s/in/a %s/out"):format(dir, dir)))
    write(dir .. "/in/a/file", "some text\n")
    assert(t.db:queue "archive":push("archive.start", { folder = dir .. "/in/a", archive = dir .. "/out/a.tar.gz" }))
    local drained = assert(t:drain("examples/archive/jobs.lua", { scheduled = true }))
    assert.equal(2, drained.done)
    assert.equal("./a/\n./a/file\n", shell("tar -tzf " .. dir .. "/out/a.tar.gz"))
  end)

  it("pipeline, by processes that die", function()
    local dir = fixture.dir()
    local film = dir .. "/film"
    write(film, ("frame %d\n"):rep(20000))
    local id = assert(t.db:queue "film":push("film.publish", { file = film, out = dir .. "/film.gz", size = 100000 },
      { max_crashes = 100 }))
    assert(t:crash_at("settle.before_commit", 3))
    local drained = assert(t:drain("examples/pipeline/jobs.lua", { scheduled = true }))
    assert.equal(1, drained.crashed)
    assert.equal(2, t.db:job(id).result.pieces)
    assert.equal("", shell(("gzip -dc %s.gz | cmp - %s 2>&1"):format(film, film)))
  end)
end)

describe("testing.open", function()
  it("touches no database that it has not made", function()
    for name, why in pairs { production = "does not have 'test' in it", shop_test = "has tables that" } do
      local url = empty(name)
      db.sql("CREATE TABLE orders (id INT); INSERT INTO orders VALUES (1)", name)
      local kit, message, code = testing.open(url)
      assert.same({ nil, "DENIED" }, { kit, code })
      assert.matches(why, message, 1, true)
      assert.equal("1", db.sql("SELECT COUNT(*) FROM orders", name))
      assert.equal("orders", db.sql("SHOW TABLES", name))
    end
  end)

  it("refuses tables of a queue, a copy of a database of tests, and one that is in use", function()
    local url = empty "real_test"
    assert(core.open { url = url, no_schema = true }:migrate())
    assert.equal("DENIED", select(3, testing.open(url)))
    db.sql("REPLACE INTO nightshift_meta VALUES ('testing', 'other_test 1234')", "real_test")
    assert.equal("DENIED", select(3, testing.open(url)))
    local mine = assert(testing.open(empty "mine_test"))
    mine:close()
    local keeper <close> = assert(nightshift.open { url = db.url "mine_test", no_schema = true })
    assert(keeper:execute "SELECT GET_LOCK(CONCAT('nightshift-testing:', MD5('mine_test')), 0)")
    assert.equal("BUSY", select(3, testing.open(db.url "mine_test")))
  end)

  it("makes tables of an older version anew, and says what cannot be opened", function()
    local url = empty "old_test"
    assert(testing.open(url)):close()
    db.sql("UPDATE nightshift_meta SET value = 'old_test 0' WHERE name = 'testing'; DROP VIEW nightshift_jobs",
      "old_test")
    local kit <close> = assert(testing.open(url))
    assert(kit.db:queue "q":push "x")
    assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_jobs", "old_test"))
    kit:close()
    assert.equal("GONE", select(3, testing.open "mysql://u@127.0.0.1:1/x_test"))
    assert.equal("INVALID", select(3, testing.open "no url"))
    assert.has_error(function() testing.open { dir = "/tmp", url = url } end)
  end)

  -- Two programs at a time, in plain Lua, on a server of their own.
  it("gives each process a database of the private server, and the same again", function()
    local cache = fixture.dir()
    local script = fixture.file("kit.lua", [[
      local testing = require "nightshift.testing"
      local t <close> = assert(testing.open())
      assert(t.db:queue "mail":push("email.send", { to = "a" }))
      assert(#t:pushed() == 1)
      assert(t:drain { ["email.send"] = function() end }.done == 1)
      print(t.url:match "/(nightshift_test_%d+)%?")
      io.stdout:flush()
      if arg[1] then require "nightshift.core".sleep(600) end
    ]])
    local env = { XDG_CACHE_HOME = cache, NIGHTSHIFT_URL = "mysql://nobody@127.0.0.1:1/production" }
    local first = proc.start { proc.lua, script, "wait", env = env }
    first:wait_line("nightshift_test_1", 120)
    local status, out, err = proc.run { proc.lua, script, env = env, timeout = 60 }
    assert.same({ 0, "nightshift_test_2\n" }, { status, out }, err)
    first:signal "KILL"
    first:wait()
    status, out, err = proc.run { proc.lua, script, env = env, timeout = 60 }
    assert.same({ 0, "nightshift_test_1\n", "" }, { status, out, err })
  end)
end)
