--- The definition of a schedule: when it ticks, and which job each tick pushes.
--
-- A definition is kept as JSON in its row of nightshift_schedule. Durations in it are microseconds,
-- as everywhere in tables.
--
-- Invariant: a definition that was accepted once has an expression that can be read, and a zone
-- that the machine knew which accepted it. So only a hand can break it later (`read` says so), and
-- only a machine without the zone cannot tell its ticks.

local core = require "nightshift.core"
local cron = require "nightshift.schedule.cron"
local options = require "nightshift.options"
local zone = require "nightshift.schedule.zone"

local definition = {}

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

definition.QUEUE = "default"

local SECOND <const> = 1000000
local LATE <const> = 60 * SECOND -- a tick that is older has been missed
local MOST <const> = 1000 -- ticks that are made up for

local raise = options.raise

-- -------------------------------------------------------------------- checking

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
    expression, message, code = cron.parse(when.cron)
    if not expression then return nil, verb .. ": " .. message, code end
  elseif when.zone then
    raise("%s: zone goes with cron; every counts the time that passes", verb)
  end
  when.zone = when.zone or "UTC"
  where, message, code = zone.open(when.zone)
  if not where then return nil, verb .. ": " .. message, code end
  if expression and not cron.next(expression, os.time(), where) then
    return nil, ("%s: cron '%s' names a day that does not come within eight years"):format(verb, when.cron), "INVALID"
  end
  return when
end

--- Makes a definition of checked parts.
local function make(when, name, payload, entry)
  local queue = entry.queue or definition.QUEUE
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
function definition.check(verb, given)
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
definition.FIELDS = { cron = true, every = true, zone = true, missed = true, overlap = true, payload = true }

--- The schedule that a handler declares; nil: none. A fault raises, or is the message.
---@param name string of the handler
---@param handler table
---@param limits table its options: queue, priority, timeout, max_attempts, max_phases
---@return nightshift.Schedule|nil
---@return string? message
function definition.declared(name, handler, limits)
  if handler.cron == nil and handler.every == nil then
    for field in pairs(definition.FIELDS) do
      if handler[field] ~= nil then return nil, field .. " goes with cron or every" end
    end
    return nil
  end
  local given = {}
  for field in pairs(definition.FIELDS) do given[field] = handler[field] end
  given.payload = nil
  local ok, when, message = pcall(check_when, "schedule", given)
  if not ok then return nil, (tostring(when):gsub("^.-nightshift: ", "")) end
  if not when then return nil, message end
  local payload = handler.payload
  if payload == nil then payload = core.null end
  return make(when, name, payload, { queue = limits.queue, priority = limits.priority, timeout = limits.timeout,
    max_attempts = limits.max_attempts })
end

-- --------------------------------------------------------------------- comparing

--- Do two texts say the same definition?
---@param a string JSON
---@param b string
function definition.same(a, b) return a == b or options.same(core.decode(a), core.decode(b)) end

--- Does a text say a definition?
---@param text string JSON
---@param def nightshift.Schedule
function definition.same_as(text, def) return options.same(core.decode(text), def) end

--- Does a text say when to tick as a definition does?
---@param text string JSON
---@param def nightshift.Schedule
function definition.same_times(text, def)
  local other = core.decode(text)
  return type(other) == "table" and other.cron == def.cron and other.every == def.every and other.zone == def.zone
end

-- ------------------------------------------------------------------------- ticks

local last = {} -- the expression that was read last: after a tick the next ones are mostly asked for, too

local function expression_of(text)
  if last.text ~= text then last = { text = text, expression = cron.parse(text) } end
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
function definition.read(text)
  local def = core.decode(text)
  local fault = fault_of(def)
  if fault then return nil, ("its definition cannot be read: %s"):format(fault), "INVALID" end
  return def
end

local function next_cron(def, after)
  local expression, where = expression_of(def.cron), zone.open(def.zone)
  local t = expression and where and cron.next(expression, after / SECOND, where)
  return t and t * SECOND
end

--- The first tick after an instant; both in µs since 1970. Nil: there is none any more.
---@param def nightshift.Schedule
---@param after integer
---@param base integer? a tick, from which `every` counts; else from `after`
---@return integer?
function definition.next(def, after, base)
  if def.cron then return next_cron(def, after) end
  base = base or after
  return base + ((after - base) // def.every + 1) * def.every
end

--- The last `most` ticks of a cron expression from `first`, a tick, until now. Looks back further
-- and further, so that a tick a second that was missed for a month costs no more than a few.
local function last_ticks(def, first, now, most)
  local expression, where = expression_of(def.cron), zone.open(def.zone)
  local back = 60
  while expression and where do
    local from = math.max(first, now - back * SECOND)
    local list, t = {}, cron.next(expression, from / SECOND - 1, where)
    while t and t * SECOND <= now do
      if t * SECOND >= first then list[#list + 1] = t * SECOND end
      t = cron.next(expression, t, where)
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
function definition.due(def, first, now)
  local most = def.missed == "all" and MOST or 1
  local list = def.cron and last_ticks(def, first, now, most) or {}
  local n = def.every and (now - first) // def.every or -1
  for k = math.max(0, n - most + 1), n do list[#list + 1] = first + k * def.every end
  if def.missed == "none" and list[1] and list[1] < now - LATE then return {} end
  return list
end

return definition
