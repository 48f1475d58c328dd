--- Draining adopted tables: batch after batch, at a rate; see adopt/drain.c.

local core = require "nightshift.core"
local options = require "nightshift.options"

local drain = {}

drain.OPTIONS = {
  into = options.typed "string", limit = options.integer(1, math.maxinteger), batch = options.integer(1, 10000),
  rate = options.integer(1, 1000000),
}

-- What is counted: rows that have moved, and those that stay.
local MOVED = { "jobs", "done", "dead" }
local LEFT = { "running", "unknown", "unfit", "changed", "busy" }

local function sum_of(counts, names)
  local n = 0
  for _, name in ipairs(names) do n = n + counts[name] end
  return n
end

--- What a drain has come to, as people see it: `jobs`, `history`, `cleaned`, `left`,
-- and of those by their reason in `kept`.
local function result_of(counts)
  local kept = {}
  for _, name in ipairs(LEFT) do kept[name] = counts[name] > 0 and counts[name] or nil end
  return {
    jobs = counts.jobs, history = counts.done + counts.dead, cleaned = counts.cleaned, left = sum_of(counts, LEFT),
    kept = kept,
  }
end

local function zero()
  local counts = { cleaned = 0 }
  for _, names in ipairs { MOVED, LEFT } do
    for _, name in ipairs(names) do counts[name] = 0 end
  end
  return counts
end

--- Rows of the next batch: no more than the limit allows, and a quarter of a second's.
local function batch_of(given, moved)
  local n = math.min(given.batch or 1000, given.limit and given.limit - moved or math.maxinteger)
  return given.rate and math.min(n, math.max(1, given.rate // 4)) or n
end

--- Drains a table; `told` (may be nil) is called after each batch with the rows that
-- have moved so far.
---@param self nightshift.Adopted
---@param given {into: string, limit: integer?, batch: integer?, rate: integer?} checked
---@param told fun(moved: integer)?
---@return table|nil
---@return string? message
---@return string? code
function drain.run(self, given, told)
  local total, moved, from, start = zero(), 0, nil, core.clock()
  repeat
    local counts, message, code = self._handle:adopt_drain(self._number, given.into, batch_of(given, moved), from)
    if not counts then return nil, message, code end
    for name, n in pairs(total) do total[name] = n + counts[name] end
    from, moved = counts.from, sum_of(total, MOVED)
    if told then told(moved) end
    if given.rate and counts.more then core.sleep(math.max(0, start + moved / given.rate - core.clock())) end
  until not counts.more or (given.limit and moved >= given.limit)
  return result_of(total)
end

--- What a drain would do.
---@param self nightshift.Adopted
---@return table|nil
---@return string? message
---@return string? code
function drain.look(self)
  local counts, message, code = self._handle:adopt_drainable(self._number)
  if not counts then return nil, message, code end
  return result_of(counts)
end

--- Adds the verb to those of an adopted table.
---@param methods table
---@param live fun(self: table, verb: string): userdata the handle
function drain.define(methods, live)
  --- Moves the rows into a queue: open ones as jobs, those that are done or have failed
  -- as history; and deletes them here. What is claimed, or changes meanwhile, stays.
  ---@param opts {into: string, limit: integer?, batch: integer?, rate: integer?}
  ---@return {jobs: integer, history: integer, cleaned: integer, left: integer, kept: table<string, integer>}|nil
  ---@return string? message
  ---@return string? code
  function methods:drain(opts)
    live(self, "drain")
    local given, message, code = options.read("drain", opts, drain.OPTIONS)
    if not given then return nil, message, code end
    if not given.into then options.raise "drain: 'into' is missing" end
    local drained
    drained, message, code = drain.run(self, given)
    return drained, message, code
  end
end

return drain
