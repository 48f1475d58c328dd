-- Existing tables as queues. Sorted by name.
--
-- Most of these are templates: adopt/text.c puts in for {marks} the quoted
-- names of columns, the conditions and assignments of a mapping, and a ? for each
-- of its values; {:marks} are parameters of the call. {zone} sets the time zone in
-- which DATETIME columns are written, for one statement; {at_once} a lock wait of
-- zero as well, so that a row that another session has locked is 1205. All rows change by the
-- table's primary key, except in adopt_claim; FORCE INDEX, because the server would
-- rather take one of the status, which has the key at its end, and locks more there.

-- name: adopt_abandoned
-- Rows that are marked as taken and that no session has locked, nor is about to: their claimant is
-- dead. Index: status, without locks; then PRIMARY: locks what is free,
-- does not wait for locks.
{zone}SELECT {id}, {claimed}
FROM (SELECT {id} FROM {table} t WHERE {taken} AND {settled} LIMIT 1000) l
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.{key} WHERE {taken} LIMIT 100
FOR UPDATE SKIP LOCKED

-- name: adopt_ack
-- Key: PRIMARY.
{at_once}UPDATE {table} t FORCE INDEX (PRIMARY) SET {done} WHERE {id} = {:row} AND {ours}

-- name: adopt_again
-- Key: PRIMARY.
{at_once}UPDATE {table} t FORCE INDEX (PRIMARY) SET {again} WHERE {id} = {:row} AND {ours}

-- name: adopt_childless
-- Part of {childless}: no row has it for a parent. An index on the parent, one row.
NOT EXISTS(SELECT 1 FROM {table} c WHERE c.{parent_key} = {id} AND c.{key} <> {id})

-- name: adopt_claim
-- The classic. Index: status, then the order; locks the rows it reads; 1205 at once
-- when one is locked.
{at_once}UPDATE {table} t SET {claim} WHERE {ready} AND {unheld} ORDER BY {first}{order} LIMIT {:limit}

-- name: adopt_columns
-- Params: table, three times. The live columns: which of them are the primary key (for
-- COLUMN_KEY another may be), hold JSON, are generated.
SELECT c.COLUMN_NAME, c.DATA_TYPE, c.COLUMN_TYPE,
  CAST(COALESCE(c.CHARACTER_MAXIMUM_LENGTH, 0) AS SIGNED), c.IS_NULLABLE = 'YES',
  EXISTS(SELECT 1 FROM information_schema.STATISTICS s
    WHERE s.TABLE_SCHEMA = DATABASE() AND s.TABLE_NAME = ? AND s.INDEX_NAME = 'PRIMARY'
      AND s.COLUMN_NAME = c.COLUMN_NAME),
  EXISTS(SELECT 1 FROM information_schema.CHECK_CONSTRAINTS k
    WHERE k.CONSTRAINT_SCHEMA = DATABASE() AND k.TABLE_NAME = ?
      AND k.CHECK_CLAUSE = CONCAT('json_valid(`', c.COLUMN_NAME, '`)')),
  c.CHARACTER_SET_NAME, c.COLLATION_NAME, c.IS_GENERATED = 'ALWAYS'
FROM information_schema.COLUMNS c
WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = ?
ORDER BY c.ORDINAL_POSITION

-- name: adopt_control
-- Params: mapping, table. Key: PRIMARY of both. What was decided about it, whether it is
-- known as it is, and whether some of its rows have failed.
SELECT paused, held_until, gap, next_at, block, workers, mapping = ?,
  EXISTS(SELECT 1 FROM nightshift_adopted_error e WHERE e.tab = a.tab)
FROM nightshift_adopted a WHERE tab = ?

-- name: adopt_counts
-- How many rows there are in each state, up to a limit, as counting all takes long.
-- Index: status. No locks.
{zone}SELECT
  (SELECT COUNT(*) FROM (SELECT 1 FROM {table} t WHERE {ready} LIMIT {:limit}) x),
  (SELECT COUNT(*) FROM (SELECT 1 FROM {table} t WHERE {unready} LIMIT {:limit}) x),
  (SELECT COUNT(*) FROM ({running} LIMIT {:limit}) x),
  (SELECT COUNT(*) FROM (SELECT 1 FROM {table} t WHERE {finished} LIMIT {:limit}) x),
  (SELECT COUNT(*) FROM (SELECT 1 FROM {table} t WHERE {dead} LIMIT {:limit}) x)

-- name: adopt_dead
-- Rows that no claim takes any more, with their last error. Index: status; PRIMARY
-- of adopted_error. No locks.
{zone}SELECT {failures}, e.at, e.holder, e.error, {columns}
FROM {table} t LEFT JOIN nightshift_adopted_error e ON e.tab = {:table} AND e.row_id = {id}
WHERE {dead} AND {blamed} ORDER BY {id} LIMIT {:limit}

-- name: adopt_dead_groups
-- The same by kinds of errors, the most frequent first: of each how many, since when,
-- until when, and the latest row. Index: status; PRIMARY of adopted_error. No locks.
SELECT COALESCE({kind}, '') AS kind, COUNT(*) AS n, MIN(e.at), MAX(e.at), MAX({id})
FROM {table} t LEFT JOIN nightshift_adopted_error e ON e.tab = {:table} AND e.row_id = {id}
WHERE {dead} AND {blamed} GROUP BY kind ORDER BY n DESC, kind LIMIT {:limit}

-- name: adopt_dead_ids
-- Some of them. Index: status; PRIMARY of adopted_error. No locks.
SELECT {id}
FROM {table} t LEFT JOIN nightshift_adopted_error e ON e.tab = {:table} AND e.row_id = {id}
WHERE {dead} AND {blamed} LIMIT {:limit}

-- name: adopt_dead_long
-- Part of {old}: its last error is older than that. PRIMARY of adopted_error, one row.
(SELECT {:delay} IS NULL OR e.at < {now} - {:delay} FROM nightshift_adopted_error e
  WHERE e.tab = {:table} AND e.row_id = {id})

-- name: adopt_deaths
-- Params: whether named locks serve. Key: none, all holders: they are few. When the
-- last of them was declared dead, and whether one may be.
SELECT COALESCE(MAX(dead), 0), COUNT(CASE WHEN dead IS NULL AND ?
  AND IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', id)) THEN 1 END)
FROM nightshift_holder

-- name: adopt_discard
-- Key: PRIMARY.
{at_once}UPDATE {table} t FORCE INDEX (PRIMARY) SET {discard} WHERE {id} = {:row} AND {ours}

-- name: adopt_due
-- µs until the next open row may be claimed; NULL: none waits for its time. Index:
-- status. No locks.
{zone}SELECT {until} FROM {table} t WHERE {later}

-- name: adopt_ear
-- Params: the table's ear, by adopt_ear_name; our holder or 0; µs of a slice of the sleep,
-- how many, how many when other sessions have all the ear's named locks; whether other holders are
-- looked at. Takes one of those locks, as a trigger ends the query of the session that has one, and
-- sleeps: a wait for the named lock of our own work connection, as in listen_wait. Error
-- 1317 is a ring, or a holder's death. Slices, because a busy server misses the signal of
-- a KILL now and then, not its flag. Nothing here opens the adopted table: a KILL that
-- comes while the server reads a table's triggers leaves them broken for all sessions.
-- PRIMARY of holder, all: they are few. No locks.
BEGIN NOT ATOMIC
  DECLARE v_ear VARCHAR(200) {bytes} DEFAULT ?;
  DECLARE v_holder BIGINT DEFAULT ?;
  DECLARE v_slice BIGINT DEFAULT ?;
  DECLARE v_slices BIGINT DEFAULT ?;
  DECLARE v_deaf BIGINT DEFAULT ?;
  DECLARE v_watch BOOLEAN DEFAULT ?;
  DECLARE v_heard, v_found BOOLEAN DEFAULT FALSE;
  FOR v_i IN 0..3 DO
    IF NOT v_heard THEN
      SET v_heard = GET_LOCK(CONCAT(v_ear, v_i), 0);
    END IF;
  END FOR;
  IF NOT v_heard THEN
    SET v_slices = LEAST(v_slices, v_deaf);
  END IF;
  WHILE v_slices > 0 AND NOT v_found DO
    SET v_slices = v_slices - 1;
    SET v_found = IF(v_holder = 0, SLEEP(v_slice / 1000000),
      IF(GET_LOCK(CONCAT('nightshift:', {here}, ':', v_holder), v_slice / 1000000),
        RELEASE_LOCK(CONCAT('nightshift:', {here}, ':', v_holder)), FALSE));
    IF v_watch AND NOT v_found THEN
      SET v_found = EXISTS(SELECT 1 FROM nightshift_holder WHERE dead IS NULL
        AND id <> v_holder AND IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', id)));
    END IF;
  END WHILE;
  IF v_found THEN
    SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317;
  END IF;
END

-- name: adopt_ear_asleep
-- Params: a connection, the table's ear. Does it sleep, or do other sessions have all the locks?
SELECT COALESCE(SUM(l.thread = ?), 0) > 0 OR COUNT(l.thread) = 4
FROM (SELECT IS_USED_LOCK(CONCAT(?, k.n)) AS thread
  FROM JSON_TABLE('[0,1,2,3]', '$[*]' COLUMNS (n INT PATH '$')) k) l

-- name: adopt_ear_leave
-- Its connection has no other locks that it is to keep.
DO RELEASE_ALL_LOCKS()

-- name: adopt_ear_name
-- Params: table. What the named locks of its ears begin with, and whether triggers of
-- ours may end the queries of other users.
SELECT CONCAT('nightshift-ear:', {here}, MD5(?), ':'),
  EXISTS(SELECT 1 FROM information_schema.USER_PRIVILEGES
    WHERE BINARY GRANTEE = CONCAT(QUOTE(LEFT(CURRENT_USER(), CHAR_LENGTH(CURRENT_USER())
        - CHAR_LENGTH(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)) - 1)), '@',
      QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))
    AND PRIVILEGE_TYPE IN ('SUPER', 'CONNECTION ADMIN'))

-- name: adopt_ear_session
-- Who looks on behalf of an ear sees what is not committed yet.
SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED

-- name: adopt_engine
-- Params: table. What keeps its rows; no row: it is being altered.
SELECT ENGINE FROM information_schema.TABLES
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?

-- name: adopt_error_drop
-- Params: table, row. Key: PRIMARY; 1205 at once, and it goes by and by. It has not failed.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE nightshift_adopted_error FROM nightshift_adopted_error FORCE INDEX (PRIMARY)
WHERE tab = ? AND row_id = ?

-- name: adopt_error_drop_list
-- Params: [id,…], table. Key: PRIMARY. Their rows are gone.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE e FROM JSON_TABLE(?, {ids}) l
STRAIGHT_JOIN nightshift_adopted_error e FORCE INDEX (PRIMARY) ON e.tab = ? AND e.row_id = l.id

-- name: adopt_error_drop_seen
-- Params: table, row, at. Key: PRIMARY; 1205 at once. Not one that was written anew.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE nightshift_adopted_error FROM nightshift_adopted_error FORCE INDEX (PRIMARY)
WHERE tab = ? AND row_id = ? AND at = ?

-- name: adopt_error_left
-- Errors behind {:row} in the order of the rows, and whether that row still is at work, or
-- dead. Key: PRIMARY of both. No locks.
SELECT STRAIGHT_JOIN e.row_id, e.at, {id} IS NOT NULL AND NOT COALESCE({finished}, FALSE)
FROM nightshift_adopted_error e FORCE INDEX (PRIMARY)
LEFT JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = e.row_id
WHERE e.tab = {:table} AND e.row_id > {:row} ORDER BY e.row_id LIMIT {:limit}

-- name: adopt_error_old
-- Params: table, table, how many are kept less one, how many go. Key: at (tab, at). No locks. The
-- oldest of those that are too many.
SELECT row_id, at FROM nightshift_adopted_error e
WHERE tab = ? AND at < (SELECT x.at FROM nightshift_adopted_error x WHERE x.tab = ?
  ORDER BY x.at DESC LIMIT 1 OFFSET ?)
ORDER BY at LIMIT ?

-- name: adopt_error_put
-- Params: table, row, holder, attempt, error, attempt. Key: PRIMARY; 1205 at once. The row
-- is ours, so no other session writes of it. attempt NULL: one more.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
INSERT INTO nightshift_adopted_error (tab, row_id, at, holder, attempt, error)
VALUES (?, ?, {now}, ?, COALESCE(?, 1), ?)
ON DUPLICATE KEY UPDATE at = VALUES(at), holder = VALUES(holder), error = VALUES(error),
  attempt = COALESCE(?, attempt + 1)

-- name: adopt_explain
-- How the server finds the rows of a claim.
EXPLAIN SELECT {id} FROM {table} t WHERE {ready} ORDER BY {order} LIMIT {:limit}

-- name: adopt_fail
-- Key: PRIMARY.
{at_once}UPDATE {table} t FORCE INDEX (PRIMARY) SET {fail} WHERE {id} = {:row} AND {ours}

-- name: adopt_free
-- Key: PRIMARY. Gives back a row that {:claimant} had claimed.
{at_once}UPDATE {table} t FORCE INDEX (PRIMARY) SET {fail} WHERE {id} = {:row} AND {ours} AND {settled}

-- name: adopt_gate
-- One of a few named locks under which a crowd goes in; waits for it {:limit} seconds.
DO GET_LOCK(CONCAT('nightshift-gate:', {here}, MD5({:table}), {:row}), {:limit})

-- name: adopt_gate_leave
DO RELEASE_LOCK(CONCAT('nightshift-gate:', {here}, MD5({:table}), {:row}))

-- name: adopt_grip_add
-- Params: table, claimant, rows. Key: PRIMARY; the rows themselves are locked by us,
-- so an entry that is there belongs to a claim that was ended by hand.
INSERT INTO nightshift_grip (tab, row_id, claimant, since)
SELECT ?, l.id, ?, {now} FROM JSON_TABLE(?, {ids}) l
ON DUPLICATE KEY UPDATE claimant = VALUES(claimant), since = VALUES(since)

-- name: adopt_grip_drop
-- Params: table, row, claimant. Key: PRIMARY. No row: the claim is not his any more.
DELETE nightshift_grip FROM nightshift_grip FORCE INDEX (PRIMARY)
WHERE tab = ? AND row_id = ? AND claimant = ?

-- name: adopt_grip_of
-- Part of {claimant}, where the table has no column for it. PRIMARY, one row.
(SELECT g.claimant FROM nightshift_grip g WHERE g.tab = {:table} AND g.row_id = {id})

-- name: adopt_grip_tidy
-- Key: PRIMARY. What is shown of a row that its claimant, who is gone, has no more.
{at_once}DELETE FROM nightshift_grip WHERE tab = {:table} AND row_id = {:row}
  AND claimant = {:token} AND NOT EXISTS(SELECT 1 FROM {table} t FORCE INDEX (PRIMARY)
    WHERE {id} = {:row} AND {gripped})

-- name: adopt_grips
-- Params: table. Key: PRIMARY. No locks. Rows claimed by a holder that is gone.
SELECT g.row_id, g.claimant FROM nightshift_grip g
LEFT JOIN nightshift_holder h ON h.dead IS NULL
  AND h.id = CAST(CONV(SUBSTRING_INDEX(SUBSTRING_INDEX(g.claimant, ':', 2), ':', -1), 36, 10) AS UNSIGNED)
WHERE g.tab = ? AND h.id IS NULL LIMIT 1000

-- name: adopt_hold
-- Params: µs, table. Key: PRIMARY. Nothing is claimed for as long.
UPDATE nightshift_adopted SET held_until = GREATEST(held_until, {now} + ?) WHERE tab = ?

-- name: adopt_holds
-- Key: PRIMARY. No locks.
SELECT 1 FROM {table} t FORCE INDEX (PRIMARY) WHERE {id} = {:row} AND {ours}

-- name: adopt_indexes
-- Params: table. Their columns in order, and which run downwards.
SELECT INDEX_NAME, COLUMN_NAME, COALESCE(COLLATION = 'D', 0) FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?
ORDER BY INDEX_NAME, SEQ_IN_INDEX

-- name: adopt_into
-- Params: target, target, table. Whether there is the target, whether it is InnoDB, and the
-- columns of the table: which of them the target has, and of which it makes the value.
SELECT x.TABLE_NAME IS NOT NULL, COALESCE(x.ENGINE = 'InnoDB', 0), c.COLUMN_NAME,
  d.COLUMN_NAME IS NOT NULL, COALESCE(d.IS_GENERATED = 'ALWAYS', 0)
FROM information_schema.COLUMNS c
LEFT JOIN information_schema.TABLES x ON x.TABLE_SCHEMA = DATABASE() AND x.TABLE_NAME = ?
LEFT JOIN information_schema.COLUMNS d ON d.TABLE_SCHEMA = DATABASE() AND d.TABLE_NAME = ?
  AND d.COLUMN_NAME = c.COLUMN_NAME
WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = ?
ORDER BY c.ORDINAL_POSITION

-- name: adopt_known
-- Params: table, mapping. Key: PRIMARY. The table is used like this.
INSERT INTO nightshift_adopted (tab, mapping) VALUES (?, ?)
ON DUPLICATE KEY UPDATE mapping = VALUES(mapping)

-- name: adopt_lock
-- Params: table, seconds. The named lock under which one claims at a time; waits.
SELECT GET_LOCK(CONCAT('nightshift-adopt:', {here}, MD5(?)), ?)

-- name: adopt_note
-- Params: table, row, claimant, worker, progress, note. Key: PRIMARY. What a running
-- job shows; what it says nothing of stays.
INSERT INTO nightshift_grip (tab, row_id, claimant, since, touched, worker, progress, note)
VALUES (?, ?, ?, {now}, {now}, ?, ?, ?)
ON DUPLICATE KEY UPDATE
  since = IF(claimant = VALUES(claimant), since, VALUES(since)),
  worker = IF(claimant = VALUES(claimant), COALESCE(VALUES(worker), worker), VALUES(worker)),
  progress = IF(claimant = VALUES(claimant), COALESCE(VALUES(progress), progress), VALUES(progress)),
  note = IF(claimant = VALUES(claimant), COALESCE(VALUES(note), note), VALUES(note)),
  claimant = VALUES(claimant), touched = VALUES(touched)

-- name: adopt_orphans
-- Rows claimed by a holder that is gone. Index: status; PRIMARY of holder. No
-- locks.
{zone}SELECT {id}, {claimant}, {claimed} FROM {table} t
LEFT JOIN nightshift_holder h ON h.dead IS NULL
  AND h.id = CAST(CONV(SUBSTRING_INDEX(SUBSTRING_INDEX({claimant}, ':', 2), ':', -1), 36, 10) AS UNSIGNED)
WHERE {taken} AND {claimant} LIKE 'ns:%' AND h.id IS NULL LIMIT 1000

-- name: adopt_overdue
-- Index: status. No locks. Rows that were claimed too long ago, by any program.
{zone}SELECT {id}, {claimant}, {claimed} FROM {table} t WHERE {taken} AND {overdue} LIMIT 1000

-- name: adopt_parent
-- Part of {ready}: a row waits for its parent. PRIMARY, one row.
({parent} IS NULL OR (SELECT {parent_done} FROM {table} p WHERE p.{key} = {parent}))

-- name: adopt_pick
-- Rows to take. Index: status, then the order, without locks, because a sort would
-- lock all it reads; then PRIMARY, in that order: locks the rows it takes, does not
-- wait for locks.
{zone}SELECT {id}
FROM (SELECT {id} FROM {table} t
  WHERE {ready} AND {unheld}
    AND ({:shunned} = '[]' OR NOT JSON_CONTAINS({:shunned}, {id})) ORDER BY {order}
  LIMIT {:page}) l
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.{key} WHERE {open}
LIMIT {:limit} FOR UPDATE SKIP LOCKED

-- name: adopt_prunable
-- How many ended rows are old enough, up to a limit. Index: status; PRIMARY of
-- adopted_error. No locks.
{zone}SELECT COUNT(*)
FROM (SELECT 1 FROM {table} t WHERE {prunable} AND {old} LIMIT {:limit}) x

-- name: adopt_prune_drop
-- Key: PRIMARY, locked by adopt_prune_pick.
DELETE t FROM JSON_TABLE({:rows}, {ids}) l
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id

-- name: adopt_prune_move
-- Key: PRIMARY, locked by adopt_prune_pick. What the target has already is an error.
INSERT INTO {into} ({into_columns}) SELECT {moved_columns}
FROM JSON_TABLE({:rows}, {ids}) l
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id

-- name: adopt_prune_pick
-- Ended rows behind {:row} that are old enough and have no children. Key: PRIMARY, in its
-- order and without locks, so that nothing is sorted and what was deleted is not read
-- again; then PRIMARY: locks the rows it takes, does not wait for locks.
{zone}SELECT {id}
FROM (SELECT {id} FROM {table} t FORCE INDEX (PRIMARY)
  WHERE {prunable} AND {old} AND {childless} AND {id} > {:row} ORDER BY {id} LIMIT {:limit}) l
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.{key} WHERE {prunable}
FOR UPDATE SKIP LOCKED

-- name: adopt_read
-- Index: status, or the claimant's. No locks. What a claim has taken.
{zone}SELECT {columns} FROM {table} t WHERE {ours} ORDER BY {order}

-- name: adopt_read_list
-- Key: PRIMARY. The same by ids, in their order, which a sort with a temporary table would
-- cost more than all the rest.
{zone}SELECT {columns}
FROM JSON_TABLE({:rows}, {ids}) l
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id WHERE {ours}

-- name: adopt_release
-- Key: PRIMARY.
{at_once}UPDATE {table} t FORCE INDEX (PRIMARY) SET {release} WHERE {id} = {:row} AND {ours}

-- name: adopt_relock
-- Key: PRIMARY; does not wait for locks. The row that was marked as taken a moment ago.
{zone}SELECT {columns} FROM {table} t FORCE INDEX (PRIMARY) WHERE {id} = {:row} AND {mine}
FOR UPDATE SKIP LOCKED

-- name: adopt_reserve
-- Params: next, table, next as it was. Key: PRIMARY; 1205 at once when another session is doing the
-- same. A share of the rate; no row: another session was faster.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
UPDATE nightshift_adopted SET next_at = ? WHERE tab = ? AND next_at = ?

-- name: adopt_retry
-- Key: PRIMARY. A dead row is as new.
{at_once}UPDATE {table} t FORCE INDEX (PRIMARY) SET {redrive} WHERE {id} = {:row} AND {dead}

-- name: adopt_ring
-- Part of the triggers: ends the query of each session that has one of the ear's named locks.
FOR v_n IN 0..3 DO
  SET v_thread = IS_USED_LOCK(CONCAT('{ear}', v_n));
  IF v_thread IS NOT NULL THEN
    KILL QUERY v_thread;
  END IF;
END FOR

-- name: adopt_running
-- Part of {running}: rows that are marked as taken. Index: status.
SELECT 1 FROM {table} t WHERE {taken}

-- name: adopt_running_shown
-- The same where nothing in a row tells: those that show something. PRIMARY of grip, of
-- holder and of the table.
SELECT STRAIGHT_JOIN 1 FROM nightshift_grip g
JOIN nightshift_holder h ON h.dead IS NULL
  AND h.id = CAST(CONV(SUBSTRING_INDEX(SUBSTRING_INDEX(g.claimant, ':', 2), ':', -1), 36, 10) AS UNSIGNED)
JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = g.row_id
WHERE g.tab = {:table} AND {taken}

-- name: adopt_seen
-- How many rows adopt_pick has looked at. Index: status, then the order. No locks.
{zone}SELECT COUNT(*)
FROM (SELECT {id} FROM {table} t
  WHERE {ready} AND {unheld}
    AND ({:shunned} = '[]' OR NOT JSON_CONTAINS({:shunned}, {id})) ORDER BY {order}
  LIMIT {:page}) l

-- name: adopt_settled
-- Part of the looks at rows that are locked by their claimant: no session is between the
-- mark and the lock of this one.
IS_FREE_LOCK(CONCAT('nightshift-step:', {here}, MD5({:table}), {id}))

-- name: adopt_state
-- Key: PRIMARY. No locks. What becomes of a row.
SELECT CASE WHEN {finished} THEN 'done' WHEN {dead} THEN 'dead' ELSE 'live' END
FROM {table} t FORCE INDEX (PRIMARY) WHERE {id} = {:row}

-- name: adopt_step
-- A named lock, which no other session asks for: we are between the mark and the lock.
DO GET_LOCK(CONCAT('nightshift-step:', {here}, MD5({:table}), {:row}), 0)

-- name: adopt_step_end
DO RELEASE_LOCK(CONCAT('nightshift-step:', {here}, MD5({:table}), {:row}))

-- name: adopt_stirs
-- Once the sleeper to be rung is asleep: is there a row to claim, even one that is not committed
-- yet? At READ UNCOMMITTED; index: status. No locks.
{zone}SELECT EXISTS(SELECT 1 FROM {table} t WHERE {ready})

-- name: adopt_take
-- Key: PRIMARY. Marks rows as taken that were picked, and so are locked by us.
{at_once}UPDATE JSON_TABLE({:rows}, {ids}) l
STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON {id} = l.id SET {claim}

-- name: adopt_there
-- No row; an error when there is no such table, or it may not be seen.
SELECT 1 FROM {table} t LIMIT 0

-- name: adopt_touch
-- Key: PRIMARY. No row: it is not ours, or nothing tells the time.
{at_once}UPDATE {table} t FORCE INDEX (PRIMARY) SET {touch} WHERE {id} = {:row} AND {ours}

-- name: adopt_trigger_drop_insert
SET STATEMENT lock_wait_timeout=1 FOR DROP TRIGGER IF EXISTS {trigger_insert}

-- name: adopt_trigger_drop_update
SET STATEMENT lock_wait_timeout=1 FOR DROP TRIGGER IF EXISTS {trigger_update}

-- name: adopt_trigger_insert
-- Rings those who sleep for want of a row. It reads no table, so it takes no lock, of nightshift's
-- tables or of the application's; the writer gets no error of it.
SET STATEMENT lock_wait_timeout=1 FOR CREATE OR REPLACE TRIGGER {trigger_insert} AFTER INSERT ON {table} FOR EACH ROW
BEGIN {mark}
  DECLARE v_thread BIGINT;
  DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
  IF {new} THEN
    {ring};
  END IF;
END

-- name: adopt_trigger_update
-- The same for a row that is open again, or sooner, or for a parent that its children need not wait
-- for any more.
SET STATEMENT lock_wait_timeout=1 FOR CREATE OR REPLACE TRIGGER {trigger_update} AFTER UPDATE ON {table} FOR EACH ROW
BEGIN {mark}
  DECLARE v_thread BIGINT;
  DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
  IF (({new}) AND NOT COALESCE({was}, FALSE)) OR ({freed}) THEN
    {ring};
  END IF;
END

-- name: adopt_triggers
-- Params: their prefix, twice, table. Of ours: the text, and whether it ends our queries by
-- the rights of its definer. An account without the TRIGGER right on the table sees none.
SELECT ACTION_STATEMENT, BINARY LEFT(DEFINER, CHAR_LENGTH(DEFINER)
    - CHAR_LENGTH(SUBSTRING_INDEX(DEFINER, '@', -1)) - 1)
  = LEFT(USER(), CHAR_LENGTH(USER()) - CHAR_LENGTH(SUBSTRING_INDEX(USER(), '@', -1)) - 1)
FROM information_schema.TRIGGERS
WHERE TRIGGER_SCHEMA = DATABASE() AND LEFT(TRIGGER_NAME, CHAR_LENGTH(?)) = ?
  AND EVENT_OBJECT_TABLE = ?

-- name: adopt_turn
-- Params: table, twice, the turn we had last. Four times a second one claimant looks for all
-- claimants of a table: the one with the named lock of that quarter. No session asks for that lock
-- later, so it may be kept as long as one likes.
SELECT turn, GET_LOCK(CONCAT('nightshift-turn:', {here}, MD5(?), turn), 0) AS ours,
  RELEASE_LOCK(CONCAT('nightshift-turn:', {here}, MD5(?), ?)) AS last
FROM (SELECT FLOOR(UNIX_TIMESTAMP(NOW(6)) * 4) AS turn) n

-- name: adopt_unheld
-- Part of claims: what the row that holds up the table came back with is known to all
-- who can see that row. PRIMARY of adopted, one row, once a statement.
COALESCE((SELECT NOT x.paused AND x.held_until <= {now}
  FROM nightshift_adopted x WHERE x.tab = {:table}), TRUE)

-- name: adopt_unlock
-- Params: table.
DO RELEASE_LOCK(CONCAT('nightshift-adopt:', {here}, MD5(?)))

-- name: adopt_version
-- Whether indexes may be descending, and what an unknown time zone is.
SELECT SUBSTRING_INDEX(VERSION(), '.', 1) * 100
  + SUBSTRING_INDEX(SUBSTRING_INDEX(VERSION(), '.', 2), '.', -1), @@global.time_zone

-- name: adopt_zone
-- Does the server know it?
{zone}DO 1
