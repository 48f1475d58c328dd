-- Statements of nightshift.testing, on a database that it has made and that one process of tests
-- has. Sorted by name.

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
