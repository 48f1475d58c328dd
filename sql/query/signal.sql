-- Statements about signals to jobs. Sorted by name.

-- name: signal_call
-- Params: job, value, name. See the procedure.
CALL nightshift_signal(?, ?, ?)

-- name: signal_find
-- Params: job, name. Key: PRIMARY of signal. What was sent under this name, or
-- without one.
SELECT 1 FROM nightshift_signal WHERE job_id = ? AND name IN ('', ?) LIMIT 1

-- name: signal_forget
-- Params: job, when what it was given was sent, whether the rest goes, too. Key:
-- PRIMARY of signal, by its job. What came later stays.
DELETE nightshift_signal FROM nightshift_signal FORCE INDEX (PRIMARY)
WHERE job_id = ? AND (sent = ? OR ?)

-- name: signal_limit
-- Params: bytes. What a value may have in this session; the procedure's own limit
-- is 1 MiB.
SET @nightshift_max_payload = ?

-- name: signal_live
-- Params: job. Key: PRIMARY of job; locks the row, waiting for it.
SELECT 1 FROM nightshift_job WHERE id = ? FOR UPDATE

-- name: signal_park
-- Params: phases, name, µs that it waits, twice, µs that it would wait if nothing was sent,
-- state (NULL keeps it), job. Not beyond its own deadline. Key: PRIMARY of job,
-- locked by settle_lock.
UPDATE nightshift_job SET run = run + 1, phase = phase + 1, phases = ?, lost = 0,
  missed = 0, missing_since = NULL, waits = 'signal', awaits = ?,
  due = LEAST({now} + ?, COALESCE(GREATEST(deadline, {now}), {now} + ?)), wish = {now} + ?,
  state = COALESCE(?, state)
WHERE id = ?
