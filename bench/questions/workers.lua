-- 20,000 workers on one host, and a process per job. Prints a JSON line for each row.
--   lua5.4 bench/questions/workers.lua URL BUILD [SCALE]
-- All workers meet: a job ends only when as many are running as there are workers. One job for
-- each of them proves that all are busy at one moment. Then they run jobs of one second each
-- for a minute. SCALE multiplies workers and jobs.
local core = require "nightshift.core"
local nightshift = require "nightshift"
local processes = require("bench.lib.programs").processes

-- The handlers for `nightshift work`.
local handlers = {
  noop = function() end,
  -- Ends when as many as the payload says have begun: when all are busy at once.
  -- They look 4,000 times a second, all together.
  meet = function(job)
    local shared = nightshift.shared
    assert(shared:incr("here", 1))
    while assert(shared:get "here") < job.payload do core.sleep(job.payload / 4000 * (0.5 + math.random())) end
  end,
  second = function() core.sleep(1) end,
}
if ... == "bench/questions/workers.lua" then return handlers end

local function question(s)
  return {
    title = "Many workers",
    rounds = 1,
    ask = { function() return s:program("workers", s.scale) end },
  }
end
if ... == "bench.questions.workers" then return question end

local url, build, scale = arg[1], arg[2], tonumber(arg[3] or 1)
local workers = math.max(2, math.floor(20000 * scale))
local SECONDS = 60
local db <close> = assert(nightshift.open(url))
local q = assert(db:queue "bench")

-- Before a host starts: a listener that sleeps would hold this up.
local function clear()
  for _, name in ipairs { "job", "ready", "lease", "finished", "scheduled" } do
    assert(db:execute("TRUNCATE nightshift_" .. name))
  end
end

local function push(name, payload, n)
  for done = 0, n - 1, 1000 do
    local items = {}
    for i = 1, math.min(1000, n - done) do items[i] = { name, payload } end
    assert(q:push_many(items))
  end
end

-- Waits until no job is left; the first and the last end of `n` of a name.
local function await(name, n)
  repeat
    assert(db:execute "DO SLEEP(0.1)")
  until not assert(db:execute "SELECT id FROM nightshift_job LIMIT 1")[1]
  local row = assert(db:execute([[SELECT COUNT(*) AS n, MIN(finished_at) AS first, MAX(finished_at) AS last
    FROM nightshift_finished WHERE outcome = 'done' AND name = ?]], name))[1]
  assert(row.n == n, "not every job is done")
  return row
end

local function start(n, options)
  return processes.start_host { url = url, build = build, script = "bench/questions/workers.lua", workers = n,
    options = options }
end

local function server_time()
  return assert(db:execute "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS t")[1].t
end

-- How many jobs end per second, from the first end after `since` on.
local function rate_after(since)
  local first
  repeat
    assert(db:execute "DO SLEEP(0.1)")
    first = assert(db:execute([[SELECT MIN(finished_at) AS t FROM nightshift_finished
      WHERE outcome = 'done' AND finished_at > ?]], since))[1].t
  until first
  for _ = 0, SECONDS do assert(db:execute "DO SLEEP(1)") end -- no reply takes longer than read_timeout
  local ended = assert(db:execute([[SELECT COUNT(*) AS n FROM nightshift_finished
    WHERE outcome = 'done' AND finished_at >= ? AND finished_at < ?]], first, first + SECONDS * 1000000))[1].n
  return ended / SECONDS
end

-- More of them than can end in that time; no worker claims before the last is there.
local function steady()
  assert(q:pause())
  push("second", nil, workers * SECONDS)
  local since = server_time()
  assert(q:resume())
  return rate_after(since)
end

local function crowd()
  clear()
  local begun = nightshift.clock()
  local there, crowded = pcall(start, workers)
  if not there then
    print(assert(nightshift.encode { what = crowded:match "bench: (.-)%s*$" }))
    return
  end
  local h <close> = crowded
  local ready = nightshift.clock() - begun
  begun = nightshift.clock()
  push("meet", workers, workers)
  await("meet", workers)
  print(('{"what":"%d workers, all busy at one moment","start_s":%.1f,"met_s":%.1f,"workers":%d}')
    :format(workers, ready, nightshift.clock() - begun, workers))
  print(('{"what":"%d workers, jobs of one second, for %d s","rate":%.1f,"workers":%d}')
    :format(workers, SECONDS, steady(), workers))
  h:stop()
  clear()
end

-- The jobs wait when the host comes, so their first end is its first work.
local function isolated()
  local jobs = math.max(20, math.floor(5000 * scale))
  clear()
  push("noop", ("x"):rep(98), jobs)
  local _ <close> = start(8, "--isolation job")
  local row = await("noop", jobs)
  print(('{"what":"a process per job, 8 at a time","rate":%.1f,"jobs":%d,"workers":8}')
    :format(jobs / ((row.last - row.first) / 1e6), jobs))
end

isolated()
crowd()
