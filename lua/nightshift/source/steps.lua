--- Statements of an adopted table, on the core's handle. What fails raises: see failure.lua.

local failure = require "nightshift.failure"

local must = failure.must

local steps = {}

-- Errors of a table that has changed since it was adopted, and of the server.
local NOT_OF_ROW = { ["1054"] = true, ["1064"] = true, ["1146"] = true, ["1265"] = true, GONE = true, BUSY = true,
  DENIED = true, SCHEMA = true, STATE = true }

--- Is an error the fault of a row, and not of the server, its table, or another transaction?
---@param message string
---@param code string
function steps.is_of_row(message, code)
  return not (NOT_OF_ROW[code] or NOT_OF_ROW[message:match "%((%d+)%)$"])
end

--- Fails inside a transaction.
---@param what string the verb that cannot be done
function steps.outside(self, what)
  if self.handle:in_transaction() then failure.fail("STATE", "%s inside a transaction", what) end
end

--- A list as JSON.
---@param items any[] numbers, or lists as text
---@return string
function steps.list(items) return "[" .. table.concat(items, ",") .. "]" end

--- One field of each row: a list.
---@param rows table[]
---@param field string? "id", unless told
---@return any[]
function steps.ids(rows, field)
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row[field or "id"] end
  return ids
end

--- Rows as items of a list in JSON; {field} in the format is a field of the row.
---@param format string "[{id},{job}]"
---@param rows table[]
---@return string[]
function steps.marks(format, rows)
  local marks = {}
  for i, row in ipairs(rows) do marks[i] = format:gsub("{([%w_]+)}", row) end
  return marks
end

--- Runs a statement of the table by its name in text.lua.
---@param name string
---@return table
function steps.run(self, name, ...) return (must(self.handle:execute("@:" .. self.texts[name], ...))) end

--- Runs a statement of sql/query.
---@param statement string its name
---@return table
function steps.ask(self, statement, ...) return (must(self.handle:execute("@" .. statement, ...))) end

--- Fails unless as many rows were changed. A server that a KILL QUERY has hit may stop in the
-- middle and report success.
---@param result table
---@param n integer
function steps.all_of(result, n)
  if result.affected < n then failure.fail("BUSY", "the server has changed %d rows of %d", result.affected, n) end
end

--- Changes rows of a list, where the mapping has a word for that; each of them, where `all` says
-- so.
---@param name string
---@param marks string[]
---@param all boolean
function steps.change(self, name, marks, all)
  if not self.texts[name] or #marks == 0 then return end
  local result = steps.run(self, name, steps.list(marks))
  if all then steps.all_of(result, #marks) end
end

return steps
