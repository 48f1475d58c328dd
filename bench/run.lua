-- The bench: asks the questions of bench/questions one after the other, prints the tables.
-- Called by bench/run.sh; first without a socket, to look at the options.
--   run.lua BUILD SOCKET [--only NAME,…] [--rounds N] [--scale X] [--json FILE]
-- --rounds: of every question; without, each has the number that it can afford. --scale
-- multiplies the numbers of jobs.
--
-- A question is a file that stands in up to three places, and knows by `...` it is: required
-- here, it returns a function of the stage, or several of them by name. Loaded by `nightshift
-- work`, it returns its handlers. Run as a program it measures, in a process of its own, and prints
-- lines. The function of the stage returns `title`, `text` (optional), `rounds` (3) and `ask`:
-- functions that return a line or a list of lines. `prepare` and `clean` are optional: they run
-- once around all rounds. In each round all of `ask` are called in turn.
local nightshift = require "nightshift"
local report = require "bench.lib.report"
local stage = require "bench.lib.stage"

-- In this order.
local QUESTIONS = {
  "push", "claim", "handles", "work", "latency", "idle", "workers", "memory", "volume", "looking", "pages", "purge",
  "prune", "parked", "large", "flows", "adopted", "capacity", "distance", "limits",
}

-- The files with several of them; each other one is a file of its own name.
local FILES = {
  push = "work", claim = "work", handles = "work", large = "work", idle = "footprint", memory = "footprint",
  workers = "footprint", capacity = "footprint", work = "work", latency = "work",
  looking = "volume", pages = "volume", volume = "volume", prune = "deletes", purge = "deletes",
  parked = "waiting", flows = "waiting", limits = "waiting",
}

local function open(name, s)
  local file = FILES[name]
  local made = require("bench.questions." .. (file or name))
  return (file and made[name] or made)(s)
end

local function misuse(format, ...)
  io.stderr:write("bench: ", format:format(...), "\n")
  os.exit(2)
end

local function known(name)
  for _, question in ipairs(QUESTIONS) do
    if question == name then return name end
  end
  misuse("there is no question '%s'; there are: %s", name, table.concat(QUESTIONS, " "))
end

local OPTIONS = {
  ["--only"] = function(asked, text)
    asked.only = {}
    for name in text:gmatch "[^,]+" do asked.only[known(name)] = true end
  end,
  ["--rounds"] = function(asked, text)
    asked.rounds = math.tointeger(tonumber(text))
    if not asked.rounds or asked.rounds < 1 then misuse "--rounds wants a number from 1 on" end
  end,
  ["--scale"] = function(asked, text)
    asked.scale = tonumber(text)
    if not asked.scale or asked.scale <= 0 then misuse "--scale wants a number above 0" end
  end,
  ["--json"] = function(asked, text) asked.json = text end,
}

local function read_options()
  local asked = { build = arg[1], socket = arg[2], scale = 1 }
  for i = 3, #arg, 2 do
    local option = OPTIONS[arg[i]]
    if not option then misuse("unknown option %s; there are: --only --rounds --scale --json", arg[i]) end
    if not arg[i + 1] then misuse("%s wants a value", arg[i]) end
    option(asked, arg[i + 1])
  end
  return asked
end

local function progress(format, ...)
  io.stderr:write("bench: ", format:format(...), "\n")
end

local begun = nightshift.clock()

-- Adds the lines of `ask` to the earlier ones.
local function take(lines, brought)
  if brought.what then brought = { brought } end
  table.move(brought, 1, #brought, #lines + 1, lines)
end

local function measure(question, s)
  local lines = {}
  if question.prepare then question.prepare() end
  for round = 1, question.rounds do
    progress("%s, round %d of %d; %.0f s so far", question.name, round, question.rounds, nightshift.clock() - begun)
    s:begin(round)
    for _, ask in ipairs(question.ask) do take(lines, ask()) end
  end
  if question.clean then question.clean() end
  return report.summarise(lines)
end

local asked = read_options()
if asked.socket == "" then return end -- only the options were to be looked at
local s = stage.new(asked)
local facts = s:facts()
facts.scale, facts.questions = asked.scale, {}
facts.rounds = asked.rounds or 3
print(report.preamble(facts))
s:warm_up()

for _, name in ipairs(QUESTIONS) do
  local question = (not asked.only or asked.only[name]) and open(name, s)
  if question then
    question.name, question.rounds = name, asked.rounds or question.rounds or 3
    question.rows = measure(question, s)
    print(report.markdown(question))
    io.stdout:flush()
    table.insert(facts.questions, { name = name, title = question.title, rows = question.rows })
  end
end
progress("done in %.0f s", nightshift.clock() - begun)

if asked.json then
  local file <close> = assert(io.open(asked.json, "w"))
  file:write(assert(nightshift.encode(facts)), "\n")
end
