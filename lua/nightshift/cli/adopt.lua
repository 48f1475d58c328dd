--- Mappings of existing tables, as Lua files give them: one, or a list, each. Command adopt:
-- looks at such a table, and drains it into a queue.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local drain = require "nightshift.adopt.drain"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"

local adopt = { commands = {} }

local TELL = 2       -- seconds between signs of life
local SURE = "2s"    -- to be sure that another drain is dead

local function read_mapping(what, file, given)
  local ok, flat, message = pcall(require "nightshift.adopt".read, given)
  if not ok then flat, message = nil, flat end
  if not flat then context.fail(context.CONFIG, "%s %s: %s", what, file, message:gsub("^nightshift: ", "")) end
  return flat
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

--- The mappings of the files, as the core takes them, and as they were given; nil when
-- there are none. One that is wrong, or a table that is named twice, ends the command.
---@param what string the option, or command, as people write it
---@param files string[]
---@return table[]|nil
---@return table[]|nil
function adopt.mappings(what, files)
  local flats, given, seen = {}, {}, {}
  for _, file in ipairs(files) do
    for _, one in ipairs(load_file(what, file)) do
      local flat = read_mapping(what, file, one)
      if seen[flat.table] then
        context.fail(context.CONFIG, "%s %s: table '%s' is named twice", what, file, flat.table)
      end
      seen[flat.table] = true
      flats[#flats + 1], given[#given + 1] = flat, one
    end
  end
  if flats[1] then return flats, given end
end

--- Adds the command to the parser.
function adopt.define(parser)
  local command = parser:command("adopt", "Existing tables as work --adopt takes them: check their mapping, or, with "
    .. "--drain-into, move their rows: open ones into a queue, ended ones into the history, which forgets done jobs "
    .. "after a day and failed ones after 30, as always.")
  command:argument("file", "Lua file with a mapping, or a list of them.")
  command:option("--drain-into", "Move the rows into this queue, and delete them from the table."):argname "QUEUE"
  command:option("--batch", "Rows at a time, up to 10000."):convert(context.integer):default "1000"
  command:option("--limit", "Rows to move at most."):convert(context.integer):argname "N"
  command:option("--rate", "Rows a second at most."):convert(context.integer):argname "N"
  command:flag("--dry-run", "Count only; reads the whole table.")
  command:flag("--yes", "Do it.")
  command:flag("--json", "Print JSON.")
end

local REASONS = {
  { "running", "claimed" }, { "unknown", "in no state that the mapping knows" },
  { "unfit", "too big for a payload, or not text" }, { "changed", "changed or locked meanwhile" },
  { "busy", "on their way by another drain" },
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
  return ("%s: %s %s jobs of %s, %d history; %d left%s"):format(result.table, output.count(result.jobs, "row"), verb,
    queue, result.history, result.left, reasons_of(result))
end

-- Says now and then how far it is.
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

--- What has changed meanwhile, and what a drain that died had on its way, is looked at
-- once more.
local function drain_twice(db, t, given)
  local told = teller(t.table)
  local first = context.must(drain.run(t, given, told))
  local moved = first.jobs + first.history
  if not (first.kept.busy or first.kept.changed) or (given.limit and moved >= given.limit) then return first end
  if first.kept.busy then context.must(db:rescue { wait = SURE }) end
  given.limit = given.limit and given.limit - moved
  local second = context.must(drain.run(t, given, told))
  for _, name in ipairs { "jobs", "history", "cleaned" } do second[name] = first[name] + second[name] end
  return second
end

local function read_options(args)
  local given = { into = args.drain_into }
  for _, name in ipairs { "batch", "limit", "rate" } do
    given[name] = args[name] and context.checked(drain.OPTIONS[name], args[name], "--" .. name)
  end
  context.check_name("--drain-into: queue name", given.into, options.MAX_QUEUE)
  return given
end

local function drain_table(db, t, args)
  local given = read_options(args)
  local result
  if args.yes and not args.dry_run then
    result = drain_twice(db, t, given)
    result.table = t.table
    if not args.json then
      output.line(sentence(result, given.into, "became"))
      if result.cleaned > 0 then
        output.line(("%s: %s more that an earlier drain had left half way"):format(t.table,
          output.count(result.cleaned, "row")))
      end
    end
    return result
  end
  result = context.must(drain.look(t))
  result.table = t.table
  local text = sentence(result, given.into, "would become")
  if not args.dry_run then context.fail(context.USAGE, "%s; add --yes to do it", text) end
  if not args.json then output.line(text) end
  return result
end

--- The mapping fits: how many rows it finds, and the index that claims lack.
local function check_table(t, args)
  local stats, advice = context.must(t:stats()), context.must(t:advice())
  local result = { table = t.table, counts = stats, index = advice or nil }
  if args.json then return result end
  output.line(("%s: %d ready, %d waiting, %d running, %d done, %d dead"):format(t.table, stats.ready, stats.waiting,
    stats.running, stats.done, stats.dead))
  if advice then output.line(("%s: claims lack an index: %s"):format(t.table, advice)) end
  return result
end

function adopt.commands.adopt(args)
  local _, mappings = adopt.mappings("adopt", { args.file })
  local db <close> = context.connect(args)
  local results = {}
  for i, one in ipairs(mappings or {}) do
    local t = context.must(db:adopt(one))
    results[i] = args.drain_into and drain_table(db, t, args) or check_table(t, args)
  end
  if args.json then output.json_list(results) end
end

return adopt
