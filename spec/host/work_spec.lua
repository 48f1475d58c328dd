-- Jobs through `nightshift work`: the values, errors and verdicts of handlers. Changes of a
-- handler to the session of job:db() are not there for the next job of its worker. Only
-- db:transaction begins or ends a transaction.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local ONCE = { max_attempts = 1 }

-- What handlers return, raise and say, in one host that reads the scripts of each test.
describe("a job of a host:", function()
  local handle, q
  local serve = host.lend(function(opened, queue) handle, q = opened, queue end)

  -- Pushes one job that has one attempt, waits until nothing is left, and gives what became of it,
  -- the host, and its id.
  local function work_one(script, name, payload, opts)
    local h = serve(script)
    local id = assert(q:push(name, payload, opts or ONCE))
    eventually(function() return handle:execute "SELECT COUNT(*) AS n FROM nightshift_job"[1].n == 0 end, 60)
    return assert(handle:job(id)), h, id
  end

  describe("a handler's return", function()
    it("is the job's result, exact to the last bit", function()
      local script = [[return { echo = function(job) return job.payload end }]]
      local payload = { n = 1 << 62, f = 0.1, s = "ü\n", list = nightshift.array {},
        deep = { { a = nightshift.null } } }
      local job = work_one(script, "echo", payload)
      assert.equal("done", job.state)
      assert.same(payload, job.result)
      assert.equal("integer", math.type(job.result.n))
    end)

    it("may be nothing, or false", function()
      local script = [[return { none = function() end, no = function() return false end }]]
      assert.equal(false, work_one(script, "no").result)
      local none = assert(q:push("none"))
      eventually(function() return handle:job(none).state == "done" end)
      assert.is_nil(handle:job(none).result)
    end)

    it("that cannot be encoded is a failure with its path", function()
      local job = work_one([[return { bad = function() return { list = { 1, print } } end }]], "bad")
      assert.equal("dead", job.state)
      assert.matches("result.list[2]: cannot encode a function", job.error, 1, true)
    end)

    it("over the size limit is a failure that says so", function()
      local job = work_one([[return { big = function() return ("x"):rep(2 << 20) end }]], "big")
      assert.equal("dead", job.state)
      assert.matches("over the limit of 1048576", job.error, 1, true)
    end)
  end)

  describe("a handler's error", function()
    local function error_of(body)
      return work_one("return { bad = function(job) " .. body .. " end }", "bad").error
    end

    it("is kept with file, line and traceback", function()
      local text = error_of "local function inner() error('boom') end inner() return 1"
      assert.matches("jobs.lua:1: boom", text, 1, true)
      assert.matches("in .-'inner'", text)
      assert.is_nil(text:find "worker.lua")
    end)

    it("may be nil", function() assert.matches("without an error value", error_of "error()") end)

    it("may be a table", function() assert.matches('{"code":5}', error_of "error {code = 5}", 1, true) end)

    it("may be a table whose __tostring raises", function()
      assert.matches("__tostring fails",
        error_of "error(setmetatable({}, {__tostring = function() error 'no' end}))", 1, true)
    end)

    it("may be huge: it is cut", function()
      local text = error_of "error(('x'):rep(3000000), 0)"
      assert.is_true(#text < 80000 and #text > 60000, #text)
    end)

    it("may be binary", function() assert.matches("a??b", error_of [[error("a\xff\xfeb", 0)]], 1, true) end)

    it("may be a stack overflow", function()
      assert.matches("stack overflow", error_of "local function f() return 1 + f() end f()")
    end)

    it("goes before a verdict that was given earlier", function()
      assert.matches("late", error_of "job:ack(1) error 'late'")
    end)
  end)

  describe("os.exit in a handler", function()
    it("ends the worker; what it has written is there", function()
      local path = fixture.dir() .. "/written"
      local job, h = work_one(([[return { exit = function(job)
        if job.crashes == 1 then return "again" end
        kept = io.open(%q, "w")
        kept:write "all of it"
        pcall(os.exit, false)
      end }]]):format(path), "exit")
      assert.same({ "done", "again", 0 }, { job.state, job.result, job.attempts }, h:transcript())
      assert.equal("all of it", io.open(path):read "a")
      h:wait_line "event=job.crashed"
      assert.equal(1, #host.events(h:transcript(), "job.crashed"))
      local row = handle:execute("SELECT error, log FROM nightshift_attempt WHERE job_id = ?", job.id)[1]
      assert.equal("worker exited with status 1", row.error)
      assert.matches("os.exit called\nstack traceback:.*jobs.lua:5", row.log)
    end)
  end)

  describe("a verdict", function()
    it("of again brings the job back with its state", function()
      local job = work_one([[
        return { poll = function(job)
          if job.polls < 3 then return job:again(0.01, { n = (job.state and job.state.n or 0) + 1 }) end
          return { job.state.n, job.attempt }
        end }]], "poll")
      assert.same({ 3, 1 }, job.result)
      assert.equal(3, job.polls)
    end)

    it("of fail counts and is retried", function()
      local job = work_one([[
        return { flaky = function(job)
          if job.attempt < 3 then return job:fail("not yet", { retry_in = 0.01 }) end
          return job.attempt
        end }]], "flaky", nil, { max_attempts = 5 })
      assert.equal(3, job.result)
    end)

    it("of discard is final", function()
      local job = work_one([[return { give_up = function(job) return job:discard("no use") end }]],
        "give_up", nil, { max_attempts = 5 })
      assert.equal("dead", job.state)
      assert.matches("no use", job.error)
    end)
  end)

  describe("a spawned child", function()
    it("runs after its parent, with the id that was given", function()
      local job = work_one([[
        return {
          parent = function(job) return { job:spawn("child", { n = 7 }), job:spawn("child", { n = 8 }) } end,
          child = function(job) return { job.parent, job.payload.n } end,
        }]], "parent")
      assert.same({ job.id, 7 }, handle:job(job.result[1]).result)
      assert.same({ job.id, 8 }, handle:job(job.result[2]).result)
    end)

    it("comes in any number", function()
      work_one([[return {
        many = function(job) for i = 1, 500 do job:spawn("one", i) end end,
        one = function() end }]], "many")
      assert.equal(500, #handle:execute "SELECT id FROM nightshift_finished WHERE outcome = 'done' AND name = 'one'")
    end)

    it("is dropped when the parent fails", function()
      local job = work_one([[return { parent = function(job) job:spawn("never") error "no" end }]], "parent")
      assert.equal("dead", job.state)
      assert.equal(0, #handle:execute "SELECT id FROM nightshift_finished WHERE name = 'never'")
    end)
  end)

  describe("a background handler", function()
    it("starts once and polls until it is done", function()
      local job = work_one([[
        local nightshift = require "nightshift"
        return { ["video.encode"] = nightshift.background {
          start = function(job) return { op = job.payload.file .. ".op" } end,
          poll = function(job, op)
            if job.polls < 2 then return job:again() end
            return { op.op, job.payload.file, job.polls }
          end,
          every = 0.02 } }]], "video.encode", { file = "a.mov" })
      assert.same({ op = "a.mov.op" }, job.result)
      local rows = handle:execute "SELECT id FROM nightshift_finished WHERE name = 'video.encode:poll'"
      assert.same({ "a.mov.op", "a.mov", 2 }, handle:job(rows[1].id).result)
    end)
  end)

  describe("a job without a handler", function()
    it("that is claimed all the same goes back, and the message lists the names there are", function()
      local h = serve [[return { b = function() end, a = function() end }]]
      local id = q:push "nosuch"
      handle:execute "UPDATE nightshift_ready SET kind = 0" -- as an older program writes it
      assert(q:push "a") -- which wakes the host
      h:wait_line "no handler named 'nosuch'; known: a, b"
      eventually(function() return handle:job(id).run == 2 end)
      assert(handle:cancel(id))
    end)
  end)

  describe("what a handler says", function()
    it("is logged with the job, and kept with a failed attempt", function()
      local _, h, id = work_one([[
        return { talk = function(job) job:log "one" job:log "two\nthree" error "end" end }]], "talk")
      h:wait_line("event=job.log id=" .. id .. " run=1 name=talk queue=q host=%S+ worker=%d pid=%d+ seconds=%S+ "
        .. [[outcome=running text="two\nthree"]])
      local rows = handle:execute("SELECT log FROM nightshift_attempt WHERE job_id = ?", id)
      assert.equal("one\ntwo\nthree\n", rows[1].log)
    end)

    it("by print arrives unharmed", function()
      local _, h = work_one([[return { say = function() print("hello") io.write("a", "b\n") end }]], "say")
      assert.equal("hello\nab\n", (h:text()))
    end)

    it("as progress is shown while it runs", function()
      serve [[return { slow = function(job)
        job:progress(0.5, "half way")
        while not job:cancelled() do require "nightshift.core".sleep(0.02) end
      end }]]
      local id = q:push("slow")
      eventually(function() return (handle:job(id).progress or 0) == 0.5 end)
      assert.equal("half way", handle:job(id).status)
      assert(handle:cancel(id))
    end)
  end)

  describe("a running job", function()
    it("learns that it was cancelled", function()
      local h = serve [[return { wait = function(job)
        print "waits"
        while not job:cancelled() do require "nightshift.core".sleep(0.02) end
        print "cancelled"
      end }]]
      local id = q:push("wait")
      h:wait_line "^waits" -- what is claimed and has not started would not start
      assert(handle:cancel(id))
      h:wait_line("^cancelled", 20)
      h:wait_line "event=job.stale"
      assert.equal("cancelled", handle:job(id).state)
    end)

    it("has a database of its own when it asks for one", function()
      local job = work_one([[return { ask = function(job)
        return job:db():execute("SELECT 6 * 7 AS n")[1].n
      end }]], "ask")
      assert.equal(42, job.result)
    end)

    it("is told at its own line that it cannot have one", function()
      local job = work_one([[
  require "nightshift".open = function() return nil, "no way in", "GONE" end
  return { ask = function(job)
    local db = job:db()
    return db ~= nil
  end }]], "ask")
      assert.matches("^[^\n]*jobs%.lua:3: nightshift: job:db: no way in %(GONE%)\n", job.error)
    end)

    it("has random numbers that no other worker has", function()
      serve [[return { random = function() require "nightshift.core".sleep(0.1) return math.random(0) end }]]
      local ids, seen = {}, {}
      for i = 1, 8 do ids[i] = q:push "random" end
      for _, id in ipairs(ids) do
        local n = eventually(function() return handle:job(id).result end)
        assert.is_nil(seen[n])
        seen[n] = true
      end
    end)
  end)
end)

local url, handle, q, database

local function take(...) handle, q, url, database = ... end

describe("--queues", function()
  with_database(take)

  it("serves the named ones only, also one that comes to be later", function()
    local h = host.start(url, [[return { a = function() end }]], { "--queues", "later=2,mail" })
    local other = handle:queue("other"):push "a"
    local id = handle:queue("later"):push "a"
    eventually(function() return handle:job(id).state == "done" end)
    assert.equal("ready", handle:job(other).state)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

describe("without --queues", function()
  with_database(take)

  it("every queue is served, also a new one, unless it is paused", function()
    local h = host.start(url, [[return { a = function() end }]])
    local paused = handle:queue "paused"
    paused:push "a"
    eventually(function() return #handle:execute "SELECT id FROM nightshift_finished" == 1 end)
    assert(paused:pause())
    local id = paused:push "a"
    local new = handle:queue("new"):push "a"
    eventually(function() return handle:job(new).state == "done" end)
    assert.equal("ready", handle:job(id).state)
    assert(paused:resume())
    eventually(function() return handle:job(id).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

describe("--log json", function()
  with_database(take)

  it("writes one JSON object per line", function()
    q:push("bad", nil, ONCE)
    local _, log = host.drain(url, [[return { bad = function() error 'a "quoted"\nerror' end }]],
      { "--log", "json", "--drain" })
    local events = {}
    for line in log:gmatch "[^\n]+" do
      local entry = assert(nightshift.decode(line))
      events[entry.event] = entry
    end
    assert.is_not_nil(events["host.ready"].pid)
    assert.matches('a "quoted"\nerror\nstack traceback:', events["job.dead"].error, 1, true)
  end)
end)

describe("--drain", function()
  with_database(take)

  it("waits for what is due soon, and not for what is due later", function()
    local soon = q:push("a", nil, { delay = 0.4 })
    local later = q:push("a", nil, { delay = 600 })
    local status = host.drain(url, [[return { a = function() end }]], { "--drain-within", "5" })
    assert.equal(0, status)
    assert.equal("done", handle:job(soon).state)
    assert.equal("scheduled", handle:job(later).state)
  end)
end)

-- Each test has a table of its own, in which handlers note who they are.
describe("sessions:", function()
  local function make_note() assert(handle:execute "CREATE OR REPLACE TABLE note (who VARCHAR(40)) ENGINE=InnoDB") end

  local function notes()
    local list = {}
    for i, row in ipairs(assert(handle:execute "SELECT who FROM note ORDER BY who")) do list[i] = row.who end
    return table.concat(list, " ")
  end

  describe("what is left of a handler:", function()
    local serve = host.lend(take, { "--workers", "1" })
    before_each(make_note)

    -- Runs jobs one after the other in one worker; gives what is known of each.
    local function in_turn(script, names)
      local h = serve(script)
      local infos = {}
      for i, name in ipairs(names) do
        local id = assert(q:push(name, nil, { max_attempts = 1 }))
        infos[i] = eventually(function()
          local info = handle:job(id)
          return (info.state == "done" or info.state == "dead") and info
        end)
      end
      assert.is_nil(host.death(h:transcript()), h:transcript())
      return table.unpack(infos)
    end

    describe("a transaction that a handler leaves open", function()
      local SCRIPT = [[
      local function note(job, who) assert(job:db():execute("INSERT INTO note VALUES (?)", who)) end
      local function keep(job, fn)
        KEPT = coroutine.create(function() return job:db():transaction(fn) end)
        assert(coroutine.resume(KEPT))
      end
      return {
        begin = function(job) return { select(2, job:db():execute "BEGIN") } end,
        procedure = function(job)
          local value, _, code = job:db():execute "CALL opens()"
          note(job, "after")
          return { value == nil, code }
        end,
        keep = function(job)
          keep(job, function(tx) tx:execute "INSERT INTO note VALUES ('kept')" coroutine.yield() return "over" end)
          return true
        end,
        keep_try = function(job)
          keep(job, function(tx)
            tx:try(function() tx:execute "INSERT INTO note VALUES ('kept')" coroutine.yield() end)
          end)
        end,
        dies = function(job)
          local function die(tx) tx:execute "INSERT INTO note VALUES ('died')" error "inside" end
          DEAD = coroutine.create(function() return job:db():transaction(die) end)
          return { coroutine.resume(DEAD) }
        end,
        keep_and_fail = function(job) keep(job, function() coroutine.yield() end) error "on its own" end,
        keep_and_push = function(job)
          keep(job, function() coroutine.yield() end)
          return { job:db():queue "untold":push("x", 1) }
        end,
        keep_and_spin = function(job)
          keep(job, function(tx) tx:execute "INSERT INTO note VALUES ('spun')" coroutine.yield() end)
          while true do end
        end,
        resume = function(job)
          return job:db():transaction(function(tx)
            tx:execute "INSERT INTO note VALUES ('mine')"
            local ok, value, _, code = coroutine.resume(KEPT)
            tx:execute "INSERT INTO note VALUES ('mine too')"
            return { ok, value == nil, code }
          end)
        end,
        plain = function(job) note(job, "plain") return (job:db():queue "other":push("x", 1)) end,
      }]]

      it("cannot be begun by hand", function()
        local first = in_turn(SCRIPT, { "begin" })
        assert.equal("done", first.state)
        assert.matches("db:transaction", first.result[1])
        assert.equal("STATE", first.result[2])
      end)

      it("is rolled back behind a procedure that began it", function()
        assert(handle:execute [[CREATE PROCEDURE opens()
          BEGIN START TRANSACTION; INSERT INTO note VALUES ('opened'); END]])
        local first = in_turn(SCRIPT, { "procedure" })
        assert.same({ true, "STATE" }, first.result)
        assert.equal("after", notes())
      end)

      it("of a kept coroutine fails its attempt and reaches nobody else", function()
        local first, second = in_turn(SCRIPT, { "keep", "plain" })
        assert.equal("dead", first.state)
        assert.matches("a coroutine was left inside db:transaction", first.error)
        assert.equal("done", second.state)
        assert.equal("plain", notes())
        assert.equal("x", handle:job(second.result).name)
      end)

      it("is named beside the error of a handler that failed", function()
        local first = in_turn(SCRIPT, { "keep_and_fail" })
        assert.matches("on its own.*left inside db:transaction", first.error)
      end)

      it("is none when its coroutine died of an error", function()
        local first, second = in_turn(SCRIPT, { "dies", "plain" })
        assert.equal("done", first.state, first.error)
        assert.is_false(first.result[1])
        assert.equal("done", second.state, second.error)
        assert.equal("plain", notes())
      end)

      it("gives no id to a push from outside of its coroutine", function()
        local first = in_turn(SCRIPT, { "keep_and_push" })
        assert.equal("dead", first.state)
        assert.same({}, handle:jobs { queue = "untold" })
      end)

      it("cannot be gone on with in the transaction of another job", function()
        for _, keep in ipairs { "keep", "keep_try" } do
          assert(handle:execute "DELETE FROM note")
          local _, second = in_turn(SCRIPT, { keep, "resume" })
          assert.equal("done", second.state, second.error)
          assert.same({ true, true, "STATE" }, second.result)
          assert.equal("mine mine too", notes())
        end
      end)

      it("ends with a job that is stopped", function()
        serve(SCRIPT)
        local id = assert(q:push("keep_and_spin", nil, { max_attempts = 1, timeout = 0.2 }))
        eventually(function() return handle:job(id).state == "dead" end)
        assert.matches("timeout", handle:job(id).error)
        local after = assert(q:push "plain")
        eventually(function() return handle:job(after).state == "done" end)
        assert.equal("plain", notes())
      end)
    end)

    describe("the session between two jobs", function()
      local SCRIPT = [[
      local LOOK = "SELECT DATABASE() AS db, @x AS x, @t AS t, @@sql_mode AS mode, @@time_zone AS zone, " ..
        "@@character_set_client AS client, @@innodb_lock_wait_timeout AS wait, @@tx_isolation AS isolation, " ..
        "@@autocommit AS auto, CURRENT_ROLE() AS role, IFNULL(IS_USED_LOCK('mine'), 0) AS held, " ..
        "IFNULL(IS_USED_LOCK('unseen'), 0) AS unseen, LAST_INSERT_ID() AS last"
      local function run(sql)
        return function(job)
          local db = job:db()
          assert(db:execute "SELECT 1")
          for one in sql:gmatch "[^;]+" do assert(db:execute(one)) end
          return true
        end
      end
      return {
        look = function(job)
          local db = job:db()
          local row = assert(db:execute(LOOK))[1]
          row.temporary = db:execute "SELECT 1 FROM scratch" and "there" or "none"
          row.prepared = db:execute "EXECUTE kept" and "there" or "none"
          row.value = assert(db:execute "SELECT LASTVAL(counted) AS v")[1].v
          row.note = assert(db:execute "INSERT INTO note VALUES ('look')").affected
          return row
        end,
        database = run "USE information_schema",
        variables = run "SET @x = 1",
        assigned = run "SELECT @x := 1",
        into = run "SELECT 1 INTO @x",
        mode = run "SET SESSION sql_mode = 'ANSI', time_zone = '+05:00', innodb_lock_wait_timeout = 1",
        names = run "SET NAMES utf8mb4 COLLATE utf8mb4_bin",
        comment = run "/* a */ -- b\n # c\n SET @x = 1",
        hidden = run "/*!50000 SET @x = 1 */",
        isolation = run "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY",
        next_one = run "SET TRANSACTION READ ONLY",
        temporary = run "CREATE TEMPORARY TABLE scratch SELECT 1 AS a",
        lock = run "SELECT GET_LOCK('mine', 0)",
        ["function"] = run "SELECT takes()",
        trigger = run "INSERT INTO fires VALUES (1)",
        counted = run "SELECT NEXT VALUE FOR counted; INSERT INTO note VALUES (NEXTVAL(counted))",
        inserted = run "INSERT INTO numbered VALUES ()",
        tables = run "LOCK TABLES note READ",
        all_tables = run "FLUSH TABLES WITH READ LOCK",
        prepared = run "PREPARE kept FROM 'SELECT 1'",
        role = run "SET ROLE NONE",
        procedure = run "CALL spoils()",
        block = run "BEGIN NOT ATOMIC SET @x = 1; END",
        inside = function(job)
          return job:db():transaction(function(tx) tx:execute "SET @x = 1" tx:execute "SELECT GET_LOCK('mine', 0)" end)
        end,
        autocommit = function(job)
          return job:db():transaction(function(tx) tx:execute "SET autocommit = 0" end)
        end,
        raises = function(job) job:db():execute "SET @x = 1" error "raised" end,
        claims = function(job)
          local kept = job:db():queue "kept":claim()
          assert(job:db():execute "SET @x = 1")
          KEPT = kept
          return kept.id
        end,
        acks = function() return assert(KEPT:ack()) end,
      }]]
      local SPOIL = { "database", "variables", "assigned", "into", "mode", "names", "comment", "hidden", "isolation",
        "next_one", "temporary", "lock", "function", "trigger", "inserted", "counted",
        "tables", "all_tables", "prepared", "role", "procedure",
        "block", "inside", "autocommit", "raises" }

      before_each(function()
        assert(handle:execute "CREATE OR REPLACE TABLE fires (n INT) ENGINE=InnoDB")
        assert(handle:execute "CREATE OR REPLACE SEQUENCE counted")
        assert(handle:execute "CREATE OR REPLACE TABLE numbered (n INT PRIMARY KEY AUTO_INCREMENT) ENGINE=InnoDB")
        assert(handle:execute [[CREATE OR REPLACE TRIGGER fires BEFORE INSERT ON fires
          FOR EACH ROW SET @t = GET_LOCK('unseen', 0)]])
        assert(handle:execute "CREATE OR REPLACE FUNCTION takes() RETURNS INT RETURN GET_LOCK('unseen', 0)")
        assert(handle:execute [[CREATE OR REPLACE PROCEDURE spoils() BEGIN
          SET @x = 1; SET NAMES utf8mb4 COLLATE utf8mb4_bin; DO GET_LOCK('mine', 0); END]])
      end)

      it("is as it was, whatever a job does to it", function()
        local names = { "look" }
        for _, name in ipairs(SPOIL) do
          names[#names + 1] = name
          names[#names + 1] = "look"
        end
        local infos = { in_turn(SCRIPT, names) }
        local fresh = infos[1].result
        assert.same({ "none", "none", 1 }, { fresh.temporary, fresh.prepared, fresh.note })
        for i, name in ipairs(SPOIL) do
          local info = infos[2 * i + 1]
          assert.equal("done", info.state, name .. ": " .. tostring(info.error))
          assert.same(fresh, info.result, name)
        end
      end)

      it("keeps what another claim of the handler holds", function()
        local other = assert(handle:queue "kept":push "kept")
        local first, second = in_turn(SCRIPT, { "claims", "acks" })
        assert.equal(other, first.result)
        assert.equal("done", second.state, second.error)
        assert.equal("done", handle:job(other).state)
      end)

      it("costs nothing when nothing was left", function()
        local script = [[return {
          first = function(job) return job:db():execute("SELECT CONNECTION_ID() AS id")[1].id end,
          plain = function(job)
            local db = job:db()
            assert(db:execute("INSERT INTO note VALUES (?)", "@x GET_LOCK SET"))
            return assert(db:execute("SELECT CONNECTION_ID() AS id, VARIABLE_VALUE AS prepared " ..
              "FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME = 'COM_STMT_PREPARE'"))[1]
          end,
        }]]
        local _, second, third, fourth = in_turn(script, { "first", "plain", "plain", "plain" })
        assert.equal(second.result.id, fourth.result.id)
        assert.equal(third.result.prepared, fourth.result.prepared) -- statements stay prepared
      end)
    end)
  end)

  describe("db:execute outside a transaction", function()
    with_database(take)
    before_each(make_note)

    for _, sql in ipairs { "BEGIN", "begin work", "START TRANSACTION", "/* x */ START TRANSACTION READ ONLY", "COMMIT",
      "ROLLBACK", "ROLLBACK TO SAVEPOINT a", "SAVEPOINT a", "RELEASE SAVEPOINT a", "SET autocommit = 0",
      "SET @@session.autocommit=1", "set @x = 'a', SESSION autocommit = 1", "XA START 'a'", "/*!BEGIN*/",
      "-- a line\nBEGIN", "# a line\nCOMMIT", "SET `autocommit` = 0", "SET completion_type = 'CHAIN'",
      "SET @x = 1, autocommit := 0" } do
      it("refuses " .. sql:gsub("\n", " "), function()
        local value, message, code = handle:execute(sql)
        assert.same({ nil, "STATE" }, { value, code })
        assert.matches("db:transaction", message)
        assert.equal(1, handle:execute("SELECT @@autocommit AS a")[1].a)
      end)
    end

    it("takes what only sounds like it", function()
      for _, sql in ipairs { "SELECT 'BEGIN; autocommit'", "SET @autocommits = 'autocommit'",
        "BEGIN NOT ATOMIC DO 1; END", "SELECT 1 AS begin", "SELECT @@autocommit", "SET @autocommit = 1",
        "SET @old = @@autocommit", "XA RECOVER" } do
        assert(handle:execute(sql))
      end
    end)

    it("keeps a push from committing what it began", function()
      assert(handle:execute [[CREATE PROCEDURE opens()
        BEGIN SET autocommit = 0; INSERT INTO note VALUES ('opened'); END]])
      local value, message, code = handle:execute "CALL opens()"
      assert.same({ nil, "STATE" }, { value, code })
      assert.matches("left a transaction open", message)
      assert(q:push "x")
      assert.equal("", notes())
      assert.equal(1, handle:execute("SELECT @@autocommit AS a")[1].a)
    end)

    -- what a procedure does, what is told of it
    local FAILS <const> = "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'a word'"
    local OPENS <const> = "START TRANSACTION; INSERT INTO note VALUES ('opened'); "
    for what, case in pairs {
      ["gives rows"] = { "SELECT 1;" .. OPENS .. "SELECT 2", "STATE", "left a transaction open" },
      ["fails"] = { OPENS .. FAILS, "SQL", "left open was rolled back: a word" },
      ["gives rows and fails"] = {
        OPENS .. "SELECT 1; SELECT 2;" .. FAILS, "SQL", "left open was rolled back: a word" },
    } do
      it("rolls back what a procedure has begun that " .. what, function()
        assert(handle:execute("CREATE PROCEDURE opens() BEGIN " .. case[1] .. "; END"))
        for _, next_one in ipairs {
          function() return q:push "x" end,
          function() return handle:execute "INSERT INTO note VALUES ('mine')" end,
          function() return q:claim() end,
        } do
          local value, message, code = handle:execute "CALL opens()"
          assert.same({ nil, case[2] }, { value, code })
          assert.matches(case[3], message)
          assert(next_one())
        end
        assert.equal("mine", notes())
      end)
    end

    it("keeps the tables that it has locked until it unlocks them, whatever else is asked", function()
      for _, sql in ipairs { "LOCK TABLES note WRITE", "/* a */ lock table note read",
        "FLUSH TABLES note WITH READ LOCK" } do
        assert(handle:execute(sql))
        for _, verb in ipairs {
          function() return q:push "x" end,
          function() return q:push_many { { "x" }, { "x" } } end,
          function() return q:claim() end,
          function() return handle:transaction(function() return true end) end,
          function() return handle:cancel(1) end,
          function() return q:pause() end,
        } do
          local value, message, code = verb()
          assert.same({ nil, "STATE" }, { value, code })
          assert.matches("UNLOCK TABLES", message)
        end
        assert.is_false(pcall(db.sql, "SET lock_wait_timeout = 0; INSERT INTO note VALUES ('another')", database))
        assert(handle:execute "UNLOCK TABLES")
        assert(q:push "x")
        assert(q:claim()):ack()
      end
      assert(handle:execute "FLUSH TABLES WITH READ LOCK") -- of all: a transaction may read under it
      assert(handle:transaction(function(tx) return tx:execute "SELECT 1 FROM note" end))
      assert(handle:execute "UNLOCK TABLES")
      assert.is_nil((handle:execute "LOCK TABLES nowhere WRITE"))
      assert(q:push "x")
    end)

    it("gives the first rows of a procedure, whatever comes behind them", function()
      assert(handle:execute [[CREATE PROCEDURE gives(n INT) BEGIN
        SELECT seq, REPEAT('ä', seq) AS text, NULL AS none FROM seq_1_to_300 WHERE seq <= n;
        SELECT 'other', 2; DO 1; END]])
      for _, n in ipairs { 300, 0, 2, 1 } do
        local rows = assert(handle:execute("CALL gives(?)", n))
        assert.equal(n, #rows)
        for i, row in ipairs(rows) do assert.same({ seq = i, text = ("ä"):rep(i) }, row) end
      end
    end)
  end)

  describe("in a transaction", function()
    with_database(take)
    before_each(make_note)

    it("a procedure that gives rows and ends it is told as any that ends it", function()
      for _, body in ipairs { "SELECT 1; COMMIT", "COMMIT; SELECT 1", "SELECT 1; ROLLBACK; SELECT 2" } do
        assert(handle:execute("CREATE OR REPLACE PROCEDURE ends() BEGIN " .. body .. "; END"))
        local value, message, code = handle:transaction(function(tx) return tx:execute "CALL ends()" end)
        assert.same({ nil, "STATE" }, { value, code })
        assert.matches("has ended the transaction", message)
      end
    end)

    it("completion_type is not there behind it", function()
      assert(handle:transaction(function(tx) return tx:execute "SET completion_type = 'CHAIN'" end))
      assert(handle:execute "INSERT INTO note VALUES ('mine')")
      assert(q:push "x")
      assert.equal("mine", notes())
      assert.equal("NO_CHAIN", handle:execute("SELECT @@completion_type AS c")[1].c)
    end)
  end)

  describe("a transaction in a coroutine", function()
    with_database(take)
    before_each(make_note)

    local function kept()
      local thread = coroutine.create(function()
        return handle:transaction(function(tx)
          tx:execute "INSERT INTO note VALUES ('inside')"
          coroutine.yield()
          return "over"
        end)
      end)
      assert(coroutine.resume(thread))
      return thread
    end

    it("refuses what others ask of its handle until it has ended", function()
      local thread = kept()
      for _, verb in ipairs {
        function() return q:push "x" end,
        function() return handle:execute "SELECT 1" end,
        function() return q:claim() end,
        function() return handle:jobs() end,
      } do
        local value, message, code = verb()
        assert.same({ nil, "STATE" }, { value, code })
        assert.matches("a coroutine that does not run", message)
      end
      assert.same({ true, "over" }, { coroutine.resume(thread) })
      assert(q:push "x")
      assert.equal("inside", notes())
    end)

    it("lets coroutines that it has started take part", function()
      assert.equal("over", handle:transaction(function()
        coroutine.wrap(function() assert(q:push "x") end)()
        return "over"
      end))
      assert.equal(1, #handle:jobs { queue = "q" })
    end)

    it("is rolled back when that has died of an error, with a try in it or not", function()
      for _, inside in ipairs { function(_, fn) fn() end, function(tx, fn) tx:try(fn) end } do
        local thread = coroutine.create(function()
          return handle:transaction(function(tx)
            inside(tx, function()
              tx:execute "INSERT INTO note VALUES ('inside')"
              error "died"
            end)
          end)
        end)
        assert.is_false((coroutine.resume(thread)))
        assert(q:push "x")
        assert.equal("", notes())
        assert(handle:transaction(function(tx)
          coroutine.close(thread)
          return tx:execute "INSERT INTO note VALUES ('other')"
        end))
        assert.equal("other", notes())
        assert(handle:execute "DELETE FROM note")
      end
    end)

    it("is rolled back when nobody can resume it any more", function()
      kept()
      collectgarbage()
      collectgarbage()
      assert.equal("", notes())
      assert(q:push "x")
    end)
  end)

  describe("the character set of a handle's connection", function()
    with_database(take)
    before_each(make_note)

    local OTHERS = { "SET NAMES latin1", "SET NAMES 'utf8mb3'", "SET CHARACTER SET latin1", "SET CHARSET latin1",
      "SET @x = 1, character_set_client = latin1", "SET SESSION character_set_results := NULL",
      "set @@session.character_set_connection='cp850'", "/*! SET NAMES */ DEFAULT",
      "BEGIN NOT ATOMIC SET NAMES latin1; END", "BEGIN NOT ATOMIC SET character_set_results = NULL; END",
      "CALL speaks_latin1()" }

    it("stays ours, so that texts stay what they are", function()
      assert(handle:execute "CREATE PROCEDURE speaks_latin1() SET NAMES latin1")
      for _, sql in ipairs(OTHERS) do
        local none, message, code = handle:execute(sql)
        assert.same({ nil, "STATE" }, { none, code }, sql)
        assert.is_truthy(message:find("utf8mb4", 1, true), message)
        local id = assert(q:push("bä", { x = "ü 😀" }))
        local row = assert(handle:execute("SELECT HEX(name) AS h FROM nightshift_job WHERE id = ?", id))[1]
        assert.equal("62C3A4", row.h)
        local job = assert(q:claim { wait = 5 }, sql)
        assert.same({ "bä", "ü 😀" }, { job.name, job.payload.x })
        assert(job:ack())
      end
    end)

    it("may be named, and another collation of it", function()
      for _, sql in ipairs { "SET NAMES utf8mb4", "SET NAMES 'utf8mb4' COLLATE utf8mb4_bin", "SET @a = 'names', @b = 1",
        "SET character_set_client = utf8mb4", "SET @character_set_client = 'latin1'" } do
        assert(handle:execute(sql))
      end
    end)
  end)
end)

-- The run that a job ended with: `last_run`, and what stands in listings, in the view and in
-- `show`.
describe("the last run", function()
  with_database(take)

  local SCRIPT = [[
    local function sleep(s) os.execute("sleep " .. s) end
    return {
      slow = function(job) sleep(0.2) return job.payload end,
      fails = function() sleep(0.2) error "no" end,
      crashes = function() os.execute("kill -9 " .. io.open "/proc/self/stat":read "a":match "^%d+") end,
      acks = function(job)
        sleep(0.2)
        assert(job:db():transaction(function(tx) return tx:ack(job) end))
      end,
      many = { batch = 3, within = 60, run = function() sleep(0.2) end },
      late = function() end,
      sleeps = function() for _ = 1, 500 do sleep(0.05) end end,
    }]]
  local machine

  local function now() return handle:execute "SELECT @@hostname AS name, UNIX_TIMESTAMP(SYSDATE(6)) + 0e0 AS t"[1] end

  -- By the server's clock: began after `from`, ended before `to`.
  local function assert_run(run, from, to)
    assert.equal(machine, run.host)
    assert.is_true(from <= run.started and run.started <= run.ended and run.ended <= to)
    assert.is_true(math.abs(run.ended - run.started - run.seconds) < 1e-5)
  end

  before_each(function() machine = now().name end)

  it("of a job of a host has start, end, host and worker", function()
    local from, ids = now().t, {}
    for _, name in ipairs { "slow", "fails", "crashes", "acks", "many", "many", "many" } do
      ids[#ids + 1] = assert(q:push(name, nil, { max_attempts = 1, max_crashes = 1 }))
    end
    local expired = assert(q:push("late", nil, { deadline = 0 }))
    local status, log = host.drain(url, SCRIPT, { "--drain-within", "500ms" })
    assert.equal(0, status, log)
    local to, pid = now().t, nil
    for i, id in ipairs(ids) do
      local job = assert(handle:job(id))
      local run = job.last_run
      assert.equal((i == 2 or i == 3) and "dead" or "done", job.state)
      assert_run(run, from, to)
      assert.is_true(i == 3 or run.seconds >= 0.2, id .. " took " .. run.seconds)
      assert.is_true(run.worker == 1 or run.worker == 2)
      pid = pid or run.pid
      assert.equal(pid, run.pid)
    end
    assert.is_nil(assert(handle:job(expired)).last_run)
    -- the host is gone, and its row
    assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_holder WHERE pid = ?", pid)[1].n)
    local run = handle:job(ids[2]).last_run
    for _, state in ipairs { "dead", false } do
      for _, row in ipairs(assert(handle:jobs { state = state or nil, name = "fails" })) do
        assert.same({ run.started, machine, run.worker }, { row.started, row.host, row.worker })
      end
    end
    local row = handle:execute("SELECT started < finished_at AS first, host, pid, worker FROM nightshift_history "
      .. "WHERE id = ?", ids[2])[1]
    assert.same({ first = 1, host = machine, pid = pid, worker = run.worker }, row)
    local _, text = proc.nightshift({ "show", tostring(ids[2]) }, url)
    local place = (" on %s (pid %d), worker %d\n"):format(machine, pid, run.worker)
    assert.matches("\nlast_run +20%d%d%-.-, ended after [%d.]+s on ", text)
    assert.is_truthy(text:find(place, 1, true), text)
    assert.is_truthy(text:match "\nrun 1 failed at [^\n]*\n":find(place, 1, true), text)
    local info = nightshift.decode((select(2, proc.nightshift({ "show", tostring(ids[2]), "--json" }, url))))
    assert.matches("^20%d%d%-", info.last_run.started)
    assert.same({ run.worker, machine }, { info.failures[1].worker, info.failures[1].host })
  end)

  it("of a job that is cancelled while it runs is known as far as it has shown itself", function()
    local from = now().t
    local h = host.start(url, SCRIPT, { "--workers", "3" })
    local ids = { assert(q:push("sleeps")), assert(q:push("sleeps")), assert(q:push("sleeps")) }
    eventually(function() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_running")[1].n == 3 end)
    assert(handle:cancel(ids[1]))
    assert(handle:cancel(ids[2], { tree = true }))
    assert.same({ found = 1, changed = 1, refused = 0 }, handle:cancel { state = "running" })
    for _, id in ipairs(ids) do
      local run = handle:job(id).last_run
      assert_run(run, from, now().t)
      assert.is_true(run.seconds >= 1, run.seconds) -- it shows itself after a second, with its start
      assert.is_nil(run.worker)
    end
    host.stop(h)
    local never = assert(q:push("sleeps"))
    assert(handle:cancel(never))
    assert.is_nil(handle:job(never).last_run)
  end)

  it("of a job of a program begins with its claim; a lost one is an attempt with its start", function()
    local from = now().t
    local other = assert(nightshift.open(url))
    assert(q:push_many { { "a" }, { "b" }, { "c" } })
    local mine = assert(other:queue "q":claim_many(2))
    handle:execute "DO SLEEP(0.1)"
    assert(mine[1]:ack())
    assert(other:transaction(function(tx) return tx:ack(mine[2]) end))
    local third = assert(other:queue "q":claim { lease = 0.3 })
    eventually(function()
      assert(handle:rescue { wait = 0 })
      return handle:job(third.id).state == "ready"
    end)
    other:close()
    for i = 1, 2 do
      local run = handle:job(mine[i].id).last_run
      assert_run(run, from, now().t)
      assert.is_true(run.seconds >= 0.1)
      assert.is_nil(run.worker)
    end
    local again = assert(q:claim())
    assert.equal(third.id, again.id)
    assert(again:ack())
    local _, text = proc.nightshift({ "show", tostring(third.id) }, url)
    assert.matches("\nrun 1 lost at [^\n]* after [%d.]+s on ", text)
  end)

  for name, result in pairs { ["a stretch"] = false, ["a list"] = 1 } do
    it("of many jobs, written as " .. name .. ", is each one's own", function()
      local items = {}
      for i = 1, 20 do items[i] = { "n" } end
      local ids = assert(q:push_many(items))
      local jobs, ends = assert(q:claim_many(20)), {}
      local at = core.clock()
      for i, job in ipairs(jobs) do
        ends[i] = { id = job.id, run = job.run, lease = job.lease, kind = "ack", result = result or nil,
          began = (at * 1000000 - i * 1000000) // 1 | 0, worker = i }
      end
      assert(handle._handle:settle_all(ends))
      for i, id in ipairs(ids) do
        local run = handle:job(id).last_run
        assert.is_true(run.seconds >= i and run.seconds < i + 1, i .. ": " .. run.seconds)
        assert.equal(i, run.worker)
      end
    end)
  end

  it("has a host for as long as the history goes back", function()
    local function past() return handle:execute "SELECT COUNT(*) AS n FROM nightshift_past_holder"[1].n end
    for _ = 1, 2 do
      local other <close> = assert(nightshift.open(url))
      assert(q:push "n")
      assert(assert(other:queue "q":claim()):ack())
    end
    assert.equal(2, past())
    assert(handle:execute "UPDATE nightshift_past_holder SET ended = ended - 2 * 86400000000")
    assert(handle:execute "UPDATE nightshift_finished SET finished_at = finished_at - 3 * 86400000000 LIMIT 1")
    assert(handle._handle:prune(-1, -1))
    assert.equal(2, past())
    assert(handle._handle:prune(86400000000, 86400000000))
    assert.equal(0, past())
  end)
end)
