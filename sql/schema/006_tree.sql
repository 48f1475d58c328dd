-- Trees: who is whose child, and parents that wait for their children.

-- name: job_tree
-- phase counts how often job:wait has parked the job; waits is there while it
-- is parked, and says what a failed child means.
ALTER TABLE nightshift_job
  ADD COLUMN IF NOT EXISTS phase INT UNSIGNED NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS waits ENUM('fail','continue') NULL

-- name: create_child
-- A child of a job, live or ended; ids ascend in the order of spawning.
CREATE TABLE IF NOT EXISTS nightshift_child (
  parent BIGINT NOT NULL,
  id BIGINT NOT NULL,
  PRIMARY KEY (parent, id),
  CONSTRAINT child_other CHECK (parent <> id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin
