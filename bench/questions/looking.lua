-- Reports over a large database: it fills a database with jobs of all states, quickly, by SQL;
-- then asks. Prints a JSON line per answer.
--   lua5.4 bench/questions/looking.lua URL BUILD SCALE
-- At scale 1: 100,000 claimed jobs, in batches of 500. In two queues 500,000 ready, 350,000
-- scheduled and 50,000 waiting ones. And five million ended jobs, each fiftieth dead.
local nightshift = require "nightshift"
local report = require "bench.lib.report"

local function question(s)
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
    ask = { function() return s:script("looking", "looking", s.scale) end },
  }
end
if ... == "bench.questions.looking" then return question end

local url, scale = arg[1], tonumber(arg[3])
local db <close> = assert(nightshift.open { url = url, read_timeout = "10m" }) -- it makes millions of rows at once
local function count(n) return math.max(10, math.floor(n * scale)) end
local claimed, ready, scheduled, waiting = count(100000), count(500000), count(350000), count(50000)
local live, ended, batch = claimed + ready + scheduled + waiting, count(5000000), 500
local FIRST = ended * 10 -- ids of live jobs are above it, every third

local function run(sql, ...) return assert(db:execute(sql, ...)) end

local now = run("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS t")[1].t
run(("SELECT SETVAL(nightshift_id, %d)"):format((FIRST + 3 * live) // 100 + 1000))
run "SET SESSION unique_checks = 0, check_constraint_checks = 0, group_concat_max_len = 1000000"
run("INSERT INTO nightshift_queue (id, name, created) VALUES (1, 'a', ?), (2, 'b', ?), (3, 'small', ?)", now, now, now)
run("INSERT INTO nightshift_holder (id, kind, host, pid, boot_id, connection, started, beat, version) VALUES "
  .. "(1, 'host', 'bench', 1, '', 1, ?, ?, '')", now, now)

local PAYLOAD = "CONCAT('\"', REPEAT('x', 98), '\"')"
local NAME = "CONCAT('job.', seq MOD 5)"
local HOUR = 3600 * 1000000

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

local function ask(what, answer)
  local times, most = {}, 0
  for i = 0, 10 do
    local begun = nightshift.clock()
    assert(answer(i))
    times[i] = (nightshift.clock() - begun) * 1000
    if i > 0 then most = math.max(most, times[i]) end
  end
  times[0] = nil
  print(assert(nightshift.encode { what = what, p50_ms = report.median(times), max_ms = most }))
end

-- Jobs of one state, spread over it.
local function of(before, n) return function(i) return FIRST + 3 * (before + 1 + i * (n // 12)) end end

local a_claimed, a_ready, a_scheduled = of(0, claimed), of(claimed, ready), of(claimed + ready, scheduled)

ask("db:stats, as status shows it", function() return db:stats() end)
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
