--- The designs of queues side by side, each on its own table: asks bench/designs/contenders.lua
-- in turns, prints the tables of bench/designs/standings.lua. Called by bench/run.sh.
--   strategies.lua BUILD SOCKET [--only NAME,…] [--topics work,death,purge,rows]
--     [--workers N,…] [--rounds N] [--seconds N] [--ms N] [--job-ms N] [--gap-ms N]
--     [--rows N] [--many N] [--many-ms N] [--json FILE] [--doc FILE] [--from FILE]
-- --only takes contenders and topics. --rows: open rows of a run. --many: rows of the large
-- table of the topic 'rows', which is asked once; --many-ms: the time of each run there.
-- --seconds: no round begins that would exceed this time in total. --ms: how long the workers
-- of one run work; --gap-ms: their pause between the lock and a mark that is written after it.
-- --doc writes the tables into a file, between its two marks, and the plots into the folder of
-- its name. --from measures nothing: it prints the results of an earlier --json.
local contenders = require "bench.designs.contenders"
local nightshift = require "nightshift"
local report = require "bench.lib.report"
local stage = require "bench.lib.stage"
local standings = require "bench.designs.standings"

local BEGIN, END = "<!-- strategies:begin -->", "<!-- strategies:end -->"
local TOPICS = { "work", "death", "purge", "rows" }

local function misuse(format, ...)
  io.stderr:write("strategies: ", format:format(...), "\n")
  os.exit(2)
end

local function names()
  local list = {}
  for i, c in ipairs(contenders.list) do list[i] = c.name end
  return table.move(TOPICS, 1, #TOPICS, #list + 1, list)
end

local function words(known, what)
  return function(text)
    local found, there = {}, {}
    for _, name in ipairs(known) do there[name] = true end
    for name in text:gmatch "[^,]+" do
      if not there[name] then misuse("there is no %s '%s'; there are: %s", what, name, table.concat(known, " ")) end
      found[name] = true
    end
    return found
  end
end

local function numbers(text)
  local list = {}
  for word in text:gmatch "[^,]+" do
    list[#list + 1] = math.tointeger(tonumber(word)) or misuse("not a number: %s", word)
  end
  return list
end

local function positive(text)
  local value = tonumber(text)
  if not value or value <= 0 then misuse("not a number above 0: %s", text) end
  return math.tointeger(value) or value
end

local function plain(text) return text end

local OPTIONS = {
  only = words(names(), "contender"), topics = words(TOPICS, "topic"), workers = numbers, rounds = positive,
  ms = positive, seconds = positive, job_ms = positive, gap_ms = positive, rows = positive, json = plain, doc = plain,
  many = positive, many_ms = positive, from = plain,
}

-- The topics of --only, if it names any; and whether it names contenders, too.
local function choose_topics(asked)
  local some, topics = false, {}
  for name in pairs(asked.only or {}) do
    local topic = false
    for _, known in ipairs(TOPICS) do topic = topic or name == known end
    if topic then topics[name] = true else some = true end
  end
  if next(topics) then asked.topics = topics end
  return some
end

local function read_options()
  local asked = {
    build = arg[1], socket = arg[2], scale = 0.1, workers = { 1, 8, 50, 200 }, rounds = 3, ms = 500, job_ms = 5,
    gap_ms = 0, rows = 6000, buried = 20000, purge_workers = 8, seconds = 600,
    topics = { work = true, death = true, purge = true, rows = true }, many = 5000000, many_ms = 2000,
    many_workers = { 1, 8 },
  }
  for i = 3, #arg, 2 do
    local name = arg[i]:match "^%-%-(.+)$" or ""
    name = name:gsub("-", "_")
    if not OPTIONS[name] then misuse("unknown option %s", arg[i]) end
    asked[name] = OPTIONS[name](arg[i + 1] or misuse("%s wants a value", arg[i]))
  end
  asked.list = {}
  local some = choose_topics(asked)
  for _, c in ipairs(contenders.list) do
    if not some or asked.only[c.name] then asked.list[#asked.list + 1] = c end
  end
  return asked
end

local begun = nightshift.clock()

local function progress(format, ...)
  io.stderr:write(("strategies: %s; %.0f s so far\n"):format(format:format(...), nightshift.clock() - begun))
end

local function new_results(asked)
  local results = { work = {}, death = {}, purge = {}, rows = {} }
  for _, c in ipairs(asked.list) do
    results.work[c.name], results.death[c.name], results.purge[c.name], results.rows[c.name] = {}, {}, {}, {}
    for _, workers in ipairs(asked.workers) do results.work[c.name][workers] = {} end
  end
  return results
end

local function run(s, c, asked, workers, more)
  local options = { workers = workers, rows = asked.rows, ms = asked.ms, job_ms = asked.job_ms, gap_ms = asked.gap_ms }
  for name, value in pairs(more or {}) do options[name] = value end
  return contenders.work(s, c, options)
end

-- Calls fn for one after the other; the next round begins from the other end.
local function in_turns(list, round, fn)
  for i = 1, #list do fn(list[round % 2 == 1 and i or #list + 1 - i]) end
end

local measure = {}

function measure.work(s, asked, results, round)
  for _, workers in ipairs(asked.workers) do
    progress("work, round %d of %d, %d workers", round, asked.rounds, workers)
    in_turns(asked.list, round, function(c)
      table.insert(results.work[c.name][workers], run(s, c, asked, workers))
    end)
  end
end

local function distinct(asked)
  local list = {}
  for _, c in ipairs(asked.list) do
    if not c.same then list[#list + 1] = c end
  end
  return list
end

function measure.death(s, asked, results, round)
  progress("death, round %d of %d", round, asked.rounds)
  local list = {}
  for _, c in ipairs(distinct(asked)) do
    if c.way ~= "host" then list[#list + 1] = c end
  end
  for name, line in pairs(contenders.deaths(s, list)) do table.insert(results.death[name], line) end
end

function measure.purge(s, asked, results, round)
  progress("purge, round %d of %d", round, asked.rounds)
  in_turns(distinct(asked), round, function(c)
    local line = {}
    for _, side in ipairs(round % 2 == 1 and { "free", "blocked" } or { "blocked", "free" }) do
      line[side] = run(s, c, asked, asked.purge_workers, { buried = asked.buried, blocked = side == "blocked" })
    end
    table.insert(results.purge[c.name], line)
  end)
end

function measure.rows(s, asked, results)
  local found = contenders.at_many(s, asked.list, asked, function(what)
    progress("rows, %d of them: %s", asked.many, what)
  end)
  for name, lines in pairs(found) do
    for _, workers in ipairs(asked.many_workers) do table.insert(results.rows[name], lines[workers]) end
  end
end

local function preamble(facts, asked)
  local m, v = facts.machine, facts.versions
  local paragraphs = {
    ("Machine: %d × %s, %d MB, %s; load at the start %s. Nightshift %s %s, %s, MariaDB %s."):format(m.processors,
      m.processor, m.memory_mb, m.system, m.load, v.nightshift, v.commit, v.lua, v.server),
    ("Server: %s. Server and workers share the processors."):format(facts.settings),
    ("A worker is a process with a connection of its own, and a job sleeps %g ms. A run takes %g s. Its table has %d"
      .. " open rows, all alike: %s. Figures are medians of %d rounds, in turns; a ratio is the median of the ratios"
      .. " within the rounds."):format(asked.job_ms, asked.ms / 1000, asked.rows, contenders.most, asked.rounds),
  }
  for i, paragraph in ipairs(paragraphs) do paragraphs[i] = report.wrapped(paragraph) end
  return table.concat(paragraphs, "\n\n")
end

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

local function write(path, text)
  local file <close> = assert(io.open(path, "w"))
  assert(file:write(text))
end

--- Replaces the text between the marks; the plots are in the folder beside it.
local function write_doc(path, text, plots)
  local old = read(path)
  local first, last = old:find(BEGIN, 1, true), old:find(END, 1, true)
  if not first or not last then misuse("%s has no lines %s and %s", path, BEGIN, END) end
  write(path, old:sub(1, first + #BEGIN - 1) .. "\n" .. text .. old:sub(last))
  local folder = path:gsub("%.md$", "")
  if folder == path then folder = path .. ".plots" end
  stage.output_of("mkdir -p " .. folder)
  for name, svg in pairs(plots) do write(("%s/%s.svg"):format(folder, name), svg) end
end

-- ------------------------------------------------------------ measuring

-- Measures as many rounds as were asked for, or as there is time for.
local function measure_rounds(s, asked, results)
  local longest = 0
  for round = 1, asked.rounds do
    local since = nightshift.clock()
    if since - begun + longest > asked.seconds then
      asked.rounds = round - 1
      return
    end
    for _, topic in ipairs(TOPICS) do
      if asked.topics[topic] and topic ~= "rows" then measure[topic](s, asked, results, round) end
    end
    longest = math.max(longest, nightshift.clock() - since)
  end
end

local function measure_all(s, asked, results)
  s:warm_up()
  if asked.topics.work or asked.topics.death or asked.topics.purge then measure_rounds(s, asked, results) end
  if asked.topics.rows then measure.rows(s, asked, results) end
end

-- The options that a result keeps.
local KEPT = { "rounds", "ms", "job_ms", "gap_ms", "rows", "workers", "buried", "purge_workers", "topics",
  "many", "many_ms", "many_workers" }

-- All lines of all rounds, each with its contender's name.
local function flat(list, lists)
  local lines = {}
  for _, c in ipairs(list) do
    for _, line in ipairs(lists[c.name]) do
      line.name = c.name
      lines[#lines + 1] = line
    end
  end
  return lines
end

local function keep(facts, asked, results)
  local work = {}
  for _, c in ipairs(asked.list) do
    work[c.name] = {}
    for _, workers in ipairs(asked.workers) do
      local rounds = results.work[c.name][workers]
      table.move(rounds, 1, #rounds, #work[c.name] + 1, work[c.name])
    end
  end
  facts.asked = {}
  for _, name in ipairs(KEPT) do facts.asked[name] = asked[name] end
  facts.work, facts.death, facts.purge, facts.rows = flat(asked.list, work), flat(asked.list, results.death),
    flat(asked.list, results.purge), flat(asked.list, results.rows)
end

-- The opposite.
local function recall(facts, asked)
  for _, name in ipairs(KEPT) do
    if facts.asked[name] ~= nil then asked[name] = facts.asked[name] end
  end
  local results = new_results(asked)
  for _, line in ipairs(facts.work) do
    local lists = results.work[line.name]
    if lists then table.insert(lists[line.workers], line) end
  end
  for _, topic in ipairs { "death", "purge", "rows" } do
    for _, line in ipairs(facts[topic] or {}) do
      if results[topic][line.name] then table.insert(results[topic][line.name], line) end
    end
  end
  return results
end

local asked = read_options()
if asked.socket == "" then return end -- only the options were to be looked at
local facts, results
if asked.from then
  facts = assert(nightshift.decode(read(asked.from)))
  results = recall(facts, asked)
else
  local s = stage.new(asked)
  facts, results = s:facts(), new_results(asked)
  measure_all(s, asked, results)
  keep(facts, asked, results)
end
local text = preamble(facts, asked) .. "\n" .. standings.markdown(results, asked)
io.write(text)
progress "done"
if asked.doc then write_doc(asked.doc, text, asked.topics.work and standings.plots(results, asked) or {}) end
if asked.json then write(asked.json, assert(nightshift.encode(facts)) .. "\n") end
