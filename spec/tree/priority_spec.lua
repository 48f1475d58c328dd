-- Priorities of live jobs, and aging: jobs below a saturated priority are claimed all the same,
-- within a number of claims that can be counted.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

-- Priorities of live jobs.
describe("priorities:", function()
  local handle, q

  with_database(function(...) handle, q = ... end)

  describe("reprioritise", function()
    it("moves a ready job", function()
      local a, b = assert(q:push "a"), assert(q:push "b")
      assert(handle:reprioritise(b, 200))
      assert.equal(200, handle:job(b).priority)
      assert.same({ b, a }, { q:claim().id, q:claim().id })
      assert.is_nil(q:claim())
    end)

    it("moves a scheduled job, which stays due", function()
      local a = assert(q:push("a", nil, { delay = 0.2 }))
      assert(handle:reprioritise(a, 10))
      assert.equal("scheduled", handle:job(a).state)
      local job = assert(q:claim { wait = 20 })
      assert.same({ a, 10 }, { job.id, job.priority })
    end)

    it("leaves a running job to its holder, and counts when it comes back", function()
      local a = assert(q:push "a")
      local job = q:claim()
      assert(handle:reprioritise(a, 50))
      assert(job:release())
      assert.equal(50, q:claim().priority)
    end)

    it("counts for a waiting job when it is met", function()
      local a = assert(q:push "a")
      local b = assert(q:push("b", nil, { after = { a } }))
      assert(handle:reprioritise(b, 7))
      assert.equal("waiting", handle:job(b).state)
      assert(q:claim():ack())
      assert.equal(7, q:claim().priority)
    end)

    it("refuses what is no priority, and jobs that have ended or never were", function()
      local a = assert(q:push "a")
      assert.equal("INVALID", select(3, handle:reprioritise(a, 256)))
      assert(q:claim():ack())
      assert.equal("STATE", select(3, handle:reprioritise(a, 1)))
      assert.equal("NOT_FOUND", select(3, handle:reprioritise(4711, 1)))
    end)
  end)

  describe("decay", function()
    local function priority(id) return handle:job(id).priority end

    it("takes 8 of the priority with each failure, crash or poll, and ends at 0", function()
      local id = assert(q:push("a", nil, { priority = 20, max_attempts = 20 }))
      for _, expected in ipairs { 12, 4, 0, 0 } do
        assert(q:claim { wait = 20 }:fail("no", { retry_in = 0 }))
        assert.equal(expected, priority(id))
      end
      assert(handle:reprioritise(id, 100))
      assert(q:claim():again(0))
      assert.equal(92, priority(id))
      assert(q:claim():release())
      assert.equal(92, priority(id), "what is given back untouched stays where it was")
    end)

    it("shows in listings and the view as everywhere", function()
      local id = assert(q:push("a", nil, { priority = 200, decay = 40 }))
      assert(q:claim():again(3600))
      for _, filter in ipairs { {}, { state = "scheduled" }, { queue = q.name, name = "a" }, { after = id + 1 } } do
        assert.same({ id, 160 }, { handle:jobs(filter)[1].id, handle:jobs(filter)[1].priority })
      end
      assert.equal(160, priority(id))
      assert.equal(160, handle:execute("SELECT priority FROM nightshift_jobs WHERE id = ?", id)[1].priority)
    end)

    it("is what the push says: 0 never sinks, 255 sinks at once", function()
      local stays = assert(q:push("a", nil, { decay = 0, priority = 255 }))
      local falls = assert(q:push("b", nil, { decay = 255, priority = 254 }))
      for _ = 1, 3 do assert(q:claim():again(0)) end
      assert.equal(255, priority(stays))
      assert(q:claim():ack())
      assert(q:claim():fail("no", { retry_in = 0 }))
      assert.equal(0, priority(falls))
      assert(q:claim():fail("no", { retry_in = 0 }))
      assert.equal(0, priority(falls))
    end)

    it("outlives the end and the retry of a job, as its priority does", function()
      local id = assert(q:push("a", nil, { decay = 3, priority = 9 }))
      assert(handle:reprioritise(id, 50))
      assert(q:claim():discard "no")
      assert.same({ 3, 50 }, { handle:job(id).decay, priority(id) })
      assert(handle:retry(id))
      assert(q:claim():again(0))
      assert.same({ 3, 47 }, { handle:job(id).decay, priority(id) })
    end)

    it("goes with children, and through the procedure", function()
      assert(q:push "parent")
      local job = assert(q:claim())
      local child = assert(job:spawn("child", nil, { decay = 1 }))
      assert(job:ack())
      assert.equal(1, handle:job(child).decay)
      assert(handle:execute "CALL nightshift_push('p', 'n', '1', '{\"decay\": 0}')")
      assert(handle:execute "CALL nightshift_push('p', 'n', '1', NULL)")
      local p = handle:queue "p"
      for _ = 1, 3 do assert(p:claim():again(0)) end
      assert.same({ 100, 92 }, { p:claim().priority, p:claim().priority })
    end)

    it("refuses what is no decay", function()
      for _, bad in ipairs { -1, 256, 1.5 } do
        assert.equal("INVALID", select(3, q:push("a", nil, { decay = bad })))
      end
      local ok, message = handle:execute "CALL nightshift_push('q', 'n', '1', '{\"decay\": 256}')"
      assert.is_nil(ok)
      assert.matches("out of range: decay", message)
    end)
  end)
end)

-- Aging: what lies below a saturated priority is claimed all the same, within a
-- number of claims that can be counted.
describe("aging", function()
  local TURN = 16 -- rows in true order for one that is aged

  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  local function pushed(n, priority)
    local items = {}
    for i = 1, n do items[i] = { "job", nil, { priority = priority } } end
    return assert(q:push_many(items))
  end

  --- Claims one after the other until all of `wanted` have come; how many that took,
  -- and how many of them were wanted.
  local function claims_until(wanted, claim)
    local missing, n = 0, 0
    for _ in pairs(wanted) do missing = missing + 1 end
    local found = {}
    while missing > 0 do
      local jobs = claim()
      assert.is_true(#jobs > 0, "the load has run out")
      for _, job in ipairs(jobs) do
        n = n + 1
        if wanted[job.id] and not found[job.id] then
          found[job.id], missing = n, missing - 1
        end
        assert(job:ack())
      end
    end
    return n, found
  end

  local function one() return { q:claim() } end

  it("starts a job at the bottom within 16 claims", function()
    pushed(200, 200)
    local low = assert(q:push("low", nil, { priority = 0 }))
    assert.is_true(claims_until({ [low] = true }, one) <= TURN + 1)
  end)

  it("costs one claim in 16, oldest first", function()
    local low = pushed(20, 0)
    pushed(400, 200)
    local came = {}
    for n = 1, 170 do
      local job = assert(q:claim())
      if job.priority == 0 then came[#came + 1] = { n, job.id } end
      assert(job:ack())
    end
    assert.equal(10, #came)
    for i, pair in ipairs(came) do assert.same({ i * (TURN + 1), low[i] }, pair) end
  end)

  it("reaches every lower priority in turn, however many jobs lie at the bottom", function()
    pushed(3000, 200)
    pushed(100, 0)
    local wanted = {}
    for _, priority in ipairs { 4, 12, 20, 84, 92, 100, 199 } do wanted[pushed(1, priority)[1]] = true end
    -- every other turn is the lowest lane's; the rest go round the eight of them
    assert.is_true(claims_until(wanted, one) <= 2 * 8 * (TURN + 1))
  end)

  it("goes on in batches, as a part of them", function()
    pushed(6000, 200)
    local low = pushed(30, 0)
    local wanted = {}
    for _, id in ipairs(low) do wanted[id] = true end
    local n = claims_until(wanted, function() return assert(q:claim_many(100)) end)
    assert.is_true(n >= 30 * TURN - 100, "not before their time: " .. n)
    assert.is_true(n <= 30 * TURN + 2000, n)
  end)

  it("finds a lane that comes up later, and what was committed late", function()
    pushed(10, 200)
    local other <close> = assert(nightshift.open(url))
    local late
    assert(other:transaction(function(tx)
      late = assert(tx:queue("q"):push("low", nil, { priority = 0 }))
      assert(q:push("low", nil, { priority = 0 })) -- claimed first, and so the floor rises
      for _ = 1, 11 do assert(q:claim():ack()) end
      pushed(4 * TURN, 200)
      for _ = 1, 2 * TURN do assert(q:claim():ack()) end
      return true
    end))
    local low = assert(q:push("middle", nil, { priority = 50 }))
    local wanted, deadline = { [late] = true, [low] = true }, nightshift.clock() + 60
    while next(wanted) do
      assert.is_true(nightshift.clock() < deadline, "never found")
      pushed(2 * TURN, 200)
      for _ = 1, 2 * TURN do
        local job = assert(q:claim())
        wanted[job.id] = nil
        assert(job:ack())
      end
    end
  end)

  it("is each queue's own", function()
    local other = handle:queue "other"
    local low = assert(other:push("low", nil, { priority = 0 }))
    pushed(2 * TURN, 200)
    for _ = 1, 2 * TURN do assert(q:claim():ack()) end
    assert.equal("ready", handle:job(low).state)
  end)

  it("does not exist for a strict claim", function()
    pushed(5 * TURN, 200)
    local low = assert(q:push("low", nil, { priority = 0 }))
    for _ = 1, 5 * TURN do
      local job = assert(q:claim { strict = true })
      assert.equal(200, job.priority)
      assert(job:ack())
    end
    assert.equal(low, q:claim({ strict = true }).id)
  end)

  it("leaves those below alone while nothing has to wait", function()
    for _ = 1, 3 * TURN do
      pushed(1, 200)
      assert(q:claim():ack())
      assert.is_nil(q:claim())
    end
    local low = assert(q:push("low", nil, { priority = 0 }))
    local high = pushed(1, 200)[1]
    assert.same({ high, low }, { q:claim().id, q:claim().id })
  end)
end)

-- Another priority for a whole tree moved its jobs and was forgotten when they ended. The
-- history had the old one, and so had who ran again.
describe("the priority of a tree", function()
  local handle, q

  with_database(function(...) handle, q = ... end)

  local function priority(id) return handle:job(id).priority end

  it("is that of its jobs when they have ended, and when they run again", function()
    local root, ids = assert(handle:flow {
      name = "root", queue = "q", children = { { name = "child", priority = 30 } },
    })
    local child = ids.children[1].id
    assert.equal(2, handle:reprioritise(root, 7, { tree = true }))
    assert(q:claim():ack())
    assert(q:claim():discard "no")
    assert.same({ 7, 7 }, { priority(root), priority(child) })
    assert(handle:retry(root))
    assert.same({ 7, 7 }, { priority(root), assert(q:claim()).priority })
  end)

  it("counts for a job that has sunk to it", function()
    local id = assert(q:push("job", nil, { priority = 100, decay = 8 }))
    assert(q:claim():fail("no", { retry_in = 3600 }))
    assert.equal(92, priority(id))
    assert(handle:reprioritise(id, 92, { tree = true }))
    assert(handle:run_now(id))
    assert(q:claim():ack())
    assert.equal(92, priority(id))
  end)

  it("stays what it was with the other verbs", function()
    local id = assert(q:push("job", nil, { priority = 100, decay = 8 }))
    assert(q:claim():fail("no", { retry_in = 3600 }))
    assert(handle:pause(id))
    assert(handle:deadline(id, "2h", { tree = true }))
    assert(handle:resume(id))
    assert(handle:run_now(id, { tree = true }))
    assert.equal(92, priority(id))
    assert(q:claim():ack())
    assert.equal(100, priority(id))
  end)
end)

-- Priorities under real hosts: aging under a load that never ends, shares of
-- queues between two hosts, order across pushers, new priorities of live jobs.
describe("priorities under hosts:", function()
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
        -- and so do more, at each priority that jobs sink to
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
end)
