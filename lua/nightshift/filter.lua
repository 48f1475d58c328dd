--- Which jobs: the conditions that listings and the verbs on many jobs share.
--
-- A condition is one entry of CONDITIONS and one line in each of the marks filter_live and
-- filter_ended (sql/marks.sql). A statement with such a mark takes the values that `bind` gives,
-- in the marks' order. A condition that is absent is NULL there, which stands for any.
--
-- Invariant: values reach the server as bound parameters only.

local core = require "nightshift.core"
local options = require "nightshift.options"
local units = require "nightshift.units"

local raise = options.raise

local filter = {}

local FIRST_INSTANT <const> = 1000000000 -- seconds, in 2001; a smaller number was meant as a duration

--- Check: an instant, as seconds since 1970 or a text; or a duration, which ends now.
local function since(value, what)
  if type(value) == "number" then
    if value >= FIRST_INSTANT and value < math.maxinteger // 1000000 then
      return { at = math.tointeger(value * 1000000 // 1) }
    end
    return nil, ('%s: a number is an instant, seconds since 1970, and %s is none; "2h" is two hours ago'):format(what,
      value)
  end
  if type(value) ~= "string" then
    raise('%s must be an instant or a text like "2h", got %s', what, type(value))
  end
  local at = units.instant_of(value)
  if at then return { at = math.tointeger(at * 1000000 // 1) } end
  local ago = core.duration(value)
  if ago then return { ago = ago } end
  return nil, ('%s must be an instant, like 2026-11-26T06:00:00Z, or a duration, like "2h", got \'%s\''):format(what,
    options.shown(value))
end

--- The conditions, each with its check. Those of `state` lead to a statement, and are no part of
-- the marks.
filter.CONDITIONS = {
  state = options.one_of("scheduled", "ready", "running", "waiting", "done", "dead", "cancelled"),
  queue = options.typed "string",
  name = options.typed "string",
  error = options.text,
  since = since,
  parent = options.integer(1, math.maxinteger),
  tag = options.text,
  group = options.text,
}

--- How many values the marks take.
filter.VALUES = 19

filter.ENDED = { done = true, dead = true, cancelled = true }

--- The checks of a verb's options: the conditions, and more.
---@param more table<string, function>
---@return table<string, function>
function filter.with(more)
  local checks = {}
  for key, check in pairs(filter.CONDITIONS) do checks[key] = check end
  for key, check in pairs(more) do checks[key] = check end
  return checks
end

--- Does anything but `state` restrict the jobs?
---@param given table
---@return boolean
function filter.restricts(given)
  for key in pairs(filter.CONDITIONS) do
    if key ~= "state" and given[key] ~= nil then return true end
  end
  return false
end

-- The kind of an error is its first line with "#" in it, or cut off; all other kinds are first
-- lines.
local function may_be_kind(text)
  return text:find("#", 1, true) ~= nil or (utf8.len(text) or 0) >= 200
end

--- The filter's values, for `call`. `since`: µs since 1970; `queue`: its id, or null.
---@param handle userdata core handle
---@param given table checked conditions
---@return {[integer]: any, n: integer, queue: any, since: integer}|false|nil values false: there is no such queue
---@return string? message
---@return string? code
function filter.bind(handle, given)
  local null, queue, from = core.null, core.null, given.since and given.since.at
  if given.queue then
    local id, message, code = handle:queue_id(given.queue, false)
    if not id and code == "NOT_FOUND" then return false end
    if not id then return nil, message, code end
    queue = id
  end
  if given.since and not from then
    local now, message, code = handle:now()
    if not now then return nil, message, code end
    from = now - given.since.ago
  end
  local name, parent, error = given.name or null, given.parent or null, given.error or null
  local bound, kind = from or null, given.error and may_be_kind(given.error) and given.error or null
  local tag, group = given.tag or null, given.group or null
  local begin = given.error and given.error:match "^[^#]*" or null
  return { queue, queue, name, name, parent, parent, bound, bound, error, error, error, kind, begin, begin, kind,
    tag, tag, group, group, n = filter.VALUES, queue = queue, since = from or 0 }
end

local PREFIXES <const> = 10 -- of ids, in a pattern

--- A pattern that the text of a lease matches when it has a job from one id to another. Such ids
-- begin with one of some numbers, and go on with so many digits. A few other leases may match it.
-- Most do not, for jobs are claimed about in the order of their pushes.
---@param low integer
---@param high integer
---@return string
function filter.claims(low, high)
  local step, digits, list = 1, 0, {}
  while high // step - low // step >= PREFIXES do step, digits = step * 10, digits + 1 end
  for first = math.max(low // step, 1), high // step do list[#list + 1] = first end
  local pattern = ("(%s)[0-9]{%d}"):format(table.concat(list, "|"), digits)
  if low < step then pattern = ("(%s|[0-9]{1,%d})"):format(pattern, math.max(digits, 1)) end
  return "[[]" .. pattern .. ","
end

--- Runs a statement; among the parameters a bound filter stands for all of its values.
---@param handle userdata core handle
---@param statement string
---@param ... any
---@return table[]|nil rows
---@return string? message
---@return string? code
function filter.call(handle, statement, ...)
  local given, params, n = table.pack(...), {}, 0
  for i = 1, given.n do
    local value = given[i]
    if type(value) == "table" then
      table.move(value, 1, value.n, n + 1, params)
      n = n + value.n
    else
      n = n + 1
      params[n] = value
    end
  end
  return handle:execute("@" .. statement, table.unpack(params, 1, n))
end

return filter
