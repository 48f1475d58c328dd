-- What people decide about an adopted table while it is worked on, what they see of
-- it, and what becomes of that when a host dies.

local designs = require "spec.support.designs"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local db, _, url
with_database(function(...) db, _, url = ... end)

local function all(sql, ...) return assert(db._handle:execute(sql, ...)) end -- statements by name, too

local function one(sql, ...) return all(sql, ...)[1] end

local function count(name, state)
  local status = designs[name].map.status
  return one(("SELECT COUNT(*) AS n FROM %s WHERE %s = ?"):format(name, status.column), status[state]).n
end

local function adopt(name, strategy) return assert(db:adopt(designs.map(name, { strategy = strategy }))) end

--- A host on a design whose jobs do this.
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
    eventually(function() -- everybody has read it
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
  for name, strategies in pairs { migration_task = { "update_limit", "transaction" }, job_queue = { "transaction" } } do
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
    local status, log = host.drain(url, "return { migrate = function(job) if job.id == 1 then error 'always' end end }",
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
