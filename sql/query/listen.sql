-- Waiting and ringing. Sorted by name.

-- name: listen_in
-- Params: the queues. From now on a ring reaches this connection.
REPLACE INTO nightshift_listener (thread, kind) VALUES (CONNECTION_ID(), MD5(?))

-- name: listen_out
DELETE FROM nightshift_listener WHERE thread = CONNECTION_ID()

-- name: listen_rest
-- Params: newest known queue, seconds. Waits for a ring only: every queue is
-- paused, or there is none. Key: PRIMARY of queue.
SELECT /* nightshift-wait - */ IF(EXISTS(SELECT 1 FROM nightshift_queue
  WHERE id > ? LOCK IN SHARE MODE SKIP LOCKED), 2, SLEEP(?))

-- name: listen_ring
-- Ends the sleep of one listener of each kind.
CALL nightshift_ring()

-- name: listen_wait
-- Params: newest known queue, seconds. The list of queue ids goes where the
-- two marks (queues) are: into a comment for people who read the process list,
-- and into the range.
-- Key: PRIMARY of ready, up to the first live row of each queue. The locking
-- read takes no read view, so the sleep does not hold up purge, and it skips
-- rows that are being pushed or claimed.
SELECT /* nightshift-wait (queues) */ IF(EXISTS(SELECT 1 FROM nightshift_ready
    WHERE queue_id IN (queues) AND ready_at < {end}
    LOCK IN SHARE MODE SKIP LOCKED)
  OR EXISTS(SELECT 1 FROM nightshift_queue WHERE id > ?
    LOCK IN SHARE MODE SKIP LOCKED), 2, SLEEP(?))
