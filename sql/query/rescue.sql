-- Looking at other holders, and giving back claims of dead ones. Sorted by name.

-- name: rescue_dead
-- Params: holder, µs, its beat at the last look, whether its lock has to be free. Key: PRIMARY.
-- No row: the holder came back, or another has declared it dead less than so many µs ago and is
-- giving back its claims.
UPDATE nightshift_holder SET dead = {now}
WHERE id = ? AND (dead <= {now} - ? OR dead IS NULL AND beat = ?
  AND (NOT ? OR IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', id))))

-- name: rescue_delete
-- Params: [id,…]. Key: PRIMARY. Rows of the dead go, each locked by its key; a holder that
-- still lives registers anew. Rows of live holders are not touched: their claims hold them
-- locked. 1205 at once when one is locked.
SET STATEMENT innodb_lock_wait_timeout=0 FOR
DELETE h FROM JSON_TABLE(?, {ids}) v
STRAIGHT_JOIN nightshift_holder h FORCE INDEX (PRIMARY) ON h.id = v.id
WHERE h.dead IS NOT NULL

-- name: rescue_ended
-- Params: [id,…]. Key: PRIMARY of each; locks the rows of served. Handlers of dead hosts are
-- known for as long as handlers of hosts that ended: see report_served.
REPLACE INTO nightshift_served (holder, workers, queues, handlers, reserves, ended)
SELECT STRAIGHT_JOIN s.holder, 0, s.queues, s.handlers, s.reserves, h.dead
FROM JSON_TABLE(?, {ids}) v
JOIN nightshift_holder h FORCE INDEX (PRIMARY) ON h.id = v.id AND h.dead IS NOT NULL
JOIN nightshift_served s FORCE INDEX (PRIMARY) ON s.holder = v.id AND s.ended IS NULL

-- name: rescue_expired
-- Key: none, all of expiry: few leases have one. No locks.
SELECT e.lease, l.holder, e.expires - {now} AS ends_in
FROM nightshift_expiry e LEFT JOIN nightshift_lease l ON l.id = e.lease
ORDER BY e.lease

-- name: rescue_holders
-- Params: whether named locks work. Key: PRIMARY, all holders that live, or died and still have
-- claims, or are past. Past: dead for half a minute, without claims, so that all lookers learn
-- of the death. They are few. No locks.
SELECT h.id, h.kind = 'host' AS host, h.pid, h.boot_id, h.dead IS NOT NULL AS dead,
  h.beat, {now} - h.beat AS silent, {now} - h.started AS age,
  ? AND IS_FREE_LOCK(CONCAT('nightshift:', {here}, ':', h.id)) AS free,
  h.dead < {now} - 30000000
    AND NOT EXISTS(SELECT 1 FROM nightshift_lease l WHERE l.holder = h.id) AS past
FROM nightshift_holder h
WHERE h.dead IS NULL OR h.dead < {now} - 30000000
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
DELETE nightshift_notice FROM nightshift_notice FORCE INDEX (PRIMARY) WHERE holder = ?

-- name: rescue_orphans
-- Leases of unknown holders, which no other look would find. Key: PRIMARY of both. No locks.
SELECT l.id, l.holder FROM nightshift_lease l
LEFT JOIN nightshift_holder h ON h.id = l.holder
WHERE h.id IS NULL LIMIT 100

-- name: rescue_tokens
-- Params: lease. Key: PRIMARY. The claims of the lease; no locks, the verdicts are fenced.
SELECT c.id, c.run
FROM nightshift_lease l
JOIN JSON_TABLE(l.jobs, {tokens}) c
WHERE l.id = ?
