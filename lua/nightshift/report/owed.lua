--- Verdicts that wait to be written: the handler has ended, and the database does not take
-- what became of the job.
--
-- A host that cannot write tells of those that have waited for a second by the text of a
-- statement, in a session of its own: see src/core/holder/holder.c. Who may not see the host's
-- sessions is told of none. Between two such statements there is a moment without any; so
-- while a host's session waits for the server it is looked at again.

local core = require "nightshift.core"

local owed = {}

local LOOKS = 3
local PAUSE = 0.03 -- seconds between two

--- What one session tells; nil when that is cut, or nothing of ours.
local function parse(text, lasted)
  local json = text:match "nightshift owes (.*) %*/"
  local told = json and core.decode(json)
  if type(told) ~= "table" or type(told.verdicts) ~= "table" then return nil end
  local by_job, oldest = {}, 0
  for _, verdict in ipairs(told.verdicts) do
    local id, run, waited = table.unpack(verdict)
    by_job[id] = { run = run, waited = waited + lasted }
    oldest = math.max(oldest, waited + lasted)
  end
  return { holder = told.holder, n = told.n, oldest = oldest, by_job = by_job }
end

local function look(handle)
  local rows, message, code = handle:execute "@report_owed"
  if not rows then return nil, message, code end
  local found, states, waits = {}, {}, {}
  for _, row in ipairs(rows) do
    local told = row.told and parse(row.told, row.lasted)
    if told then found[told.holder] = told end
    if row.holder and row.waits == 1 then
      waits[row.holder] = true
      states[row.holder] = row.state ~= "" and row.state or nil
    end
  end
  for holder, told in pairs(found) do
    told.server = states[holder]
    waits[holder] = nil
  end
  return found, waits
end

--- Holders by id, of those that owe verdicts for more than a second: {n, oldest (µs), by_job =
-- {[id] = {run, waited (µs)}}, server = what the server says that the holder waits for}.
---@param handle userdata core handle
---@param holder integer? only this one matters
---@return table<integer, table>? found
---@return any
---@return string? code
function owed.find(handle, holder)
  local found, waits, code
  for i = 1, LOOKS do
    found, waits, code = look(handle)
    if not found then return nil, waits, code end
    if not next(waits) or holder and not waits[holder] then break end
    if i < LOOKS then core.sleep(PAUSE) end
  end
  return found
end

return owed
