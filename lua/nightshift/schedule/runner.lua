--- The runner of schedules in a host: pushes the jobs of due ticks, and declares the schedules
-- of the host's scripts.
--
-- Any number of hosts look. A tick is pushed by the host that locks its row; the instant of the
-- next tick is written in the same transaction. So no tick is pushed twice, even if a host
-- dies, and the server's clock alone counts.

local calendar = require "nightshift.schedule.calendar"
local core = require "nightshift.core"
local failure = require "nightshift.failure"
local nightshift = require "nightshift"
local options = require "nightshift.options"
local schedule = require "nightshift.schedule"

---@class nightshift.schedule.Runner
---@field host table functions of the host: wait, declared, log, fired
---@field missing table<string, string[]> zones that this machine lacks, and schedules that it has left
local runner = {}
runner.__index = runner

-- Seconds.
local DECLARE = 3600 -- between signs that scripts still declare a schedule

local AT_ONCE = 100  -- schedules of one transaction, ...
local MOST = 1000    -- ... and about as many jobs; signs that one statement gives

local function ask(self, statement, ...) return self.handle:execute("@" .. statement, ...) end

local function machine()
  local file <close> = io.open "/proc/sys/kernel/hostname"
  return file and file:read "l" or "?"
end

-- ------------------------------------------------------------------------ ticks

--- The ticks that a row pushes now, and its next one: {row, def, ticks, next_at}. Without ticks:
-- this machine does not know its zone.
local function plan_of(row, most)
  local def, message, code = schedule.read(row.definition)
  if not def then return nil, message, code end
  if not calendar.zone(def.zone) then return { row = row, def = def } end
  local ticks = schedule.due(def, row.next_at, row.now)
  if #ticks > most then ticks = table.move(ticks, #ticks - most + 1, #ticks, 1, {}) end
  return { row = row, def = def, ticks = ticks, next_at = schedule.next(def, row.now, row.next_at) }
end

--- Jobs that still live of schedules which skip then, by name.
local function overlapping(self, plans)
  local keys, live = core.array {}, {}
  for _, plan in ipairs(plans) do
    if plan.def.overlap == "skip" then keys[#keys + 1] = { plan.def.queue, "schedule:" .. plan.row.name } end
  end
  if #keys == 0 then return live end
  local rows, message, code = ask(self, "schedule_live", core.encode(keys))
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do live[row.ukey] = true end
  return live
end

--- The entries of the core's push, by queue, and the plan of each.
local function entries_of(plans, live)
  local by_queue = {}
  for _, plan in ipairs(plans) do
    local skips = plan.def.overlap == "skip"
    local n = #plan.ticks
    if skips and n > 0 then n = live["schedule:" .. plan.row.name] and 0 or 1 end
    plan.skipped = #plan.ticks - n
    local list = by_queue[plan.def.queue] or { entries = {}, plans = {} }
    by_queue[plan.def.queue] = list
    for _ = 1, n do
      list.entries[#list.entries + 1] = schedule.entry(plan.row.name, plan.def)
      list.plans[#list.plans + 1] = plan
    end
  end
  return by_queue
end

local function push_all(self, plans)
  local live, message, code = overlapping(self, plans)
  if not live then return nil, message, code end
  for queue, list in pairs(entries_of(plans, live)) do
    local ids = {}
    if #list.entries > 0 then ids, message, code = self.handle:push(queue, list.entries) end
    if not ids then return nil, message, code end
    for i, id in ipairs(ids) do list.plans[i].last = id end
  end
  return true
end

--- Moves each row on: [[name, next_at, last_at, last_job, skipped], …].
local function move(self, plans)
  local list = core.array {}
  for i, plan in ipairs(plans) do
    list[i] = core.array { plan.row.name, plan.next_at or core.null, plan.last and plan.ticks[#plan.ticks] or core.null,
      plan.last or core.null, plan.skipped }
  end
  return ask(self, "schedule_move", core.encode(list, math.maxinteger))
end

--- Leaves schedules with zones that this machine does not know to hosts that know them. Their rows
-- say so, for the doctor.
local function leave(self, plans)
  local names = core.array {}
  for i, plan in ipairs(plans) do
    local name, where = plan.row.name, plan.def.zone
    names[i] = name
    self.missing[where] = self.missing[where] or core.array {}
    table.insert(self.missing[where], name)
    if not self.told_zones[where] then
      self.told_zones[where] = true
      self.host.log("warn", "schedule.no_zone", "name", name, "error", (select(2, calendar.zone(where))))
    end
  end
  return ask(self, "schedule_lack", core.encode(names), machine())
end

--- Takes schedules back with zones that this machine has got meanwhile.
local function take_back(self)
  for where, names in pairs(self.missing) do
    if calendar.zone(where) then
      local ok, message, code = ask(self, "schedule_lack", core.encode(names), nil)
      if not ok then return nil, message, code end
      self.missing[where] = nil
    end
  end
  return true
end

local function zones_of(missing)
  local list = core.array {}
  for where in pairs(missing) do list[#list + 1] = where end
  return core.encode(list)
end

--- Pushes the due ticks of up to n rows; returns how many rows.
local function fire(self, n)
  local rows, message, code = ask(self, "schedule_due", zones_of(self.missing), n)
  if not rows then return nil, message, code end
  local plans, left, jobs = {}, {}, 0
  self.first = rows[1] and rows[1].name
  for _, row in ipairs(rows) do
    if jobs >= MOST then break end
    local plan
    plan, message, code = plan_of(row, MOST)
    if not plan then return nil, message, code end
    table.insert(plan.ticks and plans or left, plan)
    jobs = jobs + #(plan.ticks or {})
  end
  local ok = true
  if #left > 0 then ok, message, code = leave(self, left) end
  if ok and #plans > 0 then ok, message, code = push_all(self, plans) end
  if ok and #plans > 0 then ok, message, code = move(self, plans) end
  if not ok then return nil, message, code end
  return #plans + #left
end

--- A schedule with a job that cannot be pushed has no ticks any more, until it is changed.
local function give_up(self, message)
  local name = self.first
  message = options.shown(message, 500)
  self.host.log("error", "schedule.failed", "name", name, "error", message)
  return ask(self, "schedule_fail", message, name)
end

--- Is it the schedule's own fault?
local function is_own(code) return code == "INVALID" or code == "TOO_BIG" or code == "FULL" end

--- Pushes the due jobs of up to n rows, in a transaction; how many rows. A raised error is one like
-- others: a definition that nobody can read is its schedule's own fault.
local function try_fire(self, n)
  local ran, count, message, code = pcall(schedule.transaction, self.handle, function() return fire(self, n) end)
  if ran then return count, message, code end
  message = tostring(count)
  return nil, message, message == "not enough memory" and "NOMEM" or "INVALID"
end

--- Pushes all due ticks.
local function fire_all(self)
  local at_once = AT_ONCE
  repeat
    local n, message, code = try_fire(self, at_once)
    local alone = at_once == 1
    if not n and is_own(code) then
      n, at_once = true, 1
      if alone then n, message, code = give_up(self, message) end
    end
    if not n then return nil, message, code end
  until n == 0
  return true
end

-- ------------------------------------------------------------------ declarations

--- Logs the outcome of a declaration once.
local function tell(self, name, what)
  if self.told[name] == what then return end
  self.told[name] = what
  if what == "added" then self.host.log("info", "schedule.added", "name", name) end
  if what == "changed" then self.host.log("info", "schedule.changed", "name", name) end
  if what == "superseded" then self.host.log("warn", "schedule.superseded", "name", name) end
  if what == "taken" then self.host.log("warn", "schedule.taken", "name", name) end
end

--- Gives a sign for the schedules of a list, in order, that stand as they are declared; the rest.
local function sign(self, list)
  local names, told, rest, rows = core.array {}, core.array {}, {}, {}
  for i, one in ipairs(list) do names[i] = one.name end
  local found, message, code = ask(self, "schedule_declared", core.encode(names))
  if not found then return nil, message, code end
  for _, row in ipairs(found) do rows[row.name] = row end
  for _, one in ipairs(list) do
    local row = rows[one.name]
    if row and schedule.same_as(row.definition, one.schedule) then
      told[#told + 1] = core.array { one.name, row.version }
    else
      rest[#rest + 1] = one
    end
  end
  if #told == 0 then return rest end
  found, message, code = ask(self, "schedule_sign", core.encode(told, math.maxinteger), self.version)
  if not found then return nil, message, code end
  return rest
end

--- Declares the schedules of a list: a sign for all that stay, each other one by itself.
local function declare_some(self, list)
  local rest, message, code = sign(self, list)
  if not rest then return nil, message, code end
  for _, one in ipairs(rest) do
    local what
    what, message, code = schedule.put(self.handle, one.name, one.schedule, self.version)
    if not what then return nil, message, code end
    tell(self, one.name, what)
  end
  return true
end

--- The schedules that the scripts of the host declare, by name. And whether the host has seen the
-- server for an hour without a gap.
local function look(self)
  local text, generation, age = self.host.declared()
  local now, message, code = self.handle:now()
  if not now then return nil, message, code end
  if generation ~= self.generation then
    self.generation, self.version, self.told = generation, math.tointeger(now - age * 1000000 // 1), {}
  end
  if not self.seen or now - self.seen > 2 * DECLARE * 1000000 then self.since = now end
  self.seen = now
  local list = core.decode(text)
  table.sort(list, function(a, b) return a.name < b.name end)
  return list, now - self.since >= DECLARE * 1000000
end

--- Declares the schedules of the scripts, and ends schedules that no host has declared for a day. A
-- host that comes back to the server ends none for an hour: others may have been away, too.
local function declare(self)
  local list, steady, code = look(self)
  if not list then return nil, steady, code end
  for i = 1, #list, MOST do
    local ok, message, why = declare_some(self, table.move(list, i, math.min(i + MOST - 1, #list), 1, {}))
    if not ok then return nil, message, why end
  end
  if not steady then return true end
  local rows, message
  rows, message, code = ask(self, "schedule_forgotten", schedule.ENDS)
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do
    local result
    result, message, code = ask(self, "schedule_end", row.name, row.declared)
    if not result then return nil, message, code end
    if result.affected == 1 then self.host.log("info", "schedule.ended", "name", row.name) end
  end
  return true
end

-- ------------------------------------------------------------------------- life

local function round(self)
  local _, generation = self.host.declared()
  local now = core.clock()
  local ok, message, code = take_back(self)
  if not ok then return nil, message, code end
  if generation ~= self.generation or now >= self.declare_at then
    ok, message, code = declare(self)
    if not ok then return nil, message, code end
    self.declare_at = now + DECLARE
    self.missing = {} -- their rows say so anew
  end
  ok, message, code = fire_all(self)
  if not ok then return nil, message, code end
  local untold = self.handle:tell() -- the next tick may be a day away
  return math.min(self.declare_at - core.clock(), untold > 0 and untold / 1000000 or DECLARE)
end

--- Works until the host ends.
function runner:run()
  local host = self.host
  failure.rounds(function(seconds, failed)
    host.fired()
    return host.wait(seconds, failed, self.generation)
  end, function() return round(self) end, function(text)
    if text then host.log("error", "schedule.error", "error", text) end
  end)
  self.db:close()
end

--- A runner on an open database.
---@param db {close: fun(self)} closed at its end
---@param handle userdata core handle
---@param host table
---@return nightshift.schedule.Runner
function runner.new(db, handle, host)
  return setmetatable({ db = db, handle = handle, host = host, told = {}, told_zones = {}, missing = {},
    declare_at = -math.huge, generation = 0 }, runner)
end

--- Opens the runner.
---@param connection table options of nightshift.open
---@param host table
---@return nightshift.schedule.Runner|nil
---@return string? message
---@return string? code
function runner.open(connection, host)
  local db, message, code = nightshift.open(connection)
  if not db then return nil, message, code end
  return runner.new(db, db._handle, host)
end

return runner
