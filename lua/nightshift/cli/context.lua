--- What every command shares: exit codes, connecting, reading arguments.
--
-- A command ends early by `context.fail`, which raises a table that the main
-- function turns into one line on stderr and an exit code.

local nightshift = require "nightshift"

local context = {}

-- Exit codes; 69 and 78 are those of sysexits.
context.FAILURE = 1
context.USAGE = 2
context.UNREACHABLE = 69
context.CONFIG = 78

local EXIT_OF = {
  GONE = context.UNREACHABLE,
  DENIED = context.CONFIG,
  SCHEMA = context.CONFIG,
  SERVER = context.CONFIG,
}

local Exit = { __name = "nightshift.exit" }

--- Ends the command.
---@param exit integer
---@param format string
---@param ... any
function context.fail(exit, format, ...)
  error(setmetatable({ exit = exit, message = format:format(...) }, Exit), 0)
end

--- Was this raised by `fail`?
function context.is_exit(value)
  return getmetatable(value) == Exit
end

--- Exit code for a code of the library.
---@param code string|nil
---@return integer
function context.exit_of(code)
  return EXIT_OF[code] or context.FAILURE
end

local function with_code(message, code)
  return code and ("%s (%s)"):format(message, code) or message
end

--- The result of a verb, or the end of the command.
function context.must(value, message, code)
  if value == nil then context.fail(context.exit_of(code), "%s", with_code(message, code)) end
  return value, message
end

--- One line on stderr.
function context.complain(format, ...)
  io.stderr:write("nightshift: ", format:format(...), "\n")
end

--- Complains of a failed verb, and ends the command when the server is gone.
function context.report_failure(what, message, code)
  if code == "GONE" then context.fail(context.UNREACHABLE, "%s", with_code(message, code)) end
  context.complain("%s: %s", what, with_code(message, code))
end

--- Opens the database of --url, of $NIGHTSHIFT_URL, or the private one.
---@param args table
---@param extra table? more options of nightshift.open
---@return nightshift.Db
function context.connect(args, extra)
  local where = extra or {}
  where.url = args.url
  local db, message, code = nightshift.open(where)
  if db then return db end
  local exit = code == "INVALID" and context.CONFIG or context.exit_of(code)
  context.fail(exit, "%s", with_code(message, code))
end

--- A JSON argument as a value; "-" reads it from stdin.
---@param text string
---@param what string
function context.json(text, what)
  if text == "-" then text = io.read "a" end
  local value, message = nightshift.decode(text)
  if value == nil then context.fail(context.USAGE, "%s: %s", what, message) end
  return value
end

--- Converter for argparse: a whole number.
function context.integer(text)
  local whole = text:match "^%-?%d+$" and math.tointeger(tonumber(text))
  if whole then return whole end
  return nil, ("'%s' is not a whole number"):format(text)
end

--- Converter for argparse: a job id.
function context.id(text)
  local id = context.integer(text)
  if id and id > 0 then return id end
  return nil, ("'%s' is not a job id"):format(text)
end

return context
