-- A host claimed every job of its queues. What it had no handler for came back after
-- 1, 2, 4 ... 60 s and was dead after ten minutes: two hosts with different scripts on
-- one database delayed each other's jobs by seconds, a host without handlers everybody's.

local db = require "spec.support.db"
local host = require "spec.support.host"
local proc = require "spec.support.proc"

local handle, q, url, name

with_database(function(...) handle, q, url, name = ... end)

local function ends(h)
  h:signal "TERM"
  assert.equal(0, h:wait(20))
end

local function live(of)
  return tonumber((db.sql(("SELECT COUNT(*) FROM nightshift_job WHERE name = '%s'"):format(of), name)))
end

describe("hosts of one database with different scripts", function()
  it("leave each other's jobs alone", function()
    local a = host.start(url, "return { a = function() end }")
    local b = host.start(url, "return { b = function() end }")
    local none = host.start(url, "return {}")
    for i = 1, 20 do assert(q:push(i % 2 == 0 and "a" or "b", i)) end
    eventually(function() return live "a" + live "b" == 0 end)
    assert.equal("0\t1", (db.sql("SELECT MAX(missed), MAX(f.run) FROM nightshift_finished f LEFT JOIN nightshift_job j "
      .. "ON j.id = f.id", name):gsub("NULL", "0")))
    for _, h in ipairs { a, b, none } do
      ends(h)
      assert.is_nil(select(2, h:text()):find("job.no_handler", 1, true))
    end
  end)

  it("leave what nobody can run ready, and status, why and doctor say so", function()
    local id = assert(q:push("helo.say", 1))
    local h = host.start(url, "return { ['hello.say'] = function() end }")
    assert(q:push("hello.say", 1))
    eventually(function() return live "hello.say" == 0 end)
    local job = handle:job(id)
    assert.same({ "ready", 1 }, { job.state, job.run })
    local text = "no live host has a handler for 'helo.say' (1 in queue 'q'; did you mean 'hello.say'?)"
    eventually(function()
      return select(2, proc.nightshift({ "status" }, url)):find(text, 1, true) ~= nil
    end)
    assert.is_truthy(select(2, proc.nightshift({ "doctor" }, url)):find(text, 1, true))
    assert.is_truthy(select(2, proc.nightshift({ "why", id }, url)):find(
      "no live host that serves 'q' has a handler 'helo.say'; known: hello.say", 1, true))
    ends(h)
  end)

  it("say nothing of a name whose host ended within a minute", function()
    local a = host.start(url, "return { a = function() end }")
    local b = host.start(url, "return { b = function() end }")
    eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_served", name) == "2" end)
    ends(a)
    assert(q:push("a", 1))
    local stats = assert(handle:stats())
    assert.same({}, stats.unserved)
    db.sql("UPDATE nightshift_served SET ended = ended - 60000000", name)
    assert.equal("a", assert(handle:stats()).unserved[1].name)
    ends(b)
  end)

  it("claim what they have come to know with a reload, and no more what they have forgotten", function()
    local h = host.start(url, "return { a = function() end }")
    local id = assert(q:push("b", 1))
    assert(q:push("a", 1))
    eventually(function() return live "a" == 0 end)
    local file <close> = assert(io.open(h.script, "w"))
    file:write "return { b = function() end }"
    file:close()
    h:signal "HUP"
    eventually(function() return handle:job(id).state == "done" end)
    local other = assert(q:push("a", 1))
    assert(q:push("b", 1))
    eventually(function() return live "b" == 0 end)
    assert.equal("ready", handle:job(other).state)
    ends(h)
  end)

  it("claim only what --only names", function()
    local other = assert(q:push("b", 1))
    local h = host.start(url, "return { a = function() end, b = function() end }", { "--only", "a,nosuch" })
    assert(q:push("a", 1))
    eventually(function() return live "a" == 0 end)
    assert.equal("ready", handle:job(other).state)
    ends(h)
    assert.equal("nosuch", host.events(select(2, h:text()), "only.no_handler")[1].name)
  end)

  it("write one line a minute about a name that was claimed all the same", function()
    for i = 1, 100 do assert(q:push("nosuch", i)) end
    db.sql("UPDATE nightshift_ready SET kind = 0", name) -- as a program of before writes them
    local h = host.start(url, "return { a = function() end }")
    eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_job WHERE missed = 1", name) == "100" end)
    ends(h)
    assert.equal(1, #host.events(select(2, h:text()), "job.no_handler"))
  end)
end)

-- 500,000 with NIGHTSHIFT_LONG.
local MANY = os.getenv "NIGHTSHIFT_LONG" and 500000 or 50000

describe("behind many jobs that nobody serves", function()
  it("a host works as without them", function()
    db.sql(([[INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes,
        backoff, timeout, created, due, nonce)
      SELECT 10000000 + seq, 1, 'nobodys', '1', 100, 155, 1, 1, 1, 1000000, 1, 1, 1 FROM seq_1_to_%d;
      INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
      SELECT 1, 155, seq, 10000000 + seq, 1, CRC32('nobodys') FROM seq_1_to_%d]]):format(MANY, MANY), name)
    local h = host.start(url, "return { a = function() end }")
    for _ = 1, 20 do
      local items = {}
      for i = 1, 100 do items[i] = { "a", i } end
      assert(q:push_many(items))
    end
    eventually(function() return live "a" == 0 end, 60)
    assert.equal(tostring(MANY), (db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", name)))
    ends(h)
  end)
end)
