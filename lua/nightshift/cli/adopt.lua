--- Adopted tables on the command line. Their mappings, as Lua files give them: one, or a list, each.
-- Command adopt: looks at such a table, and makes its open rows jobs of another queue. And the parts of jobs,
-- retry and prune do with --table: rows that have ended.

local admin = require "nightshift.source.admin"
local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local known = require "nightshift.source.known"
local mapping = require "nightshift.source.mapping"
local move = require "nightshift.source.move"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local source = require "nightshift.source.table"
local units = require "nightshift.units"

local adopt = { commands = {} }

local TELL = 2 -- seconds between signs of life

local function read_mapping(what, file, given)
  local ok, map, message = pcall(mapping.read, given)
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
  command:option("--drain-into", "Make open rows jobs of this queue, and delete them from the table."):argname "QUEUE"
  command:option("--batch", "Rows at a time, up to 10000."):convert(context.integer):default "1000"
  command:option("--limit", "Rows to move at most."):convert(context.integer):argname "N"
  command:option("--rate", "Rows a second at most."):convert(context.integer):argname "N"
  command:flag("--dry-run", "Count only; reads the whole table.")
  command:flag("--yes", "Do it.")
  command:flag("--json", "Print JSON.")
end

local REASONS = {
  { "running", "claimed" }, { "refused", "too big for a payload, no text, or refused by the server" },
  { "busy", "changed or locked meanwhile" },
}

local function reasons_of(result)
  local list = {}
  for _, reason in ipairs(REASONS) do
    local n = result.kept[reason[1]]
    if n then list[#list + 1] = ("%d %s"):format(n, reason[2]) end
  end
  return #list > 0 and (" (%s)"):format(table.concat(list, ", ")) or ""
end

local function sentence(result, queue, verb)
  return ("%s: %s %s jobs of %s; %d open left%s"):format(result.table, output.count(result.jobs, "row"), verb, queue,
    result.left, reasons_of(result))
end

--- Says now and then how far it is.
local function teller(name)
  local start = core.clock()
  local next_at = start + TELL
  return function(moved)
    local now = core.clock()
    if now < next_at then return end
    next_at = now + TELL
    io.stderr:write(("%s: %d rows moved, %d a second\n"):format(name, moved, moved // (now - start)))
  end
end

local function read_options(args)
  local given = { into = args.drain_into }
  for _, name in ipairs { "batch", "limit", "rate" } do
    given[name] = args[name] and context.checked(move.DRAIN[name], args[name], "--" .. name)
  end
  return given
end

local function drain_table(t, args)
  local given = read_options(args)
  local does = args.yes and not args.dry_run
  local result = context.must(does and move.drain(t, given, teller(t.table)) or move.look(t, given.into))
  result.table = t.table
  local words = sentence(result, given.into, does and "became" or "would become")
  if not does and not args.dry_run then context.fail(context.USAGE, "%s; add --yes to do it", words) end
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
    local t = context.must(source.new(db, one))
    results[i] = args.drain_into and drain_table(t, args) or check_table(t, args)
  end
  if args.json then output.json_list(results) end
end

-- ------------------------------------------------------- rows that have ended

local EVERY = 1 << 31 -- kinds of errors

local ABOUT = "An adopted table: "

--- Adds the options of `jobs`.
function adopt.define_jobs(command)
  command:option("--table", ABOUT .. "its dead rows, with their last errors.")
  command:option("--by", "With --table: by kinds of errors."):choices { "error" }
  command:option("--error", "Only of this error: the whole text, its first line, or its kind.")
end

--- Adds the options of `retry`.
function adopt.define_retry(command)
  command:option("--table", ABOUT .. "its dead rows; without ids all of them.")
  command:option("--error", "Only of this error: the whole text, its first line, or its kind.")
end

--- Adds the options of `prune`.
function adopt.define_prune(command)
  command:option("--table", ABOUT .. "its rows that are done, or dead.")
  command:option("--state", "With --table: which of them; default done."):choices { "dead", "done" }
  command:option("--older", "With --table: only rows that ended longer ago.")
  command:option("--into", "With --table: move them to this table instead.")
  command:option("--limit", "With --table: at most so many."):convert(context.integer)
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

local function open_table(db, args) return context.must(known.open(db, args.table)) end

local function ago(at, now) return at and output.span(math.max(0, now - at)) .. " ago" or "-" end

local function row_columns(now)
  return {
    output.column("ID", "id", true),
    output.column("FAILED", "attempts", true),
    { title = "WHEN", get = function(row) return ago(row.failed_at, now) end },
    output.column("JOB", "job", true),
    { title = "ERROR", get = function(row) return output.one_line(row.error or "-", 100) end },
  }
end

local function kind_columns(now)
  return {
    output.column("COUNT", "count", true),
    { title = "FIRST", get = function(row) return ago(row.first, now) end },
    { title = "LAST", get = function(row) return ago(row.last, now) end },
    output.column("LATEST ID", "id", true),
    { title = "ERROR", get = function(row) return row.error == "" and "-" or output.one_line(row.error, 100) end },
  }
end

--- `jobs --table`.
function adopt.jobs(args)
  if args.state and args.state ~= "dead" then
    context.fail(context.USAGE, "--table lists dead rows only; `nightshift status` counts the others")
  end
  context.checked(admin.DEAD.limit, args.limit, "--limit")
  local db <close> = context.connect(args)
  local list = context.must(open_table(db, args):dead { limit = args.limit, by = args.by, error = args.error })
  if args.json then return output.json_list(list) end
  if #list == 0 then return output.line "no dead rows" end
  output.table((args.by and kind_columns or row_columns)(units.seconds(context.must(db._handle:now()))), list)
end

local function each_id(t, ids)
  local exit = 0
  for _, id in ipairs(ids) do
    local ok, message, code = t:retry(id)
    if ok then
      output.line(id .. " retried")
    else
      exit = context.FAILURE
      context.report_failure(tostring(id), message, code)
    end
  end
  return exit
end

local function count_dead(t, error)
  local n = 0
  for _, kind in ipairs(context.must(t:dead { by = "error", error = error, limit = EVERY })) do n = n + kind.count end
  return n
end

--- `retry --table`.
function adopt.retry(args)
  if args.error and #args.id > 0 then
    context.fail(context.USAGE, "give either row ids or --error")
  end
  local db <close> = context.connect(args)
  local t = open_table(db, args)
  if #args.id > 0 then return each_id(t, args.id) end
  local n = count_dead(t, args.error)
  if n == 0 then return output.line "no dead rows" end
  if not args.yes then
    context.fail(context.USAGE, "%s would be retried; add --yes to do it", output.count(n, "row"))
  end
  n = context.must(t:retry(args.error and { error = args.error } or "all"))
  output.line(output.count(n, "row") .. " retried")
end

--- `prune --table`.
function adopt.prune(args)
  local given = {}
  for _, key in ipairs { "state", "older", "into", "limit" } do
    given[key] = args[key] and context.checked(move.PRUNE[key], args[key], "--" .. key)
  end
  local db <close> = context.connect(args)
  local t = open_table(db, args)
  local n = context.must(move.prunable(t, given))
  if n == 0 then return output.line "nothing to delete" end
  local verb = given.into and "moved" or "deleted"
  if not args.yes then
    context.fail(context.USAGE, "%s would be %s; add --yes to do it", output.count(n, "row"), verb)
  end
  n = context.must(move.prune(t, given))
  output.line(("%s %s"):format(verb, output.count(n, "row")))
end

return adopt
