-- Jobs that wait: for their next poll, for other jobs, for a limit. Prints JSON lines.
--
-- A million polling jobs that are parked: their cost while none of them is due, and whether they
-- start on time, a thousand a second. Processor time is in percent of one processor.
--   lua5.4 bench/questions/waiting.lua URL BUILD idle|due SCALE
-- The cost of a poll after many polls is not a row of the bench. That run claims one job and gives
-- it back "not yet", again and again. It compares the last rounds with the first: a thousand of
-- each, or a quarter of all.
--   lua5.4 bench/questions/waiting.lua URL BUILD polls [N] [DELAY] [hold]
-- DELAY is the argument of `again`, seconds: 0 goes to the ready jobs at once, more goes by way of
-- the scheduled ones. With `hold` a transaction that reads is open meanwhile, as a backup's, so that
-- purge removes no row. The url is of a database with our tables and nothing else in it.
--
-- Trees of jobs: parents that wait for ten children, beside the same in bare SQL (floor.c). They
-- run under one host with 8 workers, through to the parent's run after the last child.
--   lua5.4 bench/questions/waiting.lua URL BUILD trees SCALE
-- Prints a line for pushing, processing and both; its rate is of parents, eleven jobs each. Flows:
-- pushed in bulk, 100 a transaction; the children run, then their parent. Parents that wait: each
-- spawns its children, is parked by job:wait, and runs once more after them. Processing is from the
-- first claim to the last verdict.
--   lua5.4 bench/questions/waiting.lua URL BUILD siblings|unrelated JOBS
-- Two hosts with 4 workers, up before the first job may start. siblings: JOBS children of one
-- parent, which is parked until they are done, and runs once more. The rate is the children's;
-- lag_ms is the time from the last of them to the parent's run. unrelated: as many jobs without
-- dependents.
--
-- Limited queues. It measures the rate of no-op jobs of a queue without limits, alone, and beside
-- 1,000 limited groups. These have started what they may. Then it is the claims of a queue with a
-- group for each of its jobs. Last comes the time to the start of a tenant's job beside another
-- tenant's backlog. A host has sorted that by tenant, or it was just pushed.
--   lua5.4 bench/questions/waiting.lua URL BUILD alone|beside|groups|fair|fresh JOBS
local nightshift = require "nightshift"
local processes = require("bench.lib.stage").processes
local tables = require("bench.lib.stage").tables

local SCRIPT <const> = "bench/questions/waiting.lua"
local STEP <const> = 0.01 -- s, a job of the tenants

local payload = ("x"):rep(98) -- 100 bytes with its quotes

-- The handlers for `nightshift work`. A poll's payload is the server's clock minus this machine's
-- monotonic one. It notes the delay of its start, µs, and comes back in a year. A parent spawns its
-- children, waits for them and runs once more.
local handlers = {
  poll = function(job)
    return job:again(365 * 86400, math.floor((nightshift.clock() - job.due) * 1e6 + job.payload))
  end,
  parent = function(job)
    if job.phase > 0 then return end
    for _ = 1, job.payload do job:spawn("noop", payload) end
    return job:wait()
  end,
  noop = function() end,
  step = function() require("nightshift.core").sleep(STEP) end,
  start = function() return nightshift.clock() end,
}
if ... == SCRIPT then return handlers end

-- ----------------------------------------------------------------- questions

local questions = {}

function questions.parked(s)
  return {
    title = "Parked polling jobs",
    text = "A million of them. Processor time of all the host's processes, and of the server, as parts of one"
      .. " processor. Then a thousand a second fall due, poll and are parked again.",
    rounds = 1,
    ask = {
      function() return s:program("waiting", "idle", s.scale) end,
      function() return s:program("waiting", "due", s.scale) end,
    },
  }
end

-- The floor's figure beside a line of ours.
local function floor_of(floor, line)
  if line.what:find "pushed and processed" then return floor.both_rate end
  return line.what:find "pushed" and floor.push_rate or floor.rate
end

function questions.flows(s)
  local siblings = s:jobs(10000)
  local function fanin(what) return s:program("waiting", what, siblings)[1] end
  local function trees()
    local floor, lines = s:both(
      function() return s:floor("flows", { jobs = s:jobs(3000, 100), batch = 1000 }) end,
      function() return s:program("waiting", "trees", s.scale) end)
    for _, line in ipairs(lines) do
      line.floor, line.ours, line.rate = floor_of(floor, line), line.rate, nil
      line.ratio = line.ours / line.floor
    end
    return lines
  end
  return {
    title = "Flows",
    text = "Parents with ten children each, parents per second. And one parent of very many, jobs per second, under two"
      .. " hosts: there the floor is as many jobs without a parent.",
    ask = {
      trees,
      function()
        return s:beside(("%d siblings and their parent"):format(siblings), function() return fanin "unrelated" end,
          function() return fanin "siblings" end)
      end,
    },
  }
end

function questions.limits(s)
  local ask, jobs = {}, s:jobs(100000, 1000)
  for i, what in ipairs { "alone", "beside", "groups", "fair", "fresh" } do
    ask[i] = function() return s:program("waiting", what, jobs)[1] end
  end
  return {
    title = "Limited queues",
    text = "No-op jobs without a limit, alone and beside 1,000 groups that wait. Claims of ten jobs each. "
      .. "From a push to the start, beside another tenant's jobs of 10 ms.",
    ask = ask,
    rounds = 3,
  }
end

if ... == "bench.questions.waiting" then return questions end

-- ------------------------------------------------------------- the measurements

local url, build, what = arg[1], arg[2], arg[3]
local db <close> = assert(nightshift.open { url = url, max_children = 1000000 })
local measures = {}

local function tell(line) print(assert(nightshift.encode(line))) end

local function start_host(workers)
  return processes.start_host { url = url, build = build, workers = workers, script = SCRIPT }
end

-- Pushes n jobs, a thousand at a time; `item` gives each by its number.
local function push_all(q, n, item)
  for first = 1, n, 1000 do
    local items = {}
    for i = first, math.min(first + 999, n) do items[#items + 1] = item(i) end
    assert(q:push_many(items))
  end
end

local function noops(q, n) push_all(q, n, function() return { "noop", payload } end) end

local function at(sorted, share) return sorted[math.max(1, math.ceil(#sorted * share))] end

-- -------------------------------------------------------------- for their polls

local WORKERS <const> = 8

-- A poll's cost at first and in the end.
function measures.polls(n, delay, hold)
  n, delay = tonumber(n or 100000), tonumber(delay or 0)
  local SAMPLE = math.min(1000, n // 4)
  local reader <close> = hold == "hold" and tables.hold(nightshift.open, url) or nil
  local q = db:queue "polls"
  local id = assert(q:push("poll", { n = 1 }))

  -- Microseconds of a round in the middle of a sample.
  local function sample()
    local times = {}
    for i = 1, SAMPLE do
      local begun = nightshift.clock()
      local job = assert(q:claim { wait = 5 })
      assert(job:again(delay, i))
      times[i] = nightshift.clock() - begun
    end
    table.sort(times)
    return at(times, 0.5) * 1e6
  end

  local first = sample()
  for _ = 1, math.max(0, n // SAMPLE - 2) do sample() end
  local last = sample()

  local function count(name) return tables.ask(db, "SELECT COUNT(*) AS n FROM nightshift_" .. name) end
  tell {
    polls = assert(db:job(id)).polls, delay = delay, hold = reader ~= nil, first_us = first, last_us = last,
    ratio = last / first,
    job = count "job", ready = count "ready", scheduled = count "scheduled", attempt = count "attempt",
  }
end

local function sleep(seconds) assert(os.execute("sleep " .. math.max(0, seconds))) end

local function used_by(pids)
  local sum = 0
  for _, pid in ipairs(pids) do sum = sum + processes.used(pid) end
  return sum
end

-- The processor time of host and server in so many seconds.
local function watch(h, seconds)
  local pids, server = processes.below(h.pid), processes.server(db)
  local of_host, of_server, begun = used_by(pids), processes.used(server), nightshift.clock()
  sleep(seconds)
  local took = nightshift.clock() - begun
  return (used_by(pids) - of_host) / took * 100, (processes.used(server) - of_server) / took * 100
end

-- Parks so many jobs; their queue, and how many.
local function park(scale)
  local parked = math.max(1000, 1000000 * scale // 1)
  assert(db:queue "bench":push "poll") -- makes the queue
  local queue = tables.ask(db, "SELECT id AS n FROM nightshift_queue WHERE name = 'bench'")
  tables.empty(db)
  tables.fill(db, parked, { queue = queue, name = "poll", due = tables.far })
  tables.rest(db)
  return queue, parked
end

function measures.idle(scale)
  scale = tonumber(scale)
  local seconds, asked = math.max(2, 12 * math.min(1, scale * 4) // 1), 0
  local function statements()
    asked = asked + 1
    return tonumber(assert(db:execute "SHOW GLOBAL STATUS LIKE 'Questions'")[1].Value) - asked
  end
  local _, parked = park(scale)
  do
    local h <close> = start_host(WORKERS)
    sleep(2)
    local before = statements()
    local of_host, of_server = watch(h, seconds)
    tell { what = "parked jobs, none of them due", host_cpu_percent = of_host, server_cpu_percent = of_server,
      queries_per_s = (statements() - before) / seconds, parked = parked }
  end
  tables.empty(db)
end

local DUE_A_SECOND <const> = 1000
local LEAD <const> = 3 -- seconds until the first is due: the host has started by then

-- Due polls note the delay of their start, and are parked again.
function measures.due(scale)
  scale = tonumber(scale)
  local seconds = math.max(2, 20 * math.min(1, scale * 4) // 1)
  local n, queue, parked = DUE_A_SECOND * seconds, park(scale)
  local skew = tables.now(db) - nightshift.clock() * 1e6 // 1
  local start = tables.now(db) + LEAD * 1000000
  tables.fill(db, n, { queue = queue, name = "poll", payload = ("%d"):format(skew),
    due = ("%d + seq * %d"):format(start, 1000000 // DUE_A_SECOND) })
  local h <close> = start_host(WORKERS)
  sleep((start - tables.now(db)) / 1e6)
  local of_host, of_server = watch(h, seconds)
  sleep(1)
  h:stop()
  local late = {}
  for i, row in ipairs(assert(db:execute "SELECT state FROM nightshift_job WHERE polls > 0")) do
    late[i] = tonumber(row.state) / 1000
  end
  assert(#late == n, ("bench: %d of %d jobs have polled"):format(#late, n))
  table.sort(late)
  tables.empty(db)
  tell { what = "start of a parked job, after it is due", p50_ms = at(late, 0.5), p99_ms = at(late, 0.99),
    max_ms = at(late, 1), host_cpu_percent = of_host, server_cpu_percent = of_server, parked = parked, jobs = n }
end

-- --------------------------------------------------- for other jobs: many trees

local CHILDREN <const> = 10
local AT_ONCE <const> = 100 -- trees of one transaction

local function push_flows(n)
  local flows = {}
  for i = 1, n do
    local children = {}
    for k = 1, CHILDREN do children[k] = { name = "noop", payload = payload } end
    flows[i] = { name = "noop", payload = payload, queue = "bench", children = children }
  end
  assert(db:flow_many(flows))
end

-- The server's time of the first lease; asks until there is one.
local function first_claim(log)
  for _ = 1, 6000 do
    local claimed = tables.ask(db, "SELECT claimed AS n FROM nightshift_lease ORDER BY id LIMIT 1")
    if claimed then return claimed end
    assert(db:execute "DO SLEEP(0.005)")
  end
  error("flows: the host claims nothing, see " .. log, 0)
end

-- Seconds from the first claim to the last verdict of so many trees.
local function process(parents)
  local log = build .. "/bench/flows.log"
  local command = "NIGHTSHIFT_URL='%s' %s >%s 2>&1"
  local work = ("%s/bin/nightshift work %s --workers %d --drain --drain-within 0"):format(build, SCRIPT, WORKERS)
  local host = assert(io.popen(command:format(url, processes.tied(work, "QUIT"), log)))
  local begun = first_claim(log)
  if not host:close() then error("flows: the host failed, see " .. log, 0) end
  local row = assert(db:execute [[SELECT COUNT(*) AS n, MAX(finished_at) AS last
    FROM nightshift_finished WHERE outcome = 'done']])[1]
  assert(row.n == parents * (CHILDREN + 1), "flows: not every job is done")
  return (row.last - begun) / 1e6
end

function measures.trees(scale)
  local parents = math.max(AT_ONCE, math.floor(6000 * tonumber(scale)))
  local function line(title, seconds)
    tell { what = title, rate = parents / seconds, parents = parents, children = CHILDREN, workers = WORKERS }
  end
  tables.empty(db)
  local begun = nightshift.clock()
  for done = 0, parents - 1, AT_ONCE do push_flows(math.min(AT_ONCE, parents - done)) end
  local pushed = nightshift.clock() - begun
  local processed = process(parents)
  line("flows of 10 children, pushed in bulk", pushed)
  line("flows of 10 children, processed", processed)
  line("flows of 10 children, pushed and processed", pushed + processed)
  tables.empty(db)
  push_all(assert(db:queue "bench"), parents, function() return { "parent", CHILDREN } end)
  line("parents that spawn 10 children and wait, processed", process(parents))
end

-- ------------------------------------------------------ for other jobs: one tree

local HOSTS <const>, WORKERS_OF_EACH <const> = 2, 4

-- A parent that has spawned its children and waits for them.
local function push_siblings(q, jobs)
  assert(q:push("noop", payload))
  local parent = assert(q:claim())
  for _ = 1, jobs do parent:spawn("noop", payload) end
  assert(parent:wait())
end

local function await_finished(n)
  for _ = 1, 12000 do
    if tables.ask(db, "SELECT COUNT(*) AS n FROM nightshift_finished") >= n then return end
    assert(db:execute "DO SLEEP(0.01)")
  end
  error("bench: the hosts do not get on", 0)
end

local function run_at_once(jobs)
  local q, siblings = assert(db:queue "bench"), what == "siblings"
  tables.empty(db)
  if siblings then push_siblings(q, jobs) else noops(q, jobs) end
  assert(q:pause())
  local hosts = {}
  for i = 1, HOSTS do hosts[i] = start_host(WORKERS_OF_EACH) end
  assert(q:resume())
  local start = tables.now(db)
  await_finished(jobs + (siblings and 1 or 0))
  local function last(which)
    return (tables.ask(db, "SELECT MAX(finished_at) AS n FROM nightshift_finished WHERE " .. which) - start) / 1e6
  end
  local seconds = last(siblings and "parent IS NOT NULL" or "TRUE")
  local lag = (last "TRUE" - seconds) * 1000 -- from the last sibling's end to its parent's
  for _, host in ipairs(hosts) do host:stop() end
  tell { what = what, jobs = jobs, seconds = seconds, lag_ms = lag, rate = jobs / seconds }
end

function measures.siblings(jobs) run_at_once(math.tointeger(tonumber(jobs))) end
measures.unrelated = measures.siblings

-- ------------------------------------------------------------------- for a limit

local GROUPS <const> = 1000
local HOST_WORKERS <const> = 4

local function fill(q, name, n, group)
  push_all(q, n, function(i) return { name, i, { group = group and group(i) } } end)
end

-- The rate of a queue without limits.
local function rate(jobs, beside)
  local q = assert(db:queue "free")
  if beside then
    local api = assert(db:queue "api")
    assert(api:limit { group = { rate = { 1, "1h" }, running = 1 } })
    fill(api, "noop", 3 * GROUPS, function(i) return "g" .. i % GROUPS end)
  end
  local h <close> = start_host(HOST_WORKERS)
  if beside then
    tables.await(db, ("SELECT 1 AS n FROM DUAL WHERE (SELECT COUNT(*) FROM nightshift_job) = %d"):format(2 * GROUPS))
  end
  assert(q:pause())
  fill(q, "noop", jobs)
  local begun = tables.now(db)
  assert(q:resume())
  local ended = tables.await(db, "SELECT 1 AS n FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM nightshift_job j "
    .. "JOIN nightshift_queue q ON q.id = j.queue_id WHERE q.name = 'free')")
  h:stop()
  tell { what = beside and "beside 1,000 groups" or "alone", jobs = jobs, rate = jobs / ((ended - begun) / 1e6) }
end

local limited = {}

function limited.alone(jobs) rate(jobs, false) end

function limited.beside(jobs) rate(jobs, true) end

function limited.groups(jobs)
  local q, took = assert(db:queue "api"), {}
  assert(q:limit { group = { running = 1 } })
  fill(q, "noop", jobs, function(i) return "g" .. i end)
  local begun = nightshift.clock()
  for _ = 1, jobs // 10 do
    local start = nightshift.clock()
    local list = assert(q:claim_many(10))
    took[#took + 1] = (nightshift.clock() - start) * 1000
    for _, job in ipairs(list) do assert(job:ack()) end
    if nightshift.clock() - begun > 20 then break end
  end
  local seconds = nightshift.clock() - begun
  table.sort(took)
  tell { what = ("%d groups, claims"):format(jobs), jobs = #took, rate = #took / seconds, p50_ms = at(took, 0.5),
    p99_ms = at(took, 0.99) }
end

-- Pushes n jobs of a tenant beside another's, 30 ms apart, of the same priority and of others. Tells
-- the times from push to start.
local function beside_a(q, n, title)
  local begun, late, priorities = {}, {}, { false, 10, 200 }
  for i = 1, n do
    local at_once = nightshift.clock()
    local id = assert(q:push("start", 1, { group = "b", priority = priorities[i % 3 + 1] or nil }))
    begun[id] = at_once
    assert(db:execute "DO SLEEP(0.03)")
  end
  for id, from in pairs(begun) do
    tables.await(db, ("SELECT 1 AS n FROM nightshift_finished WHERE id = %d"):format(id))
    late[#late + 1] = (assert(db:job(id)).result - from) * 1000
  end
  table.sort(late)
  tell { what = title, jobs = n, p50_ms = at(late, 0.5), p99_ms = at(late, 0.99), max_ms = at(late, 1) }
end

function limited.fair(jobs)
  local q = assert(db:queue "api")
  assert(q:limit { group = { fair = true } })
  fill(q, "step", jobs, function() return "a" end)
  local h <close> = start_host(HOST_WORKERS)
  tables.await(db, "SELECT 1 AS n FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM nightshift_ready WHERE job_id > 0)")
  beside_a(q, 100, ("fair, %d of another tenant"):format(jobs))
  h:stop()
end

function limited.fresh(jobs)
  local q = assert(db:queue "api")
  assert(q:limit { group = { fair = true } })
  assert(q:pause())
  local h <close> = start_host(HOST_WORKERS)
  fill(q, "step", jobs, function() return "a" end)
  assert(q:resume())
  beside_a(q, 50, ("fair, %d of another tenant just pushed"):format(jobs))
  h:stop()
end

for name, measure in pairs(limited) do
  measures[name] = function(jobs)
    tables.empty(db)
    measure(math.tointeger(tonumber(jobs)))
  end
end

measures[what](table.unpack(arg, 4))
