-- The bench: Nightshift beside the floor, on one server and in turns, so that
-- whatever else the machine does hits both. Called by bench/run.sh.
--   run.lua BUILD SOCKET [--rounds N] [--scale X] [--json FILE]
-- Rates are medians over the rounds; a ratio is the median of the ratios
-- within the rounds. --scale multiplies the number of jobs.
local nightshift = require "nightshift"

local build, socket = arg[1], arg[2]
local rounds, scale, json_file = 3, 1, nil
for i = 3, #arg, 2 do
  local name, value = arg[i], arg[i + 1]
  if name == "--rounds" then rounds = assert(math.tointeger(tonumber(value)), "--rounds N")
  elseif name == "--scale" then scale = assert(tonumber(value), "--scale X")
  elseif name == "--json" then json_file = assert(value, "--json FILE")
  else error("bench: unknown option " .. name, 0) end
end

local USER = assert(io.popen "id -un"):read "l"

local function url(database)
  local escaped = socket:gsub("[^%w]", function(c) return ("%%%02X"):format(c:byte()) end)
  return ("mysql://%s@localhost/%s?unix_socket=%s"):format(USER, database, escaped)
end

local OURS = url "nightshift"

local function output_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read "a"
  if not pipe:close() then error("bench: failed: " .. command, 0) end
  return (text:gsub("%s+$", ""))
end

-- Runs one measuring program; jobs per second.
local function rate(format, ...)
  local text = output_of(format:format(...))
  return assert(tonumber(text:match '"rate":([%d.]+)'), text)
end

local function floor(...) return rate("%s/bench/floor '%s' floor %s", build, socket, table.concat({ ... }, " ")) end
local function verbs(...) return rate("%s/bench/verbs '%s' %s", build, OURS, table.concat({ ... }, " ")) end
local LUA = arg[-1] or "lua5.4"
local function handle(...) return rate("%s bench/handle.lua '%s' %s", LUA, OURS, table.concat({ ... }, " ")) end

-- The server's time of the first lease; asks until there is one.
local function first_claim(db)
  for _ = 1, 6000 do
    local row = assert(db:execute "SELECT claimed FROM nightshift_lease ORDER BY id LIMIT 1")[1]
    if row then return row.claimed end
    assert(db:execute "DO SLEEP(0.005)")
  end
  error("bench: the host claims nothing, see " .. build .. "/bench/work.log", 0)
end

local function fanin(what, n) return rate("%s bench/fanin.lua '%s' %s %s %d", LUA, OURS, build, what, n) end

-- The whole program: 8 workers, from the first claim to the last verdict.
local function work(jobs)
  output_of(("%s bench/handle.lua '%s' fill %d"):format(LUA, OURS, jobs))
  local db <close> = assert(nightshift.open(OURS))
  local command = "NIGHTSHIFT_URL='%s' %s/bin/nightshift work bench/noop.lua --workers 8 --drain >%s/work.log 2>&1"
  local host = assert(io.popen(command:format(OURS, build, build .. "/bench")))
  local begun = first_claim(db)
  if not host:close() then error("bench: the host failed, see " .. build .. "/bench/work.log", 0) end
  local row = assert(db:execute [[SELECT COUNT(*) AS n, MAX(finished_at) AS last
    FROM nightshift_finished WHERE outcome = 'done']])[1]
  assert(row.n == jobs, "bench: not every job is done")
  return jobs / ((row.last - begun) / 1e6)
end

local function jobs(n, batch)
  n = math.max(math.floor(n * scale), batch or 1)
  return batch and n // batch * batch or n
end

-- What is measured: a title, the floor, and ours.
local QUESTIONS = {}
local function question(title, floor_side, our_side, of_floor)
  QUESTIONS[#QUESTIONS + 1] = { title = title, floor = floor_side, ours = our_side, of_floor = of_floor }
end

local many, few = jobs(100000, 1000), jobs(4000)
question("push_many, 1000 a time, C", function() return floor("push", many, 1000) end,
  function() return verbs("push", many, 1000) end)
question("push_many, 1000 a time, Lua", function() return floor("push", many, 1000) end,
  function() return handle("push", many, 1000) end)
question("push, one a time, C", function() return floor("single", few) end, function() return verbs("single", few) end)
question("push, one a time, Lua", function() return floor("single", few) end,
  function() return handle("single", few) end)
for _, batch in ipairs { 1, 10, 100, 1000 } do
  local n = jobs(math.min(4000 * batch, 100000), batch)
  question(("claim + ack, batch %d, C"):format(batch), function() return floor("claim", n, batch, 1) end,
    function() return verbs("claim", n, batch) end)
end
question("claim + ack, one by one, Lua", function() return floor("claim", few, 1, 1) end,
  function() return handle("ack", few) end)
question("work, 8 workers, beside claim + ack, batch 1000", function() return floor("claim", many, 1000, 1) end,
  function() return work(many) end)
local siblings = jobs(10000)
question(("%d siblings and their parent, two hosts, beside unrelated jobs"):format(siblings),
  function() return fanin("unrelated", siblings) end, function() return fanin("siblings", siblings) end)
for _, batch in ipairs { 1, 10, 100, 1000 } do
  local n = jobs(math.min(4000 * batch, 100000), batch)
  question(("claim + ack, batch %d"):format(batch), function() return floor("claim", n, batch, 0) end,
    function() return floor("claim", n, batch, 1) end, true)
end

local function median(list)
  local sorted = table.move(list, 1, #list, 1, {})
  table.sort(sorted)
  local middle = #sorted // 2
  return #sorted % 2 == 1 and sorted[middle + 1] or (sorted[middle] + sorted[middle + 1]) / 2
end

-- One round of one question; who goes first changes from round to round.
local function measure(q, round)
  local sides = round % 2 == 1 and { "floor", "ours" } or { "ours", "floor" }
  local rates = {}
  for _, side in ipairs(sides) do rates[side] = q[side]() end
  for _, side in ipairs(sides) do table.insert(q.rates[side], rates[side]) end
  table.insert(q.ratios, rates.ours / rates.floor)
end

local function read(path)
  local file = io.open(path)
  return file and file:read "a" or ""
end

local function machine()
  return {
    processors = tonumber(output_of "nproc"), processor = read "/proc/cpuinfo":match "model name%s*:%s*([^\n]*)",
    memory_mb = tonumber(read "/proc/meminfo":match "MemTotal:%s*(%d+)") // 1024, system = output_of "uname -sr",
    load = read "/proc/loadavg":match "^%S+",
  }
end

local function versions(db)
  return {
    nightshift = nightshift._VERSION, lua = _VERSION, server = db:execute "SELECT VERSION() AS v"[1].v,
    commit = output_of "git rev-parse --short HEAD 2>/dev/null || true",
  }
end

output_of(("NIGHTSHIFT_URL='%s' %s/bin/nightshift init"):format(url "floor", build))
output_of(("NIGHTSHIFT_URL='%s' %s/bin/nightshift init"):format(OURS, build))
local report = { machine = machine(), rounds = rounds, settings = read(build .. "/bench/settings"), results = {} }
do
  local db <close> = assert(nightshift.open(OURS))
  report.versions = versions(db)
end

for _, q in ipairs(QUESTIONS) do q.rates, q.ratios = { floor = {}, ours = {} }, {} end
for round = 1, rounds do
  for i, q in ipairs(QUESTIONS) do
    io.stderr:write(("\rround %d of %d: %d of %d  "):format(round, rounds, i, #QUESTIONS))
    measure(q, round)
  end
end
io.stderr:write "\n"

local function printf(format, ...) print(format:format(...)) end
local m, v = report.machine, report.versions
printf("Machine: %d × %s, %d MB, %s. Load at the start: %s.", m.processors, m.processor, m.memory_mb, m.system, m.load)
printf("Nightshift %s %s, %s, MariaDB %s.", v.nightshift, v.commit, v.lua, v.server)
printf("Server: %s.", report.settings:gsub("%s+$", ""):gsub("\n", ", "))
printf("Payload 100 bytes; jobs per second, medians of %d rounds; history is on.", rounds)

local function print_table(header, of_floor)
  print(header .. "\n|---|---:|---:|---:|")
  for _, q in ipairs(QUESTIONS) do
    if q.of_floor == of_floor then
      local row = { question = q.title, of_floor = of_floor, floor = median(q.rates.floor),
        ours = median(q.rates.ours), ratio = median(q.ratios), rates = q.rates }
      table.insert(report.results, row)
      printf("| %s | %.0f | %.0f | %.2f |", row.question, row.floor, row.ours, row.ratio)
    end
  end
end

print_table("\n| | floor | ours | ratio |", nil)
print_table("\n| the floor itself | without history | with history | ratio |", true)
if json_file then
  local file = assert(io.open(json_file, "w"))
  file:write(assert(nightshift.encode(report)), "\n")
  file:close()
end
