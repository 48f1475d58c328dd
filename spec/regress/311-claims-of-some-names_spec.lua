-- Whoever claimed took jobs of all names. What it could not run it gave back, and that
-- came again after 1, 2, 4 ... s: programs with different handlers on one queue slowed
-- each other, and a name that nobody knew was claimed again and again.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local handle, q, url, name

with_database(function(...) handle, q, url, name = ... end)

local function names(jobs)
  local list = {}
  for i, job in ipairs(jobs) do list[i] = job.name end
  return list
end

-- Rows of a name that nobody serves, written as an INSERT of somebody else's would.
local function unserved(n, ready_at)
  db.sql(([[INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes, backoff,
      timeout, created, due, nonce)
    SELECT 10000000 + seq, 1, 'nobodys', '1', 100, 155, 1, 1, 1, 1000000, 1, 1, 1 FROM seq_1_to_%d;
    INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
    SELECT 1, 155, %s, 10000000 + seq, 1, CRC32('nobodys') FROM seq_1_to_%d]]):format(n, ready_at, n), name)
end

describe("a claim of some names", function()
  it("leaves jobs of other names as they are, ready", function()
    local ids = assert(q:push_many { { "a", 1 }, { "b", 2 }, { "c", 3 }, { "a", 4 }, { "b", 5, { priority = 255 } } })
    assert.same({ "a", "a" }, names(assert(q:claim_many(10, { names = { "a" } }))))
    assert.is_nil(q:claim { names = { "a" } })
    for _, i in ipairs { 2, 3, 5 } do
      local job = handle:job(ids[i])
      assert.same({ "ready", 1 }, { job.state, job.run })
    end
    assert.same({ "b", "b", "c" }, names(assert(q:claim_many(10, { names = { "c", "b" } }))))
  end)

  it("is followed by one of all, or of others, that sees all", function()
    assert(q:push_many { { "a", 1 }, { "b", 2 }, { "a", 3 }, { "c", 4 } })
    assert.same({ "a", "a" }, names(assert(q:claim_many(10, { names = { "a" } }))))
    assert.same({ "c" }, names(assert(q:claim_many(10, { names = { "c" } }))))
    assert.same({ "b" }, names(assert(q:claim_many(10))))
  end)

  it("takes what comes back, is due, is signalled, and is pushed from SQL", function()
    local only = { names = { "a" }, wait = 20 }
    assert(q:push("b", 0))
    assert(q:push("a", 1, { backoff = 0.05, delay = 0.05 }))
    assert(q:claim(only)):fail "once"
    assert(q:claim(only)):release()
    local job = assert(q:claim(only))
    assert(job:wait { signal = "s" })
    assert(handle:signal(job.id, 1, "s"))
    assert(q:claim(only)):ack()
    db.sql("CALL nightshift_push('q', 'b', '1', NULL); CALL nightshift_push('q', 'a', '1', NULL)", name)
    assert(q:claim(only)):ack()
  end)

  it("wakes for those, and sleeps on for others", function()
    assert(q:push("b", 0))
    local other <close> = assert(nightshift.open(url))
    local sleeper = proc.start { proc.lua, "-e", ([[
      local q = require "nightshift".open(%q):queue "q"
      io.stderr:write "ready\n"
      local job = assert(q:claim{wait = 20, names = {"a"}})
      io.stderr:write("got ", job.name, "\n")
      job:ack()]]):format(url) }
    sleeper:wait_line("ready", 20)
    eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_listener", name) == "1" end, 20)
    assert(other:queue("q"):push("b", 1))
    assert(other:queue("q"):push("a", 1))
    sleeper:wait_line("got a", 20)
    assert.equal(0, sleeper:wait(20))
  end)

  it("gives a job back whose name has the same number", function()
    local twin = "codding" -- CRC32 is that of "gnu"
    assert.equal("1", db.sql(("SELECT CRC32('%s') = CRC32('gnu')"):format(twin), name))
    local id = assert(q:push(twin, 1))
    assert(q:push("gnu", 1))
    assert.same({ "gnu" }, names(assert(q:claim_many(10, { names = { "gnu" } }))))
    assert.equal("scheduled", handle:job(id).state)
  end)

  it("refuses what are no names", function()
    assert.same({ nil, "INVALID" }, { q:claim { names = {} }, select(3, q:claim { names = {} }) })
    assert.equal("INVALID", select(3, q:claim { names = { "a\nb" } }))
    assert.has_error(function() q:claim { names = "a" } end)
    assert.has_error(function() q:claim { names = { 1 } } end)
  end)
end)

-- Rows that a handle's session has read.
local function reads(h)
  local n = 0
  for _, row in ipairs(assert(h:execute "SHOW SESSION STATUS LIKE 'Handler_read_%'")) do n = n + row.Value end
  return n
end

-- 500,000 with NIGHTSHIFT_LONG.
local MANY = os.getenv "NIGHTSHIFT_LONG" and 500000 or 30000

describe("behind many jobs that nobody serves", function()
  for _, at in ipairs { "seq", "7" } do
    local when = at == "7" and ", all of one instant" or ""

    it("a claim finds its own, and reads the others once" .. when, function()
      local id = assert(q:push("a", 0, { delay = 3600 }))
      unserved(MANY, at)
      local h2 <close> = assert(nightshift.open(url))
      local q2 = h2:queue "q"
      assert(q:push("a", 1))
      assert(q2:claim { names = { "a" } }):ack()
      local before = reads(h2)
      for i = 1, 20 do
        assert(q:push("a", i))
        assert(q2:claim { names = { "a" } }):ack()
      end
      local read = reads(h2) - before
      assert.is_true(read < 2 * MANY, read .. " rows read by 20 claims")
      -- one that is before all of them
      db.sql(([[DELETE FROM nightshift_scheduled WHERE job_id = %d; UPDATE nightshift_job SET due = 1 WHERE id = %d;
        INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
        VALUES (1, 155, 3, %d, 1, CRC32('a'))]]):format(id, id, id), name)
      assert.equal(id, assert(q2:claim { names = { "a" } }).id)
    end)
  end
end)
