-- Locks and semaphores across hosts.

-- name: create_slot
-- A taken slot of a semaphore; a lock is a semaphore of one. The owner is a
-- running job, by the token of its claim, or else a holder. A row whose owner
-- is gone is a free slot: nobody has to find it when its owner dies. token is
-- random and changes hands with the slot.
CREATE TABLE nightshift_slot (
  name VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  slot INT NOT NULL,
  token BIGINT NOT NULL,
  job_id BIGINT NULL,
  run INT UNSIGNED NULL,
  holder BIGINT NULL,
  since BIGINT NOT NULL,
  PRIMARY KEY (name, slot),
  CONSTRAINT slot_name_length CHECK (CHAR_LENGTH(name) BETWEEN 1 AND 190),
  CONSTRAINT slot_name_plain CHECK (name NOT REGEXP '[[:cntrl:]]'),
  CONSTRAINT slot_counts CHECK (slot BETWEEN 1 AND 10000),
  CONSTRAINT slot_one_owner CHECK ((job_id IS NULL) <> (holder IS NULL)),
  CONSTRAINT slot_job_with_run CHECK ((job_id IS NULL) = (run IS NULL))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin
