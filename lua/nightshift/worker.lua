--- What a worker process does with a job: find the handler, run it, tell how
-- it ended. The C side (the program's worker loop) calls `run` once per job.
--
-- Nothing a handler does may end the worker or go unnoticed: errors of any
-- kind become text, and `os.exit` ends the job, not the process. A verdict is
-- recorded when its verb is called and sent when the handler has returned.

local address = require "nightshift.address"
local core = require "nightshift.core"
local handlers = require "nightshift.handlers"
local job = require "nightshift.job"
local mutex = require "nightshift.mutex"

local worker = {}

local current      -- the running job
local verdict      -- what it recorded
local exited       -- it called os.exit

local STALE = "the job has ended"

local function gone()
  return nil, STALE, "STALE"
end

--- Traceback of a handler, without the lines of what called it.
local function traceback(err)
  local text = debug.traceback(job.error_text(err), 2)
  return text:match "^(.*)\n%s*%[C%]: in function 'xpcall'" or text
end

local function replace_exit()
  function os.exit() -- luacheck: ignore 122
    exited = true
    error(current and "os.exit called by the handler" or "os.exit called", 2)
  end
end

--- The verbs of a job inside a worker: see job.lua.
local function make_backend(api, connection)
  local backend = {}
  local db

  --- Locks and semaphores belong to the job that runs, until its verdict.
  function backend.own_slots()
    if not (db and db:is_open()) then return end
    if current then db._handle:slot_owner(current.id, current.run) else db._handle:slot_owner() end
  end

  function backend.settle(settled, v)
    if settled ~= current then return gone() end
    verdict = v
    return true
  end

  function backend.touch(touched)
    if touched ~= current then return gone() end
    return api.touch()
  end

  function backend.progress(touched, progress, text)
    if touched ~= current then return gone() end
    return api.touch(progress, text)
  end

  function backend.log(logging, text)
    if logging ~= current then return gone() end
    return api.log(text)
  end

  function backend.cancelled(asking)
    return asking ~= current or api.cancelled()
  end

  function backend.take_id(parent)
    if parent ~= current then return gone() end
    return api.take_id()
  end

  function backend.db()
    if not (db and db:is_open()) then
      db = assert(require "nightshift".open(connection))
      backend.own_slots()
    end
    return db
  end

  return backend
end

local function failure(fields, err)
  return { id = fields.id, run = fields.run, lease = fields.lease, kind = "fail", error = err }
end

--- The recorded verdict as the core wants it.
local function finished(fields, v)
  return {
    id = fields.id, run = fields.run, lease = fields.lease, kind = v.kind,
    result = v.result, error = v.error, state = v.state,
    delay = v.delay and core.duration(v.delay),
    children = job.entries(v.children, fields.queue),
  }
end

--- How the run of a handler ended: a plain result, or nil and a verdict.
local function outcome(ended, ok, value)
  if exited then
    exited = false
    return nil, failure(ended, ok and "os.exit called by the handler" or value)
  end
  if not ok then return nil, failure(ended, value) end
  if verdict then return nil, finished(ended, verdict) end
  if not ended._children then return value end
  return nil, finished(ended, { kind = "ack", result = value, children = ended._children })
end

local function make_run(functions, names, backend)
  return function(fields)
    local handler = functions[fields.name]
    if not handler then
      local v = failure(fields, handlers.unknown(fields.name, names))
      v.kind = "missing"
      return nil, v
    end
    local broken = fields.payload_error or fields.state_error
    if broken then return nil, failure(fields, broken) end
    current, verdict, exited = job.new(fields, backend), nil, false
    backend.own_slots()
    local this = current
    local result, v = outcome(this, xpcall(handler, traceback, this))
    mutex.release_all()
    current, this._settled = nil, this._settled or "its return"
    backend.own_slots()
    return result, v
  end
end

--- Loads the handlers and makes what the C side calls.
---@param files string[] handler files and folders
---@param api table C functions: touch, cancelled, log, take_id
---@param connection table options for nightshift.open
---@return string[]|nil names of the handlers
---@return function|string begin called once in each worker, with two random
-- integers; or the message
---@return function? run called per job; returns a result, or nil and a verdict
function worker.prepare(files, api, connection)
  replace_exit()
  address.serve(connection)
  local functions, names = handlers.load(files)
  if not functions then return nil, names end
  -- math.randomseed() by itself would seed all workers of one second alike
  return names, function(a, b) math.randomseed(a, b) end,
    make_run(functions, names, make_backend(api, connection))
end

return worker
