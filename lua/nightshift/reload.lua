--- Has the hosts of this machine read their scripts again, and waits for how that ends.
--
-- HUP goes to each process that the database names as a host of this machine and that is
-- one. A host writes how a reading of its scripts has ended, and when it began, by the
-- clock of the machine: what began after the signal is what we asked for.

local core = require "nightshift.core"

local reload = {}

local LOOK = 0.05 -- s between two looks
local SILENT = 30000000 -- µs without a beat after which a host is dead

---@class nightshift.Reload how it went with one host
---@field id integer
---@field host string
---@field pid integer
---@field outcome "loaded"|"failed"|"silent"|"ended"|"away"
---@field was string? version of the scripts before
---@field scripts string? version now
---@field error string? failed: why

local function ask(handle)
  local rows, message, code = handle:execute "@report_reload"
  if not rows then return nil, message, code end
  local by_id = {}
  for _, row in ipairs(rows) do by_id[row.id] = row end
  return rows, by_id
end

--- Sends it to one; what became of it, if that is known at once, and nil for one that is
-- no more.
local function send(row, hup)
  local host = { id = row.id, host = row.host, pid = row.pid, was = row.scripts }
  host.asked = core.clock() * 1e6 // 1 - 1
  local sent, why = hup(row.pid, row.place, row.age)
  if sent then return host end
  if why == "gone" or why == "away" and row.free == 1 and row.silent > SILENT then
    return nil
  elseif why == "away" then
    host.outcome = "away"
  else
    host.outcome, host.error = "failed", why
  end
  return host
end

--- Has its reading ended? 'row' is what the database has of it now.
local function look(host, row)
  if not row then
    host.outcome = "ended"
  elseif row.load_began and row.load_began >= host.asked then
    host.outcome = row.load_error and "failed" or "loaded"
    host.scripts, host.error = row.scripts, row.load_error
  end
end

local function pending(hosts)
  local list = {}
  for _, host in ipairs(hosts) do
    if not host.outcome then list[#list + 1] = host end
  end
  return list
end

--- Does it.
---@param handle userdata core handle
---@param hup fun(pid: integer, place: string, age: integer): true?, string?
---@param seconds number to wait for
---@param tell fun(host: nightshift.Reload) called with each as soon as its outcome is known
---@return nightshift.Reload[]? hosts in the order of their ids
---@return string? message
---@return string? code
function reload.run(handle, hup, seconds, tell)
  local rows, by_id, code = ask(handle)
  if not rows then return nil, by_id, code end
  local hosts, ends = {}, core.clock() + seconds
  for _, row in ipairs(rows) do
    local host = send(row, hup)
    hosts[#hosts + 1] = host
    if host and host.outcome then tell(host) end
  end
  while true do
    local left = pending(hosts)
    if #left == 0 then return hosts end
    local late = core.clock() >= ends
    rows, by_id, code = ask(handle)
    if not rows then return nil, by_id, code end
    for _, host in ipairs(left) do
      look(host, by_id[host.id])
      if late and not host.outcome then host.outcome = "silent" end
      if host.outcome then tell(host) end
    end
    core.sleep(LOOK)
  end
end

return reload
