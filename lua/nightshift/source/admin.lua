--- Verbs of people on an adopted table: they count its rows, set its pace, and run dead rows
-- again. Ended rows are deleted, or go to another table; open rows become jobs of another queue.
--
-- Counts come from the table and from the rows' jobs. Rows that change are found without locks,
-- in the order of their ids. They are then locked by key, skipping rows that other sessions have
-- locked, so many in a transaction. A row that has a live job, or is owed something, stays as
-- it is.

local audit = require "nightshift.audit"
local core = require "nightshift.core"
local failure = require "nightshift.failure"
local mapping = require "nightshift.source.mapping"
local options = require "nightshift.options"
local steps = require("nightshift.source.text").steps
local units = require "nightshift.units"
local work = require "nightshift.source.work"

local caught, fail, must, raise, try = failure.caught, failure.fail, failure.must, options.raise, failure.try

local admin = {}

-- ------------------------------------------------------------------ counting

local COUNTED = 100000 -- rows of a state; counting more takes long

-- The states of jobs, and the state of a row with such a job.
local STATES = { ready = "ready", scheduled = "waiting", waiting = "waiting", running = "running" }

--- Rows by state, counted up to a limit; rows with a job by the job's state. Also `next`,
-- seconds until a waiting one is due, `taken`, the number of rows with jobs, and `theirs`, of
-- rows that other programs have.
---@param most integer
---@return table
local function count_rows(self, most)
  local counts = steps.run(self, "counts", most, most, most, most, most)[1]
  local next_us = counts.next_due or math.huge
  counts.running, counts.taken = counts.theirs, 0
  for _, row in ipairs(steps.ask(self, "source_jobs", self.queue, ("row:%d:"):format(self.id),
    ("row:%d;"):format(self.id), most)) do
    local name = STATES[row.state]
    counts[name], counts.taken = counts[name] + row.n, counts.taken + row.n
    if row.state == "scheduled" then next_us = math.min(next_us, math.max(row.next_due, 0)) end
  end
  counts.next, counts.next_due = next_us < math.huge and next_us / 1000000 or nil, nil
  return counts
end

local function stats(self, most)
  local counts = count_rows(self, most)
  counts.name, counts.taken, counts.theirs = self.name, nil, nil
  for _, state in ipairs { "ready", "waiting", "running", "done", "dead" } do
    if counts[state] >= most then
      counts[state] = most
      counts.approximate = counts.approximate or {}
      counts.approximate[state] = true
    end
  end
  return counts
end

-- -------------------------------------------------------------------- advice

--- The columns of the index that serves looks for rows, in their order, or in that read backwards.
local function wanted(map, turned)
  local function behind(field, down)
    return field and (", %s%s"):format(mapping.quoted(field.name), down ~= turned and " DESC" or "") or ""
  end
  return mapping.quoted(map.parts.status.name) .. behind(map.parts.priority, not map.lower_first)
    .. behind(map.parts.id, map.newest_first)
end

local function downs(columns) return select(2, columns:gsub("` DESC", "")) end

local function advice(self)
  local columns, turned = wanted(self.map, false), wanted(self.map, true)
  for _, row in ipairs(steps.ask(self, "source_indexes", self.map.table)) do
    local has = ("%s, %s,"):format(row.columns, mapping.quoted(self.key)):lower() -- each has the primary key at its end
    for _, one in ipairs { columns, turned } do
      if has:find(one:lower() .. ",", 1, true) == 1 then return false end
    end
  end
  return ("CREATE INDEX nightshift_claim ON %s (%s)"):format(mapping.quoted(self.map.table),
    downs(turned) < downs(columns) and turned or columns)
end

-- -------------------------------------------------------------- rows that change

local AT_ONCE = 1000 -- rows of a transaction
local EVERY = 1 << 53 -- a limit that is none

--- Calls fn with the ids of the rows that a statement picks, once, in their order, a batch at a
-- time. It stops when fn has counted to a limit; returns the sum.
---@param pick string name of the statement
---@param older integer? µs; nil: the statement does not ask
---@param limit integer
---@param fn fun(ids: integer[]): integer
---@return integer
local function walk(self, pick, older, limit, fn)
  local last, sum = math.mininteger, 0
  local n, ids
  repeat
    n = math.min(AT_ONCE, limit - sum)
    ids = steps.ids(steps.run(self, pick, table.unpack(older and { older, last, n } or { last, n })))
    sum, last = sum + (#ids > 0 and fn(ids) or 0), ids[#ids]
  until #ids < n or sum >= limit
  return sum
end

local function change_free(self, lock, ids, act)
  local rows = work.free_of(self, steps.run(self, lock, steps.list(ids), #ids))
  if #rows == 0 then return 0 end
  act(self, rows)
  must(self.handle:act_note(#rows))
  return #rows
end

--- Locks the given rows that no other session has locked and that have neither a job nor a debt.
-- Calls act with them, in a transaction; returns how many.
---@param lock string name of the statement
---@param ids integer[]
---@param act fun(self, rows: table[])
---@param action table? of audit.new
---@return integer
local function change(self, lock, ids, act, action)
  local part <close> = audit.part(action) -- luacheck: ignore 211
  return (must(failure.transaction(self.handle, change_free, self, lock, ids, act)))
end

-- ----------------------------------------------------------------- dead rows

--- Opens rows that are dead.
local function open_again(self, rows)
  local marks = {}
  for i, row in ipairs(rows) do marks[i] = ("[%d,0,0,null]"):format(row[self.key]) end
  steps.change(self, "again", marks, true)
  self.whole_at = 0 -- the next look is for them, too
end

--- Why a row was not opened.
local function not_dead(self, id)
  local row = steps.run(self, "row", id)[1]
  if not row then fail("NOT_FOUND", "'%s' has no row %d", self.name, id) end
  if row.state == "dead" then fail("BUSY", "row %d of '%s' is locked by somebody else", id, self.name) end
  fail("STATE", "row %d of '%s' is not dead: it %s", id, self.name,
    row.state == "done" and "is done" or "runs, or may still be claimed")
end

--- The rows to be run again: a list of ids; nil: all.
local function read_retry(what)
  if what == "all" then return nil end
  if math.type(what) == "integer" then return { what } end
  if type(what) ~= "table" then raise('retry wants an id, a list of ids, or "all", got %s', tostring(what)) end
  local hole = options.hole(what)
  if hole then raise("retry: the list of ids has a hole at %d", hole) end
  for i, id in ipairs(what) do
    if math.type(id) ~= "integer" then raise("retry: id %d must be a whole number, got %s", i, type(id)) end
  end
  return what
end

--- `told`, if it is there, gets the number of rows so far, where no transaction is open.
local function retry(self, what, told)
  local ids = read_retry(what)
  steps.outside(self, "rows cannot be retried")
  if self.map.parts.attempts_left and not self.map.max_attempts then
    fail("INVALID", "'attempts_left' are counted down from a number that the mapping does not say: 'max_attempts'")
  end
  local action = audit.new(self.handle, "retry", ("table %s: %s"):format(self.name, not ids and "all dead rows"
    or #ids == 1 and "row " .. ids[1] or #ids .. " rows"))
  local sum = 0
  local function again(batch)
    local changed = change(self, "dead_lock", batch, open_again, action)
    sum = sum + changed
    if told then told(sum) end
    return changed
  end
  work.pay(self)
  local n = ids and 0 or walk(self, "dead_all", nil, EVERY, again)
  for i = 1, ids and #ids or 0, AT_ONCE do
    n = n + again(table.move(ids, i, math.min(i + AT_ONCE - 1, #ids), 1, {}))
  end
  if math.type(what) ~= "integer" then return n end
  return n == 1 or not_dead(self, what)
end

--- Runs all dead rows of a table again; how many.
---@type fun(self: nightshift.source.Table, told: fun(n: integer)?): integer|nil, string?, string?
admin.retry = caught(function(self, told) return (retry(self, "all", told)) end)

local function list_of(self, rows) return steps.list(steps.ids(rows, self.key)) end

local function delete(self, rows) steps.all_of(steps.run(self, "delete", list_of(self, rows)), #rows) end

-- ------------------------------------------------------------------- pruning

--- Check: the name of a table.
local function table_name(value, what)
  if type(value) ~= "string" then options.raise("%s must be the name of a table, got %s", what, type(value)) end
  if #value >= 1 and #value <= 256 then return value end
  return nil, what .. ": a table's name has 1 to 64 characters"
end

admin.PRUNE = {
  older = options.duration, into = table_name, limit = options.integer(1, EVERY),
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
  steps.outside(self, "rows cannot be pruned")
  if self.texts[pick] then return walk(self, pick, given.older, limit, fn) end
  fail("INVALID", "nothing says when rows of '%s' were %s: the mapping names %s", self.map.table, state,
    state == "done" and "neither 'completed_at' nor 'updated'" or "no column 'updated'")
end

--- How many rows a pruning would concern.
---@type fun(self: nightshift.source.Table, given: table): integer|nil, string?, string?
admin.prunable = caught(function(self, given)
  return (each_ended(self, given, given.limit or EVERY, function(ids) return #ids end))
end)

--- A pruning in words, for the audit.
local function pruned(self, given)
  return ("table %s: %s rows%s%s"):format(self.name, given.state or "done",
    given.older and " older than " .. units.span(given.older / 1000000) or "",
    given.into and ", into " .. given.into or "")
end

--- Deletes rows that have ended, or moves them; how many. With rows gone their parents are free to
-- go: so as often as rows go, where they have parents. `told` gets how many there were so far.
local function prune(self, given)
  local limit, sum = given.limit or EVERY, 0
  local moves = given.into and move_text(self, given.into)
  local action = audit.new(self.handle, "prune", pruned(self, given))
  local function remove(_, rows)
    if moves then copy(self, rows, given.into, moves) end
    delete(self, rows)
  end
  repeat
    local told, n = sum
    n = each_ended(self, given, limit - sum, function(ids)
      local gone = change(self, (given.state or "done") .. "_lock", ids, remove, action)
      told = told + gone
      if given.told then given.told(told) end
      return gone
    end)
    sum = sum + n
  until n == 0 or sum >= limit or not self.map.parts.parent
  return sum
end

--- The verb; options are checked, as PRUNE.
admin.prune = caught(prune)

-- ------------------------------------------------------------------ draining

admin.DRAIN = { into = options.typed "string" }

--- Makes a batch of rows jobs: one by one where the server, or a job, refuses a row of it; how many
-- went.
local function drain_batch(self, ids, into, action)
  local n, message, code = try(change, self, "open_lock", ids, function(_, rows)
    work.push(self, into, rows, function(entry, row)
      entry.unique, entry.delay = nil, row["ns:delay"]
      entry.decay = entry.priority and math.min(self.map.decay, 255)
    end)
    delete(self, rows)
  end, action)
  if n then return n end
  if not steps.is_of_row(message, code) then must(nil, message, code) end
  local sum = 0
  for _, id in ipairs(#ids > 1 and ids or {}) do sum = sum + drain_batch(self, { id }, into, action) end
  return sum
end

local function check_drain(self, into)
  must(options.name("drain: queue name", into, options.MAX_QUEUE))
  steps.outside(self, "a table cannot be drained")
  if self.map.parts.parent then
    fail("INVALID", "rows of '%s' wait for their parents, of which a drained one would know nothing: drain it by a "
      .. "mapping without 'parent', once no row waits for one", self.map.table)
  end
end

--- How many open rows there are, and how many of them are claimed.
local function open_rows(self, most)
  local counts = count_rows(self, most)
  return counts.ready + counts.waiting + counts.running, counts.taken + counts.theirs
end

--- The result that a drain into a queue would have: the rows that become jobs, and that are left.
---@type fun(self: nightshift.source.Table, given: table): {jobs: integer, left: integer}|nil, string?, string?
admin.look = caught(function(self, given)
  check_drain(self, given.into)
  local rows, claimed = open_rows(self, math.maxinteger)
  return { jobs = rows - claimed, left = claimed }
end)

--- Drains a table.
local function drain(self, given)
  if not given.into then options.raise "drain: 'into' is missing" end
  check_drain(self, given.into)
  local action = audit.new(self.handle, "drain", ("table %s: into queue %s"):format(self.name, given.into))
  work.pay(self)
  local told = 0
  local jobs = walk(self, "open_pick", nil, EVERY, function(ids)
    local n = drain_batch(self, ids, given.into, action)
    told = told + n
    if given.told then given.told(told) end
    return n
  end)
  return { jobs = jobs, left = (open_rows(self, COUNTED)) }
end

--- The verb; options are checked, as DRAIN.
---@type fun(self: nightshift.source.Table, given: table): table|nil, string?, string?
admin.drain = caught(drain)

-- ------------------------------------------------------------- known tables

local SLOWEST = 1 / 3155760000 -- rows a second: one in a century

local function rate(value, what)
  if type(value) ~= "number" then raise("%s must be a number, got %s", what, type(value)) end
  if value == 0 or value >= SLOWEST and value <= 1000000 then return value + 0.0 end
  return nil, ("%s must be 0, or from one row in 100 years to 1000000 a second, got %s"):format(what,
    units.number(value))
end

admin.TUNE = { rate = rate }

--- The tables: `table`, `mapping`, `paused`, `rate`, `served`, `unserved`, `owed`, `refused`,
-- `why`. served: a host takes in its rows; unserved: seconds since one did. owed: rows with
-- debts; refused: the ones of them that the server has refused to change, and `why`, its words.
---@param handle userdata core handle
---@return table[]|nil
---@return string? message
---@return string? code
function admin.list(handle)
  local rows, message, code = handle:execute "@source_list"
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do
    row.mapping, row.paused, row.served = core.decode(row.mapping), row.paused ~= 0, row.served ~= 0
    row.unserved = not row.served and row.unserved and row.unserved / 1000000 or nil
  end
  return rows
end

--- The reasons why rows of a table do not tell of their jobs, for people.
---@param row table one of `list`
---@return string[]
function admin.troubles(row)
  local list, unpaid = {}, row.owed - row.refused
  if unpaid > 0 and not row.served then
    list[1] = ("rows of %s that do not say what became of their jobs: %d; %s"):format(row.table, unpaid, row.unserved
      and ("nobody has served it for %s s"):format(units.fixed(row.unserved, 0)) or "nobody has served it yet")
  end
  if row.refused > 0 then
    list[#list + 1] = ("rows of %s that the server refuses to change: %d: %s"):format(row.table, row.refused,
      options.shown(row.why, 200))
  end
  return list
end

local function find(handle, name)
  local row = must(handle:execute("@source_find", name))[1]
  if row then return row end
  local known = {}
  for _, one in ipairs(must(handle:execute "@source_list")) do known[one.table] = true end
  local near = options.nearest(name, known)
  fail("NOT_FOUND", "nobody has adopted a table '%s' yet%s", name, near and ("; did you mean '%s'?"):format(near) or "")
end

--- Changes the settings of a known table: handle, name, and `given`, checked as TUNE.
---@type fun(handle: userdata, name: string, given: {rate: number?}): true|nil, string?, string?
admin.tune = caught(function(handle, name, given)
  local row, pace = find(handle, name), given.rate
  if not pace then return true end
  local what = ("table %s: %s"):format(name, pace > 0 and units.number(pace) .. " rows a second" or "no limit of rows")
  must(audit.once(handle, "tune", what, function()
    return handle:execute("@source_tune", pace > 0 and pace or core.null, row.id)
  end))
  return true
end)

--- A table that is known, as it was adopted last.
---@type fun(db: nightshift.Db, name: string): nightshift.source.Table|nil, string?, string?
admin.open = caught(function(db, name)
  return (must(require "nightshift.source.table".new(db, core.decode(find(db._handle, name).mapping))))
end)

--- The rows of a table by state, as it was adopted last; or nil and why not.
local function count(db, map, most)
  local ran, t, message = pcall(require "nightshift.source.table".new, db, map)
  if ran and t then return try(stats, t, most) end
  return nil, ran and message or tostring(t)
end

--- Adopted tables for people: the rows of `list`, with `counts`, or `error`, the reason why
-- there are none. `most`: counts go no further; 100,000 unless told.
---@type fun(db: nightshift.Db, most: integer?): table[]|nil, string?, string?
admin.status = caught(function(db, most)
  local tables = must(admin.list(db._handle))
  for _, row in ipairs(tables) do row.counts, row.error = count(db, row.mapping, most or COUNTED) end
  return tables
end)

-- ----------------------------------------------------------------- the verbs

--- Adds these verbs to the ones of an adopted table.
---@param verb fun(name: string, fn: (fun(self: nightshift.source.Table, given: any): any), checks: table?)
function admin.define(verb)
  --- Rows by state: ready, waiting (for their time or their parent), running, done, dead. A
  -- count that stopped at 100,000 is named in `approximate`. `next`: seconds until a row that
  -- waits for its time may be claimed.
  verb("stats", function(self) return (stats(self, COUNTED)) end, {})

  --- The index that looks for rows lack to be fast, as a statement that adds it; false when none is
  -- missing.
  verb("advice", advice, {})

  --- Says how many rows a second are taken in, by all together; 0: no limit.
  verb("tune", function(self, given) return (must(admin.tune(self.handle, self.name, given))) end, admin.TUNE)

  --- Runs dead rows again, with all their attempts: one by its id. Or a list, or all; then returns
  -- how many.
  verb("retry", function(self, what) return (retry(self, what)) end)

  --- Deletes done rows (`state = "dead"`: dead ones) that ended longer ago than `older`, or
  -- moves them to the table `into`; at most `limit`.
  verb("prune", prune, admin.PRUNE)

  --- Makes open rows plain jobs of another queue, and deletes them here. Rows that are claimed, or
  -- change meanwhile, or that a job or the server refuses, stay.
  verb("drain", drain, admin.DRAIN)
end

return admin
