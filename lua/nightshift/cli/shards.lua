--- Commands over several databases: which of them a command is for, and how it is run on them.
--
-- Lists and counts are merged, and a push chooses its database. A command on jobs by their ids runs
-- on the databases of the ids, one after the other. Other commands run on each, under a heading.
--
-- Invariant: a database that is away is said on stderr, the rest goes on, and the exit code tells.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local nightshift = require "nightshift"
local number = require "nightshift.sharded.shards"
local output = require "nightshift.cli.output"

local shards = {}

---@class nightshift.ShardUrl
---@field url string with its number, if it is known
---@field number integer|nil
---@field place string

-- Commands that run once, on all databases together.
local MERGED <const> = { jobs = true, errors = true, status = true, schedules = true, audit = true, push = true,
  wait = true, top = true, web = true, ["remove-queue"] = true }
-- Commands that are of one database.
local ONE <const> = { work = "start one for each database", run = "a handler has one database" }
-- Commands without any.
local NONE <const> = { config = true, help = true, completion = true }

-- ------------------------------------------------------------------- the list

--- The databases of a text.
---@return nightshift.ShardUrl[]
local function read(urls)
  local list, known = {}, {}
  for i, url in ipairs(number.split(urls)) do
    local _, found, message = number.strip(url)
    if message then context.fail(context.CONFIG, "%s", message) end
    if found and known[found] then
      context.fail(context.CONFIG, "database URL: %s and %s are both shard %d", known[found], number.place(url), found)
    end
    if found then known[found] = number.place(url) end
    list[i] = { url = url, number = found, place = number.place(url) }
  end
  return list
end

--- Asks those whose URL has no number.
local function learn(list)
  local asked = {}
  for _, one in ipairs(list) do
    if not one.number then asked[#asked + 1] = one end
  end
  if #asked == 0 then return end
  local urls = {}
  for i, one in ipairs(list) do urls[i] = one.url end
  local db <close> = context.must(nightshift.sharded(urls))
  for i, row in ipairs(db:shards()) do list[i].number = row.shard end
end

--- The database with a number. `what`: "job 12 is of".
local function pick(list, wanted, what)
  learn(list)
  for _, one in ipairs(list) do
    if one.number == wanted then return one end
  end
  local away
  for _, one in ipairs(list) do away = away or not one.number and one.place end
  context.fail(away and context.UNREACHABLE or context.CONFIG, "%s shard %d, and the list of databases has no such "
    .. "shard%s", what, wanted, away and ("; %s does not answer, and its URL has no shard=N"):format(away) or "")
end

--- The arguments for one database.
local function for_one(args, one)
  local own = {}
  for key, value in pairs(args) do own[key] = value end
  own.url = one.url
  return own
end

-- ---------------------------------------------------------------- all together

-- What commands ask a database's handle, of several: the rows of all.
local Handle = {}
Handle.__index = Handle

function Handle:now()
  local values, message, code = self.db._inside.on_all(self.db, function(db) return db._handle:now() end)
  if not values then return nil, message, code end
  return values[1].value
end

function Handle:execute(...)
  local given = table.pack(...)
  local values, message, code = self.db._inside.on_all(self.db, function(db)
    return db._handle:execute(table.unpack(given, 1, given.n))
  end)
  if not values then return nil, message, code end
  local rows = {}
  for _, row in ipairs(values) do table.move(row.value, 1, #row.value, #rows + 1, rows) end
  return rows
end

function Handle:act_as(what) self.db:_act_as(what) end

--- Opens all; a command may ask for it more than once.
local function open_all(list, extra)
  local items = {}
  for i, one in ipairs(list) do
    items[i] = { url = one.url }
    for key, value in pairs(extra or {}) do items[i][key] = value end
  end
  local db, message, code = nightshift.sharded(items)
  if not db then context.fail(context.exit_of(code), "%s", message) end
  db:_act_as "shell"
  db._handle = setmetatable({ db = db }, Handle)
  return db
end

--- Runs the command on all at once.
local function together(args, list, call)
  local own, opened = for_one(args, list[1]), nil
  own.connect = function(extra)
    opened = open_all(list, extra)
    return opened
  end
  local exit = call(own) or 0
  if args.command == "top" or args.command == "web" then return exit end -- they have said it
  for _, one in pairs(opened and opened.noted or {}) do
    context.complain("%s (GONE)", one.message)
    exit = context.UNREACHABLE
  end
  return exit
end

-- ------------------------------------------------------------- one by one

-- Exit codes: a warning of the doctor's is less than any failure.
local function worse(a, b)
  local function rank(code) return code == 0 and 0 or code == context.WARNING and 1 or 1 + code end
  return rank(b) > rank(a) and b or a
end

--- The values of --json as one: lists are joined, objects are a list.
local function print_values(values)
  local list, lists = core.array {}, true
  for _, one in ipairs(values) do
    local value = one.value
    lists = lists and type(value) == "table" and (#value > 0 or next(value) == nil)
  end
  for _, one in ipairs(values) do
    for _, row in ipairs(lists and one.value or { one.value }) do
      if type(row) == "table" then row.shard = one.number end
      list[#list + 1] = row
    end
  end
  output.json(list)
end

--- Runs the command on one database after the other: `runs` has the arguments of each.
local function one_by_one(args, runs, call, heading)
  local exit, values = 0, {}
  for i, run in ipairs(runs) do
    local name = run.one.number and ("shard %d (%s)"):format(run.one.number, run.one.place) or run.one.place
    if args.json then
      output.sink = function(value) values[#values + 1] = { value = value, number = run.one.number } end
    elseif heading then
      output.line((i > 1 and "\n" or "") .. name .. ":")
    end
    local ok, result = pcall(call, run.args)
    output.sink = nil
    if not ok and not context.is_exit(result) then error(result, 0) end
    if not ok then context.complain("%s: %s", name, result.message) end
    exit = worse(exit, ok and (math.type(result) == "integer" and result or 0) or result.exit)
  end
  if args.json then print_values(values) end
  return exit
end

--- Ids by database: {one =, ids =}, in the order of the first of each.
local function grouped(list, ids)
  learn(list)
  local groups, by_one = {}, {}
  for _, id in ipairs(ids) do
    local one = pick(list, number.of(id), ("job %d is of"):format(id))
    if not by_one[one] then
      by_one[one] = { one = one, ids = {} }
      groups[#groups + 1] = by_one[one]
    end
    table.insert(by_one[one].ids, id)
  end
  return groups
end

--- The runs of a command with some jobs' ids.
local function runs_by_id(args, list)
  local runs = {}
  for i, group in ipairs(grouped(list, args.id)) do
    local own = for_one(args, group.one)
    own.id = group.ids
    runs[i] = { one = group.one, args = own }
  end
  return runs
end

--- The runs of `pause` and `resume`: queues and names on each, jobs on theirs.
local function runs_of_pause(args, list)
  local names, ids = {}, {}
  for _, what in ipairs(args.what) do
    local id = what:find "^%d+$" and context.id(what)
    if id then ids[#ids + 1] = id else names[#names + 1] = what end
  end
  local by_one, runs = {}, {}
  for _, group in ipairs(grouped(list, ids)) do by_one[group.one] = group.ids end
  local of_all = #names + #args.queue + #args.name > 0 or args.all
  for _, one in ipairs(list) do
    if of_all or by_one[one] then
      local own = for_one(args, one)
      own.what = table.move(names, 1, #names, 1, {})
      for _, id in ipairs(by_one[one] or {}) do table.insert(own.what, tostring(id)) end
      runs[#runs + 1] = { one = one, args = own }
    end
  end
  return runs, of_all
end

local function runs_of_all(args, list)
  local runs = {}
  for i, one in ipairs(list) do runs[i] = { one = one, args = for_one(args, one) } end
  return runs, true
end

--- Runs a command on several databases, or on the one that --shard names.
---@param args table
---@param urls string with blanks between them
---@param call fun(args: table): integer|nil
---@return integer exit code
function shards.run(args, urls, call)
  local command = args.command
  if NONE[command] then return call(args) end
  local list = read(urls)
  if #list == 0 then return call(args) end -- a private server
  if args.shard and (#list > 1 or command ~= "init") then
    context.checked(number.check, args.shard, "--shard")
    local one = #list == 1 and not list[1].number and list[1] or pick(list, args.shard, "--shard names")
    if not one.number and one.url then
      one.url = one.url .. (one.url:find("?", 1, true) and "&" or "?") .. "shard=" .. args.shard
    end
    return call(for_one(args, one))
  end
  if #list < 2 then return call(args) end
  if ONE[command] then
    context.fail(context.USAGE, "%s takes one of the %d databases: --shard N says which; %s", command, #list,
      ONE[command])
  end
  for _, one in ipairs(command == "init" and list or {}) do
    if not one.number then
      context.fail(context.USAGE, "init of several databases wants a number in each URL, as in %s?shard=1", one.place)
    end
  end
  if MERGED[command] or command == "tune" and args.host then return together(args, list, call) end
  local single = math.type(args.id) == "integer" and args.id
    or command == "reprioritise" and #args.values == 2 and args.values[1]
    or math.type(args.tree) == "integer" and args.tree or args.parent
  if single then return call(for_one(args, pick(list, number.of(single), ("job %d is of"):format(single)))) end
  if type(args.id) == "table" and #args.id > 0 then return one_by_one(args, runs_by_id(args, list), call, false) end
  local runs, heading
  if command == "pause" or command == "resume" then runs, heading = runs_of_pause(args, list)
  else runs, heading = runs_of_all(args, list) end
  return one_by_one(args, runs, call, heading)
end

return shards
