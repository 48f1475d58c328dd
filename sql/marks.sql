-- Marks: {NAME} in a statement stands for the text below NAME. Text that several statements
-- share stands here, once. Marks may use the marks above them.

-- mark: now
-- The server's clock: microseconds since 1970, UTC.
TIMESTAMPDIFF(MICROSECOND,TIMESTAMP'1970-01-01 00:00:00',UTC_TIMESTAMP(6))

-- mark: end
-- The ready_at of a sentinel, which ends a lane.
9223372036854775807

-- mark: bytes
-- Behind the type of a text that is no column of ours. It is equal when all of its bytes are,
-- whatever default the database and the session have.
CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- mark: here
-- This database in the name of a lock: in ASCII and short, whatever the database is called.
MD5(DATABASE())

-- mark: server
-- A number for this server, for as long as it keeps its data where it is.
CRC32(CONCAT_WS(' ', @@hostname, @@port, @@socket, @@datadir, @@server_id))

-- mark: nodes
-- The nodes of the cluster, a comma before and behind each: ',a:3306,,b:3306,'.
(SELECT CONCAT(',', REPLACE(VARIABLE_VALUE, ',', ',,'), ',')
  FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'WSREP_INCOMING_ADDRESSES')

-- mark: node
-- This node's name among them.
(SELECT SUBSTRING_INDEX(SUBSTRING_INDEX(l.VARIABLE_VALUE, ',', i.VARIABLE_VALUE + 1), ',', -1)
  FROM information_schema.GLOBAL_STATUS l JOIN information_schema.GLOBAL_STATUS i
  WHERE l.VARIABLE_NAME = 'WSREP_INCOMING_ADDRESSES' AND i.VARIABLE_NAME = 'WSREP_LOCAL_INDEX')

-- mark: all_paused
-- Is every queue paused, by one row?
((SELECT COUNT(*) FROM nightshift_paused_name WHERE name = '') > 0)

-- mark: paused_mark
-- A number for the set of names that are paused; 0: none is.
(SELECT CAST(COALESCE(SUM(CRC32(name) + 1), 0) AS SIGNED) FROM nightshift_paused_name)

-- mark: tokens
-- Behind `JSON_TABLE(text, `: the columns of [[id,run],…].
'$[*]' COLUMNS (id BIGINT PATH '$[0]', run INT UNSIGNED PATH '$[1]')

-- mark: ids
-- Behind `JSON_TABLE(text, `: the column of [id,…].
'$[*]' COLUMNS (id BIGINT PATH '$')

-- mark: ready_rows
-- Behind `JSON_TABLE(text, `: the columns of [[queue,rank,ready_at,job,run,alone,kind],…].
'$[*]' COLUMNS (queue_id INT PATH '$[0]', `rank` TINYINT UNSIGNED PATH '$[1]',
  ready_at BIGINT PATH '$[2]', id BIGINT PATH '$[3]', run INT UNSIGNED PATH '$[4]',
  alone BOOLEAN PATH '$[5]', kind INT UNSIGNED PATH '$[6]')

-- mark: held_group
-- The ordered group that job j holds; NULL: none.
(SELECT g.group_key FROM nightshift_group g FORCE INDEX (PRIMARY)
  WHERE g.queue_id = j.queue_id AND g.group_key = j.group_key AND g.head = j.id)

-- mark: groups
-- Behind `JSON_TABLE(text, `: the columns of [[queue,group],…].
'$[*]' COLUMNS (queue_id INT PATH '$[0]',
  group_key VARCHAR(190) {bytes} PATH '$[1]')

-- mark: rows
-- Behind `JSON_TABLE(text, `: the columns of [[row,job],…].
'$[*]' COLUMNS (row_id BIGINT PATH '$[0]', job BIGINT PATH '$[1]')

-- mark: source_rows
-- Behind `JSON_TABLE(text, `: the columns of [[row,job,failures,due],…]; a missing value is
-- NULL.
'$[*]' COLUMNS (id BIGINT PATH '$[0]', job BIGINT PATH '$[1]', n INT PATH '$[2]',
  due BIGINT PATH '$[3]')

-- mark: source_now
-- In front of a verdict's statements on an adopted table: 1205 at once when another session has
-- locked the table, to alter it say. (Waits of no length for rows are no good beside SKIP
-- LOCKED: the server fails with 1180 where a row is locked.)
SET STATEMENT time_zone='+00:00', lock_wait_timeout=0 FOR 

-- mark: source_utc
-- In front of statements that read an adopted table.
SET STATEMENT time_zone='+00:00' FOR 

-- mark: kind_parts
-- The parts of an error that its kind leaves out: quoted texts, UUIDs, addresses, hexadecimal
-- ids, numbers. There is no backslash in it, whatever the sql_mode of the session is.
'(?<![[:alnum:]])''[^'']*''(?![[:alnum:]])|"[^"]*"|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|(?<![[:alnum:]])(?=[a-fA-F]*[0-9])[0-9a-fA-F]+(?![[:alnum:]])|[0-9]+'

-- mark: ended_error
-- What an ended job f died of: its last error, or the reason where there is none.
COALESCE(NULLIF(f.error, ''), f.reason, '')

-- mark: ended_kind
-- Errors that differ in such parts only are of one kind.
LEFT(REGEXP_REPLACE(LEFT(SUBSTRING_INDEX({ended_error}, CHAR(10 USING utf8mb4), 1), 1000),
  {kind_parts}, '#'), 200)

-- mark: live_error
-- What the attempt a of a live job failed of.
COALESCE(a.error, a.kind)

-- mark: live_kind
-- As ended_kind.
LEFT(REGEXP_REPLACE(LEFT(SUBSTRING_INDEX({live_error}, CHAR(10 USING utf8mb4), 1), 1000),
  {kind_parts}, '#'), 200)

-- mark: filter_live
-- Is live job j among the wanted ones? Params, NULL for any: queue id, name, parent, µs of the
-- oldest push, twice each. Then an error, three times. Then a kind of errors, how that begins,
-- twice, and the kind again. Then a tag, twice, and a group, twice. The error of a job is that of
-- its last attempt, as long as failures and crashes count. An EXISTS would gather all jobs of the
-- tag.
(? IS NULL OR j.queue_id = ?) AND (? IS NULL OR j.name = ?) AND (? IS NULL OR j.parent = ?)
  AND (? IS NULL OR j.created >= ?)
  AND (? IS NULL OR (j.attempts + j.crashes > 0 AND (SELECT {live_error} = ?
      OR SUBSTRING_INDEX({live_error}, CHAR(10 USING utf8mb4), 1) = ? OR (? IS NOT NULL AND LEFT({live_error}, CHAR_LENGTH(?)) = ? AND {live_kind} = ?)
    FROM nightshift_attempt a WHERE a.job_id = j.id AND a.kind <> 'printed'
    ORDER BY a.run DESC LIMIT 1)))
  AND (? IS NULL OR (j.tagged AND (SELECT COUNT(*) FROM nightshift_tag w WHERE w.job_id = j.id AND w.tag = ?) > 0))
  AND (? IS NULL OR j.group_key = ?)

-- mark: filter_ended
-- Is ended job f among the wanted ones? Params: as filter_live; of the time: of the oldest end.
(? IS NULL OR f.queue_id = ?) AND (? IS NULL OR f.name = ?) AND (? IS NULL OR f.parent = ?)
  AND (? IS NULL OR f.finished_at >= ?)
  AND (? IS NULL OR (f.outcome <> 'done' AND ({ended_error} = ?
    OR SUBSTRING_INDEX({ended_error}, CHAR(10 USING utf8mb4), 1) = ? OR (? IS NOT NULL AND LEFT({ended_error}, CHAR_LENGTH(?)) = ? AND {ended_kind} = ?))))
  AND (? IS NULL OR (SELECT COUNT(*) FROM nightshift_tag w WHERE w.job_id = f.id AND w.tag = ?) > 0)
  AND (? IS NULL OR f.group_key = ?)

-- mark: prunes_with
-- The root of the tree that ended job f is pruned with; NULL: it goes by itself. Param: the age
-- that outlives a tree.
IF(f.finished_at < {now} - ?
     AND NOT EXISTS(SELECT 1 FROM nightshift_job p WHERE p.id = f.parent), NULL,
     COALESCE(f.root, (SELECT MIN(c.parent) FROM nightshift_child c WHERE c.parent = f.id)))

-- mark: tagged
-- Has the ended job f tags? A number.
COALESCE((SELECT 1 FROM nightshift_tag g WHERE g.job_id = f.id LIMIT 1), 0)

-- mark: claims
-- Behind `LEFT JOIN `: the claim c of job j, if it is claimed. The LIMIT makes the server
-- unfold the leases once, and not once for each job.
(SELECT t.id, t.run, l.holder FROM nightshift_lease l, JSON_TABLE(l.jobs, {tokens}) t
  LIMIT 9223372036854775807) c ON c.id = j.id AND c.run = j.run

-- mark: claims_if
-- As claims, of jobs from one id to another alone. Params: the ids, and the pattern of filter.claims
-- for them: a lease that does not match it is not unfolded. With 1 and 0 no lease is read, as by
-- no_claims.
(SELECT t.id, t.run, l.holder FROM (SELECT ? AS low, ? AS high) b
  STRAIGHT_JOIN nightshift_lease l ON b.low <= b.high AND l.jobs REGEXP ?
  STRAIGHT_JOIN JSON_TABLE(l.jobs, {tokens}) t ON t.id >= b.low AND t.id <= b.high
  LIMIT 9223372036854775807) c ON c.id = j.id AND c.run = j.run

-- mark: no_claims
-- In their place: no job counts as claimed.
nightshift_lease c ON FALSE

-- mark: lease
-- Behind `LEFT JOIN `: the lease c that job j is in, if it is claimed. All leases are
-- searched, as text, for each job: for a few jobs that is a tenth of the time of {claims}.
nightshift_lease c ON LOCATE(CONCAT('[', j.id, ',', j.run, ']'), c.jobs) > 0

-- mark: awaits
-- Does live, unclaimed job j wait for a signal? It is scheduled for its deadline.
(j.unmet = 0 AND j.waits = 'signal' AND j.due > {now}) IS TRUE

-- mark: state
-- The state of live job j; c.id is not NULL when it is claimed. A paused job that still runs is
-- running; a due job that is not yet moved out of scheduled is ready.
CASE WHEN c.id IS NOT NULL THEN 'running' WHEN j.unmet > 0 OR {awaits} THEN 'waiting'
  WHEN j.due > {now} THEN 'scheduled' ELSE 'ready' END COLLATE utf8mb4_nopad_bin

-- mark: listed_columns
-- The columns of live job j in every listing, besides its id, queue, name and state. Its rank
-- tells the present priority; the column of that name has the one of the push.
255 - j.rank AS priority, j.run, j.attempts, j.polls, j.crashes, j.max_attempts, j.created, j.due, j.parent,
  j.group_key AS `group`

-- mark: ended_holder
-- Behind the FROM of an ended job f, or of an attempt: its holder.
LEFT JOIN nightshift_holder eh ON eh.id = f.holder
  LEFT JOIN nightshift_past_holder ep ON ep.id = f.holder

-- mark: ended_host
-- Its machine.
COALESCE(eh.host, ep.host)

-- mark: ended_pid
-- Its process.
COALESCE(eh.pid, ep.pid)

-- mark: ended_columns
-- The columns of ended job f in queue q, in a listing.
f.id, q.name AS queue, f.name, f.outcome AS state,
  f.priority, f.run, f.attempts, f.polls, f.crashes, f.max_attempts,
  f.created, f.parent, f.finished_at, f.reason, LEFT(f.error, 300) AS error,
  f.started, {ended_host} AS host, CAST(f.worker AS SIGNED) AS worker, f.group_key AS `group`

-- mark: live_columns
-- The columns of live job j in queue q, with its claim c, in a listing of all states. An
-- unsigned number would be a decimal in a UNION with NULL, and a text in Lua.
j.id, q.name AS queue, j.name, {state} AS state,
  {listed_columns},
  NULLIF(CAST(j.unmet AS SIGNED), 0) AS unmet, IF({awaits}, j.awaits, NULL) AS awaits,
  IF(j.paused > 0, j.paused, NULL) AS paused

-- mark: job_columns
-- The columns of job j that a claim reads.
j.id, j.run, j.queue_id, j.name, j.payload, j.state,
  j.attempts, j.polls, j.crashes, j.max_attempts, j.max_polls,
  255 - j.rank AS priority, j.parent, j.root, j.created, j.due, j.deadline,
  j.timeout, j.nonce, {now} AS now, j.phase, j.awaits, j.ukey,
  (j.after_ids IS NOT NULL) + 2 * j.tagged AS follows, j.group_key

-- mark: signal
-- Behind `SELECT s.… `: the signal that job j has waited for, sent by name or without one.
FROM nightshift_signal s WHERE s.job_id = j.id AND s.name IN (j.awaits, '')
    ORDER BY s.name = '' LIMIT 1

-- mark: finish_job
-- In a compound that ends one done job, v_job in its run v_run: the job's row of the history.
-- The row has v_result, of v_holder and v_worker, and a start v_ago µs ago. There is no row when
-- the job is locked.
INSERT INTO nightshift_finished
  (id, queue_id, name, payload, priority, outcome, run, result, attempts, polls, crashes, lost,
   max_attempts, max_polls, max_crashes, backoff, timeout, deadline, created, finished_at,
   parent, root, on_fail, ukey, nonce, holder, started, worker, decay, since, max_phases,
   after_ids, group_key)
SELECT j.id, j.queue_id, j.name, j.payload, j.priority, 'done', j.run, v_result, j.attempts,
  j.polls, j.crashes, j.lost, j.max_attempts, j.max_polls, j.max_crashes, j.backoff, j.timeout,
  j.deadline, j.created, {now}, j.parent, j.root, j.on_fail, j.ukey, j.nonce, v_holder,
  {now} - v_ago, v_worker, j.decay, j.since, j.max_phases, j.after_ids, j.group_key
FROM nightshift_job j FORCE INDEX (PRIMARY) WHERE j.id = v_job AND j.run = v_run
FOR UPDATE SKIP LOCKED

-- mark: leave_job
-- Behind it: the job goes, and its lease v_lease, where it has one. The holder has done v_cycle,
-- unless it was declared dead or jobs wait for this one. Adds three to v_n when all are so.
-- Without v_cycle the holder is left alone.
DELETE FROM nightshift_job WHERE id = v_job;
SET v_n = v_n + ROW_COUNT();
IF v_lease IS NULL THEN
  SET v_n = v_n + 1;
ELSE
  DELETE FROM nightshift_lease WHERE id = v_lease;
  SET v_n = v_n + ROW_COUNT();
END IF;
IF v_cycle IS NULL THEN
  SELECT e.on_id INTO v_waits FROM nightshift_edge e FORCE INDEX (PRIMARY)
  WHERE e.on_id = v_job LIMIT 1;
  SET v_n = v_n + (v_waits IS NULL);
ELSE
  UPDATE nightshift_holder SET cycle = v_cycle, beat = {now}
  WHERE id = v_holder AND dead IS NULL
    AND (SELECT e.on_id FROM nightshift_edge e FORCE INDEX (PRIMARY)
      WHERE e.on_id = v_job LIMIT 1) IS NULL;
  SET v_n = v_n + ROW_COUNT();
END IF

-- mark: retrying
-- Jobs that wait for another attempt, among the first of scheduled, each with its last failure.
-- Param: how many are looked at.
FROM (SELECT job_id, run FROM nightshift_scheduled
      ORDER BY run_at, job_id LIMIT ?) s
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = s.job_id AND j.run = s.run
  AND j.attempts + j.crashes > 0 AND NOT {awaits}
STRAIGHT_JOIN nightshift_attempt a FORCE INDEX (PRIMARY) ON a.job_id = j.id
  AND a.run = (SELECT MAX(x.run) FROM nightshift_attempt x
    WHERE x.job_id = j.id AND x.kind <> 'printed')
