-- Claims beside millions of rows that are not to be claimed: in a database of their own, filled
-- once, in turns with the empty one. SQL on the server fills it, quickly.
--   lua5.4 bench/questions/volume.lua URL BUILD SCALE
-- At scale 1: five million scheduled jobs, five million done ones and a million that wait for
-- them. No two are due at the same time; the first is due in an hour. Prints one JSON line: how
-- many rows, and how long it took.
local nightshift = require "nightshift"

local function question(s)
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
      local line = s:script("volume", "volume", s.scale)[1]
      io.stderr:write(("bench: volume: %d rows in %.0f s\n"):format(line.rows, line.seconds))
    end,
    clean = function() assert(s.db:execute "DROP DATABASE volume") end,
    ask = { claim("batch 1", 1), claim("batch 100", 100), claim("batch 1000", 1000) },
  }
end
if ... == "bench.questions.volume" then return question end

local url, scale = arg[1], tonumber(arg[3])
local db <close> = assert(nightshift.open { url = url, read_timeout = "10m" }) -- it makes millions of rows at once
local function count(n) return math.max(1, math.floor(n * scale)) end
local scheduled, finished, waiting = count(5000000), count(5000000), count(1000000)
local rows = 2 * scheduled + finished + 2 * waiting

-- Ids below the sequence's next ones: the jobs were pushed before. Tables are loaded as a
-- whole, without a look at each row.
local function run(sql, ...) assert(db:execute(sql, ...)) end
run "INSERT INTO nightshift_queue (name, created) VALUES ('waiting', 1)"
local id = assert(db:execute "SELECT id FROM nightshift_queue WHERE name = 'waiting'")[1].id
local now = assert(db:execute "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS t")[1].t
local begun = nightshift.clock()
run "SET SESSION unique_checks = 0, foreign_key_checks = 0, check_constraint_checks = 0"
run(("SELECT SETVAL(nightshift_id, %d)"):format((scheduled + waiting + finished) // 100 + 1000))

local PAYLOAD = "CONCAT('\"', REPEAT('x', 98), '\"')"
local HOUR = 3600 * 1000000

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
