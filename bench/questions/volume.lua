-- Beside millions of rows. "volume": claims beside rows that are not to be claimed. "looking":
-- reports over a large database; "pages": each page of `nightshift web` over the same. Each has a
-- database of its own, which SQL on the server fills, quickly, and prints JSON lines.
--   lua5.4 bench/questions/volume.lua URL BUILD volume|looking|pages SCALE [TEXT]
-- "pages" does not fill a database that has been filled before. It asks for addresses with TEXT.
local nightshift = require "nightshift"
local designs = require "spec.support.designs"
local processes = require("bench.lib.stage").processes
local report = require "bench.lib.report"

local questions = {}

-- In turns with the empty database.
function questions.volume(s)
  local function claim(what, batch)
    local jobs = s:jobs(math.min(2000 * batch, 60000), batch)
    local function options(keep) return { jobs = jobs, batch = batch, keep = keep } end
    return function()
      local empty, full = s:both(function() return s:verbs("claim", options(0)) end,
        function() return s:verbs("claim", options(1), "volume") end)
      local floor = s:floor("claim", options(0))
      return { what = what, floor = floor.rate, empty_rate = empty.rate, full_rate = full.rate,
        cost_ratio = empty.rate / full.rate, jobs = jobs }
    end
  end
  return {
    title = "Claims beside millions of other rows",
    text = "Claim + ack in C, in a database with 5 million scheduled, 5 million finished and 1 million waiting jobs."
      .. " Then in an empty one, and the ratio of the two.",
    prepare = function()
      assert(s.db:execute "CREATE OR REPLACE DATABASE volume CHARACTER SET utf8mb4")
      s:init "volume"
      local line = s:script("volume", "volume", "volume", s.scale)[1]
      io.stderr:write(("bench: volume: %d rows in %.0f s\n"):format(line.rows, line.seconds))
    end,
    clean = function() assert(s.db:execute "DROP DATABASE volume") end,
    ask = { claim("batch 1", 1), claim("batch 100", 100), claim("batch 1000", 1000) },
  }
end

function questions.looking(s)
  return {
    title = "Looking at large tables",
    text = "With 5 million finished jobs, a million live ones, and 100,000 of those claimed, in 200 batches: how long"
      .. " an answer takes. Ten times each, the first one not counted.",
    rounds = 1,
    prepare = function()
      assert(s.db:execute "CREATE OR REPLACE DATABASE looking CHARACTER SET utf8mb4")
      s:init "looking"
    end,
    clean = function() assert(s.db:execute "DROP DATABASE looking") end,
    ask = { function() return s:script("looking", "volume", "looking", s.scale) end },
  }
end

function questions.pages(s)
  return {
    title = "Pages over large tables",
    text = "Each page of `nightshift web`, with each filter, over the tables of the question before, and with tags,"
      .. " children, errors, adopted rows and a day of minutes: ms from the request to the page, without HTTP, and"
      .. " processor time of server and page together. Twenty times each, behind one that is not counted. The first"
      .. " lines are bare statements: what of that is the machine.",
    rounds = 1,
    prepare = function()
      assert(s.db:execute "CREATE OR REPLACE DATABASE pages CHARACTER SET utf8mb4")
      s:init "pages"
    end,
    clean = function() assert(s.db:execute "DROP DATABASE pages") end,
    ask = { function() return s:script("pages", "volume", "pages", s.scale) end },
  }
end

if ... == "bench.questions.volume" then return questions end

io.stdout:setvbuf "line"
local url, what, scale = arg[1], arg[3], tonumber(arg[4])
local db <close> = assert(nightshift.open { url = url, read_timeout = "10m" }) -- it makes millions of rows at once
local PAYLOAD = "CONCAT('\"', REPEAT('x', 98), '\"')"
local HOUR = 3600 * 1000000
local measures = {}

local function run(sql, ...) return assert(db:execute(sql, ...)) end

-- --------------------------------------------------------------------- claims

-- At scale 1: five million scheduled jobs, five million done ones and a million that wait for
-- them. No two are due at the same time; the first is due in an hour. Prints how many rows, and
-- how long it took.
function measures.volume()
  local function count(n) return math.max(1, math.floor(n * scale)) end
  local scheduled, finished, waiting = count(5000000), count(5000000), count(1000000)
  local rows = 2 * scheduled + finished + 2 * waiting

  -- Ids below the sequence's next ones: the jobs were pushed before. Tables are loaded as a
  -- whole, without a look at each row.
  run "INSERT INTO nightshift_queue (name, created) VALUES ('waiting', 1)"
  local id = assert(db:execute "SELECT id FROM nightshift_queue WHERE name = 'waiting'")[1].id
  local now = assert(db:execute "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS t")[1].t
  local begun = nightshift.clock()
  run "SET SESSION unique_checks = 0, foreign_key_checks = 0, check_constraint_checks = 0"
  run(("SELECT SETVAL(nightshift_id, %d)"):format((scheduled + waiting + finished) // 100 + 1000))

  run(([[INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes,
    backoff, timeout, created, due, unmet, nonce)
  SELECT seq, ?, 'noop', %s, 100, 155, 10, 3, 5000000, 3600000000, ?,
    IF(seq <= ?, ? + seq * 500, ?), IF(seq <= ?, 0, 1), seq
  FROM seq_1_to_%d]]):format(PAYLOAD, scheduled + waiting), id, now, scheduled, now + HOUR, now, scheduled)
  run(([[INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run)
  SELECT ? + seq * 500, seq, ?, 155, 1 FROM seq_1_to_%d]]):format(scheduled), now + HOUR, id)
  run(([[INSERT INTO nightshift_edge (on_id, job_id)
  SELECT (seq - 1) MOD ? + 1, ? + seq FROM seq_1_to_%d]]):format(waiting), scheduled, scheduled)
  run(([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls,
    crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, on_fail, nonce, holder)
  SELECT ? + seq, ?, 'noop', %s, 100, 'done', 1, 0, 0, 0, 0, 10, 3, 5000000, 3600000000,
    ? - 2 * ?, ? - ? + seq * 500, 'cancel', seq, 1
  FROM seq_1_to_%d]]):format(PAYLOAD, finished), scheduled + waiting, id, now, HOUR, now, HOUR)
  print(('{"what":"rows","rows":%d,"seconds":%.1f}'):format(rows, nightshift.clock() - begun))
end

-- -------------------------------------------------------------------- reports

local function count(n) return math.max(10, math.floor(n * scale)) end

local CLAIMED, READY, SCHEDULED, WAITING = count(100000), count(500000), count(350000), count(50000)
local LIVE, ENDED, BATCH = CLAIMED + READY + SCHEDULED + WAITING, count(5000000), 500
local FIRST = ENDED * 10 -- ids of live jobs are above it, every third
local JOB_NAME = "CONCAT('job.', seq MOD 5)"

local function server_time()
  return run("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS t")[1].t
end

-- At scale 1: 100,000 claimed jobs, in batches of 500. In two queues 500,000 ready, 350,000
-- scheduled and 50,000 waiting ones. And five million ended jobs, each fiftieth dead, with one of
-- twenty errors; 100,000 are the children of one.
local function fill()
  local now = server_time()
  run(("SELECT SETVAL(nightshift_id, %d)"):format((FIRST + 3 * LIVE) // 100 + 1000))
  run "SET SESSION unique_checks = 0, check_constraint_checks = 0, group_concat_max_len = 1000000"
  run("INSERT INTO nightshift_queue (id, name, created) VALUES (1, 'a', ?), (2, 'b', ?), (3, 'small', ?)", now, now,
    now)
  run("INSERT INTO nightshift_holder (id, kind, host, pid, boot_id, connection, started, beat, version) VALUES "
    .. "(1, 'host', 'bench', 1, '', 1, ?, ?, '')", now, now)
  run(([[INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes, backoff,
    timeout, created, due, unmet, nonce)
  SELECT %d + seq * 3, 1 + seq MOD 2, %s, %s, 100, 155, 10, 5, 5000000, 3600000000, ?,
    IF(seq > ? AND seq <= ?, ? + seq, ? - ? + seq), seq > ?, seq
  FROM seq_1_to_%d]]):format(FIRST, JOB_NAME, PAYLOAD, LIVE), now, CLAIMED + READY, CLAIMED + READY + SCHEDULED,
    now + HOUR, now, HOUR, CLAIMED + READY + SCHEDULED)
  run(([[INSERT INTO nightshift_lease (id, holder, claimed, jobs)
  SELECT 1 + (seq - 1) DIV %d, 1, ?, CONCAT('[', GROUP_CONCAT(CONCAT('[', %d + seq * 3, ',1]')), ']')
  FROM seq_1_to_%d GROUP BY (seq - 1) DIV %d]]):format(BATCH, FIRST, CLAIMED, BATCH), now)
  run([[INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
  SELECT queue_id, rank, due, id, run, CRC32(name) FROM nightshift_job WHERE id > ? AND id <= ?]],
    FIRST + CLAIMED * 3, FIRST + (CLAIMED + READY) * 3)
  run([[INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run, kind)
  SELECT due, id, queue_id, rank, run, CRC32(name) FROM nightshift_job WHERE id > ? AND id <= ?]],
    FIRST + (CLAIMED + READY) * 3, FIRST + (CLAIMED + READY + SCHEDULED) * 3)
  run("INSERT INTO nightshift_edge (on_id, job_id) SELECT ?, id FROM nightshift_job WHERE unmet = 1", FIRST + 3)
  run(([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, reason, error, run, attempts,
    polls, crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, on_fail, nonce)
  SELECT seq * 10, 1 + seq MOD 2, %s, %s, 100, IF(seq MOD 50, 'done', 'dead'), IF(seq MOD 50, NULL, 'attempts'),
    IF(seq MOD 50, NULL, CONCAT('jobs.lua:', 1 + seq DIV 50 MOD 20, ': no file of job ', seq)), 1, 0,
    0, 0, 0, 10, 5, 1, 1, ? - ?, ? - seq, 'cancel', seq
  FROM seq_1_to_%d]]):format(JOB_NAME, PAYLOAD, ENDED), now, HOUR, now)
  run(("INSERT INTO nightshift_child (parent, seq, id) SELECT 1, seq, seq * 10 FROM seq_1_to_%d"):format(count(100000)))
end

--- The processor time of server and program together so far, ms: without what other processes cost.
local function processor()
  local sum, pid = os.clock() * 1000, processes.server(db)
  for task in io.popen(("ls /proc/%d/task"):format(pid)):lines() do
    local file <close> = io.open(("/proc/%d/task/%s/schedstat"):format(pid, task))
    sum = sum + (file and file:read "n" or 0) / 1000000
  end
  return sum
end

--- Prints how long an answer takes: the median and the most of ten times, behind one that is not
-- counted.
local function ask(title, answer)
  local times, most = {}, 0
  for i = 0, 10 do
    local begun = nightshift.clock()
    assert(answer(i))
    times[i] = (nightshift.clock() - begun) * 1000
    if i > 0 then most = math.max(most, times[i]) end
  end
  times[0] = nil
  print(assert(nightshift.encode { what = title, p50_ms = report.median(times), max_ms = most }))
end

function measures.looking()
  fill()

  -- Jobs of one state, spread over it.
  local function of(before, n) return function(i) return FIRST + 3 * (before + 1 + i * (n // 12)) end end

  local a_claimed, a_ready, a_scheduled = of(0, CLAIMED), of(CLAIMED, READY), of(CLAIMED + READY, SCHEDULED)

  ask("db:stats, as status shows it", function() return db:stats() end)
  ask("db:scale", function() return db:scale() end)
  ask("db:children, of 100,000", function() return db:children(1) end)
  ask("db:job, claimed", function(i) return db:job(a_claimed(i)) end)
  ask("db:job, ready", function(i) return db:job(a_ready(i)) end)
  ask("db:why, claimed", function(i) return db:why(a_claimed(i)) end)
  ask("db:jobs, all states", function() return db:jobs() end)
  for _, filter in ipairs {
    { state = "ready" }, { state = "running" }, { state = "dead" }, { name = "job.none" },
    { name = "job.none", state = "ready" }, { name = "job.none", state = "done" },
    { queue = "small", state = "scheduled" },
  } do
    local words = {}
    for _, key in ipairs { "state", "queue", "name" } do
      if filter[key] then words[#words + 1] = ("%s = %s"):format(key, filter[key]) end
    end
    ask("db:jobs, " .. table.concat(words, ", "), function() return db:jobs(filter) end)
  end
  for _, view in ipairs { "nightshift_jobs", "nightshift_history" } do
    local id = view == "nightshift_jobs" and FIRST + 3 or 10
    ask(view .. ", WHERE id =", function() return run(("SELECT * FROM %s WHERE id = ?"):format(view), id)[1] end)
    ask(view .. ", ORDER BY id DESC LIMIT 50", function()
      return run(("SELECT id, queue, name, state FROM %s ORDER BY id DESC LIMIT 50"):format(view))[50] or scale < 1
    end)
  end
  ask("db:cancel, claimed", function(i) return db:cancel(a_claimed(i)) end)
  ask("db:cancel, ready", function(i) return db:cancel(a_ready(i)) end)
  ask("db:cancel, scheduled", function(i) return db:cancel(a_scheduled(i)) end)
end

-- ---------------------------------------------------------------------- pages

local MINUTE <const> = 60 * 1000000

--- What pages show beside. Each tenth job has a tag, and one has 100,000 children. 5,000 are tried
-- again, and 300 tell how far they are. There are counts of minutes, actions, schedules, and an
-- adopted table with a million rows.
local function fill_more()
  local now, children, tried = server_time(), count(100000), count(5000)
  local function minutes(n, many)
    run(([[INSERT INTO nightshift_minute (minutes, at, queue_id, done, failed, dead, cancelled, pushed, waits, waited,
      longest_wait, runs, ran, longest_run)
    SELECT %d, (? DIV ? - s.seq) * ?, q.seq, 900, 7, 1, 2, 950, 900, 45000000, 2000000, 900, 90000000, 3000000
    FROM seq_0_to_%d s, seq_0_to_3 q]]):format(n, many), now, n * MINUTE, n * MINUTE)
  end
  run(("INSERT INTO nightshift_tag SELECT seq, 'tenth' FROM seq_100_to_%d_step_100"):format(ENDED * 10))
  run("INSERT INTO nightshift_tag SELECT seq, 'rare' FROM seq_10_to_1000_step_100")
  run(("INSERT INTO nightshift_tag SELECT seq, 'tenth' FROM seq_%d_to_%d_step_30"):format(FIRST + 30,
    FIRST + 3 * LIVE))
  run("UPDATE nightshift_job SET tagged = TRUE WHERE (id - ?) MOD 30 = 0", FIRST)
  run("UPDATE nightshift_finished SET parent = 10, root = 10 WHERE id > 10 AND id <= ?", 10 + children * 10)
  run(("INSERT INTO nightshift_child SELECT 10, seq, 10 + seq * 10 FROM seq_1_to_%d"):format(children))
  run("UPDATE nightshift_scheduled SET run = 2 ORDER BY run_at, job_id LIMIT ?", tried)
  run [[UPDATE nightshift_job j JOIN nightshift_scheduled s ON s.job_id = j.id AND s.run = 2
    SET j.run = 2, j.attempts = 1]]
  run([[INSERT INTO nightshift_attempt (job_id, run, kind, ended, error)
    SELECT job_id, 1, 'failed', ?, CONCAT('mail.lua:', job_id MOD 20, ': no answer to ', job_id)
    FROM nightshift_scheduled WHERE run = 2]], now - MINUTE)
  run(([[INSERT INTO nightshift_running (job_id, run, holder, worker, started, touched, progress, status)
    SELECT ? + seq * 3, 1, 1, seq, ?, ?, 0.5, CONCAT('row ', seq) FROM seq_1_to_%d]]):format(count(300)), FIRST,
    now - MINUTE, now)
  minutes(1, 1440)
  minutes(15, 768)
  minutes(120, 96)
  run(([[INSERT INTO nightshift_audit (at, verb, what, job, jobs, account, host, pid, via)
    SELECT ? + seq, ELT(1 + seq MOD 3, 'retry', 'cancel', 'pause'), CONCAT('job ', seq), seq, 1, 'root@localhost',
      'bench', 1, 'shell' FROM seq_1_to_%d]]):format(count(100000)), now - HOUR)
  run([[INSERT INTO nightshift_served (holder, workers, queues, handlers) VALUES
    (1, 8, NULL, '["job.0","job.1","job.2","job.3"]')]])
  for i = 1, 50 do
    assert(db:schedule { name = "schedule." .. i, every = "1h", push = { "job.0", {}, { queue = "small" } } })
  end
  run(designs.migration_task.table)
  run(([[INSERT INTO migration_task (status, imageUrl) SELECT IF(seq MOD 2, 'complete', 'open'), CONCAT('a', seq)
    FROM seq_1_to_%d]]):format(count(1000000)))
  assert(db:adopt(designs.migration_task.map))
  run "ANALYZE TABLE nightshift_job, nightshift_finished, nightshift_ready, nightshift_scheduled, nightshift_tag"
end

local ALL_STATES <const> = { "running", "ready", "scheduled", "waiting", "done", "dead", "cancelled" }
local LONG_TEXT <const> = "jobs.lua:#: no file of job #"

--- The addresses of all pages, with each filter that a form of theirs offers.
local function addresses()
  local list = { "/", "/?span=1d", "/?span=7d", "/queues", "/schedules", "/errors", "/errors?look=more",
    "/errors?queue=b", "/errors?name=job.3", "/errors?since=1h", "/adopted", "/adopted?table=migration_task",
    "/adopted?table=migration_task&into=a", "/hosts", "/audit", "/audit?verb=pause", "/audit?verb=delete",
    "/audit?since=30min", "/audit?after=1000", "/jobs", "/jobs?limit=200" }
  local function add(query, ...) list[#list + 1] = "/jobs?" .. query:format(...) end
  for _, filter in ipairs { "queue=a", "queue=b", "queue=small", "name=job.3", "name=none", "tag=tenth", "tag=rare",
    "error=" .. LONG_TEXT:gsub("#", "%%%%23"):gsub(" ", "+"), "error=none", "since=30min", "parent=10", "parent=20",
    "queue=a&name=none&tag=tenth" } do
    add(filter)
    for _, state in ipairs(ALL_STATES) do add("%s&state=%s", filter, state) end
    for _, verb in ipairs { "retry", "cancel", "delete", "reprioritise", "move", "due", "run_now" } do
      add("%s&verb=%s", filter, verb)
    end
  end
  for _, state in ipairs(ALL_STATES) do
    add("state=%s", state)
    add("state=%s&limit=200", state)
    add("state=%s&after=%d", state, (state == "done" or state == "dead") and 5000 or FIRST + LIVE // 2 * 3)
    local live = state == "running" or state == "ready" or state == "scheduled" or state == "waiting"
    for _, verb in ipairs(live and { "cancel", "reprioritise" } or { "retry", "delete" }) do
      add("state=%s&verb=%s", state, verb)
    end
  end
  add("after=%d", FIRST + LIVE)
  add("after=%d", ENDED * 5)
  add("queue=b&after=%d", ENDED * 5)
  return list
end

--- Jobs of one state each, and one with many children.
local function jobs_of_each()
  local list = { 10, 20, 500, FIRST + 3 }
  for _, n in ipairs { CLAIMED, CLAIMED + READY, CLAIMED + READY + SCHEDULED, LIVE } do
    list[#list + 1] = FIRST + n * 3
  end
  return list
end

local TIMES <const> = 20

--- Prints how long something takes: the median, the second longest (p95), the longest, and the
-- median of the processor time. `after` is done each time behind it, and not counted.
local function time(title, fn, after)
  local times, used = {}, {}
  for i = 0, TIMES do
    local before = processor()
    local begun = nightshift.clock()
    fn()
    times[i] = (nightshift.clock() - begun) * 1000
    used[i] = processor() - before
    if after then after() end
  end
  times[0], used[0] = nil, nil
  table.sort(times)
  print(assert(nightshift.encode { what = title, p50_ms = report.median(times), p95_ms = times[TIMES - 1],
    max_ms = times[TIMES], cpu_ms = report.median(used) }))
end

function measures.pages()
  if #run "SELECT id FROM nightshift_finished LIMIT 1" == 0 then fill() end
  if #run "SELECT job_id FROM nightshift_tag LIMIT 1" == 0 then fill_more() end
  local site = require "nightshift.web".site { db = db, hosts = {} }

  local function ask_for(target, more)
    if not target:find(arg[5] or "", 1, true) then return end
    local path, query = target:match "^([^?]*)%??(.*)$"
    time(target .. (more or ""), function()
      local status, _, body = site:answer { method = "GET", path = path, query = query,
        headers = { host = "localhost" } }
      if status ~= 200 then error(("%s: status %d\n%s"):format(target, status, body), 0) end
    end, function() site:turn() end)
  end

  time("SELECT 1", function() run "SELECT 1 AS n" end)
  time("1,000 rows by key", function()
    run("SELECT SUM(LENGTH(payload)) AS n FROM nightshift_finished WHERE id BETWEEN ? AND ?", 10000, 19990)
  end)
  for _, target in ipairs(addresses()) do ask_for(target) end
  for _, id in ipairs(jobs_of_each()) do ask_for("/jobs/" .. id) end
  local paused = FIRST + (CLAIMED + 1) * 3
  assert(db:pause(paused))
  for _, target in ipairs { "/", "/queues", "/jobs", "/jobs?state=waiting", "/jobs?state=waiting&verb=cancel",
    "/jobs?state=ready", "/jobs/" .. paused } do
    ask_for(target, ", while a job is paused")
  end
  assert(db:resume(paused))
end

measures[what]()
