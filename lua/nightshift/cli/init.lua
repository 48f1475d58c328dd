--- The command line: parses arguments, runs one command, gives its exit code.
--
-- Results go to stdout, messages to stderr as `nightshift: …`. Exit codes:
-- 0 fine, 1 failure, 2 usage, 69 database unreachable, 78 configuration.

local found, argparse = pcall(require, "argparse")
local context = require "nightshift.cli.context"
local job = require "nightshift.job"

local cli = {}

-- In the order of `nightshift --help`.
local MODULES = {}
for i, name in ipairs { "setup", "work", "reload", "adopt", "jobs", "tree", "queues", "schedules", "run" } do
  MODULES[i] = require("nightshift.cli." .. name)
end

--- The parser of the command line; the manual pages are made from it, too.
function cli.parser()
  if not found then
    context.fail(context.CONFIG, "the command line needs the Lua module argparse, which Lua 5.4 does not find:\n"
      .. "apt-get install lua-argparse, or luarocks --lua-version=5.4 install argparse")
  end
  local parser = argparse("nightshift", "Durable background jobs for Lua, on MariaDB.")
    :epilog "Without --url and $NIGHTSHIFT_URL a private server under ./.nightshift is used."
    :command_target "command"
    :help_max_width(80)
  parser:option("--url", "Database: mysql://user:password@host/database. Default: $NIGHTSHIFT_URL.")
  for _, module in ipairs(MODULES) do module.define(parser) end
  return parser
end

local function command_of(name)
  for _, module in ipairs(MODULES) do
    if module.commands[name] then return module.commands[name] end
  end
end

local function parse(argv)
  local ok, args = cli.parser():pparse(context.mark_numbers(argv))
  args = context.unmarked(args)
  if ok then return args end
  context.fail(context.USAGE, "%s\nTry `nightshift --help` or `nightshift COMMAND --help`.",
    args:gsub("\nDid you", ", did you"))
end

local function run(argv)
  local args = parse(argv)
  local exit = command_of(args.command)(args)
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
