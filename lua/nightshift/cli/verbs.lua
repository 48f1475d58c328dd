--- Commands that change jobs, by id or by a filter: retry, cancel, delete, update, run-now,
-- reprioritise, move, signal, deadline; and wait. With --tree they are for all jobs below as well.
-- adopt.lua has those on rows of adopted tables.

local adopt = require "nightshift.cli.adopt"
local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local jobs = require "nightshift.cli.jobs"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"

-- Loaded by the few commands that need them.
local change = options.later(function() return require "nightshift.change" end)
local filters = options.later(function() return require "nightshift.filter" end)

local verbs = { commands = {} }
local commands = verbs.commands

local LIVE = { "running", "ready", "scheduled", "waiting" }
local CHANGED = { "scheduled", "ready", "waiting", "dead", "cancelled" }
local IDLE = { "scheduled", "ready", "waiting", "done", "dead", "cancelled" }

local function number(text)
  local n = tonumber(text)
  if n then return n end
  return nil, ("'%s' is not a number"):format(text)
end

local function define_tree(command) command:flag("--tree", "With all below it.") end

local function define_json(command) command:flag("--json", "Print JSON.") end

local function define_pace(command)
  command:option("--rate", "With a filter: so many jobs a second."):convert(number)
  command:flag("--yes", "Do it; without this a filter, or --tree, only shows the number.")
  define_json(command)
end

--- Options of a verb that takes a filter.
local function define_filter(command)
  jobs.define_conditions(command)
  define_pace(command)
end

--- Adds the commands to the parser.
function verbs.define(parser)
  local retry = parser:command("retry", "Run ended jobs again, done ones too, with fresh budgets and the "
    .. "same payload; update changes that.")
  retry:argument("id", "Job ids. Default: those of a filter."):args("*"):convert(context.id)
  retry:option("--state", "All in this state. Default: dead."):choices { "dead", "cancelled", "done" }
  define_filter(retry)
  adopt.define_retry(retry)
  define_tree(retry)
  local cancel = parser:command("cancel", "End live jobs.")
  cancel:argument("id", "Job ids. Default: those of a filter."):args("*"):convert(context.id)
  cancel:option("--state", "All in this state. Default: all live ones."):choices(LIVE)
  cancel:option("--reason", "Kept with the job. Default: cancelled."):argname "TEXT"
  define_filter(cancel)
  define_tree(cancel)
  local delete = parser:command("delete", "Delete jobs that do not run, with payload, result, errors, log and signals. "
    .. "Live ones end first, as cancelled.")
  delete:argument("id", "Job ids. Default: those of a filter."):args("*"):convert(context.id)
  delete:option("--state", "All in this state. Default: done, dead and cancelled."):choices(IDLE)
  define_filter(delete)
  define_tree(delete)
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
  jobs.define_more_conditions(update)
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
  define_tree(run_now)
  local reprioritise = parser:command("reprioritise", "Give live jobs another priority: a job, or those of a filter.")
  reprioritise:argument("values", "A job's id, then the priority: 0 to 255, higher first. With a filter the priority "
    .. "alone."):args("1-2"):convert(context.integer)
  reprioritise:option("--state", "All in this state. Default: all live ones."):choices(LIVE)
  define_filter(reprioritise)
  define_tree(reprioritise)
  local move = parser:command("move", "Move the jobs of a filter to another queue; jobs that run stay.")
  move:argument("to", "Queue name.")
  move:option("--state", "All in this state. Default: scheduled, ready and waiting."):choices(IDLE)
  define_filter(move)
  local signal = parser:command("signal", "Send a value to a job that waits for a signal, or will.")
  signal:argument("id", "Job id."):convert(context.id)
  signal:argument("value", 'The value, JSON; "-" reads it from stdin.'):default "null"
  define_json(signal)
  signal:option("--name", "Of the signal. Default: whichever the job waits for.")
  local deadline = parser:command("deadline", "Say until when a live job may be started.")
  deadline:argument("id", "Job id."):convert(context.id)
  deadline:argument("time", 'From now: seconds, a text like "2h", or "never".')
  define_tree(deadline)
  define_json(deadline)
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
  local given = jobs.conditions(args)
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
    progress = output.progress("jobs", context.must(filters().count(db._handle, name, checked)))
  end
  checked.told = progress.show
  local counts, message, code = filters().run(db._handle, name, checked)
  progress.finish()
  return counts, message, code
end

--- A verb on the jobs of a filter, once their number has been seen. `what`: of update.
local function on_filter(db, args, name, given, done, what)
  given.rate = args.rate
  local checked = context.must(filters().read(name, given))
  checked.change = what
  if not args.yes then
    local n = context.must(filters().count(db._handle, name, checked))
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

--- How many jobs a verb would touch, as far as one can tell beforehand.
local COUNTED = {
  cancelled = function(p) return p.total - p.done - p.dead - p.cancelled end,
  retried = function(p) return p.dead + p.cancelled end,
  deleted = function(p) return p.total end,
}

--- On the trees of args.id. `done` is the word for the jobs, "cancelled"; `verb` gets an id and
-- gives how many there were. A verb that cannot be undone wants --yes.
local function each_tree(db, args, done, verb)
  local ids, told = args.id, output.outcomes(args)
  if COUNTED[done] and not args.yes then
    local sum = 0
    for _, id in ipairs(ids) do sum = sum + COUNTED[done](context.must(db:progress(id))) end
    context.fail(context.USAGE, "%s would be %s; add --yes to do it", output.count(sum, "job"), done)
  end
  for _, id in ipairs(ids) do
    local n, message, code = verb(id)
    if n then
      told.done({ id = id, jobs = n }, ("%d: %s %s"):format(id, output.count(n, "job"), done))
    else
      told.failed({ id = id }, tostring(id), message, code)
    end
  end
  return told.finish()
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
  if args.tree then return each_tree(db, args, done, verb) end
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

--- How many children of a job live.
---@return integer|nil
---@return string? message
---@return string? code
local function live_children(db, id)
  local counts, message, code = db:children(id)
  if not counts then return nil, message, code end
  local live = 0
  for _, state in ipairs(LIVE) do live = live + (counts[state] or 0) end
  return live
end

function commands.cancel(args)
  if args.reason then context.checked(options.text, args.reason, "--reason") end
  return on_jobs(args, "cancel", "cancelled", function(db)
    return function(id) return db:cancel(id, { reason = args.reason, tree = args.tree }) end
  end, function(db)
    return function(id)
      local live = context.must(live_children(db, id))
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

function commands.deadline(args)
  local time = args.time
  if time == "never" then time = false else context.checked(options.duration, time, "the time") end
  local done = time and "with a deadline in " .. time or "without a deadline"
  local db <close> = context.connect(args)
  if args.tree then
    return each_tree(db, { id = { args.id }, json = args.json }, done, function(id)
      return db:deadline(id, time, { tree = true })
    end)
  end
  context.must(db:deadline(args.id, time))
  local told = output.outcomes(args)
  told.done({ id = args.id }, ("%d %s"):format(args.id, done))
  return told.finish()
end

return verbs
