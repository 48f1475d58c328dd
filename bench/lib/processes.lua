-- What the bench asks /proc: which processes descend from one, and the processor
-- time that one, or those it has waited for, have used. Times are seconds.
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

--- What a process that lives has used itself; 0 when it is gone.
function processes.used(pid)
  return seconds(("/proc/%d/stat"):format(pid), USER, SYSTEM)
end

--- What the children of this process, and theirs, have used that were waited for.
function processes.children_used()
  return seconds("/proc/self/stat", CHILD_USER, CHILD_SYSTEM)
end

--- The process of the server that a handle is connected to.
function processes.server(db)
  local path = assert(db:execute "SELECT @@pid_file AS path")[1].path
  return assert(tonumber(read(path) or nil), "the server's process is not known")
end

return processes
