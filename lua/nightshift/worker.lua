--- The work of a worker process on a job: find the handler, run it, report how it ended. The C
-- side (the program's worker loop) calls `run` once per job.
--
-- Nothing a handler does goes unnoticed: errors of any kind become text, and `os.exit` ends the
-- worker, and its death counts against the job. A verdict is recorded when its verb is called
-- and sent when the handler has returned. A worker is replaced when a handler has damaged its
-- standard library; the functions that find that out are kept in locals.

local core = require "nightshift.core"
local handlers = require "nightshift.handlers"
local hooks = require("nightshift.job").hooks
local job = require "nightshift.job"
local locks = require "nightshift.lock"
local options = require "nightshift.options"
local transaction = require "nightshift.transaction"

local worker = {}

local debug_traceback, getmetatable, match, next, pcall, xpcall =
  debug.traceback, getmetatable, string.match, next, pcall, xpcall

local job_traceback, job_raised = job.traceback, job.raised

local current      -- the running job; of a batch its first
local verdict      -- the recorded one
local places       -- of the jobs of a running batch, from 0; nil: a single job runs
local verdicts     -- theirs, by job

local STALE = "the job has ended"

local function gone()
  return nil, STALE, "STALE"
end

--- Where a job is in what runs, from 0; nil: it does not run.
local function place_of(asking)
  if places then return places[asking] end
  return asking == current and 0 or nil
end

--- Traceback of a handler, without the lines of its callers.
local function traceback(err)
  if job_raised(err) then return err end
  local text = job_traceback(err, 2)
  return match(text, "^(.*)\n%s*%[C%]: in function 'xpcall'") or text
end

local function exit_status(code)
  if code == nil or code == true then return 0 end
  return code and assert(math.tointeger(code), "os.exit: the status must be a boolean or an integer") or 1
end

--- Replaces os.exit, which would run exit functions of the host, left at its fork.
local function replace_exit(api)
  function os.exit(code) -- luacheck: ignore 122
    if not current then error("os.exit called", 2) end
    local status = exit_status(code)
    pcall(api.log, debug_traceback("os.exit called", 2)) -- a forked child may not log
    api.exit(status)
  end
end

local SHOWN_EVERY <const> = 1 -- seconds; the host sees to that for a job by itself

--- Has the progress of this job of a batch been told within the last second?
local function shown_lately(touched)
  local now = core.clock()
  if touched._told and now - touched._told < SHOWN_EVERY then return true end
  touched._told = now
  return false
end

--- The verbs of a job inside a worker: see job.lua.
local function make_backend(api, connection, max_children)
  local backend = { max_children = max_children > 0 and max_children or nil }
  local db

  --- Locks and semaphores belong to the job that runs, until its verdict.
  function backend.own_slots()
    if not (db and db:is_open()) then return end
    if current then
      db._handle:slot_owner(current.id, current.run)
    else
      db._handle:slot_owner()
    end
  end

  function backend.settle(settled, v)
    if not place_of(settled) then return gone() end
    if places then
      verdicts[settled] = v
    else
      verdict = v
    end
    return true
  end

  function backend.touch(touched)
    local at = place_of(touched)
    if not at then return gone() end
    return api.touch(nil, nil, at)
  end

  function backend.progress(touched, progress, text)
    local at = place_of(touched)
    if not at then return gone() end
    touched._shown = text or touched._shown
    if places and shown_lately(touched) then return true end
    return api.touch(progress, text, at)
  end

  function backend.checkpoint(keeping, text)
    if not place_of(keeping) then return gone() end
    return job.keep(backend.db()._handle, keeping, text)
  end

  function backend.log(logging, text)
    local at = place_of(logging)
    if not at then return gone() end
    return api.log(text, at)
  end

  function backend.cancelled(asking)
    local at = place_of(asking)
    return not at or api.cancelled(at)
  end

  function backend.stopping(asking)
    local at = place_of(asking)
    return not at or api.stopping(at)
  end

  --- When the running job has begun, and the number of this worker, for its verdict.
  function backend.run() return api.run() end

  function backend.take_id(parent)
    if not place_of(parent) then return gone() end
    return api.take_id()
  end

  --- While the job waits for a lock, its status says so; nil: it did.
  local function show_wait(text)
    if current then pcall(api.touch, nil, text or current._shown or "") end -- a forked child may not
  end

  function backend.db()
    if db and db:is_open() then return db end
    local opened, message, code = require "nightshift".open(connection)
    if not opened then options.raise("job:db: %s (%s)", message, code) end
    db = opened
    db._handle:act_as "handler"
    db._show_wait = show_wait
    backend.own_slots()
    return db
  end

  --- A job's questions to the database go over its own connection.
  function backend.ask(statement, ...)
    return backend.db()._handle:execute("@" .. statement, ...)
  end

  --- The job's own connection, when a handler has asked for it.
  function backend.opened() return db end

  function backend.close()
    if db and db:is_open() then db:close() end
  end

  --- Between two jobs: sets job:db() back after the last one. Gives a sentence about the rest of
  -- a transaction, or nil.
  function backend.reset()
    if not (db and db:is_open()) then return nil end
    return transaction.reset(db)
  end

  return backend
end

local function failure(fields, err)
  return { id = fields.id, run = fields.run, lease = fields.lease, kind = "fail", error = err }
end

--- The verdict of an error.
local function raised(fields, err)
  local asked = job_raised(err)
  if not asked then return failure(fields, err) end
  local v = failure(fields, asked.text)
  v.kind, v.delay = asked.kind, asked.delay and core.duration(asked.delay)
  return v
end

--- The recorded verdict as the core wants it.
local function finished(fields, v, limits)
  local most
  if v.kind == "wait" then most = limits.max_phases end
  return {
    id = fields.id, run = fields.run, lease = fields.lease, kind = v.kind,
    result = v.result, error = v.error, state = v.state,
    delay = v.delay and core.duration(v.delay), signal = v.signal, most = most,
    go_on = v.go_on, stop = v.stop,
    children = v.children,
  }
end

--- How the run of a handler ended, with the recorded verdict `own`: a plain result, or nil and a
-- verdict. That it has failed it may say as any function does: nil or false, and a message.
local function outcome(ended, own, limits, ok, value, message)
  if not ok then return nil, raised(ended, value) end
  if own then return nil, finished(ended, own, limits) end
  if ended._unspawned then return nil, failure(ended, ended._unspawned) end
  if not value and message ~= nil then return nil, failure(ended, job.error_text(message)) end
  if not ended._children then return value end
  return nil, finished(ended, { kind = "ack", result = value, children = ended._children }, limits)
end

local LIBRARIES = { "_G", "coroutine", "debug", "io", "math", "os", "package", "string", "table", "utf8" }

--- The standard library as it is now: {library = {name = value}}.
local function library()
  local now = { [getmetatable ""] = { __index = string } }
  for _, name in ipairs(LIBRARIES) do
    local copy = {}
    for key, value in next, package.loaded[name] do copy[key] = value end
    now[package.loaded[name]] = copy
  end
  return now
end

--- Accepts the changes so far: handler files may change the library while they are loaded. Names
-- that they added are theirs to change later.
local function accept(standard)
  for place, values in next, standard do
    for key in next, values do values[key] = place[key] end
  end
end

local function is_intact(standard)
  for place, values in next, standard do
    for key, value in next, values do
      if place[key] ~= value then return false end
    end
  end
  return true
end

--- The delay before the next attempt, in µs, as the handler wants it; nil: as the push said.
local function delay_of(backoff, failed, err, api)
  local n = failed.attempt
  if type(backoff) == "number" then return handlers.pause(backoff, n) end
  local ok, seconds = xpcall(backoff, traceback, n, err)
  if ok and seconds == nil then return nil end
  local us, message
  if ok then ok, us, message = pcall(options.duration, seconds, "backoff") end
  if ok and us then return us end
  api.complain("backoff", job.error_text(message or us or seconds))
end

local NONE = {} -- limits of a handler that has none

-- Of a job whose push has said nothing.
local ATTEMPTS, TIMEOUT <const> = 10, 3600.0

--- The limits of a job's handler count where the push has said nothing.
local function limit_job(this, limits, api)
  if limits.max_attempts and this.max_attempts == ATTEMPTS then this.max_attempts = limits.max_attempts end
  local timeout = this.timeout == TIMEOUT and limits.timeout or 0
  if timeout > 0 then this.timeout = timeout / 1000000 end
  if timeout > 0 or limits.max_attempts then api.limit(timeout, limits.max_attempts and this.max_attempts or 0) end
end

--- The same for the next attempt of a job that has failed.
local function limit_failure(failed, v, limits, api)
  v.most = limits.max_attempts and failed.max_attempts or nil
  if limits.backoff and not v.delay then v.delay = delay_of(limits.backoff, failed, v.error, api) end
end

--- Calls the functions that scripts have registered for the end of a job.
local function tell_end(ended, result, v, since, api)
  local seconds = core.clock() - since
  local kind = v and v.kind or "ack"
  if kind == "ack" then return hooks.run("job.done", api.complain, ended, result, seconds) end
  if kind ~= "fail" and kind ~= "discard" then return end
  if kind == "fail" then hooks.run("job.failed", api.complain, ended, v.error, seconds) end
  if kind == "discard" or ended.attempt >= ended.max_attempts then
    hooks.run("job.dead", api.complain, ended, kind == "fail" and "failed" or "discarded", v.error)
  end
end

--- The function that the C side calls per job: result, verdict, and whether this worker had
-- better be replaced.
local function make_run(set, api, backend, standard)
  local functions, memory, all_limits = set.functions, set.memory, set.limits
  local hooked = hooks.any "job."
  return function(fields)
    local handler = functions[fields.name]
    if not handler then
      local v = failure(fields, handlers.unknown(fields.name, set.names))
      v.kind = "missing"
      return nil, v
    end
    local broken = fields.payload_error or fields.state_error or fields.signal_error
    if broken then return nil, failure(fields, broken) end
    current, verdict = job.new(fields, backend), nil
    backend.own_slots()
    local this = current
    local limit, since = memory[fields.name], hooked and core.clock()
    if limit then api.quota(limit) end
    if hooked then hooks.run("job.start", api.complain, this) end
    local limits = all_limits[fields.name] or NONE
    if limits ~= NONE then limit_job(this, limits, api) end
    local ok, value, message = xpcall(handler, traceback, this)
    local result, v = outcome(this, verdict, limits, ok, value, message)
    if v and v.kind == "fail" then limit_failure(this, v, limits, api) end
    if hooked then tell_end(this, v and v.result or result, v, since, api) end
    locks.release_all()
    current, this._settled = nil, this._settled or "its return"
    backend.own_slots()
    -- looked at when something went wrong: harmless damage may stay
    return result, v, v and v.kind == "fail" and not is_intact(standard)
  end
end

-- ------------------------------------------------------------- batches

--- The limits of a handler for a batch of its jobs: they have one time together, that of the job
-- which may take longest.
local function limit_batch(jobs, limits, api)
  local timeout, attempts = 0, limits.max_attempts
  for _, this in ipairs(jobs) do
    if this.max_attempts ~= ATTEMPTS then attempts = nil end
    if limits.max_attempts and this.max_attempts == ATTEMPTS then this.max_attempts = limits.max_attempts end
    if limits.timeout and this.timeout == TIMEOUT then this.timeout = limits.timeout / 1000000 end
    timeout = math.max(timeout, this.timeout)
  end
  if limits.timeout or attempts then api.limit(math.ceil(timeout * 1000000), attempts or 0) end
end

--- The jobs of a batch: those that can be run. The rest have ended: ends has their verdicts.
local function make_jobs(list, ends, backend)
  local jobs, at = {}, {}
  for i, fields in ipairs(list) do
    local broken = fields.payload_error or fields.state_error or fields.signal_error
    if broken then
      ends[i] = failure(fields, broken)
    else
      local this = job.new(fields, backend)
      jobs[#jobs + 1], at[this] = this, i - 1
    end
  end
  return jobs, at
end

--- Gives a batch back without blame: this worker's scripts know of none, as they are older or
-- newer than those that the host goes by.
local function give_back(list)
  local ends = {}
  for i, fields in ipairs(list) do
    ends[i] = { id = fields.id, run = fields.run, lease = fields.lease, kind = "release" }
  end
  return {}, ends, false, {}
end

--- How the run ended for one job of a batch, the k-th of the call.
local function outcome_in_batch(ended, own, limits, k, ok, value, message)
  if own then return outcome(ended, own, limits, true) end
  if ok and value then return outcome(ended, nil, limits, true, value[k]) end
  return outcome(ended, nil, limits, ok, value, message)
end

--- The function that the C side calls per batch. It gives results, and verdicts, by the places of
-- the jobs; whether this worker had better be replaced; and which verdicts the handler has given.
local function make_run_batch(set, api, backend, standard)
  local hooked = hooks.any "job."
  local function begin(jobs, at, name)
    current, places, verdicts = jobs[1], at, {}
    backend.own_slots()
    if set.memory[name] then api.quota(set.memory[name]) end
    for _, this in ipairs(hooked and jobs or {}) do hooks.run("job.start", api.complain, this) end
    local limits = set.limits[name] or NONE
    if limits ~= NONE then limit_batch(jobs, limits, api) end
    return limits
  end
  local function finish(jobs)
    locks.release_all()
    for _, this in ipairs(jobs) do this._settled = this._settled or "its return" end
    current, places, verdicts = nil, nil, nil
    backend.own_slots()
  end
  return function(list)
    local name = list[1].name
    local batch, results, ends, own, failed = set.batches[name], {}, {}, {}, false
    if not batch then return give_back(list) end
    local jobs, at = make_jobs(list, ends, backend)
    if #jobs == 0 then return results, ends, false, own end
    local limits, since = begin(jobs, at, name), hooked and core.clock()
    local ok, value, message = xpcall(batch.run, traceback, jobs)
    for k, this in ipairs(jobs) do
      local i, mine = at[this] + 1, verdicts[this]
      local result, v = outcome_in_batch(this, mine, limits, k, ok, value, message)
      if v and v.kind == "fail" then limit_failure(this, v, limits, api) end
      failed = failed or v ~= nil and v.kind == "fail"
      results[i], ends[i], own[i] = result, v, mine ~= nil or nil
      if hooked then tell_end(this, v and v.result or result, v, since, api) end
    end
    finish(jobs)
    return results, ends, failed and not is_intact(standard), own
  end
end

--- The function that the C side calls behind each job, with its verdict if it has one, also of a
-- job that was stopped. Gives the error of an attempt that has left a transaction open.
local function make_reset(backend)
  return function(v)
    local left = backend.reset()
    if not left or v and v.go_on == 1 then return nil end -- it has ended, in a transaction of its own
    left = "job:db(): " .. left .. "; it was rolled back"
    if not (v and v.kind == "fail") then return left end
    return (v.error or "failed") .. "\n" .. left
  end
end

--- The parts of a worker, for a process that runs jobs without a host: nightshift.testing.
---@param set nightshift.Handlers
---@param api table the functions that `prepare` gets from C
---@param connection table options for nightshift.open
---@return function run as of `prepare`
---@return function run_batch as of `prepare`
---@return function reset as of `prepare`
---@return nightshift.Backend backend with `close`, for the end of job:db()
function worker.parts(set, api, connection)
  local backend = make_backend(api, connection, 0)
  backend.limits = set.limits
  return make_run(set, api, backend, {}), make_run_batch(set, api, backend, {}), make_reset(backend), backend
end

--- The handlers that take batches, as the host reads them.
local function batch_lines(set)
  local lines = {}
  for _, name in ipairs(set.names) do
    local batch = set.batches[name]
    if batch then lines[#lines + 1] = ("%d %d %s"):format(batch.most, batch.within, name) end
  end
  return lines
end

--- Loads the handlers and makes the functions that the C side calls.
---@param files string[] handler files and folders
---@param api table C functions: touch, cancelled, stopping, log, take_id, quota, limit, complain, exit
---@param connection table options for nightshift.open
---@param memory integer bytes for jobs with a handler that says nothing; 0: no limit
---@param max_children integer that a run may spawn; 0: the default
---@return table|nil loaded the host's part: `names` of the handlers, `version` of the scripts, its `files`, as JSON;
--- the `schedules` that they declare, jobs that are pushed for dead ones (`on_dead`), and handlers
--- that take `batches`, "jobs µs name"
---@return function|string begin called once in each worker, with two random
-- integers; or the message
---@return function? run called per job; returns a result, or nil and a verdict,
-- and whether the worker is to be replaced
---@return function? run_batch called per batch; returns results, verdicts, the same, and whose verdicts are its own
---@return function? reset called behind each job or batch
---@return function? finish called at the end of a worker
function worker.prepare(files, api, connection, memory, max_children)
  replace_exit(api)
  options.serve(connection)
  local standard = library()
  local set, message = handlers.load(files)
  if not set then return nil, message end
  accept(standard)
  for _, name in ipairs(memory > 0 and set.names or {}) do set.memory[name] = set.memory[name] or memory end
  -- math.randomseed() by itself would seed all workers of one second alike
  local function begin(a, b)
    math.randomseed(a, b)
    hooks.run("worker.start", api.complain)
  end
  local backend = make_backend(api, connection, max_children)
  backend.limits = set.limits
  return { names = set.names, version = set.version.short, files = set.version.files, schedules = set.schedules,
      on_dead = set.on_dead, batches = batch_lines(set) }, begin, make_run(set, api, backend, standard),
    make_run_batch(set, api, backend, standard), make_reset(backend),
    function() hooks.run("worker.stop", api.complain) end
end

return worker
