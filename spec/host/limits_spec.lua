-- Limits of workers: memory, accounts, reserved workers, and hosts with hundreds of them.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- What workers may not do, and the user they run as.
describe("rights:", function()
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

  -- A script that other users may read as well.
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

    it("has to be somebody", function()
      local status, _, err = proc.nightshift({ "work", script(), "--user", "no-such-user" }, url)
      assert.equal(2, status)
      assert.matches("there is no user 'no-such-user'", err, 1, true)
    end)

    local closed = proc.closed_to_nobody()
    if closed then return pending(closed) end

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
      host.await_gone(family)
    end)

    it("is advised to root", function()
      local h = host.start(url, SCRIPT)
      h:wait_line "event=host.root advice="
      stop(h)
    end)
  end)
end)

-- How much memory a job may use.
describe("memory:", function()
  local url, handle, q

  local function take(...) handle, q, url = ... end

  local ONCE = { max_attempts = 1 }

  -- A sanitizer's own memory counts as the process's, and what is freed stays
  -- its for a while.
  local function plain()
    if not os.getenv "SAN" then return true end
    pending "needs a build without sanitizers"
  end

  local SCRIPT = [[
local function hoard(n)
  local kept = {}
  for i = 1, n do kept[i] = ("x"):rep(1000) .. i end
  return kept
end
return {
  hoard = function(job) hoard(job.payload) return "fits" end,
  forgives = function(job)
    local ok, message = pcall(hoard, job.payload)
    return { ok, tostring(message) }
  end,
  litter = function() for i = 1, 3e5 do local _ = ("x"):rep(200) .. i end return "collected" end,
  insists = function() while true do pcall(hoard, 100000) end end,
  loops = function() pcall(hoard, 100000) while true do end end,
  sleeps = function() pcall(hoard, 100000) os.execute "sleep 60" end,
  leak = function(job) leaked = hoard(job.payload) return "kept" end,
  own = { run = function(job) hoard(job.payload) return "fits" end, memory = "256K" },
  wide = { run = function(job) hoard(job.payload) return "fits" end, memory = "1G" },
  pid = function() return (io.open "/proc/self/stat":read "a"):match "^%d+" end,
  limit = function() return io.popen "ulimit -d":read "l" end,
  rep = function(job) return #("x"):rep(job.payload) end,
  concat = function(job)
    local t, s = {}, ("x"):rep(20000)
    for i = 1, 2000 do t[i] = s end
    return #table.concat(t)
  end,
  gsub = function() return #(("x"):rep(2^20 // 1):gsub("x", ("y"):rep(1000))) end,
  read = function() return #io.open "/dev/zero":read(2^30 // 1) end,
  read_all = function() return #io.popen "head -c 100000000 /dev/zero":read "a" end,
  copes = function()
    local kept = ("x"):rep(3 * 2^20 // 1)
    assert(not pcall(string.rep, "x", 6 * 2^20))
    return "without it " .. #kept
  end,
  speaks = function()
    local kept = ("x"):rep(3 * 2^20 // 1)
    assert(not pcall(string.rep, "x", 6 * 2^20))
    error("something else " .. #kept)
  end,
}]]

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  describe("--memory", function()
    local serve = host.lend(function(opened, queue) handle, q = opened, queue end,
      { "--workers", "1", "--memory", "8M" })

    local runs = 0

    local function run(name, payload)
      runs = runs + 1
      local h = serve(("%s -- in a new worker: %d"):format(SCRIPT, runs))
      local id = assert(q:push(name, payload, ONCE))
      eventually(function() return handle:job(id).state:match "^d" end, 40)
      return handle:job(id), h
    end

    it("fails a job that is over it, and replaces its worker", function()
      local job, h = run("hoard", 100000)
      assert.same({ "dead", 0, "memory limit of 8 MiB" }, { job.state, job.crashes, job.error })
      local id = q:push "pid"
      local pid = eventually(function() return handle:job(id).result end)
      assert.same({ pid }, { tostring(host.member(h.pid)) })
      assert.is_nil(host.death(h:transcript()), h:transcript())
    end)

    it("is noticed although the handler catches the error", function()
      local job = run("forgives", 100000)
      assert.same({ "dead", "memory limit of 8 MiB" }, { job.state, job.error })
    end)

    it("stops a handler that catches the error and goes on", function()
      if not plain() then return end
      for _, name in ipairs { "insists", "loops", "sleeps" } do
        local start = nst.clock()
        local job, h = run(name)
        assert.same({ "dead", 0, "memory limit of 8 MiB" }, { job.state, job.crashes, job.error })
        assert.is_true(nst.clock() - start < proc.limit(30), name) -- of itself: 60 s, or never
        assert.matches("job.stop .*memory limit", h:transcript())
      end
    end)

    it("counts what a function of the library asks for in one piece", function()
      local h = serve(SCRIPT)
      local last
      for _, name in ipairs { "rep", "concat", "gsub", "read", "read_all" } do
        local id, pid = q:push(name, 5 * 2^20, ONCE), q:push "pid"
        eventually(function() return handle:job(id).state:match "^d" end)
        assert.same({ "dead", 0, "memory limit of 8 MiB" }, { handle:job(id).state, handle:job(id).crashes,
          handle:job(id).error }, name)
        pid = eventually(function() return handle:job(pid).result end)
        assert.not_equal(last, pid, name)
        last = pid
      end
      assert.is_nil(host.death(h:transcript()), h:transcript())
    end)

    it("leaves a job alone that can do without", function()
      local job = run "copes"
      assert.same({ "done", "without it 3145728" }, { job.state, job.result })
      local id = q:push("speaks", nil, ONCE)
      eventually(function() return handle:job(id).state == "dead" end)
      assert.matches("something else", handle:job(id).error)
    end)

    it("counts what is kept, not what is collected", function()
      if not plain() then return end
      local job = run "litter"
      assert.same({ "done", "collected" }, { job.state, job.result })
    end)

    it("counts for each job anew", function()
      local job = run("leak", 5000)
      assert.equal("kept", job.result)
      local ids = {}
      for i = 1, 5 do ids[i] = q:push("hoard", 5000, ONCE) end
      for _, id in ipairs(ids) do
        eventually(function() return handle:job(id).state:match "^d" end)
        assert.equal("fits", handle:job(id).result)
      end
    end)

    it("yields to what a handler says for itself", function()
      local job = run("own", 1000)
      assert.equal("memory limit of 256 KiB", job.error)
      local id = q:push("wide", 20000, ONCE)
      assert.equal("fits", eventually(function() return handle:job(id).result end))
    end)

    it("limits C code as well, more generously", function()
      if not plain() then return end
      local job = run "limit"
      assert.is_true(tonumber(job.result) > 80 * 1024 and tonumber(job.result) < 300 * 1024, job.result)
    end)
  end)

  describe("no limit", function()
    with_database(take)

    it("is there unless asked for", function()
      local id = assert(q:push("hoard", 30000, ONCE))
      local h = host.start(url, SCRIPT, { "--workers", "1" })
      assert.equal("fits", eventually(function() return handle:job(id).result end, 40))
      id = q:push "limit"
      assert.equal("unlimited", eventually(function() return handle:job(id).result end))
      stop(h)
    end)
  end)

  describe("a size that makes no sense is refused:", function()
    with_database(take)

    local function refuses(exit, text, args, script)
      local status, _, err = proc.nightshift({ "work", fixture.file("jobs.lua", script or SCRIPT),
        table.unpack(args) }, url)
      assert.equal(exit, status, err)
      assert.matches(text, err, 1, true)
    end

    it("on the command line", function()
      refuses(2, '--memory must be bytes or a text like "64M"', { "--memory", "lots" })
      refuses(2, "--memory must be at least 64K, got 1", { "--memory", "1" })
    end)

    it("in a handler file", function()
      refuses(78, "jobs.lua:1: handler 'a': memory must be bytes", {},
        "return { a = { run = function() end, memory = {} } }")
      refuses(78, "handler 'a': 'run' must be a function, got nothing", {}, "return { a = { memory = 65536 } }")
      refuses(78, "handler 'a': unknown field 'ram'; known: ", {},
        "return { a = { run = print, ram = 5 } }")
    end)
  end)

  describe("a worker whose standard library a handler damaged", function()
    with_database(take)

    local damage = { "string = nil", "for k in pairs(_G) do _G[k] = nil end", "debug.traceback = nil",
      "getmetatable('').__index = nil", "table.concat = error", "xpcall, pcall, error = nil",
      "job.new = nil require 'nightshift.job'.new = nil" }

    it("is replaced as soon as a job fails of it", function()
      local body = {}
      for i, code in ipairs(damage) do body[i] = ("bad%d = function(job) %s end,"):format(i, code) end
      local h = host.start(url, "return {" .. table.concat(body) .. [[
      good = function() return ("%d"):format(#table.concat { "a", debug.traceback "b" }) end }]], { "--workers", "1" })
      for i in ipairs(damage) do
        q:push("bad" .. i, nil, ONCE)
        local id = q:push("good", nil, { backoff = 0.01, max_attempts = 3 })
        eventually(function() return handle:job(id).state:match "^d" end)
        assert.equal("done", handle:job(id).state, damage[i])
      end
      assert.is_nil(host.death(h:transcript()), h:transcript())
      stop(h)
    end)

    it("may keep what handler files changed or added themselves", function()
      local h = host.start(url, [[
      require "nightshift"
      package.path = ""
      string.shout = string.upper
      counter = 0
      local old = print
      function print(...) old("said", ...) end
      return {
        fail = function() counter = counter + 1 error "as ever" end,
        schedules = function(job) return #assert(job:db():schedules()) end,
        pid = function() return (io.open "/proc/self/stat":read "a"):match "^%d+" end }]], { "--workers", "1" })
      local worker = tostring(host.member(h.pid))
      local id = q:push("fail", nil, ONCE)
      eventually(function() return handle:job(id).state == "dead" end)
      id = q:push "schedules" -- all verbs, though the path to our modules is gone
      assert.equal(0, eventually(function() return handle:job(id).result end))
      id = q:push "pid"
      assert.equal(worker, eventually(function() return handle:job(id).result end))
      stop(h)
    end)
  end)
end)

-- Many workers, and what they cost; workers that are forked per job.
describe("crowds:", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local SCRIPT = [[
local nightshift, core = require "nightshift", require "nightshift.core"
local pid = function() return (io.open "/proc/self/stat":read "a"):match "^%d+" end
local seen = 0
return {
  meet = function(job)
    nightshift.shared:incr("here", 1)
    while nightshift.shared:get "here" < job.payload do core.sleep(0.02) end
    return nightshift.shared:get "here"
  end,
  mark = function(job)
    local file <close> = assert(io.open(job.payload.file, "a"))
    file:write(job.payload.n, "\n")
    core.sleep(job.payload.sleep or 0)
    return ("x"):rep(job.payload.size or 0)
  end,
  whoami = function()
    seen = seen + 1
    return { pid = pid(), seen = seen }
  end,
  dies = function(job) if job.crashes == 0 then os.execute("kill -9 " .. pid()) end return job.crashes end,
}]]

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait(60))
  end

  local function count_done() return handle:execute [[SELECT COUNT(*) AS n FROM nightshift_finished
  WHERE outcome = 'done']][1].n end

  describe("a host with many workers", function()
    it("has them all busy at one moment", function()
      local h = host.start(url, SCRIPT, { "--workers", "120" })
      local items = {}
      for i = 1, 120 do items[i] = { "meet", 120 } end
      assert(q:push_many(items))
      eventually(function() return count_done() == 120 end, 60)
      stop(h)
    end)

    it("needs no descriptor for a worker", function()
      local h = proc.start { "sh", "-c", 'ulimit -n 80; exec "$@"', "sh", proc.program, "work",
        fixture.file("jobs.lua", SCRIPT), "--workers", "100", env = { NIGHTSHIFT_URL = url } }
      h:wait_line("host.ready", 60)
      local id = q:push("meet", 1)
      eventually(function() return handle:job(id).state == "done" end)
      stop(h)
    end)

    -- A run that is over counts once, one that was cut off by a kill may have begun. Each job
    -- begins at least once and ends exactly once.
    it("loses no job and ends none twice when workers are killed at random", function()
      local h = host.start(url, SCRIPT, { "--workers", "60" })
      local file = fixture.file("marks", "")
      local items = {}
      for i = 1, 600 do
        items[i] = { "mark", { file = file, n = i, size = i % 50 * 700, sleep = i % 7 == 0 and 0.05 or nil },
          { max_crashes = 50 } }
      end
      assert(q:push_many(items))
      math.randomseed(7)
      for _ = 1, 30 do
        local workers = host.members(h.pid)
        if #workers > 0 then nst.kill(workers[math.random(#workers)], "KILL") end
        if count_done() == 600 then break end
      end
      eventually(function() return count_done() == 600 end, 120)
      local begun = {}
      for line in io.lines(file) do begun[line] = true end
      for i = 1, 600 do assert.is_true(begun[tostring(i)], i) end
      assert.equal(0, handle:execute "SELECT COUNT(*) AS n FROM nightshift_job"[1].n)
      assert.equal(0, handle:execute "SELECT COUNT(*) AS n FROM nightshift_lease"[1].n)
      stop(h)
    end)

    it("loses no job when the process that forked them is killed", function()
      local h = host.start(url, SCRIPT, { "--workers", "60" })
      local file = fixture.file("marks", "")
      local items = {}
      for i = 1, 400 do items[i] = { "mark", { file = file, n = i, sleep = 0.05 } } end
      assert(q:push_many(items))
      eventually(function() return count_done() > 60 end)
      nst.kill(host.member(h.pid, "ns-zygote"), "KILL")
      eventually(function() return count_done() == 400 end, 120)
      stop(h)
    end)
  end)

  describe("large payloads and results", function()
    it("pass piece by piece", function()
      local h = host.start(url, [[return { echo = function(job) return job.payload end }]])
      local ids, text = {}, ("0123456789"):rep(30000)
      for i = 1, 8 do ids[i] = assert(q:push("echo", text .. i)) end
      for i = 1, 8 do
        eventually(function() return handle:job(ids[i]).state == "done" end)
        assert.equal(text .. i, handle:job(ids[i]).result)
      end
      stop(h)
    end)
  end)

  describe("--isolation job", function()
    it("runs every job in a process of its own", function()
      local h = host.start(url, SCRIPT, { "--isolation", "job" })
      local items = {}
      for i = 1, 20 do items[i] = { "whoami" } end
      assert(q:push_many(items))
      eventually(function() return count_done() == 20 end)
      local pids = {}
      for _, row in ipairs(handle:execute "SELECT result FROM nightshift_finished") do
        local result = nightshift.decode(row.result)
        assert.equal(1, result.seen)
        assert.is_nil(pids[result.pid])
        pids[result.pid] = true
      end
      stop(h)
      assert.is_nil(host.death(h:transcript()))
    end)

    it("blames a job that kills its process, and no other", function()
      local h = host.start(url, SCRIPT, { "--isolation", "job" })
      local bad = q:push "dies"
      local items = {}
      for i = 1, 50 do items[i] = { "whoami" } end
      local ids = assert(q:push_many(items))
      eventually(function() return count_done() == 51 end)
      assert.equal(1, handle:job(bad).result)
      for _, id in ipairs(ids) do assert.equal(0, handle:job(id).crashes) end
      stop(h)
    end)

    it("must be job or worker", function()
      local status, _, err = proc.nightshift({ "work", "x.lua", "--isolation", "none" }, url)
      assert.equal(2, status)
      assert.matches("isolation", err)
    end)
  end)

  it("a host that may not have what its workers need says so and starts nothing", function()
    local status, _, err = proc.run { "sh", "-c", 'ulimit -n 50; exec "$@"', "sh", proc.program, "work",
      fixture.file("jobs.lua", SCRIPT), "--workers", "7", env = { NIGHTSHIFT_URL = url } }
    assert.equal(78, status)
    assert.matches("7 workers need 64 open files, there are 50: raise the limit of open files", err, 1, true)
  end)
end)
