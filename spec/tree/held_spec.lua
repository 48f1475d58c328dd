-- Dependents with a locked row: no host waits for it, and none is missed.

local db = require "spec.support.db"
local host = require "spec.support.host"
local lab = require "spec.support.db".lab
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

-- Gives each test a database of its own, opened twice, and its queue "q".
local function with_two_handles(take)
  local other
  with_database(function(handle, q, url, name)
    other = assert(nightshift.open(url))
    take(handle, other, q, url, name)
  end)
  after_each(function() other:close() end)
end

describe("a job that waits, while somebody's transaction holds its row", function()
  local database, q, other

  setup(lab.fresh)
  before_each(function()
    database, other = lab.open(), lab.open()
    q = assert(database:queue "held")
  end)
  after_each(function()
    for _, job in ipairs(assert(database:jobs { queue = "held" })) do database:cancel(job.id) end
    other:close()
    database:close()
  end)

  local function hold(id)
    assert(other._handle:begin())
    assert(other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id))
  end

  local function two_with_join(on_fail)
    local first, second = assert(q:push "first"), assert(q:push "second")
    return assert(q:push("join", nil, { after = { first, second }, on_fail = on_fail }))
  end

  local function finish_two(outcome)
    for _ = 1, 2 do
      local job = assert(q:claim())
      assert(job[outcome](job, outcome == "discard" and "no" or nil))
    end
  end

  it("does not stop those it waits for, and starts when it is let go", function()
    local join = two_with_join()
    hold(join)
    local start = nightshift.clock()
    finish_two "ack"
    assert.is_true(nightshift.clock() - start < proc.limit(2.5)) -- it waits for a lock: 3 s
    assert.equal("waiting", database:job(join).state)
    assert.is_nil(q:claim())
    other._handle:rollback()
    assert.equal(join, assert(q:claim { wait = 20 }).id)
    assert.equal(0, database:execute "SELECT COUNT(*) AS n FROM nightshift_met"[1].n)
    assert.equal(0, database:execute "SELECT COUNT(*) AS n FROM nightshift_edge"[1].n)
  end)

  it("is cancelled with the failed ones' name when it is let go", function()
    local join = two_with_join()
    local behind = assert(q:push("behind", nil, { after = { join } }))
    hold(join)
    finish_two "discard"
    other._handle:rollback()
    assert(database:rescue())
    local info = assert(database:job(join))
    assert.equal("cancelled", info.state)
    assert.matches("which it waited for, failed", info.error)
    assert.equal("cancelled", assert(database:job(behind)).state)
  end)

  it("is told by another handle when the one that ended the others is gone", function()
    local join = two_with_join()
    hold(join)
    finish_two "ack"
    database:close()
    other._handle:rollback()
    assert(other:rescue())
    assert.equal(join, assert(other:queue "held":claim()).id)
    database = lab.open()
    q = assert(database:queue "held")
  end)

  it("waits again for one that was retried before it could be told", function()
    local first = assert(q:push "first")
    local join = assert(q:push("join", nil, { after = { first } }))
    hold(join)
    assert(assert(q:claim()):discard "no")
    assert(database:retry(first))
    other._handle:rollback()
    assert(database:rescue())
    assert.equal("waiting", assert(database:job(join)).state)
    assert(assert(q:claim()):ack())
    assert.equal(join, assert(q:claim()).id)
  end)
end)

describe("more ended jobs than are looked at together", function()
  setup(lab.fresh)

  it("do not hide others behind one whose row is held", function()
    local database <close> = lab.open()
    local other <close> = lab.open()
    local q = assert(database:queue "many")
    local items = {}
    for i = 1, 1200 do items[i] = { "piece" } end
    local held = assert(q:push("held", nil, { after = assert(q:push_many(items)) }))
    local free = assert(q:push("free", nil, { after = { assert(q:push "piece") } }))
    assert(other._handle:begin())
    assert(other:execute("SELECT id FROM nightshift_job WHERE id IN (?, ?) FOR UPDATE", held, free))
    local jobs = assert(q:claim_many(1201))
    assert(database:transaction(function()
      for _, job in ipairs(jobs) do assert(job:ack()) end
      return true
    end))
    assert.equal(1201, database:execute "SELECT COUNT(*) AS n FROM nightshift_met"[1].n)
    other._handle:rollback()
    assert(other._handle:begin())
    assert(other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", held))
    assert.equal(free, assert(q:claim { wait = 20 }).id)
    other._handle:rollback()
    assert.equal(held, assert(q:claim { wait = 20 }).id)
  end)
end)

describe("a long chain of jobs that wait for each other", function()
  setup(lab.fresh)

  it("falls as a whole when its first one fails, in pieces", function()
    local database <close> = lab.open()
    local q = assert(database:queue "chain")
    local ids = { assert(q:push "link") }
    for i = 2, 100 do ids[i] = assert(q:push("link", nil, { after = { ids[i - 1] } })) end
    assert(assert(q:claim()):discard "no")
    for _ = 1, 4 do assert(database:rescue()) end
    for i = 2, #ids do assert.equal("cancelled", assert(database:job(ids[i])).state) end
  end)
end)

describe("a job that waits for one that somebody deleted by hand", function()
  setup(lab.fresh)

  it("falls with the next prune, however it was deleted", function()
    local database <close> = lab.open()
    local q = assert(database:queue "gone")
    local target = assert(q:push("target", nil, { delay = 3600 }))
    local strict = assert(q:push("strict", nil, { after = { target } }))
    local easy = assert(q:push("easy", nil, { after = { target }, on_fail = "run" }))
    assert(database:execute("DELETE FROM nightshift_job WHERE id = ?", target))
    assert(database:prune())
    assert.equal("cancelled", assert(database:job(strict)).state)
    assert.equal(easy, assert(q:claim()).id)
  end)
end)

-- An open transaction held the job that a child was to wait for: the
-- host waited for it, with all its other jobs. It has to wait for no such lock.
describe("an open transaction", function()
  local url, handle, other, q

  with_two_handles(function(...) handle, other, q, url = ... end)

  -- While it holds a job, other jobs run; the job that `begin` gives does not end.
  local function stalls_only(held, begin)
    local id
    other:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", held))
      id = begin()
      local slow = 0
      for _ = 1, 20 do
        local begun, one = nightshift.clock(), assert(q:push "other")
        eventually(function() return handle:job(one).state == "done" end)
        slow = slow + (nightshift.clock() - begun < 2.5 and 0 or 1)
      end
      assert.is_true(slow <= 2, slow) -- each waits for a lock: 3 s
      assert.equal("running", handle:job(id).state)
      return true
    end)
    return id
  end

  it("that holds what a child is to wait for keeps its parent's verdict waiting, and nothing else", function()
    local held = assert(q:push("other", nil, { delay = 3600 }))
    local h = host.start(url, [[return {
      parent = function(job) job:spawn("other", 1, { after = { job.payload } }) end,
      other = function() end,
    }]])
    local parent = stalls_only(held, function() return assert(q:push("parent", held)) end)
    eventually(function() return handle:job(parent).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("that holds a child keeps its parent from being parked, and nothing else", function()
    local h = host.start(url, [[return {
      parent = function(job)
        if job.phase > 0 then return #job.results end
        if job.polls > 0 then return job:wait() end
        job:spawn("other", 1)
        return job:again(3600)
      end,
      other = function() end,
    }]])
    local parent = assert(q:push "parent")
    local child = eventually(function()
      local rows = handle:execute("SELECT id FROM nightshift_child WHERE parent = ?", parent)
      return rows[1] and rows[1].id
    end)
    stalls_only(child, function()
      assert(handle:run_now(parent))
      eventually(function() return handle:job(parent).state == "running" end)
      return parent
    end)
    eventually(function() return handle:job(parent).result == 1 end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- An open transaction held a job that waited, for another or for its children. The host that
-- ended what it waited for waited, too, with all its other jobs, until that transaction ended.
describe("an open transaction", function()
  local HANDLERS = [[return {
  parent = function(job)
    if job.phase > 0 then return #job.results end
    job:spawn("child", 1)
    return job:wait()
  end,
  child = function() end,
  other = function() end,
}]]

  local url, name, handle, other, q, h

  with_two_handles(function(...) handle, other, q, url, name = ... end)

  -- How many of 20 other jobs, one by one, take as long as a wait for a lock: 3 s.
  local function stalled()
    local slow = 0
    for _ = 1, 20 do
      local begun, id = nightshift.clock(), assert(q:push "other")
      eventually(function() return handle:job(id).state == "done" end)
      slow = slow + (nightshift.clock() - begun < 2.5 and 0 or 1)
    end
    return slow
  end

  -- Runs other jobs while a transaction, which is rolled back, has done
  -- `verb` to a job.
  local function while_held(verb, what)
    stalled() -- the host has learnt how long they take
    local ok, why = pcall(other.transaction, other, function()
      assert(verb())
      what()
      assert.is_true(stalled() <= 2)
      error "as planned"
    end)
    if not ok and not tostring(why):find "as planned" then error(why, 0) end
  end

  local function held(what, verb)
    it("that has " .. what .. " a dependent stalls no other job", function()
      h = host.start(url, HANDLERS)
      local first = assert(q:push("other", nil, { delay = 3600 }))
      local second = assert(q:push("other", nil, { after = { first } }))
      while_held(function() return verb(second) end, function() assert(handle:run_now(first)) end)
      eventually(function() return handle:job(second).state == "done" end)
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("that has " .. what .. " a parked parent stalls no other job", function()
      assert(handle:queue("slow"):push("other", nil, { delay = 3600 }))
      assert(handle:queue("slow"):pause())
      h = host.start(url, (HANDLERS:gsub('"child", 1', '"child", 1, { queue = "slow" }')))
      local parent = assert(q:push "parent")
      eventually(function() return handle:job(parent).state == "waiting" end)
      while_held(function() return verb(parent) end, function() assert(handle:queue("slow"):resume()) end)
      eventually(function() return handle:job(parent).state == "done" end)
      assert.equal(1, handle:job(parent).result)
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end

  held("cancelled", function(id) return other:cancel(id) end)
  held("reprioritised", function(id) return other:reprioritise(id, 7) end)
  held("signalled", function(id) return other:signal(id, 1) end)

  it("outlives the host that found a parent held: the other one goes on", function()
    local parent = assert(q:push "parent")
    local job = q:claim()
    job:spawn("child", 1, { queue = "slow", delay = 3600 })
    assert(job:wait())
    h = host.start(url, HANDLERS, { "--queues", "slow" })
    local second = host.start(url, HANDLERS, { "--queues", "q" })
    assert(other:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", parent))
      for _, child in ipairs(handle:jobs { queue = "slow" }) do assert(handle:run_now(child.id)) end
      eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_met", name) ~= "0" end)
      h:signal "KILL"
      h:wait()
      return true
    end))
    eventually(function() return handle:job(parent).state == "done" end, 20)
    assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_met", name)))
    second:signal "TERM"
    assert.equal(0, second:wait())
  end)
end)

-- An open transaction had been refused a unique key, and so held its
-- row: the host that ended the key's job waited for it.
describe("an open transaction that was refused a unique key", function()
  it("stalls no other job", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local h = host.start(url, [[return { job = function() end }]])
    local first = assert(q:push("job", nil, { unique = "key", delay = 3600 }))
    local ok, why = pcall(other.transaction, other, function(tx)
      assert.equal("DUPLICATE", select(3, tx:queue("q"):push("job", nil, { unique = "key" })))
      assert(handle:run_now(first))
      local slow = 0
      for _ = 1, 20 do
        local begun, id = nightshift.clock(), assert(q:push "job")
        eventually(function() return handle:job(id).state == "done" end)
        slow = slow + (nightshift.clock() - begun < 2.5 and 0 or 1)
      end
      assert.is_true(slow <= 2, slow) -- each waits for a lock: 3 s
      error "as planned"
    end)
    if not ok and not tostring(why):find "as planned" then error(why, 0) end
    eventually(function() return handle:job(first).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A job that runs is followed by another, which has its key. An open transaction has replaced that
-- one, and so holds the row of the key.
it("an open transaction that replaces a job does not hold up the one that it follows", function()
  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local other <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local latest = { unique = { key = "key", on_conflict = "replace" } }
  for _, ends in ipairs { "ack", "discard", "wait" } do
    assert(q:push("first", nil, latest))
    local first = assert(q:claim())
    local second = assert(q:push("second", nil, latest))
    if ends == "wait" then
      first:spawn("kid", 1)
      assert(first:wait())
      first = assert(q:claim()) -- when it is dead, its parent is
      ends = "discard"
    end
    assert(other:transaction(function(tx)
      assert.equal(second, (tx:queue("q"):push("third", nil, latest)))
      local begun = nightshift.clock()
      assert(first[ends](first, "no"))
      assert.is_true(nightshift.clock() - begun < 2.5)
      return true
    end))
    assert.equal("third", assert(q:claim { wait = 30 }).name) -- a claim that waits tells it, too
    assert(handle:cancel(second))
    assert.equal(0, handle:execute "SELECT COUNT(*) AS n FROM nightshift_unique_key"[1].n)
  end
end)

-- An open transaction had been refused the unique key of a dependent that fell, or had pushed a
-- dependent of the next job. The session that ended what they waited for, a host too, waited
-- for that transaction, though it held none of the jobs.
describe("an open transaction", function()
  local handle, other, q

  with_two_handles(function(...) handle, other, q = ... end)

  -- Discards a job while a transaction, which is rolled back, has done `what`.
  local function discard_while(job, what)
    local ok, why = pcall(other.transaction, other, function(tx)
      what(tx)
      assert(handle:execute "SET innodb_lock_wait_timeout = 10")
      local begun = nightshift.clock()
      assert(job:discard "no")
      assert.is_true(nightshift.clock() - begun < 9)
      error "as planned"
    end)
    if not ok and not tostring(why):find "as planned" then error(why, 0) end
  end

  it("that was refused a unique key does not hold up what makes its job fall", function()
    local first = assert(q:push "job")
    local second = assert(q:push("job", nil, { after = { first }, unique = "key" }))
    local third = assert(q:push("job", nil, { after = { second } }))
    discard_while(assert(q:claim()), function(tx)
      assert.equal("DUPLICATE", select(3, tx:queue("q"):push("job", nil, { unique = "key" })))
    end)
    assert.is_nil(q:claim { wait = 1 })
    assert.same({ "cancelled", "cancelled" }, { handle:job(second).state, handle:job(third).state })
    assert(q:push("job", nil, { unique = "key" }))
  end)

  it("that has pushed a dependent of the next job does not hold up what falls before it", function()
    local first = assert(q:push("job", nil, { priority = 200 }))
    local job = assert(q:claim())
    local ids = assert(q:push_many { { "job", nil, { after = { first } } },
      { "job", nil, { after = { first } } }, { "job" } })
    assert.same({ ids[1] + 1, ids[1] + 2 }, { ids[2], ids[3] })
    local below = {}
    for i = 1, 2 do below[i] = assert(q:push("job", nil, { after = { ids[i] } })) end
    discard_while(job, function(tx) assert(tx:queue("q"):push("job", nil, { after = { ids[3] } })) end)
    for i = 1, 2 do assert.equal("cancelled", handle:job(below[i]).state) end
  end)
end)

-- A long chain of jobs, each waiting for the one before. As the first failed, all of it was
-- cancelled by a function that called itself, and the stack ended.
describe("a long chain of jobs", function()
  local LENGTH = 1500

  local FAIL = [[
local nightshift = require "nightshift"
local db = assert(nightshift.open(arg[1]))
assert(assert(db:queue "q":claim()):discard "no")
while db:job(tonumber(arg[2])).state == "waiting" do db:queue "q":claim() end
db:close()]]

  it("is cancelled when its first fails, by a program with a small stack", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local last = assert(handle:queue "q":push "first")
    assert(handle:transaction(function(tx)
      for _ = 1, LENGTH do last = assert(tx:queue "q":push("next", nil, { after = { last } })) end
      return true
    end))
    local status, _, err = proc.run { "sh", "-c", 'ulimit -s 512; exec "$@"', "sh", proc.lua,
      fixture.file("fail.lua", FAIL), url, last, timeout = 60 }
    assert.equal(0, status, err)
    assert.equal("cancelled", handle:job(last).state)
    assert.matches("^job %d+, which it waited for, failed$", handle:job(last).error)
  end)
end)

-- Another priority took the job's row out of scheduled only if it was not locked, and then put
-- in a new one. With the old one still there that was DUPLICATE.
it("a job due later gets its priority though somebody holds its row for a moment", function()
  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local id = assert(q:push("job", 1, { delay = 3600 }))
  local path = fixture.file("hold.lua", [[
    local h = assert(require "nightshift".open(arg[1]))
    h:transaction(function(tx)
      assert(tx:execute "SELECT * FROM nightshift_scheduled FOR UPDATE")
      print "holds"
      io.stdout:flush()
      tx:execute "SELECT SLEEP(0.5)"
    end)
  ]])
  local p = proc.start { proc.lua, path, url }
  p:wait_line "holds"
  assert(handle:reprioritise(id, 7))
  assert.equal(0, p:wait())
  assert.same({ 7, "scheduled" }, { handle:job(id).priority, handle:job(id).state })
  assert(handle:run_now(id))
  assert.equal(7, assert(q:claim()).priority)
end)
