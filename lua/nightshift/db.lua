--- The database handle: transactions, SQL, queues, locks, schedules. Verbs on jobs: jobs.lua.
--
-- One handle is one connection and serves one thread of control at a time. It
-- wraps the core's handle, which owns everything that must be freed; closing
-- twice is allowed, using a closed handle raises.

local audit = require "nightshift.audit"
local core = require "nightshift.core"
local jobs = require "nightshift.jobs"
local limit = require "nightshift.limit"
local lock = require "nightshift.lock"
local options = require "nightshift.options"
local pauses = require("nightshift.queue").pauses
local queue = require "nightshift.queue"
local scope = require("nightshift.failure").scope
local transaction = require "nightshift.transaction"

local later, raise = options.later, options.raise

local flow = later(function() return require "nightshift.flow" end)
local hosts = later(function() return require "nightshift.hosts" end)
local report = later(function() return require "nightshift.report" end)
local ended = later(function() return require "nightshift.ended" end)
local scale = later(function() return require "nightshift.report.scale" end)
local schedule = later(function() return require "nightshift.schedule" end)
local figures = later(function() return require "nightshift.report.figures" end)
local source = later(function() return require "nightshift.source.table" end)

local db = {}
local methods, meta, live = jobs.methods, jobs.meta, jobs.live

--- A handle on the queue `name`, which need not exist yet.
---@param name string 1 to 64 bytes, no control characters
---@return nightshift.Queue|nil
---@return string? message
---@return string? code
function methods:queue(name)
  live(self, "queue")
  if type(name) ~= "string" then raise("queue: the name must be a string, got %s", type(name)) end
  local ok, message, code = options.name("queue name", name, options.MAX_QUEUE)
  if not ok then return nil, message, code end
  return queue.new(self, name)
end

local function check_text(verb, name)
  if type(name) ~= "string" then raise("%s: the name must be a string, got %s", verb, type(name)) end
  return name
end

--- Removes a queue that nothing needs, with its pause. Live jobs need it, schedules, `on_dead`, an
-- adopted table, and live hosts that serve it by name: STATE names them. Its history stays. The
-- next push to that name makes it anew.
---@param name string
---@return true|nil
---@return string? message
---@return string? code
function methods:remove_queue(name)
  local handle = live(self, "remove_queue")
  local ok, message, code = options.name("queue name", check_text("remove_queue", name), options.MAX_QUEUE)
  if not ok then return nil, message, code end
  return options.values(queue.remove(handle, name))
end

--- No job of this name starts anywhere until it is resumed, whatever its queue, and before the
-- first is pushed, too. What runs runs on, jobs stay where they are; a busy host obeys within a
-- second.
---@param name string
---@return boolean|nil changed false: it was paused
---@return string? message
---@return string? code
function methods:pause_name(name)
  return pauses.set(live(self, "pause_name"), check_text("pause_name", name), true)
end

--- Ends what `pause_name` began; hosts are woken at once.
---@param name string
---@return boolean|nil changed false: it was not paused
---@return string? message
---@return string? code
function methods:resume_name(name)
  return pauses.set(live(self, "resume_name"), check_text("resume_name", name), false)
end

--- No job starts anywhere until `resume_all`: every queue is paused, adopted tables and queues that
-- are made later among them.
---@return boolean|nil changed false: all were paused
---@return string? message
---@return string? code
function methods:pause_all() return pauses.set(live(self, "pause_all"), nil, true) end

--- Ends what `pause_all` began; queues and names that are paused by themselves stay so.
---@return boolean|nil changed false: they were not paused
---@return string? message
---@return string? code
function methods:resume_all() return pauses.set(live(self, "resume_all"), nil, false) end

--- The limits of all queues that have one, by name: see `q:limits`.
---@return nightshift.LimitUse[]|nil
---@return string? message
---@return string? code
function methods:limits() return limit.list(live(self, "limits")) end

--- Has a host have so many workers, until it ends: its id, or a machine's name. That number.
---@param host integer|string
---@param workers integer
---@return {id: integer, host: string, pid: integer, workers: integer, was: integer}|nil
---@return string? message
---@return string? code
function methods:tune_host(host, workers) return hosts().tune(live(self, "tune_host"), host, workers) end

--- Runs `fn` in one transaction: its pushes, statements and verdicts on this handle commit
-- together when it returns. Nothing commits when it raises, when it returns nil and a message,
-- or when a verb in it failed (except inside `tx:try`). Then it gives the first failure. Gives
-- the values of `fn`, or true when there are none.
---@param fn fun(tx: nightshift.Transaction): ...
---@return any ...
function methods:transaction(fn)
  local handle = live(self, "transaction")
  if type(fn) ~= "function" then raise("transaction wants a function, got %s", type(fn)) end
  if handle:in_transaction() then raise "transaction: this handle is already in one" end
  local given = table.pack(transaction.run(self, fn))
  return table.unpack(given, 1, given.n)
end

local PARAMETER = { ["nil"] = true, boolean = true, number = true, string = true }

local function check_parameters(...)
  local values = table.pack(...)
  for i = 1, values.n do
    local value = values[i]
    if not PARAMETER[type(value)] and value ~= core.null then
      raise("execute: parameter %d must be nil, a boolean, a number or a string, got a %s", i, type(value))
    end
  end
end

--- Runs one SQL statement with bound parameters (`?`). Gives the rows, each a
-- table by column name with NULL left out, or {affected=, insert_id=}.
-- Integers stay exact; decimals and dates come as strings.
---@param sql string
---@param ... any nil or nightshift.null, boolean, integer, number, string
---@return table|nil
---@return string? message
---@return string? code
function methods:execute(sql, ...)
  local handle = live(self, "execute")
  if type(sql) ~= "string" then raise("execute: the statement must be a string, got %s", type(sql)) end
  check_parameters(...)
  if sql:byte() == 64 then sql = " " .. sql end -- "@name" would be a statement of the library's own
  return handle:execute(sql, ...)
end

--- A lock of all hosts: `db:lock("report")(fn)`. See lock.lua.
---@param name string 1 to 190 characters, no control characters
---@param opts {timeout: number|string?}?
---@return nightshift.DbLock
function methods:lock(name, opts)
  live(self, "lock")
  return (lock.new(self, "lock", name, 1, opts))
end

--- A semaphore of all hosts: at most `n` at a time.
---@param name string it shares its slots with a lock of the same name
---@param n integer 1 to 10,000
---@param opts {timeout: number|string?}?
---@return nightshift.DbLock
function methods:semaphore(name, n, opts)
  live(self, "semaphore")
  return (lock.new(self, "semaphore", name, n, opts))
end

--- The slots of locks and semaphores that are held, and their owners.
---@return nightshift.Slot[]|nil
---@return string? message
---@return string? code
function methods:slots()
  return report().slots(live(self, "slots"))
end

--- Takes an existing table as a source of jobs: see source/table.lua.
---@param mapping table the use of its columns
---@return nightshift.Adopted|nil
---@return string? message
---@return string? code
function methods:adopt(mapping, extra)
  live(self, "adopt")
  options.no_more("adopt", "a mapping", extra)
  return options.values(source().new(self, mapping))
end

--- Counts per queue, the holders, and this handle's own counters.
---@return nightshift.Stats|nil
---@return string? message
---@return string? code
function methods:stats()
  return report().stats(live(self, "stats"))
end

--- For autoscalers: of each queue how much waits, how fast jobs come and go, how long the
-- rest takes. And how many workers would be done with it within `target` seconds (60).
---@param opts {queues: string[]?, target: number|string|nil}? queues: their names; nil: all
---@return nightshift.Scale|nil
---@return string? message
---@return string? code
function methods:scale(opts)
  local handle = live(self, "scale")
  local given, message, code = options.read("scale", opts, scale().OPTIONS)
  if not given then return nil, message, code end
  return options.values(scale().look(handle, given))
end

local HOUR <const>, SPANS = 3600, { [3600] = true, [86400] = true, [604800] = true }

local SERIES = {
  queue = options.typed "string",
  span = function(value, what)
    local us, message = options.duration(value, what)
    if us and not SPANS[us / 1000000] then message = what .. " must be an hour, a day or 7 days" end
    return not message and us // 1000000 or nil, message
  end,
}

--- What has happened in the last hour, day or week, in buckets: see report/figures.lua.
---@param opts {span: number|string|nil, queue: string?}? span: "1h", "1d" or "7d"; nil: an hour
---@return nightshift.Bucket[]|nil
---@return string? message
---@return string? code
function methods:series(opts)
  live(self, "series")
  local given, message, code = options.read("series", opts, SERIES)
  if not given then return nil, message, code end
  return figures().series(self, given.span or HOUR, given.queue)
end

--- Pushes a tree of jobs in one transaction: see flow.lua.
---@param root table name, payload, queue, children, as, after, and options of push
---@return integer|nil id of the root
---@return table|string|nil ids in the shape of the flow, or the message
---@return string? code
---@return integer? holder with DUPLICATE: the live job that has the key
function methods:flow(root, extra)
  local handle = live(self, "flow")
  options.no_more("flow", "a tree of jobs", extra)
  return options.values(flow().push(handle, root))
end

--- Pushes many trees of jobs in one transaction, all or none.
---@param roots table[] as of flow
---@return integer[]|nil ids of the roots
---@return table[]|string|nil ids of each in its shape, or the message
---@return string? code
---@return integer? holder with DUPLICATE: the live job that has the key
function methods:flow_many(roots, extra)
  local handle = live(self, "flow_many")
  options.no_more("flow_many", "a list of flows", extra)
  return options.values(flow().push_many(handle, roots))
end

--- Adds a recurring job, or changes it: {name =, cron = "0 3 * * *" | every = "10m", zone =, push =
-- {name, payload, options}, missed =, overlap =}. See schedule/init.lua.
---@param given table
---@return number|nil next instant of the next tick; false: it is paused, or has none
---@return string? message
---@return string? code
function methods:schedule(given, extra)
  local handle = live(self, "schedule")
  options.no_more("schedule", "a table", extra)
  return schedule().set(handle, given)
end

--- All schedules, by name, with their next five ticks.
---@return table[]|nil
---@return string? message
---@return string? code
function methods:schedules() return schedule().list(live(self, "schedules")) end

--- Stops the ticks of a schedule.
---@param name string
---@return true|nil
---@return string? message
---@return string? code
function methods:schedule_pause(name)
  return schedule().pause(live(self, "schedule_pause"), check_text("schedule_pause", name), true)
end

--- Lets its ticks go on; ticks of the time between are dropped.
---@param name string
---@return true|nil
---@return string? message
---@return string? code
function methods:schedule_resume(name)
  return schedule().pause(live(self, "schedule_resume"), check_text("schedule_resume", name), false)
end

--- Pushes the job of a schedule now, beside its ticks.
---@param name string
---@return integer|nil id
---@return string? message
---@return string? code
function methods:schedule_run(name)
  return schedule().run(live(self, "schedule_run"), check_text("schedule_run", name))
end

--- Deletes a schedule. One that the scripts of a live host declare comes back within the hour.
---@param name string
---@return true|nil
---@return string? message
---@return string? code
function methods:schedule_remove(name)
  return schedule().remove(live(self, "schedule_remove"), check_text("schedule_remove", name))
end

local PRUNE = {
  done = options.duration_or_never, dead = options.duration_or_never,
  tree = options.integer(1, math.maxinteger),
}

--- Deletes history now: what the rules of `retain` do not keep. Or done jobs that are older than
-- `done`, and dead and cancelled ones older than `dead`; false keeps that kind. A tree of jobs goes
-- as a whole, when all of it has finished and may go. `tree`: that of one job and all below it
-- instead, however old.
---@param opts {done: number|string|false?, dead: number|string|false?, tree: integer?}?
---@return integer|nil deleted
---@return string? message
---@return string? code
function methods:prune(opts)
  local handle = live(self, "prune")
  local given, message, code = options.read("prune", opts, PRUNE)
  if not given then return nil, message, code end
  if given.tree and (given.done or given.dead) then options.raise "prune: 'tree' goes without 'done' and 'dead'" end
  if given.tree then
    local part <close> = audit.begin(handle, "prune", "with all below it", given.tree)
    return part.action.handle:prune_tree(given.tree)
  end
  return options.values(ended().prune(handle, given.done or ended().BY_RULE,
    given.dead or ended().BY_RULE))
end

--- How long ended jobs of a queue are kept, and how many; all hosts delete what is more. {done =,
-- dead =, cancelled =}, each an age, or {age =, count =}: the newest `count` of the queue. false:
-- no limit. "default": as of all queues. A value that is absent stays as it is.
---@param name string? queue; nil: of all queues that have no rule of their own
---@param rules table<string, table|number|string|false>
---@return true|nil
---@return string? message
---@return string? code
function methods:retain(name, rules)
  local handle = live(self, "retain")
  if name ~= nil then
    local ok, message, code = options.name("queue name", check_text("retain", name), options.MAX_QUEUE)
    if not ok then return nil, message, code end
  end
  if type(rules) ~= "table" then raise("retain: the rules must be a table, got %s", type(rules)) end
  local given, message, code = options.read("retain", rules, ended().RULES)
  if not given then return nil, message, code end
  return options.values(ended().retain(handle, name, given))
end

--- The rules: of all queues first, then of queues that have one of their own. {queue =, done = {age
-- =, count =}, dead =, cancelled =}; false: no limit.
---@return table[]|nil
---@return string? message
---@return string? code
function methods:retention() return ended().rules(live(self, "retention")) end

--- Actions of people, the newest first: {id =, at =, verb =, what =, job =, jobs =, account =,
-- host =, pid =, via =}. `jobs`: how many the action has changed; `via`: "shell", "lua", "page",
-- "c" or "handler". `before` goes on behind the row of that id. `limit` is 100.
---@param opts {since: number|string?, verb: string?, before: integer?, limit: integer?}?
---@return table[]|nil
---@return string? message
---@return string? code
function methods:audit(opts)
  local handle = live(self, "audit")
  local given, message, code = options.read("audit", opts, report().AUDIT)
  if not given then return nil, message, code end
  return options.values(report().audit(handle, given))
end

local RESCUE = { wait = options.duration }

--- Looks at all other holders and gives back claims of dead ones. `wait` (2 s) is how long it
-- may take to be sure of them. Living hosts and waiting handles do this by themselves.
---@param opts {wait: number|string?}?
---@return {holders: integer, jobs: integer, poison: integer}|nil
---@return string? message
---@return string? code
function methods:rescue(opts)
  local handle = live(self, "rescue")
  local given, message, code = options.read("rescue", opts, RESCUE)
  if not given then return nil, message, code end
  return handle:look(given.wait or 2000000)
end

scope.watch(methods, { "queue", "remove_queue", "execute", "cancel", "pause", "resume", "pause_name", "resume_name",
  "pause_all", "resume_all", "retry", "delete", "update", "run_now", "deadline", "reprioritise", "move",
  "signal", "flow", "flow_many", "prune", "retain", "adopt", "schedule", "schedule_pause",
  "schedule_resume", "schedule_run", "schedule_remove" })

--- Creates or upgrades the tables and makes procedures and views anew; gives the
-- version found before (0: none) and the version now.
---@return integer|nil before
---@return integer|string|nil now
---@return string? code
function methods:migrate()
  local before, message, code = live(self, "migrate"):migrate()
  if not before then return nil, message, code end
  local schema = core.schema()
  return before, schema[#schema].version
end

--- Is the server there? Reconnects when needed.
---@return true|nil
---@return string? message
---@return string? code
function methods:ping()
  local now, message, code = live(self, "ping"):now()
  if not now then return nil, message, code end
  return true
end

--- Has the handle not been closed?
---@return boolean
function methods:is_open()
  options.own(self, meta, "db", "is_open")
  return self._handle:is_open()
end

--- Gives back rows of adopted tables that this handle has.
local function leave(self)
  if not self._handle:is_open() or self._handle:in_transaction() then return end
  for adopted in pairs(self._sources) do source().leave(adopted) end
end

--- Gives unsettled claims back and ends the connection.
function methods:close()
  options.own(self, meta, "db", "close")
  leave(self)
  self._handle:close()
end

meta.__close = methods.close

--- No verb of the handle runs: whatever has it, has this, too.
function meta.__gc(self)
  if self._sources and next(self._sources) then pcall(leave, self) end
end

function meta.__tostring(self)
  return tostring(self._handle)
end

--- Wraps a core handle.
---@param handle userdata
---@param max_children integer? that a run may spawn; nil: the default
---@return nightshift.Db
function db.new(handle, max_children)
  local self = setmetatable({ _handle = handle, _backend = queue.backend(handle, max_children), _sources = {} }, meta)
  self._backend.of = self -- jobs keep it
  return self
end

return db
