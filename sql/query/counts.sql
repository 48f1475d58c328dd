-- Counts of jobs per queue and state, for lua/nightshift/report/counts.lua, which says how far
-- they go. `looked`, where it is given: rows of a table that were read, those of jobs
-- that have moved on among them. Nothing here locks. Sorted by name.

-- name: report_counts_awaiting
-- Jobs parked for a signal, among the last ones of scheduled. Params: how many are looked
-- at. Index: scheduled PRIMARY, backwards; job PRIMARY.
SELECT j.queue_id, SUM({awaits}) AS n
FROM (SELECT job_id, run FROM nightshift_scheduled
      ORDER BY run_at DESC, job_id DESC LIMIT ?) s
STRAIGHT_JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
GROUP BY j.queue_id

-- name: report_counts_dead
-- Dead jobs among the newest ones. Params: how many are looked at. Index: finished outcome,
-- backwards, and one row look-up each.
SELECT d.queue_id, COUNT(*) AS n, COUNT(*) AS looked
FROM (SELECT queue_id FROM nightshift_finished
      WHERE outcome = 'dead' ORDER BY finished_at DESC LIMIT ?) d
GROUP BY d.queue_id

-- name: report_counts_due
-- Jobs that are due and not yet moved into ready. Params: how many are looked at. Index:
-- scheduled PRIMARY, its first rows; job PRIMARY.
SELECT s.queue_id, COUNT(j.id) AS n, MIN(IF(j.id IS NULL, NULL, s.run_at)) AS oldest, COUNT(*) AS looked
FROM (SELECT run_at, job_id, queue_id, run FROM nightshift_scheduled
      WHERE run_at <= {now} ORDER BY run_at, job_id LIMIT ?) s
LEFT JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
GROUP BY s.queue_id

-- name: report_counts_lanes
-- Since when the oldest row of each queue is ready. Index: ready PRIMARY, the first row of
-- each lane.
SELECT l.queue_id, MIN(l.first) AS oldest
FROM (SELECT queue_id, rank, MIN(ready_at) AS first
      FROM nightshift_ready FORCE INDEX FOR GROUP BY (PRIMARY)
      GROUP BY queue_id, rank) l
WHERE l.first < {end}
GROUP BY l.queue_id

-- name: report_counts_ready
-- Claimable jobs of each queue; n is NULL for those that have more rows than so many.
-- Params: how many. Index: queue PRIMARY; ready PRIMARY, so many rows of a queue; job
-- PRIMARY.
SELECT v.id AS queue_id,
  IF(v.many, NULL, (SELECT COUNT(*) FROM nightshift_ready r FORCE INDEX (PRIMARY)
    STRAIGHT_JOIN nightshift_job j ON j.id = r.job_id AND j.run = r.run
    WHERE r.queue_id = v.id)) AS n,
  IF(v.many, NULL, (SELECT MIN(r.ready_at) FROM nightshift_ready r FORCE INDEX (PRIMARY)
    STRAIGHT_JOIN nightshift_job j ON j.id = r.job_id AND j.run = r.run
    WHERE r.queue_id = v.id)) AS oldest
FROM (SELECT q.id, (SELECT 1 FROM nightshift_ready r FORCE INDEX (PRIMARY)
        WHERE r.queue_id = q.id AND r.ready_at < {end}
        ORDER BY r.queue_id, r.rank, r.ready_at, r.job_id LIMIT 1 OFFSET ?) IS NOT NULL AS many
      FROM nightshift_queue q FORCE INDEX (PRIMARY) LIMIT {end}) v

-- name: report_counts_running
-- Claimed jobs. Params: how many are looked at. Index: lease PRIMARY, job PRIMARY.
SELECT j.queue_id, COUNT(j.id) AS n, COUNT(*) AS looked
FROM (SELECT t.id, t.run FROM nightshift_lease l, JSON_TABLE(l.jobs, {tokens}) t LIMIT ?) c
LEFT JOIN nightshift_job j ON j.id = c.id AND j.run = c.run
GROUP BY j.queue_id

-- name: report_counts_scheduled
-- Jobs due later, when the next is due, and those of them that wait for a signal. Params:
-- how many are looked at. Index: scheduled PRIMARY; job PRIMARY.
SELECT s.queue_id, SUM(j.id IS NOT NULL AND NOT {awaits}) AS n, SUM({awaits}) AS awaiting,
  MIN(IF(j.id IS NULL OR {awaits}, NULL, s.run_at)) AS next, COUNT(*) AS looked
FROM (SELECT run_at, job_id, queue_id, run FROM nightshift_scheduled
      WHERE run_at > {now} ORDER BY run_at, job_id LIMIT ?) s
LEFT JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
GROUP BY s.queue_id

-- name: report_counts_waiting
-- Jobs that wait for other jobs, and, while pauses are on, paused ones among the newest.
-- Params: how many are looked at, twice. Index: edge PRIMARY; job PRIMARY.
SELECT j.queue_id, COUNT(*) AS n, COUNT(*) AS looked
FROM ((SELECT DISTINCT job_id FROM nightshift_edge LIMIT ?)
      UNION
      (SELECT id FROM (SELECT id, paused FROM nightshift_job ORDER BY id DESC LIMIT ?) p
       WHERE paused IS NOT NULL AND (SELECT COUNT(*) FROM nightshift_pause) > 0)) e
STRAIGHT_JOIN nightshift_job j ON j.id = e.job_id AND j.unmet > 0
GROUP BY j.queue_id
