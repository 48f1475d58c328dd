-- Statements of a push. Sorted by name.

-- name: push_child
-- Array-bound. Params: parent, seq, job. Key: PRIMARY.
INSERT INTO nightshift_child (parent, seq, id) VALUES (?, ?, ?)

-- name: push_edge
-- Array-bound. Params: on, job. Key: PRIMARY.
INSERT INTO nightshift_edge (on_id, job_id) VALUES (?, ?)

-- name: push_job
-- Array-bound. Params: the ones of push_plain, then max_polls, deadline from now or else its
-- parent's, delay, parent, root. Then unmet, on_fail, unique key, paused with its parent, ids
-- that it was to wait for, max_phases. Key: PRIMARY, appended at its end.
INSERT INTO nightshift_job
  (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes,
   backoff, timeout, nonce, decay, created, max_polls, deadline, due, parent,
   root, unmet, on_fail, ukey, paused, after_ids, max_phases)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now}, ?, COALESCE({now} + ?, ?),
        {now} + ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: push_one
-- A whole push of one job in one round trip: its rows, the commit, the ring. Params: queue, id,
-- delay, rank, unique key, whether to ring, kind. Then the ones of push_job, without id, queue,
-- rank, delay, parent, root, unmet, unique key, paused and ids. A failure is rolled back here
-- or, after a KILL, by the session that sent it; only the ring can fail after the commit.
BEGIN NOT ATOMIC
  DECLARE v_queue INT DEFAULT ?;
  DECLARE v_id, v_delay BIGINT;
  DECLARE v_rank TINYINT UNSIGNED;
  DECLARE v_key VARCHAR(190) {bytes};
  DECLARE v_ring BOOLEAN;
  DECLARE v_kind INT UNSIGNED;
  DECLARE v_now BIGINT DEFAULT {now};
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  SET v_id = ?, v_delay = ?, v_rank = ?, v_key = ?, v_ring = ?, v_kind = ?;
  START TRANSACTION;
  IF v_key IS NOT NULL THEN
    INSERT INTO nightshift_unique_key (queue_id, ukey, job_id)
    VALUES (v_queue, v_key, v_id);
  END IF;
  INSERT INTO nightshift_job
    (id, queue_id, rank, ukey, created, due, name, payload, priority, max_attempts,
     max_crashes, backoff, timeout, nonce, decay, max_polls, deadline, on_fail)
  VALUES (v_id, v_queue, v_rank, v_key, v_now, v_now + v_delay, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, v_now + ?, ?);
  IF v_delay > 0 THEN
    INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run, kind)
    VALUES (v_now + v_delay, v_id, v_queue, v_rank, 1, v_kind);
  ELSE
    INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
    VALUES (v_queue, v_rank, v_now, v_id, 1, v_kind);
  END IF;
  COMMIT;
  IF v_ring THEN
    BEGIN
      DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
      CALL nightshift_ring();
    END;
  END IF;
END

-- name: push_plain
-- Array-bound: jobs that have none of the rest. Params: id, queue, name, payload,
-- priority, rank, max_attempts, max_crashes, backoff, timeout, nonce, decay.
-- Key: PRIMARY, appended at its end.
INSERT INTO nightshift_job
  (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes,
   backoff, timeout, nonce, decay, created, due)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now}, {now})

-- name: push_ready
-- Array-bound. Params: queue, rank, microseconds from now, job, kind. Row i of a
-- bulk goes in at now + i, because equal times defeat the floor cursor.
-- Key: PRIMARY.
INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, kind, run)
VALUES (?, ?, {now} + ?, ?, ?, 1)

-- name: push_replayed
-- Params: id, nonce, id, nonce. Keys: PRIMARY of both. A row: the push that lost its connection at
-- COMMIT did happen.
SELECT 1 FROM nightshift_job WHERE id = ? AND nonce = ?
UNION ALL
SELECT 1 FROM nightshift_finished WHERE id = ? AND nonce = ?

-- name: push_replayed_end
-- Params: id, nonce. Key: PRIMARY of finished. A row: it did, and its job has
-- ended between the look and the repeated insert.
SELECT 1 FROM nightshift_finished WHERE id = ? AND nonce = ?

-- name: push_scheduled
-- Params: [[id,kind],…]. Keys: PRIMARY of job, one row at a time; run_at is exactly
-- the job's due.
INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run, kind)
SELECT STRAIGHT_JOIN j.due, j.id, j.queue_id, j.rank, j.run, v.kind
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]',
  kind INT UNSIGNED PATH '$[1]')) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id

-- name: push_unique
-- Params: queue, key, job. Key: PRIMARY; waits for a push of the same key that
-- is not yet committed.
INSERT INTO nightshift_unique_key (queue_id, ukey, job_id) VALUES (?, ?, ?)

-- name: push_unique_list
-- Params: [[queue,job,key],…]. Key: PRIMARY, one row at a time in the order of the list; waits
-- as push_unique does. One key that is taken refuses all, and stays locked.
INSERT INTO nightshift_unique_key (queue_id, ukey, job_id)
SELECT v.queue, v.ukey, v.job
FROM JSON_TABLE(?, '$[*]' COLUMNS (queue INT PATH '$[0]', job BIGINT PATH '$[1]',
  ukey VARCHAR(190) {bytes} PATH '$[2]')) v

-- name: push_unique_owner
-- Params: queue, key. Key: PRIMARY. Does not wait for locks.
SELECT job_id FROM nightshift_unique_key WHERE queue_id = ? AND ukey = ?

-- name: push_unique_taken
-- Params: queue, key. Key: PRIMARY. The owner of a key that was refused. The refusal has locked
-- that row, as this does; a snapshot may be older.
SELECT job_id FROM nightshift_unique_key WHERE queue_id = ? AND ukey = ?
LOCK IN SHARE MODE
