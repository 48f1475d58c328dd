-- The cost of a host that is there. "idle": its processor time and the server's with nothing to do,
-- and its statements. "memory": of each worker. "workers": 20,000 of them on one host, and a
-- process per job. "capacity": bytes of redo, of the binary log and of the tables, of a job. Prints a
-- JSON line for each figure.
--   lua5.4 bench/questions/footprint.lua URL BUILD idle SECONDS WORKERS…
--   lua5.4 bench/questions/footprint.lua URL BUILD memory|workers|capacity [SCALE]
local core = require "nightshift.core"
local nightshift = require "nightshift"
local processes = require("bench.lib.stage").processes
local tables = require("bench.lib.stage").tables

-- The handlers for `nightshift work`.
local handlers = {
  noop = function() end,
  fails = function(job)
    if job.attempts == 0 then return nil, "no" end
  end,
  -- Ends when as many as the payload says have begun: when all are busy at once.
  -- They look 4,000 times a second, all together.
  meet = function(job)
    local shared = nightshift.shared
    assert(shared:incr("here", 1))
    while assert(shared:get "here") < job.payload do core.sleep(job.payload / 4000 * (0.5 + math.random())) end
  end,
  second = function() core.sleep(1) end,
}
if ... == "bench/questions/footprint.lua" then return handlers end

local questions = {}

function questions.idle(s)
  return {
    title = "An idle host",
    text = "Processor time of all the host's processes, and of the server on its behalf, as parts of one processor."
      .. " Statements to the server, and how many of the seconds had none.",
    rounds = 1,
    ask = { function()
      local part = math.min(s.scale, 1)
      return s:program("footprint", "idle", math.max(2, 20 * part // 1 | 0), 8, math.max(20, 500 * part // 1 | 0))
    end },
  }
end

function questions.memory(s)
  return {
    title = "Memory per worker",
    rounds = 1,
    ask = { function() return s:program("footprint", "memory", s.scale) end },
  }
end

function questions.workers(s)
  return {
    title = "Many workers",
    rounds = 1,
    ask = { function() return s:program("footprint", "workers", s.scale) end },
  }
end

function questions.capacity(s)
  return {
    title = "Bytes of a job",
    text = "Bytes per job: of the redo log, of the binary log, and what the files of the tables have grown by. Asked"
      .. " alone (--only capacity), the server has a binary log.",
    rounds = 1,
    ask = { function() return s:program("footprint", "capacity", s.scale) end },
  }
end

if ... == "bench.questions.footprint" then return questions end

local url, build, what = arg[1], arg[2], arg[3]
local db <close> = assert(nightshift.open(url))
local measures = {}

-- ---------------------------------------------------------------------- idle

-- A second is quiet when no statement reached the server in it. The server's own time is measured
-- first, without a host, and taken off.
function measures.idle(given, ...)
  local seconds = math.tointeger(tonumber(given))
  local settle = math.min(12, seconds) -- seconds until a host has done its first round of looking
  local server = processes.server(db)

  local function sleep(n) assert(os.execute("sleep " .. n)) end

  -- Statements so far, but for these questions.
  local asked = 0
  local function questions_so_far()
    asked = asked + 1
    return tonumber(assert(db:execute "SHOW GLOBAL STATUS LIKE 'Questions'")[1].Value) - asked
  end

  local function used_by(pids)
    local sum = 0
    for _, pid in ipairs(pids) do sum = sum + processes.used(pid) end
    return sum
  end

  -- The parts of a processor that the server and `pids` use, percent; statements a
  -- second; the part of the seconds that are quiet, percent.
  local function watch(pids)
    local of_server, of_host, first, quiet = processes.used(server), used_by(pids), questions_so_far(), 0
    local last = first
    for _ = 1, seconds do
      sleep(1)
      local now = questions_so_far()
      if now == last then quiet = quiet + 1 end
      last = now
    end
    local function percent(used) return used / seconds * 100 end
    return percent(processes.used(server) - of_server), percent(used_by(pids) - of_host), (last - first) / seconds,
      percent(quiet)
  end

  local alone = watch {}
  for _, number in ipairs { ... } do
    local workers = tonumber(number)
    local h = processes.start_host { url = url, build = build, workers = workers }
    sleep(settle)
    local together, of_host, statements, quiet = watch(processes.below(h.pid))
    h:stop()
    print(('{"what":"%d workers","workers":%d,"seconds":%d,"host_cpu_percent":%.3f,"server_cpu_percent":%.3f,'
      .. '"queries_per_s":%.2f,"quiet_percent":%.0f}'):format(workers, workers, seconds, of_host,
      math.max(0, together - alone), statements, quiet))
  end
end

-- -------------------------------------------------------------------- memory

local function comm(pid)
  local file <close> = io.open(("/proc/%d/comm"):format(pid))
  return file and file:read "l"
end

-- KiB; nothing when the process is gone. It is PSS: a page that n processes share counts as a
-- n-th of one for each.
local function pss(pid)
  local file <close> = io.open(("/proc/%d/smaps_rollup"):format(pid))
  return file and tonumber(file:read "a":match "Pss:%s*(%d+)")
end

local function fill(jobs)
  local q = assert(db:queue "bench")
  local payload = ("x"):rep(98)
  for _ = 1, jobs // 100 do
    local items = {}
    for i = 1, 100 do items[i] = { "noop", payload } end
    assert(q:push_many(items))
  end
end

local function await_end()
  repeat
    local row = assert(db:execute "SELECT COUNT(*) AS n FROM nightshift_job")[1]
    assert(db:execute "DO SLEEP(0.05)")
  until row.n == 0
end

-- After each worker has run a hundred jobs. `scale` multiplies the number of workers, 500.
function measures.memory(scale)
  local workers = math.max(2, math.floor(500 * tonumber(scale or 1)))
  for _, table_name in ipairs { "job", "ready", "lease", "finished", "scheduled" } do
    assert(db:execute("TRUNCATE nightshift_" .. table_name)) -- a listener that sleeps would hold this up
  end
  local h <close> = processes.start_host { url = url, build = build, workers = workers }
  fill(workers * 100)
  await_end()
  local all, ours, n = 0, 0, 0
  for _, pid in ipairs(processes.below(h.pid)) do
    local kib = pss(pid) or 0
    all = all + kib
    if comm(pid) == "ns-worker" then ours, n = ours + kib, n + 1 end
  end
  assert(n == workers, "not all workers are there")
  print(('{"what":"a worker","pss_kib":%.0f,"workers":%d}'):format(ours / n, workers))
  print(('{"what":"host with %d workers, all told","pss_mib":%.1f,"workers":%d}'):format(workers, all / 1024, workers))
end

-- ------------------------------------------------------------------- workers

-- All workers meet: a job ends only when as many are running as there are workers. One job for
-- each of them proves that all are busy at one moment. Then they run jobs of one second each
-- for a minute.
local q = assert(db:queue "bench")
local SECONDS = 60

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
  return processes.start_host { url = url, build = build, script = "bench/questions/footprint.lua", workers = n,
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
local function steady(workers)
  assert(q:pause())
  push("second", nil, workers * SECONDS)
  local since = server_time()
  assert(q:resume())
  return rate_after(since)
end

local function crowd(workers)
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
    :format(workers, SECONDS, steady(workers), workers))
  h:stop()
  clear()
end

-- The jobs wait when the host comes, so their first end is its first work.
local function isolated(scale)
  local jobs = math.max(20, math.floor(5000 * scale))
  clear()
  push("noop", ("x"):rep(98), jobs)
  local _ <close> = start(8, "--isolation job")
  local row = await("noop", jobs)
  print(('{"what":"a process per job, 8 at a time","rate":%.1f,"jobs":%d,"workers":8}')
    :format(jobs / ((row.last - row.first) / 1e6), jobs))
end

-- `scale` multiplies workers and jobs.
function measures.workers(scale)
  isolated(tonumber(scale or 1))
  crowd(math.max(2, math.floor(20000 * tonumber(scale or 1))))
end

-- ------------------------------------------------------------------ capacity

-- What the server counts: bytes. The binary log has one file, as it is small.
local function counters()
  local found = { binlog = 0 }
  local row = assert(db:execute "SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'")[1]
  found.redo = tonumber(row.Value)
  row = assert(db:execute "SHOW MASTER STATUS")[1]
  found.binlog = row and row.Position or 0
  return found
end

-- The bytes of the files of our tables, by their names without "nightshift_".
local function files()
  local found, all = {}, 0
  for _, row in ipairs(assert(db:execute [[SELECT NAME AS name, FILE_SIZE AS size
    FROM information_schema.INNODB_SYS_TABLESPACES WHERE NAME LIKE CONCAT(DATABASE(), '/nightshift\\_%')]])) do
    found[row.name:match "/nightshift_(.*)"] = row.size
    all = all + row.size
  end
  return found, all
end

-- Does some work on `jobs` jobs, until purge has caught up; a line with the bytes per job.
local function cost(title, jobs, work)
  tables.rest(db)
  local before, _, size = counters(), files()
  work()
  tables.rest(db)
  local after, _, now = counters(), files()
  local function each(counter) return (after[counter] - before[counter]) / jobs end
  print(assert(nightshift.encode {
    what = title, jobs = jobs, redo_bytes = each "redo", binlog_bytes = after.binlog > 0 and each "binlog" or nil,
    tables_bytes = (now - size) / jobs,
  }))
end

local function size_of(title, which)
  tables.rest(db)
  print(assert(nightshift.encode { what = title, file_mib = files()[which] / (1 << 20) }))
end

local function push_jobs(n, handler, at_once, bytes)
  local queue, payload = assert(db:queue "bench"), ("x"):rep((bytes or 100) - 2)
  for _ = 1, n // at_once do
    local items = {}
    for i = 1, at_once do items[i] = { handler, payload, { backoff = 0.001 } } end
    if at_once == 1 then assert(queue:push(handler, payload)) else assert(queue:push_many(items)) end
  end
end

-- A host works off what is there.
local function work_off(workers, options)
  local _ <close> = processes.start_host { url = url, build = build, workers = workers, options = options,
    script = "bench/questions/footprint.lua" }
  await_end()
end

-- One job after the other, each in transactions of its own: the most that one can cost.
local function one_by_one(n)
  local _ <close> = processes.start_host { url = url, build = build, workers = 2,
    script = "bench/questions/footprint.lua" }
  for _ = 1, n do
    push_jobs(1, "noop", 1)
    repeat until not tables.ask(db, "SELECT id AS n FROM nightshift_job LIMIT 1")
  end
end

function measures.capacity(scale)
  local n = math.max(1000, 100000 * tonumber(scale or 1) // 1000 * 1000)
  local few, workers = n // 20, n > 1000 and 8 or 2
  local function all() work_off(workers) end
  tables.empty(db)
  cost("push_many, 1000 a time", n, function() push_jobs(n, "noop", 1000) end)
  size_of(("the file of nightshift_job, %d jobs"):format(n), "job")
  cost(("worked off, %d workers"):format(workers), n, all)
  size_of(("the file of nightshift_finished, %d jobs"):format(n), "finished")
  cost("deleted by prune", n, function() assert(db:prune { done = 0 }) end)
  size_of("the same after the prune", "finished")
  assert(db:execute "OPTIMIZE TABLE nightshift_finished")
  size_of("the same after OPTIMIZE TABLE", "finished")
  push_jobs(n, "noop", 1000)
  cost("worked off, --history failed", n, function() work_off(workers, "--history failed") end)
  size_of("the file of nightshift_job, without a job", "job")
  cost("push_many, payload 4 KiB", few, function() push_jobs(few, "noop", few // 50, 4096) end)
  cost("worked off, payload 4 KiB", few, all)
  cost("push, one a time", few, function() push_jobs(few, "noop", 1) end)
  all()
  push_jobs(few, "fails", 1000 < few and 1000 or few)
  cost("worked off, each failed once before", few, all)
  cost("pushed and worked off one by one", few, function() one_by_one(few) end)
end

measures[what](table.unpack(arg, 4))
