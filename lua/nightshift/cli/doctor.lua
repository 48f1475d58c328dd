--- Command doctor: checks that server, database and hosts are as Nightshift needs them; prints
-- the grants of a role.

local examination = require "nightshift.doctor"
local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local grants = require "nightshift.doctor.grants"
local nightshift = require "nightshift"
local output = require "nightshift.cli.output"

-- Seconds that any answer may take; a write, too.
local DEADLINE = 5

local doctor = { commands = {} }

--- Adds the command to the parser.
function doctor.define(parser)
  local command = parser:command("doctor", "Check server, session, privileges and plans; say what to do.")
  command:flag("--json", "Print JSON.")
  command:option("--grants", "Print the SQL that grants a role what it needs; without ROLE: all roles.")
    :args("?"):argname "ROLE":choices(grants.names)
  command:option("--user", "With --grants: the user, NAME or NAME@HOST.")
end

local function print_role(name, account)
  output.line(("\n-- %s: %s"):format(name, grants[name].does))
  for _, statement in ipairs(grants.statements(name, account)) do output.line(statement .. ";") end
  if grants[name].also then output.line("-- " .. grants[name].also) end
end

--- It needs no server: the names are of the client's current database.
local function print_grants(role, user)
  output.line(("-- Nightshift %s: the least that each role needs; take the ones you want.")
    :format(nightshift._VERSION))
  output.line "-- As an administrator: nightshift doctor --grants ROLE --user NAME@HOST | mariadb DATABASE"
  output.line "-- after: CREATE USER 'NAME'@'HOST' IDENTIFIED BY '…';"
  for _, name in ipairs(role and { role } or grants.names) do
    local account, message = grants.account(user or "nightshift_" .. name)
    if not account then context.fail(context.USAGE, "--user: %s", message) end
    print_role(name, account)
  end
end

local function print_finding(f)
  local advice = f.level ~= "ok" and f.advice and "  → " .. f.advice or ""
  output.line(("%-4s  %-12s  %s%s"):format(f.level, f.name, output.safe(f.found), output.safe(advice)))
  io.stdout:flush() -- the next one may take its time
end

local function count(findings, level)
  local n = 0
  for _, f in ipairs(findings) do
    if f.level == level then n = n + 1 end
  end
  return n
end

function doctor.commands.doctor(args)
  if args.grants then return print_grants(args.grants[1], args.user) end
  if args.user then context.fail(context.USAGE, "--user goes with --grants") end
  context.check_place(args)
  local findings, code = examination.run(function()
    local db, message, why = nightshift.open { url = args.url, no_schema = true, read_timeout = DEADLINE }
    if not db then return nil, message, why end
    return db._handle
  end, args.json and function() end or print_finding)
  local fails = count(findings, "fail")
  if args.json then
    output.json { checks = core.array(findings), fail = fails, warn = count(findings, "warn") }
  end
  if code == "GONE" then return context.UNREACHABLE end
  return fails > 0 and context.FAILURE or 0
end

return doctor
