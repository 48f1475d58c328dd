--- Commands that change queues and hosts: pause, resume, remove-queue, tune, rescue, and audit: who
-- has done what. limit and limits: how many jobs of a queue run at once and start in a time, and how
-- much of that is used. They do the same of each of its groups.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local limit = require "nightshift.limit"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local pauses = require("nightshift.queue").pauses
local report = require "nightshift.report"
local units = require "nightshift.units"

-- Loaded by the few commands that need it.
local admin = options.later(function() return require "nightshift.source.admin" end)

local queues = { commands = {} }
local commands = queues.commands

local GROUPS <const> = 20 -- that are shown

local LIMIT_NOTES = [[
RUNNING: of so many places. WAITING: jobs that could start but for the limit, and those that are to be looked at.
GROUPS: those with such jobs. A + behind a number: and more.]]

-- The options of limit and limits.
local function define_limits(parser)
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
  show:epilog(LIMIT_NOTES)
  show:argument("queue", "Only this queue, with the groups that have most jobs waiting. Default: all."):args "?"
  show:flag("--json", "Print JSON.")
end

--- Adds the commands to the parser.
function queues.define(parser)
  for _, verb in ipairs {
    { "pause", "Stop claims from queues, of jobs of a name, of all, or of a job and all below it; pushes still work." },
    { "resume", "Let claims go on." },
  } do
    local command = parser:command(table.unpack(verb))
    command:argument("what", "Queue names, and job ids: a number is a job. Default: none."):args "*"
    command:option("--queue", "A queue, also one whose name is a number. Default: none."):count "*"
    command:option("--name", "Jobs of these names, whatever their queue. Default: none."):args "+":count "*"
    command:flag("--all", "Every queue, adopted tables and queues made later among them.")
    command:flag("--tree", "Jobs are always meant with all below them.")
    command:flag("--json", "Print JSON.")
  end
  local remove = parser:command("remove-queue", "Remove queues that nothing needs, with their pauses. "
    .. "Their history stays, and the next push makes a queue anew.")
  remove:argument("queue", "Queue names."):args "+"
  remove:flag("--json", "Print JSON.")
  local tune = parser:command("tune", "Change how many workers a host has, until it ends; or how fast an adopted table "
    .. "is worked on, everywhere.")
  tune:argument("table", "Only with --rate: an adopted table."):args "?"
  tune:option("--rate", "Rows of the table a second, of all together; 0: no limit. Default at first: none."):argname "N"
  tune:option("--host", "Only this host: its id, or the name of its machine, as status has them."):argname "HOST"
  tune:option("--workers", "The worker processes of the host. A busy one that is too many finishes its job. "
    .. "Default at first: as `work` was told.")
    :argname "N":convert(context.integer)
  tune:flag("--json", "Print JSON.")
  local actions = parser:command("audit", "Show actions of people, the newest first: who retried, cancelled, paused, "
    .. "from which machine.")
  actions:option("--since", 'Only since: "2h" ago, or 2026-11-26T06:00:00Z.')
  actions:option("--verb", 'Only this verb, like retry, run_now, "schedule_pause".')
  actions:option("--limit", "At most so many.", "50"):convert(context.integer)
  actions:flag("--json", "Print JSON.")
  local rescue = parser:command("rescue", "Give back the jobs of hosts and programs that died. "
    .. "Living hosts do it by themselves; this is for cron where none may live.")
  rescue:option("--wait", "How long to take to be sure of their death.", "2s")
  rescue:flag("--json", "Print JSON.")
  define_limits(parser)
end

-- ------------------------------------------------------------------------- pauses

--- A queue, which an adopted table is, too.
local function pause_queue(db, told, name, paused)
  local near = context.near_queue(db, name) -- before `pause` makes the queue
  local ok, message, code = db._handle:pause(name, paused)
  local shown, row = output.one_line(name, 64), { queue = name, paused = paused }
  if not ok then return told.failed(row, shown, message .. context.tip(near), code) end
  told.done(row, ("%s %s"):format(name, paused and "paused" or "resumed"))
  if near then context.complain("there was no queue '%s' before%s", shown, context.tip(near)) end
end

local function pause_job(db, told, id, paused)
  local verb = paused and db.pause or db.resume
  local n, message, code = verb(db, id)
  local row = { id = id, paused = paused, jobs = n }
  if not n then return told.failed(row, tostring(id), message, code) end
  told.done(row, ("%d: %s %s"):format(id, output.count(n, "job"), paused and "paused" or "resumed"))
end

-- Queue names, job ids and names of jobs apart.
local function sort_out(args)
  local queue_names, ids, names = {}, {}, {}
  for _, name in ipairs(args.queue) do queue_names[#queue_names + 1] = name end
  for _, what in ipairs(args.what) do
    if what:find "^%d+$" then
      local id, message = context.id(what)
      if not id then context.fail(context.USAGE, "%s", message) end
      ids[#ids + 1] = id
    else
      queue_names[#queue_names + 1] = what
    end
  end
  for _, list in ipairs(args.name) do table.move(list, 1, #list, #names + 1, names) end
  if #queue_names + #ids + #names == 0 and not args.all then
    context.fail(context.USAGE, "give queue names, job ids, --name or --all")
  end
  for _, name in ipairs(queue_names) do context.check_name("queue name", name, options.MAX_QUEUE) end
  for _, name in ipairs(names) do context.check_name("--name: job name", name, options.MAX_NAME) end
  return queue_names, ids, names
end

--- Jobs of a name; nil: every queue.
local function pause_name(db, told, name, paused)
  local what = name and "jobs named " .. output.one_line(name, 100) or "every queue"
  local near = name and paused and context.near_name(db, name)
  local changed, message, code = pauses.set(db._handle, name, paused)
  local row = { name = name, all = not name or nil, paused = paused, changed = changed }
  if changed == nil then return told.failed(row, what, message, code) end
  local text = changed and (paused and "paused" or "resumed") or paused and "paused before" or "not paused"
  if changed == false and name and not paused then
    local known = {}
    for _, one in ipairs(context.must(pauses.list(db._handle)).names) do known[one.name] = true end
    text = text .. context.tip(context.near(name, known))
  end
  told.done(row, ("%s: %s"):format(what, text))
  if near then context.complain("no live host has a handler '%s'%s", options.shown(name), context.tip(near)) end
end

local function set_paused(paused)
  return function(args)
    local queue_names, ids, names = sort_out(args)
    local db <close> = context.connect(args)
    local told = output.outcomes(args)
    for _, name in ipairs(queue_names) do pause_queue(db, told, name, paused) end
    for _, id in ipairs(ids) do pause_job(db, told, id, paused) end
    for _, name in ipairs(names) do pause_name(db, told, name, paused) end
    if args.all then pause_name(db, told, nil, paused) end
    return told.finish()
  end
end

commands["remove-queue"] = function(args)
  for _, name in ipairs(args.queue) do context.check_name("queue name", name, options.MAX_QUEUE) end
  local db <close> = context.connect(args)
  local told = output.outcomes(args)
  for _, name in ipairs(args.queue) do
    local ok, message, code = db:remove_queue(name)
    local shown = output.one_line(name, 64)
    if ok then
      told.done({ queue = name }, ("%s removed"):format(shown))
    else
      local near = code == "NOT_FOUND" and context.near_queue(db, name)
      told.failed({ queue = name }, shown, message .. context.tip(near), code)
    end
  end
  return told.finish()
end

--- Mends jobs in no place, or in a wrong one: it looks twice, half a minute apart.
local function mend(handle)
  local round = context.must(handle:mend(true))
  if round.seen == 0 then return 0 end
  core.sleep(round.every / 1e6)
  round = context.must(handle:mend(true))
  return round.jobs + round.rows
end

function commands.rescue(args)
  local wait = context.checked(options.duration, args.wait, "--wait")
  local db <close> = context.connect(args)
  local found = context.must(db._handle:look(wait))
  found.mended = mend(db._handle)
  if args.json then return output.json(found) end
  output.line(("%d jobs of %d dead holders given back"):format(found.jobs, found.holders))
  if found.mended > 0 then
    output.line(("%d job%s or rows in no place, or in a wrong one, mended"):format(found.mended,
      found.mended > 1 and "s" or ""))
  end
end

local function tune_host(args)
  if args.table or args.rate then
    context.fail(context.USAGE, "a host has workers, and a table a rate: --host with --workers, or TABLE with --rate")
  end
  if not args.host then context.fail(context.USAGE, "give --host") end
  if not args.workers then context.fail(context.USAGE, "give --workers") end
  local db <close> = context.connect(args)
  local now = context.must(db:tune_host(args.host, args.workers))
  if args.json then return output.json(now) end
  output.line(("host %d (pid %d on %s): %s, before %d"):format(now.id, now.pid, output.one_line(now.host, 40),
    output.count(now.workers, "worker"), now.was))
end

function commands.tune(args)
  if args.host or args.workers then return tune_host(args) end
  if not args.table then context.fail(context.USAGE, "give --host with --workers, or TABLE with --rate") end
  if not args.rate then context.fail(context.USAGE, "give --rate") end
  local rate = tonumber(args.rate) or context.fail(context.USAGE, "--rate must be a number, got '%s'", args.rate)
  rate = context.checked(admin().TUNE.rate, rate, "--rate")
  local db <close> = context.connect(args)
  context.must(admin().tune(db._handle, args.table, { rate = rate }))
  if args.json then return output.json { table = args.table, rate = rate } end
  output.line(args.table .. " tuned")
end

local ACTION_COLUMNS = {
  { title = "WHEN", get = function(row) return output.time(row.at) end },
  output.column("VERB", "verb"),
  { title = "WHAT", get = function(row) return output.one_line(row.what, 255) end },
  output.column("JOBS", "jobs", true),
  output.column("ACCOUNT", "account"),
  { title = "HOST", get = function(row) return output.one_line(row.host, 40) end },
  output.column("PID", "pid", true),
  output.column("VIA", "via"),
}

function commands.audit(args)
  for _, key in ipairs { "since", "limit" } do
    if args[key] then context.checked(report.AUDIT[key], args[key], "--" .. key) end
  end
  local db <close> = context.connect(args)
  local rows = context.must(db:audit { since = args.since, verb = args.verb, limit = args.limit })
  if args.json then return output.json_list(rows) end
  if #rows == 0 then return output.line "no actions" end
  output.table(ACTION_COLUMNS, rows)
end

commands.pause = set_paused(true)
commands.resume = set_paused(false)

-- ---------------------------------------------------------------- limits: setting

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

function commands.limit(args)
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
    output.json(row and limit.plain(row) or { queue = args.queue })
  elseif not row then
    output.line(("%s: no limit"):format(args.queue))
  elseif row.lifted then
    output.line(("%s: the limit ends; its backlog is on its way back"):format(args.queue))
  else
    output.line(("%s: %s"):format(args.queue, limit.words(row)))
  end
  if near and given then context.complain("there was no queue '%s' before%s", args.queue, context.tip(near)) end
end

-- ---------------------------------------------------------------- limits: looking

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

function commands.limits(args)
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
    for _, row in ipairs(rows) do limit.plain(row) end
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

return queues
