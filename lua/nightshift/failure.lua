--- Failures that are raised inside a verb, transactions in which they may be, and what a
-- transaction has noted of them. The rounds of a runner, which goes on after each.
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

-- ------------------------------------------------------------------------- scopes

-- The record of a transaction of a handle, or of a try in it, since it began.
--
-- A scope is a list of the jobs that were settled in it, so that a rollback opens them again.
-- It has the `acks` that are written at its end and, as `failed`, the message and code of the
-- first verb that failed in it. A failed verb keeps it from being committed: the scope is
-- written whole or not at all. The open scope of a handle is the `in_transaction` of its
-- backend.
local scope = {}
failure.scope = scope

---@class nightshift.Scope
---@field acks table[] verdicts that are not written yet
---@field failed table? {message, code, job}
---@field outer nightshift.Scope? nil: of a whole transaction
---@field depth integer 0: of a whole transaction

--- A new one inside `outer`, which may be nil.
---@param outer nightshift.Scope?
---@return nightshift.Scope
function scope.new(outer)
  return { acks = {}, failed = nil, outer = outer, depth = outer and outer.depth + 1 or 0 }
end

--- Keeps a scope from being committed; the first reason counts.
---@param self nightshift.Scope
---@param message string
---@param code string?
---@param holder integer? with DUPLICATE
function scope.spoil(self, message, code, holder)
  self.failed = self.failed or { message, code, holder }
end

--- The jobs that were settled in it are not.
---@param self nightshift.Scope
function scope.reopen(self)
  for _, claimed in ipairs(self) do claimed._settled = nil end
end

local function note(object, ...)
  local value, message, code, holder = ...
  if value == nil and message ~= nil then
    local backend = object._backend
    local open = backend.in_transaction
    -- a coroutine that takes no part in it, and was refused, spoils nothing
    if open and backend.takes_part() then scope.spoil(open, message, code, holder) end
  end
  return ...
end

--- Notes failures of these methods in the open scope. Methods that only look are not among them:
-- that a job is not there is an answer.
---@param methods table
---@param names string[]
function scope.watch(methods, names)
  for _, name in ipairs(names) do
    local method = methods[name]
    methods[name] = function(self, ...) return note(self, method(self, ...)) end
  end
end

-- ------------------------------------------------------------------------- rounds

local FIRST, LONGEST = 0.1, 5 -- seconds behind a round that has failed, and behind the last of many

--- The life of a runner in a host: rounds, one after the other, until the host ends. Runners of
-- adopted tables (source/runner.lua) and of schedules (schedule/runner.lua) have it in common.
-- A round that fails, or raises, is told once, and the next one comes later. So a runner goes on,
-- whatever happens to the server or to its own tables.
---@param wait fun(seconds: number, failed: boolean): boolean whether the host ends
---@param round fun(): number|nil, string?, string? seconds until the next one; or nil, a message, and a code
---@param complain fun(text: string|false, code: string?) the round has failed; false: as the one before
function failure.rounds(wait, round, complain)
  local pause, said = FIRST, nil
  local failed
  repeat
    local ran, seconds, message, code = pcall(round)
    if not ran then seconds, message, code = nil, tostring(seconds), "INVALID" end
    failed = not seconds
    if failed then
      complain(message ~= said and ("%s (%s)"):format(message, code or "SQL"), code)
      seconds, pause, said = pause, math.min(pause * 2, LONGEST), message
    else
      pause, said = FIRST, nil
    end
  until wait(seconds, failed)
end

return failure
