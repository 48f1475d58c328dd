--- "Background a background process": start something slow elsewhere once,
-- then ask now and then whether it has finished.
--
-- A definition becomes two handlers. The parent starts the operation and is done with the
-- operation as its result. Its child polls, goes back to the queue while the answer is "not
-- yet", and ends with the operation's result. Neither occupies a worker in between. The child
-- is written with the parent's verdict, so that the operation is kept before the first poll.
--
-- When the operation is not ready by the deadline, or after max_polls, the poll is dead; or
-- on_timeout decides.
--
-- With `wait` the parent is parked until its child has ended, and then ends the same way. So
-- jobs that wait for the parent wait for the operation.

local jobs = require "nightshift.job"
local options = require "nightshift.options"
local units = require "nightshift.units"

local raise = options.raise
local error_text = jobs.error_text

local background = {}

local EVERY = 5        -- seconds between polls when none is given
local MAX_EVERY = 3600 -- the longest pause when none is given
local JITTER = 0.1
-- A polling job has its last look after its deadline, so it has a limit.
local MAX_POLLS = 1000000000

--- A duration in seconds, since `job:again` takes seconds.
local function seconds(value, what)
  local us, message = options.duration(value, what)
  if not us then return nil, message end
  return us / 1000000
end

local function positive(value, what)
  local s, message = seconds(value, what)
  if not s then return nil, message end
  if s > 0 then return s end
  return nil, what .. " must be more than zero"
end

--- Makes a check for a number within bounds.
local function number(bounds, is_good)
  return function(value, what)
    if type(value) ~= "number" then raise("%s must be a number, got %s", what, type(value)) end
    if is_good(value) then return value end
    return nil, ("%s must be %s, got %s"):format(what, bounds, units.number(value))
  end
end

local KNOWN = {
  start = options.typed "function",
  poll = options.typed "function",
  on_timeout = options.typed "function",
  every = positive,
  growth = number("at least 1", function(n) return n >= 1 and n < math.huge end),
  max_every = positive,
  jitter = number("from 0 to 1", function(n) return n >= 0 and n <= 1 end),
  deadline = positive,
  max_polls = options.POLLS,
  max_attempts = options.COUNT,
  max_crashes = options.COUNT,
  wait = options.typed "boolean",
}

local function need(def, key)
  if def[key] == nil then raise("background: '%s' is missing; it must be a function", key) end
end

--- Values that are good by themselves and not together.
local function check_together(def)
  for _, key in ipairs { "max_every", "deadline" } do
    if def.every and def[key] and def[key] < def.every then
      raise("background: %s (%s s) is shorter than every (%s s)", key, units.number(def[key]), units.number(def.every))
    end
  end
  if def.on_timeout and not def.deadline and not def.max_polls then
    raise "background: 'on_timeout' needs a deadline or max_polls"
  end
end

--- Checks a definition and marks it; a mistake raises and names the bad key.
---@param def nightshift.BackgroundDefinition
---@return table marked for `expand`
function background.define(def)
  if type(def) ~= "table" then raise("background wants a table, got %s", type(def)) end
  local clean, message = options.read("background", def, KNOWN)
  if not clean then raise("%s", message) end
  need(clean, "start")
  need(clean, "poll")
  check_together(clean)
  clean.every = clean.every or math.min(EVERY, clean.max_every or EVERY, clean.deadline or EVERY)
  clean.growth = clean.growth or 1
  clean.jitter = clean.jitter or JITTER
  clean.max_every = clean.max_every or math.max(MAX_EVERY, clean.every)
  clean.__nightshift_background = true
  return clean
end

--- Is the value a marked definition?
---@param value any
---@return boolean
function background.is(value)
  return type(value) == "table" and rawget(value, "__nightshift_background") == true
end

--- Seconds until the next poll after `polls` earlier ones, before jitter.
---@param def table marked
---@param polls integer
---@return number
function background.pace(def, polls)
  return math.min(def.every * def.growth ^ polls, def.max_every)
end

-- The pace that `job:again` asks in a poll: see job.lua.
local pace = {}
pace.__index = pace

--- Seconds until the next poll. Polls that began together shall not stay so: the pace is up to
-- `jitter` of itself shorter or longer. A delay that a server has asked for is never cut short;
-- a delay that the poll names is kept.
function pace:pause(polling, delay, retry_after)
  local def = self.def
  local usual = background.pace(def, polling.polls)
  if retry_after then
    -- a second is the least it can mean, and too long for a poll with a shorter pace
    local least = retry_after > 1 and retry_after or math.min(1, usual)
    return least * (1 + def.jitter * math.random())
  end
  return delay or usual * (1 + def.jitter * (2 * math.random() - 1))
end

--- Is this run, due at the deadline or later, the last look?
local function is_late(polling)
  return polling.deadline ~= nil and polling.due >= polling.deadline
end

--- Is this "not yet" the last one, that on_timeout is called instead of?
function pace:not_yet(polling)
  if not self.def.on_timeout then return false end
  local late = is_late(polling)
  local spent = polling.max_polls and polling.polls >= polling.max_polls
  if not late and not spent then return false end
  polling._settled, self.over = "again", true
  return true
end

--- The end of the poll that a parked parent has waited for, by its id in the parent's state: a
-- retried parent has older ones. nil: it waited for none.
local function ended_poll(name, job)
  local id = job.phase > 0 and type(job.state) == "table" and job.state[name .. ":poll"]
  for _, child in ipairs(id and job.results or {}) do
    if child.id == id and not child.after then return child end
  end
end

local function end_like(job, poll)
  if poll.outcome == "done" then return poll.result end
  return job:discard(poll.error or poll.reason)
end

local function starter(name, def)
  local child = {
    deadline = def.deadline, max_polls = def.max_polls or MAX_POLLS,
    max_attempts = def.max_attempts, max_crashes = def.max_crashes,
  }
  return function(job)
    local poll = def.wait and ended_poll(name, job)
    if poll then return end_like(job, poll) end
    local payload = job.payload -- start may put another there
    local operation, message = def.start(job)
    if job._settled then return operation end -- start gave a verdict itself
    if operation == nil and message ~= nil then return nil, message end
    local id = assert(job:spawn(name .. ":poll", { payload = payload, operation = operation }, child))
    if def.wait then return job:wait { on_fail = "continue", state = { [name .. ":poll"] = id } } end
    return operation
  end
end

local function unwrap(job)
  local wrapped = job.payload
  if type(wrapped) ~= "table" then
    error(("%s: the payload of a poll is {payload = …, operation = …}"):format(job.name), 0)
  end
  return wrapped.payload, wrapped.operation
end

--- Ends the poll as dead, poll deadline, with an error.
local function dead(polling, err)
  polling._settled = "again"
  return polling._backend.settle(polling, { kind = "again", error = error_text(err) })
end

local function traceback(err) return (jobs.traceback(err, 2)) end

--- The end of a poll that is not ready in time. The value of on_timeout is the result; `again`,
-- `fail`, a raise, or nil and a message mean that it is dead.
local function time_out(def, polling, operation)
  polling._settled, polling._children, polling._pace = nil, nil, nil
  polling._ends = dead
  local ok, result, message = xpcall(def.on_timeout, traceback, polling, operation)
  if not ok then return dead(polling, result) end
  if not result and message ~= nil and not polling._settled then return dead(polling, message) end
  return result
end

--- The last look, before on_timeout: an error in it is no answer either, and is logged. A job
-- that is being stopped ends by the error that says so.
local function last_look(polling, operation, own)
  function polling:_ends(err)
    self:log(error_text(err))
    self._settled, own.over = "fail", true
    return true
  end
  local ok, result, message = xpcall(own.def.poll, traceback, polling, operation)
  if ok and not result and message ~= nil and not polling._settled then polling:fail(message) end
  if ok then return result end
  if polling:cancelled() or (polling._settled and not own.over) then error(result, 0) end
  if not own.over then polling:fail(result) end
end

local function poller(def)
  return function(polling)
    local payload, operation = unwrap(polling)
    local own = setmetatable({ def = def, go_on = def.on_timeout and 1 or nil }, pace)
    polling.payload, polling._pace = payload, own
    if not def.on_timeout or not is_late(polling) then
      own.result, own.message = def.poll(polling, operation)
    else
      own.result = last_look(polling, operation, own)
    end
    if own.over then return time_out(def, polling, operation) end
    return own.result, own.message
  end
end

--- The two handlers of a definition: `name` starts, `name:poll` polls.
---@param name string
---@param def table marked
---@return table<string, fun(job: nightshift.Job): any>
function background.expand(name, def)
  return { [name] = starter(name, def), [name .. ":poll"] = poller(def) }
end

return background
