--- The programs of a torture: the server, hosts, claimers, pushers, the meddler, the signaller,
-- the pruner, and the reader of a host's log. Keeps them running: a program that ends is
-- started again under a new name, and an unexpected end is a finding.
-- And the monkey that breaks them: which parts, how often, and how. Each fault is recorded with the
-- members it touches before it happens. So the audit can tell an execution that was repeated
-- for a reason from one that was not.

local nightshift = require "nightshift"
local nst = require "nst"
local checks = require "spec.torture.checks"
local host = require "spec.support.host"
local journal = require "spec.support.proc".journal
local proc = require "spec.support.proc"

local Cast = {}
Cast.__index = Cast

local function shell(format, ...)
  local words = table.pack(...)
  for i = 1, words.n do words[i] = "'" .. tostring(words[i]) .. "'" end
  return os.execute(format:format(table.unpack(words, 1, words.n)))
end

--- @tparam table options server, url, folder, seed, workers, mark (a text in
-- each member's environment, by which orphans are found), way (the proxy that the
-- members of place 1 reach the server by)
local function new(options)
  local self = setmetatable(options, Cast)
  self.members, self.made, self.findings, self.tally = {}, 0, {}, {}
  self.note = journal.writer(self.folder, "faults")
  assert(shell("mkdir -p %s", self.folder .. "/tmp"))
  return self
end

function Cast:found(kind, format, ...)
  table.insert(self.findings, { kind = kind, text = format:format(...) })
end

--- A fault is written down before it happens.
-- @tparam string how
-- @tparam string|integer ... what it touches: process ids, names, "server"
function Cast:fault(how, ...)
  self.count = (self.count or 0) + 1
  self.note("fault", how, ...)
end

local function url_of(self, place) return place == 1 and self.way:url(self.url) or self.url end

function Cast:environment(name, place)
  return {
    NIGHTSHIFT_URL = url_of(self, place), TORTURE_FOLDER = self.folder, TORTURE_SEED = self.seed, TORTURE_WHO = name,
    TORTURE_DATABASE = self.database, TORTURE_MARK = self.mark, TORTURE_FAULTS = self.groups,
    TMPDIR = self.folder .. "/tmp",
    LUA_PATH = ("%s/?.lua;%s/lua/?.lua;%s/lua/?/init.lua;;"):format(proc.root, proc.root, proc.root),
  }
end

-- What hosts differ in. Workers of the second and the third leave in their own time, and
-- the log of the second is read slowly. These two adopt a table.
local HOSTS = {
  {},
  { "--queues", "a=3,b=1,c=1,limited=2,ordered=2", "--recycle", 7, slow_log = true, adopts = true },
  { "--queues", "a=1,b=3,c=2,limited=1,ordered=1", "--recycle-memory", "12M", "--reserve", "a=1",
    adopts = true },
}

local function kind_of_host(place) return HOSTS[(place - 1) % #HOSTS + 1] end

local function arguments(self, kind, place, name)
  local seed = self.seed + self.made
  local program = proc.root .. "/spec/torture/programs.lua"
  local url = url_of(self, place)
  if kind == "claimer" then return { proc.lua, program, kind, url, seed } end
  if kind == "pusher" then return { proc.lua, program, kind, url, seed, self.folder, name } end
  if kind == "meddler" then return { proc.lua, program, kind, self.url, seed, self.folder } end
  if kind == "pruner" then return { proc.lua, program, kind, self.url, seed, self.folder, name } end
  if kind == "owner" then return { proc.lua, program, kind, self.url, seed, self.folder, name } end
  if kind == "signaller" then return { proc.lua, program, kind, self.url, self.folder } end
  local args = { proc.program, "work", proc.root .. "/spec/torture/outcomes.lua", "--workers", self.workers,
    "--drain-timeout", "3s" }
  local more = kind_of_host(place)
  if more.adopts then table.move({ "--adopt", self.folder .. "/rows.lua" }, 1, 2, #args + 1, args) end
  return table.move(more, 1, #more, #args + 1, args)
end

-- Starts a program that writes its log into a pipe, and who reads that slowly. What has
-- been read is where the log of a process is.
local function start_read(self, name, options)
  local pipe = ("%s/%s.pipe"):format(self.folder, name)
  assert(shell("mkfifo %s", pipe))
  local reader = proc.start { proc.lua, proc.root .. "/spec/torture/programs.lua", "reader", pipe, env = options.env }
  local process = proc.start { "sh", "-c", ('exec "$@" 2>\'%s\''):format(pipe), "sh", env = options.env,
    table.unpack(options) }
  process.err, reader.pipe = reader.out, pipe
  return process, reader
end

-- A host that was killed before it opened its pipe: the reader still waits for that.
local function let_go(reader)
  if not reader:ended() then assert(io.open(reader.pipe, "r+")):close() end
end

--- Starts a member.
-- @tparam string kind "host", "claimer", "pusher", "meddler", "owner", "signaller", "pruner"
-- @tparam integer place its number among its kind
function Cast:start(kind, place)
  self.made = self.made + 1
  local name = ("%s%d"):format(kind == "host" and "host" or "program", self.made)
  local options = arguments(self, kind, place, name)
  options.env = self:environment(name, place)
  local member = { kind = kind, place = place, name = name, since = nst.clock() }
  local start = kind == "host" and kind_of_host(place).slow_log and start_read
    or function(_, _, given) return proc.start(given) end
  member.process, member.reader = start(self, name, options)
  member.pid = member.process.pid
  table.insert(self.members, member)
  self.note("start", kind, name, member.pid)
  return member
end

--- Members of a kind that run.
function Cast:all(kind)
  local list = {}
  for _, member in ipairs(self.members) do
    if member.kind == kind then list[#list + 1] = member end
  end
  return list
end

--- One of them; nil: there is none.
function Cast:any(kind)
  local list = self:all(kind)
  return list[1] and list[math.random(#list)]
end

-- A host may refuse to start while the server is away, and end with 1 when it cannot write its
-- verdicts. Then the server is away, or a session that is cut off has locked their rows. A
-- member that was killed or told to stop ends as that wants; claimers end by their jobs.
local function explained(self, member, how)
  if self.cut_off then self.network_fault = nst.clock() end
  local held = math.max(self.server_fault or -math.huge, self.network_fault or -math.huge)
  local away = member.place == 1 and held or self.server_fault or -math.huge
  if member.expected == true or member.expected == how then return true end
  if member.kind == "claimer" then
    return how == "signal 9" or how == "signal 11" or how == 3 or (how == 0 and self.over)
  elseif member.kind ~= "host" then
    return how == 0 and self.over
  end
  -- it was starting, or its handlers were being loaded
  if member.asked and (how == "signal 15" or how == "signal 3") or member.unloaded and how == 78 then
    return not select(2, member.process:text()):find "event=host.ready"
  end
  if how == 69 and (self.kill_fault or -math.huge) > member.since - 10 then return true end -- as it started
  return how == 69 and away > member.since - 10 or how == 1 and member.asked and held > member.asked - 10
end

local function keep_output(self, member)
  for _, which in ipairs { "out", "err" } do
    shell("cp %s %s", member.process[which], ("%s/%s.%s"):format(self.folder, member.name, which))
  end
end

-- The counters of its last dump.
local function tally(self, member)
  local _, log = member.process:text()
  local dumps = host.events(log, "dump.host")
  local last = dumps[#dumps] or {}
  for _, name in ipairs { "claimed", "settled", "stale", "deadlocks", "lock_waits", "reconnects" } do
    self.tally[name] = (self.tally[name] or 0) + (tonumber(last[name]) or 0)
  end
end

local function bury(self, member)
  local how = member.process.how
  if not explained(self, member, how) then
    local _, err = member.process:text()
    self:found("exit", "%s (%s, process %d) ended with %s: %s", member.name, member.kind, member.pid, how,
      err:sub(-300):gsub("%s+$", ""))
  end
  if member.kind == "host" then tally(self, member) end
  keep_output(self, member)
  self.note("end", how == 0 and "well" or "otherwise", member.name)
  member.process:forget()
  if member.reader then member.reader:forget() end
end

-- The reader of its log has read it.
local function has_ended(member)
  if not member.process:ended() then return false end
  if member.reader then let_go(member.reader) end
  return not member.reader or member.reader:ended()
end

-- Until all jobs have ended.
local STAYS = { host = true, signaller = true }

--- Takes the dead away and starts new ones for them, unless it is over.
function Cast:tend()
  for i = #self.members, 1, -1 do
    local member = self.members[i]
    if has_ended(member) then
      table.remove(self.members, i)
      bury(self, member)
      if not self.over or STAYS[member.kind] and not self.leaving then self:start(member.kind, member.place) end
    end
  end
end

--- Hosts that have started: before that a signal like USR1 ends them.
function Cast:ready_hosts()
  local list = {}
  for _, member in ipairs(self:all "host") do
    member.ready = member.ready or select(2, member.process:text()):find "event=host.ready" ~= nil
    if member.ready then list[#list + 1] = member end
  end
  return list
end

--- Waits until all of a kind have ended; kills them, a finding, when they do not.
function Cast:dismiss(kind, seconds)
  local stop = nst.clock() + seconds
  while #self:all(kind) > 0 and nst.clock() < stop do
    nst.sleep(0.05)
    self:tend()
  end
  for _, member in ipairs(self:all(kind)) do
    self:found("stuck", "%s (%s, process %d) did not end within %d s", member.name, kind, member.pid, seconds)
    member.expected = true
    member.process:signal "KILL"
    member.process:wait()
    if member.reader then
      let_go(member.reader)
      member.reader:wait()
    end
  end
  self:tend()
end

local QUEUES <const> = { "a", "b", "c" }

local function item(tag, kind)
  return { kind == "bulk" and "bulk" or "work", { tag = tag, kind = kind },
    { backoff = 0.2, max_attempts = 3, timeout = proc.limit(30), max_polls = 6, max_crashes = 3 } }
end

--- Pushes many jobs of one kind at once into one queue, written down as a pusher's are. What
-- such a job does is not left to chance: kinds are those of outcomes.lua.
-- @tparam string kind
-- @tparam integer n
-- @tparam[opt] string queue else one of its choice
-- @treturn boolean whether they are there; false too when it is not known
function Cast:push_burst(kind, n, queue)
  local handle <close> = nightshift.open(self.url)
  if not handle then return false end
  self.pushes = self.pushes or journal.writer(self.folder, "pushes")
  self.bursts = (self.bursts or 0) + 1
  local tag, items = ("burst.%d"):format(self.bursts), {}
  for i = 1, n do items[i] = item(("%s.%d"):format(tag, i), kind) end
  self.pushes("intend", tag, "bulk", n)
  local ids, _, code = handle:queue(queue or QUEUES[math.random(3)]):push_many(items)
  if ids then self.pushes("acked", tag, table.concat(ids, ","))
  else self.pushes(code == "GONE" and "doubt" or "refused", tag, code or "NONE") end
  return ids ~= nil
end

--- Processes of ours that live: those with the mark in their environment.
-- @treturn table list of "pid name"
function Cast:strays()
  local list = {}
  for entry in io.popen "ls /proc":lines() do
    local file = entry:match "^%d+$" and io.open("/proc/" .. entry .. "/environ", "rb")
    if file then
      local text = file:read "a" or ""
      file:close()
      if text:find("TORTURE_MARK=" .. self.mark, 1, true) and host.name(tonumber(entry)) then
        list[#list + 1] = entry .. " " .. host.name(tonumber(entry))
      end
    end
  end
  return list
end

-- ------------------------------------------------------------------ the monkey

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

--- The monkey: chooses among the faults of some groups.
-- @tparam string groups names, in one text; "all" for every one
-- @treturn function() one fault; its name is returned
function Cast:monkey(groups)
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
        f.run(self)
        return f.name
      end
    end
  end
end

return new
