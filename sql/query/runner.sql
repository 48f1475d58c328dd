-- Statements of the runners of hosts: about schedules (schedule_…), and about adopted tables, of
-- which rows are taken in as jobs (source_…). Sorted by name.
--
-- Only templates open an adopted table: for their {marks} lua/nightshift/source/text.lua puts in
-- the quoted names, the conditions and the assignments of a mapping. They run in UTC, so that
-- each time is an instant. Rows change by the table's primary key. FORCE INDEX, because the
-- server would rather take an index of the status, and locks more there.

-- name: schedule_add
-- Params: name. Key: PRIMARY; locks the row that it adds. One that is there stays.
INSERT IGNORE INTO nightshift_schedule (name, definition) VALUES (?, 'null')

-- name: schedule_declared
-- Params: [name,…]. Key: PRIMARY, one row at a time. No locks. Those of the names that scripts
-- declare and that tick.
SELECT STRAIGHT_JOIN s.name, s.definition, s.version
FROM JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(100) {bytes} PATH '$')) v
JOIN nightshift_schedule s FORCE INDEX (PRIMARY) ON s.name = v.name
WHERE s.version IS NOT NULL AND s.error IS NULL

-- name: schedule_due
-- Params: zones that this machine lacks ([name,…]), how many. Key: due, a range from its begin; locks
-- its rows, skipping rows that other hosts have. Schedules that are due, the oldest tick first.
SELECT name, definition, next_at, {now} AS now
FROM nightshift_schedule FORCE INDEX (due)
WHERE next_at <= {now} AND NOT JSON_CONTAINS(?, COALESCE(JSON_EXTRACT(definition, '$.zone'), '0'))
ORDER BY next_at LIMIT ? FOR UPDATE SKIP LOCKED

-- name: schedule_end
-- Params: name, when it was last declared. Key: PRIMARY. One that no script declares any more,
-- unless one has done so meanwhile.
DELETE FROM nightshift_schedule WHERE name = ? AND declared = ?

-- name: schedule_fail
-- Params: error, name. Key: PRIMARY. It has no ticks any more.
UPDATE nightshift_schedule SET next_at = NULL, error = LEFT(?, 500) WHERE name = ?

-- name: schedule_forgotten
-- Params: µs. Key: declared, a range from its begin. No locks. Schedules that no script has
-- declared for so long.
SELECT name, declared FROM nightshift_schedule FORCE INDEX (declared)
WHERE declared < {now} - ? LIMIT 1000

-- name: schedule_hold
-- Params: name. Key: PRIMARY; locks the row.
SELECT definition, next_at, paused = 1 AS paused, version, declared, error, {now} AS now
FROM nightshift_schedule WHERE name = ? FOR UPDATE

-- name: schedule_lack
-- Params: [name,…], a machine that lacks their zones; NULL: it has got them. Key: PRIMARY, one
-- row at a time, which it locks.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(100) {bytes} PATH '$')) v
STRAIGHT_JOIN nightshift_schedule s FORCE INDEX (PRIMARY) ON s.name = v.name
SET s.lacked_by = ?, s.lacked_at = {now}

-- name: schedule_list
-- All schedules, by name: the whole table. No locks.
SELECT name, definition, next_at, paused = 1 AS paused, version, last_at, last_job, skipped, error
FROM nightshift_schedule WHERE definition <> 'null' ORDER BY name

-- name: schedule_live
-- Params: [[queue,key],…]. Keys: name of queue, PRIMARY of unique_key, one row at a time. No
-- locks. Keys that a live job has.
SELECT STRAIGHT_JOIN u.ukey
FROM JSON_TABLE(?, '$[*]' COLUMNS (queue VARCHAR(64) {bytes} PATH '$[0]',
  ukey VARCHAR(190) {bytes} PATH '$[1]')) v
JOIN nightshift_queue q FORCE INDEX (name) ON q.name = v.queue
JOIN nightshift_unique_key u FORCE INDEX (PRIMARY) ON u.queue_id = q.id AND u.ukey = v.ukey

-- name: schedule_move
-- Params: [[name,next tick,last tick,last job,how many ticks were skipped],…]. Key: PRIMARY,
-- one row at a time, locked by schedule_due.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(100) {bytes} PATH '$[0]',
  next_at BIGINT PATH '$[1]', last_at BIGINT PATH '$[2]', last_job BIGINT PATH '$[3]',
  skipped INT PATH '$[4]')) v
STRAIGHT_JOIN nightshift_schedule s FORCE INDEX (PRIMARY) ON s.name = v.name
SET s.next_at = v.next_at, s.last_at = COALESCE(v.last_at, s.last_at),
  s.last_job = COALESCE(v.last_job, s.last_job), s.skipped = s.skipped + v.skipped

-- name: schedule_next
-- Key: due, its first row. No locks. µs until the first tick; below 0: there is none.
SELECT COALESCE((SELECT GREATEST(0, next_at - {now}) FROM nightshift_schedule FORCE INDEX (due)
  WHERE next_at > 0 ORDER BY next_at LIMIT 1), -1)

-- name: schedule_pause
-- Params: next tick, paused, next tick, name. Key: PRIMARY, locked by schedule_hold. A schedule
-- with a next tick has no error.
UPDATE nightshift_schedule
SET error = IF(? IS NULL, error, NULL), paused = ?, next_at = ? WHERE name = ?

-- name: schedule_put
-- Params: definition, next tick, version, when it was declared, name. Key: PRIMARY, locked by
-- schedule_hold.
UPDATE nightshift_schedule
SET definition = ?, next_at = ?, version = ?, declared = ?, error = NULL WHERE name = ?

-- name: schedule_remove
-- Params: name. Key: PRIMARY.
DELETE FROM nightshift_schedule WHERE name = ?

-- name: schedule_sign
-- Params: [[name,version],…] in order of the names, version of the scripts. Key: PRIMARY, one row at
-- a time, which it locks. Scripts declare them as they are, unless others have done so meanwhile.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(100) {bytes} PATH '$[0]',
  version BIGINT PATH '$[1]')) v
STRAIGHT_JOIN nightshift_schedule s FORCE INDEX (PRIMARY) ON s.name = v.name
SET s.version = GREATEST(s.version, ?), s.declared = {now} WHERE s.version = v.version

-- name: source_add
-- Params: table, mapping. Key: tab; locks its row. The mapping as people are shown it.
INSERT INTO nightshift_source (tab, mapping) VALUES (?, ?)
ON DUPLICATE KEY UPDATE mapping = VALUES(mapping)

-- name: source_attempts
-- Params: [[job,attempts],…]. Key: PRIMARY of job, one row at a time, written by us a moment
-- ago. Sets the failures that rows had before they were taken in.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', attempts INT PATH '$[1]')) v
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
SET j.attempts = v.attempts

-- name: source_back_ready
-- Params: queue, source, are failures known to the row, [job,…] or NULL for all, how many.
-- Keys: PRIMARY of ready, a range, and of job; locks both, skipping rows of claims. Jobs that
-- may be given back: a row does not know of polls or of waits. A row that counts no failures knows
-- of none; deaths alone are not worth keeping.
SELECT STRAIGHT_JOIN r.rank, r.ready_at, j.id, SUBSTRING_INDEX(j.ukey, ':', -1) AS row_id
FROM (SELECT ? AS queue, ? AS source, ? AS counts, ? AS ids) p
JOIN nightshift_ready r FORCE INDEX (PRIMARY) ON r.queue_id = p.queue AND r.job_id > 0
  AND (p.ids IS NULL OR JSON_CONTAINS(p.ids, r.job_id))
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = r.job_id AND j.run = r.run
WHERE j.ukey LIKE CONCAT('row:', p.source, ':%') AND j.polls + j.phases = 0
  AND (p.counts OR j.attempts <= j.crashes + j.lost)
LIMIT ? FOR UPDATE SKIP LOCKED

-- name: source_back_unready
-- Params: queue, [[rank,ready_at,job],…]. Key: PRIMARY of ready, one row at a time, locked by
-- source_back_ready.
DELETE r FROM (SELECT ? AS queue) p
STRAIGHT_JOIN JSON_TABLE(?, '$[*]' COLUMNS (rank INT PATH '$[0]',
  ready_at BIGINT PATH '$[1]', job BIGINT PATH '$[2]')) v
STRAIGHT_JOIN nightshift_ready r FORCE INDEX (PRIMARY)
  ON r.queue_id = p.queue AND r.rank = v.rank AND r.ready_at = v.ready_at AND r.job_id = v.job

-- name: source_columns
-- Params: table, four times. The live columns: which of them are the primary key (for
-- COLUMN_KEY another may be), hold JSON, are generated. With each the engine (NULL: the table
-- is being altered), and the zone of times without one, where the mapping does not name it.
SELECT c.COLUMN_NAME AS name, c.DATA_TYPE AS data_type, c.COLUMN_TYPE AS type,
  CAST(COALESCE(c.CHARACTER_MAXIMUM_LENGTH, 0) AS SIGNED) AS length,
  c.IS_NULLABLE = 'YES' AS nullable,
  EXISTS(SELECT 1 FROM information_schema.STATISTICS s
    WHERE s.TABLE_SCHEMA = DATABASE() AND s.TABLE_NAME = ? AND s.INDEX_NAME = 'PRIMARY'
      AND s.COLUMN_NAME = c.COLUMN_NAME) AS is_primary,
  EXISTS(SELECT 1 FROM information_schema.CHECK_CONSTRAINTS k
    WHERE k.CONSTRAINT_SCHEMA = DATABASE() AND k.TABLE_NAME = ?
      AND k.CHECK_CLAUSE = CONCAT('json_valid(`', c.COLUMN_NAME, '`)')) AS is_json,
  c.CHARACTER_SET_NAME AS charset, c.COLLATION_NAME AS collation,
  c.IS_GENERATED = 'ALWAYS' AS is_generated, @@global.time_zone AS zone,
  (SELECT x.ENGINE FROM information_schema.TABLES x
    WHERE x.TABLE_SCHEMA = DATABASE() AND x.TABLE_NAME = ?) AS engine
FROM information_schema.COLUMNS c
WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = ?
ORDER BY c.ORDINAL_POSITION

-- name: source_counts
-- Template. Params: how many are counted of each, five times. Index: status. No locks. Rows by
-- state, without rows that have jobs; and µs until the next waiting one is due.
{source_utc}SELECT r.n AS ready, w.n AS waiting, w.next_due, c.n AS theirs, d.n AS done, x.n AS dead
FROM (SELECT COUNT(*) AS n FROM (SELECT 1 FROM {table} t WHERE {ready} LIMIT ?) l) r
JOIN (SELECT COUNT(*) AS n, MIN(l.due) AS next_due
  FROM (SELECT {until} AS due FROM {table} t WHERE {later} LIMIT ?) l) w
JOIN (SELECT COUNT(*) AS n FROM (SELECT 1 FROM {table} t WHERE {theirs} LIMIT ?) l) c
JOIN (SELECT COUNT(*) AS n FROM (SELECT 1 FROM {table} t WHERE {done} LIMIT ?) l) d
JOIN (SELECT COUNT(*) AS n FROM (SELECT 1 FROM {table} t WHERE {dead} LIMIT ?) l) x

-- name: source_debts
-- Params: source, the row behind which the debts begin, the last row, how many. Key: of_row, a
-- range in its order; locks them, skipping debts that another runner has.
SELECT seq, row_id, job_id, failures, due, outcome
FROM nightshift_owed FORCE INDEX (of_row)
WHERE source = ? AND row_id > ? AND row_id <= ?
ORDER BY source, row_id, seq LIMIT ? FOR UPDATE SKIP LOCKED

-- name: source_delete
-- Template. Params: [row,…]. Key: PRIMARY, one row at a time, locked by source_lock.
DELETE t FROM JSON_TABLE(?, {ids}) l
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id

-- name: source_disown
-- Params: source. Gives up the lock of source_own.
DO RELEASE_LOCK(CONCAT('nightshift-source:', {here}, ':', ?))

-- name: source_end
-- Template. Params: row, job, run, holder, µs since its start or NULL, result, queue, unique key,
-- lease or NULL, number of the cycle. A whole transaction in one round trip: ends a done job and
-- writes its row. It does the work of settle_lock, settle_finish, source_write, settle_unique,
-- settle_gone, settle_lease and holder_cycle. Keys: PRIMARY of each; does not wait for locks of the
-- job or of its row. It fails, and nothing is written, when the row is not the job's, or locked,
-- and when jobs wait for this one. Those are looked for when the job is locked. A failure is rolled
-- back here or, after a KILL, by the sender. No EXISTS: see source_known.
BEGIN NOT ATOMIC
  DECLARE v_row BIGINT DEFAULT ?;
  DECLARE v_job BIGINT DEFAULT ?;
  DECLARE v_run INT UNSIGNED DEFAULT ?;
  DECLARE v_holder BIGINT DEFAULT ?;
  DECLARE v_ago BIGINT DEFAULT ?;
  DECLARE v_result MEDIUMTEXT {bytes} DEFAULT ?;
  DECLARE v_queue INT DEFAULT ?;
  DECLARE v_key VARCHAR(190) {bytes} DEFAULT ?;
  DECLARE v_lease BIGINT DEFAULT ?;
  DECLARE v_cycle BIGINT DEFAULT ?;
  DECLARE v_worker INT UNSIGNED;
  DECLARE v_n INT;
  DECLARE v_waits BIGINT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  START TRANSACTION;
  {finish_job};
  SET v_n = ROW_COUNT();
  IF v_n = 1 THEN
    SET STATEMENT time_zone='+00:00', innodb_lock_wait_timeout=0, lock_wait_timeout=0 FOR
      UPDATE {table} t FORCE INDEX (PRIMARY) SET {set} WHERE {id} = v_row AND ({where});
    SET v_n = v_n + ROW_COUNT();
    DELETE FROM nightshift_unique_key
    WHERE queue_id = v_queue AND ukey = v_key AND job_id = v_job;
    SET v_n = v_n + ROW_COUNT();
    {leave_job};
  END IF;
  IF v_n <> 6 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'it takes more than one statement';
  END IF;
  COMMIT;
END

-- name: source_find
-- Params: table. Key: tab. No locks.
SELECT id, mapping, rate FROM nightshift_source WHERE tab = ?

-- name: source_hold
-- Template. Params: [[row,job],…]. Key: PRIMARY, one row at a time; locks rows that are still
-- the jobs', skipping locked ones, or waits for these.
{source_now}SELECT STRAIGHT_JOIN l.id, l.job
FROM JSON_TABLE(?, {source_rows}) l
JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id WHERE {where}
FOR UPDATE {past}

-- name: source_indexes
-- Params: table. The columns of each index, in backticks; DESC marks the ones behind the first
-- that run downwards.
SELECT GROUP_CONCAT('`', REPLACE(COLUMN_NAME, '`', '``'), '`',
  IF(SEQ_IN_INDEX > 1 AND COLLATION = 'D', ' DESC', '') ORDER BY SEQ_IN_INDEX SEPARATOR ', ') AS columns
FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? GROUP BY INDEX_NAME

-- name: source_into
-- Params: target, target, table. The columns of the table, with the target's engine (NULL:
-- there is no target). And whether the target generates the column's value (NULL: it has no
-- such column).
SELECT x.ENGINE AS engine, c.COLUMN_NAME AS name, d.IS_GENERATED AS made
FROM information_schema.COLUMNS c
LEFT JOIN information_schema.TABLES x ON x.TABLE_SCHEMA = DATABASE() AND x.TABLE_NAME = ?
LEFT JOIN information_schema.COLUMNS d ON d.TABLE_SCHEMA = DATABASE() AND d.TABLE_NAME = ?
  AND d.COLUMN_NAME = c.COLUMN_NAME
WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = ?
ORDER BY c.ORDINAL_POSITION

-- name: source_jobs
-- Params: queue, the key behind which they begin, the end of such keys, how many. Keys: PRIMARY
-- of unique_key, a range; PRIMARY of job, one row at a time. No locks. How many jobs of its
-- rows are in which state, and µs until the next of them is due.
SELECT x.state, COUNT(*) AS n, MIN(x.due) - {now} AS next_due
FROM (SELECT {state} AS state, j.due
  FROM (SELECT job_id FROM nightshift_unique_key FORCE INDEX (PRIMARY)
    WHERE queue_id = ? AND ukey > ? AND ukey < ? LIMIT ?) u
  STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = u.job_id
  LEFT JOIN {claims}) x
GROUP BY x.state

-- name: source_known
-- Params: queue, source, [row,…]. Keys: PRIMARY of unique_key, of_row; one row at a time. No
-- locks. Rows that have a job, or are owed something; some more than once. Joins, because a server
-- that KILL QUERY hits in the first run of a prepared EXISTS may end by SIGSEGV in the next.
SELECT STRAIGHT_JOIN v.id
FROM (SELECT ? AS queue, ? AS source) p
JOIN JSON_TABLE(?, {ids}) v
LEFT JOIN nightshift_unique_key u FORCE INDEX (PRIMARY)
  ON u.queue_id = p.queue AND u.ukey = CONCAT('row:', p.source, ':', v.id)
LEFT JOIN nightshift_owed o FORCE INDEX (of_row) ON o.source = p.source AND o.row_id = v.id
WHERE u.job_id IS NOT NULL OR o.seq IS NOT NULL

-- name: source_list
-- All sources with their settings and the number of rows with debts. unserved: µs since a host
-- last took in rows; NULL: one does, or none has. Only the 100,000 oldest debts are counted.
-- Keys: name of queue; PRIMARY of owed, a range. No locks.
SELECT s.id, s.tab AS `table`, s.mapping, s.rate, COALESCE(q.paused, 0) OR {all_paused} AS paused,
  IS_USED_LOCK(CONCAT('nightshift-source:', {here}, ':', s.id)) IS NOT NULL AS served,
  {now} - s.seen AS unserved, COALESCE(o.n, 0) AS owed, COALESCE(o.refused, 0) AS refused, o.why
FROM nightshift_source s
LEFT JOIN nightshift_queue q ON q.name = s.tab
LEFT JOIN (SELECT d.source, COUNT(DISTINCT d.row_id) AS n,
    COUNT(DISTINCT IF(d.why IS NULL, NULL, d.row_id)) AS refused, MIN(d.why) AS why
  FROM (SELECT source, row_id, why FROM nightshift_owed ORDER BY seq LIMIT 100000) d
  GROUP BY d.source) o ON o.source = s.id
ORDER BY s.tab

-- name: source_live
-- Params: queue, the key behind which they begin, the end of such keys, how many. Key: PRIMARY
-- of unique_key, a range in its order. No locks. The jobs of its rows.
SELECT ukey, SUBSTRING_INDEX(ukey, ':', -1) AS row_id, job_id
FROM nightshift_unique_key FORCE INDEX (PRIMARY)
WHERE queue_id = ? AND ukey > ? AND ukey < ? ORDER BY ukey LIMIT ?

-- name: source_lock
-- Template. Params: [row,…], how many. Key: PRIMARY, one row at a time, in the order of the
-- list; locks its rows, does not wait for locks.
{source_utc}SELECT STRAIGHT_JOIN {columns}
FROM JSON_TABLE(?, {ids}) l
JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id WHERE {where}
LIMIT ? FOR UPDATE SKIP LOCKED

-- name: source_lost
-- Template. Params: [[row,job],…]. Key: PRIMARY, one row at a time. No locks. Jobs that have lost
-- their row: it is gone, or says so.
{source_now}SELECT STRAIGHT_JOIN l.id, l.job
FROM JSON_TABLE(?, {source_rows}) l
LEFT JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id WHERE NOT COALESCE({where}, FALSE)

-- name: source_move
-- Template. Params: [row,…]. Key: PRIMARY, one row at a time, locked by source_lock. A row that
-- the target already has is an error.
INSERT INTO {into} ({to}) SELECT {from}
FROM JSON_TABLE(?, {ids}) l
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id

-- name: source_next
-- Template. Seconds until the first row that waits for its time may be taken in; NULL: none
-- waits. Index: status. No locks.
{source_utc}SELECT MIN(v.due) / 1000000 AS seconds
FROM (SELECT {until} AS due FROM {table} t WHERE {where} LIMIT 100000) v

-- name: source_owe
-- Params: [[row,job,failures,due,outcome,source,why],…]. Key: PRIMARY, appended at its end. Does
-- not wait for locks.
INSERT INTO nightshift_owed (source, row_id, job_id, failures, due, outcome, why)
SELECT v.source, v.row_id, v.job, v.failures, v.due, v.outcome, v.why
FROM JSON_TABLE(?, '$[*]' COLUMNS (row_id BIGINT PATH '$[0]', job BIGINT PATH '$[1]',
  failures INT PATH '$[2]', due BIGINT PATH '$[3]', outcome VARCHAR(10) {bytes} PATH '$[4]',
  source INT PATH '$[5]', why VARCHAR(500) {bytes} PATH '$[6]')) v

-- name: source_own
-- Params: source. Does this session own the lock of the runner that takes in rows of a table?
-- Takes it when it is free; a session that stops answering loses it.
SELECT IF(IS_USED_LOCK(n.name) <=> CONNECTION_ID(), TRUE, GET_LOCK(n.name, 0)) AS ours
FROM (SELECT CONCAT('nightshift-source:', {here}, ':', ?) AS name) n

-- name: source_paid
-- Params: [seq,…]. Key: PRIMARY of owed, one row at a time, locked by source_debts.
DELETE o FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_owed o FORCE INDEX (PRIMARY) ON o.seq = v.id

-- name: source_pick
-- Template. Params: those of its condition, how many. Ids of rows: by an index of the status, or by
-- PRIMARY in their order, behind one of them. There nothing is sorted, and deleted rows are not
-- read again. No locks.
{source_utc}SELECT {id} AS id FROM {table} t {index}
WHERE {where} ORDER BY {order} LIMIT ?

-- name: source_refused
-- Params: words, source, row. Key: of_row, the debts to a row. The server has refused them.
UPDATE nightshift_owed FORCE INDEX (of_row) SET why = ? WHERE source = ? AND row_id = ?

-- name: source_row
-- Template. Params: row. Key: PRIMARY. No locks. The state of a row: done, dead, or live.
{source_utc}SELECT CASE WHEN {done} THEN 'done' WHEN {dead} THEN 'dead' ELSE 'live' END AS state
FROM {table} t FORCE INDEX (PRIMARY) WHERE {id} = ?

-- name: source_session
-- Params: seconds after which the server ends a session that is silent.
SET SESSION wait_timeout = ?

-- name: source_state
-- Params: queue, how many, queue, source. Keys: PRIMARY of ready, a range of
-- so many; PRIMARY of unique_key, of_row; a row each. No locks. How many jobs are ready; do jobs
-- of the table live, are rows owed anything, and anything that was not refused?
SELECT q.paused OR {all_paused} AS paused, s.rate,
  (SELECT COUNT(*) FROM (SELECT 1 FROM nightshift_ready FORCE INDEX (PRIMARY)
    WHERE queue_id = ? AND job_id > 0 LIMIT ?) r) AS ready,
  EXISTS(SELECT 1 FROM nightshift_unique_key u FORCE INDEX (PRIMARY) WHERE u.queue_id = q.id
    AND u.ukey > CONCAT('row:', s.id, ':') AND u.ukey < CONCAT('row:', s.id, ';')) AS live,
  EXISTS(SELECT 1 FROM nightshift_owed o FORCE INDEX (of_row) WHERE o.source = s.id) AS owed,
  EXISTS(SELECT 1 FROM nightshift_owed o FORCE INDEX (of_row)
    WHERE o.source = s.id AND o.why IS NULL) AS fresh
FROM nightshift_queue q JOIN nightshift_source s WHERE q.id = ? AND s.id = ?

-- name: source_there
-- Template. Gives no row; an error when there is no such table. Waits for a session that alters
-- it.
SELECT 1 FROM {table} t LIMIT 0

-- name: source_try
-- Template. Does the server know a time zone?
SET STATEMENT time_zone='{zone}' FOR DO 1

-- name: source_tune
-- Params: rows a second or NULL, source. Key: PRIMARY; locks its row.
UPDATE nightshift_source SET rate = ? WHERE id = ?

-- name: source_turn
-- Params: source, µs. Key: PRIMARY, one row. Says that this session looks after the table, when no
-- other has for so long.
UPDATE nightshift_source SET runner = CONNECTION_ID(), seen = {now}
WHERE id = ? AND COALESCE(seen, 0) <= {now} - ?

-- name: source_write
-- Template. Params: [[row,job,failures,due],…]. Key: PRIMARY, one row at a time, locked by
-- source_lock or source_hold; 1205 at once when another session has locked one.
SET STATEMENT time_zone='+00:00', innodb_lock_wait_timeout=0, lock_wait_timeout=0 FOR
UPDATE JSON_TABLE(?, {source_rows}) l
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id SET {set} WHERE {where}
