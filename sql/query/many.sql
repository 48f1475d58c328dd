-- Verbs on many jobs, and reports of these. Sorted by name.
--
-- A job and all jobs below it (admin_tree_…, report_tree_…): verbs work through a tree from its top,
-- some hundred jobs a transaction. admin_tree_lock locks their rows in the order of the ids; all
-- other statements go by key.
--
-- The jobs of a filter (filter_…, lua/nightshift/filter.lua): a walk goes through one key in its
-- order, a page at a time. Then it asks which jobs of the page the filter holds for. These
-- statements write nothing and lock nothing: each is a plain consistent read.

-- name: admin_tree_after
-- Params: [id,…] of jobs that are locked. Keys: PRIMARY of job twice. The live jobs that each
-- was pushed to wait for; locks them. They have no edge yet.
SELECT STRAIGHT_JOIN j.id, t.id, NULL
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
JOIN JSON_TABLE(COALESCE(j.after_ids, '[]'), {ids}) a
JOIN nightshift_job t FORCE INDEX (PRIMARY) ON t.id = a.id
FOR UPDATE

-- name: admin_tree_children
-- Params: [id,…] of jobs that are locked. Keys: PRIMARY of child, a range each, of job and of
-- edge. The live children of each, except children that wait for its end; locks them. Is the edge
-- there? It comes and goes under the lock of the job that waits.
SELECT STRAIGHT_JOIN c.parent, t.id, (SELECT 1 FROM nightshift_edge e FORCE INDEX (PRIMARY)
  WHERE e.on_id = t.id AND e.job_id = c.parent)
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = v.id
JOIN nightshift_job t FORCE INDEX (PRIMARY) ON t.id = c.id
WHERE NOT COALESCE(JSON_CONTAINS(t.after_ids, c.parent), FALSE)
FOR UPDATE

-- name: admin_tree_edge
-- Array-bound. Params: on, job. Key: PRIMARY. An edge may have outlived its job.
INSERT IGNORE INTO nightshift_edge (on_id, job_id) VALUES (?, ?)

-- name: admin_tree_errors
-- Params: [id,…] of jobs that run again. Keys: PRIMARY of finished, locked by their reader, and of
-- attempt, one row at a time. The errors of discards, which have no row of an attempt so far.
INSERT INTO nightshift_attempt (job_id, run, kind, ended, holder, error)
SELECT STRAIGHT_JOIN f.id, f.run, 'failed', f.finished_at, f.holder, f.error
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
LEFT JOIN nightshift_attempt a FORCE INDEX (PRIMARY) ON a.job_id = f.id AND a.run = f.run
WHERE f.outcome = 'dead' AND f.reason = 'discarded' AND a.job_id IS NULL

-- name: admin_tree_forget
-- Params: [id,…]. Key: PRIMARY of finished, locked by admin_tree_past.
DELETE f FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id

-- name: admin_tree_held
-- Params: [[id,run],…]. Key: leases are few. Which of these claims stand, and their holders. No
-- locks; asked while the jobs' rows are locked.
SELECT c.id, c.holder
FROM (SELECT DISTINCT t.id, t.run, l.holder FROM nightshift_lease l,
      JSON_TABLE(l.jobs, {tokens}) t) c
JOIN (SELECT DISTINCT t.id, t.run FROM
      JSON_TABLE(?, {tokens}) t) v
  ON v.id = c.id AND v.run = c.run

-- name: admin_tree_hold_ready
-- Params: [[queue,rank,ready_at,job],…]. Key: PRIMARY of ready, one row at a time; locks
-- existing rows, waiting for sessions that claim them.
SELECT STRAIGHT_JOIN r.job_id
FROM JSON_TABLE(?, '$[*]' COLUMNS (queue_id INT PATH '$[0]', `rank` TINYINT UNSIGNED PATH '$[1]',
  ready_at BIGINT PATH '$[2]', id BIGINT PATH '$[3]')) v
JOIN nightshift_ready r FORCE INDEX (PRIMARY) ON r.queue_id = v.queue_id
  AND r.rank = v.rank AND r.ready_at = v.ready_at AND r.job_id = v.id
FOR UPDATE

-- name: admin_tree_hold_scheduled
-- Params: [[run_at,job,run],…]. Key: PRIMARY of scheduled, one row at a time; locks existing
-- rows, waiting for sessions that promote them.
SELECT STRAIGHT_JOIN s.job_id
FROM JSON_TABLE(?, '$[*]' COLUMNS (run_at BIGINT PATH '$[0]', id BIGINT PATH '$[1]',
  run INT UNSIGNED PATH '$[2]')) v
JOIN nightshift_scheduled s FORCE INDEX (PRIMARY) ON s.run_at = v.run_at AND s.job_id = v.id
WHERE s.run = v.run
FOR UPDATE

-- name: admin_tree_job
-- Params: [[run,rank,priority,due,unmet,paused,deadline,wish,job,queue],…]. Key: PRIMARY of job,
-- locked by admin_tree_lock. A job that waits for no child any more is not parked.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (run INT UNSIGNED PATH '$[0]',
  `rank` TINYINT UNSIGNED PATH '$[1]', priority TINYINT UNSIGNED PATH '$[2]',
  due BIGINT PATH '$[3]', unmet INT UNSIGNED PATH '$[4]', paused BIGINT PATH '$[5]',
  deadline BIGINT PATH '$[6]', wish BIGINT PATH '$[7]', id BIGINT PATH '$[8]',
  queue_id INT PATH '$[9]')) v
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
SET j.run = v.run, j.queue_id = v.queue_id, j.rank = v.rank, j.priority = v.priority, j.due = v.due,
  j.unmet = v.unmet, j.paused = v.paused, j.deadline = v.deadline, j.wish = v.wish,
  j.waits = IF(v.unmet = 0 AND j.waits IN ('fail', 'continue'), NULL, j.waits)

-- name: admin_tree_lock
-- Params: [id,…] in ascending order. Last the ordered group that a job holds, or NULL. Keys: PRIMARY
-- of job, one row at a time; locks them, waiting. PRIMARY of group, without a lock.
SELECT STRAIGHT_JOIN j.id, j.queue_id, j.rank, j.run, j.unmet, j.due, j.lost,
  j.paused, j.deadline, COALESCE(j.waits = 'signal', FALSE),
  COALESCE(j.waits IN ('fail', 'continue'), FALSE), j.ukey, {now},
  COALESCE(IF(j.due = j.deadline, j.wish, NULL), j.due), j.priority,
  CRC32(j.name), {held_group}
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
FOR UPDATE

-- name: admin_tree_notice
-- Params: kind, why or NULL, [[id,run],…]. Key: leases are few. As admin_notice, of many jobs;
-- replaces notices that have not been read yet.
INSERT INTO nightshift_notice (holder, job_id, run, kind, why, created)
SELECT c.holder, c.id, c.run, ?, ?, {now}
FROM (SELECT DISTINCT t.id, t.run, l.holder FROM nightshift_lease l
      JOIN nightshift_holder h ON h.id = l.holder AND h.kind = 'host',
      JSON_TABLE(l.jobs, {tokens}) t) c
JOIN (SELECT DISTINCT t.id, t.run FROM
      JSON_TABLE(?, {tokens}) t) v
  ON v.id = c.id AND v.run = c.run
ON DUPLICATE KEY UPDATE run = VALUES(run), kind = VALUES(kind), why = VALUES(why)

-- name: admin_tree_past
-- Params: [id,…]. Key: PRIMARY of finished, one row at a time; locks the failed ones.
SELECT STRAIGHT_JOIN f.id, f.queue_id, f.ukey, f.priority, f.run, CRC32(f.name)
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
WHERE f.outcome <> 'done'
FOR UPDATE

-- name: admin_tree_pause
-- Params: job. Key: PRIMARY.
INSERT IGNORE INTO nightshift_pause (id, since) VALUES (?, {now})

-- name: admin_tree_ready_at
-- Params: queue, rank, the first and the last ready_at, [id,…]. Key: PRIMARY of ready, that part
-- of one lane, once; the list is a table with a key. No locks.
SELECT r.job_id, r.run, r.ready_at
FROM nightshift_ready r FORCE INDEX (PRIMARY)
WHERE r.queue_id = ? AND r.rank = ? AND r.ready_at >= ? AND r.ready_at <= ?
  AND r.job_id IN (SELECT v.id FROM JSON_TABLE(?, {ids}) v)

-- name: admin_tree_resume
-- Params: [id,…]. Key: PRIMARY of pause.
DELETE p FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_pause p FORCE INDEX (PRIMARY) ON p.id = v.id

-- name: admin_tree_retry
-- Params: id that holds them, [id,…]. Key: PRIMARY of finished, locked by admin_tree_past.
-- Fresh budgets, the next run. Jobs that had been parked are parked, and all are held until
-- their edges are written. A job that had gone on after its children had ended (its phase is
-- not 0) is parked, too: children that had failed live again.
INSERT INTO nightshift_job
  (id, queue_id, name, payload, priority, rank, run, max_attempts, max_polls,
   max_crashes, backoff, timeout, deadline, created, due, parent, root, on_fail,
   ukey, nonce, decay, after_ids, phase, waits, state, since, max_phases, paused, unmet, tagged,
   group_key)
SELECT STRAIGHT_JOIN f.id, f.queue_id, f.name, f.payload, f.priority,
  255 - f.priority, f.run + 1, f.max_attempts, f.max_polls, f.max_crashes,
  f.backoff, f.timeout, {now} + f.deadline - f.created, {now}, {now}, f.parent, f.root, f.on_fail, f.ukey,
  f.nonce, f.decay, f.after_ids, f.phase,
  COALESCE(f.waits, IF(f.phase > 0, 'continue', NULL)), f.state, f.since, f.max_phases, ?, 1,
  {tagged}, f.group_key
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id

-- name: admin_tree_scheduled
-- Array-bound. Params: run_at, job, queue, rank, run, kind. Key: PRIMARY; takes the
-- place of a row of an earlier run.
INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run, kind)
VALUES (?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE rank = VALUES(rank), run = VALUES(run)

-- name: admin_tree_unlink
-- Params: [id,…] of jobs that failed, three times. Keys: PRIMARY of finished, child and edge.
-- Edges that have outlived a job that is to run again: to the jobs that it was pushed to wait
-- for, its children, its parent.
DELETE e FROM (
  SELECT f.id AS job_id, a.id AS on_id
  FROM JSON_TABLE(?, {ids}) v
  STRAIGHT_JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
  STRAIGHT_JOIN JSON_TABLE(COALESCE(f.after_ids, '[]'), {ids}) a
  UNION
  SELECT c.parent, c.id
  FROM JSON_TABLE(?, {ids}) v
  STRAIGHT_JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = v.id
  UNION
  SELECT f.id, f.parent
  FROM JSON_TABLE(?, {ids}) v
  STRAIGHT_JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id) w
STRAIGHT_JOIN nightshift_edge e FORCE INDEX (PRIMARY)
  ON e.on_id = w.on_id AND e.job_id = w.job_id

-- name: admin_tree_unlinked
-- Params: as admin_tree_unlink, before it. Keys: the same, and PRIMARY of job; shared locks on
-- the live jobs that those edges lead to. A session that ends one of these jobs deletes its
-- edges, and is not to wait for ours.
SELECT STRAIGHT_JOIN j.id FROM (
  SELECT a.id AS on_id
  FROM JSON_TABLE(?, {ids}) v
  STRAIGHT_JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
  STRAIGHT_JOIN JSON_TABLE(COALESCE(f.after_ids, '[]'), {ids}) a
  UNION
  SELECT c.id
  FROM JSON_TABLE(?, {ids}) v
  STRAIGHT_JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = v.id
  UNION
  SELECT f.parent
  FROM JSON_TABLE(?, {ids}) v
  STRAIGHT_JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id) w
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = w.on_id
LOCK IN SHARE MODE

-- name: admin_tree_unmet
-- Params: [id,…]. Key: PRIMARY of met. As admin_unmet.
DELETE m FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_met m FORCE INDEX (PRIMARY) ON m.on_id = v.id

-- name: admin_tree_unready
-- Params: [[queue,rank,ready_at,job],…]. Key: PRIMARY of ready, one row at a time, locked by
-- admin_tree_hold_ready.
DELETE r FROM JSON_TABLE(?, '$[*]' COLUMNS (queue_id INT PATH '$[0]',
  `rank` TINYINT UNSIGNED PATH '$[1]', ready_at BIGINT PATH '$[2]', id BIGINT PATH '$[3]')) v
STRAIGHT_JOIN nightshift_ready r FORCE INDEX (PRIMARY) ON r.queue_id = v.queue_id
  AND r.rank = v.rank AND r.ready_at = v.ready_at AND r.job_id = v.id

-- name: admin_tree_unschedule
-- Params: [[run_at,job],…]. Key: PRIMARY of scheduled. Deletes the rows that exist.
DELETE s FROM JSON_TABLE(?, '$[*]' COLUMNS (run_at BIGINT PATH '$[0]', id BIGINT PATH '$[1]')) v
STRAIGHT_JOIN nightshift_scheduled s FORCE INDEX (PRIMARY) ON s.run_at = v.run_at AND s.job_id = v.id

-- name: filter_backlog
-- Jobs of limited queues. Params: queue twice, group, queue, group, rank, queue, group, rank,
-- ready_at, queue, group, rank, ready_at and job to begin behind, the last µs, rows. Index: backlog
-- PRIMARY, a range.
SELECT queue_id, group_key, `rank`, ready_at, job_id AS id
FROM nightshift_backlog FORCE INDEX (PRIMARY)
WHERE (queue_id > ? OR queue_id = ? AND group_key > ?
    OR queue_id = ? AND group_key = ? AND `rank` > ?
    OR queue_id = ? AND group_key = ? AND `rank` = ? AND ready_at > ?
    OR queue_id = ? AND group_key = ? AND `rank` = ? AND ready_at = ? AND job_id > ?)
  AND ready_at <= ?
ORDER BY queue_id, group_key, `rank`, ready_at, job_id LIMIT ?

-- name: filter_children
-- Children of a job. Params: parent, seq twice and id to begin behind, rows. Index: child PRIMARY,
-- a range, index only.
SELECT seq, id FROM nightshift_child
WHERE parent = ? AND seq >= ? AND (seq > ? OR id > ?)
ORDER BY seq, id LIMIT ?

-- name: filter_ended
-- Params: [id,…], outcome or NULL twice, filter. Index: finished PRIMARY, one row at a time.
SELECT STRAIGHT_JOIN f.id FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
WHERE (? IS NULL OR f.outcome = ?) AND {filter_ended}

-- name: filter_jobs
-- Live jobs. Params: id to begin behind, the last id, rows. Index: job PRIMARY, a range.
SELECT id FROM nightshift_job WHERE id > ? AND id <= ? ORDER BY id LIMIT ?

-- name: filter_lane
-- The next lane that has rows. Params: queue twice and rank to begin behind. Index: ready PRIMARY, a
-- range, its first row.
SELECT queue_id, `rank` FROM nightshift_ready FORCE INDEX (PRIMARY)
WHERE (queue_id > ? OR queue_id = ? AND `rank` > ?) AND ready_at < {end}
ORDER BY queue_id, `rank`, ready_at, job_id LIMIT 1

-- name: filter_last
-- Up to where walks go: the newest live job, the last scheduled one, the newest lease; and the time.
-- Index: PRIMARY of job, of scheduled and of lease, the last row.
SELECT COALESCE((SELECT MAX(id) FROM nightshift_job), 0) AS id,
  COALESCE((SELECT MAX(run_at) FROM nightshift_scheduled), 0) AS run_at,
  COALESCE((SELECT MAX(id) FROM nightshift_lease), 0) AS lease, {now} AS now

-- name: filter_live
-- Params: [id,…], those of claims_if, state or NULL twice, filter. Index: job PRIMARY, one row at a
-- time; all leases, once.
SELECT STRAIGHT_JOIN j.id FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
LEFT JOIN {claims_if}
WHERE (? IS NULL OR {state} = ?) AND {filter_live}

-- name: filter_outcome
-- Ended jobs of an outcome. Params: outcome, µs twice and id to begin behind, the last µs, rows.
-- Index: outcome, a range, index only.
SELECT finished_at, id FROM nightshift_finished FORCE INDEX (outcome)
WHERE outcome = ? AND finished_at >= ? AND (finished_at > ? OR id > ?) AND finished_at <= ?
ORDER BY finished_at, id LIMIT ?

-- name: filter_ready
-- Jobs of a lane. Params: queue, rank, µs twice and job to begin behind, the last µs, rows. Index:
-- ready PRIMARY, a range.
SELECT ready_at, job_id AS id FROM nightshift_ready FORCE INDEX (PRIMARY)
WHERE queue_id = ? AND rank = ? AND ready_at >= ? AND (ready_at > ? OR job_id > ?)
  AND ready_at <= ?
ORDER BY ready_at, job_id LIMIT ?

-- name: filter_running
-- Claimed jobs of so many leases; NULL in place of jobs that have gone on. Params: lease to begin
-- behind, the last lease, leases. Index: lease PRIMARY, a range; job PRIMARY, one row at a time.
SELECT STRAIGHT_JOIN l.id AS lease, j.id
FROM (SELECT id, jobs FROM nightshift_lease FORCE INDEX (PRIMARY)
      WHERE id > ? AND id <= ? ORDER BY id LIMIT ?) l
JOIN JSON_TABLE(l.jobs, {tokens}) t
LEFT JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = t.id AND j.run = t.run

-- name: filter_scheduled
-- Params: µs twice and job to begin behind, the last µs, rows. Index: scheduled PRIMARY, a range.
SELECT run_at, job_id AS id FROM nightshift_scheduled FORCE INDEX (PRIMARY)
WHERE run_at >= ? AND (run_at > ? OR job_id > ?) AND run_at <= ?
ORDER BY run_at, job_id LIMIT ?

-- name: filter_tagged
-- Params: tag, job to begin behind, rows. Index: tag (tag, job_id), a range, index only.
SELECT job_id AS id FROM nightshift_tag FORCE INDEX (tag)
WHERE tag = ? AND job_id > ? ORDER BY job_id LIMIT ?

-- name: filter_unclaimed
-- As filter_live, with the state that claimed jobs would have without their claims.
SELECT STRAIGHT_JOIN j.id, j.run FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
LEFT JOIN {no_claims}
WHERE (? IS NULL OR {state} = ?) AND {filter_live}

-- name: report_tree_below
-- Params: [id,…]. Key: PRIMARY of child, a range each. The children of these jobs,
-- live or ended. Locks: none.
SELECT STRAIGHT_JOIN c.id
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = v.id

-- name: report_tree_children
-- How many of these children of a job are in which state. Beyond 2,000 claims some that run are told
-- as ready. Params: [id,…], whether claims are looked at. Key: PRIMARY of job and finished; so many
-- leases, once, or none. Locks: none.
SELECT IF(j.id IS NULL, COALESCE(f.outcome, 'gone'), {state}) AS state, COUNT(*) AS n
FROM JSON_TABLE(?, {ids}) v
LEFT JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
LEFT JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
LEFT JOIN (SELECT t.id, t.run FROM (SELECT ? AS looks) b
  STRAIGHT_JOIN nightshift_lease l ON b.looks
  STRAIGHT_JOIN JSON_TABLE(l.jobs, {tokens}) t
  LIMIT 2000) c ON c.id = j.id AND c.run = j.run
GROUP BY state

-- name: report_tree_ids
-- How many children a job has, and the ids of those that a number divides, 1: of all. Params: number,
-- parent, the most to count. Key: PRIMARY of child, a range, index only. Locks: none.
SET STATEMENT group_concat_max_len=1048576 FOR
SELECT COUNT(*) AS n, GROUP_CONCAT(IF(v.id MOD ? = 0, v.id, NULL)) AS ids
FROM (SELECT id FROM nightshift_child FORCE INDEX (PRIMARY) WHERE parent = ? LIMIT ?) v

-- name: report_tree_job
-- Params: id. As report_tree_rows, the job itself. Locks: none.
SELECT v.id, COALESCE(j.name, f.name) AS name,
  IF(j.id IS NULL, f.outcome, {state}) AS state,
  j.paused, j.attempts, j.max_attempts, r.progress, r.status, f.reason,
  IF(f.id IS NOT NULL, LEFT(f.error, 300), (SELECT LEFT(a.error, 300) FROM nightshift_attempt a
    WHERE a.job_id = v.id AND a.kind <> 'printed' ORDER BY a.run DESC LIMIT 1)) AS error,
  (SELECT 1 FROM nightshift_child x WHERE x.parent = v.id LIMIT 1) AS inner_node
FROM (SELECT ? AS id) v
LEFT JOIN nightshift_job j ON j.id = v.id
LEFT JOIN nightshift_finished f ON f.id = v.id
LEFT JOIN {lease}
LEFT JOIN nightshift_running r ON r.job_id = j.id AND r.run = j.run
WHERE j.id IS NOT NULL OR f.id IS NOT NULL

-- name: report_tree_rows
-- Params: parent, limit. Keys: PRIMARY of child, a range; of job, finished, running, attempt.
-- The first children of a job, with the columns of the drawing; claimed ones as if they were not.
-- Locks: none.
SELECT v.id, COALESCE(j.name, f.name) AS name,
  IF(j.id IS NULL, COALESCE(f.outcome, 'gone'), {state}) AS state,
  j.run, j.paused, j.attempts, j.max_attempts, r.progress, r.status, f.reason,
  IF(f.id IS NOT NULL, LEFT(f.error, 300), (SELECT LEFT(a.error, 300) FROM nightshift_attempt a
    WHERE a.job_id = v.id AND a.kind <> 'printed' ORDER BY a.run DESC LIMIT 1)) AS error,
  (SELECT 1 FROM nightshift_child x WHERE x.parent = v.id LIMIT 1) AS inner_node
FROM (SELECT seq, id FROM nightshift_child WHERE parent = ? ORDER BY seq, id LIMIT ?) v
LEFT JOIN nightshift_job j ON j.id = v.id
LEFT JOIN nightshift_finished f ON f.id = v.id
LEFT JOIN {no_claims}
LEFT JOIN nightshift_running r ON r.job_id = j.id AND r.run = j.run
ORDER BY v.seq, v.id

-- name: report_tree_states
-- Params: [id,…]. Keys: PRIMARY of job and finished. How many of these jobs are in
-- which state. Locks: none.
SELECT IF(j.id IS NULL, COALESCE(f.outcome, 'gone'), {state}) AS state, COUNT(*)
FROM JSON_TABLE(?, {ids}) v
LEFT JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
LEFT JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
LEFT JOIN {claims}
GROUP BY state

-- name: report_tree_up
-- Params: job, job. Keys: PRIMARY of job, finished and pause. A job's parent, and whether all
-- is known about pauses above. And the job with the pause that holds this one, or held it when
-- it ended. Locks: none.
SELECT parent, TRUE, paused FROM nightshift_job WHERE id = ?
UNION ALL
SELECT f.parent, p.id IS NOT NULL, p.id FROM nightshift_finished f
LEFT JOIN nightshift_pause p ON p.id = f.id WHERE f.id = ?
