--- Reports of hosts, and their consequences: jobs that no host has a handler for,
-- and verdicts that wait to be written.

local core = require "nightshift.core"
local options = require "nightshift.options"

local hosts = {}

-- -------------------------------------------------------------- jobs without a handler

-- A host claims only names that it has handlers for, so ready jobs of other names stay ready. A
-- name served by a host that ended within a minute still counts as known: a deploy may be under way.

-- Rows that are read; rows behind them are not seen. A caller that looks time and again reads
-- fewer.
local LOOKED_AT, GLANCED_AT = 200000, 20000

--- Jobs of other names, ready or due soon, in queues that are not paused.
---@param handle userdata core handle
---@param known string[] names
---@param queues string[]? of these queues only
---@param within integer µs: jobs due sooner count
---@param most integer? rows that are read, of ready ones and of scheduled ones
---@return {queue: string, name: string, n: integer, soon: integer, waited: integer}[]? rows soon: how many
---of n are not due yet; waited: µs
---@return string? message
---@return string? code
function hosts.left(handle, known, queues, within, most)
  local list = queues and core.encode(core.array(queues)) or core.null
  most = most or LOOKED_AT
  local rows, message, code =
    handle:execute("@report_left", most, within, most, core.encode(core.array(known)), list, list)
  for _, row in ipairs(rows or {}) do row.soon = math.tointeger(tonumber(row.soon)) end
  return rows, message, code
end

--- The names of all hosts; nil when one of them has more names than it shows, or none lives.
local function known_by(rows)
  local names, lives = {}, false
  for _, row in ipairs(rows) do
    lives = lives or row.lives == 1
    for _, name in ipairs(core.decode(row.handlers)) do
      if name == core.null then return nil end
      names[#names + 1] = name
    end
  end
  return lives and names or nil
end

--- Ready jobs with a name that no live host knows; none while no host lives at all.
---@param handle userdata core handle
---@return {queue: string, name: string, n: integer, waited: integer, near: string?}[]? rows
---@return string? message
---@return string? code
function hosts.unserved(handle)
  local served, message, code = handle:execute "@report_served"
  if not served then return nil, message, code end
  local names = known_by(served)
  if not names then return {} end
  local rows
  rows, message, code = hosts.left(handle, names, nil, 0, GLANCED_AT)
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do row.near = hosts.near(row.name, names) end
  return rows
end

--- The known name that is most like another; nil: none is.
---@param name string
---@param known string[]
---@return string?
function hosts.near(name, known)
  local set = {}
  for _, k in ipairs(known) do set[k] = true end
  return options.nearest(name, set)
end

--- "'helo.say' (3 in queue 'q', 1 of them due soon; did you mean 'hello.say'?)"
---@param row {queue: string, name: string, n: integer, soon: integer, near: string?}
---@return string
function hosts.unserved_text(row)
  local near = row.near and ("; did you mean '%s'?"):format(row.near) or ""
  local soon = row.soon == 0 and "" or row.soon == row.n and ", due soon" or (", %d of them due soon"):format(row.soon)
  return ("'%s' (%d in queue '%s'%s%s)"):format(row.name, row.n, row.queue, soon, near)
end

-- ------------------------------------------------------------ verdicts to be written

-- The handler has ended, and the database does not take its verdict. A host that cannot write
-- shows verdicts that have waited for a second. They are in the text of a statement, in a
-- session of its own: see src/core/holder/holder.c. An account that may not see the host's
-- sessions gets none. Between two such statements there is a moment without any; so while a
-- host's session waits for the server it is looked at again.

local LOOKS = 3
local PAUSE = 0.03 -- seconds between two

--- The verdicts that one session shows; nil when its text is cut, or not ours.
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

--- Holders by id that have owed verdicts for more than a second: {n, oldest (µs), by_job = {[id]
-- = {run, waited (µs)}}, server}. server: the server's state of the holder's wait.
---@param handle userdata core handle
---@param holder integer? only this one matters
---@return table<integer, table>? found
---@return any
---@return string? code
function hosts.owed(handle, holder)
  local found, waits, code
  for i = 1, LOOKS do
    found, waits, code = look(handle)
    if not found then return nil, waits, code end
    if not next(waits) or holder and not waits[holder] then break end
    if i < LOOKS then core.sleep(PAUSE) end
  end
  return found
end

return hosts
