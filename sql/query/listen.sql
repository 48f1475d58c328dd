-- Waiting and ringing. Sorted by name.

-- name: listen_in
-- Params: the queues, holder or 0. From now on a ring reaches this connection.
CALL nightshift_listen(?, ?)

-- name: listen_look
-- Part of listen_wait. Params: newest known queue, paused ones ([id,…]), the mark of the paused
-- names (see ns_paused_names), our holder. 2: something is ready, a queue is new or is paused
-- no more, other names are paused; 4: a notice; 0: nothing. In the place of the mark (near) is
-- TRUE, or where in its lanes to begin, past deleted rows. Key: PRIMARY of ready, up to the
-- first row of each queue that no session is about to claim.
-- Committed rows are found without locks, and asked for with locks one at a time, skipping
-- locked rows. A locking read through deleted rows would lock them, too. When purge removes one
-- just then its lock becomes one on the gap, where pushes wait.
SELECT CASE
  WHEN EXISTS(SELECT 1 FROM nightshift_ready v
      WHERE queue_id IN (queues) AND ready_at < {end} AND (/*near*/)
        AND (SELECT 1 FROM nightshift_ready r FORCE INDEX (PRIMARY)
          WHERE r.queue_id = v.queue_id AND r.rank = v.rank AND r.ready_at = v.ready_at
            AND r.job_id = v.job_id
          LIMIT 1 LOCK IN SHARE MODE SKIP LOCKED) = 1)
    OR EXISTS(SELECT 1 FROM nightshift_queue WHERE id > ?)
    OR EXISTS(SELECT 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (id INT PATH '$')) p
      STRAIGHT_JOIN nightshift_queue q ON q.id = p.id WHERE NOT q.paused AND NOT {all_paused})
    OR {paused_mark} <> ? THEN 2
  WHEN EXISTS(SELECT 1 FROM nightshift_notice WHERE holder = ?) THEN 4
  ELSE 0 END

-- name: listen_look_rest
-- As listen_look when every queue is paused or there is none.
SELECT CASE
  WHEN EXISTS(SELECT 1 FROM nightshift_queue WHERE id > ?)
    OR EXISTS(SELECT 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (id INT PATH '$')) p
      STRAIGHT_JOIN nightshift_queue q ON q.id = p.id WHERE NOT q.paused AND NOT {all_paused})
    OR {paused_mark} <> ? THEN 2
  WHEN EXISTS(SELECT 1 FROM nightshift_notice WHERE holder = ?) THEN 4
  ELSE 0 END

-- name: listen_nudge
-- Params: holder, whether the one before it is meant.
CALL nightshift_nudge(?, ?)

-- name: listen_out
CALL nightshift_listen(NULL, 0)

-- name: listen_ring
-- Ends the sleep of one listener of each kind.
CALL nightshift_ring()

-- name: listen_wait
-- Params: slices of the wait ([[seconds, whether a look follows],…]), the neighbour (0: locks
-- do not work), other holders ([id,…]). Then the ones of {look}, which is one of the looks
-- above. It looks, and sleeps slice by slice; the neighbour's death ends the sleep at once,
-- another's with the slice. Ends with error 45000 + the number of a look, or + 3 when a
-- holder's lock is free, and without one when time is up. The neighbour's lock that the wait
-- came to own is released by the expression that waited for it. So neither a KILL nor a stopped
-- client comes in between: a dead holder's lock has no owner. It is one statement of several,
-- each of which releases its locks. If the locks of a look lasted as long as the sleep, one
-- would become a lock on the gap when purge removes its row. Then no push could write there.
-- The list of queue ids replaces the marks (queues): in a comment for people who read the
-- process list, and in ranges.
BEGIN NOT ATOMIC /* nightshift-wait (queues) */
  DECLARE v_slices TEXT {bytes} DEFAULT ?;
  DECLARE v_neighbour BIGINT DEFAULT ?;
  DECLARE v_watched TEXT {bytes} DEFAULT ?;
  DECLARE v_why, v_n INT DEFAULT 0;
  DECLARE v_looks BOOLEAN DEFAULT TRUE;
  DECLARE v_seconds DOUBLE;
  slices: LOOP
    IF v_looks THEN
      {look} INTO v_why;
    END IF;
    SET v_seconds = JSON_VALUE(v_slices, CONCAT('$[', v_n, '][0]'));
    IF v_why > 0 OR v_seconds IS NULL THEN
      LEAVE slices;
    END IF;
    SET v_looks = JSON_VALUE(v_slices, CONCAT('$[', v_n, '][1]')), v_n = v_n + 1;
    IF IF(v_neighbour = 0, SLEEP(v_seconds),
        IF(GET_LOCK(CONCAT('nightshift:', {here}, ':', v_neighbour), v_seconds),
          RELEASE_LOCK(CONCAT('nightshift:', {here}, ':', v_neighbour)), FALSE))
      OR EXISTS(SELECT 1 FROM JSON_TABLE(v_watched, {ids}) h
        WHERE IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', h.id))) THEN
      SET v_why = 3;
      LEAVE slices;
    END IF;
  END LOOP;
  IF v_why > 0 THEN
    SET v_why = 45000 + v_why;
    SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = v_why;
  END IF;
END
