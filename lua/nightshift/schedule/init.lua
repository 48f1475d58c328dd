--- Recurring jobs: what a schedule is, the verbs on schedules, and writing their rows.
--
-- A schedule is a row of nightshift_schedule with its definition and the instant of its next
-- tick. Hosts push its jobs: see runner.lua. It is either a program's (db:schedule), or
-- declared by handler scripts. Then it has the instant at which the scripts were loaded, and
-- the newest scripts count.
--
-- A definition says when it ticks, and which job each tick pushes. The row keeps it as JSON.
-- Durations in it are microseconds, as everywhere in tables.
--
-- Invariants: a schedule whose times stay the same keeps the instant of its next tick. A definition
-- that was accepted once has an expression that can be read, and a zone that the machine knew which
-- accepted it. So only a hand can break it later (`read` says so), and only a machine without the
-- zone cannot tell its ticks.

local audit = require "nightshift.audit"
local calendar = require "nightshift.schedule.calendar"
local core = require "nightshift.core"
local failure = require "nightshift.failure"
local options = require "nightshift.options"

local schedule = {}

local SECOND <const> = 1000000

---@class nightshift.Schedule
---@field cron string?
---@field every integer? µs
---@field zone string
---@field queue string
---@field job string name
---@field payload any
---@field options table<string, integer> of the push, durations in µs
---@field missed "one"|"all"|"none"
---@field overlap "allow"|"skip"

schedule.QUEUE = "default"

local LATE <const> = 60 * SECOND -- a tick that is older has been missed
local MOST <const> = 1000 -- ticks that are made up for

local raise = options.raise

-- ---------------------------------------------------------- definitions: checks

local CENTURY = 3155760000 * SECOND

local function period(value, what)
  local us, message = options.duration(value, what)
  if not us then return nil, message end
  if us >= SECOND and us <= CENTURY then return us end
  return nil, ("%s must be a second or more, and at most 100 years, got %s"):format(what, value)
end

local WHEN = {
  cron = options.typed "string", every = period, zone = options.typed "string",
  missed = options.one_of("one", "all", "none"), overlap = options.one_of("allow", "skip"),
}

-- The options of a schedule's push.
local PUSH = { queue = options.typed "string" }
for _, name in ipairs { "priority", "decay", "max_attempts", "max_polls", "max_phases", "max_crashes", "backoff",
  "timeout", "deadline", "group" } do
  PUSH[name] = options.PUSH[name]
end

local function check_when(verb, given)
  local when, message, code = options.read(verb, given, WHEN)
  if not when then return nil, message, code end
  if (when.cron == nil) == (when.every == nil) then
    raise("%s: give either cron, like '0 3 * * *', or every, like '10m'", verb)
  end
  local expression, where
  if when.cron then
    expression, message, code = calendar.parse(when.cron)
    if not expression then return nil, verb .. ": " .. message, code end
  elseif when.zone then
    raise("%s: zone goes with cron; every counts the time that passes", verb)
  end
  when.zone = when.zone or "UTC"
  where, message, code = calendar.zone(when.zone)
  if not where then return nil, verb .. ": " .. message, code end
  if expression and not calendar.next(expression, os.time(), where) then
    return nil, ("%s: cron '%s' names a day that does not come within eight years"):format(verb, when.cron), "INVALID"
  end
  return when
end

--- Makes a definition of checked parts.
local function make(when, name, payload, entry)
  local queue = entry.queue or schedule.QUEUE
  entry.name, entry.payload, entry.queue = nil, nil, nil
  return { cron = when.cron, every = when.every, zone = when.zone, missed = when.missed or "one",
    overlap = when.overlap or "allow", queue = queue, job = name, payload = payload, options = entry }
end

local function check_queue(verb, queue)
  if queue == nil then return true end
  return options.name(verb .. ": queue", queue, options.MAX_QUEUE)
end

--- Checks the options of db:schedule.
---@param verb string
---@param given table {name =, cron = | every =, zone =, missed =, overlap =, push = {name, payload, options}}
---@return string|nil name
---@return nightshift.Schedule|string definition
---@return string? code
function schedule.check(verb, given)
  if type(given) ~= "table" then raise("%s wants a table, got %s", verb, type(given)) end
  local name, push, rest = given.name, given.push, {}
  if type(name) ~= "string" then raise("%s: name must be a string, got %s", verb, type(name)) end
  if type(push) ~= "table" or type(push[1]) ~= "string" then
    raise("%s: push must be {name, payload, options}, as of q:push", verb)
  end
  for key in pairs(push) do
    if key ~= 1 and key ~= 2 and key ~= 3 then
      raise("%s: push must be {name, payload, options}; it has '%s', too", verb, options.shown(tostring(key)))
    end
  end
  for key, value in pairs(given) do
    if key ~= "name" and key ~= "push" then rest[key] = value end
  end
  local ok, message, code = options.name(verb .. ": name", name, options.MAX_NAME)
  if ok then ok, message, code = options.name(verb .. ": job name", push[1], options.MAX_NAME) end
  if not ok then return nil, message, code end
  local when, entry
  when, message, code = check_when(verb, rest)
  if when then entry, message, code = options.entry(verb .. ": push", push[1], push[2], push[3], PUSH) end
  if entry then ok, message, code = check_queue(verb, entry.queue) end
  if not entry or not ok then return nil, message, code end
  return name, make(when, push[1], entry.payload, entry)
end

-- Fields of a handler that are its schedule's.
schedule.FIELDS = { cron = true, every = true, zone = true, missed = true, overlap = true, payload = true }

--- The schedule that a handler declares; nil: none. A fault raises, or is the message.
---@param name string of the handler
---@param handler table
---@param limits table its options: queue, priority, timeout, max_attempts, max_phases
---@return nightshift.Schedule|nil
---@return string? message
function schedule.declared(name, handler, limits)
  if handler.cron == nil and handler.every == nil then
    for field in pairs(schedule.FIELDS) do
      if handler[field] ~= nil then return nil, field .. " goes with cron or every" end
    end
    return nil
  end
  local given = {}
  for field in pairs(schedule.FIELDS) do given[field] = handler[field] end
  given.payload = nil
  local ok, when, message = pcall(check_when, "schedule", given)
  if not ok then return nil, (tostring(when):gsub("^.-nightshift: ", "")) end
  if not when then return nil, message end
  local payload = handler.payload
  if payload == nil then payload = core.null end
  return make(when, name, payload, { queue = limits.queue, priority = limits.priority, timeout = limits.timeout,
    max_attempts = limits.max_attempts })
end

-- ------------------------------------------------------- definitions: comparing

--- Do two texts say the same definition?
---@param a string JSON
---@param b string
function schedule.same(a, b) return a == b or options.same(core.decode(a), core.decode(b)) end

--- Does a text say a definition?
---@param text string JSON
---@param def nightshift.Schedule
function schedule.same_as(text, def) return options.same(core.decode(text), def) end

--- Does a text say when to tick as a definition does?
---@param text string JSON
---@param def nightshift.Schedule
function schedule.same_times(text, def)
  local other = core.decode(text)
  return type(other) == "table" and other.cron == def.cron and other.every == def.every and other.zone == def.zone
end

-- ----------------------------------------------------------- definitions: ticks

local last = {} -- the expression that was read last: after a tick the next ones are mostly asked for, too

local function expression_of(text)
  if last.text ~= text then last = { text = text, expression = calendar.parse(text) } end
  return last.expression
end

--- What makes a value no definition; nil: it is one.
local function fault_of(def)
  if type(def) ~= "table" then return "it is no object" end
  for _, field in ipairs { "job", "queue", "zone" } do
    if type(def[field]) ~= "string" then return field .. " is no text" end
  end
  if type(def.options) ~= "table" then return "options is no object" end
  for key, value in pairs(def.options) do
    if key == "group" then
      if type(value) ~= "string" then return "options.group is no text" end
    elseif math.type(value) ~= "integer" then
      return ("options.%s is no whole number"):format(key)
    end
  end
  if def.cron == nil then
    return not (math.type(def.every) == "integer" and def.every >= SECOND) and "every is no number of µs" or nil
  end
  return not (type(def.cron) == "string" and expression_of(def.cron)) and "cron cannot be read" or nil
end

--- The definition that a row has. A row may have been changed by hand.
---@param text string JSON
---@return nightshift.Schedule|nil
---@return string? message
---@return string? code
function schedule.read(text)
  local def = core.decode(text)
  local fault = fault_of(def)
  if fault then return nil, ("its definition cannot be read: %s"):format(fault), "INVALID" end
  return def
end

local function next_cron(def, after)
  local expression, where = expression_of(def.cron), calendar.zone(def.zone)
  local t = expression and where and calendar.next(expression, after / SECOND, where)
  return t and t * SECOND
end

--- The first tick after an instant; both in µs since 1970. Nil: there is none any more.
---@param def nightshift.Schedule
---@param after integer
---@param base integer? a tick, from which `every` counts; else from `after`
---@return integer?
function schedule.next(def, after, base)
  if def.cron then return next_cron(def, after) end
  base = base or after
  return base + ((after - base) // def.every + 1) * def.every
end

--- The last `most` ticks of a cron expression from `first`, a tick, until now. Looks back further
-- and further, so that a tick a second that was missed for a month costs no more than a few.
local function last_ticks(def, first, now, most)
  local expression, where = expression_of(def.cron), calendar.zone(def.zone)
  local back = 60
  while expression and where do
    local from = math.max(first, now - back * SECOND)
    local list, t = {}, calendar.next(expression, from / SECOND - 1, where)
    while t and t * SECOND <= now do
      if t * SECOND >= first then list[#list + 1] = t * SECOND end
      t = calendar.next(expression, t, where)
    end
    if #list >= most or from == first then return table.move(list, math.max(1, #list - most + 1), #list, 1, {}) end
    back = back * 8
  end
  return {}
end

--- The ticks, from `first` on, that are to be pushed now: oldest first.
---@param def nightshift.Schedule
---@param first integer the tick that is due, µs since 1970
---@param now integer
---@return integer[]
function schedule.due(def, first, now)
  local most = def.missed == "all" and MOST or 1
  local list = def.cron and last_ticks(def, first, now, most) or {}
  local n = def.every and (now - first) // def.every or -1
  for k = math.max(0, n - most + 1), n do list[#list + 1] = first + k * def.every end
  if def.missed == "none" and list[1] and list[1] < now - LATE then return {} end
  return list
end

-- ------------------------------------------------------------------------- rows

local UPCOMING = 5

schedule.ENDS = 86400 * SECOND -- without a sign of a script that declares it a schedule ends

local function ask(handle, statement, ...) return handle:execute("@" .. statement, ...) end

--- Runs a function in a transaction of its own, or in the open one.
local function transaction(handle, fn)
  if handle:in_transaction() then return fn() end
  return failure.transaction(handle, function() return failure.must(fn()) end)
end

schedule.transaction = transaction

local function what_of(name) return "schedule " .. name end

--- Writes the row of an action in the open transaction. Declarations of scripts are none.
local function note(handle, verb, name, jobs) return audit.note(handle, verb, what_of(name), jobs) end

-- --------------------------------------------------------------- rows: writing

--- The row of a name, locked; it is added when there is none.
local function hold(handle, name)
  local ok, message, code = ask(handle, "schedule_add", name)
  if not ok then return nil, message, code end
  local rows
  rows, message, code = ask(handle, "schedule_hold", name)
  if not rows then return nil, message, code end
  if rows[1] then return rows[1] end
  return nil, "the schedule is removed and added all the time", "BUSY"
end

--- Writes a definition. `version`: when the scripts that declare it were loaded, µs; nil: it is
-- a program's. Gives its outcome: "added", "changed", "kept", "superseded" (newer scripts have
-- declared another), "taken" (a program's has the name). And its next tick.
---@param handle userdata core handle
---@param name string
---@param def nightshift.Schedule
---@param version integer?
---@return string|nil
---@return integer|string? next µs, or the message
---@return string? code
function schedule.put(handle, name, def, version)
  local text, message, code = core.encode(def, nil, "schedule")
  if not text then return nil, message, code end
  return transaction(handle, function()
    local row, why, kind = hold(handle, name)
    if not row then return nil, why, kind end
    local new = row.definition == "null"
    if not new and (row.version == nil) ~= (version == nil) then return "taken" end
    local equal = not new and schedule.same(row.definition, text)
    local is_old = version and not new and row.version > version and row.declared > row.now - schedule.ENDS
    if is_old and not equal then return "superseded" end
    local next_at = row.next_at
    local stays = not new and not row.error and (equal or schedule.same_times(row.definition, def))
    if not stays then next_at = schedule.next(def, row.now) end
    if row.paused == 1 then next_at = nil end
    local done
    done, why, kind = ask(handle, "schedule_put", text, next_at, version and math.max(version, row.version or version),
      version and row.now, name)
    if done and not version and not equal then done, why, kind = note(handle, "schedule", name) end
    if not done then return nil, why, kind end
    return new and "added" or equal and "kept" or "changed", next_at
  end)
end

--- Tells hosts that a tick may come sooner than they know. They find a tick that is not
-- committed yet by themselves.
local function tell(handle)
  if not handle:in_transaction() then handle:ring() end
end

--- Adds a schedule, or changes it; while its times are the same its next tick stays.
---@param handle userdata core handle
---@param given table
---@return number|nil next instant of the next tick
---@return string? message
---@return string? code
function schedule.set(handle, given)
  local name, def, code = schedule.check("schedule", given)
  if not name then return nil, def, code end
  local what, next_at
  what, next_at, code = schedule.put(handle, name, def --[[@as nightshift.Schedule]])
  if not what then return nil, next_at, code end
  if what == "taken" then
    return nil, ("schedule '%s' is declared by handler scripts; change it there, or choose another name"):format(name),
      "STATE"
  end
  tell(handle)
  return next_at and next_at / SECOND or false
end

-- --------------------------------------------------------------- rows: looking

local function next_times(def, row)
  local list, t = {}, row.next_at
  while t and #list < UPCOMING do
    list[#list + 1] = t / SECOND
    t = schedule.next(def, t, t)
  end
  return list
end

--- A row that a hand has broken is shown with that as its error.
local function shown(row)
  local def, message = schedule.read(row.definition)
  local list = { name = row.name, paused = row.paused == 1, declared = row.version ~= nil, upcoming = {},
    last = row.last_at and row.last_at / SECOND, last_id = row.last_job, skipped = row.skipped,
    error = row.error or message }
  if not def then return list end
  local times = next_times(def, row)
  local spans = {}
  for key, value in pairs(def.options) do
    local is_span = key == "backoff" or key == "timeout" or key == "deadline"
    spans[key] = is_span and value / SECOND or value
  end
  list.cron, list.every, list.zone = def.cron, def.every and def.every / SECOND, def.cron and def.zone or nil
  list.queue, list.job, list.payload, list.options = def.queue, def.job, def.payload, next(spans) and spans or nil
  list.missed, list.overlap, list.due, list.upcoming = def.missed, def.overlap, times[1], times
  return list
end

--- All schedules, by name.
---@param handle userdata core handle
---@return table[]|nil
---@return string? message
---@return string? code
function schedule.list(handle)
  local rows, message, code = ask(handle, "schedule_list")
  if not rows then return nil, message, code end
  for i, row in ipairs(rows) do rows[i] = shown(row) end
  return rows
end

local function not_found(name)
  return nil, ("there is no schedule '%s'; `nightshift schedules` lists them"):format(options.shown(name)), "NOT_FOUND"
end

--- Reads the row of a schedule, locked.
local function find(handle, name)
  local rows, message, code = ask(handle, "schedule_hold", name)
  if not rows then return nil, message, code end
  if rows[1] then return rows[1] end
  return not_found(name)
end

-- -------------------------------------------------------------- rows: changing

--- The next tick of a row from now on; nil: there is none any more. With a message: it cannot be
-- told on this machine.
local function next_tick(row)
  local def, message, code = schedule.read(row.definition)
  if not def then return nil, message, code end
  local known
  known, message, code = calendar.zone(def.zone)
  if not known then return nil, message, code end
  return schedule.next(def, row.now)
end

--- Stops its ticks, or lets them go on, those of a schedule that has failed, too; what was between
-- is not made up for.
---@param handle userdata core handle
---@param name string
---@param paused boolean
---@return true|nil
---@return string? message
---@return string? code
function schedule.pause(handle, name, paused)
  local ok, message, code = transaction(handle, function()
    local row, why, kind = find(handle, name)
    if not row then return nil, why, kind end
    local next_at = row.next_at
    if paused then next_at = nil
    elseif row.paused == 1 or row.error then
      next_at, why, kind = next_tick(row)
      if not next_at and why then return nil, why, kind end
    end
    local done
    done, why, kind = ask(handle, "schedule_pause", next_at, paused, next_at, name)
    if not done then return nil, why, kind end
    return note(handle, paused and "schedule_pause" or "schedule_resume", name)
  end)
  if not ok then return nil, message, code end
  if not paused then tell(handle) end
  return true
end

---@param handle userdata core handle
---@param name string
---@return true|nil
---@return string? message
---@return string? code
function schedule.remove(handle, name)
  local removed, message, code = audit.once(handle, "schedule_remove", what_of(name), function()
    local result, why, kind = ask(handle, "schedule_remove", name)
    if not result then return nil, why, kind end
    return result.affected > 0
  end)
  if removed == false then return not_found(name) end
  return removed, message, code
end

--- The entry that a tick pushes.
---@param name string
---@param def nightshift.Schedule
---@return table entry of the core's push
function schedule.entry(name, def)
  local entry = { name = def.job, payload = def.payload, anyhow = 1 }
  for key, value in pairs(def.options) do entry[key] = value end
  if def.overlap == "skip" then entry.unique, entry.on_conflict = "schedule:" .. name, 1 end
  return entry
end

--- Pushes its job now, beside its ticks; with `overlap = "skip"` gives the live one, if there is
-- one.
---@param handle userdata core handle
---@param name string
---@return integer|nil id
---@return string? message
---@return string? code
function schedule.run(handle, name)
  local id, message, code = transaction(handle, function()
    local row, why, kind = find(handle, name)
    if not row then return nil, why, kind end
    local def, ids
    def, why, kind = schedule.read(row.definition)
    if not def then return nil, why, kind end
    ids, why, kind = handle:push(def.queue, { schedule.entry(name, def) })
    if not ids then return nil, why, kind end
    local ok
    ok, why, kind = note(handle, "schedule_run", name, 1)
    if not ok then return nil, why, kind end
    return ids[1]
  end)
  return id, message, code
end

return schedule
