-- Statements of gates, which are named locks: a crowd of claimers goes in a few at a
-- time. Neither reads or locks a row. Sorted by name.

-- name: gate_enter
-- Params: queue, gate, milliseconds to wait, queue, gate. Whether it is ours now, the
-- session that has it, and the microseconds that it was waited for (SYSDATE goes on during
-- a statement). A network takes no part in those.
SELECT GET_LOCK(CONCAT('nightshift-gate:', {here}, ':', ?, ':', ?), ? / 1000),
  IS_USED_LOCK(CONCAT('nightshift-gate:', {here}, ':', ?, ':', ?)),
  TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))

-- name: gate_leave
-- Params: queue, gate. Nothing happens when it is not ours.
DO RELEASE_LOCK(CONCAT('nightshift-gate:', {here}, ':', ?, ':', ?))
