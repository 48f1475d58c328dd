-- Reports for people: listings, trees, the counts of `status` (lua/nightshift/report/init.lua
-- says how far they go) and the facts that db:why asks for. Nothing here writes and nothing
-- locks: every statement is a plain consistent read. Listings run by key and stop at their
-- LIMIT; payloads are left to the job's own page. The conditions of a filter, and their params, are
-- in the marks filter_live and filter_ended.
--
-- `looked`, where it is given: rows of a table that were read, with rows of jobs that have
-- moved on. The facts of db:why are found by key. Leases and holders are few and read whole.
-- Edges have no key by the job that waits, so a bounded stretch around the job is read. Sorted
-- by name.

-- name: report_attempts
-- Failed, crashed and lost attempts of one job, oldest first.
-- Params: job id. Index: attempt PRIMARY (job_id, run); holder and past_holder PRIMARY. Locks: none.
SELECT f.run, f.kind, f.started, f.ended, f.holder, {ended_host} AS host, {ended_pid} AS pid,
  CAST(f.worker AS SIGNED) AS worker, f.error, f.log
FROM nightshift_attempt f
{ended_holder}
WHERE f.job_id = ? AND f.kind <> 'printed'
ORDER BY f.run

-- name: report_attempts_last
-- The last failed, crashed and lost attempts of one job, newest first, with the beginnings of their
-- texts. Params: characters of an error, of a log, job id, limit. Index: attempt PRIMARY (job_id,
-- run), backwards; holder and past_holder PRIMARY. Locks: none.
SELECT f.run, f.kind, f.started, f.ended, f.holder, {ended_host} AS host, {ended_pid} AS pid,
  CAST(f.worker AS SIGNED) AS worker, LEFT(f.error, ?) AS error, RIGHT(f.log, ?) AS log
FROM nightshift_attempt f
{ended_holder}
WHERE f.job_id = ? AND f.kind <> 'printed'
ORDER BY f.run DESC LIMIT ?

-- name: report_audit
-- Actions of people, the newest first. Params: µs since 1970 twice, verb twice, id twice: NULL for
-- any; limit. Index: audit PRIMARY or verb, backwards, or at. Locks: none.
SELECT a.id, a.at, a.verb, a.what, a.job, a.jobs, a.account, a.host, a.pid, a.via
FROM nightshift_audit a
WHERE (? IS NULL OR a.at >= ?) AND (? IS NULL OR a.verb = ?) AND (? IS NULL OR a.id < ?)
ORDER BY a.id DESC LIMIT ?

-- name: report_counts_awaiting
-- Jobs parked for a signal, among the last ones of scheduled. Params: how many are looked
-- at. Index: scheduled PRIMARY, backwards; job PRIMARY.
SELECT j.queue_id, SUM({awaits}) AS n
FROM (SELECT job_id, run FROM nightshift_scheduled
      ORDER BY run_at DESC, job_id DESC LIMIT ?) s
STRAIGHT_JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
GROUP BY j.queue_id

-- name: report_counts_backlog
-- Jobs in the backlogs of limited queues; n is NULL for queues that have more than so many. oldest:
-- since when the first of a group is ready. Params: how many. Index: limit, all rows; backlog and
-- group PRIMARY, ranges; job PRIMARY.
SELECT v.queue_id,
  IF(v.many, NULL, (SELECT COUNT(*) FROM nightshift_backlog b FORCE INDEX (PRIMARY)
    STRAIGHT_JOIN nightshift_job j ON j.id = b.job_id AND j.run = b.run
    WHERE b.queue_id = v.queue_id)) AS n,
  IF(v.many, (SELECT MIN(g.ready_at) FROM nightshift_group g FORCE INDEX (PRIMARY)
      WHERE g.queue_id = v.queue_id AND g.job_id > 0),
    (SELECT MIN(b.ready_at) FROM nightshift_backlog b FORCE INDEX (PRIMARY)
      WHERE b.queue_id = v.queue_id)) AS oldest
FROM (SELECT l.queue_id, (SELECT 1 FROM nightshift_backlog b FORCE INDEX (PRIMARY)
        WHERE b.queue_id = l.queue_id
        ORDER BY b.queue_id, b.group_key LIMIT 1 OFFSET ?) IS NOT NULL AS many
      FROM nightshift_limit l FORCE INDEX (PRIMARY) LIMIT {end}) v

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
-- Since when the oldest row of each of some queues is ready; none is counted here. It goes from one
-- lane to the next. For a GROUP BY of lanes the server may read all rows, as it does in a session
-- that has changed one. Params: [queue,…]. Index: ready PRIMARY, the first row of each lane. Locks:
-- none.
BEGIN NOT ATOMIC
  DECLARE v_queues MEDIUMTEXT {bytes} DEFAULT ?;
  DECLARE v_found MEDIUMTEXT {bytes} DEFAULT '';
  DECLARE v_n, v_queue, v_rank INT DEFAULT 0;
  DECLARE v_at, v_oldest BIGINT;
  WHILE v_n < JSON_LENGTH(v_queues) DO
    SET v_queue = JSON_VALUE(v_queues, CONCAT('$[', v_n, ']')), v_rank = -1, v_oldest = {end};
    REPEAT
      SET v_at = NULL;
      SELECT r.rank, r.ready_at INTO v_rank, v_at FROM nightshift_ready r FORCE INDEX (PRIMARY)
      WHERE r.queue_id = v_queue AND r.rank > v_rank AND r.ready_at < {end}
      ORDER BY r.queue_id, r.rank, r.ready_at, r.job_id LIMIT 1;
      SET v_oldest = LEAST(v_oldest, COALESCE(v_at, v_oldest));
    UNTIL v_at IS NULL END REPEAT;
    SET v_found = CONCAT(v_found, IF(v_n > 0, ',[', '['), v_queue, ',', v_oldest, ']'), v_n = v_n + 1;
  END WHILE;
  SELECT l.queue_id, 0 AS n, l.oldest
  FROM JSON_TABLE(CONCAT('[', v_found, ']'), '$[*]' COLUMNS (queue_id INT PATH '$[0]',
    oldest BIGINT PATH '$[1]')) l
  WHERE l.oldest < {end};
END

-- name: report_counts_ready
-- Claimable jobs of each queue; n is NULL for queues that have more rows than so many. Params:
-- how many. Index: queue PRIMARY; ready PRIMARY, so many rows of a queue; job PRIMARY.
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
-- Jobs due later, the instant of the next one, and the number of them that wait for a signal.
-- Params: how many are looked at. Index: scheduled PRIMARY; job PRIMARY.
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

-- name: report_drain
-- How many jobs are ready, and scheduled for the next microseconds: 5,000,000 of each at most.
-- Params: [queue,…] or NULL: all, twice; microseconds; the queues again. Index: PRIMARY of queue, of
-- ready, and of scheduled, a range. Locks: none.
SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM nightshift_ready r
    JOIN nightshift_queue q ON q.id = r.queue_id AND NOT q.paused
    WHERE r.job_id > 0 AND (? IS NULL OR JSON_CONTAINS(?, JSON_QUOTE(q.name)))
    LIMIT 5000000) a)
  + (SELECT COUNT(*) FROM (SELECT 1 FROM nightshift_scheduled s
    JOIN nightshift_queue q ON q.id = s.queue_id AND NOT q.paused
    WHERE s.run_at <= {now} + ? AND (? IS NULL OR JSON_CONTAINS(?, JSON_QUOTE(q.name)))
    LIMIT 5000000) b) AS n

-- name: report_ended
-- Jobs of an outcome that ended since an instant, by queue, and the oldest of their ends: of the
-- last ones, up to a number. Params: outcome, µs, how many are looked at. Index: outcome, a range,
-- backwards, index only; queue PRIMARY. Locks: none.
SELECT q.name AS queue, COUNT(*) AS n, MIN(v.finished_at) AS oldest
FROM (SELECT queue_id, finished_at FROM nightshift_finished FORCE INDEX (outcome)
      WHERE outcome = ? AND finished_at >= ?
      ORDER BY finished_at DESC LIMIT ?) v
STRAIGHT_JOIN nightshift_queue q FORCE INDEX (PRIMARY) ON q.id = v.queue_id
GROUP BY q.id

-- name: report_errors_dead
-- Kinds of errors of dead jobs, among the last that ended since an instant. Params: µs, how many
-- are looked at, queue id or NULL twice, name or NULL twice. Index: outcome (outcome, finished_at),
-- a range, backwards; finished PRIMARY. Locks: none.
SELECT {ended_kind} AS error, COUNT(*) AS n, MIN(f.finished_at) AS first,
  MAX(f.finished_at) AS last, MAX(f.id) AS id
FROM (SELECT id FROM nightshift_finished FORCE INDEX (outcome)
      WHERE outcome = 'dead' AND finished_at >= ?
      ORDER BY finished_at DESC, id DESC LIMIT ?) v
STRAIGHT_JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
WHERE (? IS NULL OR f.queue_id = ?) AND (? IS NULL OR f.name = ?)
GROUP BY 1

-- name: report_errors_jobs
-- Queues and names of jobs. Params: [id,…], twice. Index: PRIMARY of finished and of job, one row
-- at a time. Locks: none.
SELECT STRAIGHT_JOIN f.id, q.name AS queue, f.name
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
JOIN nightshift_queue q FORCE INDEX (PRIMARY) ON q.id = f.queue_id
UNION ALL
SELECT STRAIGHT_JOIN j.id, q.name, j.name
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
JOIN nightshift_queue q FORCE INDEX (PRIMARY) ON q.id = j.queue_id

-- name: report_errors_more
-- Are there more jobs than were looked at? Params: µs, how many of dead ones, how many of scheduled
-- ones. Index: outcome, a range, backwards, index only; scheduled PRIMARY. Locks: none.
SELECT (SELECT id FROM nightshift_finished FORCE INDEX (outcome)
    WHERE outcome = 'dead' AND finished_at >= ?
    ORDER BY finished_at DESC, id DESC LIMIT 1 OFFSET ?) AS dead,
  (SELECT job_id FROM nightshift_scheduled
    ORDER BY run_at, job_id LIMIT 1 OFFSET ?) AS scheduled

-- name: report_errors_scheduled
-- Kinds of errors of jobs that wait for another attempt, among the first of scheduled. Params: how
-- many are looked at, queue id or NULL twice, name or NULL twice, µs of the oldest failure. Index:
-- PRIMARY of scheduled, job and attempt. Locks: none.
SELECT {live_kind} AS error, COUNT(*) AS n, MIN(a.ended) AS first, MAX(a.ended) AS last,
  MAX(j.id) AS id
{retrying}
WHERE (? IS NULL OR j.queue_id = ?) AND (? IS NULL OR j.name = ?) AND a.ended >= ?
GROUP BY 1

-- name: report_holders
-- Holders that are not known dead, with the number of batches they hold.
-- Params: none. Index: small table; lease holder; served PRIMARY. Locks: none.
SELECT h.id, h.kind, h.host, h.pid, h.started, h.beat, h.version,
       h.workers, h.busy, h.leaving, h.loads, h.old_scripts,
       s.scripts, s.load_ended, s.load_error, s.wanted,
       (SELECT COUNT(*) FROM nightshift_lease l WHERE l.holder = h.id) AS leases
FROM nightshift_holder h
LEFT JOIN nightshift_served s ON s.holder = h.id
WHERE h.dead IS NULL
ORDER BY h.id

-- name: report_hosts
-- Hosts of a machine that are there.
-- Params: its boot id. Index: small table. Locks: none.
SELECT pid FROM nightshift_holder
WHERE kind = 'host' AND dead IS NULL AND boot_id LIKE CONCAT(?, ' %')
  AND NOT IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', id))

-- name: report_jobs_all
-- Live jobs and ended ones of every state, newest id first; claimed ones as if they were not. Params:
-- filter, limit; filter and limit again, of finished ones; limit. Index: job and finished PRIMARY,
-- backwards. Locks: none.
(SELECT {live_columns}, NULL AS finished_at, NULL AS reason, NULL AS error, NULL AS started,
        NULL AS host, NULL AS worker
 FROM (SELECT id, queue_id, name, unmet, due, rank, run, attempts, polls,
              crashes, max_attempts, created, parent, waits, awaits, paused, group_key
       FROM nightshift_job j
       WHERE {filter_live}
       ORDER BY id DESC LIMIT ?) j
 JOIN nightshift_queue q ON q.id = j.queue_id
 LEFT JOIN {no_claims})
UNION ALL
(SELECT f.id, q.name, f.name, f.outcome,
        f.priority, f.run, f.attempts, f.polls, f.crashes, f.max_attempts,
        f.created, NULL, f.parent, f.group_key, NULL, NULL, NULL, f.finished_at, f.reason, LEFT(f.error, 300),
        f.started, {ended_host}, CAST(f.worker AS SIGNED)
 FROM nightshift_finished f FORCE INDEX (PRIMARY)
 STRAIGHT_JOIN nightshift_queue q ON q.id = f.queue_id
 {ended_holder}
 WHERE {filter_ended}
 ORDER BY f.id DESC LIMIT ?)
ORDER BY id DESC LIMIT ?

-- name: report_jobs_awaiting
-- Jobs parked for a signal, among the last rows of scheduled, where jobs without a deadline
-- are. Only their jobs tell these rows from others. Params: how many are looked at, filter,
-- limit. Index: scheduled PRIMARY, backwards; job PRIMARY. Locks: none.
SELECT j.id, q.name AS queue, j.name, 'waiting' AS state,
       {listed_columns}, j.awaits
FROM (SELECT job_id, run FROM nightshift_scheduled
      ORDER BY run_at DESC, job_id DESC LIMIT ?) s
STRAIGHT_JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
  AND {awaits}
STRAIGHT_JOIN nightshift_queue q ON q.id = j.queue_id
WHERE {filter_live}
ORDER BY j.id LIMIT ?

-- name: report_jobs_backlog
-- Claimable jobs of limited queues, queue by queue and group by group. Params: first queue id, the
-- one behind the last, filter, limit. Index: backlog PRIMARY, range of queue_id; job PRIMARY.
-- Locks: none.
SELECT j.id, q.name AS queue, j.name, 'ready' AS state,
       {listed_columns}
FROM nightshift_backlog b FORCE INDEX (PRIMARY)
STRAIGHT_JOIN nightshift_job j ON j.id = b.job_id AND j.run = b.run AND j.unmet = 0
STRAIGHT_JOIN nightshift_queue q ON q.id = b.queue_id
WHERE b.queue_id >= ? AND b.queue_id < ? AND {filter_live}
ORDER BY b.queue_id, b.group_key, b.rank, b.ready_at, b.job_id LIMIT ?

-- name: report_jobs_child_ended
-- Ended jobs among some children, newest id first. Params: [id,…], outcome or NULL twice, filter,
-- limit. Index: finished PRIMARY, one row at a time. Locks: none.
SELECT STRAIGHT_JOIN {ended_columns}
FROM JSON_TABLE(?, {ids}) p
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = p.id
JOIN nightshift_queue q ON q.id = f.queue_id
{ended_holder}
WHERE (? IS NULL OR f.outcome = ?) AND {filter_ended}
ORDER BY f.id DESC LIMIT ?

-- name: report_jobs_child_live
-- Live jobs among some children, newest id first. Params: [id,…], those of claims_if, state or NULL
-- twice, filter, limit. Index: job PRIMARY, one row at a time; all leases, once. Locks: none.
SELECT STRAIGHT_JOIN {live_columns}
FROM JSON_TABLE(?, {ids}) p
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = p.id
JOIN nightshift_queue q ON q.id = j.queue_id
LEFT JOIN {claims_if}
WHERE (? IS NULL OR {state} = ?) AND {filter_live}
ORDER BY j.id DESC LIMIT ?

-- name: report_jobs_children
-- The last children of a job. Params: parent, an id: all below; the id that report_jobs_children_from
-- gives; limit. Index: child PRIMARY, a range: all children, index only. Locks: none.
SELECT id FROM nightshift_child FORCE INDEX (PRIMARY)
WHERE parent = ? AND id < ? AND id >= ? ORDER BY id DESC LIMIT ?

-- name: report_jobs_children_from
-- An id that is no larger than that of the last of so many children: few others are sorted. NULL:
-- there are none. Params: parent, an id: all below; how many. Index: child PRIMARY, a range,
-- backwards, index only. Locks: none.
SELECT MIN(v.id) AS id
FROM (SELECT id FROM nightshift_child FORCE INDEX (PRIMARY)
      WHERE parent = ? AND id < ? ORDER BY parent DESC, seq DESC, id DESC LIMIT ?) v

-- name: report_jobs_claimed
-- Which of some jobs are claimed. Params: the pattern of filter.claims for their ids, [[id,run],…].
-- Index: all leases, once. Locks: none.
SELECT t.id FROM nightshift_lease l, JSON_TABLE(l.jobs, {tokens}) t
WHERE l.jobs REGEXP ? AND (t.id, t.run) IN (SELECT v.id, v.run FROM JSON_TABLE(?, {tokens}) v)

-- name: report_jobs_claims
-- Are there more claims than so many? Params: how many. Index: leases, as far as is counted. Locks:
-- none.
SELECT t.id FROM nightshift_lease l, JSON_TABLE(l.jobs, {tokens}) t LIMIT 1 OFFSET ?

-- name: report_jobs_due
-- Jobs that are due and not yet moved into ready, oldest first: ready for all but a claim.
-- Params: filter, limit.
-- Index: scheduled PRIMARY, its first rows; job PRIMARY. Locks: none.
SELECT j.id, q.name AS queue, j.name, 'ready' AS state,
       {listed_columns}
FROM nightshift_scheduled s
STRAIGHT_JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
STRAIGHT_JOIN nightshift_queue q ON q.id = s.queue_id
WHERE s.run_at <= {now} AND {filter_live}
ORDER BY s.run_at, s.job_id LIMIT ?

-- name: report_jobs_ended_at
-- When a job ended. Params: id, outcome. Index: finished PRIMARY. Locks: none.
SELECT finished_at FROM nightshift_finished WHERE id = ? AND outcome = ?

-- name: report_jobs_ended_from
-- The last of so many jobs of an outcome, newest first. Params: outcome, µs that the oldest ended
-- at, µs twice and id to begin behind, how many less one. Index: outcome, a range, backwards, index
-- only. Locks: none.
SELECT id, finished_at FROM nightshift_finished FORCE INDEX (outcome)
WHERE outcome = ? AND finished_at >= ? AND finished_at <= ? AND (finished_at < ? OR id < ?)
ORDER BY finished_at DESC, id DESC LIMIT 1 OFFSET ?

-- name: report_jobs_finished
-- Finished jobs of one outcome, newest first. Params: as report_jobs_ended_from up to the id; queue
-- or NULL twice, how many of that are looked at; filter, limit. Index: outcome, a range, backwards,
-- index only, so that rows of other queues are passed by in it; finished PRIMARY. Locks: none.
SELECT {ended_columns}
FROM (SELECT id FROM nightshift_finished FORCE INDEX (outcome)
      WHERE outcome = ? AND finished_at >= ? AND finished_at <= ? AND (finished_at < ? OR id < ?)
        AND (? IS NULL OR queue_id = ?)
      ORDER BY finished_at DESC, id DESC LIMIT ?) v
STRAIGHT_JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
STRAIGHT_JOIN nightshift_queue q ON q.id = f.queue_id
{ended_holder}
WHERE {filter_ended}
ORDER BY f.finished_at DESC, f.id DESC LIMIT ?

-- name: report_jobs_from
-- Where a page of jobs by id begins and ends. Below an id, these are the ids of the last of so
-- many live jobs, and of so many ended ones. NULL: there are fewer. newest: of the live ones. Params:
-- id, how many less one, id, id, how many less one.
-- Index: job and finished PRIMARY, backwards. Locks: none.
SELECT (SELECT id FROM nightshift_job WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET ?) AS live,
  (SELECT id FROM nightshift_job WHERE id < ? ORDER BY id DESC LIMIT 1) AS newest,
  (SELECT id FROM nightshift_finished WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET ?) AS ended

-- name: report_jobs_page_ended
-- Ended jobs by id, newest first. Params: an id, all below; an id, that one and all above;
-- outcome or NULL twice, filter, limit. Index: finished PRIMARY, a range, backwards. Locks: none.
SELECT {ended_columns}
FROM nightshift_finished f FORCE INDEX (PRIMARY)
STRAIGHT_JOIN nightshift_queue q ON q.id = f.queue_id
{ended_holder}
WHERE f.id < ? AND f.id >= ? AND (? IS NULL OR f.outcome = ?) AND {filter_ended}
ORDER BY f.id DESC LIMIT ?

-- name: report_jobs_page_live
-- Live jobs by id, newest first. Params: those of claims_if; an id, all below; an id, that one and
-- all above; state or NULL twice, filter, limit. Index: job PRIMARY, a range, backwards; all leases,
-- once. Locks: none.
SELECT {live_columns}
FROM nightshift_job j FORCE INDEX (PRIMARY)
STRAIGHT_JOIN nightshift_queue q ON q.id = j.queue_id
LEFT JOIN {claims_if}
WHERE j.id < ? AND j.id >= ? AND (? IS NULL OR {state} = ?) AND {filter_live}
ORDER BY j.id DESC LIMIT ?

-- name: report_jobs_ready
-- Claimable jobs in claim order, queue by queue. A row of a job that is gone, or that has another
-- run, is one the next claim drops; it is left out.
-- Params: first queue id, the one behind the last, filter, limit.
-- Index: ready PRIMARY, range of queue_id (BETWEEN 1 AND 1 would become a ref
-- with a filesort of the whole queue); job PRIMARY. Locks: none.
SELECT j.id, q.name AS queue, j.name, 'ready' AS state,
       {listed_columns}
FROM nightshift_ready r FORCE INDEX (PRIMARY)
STRAIGHT_JOIN nightshift_job j ON j.id = r.job_id AND j.run = r.run
STRAIGHT_JOIN nightshift_queue q ON q.id = r.queue_id
WHERE r.queue_id >= ? AND r.queue_id < ? AND {filter_live}
ORDER BY r.queue_id, r.rank, r.ready_at, r.job_id LIMIT ?

-- name: report_jobs_running
-- Claimed jobs, longest claimed first, with their progress. Params: how many claims are looked
-- at, filter, limit. Index: lease PRIMARY (all leases, sorted), job and running PRIMARY. Locks:
-- none.
SELECT j.id, q.name AS queue, j.name, 'running' AS state,
       {listed_columns}, c.claimed, c.holder,
       r.worker, r.started, r.touched, r.progress, r.status
FROM (SELECT t.id, t.run, l.claimed, l.holder
      FROM (SELECT claimed, holder, jobs FROM nightshift_lease ORDER BY claimed, id LIMIT {end}) l
      STRAIGHT_JOIN JSON_TABLE(l.jobs, {tokens}) t LIMIT ?) c
STRAIGHT_JOIN nightshift_job j ON j.id = c.id AND j.run = c.run
STRAIGHT_JOIN nightshift_queue q ON q.id = j.queue_id
LEFT JOIN nightshift_running r ON r.job_id = j.id AND r.run = j.run
WHERE {filter_live}
ORDER BY c.claimed, j.id LIMIT ?

-- name: report_jobs_scheduled
-- Jobs due later, next first; without jobs that are parked for a signal. Params: filter, limit.
-- Index: scheduled PRIMARY (run_at, job_id); job PRIMARY. Locks: none.
SELECT j.id, q.name AS queue, j.name, 'scheduled' AS state,
       {listed_columns}
FROM nightshift_scheduled s
STRAIGHT_JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
STRAIGHT_JOIN nightshift_queue q ON q.id = s.queue_id
WHERE s.run_at > {now} AND {filter_live}
  AND NOT {awaits}
ORDER BY s.run_at, s.job_id LIMIT ?

-- name: report_jobs_tagged_ended
-- Ended jobs with a tag, newest id first. Params: tag, an id: all below; an id: that one and all
-- above; outcome or NULL twice, filter, limit. Index: tag, a range, backwards; finished PRIMARY.
-- Locks: none.
SELECT {ended_columns}
FROM nightshift_tag p FORCE INDEX (tag)
STRAIGHT_JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = p.job_id
STRAIGHT_JOIN nightshift_queue q ON q.id = f.queue_id
{ended_holder}
WHERE p.tag = ? AND p.job_id < ? AND p.job_id >= ? AND (? IS NULL OR f.outcome = ?)
  AND {filter_ended}
ORDER BY p.job_id DESC LIMIT ?

-- name: report_jobs_tagged_from
-- The first and the last of so many jobs with a tag, newest id first, and how many there are.
-- Params: tag, an id: all below; how many. Index: tag, a range, backwards, index only. Locks: none.
SELECT MAX(v.job_id) AS newest, MIN(v.job_id) AS last, COUNT(*) AS n
FROM (SELECT job_id FROM nightshift_tag FORCE INDEX (tag)
      WHERE tag = ? AND job_id < ? ORDER BY job_id DESC LIMIT ?) v

-- name: report_jobs_tagged_live
-- Live jobs with a tag, newest id first. Params: those of claims_if; tag, an id: all below; an id:
-- that one and all above; state or NULL twice, filter, limit. Index: tag, a range, backwards; job
-- PRIMARY; all leases, once. Locks: none.
SELECT {live_columns}
FROM nightshift_tag p FORCE INDEX (tag)
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = p.job_id
STRAIGHT_JOIN nightshift_queue q ON q.id = j.queue_id
LEFT JOIN {claims_if}
WHERE p.tag = ? AND p.job_id < ? AND p.job_id >= ? AND (? IS NULL OR {state} = ?)
  AND {filter_live}
ORDER BY p.job_id DESC LIMIT ?

-- name: report_jobs_waiting
-- Jobs that wait for other jobs, each once. The inner query stops as soon as it has found enough
-- different jobs. Paused ones without an edge are not among them. Params: filter, limit, limit.
-- Index: edge PRIMARY; job PRIMARY. Locks: none.
SELECT j.id, q.name AS queue, j.name, 'waiting' AS state,
       {listed_columns}, j.unmet, IF(j.paused > 0, j.paused, NULL) AS paused
FROM (SELECT DISTINCT e.job_id
      FROM nightshift_edge e
      STRAIGHT_JOIN nightshift_job j ON j.id = e.job_id AND j.unmet > 0
      WHERE {filter_live}
      LIMIT ?) e
STRAIGHT_JOIN nightshift_job j ON j.id = e.job_id
STRAIGHT_JOIN nightshift_queue q ON q.id = j.queue_id
ORDER BY j.id LIMIT ?

-- name: report_left
-- Jobs with other names than these, ready or scheduled for the next microseconds; none that wait
-- for a signal. Params: rows to look at, twice, microseconds, rows, [name,…], [queue,…] or NULL:
-- all, twice. Index: PRIMARY of ready and of backlog, from their start, and of scheduled, a range;
-- job and queue PRIMARY. Locks: none.
SELECT q.name AS queue, j.name, COUNT(*) AS n, SUM(r.ready_at > {now}) AS later,
  GREATEST(0, {now} - MIN(r.ready_at)) AS waited
FROM ((SELECT queue_id, ready_at, job_id, run, kind FROM nightshift_ready
       WHERE ready_at < {end} LIMIT ?)
      UNION ALL
      (SELECT queue_id, IF(ready_at = 0, 1, ready_at), job_id, run, kind FROM nightshift_backlog
       LIMIT ?)
      UNION ALL
      (SELECT queue_id, run_at, job_id, run, kind FROM nightshift_scheduled
       WHERE run_at <= {now} + ? ORDER BY run_at, job_id LIMIT ?)) r
JOIN nightshift_queue q ON q.id = r.queue_id AND NOT q.paused AND NOT {all_paused}
JOIN nightshift_job j ON j.id = r.job_id AND j.run = r.run AND NOT (r.ready_at > {now} AND {awaits})
WHERE r.kind NOT IN (SELECT CRC32(v.name)
    FROM JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(100) {bytes} PATH '$')) v)
  AND (? IS NULL OR JSON_CONTAINS(?, JSON_QUOTE(q.name)))
GROUP BY q.name, j.name ORDER BY n DESC, q.name, j.name LIMIT 20

-- name: report_limit_full
-- Params: queue, bound. Whether so many of its jobs wait, as nightshift_room counts them: a row of a
-- job that is gone does not count. Index: PRIMARY of ready and of backlog, ranges, up to the bound;
-- of job, row by row. Locks: none.
BEGIN NOT ATOMIC
  DECLARE v_queue INT DEFAULT ?;
  DECLARE v_bound BIGINT DEFAULT ?;
  DECLARE v_n BIGINT;
  SELECT COUNT(*) INTO v_n
  FROM (SELECT STRAIGHT_JOIN r.job_id FROM nightshift_ready r FORCE INDEX (PRIMARY)
    JOIN nightshift_job j FORCE INDEX (PRIMARY)
      ON j.id = r.job_id AND j.run = r.run AND j.queue_id = r.queue_id
    WHERE r.queue_id = v_queue AND r.job_id > 0 LIMIT v_bound) w;
  SELECT v_n + COUNT(*) INTO v_n
  FROM (SELECT STRAIGHT_JOIN b.job_id FROM nightshift_backlog b FORCE INDEX (PRIMARY)
    JOIN nightshift_job j FORCE INDEX (PRIMARY)
      ON j.id = b.job_id AND j.run = b.run AND j.queue_id = b.queue_id
    WHERE b.queue_id = v_queue LIMIT v_bound) w;
  SELECT v_n >= v_bound AS is_full;
END

-- name: report_limit_groups
-- The groups of a queue with the most jobs among the first of its backlog. Params: queue's name, how
-- many jobs are looked at, how many groups. Index: key name of queue; PRIMARY of limit, of backlog, a
-- range, and of group; of_group of grant. Locks: none.
SELECT b.group_key AS `group`, b.n AS waiting, {now} AS now, COALESCE(g.stopped, 0) AS stopped,
  COALESCE(g.next_at, 0) AS next_at, COALESCE(g.used, 0) AS used, l.group_rate, l.group_span,
  l.group_window, IF(l.ordered, 1, l.group_running) AS places,
  (SELECT COUNT(*) FROM nightshift_grant x
   STRAIGHT_JOIN nightshift_lease c FORCE INDEX (PRIMARY) ON c.id = x.lease
   WHERE x.queue_id = b.queue_id AND x.group_key = b.group_key) AS running
FROM (SELECT queue_id, group_key, COUNT(*) AS n
      FROM (SELECT queue_id, group_key FROM nightshift_backlog FORCE INDEX (PRIMARY)
            WHERE queue_id = (SELECT id FROM nightshift_queue WHERE name = ?)
            ORDER BY queue_id, group_key LIMIT ?) f
      GROUP BY queue_id, group_key ORDER BY n DESC, group_key LIMIT ?) b
STRAIGHT_JOIN nightshift_limit l FORCE INDEX (PRIMARY) ON l.queue_id = b.queue_id
LEFT JOIN nightshift_group g FORCE INDEX (PRIMARY)
  ON g.queue_id = b.queue_id AND g.group_key = b.group_key
ORDER BY b.n DESC, b.group_key

-- name: report_limit_job
-- The limit that a ready job is under, and how far its group is. ahead: the job that comes before it
-- in its group. Params: job. Index: PRIMARY of job, limit, queue, group; of backlog, the first row of
-- a group; of_group of grant, lease PRIMARY. Locks: none.
SELECT q.name AS queue, j.queue_id, COALESCE(j.group_key, '') AS `group`, l.running AS places, l.rate,
  l.rate_span, l.rate_window, l.next_at, l.used, l.stopped, l.stopped_by, l.group_running,
  l.group_rate, l.group_span, l.group_window, l.ordered, l.lifted, {now} AS now,
  g.stopped AS group_stopped, g.stopped_by AS group_stopped_by, g.next_at AS group_next_at, g.used AS group_used,
  (SELECT o.id FROM nightshift_job o FORCE INDEX (PRIMARY)
   WHERE o.id = g.head AND o.queue_id = g.queue_id AND o.group_key = g.group_key) AS head,
  (SELECT b.job_id FROM nightshift_backlog b FORCE INDEX (PRIMARY)
   STRAIGHT_JOIN nightshift_job o FORCE INDEX (PRIMARY) ON o.id = b.job_id AND o.run = b.run
   WHERE b.queue_id = j.queue_id AND b.group_key = COALESCE(j.group_key, '')
   ORDER BY b.queue_id, b.group_key, b.`rank`, b.ready_at, b.job_id LIMIT 1) AS first,
  (SELECT COUNT(*) FROM nightshift_grant x
   STRAIGHT_JOIN nightshift_lease c FORCE INDEX (PRIMARY) ON c.id = x.lease
   WHERE x.queue_id = j.queue_id) AS held
FROM nightshift_job j
STRAIGHT_JOIN nightshift_queue q FORCE INDEX (PRIMARY) ON q.id = j.queue_id AND q.limited
STRAIGHT_JOIN nightshift_limit l FORCE INDEX (PRIMARY) ON l.queue_id = j.queue_id
LEFT JOIN nightshift_group g FORCE INDEX (PRIMARY)
  ON g.queue_id = j.queue_id AND g.group_key = COALESCE(j.group_key, '')
WHERE j.id = ?

-- name: report_limit_running
-- Running jobs that have a place, the oldest first, and how many there are in all. Params: queue, a
-- group twice, NULL: of all, limit. Index: of_group of grant; PRIMARY of lease and of job. Locks:
-- none.
SELECT x.job_id AS id, j.name, x.since, COUNT(*) OVER () AS n
FROM nightshift_grant x FORCE INDEX (of_group)
STRAIGHT_JOIN nightshift_lease c FORCE INDEX (PRIMARY) ON c.id = x.lease
LEFT JOIN nightshift_job j ON j.id = x.job_id
WHERE x.queue_id = ? AND (? IS NULL OR x.group_key = ?)
ORDER BY x.since, x.job_id LIMIT ?

-- name: report_limits
-- Queues with limits or a bound, by name. held: running jobs that have a place. waiting: jobs in the
-- backlog, fresh: in ready, 10,000 of each at most. groups: with jobs in the backlog, 1,000 at
-- most; full_groups: no job of them can start. stopped_groups: of these, a job has asked for it;
-- stopped_until: the first of them goes on. Params: a queue's name twice, NULL: all. Index: PRIMARY
-- of queue, all rows; of limit; of group, backlog and ready, ranges; of job, row by row; of_group
-- of grant. Locks: none.
SELECT v.*,
  (SELECT COUNT(*) FROM nightshift_grant x
   STRAIGHT_JOIN nightshift_lease c FORCE INDEX (PRIMARY) ON c.id = x.lease
   WHERE x.queue_id = v.queue_id) AS held,
  IF(v.many, 10000, (SELECT COUNT(*) FROM nightshift_backlog b FORCE INDEX (PRIMARY)
    STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY)
      ON j.id = b.job_id AND j.run = b.run AND j.queue_id = b.queue_id
    WHERE b.queue_id = v.queue_id)) AS waiting,
  IF(v.many_fresh, 10000, (SELECT COUNT(*) FROM nightshift_ready r FORCE INDEX (PRIMARY)
    STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY)
      ON j.id = r.job_id AND j.run = r.run AND j.queue_id = r.queue_id
    WHERE r.queue_id = v.queue_id AND r.job_id > 0)) AS fresh,
  IF(v.many_groups, 1000, (SELECT COUNT(*) FROM nightshift_group g FORCE INDEX (PRIMARY)
    WHERE g.queue_id = v.queue_id AND g.job_id > 0)) AS `groups`,
  IF(v.many_groups, 0, (SELECT COUNT(*) FROM nightshift_group g FORCE INDEX (PRIMARY)
    WHERE g.queue_id = v.queue_id AND g.job_id > 0 AND g.group_key <> ''
      AND (g.stopped > v.now
        OR (v.ordered AND g.head <> g.job_id
          AND EXISTS(SELECT 1 FROM nightshift_job o WHERE o.id = g.head
            AND o.queue_id = g.queue_id AND o.group_key = g.group_key))
        OR (v.group_rate IS NOT NULL AND v.group_window AND g.used >= v.group_rate
            AND g.next_at + v.group_span > v.now)
        OR (v.group_rate IS NOT NULL AND NOT v.group_window
            AND g.next_at - v.group_span + v.group_span DIV v.group_rate > v.now)
        OR (SELECT COUNT(*) FROM nightshift_grant x
            STRAIGHT_JOIN nightshift_lease c FORCE INDEX (PRIMARY) ON c.id = x.lease
            WHERE x.queue_id = g.queue_id AND x.group_key = g.group_key)
          >= IF(v.ordered, 1, v.group_running)))) AS full_groups,
  IF(v.many_groups, 0, (SELECT COUNT(*) FROM nightshift_group g FORCE INDEX (PRIMARY)
    WHERE g.queue_id = v.queue_id AND g.job_id > 0 AND g.group_key <> '' AND g.stopped > v.now))
    AS stopped_groups,
  IF(v.many_groups, NULL, (SELECT MIN(g.stopped) FROM nightshift_group g FORCE INDEX (PRIMARY)
    WHERE g.queue_id = v.queue_id AND g.job_id > 0 AND g.group_key <> '' AND g.stopped > v.now))
    AS stopped_until
FROM (SELECT q.name AS queue, q.id AS queue_id, q.limited, q.backlog, l.running AS places, l.rate,
    l.rate_span, l.rate_window, l.group_running, l.group_rate, l.group_span, l.group_window,
    l.ordered, l.fair, l.next_at, l.used, COALESCE(l.stopped, 0) AS stopped, l.lifted, {now} AS now,
    (SELECT 1 FROM nightshift_backlog b FORCE INDEX (PRIMARY) WHERE b.queue_id = q.id
     ORDER BY b.queue_id, b.group_key LIMIT 1 OFFSET 10000) IS NOT NULL AS many,
    (SELECT 1 FROM nightshift_ready r FORCE INDEX (PRIMARY) WHERE r.queue_id = q.id
     ORDER BY r.queue_id, r.`rank` LIMIT 1 OFFSET 10000) IS NOT NULL AS many_fresh,
    (SELECT 1 FROM nightshift_group g FORCE INDEX (PRIMARY) WHERE g.queue_id = q.id
     ORDER BY g.queue_id, g.group_key LIMIT 1 OFFSET 1000) IS NOT NULL AS many_groups
  FROM nightshift_queue q FORCE INDEX (PRIMARY)
  LEFT JOIN nightshift_limit l FORCE INDEX (PRIMARY) ON l.queue_id = q.id
  WHERE (q.limited OR q.backlog > 0) AND (? IS NULL OR q.name = ?)
  LIMIT 9223372036854775807) v
ORDER BY v.queue

-- name: report_mended
-- Jobs and rows that were in no place, or in a wrong one, and have been repaired. Index: small
-- table.
SELECT what, n, last FROM nightshift_mended ORDER BY what

-- name: report_outcomes
-- The states of a few jobs; of ended ones since when. Params: [id,…]. Index: PRIMARY of job and
-- finished, one row at a time; all leases, for each live job. Locks: none.
SELECT STRAIGHT_JOIN v.id, COALESCE(j.name, f.name) AS name,
  IF(j.id IS NULL, f.outcome, {state}) AS state, f.finished_at
FROM JSON_TABLE(?, {ids}) v
LEFT JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
LEFT JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
LEFT JOIN {lease}
WHERE j.id IS NOT NULL OR f.id IS NOT NULL

-- name: report_outputs
-- What runs of a job have printed that have not failed, oldest first. Params: job id. Index: attempt
-- PRIMARY. Locks: none.
SELECT run, ended, log FROM nightshift_attempt
WHERE job_id = ? AND kind = 'printed'
ORDER BY run

-- name: report_owed
-- Sessions of this database that tell which verdicts their hosts owe (told: see holder_owes).
-- And sessions in which hosts and programs work, with the state of their waits. Params: none.
-- Index: none, all processes that our account may see; small table. Locks: none.
SELECT h.id AS holder, p.time_ms * 1000 AS lasted, p.state,
  p.command <> 'Sleep' AND p.time_ms > 1000 AS waits,
  IF(p.info LIKE 'DO SLEEP(1) /* nightshift owes %', p.info, NULL) AS told
FROM information_schema.processlist p
LEFT JOIN nightshift_holder h ON h.connection = p.id AND h.dead IS NULL
WHERE BINARY p.db = BINARY DATABASE()
  AND (h.id IS NOT NULL OR p.info LIKE 'DO SLEEP(1) /* nightshift owes %')

-- name: report_paused_names
-- The names of jobs that are paused, µs since when. Index: PRIMARY, all rows: they are few.
-- Locks: none.
SELECT name, since FROM nightshift_paused_name ORDER BY name

-- name: report_pauses
-- Is any job paused? Index: PRIMARY, one row. Locks: none.
SELECT id FROM nightshift_pause LIMIT 1

-- name: report_place
-- The database and server, named the same for all sessions. Key: none. Locks: none.
SELECT CONCAT_WS(':', @@hostname, @@port, @@datadir, DATABASE()) AS place

-- name: report_progress
-- Jobs that show how far they are, the longest first. Params: limit. Index: all rows of
-- running; PRIMARY of job, queue and holder. Locks: none.
SELECT j.id, q.name AS queue, j.name, r.holder, h.host, h.pid, r.worker, r.started, r.touched,
  r.progress, r.status
FROM nightshift_running r
STRAIGHT_JOIN nightshift_job j ON j.id = r.job_id AND j.run = r.run
STRAIGHT_JOIN nightshift_queue q ON q.id = j.queue_id
LEFT JOIN nightshift_holder h ON h.id = r.holder
WHERE r.progress IS NOT NULL OR r.status <> ''
ORDER BY r.started, r.job_id LIMIT ?

-- name: report_prunable
-- How much history of each outcome a prune would delete.
-- Params: end of done, of dead and of cancelled (µs; 0: none).
-- Index: finished outcome (outcome, finished_at), index only. Locks: none.
SELECT outcome, COUNT(*) AS n
FROM nightshift_finished
WHERE (outcome = 'done' AND finished_at < ?)
   OR (outcome = 'dead' AND finished_at < ?) OR (outcome = 'cancelled' AND finished_at < ?)
GROUP BY outcome

-- name: report_pushed
-- Jobs that were pushed into the first hundred queues, in the order in which those were made; NULL:
-- into all queues. Index: PRIMARY of queue, its first rows; of minute, one row each. Locks: none.
SELECT q.name AS queue, q.removed, COALESCE(m.pushed, 0) AS pushed
FROM (SELECT id, name, removed FROM nightshift_queue FORCE INDEX (PRIMARY) ORDER BY id LIMIT 100) q
LEFT JOIN nightshift_minute m FORCE INDEX (PRIMARY)
  ON m.minutes = 0 AND m.at = 0 AND m.queue_id = q.id
UNION ALL
SELECT NULL, FALSE, pushed FROM nightshift_minute
WHERE minutes = 0 AND at = 0 AND queue_id = 0

-- name: report_rates
-- Jobs that have ended in each queue, in so many minutes up to the last that has been over for 15
-- seconds. Params: how many. Index: PRIMARY of minute, a range of its last minutes. Locks: none.
SELECT STRAIGHT_JOIN q.name AS queue,
  CAST(SUM(m.done + m.dead + m.cancelled) AS SIGNED) AS ended
FROM (SELECT CAST(? AS SIGNED) AS n, ({now} - 15000000) DIV 60000000 * 60000000 AS told) s
JOIN nightshift_minute m FORCE INDEX (PRIMARY)
  ON m.minutes = 1 AND m.at >= s.told - s.n * 60000000 AND m.at < s.told
JOIN nightshift_queue q FORCE INDEX (PRIMARY) ON q.id = m.queue_id
GROUP BY q.id

-- name: report_reload
-- Hosts that are not known dead, with the outcome of the last reading of their scripts. age: µs
-- since they registered; silent: µs since their last beat. Index: small tables; PRIMARY of
-- served. Locks: none.
SELECT h.id, h.host, h.pid, h.boot_id AS place, {now} - h.started AS age,
  {now} - h.beat AS silent, s.scripts, s.load_began, s.load_error,
  IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', h.id)) AS free
FROM nightshift_holder h
LEFT JOIN nightshift_served s ON s.holder = h.id
WHERE h.kind = 'host' AND h.dead IS NULL
ORDER BY h.id

-- name: report_retention
-- How long ended jobs are kept; queue NULL: of all queues. Index: PRIMARY of retention, all rows:
-- they are few; queue PRIMARY. Locks: none.
SELECT r.queue_id AS id, q.name AS queue, r.outcome, r.age, r.most
FROM nightshift_retention r LEFT JOIN nightshift_queue q ON q.id = r.queue_id
ORDER BY r.queue_id = 0 DESC, q.name, r.outcome

-- name: report_retrying
-- Jobs that wait for another attempt, among the first of scheduled; the last that failed first.
-- Params: how many are looked at, limit. Index: PRIMARY of scheduled, job, attempt and queue. Locks:
-- none.
SELECT j.id, q.name AS queue, j.name, j.due, LEFT({live_error}, 300) AS error, a.ended
{retrying}
STRAIGHT_JOIN nightshift_queue q FORCE INDEX (PRIMARY) ON q.id = j.queue_id
ORDER BY a.ended DESC, j.id DESC LIMIT ?

-- name: report_running
-- Jobs that have run for about a second, the longest first, or one of them. Params: job id or NULL
-- twice, limit. Index: all rows of running, which has jobs that run long; PRIMARY of job, queue and
-- holder. Locks: none.
SELECT j.id, q.name AS queue, j.name, r.run, r.holder, h.host, h.pid, r.worker, r.started,
  r.touched, r.progress, r.status
FROM nightshift_running r
STRAIGHT_JOIN nightshift_job j ON j.id = r.job_id AND j.run = r.run
STRAIGHT_JOIN nightshift_queue q ON q.id = j.queue_id
LEFT JOIN nightshift_holder h ON h.id = r.holder
WHERE ? IS NULL OR r.job_id = ?
ORDER BY r.started, r.job_id LIMIT ?

-- name: report_scale_backlog
-- Queues with limits, and the jobs in their backlogs; n is NULL where there are more than so many.
-- oldest: of the job that comes first, where there are more. Params: how many. Index: PRIMARY of
-- limit, all rows; of backlog, so many rows of a queue; of job; key best of group, one row.
-- Locks: none.
SELECT v.queue_id, v.running, v.rate, v.rate_span,
  IF(v.many, NULL, (SELECT COUNT(*) FROM nightshift_backlog b FORCE INDEX (PRIMARY)
    STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = b.job_id AND j.run = b.run
    WHERE b.queue_id = v.queue_id)) AS n,
  IF(v.many, COALESCE(
    (SELECT g.ready_at FROM nightshift_group g FORCE INDEX (best)
     WHERE g.queue_id = v.queue_id AND g.blocked = 0 AND g.job_id > 0
     ORDER BY g.rank, g.ready_at, g.job_id LIMIT 1),
    (SELECT b.ready_at FROM nightshift_backlog b FORCE INDEX (PRIMARY)
     WHERE b.queue_id = v.queue_id
     ORDER BY b.queue_id, b.group_key, b.rank, b.ready_at, b.job_id LIMIT 1)),
    (SELECT MIN(b.ready_at) FROM nightshift_backlog b FORCE INDEX (PRIMARY)
     STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = b.job_id AND j.run = b.run
     WHERE b.queue_id = v.queue_id)) AS oldest
FROM (SELECT l.queue_id, IF(l.lifted, NULL, l.running) AS running,
        IF(l.lifted, NULL, l.rate) AS rate, l.rate_span,
        (SELECT 1 FROM nightshift_backlog b FORCE INDEX (PRIMARY)
         WHERE b.queue_id = l.queue_id
         ORDER BY b.queue_id, b.group_key, b.rank, b.ready_at, b.job_id LIMIT 1 OFFSET ?) IS NOT NULL
        AS many
      FROM nightshift_limit l LIMIT {end}) v

-- name: report_scale_backlog_all
-- Rows of each queue in the backlog, within two seconds. Index: backlog PRIMARY, all of it, index
-- only. Locks: none.
SET STATEMENT max_statement_time=2 FOR
SELECT queue_id, COUNT(*) AS n FROM nightshift_backlog FORCE INDEX (PRIMARY) GROUP BY queue_id

-- name: report_scale_backlog_guess
-- How many rows of a queue the server supposes in the backlog: `rows`, about a half to twice as many
-- as there are. Params: queue. Index: PRIMARY of backlog, some pages. Locks: none.
EXPLAIN SELECT 1 FROM nightshift_backlog FORCE INDEX (PRIMARY) WHERE queue_id = ?

-- name: report_scale_counted
-- What report_scale_backlog_all and report_scale_ready_all have last found, and when: rows, the µs
-- that it took. Params: "backlog:%" or "ready:%". Index: meta PRIMARY, a range. Locks: none.
SELECT CAST(SUBSTRING_INDEX(name, ':', -1) AS SIGNED) AS queue_id, value AS counted
FROM nightshift_meta WHERE name LIKE ?

-- name: report_scale_holders
-- Holders that are not known dead, with the queues and workers of hosts. Params: none. Index: all
-- holders, they are few; PRIMARY of served. Locks: none.
SELECT h.id, h.kind, h.busy, s.workers, s.queues, s.reserves, {now} - h.beat AS silent,
  IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', h.id)) AS free
FROM nightshift_holder h
LEFT JOIN nightshift_served s ON s.holder = h.id
WHERE h.dead IS NULL
ORDER BY h.id

-- name: report_scale_long
-- Jobs that have run for longer than some microseconds, by queue. Params: microseconds. Index: all
-- rows of running, which has jobs that run long; job PRIMARY. Locks: none.
SELECT j.queue_id, COUNT(*) AS n
FROM nightshift_running r
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = r.job_id AND j.run = r.run
WHERE r.started < {now} - ?
GROUP BY j.queue_id

-- name: report_scale_minutes
-- What has happened by queue, in so many minutes up to the last that has been over for 15 seconds.
-- The same of the hour up to it. Params: minutes. Index: PRIMARY of minute, a range of the last hour.
-- Locks: none.
SELECT STRAIGHT_JOIN m.queue_id,
  CAST(SUM(IF(m.at >= s.since, m.pushed, 0)) AS SIGNED) AS pushed,
  CAST(SUM(IF(m.at >= s.since, m.done + m.dead, 0)) AS SIGNED) AS ended,
  CAST(SUM(IF(m.at >= s.since, m.runs, 0)) AS SIGNED) AS runs,
  CAST(SUM(IF(m.at >= s.since, m.ran, 0)) AS SIGNED) AS ran,
  CAST(SUM(m.done + m.dead) AS SIGNED) AS hour_ended,
  CAST(SUM(m.runs) AS SIGNED) AS hour_runs, CAST(SUM(m.ran) AS SIGNED) AS hour_ran
FROM (SELECT t.told, t.told - t.n * 60000000 AS since
      FROM (SELECT CAST(? AS SIGNED) AS n, ({now} - 15000000) DIV 60000000 * 60000000 AS told) t) s
JOIN nightshift_minute m FORCE INDEX (PRIMARY)
  ON m.minutes = 1 AND m.at >= s.told - 3600000000 AND m.at < s.told
WHERE m.queue_id > 0
GROUP BY m.queue_id

-- name: report_scale_ready
-- Rows of each queue in ready, and since when the oldest is; n is NULL for queues that have more than
-- so many. Params: how many. Index: queue PRIMARY; ready PRIMARY, so many rows of a queue, index
-- only. Locks: none.
SELECT c.queue_id, CAST(SUBSTRING_INDEX(c.counted, ' ', 1) AS SIGNED) AS n,
  CAST(NULLIF(SUBSTRING(c.counted, LOCATE(' ', c.counted) + 1), '') AS SIGNED) AS oldest
FROM (SELECT v.id AS queue_id, IF(v.many, NULL,
        (SELECT CONCAT(COUNT(*), ' ', COALESCE(MIN(r.ready_at), '')) FROM nightshift_ready r FORCE INDEX (PRIMARY)
         WHERE r.queue_id = v.id AND r.ready_at < {end})) AS counted
      FROM (SELECT q.id, (SELECT 1 FROM nightshift_ready r FORCE INDEX (PRIMARY)
              WHERE r.queue_id = q.id AND r.ready_at < {end}
              ORDER BY r.queue_id, r.rank, r.ready_at, r.job_id LIMIT 1 OFFSET ?) IS NOT NULL AS many
            FROM nightshift_queue q FORCE INDEX (PRIMARY) LIMIT {end}) v
      LIMIT {end}) c

-- name: report_scale_ready_all
-- Rows of each queue in ready, within two seconds: a million take an eighth of one. Index: ready
-- PRIMARY, all of it, index only. Locks: none.
SET STATEMENT max_statement_time=2 FOR
SELECT queue_id, CAST(COUNT(*) - SUM(job_id = 0) AS SIGNED) AS n
FROM nightshift_ready FORCE INDEX (PRIMARY) GROUP BY queue_id

-- name: report_scale_ready_guess
-- As report_scale_backlog_guess, of ready. Params: queue. Index: PRIMARY of ready, some pages. Locks:
-- none.
EXPLAIN SELECT 1 FROM nightshift_ready FORCE INDEX (PRIMARY) WHERE queue_id = ?

-- name: report_scale_scheduled
-- Rows of scheduled that are due later, among so many. Params: how many. Index: scheduled PRIMARY.
-- Locks: none.
SELECT s.queue_id, COUNT(*) AS n, MIN(s.run_at) AS next, COUNT(*) AS looked
FROM (SELECT queue_id, run_at FROM nightshift_scheduled
      WHERE run_at > {now} ORDER BY run_at, job_id LIMIT ?) s
GROUP BY s.queue_id

-- name: report_schedules_failed
-- Schedules with jobs that could not be pushed, and why. Params: limit. Index: small table.
-- Locks: none.
SELECT name, error FROM nightshift_schedule WHERE error IS NOT NULL ORDER BY name LIMIT ?

-- name: report_schema
-- The version of the tables. Index: meta PRIMARY. Locks: none.
SELECT value FROM nightshift_meta WHERE name = 'schema'

-- name: report_series
-- What has happened in the last buckets of so many minutes, in the order of the list. The newest has
-- the last minute that has been over for 15 seconds. Params: minutes of a bucket, queue's name or
-- NULL: all, twice, [n,…]: how many buckets before the newest. Index: PRIMARY, one row at a time.
-- Locks: none.
SELECT STRAIGHT_JOIN s.newest - v.id * s.us AS at, COALESCE(m.done, 0) AS done,
  COALESCE(m.failed, 0) AS failed, COALESCE(m.dead, 0) AS dead,
  COALESCE(m.cancelled, 0) AS cancelled, COALESCE(m.pushed, 0) AS pushed,
  COALESCE(m.waits, 0) AS waits, COALESCE(m.waited, 0) AS waited,
  COALESCE(m.longest_wait, 0) AS longest_wait, COALESCE(m.runs, 0) AS runs,
  COALESCE(m.ran, 0) AS ran, COALESCE(m.longest_run, 0) AS longest_run
FROM (SELECT p.minutes, p.minutes * 60000000 AS us, p.queue_id,
        (p.told - 1) DIV (p.minutes * 60000000) * (p.minutes * 60000000) AS newest
      FROM (SELECT CAST(? AS SIGNED) AS minutes,
              ({now} - 15000000) DIV 60000000 * 60000000 AS told,
              IF(? IS NULL, 0, (SELECT id FROM nightshift_queue WHERE name = ?)) AS queue_id) p) s
JOIN JSON_TABLE(?, {ids}) v
LEFT JOIN nightshift_minute m FORCE INDEX (PRIMARY)
  ON m.minutes = s.minutes AND m.at = s.newest - v.id * s.us AND m.queue_id = s.queue_id
ORDER BY v.id DESC

-- name: report_served
-- The handlers of hosts: of live ones and of the ones that ended within a minute. Params: none.
-- Index: small tables. Locks: none.
SELECT s.queues, s.handlers, h.id IS NOT NULL AND h.dead IS NULL AS lives
FROM nightshift_served s LEFT JOIN nightshift_holder h ON h.id = s.holder
WHERE (h.id IS NOT NULL AND h.dead IS NULL)
  OR GREATEST(COALESCE(s.ended, 0), COALESCE(h.dead, 0)) > {now} - 60000000

-- name: report_server
-- The server's version and the database. Locks: none.
SELECT VERSION() AS version, DATABASE() AS db

-- name: report_shard
-- The first block of ids that the database may give, and the first that it has not taken from the
-- sequence so far. Params: none. Index: none, one row. Locks: none.
SELECT minimum_value AS low, next_not_cached_value AS next FROM nightshift_id

-- name: report_sign
-- Two texts. One is another when jobs have changed, and one when hosts or settings have. Changes that
-- leave all of their numbers as they were are not seen. Params: none. Index: PRIMARY of job, lease
-- and scheduled, one row each; outcome, and audit, the last of each; small tables, whole. Locks:
-- none.
SELECT CONCAT_WS(' ',
  (SELECT MAX(id) FROM nightshift_job),
  (SELECT CONCAT(MAX(id), ':', MIN(id)) FROM nightshift_lease),
  (SELECT CONCAT(job_id, ':', run) FROM nightshift_scheduled ORDER BY run_at, job_id LIMIT 1),
  (SELECT MAX(run_at) FROM nightshift_scheduled),
  (SELECT MAX(finished_at) FROM nightshift_finished WHERE outcome = 'done'),
  (SELECT MAX(finished_at) FROM nightshift_finished WHERE outcome = 'dead'),
  (SELECT MAX(finished_at) FROM nightshift_finished WHERE outcome = 'cancelled'),
  (SELECT CONCAT(COUNT(*), ':', MAX(touched)) FROM nightshift_running),
  (SELECT SUM(CRC32(CONCAT_WS(' ', id, busy, leaving))) FROM nightshift_holder),
  (SELECT SUM(CRC32(CONCAT_WS(' ', name, next_at, skipped))) FROM nightshift_schedule)) AS work,
  CONCAT_WS(' ',
  (SELECT CONCAT(COUNT(*), ':', SUM(paused), ':', SUM(removed)) FROM nightshift_queue),
  {paused_mark}, {all_paused},
  (SELECT CONCAT(COUNT(*), ':', MAX(id)) FROM nightshift_pause),
  (SELECT SUM(CRC32(CONCAT_WS(' ', id, dead, workers, loads, old_scripts)))
   FROM nightshift_holder),
  (SELECT SUM(CRC32(CONCAT_WS(' ', holder, wanted, tuned, load_error))) FROM nightshift_served),
  (SELECT SUM(CRC32(CONCAT_WS(' ', name, paused, error))) FROM nightshift_schedule),
  (SELECT SUM(CRC32(CONCAT_WS(' ', tab, rate))) FROM nightshift_source),
  (SELECT CONCAT(id, ':', jobs) FROM nightshift_audit ORDER BY id DESC LIMIT 1)) AS settings

-- name: report_sign_jobs
-- For each of some jobs a text that is another one when it has changed. A claim shows after a second,
-- by the row of running. Params: [id,…]. Index: PRIMARY of job, running and finished, one row at a
-- time. Locks: none.
SELECT STRAIGHT_JOIN v.id, CONCAT_WS(' ', j.run, j.due, j.unmet, j.rank, j.attempts, j.queue_id,
  j.paused, j.awaits, r.run, r.touched, f.finished_at, f.outcome, f.queue_id) AS sign
FROM JSON_TABLE(?, {ids}) v
LEFT JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
LEFT JOIN nightshift_running r FORCE INDEX (PRIMARY) ON r.job_id = v.id
LEFT JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id

-- name: report_slots
-- Slots that are held; rows with an owner that is gone are free ones and left out.
-- Params: none. Index: slot PRIMARY (all; they are few), job and holder
-- PRIMARY. Locks: none.
SELECT s.name, s.slot, s.job_id AS job, s.run, s.holder, s.since
FROM nightshift_slot s
LEFT JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
LEFT JOIN nightshift_holder h ON h.id = s.holder AND h.dead IS NULL
WHERE j.id IS NOT NULL OR h.id IS NOT NULL
ORDER BY s.name, s.slot

-- name: report_tuned
-- Hosts that are not known dead, with the number of workers that they are to have. And the outcome
-- of the last number that they were told. Params: none. Index: small tables; PRIMARY of served.
-- Locks: none.
SELECT h.id, h.host, h.pid, s.wanted, s.tuned, s.refused
FROM nightshift_holder h JOIN nightshift_served s ON s.holder = h.id
WHERE h.kind = 'host' AND h.dead IS NULL
ORDER BY h.id

-- name: report_waiters
-- Jobs that wait for this one. Params: job id, limit.
-- Index: edge PRIMARY (on_id, job_id), job PRIMARY. Locks: none. An edge may have outlived its job.
SELECT e.job_id FROM nightshift_edge e STRAIGHT_JOIN nightshift_job j ON j.id = e.job_id
WHERE e.on_id = ? ORDER BY e.job_id LIMIT ?

-- name: report_why_ahead
-- The rows at the head of a queue, in the order of claiming; live: 0 for rows that the next
-- claim drops. Params: queue id, limit. Index: ready PRIMARY, from the queue's start; job
-- PRIMARY. Locks: none.
SELECT r.job_id AS id, j.id IS NOT NULL AS live
FROM (SELECT rank, ready_at, job_id, run FROM nightshift_ready FORCE INDEX (PRIMARY)
      WHERE queue_id = ? AND ready_at < {end}
      ORDER BY queue_id, rank, ready_at, job_id LIMIT ?) r
LEFT JOIN nightshift_job j ON j.id = r.job_id AND j.run = r.run
ORDER BY r.rank, r.ready_at, r.job_id

-- name: report_why_attempt
-- The last failed, crashed or lost attempt. Params: job id. Index: attempt
-- PRIMARY (job_id, run), backwards. Locks: none.
SELECT run, kind, ended, LEFT(error, 300) AS error
FROM nightshift_attempt
WHERE job_id = ? AND kind <> 'printed'
ORDER BY run DESC LIMIT 1

-- name: report_why_busy
-- How many jobs a holder has, up to so many. Params: holder, how many. Index: key holder of lease,
-- job PRIMARY. Locks: none.
SELECT COUNT(*) AS n
FROM (SELECT 1 FROM nightshift_lease l
      STRAIGHT_JOIN JSON_TABLE(l.jobs, {tokens}) c
      STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = c.id AND j.run = c.run
      WHERE l.holder = ? LIMIT ?) x

-- name: report_why_children
-- The first children that live. Params: job id, the most children to look at,
-- limit. Index: child PRIMARY, a range; job PRIMARY. Locks: none.
SELECT j.id
FROM (SELECT seq, id FROM nightshift_child WHERE parent = ? ORDER BY seq, id LIMIT ?) c
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = c.id
ORDER BY c.seq, c.id LIMIT ?

-- name: report_why_children_count
-- How many children a job has. Params: job id, the most to count. Index: child
-- PRIMARY, a range. Locks: none.
SELECT COUNT(*) AS n FROM (SELECT 1 FROM nightshift_child WHERE parent = ? LIMIT ?) c

-- name: report_why_claim
-- The holder of a claim, and the progress of the job. shown: how many jobs of the holder do.
-- Params: job id, lease. Index: PRIMARY of lease, holder, served and running; all rows of
-- running: only jobs that run long have one. Locks: none.
SELECT l.claimed, l.holder, h.kind, h.host, h.pid, h.dead, s.workers,
  r.started, r.progress, r.status, {now} AS now, {now} - h.beat AS silent,
  IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', h.id)) AS free,
  (SELECT COUNT(*) FROM nightshift_running x
   STRAIGHT_JOIN nightshift_job o FORCE INDEX (PRIMARY) ON o.id = x.job_id AND o.run = x.run
   WHERE x.holder = l.holder) AS shown
FROM nightshift_lease l
LEFT JOIN nightshift_holder h ON h.id = l.holder
LEFT JOIN nightshift_served s ON s.holder = l.holder
LEFT JOIN nightshift_running r ON r.job_id = ? AND r.holder = l.holder
WHERE l.id = ?

-- name: report_why_finished
-- Params: job id. Index: finished and queue PRIMARY. Locks: none.
SELECT f.id, f.name, q.name AS queue, f.outcome, f.reason, LEFT(f.error, 300) AS error,
  f.finished_at, {now} AS now
FROM nightshift_finished f
JOIN nightshift_queue q ON q.id = f.queue_id
WHERE f.id = ?

-- name: report_why_held
-- How many jobs of which queue a holder has. Params: holder. Index: key holder of
-- lease, job and queue PRIMARY. Locks: none.
SELECT q.name AS queue, COUNT(*) AS n
FROM nightshift_lease l
STRAIGHT_JOIN JSON_TABLE(l.jobs, {tokens}) c
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = c.id AND j.run = c.run
STRAIGHT_JOIN nightshift_queue q ON q.id = j.queue_id
WHERE l.holder = ?
GROUP BY q.name

-- name: report_why_hosts
-- Live holders, with their handlers. Params: none. Index: all holders, they are few; PRIMARY of
-- served. Locks: none.
SELECT h.id, h.kind, h.host, h.pid, s.workers, s.queues, s.handlers, s.reserves, {now} - h.beat AS silent,
  IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', h.id)) AS free
FROM nightshift_holder h
LEFT JOIN nightshift_served s ON s.holder = h.id
WHERE h.dead IS NULL
ORDER BY h.id

-- name: report_why_job
-- A live job; lease: the claim of its present run. Params: job id. Index: job, queue and
-- paused_name PRIMARY; all leases, they are few. Locks: none.
SELECT j.id, j.name, j.queue_id, q.name AS queue, q.paused AS queue_paused, j.run,
  {all_paused} AS all_paused,
  (SELECT COUNT(*) FROM nightshift_paused_name p WHERE p.name = j.name) AS name_paused,
  j.attempts, j.polls, j.crashes, j.lost, j.missed, j.missing_since,
  j.max_attempts, j.max_polls, j.max_crashes, j.due, j.deadline, j.unmet, j.waits, j.awaits,
  j.parent, j.paused, j.phase, {now} AS now, c.id AS lease, {state} AS state
FROM nightshift_job j
JOIN nightshift_queue q ON q.id = j.queue_id
LEFT JOIN {lease}
WHERE j.id = ?

-- name: report_why_locks
-- Do named locks tell which holders live? See holder_locks.
SELECT NOT EXISTS(SELECT 1 FROM nightshift_meta
    WHERE name = 'named_locks' AND value = 'off') AS serve

-- name: report_why_signals
-- Signals that have come and that a job does not wait for. Params: job id, limit. Index:
-- signal and job PRIMARY. Locks: none.
SELECT s.name FROM nightshift_signal s
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = s.job_id
WHERE s.job_id = ? AND s.name NOT IN (COALESCE(j.awaits, ''), '')
ORDER BY s.sent DESC LIMIT ?

-- name: report_why_slots
-- The owners of the slots of a lock or semaphore; rows of owners that are gone are free ones.
-- Params: name, limit. Index: slot PRIMARY, a range; job and holder PRIMARY. Locks: none.
SELECT s.slot, j.id, j.name, h.host, h.pid, s.since
FROM nightshift_slot s
LEFT JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
LEFT JOIN nightshift_holder h ON h.id = s.holder AND h.dead IS NULL
WHERE s.name = ? AND (j.id IS NOT NULL OR h.id IS NOT NULL)
ORDER BY s.slot LIMIT ?

-- name: report_why_targets
-- Jobs that a job waits for: its parent, and the targets found among so many edges to either
-- side of its own id. Params: parent or NULL, job, job, edges, job, limit, job, edges, job,
-- limit, limit. Index: edge PRIMARY (on_id, job_id), one row and two ranges. Locks: none.
(SELECT on_id AS id FROM nightshift_edge WHERE on_id = ? AND job_id = ?)
UNION
(SELECT e.on_id FROM (
   SELECT on_id, job_id FROM nightshift_edge WHERE on_id > ?
   ORDER BY on_id, job_id LIMIT ?) e
 WHERE e.job_id = ? LIMIT ?)
UNION
(SELECT e.on_id FROM (
   SELECT on_id, job_id FROM nightshift_edge WHERE on_id < ?
   ORDER BY on_id DESC, job_id DESC LIMIT ?) e
 WHERE e.job_id = ? LIMIT ?)
ORDER BY id LIMIT ?
