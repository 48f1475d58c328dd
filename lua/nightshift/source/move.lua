--- Rows leave an adopted table: ended rows are deleted, or go to another table; open rows become
-- jobs of another queue. How they are found and locked: see admin.lua. A batch is one
-- transaction.

local admin = require "nightshift.source.admin"
local failure = require "nightshift.failure"
local mapping = require "nightshift.source.mapping"
local options = require "nightshift.options"
local pay = require "nightshift.source.pay"
local steps = require "nightshift.source.steps"
local take = require "nightshift.source.take"

local move = {}

local caught, fail, must, try = failure.caught, failure.fail, failure.must, failure.try

local function list_of(self, rows) return steps.list(steps.ids(rows, self.key)) end

local function delete(self, rows) steps.all_of(steps.run(self, "delete", list_of(self, rows)), #rows) end

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
  for _, row in ipairs(steps.ask(self, "source_into", into, into, name)) do
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

--- Copies rows into another table.
local function copy(self, rows, into, moves)
  local ok, message, code = self.handle:execute(moves, list_of(self, rows))
  if code == "DUPLICATE" then
    fail(code, "'%s' has one of these rows already: delete it there, or in '%s', and go on (%s)", into, self.map.table,
      message)
  end
  must(ok, message, code)
end

--- Calls fn with the ids of rows that have ended as is asked; the sum.
local function each_ended(self, given, limit, fn)
  local state = given.state or "done"
  local pick = state .. (given.older and "_old" or "_pick")
  admin.outside(self, "rows cannot be pruned")
  if self.texts[pick] then return admin.walk(self, pick, given.older, limit, fn) end
  fail("INVALID", "nothing says when rows of '%s' were %s: the mapping names %s", self.map.table, state,
    state == "done" and "neither 'completed_at' nor 'updated'" or "no column 'updated'")
end

--- How many rows a pruning would concern.
---@type fun(self: nightshift.source.Table, given: table): integer|nil, string?, string?
move.prunable = caught(function(self, given)
  return (each_ended(self, given, given.limit or admin.EVERY, function(ids) return #ids end))
end)

--- Deletes rows that have ended, or moves them; how many. With rows gone their parents are free to
-- go: so as often as rows go, where they have parents.
local function prune(self, given)
  local limit, sum = given.limit or admin.EVERY, 0
  local moves = given.into and move_text(self, given.into)
  local function remove(_, rows)
    if moves then copy(self, rows, given.into, moves) end
    delete(self, rows)
  end
  repeat
    local n = each_ended(self, given, limit - sum, function(ids)
      return admin.change(self, (given.state or "done") .. "_lock", ids, remove)
    end)
    sum = sum + n
  until n == 0 or sum >= limit or not self.map.parts.parent
  return sum
end

--- The verb; options are checked, as PRUNE.
move.prune = caught(prune)

-- ------------------------------------------------------------------ draining

local COUNTED = 100000 -- rows that are left; counting more takes long

move.DRAIN = { into = options.typed "string" }

--- Makes a batch of rows jobs: one by one where the server, or a job, refuses a row of it; how many
-- went.
local function drain_batch(self, ids, into)
  local n, message, code = try(admin.change, self, "open_lock", ids, function(_, rows)
    take.push(self, into, rows, function(entry, row)
      entry.unique, entry.delay = nil, row["ns:delay"]
      entry.decay = entry.priority and math.min(self.map.decay, 255)
    end)
    delete(self, rows)
  end)
  if n then return n end
  if not steps.is_of_row(message, code) then must(nil, message, code) end
  local sum = 0
  for _, id in ipairs(#ids > 1 and ids or {}) do sum = sum + drain_batch(self, { id }, into) end
  return sum
end

local function check_drain(self, into)
  must(options.name("drain: queue name", into, options.MAX_QUEUE))
  admin.outside(self, "a table cannot be drained")
  if self.map.parts.parent then
    fail("INVALID", "rows of '%s' wait for their parents, of which a drained one would know nothing: drain it by a "
      .. "mapping without 'parent', once no row waits for one", self.map.table)
  end
end

--- How many open rows there are, and how many of them are claimed.
local function open_rows(self, most)
  local counts = admin.count(self, most)
  return counts.ready + counts.waiting + counts.running, counts.taken + counts.theirs
end

--- The result that a drain into a queue would have: the rows that become jobs, and that are left.
---@type fun(self: nightshift.source.Table, given: table): {jobs: integer, left: integer}|nil, string?, string?
move.look = caught(function(self, given)
  check_drain(self, given.into)
  local rows, claimed = open_rows(self, math.maxinteger)
  return { jobs = rows - claimed, left = claimed }
end)

--- Drains a table.
local function drain(self, given)
  if not given.into then options.raise "drain: 'into' is missing" end
  check_drain(self, given.into)
  pay.all(self)
  local jobs = admin.walk(self, "open_pick", nil, admin.EVERY, function(ids)
    return drain_batch(self, ids, given.into)
  end)
  return { jobs = jobs, left = (open_rows(self, COUNTED)) }
end

--- The verb; options are checked, as DRAIN.
---@type fun(self: nightshift.source.Table, given: table): table|nil, string?, string?
move.drain = caught(drain)

--- Adds these verbs to the ones of an adopted table.
---@param verb fun(name: string, fn: (fun(self: nightshift.source.Table, given: any): any), checks: table?)
function move.define(verb)
  --- Deletes done rows (`state = "dead"`: dead ones) that ended longer ago than `older`, or
  -- moves them to the table `into`; at most `limit`.
  verb("prune", prune, move.PRUNE)

  --- Makes open rows plain jobs of another queue, and deletes them here. Rows that are claimed, or
  -- change meanwhile, or that a job or the server refuses, stay.
  verb("drain", drain, move.DRAIN)
end

return move
