-- Statements about adopted tables whose rows are taken in as jobs. Sorted by name.
--
-- Only templates open such a table: lua/nightshift/source/text.lua puts in for their {marks} the
-- quoted names, the conditions and the assignments of a mapping. They run in UTC, so that each
-- time is an instant. Rows change by the table's primary key; FORCE INDEX, because the server
-- would rather take one of the status, and locks more there.

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

-- name: source_engine
-- Params: table. What keeps its rows; no row: somebody is altering it.
SELECT ENGINE AS engine FROM information_schema.TABLES
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?

-- name: source_hold
-- Template. Params: [[row,job],…]. Key: PRIMARY, one row at a time; locks those that are the
-- jobs' still, waits for nobody.
{source_utc}SELECT STRAIGHT_JOIN l.id, l.job
FROM JSON_TABLE(?, {source_rows}) l
JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id WHERE {where}
FOR UPDATE SKIP LOCKED

-- name: source_lock
-- Template. Params: [row,…], how many. Key: PRIMARY, one row at a time, in the order of the
-- list; locks what it gives, waits for nobody.
{source_utc}SELECT STRAIGHT_JOIN {columns}
FROM JSON_TABLE(?, {ids}) l
JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id WHERE {where}
LIMIT ? FOR UPDATE SKIP LOCKED

-- name: source_look
-- Template. Params: the lowest row, [row,…] to leave alone, how many. Rows that may be taken
-- in. Index: status, then the order. No locks.
{source_utc}SELECT {id} AS id FROM {table} t
WHERE {where} AND {id} >= ? AND NOT JSON_CONTAINS(?, {id})
ORDER BY {order} LIMIT ?

-- name: source_lost
-- Template. Params: [[row,job],…]. Key: PRIMARY, one row at a time. No locks. Jobs whose rows
-- are gone, or theirs no more.
{source_utc}SELECT STRAIGHT_JOIN l.id, l.job
FROM JSON_TABLE(?, {source_rows}) l
LEFT JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id WHERE NOT COALESCE({where}, FALSE)

-- name: source_overdue
-- Template. Params: how many. Rows that others have had for too long. Index: status. No locks.
{source_utc}SELECT {id} AS id FROM {table} t WHERE {where} LIMIT ?

-- name: source_owe
-- Params: [[source,row,job,failures,due,outcome],…]. Key: PRIMARY, appended at its end. Waits
-- for nobody.
INSERT INTO nightshift_owed (source, row_id, job_id, failures, due, outcome)
SELECT v.source, v.row_id, v.job, v.failures, v.due, v.outcome
FROM JSON_TABLE(?, '$[*]' COLUMNS (source INT PATH '$[0]', row_id BIGINT PATH '$[1]',
  job BIGINT PATH '$[2]', failures INT PATH '$[3]', due BIGINT PATH '$[4]',
  outcome VARCHAR(10) {bytes} PATH '$[5]')) v

-- name: source_there
-- Template. No row; an error when there is no such table. Waits for who alters it.
SELECT 1 FROM {table} t LIMIT 0

-- name: source_write
-- Template. Params: [[row,job,failures,due],…]. Key: PRIMARY, one row at a time, locked by
-- source_lock or source_hold; 1205 at once when somebody has locked one that is not.
SET STATEMENT time_zone='+00:00', innodb_lock_wait_timeout=0 FOR
UPDATE JSON_TABLE(?, {source_rows}) l
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id SET {set} WHERE {where}

-- name: source_zone
-- The zone of times that have none, where the mapping does not say it.
SELECT @@global.time_zone AS zone
