--- What `nightshift run` drives a job with: no queue, one process, one job at a time.
--
-- A handler gets what a host would give it. A wait for children runs those, one after the
-- other, and then the next phase with their results; the poll of a background handler is
-- run until it has ended, with its pauses. Nothing is retried: a child that fails is dead.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local job = require "nightshift.job"
local output = require "nightshift.cli.output"

local drive = {}

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

local function now() return core.clock() * 1000000 // 1 | 0 end

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
    created = task.created, due = task.due, deadline = task.deadline, timeout = 3600000000,
    _follows = task.after and true,
  }
end

-- Where the handler's part of a traceback ends.
local OUR_FRAMES = "\n%s*%[C%]: in function 'xpcall'\n[^\n]*nightshift/cli/drive%.lua.*$"

local function traceback(err)
  return (job.traceback(err, 2):gsub(OUR_FRAMES, ""))
end

local function ids_of(ids)
  local rows = {}
  for i, id in ipairs(ids) do rows[i] = { id = id } end
  return rows
end

--- What became of jobs that ran before, as rows of the statement edge_followed.
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
  function backend.touch() return true end
  function backend.cancelled() return false end
  function backend.progress(_, progress, text)
    tell("progress %d%% %s", progress * 100 // 1, text or "")
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

--- One run: its verdict.
local function run_once(self, task)
  local handler = self.functions[task.name]
  local made = job.new(fields_of(task), self.backend)
  local exit = os.exit
  self.verdict = nil
  function os.exit() error("os.exit called by the handler", 2) end -- luacheck: ignore 122
  local ok, result, message = xpcall(handler, traceback, made)
  os.exit = exit -- luacheck: ignore 122
  if not ok then return { kind = "fail", error = result, raised = true } end
  if self.verdict then return self.verdict end
  if result == nil and message ~= nil then return { kind = "fail", error = job.error_text(message) } end
  return { kind = "ack", result = result, children = made._children }
end

--- The verdict as one line: its word and what goes with it.
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

local function show(self, task, verdict)
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

--- What a wait was for has come: the next phase begins; or it has not, or the job is dead.
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

--- Runs a task until it has ended, or waits for what does not come here.
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
function drive.run(args, functions, task, signal)
  local self = { args = args, functions = functions, top = task, signal = signal, tasks = {}, ended = {},
    last_id = task.id }
  self.backend = backend_of(self)
  local ended = finish(self, task)
  if self.opened then self.opened:close() end
  return ended
end

return drive
