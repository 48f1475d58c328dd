--- Command reload: has the hosts of this machine read their scripts again, and waits for the
-- outcome.
--
-- HUP goes to each process that the database names as a host of this machine and that is one. A
-- host writes the outcome of each reading, and when it began, by the clock of the machine. A
-- reading that began after the signal is the one that we asked for.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local versions = require "nightshift.versions"

local reload = { commands = {} }

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

--- Sends HUP to one host; its outcome, if that is known at once, and nil for a host that is
-- gone.
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

--- Has its reading ended? 'row' is its present row in the database.
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
local function reload_hosts(handle, hup, seconds, tell)
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

--- Adds the command to the parser.
function reload.define(parser)
  local command = parser:command("reload", "Have the hosts of this database on this machine read their scripts again, "
    .. "and say how that ended: 1 where one could not, or did not answer.")
  command:option("--timeout", "How long to wait for them.", "30s")
  command:flag("--json", "Print JSON.")
end

local function who(host)
  return ("host %d (pid %d on %s)"):format(host.id, host.pid, output.one_line(host.host, 40))
end

local TEXTS = {
  loaded = function(host)
    return host.scripts == host.was and ("runs %s, as before"):format(host.scripts)
      or ("runs %s now, before %s"):format(host.scripts, host.was or "none")
  end,
  failed = function(host)
    local why = output.safe(host.error)
    return host.scripts and ("%s: %s"):format(versions.goes_on(host.scripts), why) or "was not told: " .. why
  end,
  silent = function(_, timeout)
    return ("has not answered for %s: it reads for long, is stopped, or its database is slow"):format(timeout)
  end,
  ended = function() return "has ended" end,
  away = function() return "was not reached: it is on another machine, or in another container" end,
}

local BAD = { failed = true, silent = true }

local function show(host, timeout)
  local text = TEXTS[host.outcome](host, timeout)
  if BAD[host.outcome] then
    context.complain("%s %s", who(host), text)
  else
    output.line(("%s %s"):format(who(host), text))
    io.stdout:flush() -- the next one may take its time
  end
end

--- Shows only people how it was asked.
local function plain(hosts)
  for _, host in ipairs(hosts) do host.asked = nil end
  return hosts
end

function reload.commands.reload(args)
  local seconds = context.checked(options.duration, args.timeout, "--timeout") / 1e6
  local there, host = pcall(require, "nightshift.host")
  if not there then
    context.fail(context.FAILURE, "reload needs the program nightshift; this is plain Lua with the module only")
  end
  local db <close> = context.connect(args)
  local bad, here = false, 0
  local hosts = context.must(reload_hosts(db._handle, host.hup, seconds, function(each)
    bad = bad or BAD[each.outcome]
    here = here + (each.outcome == "away" and 0 or 1)
    if not args.json then show(each, args.timeout) end
  end))
  if args.json then output.json(core.array(plain(hosts))) end
  if here == 0 then context.fail(context.FAILURE, "no host of this database runs on this machine") end
  return bad and context.FAILURE or 0
end

return reload
