-- Priorities under real hosts: aging under a load that never ends, shares of
-- queues between two hosts, order across pushers, new priorities of live jobs.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local SCRIPT = [[
  return {
    brief = function() end,
    nap = function() os.execute "exec sleep 0.05" end,
    gate = function(job)
      job:progress(0.5)
      while not io.open(job.payload) do os.execute "exec sleep 0.02" end
    end,
    once = function(job)
      job:progress(0.5)
      while job.attempt == 1 and job:db():job(job.id).priority ~= job.payload do os.execute "exec sleep 0.02" end
      if job.attempt == 1 then return job:fail("again", { retry_in = 0 }) end
    end }]]

local url, name, handle, q, hosts

before_each(function()
  url, name = db.fresh()
  handle = assert(nightshift.open(url))
  q, hosts = handle:queue "q", {}
end)

after_each(function()
  for _, h in ipairs(hosts) do h:signal "QUIT" end
  for _, h in ipairs(hosts) do h:wait() end
  handle:close()
end)

local function start(...)
  hosts[#hosts + 1] = host.start(url, SCRIPT, { ... })
  return hosts[#hosts]
end

local function state(id) return handle:job(id).state end

local function items(n, job, opts)
  local list = {}
  for i = 1, n do list[i] = { job, nil, opts } end
  return list
end

--- Keeps the queue of priority 200 full until `done` says so; false: that took
-- longer than `seconds`.
local function saturate(job, backlog, seconds, done)
  local from = nightshift.clock()
  repeat
    local ready = tonumber((db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0 AND rank = 55", name)))
    if ready < backlog then assert(q:push_many(items(backlog, job, { priority = 200 }))) end
    if done() then return nightshift.clock() - from end
    core.sleep(0.02)
  until nightshift.clock() - from > seconds
  return false
end

describe("a job of priority 0 under a saturating load of priority 200", function()
  for job, backlog in pairs { brief = 20000, nap = 400 } do
    it(("starts in time, 8 workers busy with %s jobs"):format(job), function()
      assert(q:push_many(items(backlog, job, { priority = 200 })))
      start("--workers", "8")
      local first = assert(q:push("brief", nil, { priority = 0 }))
      local took = saturate(job, backlog, 60, function() return state(first) == "done" end)
      assert.is_truthy(took, "not within 60 s")
      -- and so do others, at each priority that jobs sink to
      local low = {}
      for i, priority in ipairs { 0, 4, 12, 20, 100 } do
        low[i] = assert(q:push("brief", nil, { priority = priority }))
      end
      assert.is_truthy(saturate(job, backlog, 60, function()
        for _, id in ipairs(low) do
          if state(id) ~= "done" then return false end
        end
        return true
      end))
    end)
  end

  it("has to wait with --strict", function()
    assert(q:push_many(items(5000, "brief", { priority = 200 })))
    local low = assert(q:push("brief", nil, { priority = 0 }))
    start("--strict", "--queues", "q")
    eventually(function() return state(low) == "done" end, 60)
    local before = db.sql(([[SELECT COUNT(*) FROM nightshift_finished WHERE priority = 200 AND finished_at <=
      (SELECT finished_at FROM nightshift_finished WHERE id = %d)]]):format(low), name)
    assert.is_true(tonumber(before) >= 4800, before)
  end)
end)

describe("queues with weights", function()
  it("get their shares of what two hosts do together", function()
    for _, queue in ipairs { "a", "b" } do assert(handle:queue(queue):push_many(items(4000, "brief"))) end
    start("--queues", "a=3,b=1")
    start("--queues", "a=3,b=1")
    local function done() return tonumber((db.sql("SELECT COUNT(*) FROM nightshift_finished", name))) end
    eventually(function() return done() >= 4000 end, 60)
    local a = tonumber((db.sql([[SELECT SUM(name = 'a') FROM (SELECT q.name FROM nightshift_finished f
      JOIN nightshift_queue q ON q.id = f.queue_id ORDER BY f.finished_at, f.id LIMIT 4000) x]], name)))
    assert.is_true(a > 2700 and a < 3300, a .. " of 4000")
  end)
end)

describe("within a priority", function()
  it("first come is first served, whoever pushes and whoever claims", function()
    local pushers, expected = { handle }, {}
    for i = 2, 3 do pushers[i] = assert(nightshift.open(url)) end
    for i = 1, 60 do expected[i] = assert(pushers[i % 3 + 1]:queue("q"):push("brief", i)) end
    for i = 61, 66 do
      local status, out = proc.run { proc.program, "push", "q", "brief", tostring(i), env = { NIGHTSHIFT_URL = url } }
      assert.equal(0, status)
      expected[i] = math.tointeger(tonumber(out))
    end
    local ascending = true
    for i = 2, 66 do ascending = ascending and expected[i] > expected[i - 1] end
    assert.is_false(ascending, "ids come in blocks, so their order is not the order of coming")
    local came = {}
    for i = 1, 66 do
      local job = assert(pushers[i % 3 + 1]:queue("q"):claim())
      came[i] = job.id
      assert(job:ack())
    end
    assert.same(expected, came)
    for i = 2, 3 do pushers[i]:close() end
  end)
end)

describe("a new priority of a live job, under two hosts,", function()
  local go

  --- The workers of both hosts wait for the file `go`.
  local function hold()
    go = fixture.dir() .. "/go"
    start("--workers", "1")
    start("--workers", "1")
    for _ = 1, 2 do assert(q:push("gate", go, { priority = 255 })) end
    eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_running", name) == "2" end)
  end

  local function finished(id)
    eventually(function() return state(id) == "done" end)
    return tonumber((db.sql("SELECT finished_at FROM nightshift_finished WHERE id = " .. id, name)))
  end

  it("counts for ready, scheduled and waiting ones", function()
    hold()
    local parent = assert(q:push("elsewhere", nil, { priority = 254 })) -- which no host has a handler for
    local naps = assert(q:push_many(items(40, "nap", { priority = 150 })))
    local ready = assert(q:push("brief", nil, { priority = 10 }))
    local scheduled = assert(q:push("brief", nil, { priority = 10, delay = 0.1 }))
    local waiting = assert(q:push("brief", nil, { priority = 10, after = { parent } }))
    for _, id in ipairs { ready, scheduled, waiting } do assert(handle:reprioritise(id, 200)) end
    -- so that none of them depends on what a host is just about to write
    local first = assert(q:claim { names = { "elsewhere" } })
    assert.equal(parent, first.id)
    assert(first:ack())
    core.sleep(0.2)
    assert(io.open(go, "w")):close()
    local last = finished(naps[40])
    for _, id in ipairs { ready, scheduled, waiting } do
      assert.is_true(finished(id) < last)
      assert.equal(200, handle:job(id).priority)
    end
  end)

  it("counts for a running one when it comes back", function()
    start("--workers", "1")
    start("--workers", "1")
    local id = assert(q:push("once", 240, { priority = 20, decay = 5 }))
    eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_running", name) == "1" end)
    assert(handle:reprioritise(id, 240))
    finished(id)
    local attempts = tonumber((db.sql("SELECT COUNT(*) FROM nightshift_attempt WHERE job_id = " .. id, name)))
    assert.same({ 1, 240 }, { attempts, handle:job(id).priority })
  end)
end)
