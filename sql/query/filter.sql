-- The jobs that a verb on many is to be done to (lua/nightshift/filter.lua). A walk goes through one
-- key in its order, a page at a time. Then it asks which jobs of the page the filter holds for.
-- Nothing here writes and nothing locks: every statement is a plain consistent read. Sorted by
-- name.

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
