-- Draining an existing table into jobs and history. Sorted by name.
--
-- {marks} are as in adopt.sql; {:rows} is [[row,job],…]. The table may be of any
-- engine: nothing changes it and ours in one transaction. Rows are read by its key,
-- and deleted by its key, one at a time, only while they have their mark and are in
-- every column as they were read ({print}).

-- name: drain_count
-- Index: none, all rows, which may take a while. No locks. How many would go where.
SELECT {fate}, COUNT(*) FROM {table} t GROUP BY 1

-- name: drain_delete
-- Keys: PRIMARY of both; 1205 at once when one of the rows is locked. Their
-- marks are locked in share mode: a session that drops one waits, and sees what became of it.
{at_once}DELETE t FROM JSON_TABLE({:rows}, '$[*]'
  COLUMNS (id BIGINT PATH '$[0]', job BIGINT PATH '$[1]')) l
STRAIGHT_JOIN nightshift_drained d FORCE INDEX (PRIMARY)
  ON d.tab = {:table} AND d.row_id = l.id AND d.job_id = l.job
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id WHERE {print} <=> d.print

-- name: drain_doubt
-- Params: rows, table. Key: PRIMARY. It is not known whether the row that is there is
-- this one, changed, or another that has its id again: so this one is kept, and not run.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', job BIGINT PATH '$[1]')) l
STRAIGHT_JOIN nightshift_drained d FORCE INDEX (PRIMARY)
  ON d.tab = ? AND d.row_id = l.id AND d.job_id = l.job
SET d.outcome = 'cancelled', d.ended = {now}

-- name: drain_free
-- Key: PRIMARY; locks those of the rows that are not locked.
SELECT {id} FROM JSON_TABLE({:rows}, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) l
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id
FOR UPDATE SKIP LOCKED

-- name: drain_gone
-- Params: rows, table. Key: PRIMARY. The marks go.
DELETE d FROM JSON_TABLE(?, '$[*]'
  COLUMNS (id BIGINT PATH '$[0]', job BIGINT PATH '$[1]')) l
STRAIGHT_JOIN nightshift_drained d FORCE INDEX (PRIMARY)
  ON d.tab = ? AND d.row_id = l.id AND d.job_id = l.job

-- name: drain_history
-- Params: table, max_crashes, backoff, timeout, rows, table. Keys: PRIMARY of drained,
-- locked by drain_hold, and of adopted_error; PRIMARY and outcome of finished.
INSERT INTO nightshift_finished
  (id, queue_id, name, payload, priority, outcome, reason, error, run, attempts, polls,
   crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at,
   on_fail, nonce, decay)
SELECT STRAIGHT_JOIN d.job_id, d.queue_id, d.name, d.payload, d.priority, d.outcome,
  ELT(d.outcome + 0, NULL, 'failed', 'changed'),
  IF(d.outcome = 'done', NULL, COALESCE(e.error, CONCAT('row ', d.row_id, ' of ', ?,
    IF(d.outcome = 'dead', ' had failed', ' changed while it was moved')))),
  1, d.attempts, 0, 0, 0, d.max_attempts, ?, ?, ?,
  LEAST(COALESCE(d.ended, e.at, {now}), {now}),
  LEAST(COALESCE(d.ended, e.at, {now}), {now}),
  'cancel', d.nonce, d.decay
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', job BIGINT PATH '$[1]')) l
JOIN nightshift_drained d FORCE INDEX (PRIMARY)
  ON d.tab = ? AND d.row_id = l.id AND d.job_id = l.job
LEFT JOIN nightshift_adopted_error e FORCE INDEX (PRIMARY)
  ON e.tab = d.tab AND e.row_id = d.row_id AND d.outcome = 'dead'

-- name: drain_hold
-- Params: rows, table. Key: PRIMARY; locks the marks that there still are. The session that has one
-- decides about its row.
SELECT STRAIGHT_JOIN d.row_id
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', job BIGINT PATH '$[1]')) l
JOIN nightshift_drained d FORCE INDEX (PRIMARY)
  ON d.tab = ? AND d.row_id = l.id AND d.job_id = l.job
FOR UPDATE

-- name: drain_job
-- Params: max_crashes, backoff, timeout, rows, table. Keys: PRIMARY of drained, locked
-- by drain_hold; PRIMARY of job, appended at its end.
INSERT INTO nightshift_job
  (id, queue_id, name, payload, priority, rank, attempts, max_attempts, max_crashes,
   backoff, timeout, nonce, decay, created, due)
SELECT STRAIGHT_JOIN d.job_id, d.queue_id, d.name, d.payload, d.priority,
  255 - d.priority, d.attempts, d.max_attempts, ?, ?, ?, d.nonce, d.decay, {now},
  GREATEST(COALESCE(d.due, {now}), {now})
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', job BIGINT PATH '$[1]')) l
JOIN nightshift_drained d FORCE INDEX (PRIMARY)
  ON d.tab = ? AND d.row_id = l.id AND d.job_id = l.job

-- name: drain_left
-- Params: table, first row, our holder. Key: PRIMARY; PRIMARY of holder. No locks.
-- Marks of a drain that is over: its holder is none any more, or is who asks.
SELECT d.row_id, d.job_id, d.outcome IS NULL
FROM nightshift_drained d FORCE INDEX (PRIMARY)
LEFT JOIN nightshift_holder h ON h.id = d.holder AND h.dead IS NULL
WHERE d.tab = ? AND d.row_id >= ? AND (h.id IS NULL OR d.holder = ?)
ORDER BY d.row_id LIMIT 1000

-- name: drain_mark
-- Array-bound. Params: table, row, job, holder, queue, name, payload, priority, decay,
-- attempts, max_attempts, nonce, µs until it is due, outcome, when it ended, print.
-- Key: PRIMARY. A row that has its mark keeps it, as with INSERT IGNORE, which would
-- also ignore a payload that does not fit.
INSERT INTO nightshift_drained
  (tab, row_id, job_id, holder, queue_id, name, payload, priority, decay, attempts,
   max_attempts, nonce, due, outcome, ended, print)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now} + ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE tab = tab

-- name: drain_moved
-- Params: table. Key: PRIMARY. A batch arrives.
UPDATE nightshift_adopted SET moves = moves + 1 WHERE tab = ?

-- name: drain_moves
-- Params: table. Key: PRIMARY. No locks. How many have arrived, of all drains.
SELECT moves FROM nightshift_adopted WHERE tab = ?

-- name: drain_read
-- Key: PRIMARY, a range. No locks.
{zone}SELECT {columns}, {fate}, {ended}, {delay}, {print}
FROM {table} t FORCE INDEX (PRIMARY) WHERE {id} >= {:row} ORDER BY {id} LIMIT {:limit}

-- name: drain_ready
-- Params: rows. Key: PRIMARY of job. Row i goes in at now + i, because equal times
-- defeat the floor cursor.
INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
SELECT STRAIGHT_JOIN j.queue_id, j.rank, {now} + l.n, j.id, j.run, CRC32(j.name)
FROM JSON_TABLE(?, '$[*]' COLUMNS (n FOR ORDINALITY, job BIGINT PATH '$[1]')) l
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = l.job
WHERE j.due <= j.created

-- name: drain_scheduled
-- Params: rows. Key: PRIMARY of job. The rest.
INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run, kind)
SELECT STRAIGHT_JOIN j.due, j.id, j.queue_id, j.rank, j.run, CRC32(j.name)
FROM JSON_TABLE(?, '$[*]' COLUMNS (job BIGINT PATH '$[1]')) l
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = l.job
WHERE j.due > j.created

-- name: drain_tables
-- Key: PRIMARY of drained. No locks. Tables of which rows are on their way.
SELECT a.tab, a.mapping FROM nightshift_adopted a
WHERE EXISTS(SELECT 1 FROM nightshift_drained d WHERE d.tab = a.tab)

-- name: drain_there
-- Keys: PRIMARY of both. No locks. Rows with our marks that are in the table, and
-- whether they are as they were read.
{zone}SELECT d.row_id, {print} <=> d.print
FROM JSON_TABLE({:rows}, '$[*]' COLUMNS (id BIGINT PATH '$[0]', job BIGINT PATH '$[1]')) l
STRAIGHT_JOIN nightshift_drained d FORCE INDEX (PRIMARY)
  ON d.tab = {:table} AND d.row_id = l.id AND d.job_id = l.job
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id
