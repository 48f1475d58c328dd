-- Nobody reads what a host and its handlers write, or it cannot be written.

local proc = require "spec.support.proc"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

local ONCE = { max_attempts = 1 }

local SCRIPT = [[
local line = ("x"):rep(1000)
return {
  log = function(job) for _ = 1, 20 do job:log(line) end return "logged" end,
  print = function() for _ = 1, 1000 do print(line) end io.stdout:flush() return "printed" end,
  noop = function() return "ran" end,
}]]

local function ended(id)
  return eventually(function()
    local job = handle:job(id)
    return (job.state == "done" or job.state == "dead") and job
  end)
end

-- A host whose output goes where the shell says; its process is the host.
local function start(redirection)
  return proc.start { "sh", "-c", [[exec "$@" ]] .. redirection, "sh", proc.program, "work",
    fixture.file("jobs.lua", SCRIPT), "--workers", "2", env = { NIGHTSHIFT_URL = url } }
end

-- A reader of a new pipe; its path, and the process.
local function reader()
  local path = fixture.dir() .. "/pipe"
  assert(os.execute("mkfifo " .. path))
  return path, proc.start { "cat", path }
end

local function stop(h)
  h:signal "TERM"
  assert.equal(0, h:wait())
end

describe("a log that nobody reads", function()
  it("stops no job; lines are dropped and counted", function()
    local path, r = reader()
    local h = start("2>" .. path)
    r:wait_line("host.ready", 20)
    r:signal "STOP"
    for _ = 1, 100 do q:push("log", nil, ONCE) end
    eventually(function() return #handle:execute "SELECT id FROM nightshift_finished WHERE outcome = 'done'" == 100 end,
      60)
    r:signal "CONT"
    assert.equal("ran", ended(q:push("noop", nil, ONCE)).result)
    h:signal "USR1"
    r:wait_line "event=log.dropped lines=%d+"
    stop(h)
  end)

  it("because its reader has died stops no job either", function()
    local path, r = reader()
    local h = start("2>" .. path)
    r:wait_line("host.ready", 20)
    r:signal "KILL"
    r:wait()
    assert.equal("logged", ended(q:push("log", nil, ONCE)).result)
    stop(h)
  end)

  it("because its disk is full stops no job either", function()
    if not io.open "/dev/full" then return pending "no /dev/full" end
    local h = start(">/dev/full 2>&1")
    assert.equal("logged", ended(q:push("log", nil, ONCE)).result)
    assert.equal("printed", ended(q:push("print", nil, ONCE)).result)
    stop(h)
  end)
end)

describe("standard output that nobody reads", function()
  it("holds up who prints, until the job's timeout, and nobody else", function()
    local path, r = reader()
    local h = start(">" .. path)
    h:wait_line("host.ready", 20)
    r:signal "STOP"
    local id = q:push("print", nil, { timeout = 0.5, max_attempts = 1 })
    for _ = 1, 20 do assert.equal("ran", ended(q:push("noop", nil, ONCE)).result) end
    local job = ended(id)
    assert.same({ "dead", 0 }, { job.state, job.crashes })
    assert.matches("^timeout after 0.5 s", job.error)
    r:signal "CONT"
    assert.equal("printed", ended(q:push("print", nil, ONCE)).result)
    stop(h)
  end)
end)
