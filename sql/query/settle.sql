-- Statements of a settle. Rows change by primary key, one key at a time, in sorted order; only
-- settle_lock takes the locks. A DELETE of rows that may not be there names its table twice. A
-- KILL QUERY makes that form fail, but may make the plain form say OK with nothing done. Sorted
-- by name.

-- name: settle_attempt
-- Params: job, run, kind, holder, µs since its start, worker, error, log. Key: PRIMARY. Of a run that
-- has failed, or has printed.
INSERT INTO nightshift_attempt (job_id, run, kind, ended, holder, started, worker, error, log)
VALUES (?, ?, ?, {now}, ?, {now} - ?, ?, ?, ?)

-- name: settle_attempts
-- Params: [id,…] of jobs that leave no history. Key: PRIMARY of attempt, by its job. The rows of
-- earlier runs.
DELETE a FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_attempt a FORCE INDEX (PRIMARY) ON a.job_id = v.id

-- name: settle_back
-- Array-bound. Params: queue, rank, ready_at, job, run, alone, kind. A job that was
-- never begun enters ready where it was, below the floors of all. Key: PRIMARY.
INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, alone, kind)
VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: settle_checkpoint
-- Params: state, job, run. Key: PRIMARY; locks the row while (id, run) stands.
UPDATE nightshift_job SET state = ? WHERE id = ? AND run = ?

-- name: settle_checkpoint_stands
-- Params: job, run. Key: PRIMARY; no locks. Does (id, run) stand, though nothing has changed?
SELECT 1 AS yes FROM nightshift_job WHERE id = ? AND run = ?

-- name: settle_child_exists
-- Params: parent, seq, child. Key: PRIMARY of child; no locks. Was the verdict written that
-- brought this child?
SELECT 1 FROM nightshift_child WHERE parent = ? AND seq = ? AND id = ?

-- name: settle_done
-- Params: holder, starts, first, workers, first, last, run, how many. Jobs with ids in a
-- row, all of them ours, that are done without a result. starts has 14 digits for each of them, in
-- their order: µs since its start; workers 5: its worker; 0: not known. They come as bytes:
-- in characters each cut would be looked for from the beginning. Keys: PRIMARY of job, a range; locks
-- its rows, skipping locked rows; PRIMARY and outcome of finished.
INSERT INTO nightshift_finished
  (id, queue_id, name, payload, priority, outcome, run, attempts, polls, crashes,
   lost, max_attempts, max_polls, max_crashes, backoff, timeout, deadline, created,
   finished_at, parent, root, on_fail, nonce, holder, started, worker, decay, since,
   max_phases, after_ids, group_key)
SELECT j.id, j.queue_id, j.name, j.payload, j.priority, 'done', j.run, j.attempts,
  j.polls, j.crashes, j.lost, j.max_attempts, j.max_polls, j.max_crashes, j.backoff,
  j.timeout, j.deadline, j.created, {now}, j.parent, j.root, j.on_fail, j.nonce, ?,
  {now} - NULLIF(CAST(SUBSTRING(?, 1 + 14 * (j.id - ?), 14) AS SIGNED), 0),
  NULLIF(CAST(SUBSTRING(?, 1 + 5 * (j.id - ?), 5) AS UNSIGNED), 0),
  j.decay, j.since, j.max_phases, j.after_ids, j.group_key
FROM nightshift_job j FORCE INDEX (PRIMARY)
WHERE j.id BETWEEN ? AND ? AND j.run = ? ORDER BY j.id LIMIT ?
FOR UPDATE SKIP LOCKED

-- name: settle_done_forget
-- Params: first, last, run, how many. Instead of settle_done and settle_done_gone, for jobs
-- that leave no history. Key: PRIMARY, a range; 1205 at once when one of the rows is locked.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_job WHERE id BETWEEN ? AND ? AND run = ? ORDER BY id LIMIT ?
RETURNING id

-- name: settle_done_gone
-- Params: first, last, run, how many. Key: PRIMARY of job, a range that
-- settle_done has locked; the limit keeps it from the row behind.
DELETE FROM nightshift_job WHERE id BETWEEN ? AND ? AND run = ? ORDER BY id LIMIT ?

-- name: settle_done_list
-- Params: holder, [[id,run,µs since its start,worker,"result"],…]; null: not known, none. As
-- settle_done, for jobs with ids that are not in a row, or that have results. Keys: PRIMARY of job,
-- one row at a time in the order of the list; PRIMARY and outcome of finished.
INSERT INTO nightshift_finished
  (id, queue_id, name, payload, priority, outcome, run, result, attempts, polls,
   crashes, lost, max_attempts, max_polls, max_crashes, backoff, timeout, deadline,
   created, finished_at, parent, root, on_fail, nonce, holder, started, worker, decay, since,
   max_phases, after_ids, group_key)
SELECT STRAIGHT_JOIN j.id, j.queue_id, j.name, j.payload, j.priority, 'done', j.run,
  v.result, j.attempts, j.polls, j.crashes, j.lost, j.max_attempts, j.max_polls,
  j.max_crashes, j.backoff, j.timeout, j.deadline, j.created, {now}, j.parent, j.root,
  j.on_fail, j.nonce, ?, {now} - v.ago, v.worker, j.decay, j.since, j.max_phases, j.after_ids,
  j.group_key
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]',
  run INT UNSIGNED PATH '$[1]', ago BIGINT PATH '$[2]', worker INT UNSIGNED PATH '$[3]',
  result MEDIUMTEXT {bytes} PATH '$[4]')) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run
FOR UPDATE SKIP LOCKED

-- name: settle_done_ours
-- Params: [[id,run],…]. Keys: PRIMARY of job, one row at a time, and of finished. No locks. The
-- jobs that have just been written, when not all could be.
SELECT STRAIGHT_JOIN j.id, j.run
FROM JSON_TABLE(?, {tokens}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = j.id

-- name: settle_expiry
-- Array-bound. Params: lease. Key: PRIMARY of expiry.
DELETE nightshift_expiry FROM nightshift_expiry WHERE lease = ?

-- name: settle_finish
-- Params: list of objects: i job, o outcome, r reason, x result, e error, a attempts, m how many it
-- has, p polls, c crashes (absent: as the job has them). Then the run that it ends with: h holder,
-- s µs since its start, w worker; l a lease that tells the holder, -1: any. Keys: PRIMARY of job,
-- one row at a time, locked by settle_lock; PRIMARY and outcome of finished. Where the start is not
-- known PRIMARY of running; with l PRIMARY of lease, or all leases: they are few. No locks on
-- these. The payload never leaves the server. A failed job keeps its state, and the ids that it
-- waited for, for a retry.
INSERT INTO nightshift_finished
  (id, queue_id, name, payload, priority, outcome, reason, run, result, error,
   attempts, polls, crashes, lost, max_attempts, max_polls, max_crashes,
   backoff, timeout, deadline, created, finished_at, parent, root, on_fail,
   ukey, nonce, after_ids, phase, waits, state, holder, started, worker, decay, since,
   max_phases, group_key)
SELECT STRAIGHT_JOIN j.id, j.queue_id, j.name, j.payload, j.priority, v.outcome,
  v.reason, j.run, v.result, v.error, COALESCE(v.attempts, j.attempts),
  COALESCE(v.polls, j.polls), COALESCE(v.crashes, j.crashes), j.lost,
  COALESCE(v.most, j.max_attempts), j.max_polls, j.max_crashes, j.backoff, j.timeout, j.deadline,
  j.created, {now}, j.parent, j.root, j.on_fail, j.ukey, j.nonce,
  j.after_ids,
  IF(v.outcome = 'done' OR j.awaits IS NOT NULL, 0, j.phase),
  IF(v.outcome <> 'done' AND j.waits IN ('fail', 'continue'), j.waits, NULL),
  IF(v.outcome = 'done' OR j.awaits IS NOT NULL, NULL, j.state),
  CASE WHEN v.lease > 0 THEN (SELECT l.holder FROM nightshift_lease l WHERE l.id = v.lease)
    WHEN v.lease < 0 THEN (SELECT c.holder FROM (SELECT 1) one JOIN {lease} LIMIT 1)
    ELSE v.holder END,
  IF(v.ago IS NULL AND (v.lease IS NOT NULL OR v.holder IS NOT NULL),
    (SELECT r.started FROM nightshift_running r WHERE r.job_id = j.id AND r.run = j.run),
    {now} - v.ago), v.worker, j.decay, j.since, j.max_phases, j.group_key
FROM JSON_TABLE(?, '$[*]' COLUMNS (
  id BIGINT PATH '$.i', outcome VARCHAR(10) {bytes} PATH '$.o',
  reason VARCHAR(255) {bytes} PATH '$.r', result MEDIUMTEXT {bytes} PATH '$.x',
  error MEDIUMTEXT {bytes} PATH '$.e', attempts INT UNSIGNED PATH '$.a',
  polls INT UNSIGNED PATH '$.p', crashes INT UNSIGNED PATH '$.c',
  most INT UNSIGNED PATH '$.m', holder BIGINT PATH '$.h', ago BIGINT PATH '$.s',
  worker INT UNSIGNED PATH '$.w', lease BIGINT PATH '$.l')) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id

-- name: settle_gone
-- Params: [id,…]. Key: PRIMARY of job, one row at a time, locked by
-- settle_lock. Half the time of an array-bound delete.
DELETE j FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id

-- name: settle_hidden
-- Array-bound. Params: job. Key: PRIMARY of running.
DELETE nightshift_running FROM nightshift_running WHERE job_id = ?

-- name: settle_keys
-- Params: [[n,queue,key],…]. Key: PRIMARY of unique_key, one row at a time; locks
-- them, skipping locked rows: jobs that were refused a key. stays: its period is not over.
SELECT STRAIGHT_JOIN v.n, COALESCE(u.held > {now}, FALSE) AS stays
FROM JSON_TABLE(?, '$[*]' COLUMNS (n BIGINT PATH '$[0]', queue INT PATH '$[1]',
  ukey VARCHAR(190) {bytes} PATH '$[2]')) v
JOIN nightshift_unique_key u FORCE INDEX (PRIMARY)
  ON u.queue_id = v.queue AND u.ukey = v.ukey
FOR UPDATE SKIP LOCKED

-- name: settle_lease
-- Array-bound. Params: lease. Key: PRIMARY.
DELETE nightshift_lease FROM nightshift_lease WHERE id = ?

-- name: settle_lock
-- Params: [[id,run],…]. Key: PRIMARY of job, one row at a time; locks them.
-- A missing row is stale, or locked by another session.
SELECT STRAIGHT_JOIN j.id, j.run, j.queue_id, j.rank, j.attempts, j.polls,
  j.crashes, j.lost, j.missed, j.missing_since, j.max_attempts, j.max_polls, j.max_crashes,
  j.backoff, j.deadline, j.root, j.ukey, {now} AS now, j.decay, j.paused, j.due,
  CRC32(j.name) AS kind, j.phases, j.max_phases, j.tagged
FROM JSON_TABLE(?, {tokens}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run
FOR UPDATE SKIP LOCKED

-- name: settle_on_dead
-- Params: [[n,id,queue],…]. Keys: PRIMARY of finished, on_dead and queue, name of queue. No locks.
-- Jobs that this transaction has written as dead, each in a row; on_dead NULL: nothing is to be
-- pushed. Own rows are seen whatever the age of the snapshot.
SELECT STRAIGHT_JOIN v.n, f.run, COALESCE(q.id, v.queue) AS queue_id, d.on_dead, o.name
FROM JSON_TABLE(?, '$[*]' COLUMNS (n BIGINT PATH '$[0]', id BIGINT PATH '$[1]',
  queue INT PATH '$[2]')) v
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
LEFT JOIN nightshift_on_dead d FORCE INDEX (PRIMARY) ON d.name = f.name
LEFT JOIN nightshift_queue q FORCE INDEX (name) ON q.name = d.queue
LEFT JOIN nightshift_queue o FORCE INDEX (PRIMARY) ON o.id = v.queue

-- name: settle_on_dead_push
-- Params: [[id,nonce,dead job,queue,name,name of the dead job's queue,attempts,crashes],…]; NULL
-- of the last two: as the job has them. Keys: PRIMARY of job and of finished, one row at a time,
-- locked and written by this transaction; PRIMARY of job, appended at its end. The other columns are
-- a push's defaults. A payload of the dead job over 1 MiB is left out, and so is one that would be
-- too deep with one more level. Its size is told then.
INSERT INTO nightshift_job
  (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes, backoff, timeout, nonce,
   created, due, ukey)
SELECT STRAIGHT_JOIN v.id, v.queue, v.name,
  CONCAT('{"id":', j.id, ',"name":', JSON_QUOTE(j.name),
    COALESCE(CONCAT(',"queue":', JSON_QUOTE(v.own)), ''), ',"run":', j.run,
    ',"attempts":', COALESCE(v.attempts, j.attempts), ',"crashes":', COALESCE(v.crashes, j.crashes),
    ',"reason":', JSON_QUOTE(f.reason),
    COALESCE(CONCAT(',"error":', JSON_QUOTE(LEFT(f.error, 16384))), ''),
    IF(LENGTH(j.payload) <= LEAST(1048576, @@max_allowed_packet / 2)
        AND JSON_VALID(CONCAT('[', j.payload, ']')),
      CONCAT(',"payload":', j.payload), CONCAT(',"payload_bytes":', LENGTH(j.payload))), '}'),
  100, 155, 10, 5, 5000000, 3600000000, v.nonce, {now}, {now}, CONCAT('dead:', j.id, ':', j.run)
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', nonce BIGINT PATH '$[1]',
  dead BIGINT PATH '$[2]', queue INT PATH '$[3]', name VARCHAR(100) {bytes} PATH '$[4]',
  own VARCHAR(64) {bytes} PATH '$[5]', attempts INT UNSIGNED PATH '$[6]',
  crashes INT UNSIGNED PATH '$[7]')) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.dead
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = j.id

-- name: settle_one
-- Params: job, run, holder, µs since its start or NULL, worker or NULL, result, whether it has a
-- unique key, lease or NULL, number of the cycle. A whole transaction in one round trip: ends a
-- done job of a program. It does the work of settle_done_list, settle_keys, settle_unique,
-- settle_unique_held, settle_gone, settle_lease and holder_cycle. Keys: PRIMARY of each; it waits
-- for no lock of the job or of its key. It fails, and nothing is written, when one of these is
-- locked or gone, and when jobs wait for this one. Those are looked for when the job is locked. A
-- failure is rolled back here or, after a KILL, by the sender. A number of NULL: it is a part of
-- the caller's transaction. Then the holder is left alone, and the sender goes back to its
-- savepoint. No EXISTS: see source_known.
BEGIN NOT ATOMIC
  DECLARE v_job BIGINT DEFAULT ?;
  DECLARE v_run INT UNSIGNED DEFAULT ?;
  DECLARE v_holder BIGINT DEFAULT ?;
  DECLARE v_ago BIGINT DEFAULT ?;
  DECLARE v_worker INT UNSIGNED DEFAULT ?;
  DECLARE v_result MEDIUMTEXT {bytes} DEFAULT ?;
  DECLARE v_keyed BOOLEAN DEFAULT ?;
  DECLARE v_lease BIGINT DEFAULT ?;
  DECLARE v_cycle BIGINT DEFAULT ?;
  DECLARE v_queue INT;
  DECLARE v_key VARCHAR(190) {bytes};
  DECLARE v_stays BOOLEAN;
  DECLARE v_n INT;
  DECLARE v_waits BIGINT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    IF v_cycle IS NOT NULL THEN
      ROLLBACK;
    END IF;
    RESIGNAL;
  END;
  IF v_cycle IS NOT NULL THEN
    START TRANSACTION;
  ELSEIF @@in_transaction = 0 THEN
    SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'the transaction has ended';
  END IF;
  {finish_job};
  SET v_n = ROW_COUNT();
  IF v_n = 1 THEN
    IF v_keyed THEN
      SELECT STRAIGHT_JOIN u.queue_id, u.ukey, COALESCE(u.held > {now}, FALSE)
      INTO v_queue, v_key, v_stays
      FROM nightshift_job j FORCE INDEX (PRIMARY)
      JOIN nightshift_unique_key u FORCE INDEX (PRIMARY)
        ON u.queue_id = j.queue_id AND u.ukey = j.ukey AND u.job_id = j.id
      WHERE j.id = v_job FOR UPDATE SKIP LOCKED;
      IF v_stays THEN
        UPDATE nightshift_unique_key SET until = held WHERE queue_id = v_queue AND ukey = v_key;
      ELSE
        DELETE FROM nightshift_unique_key WHERE queue_id = v_queue AND ukey = v_key;
      END IF;
      SET v_n = v_n + ROW_COUNT();
    ELSE
      SET v_n = v_n + 1;
    END IF;
    {leave_job};
  END IF;
  IF v_n <> 5 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'it takes more than one statement';
  END IF;
  IF v_cycle IS NOT NULL THEN
    COMMIT;
  END IF;
END

-- name: settle_outputs
-- Params: job. Key: PRIMARY of attempt, rows of one job. Of runs that have said "not yet" the last
-- ten keep what they have printed.
DELETE a FROM (SELECT job_id, run FROM nightshift_attempt
  WHERE job_id = ? AND kind = 'printed' ORDER BY run DESC LIMIT 1 OFFSET 10) o
STRAIGHT_JOIN nightshift_attempt a FORCE INDEX (PRIMARY) ON a.job_id = o.job_id AND a.run <= o.run
WHERE a.kind = 'printed'

-- name: settle_parked
-- Params: [[meaning of a failed child,live children,job,phases],…]. Key: PRIMARY of job, one
-- row at a time, locked by settle_lock. Half the time of an array-bound update.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (waits VARCHAR(10) {bytes} PATH '$[0]',
  unmet INT UNSIGNED PATH '$[1]', id BIGINT PATH '$[2]',
  phases INT UNSIGNED PATH '$[3]')) v
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
SET j.run = j.run + 1, j.phase = j.phase + 1, j.phases = v.phases, j.lost = 0, j.missed = 0,
  j.missing_since = NULL, j.awaits = NULL, j.waits = v.waits, j.unmet = v.unmet

-- name: settle_renew
-- Params: microseconds from now, lease. Key: PRIMARY of expiry.
UPDATE nightshift_expiry SET expires = {now} + ? WHERE lease = ?

-- name: settle_return
-- Array-bound. Params: rank, attempts, polls, crashes, lost, missed, missing since, due, state
-- (NULL keeps it), whether the next run is to be given the same signal, how many attempts it has,
-- job. The run grows: every token out there is stale from now on; nor is the job parked. Key:
-- PRIMARY, locked by settle_lock. It may have been sent behind a statement that has ended the
-- transaction; then it changes nothing.
UPDATE nightshift_job SET run = run + 1, rank = ?, attempts = ?, polls = ?,
  crashes = ?, lost = ?, missed = ?, missing_since = ?, due = ?, wish = NULL, waits = NULL,
  state = COALESCE(?, state), awaits = IF(?, awaits, NULL), max_attempts = ?
WHERE id = ? AND @@in_transaction = 1

-- name: settle_scheduled
-- Array-bound. Params: run_at, job, queue, rank, run, kind. Key: PRIMARY.
INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run, kind)
VALUES (?, ?, ?, ?, ?, ?)

-- name: settle_shown
-- Params: holder, [[id,run,worker,progress,text,µs since its start],…]. Key: PRIMARY of both; writes
-- only while (id, run) stands. Locks: rows of running.
INSERT INTO nightshift_running
  (job_id, run, holder, worker, started, touched, progress, status)
SELECT STRAIGHT_JOIN j.id, j.run, ?, v.worker, {now} - COALESCE(v.ago, 0), {now}, v.progress,
  v.status
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', run INT UNSIGNED PATH '$[1]',
  worker INT PATH '$[2]', progress DOUBLE PATH '$[3]', status VARCHAR(255) {bytes} PATH '$[4]',
  ago BIGINT PATH '$[5]')) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run
ON DUPLICATE KEY UPDATE touched = VALUES(touched),
  worker = COALESCE(VALUES(worker), nightshift_running.worker),
  started = IF(nightshift_running.run = VALUES(run), started, VALUES(started)),
  run = VALUES(run), holder = VALUES(holder),
  progress = COALESCE(VALUES(progress), nightshift_running.progress),
  status = COALESCE(VALUES(status), nightshift_running.status)

-- name: settle_stands
-- Params: [[id,run],…]. Key: PRIMARY of job; no locks. Tells a locked row from a stale one.
SELECT STRAIGHT_JOIN j.id, j.run
FROM JSON_TABLE(?, {tokens}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run

-- name: settle_state
-- Array-bound. Params: state, job. The states of some parked jobs; with settle_parked all of
-- them would need a temporary table on disk. Key: PRIMARY, locked by settle_lock.
UPDATE nightshift_job SET state = ? WHERE id = ?

-- name: settle_tag_list
-- Params: job. Key: PRIMARY of tag, by its job. No locks.
SELECT tag FROM nightshift_tag WHERE job_id = ? ORDER BY tag

-- name: settle_tags
-- Params: [id,…] of jobs that leave no history. Key: PRIMARY of tag, by its job.
DELETE t FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_tag t FORCE INDEX (PRIMARY) ON t.job_id = v.id

-- name: settle_unique
-- Array-bound. Params: queue, key, job. Key: PRIMARY.
DELETE nightshift_unique_key FROM nightshift_unique_key FORCE INDEX (PRIMARY)
WHERE queue_id = ? AND ukey = ? AND job_id = ?

-- name: settle_unique_held
-- Params: [[job,queue,key],…] of jobs that are done before the periods of their keys are over. Key:
-- PRIMARY of unique_key, one row at a time, locked by settle_keys.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (job BIGINT PATH '$[0]', queue INT PATH '$[1]',
  ukey VARCHAR(190) {bytes} PATH '$[2]')) v
STRAIGHT_JOIN nightshift_unique_key u FORCE INDEX (PRIMARY)
  ON u.queue_id = v.queue AND u.ukey = v.ukey AND u.job_id = v.job
SET u.until = u.held

-- name: settle_unique_list
-- Params: [[job,queue,key],…]. Key: PRIMARY of unique_key, one row at a time, locked by
-- settle_keys, or ours alone. The same of many.
DELETE u FROM JSON_TABLE(?, '$[*]' COLUMNS (job BIGINT PATH '$[0]', queue INT PATH '$[1]',
  ukey VARCHAR(190) {bytes} PATH '$[2]')) v
STRAIGHT_JOIN nightshift_unique_key u FORCE INDEX (PRIMARY)
  ON u.queue_id = v.queue AND u.ukey = v.ukey AND u.job_id = v.job
