-- Looking after other holders, and giving back what the dead ones held. Sorted
-- by name.

-- name: rescue_bury
-- Params: [id,…]. Key: PRIMARY of both. Rows of the long dead go; whoever had them
-- registers anew. Those of the living are not touched: their claims hold them locked.
DELETE h, s FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) v
STRAIGHT_JOIN nightshift_holder h FORCE INDEX (PRIMARY) ON h.id = v.id
LEFT JOIN nightshift_served s ON s.holder = h.id
WHERE h.dead IS NOT NULL

-- name: rescue_dead
-- Params: holder, its beat as it was seen. Key: PRIMARY. No row: it came back.
UPDATE nightshift_holder SET dead = {now}
WHERE id = ? AND (dead IS NOT NULL OR beat = ?)

-- name: rescue_expired
-- Key: none, all of expiry: few leases have one. No locks.
SELECT e.lease, l.holder, e.expires - {now} AS ends_in
FROM nightshift_expiry e LEFT JOIN nightshift_lease l ON l.id = e.lease
ORDER BY e.lease

-- name: rescue_graves
-- Params: microseconds. Key: none, all holders: they are few. No locks. Who has been dead
-- for so long: [id,…], or NULL.
SELECT CONCAT('[', GROUP_CONCAT(id), ']') FROM nightshift_holder WHERE dead < {now} - ?

-- name: rescue_holders
-- Params: whether named locks serve. Key: PRIMARY, all holders that live, or
-- died and still have something: they are few. No locks.
SELECT h.id, h.kind = 'host' AS host, h.pid, h.boot_id, h.dead IS NOT NULL AS dead,
  h.beat, {now} - h.beat AS silent, {now} - h.started AS age,
  ? AND IS_FREE_LOCK(CONCAT('nightshift:', DATABASE(), ':', h.id)) AS free
FROM nightshift_holder h
WHERE h.dead IS NULL
  OR EXISTS(SELECT 1 FROM nightshift_lease l WHERE l.holder = h.id)
ORDER BY h.id

-- name: rescue_leases
-- Params: holder. Key: holder. No locks.
SELECT id FROM nightshift_lease WHERE holder = ? ORDER BY id LIMIT 100

-- name: rescue_next
-- Key: none, all of expiry: few leases have one. No locks. µs until the next
-- lease ends; NULL: none will.
SELECT MIN(expires) - {now} FROM nightshift_expiry

-- name: rescue_notices
-- Params: holder. Key: PRIMARY, a range.
DELETE FROM nightshift_notice WHERE holder = ?

-- name: rescue_orphans
-- Leases of holders that are not known, which nobody else would find. Key:
-- PRIMARY of both. No locks.
SELECT l.id, l.holder FROM nightshift_lease l
LEFT JOIN nightshift_holder h ON h.id = l.holder
WHERE h.id IS NULL LIMIT 100

-- name: rescue_tokens
-- Params: lease. Key: PRIMARY. What it holds; no locks, the verdicts are fenced.
SELECT c.id, c.run
FROM nightshift_lease l
JOIN JSON_TABLE(l.jobs, '$[*]' COLUMNS (id BIGINT PATH '$[0]', run INT UNSIGNED PATH '$[1]')) c
WHERE l.id = ?
