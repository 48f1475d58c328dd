-- Reserved workers: they take jobs of one queue only, so slow jobs of others
-- never occupy them all.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local SCRIPT = [[
  local function hang(job)
    local seconds = job.payload or 600
    job:progress(0.5)
    while type(seconds) == "string" and not io.open(seconds) do require "nightshift.core".sleep(0.02) end
    if type(seconds) == "number" then os.execute("exec sleep " .. seconds) end
  end
  return { slow = hang, fast = function(job) return { pid = job.payload } end,
    nap = function() require "nightshift.core".sleep(0.02) end }]]

local url, handle, slow, fast, h

local function start(...)
  h = host.start(url, SCRIPT, { "--workers", "4", ... })
  return h
end

before_each(function()
  url = db.fresh()
  handle = assert(nightshift.open(url))
  slow, fast = handle:queue "slow", handle:queue "fast"
end)

after_each(function()
  if h then
    h:signal "QUIT"
    h:wait()
    h = nil
  end
  handle:close()
end)

local function pushed(q, name, n, payload)
  local items = {}
  for i = 1, n do items[i] = { name, payload } end
  return assert(q:push_many(items))
end

-- Slow jobs that a worker has begun.
local function running(queue)
  local n = 0
  for _, row in ipairs(assert(handle:jobs { state = "running", queue = queue })) do
    if row.progress then n = n + 1 end
  end
  return n
end

--- Seconds from a push to the end of its job.
local function took(q, name, payload)
  local from = nightshift.clock()
  local id = assert(q:push(name, payload))
  eventually(function() return handle:job(id).state == "done" end)
  return nightshift.clock() - from
end

describe("reserved workers", function()
  it("start a job at once while all others hang, and never take another queue's", function()
    start("--reserve", "fast=2")
    pushed(slow, "slow", 10)
    eventually(function() return running "slow" == 2 end)
    for _ = 1, 5 do assert.is_true(took(fast, "fast") < proc.limit(9)) end
    -- two workers are idle, eight slow jobs wait: nothing was claimed ahead
    assert.equal(2, running "slow")
    for _, row in ipairs(handle:stats().queues) do
      if row.name == "slow" then assert.same({ 2, 8 }, { row.running, row.ready }) end
    end
  end)

  it("take what was pushed before, and all that their queue has, one after the other", function()
    pushed(slow, "slow", 4)
    local ids = pushed(fast, "nap", 50)
    start("--reserve", "fast=1")
    eventually(function() return handle:job(ids[50]).state == "done" end)
    eventually(function() return running "slow" == 3 end)
  end)

  it("are not all: the others take jobs of that queue, too", function()
    start("--reserve", "fast=1")
    pushed(fast, "slow", 5)
    eventually(function() return running "fast" == 4 end)
  end)

  it("get jobs that others had taken first, once those are slow", function()
    start("--reserve", "fast=2")
    local ids = pushed(fast, "nap", 400) -- workers learn that jobs are short, and claim ahead
    eventually(function() return handle:job(ids[400]).state == "done" end)
    pushed(slow, "slow", 40)
    eventually(function() return running "slow" == 2 end)
    local more = pushed(fast, "nap", 200)
    eventually(function() return handle:job(more[200]).state == "done" end)
    assert.equal(2, running "slow")
  end)

  it("hear of a push when others come free in between", function()
    start("--reserve", "fast=2")
    for i = 1, 5 do
      local go = fixture.dir() .. "/go" .. i
      pushed(slow, "slow", 2, go)
      eventually(function() return running "slow" == 2 end)
      assert.is_true(took(fast, "fast") < proc.limit(9))
      assert(io.open(go, "w")):close()
      eventually(function() return running "slow" == 0 end)
      -- the listener has waited for fast jobs alone; now it must hear of slow ones
      assert.is_true(took(slow, "fast") < proc.limit(9))
      assert.is_true(took(fast, "fast") < proc.limit(9))
    end
  end)

  it("leave a host idle that is full with slow jobs", function()
    start("--reserve", "fast=1")
    pushed(slow, "slow", 50)
    eventually(function() return running "slow" == 3 end)
    local function claims() return tonumber(db.sql "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'":match "%d+") end
    took(fast, "fast")
    eventually(function()
      local before = claims()
      core.sleep(1)
      return claims() - before < 60
    end)
  end)

  it("may be all there are when each queue has its own", function()
    start("--reserve", "fast=2", "--reserve", "slow=2", "--queues", "fast,slow")
    pushed(slow, "slow", 5)
    eventually(function() return running "slow" == 2 end)
    assert.is_true(took(fast, "fast") < proc.limit(9))
    assert.equal(2, running "slow")
  end)

  it("work with shares, a paused queue, a reload, and are shown", function()
    start("--queues", "slow=3,fast=1", "--reserve", "fast=1")
    assert(fast:pause())
    pushed(slow, "slow", 5)
    eventually(function() return running "slow" == 3 end)
    local id = assert(fast:push "fast")
    h:signal "HUP"
    h:wait_line("reload.done", 20)
    assert.equal("ready", handle:job(id).state)
    assert(fast:resume())
    eventually(function() return handle:job(id).state == "done" end)
    h:signal "USR1"
    h:wait_line("dump.reserve", 20)
    assert.matches("queue=fast workers=1", (select(2, h:text())))
  end)

  it("drain to the end", function()
    pushed(slow, "nap", 20)
    pushed(fast, "nap", 20)
    local status = host.drain(url, SCRIPT, { "--workers", "3", "--reserve", "fast=1", "--drain-within", "500ms" })
    assert.equal(0, status)
    assert.equal(40, #handle:jobs { state = "done", limit = 100 })
  end)
end)

describe("work refuses", function()
  local function refused(pattern, ...)
    local command = { proc.program, "work", fixture.file("jobs.lua", SCRIPT), "--workers", "3", ... }
    command.env = { NIGHTSHIFT_URL = url }
    local status, _, err = proc.run(command)
    assert.equal(2, status)
    assert.matches(pattern, err)
  end

  it("a reserve that cannot be", function()
    refused("4 workers are reserved, but there are only 3", "--reserve", "a=4")
    refused("all 3 workers are reserved, and none is left", "--reserve", "a=1,b=2")
    refused("all 3 workers are reserved, and none is left", "--reserve", "a=3", "--queues", "a,b")
    refused("'c' is not among the queues", "--reserve", "c=1", "--queues", "a,b")
    refused("'a' is named twice", "--reserve", "a=1", "--reserve", "a=1")
    refused("'a' is not QUEUE=N", "--reserve", "a")
    refused("the workers of 'a' must be from 1 to 20000, got '0'", "--reserve", "a=0")
  end)

  it("an order that is not said, or is none", function()
    refused("say in which order", "--strict")
    refused("'a' cannot have a weight", "--strict", "--queues", "a=2,b")
  end)
end)

describe("strict order", function()
  it("serves the first queue before the next, and high priorities before low ones", function()
    local a, b = handle:queue "a", handle:queue "b"
    local low = assert(a:push("nap", nil, { priority = 0 }))
    pushed(b, "nap", 5)
    pushed(a, "nap", 200)
    host.drain(url, SCRIPT, { "--workers", "1", "--strict", "--queues", "a,b", "--drain-within", "500ms" })
    local function finished(which, where) -- of one commit are those with one instant
      return assert(handle:execute("SELECT " .. which .. [[(f.finished_at) AS at FROM nightshift_finished f
        JOIN nightshift_queue q ON q.id = f.queue_id WHERE ]] .. where, low))[1].at
    end
    assert.is_true(finished("MAX", "f.id <> ? AND q.name = 'a'") <= finished("MAX", "f.id = ?"))
    assert.is_true(finished("MAX", "f.id = ?") <= finished("MIN", "f.id <> ? AND q.name = 'b'"))
  end)
end)
