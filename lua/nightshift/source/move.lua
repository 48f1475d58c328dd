--- Rows leave an adopted table: ended rows are deleted, or go to another table; open rows become
-- jobs of another queue. How they are found and locked: see admin.lua. A batch is one
-- transaction.

local admin = require "nightshift.source.admin"
local core = require "nightshift.core"
local failure = require "nightshift.source.failure"
local mapping = require "nightshift.source.mapping"
local options = require "nightshift.options"
local pay = require "nightshift.source.pay"
local steps = require "nightshift.source.steps"
local take = require "nightshift.source.take"

local move = {}

local caught, fail, must = failure.caught, failure.fail, failure.must

local function list_of(self, rows)
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row[self.key] end
  return steps.list(ids)
end

local function delete(self, rows)
  local n = must(steps.run(self, "delete", list_of(self, rows))).affected
  if n ~= #rows then fail("BUSY", "the server has deleted %d rows of %d", n, #rows) end
end

-- ------------------------------------------------------------------- pruning

--- Check: the name of a table.
local function table_name(value, what)
  if type(value) ~= "string" then options.raise("%s must be the name of a table, got %s", what, type(value)) end
  if #value >= 1 and #value <= 256 then return value end
  return nil, what .. ": a table's name has 1 to 64 characters"
end

move.PRUNE = {
  older = options.duration, into = table_name, limit = options.integer(1, admin.EVERY),
  state = options.one_of("dead", "done"),
}

--- The statement that moves rows of a list into another table, which has all columns of this one.
local function move_text(self, into)
  local name, quoted = self.map.table, mapping.quoted
  if into:find("\0", 1, true) or into == name then
    fail("INVALID", "rows of '%s' cannot be moved to '%s'", name, options.shown(into))
  end
  local to, from = {}, {}
  for _, row in ipairs(must(steps.ask(self, "source_into", into, into, name))) do
    if not row.engine then
      fail("NOT_FOUND", "there is no table '%s' to move rows to: CREATE TABLE %s LIKE %s", into, quoted(into),
        quoted(name))
    elseif row.engine ~= "InnoDB" then
      fail("INVALID", "'%s' is not an InnoDB table: what a crash interrupts there would be there twice, or not at all",
        into)
    elseif not row.made then
      fail("INVALID", "'%s' has no column '%s', which rows of '%s' have", into, row.name, name)
    elseif row.made ~= "ALWAYS" then
      to[#to + 1], from[#from + 1] = quoted(row.name), "t." .. quoted(row.name)
    end
  end
  return "@:" .. mapping.fill("source_move", { into = quoted(into), table = quoted(name), id = "t." .. quoted(self.key),
    to = table.concat(to, ", "), from = table.concat(from, ", ") })
end

--- Deletes rows that have ended, or moves them.
local function remove(self, rows, into, moves)
  local ok, message, code = true, nil, nil
  if moves then ok, message, code = self.handle:execute(moves, list_of(self, rows)) end
  if not ok and code == "DUPLICATE" then
    fail(code, "'%s' has one of these rows already: delete it there, or in '%s', and go on (%s)", into, self.map.table,
      message)
  end
  must(ok, message, code)
  delete(self, rows)
end

--- Calls fn with the ids of rows that have ended as is asked; the sum.
local function each_ended(self, given, limit, fn)
  local pick = (given.state or "done") .. (given.older and "_old" or "_pick")
  admin.outside(self, "rows cannot be pruned")
  if self.texts[pick] then return admin.walk(self, pick, given.older, { limit = limit }, fn) end
  fail("INVALID", "nothing says when rows of '%s' were done: the mapping names neither 'completed_at' nor 'updated'",
    self.map.table)
end

--- How many rows a pruning would concern.
---@type fun(self: nightshift.source.Table, given: table): integer|nil, string?, string?
move.prunable = caught(function(self, given)
  return (each_ended(self, given, given.limit, function(ids) return #ids end))
end)

--- Deletes rows that have ended, or moves them; how many. With rows gone their parents are free to
-- go: so as often as rows go, where they have parents.
local function prune(self, given)
  local limit, sum = given.limit or admin.EVERY, 0
  local moves = given.into and move_text(self, given.into)
  repeat
    local n = each_ended(self, given, limit - sum, function(ids)
      return admin.change(self, (given.state or "done") .. "_lock", ids, remove, given.into, moves)
    end)
    sum = sum + n
  until n == 0 or sum >= limit or not self.map.parts.parent
  return sum
end

--- The verb; options are checked, as PRUNE.
move.prune = caught(prune)

-- ------------------------------------------------------------------ draining

local BATCH = 1000

move.DRAIN = {
  into = options.typed "string", limit = options.integer(1, math.maxinteger), batch = options.integer(1, 10000),
  rate = options.integer(1, 1000000),
}

--- Makes open rows plain jobs, and deletes them.
local function push_rows(self, rows, into)
  local entries, failed = {}, {}
  for i, row in ipairs(rows) do
    local entry, n = take.entry_of(self, row, row[self.key])
    if not entry then fail("INVALID", "%s", n) end
    entry.unique, entry.delay = nil, row["ns:delay"]
    entry.decay = entry.priority and math.min(self.map.decay, 255)
    entries[i], failed[i] = entry, n
  end
  must(take.set_attempts(self, must(self.handle:push(into, entries)), failed))
  delete(self, rows)
end

local change = caught(admin.change)

--- A batch, and one by one where the server, or a job, refuses a row of it; how many went, and how
-- many were refused.
local function drain_batch(self, ids, into)
  local n, message, code = change(self, "open_lock", ids, push_rows, into)
  if n then return n, 0 end
  if not steps.is_of_row(message, code) then must(n, message, code) end
  if #ids == 1 then return 0, 1 end
  local sum, refused = 0, 0
  for _, id in ipairs(ids) do
    local one, bad = drain_batch(self, { id }, into)
    sum, refused = sum + one, refused + bad
  end
  return sum, refused
end

--- The result of a drain: `jobs`, `left`, and by reason in `kept`: running, refused, and busy.
-- busy: rows that were changed or locked meanwhile.
local function result_of(jobs, running, refused, busy)
  local function some(n) return n > 0 and n or nil end
  return { jobs = jobs, left = running + refused + busy,
    kept = { running = some(running), refused = some(refused), busy = some(busy) } }
end

local function check_drain(self, into)
  must(options.name("drain: queue name", into, options.MAX_QUEUE))
  admin.outside(self, "a table cannot be drained")
  if self.map.parts.parent then
    fail("INVALID", "rows of '%s' wait for their parents, of which a drained one would know nothing: drain it by a "
      .. "mapping without 'parent', once no row waits for one", self.map.table)
  end
end

--- The result that a drain into a queue would have.
---@type fun(self: nightshift.source.Table, into: string): table|nil, string?, string?
move.look = caught(function(self, into)
  check_drain(self, into)
  local counts = admin.count(self, math.maxinteger)
  local here, stay = counts.ready + counts.waiting + counts.running, counts.taken + counts.theirs
  return result_of(here - stay, stay, 0, 0)
end)

--- Drains a table; `told` (may be nil) is called after each batch with the rows that have moved.
local function drain(self, given, told)
  if not given.into then options.raise "drain: 'into' is missing" end
  check_drain(self, given.into)
  must(pay.all(self))
  local refused, busy, jobs, start = 0, 0, 0, core.clock()
  local batch = math.min(given.batch or BATCH, given.rate and math.max(1, given.rate // 4) or math.maxinteger)
  admin.walk(self, "open_pick", nil, { limit = given.limit, batch = batch }, function(ids)
    if given.rate then core.sleep(math.max(0, start + jobs / given.rate - core.clock())) end
    local n, bad = drain_batch(self, ids, given.into)
    jobs, refused, busy = jobs + n, refused + bad, busy + #ids - n - bad
    if told then told(jobs) end
    return n
  end)
  local counts = admin.count(self, BATCH * 100)
  return result_of(jobs, counts.theirs + counts.taken, refused, busy)
end

--- The verb; options are checked, as DRAIN.
---@type fun(self: nightshift.source.Table, given: table, told: fun(moved: integer)?): table|nil, string?, string?
move.drain = caught(drain)

--- Adds these verbs to the ones of an adopted table.
---@param methods table
---@param live fun(self: nightshift.source.Table, verb: string): userdata
function move.define(methods, live)
  --- Deletes done rows (`state = "dead"`: dead ones) that ended longer ago than `older`, or
  -- moves them to the table `into`; at most `limit`.
  methods.prune = admin.verb(live, "prune", move.PRUNE, prune)

  --- Makes open rows plain jobs of another queue, and deletes them here. Rows that are claimed,
  -- or change meanwhile, stay.
  methods.drain = admin.verb(live, "drain", move.DRAIN, drain)
end

return move
