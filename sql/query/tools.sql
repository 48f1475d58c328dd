-- Statements that no verb runs: of `nightshift doctor`, and of the kit for tests. Sorted by name.
--
-- The questions of the doctor (doctor_…) only read, except doctor_write, which leaves nothing. Each
-- has a second (doctor_limits). Those of nightshift.testing (testing_…) are for a database that it
-- has made and that one process of tests has.

-- name: doctor_ago
-- Params: a DATETIME in the server's own zone, as its texts have it. Seconds since then.
SELECT TIMESTAMPDIFF(SECOND, ?, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')) AS ago

-- name: doctor_binlogs
-- The files of the binary log with their sizes; needs BINLOG MONITOR.
SHOW BINARY LOGS

-- name: doctor_call_listen
-- These five calls write nothing and wake a listener at most. Their error tells whether the
-- procedure is there, and its definer, and whether we may call it.
CALL nightshift_listen(NULL, 0)

-- name: doctor_call_nudge
CALL nightshift_nudge(-1, FALSE)

-- name: doctor_call_push
CALL nightshift_push(NULL, NULL, NULL, NULL)

-- name: doctor_call_ring
CALL nightshift_ring()

-- name: doctor_call_room
CALL nightshift_room(NULL, @nightshift_bound, @nightshift_waiting)

-- name: doctor_call_signal
CALL nightshift_signal(NULL, NULL, NULL)

-- name: doctor_call_wake
CALL nightshift_wake('[]')

-- name: doctor_end_session
-- Params: a thread of our own account.
KILL ?

-- name: doctor_free_lock
-- Params: name. 1: free, 0: taken.
SELECT IS_FREE_LOCK(?) AS free

-- name: doctor_history
-- As doctor_jobs, for the view of ended jobs.
SELECT id FROM nightshift_history LIMIT 0

-- name: doctor_holders
-- Every holder with the facts that tell whether it lives. Index: small tables; lease by holder.
SELECT h.id, h.kind, h.host, h.pid, h.dead, h.version, h.workers, h.skew, h.conflicts,
  {now} - h.beat AS silent,
  IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', h.id)) AS gone,
  (SELECT COUNT(*) FROM nightshift_lease l WHERE l.holder = h.id) AS leases
FROM nightshift_holder h
ORDER BY h.id

-- name: doctor_ids
-- How far the sequence of blocks of ids is, and which blocks are its own.
SELECT next_not_cached_value AS next, minimum_value AS low, maximum_value AS high
FROM nightshift_id

-- name: doctor_ids_used
-- Params: a limit, four times. The highest block in use below it. Index: PRIMARY
-- of each, its last row.
SELECT GREATEST(
  COALESCE((SELECT MAX(id) FROM nightshift_job WHERE id < ?), 0),
  COALESCE((SELECT MAX(id) FROM nightshift_finished WHERE id < ?), 0),
  COALESCE((SELECT MAX(id) FROM nightshift_lease WHERE id < ?), 0),
  COALESCE((SELECT MAX(id) FROM nightshift_holder WHERE id < ?), 0)) DIV 100 AS block

-- name: doctor_innodb
-- The engine's own report, for its latest deadlock; needs PROCESS. At most 1 MiB of text.
SHOW ENGINE INNODB STATUS

-- name: doctor_jobs
-- Is the view there, and all tables that it reads? Never run, only prepared.
SELECT id FROM nightshift_jobs LIMIT 0

-- name: doctor_limits
-- Params: seconds for a statement, and for waits of locks. Of our session only.
SET SESSION max_statement_time = ?, lock_wait_timeout = ?, innodb_lock_wait_timeout = ?

-- name: doctor_listeners
-- Is the list there? Never run, only prepared: all else goes by its procedures.
SELECT thread FROM nightshift_listener LIMIT 0

-- name: doctor_mended
-- Index: small table.
SELECT CAST(COALESCE(SUM(n), 0) AS SIGNED) AS n FROM nightshift_mended

-- name: doctor_orphans
-- Claimed batches of holders that are not known. Index: PRIMARY of holder.
SELECT COUNT(*) AS n FROM nightshift_lease l
LEFT JOIN nightshift_holder h ON h.id = l.holder
WHERE h.id IS NULL

-- name: doctor_paused_queues
-- Queues that are paused. held: is a job ready in it? Index: queue, all rows: they are few; ready
-- PRIMARY, from the queue's first row to its first job. Locks: none.
SELECT q.id, q.name, EXISTS (SELECT 1 FROM nightshift_ready r
    WHERE r.queue_id = q.id AND r.job_id > 0) AS held
FROM nightshift_queue q WHERE q.paused AND NOT q.removed ORDER BY q.name

-- name: doctor_ready
-- Params: a queue. How many rows of its jobs are ready, 1001 at most. Index: ready PRIMARY, a
-- range. Locks: none.
SELECT COUNT(*) AS n FROM (SELECT 1 FROM nightshift_ready
  WHERE queue_id = ? AND job_id > 0 LIMIT 1001) some

-- name: doctor_ready_any
-- How many rows of jobs are ready, 1001 at most. Index: ready PRIMARY, from its start. Locks: none.
SELECT COUNT(*) AS n FROM (SELECT 1 FROM nightshift_ready WHERE job_id > 0 LIMIT 1001) some

-- name: doctor_replica
-- This server as a replica: a row for each server that it copies; needs REPLICA MONITOR.
SHOW ALL REPLICAS STATUS

-- name: doctor_replicas
-- Replicas that are connected to this server; needs REPLICATION MASTER ADMIN.
SHOW REPLICA HOSTS

-- name: doctor_routines
-- Shows the procedures and functions that this user may call. text: the body, for their owner.
SELECT routine_name AS name, definer, security_type AS security, sql_mode AS mode,
  routine_definition AS text
FROM information_schema.routines
WHERE routine_schema = DATABASE() AND routine_name LIKE 'nightshift%'

-- name: doctor_schedules
-- Params: names of handlers that hosts have ([name,…]); NULL: not all are known. Key: none, the
-- whole table. No locks. Schedules that have failed, or are late by more than a minute. And
-- those of zones that a host lacks, or of scripts that no host has the handler of.
SELECT name, error, JSON_VALUE(definition, '$.zone') AS zone, version IS NOT NULL AS declared,
  IF(next_at < {now} - 60000000, {now} - next_at, NULL) AS late,
  IF(lacked_at > {now} - 7200000000, lacked_by, NULL) AS lacked,
  version IS NOT NULL AND NOT JSON_CONTAINS(?, JSON_EXTRACT(definition, '$.job')) AS unserved
FROM nightshift_schedule WHERE definition <> 'null' AND NOT paused
HAVING error IS NOT NULL OR late IS NOT NULL OR lacked IS NOT NULL OR unserved = 1
ORDER BY name LIMIT 1000

-- name: doctor_scripts
-- The scripts of the hosts that are not known dead, and the outcome of their last reading; ago:
-- µs since its end. Index: small tables; PRIMARY of holder.
SELECT h.id, h.host, h.pid, s.scripts, s.files, s.handlers, s.load_error,
  {now} - s.load_ended AS ago,
  IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', h.id)) AS gone
FROM nightshift_served s
JOIN nightshift_holder h ON h.id = s.holder
WHERE h.dead IS NULL AND s.scripts IS NOT NULL
ORDER BY h.id

-- name: doctor_server
-- peer: how the server sees our end; a name or address with a port: over TCP.
SELECT VERSION() AS version, @@version_comment AS comment, DATABASE() AS db,
  CURRENT_USER() AS account, CONNECTION_ID() AS thread, @@hostname AS host, @@socket AS socket,
  @@port AS port, @@max_user_connections AS most, (SELECT host FROM information_schema.processlist
    WHERE id = CONNECTION_ID()) AS peer

-- name: doctor_sleeps
-- Params: a thread of our own account. A row: it sleeps. A listener that enters itself may wait
-- for a named lock.
SELECT 1 FROM information_schema.processlist WHERE id = ? AND state = 'User sleep'

-- name: doctor_status
SHOW SESSION STATUS WHERE Variable_name IN ('Innodb_checkpoint_age',
  'Innodb_checkpoint_max_age', 'Innodb_deadlocks', 'Innodb_history_list_length',
  'Innodb_row_lock_time_max', 'Innodb_row_lock_waits', 'Max_used_connections', 'Open_files',
  'Prepared_stmt_count', 'Rpl_semi_sync_master_clients', 'Rpl_semi_sync_master_status',
  'Ssl_cipher', 'Threads_connected', 'Uptime', 'wsrep_cluster_size', 'wsrep_flow_control_paused',
  'wsrep_local_state_comment')

-- name: doctor_tables
-- Shows the tables that this user has any right on.
SELECT table_name AS name, engine FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name LIKE 'nightshift%'

-- name: doctor_tables_views
-- The texts of the views; empty for a user that may not see them.
SELECT table_name AS name, view_definition AS text FROM information_schema.views
WHERE table_schema = DATABASE() AND table_name IN ('nightshift_history', 'nightshift_jobs')
ORDER BY table_name

-- name: doctor_take_lock
-- Params: name. Given back when the connection ends.
SELECT GET_LOCK(?, 0) AS got

-- name: doctor_transactions
-- Params: seconds. The oldest open transactions of the server; needs PROCESS. innodb_trx shows
-- the time of the server's own zone. statement: what it is at, with its values.
SELECT t.trx_mysql_thread_id AS thread, p.user, p.host, p.db, p.command,
  LEFT(COALESCE(t.trx_query, p.info), 500) AS statement,
  TIMESTAMPDIFF(SECOND, t.trx_started,
    CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')) AS age
FROM information_schema.innodb_trx t
LEFT JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
HAVING age >= ?
ORDER BY age DESC LIMIT 3

-- name: doctor_user_privileges
-- Params: account as 'name'@'host'. Shows our own, and all with SELECT on mysql.
SELECT privilege_type AS privilege FROM information_schema.user_privileges
WHERE BINARY grantee = ?

-- name: doctor_variables
-- Variables of the server, as new sessions start with them.
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('binlog_expire_logs_seconds', 'binlog_format',
  'check_constraint_checks', 'completion_type', 'datadir', 'enforce_storage_engine',
  'foreign_key_checks', 'idle_transaction_timeout', 'init_connect',
  'innodb_flush_log_at_trx_commit', 'innodb_log_file_size', 'innodb_read_only',
  'innodb_rollback_on_timeout', 'log_bin', 'log_bin_basename', 'max_allowed_packet',
  'max_connections', 'max_join_size', 'max_prepared_stmt_count',
  'max_recursive_iterations', 'max_session_mem_used', 'max_statement_time', 'open_files_limit',
  'read_only', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_master_wait_point',
  'sort_buffer_size', 'sql_auto_is_null',
  'sql_safe_updates', 'sql_select_limit', 'sync_binlog', 'tmpdir', 'tx_read_only',
  'unique_checks', 'wait_timeout', 'wsrep_cluster_address', 'wsrep_node_incoming_address',
  'wsrep_on')

-- name: doctor_variables_session
-- Variables of this session, which Nightshift has set up.
SHOW SESSION VARIABLES WHERE Variable_name IN ('innodb_lock_wait_timeout',
  'sql_mode', 'time_zone', 'transaction_isolation', 'tx_isolation')

-- name: doctor_waits
-- Sessions that have waited for a row lock for so long, and who holds it; needs PROCESS.
-- Params: seconds. Statements with their values.
SELECT r.trx_mysql_thread_id AS waiting, LEFT(r.trx_query, 500) AS waits,
  b.trx_mysql_thread_id AS thread, p.user, p.host, p.command, LEFT(b.trx_query, 500) AS statement,
  l.lock_table AS tab, TIMESTAMPDIFF(SECOND, r.trx_wait_started,
    CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')) AS waited
FROM information_schema.innodb_lock_waits w
JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_trx_id
JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_trx_id
LEFT JOIN information_schema.innodb_locks l ON l.lock_id = w.requested_lock_id
LEFT JOIN information_schema.processlist p ON p.id = b.trx_mysql_thread_id
HAVING waited >= ?
ORDER BY waited DESC, waiting LIMIT 3

-- name: doctor_write
-- Writes and deletes a row of no job in one transaction; the commit has to reach the disk all
-- the same. It runs on a session of its own, which the caller ends when this takes too long. So
-- it waits for locks without a limit of its own. Key: PRIMARY, a row that no other session asks
-- for.
BEGIN NOT ATOMIC
  SET SESSION lock_wait_timeout = 3600;
  START TRANSACTION;
  INSERT INTO nightshift_running (job_id, run, holder, started, touched)
    VALUES (-CONNECTION_ID(), 0, 0, {now}, {now});
  DELETE FROM nightshift_running WHERE job_id = -CONNECTION_ID();
  COMMIT;
END

-- name: testing_clean
-- Params: [table,…] of testing_list. Deletes their rows, and those of ready and holder. The rows of
-- queues, of live holders and the ends of lanes stay, which handles know. Keys: none, whole tables.
BEGIN NOT ATOMIC
  DECLARE v_name VARCHAR(64) {bytes};
  DECLARE v_over BOOLEAN DEFAULT FALSE;
  DECLARE list CURSOR FOR SELECT name
    FROM JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(64) {bytes} PATH '$')) t;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = TRUE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  START TRANSACTION;
  OPEN list;
  FETCH list INTO v_name;
  WHILE NOT v_over DO
    EXECUTE IMMEDIATE CONCAT('DELETE FROM ', v_name);
    FETCH list INTO v_name;
  END WHILE;
  CLOSE list;
  DELETE FROM nightshift_ready WHERE job_id > 0;
  DELETE FROM nightshift_holder WHERE IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', id));
  DELETE FROM nightshift_served WHERE holder NOT IN (SELECT id FROM nightshift_holder);
  UPDATE nightshift_queue SET paused = FALSE, removed = FALSE, limited = FALSE, backlog = NULL
  WHERE paused OR removed OR limited OR backlog > 0;
  COMMIT;
END

-- name: testing_connection
-- The number of the connection.
SELECT CONNECTION_ID() AS id

-- name: testing_create
-- Params: database. Makes it, in place of one of that name.
BEGIN NOT ATOMIC
  DECLARE v_name VARCHAR(64) {bytes} DEFAULT ?;
  EXECUTE IMMEDIATE CONCAT('CREATE OR REPLACE DATABASE `', v_name,
    '` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin');
END

-- name: testing_due
-- Params: µs. In a transaction. What is due so much later at the latest is ready now, in the order
-- of the times at which it was due. Keys: none, all of scheduled; PRIMARY of ready and of job.
BEGIN NOT ATOMIC
  DECLARE v_by BIGINT DEFAULT ?;
  DECLARE v_now BIGINT DEFAULT {now};
  INSERT IGNORE INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)
  SELECT DISTINCT queue_id, rank, {end}, 0, 0 FROM nightshift_scheduled WHERE run_at <= v_now + v_by;
  INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
  SELECT queue_id, rank, v_now + ROW_NUMBER() OVER (ORDER BY run_at, job_id), job_id, run, kind
  FROM nightshift_scheduled WHERE run_at <= v_now + v_by;
  UPDATE nightshift_scheduled s STRAIGHT_JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
  SET j.due = LEAST(j.due, v_now) WHERE s.run_at <= v_now + v_by;
  DELETE FROM nightshift_scheduled WHERE run_at <= v_now + v_by;
END

-- name: testing_end_holder
-- Params: connection. Key: none, all holders. The holder of a connection that was killed is dead, as
-- of a minute ago: the next look gives back its claims.
UPDATE nightshift_holder SET dead = {now} - 60000000 WHERE connection = ?

-- name: testing_first_due
-- Key: PRIMARY of scheduled, its first row. No locks. µs until the first job is due; NULL: none.
SELECT MIN(run_at) - {now} AS us FROM nightshift_scheduled

-- name: testing_gone
-- Params: connection. Has it ended, with its transaction and its locks?
SELECT COUNT(*) = 0 AS gone FROM information_schema.processlist WHERE id = ?

-- name: testing_kill
-- Params: connection.
BEGIN NOT ATOMIC
  DECLARE v_id BIGINT DEFAULT ?;
  EXECUTE IMMEDIATE CONCAT('KILL ', v_id);
END

-- name: testing_left
-- Key: none, all of ready and backlog. No locks. The names of ready jobs, and how many there are of
-- each.
SELECT j.name, COUNT(*) AS n
FROM (SELECT job_id, run FROM nightshift_ready UNION ALL
  SELECT job_id, run FROM nightshift_backlog) r
JOIN nightshift_job j ON j.id = r.job_id AND j.run = r.run GROUP BY j.name

-- name: testing_list
-- Tables of ours that tests empty whole, whatever tables this version has.
SELECT table_name AS name FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND LEFT(table_name, 11) = 'nightshift_'
  AND SUBSTR(table_name, 12) NOT IN ('meta', 'queue', 'listener', 'ready', 'holder', 'served')

-- name: testing_lock
-- Params: database. Another process of tests has none that it holds.
SELECT GET_LOCK(CONCAT('nightshift-testing:', MD5(?)), 0) AS got

-- name: testing_mark
-- Key: PRIMARY. What testing_sign has written.
SELECT value FROM nightshift_meta WHERE name = 'testing'

-- name: testing_name
-- The database of the session; NULL: none.
SELECT DATABASE() AS name

-- name: testing_pushed
-- Key: none, all jobs and all history. No locks. In the order in which they were pushed.
SELECT j.id, q.name AS queue, j.name, j.payload, j.priority, {state} AS state, j.created, j.due,
  j.parent, j.ukey, j.attempts, j.group_key
FROM nightshift_job j JOIN nightshift_queue q ON q.id = j.queue_id
LEFT JOIN {claims}
UNION ALL
SELECT f.id, q.name, f.name, f.payload, f.priority, f.outcome, f.created, NULL, f.parent, f.ukey,
  f.attempts, f.group_key
FROM nightshift_finished f JOIN nightshift_queue q ON q.id = f.queue_id
ORDER BY created, id

-- name: testing_queues
-- Key: none, all of ready and backlog. No locks. Queues with a ready job that is not paused, by name.
SELECT q.name FROM nightshift_queue q
WHERE NOT q.paused AND q.id IN (SELECT queue_id FROM nightshift_ready WHERE job_id > 0
  UNION SELECT queue_id FROM nightshift_backlog)
ORDER BY q.name

-- name: testing_shift
-- Params: µs. In a transaction, behind testing_due. All instants are so much earlier: what was an
-- hour ago is two hours ago, what is due in an hour is due now. Ready jobs keep their places. Times
-- of holders, and of declarations, are not moved. Keys: none, whole tables.
BEGIN NOT ATOMIC
  DECLARE v_by BIGINT DEFAULT ?;
  DECLARE v_now BIGINT DEFAULT {now};
  UPDATE nightshift_scheduled SET run_at = run_at - v_by ORDER BY run_at;
  UPDATE nightshift_job SET created = created - v_by, due = IF(due > v_now, due - v_by, due),
    wish = wish - v_by, deadline = deadline - v_by, missing_since = missing_since - v_by;
  UPDATE nightshift_lease SET claimed = claimed - v_by;
  UPDATE nightshift_expiry SET expires = expires - v_by;
  UPDATE nightshift_running SET started = started - v_by, touched = touched - v_by;
  UPDATE nightshift_finished SET created = created - v_by, started = started - v_by,
    finished_at = finished_at - v_by, deadline = deadline - v_by;
  UPDATE nightshift_attempt SET started = started - v_by, ended = ended - v_by;
  UPDATE nightshift_signal SET sent = sent - v_by;
  UPDATE nightshift_pause SET since = since - v_by;
  UPDATE nightshift_paused_name SET since = since - v_by;
  UPDATE nightshift_slot SET since = since - v_by;
  UPDATE nightshift_owed SET due = due - v_by;
  UPDATE nightshift_unique_key SET held = held - v_by, until = until - v_by;
  UPDATE nightshift_schedule SET next_at = next_at - v_by, last_at = last_at - v_by;
  UPDATE nightshift_audit SET at = at - v_by;
  UPDATE nightshift_limit SET next_at = GREATEST(0, next_at - v_by),
    stopped = GREATEST(0, stopped - v_by);
  UPDATE nightshift_group SET served = GREATEST(0, served - v_by),
    stopped = GREATEST(0, stopped - v_by),
    next_at = GREATEST(0, next_at - v_by),
    blocked = IF(blocked = 0, 0, GREATEST(1, blocked - v_by));
  UPDATE nightshift_grant SET since = since - v_by;
END

-- name: testing_sign
-- Params: text. Key: PRIMARY. The database is one of tests.
REPLACE INTO nightshift_meta (name, value) VALUES ('testing', ?)

-- name: testing_tables
-- How many tables and views the database has.
SELECT COUNT(*) AS n FROM information_schema.tables WHERE table_schema = DATABASE()

-- name: testing_tick
-- Key: due of schedule, its first row. No locks. Does a schedule tick now?
SELECT COUNT(*) AS due FROM nightshift_schedule FORCE INDEX (due) WHERE next_at <= {now}
