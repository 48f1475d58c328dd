-- A job and all below it, paused and resumed.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

describe("pauses:", function()
  local url, name, handle, q

  with_database(function(...) handle, q, url, name = ... end)

  local function state(id) return handle:job(id).state end

  local function job_of(id)
    local job = assert(q:claim())
    assert.equal(id, job.id)
    return job
  end

  local function family(n, opts, spawn)
    local parent = assert(q:push "parent")
    local job = job_of(parent)
    local kids = {}
    for i = 1, n do kids[i] = assert(job:spawn("kid", i, spawn)) end
    assert(job:wait(opts))
    return parent, kids
  end

  describe("pause", function()
    it("keeps what is ready or scheduled from starting, until resume", function()
      local id, late = assert(q:push "job"), assert(q:push("late", nil, { delay = 0.1 }))
      assert.equal(1, handle:pause(id))
      assert.equal(1, handle:pause(late))
      assert.is_nil(q:claim { wait = 0.3 })
      local info = handle:job(id)
      assert.same({ "waiting", id }, { info.state, info.paused })
      assert.equal(0, handle:pause(id))
      assert.equal(1, handle:resume(id))
      assert(job_of(id):ack())
      assert.equal(1, handle:resume(late))
      assert(job_of(late):ack())
    end)

    it("keeps the time of a scheduled job", function()
      local id = assert(q:push("late", nil, { delay = 3600 }))
      local due = handle:job(id).due
      handle:pause(id)
      handle:resume(id)
      assert.same({ "scheduled", due }, { state(id), handle:job(id).due })
      handle:pause(id)
      assert.equal(1, handle:run_now(id, { tree = true }))
      assert.equal("waiting", state(id))
      handle:resume(id)
      assert(job_of(id):ack())
    end)

    for verb, settle in pairs {
      fail = function(job) return job:fail("oh", { retry_in = 0 }) end,
      again = function(job) return job:again(0) end,
      release = function(job) return job:release() end,
    } do
      it("holds a running job that returns by " .. verb, function()
        local id = assert(q:push "job")
        local job = job_of(id)
        assert.equal(1, handle:pause(id))
        assert.equal("running", state(id))
        assert(settle(job))
        assert.equal("waiting", state(id))
        assert.is_nil(q:claim())
        assert.equal(1, handle:resume(id))
        assert(job_of(id):ack())
        assert.equal("done", state(id))
      end)
    end

    it("holds a running job that returns by wait", function()
      local id = assert(q:push "job")
      local job = job_of(id)
      local kid = assert(job:spawn "kid")
      assert.equal(1, handle:pause(id))
      assert(job:wait())
      assert.equal("waiting", state(id))
      assert.is_nil(q:claim())
      assert(handle:resume(id))
      assert(job_of(kid):ack())
      assert(job_of(id):ack())
      assert.equal("done", state(id))
    end)

    it("of a running job that ends is over, and one resumed meanwhile runs on", function()
      local a, b = assert(q:push "a"), assert(q:push "b")
      local ja, jb = job_of(a), job_of(b)
      handle:pause(a)
      handle:pause(b)
      assert(ja:ack())
      assert.equal(1, handle:resume(b))
      assert.is_nil(q:claim())
      assert(jb:fail("oh", { retry_in = 0 }))
      assert(assert(q:claim { wait = 20 }):ack())
      assert.same({ "done", "done" }, { state(a), state(b) })
    end)

    it("reaches what is spawned, or pushed below, later", function()
      local parent = assert(q:push "parent")
      local job = job_of(parent)
      handle:pause(parent)
      local kid = assert(job:spawn "kid")
      assert(job:wait())
      local pushed = assert(q:push("kid", nil, { parent = kid }))
      local flow = assert(handle:flow { name = "top", queue = "q", parent = kid, children = { { name = "low" } } })
      assert.is_nil(q:claim())
      assert.same({ parent, parent, parent }, { handle:job(kid).paused, handle:job(pushed).paused,
        handle:job(flow).paused })
      assert.equal(5, handle:resume(parent))
      for _ = 1, 5 do assert(assert(q:claim()):ack()) end
      assert.equal("done", state(parent))
    end)

    it("and a deadline reach what SQL pushes below", function()
      local parent, kids = family(1)
      assert(handle:deadline(parent, 60))
      handle:pause(parent)
      local both = { ('{"parent":%d}'):format(parent), ('{"parent":%d,"after":[%d]}'):format(parent, kids[1]) }
      for i, options in ipairs(both) do
        db.sql(("CALL nightshift_push('q', 'sql', '%d', '%s')"):format(i, options), name)
      end
      assert.is_nil(q:claim())
      local pushed = handle:execute("SELECT id, paused, deadline FROM nightshift_job WHERE name = 'sql' ORDER BY id")
      local limit = handle:job(parent).deadline
      for _, row in ipairs(pushed) do assert.same({ parent, limit }, { row.paused, row.deadline }) end
      assert.equal(4, handle:resume(parent))
      assert.same({ "ready", "waiting" }, { state(pushed[1].id), state(pushed[2].id) })
      assert(job_of(kids[1]):ack())
      assert.equal("ready", state(pushed[2].id))
    end)

    it("of a child that was paused by itself outlives that of its parent", function()
      local parent, kids = family(2)
      local deep = assert(q:push("deep", nil, { parent = kids[1] }))
      assert.equal(2, handle:pause(kids[1]))
      assert.equal(2, handle:pause(parent))
      assert.equal("STATE", select(3, handle:resume(deep)))
      assert.matches(("is paused with job %d"):format(parent), (select(2, handle:resume(kids[2]))))
      assert.equal(2, handle:resume(parent))
      assert.same({ "waiting", "waiting", "ready" }, { state(kids[1]), state(deep), state(kids[2]) })
      assert.equal(2, handle:resume(kids[1]))
      assert.same({ "ready", "ready" }, { state(kids[1]), state(deep) })
      assert.equal("STATE", select(3, handle:resume(kids[1])))
    end)

    it("of a child in a paused tree, and its resume, leave it to the outer one", function()
      local parent, kids = family(2)
      handle:pause(parent)
      assert.equal(1, handle:pause(kids[1]))
      handle:resume(parent)
      assert.same({ "waiting", "ready" }, { state(kids[1]), state(kids[2]) })
      handle:pause(parent)
      handle:resume(kids[1])
      assert.same({ "waiting", parent }, { state(kids[1]), handle:job(kids[1]).paused })
      handle:resume(parent)
      assert.equal("ready", state(kids[1]))
    end)

    it("of a tree whose top has finished holds what is below", function()
      local parent = assert(q:push "parent")
      local job = job_of(parent)
      local kids = { assert(job:spawn "kid"), assert(job:spawn "kid") }
      assert(job:ack())
      handle:pause(kids[1])
      assert.equal(1, handle:pause(parent))
      handle:resume(kids[1])
      assert.same({ parent, parent }, { handle:job(kids[1]).paused, handle:job(kids[2]).paused })
      assert.equal(2, handle:resume(parent))
      assert.same({ "ready", "ready" }, { state(kids[1]), state(kids[2]) })
    end)

    it("is no end of waiting for others", function()
      local parent, kids = family(2)
      local kid = job_of(kids[1])
      handle:pause(parent)
      assert(kid:ack())
      assert(handle:execute("SELECT 1 FROM nightshift_job WHERE id = ? AND unmet = 2", parent)[1])
      handle:resume(parent)
      kid = job_of(kids[2])
      handle:pause(parent)
      assert(kid:ack())
      assert.is_nil(q:claim())
      handle:resume(parent)
      assert.equal(1, job_of(parent).phase)
    end)

    it("keeps a signal for later, and a deadline", function()
      local a, b = assert(q:push "a"), assert(q:push "b")
      assert(job_of(a):wait { signal = "yes" })
      assert(job_of(b):wait { signal = "yes", deadline = 0.1 })
      handle:pause(a)
      handle:pause(b)
      assert(handle:signal(a, 7, "yes"))
      assert.is_nil(q:claim { wait = 0.3 })
      handle:resume(a)
      handle:resume(b)
      local first, second = assert(q:claim { wait = 20 }), assert(q:claim { wait = 20 })
      if first.id == b then first, second = second, first end
      assert.same({ a, 7, b }, { first.id, first.signal, second.id })
    end)

    it("holds what a dead holder gives back", function()
      local id = assert(q:push "job")
      local other = assert(nightshift.open(url))
      assert(other:queue "q":claim())
      handle:pause(id)
      other:close()
      assert.equal("waiting", state(id))
      assert.is_nil(q:claim())
      handle:resume(id)
      assert(job_of(id):ack())
    end)

    it("and resume of what is not there, or has ended", function()
      assert.equal("NOT_FOUND", select(3, handle:pause(4711)))
      local id = assert(q:push "job")
      assert.equal("STATE", select(3, handle:resume(id)))
      assert(job_of(id):ack())
      assert.equal("STATE", select(3, handle:pause(id)))
    end)

    it("lists each job once, where it is", function()
      local parent, kids = family(2)
      local kid = job_of(kids[1])
      handle:pause(parent)
      local seen = {}
      for _, row in ipairs(handle:execute "SELECT id, state FROM nightshift_jobs ORDER BY id") do
        seen[#seen + 1] = row.state
      end
      assert.same({ "waiting", "running", "waiting" }, seen)
      local listed = {}
      for _, row in ipairs(handle:jobs { state = "waiting" }) do listed[#listed + 1] = row.id end
      assert.same({ parent, kids[2] }, listed)
      assert(kid:ack())
    end)
  end)

  describe("a host", function()
    it("gives back what it has claimed and not begun", function()
      local folder = fixture.dir()
      local h = host.start(url, ([[return {
      slow = function(job)
        io.open("%s/" .. job.id, "w"):close()
        while not io.open "%s/go" do os.execute "sleep 0.02" end
      end,
      parent = function(job)
        if job.phase > 0 then return end
        for i = 1, 100 do job:spawn "slow" end
        return job:wait()
      end,
    }]]):format(folder, folder))
      local parent = assert(q:push "parent")
      local function begun() return io.popen("ls " .. folder .. " | grep -vc go"):read "n" end
      eventually(function() return begun() == 2 end)
      assert.equal(101, handle:pause(parent))
      eventually(function() return handle:progress(parent).running == 2 end)
      io.open(folder .. "/go", "w"):close()
      eventually(function() return handle:progress(parent).done == 2 end)
      assert.same({ 2, 0 }, { begun(), handle:progress(parent).running })
      assert.equal(99, handle:resume(parent))
      eventually(function() return state(parent) == "done" end, 60)
      h:signal "TERM"
      assert.equal(0, h:wait(20))
    end)
  end)

  -- A tree that fans out twice, run by two hosts while parts of it are paused and
  -- resumed at random.
  describe("pauses at random", function()
    it("lose nothing, double nothing, and start nothing", function()
      local script = [[return {
      top = function(job)
        if job.phase > 0 then return #job.results end
        for i = 1, 6 do job:spawn("mid", i) end
        return job:wait()
      end,
      mid = function(job)
        if job.phase > 0 then return #job.results end
        for i = 1, 8 do job:spawn("leaf", i) end
        return job:wait()
      end,
      leaf = function(job)
        local rows = assert(job:db():execute("INSERT INTO seen (id, run) VALUES (?, ?)", job.id, job.run))
        os.execute "sleep 0.01"
        if job.polls < job.payload % 3 then return job:again(0.01) end
        return 1
      end,
    }]]
      db.sql("CREATE TABLE seen (id BIGINT, run INT, at BIGINT DEFAULT (" ..
        "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))))", name)
      local seed = tonumber(os.getenv "SEED") or nst.ids()
      math.randomseed(seed)
      local first, second = host.start(url, script), host.start(url, script)
      local tops = {}
      for i = 1, 3 do tops[i] = assert(q:push "top") end
      local paused = {}
      local function any()
        local rows = handle:execute "SELECT id FROM nightshift_job ORDER BY id"
        return #rows > 0 and rows[math.random(#rows)].id
      end
      for _ = 1, 60 do
        local id = any()
        if id and math.random(2) == 1 then
          if handle:pause(id) then paused[#paused + 1] = id end
        elseif #paused > 0 then
          handle:resume(table.remove(paused, math.random(#paused)))
        end
        nst.sleep(math.random() * 0.02)
      end
      -- all of it still: what runs comes back, and then nothing starts
      for _, top in ipairs(tops) do
        local n = handle:pause(top)
        if n then paused[#paused + 1] = top end
      end
      eventually(function() return #handle:jobs { state = "running" } == 0 end)
      local function count() return tonumber((db.sql("SELECT COUNT(*) FROM seen", name))) end
      local still = count()
      local before = handle:stats().queues[1]
      assert.same({ 0, 0 }, { before.ready, before.running })
      nst.sleep(0.3)
      assert.equal(still, count())
      -- inner ones first, outer ones last
      table.sort(paused, function(a, b) return a > b end)
      for _, id in ipairs(paused) do handle:resume(id) end
      for _, top in ipairs(tops) do
        eventually(function() return state(top) == "done" or nil end, 90)
        assert.same({ 55, 55 }, { handle:progress(top).done, handle:progress(top).total })
      end
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM "
        .. "(SELECT id, run FROM seen GROUP BY id, run HAVING COUNT(*) > 1) x",
        name)), "seed " .. seed)
      for _, h in ipairs { first, second } do
        h:signal "TERM"
        assert.equal(0, h:wait(30))
      end
    end)
  end)
end)

-- run_now of a job that was paused was refused because it "is waiting for other
-- jobs"; there were none.
describe("run_now", function()
  it("says that it is a pause that holds the job", function()
    local handle <close> = assert(nightshift.open((db.fresh())))
    local id = assert(handle:queue("q"):push("job", nil, { delay = 60 }))
    assert(handle:pause(id))
    local ok, message, code = handle:run_now(id)
    assert.same({ nil, ("job %d is not scheduled: it is paused"):format(id), "STATE" }, { ok, message, code })
    assert(handle:resume(id))
    assert.is_true(handle:run_now(id))
  end)
end)

-- Jobs borrowed the name of their queue from an array that grew when another queue was met:
-- those that waited in a host, in another thread, were left with the name in freed memory.
it("jobs that wait in a host keep their queue's name while queues appear", function()
  local HANDLERS = [[
  local nst = require "nst"
  return { quick = function()  end, hold = function(job)
    while not io.open(%q) do nst.sleep(0.001) end
    return job.queue
  end }]]

  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local go = fixture.dir() .. "/go"
  local h = host.start(url, HANDLERS:format(go), { "--workers", "2", "--reserve", "extra=1" },
    { GLIBC_TUNABLES = "glibc.malloc.perturb=165:glibc.malloc.arena_max=1" }) -- what is freed is written over
  local q, warm, held = handle:queue "the first of all", {}, {}
  for i = 1, 1000 do warm[i] = { "quick" } end -- jobs are claimed ahead of quick handlers only
  assert(q:push_many(warm))
  eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_job", name) == "0" end, 30)
  for i = 1, 200 do held[i] = { "hold" } end
  local ids = assert(q:push_many(held))
  eventually(function()
    return tonumber(db.sql("SELECT COALESCE(SUM(JSON_LENGTH(jobs)), 0) FROM nightshift_lease", name)) > 1
  end)
  for step = 1, 4 do -- the host reads the queues again, for one that has a worker of its own
    db.sql(("INSERT INTO nightshift_queue (name, created) SELECT CONCAT('q-%d-', seq), 1 FROM seq_1_to_%d"):format(step,
      10 * 4 ^ step), name)
    local extra = assert(handle:queue("extra"):push "quick")
    eventually(function() return handle:job(extra).state == "done" end)
  end
  io.open(go, "w"):close()
  eventually(function() return handle:job(ids[#ids]).state == "done" end, 20)
  for _, id in ipairs(ids) do assert.equal("the first of all", handle:job(id).result) end
  h:signal "TERM"
  assert.equal(0, h:wait())
end)
