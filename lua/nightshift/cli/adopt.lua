--- Adopted tables on the command line. Their mappings, as Lua files give them: one, or a list,
-- each. Command adopt: looks at such a table, and makes its open rows jobs of another queue. And
-- what retry and prune do with --table: rows that have ended.

local context = require "nightshift.cli.context"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"

-- Loaded by the few commands that need them.
local admin = options.later(function() return require "nightshift.source.admin" end)
local mapping = options.later(function() return require "nightshift.source.mapping" end)
local source = options.later(function() return require "nightshift.source.table" end)

local adopt = { commands = {} }

local function read_mapping(what, file, given)
  local ok, map, message = pcall(mapping().read, given)
  if not ok then map, message = nil, map end
  if not map then context.fail(context.CONFIG, "%s %s: %s", what, file, message:gsub("^nightshift: ", "")) end
  return map
end

local function load_file(what, file)
  local chunk, message = loadfile(file, "t")
  if not chunk then context.fail(context.CONFIG, "%s: %s", what, message) end
  local ok, value = pcall(chunk)
  if not ok then context.fail(context.CONFIG, "%s: %s", what, tostring(value)) end
  if type(value) ~= "table" then
    context.fail(context.CONFIG, "%s %s: it must return a mapping or a list of them, and returned a %s", what, file,
      type(value))
  end
  return value[1] and value or { value }
end

--- The tables of the files, with their mappings as JSON, and these as the files give them. A
-- wrong mapping, or a table that is named twice, ends the command.
---@param what string the option, or command, as people write it
---@param files string[]
---@return {table: string, mapping: string}[]
---@return table[]
function adopt.mappings(what, files)
  local list, given, seen = {}, {}, {}
  for _, file in ipairs(files) do
    for _, one in ipairs(load_file(what, file)) do
      local map = read_mapping(what, file, one)
      if seen[map.table] then
        context.fail(context.CONFIG, "%s %s: table '%s' is named twice", what, file, map.table)
      end
      seen[map.table] = true
      list[#list + 1], given[#given + 1] = { table = map.table, mapping = map.given }, one
    end
  end
  return list, given
end

--- Adds the command to the parser.
function adopt.define(parser)
  local command = parser:command("adopt", "Existing tables as work --adopt takes them: check their mapping, or, with "
    .. "--drain-into, make their open rows jobs of a queue. Ended rows stay: see prune --table.")
  command:argument("file", "Lua file with a mapping, or a list of them.")
  command:option("--drain-into", "Make open rows jobs of this queue, and delete them from the table. Default: the "
    .. "mapping is checked."):argname "QUEUE"
  command:flag("--yes", "Do it.")
  command:flag("--json", "Print JSON.")
end

local function drain_table(t, args)
  local into = args.drain_into
  local act, progress = args.yes and admin().drain or admin().look, output.progress("rows")
  if progress.active and args.yes then
    progress = output.progress("rows", context.must(admin().look(t, { into = into })).jobs)
  end
  local result, message, code = act(t, { into = into, told = progress.show })
  progress.finish()
  context.must(result, message, code)
  local words = ("%s: %s %s jobs of %s; %d open left"):format(t.table, output.count(result.jobs, "row"),
    args.yes and "became" or "would become", into, result.left)
  result.table = t.table
  if not args.yes then context.fail(context.USAGE, "%s; add --yes to do it", words) end
  if not args.json then output.line(words) end
  return result
end

--- The mapping fits: how many rows it finds, and the index that looks for rows lack.
local function check_table(t, args)
  local stats, advice = context.must(t:stats()), context.must(t:advice())
  local result = { table = t.table, counts = stats, index = advice or nil }
  if args.json then return result end
  output.line(("%s: %d ready, %d waiting, %d running, %d done, %d dead"):format(t.table, stats.ready, stats.waiting,
    stats.running, stats.done, stats.dead))
  if advice then output.line(("%s: looks for rows lack an index: %s"):format(t.table, advice)) end
  return result
end

function adopt.commands.adopt(args)
  local _, mappings = adopt.mappings("adopt", { args.file })
  if args.drain_into then context.check_name("--drain-into: queue name", args.drain_into, options.MAX_QUEUE) end
  local db <close> = context.connect(args)
  local results = {}
  for i, one in ipairs(mappings) do
    local t = context.must(source().new(db, one))
    results[i] = args.drain_into and drain_table(t, args) or check_table(t, args)
  end
  if args.json then output.json_list(results) end
end

-- ------------------------------------------------------- rows that have ended

local ABOUT = "An adopted table: "

--- Adds the options of `retry`.
function adopt.define_retry(command)
  command:option("--table", ABOUT .. "its dead rows, by ids. Default of ids: all of them. Default: jobs.")
end

--- Adds the options of `prune`.
function adopt.define_prune(command)
  command:option("--table", ABOUT .. "its rows that are done, or dead. Default: jobs.")
  command:option("--state", "With --table: which of them. Default: done."):choices { "dead", "done" }
  command:option("--older", "With --table: only rows that ended longer ago. Default: all.")
  command:option("--into", "With --table: move them to this table. Default: they are deleted.")
  command:option("--limit", "With --table: at most so many. Default: all."):convert(context.integer)
end

--- Ends the command when options go without --table, or do not go with it.
---@param args table
---@param with string[] options that want it
---@param without string[] options that it forbids
---@return boolean has_table
function adopt.wanted(args, with, without)
  for _, name in ipairs(args.table and without or with) do
    if args[name] then
      context.fail(context.USAGE, "--%s %s --table", name, args.table and "goes without" or "wants")
    end
  end
  return args.table ~= nil
end

local function open_table(db, args) return context.must(admin().open(db, args.table)) end

local function each_id(t, args)
  local told = output.outcomes(args)
  for _, id in ipairs(args.id) do
    local ok, message, code = t:retry(id)
    if ok then told.done({ id = id }, id .. " retried") else told.failed({ id = id }, tostring(id), message, code) end
  end
  return told.finish()
end

--- `retry --table`.
function adopt.retry(args)
  local db <close> = context.connect(args)
  local t = open_table(db, args)
  if #args.id > 0 then return each_id(t, args) end
  local n = context.must(t:stats()).dead
  if n == 0 and not args.json then return output.line "no dead rows" end
  if n == 0 then return output.json { changed = 0 } end
  if not args.yes then
    context.fail(context.USAGE, "%s would be retried; add --yes to do it", output.count(n, "row"))
  end
  n = context.must(t:retry "all")
  if args.json then return output.json { changed = n } end
  output.line(output.count(n, "row") .. " retried")
end

--- `prune --table`.
function adopt.prune(args)
  local given = {}
  for _, key in ipairs { "state", "older", "into", "limit" } do
    given[key] = args[key] and context.checked(admin().PRUNE[key], args[key], "--" .. key)
  end
  local db <close> = context.connect(args)
  local t = open_table(db, args)
  local n = context.must(admin().prunable(t, given))
  if n == 0 and not args.json then return output.line "nothing to delete" end
  if n == 0 then return output.json { deleted = 0 } end
  local verb = given.into and "moved" or "deleted"
  if not args.yes then
    context.fail(context.USAGE, "%s would be %s; add --yes to do it", output.count(n, "row"), verb)
  end
  local progress = output.progress("rows", n)
  given.told = progress.show
  local gone, message, code = admin().prune(t, given)
  progress.finish()
  n = context.must(gone, message, code)
  if args.json then return output.json { deleted = n } end
  output.line(("%s %s"):format(verb, output.count(n, "row")))
end

return adopt
