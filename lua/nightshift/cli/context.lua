--- The common parts of all commands: exit codes, connecting, reading arguments.
--
-- A command ends early by `context.fail`, which raises a table that the main
-- function turns into one line on stderr and an exit code.

local nightshift = require "nightshift"
local options = require "nightshift.options"

local context = {}

-- Exit codes; 69 and 78 are from sysexits.
context.FAILURE = 1
context.USAGE = 2
context.WARNING = 4
context.UNREACHABLE = 69
context.CONFIG = 78

local EXIT_OF = {
  INVALID = context.USAGE,
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
  local hint = ""
  if code == "DENIED" and message:find "command denied" then
    hint = "; `nightshift doctor --grants` prints what each role needs"
  elseif code == "SERVER" and message:find "the node that writes is" then
    hint = "; name all nodes in the address, mysql://user@a,b,c/db, and it is found"
  end
  return (code and ("%s (%s)"):format(message, code) or message) .. hint
end

--- The result of a verb, or the end of the command.
function context.must(value, message, code)
  if value == nil then context.fail(context.exit_of(code), "%s", with_code(message, code)) end
  return value, message
end

--- Writes one line on stderr, a NUL in it as "\0".
function context.complain(format, ...)
  io.stderr:write("nightshift: ", (format:format(...):gsub("%z", "\\0")), "\n")
end

--- Complains of a failed verb, and ends the command when the server is gone.
function context.report_failure(what, message, code)
  if code == "GONE" then context.fail(context.UNREACHABLE, "%s", with_code(message, code)) end
  context.complain("%s: %s", what, with_code(message, code))
end

-- Commands that make a private database where there is none. The other commands need one that
-- exists.
local MAKES = { init = true, migrate = true, push = true, run = true, work = true }

--- The working directory.
local function here()
  local pipe <close> = io.popen "pwd"
  return pipe and pipe:read "l" or "."
end

--- Ends a command that would make a private database only to find it empty.
---@param args table
function context.check_place(args)
  if MAKES[args.command] or args.url or options.address() then return end
  local home <close> = io.open ".nightshift"
  if home then return end
  context.fail(context.CONFIG, "there is no database to look at: no --url was given, $NIGHTSHIFT_URL is not set, "
    .. "no file of settings has a url, and this folder, %s, has no .nightshift. Go where it is, say where with --url, "
    .. "or make one here with nightshift init", here())
end

--- Where the address of the database is from, for a message about it.
---@param args table
---@return string
function context.origin(args)
  if args.url then return "the address is from " .. (args.from["--url"] or "--url") end
  if options.address() then return "the address is from $NIGHTSHIFT_URL" end
  return ("without --url and $NIGHTSHIFT_URL it is the private server of %s"):format(here())
end

--- Opens the database of --url, of $NIGHTSHIFT_URL, or the private one. Where a command is for
-- several databases at once (shards.lua) it opens those.
---@param args table
---@param extra table? more options of nightshift.open
---@return nightshift.Db
function context.connect(args, extra)
  if args.connect then return args.connect(extra) end
  context.check_place(args)
  local where = extra or {}
  where.url = args.url
  local db, message, code = nightshift.open(where)
  if db then
    db._handle:act_as "shell"
    return db
  end
  local exit = code == "INVALID" and context.CONFIG or context.exit_of(code)
  local more = code == "GONE" and "; `nightshift doctor` says what to do" or ""
  context.fail(exit, "%s%s; %s", with_code(message, code), more, context.origin(args))
end

--- The list that a function gives for a database: of several, all of theirs.
---@param db nightshift.Db
---@param fn fun(db: nightshift.Db): table[]?, string?, string?
---@return table[]
function context.list(db, fn)
  if not db._inside then return (context.must(fn(db))) end
  local list = {}
  for _, row in ipairs(context.must(db._inside.on_all(db, fn))) do
    table.move(row.value, 1, #row.value, #list + 1, list)
  end
  return list
end

--- The name in a set that is most like another. Names that differ in digits alone are not mistaken
-- for each other. nil: none is like it, or it is there itself.
---@param name string
---@param known table<string, boolean>
---@return string|nil
function context.near(name, known)
  if known[name] then return nil end
  local bare, others = name:gsub("%d", ""), {}
  for one in pairs(known) do
    if one:gsub("%d", "") ~= bare then others[one] = true end
  end
  return options.nearest(name, others)
end

--- Is there a queue whose name is like that of none? Its name; nil: the queue is there, or none is
-- like it.
---@param db nightshift.Db
---@param name string|nil
---@return string|nil
function context.near_queue(db, name)
  local rows = name and db._handle:execute "@queue_list"
  if not rows then return nil end
  local known = {}
  for _, row in ipairs(rows) do known[row.name] = row.id > 0 and row.removed ~= 1 or nil end
  return context.near(name, known)
end

--- Has no live host a handler of this name, but one with a name that is like it? Its name.
---@param db nightshift.Db
---@param name string|nil
---@return string|nil
function context.near_name(db, name)
  local names = name and require("nightshift.hosts").names(db._handle)
  local known = {}
  for _, one in ipairs(names or {}) do known[one] = true end
  return name and context.near(name, known)
end

--- "; did you mean 'x'?", or "".
---@param near string|nil|false
---@return string
function context.tip(near) return near and ("; did you mean '%s'?"):format(near) or "" end

--- Says on stderr that the queue, or the name of a job, may be mistyped.
---@param db nightshift.Db
---@param queue string|nil
---@param name string|nil
function context.suggest(db, queue, name)
  local near = context.near_queue(db, queue)
  if near then context.complain("there is no queue '%s'%s", options.shown(queue), context.tip(near)) end
  near = context.near_name(db, name)
  if near then context.complain("no live host has a handler '%s'%s", options.shown(name), context.tip(near)) end
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

--- Ends the command when a check of options.lua refuses a value.
---@param check fun(value: any, what: string): any, string?
---@param value any
---@param what string the option as people write it
---@return any clean
function context.checked(check, value, what)
  local clean, message = check(value, what)
  if clean == nil then context.fail(context.USAGE, "%s", message) end
  return clean
end

--- Checks a name.
---@param what string
---@param text string
---@param max integer bytes
function context.check_name(what, text, max)
  local ok, message = options.name(what, text, max)
  if not ok then context.fail(context.USAGE, "%s", message) end
end

-- A negative number looks like an option to argparse, so it travels behind a
-- NUL, which no argument can hold.
local MARK = "\0"

--- The arguments as argparse may see them.
---@param argv string[]
---@return string[]
function context.mark_numbers(argv)
  local marked = {}
  for i, text in ipairs(argv) do marked[i] = text:find "^%-%.?%d" and MARK .. text or text end
  return marked
end

--- The value that argparse made, without the marks.
---@generic T
---@param value T
---@return T
function context.unmarked(value)
  if type(value) == "string" then return (value:gsub(MARK, "")) end
  if type(value) ~= "table" then return value end
  for key, inner in pairs(value) do value[key] = context.unmarked(inner) end
  return value
end

--- Converter for argparse: a whole number.
function context.integer(text)
  text = context.unmarked(text)
  local whole = text:match "^%-?%d+$" and math.tointeger(tonumber(text))
  if whole then return whole end
  return nil, ("'%s' is not a whole number"):format(text)
end

--- Converter for argparse: a job id, or several with commas between them; those are a list.
function context.ids(text)
  local list = {}
  for part in (context.unmarked(text) .. ","):gmatch "([^,]*)," do
    local id, message = context.id(part)
    if not id then return nil, message end
    list[#list + 1] = id
  end
  return #list == 1 and list[1] or list
end

--- Converter for argparse: a job id.
function context.id(text)
  local id = context.integer(text)
  if id and id > 0 then return id end
  return nil, ("'%s' is not a job id"):format(context.unmarked(text))
end

return context
