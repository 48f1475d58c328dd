-- The version of the scripts that a host and its workers run, and the outcome of their last
-- reading.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- The version of the scripts that a host and its workers run, and the outcome of their last
-- reading. Both are in the log, in status, in doctor, and in the exit status of reload.
describe("reloads:", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local function write(path, text)
    local file <close> = assert(io.open(path, "w"))
    file:write(text)
  end

  local function status() return select(2, proc.nightshift({ "status" }, url)) end

  --- The rows of the hosts, by their processes.
  local function hosts()
    local rows = {}
    for _, row in ipairs(assert(handle:stats()).holders) do
      if row.kind == "host" then rows[row.pid] = row end
    end
    return rows
  end

  local function row_of(h)
    return eventually(function()
      local row = hosts()[h.pid]
      return row and row.scripts and row
    end)
  end

  local function ready(h) return host.events(h:transcript(), "host.ready")[1].scripts end

  local function stop(...)
    for _, h in ipairs { ... } do
      h:signal "QUIT"
      h:wait(20)
    end
  end

  --- The check of the scripts, and the exit status.
  local function doctor()
    local exit, json = proc.nightshift({ "doctor", "--json" }, url)
    for _, check in ipairs(nightshift.decode(json).findings) do
      if check.name == "scripts" then return check, exit end
    end
  end

  local BROKEN = "return {\n  a = function() end,\n  b = = 1,\n}"

  describe("the version of the scripts", function()
    it("is a short hash of their texts, wherever they are", function()
      local text = "return { a = function() end }"
      local a, b = host.start(url, text), host.start(url, fixture.file("tasks.lua", text))
      local other = host.start(url, text .. " -- and more")
      assert.matches("^%x%x%x%x%x%x%x%x$", ready(a))
      assert.equal(ready(a), ready(b))
      assert.not_equal(ready(a), ready(other))
      for _, h in ipairs { a, b, other } do
        assert.equal(ready(h), row_of(h).scripts)
        assert.is_truthy(status():find(ready(h), 1, true))
      end
      stop(a, b, other)
    end)

    it("is another one when a module that they require has changed", function()
      local library = fixture.file("things.lua", "return { n = 1 }")
      local h = host.start(url, [[local things = require "things" return { n = function() return things.n end }]], nil,
        { LUA_PATH = library:gsub("things.lua$", "?.lua;;") })
      local before = ready(h)
      write(library, "return { n = 2 }")
      h:signal "HUP"
      h:wait_line "event=reload.done"
      local after = host.events(h:transcript(), "reload.done")[1].scripts
      assert.not_equal(before, after)
      eventually(function() return row_of(h).scripts == after end)
      stop(h)
    end)

    it("stays with a reload that changes nothing", function()
      local h = host.start(url, "return { long = function() os.execute 'sleep 600' end }")
      assert(q:push "long")
      eventually(function() return row_of(h).busy == 1 end)
      h:signal "HUP"
      h:wait_line "event=reload.done"
      assert.equal(ready(h), host.events(h:transcript(), "reload.done")[1].scripts)
      eventually(function()
        local row = row_of(h)
        return row.loads == 2 and row.leaving == 1 and row.old_scripts == 0
      end)
      stop(h)
    end)

    it("is told of the workers that still run the one before", function()
      local go = fixture.dir() .. "/go"
      local h = host.start(url, host.holding(go))
      local before = ready(h)
      local id = assert(q:push "hold")
      h:wait_line "^holds"
      write(h.script, "return { other = function() end }")
      h:signal "HUP"
      h:wait_line "event=reload.done"
      local after = host.events(h:transcript(), "reload.done")[1].scripts
      eventually(function() return status():find(after .. ", 1 old", 1, true) end)
      h:signal "USR1"
      h:wait_line("event=dump.worker .*scripts=" .. before)
      write(go, "")
      eventually(function() return handle:job(id).state == "done" and row_of(h).old_scripts == 0 end)
      assert.is_nil(status():find(" old", 1, true))
      stop(h)
    end)
  end)

  describe("a reload that failed", function()
    it("is in status with file and line, until one is done", function()
      local h = host.start(url, "return { a = function() end }")
      local before = ready(h)
      write(h.script, BROKEN)
      h:signal "HUP"
      h:wait_line "event=reload.failed"
      assert.equal(before, host.events(h:transcript(), "reload.failed")[1].scripts)
      local line = eventually(function() return status():match "[^\n]*could not read its scripts again[^\n]*" end)
      assert.is_truthy(line:find(h.script .. ":3:", 1, true))
      assert.is_truthy(line:find("goes on with " .. before, 1, true))
      local _, json = proc.nightshift({ "status", "--json" }, url)
      local row = nightshift.decode(json).holders[1]
      assert.is_truthy(row.load_error:find(h.script .. ":3:", 1, true))
      assert.same({ before, 1 }, { row.scripts, row.loads })
      local check, exit = doctor()
      assert.same({ "fail", 1 }, { check.status, exit })
      assert.is_truthy(check.says:find(h.script .. ":3:", 1, true))
      write(h.script, "return { b = function() end }")
      h:signal "HUP"
      h:wait_line "event=reload.done"
      eventually(function() return row_of(h).load_error == nil end)
      assert.is_nil(status():find("could not read", 1, true))
      check, exit = doctor()
      assert.same({ "ok", 4, "1 host, of scripts " .. row_of(h).scripts }, { check.status, exit, check.says })
      stop(h)
    end)

    it("is told of a host that has nothing to go on with", function()
      local h = host.start(url, "return { a = function() end }")
      write(h.script, BROKEN)
      assert(nst.kill(host.member(h.pid, "ns-zygote"), "KILL"))
      eventually(function() return status():find("and runs nothing: " .. h.script .. ":3:", 1, true) end)
      assert.is_truthy(select(3, proc.nightshift({ "reload" }, url)):find("runs nothing: " .. h.script .. ":3:", 1,
        true))
      write(h.script, "return { a = function() end }")
      eventually(function() return row_of(h).load_error == nil end, 20)
      assert.equal(ready(h), row_of(h).scripts)
      stop(h)
    end)

    it("is told whatever bytes its message has", function()
      local h = host.start(url, "return {}")
      write(h.script, "error 'not \\xFF UTF-8, \\0'")
      h:signal "HUP"
      h:wait_line "event=reload.failed"
      eventually(function()
        local row = row_of(h)
        return row.load_error and row.load_error:find "jobs%.lua:1: not .- UTF%-8"
      end)
      assert.is_truthy(status():find "jobs%.lua:1: not .- UTF%-8")
      stop(h)
    end)
  end)

  describe("hosts that run jobs of the same name", function()
    it("are named when a file of theirs differs, with its hashes", function()
      local a = host.start(url, "return { a = function() end }")
      local b = host.start(url, "return { a = function() return 2 end, b = function() end }")
      for _, h in ipairs { a, b } do row_of(h) end
      local check, exit = doctor()
      assert.same({ "warn", 4 }, { check.status, exit })
      for _, h in ipairs { a, b } do
        assert.is_truthy(check.says:find(("%s (host %d, pid %d on "):format(ready(h), row_of(h).id, h.pid), 1, true))
      end
      stop(a, b)
    end)

    it("are not when others have files that they have not, or jobs of other names", function()
      local both = fixture.dir()
      write(both .. "/jobs.lua", "return { a = function() end }")
      write(both .. "/more.lua", "return { b = function() end }")
      local a = host.start(url, "return { a = function() end }")
      local b = host.spawn(url, "return { other = function() end }")
      local c = host.start(url, both .. "/jobs.lua", { both .. "/more.lua" })
      for _, h in ipairs { a, b, c } do row_of(h) end
      assert.equal("ok", doctor().status)
      stop(a, b, c)
    end)
  end)

  --- Exit status, stdout, stderr.
  local function reload(...) return proc.nightshift({ "reload", ... }, url) end

  --- A row of a host that is none of this spec's: `fields` differ from that of a real one.
  local function pretend(h, fields)
    local id = 1000000 + row_of(h).id
    assert(handle:execute(([[INSERT INTO nightshift_holder (id, kind, host, pid, boot_id, connection, started, beat,
      version)
    SELECT %d, kind, host, %s, %s, connection, started + %d, beat, version
    FROM nightshift_holder WHERE id = ?]]):format(id, fields.pid or "pid", fields.boot_id or "boot_id",
        fields.later or 0), row_of(h).id))
    return id
  end

  local function forget(id) assert(handle:execute("DELETE FROM nightshift_holder WHERE id = ?", id)) end

  describe("nightshift reload", function()
    it("has every host of this machine read its scripts, and says which it runs now", function()
      local a, b = host.start(url, "return { a = function() end }"), host.start(url, "return { b = function() end }")
      write(a.script, "return { a = function() return 2 end }")
      local exit, out, err = reload()
      assert.same({ 0, "" }, { exit, err })
      assert.is_truthy(out:find(("host %d (pid %d on "):format(row_of(a).id, a.pid), 1, true))
      assert.is_truthy(out:find(("runs %s now, before %s\n"):format(row_of(a).scripts, ready(a)), 1, true))
      assert.is_truthy(out:find(("runs %s, as before\n"):format(ready(b)), 1, true))
      assert.not_equal(ready(a), row_of(a).scripts)
      stop(a, b)
    end)

    it("ends with 1 when one could not, with file and line", function()
      local a, b = host.start(url, "return { a = function() end }"), host.start(url, "return { b = function() end }")
      write(b.script, BROKEN)
      local exit, out, err = reload()
      assert.equal(1, exit)
      assert.is_truthy(out:find("runs " .. ready(a), 1, true))
      assert.is_truthy(err:find(("goes on with %s: %s:3:"):format(ready(b), b.script), 1, true))
      local _, json = reload "--json"
      local outcomes = {}
      for _, each in ipairs(nightshift.decode(json)) do outcomes[each.pid] = each.outcome end
      assert.same({ [a.pid] = "loaded", [b.pid] = "failed" }, outcomes)
      stop(a, b)
    end)

    it("shows the whole error of a module that is not there, status its first line", function()
      local h = host.start(url, "return { a = function() end }")
      write(h.script, "require 'smtp'")
      local _, _, err = reload()
      assert.is_truthy(err:find("module 'smtp' not found:\n\tno field package.preload['smtp']\n", 1, true), err)
      local line = status():match "[^\n]*could not read its scripts again[^\n]*"
      assert.is_truthy(line:find "module 'smtp' not found$", line)
      stop(h)
    end)

    it("waits for what it has asked for, not for what is being read already", function()
      local h = host.start(url, "return { a = function() end }")
      write(h.script, "print 'reading' while true do end")
      h:signal "HUP"
      h:wait_line "^reading"
      write(h.script, "return { a = function() return 3 end }")
      local exit, out = reload()
      assert.equal(0, exit)
      assert.is_truthy(out:find(("runs %s now, before %s\n"):format(row_of(h).scripts, ready(h)), 1, true))
      stop(h)
    end)

    it("ends with 1 when one does not answer, or is about to end", function()
      local go = fixture.dir() .. "/go"
      local h = host.start(url, host.holding(go))
      h:signal "STOP"
      local exit, _, err = reload("--timeout", "300ms")
      h:signal "CONT"
      assert.equal(1, exit)
      assert.is_truthy(err:find("has not answered for 300ms", 1, true))
      assert(q:push "hold")
      h:wait_line "^holds"
      h:signal "TERM"
      h:wait_line "event=host.drain"
      exit, _, err = reload()
      assert.equal(1, exit)
      assert.is_truthy(err:find("it is about to end", 1, true))
      write(go, "")
      assert.equal(0, h:wait(20))
    end)

    it("names hosts of other machines, and says where there is none", function()
      local h = host.start(url, "return {}")
      local id = pretend(h, { boot_id = "'elsewhere'" })
      assert(handle:execute("DO GET_LOCK(CONCAT('nightshift:', MD5(DATABASE()), ':', ?), 0)", id))
      local exit, out = reload()
      assert.equal(0, exit)
      assert.is_truthy(out:find(("host %d (pid %d on "):format(id, h.pid), 1, true))
      assert.is_truthy(out:find("was not reached: it is on another machine", 1, true))
      stop(h)
      local none, _, err = reload()
      assert.equal(1, none)
      assert.is_truthy(err:find("no host of this database runs on this machine", 1, true))
      assert(handle:execute("DO RELEASE_LOCK(CONCAT('nightshift:', MD5(DATABASE()), ':', ?))", id))
      forget(id)
    end)

    it("sends nothing to a process that has the number of a host that is gone", function()
      local h = host.start(url, "return {}")
      local other = proc.start { "sleep", "600" }
      local young = pretend(h, { pid = other.pid, later = -3600000000 })
      local exit, _, err = reload()
      assert.same({ 0, "" }, { exit, err })
      forget(young)
      local deaf = pretend(h, { pid = other.pid, later = 3600000000 })
      exit, _, err = reload()
      assert.equal(1, exit)
      assert.is_truthy(err:find("the process does not listen to HUP", 1, true))
      forget(deaf)
      assert.is_truthy(nst.kill(other.pid, "0"))
      other:signal "KILL"
      other:wait(5)
      stop(h)
    end)
  end)
end)

-- A script that did not end while HUP had it loaded kept every later HUP from
-- being obeyed, without a word in the log.
describe("scripts that take long:", function()
  local url, handle

  with_database(function(opened, _, at) handle, url = opened, at end)

  local HANG = 'print "loading" while true do end'

  local function rewrite(path, text)
    local file <close> = assert(io.open(path, "w"))
    file:write(text)
  end

  -- Whether HUP waits for the process, or is caught: soon after it began, and
  -- long before it reads scripts.
  local function hears_hup(pid)
    local file <close> = assert(io.open(("/proc/%d/status"):format(pid)))
    local text = file:read "a"
    return ((tonumber(text:match "SigBlk:%s*(%x+)", 16) | tonumber(text:match "SigCgt:%s*(%x+)", 16)) & 1) == 1
  end

  local function result()
    local id = assert(handle:queue "q":push "which")
    return eventually(function() return handle:job(id).result end)
  end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end

  describe("HUP while a script is being loaded for ever", function()
    it("ends that and loads the script as it is now", function()
      local h = host.start(url, "return { which = function() return 1 end }")
      rewrite(h.script, HANG)
      h:signal "HUP"
      h:wait_line "^loading"
      assert.equal(1, result())
      rewrite(h.script, "return { which = function() return 2 end }")
      h:signal "HUP"
      h:wait_line("reload.done", 20)
      assert.equal(2, result())
      eventually(function() return #host.members(h.pid, "ns-zygote") == 1 end)
      assert.is_nil(h:transcript():find "reload.failed", h:transcript())
      stop(h)
    end)

    it("works at the start as well", function()
      local h = host.spawn(url, HANG)
      h:wait_line "^loading"
      rewrite(h.script, "return { which = function() return 3 end }")
      h:signal "HUP"
      h:wait_line("host.ready", 20)
      assert.equal(3, result())
      stop(h)
    end)
  end)

  describe("a script that takes long to load", function()
    it("is told of in the log", function()
      local h = host.spawn(url, 'os.execute "sleep 9" return { which = function() return 4 end }')
      h:wait_line("load.slow seconds=%d", 20)
      h:wait_line("host.ready", 20)
      assert.equal(4, result())
      stop(h)
    end)
  end)

  -- The host tried to load again at once, without end, and heard of nothing else any more.
  describe("a zygote that is killed while scripts are read again", function()
    it("does not keep the host from its signals and its new handlers", function()
      local h = host.start(url, "return { which = function() return 6 end }")
      local old = host.members(h.pid, "ns-zygote")[1]
      rewrite(h.script, [[io.stderr:write "reading\n" os.execute "sleep 1"
        return { which = function() return 7 end }]])
      h:signal "HUP"
      h:wait_line("^reading", 20)
      nst.kill(old, "KILL")
      h:wait_line("zygote.died", 20)
      h:wait_line("reload.done", 20)
      h:signal "USR1"
      h:wait_line("dump.host", 20)
      assert.equal(7, result())
      stop(h)
    end)
  end)

  describe("HUP and USR1 before a host listens", function()
    it("do not end it", function()
      local h = host.spawn(url, "return { which = function() return 5 end }")
      eventually(function() return hears_hup(h.pid) end)
      for _ = 1, 20 do
        h:signal "HUP"
        h:signal "USR1"
        nst.sleep(0.005)
      end
      h:wait_line("host.ready", 20)
      assert.equal(5, result())
      stop(h)
    end)
  end)
end)

-- After a reload the jobs of workers that were to leave still took the places of those that had
-- come for them. With half of the workers busy nothing was claimed any more until a long job
-- ended, while new workers sat idle. Each further reload added to it, and so did a worker that
-- did not stop when its job was to end.
describe("places after a reload:", function()
  local SCRIPT = [[
  local function sleep() os.execute "sleep 600" end
  return { short = function() end, long = sleep }]]

  local url, handle, q
  with_database(function(...) handle, q, url = ... end)

  local function running(n)
    eventually(function()
      return handle:execute("SELECT COUNT(*) AS n FROM nightshift_running")[1].n == n
    end, 20)
  end

  local function reload(h, times)
    h:signal "HUP"
    h:wait_line("event=reload.done", 20, times)
  end

  --- Five short jobs are done while long ones run.
  local function serves()
    local ids = {}
    for i = 1, 5 do ids[i] = assert(q:push("short", i)) end
    eventually(function()
      for _, id in ipairs(ids) do
        if handle:job(id).state ~= "done" then return false end
      end
      return true
    end)
  end

  local function stop(h)
    h:signal "QUIT"
    h:wait(20)
  end

  describe("a host with long jobs in the workers of old scripts", function()
    it("has the places of its new workers", function()
      local h = host.start(url, SCRIPT, { "--workers", "4" })
      for i = 1, 2 do assert(q:push("long", i)) end
      running(2)
      reload(h, 1)
      serves()
      stop(h)
    end)

    it("has them after one reload per long job, too", function()
      local h = host.start(url, SCRIPT, { "--workers", "8" })
      for i = 1, 5 do
        assert(q:push("long", i))
        running(i)
        reload(h, i)
      end
      serves()
      stop(h)
    end)

    it("has those of reserved workers", function()
      local h = host.start(url, SCRIPT, { "--workers", "6", "--reserve", "q=2" })
      for _, queue in ipairs { "q", "other", "other" } do assert(handle:queue(queue):push "long") end
      running(3)
      reload(h, 1)
      serves()
      stop(h)
    end)
  end)

  describe("a worker that outlives the end of its job", function()
    it("takes nobody's place", function()
      local h = host.start(url, [[return {
      short = function() end,
      long = function()
        local pid = io.popen "exec sh -c 'echo $PPID'":read "n"
        local child <close> = assert(io.popen("kill -STOP " .. pid .. "; sleep 600"))
        child:read "a"
      end,
    }]], { "--workers", "2" })
      assert(q:push("long", nil, { timeout = 0.3, max_attempts = 1 }))
      running(1)
      h:wait_line("event=job.timeout", 20)
      serves()
      stop(h)
    end)
  end)
end)

-- A reload that came while too many generations of scripts were alive was refused and
-- forgotten. Once the old ones had gone the host still ran the script before the last. Later,
-- an event at the moment of the next try stopped the host's timer, and with it all timeouts and
-- stops of jobs.
describe("a reload while 32 generations are alive", function()
  local url, handle, q
  with_database(function(...) handle, q, url = ... end)

  local function script(version)
    return ([[return {
      long = function(job) print("long", %d, job.id) io.flush() os.execute "sleep 600" end,
      version = function() return %d end }]]):format(version, version)
  end

  local function rewrite(h, version)
    local file <close> = assert(io.open(h.script, "w"))
    file:write(script(version))
  end

  it("is done when one of them has gone", function()
    local h = host.start(url, script(0), { "--workers", "1" })
    local version, longs = 0, 0
    repeat
      assert(q:push "long")
      longs = longs + 1
      h:wait_line("^long", 20, longs)
      version = version + 1
      rewrite(h, version)
      h:signal "HUP"
      eventually(function()
        local done = #host.events(h:transcript(), "reload.done")
        return done == version or h:transcript():find "event=reload.refused"
      end, 20)
      h:signal "TTIN" -- a worker for each generation
      h:wait_line("event=host.workers", 20, version)
    until h:transcript():find "event=reload.refused"
    eventually(function()
      return (assert(handle:stats()).holders[1].load_error or ""):find "too many generations"
    end, 20)
    -- all that run in the first generation: a job may begin just before the next one has workers
    for id in h:text():gmatch "long\t0\t(%d+)" do assert(handle:cancel(math.tointeger(tonumber(id)))) end
    eventually(function()
      local id = assert(q:push "version")
      return eventually(function() return handle:job(id).result end, 20) == version
    end, 40)
    assert.equal(1, #host.events(h:transcript(), "reload.refused"))
    eventually(function() return assert(handle:stats()).holders[1].load_error == nil end, 20)
    h:signal "QUIT"
    h:wait(20)
  end)
end)

-- A host in a terminal, as people try it.
describe("a terminal that is closed", function()
  local url
  with_database(function(_, _, u) url = u end)

  -- A host in a terminal of its own, and the path of its log.
  local function start(prefix)
    local folder = fixture.dir()
    local log = folder .. "/log"
    local command = ("exec %s %s work %s >/dev/null 2>%s"):format(prefix, proc.program,
      fixture.file("jobs.lua", "return { noop = function() end }"), log)
    local terminal = proc.start { "script", "-qec", command, "/dev/null", env = { NIGHTSHIFT_URL = url } }
    local function logged(text)
      local file <close> = io.open(log)
      return file and file:read("a"):find(text, 1, true)
    end
    eventually(function() return logged "host.ready" end)
    return terminal, logged
  end

  it("ends the host, which does not read its scripts again", function()
    local terminal, logged = start ""
    terminal:signal "KILL"
    eventually(function() return logged "host.end" end)
    assert.is_truthy(logged 'event=host.drain why="its terminal was closed"')
    assert.is_nil(logged "reload.done")
  end)

  it("ends no host under nohup", function()
    local terminal, logged = start "nohup"
    local host_pid = host.member(terminal.pid, "nightshift") or host.children(terminal.pid)[1]
    terminal:signal "KILL"
    nst.kill(host_pid, "HUP")
    eventually(function() return logged "reload.done" end)
    assert.is_nil(logged "host.drain")
    nst.kill(host_pid, "TERM")
    eventually(function() return logged "host.end" end)
  end)
end)
