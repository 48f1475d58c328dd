--- Existing tables as queues: db:adopt.
--
-- An adopted table is a number of the core's handle; what is here is the shape of
-- its options, waiting, and the backend of its jobs. Unless the table has triggers
-- that ring (allow_alter), each waiter looks at it once a second, at moments of its own. It looks
-- more often at the holders, because rows of dead ones come back.

local claims = require "nightshift.claims"
local core = require "nightshift.core"
local dead = require "nightshift.adopt.dead"
local drain = require "nightshift.adopt.drain"
local decimal = require "nightshift.decimal"
local options = require "nightshift.options"
local times = require "nightshift.times"

local raise = options.raise

local adopt = {}
local methods = {}
local meta = { __index = methods, __name = "nightshift.adopted" }

local ALL = 2     -- go_on of a verdict: no claimant gets another row before its delay is over
local LOOK = 0.25 -- seconds between looks at holders

-- ---------------------------------------------------------------- the mapping

local column = options.typed "string"

--- Check: a value of the status column.
local function state(value, what)
  local kind = type(value)
  local whole = math.type(value) == "integer"
  if kind == "string" or kind == "boolean" or whole or value == core.null then return value end
  raise("%s must be text, a whole number, a boolean or nightshift.null, got %s", what,
    kind == "number" and value or kind)
end

local STATUS = { column = column, open = state, processing = state, done = state, failed = state }
local PRIORITY = { column = column, higher_first = options.typed "boolean", decay = options.integer(0, 1 << 31) }
local PARENT = { column = column, done = state }

--- Makes a check for a column by its name, or a table that names it and more.
local function part(known)
  return function(value, what)
    if type(value) == "string" then return { column = value } end
    if type(value) ~= "table" then raise("%s must be a table or a column's name, got %s", what, type(value)) end
    local given, message = options.read(what, value, known)
    if given and not given.column then raise("%s: 'column' is missing", what) end
    return given, message
  end
end

local ORDERS = { id = true, ["-id"] = true }

local function order(value, what)
  if type(value) ~= "string" then raise('%s must be "id" or "-id", got a %s', what, type(value)) end
  if ORDERS[value] then return value end
  return nil, ('%s must be "id" or "-id", got \'%s\''):format(what, options.shown(value))
end

local MAPPING = {
  table = column, id = column, name = column, time_zone = column,
  strategy = options.one_of("update_limit", "skip_locked", "transaction", "named_lock"),
  status = part(STATUS), priority = part(PRIORITY), parent = part(PARENT),
  claimed_by = column, claimed_at = column, completed_at = column, started = column, updated = column,
  host = column, attempts = column, attempts_left = column, retry_after = column,
  max_attempts = options.COUNT, overdue = options.duration, order = order, allow_alter = options.typed "boolean",
}

--- The mapping as the core takes it: flat.
local function flat(given)
  local status, priority, parent = given.status, given.priority or {}, given.parent or {}
  local newest_first = given.order == "-id"
  given.status, given.priority, given.parent, given.order = status.column, priority.column, parent.column, nil
  given.open, given.processing, given.done, given.failed = status.open, status.processing, status.done, status.failed
  given.parent_done, given.decay = parent.done, priority.decay
  given.lower_first, given.newest_first = priority.higher_first == false, newest_first
  given.id = given.id or "id"
  given.strategy = given.strategy or (given.claimed_by and "skip_locked" or "transaction")
  return given
end

--- The mapping as JSON, the same for the same mapping; nil and a message when some text
-- in it is not UTF-8.
local function text_of(value)
  if type(value) ~= "table" then return core.encode(value) end
  local keys, parts = {}, {}
  for key in next, value do keys[#keys + 1] = key ~= "allow_alter" and key or nil end
  table.sort(keys)
  for i, key in ipairs(keys) do
    local text, message = text_of(rawget(value, key))
    if not text then return nil, ("%s: %s"):format(key, message) end
    parts[i] = core.encode(key) .. ":" .. text
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

--- Checks a mapping; it comes back flat, as the core wants it.
---@param mapping table
---@return table|nil
---@return string? message
---@return string? code
function adopt.read(mapping)
  if type(mapping) ~= "table" then raise("adopt wants a table of options, got %s", type(mapping)) end
  local given, message, code = options.read("adopt", mapping, MAPPING)
  if not given then return nil, message, code end
  for _, needed in ipairs { "table", "status" } do
    if not given[needed] then raise("adopt: '%s' is missing", needed) end
  end
  given = flat(given)
  given.given, message = text_of(mapping)
  if not given.given then return nil, "adopt: " .. message, "INVALID" end
  return given
end

-- ------------------------------------------------------------------- its jobs

--- The verbs of a row that was claimed here.
local function backend_of(self)
  local handle, number, own = self._handle, self._number, self._db._backend
  local backend = { own = own }

  function backend.settle(claimed, verdict)
    local jobs = own.in_transaction -- after a rollback the job is open again
    if jobs and own.takes_part() then jobs[#jobs + 1] = claimed end
    return handle:adopt_settle(number, {
      id = claimed.id, run = claimed.run, kind = verdict.kind, error = verdict.error,
      delay = verdict.delay and core.duration(verdict.delay), go_on = verdict.asked and ALL or nil,
    })
  end

  --- Its verdict was part of a transaction, and stands: nothing is left to give back.
  function backend.committed(claimed)
    handle:adopt_settle(number, { id = claimed.id, run = claimed.run, kind = "release" })
  end

  function backend.progress(claimed, progress, text)
    return handle:adopt_show(number, claimed.id, claimed.run, progress, text)
  end

  function backend.touch(claimed) return backend.progress(claimed) end

  function backend.log() return true end

  function backend.cancelled(claimed)
    local ok, _, code = handle:adopt_touch(number, claimed.id, claimed.run)
    return not ok and code == "STALE"
  end

  function backend.take_id()
    return nil, ("a row of the adopted table '%s' has no children"):format(self.table), "INVALID"
  end

  function backend.ask(statement)
    return statement == "edge_count" and { { n = 0 } } or {}
  end

  function backend.is_open() return handle:is_open() end

  function backend.live(verb) options.live(handle, verb) end

  return backend
end

-- ------------------------------------------------------------------ the verbs

local function live(self, verb)
  options.own(self, meta, "t", verb)
  return (options.live(self._handle, verb))
end

local CLAIM = { wait = options.duration }
local function claim_now(self, handle, limit)
  local claimed, message, code = handle:adopt_claim(self._number, limit)
  if not claimed then return nil, message, code end
  return claims.usable(claimed, self._backend)
end

--- Sleeps until it is time to look again: a trigger has rung, a second or so is over, or
-- rows were freed.
local function nap(self, handle, stop)
  local rung, why, number = handle:adopt_wait(self._number, math.max(0, stop - core.clock()))
  if rung ~= false then return rung, why, number end
  repeat
    local left = math.min(stop - core.clock(), handle:adopt_pause(self._number))
    core.sleep(math.max(0, math.min(LOOK, left)))
    local freed, message, code = handle:adopt_look(self._number)
    if not freed then return nil, message, code end
  until handle:adopt_pause(self._number) == 0 or core.clock() >= stop
  return true
end

local function claim(self, verb, limit, opts)
  local handle = live(self, verb)
  local given, message, code = options.read(verb, opts, CLAIM)
  if not given then return nil, message, code end
  local stop = core.clock() + (given.wait or 0) / 1000000
  while true do
    local claimed, ok
    claimed, message, code = claim_now(self, handle, limit)
    if not claimed or #claimed > 0 or core.clock() >= stop then return claimed, message, code end
    ok, message, code = nap(self, handle, stop)
    if not ok then return nil, message, code end
  end
end

claims.add(methods, live, claim, "rows")

--- Gives back rows of dead holders and rows with an overdue claim, as every claim
-- does now and then.
---@return integer|nil freed
---@return string? message
---@return string? code
function methods:rescue()
  return live(self, "rescue"):adopt_look(self._number, true)
end

--- The index that claims lack to be fast, as a statement that adds it; false when
-- none is missing.
---@return string|false|nil
---@return string? message
---@return string? code
function methods:advice()
  local sql, message, code = live(self, "advice"):adopt_advice(self._number)
  if not sql then return nil, message, code end
  return sql ~= "" and sql
end

--- Drops the triggers that `allow_alter` has added to the table.
---@return true|nil
---@return string? message
---@return string? code
function methods:drop_triggers()
  return live(self, "drop_triggers"):adopt_drop_triggers(self._number)
end

local COUNTED = 100000 -- rows of a state; counting more takes long

--- Rows by state: ready, waiting (for their time or their parent), running, done, dead.
-- A count that stopped at 100,000 is named in `approximate`. `next`: seconds until one
-- that waits for its time may be claimed.
---@return nightshift.AdoptedStats|nil
---@return string? message
---@return string? code
function methods:stats()
  local handle = live(self, "stats")
  local counts, message, code = handle:adopt_count(self._number, COUNTED)
  if not counts then return nil, message, code end
  local due
  due, message, code = handle:adopt_due(self._number)
  if not due then return nil, message, code end
  local stats = { name = self.table, next = due >= 0 and due or nil }
  for name, n in pairs(counts) do
    stats[name] = n
    if n >= COUNTED then
      stats.approximate = stats.approximate or {}
      stats.approximate[name] = true
    end
  end
  return stats
end

--- Stops claims from this table, everywhere; what runs goes on.
---@return true|nil
---@return string? message
---@return string? code
function methods:pause()
  return adopt.pause(live(self, "pause"), self.table, true)
end

--- Lets claims go on, also before the time that a job has asked for.
---@return true|nil
---@return string? message
---@return string? code
function methods:resume()
  return adopt.pause(live(self, "resume"), self.table, false)
end

--- Changes how fast the table is worked on, everywhere, while it is: `rate` (rows a
-- second, by all together), `block` (rows of a claim), `workers` (rows that one host or
-- program has at a time); 0: as many as there are.
---@param opts {rate: number?, block: integer?, workers: integer?}
---@return true|nil
---@return string? message
---@return string? code
function methods:tune(opts)
  local handle = live(self, "tune")
  local given, message, code = options.read("tune", opts, adopt.TUNE)
  if not given then return nil, message, code end
  local ok
  ok, message, code = adopt.tune(handle, self.table, given)
  return ok, message, code
end

dead.define(methods, live)
drain.define(methods, live)

function meta.__tostring(self)
  return "nightshift.adopted: " .. self.table
end

-- ---------------------------------------------------- what people decide of it

local function changed(name, result, message, code)
  if not result then return nil, message, code end
  if result.affected > 0 then return true end
  return nil, ("nobody has adopted a table '%s' yet"):format(name), "NOT_FOUND"
end

local function is_known(handle, name)
  local rows, message, code = handle:execute "@report_adopted"
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do
    if row.table == name then return { affected = 1 } end
  end
  return { affected = 0 }
end

--- One that was like that before has changed as well.
local function decide(handle, name, result, message, code)
  if result and result.affected == 0 then result, message, code = is_known(handle, name) end
  return changed(name, result, message, code)
end

---@param handle userdata core handle
---@param name string the table's
---@param paused boolean
function adopt.pause(handle, name, paused)
  return decide(handle, name, handle:execute("@admin_adopted_pause", paused and 1 or 0, paused and 1 or 0, name))
end

local SLOWEST = 1 / 3155760000 -- rows a second: one in a century

local function rate(value, what)
  if math.type(value) and (value == 0 or value >= SLOWEST and value <= 1000000) then return value + 0.0 end
  if math.type(value) then
    return nil, ("%s must be 0, or from one row in 100 years to 1000000 a second, got %s"):format(what,
      decimal.text(value))
  end
  raise("%s must be a number, got %s", what, type(value))
end

local ROWS = options.integer(0, 1000000)

adopt.TUNE = { rate = rate, block = ROWS, workers = ROWS }

---@param handle userdata core handle
---@param name string the table's
---@param given {rate: number?, block: integer?, workers: integer?} checked
function adopt.tune(handle, name, given)
  local gap = given.rate and (given.rate > 0 and math.max(1, math.floor(1000000 / given.rate + 0.5)) or 0)
  return decide(handle, name, handle:execute("@admin_adopted_tune", gap or core.null, given.block or core.null,
    given.workers or core.null, name))
end

--- The tables that are known: `table`, `paused`, `held` (seconds), `rate`, `block`,
-- `workers`, and `mapping`.
---@param handle userdata core handle
function adopt.list(handle)
  local rows, message, code = handle:execute "@report_adopted"
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do
    row.mapping, row.paused = core.decode(row.mapping), row.paused ~= 0
    row.held = row.held and row.held / 1000000
    row.rate, row.gap = row.gap > 0 and 1000000 / row.gap or nil, nil
    row.block, row.workers = row.block > 0 and row.block or nil, row.workers > 0 and row.workers or nil
  end
  return rows
end

--- A table that is known, as it was adopted last.
---@param db nightshift.Db
---@param name string
---@return nightshift.Adopted|nil
---@return string? message
---@return string? code
function adopt.known(db, name)
  local rows, message, code = adopt.list(db._handle)
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do
    if row.table == name then return adopt.new(db, row.mapping) end
  end
  return nil, ("nobody has adopted a table '%s' yet"):format(name), "NOT_FOUND"
end

--- The rows of a known table by state, as it was adopted last.
local function count_of(db, mapping)
  local ok, t, message = pcall(adopt.new, db, mapping)
  if not ok then return nil, tostring(t) end
  if not t then return nil, message end
  return t:stats()
end

local SHOWN = 1000 -- running jobs

--- What people see of adopted tables: those of `list`, with `counts`, or `error`, the
-- reason why there are none; and the jobs that run, of all of them.
---@param db nightshift.Db
---@return {tables: table[], running: table[]}|nil
---@return string? message
---@return string? code
function adopt.status(db)
  local tables, running, message, code
  tables, message, code = adopt.list(db._handle)
  if not tables then return nil, message, code end
  running, message, code = times.rows(db._handle:execute("@report_adopted_running", SHOWN))
  if not running then return nil, message, code end
  for _, row in ipairs(tables) do row.counts, row.error = count_of(db, row.mapping) end
  return { tables = tables, running = running }
end

--- Finishes what drains have left half way, of all tables, as far as this user may.
---@param db nightshift.Db
---@return integer|nil tables
---@return string? message
---@return string? code
function adopt.rescue(db)
  local rows, message, code = db._handle:execute "@drain_tables"
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do
    local ok, t = pcall(adopt.new, db, core.decode(row.mapping))
    if ok and t then t:rescue() end
  end
  return #rows
end

--- Takes a table as a queue.
---@param db nightshift.Db
---@param mapping table see library/nightshift.lua
---@return nightshift.Adopted|nil
---@return string? message
---@return string? code
function adopt.new(db, mapping)
  local given, message, code = adopt.read(mapping)
  if not given then return nil, message, code end
  local number
  number, message, code = db._handle:adopt(given)
  if not number then return nil, message, code end
  local self = setmetatable({ table = given.table, strategy = given.strategy, _db = db, _handle = db._handle,
    _number = number }, meta)
  self._backend = backend_of(self)
  return self
end

return adopt
