-- Somebody's open transaction held a job that waited, for another or for its
-- children: the host that ended what it waited for waited, too, with all its
-- other jobs, until that transaction ended.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"

local HANDLERS = [[return {
  parent = function(job)
    if job.phase > 0 then return #job.results end
    job:spawn("child", 1)
    return job:wait()
  end,
  child = function() end,
  other = function() end,
}]]

describe("an open transaction", function()
  local url, name, handle, other, q, h

  before_each(function()
    url, name = db.fresh()
    handle, other = assert(nightshift.open(url)), assert(nightshift.open(url))
    q = handle:queue "q"
  end)
  after_each(function()
    handle:close()
    other:close()
  end)

  -- How many of 20 jobs of others, one by one, take as long as a wait for a lock: 3 s.
  local function stalled()
    local slow = 0
    for _ = 1, 20 do
      local begun, id = nightshift.clock(), assert(q:push "other")
      eventually(function() return handle:job(id).state == "done" end)
      slow = slow + (nightshift.clock() - begun < 2.5 and 0 or 1)
    end
    return slow
  end

  -- Runs jobs of others while a transaction, which is rolled back, has done
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
