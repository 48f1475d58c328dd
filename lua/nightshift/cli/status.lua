--- Commands that show how queues, hosts and holders are doing: status, and scale, numbers of queues
-- for autoscalers.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local hosts = require "nightshift.hosts"
local limit = require "nightshift.limit"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local report = require "nightshift.report"
local units = require "nightshift.units"

-- Loaded by the few commands that need them.
local admin = options.later(function() return require "nightshift.source.admin" end)
local scale = options.later(function() return require "nightshift.report.scale" end)

local status = { commands = {} }
local commands = status.commands

local STATUS_NOTES = [[
READY to DEAD: jobs in that state; 1000+: so many and more.
OLDEST: how long the first of them has been ready. NEXT DUE: until the next scheduled one is.
UP: since its start. BEAT: since it has last said that it lives; a host does so every 10 s at least.
WORKERS: those that take jobs, that run one, that take no more and end with theirs.
BATCHES: claims it holds; one is of one job or of many.
STARTED to STATUS: of jobs that call job:progress, 20 at most; SEEN: since they last did.]]

local SCALE_NOTES <const> = [[
READY to RUNNING: 10,000+: so many and more.
OLDEST: how long the first of the ready jobs has been so.
IN, OUT: jobs a minute that were pushed, and that ended, in the last five minutes.
RUN: how long a run takes. DRAIN: until the ready jobs are done, with the workers there are; ?: not known.
WORKERS: those of live hosts that may take such jobs; BUSY: those that run one, of any queue.
WANTED: workers that keep up, and are done with the ready jobs within the target.]]

--- Adds the commands to the parser.
function status.define(parser)
  local shown = parser:command("status", "Show queues and adopted tables with their counts, "
    .. "and who holds jobs and locks.")
  shown:epilog(STATUS_NOTES)
  shown:option("--series", "Show what has happened in the last hour, day or 7 days, the newest last. Default: none.")
    :choices { "1h", "1d", "7d" }
  shown:option("--queue", "With --series: in this queue. Default: in all.")
  shown:flag("--json", "Print JSON.")
  local scaling = parser:command("scale", "Show how much waits in queues, how fast it comes and goes, and how many "
    .. "workers are wanted: for autoscalers.")
  scaling:epilog(SCALE_NOTES)
  scaling:argument("queue", "Queues. Default: all."):args "*"
  scaling:option("--target", "Within which time the ready jobs are to be done.", "60s")
  scaling:flag("--json", "Print JSON.")
end

-- ------------------------------------------------------------------------- status

local function count_of(state)
  return function(row)
    return row.approximate and row.approximate[state] and row[state] .. "+" or row[state]
  end
end

local QUEUE_COLUMNS = {
  output.column("QUEUE", "name"),
  { title = "READY", get = count_of "ready", right = true },
  { title = "SCHEDULED", get = count_of "scheduled", right = true },
  { title = "RUNNING", get = count_of "running", right = true },
  { title = "WAITING", get = count_of "waiting", right = true },
  { title = "DEAD", get = count_of "dead", right = true, colour = function(row) return row.dead > 0 and "red" end },
  { title = "OLDEST", get = function(row) return output.span(row.oldest) end, right = true },
  { title = "NEXT DUE", get = function(row) return output.span(row.next) end, right = true },
  { title = "", colour = function(row) return row.paused and "yellow" end, get = function(row)
    return (row.paused and "paused" or "") .. (row.paused and row.limited and ", " or "")
      .. (row.limited and "limited" or "")
  end },
}

--- "4, 2 busy, 1 leaving": workers that take jobs, that run one, that take no more.
local function workers_of(row)
  if not row.workers then return "" end
  local text = ("%d, %d busy"):format(row.workers, row.busy)
  return row.leaving > 0 and ("%s, %d leaving"):format(text, row.leaving) or text
end

--- "1a2b3c4d", "1a2b3c4d, 2 old": the scripts of new jobs, and how many workers run earlier
-- ones.
local function scripts_of(row)
  if not row.scripts then return "" end
  return row.old_scripts and row.old_scripts > 0 and ("%s, %d old"):format(row.scripts, row.old_scripts) or row.scripts
end

local function holder_columns(now)
  local function since(key)
    return function(row) return output.span(now - row[key]) end
  end
  return {
    output.column("HOLDER", "id", true),
    output.column("KIND", "kind"),
    { title = "HOST", get = function(row) return output.one_line(row.host, 40) end },
    output.column("PID", "pid", true),
    { title = "UP", get = since "started", right = true },
    { title = "BEAT", get = since "beat", right = true },
    { title = "WORKERS", get = workers_of },
    { title = "SCRIPTS", get = scripts_of },
    output.column("BATCHES", "leases", true),
    output.column("VERSION", "version"),
  }
end

--- A line about verdicts of a host that wait long to be written.
local function unsettled_text(row)
  local late = row.unsettled
  return ("the database does not take %s of holder %d, the oldest for %s%s"):format(output.count(late.n, "verdict"),
    row.id, output.span(late.oldest), late.server and ": " .. output.one_line(late.server, 80) or "")
end

local function slot_columns(now)
  return {
    { title = "LOCK", get = function(row) return output.one_line(row.name, 60) end },
    output.column("SLOT", "slot", true),
    { title = "HELD BY", get = function(row)
      return row.job and ("job %d run %d"):format(row.job, row.run) or ("holder %d"):format(row.holder)
    end },
    { title = "FOR", get = function(row) return output.span(math.max(0, now - row.since)) end, right = true },
  }
end

--- The settings and troubles of an adopted table, or why its mapping is not understood.
local function remarks(row)
  local list = {}
  if row.paused then list[#list + 1] = "paused" end
  if row.rate then list[#list + 1] = units.number(row.rate) .. "/s" end
  for _, trouble in ipairs(admin().troubles(row)) do list[#list + 1] = output.one_line(trouble, 120) end
  if row.error then list[#list + 1] = output.one_line(row.error, 80) end
  return table.concat(list, ", ")
end

local function adopted_columns()
  local columns = { output.column("TABLE", "table") }
  for _, state in ipairs { "ready", "waiting", "running", "done", "dead" } do
    local count = count_of(state)
    columns[#columns + 1] = { title = state:upper(), right = true, get = function(row)
      return row.counts and count(row.counts)
    end }
  end
  columns[#columns + 1] = { title = "NEXT DUE", right = true, get = function(row)
    return row.counts and output.span(row.counts.next)
  end }
  columns[#columns + 1] = { title = "", get = remarks }
  return columns
end

local function joined(first, second) return table.move(second, 1, #second, #first + 1, first) end

--- The columns of each running row or job.
local function running_columns(now)
  local function ago(key)
    return function(row) return output.span(math.max(0, now - row[key])) end
  end
  return {
    { title = "HOST", get = function(row) return output.one_line(row.host or "-", 40) end },
    { title = "PID", get = function(row) return row.worker or row.pid end, right = true },
    { title = "STARTED", get = function(row) return output.time(row.started) end },
    { title = "SEEN", get = ago "touched", right = true },
    { title = "DONE", get = function(row)
      return row.progress and ("%d%%"):format(math.floor(row.progress * 100))
    end, right = true },
    { title = "STATUS", get = function(row) return row.status and output.one_line(row.status, 60) or "" end },
  }
end

local SHOWN = 20 -- running jobs
local EVERY = 1 << 31 -- a limit that is none

--- Jobs of our own queues that show how far they are.
local function show_running(running, now)
  if #running == 0 then return end
  local columns = { output.column("ID", "id", true), output.column("QUEUE", "queue"),
    { title = "NAME", get = function(row) return output.one_line(row.name, 40) end } }
  output.line()
  output.table(joined(columns, running_columns(now)), { table.unpack(running, 1, SHOWN) })
  if #running > SHOWN then output.line "… and more: nightshift jobs --state running" end
end

local function show_adopted(tables)
  if #tables == 0 then return end
  output.line()
  output.table(adopted_columns(), tables)
end

--- Pauses beside the pauses of single queues.
local function show_paused(paused)
  if paused.all or #paused.names > 0 then output.line() end
  if paused.all then output.line("every queue is paused, since " .. output.time(paused.all)) end
  for _, row in ipairs(paused.names) do
    output.line(("jobs named %s are paused, since %s"):format(output.one_line(row.name, 100), output.time(row.since)))
  end
end

--- Each of several databases.
local function show_shards(stats)
  if not stats.shards then return end
  local rows = table.move(stats.shards, 1, #stats.shards, 1, {})
  for _, one in ipairs(stats.missing or {}) do
    rows[#rows + 1] = { shard = one.shard, place = one.place, away = "away" }
  end
  table.sort(rows, function(a, b) return (a.shard or 90) < (b.shard or 90) end)
  output.table({
    output.column("SHARD", "shard", true), output.column("DATABASE", "place"), output.column("READY", "ready", true),
    output.column("HOLDERS", "holders", true),
    { title = "", get = function(row) return row.away or "" end, colour = function() return "red" end },
  }, rows)
  output.line()
end

local function show_queues(stats)
  if #stats.queues == 0 then
    output.line "no queues yet; `nightshift push` makes the first"
    if #stats.holders == 0 then return show_paused(stats.paused) end
  else
    output.table(QUEUE_COLUMNS, stats.queues)
  end
  show_paused(stats.paused)
  for i, row in ipairs(stats.unserved) do
    if i == 1 then output.line() end
    output.line("no live host has a handler for " .. output.one_line(hosts.unserved_text(row, "due later"), 400))
  end
  if #stats.holders == 0 then return output.line "\nnobody holds jobs" end
  output.line()
  output.table(holder_columns(stats.now), stats.holders)
  for _, row in ipairs(stats.holders) do
    if row.load_error then output.line(output.safe(hosts.versions.failure(row, stats.now - row.load_ended))) end
    if row.unsettled then output.line(unsettled_text(row)) end
  end
end

-- ------------------------------------------------------- what to ask next

-- The status is asked for without a job's id. So it ends with a line for each cause that keeps jobs
-- from running. The line has the command that goes on from there: "next: COMMAND  # cause".

local LATE <const> = 60 -- s that a ready job may wait
local LOOKED <const> = 200 -- of dead jobs, and of scheduled ones, for their errors
local KINDS <const> = 3 -- of errors
local LINES <const> = 10

--- A name as a shell takes it; nil: it cannot be typed.
local function word(name)
  if name:find "^[%w_][%w_.:@/-]*$" then return name end
  if name:find "^%-" or name:find "[\n\t]" or output.safe(name) ~= name then return nil end
  return "'" .. name:gsub("'", "'\\''") .. "'"
end

--- " --queue mail"; "": the name cannot be typed.
local function option(flag, name)
  local text = word(name)
  return text and (" %s %s"):format(flag, text) or ""
end

local function add_paused(add, stats)
  if stats.paused.all then add("resume --all", "every queue is paused") end
  for _, row in ipairs(stats.paused.names) do
    local shown = output.one_line(row.name, 60)
    if word(row.name) then add("resume" .. option("--name", row.name), ("jobs named '%s' are paused"):format(shown)) end
  end
  for _, row in ipairs(stats.queues) do
    if row.paused and word(row.name) and row.ready + row.scheduled + row.waiting > 0 then
      add("resume" .. option("--queue", row.name), ("queue '%s' is paused"):format(output.one_line(row.name, 60)))
    end
  end
end

--- Gives the queues with jobs that no host has a handler for.
local function add_unserved(add, stats)
  local queues_of = {}
  for _, row in ipairs(stats.unserved) do
    local state = row.n > row.later and "ready" or "scheduled"
    queues_of[row.queue] = true
    add(("jobs --state %s%s%s"):format(state, option("--queue", row.queue), option("--name", row.name)),
      ("no live host has a handler for '%s'"):format(output.one_line(row.name, 60)))
  end
  return queues_of
end

--- The most frequent errors of the last day; an account that may not look at them gets none.
local function add_errors(add, db)
  for _, kind in ipairs(db:errors { since = "1d", look = LOOKED, limit = KINDS } or {}) do
    local counts = {}
    if kind.dead > 0 then counts[1] = kind.dead .. " dead" end
    if kind.retrying > 0 then counts[#counts + 1] = kind.retrying .. " to be tried again" end
    add("why " .. kind.id, ("%s: %s"):format(table.concat(counts, ", "), output.one_line(kind.error, 80)))
  end
end

--- Ready jobs of queues of which nothing else has said why they wait.
local function add_late(add, stats, explained)
  local waits = 0
  for _, row in ipairs(stats.queues) do waits = waits + (row.paused and 0 or row.ready) end
  if #stats.holders == 0 then
    if waits > 0 then add("jobs --state ready", "jobs are ready, and no host or program claims them") end
    return
  end
  for _, row in ipairs(stats.queues) do
    if not row.paused and not explained[row.name] and row.oldest and row.oldest > LATE then
      add("jobs --state ready" .. option("--queue", row.name), ("a job of queue '%s' has been ready for %s"):format(
        output.one_line(row.name, 60), output.span(row.oldest)))
    end
  end
end

--- Limits that keep all waiting jobs of their queue from starting, and queues that take no pushes.
-- Gives the former queues.
local function add_full(add, limits, stats)
  local held, paused = {}, {}
  for _, row in ipairs(stats.queues) do paused[row.name] = row.paused end
  for _, row in ipairs(limits) do
    if row.holds and not paused[row.queue] and not stats.paused.all then
      held[row.queue] = true
      add("limits" .. option("", row.queue):gsub("^ ", "", 1), ("full limit: %s"):format(row.holds))
    end
    if row.full then
      add("limits" .. option("", row.queue):gsub("^ ", "", 1),
        ("pushes are refused: %d of %d jobs wait"):format(row.backlog, row.backlog))
    end
  end
  return held
end

local function show_next(db, stats, limits)
  local lines = {}
  local function add(command, cause) lines[#lines + 1] = ("next: nightshift %s  # %s"):format(command, cause) end
  add_paused(add, stats)
  local unserved = add_unserved(add, stats)
  for name in pairs(add_full(add, limits, stats)) do unserved[name] = true end
  for _, row in ipairs(stats.holders) do
    if row.unsettled then
      add("doctor", "the database does not take verdicts")
      break
    end
  end
  if not stats.paused.all then add_late(add, stats, unserved) end
  add_errors(add, db)
  for i = 1, math.min(#lines, LINES) do output.line((i == 1 and "\n" or "") .. lines[i]) end
end

local WRONG = {
  nowhere = "jobs in no place", waits = "jobs that waited for nothing", unknown = "claims unknown to their holder",
  twice = "claimed jobs that were ready, too", key = "unique keys of no job",
}

local function seconds_of(key)
  return { title = key:upper():gsub("_", " "), right = true, get = function(row) return output.span(row[key]) end }
end

local SERIES_COLUMNS = {
  { title = "FROM", get = function(row) return output.time(row.at) end },
  output.column("DONE", "done", true), output.column("FAILED", "failed", true), output.column("DEAD", "dead", true),
  output.column("CANCELLED", "cancelled", true), output.column("PUSHED", "pushed", true),
  seconds_of "wait", seconds_of "wait_max", seconds_of "run", seconds_of "run_max",
}

local function show_series(args)
  if args.queue then context.check_name("--queue: queue name", args.queue, options.MAX_QUEUE) end
  local db <close> = context.connect(args)
  local list = context.must(db:series { span = args.series, queue = args.queue })
  if not args.json then return output.table(SERIES_COLUMNS, list) end
  for _, row in ipairs(list) do row.at = units.instant(row.at) end
  output.json_list(list)
end

function commands.status(args)
  if args.series then return show_series(args) end
  if args.queue then context.fail(context.USAGE, "--queue goes with --series; `jobs --queue` lists a queue's jobs") end
  local db <close> = context.connect(args)
  local stats = context.must(db:stats())
  local slots = context.must(db:slots())
  local adopted = context.list(db, admin().status)
  local running = context.must(report.progress(db._handle, args.json and EVERY or SHOWN + 1))
  local mended = context.must(units.rows(db._handle:execute "@report_mended"))
  local limits = context.list(db, function(one) return limit.list(one._handle) end)
  if args.json then
    for _, row in ipairs(limits) do limit.plain(row) end
    return output.json {
      now = stats.now, queues = core.array(stats.queues), paused = stats.paused, holders = core.array(stats.holders),
      slots = core.array(slots), unserved = core.array(stats.unserved), mended = core.array(mended),
      running = core.array(running),
      adopted = { tables = core.array(adopted) }, limits = limits, shards = stats.shards, missing = stats.missing,
    }
  end
  show_shards(stats)
  show_queues(stats)
  show_running(running, stats.now)
  if #slots > 0 then
    output.line()
    output.table(slot_columns(stats.now), slots)
  end
  show_adopted(adopted)
  for _, row in ipairs(mended) do
    output.line(("%d mended: %s, last %s"):format(row.n, WRONG[row.what] or row.what,
      output.time(row.last)))
  end
  show_next(db, stats, limits)
end

-- -------------------------------------------------------------------------- scale

local function thousands_of(state)
  return function(row)
    local text = output.thousands(row[state])
    return row.approximate and row.approximate[state] and text .. "+" or text
  end
end

local function a_minute(key)
  return function(row)
    local n = row[key] * 60
    return n >= 100 and output.thousands(n // 1 | 0) or units.fixed(n, 1)
  end
end

local function span_of(key)
  return function(row) return row[key] and output.span(row[key]) or "?" end
end

local SCALE_COLUMNS <const> = {
  output.column("QUEUE", "name"),
  { title = "READY", get = thousands_of "ready", right = true },
  { title = "SCHEDULED", get = thousands_of "scheduled", right = true },
  { title = "RUNNING", get = thousands_of "running", right = true },
  { title = "OLDEST", get = span_of "oldest_age", right = true },
  { title = "IN", get = a_minute "rate_in", right = true },
  { title = "OUT", get = a_minute "rate_out", right = true },
  { title = "RUN", get = span_of "run", right = true },
  { title = "DRAIN", get = span_of "drain_seconds", right = true },
  output.column("WORKERS", "workers", true),
  output.column("BUSY", "busy", true),
  output.column("WANTED", "wanted", true),
  { title = "", get = function(row) return row.paused and "paused" or "" end,
    colour = function() return "yellow" end },
}

--- Values that are not known are null, so that each row has all keys.
local function whole(row)
  for _, key in ipairs { "run", "drain_seconds" } do
    if row[key] == nil then row[key] = core.null end
  end
end

function commands.scale(args)
  for _, name in ipairs(args.queue) do context.check_name("queue name", name, options.MAX_QUEUE) end
  context.checked(scale().OPTIONS.target, args.target, "--target")
  local db <close> = context.connect(args)
  local found, message, code = db:scale { queues = args.queue, target = args.target }
  if not found and code == "NOT_FOUND" then
    for _, name in ipairs(args.queue) do message = message .. context.tip(context.near_queue(db, name)) end
  end
  context.must(found, message, code)
  local total = found.total
  if args.json then
    for _, row in ipairs(found.queues) do whole(row) end
    whole(total)
    return output.json(found)
  end
  if #found.queues == 0 then return output.line "no queues yet; `nightshift push` makes the first" end
  local rows = table.move(found.queues, 1, #found.queues, 1, {})
  if #rows > 1 then
    total.name = "all"
    rows[#rows + 1] = total
  end
  output.table(SCALE_COLUMNS, rows)
end

return status
