-- Waiting and ringing. Sorted by name.

-- name: listen_in
-- Params: the queues, holder or 0. From now on a ring reaches this connection.
CALL nightshift_listen(?, ?)

-- name: listen_nudge
-- Params: holder, whether the one before it is meant.
CALL nightshift_nudge(?, ?)

-- name: listen_out
CALL nightshift_listen(NULL, 0)

-- name: listen_release
-- Params: holder. A wait that ended with this lock in hand gives it back.
DO RELEASE_LOCK(CONCAT('nightshift:', DATABASE(), ':', ?))

-- name: listen_rest
-- As listen_wait, when every queue is paused or there is none.
SELECT /* nightshift-wait - */ CASE
  WHEN EXISTS(SELECT 1 FROM nightshift_queue WHERE id > ?
    LOCK IN SHARE MODE SKIP LOCKED) THEN 2
  WHEN EXISTS(SELECT 1 FROM nightshift_notice WHERE holder = ?
    LOCK IN SHARE MODE SKIP LOCKED) THEN 4
  ELSE COALESCE((SELECT 3
    FROM JSON_TABLE(?, '$[*]' COLUMNS (seconds DOUBLE PATH '$[0]')) slice
    WHERE IF(? = 0, SLEEP(slice.seconds),
        GET_LOCK(CONCAT('nightshift:', DATABASE(), ':', ?), slice.seconds))
      OR EXISTS(SELECT 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) h
        WHERE IS_FREE_LOCK(CONCAT('nightshift:', DATABASE(), ':', h.id)))
    LIMIT 1), 0) END

-- name: listen_ring
-- Ends the sleep of one listener of each kind.
CALL nightshift_ring()

-- name: listen_wait
-- Params: newest known queue, our holder, slices of the wait ([[seconds, which
-- look follows or 0],…]; each look has a number of its own, or its answer would be
-- remembered), the neighbour (0: locks do not serve), the neighbour again, other
-- holders ([id,…]). 2: something is ready or a queue is new;
-- 4: a notice; 3: a holder's lock is free (then the neighbour's may be ours now);
-- 5: something is ready, or 3; 0: time is up.
-- The list of queue ids goes where the marks (queues) are: into a comment for people
-- who read the process list, and into the ranges. In the places of the mark (near) is
-- TRUE, or where in its lanes to begin, past deleted rows. Key: PRIMARY of
-- ready, up to the first live row of each queue. The locking reads take no read
-- view, so the sleep does not hold up purge, and skip rows that are being
-- pushed or claimed. The wait goes on slice by slice: the neighbour's death ends
-- it at once, another's with the slice.
SELECT /* nightshift-wait (queues) */ CASE
  WHEN EXISTS(SELECT 1 FROM nightshift_ready
      WHERE queue_id IN (queues) AND ready_at < {end} AND (/*near*/)
      LOCK IN SHARE MODE SKIP LOCKED)
    OR EXISTS(SELECT 1 FROM nightshift_queue WHERE id > ?
      LOCK IN SHARE MODE SKIP LOCKED) THEN 2
  WHEN EXISTS(SELECT 1 FROM nightshift_notice WHERE holder = ?
    LOCK IN SHARE MODE SKIP LOCKED) THEN 4
  ELSE COALESCE((SELECT IF(slice.looks, 5, 3)
    FROM JSON_TABLE(?, '$[*]' COLUMNS (seconds DOUBLE PATH '$[0]', looks INT PATH '$[1]')) slice
    WHERE IF(? = 0, SLEEP(slice.seconds),
        GET_LOCK(CONCAT('nightshift:', DATABASE(), ':', ?), slice.seconds))
      OR EXISTS(SELECT 1 FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) h
        WHERE IS_FREE_LOCK(CONCAT('nightshift:', DATABASE(), ':', h.id)))
      OR EXISTS(SELECT 1 FROM nightshift_ready
        WHERE slice.looks AND queue_id IN (queues) AND ready_at < {end} AND (/*near*/)
        LOCK IN SHARE MODE SKIP LOCKED)
    LIMIT 1), 0) END
