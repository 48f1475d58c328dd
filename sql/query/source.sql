-- Statements about adopted tables: their rows are taken in as jobs. Sorted by name.
--
-- Only templates open such a table: lua/nightshift/source/text.lua puts in for their {marks} the
-- quoted names, the conditions and the assignments of a mapping. They run in UTC, so that each
-- time is an instant. Rows change by the table's primary key; FORCE INDEX, because the server
-- would rather take one of the status, and locks more there.

-- name: source_add
-- Params: table, mapping. Key: tab; locks its row. What people are shown of it.
INSERT INTO nightshift_source (tab, mapping) VALUES (?, ?)
ON DUPLICATE KEY UPDATE mapping = VALUES(mapping)

-- name: source_attempts
-- Params: [[job,attempts],…]. Key: PRIMARY of job, one row at a time, written by us a moment
-- ago. Rows that have failed before come in as what they are.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', attempts INT PATH '$[1]')) v
STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
SET j.attempts = v.attempts

-- name: source_back_keys
-- Params: queue, source, [[row,job],…]. Key: PRIMARY of unique_key, one row at a time. They
-- are jobs no more.
DELETE u FROM (SELECT ? AS queue, ? AS source) p
STRAIGHT_JOIN JSON_TABLE(?, {rows}) v
STRAIGHT_JOIN nightshift_unique_key u FORCE INDEX (PRIMARY)
  ON u.queue_id = p.queue AND u.ukey = CONCAT('row:', p.source, ':', v.row_id)
  AND u.job_id = v.job

-- name: source_back_ready
-- Params: queue, source, are failures known to the row, [job,…] or NULL for all, how many.
-- Keys: PRIMARY of ready, a range, and of job; locks both, around what claims have. Jobs that
-- may be given back: a row does not know of polls, of waits, or that a worker has died.
SELECT STRAIGHT_JOIN r.rank, r.ready_at, j.id, SUBSTRING_INDEX(j.ukey, ':', -1) AS row_id
FROM (SELECT ? AS queue, ? AS source, ? AS counts, ? AS ids) p
JOIN nightshift_ready r FORCE INDEX (PRIMARY) ON r.queue_id = p.queue AND r.job_id > 0
  AND (p.ids IS NULL OR JSON_CONTAINS(p.ids, r.job_id))
JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = r.job_id AND j.run = r.run
WHERE j.ukey LIKE CONCAT('row:', p.source, ':%') AND j.polls + j.phases + j.crashes = 0
  AND (p.counts OR j.attempts = 0)
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
-- Params: table, three times. The live columns: which of them are the primary key (for
-- COLUMN_KEY another may be), hold JSON, are generated.
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
  c.IS_GENERATED = 'ALWAYS' AS is_generated
FROM information_schema.COLUMNS c
WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = ?
ORDER BY c.ORDINAL_POSITION

-- name: source_debts
-- Params: source, the row behind which they begin, how many. Key: of_row, a range in its
-- order; locks them, around those that another runner has.
SELECT seq, row_id, job_id, failures, due, outcome
FROM nightshift_owed FORCE INDEX (of_row)
WHERE source = ? AND row_id > ? ORDER BY source, row_id, seq LIMIT ? FOR UPDATE SKIP LOCKED

-- name: source_debts_of
-- Params: source, [row,…]. Key: of_row, one row at a time; locks them. What some rows are owed.
SELECT STRAIGHT_JOIN o.seq, o.row_id, o.job_id, o.failures, o.due, o.outcome
FROM (SELECT ? AS source) p
JOIN JSON_TABLE(?, {ids}) v
JOIN nightshift_owed o FORCE INDEX (of_row) ON o.source = p.source AND o.row_id = v.id
FOR UPDATE SKIP LOCKED

-- name: source_disown
-- Params: source. Gives up the lock of source_own.
DO RELEASE_LOCK(CONCAT('nightshift-source:', {here}, ':', ?))

-- name: source_engine
-- Params: table. What keeps its rows; no row: it is being altered.
SELECT ENGINE AS engine FROM information_schema.TABLES
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?

-- name: source_find
-- Params: table. Key: tab. No locks.
SELECT id, mapping, rate FROM nightshift_source WHERE tab = ?

-- name: source_hold
-- Template. Params: [[row,job],…]. Key: PRIMARY, one row at a time; locks those that are the
-- jobs' still, does not wait for locks.
{source_utc}SELECT STRAIGHT_JOIN l.id, l.job
FROM JSON_TABLE(?, {source_rows}) l
JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id WHERE {where}
FOR UPDATE SKIP LOCKED

-- name: source_known
-- Params: queue, source, [row,…]. Keys: PRIMARY of unique_key, of_row; one row at a time. No
-- locks. Rows that have a job, or are owed something.
SELECT STRAIGHT_JOIN v.id
FROM (SELECT ? AS queue, ? AS source) p
JOIN JSON_TABLE(?, {ids}) v
WHERE EXISTS(SELECT 1 FROM nightshift_unique_key u FORCE INDEX (PRIMARY)
    WHERE u.queue_id = p.queue AND u.ukey = CONCAT('row:', p.source, ':', v.id))
  OR EXISTS(SELECT 1 FROM nightshift_owed o FORCE INDEX (of_row)
    WHERE o.source = p.source AND o.row_id = v.id)

-- name: source_live
-- Params: queue, the key behind which they begin, the end of such keys, how many. Key: PRIMARY
-- of unique_key, a range in its order. No locks. The jobs of its rows.
SELECT ukey, SUBSTRING_INDEX(ukey, ':', -1) AS row_id, job_id
FROM nightshift_unique_key FORCE INDEX (PRIMARY)
WHERE queue_id = ? AND ukey > ? AND ukey < ? ORDER BY ukey LIMIT ?

-- name: source_lock
-- Template. Params: [row,…], how many. Key: PRIMARY, one row at a time, in the order of the
-- list; locks what it gives, does not wait for locks.
{source_utc}SELECT STRAIGHT_JOIN {columns}
FROM JSON_TABLE(?, {ids}) l
JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id WHERE {where}
LIMIT ? FOR UPDATE SKIP LOCKED

-- name: source_look
-- Template. Params: the lowest row, [row,…] to leave alone, [name,…] that are served or NULL,
-- how many. Rows that may be taken in. Index: status, then the order. No locks.
{source_utc}SELECT {id} AS id FROM {table} t
WHERE {where} AND {id} >= ? AND NOT JSON_CONTAINS(?, {id}) AND ({served})
ORDER BY {order} LIMIT ?

-- name: source_lost
-- Template. Params: [[row,job],…]. Key: PRIMARY, one row at a time. No locks. Jobs that have lost
-- their row: it is gone, or says so.
{source_utc}SELECT STRAIGHT_JOIN l.id, l.job
FROM JSON_TABLE(?, {source_rows}) l
LEFT JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id WHERE NOT COALESCE({where}, FALSE)

-- name: source_next
-- Template. Seconds until the first row that waits for its time may be taken in; no row: none
-- waits. Index: status. No locks.
{source_utc}SELECT MIN(v.seconds) AS seconds
FROM (SELECT {seconds} AS seconds FROM {table} t WHERE {where} LIMIT 100000) v
WHERE v.seconds > 0

-- name: source_overdue
-- Template. Params: how many. Rows that other programs have had for too long. Index: status. No
-- locks.
{source_utc}SELECT {id} AS id FROM {table} t WHERE {where} LIMIT ?

-- name: source_owe
-- Params: [[source,row,job,failures,due,outcome],…]. Key: PRIMARY, appended at its end. Does not
-- wait for locks.
INSERT INTO nightshift_owed (source, row_id, job_id, failures, due, outcome)
SELECT v.source, v.row_id, v.job, v.failures, v.due, v.outcome
FROM JSON_TABLE(?, '$[*]' COLUMNS (source INT PATH '$[0]', row_id BIGINT PATH '$[1]',
  job BIGINT PATH '$[2]', failures INT PATH '$[3]', due BIGINT PATH '$[4]',
  outcome VARCHAR(10) {bytes} PATH '$[5]')) v

-- name: source_own
-- Params: source. Does this session own the lock of those who take in rows of a
-- table? Takes it when it is free; a session that stops answering loses it.
SELECT IF(IS_USED_LOCK(n.name) <=> CONNECTION_ID(), TRUE, GET_LOCK(n.name, 0)) AS ours
FROM (SELECT CONCAT('nightshift-source:', {here}, ':', ?) AS name) n

-- name: source_paid
-- Params: [seq,…]. Key: PRIMARY of owed, one row at a time, locked by source_debts.
DELETE o FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_owed o FORCE INDEX (PRIMARY) ON o.seq = v.id

-- name: source_past_job
-- Params: job. Keys: PRIMARY of finished, locks the row; PRIMARY of unique_key, without locks. Is a
-- finished job done, what is its key, and which live job has that?
SELECT f.outcome = 'done', f.ukey,
  (SELECT u.job_id FROM nightshift_unique_key u
    WHERE u.queue_id = f.queue_id AND u.ukey = f.ukey)
FROM nightshift_finished f FORCE INDEX (PRIMARY) WHERE f.id = ? FOR UPDATE

-- name: source_refused
-- Params: words, [seq,…]. Key: PRIMARY of owed, one row at a time. The server has refused them.
UPDATE (SELECT ? AS words) p STRAIGHT_JOIN JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_owed o FORCE INDEX (PRIMARY) ON o.seq = v.id SET o.why = p.words

-- name: source_seen
-- Params: source. Key: PRIMARY; locks its row. This session serves the table.
UPDATE nightshift_source SET runner = CONNECTION_ID(), seen = {now} WHERE id = ?

-- name: source_session
-- Params: seconds after which the server ends a session that is silent.
SET SESSION wait_timeout = ?

-- name: source_state
-- Params: queue, how many, queue, source. Keys: PRIMARY of ready, a range of
-- so many; PRIMARY of unique_key, of_row; a row each. No locks. How many jobs are ready; do jobs
-- of the table live, are rows owed anything, and anything that was not refused?
SELECT q.paused, s.rate,
  (SELECT COUNT(*) FROM (SELECT 1 FROM nightshift_ready FORCE INDEX (PRIMARY)
    WHERE queue_id = ? AND job_id > 0 LIMIT ?) r) AS ready,
  EXISTS(SELECT 1 FROM nightshift_unique_key u FORCE INDEX (PRIMARY) WHERE u.queue_id = q.id
    AND u.ukey > CONCAT('row:', s.id, ':') AND u.ukey < CONCAT('row:', s.id, ';')) AS live,
  EXISTS(SELECT 1 FROM nightshift_owed o FORCE INDEX (of_row) WHERE o.source = s.id) AS owed,
  EXISTS(SELECT 1 FROM nightshift_owed o FORCE INDEX (of_row)
    WHERE o.source = s.id AND o.why IS NULL) AS fresh
FROM nightshift_queue q JOIN nightshift_source s WHERE q.id = ? AND s.id = ?

-- name: source_there
-- Template. No row; an error when there is no such table. Waits for who alters it.
SELECT 1 FROM {table} t LIMIT 0

-- name: source_try
-- Template. Does the server know a time zone?
SET STATEMENT time_zone='{zone}' FOR DO 1

-- name: source_turn
-- Params: source, µs. Key: PRIMARY, one row. Changes it when nobody has looked after the table
-- for so long.
UPDATE nightshift_source SET seen = {now} WHERE id = ? AND COALESCE(seen, 0) <= {now} - ?

-- name: source_write
-- Template. Params: [[row,job,failures,due],…]. Key: PRIMARY, one row at a time, locked by
-- source_lock or source_hold; 1205 at once when another session has locked one.
SET STATEMENT time_zone='+00:00', innodb_lock_wait_timeout=0 FOR
UPDATE JSON_TABLE(?, {source_rows}) l
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id SET {set} WHERE {where}

-- name: source_zone
-- The zone of times that have none, where the mapping does not say it.
SELECT @@global.time_zone AS zone
