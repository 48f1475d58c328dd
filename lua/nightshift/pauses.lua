--- Kill-switches: names of jobs that are paused, and all queues at once.
--
-- A name is a row of nightshift_paused_name; the empty one stands for every queue, queues made
-- later among them. Who claims reads the rows together with the queues, so a pause is obeyed within
-- a second; a job stays where it is. See queue_list and queue_paused.

local core = require "nightshift.core"
local options = require "nightshift.options"
local units = require "nightshift.units"

local pauses = {}

local ALL <const> = "" -- the name that stands for every queue

local function ask(handle, statement, ...) return handle:execute("@" .. statement, ...) end

--- Ends the sleep of all hosts and programs. What is not committed yet they find by themselves.
local function wake(handle)
  if handle:in_transaction() then return end
  for _, row in ipairs(ask(handle, "admin_claimers") or {}) do ask(handle, "listen_nudge", row.id, false) end
end

--- Pauses a name, or resumes it; nil: every queue. Was it otherwise before?
---@param handle userdata core handle
---@param name string?
---@param paused boolean
---@return boolean|nil changed
---@return string? message
---@return string? code
function pauses.set(handle, name, paused)
  if name then
    local ok, message, code = options.name("job name", name, options.MAX_NAME)
    if not ok then return nil, message, code end
  end
  local result, message, code = ask(handle, paused and "admin_pause_name" or "admin_resume_name", name or ALL)
  if not result then return nil, message, code end
  if not paused then wake(handle) end
  return result.affected > 0
end

--- What is paused: {all = since or nil, names = {{name =, since =}, …}}, instants in seconds.
---@param handle userdata core handle
---@return {all: number?, names: {name: string, since: number}[]}|nil
---@return string? message
---@return string? code
function pauses.list(handle)
  local rows, message, code = ask(handle, "report_paused_names")
  if not rows then return nil, message, code end
  local found = { names = core.array {} }
  for _, row in ipairs(rows) do
    local since = units.seconds(row.since)
    if row.name == ALL then found.all = since
    else found.names[#found.names + 1] = { name = row.name, since = since } end
  end
  return found
end

return pauses
