--- Scopes: the record of a transaction of a handle, or of a try in it, since it began.
--
-- A scope is a list of the jobs that were settled in it, so that a rollback opens them again.
-- It has the `acks` that are written at its end and, as `failed`, the message and code of the
-- first verb that failed in it. A failed verb keeps it from being committed: the scope is
-- written whole or not at all. The open scope of a handle is the `in_transaction` of its
-- backend.

local scope = {}

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

return scope
