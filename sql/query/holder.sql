-- Statements about holders and their claims. Sorted by name.
--
-- audit_…: finding live jobs that are in no place, and putting them back. The looks read by
-- key, a stretch at a time, and lock nothing. The repair looks again under the lock of the
-- job's row. rescue_…: looking at other holders, and giving back claims of dead ones. slot_…:
-- slots of locks and semaphores. Each statement runs on its own and writes one row at most, by
-- its key. A statement that takes a slot waits for no row lock, so there is nothing to
-- deadlock.

-- name: audit_backlog
-- Params: queue, queue, group, queue, group, rank, queue, group, rank, ready_at, queue, group, rank,
-- ready_at, job, rows. Key: PRIMARY of backlog, a range. No locks.
SELECT queue_id, group_key, `rank`, ready_at, job_id, run
FROM nightshift_backlog FORCE INDEX (PRIMARY)
WHERE queue_id > ? OR queue_id = ? AND group_key > ?
  OR queue_id = ? AND group_key = ? AND `rank` > ?
  OR queue_id = ? AND group_key = ? AND `rank` = ? AND ready_at > ?
  OR queue_id = ? AND group_key = ? AND `rank` = ? AND ready_at = ? AND job_id > ?
ORDER BY queue_id, group_key, `rank`, ready_at, job_id LIMIT ?

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
-- the row is locked. A key of a job that is gone, and not because it is done.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_unique_key WHERE queue_id = ? AND ukey = ? AND job_id = ? AND until IS NULL
  AND NOT EXISTS(SELECT 1 FROM nightshift_job j
    WHERE j.id = nightshift_unique_key.job_id AND j.ukey = nightshift_unique_key.ukey)

-- name: audit_keys
-- Params: queue, queue, key, rows. Key: PRIMARY of unique_key, a range; of job. No locks. expired:
-- its job is done, and its period is over.
SELECT u.queue_id, u.ukey, u.job_id, j.id IS NULL AND u.until IS NULL,
  COALESCE(u.until <= {now}, FALSE) AS expired
FROM nightshift_unique_key u FORCE INDEX (PRIMARY)
LEFT JOIN nightshift_job j ON j.id = u.job_id AND j.ukey = u.ukey
WHERE u.queue_id > ? OR u.queue_id = ? AND u.ukey > ?
ORDER BY u.queue_id, u.ukey LIMIT ?

-- name: audit_keys_over
-- Params: [[queue,key],…]. Key: PRIMARY of unique_key, one row at a time; 1205 at once when one is
-- locked. Keys whose periods are over.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE u FROM JSON_TABLE(?, '$[*]' COLUMNS (queue INT PATH '$[0]',
  ukey VARCHAR(190) {bytes} PATH '$[1]')) v
STRAIGHT_JOIN nightshift_unique_key u FORCE INDEX (PRIMARY)
  ON u.queue_id = v.queue AND u.ukey = v.ukey AND u.until <= {now}

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
-- Params: 16 jobs. Key: none, all of ready and of backlog: asked of jobs that were found twice. No
-- locks.
SELECT job_id, run FROM (SELECT job_id, run FROM nightshift_ready
  UNION ALL SELECT job_id, run FROM nightshift_backlog) v
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

-- name: rescue_dead
-- Params: holder, µs, its beat at the last look, whether its lock has to be free. Key: PRIMARY.
-- No row: the holder came back, or another has declared it dead less than so many µs ago and is
-- giving back its claims.
UPDATE nightshift_holder SET dead = {now}
WHERE id = ? AND (dead <= {now} - ? OR dead IS NULL AND beat = ?
  AND (NOT ? OR IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', id))))

-- name: rescue_delete
-- Params: [id,…]. Key: PRIMARY. Rows of the dead go, each locked by its key; a holder that
-- still lives registers anew. Rows of live holders are not touched: their claims hold them
-- locked. 1205 at once when one is locked.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE h FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_holder h FORCE INDEX (PRIMARY) ON h.id = v.id
WHERE h.dead IS NOT NULL

-- name: rescue_ended
-- Params: [id,…]. Key: PRIMARY of each; locks the rows of served. Handlers of dead hosts are
-- known for as long as handlers of hosts that ended: see report_served.
REPLACE INTO nightshift_served (holder, workers, queues, handlers, reserves, ended)
SELECT STRAIGHT_JOIN s.holder, 0, s.queues, s.handlers, s.reserves, h.dead
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_holder h FORCE INDEX (PRIMARY) ON h.id = v.id AND h.dead IS NOT NULL
JOIN nightshift_served s FORCE INDEX (PRIMARY) ON s.holder = v.id AND s.ended IS NULL

-- name: rescue_expired
-- Key: none, all of expiry: few leases have one. No locks.
SELECT e.lease, l.holder, e.expires - {now} AS ends_in
FROM nightshift_expiry e LEFT JOIN nightshift_lease l ON l.id = e.lease
ORDER BY e.lease

-- name: rescue_holders
-- Params: whether named locks work. Key: PRIMARY, all holders that live, or died and still have
-- claims, or are past. Past: dead for half a minute, without claims, so that all lookers learn
-- of the death. Elsewhere: its session was with another server, the primary before this one, and
-- it has not come here yet. They are few. No locks.
SELECT h.id, h.kind = 'host' AS host, h.pid, h.boot_id, h.dead IS NOT NULL AS dead,
  h.beat, {now} - h.beat AS silent, {now} - h.started AS age,
  ? AND IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', h.id)) AS free,
  h.dead < {now} - 30000000
    AND NOT EXISTS(SELECT 1 FROM nightshift_lease l WHERE l.holder = h.id) AS past,
  h.server NOT IN (0, {server}) AS elsewhere
FROM nightshift_holder h
WHERE h.dead IS NULL OR h.dead < {now} - 30000000
  OR EXISTS(SELECT 1 FROM nightshift_lease l WHERE l.holder = h.id)
ORDER BY h.id

-- name: rescue_leases
-- Params: holder. Key: holder. No locks.
SELECT id FROM nightshift_lease WHERE holder = ? ORDER BY id LIMIT 100

-- name: rescue_next
-- Key: none, all of expiry: few leases have one. No locks. µs until the next
-- lease ends; NULL: none will.
SELECT MIN(expires) - {now} FROM nightshift_expiry

-- name: rescue_notices
-- Params: holder. Key: PRIMARY, a range.
DELETE nightshift_notice FROM nightshift_notice FORCE INDEX (PRIMARY) WHERE holder = ?

-- name: rescue_orphans
-- Leases of unknown holders, which no other look would find. Key: PRIMARY of both. No locks.
SELECT l.id, l.holder FROM nightshift_lease l
LEFT JOIN nightshift_holder h ON h.id = l.holder
WHERE h.id IS NULL LIMIT 100

-- name: rescue_past
-- Params: [id,…]. Key: PRIMARY of each. The dead that are about to be deleted are past holders;
-- again: they are already.
INSERT IGNORE INTO nightshift_past_holder (id, host, pid, started, ended)
SELECT STRAIGHT_JOIN h.id, h.host, h.pid, h.started, h.dead
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_holder h FORCE INDEX (PRIMARY) ON h.id = v.id AND h.dead IS NOT NULL

-- name: rescue_tokens
-- Params: lease. Key: PRIMARY of lease, holder and running. The claims of the lease, and µs since
-- the start, if they have shown themselves or are a program's. No locks, the verdicts are fenced.
SELECT c.id, c.run, {now} - COALESCE(r.started, IF(h.kind = 'handle', l.claimed, NULL)) AS ago
FROM nightshift_lease l
JOIN JSON_TABLE(l.jobs, {tokens}) c
LEFT JOIN nightshift_holder h ON h.id = l.holder
LEFT JOIN nightshift_running r ON r.job_id = c.id AND r.run = c.run
WHERE l.id = ?

-- name: slot_gone
-- Params: limit. Slots of an owner that is gone. Key: none, all slots; PRIMARY of job
-- and holder. No locks.
SELECT s.name, s.slot, s.token
FROM nightshift_slot s
LEFT JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
LEFT JOIN nightshift_holder h ON h.id = s.holder AND h.dead IS NULL
WHERE j.id IS NULL AND h.id IS NULL
LIMIT ?

-- name: slot_look
-- Params: job, run, holder, name, name, n. The first row (slot 0) is about ourselves and says
-- whether another waiter is next in line. The other rows are the taken slots of 1 to n. gone:
-- its owner is gone; suspect: the named lock of its holder is free. Then its owner: a job, or a
-- process of a machine. Key: PRIMARY, a range of the name; PRIMARY of job and holder. No locks.
SELECT 0 AS slot, 0 AS token,
  NOT EXISTS(SELECT 1 FROM nightshift_job WHERE id = ? AND run = ?) AND
  NOT EXISTS(SELECT 1 FROM nightshift_holder WHERE id = ? AND dead IS NULL) AS gone,
  COALESCE(IS_USED_LOCK(CONCAT('nightshift-next:', {here}, MD5(?)))
    <> CONNECTION_ID(), 0) AS queued,
  0 AS suspect, NULL AS job, NULL AS pid, NULL AS host
UNION ALL
SELECT s.slot, s.token, j.id IS NULL AND h.id IS NULL, 0,
  h.id IS NOT NULL AND IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', h.id)),
  j.id, h.pid, h.host
FROM nightshift_slot s
LEFT JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
LEFT JOIN nightshift_holder h ON h.id = s.holder AND h.dead IS NULL
WHERE s.name = ? AND s.slot <= ?

-- name: slot_next
-- Params: name. The named lock that says "this session is next in line".
SELECT GET_LOCK(CONCAT('nightshift-next:', {here}, MD5(?)), 0)

-- name: slot_next_done
-- Params: name.
DO RELEASE_LOCK(CONCAT('nightshift-next:', {here}, MD5(?)))

-- name: slot_release
-- Params: name, slot, token. Key: PRIMARY. May be run twice. Array-bound, too.
DELETE nightshift_slot FROM nightshift_slot FORCE INDEX (PRIMARY)
WHERE name = ? AND slot = ? AND token = ?

-- name: slot_take
-- Params: token, job, run, holder, name, slot. Key: PRIMARY; 1062 or 1205 at
-- once when another session was faster.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
INSERT INTO nightshift_slot (token, job_id, run, holder, name, slot, since)
VALUES (?, ?, ?, ?, ?, ?, {now})

-- name: slot_take_over
-- Params: token, job, run, holder, name, slot, old token. Key: PRIMARY; 1205 at
-- once when another session is at it, no row when that was faster.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
UPDATE nightshift_slot
SET token = ?, job_id = ?, run = ?, holder = ?, since = {now}
WHERE name = ? AND slot = ? AND token = ?
