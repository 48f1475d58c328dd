-- What db:why asks: the facts about one job and about those who could run it.
-- Nothing here writes and nothing locks. Everything is found by key, except
-- leases and holders, which are few, and edges, which have no key by the job that
-- waits: of those a bounded stretch around the job is looked at. Sorted by name.

-- name: report_why_ahead
-- The rows at the head of a queue, in the order of claiming; live: 0 for those
-- that the next claim drops. Params: queue id, limit. Index: ready PRIMARY, from
-- the queue's start; job PRIMARY. Locks: none.
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
WHERE job_id = ?
ORDER BY run DESC LIMIT 1

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
-- Who has a claim, and what the job shows of itself. shown: how many jobs of the
-- holder do. Params: job id, lease. Index: PRIMARY of lease, holder, served and
-- running; all of running, that are those which run for long. Locks: none.
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
-- Who lives, with what he can run and how many jobs he holds. Params: none.
-- Index: all holders, they are few; PRIMARY of served, key holder of lease, job
-- PRIMARY. Locks: none.
SELECT h.id, h.kind, h.host, h.pid, s.workers, s.queues, s.handlers, s.reserves, {now} - h.beat AS silent,
  IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', h.id)) AS free,
  (SELECT COUNT(*) FROM nightshift_lease l
   STRAIGHT_JOIN JSON_TABLE(l.jobs, {tokens}) c
   STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = c.id AND j.run = c.run
   WHERE l.holder = h.id) AS held
FROM nightshift_holder h
LEFT JOIN nightshift_served s ON s.holder = h.id
WHERE h.dead IS NULL
ORDER BY h.id

-- name: report_why_job
-- A live job; lease: the claim of its present run. Params: job id. Index: job and
-- queue PRIMARY; all leases, they are few. Locks: none.
SELECT j.id, j.name, j.queue_id, q.name AS queue, q.paused AS queue_paused, j.run,
  j.attempts, j.polls, j.crashes, j.lost, j.missed, j.missing_since,
  j.max_attempts, j.max_polls, j.max_crashes, j.due, j.deadline, j.unmet, j.waits, j.awaits,
  j.parent, j.paused, j.phase, {now} AS now, c.id AS lease, {state} AS state
FROM nightshift_job j
JOIN nightshift_queue q ON q.id = j.queue_id
LEFT JOIN {lease}
WHERE j.id = ?

-- name: report_why_locks
-- Whether named locks tell who lives: see holder_locks.
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
-- Who has the slots of a lock or semaphore; rows of owners that are gone are free
-- ones. Params: name, limit. Index: slot PRIMARY, a range; job and holder PRIMARY.
-- Locks: none.
SELECT s.slot, j.id, j.name, h.host, h.pid, s.since
FROM nightshift_slot s
LEFT JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
LEFT JOIN nightshift_holder h ON h.id = s.holder AND h.dead IS NULL
WHERE s.name = ? AND (j.id IS NOT NULL OR h.id IS NOT NULL)
ORDER BY s.slot LIMIT ?

-- name: report_why_targets
-- Jobs that a job waits for: its parent, and what is found among so many edges to
-- either side of its own id. Params: parent or NULL, job, job, edges, job, limit,
-- job, edges, job, limit, limit. Index: edge PRIMARY (on_id, job_id), one row and
-- two ranges. Locks: none.
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
