-- Rows of an adopted table that somebody else has locked: claims go past them, and lock
-- no more than they take; a verdict comes as soon as its row is free.

local designs = require "spec.support.designs"
local lab = require "spec.support.lab"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local a, b
lab.handles(2, function(...) a, b = ... end)

local function ids(jobs)
  local list = {}
  for i, job in ipairs(jobs) do list[i] = job.id end
  return list
end

--- Waits for locks counted by the server since it started.
local function waits()
  return tonumber(assert(b:execute "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'")[1].Value)
end

-- A program that locks a row for a while.
local HOLDER = [[
  local db = assert(require "nightshift".open(arg[1]))
  assert(db._handle:begin())
  assert(db:execute(arg[2]))
  io.stdout:setvbuf "no"
  print "locked"
  require "nightshift.core".sleep(0.5)
  assert(db._handle:rollback())
  db:close()]]

local function lock(sql)
  local p = proc.start { proc.lua, fixture.file("holder.lua", HOLDER), lab.url(), sql,
    env = { LUA_PATH = proc.root .. "/lua/?.lua;" .. proc.root .. "/lua/?/init.lua;;" } }
  p:wait_line "locked"
  return p
end

for _, name in ipairs(designs.names) do
  for _, strategy in ipairs(designs[name].strategies) do
    it(("of %s are passed by %s, at once"):format(name, strategy), function()
      designs.create(a, name, 200)
      local t = assert(b:adopt(designs.map(name, { strategy = strategy })))
      local before = waits()
      assert(a:transaction(function(tx)
        assert(tx:execute(("SELECT * FROM %s WHERE id <= 150 FOR UPDATE"):format(name)))
        assert.same({ 151, 152, 153 }, ids(t:claim_many(3)))
        return true
      end))
      assert.same({ 1, 2 }, ids(t:claim_many(2)))
      assert.equal(before, waits())
    end)
  end
end

it("by a claim are those it takes, though the server has to sort", function()
  designs.create(a, "queue_table", 1)
  designs.fill(a, "queue_table", 500)
  assert(a:execute "UPDATE queue_table SET priority = id % 7")
  local map = designs.map("queue_table", { strategy = "transaction", status = {
    column = "status", open = "queued", done = "processed", failed = "failed" } })
  local ta, tb = assert(a:adopt(map)), assert(b:adopt(map))
  assert.same({ 6, 13, 20 }, ids(ta:claim_many(3)))
  assert.same({ 27, 34, 41 }, ids(tb:claim_many(3)))
end)

for name, strategy in pairs { migration_task = "update_limit", job_queue = "skip_locked", checkout = "named_lock" } do
  it(("of %s keep a verdict waiting no longer than they are"):format(name), function()
    designs.create(a, name, 2)
    local t = assert(a:adopt(designs.map(name, { strategy = strategy })))
    local jobs = assert(t:claim_many(2))
    local before, asked = waits(), nightshift.clock()
    local p = lock(("SELECT * FROM %s WHERE id = 1 FOR UPDATE"):format(name))
    assert.is_true((jobs[2]:ack()))
    assert.is_true((jobs[1]:ack()))
    assert.is_true(nightshift.clock() - asked < proc.limit(20)) -- of itself: for ever, or refused
    assert.equal(before, waits())
    assert.equal(0, p:wait(20))
    assert.is_nil(t:claim())
    assert.equal("STALE", select(3, jobs[1]:ack()))
  end)
end
