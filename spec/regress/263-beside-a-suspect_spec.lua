-- A job that was lost with its holder twice is claimed alone, one at a time per holder.
-- While one of them ran, a second one that was ready kept its host busy: a claim took it and
-- put it back, hundreds of times a second.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

describe("beside a job that is claimed alone", function()
  local url, name, handle, q, folder
  before_each(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    q = handle:queue "q"
    folder = fixture.dir()
  end)
  after_each(function() handle:close() end)

  local function suspects(n)
    local ids = {}
    for i = 1, n do ids[i] = assert(q:push("long", i)) end
    db.sql("UPDATE nightshift_job SET lost = 2; UPDATE nightshift_ready SET alone = TRUE WHERE job_id > 0", name)
    return ids
  end

  local function statements()
    return tonumber((db.sql "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'":match "%d+$"))
      + tonumber((db.sql "SHOW GLOBAL STATUS LIKE 'Com_commit'":match "%d+$"))
  end

  local function end_of(i) assert(io.open(folder .. "/" .. i, "wb")):close() end

  local SCRIPT = [[
    local nightshift = require "nightshift"
    return {
      long = function(job)
        local started = nightshift.clock()
        while not io.open(%q .. "/" .. job.payload) do os.execute "sleep 0.01" end
        return started
      end,
      short = function() end,
    }]]

  local function running(ids)
    local n = 0
    for _, id in ipairs(ids) do n = n + (assert(handle:job(id)).state == "running" and 1 or 0) end
    return n
  end

  it("a host is as quiet as an idle one, serves others, and starts the next at once", function()
    local ids = suspects(3)
    local h = host.start(url, SCRIPT:format(folder))
    eventually(function() return running(ids) == 1 end)
    local short = assert(q:push "short")
    eventually(function() return handle:job(short).state == "done" end)
    eventually(function() -- behind the looks after a wake; a claim and its return: hundreds a second
      local before = statements()
      nst.sleep(3)
      return statements() - before <= 15
    end, 30)
    assert.equal(1, running(ids))
    for i = 1, 2 do -- the order of the others is theirs
      local done = {}
      for k, id in ipairs(ids) do done[k] = handle:job(id).state == "done" end
      local now
      for k, id in ipairs(ids) do now = now or (assert(handle:job(id)).state == "running" and k) end
      local ended = nightshift.clock()
      end_of(now)
      local function follower()
        for k, id in ipairs(ids) do
          if k ~= now and not done[k] and assert(handle:job(id)).state == "running" then return nightshift.clock() end
        end
      end
      local late = eventually(follower) - ended
      assert.is_true(late < proc.limit(9), ("number %d came after %.3f s"):format(i + 1, late))
    end
    for i = 1, 3 do end_of(i) end
    eventually(function()
      for _, id in ipairs(ids) do if handle:job(id).state ~= "done" then return false end end
      return true
    end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("a handle that has one gets others, and waits for work without taking what it may not have", function()
    suspects(2)
    local first = assert(q:claim())
    local short = assert(q:push "short")
    assert.equal(short, assert(q:claim { wait = 20 }).id)
    local before = statements()
    assert.is_nil(q:claim { wait = 3 })
    local asked = statements() - before
    assert.is_true(asked <= 100, asked .. " statements in three seconds") -- as above
    assert(first:ack())
    local started = nightshift.clock()
    assert.equal("long", assert(q:claim { wait = 20 }).name)
    assert.is_true(nightshift.clock() - started < proc.limit(9)) -- by the round: 10 s
  end)
end)
