-- The view and the procedures. They hold no rows, so each migration makes all of them anew:
-- they have the version of the newest tables.
--
-- The procedures are atomic: a push and a signal write all of their rows or none. A KILL or a
-- crash of the server changes nothing about that, in autocommit either. So a function writes
-- all their rows: to the server, a function is one statement. (A transaction of a procedure's
-- own would not do. A COMMIT is refused in triggers, and a KILL would leave the caller in the
-- middle of it.) A server with a binary log asks functions that write for DETERMINISTIC; they
-- are called once each. Names may be one character too long: the server silently drops trailing
-- blanks of longer texts, so a name would become another.

-- name: jobs
-- Live jobs with their states, for people and reports. Times are DATETIME(6), UTC; kept is the
-- state kept by the last poll. A row is looked up by id in no time; a query over the states of
-- all has all jobs read. Counts for dashboards come from elsewhere.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW nightshift_jobs AS
SELECT j.id, q.name AS queue, j.name, {state} AS state, 255 - j.rank AS priority,
  j.run, j.attempts, j.polls, j.crashes,
  TIMESTAMP'1970-01-01 00:00:00' + INTERVAL j.created MICROSECOND AS created,
  TIMESTAMP'1970-01-01 00:00:00' + INTERVAL j.due MICROSECOND AS due,
  j.parent, j.root, j.unmet, c.holder, j.phase, IF({awaits}, j.awaits, NULL) AS awaits,
  j.state AS kept, j.group_key
FROM nightshift_job j
JOIN nightshift_queue q ON q.id = j.queue_id
LEFT JOIN {claims}

-- name: history
-- Ended jobs; state is done, dead or cancelled, and dead ones have a reason. started, host, pid and
-- worker are of the run that it ended with.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW nightshift_history AS
SELECT f.id, q.name AS queue, f.name, f.outcome AS state, f.reason, f.priority,
  f.run, f.attempts, f.polls, f.crashes,
  TIMESTAMP'1970-01-01 00:00:00' + INTERVAL f.created MICROSECOND AS created,
  TIMESTAMP'1970-01-01 00:00:00' + INTERVAL f.finished_at MICROSECOND AS finished_at,
  f.parent, f.root, f.holder, f.error, f.payload, f.result,
  f.state AS kept,
  TIMESTAMP'1970-01-01 00:00:00' + INTERVAL f.started MICROSECOND AS started,
  {ended_host} AS host, {ended_pid} AS pid, f.worker, f.group_key
FROM nightshift_finished f
JOIN nightshift_queue q ON q.id = f.queue_id
{ended_holder}

-- name: seconds
-- The seconds of a duration in JSON: a number, or a text like "90", "90s", "1h30m", "0.5ms".
-- Units go from large to small, each once, and a text has no exponent. NULL: it is none. A
-- number beyond DOUBLE is 1e300, which is out of any range.
CREATE OR REPLACE FUNCTION nightshift_seconds(p_json VARCHAR(100) {bytes})
  RETURNS DOUBLE DETERMINISTIC NO SQL
BEGIN
  DECLARE v_sum DOUBLE DEFAULT 0;
  DECLARE v_rest VARCHAR(100) {bytes} DEFAULT p_json;
  DECLARE v_part VARCHAR(100) {bytes};
  DECLARE v_unit, v_last INT DEFAULT 0;
  IF p_json REGEXP '^-?[0-9]+([.][0-9]+)?[eE][+]?[0-9]{3,}$' THEN
    RETURN 1e300;
  END IF;
  IF p_json REGEXP '^-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?$' THEN
    RETURN p_json + 0e0;
  END IF;
  IF p_json NOT LIKE '"_%"' THEN
    RETURN NULL;
  END IF;
  SET v_rest = JSON_UNQUOTE(p_json);
  IF v_rest REGEXP '^-?[0-9]+([.][0-9]+)?$' THEN
    RETURN v_rest + 0e0;
  END IF;
  WHILE v_rest <> '' DO
    SET v_part = REGEXP_SUBSTR(v_rest, '^[0-9]+([.][0-9]+)?(w|d|h|ms|m|s|us)');
    SET v_unit = FIELD(REGEXP_SUBSTR(v_part, '[a-z]+'), 'w', 'd', 'h', 'm', 's', 'ms', 'us');
    IF v_unit <= v_last THEN
      RETURN NULL;
    END IF;
    SET v_sum = v_sum + REGEXP_SUBSTR(v_part, '^[0-9.]+')
      * ELT(v_unit, 604800e0, 86400e0, 3600e0, 60e0, 1e0, 1e-3, 1e-6);
    SET v_rest = SUBSTR(v_rest, CHAR_LENGTH(v_part) + 1), v_last = v_unit;
  END WHILE;
  RETURN IF(v_last > 0, v_sum, NULL);
END

-- name: bad_name
-- The fault of a name of a 'p_what'; NULL: none. p_max counts bytes.
CREATE OR REPLACE FUNCTION nightshift_bad_name(
  p_what VARCHAR(20) {bytes}, p_name VARCHAR(101) {bytes}, p_max INT)
  RETURNS VARCHAR(100) {bytes} DETERMINISTIC NO SQL
BEGIN
  RETURN CASE
    WHEN p_name IS NULL THEN CONCAT('the ', p_what, ' is NULL')
    WHEN LENGTH(p_name) = 0 THEN CONCAT('the ', p_what, ' is empty')
    WHEN LENGTH(p_name) > p_max
      THEN CONCAT('the ', p_what, ' has ', LENGTH(p_name), ' bytes, the limit is ', p_max)
    WHEN p_name REGEXP '[[:cntrl:]]' THEN CONCAT('the ', p_what, ' has a control character')
  END;
END

-- name: key_taken
-- Takes a unique key, or gives the job that has it, which has it until our end. Waits
-- for a push of the same key that is not yet committed. p_held: the end of its period, NULL: it
-- has none. Key: PRIMARY.
CREATE OR REPLACE FUNCTION nightshift_key_taken(
  p_queue INT, p_key VARCHAR(190) {bytes}, p_job BIGINT, p_held BIGINT)
  RETURNS BIGINT DETERMINISTIC MODIFIES SQL DATA
BEGIN
  DECLARE v_taken BOOLEAN DEFAULT FALSE;
  DECLARE v_owner, v_until BIGINT DEFAULT NULL;
  BEGIN
    DECLARE CONTINUE HANDLER FOR 1062 SET v_taken = TRUE;
    INSERT INTO nightshift_unique_key (queue_id, ukey, job_id, held)
    VALUES (p_queue, p_key, p_job, p_held);
  END;
  IF v_taken THEN
    SELECT job_id, until INTO v_owner, v_until FROM nightshift_unique_key
    WHERE queue_id = p_queue AND ukey = p_key LOCK IN SHARE MODE;
  END IF;
  IF v_until <= {now} THEN -- NULL: its job lives
    UPDATE nightshift_unique_key SET job_id = p_job, held = p_held, until = NULL
    WHERE queue_id = p_queue AND ukey = p_key AND until = v_until;
    SET v_owner = IF(ROW_COUNT() = 1, NULL, v_owner);
  END IF;
  RETURN v_owner;
END

-- name: push_whole
-- The rows of CALL nightshift_push. p_known: the id of the queue, NULL: it is new, or newer
-- than the caller's view. p_after: the jobs of its list that the history did not have a moment
-- ago; p_failed: one of the other jobs did not end done. Whatever fails takes back all.
--
-- Each job that it waits for stays locked to the end, so no session ends it before its edge can
-- be seen. A job that is not there has ended meanwhile. The parent stays locked, too: when it
-- is parked for its children it waits for this one as well.
CREATE OR REPLACE FUNCTION nightshift_push_whole(
  p_known INT, p_queue VARCHAR(65) {bytes},
  p_name VARCHAR(101) {bytes},
  p_payload MEDIUMTEXT {bytes},
  p_options MEDIUMTEXT {bytes},
  p_after MEDIUMTEXT {bytes}, p_failed BOOLEAN)
  RETURNS BIGINT DETERMINISTIC MODIFIES SQL DATA
BEGIN
  DECLARE v_queue INT DEFAULT p_known;
  DECLARE v_id, v_now BIGINT;
  DECLARE v_delay, v_deadline, v_backoff, v_timeout DOUBLE;
  DECLARE v_priority, v_decay, v_attempts, v_crashes, v_polls, v_phases DOUBLE;
  DECLARE v_at DECIMAL(20, 6) DEFAULT NULL;
  DECLARE v_due BIGINT;
  DECLARE v_tags MEDIUMTEXT {bytes};
  DECLARE v_parent, v_root, v_on, v_paused, v_inherited, v_seq BIGINT DEFAULT NULL;
  DECLARE v_unmet INT DEFAULT 0;
  DECLARE v_failed, v_doomed, v_over, v_joins BOOLEAN DEFAULT FALSE;
  DECLARE v_after MEDIUMTEXT {bytes};
  DECLARE v_on_fail VARCHAR(10) {bytes};
  DECLARE v_conflict VARCHAR(10) {bytes} DEFAULT 'refuse';
  DECLARE v_unique VARCHAR(191) {bytes};
  DECLARE v_group TEXT {bytes} DEFAULT NULL;
  DECLARE v_period DOUBLE DEFAULT NULL;
  DECLARE v_held BIGINT DEFAULT NULL;
  DECLARE v_text VARCHAR(100) {bytes};
  DECLARE v_bad TEXT {bytes} DEFAULT NULL;
  DECLARE v_options MEDIUMTEXT {bytes}
    DEFAULT COALESCE(NULLIF(p_options, ''), '{}');
  IF NOT COALESCE(LENGTH(p_queue) BETWEEN 1 AND 64 AND LENGTH(p_name) BETWEEN 1 AND 100
      AND CONCAT(p_queue, p_name) NOT REGEXP '[[:cntrl:]]' AND JSON_VALID(p_payload), FALSE) THEN
    SET v_bad = LEFT(CONCAT('nightshift_push: INVALID: ', CONCAT_WS('; ',
      nightshift_bad_name('queue', p_queue, 64), nightshift_bad_name('job name', p_name, 100),
      IF(p_payload IS NULL, 'the payload is NULL; write ''null''',
        IF(JSON_VALID(p_payload), NULL, 'the payload is not valid JSON')))), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
  END IF;
  IF LENGTH(p_payload) > COALESCE(@nightshift_max_payload, 1048576) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_push: TOO_BIG: the payload is over 1 MiB; SET @nightshift_max_payload to allow more bytes';
  END IF;
  IF NOT JSON_VALID(v_options) OR JSON_TYPE(v_options) <> 'OBJECT' THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_push: INVALID: the options are not a JSON object';
  END IF;
  IF v_options <> '{}' THEN -- most have none
    SELECT GROUP_CONCAT(COALESCE(k.name, 'of a long name')) INTO v_bad
    FROM JSON_TABLE(JSON_KEYS(v_options), '$[*]' COLUMNS (name VARCHAR(64) {bytes} PATH '$')) k
    WHERE k.name IS NULL OR k.name NOT IN ('delay', 'priority', 'unique', 'max_attempts',
      'max_crashes', 'max_polls', 'backoff', 'timeout', 'deadline', 'decay',
      'parent', 'after', 'on_fail', 'max_phases', 'at', 'tags', 'group');
    IF v_bad IS NOT NULL THEN
      SET v_bad = LEFT(CONCAT('nightshift_push: INVALID: unknown option ', v_bad), 128);
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
    END IF;
    SELECT GROUP_CONCAT(k.name) INTO v_bad
    FROM JSON_TABLE(JSON_KEYS(v_options), '$[*]' COLUMNS (name VARCHAR(64) {bytes} PATH '$')) k
    WHERE JSON_TYPE(JSON_EXTRACT(v_options, CONCAT('$.', k.name)))
      NOT IN ('NULL', IF(k.name IN ('after', 'tags'), 'ARRAY',
          IF(k.name IN ('on_fail', 'group'), 'STRING', 'INTEGER')),
        IF(k.name IN ('after', 'on_fail', 'parent', 'tags', 'group'), '', 'DOUBLE'),
        IF(k.name IN ('unique', 'delay', 'deadline', 'backoff', 'timeout'), 'STRING', ''),
        IF(k.name = 'unique', 'OBJECT', ''));
    IF v_bad IS NOT NULL THEN
      SET v_bad = LEFT(CONCAT('nightshift_push: INVALID: wrong type: ', v_bad), 128);
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
    END IF;
    -- A statement that names a function is dear, whether it calls it or not.
    IF JSON_EXISTS(v_options, '$.delay') OR JSON_EXISTS(v_options, '$.deadline')
      OR JSON_EXISTS(v_options, '$.backoff') OR JSON_EXISTS(v_options, '$.timeout') THEN
      SET v_text = LEFT(JSON_EXTRACT(v_options, '$.delay'), 100);
      IF v_text REGEXP '^[0-9]{1,15}$' THEN
        SET v_delay = v_text;
      ELSEIF v_text <> 'null' THEN
        SET v_delay = nightshift_seconds(v_text);
        SET v_bad = IF(v_delay IS NULL, CONCAT_WS(',', v_bad, 'delay'), v_bad);
      END IF;
      SET v_text = LEFT(JSON_EXTRACT(v_options, '$.deadline'), 100);
      IF v_text REGEXP '^[0-9]{1,15}$' THEN
        SET v_deadline = v_text;
      ELSEIF v_text <> 'null' THEN
        SET v_deadline = nightshift_seconds(v_text);
        SET v_bad = IF(v_deadline IS NULL, CONCAT_WS(',', v_bad, 'deadline'), v_bad);
      END IF;
      SET v_text = LEFT(JSON_EXTRACT(v_options, '$.backoff'), 100);
      IF v_text REGEXP '^[0-9]{1,15}$' THEN
        SET v_backoff = v_text;
      ELSEIF v_text <> 'null' THEN
        SET v_backoff = nightshift_seconds(v_text);
        SET v_bad = IF(v_backoff IS NULL, CONCAT_WS(',', v_bad, 'backoff'), v_bad);
      END IF;
      SET v_text = LEFT(JSON_EXTRACT(v_options, '$.timeout'), 100);
      IF v_text REGEXP '^[0-9]{1,15}$' THEN
        SET v_timeout = v_text;
      ELSEIF v_text <> 'null' THEN
        SET v_timeout = nightshift_seconds(v_text);
        SET v_bad = IF(v_timeout IS NULL, CONCAT_WS(',', v_bad, 'timeout'), v_bad);
      END IF;
      IF v_bad <> '' THEN
        SET v_bad = CONCAT('nightshift_push: INVALID: no duration: ', v_bad,
          '; write seconds, or "90s", "5m", "1h30m"');
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
      END IF;
    END IF;
  END IF;
  IF JSON_EXISTS(v_options, '$.at') THEN
    SET v_text = LEFT(JSON_VALUE(v_options, '$.at'), 100);
    IF v_text IS NOT NULL AND v_delay IS NOT NULL THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_push: INVALID: at and delay exclude each other';
    END IF;
    IF v_text + 0e0 NOT BETWEEN 0 AND 32503680000 THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_push: INVALID: out of range: at';
    END IF;
    SET v_at = CAST(v_text AS DECIMAL(20, 6));
  END IF;
  IF JSON_TYPE(JSON_EXTRACT(v_options, '$.tags')) = 'ARRAY' THEN
    SET v_tags = JSON_EXTRACT(v_options, '$.tags');
    IF JSON_LENGTH(v_tags) > 16 OR EXISTS(
        SELECT 1 FROM JSON_TABLE(v_tags, '$[*]' COLUMNS (n FOR ORDINALITY, tag TEXT {bytes} PATH '$')) t
        WHERE t.tag IS NULL OR CHAR_LENGTH(t.tag) NOT BETWEEN 1 AND 64 OR t.tag REGEXP '[[:cntrl:]]'
          OR JSON_TYPE(JSON_EXTRACT(v_tags, CONCAT('$[', t.n - 1, ']'))) <> 'STRING') THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
        'nightshift_push: INVALID: tags are up to 16 texts of 1 to 64 characters, without control characters';
    END IF;
    SET v_tags = NULLIF(v_tags, '[]');
  END IF;
  IF JSON_EXISTS(v_options, '$.group') THEN
    SET v_group = JSON_VALUE(v_options, '$.group');
    IF CHAR_LENGTH(v_group) NOT BETWEEN 1 AND 190 OR v_group REGEXP '[\\x{0}-\\x{1F}\\x{7F}-\\x{9F}]' THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
        'nightshift_push: INVALID: the group must have 1 to 190 characters, and no control characters';
    END IF;
  END IF;
  SET v_delay = COALESCE(v_delay, 0), v_backoff = COALESCE(v_backoff, 5);
  SET v_timeout = COALESCE(v_timeout, 3600);
  SET v_priority = COALESCE(JSON_VALUE(v_options, '$.priority'), 100);
  SET v_attempts = COALESCE(JSON_VALUE(v_options, '$.max_attempts'), 10);
  SET v_crashes = COALESCE(JSON_VALUE(v_options, '$.max_crashes'), 5);
  SET v_polls = NULLIF(JSON_VALUE(v_options, '$.max_polls'), -1);
  SET v_phases = JSON_VALUE(v_options, '$.max_phases');
  IF JSON_EXISTS(v_options, '$.unique') THEN
    SET v_bad = COALESCE(JSON_VALUE(v_options, '$.unique.key'), JSON_VALUE(v_options, '$.unique'));
    IF CHAR_LENGTH(v_bad) > 190 THEN
      SET v_bad = CONCAT('nightshift_push: INVALID: the unique key has ', CHAR_LENGTH(v_bad),
        ' characters, the limit is 190');
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
    END IF;
    IF LEFT(v_bad, 4) = 'row:' THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_push: INVALID: the unique key begins with row:, as those of adopted rows do; choose another';
    END IF;
    IF LEFT(v_bad, 5) = 'dead:' THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_push: INVALID: the unique key begins with dead:, as those of jobs pushed for dead ones do; choose another';
    END IF;
    SET v_unique = JSON_VALUE(v_options, '$.unique');
    IF JSON_TYPE(JSON_EXTRACT(v_options, '$.unique')) = 'OBJECT' THEN
      SET v_unique = JSON_VALUE(v_options, '$.unique.key');
      SET v_conflict = COALESCE(JSON_VALUE(v_options, '$.unique.on_conflict'), 'refuse');
      IF v_conflict = 'replace' THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
          'nightshift_push: INVALID: on_conflict replace is for q:push, not for SQL';
      END IF;
      IF v_unique IS NULL OR v_conflict NOT IN ('keep', 'refuse')
        OR JSON_LENGTH(v_options, '$.unique') > 1 + JSON_EXISTS(v_options, '$.unique.on_conflict')
          + JSON_EXISTS(v_options, '$.unique.period') THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
          'nightshift_push: INVALID: unique is a key or {"key": "…", "period": …, "on_conflict": "refuse" or "keep"}';
      END IF;
      SET v_text = LEFT(JSON_EXTRACT(v_options, '$.unique.period'), 100);
      IF v_text <> 'null' THEN
        SET v_period = COALESCE(nightshift_seconds(v_text), -1);
      END IF;
    END IF;
  END IF;
  SET v_decay = COALESCE(JSON_VALUE(v_options, '$.decay'), 8);
  SET v_parent = JSON_VALUE(v_options, '$.parent');
  SET v_on_fail = COALESCE(JSON_VALUE(v_options, '$.on_fail'), 'cancel');
  SET v_doomed = v_on_fail = 'cancel' AND p_failed;
  IF JSON_TYPE(JSON_EXTRACT(v_options, '$.after')) = 'ARRAY' THEN
    SET v_after = JSON_EXTRACT(v_options, '$.after');
  END IF;
  SET v_bad = CONCAT_WS(',',
    IF(CHAR_LENGTH(p_queue) > 64, 'queue', NULL),
    IF(CHAR_LENGTH(p_name) > 100, 'name', NULL),
    IF(v_delay BETWEEN 0 AND 3155760000, NULL, 'delay'),
    IF(v_deadline IS NULL OR v_deadline BETWEEN 0 AND 3155760000, NULL, 'deadline'),
    IF(v_backoff BETWEEN 0 AND 3155760000, NULL, 'backoff'),
    IF(v_timeout BETWEEN 0.000001 AND 3155760000, NULL, 'timeout'),
    IF(v_priority BETWEEN 0 AND 255 AND v_priority = FLOOR(v_priority), NULL, 'priority'),
    IF(v_attempts BETWEEN 1 AND 1000000, NULL, 'max_attempts'),
    IF(v_crashes BETWEEN 1 AND 1000000, NULL, 'max_crashes'),
    IF(v_polls IS NULL OR v_polls BETWEEN 0 AND 1000000000, NULL, 'max_polls'),
    IF(v_phases IS NULL OR v_phases BETWEEN 0 AND 1000000, NULL, 'max_phases'),
    IF(v_unique IS NULL OR CHAR_LENGTH(v_unique) BETWEEN 1 AND 190, NULL, 'unique'),
    IF(v_period IS NULL OR v_period BETWEEN 0.000001 AND 3155760000, NULL, 'period'),
    IF(v_decay BETWEEN 0 AND 255 AND v_decay = FLOOR(v_decay), NULL, 'decay'),
    IF(v_parent IS NULL OR v_parent > 0, NULL, 'parent'),
    IF(v_on_fail IN ('cancel', 'run'), NULL, 'on_fail'),
    IF(v_after IS NULL OR JSON_LENGTH(v_after) BETWEEN 1 AND 100000 AND NOT EXISTS(
        SELECT 1 FROM JSON_TABLE(v_after, '$[*]' COLUMNS (id VARCHAR(30) {bytes} PATH '$')) t
        WHERE t.id IS NULL OR t.id NOT REGEXP '^[1-9][0-9]{0,17}$'), NULL, 'after'));
  IF v_bad <> '' THEN
    SET v_bad = LEFT(CONCAT('nightshift_push: INVALID: out of range: ', v_bad), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
  END IF;
  IF v_queue IS NULL THEN
    INSERT IGNORE INTO nightshift_queue (name, created) VALUES (p_queue, {now});
    SELECT id INTO v_queue FROM nightshift_queue WHERE name = p_queue
    LOCK IN SHARE MODE;
  END IF;
  SET v_id = (NEXT VALUE FOR nightshift_id) * 100;
  SET v_now = {now};
  SET v_due = COALESCE(GREATEST(CAST(v_at * 1000000 AS SIGNED), v_now),
    v_now + CAST(v_delay * 1000000 AS SIGNED));
  SET v_held = v_now + CAST(v_period * 1000000 AS SIGNED);
  IF v_conflict = 'keep' THEN
    SET v_on = nightshift_key_taken(v_queue, v_unique, v_id, v_held);
    IF v_on IS NOT NULL THEN
      RETURN v_on;
    END IF;
  END IF;
  IF v_parent IS NOT NULL THEN
    SELECT COALESCE(root, id), paused, deadline, run * 1048576 + 1048575,
      COALESCE(waits IN ('fail', 'continue'), FALSE)
    INTO v_root, v_paused, v_inherited, v_seq, v_joins FROM nightshift_job
    WHERE id = v_parent FOR UPDATE;
    IF v_root IS NULL THEN
      SET v_bad = CONCAT('nightshift_push: NOT_FOUND: the parent, job ', v_parent, ', is no live job');
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
    END IF;
    IF v_joins THEN
      SET v_after = NULLIF(CONCAT('[', TRIM(BOTH ',' FROM REPLACE(
        REPLACE(REPLACE(JSON_COMPACT(v_after), '[', ','), ']', ','),
        CONCAT(',', v_parent, ','), ',')), ']'), '[]');
    END IF;
  END IF;
  BEGIN
    DECLARE targets CURSOR FOR SELECT DISTINCT id
      FROM JSON_TABLE(COALESCE(p_after, '[]'), {ids}) t
      WHERE NOT (v_joins AND id = v_parent) ORDER BY id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = TRUE;
    OPEN targets;
    FETCH targets INTO v_on;
    WHILE NOT v_over DO
      INSERT INTO nightshift_edge (on_id, job_id)
      SELECT id, v_id FROM nightshift_job WHERE id = v_on LOCK IN SHARE MODE;
      IF ROW_COUNT() = 1 THEN
        SET v_unmet = v_unmet + 1;
      ELSE
        SET v_failed = NULL;
        SELECT outcome <> 'done' INTO v_failed FROM nightshift_finished
        WHERE id = v_on LOCK IN SHARE MODE;
        IF v_failed IS NULL THEN
          SET v_bad = CONCAT('nightshift_push: NOT_FOUND: job ', v_on, ', which this is to wait for, is unknown');
          SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
        END IF;
        SET v_doomed = v_doomed OR (v_failed AND v_on_fail = 'cancel'), v_over = FALSE;
      END IF;
      FETCH targets INTO v_on;
    END WHILE;
  END;
  IF v_unique IS NOT NULL AND v_conflict = 'refuse' THEN
    SET v_on = nightshift_key_taken(v_queue, v_unique, v_id, v_held);
    IF v_on IS NOT NULL THEN
      SELECT IF(until IS NULL, ', which has not finished', ', which is done') INTO v_text
      FROM nightshift_unique_key WHERE queue_id = v_queue AND ukey = v_unique LOCK IN SHARE MODE;
      SET v_bad = CONCAT('nightshift_push: DUPLICATE: job ', v_on, v_text,
        ', has the unique key ''',
        REGEXP_REPLACE(LEFT(v_unique, 32), '[[:cntrl:]]', '?'), '''');
      SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 1062, MESSAGE_TEXT = v_bad;
    END IF;
  END IF;
  INSERT INTO nightshift_job
    (id, queue_id, name, payload, priority, rank, max_attempts, max_polls,
     max_crashes, backoff, timeout, deadline, created, due, ukey, nonce,
     decay, parent, root, on_fail, paused, after_ids, max_phases, tagged, group_key, unmet)
  VALUES (v_id, v_queue, p_name, p_payload, v_priority, 255 - v_priority,
    v_attempts, v_polls, v_crashes, v_backoff * 1000000,
    v_timeout * 1000000,
    COALESCE(v_now + CAST(v_deadline * 1000000 AS SIGNED), v_inherited), v_now,
    v_due, v_unique,
    FLOOR(RAND() * 9000000000000000000), v_decay, v_parent, v_root,
    v_on_fail, v_paused, v_after, v_phases, v_tags IS NOT NULL, v_group,
    v_unmet + (v_paused IS NOT NULL));
  IF v_tags IS NOT NULL THEN
    INSERT INTO nightshift_tag (job_id, tag)
    SELECT DISTINCT v_id, t.tag FROM JSON_TABLE(v_tags, '$[*]' COLUMNS (tag VARCHAR(64) {bytes} PATH '$')) t;
  END IF;
  IF v_parent IS NOT NULL THEN
    INSERT INTO nightshift_child (parent, seq, id) VALUES (v_parent, v_seq, v_id);
  END IF;
  IF v_joins THEN
    IF v_unmet > 0 AND NOT v_doomed THEN
      SELECT name INTO v_bad FROM nightshift_meta WHERE name = 'schema' FOR UPDATE;
      SET v_bad = (WITH RECURSIVE up (id) AS (
          SELECT job_id FROM nightshift_edge WHERE on_id = v_parent
          UNION
          SELECT STRAIGHT_JOIN e.job_id FROM up
          JOIN nightshift_edge e FORCE INDEX (PRIMARY) ON e.on_id = up.id)
        SELECT CONCAT('nightshift_push: INVALID: job ', v_parent, ' would wait for itself')
        FROM up WHERE id = v_id LIMIT 1);
      IF v_bad <> '' THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_bad;
      END IF;
    END IF;
    INSERT INTO nightshift_edge (on_id, job_id) VALUES (v_id, v_parent);
    UPDATE nightshift_job SET unmet = unmet + 1 WHERE id = v_parent;
  END IF;
  IF v_doomed THEN
    INSERT INTO nightshift_finished
      (id, queue_id, name, payload, priority, outcome, reason, run, attempts,
       polls, crashes, lost, max_attempts, max_polls, max_crashes, backoff,
       timeout, deadline, created, finished_at, parent, root, on_fail, ukey,
       nonce, decay, group_key)
    SELECT id, queue_id, name, payload, priority, 'cancelled', 'dependency',
      run, 0, 0, 0, 0, max_attempts, max_polls, max_crashes, backoff,
      timeout, deadline, created, v_now, parent, root, on_fail, ukey, nonce,
      decay, group_key
    FROM nightshift_job WHERE id = v_id FOR UPDATE;
    DELETE e FROM JSON_TABLE(p_after, {ids}) t
    STRAIGHT_JOIN nightshift_edge e ON e.on_id = t.id AND e.job_id = v_id;
    DELETE FROM nightshift_unique_key
    WHERE queue_id = v_queue AND ukey = v_unique AND job_id = v_id;
    DELETE FROM nightshift_job WHERE id = v_id;
    IF v_joins THEN
      INSERT INTO nightshift_met (on_id, failed) VALUES (v_id, TRUE);
    END IF;
  ELSEIF v_unmet > 0 OR v_paused IS NOT NULL THEN
    RETURN v_id;
  ELSEIF v_due > v_now THEN
    INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run, kind)
    VALUES (v_due, v_id, v_queue, 255 - v_priority, 1, CRC32(p_name));
  ELSE
    INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
    VALUES (v_queue, 255 - v_priority, v_now, v_id, 1, CRC32(p_name));
  END IF;
  RETURN v_id;
END

-- name: doubled
-- Has the client named a character set of one byte a character, and sent UTF-8? Then each byte
-- of it has become a character, and the bytes of those characters in that set are UTF-8 again.
-- Of the variables that a routine can see only character_set_results is its caller's; a client
-- that says SET NAMES has set it. Letters that hardly any text has are no sign of UTF-8: in
-- latin1 the end of NESCAFÉ® would be one.
CREATE OR REPLACE FUNCTION nightshift_doubled(p_text MEDIUMTEXT {bytes})
  RETURNS BOOLEAN DETERMINISTIC NO SQL
BEGIN
  DECLARE v_text MEDIUMTEXT {bytes};
  DECLARE v_bytes LONGBLOB;
  DECLARE EXIT HANDLER FOR 1366, 1977 RETURN FALSE; -- no UTF-8; not of that set
  SET v_bytes = CASE @@character_set_results
    WHEN 'latin1' THEN CAST(CONVERT(p_text USING latin1) AS BINARY)
    WHEN 'latin2' THEN CAST(CONVERT(p_text USING latin2) AS BINARY)
    WHEN 'latin5' THEN CAST(CONVERT(p_text USING latin5) AS BINARY)
    WHEN 'latin7' THEN CAST(CONVERT(p_text USING latin7) AS BINARY)
    WHEN 'cp1250' THEN CAST(CONVERT(p_text USING cp1250) AS BINARY)
    WHEN 'cp1251' THEN CAST(CONVERT(p_text USING cp1251) AS BINARY)
    WHEN 'cp1257' THEN CAST(CONVERT(p_text USING cp1257) AS BINARY)
    WHEN 'cp850' THEN CAST(CONVERT(p_text USING cp850) AS BINARY)
    WHEN 'cp852' THEN CAST(CONVERT(p_text USING cp852) AS BINARY)
    WHEN 'cp866' THEN CAST(CONVERT(p_text USING cp866) AS BINARY)
    WHEN 'koi8r' THEN CAST(CONVERT(p_text USING koi8r) AS BINARY)
    WHEN 'greek' THEN CAST(CONVERT(p_text USING greek) AS BINARY)
    WHEN 'hebrew' THEN CAST(CONVERT(p_text USING hebrew) AS BINARY) END;
  SET v_text = v_bytes;
  RETURN CHAR_LENGTH(v_text) < LENGTH(v_bytes) AND v_text NOT REGEXP
    '[\\x{80}-\\x{9F}\\x{180}-\\x{36F}\\x{500}-\\x{58F}\\x{700}-\\x{7FF}]';
END

-- name: carried
-- Refuses texts that were not carried whole by the session that calls p_what. A strict session
-- refuses them before the call. In another one characters that do not fit become "?"; the
-- server's warnings of that name our parameters, and are here when the call begins. Warnings of
-- an earlier call, which was refused, stand beside its error. A loss before the text was a
-- parameter leaves no trace: in the text of a statement, when character_set_connection has
-- fewer characters than character_set_client.
CREATE OR REPLACE PROCEDURE nightshift_carried(
  IN p_what VARCHAR(20) {bytes},
  IN p_first MEDIUMTEXT {bytes}, IN p_second MEDIUMTEXT {bytes},
  IN p_third MEDIUMTEXT {bytes}, IN p_fourth MEDIUMTEXT {bytes})
  READS SQL DATA
BEGIN
  DECLARE v_n, v_code INT DEFAULT 0;
  DECLARE v_says TEXT {bytes};
  DECLARE v_call VARCHAR(40) {bytes} DEFAULT CONCAT('nightshift_', p_what);
  IF @@error_count = 0 THEN
    GET DIAGNOSTICS v_n = NUMBER;
  END IF;
  WHILE v_n > 0 DO
    GET DIAGNOSTICS CONDITION v_n v_code = MYSQL_ERRNO, v_says = MESSAGE_TEXT;
    IF v_code = 1366 AND LOCATE(CONCAT(v_call, '_'), v_says) > 0 THEN
      SET v_says = LEFT(CONCAT(v_call,
        ': INVALID: this session cannot carry the text: SET NAMES utf8mb4. ', v_says), 128);
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_says;
    END IF;
    SET v_n = v_n - 1;
  END WHILE;
  IF nightshift_doubled(p_first) OR nightshift_doubled(p_second) OR nightshift_doubled(p_third)
    OR nightshift_doubled(p_fourth) THEN
    SET v_says = CONCAT(v_call, ': INVALID: the text is UTF-8, but the session says ',
      @@character_set_results, ': SET NAMES utf8mb4');
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_says;
  END IF;
END

-- name: room
-- The bound of a queue, NULL: it has none; and how many of its jobs wait, in ready and in its
-- backlog. They are counted up to the bound. Rows of jobs that were cancelled or moved stay until a
-- claim meets them. So where rows reach the bound, those with their jobs are counted. Locks nothing;
-- a caller with an old view counts by that.
CREATE OR REPLACE PROCEDURE nightshift_room(
  IN p_queue INT, OUT p_bound BIGINT, OUT p_waiting BIGINT)
  READS SQL DATA
BEGIN
  DECLARE v_last BIGINT DEFAULT NULL;
  SELECT backlog, backlog, backlog - 1 INTO p_bound, p_waiting, v_last
  FROM nightshift_queue WHERE id = p_queue;
  IF v_last IS NOT NULL
    AND (SELECT 1 FROM nightshift_ready FORCE INDEX (PRIMARY)
      WHERE queue_id = p_queue AND job_id > 0 LIMIT 1 OFFSET v_last) IS NULL
    AND (SELECT 1 FROM nightshift_backlog FORCE INDEX (PRIMARY)
      WHERE queue_id = p_queue LIMIT 1 OFFSET v_last) IS NULL THEN
    SET p_waiting = LEAST(p_bound, (SELECT COUNT(*) FROM nightshift_ready FORCE INDEX (PRIMARY)
        WHERE queue_id = p_queue AND job_id > 0)
      + (SELECT COUNT(*) FROM nightshift_backlog FORCE INDEX (PRIMARY) WHERE queue_id = p_queue));
  END IF;
  IF p_waiting = p_bound THEN
    SET v_last = p_bound;
    SELECT COUNT(*) INTO p_waiting
    FROM (SELECT STRAIGHT_JOIN r.job_id FROM nightshift_ready r FORCE INDEX (PRIMARY)
      JOIN nightshift_job j FORCE INDEX (PRIMARY)
        ON j.id = r.job_id AND j.run = r.run AND j.queue_id = r.queue_id
      WHERE r.queue_id = p_queue AND r.job_id > 0 LIMIT v_last) w;
    SET v_last = v_last - p_waiting;
    SELECT p_waiting + COUNT(*) INTO p_waiting
    FROM (SELECT STRAIGHT_JOIN b.job_id FROM nightshift_backlog b FORCE INDEX (PRIMARY)
      JOIN nightshift_job j FORCE INDEX (PRIMARY)
        ON j.id = b.job_id AND j.run = b.run AND j.queue_id = b.queue_id
      WHERE b.queue_id = p_queue LIMIT v_last) w;
  END IF;
END

-- name: push
-- CALL nightshift_push('mail', 'email.send', '{"to":"a@b"}', '{"delay":30}'). From any
-- language, and from triggers: it returns no rows and leaves the id in @nightshift_id; NULL: it
-- was refused. Options: delay, priority, decay, unique, max_attempts, max_crashes, max_polls,
-- max_phases, backoff, timeout, deadline, parent, after, on_fail, tags, group. Durations are seconds
-- or texts like "5m"; after is a list of ids. unique is a key, or {"key": …, "period": "10m",
-- "on_conflict": "keep"}: then @nightshift_id is the job that has it. A refusal is SQLSTATE 45000
-- with "nightshift_push: CODE: …", a taken key 23000. Ring after your commit: CALL
-- nightshift_ring().
--
-- Queue and history are read here, without a lock: in a function a server with a binary log
-- locks the rows that it reads. In REPEATABLE READ a lock on a missing row of history would
-- hold up each session that ends a job beside it. A lock on jobs would hold up all pushes.
--
-- The server's message about a text that does not fit has the parameter's name, which is ours.
CREATE OR REPLACE PROCEDURE nightshift_push(
  IN nightshift_push_queue VARCHAR(65) {bytes},
  IN nightshift_push_name VARCHAR(101) {bytes},
  IN nightshift_push_payload MEDIUMTEXT {bytes},
  IN nightshift_push_options MEDIUMTEXT {bytes})
  MODIFIES SQL DATA
BEGIN
  DECLARE v_after, v_open MEDIUMTEXT {bytes} DEFAULT NULL;
  DECLARE v_failed BOOLEAN DEFAULT FALSE;
  DECLARE v_queue INT DEFAULT NULL;
  DECLARE v_removed BOOLEAN DEFAULT FALSE;
  DECLARE v_bound, v_waiting BIGINT DEFAULT NULL;
  IF @@warning_count > 0
    OR COALESCE(@@character_set_results, 'utf8mb4') NOT IN ('utf8mb4', 'utf8mb3') THEN
    CALL nightshift_carried('push', nightshift_push_queue, nightshift_push_name,
      nightshift_push_payload, nightshift_push_options);
  END IF;
  SET @nightshift_id = NULL;
  SELECT id, removed, backlog INTO v_queue, v_removed, v_bound FROM nightshift_queue
  WHERE name = nightshift_push_queue;
  IF v_removed THEN
    UPDATE nightshift_queue SET removed = FALSE WHERE id = v_queue AND removed;
  END IF;
  IF JSON_VALID(nightshift_push_options) THEN
    SET v_after = JSON_EXTRACT(nightshift_push_options, '$.after');
    IF JSON_TYPE(JSON_EXTRACT(nightshift_push_options, '$.parent')) = 'INTEGER' THEN
      SET v_bound = NULL;
      IF EXISTS(SELECT 1 FROM nightshift_job j FORCE INDEX (PRIMARY)
          STRAIGHT_JOIN nightshift_limit l FORCE INDEX (PRIMARY)
            ON l.queue_id = j.queue_id AND l.ordered
          WHERE j.id = CAST(JSON_VALUE(nightshift_push_options, '$.parent') AS SIGNED)
            AND j.queue_id = v_queue
            AND j.group_key = JSON_VALUE(nightshift_push_options, '$.group')) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_push: INVALID: the parent is in the same ordered group, and would wait for this job; give another group, or no parent';
      END IF;
    END IF;
  END IF;
  IF v_bound IS NOT NULL THEN
    CALL nightshift_room(v_queue, v_bound, v_waiting);
    IF v_waiting >= v_bound THEN
      SET v_open = LEFT(CONCAT('nightshift_push: FULL: queue ', nightshift_push_queue, ' is full: ',
        v_waiting, IF(v_waiting = 1, ' job waits', ' jobs wait'), '; push later'), 128);
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_open;
    END IF;
  END IF;
  IF v_after IS NOT NULL THEN
    SET STATEMENT group_concat_max_len = 16777216 FOR
    SELECT CONCAT('[', GROUP_CONCAT(IF(f.id IS NULL, t.id, NULL)), ']'),
      COALESCE(MAX(f.outcome <> 'done'), FALSE)
    INTO v_open, v_failed
    FROM JSON_TABLE(v_after, {ids}) t
    LEFT JOIN nightshift_finished f FORCE INDEX (PRIMARY) ON f.id = t.id;
  END IF;
  SET @nightshift_id = nightshift_push_whole(v_queue, nightshift_push_queue, nightshift_push_name,
    nightshift_push_payload, nightshift_push_options, v_open, v_failed);
END

-- name: signal_whole
-- The rows of CALL nightshift_signal. The job stays locked to the end, and the session that
-- parks it locks it before it looks for a value. So one of the two finds the other. A job that
-- waits for this signal is ready at once, unless it is paused. Lock order: job, signal,
-- scheduled, ready.
CREATE OR REPLACE FUNCTION nightshift_signal_whole(
  p_job BIGINT, p_value MEDIUMTEXT {bytes}, p_name VARCHAR(101) {bytes})
  RETURNS BOOLEAN DETERMINISTIC MODIFIES SQL DATA
BEGIN
  DECLARE v_id, v_due, v_queue, v_rank, v_run, v_kind BIGINT DEFAULT NULL;
  DECLARE v_awaits VARCHAR(100) {bytes} DEFAULT NULL;
  DECLARE v_now BIGINT;
  DECLARE v_name VARCHAR(101) {bytes} DEFAULT COALESCE(p_name, '');
  IF CHAR_LENGTH(v_name) > 100 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_signal: INVALID: the name has more than 100 characters';
  END IF;
  IF p_value IS NULL OR NOT JSON_VALID(p_value) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_signal: INVALID: the value is not valid JSON';
  END IF;
  IF LENGTH(p_value) > COALESCE(@nightshift_max_payload, 1048576) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_signal: TOO_BIG: the value is over 1 MiB; SET @nightshift_max_payload to allow more bytes';
  END IF;
  SELECT id, due, queue_id, rank, run, CRC32(name), IF(waits = 'signal', awaits, NULL)
  INTO v_id, v_due, v_queue, v_rank, v_run, v_kind, v_awaits
  FROM nightshift_job WHERE id = p_job FOR UPDATE;
  IF v_id IS NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'nightshift_signal: NOT_FOUND: no such live job';
  END IF;
  INSERT INTO nightshift_signal (job_id, name, value, sent)
  VALUES (p_job, v_name, p_value, {now})
  ON DUPLICATE KEY UPDATE value = VALUES(value), sent = GREATEST(VALUES(sent), sent + 1);
  SET v_now = {now};
  IF v_awaits IS NOT NULL AND v_name IN ('', v_awaits) AND v_due > v_now THEN
    UPDATE nightshift_job SET due = v_now WHERE id = p_job;
    DELETE FROM nightshift_scheduled WHERE run_at = v_due AND job_id = p_job;
    IF ROW_COUNT() = 1 THEN
      INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
      VALUES (v_queue, v_rank, v_now, p_job, v_run, v_kind);
    END IF;
  END IF;
  RETURN TRUE;
END

-- name: signal
-- CALL nightshift_signal(12, '{"ok":true}', 'approved'); NULL or '' as the name:
-- whatever the job waits for. From any language, and from triggers. (Not DO: that
-- drops errors.)
-- Ring after your commit: CALL nightshift_ring().
CREATE OR REPLACE PROCEDURE nightshift_signal(
  IN nightshift_signal_job BIGINT, IN nightshift_signal_value MEDIUMTEXT {bytes},
  IN nightshift_signal_name VARCHAR(101) {bytes})
  MODIFIES SQL DATA
BEGIN
  DECLARE v_whole BOOLEAN;
  IF @@warning_count > 0
    OR COALESCE(@@character_set_results, 'utf8mb4') NOT IN ('utf8mb4', 'utf8mb3') THEN
    CALL nightshift_carried('signal', nightshift_signal_value, nightshift_signal_name, NULL, NULL);
  END IF;
  SET v_whole = nightshift_signal_whole(nightshift_signal_job, nightshift_signal_value,
    nightshift_signal_name);
END

-- name: listen
-- This connection is about to sleep, or is awake (p_queues NULL). A ring ends the query of the
-- session that owns the lock, and a session can take a lock for itself alone. The other lock
-- makes listeners enter one by one. When most rows are of connections that are gone, all are
-- deleted, and sleepers are woken, to enter again behind us. That is left for another time
-- while an open transaction has read the table. The ring ends queries by its definer's rights,
-- so the table must not be open to writers. With INSERT on it a worker's account could have
-- every query of the server ended.
CREATE OR REPLACE PROCEDURE nightshift_listen(
  IN p_queues MEDIUMTEXT {bytes}, IN p_holder BIGINT)
  SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
  DECLARE v_kind CHAR(32) CHARACTER SET ascii COLLATE ascii_bin DEFAULT MD5(p_queues);
  DECLARE v_door VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin DEFAULT CONCAT('nightshift-ears:', {here});
  DECLARE v_known INT;
  DECLARE v_crowded BOOLEAN;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    DO RELEASE_LOCK(v_door), RELEASE_LOCK(@nightshift_ear);
    RESIGNAL;
  END;
  DO RELEASE_LOCK(v_door), RELEASE_LOCK(@nightshift_ear);
  IF p_queues IS NULL THEN
    SET @nightshift_ear = NULL;
  ELSE
    SET @nightshift_ear = CONCAT_WS(':', 'nightshift-ear', {here}, CONNECTION_ID(),
      p_holder, v_kind);
    DO GET_LOCK(v_door, 1), GET_LOCK(@nightshift_ear, 0);
    SELECT COUNT(*) INTO v_known FROM nightshift_listener
    WHERE kind = v_kind AND thread = CONNECTION_ID() AND holder = p_holder;
    IF v_known = 0 THEN
      SELECT COUNT(*) > 32 + 2 * (SELECT COUNT(*) FROM nightshift_holder)
      INTO v_crowded FROM nightshift_listener; -- in an IF it would lock its rows
      IF v_crowded THEN
        BEGIN
          DECLARE CONTINUE HANDLER FOR 1094, 1095, 1205 BEGIN END;
          FOR ear IN (SELECT thread FROM nightshift_listener
              WHERE IS_USED_LOCK(CONCAT_WS(':', 'nightshift-ear', {here}, thread, holder,
                kind)) = thread AND thread <> CONNECTION_ID()) DO
            KILL QUERY ear.thread;
          END FOR;
          SET STATEMENT lock_wait_timeout=0 FOR TRUNCATE nightshift_listener;
        END;
      END IF;
      INSERT INTO nightshift_listener (thread, kind, holder)
      VALUES (CONNECTION_ID(), v_kind, p_holder);
    END IF;
    DO RELEASE_LOCK(v_door);
  END IF;
END

-- name: ring
-- Ends the sleep of two listeners of each kind (each set of queues), of any account: the oldest
-- and the newest. One of them may belong to a killed process that the server has not missed
-- yet. When one is gone meanwhile (error 1094), so is its lock, and the next is rung.
CREATE OR REPLACE PROCEDURE nightshift_ring()
  SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
  DECLARE v_kind CHAR(32) CHARACTER SET ascii COLLATE ascii_bin DEFAULT '';
  DECLARE v_next CHAR(32) CHARACTER SET ascii COLLATE ascii_bin;
  DECLARE v_old, v_new BIGINT;
  DECLARE v_gone BOOLEAN;
  DECLARE CONTINUE HANDLER FOR 1094 SET v_gone = TRUE;
  DECLARE CONTINUE HANDLER FOR 1095 BEGIN END;
  ring: LOOP
    SET v_next = NULL;
    SELECT kind INTO v_next FROM nightshift_listener
    WHERE kind > v_kind AND IS_USED_LOCK(CONCAT_WS(':', 'nightshift-ear', {here}, thread,
      holder, kind)) = thread
    ORDER BY kind LIMIT 1;
    IF v_next IS NULL THEN
      LEAVE ring;
    END IF;
    SET v_kind = v_next;
    REPEAT
      SET v_gone = FALSE;
      SELECT MIN(thread), MAX(thread) INTO v_old, v_new FROM nightshift_listener
      WHERE kind = v_kind AND IS_USED_LOCK(CONCAT_WS(':', 'nightshift-ear', {here}, thread,
        holder, kind)) = thread;
      IF v_old IS NOT NULL THEN
        KILL QUERY v_old;
        IF NOT v_gone AND v_new <> v_old THEN
          KILL QUERY v_new;
        END IF;
      END IF;
    UNTIL NOT v_gone END REPEAT;
  END LOOP;
END

-- name: nudge
-- Ends the sleep of the listener of one holder, which then finds a notice. With p_before, of
-- the next holder before it in the ring of ids: it then learns that it has a new neighbour to
-- watch.
CREATE OR REPLACE PROCEDURE nightshift_nudge(IN p_holder BIGINT, IN p_before BOOLEAN)
  SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
  DECLARE v_thread BIGINT DEFAULT NULL;
  DECLARE CONTINUE HANDLER FOR 1094, 1095 BEGIN END;
  IF NOT p_before THEN
    SELECT MAX(thread) INTO v_thread FROM nightshift_listener
    WHERE holder = p_holder AND IS_USED_LOCK(CONCAT_WS(':', 'nightshift-ear', {here},
      thread, holder, kind)) = thread;
  ELSE
    SELECT thread INTO v_thread FROM nightshift_listener
    WHERE holder <> p_holder AND holder > 0 AND IS_USED_LOCK(CONCAT_WS(':', 'nightshift-ear',
      {here}, thread, holder, kind)) = thread
    ORDER BY holder < p_holder DESC, holder DESC LIMIT 1;
  END IF;
  IF v_thread IS NOT NULL THEN
    KILL QUERY v_thread;
  END IF;
END

-- name: wake
-- Ends the sleep of connections that wait for the end of a job, [connection,…]. A connection that
-- waits owns a lock of its number, which no other session can own for it.
CREATE OR REPLACE PROCEDURE nightshift_wake(IN p_threads MEDIUMTEXT {bytes})
  SQL SECURITY DEFINER READS SQL DATA
BEGIN
  DECLARE CONTINUE HANDLER FOR 1094, 1095 BEGIN END;
  FOR one IN (SELECT t.thread FROM JSON_TABLE(p_threads, '$[*]' COLUMNS (thread BIGINT PATH '$')) t
      WHERE IS_USED_LOCK(CONCAT('nightshift-wait:', {here}, ':', -t.thread)) = t.thread) DO
    KILL QUERY one.thread;
  END FOR;
END
