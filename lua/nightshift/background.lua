--- "Background a background process": start something slow elsewhere once,
-- then ask now and then whether it has finished.
--
-- A definition becomes two handlers. The parent starts the operation and is
-- done with the operation as its result; its child polls, goes back to the
-- queue while the answer is "not yet", and ends with the operation's result.
-- Neither occupies a worker in between.
--
-- With `wait` the parent is parked until its child has ended and then ends the
-- same way, so that whoever waits for it waits for the operation.

local options = require "nightshift.options"

local raise = options.raise

local background = {}

-- The longest pause between polls when none is given; seconds.
local MAX_EVERY = 3600

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

local function growth(value, what)
  if type(value) ~= "number" then raise("%s must be a number, got %s", what, type(value)) end
  if value >= 1 and value < math.huge then return value end
  return nil, ("%s must be at least 1, got %s"):format(what, value)
end

local KNOWN = {
  start = options.typed "function",
  poll = options.typed "function",
  every = positive,
  growth = growth,
  max_every = positive,
  deadline = positive,
  max_polls = options.POLLS,
  max_attempts = options.COUNT,
  max_crashes = options.COUNT,
  wait = options.typed "boolean",
}

local function need(def, key)
  if def[key] == nil then raise("background: '%s' is missing; it must be a function", key) end
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
  clean.every = clean.every or 5
  clean.growth = clean.growth or 1
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

--- Seconds until the next poll after `polls` earlier ones.
---@param def table marked
---@param polls integer
---@return number
function background.pace(def, polls)
  return math.min(def.every * def.growth ^ polls, def.max_every)
end

--- What became of the poll that a parked parent has waited for, by its id in
-- the parent's state: a retried parent has older ones. nil: it waited for none.
local function ended_poll(name, job)
  local id = job.phase > 0 and type(job.state) == "table" and job.state[name .. ":poll"]
  for _, child in ipairs(id and job.results or {}) do
    if child.id == id then return child end
  end
end

local function end_like(job, poll)
  if poll.outcome == "done" then return poll.result end
  return job:discard(poll.error or poll.reason)
end

local function starter(name, def)
  local child = {
    deadline = def.deadline, max_polls = def.max_polls,
    max_attempts = def.max_attempts, max_crashes = def.max_crashes,
  }
  return function(job)
    local poll = def.wait and ended_poll(name, job)
    if poll then return end_like(job, poll) end
    local payload = job.payload -- start may put another there
    local operation = def.start(job)
    if job._settled then return operation end -- start gave a verdict itself
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

local function poller(def)
  local function pace(job) return background.pace(def, job.polls) end
  return function(job)
    local payload, operation = unwrap(job)
    job.payload, job._pace = payload, pace
    return def.poll(job, operation)
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
