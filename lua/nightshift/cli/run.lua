--- Command run: one handler inline, in this process, for debugging.
--
-- The queue is not touched: the job is made up here, its verdicts are printed, and what it
-- waits for is run here too (drive.lua). `job:db()` opens the real database.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local drive = require "nightshift.cli.drive"
local handlers = require "nightshift.handlers"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"

local run = { commands = {} }

--- Adds the command to the parser.
function run.define(parser)
  local command = parser:command("run", "Run one handler inline and print its verdicts; no queue is touched. "
    .. "What it waits for is run too: children, and the polls of a background handler. "
    .. "It runs in this process: timeout and memory limits of the handler are not applied.")
  command:argument("name", "Name of the job.")
  command:argument("json", 'Payload, JSON; "-" reads it from stdin.'):default "null"
  command:option("--script", "Handler file, or folder of them."):count("+"):argname "FILE"
  command:option("--state", "What an earlier poll or wait kept, JSON.")
  command:option("--phase", "How often it has waited before.", "0"):convert(context.integer)
  command:option("--results",
    'What became of its children, JSON: [{"result": 5}, {"outcome": "dead", "error": "why"}]; they are not run then.')
  command:option("--signal", "What it is sent: to its wait for a signal, or, with --phase, to this run; JSON.")
  command:option("--polls", "How many polls there were.", "0"):convert(context.integer)
  command:option("--attempt", "Which attempt this is.", "1"):convert(context.integer)
end

local COUNT, ATTEMPT = options.integer(0, 1000000000), options.integer(1, 1000000)

local CHILD = {
  id = options.integer(1, math.maxinteger), name = options.typed "string",
  outcome = options.one_of("done", "dead", "cancelled"),
  reason = options.typed "string", error = options.typed "string", result = function(value) return value end,
}

local function as_json(value) return (core.encode(value, nil, "result")) end

--- What --results says, as rows of the statement edge_results.
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
    given.result = given.result ~= nil and as_json(given.result) or nil
    rows[i] = given
  end
  return rows
end

--- A job that never was in a queue.
local function made_up(args)
  context.checked(COUNT, args.polls, "--polls")
  context.checked(COUNT, args.phase, "--phase")
  context.checked(ATTEMPT, args.attempt, "--attempt")
  local function json(text, what) return text and as_json(context.json(text, what)) end
  return {
    id = 1, name = args.name, json = json(args.json, "the payload"), state = json(args.state, "--state"),
    signal = args.phase > 0 and json(args.signal, "--signal") or nil, phase = args.phase, polls = args.polls,
    attempt = args.attempt, results = results_of(args.results), given = args.results ~= nil,
  }
end

local function find_handlers(args)
  local functions, names = handlers.load(args.script)
  if not functions then context.fail(context.CONFIG, "%s", names) end
  if functions[args.name] then return functions end
  local near = options.nearest(args.name, functions)
  context.fail(context.FAILURE, "%s%s", handlers.unknown(args.name, names),
    near and ("; did you mean '%s'?"):format(near) or "")
end

function run.commands.run(args)
  local task = made_up(args)
  local signal = args.signal and args.phase == 0 and as_json(context.json(args.signal, "--signal")) or nil
  local ended = drive.run(args, find_handlers(args), task, signal)
  if ended.raised then context.fail(context.FAILURE, "%s raised: %s", args.name, output.safe(ended.error)) end
  if ended.outcome == "waiting" then
    output.line(("waiting; go on with --phase %d --signal JSON%s"):format(task.phase + 1,
      task.state and " --state " .. output.safe(task.state) or ""))
  end
  if ended.outcome ~= "dead" then return 0 end
  if ended.reason ~= "failed" and ended.reason ~= "discarded" then
    output.line("dead: " .. ended.reason .. (ended.error and ": " .. output.safe(ended.error) or ""))
  end
  return context.FAILURE
end

return run
