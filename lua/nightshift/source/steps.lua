--- Statements and transactions of an adopted table, on the core's handle.

local core = require "nightshift.core"

local steps = {}

local TRIES, PAUSE = 5, 0.01 -- of a transaction that has met another's

--- A list as JSON.
---@param items any[] numbers, or lists as text
---@return string
function steps.list(items) return "[" .. table.concat(items, ",") .. "]" end

--- Runs a statement of the table by its name in text.lua.
---@param self nightshift.source.Table
---@param name string
---@return table|nil
---@return string? message
---@return string? code
function steps.run(self, name, ...) return self.handle:execute("@:" .. self.texts[name], ...) end

--- Runs a statement of sql/query.
---@param self nightshift.source.Table
---@param statement string its name
function steps.ask(self, statement, ...) return self.handle:execute("@" .. statement, ...) end

--- Changes rows of a list; each of them, where `all` says so. A server that a KILL QUERY has hit
-- may stop in the middle and report success.
---@param self nightshift.source.Table
---@param name string
---@param items string[]
---@param all boolean
---@return true|nil
---@return string? message
---@return string? code
function steps.change(self, name, items, all)
  if not self.texts[name] or #items == 0 then return true end
  local result, message, code = steps.run(self, name, steps.list(items))
  if not result then return nil, message, code end
  if not all or result.affected >= #items then return true end
  return nil, ("the server has changed %d rows of %d"):format(result.affected, #items), "BUSY"
end

--- Runs a function in a transaction of its own. It gives a value, or nil, message, code.
---@param self nightshift.source.Table
---@param fn fun(self, ...): any, string?, string?
function steps.once(self, fn, ...)
  local ok, message, code = self.handle:begin()
  if not ok then return nil, message, code end
  local result
  result, message, code = fn(self, ...)
  if result == nil then
    self.handle:rollback()
    return nil, message, code
  end
  ok, message, code = self.handle:commit()
  if not ok then return nil, message, code end
  return result
end

--- As above, and again after a conflict with another transaction.
---@param self nightshift.source.Table
---@param fn fun(self, ...): any, string?, string?
function steps.transaction(self, fn, ...)
  local result, message, code
  for i = 1, TRIES do
    result, message, code = steps.once(self, fn, ...)
    if result ~= nil or code ~= "BUSY" then break end
    core.sleep(PAUSE * i * math.random())
  end
  return result, message, code
end

-- Errors of a table that has changed since it was adopted.
local ALTERED = { ["1054"] = true, ["1064"] = true, ["1146"] = true, ["1265"] = true }

--- Is an error the fault of a row, and not of the server, its table, or another transaction?
---@param message string
---@param code string
function steps.is_of_row(message, code)
  if code == "GONE" or code == "BUSY" or code == "DENIED" or code == "SCHEMA" then return false end
  return not ALTERED[message:match "%((%d+)%)$"]
end

return steps
