-- What workers may not do, and whom they run as.

local host = require "spec.support.host"
local proc = require "spec.support.proc"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

local SCRIPT = [[
return {
  shell = function(job) return io.popen(job.payload .. " 2>&1"):read "a" end,
  read = function(job)
    local file, message = io.open(job.payload)
    return file and file:read "a" or message
  end,
  sleep = function() os.execute "echo started; sleep 300" end,
}]]

-- A script that others may read as well.
local function script()
  local path = fixture.file("jobs.lua", SCRIPT)
  assert(os.execute(("chmod 755 '%s' && chmod 644 '%s'"):format(path:match "^(.*)/", path)))
  return path
end

local function ask(name, payload)
  local id = assert(q:push(name, payload))
  return eventually(function() return handle:job(id).result end)
end

local function shell(command) return (ask("shell", command):gsub("\n$", "")) end

local function stop(h)
  h:signal "TERM"
  assert.equal(0, h:wait())
end

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

local is_root = io.popen "id -u":read "l" == "0"

describe("a worker", function()
  it("gains no rights, dumps no core, and goes before the host when memory is short", function()
    local h = host.start(url, SCRIPT)
    local status = ask("read", "/proc/self/status")
    assert.matches("NoNewPrivs:\t1", status, 1, true)
    assert.equal("0", shell "ulimit -c")
    local own = tonumber(read(("/proc/%d/oom_score_adj"):format(h.pid)))
    assert.equal(math.min(own + 300, 1000), tonumber(ask("read", "/proc/self/oom_score_adj")))
    assert.equal(io.popen "umask":read "l", shell "umask")
    stop(h)
  end)
end)

describe("--user", function()
  if not is_root then return pending "wants root" end

  it("is who workers are, and nobody more", function()
    local secret = fixture.file("secret", "for root only")
    local h = host.start(url, script(), { "--user", "nobody" })
    assert.equal("nobody", shell "id -un")
    assert.equal(shell "id -G nobody", shell "id -G")
    assert.equal("nobody nobody", shell "echo $USER $LOGNAME")
    assert.matches("Permission denied", ask("read", secret))
    assert.matches("not permitted", shell("kill -9 " .. h.pid):lower())
    assert.is_nil(h:transcript():find "host.root")
    stop(h)
  end)

  it("does not keep them from ending with their host", function()
    local h = host.start(url, script(), { "--user", "nobody" })
    q:push "sleep"
    h:wait_line "^started"
    local family = host.family(h.pid)
    assert.is_true(#family >= 6)
    h:signal "KILL"
    h:wait()
    eventually(function()
      for _, pid in ipairs(family) do
        if host.name(pid) then return false end
      end
      return true
    end)
  end)

  it("has to be somebody", function()
    local status, _, err = proc.nightshift({ "work", script(), "--user", "no-such-user" }, url)
    assert.equal(2, status)
    assert.matches("there is no user 'no-such-user'", err, 1, true)
  end)

  it("is advised to root", function()
    local h = host.start(url, SCRIPT)
    h:wait_line "event=host.root advice="
    stop(h)
  end)
end)
