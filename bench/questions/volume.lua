-- Beside millions of rows: "volume", claims beside rows that are not to be claimed; "looking",
-- reports over a large database. Each has a database of its own, which SQL on the server fills,
-- quickly, and prints JSON lines.
--   lua5.4 bench/questions/volume.lua URL BUILD volume|looking SCALE
local nightshift = require "nightshift"
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

if ... == "bench.questions.volume" then return questions end

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

-- At scale 1: 100,000 claimed jobs, in batches of 500. In two queues 500,000 ready, 350,000
-- scheduled and 50,000 waiting ones. And five million ended jobs, each fiftieth dead: 100,000 are the
-- children of one.
function measures.looking()
  local function count(n) return math.max(10, math.floor(n * scale)) end
  local claimed, ready, scheduled, waiting = count(100000), count(500000), count(350000), count(50000)
  local live, ended, batch = claimed + ready + scheduled + waiting, count(5000000), 500
  local FIRST = ended * 10 -- ids of live jobs are above it, every third

  local now = run("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS t")[1].t
  run(("SELECT SETVAL(nightshift_id, %d)"):format((FIRST + 3 * live) // 100 + 1000))
  run "SET SESSION unique_checks = 0, check_constraint_checks = 0, group_concat_max_len = 1000000"
  run("INSERT INTO nightshift_queue (id, name, created) VALUES (1, 'a', ?), (2, 'b', ?), (3, 'small', ?)", now, now,
    now)
  run("INSERT INTO nightshift_holder (id, kind, host, pid, boot_id, connection, started, beat, version) VALUES "
    .. "(1, 'host', 'bench', 1, '', 1, ?, ?, '')", now, now)

  local NAME = "CONCAT('job.', seq MOD 5)"

  run(([[INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes, backoff,
    timeout, created, due, unmet, nonce)
  SELECT %d + seq * 3, 1 + seq MOD 2, %s, %s, 100, 155, 10, 5, 5000000, 3600000000, ?,
    IF(seq > ? AND seq <= ?, ? + seq, ? - ? + seq), seq > ?, seq
  FROM seq_1_to_%d]]):format(FIRST, NAME, PAYLOAD, live), now, claimed + ready, claimed + ready + scheduled, now + HOUR,
    now, HOUR, claimed + ready + scheduled)
  run(([[INSERT INTO nightshift_lease (id, holder, claimed, jobs)
  SELECT 1 + (seq - 1) DIV %d, 1, ?, CONCAT('[', GROUP_CONCAT(CONCAT('[', %d + seq * 3, ',1]')), ']')
  FROM seq_1_to_%d GROUP BY (seq - 1) DIV %d]]):format(batch, FIRST, claimed, batch), now)
  run([[INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
  SELECT queue_id, rank, due, id, run, CRC32(name) FROM nightshift_job WHERE id > ? AND id <= ?]],
    FIRST + claimed * 3, FIRST + (claimed + ready) * 3)
  run([[INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run, kind)
  SELECT due, id, queue_id, rank, run, CRC32(name) FROM nightshift_job WHERE id > ? AND id <= ?]],
    FIRST + (claimed + ready) * 3, FIRST + (claimed + ready + scheduled) * 3)
  run("INSERT INTO nightshift_edge (on_id, job_id) SELECT ?, id FROM nightshift_job WHERE unmet = 1", FIRST + 3)
  run(([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, reason, run, attempts, polls,
    crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, on_fail, nonce)
  SELECT seq * 10, 1 + seq MOD 2, %s, %s, 100, IF(seq MOD 50, 'done', 'dead'), IF(seq MOD 50, NULL, 'attempts'), 1, 0,
    0, 0, 0, 10, 5, 1, 1, ? - ?, ? - seq, 'cancel', seq
  FROM seq_1_to_%d]]):format(NAME, PAYLOAD, ended), now, HOUR, now)

  run(("INSERT INTO nightshift_child (parent, seq, id) SELECT 1, seq, seq * 10 FROM seq_1_to_%d"):format(count(100000)))

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

  -- Jobs of one state, spread over it.
  local function of(before, n) return function(i) return FIRST + 3 * (before + 1 + i * (n // 12)) end end

  local a_claimed, a_ready, a_scheduled = of(0, claimed), of(claimed, ready), of(claimed + ready, scheduled)

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

measures[what]()
