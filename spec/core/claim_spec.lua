-- Claims: in order, each job to one holder, never waiting for a lock.

local nightshift = require "nightshift"
local core = require "nightshift.core"
local db = require "spec.support.db"

local function database(url) return url:match "/([^/?]+)%?" end

describe("a claim", function()
  local url, handle, q

  with_database(function(opened, _, at)
    handle, url = opened, at
    q = handle:queue "mail"
  end)

  local function names(jobs)
    local list = {}
    for i, job in ipairs(jobs) do list[i] = job.name end
    return list
  end

  it("takes higher priority first, then first come first served", function()
    assert(q:push_many {
      { "c", {} }, { "e", {}, { priority = 0 } }, { "a", {}, { priority = 255 } },
      { "d", {} }, { "b", {}, { priority = 101 } },
    })
    assert.same({ "a", "b", "c", "d", "e" }, names(q:claim_many(10)))
  end)

  it("finds a higher lane that appears while lower ones are being claimed", function()
    local items = {}
    for i = 1, 3000 do items[i] = { "low", i } end
    assert(q:push_many(items))
    for _ = 1, 20 do assert(q:claim()):ack() end
    local other <close> = assert(nightshift.open(url))
    assert(other:queue("mail"):push("high", {}, { priority = 200 }))
    local tries = 0
    eventually(function()
      tries = tries + 1
      local job = assert(q:claim())
      job:ack()
      return job.name == "high"
    end, 30)
    assert.is_true(tries < 2800, tries .. " lower jobs came first")
  end)

  it("finds a job that was committed late, below the rows already claimed", function()
    local late <close> = assert(nightshift.open(url))
    assert(q:push("first", 1))
    assert(late:transaction(function(tx)
      assert(tx:queue("mail"):push("late", {}))
      for i = 1, 50 do assert(q:push("early", i)) end
      for _ = 1, 30 do assert(q:claim()):ack() end
      return true
    end))
    local seen = {}
    eventually(function() -- what is late by seconds is looked for now and then
      for job in q:jobs() do
        seen[job.name] = (seen[job.name] or 0) + 1
        assert(job:ack())
      end
      return seen.late
    end)
    assert.same({ early = 21, late = 1 }, seen)
  end)

  it("goes around rows that somebody's transaction holds", function()
    assert(q:push_many { { "a", 1 }, { "b", 2 }, { "c", 3 } })
    local other <close> = assert(core.open { url = url })
    assert(other:begin())
    assert(other:execute [[SELECT * FROM nightshift_ready WHERE queue_id = 1 AND rank = 155
      ORDER BY ready_at LIMIT 1 FOR UPDATE]])
    local started = nightshift.clock()
    assert.same({ "b", "c" }, names(q:claim_many(10)))
    assert.is_true(nightshift.clock() - started < 10) -- behind them: BUSY
    other:rollback()
    assert.same({ "a" }, names(q:claim_many(10)))
  end)

  it("drops rows whose job is gone or has another run", function()
    local id = assert(q:push("a", 1))
    db.sql(([[INSERT INTO nightshift_ready SELECT queue_id, rank, 1, id, 77, 0, 0 FROM nightshift_job WHERE id = %d;
      INSERT INTO nightshift_ready SELECT queue_id, rank, 2, id + 1, 1, 0, 0 FROM nightshift_job WHERE id = %d]])
      :format(id, id),
      database(url))
    local job = assert(q:claim())
    assert.equal(id, job.id)
    assert(job:ack())
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", database(url)))
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_lease", database(url)))
  end)

  it("puts a sentinel at the end of each lane it has met", function()
    assert(q:push_many { { "a", 1 }, { "b", 2, { priority = 7 } } })
    q:claim_many(2)
    assert.equal("155\n248", db.sql("SELECT rank FROM nightshift_ready WHERE job_id = 0 ORDER BY rank", database(url)))
  end)

  it("writes one lease for a batch and deletes it with the last verdict", function()
    assert(q:push_many { { "a", 1 }, { "b", 2 }, { "c", 3 } })
    local jobs = q:claim_many(3)
    local function leases() return db.sql("SELECT COUNT(*) FROM nightshift_lease", database(url)) end
    assert.equal("1", leases())
    jobs[2]:ack()
    jobs[1]:fail "no"
    assert.equal("1", leases())
    jobs[3]:again(60)
    assert.equal("0", leases())
  end)

  it("waits without a query and takes what is pushed within milliseconds", function()
    local waiter <close> = assert(nightshift.open(url))
    local idle = waiter:queue "mail"
    idle:claim()
    local proc = require "spec.support.proc"
    local pusher = proc.start { proc.lua, "-e", ([[
      local nightshift = require "nightshift"
      local q = nightshift.open(%q):queue "mail"
      for line in io.lines() do
        q:push("now", {})
        print "pushed"
      end]]):format(url), stdin = "1\n" } -- it may come before we sleep or after: both must work
    local job = assert(idle:claim { wait = 20 })
    assert.equal("now", job.name)
    pusher:wait_line "pushed"
  end)

  it("of a paused queue gives nothing until it is resumed", function()
    assert(q:push("a", 1))
    assert(q:pause())
    assert.is_nil(q:claim())
    assert.is_nil(q:claim { wait = 0.2 })
    assert(q:resume())
    assert.equal("a", assert(q:claim()).name)
  end)

  it("comes back when its handle is closed", function()
    assert(q:push("a", 1))
    do
      local other <close> = assert(nightshift.open(url))
      assert.equal("a", assert(other:queue("mail"):claim()).name)
      assert.is_nil(q:claim())
    end
    local job = assert(q:claim())
    assert.same({ "a", 1 }, { job.name, job.attempt })
  end)
end)
