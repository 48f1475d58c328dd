--- Hosts for specs: `nightshift work` on a script given as text.
--
--     local h = host.start(url, [[return { hello = function() end }]], { "--workers", "2" })
--     h:signal "TERM"
--     assert.equal(0, h:wait())

local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local host = {}

local function fields(line)
  local found = {}
  for key, value in line:gmatch '(%w+)=("?[^%s"]*)' do found[key] = value:gsub('^"', "") end
  return found
end

--- The line of the log on the death of a worker, idle or with a job; nil: none has died.
function host.death(log) return log:match "[^\n]*worker%.died[^\n]*" or log:match '[^\n]*error="worker %l+[^\n]*' end

--- Starts a host and waits until its workers are there.
-- @tparam string url
-- @tparam string script text of a handler file, or a path that ends in ".lua"
-- @tparam[opt] table args more arguments
-- @tparam[opt] table env changes to the environment
-- @treturn Process with `script`, the path
function host.start(url, script, args, env)
  local h = host.spawn(url, script, args, env)
  h:wait_line("host.ready", 60)
  return h
end

--- The same without waiting.
function host.spawn(url, script, args, env)
  local path = script:find "%.lua$" and script or fixture.file("jobs.lua", script)
  local options = { proc.program, "work", path, "--workers", "2", table.unpack(args or {}) }
  options.env = { NIGHTSHIFT_URL = url or false }
  for name, value in pairs(env or {}) do options.env[name] = value end
  local h = proc.start(options)
  h.script = path
  return h
end

--- A script with a handler `hold` that says "holds" and lasts until the file `go` is there.
function host.holding(go)
  return ([[return {
    hold = function()
      print "holds"
      while not io.open %q do require "nightshift.core".sleep(0.02) end
      return "held"
    end,
  }]]):format(go)
end

--- A script with a handler `a` that appends its job's id and payload to a file.
function host.telling(path)
  return ([[
  local file
  return { a = function(job)
    file = file or assert(io.open(%q, "ab"))
    file:setvbuf "no"
    file:write(job.id .. " " .. job.payload .. "\n")
  end }]]):format(path)
end

--- Runs a host until nothing is left to do; its exit status and its log. Half a
-- second ahead counts, so that jobs that come back at once are not left behind.
-- With other arguments --drain has to be among them.
function host.drain(url, script, args, env)
  local h = host.spawn(url, script, args or { "--drain-within", "500ms" }, env)
  local status = h:wait(120)
  local _, log = h:text()
  h:forget()
  return status, log
end

--- Fields of the log lines of an event.
-- @treturn table[]
function host.events(log, event)
  local found = {}
  for line in log:gmatch "[^\n]+" do
    if line:find("event=" .. event .. " ", 1, true) or line:find("event=" .. event .. "$") then
      found[#found + 1] = fields(line)
    end
  end
  return found
end

--- One host for all tests of a describe, with a database that is theirs. A test has it read
-- other scripts, by HUP, which costs less than a start. Its output begins there.
--
--     local serve = host.lend(function(...) handle, q, url = ... end)
--     it("runs", function() local h = serve "return { a = function() end }" … end)
-- @tparam function take called once, with handle, queue, URL, and the database's name
-- @tparam[opt] table args more arguments
-- @tparam[opt] table env changes to the environment
-- @treturn function serve(script): the host, as start gives it; no test ends it
function host.lend(take, args, env)
  local busted = require "busted"
  local h, handle, current
  busted.setup(function()
    local url, name = require "spec.support.db".fresh()
    handle = assert(nightshift.open(url))
    h = host.start(url, "return {}", args, env)
    take(handle, handle:queue "q", url, name)
  end)
  busted.teardown(function()
    handle:close()
    host.stop(h)
  end)
  return function(script)
    local out, err = h:text()
    local lent = setmetatable({ ended = function() return h:ended() end }, { __index = h })
    function lent.text()
      local now_out, now_err = h:text()
      return now_out:sub(#out + 1), now_err:sub(#err + 1)
    end
    if script ~= current then
      local file <close> = assert(io.open(h.script, "w"))
      assert(file:write(script))
      file:close()
      h:signal "HUP"
      lent:wait_line "event=reload%.done"
      current = script
    end
    return lent
  end
end

--- Has it end, well.
function host.stop(h)
  h:signal "TERM"
  local status = h:wait()
  assert(status == 0, ("the host ended with %s: %s"):format(status, select(2, h:text())))
end

local QUIET = 60 -- statements a second; a host that looks time and again has hundreds

--- Waits until the shared server is asked little, as where a host sleeps.
function host.await_quiet()
  local db = require "spec.support.db"
  local function asked() return tonumber(db.sql "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'":match "%d+") end
  eventually(function()
    local before = asked()
    nst.sleep(1)
    return asked() - before < QUIET
  end)
end

local function read(path)
  local file <close> = io.open(path, "rb")
  return file and file:read "a"
end

--- The children of a process.
-- @treturn integer[] process ids
function host.children(pid)
  local list = {}
  for child in (read(("/proc/%d/task/%d/children"):format(pid, pid)) or ""):gmatch "%d+" do
    list[#list + 1] = math.tointeger(tonumber(child))
  end
  return list
end

--- The process's name, nil when it is gone or a zombie.
function host.name(pid)
  local stat = read(("/proc/%d/stat"):format(pid))
  local name, state = (stat or ""):match "%((.*)%) (%a)"
  if state ~= "Z" then return name end
end

--- The lines of an event in the log of a host that was started with `--log json`.
function host.logged(h, event)
  local found = {}
  local _, log = h:text()
  for line in log:gmatch "[^\n]+" do
    local entry = line:find "^{" and nightshift.decode(line)
    if entry and entry.event == event then found[#found + 1] = entry end
  end
  return found
end

--- Waits until none of these processes is there any more.
function host.await_gone(pids)
  eventually(function()
    for _, pid in ipairs(pids) do
      if host.name(pid) then return false end
    end
    return true
  end)
end

--- All processes below one, itself left out.
function host.family(pid, list)
  list = list or {}
  for _, child in ipairs(host.children(pid)) do
    list[#list + 1] = child
    host.family(child, list)
  end
  return list
end

--- Process ids of the workers, or of "ns-zygote", "ns-keeper", below a host.
function host.members(pid, name)
  local list = {}
  for _, child in ipairs(host.family(pid)) do
    if host.name(child) == (name or "ns-worker") then list[#list + 1] = child end
  end
  return list
end

--- The first of them, as soon as it is there: a fork bears its name a moment later.
function host.member(pid, name)
  return eventually(function() return host.members(pid, name)[1] end)
end

return host
