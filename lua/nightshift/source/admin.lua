--- Verbs of people on an adopted table: they count its rows, set its pace, and run dead rows
-- again.
--
-- Counts come from the table and from the rows' jobs. Rows that change are found without locks,
-- in the order of their ids. They are then locked by key, skipping rows that other sessions have
-- locked, so many in a transaction. A row that has a live job, or is owed something, stays as
-- it is.

local core = require "nightshift.core"
local failure = require "nightshift.failure"
local mapping = require "nightshift.source.mapping"
local options = require "nightshift.options"
local pay = require "nightshift.source.pay"
local steps = require "nightshift.source.steps"
local take = require "nightshift.source.take"
local units = require "nightshift.units"

local caught, fail, must, raise = failure.caught, failure.fail, failure.must, options.raise

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
function admin.count(self, most)
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

local function stats(self)
  local counts = admin.count(self, COUNTED)
  counts.name, counts.taken, counts.theirs = self.name, nil, nil
  for _, state in ipairs { "ready", "waiting", "running", "done", "dead" } do
    if counts[state] >= COUNTED then
      counts[state] = COUNTED
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
admin.EVERY = 1 << 53 -- a limit that is none

--- Calls fn with the ids of the rows that a statement picks, once, in their order, a batch at a
-- time. It stops when fn has counted to a limit; returns the sum.
---@param pick string name of the statement
---@param older integer? µs; nil: the statement does not ask
---@param limit integer
---@param fn fun(ids: integer[]): integer
---@return integer
function admin.walk(self, pick, older, limit, fn)
  local last, sum = math.mininteger, 0
  local n, ids
  repeat
    n = math.min(AT_ONCE, limit - sum)
    ids = steps.ids(steps.run(self, pick, table.unpack(older and { older, last, n } or { last, n })))
    sum, last = sum + (#ids > 0 and fn(ids) or 0), ids[#ids]
  until #ids < n or sum >= limit
  return sum
end

local function change(self, lock, ids, act)
  local rows = take.free_of(self, steps.run(self, lock, steps.list(ids), #ids))
  if #rows > 0 then act(self, rows) end
  return #rows
end

--- Locks the given rows that no other session has locked and that have neither a job nor a debt.
-- Calls act with them, in a transaction; returns how many.
---@param lock string name of the statement
---@param ids integer[]
---@param act fun(self, rows: table[])
---@return integer
function admin.change(self, lock, ids, act)
  return (must(failure.transaction(self.handle, change, self, lock, ids, act)))
end

--- Fails inside a transaction.
---@param what string the verb that cannot be done
function admin.outside(self, what)
  if self.handle:in_transaction() then fail("STATE", "%s inside a transaction", what) end
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

local function retry(self, what)
  local ids = read_retry(what)
  admin.outside(self, "rows cannot be retried")
  if self.map.parts.attempts_left and not self.map.max_attempts then
    fail("INVALID", "'attempts_left' are counted down from a number that the mapping does not say: 'max_attempts'")
  end
  local function again(batch) return admin.change(self, "dead_lock", batch, open_again) end
  pay.all(self)
  local n = ids and 0 or admin.walk(self, "dead_all", nil, admin.EVERY, again)
  for i = 1, ids and #ids or 0, AT_ONCE do
    n = n + again(table.move(ids, i, math.min(i + AT_ONCE - 1, #ids), 1, {}))
  end
  if math.type(what) ~= "integer" then return n end
  return n == 1 or not_dead(self, what)
end

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
  fail("NOT_FOUND", "nobody has adopted a table '%s' yet", name)
end

--- Changes the settings of a known table: handle, name, and `given`, checked as TUNE.
---@type fun(handle: userdata, name: string, given: {rate: number?}): true|nil, string?, string?
admin.tune = caught(function(handle, name, given)
  local row = find(handle, name)
  if given.rate then must(handle:execute("@source_tune", given.rate > 0 and given.rate or core.null, row.id)) end
  return true
end)

--- A table that is known, as it was adopted last.
---@type fun(db: nightshift.Db, name: string): nightshift.source.Table|nil, string?, string?
admin.open = caught(function(db, name)
  return (must(require "nightshift.source.table".new(db, core.decode(find(db._handle, name).mapping))))
end)

--- The rows of a table by state, as it was adopted last; or nil and why not.
local function count(db, map)
  local ran, t, message = pcall(require "nightshift.source.table".new, db, map)
  if ran and t then return t:stats() end
  return nil, ran and message or tostring(t)
end

--- Adopted tables for people: the rows of `list`, with `counts`, or `error`, the reason why
-- there are none.
---@type fun(db: nightshift.Db): table[]|nil, string?, string?
admin.status = caught(function(db)
  local tables = must(admin.list(db._handle))
  for _, row in ipairs(tables) do row.counts, row.error = count(db, row.mapping) end
  return tables
end)

-- ----------------------------------------------------------------- the verbs

--- Adds these verbs to the ones of an adopted table.
---@param verb fun(name: string, fn: (fun(self: nightshift.source.Table, given: any): any), checks: table?)
function admin.define(verb)
  --- Rows by state: ready, waiting (for their time or their parent), running, done, dead. A
  -- count that stopped at 100,000 is named in `approximate`. `next`: seconds until a row that
  -- waits for its time may be claimed.
  verb("stats", stats, {})

  --- The index that looks for rows lack to be fast, as a statement that adds it; false when none is
  -- missing.
  verb("advice", advice, {})

  --- Says how many rows a second are taken in, by all together; 0: no limit.
  verb("tune", function(self, given) return (must(admin.tune(self.handle, self.name, given))) end, admin.TUNE)

  --- Runs dead rows again, with all their attempts: one by its id. Or a list, or all; then returns
  -- how many.
  verb("retry", retry)
end

return admin
