--- Ready jobs that no host runs, because no host has a handler of their name.
--
-- A host claims only names that it has handlers for, so such jobs stay ready. A name served by a
-- host that ended within a minute still counts as known: a deploy may be under way.

local core = require "nightshift.core"
local options = require "nightshift.options"

local unserved = {}

-- Rows; those behind are not seen. Who looks time and again looks at fewer.
local LOOKED_AT, GLANCED_AT = 200000, 20000

--- Jobs of other names, ready or due soon, in queues that are not paused.
---@param handle userdata core handle
---@param known string[] names
---@param queues string[]? of these queues only
---@param within integer µs: what is due sooner counts
---@param most integer? rows that are looked at, of those that are ready and of those that are scheduled
---@return {queue: string, name: string, n: integer, soon: integer, waited: integer}[]? rows soon: how many
---of n are not due yet; waited: µs
---@return string? message
---@return string? code
function unserved.left(handle, known, queues, within, most)
  local list = queues and core.encode(core.array(queues)) or core.null
  most = most or LOOKED_AT
  local rows, message, code =
    handle:execute("@report_left", most, within, most, core.encode(core.array(known)), list, list)
  for _, row in ipairs(rows or {}) do row.soon = math.tointeger(tonumber(row.soon)) end
  return rows, message, code
end

--- The names of all hosts; nil when one of them has more than it tells, or none lives.
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
function unserved.find(handle)
  local hosts, message, code = handle:execute "@report_served"
  if not hosts then return nil, message, code end
  local names = known_by(hosts)
  if not names then return {} end
  local rows
  rows, message, code = unserved.left(handle, names, nil, 0, GLANCED_AT)
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do row.near = unserved.near(row.name, names) end
  return rows
end

--- The known name that is most like another; nil: none is.
---@param name string
---@param known string[]
---@return string?
function unserved.near(name, known)
  local set = {}
  for _, k in ipairs(known) do set[k] = true end
  return options.nearest(name, set)
end

--- "'helo.say' (3 in queue 'q', 1 of them due soon; did you mean 'hello.say'?)"
---@param row {queue: string, name: string, n: integer, soon: integer, near: string?}
---@return string
function unserved.text(row)
  local near = row.near and ("; did you mean '%s'?"):format(row.near) or ""
  local soon = row.soon == 0 and "" or row.soon == row.n and ", due soon" or (", %d of them due soon"):format(row.soon)
  return ("'%s' (%d in queue '%s'%s%s)"):format(row.name, row.n, row.queue, soon, near)
end

return unserved
