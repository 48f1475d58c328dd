--- Actions of people: which parts of this library are one, and what the audit says of them.
--
-- An action leaves one row of nightshift_audit. The core writes it, in the transaction that does the
-- action (src/core/db/transaction.c), and the core's own verbs begin their actions by themselves.
-- Here are actions that are statements of this library, or that take many transactions. What hosts
-- do by themselves begins none. report/init.lua reads the rows.
--
-- Invariant: an action, or a part of one, ends with the block that has begun it, and no coroutine
-- yields in it. So of two actions that take turns on a handle each has its own row.

local failure = require "nightshift.failure"
local units = require "nightshift.units"

local must = failure.must

local audit = {}

-- The end of a part of an action, which its handle may not live to see.
local part_meta = {
  __close = function(part)
    local action = part.action
    if part.begun and action.handle:is_open() then action.row = action.handle:act_end() end
  end,
}

--- An action that has many transactions, with code of a caller between them: each is a `part` of it.
---@param handle userdata core handle
---@param verb string as the method of the handle is called, without what it is done to
---@param what string? to what it is done
---@param job integer? the job that it is about
---@return table action
function audit.new(handle, verb, what, job)
  return { handle = handle, verb = verb, what = what, job = job, row = 0 }
end

--- Begins a part: `local part <close> = audit.part(action)`. What is called until its end belongs to
-- the action.
---@param action table|nil nil: there is none
---@return table? part
function audit.part(action)
  if not action then return nil end
  local part = setmetatable({ action = action }, part_meta)
  part.begun = action.handle:act(action.verb, action.what, action.job, action.row)
  return part
end

--- Begins an action that has one part.
---@return table part
function audit.begin(handle, verb, what, job) return audit.part(audit.new(handle, verb, what, job)) end

--- Writes the row of an action that is one transaction, the open one.
---@param handle userdata core handle
---@param verb string
---@param what string
---@param jobs integer? how many it has changed
---@return true|nil
---@return string? message
---@return string? code
function audit.note(handle, verb, what, jobs)
  local part <close> = audit.begin(handle, verb, what)
  return part.action.handle:act_note(jobs or 0)
end

--- Does an action in a transaction of its own, or in the open one. `fn` gives a value; false: nothing
-- has changed, and no row is written; or nil, a message and a code.
---@param handle userdata core handle
---@param verb string
---@param what string
---@param fn fun(): any, string?, string?
---@return any
---@return string? message
---@return string? code
function audit.once(handle, verb, what, fn)
  local function act()
    local value, message, code = fn()
    if not value then return value, message, code end
    local ok
    ok, message, code = audit.note(handle, verb, what)
    if not ok then return nil, message, code end
    return value
  end
  if handle:in_transaction() then return act() end
  return failure.transaction(handle, function() return must(act()) end)
end

-- ------------------------------------------------------------------------- texts

local CONDITIONS <const> = { "state", "queue", "name", "tag", "group", "error", "since", "parent" }

local function instant(since) return since.at and units.instant(since.at / 1000000)
  or units.span(since.ago / 1000000) .. " ago" end

--- What an update changes, without values.
local function changes(change, again)
  local names = { change.make and "payload" or nil }
  for key in pairs(change.values) do names[#names + 1] = key == "json" and "payload" or key end
  table.sort(names)
  return table.concat(names, ", ") .. (again and ", and run again" or "")
end

--- The conditions of a filter, and what a verb on its jobs is to do.
---@param given table checked by filter.read
---@return string
function audit.filter(given)
  local words = {}
  for _, key in ipairs(CONDITIONS) do
    local value = given[key]
    if value then words[#words + 1] = ("%s=%s"):format(key, key == "since" and instant(value) or value) end
  end
  local text = table.concat(words, " ")
  if given.to then text = ("%s: to queue %s"):format(text, given.to) end
  if given.priority then text = ("%s: priority %d"):format(text, given.priority) end
  if given.change then text = ("%s: %s"):format(text, changes(given.change, given.retry)) end
  if given.reason then text = ("%s: %s"):format(text, given.reason) end
  return text
end

return audit
