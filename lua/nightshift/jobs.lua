--- The verbs of the database handle on jobs that have been pushed: by id, or on all of a filter.
--
-- The handle's type begins here; db.lua adds its other verbs and makes handles.

local core = require "nightshift.core"
local ended = require "nightshift.ended"
local options = require "nightshift.options"
local units = require "nightshift.units"

local later, raise = options.later, options.raise

local change = later(function() return require "nightshift.change" end)
local filters = later(function() return require "nightshift.filter" end)
local reading = later(function() return require "nightshift.report.jobs" end)
local report = later(function() return require "nightshift.report" end)
local why = later(function() return require "nightshift.report.why" end)

local methods = options.methods({}, "db")
local meta = { __index = methods, __name = "nightshift.db" }

--- The core's handle, for a verb that was called with a colon on an open one.
local function live(self, verb)
  options.own(self, meta, "db", verb)
  return (options.live(self._handle, verb))
end

local function check_id(verb, id)
  local whole = math.tointeger(id)
  if type(id) == "number" and whole then return whole end
  if type(id) == "number" then raise("%s: the id must be an integer, got %s", verb, id) end
  raise("%s: the id must be an integer, got a %s", verb, type(id))
end

--- All facts about a job, live or finished.
---@param id integer
---@return nightshift.JobInfo|nil
---@return string? message
---@return string? code
function methods:job(id)
  local info, message, code = live(self, "job"):info(check_id("job", id))
  if not info then return nil, message, code end
  -- outside a handler `state` is the job's state, and the state that a poll keeps is `kept`
  info.kept, info.state, info.where = info.state, info.where, nil
  local rows
  if info._tagged then
    info._tagged = nil
    rows, message, code = self._handle:execute("@settle_tag_list", info.id)
    if not rows then return nil, message, code end
    info.tags = core.array {}
    for i, row in ipairs(rows) do info.tags[i] = row.tag end
  end
  if not info._follows then return info end
  info._follows = nil
  rows, message, code = self._handle:execute("@admin_after", info.id, info.id)
  if not rows then return nil, message, code end
  info.after = #rows > 0 and ended.ids(rows) or nil
  return info
end

--- Why a job is not running: one sentence, and a table with the facts: `kind` and the facts of
-- that kind. See why.lua.
---@param id integer
---@return string|nil
---@return nightshift.Why|string
---@return string? code
function methods:why(id)
  local handle = live(self, "why")
  return options.values(why().of(handle, check_id("why", id)))
end

--- Lists jobs: one state in its own order (next first, or newest first when
-- finished), or every state by id, which is roughly newest first.
---@param filter nightshift.JobFilter?
---@return nightshift.JobRow[]|nil
---@return {after: integer, looked: integer?}|string|nil more
---@return string? code
function methods:jobs(filter)
  local handle = live(self, "jobs")
  local given, message, code = options.read("jobs", filter, report().FILTER)
  if not given then return nil, message, code end
  return options.values(report().jobs(handle, given))
end

--- Kinds of errors: of dead jobs, and of jobs that wait for another attempt.
---@param given {queue: string?, name: string?, since: number|string|nil, limit: integer?, look: integer?}?
---@return nightshift.ErrorKind[]|nil
---@return {looked: integer}|string|nil more
---@return string? code
function methods:errors(given)
  local handle = live(self, "errors")
  local checked, message, code = options.read("errors", given, report().ERRORS)
  if not checked then return nil, message, code end
  return options.values(report().errors(handle, checked))
end

local CANCEL = { reason = options.text, tree = options.typed "boolean" }
local TREE = { tree = options.typed "boolean" }

--- Handle, id and options of a verb that `tree = true` does to all below as well.
local function of_tree(self, verb, id, opts, known)
  local handle = live(self, verb)
  local whole = check_id(verb, id)
  local given, message, code = options.read(verb, opts, known or TREE)
  if not given then return nil, message, code end
  return handle, whole, given
end

--- A verb on all jobs of a filter.
local function on_filter(self, verb, given, extra)
  local handle = live(self, verb)
  options.no_more(verb, "a filter, which has all options", extra)
  local checked, message, code = filters().read(verb, given)
  if not checked then return nil, message, code end
  return filters().run(handle, verb, checked)
end

--- Ends a live job; a running one is told, stopped when it does not listen, and
-- its late verdict is STALE. `tree`: with all below it; gives how many.
---@param id integer
---@param opts {reason: string?, tree: boolean?}?
---@return true|integer|nil
---@return string? message
---@return string? code
function methods:cancel(id, opts)
  if type(id) == "table" then return options.values(on_filter(self, "cancel", id, opts)) end
  local handle, whole, given = of_tree(self, "cancel", id, opts, CANCEL)
  if not handle then return nil, whole, given end
  if given.tree then return handle:tree("cancel", whole, 0, given.reason) end
  return handle:cancel(whole, given.reason)
end

--- No job of a tree starts until it is resumed. Running jobs run on.
---@param id integer
---@return integer|nil jobs that it holds now and did not before
---@return string? message
---@return string? code
function methods:pause(id)
  return live(self, "pause"):tree("pause", check_id("pause", id))
end

--- Ends the `pause` of the same id; jobs with a pause of their own stay paused.
---@param id integer
---@return integer|nil jobs
---@return string? message
---@return string? code
function methods:resume(id)
  return live(self, "resume"):tree("resume", check_id("resume", id))
end

--- Runs a finished job again with fresh budgets. `tree`: all failed jobs at or below it, each
-- waiting for the same jobs as before; gives how many.
---@param id integer
---@param opts {tree: boolean?}?
---@return true|integer|nil
---@return string? message
---@return string? code
function methods:retry(id, opts)
  if type(id) == "table" then return options.values(on_filter(self, "retry", id, opts)) end
  local handle, whole, given = of_tree(self, "retry", id, opts)
  if not handle then return nil, whole, given end
  if given.tree then return handle:tree("retry", whole) end
  return handle:retry(whole)
end

--- Deletes a job with its payload, result, errors, log and signals, at once. A live job that does
-- not run ends first, as cancelled. A running one is STATE, and so is a child of a live parent.
-- `tree`: with all below it, when all of that tree has ended; gives how many.
---@param id integer
---@param opts {tree: boolean?}?
---@return true|integer|nil
---@return string? message
---@return string? code
function methods:delete(id, opts)
  if type(id) == "table" then return options.values(on_filter(self, "delete", id, opts)) end
  local handle, whole, given = of_tree(self, "delete", id, opts)
  if not handle then return nil, whole, given end
  if given.tree then return handle:prune_tree(whole) end
  return handle:delete(whole)
end

--- Changes all jobs of a filter.
local function update_many(self, given, what, opts)
  local all = {}
  for key, value in next, given do all[key] = value end
  if opts ~= nil and type(opts) ~= "table" then raise("update: options must be a table, got %s", type(opts)) end
  for key, value in next, opts or {} do
    if key ~= "rate" and key ~= "retry" then raise("update: unknown option '%s'; it takes rate and retry", key) end
    all[key] = value
  end
  local checked, message, code = filters().read("update", all)
  if not checked then return nil, message, code end
  checked.change = what
  return filters().run(self._handle, "update", checked)
end

--- The job as a change looks at it, and whether it has ended.
local function looked_at(handle, id)
  for _, kind in ipairs { "live", "ended" } do
    local rows, message, code = change().rows(handle, kind, { id })
    if not rows then return nil, message, code end
    if rows[1] then return units.rows(rows)[1], kind == "ended" end
  end
  local info, message, code = handle:info(id)
  if not info then return nil, message, code end
  return looked_at(handle, id) -- it was retried between the two looks
end

--- Changes a job whose payload is made from the one that it has; again when that was changed
-- meanwhile.
local function update_made(handle, id, values, make)
  local text, run
  while true do
    local row, has_ended, code = looked_at(handle, id)
    if not row then return nil, has_ended, code end
    local same = row.payload == text and row.run == run
    text, run = row.payload, row.run
    local ok, message, holder
    ok, message, code, holder = change().write(handle, values, make, row, has_ended)
    if ok ~= nil then return true end
    if code ~= "STATE" or same then return nil, message, code, holder end
  end
end

--- Changes what a push has said about a job, or about all of a filter: {payload =, set =, queue =,
-- priority =, due =, max_attempts =, tags =, group =}. A ready job is then the last of its priority.
-- A running one is STATE, and so is a done one. A dead or cancelled job is changed for its retry.
-- `nightshift.null` is the payload null; `false` is no group. A payload that is a function gets the
-- old one, and the job, and gives the new one; nil: the job stays. `set` is a merge patch of the
-- payload, RFC 7396.
---@param id integer|table
---@param given table
---@param opts {rate: number?, retry: boolean?}? with a filter; retry: they run again
---@return true|table|nil
---@return string? message
---@return string? code
---@return integer? holder with DUPLICATE: the live job that has the key
function methods:update(id, given, opts)
  local handle = live(self, "update")
  local values, make, code = change().read(given)
  if not values then return nil, make, code end
  if type(id) == "table" then
    return options.values(update_many(self, id, { values = values, make = make }, opts))
  end
  local whole = check_id("update", id)
  options.no_more("update", "a job's id and the changes", opts)
  if not make then return handle:update(whole, values) end
  return options.values(update_made(handle, whole, values, make))
end

--- Waits for the end of a job, without polling, up to a time. Gives its outcome, its result, and
-- the error or reason when it is not done. BUSY: it has not ended.
---@param id integer
---@param wait number|string
---@return string|nil outcome "done", "dead", "cancelled"; "gone": it was deleted, or left no history
---@return any result
---@return string? why
function methods:wait(id, wait)
  local handle = live(self, "wait")
  local whole = check_id("wait", id)
  local us, message = options.duration(wait, "wait: the time")
  if not us then return nil, message, "INVALID" end
  local ends, problem, code = ended.wait(handle, { whole }, us)
  if not ends then return nil, problem, code end
  return ends[1].outcome, ends[1].result, ends[1].error or ends[1].reason
end

--- The same for many: a list of {id =, name =, outcome =, result =, reason =, error =}, in the
-- order of the ids, once all have ended.
---@param ids integer[]
---@param wait number|string
---@return nightshift.Result[]|nil ends
---@return string? message
---@return string? code
function methods:wait_all(ids, wait)
  local handle = live(self, "wait_all")
  if type(ids) ~= "table" then raise("wait_all: the ids must be a list, got a %s", type(ids)) end
  local hole = options.hole(ids)
  if hole then raise("wait_all: the ids must be a list without holes; item %d is nil", hole) end
  local list = {}
  for i, id in ipairs(ids) do list[i] = check_id("wait_all", id) end
  local us, message = options.duration(wait, "wait_all: the time")
  if not us then return nil, message, "INVALID" end
  return options.values(ended.wait(handle, list, us))
end

--- Makes a scheduled job ready now. `tree`: all at or below it; gives how many.
---@param id integer
---@param opts {tree: boolean?}?
---@return true|integer|nil
---@return string? message
---@return string? code
function methods:run_now(id, opts)
  if type(id) == "table" then return options.values(on_filter(self, "run_now", id, opts)) end
  local handle, whole, given = of_tree(self, "run_now", id, opts)
  if not handle then return nil, whole, given end
  if given.tree then return handle:tree("run_now", whole) end
  return handle:run_now(whole)
end

--- A live job is not started any more after this, from now; false: no limit. Jobs that it spawns
-- later inherit it. `tree`: all below it as well; gives how many.
---@param id integer
---@param deadline number|string|false
---@param opts {tree: boolean?}?
---@return true|integer|nil
---@return string? message
---@return string? code
function methods:deadline(id, deadline, opts)
  local handle, whole, given = of_tree(self, "deadline", id, opts)
  if not handle then return nil, whole, given end
  local us, message = options.duration_or_never(deadline, "deadline: the time")
  if not us then return nil, message, "INVALID" end
  if given.tree then return handle:tree("deadline", whole, us) end
  return handle:deadline(whole, us)
end

--- How many jobs of a tree are in which state, and `total`.
---@param id integer
---@return table|nil
---@return string? message
---@return string? code
function methods:progress(id)
  return live(self, "progress"):progress(check_id("progress", id))
end

--- How many children of a job are in which state, and `total`. With more than 10,000 the states are
-- those of a sample, and `estimated` is true. A total of 100,000 may be larger, and `more` is true.
---@param id integer
---@return nightshift.Children|nil
---@return string? message
---@return string? code
function methods:children(id)
  local handle, whole = live(self, "children"), check_id("children", id)
  local counts, message, code = reading().children(handle, whole)
  if not counts then return nil, message, code end
  if counts.total == 0 then
    local found
    found, message, code = reading().node(handle, whole)
    if not found then return nil, message, code end
  end
  return counts
end

--- Gives a live job another priority; a ready one is then the last of its priority. `tree`: all
-- below it as well; gives how many.
---@param id integer
---@param priority integer 0 to 255
---@param opts {tree: boolean?}?
---@return true|integer|nil
---@return string? message
---@return string? code
function methods:reprioritise(id, priority, opts)
  if type(id) == "table" then
    local all = {}
    for key, value in next, id do all[key] = value end
    all.priority = priority
    return options.values(on_filter(self, "reprioritise", all, opts))
  end
  local handle, whole, given = of_tree(self, "reprioritise", id, opts)
  if not handle then return nil, whole, given end
  local rank = math.tointeger(priority)
  if type(priority) ~= "number" or not rank then
    raise("reprioritise: the priority must be an integer, got %s", rank == nil and type(priority) == "number"
      and priority or type(priority))
  end
  if given.tree then return handle:tree("priority", whole, rank) end
  return handle:reprioritise(whole, rank)
end

--- Moves jobs that do not run, or that have ended, to another queue: {…filter…, to =, rate =}.
---@param given table
---@return {found: integer, changed: integer, refused: integer}|nil
---@return string? message
---@return string? code
function methods:move(given, extra)
  if type(given) ~= "table" then raise("move: the filter must be a table, got %s", type(given)) end
  return options.values(on_filter(self, "move", given, extra))
end

--- Sends a value to a job that waits for a signal, or will.
---@param id integer
---@param value any encoded as JSON
---@param name string? nil: whatever it waits for
---@return true|nil
---@return string? message
---@return string? code
function methods:signal(id, value, name)
  local handle = live(self, "signal")
  local whole = check_id("signal", id)
  if name ~= nil and type(name) ~= "string" then raise("signal: the name must be a string, got %s", type(name)) end
  local text, message, code = core.encode(value == nil and core.null or value, nil, "signal: the value")
  if not text then return nil, message, code end
  return handle:signal(whole, text, name)
end

return { methods = methods, meta = meta, live = live }
