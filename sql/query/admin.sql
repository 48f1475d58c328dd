-- Verbs from outside, each of which locks the job's row first, what they leave in the audit
-- (audit_…), and pruning (prune_…). Sorted by name.

-- name: admin_after
-- Params: job, twice. As edge_after, also of a job that has ended.
SELECT a.id
FROM (SELECT id, parent, after_ids FROM nightshift_job WHERE id = ?
      UNION ALL SELECT id, parent, after_ids FROM nightshift_finished WHERE id = ?) w
STRAIGHT_JOIN JSON_TABLE(w.after_ids,
  '$[*]' COLUMNS (n FOR ORDINALITY, id BIGINT PATH '$')) a
LEFT JOIN nightshift_job j ON j.id = a.id
LEFT JOIN nightshift_finished f ON f.id = a.id
WHERE a.id <> COALESCE(w.parent, 0) AND COALESCE(j.parent, f.parent, 0) <> w.id
ORDER BY a.n

-- name: admin_below
-- Params: job. Key: PRIMARY of child, one row. A row: jobs below it are, or were, there.
SELECT id FROM nightshift_child WHERE parent = ? LIMIT 1

-- name: admin_claimers
-- Key: none, all holders: they are few.
SELECT id FROM nightshift_holder WHERE dead IS NULL

-- name: admin_due_now
-- Params: job. Key: PRIMARY of job, locked by admin_lock.
UPDATE nightshift_job SET run = run + 1, due = {now} WHERE id = ?

-- name: admin_finished
-- Params: job. Key: PRIMARY of finished; locks the row.
SELECT outcome, run, queue_id, ukey, priority, parent, CRC32(name)
FROM nightshift_finished
WHERE id = ? FOR UPDATE

-- name: admin_forget
-- Params: job. Key: PRIMARY of finished, locked by admin_finished.
DELETE nightshift_finished FROM nightshift_finished WHERE id = ?

-- name: admin_held
-- Params: job, run. Key: none, leases are few. No locks. A row: the job is claimed.
SELECT c.holder FROM (SELECT ? AS id, ? AS run) j JOIN {lease}

-- name: admin_info
-- Params: job. Key: PRIMARY of job; running by PRIMARY; leases are few. No locks.
SELECT j.id, j.run, j.queue_id, q.name AS queue, j.name, j.payload, j.state,
  j.attempts, j.polls, j.crashes, j.max_attempts, j.max_polls, j.max_crashes,
  255 - j.rank AS priority, j.parent, j.root, j.created, j.due, j.deadline,
  j.timeout, j.nonce, j.ukey, j.unmet, r.progress, r.status,
  c.holder, {state} AS outcome, NULL AS reason, NULL AS error, NULL AS result,
  NULL AS finished_at, NULL AS started, NULL AS worker, NULL AS host, NULL AS pid, {now} AS now,
  IF(j.waits = 'signal', j.awaits, NULL) AS awaits, j.phase,
  j.decay, j.paused, (j.after_ids IS NOT NULL) + 2 * j.tagged AS follows, NULL AS output,
  j.group_key
FROM nightshift_job j
JOIN nightshift_queue q ON q.id = j.queue_id
LEFT JOIN nightshift_running r ON r.job_id = j.id AND r.run = j.run
LEFT JOIN {lease}
WHERE j.id = ?

-- name: admin_info_finished
-- Params: job. Keys: PRIMARY of finished, holder and past_holder, of attempt and of tag, one row. No
-- locks.
SELECT f.id, f.run, f.queue_id, q.name AS queue, f.name, f.payload, f.state,
  f.attempts, f.polls, f.crashes, f.max_attempts, f.max_polls, f.max_crashes,
  f.priority, f.parent, f.root, f.created, f.created AS due, f.deadline,
  f.timeout, f.nonce, f.ukey, 0 AS unmet, NULL AS progress, NULL AS status,
  f.holder, f.outcome, f.reason, f.error, f.result, f.finished_at, f.started,
  CAST(f.worker AS SIGNED) AS worker, {ended_host} AS host, {ended_pid} AS pid, {now} AS now,
  NULL AS awaits, 0 AS phase, f.decay, NULL AS paused,
  (f.after_ids IS NOT NULL) + 2 * {tagged} AS follows,
  (SELECT o.log FROM nightshift_attempt o WHERE o.job_id = f.id AND o.run = f.run) AS output,
  f.group_key
FROM nightshift_finished f
JOIN nightshift_queue q ON q.id = f.queue_id
{ended_holder}
WHERE f.id = ?

-- name: admin_key_held
-- Params: queue, job, its new queue, key. Key: PRIMARY of unique_key, twice; both rows are the
-- job's. The period of its key goes with it.
UPDATE nightshift_unique_key o
STRAIGHT_JOIN nightshift_unique_key n FORCE INDEX (PRIMARY)
SET n.held = o.held
WHERE o.queue_id = ? AND o.ukey = n.ukey AND o.job_id = ? AND n.queue_id = ? AND n.ukey = ?

-- name: admin_limit_back
-- Params: queue, [[job,run,ready_at,alone,kind],…], of admin_limit_backlog. Keys: PRIMARY of job and
-- of ready. The jobs are ready where they were, below the floors of all. ready_at 0: see group.
INSERT IGNORE INTO nightshift_ready (queue_id, `rank`, ready_at, job_id, run, alone, kind)
SELECT STRAIGHT_JOIN ?, j.`rank`, IF(v.ready_at = 0, j.due, v.ready_at), v.id, v.run, v.alone, v.kind
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', run INT UNSIGNED PATH '$[1]',
  ready_at BIGINT PATH '$[2]', alone INT PATH '$[3]', kind INT UNSIGNED PATH '$[4]')) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run

-- name: admin_limit_backlog
-- Params: queue, most. Key: PRIMARY of backlog, the queue's rows; locks them, waiting.
SELECT job_id, run, ready_at, alone, kind FROM nightshift_backlog FORCE INDEX (PRIMARY)
WHERE queue_id = ? ORDER BY queue_id, group_key, `rank`, ready_at, job_id LIMIT ? FOR UPDATE

-- name: admin_limit_bound
-- Params: bound, NULL: none, queue. Key: PRIMARY of queue.
UPDATE nightshift_queue SET backlog = ? WHERE id = ?

-- name: admin_limit_drop
-- Params: queue. Keys: PRIMARY of queue and of limit, of_group of grant, PRIMARY of group. Ends a
-- limit: all that is of it goes.
BEGIN NOT ATOMIC
  DECLARE v_queue INT DEFAULT ?;
  DELETE FROM nightshift_grant WHERE queue_id = v_queue;
  DELETE FROM nightshift_group WHERE queue_id = v_queue;
  DELETE FROM nightshift_limit WHERE queue_id = v_queue;
  UPDATE nightshift_queue SET limited = FALSE WHERE id = v_queue;
END

-- name: admin_limit_grants
-- Params: queue. Keys: none, all leases: they are few; PRIMARY of job and of grant. What runs has its
-- places from the beginning.
INSERT INTO nightshift_grant (job_id, run, queue_id, group_key, lease, since)
SELECT STRAIGHT_JOIN j.id, j.run, j.queue_id, COALESCE(j.group_key, ''), l.id, l.claimed
FROM nightshift_lease l
JOIN JSON_TABLE(l.jobs, {tokens}) c
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = c.id AND j.run = c.run
WHERE j.queue_id = ?
ON DUPLICATE KEY UPDATE run = VALUES(run), lease = VALUES(lease)

-- name: admin_limit_groups
-- Params: whether the groups' rate stays, twice, whether they are ordered, queue. Key: PRIMARY of
-- group, the queue's rows. The next claim looks anew at which are blocked.
UPDATE nightshift_group SET next_at = IF(?, next_at, 0), used = IF(?, used, 0), blocked = 0,
  head = IF(?, head, NULL)
WHERE queue_id = ?

-- name: admin_limit_headless
-- Params: queue. Key: PRIMARY of group, the queue's rows. They have no jobs in the backlog.
UPDATE nightshift_group SET `rank` = 255, ready_at = 0, job_id = 0 WHERE queue_id = ?

-- name: admin_limit_hold
-- Params: queue. Key: PRIMARY of limit; locks the row, waiting for a claim that admits.
SELECT rate, rate_span, rate_window, group_rate, group_span, group_window, ordered, lifted
FROM nightshift_limit WHERE queue_id = ? FOR UPDATE

-- name: admin_limit_lift
-- Params: queue. Key: PRIMARY of limit. Claims move the backlog back to ready; then they end the
-- limit.
UPDATE nightshift_limit SET lifted = TRUE WHERE queue_id = ?

-- name: admin_limit_moved
-- Params: queue. Key: PRIMARY of backlog, the queue's rows, which are locked.
DELETE FROM nightshift_backlog WHERE queue_id = ?

-- name: admin_limit_put
-- Params: queue, running, rate, its span and kind, the same four of groups, ordered, fair,
-- and whether the rate is as before. Key: PRIMARY of limit. What has started counts on at the same
-- rate.
INSERT INTO nightshift_limit (queue_id, running, rate, rate_span, rate_window,
  group_running, group_rate, group_span, group_window, ordered, fair, used)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE next_at = IF(VALUES(used), next_at, 0),
  stopped = IF(VALUES(used), stopped, 0), used = IF(VALUES(used), used, 0),
  running = VALUES(running), rate = VALUES(rate), rate_span = VALUES(rate_span),
  rate_window = VALUES(rate_window),
  group_running = VALUES(group_running), group_rate = VALUES(group_rate),
  group_span = VALUES(group_span), group_window = VALUES(group_window), ordered = VALUES(ordered),
  fair = VALUES(fair), lifted = FALSE

-- name: admin_limit_queue
-- Params: queue. Key: PRIMARY of queue.
UPDATE nightshift_queue SET limited = TRUE, removed = FALSE WHERE id = ?

-- name: admin_link
-- Params: parent, child. Key: PRIMARY of child, by its parent. No locks. The child's place.
SELECT seq FROM nightshift_child WHERE parent = ? AND id = ?

-- name: admin_lock
-- Params: job. Last the ordered group that it holds, or NULL. Keys: PRIMARY of job; locks the row,
-- waiting for it. PRIMARY of group, without a lock.
SELECT j.queue_id, j.rank, j.run, j.unmet, j.due, j.ukey, {now} AS now, j.paused,
  CRC32(j.name), j.parent, COALESCE(j.waits = 'signal', FALSE), j.deadline, j.attempts,
  j.max_attempts, {held_group}
FROM nightshift_job j WHERE j.id = ? FOR UPDATE

-- name: admin_many_held
-- Params: queue, key, the queue before. Key: PRIMARY of unique_key, two rows, both the job's. A key
-- that moves has its period.
UPDATE nightshift_unique_key n FORCE INDEX (PRIMARY)
STRAIGHT_JOIN nightshift_unique_key o FORCE INDEX (PRIMARY) ON o.ukey = n.ukey
SET n.held = o.held
WHERE n.queue_id = ? AND n.ukey = ? AND o.queue_id = ?

-- name: admin_many_move
-- Params: [id,…], queue twice, outcome or NULL twice, filter. Key: PRIMARY of finished, one row at
-- a time; locks them, waiting. A row of an adopted table stays with its table.
UPDATE JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
SET f.queue_id = ?
WHERE f.queue_id <> ? AND (? IS NULL OR f.outcome = ?) AND COALESCE(LEFT(f.ukey, 4) <> 'row:', TRUE)
  AND {filter_ended}

-- name: admin_many_past
-- Params: [id,…], outcome or NULL twice, filter. Key: PRIMARY of finished, one row at a time;
-- locks them, waiting.
SELECT STRAIGHT_JOIN f.id, f.queue_id, f.ukey, f.priority, f.run, CRC32(f.name)
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
WHERE (? IS NULL OR f.outcome = ?) AND {filter_ended}
FOR UPDATE

-- name: admin_many_retry
-- Params: [id,…]. Key: PRIMARY of finished, locked by admin_many_past. As admin_retry, of many.
INSERT INTO nightshift_job
  (id, queue_id, name, payload, priority, rank, run, max_attempts, max_polls,
   max_crashes, backoff, timeout, deadline, created, due, parent, root, on_fail,
   ukey, nonce, decay, after_ids, since, max_phases, state, tagged, group_key)
SELECT STRAIGHT_JOIN f.id, f.queue_id, f.name, f.payload, f.priority, 255 - f.priority, f.run + 1,
  f.max_attempts, f.max_polls, f.max_crashes, f.backoff, f.timeout,
  {now} + f.deadline - f.created, {now}, {now}, f.parent, f.root, f.on_fail, f.ukey, f.nonce,
  f.decay, f.after_ids, (f.run + 1) * 1048576, f.max_phases, IF(f.phase = 0, f.state, NULL),
  {tagged}, f.group_key
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id

-- name: admin_notice
-- Params: kind, why or NULL, job, run. Key: leases are few. Tells the host that has the claim;
-- other holders learn it from their next touch.
INSERT IGNORE INTO nightshift_notice (holder, job_id, run, kind, why, created)
SELECT c.holder, j.id, j.run, ?, ?, {now}
FROM (SELECT ? AS id, ? AS run) j
JOIN {lease}
JOIN nightshift_holder h ON h.id = c.holder AND h.kind = 'host'

-- name: admin_notified
-- Params: job. Key: none, all notices: they are few and soon read.
SELECT holder FROM nightshift_notice WHERE job_id = ?

-- name: admin_past_row
-- Params: job. Keys: PRIMARY of finished, locks the row; PRIMARY of unique_key, without locks.
-- Is a finished job done, what is its key, and which live job has that key?
SELECT f.outcome = 'done', f.ukey,
  (SELECT u.job_id FROM nightshift_unique_key u
    WHERE u.queue_id = f.queue_id AND u.ukey = f.ukey)
FROM nightshift_finished f FORCE INDEX (PRIMARY) WHERE f.id = ? FOR UPDATE

-- name: admin_pause
-- Params: paused, name. Key: name; no job is locked.
UPDATE nightshift_queue SET paused = ? WHERE name = ?

-- name: admin_pause_name
-- Params: name. Key: PRIMARY of paused_name.
INSERT IGNORE INTO nightshift_paused_name (name, since) VALUES (?, {now})

-- name: admin_payload
-- Params: text, text or NULL, job. Key: PRIMARY of job, locked by admin_lock. Is its payload the
-- first text, or the second?
SELECT payload = ?, COALESCE(payload = ?, FALSE) FROM nightshift_job WHERE id = ? FOR UPDATE

-- name: admin_payload_past
-- As admin_payload, of a job that has ended. Key: PRIMARY of finished, locked by admin_finished.
SELECT payload = ?, COALESCE(payload = ?, FALSE) FROM nightshift_finished WHERE id = ? FOR UPDATE

-- name: admin_payloads_ended
-- Params: [id,…]. Index: PRIMARY of finished and of queue, one row at a time.
SELECT STRAIGHT_JOIN f.id, f.run, q.name AS queue, f.name, f.outcome AS state, f.priority, f.attempts,
  f.created, f.finished_at, f.reason, f.error, f.payload
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id
JOIN nightshift_queue q FORCE INDEX (PRIMARY) ON q.id = f.queue_id

-- name: admin_payloads_live
-- Params: [id,…]. Index: PRIMARY of job and of queue, one row at a time.
SELECT STRAIGHT_JOIN j.id, j.run, q.name AS queue, j.name, 255 - j.rank AS priority, j.attempts,
  j.created, j.due, j.payload
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
JOIN nightshift_queue q FORCE INDEX (PRIMARY) ON q.id = j.queue_id

-- name: admin_queue_needs
-- Params: queue id, its name five times. Key: none, all jobs, up to 1000 of the queue's; small
-- tables. No locks. What needs a queue: its live jobs, schedules, handlers with on_dead, an adopted
-- table, live hosts that serve it by name.
SELECT 'jobs' AS what, COUNT(*) AS n, NULL AS name
FROM (SELECT 1 FROM nightshift_job WHERE queue_id = ? LIMIT 1000) j HAVING n > 0
UNION ALL
SELECT 'schedule', 1, name FROM nightshift_schedule
WHERE definition <> 'null' AND JSON_VALUE(definition, '$.queue') = ?
UNION ALL
SELECT 'on_dead', 1, name FROM nightshift_on_dead WHERE queue = ?
UNION ALL
SELECT 'table', 1, tab FROM nightshift_source WHERE tab = ?
UNION ALL
SELECT 'host', 1, CONCAT(h.host, ' (pid ', h.pid, ')')
FROM nightshift_served s JOIN nightshift_holder h ON h.id = s.holder AND h.dead IS NULL
WHERE JSON_CONTAINS(s.queues, JSON_QUOTE(?))
  OR LOCATE(CONCAT('[', JSON_QUOTE(?), ','), s.reserves) > 0

-- name: admin_queue_remove
-- Params: queue id. Keys: PRIMARY of queue; all jobs, up to the first of it. Its pause goes, too.
UPDATE nightshift_queue SET removed = TRUE, paused = FALSE
WHERE id = ? AND NOT removed
  AND NOT EXISTS(SELECT 1 FROM nightshift_job j WHERE j.queue_id = nightshift_queue.id)

-- name: admin_rank
-- Params: runs more, rank, job. Key: PRIMARY of job, locked by admin_lock. The history, and a
-- program that runs the job again, have the new priority, too.
UPDATE nightshift_job SET run = run + ?, rank = ?, priority = 255 - rank WHERE id = ?

-- name: admin_ready_at
-- Params: queue, rank, job, run. Key: PRIMARY of ready, one lane. No locks.
SELECT ready_at FROM nightshift_ready WHERE queue_id = ? AND rank = ? AND job_id = ? AND run = ?

-- name: admin_resume_name
-- Params: name. Key: PRIMARY of paused_name.
DELETE nightshift_paused_name FROM nightshift_paused_name WHERE name = ?

-- name: admin_retain
-- Params: queue or 0, [[outcome,age,most],…]: null as it is, -2 as of all queues. Key: PRIMARY of
-- retention.
INSERT INTO nightshift_retention (queue_id, outcome, age, most)
SELECT ?, v.outcome, NULLIF(v.age, -2), NULLIF(v.most, -2)
FROM JSON_TABLE(?, '$[*]' COLUMNS (outcome VARCHAR(9) {bytes} PATH '$[0]', age BIGINT PATH '$[1]',
  most BIGINT PATH '$[2]')) v
ON DUPLICATE KEY UPDATE
  age = IF(v.age IS NULL, nightshift_retention.age, NULLIF(v.age, -2)),
  most = IF(v.most IS NULL, nightshift_retention.most, NULLIF(v.most, -2))

-- name: admin_retain_none
-- Key: none, all rules: they are few. A rule that says nothing goes.
DELETE nightshift_retention FROM nightshift_retention WHERE age IS NULL AND most IS NULL

-- name: admin_retry
-- Params: job. Key: PRIMARY of finished, locked by admin_finished. Fresh
-- budgets, the next run. Its children so far are of an earlier life; so is the state of a job that
-- had waited for them.
INSERT INTO nightshift_job
  (id, queue_id, name, payload, priority, rank, run, max_attempts, max_polls,
   max_crashes, backoff, timeout, deadline, created, due, parent, root, on_fail,
   ukey, nonce, decay, after_ids, since, max_phases, state, tagged, group_key)
SELECT id, queue_id, name, payload, priority, 255 - priority, run + 1,
  max_attempts, max_polls, max_crashes, backoff, timeout,
  {now} + deadline - created, {now}, {now}, parent, root, on_fail, ukey, nonce,
  decay, after_ids, (run + 1) * 1048576, max_phases, IF(phase = 0, state, NULL), {tagged},
  group_key
FROM nightshift_finished f WHERE id = ?

-- name: admin_scale_counted
-- Remembers how many rows some queues have, for the next looks at them. Params: "ready" or "backlog",
-- µs now, µs that the count took, [[queue,rows],…]. Index: meta PRIMARY, one row at a time. Locks:
-- those rows, which nothing else locks.
INSERT INTO nightshift_meta (name, value)
SELECT CONCAT(?, ':', v.id), CONCAT_WS(',', v.n, ?, ?)
FROM JSON_TABLE(?, '$[*]' COLUMNS (id INT PATH '$[0]', n BIGINT PATH '$[1]')) v
ORDER BY v.id
ON DUPLICATE KEY UPDATE value = VALUES(value)

-- name: admin_schedule
-- Params: run_at, job, queue, rank, run, kind. Key: PRIMARY of scheduled, behind the
-- job's row; the row of an earlier run, if it is there, becomes this one's.
INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run, kind)
VALUES (?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE rank = VALUES(rank), run = VALUES(run)

-- name: admin_shard
-- Params: first block of ids, last block. From now on ids are of these blocks. Where ids have been
-- given it does nothing. Locks the sequence; DDL, so it commits what is open. Locks: metadata.
BEGIN NOT ATOMIC
  DECLARE v_first BIGINT DEFAULT ?;
  DECLARE v_last BIGINT DEFAULT ?;
  IF (SELECT minimum_value = 1 AND next_not_cached_value = 1 FROM nightshift_id) THEN
    EXECUTE IMMEDIATE CONCAT('ALTER SEQUENCE nightshift_id START WITH ', v_first, ' MINVALUE ',
      v_first, ' MAXVALUE ', v_last, ' RESTART WITH ', v_first);
  END IF;
END

-- name: admin_take_ready
-- Params: queue, rank, ready_at, job. Key: PRIMARY of ready, one row; waits for a session that
-- claims it. No row: it is claimed; so a KILL QUERY has to make it fail.
DELETE nightshift_ready FROM nightshift_ready FORCE INDEX (PRIMARY)
WHERE queue_id = ? AND rank = ? AND ready_at = ? AND job_id = ?

-- name: admin_take_scheduled
-- Params: run_at, job. Key: PRIMARY of scheduled, one row; waits for a session that promotes
-- it. As admin_take_ready.
DELETE nightshift_scheduled FROM nightshift_scheduled FORCE INDEX (PRIMARY)
WHERE run_at = ? AND job_id = ?

-- name: admin_tune
-- Params: workers, holder. Keys: PRIMARY of holder and of notice. Tells a host how many workers it
-- is to have; of two numbers that it has not read the later counts. No row: it is gone.
INSERT INTO nightshift_notice (holder, job_id, run, kind, created)
SELECT h.id, 0, ?, 'workers', {now} FROM nightshift_holder h
WHERE h.id = ? AND h.kind = 'host' AND h.dead IS NULL
ON DUPLICATE KEY UPDATE run = VALUES(run), created = VALUES(created)

-- name: admin_unmet
-- Params: job. Key: PRIMARY of met; waits for a session that resolves it. Dependents that were
-- not told yet wait for the job's next end.
DELETE nightshift_met FROM nightshift_met WHERE on_id = ?

-- name: admin_unschedule
-- Params: run_at, job. Key: PRIMARY of scheduled; best effort: a
-- row that stays is dropped by the next claim that reads it.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE FROM nightshift_scheduled WHERE run_at = ? AND job_id = ?

-- name: admin_update
-- Params: runs more, queue, rank, priority, due, the same for wish, max_attempts, payload, tagged;
-- whether the group changes, group or NULL; job. Of priority to tagged NULL: as it is. Key: PRIMARY
-- of job, locked by admin_lock.
UPDATE nightshift_job SET run = run + ?, queue_id = ?, rank = ?,
  priority = COALESCE(?, priority), due = COALESCE(?, due), wish = COALESCE(?, wish),
  max_attempts = COALESCE(?, max_attempts), payload = COALESCE(?, payload),
  tagged = COALESCE(?, tagged), group_key = IF(?, ?, group_key)
WHERE id = ?

-- name: admin_update_past
-- Params: queue, priority, max_attempts, payload; whether the group changes, group or NULL; job. Of
-- priority to payload NULL: as it is. Key: PRIMARY of finished, locked by admin_finished.
UPDATE nightshift_finished SET queue_id = ?, priority = COALESCE(?, priority),
  max_attempts = COALESCE(?, max_attempts), payload = COALESCE(?, payload),
  group_key = IF(?, ?, group_key)
WHERE id = ?

-- name: audit_add
-- Params: verb, what, job or NULL, jobs, host, pid, via. Key: PRIMARY, at its end. The row of an
-- action of people, in the transaction that does it.
INSERT INTO nightshift_audit (at, verb, what, job, jobs, account, host, pid, via)
VALUES ({now}, ?, ?, ?, ?, USER(), ?, ?, ?)

-- name: audit_more
-- Params: jobs, id. Key: PRIMARY, one row. A further transaction of the same action.
UPDATE nightshift_audit SET jobs = jobs + ? WHERE id = ?

-- name: prune_attempts
-- Params: [id,…]. Key: PRIMARY of attempt, by its job.
DELETE a FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_attempt a FORCE INDEX (PRIMARY) ON a.job_id = v.id

-- name: prune_audit
-- Params: id. Key: PRIMARY of audit, its first rows.
DELETE FROM nightshift_audit WHERE id <= ? ORDER BY id LIMIT 10000

-- name: prune_audit_until
-- Params: µs, how many are kept. The newest row that is older, or is one too many. No row: there is
-- none. Keys: PRIMARY of audit, its ends; at, the rows that are older. No locks.
SELECT u.until
FROM (SELECT GREATEST(
    COALESCE((SELECT MAX(id) FROM nightshift_audit WHERE at < {now} - ?), 0),
    COALESCE((SELECT MAX(id) FROM nightshift_audit), 0) - ?) AS until) u
WHERE (SELECT MIN(a.id) FROM nightshift_audit a) <= u.until

-- name: prune_children
-- Params: [id,…]. Key: PRIMARY of child, by its parent.
DELETE c FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = v.id

-- name: prune_chosen
-- Params: age that outlives its tree, [[id,finished_at],…], outcome. Key: PRIMARY of finished, one
-- row at a time; locks those that have not been retried since, skipping locked ones. tree: the root
-- it belongs to, when it goes with its tree only; NULL: it goes by itself.
SELECT STRAIGHT_JOIN f.id, f.finished_at, {prunes_with} AS tree
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', ended BIGINT PATH '$[1]')) v
JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = v.id AND f.finished_at = v.ended
WHERE f.outcome = ?
FOR UPDATE SKIP LOCKED

-- name: prune_count
-- Params: outcome, finished_at twice and id to begin behind, rows. Key: outcome, backwards, index
-- only: the newest first. No locks.
SELECT id, finished_at, queue_id FROM nightshift_finished FORCE INDEX (outcome)
WHERE outcome = ? AND finished_at <= ? AND (finished_at < ? OR id < ?)
ORDER BY finished_at DESC, id DESC LIMIT ?

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
-- long ago; parent and place. Then its queue and when it ended.
SELECT STRAIGHT_JOIN c.id, j.id IS NOT NULL, FIELD(f.outcome, 'done', 'dead', 'cancelled'),
  {now} - f.finished_at, c.parent, c.seq, f.queue_id, f.finished_at
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_child c FORCE INDEX (PRIMARY) ON c.parent = v.id
LEFT JOIN nightshift_job j ON j.id = c.id
LEFT JOIN nightshift_finished f ON f.id = c.id
LIMIT ?

-- name: prune_minutes
-- Key: PRIMARY, three ranges. Minutes stay for a day, longer times for eight days, and the sums
-- since the beginning (of 0 minutes) for ever.
DELETE FROM nightshift_minute
WHERE (minutes = 1 AND at < {now} - 86400000000)
  OR (minutes IN (15, 120) AND at < {now} - 691200000000) LIMIT 1000

-- name: prune_page
-- Params: outcome, finished_at twice and id to begin behind, age, the finished_at up to which younger
-- rows may go, too, rows. Key: outcome, a range, index only: the oldest first. No locks.
SELECT id, finished_at, queue_id, {now} - finished_at
FROM nightshift_finished FORCE INDEX (outcome)
WHERE outcome = ? AND finished_at >= ? AND (finished_at > ? OR id > ?)
  AND finished_at <= GREATEST({now} - ?, ?)
ORDER BY finished_at, id LIMIT ?

-- name: prune_past_holders
-- Params: µs. Key: ended, a range. Holders that were gone before that.
DELETE FROM nightshift_past_holder WHERE ended < ? LIMIT 1000

-- name: prune_past_until
-- Before when past holders are of no job any more: a day before the oldest end in the history, or
-- 90 days ago. (The claims of a dead holder end a little later than it.) No row: there are none of
-- them. Keys: outcome of finished, the first row of each, and ended. No locks.
SELECT u.until
FROM (SELECT GREATEST({now} - 7776000000000, LEAST({now},
    COALESCE((SELECT MIN(finished_at) FROM nightshift_finished WHERE outcome = 'done'), {now}),
    COALESCE((SELECT MIN(finished_at) FROM nightshift_finished WHERE outcome = 'dead'), {now}),
    COALESCE((SELECT MIN(finished_at) FROM nightshift_finished WHERE outcome = 'cancelled'),
      {now})) - 86400000000) AS until) u
WHERE (SELECT MIN(p.ended) FROM nightshift_past_holder p) < u.until

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

-- name: prune_rules
-- Key: PRIMARY of retention, all rows: they are few. No locks. A rule of all queues comes first.
SELECT queue_id, FIELD(outcome, 'done', 'dead', 'cancelled'), age, most
FROM nightshift_retention ORDER BY queue_id, outcome

-- name: prune_select
-- Params: age that outlives its tree, outcome, finished_at twice and id to begin behind, age,
-- rows. Key: outcome (outcome, finished_at, id), the oldest first; locks its rows, skipping
-- locked ones. tree: as prune_chosen.
SELECT id, finished_at, {prunes_with} AS tree
FROM nightshift_finished f FORCE INDEX (outcome)
WHERE outcome = ? AND finished_at >= ? AND (finished_at > ? OR id > ?)
  AND finished_at < {now} - ?
ORDER BY finished_at, id LIMIT ?
FOR UPDATE SKIP LOCKED

-- name: prune_self
-- Params: job. Keys: PRIMARY of job and of finished. No locks. As prune_members.
SELECT v.id, j.id IS NOT NULL, FIELD(f.outcome, 'done', 'dead', 'cancelled'),
  {now} - f.finished_at, 0, 0, f.queue_id, f.finished_at
FROM (SELECT ? AS id) v
LEFT JOIN nightshift_job j ON j.id = v.id
LEFT JOIN nightshift_finished f ON f.id = v.id

-- name: prune_siblings
-- Params: parent, seq twice and id of the child to begin behind, rows. Keys: as prune_members.
-- No locks. As prune_members, of one parent.
SELECT STRAIGHT_JOIN c.id, j.id IS NOT NULL, FIELD(f.outcome, 'done', 'dead', 'cancelled'),
  {now} - f.finished_at, c.parent, c.seq, f.queue_id, f.finished_at
FROM nightshift_child c FORCE INDEX (PRIMARY)
LEFT JOIN nightshift_job j ON j.id = c.id
LEFT JOIN nightshift_finished f ON f.id = c.id
WHERE c.parent = ? AND c.seq >= ? AND (c.seq > ? OR c.id > ?)
ORDER BY c.seq, c.id LIMIT ?

-- name: prune_signals
-- Params: [id,…]. Key: PRIMARY of signal, by its job. Signals that no job waited for.
DELETE s FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_signal s FORCE INDEX (PRIMARY) ON s.job_id = v.id

-- name: prune_tags
-- Params: [id,…]. Key: PRIMARY of tag, by its job.
DELETE t FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_tag t FORCE INDEX (PRIMARY) ON t.job_id = v.id
