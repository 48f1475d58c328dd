-- Statements of a push (push_…, replace_…), about jobs that wait for jobs (edge_…), about
-- dependents of ended jobs (depend_…), and about signals to jobs (signal_…). None on dependents
-- waits for the lock of another session. Sorted by name.

-- name: depend_cut
-- Array-bound. Params: first target, last target, how many edges they have. Key: PRIMARY of
-- edge, a range in which every target has ended. Siblings have ids in a row: five times as fast
-- as one key at a time. The limit keeps it from the edge behind the range, which may belong to
-- a push that is not committed.
DELETE FROM nightshift_edge WHERE on_id BETWEEN ? AND ?
ORDER BY on_id, job_id LIMIT ?

-- name: depend_cut_one
-- Array-bound. Params: target, job. Key: PRIMARY of edge.
DELETE FROM nightshift_edge WHERE on_id = ? AND job_id = ?

-- name: depend_dangling
-- Params: a target, rows. Keys: PRIMARY of edge, the next targets; PRIMARY of job,
-- met and finished. Which of them are no jobs, though there is nothing to resolve.
SELECT e.on_id, j.id IS NULL AND m.on_id IS NULL AS dangles,
  COALESCE(f.outcome <> 'done', TRUE) AS failed
FROM (SELECT DISTINCT on_id FROM nightshift_edge WHERE on_id > ? ORDER BY on_id LIMIT ?) e
LEFT JOIN nightshift_job j ON j.id = e.on_id
LEFT JOIN nightshift_met m ON m.on_id = e.on_id
LEFT JOIN nightshift_finished f ON f.id = e.on_id

-- name: depend_edges
-- Params: [id,…] of jobs that have ended. Key: PRIMARY of edge by on_id. No
-- locks: the writer of an edge has locked its target before.
SELECT STRAIGHT_JOIN e.on_id, e.job_id
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_edge e FORCE INDEX (PRIMARY) ON e.on_id = v.id

-- name: depend_edges_between
-- Params: first target, last target, rows. Key: PRIMARY of edge, a range. As depend_edges, for
-- ids that stand close together, with the edges of other ids between them. No locks.
SELECT on_id, job_id FROM nightshift_edge FORCE INDEX (PRIMARY)
WHERE on_id BETWEEN ? AND ? LIMIT ?

-- name: depend_lock
-- Params: [id,…] of jobs that wait. Key: PRIMARY of job, one row at a time;
-- locks them, skipping locked rows.
SELECT STRAIGHT_JOIN j.id, j.queue_id, j.rank, j.run, j.unmet, j.due, j.on_fail,
  j.ukey, {now} AS now, j.waits, CRC32(j.name) AS kind
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
FOR UPDATE SKIP LOCKED

-- name: depend_met
-- Params: [[how many edges were met,job],…], each job once. Key: PRIMARY of job, one
-- row at a time, locked by depend_lock. A job without a wait is not parked.
-- A third of the time of an array-bound update. The order of the assignments does not
-- matter: all values are taken before the row changes, or waits is first. A count that
-- is too low must not stop each caller that comes with its last edges.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (met INT UNSIGNED PATH '$[0]', id BIGINT PATH '$[1]')) v
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
SET j.waits = IF(j.unmet <= v.met, NULL, j.waits), j.unmet = j.unmet - LEAST(j.unmet, v.met)

-- name: depend_pending
-- Params: target to begin behind, rows. Key: PRIMARY of met; locks its rows, skipping edges
-- that are being resolved.
SELECT on_id, failed FROM nightshift_met FORCE INDEX (PRIMARY)
WHERE on_id > ? ORDER BY on_id LIMIT ? FOR UPDATE SKIP LOCKED

-- name: depend_pending_add
-- Params: failed, [id,…] of jobs that have ended. Keys: PRIMARY of edge and of met. Records the
-- ones that have dependents, to be resolved later.
INSERT IGNORE INTO nightshift_met (on_id, failed)
SELECT STRAIGHT_JOIN DISTINCT v.id, ?
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_edge e FORCE INDEX (PRIMARY) ON e.on_id = v.id

-- name: depend_pending_any
-- Key: PRIMARY of met, which is mostly empty. No locks.
SELECT 1 FROM nightshift_met LIMIT 1

-- name: depend_resolved
-- Params: [id,…]. Key: PRIMARY of met, locked by depend_pending.
DELETE m FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_met m FORCE INDEX (PRIMARY) ON m.on_id = v.id

-- name: depend_there
-- Params: [id,…]. Key: PRIMARY of job; no locks. Tells a locked job from a missing one.
SELECT STRAIGHT_JOIN j.id FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id

-- name: edge_after
-- Params: live job. Keys: PRIMARY of job and finished. Which jobs it was pushed to wait
-- for, in that order: not its children, in a flow, and not its parent, that said "again".
SELECT a.id
FROM nightshift_job w
STRAIGHT_JOIN JSON_TABLE(w.after_ids,
  '$[*]' COLUMNS (n FOR ORDINALITY, id BIGINT PATH '$')) a
LEFT JOIN nightshift_job j ON j.id = a.id
LEFT JOIN nightshift_finished f ON f.id = a.id
WHERE w.id = ? AND a.id <> COALESCE(w.parent, 0) AND COALESCE(j.parent, f.parent, 0) <> w.id
ORDER BY a.n

-- name: edge_children
-- Params: [id,…] of parents. Keys: PRIMARY of child, a range each, and of job, row
-- by row. The children that live; they are locked by edge_children_lock, or our own.
SELECT STRAIGHT_JOIN c.parent, j.id
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = v.id
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = c.id

-- name: edge_children_failed
-- Params: [[parent,lease of its run],…]. Keys: PRIMARY of lease; of child, a range
-- each, and of finished. The children that have failed since that run was claimed.
SELECT STRAIGHT_JOIN c.parent, f.id
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', lease BIGINT PATH '$[1]')) v
JOIN nightshift_lease l FORCE INDEX (PRIMARY) ON l.id = v.lease
JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = v.id
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = c.id
WHERE f.outcome <> 'done' AND f.finished_at >= l.claimed

-- name: edge_children_lock
-- Params: [id,…] of parents. Keys: as edge_children. Shared locks on the live children,
-- skipping children that are being ended.
SELECT STRAIGHT_JOIN c.parent, j.id
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = v.id
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = c.id
LOCK IN SHARE MODE SKIP LOCKED

-- name: edge_circle
-- Params: parent, parent. Keys: PRIMARY of edge, and of job. A live child that waits for a job
-- that waits for its parent.
WITH RECURSIVE up (id) AS (
  SELECT job_id FROM nightshift_edge WHERE on_id = ?
  UNION
  SELECT STRAIGHT_JOIN e.job_id FROM up
  JOIN nightshift_edge e FORCE INDEX (PRIMARY) ON e.on_id = up.id)
SELECT STRAIGHT_JOIN MIN(up.id) FROM up
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = up.id AND j.parent = ?

-- name: edge_circle_turn
-- Key: PRIMARY of meta, a row that always is there; locked until the commit,
-- unless it is taken. Writers of edges that may close a circle take turns by it.
SELECT name FROM nightshift_meta WHERE name = 'schema' FOR UPDATE SKIP LOCKED

-- name: edge_circle_wait
-- Key: as edge_circle_turn; waits for its owner.
SELECT name FROM nightshift_meta WHERE name = 'schema' FOR UPDATE

-- name: edge_count
-- Params: parent. Keys: as edge_results.
SELECT COUNT(*) AS n FROM nightshift_job p
STRAIGHT_JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = p.id
LEFT JOIN nightshift_finished o
  ON c.seq < p.since AND o.id = c.id AND o.finished_at < p.created
WHERE p.id = ? AND o.id IS NULL

-- name: edge_counts
-- Params: [id,…] of parents. Keys: PRIMARY of edge, a range each; of child, a range
-- each; and of job. How many children wait for it; how many live; does a job wait for it;
-- and a live child of it for something? No locks: locked rows count.
SELECT v.id,
  (SELECT STRAIGHT_JOIN COUNT(*) FROM nightshift_edge e FORCE INDEX (PRIMARY)
   JOIN nightshift_job h FORCE INDEX (PRIMARY) ON h.id = e.job_id AND h.parent = e.on_id
   WHERE e.on_id = v.id),
  (SELECT STRAIGHT_JOIN COUNT(*) FROM nightshift_child c FORCE INDEX (PRIMARY)
   JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = c.id WHERE c.parent = v.id),
  COALESCE((SELECT 1 FROM nightshift_edge t FORCE INDEX (PRIMARY) WHERE t.on_id = v.id LIMIT 1), 0),
  COALESCE((SELECT STRAIGHT_JOIN 1 FROM nightshift_child d FORCE INDEX (PRIMARY)
    JOIN nightshift_job k FORCE INDEX (PRIMARY) ON k.id = d.id
    WHERE d.parent = v.id AND k.unmet > 0 LIMIT 1), 0)
FROM JSON_TABLE(?, {ids}) v

-- name: edge_dependents
-- Params: [id,…] of parents, locked. Keys: PRIMARY of child and of edge, one row of each. (The
-- server would turn EXISTS into a scan of a table that was small.) Parents that have children,
-- or dependents. No locks.
SELECT v.id FROM JSON_TABLE(?, {ids}) v
WHERE (SELECT 1 FROM nightshift_child c FORCE INDEX (PRIMARY) WHERE c.parent = v.id LIMIT 1) = 1
  OR (SELECT 1 FROM nightshift_edge e FORCE INDEX (PRIMARY) WHERE e.on_id = v.id LIMIT 1) = 1

-- name: edge_ended
-- Params: job. Key: PRIMARY of finished. Whether it failed; no row: unknown.
SELECT outcome <> 'done' FROM nightshift_finished WHERE id = ?

-- name: edge_followed
-- Params: [id,…]. Keys: PRIMARY of finished and of job. The outcomes of these jobs, in their
-- order; a job in neither table is not known any more. Stops at 4 MiB of results.
SELECT v.id, COALESCE(f.name, j.name) AS name,
  IF(j.id IS NULL, COALESCE(f.outcome, 'gone'), NULL) AS outcome, f.result, f.reason, f.error
FROM (SELECT w.n, w.id, w.bytes, SUM(w.bytes) OVER (ORDER BY w.n) AS upto
  FROM (SELECT u.n, u.id, COALESCE(LENGTH(e.result), 0) + COALESCE(LENGTH(e.error), 0) AS bytes
    FROM JSON_TABLE(?, '$[*]' COLUMNS (n FOR ORDINALITY, id BIGINT PATH '$')) u
    LEFT JOIN nightshift_finished e ON e.id = u.id) w) v
LEFT JOIN nightshift_finished f ON f.id = v.id
LEFT JOIN nightshift_job j ON j.id = v.id
WHERE v.upto - v.bytes < 4194304
ORDER BY v.n

-- name: edge_held
-- Params: [id,…] of parents. Keys: PRIMARY of edge, a range each, and of job. The
-- children that wait for their parent; locks them, skipping locked rows.
SELECT STRAIGHT_JOIN e.on_id, j.id, j.queue_id, j.rank, j.run, j.unmet, j.due, {now} AS now,
  CRC32(j.name) AS kind
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_edge e FORCE INDEX (PRIMARY) ON e.on_id = v.id
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = e.job_id AND j.parent = e.on_id
FOR UPDATE SKIP LOCKED

-- name: edge_leave
-- Params: [[1,job],…] of children whose parent waits for them. Key: PRIMARY of job, locked by
-- edge_held. They do not wait for their parent any more.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[1]')) v
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
SET j.after_ids = NULLIF(CONCAT('[', TRIM(BOTH ',' FROM REPLACE(
  REPLACE(REPLACE(JSON_COMPACT(j.after_ids), '[', ','), ']', ','),
  CONCAT(',', j.parent, ','), ',')), ']'), '[]')

-- name: edge_lock
-- Params: job. Key: PRIMARY; a shared lock on its row, which waits for a session that is ending it.
SELECT id FROM nightshift_job WHERE id = ? LOCK IN SHARE MODE

-- name: edge_lock_free
-- Params: job. Key: PRIMARY; the same lock, if the row is not locked.
SELECT id FROM nightshift_job WHERE id = ? LOCK IN SHARE MODE SKIP LOCKED

-- name: edge_more
-- Array-bound. Params: how many more it waits for, job. Key: PRIMARY of job,
-- locked.
UPDATE nightshift_job SET unmet = unmet + ? WHERE id = ?

-- name: edge_ordered
-- Params: parent, group, queue or NULL: the parent's. Keys: PRIMARY of job and of limit. No locks. A
-- row: the parent is in this group of this queue, and its jobs run one after the other.
SELECT 1 FROM nightshift_job j FORCE INDEX (PRIMARY)
STRAIGHT_JOIN nightshift_limit l FORCE INDEX (PRIMARY) ON l.queue_id = j.queue_id AND l.ordered
WHERE j.id = ? AND j.group_key = ? AND j.queue_id = COALESCE(?, j.queue_id)

-- name: edge_parent
-- Params: job. Key: PRIMARY; locks the parent's row. The job is one more child, for which the
-- parent waits if it waits for its children.
SELECT root, NULLIF(waits, 'signal'), paused, deadline, run FROM nightshift_job
WHERE id = ? FOR UPDATE

-- name: edge_results
-- Params: parent, limit, offset. Keys: PRIMARY of job, of child, a range, and of finished and
-- job. The outcomes of the children, in the order of spawning; without children that had ended
-- before their parent was retried. Stops at 4 MiB of results.
SELECT v.id, COALESCE(f.name, j.name) AS name, f.outcome, f.result, f.reason, f.error
FROM (SELECT w.seq, w.id, w.bytes, SUM(w.bytes) OVER (ORDER BY w.seq, w.id) AS upto
  FROM (SELECT u.seq, u.id, COALESCE(LENGTH(e.result), 0) + COALESCE(LENGTH(e.error), 0) AS bytes
    FROM (SELECT c.seq, c.id FROM nightshift_job p
      STRAIGHT_JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = p.id
      LEFT JOIN nightshift_finished o
        ON c.seq < p.since AND o.id = c.id AND o.finished_at < p.created
      WHERE p.id = ? AND o.id IS NULL ORDER BY c.seq, c.id LIMIT ? OFFSET ?) u
    LEFT JOIN nightshift_finished e ON e.id = u.id) w) v
LEFT JOIN nightshift_finished f ON f.id = v.id
LEFT JOIN nightshift_job j ON j.id = v.id
WHERE v.upto - v.bytes < 4194304
ORDER BY v.seq, v.id

-- name: edge_there
-- Params: job. Key: PRIMARY; no locks.
SELECT id FROM nightshift_job WHERE id = ?

-- name: push_child
-- Array-bound. Params: parent, seq, job. Key: PRIMARY.
INSERT INTO nightshift_child (parent, seq, id) VALUES (?, ?, ?)

-- name: push_edge
-- Array-bound. Params: on, job. Key: PRIMARY.
INSERT INTO nightshift_edge (on_id, job_id) VALUES (?, ?)

-- name: push_job
-- Array-bound. Params: the ones of push_plain, then max_polls, deadline from now or else its
-- parent's, delay, earliest due, parent, root. Then unmet, on_fail, unique key, paused with its
-- parent, ids that it was to wait for, max_phases, tagged, group. Key: PRIMARY, appended at its
-- end.
INSERT INTO nightshift_job
  (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes,
   backoff, timeout, nonce, decay, created, max_polls, deadline, due, parent,
   root, unmet, on_fail, ukey, paused, after_ids, max_phases, tagged, group_key)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now}, ?, COALESCE({now} + ?, ?),
        GREATEST({now} + ?, ?), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: push_one
-- A whole push of one job in one round trip: its rows, the commit, the ring. Params: queue, id,
-- delay, rank, unique key, its period, whether to ring, kind. Then the ones of push_job, without
-- id, queue, rank, delay, parent, root, unmet, unique key, paused and ids. A failure is rolled
-- back here or, after a KILL, by the session that sent it; only the ring can fail after the
-- commit. Variables take their values where they are declared, as an assignment is one more step.
BEGIN NOT ATOMIC
  DECLARE v_queue INT DEFAULT ?;
  DECLARE v_id BIGINT DEFAULT ?;
  DECLARE v_delay BIGINT DEFAULT ?;
  DECLARE v_rank TINYINT UNSIGNED DEFAULT ?;
  DECLARE v_key VARCHAR(190) {bytes} DEFAULT ?;
  DECLARE v_period BIGINT DEFAULT ?;
  DECLARE v_ring BOOLEAN DEFAULT ?;
  DECLARE v_kind INT UNSIGNED DEFAULT ?;
  DECLARE v_now BIGINT DEFAULT {now};
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  START TRANSACTION;
  IF v_key IS NOT NULL THEN
    INSERT INTO nightshift_unique_key (queue_id, ukey, job_id, held)
    VALUES (v_queue, v_key, v_id, v_now + v_period);
  END IF;
  INSERT INTO nightshift_job
    (id, queue_id, rank, ukey, created, due, name, payload, priority, max_attempts,
     max_crashes, backoff, timeout, nonce, decay, max_polls, deadline, on_fail, group_key)
  VALUES (v_id, v_queue, v_rank, v_key, v_now, v_now + v_delay, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, v_now + ?, ?, ?);
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

-- name: push_tags
-- Params: [[id,["tag",…]],…]. Keys: PRIMARY and tag of tag.
INSERT INTO nightshift_tag (job_id, tag)
SELECT v.id, v.tag
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]',
  NESTED PATH '$[1][*]' COLUMNS (tag VARCHAR(65) {bytes} PATH '$'))) v

-- name: push_unique
-- Params: queue, key, job, period or NULL. Key: PRIMARY; waits for a push of the same key that
-- is not yet committed.
INSERT INTO nightshift_unique_key (queue_id, ukey, job_id, held) VALUES (?, ?, ?, {now} + ?)

-- name: push_unique_list
-- Params: [[queue,job,key,period],…], or without periods. Key: PRIMARY, one row at a time in the
-- order of the list; waits as push_unique does. One key that is taken refuses all, and stays
-- locked.
INSERT INTO nightshift_unique_key (queue_id, ukey, job_id, held)
SELECT v.queue, v.ukey, v.job, {now} + v.period
FROM JSON_TABLE(?, '$[*]' COLUMNS (queue INT PATH '$[0]', job BIGINT PATH '$[1]',
  ukey VARCHAR(190) {bytes} PATH '$[2]', period BIGINT PATH '$[3]')) v

-- name: push_unique_over
-- Params: period or NULL, job, job, queue, key, job. Key: PRIMARY, one row, which
-- push_unique_taken has locked. Takes a key whose period is over, or that the same job has since
-- it was done. No row: another push was first.
UPDATE nightshift_unique_key
SET held = COALESCE({now} + ?, IF(job_id = ?, held, NULL)), job_id = ?, until = NULL
WHERE queue_id = ? AND ukey = ? AND until IS NOT NULL AND (until <= {now} OR job_id = ?)

-- name: push_unique_owner
-- Params: queue, key. Key: PRIMARY. Does not wait for locks.
SELECT job_id FROM nightshift_unique_key WHERE queue_id = ? AND ukey = ?

-- name: push_unique_taken
-- Params: queue, key. Key: PRIMARY. The owner of a key that was refused, and for how long a job that
-- is done has it still; NULL: it lives. The refusal has locked that row, as this does; a snapshot
-- may be older.
SELECT job_id, until - {now} FROM nightshift_unique_key WHERE queue_id = ? AND ukey = ?
LOCK IN SHARE MODE

-- name: replace_give
-- Params: job, period or NULL, queue, key. Key: PRIMARY of unique_key, locked by replace_lock. The
-- key is this job's from now on.
UPDATE nightshift_unique_key SET job_id = ?, held = {now} + ?, until = NULL
WHERE queue_id = ? AND ukey = ?

-- name: replace_job
-- Params: runs so far, name, payload, priority, rank, max_attempts, max_crashes, max_polls,
-- max_phases, backoff, timeout, deadline from now, decay, nonce, delay, earliest due, tagged,
-- group, run, job. Key: PRIMARY of job, locked by replace_live. A new piece of work in the place of
-- one that nobody has. A child keeps its deadline unless a new one is given.
UPDATE nightshift_job SET since = (? + 1) * 1048576, name = ?, payload = ?, priority = ?, rank = ?,
  attempts = 0, polls = 0, crashes = 0, lost = 0, missed = 0, missing_since = NULL,
  max_attempts = ?, max_crashes = ?, max_polls = ?, max_phases = ?, backoff = ?, timeout = ?,
  deadline = COALESCE({now} + ?, IF(parent IS NULL, NULL, deadline)), decay = ?, nonce = ?,
  created = {now}, due = GREATEST({now} + ?, ?), tagged = ?, group_key = ?, wish = NULL, state = NULL, awaits = NULL, phase = 0, phases = 0,
  run = ? WHERE id = ?

-- name: replace_live
-- Params: job. Key: PRIMARY of job; locks the row, waiting for it.
SELECT queue_id, rank, run, unmet, due, nonce, waits, tagged FROM nightshift_job WHERE id = ?
FOR UPDATE

-- name: replace_lock
-- Params: queue, key, job, period or NULL. Key: PRIMARY of unique_key; waits for its owner's
-- transaction. Takes the key, or locks its row as it is.
INSERT INTO nightshift_unique_key (queue_id, ukey, job_id, held) VALUES (?, ?, ?, {now} + ?)
ON DUPLICATE KEY UPDATE job_id = job_id

-- name: replace_owner
-- Params: queue, key. Key: PRIMARY of unique_key, locked by replace_lock. The job that has it, and
-- whether that is done.
SELECT job_id, until IS NOT NULL FROM nightshift_unique_key WHERE queue_id = ? AND ukey = ?
FOR UPDATE

-- name: replace_scheduled
-- Params: kind, job. Keys: PRIMARY of job, which is ours, and of scheduled.
INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run, kind)
SELECT due, id, queue_id, rank, run, ? FROM nightshift_job WHERE id = ?

-- name: signal_call
-- Params: job, value, name. See the procedure.
CALL nightshift_signal(?, ?, ?)

-- name: signal_find
-- Params: job, name. Key: PRIMARY of signal. A signal under this name, or without a name.
SELECT 1 FROM nightshift_signal WHERE job_id = ? AND name IN ('', ?) LIMIT 1

-- name: signal_forget
-- Params: job, instant at which its used signal was sent, whether the other signals go, too.
-- Key: PRIMARY of signal, by its job. Later signals stay.
DELETE nightshift_signal FROM nightshift_signal FORCE INDEX (PRIMARY)
WHERE job_id = ? AND (sent = ? OR ?)

-- name: signal_limit
-- Params: bytes. The limit of a value in this session; the procedure's own limit is 1 MiB.
SET @nightshift_max_payload = ?

-- name: signal_live
-- Params: job. Key: PRIMARY of job; locks the row, waiting for it.
SELECT 1 FROM nightshift_job WHERE id = ? FOR UPDATE

-- name: signal_park
-- Params: phases, name, µs that it waits, twice, µs that it would wait if nothing was sent,
-- state (NULL keeps it), job. Not beyond its own deadline. Key: PRIMARY of job,
-- locked by settle_lock.
UPDATE nightshift_job SET run = run + 1, phase = phase + 1, phases = ?, lost = 0,
  missed = 0, missing_since = NULL, waits = 'signal', awaits = ?,
  due = LEAST({now} + ?, COALESCE(GREATEST(deadline, {now}), {now} + ?)), wish = {now} + ?,
  state = COALESCE(?, state)
WHERE id = ?
