-- `job:spawn` waits for an id while the server is away, and did so in C: a job that was to
-- stop meanwhile could not be told, and its worker was killed instead.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

local SCRIPT = [[
return {
  parent = function(job)
    print "started"
    io.read "l"
    job:spawn "child"
  end,
  child = function() end,
}]]

describe("a job that spawns while the server is away", function()
  local server, url, h, id, worker

  -- A job that is about to spawn, and the server gone.
  local function leave(timeout)
    server = db.server()
    url = server:fresh()
    local gate = fixture.dir() .. "/gate"
    assert(os.execute("mkfifo " .. gate))
    h = host.start(url, SCRIPT:gsub("io.read \"l\"", ("local f = io.open %q f:read 'l' f:close()"):format(gate)),
      { "--workers", "1" })
    worker = host.member(h.pid)
    local handle <close> = assert(nightshift.open(url))
    id = assert(handle:queue("q"):push("parent", nil, { timeout = timeout, max_attempts = 1 }))
    h:wait_line "^started"
    server:stop()
    h:wait_line "event=db.lost"
    assert(io.open(gate, "w")):close()
  end

  local function ended()
    local handle <close> = assert(nightshift.open(url))
    local job = eventually(function()
      local job = handle:job(id)
      return job.state:match "^d" and job
    end, 20)
    return job, handle:execute("SELECT COUNT(*) AS n FROM nightshift_child")[1].n
  end

  local function stop()
    assert.same({ worker }, host.members(h.pid))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  it("goes on when it is back", function()
    leave(60) -- the server takes its time to end and to start
    nst.sleep(0.3)
    server:start()
    local job, children = ended()
    assert.same({ "done", 1 }, { job.state, children })
    stop()
  end)

  it("is stopped like any other, and its worker lives on", function()
    leave(4)
    h:wait_line "event=job.timeout"
    h:wait_line "event=job.failed"
    server:start()
    local job, children = ended()
    assert.same({ "dead", 0 }, { job.state, children })
    assert.matches("^timeout after 4 s at .-in method 'spawn'\n.-jobs.lua:5", job.error)
    stop()
  end)
end)
