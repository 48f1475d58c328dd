-- Statements about schedules. Sorted by name.

-- name: schedule_add
-- Params: name. Key: PRIMARY; locks the row that it adds. One that is there stays.
INSERT IGNORE INTO nightshift_schedule (name, definition) VALUES (?, 'null')

-- name: schedule_declared
-- Params: [name,…]. Key: PRIMARY, one row at a time. No locks. Those of the names that scripts
-- declare and that tick.
SELECT STRAIGHT_JOIN s.name, s.definition, s.version
FROM JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(100) {bytes} PATH '$')) v
JOIN nightshift_schedule s FORCE INDEX (PRIMARY) ON s.name = v.name
WHERE s.version IS NOT NULL AND s.error IS NULL

-- name: schedule_due
-- Params: zones that this machine lacks ([name,…]), how many. Key: due, a range from its begin; locks
-- its rows, skipping rows that other hosts have. Schedules that are due, the oldest tick first.
SELECT name, definition, next_at, {now} AS now
FROM nightshift_schedule FORCE INDEX (due)
WHERE next_at <= {now} AND NOT JSON_CONTAINS(?, COALESCE(JSON_EXTRACT(definition, '$.zone'), '0'))
ORDER BY next_at LIMIT ? FOR UPDATE SKIP LOCKED

-- name: schedule_end
-- Params: name, when it was last declared. Key: PRIMARY. One that no script declares any more,
-- unless one has done so meanwhile.
DELETE FROM nightshift_schedule WHERE name = ? AND declared = ?

-- name: schedule_fail
-- Params: error, name. Key: PRIMARY. It has no ticks any more.
UPDATE nightshift_schedule SET next_at = NULL, error = LEFT(?, 500) WHERE name = ?

-- name: schedule_forgotten
-- Params: µs. Key: declared, a range from its begin. No locks. Schedules that no script has
-- declared for so long.
SELECT name, declared FROM nightshift_schedule FORCE INDEX (declared)
WHERE declared < {now} - ? LIMIT 1000

-- name: schedule_hold
-- Params: name. Key: PRIMARY; locks the row.
SELECT definition, next_at, paused = 1 AS paused, version, declared, error, {now} AS now
FROM nightshift_schedule WHERE name = ? FOR UPDATE

-- name: schedule_lack
-- Params: [name,…], a machine that lacks their zones; NULL: it has got them. Key: PRIMARY, one
-- row at a time, which it locks.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(100) {bytes} PATH '$')) v
STRAIGHT_JOIN nightshift_schedule s FORCE INDEX (PRIMARY) ON s.name = v.name
SET s.lacked_by = ?, s.lacked_at = {now}

-- name: schedule_list
-- All schedules, by name: the whole table. No locks.
SELECT name, definition, next_at, paused = 1 AS paused, version, last_at, last_job, skipped, error
FROM nightshift_schedule WHERE definition <> 'null' ORDER BY name

-- name: schedule_live
-- Params: [[queue,key],…]. Keys: name of queue, PRIMARY of unique_key, one row at a time. No
-- locks. Keys that a live job has.
SELECT STRAIGHT_JOIN u.ukey
FROM JSON_TABLE(?, '$[*]' COLUMNS (queue VARCHAR(64) {bytes} PATH '$[0]',
  ukey VARCHAR(190) {bytes} PATH '$[1]')) v
JOIN nightshift_queue q FORCE INDEX (name) ON q.name = v.queue
JOIN nightshift_unique_key u FORCE INDEX (PRIMARY) ON u.queue_id = q.id AND u.ukey = v.ukey

-- name: schedule_move
-- Params: [[name,next tick,last tick,last job,how many ticks were skipped],…]. Key: PRIMARY,
-- one row at a time, locked by schedule_due.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(100) {bytes} PATH '$[0]',
  next_at BIGINT PATH '$[1]', last_at BIGINT PATH '$[2]', last_job BIGINT PATH '$[3]',
  skipped INT PATH '$[4]')) v
STRAIGHT_JOIN nightshift_schedule s FORCE INDEX (PRIMARY) ON s.name = v.name
SET s.next_at = v.next_at, s.last_at = COALESCE(v.last_at, s.last_at),
  s.last_job = COALESCE(v.last_job, s.last_job), s.skipped = s.skipped + v.skipped

-- name: schedule_next
-- Key: due, its first row. No locks. µs until the first tick; below 0: there is none.
SELECT COALESCE((SELECT GREATEST(0, next_at - {now}) FROM nightshift_schedule FORCE INDEX (due)
  WHERE next_at > 0 ORDER BY next_at LIMIT 1), -1)

-- name: schedule_pause
-- Params: next tick, paused, next tick, name. Key: PRIMARY, locked by schedule_hold. A schedule
-- with a next tick has no error.
UPDATE nightshift_schedule
SET error = IF(? IS NULL, error, NULL), paused = ?, next_at = ? WHERE name = ?

-- name: schedule_put
-- Params: definition, next tick, version, when it was declared, name. Key: PRIMARY, locked by
-- schedule_hold.
UPDATE nightshift_schedule
SET definition = ?, next_at = ?, version = ?, declared = ?, error = NULL WHERE name = ?

-- name: schedule_remove
-- Params: name. Key: PRIMARY.
DELETE FROM nightshift_schedule WHERE name = ?

-- name: schedule_sign
-- Params: [[name,version],…] in order of the names, version of the scripts. Key: PRIMARY, one row at
-- a time, which it locks. Scripts declare them as they are, unless others have done so meanwhile.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(100) {bytes} PATH '$[0]',
  version BIGINT PATH '$[1]')) v
STRAIGHT_JOIN nightshift_schedule s FORCE INDEX (PRIMARY) ON s.name = v.name
SET s.version = GREATEST(s.version, ?), s.declared = {now} WHERE s.version = v.version
