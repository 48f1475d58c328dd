-- No process of a worker outlives it, its zygote, its keeper or its host,
-- unless it was put into a session of its own.

local host = require "spec.support.host"
local nst = require "nst"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

-- Each starts processes that print "sleeper PID", one way or another. The
-- second run of a job returns.
local SCRIPT = [=[
local function shell(text)
  return function(job)
    print "started"
    if job.crashes == 0 then os.execute(text) end
  end
end
local function once(text) -- there is a file then
  return function(job)
    if io.open(job.payload) then return end
    io.open(job.payload, "w"):close()
    os.execute(text)
  end
end
local SLEEP = "sh -c 'echo sleeper $$; exec sleep 300'"
return {
  child = shell(SLEEP .. "; true"),
  orphan = shell("(" .. SLEEP .. " &); sleep 300"),
  grouped = shell([[exec bash -c "set -m; sh -c 'echo sleeper \$\$; exec sleep 300' & sleep 300"]]),
  pipe = function(job)
    print "started"
    if job.crashes == 0 then io.popen(SLEEP .. "; true"):read "n" os.execute "sleep 300" end
  end,
  daemon = shell("setsid " .. SLEEP .. " & wait"),
  left = shell(SLEEP .. " >&2 &"),
  files = shell("setsid sh -c 'ls -l /proc/self/fd >&2; echo listed $$; exec sleep 300' & wait"),
  parent = once "kill -9 $(ps -o ppid= -p $PPID); sleep 300",
  grandparent = once "kill -9 $(ps -o ppid= -p $(ps -o ppid= -p $PPID)); sleep 300",
  noop = function() end,
}]=]

local function gone(pids)
  eventually(function()
    for _, pid in ipairs(pids) do
      if host.name(pid) then return false end
    end
    return true
  end)
end

local function sleeper(h, n) return (math.tointeger(tonumber((h:wait_line("^sleeper (%d+)", 20, n))))) end

local function stop(h, how)
  h:signal(how or "TERM")
  assert.equal(0, h:wait())
end

local function done(id) eventually(function() return handle:job(id).state == "done" end) end

-- The worker that is busy: the one with children.
local function busy(h)
  return eventually(function()
    for _, pid in ipairs(host.members(h.pid)) do
      if #host.children(pid) > 0 then return pid end
    end
  end)
end

describe("kill -9 of a worker takes with it", function()
  for _, name in ipairs { "child", "orphan" } do
    it("a grandchild: " .. name, function()
      local h = host.start(url, SCRIPT)
      local id = q:push(name)
      local pid = sleeper(h)
      nst.kill(busy(h), "KILL")
      gone { pid }
      done(id)
      assert.equal(1, handle:job(id).crashes)
      stop(h)
    end)
  end

  it("what io.popen started", function()
    local h = host.start(url, SCRIPT)
    local id = q:push "pipe"
    local worker = busy(h)
    local below = eventually(function()
      local family = host.family(worker)
      for _, pid in ipairs(family) do
        if host.name(pid) == "sleep" then return family end
      end
    end)
    nst.kill(worker, "KILL")
    gone(below)
    done(id)
    stop(h)
  end)

  it("what an earlier job left running", function()
    local h = host.start(url, SCRIPT, { "--workers", "1" })
    done(q:push "left")
    local pid = sleeper(h)
    assert.equal("sleep", eventually(function() return host.name(pid) == "sleep" and "sleep" end))
    nst.kill(host.member(h.pid), "KILL")
    gone { pid }
    stop(h)
  end)
end)

describe("a process in a session of its own", function()
  it("survives its worker and its host, and has nothing of theirs open", function()
    local h = host.start(url, SCRIPT)
    q:push "files"
    nst.kill(tonumber(h:wait_line "^listed (%d+)"), "KILL")
    local _, err = h:text()
    local open = {}
    for fd in err:gmatch " (%d+) %-> %S+" do open[#open + 1] = tonumber(fd) end
    table.sort(open)
    assert.same({ 0, 1, 2, 3 }, open, err) -- 3 is the folder that ls reads
    assert.is_nil(err:find("socket:", 1, true), err)
    q:push "daemon"
    local daemon = sleeper(h)
    h:signal "KILL"
    h:wait()
    nst.sleep(0.2)
    eventually(function() return host.name(daemon) == "sleep" end)
    nst.kill(daemon, "KILL")
  end)
end)

describe("kill -9 of the host", function()
  it("leaves no process of its workers", function()
    local h = host.start(url, SCRIPT, { "--workers", "5" })
    local pids = {}
    for n, name in ipairs { "child", "orphan", "grouped", "left" } do
      q:push(name)
      pids[n] = sleeper(h, n)
    end
    for _, pid in ipairs(host.family(h.pid)) do pids[#pids + 1] = pid end
    h:signal "KILL"
    h:wait()
    gone(pids)
  end)
end)

describe("a job that kills its zygote", function()
  it("ends the processes of all its workers; the host goes on and blames nobody for sure", function()
    local h = host.start(url, SCRIPT, { "--workers", "3" })
    local others = { q:push "orphan", q:push "grouped" }
    local pids = { sleeper(h), (sleeper(h, 2)) }
    local id = q:push("parent", fixture.dir() .. "/once")
    h:wait_line "zygote.died"
    gone(pids)
    done(id)
    for _, other in ipairs { id, table.unpack(others) } do
      local row = eventually(function()
        return handle:execute("SELECT kind, error FROM nightshift_attempt WHERE job_id = ?", other)[1]
      end)
      assert.same({ "lost", "worker lost together with the process that forked it" }, { row.kind, row.error })
      assert.equal(0, handle:job(other).crashes)
    end
    done(q:push "noop")
    stop(h, "QUIT")
  end)

  it("is blamed when it was the only one that ran", function()
    local h = host.start(url, SCRIPT)
    local id = q:push("parent", fixture.dir() .. "/once")
    done(id)
    assert.equal(1, handle:job(id).crashes)
    stop(h)
  end)
end)

describe("a job that kills its keeper", function()
  it("ends the processes of all its workers and the host goes on", function()
    local h = host.start(url, SCRIPT)
    q:push "grouped"
    local pid = sleeper(h)
    local keeper = host.member(h.pid, "ns-keeper")
    q:push("grandparent", fixture.dir() .. "/once")
    h:wait_line "keeper.died"
    gone { pid, keeper }
    done(q:push "noop")
    eventually(function() return #host.members(h.pid, "ns-keeper") == 1 end) -- its first fork bears that name, too
    stop(h, "QUIT")
  end)
end)

describe("kill -9 of the seed", function()
  it("is not noticed; a keeper that dies after it ends the host, and the jobs are given back", function()
    local h = host.start(url, SCRIPT)
    local keeper = host.member(h.pid, "ns-keeper")
    local seed = host.member(h.pid, "ns-seed")
    nst.kill(seed, "KILL")
    gone { seed }
    done(q:push "noop")
    local id = q:push "child"
    local pid = sleeper(h)
    nst.kill(keeper, "KILL")
    assert.equal(1, h:wait())
    gone { pid }
    assert.equal("ready", handle:job(id).state)
  end)
end)
