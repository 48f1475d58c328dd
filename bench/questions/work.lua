-- Jobs through `nightshift work`, end to end. "work": jobs pushed in bulk, then worked off, with
-- all workers up before the first job may start. Beside them claim + ack of the floor in batches of
-- 1000. And the processor time of both sides, server and clients, for push and process and purge
-- together. "latency": from the call of q:push to the first line of the handler, under a host that
-- sleeps, and under one that is half busy. Beside a push and a claim by one connection in bare SQL.
-- Prints a JSON line for each row.
--   lua5.4 bench/questions/work.lua URL BUILD work JOBS WORKERS [PAYLOAD [all|failed]]
-- The last is the host's --history. The rate is from the moment the queue is opened
-- to the last verdict, by the server's clock. Fails unless every job is done.
--   lua5.4 bench/questions/work.lua URL BUILD latency [SCALE]
--   lua5.4 bench/questions/work.lua URL BUILD feed RATE FILE
--
-- "feed" is the load: RATE jobs a second until FILE is gone. One clock: the monotonic one
-- of the machine, which the handler reads first and returns. This program reads it before the
-- push. So a figure has in it the push's own commit, the ring, and the claim's commit.
local nightshift = require "nightshift"

-- The handlers for `nightshift work`, here and in every question without its own. "noop" does
-- nothing, so that only the queue costs time; "start" returns its time.
local handlers = {
  start = function() return nightshift.clock() end,
  noop = function() end,
}
if ... == "bench/questions/work.lua" then return handlers end

local processes = require("bench.lib.programs").processes

local questions = {}

local WORKERS = { 1, 2, 8, 80, 500 }

local function per_10k(line) return (line.server_cpu + line.client_cpu) / line.jobs * 10000 end

function questions.work(s)
  local jobs = s:jobs(100000, 1000)
  local ask = {}
  local function add(workers, history, title)
    table.insert(ask, function()
      local floor, ours = s:both(
        function() return s:floor("claim", { jobs = jobs, batch = 1000, history = history == "all" and 1 or 0 }) end,
        function() return s:program("work", "work", jobs, workers, 100, history)[1] end)
      return {
        what = title, jobs = jobs, workers = workers,
        floor = floor.rate, ours = ours.rate, ratio = ours.rate / floor.rate,
        cpu_s = per_10k(ours), floor_cpu_s = per_10k(floor), server_cpu_s = ours.server_cpu / jobs * 10000,
      }
    end)
  end
  local numbers = {}
  for i, n in ipairs(WORKERS) do numbers[i] = n <= jobs // 100 and n or nil end -- so that each has some jobs
  for _, n in ipairs(numbers) do add(n, "all", ("%d worker%s"):format(n, n > 1 and "s" or "")) end
  for _, n in ipairs(numbers) do add(n, "failed", ("%d worker%s, no history"):format(n, n > 1 and "s" or "")) end
  return {
    title = "End to end: no-op jobs through `nightshift work`",
    text = "Floor: claim + ack in batches of 1000. No history: `--history failed`, and the floor writes none. Processor"
      .. " time is per 10,000 jobs, of the server and all clients, for pushing, processing and purging together. The"
      .. " server's part has a column of its own.",
    ask = ask,
  }
end

function questions.latency(s)
  local ask = {
    function()
      local line = s:floor("latency", { jobs = s:jobs(1000) })
      line.what = "bare SQL: one connection pushes, commits, claims, commits"
      return line
    end,
  }
  table.insert(ask, function() return s:program("work", "latency", s.scale) end)
  return { title = "From push to handler", ask = ask }
end

if ... == "bench.questions.work" then return questions end

local url, build, what = arg[1], arg[2], arg[3]
local LUA = arg[-1] or "lua5.4"
local measures = {}

-- Reads one number from the database.
local function ask(db, sql, ...)
  local row = assert(db:execute(sql, ...))[1]
  return row and row.n
end

local function server_now(db)
  return ask(db, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS n")
end

-- ---------------------------------------------------------------------- work

-- The last job is looked for from the end, where the jobs stand that end last. Gives the moment
-- when it was gone.
local function wait_until_done(db)
  for _ = 1, 12000 do
    if not ask(db, "SELECT id AS n FROM nightshift_job ORDER BY id DESC LIMIT 1") then return server_now(db) end
    assert(db:execute "DO SLEEP(0.01)")
  end
  error("bench: the jobs do not end", 0)
end

function measures.work(jobs, workers, payload, history)
  jobs, workers, history = tonumber(jobs), tonumber(workers), history or "all"
  local fill = ("%s bench/questions/verbs.lua '%s' fill jobs=%d payload=%s"):format(LUA, url, jobs, payload or "100")
  assert(os.execute(processes.tied(fill)))
  local db <close> = assert(nightshift.open(url))
  local q = assert(db:queue "bench")
  assert(q:pause())
  local h = processes.start_host { url = url, build = build, workers = workers, options = "--history " .. history }
  local start = server_now(db)
  assert(q:resume())
  local gone = wait_until_done(db)
  h:stop()
  local function finished(which)
    return ask(db, "SELECT COUNT(*) AS n FROM nightshift_finished WHERE outcome " .. which)
  end
  assert(finished "<> 'done'" == 0 and finished "= 'done'" == (history == "all" and jobs or 0),
    "bench: not every job is done")
  local last = ask(db, "SELECT MAX(finished_at) AS n FROM nightshift_finished") or gone
  local seconds = (last - start) / 1e6
  print(('{"what":"work","jobs":%d,"workers":%d,"history":"%s","seconds":%.6f,"rate":%.1f}')
    :format(jobs, workers, history, seconds, jobs / seconds))
end

-- ------------------------------------------------------------------- latency

local FIRST, DRAINED = 200, 50000
local TICK = 0.01 -- of the load, seconds
local padding = ("x"):rep(98) -- 100 bytes with its quotes

local function sleep(db, seconds) assert(db:execute("DO SLEEP(?)", math.max(seconds, 0))) end

-- Pushes 'n' jobs that do nothing, a thousand at a time.
local function push_noops(q, n)
  for done = 0, n - 1, 1000 do
    local items = {}
    for i = 1, math.min(1000, n - done) do items[i] = { "noop", padding } end
    assert(q:push_many(items))
  end
end

function measures.feed(rate, file)
  local db <close> = assert(nightshift.open(url))
  local q = assert(db:queue "bench")
  local due = nightshift.clock()
  local owed = 0
  while io.open(file) do
    owed = owed + tonumber(rate) * TICK
    push_noops(q, math.floor(owed))
    owed = owed % 1
    due = due + TICK
    sleep(db, due - nightshift.clock())
  end
end

local function wait_until(db, expected, sql, ...)
  for _ = 1, 6000 do
    if ask(db, sql, ...) ~= 0 then return end
    sleep(db, 0.01)
  end
  error(("bench: %s does not come"):format(expected), 0)
end

-- Half of the jobs a second that are pushed and done, both at once.
local function half_of_all(db, q, scale)
  local jobs = DRAINED * scale // 1
  local begun = server_now(db)
  push_noops(q, jobs)
  wait_until(db, "the end of the jobs", "SELECT COUNT(*) = 0 AS n FROM nightshift_job")
  local last = ask(db, "SELECT MAX(finished_at) AS n FROM nightshift_finished")
  return jobs / ((last - begun) / 1e6) / 2
end

-- Pushes one job after the other with pauses, and tells the delay of each start.
local function sample(db, q, n, pause)
  local pushed, late = {}, {}
  for i = 1, n do
    local at = nightshift.clock()
    pushed[i] = { id = assert(q:push("start", padding)), at = at }
    sleep(db, pause * (0.5 + math.random()))
  end
  wait_until(db, "the last job", "SELECT COUNT(*) = 0 AS n FROM nightshift_job WHERE id = ?", pushed[n].id)
  for i, p in ipairs(pushed) do
    wait_until(db, "a job", "SELECT COUNT(*) AS n FROM nightshift_finished WHERE id = ? AND outcome = 'done'", p.id)
    late[i] = (assert(db:job(p.id)).result - p.at) * 1000
  end
  table.sort(late)
  return late
end

local function at(sorted, share) return sorted[math.max(1, math.ceil(#sorted * share))] end

local function tell(title, late, more)
  print(('{"what":"%s","p50_ms":%.3f,"p99_ms":%.3f,"max_ms":%.3f,"jobs":%d%s}')
    :format(title, at(late, 0.5), at(late, 0.99), late[#late], #late, more or ""))
end

-- Pushes so many jobs a second beside this process, until it is closed.
local function feed(rate)
  local file = os.tmpname()
  local command = ("%s bench/questions/work.lua '%s' '%s' feed %.0f %s"):format(LUA, url, build, rate, file)
  local pipe = assert(io.popen(processes.tied(command)))
  return setmetatable({}, { __close = function()
    os.remove(file)
    pipe:close()
  end })
end

function measures.latency(scale)
  scale = tonumber(scale or 1)
  local samples = math.max(50, 1000 * scale // 1)
  local db <close> = assert(nightshift.open(url))
  local q = assert(db:queue "bench")
  for _, name in ipairs { "job", "ready", "lease", "finished", "scheduled", "edge", "child" } do
    assert(db:execute("TRUNCATE nightshift_" .. name))
  end
  local _ <close> = processes.start_host { url = url, build = build, workers = 2 }
  sample(db, q, math.min(FIRST, samples), 0.005) -- statements get prepared, pages warm
  tell("push to handler start, idle", sample(db, q, samples, 0.015))
  local rate = half_of_all(db, q, scale)
  local _ <close> = feed(rate)
  sleep(db, 0.5)
  tell("push to handler start, half load", sample(db, q, samples, 0.01), (',"load":%.0f'):format(rate))
end

measures[what](table.unpack(arg, 4))
