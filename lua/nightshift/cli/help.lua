--- Help for people at a prompt: examples of each command, the words that mistyped ones are near to,
-- and the commands help and completion.
--
-- Invariant: each example is a command line that the parser takes; a spec has it read them all.

local context = require "nightshift.cli.context"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"

local help = { commands = {} }

help.SHELLS = { "bash", "zsh", "fish" }

--- Of each command; lines begin with the name of the program, which is left out here.
help.EXAMPLES = {
  init = { "init", "init --print | mariadb shop" },
  migrate = { "migrate" },
  doctor = { "doctor", "doctor --grants worker --user app@10.0.0.7 | mariadb shop" },
  retain = { "retain --done 7d --dead never", "retain mail --done-count 1000" },
  retention = { "retention" },
  prune = { "prune --done 1d --dead 30d --yes", "prune --table orders --older 90d --into orders_old --yes" },
  version = { "version --json" },
  work = { "work jobs.lua", "work handlers/ --workers 8 --queues mail=3,default", "work jobs.lua --drain --single" },
  reload = { "reload --timeout 1m" },
  health = { "health", "health --host web1 --timeout 2s", "health --http 127.0.0.1:9108" },
  adopt = { "adopt orders.lua", "adopt orders.lua --drain-into orders --yes" },
  push = { [[push mail email.send '{"to": "a@example.com"}' --delay 5m]],
    "push reports daily --unique nightly --on-conflict keep", "push files file.size - < payload.json",
    "push mail report.send --after 4711 --on-fail run",
    "push mail email.send --lines < payloads.jsonl" },
  jobs = { "jobs --queue mail --state dead --since 2h", "jobs --name email.send --limit 500 --json" },
  errors = { "errors --since 1d", "errors --queue mail --json" },
  show = { "show 4711", "show 4711 --tree --children 100" },
  why = { "why 4711" },
  wait = { "wait 4711 4712 --timeout 5m && echo done" },
  retry = { "retry 4711", [[retry --state dead --error "connection refused" --rate 50 --yes]] },
  cancel = { "cancel 4711 --reason 'ordered twice'", "cancel --queue mail --state scheduled --yes" },
  delete = { "delete 4711", "delete --queue mail --state done --since 1h --yes" },
  update = { [[update 4711 --set '{"to": "b@example.com"}']], "update --tag late --priority 200 --yes" },
  ["run-now"] = { "run-now 4711", "run-now --queue mail --yes" },
  reprioritise = { "reprioritise 4711 200", "reprioritise 200 --queue mail --yes" },
  move = { "move slow --queue mail --name report.daily --yes" },
  signal = { [[signal 4711 '{"by": "anna"}' --name approved]] },
  deadline = { "deadline 4711 2h", "deadline 4711 never --tree" },
  status = { "status", "status --json", "status --series 1d --queue mail" },
  scale = { "scale", "scale mail --target 2m --json" },
  top = { "top", "top --every 5s" },
  pause = { "pause mail", "pause --name email.send", "pause 4711", "pause --all" },
  resume = { "resume mail", "resume --all" },
  ["remove-queue"] = { "remove-queue old" },
  limit = { "limit mail --running 100 --rate 500/1m", "limit api --group-running 2 --group-rate 10/1s --fair",
    "limit events --ordered", "limit mail --off" },
  limits = { "limits", "limits api", "limits --json" },
  audit = { "audit", "audit --since 1d --verb cancel --json" },
  tune = { "tune --host web1 --workers 8", "tune orders --rate 100" },
  rescue = { "rescue --wait 5s" },
  schedules = { "schedules", "schedules pause report.daily", "schedules run report.daily" },
  web = { "web", "web --listen 0.0.0.0:7878 --token-file token", "web --read-only --redact password,card" },
  run = { [[run jobs.lua email.send '{"to": "a@example.com"}']], "run jobs.lua approve --phase 1 --signal true" },
  config = { "config", "config --config /etc/nightshift/config --json" },
  help = { "help push" },
  completion = { "completion bash > /etc/bash_completion.d/nightshift",
    "completion zsh > ~/.zfunc/_nightshift", "completion fish > ~/.config/fish/completions/nightshift.fish" },
}

--- Adds the examples to the texts of --help and of the manual pages.
function help.add_examples(parser)
  for _, command in ipairs(parser._commands) do
    local lines = { command._epilog and command._epilog .. "\n\nExamples:" or "Examples:" }
    for _, example in ipairs(help.EXAMPLES[command._name] or {}) do
      lines[#lines + 1] = "   nightshift " .. example
    end
    if #lines > 1 then command:epilog(table.concat(lines, "\n")) end
  end
end

--- Adds the commands to the parser.
function help.define(parser)
  local command = parser:command("help", "Show this help, or that of a command.")
  command:argument("about", "A command. Default: all."):args "?"
  command._is_help_command = true -- completions: commands follow
  local completion = parser:command("completion", "Print what a shell reads to complete commands, options and their "
    .. "words. `make install` puts it where bash, zsh and fish look.")
  completion:argument("shell", "The shell."):choices(help.SHELLS)
end

-- --------------------------------------------------------- mistyped words

-- Words of other programs for our commands.
local COMMANDS <const> = {
  list = "jobs", ls = "jobs", ps = "status", watch = "top", stats = "status", queues = "status", info = "show",
  get = "show", worker = "work", start = "work", serve = "work", enqueue = "push", add = "push", put = "push",
  submit = "push", kill = "cancel", stop = "cancel", rm = "delete", requeue = "retry", purge = "prune",
  cleanup = "prune", reprioritize = "reprioritise", priority = "reprioritise", cron = "schedules", setup = "init",
  ui = "web", dashboard = "web", page = "web", install = "init", upgrade = "migrate", check = "doctor", test = "run",
  exec = "run", rename = "move", log = "audit", history = "audit", throttle = "limit", rate = "limit",
  concurrency = "limit",
}
local STATES <const> = {
  failed = "dead", error = "dead", queued = "ready", pending = "ready", open = "ready", active = "running",
  processing = "running", delayed = "scheduled", blocked = "waiting", parked = "waiting", completed = "done",
  finished = "done", success = "done", succeeded = "done", aborted = "cancelled",
}

local function set_of(list)
  local set = {}
  for _, name in ipairs(list) do set[name] = true end
  return set
end

--- The one that begins like it; nil: none, or several.
local function beginning(text, known)
  local found
  for name in pairs(known) do
    if #text > 3 and name:sub(1, #text) == text then
      if found then return nil end
      found = name
    end
  end
  return found
end

local function nearest(text, known, words)
  local word = words and words[text]
  return word and known[word] and word or options.nearest(text, known) or beginning(text, known)
end

--- "; did you mean 'x'?", or "".
local function tip(near) return near and (", did you mean '%s'?"):format(near) or "" end

--- The parser of a command; nil: there is none of that name.
local function command_of(parser, name)
  for _, command in ipairs(parser._commands) do
    if command._name == name then return command end
  end
end

local function option_in(parser, alias)
  for _, option in ipairs(parser and parser._options or {}) do
    for _, known in ipairs(option._aliases) do
      if known == alias then return option end
    end
  end
end

--- The option that has got the value; nil: an argument.
local function taker_of(argv, command, value)
  for i, text in ipairs(argv) do
    local name, inner = text:match "^(%-%-[%w-]+)=(.*)$"
    if inner == value then return name end
    local option = text == value and option_in(command, argv[i - 1])
    if option and (option._maxargs or 1) > 0 then return argv[i - 1] end
  end
end

--- The value that was given in the place of one of the words.
local function wrong_choice(argv, option, known)
  for i, text in ipairs(argv) do
    local inner = option and text:sub(1, #option + 1) == option .. "=" and text:sub(#option + 2)
      or option and argv[i - 1] == option and text
      or not option and nearest(text, known) and text
    if inner and not known[inner] then return inner end
  end
end

local function known_options(parser, command)
  local known = {}
  for _, one in ipairs { parser, command } do
    for _, option in ipairs(one._options) do
      for _, alias in ipairs(option._aliases) do known[alias] = true end
    end
  end
  return known
end

--- A message of the parser, with the option it is about, and the nearest known word.
---@param parser table
---@param argv string[]
---@param name string|nil the command
---@param message string
---@return string
function help.explained(parser, argv, name, message)
  local command = command_of(parser, name)
  message = message:gsub("\nDid you", ", did you")
  local wrong = message:match "^unknown command '([^']*)'$"
  if wrong then
    local known = {}
    for _, one in ipairs(parser._commands) do known[one._name] = true end
    return message .. tip(nearest(wrong, known, COMMANDS))
  end
  wrong = message:match "^unknown option '([^']*)'$"
  if wrong then return message .. tip(nearest(wrong, known_options(parser, command))) end
  wrong = message:match "^'(.*)' is not "
  local taker = wrong and taker_of(argv, command, wrong)
  if taker then return taker .. ": " .. message end
  local option, words = message:match "^argument.-'(.-)' must be one of '(.*)'$"
  if not option then return message end
  local list = {}
  for word in (words .. "', '"):gmatch "(.-)', '" do list[#list + 1] = word end
  local known = set_of(list)
  wrong = wrong_choice(argv, option:find "^%-" and option, known)
  return wrong and ("%s; got '%s'%s"):format(message, options.shown(wrong), tip(nearest(wrong, known, STATES)))
    or message
end

--- The command line that says more.
function help.try(parser, name)
  return command_of(parser, name) and ("Try `nightshift %s --help`."):format(name) or "Try `nightshift --help`."
end

function help.commands.help(args, parser)
  if not args.about then return output.line(parser:get_help()) end
  local command = command_of(parser, args.about)
  if command then return output.line(command:get_help()) end
  context.fail(context.USAGE, "%s\n%s", help.explained(parser, {}, nil, ("unknown command '%s'"):format(args.about)),
    help.try(parser))
end

--- The script that a shell reads to complete our words.
---@param parser table of all commands
---@param shell string
---@return string
function help.completion(parser, shell) return parser[("get_%s_complete"):format(shell)](parser) end

function help.commands.completion(args, parser) output.write(help.completion(parser, args.shell)) end

return help
