-- Statements of claims of limited queues. All but admission_lock, admission_pass, admission_release,
-- admission_return, admission_stop and admission_withdraw run under the lock of the queue's row of
-- nightshift_limit. So one claim of a queue is in here at a time. No claim waits for it.
-- admission_bounds and admission_room are of pushes to queues with a bound. Sorted by name.

-- name: admission_bounds
-- Index: backlog of queue, its rows with a bound. The queues, and how many of their jobs may wait.
SELECT id, backlog FROM nightshift_queue FORCE INDEX (backlog) WHERE backlog > 0

-- name: admission_lift
-- Params: queue, rows. The limit was taken away: so many rows go back to ready. Gives whether there
-- may be more. Keys: PRIMARY of backlog, the first rows of the queue; of job and ready, row by row.
BEGIN NOT ATOMIC
  DECLARE v_queue INT DEFAULT ?;
  DECLARE v_rows INT DEFAULT ?;
  DECLARE v_more BOOLEAN;
  INSERT IGNORE INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, alone, kind)
  SELECT STRAIGHT_JOIN b.queue_id, j.rank, IF(b.ready_at = 0, j.due, b.ready_at), b.job_id, b.run,
    b.alone, b.kind
  FROM (SELECT queue_id, ready_at, job_id, run, alone, kind
    FROM nightshift_backlog FORCE INDEX (PRIMARY) WHERE queue_id = v_queue
    ORDER BY queue_id, group_key, rank, ready_at, job_id LIMIT v_rows) b
  JOIN nightshift_job j FORCE INDEX (PRIMARY)
    ON j.id = b.job_id AND j.run = b.run AND j.queue_id = b.queue_id AND j.unmet = 0;
  DELETE FROM nightshift_backlog WHERE queue_id = v_queue
  ORDER BY queue_id, group_key, rank, ready_at, job_id LIMIT v_rows;
  SET v_more = ROW_COUNT() = v_rows;
  IF NOT v_more THEN
    DELETE FROM nightshift_grant WHERE queue_id = v_queue;
    DELETE FROM nightshift_group WHERE queue_id = v_queue;
    DELETE FROM nightshift_limit WHERE queue_id = v_queue;
    UPDATE nightshift_queue SET limited = FALSE WHERE id = v_queue;
  END IF;
  SELECT v_more;
END

-- name: admission_lock
-- Params: queue. Key: PRIMARY; locks the row, unless another claim has it. No row: so it is, or the
-- limit was taken away. Whether its groups are ordered, whether it is being taken away, and whether
-- its groups take turns.
SELECT ordered, lifted, fair FROM nightshift_limit WHERE queue_id = ? FOR UPDATE SKIP LOCKED

-- name: admission_move
-- Params: [[queue,rank,ready_at,job,run,alone,kind],…] of rows that this transaction took out of
-- ready, how many, ordered. They go into the backlog by the groups of their jobs, and each group
-- learns the best of them. Keys: PRIMARY of job, backlog and group, row by row. A row that is not of
-- the snapshot is looked for in committed rows, past locked ones (see claim_read_again). One that
-- stands and is locked goes back to ready. The rest is stale.
BEGIN NOT ATOMIC
  DECLARE v_rows MEDIUMTEXT {bytes} DEFAULT ?;
  DECLARE v_n INT DEFAULT ?;
  DECLARE v_ordered BOOLEAN DEFAULT ?;
  INSERT INTO nightshift_backlog (queue_id, group_key, rank, ready_at, job_id, run, alone, kind)
  SELECT STRAIGHT_JOIN v.queue_id, COALESCE(j.group_key, ''), IF(v_ordered, 0, v.rank),
    IF(g.head = v.id, 0, v.ready_at), v.id, v.run, v.alone, v.kind
  FROM JSON_TABLE(v_rows, {ready_rows}) v
  JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run
  LEFT JOIN nightshift_group g FORCE INDEX (PRIMARY)
    ON g.queue_id = v.queue_id AND g.group_key = COALESCE(j.group_key, '')
  ON DUPLICATE KEY UPDATE run = VALUES(run), alone = VALUES(alone), kind = VALUES(kind);
  IF ROW_COUNT() < v_n THEN
    INSERT INTO nightshift_backlog (queue_id, group_key, rank, ready_at, job_id, run, alone, kind)
    SELECT STRAIGHT_JOIN v.queue_id, COALESCE(j.group_key, ''), IF(v_ordered, 0, v.rank),
      IF(g.head = v.id, 0, v.ready_at), v.id, v.run, v.alone, v.kind
    FROM JSON_TABLE(v_rows, {ready_rows}) v
    JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run
    LEFT JOIN nightshift_group g FORCE INDEX (PRIMARY)
      ON g.queue_id = v.queue_id AND g.group_key = COALESCE(j.group_key, '')
    FOR UPDATE SKIP LOCKED
    ON DUPLICATE KEY UPDATE run = VALUES(run), alone = VALUES(alone), kind = VALUES(kind);
    INSERT IGNORE INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, alone, kind)
    SELECT STRAIGHT_JOIN v.queue_id, v.rank, v.ready_at, v.id, v.run, v.alone, v.kind
    FROM JSON_TABLE(v_rows, {ready_rows}) v
    JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run
    LEFT JOIN nightshift_backlog b FORCE INDEX (PRIMARY)
      ON b.queue_id = v.queue_id AND b.group_key = COALESCE(j.group_key, '')
      AND b.rank = IF(v_ordered, 0, v.rank) AND b.ready_at = v.ready_at AND b.job_id = v.id
    LEFT JOIN nightshift_backlog h FORCE INDEX (PRIMARY)
      ON h.queue_id = v.queue_id AND h.group_key = COALESCE(j.group_key, '')
      AND h.rank = 0 AND h.ready_at = 0 AND h.job_id = v.id
    WHERE b.job_id IS NULL AND h.job_id IS NULL;
  END IF;
  INSERT INTO nightshift_group (queue_id, group_key, rank, ready_at, job_id)
  SELECT queue_id, group_key, rank, ready_at, id
  FROM (SELECT w.*, ROW_NUMBER() OVER (PARTITION BY group_key ORDER BY rank, ready_at, id) AS place
    FROM (SELECT STRAIGHT_JOIN v.queue_id, COALESCE(j.group_key, '') AS group_key,
        IF(v_ordered, 0, v.rank) AS `rank`, IF(g.head = v.id, 0, v.ready_at) AS ready_at, v.id
      FROM JSON_TABLE(v_rows, {ready_rows}) v
      JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id AND j.run = v.run
      LEFT JOIN nightshift_group g FORCE INDEX (PRIMARY)
        ON g.queue_id = v.queue_id AND g.group_key = COALESCE(j.group_key, '')) w) b
  WHERE place = 1
  ON DUPLICATE KEY UPDATE blocked = 0,
    job_id = IF(nightshift_group.job_id = 0 OR VALUES(rank) < nightshift_group.rank
      OR VALUES(rank) = nightshift_group.rank AND (VALUES(ready_at) < nightshift_group.ready_at
        OR VALUES(ready_at) = nightshift_group.ready_at
        AND VALUES(job_id) < nightshift_group.job_id), VALUES(job_id), nightshift_group.job_id),
    ready_at = IF(nightshift_group.job_id = VALUES(job_id), VALUES(ready_at),
      nightshift_group.ready_at),
    rank = IF(nightshift_group.job_id = VALUES(job_id), VALUES(rank), nightshift_group.rank);
END

-- name: admission_newest
-- Params: queue, since, rows. Takes rows that came into ready since then out of it: of each lane so
-- many, the newest. Rows of jobs that are claimed alone, and locked ones, stay. Gives [queue,rank,
-- ready_at,job,run,alone,kind],… and how many; NULL and 0: none. Keys: PRIMARY of ready, backwards:
-- of each lane the last row, and a range without locks; then row by row, each locked.
BEGIN NOT ATOMIC
  DECLARE v_queue INT DEFAULT ?;
  DECLARE v_since BIGINT DEFAULT ?;
  DECLARE v_rows INT DEFAULT ?;
  DECLARE v_lane, v_above SMALLINT DEFAULT 256;
  DECLARE v_some, v_out MEDIUMTEXT {bytes};
  DECLARE v_found, v_n INT DEFAULT 0;
  WHILE v_lane IS NOT NULL DO
    SET v_above = NULL;
    SELECT rank INTO v_above FROM nightshift_ready FORCE INDEX (PRIMARY)
    WHERE queue_id = v_queue AND rank < v_lane
    ORDER BY queue_id DESC, rank DESC, ready_at DESC, job_id DESC LIMIT 1;
    SET v_lane = v_above;
    SELECT COUNT(*), GROUP_CONCAT('[', v_queue, ',', v.rank, ',', v.ready_at, ',', v.job_id, ',',
      v.run, ',0,', v.kind, ']') INTO v_found, v_some
    FROM (SELECT rank, ready_at, job_id, run, kind FROM nightshift_ready FORCE INDEX (PRIMARY)
      WHERE queue_id = v_queue AND rank = v_lane AND ready_at >= v_since AND ready_at < {end}
        AND NOT alone
      ORDER BY queue_id DESC, rank DESC, ready_at DESC, job_id DESC LIMIT v_rows) v
    WHERE (SELECT 1 FROM nightshift_ready r FORCE INDEX (PRIMARY)
      WHERE r.queue_id = v_queue AND r.rank = v.rank AND r.ready_at = v.ready_at
        AND r.job_id = v.job_id
      LIMIT 1 FOR UPDATE SKIP LOCKED) = 1;
    SET v_n = v_n + v_found, v_out = IF(v_found = 0, v_out, CONCAT_WS(',', v_out, v_some));
  END WHILE;
  IF v_out IS NOT NULL THEN
    DELETE r FROM JSON_TABLE(CONCAT('[', v_out, ']'), {ready_rows}) v
    STRAIGHT_JOIN nightshift_ready r FORCE INDEX (PRIMARY) ON r.queue_id = v.queue_id
      AND r.rank = v.rank AND r.ready_at = v.ready_at AND r.job_id = v.id;
    IF ROW_COUNT() <> v_n THEN
      SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'the statement was interrupted';
    END IF;
  END IF;
  SELECT v_out, v_n;
END

-- name: admission_pass
-- Params: [[queue,group],…]. The jobs that held these ordered groups are gone: the next claim looks
-- at them. A transaction of its own. Keys: PRIMARY of limit and of group, row by row; waits a
-- second for claims that admit.
BEGIN NOT ATOMIC
  DECLARE v_list MEDIUMTEXT {bytes} DEFAULT ?;
  DECLARE v_n INT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  START TRANSACTION;
  SET STATEMENT innodb_lock_wait_timeout=1 FOR
  SELECT COUNT(*) INTO v_n FROM (SELECT STRAIGHT_JOIN l.queue_id
    FROM JSON_TABLE(v_list, {groups}) v
    JOIN nightshift_limit l FORCE INDEX (PRIMARY) ON l.queue_id = v.queue_id FOR UPDATE) x;
  UPDATE JSON_TABLE(v_list, {groups}) v
  STRAIGHT_JOIN nightshift_group g FORCE INDEX (PRIMARY)
    ON g.queue_id = v.queue_id AND g.group_key = v.group_key
  SET g.blocked = 0
  WHERE g.job_id <> 0;
  COMMIT;
END

-- name: admission_release
-- Params: [[id,run],…] of settled claims. Key: PRIMARY of grant, row by row. Deletes their
-- places.
DELETE g FROM JSON_TABLE(?, {tokens}) v
STRAIGHT_JOIN nightshift_grant g FORCE INDEX (PRIMARY) ON g.job_id = v.id AND g.run = v.run

-- name: admission_return
-- Params: [id,…] of jobs that are locked. Their rows go back to ready, and are counted. Keys:
-- PRIMARY of job, of backlog the rows of a group, of ready; waits for a claim that admits one.
BEGIN NOT ATOMIC
  DECLARE v_ids MEDIUMTEXT {bytes} DEFAULT ?;
  DECLARE v_n INT;
  INSERT IGNORE INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, alone, kind)
  SELECT STRAIGHT_JOIN j.queue_id, j.rank, IF(b.ready_at = 0, j.due, b.ready_at), b.job_id, b.run,
    b.alone, b.kind
  FROM JSON_TABLE(v_ids, {ids}) v
  JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
  JOIN nightshift_backlog b FORCE INDEX (PRIMARY) ON b.queue_id = j.queue_id
    AND b.group_key = COALESCE(j.group_key, '') AND b.job_id = j.id AND b.run = j.run
  FOR UPDATE;
  SET v_n = ROW_COUNT();
  IF v_n > 0 THEN
    DELETE b FROM JSON_TABLE(v_ids, {ids}) v
    STRAIGHT_JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = v.id
    STRAIGHT_JOIN nightshift_backlog b FORCE INDEX (PRIMARY) ON b.queue_id = j.queue_id
      AND b.group_key = COALESCE(j.group_key, '') AND b.job_id = j.id;
  END IF;
  SELECT v_n;
END

-- name: admission_room
-- Params: queue. See the procedure. Gives the bound, or NULL, and how many jobs wait.
BEGIN NOT ATOMIC
  DECLARE v_bound, v_waiting BIGINT;
  CALL nightshift_room(?, v_bound, v_waiting);
  SELECT v_bound, v_waiting;
END

-- name: admission_stop
-- Params: queue, job, µs from now, whether all of the queue. No job of its group, or of the queue,
-- starts before. Keys: PRIMARY of limit, job and group; 1205 at once while a claim admits.
BEGIN NOT ATOMIC
  DECLARE v_queue INT DEFAULT ?;
  DECLARE v_job BIGINT DEFAULT ?;
  DECLARE v_until BIGINT DEFAULT {now} + ?;
  DECLARE v_all BOOLEAN DEFAULT ?;
  DECLARE v_limited INT;
  SET STATEMENT innodb_lock_wait_timeout=0 FOR
  SELECT queue_id INTO v_limited FROM nightshift_limit WHERE queue_id = v_queue FOR UPDATE;
  IF v_limited IS NOT NULL AND v_all THEN
    UPDATE nightshift_limit SET stopped_by = v_job, stopped = v_until
    WHERE queue_id = v_queue AND stopped < v_until;
  ELSEIF v_limited IS NOT NULL THEN
    INSERT INTO nightshift_group (queue_id, group_key, stopped, stopped_by)
    SELECT v_queue, group_key, v_until, v_job FROM nightshift_job
    WHERE id = v_job AND group_key IS NOT NULL
    ON DUPLICATE KEY UPDATE
      stopped_by = IF(nightshift_group.stopped < v_until, v_job, nightshift_group.stopped_by),
      stopped = GREATEST(nightshift_group.stopped, v_until);
  END IF;
END

-- name: admission_take
-- Params: queue, jobs, lease, whether the first may be one that is to be claimed alone, whether lower
-- priorities have their turns. Admits jobs of groups that have a place and a token, and gives each a
-- place. Gives their rows, as a claim does. The last row is of job 0. Its ready_at says when another
-- may start (µs from now; -1: that is not known, or there is none to start). Its run says whether
-- the backlog has any, alone whether more groups are to be looked at.
-- Groups are looked at in the order of the limit, each of them until it can start nothing more. An
-- ordered one waits while an earlier job of it is still in ready, as another session has the row
-- locked, or there are many. A claim that admits none drops a place that a dead holder has left, or
-- a job that ran before there was a limit. Of jobs without a group each 16th is the first of the
-- lower lane that has waited longest.
-- Groups before the last one are not looked for again: deleted rows that purge has not removed yet
-- would be read each time. Lanes are found one by one: a GROUP BY reads all of their rows.
-- Keys: best or turns of group, one row; of_group of grant, as many rows as run. PRIMARY of
-- backlog, one row, or up to the first of some kinds; of job, one row. Of ready, if groups are
-- ordered, the first row of each lane. Locks what it changes.
BEGIN NOT ATOMIC
  DECLARE v_queue INT DEFAULT ?;
  DECLARE v_want INT DEFAULT ?;
  DECLARE v_lease BIGINT DEFAULT ?;
  DECLARE v_alone BOOLEAN DEFAULT ?;
  DECLARE v_aging BOOLEAN DEFAULT ?;
  DECLARE v_looks INT DEFAULT v_want + 100;
  DECLARE v_now BIGINT DEFAULT {now};
  DECLARE v_in, v_again, v_until, v_step, v_block, v_places, v_held, v_more BIGINT;
  DECLARE v_out MEDIUMTEXT {bytes} DEFAULT '';
  DECLARE v_n, v_taken, v_lane BIGINT DEFAULT 0;
  DECLARE l_running, l_rate, l_span, l_next, l_used, l_stopped BIGINT;
  DECLARE l_g_running, l_g_rate, l_g_span BIGINT;
  DECLARE l_window, l_g_window, l_ordered, l_fair BOOLEAN;
  DECLARE g_key VARCHAR(190) {bytes};
  DECLARE g_next, g_used, g_stopped, g_head, g_served BIGINT;
  DECLARE v_served, g_at BIGINT DEFAULT 0;
  DECLARE g_rank TINYINT UNSIGNED DEFAULT 0;
  DECLARE b_rank, v_low TINYINT UNSIGNED;
  DECLARE b_at, b_id, b_run, b_kind, b_live, v_left BIGINT;
  DECLARE b_alone, b_fits, b_stands BOOLEAN;
  SELECT running, rate, rate_span, rate_window, next_at, used, stopped, group_running, group_rate,
    group_span, group_window, ordered, fair
  INTO l_running, l_rate, l_span, l_window, l_next, l_used, l_stopped, l_g_running, l_g_rate,
    l_g_span, l_g_window, l_ordered, l_fair
  FROM nightshift_limit WHERE queue_id = v_queue;
  IF l_running IS NOT NULL THEN
    SELECT l_running - COUNT(*) INTO v_n FROM nightshift_grant g FORCE INDEX (of_group)
    LEFT JOIN nightshift_lease l ON l.id = g.lease
    WHERE g.queue_id = v_queue AND (l.id IS NOT NULL OR g.lease = v_lease);
    SET v_want = GREATEST(LEAST(v_want, v_n), 0);
  END IF;
  IF l_rate IS NOT NULL THEN
    IF l_window THEN
      SET v_until = v_now - v_now MOD l_span;
      IF l_next <> v_until THEN
        SET l_next = v_until, l_used = 0;
      END IF;
      SET v_n = l_rate - l_used, v_until = v_until + l_span;
    ELSE
      SET v_step = l_span DIV l_rate, l_next = GREATEST(l_next, v_now);
      SET v_n = LEAST(l_rate, (v_now + l_span - l_next) DIV v_step),
        v_until = l_next + v_step - l_span;
    END IF;
    SET v_want = GREATEST(LEAST(v_want, v_n), 0);
    IF v_n <= v_want THEN
      SET v_in = GREATEST(v_until - v_now, 1000);
    END IF;
  END IF;
  IF l_stopped > v_now THEN
    SET v_want = 0, v_in = l_stopped - v_now;
  END IF;
  IF l_ordered AND v_want > 0 THEN
    WHILE v_lane IS NOT NULL DO
      SET b_rank = NULL;
      SELECT rank, ready_at INTO b_rank, b_at FROM nightshift_ready FORCE INDEX (PRIMARY)
      WHERE queue_id = v_queue AND rank >= v_lane
      ORDER BY queue_id, rank, ready_at, job_id LIMIT 1;
      SET v_lane = b_rank + 1, v_left = IF(b_rank IS NULL, v_left, LEAST(COALESCE(v_left, b_at), b_at));
    END WHILE;
  END IF;
  UPDATE nightshift_group SET blocked = 0
  WHERE queue_id = v_queue AND blocked BETWEEN 1 AND v_now AND v_want > 0;
  WHILE v_want > 0 AND v_looks > 0 DO
    SET v_looks = v_looks - 1, g_key = NULL;
    IF l_fair THEN
      SELECT group_key, rank, ready_at, next_at, used, stopped, head, served
      INTO g_key, g_rank, g_at, g_next, g_used, g_stopped, g_head, g_served
      FROM nightshift_group FORCE INDEX (turns)
      WHERE queue_id = v_queue AND blocked = 0 AND served >= v_served
      ORDER BY queue_id, blocked, served, ready_at LIMIT 1;
    ELSE
      SELECT group_key, rank, ready_at, next_at, used, stopped, head, served
      INTO g_key, g_rank, g_at, g_next, g_used, g_stopped, g_head, g_served
      FROM nightshift_group FORCE INDEX (best)
      WHERE queue_id = v_queue AND blocked = 0 AND (rank > g_rank OR rank = g_rank AND ready_at >= g_at)
      ORDER BY queue_id, blocked, rank, ready_at, job_id LIMIT 1;
    END IF;
    IF g_key IS NULL THEN
      SET v_looks = -1;
    ELSE
      SET v_block = 0, b_id = NULL, v_more = NULL, v_low = 0, v_served = g_served;
      SET v_places = IF(g_key = '', NULL, IF(l_ordered, 1, l_g_running));
      IF g_head IS NOT NULL THEN
        SET b_live = NULL;
        SELECT id INTO b_live FROM nightshift_job
        WHERE id = g_head AND queue_id = v_queue AND group_key = g_key;
        SET g_head = b_live;
      END IF;
      IF g_stopped > v_now THEN
        SET v_block = g_stopped;
      ELSEIF g_key <> '' AND l_g_rate IS NOT NULL AND l_g_window THEN
        SET v_until = v_now - v_now MOD l_g_span;
        IF g_next <> v_until THEN
          SET g_next = v_until, g_used = 0;
        END IF;
        SET v_block = IF(g_used < l_g_rate, 0, v_until + l_g_span);
      ELSEIF g_key <> '' AND l_g_rate IS NOT NULL THEN
        SET v_step = l_g_span DIV l_g_rate, g_next = GREATEST(g_next, v_now);
        SET v_until = g_next + v_step - l_g_span;
        SET v_block = IF(v_until <= v_now, 0, v_until);
      ELSEIF g_key = '' AND v_aging AND g_used MOD 16 = 15 THEN
        SET v_lane = g_rank + 1, v_until = NULL;
        WHILE v_lane IS NOT NULL DO
          SET b_rank = NULL;
          SELECT rank, ready_at INTO b_rank, b_at FROM nightshift_backlog FORCE INDEX (PRIMARY)
          WHERE queue_id = v_queue AND group_key = '' AND rank >= v_lane
          ORDER BY queue_id, group_key, rank, ready_at, job_id LIMIT 1;
          IF b_rank IS NOT NULL AND b_at < COALESCE(v_until, b_at + 1) THEN
            SET v_low = b_rank, v_until = b_at;
          END IF;
          SET v_lane = b_rank + 1;
        END WHILE;
      END IF;
      WHILE v_block = 0 AND b_id IS NULL DO
        SELECT b.rank, b.ready_at, b.job_id, b.run, b.alone, b.kind,
          (v_alone OR NOT b.alone) /*kinds*/,
          j.id IS NOT NULL AND l.id IS NULL AND COALESCE(g.lease <> v_lease, TRUE),
          (SELECT COUNT(*) FROM nightshift_grant h FORCE INDEX (of_group)
            LEFT JOIN nightshift_lease c ON c.id = h.lease
            WHERE v_places IS NOT NULL AND h.queue_id = v_queue AND h.group_key = g_key
              AND (c.id IS NOT NULL OR h.lease = v_lease)),
          (SELECT 1 FROM nightshift_backlog o FORCE INDEX (PRIMARY)
            WHERE o.queue_id = v_queue AND o.group_key = g_key AND o.job_id <> b.job_id LIMIT 1)
        INTO b_rank, b_at, b_id, b_run, b_alone, b_kind, b_fits, b_stands, v_held, v_more
        FROM nightshift_backlog b FORCE INDEX (PRIMARY)
        LEFT JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = b.job_id AND j.run = b.run
          AND j.queue_id = v_queue AND j.unmet = 0 AND COALESCE(j.group_key, '') = g_key
        LEFT JOIN nightshift_grant g FORCE INDEX (PRIMARY) ON g.job_id = j.id AND g.run = j.run
        LEFT JOIN nightshift_lease l FORCE INDEX (PRIMARY) ON l.id = g.lease
        WHERE b.queue_id = v_queue AND b.group_key = g_key AND b.rank >= v_low
          AND (l_ordered AND g_key <> '' OR (v_alone OR NOT b.alone) /*kinds*/)
        ORDER BY b.queue_id, b.group_key, b.rank, b.ready_at, b.job_id LIMIT 1;
        IF b_id IS NULL AND v_low > 0 THEN
          SET v_low = 0;
        ELSEIF b_id IS NULL OR v_held >= v_places OR NOT b_fits THEN
          SET v_block = 1;
        ELSEIF l_ordered AND g_key <> '' AND b_id <> g_head THEN
          SET v_block = v_now + 1000000;
        ELSEIF l_ordered AND g_key <> '' AND g_head IS NULL AND b_at >= v_left THEN
          SELECT COUNT(*) = 100 OR COALESCE(SUM(j.group_key = g_key), 0) > 0 INTO b_live
          FROM (SELECT job_id, run FROM nightshift_ready FORCE INDEX (PRIMARY)
            WHERE queue_id = v_queue AND job_id > 0
              AND (ready_at < b_at OR ready_at = b_at AND job_id < b_id) LIMIT 100) r
          LEFT JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = r.job_id AND j.run = r.run;
          SET v_block = IF(b_live = 1, v_now + 20000, 0);
        END IF;
      END WHILE;
      IF v_block = 0 THEN
        DELETE FROM nightshift_backlog
        WHERE queue_id = v_queue AND group_key = g_key AND rank = b_rank AND ready_at = b_at
          AND job_id = b_id;
        IF ROW_COUNT() <> 1 THEN
          SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317,
            MESSAGE_TEXT = 'the statement was interrupted';
        END IF;
        IF b_stands THEN
          REPLACE INTO nightshift_grant (job_id, run, queue_id, group_key, lease, since)
          VALUES (b_id, b_run, v_queue, g_key, v_lease, v_now);
          SET v_out = CONCAT(v_out, IF(v_out = '', '', ','), '[', b_rank, ',', b_at, ',', b_id, ',',
            b_run, ',', b_alone, ',', b_kind, ']');
          SET v_want = IF(b_alone, 0, v_want - 1), v_alone = FALSE, v_taken = v_taken + 1;
          SET l_next = IF(l_window OR l_rate IS NULL, l_next, l_next + l_span DIV l_rate),
            l_used = l_used + 1, g_served = v_now + v_taken;
          SET g_next = IF(l_g_window OR l_g_rate IS NULL, g_next, g_next + l_g_span DIV l_g_rate),
            g_used = g_used + 1, g_head = IF(l_ordered AND g_key <> '', b_id, NULL);
        END IF;
      END IF;
      SET v_places = NULL;
      IF v_block > 0 OR v_more IS NOT NULL THEN
        SELECT rank, ready_at, job_id INTO b_rank, b_at, v_places
        FROM nightshift_backlog FORCE INDEX (PRIMARY)
        WHERE queue_id = v_queue AND group_key = g_key
        ORDER BY queue_id, group_key, rank, ready_at, job_id LIMIT 1;
      END IF;
      IF v_places IS NULL AND g_head IS NULL AND GREATEST(g_next, g_stopped) <= v_now THEN
        DELETE FROM nightshift_group WHERE queue_id = v_queue AND group_key = g_key;
      ELSEIF v_places IS NULL THEN
        UPDATE nightshift_group SET rank = 255, ready_at = 0, job_id = 0, served = g_served,
          next_at = g_next, used = g_used, head = g_head,
          blocked = GREATEST(g_next, g_stopped, v_now + 60000000)
        WHERE queue_id = v_queue AND group_key = g_key;
      ELSE
        UPDATE nightshift_group SET rank = b_rank, ready_at = b_at, job_id = v_places,
          served = g_served, next_at = g_next, used = g_used, head = g_head, blocked = v_block
        WHERE queue_id = v_queue AND group_key = g_key;
      END IF;
    END IF;
  END WHILE;
  IF v_looks < 0 THEN
    SET v_in = NULL;
  END IF;
  IF l_rate IS NOT NULL AND v_taken > 0 THEN
    UPDATE nightshift_limit SET next_at = l_next, used = l_used WHERE queue_id = v_queue;
  END IF;
  IF v_taken = 0 THEN
    SELECT g.job_id, g.lease INTO b_id, v_n FROM nightshift_grant g FORCE INDEX (of_group)
    LEFT JOIN nightshift_lease l ON l.id = g.lease
    LEFT JOIN nightshift_job j FORCE INDEX (PRIMARY) ON j.id = g.job_id AND j.run = g.run
    WHERE g.queue_id = v_queue AND (l.id IS NULL OR j.id IS NULL) AND g.lease <> v_lease LIMIT 1;
    DELETE FROM nightshift_grant WHERE job_id = b_id AND lease = v_n;
    IF ROW_COUNT() > 0 THEN
      SET v_in = 1000;
    END IF;
  END IF;
  SELECT blocked - v_now INTO v_again FROM nightshift_group FORCE INDEX (best)
  WHERE queue_id = v_queue AND blocked > v_now AND job_id <> 0
  ORDER BY queue_id, blocked LIMIT 1;
  SET v_again = COALESCE(LEAST(v_in, v_again), v_in, v_again, -1);
  SELECT rank, ready_at, job, run, alone, kind
  FROM JSON_TABLE(CONCAT('[', v_out, ']'), '$[*]' COLUMNS (`rank` BIGINT PATH '$[0]',
    ready_at BIGINT PATH '$[1]', job BIGINT PATH '$[2]', run BIGINT PATH '$[3]',
    alone BIGINT PATH '$[4]', kind BIGINT PATH '$[5]')) v
  UNION ALL
  SELECT 0, v_again, 0,
    COALESCE((SELECT 1 FROM nightshift_backlog WHERE queue_id = v_queue LIMIT 1), 0), v_looks = 0 AND v_want > 0, 0;
END

-- name: admission_withdraw
-- Params: job, locked. Deletes its row. Keys: PRIMARY of job; of backlog, the rows of its group;
-- waits for a claim that admits it.
DELETE b FROM nightshift_job j FORCE INDEX (PRIMARY)
STRAIGHT_JOIN nightshift_backlog b FORCE INDEX (PRIMARY) ON b.queue_id = j.queue_id
  AND b.group_key = COALESCE(j.group_key, '') AND b.job_id = j.id
WHERE j.id = ?
