--- The command line: parses arguments, runs one command, gives its exit code.
--
-- Results go to stdout, messages to stderr as `nightshift: …`. Exit codes:
-- 0 fine, 1 failure, 2 usage, 69 database unreachable, 78 configuration.

local found, argparse = pcall(require, "argparse")
local context = require "nightshift.cli.context"
local job = require "nightshift.job"

local cli = {}

-- In the order of `nightshift --help`: a module, then its commands. A start takes as long as what
-- it loads, so a command loads its own module alone.
local MODULES <const> = {
  { "setup", "init", "migrate", "doctor", "prune", "retain", "retention", "version" }, { "work", "work" },
  { "reload", "reload", "health" }, { "adopt", "adopt" },
  { "jobs", "push", "jobs", "errors", "show", "why", "wait", "retry", "cancel", "delete", "update", "run-now",
    "reprioritise", "move", "signal" },
  { "tree", "deadline" }, { "queues", "status", "rescue", "tune", "pause", "resume", "remove-queue" },
  { "schedules", "schedules" }, { "run", "run" },
}

--- The module of each command, by name.
cli.module_of = {}
for _, module in ipairs(MODULES) do
  for i = 2, #module do cli.module_of[module[i]] = module[1] end
end

local function load(name) return require("nightshift.cli." .. name) end

--- The parser of the command line; the manual pages are made from it, too.
---@param only string? a module, whose commands alone it is to know
function cli.parser(only)
  if not found then
    context.fail(context.CONFIG, "the command line needs the Lua module argparse, which Lua 5.4 does not find:\n"
      .. "apt-get install lua-argparse, or luarocks --lua-version=5.4 install argparse")
  end
  local parser = argparse("nightshift", "Durable background jobs for Lua, on MariaDB.")
    :epilog "Without --url and $NIGHTSHIFT_URL a private server under ./.nightshift is used."
    :command_target "command"
    :help_max_width(80)
  parser:option("--url", "Database: mysql://user:password@host/database. Default: $NIGHTSHIFT_URL.")
  for _, module in ipairs(MODULES) do
    if not only or module[1] == only then load(module[1]).define(parser) end
  end
  return parser
end

-- The first argument that is neither an option nor the value of --url, the one option before
-- commands.
local function command_in(argv)
  local i = 1
  while argv[i] and argv[i]:find "^%-" do
    if argv[i] ~= "--url" and not argv[i]:find "^%-%-url=" then return nil end
    i = i + (argv[i] == "--url" and 2 or 1)
  end
  return argv[i]
end

local function parse(argv)
  local ok, args = cli.parser(cli.module_of[command_in(argv) or ""]):pparse(context.mark_numbers(argv))
  args = context.unmarked(args)
  if ok then return args end
  context.fail(context.USAGE, "%s\nTry `nightshift --help` or `nightshift COMMAND --help`.",
    args:gsub("\nDid you", ", did you"))
end

local function run(argv)
  local args = parse(argv)
  local exit = load(cli.module_of[args.command]).commands[args.command](args)
  local written, message = io.stdout:flush()
  if not written then context.fail(context.FAILURE, "cannot write the output: %s", message) end
  return math.type(exit) == "integer" and exit or 0
end

local function handle_error(err)
  if context.is_exit(err) then return err end
  return (job.traceback("internal error: " .. tostring(err), 2))
end

--- Runs the command line `argv`.
---@param argv string[]
---@return integer exit code
function cli.main(argv)
  local ok, result = xpcall(run, handle_error, argv)
  if ok then return result end
  if not context.is_exit(result) then
    context.complain("%s", result)
    return context.FAILURE
  end
  context.complain("%s", result.message)
  return result.exit
end

return cli
