--- Commands limit and limits: how many jobs of a queue run at once and start in a time, and how much
-- of that is used. The same of each of its groups.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local limit = require "nightshift.limit"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local units = require "nightshift.units"

local limits = { commands = {} }

local GROUPS <const> = 20 -- that are shown

local NOTES = [[
RUNNING: of so many places. WAITING: jobs that could start but for the limit, and those that are to be looked at.
GROUPS: those with such jobs. A + behind a number: and more.]]

--- Adds the commands to the parser.
function limits.define(parser)
  local set = parser:command("limit", "Limit how many jobs of a queue run at once and start in a time, everywhere. "
    .. "The options make its whole limit: what is not given is not limited.")
  set:argument("queue", "The queue; it may be new.")
  set:option("--running", "At most so many at once. Default: any number."):argname "N":convert(context.integer)
  set:option("--rate", 'So many starts in that time: "500/1m". Default: any number.'):argname "N/TIME"
  set:flag("--window", "Rates count in fixed windows. Default: by a bucket that fills up all the time.")
  set:option("--backlog", "Refuse pushes while so many of its jobs wait. Default: never.")
    :argname "N":convert(context.integer)
  set:option("--group-running", "At most so many at once of each group (push --group). Default: any number.")
    :argname "N":convert(context.integer)
  set:option("--group-rate", "So many starts of each group in that time. Default: any number."):argname "N/TIME"
  set:flag("--ordered", "Jobs of a group run one after the other, in the order of their pushes.")
  set:flag("--fair", "Groups take turns.")
  set:flag("--off", "No limit any more.")
  set:flag("--json", "Print JSON.")
  local show = parser:command("limits", "Show queues with a limit, and how much of it is used.")
  show:epilog(NOTES)
  show:argument("queue", "Only this queue, with the groups that have most jobs waiting. Default: all."):args "?"
  show:flag("--json", "Print JSON.")
end

-- ------------------------------------------------------------------------ setting

--- "500/1m" as {500, "1m"}.
local function rate(text, what, window)
  local n, span = text:match "^(%d+)/(.+)$"
  if not n then
    context.fail(context.USAGE, '%s must be starts and a time, like "500/1m"; got \'%s\'', what, options.shown(text))
  end
  return { math.tointeger(tonumber(n)), span, window and "window" or nil }
end

local SETTINGS <const> = { "running", "rate", "window", "backlog", "group_running", "group_rate", "ordered", "fair" }

--- The limit that the options say; nil: none.
local function wanted(args)
  local some
  for _, key in ipairs(SETTINGS) do some = some or args[key] end
  if args.off then
    if some then context.fail(context.USAGE, "--off goes without other options of a limit") end
    return nil
  end
  if args.window and not args.rate and not args.group_rate then
    context.fail(context.USAGE, "--window goes with --rate or --group-rate")
  end
  if not some then context.fail(context.USAGE, "give a limit, like --running 10; or --off") end
  local own = { running = args.group_running, ordered = args.ordered, fair = args.fair,
    rate = args.group_rate and rate(args.group_rate, "--group-rate", args.window) }
  local given = { running = args.running, backlog = args.backlog, group = next(own) and own or nil,
    rate = args.rate and rate(args.rate, "--rate", args.window) }
  local _, message = limit.read(given)
  if message then context.fail(context.USAGE, "%s", message) end
  return given
end

--- A row for JSON: instants are texts.
function limits.plain(row)
  row.stopped = row.stopped and units.instant(row.stopped, 6)
  row.due = row.due and units.instant(row.due, 6)
  return row
end

local plain = limits.plain

function limits.commands.limit(args)
  context.check_name("queue name", args.queue, options.MAX_QUEUE)
  local given = wanted(args)
  local db <close> = context.connect(args)
  local near = context.near_queue(db, args.queue) -- before the limit makes the queue
  local queue = context.must(db:queue(args.queue))
  local ok, message, code = queue:limit(given)
  if not ok then context.must(nil, message .. context.tip(near), code) end
  local row, trouble, why = queue:limits()
  if trouble then context.must(nil, trouble, why) end
  if args.json then
    output.json(row and plain(row) or { queue = args.queue })
  elseif not row then
    output.line(("%s: no limit"):format(args.queue))
  elseif row.lifted then
    output.line(("%s: the limit ends; its backlog is on its way back"):format(args.queue))
  else
    output.line(("%s: %s"):format(args.queue, limit.words(row)))
  end
  if near and given then context.complain("there was no queue '%s' before%s", args.queue, context.tip(near)) end
end

-- ------------------------------------------------------------------------ looking

local function count(row, key)
  return row.counts.capped and row.counts.capped[key] and row.counts[key] .. "+" or row.counts[key]
end

local function used(row)
  return row.running and ("%d/%d"):format(row.counts.running, row.running) or row.counts.running or ""
end

local function remark(row, now)
  local list = {}
  if row.lifted then list[1] = "ends" end
  if row.full then list[#list + 1] = "full: pushes are refused" end
  if row.holds then list[#list + 1] = row.holds end
  if row.stopped and not row.holds then list[#list + 1] = "stopped for " .. units.span(row.stopped - now) end
  return table.concat(list, ", ")
end

local function columns(now)
  return {
    { title = "QUEUE", get = function(row) return output.one_line(row.queue, 64) end },
    { title = "RUNNING", get = used, right = true },
    { title = "WAITING", get = function(row) return count(row, "waiting") end, right = true },
    { title = "GROUPS", get = function(row) return count(row, "groups") end, right = true },
    { title = "LIMIT", get = limit.words },
    { title = "", get = function(row) return remark(row, now) end, colour = function() return "yellow" end },
  }
end

local function group_columns(now)
  return {
    { title = "GROUP", get = function(row) return row.group == "" and "(none)" or output.one_line(row.group, 60) end },
    { title = "RUNNING", right = true, get = function(row)
      return row.places and row.group ~= "" and ("%d/%d"):format(row.running, row.places) or row.running
    end },
    output.column("WAITING", "waiting", true),
    { title = "NEXT START", get = function(row) return row.due and output.span(row.due - now) or "" end, right = true },
  }
end

local function group_json(row)
  return { group = row.group ~= "" and row.group or nil, running = row.running, waiting = row.waiting,
    due = row.due and units.instant(row.due, 6) }
end

function limits.commands.limits(args)
  if args.queue then context.check_name("queue name", args.queue, options.MAX_QUEUE) end
  local db <close> = context.connect(args)
  local now = context.must(db._handle:now()) / 1000000
  local rows = context.must(limit.list(db._handle, args.queue))
  if args.queue and #rows == 0 then
    local near = context.near_queue(db, args.queue)
    context.fail(context.FAILURE, "queue '%s' has no limit%s", options.shown(args.queue), context.tip(near))
  end
  local groups = args.queue and context.must(limit.groups(db._handle, args.queue, GROUPS)) or {}
  if args.json then
    for _, row in ipairs(rows) do plain(row) end
    if not args.queue then return output.json_list(rows) end
    local list = core.array {}
    for i, row in ipairs(groups) do list[i] = group_json(row) end
    rows[1].most_waiting = list
    return output.json(rows[1])
  end
  if #rows == 0 then return output.line "no queue has a limit; `nightshift limit QUEUE --running N` sets one" end
  output.table(columns(now), rows)
  if #groups == 0 then return end
  output.line()
  output.table(group_columns(now), groups)
end

return limits
