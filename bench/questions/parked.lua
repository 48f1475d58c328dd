-- A million polling jobs that are parked: their cost while none of them is due, and whether
-- they start on time, a thousand a second. Prints a JSON line.
--   lua5.4 bench/questions/parked.lua URL BUILD SCALE idle|due
-- Processor time is in percent of one processor.
--
-- The cost of a poll after many polls is not a row of the bench. That run claims one job and
-- gives it back "not yet", again and again, and compares the last rounds with the first: a
-- thousand, or a quarter of all.
--   lua5.4 bench/questions/parked.lua URL polls [N] [DELAY] [hold]
-- DELAY is the argument of `again`, seconds: 0 goes to the ready jobs at once, more goes by way
-- of the scheduled ones. With `hold` a transaction that reads is open meanwhile, as a backup's,
-- so that purge removes no row. The url is of a database with our tables and nothing else in
-- it.
local nightshift = require "nightshift"
local processes = require("bench.lib.programs").processes
local tables = require("bench.lib.programs").tables

-- The handlers for `nightshift work`. A poll's payload is the server's clock minus this
-- machine's monotonic one. It notes the delay of its start, µs, and comes back in a year.
local handlers = {
  poll = function(job)
    return job:again(365 * 86400, math.floor((nightshift.clock() - job.due) * 1e6 + job.payload))
  end,
}
if ... == "bench/questions/parked.lua" then return handlers end

local function question(s)
  return {
    title = "Parked polling jobs",
    text = "A million of them. Processor time of all the host's processes, and of the server, as parts of one"
      .. " processor. Then a thousand a second fall due, poll and are parked again.",
    rounds = 1,
    ask = {
      function() return s:program("parked", s.scale, "idle") end,
      function() return s:program("parked", s.scale, "due") end,
    },
  }
end
if ... == "bench.questions.parked" then return question end

-- A poll's cost at first and in the end, as a JSON line.
local function measure_polls(url, n, delay, hold)
  local SAMPLE <const> = math.min(1000, n // 4)
  local db <close> = assert(nightshift.open(url))
  local reader <close> = hold == "hold" and tables.hold(nightshift.open, url) or nil
  local q = db:queue "polls"
  local id = assert(q:push("poll", { n = 1 }))

  local function median(list)
    table.sort(list)
    return list[(#list + 1) // 2]
  end

  -- Microseconds of a round in the middle of a sample.
  local function sample()
    local times = {}
    for i = 1, SAMPLE do
      local begun = nightshift.clock()
      local job = assert(q:claim { wait = 5 })
      assert(job:again(delay, i))
      times[i] = nightshift.clock() - begun
    end
    return median(times) * 1e6
  end

  local first = sample()
  for _ = 1, math.max(0, n // SAMPLE - 2) do sample() end
  local last = sample()

  local function count(table_name) return db:execute("SELECT COUNT(*) AS n FROM nightshift_" .. table_name)[1].n end
  local polls = assert(db:job(id)).polls
  print(assert(nightshift.encode {
    polls = polls, delay = delay, hold = reader ~= nil, first_us = first, last_us = last, ratio = last / first,
    job = count "job", ready = count "ready", scheduled = count "scheduled", attempt = count "attempt",
  }))
end

if arg[2] == "polls" then return measure_polls(arg[1], tonumber(arg[3]) or 100000, tonumber(arg[4]) or 0, arg[5]) end

local url, build, scale, what = arg[1], arg[2], tonumber(arg[3]), arg[4]
local PARKED = math.max(1000, 1000000 * scale // 1)
local DUE_A_SECOND, SECONDS = 1000, math.max(2, 20 * math.min(1, scale * 4) // 1)
local LEAD = 3 -- seconds until the first is due: the host has started by then
local IDLE = math.max(2, 12 * math.min(1, scale * 4) // 1)

local db <close> = assert(nightshift.open(url))
local server = processes.server(db)
assert(db:queue "bench":push "poll") -- makes the queue
local queue = tables.ask(db, "SELECT id AS n FROM nightshift_queue WHERE name = 'bench'")

local function sleep(seconds) assert(os.execute("sleep " .. math.max(0, seconds))) end

local function start_host()
  return processes.start_host { url = url, build = build, workers = 8, script = "bench/questions/parked.lua" }
end

local function used_by(pids)
  local sum = 0
  for _, pid in ipairs(pids) do sum = sum + processes.used(pid) end
  return sum
end

-- The processor time of host and server in so many seconds.
local function watch(h, seconds)
  local pids = processes.below(h.pid)
  local of_host, of_server, begun = used_by(pids), processes.used(server), nightshift.clock()
  sleep(seconds)
  local took = nightshift.clock() - begun
  return (used_by(pids) - of_host) / took * 100, (processes.used(server) - of_server) / took * 100
end

local function park()
  tables.empty(db)
  tables.fill(db, PARKED, { queue = queue, name = "poll", due = tables.far })
  tables.rest(db)
end

local measures = {}

function measures.idle()
  local asked = 0
  local function questions()
    asked = asked + 1
    return tonumber(assert(db:execute "SHOW GLOBAL STATUS LIKE 'Questions'")[1].Value) - asked
  end
  park()
  local h <close> = start_host()
  sleep(2)
  local before = questions()
  local of_host, of_server = watch(h, IDLE)
  return { what = "parked jobs, none of them due", host_cpu_percent = of_host, server_cpu_percent = of_server,
    queries_per_s = (questions() - before) / IDLE, parked = PARKED }
end

-- Due polls note the delay of their start, and are parked again.
function measures.due()
  local n = DUE_A_SECOND * SECONDS
  park()
  local skew = tables.now(db) - nightshift.clock() * 1e6 // 1
  local start = tables.now(db) + LEAD * 1000000
  tables.fill(db, n, { queue = queue, name = "poll", payload = ("%d"):format(skew),
    due = ("%d + seq * %d"):format(start, 1000000 // DUE_A_SECOND) })
  local h <close> = start_host()
  sleep((start - tables.now(db)) / 1e6)
  local of_host, of_server = watch(h, SECONDS)
  sleep(1)
  h:stop()
  local late = {}
  for i, row in ipairs(assert(db:execute "SELECT state FROM nightshift_job WHERE polls > 0")) do
    late[i] = tonumber(row.state) / 1000
  end
  assert(#late == n, ("bench: %d of %d jobs have polled"):format(#late, n))
  table.sort(late)
  local function at(share) return late[math.ceil(#late * share)] end
  return { what = "start of a parked job, after it is due", p50_ms = at(0.5), p99_ms = at(0.99), max_ms = at(1),
    host_cpu_percent = of_host, server_cpu_percent = of_server, parked = PARKED, jobs = n }
end

local line = measures[what]()
tables.empty(db)
print(assert(nightshift.encode(line)))
