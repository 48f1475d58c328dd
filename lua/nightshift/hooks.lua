--- Functions that scripts want called in each worker: `nightshift.on`.
--
-- They are registered while scripts are loaded, in the process that forks the workers,
-- so each worker has them. An error in one is told to the host, and keeps no worker from work.

local job = require "nightshift.job"
local options = require "nightshift.options"

local hooks = {}

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

local function traceback(err)
  return (job.traceback(err, 2):gsub("\n%s*%[C%]: in function 'xpcall'.*$", ""))
end

--- Calls the registered functions, one after the other.
---@param event string
---@param complain fun(event: string, text: string) called with each error
---@param ... any their arguments
function hooks.run(event, complain, ...)
  for _, fn in ipairs(EVENTS[event]) do
    local ok, message = xpcall(fn, traceback, ...)
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

return hooks
