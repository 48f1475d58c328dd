-- What handlers do to their worker, their host and their neighbours: finalisers
-- that go wrong, floods, leaks, forks without end.

local host = require "spec.support.host"
local nst = require "nst"
local proc = require "spec.support.proc"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

local ONCE = { max_attempts = 1 }

local function ended(id, timeout)
  return eventually(function()
    local job = handle:job(id)
    return (job.state == "done" or job.state == "dead") and job
  end, timeout)
end

local function stop(h)
  h:signal "TERM"
  assert.equal(0, h:wait(), h:transcript())
end

-- A host below a shell that sets limits first; its process is the host.
local function limited(limits, script, args)
  local path = fixture.file("jobs.lua", script)
  assert(os.execute(("chmod 755 '%s' && chmod 644 '%s'"):format(path:match "^(.*)/", path)))
  local options = { "bash", "-c", limits .. [[; exec "$@"]], "bash", proc.program, "work", path, "--workers", "1",
    table.unpack(args or {}) }
  options.env = { NIGHTSHIFT_URL = url }
  local h = proc.start(options)
  h:wait_line("host.ready", 20)
  return h
end

describe("a finaliser of a handler", function()
  local SCRIPT = [[
    local function with(meta) return setmetatable({}, meta) end
    return {
      gc_error = function()
        with { __gc = function() error "from __gc" end }
        collectgarbage()
        collectgarbage()
        return "fine"
      end,
      close_error = function()
        local _ <close> = with { __close = function() error "from __close" end }
        return "fine"
      end,
      close_over_error = function()
        local _ <close> = with { __close = function(_, e) error("after " .. tostring(e), 0) end }
        error("first", 0)
      end,
      gc_loop = function()
        with { __gc = function() while true do end end }
        collectgarbage()
        collectgarbage()
      end,
      leaves = function()
        kept = with { __gc = function() while true do end end }
        return "left"
      end,
      noop = function() return "ran" end,
    }]]

  it("that raises in __gc harms nobody", function()
    local h = host.start(url, SCRIPT)
    assert.equal("fine", ended(q:push("gc_error", nil, ONCE)).result)
    assert.equal("ran", ended(q:push("noop", nil, ONCE)).result)
    assert.is_nil(h:transcript():find "worker.died")
    stop(h)
  end)

  it("that raises in __close fails the job, with what it raised", function()
    local h = host.start(url, SCRIPT)
    local job = ended(q:push("close_error", nil, ONCE))
    assert.equal("dead", job.state)
    assert.matches("jobs.lua:%d+: from __close", job.error)
    assert.matches("^after first", ended(q:push("close_over_error", nil, ONCE)).error)
    stop(h)
  end)

  it("that loops in __gc, where no hook reaches, ends at the timeout with its worker", function()
    local h = host.start(url, SCRIPT, { "--workers", "1" })
    local start = nst.clock()
    local job = ended(q:push("gc_loop", nil, { timeout = 0.2, max_attempts = 1 }))
    assert.is_true(nst.clock() - start < proc.limit(20))
    assert.same({ "dead", 0 }, { job.state, job.crashes })
    assert.matches("^timeout after 0.2 s", job.error)
    assert.equal("ran", ended(q:push("noop", nil, ONCE)).result)
    stop(h)
  end)

  it("that would loop at the end of its worker is not run", function()
    local h = host.start(url, SCRIPT, { "--workers", "1" })
    assert.equal("left", ended(q:push("leaves", nil, ONCE)).result)
    local start = nst.clock()
    stop(h)
    assert.is_true(nst.clock() - start < proc.limit(5)) -- waited for: 6 s
    assert.is_nil(h:transcript():find "host.stop")
  end)
end)

describe("a flood of a handler", function()
  local function peak(pid) -- KiB
    local file <close> = io.open(("/proc/%d/status"):format(pid))
    return tonumber(file:read("a"):match "VmHWM:%s*(%d+)")
  end

  it("in job:log is kept to its last lines, and delays nobody else's job", function()
    local h = host.start(url, [[return {
      flood = function(job)
        print "floods"
        local i = 0
        repeat
          i = i + 1
          job:log(("line %d "):format(i) .. ("x"):rep(100))
        until i >= 100000 and i % 1000 == 0 and io.open(job.payload)
        error("enough " .. i, 0)
      end,
      noop = function() end }]])
    ended(q:push("noop", nil, ONCE))
    local before, enough = peak(h.pid), fixture.dir() .. "/enough"
    local id = q:push("flood", enough, ONCE)
    h:wait_line "^floods"
    ended(q:push("noop", nil, ONCE))
    assert.equal("running", handle:job(id).state)
    assert(io.open(enough, "w")):close()
    local lines = assert(ended(id, 120).error:match "^enough (%d+)")
    assert.is_true(os.getenv "SAN" ~= nil or peak(h.pid) - before < 16 * 1024, peak(h.pid) - before)
    local log = handle:execute("SELECT log FROM nightshift_attempt WHERE job_id = ?", id)[1].log
    assert.is_true(#log <= 16384 and log:find("line " .. lines .. " ", 1, true) ~= nil)
    stop(h)
  end)

  it("on stdout and stderr passes the host by", function()
    local path = fixture.file("jobs.lua", [[return {
      flood = function()
        io.stderr:write "floods\n"
        local line = ("x"):rep(1000) .. "\n"
        for _ = 1, 100000 do io.write(line) end
        return "done"
      end,
      noop = function() end }]])
    local h = proc.start { "sh", "-c", [[exec "$@" >/dev/null]], "sh", proc.program, "work", path,
      "--workers", "2", env = { NIGHTSHIFT_URL = url } }
    h:wait_line("host.ready", 20)
    local before = peak(h.pid)
    local id = q:push("flood", nil, ONCE)
    h:wait_line "^floods"
    local start = nst.clock()
    ended(q:push("noop", nil, ONCE))
    assert.is_true(nst.clock() - start < proc.limit(10))
    assert.equal("done", ended(id, 120).result)
    assert.is_true(os.getenv "SAN" ~= nil or peak(h.pid) - before < 16 * 1024, peak(h.pid) - before)
    stop(h)
  end)
end)

describe("a C module that takes memory without end", function()
  if os.getenv "SAN" then return pending "sanitizers have an allocator of their own" end

  local MODULE = [[
  #include <lua.h>
  #include <stdlib.h>
  #include <string.h>
  static int hog(lua_State *L) {
    int n = 0;
    for (char *p; n < 2000 && (p = malloc(1 << 20)) != NULL; n++) memset(p, 1, 1 << 20);
    lua_pushinteger(L, n);
    return 1;
  }
  int luaopen_hog(lua_State *L) { lua_pushcfunction(L, hog); return 1; }]]

  it("gets none beyond the limit; its worker goes on", function()
    local cpath = fixture.module("hog", MODULE)
    local h = host.start(url, [[return {
      hog = function() return require "hog"() end,
      noop = function() return "ran" end,
    }]], { "--workers", "1", "--memory", "8M" }, { LUA_CPATH = proc.build .. "/?.so;" .. cpath })
    local job = ended(q:push("hog", nil, ONCE))
    assert.same({ "done", 0 }, { job.state, job.crashes }, job.error)
    assert.is_true(job.result < 300, job.result)
    assert.equal("ran", ended(q:push("noop", nil, ONCE)).result)
    stop(h)
  end)
end)

describe("a handler that opens files without end", function()
  local SCRIPT = [[
    local function open(keep)
      local list = {}
      if keep then leaked = list end
      while true do list[#list + 1] = assert(io.open "/dev/null") end
    end
    return {
      leak = function() open(true) end,
      waste = function() open(false) end,
      some = function()
        local list = {}
        for i = 1, 4 do list[i] = assert(io.open "/dev/null") end
        return #list
      end,
    }]]

  it("fails by itself; the next job has files again", function()
    local h = limited("ulimit -n 80", SCRIPT)
    for _, name in ipairs { "waste", "leak" } do
      local job = ended(q:push(name, nil, ONCE))
      assert.same({ "dead", 0 }, { job.state, job.crashes })
      assert.matches("Too many open files", job.error)
      assert.equal(4, ended(q:push("some", nil, ONCE)).result)
    end
    assert.is_nil(h:transcript():find "worker.died")
    stop(h)
  end)
end)

describe("a handler that forks without end", function()
  if io.popen "id -u":read "l" ~= "0" then return pending "wants root, for --user" end

  it("is ended at its timeout with all it forked; the host forks workers again", function()
    local h = limited("ulimit -u 60", [[return {
      bomb = function() os.execute "echo started; b() { b | b & sleep 1; }; b 2>/dev/null; sleep 60"
        while true do end end, -- when even the sleep could not be forked
      noop = function() return "ran" end,
    }]], { "--user", "nobody" })
    local id = q:push("bomb", nil, { timeout = 3, max_attempts = 1 })
    h:wait_line "^started"
    eventually(function() return #host.family(h.pid) > 20 end)
    assert.matches("^timeout after 3 s", ended(id, 40).error)
    assert.equal("ran", ended(q:push("noop", nil, { max_attempts = 5 }), 40).result)
    eventually(function()
      for _, pid in ipairs(host.family(h.pid)) do
        local name = host.name(pid)
        if name and not name:find "^ns%-" then return false end
      end
      return true
    end)
    stop(h)
  end)
end)
