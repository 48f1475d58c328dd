-- Statements of a claim: promotion, claiming, leases, payloads. None waits
-- for a row lock. The comment (lanes) marks where the claim's range expression
-- goes, one `(rank = ? AND ready_at >= ? AND ready_at < ?)` per known lane;
-- ns_range.c puts it in. Sorted by name.

-- name: claim_above
-- Params: queue, rank. The lane before this one: its last row, which is its
-- sentinel or a row that nobody has claimed yet; so no deleted rows are read.
-- Key: PRIMARY, backwards, one row; no locks. In brackets, as ns_sweep.c makes
-- one statement of several.
(SELECT rank FROM nightshift_ready WHERE queue_id = ? AND rank < ?
 ORDER BY queue_id DESC, rank DESC, ready_at DESC, job_id DESC LIMIT 1)

-- name: claim_alone
-- Params: queue, rank, ready_at, job. Key: PRIMARY, one row; 1205 at once when
-- somebody holds it.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_ready
WHERE queue_id = ? AND rank = ? AND ready_at = ? AND job_id = ?
RETURNING rank, ready_at, job_id, run, alone

-- name: claim_back
-- Params: queue, rank, ready_at, job, run. Puts back a row that this
-- transaction took and that has to be claimed alone. Key: PRIMARY.
INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, alone)
VALUES (?, ?, ?, ?, ?, TRUE)

-- name: claim_drop
-- Array-bound. Params: queue, rank, ready_at, job. Key: PRIMARY, one row that
-- this transaction has locked.
DELETE FROM nightshift_ready
WHERE queue_id = ? AND rank = ? AND ready_at = ? AND job_id = ?

-- name: claim_expiry
-- Params: lease, microseconds from now. Key: PRIMARY of expiry.
INSERT INTO nightshift_expiry (lease, expires) VALUES (?, {now} + ?)

-- name: claim_fast
-- Params: queue, rank, floor and end per lane, limit. Key: PRIMARY, a range per
-- lane that ends before its sentinel. Locks the rows it takes; 1205 at once
-- when somebody holds one of them.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_ready
WHERE queue_id = ? AND (/*lanes*/)
ORDER BY queue_id, rank, ready_at, job_id LIMIT ?
RETURNING rank, ready_at, job_id, run, alone

-- name: claim_head
-- Params: queue, rank, floor. The oldest row of a lane. Key: PRIMARY, one row; no
-- locks. In brackets, as ns_sweep.c makes one statement of several.
(SELECT rank, ready_at FROM nightshift_ready
 WHERE queue_id = ? AND rank = ? AND ready_at >= ? AND ready_at < {end}
 ORDER BY queue_id, rank, ready_at, job_id LIMIT 1)

-- name: claim_late
-- Params: queue, rank, from and to per lane, limit. As claim_skip, for a sweep: what
-- lies below floors among deleted rows, which may be so many that they are not all
-- read (1969, NS_LOOK_MAX).
SET STATEMENT max_statement_time=0.003 FOR
SELECT rank, ready_at FROM nightshift_ready
WHERE queue_id = ? AND (/*lanes*/)
ORDER BY queue_id, rank, ready_at, job_id LIMIT ?
FOR UPDATE SKIP LOCKED

-- name: claim_lease
-- Params: id, holder, [[id,run],…]. Key: PRIMARY.
INSERT INTO nightshift_lease (id, holder, claimed, jobs) VALUES (?, ?, {now}, ?)

-- name: claim_promote
-- Params: from, up to, limit. Key: PRIMARY of scheduled; 1205 at once when
-- somebody holds one of the rows.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_scheduled
WHERE run_at >= ? AND run_at < ? AND run_at <= {now}
ORDER BY run_at, job_id LIMIT ?
RETURNING run_at, job_id, queue_id, rank, run

-- name: claim_promote_drop
-- Array-bound. Params: run_at, job. Key: PRIMARY, rows this transaction locked.
DELETE FROM nightshift_scheduled WHERE run_at = ? AND job_id = ?

-- name: claim_promote_next
-- Params: from. Key: PRIMARY, the first row from there.
SELECT run_at, {now} FROM nightshift_scheduled WHERE run_at >= ?
ORDER BY run_at, job_id LIMIT 1

-- name: claim_promote_skip
-- Params: from, up to, limit. As claim_promote, around what others hold.
SELECT run_at, job_id, queue_id, rank, run FROM nightshift_scheduled
WHERE run_at >= ? AND run_at < ? AND run_at <= {now}
ORDER BY run_at, job_id LIMIT ?
FOR UPDATE SKIP LOCKED

-- name: claim_read
-- Params: [[id,run],…]. Key: PRIMARY of job, one row at a time in the order of
-- the list; no locks. A row that is missing here was cancelled or moved. Who has
-- waited for a signal, and nobody else, has it looked up: PRIMARY of signal, by the
-- name and by none.
SELECT STRAIGHT_JOIN j.id, j.run, j.queue_id, j.name, j.payload, j.state,
  j.attempts, j.polls, j.crashes, j.max_attempts, j.max_polls,
  255 - j.rank AS priority, j.parent, j.root, j.created, j.due, j.deadline,
  j.timeout, j.nonce, {now} AS now, j.phase, j.awaits, j.ukey IS NOT NULL AS keyed,
  IF(j.awaits IS NULL, NULL, (SELECT s.value FROM nightshift_signal s
    WHERE s.job_id = j.id AND s.name IN (j.awaits, '')
    ORDER BY s.name = '' LIMIT 1)) AS heard,
  IF(j.awaits IS NULL, NULL, (SELECT s.sent FROM nightshift_signal s
    WHERE s.job_id = j.id AND s.name IN (j.awaits, '')
    ORDER BY s.name = '' LIMIT 1)) AS sent
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', run INT UNSIGNED PATH '$[1]')) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run

-- name: claim_read_again
-- Params: [[id,run],…]. As claim_read, but of what is committed and not of what the
-- snapshot shows: for jobs that were not brought, or had been woken and have no
-- signal. The server lets a locking read see a commit a moment before a snapshot
-- does, so a claim may have met a ready row whose job is not to be seen yet. Keys: as
-- claim_read; locks the rows, around those that somebody holds; a shared lock could
-- become one on the gap before its row, where pushes would wait.
SELECT STRAIGHT_JOIN j.id, j.run, j.queue_id, j.name, j.payload, j.state,
  j.attempts, j.polls, j.crashes, j.max_attempts, j.max_polls,
  255 - j.rank AS priority, j.parent, j.root, j.created, j.due, j.deadline,
  j.timeout, j.nonce, {now} AS now, j.phase, j.awaits, j.ukey IS NOT NULL AS keyed,
  IF(j.awaits IS NULL, NULL, (SELECT s.value FROM nightshift_signal s
    WHERE s.job_id = j.id AND s.name IN (j.awaits, '')
    ORDER BY s.name = '' LIMIT 1 FOR UPDATE SKIP LOCKED)) AS heard,
  IF(j.awaits IS NULL, NULL, (SELECT s.sent FROM nightshift_signal s
    WHERE s.job_id = j.id AND s.name IN (j.awaits, '')
    ORDER BY s.name = '' LIMIT 1 FOR UPDATE SKIP LOCKED)) AS sent
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', run INT UNSIGNED PATH '$[1]')) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run
FOR UPDATE SKIP LOCKED

-- name: claim_ready
-- Array-bound. Params: queue, rank, microseconds from now, job, run, alone. A
-- job enters ready now. Key: PRIMARY.
INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, alone)
VALUES (?, ?, {now} + ?, ?, ?, ?)

-- name: claim_sentinel
-- Array-bound. Params: queue, rank. Run on its own. Key: PRIMARY, the last row
-- of the lane; 1205 at once while another claimer adds it.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
INSERT IGNORE INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)
VALUES (?, ?, {end}, 0, 0)

-- name: claim_skip
-- Params: queue, rank, floor and end per lane, limit. As claim_fast, around what
-- others hold; the rows are then dropped by key.
SELECT rank, ready_at, job_id, run, alone FROM nightshift_ready
WHERE queue_id = ? AND (/*lanes*/)
ORDER BY queue_id, rank, ready_at, job_id LIMIT ?
FOR UPDATE SKIP LOCKED

-- name: claim_stands
-- Params: lease. Key: PRIMARY. A row: the claim that was cut at its commit
-- did happen.
SELECT 1 FROM nightshift_lease WHERE id = ?

-- name: claim_stirring
-- Params: [queue,…]. Places in the list, from 0, of queues that have a row to be
-- claimed. Key: PRIMARY of ready, per queue up to its first row that is no
-- sentinel: EXISTS would be turned into a scan of the whole table. No locks.
SELECT v.place - 1
FROM JSON_TABLE(?, '$[*]' COLUMNS (place FOR ORDINALITY, id INT PATH '$')) v
WHERE (SELECT 1 FROM nightshift_ready r FORCE INDEX (PRIMARY)
  WHERE r.queue_id = v.id AND r.ready_at < {end} LIMIT 1) = 1

-- name: claim_stretch
-- Params: first, last, run. As claim_read, of jobs with ids in a row: a range of
-- PRIMARY of job, a third of the time.
SELECT j.id, j.run, j.queue_id, j.name, j.payload, j.state,
  j.attempts, j.polls, j.crashes, j.max_attempts, j.max_polls,
  255 - j.rank AS priority, j.parent, j.root, j.created, j.due, j.deadline,
  j.timeout, j.nonce, {now} AS now, j.phase, j.awaits, j.ukey IS NOT NULL AS keyed,
  IF(j.awaits IS NULL, NULL, (SELECT s.value FROM nightshift_signal s
    WHERE s.job_id = j.id AND s.name IN (j.awaits, '')
    ORDER BY s.name = '' LIMIT 1)) AS heard,
  IF(j.awaits IS NULL, NULL, (SELECT s.sent FROM nightshift_signal s
    WHERE s.job_id = j.id AND s.name IN (j.awaits, '')
    ORDER BY s.name = '' LIMIT 1)) AS sent
FROM nightshift_job j FORCE INDEX (PRIMARY)
WHERE j.id BETWEEN ? AND ? AND j.run = ? ORDER BY j.id
