-- A claim starts where it has come to. What was committed late below that place, or
-- comes back with an older one, was found by reading the whole queue again, deleted
-- rows and all: with purge blocked each such look stopped the claims for as long as
-- there were rows to read.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local handle, q, url, name

with_database(function(...) handle, q, url, name = ... end)

local function pushed(n, options)
  local items = {}
  for i = 1, n do items[i] = { "job", i, options } end
  return assert(q:push_many(items))
end

local function claims(n, size)
  for _ = 1, n do
    for _, job in ipairs(assert(q:claim_many(size or 1))) do assert(job:ack()) end
  end
end

--- A transaction that reads, as a backup's: purge removes nothing until it ends.
local function blocking()
  local reader = assert(nightshift.open(url))
  assert(reader:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
  assert(reader._handle:begin())
  assert(reader:execute "SELECT 1 FROM nightshift_meta")
  return reader
end

-- Claims on, while there always is more, until a job has come; seconds that took.
local function time_until(id)
  local start = nightshift.clock()
  while true do
    pushed(50)
    for _, job in ipairs(assert(q:claim_many(20))) do
      assert(job:ack())
      if job.id == id then return nightshift.clock() - start end
    end
    assert.is_true(nightshift.clock() - start < proc.limit(40), "never found")
  end
end

--- What doc/design.md promises of hidden rows, seconds.
local function stated()
  local file <close> = assert(io.open(proc.root .. "/doc/design.md"))
  return tonumber((assert(file:read "a":match "hidden row is found within (%d+) ms"))) / 1000
end

describe("below the floor of a busy queue", function()
  for _, blocked in ipairs { false, true } do
    local when = blocked and ", with purge blocked" or ""

    it("a push that commits late is found within the sweep's interval" .. when, function()
      local _ <close> = blocked and blocking() or nil
      pushed(1000)
      claims(5, 100)
      local late <close> = assert(nightshift.open(url))
      local id
      assert(late:transaction(function(tx)
        id = assert(tx:queue "q":push "late")
        pushed(1000)
        claims(10, 100) -- rows that came after it
        return true
      end))
      local sweeps = handle:stats().counters.sweeps
      assert.is_true(time_until(id) < proc.limit(stated() + 8)) -- and what the claims take
      assert.is_true(handle:stats().counters.sweeps > sweeps)
    end)
  end

  it("a job that comes back with an older place is found", function()
    local id = pushed(1)[1]
    local job = assert(q:claim())
    assert.equal(id, job.id)
    pushed(500)
    claims(10, 20)
    assert(job:release())
    db.sql("UPDATE nightshift_ready SET ready_at = 5 WHERE job_id = " .. id, name)
    assert.is_true(time_until(id) < proc.limit(stated() + 8))
  end)

  it("a priority that nobody has known is found, and claimed before the others", function()
    pushed(500)
    claims(5, 20)
    local other <close> = assert(nightshift.open(url))
    local id = assert(other:queue "q":push("high", nil, { priority = 250 }))
    assert.is_true(time_until(id) < proc.limit(stated() + 8))
  end)

  it("nothing of a lower priority is claimed before its turn", function()
    local late <close> = assert(nightshift.open(url))
    pushed(20, { priority = 5 })
    local high
    claims(1, 1)
    assert(late:transaction(function(tx)
      assert(tx:queue "q":push("low", nil, { priority = 5 }))
      pushed(1, { priority = 5 })
      claims(1, 30)
      high = pushed(3000, { priority = 200 })
      return true
    end))
    for _ = 1, #high // 20 do
      for _, job in ipairs(assert(q:claim_many(20, { strict = true }))) do
        assert.equal(200, job.priority)
        assert(job:ack())
      end
    end
    assert.equal("low", assert(q:claim()).name)
  end)
end)

describe("below the floor of an idle host", function()
  local h

  after_each(function()
    h:signal "QUIT"
    h:wait()
  end)

  local function is_done(id)
    return function() return handle:job(id).state == "done" end
  end

  it("what is committed late is found, among more removed rows than it reads at a time", function()
    local _ <close> = blocking()
    for _ = 1, 25 do pushed(1000) end
    claims(25, 1000)
    h = host.start(url, "return { job = function() end }")
    for _ = 1, 20 do eventually(is_done(pushed(1)[1])) end
    local id
    assert(handle:transaction(function(tx)
      id = assert(tx:queue "q":push "job")
      assert(tx:execute("UPDATE nightshift_ready SET ready_at = 5 WHERE job_id = ?", id))
      return true
    end))
    -- two hundred times what reading all takes
    eventually(is_done(id), 30)
  end)
end)

describe("sweeps", function()
  it("take at most 5 % of the time, however many removed rows there are", function()
    local _ <close> = blocking()
    pushed(4000)
    claims(4, 1000)
    local part
    for _ = 1, 3 do -- one that gets no time for a moment counts for as long
      pushed(6000)
      local before, start = handle:stats().counters, nightshift.clock()
      claims(300, 20)
      local seconds, now = nightshift.clock() - start, handle:stats().counters
      assert.is_true(now.sweeps > before.sweeps)
      part = (now.swept - before.swept) / 1e6 / (seconds + 0.2) -- one may have begun at the end
      if part <= 0.05 then break end
    end
    assert.is_true(part <= 0.05, part)
  end)

  it("put up a sentinel that is gone", function()
    pushed(10, { priority = 7 })
    pushed(10)
    claims(1, 20)
    local function sentinels()
      return db.sql("SELECT rank FROM nightshift_ready WHERE job_id = 0 ORDER BY rank", name)
    end
    assert.equal("155\n248", sentinels())
    db.sql("DELETE FROM nightshift_ready WHERE job_id = 0 AND rank = 155", name)
    eventually(function()
      pushed(1, { priority = 7 })
      claims(1, 1)
      q:claim()
      return sentinels() == "155\n248"
    end)
  end)
end)

describe("a claim", function()
  it("over more lanes than one statement has finds every one", function()
    local items = {}
    for priority = 0, 255 do items[#items + 1] = { "job", nil, { priority = priority } } end
    assert(q:push_many(items))
    local seen = 0
    while seen < 256 do
      local jobs = assert(q:claim_many(10))
      assert.is_true(#jobs > 0, seen .. " of 256")
      for _, job in ipairs(jobs) do
        seen = seen + 1
        assert(job:ack())
      end
    end
    assert(q:push_many(items))
    assert.equal(256, #assert(q:claim_many(300)))
  end)
end)
