--- The command line: parses arguments, runs one command, gives its exit code.
--
-- Results go to stdout, messages to stderr as `nightshift: …`. Exit codes:
-- 0 fine, 1 failure, 2 usage, 69 database unreachable, 78 configuration.

local found, argparse = pcall(require, "argparse")
local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local job = require "nightshift.job"
local options = require "nightshift.options"

local cli = {}

-- In the order of `nightshift --help`: a module, then its commands. A start takes as long as what
-- it loads, so a command loads its own module alone.
local MODULES <const> = {
  { "setup", "init", "migrate", "doctor", "prune", "retain", "retention", "version" }, { "work", "work" },
  { "reload", "reload", "health" }, { "adopt", "adopt" },
  { "push", "push", "schedules" },
  { "jobs", "jobs", "errors", "show", "why" },
  { "verbs", "wait", "retry", "cancel", "delete", "update", "run-now", "reprioritise", "move", "signal",
    "deadline" },
  { "status", "status", "scale" },
  { "queues", "pause", "resume", "remove-queue", "tune", "audit", "rescue", "limit", "limits" },
  { "top", "top" }, { "web", "web" },
  { "run", "run" }, { "config", "config" }, { "help", "help", "completion" },
}

--- The module of each command, by name.
cli.module_of = {}
for _, module in ipairs(MODULES) do
  for i = 2, #module do cli.module_of[module[i]] = module[1] end
end

local function load(name) return require("nightshift.cli." .. name) end

local EPILOG <const> = [[
Without --url, $NIGHTSHIFT_URL and a file with a url a private server under ./.nightshift is used.

Examples:
   nightshift push greetings hello.say '{"name": "world"}'
   nightshift work examples/hello/jobs.lua --drain
   nightshift help push]]

local function show_version()
  print("nightshift " .. core._VERSION)
  os.exit(0)
end

--- The parser of the command line; the manual pages are made from it, too.
---@param only string? a module, whose commands alone it is to know
function cli.parser(only)
  if not found then
    context.fail(context.CONFIG, "the command line needs the Lua module argparse, which Lua 5.4 does not find:\n"
      .. "apt-get install lua-argparse, or luarocks --lua-version=5.4 install argparse")
  end
  local parser = argparse("nightshift", "Durable background jobs for Lua, on MariaDB.")
    :epilog(EPILOG)
    :command_target "command"
    :help_max_width(80)
  parser:option("--url", "Database: mysql://user:password@host/database; several have blanks between them. Default: "
    .. "$NIGHTSHIFT_URL, or as a file says.")
  parser:option("--config", "File of settings: url, and options of work, as lines like `workers = 8`. Default: "
    .. "$NIGHTSHIFT_CONFIG, ~/.config/nightshift/config, or /etc/nightshift/config."):argname "FILE"
  parser:option("--shard", "Of several databases the one with this number, 0 to 89. With init: the number that the "
    .. "database gets. Default: all of them; of init: as the URL says, or 0."):argname "N":convert(context.integer)
  parser:flag("--version", "Show the version of this program."):action(show_version)
  for _, module in ipairs(MODULES) do
    if not only or module[1] == only then load(module[1]).define(parser) end
  end
  load "help".add_examples(parser)
  return parser
end

-- Options that stand before commands.
local BEFORE <const> = { ["--url"] = true, ["--config"] = true, ["--shard"] = true }

-- The first argument that is neither an option nor the value of one, and its place.
local function command_in(argv)
  local i = 1
  while argv[i] and argv[i]:find "^%-" do
    if not BEFORE[argv[i]:match "^[^=]*"] then return nil end
    i = i + (BEFORE[argv[i]] and 2 or 1)
  end
  return argv[i], i
end

local ALL <const> = { help = true, config = true } -- modules that look at the commands of all

-- Of this process: where the options are from that stand in no argument.
local from = {}

-- The command of the arguments, and the parser that has read them. A wrong file stops no help.
local function parse(argv)
  local name, at = command_in(argv)
  local module = cli.module_of[name]
  local parser = cli.parser(not ALL[module] and module or nil)
  local whole, asks_help = argv, module == "help"
  for _, text in ipairs(argv) do asks_help = asks_help or text == "--help" or text == "-h" end
  if module and not asks_help then whole, from = load "config".apply(parser, argv, name, at) end
  local ok, args = parser:pparse(context.mark_numbers(whole))
  args = context.unmarked(args)
  if ok then
    args.from = from
    return args, parser
  end
  if name == "work" then load "config".check(parser, argv) end
  local help = load "help"
  context.fail(context.USAGE, "%s\n%s", help.explained(parser, argv, name, args), help.try(parser, name))
end

local function run(argv)
  local args, parser = parse(argv)
  local command = load(cli.module_of[args.command]).commands[args.command]
  local function call(own) return command(own, parser, argv) end
  local urls = args.url or (options.address() or {}).url or ""
  local exit
  if args.shard or urls:find "%s" then exit = load "shards".run(args, urls, call) else exit = call(args) end
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
  local place = from[result.message:match "^%-%-[%w-]+" or ""]
  context.complain("%s%s", result.message, place and (" (%s)"):format(place) or "")
  return result.exit
end

return cli
