-- The processes of the bench: hosts and measuring programs, none of which outlives its parent.
-- Also which processes descend from one, and the processor time that it, or its reaped
-- children, have used. Times are seconds.
local processes = {}

local TICK = 0.01 -- of /proc, on every Linux there is

local function read(path)
  local file <close> = io.open(path)
  return file and file:read "a"
end

-- The fields of a line of /proc/PID/stat, from the third on: the name before
-- them may hold anything.
local function fields(line)
  local list = {}
  for word in line:match "^.*%) (.*)$":gmatch "%S+" do list[#list + 1] = word end
  return list
end

local PARENT, USER, SYSTEM, CHILD_USER, CHILD_SYSTEM = 2, 12, 13, 14, 15

--- All processes below `pid`, and itself.
function processes.below(pid)
  local pipe <close> = assert(io.popen "cat /proc/[0-9]*/stat 2>/dev/null")
  local parent = {}
  for line in pipe:lines() do
    local id = tonumber(line:match "^%d+")
    if id and line:find(") ", 1, true) then parent[id] = tonumber(fields(line)[PARENT]) end
  end
  local list = {}
  for id in pairs(parent) do
    local above = id
    while above and above ~= pid do above = parent[above] end
    if above then list[#list + 1] = id end
  end
  return list
end

local function seconds(path, user, system)
  local text = read(path)
  if not text then return 0 end
  local list = fields(text)
  return (tonumber(list[user]) + tonumber(list[system])) * TICK
end

--- The processor time of a live process, without children; 0 when it is gone.
function processes.used(pid)
  return seconds(("/proc/%d/stat"):format(pid), USER, SYSTEM)
end

--- The processor time of the reaped children of this process, and theirs.
function processes.children_used()
  return seconds("/proc/self/stat", CHILD_USER, CHILD_SYSTEM)
end

--- The process of the server that a handle is connected to.
function processes.server(db)
  local path = assert(db:execute "SELECT @@pid_file AS path")[1].path
  return assert(tonumber(read(path) or nil), "the server's process is not known")
end

--- A command for a shell that becomes it: should this process end, even be killed, the
-- kernel sends the command a signal.
---@param command string a program and its arguments
---@param signal string? KILL
function processes.tied(command, signal)
  return ("exec setpriv --pdeathsig %s %s"):format(signal or "KILL", command)
end

local host_methods = {}
local host_meta = { __index = host_methods, __close = function(self) self:stop() end }

local COMMAND = "echo $$; NIGHTSHIFT_URL='%s' %s 2>&1"
local WORK = "'%s/bin/nightshift' work %s --workers %d %s"

--- Starts `nightshift work` and waits until all its workers are there. Its first line
-- says its process, so that it can be told to end; the pipe is its log.
---@param asked {url: string, build: string, workers: integer, script: string?, options: string?}
function processes.start_host(asked)
  local work = WORK:format(asked.build, asked.script or "bench/questions/work.lua", asked.workers, asked.options or "")
  local pipe = assert(io.popen(COMMAND:format(asked.url, processes.tied(work, "QUIT"))))
  local self = setmetatable({ pid = assert(pipe:read "n"), pipe = pipe, log = {} }, host_meta)
  repeat
    local line = pipe:read "L"
    if not line then error("bench: the host does not start: " .. table.concat(self.log), 0) end
    table.insert(self.log, line)
  until line:find "host.ready"
  return self
end

--- Ends it and waits until it and all its processes are gone.
function host_methods:stop()
  if not self.pipe then return end
  os.execute("kill -TERM " .. self.pid)
  table.insert(self.log, self.pipe:read "a")
  local ended = self.pipe:close()
  self.pipe = nil
  if not ended then error("bench: the host failed: " .. table.concat(self.log), 0) end
end

return processes
