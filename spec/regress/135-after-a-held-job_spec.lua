-- Somebody's open transaction held the job that a child was to wait for: the
-- host waited for it, with all its other jobs. It has to wait for no such lock.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"

describe("an open transaction", function()
  local url, handle, other, q

  before_each(function()
    url = db.fresh()
    handle, other = assert(nightshift.open(url)), assert(nightshift.open(url))
    q = handle:queue "q"
  end)
  after_each(function()
    handle:close()
    other:close()
  end)

  -- While it holds a job, others run; the job that `begin` gives does not end.
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
