-- A verdict with many children was written in the transaction in which a host also claims:
-- nobody's jobs were started meanwhile, of whatever queue.

local host = require "spec.support.host"
local nightshift = require "nightshift"

local SCRIPT = [[
local function spawn(job, n)
  for i = 1, n do assert(job:spawn("child", i, { queue = "nobody" })) end
end
return {
  tick = function() end,
  child = function() end,
  ack = function(job) spawn(job, job.payload) return #"done" end,
  again = function(job)
    if job.state then return job.state end
    spawn(job, job.payload)
    return job:again(0.3, "came back")
  end,
  signals = function(job)
    local got = job.state or {}
    if job.signal then got[#got + 1] = job.signal end
    if #got == 1 and job.signal then spawn(job, 200) return job:again(0, got) end
    if #got < 2 then return job:wait { signal = "go", state = got } end
    return got
  end,
  fails = function(job)
    spawn(job, job.payload - 1)
    job:spawn("child", {}, { unique = "taken", queue = "nobody" })
  end,
}]]

local url

local function start(...) return host.start(url, SCRIPT, { "--queues", "q,other", ... }) end

describe("a verdict with many children", function()
  local handle, q
  with_database(function(...) handle, q, url = ... end)

  local function count(what) return handle:execute("SELECT COUNT(*) AS n FROM nightshift_" .. what)[1].n end
  local function ended(id) return handle:job(id).state:match "^d" and handle:job(id) end
  local function done(id)
    local job = eventually(function() return ended(id) end, 20)
    assert.equal("done", job.state, job.error)
    return job.result
  end

  --- Calls `fn` while nobody can read or write rows of children.
  local function without_children(fn)
    local other <close> = assert(nightshift.open(url))
    assert(other:execute "LOCK TABLES nightshift_child WRITE")
    fn()
    assert(other:execute "UNLOCK TABLES")
  end

  local function waits_for_children()
    return handle:execute([[SELECT COUNT(*) AS n FROM information_schema.processlist
      WHERE db = DATABASE() AND state LIKE 'Waiting for table%'
        AND info LIKE 'INSERT INTO nightshift_child%']])[1].n > 0
  end

  it("delays no job of another queue, and its host ends when it is written", function()
    local h = start()
    local parent
    without_children(function()
      parent = assert(q:push("ack", 2000))
      eventually(waits_for_children)
      for _ = 1, 20 do done(assert(handle:queue "other":push "tick")) end
      eventually(waits_for_children)
      h:signal "TERM"
      h:wait_line "event=host.drain"
      assert.equal("running", handle:job(parent).state)
    end)
    assert.equal(0, h:wait())
    assert.equal(4, done(parent))
    assert.equal(2000, count "child")
    assert.equal(2000, count "ready WHERE job_id > 0")
    assert.equal(0, count "lease")
    assert.is_nil(h:transcript():find "job.stale")
  end)

  it("is whole, or not there, after kill -9", function()
    local h = start()
    local parent
    without_children(function()
      parent = assert(q:push("ack", 2000))
      eventually(waits_for_children)
      h:signal "KILL"
      h:wait()
    end)
    h = start()
    done(parent)
    assert.equal(2000, count "child")
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("comes back when it is due, though its host has nothing else to do", function()
    local h = start()
    local id = assert(q:push("again", 300))
    assert.equal("came back", done(id))
    eventually(function() return count "lease" == 0 end)
    assert.equal(0, count "running")
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("takes back the signal that its run was given", function()
    local h = start()
    local id = assert(q:push "signals")
    assert(handle:signal(id, "first", "go"))
    eventually(function() return handle:execute("SELECT awaits FROM nightshift_job WHERE id = ?", id)[1].awaits end)
    eventually(function() return count "child" == 200 and handle:job(id).state == "waiting" or
      handle:execute("SELECT waits FROM nightshift_job WHERE id = ?", id)[1].waits == "signal" end)
    assert(handle:signal(id, "second", "go"))
    assert.same({ "first", "second" }, done(id))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("that the server refuses fails its job", function()
    assert(handle:queue "nobody":push("child", 0, { unique = "taken" }))
    local h = start()
    local id = assert(q:push("fails", 300, { max_attempts = 1 }))
    local job = eventually(function() return ended(id) end)
    assert.equal("dead", job.state)
    assert.matches("the verdict was refused: .*taken", job.error)
    assert.equal(0, count "child")
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
