-- Statements of a push. Sorted by name.

-- name: push_child
-- Array-bound. Params: parent, seq, job. Key: PRIMARY.
INSERT INTO nightshift_child (parent, seq, id) VALUES (?, ?, ?)

-- name: push_edge
-- Array-bound. Params: on, job. Key: PRIMARY.
INSERT INTO nightshift_edge (on_id, job_id) VALUES (?, ?)

-- name: push_job
-- Array-bound. Params: id, queue, name, payload, priority, rank, max_attempts,
-- max_polls, max_crashes, backoff, timeout, deadline from now, or else its
-- parent's, delay, parent, root, unmet, on_fail, unique key, nonce, decay, paused
-- with its parent, ids it was to wait for. Key: PRIMARY, appended at its end.
INSERT INTO nightshift_job
  (id, queue_id, name, payload, priority, rank, max_attempts, max_polls,
   max_crashes, backoff, timeout, deadline, created, due, parent, root, unmet,
   on_fail, ukey, nonce, decay, paused, after_ids)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, COALESCE({now} + ?, ?), {now},
        {now} + ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: push_ready
-- Array-bound. Params: queue, rank, microseconds from now, job. Row i of a
-- bulk goes in at now + i, because equal times defeat the floor cursor.
-- Key: PRIMARY.
INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)
VALUES (?, ?, {now} + ?, ?, 1)

-- name: push_replayed
-- Params: id, nonce, id, nonce. Keys: PRIMARY of both. A row: the push whose
-- commit was cut off did happen.
SELECT 1 FROM nightshift_job WHERE id = ? AND nonce = ?
UNION ALL
SELECT 1 FROM nightshift_finished WHERE id = ? AND nonce = ?

-- name: push_replayed_end
-- Params: id, nonce. Key: PRIMARY of finished. A row: it did, and its job has
-- ended between the look and the repeated insert.
SELECT 1 FROM nightshift_finished WHERE id = ? AND nonce = ?

-- name: push_scheduled
-- Params: [id,…]. Keys: PRIMARY of job, one row at a time; run_at is exactly
-- the job's due.
INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run)
SELECT STRAIGHT_JOIN j.due, j.id, j.queue_id, j.rank, j.run
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id

-- name: push_unique
-- Params: queue, key, job. Key: PRIMARY; waits for a push of the same key that
-- is not yet committed.
INSERT INTO nightshift_unique_key (queue_id, ukey, job_id) VALUES (?, ?, ?)

-- name: push_unique_owner
-- Params: queue, key. Key: PRIMARY.
SELECT job_id FROM nightshift_unique_key WHERE queue_id = ? AND ukey = ?
