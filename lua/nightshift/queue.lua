--- A queue handle: push and claim, and the embedded backend of its jobs.
--
-- A queue is a name and the database handle it lives in, which it keeps alive.
-- Jobs claimed here are settled at once, on the same connection.

local audit = require "nightshift.audit"
local core = require "nightshift.core"
local job = require "nightshift.job"
local limits = require "nightshift.limit"
local options = require "nightshift.options"
local scope = require("nightshift.failure").scope
local units = require "nightshift.units"

local raise = options.raise
local mathtype = math.type

local queue = {}
local methods = options.methods({}, "q")
local meta = { __index = methods, __name = "nightshift.queue" }

-- Lines and bytes of `job:log` that are kept with a failed attempt: the last.
local LOG_LINES = 100
local LOG_BYTES = 16384

local function log_text(lines)
  if not lines then return nil end
  local text = table.concat(lines, "\n")
  if #text <= LOG_BYTES then return text end
  local from = utf8.offset(text, 0, #text - LOG_BYTES + 1)
  return text:sub(from)
end

local function microseconds(seconds)
  return seconds and core.duration(seconds)
end

--- The verbs of a job that was claimed on a handle of this program.
---@param handle userdata the core's database handle
---@param max_children integer? that a run may spawn; nil: the default
---@return nightshift.Backend
function queue.backend(handle, max_children)
  local backend = { max_children = max_children }

  -- In a transaction a verdict counts once it commits: transaction.lua collects the
  -- jobs here, and opens them again after a rollback.
  backend.in_transaction = nil

  --- Is this coroutine in the open transaction, if there is one?
  function backend.takes_part() return handle:is_open() and handle:in_transaction() end

  function backend.ask(statement, ...) return handle:execute("@" .. statement, ...) end

  --- A verdict as the core wants it.
  function backend.entry(claimed, verdict)
    local jobs = backend.in_transaction
    if jobs and backend.takes_part() then jobs[#jobs + 1] = claimed end
    local began, worker
    if claimed._backend ~= backend and claimed._backend.run then began, worker = claimed._backend.run() end
    return {
      id = claimed.id, run = claimed.run, lease = claimed.lease, kind = verdict.kind,
      result = verdict.result, error = verdict.error, state = verdict.state,
      delay = microseconds(verdict.delay), go_on = verdict.go_on, stop = verdict.stop, signal = verdict.signal,
      log = log_text(claimed._log),
      began = began, worker = worker, children = verdict.children,
    }
  end

  function backend.settle(claimed, verdict) return handle:settle(backend.entry(claimed, verdict)) end

  function backend.progress(claimed, progress, text)
    local ok, message, code = handle:touch(claimed.id, claimed.run, progress, text)
    if not ok then return nil, message, code end
    if claimed._touched then claimed._touched(claimed) end
    return ok
  end

  function backend.touch(claimed) return backend.progress(claimed) end

  function backend.checkpoint(claimed, text) return job.keep(handle, claimed, text) end

  function backend.log(claimed, text)
    local lines = claimed._log or {}
    claimed._log = lines
    lines[#lines + 1] = text
    if #lines > LOG_LINES then table.remove(lines, 1) end
    return true
  end

  function backend.cancelled(claimed)
    local ok, _, code = handle:touch(claimed.id, claimed.run)
    return not ok and code == "STALE"
  end

  function backend.take_id()
    local ids, message, code = handle:take_ids(1)
    if not ids then return nil, message, code end
    return ids[1]
  end

  function backend.is_open()
    return handle:is_open()
  end

  function backend.live(verb)
    options.live(handle, verb)
  end

  return backend
end

--- The core's handle, for a verb that was called with a colon on an open one.
local function live(self, verb)
  options.own(self, meta, "q", verb)
  return (options.live(self._handle, verb))
end

-- Seconds between tries of a push that waits for room. The core counts jobs more rarely than that.
local FULL_PAUSE <const> = 0.05

--- A push; with `wait` (µs) it is tried until the queue has room, or so long.
local function push(handle, name, entries, wait)
  if wait and handle:in_transaction() then
    return nil, "push: a transaction does not wait for room, as it keeps its locks meanwhile; push without 'wait', "
      .. "or before it", "INVALID"
  end
  local ends = wait and core.clock() + wait / 1000000
  local function go_by(...)
    local ids, _, code = ...
    local left = not ids and code == "FULL" and ends and ends - core.clock()
    if not left or left <= 0 then return ... end
    core.sleep(math.min(FULL_PAUSE * (0.5 + math.random()), left))
    return go_by(handle:push(name, entries))
  end
  return go_by(handle:push(name, entries))
end

--- Pushes one job; with an id it is durable.
---@param name string which handler runs it
---@param payload any encoded as JSON; nil is null
---@param opts nightshift.PushOptions?
---@return integer|nil id
---@return string? message; "kept": nothing was pushed, the id is of the job that has the key; or
-- "replaced": that job has become this one
---@return string? code
---@return integer? holder with DUPLICATE: the job that has the key; with GONE: the id to repeat the push with, if it
-- may have been written
function methods:push(name, payload, opts, extra)
  local handle = live(self, "push")
  options.no_more("push", "name, payload and options", extra)
  local entry, message, code = options.entry("push", name, payload, opts, options.PUSH_ONE)
  if not entry then return nil, message, code end
  local wait = entry.wait
  entry.wait = nil
  local ids, holder
  ids, message, code, holder = push(handle, self.name, { entry }, wait)
  if not ids then return nil, message, code, type(holder) == "table" and holder[1] or holder end
  if message then return ids[1], message[1] end
  return ids[1]
end

local function shown_key(key)
  if mathtype(key) == "integer" then return tostring(key) end
  return type(key) == "string" and ("'%s'"):format(key) or "(a " .. type(key) .. ")"
end

--- The length of a list without holes. Raises for anything else, because values outside 1 to
-- #items would be left out in silence.
local function length(items)
  if type(items) ~= "table" then raise("push_many wants a list of items, got %s", type(items)) end
  local count, last = 0, 0
  for key in next, items do
    if mathtype(key) ~= "integer" or key < 1 then
      raise("push_many wants a list of items; this one has the key %s", shown_key(key))
    end
    count = count + 1
    if key > last then last = key end
  end
  if count == last then return count end
  local hole = 1
  while rawget(items, hole) ~= nil do hole = hole + 1 end
  raise("push_many: item %d is nil, but there is an item %d; a list has no holes", hole, last)
end

local function check_item(item, i)
  if type(item) ~= "table" then
    raise("push_many: item %d must be {name, payload, options}, got %s", i, type(item))
  end
  for key in next, item do
    if key ~= 1 and key ~= 2 and key ~= 3 then
      raise("push_many: item %d must be {name, payload, options}; it has the key %s", i, shown_key(key))
    end
  end
end

local PUSH_MANY = { wait = options.duration }

--- Pushes many jobs in one transaction: all or none.
---@param items table[] each {name, payload, options}
---@param opts {wait: nightshift.Duration?}?
---@return integer[]|nil ids in the order of the items
---@return string|table|nil message; or "kept", "replaced" by place, as of push
---@return string? code
---@return integer|integer[]|nil holder with DUPLICATE: the job that has the key; with GONE: the ids, as of push
function methods:push_many(items, opts, extra)
  local handle = live(self, "push_many")
  options.no_more("push_many", "a list of items, and options", extra)
  local given, trouble, kind = options.read("push_many", opts, PUSH_MANY)
  if not given then return nil, trouble, kind end
  local entries = {}
  for i = 1, length(items) do
    local item = rawget(items, i)
    check_item(item, i)
    if type(item[1]) == "string" and item[3] == nil and not getmetatable(item) then
      entries[i] = item -- the core reads it as it is
    else
      local entry, message, code = options.entry("push_many: item " .. i, item[1], item[2], item[3])
      if not entry then return nil, message, code end
      entries[i] = entry
    end
  end
  if #entries == 0 then return {} end
  return options.values(push(handle, self.name, entries, given.wait))
end

-- ----------------------------------------------------------------- ways to claim

-- There are three, for a queue and for an adopted table. They differ in the number of jobs they
-- give. The one function that they are made of knows which jobs come, and how they are waited
-- for.

local LIMIT = options.integer(1, 10000)

--- The usable jobs of a claim. A job that Lua cannot hold exactly (it was written from SQL)
-- fails, as it does in a worker, rather than come with other values.
---@param claimed table[] as the core gives them
---@param backend table of their verbs
---@return nightshift.Job[]
function queue.usable(claimed, backend)
  local usable = {}
  for i = 1, #claimed do
    local made = job.new(claimed[i], backend)
    local broken = made.payload_error or made.state_error or made.signal_error
    if broken then made:fail(broken) else usable[#usable + 1] = made end
  end
  return usable
end

--- Gives 'verbs' claim, claim_many and jobs.
---@param verbs table
---@param check fun(self, verb: string) raises when the handle is closed
---@param claim fun(self, verb: string, limit: integer, opts: table?): nightshift.Job[]?, string?, string?
---@param noun string for messages: "jobs"
function queue.add_claims(verbs, check, claim, noun)
  -- Claims one job; a bare nil when none came within `wait`.
  function verbs:claim(opts)
    local claimed, message, code = claim(self, "claim", 1, opts)
    if not claimed then return nil, message, code end
    return claimed[1]
  end

  -- Up to `n`; the list may be empty.
  function verbs:claim_many(n, opts)
    check(self, "claim_many")
    local limit, message = LIMIT(n, "claim_many: the number of " .. noun)
    if not limit then return nil, message, "INVALID" end
    return options.values(claim(self, "claim_many", limit, opts))
  end

  -- `for job in q:jobs{wait = 5} do … end`: claims one after the other until none comes within
  -- `wait`. A job fails when the loop goes on without a verdict of it, or when an error leaves
  -- the loop. Leaving it otherwise gives the job back. A failing claim raises.
  function verbs:jobs(opts)
    check(self, "jobs")
    local current
    local function next_job()
      local ended, message, code
      if current then ended, message, code = job.let_go(current, "no verdict") end
      if not ended and message and code ~= "STALE" then options.raise("jobs: %s (%s)", message, code) end
      current, message, code = self:claim(opts)
      if message then options.raise("jobs: %s (%s)", message, code) end
      return current
    end
    local function leave(_, err)
      if current then job.let_go(current, err) end
    end
    return next_job, nil, nil, setmetatable({}, { __close = leave })
  end
end

local CLAIM = {
  wait = options.duration, lease = options.duration, strict = options.typed "boolean", names = options.names,
}

-- With `lease` claimed jobs are given back so long after the claim or their last `job:touch`.
-- With `strict` the highest priority always comes first, and lower ones may starve. With
-- `names` jobs of other names stay as they are.
local function claim(self, verb, limit, opts)
  local handle = live(self, verb)
  local given, message, code = options.read(verb, opts, CLAIM)
  if not given then return nil, message, code end
  local claimed
  claimed, message, code = handle:claim(self.name, limit, given.wait or 0, given.lease or 0, given.strict, given.names)
  if not claimed then return nil, message, code end
  local usable = queue.usable(claimed, self._backend)
  if #usable == 0 and #claimed > 0 then return claim(self, verb, limit, opts) end
  return usable
end

queue.add_claims(methods, live, claim, "jobs")

--- Stops claims from this queue, by busy hosts within a second; claimed jobs go on. Pushes still
-- work. A queue without a push so far is made, paused.
function methods:pause()
  return live(self, "pause"):pause(self.name, true)
end

--- Lets claims go on.
function methods:resume()
  return live(self, "resume"):pause(self.name, false)
end

--- Limits how many of its jobs run at once and start in a time, over all hosts; nil: not at all. It
-- replaces the limit that the queue has. See doc/limits.md for its parts.
---@param given nightshift.Limit|nil
---@return true|nil
---@return string? message
---@return string? code
function methods:limit(given, extra)
  local handle = live(self, "limit")
  options.no_more("limit", "a table, or nil", extra)
  return options.values(limits.set(handle, self.name, given))
end

--- The limit as it was set, with `counts` of running and waiting jobs; a bare nil: it has none.
---@return nightshift.LimitUse|nil
---@return string? message
---@return string? code
function methods:limits() return options.values(limits.one(live(self, "limits"), self.name)) end

scope.watch(methods, { "push", "push_many", "pause", "resume", "limit" })

--- Counts per state, and how long the oldest ready job has waited.
---@return nightshift.QueueStats|nil
---@return string? message
---@return string? code
function methods:stats()
  live(self, "stats")
  local all, message, code = self._db:stats()
  if not all then return nil, message, code end
  for _, row in ipairs(all.queues) do
    if row.name == self.name then return row end
  end
  return { name = self.name, paused = false, ready = 0, scheduled = 0, running = 0, waiting = 0, dead = 0 }
end

function meta.__tostring(self)
  return "nightshift.queue: " .. self.name
end

local MANY = 1000 -- no more live jobs are counted

local NEEDS = {
  jobs = function(n)
    local many = n == 1 and "a live job" or ("%d live jobs%s"):format(n, n == MANY and " or more" or "")
    return ("it has %s: let them end, or move, cancel or delete them"):format(many)
  end,
  schedule = function(_, name) return ("the schedule '%s' pushes to it: remove that first"):format(name) end,
  on_dead = function(_, name) return ("on_dead of '%s' pushes to it: change that handler first"):format(name) end,
  table = function() return "it is of an adopted table: unadopt that" end,
  host = function(_, name) return ("host %s serves it by name: start that without it"):format(name) end,
}

--- Why a queue has to stay: nil: nothing needs it.
local function needs_of(handle, id, name)
  local rows, message, code = handle:execute("@admin_queue_needs", id, name, name, name, name, name)
  if not rows then return nil, message, code end
  local row = rows[1]
  return row and ("queue '%s' is needed: %s"):format(name, NEEDS[row.what](row.n, row.name))
end

--- Removes a queue that nothing needs, with its pause and its limit. Its history stays, and the
-- next push to it makes it anew.
---@param handle userdata the core's database handle
---@param name string checked
---@return true|nil
---@return string? message
---@return string? code
function queue.remove(handle, name)
  local id, message, code = handle:queue_id(name)
  if not id then return nil, message, code end
  local why
  why, message, code = needs_of(handle, id, name)
  if why or message then return nil, why or message, code or "STATE" end
  local done
  done, message, code = audit.once(handle, "remove_queue", "queue " .. name, function()
    local result, problem, kind = handle:execute("@admin_queue_remove", id)
    if not result then return nil, problem, kind end
    if result.affected ~= 1 then return false end
    return limits.drop(handle, id, name)
  end)
  if done then return true end
  if done == nil then return nil, message, code end
  why, message, code = needs_of(handle, id, name)
  if why or message then return nil, why or message, code or "STATE" end
  return nil, ("there is no queue '%s'"):format(name), "NOT_FOUND"
end

--- A handle on the queue `name`; the name has been checked.
---@param db nightshift.Db
---@param name string
---@return nightshift.Queue
function queue.new(db, name)
  return setmetatable({ name = name, _db = db, _handle = db._handle, _backend = db._backend }, meta)
end

-- ------------------------------------------------------------------------- pauses

-- Kill-switches: names of jobs that are paused, and all queues at once.
--
-- A name is a row of nightshift_paused_name; the empty one stands for every queue, queues made
-- later among them. Who claims reads the rows together with the queues, so a pause is obeyed within
-- a second; a job stays where it is. See queue_list and queue_paused.
local pauses = {}
queue.pauses = pauses

local ALL <const> = "" -- the name that stands for every queue

local function ask(handle, statement, ...) return handle:execute("@" .. statement, ...) end

--- Ends the sleep of all hosts and programs. What is not committed yet they find by themselves.
local function wake(handle)
  if handle:in_transaction() then return end
  for _, row in ipairs(ask(handle, "admin_claimers") or {}) do ask(handle, "listen_nudge", row.id, false) end
end

--- Pauses a name, or resumes it; nil: every queue. Was it otherwise before?
---@param handle userdata core handle
---@param name string?
---@param paused boolean
---@return boolean|nil changed
---@return string? message
---@return string? code
function pauses.set(handle, name, paused)
  if name then
    local ok, message, code = options.name("job name", name, options.MAX_NAME)
    if not ok then return nil, message, code end
  end
  local what = name and "jobs named " .. name or "every queue"
  local changed, message, code = audit.once(handle, paused and "pause" or "resume", what, function()
    local result, problem, kind = ask(handle, paused and "admin_pause_name" or "admin_resume_name", name or ALL)
    if not result then return nil, problem, kind end
    return result.affected > 0
  end)
  if changed == nil then return nil, message, code end
  if not paused then wake(handle) end
  return changed
end

--- The pauses: {all = since or nil, names = {{name =, since =}, …}}, instants in seconds.
---@param handle userdata core handle
---@return {all: number?, names: {name: string, since: number}[]}|nil
---@return string? message
---@return string? code
function pauses.list(handle)
  local rows, message, code = ask(handle, "report_paused_names")
  if not rows then return nil, message, code end
  local found = { names = core.array {} }
  for _, row in ipairs(rows) do
    local since = units.seconds(row.since)
    if row.name == ALL then found.all = since
    else found.names[#found.names + 1] = { name = row.name, since = since } end
  end
  return found
end

return queue
