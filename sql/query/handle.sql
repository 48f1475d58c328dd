-- Statements of the handle itself: clock, schema version, ids, queues, holders, waiting and
-- ringing. Sorted by name.

-- name: handle_ids
-- Params: how many blocks of 100 ids. Locks the sequence's page for a moment,
-- never across a transaction. Beside each: a number that is another one when a bound of a backlog has
-- changed. Index: backlog of queue, its rows with a bound.
WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < ?)
SELECT NEXT VALUE FOR nightshift_id,
  (SELECT CAST(COALESCE(SUM(CRC32(CONCAT(id, ' ', backlog))), 0) AS SIGNED)
   FROM nightshift_queue FORCE INDEX (backlog) WHERE backlog > 0)
FROM n

-- name: handle_minutes
-- Params: [[minute since 1970, queue or 0, done, failed, dead, cancelled, pushed, waits, their sum,
-- the longest, runs, their sum, the longest],…]. Key: PRIMARY, one row at a time in its order;
-- locks them, and waits for none. The rows of minutes, and of longer times that they are part of.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
INSERT INTO nightshift_minute (minutes, at, queue_id, done, failed, dead, cancelled, pushed,
  waits, waited, longest_wait, runs, ran, longest_run)
SELECT s.minutes, COALESCE(v.minute DIV NULLIF(s.minutes, 0) * s.minutes * 60000000, 0), v.queue,
  v.n1, v.n2, v.n3, v.n4, v.n5, v.n6, v.n7, v.n8, v.n9, v.n10, v.n11
FROM (SELECT 0 AS minutes UNION ALL SELECT 1 UNION ALL SELECT 15 UNION ALL SELECT 120) s
JOIN JSON_TABLE(?, '$[*]' COLUMNS (minute BIGINT PATH '$[0]', queue INT PATH '$[1]',
  n1 BIGINT PATH '$[2]', n2 BIGINT PATH '$[3]', n3 BIGINT PATH '$[4]', n4 BIGINT PATH '$[5]',
  n5 BIGINT PATH '$[6]', n6 BIGINT PATH '$[7]', n7 BIGINT PATH '$[8]', n8 BIGINT PATH '$[9]',
  n9 BIGINT PATH '$[10]', n10 BIGINT PATH '$[11]', n11 BIGINT PATH '$[12]')) v
ORDER BY 1, 2, 3
ON DUPLICATE KEY UPDATE done = done + VALUES(done), failed = failed + VALUES(failed),
  dead = dead + VALUES(dead), cancelled = cancelled + VALUES(cancelled),
  pushed = pushed + VALUES(pushed), waits = waits + VALUES(waits),
  waited = waited + VALUES(waited), longest_wait = GREATEST(longest_wait, VALUES(longest_wait)),
  runs = runs + VALUES(runs), ran = ran + VALUES(ran),
  longest_run = GREATEST(longest_run, VALUES(longest_run))

-- name: handle_open
-- Is a transaction open in this session? For a transaction whose COMMIT was refused.
SELECT @@in_transaction

-- name: handle_schema
-- Key: PRIMARY, one row.
SELECT value FROM nightshift_meta WHERE name = 'schema'

-- name: handle_uptime
-- Seconds since the server started.
SELECT CAST(VARIABLE_VALUE AS UNSIGNED) FROM information_schema.GLOBAL_STATUS
WHERE VARIABLE_NAME = 'UPTIME'

-- name: holder_absolve
-- Params: job, run. Key: PRIMARY of job; does not wait for locks. The run was lost to a
-- holder that lives: the job did not kill it. Above NS_LOST_TOGETHER the loss was
-- counted as a crash.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
UPDATE nightshift_job
SET crashes = crashes - (lost > 2 AND crashes > 0), lost = lost - 1
WHERE id = ? AND run > ? AND lost > 0

-- name: holder_add
-- Params: id, kind, host, pid, boot id, version, µs since 1970 by the clock of our machine. Key:
-- PRIMARY. May be run twice.
INSERT IGNORE INTO nightshift_holder
  (id, kind, host, pid, boot_id, connection, server, started, beat, version, skew)
VALUES (?, ?, ?, ?, ?, CONNECTION_ID(), {server}, {now}, {now}, ?, ? - {now})

-- name: holder_beat
-- Params: µs since 1970 by the clock of our machine, holder. Key: PRIMARY; locks our own row only.
-- No row: we are dead.
UPDATE nightshift_holder SET skew = ? - {now}, beat = {now} WHERE id = ? AND dead IS NULL

-- name: holder_cycle
-- Params: number, holder. Key: PRIMARY; locks our own row only. No row: we were
-- declared dead. It is sent behind the lease: when that was refused, and the server has
-- rolled back, this must not commit by itself.
UPDATE nightshift_holder SET cycle = ?, beat = {now}
WHERE id = ? AND dead IS NULL AND @@in_transaction = 1

-- name: holder_leave
-- Params: holder. Key: PRIMARY.
DELETE FROM nightshift_holder WHERE id = ?

-- name: holder_leave_past
-- Params: holder. Keys: PRIMARY of holder and of past_holder. Outside transactions: the
-- holder's row becomes one of past holders.
BEGIN NOT ATOMIC
  DECLARE v_holder BIGINT DEFAULT ?;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  START TRANSACTION;
  INSERT IGNORE INTO nightshift_past_holder (id, host, pid, started, ended)
  SELECT id, host, pid, started, {now} FROM nightshift_holder WHERE id = v_holder;
  DELETE FROM nightshift_holder WHERE id = v_holder;
  COMMIT;
END

-- name: holder_lock
-- Params: holder, seconds to wait. The named lock that says "this session lives". Do such locks
-- serve, and is it ours?
SELECT l.serve, IF(l.serve, GET_LOCK(CONCAT('nightshift:', {here}, ':', ?), ?), NULL)
FROM (SELECT NOT EXISTS(SELECT 1 FROM nightshift_meta
    WHERE name = 'named_locks' AND value = 'off') AS serve) l

-- name: holder_locks
-- Whether named locks serve: not where an operator has written so into meta.
SELECT NOT EXISTS(SELECT 1 FROM nightshift_meta
    WHERE name = 'named_locks' AND value = 'off')

-- name: holder_notices
-- Params: holder. Key: PRIMARY, a range. Takes them.
DELETE FROM nightshift_notice WHERE holder = ?
RETURNING job_id, run, kind = 'paused', why

-- name: holder_now
-- Params: holder. Key: PRIMARY; reads the number of the last cycle that was
-- committed. No row: it was dead for so long that it was buried; see holder_traces.
SELECT cycle FROM nightshift_holder WHERE id = ?

-- name: holder_on_dead
-- Params: [{"name": …, "on_dead": …, "queue": …},…]. Key: PRIMARY, one row at a time in the order of
-- the list; locks them. The jobs to push when jobs of these names are dead.
INSERT INTO nightshift_on_dead (name, on_dead, queue)
SELECT v.name, v.on_dead, v.queue
FROM JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(100) {bytes} PATH '$.name',
  on_dead VARCHAR(100) {bytes} PATH '$.on_dead', queue VARCHAR(64) {bytes} PATH '$.queue')) v
ON DUPLICATE KEY UPDATE on_dead = VALUES(on_dead), queue = VALUES(queue)

-- name: holder_on_dead_over
-- Params: the list of holder_on_dead, ["handler",…]. Key: PRIMARY, one row at a time; locks them.
-- Names of handlers whose scripts do not say so any more.
DELETE d FROM JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(100) {bytes} PATH '$.name')) v
RIGHT JOIN JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(100) {bytes} PATH '$')) h ON v.name = h.name
JOIN nightshift_on_dead d FORCE INDEX (PRIMARY) ON d.name = h.name
WHERE v.name IS NULL

-- name: holder_on_dead_queues
-- Params: the list of holder_on_dead. Key: name, one row at a time; locks the rows that it adds.
-- The queues of that list that are not there yet.
INSERT IGNORE INTO nightshift_queue (name, created)
SELECT DISTINCT v.queue, {now}
FROM JSON_TABLE(?, '$[*]' COLUMNS (queue VARCHAR(64) {bytes} PATH '$.queue')) v
LEFT JOIN nightshift_queue q FORCE INDEX (name) ON q.name = v.queue
WHERE v.queue IS NOT NULL AND q.id IS NULL

-- name: holder_owes
-- Locks: none. Tells of verdicts that wait: report_owed reads it among the processes. It is
-- sent as text, for a prepared one does not show its parameters; '(verdicts)' is numbers.
DO SLEEP(1) /* nightshift owes (verdicts) */

-- name: holder_resume
-- Params: holder. Key: PRIMARY. No row: we were declared dead meanwhile.
UPDATE nightshift_holder SET connection = CONNECTION_ID(), server = {server}, beat = {now}
WHERE id = ? AND dead IS NULL

-- name: holder_served
-- Params: holder. Key: PRIMARY; locks our own row only. The host ends: for a minute its
-- handlers still count as known.
REPLACE INTO nightshift_served (holder, workers, queues, handlers, reserves, ended)
SELECT holder, 0, queues, handlers, reserves, {now} FROM nightshift_served WHERE holder = ?

-- name: holder_served_past
-- Key: none, they are few; locks the rows that it deletes.
DELETE FROM nightshift_served WHERE ended < {now} - 60000000

-- name: holder_serves
-- Params: holder, workers that take jobs, ["queue",…] or NULL: all, ["handler",…],
-- [["queue",workers],…] or NULL: none are reserved; version of the scripts,
-- [["file","version"],…], when their last reading began (see the table), when it ended, why it
-- failed or NULL: it did not; workers that it is to have, how often it was told a number, why the
-- last was refused or NULL: it was not. Key: PRIMARY; locks our own row only. The handlers and
-- scripts of a host, for report_why_hosts.
REPLACE INTO nightshift_served (holder, workers, queues, handlers, reserves, scripts,
  files, load_began, load_ended, load_error, wanted, tuned, refused)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: holder_state
-- Params: a thread of our own account. The server's text on that session's state.
SELECT state FROM information_schema.processlist WHERE id = ?

-- name: holder_traces
-- Params: holder, [[id,run],…]. Keys: PRIMARY of finished and of attempt, one row each; no
-- locks. Was one of these verdicts written? A rescue leaves neither of the two.
SELECT STRAIGHT_JOIN 1
FROM (SELECT CAST(? AS SIGNED) AS holder) h
JOIN JSON_TABLE(?, {tokens}) v
LEFT JOIN nightshift_finished f FORCE INDEX (PRIMARY)
  ON f.id = v.id AND f.run = v.run AND f.holder = h.holder AND f.outcome = 'done'
LEFT JOIN nightshift_attempt a FORCE INDEX (PRIMARY)
  ON a.job_id = v.id AND a.run = v.run AND a.holder = h.holder AND a.kind = 'failed'
WHERE f.id IS NOT NULL OR a.job_id IS NOT NULL LIMIT 1

-- name: holder_unlock
-- Params: holder.
DO RELEASE_LOCK(CONCAT('nightshift:', {here}, ':', ?))

-- name: holder_workers
-- Params: workers that take jobs, that run one, that take no more, how often the scripts
-- have been loaded, workers that run older ones, conflicts by statement, holder. Key: PRIMARY; locks
-- our own row only. For report_holders, doctor_holders.
UPDATE nightshift_holder SET workers = ?, busy = ?, leaving = ?, loads = ?, old_scripts = ?,
  conflicts = ?
WHERE id = ?

-- name: listen_in
-- Params: the queues, holder or 0. From now on a ring reaches this connection.
CALL nightshift_listen(?, ?)

-- name: listen_look
-- Part of listen_wait. Params: newest known queue, paused ones ([id,…]), the mark of the paused
-- names (see ns_paused_names), our holder. 2: something is ready, a queue is new or is paused
-- no more, other names are paused; 4: a notice; 0: nothing. In the place of the mark (near) is
-- TRUE, or where in its lanes to begin, past deleted rows. Key: PRIMARY of ready, up to the
-- first row of each queue that no session is about to claim.
-- Committed rows are found without locks, and asked for with locks one at a time, skipping
-- locked rows. A locking read through deleted rows would lock them, too. When purge removes one
-- just then its lock becomes one on the gap, where pushes wait.
SELECT CASE
  WHEN EXISTS(SELECT 1 FROM nightshift_ready v
      WHERE queue_id IN (queues) AND ready_at < {end} AND (/*near*/)
        AND (SELECT 1 FROM nightshift_ready r FORCE INDEX (PRIMARY)
          WHERE r.queue_id = v.queue_id AND r.rank = v.rank AND r.ready_at = v.ready_at
            AND r.job_id = v.job_id
          LIMIT 1 LOCK IN SHARE MODE SKIP LOCKED) = 1)
    OR EXISTS(SELECT 1 FROM nightshift_queue WHERE id > ?)
    OR EXISTS(SELECT 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (id INT PATH '$')) p
      STRAIGHT_JOIN nightshift_queue q ON q.id = p.id WHERE NOT q.paused AND NOT {all_paused})
    OR {paused_mark} <> ? THEN 2
  WHEN EXISTS(SELECT 1 FROM nightshift_notice WHERE holder = ?) THEN 4
  ELSE 0 END

-- name: listen_look_rest
-- As listen_look when every queue is paused or there is none.
SELECT CASE
  WHEN EXISTS(SELECT 1 FROM nightshift_queue WHERE id > ?)
    OR EXISTS(SELECT 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (id INT PATH '$')) p
      STRAIGHT_JOIN nightshift_queue q ON q.id = p.id WHERE NOT q.paused AND NOT {all_paused})
    OR {paused_mark} <> ? THEN 2
  WHEN EXISTS(SELECT 1 FROM nightshift_notice WHERE holder = ?) THEN 4
  ELSE 0 END

-- name: listen_nudge
-- Params: holder, whether the one before it is meant.
CALL nightshift_nudge(?, ?)

-- name: listen_out
CALL nightshift_listen(NULL, 0)

-- name: listen_ring
-- Ends the sleep of one listener of each kind.
CALL nightshift_ring()

-- name: listen_wait
-- Params: slices of the wait ([[seconds, whether a look follows],…]), the neighbour (0: locks
-- do not work), other holders ([id,…]). Then the ones of {look}, which is one of the looks
-- above. It looks, and sleeps slice by slice; the neighbour's death ends the sleep at once,
-- another's with the slice. Ends with error 45000 + the number of a look, or + 3 when a
-- holder's lock is free, and without one when time is up. The neighbour's lock that the wait
-- came to own is released by the expression that waited for it. So neither a KILL nor a stopped
-- client comes in between: a dead holder's lock has no owner. It is one statement of several,
-- each of which releases its locks. If the locks of a look lasted as long as the sleep, one
-- would become a lock on the gap when purge removes its row. Then no push could write there.
-- The list of queue ids replaces the marks (queues): in a comment for people who read the
-- process list, and in ranges.
BEGIN NOT ATOMIC /* nightshift-wait (queues) */
  DECLARE v_slices TEXT {bytes} DEFAULT ?;
  DECLARE v_neighbour BIGINT DEFAULT ?;
  DECLARE v_watched TEXT {bytes} DEFAULT ?;
  DECLARE v_why, v_n INT DEFAULT 0;
  DECLARE v_looks BOOLEAN DEFAULT TRUE;
  DECLARE v_seconds DOUBLE;
  slices: LOOP
    IF v_looks THEN
      {look} INTO v_why;
    END IF;
    SET v_seconds = JSON_VALUE(v_slices, CONCAT('$[', v_n, '][0]'));
    IF v_why > 0 OR v_seconds IS NULL THEN
      LEAVE slices;
    END IF;
    SET v_looks = JSON_VALUE(v_slices, CONCAT('$[', v_n, '][1]')), v_n = v_n + 1;
    IF IF(v_neighbour = 0, SLEEP(v_seconds),
        IF(GET_LOCK(CONCAT('nightshift:', {here}, ':', v_neighbour), v_seconds),
          RELEASE_LOCK(CONCAT('nightshift:', {here}, ':', v_neighbour)), FALSE))
      OR EXISTS(SELECT 1 FROM JSON_TABLE(v_watched, {ids}) h
        WHERE IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', h.id))) THEN
      SET v_why = 3;
      LEAVE slices;
    END IF;
  END LOOP;
  IF v_why > 0 THEN
    SET v_why = 45000 + v_why;
    SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = v_why;
  END IF;
END

-- name: queue_add
-- Params: name. Key: name; run on its own, so the row is visible and unlocked
-- at once.
INSERT IGNORE INTO nightshift_queue (name, created) VALUES (?, {now})

-- name: queue_find
-- Params: name. Key: name.
SELECT id, removed, backlog FROM nightshift_queue WHERE name = ?

-- name: queue_list
-- Key: PRIMARY, all rows in its order: there are few queues. Before them, with the id 0, stand
-- the names of jobs that are paused: they are fewer. (The first part decides how long a name
-- may be.) The empty name pauses every queue.
SELECT 0 AS id, name, TRUE AS paused, FALSE AS removed, FALSE AS limited, NULL AS backlog
FROM nightshift_paused_name
UNION ALL
SELECT id, name, paused, removed, limited, backlog FROM nightshift_queue FORCE INDEX (PRIMARY)

-- name: queue_paused
-- Params: id. Key: PRIMARY; all paused names, they are few, and mostly none. Integers, a row for
-- each of the names: is the queue paused, the kind of the name, is the queue removed, has it
-- limits. A row with NULL: no name is.
-- Every claim of a program asks this. A join costs two thirds of subqueries with sums, and parsing
-- it each time would cost as much as the rest.
SELECT q.paused, CRC32(p.name) AS kind, q.removed, q.limited
FROM nightshift_queue q LEFT JOIN nightshift_paused_name p ON TRUE WHERE q.id = ?

-- name: queue_paused_names
-- Key: PRIMARY, all rows. The names of jobs that are paused.
SELECT name FROM nightshift_paused_name ORDER BY name

-- name: queue_used
-- Params: name. Key: name; run on its own, as queue_add. A removed queue is there again.
UPDATE nightshift_queue SET removed = FALSE WHERE name = ? AND removed

-- name: server_cluster
-- Is it a node of a Galera cluster? Not all servers know the variable (1193: no).
SELECT @@GLOBAL.wsrep_on

-- name: server_node
-- Key: PRIMARY, one row. This node of a cluster, and the one that writes; NULL: none has yet.
SELECT {node}, n.address
FROM (SELECT 1 AS one) o LEFT JOIN nightshift_node n ON n.one = o.one

-- name: server_now
-- The clock; whether a lock wait ends the whole transaction here; the longest packet taken. And
-- a number for this server since its start: ids of sessions mean something only together with
-- it. About 0.4 ms.
SELECT {now}, @@innodb_rollback_on_timeout, @@max_allowed_packet,
  (SELECT CRC32(CONCAT_WS(' ', @@hostname, @@port, @@socket,
                          UNIX_TIMESTAMP() - VARIABLE_VALUE))
   FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'UPTIME')

-- name: server_take
-- Params: this node, twice the one that wrote before; '' of none. Key: PRIMARY, one row; waits for
-- its lock. This node writes from now on; no row changes when another one does.
INSERT INTO nightshift_node (one, address, since) VALUES (1, ?, {now})
ON DUPLICATE KEY UPDATE since = IF(address = ?, VALUES(since), since),
  address = IF(address = ?, VALUES(address), address)

-- name: server_writable
-- Can this server write? An error says why not. 1290: it is a replica, or was demoted. 1047: it is
-- a node of a cluster that is not ready. 1644: a node that must not write. Later servers have
-- more values of read_only than ON and OFF. Key of node: PRIMARY, one row; in a database without
-- tables none. About 0.6 ms.
-- A node that was frozen or is cut off may not know yet that the other nodes go on without it. It
-- says that it is ready, and shows old rows. So the row of node is read with wsrep_sync_wait: the
-- other nodes have answered, and what they had committed is here. A server without that variable
-- would refuse the whole block, so its name stands in texts. With three nodes on one machine of two
-- cores the whole takes 5 ms.
BEGIN NOT ATOMIC
  DECLARE v_here, v_writer, v_nodes VARCHAR(2048) {bytes};
  DECLARE CONTINUE HANDLER FOR 1146 BEGIN END;
  IF CAST(@@GLOBAL.read_only AS CHAR) NOT IN ('0', 'OFF') THEN
    SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290,
      MESSAGE_TEXT = 'it is read-only: a replica, or a primary that was demoted';
  END IF;
  IF EXISTS(SELECT 1 FROM information_schema.GLOBAL_VARIABLES
      WHERE VARIABLE_NAME = 'WSREP_ON' AND VARIABLE_VALUE = 'ON') THEN
    IF EXISTS(SELECT 1 FROM information_schema.GLOBAL_STATUS
        WHERE VARIABLE_NAME = 'WSREP_READY' AND VARIABLE_VALUE <> 'ON') THEN
      SIGNAL SQLSTATE '08S01' SET MYSQL_ERRNO = 1047, MESSAGE_TEXT = 'its wsrep_ready is not ON';
    END IF;
    IF NOT @@GLOBAL.log_bin THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
        'Galera: log_bin is OFF, and then nodes come to have different rows; set log-bin on each';
    END IF;
    EXECUTE IMMEDIATE 'SET SESSION wsrep_sync_wait = 1';
    BEGIN
      DECLARE EXIT HANDLER FOR 1205
        SIGNAL SQLSTATE '08S01' SET MYSQL_ERRNO = 1047,
          MESSAGE_TEXT = 'the other nodes of its cluster have not answered it';
      SELECT address INTO v_writer FROM nightshift_node WHERE one = 1;
    END;
    EXECUTE IMMEDIATE 'SET SESSION wsrep_sync_wait = 0';
    SET v_here = {node}, v_nodes = {nodes};
    IF COALESCE(v_here, '') IN ('', 'AUTO')
      OR (CHAR_LENGTH(v_nodes) - CHAR_LENGTH(REPLACE(v_nodes, CONCAT(',', v_here, ','), ''))) >
        CHAR_LENGTH(v_here) + 2 THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
        'Galera: wsrep_incoming_addresses lacks nodes: set wsrep_node_incoming_address of each';
    END IF;
    IF v_writer <> v_here AND LOCATE(CONCAT(',', v_writer, ','), v_nodes) > 0 THEN
      SET v_here = LEFT(CONCAT('Galera: the node that writes is ', v_writer,
        '; at a second one jobs would be lost and run twice'), 128);
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_here;
    END IF;
  END IF;
END

-- name: session_place
-- Default database and role of the session, as a number: a reset leaves both as they are.
SELECT CRC32(CONCAT_WS('/', IFNULL(HEX(DATABASE()), '-'), IFNULL(HEX(CURRENT_ROLE()), '-')))

-- name: wait_enter
-- Params: minus the connection, [id,…]. Keys: PRIMARY of job and of edge. Shared locks on the
-- live jobs, one row at a time; waits for a session that is ending one. So that session has
-- ended it before, or sees the edge.
INSERT IGNORE INTO nightshift_edge (on_id, job_id)
SELECT STRAIGHT_JOIN j.id, m.me
FROM (SELECT CAST(? AS SIGNED) AS me) m
JOIN JSON_TABLE(?, {ids}) v
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
LOCK IN SHARE MODE

-- name: wait_hold
-- Params: minus the connection that sleeps. This one keeps the lock that it waits for.
DO GET_LOCK(CONCAT('nightshift-asleep:', {here}, ':', ?), 0)

-- name: wait_leave
-- Params: [id,…], minus the connection. Key: PRIMARY of edge, one row at a time.
DELETE e FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN (SELECT CAST(? AS SIGNED) AS me) m
STRAIGHT_JOIN nightshift_edge e FORCE INDEX (PRIMARY) ON e.on_id = v.id AND e.job_id = m.me

-- name: wait_let_go
-- Params: minus the connection that has slept.
DO RELEASE_LOCK(CONCAT('nightshift-asleep:', {here}, ':', ?))

-- name: wait_ring
-- Params: [connection,…]. Ends the sleep of those that wait for ends of jobs.
CALL nightshift_wake(?)

-- name: wait_rung
-- Params: minus the connection, which is this one. From now on it may be rung.
DO GET_LOCK(CONCAT('nightshift-wait:', {here}, ':', ?), 0)

-- name: wait_sleep
-- Params: [id,…], minus the connection, how many of them are known to live, seconds. How many
-- live; sleeps first when none has ended. Key: PRIMARY of edge, one row at a time. No locks. As in
-- listen_wait a lock that it came to own is released by the expression that waited for it.
BEGIN NOT ATOMIC
  DECLARE v_ids MEDIUMTEXT {bytes} DEFAULT ?;
  DECLARE v_me, v_known BIGINT;
  DECLARE v_seconds DOUBLE;
  DECLARE v_left BIGINT;
  SET v_me = ?, v_known = ?, v_seconds = ?;
  SELECT STRAIGHT_JOIN COUNT(*) INTO v_left FROM JSON_TABLE(v_ids, {ids}) v
  JOIN nightshift_edge e FORCE INDEX (PRIMARY) ON e.on_id = v.id AND e.job_id = v_me;
  IF v_left = v_known AND v_left > 0 THEN
    DO IF(GET_LOCK(CONCAT('nightshift-asleep:', {here}, ':', v_me), v_seconds),
      RELEASE_LOCK(CONCAT('nightshift-asleep:', {here}, ':', v_me)), FALSE);
    SELECT STRAIGHT_JOIN COUNT(*) INTO v_left FROM JSON_TABLE(v_ids, {ids}) v
    JOIN nightshift_edge e FORCE INDEX (PRIMARY) ON e.on_id = v.id AND e.job_id = v_me;
  END IF;
  SELECT v_left AS n;
END
