-- Trees: who is whose child, and parents that wait for their children.

-- name: job_tree
-- phase counts how often job:wait has parked the job; waits is there while it
-- is parked: for its children, and then says what a failed one means, or for a
-- signal, and then stays until the run after it has returned.
ALTER TABLE nightshift_job
  ADD COLUMN IF NOT EXISTS phase INT UNSIGNED NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS waits ENUM('fail','continue','signal') NULL

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
