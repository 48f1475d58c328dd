--- The programs of a torture: the server, hosts, claimers, pushers, the meddler, the signaller,
-- the pruner, and the reader of a host's log. Keeps them running: a program that ends is
-- started again under a new name, and an unexpected end is a finding.

local nightshift = require "nightshift"
local nst = require "nst"
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
local function cast(options)
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

return cast
