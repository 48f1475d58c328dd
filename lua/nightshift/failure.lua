--- Failures that are raised inside a verb, and transactions in which they may be.
--
-- What fails inside a verb raises an object with a message and a code. The verb itself is `caught`:
-- it gives nil, the message, and the code. Other errors go on.

local core = require "nightshift.core"

local failure = {} -- also the metatable of what is raised

--- Fails with a message and a code.
---@param code string
---@param format string
function failure.fail(code, format, ...)
  error(setmetatable({ message = format:format(...), code = code }, failure), 0)
end

--- The values of a call; a failed call (nil, message, code) raises.
function failure.must(value, ...)
  if value ~= nil then return value, ... end
  local message, code = ...
  error(setmetatable({ message = message, code = code }, failure), 0)
end

local must = failure.must

local function give(ran, value, ...)
  if ran then return value, ... end
  if getmetatable(value) ~= failure then error(value, 0) end
  return nil, value.message, value.code
end

--- Calls a function; its failure is nil, message, code.
---@param fn function
function failure.try(fn, ...)
  local value, message, code = give(pcall(fn, ...))
  return value, message, code
end

--- A function whose failures are nil, message, code.
---@param fn function
---@return function
function failure.caught(fn)
  return function(...)
    local value, message, code = give(pcall(fn, ...))
    return value, message, code
  end
end

--- Runs a function in a transaction of its own, which is rolled back when it raises; one or two
-- values.
---@param handle userdata core handle
---@param fn function
function failure.once(handle, fn, ...)
  must(handle:begin())
  local ran, value, more = pcall(fn, ...)
  if not ran then
    handle:rollback()
    error(value, 0)
  end
  must(handle:commit())
  return value, more
end

local TRIES, PAUSE = 5, 0.01 -- of a transaction that has met another's

--- As `once`, and again after a conflict with another transaction. Its failure is nil, message,
-- code.
---@param handle userdata core handle
---@param fn function
function failure.transaction(handle, fn, ...)
  local value, message, code
  for i = 1, TRIES do
    value, message, code = failure.try(failure.once, handle, fn, ...)
    if code ~= "BUSY" then break end
    core.sleep(PAUSE * i * math.random())
  end
  return value, message, code
end

return failure
