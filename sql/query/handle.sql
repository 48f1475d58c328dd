-- Statements of the handle itself: clock, schema version, ids, queues,
-- holders. Sorted by name.

-- name: handle_ids
-- Params: how many blocks of 100 ids. Locks the sequence's page for a moment,
-- never across a transaction.
WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < ?)
SELECT NEXT VALUE FOR nightshift_id FROM n

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
-- Params: id, kind, host, pid, boot id, version. Key: PRIMARY. May be run
-- twice.
INSERT IGNORE INTO nightshift_holder
  (id, kind, host, pid, boot_id, connection, started, beat, version)
VALUES (?, ?, ?, ?, ?, CONNECTION_ID(), {now}, {now}, ?)

-- name: holder_beat
-- Params: holder. Key: PRIMARY; locks our own row only. No row: we are dead.
UPDATE nightshift_holder SET beat = {now} WHERE id = ? AND dead IS NULL

-- name: holder_cycle
-- Params: number, holder. Key: PRIMARY; locks our own row only. No row: we were
-- declared dead. It is sent behind the lease: when that was refused, and the server has
-- rolled back, this must not commit by itself.
UPDATE nightshift_holder SET cycle = ?, beat = {now}
WHERE id = ? AND dead IS NULL AND @@in_transaction = 1

-- name: holder_leave
-- Params: holder. Key: PRIMARY.
DELETE FROM nightshift_holder WHERE id = ?

-- name: holder_lock
-- Params: holder, seconds to wait. The named lock that says "this session
-- lives".
SELECT GET_LOCK(CONCAT('nightshift:', {here}, ':', ?), ?)

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
UPDATE nightshift_holder SET connection = CONNECTION_ID(), beat = {now}
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
-- have been loaded, workers that run older ones, holder. Key: PRIMARY; locks our own row
-- only. For report_holders.
UPDATE nightshift_holder SET workers = ?, busy = ?, leaving = ?, loads = ?, old_scripts = ?
WHERE id = ?

-- name: queue_add
-- Params: name. Key: name; run on its own, so the row is visible and unlocked
-- at once.
INSERT IGNORE INTO nightshift_queue (name, created) VALUES (?, {now})

-- name: queue_find
-- Params: name. Key: name.
SELECT id, paused FROM nightshift_queue WHERE name = ?

-- name: queue_list
-- Key: PRIMARY, all rows in its order: there are few queues. Before them, with the id 0, stand
-- the names of jobs that are paused: they are fewer. (The first part decides how long a name
-- may be.)
SELECT 0 AS id, name, TRUE AS paused FROM nightshift_paused_name
UNION ALL
SELECT id, name, paused OR {all_paused} FROM nightshift_queue FORCE INDEX (PRIMARY)

-- name: queue_paused
-- Params: id. Key: PRIMARY; all paused names, they are few. Integers: is it paused, and the mark
-- of the names of jobs that are (see ns_paused).
SELECT paused OR {all_paused} AS paused, {paused_mark} AS mark FROM nightshift_queue WHERE id = ?

-- name: queue_paused_names
-- Key: PRIMARY, all rows. The names of jobs that are paused.
SELECT name FROM nightshift_paused_name ORDER BY name

-- name: server_cluster
-- Is it a node of a Galera cluster? Not all servers know the variable (1193: no).
SELECT @@GLOBAL.wsrep_on

-- name: server_now
-- The clock; whether a lock wait ends the whole transaction here; the longest packet taken. And
-- a number for this server since its start: ids of sessions mean something only together with
-- it. About 0.4 ms.
SELECT {now}, @@innodb_rollback_on_timeout, @@max_allowed_packet,
  (SELECT CRC32(CONCAT_WS(' ', @@hostname, @@port, @@socket,
                          UNIX_TIMESTAMP() - VARIABLE_VALUE))
   FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'UPTIME')

-- name: session_place
-- Default database and role of the session, as a number: a reset leaves both as they are.
SELECT CRC32(CONCAT_WS('/', IFNULL(HEX(DATABASE()), '-'), IFNULL(HEX(CURRENT_ROLE()), '-')))
