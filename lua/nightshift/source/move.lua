--- Rows leave an adopted table: those that have ended are deleted, or go to another table, and those
-- that are open become jobs of another queue.
--
-- They are found without locks in the order of their ids, a batch at a time, then locked by key past
-- those that other sessions have locked. What becomes of a batch is one transaction. A row that
-- has a live job, or is owed something, stays.

local admin = require "nightshift.source.admin"
local admin_text = require "nightshift.source.admin_text"
local core = require "nightshift.core"
local mapping = require "nightshift.source.mapping"
local options = require "nightshift.options"
local pay = require "nightshift.source.pay"
local steps = require "nightshift.source.steps"
local take = require "nightshift.source.take"

local move = {}

local AT_ONCE = 1000 -- rows of a transaction
local PAGE = 10000   -- ids that are looked for at once

--- Ids behind one, in their order.
local function pick(self, name, ...)
  local rows, message, code = steps.run(self, name, ...)
  if not rows then return nil, message, code end
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row.id end
  return ids
end

--- Locks those of the rows that nobody else has locked, and that have neither a job nor a debt.
local function lock(self, name, ids)
  local rows, message, code = steps.run(self, name, steps.list(ids), #ids)
  if rows then rows, message, code = take.free_of(self, rows) end
  if not rows then return nil, message, code end
  local locked = {}
  for i, row in ipairs(rows) do locked[i] = row[self.key] end
  return locked, rows
end

local function delete(self, ids)
  local result, message, code = steps.run(self, "delete", steps.list(ids))
  if not result then return nil, message, code end
  if result.affected == #ids then return true end
  return nil, ("the server has deleted %d rows of %d"):format(result.affected, #ids), "BUSY"
end

-- ------------------------------------------------------------------- pruning

--- Check: the name of a table.
local function table_name(value, what)
  if type(value) ~= "string" then options.raise("%s must be the name of a table, got %s", what, type(value)) end
  if #value >= 1 and #value <= 256 then return value end
  return nil, what .. ": a table's name has 1 to 64 characters"
end

move.PRUNE = {
  older = options.duration, into = table_name, limit = options.integer(1, 1 << 53),
  state = options.one_of("dead", "done"),
}

local function invalid(format, ...) return nil, format:format(...), "INVALID" end

--- The statement that moves rows of a list into another table, which has all columns of this one.
local function move_text(self, into)
  local name = self.map.table
  if into:find("\0", 1, true) or into == name then
    return invalid("rows of '%s' cannot be moved to '%s'", name, options.shown(into))
  end
  local rows, message, code = steps.ask(self, "source_into", into, into, name)
  if not rows then return nil, message, code end
  local to, from = {}, {}
  for _, row in ipairs(rows) do
    if row.is_there == 0 then
      return nil, ("there is no table '%s' to move rows to: CREATE TABLE %s LIKE %s"):format(into,
        mapping.quoted(into), mapping.quoted(name)), "NOT_FOUND"
    end
    if row.is_innodb == 0 then
      return invalid("'%s' is not an InnoDB table: what a crash interrupts there would be there twice, or not at all",
        into)
    end
    if row.has == 0 then return invalid("'%s' has no column '%s', which rows of '%s' have", into, row.name, name) end
    if row.is_made == 0 then
      to[#to + 1], from[#from + 1] = mapping.quoted(row.name), "t." .. mapping.quoted(row.name)
    end
  end
  return "@:" .. mapping.fill("source_move", { into = mapping.quoted(into), table = mapping.quoted(name),
    id = "t." .. mapping.quoted(self.key), to = table.concat(to, ", "), from = table.concat(from, ", ") })
end

--- Deletes, or moves, those of the rows that have ended still; how many.
local function prune_rows(self, name, ids, into, moves)
  local locked, message, code = lock(self, name, ids)
  if not locked then return nil, message, code end
  if #locked == 0 then return 0 end
  local ok = true
  if moves then ok, message, code = self.handle:execute(moves, steps.list(locked)) end
  if not ok and code == "DUPLICATE" then
    message = ("'%s' has one of these rows already: delete it there, or in '%s', and go on (%s)"):format(into,
      self.map.table, message)
  end
  if ok then ok, message, code = delete(self, locked) end
  if not ok then return nil, message, code end
  return #locked
end

--- All rows that have ended so, once, in their order: calls fn with the ids of each batch, of which
-- it gives how many count. Ends at the limit; how many in all.
local function each_batch(self, given, limit, fn)
  local name = (given.state or "done") .. (given.older and "_old" or "_pick")
  local last, sum = math.mininteger, 0
  local ids
  repeat
    local message, code
    if given.older then ids, message, code = pick(self, name, given.older, last, PAGE)
    else ids, message, code = pick(self, name, last, PAGE) end
    if not ids then return nil, message, code end
    local from = 1
    while from <= #ids and sum < limit do
      local n
      local upto = math.min(from + math.min(AT_ONCE, limit - sum), #ids + 1) - 1
      n, message, code = fn(table.move(ids, from, upto, 1, {}))
      if not n then return nil, message, code end
      sum, from = sum + n, upto + 1
    end
    last = ids[#ids]
  until #ids < PAGE or sum >= limit
  return sum
end

local function check_prune(self, given)
  if self.handle:in_transaction() then return nil, "rows cannot be pruned inside a transaction", "STATE" end
  if not given.older or given.state == "dead" or admin_text.ended(self.map) then return true end
  return invalid("nothing says when rows of '%s' were done: the mapping names neither 'completed_at' nor 'updated'",
    self.map.table)
end

local EVERY = 1 << 53 -- a limit that is none

--- How many rows a pruning would concern.
---@param self nightshift.source.Table
---@param given table checked, as PRUNE
---@return integer|nil
---@return string? message
---@return string? code
function move.prunable(self, given)
  local ok, message, code = check_prune(self, given)
  if not ok then return nil, message, code end
  admin_text.of(self)
  return each_batch(self, given, given.limit or EVERY, function(ids) return #ids end)
end

--- Deletes rows that have ended, or moves them; how many. With rows gone their parents are free to
-- go: so as often as rows go, where they have parents.
---@param self nightshift.source.Table
---@param given table checked, as PRUNE
---@return integer|nil
---@return string? message
---@return string? code
function move.prune(self, given)
  local ok, message, code = check_prune(self, given)
  if not ok then return nil, message, code end
  admin_text.of(self)
  local limit, sum = given.limit or EVERY, 0
  local n, moves
  if given.into then
    moves, message, code = move_text(self, given.into)
    if not moves then return nil, message, code end
  end
  local name = (given.state or "done") .. "_lock"
  repeat
    n, message, code = each_batch(self, given, limit - sum, function(ids)
      return steps.transaction(self, prune_rows, name, ids, given.into, moves)
    end)
    if not n then return nil, message, code end
    sum = sum + n
  until n == 0 or sum >= limit or not self.map.parts.parent
  return sum
end

-- ------------------------------------------------------------------ draining

move.DRAIN = {
  into = options.typed "string", limit = options.integer(1, math.maxinteger), batch = options.integer(1, 10000),
  rate = options.integer(1, 1000000),
}

--- Makes those of the rows that are open still plain jobs, and deletes them; how many.
local function drain_rows(self, ids, into)
  local locked, rows, code = lock(self, "open_lock", ids)
  if not locked then return nil, rows, code end
  if #locked == 0 then return 0 end
  local entries, failed = {}, {}
  for i, row in ipairs(rows) do
    local entry, n = take.entry_of(self, row, row[self.key])
    if not entry then return nil, n, "INVALID" end
    entry.unique, entry.delay = nil, row["ns:delay"]
    entry.decay = entry.priority and math.min(self.map.decay, 255)
    entries[i], failed[i] = entry, n
  end
  local ok, message
  local jobs
  jobs, message, code = self.handle:push(into, entries)
  if jobs then ok, message, code = take.set_attempts(self, jobs, failed) end
  if ok then ok, message, code = delete(self, locked) end
  if not ok then return nil, message, code end
  return #locked
end

--- A batch, and one by one where the server, or a job, refuses a row of it; how many went, and how
-- many were refused.
local function drain_batch(self, ids, into)
  local n, message, code = steps.transaction(self, drain_rows, ids, into)
  if n then return n, 0 end
  if not steps.is_of_row(message, code) then return nil, message, code end
  if #ids == 1 then return 0, 1 end
  local sum, refused = 0, 0
  for _, id in ipairs(ids) do
    local bad
    n, bad, code = drain_batch(self, { id }, into)
    if not n then return nil, bad, code end
    sum, refused = sum + n, refused + bad
  end
  return sum, refused
end

--- What a drain has come to: `jobs`, `left`, and of those by their reason in `kept`: running,
-- refused, and busy, which were changed or locked meanwhile.
local function result_of(jobs, running, refused, busy)
  local function some(n) return n > 0 and n or nil end
  return { jobs = jobs, left = running + refused + busy,
    kept = { running = some(running), refused = some(refused), busy = some(busy) } }
end

local function check_drain(self, into)
  local ok, message, code = options.name("drain: queue name", into, options.MAX_QUEUE)
  if not ok then return nil, message, code end
  if self.handle:in_transaction() then return nil, "a table cannot be drained inside a transaction", "STATE" end
  if not self.map.parts.parent then return true end
  return invalid("rows of '%s' wait for their parents, of which a drained one would know nothing: drain it by a "
    .. "mapping without 'parent', once no row waits for one", self.map.table)
end

--- Rows of the next batch: no more than the limit allows, and a quarter of a second's.
local function batch_of(given, jobs)
  local n = math.min(given.batch or AT_ONCE, given.limit and given.limit - jobs or math.maxinteger)
  return given.rate and math.min(n, math.max(1, given.rate // 4)) or n
end

--- What a drain would do.
---@param self nightshift.source.Table
---@param into string
---@return table|nil
---@return string? message
---@return string? code
function move.look(self, into)
  local ok, message, code = check_drain(self, into)
  if not ok then return nil, message, code end
  local counts
  counts, message, code = admin.count(self, math.maxinteger)
  if not counts then return nil, message, code end
  local here = counts.ready + counts.waiting + counts.running
  return result_of(here - counts.taken - counts.theirs, counts.theirs + counts.taken, 0, 0)
end

--- Drains a table; `told` (may be nil) is called after each batch with the rows that have moved.
---@param self nightshift.source.Table
---@param given {into: string, limit: integer?, batch: integer?, rate: integer?} checked
---@param told fun(moved: integer)?
---@return table|nil
---@return string? message
---@return string? code
function move.drain(self, given, told)
  local ok, message, code = check_drain(self, given.into)
  if ok then ok, message, code = pay.all(self) end
  if not ok then return nil, message, code end
  admin_text.of(self)
  local last, jobs, refused, busy, start = math.mininteger, 0, 0, 0, core.clock()
  repeat
    local most = batch_of(given, jobs)
    local ids, n, bad
    ids, message, code = pick(self, "open_pick", last, most)
    if not ids then return nil, message, code end
    n, bad, code = drain_batch(self, ids, given.into)
    if not n then return nil, bad, code end
    jobs, refused, busy, last = jobs + n, refused + bad, busy + #ids - n - bad, ids[#ids]
    if told then told(jobs) end
    local more = #ids == most and not (given.limit and jobs >= given.limit)
    if more and given.rate then core.sleep(math.max(0, start + jobs / given.rate - core.clock())) end
  until not more
  local counts
  counts, message, code = admin.count(self, AT_ONCE * 100)
  if not counts then return nil, message, code end
  return result_of(jobs, counts.theirs + counts.taken, refused, busy)
end

-- ----------------------------------------------------------------- the verbs

--- Adds the verbs to those of an adopted table; library/nightshift.lua has their types.
---@param methods table
---@param live fun(self: nightshift.source.Table, verb: string): userdata
function move.define(methods, live)
  --- Deletes rows that are done (`state = "dead"`: dead), those that ended longer ago than `older`,
  -- or moves them to the table `into`; at most `limit`.
  function methods:prune(opts)
    live(self, "prune")
    local given, message, code = options.read("prune", opts, move.PRUNE)
    if not given then return nil, message, code end
    return move.prune(self, given)
  end

  --- Makes open rows plain jobs of another queue, and deletes them here. What is claimed, or changes
  -- meanwhile, stays.
  function methods:drain(opts)
    live(self, "drain")
    local given, message, code = options.read("drain", opts, move.DRAIN)
    if not given then return nil, message, code end
    if not given.into then options.raise "drain: 'into' is missing" end
    return move.drain(self, given)
  end
end

return move
