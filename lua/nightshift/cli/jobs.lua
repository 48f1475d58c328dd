--- Commands that look at jobs: jobs, errors, show, also at all below one as a tree, and why. And
-- the conditions of jobs, which verbs.lua has as well.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local filter = require "nightshift.filter"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local units = require "nightshift.units"

-- Loaded by the few commands that need them.
local report = options.later(function() return require "nightshift.report" end)
local listings = options.later(function() return require "nightshift.report.jobs" end)

local jobs = { commands = {} }
local commands = jobs.commands

local STATES = { "scheduled", "ready", "running", "waiting", "done", "dead", "cancelled" }

--- Adds the options of rarer conditions.
function jobs.define_more_conditions(command)
  command:option("--name", "Only of this job name.")
  command:option("--error", "Only of this error: the whole text, its first line, or its kind.")
  command:option("--since", 'Only jobs that ended since, or live ones pushed since: "2h" ago, or 2026-11-26T06:00:00Z.')
  command:option("--parent", "Only children of this job."):convert(context.id)
end

--- Adds the conditions of a filter but for --state, which differs.
function jobs.define_conditions(command)
  command:option("--queue", "Only of this queue.")
  jobs.define_more_conditions(command)
  command:option("--tag", "Only with this tag.")
  command:option("--group", "Only of this group.")
end

--- Adds the commands to the parser.
function jobs.define(parser)
  local list = parser:command("jobs", "List jobs: of all states by id, roughly the newest first, "
    .. "for each program takes ids in blocks; of one state in its own order.")
  list:option("--state", "Only in this state."):choices(STATES)
  jobs.define_conditions(list)
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
function jobs.conditions(args)
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
  local given = jobs.conditions(args)
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

-- ------------------------------------------------------------------------ trees

local thousands = output.thousands

-- In the order of a person's interest.
local INTEREST = { "done", "running", "ready", "scheduled", "waiting", "dead", "cancelled", "gone" }

--- "9,980 done, 10 ready"
local function by_state(counts, without)
  local parts = {}
  for _, state in ipairs(INTEREST) do
    if counts[state] and counts[state] > 0 and state ~= without then
      parts[#parts + 1] = thousands(counts[state]) .. " " .. state
    end
  end
  return table.concat(parts, ", ")
end

--- "7 of 12 done, 3 running, 2 waiting"; "about 88,000 of 100,000+ done": of a sample, and of more.
local function progress_text(counts)
  local rest = by_state(counts, "done")
  return ("%s%s of %s%s done%s"):format(counts.estimated and "about " or "", thousands(counts.done or 0),
    thousands(counts.total), counts.more and "+" or "", rest ~= "" and ", " .. rest or "")
end

-- Is our output read as UTF-8? The locale's variables in their order.
local function is_utf8()
  for _, name in ipairs { "LC_ALL", "LC_CTYPE", "LANG" } do
    local value = os.getenv(name)
    if value and value ~= "" then return value:lower():find "utf%-?8" ~= nil end
  end
  return false
end

local UNICODE = { "├─ ", "└─ ", "│  ", "   ", "…" }
local ASCII = { "|- ", "`- ", "|  ", "   ", "..." }

--- Why it ended as it did; of a live job the last error, which it is tried again after.
local function reason_of(node)
  local text = node.error and output.one_line(node.error, 80)
  if not text or not node.attempts then
    return node.reason and text and node.reason .. ": " .. text or node.reason or text
  elseif node.attempts == 0 then
    return "after: " .. text
  end
  return ("attempt %d of %d, after: %s"):format(node.attempts + 1, node.max_attempts, text)
end

local function describe_node(node)
  local text = ("%s %s %d"):format(node.state, output.one_line(node.name or "?", 60), node.id)
  if node.progress then text = text .. (" %d%%"):format(node.progress * 100 // 1) end
  if node.status then text = text .. " " .. output.one_line(node.status, 60) end
  if node.paused then
    text = text .. (node.paused == node.id and ", paused" or (", paused with %d"):format(math.abs(node.paused)))
  end
  local why = reason_of(node)
  return why and text .. ": " .. why or text
end

local function count_all(counts)
  local sum = 0
  for _, n in pairs(counts) do sum = sum + n end
  return sum
end

local draw

local function draw_children(node, indent, marks)
  local children = node.children or {}
  for i, child in ipairs(children) do
    local last = i == #children and not node.more
    output.line(indent .. marks[last and 2 or 1] .. describe_node(child))
    draw(child, indent .. marks[last and 4 or 3], marks)
  end
  if node.more then
    output.line(("%s%s%s and %s%s more: %s"):format(indent, marks[2], marks[5], node.estimated and "about " or "",
      thousands(count_all(node.more)), by_state(node.more)))
  end
end

function draw(node, indent, marks)
  if node.inner then return output.line(indent .. marks[2] .. marks[5]) end
  draw_children(node, indent, marks)
end

--- For JSON.
local function plain_tree(node)
  node.inner = nil
  if not node.children then return node end
  for _, child in ipairs(node.children) do plain_tree(child) end
  core.array(node.children)
  return node
end

--- Draws the tree below `args.id`.
local function show_tree(db, args)
  context.checked(options.integer(1, 1000000), args.children, "--children")
  local top = context.must(listings().tree(db._handle, args.id, { children = args.children }))
  local counts = context.must(db:children(args.id))
  if not counts.estimated then counts = context.must(db:progress(args.id)) end
  if args.json then
    top = plain_tree(top)
    top.counts = counts
    return output.json(top)
  end
  output.line(describe_node(top))
  draw(top, "", is_utf8() and UNICODE or ASCII)
  output.line((counts.estimated and "children: " or "") .. progress_text(counts))
end

-- ------------------------------------------------------------------------- a job

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
  if info.children.estimated then line(("%-13s %s"):format("children", progress_text(info.children))) end
  if info.tree and info.tree.total > 1 then line(("%-13s %s"):format("tree", progress_text(info.tree))) end
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
  if args.tree then return show_tree(db, args) end
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

return jobs
