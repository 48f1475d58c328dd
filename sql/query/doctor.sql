-- The questions of `nightshift doctor`. They only read, except doctor_write, which leaves
-- nothing; people run them, no verb does. Each has a second (doctor_limits). Sorted by name.

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
