--- Filters of jobs: the conditions that listings and verbs share, and verbs on all jobs of a
-- filter.
--
-- A condition is one entry of CONDITIONS and one line in each of the marks filter_live and
-- filter_ended (sql/marks.sql). A statement with such a mark takes the values that `bind` gives,
-- in the marks' order. A condition that is absent is NULL there, which stands for any.
--
-- A verb walks through the one key that leads to the jobs, in its order, PAGE rows at a time. It
-- asks which of them the filter holds for, without locks. These are changed some hundred at a time.
-- Each batch is a transaction, which asks the filter again under its locks. So workers go on
-- between two batches, and a verb that was cut off is said again.
--
-- Invariants: values reach the server as bound parameters only. A walk ends: it goes forward, and
-- up to where its key ended when it began. Jobs that come back behind it, dead again say, are left
-- alone.

local audit = require "nightshift.audit"
local changes = require "nightshift.change"
local core = require "nightshift.core"
local options = require "nightshift.options"
local units = require "nightshift.units"

local raise = options.raise

local filter = {}

-- -------------------------------------------------------------------- conditions

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

-- ------------------------------------------------------------------------- verbs

local PAGE <const> = 10000 -- rows of a key that are read at once
local LEAF <const>, CLAIMS_LEAF <const> = 250, 1000 -- of these for a count, which may stop between two pages
local BATCH <const> = 500 -- jobs of one transaction; the core takes no more
local AHEAD <const> = 12000 -- µs; a push has 10,000 jobs at most
local TEXTS <const> = 20 -- payloads that are in memory at once
local SLICES <const> = 5 -- batches a second, when there is a rate

local LIVE <const> = { "scheduled", "waiting", "running", "ready" }
local ANY_LIVE <const> = { false } -- one walk, whatever the state is
local WAITING <const> = { "scheduled", "waiting", "ready" }

local function rate(value, what)
  if type(value) ~= "number" then raise("%s must be a number of jobs a second, got %s", what, type(value)) end
  if value > 0 and value < math.huge then return value end
  return nil, ("%s must be above 0 jobs a second, got %s"):format(what, value)
end

local function queue(value, what)
  if type(value) ~= "string" then raise("%s must be a string, got %s", what, type(value)) end
  local ok, message = options.name(what, value, options.MAX_QUEUE)
  if not ok then return nil, message end
  return value
end

local function states(...)
  local set = {}
  for _, state in ipairs { ... } do set[state] = true end
  return set
end

local LIVE_SET <const> = states(table.unpack(LIVE))
local IDLE <const> = states("scheduled", "waiting", "ready", "done", "dead", "cancelled")
local CHANGED <const> = states("scheduled", "waiting", "ready", "dead", "cancelled")

--- Each verb: the states that it is for; the walks when none is given; further options.
-- `single`: it is done to one job after the other.
local VERBS <const> = {
  cancel = { states = LIVE_SET, all = ANY_LIVE, more = { reason = options.text } },
  retry = { states = filter.ENDED, all = { "dead" }, more = {} },
  run_now = { states = states "scheduled", all = { "scheduled" }, more = {} },
  reprioritise = { states = LIVE_SET, all = LIVE, more = { priority = options.integer(0, 255) }, core = "priority",
    needs = "priority" },
  delete = { states = IDLE, all = { "done", "dead", "cancelled" }, more = {}, single = true },
  update = { states = CHANGED, all = WAITING, more = { retry = options.typed "boolean" }, single = true },
  move = { states = IDLE, all = WAITING, more = { to = queue }, needs = "to" },
}

-- --------------------------------------------------------------------- walks

--- Raises a failure, which ends a walk; `run` below catches it.
local function must(value, message, code)
  if value == nil then error({ message = message, code = code }, 0) end
  return value
end

--- The state of a verb on its way.
---@class nightshift.Many
---@field handle userdata core handle
---@field given table checked conditions
---@field wanted table the bound filter
---@field each fun(state: string|false, rows: table[], in_lane: boolean) gets jobs of the filter
---@field last {id: integer, run_at: integer, lease: integer, now: integer} where walks end
---@field counts boolean? nothing is done to the jobs: see filter.count
---@field paused boolean? is any job paused? nil: not asked yet

--- The least and the largest of some ids.
local function ends_of(ids)
  local low, high = math.maxinteger, 0
  for _, id in ipairs(ids) do low, high = math.min(low, id), math.max(high, id) end
  return low, high
end

--- Which of some jobs the filter holds for.
local function asked(handle, state, wanted, ids)
  local s, list = state or core.null, "[" .. table.concat(ids, ",") .. "]"
  if filter.ENDED[state] then return must(filter.call(handle, "filter_ended", list, s, s, wanted)) end
  if not state then return must(filter.call(handle, "filter_unclaimed", list, s, s, wanted)) end
  local low, high = ends_of(ids)
  return must(filter.call(handle, "filter_live", list, low, high, filter.claims(low, high), s, s, wanted))
end

local function is_any_paused(m)
  if m.paused == nil then m.paused = must(m.handle:execute "@report_pauses")[1] ~= nil end
  return m.paused
end

--- Rows that a count reads at once: more of those for which claims are looked at each time.
local function leaf(m, state) return state == "waiting" and is_any_paused(m) and CLAIMS_LEAF or LEAF end

--- As `asked`, for a count: claims are looked at where no key says which jobs have them.
local function asked_in_count(m, state, ids)
  local by_claim, keyed = state == "running" or state == "ready", not (m.given.tag or m.given.parent)
  if filter.ENDED[state] or state == "waiting" and is_any_paused(m) then
    return asked(m.handle, state, m.wanted, ids)
  end
  local s = by_claim and (keyed and core.null or "ready") or state or core.null
  local list = "[" .. table.concat(ids, ",") .. "]"
  local rows = must(filter.call(m.handle, "filter_unclaimed", list, s, s, m.wanted))
  if not by_claim or keyed or #rows == 0 then return rows end
  local tokens, claimed, kept = {}, {}, {}
  for i, row in ipairs(rows) do tokens[i] = ("[%d,%d]"):format(row.id, row.run) end
  local pattern = filter.claims(ends_of(ids))
  for _, row in ipairs(must(m.handle:execute("@report_jobs_claimed", pattern, "[" .. table.concat(tokens, ",")
    .. "]"))) do
    claimed[row.id] = true
  end
  for _, row in ipairs(rows) do
    if (claimed[row.id] or false) == (state == "running") then kept[#kept + 1] = row end
  end
  return kept
end

--- The rows that the filter holds for, in their order.
local function matching(m, state, rows)
  local by_key = filter.ENDED[state] or m.counts and state == "running"
  if #rows == 0 or by_key and not filter.restricts(m.given) then return rows end
  local ids, found, kept = {}, {}, {}
  for i, row in ipairs(rows) do ids[i] = row.id end
  for _, row in ipairs(m.counts and asked_in_count(m, state, ids) or asked(m.handle, state, m.wanted, ids)) do
    found[row.id] = true
  end
  for _, row in ipairs(rows) do
    if found[row.id] then kept[#kept + 1] = row end
  end
  return kept
end

--- Goes through a key page by page. `cursor(row)` gives the values to begin behind it.
local function through(m, state, statement, before, from, cursor, after, in_lane)
  local place, page = from, m.counts and leaf(m, state) or PAGE
  repeat
    local params = table.move(before, 1, #before, 1, {})
    table.move(place, 1, #place, #params + 1, params)
    table.move(after, 1, #after, #params + 1, params)
    params[#params + 1] = page
    local rows = must(filter.call(m.handle, statement, table.unpack(params)))
    if #rows > 0 then
      place = cursor(rows[#rows])
      m.each(state, matching(m, state, rows), in_lane)
    end
  until #rows < page
end

local function by(key)
  return function(row) return { row[key], row[key], row.id } end
end

local function through_scheduled(m, state, last)
  through(m, state, "filter_scheduled", {}, { 0, 0, 0 }, by "run_at", { last })
end

--- The place behind a row of a backlog.
local function behind_backlog(row)
  local q, g, r, at = row.queue_id, row.group_key or "", row.rank or 0, row.ready_at or 0
  return { q, q, g, q, g, r, q, g, r, at, q, g, r, at, row.id or 0 }
end

local walks = {}

function walks.scheduled(m, state) through_scheduled(m, state, m.last.run_at) end

--- The lanes that have rows, of all queues or of one.
local function lanes(m, wanted)
  local from, rank = wanted or 0, -1
  return function()
    local lane = must(filter.call(m.handle, "filter_lane", from, from, rank))[1]
    if not lane or wanted and lane.queue_id ~= wanted then return nil end
    from, rank = lane.queue_id, lane.rank
    return lane
  end
end

-- First jobs that are due and not yet moved into ready, for they are moved there meanwhile. A push
-- of many jobs gives each a place some µs behind the one before, so a place may lie ahead. Jobs that
-- the verb puts into ready have a later one.
function walks.ready(m, state)
  local last = must(m.handle:now()) + AHEAD
  if not m.counts then core.sleep(AHEAD / 1000000) end
  through_scheduled(m, state, last)
  local wanted = m.wanted.queue ~= core.null and m.wanted.queue
  for lane in lanes(m, wanted) do
    through(m, state, "filter_ready", { lane.queue_id, lane.rank }, { 0, 0, 0 }, by "ready_at", { last }, true)
  end
  through(m, state, "filter_backlog", {}, behind_backlog { queue_id = wanted or 0 }, behind_backlog, { last })
end

-- As many leases at a time as have about a page of jobs, and at most a tenth of its rows.
function walks.running(m, state)
  local page, from, leases = m.counts and LEAF or PAGE, 0, 1
  repeat
    local rows, claimed = must(filter.call(m.handle, "filter_running", from, m.last.lease, leases)), {}
    for _, row in ipairs(rows) do
      from = math.max(from, row.lease)
      if row.id then claimed[#claimed + 1] = row end
    end
    if #rows > 0 then m.each(state, matching(m, state, claimed)) end
    leases = math.max(1, math.min(leases * page // math.max(1, #rows), page // 10))
  until #rows == 0
end

local function through_jobs(m, state)
  through(m, state, "filter_jobs", {}, { 0 }, function(row) return { row.id } end, { m.last.id })
end

walks.waiting = through_jobs

local function through_outcome(m, state)
  through(m, state, "filter_outcome", { state }, { m.wanted.since, m.wanted.since, 0 }, by "finished_at",
    { m.last.now })
end

for outcome in pairs(filter.ENDED) do walks[outcome] = through_outcome end

local function through_tagged(m, state)
  through(m, state, "filter_tagged", { m.given.tag }, { 0 }, function(row) return { row.id } end, {})
end

local function through_children(m, state)
  through(m, state, "filter_children", { m.given.parent }, { 0, 0, 0 }, by "seq", {})
end

--- Gives all jobs of the filter to m.each.
local function walk(m, verb)
  m.last = must(m.handle:execute "@filter_last")[1]
  for _, state in ipairs(m.given.state and { m.given.state } or verb.all) do
    if m.given.parent then
      through_children(m, state)
    elseif m.given.tag then
      through_tagged(m, state)
    else
      (walks[state] or through_jobs)(m, state or nil)
    end
  end
end

-- ---------------------------------------------------------------------- verbs

--- Reads the options of a verb on a filter.
---@param name string
---@param given table
---@return table? checked
---@return string? message
---@return string? code
function filter.read(name, given)
  local verb = VERBS[name]
  local checks = filter.with(verb.more)
  checks.rate = rate
  local checked, message, code = options.read(name, given, checks)
  if not checked then return nil, message, code end
  if not checked.state and not filter.restricts(checked) then
    raise("%s wants a job's id, or a filter with at least one of state, queue, name, tag, group, error, since, "
      .. "parent", name)
  end
  if checked.retry and not filter.ENDED[checked.state] then
    raise("%s: retry wants the state dead or cancelled", name)
  end
  if verb.needs and not checked[verb.needs] then raise("%s: %s is missing", name, verb.needs) end
  if checked.state and not verb.states[checked.state] then
    return nil, ("%s: no job that is %s can be meant"):format(name, checked.state), "INVALID"
  end
  return checked
end

--- Runs `fn` with the state of a walk; a failure on the way becomes nil, message and code.
local function run(handle, name, given, wanted, each, counts)
  local ok, trouble = pcall(walk, { handle = handle, given = given, wanted = wanted, each = each, counts = counts },
    VERBS[name])
  if ok then return true end
  if type(trouble) ~= "table" or not trouble.message then error(trouble, 0) end
  return nil, trouble.message, trouble.code
end

--- How many jobs the filter holds for. Jobs that go from one state to another meanwhile may be
-- missed, or be counted twice.
---@param handle userdata core handle
---@param name string of the verb
---@param given table checked by `read`; `told` as of `run`. A table with a message that it raises is the failure
---@return integer|nil
---@return string? message
---@return string? code
function filter.count(handle, name, given)
  local n = 0
  local wanted, message, code = filter.bind(handle, given)
  if not wanted then return wanted == false and 0 or nil, message, code end
  local ok
  ok, message, code = run(handle, name, given, wanted, function(_, rows)
    n = n + #rows
    if given.told then given.told(n) end
  end, true)
  if not ok then return nil, message, code end
  return n
end

--- Waits until so many jobs are within the rate.
local function keep_pace(began, found, pace)
  local wait = began + found / pace - core.clock()
  if wait > 0 then core.sleep(wait) end
end

--- The ids of a batch in their order, as locks are taken; and its stretch of a lane.
local function batch_of(rows, first, last)
  local ids = {}
  for i = first, last do ids[#ids + 1] = rows[i].id end
  table.sort(ids)
  return ids, rows[first].ready_at, rows[last].ready_at
end

--- The core's verb and its number.
local function verb_of(handle, name, given)
  if not given.to then return VERBS[name].core or name, given.priority or 0 end
  local id, message, code = handle:queue_id(given.to, true)
  if not id then return nil, message, code end
  return filter.ENDED[given.state] and "move_ended" or name, id
end

-- Codes of a job that went on by itself meanwhile.
local MOVED_ON <const> = { NOT_FOUND = true, STATE = true }

-- Verbs that are done to one job after the other. Each gives the values of the core's; false: the
-- job is left as it is.
local SINGLE <const> = {}

function SINGLE.delete(handle, _, row, ended) return handle:delete(row.id, ended) end

function SINGLE.update(handle, given, row, ended)
  local what = given.change
  return changes.write(handle, what.values, what.make, row, ended, given.retry)
end

--- The jobs of a batch that the filter holds for, as a change looks at them.
local function looked_at(handle, given, rows, ended)
  if not (given.change and given.change.make) or #rows == 0 then return rows end
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row.id end
  return units.rows(must(changes.rows(handle, ended and "ended" or "live", ids)))
end

--- A verb on one job after the other: how many were changed, and how many refused.
local function one_by_one(handle, name, given, state, wanted, ids)
  local changed, refused, ended = 0, 0, filter.ENDED[state] == true
  local found = asked(handle, state, wanted, ids)
  for first = 1, #found, TEXTS do
    for _, row in ipairs(looked_at(handle, given, table.move(found, first, math.min(first + TEXTS - 1, #found), 1, {}),
      ended)) do
      local ok, message, code = SINGLE[name](handle, given, row, ended)
      if ok then changed = changed + 1
      elseif code == "DUPLICATE" then refused = refused + 1
      elseif ok == nil and not MOVED_ON[code] then must(nil, message, code) end
    end
  end
  return changed, refused
end

--- Does a verb to all jobs of a filter, batch after batch.
--
-- `told` gets the number found so far, behind each batch, and behind each page without any. No
-- transaction is open then, so it may yield: a walk can be done in slices. `batch`: at most so many
-- jobs in one.
---@param handle userdata core handle
---@param name string
---@param given table checked by `read`; `told` and `batch` may be added
---@return {found: integer, changed: integer, refused: integer}|nil counts refused: their unique key is another's
---@return string? message
---@return string? code
function filter.run(handle, name, given)
  if handle:in_transaction() then
    return nil, ("%s: a filter wants transactions of its own; this handle is in one"):format(name), "STATE"
  end
  local counts, began = { found = 0, changed = 0, refused = 0 }, core.clock()
  local wanted, message, code = filter.bind(handle, given)
  if not wanted then return wanted == false and counts or nil, message, code end
  local verb, argument
  verb, argument, code = verb_of(handle, name, given)
  if not verb then return nil, argument, code end
  local size = math.min(BATCH, given.batch or BATCH)
  if given.rate then size = math.tointeger(math.max(1, math.min(size, given.rate // SLICES))) end
  local action = audit.new(handle, name, audit.filter(given))
  local function do_to(state, ids, from, to)
    local part <close> = audit.part(action) -- luacheck: ignore 211
    if VERBS[name].single then return one_by_one(handle, name, given, state, wanted, ids) end
    return handle:many(verb, ids, argument, given.reason, from, to, state or core.null, wanted,
      filter.claims(ids[1], ids[#ids]))
  end
  local function change(state, ids, from, to)
    if given.rate then keep_pace(began, counts.found, given.rate) end
    local changed, refused, trouble = do_to(state, ids, from, to)
    must(changed, refused, trouble)
    counts.found = counts.found + #ids
    counts.changed = counts.changed + changed
    counts.refused = counts.refused + refused
    if given.told then given.told(counts.found) end
  end
  local ok
  ok, message, code = run(handle, name, given, wanted, function(state, rows, in_lane)
    state = (given.state or filter.ENDED[state]) and state -- a live job may go from one state to another meanwhile
    for first = 1, #rows, size do
      local ids, from, to = batch_of(rows, first, math.min(first + size - 1, #rows))
      change(state, ids, in_lane and from or 0, in_lane and to or 0)
    end
    if #rows == 0 and given.told then given.told(counts.found) end
  end)
  if ok then return counts end
  if counts.changed > 0 then message = ("%s; %d jobs were changed before"):format(message, counts.changed) end
  return nil, message, code
end

return filter
