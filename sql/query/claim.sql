-- Statements of a claim: promotion, claiming, leases, payloads. None waits for a row lock. The
-- comment (lanes) marks the place of the claim's range expression, one `(rank = ? AND ready_at
-- >= ? AND ready_at < ?)` per known lane; claim/statement.c puts it in. An admission lock is a
-- named lock: claimers under contention go in a few at a time. Sorted by name.

-- name: claim_above
-- Params: queue, rank. The lane before this one: its last row, which is its sentinel or an
-- unclaimed row; so no deleted rows are read. Key: PRIMARY, backwards, one row; no locks. In
-- brackets, as claim/sweep.c makes one statement of several.
(SELECT rank FROM nightshift_ready WHERE queue_id = ? AND rank < ?
 ORDER BY queue_id DESC, rank DESC, ready_at DESC, job_id DESC LIMIT 1)

-- name: claim_admission_enter
-- Params: queue, lock, milliseconds to wait, queue, lock. Is it ours now, which session has it,
-- and how many microseconds did the wait take (SYSDATE goes on during a statement)? The time on
-- the network is not in it.
SELECT GET_LOCK(CONCAT('nightshift-gate:', {here}, ':', ?, ':', ?), ? / 1000),
  IS_USED_LOCK(CONCAT('nightshift-gate:', {here}, ':', ?, ':', ?)),
  TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))

-- name: claim_admission_leave
-- Params: queue, lock. Nothing happens when it is not ours. Neither reads or locks a row.
DO RELEASE_LOCK(CONCAT('nightshift-gate:', {here}, ':', ?, ':', ?))

-- name: claim_alone
-- Params: queue, rank, ready_at, job. Key: PRIMARY, one row; 1205 at once when
-- it is locked.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_ready
WHERE queue_id = ? AND rank = ? AND ready_at = ? AND job_id = ?
RETURNING rank, ready_at, job_id, run, alone, kind

-- name: claim_back
-- Params: queue, rank, ready_at, job, run, kind. Puts back a row that this
-- transaction took and that has to be claimed alone. Key: PRIMARY.
INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind, alone)
VALUES (?, ?, ?, ?, ?, ?, TRUE)

-- name: claim_below
-- Params: queue, rank, from and to per lane, limit. As claim_late, for a claim of some names
-- among many rows of other names. The rows are read without locks; locks are asked for one row
-- at a time, skipping locked rows.
SET STATEMENT max_statement_time=0.003 FOR
SELECT rank, ready_at FROM nightshift_ready v
WHERE queue_id = ? AND (/*lanes*/)
  AND (SELECT 1 FROM nightshift_ready r FORCE INDEX (PRIMARY)
    WHERE r.queue_id = v.queue_id AND r.rank = v.rank AND r.ready_at = v.ready_at
      AND r.job_id = v.job_id
    LIMIT 1 FOR UPDATE SKIP LOCKED) = 1
ORDER BY queue_id, rank, ready_at, job_id LIMIT ?

-- name: claim_busy_queues
-- Params: [queue,…]. Places in the list, from 0, of queues that have a row to be claimed. Key:
-- PRIMARY of ready, per queue up to its first row that is no sentinel. (The server would turn
-- EXISTS into a scan of the whole table.) No locks.
SELECT v.place - 1
FROM JSON_TABLE(?, '$[*]' COLUMNS (place FOR ORDINALITY, id INT PATH '$')) v
WHERE (SELECT 1 FROM nightshift_ready r FORCE INDEX (PRIMARY)
  WHERE r.queue_id = v.id AND r.ready_at < {end} LIMIT 1) = 1

-- name: claim_drop
-- Params: [[queue,rank,ready_at,job],…]. Key: PRIMARY, one row at a time, each locked by
-- this transaction.
DELETE r
FROM JSON_TABLE(?, '$[*]' COLUMNS (queue_id INT PATH '$[0]', `rank` TINYINT UNSIGNED PATH '$[1]',
  ready_at BIGINT PATH '$[2]', id BIGINT PATH '$[3]')) v
STRAIGHT_JOIN nightshift_ready r FORCE INDEX (PRIMARY) ON r.queue_id = v.queue_id
  AND r.rank = v.rank AND r.ready_at = v.ready_at AND r.job_id = v.id

-- name: claim_expiry
-- Params: lease, microseconds from now. Key: PRIMARY of expiry.
INSERT INTO nightshift_expiry (lease, expires) VALUES (?, {now} + ?)

-- name: claim_fast
-- Params: queue, rank, floor and end per lane, limit. Key: PRIMARY, a range per lane that ends
-- before its sentinel. Locks its rows; 1205 at once when one of them is locked.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_ready
WHERE queue_id = ? AND (/*lanes*/)
ORDER BY queue_id, rank, ready_at, job_id LIMIT ?
RETURNING rank, ready_at, job_id, run, alone, kind

-- name: claim_firsts
-- Params: [queue,…]. The first row of each of many queues, locked, skipping locked rows; they
-- are then dropped by key. Key: PRIMARY of ready, per queue up to its first row without locks,
-- and that row by its key.
SELECT STRAIGHT_JOIN r.rank, r.ready_at, r.job_id, r.run, r.alone, r.kind, r.queue_id
FROM (SELECT v.id, (SELECT JSON_ARRAY(f.rank, f.ready_at, f.job_id)
    FROM nightshift_ready f FORCE INDEX (PRIMARY)
    WHERE f.queue_id = v.id AND f.ready_at < {end}
    ORDER BY f.queue_id, f.rank, f.ready_at, f.job_id LIMIT 1) AS head
  FROM JSON_TABLE(?, '$[*]' COLUMNS (id INT PATH '$')) v) h
JOIN JSON_TABLE(h.head, '$' COLUMNS (`rank` TINYINT UNSIGNED PATH '$[0]',
  ready_at BIGINT PATH '$[1]', id BIGINT PATH '$[2]')) k
JOIN nightshift_ready r FORCE INDEX (PRIMARY) ON r.queue_id = h.id AND r.rank = k.rank
  AND r.ready_at = k.ready_at AND r.job_id = k.id /*kinds*/
FOR UPDATE SKIP LOCKED

-- name: claim_head
-- Params: queue, rank, floor. The oldest row of a lane, or the oldest of some kinds.
-- Key: PRIMARY, one row, or up to the first of them; no locks. In brackets, as
-- claim/sweep.c makes one statement of several.
(SELECT rank, ready_at FROM nightshift_ready
 WHERE queue_id = ? AND rank = ? AND ready_at >= ? AND ready_at < {end} /*kinds*/
 ORDER BY queue_id, rank, ready_at, job_id LIMIT 1)

-- name: claim_late
-- Params: queue, rank, from and to per lane, limit. As claim_skip, for a sweep: rows below
-- floors among deleted rows, which may be too many to read them all (1969, NS_LOOK_MAX).
SET STATEMENT max_statement_time=0.003 FOR
SELECT rank, ready_at FROM nightshift_ready
WHERE queue_id = ? AND (/*lanes*/)
ORDER BY queue_id, rank, ready_at, job_id LIMIT ?
FOR UPDATE SKIP LOCKED

-- name: claim_lease
-- Params: id, holder, [[id,run],…]. Key: PRIMARY.
INSERT INTO nightshift_lease (id, holder, claimed, jobs) VALUES (?, ?, {now}, ?)

-- name: claim_more
-- Params: queue, rank, ready_at, rows to look at, kind, queue, limit. More jobs of a name behind one
-- that was claimed, in its lane, for its batch; the rows are then dropped by key. Key: PRIMARY of
-- ready, a range of so many rows without locks; then each row that matches by its key, skipping
-- rows that are locked.
SELECT v.rank, v.ready_at, v.job_id, v.run, v.alone, v.kind
FROM (SELECT rank, ready_at, job_id, run, alone, kind FROM nightshift_ready FORCE INDEX (PRIMARY)
  WHERE queue_id = ? AND rank = ? AND ready_at >= ? AND ready_at < {end}
  ORDER BY queue_id, rank, ready_at, job_id LIMIT ?) v
WHERE v.kind = ? AND NOT v.alone
  AND (SELECT 1 FROM nightshift_ready r FORCE INDEX (PRIMARY)
    WHERE r.queue_id = ? AND r.rank = v.rank AND r.ready_at = v.ready_at AND r.job_id = v.job_id
    LIMIT 1 FOR UPDATE SKIP LOCKED) = 1
LIMIT ?

-- name: claim_one
-- Params: lease, holder, where scheduled jobs begin, queue, rank, floor and end per lane. A whole
-- claim of one job in one round trip: the first row that no other transaction has locked, the
-- lease, the commit. Gives the job as claim_read does, all NULL when there is none, and which row
-- it was. No row: nothing was claimed. There is none, a scheduled job is due, or the queue or some
-- name of jobs is paused. Keys: PRIMARY of scheduled, one row; PRIMARY of ready, a range per lane,
-- past locked rows; PRIMARY of holder. Locks our own row there, which says that we were not
-- declared dead. A failure is rolled back here or, after a KILL, by the sender. No EXISTS: see
-- source_known.
BEGIN NOT ATOMIC
  DECLARE v_lease BIGINT DEFAULT ?;
  DECLARE v_holder BIGINT DEFAULT ?;
  DECLARE v_due BIGINT DEFAULT ?;
  DECLARE v_queue INT DEFAULT ?;
  DECLARE v_rank TINYINT UNSIGNED;
  DECLARE v_at, v_id BIGINT;
  DECLARE v_run INT UNSIGNED;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  START TRANSACTION;
  SELECT rank, ready_at, job_id, run INTO v_rank, v_at, v_id, v_run
  FROM nightshift_ready FORCE INDEX (PRIMARY)
  WHERE queue_id = v_queue AND (/*lanes*/)
    AND (SELECT q.paused OR q.removed OR q.limited FROM nightshift_queue q WHERE q.id = v_queue) = 0
    AND (SELECT 1 FROM nightshift_paused_name LIMIT 1) IS NULL
    AND COALESCE((SELECT s.run_at FROM nightshift_scheduled s FORCE INDEX (PRIMARY)
      WHERE s.run_at >= v_due ORDER BY s.run_at, s.job_id LIMIT 1) > {now}, TRUE)
  ORDER BY queue_id, rank, ready_at, job_id LIMIT 1 FOR UPDATE SKIP LOCKED;
  IF v_id IS NOT NULL THEN
    DELETE FROM nightshift_ready
    WHERE queue_id = v_queue AND rank = v_rank AND ready_at = v_at AND job_id = v_id;
    IF ROW_COUNT() <> 1 THEN
      SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317,
        MESSAGE_TEXT = 'the statement was interrupted';
    END IF;
    INSERT INTO nightshift_lease (id, holder, claimed, jobs)
    SELECT v_lease, h.id, {now}, CONCAT('[[', v_id, ',', v_run, ']]')
    FROM nightshift_holder h FORCE INDEX (PRIMARY) WHERE h.id = v_holder AND h.dead IS NULL
    FOR UPDATE;
    IF ROW_COUNT() <> 1 THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the holder was declared dead';
    END IF;
  END IF;
  COMMIT;
  SELECT {job_columns},
    IF(j.awaits IS NULL, NULL, (SELECT s.value {signal})) AS heard,
    IF(j.awaits IS NULL, NULL, (SELECT s.sent {signal})) AS sent, v_rank, v_at, v_id, v_run
  FROM nightshift_holder h FORCE INDEX (PRIMARY)
  LEFT JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v_id AND j.run = v_run
  WHERE h.id = v_holder AND v_id IS NOT NULL;
END

-- name: claim_prescan
-- Params: queue, rank, ready_at, job, ready_at, its end's ready_at, job, ready_at. Where the
-- first row of some kinds is in a stretch of a lane, which claim_prescan_end has found. Key:
-- PRIMARY, the rows up to it; no locks.
SELECT ready_at FROM nightshift_ready FORCE INDEX (PRIMARY)
WHERE queue_id = ? AND rank = ? AND ((ready_at = ? AND job_id > ?) OR ready_at > ?)
  AND ((ready_at = ? AND job_id <= ?) OR ready_at < ?) /*kinds*/
ORDER BY queue_id, rank, ready_at, job_id LIMIT 1

-- name: claim_prescan_end
-- Params: queue, rank, ready_at, job, ready_at, end, and the same again. The next rows of a
-- lane behind (ready_at, job), as many as are read in some milliseconds (claim/sweep.c). First
-- whether there are so many, then the last of them. Key: PRIMARY, a range; no locks.
(SELECT TRUE, ready_at, job_id FROM nightshift_ready FORCE INDEX (PRIMARY)
  WHERE queue_id = ? AND rank = ? AND ((ready_at = ? AND job_id > ?) OR ready_at > ?)
    AND ready_at < ?
  ORDER BY queue_id, rank, ready_at, job_id LIMIT 1 OFFSET 4999)
UNION ALL
(SELECT FALSE, ready_at, job_id FROM nightshift_ready FORCE INDEX (PRIMARY)
  WHERE queue_id = ? AND rank = ? AND ((ready_at = ? AND job_id > ?) OR ready_at > ?)
    AND ready_at < ?
  ORDER BY queue_id DESC, rank DESC, ready_at DESC, job_id DESC LIMIT 1)

-- name: claim_promote
-- Params: from, up to, limit. Key: PRIMARY of scheduled; 1205 at once when one of the rows is
-- locked.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_scheduled
WHERE run_at >= ? AND run_at < ? AND run_at <= {now}
ORDER BY run_at, job_id LIMIT ?
RETURNING run_at, job_id, queue_id, rank, run, kind

-- name: claim_promote_drop
-- Array-bound. Params: run_at, job. Key: PRIMARY, rows this transaction locked.
DELETE FROM nightshift_scheduled WHERE run_at = ? AND job_id = ?

-- name: claim_promote_next
-- Params: from. Key: PRIMARY, the first row from there.
SELECT run_at, {now} FROM nightshift_scheduled WHERE run_at >= ?
ORDER BY run_at, job_id LIMIT 1

-- name: claim_promote_skip
-- Params: from, up to, limit. As claim_promote, skipping rows that are locked.
SELECT run_at, job_id, queue_id, rank, run, kind FROM nightshift_scheduled
WHERE run_at >= ? AND run_at < ? AND run_at <= {now}
ORDER BY run_at, job_id LIMIT ?
FOR UPDATE SKIP LOCKED

-- name: claim_read
-- Params: [[id,run],…]. Key: PRIMARY of job, one row at a time in the order of
-- the list; no locks. A row that is missing here was cancelled or moved. A signal is looked up only
-- for a job that has waited for one: PRIMARY of signal, by the
-- name and by none.
SELECT STRAIGHT_JOIN {job_columns},
  IF(j.awaits IS NULL, NULL, (SELECT s.value {signal})) AS heard,
  IF(j.awaits IS NULL, NULL, (SELECT s.sent {signal})) AS sent
FROM JSON_TABLE(?, {tokens}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run

-- name: claim_read_again
-- Params: [[id,run],…]. As claim_read, but of committed rows and not of the snapshot's. It is
-- for jobs that were not brought, or had been woken and have no signal. The server lets a
-- locking read see a commit a moment before a snapshot does. So a claim may have met a ready
-- row of a job that its snapshot does not show yet. Keys: as claim_read; locks the rows,
-- skipping locked rows. A shared lock could become one on the gap before its row, where pushes
-- would wait.
SELECT STRAIGHT_JOIN {job_columns},
  IF(j.awaits IS NULL, NULL, (SELECT s.value {signal} FOR UPDATE SKIP LOCKED)) AS heard,
  IF(j.awaits IS NULL, NULL, (SELECT s.sent {signal} FOR UPDATE SKIP LOCKED)) AS sent
FROM JSON_TABLE(?, {tokens}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run
FOR UPDATE SKIP LOCKED

-- name: claim_ready
-- Array-bound. Params: queue, rank, microseconds from now, job, run, alone, kind. A
-- job enters ready now. Key: PRIMARY.
INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, alone, kind)
VALUES (?, ?, {now} + ?, ?, ?, ?, ?)

-- name: claim_sentinel
-- Array-bound. Params: queue, rank. Run on its own. Key: PRIMARY, the last row
-- of the lane; 1205 at once while another claimer adds it.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
INSERT IGNORE INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)
VALUES (?, ?, {end}, 0, 0)

-- name: claim_skip
-- Params: queue, rank, floor and end per lane, limit. As claim_fast, skipping rows that are locked;
-- the rows are then dropped by key.
SELECT rank, ready_at, job_id, run, alone, kind FROM nightshift_ready
WHERE queue_id = ? AND (/*lanes*/)
ORDER BY queue_id, rank, ready_at, job_id LIMIT ?
FOR UPDATE SKIP LOCKED

-- name: claim_skip_long
-- Params: queue, rank, floor and end per lane, limit. As claim_skip_soon, of many rows.
SET STATEMENT max_statement_time=0.5 FOR
SELECT rank, ready_at, job_id, run, alone, kind FROM nightshift_ready
WHERE queue_id = ? AND (/*lanes*/)
ORDER BY queue_id, rank, ready_at, job_id LIMIT ?
FOR UPDATE SKIP LOCKED

-- name: claim_skip_soon
-- Params: queue, rank, floor and end per lane, limit. As claim_skip, of a claimer that has met
-- no contention: cut (1969, see claim/turns.c) where other sessions hold very many rows.
SET STATEMENT max_statement_time=0.02 FOR
SELECT rank, ready_at, job_id, run, alone, kind FROM nightshift_ready
WHERE queue_id = ? AND (/*lanes*/)
ORDER BY queue_id, rank, ready_at, job_id LIMIT ?
FOR UPDATE SKIP LOCKED

-- name: claim_stands
-- Params: lease. Key: PRIMARY. Its jobs, if the claim that was cut at its commit did happen.
SELECT v.id, v.run
FROM nightshift_lease l STRAIGHT_JOIN JSON_TABLE(l.jobs, {tokens}) v WHERE l.id = ?

-- name: claim_stretch
-- Params: first, last, run. As claim_read, of jobs with ids in a row: a range of
-- PRIMARY of job, a third of the time.
SELECT {job_columns},
  IF(j.awaits IS NULL, NULL, (SELECT s.value {signal})) AS heard,
  IF(j.awaits IS NULL, NULL, (SELECT s.sent {signal})) AS sent
FROM nightshift_job j FORCE INDEX (PRIMARY)
WHERE j.id BETWEEN ? AND ? AND j.run = ? ORDER BY j.id

-- name: claim_upcoming
-- Params: from, microseconds from now, limit. Jobs that come due in that time and that a
-- claim would take: of its queues and kinds, which are filled in. A row of a job that is gone, or
-- that has another run, is left out. Key: PRIMARY of scheduled, a range; of job and queue, for
-- rows that match. No locks.
SELECT s.run_at AS upcoming, {now} AS now, j.name, q.name AS queue
FROM nightshift_scheduled s FORCE INDEX (PRIMARY)
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = s.job_id AND j.run = s.run
STRAIGHT_JOIN nightshift_queue q ON q.id = s.queue_id
WHERE s.run_at >= ? AND s.run_at <= {now} + ? AND s.queue_id IN (queues) /*kinds*/
ORDER BY s.run_at, s.job_id LIMIT ?
