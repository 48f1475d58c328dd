-- The tables of the base: queues, jobs, the small hot tables that claims
-- touch, and the history. Times are microseconds since 1970, UTC, by the
-- server's clock. There are no foreign keys: they would deadlock promotion
-- against cancelling. Statements are separated by `-- name:` lines.

-- name: create_meta
-- One row per fact about this installation; 'schema' is the version.
CREATE TABLE nightshift_meta (
  name VARCHAR(64) NOT NULL PRIMARY KEY,
  value VARCHAR(255) NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_id
-- Ids of jobs, leases and holders. Clients take blocks of 100:
-- id = nextval * 100 + k, 0 <= k < 100.
CREATE SEQUENCE nightshift_id START WITH 1 INCREMENT BY 1 CACHE 1000 ENGINE=InnoDB

-- name: create_queue
-- A named line of jobs.
CREATE TABLE nightshift_queue (
  id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  paused BOOLEAN NOT NULL DEFAULT FALSE,
  created BIGINT NOT NULL,
  UNIQUE KEY name (name),
  CONSTRAINT queue_name_length CHECK (LENGTH(name) BETWEEN 1 AND 64),
  CONSTRAINT queue_name_plain CHECK (name NOT REGEXP '[[:cntrl:]]')
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_job
-- A live job. Where it is follows from it: waiting when unmet > 0, running
-- when a lease names (id, run), scheduled while due lies ahead, else ready.
-- A claim does not write here.
CREATE TABLE nightshift_job (
  id BIGINT NOT NULL PRIMARY KEY,
  queue_id INT NOT NULL,
  name VARCHAR(100) NOT NULL,
  payload MEDIUMTEXT NOT NULL,
  priority TINYINT UNSIGNED NOT NULL,
  rank TINYINT UNSIGNED NOT NULL,
  run INT UNSIGNED NOT NULL DEFAULT 1,
  attempts INT UNSIGNED NOT NULL DEFAULT 0,
  polls INT UNSIGNED NOT NULL DEFAULT 0,
  crashes INT UNSIGNED NOT NULL DEFAULT 0,
  lost INT UNSIGNED NOT NULL DEFAULT 0,
  missed INT UNSIGNED NOT NULL DEFAULT 0,
  max_attempts INT UNSIGNED NOT NULL,
  max_polls INT UNSIGNED NULL,
  max_crashes INT UNSIGNED NOT NULL,
  backoff BIGINT NOT NULL,
  timeout BIGINT NOT NULL,
  deadline BIGINT NULL,
  created BIGINT NOT NULL,
  due BIGINT NOT NULL,
  missing_since BIGINT NULL,
  parent BIGINT NULL,
  root BIGINT NULL,
  unmet INT UNSIGNED NOT NULL DEFAULT 0,
  on_fail ENUM('cancel','run') NOT NULL DEFAULT 'cancel',
  state MEDIUMTEXT NULL,
  ukey VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NULL,
  nonce BIGINT NOT NULL,
  CONSTRAINT job_id_positive CHECK (id > 0),
  CONSTRAINT job_name_length CHECK (LENGTH(name) BETWEEN 1 AND 100),
  CONSTRAINT job_name_plain CHECK (name NOT REGEXP '[[:cntrl:]]'),
  CONSTRAINT job_payload_json CHECK (JSON_VALID(payload)),
  CONSTRAINT job_state_json CHECK (state IS NULL OR JSON_VALID(state)),
  CONSTRAINT job_run_counts CHECK (run >= 1),
  CONSTRAINT job_attempts_left CHECK (attempts < max_attempts),
  CONSTRAINT job_polls_left CHECK (max_polls IS NULL OR polls <= max_polls),
  CONSTRAINT job_crashes_left CHECK (crashes < max_crashes),
  CONSTRAINT job_missing_counts CHECK ((missed = 0) = (missing_since IS NULL)),
  CONSTRAINT job_backoff_positive CHECK (backoff >= 0),
  CONSTRAINT job_timeout_positive CHECK (timeout > 0),
  CONSTRAINT job_times CHECK (created > 0 AND due > 0),
  CONSTRAINT job_parent_other CHECK (parent IS NULL OR parent <> id),
  CONSTRAINT job_root_with_parent CHECK ((parent IS NULL) = (root IS NULL))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_ready
-- Claimable jobs, clustered in claim order: rank = 255 - priority, then first
-- come first served. job_id 0 at the largest ready_at is the sentinel that
-- ends a lane (queue_id, rank). A row whose job is gone, or has another run,
-- is dropped by whoever claims it.
CREATE TABLE nightshift_ready (
  queue_id INT NOT NULL,
  rank TINYINT UNSIGNED NOT NULL,
  ready_at BIGINT NOT NULL,
  job_id BIGINT NOT NULL,
  run INT UNSIGNED NOT NULL,
  PRIMARY KEY (queue_id, rank, ready_at, job_id),
  CONSTRAINT ready_sentinel CHECK (
    (job_id = 0) = (ready_at = 9223372036854775807) AND
    (job_id = 0) = (run = 0) AND job_id >= 0)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_scheduled
-- Jobs due later; moved into ready when due.
CREATE TABLE nightshift_scheduled (
  run_at BIGINT NOT NULL,
  job_id BIGINT NOT NULL,
  queue_id INT NOT NULL,
  rank TINYINT UNSIGNED NOT NULL,
  run INT UNSIGNED NOT NULL,
  PRIMARY KEY (run_at, job_id),
  CONSTRAINT scheduled_real CHECK (job_id > 0 AND run_at > 0 AND run >= 1)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_edge
-- job_id waits for on_id; job.unmet counts its rows.
CREATE TABLE nightshift_edge (
  on_id BIGINT NOT NULL,
  job_id BIGINT NOT NULL,
  PRIMARY KEY (on_id, job_id),
  CONSTRAINT edge_other CHECK (on_id <> job_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_lease
-- A claimed batch: jobs is [[id,run],…]. Deleted when its last job settles,
-- never rewritten.
CREATE TABLE nightshift_lease (
  id BIGINT NOT NULL PRIMARY KEY,
  holder BIGINT NOT NULL,
  claimed BIGINT NOT NULL,
  jobs MEDIUMTEXT NOT NULL,
  KEY holder (holder),
  CONSTRAINT lease_jobs_json CHECK (JSON_VALID(jobs))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_listener
-- A listener that is about to sleep, or sleeps: the connection to ring. Kind
-- tells which queues it waits for. In memory on purpose: thread ids mean
-- nothing after a restart, and it is empty then; it costs no disk; a caller's
-- open transaction holds no row of it.
CREATE TABLE nightshift_listener (
  thread BIGINT NOT NULL PRIMARY KEY,
  kind CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  KEY kind (kind, thread) USING BTREE
) ENGINE=MEMORY

-- name: create_holder
-- Whoever holds claims: a host process or an embedded handle. cycle numbers
-- its transactions, so that after a cut at COMMIT it knows which half it is in.
CREATE TABLE nightshift_holder (
  id BIGINT NOT NULL PRIMARY KEY,
  kind ENUM('host','handle') NOT NULL,
  host VARCHAR(255) NOT NULL,
  pid INT NOT NULL,
  boot_id VARCHAR(40) NOT NULL,
  connection BIGINT NOT NULL,
  started BIGINT NOT NULL,
  beat BIGINT NOT NULL,
  cycle BIGINT NOT NULL DEFAULT 0,
  dead BIGINT NULL,
  version VARCHAR(32) NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_running
-- Jobs that show themselves while they run: longer than a second, or with
-- progress. Removed with the verdict.
CREATE TABLE nightshift_running (
  job_id BIGINT NOT NULL PRIMARY KEY,
  run INT UNSIGNED NOT NULL,
  holder BIGINT NOT NULL,
  worker INT NULL,
  started BIGINT NOT NULL,
  touched BIGINT NOT NULL,
  progress DOUBLE NULL,
  status VARCHAR(255) NULL,
  CONSTRAINT running_progress CHECK (progress IS NULL OR progress BETWEEN 0 AND 1)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_notice
-- A message to a holder about a job it holds.
CREATE TABLE nightshift_notice (
  holder BIGINT NOT NULL,
  job_id BIGINT NOT NULL,
  run INT UNSIGNED NOT NULL,
  kind ENUM('cancelled') NOT NULL,
  created BIGINT NOT NULL,
  PRIMARY KEY (holder, job_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_finished
-- History: every ended job with all that is needed to run it again. The key
-- on (outcome, finished_at) serves pruning and the newest-first listings.
CREATE TABLE nightshift_finished (
  id BIGINT NOT NULL PRIMARY KEY,
  queue_id INT NOT NULL,
  name VARCHAR(100) NOT NULL,
  payload MEDIUMTEXT NOT NULL,
  priority TINYINT UNSIGNED NOT NULL,
  outcome ENUM('done','dead','cancelled') NOT NULL,
  reason VARCHAR(40) NULL,
  run INT UNSIGNED NOT NULL,
  result MEDIUMTEXT NULL,
  error MEDIUMTEXT NULL,
  attempts INT UNSIGNED NOT NULL,
  polls INT UNSIGNED NOT NULL,
  crashes INT UNSIGNED NOT NULL,
  lost INT UNSIGNED NOT NULL,
  max_attempts INT UNSIGNED NOT NULL,
  max_polls INT UNSIGNED NULL,
  max_crashes INT UNSIGNED NOT NULL,
  backoff BIGINT NOT NULL,
  timeout BIGINT NOT NULL,
  deadline BIGINT NULL,
  created BIGINT NOT NULL,
  finished_at BIGINT NOT NULL,
  parent BIGINT NULL,
  root BIGINT NULL,
  on_fail ENUM('cancel','run') NOT NULL,
  ukey VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NULL,
  nonce BIGINT NOT NULL,
  holder BIGINT NULL,
  KEY outcome (outcome, finished_at),
  CONSTRAINT finished_reason CHECK ((outcome = 'dead') <= (reason IS NOT NULL)),
  CONSTRAINT finished_result CHECK (outcome = 'done' OR result IS NULL),
  CONSTRAINT finished_error CHECK (outcome <> 'done' OR error IS NULL)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_attempt
-- A failed, crashed or lost attempt. A poll leaves no row.
CREATE TABLE nightshift_attempt (
  job_id BIGINT NOT NULL,
  run INT UNSIGNED NOT NULL,
  kind ENUM('failed','crashed','lost') NOT NULL,
  ended BIGINT NOT NULL,
  holder BIGINT NULL,
  error MEDIUMTEXT NULL,
  log MEDIUMTEXT NULL,
  PRIMARY KEY (job_id, run)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_unique_key
-- Held by a live job from its push to its end.
CREATE TABLE nightshift_unique_key (
  queue_id INT NOT NULL,
  ukey VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  job_id BIGINT NOT NULL,
  PRIMARY KEY (queue_id, ukey)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_jobs_view
-- Every job with its state, for people and reports. It reads all hot tables;
-- counts for dashboards come from elsewhere.
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
WHERE j.unmet > 0
UNION ALL
SELECT f.id, q.name, f.name, f.outcome, f.priority,
  f.run, f.attempts, f.polls, f.crashes, f.created, f.created, f.parent, f.root,
  0, f.holder, f.finished_at, f.reason, f.error, f.payload, f.result
FROM nightshift_finished f
JOIN nightshift_queue q ON q.id = f.queue_id

-- name: create_push
-- CALL nightshift_push('mail', 'email.send', '{"to":"a@b"}', '{"delay":30}').
-- From any language, and from triggers: it returns no rows and leaves the id
-- in @nightshift_id. Options: delay, priority, unique, max_attempts,
-- max_crashes, max_polls, backoff, timeout, deadline; seconds are numbers.
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
  DECLARE v_priority, v_attempts, v_crashes, v_polls DOUBLE;
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
       max_crashes, backoff, timeout, deadline, created, due, ukey, nonce)
    VALUES (v_id, v_queue, p_name, p_payload, v_priority, 255 - v_priority,
      v_attempts, v_polls, v_crashes, v_backoff * 1000000,
      v_timeout * 1000000, v_now + CAST(v_deadline * 1000000 AS SIGNED), v_now,
      v_now + CAST(v_delay * 1000000 AS SIGNED), v_unique,
      FLOOR(RAND() * 9000000000000000000));
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

-- name: create_ring
-- Ends the sleep of two listeners of each kind (each set of queues), whoever
-- owns them: the oldest and the newest, because one of them may belong to a
-- process that was killed and whose connection the server has not missed yet.
-- Those whose connection is gone (error 1094) are struck out, and the next are
-- rung.
CREATE OR REPLACE PROCEDURE nightshift_ring()
  SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
  DECLARE v_kind CHAR(32) CHARACTER SET ascii DEFAULT '';
  DECLARE v_next CHAR(32) CHARACTER SET ascii;
  DECLARE v_old, v_new BIGINT;
  DECLARE v_gone BOOLEAN;
  DECLARE CONTINUE HANDLER FOR 1094 SET v_gone = TRUE;
  DECLARE CONTINUE HANDLER FOR 1095 BEGIN END;
  ring: LOOP
    SET v_next = NULL;
    SELECT kind INTO v_next FROM nightshift_listener
    WHERE kind > v_kind ORDER BY kind LIMIT 1;
    IF v_next IS NULL THEN
      LEAVE ring;
    END IF;
    SET v_kind = v_next;
    REPEAT
      SET v_gone = FALSE;
      SELECT MIN(thread), MAX(thread) INTO v_old, v_new
      FROM nightshift_listener WHERE kind = v_kind;
      IF v_old IS NOT NULL THEN
        KILL QUERY v_old;
        IF v_gone THEN
          DELETE FROM nightshift_listener WHERE thread = v_old;
        ELSEIF v_new <> v_old THEN
          KILL QUERY v_new;
          IF v_gone THEN
            DELETE FROM nightshift_listener WHERE thread = v_new;
          END IF;
        END IF;
      END IF;
    UNTIL NOT v_gone END REPEAT;
  END LOOP;
END
