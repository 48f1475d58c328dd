-- What people decide about an adopted table while it is worked on, what they see of
-- it, and what becomes of that when a host dies.

local designs = require "spec.support.designs"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

describe("control:", function()
  local db, _, url
  with_database(function(...) db, _, url = ... end)

  local function all(sql, ...) return assert(db._handle:execute(sql, ...)) end -- statements by name, too

  local function one(sql, ...) return all(sql, ...)[1] end

  local function count(name, state)
    local status = designs[name].map.status
    return one(("SELECT COUNT(*) AS n FROM %s WHERE %s = ?"):format(name, status.column), status[state]).n
  end

  local function adopt(name, strategy) return assert(db:adopt(designs.map(name, { strategy = strategy }))) end

  --- A host on a design with jobs that do this.
  local function start(name, strategy, body, more)
    local list = { "--adopt", designs.file(name, { strategy = strategy }) }
    for _, arg in ipairs(more or {}) do list[#list + 1] = arg end
    return host.start(url, ([[
    local function run(job) %s end
    return { migrate = run, job_queue = run, queue_table = run, worker_queue = run }]]):format(body), list)
  end

  local function finish(...)
    for _, h in ipairs { ... } do
      h:signal "QUIT"
      assert.equal(0, h:wait(20))
    end
  end

  describe("tune, while hosts work,", function()
    it("changes the rate of all of them together", function()
      designs.create(db, "migration_task", 0)
      designs.fill(db, "migration_task", 2000)
      local t = adopt "migration_task"
      local a, b = start("migration_task", "skip_locked", ""), start("migration_task", "skip_locked", "")
      eventually(function() return count("migration_task", "done") > 0 end)
      assert.is_true((t:tune { rate = 20 }))
      eventually(function() -- all handles have read it
        local before = count("migration_task", "done")
        nst.sleep(0.5)
        return count("migration_task", "done") - before <= 20
      end)
      local before, since = count("migration_task", "done"), nightshift.clock()
      nst.sleep(2)
      local done, took = count("migration_task", "done") - before, nightshift.clock() - since
      assert.is_true(done <= 20 * took + 20, ("%d rows in %.1f s"):format(done, took)) -- a moment may be paid ahead
      assert.is_true((t:tune { rate = 0 }))
      eventually(function() return count("migration_task", "done") == 2000 end, 60)
      finish(a, b)
    end)

    it("changes how many rows a host has at a time", function()
      designs.create(db, "migration_task", 200)
      local t = adopt "migration_task"
      assert.is_true((t:claim()):release()) -- it is known
      assert.is_true((t:tune { workers = 1 }))
      local body = "require 'nightshift.core'.sleep(0.1)"
      local a, b = start("migration_task", "update_limit", body), start("migration_task", "update_limit", body)
      for _ = 1, 20 do
        assert.is_true(count("migration_task", "processing") <= 2)
        nst.sleep(0.02)
      end
      assert.is_true(count("migration_task", "done") < 200)
      assert.is_true((t:tune { workers = 0 }))
      eventually(function() return count("migration_task", "processing") > 2 end)
      eventually(function() return count("migration_task", "done") == 200 end, 60)
      finish(a, b)
    end)

    it("changes the block of a claim", function()
      designs.create(db, "migration_task", 9)
      local t = adopt("migration_task", "skip_locked")
      assert(t:claim()):release()
      assert.is_true((t:tune { block = 2 }))
      local other = assert(nightshift.open(url))
      local seen = assert(other:adopt(designs.map("migration_task", { strategy = "skip_locked" })))
      assert.equal(2, #seen:claim_many(10))
      nst.sleep(proc.limit(0.5)) -- what it knew is a quarter of a second old at most
      assert.equal(2, #t:claim_many(10))
      assert.is_true((t:tune { block = 0 }))
      nst.sleep(proc.limit(0.5))
      assert.equal(5, #seen:claim_many(10))
      other:close()
    end)

    it("may come before the first claim, and says what it does not know", function()
      designs.create(db, "migration_task", 3)
      all "DELETE FROM nightshift_adopted"
      local t = adopt "migration_task"
      assert.is_true((t:tune { block = 1 }))
      assert.equal(1, #assert(adopt("migration_task"):claim_many(3)))
      assert.is_nil((t:tune { rate = -1 }))
      assert.error_matches(function() t:tune { speed = 1 } end, "unknown option 'speed'")
    end)
  end)

  describe("what a job shows", function()
    for name, strategy in pairs {
      migration_task = "update_limit", queue_table = "skip_locked", job_queue = "transaction",
    } do
      it("goes with its host, and the row comes back: " .. strategy, function()
        designs.create(db, name, 1)
        local h = start(name, strategy, "job:progress(0.5, 'half') require 'nightshift.core'.sleep(1000)")
        eventually(function() return one("SELECT COUNT(*) AS n FROM nightshift_grip WHERE note = 'half'").n == 1 end)
        h:signal "KILL"
        local t = adopt(name, strategy)
        eventually(function()
          assert(t:rescue())
          return one("SELECT COUNT(*) AS n FROM nightshift_grip").n == 0 and count(name, "open") == 1
        end)
        assert.same({}, all("@report_adopted_running", 10))
      end)
    end

    it("of a program's own is seen by others, until its verdict", function()
      designs.create(db, "migration_task", 1)
      local job = assert(adopt("migration_task", "skip_locked"):claim())
      assert.is_true((job:progress(0.25, "quarter")))
      local row = all("@report_adopted_running", 10)[1]
      assert.same({ 1, 0.25, "quarter" }, { row.id, row.progress, row.status })
      assert.is_true((job:touch()))
      assert.equal("quarter", all("@report_adopted_running", 10)[1].status)
      assert.is_true((job:ack()))
      assert.same({}, all("@report_adopted_running", 10))
      assert.equal("STALE", select(3, job:touch()))
    end)
  end)

  describe("rows that are only locked", function()
    local function counts(t)
      local found = assert(t:stats())
      return { found.ready, found.running, found.dead }
    end

    it("do not run when nobody has them", function()
      designs.create(db, "worker_queue", 5)
      all "UPDATE worker_queue SET failure_count = 3 WHERE id = 5"
      assert.same({ 4, 0, 1 }, counts(adopt("worker_queue", "transaction")))
    end)

    it("run for whoever has them, and for all when they show something", function()
      designs.create(db, "worker_queue", 3)
      local t = adopt("worker_queue", "transaction")
      local job = assert(t:claim())
      assert.equal(1, t:stats().running)
      assert.is_true((job:ack()))
      assert.same({ 2, 0, 0 }, counts(t))
      local h = start("worker_queue", "transaction",
        "if job.id == 2 then job:progress(0.5) require 'nightshift.core'.sleep(1000) end")
      eventually(function() return t:stats().running == 1 end)
      h:signal "KILL"
      h:wait()
      eventually(function()
        assert(t:rescue())
        return t:stats().running == 0
      end)
    end)
  end)

  describe("a verdict", function()
    it("on a row that somebody keeps locked is BUSY in a program, and may be given again", function()
      designs.create(db, "migration_task", 1)
      local job = assert(adopt("migration_task", "skip_locked"):claim())
      local other = assert(nightshift.open(url))
      assert(other:transaction(function(tx)
        assert(tx:execute "SELECT * FROM migration_task WHERE id = 1 FOR UPDATE")
        local ok, message, code = job:ack()
        assert.same({ nil, "BUSY" }, { ok, code })
        assert.truthy(message:find("locked by somebody else", 1, true), message)
        return true
      end))
      other:close()
      assert.equal("processing", one "SELECT status FROM migration_task".status)
      assert.is_true((job:ack()))
      assert.equal("complete", one "SELECT status FROM migration_task".status)
    end)

    it("is part of a transaction of the handle that has claimed, also as tx:ack", function()
      designs.create(db, "migration_task", 2)
      local t = adopt("migration_task", "skip_locked")
      local kept, undone = assert(t:claim()), assert(t:claim())
      assert.is_true((db:transaction(function(tx) assert.is_true((tx:ack(kept))) end)))
      pcall(db.transaction, db, function(tx)
        assert.is_true((tx:ack(undone)))
        error "no"
      end)
      assert.same({ 1, 1 }, { count("migration_task", "done"), count("migration_task", "processing") })
      assert.is_true((undone:ack()))
    end)

    it("is no part of a transaction of a worker, whose host has claimed the row", function()
      designs.create(db, "migration_task", 1)
      local status, log = host.drain(url, [[return { migrate = function(job)
      local ok, message, code = job:db():transaction(function(tx)
        assert(tx:execute "UPDATE migration_task SET imageUrl = 'changed'")
        assert(not tx:ack(job))
      end)
      assert(ok == nil and code == "INVALID" and message:find("claimed by the host", 1, true), message)
    end }]], { "--adopt", designs.file "migration_task", "--drain" })
      assert.equal(0, status, log)
      local row = one "SELECT status, imageUrl FROM migration_task"
      assert.equal("complete", row.status, log)
      assert.not_equal("changed", row.imageUrl)
    end)
  end)

  describe("a drain", function()
    for name, strategies in pairs { migration_task = { "update_limit", "transaction" },
      job_queue = { "transaction" } } do
      for _, strategy in ipairs(strategies) do
        it(("ends though a row of %s always fails, by %s"):format(name, strategy), function()
          designs.create(db, name, 6)
          local status, log = host.drain(url, [[
          local function run(job) if job.id <= 2 then error "always" end end
          return { migrate = run, job_queue = run }]],
            { "--adopt", designs.file(name, { strategy = strategy }), "--drain-within", "300ms" })
          assert.equal(0, status, log)
          assert.same({ 4, 2, 0 }, { count(name, "done"), count(name, "open"), count(name, "processing") })
          local column = designs[name].map.attempts
          if column then
            assert.is_true(one(("SELECT MIN(%s) AS n FROM %s WHERE id <= 2"):format(column, name)).n >= 1)
          end
        end)
      end
    end

    it("ends though such a row cannot be held on to for as long as it waits", function()
      designs.create(db, "migration_task", 2)
      local status, log = host.drain(url,
        "return { migrate = function(job) if job.id == 1 then error 'always' end end }",
        { "--adopt", designs.file("migration_task", { overdue = 1 }), "--drain-within", "1s" })
      assert.equal(0, status, log)
      assert.same({ 1, 1 }, { count("migration_task", "done"), count("migration_task", "open") })
    end)

    it("waits for a failed row that is due sooner", function()
      designs.create(db, "migration_task", 2)
      local status, log = host.drain(url, [[return { migrate = function(job)
      if job.id == 1 and job.attempt == 1 then return job:fail("once", { retry_in = 1 }) end
    end }]], { "--adopt", designs.file "migration_task", "--drain-within", "10s" })
      assert.equal(0, status, log)
      assert.equal(2, count("migration_task", "done"))
    end)
  end)
end)

-- `nightshift status` of adopted tables, and `nightshift work --single`.
describe("the program and adopted tables:", function()
  local db, _, url
  with_database(function(...) db, _, url = ... end)

  local function ok(args)
    local status, out, err = proc.nightshift(args, url)
    assert.equal(0, status, err)
    return out
  end

  local LONG = [[return { migrate = function(job)
  job:progress(0.5, "half of " .. job.payload.imageUrl)
  require "nightshift.core".sleep(1000)
end }]]

  describe("status", function()
    it("counts the rows of adopted tables, and shows what runs, where and since when", function()
      designs.create(db, "migration_task", 3)
      assert(db:execute "UPDATE migration_task SET status = 'complete' WHERE id = 3")
      local h = host.start(url, LONG, { "--workers", "1", "--adopt", designs.file "migration_task" })
      local status, row
      eventually(function()
        status = nightshift.decode(ok { "status", "--json" })
        row = status.adopted.running[1]
        return row and row.status and status.adopted.tables[1].counts.running == 1
      end)
      local t = status.adopted.tables[1]
      assert.same({ "migration_task", 1, 1, false }, { t.table, t.counts.done, t.counts.running, t.paused })
      assert.same({ "migration_task", h.pid, 0.5, "half of http://localhost/a.png" },
        { row.table, row.pid, row.progress, row.status })
      assert.equal(host.members(h.pid)[1], row.worker)
      assert.equal(io.open "/proc/sys/kernel/hostname":read "l", row.host)
      assert.is_true(row.started > "20" and row.started <= row.touched and row.touched:sub(1, 10) <= status.now)
      local text = ok { "status" }
      assert.is_truthy(text:find "\nTABLE +READY +WAITING +RUNNING +DONE +DEAD +NEXT DUE", text)
      assert.is_truthy(text:find "\nmigration_task +1 +0 +1 +1 +0 ", text)
      assert.is_truthy(text:find "\nTABLE +ID +HOST +PID +STARTED +SEEN +DONE +STATUS\n", text)
      local line = ("\nmigration_task +%d +[^ ]+ +%d +20.* 50%%%%  half of http"):format(row.id, row.worker)
      assert.is_truthy(text:find(line), text)
      h:signal "QUIT"
      assert.equal(0, h:wait(20))
      assert.same({}, nightshift.decode(ok { "status", "--json" }).adopted.running)
    end)

    it("says what was decided about a table, and why it cannot be counted", function()
      designs.create(db, "migration_task", 1)
      local t = assert(db:adopt(designs.map "migration_task"))
      assert(assert(t:claim()):release())
      assert(t:tune { rate = 5, block = 7, workers = 3 })
      assert(t:pause())
      local text = ok { "status" }
      assert.is_truthy(text:find("paused, 5/s, blocks of 7, 3 at a time", 1, true), text)
      assert(t:resume())
      assert(t:tune { rate = 0, block = 0, workers = 0 })
      assert(db:execute "DROP TABLE migration_task")
      text = ok { "status" }
      assert.is_truthy(text:find "\nmigration_task +%- +%- +%- +%- +%- +%- +%w", text)
      assert.is_string(nightshift.decode(ok { "status", "--json" }).adopted.tables[1].error)
    end)
  end)

  describe("tune", function()
    it("changes how fast a table is worked on, for hosts that run", function()
      designs.create(db, "migration_task", 200)
      local t = assert(db:adopt(designs.map "migration_task"))
      assert(assert(t:claim()):release())
      ok { "tune", "migration_task", "--rate", "2" }
      local h = host.start(url, "return { migrate = function() end }", { "--adopt", designs.file "migration_task" })
      local function done()
        return db:execute("SELECT COUNT(*) AS n FROM migration_task WHERE status = 'complete'")[1].n
      end
      eventually(function() return done() >= 2 end)
      assert.is_true(done() < 150)
      assert.equal("migration_task tuned\n", ok { "tune", "migration_task", "--rate", "0", "--block", "5" })
      eventually(function() return done() == 200 end)
      assert.is_truthy(ok { "status" }:find("blocks of 5", 1, true))
      h:signal "TERM"
      assert.equal(0, h:wait(20))
    end)

    it("says what it wants, and which tables it does not know", function()
      for _, case in ipairs {
        { { "tune", "migration_task" }, 2, "give --rate, --block or --workers" },
        { { "tune", "migration_task", "--rate", "fast" }, 2, "--rate must be a number, got 'fast'" },
        { { "tune", "migration_task", "--block", "-1" }, 2, "--block must be" },
        { { "tune", "nobodys", "--rate", "1" }, 1, "nobody has adopted a table 'nobodys' yet" },
      } do
        local status, _, err = proc.nightshift(case[1], url)
        assert.equal(case[2], status, err)
        assert.is_truthy(err:find(case[3], 1, true), err)
      end
    end)
  end)

  describe("work --single", function()
    it("leaves the machine to the host that is there, and says so", function()
      designs.create(db, "migration_task", 1)
      local args = { "--single", "--adopt", designs.file "migration_task" }
      local first = host.start(url, "return { migrate = function() end }", args)
      local second = host.spawn(url, "return { migrate = function() end }", args)
      assert.equal(0, second:wait(20))
      local _, err = second:text()
      assert.equal("nightshift: --single: another host of this database runs on this machine\n", err)
      local free = host.start(url, "return { migrate = function() end }", { "--adopt", args[3] }) -- as it likes
      first:signal "TERM"
      assert.equal(0, first:wait(20))
      second = host.spawn(url, "return { migrate = function() end }", args)
      assert.equal(0, second:wait(20))
      assert.equal(err, select(2, second:text()))
      free:signal "TERM"
      assert.equal(0, free:wait(20))
      first = host.start(url, "return { migrate = function() end }", args)
      first:signal "KILL"
      first:wait(20)
      local third = host.start(url, "return { migrate = function() end }", args)
      third:signal "TERM"
      assert.equal(0, third:wait(20))
    end)
  end)

  describe("dead rows", function()
    local function run(...)
      local status, out, err = proc.nightshift({ ... }, url)
      return { exit = status, out = out, err = err }
    end

    --- Three commands, of which the last is done, and the rest are dead.
    local function prepare()
      designs.create(db, "worker_queue", 3)
      local t = assert(db:adopt(designs.map "worker_queue"))
      for job in t:jobs() do
        if job.id == 3 then assert(job:ack()) else assert(job:fail(("no route to host %d\nat all"):format(job.id))) end
      end
      return t
    end

    it("are listed with their errors, or by kinds of them", function()
      prepare()
      local out = run("jobs", "--table", "worker_queue").out
      assert.is_truthy(out:find "^ID +FAILED +WHEN +HOLDER +ERROR\n", out)
      assert.is_truthy(out:find "\n 1 +3 .* ago .* no route to host 1\n", out)
      out = run("jobs", "--table", "worker_queue", "--state", "dead", "--by", "error").out
      assert.is_truthy(out:find "\n +2 .* ago .* ago +2 +no route to host #\n", out)
      local rows = nightshift.decode(run("jobs", "--table", "worker_queue", "--limit", "1", "--json").out)
      assert.same({ 1, 3, "no route to host 1\nat all", "echo" },
        { rows[1].id, rows[1].attempts, rows[1].error, rows[1].payload.command })
      assert.is_nil(rows[2])
      assert.equal("no dead rows\n", run("jobs", "--table", "worker_queue", "--error", "another").out)
    end)

    it("run again by id, or all of an error when that is meant", function()
      local t = prepare()
      assert.equal("2 retried\n", run("retry", "--table", "worker_queue", "2").out)
      local again = run("retry", "--table", "worker_queue", "2", "1", "99")
      assert.same({ 1, "1 retried\n" }, { again.exit, again.out })
      assert.is_truthy(again.err:find("2: row 2 of 'worker_queue' is not dead", 1, true), again.err)
      assert.is_truthy(again.err:find("99: 'worker_queue' has no row 99 (NOT_FOUND)", 1, true), again.err)
      for job in t:jobs() do assert(job:fail "once more") end
      local asked = run("retry", "--table", "worker_queue", "--error", "once more")
      assert.same({ 2, "" }, { asked.exit, asked.out })
      assert.is_truthy(asked.err:find("2 rows would be retried; add --yes to do it", 1, true), asked.err)
      assert.equal(2, t:stats().dead)
      assert.equal("2 rows retried\n", run("retry", "--table", "worker_queue", "--error", "once more", "--yes").out)
      assert.equal("no dead rows\n", run("retry", "--table", "worker_queue", "--yes").out)
      assert.equal(2, t:stats().ready)
    end)

    it("stay when finished ones are deleted or moved", function()
      local t = prepare()
      local asked = run("prune", "--table", "worker_queue")
      assert.same({ 2, "" }, { asked.exit, asked.out })
      assert.is_truthy(asked.err:find("1 row would be deleted; add --yes to do it", 1, true), asked.err)
      local missing = run("prune", "--table", "worker_queue", "--into", "worker_archive", "--yes")
      assert.equal(1, missing.exit)
      assert.is_truthy(missing.err:find("CREATE TABLE `worker_archive` LIKE `worker_queue`", 1, true), missing.err)
      assert(db:execute "CREATE TABLE worker_archive LIKE worker_queue")
      assert.equal("moved 1 row\n", run("prune", "--table", "worker_queue", "--into", "worker_archive", "--yes").out)
      assert.equal("nothing to delete\n", run("prune", "--table", "worker_queue", "--yes").out)
      assert.equal("nothing to delete\n",
        run("prune", "--table", "worker_queue", "--state", "dead", "--older", "1h", "--yes").out)
      assert.same({ { id = 3 } }, db:execute "SELECT id FROM worker_archive")
      assert.equal(2, t:stats().dead)
      assert.equal(2, run("prune", "--table", "worker_queue", "--older", "1d").exit)
    end)

    it("are of a table that somebody has adopted, and options say which", function()
      prepare()
      assert.is_truthy(run("jobs", "--table", "nowhere").err:find("nobody has adopted a table 'nowhere' yet", 1, true))
      for _, args in ipairs {
        { "jobs", "--by", "error" }, { "jobs", "--table", "t", "--queue", "q" },
        { "jobs", "--table", "t", "--state", "done" },
        { "retry", "--error", "x" }, { "retry", "--table", "t", "--state", "dead" }, { "prune", "--older", "1d" },
        { "retry", "--table", "worker_queue", "--error", "x", "1" }, { "prune", "--table", "t", "--tree", "1" },
        { "prune", "--table", "t", "--limit", "0" }, { "prune", "--table", "t", "--older", "x" },
      } do
        assert.equal(2, run(table.unpack(args)).exit, table.concat(args, " "))
      end
    end)
  end)
end)

-- What a host's log says of rows of adopted tables that fail or come back: the claimant,
-- since when, why it ended, and when the row may be claimed again.
describe("the log of a host", function()
  local db, _, url
  with_database(function(...) db, _, url = ... end)

  local function all(sql) return assert(db:execute(sql)) end

  local function start(name, script, changes)
    return host.start(url, script, { "--adopt", designs.file(name, changes), "--log", "json", "--workers", "2" })
  end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end

  local function is_time(text) return text and text:find "^20%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%dZ$" == 1 end

  it("says of a failed task whose claim it was, since when, and when it comes next", function()
    designs.create(db, "queue_table", 1)
    all "UPDATE queue_table SET attempts = 2"
    local h = start("queue_table", [[return { queue_table = function(job)
      return job:fail("no disk\nat all", { retry_in = job.attempt == 29 and 1.5 or 0 })
    end }]], { strategy = "skip_locked" })
    eventually(function() return #host.logged(h, "row.failed") == 2 end)
    local first, last = table.unpack(host.logged(h, "row.failed"))
    for i, line in ipairs { first, last } do
      assert.same({ "queue_table", 1, "no disk", 28 + i }, { line.table, line.id, line.error, line.attempts })
      assert.is_truthy(line.claim:find "^ns:%w+:%w+$", line.claim)
      assert.is_true(is_time(line.claimed_at) and line.claimed_at <= line.ts)
    end
    assert.equal("open", first["then"])
    assert.is_true(is_time(first.next) and first.next > first.claimed_at and first.next <= last.ts, first.next)
    assert.same({ "dead" }, { last["then"], last.next })
    assert.not_equal(first.claim, last.claim)
    stop(h)
  end)

  it("says which tasks were reset, of whom, since when, and why", function()
    designs.create(db, "migration_task", 4)
    local endless = "return { migrate = function() require 'nightshift.core'.sleep(1000) end }"
    local other = start("migration_task", endless, { strategy = "update_limit" })
    eventually(function() return #all "SELECT 1 FROM migration_task WHERE claimedBy LIKE 'ns:%'" >= 2 end)
    local held = {}
    for _, row in ipairs(all "SELECT id, claimedBy AS claim FROM migration_task WHERE claimedBy IS NOT NULL") do
      held[row.id] = row.claim
    end
    all [[UPDATE migration_task SET status = 'processing', claimedBy = 'a program', claimedAt = '2020-01-02 03:04:05'
      WHERE id = 4]]
    held[4] = "a program"
    local h = start("migration_task", "return { migrate = function() end }", { strategy = "update_limit" })
    eventually(function() return #host.logged(h, "row.reset") == 1 end)
    other:signal "KILL"
    other:wait()
    local count = 0
    for _ in pairs(held) do count = count + 1 end
    eventually(function() return #host.logged(h, "row.reset") == count end)
    for _, line in ipairs(host.logged(h, "row.reset")) do
      assert.equal("migration_task", line.table)
      assert.equal(held[line.id], line.claim)
      assert.is_true(is_time(line.claimed_at) and line.claimed_at < line.ts)
      assert.equal(line.id == 4 and "overdue: it was claimed too long" or "its holder died", line.why)
    end
    assert.is_truthy(host.logged(h, "rescue")[1].rows)
    eventually(function() return #all "SELECT 1 FROM migration_task WHERE status = 'complete'" == 4 end)
    stop(h)
  end)
end)
