-- Slots of locks and semaphores. Each statement runs on its own and writes one row at most, by
-- its key. A statement that takes a slot waits for no row lock. So nothing can deadlock. Sorted
-- by name.

-- name: slot_gone
-- Params: limit. Slots of an owner that is gone. Key: none, all slots; PRIMARY of job
-- and holder. No locks.
SELECT s.name, s.slot, s.token
FROM nightshift_slot s
LEFT JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
LEFT JOIN nightshift_holder h ON h.id = s.holder AND h.dead IS NULL
WHERE j.id IS NULL AND h.id IS NULL
LIMIT ?

-- name: slot_look
-- Params: job, run, holder, name, name, n. The first row (slot 0) is about ourselves and says
-- whether another waiter is next in line. The other rows are the taken slots of 1 to n. gone:
-- its owner is gone; suspect: the named lock of its holder is free. Then its owner: a job, or a
-- process of a machine. Key: PRIMARY, a range of the name; PRIMARY of job and holder. No locks.
SELECT 0 AS slot, 0 AS token,
  NOT EXISTS(SELECT 1 FROM nightshift_job WHERE id = ? AND run = ?) AND
  NOT EXISTS(SELECT 1 FROM nightshift_holder WHERE id = ? AND dead IS NULL) AS gone,
  COALESCE(IS_USED_LOCK(CONCAT('nightshift-next:', {here}, MD5(?)))
    <> CONNECTION_ID(), 0) AS queued,
  0 AS suspect, NULL AS job, NULL AS pid, NULL AS host
UNION ALL
SELECT s.slot, s.token, j.id IS NULL AND h.id IS NULL, 0,
  h.id IS NOT NULL AND IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', h.id)),
  j.id, h.pid, h.host
FROM nightshift_slot s
LEFT JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
LEFT JOIN nightshift_holder h ON h.id = s.holder AND h.dead IS NULL
WHERE s.name = ? AND s.slot <= ?

-- name: slot_next
-- Params: name. The named lock that says "this session is next in line".
SELECT GET_LOCK(CONCAT('nightshift-next:', {here}, MD5(?)), 0)

-- name: slot_next_done
-- Params: name.
DO RELEASE_LOCK(CONCAT('nightshift-next:', {here}, MD5(?)))

-- name: slot_release
-- Params: name, slot, token. Key: PRIMARY. May be run twice. Array-bound, too.
DELETE nightshift_slot FROM nightshift_slot FORCE INDEX (PRIMARY)
WHERE name = ? AND slot = ? AND token = ?

-- name: slot_take
-- Params: token, job, run, holder, name, slot. Key: PRIMARY; 1062 or 1205 at
-- once when another session was faster.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
INSERT INTO nightshift_slot (token, job_id, run, holder, name, slot, since)
VALUES (?, ?, ?, ?, ?, ?, {now})

-- name: slot_take_over
-- Params: token, job, run, holder, name, slot, old token. Key: PRIMARY; 1205 at
-- once when another session is at it, no row when that was faster.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
UPDATE nightshift_slot
SET token = ?, job_id = ?, run = ?, holder = ?, since = {now}
WHERE name = ? AND slot = ? AND token = ?
