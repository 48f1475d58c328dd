--- Command run: one handler inline, in this process, for debugging.
--
-- A handler gets the same things as under a host. A wait for children runs them, one after the
-- other, and then the next phase with their results. The poll of a background handler is run
-- until it has ended, with its pauses. Nothing is retried: a child that fails is dead.
--
-- The queue is not touched: the job is made up here, and its verdicts are printed. The jobs
-- that it waits for are run here, too. `job:db()` opens the real database.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local handlers = require "nightshift.handlers"
local job = require "nightshift.job"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local units = require "nightshift.units"

local run = { commands = {} }

-- ------------------------------------------------------- driving a job

local PHASES = 100 -- as of a push
local BACKOFF = 5  -- seconds

---@class nightshift.Task a job that never was in a queue; payload, state, signal are JSON
---@field id integer
---@field name string
---@field json string payload
---@field state string?
---@field signal string?
---@field phase integer
---@field polls integer
---@field attempt integer
---@field max_polls integer?
---@field deadline integer? µs, an instant
---@field due integer? the same
---@field results table[] rows as of the statement edge_results
---@field given boolean? results: children are not run
---@field after integer[]? jobs that it was spawned to wait for

local function tell(format, ...)
  io.stderr:write(output.safe(format:format(...)), "\n")
end

-- This machine's time of day, which here never goes back.
local SINCE_1970 <const> = os.time() - core.clock()

local function now() return (SINCE_1970 + core.clock()) * 1000000 // 1 | 0 end

local function value_of(text)
  local value = text and core.decode(text)
  if value == core.null then return nil end
  return value
end

local function as_json(value, what)
  local text, message = core.encode(value, nil, what)
  if not text then context.fail(context.FAILURE, "%s", message) end
  return text
end

--- The fields of a claimed job; new tables for each run.
local function fields_of(task)
  return {
    id = task.id, run = 1 + task.phase + task.polls, lease = 0, queue = "run", name = task.name,
    key = ("%d-run"):format(task.id), payload = value_of(task.json), state = value_of(task.state),
    signal = task.signal and core.decode(task.signal), phase = task.phase, attempts = task.attempt - 1,
    polls = task.polls, crashes = 0, max_attempts = 10, max_polls = task.max_polls, priority = 100,
    created = units.seconds(task.created), due = units.seconds(task.due), deadline = units.seconds(task.deadline),
    timeout = 3600.0, _follows = task.after and true,
  }
end

-- Where the handler's part of a traceback ends.
local OUR_FRAMES = "\n%s*%[C%]: in function 'xpcall'\n[^\n]*nightshift/cli/run%.lua.*$"

local function traceback(err)
  if job.raised(err) then return err end
  return (job.traceback(err, 2):gsub(OUR_FRAMES, ""))
end

local function ids_of(ids)
  local rows = {}
  for i, id in ipairs(ids) do rows[i] = { id = id } end
  return rows
end

--- The outcomes of jobs that ran before, as rows of the statement edge_followed.
local function ends_of(self, ids)
  local rows = {}
  for i, id in ipairs(ids) do rows[i] = self.ended[id] or { id = id, outcome = "gone" } end
  return rows
end

--- Records verdicts and tells the rest on stderr.
local function backend_of(self)
  local backend = {}
  function backend.settle(_, verdict)
    self.verdict = verdict
    return true
  end
  -- tx:ack: there is no row to change, so the verdict counts once its transaction is committed
  function backend.committed(claimed) self.verdict = claimed._verdict end
  function backend.touch() return true end
  function backend.cancelled() return false end
  function backend.progress(_, progress, text)
    tell("progress %d%% %s", progress * 100 // 1, text or "")
    return true
  end
  function backend.checkpoint(claimed, text)
    self.tasks[claimed.id].state = text
    tell("checkpoint %s", text)
    return true
  end
  function backend.log(_, text)
    tell("log %s", text)
    return true
  end
  function backend.take_id()
    self.last_id = self.last_id + 1
    return self.last_id
  end
  function backend.db()
    self.opened = self.opened or context.connect(self.args)
    return self.opened
  end
  function backend.ask(statement, id, size, first)
    if statement == "edge_followed" then return ends_of(self, core.decode(id)) end
    if statement == "edge_after" then return ids_of(self.tasks[id].after) end
    local rows = self.tasks[id].results
    if statement == "edge_count" then return { { n = #rows } } end
    return { table.unpack(rows, first + 1, math.min(#rows, first + size)) }
  end
  return backend
end

--- Makes one run; returns its verdict.
local function run_once(self, task)
  local handler = self.functions[task.name]
  local made = job.new(fields_of(task), self.backend)
  local exit = os.exit
  self.verdict = nil
  function os.exit() error("os.exit called by the handler", 2) end -- luacheck: ignore 122
  local ok, result, message = xpcall(handler, traceback, made)
  os.exit = exit -- luacheck: ignore 122
  local asked = not ok and job.raised(result)
  if asked then return { kind = asked.kind, error = asked.text, delay = asked.delay } end
  if not ok then return { kind = "fail", error = result, raised = true } end
  if self.verdict then return self.verdict end
  if not result and message ~= nil then return { kind = "fail", error = job.error_text(message) } end
  return { kind = "ack", result = result, children = made._children }
end

--- The verdict as one line: its word and its values.
local function verdict_line(verdict)
  if verdict.kind == "ack" then
    return verdict.result == nil and "ack" or "ack " .. as_json(verdict.result, "result")
  elseif verdict.kind == "again" and not verdict.error then
    local after = verdict.delay and " in " .. output.span(verdict.delay) or " after its backoff"
    return "again" .. after .. (verdict.state == nil and "" or " " .. as_json(verdict.state, "state"))
  elseif verdict.kind == "wait" then
    return (verdict.signal and ("wait for the signal '%s'"):format(verdict.signal) or "wait for children")
      .. (verdict.state == nil and "" or " " .. as_json(verdict.state, "state"))
  elseif verdict.kind == "fail" then
    return "fail" .. (verdict.delay and ", retry in " .. output.span(verdict.delay) or "") .. ": " .. verdict.error
  end
  return verdict.kind .. (verdict.error and ": " .. verdict.error or "")
end

local function verdict_row(task, verdict)
  local row = { id = task.id, name = task.name, verdict = verdict.kind, delay = verdict.delay, signal = verdict.signal,
    error = verdict.error, result = verdict.result, kept = verdict.state }
  for i, child in ipairs(verdict.children or {}) do
    row.children = row.children or core.array {}
    row.children[i] = { id = child.id, name = child.name, payload = core.decode(child.json) }
  end
  return row
end

local function show(self, task, verdict)
  if self.args.json then return output.json(verdict_row(task, verdict)) end
  local whose = task == self.top and "" or ("%s %d: "):format(task.name, task.id)
  if verdict.raised then
    if task ~= self.top then tell("%s raised: %s", task.name, verdict.error) end
    return
  end
  output.line(whose .. output.safe(verdict_line(verdict)))
  for _, child in ipairs(verdict.children or {}) do
    output.line(("%sspawn %d %s %s"):format(whose, child.id, child.name, output.safe(child.json)))
  end
end

local function dead(reason, err) return { outcome = "dead", reason = reason, error = err } end

local finish

--- A child of a run, driven to its end; as a row of its parent's results.
local function finish_child(self, entry)
  if not self.functions[entry.name] then
    context.fail(context.FAILURE, "no handler for the child '%s' here; say with --results what it gave", entry.name)
  end
  local started = now()
  local task = {
    id = entry.id, name = entry.name, json = entry.json, phase = 0, polls = 0, attempt = 1, results = {},
    max_polls = entry.max_polls, deadline = entry.deadline and started + entry.deadline,
    created = started, due = started, after = entry.after and core.decode(entry.after),
  }
  local ended = finish(self, task)
  local row = { id = task.id, name = task.name, outcome = ended.outcome, result = ended.result, reason = ended.reason,
    error = ended.error }
  self.ended[task.id] = row
  return row
end

--- The next poll, after its pause; or the end.
local function poll_again(task, verdict)
  local at = now()
  local late = task.deadline and at >= task.deadline and not verdict.go_on
  if verdict.error or late or (task.max_polls and task.polls >= task.max_polls) then
    return dead("poll deadline", verdict.error)
  end
  task.polls, task.due = task.polls + 1, at + (verdict.delay or BACKOFF) * 1000000 // 1 | 0
  if task.deadline and task.due > task.deadline then task.due = math.max(at, task.deadline) end
  core.sleep((task.due - at) / 1000000)
end

--- Begins the next phase when the wait is over; or it goes on, or the job is dead.
local function next_phase(self, task, verdict)
  if task.phase >= PHASES then return dead("too many phases", "it has waited 100 times") end
  if verdict.signal then
    if not self.signal then return { outcome = "waiting" } end
    task.signal, self.signal = self.signal, nil
  else
    task.signal = nil
    for _, child in ipairs(not task.given and verdict.children or {}) do
      local row = finish_child(self, child)
      table.insert(task.results, row)
      if row.outcome ~= "done" and verdict.go_on ~= 1 then return dead("child failed", row.error) end
    end
  end
  task.phase = task.phase + 1
end

--- The poll that a background handler has started.
local function finish_poll(self, task, verdict)
  for _, child in ipairs(verdict.children or {}) do
    if child.name == task.name .. ":poll" and self.functions[child.name] then return finish_child(self, child) end
  end
end

--- Runs a task until it has ended, or waits for something that does not come here.
---@return table outcome, and result (JSON), reason, error
function finish(self, task)
  self.tasks[task.id] = task
  while true do
    local verdict = run_once(self, task)
    local over
    show(self, task, verdict)
    if verdict.state ~= nil then task.state = as_json(verdict.state, "state") end
    if verdict.kind == "ack" then
      local poll = finish_poll(self, task, verdict)
      over = poll or { outcome = "done", result = verdict.result ~= nil and as_json(verdict.result, "result") or nil }
    elseif verdict.kind == "wait" then
      over = next_phase(self, task, verdict)
    elseif verdict.kind == "again" and (task ~= self.top or verdict.error) then
      over = poll_again(task, verdict)
    elseif verdict.kind == "again" or verdict.kind == "release" then
      over = { outcome = task == self.top and "released" or "dead", error = "given back" }
    else
      over = dead(verdict.kind == "fail" and "failed" or "discarded", verdict.error)
      over.raised = verdict.raised
    end
    if over then return over end
  end
end

--- Drives the job of the command; gives how it ended.
---@param args table of the command: connection
---@param functions table<string, function> handlers by name
---@param task nightshift.Task
---@param signal string? JSON, for its first wait
---@return table outcome, reason, error, raised
local function drive(args, functions, task, signal)
  local self = { args = args, functions = functions, top = task, signal = signal, tasks = {}, ended = {},
    last_id = task.id }
  self.backend = backend_of(self)
  local ended = finish(self, task)
  if self.opened then self.opened:close() end
  return ended
end

-- --------------------------------------------------------------- the command

--- Adds the command to the parser.
function run.define(parser)
  local command = parser:command("run", "Run one handler inline and print its verdicts; no queue is touched. "
    .. "What it waits for is run too: children, and the polls of a background handler. "
    .. "It runs in this process: timeout and memory limits of the handler are not applied.")
  command:argument("FILE NAME JSON", 'Handler file, or folder of them; name of the job; its payload, JSON; "-" reads '
    .. "stdin. Default of the payload: null."):target "words":args "1-3":argname { "FILE", "NAME", "JSON" }
  command:option("--script", "In the place of FILE: handler file, or folder; more than once. Default: FILE alone.")
    :count("*"):argname "FILE"
  command:option("--state", "What an earlier poll or wait kept, JSON. Default: none."):argname "JSON"
  command:option("--phase", "How often it has waited before.", "0"):argname "N":convert(context.integer)
  command:option("--results",
    'What became of its children, JSON: [{"result": 5}, {"outcome": "dead", "error": "why"}]; they are not run then. '
    .. "Default: they are run here."):argname "JSON"
  command:option("--signal", "What it is sent: to its wait for a signal, or, with --phase, to this run; JSON. "
    .. "Default: it is not sent."):argname "JSON"
  command:flag("--json", "Print JSON: a line for each verdict, and one for the end of the job.")
  command:option("--polls", "How many polls there were.", "0"):argname "N":convert(context.integer)
  command:option("--attempt", "Which attempt this is.", "1"):argname "N":convert(context.integer)
end

local COUNT, ATTEMPT = options.integer(0, 1000000000), options.integer(1, 1000000)

local CHILD = {
  id = options.integer(1, math.maxinteger), name = options.typed "string",
  outcome = options.one_of("done", "dead", "cancelled"),
  reason = options.typed "string", error = options.typed "string", result = function(value) return value end,
}

local function json_text(value) return (core.encode(value, nil, "result")) end

--- The value of --results, as rows of the statement edge_results.
local function results_of(text)
  if not text then return {} end
  local list, rows = context.json(text, "--results"), {}
  if type(list) ~= "table" or (#list == 0 and next(list) ~= nil) then
    context.fail(context.USAGE, "--results: a JSON array of objects is expected")
  end
  for i, child in ipairs(list) do
    local ok, given, message = pcall(options.read, ("--results: child %d"):format(i), child, CHILD)
    if not ok or not given then context.fail(context.USAGE, "%s", tostring(ok and message or given)) end
    given.id, given.name, given.outcome = given.id or 1 + i, given.name or "child", given.outcome or "done"
    given.result = given.result ~= nil and json_text(given.result) or nil
    rows[i] = given
  end
  return rows
end

--- A job that never was in a queue.
local function made_up(args)
  context.checked(COUNT, args.polls, "--polls")
  context.checked(COUNT, args.phase, "--phase")
  context.checked(ATTEMPT, args.attempt, "--attempt")
  local function json(text, what) return text and json_text(context.json(text, what)) end
  return {
    id = 1, name = args.name, json = json(args.payload, "the payload"), state = json(args.state, "--state"),
    signal = args.phase > 0 and json(args.signal, "--signal") or nil, phase = args.phase, polls = args.polls,
    attempt = args.attempt, results = results_of(args.results), given = args.results ~= nil,
  }
end

local function find_handlers(args)
  local set, message = handlers.load(args.script)
  if not set then context.fail(context.CONFIG, "%s", message) end
  if set.functions[args.name] then return set.functions end
  local near = options.nearest(args.name, set.functions)
  context.fail(context.FAILURE, "%s%s", handlers.unknown(args.name, set.names),
    near and ("; did you mean '%s'?"):format(near) or "")
end

--- FILE, NAME and JSON apart; with --script the first word is NAME.
local function sort_out(args)
  local words = args.words
  local at = #args.script > 0 and 1 or 2
  if not words[at] then
    context.fail(context.USAGE, "run wants FILE NAME [JSON]; it got '%s' alone", options.shown(words[1]))
  elseif words[at + 2] then
    context.fail(context.USAGE, "with --script run wants NAME [JSON] alone")
  end
  if at == 2 then args.script = { words[1] } end
  args.name, args.payload = words[at], words[at + 1] or "null"
end

function run.commands.run(args)
  sort_out(args)
  local task = made_up(args)
  local signal = args.signal and args.phase == 0 and json_text(context.json(args.signal, "--signal")) or nil
  local ended = drive(args, find_handlers(args), task, signal)
  if ended.raised then context.fail(context.FAILURE, "%s raised: %s", args.name, output.safe(ended.error)) end
  if args.json then
    output.json { id = task.id, name = task.name, outcome = ended.outcome, reason = ended.reason, error = ended.error,
      result = ended.result and core.decode(ended.result) }
  elseif ended.outcome == "waiting" then
    output.line(("waiting; go on with --phase %d --signal JSON%s"):format(task.phase + 1,
      task.state and " --state " .. output.safe(task.state) or ""))
  end
  if ended.outcome ~= "dead" then return 0 end
  if not args.json and ended.reason ~= "failed" and ended.reason ~= "discarded" then
    output.line("dead: " .. ended.reason .. (ended.error and ": " .. output.safe(ended.error) or ""))
  end
  return context.FAILURE
end

return run
