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
-- autocommit too. due moves with the row, for one that is paused has none. Ring after your commit: CALL nightshift_ring().
CREATE OR REPLACE PROCEDURE nightshift_signal(
  IN p_job BIGINT, IN p_value MEDIUMTEXT CHARACTER SET utf8mb4,
  IN p_name VARCHAR(100) CHARACTER SET utf8mb4)
  MODIFIES SQL DATA
BEGIN
  DECLARE v_due BIGINT DEFAULT NULL;
  DECLARE v_now BIGINT DEFAULT {now};
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
    UPDATE nightshift_scheduled SET run_at = v_now
    WHERE run_at = v_due AND job_id = p_job;
    UPDATE nightshift_job SET due = v_now WHERE id = p_job AND due > v_now;
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
-- queues: ["mail",…], NULL: all. handlers: ["mail.send",…].
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

-- name: notice_paused
-- paused: what has not been begun is to be given back.
ALTER TABLE nightshift_notice MODIFY kind ENUM('cancelled','paused') NOT NULL

-- name: create_jobs_view_again
-- As before, but a paused job that still runs is running, not waiting.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW nightshift_jobs AS
SELECT j.id, q.name AS queue, j.name, 'ready' AS state, 255 - j.rank AS priority,
  j.run, j.attempts, j.polls, j.crashes, j.created, j.due, j.parent, j.root,
  j.unmet, NULL AS holder, NULL AS finished_at, NULL AS reason, NULL AS error,
  j.payload, NULL AS result
FROM nightshift_ready r
JOIN nightshift_job j ON j.id = r.job_id AND j.run = r.run
JOIN nightshift_queue q ON q.id = j.queue_id
UNION ALL
SELECT j.id, q.name, j.name, 'scheduled', 255 - j.rank,
  j.run, j.attempts, j.polls, j.crashes, j.created, j.due, j.parent, j.root,
  j.unmet, NULL, NULL, NULL, NULL, j.payload, NULL
FROM nightshift_scheduled s
JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
JOIN nightshift_queue q ON q.id = j.queue_id
UNION ALL
SELECT j.id, q.name, j.name, 'running', 255 - j.rank,
  j.run, j.attempts, j.polls, j.crashes, j.created, j.due, j.parent, j.root,
  j.unmet, l.holder, NULL, NULL, NULL, j.payload, NULL
FROM nightshift_lease l
JOIN JSON_TABLE(l.jobs, '$[*]' COLUMNS (id BIGINT PATH '$[0]', run INT UNSIGNED PATH '$[1]')) c
JOIN nightshift_job j ON j.id = c.id AND j.run = c.run
JOIN nightshift_queue q ON q.id = j.queue_id
UNION ALL
SELECT j.id, q.name, j.name, 'waiting', 255 - j.rank,
  j.run, j.attempts, j.polls, j.crashes, j.created, j.due, j.parent, j.root,
  j.unmet, NULL, NULL, NULL, NULL, j.payload, NULL
FROM nightshift_job j
JOIN nightshift_queue q ON q.id = j.queue_id
WHERE j.unmet > 0 AND (j.paused IS NULL OR NOT EXISTS (
  SELECT 1 FROM nightshift_lease l
  JOIN JSON_TABLE(l.jobs, '$[*]' COLUMNS (id BIGINT PATH '$[0]', run INT UNSIGNED PATH '$[1]')) c
  WHERE c.id = j.id AND c.run = j.run))
UNION ALL
SELECT f.id, q.name, f.name, f.outcome, f.priority,
  f.run, f.attempts, f.polls, f.crashes, f.created, f.created, f.parent, f.root,
  0, f.holder, f.finished_at, f.reason, f.error, f.payload, f.result
FROM nightshift_finished f
JOIN nightshift_queue q ON q.id = f.queue_id
