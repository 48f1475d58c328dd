--- Processes for specs: start one, wait for its output, signal it, see how it ended. Output goes
-- to files, so a process never blocks on us. Processes that a test leaves running are killed
-- when the test ends, those of setup and before_each at the end of the file (spec/helper.lua).
-- All die with the run.
--
--     local p = proc.start { "build/bin/nightshift", "work", file, env = { NIGHTSHIFT_URL = url } }
--     p:wait_line "ready"
--     p:signal "TERM"
--     assert.equal(0, p:wait())

local nst = require "nst"

local proc = {}

local ROOT = nst.getcwd()

--- The build folder, absolute.
proc.build = (os.getenv "NIGHTSHIFT_BUILD" or "build"):gsub("^[^/]", ROOT .. "/%0")
--- The program nightshift of this build.
proc.program = proc.build .. "/bin/nightshift"
--- The top of the source tree.
proc.root = ROOT
--- A Lua interpreter that can load the modules of this build.
proc.lua = os.getenv "LUA" or "lua5.4"

local patience = tonumber(os.getenv "NIGHTSHIFT_PATIENCE") or 1
--- Time limits are multiplied by this under sanitizers and valgrind.
function proc.limit(seconds) return seconds * patience end

--- How many random cases to try: fewer where time runs slower, for there each is looked at
-- more closely.
function proc.cases(n) return math.ceil(n / patience) end

-- Removes folders of runs that were killed.
local function sweep()
  for folder in io.popen("ls -d /tmp/nightshift-spec-* 2>/dev/null"):lines() do
    local pid = folder:match "spec%-(%d+)%-"
    if pid and not nst.kill(tonumber(pid), "0") then nst.remove(folder) end
  end
end

local temporary -- has all temporary folders of this run; other users may pass through it

--- A new folder that only we may enter.
-- @treturn string path
function proc.folder()
  if not temporary then
    sweep()
    temporary = assert(nst.mkdtemp(("/tmp/nightshift-spec-%d-"):format((nst.ids()))))
    os.execute("chmod 711 " .. temporary)
  end
  return assert(nst.mkdtemp(temporary .. "/"))
end

--- The end of the run.
function proc.clean()
  if temporary then nst.remove(temporary) end
end

local Process = {}
Process.__index = Process
local running = {} -- pid -> Process

local function read(path)
  local file <close> = assert(io.open(path, "rb"))
  return file:read "a"
end

--- A TCP port that is free, below those that the kernel gives out.
function proc.free_port()
  local used = read "/proc/net/tcp" .. read "/proc/net/tcp6"
  local port
  repeat port = math.random(20000, 32000) until not used:find((":%04X "):format(port), 1, true)
  return port
end

--- Our environment with changes.
-- @tparam table changes name = value, or false to take a variable away
-- @treturn table list of "NAME=value"
local function environment(changes)
  local list = {}
  for _, entry in ipairs(nst.environ()) do
    if changes[entry:match "^[^=]*"] == nil then list[#list + 1] = entry end
  end
  for name, value in pairs(changes) do
    if value then list[#list + 1] = name .. "=" .. tostring(value) end
  end
  return list
end

-- What plain Lua needs to find the modules of this tree; and no settings.
local function defaults()
  return {
    LUA_PATH = ROOT .. "/lua/?.lua;" .. ROOT .. "/lua/?/init.lua;;",
    LUA_CPATH = proc.build .. "/?.so;;",
    NIGHTSHIFT_CONFIG = "/dev/null", -- whatever settings the user of this machine has
  }
end

--- Starts a program.
-- @tparam table options program and arguments as a list, and `env` (changes to
-- our environment), `cwd`, `stdin` (text), `keep` (never kill it by itself)
-- @treturn Process
function proc.start(options)
  local self = setmetatable({ folder = proc.folder(), args = options }, Process)
  local env = defaults()
  for name, value in pairs(options.env or {}) do env[name] = value end
  self.out, self.err = self.folder .. "/out", self.folder .. "/err"
  local input
  if options.stdin then
    input = self.folder .. "/in"
    local file <close> = assert(io.open(input, "wb"))
    file:write(options.stdin)
  end
  for _, path in ipairs { self.out, self.err } do assert(io.open(path, "wb")):close() end
  local list = { env = environment(env), cwd = options.cwd, stdin = input, stdout = self.out, stderr = self.err }
  for i, arg in ipairs(options) do list[i] = tostring(arg) end
  local pid, message = nst.spawn(list)
  if not pid then
    nst.remove(self.folder)
    error(message, 2)
  end
  self.pid, self.of_test, self.keep = pid, proc.in_test, options.keep
  running[pid] = self
  return self
end

--- Runs a program to its end.
-- @tparam table options as of start, and `timeout`
-- @treturn integer|string exit status, or "signal N"
-- @treturn string standard output
-- @treturn string standard error
function proc.run(options)
  local p = proc.start(options)
  local status = p:wait(options.timeout)
  local out, err = p:text()
  p:forget()
  return status, out, err
end

--- Runs the program nightshift: `proc.nightshift({"status", "--json"}, url)`.
-- @treturn integer|string, string, string as run
--- Why no spec can become another user here; nil: it can. That wants root, and a tree with its
-- build that all users can read.
function proc.closed_to_nobody()
  local _, euid = nst.ids()
  if euid ~= 0 then return "only root can become another user" end
  local look = { "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "test" }
  local readable = { "-r", proc.root .. "/lua/nightshift/init.lua", "-a", "-r", proc.build .. "/nightshift/core.so" }
  table.move(readable, 1, #readable, #look + 1, look)
  if proc.run(look) ~= 0 then return "no other user can read this folder" end
end

function proc.nightshift(args, url, more)
  local options = { proc.program, table.unpack(args) }
  for name, value in pairs(more or {}) do options[name] = value end
  options.env = options.env or {}
  options.env.NIGHTSHIFT_URL = url or false
  return proc.run(options)
end

--- The same, which has to end well and say nothing on standard error.
-- @treturn string standard output
function proc.succeeds(args, url, more)
  local exit, out, err = proc.nightshift(args, url, more)
  assert(exit == 0 and err == "", ("%s ended with %s: %s%s"):format(args[1], exit, err, out))
  return out
end

--- The same, which has to end with a status and say these texts on standard error.
-- @treturn string standard output
-- @treturn string standard error
function proc.fails(exit, args, url, ...)
  local status, out, err = proc.nightshift(args, url)
  assert(status == exit, ("%s ended with %s: %s%s"):format(args[1], status, err, out))
  for _, text in ipairs { ... } do assert(err:find(text, 1, true), err) end
  return out, err
end

--- Calls the command line in this process, for many cases: each start of the program costs the
-- processor 40 ms. A database is named by --url; its connection is closed at the end, as by the end
-- of a process. Standard output is no terminal.
-- @treturn integer exit code
-- @treturn string what came on standard output
-- @treturn string what came on standard error
function proc.command_line(argv)
  nst.setenv("NIGHTSHIFT_CONFIG", "/dev/null")
  local core, main = require "nightshift.core", require "nightshift.cli".main
  local open, terminal, opened = core.open, core.terminal, {}
  function core.open(...)
    local result = table.pack(open(...))
    opened[#opened + 1] = result[1] or nil
    return table.unpack(result, 1, result.n)
  end
  function core.terminal() end
  local out, err, stdout, stderr = assert(io.tmpfile()), {}, io.output(), io.stderr
  io.output(out)
  io.stderr = { write = function(_, ...) err[#err + 1] = table.concat { ... } end } -- luacheck: ignore 122
  local ok, exit = pcall(main, argv)
  io.output(stdout)
  io.stderr = stderr -- luacheck: ignore 122
  core.open, core.terminal = open, terminal
  for _, handle in ipairs(opened) do
    if handle:is_open() then handle:close() end
  end
  out:seek "set"
  local text = out:read "a"
  out:close()
  assert(ok, exit)
  return exit, text, table.concat(err)
end

-- Takes the end if it has come; true when it has.
function Process:ended()
  if not self.how then
    local how, number = nst.reap(self.pid)
    if how then self.how = how == "exit" and number or ("signal " .. number) end
  end
  return self.how ~= nil
end

local has_pidfd = true

-- Waits for one of the descriptors and the end of the process. Where pidfds
-- are missing (valgrind), only a moment.
local function wait_event(self, seconds, ...)
  local pidfd = has_pidfd and nst.pidfd(self.pid)
  has_pidfd = pidfd and true or false
  nst.poll(pidfd and seconds or math.min(seconds, 0.02), pidfd or -1, ...)
  if pidfd then nst.close(pidfd) end
end

--- Waits for the end.
-- @tparam[opt=60] number timeout seconds; raises when it takes longer
-- @treturn integer|string exit status, or "signal N"
function Process:wait(timeout)
  local stop = nst.clock() + proc.limit(timeout or 60)
  while not self:ended() do
    if nst.clock() >= stop then error(("%s does not end\n%s"):format(self.args[1], self:transcript()), 2) end
    wait_event(self, stop - nst.clock())
  end
  return self.how
end

--- Everything printed so far.
-- @treturn string standard output
-- @treturn string standard error
function Process:text() return read(self.out), read(self.err) end

function Process:transcript()
  local out, err = self:text()
  return ("--- its output (%s)\n%s--- its errors\n%s---"):format(self.how or "runs", out, err)
end

--- Waits until a line matches, in either output.
-- @tparam string pattern a Lua pattern
-- @tparam[opt=20] number timeout seconds; raises when it takes longer
-- @tparam[opt] integer count wait for that many such lines
-- @treturn string... captures of the (last counted) match, or the line
function Process:wait_line(pattern, timeout, count)
  local stop = nst.clock() + proc.limit(timeout or 20)
  local watch = nst.watch(self.out, self.err)
  local found
  repeat
    local over = self:ended() or nst.clock() >= stop -- before reading: nothing printed is missed
    local n = 0
    local out, err = self:text()
    for line in (out .. err):gmatch "[^\n]*\n" do
      line = line:sub(1, -2)
      if line:find(pattern) then
        n = n + 1
        if n == (count or 1) then found = table.pack(line:match(pattern)) end
      end
    end
    if not found and not over then wait_event(self, stop - nst.clock(), watch) end
  until found or over
  nst.close(watch)
  if found then return table.unpack(found, 1, found.n) end
  error(("no line like %q from %s\n%s"):format(pattern, self.args[1], self:transcript()), 2)
end

--- Sends a signal by name: "TERM", "KILL", "STOP", …
function Process:signal(name) return nst.kill(self.pid, name) end

--- Kills it with its process group and removes what it printed.
function Process:forget()
  if not self:ended() then
    nst.kill(-self.pid, "KILL")
    self:wait()
  end
  running[self.pid] = nil
  nst.remove(self.folder)
end

--- Ends the processes that the test started; with `every`, the rest as well.
function proc.forget_all(every)
  for _, p in pairs(running) do
    if not p.keep and (p.of_test or every) then p:forget() end
  end
end

--- A proxy in front of a spec's server that breaks connections in chosen ways;
-- spec/c/proxy.c says which. It ends with its test, like all processes.
--
--     local p = proc.proxy.start(db.shared())
--     local handle = assert(nightshift.open(p:url(url)))
--     p:tell "commit after 1"
--     handle:queue("q"):push("job")
--     assert.equal("yes", p:tell "fired")
local proxy = {}
local Proxy = {}
Proxy.__index = Proxy

--- Starts one.
-- @tparam Server server of spec/support/db.lua
-- @tparam[opt] string kind "tcp": it listens on a port, "tcp:ADDRESS": of that
-- address, else on a unix socket
-- @tparam[opt] string before words of the shell before its name
function proxy.start(server, kind, before)
  local self = setmetatable({ folder = proc.folder() }, Proxy)
  local fifo = self.folder .. "/fifo"
  assert(os.execute(("mkfifo %s.in %s.out"):format(fifo, fifo)))
  self.socket = self.folder .. "/p.sock"
  self.process = proc.start { "sh", "-c", "exec " .. (before or "") .. ' "$@"', "sh", proc.build .. "/proxy",
    kind or self.socket, server.socket, fifo }
  self.port = self.process:wait_line "^listening *(%d*)"
  self.commands, self.answers = assert(io.open(fifo .. ".in", "w")), assert(io.open(fifo .. ".out", "r"))
  self.commands:setvbuf "no"
  return self
end

--- A command; it is in force when this returns.
-- @treturn string the answer
function Proxy:tell(command)
  assert(self.commands:write(command, "\n"))
  local answer = assert(self.answers:read "l", "the proxy is gone")
  if answer == "unknown" then error("the proxy does not know " .. command, 2) end
  return answer
end

--- A URL of the server, with the way through the proxy in it.
function Proxy:url(url)
  if self.port == "" then return (url:gsub("unix_socket=[^&]*", "unix_socket=" .. self.socket)) end
  return (url:gsub("@localhost/", "@127.0.0.1:" .. self.port .. "/"):gsub("[?&]unix_socket=[^&]*", "?tls=off"))
end

--- The packets of the last trace: who sent each, and how many bytes had passed
-- when it ended.
-- @treturn table[] {who = "c"|"C"|"s", at = integer}
function Proxy:packets()
  local list = {}
  for who, at in self:tell("report"):gmatch "(%a)(%d+)" do list[#list + 1] = { who = who, at = math.tointeger(at) } end
  return list
end

proc.proxy = proxy

-- ------------------------------------------------------------------- journals

-- Append-only files that many processes write at once: attempts, acknowledgements, runs. A line
-- is one write with O_APPEND, so lines never mix and a writer that is killed leaves whole
-- lines. Words are separated by blanks and hold none; the second is the monotonic time.
--
-- Files of a torture: `pushes`, `runs`, `verbs`, `faults`; see the writers for their lines.
local journal = {}
proc.journal = journal

--- Opens a file for appending.
-- @tparam string folder
-- @tparam string name
-- @treturn function write(kind, ...), which adds a line
function journal.writer(folder, name)
  local file = assert(io.open(folder .. "/" .. name, "ab"))
  file:setvbuf "no" -- with a buffer a long line is two writes
  return function(kind, ...)
    local words = table.pack(kind, ("%.6f"):format(nst.clock()), ...)
    for i = 1, words.n do words[i] = tostring(words[i]) end
    assert(file:write(table.concat(words, " ") .. "\n"))
  end
end

--- The lines of a file as lists of words; the time is a number.
-- @treturn function iterator
function journal.lines(folder, name)
  local file = io.open(folder .. "/" .. name, "rb")
  if not file then return function() end end
  return function()
    local line = file:read "l"
    if not line then
      file:close()
      return nil
    end
    local words = {}
    for word in line:gmatch "%S+" do words[#words + 1] = word end
    words[2] = tonumber(words[2])
    return words
  end
end

return proc
