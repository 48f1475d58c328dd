--- Commands on queues and holders: status, pause, resume, remove-queue, tune, rescue. And audit: who
-- has done what.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local hosts = require "nightshift.report.hosts"
local limit = require "nightshift.limit"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local pauses = require("nightshift.queue").pauses
local report = require "nightshift.report"
local units = require "nightshift.units"

-- Loaded by the few commands that need them.
local admin = options.later(function() return require "nightshift.source.admin" end)
local versions = options.later(function() return require "nightshift.versions" end)

local queues = { commands = {} }
local commands = queues.commands

local COLUMNS = [[
READY to DEAD: jobs in that state; 1000+: so many and more.
OLDEST: how long the first of them has been ready. NEXT DUE: until the next scheduled one is.
UP: since its start. BEAT: since it has last said that it lives; a host does so every 10 s at least.
WORKERS: those that take jobs, that run one, that take no more and end with theirs.
BATCHES: claims it holds; one is of one job or of many.
STARTED to STATUS: of jobs that call job:progress, 20 at most; SEEN: since they last did.]]

--- Adds the commands to the parser.
function queues.define(parser)
  local status = parser:command("status", "Show queues and adopted tables with their counts, "
    .. "and who holds jobs and locks.")
  status:epilog(COLUMNS)
  status:option("--series", "Show what has happened in the last hour, day or 7 days, the newest last. Default: none.")
    :choices { "1h", "1d", "7d" }
  status:option("--queue", "With --series: in this queue. Default: in all.")
  status:flag("--json", "Print JSON.")
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
end

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
    if row.load_error then output.line(output.safe(versions().failure(row, stats.now - row.load_ended))) end
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
    for _, row in ipairs(limits) do require("nightshift.cli.limits").plain(row) end
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

return queues
