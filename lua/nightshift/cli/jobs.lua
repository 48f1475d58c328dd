--- Commands on jobs: jobs, show, why, retry, cancel, delete, update, run-now, signal.
-- tree.lua has the commands on trees, adopt.lua the commands on rows of adopted tables.

local adopt = require "nightshift.cli.adopt"
local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local filter = require "nightshift.filter"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local tree = require "nightshift.cli.tree"
local units = require "nightshift.units"

-- Loaded by the few commands that need them.
local change = options.later(function() return require "nightshift.change" end)
local many = options.later(function() return require "nightshift.many" end)
local report = options.later(function() return require "nightshift.report" end)

local jobs = { commands = {} }
local commands = jobs.commands

local STATES = { "scheduled", "ready", "running", "waiting", "done", "dead", "cancelled" }
local LIVE = { "running", "ready", "scheduled", "waiting" }
local CHANGED = { "scheduled", "ready", "waiting", "dead", "cancelled" }
local IDLE = { "scheduled", "ready", "waiting", "done", "dead", "cancelled" }

local function define_more_conditions(command)
  command:option("--name", "Only of this job name.")
  command:option("--error", "Only of this error: the whole text, its first line, or its kind.")
  command:option("--since", 'Only jobs that ended since, or live ones pushed since: "2h" ago, or 2026-11-26T06:00:00Z.')
  command:option("--parent", "Only children of this job."):convert(context.id)
end

--- The conditions of a filter but for --state, which differs.
local function define_conditions(command)
  command:option("--queue", "Only of this queue.")
  define_more_conditions(command)
  command:option("--tag", "Only with this tag.")
  command:option("--group", "Only of this group.")
end

local function number(text)
  local n = tonumber(text)
  if n then return n end
  return nil, ("'%s' is not a number"):format(text)
end

local function define_json(command) command:flag("--json", "Print JSON.") end

local function define_pace(command)
  command:option("--rate", "With a filter: so many jobs a second."):convert(number)
  command:flag("--yes", "Do it; without this a filter, or --tree, only shows the number.")
  define_json(command)
end

--- Options of a verb that takes a filter.
local function define_filter(command)
  define_conditions(command)
  define_pace(command)
end

local function define_reading(parser)
  local list = parser:command("jobs", "List jobs: of all states by id, roughly the newest first, "
    .. "for each program takes ids in blocks; of one state in its own order.")
  list:option("--state", "Only in this state."):choices(STATES)
  define_conditions(list)
  list:option("--limit", "At most so many.", "50"):convert(context.integer)
  list:option("--after", "Only those with smaller ids, largest first; done, dead or cancelled ones that ended before "
    .. "this job. Of several databases: an id of each, with commas."):convert(context.ids)
  list:flag("--json", "Print JSON.")
  local errors = parser:command("errors", "Count dead jobs, and jobs that are tried again, by kinds of errors.")
  errors:option("--queue", "Only of this queue.")
  errors:option("--name", "Only of this job name.")
  errors:option("--since", 'Only of this time: "2h" ago, or 2026-11-26T06:00:00Z.')
  errors:option("--limit", "At most so many kinds.", "50"):convert(context.integer)
  errors:option("--look", "At so many dead jobs, the last ones, and at so many scheduled ones.", "20000")
    :convert(context.integer)
  errors:flag("--json", "Print JSON.")
  local show = parser:command("show", "Show everything about one job.")
  show:argument("id", "Job id."):convert(context.id)
  show:flag("--tree", "Draw it with all below it.")
  show:option("--children", "With --tree: how many children of a job are shown.", "10"):convert(context.integer)
  show:flag("--json", "Print JSON.")
  local why = parser:command("why", "Say why a job is not running.")
  why:argument("id", "Job id."):convert(context.id)
  why:flag("--json", "Print JSON.")
end

--- Adds the commands to the parser.
function jobs.define(parser)
  define_reading(parser)
  local retry = parser:command("retry", "Run ended jobs again, done ones too, with fresh budgets and the "
    .. "same payload; update changes that.")
  retry:argument("id", "Job ids. Default: those of a filter."):args("*"):convert(context.id)
  retry:option("--state", "All in this state. Default: dead."):choices { "dead", "cancelled", "done" }
  define_filter(retry)
  adopt.define_retry(retry)
  tree.define_flag(retry)
  local cancel = parser:command("cancel", "End live jobs.")
  cancel:argument("id", "Job ids. Default: those of a filter."):args("*"):convert(context.id)
  cancel:option("--state", "All in this state. Default: all live ones."):choices(LIVE)
  cancel:option("--reason", "Kept with the job. Default: cancelled."):argname "TEXT"
  define_filter(cancel)
  tree.define_flag(cancel)
  local delete = parser:command("delete", "Delete jobs that do not run, with payload, result, errors, log and signals. "
    .. "Live ones end first, as cancelled.")
  delete:argument("id", "Job ids. Default: those of a filter."):args("*"):convert(context.id)
  delete:option("--state", "All in this state. Default: done, dead and cancelled."):choices(IDLE)
  define_filter(delete)
  tree.define_flag(delete)
  local update = parser:command("update", "Change jobs that do not run, or dead ones for their retry: by id, or those "
    .. "of a filter.")
  update:argument("id", "Job ids. Default: those of a filter."):args("*"):convert(context.id)
  update:option("--payload", 'JSON; "-" reads it from stdin. Default: as it is.'):argname "JSON"
  update:option("--set", "What is to be different in the payload, JSON: a merge patch, in which null deletes a key. "
    .. "Default: nothing."):argname "JSON"
  update:option("--priority", "0 to 255, higher first. Default: as it is."):argname "N":convert(context.integer)
  update:option("--queue", "With ids: move them there. Without: only of this queue. Default: as it is, or all.")
  update:option("--tag", "With ids: a tag, in the place of all that it has; up to 16; an empty one: none. Without: "
    .. "only with this tag. Default: as they are, or all."):count "*"
  update:option("--group", "With ids: what the limits of groups go by; an empty one: none. Without: only of this "
    .. "group. Default: as it is, or all.")
  update:option("--state", "All in this state. Default: scheduled, ready and waiting."):choices(CHANGED)
  define_more_conditions(update)
  define_pace(update)
  update:flag("--retry", "With --state dead or cancelled: run them again.")
  update:option("--due", "When it is ready, like 2030-01-31T12:00:00Z. Default: as it is."):argname "INSTANT"
  update:option("--max-attempts", "Errors before it is dead. Default: as it is."):argname "N":convert(context.integer)
  local wait = parser:command("wait", "Wait until jobs have ended. Ends with 0 when all are done.")
  wait:argument("id", "Job ids."):args("+"):convert(context.id)
  wait:option("--timeout", "How long, at most.", "1h")
  wait:flag("--json", "Print JSON.")
  local run_now = parser:command("run-now", "Make scheduled jobs ready now.")
  run_now:argument("id", "Job ids. Default: those of a filter."):args("*"):convert(context.id)
  define_filter(run_now)
  tree.define_flag(run_now)
  local reprioritise = parser:command("reprioritise", "Give live jobs another priority: a job, or those of a filter.")
  reprioritise:argument("values", "A job's id, then the priority: 0 to 255, higher first. With a filter the priority "
    .. "alone."):args("1-2"):convert(context.integer)
  reprioritise:option("--state", "All in this state. Default: all live ones."):choices(LIVE)
  define_filter(reprioritise)
  tree.define_flag(reprioritise)
  local move = parser:command("move", "Move the jobs of a filter to another queue; jobs that run stay.")
  move:argument("to", "Queue name.")
  move:option("--state", "All in this state. Default: scheduled, ready and waiting."):choices(IDLE)
  define_filter(move)
  local signal = parser:command("signal", "Send a value to a job that waits for a signal, or will.")
  signal:argument("id", "Job id."):convert(context.id)
  signal:argument("value", 'The value, JSON; "-" reads it from stdin.'):default "null"
  define_json(signal)
  signal:option("--name", "Of the signal. Default: whichever the job waits for.")
end

-- When a row's next or last event is, from its state.
local function when(row, now)
  local function ago(at) return at and output.span(now - at) or "-" end
  if row.finished_at then return ago(row.finished_at) .. " ago" end
  if row.state == "scheduled" then return "in " .. output.span(math.max(0, row.due - now)) end
  if row.state == "running" and row.claimed then return "for " .. ago(row.claimed) end
  return ago(row.created) .. " old"
end

--- "paused with 12, for 2 jobs": the job with the pause that holds it, and how many it waits for
-- besides.
local function pause_of(row)
  local text = row.paused == row.id and "paused" or "paused with " .. row.paused
  return row.unmet > 1 and ("%s, for %s"):format(text, output.count(row.unmet - 1, "job")) or text
end

local function note(row)
  if row.progress then
    return output.one_line(("%d%% %s"):format(row.progress * 100 // 1, row.status or ""), 60)
  end
  if row.error then return output.one_line(("%s: %s"):format(row.reason or "error", row.error), 60) end
  if row.awaits then return output.one_line("for the signal " .. row.awaits, 60) end
  if row.state == "waiting" and row.paused then return pause_of(row) end
  return row.reason or (row.unmet and "for " .. output.count(row.unmet, "job")) or ""
end

local function job_columns(now)
  return {
    output.column("ID", "id", true),
    output.column("QUEUE", "queue"),
    output.column("NAME", "name"),
    { title = "STATE", get = function(row) return row.state end, colour = output.state_colour },
    output.column("PRIORITY", "priority", true),
    { title = "FAILED", get = function(row) return row.attempts .. "/" .. row.max_attempts end, right = true },
    output.column("POLLS", "polls", true),
    { title = "WHEN", get = function(row) return when(row, now) end },
    { title = "", get = note },
  }
end

--- The conditions of a filter; wrong ones are told before a server is asked.
local function conditions(args)
  local given = {}
  for key, check in pairs(filter.CONDITIONS) do
    given[key] = args[key]
    if args[key] then context.checked(check, args[key], "--" .. key) end
  end
  return given
end

--- `columns` makes the table's from the server's time.
local function print_list(args, db, list, columns, none)
  if args.json then
    output.json_list(list)
  elseif #list > 0 then
    output.table(columns(units.seconds(context.must(db._handle:now()))), list)
  else
    output.line(none)
  end
end

function commands.jobs(args)
  context.checked(report().FILTER.limit, args.limit, "--limit")
  local given = conditions(args)
  given.limit, given.after = args.limit, args.after
  if type(args.after) == "table" and not args.connect then
    context.fail(context.USAGE, "--after: one id; several are of a list of several databases")
  end
  local db <close> = context.connect(args)
  local list, more, code = db:jobs(given)
  context.must(list, more, code)
  print_list(args, db, list, job_columns, "no such jobs")
  if #list == 0 then context.suggest(db, args.queue, args.name) end
  local after = more and (type(more.after) == "table" and table.concat(more.after, ",") or tostring(more.after))
  if more and more.looked then
    context.complain("looked at %d jobs, down to id %s; --after %s goes on", more.looked, after, after)
  elseif more and not args.json then
    context.complain("there are more than these %d: --after %s goes on, --limit shows more at once", #list, after)
  end
end

local function error_columns(now)
  local function ago(key) return function(row) return output.span(math.max(0, now - row[key])) .. " ago" end end
  return {
    output.column("DEAD", "dead", true),
    output.column("RETRYING", "retrying", true),
    { title = "FIRST", get = ago "first" },
    { title = "LAST", get = ago "last" },
    output.column("ID", "id", true),
    output.column("QUEUE", "queue"),
    output.column("NAME", "name"),
    { title = "ERROR", get = function(row) return output.one_line(row.error, 200) end },
  }
end

function commands.errors(args)
  local given = {}
  for key, check in pairs(report().ERRORS) do
    given[key] = args[key]
    if args[key] then context.checked(check, args[key], "--" .. key) end
  end
  local db <close> = context.connect(args)
  local list, more, code = db:errors(given)
  context.must(list, more, code)
  print_list(args, db, list, error_columns, "no errors")
  if #list == 0 then context.suggest(db, args.queue, args.name) end
  if more then context.complain("looked at %d jobs; --look %d looks at more", more.looked, more.looked * 10) end
end

local JSONS = { payload = true, result = true, kept = true }
local LINES = { "id", "key", "queue", "name", "state", "reason", "priority", "decay", "run", "attempts", "max_attempts",
  "polls", "max_polls", "crashes", "max_crashes", "unique", "created", "due", "deadline", "timeout", "backoff",
  "finished_at", "last_run", "parent", "root", "after", "tags", "group", "phase", "unmet", "awaits", "paused", "holder",
  "progress", "status", "payload", "kept", "result", "error" }

local SOME = 20 -- ids of a list that are printed

local function some_ids(ids)
  local more = #ids > SOME and (" and %d more"):format(#ids - SOME) or ""
  return table.concat(ids, " ", 1, math.min(#ids, SOME)) .. more
end

--- " after 2s on web1 (pid 12), worker 3": as much of a run as is known.
local function run_place(run, took)
  return (took and " after " .. output.span(took) or "")
    .. (run.host and (" on %s (pid %d)"):format(output.safe(run.host), run.pid) or "")
    .. (run.worker and (", worker %d"):format(run.worker) or "")
end

local function shown(key, value)
  if units.INSTANTS[key] then return output.time(value) end
  if units.SPANS[key] then return output.span(value) end
  if JSONS[key] then return output.safe(assert(core.encode(value, math.maxinteger))) end
  if key == "last_run" then
    local began = value.started and output.time(value.started) .. ", " or ""
    return began .. "ended" .. run_place(value, value.seconds)
  end
  if key == "after" then return some_ids(value) end
  if key == "tags" then return output.safe(table.concat(value, ", ")) end
  return (output.safe(value):gsub("\n", "\n" .. (" "):rep(14)))
end

--- Lines that a run has logged or printed; the last ends with a newline, or does not.
local function tell_lines(line, title, text)
  line(title .. ":\n    " .. (output.safe(text):gsub("\n$", ""):gsub("\n", "\n    ")))
end

local function tell_attempt(line, attempt)
  line(("\nrun %d %s at %s%s"):format(attempt.run, attempt.kind, output.time(attempt.ended),
    run_place(attempt, attempt.started and attempt.ended - attempt.started)))
  if attempt.error then line("  " .. (output.safe(attempt.error):gsub("\n", "\n  "))) end
  if attempt.log then tell_lines(line, "  log", attempt.log) end
end

--- Everything about a job: as db:job, with its tree, failed attempts, what other runs have printed,
-- and jobs that wait for it.
---@param db nightshift.Db
---@param id integer
---@return table|nil
---@return string? message
---@return string? code
function jobs.facts(db, id)
  local info, message, code = db:job(id)
  if not info then return nil, message, code end
  info.children, message, code = db:children(id)
  if not info.children then return nil, message, code end
  if not info.children.estimated then
    info.tree, message, code = db:progress(id)
    if not info.tree then return nil, message, code end
  end
  info.failures, message, code = report().attempts(db._handle, id)
  if not info.failures then return nil, message, code end
  core.array(info.failures)
  local outputs
  outputs, message, code = report().outputs(db._handle, id)
  if not outputs then return nil, message, code end
  info.outputs = core.array {}
  for _, run in ipairs(outputs) do
    if not info.finished_at or run.run ~= info.run then table.insert(info.outputs, run) end
  end
  info.waiters, message, code = report().waiters(db._handle, id, 20)
  if not info.waiters then return nil, message, code end
  return info
end

--- Tells these facts as text, made safe for terminals.
---@param info table
---@param line fun(text: string) called for each line, or some of them
---@param first string[]? keys of facts that stand before the others
function jobs.tell(info, line, first)
  local told = {}
  for _, keys in ipairs { first or {}, LINES } do
    for _, key in ipairs(keys) do
      local value = info[key]
      if value ~= nil and not told[key] and not (key == "phase" and value == 0) then
        told[key] = true
        line(("%-13s %s"):format(key, shown(key, value)))
      end
    end
  end
  if info.children.estimated then line(("%-13s %s"):format("children", tree.progress(info.children))) end
  if info.tree and info.tree.total > 1 then line(("%-13s %s"):format("tree", tree.progress(info.tree))) end
  if #info.waiters > 0 then line(("%-13s %s"):format("waited for by", table.concat(info.waiters, " "))) end
  for _, attempt in ipairs(info.failures) do tell_attempt(line, attempt) end
  for _, run in ipairs(info.outputs) do
    line(("\nrun %d, until %s"):format(run.run, output.time(run.ended)))
    tell_lines(line, "  output", run.log)
  end
  local last = info.failures[#info.failures]
  if info.output and not (last and last.run == info.run) then tell_lines(line, "\noutput", info.output) end
end

function commands.show(args)
  local db <close> = context.connect(args)
  if args.tree then return tree.show(db, args) end
  local info = context.must(jobs.facts(db, args.id))
  if args.json then return output.json(info) end
  jobs.tell(info, output.line)
end

function commands.why(args)
  local db <close> = context.connect(args)
  local text, fact = context.must(db:why(args.id))
  if not args.json then return output.line(output.safe(text)) end
  fact.text = text
  output.json(fact)
end

--- The verb on ids named one by one: every failure is told. `more` gives what is said besides of
-- one that it was done to.
local function each_id(args, done, verb, more)
  local told = output.outcomes(args)
  for _, id in ipairs(args.id) do
    local ok, message, code = verb(id)
    if ok then
      told.done({ id = id }, ("%d %s%s"):format(id, done, more and more(id) or ""))
    else
      told.failed({ id = id }, tostring(id), message, code)
    end
  end
  return told.finish()
end

local NAMES = "--state, --queue, --name, --tag, --group, --error, --since, --parent"

--- The conditions of `args`; nil: there are none.
local function filter_of(args)
  local given = conditions(args)
  return next(given) ~= nil and given or nil
end

--- Says that a filter has found nothing, and that its queue or name may be mistyped.
local function found_none(db, args, queue)
  if args.json then output.json { found = 0, changed = 0, refused = 0 } else output.line "no such jobs" end
  context.suggest(db, queue, args.name)
end

--- The verb on all jobs of a filter; a terminal is told how far it is.
local function run_told(db, name, checked)
  local progress = output.progress("jobs")
  if progress.active then
    progress = output.progress("jobs", context.must(many().count(db._handle, name, checked)))
  end
  checked.told = progress.show
  local counts, message, code = many().run(db._handle, name, checked)
  progress.finish()
  return counts, message, code
end

--- A verb on the jobs of a filter, once their number has been seen. `what`: of update.
local function on_filter(db, args, name, given, done, what)
  given.rate = args.rate
  local checked = context.must(many().read(name, given))
  checked.change = what
  if not args.yes then
    local n = context.must(many().count(db._handle, name, checked))
    if n == 0 then return found_none(db, args, given.queue) end
    context.fail(context.USAGE, "%s would be %s; add --yes to do it", output.count(n, "job"), done)
  end
  local counts = context.must(run_told(db, name, checked))
  if counts.found == 0 then return found_none(db, args, given.queue) end
  if args.json then
    output.json { found = counts.found, changed = counts.changed, refused = counts.refused }
  else
    output.line(("%s %s"):format(output.count(counts.changed, "job"), done))
  end
  if counts.refused == 0 then return 0 end
  context.complain("%s as before: another live job has the unique key", output.count(counts.refused, "job"))
  return context.FAILURE
end

local function on_jobs(args, name, done, make_verb, make_more)
  local given = filter_of(args)
  if (#args.id > 0) == (given ~= nil) then
    context.fail(context.USAGE, "give either job ids or a filter (%s)", NAMES)
  end
  if given and args.tree then context.fail(context.USAGE, "--tree wants job ids, not a filter") end
  if args.rate and not given then context.fail(context.USAGE, "--rate wants a filter") end
  local db <close> = context.connect(args)
  if given then
    given.reason, given.priority = args.reason, args.values and args.values[1]
    return on_filter(db, args, name, given, done)
  end
  local verb = make_verb(db)
  if args.tree then return tree.each(db, args, done, verb) end
  return each_id(args, done, verb, make_more and not args.json and make_more(db))
end

function commands.retry(args)
  if adopt.wanted(args, {}, { "state", "queue", "name", "tag", "group", "error", "since", "parent", "rate",
    "tree" }) then
    return adopt.retry(args)
  end
  local was_done = {}
  return on_jobs(args, "retry", "retried", function(db)
    return function(id)
      local before = #args.id > 0 and not args.tree and db:job(id)
      was_done[id] = before and before.state == "done"
      return db:retry(id, { tree = args.tree })
    end
  end, function()
    return function(id) return was_done[id] and "; it had been done" end
  end)
end

function commands.cancel(args)
  if args.reason then context.checked(options.text, args.reason, "--reason") end
  return on_jobs(args, "cancel", "cancelled", function(db)
    return function(id) return db:cancel(id, { reason = args.reason, tree = args.tree }) end
  end, function(db)
    return function(id)
      local live = context.must(tree.live_children(db, id))
      if live > 0 then
        return ("; %s below it %s on (--tree)"):format(output.count(live, "job"), live == 1 and "goes" or "go")
      end
    end
  end)
end

function commands.delete(args)
  return on_jobs(args, "delete", "deleted", function(db)
    return function(id) return db:delete(id, { tree = args.tree }) end
  end)
end

--- The values that are to be different. Without ids a queue, a tag and a group are conditions.
local function change_of(args)
  local given, by_id = {}, #args.id > 0
  for _, key in ipairs { "queue", "priority", "due", "max_attempts" } do
    if key ~= "queue" or by_id then given[key] = args[key] end
    if given[key] then context.checked(options.UPDATE[key], args[key], "--" .. key:gsub("_", "-")) end
  end
  if given.queue then context.check_name("queue name", args.queue, options.MAX_QUEUE) end
  if by_id and #args.tag > 0 then
    given.tags = #args.tag == 1 and args.tag[1] == "" and {} or args.tag
    context.checked(options.UPDATE.tags, given.tags, "--tag")
  end
  if by_id and args.group then
    given.group = args.group ~= "" and args.group
    context.checked(options.UPDATE.group, given.group, "--group")
  end
  if args.payload then given.payload = context.json(args.payload, "the payload") end
  if args.set then
    given.set = context.json(args.set, "--set")
    if args.payload then context.fail(context.USAGE, "give either --payload or --set") end
    if not change().is_object(given.set) then context.fail(context.USAGE, "--set wants an object of JSON") end
  end
  if next(given) == nil then context.fail(context.USAGE, "say what to change: --payload, --set, --priority, …") end
  return given
end

function commands.update(args)
  local what, tags = change_of(args), args.tag
  if #args.id > 0 then
    args.queue, args.tag, args.group = nil, nil, nil
    if filter_of(args) then context.fail(context.USAGE, "give either job ids or a filter (%s)", NAMES) end
    if args.rate or args.retry then context.fail(context.USAGE, "--rate and --retry want a filter") end
    local db <close> = context.connect(args)
    return each_id(args, "changed", function(id) return db:update(id, what) end)
  end
  if #tags > 1 then context.fail(context.USAGE, "a filter has one --tag") end
  args.tag = tags[1]
  local given = filter_of(args)
  if not given then context.fail(context.USAGE, "give either job ids or a filter (%s)", NAMES) end
  if args.retry and given.state ~= "dead" and given.state ~= "cancelled" then
    context.fail(context.USAGE, "--retry wants --state dead or cancelled")
  end
  given.retry = args.retry
  local values, make = change().read(what)
  if not values then context.fail(context.USAGE, "%s", make) end
  local db <close> = context.connect(args)
  return on_filter(db, args, "update", given, args.retry and "changed and retried" or "changed",
    { values = values, make = make })
end

function commands.wait(args)
  context.checked(options.duration, args.timeout, "--timeout")
  local db <close> = context.connect(args)
  local ends = context.must(db:wait_all(args.id, args.timeout))
  local exit = 0
  for _, row in ipairs(ends) do
    if row.outcome ~= "done" then exit = context.FAILURE end
    local more = row.outcome == "done" and row.result ~= nil and core.encode(row.result, math.maxinteger)
      or row.error or row.reason
    if not args.json then
      output.line(("%d %s%s"):format(row.id, row.outcome, more and " " .. output.one_line(more, 1000) or ""))
    end
  end
  if args.json then output.json(core.array(ends)) end
  return exit
end

commands["run-now"] = function(args)
  args.yes = args.yes or args.tree
  return on_jobs(args, "run_now", filter_of(args) and "made ready" or args.tree and "ready" or "is ready", function(db)
    return function(id) return db:run_now(id, { tree = args.tree }) end
  end)
end

function commands.reprioritise(args)
  local priority = args.values[#args.values]
  context.checked(options.integer(0, 255), priority, "the priority")
  local first = #args.values == 2 and context.checked(options.integer(1, math.maxinteger), args.values[1], "the id")
  args.id = { first or nil }
  args.yes = args.yes or args.tree
  return on_jobs(args, "reprioritise", ("with priority %d"):format(priority), function(db)
    return function(id) return db:reprioritise(id, priority, { tree = args.tree }) end
  end)
end

function commands.move(args)
  context.check_name("queue name", args.to, options.MAX_QUEUE)
  local given = filter_of(args)
  if not given then context.fail(context.USAGE, "move wants a filter (%s)", NAMES) end
  given.to = args.to
  local db <close> = context.connect(args)
  return on_filter(db, args, "move", given, "moved")
end

function commands.signal(args)
  if args.name then context.check_name("signal name", args.name, options.MAX_NAME) end
  local value = context.json(args.value, "the value")
  local db <close> = context.connect(args)
  local before = context.must(db:job(args.id)).awaits
  context.must(db:signal(args.id, value, args.name))
  if args.json then return output.json { id = args.id, name = args.name, awaits = before } end
  if not args.name or before == args.name then return output.line(args.id .. " is told") end
  output.line(output.safe(("%d is told '%s', %s"):format(args.id, args.name,
    before and ("but waits for '%s'"):format(before) or "and does not wait for a signal now")))
end

return jobs
