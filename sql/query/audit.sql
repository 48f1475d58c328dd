-- Finding live jobs that are in no place, and putting them back. The looks read by key, a
-- stretch at a time, and lock nothing; a repair looks again under the lock of the job's row.
-- Sorted by name.

-- name: audit_begin
-- One host looks at a time, as long as its connection lives. 1: it is this one.
SELECT IF(IS_USED_LOCK(CONCAT('nightshift-mend:', {here})) = CONNECTION_ID(), 1,
  GET_LOCK(CONCAT('nightshift-mend:', {here}), 0))

-- name: audit_count
-- Params: kind of fault, how many. Key: PRIMARY.
INSERT INTO nightshift_mended (what, n, last) VALUES (?, ?, {now})
ON DUPLICATE KEY UPDATE n = n + VALUES(n), last = VALUES(last)

-- name: audit_due
-- Params: run_at, job, run. Key: PRIMARY of scheduled and of job; 1205 at once when the row is
-- locked. Deletes a row when no job is due at its time.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_scheduled WHERE run_at = ? AND job_id = ? AND run = ?
  AND NOT EXISTS(SELECT 1 FROM nightshift_job j WHERE j.id = nightshift_scheduled.job_id
    AND j.run = nightshift_scheduled.run AND j.due = nightshift_scheduled.run_at)

-- name: audit_edges
-- Params: on, on, job, rows. Key: PRIMARY, a range. No locks.
SELECT on_id, job_id FROM nightshift_edge
WHERE on_id > ? OR on_id = ? AND job_id > ?
ORDER BY on_id, job_id LIMIT ?

-- name: audit_edges_of
-- Params: 16 jobs. Key: none, all edges: asked of jobs that were found twice. No locks.
SELECT job_id, COUNT(*) FROM nightshift_edge
WHERE job_id IN (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) GROUP BY job_id

-- name: audit_every
-- µs between two looks at the same job.
SELECT CAST(value AS SIGNED) FROM nightshift_meta WHERE name = 'mend_every'

-- name: audit_job
-- Params: runs more, unmet, unmet, whether its pause goes, whether it is due now, job.
-- Key: PRIMARY of job, locked by audit_lock. A job without a wait is not parked.
UPDATE nightshift_job SET run = run + ?, unmet = ?,
  waits = IF(? = 0 AND waits IN ('fail', 'continue'), NULL, waits),
  paused = IF(?, NULL, paused), due = IF(?, {now}, due) WHERE id = ?

-- name: audit_jobs
-- Params: id, rows. Key: PRIMARY of job, a range; of pause and of signal. No locks. lost pause:
-- the pause that holds the job is over, and no retry of a tree holds it; told: its signal has
-- been sent.
SELECT j.id, j.run, j.unmet, j.paused IS NOT NULL,
  COALESCE(j.paused, 0) > 0
    AND NOT EXISTS(SELECT 1 FROM nightshift_pause p WHERE p.id = j.paused) AS lost_pause,
  COALESCE(j.waits = 'signal', FALSE) AND j.due > {now} AND EXISTS(SELECT 1
    FROM nightshift_signal s WHERE s.job_id = j.id AND s.name IN ('', j.awaits)) AS told
FROM nightshift_job j FORCE INDEX (PRIMARY)
WHERE j.id > ? ORDER BY j.id LIMIT ?

-- name: audit_key
-- Params: queue, key, job. Key: PRIMARY of unique_key and of job; 1205 at once when
-- the row is locked. A key of a job that is gone.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_unique_key WHERE queue_id = ? AND ukey = ? AND job_id = ?
  AND NOT EXISTS(SELECT 1 FROM nightshift_job j
    WHERE j.id = nightshift_unique_key.job_id AND j.ukey = nightshift_unique_key.ukey)

-- name: audit_keys
-- Params: queue, queue, key, rows. Key: PRIMARY of unique_key, a range; of job. No locks.
SELECT u.queue_id, u.ukey, u.job_id, j.id IS NULL
FROM nightshift_unique_key u FORCE INDEX (PRIMARY)
LEFT JOIN nightshift_job j ON j.id = u.job_id AND j.ukey = u.ukey
WHERE u.queue_id > ? OR u.queue_id = ? AND u.ukey > ?
ORDER BY u.queue_id, u.ukey LIMIT ?

-- name: audit_leased
-- Params: 16 jobs. Key: none, all leases: they are few, and asked of jobs that were found
-- twice. No locks.
SELECT c.id, c.run FROM nightshift_lease l
JOIN JSON_TABLE(l.jobs, {tokens}) c
WHERE c.id IN (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: audit_leases
-- Params: lease, leases. Key: PRIMARY of lease, a range. No locks.
SELECT l.id, c.id, c.run
FROM (SELECT id, jobs FROM nightshift_lease WHERE id > ? ORDER BY id LIMIT ?) l
LEFT JOIN JSON_TABLE(l.jobs, {tokens}) c
  ON TRUE
ORDER BY l.id

-- name: audit_lock
-- Params: [[id,run],…]. Key: PRIMARY of job, one row at a time; locks them, skipping locked
-- rows. And of pause, signal and scheduled. As audit_jobs.
SELECT STRAIGHT_JOIN j.id, j.run, j.queue_id, j.rank, j.unmet, j.due, {now} AS now,
  j.paused IS NOT NULL,
  COALESCE(j.paused, 0) > 0
    AND NOT EXISTS(SELECT 1 FROM nightshift_pause p WHERE p.id = j.paused) AS lost_pause,
  COALESCE(j.waits = 'signal', FALSE) AND EXISTS(SELECT 1 FROM nightshift_signal s
    WHERE s.job_id = j.id AND s.name IN ('', j.awaits)) AS told,
  EXISTS(SELECT 1 FROM nightshift_scheduled c
    WHERE c.run_at = j.due AND c.job_id = j.id AND c.run = j.run) AS scheduled,
  CRC32(j.name) AS kind
FROM JSON_TABLE(?, {tokens}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run
FOR UPDATE SKIP LOCKED

-- name: audit_own
-- Params: holder. Keys: holder of lease, PRIMARY of job. No locks. Claims of a holder
-- that stand.
SELECT STRAIGHT_JOIN j.id, j.run FROM nightshift_lease l FORCE INDEX (holder)
JOIN JSON_TABLE(l.jobs, {tokens}) c
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = c.id AND j.run = c.run
WHERE l.holder = ?

-- name: audit_ready
-- Params: queue, queue, rank, queue, rank, ready_at, queue, rank, ready_at, job, rows.
-- Key: PRIMARY of ready, a range; of job. No locks. stale: of no job.
SELECT r.queue_id, r.rank, r.ready_at, r.job_id, r.run, j.id IS NULL AS stale
FROM nightshift_ready r FORCE INDEX (PRIMARY)
LEFT JOIN nightshift_job j ON j.id = r.job_id
WHERE r.queue_id > ? OR r.queue_id = ? AND r.rank > ?
  OR r.queue_id = ? AND r.rank = ? AND r.ready_at > ?
  OR r.queue_id = ? AND r.rank = ? AND r.ready_at = ? AND r.job_id > ?
ORDER BY r.queue_id, r.rank, r.ready_at, r.job_id LIMIT ?

-- name: audit_ready_of
-- Params: 16 jobs. Key: none, all of ready: asked of jobs that were found twice. No locks.
SELECT job_id, run FROM nightshift_ready
WHERE job_id IN (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: audit_row
-- Params: queue, rank, ready_at, job, run. Key: PRIMARY of ready and of job; 1205 at once when
-- the row is locked. Deletes a row of no job, or of an earlier run.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_ready WHERE queue_id = ? AND rank = ? AND ready_at = ? AND job_id = ?
  AND run = ? AND NOT EXISTS(SELECT 1 FROM nightshift_job j
    WHERE j.id = nightshift_ready.job_id AND j.run = nightshift_ready.run)

-- name: audit_scheduled
-- Params: run_at, run_at, job, rows. Key: PRIMARY of scheduled, a range; of job. No locks.
-- stale: of no job, or of a job that is due at another time.
SELECT s.run_at, s.job_id, s.run, j.id IS NULL OR j.run = s.run AND j.due <> s.run_at AS stale
FROM nightshift_scheduled s FORCE INDEX (PRIMARY)
LEFT JOIN nightshift_job j ON j.id = s.job_id
WHERE s.run_at > ? OR s.run_at = ? AND s.job_id > ?
ORDER BY s.run_at, s.job_id LIMIT ?

-- name: audit_signal
-- Params: job, name. Key: PRIMARY of signal, of job and of finished; 1205 at once when the row
-- is locked. Deletes a signal to a job that left no history.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_signal WHERE job_id = ? AND name = ?
  AND NOT EXISTS(SELECT 1 FROM nightshift_job j WHERE j.id = nightshift_signal.job_id)
  AND NOT EXISTS(SELECT 1 FROM nightshift_finished f WHERE f.id = nightshift_signal.job_id)

-- name: audit_signals
-- Params: job, job, name, rows. Key: PRIMARY of signal, a range; of job and of finished.
-- No locks.
SELECT s.job_id, s.name, j.id IS NULL AND f.id IS NULL
FROM nightshift_signal s FORCE INDEX (PRIMARY)
LEFT JOIN nightshift_job j ON j.id = s.job_id
LEFT JOIN nightshift_finished f ON f.id = s.job_id
WHERE s.job_id > ? OR s.job_id = ? AND s.name > ?
ORDER BY s.job_id, s.name LIMIT ?

-- name: audit_stand
-- Params: [[id,run,unmet],…]. Key: PRIMARY of job. No locks. Jobs that still have this run and
-- these edges.
SELECT STRAIGHT_JOIN j.id
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', run INT UNSIGNED PATH '$[1]',
  unmet INT UNSIGNED PATH '$[2]')) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run AND j.unmet = v.unmet

-- name: audit_twice
-- Params: queue, rank, ready_at, job, run. Key: PRIMARY of ready; all leases, they are few.
-- 1205 at once when a row is locked. Deletes a row of a claim that stands.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_ready WHERE queue_id = ? AND rank = ? AND ready_at = ? AND job_id = ?
  AND run = ? AND EXISTS(SELECT 1 FROM nightshift_lease l
    JOIN JSON_TABLE(l.jobs, {tokens}) c
    WHERE c.id = nightshift_ready.job_id AND c.run = nightshift_ready.run)
