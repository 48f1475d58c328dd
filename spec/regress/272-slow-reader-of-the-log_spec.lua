-- The host waited up to 0.1 s for whoever reads its log, line by line, while workers and
-- dispatcher waited for the host: with a reader of 100 KB/s, such as a serial console, one
-- queue of failing jobs slowed all the others down.

local nst = require "nst"
local proc = require "spec.support.proc"

local url, handle, q
with_database(function(...) handle, q, url = ... end)

local FLOOD <const> = 3000 -- jobs of two lines
local SCRIPT = [[
  local line = ("x"):rep(1500)
  return {
    fail = function() error(line) end,
    log = function(job) for _ = 1, 20 do job:log(line) end end,
    brief = function(job) for i = 1, 20 do job:log("line " .. i) end end,
    stamp = function() return require "nst".clock() end,
  }]]

-- Reads 100 KB a second, until it is told to hurry.
local READER = [[
  local nst = require "nst"
  local pipe, out = assert(io.open(arg[1])), io.stdout
  local n = 0
  for line in pipe:lines "L" do
    out:write(line)
    out:flush()
    n = n + #line
    if n > 10240 and not io.open(arg[2]) then
      n = 0
      nst.sleep(0.1)
    end
  end]]

--- A host, and the reader of its log.
local function start()
  local pipe, hurry = fixture.dir() .. "/pipe", fixture.dir() .. "/hurry"
  assert(os.execute("mkfifo " .. pipe))
  local reader = proc.start { proc.lua, fixture.file("reader.lua", READER), pipe, hurry }
  local h = proc.start { "sh", "-c", 'exec "$@" 2>' .. pipe, "sh", proc.program, "work",
    fixture.file("jobs.lua", SCRIPT), "--workers", "2", env = { NIGHTSHIFT_URL = url } }
  reader:wait_line("host.ready", 20)
  return h, reader, hurry
end

--- Pushes 'n' jobs, in transactions of at most 500.
local function push(n, name)
  for from = 1, n, 500 do
    assert(handle:transaction(function(tx)
      for i = from, math.min(n, from + 499) do assert(tx:queue("flood"):push(name, i, { max_attempts = 1 })) end
    end))
  end
end

--- The median of how long jobs of another queue wait for their start, seconds.
local function latency()
  local waits = {}
  for i = 1, 15 do
    local pushed = nst.clock()
    local id = assert(q:push "stamp")
    waits[i] = eventually(function() return handle:job(id).result end, 20) - pushed
  end
  table.sort(waits)
  return waits[8]
end

--- Five tries: the machine may be slow for a moment, while a reader is slow all along.
local function is_quick()
  for _ = 1, 5 do if latency() < proc.limit(0.3) then return true end end
end

local function count(text, pattern)
  local n = 0
  for _ in text:gmatch(pattern) do n = n + 1 end
  return n
end

describe("a log whose reader is slow", function()
  it("slows no queue down, and says how many lines it dropped", function()
    local h, reader, hurry = start()
    push(FLOOD, "fail")
    eventually(function() return #handle:jobs { queue = "flood", state = "dead", limit = 800 } == 800 end, 60)
    assert.is_true(is_quick())
    eventually(function() return handle:execute "SELECT COUNT(*) AS n FROM nightshift_job"[1].n == 0 end, 60)
    assert(io.open(hurry, "w")):close()
    h:signal "TERM"
    assert.equal(0, h:wait(20))
    reader:wait(20)
    local log, dropped = reader:text(), 0
    for n in log:gmatch "event=log.dropped lines=(%d+)" do dropped = dropped + tonumber(n) end
    assert.is_true(dropped > 0)
    local told = count(log, "event=job.failed") + count(log, "event=job.dead") + dropped
    assert.is_true(told >= FLOOD * 2 and told <= FLOOD * 2 + 2, told) -- the host's end may be among them
  end)

  it("costs no time with job:log either", function()
    local h = start()
    push(500, "log")
    eventually(function() return #handle:jobs { queue = "flood", state = "done", limit = 100 } == 100 end, 60)
    assert.is_true(is_quick())
    h:signal "QUIT"
    h:wait(20)
  end)
end)

describe("a log of less than waits for its reader", function()
  it("has every line at the end of its host", function()
    push(100, "brief")
    local h = proc.start { proc.program, "work", fixture.file("jobs.lua", SCRIPT), "--workers", "2",
      "--drain", env = { NIGHTSHIFT_URL = url } }
    assert.equal(0, h:wait(60))
    local _, log = h:text()
    assert.equal(100 * 20, count(log, "event=job.log"))
    assert.matches("event=host.end [^\n]*\n$", log)
  end)
end)
