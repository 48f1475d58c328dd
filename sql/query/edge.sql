-- Statements about who waits for whom. Sorted by name.

-- name: edge_brood
-- Params: parent. Keys: PRIMARY of child, a range, and of job, row by row; they
-- are locked by edge_brood_lock or our own. The parent waits for those that live.
INSERT INTO nightshift_edge (on_id, job_id)
SELECT STRAIGHT_JOIN j.id, c.parent FROM nightshift_child c
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = c.id
WHERE c.parent = ?

-- name: edge_brood_failed
-- Params: parent, lease of its run. Keys: PRIMARY of child, a range, and of
-- finished. A child that has failed since that run was claimed.
SELECT STRAIGHT_JOIN MIN(f.id) FROM nightshift_child c
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = c.id
WHERE c.parent = ? AND f.outcome <> 'done'
  AND f.finished_at >= (SELECT claimed FROM nightshift_lease WHERE id = ?)

-- name: edge_brood_live
-- Params: parent. Keys: PRIMARY of child, a range, and of job. No locks: those
-- that somebody is ending count.
SELECT STRAIGHT_JOIN COUNT(*) FROM nightshift_child c
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = c.id
WHERE c.parent = ?

-- name: edge_brood_lock
-- Params: parent. Keys: PRIMARY of child, a range, and of job, row by row.
-- Shared locks on the children that live, around those that somebody is ending.
SELECT STRAIGHT_JOIN j.id FROM nightshift_child c
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = c.id
WHERE c.parent = ?
LOCK IN SHARE MODE SKIP LOCKED

-- name: edge_circle
-- Params: parent, parent. Keys: PRIMARY of edge, and of job. A live child that
-- waits for what waits for its parent.
WITH RECURSIVE up (id) AS (
  SELECT job_id FROM nightshift_edge WHERE on_id = ?
  UNION
  SELECT STRAIGHT_JOIN e.job_id FROM up
  JOIN nightshift_edge e FORCE INDEX (PRIMARY) ON e.on_id = up.id)
SELECT STRAIGHT_JOIN MIN(up.id) FROM up
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = up.id AND j.parent = ?

-- name: edge_circle_turn
-- Key: PRIMARY of meta, a row that always is there; locked until the commit,
-- unless somebody has it. Whoever may close a circle takes turns by it.
SELECT name FROM nightshift_meta WHERE name = 'schema' FOR UPDATE SKIP LOCKED

-- name: edge_circle_wait
-- Key: as edge_circle_turn; waits for whoever has it.
SELECT name FROM nightshift_meta WHERE name = 'schema' FOR UPDATE

-- name: edge_count
-- Params: parent. Keys: as edge_results.
SELECT COUNT(*) AS n FROM nightshift_job p
STRAIGHT_JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = p.id
LEFT JOIN nightshift_finished o
  ON c.seq < p.since AND o.id = c.id AND o.finished_at < p.created
WHERE p.id = ? AND o.id IS NULL

-- name: edge_ended
-- Params: job. Key: PRIMARY of finished. Whether it failed; no row: unknown.
SELECT outcome <> 'done' FROM nightshift_finished WHERE id = ?

-- name: edge_held
-- Params: parent. Keys: PRIMARY of edge, a range, and of job. The children that
-- wait for their parent; locks them, around those that somebody holds.
SELECT STRAIGHT_JOIN j.id, j.queue_id, j.rank, j.run, j.unmet, j.due, {now} AS now
FROM nightshift_edge e
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = e.job_id AND j.parent = e.on_id
WHERE e.on_id = ? ORDER BY e.job_id
FOR UPDATE SKIP LOCKED

-- name: edge_held_count
-- Params: parent. Keys: PRIMARY of edge, a range, and of job. No locks.
SELECT COUNT(*) FROM nightshift_edge e
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = e.job_id AND j.parent = e.on_id
WHERE e.on_id = ?

-- name: edge_lock
-- Params: job. Key: PRIMARY; a shared lock on its row, which waits for whoever
-- is ending it.
SELECT id FROM nightshift_job WHERE id = ? LOCK IN SHARE MODE

-- name: edge_lock_free
-- Params: job. Key: PRIMARY; the same lock, if nobody holds the row.
SELECT id FROM nightshift_job WHERE id = ? LOCK IN SHARE MODE SKIP LOCKED

-- name: edge_more
-- Array-bound. Params: how many more it waits for, job. Key: PRIMARY of job,
-- locked.
UPDATE nightshift_job SET unmet = unmet + ? WHERE id = ?

-- name: edge_parent
-- Params: job. Key: PRIMARY; locks its row: one more child, for which it waits
-- if it waits for its children.
SELECT root, NULLIF(waits, 'signal'), paused, deadline, run FROM nightshift_job
WHERE id = ? FOR UPDATE

-- name: edge_results
-- Params: parent, limit, offset. Keys: PRIMARY of job, of child, a range, and of
-- finished and job. What became of the children, in the order of spawning; without
-- those that had ended before their parent was retried. Stops at 4 MiB of results.
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

-- name: edge_ties
-- Params: parent, parent. Keys: PRIMARY of edge by on_id; of child, a range, and
-- of job. Does anybody wait for it? And a live child of it for something?
SELECT EXISTS(SELECT 1 FROM nightshift_edge WHERE on_id = ?),
  EXISTS(SELECT STRAIGHT_JOIN 1 FROM nightshift_child c
         JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = c.id
         WHERE c.parent = ? AND j.unmet > 0)
