--- Retention: how long, and how many, ended jobs are kept, by queue and outcome.
--
-- The rules are rows of nightshift_retention, so all hosts obey them (src/core/admin/retention.c).
-- A queue's rule has the values of the rule of all queues, unless it says otherwise.

local audit = require "nightshift.audit"
local core = require "nightshift.core"
local options = require "nightshift.options"
local units = require "nightshift.units"

local retention = {}

local DAY <const> = 86400 * 1000000
local ALL <const> = 0 -- in the place of a queue's id
local NEVER <const>, AS_ALL <const> = -1, -2

--- Ages without a rule, µs.
retention.AGES = { done = DAY, dead = 30 * DAY, cancelled = 30 * DAY }

--- An age for the core's prune: as long as the rules say.
retention.BY_RULE = math.mininteger

retention.OUTCOMES = { "done", "dead", "cancelled" }

--- A check that also takes false, for no limit, and "default".
local function limit(check)
  return function(value, what)
    if value == false then return NEVER end
    if value == "default" then return AS_ALL end
    local good, message = check(value, what)
    return good, message
  end
end

local RULE = { age = limit(options.duration), count = limit(options.integer(0, math.maxinteger // 2)) }

--- Check: an age, or {age =, count =}.
local function rule(value, what)
  if type(value) ~= "table" then value = { age = value } end
  local given, message = options.read(what, value, RULE)
  if given and next(given) == nil then return nil, what .. ": there is neither an age nor a count" end
  return given, message
end

--- The options of db:retain.
retention.RULES = { done = rule, dead = rule, cancelled = rule }

local function span(us) return units.span(units.seconds(us)) end

--- A limit in words; `text` makes them of a number.
local function limit_text(value, text)
  return value == NEVER and "any" or value == AS_ALL and "default" or text(value)
end

--- A change of rules in words, for the audit.
local function what_of(queue, given)
  local words = {}
  for _, outcome in ipairs(retention.OUTCOMES) do
    local one = given[outcome] or {}
    if one.age then words[#words + 1] = outcome .. " age " .. limit_text(one.age, span) end
    if one.count then words[#words + 1] = outcome .. " count " .. limit_text(one.count, tostring) end
  end
  return ("%s: %s"):format(queue and "queue " .. queue or "all queues", table.concat(words, ", "))
end

--- Changes the rules of a queue, or of all queues that have none.
---@param handle userdata core handle
---@param queue string? nil: all queues
---@param given table<string, {age: integer?, count: integer?}> checked
---@return true|nil
---@return string? message
---@return string? code
function retention.set(handle, queue, given)
  if next(given) == nil then return nil, "retain: there is nothing to change", "INVALID" end
  local id = ALL
  if queue then
    local message, code
    id, message, code = handle:queue_id(queue, true)
    if not id then return nil, message, code end
  end
  local rows = {}
  for _, outcome in ipairs(retention.OUTCOMES) do
    local one = given[outcome]
    if one then rows[#rows + 1] = core.array { outcome, one.age or core.null, one.count or core.null } end
  end
  local text = assert(core.encode(core.array(rows)))
  return audit.once(handle, "retain", what_of(queue, given), function()
    local ok, message, code = handle:execute("@admin_retain", id, text)
    if ok then ok, message, code = handle:execute "@admin_retain_none" end
    if not ok then return nil, message, code end
    return true
  end)
end

local function kept(age)
  return age == retention.BY_RULE and "by rule" or age < 0 and "for ever" or span(age)
end

--- Deletes history that is older than these ages.
---@param handle userdata core handle
---@param done integer µs that done jobs are kept; -1: for ever; BY_RULE: as the rules say
---@param dead integer the same of dead and cancelled ones
---@param told (fun(deleted: integer): any)? called behind each batch with the number so far
---@return integer|nil deleted
---@return string? message
---@return string? code
function retention.prune(handle, done, dead, told)
  local what = ("history: done kept %s, dead and cancelled %s"):format(kept(done), kept(dead))
  local part <close> = audit.begin(handle, "prune", what)
  return part.action.handle:prune(done, dead, 0, told)
end

local function seconds(age) return age ~= NEVER and units.seconds(age) end

--- The rules as they are: of all queues, then of queues that have one; each whole, with what it has
-- of the rule above it.
---@param handle userdata core handle
---@return table[]|nil list of {queue =, done = {age =, count =}, dead =, cancelled =}; false: no limit
---@return string? message
---@return string? code
function retention.list(handle)
  local rows, message, code = handle:execute "@report_retention"
  if not rows then return nil, message, code end
  local all, list, by_id = {}, {}, {}
  for outcome, age in pairs(retention.AGES) do all[outcome] = { age = seconds(age), count = false } end
  list[1], by_id[ALL] = all, all
  for _, row in ipairs(rows) do
    local own = by_id[row.id]
    if not own then
      own = { queue = row.queue }
      for _, outcome in ipairs(retention.OUTCOMES) do
        own[outcome] = { age = all[outcome].age, count = all[outcome].count }
      end
      by_id[row.id], list[#list + 1] = own, own
    end
    local one = own[row.outcome]
    if row.age then one.age = seconds(row.age) end
    if row.most then one.count = row.most ~= NEVER and row.most end
  end
  return list
end

--- The ages of done, dead and cancelled jobs, µs, -1: for ever. False: a queue has a rule of its
-- own, or one is by number.
---@param handle userdata core handle
---@return {done: integer, dead: integer, cancelled: integer}|false|nil
---@return string? message
---@return string? code
function retention.ages(handle)
  local list, message, code = retention.list(handle)
  if not list then return nil, message, code end
  if #list > 1 then return false end
  local ages = {}
  for _, outcome in ipairs(retention.OUTCOMES) do
    local one = list[1][outcome]
    if one.count then return false end
    ages[outcome] = one.age and math.tointeger(one.age * 1000000 // 1) or NEVER
  end
  return ages
end

return retention
