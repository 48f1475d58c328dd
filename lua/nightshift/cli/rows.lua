--- Commands on rows of adopted tables that have ended: jobs, retry and prune with
-- --table.

local admin = require "nightshift.source.admin"
local context = require "nightshift.cli.context"
local known = require "nightshift.source.known"
local move = require "nightshift.source.move"
local output = require "nightshift.cli.output"
local times = require "nightshift.times"

local rows = {}

local EVERY = 1 << 31 -- kinds of errors

local ABOUT = "An adopted table: "

--- Adds the options of `jobs`.
function rows.define_jobs(command)
  command:option("--table", ABOUT .. "its dead rows, with their last errors.")
  command:option("--by", "With --table: by kinds of errors."):choices { "error" }
  command:option("--error", "With --table: only of this error, or kind of errors.")
end

--- Adds the options of `retry`.
function rows.define_retry(command)
  command:option("--table", ABOUT .. "its dead rows; without ids all of them.")
  command:option("--error", "With --table: only of this error, or kind of errors.")
end

--- Adds the options of `prune`.
function rows.define_prune(command)
  command:option("--table", ABOUT .. "its rows that are done, or dead.")
  command:option("--state", "With --table: which of them; default done."):choices { "dead", "done" }
  command:option("--older", "With --table: only those that ended longer ago.")
  command:option("--into", "With --table: move them to this table instead.")
  command:option("--limit", "With --table: at most so many."):convert(context.integer)
end

--- Ends the command when options go without --table, or do not go with it.
---@param args table
---@param with string[] those that want it
---@param without string[] those that it forbids
---@return boolean has_table
function rows.wanted(args, with, without)
  for _, name in ipairs(args.table and without or with) do
    if args[name] then
      context.fail(context.USAGE, "--%s %s --table", name, args.table and "goes without" or "wants")
    end
  end
  return args.table ~= nil
end

local function open(db, args) return context.must(known.open(db, args.table)) end

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
function rows.jobs(args)
  if args.state and args.state ~= "dead" then
    context.fail(context.USAGE, "--table lists dead rows only; `nightshift status` counts the others")
  end
  context.checked(admin.DEAD.limit, args.limit, "--limit")
  local db <close> = context.connect(args)
  local list = context.must(open(db, args):dead { limit = args.limit, by = args.by, error = args.error })
  if args.json then return output.json_list(list) end
  if #list == 0 then return output.line "no dead rows" end
  output.table((args.by and kind_columns or row_columns)(times.seconds(context.must(db._handle:now()))), list)
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
function rows.retry(args)
  if args.error and #args.id > 0 then
    context.fail(context.USAGE, "give either row ids or --error")
  end
  local db <close> = context.connect(args)
  local t = open(db, args)
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
function rows.prune(args)
  local given = {}
  for _, key in ipairs { "state", "older", "into", "limit" } do
    given[key] = args[key] and context.checked(move.PRUNE[key], args[key], "--" .. key)
  end
  local db <close> = context.connect(args)
  local t = open(db, args)
  local n = context.must(move.prunable(t, given))
  if n == 0 then return output.line "nothing to delete" end
  local verb = given.into and "moved" or "deleted"
  if not args.yes then
    context.fail(context.USAGE, "%s would be %s; add --yes to do it", output.count(n, "row"), verb)
  end
  n = context.must(move.prune(t, given))
  output.line(("%s %s"):format(verb, output.count(n, "row")))
end

return rows
