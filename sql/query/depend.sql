-- Statements about the jobs that waited for one that has ended. None of them
-- waits for somebody else's lock. Sorted by name.

-- name: depend_cut
-- Array-bound. Params: first target, last target, how many edges they have. Key:
-- PRIMARY of edge, a range in which every target has ended. Siblings have ids in a
-- row: five times as fast as one key at a time. The limit keeps it from the edge
-- behind the range, which may be one of a push that is not committed.
DELETE FROM nightshift_edge WHERE on_id BETWEEN ? AND ?
ORDER BY on_id, job_id LIMIT ?

-- name: depend_cut_one
-- Array-bound. Params: target, job. Key: PRIMARY of edge.
DELETE FROM nightshift_edge WHERE on_id = ? AND job_id = ?

-- name: depend_dangling
-- Params: a target, rows. Keys: PRIMARY of edge, the next targets; PRIMARY of job,
-- met and finished. Which of them are no jobs, though nobody is to resolve them.
SELECT e.on_id, j.id IS NULL AND m.on_id IS NULL AS dangles,
  COALESCE(f.outcome <> 'done', TRUE) AS failed
FROM (SELECT DISTINCT on_id FROM nightshift_edge WHERE on_id > ? ORDER BY on_id LIMIT ?) e
LEFT JOIN nightshift_job j ON j.id = e.on_id
LEFT JOIN nightshift_met m ON m.on_id = e.on_id
LEFT JOIN nightshift_finished f ON f.id = e.on_id

-- name: depend_edges
-- Params: [id,…] of jobs that have ended. Key: PRIMARY of edge by on_id. No
-- locks: whoever writes an edge has locked its target before.
SELECT STRAIGHT_JOIN e.on_id, e.job_id
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_edge e FORCE INDEX (PRIMARY) ON e.on_id = v.id

-- name: depend_edges_between
-- Params: first target, last target, rows. Key: PRIMARY of edge, a range. The same of
-- ids that stand close together, with what others between them have. No locks.
SELECT on_id, job_id FROM nightshift_edge FORCE INDEX (PRIMARY)
WHERE on_id BETWEEN ? AND ? LIMIT ?

-- name: depend_lock
-- Params: [id,…] of jobs that wait. Key: PRIMARY of job, one row at a time;
-- locks them, around those that somebody holds.
SELECT STRAIGHT_JOIN j.id, j.queue_id, j.rank, j.run, j.unmet, j.due, j.on_fail,
  j.ukey, {now} AS now, j.waits, CRC32(j.name) AS kind
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
FOR UPDATE SKIP LOCKED

-- name: depend_met
-- Params: [[how many edges were met,job],…], each job once. Key: PRIMARY of job, one
-- row at a time, locked by depend_lock. Who waits for nobody any more is not parked.
-- A third of the time of an array-bound update. The order of the assignments does not
-- matter: all values are taken before the row changes, or waits is first. A count that
-- is too low must not stop everybody who comes with its last edges.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (met INT UNSIGNED PATH '$[0]', id BIGINT PATH '$[1]')) v
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
SET j.waits = IF(j.unmet <= v.met, NULL, j.waits), j.unmet = j.unmet - LEAST(j.unmet, v.met)

-- name: depend_pending
-- Params: target to begin behind, rows. Key: PRIMARY of met; locks what it finds,
-- around what others are resolving.
SELECT on_id, failed FROM nightshift_met FORCE INDEX (PRIMARY)
WHERE on_id > ? ORDER BY on_id LIMIT ? FOR UPDATE SKIP LOCKED

-- name: depend_pending_add
-- Params: failed, [id,…] of jobs that have ended. Keys: PRIMARY of edge and of
-- met. Those of them that somebody waits for are left to be resolved.
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
-- Params: [id,…]. Key: PRIMARY of job; no locks. Tells a job that somebody
-- holds from one that is gone.
SELECT STRAIGHT_JOIN j.id FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
