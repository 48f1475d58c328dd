--- Command run: one handler inline, in this process, for debugging.
--
-- The queue is not touched: the job is made up here, its verdict is printed,
-- and its children go nowhere. `job:db()` opens the real database.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local handlers = require "nightshift.handlers"
local job = require "nightshift.job"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"

local run = { commands = {} }

--- Adds the command to the parser.
function run.define(parser)
  local command = parser:command("run", "Run one handler inline and print its verdict; no queue is touched. "
    .. "It runs in this process: timeout and memory limits of the handler are not applied.")
  command:argument("name", "Name of the job.")
  command:argument("json", 'Payload, JSON; "-" reads it from stdin.'):default "null"
  command:option("--script", "Handler file, or folder of them."):count("+"):argname "FILE"
  command:option("--state", "What an earlier poll kept, JSON.")
  command:option("--polls", "How many polls there were.", "0"):convert(context.integer)
  command:option("--attempt", "Which attempt this is.", "1"):convert(context.integer)
end

local POLLS, ATTEMPT = options.integer(0, 1000000000), options.integer(1, 1000000)

--- Fields of a job that never was in a queue.
local function made_up(args)
  context.checked(POLLS, args.polls, "--polls")
  context.checked(ATTEMPT, args.attempt, "--attempt")
  local payload = context.json(args.json, "the payload")
  if payload == core.null then payload = nil end
  return {
    id = 1, run = 1, lease = 0, queue = "run", name = args.name, key = "1-run",
    payload = payload,
    state = args.state and context.json(args.state, "--state"),
    attempts = args.attempt - 1, polls = args.polls, crashes = 0, max_attempts = 10, priority = 100,
  }
end

local function tell(format, ...)
  io.stderr:write(output.safe(format:format(...)), "\n")
end

--- Records the verdict and tells the rest on stderr.
local function backend(args)
  local self, last_id = {}, 1
  function self.settle(_, verdict)
    self.verdict = verdict
    return true
  end
  function self.touch() return true end
  function self.cancelled() return false end
  function self.progress(_, progress, text)
    tell("progress %d%% %s", progress * 100 // 1, text or "")
    return true
  end
  function self.log(_, text)
    tell("log %s", text)
    return true
  end
  function self.take_id()
    last_id = last_id + 1
    return last_id
  end
  function self.db()
    self.opened = self.opened or context.connect(args)
    return self.opened
  end
  return self
end

local function find_handler(args)
  local functions, names = handlers.load(args.script)
  if not functions then context.fail(context.CONFIG, "%s", names) end
  if functions[args.name] then return functions[args.name] end
  local near = options.nearest(args.name, functions)
  context.fail(context.FAILURE, "%s%s", handlers.unknown(args.name, names),
    near and ("; did you mean '%s'?"):format(near) or "")
end

local function as_json(value, what)
  local text, message = core.encode(value, nil, what)
  if not text then context.fail(context.FAILURE, "%s", message) end
  return text
end

--- The verdict as one line: its word and what goes with it.
local function verdict_line(verdict)
  if verdict.kind == "ack" then
    return verdict.result == nil and "ack" or "ack " .. as_json(verdict.result, "result")
  elseif verdict.kind == "again" then
    local after = verdict.delay and " in " .. output.span(verdict.delay) or " after its backoff"
    return "again" .. after .. (verdict.state == nil and "" or " " .. as_json(verdict.state, "state"))
  elseif verdict.kind == "fail" then
    return "fail" .. (verdict.delay and ", retry in " .. output.span(verdict.delay) or "") .. ": " .. verdict.error
  end
  return verdict.kind .. (verdict.error and ": " .. verdict.error or "")
end

local function print_verdict(verdict)
  output.line(output.safe(verdict_line(verdict)))
  if verdict.kind ~= "ack" and verdict.kind ~= "again" then return end
  for _, child in ipairs(verdict.children or {}) do
    output.line(("spawn %d %s %s"):format(child.id, child.name, output.safe(as_json(child.payload, "payload"))))
  end
end

-- Where the handler's part of a traceback ends.
local OUR_FRAMES = "\n%s*%[C%]: in function 'xpcall'\n[^\n]*nightshift/cli/run%.lua.*$"

local function traceback(err)
  return (debug.traceback(job.error_text(err), 2):gsub(OUR_FRAMES, ""))
end

function run.commands.run(args)
  local runner = backend(args)
  local made = job.new(made_up(args), runner)
  local handler = find_handler(args)
  local exit = os.exit
  function os.exit() error("os.exit called by the handler", 2) end -- luacheck: ignore 122
  local ok, result = xpcall(handler, traceback, made)
  os.exit = exit -- luacheck: ignore 122
  if runner.opened then runner.opened:close() end
  if not ok then context.fail(context.FAILURE, "%s raised: %s", args.name, output.safe(result)) end
  local verdict = runner.verdict or { kind = "ack", result = result, children = made._children }
  print_verdict(verdict)
  return (verdict.kind == "fail" or verdict.kind == "discard") and context.FAILURE or 0
end

return run
