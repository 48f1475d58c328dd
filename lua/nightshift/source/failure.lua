--- Failures inside a verb. A failure there is raised, and the verb gives nil, a message and a
-- code.

local failure = {}

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

local function give(ran, value, ...)
  if ran then return value, ... end
  if getmetatable(value) ~= failure then error(value, 0) end
  return nil, value.message, value.code
end

--- A function whose failures are nil, message, code. Other errors go on.
---@param fn function
---@return function
function failure.caught(fn)
  return function(...)
    local value, message, code = give(pcall(fn, ...))
    return value, message, code
  end
end

return failure
