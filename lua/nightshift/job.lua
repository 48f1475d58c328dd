--- The job object, which a claim gives and a handler gets.
--
-- A job is a plain table of fields with the verbs of this file as methods. It knows nothing of
-- connections: a backend carries the verbs out. The embedded backend (queue.lua) settles at
-- once; the worker's records the verdict for the host. A job is settled at most once; the
-- second verb says STALE. A bad value given to `again`, `fail` or `spawn` raises. Inside a
-- handler the raise is the failure's message, while a returned nil would read as "done".

local core = require "nightshift.core"
local ended = require "nightshift.ended"
local options = require "nightshift.options"
local scope = require("nightshift.failure").scope
local units = require "nightshift.units"

local raise = options.raise

---@class nightshift.Verdict
---@field kind "ack"|"fail"|"again"|"discard"|"release"|"wait"
---@field result any of ack
---@field error string? of fail and discard; of again, kept when that is the end
---@field state any of again
---@field delay number? seconds; nil: the job's backoff
---@field go_on integer? of wait: 1: whatever a child does; of again: 1: past the deadline, too
---@field asked boolean? of again: the delay is from a response
---@field children table[]? spawned: entries for the core, each with its id and its payload as `json`

---@class nightshift.Backend carries the verbs out
---@field settle fun(job: table, verdict: nightshift.Verdict): ...
---@field touch fun(job: table): ...
---@field progress fun(job: table, progress: number, text: string?): ...
---@field log fun(job: table, text: string): ...
---@field checkpoint fun(job: table, text: string): ... JSON
---@field cancelled fun(job: table): boolean
---@field max_children integer? that a run may spawn
---@field limits table<string, table>? of handlers by name: the options that their children are pushed with
---@field take_id fun(job: table): integer?, string?, string?
---@field is_open (fun(): boolean)? only of a handle, which may be closed
---@field live fun(verb: string)? the same; raises when it is
---@field db (fun(job: table): table)? only inside a worker
---@field ask fun(statement: string, ...): table?, string? runs a statement of sql/query

local job = {}
local methods = {}
local meta = { __name = "nightshift.job", methods = methods }

-- Fields that are read when they are first asked for.
local lazy = {}

function lazy.after(self)
  if not self._follows then return {} end
  local rows, message = self._backend.ask("edge_after", self.id)
  return rows and ended.ids(rows) or error("job.after: " .. message, 0)
end

function lazy.tags(self)
  if not self._tagged then return {} end
  local rows, message = self._backend.ask("settle_tag_list", self.id)
  if not rows then error("job.tags: " .. message, 0) end
  local list = {}
  for i, row in ipairs(rows) do list[i] = row.tag end
  return list
end

function lazy.results(self) return ended.of(self.id, self.after, self._backend.ask) end

function meta.__index(self, key)
  local value = methods[key]
  if value == nil and lazy[key] then
    value = lazy[key](self)
    rawset(self, key, value)
  end
  return value
end

-- Bytes of an error text that are kept.
local MAX_ERROR = 65536

-- Bytes of a line of a log that are kept: its last; more is not kept of all lines.
local MAX_LINE = 16384

--- The text with each byte that is not UTF-8 as "?", in one pass.
local function valid_utf8(text)
  local length, bad = utf8.len(text)
  if length then return text end
  local parts, from = {}, 1
  repeat
    parts[#parts + 1] = text:sub(from, bad - 1)
    from = bad + 1
    length, bad = utf8.len(text, from)
  until length
  parts[#parts + 1] = text:sub(from)
  return table.concat(parts, "?")
end

--- The end of a text, from a whole character on.
local function tail(text, max)
  if #text <= max then return text end
  return (text:sub(-max):gsub("^[\x80-\xBF][\x80-\xBF]?[\x80-\xBF]?", ""))
end

-- The real metatable, not the value of __metatable, which any program may set.
local real_metatable, debug_traceback = debug.getmetatable, debug.traceback

local function plain_text(value)
  if value == nil then return "failed without an error value" end
  if type(value) == "table" and rawget(real_metatable(value) or {}, "__tostring") == nil then
    local text = core.encode(value)
    if text then return text end
  end
  local ok, text = pcall(tostring, value)
  return ok and text or ("(%s whose __tostring fails)"):format(type(value))
end

--- Any error value as text that can be stored: valid UTF-8, at most 64 KiB.
---@param value any
---@return string
function job.error_text(value)
  local text = type(value) == "string" and value or plain_text(value)
  if #text > MAX_ERROR then
    text = text:sub(1, MAX_ERROR) .. ("… (%d bytes)"):format(#text)
  end
  return valid_utf8(text)
end

--- The text of an error with the traceback of where it was raised, for message handlers.
-- debug.traceback itself would cut the text at its first NUL.
---@param value any
---@param level integer of the caller's: 1 is the caller itself
---@return string
function job.traceback(value, level)
  return job.error_text(value) .. "\n" .. debug_traceback(nil, level + 1)
end

-- ------------------------------------------------- verdicts that are raised

-- The value that nightshift.discard and nightshift.retry_in raise: {kind, text, delay}.
local Raised = { __name = "nightshift.verdict", __tostring = function(self) return self.text end }

--- The verdict that an error value is; nil: it is an ordinary error.
---@param value any
---@return {kind: "discard"|"fail", text: string, delay: number?}?
function job.raised(value)
  return type(value) == "table" and real_metatable(value) == Raised and value or nil
end

--- Seconds of a duration; raises on a bad one.
local function seconds(value, what)
  if value == nil then return nil end
  local us, message = options.duration(value, what)
  if not us then raise("%s", message) end
  return us / 1000000
end

--- Raises: the job is dead at once, as by job:discard, wherever below its handler this is called.
---@param reason any
function job.discard(reason)
  error(setmetatable({ kind = "discard", text = job.error_text(reason) }, Raised), 0)
end

--- Raises: the attempt has failed, and the next comes after this delay.
---@param delay number|string
---@param err any nil: a text that says when
function job.retry_in(delay, err)
  local after = seconds(delay, "retry_in: the delay")
  if after == nil then raise "retry_in wants a delay" end
  local text = err == nil and ("to be retried in %s s"):format(units.number(after)) or job.error_text(err)
  error(setmetatable({ kind = "fail", text = text, delay = after }, Raised), 0)
end

-- Called by each verb itself: behind a tail call the caller's line would be lost.
local function own(self, verb)
  options.own(self, meta, "job", verb)
  if self._backend.live then self._backend.live(verb) end
end

local function stale(self)
  return nil, ("job %d is already settled by %s"):format(self.id, self._settled), "STALE"
end

-- Verdicts after which it is known whether the job is dead; the other verdicts tell.
local ENDS = { ack = true, discard = true, release = true }

-- Verdicts that write the children.
local BRINGS = { ack = true, again = true, wait = true }

local function settle(self, verdict)
  if self._settled then return stale(self) end
  if self._unspawned and BRINGS[verdict.kind] then
    return nil, self._unspawned, self._unspawned_code
  end
  verdict.children = BRINGS[verdict.kind] and self._children or nil
  local settled, more, code = self._backend.settle(self, verdict)
  if settled or code == "STALE" then self._settled = verdict.kind end
  if not settled then return nil, more, code end
  if ENDS[verdict.kind] then return true end
  if more == nil then return settled end
  return settled, more
end

--- Ends the job as done.
---@param result any kept with the job's history; nil: none
function methods:ack(result)
  own(self, "ack")
  return settle(self, { kind = "ack", result = result })
end

--- The ack of a job on a handle, in the core's form: the caller has it written. Inside a worker
-- the handle is `job:db()`.
---@param self table the job
---@param backend table the handle's
---@param result any
---@return table|false|nil for core; false: the job has no row
---@return string? message
---@return string? code
function job.ack_on(self, backend, result)
  if getmetatable(self) ~= meta then raise("tx:ack wants a job, got %s", type(self)) end
  local its = self._backend
  if its ~= backend and (not its.db or its.db()._backend ~= backend) then
    raise("tx:ack: job %d was not claimed on this handle", self.id)
  end
  if self._settled then return stale(self) end
  if self._unspawned then return nil, self._unspawned, self._unspawned_code end
  self._settled = "ack"
  local verdict = { kind = "ack", result = result, children = self._children }
  if not its.committed then return backend.entry(self, verdict) end -- else it is one of `nightshift run`
  self._verdict = verdict
  table.insert(backend.in_transaction, self)
  return false
end

local FAIL = { retry_in = seconds }

--- Reports an error: the job is retried after its backoff, or dead once its
-- attempts are spent.
---@param err any
---@param opts {retry_in: number|string}?
---@return true?, boolean|string?, string? the second: whether the job is dead now
function methods:fail(err, opts)
  own(self, "fail")
  local given = options.read("fail", opts, FAIL)
  if self._ends and not self._settled then return self:_ends(err) end
  return settle(self, { kind = "fail", error = job.error_text(err), delay = given.retry_in })
end

-- A Retry-After that is over, or nearly, means this many seconds: "come back"
-- is no wish to be asked without a pause.
local SOONEST = 1
local LATEST = 3155760000 -- a century; no delay is longer

--- Seconds that a response's headers ask for; nil when they say nothing usable.
local function asked(retry_after, date)
  local delay = retry_after
  if type(retry_after) == "string" then delay = units.retry_after(retry_after, date) end
  if not delay or delay ~= delay then return nil end
  return math.max(SOONEST, math.min(delay, LATEST))
end

local function any(value) return value end

--- Check: a header's value; JSON's null is as none.
local function header(value, what)
  if value == core.null or type(value) == "string" then return value end
  raise("%s must be the text of a header, got a %s", what, type(value))
end

local function header_or_number(value, what)
  if type(value) == "number" then return value end
  return (header(value, what))
end

local STOPS <const> = { group = 1, queue = 2 } -- as the core has them

local AGAIN = { delay = seconds, retry_after = header_or_number, date = header, state = any,
  stop = options.one_of("group", "queue") }

local function known(value) return value ~= core.null and value or nil end

local function read_again(delay, state)
  if type(delay) ~= "table" then return { delay = seconds(delay, "again: the delay"), state = state } end
  local given, message = options.read("again", delay, AGAIN)
  if not given then raise("%s", message) end -- a handler that returned nil would be done
  if state ~= nil then given.state = state end
  given.retry_after = asked(known(given.retry_after), known(given.date))
  return given
end

--- "Not yet": the job comes back after a delay, with `state` in `job.state`. `retry_after` is
-- the Retry-After of a response, seconds or a date, and `date` its Date. If it has a value,
-- that goes before `delay`; an instant that is over means a second. `stop`: until then no other job
-- of its group, or of its queue, starts, as far as that has limits.
---@param delay number|string|nightshift.AgainOptions|nil
---@param state any nil keeps the last one
function methods:again(delay, state)
  own(self, "again")
  local given = read_again(delay, state)
  if self._settled then return stale(self) end
  local pace = self._pace
  if pace and pace:not_yet(self) then return true end
  local pause = given.retry_after or given.delay
  if pace then pause = pace:pause(self, given.delay, given.retry_after) end
  return settle(self, { kind = "again", delay = pause, state = given.state, go_on = pace and pace.go_on,
    stop = STOPS[given.stop] })
end

local WAIT = {
  on_fail = options.one_of("fail", "continue"), signal = options.typed "string", deadline = seconds,
  state = function(value) return value end,
}

--- Parks the job, without a worker, until all its children have ended; then it
-- runs again, with `job.phase` one higher and `job.results`. When a child
-- fails it is dead (reason "child failed"), unless `on_fail` is "continue".
-- Children of this run may be claimed at once.
--
-- With `signal` it is parked until `db:signal(id, value)` says so, or until the
-- deadline: then it runs again, with `job.signal`, nil when nothing came.
---@param opts {on_fail: string?, signal: string?, deadline: number|string?, state: any}?
function methods:wait(opts)
  own(self, "wait")
  local given, message = options.read("wait", opts, WAIT)
  if not given then raise("%s", message) end -- a handler that returned nil would be done
  if given.signal then
    if given.on_fail then raise "wait: 'on_fail' is for children; this waits for a signal" end
    local ok, why = options.name("wait: the signal's name", given.signal, options.MAX_NAME)
    if not ok then raise("%s", why) end
    return settle(self, { kind = "wait", signal = given.signal, delay = given.deadline, state = given.state })
  elseif given.deadline then
    raise "wait: 'deadline' is for a signal"
  elseif not (self._settled or self._children or self._unspawned) and ended.children(self.results) == 0 then
    raise("wait: job %d has no children; spawn some first, or name a signal", self.id)
  end
  return settle(self, { kind = "wait", go_on = given.on_fail == "continue" and 1 or 0, state = given.state })
end

--- Gives the job up at once: dead, whatever attempts are left.
---@param reason any
function methods:discard(reason)
  own(self, "discard")
  return settle(self, { kind = "discard", error = job.error_text(reason) })
end

--- Gives the job back untouched: it costs no attempt and no priority.
function methods:release()
  own(self, "release")
  return settle(self, { kind = "release" })
end

--- Shows that the job is alive and says whether the claim still holds.
function methods:touch()
  own(self, "touch")
  if self._settled then return stale(self) end
  return self._backend.touch(self)
end

-- How far from 0 to 1 a sum of floats may be and still mean it.
local ROUNDED = 1e-6

local function check_progress(progress)
  if type(progress) ~= "number" then
    raise("progress must be a number from 0 to 1, got a %s", type(progress))
  end
  if not (progress >= -ROUNDED and progress <= 1 + ROUNDED) then
    raise("progress must be a number from 0 to 1, got %s", progress)
  end
  return math.max(0.0, math.min(1.0, progress))
end

--- Shows how far the job is, 0 to 1, and a short text.
---@param progress number
---@param text string?
function methods:progress(progress, text)
  own(self, "progress")
  progress = check_progress(progress)
  if text ~= nil and type(text) ~= "string" then
    raise("progress: the text must be a string, got %s", type(text))
  end
  if self._settled then return stale(self) end
  return self._backend.progress(self, progress, text)
end

--- Keeps a state while the job runs, durably: whatever ends this run, the next one finds it in
-- `job.state`. Costs a commit. On a handle in a transaction it is a part of that.
---@param state any
---@return true|nil
---@return string? message
---@return string? code
function methods:checkpoint(state)
  own(self, "checkpoint")
  local text, message = core.encode(state == nil and core.null or state, nil, "checkpoint: the state")
  if not text then raise("%s", message) end
  if self._settled then return stale(self) end
  local ok, why, code = self._backend.checkpoint(self, text)
  if not ok then return nil, why, code end
  self.state = state
  return true
end

--- Writes the state of a running job by a handle: for backends.
---@param handle userdata core handle
---@param self nightshift.Job
---@param text string JSON
function job.keep(handle, self, text)
  local result, message, code = handle:execute("@settle_checkpoint", text, self.id, self.run)
  if not result then return nil, message, code end
  if result.affected == 1 then return true end
  result, message, code = handle:execute("@settle_checkpoint_stands", self.id, self.run)
  if not result then return nil, message, code end
  if result[1] then return true end
  return nil, ("the claim of job %d is lost"):format(self.id), "STALE"
end

--- Keeps a line with this attempt; shown when it fails.
---@param text any
function methods:log(text)
  own(self, "log")
  return self._backend.log(self, valid_utf8(tail(tostring(text), MAX_LINE)))
end

--- Has the job been cancelled, or lost otherwise, while it runs?
---@return boolean
function methods:cancelled()
  own(self, "cancelled")
  return self._backend.cancelled(self)
end

--- Should a long handler come to an end? True once its host drains or stops, or when the job is
-- cancelled. It may keep its state, and go back: `return job:again(0, state)`.
---@return boolean
function methods:stopping()
  own(self, "stopping")
  local is_stopping = self._backend.stopping or self._backend.cancelled
  return is_stopping(self)
end

--- The child as an entry for the core. It keeps nothing of the caller's tables, which may have
-- changed by the time of the verdict.
local function child_of(self, name, payload, opts)
  local entry, message = options.entry("spawn", name, payload, opts, options.SPAWN)
  if not entry then raise("%s", message) end
  local ok, why = options.name("spawn: the job's name", name, options.MAX_NAME)
  if ok and entry.queue then
    ok, why = options.name("spawn: the queue's name", entry.queue, options.MAX_QUEUE)
  end
  if ok then entry.json, why = core.encode(entry.payload, nil, "spawn: payload") end
  if not entry.json then raise("%s", why) end
  local its = self._backend.limits and self._backend.limits[name] or {}
  entry.payload, entry.queue = nil, entry.queue or its.queue or self.queue
  for _, field in ipairs { "priority", "timeout", "max_attempts" } do entry[field] = entry[field] or its[field] end
  return entry
end

--- A run that has lost a child must not end as if it had it.
local function unspawned(self, message, code)
  self._unspawned, self._unspawned_code = "a child was not spawned: " .. message, code
  return nil, message, code
end

local OWN_GROUP = "the group '%s' is ordered, and this job is in it: it would wait for the child, which waits for it; "
  .. "give the child another group, or none"

--- Is the child in the ordered group of its parent? The database is asked only when it is the same
-- group.
local function is_in_own_group(self, child)
  if child.group == nil or child.group ~= self.group or child.queue ~= self.queue then return false end
  local rows, message, code = self._backend.ask("edge_ordered", self.id, child.group, core.null)
  if not rows then return nil, message, code end
  return #rows > 0
end

local TOO_MANY = "a run may spawn %d children, for all of them are written with its verdict, in one transaction; raise "
  .. "that with `nightshift work --max-children N` (in a program: nightshift.open{max_children = N}), or let "
  .. "children spawn some of them"

--- Gives this job a child. It is written together with this run's verdict:
-- claimable once this job is done; dropped when the run fails.
---@param name string
---@param payload any
---@param opts table? as of push, and `queue`
---@return integer|nil id
---@return string? message
---@return string? code
function methods:spawn(name, payload, opts, extra)
  own(self, "spawn")
  options.no_more("spawn", "name, payload and options", extra)
  if self._settled then raise("spawn: job %d is already settled", self.id) end
  local child = child_of(self, name, payload, opts)
  local children, most = self._children or {}, self._backend.max_children or options.MAX_CHILDREN
  if #children >= most then return unspawned(self, TOO_MANY:format(most), "TOO_BIG") end
  local ordered, message, code = is_in_own_group(self, child)
  if ordered then message, code = OWN_GROUP:format(options.shown(child.group)), "INVALID" end
  if message then return unspawned(self, message, code) end
  local id
  id, message, code = self._backend.take_id(self)
  if not id then return unspawned(self, message, code) end
  self._children, child.id = children, id
  children[#children + 1] = child
  return id
end

--- The worker's own connection; only inside `nightshift work`.
function methods:db()
  own(self, "db")
  if not self._backend.db then raise("job:db() is for handlers inside a worker") end
  return (self._backend.db(self))
end

scope.watch(methods, { "ack", "fail", "again", "wait", "discard", "release", "checkpoint" })

function meta.__tostring(self)
  return ("nightshift.job: %d %s"):format(self.id, self.name)
end

--- Ends a job when its block is left without a verdict: by an error it has failed, else it
-- is given back. Nothing is left to end when its handle is closed.
---@param self nightshift.Job
---@param err any nil: none
---@return true?, boolean|string?, string? as of the verb; nil when there was nothing to do
function job.let_go(self, err)
  local is_open = self._backend.is_open
  if self._settled or (is_open and not is_open()) then return end
  local verdict = job.raised(err)
  if verdict and verdict.kind == "discard" then return self:discard(verdict.text) end
  if verdict then return self:fail(verdict.text, { retry_in = verdict.delay }) end
  if err ~= nil then return self:fail(err) end
  return self:release()
end

--- `local job <close> = q:claim()`
meta.__close = job.let_go

--- Makes a job of the core's fields; the table itself becomes the job.
---@param fields table
---@param backend nightshift.Backend
---@return nightshift.Job
function job.new(fields, backend)
  fields.attempt = fields.attempts + 1
  fields._backend = backend
  return setmetatable(fields, meta)
end

-- -------------------------------------------------------------------------- hooks

-- Functions that scripts want called in each worker: `nightshift.on`. They are registered while
-- scripts are loaded, in the process that forks the workers, so each worker has them. An error in
-- one is told to the host, and keeps no worker from work.
local hooks = {}
job.hooks = hooks

local EVENTS = {
  ["worker.start"] = {}, ["worker.stop"] = {}, ["job.start"] = {}, ["job.done"] = {}, ["job.failed"] = {},
  ["job.dead"] = {},
}

--- Has a function called in each worker: at its start, before its first job; at its orderly end; or
-- before and behind each job.
---@param event "worker.start"|"worker.stop"|"job.start"|"job.done"|"job.failed"|"job.dead"
---@param fn fun(job: nightshift.Job?, ...)
function hooks.on(event, fn)
  if not EVENTS[event] then
    options.raise("on: the event must be 'worker.start', 'worker.stop', 'job.start', 'job.done', 'job.failed' or "
      .. "'job.dead', got '%s'", tostring(event))
  end
  if type(fn) ~= "function" then options.raise("on: '%s' wants a function, got %s", event, type(fn)) end
  table.insert(EVENTS[event], fn)
end

local function traceback_of_hook(err)
  return (job.traceback(err, 2):gsub("\n%s*%[C%]: in function 'xpcall'.*$", ""))
end

--- Calls the registered functions, one after the other.
---@param event string
---@param complain fun(event: string, text: string) called with each error
---@param ... any their arguments
function hooks.run(event, complain, ...)
  for _, fn in ipairs(EVENTS[event]) do
    local ok, message = xpcall(fn, traceback_of_hook, ...)
    if not ok then complain(event, message) end
  end
end

--- Is anything registered for events that begin so?
---@param prefix string
function hooks.any(prefix)
  for event, list in pairs(EVENTS) do
    if #list > 0 and event:sub(1, #prefix) == prefix then return true end
  end
  return false
end

return job
