-- Trees: who is whose child, and parents that wait for their children.

-- name: job_tree
-- phase counts how often job:wait has parked the job; waits is there while it
-- is parked, and says what a failed child means.
ALTER TABLE nightshift_job
  ADD COLUMN IF NOT EXISTS phase INT UNSIGNED NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS waits ENUM('fail','continue') NULL

-- name: create_child
-- A child of a job, live or ended; ids ascend in the order of spawning.
CREATE TABLE IF NOT EXISTS nightshift_child (
  parent BIGINT NOT NULL,
  id BIGINT NOT NULL,
  PRIMARY KEY (parent, id),
  CONSTRAINT child_other CHECK (parent <> id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: job_awaits
-- The name of the signal that job:wait{signal = …} waits, or has waited, for.
-- While it waits the job is scheduled for its deadline, or for the far future.
ALTER TABLE nightshift_job
  ADD COLUMN IF NOT EXISTS awaits VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NULL

-- name: create_signal
-- What was sent to a job; name '' is whatever it waits for. It may come before
-- the wait. Taken back with the verdict of the run that has seen it.
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
-- is written before the job's row is looked at, and whoever parks the job locks
-- that row before it looks for a value: so one of the two finds the other, in
-- autocommit too. Ring after your commit: CALL nightshift_ring().
CREATE OR REPLACE PROCEDURE nightshift_signal(
  IN p_job BIGINT, IN p_value MEDIUMTEXT CHARACTER SET utf8mb4,
  IN p_name VARCHAR(100) CHARACTER SET utf8mb4)
  MODIFIES SQL DATA
BEGIN
  DECLARE v_due BIGINT DEFAULT NULL;
  DECLARE v_awaits VARCHAR(100) CHARACTER SET utf8mb4 DEFAULT NULL;
  IF p_value IS NULL OR NOT JSON_VALID(p_value) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_signal: the value is not valid JSON';
  END IF;
  IF NOT EXISTS(SELECT 1 FROM nightshift_job WHERE id = p_job) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_signal: no such live job';
  END IF;
  REPLACE INTO nightshift_signal (job_id, name, value, sent)
  VALUES (p_job, COALESCE(p_name, ''), p_value, {now});
  SELECT due, awaits INTO v_due, v_awaits FROM nightshift_job
  WHERE id = p_job FOR UPDATE;
  IF v_awaits IS NOT NULL AND COALESCE(p_name, '') IN ('', v_awaits) THEN
    UPDATE nightshift_scheduled SET run_at = {now}
    WHERE run_at = v_due AND job_id = p_job;
  END IF;
END

-- name: job_decay
-- decay: priority lost with each return that is no end. paused: the job whose
-- pause, of itself and all below it, holds this one; unmet counts that as one.
ALTER TABLE nightshift_job
  ADD COLUMN IF NOT EXISTS decay TINYINT UNSIGNED NOT NULL DEFAULT 8,
  ADD COLUMN IF NOT EXISTS paused BIGINT NULL

-- name: finished_decay
ALTER TABLE nightshift_finished
  ADD COLUMN IF NOT EXISTS decay TINYINT UNSIGNED NOT NULL DEFAULT 8

-- name: create_served
-- What a live host can run, for people who ask why a job does not: written when
-- it starts and when it reloads its scripts, deleted with the holder's row.
-- workers: how many take jobs, 0 while it is quiet or about to end.
-- queues: ["mail",…], NULL: all. handlers: ["mail.send",…]; a null at the end:
-- and more.
CREATE TABLE IF NOT EXISTS nightshift_served (
  holder BIGINT NOT NULL PRIMARY KEY,
  workers INT UNSIGNED NOT NULL,
  queues MEDIUMTEXT NULL,
  handlers MEDIUMTEXT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_met
-- Ended jobs whose dependents were not all told, because somebody held one of
-- them or they go too deep: the next holder that looks tells them.
CREATE TABLE IF NOT EXISTS nightshift_met (
  on_id BIGINT NOT NULL PRIMARY KEY,
  failed BOOL NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_push_decay
-- CALL nightshift_push('mail', 'email.send', '{"to":"a@b"}', '{"delay":30}').
-- From any language, and from triggers: it returns no rows and leaves the id
-- in @nightshift_id. Options: delay, priority, decay, unique,
-- max_attempts, max_crashes, max_polls, backoff, timeout, deadline; seconds are
-- numbers.
-- What a call that fails has written is taken back, in autocommit too.
-- Ring after your commit: CALL nightshift_ring().
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
  WHERE k.name NOT IN ('delay', 'priority', 'decay', 'unique', 'max_attempts',
    'max_crashes', 'max_polls', 'backoff', 'timeout', 'deadline');
  IF v_bad IS NOT NULL THEN
    SET v_bad = LEFT(CONCAT('nightshift_push: unknown option ', v_bad), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
  END IF;
  SELECT GROUP_CONCAT(k.name) INTO v_bad
  FROM JSON_TABLE(JSON_KEYS(v_options), '$[*]' COLUMNS (name VARCHAR(64) PATH '$')) k
  WHERE JSON_TYPE(JSON_EXTRACT(v_options, CONCAT('$.', k.name)))
    NOT IN ('INTEGER', 'DOUBLE', 'NULL', IF(k.name = 'unique', 'STRING', ''));
  IF v_bad IS NOT NULL THEN
    SET v_bad = CONCAT('nightshift_push: wrong type: ', v_bad);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
  END IF;
  SET v_delay = COALESCE(JSON_VALUE(v_options, '$.delay'), 0);
  SET v_deadline = JSON_VALUE(v_options, '$.deadline');
  SET v_backoff = COALESCE(JSON_VALUE(v_options, '$.backoff'), 5);
  SET v_timeout = COALESCE(JSON_VALUE(v_options, '$.timeout'), 3600);
  SET v_priority = COALESCE(JSON_VALUE(v_options, '$.priority'), 100);
  SET v_decay = COALESCE(JSON_VALUE(v_options, '$.decay'), 8);
  SET v_attempts = COALESCE(JSON_VALUE(v_options, '$.max_attempts'), 10);
  SET v_crashes = COALESCE(JSON_VALUE(v_options, '$.max_crashes'), 3);
  SET v_polls = NULLIF(JSON_VALUE(v_options, '$.max_polls'), -1);
  SET v_unique = JSON_VALUE(v_options, '$.unique');
  SET v_bad = CONCAT_WS(',',
    IF(v_delay BETWEEN 0 AND 3155760000, NULL, 'delay'),
    IF(v_deadline IS NULL OR v_deadline BETWEEN 0 AND 3155760000, NULL, 'deadline'),
    IF(v_backoff BETWEEN 0 AND 3155760000, NULL, 'backoff'),
    IF(v_timeout BETWEEN 0.000001 AND 3155760000, NULL, 'timeout'),
    IF(v_priority BETWEEN 0 AND 255 AND v_priority = FLOOR(v_priority), NULL, 'priority'),
    IF(v_decay BETWEEN 0 AND 255 AND v_decay = FLOOR(v_decay), NULL, 'decay'),
    IF(v_attempts BETWEEN 1 AND 1000000, NULL, 'max_attempts'),
    IF(v_crashes BETWEEN 1 AND 1000000, NULL, 'max_crashes'),
    IF(v_polls IS NULL OR v_polls BETWEEN 0 AND 1000000000, NULL, 'max_polls'),
    IF(v_unique IS NULL OR CHAR_LENGTH(v_unique) > 0, NULL, 'unique'));
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
  BEGIN
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
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
       decay)
    VALUES (v_id, v_queue, p_name, p_payload, v_priority, 255 - v_priority,
      v_attempts, v_polls, v_crashes, v_backoff * 1000000,
      v_timeout * 1000000, v_now + CAST(v_deadline * 1000000 AS SIGNED), v_now,
      v_now + CAST(v_delay * 1000000 AS SIGNED), v_unique,
      FLOOR(RAND() * 9000000000000000000), v_decay);
    IF CAST(v_delay * 1000000 AS SIGNED) > 0 THEN
      INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run)
      VALUES (v_now + CAST(v_delay * 1000000 AS SIGNED), v_id, v_queue,
        255 - v_priority, 1);
    ELSE
      INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)
      VALUES (v_queue, 255 - v_priority, v_now, v_id, 1);
    END IF;
  END;
  SET @nightshift_id = v_id;
END
