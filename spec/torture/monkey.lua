--- The monkey: which parts it breaks, how often, and how. Each fault is recorded with the
-- members it touches before it happens. So the audit can tell an execution that was repeated
-- for a reason from one that was not.

local nightshift = require "nightshift"
local nst = require "nst"
local checks = require "spec.torture.checks"
local host = require "spec.support.host"

local monkey = {}
local faults = {}

local function kill_member(cast, kind, signal)
  local member = cast:any(kind)
  if not member then return end
  cast:fault(kind .. "-" .. signal, member.name, member.pid)
  member.expected = true
  member.process:signal(signal)
  return member
end

local function parent(pid)
  local file <close> = io.open(("/proc/%d/stat"):format(pid), "rb")
  return file and tonumber(file:read("a"):match "%) %a (%d+)")
end

-- Process ids below a host. What a worker has forked is called ns-worker too,
-- until it becomes the program it is for; that is not meant.
local function members(member, name)
  local list = {}
  for _, pid in ipairs(member and host.members(member.pid, name) or {}) do
    local above = parent(pid)
    if above and host.name(above) ~= name then list[#list + 1] = pid end
  end
  return list
end

-- A process below a host.
local function below(cast, name, signal)
  local member = cast:any "host"
  local list = members(member, name)
  local pid = list[math.random(math.max(#list, 1))]
  if not pid then return end
  if name == "ns-worker" then
    cast:fault("worker-" .. signal, pid)
  else
    cast:fault(name .. "-" .. signal, pid, member.name)
  end
  if name == "ns-zygote" or name == "ns-keeper" then member.unloaded = true end
  if name == "ns-keeper" then member.expected = member.asked and true or 1 end
  nst.kill(pid, signal)
end

local function kill_all_workers(cast)
  local member = cast:any "host"
  for _, pid in ipairs(members(member, "ns-worker")) do
    cast:fault("worker-KILL", pid)
    nst.kill(pid, "KILL")
  end
end

-- Stops a member, and has it continued later.
local function stop_member(cast, kind, seconds)
  local member = cast:any(kind)
  if not member or member.stopped then return end
  member.stopped = true
  cast:fault(kind .. "-STOP", member.name, member.pid)
  member.process:signal "STOP"
  cast:later(seconds, function()
    if member.process:ended() then return end
    cast:fault(kind .. "-CONT", member.name, member.pid)
    member.process:signal "CONT"
    member.stopped = nil
  end, true)
end

-- TERM, and TERM again or QUIT when it says so; it ends with 0.
local function ask_host(cast, first, second)
  local member = cast:any "host"
  if not member or member.expected then return end
  cast:fault("host-" .. first, member.name)
  member.expected, member.asked = 0, nst.clock()
  member.process:signal(first)
  cast:later(math.random(), function()
    if second and not member.process:ended() then member.process:signal(second) end
  end)
  cast:later(60, function()
    if member.process:ended() or member.stopped then return end
    cast:found("stuck", "%s did not end within 60 s of %s", member.name, first)
    member.expected = true
    member.process:signal "KILL"
  end)
end

local function server(cast, how, away)
  cast:fault("server-" .. how, "server")
  cast.server_fault = nst.clock()
  cast.server[how](cast.server)
  nst.sleep(away)
  if how == "freeze" then cast.server:thaw() else cast.server:start() end
  cast.server_fault = nst.clock()
  cast:fault("server-back", "server")
end

-- The members of place 1 lose the server: nothing passes, or all their
-- connections close.
local function network(cast, how, seconds)
  if cast.cut_off then return end
  local function note(what)
    cast.network_fault = nst.clock()
    local names = {}
    for _, member in ipairs(cast.members) do
      if member.place == 1 then names[#names + 1] = member.name end
    end
    cast:fault(what, table.unpack(names))
  end
  note("network-" .. how)
  cast.way:tell(how)
  if how == "close" then return end
  cast.cut_off = true
  cast:later(seconds, function()
    note "network-thaw"
    cast.way:tell "thaw"
    cast.cut_off = false
  end, true)
end

-- Sessions are cut by the server: one, or all of them.
local function cut(cast, n)
  cast:fault("sessions-cut", "server")
  local ok, list = pcall(cast.server.sql, cast.server,
    "SELECT id FROM information_schema.processlist WHERE user = 'torture' ORDER BY RAND() LIMIT " .. n)
  if not ok then return end
  local text = {}
  for id in list:gmatch "%d+" do text[#text + 1] = ("KILL %s;"):format(id) end
  for _, statement in ipairs(text) do pcall(cast.server.sql, cast.server, statement) end
end

-- Statements are cut, whatever they are and whosever: that costs no claim, so it touches no
-- member. Who is told GONE or BUSY may have to let go of one.
local function cut_statements(cast)
  local ok, handle = pcall(nightshift.open, cast.url)
  if not ok or not handle then return end
  cast:fault("statements-cut", "statements")
  cast.kill_fault = nst.clock()
  local list = handle:execute [[SELECT id FROM information_schema.processlist
    WHERE user = 'torture' AND id <> CONNECTION_ID()]] or {}
  for _ = 1, #list > 0 and 300 or 0 do
    if handle:execute("KILL QUERY " .. list[math.random(#list)].id) then cast.kills = (cast.kills or 0) + 1 end
    nst.sleep(math.random() * 0.002)
  end
  cast.kill_fault = nst.clock()
  handle:close()
end

local function reload(cast, member)
  if member.process:ended() then return end
  cast.reloads = (cast.reloads or 0) + 1
  member.process:signal "HUP"
end

-- HUP every second, among jobs that last longer: workers of many scripts at once.
local function reload_each_second(cast)
  local list = cast:ready_hosts()
  local member = list[math.random(math.max(1, #list))]
  if not member or member.reloading then return end
  member.reloading = true
  cast:push_burst("long", 2 * cast.workers)
  for second = 0, 9 do cast:later(second, function() reload(cast, member) end) end
  cast:later(10, function() member.reloading = nil end)
end

-- All workers are to leave while they have many short jobs in their hands.
local function leave_with_full_windows(cast)
  if not cast:push_burst("quick", 500) then return end
  nst.sleep(math.random() * 0.3)
  for _, member in ipairs(cast:ready_hosts()) do reload(cast, member) end
end

-- Jobs for handlers that take batches, some of which kill their worker in the middle of one.
local function push_for_batches(cast) cast:push_burst("bulk", 100) end

-- More lines than who reads slowly can read. Now and then it is not read for a while.
local function flood_log(cast) cast:push_burst("logs", 200) end

local function stop_reader(cast)
  local list = {}
  for _, member in ipairs(cast:ready_hosts()) do
    if member.reader and not member.reader.stopped then list[#list + 1] = member end
  end
  local member = list[math.random(math.max(1, #list))]
  if not member then return end
  local reader = member.reader
  reader.stopped = true
  cast:fault("reader-STOP", member.name)
  reader:signal "STOP"
  cast:later(math.random() * 4, function()
    reader.stopped = nil
    cast:fault("reader-CONT", member.name)
    reader:signal "CONT"
  end, true)
end

local function fault(name, weight, group, run)
  faults[#faults + 1] = { name = name, weight = weight, group = group, run = run }
end

fault("worker killed", 30, "worker", function(cast) below(cast, "ns-worker", "KILL") end)
fault("worker stopped", 2, "worker", function(cast) below(cast, "ns-worker", "STOP") end)
fault("all workers killed", 2, "worker", kill_all_workers)
fault("zygote killed", 3, "worker", function(cast) below(cast, "ns-zygote", "KILL") end)
fault("keeper killed", 2, "host", function(cast) below(cast, "ns-keeper", "KILL") end)
fault("scripts read again", 2, "worker", function(cast)
  local list = cast:ready_hosts()
  if #list > 0 then list[math.random(#list)].process:signal "HUP" end
end)
fault("host quiet for a while", 2, "worker", function(cast)
  local list = cast:ready_hosts()
  local member = list[math.random(math.max(1, #list))]
  if not member then return end
  member.process:signal "TSTP"
  cast:later(math.random() * 3, function()
    if not member.process:ended() then member.process:signal "CONT" end
  end, true)
end)
fault("host drained", 5, "drain", function(cast) ask_host(cast, "TERM") end)
fault("host told twice", 2, "drain", function(cast) ask_host(cast, "TERM", "TERM") end)
fault("host stopped at once", 2, "drain", function(cast) ask_host(cast, "QUIT") end)
fault("host killed", 8, "host", function(cast) kill_member(cast, "host", "KILL") end)
fault("host frozen for a moment", 4, "freeze", function(cast) stop_member(cast, "host", math.random() * 4) end)
fault("host frozen until it is given up", 1, "host", function(cast)
  stop_member(cast, "host", 35 + math.random() * 10)
end)
fault("pusher killed", 4, "program", function(cast) kill_member(cast, "pusher", "KILL") end)
fault("owner killed", 2, "program", function(cast) kill_member(cast, "owner", "KILL") end)
fault("meddler killed", 1, "program", function(cast) kill_member(cast, "meddler", "KILL") end)
fault("claimer killed", 4, "host", function(cast) kill_member(cast, "claimer", "KILL") end)
fault("claimer told to end", 1, "host", function(cast) kill_member(cast, "claimer", "TERM") end)
fault("claimer frozen for a moment", 2, "freeze", function(cast) stop_member(cast, "claimer", math.random() * 4) end)
fault("server killed", 2, "server", function(cast) server(cast, "kill", math.random() * 2) end)
fault("server restarted", 1, "server", function(cast) server(cast, "stop", math.random() * 3) end)
fault("server frozen", 2, "server", function(cast) server(cast, "freeze", math.random() * 3) end)
fault("network frozen for a moment", 3, "freeze", function(cast) network(cast, "freeze", math.random() * 5) end)
fault("network cut until the host is given up", 1, "host", function(cast)
  network(cast, "freeze", 35 + math.random() * 10)
end)
fault("connections stranded", 1, "freeze", function(cast) network(cast, "strand", math.random() * 10) end)
fault("connections closed", 2, "freeze", function(cast) network(cast, "close") end)
fault("statements cut", 8, "kill", cut_statements)
fault("reloaded every second", 3, "reload", reload_each_second)
fault("full windows at a reload", 4, "reload", leave_with_full_windows)
fault("jobs for batches", 4, "worker", push_for_batches)
fault("log flooded", 3, "log", flood_log)
fault("log not read for a while", 3, "log", stop_reader)
fault("large old tree", 2, "prune", checks.old_tree.plant)
fault("pruner killed", 3, "prune", function(cast) kill_member(cast, "pruner", "KILL") end)
fault("signaller killed", 1, "program", function(cast) kill_member(cast, "signaller", "KILL") end)
fault("session cut", 6, "server", function(cast) cut(cast, 1) end)
fault("all sessions cut", 1, "server", function(cast) cut(cast, 1000) end)

--- Chooses among the faults of some groups.
-- @tparam string groups names, in one text; "all" for every one
-- @treturn function() one fault; its name is returned
function monkey.new(cast, groups)
  local list, total = {}, 0
  for _, f in ipairs(faults) do
    if groups == "all" or groups:find(f.group, 1, true) then
      list[#list + 1] = f
      total = total + f.weight
    end
  end
  return function()
    local at = math.random() * total
    for _, f in ipairs(list) do
      at = at - f.weight
      if at < 0 then
        f.run(cast)
        return f.name
      end
    end
  end
end

return monkey
