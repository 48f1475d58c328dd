--- Verbs of people on an adopted table: they count its rows, set its pace, look at dead rows,
-- and run them again.
--
-- Counts come from the table and from the rows' jobs. Why a row is dead is said by the history
-- of its last job, as long as that is kept. Rows that change are found without locks, in the
-- order of their ids. They are then locked by key, skipping rows that other sessions have
-- locked, so many in a transaction. A row that has a live job, or is owed something, stays as
-- it is.

local core = require "nightshift.core"
local failure = require "nightshift.source.failure"
local known = require "nightshift.source.known"
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
---@param self nightshift.source.Table
---@param most integer
---@return table
function admin.count(self, most)
  local counts = must(steps.run(self, "counts", most, most, most, most, most))[1]
  local next_us = counts.next_due or math.huge
  counts.running, counts.taken = counts.theirs, 0
  for _, row in ipairs(must(steps.ask(self, "source_jobs", self.queue, ("row:%d:"):format(self.id),
    ("row:%d;"):format(self.id), most))) do
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
  for _, row in ipairs(must(steps.ask(self, "source_indexes", self.map.table))) do
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
local PAGE = 10000   -- ids that are looked for at once
admin.EVERY = 1 << 53 -- a limit that is none

--- Calls fn with so many ids of a list at a time, until it has counted to the limit; the sum.
local function by_batches(ids, size, limit, fn)
  local sum, from = 0, 1
  while from <= #ids and sum < limit do
    local upto = math.min(from + math.min(size, limit - sum), #ids + 1) - 1
    sum, from = sum + fn(table.move(ids, from, upto, 1, {})), upto + 1
  end
  return sum
end

--- Calls fn with the ids of the rows that a statement picks, once, in their order, a batch at a
-- time. It stops when fn has counted to a limit; returns the sum.
---@param self nightshift.source.Table
---@param pick string name of the statement
---@param what any the question to it; nil: none
---@param given {limit: integer?, batch: integer?}
---@param fn fun(ids: integer[]): integer
---@return integer
function admin.walk(self, pick, what, given, fn)
  local last, sum, page, limit = math.mininteger, 0, given.batch or PAGE, given.limit or admin.EVERY
  local ids
  repeat
    local asked = what == nil and { last, page } or { what, last, page }
    ids = must(steps.run(self, pick, table.unpack(asked)))
    for i, row in ipairs(ids) do ids[i] = row.id end
    sum, last = sum + by_batches(ids, given.batch or AT_ONCE, limit - sum, fn), ids[#ids]
  until #ids < page or sum >= limit
  return sum
end

local change = caught(function(self, lock, ids, act, ...)
  local rows = must(take.free_of(self, must(steps.run(self, lock, steps.list(ids), #ids))))
  if #rows > 0 then act(self, rows, ...) end
  return #rows
end)

--- Locks the given rows that no other session has locked and that have neither a job nor a debt.
-- Calls act with them, in a transaction; returns how many.
---@param self nightshift.source.Table
---@param lock string name of the statement
---@param ids integer[]
---@param act fun(self, rows: table[], ...)
function admin.change(self, lock, ids, act, ...)
  return must(steps.transaction(self, change, lock, ids, act, ...))
end

--- Fails inside a transaction.
---@param self nightshift.source.Table
---@param what string the verb that cannot be done
function admin.outside(self, what)
  if self.handle:in_transaction() then fail("STATE", "%s inside a transaction", what) end
end

-- ----------------------------------------------------------------- dead rows

local SHOWN = 50

admin.DEAD = { limit = options.integer(1, 1 << 31), error = options.text, by = options.one_of "error" }

--- A dead row: its payload is as in a job, or text where Lua cannot hold that exactly.
local function dead_row(self, row)
  local entry = take.entry_of(self, row, row[self.key])
  local payload = entry and core.decode(entry.json)
  if payload == nil then payload = entry and entry.json end
  return units.row { id = row[self.key], job = row["ns:job"], failed_at = row["ns:at"], holder = row["ns:holder"],
    error = row["ns:error"], attempts = row["ns:attempts"], payload = payload }
end

local function dead(self, given)
  local blamed, limit = given.error or core.null, given.limit or SHOWN
  if given.by then return units.rows(must(steps.run(self, "dead_kinds", blamed, limit))) end
  local rows = must(steps.run(self, "dead_list", blamed, math.mininteger, limit))
  for i, row in ipairs(rows) do rows[i] = dead_row(self, row) end
  return rows
end

--- Opens rows that are dead.
local function open_again(self, rows)
  local marks = {}
  for i, row in ipairs(rows) do marks[i] = ("[%d,0,0,null]"):format(row[self.key]) end
  must(steps.change(self, "again", marks, true))
  self.whole_at = 0 -- the next look is for them, too
end

--- Why a row was not opened.
local function not_dead(self, id)
  local row = must(steps.run(self, "row", id))[1]
  if not row then fail("NOT_FOUND", "'%s' has no row %d", self.name, id) end
  if row.state == "dead" then fail("BUSY", "row %d of '%s' is locked by somebody else", id, self.name) end
  fail("STATE", "row %d of '%s' is not dead: it %s", id, self.name,
    row.state == "done" and "is done" or "runs, or may still be claimed")
end

local RETRY = { error = options.text }

--- The rows to be run again: {ids =}, {error =}, or neither for all.
local function read_retry(what)
  if math.type(what) == "integer" then return { ids = { what } } end
  if what == "all" then return {} end
  if type(what) ~= "table" then
    raise('retry wants an id, a list of ids, {error = …} or "all", got %s', tostring(what))
  end
  if what.error ~= nil then return (must(options.read("retry", what, RETRY))) end
  local hole = options.hole(what)
  if hole then raise("retry: the list of ids has a hole at %d", hole) end
  for i, id in ipairs(what) do
    if math.type(id) ~= "integer" then raise("retry: id %d must be a whole number, got %s", i, type(id)) end
  end
  return { ids = what }
end

local function retry(self, what)
  local given = read_retry(what)
  admin.outside(self, "rows cannot be retried")
  if self.map.parts.attempts_left and not self.map.max_attempts then
    fail("INVALID", "'attempts_left' are counted down from a number that the mapping does not say: 'max_attempts'")
  end
  local function again(ids) return admin.change(self, "dead_lock", ids, open_again) end
  must(pay.all(self))
  local n
  if given.ids then n = by_batches(given.ids, AT_ONCE, admin.EVERY, again)
  else n = admin.walk(self, given.error and "dead_blamed" or "dead_all", given.error, {}, again) end
  if math.type(what) ~= "integer" then return n end
  return n == 1 or not_dead(self, what)
end

-- ----------------------------------------------------------------- the verbs

--- Makes a verb with options; library/nightshift.lua has the types of all.
---@param live fun(self: nightshift.source.Table, verb: string): userdata
---@param name string
---@param checks table<string, function> of its options
---@param fn fun(self: nightshift.source.Table, given: table): any
function admin.verb(live, name, checks, fn)
  return caught(function(self, opts)
    live(self, name)
    return (fn(self, must(options.read(name, opts, checks))))
  end)
end

--- Adds these verbs to the ones of an adopted table.
---@param methods table
---@param live fun(self: nightshift.source.Table, verb: string): userdata
function admin.define(methods, live)
  --- Rows by state: ready, waiting (for their time or their parent), running, done, dead. A
  -- count that stopped at 100,000 is named in `approximate`. `next`: seconds until a row that
  -- waits for its time may be claimed.
  methods.stats = admin.verb(live, "stats", {}, stats)

  --- The index that looks for rows lack to be fast, as a statement that adds it; false when none is
  -- missing.
  methods.advice = admin.verb(live, "advice", {}, advice)

  --- Says how many rows a second are taken in, by all together; 0: no limit.
  methods.tune = admin.verb(live, "tune", known.TUNE, function(self, given)
    return must(known.tune(self.handle, self.name, given))
  end)

  --- The rows that no claim takes any more, because their failures are spent or they were given
  -- up: each with its last error. `by = "error"`: kinds of errors instead, the most frequent
  -- first; they differ in more than numbers.
  methods.dead = admin.verb(live, "dead", admin.DEAD, dead)

  --- Runs dead rows again, with all their attempts: one by its id. Or a list, the rows of an
  -- error or of a kind of them, or all; then returns how many.
  methods.retry = caught(function(self, what)
    live(self, "retry")
    return (retry(self, what))
  end)
end

return admin
