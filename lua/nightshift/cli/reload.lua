--- Command reload: the hosts of this machine read their scripts again.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local runner = require "nightshift.reload"
local versions = require "nightshift.versions"

local reload = { commands = {} }

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
    local why = output.safe(host.error:match "[^\n]*")
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

--- Shows nobody but people how it was asked.
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
  local hosts = context.must(runner.run(db._handle, host.hup, seconds, function(each)
    bad = bad or BAD[each.outcome]
    here = here + (each.outcome == "away" and 0 or 1)
    if not args.json then show(each, args.timeout) end
  end))
  if args.json then output.json(core.array(plain(hosts))) end
  if here == 0 then context.fail(context.FAILURE, "no host of this database runs on this machine") end
  return bad and context.FAILURE or 0
end

return reload
