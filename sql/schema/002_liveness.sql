-- Holders that die: how their jobs come back, claims that run out, and how one
-- holder is told something about a job it holds.

-- name: ready_alone
-- A job that was lost with its holder twice is claimed alone.
ALTER TABLE nightshift_ready
  ADD COLUMN IF NOT EXISTS alone BOOLEAN NOT NULL DEFAULT FALSE

-- name: holder_process
-- boot_id also names the space of process ids.
ALTER TABLE nightshift_holder MODIFY boot_id VARCHAR(64) NOT NULL

-- name: listener_holder
-- Whose listener it is; 0: of nobody in particular.
ALTER TABLE nightshift_listener
  ADD COLUMN IF NOT EXISTS holder BIGINT NOT NULL DEFAULT 0,
  ADD KEY IF NOT EXISTS holder (holder) USING HASH

-- name: create_expiry
-- Leases that also end by themselves when they are not touched. Few.
CREATE TABLE IF NOT EXISTS nightshift_expiry (
  lease BIGINT NOT NULL PRIMARY KEY,
  expires BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin

-- name: create_nudge
-- Ends the sleep of the listener of one holder, which then finds a notice; or,
-- with p_before, of the next holder before it in the ring of ids: it then
-- learns that it has a new neighbour to watch.
CREATE OR REPLACE PROCEDURE nightshift_nudge(IN p_holder BIGINT, IN p_before BOOLEAN)
  SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
  DECLARE v_thread BIGINT DEFAULT NULL;
  DECLARE CONTINUE HANDLER FOR 1094, 1095 BEGIN END;
  IF NOT p_before THEN
    SELECT MAX(thread) INTO v_thread FROM nightshift_listener
    WHERE holder = p_holder;
  ELSE
    SELECT thread INTO v_thread FROM nightshift_listener
    WHERE holder <> p_holder AND holder > 0
    ORDER BY holder < p_holder DESC, holder DESC LIMIT 1;
  END IF;
  IF v_thread IS NOT NULL THEN
    KILL QUERY v_thread;
  END IF;
END
