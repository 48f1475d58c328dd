-- 20,000 workers on one host, and a process per job.
--   workers.lua URL BUILD [SCALE]
-- All workers meet: a job that ends only when as many are running as there are
-- workers, one for each of them, proves that all are busy at one moment. Then they
-- run jobs of one second each. SCALE multiplies workers and jobs.
local host = require "bench.host"
local nightshift = require "nightshift"

local url, build, scale = arg[1], arg[2], tonumber(arg[3] or 1)
local workers = math.max(2, math.floor(20000 * scale))
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
  return host.start { url = url, build = build, script = "bench/crowd.lua", workers = n, options = options }
end

local function crowd()
  clear()
  local begun = nightshift.clock()
  local _ <close> = start(workers)
  local ready = nightshift.clock() - begun
  begun = nightshift.clock()
  push("meet", workers, workers)
  await("meet", workers)
  print(('{"what":"%d workers, all busy at one moment","start_s":%.1f,"met_s":%.1f,"workers":%d}')
    :format(workers, ready, nightshift.clock() - begun, workers))
  local jobs = workers * 10
  push("second", nil, jobs)
  local row = await("second", jobs)
  print(('{"what":"%d workers, jobs of one second","rate":%.1f,"jobs":%d,"workers":%d}')
    :format(workers, jobs / ((row.last - row.first) / 1e6), jobs, workers))
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
