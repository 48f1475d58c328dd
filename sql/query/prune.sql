-- Statements of pruning. Sorted by name.

-- name: prune_attempts
-- Params: [id,…]. Key: PRIMARY of attempt, by its job.
DELETE a FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) v
STRAIGHT_JOIN nightshift_attempt a FORCE INDEX (PRIMARY) ON a.job_id = v.id

-- name: prune_children
-- Params: [id,…]. Key: PRIMARY of child, by its parent.
DELETE c FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) v
STRAIGHT_JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = v.id

-- name: prune_finished
-- Params: [id,…]. Key: PRIMARY of finished, locked by prune_select.
DELETE f FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) v
STRAIGHT_JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id

-- name: prune_kin
-- Params: [id,…]. Keys: PRIMARY of child, by its parent; of job and of finished.
-- No locks. The children: id, whether it lives, how it ended, how long ago.
SELECT STRAIGHT_JOIN c.id, j.id IS NOT NULL, f.outcome = 'done', {now} - f.finished_at
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) v
JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = v.id
LEFT JOIN nightshift_job j ON j.id = c.id
LEFT JOIN nightshift_finished f ON f.id = c.id

-- name: prune_pauses
-- Params: [id,…]. Key: PRIMARY of pause. A pause of a job that is forgotten holds
-- nobody.
DELETE p FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) v
STRAIGHT_JOIN nightshift_pause p FORCE INDEX (PRIMARY) ON p.id = v.id

-- name: prune_root
-- Params: job, job. Keys: PRIMARY of job and of finished. No locks. The top of its
-- tree; NULL: itself.
SELECT root FROM nightshift_job WHERE id = ?
UNION ALL
SELECT root FROM nightshift_finished WHERE id = ?

-- name: prune_select
-- Params: age that outlives its tree, outcome, finished_at twice and id to begin
-- behind, age, rows. Key: outcome (outcome, finished_at, id), the oldest first; locks
-- what it finds, goes around what others hold. tree: the root it belongs to, when it goes
-- with its tree only; NULL: it goes by itself.
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
-- Params: job. Keys: PRIMARY of job and of finished. No locks. As prune_kin.
SELECT v.id, j.id IS NOT NULL, f.outcome = 'done', {now} - f.finished_at
FROM (SELECT ? AS id) v
LEFT JOIN nightshift_job j ON j.id = v.id
LEFT JOIN nightshift_finished f ON f.id = v.id

-- name: prune_signals
-- Params: [id,…]. Key: PRIMARY of signal, by its job. What nobody waited for.
DELETE s FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) v
STRAIGHT_JOIN nightshift_signal s FORCE INDEX (PRIMARY) ON s.job_id = v.id
