--- What people do with rows of an adopted table that have ended: dead ones are listed,
-- counted by their errors and run again, all are deleted or moved away.

local core = require "nightshift.core"
local options = require "nightshift.options"
local times = require "nightshift.times"

local raise = options.raise

local dead = {}

local EVERY = 1 << 53 -- a limit that is none
local SHOWN = 50

--- Check: the name of a table.
local function table_name(value, what)
  if type(value) ~= "string" then raise("%s must be the name of a table, got %s", what, type(value)) end
  if #value >= 1 and #value <= 256 then return value end
  return nil, what .. ": a table's name has 1 to 64 characters"
end

dead.LIST = {
  limit = options.integer(1, 1 << 31),
  error = options.typed "string",
  by = options.one_of "error",
}
dead.PRUNE = {
  older = options.duration, into = table_name, limit = options.integer(1, 1 << 53),
  state = options.one_of("dead", "done"),
}

local function decoded(json, message, code)
  if not json then return nil, message, code end
  return assert(core.decode(json))
end

--- The payload as in a job; text when Lua cannot hold it exactly.
local function with_payload(row)
  local payload = core.decode(row.payload)
  if payload ~= nil then row.payload = payload end
  return row
end

--- Lists dead rows, or, by errors, kinds of them.
---@param handle userdata core handle
---@param number integer the table's
---@param given table checked, as LIST
function dead.list(handle, number, given)
  local limit = given.limit or SHOWN
  if given.by then return times.rows(decoded(handle:adopt_dead_groups(number, limit, given.error))) end
  local rows, message, code = times.rows(decoded(handle:adopt_dead(number, limit, given.error)))
  for _, row in ipairs(rows or {}) do with_payload(row) end
  return rows, message, code
end

--- Those of a list, one by one: what is not dead stays as it is.
local function retry_list(handle, number, ids)
  local hole, n = options.hole(ids), 0
  if hole then raise("retry: the list of ids has a hole at %d", hole) end
  for i, id in ipairs(ids) do
    if math.type(id) ~= "integer" then raise("retry: id %d must be a whole number, got %s", i, type(id)) end
    local ok, message, code = handle:adopt_retry(number, id)
    if ok then n = n + 1
    elseif code ~= "STATE" and code ~= "NOT_FOUND" then return nil, message, code end
  end
  return n
end

local RETRY = { error = options.typed "string" }

--- Runs dead rows again: one by its id, those of a list, those of an error, or all.
---@param handle userdata core handle
---@param number integer the table's
---@param what integer|integer[]|{error: string}|"all"
function dead.retry(handle, number, what)
  if math.type(what) == "integer" then return handle:adopt_retry(number, what) end
  if what == "all" then return handle:adopt_retry_all(number) end
  if type(what) ~= "table" then
    raise('retry wants an id, a list of ids, {error = …} or "all", got %s', tostring(what))
  end
  local n, message, code
  if what.error ~= nil then
    n, message, code = handle:adopt_retry_all(number, options.read("retry", what, RETRY).error)
  else
    n, message, code = retry_list(handle, number, what)
  end
  return n, message, code
end

--- Deletes ended rows, or moves them.
---@param handle userdata core handle
---@param number integer the table's
---@param given table checked, as PRUNE
function dead.prune(handle, number, given)
  return handle:adopt_prune(number, given.older or -1, given.limit or EVERY, given.state == "dead", given.into)
end

--- How many rows that would be.
function dead.prunable(handle, number, given)
  return handle:adopt_prunable(number, given.older or -1, given.limit or EVERY, given.state == "dead")
end

--- Adds the verbs to those of an adopted table.
---@param methods table
---@param live fun(self: nightshift.Adopted, verb: string): userdata
function dead.define(methods, live)
  --- The rows that no claim takes any more, because they have failed as often as they may
  -- or were given up: each with its last error. `by = "error"`: kinds of errors instead,
  -- the most frequent first; they differ in more than numbers.
  ---@param opts {limit: integer?, error: string?, by: "error"?}?
  ---@return table[]|nil
  ---@return string? message
  ---@return string? code
  function methods:dead(opts)
    local handle = live(self, "dead")
    local given, message, code = options.read("dead", opts, dead.LIST)
    if not given then return nil, message, code end
    local rows
    rows, message, code = dead.list(handle, self._number, given)
    return rows, message, code
  end

  --- Runs dead rows again, with all their attempts: one by its id, or how many of a list,
  -- of an error or a kind of them, or of all.
  ---@param what integer|integer[]|{error: string}|"all"
  ---@return true|integer|nil
  ---@return string? message
  ---@return string? code
  function methods:retry(what)
    local done, message, code = dead.retry(live(self, "retry"), self._number, what)
    return done, message, code
  end

  --- Deletes rows that are done (`state = "dead"`: dead), those that ended longer ago than
  -- `older`, or moves them to the table `into`; at most `limit`.
  ---@param opts {state: "done"|"dead"?, older: number|string?, into: string?, limit: integer?}?
  ---@return integer|nil
  ---@return string? message
  ---@return string? code
  function methods:prune(opts)
    local handle = live(self, "prune")
    local given, message, code = options.read("prune", opts, dead.PRUNE)
    if not given then return nil, message, code end
    local n
    n, message, code = dead.prune(handle, self._number, given)
    return n, message, code
  end
end

return dead
