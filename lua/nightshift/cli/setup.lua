--- Commands on the installation: init, migrate, doctor, retain, retention, prune, version. The
-- doctor checks that server, database and hosts are as Nightshift needs them; and it prints the
-- grants of a role.

local adopt = require "nightshift.cli.adopt"
local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local ended = require "nightshift.ended"
local grants = require "nightshift.doctor.grants"
local nightshift = require "nightshift"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local shards = require "nightshift.sharded.shards"

-- Loaded by the few commands that need them.
local examination = options.later(function() return require "nightshift.doctor" end)
local report = options.later(function() return require "nightshift.report" end)

local setup = { commands = {} }
local commands = setup.commands

--- Adds the commands to the parser.
function setup.define(parser)
  local init = parser:command("init", "Create Nightshift's tables in the database.")
  init:flag("--print", "Print the SQL instead, ready for the mariadb client.")
  local upgrade = parser:command("migrate", "Upgrade the tables to this version of Nightshift, and make the "
    .. "procedures anew.")
  for _, command in ipairs { init, upgrade } do command:flag("--json", "Print JSON.") end
  local doctor = parser:command("doctor", "Check server, tables, account, machine and jobs; say what to do.")
  doctor:flag("--json", "Print JSON.")
  doctor:option("--grants", "Print the SQL that grants a role what it needs. Default of ROLE: all roles.")
    :args("?"):argname "ROLE":choices(grants.names)
  doctor:option("--user", "With --grants: the user, NAME or NAME@HOST. Default: nightshift_ROLE.")
  local retain = parser:command("retain", "Say how long ended jobs are kept, and how many: hosts delete the rest.")
  retain:argument("queue", "Queue name. Default: all queues that have no rule of their own."):args "?"
  for _, outcome in ipairs(ended.OUTCOMES) do
    retain:option("--" .. outcome, ('Keep %s jobs so long, like "7d"; "never": delete none by age; "default". '
      .. "Default: as before."):format(outcome))
    retain:option("--" .. outcome .. "-count",
      'Keep so many of the queue, the newest; "never": delete none by number; "default". Default: as before.')
  end
  retain:flag("--json", "Print JSON.")
  local rules = parser:command("retention", "Show how long ended jobs are kept.")
  rules:flag("--json", "Print JSON.")
  local prune = parser:command("prune", "Delete the history of finished jobs now: what `retain` does not keep.")
  prune:option("--done", 'Done jobs older than this, like "1d"; "never" keeps them. Default: as `retain` says.')
  prune:option("--dead", 'The same for dead and cancelled jobs. Default: as `retain` says.')
  prune:option("--tree", "Only the history of this finished job and all below it, however old."):argname "ID"
    :convert(context.id)
  adopt.define_prune(prune)
  prune:flag("--yes", "Do it; without this only the number is shown.")
  prune:flag("--json", "Print JSON.")
  local version = parser:command("version", "Show versions of program, tables and server.")
  version:flag("--json", "Print JSON.")
end

local function newest_schema()
  local schema = core.schema()
  return schema[#schema].version
end

local function print_statement(statement)
  output.write(("\n-- version %d: %s\n"):format(statement.version, statement.name))
  if statement.text:find(";", 1, true) then
    output.write("DELIMITER //\n", statement.text, "\n//\nDELIMITER ;\n")
  else
    output.write(statement.text, ";\n")
  end
end

-- The session's settings, as in our own sessions.
local SESSION <const> = "SET NAMES utf8mb4 COLLATE utf8mb4_general_ci,"
  .. " sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION';"

--- The statement that makes a database shard N.
local function print_shard(number)
  if not number or number == 0 then return end
  local first, last = number * shards.BLOCKS, (number + 1) * shards.BLOCKS - 1
  output.write(("\n-- shard %d\nALTER SEQUENCE nightshift_id START WITH %d MINVALUE %d MAXVALUE %d RESTART WITH %d;\n")
    :format(number, first, first, last, first))
end

local function print_schema(number)
  output.write(("-- Nightshift %s, tables of version %d.\n"):format(nightshift._VERSION, newest_schema()))
  output.write "-- For an empty database: nightshift init --print | mariadb DATABASE\n"
  output.write("\n-- views and procedures keep these\n", SESSION, "\n")
  for _, statement in ipairs(core.schema()) do print_statement(statement) end
  output.write(("\n-- the version of the tables\nREPLACE INTO nightshift_meta (name, value) VALUES ('schema', '%d');\n")
    :format(newest_schema()))
  print_shard(number)
end

local function migrate(args, number)
  local handle <close> = context.connect(args, { no_schema = true })
  local before, now = context.must(handle:migrate())
  if number then context.must(shards.give(handle._handle, number)) end
  if args.json then return output.json { was = before, version = now, shard = number } end
  if before == now then
    output.line(("the tables are of version %d already; procedures and views were made anew"):format(now))
  elseif before == 0 then
    output.line(("created the tables, version %d"):format(now))
  else
    output.line(("upgraded the tables from version %d to %d; procedures and views were made anew"):format(before, now))
  end
  if number then output.line(("the database is shard %d"):format(number)) end
end

function commands.init(args)
  if args.shard then context.checked(shards.check, args.shard, "--shard") end
  if args.print then return print_schema(args.shard) end
  local _, of_url = shards.strip(args.url or (options.address() or {}).url or "")
  return migrate(args, args.shard or of_url)
end

function commands.migrate(args) return migrate(args) end

-- -------------------------------------------------------------------- doctor

-- Seconds that any answer may take; a write, too.
local DEADLINE = 5

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

local COLOURS <const> = { ok = "green", note = "bold", warn = "yellow", fail = "red" }

local function print_finding(f)
  local fix = f.fix and "  → " .. f.fix or ""
  local status = output.paint(f.status, COLOURS[f.status]) .. (" "):rep(4 - #f.status)
  output.line(("%s  %-12s  %s%s"):format(status, f.name, output.safe(f.says), output.safe(fix)))
  io.stdout:flush() -- the next one may take its time
end

-- The worst of all findings, as exit code; a failure is one as everywhere.
local EXITS = { ok = 0, note = 0, warn = context.WARNING, fail = context.FAILURE }
local WORSE = { ok = 1, note = 2, warn = 3, fail = 4 }

local function worst_of(findings)
  local worst = "ok"
  for _, f in ipairs(findings) do
    if WORSE[f.status] > WORSE[worst] then worst = f.status end
  end
  return worst
end

function commands.doctor(args)
  if args.grants then return print_grants(args.grants[1], args.user) end
  if args.user then context.fail(context.USAGE, "--user goes with --grants") end
  context.check_place(args)
  local findings, code = examination().run(function()
    local db, message, why = nightshift.open { url = args.url, no_schema = true, read_timeout = DEADLINE }
    if not db then return nil, ("%s; %s"):format(message, context.origin(args)), why end
    return db._handle
  end, args.json and function() end or print_finding)
  local worst = worst_of(findings)
  if args.json then output.json { findings = core.array(findings), worst = worst } end
  return code == "GONE" and context.UNREACHABLE or EXITS[worst]
end

-- -------------------------------------------------- retain, retention, prune

local LIMITS = { never = false, default = "default" }

--- The value of an option; words as they are in Lua.
local function limit(text, what, number)
  if text == nil or LIMITS[text] ~= nil then return LIMITS[text] end
  local value = number and math.tointeger(tonumber(text)) or not number and text
  if not value then context.fail(context.USAGE, "%s: '%s' is not a whole number", what, text) end
  return value
end

--- How long and how many, for people.
local function kept(one)
  local age = one.age and output.span(one.age) or "for ever"
  return one.count and ("%s, the newest %d"):format(age, one.count) or age
end

local function rule_columns()
  local columns = {
    { title = "QUEUE", get = function(row) return row.queue and output.one_line(row.queue, 64) or "all" end },
  }
  for i, outcome in ipairs(ended.OUTCOMES) do
    columns[i + 1] = { title = outcome:upper(), get = function(row) return kept(row[outcome]) end }
  end
  return columns
end

local function print_rules(args, db)
  local list = context.must(db:retention())
  if not args.json then return output.table(rule_columns(), list) end
  output.json_list(list)
end

function commands.retain(args)
  local given = {}
  for _, outcome in ipairs(ended.OUTCOMES) do
    local option, most = "--" .. outcome, args[outcome .. "_count"]
    if args[outcome] or most then
      given[outcome] = { age = limit(args[outcome], option), count = limit(most, option .. "-count", true) }
      context.checked(ended.RULES[outcome], given[outcome], option)
    end
  end
  if args.queue then context.check_name("queue name", args.queue, options.MAX_QUEUE) end
  if next(given) == nil then context.fail(context.USAGE, "say what is kept: --done, --dead, --dead-count, …") end
  local db <close> = context.connect(args)
  local near = context.near_queue(db, args.queue) -- before the rule makes the queue
  context.must(db:retain(args.queue, given))
  if near then context.complain("there was no queue '%s' before%s", options.shown(args.queue), context.tip(near)) end
  print_rules(args, db)
end

function commands.retention(args)
  local db <close> = context.connect(args)
  print_rules(args, db)
end

local function age(text, what)
  if not text then return nil end
  if text == "never" then return -1 end
  return context.checked(options.duration, text, what)
end

local function print_deleted(args, n)
  if args.json then return output.json { deleted = n } end
  output.line(n > 0 and "deleted " .. output.count(n, "job") or "nothing to delete")
end

local function prune_tree(args)
  local handle <close> = context.connect(args)
  context.must(handle:job(args.tree))
  if not args.yes then
    context.fail(context.USAGE, "the history of job %d and of all below it would be deleted; add --yes to do it",
      args.tree)
  end
  print_deleted(args, context.must(handle:prune { tree = args.tree }))
end

--- How many jobs there are to delete; nil: it is not known, for rules by number, or of queues, are
-- not counted. Without --yes it says how many, and ends.
local function check_prunable(args, handle, given)
  local ages = given.done and given.dead and given or context.must(ended.ages(handle))
  if not ages then
    if args.yes then return nil end
    context.fail(context.USAGE, "what `nightshift retention` does not keep would be deleted; add --yes to do it")
  end
  local counts = context.must(report().prunable(handle, given.done or ages.done, given.dead or ages.dead,
    given.dead or ages.cancelled))
  local n = counts.done + counts.dead + counts.cancelled
  if n == 0 or args.yes then return n end
  context.fail(context.USAGE, "%d done, %d dead, %d cancelled jobs would be deleted; add --yes to do it",
    counts.done, counts.dead, counts.cancelled)
end

function commands.prune(args)
  if adopt.wanted(args, { "older", "into", "limit", "state" }, { "tree" }) then return adopt.prune(args) end
  if args.tree then return prune_tree(args) end
  local given = { done = age(args.done, "--done"), dead = age(args.dead, "--dead") }
  local db <close> = context.connect(args)
  local n = check_prunable(args, db._handle, given)
  if n == 0 then return print_deleted(args, 0) end
  local progress = output.progress("jobs", n)
  local deleted, message, code = ended.prune(db._handle, given.done or ended.BY_RULE,
    given.dead or ended.BY_RULE, progress.active and progress.show or nil)
  progress.finish()
  print_deleted(args, context.must(deleted, message, code))
end

-- ------------------------------------------------------------------- version

--- Fills in the server's facts; a reason for having none goes to `error`.
local function ask_server(args, facts)
  local handle, message, code = nightshift.open { url = args.url, no_schema = true }
  if not handle then
    facts.error, facts.code = ("%s; %s"):format(message, context.origin(args)), code
    return
  end
  local opened <close> = handle
  local server = opened._handle:execute "@report_server"
  local schema, _, why = opened._handle:execute "@report_schema"
  facts.tables_code = why == "DENIED" and why or nil
  if server and server[1] then facts.server, facts.database = server[1].version, server[1].db end
  if schema and schema[1] then facts.tables = math.tointeger(tonumber(schema[1].value)) end
end

local function server_line(facts)
  if facts.error then return ("server      not reached: %s (%s)"):format(facts.error, facts.code) end
  if not facts.server then return "server      not asked: no --url and no $NIGHTSHIFT_URL" end
  local tables = facts.tables_code and "this user may not look at the version of the tables"
    or "tables of version " .. (facts.tables or "none")
  return ("server      %s, database %s, %s"):format(facts.server, facts.database or "-", tables)
end

function commands.version(args)
  local facts = { version = nightshift._VERSION, schema = newest_schema(), lua = _VERSION }
  if args.url or options.address() then ask_server(args, facts) end
  if args.json then return output.json(facts) end
  output.line("nightshift  " .. facts.version)
  output.line("schema      " .. facts.schema)
  output.line("lua         " .. facts.lua)
  output.line(server_line(facts))
end

return setup
