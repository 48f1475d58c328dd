-- How a host stops, reloads and pauses.

local host = require "spec.support.host"
local nst = require "nst"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

-- "started" comes from the shell: a fork that has not become one yet still
-- bears the worker's name.
local SLEEP = [[return {
  sleep = function(job) os.execute("echo started; sleep " .. job.payload) return "slept" end,
  wait = function(job)
    os.execute("echo started; while ! test -e " .. job.payload .. "; do sleep 0.02; done")
    return "slept"
  end,
  quick = function() return "quick" end,
}]]

local function state(id) return handle:job(id).state end

local function assert_nobody(pids)
  eventually(function()
    for _, pid in ipairs(pids) do
      if host.name(pid) then return false end
    end
    return true
  end)
end

describe("SIGTERM", function()
  it("lets running handlers finish, gives back what has not started, and exits 0", function()
    local h = host.start(url, SLEEP, { "--workers", "1" })
    local go = fixture.dir() .. "/go"
    local running = q:push("wait", go)
    h:wait_line "^started"
    local waiting = q:push "quick"
    local family = host.family(h.pid)
    h:signal "TERM"
    h:wait_line "host.drain"
    assert(io.open(go, "w")):close()
    assert.equal(0, h:wait())
    assert.equal("done", state(running))
    assert.equal("ready", state(waiting))
    assert.equal(0, handle:job(waiting).attempts)
    assert_nobody(family)
    assert.equal(0, #handle:execute "SELECT id FROM nightshift_lease")
    assert.equal(0, #handle:execute "SELECT id FROM nightshift_holder WHERE kind = 'host'")
  end)

  it("gives up waiting after the drain timeout; the job is given back unhurt", function()
    local h = host.start(url, SLEEP, { "--drain-timeout", "300ms" })
    local id = q:push("sleep", 60)
    h:wait_line "^started"
    h:signal "TERM"
    assert.equal(0, h:wait(20))
    local job = handle:job(id)
    assert.same({ "ready", 0, 0 }, { job.state, job.attempts, job.crashes })
  end)

  it("twice does not wait", function()
    local h = host.start(url, SLEEP)
    local id = q:push("sleep", 60)
    h:wait_line "^started"
    h:signal "TERM"
    h:wait_line "host.drain"
    h:signal "TERM"
    assert.equal(0, h:wait(20))
    assert.equal("ready", state(id))
  end)

  it("ends an idle host at once", function()
    local h = host.start(url, SLEEP)
    h:signal "TERM"
    assert.equal(0, h:wait(8)) -- who waits for something waits 10 s, or 30
  end)

  it("to all processes, as a service manager sends it, is the same", function()
    local h = host.start(url, SLEEP)
    local id = q:push("sleep", 0.5)
    h:wait_line "^started"
    for _, pid in ipairs(host.family(h.pid)) do
      if (host.name(pid) or ""):find "^ns%-" then nst.kill(pid, "TERM") end
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.same({ "done", 0 }, { state(id), handle:job(id).crashes })
  end)
end)

describe("SIGQUIT", function()
  it("stops now and gives running jobs back", function()
    local h = host.start(url, SLEEP)
    local id = q:push("sleep", 60)
    h:wait_line "^started"
    local workers = host.members(h.pid)
    h:signal "QUIT"
    assert.equal(0, h:wait(20))
    local job = handle:job(id)
    assert.same({ "ready", 0, 0 }, { job.state, job.attempts, job.crashes })
    assert_nobody(workers)
  end)
end)

local function version(n)
  return ([[return {
    which = function() return %d end,
    slow = function() print "started" os.execute "sleep 1" return %d end,
  }]]):format(n, n)
end

local function rewrite(h, text)
  local file <close> = io.open(h.script, "w")
  file:write(text)
end

describe("SIGHUP", function()
  local function result(name)
    local id = q:push(name)
    return eventually(function() return handle:job(id).result end)
  end

  it("runs new jobs with the scripts as they are now; running ones finish with the old", function()
    local h = host.start(url, version(1))
    assert.equal(1, result "which")
    local slow = q:push "slow"
    h:wait_line "^started"
    rewrite(h, version(2))
    h:signal "HUP"
    h:wait_line "reload.done"
    assert.equal(2, result "which")
    assert.equal(1, eventually(function() return handle:job(slow).result end))
    eventually(function() return #host.members(h.pid, "ns-zygote") == 1 and #host.members(h.pid) == 2 end)
    assert.equal(2, result "which")
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("with a broken script changes nothing", function()
    local h = host.start(url, version(1))
    rewrite(h, "return {")
    h:signal "HUP"
    h:wait_line "reload.failed .*jobs.lua:1:"
    assert.equal(1, result "which")
    rewrite(h, version(3))
    h:signal "HUP"
    h:wait_line "reload.done"
    assert.equal(3, result "which")
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("many times in a row ends with the last", function()
    local h = host.start(url, version(1))
    for n = 2, 20 do
      rewrite(h, version(n))
      h:signal "HUP"
      nst.sleep(0.01)
    end
    eventually(function() return result "which" == 20 end)
    eventually(function() return #host.members(h.pid, "ns-zygote") == 1 and #host.members(h.pid) == 2 end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

describe("SIGTSTP", function()
  it("stops claiming until SIGCONT", function()
    local h = host.start(url, SLEEP)
    h:signal "TSTP"
    h:wait_line "host.quiet"
    local id = q:push "quick"
    nst.sleep(0.3)
    assert.equal("ready", state(id))
    h:signal "CONT"
    eventually(function() return state(id) == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

describe("SIGUSR1", function()
  it("writes to the log what the host is doing", function()
    local h = host.start(url, SLEEP)
    local id = q:push("sleep", 20)
    h:wait_line "^started"
    h:signal "USR1"
    h:wait_line "dump.host workers=2 outstanding=1"
    h:wait_line("dump.worker pid=%d+ id=" .. id .. " name=sleep")
    h:signal "QUIT"
    assert.equal(0, h:wait())
  end)
end)
