--- Jobs that have ended: the outcomes that a job has waited for (`job.results`), and the ends that a
-- program waits for. And how long, and how many, ended jobs are kept.
--
-- `job.results` looks like a list: its children in the order in which they were spawned. Behind
-- them come the jobs of its `after`, in their order. It reads a page at a time from the database,
-- so a job with 10,000 children needs no memory for them. Rows are not read again while the page is
-- the same. A job without `after` asks nothing about that.
--
-- The rules of retention, by queue and outcome, are rows of nightshift_retention, so all hosts obey
-- them (src/core/admin/retention.c). A queue's rule has the values of the rule of all queues,
-- unless it says otherwise.

local audit = require "nightshift.audit"
local core = require "nightshift.core"
local options = require "nightshift.options"
local units = require "nightshift.units"

local ended = {}

-- ----------------------------------------------------------------------- outcomes

local PAGE = 500

--- One outcome: "done", "dead" or "cancelled"; nil while the job lives; "gone" for a job of
-- `after` that the history does not have any more.
---@class nightshift.Result
---@field id integer
---@field name string?
---@field outcome string?
---@field result any
---@field reason string?
---@field error string?
---@field after true? it is none of its children

local function entry(row, after)
  local value = row.result and core.decode(row.result)
  if value == core.null then value = nil end
  return { id = row.id, name = row.name, outcome = row.outcome, result = value, reason = row.reason,
    error = row.error, after = after }
end

local function ask(pages, statement, ...)
  local rows, message = pages.ask(statement, ...)
  if not rows then error("job.results: " .. message, 0) end
  return rows
end

-- Children and jobs of `after`: how to count them, and how to read some of them.
local CHILDREN = {
  count = function(pages) return ask(pages, "edge_count", pages.parent)[1].n end,
  read = function(pages, first) return ask(pages, "edge_results", pages.parent, pages.size, first) end,
}
local FOLLOWED = {
  count = function(pages) return #pages.ids end,
  read = function(pages, first)
    local ids = table.move(pages.ids, first + 1, math.min(first + pages.size, #pages.ids), 1, {})
    return #ids > 0 and ask(pages, "edge_followed", core.encode(core.array(ids))) or {}
  end,
}

local function read(pages, first)
  local rows = pages.kind.read(pages, first)
  pages.first, pages.rows = first, rows
  -- Cut short: the database is not to look at many large results for a few.
  pages.size = math.min(PAGE, math.max(2 * #rows, 8))
end

local function has(pages, i)
  return pages.rows and i > pages.first and i <= pages.first + #pages.rows
end

--- The row of item i; raises with the database's words. A page of large results is
-- shorter: then the next begins behind it.
local function row_of(pages, i)
  if not has(pages, i) then
    local follows = pages.rows and i == pages.first + #pages.rows + 1
    read(pages, follows and i - 1 or (i - 1) // PAGE * PAGE)
    if not has(pages, i) and pages.first < i - 1 then read(pages, i - 1) end
  end
  return pages.rows[i - pages.first]
end

local function count(pages)
  pages.n = pages.n or pages.kind.count(pages)
  return pages.n
end

local function item(children, followed, i)
  local n = #followed.ids > 0 and count(children) or math.maxinteger
  if i > n then
    local row = row_of(followed, i - n)
    return row and entry(row, true)
  end
  local row = row_of(children, i)
  return row and entry(row)
end

--- Ids of the jobs that a job was pushed to wait for, apart from parent and children, as a
-- statement gives them.
---@param rows table[]
---@return integer[]
function ended.ids(rows)
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row.id end
  return ids
end

---@param parent integer the job's id
---@param after integer[] jobs that it was pushed to wait for
---@param asks fun(statement: string, ...): table?, string? runs a statement
---@return nightshift.Result[]
function ended.of(parent, after, asks)
  local children = { kind = CHILDREN, parent = parent, ask = asks, size = PAGE }
  local followed = { kind = FOLLOWED, ids = after, ask = asks, size = PAGE }
  return setmetatable({}, {
    __len = function() return count(children) + count(followed) end,
    __index = function(_, i)
      if math.type(i) ~= "integer" or i < 1 then return nil end
      return item(children, followed, i)
    end,
    __pairs = function(list) return ipairs(list) end,
    __newindex = function() error("job.results cannot be changed", 2) end,
    __name = "nightshift.results",
    children = children,
  })
end

-- ------------------------------------------------------------ ends that are waited for

local function encoded(ids) return core.encode(core.array(ids)) end

--- The outcomes of these jobs, by id; the server cuts a long answer short.
local function outcomes(handle, ids)
  local found, first = {}, 1
  while first <= #ids do
    local rows, message, code = handle:execute("@edge_followed", encoded(table.move(ids, first,
      math.min(#ids, first + PAGE - 1), 1, {})))
    if not rows then return nil, message, code end
    for _, row in ipairs(rows) do found[row.id] = entry(row) end
    first = first + #rows
  end
  return found
end

local function still_live(ids, found)
  local live = {}
  for _, id in ipairs(ids) do
    if not found[id].outcome then live[#live + 1] = id end
  end
  return live
end

local function too_late(ids, live, us)
  local seconds = units.number(us / 1000000)
  if #ids == 1 then return nil, ("job %d has not ended within %s s"):format(ids[1], seconds), "BUSY" end
  return nil, ("%d of %d jobs have not ended within %s s, job %d among them"):format(#live, #ids, seconds, live[1]),
    "BUSY"
end

--- Waits for the ends of jobs. "gone": it was deleted meanwhile, or left no history.
---@param handle userdata core handle, in no transaction
---@param ids integer[]
---@param us integer how long, at most
---@return nightshift.Result[]|nil ends in the order of the ids
---@return string? message
---@return string? code NOT_FOUND, BUSY
function ended.wait(handle, ids, us)
  local stop = core.clock() + us / 1000000
  local found, message, code = outcomes(handle, ids)
  if not found then return nil, message, code end
  for _, id in ipairs(ids) do
    if found[id].outcome == "gone" then
      return nil, ("there is no job %d, live or in the history"):format(id), "NOT_FOUND"
    end
  end
  local live = still_live(ids, found)
  while #live > 0 do
    local rest = math.floor((stop - core.clock()) * 1000000)
    if rest <= 0 then return too_late(ids, live, us) end
    local left, more
    left, message, code = handle:wait(encoded(live), rest)
    if not left then return nil, message, code end
    more, message, code = outcomes(handle, live)
    if not more then return nil, message, code end
    for id, row in pairs(more) do found[id] = row end
    live = still_live(live, found)
  end
  local list = {}
  for i, id in ipairs(ids) do list[i] = found[id] end
  return list
end

--- How many of an `ended.of` are children.
function ended.children(list)
  return count(getmetatable(list).children)
end

-- ---------------------------------------------------------------------- retention

local DAY <const> = 86400 * 1000000
local ALL <const> = 0 -- in the place of a queue's id
local NEVER <const>, AS_ALL <const> = -1, -2

--- Ages without a rule, µs.
ended.AGES = { done = DAY, dead = 30 * DAY, cancelled = 30 * DAY }

--- An age for the core's prune: as long as the rules say.
ended.BY_RULE = math.mininteger

ended.OUTCOMES = { "done", "dead", "cancelled" }

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
ended.RULES = { done = rule, dead = rule, cancelled = rule }

local function span(us) return units.span(units.seconds(us)) end

--- A limit in words; `text` makes them of a number.
local function limit_text(value, text)
  return value == NEVER and "any" or value == AS_ALL and "default" or text(value)
end

--- A change of rules in words, for the audit.
local function what_of(queue, given)
  local words = {}
  for _, outcome in ipairs(ended.OUTCOMES) do
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
function ended.retain(handle, queue, given)
  if next(given) == nil then return nil, "retain: there is nothing to change", "INVALID" end
  local id = ALL
  if queue then
    local message, code
    id, message, code = handle:queue_id(queue, true)
    if not id then return nil, message, code end
  end
  local rows = {}
  for _, outcome in ipairs(ended.OUTCOMES) do
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
  return age == ended.BY_RULE and "by rule" or age < 0 and "for ever" or span(age)
end

--- Deletes history that is older than these ages.
---@param handle userdata core handle
---@param done integer µs that done jobs are kept; -1: for ever; BY_RULE: as the rules say
---@param dead integer the same of dead and cancelled ones
---@param told (fun(deleted: integer): any)? called behind each batch with the number so far
---@return integer|nil deleted
---@return string? message
---@return string? code
function ended.prune(handle, done, dead, told)
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
function ended.rules(handle)
  local rows, message, code = handle:execute "@report_retention"
  if not rows then return nil, message, code end
  local all, list, by_id = {}, {}, {}
  for outcome, age in pairs(ended.AGES) do all[outcome] = { age = seconds(age), count = false } end
  list[1], by_id[ALL] = all, all
  for _, row in ipairs(rows) do
    local own = by_id[row.id]
    if not own then
      own = { queue = row.queue }
      for _, outcome in ipairs(ended.OUTCOMES) do
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
function ended.ages(handle)
  local list, message, code = ended.rules(handle)
  if not list then return nil, message, code end
  if #list > 1 then return false end
  local ages = {}
  for _, outcome in ipairs(ended.OUTCOMES) do
    local one = list[1][outcome]
    if one.count then return false end
    ages[outcome] = one.age and math.tointeger(one.age * 1000000 // 1) or NEVER
  end
  return ages
end

return ended
