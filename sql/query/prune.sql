-- Statements of pruning. Sorted by name.

-- name: prune_attempts
-- Params: [id,…]. Key: PRIMARY of attempt, by its job.
DELETE a FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_attempt a FORCE INDEX (PRIMARY) ON a.job_id = v.id

-- name: prune_children
-- Params: [id,…]. Key: PRIMARY of child, by its parent.
DELETE c FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = v.id

-- name: prune_finished
-- Params: [id,…]. Key: PRIMARY of finished, locked by prune_select or prune_hold.
DELETE f FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id

-- name: prune_hold
-- Params: [id,…]. Keys: PRIMARY of finished and of job, one row at a time. Locks them all,
-- waiting. Counts the ones in the history, and the live ones, which were retried meanwhile.
SELECT STRAIGHT_JOIN COUNT(f.id), COUNT(j.id)
FROM JSON_TABLE(?, {ids}) v
LEFT JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
LEFT JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
FOR UPDATE

-- name: prune_hold_now
-- Params: [id,…]. As prune_hold, but fails at once where one is locked.
SELECT STRAIGHT_JOIN COUNT(f.id), COUNT(j.id)
FROM JSON_TABLE(?, {ids}) v
LEFT JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
LEFT JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
FOR UPDATE NOWAIT

-- name: prune_links
-- Params: [[parent,seq,id],…]. Key: PRIMARY of child, whole.
DELETE c FROM JSON_TABLE(?, '$[*]' COLUMNS (parent BIGINT PATH '$[0]',
  seq BIGINT PATH '$[1]', id BIGINT PATH '$[2]')) v
STRAIGHT_JOIN nightshift_child c FORCE INDEX (PRIMARY)
  ON c.parent = v.parent AND c.seq = v.seq AND c.id = v.id

-- name: prune_members
-- Params: [id,…], rows. Keys: PRIMARY of child, by its parent; of job and of finished.
-- No locks. The children, in the order of the list: id, whether it lives, how it ended, how
-- long ago; parent and place.
SELECT STRAIGHT_JOIN c.id, j.id IS NOT NULL, f.outcome = 'done', {now} - f.finished_at,
  c.parent, c.seq
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = v.id
LEFT JOIN nightshift_job j ON j.id = c.id
LEFT JOIN nightshift_finished f ON f.id = c.id
LIMIT ?

-- name: prune_pauses
-- Params: [id,…]. Key: PRIMARY of pause. A pause of a job that is forgotten holds no job.
DELETE p FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_pause p FORCE INDEX (PRIMARY) ON p.id = v.id

-- name: prune_root
-- Params: job, job. Keys: PRIMARY of job and of finished. No locks. The top of its
-- tree; NULL: itself.
SELECT root FROM nightshift_job WHERE id = ?
UNION ALL
SELECT root FROM nightshift_finished WHERE id = ?

-- name: prune_select
-- Params: age that outlives its tree, outcome, finished_at twice and id to begin behind, age,
-- rows. Key: outcome (outcome, finished_at, id), the oldest first; locks its rows, skipping
-- locked ones. tree: the root it belongs to, when it goes with its tree only; NULL: it goes by
-- itself.
SELECT id, finished_at,
  IF(finished_at < {now} - ?
     AND NOT EXISTS(SELECT 1 FROM nightshift_job p WHERE p.id = f.parent), NULL,
     COALESCE(root, (SELECT MIN(c.parent) FROM nightshift_child c WHERE c.parent = f.id))) AS tree
FROM nightshift_finished f FORCE INDEX (outcome)
WHERE outcome = ? AND finished_at >= ? AND (finished_at > ? OR id > ?)
  AND finished_at < {now} - ?
ORDER BY finished_at, id LIMIT ?
FOR UPDATE SKIP LOCKED

-- name: prune_self
-- Params: job. Keys: PRIMARY of job and of finished. No locks. As prune_members.
SELECT v.id, j.id IS NOT NULL, f.outcome = 'done', {now} - f.finished_at, 0, 0
FROM (SELECT ? AS id) v
LEFT JOIN nightshift_job j ON j.id = v.id
LEFT JOIN nightshift_finished f ON f.id = v.id

-- name: prune_siblings
-- Params: parent, seq twice and id of the child to begin behind, rows. Keys: as prune_members.
-- No locks. As prune_members, of one parent.
SELECT STRAIGHT_JOIN c.id, j.id IS NOT NULL, f.outcome = 'done', {now} - f.finished_at,
  c.parent, c.seq
FROM nightshift_child c FORCE INDEX (PRIMARY)
LEFT JOIN nightshift_job j ON j.id = c.id
LEFT JOIN nightshift_finished f ON f.id = c.id
WHERE c.parent = ? AND c.seq >= ? AND (c.seq > ? OR c.id > ?)
ORDER BY c.seq, c.id LIMIT ?

-- name: prune_signals
-- Params: [id,…]. Key: PRIMARY of signal, by its job. Signals that no job waited for.
DELETE s FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_signal s FORCE INDEX (PRIMARY) ON s.job_id = v.id
