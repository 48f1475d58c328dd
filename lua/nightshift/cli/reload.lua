--- Commands on hosts of this machine. reload has them read their scripts again, and waits for the
-- outcome. health says whether one lives.
--
-- HUP goes to each process that the database names as a host of this machine and that is one. A
-- host writes the outcome of each reading, and when it began, by the clock of the machine. A
-- reading that began after the signal is the one that we asked for.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local nightshift = require "nightshift"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local versions = require("nightshift.hosts").versions

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
  local health = parser:command("health", "Say whether a host of this database on this machine lives: 0; or 1, and why "
    .. "not. For probes of containers.")
  health:option("--host", "This one, by its id or the name of its machine, wherever it runs. Default: any of this "
    .. "machine.")
  health:option("--http", "Ask /readyz of the host that serves it there (work --http). Default: the database.")
    :argname "ADDRESS:PORT"
  health:option("--timeout", "How long to wait for an answer.", "5s")
  health:flag("--json", "Print JSON.")
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

--- The program's own functions.
local function program(command)
  local there, host = pcall(require, "nightshift.host")
  if there then return host end
  context.fail(context.FAILURE, "%s needs the program nightshift; this is plain Lua with the module only", command)
end

function reload.commands.reload(args)
  local seconds = context.checked(options.duration, args.timeout, "--timeout") / 1e6
  local host = program "reload"
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

-- ----------------------------------------------------------------------- health

local function first_line(path)
  local file <close> = io.open(path)
  return file and file:read "l" or "?"
end

--- Is the row's host the one that is asked for?
local function is_meant(row, what, machine, boot)
  if what then return row.host == what or row.id == math.tointeger(tonumber(what)) end
  return row.host == machine and row.place:sub(1, #boot + 1) == boot .. " "
end

--- Of the hosts that are asked for the one that has beaten last; nil, and why there is none.
local function find_live(handle, what)
  local rows, message = handle:execute "@report_reload"
  if not rows then return nil, message end
  local machine, boot = first_line "/proc/sys/kernel/hostname", first_line "/proc/sys/kernel/random/boot_id"
  local best
  local known = {}
  for _, row in ipairs(rows) do
    known[row.host] = true
    if is_meant(row, what, machine, boot) and (not best or row.silent < best.silent) then best = row end
  end
  if not best then
    return nil, what and ("there is no host '%s'%s"):format(what, context.tip(context.near(what, known)))
      or "no host of this database runs on " .. machine
  elseif best.free == 1 then
    return nil, who(best) .. " is gone"
  elseif best.silent > SILENT then
    return nil, ("%s has not beaten for %s"):format(who(best), output.span(best.silent / 1e6))
  end
  return best
end

--- By the database: a table for people and programs.
local function ask_database(args, seconds)
  context.check_place(args)
  local db <close>, message = nightshift.open { url = args.url, connect_timeout = seconds, read_timeout = seconds }
  if not db then return { ok = false, error = ("%s; %s"):format(message, context.origin(args)) } end
  local row
  row, message = find_live(db._handle, args.host)
  if not row then return { ok = false, error = message } end
  return { ok = true, id = row.id, host = row.host, pid = row.pid, beat = row.silent / 1e6 }
end

--- By the host itself.
local function ask_host(args, seconds)
  local status, text = program "health".get(args.http, "/readyz", seconds)
  if status == 200 then return { ok = true, http = args.http } end
  return { ok = false, http = args.http, error = status and output.one_line(text, 200) or text }
end

function reload.commands.health(args)
  local seconds = context.checked(options.duration, args.timeout, "--timeout") / 1e6
  if args.http and args.host then context.fail(context.USAGE, "--http names the host already; leave --host out") end
  local health = (args.http and ask_host or ask_database)(args, seconds)
  if args.json then
    output.json(health)
  elseif health.ok then
    output.line(health.http and health.http .. " is ready"
      or ("%s lives; its last beat was %s ago"):format(who(health), output.span(health.beat)))
  else
    context.complain("%s", health.error)
  end
  return health.ok and 0 or context.FAILURE
end

return reload
