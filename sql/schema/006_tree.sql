-- Trees: who is whose child, and parents that wait for their children.

-- name: job_tree
-- phase counts how often job:wait has parked the job; waits is there while it
-- is parked: for its children, and then says what a failed one means, or for a
-- signal, and then stays until the run after it has returned.
ALTER TABLE nightshift_job
  ADD COLUMN IF NOT EXISTS phase INT UNSIGNED NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS waits ENUM('fail','continue','signal') NULL

-- name: create_child
-- A child of a job, live or ended. seq is the order of spawning: the parent's run
-- times 1048576, and its place among those of that run.
CREATE TABLE IF NOT EXISTS nightshift_child (
  parent BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  id BIGINT NOT NULL,
  PRIMARY KEY (parent, seq, id),
  CONSTRAINT child_other CHECK (parent <> id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: job_awaits
-- The name of the signal that job:wait{signal = …} waits, or has waited, for.
-- While it waits the job is scheduled for its deadline, or for the far future; a
-- run after that is given the signal, and the next one when that one fails.
ALTER TABLE nightshift_job
  ADD COLUMN IF NOT EXISTS awaits VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NULL

-- name: create_signal
-- What was sent to a job; name '' is whatever it waits for. It may come before
-- the wait; of one name the last counts. Deleted with the verdict of the run that
-- was given it, if it is still the same; what came later is for the next wait.
CREATE TABLE IF NOT EXISTS nightshift_signal (
  job_id BIGINT NOT NULL,
  name VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  value MEDIUMTEXT NOT NULL,
  sent BIGINT NOT NULL,
  PRIMARY KEY (job_id, name),
  CONSTRAINT signal_value_json CHECK (JSON_VALID(value))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_signal_call
-- CALL nightshift_signal(12, '{"ok":true}', 'approved'); NULL or '' as the name:
-- whatever the job waits for. From any language, and from triggers. The value
-- is written before the job is looked at the second time, and whoever parks the
-- job locks its row before it looks for a value: so one of the two finds the
-- other, in autocommit too. A job that waits for it is ready at once. Ring after
-- your commit: CALL nightshift_ring(). Lock order: job, scheduled, ready.
CREATE OR REPLACE PROCEDURE nightshift_signal(
  IN p_job BIGINT, IN p_value MEDIUMTEXT CHARACTER SET utf8mb4,
  IN p_name VARCHAR(100) CHARACTER SET utf8mb4)
  MODIFIES SQL DATA
BEGIN
  DECLARE v_id, v_due, v_queue, v_rank, v_run BIGINT DEFAULT NULL;
  DECLARE v_awaits VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL;
  DECLARE v_now BIGINT;
  DECLARE v_name VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
    DEFAULT COALESCE(p_name, '');
  IF p_value IS NULL OR NOT JSON_VALID(p_value) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_signal: the value is not valid JSON';
  END IF;
  IF LENGTH(p_value) > COALESCE(@nightshift_max_payload, 1048576) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_signal: the value is over 1 MiB; SET @nightshift_max_payload to allow more bytes';
  END IF;
  SELECT id INTO v_id FROM nightshift_job WHERE id = p_job FOR UPDATE;
  IF v_id IS NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_signal: no such live job';
  END IF;
  INSERT INTO nightshift_signal (job_id, name, value, sent)
  VALUES (p_job, v_name, p_value, {now})
  ON DUPLICATE KEY UPDATE value = VALUES(value), sent = GREATEST(VALUES(sent), sent + 1);
  SET v_id = NULL;
  SELECT id, due, queue_id, rank, run, IF(waits = 'signal', awaits, NULL)
  INTO v_id, v_due, v_queue, v_rank, v_run, v_awaits
  FROM nightshift_job WHERE id = p_job FOR UPDATE;
  IF v_id IS NULL THEN
    DELETE FROM nightshift_signal WHERE job_id = p_job;
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_signal: no such live job';
  END IF;
  SET v_now = {now};
  IF v_awaits IS NOT NULL AND v_name IN ('', v_awaits) AND v_due > v_now THEN
    UPDATE nightshift_job SET due = v_now WHERE id = p_job;
    DELETE FROM nightshift_scheduled WHERE run_at = v_due AND job_id = p_job;
    IF ROW_COUNT() = 1 THEN
      INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)
      VALUES (v_queue, v_rank, v_now, p_job, v_run);
    END IF;
  END IF;
END

-- name: job_since
-- since: children with a lower seq are of an earlier life, before a retry; those
-- that had ended by then are not among its results.
ALTER TABLE nightshift_job ADD COLUMN IF NOT EXISTS since BIGINT NOT NULL DEFAULT 0

-- name: finished_since
ALTER TABLE nightshift_finished ADD COLUMN IF NOT EXISTS since BIGINT NOT NULL DEFAULT 0

-- name: job_decay
-- decay: priority lost with each return that is no end. paused: the job whose
-- pause, of itself and all below it, holds this one; unmet counts that as one.
ALTER TABLE nightshift_job
  ADD COLUMN IF NOT EXISTS decay TINYINT UNSIGNED NOT NULL DEFAULT 8,
  ADD COLUMN IF NOT EXISTS paused BIGINT NULL

-- name: job_wish
-- When it would be due, had its deadline not brought that forward; of interest only
-- while it is due at its deadline, for who gives it another.
ALTER TABLE nightshift_job ADD COLUMN IF NOT EXISTS wish BIGINT NULL

-- name: finished_decay
ALTER TABLE nightshift_finished
  ADD COLUMN IF NOT EXISTS decay TINYINT UNSIGNED NOT NULL DEFAULT 8

-- name: create_served
-- What a live host can run, for people who ask why a job does not: written when
-- it starts and when it reloads its scripts, deleted with the holder's row.
-- workers: how many take jobs, 0 while it is quiet or about to end.
-- queues: ["mail",…], NULL: all. handlers: ["mail.send",…]; a null at the end:
-- and more. reserves: [["mail",2],…], of the workers those for one queue; NULL: none.
CREATE TABLE IF NOT EXISTS nightshift_served (
  holder BIGINT NOT NULL PRIMARY KEY,
  workers INT UNSIGNED NOT NULL,
  queues MEDIUMTEXT NULL,
  handlers MEDIUMTEXT NOT NULL,
  reserves TEXT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_met
-- Ended jobs whose dependents were not all told, because somebody held one of
-- them or they go too deep: the next holder that looks tells them.
CREATE TABLE IF NOT EXISTS nightshift_met (
  on_id BIGINT NOT NULL PRIMARY KEY,
  failed BOOL NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: job_after
-- after_ids: "[id,…]" of the jobs it was pushed to wait for, met or not. It goes
-- into history with what a parked job has to have when it is to wait again:
-- phase, waits and state.
ALTER TABLE nightshift_job
  ADD COLUMN IF NOT EXISTS after_ids MEDIUMTEXT NULL

-- name: finished_after
ALTER TABLE nightshift_finished
  ADD COLUMN IF NOT EXISTS after_ids MEDIUMTEXT NULL,
  ADD COLUMN IF NOT EXISTS phase INT UNSIGNED NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS waits ENUM('fail','continue') NULL,
  ADD COLUMN IF NOT EXISTS state MEDIUMTEXT NULL

-- name: create_pause
-- Jobs whose pause, of themselves and all below, is on; job.paused has their ids.
CREATE TABLE IF NOT EXISTS nightshift_pause (
  id BIGINT NOT NULL PRIMARY KEY,
  since BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_adopted
-- Existing tables that are queues, as nightshift.adopt takes them ('mapping'), and what
-- may be changed while they are worked on. Nothing is claimed while one is paused, or
-- before held_until: a job was told to come back later. gap: µs between claimed rows,
-- of all hosts together (0: none), and when the next is due. block, workers: rows of a
-- claim, and rows that one host has at a time; 0: as many as it likes. moves: counts the
-- batches of drains that have arrived.
CREATE TABLE IF NOT EXISTS nightshift_adopted (
  tab VARCHAR(64) NOT NULL PRIMARY KEY,
  mapping MEDIUMTEXT NOT NULL,
  paused BOOL NOT NULL DEFAULT FALSE,
  held_until BIGINT NOT NULL DEFAULT 0,
  gap BIGINT NOT NULL DEFAULT 0,
  next_at BIGINT NOT NULL DEFAULT 0,
  block INT UNSIGNED NOT NULL DEFAULT 0,
  workers INT UNSIGNED NOT NULL DEFAULT 0,
  moves BIGINT NOT NULL DEFAULT 0,
  CONSTRAINT adopted_mapping_json CHECK (JSON_VALID(mapping))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_adopted_error
-- Why a row of an adopted table has failed last, for people: attempt counts its failures,
-- this one included, holder is who had it (NULL: a program not ours). One per row at most,
-- written and deleted with the verdict; whoever lists rows looks at the table, so what
-- others have made of a row counts, and what was left behind goes by and by.
CREATE TABLE IF NOT EXISTS nightshift_adopted_error (
  tab VARCHAR(64) NOT NULL,
  row_id BIGINT NOT NULL,
  at BIGINT NOT NULL,
  holder BIGINT NULL,
  attempt INT UNSIGNED NOT NULL,
  error VARCHAR(1000) NOT NULL,
  PRIMARY KEY (tab, row_id),
  KEY at (tab, at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_grip
-- Rows of adopted tables that somebody has: "ns:HOLDER:TOKEN". Written with the claim
-- where the table has no column for that, and the row of that table is locked by
-- whoever writes it, so one claimant has it; of other tables when there is something to
-- show: worker (a process), touched (a sign of life), progress, note.
CREATE TABLE IF NOT EXISTS nightshift_grip (
  tab VARCHAR(64) NOT NULL,
  row_id BIGINT NOT NULL,
  claimant VARCHAR(64) NOT NULL,
  since BIGINT NOT NULL,
  worker INT UNSIGNED NULL,
  touched BIGINT NULL,
  progress DOUBLE NULL,
  note VARCHAR(255) NULL,
  PRIMARY KEY (tab, row_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_drained
-- Rows of adopted tables on their way to a queue or to history: what they will be there.
-- A row is marked here, then deleted from its table, then it arrives and its mark goes;
-- so while there is a mark the row may still be in its table, as 'print' says, or not.
-- holder: whose drain it is; when that is dead, others finish it. due: NULL: at once.
-- outcome: NULL: a job. ended: NULL: not known.
CREATE TABLE IF NOT EXISTS nightshift_drained (
  tab VARCHAR(64) NOT NULL,
  row_id BIGINT NOT NULL,
  job_id BIGINT NOT NULL,
  holder BIGINT NOT NULL,
  queue_id INT NOT NULL,
  name VARCHAR(100) NOT NULL,
  payload MEDIUMTEXT NOT NULL,
  priority TINYINT UNSIGNED NOT NULL,
  decay TINYINT UNSIGNED NOT NULL,
  attempts INT UNSIGNED NOT NULL,
  max_attempts INT UNSIGNED NOT NULL,
  nonce BIGINT NOT NULL,
  due BIGINT NULL,
  outcome ENUM('done','dead','cancelled') NULL,
  ended BIGINT NULL,
  print CHAR(32) NULL,
  PRIMARY KEY (tab, row_id),
  CONSTRAINT drained_payload_json CHECK (JSON_VALID(payload))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: notice_paused
-- paused: what has not been begun is to be given back.
ALTER TABLE nightshift_notice MODIFY kind ENUM('cancelled','paused') NOT NULL

-- name: tree_jobs_view
-- Every job with its state, for people and reports. It reads all hot tables;
-- counts for dashboards come from elsewhere. Who is parked for a signal waits,
-- though it is scheduled for its deadline; what is paused and still runs is
-- running.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW nightshift_jobs AS
SELECT j.id, q.name AS queue, j.name, 'ready' AS state, 255 - j.rank AS priority,
  j.run, j.attempts, j.polls, j.crashes, j.created, j.due, j.parent, j.root,
  j.unmet, NULL AS holder, NULL AS finished_at, NULL AS reason, NULL AS error,
  j.payload, NULL AS result, j.phase, NULL AS awaits
FROM nightshift_ready r
JOIN nightshift_job j ON j.id = r.job_id AND j.run = r.run
JOIN nightshift_queue q ON q.id = j.queue_id
UNION ALL
SELECT j.id, q.name, j.name, IF(j.waits = 'signal' AND j.due > {now}, 'waiting', 'scheduled'),
  255 - j.rank, j.run, j.attempts, j.polls, j.crashes, j.created, j.due,
  j.parent, j.root, j.unmet, NULL, NULL, NULL, NULL, j.payload, NULL, j.phase,
  IF(j.waits = 'signal' AND j.due > {now}, j.awaits, NULL)
FROM nightshift_scheduled s
JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
JOIN nightshift_queue q ON q.id = j.queue_id
UNION ALL
SELECT j.id, q.name, j.name, 'running', 255 - j.rank,
  j.run, j.attempts, j.polls, j.crashes, j.created, j.due, j.parent, j.root,
  j.unmet, l.holder, NULL, NULL, NULL, j.payload, NULL, j.phase, NULL
FROM nightshift_lease l
JOIN JSON_TABLE(l.jobs, '$[*]' COLUMNS (id BIGINT PATH '$[0]', run INT UNSIGNED PATH '$[1]')) c
JOIN nightshift_job j ON j.id = c.id AND j.run = c.run
JOIN nightshift_queue q ON q.id = j.queue_id
UNION ALL
SELECT j.id, q.name, j.name, 'waiting', 255 - j.rank,
  j.run, j.attempts, j.polls, j.crashes, j.created, j.due, j.parent, j.root,
  j.unmet, NULL, NULL, NULL, NULL, j.payload, NULL, j.phase, NULL
FROM nightshift_job j
JOIN nightshift_queue q ON q.id = j.queue_id
WHERE j.unmet > 0 AND (j.paused IS NULL OR NOT EXISTS (
  SELECT 1 FROM nightshift_lease l
  JOIN JSON_TABLE(l.jobs, '$[*]' COLUMNS (id BIGINT PATH '$[0]', run INT UNSIGNED PATH '$[1]')) c
  WHERE c.id = j.id AND c.run = j.run))
UNION ALL
SELECT f.id, q.name, f.name, f.outcome, f.priority,
  f.run, f.attempts, f.polls, f.crashes, f.created, f.created, f.parent, f.root,
  0, f.holder, f.finished_at, f.reason, f.error, f.payload, f.result, NULL, NULL
FROM nightshift_finished f
JOIN nightshift_queue q ON q.id = f.queue_id

-- name: tree_push
-- CALL nightshift_push('mail', 'email.send', '{"to":"a@b"}', '{"delay":30}').
-- From any language, and from triggers: it returns no rows and leaves the id
-- in @nightshift_id. Options: delay, priority, decay, unique, max_attempts,
-- max_crashes, max_polls, backoff, timeout, deadline, parent, after, on_fail;
-- seconds are numbers, after is a list of ids.
-- What a call that fails has written is taken back, in autocommit too.
-- Ring after your commit: CALL nightshift_ring().
--
-- What the job waits for is looked at twice. The first look refuses what nobody
-- knows before anything is written; in a transaction its shared locks hold. In
-- autocommit they are gone with their statement: so the job goes in with one
-- more unmet than it has targets, and each edge is written by a statement that
-- locks its target. Whoever ends it later sees the edge and finds the job; one
-- that gives no edge has left history. The history is asked first, without a lock:
-- in REPEATABLE READ a lock on a job that is not there holds up all pushes beside it.
-- A parent that is parked for its children waits for this one too: from the edge
-- on, and before the job can be claimed.
CREATE OR REPLACE PROCEDURE nightshift_push(
  IN p_queue VARCHAR(64) CHARACTER SET utf8mb4,
  IN p_name VARCHAR(100) CHARACTER SET utf8mb4,
  IN p_payload MEDIUMTEXT CHARACTER SET utf8mb4,
  IN p_options MEDIUMTEXT CHARACTER SET utf8mb4)
  MODIFIES SQL DATA
BEGIN
  DECLARE v_queue INT DEFAULT NULL;
  DECLARE v_id, v_now BIGINT;
  DECLARE v_delay, v_deadline, v_backoff, v_timeout DOUBLE;
  DECLARE v_priority, v_decay, v_attempts, v_crashes, v_polls DOUBLE;
  DECLARE v_parent, v_root, v_on, v_found, v_paused, v_inherited, v_seq BIGINT DEFAULT NULL;
  DECLARE v_unmet, v_met INT DEFAULT 0;
  DECLARE v_fails, v_failed, v_doomed, v_over, v_joins, v_joined BOOLEAN DEFAULT FALSE;
  DECLARE v_after MEDIUMTEXT CHARACTER SET utf8mb4;
  DECLARE v_on_fail VARCHAR(10) CHARACTER SET utf8mb4;
  DECLARE v_unique VARCHAR(190) CHARACTER SET utf8mb4;
  DECLARE v_bad TEXT CHARACTER SET utf8mb4 DEFAULT NULL;
  DECLARE v_options MEDIUMTEXT CHARACTER SET utf8mb4
    DEFAULT COALESCE(NULLIF(p_options, ''), '{}');
  IF p_payload IS NULL OR NOT JSON_VALID(p_payload) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_push: the payload is not valid JSON';
  END IF;
  IF LENGTH(p_payload) > COALESCE(@nightshift_max_payload, 1048576) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_push: the payload is over 1 MiB; SET @nightshift_max_payload to allow more bytes';
  END IF;
  IF NOT JSON_VALID(v_options) OR JSON_TYPE(v_options) <> 'OBJECT' THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_push: the options are not a JSON object';
  END IF;
  SELECT GROUP_CONCAT(k.name) INTO v_bad
  FROM JSON_TABLE(JSON_KEYS(v_options), '$[*]' COLUMNS (name VARCHAR(64) PATH '$')) k
  WHERE k.name NOT IN ('delay', 'priority', 'unique', 'max_attempts',
    'max_crashes', 'max_polls', 'backoff', 'timeout', 'deadline', 'decay',
    'parent', 'after', 'on_fail');
  IF v_bad IS NOT NULL THEN
    SET v_bad = LEFT(CONCAT('nightshift_push: unknown option ', v_bad), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
  END IF;
  SELECT GROUP_CONCAT(k.name) INTO v_bad
  FROM JSON_TABLE(JSON_KEYS(v_options), '$[*]' COLUMNS (name VARCHAR(64) PATH '$')) k
  WHERE JSON_TYPE(JSON_EXTRACT(v_options, CONCAT('$.', k.name)))
    NOT IN ('NULL', IF(k.name = 'after', 'ARRAY', IF(k.name = 'on_fail', 'STRING', 'INTEGER')),
      IF(k.name IN ('after', 'on_fail', 'parent'), '', 'DOUBLE'), IF(k.name = 'unique', 'STRING', ''));
  IF v_bad IS NOT NULL THEN
    SET v_bad = CONCAT('nightshift_push: wrong type: ', v_bad);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
  END IF;
  SET v_delay = COALESCE(JSON_VALUE(v_options, '$.delay'), 0);
  SET v_deadline = JSON_VALUE(v_options, '$.deadline');
  SET v_backoff = COALESCE(JSON_VALUE(v_options, '$.backoff'), 5);
  SET v_timeout = COALESCE(JSON_VALUE(v_options, '$.timeout'), 3600);
  SET v_priority = COALESCE(JSON_VALUE(v_options, '$.priority'), 100);
  SET v_attempts = COALESCE(JSON_VALUE(v_options, '$.max_attempts'), 10);
  SET v_crashes = COALESCE(JSON_VALUE(v_options, '$.max_crashes'), 3);
  SET v_polls = NULLIF(JSON_VALUE(v_options, '$.max_polls'), -1);
  SET v_unique = JSON_VALUE(v_options, '$.unique');
  SET v_decay = COALESCE(JSON_VALUE(v_options, '$.decay'), 8);
  SET v_parent = JSON_VALUE(v_options, '$.parent');
  SET v_on_fail = COALESCE(JSON_VALUE(v_options, '$.on_fail'), 'cancel');
  SET v_fails = v_on_fail = 'cancel';
  IF JSON_TYPE(JSON_EXTRACT(v_options, '$.after')) = 'ARRAY' THEN
    SET v_after = JSON_EXTRACT(v_options, '$.after');
  END IF;
  SET v_bad = CONCAT_WS(',',
    IF(v_delay BETWEEN 0 AND 3155760000, NULL, 'delay'),
    IF(v_deadline IS NULL OR v_deadline BETWEEN 0 AND 3155760000, NULL, 'deadline'),
    IF(v_backoff BETWEEN 0 AND 3155760000, NULL, 'backoff'),
    IF(v_timeout BETWEEN 0.000001 AND 3155760000, NULL, 'timeout'),
    IF(v_priority BETWEEN 0 AND 255 AND v_priority = FLOOR(v_priority), NULL, 'priority'),
    IF(v_attempts BETWEEN 1 AND 1000000, NULL, 'max_attempts'),
    IF(v_crashes BETWEEN 1 AND 1000000, NULL, 'max_crashes'),
    IF(v_polls IS NULL OR v_polls BETWEEN 0 AND 1000000000, NULL, 'max_polls'),
    IF(v_unique IS NULL OR CHAR_LENGTH(v_unique) > 0, NULL, 'unique'),
    IF(v_decay BETWEEN 0 AND 255 AND v_decay = FLOOR(v_decay), NULL, 'decay'),
    IF(v_parent IS NULL OR v_parent > 0, NULL, 'parent'),
    IF(v_on_fail IN ('cancel', 'run'), NULL, 'on_fail'),
    IF(v_after IS NULL OR JSON_LENGTH(v_after) BETWEEN 1 AND 100000 AND NOT EXISTS(
        SELECT 1 FROM JSON_TABLE(v_after, '$[*]' COLUMNS (id VARCHAR(30) PATH '$')) t
        WHERE t.id IS NULL OR t.id NOT REGEXP '^[1-9][0-9]{0,17}$'), NULL, 'after'));
  IF v_bad <> '' THEN
    SET v_bad = CONCAT('nightshift_push: out of range: ', v_bad);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
  END IF;
  SELECT id INTO v_queue FROM nightshift_queue WHERE name = p_queue;
  IF v_queue IS NULL THEN
    INSERT IGNORE INTO nightshift_queue (name, created) VALUES (p_queue, {now});
    SELECT id INTO v_queue FROM nightshift_queue WHERE name = p_queue
    LOCK IN SHARE MODE;
  END IF;
  SET v_id = (NEXT VALUE FOR nightshift_id) * 100;
  SET v_now = {now};
  IF v_parent IS NOT NULL THEN
    SELECT id, COALESCE(root, id), paused, deadline, run * 1048576 + 1048575,
      COALESCE(waits IN ('fail', 'continue'), FALSE)
    INTO v_found, v_root, v_paused, v_inherited, v_seq, v_joins FROM nightshift_job
    WHERE id = v_parent FOR UPDATE;
    IF v_root IS NULL THEN
      SET v_bad = CONCAT('nightshift_push: the parent, job ', v_parent, ', is no live job');
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
    END IF;
  END IF;
  BEGIN
    DECLARE targets CURSOR FOR SELECT DISTINCT id
      FROM JSON_TABLE(COALESCE(v_after, '[]'), '$[*]' COLUMNS (id BIGINT PATH '$')) t
      WHERE NOT (v_joins AND id = v_parent) ORDER BY id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = TRUE;
    OPEN targets;
    FETCH targets INTO v_on;
    WHILE NOT v_over DO
      SET v_found = NULL, v_failed = NULL;
      IF EXISTS(SELECT 1 FROM nightshift_finished WHERE id = v_on) THEN
        SELECT outcome <> 'done' INTO v_failed FROM nightshift_finished
        WHERE id = v_on LOCK IN SHARE MODE;
      END IF;
      IF v_failed IS NULL THEN
        SELECT id INTO v_found FROM nightshift_job WHERE id = v_on LOCK IN SHARE MODE;
      END IF;
      IF v_found IS NULL THEN
        SELECT outcome <> 'done' INTO v_failed FROM nightshift_finished
        WHERE id = v_on LOCK IN SHARE MODE;
        IF v_failed IS NULL THEN
          SET v_bad = CONCAT('nightshift_push: job ', v_on, ', which this is to wait for, is unknown');
          SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
        END IF;
        SET v_doomed = v_doomed OR (v_failed AND v_fails);
      END IF;
      SET v_unmet = v_unmet + 1;
      SET v_over = FALSE;
      FETCH targets INTO v_on;
    END WHILE;
  END;
  BEGIN
    DECLARE targets CURSOR FOR SELECT DISTINCT id
      FROM JSON_TABLE(COALESCE(v_after, '[]'), '$[*]' COLUMNS (id BIGINT PATH '$')) t
      WHERE NOT (v_joins AND id = v_parent) ORDER BY id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = TRUE;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
      IF v_joined THEN
        INSERT IGNORE INTO nightshift_met (on_id, failed) VALUES (v_id, FALSE);
      END IF;
      DELETE e FROM JSON_TABLE(COALESCE(v_after, '[]'), '$[*]' COLUMNS (id BIGINT PATH '$')) t
      STRAIGHT_JOIN nightshift_edge e ON e.on_id = t.id AND e.job_id = v_id;
      DELETE FROM nightshift_child WHERE parent = v_parent AND seq = v_seq AND id = v_id;
      DELETE FROM nightshift_unique_key
      WHERE queue_id = v_queue AND ukey = v_unique AND job_id = v_id;
      DELETE FROM nightshift_job WHERE id = v_id;
      RESIGNAL;
    END;
    IF v_unique IS NOT NULL THEN
      INSERT INTO nightshift_unique_key (queue_id, ukey, job_id)
      VALUES (v_queue, v_unique, v_id);
    END IF;
    INSERT INTO nightshift_job
      (id, queue_id, name, payload, priority, rank, max_attempts, max_polls,
       max_crashes, backoff, timeout, deadline, created, due, ukey, nonce,
       decay, parent, root, on_fail, paused, after_ids, unmet)
    VALUES (v_id, v_queue, p_name, p_payload, v_priority, 255 - v_priority,
      v_attempts, v_polls, v_crashes, v_backoff * 1000000,
      v_timeout * 1000000,
      COALESCE(v_now + CAST(v_deadline * 1000000 AS SIGNED), v_inherited), v_now,
      v_now + CAST(v_delay * 1000000 AS SIGNED), v_unique,
      FLOOR(RAND() * 9000000000000000000), v_decay, v_parent, v_root,
      v_on_fail, v_paused, v_after,
      v_unmet + (v_unmet > 0) + (v_paused IS NOT NULL));
    IF v_parent IS NOT NULL THEN
      INSERT INTO nightshift_child (parent, seq, id) VALUES (v_parent, v_seq, v_id);
    END IF;
    IF v_unmet > 0 AND NOT v_doomed THEN
      SET v_met = 1, v_over = FALSE;
      OPEN targets;
      FETCH targets INTO v_on;
      WHILE NOT v_over DO
        SET v_found = NULL, v_failed = NULL;
        IF EXISTS(SELECT 1 FROM nightshift_finished WHERE id = v_on) THEN
          SELECT outcome <> 'done' INTO v_failed FROM nightshift_finished
          WHERE id = v_on LOCK IN SHARE MODE;
        END IF;
        IF v_failed IS NULL THEN
          INSERT INTO nightshift_edge (on_id, job_id)
          SELECT id, v_id FROM nightshift_job WHERE id = v_on LOCK IN SHARE MODE;
          SET v_found = NULLIF(ROW_COUNT(), 0);
        END IF;
        IF v_found IS NULL THEN
          SET v_met = v_met + 1, v_failed = COALESCE(v_failed, FALSE);
          SELECT outcome <> 'done' INTO v_failed FROM nightshift_finished
          WHERE id = v_on LOCK IN SHARE MODE;
          SET v_doomed = v_doomed OR (v_failed AND v_fails);
        END IF;
        SET v_over = FALSE;
        FETCH targets INTO v_on;
      END WHILE;
    END IF;
    IF v_parent IS NOT NULL THEN
      INSERT IGNORE INTO nightshift_edge (on_id, job_id)
      SELECT v_id, id FROM nightshift_job
      WHERE id = v_parent AND waits IN ('fail', 'continue') LOCK IN SHARE MODE;
      SET v_joins = ROW_COUNT() > 0;
    END IF;
    IF v_parent IS NOT NULL AND v_joins THEN
      IF v_unmet > 0 AND NOT v_doomed THEN
        SELECT name INTO v_bad FROM nightshift_meta WHERE name = 'schema' FOR UPDATE;
        SET v_bad = (WITH RECURSIVE up (id) AS (
            SELECT job_id FROM nightshift_edge WHERE on_id = v_parent
            UNION
            SELECT STRAIGHT_JOIN e.job_id FROM up
            JOIN nightshift_edge e FORCE INDEX (PRIMARY) ON e.on_id = up.id)
          SELECT CONCAT('nightshift_push: job ', v_parent, ' would wait for itself')
          FROM up WHERE id = v_id LIMIT 1);
      END IF;
      IF v_bad <> '' THEN
        DELETE FROM nightshift_edge WHERE on_id = v_id AND job_id = v_parent;
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
      END IF;
      UPDATE nightshift_job SET unmet = unmet + 1
      WHERE id = v_parent AND waits IN ('fail', 'continue');
      SET v_joined = ROW_COUNT() > 0;
      IF NOT v_joined THEN
        DELETE FROM nightshift_edge WHERE on_id = v_id AND job_id = v_parent;
      END IF;
    END IF;
    IF v_doomed THEN
      INSERT IGNORE INTO nightshift_finished
        (id, queue_id, name, payload, priority, outcome, reason, run, attempts,
         polls, crashes, lost, max_attempts, max_polls, max_crashes, backoff,
         timeout, deadline, created, finished_at, parent, root, on_fail, ukey,
         nonce, decay)
      SELECT id, queue_id, name, payload, priority, 'cancelled', 'dependency',
        run, 0, 0, 0, 0, max_attempts, max_polls, max_crashes, backoff,
        timeout, deadline, created, v_now, parent, root, on_fail, ukey, nonce,
        decay
      FROM nightshift_job WHERE id = v_id FOR UPDATE;
      DELETE e FROM JSON_TABLE(v_after, '$[*]' COLUMNS (id BIGINT PATH '$')) t
      STRAIGHT_JOIN nightshift_edge e ON e.on_id = t.id AND e.job_id = v_id;
      DELETE FROM nightshift_unique_key
      WHERE queue_id = v_queue AND ukey = v_unique AND job_id = v_id;
      DELETE FROM nightshift_job WHERE id = v_id;
      IF v_joined THEN
        INSERT IGNORE INTO nightshift_met (on_id, failed) VALUES (v_id, TRUE);
      END IF;
    ELSEIF v_unmet > 0 THEN
      UPDATE nightshift_job SET unmet = unmet - v_met
      WHERE id = v_id AND unmet > v_met;
      SET v_unmet = ROW_COUNT();
    END IF;
    IF v_doomed OR v_unmet > 0 OR v_paused IS NOT NULL THEN
      SET v_found = NULL;
    ELSEIF CAST(v_delay * 1000000 AS SIGNED) > 0 THEN
      INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run)
      VALUES (v_now + CAST(v_delay * 1000000 AS SIGNED), v_id, v_queue,
        255 - v_priority, 1);
    ELSE
      INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)
      VALUES (v_queue, 255 - v_priority, v_now, v_id, 1);
    END IF;
    IF v_met > 0 AND NOT v_doomed AND v_unmet = 0 THEN
      UPDATE nightshift_job SET unmet = 0 WHERE id = v_id AND run = 1 AND unmet = v_met;
    END IF;
  END;
  SET @nightshift_id = v_id;
END
