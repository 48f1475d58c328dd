-- All tables: queues, jobs, the small hot tables that claims touch, the holders of claims, the
-- history, locks, adopted tables. Times are microseconds since 1970, UTC, by the server's
-- clock. There are no foreign keys: they would deadlock promotion against cancelling. Two texts
-- are equal when all of their bytes are: utf8mb4_nopad_bin, as {bytes} everywhere. Statements
-- are separated by `-- name:` lines. Changes after a release go into a file with the next
-- number, and NS_SCHEMA_VERSION with it.

-- name: create_meta
-- One row per fact about this installation; 'schema' is the version.
CREATE TABLE nightshift_meta (
  name VARCHAR(64) NOT NULL PRIMARY KEY,
  value VARCHAR(255) NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_id
-- Ids of jobs, leases and holders. Clients take blocks of 100:
-- id = nextval * 100 + k, 0 <= k < 100. By 0: by the server's auto_increment_increment, which is 1
-- but for nodes of a cluster. They take no other sequence with a cache.
CREATE SEQUENCE nightshift_id START WITH 1 INCREMENT BY 0 CACHE 1000 ENGINE=InnoDB

-- name: create_queue
-- A named line of jobs. removed: nobody needs it; until a job is pushed to it, it is not shown. Its
-- row stays, since the history and open handles have its id. limited: claims of it go by its row of
-- nightshift_limit. backlog: its bound: pushes are refused while so many jobs wait; NULL: it has
-- none.
CREATE TABLE nightshift_queue (
  id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name VARCHAR(64) NOT NULL,
  paused BOOLEAN NOT NULL DEFAULT FALSE,
  removed BOOLEAN NOT NULL DEFAULT FALSE,
  limited BOOLEAN NOT NULL DEFAULT FALSE,
  backlog BIGINT NULL,
  created BIGINT NOT NULL,
  UNIQUE KEY name (name),
  KEY backlog (backlog),
  CONSTRAINT queue_name_length CHECK (LENGTH(name) BETWEEN 1 AND 64),
  CONSTRAINT queue_name_plain CHECK (name NOT REGEXP '[[:cntrl:]]')
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_job
-- A live job. Where it is follows from it: waiting when unmet > 0, running when a lease names
-- (id, run), scheduled while due lies ahead, else ready. A claim does not write here. run: each
-- return adds one. A run at the column's own limit could never be given back, so a job at the
-- bound ends with its next return. phase: how often job:wait has parked the job. waits: while
-- it is parked. For its children: the meaning of a failed one. For a signal: it stays until the
-- run after it has returned. awaits: the name of the signal that it waits, or has waited, for.
-- Meanwhile it is scheduled for its deadline, or for the far future. A run after that is given
-- the signal, and the next one when that run fails. since: children with a lower seq are of an
-- earlier life, before a retry. The ones that had ended by then are not among its results.
-- decay: priority lost with each return that is no end. paused: the job that was paused with
-- all below it, this one included; unmet counts that as one. wish: when it would be due, if its
-- deadline had not brought that forward. It is of interest only while it is due at its
-- deadline, for a verb that sets another. after_ids: "[id,…]" of the jobs it was pushed to wait
-- for, met or not. phases counts the waits since the push or the last signal that was received.
-- Beyond max_phases the job is dead: a handler that forgets its phase would spawn for ever.
-- max_phases NULL: its handler's number, or 100; 0: no limit. tagged: it may have rows of
-- nightshift_tag. group_key: what the limits of groups go by, NULL: it is in no group.
CREATE TABLE nightshift_job (
  id BIGINT NOT NULL PRIMARY KEY,
  queue_id INT NOT NULL,
  name VARCHAR(100) NOT NULL,
  payload MEDIUMTEXT NOT NULL,
  priority TINYINT UNSIGNED NOT NULL,
  rank TINYINT UNSIGNED NOT NULL,
  run INT UNSIGNED NOT NULL DEFAULT 1,
  attempts INT UNSIGNED NOT NULL DEFAULT 0,
  polls INT UNSIGNED NOT NULL DEFAULT 0,
  crashes INT UNSIGNED NOT NULL DEFAULT 0,
  lost INT UNSIGNED NOT NULL DEFAULT 0,
  missed INT UNSIGNED NOT NULL DEFAULT 0,
  max_attempts INT UNSIGNED NOT NULL,
  max_polls INT UNSIGNED NULL,
  max_crashes INT UNSIGNED NOT NULL,
  backoff BIGINT NOT NULL,
  timeout BIGINT NOT NULL,
  deadline BIGINT NULL,
  created BIGINT NOT NULL,
  due BIGINT NOT NULL,
  missing_since BIGINT NULL,
  parent BIGINT NULL,
  root BIGINT NULL,
  unmet INT UNSIGNED NOT NULL DEFAULT 0,
  on_fail ENUM('cancel','run') NOT NULL DEFAULT 'cancel',
  state MEDIUMTEXT NULL,
  ukey VARCHAR(190) NULL,
  nonce BIGINT NOT NULL,
  phase INT UNSIGNED NOT NULL DEFAULT 0,
  waits ENUM('fail','continue','signal') NULL,
  awaits VARCHAR(100) NULL,
  since BIGINT NOT NULL DEFAULT 0,
  decay TINYINT UNSIGNED NOT NULL DEFAULT 8,
  paused BIGINT NULL,
  wish BIGINT NULL,
  after_ids MEDIUMTEXT NULL,
  max_phases INT UNSIGNED NULL,
  phases INT UNSIGNED NOT NULL DEFAULT 0,
  tagged BOOLEAN NOT NULL DEFAULT FALSE,
  group_key VARCHAR(190) NULL,
  CONSTRAINT job_id_positive CHECK (id > 0),
  CONSTRAINT job_name_length CHECK (LENGTH(name) BETWEEN 1 AND 100),
  CONSTRAINT job_name_plain CHECK (name NOT REGEXP '[[:cntrl:]]'),
  CONSTRAINT job_payload_json CHECK (JSON_VALID(payload)),
  CONSTRAINT job_state_json CHECK (state IS NULL OR JSON_VALID(state)),
  CONSTRAINT job_run_counts CHECK (run BETWEEN 1 AND 4000000000),
  CONSTRAINT job_attempts_left CHECK (attempts < max_attempts),
  CONSTRAINT job_polls_left CHECK (max_polls IS NULL OR polls <= max_polls),
  CONSTRAINT job_crashes_left CHECK (crashes < max_crashes),
  CONSTRAINT job_missing_counts CHECK ((missed = 0) = (missing_since IS NULL)),
  CONSTRAINT job_backoff_positive CHECK (backoff >= 0),
  CONSTRAINT job_timeout_positive CHECK (timeout > 0),
  CONSTRAINT job_times CHECK (created > 0 AND due > 0),
  CONSTRAINT job_parent_other CHECK (parent IS NULL OR parent <> id),
  CONSTRAINT job_root_with_parent CHECK ((parent IS NULL) = (root IS NULL)),
  CONSTRAINT job_group_length CHECK (group_key <> '')
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_tag
-- Tags of jobs, live or ended, written with the push. Deleted with the row of history.
CREATE TABLE nightshift_tag (
  job_id BIGINT NOT NULL,
  tag VARCHAR(64) NOT NULL,
  PRIMARY KEY (job_id, tag),
  KEY tag (tag, job_id),
  CONSTRAINT tag_length CHECK (CHAR_LENGTH(tag) BETWEEN 1 AND 64),
  CONSTRAINT tag_plain CHECK (tag NOT REGEXP '[[:cntrl:]]')
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_ready
-- Claimable jobs, clustered in claim order: rank = 255 - priority, then first come first
-- served. job_id 0 at the largest ready_at is the sentinel that ends a lane (queue_id, rank). A
-- row of a job that is gone, or has another run, is dropped by the claim that reads it. alone:
-- lost with its holder twice, so it is claimed alone. kind: CRC32 of the job's name. So a host
-- claims only jobs that it has handlers for, and reads no job to know. 0: not known, any host
-- may claim it.
CREATE TABLE nightshift_ready (
  queue_id INT NOT NULL,
  rank TINYINT UNSIGNED NOT NULL,
  ready_at BIGINT NOT NULL,
  job_id BIGINT NOT NULL,
  run INT UNSIGNED NOT NULL,
  alone BOOLEAN NOT NULL DEFAULT FALSE,
  kind INT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (queue_id, rank, ready_at, job_id),
  CONSTRAINT ready_sentinel CHECK (
    (job_id = 0) = (ready_at = 9223372036854775807) AND
    (job_id = 0) = (run = 0) AND job_id >= 0)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_scheduled
-- Jobs due later; moved into ready when due.
-- kind: as in ready.
CREATE TABLE nightshift_scheduled (
  run_at BIGINT NOT NULL,
  job_id BIGINT NOT NULL,
  queue_id INT NOT NULL,
  rank TINYINT UNSIGNED NOT NULL,
  run INT UNSIGNED NOT NULL,
  kind INT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (run_at, job_id),
  CONSTRAINT scheduled_real CHECK (job_id > 0 AND run_at > 0 AND run >= 1)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_edge
-- job_id waits for on_id; job.unmet counts its rows. A negative job_id is no job: a connection of
-- minus that number waits for the end of on_id.
CREATE TABLE nightshift_edge (
  on_id BIGINT NOT NULL,
  job_id BIGINT NOT NULL,
  PRIMARY KEY (on_id, job_id),
  CONSTRAINT edge_other CHECK (on_id <> job_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_child
-- A child of a job, live or ended. seq is the order of spawning: the parent's run times
-- 1048576, and the child's place in that run.
CREATE TABLE nightshift_child (
  parent BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  id BIGINT NOT NULL,
  PRIMARY KEY (parent, seq, id),
  CONSTRAINT child_other CHECK (parent <> id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_met
-- Ended jobs with dependents that were not all told, because one of them was locked or they go
-- too deep. The next holder that looks tells them.
CREATE TABLE nightshift_met (
  on_id BIGINT NOT NULL PRIMARY KEY,
  failed BOOL NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_pause
-- Jobs that are paused, with all below them; job.paused has their ids.
CREATE TABLE nightshift_pause (
  id BIGINT NOT NULL PRIMARY KEY,
  since BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_paused_name
-- Names of jobs that no claim takes, whatever their queue. The empty name stands for every queue.
CREATE TABLE nightshift_paused_name (
  name VARCHAR(100) NOT NULL PRIMARY KEY,
  since BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_lease
-- A claimed batch: jobs is [[id,run],…], without a space. Deleted when its last job
-- settles, never rewritten.
CREATE TABLE nightshift_lease (
  id BIGINT NOT NULL PRIMARY KEY,
  holder BIGINT NOT NULL,
  claimed BIGINT NOT NULL,
  jobs MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  KEY holder (holder),
  CONSTRAINT lease_jobs_json CHECK (JSON_VALID(jobs))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_expiry
-- Leases that also end by themselves when they are not touched. Few.
CREATE TABLE nightshift_expiry (
  lease BIGINT NOT NULL PRIMARY KEY,
  expires BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_listener
-- A connection that listens, once for each set of queues (kind) it has listened for as that
-- holder (0: of no holder). It sleeps while it owns the lock "nightshift-ear", database,
-- thread, holder, kind. So a row of a connection that is gone, or of another server, counts for
-- no connection. In memory on purpose: nothing of it is worth a disk, and a caller's open
-- transaction holds no row of it. No key is unique, and rows are only added or all taken away
-- together: a replica, whatever it has of them, can do the same.
CREATE TABLE nightshift_listener (
  thread BIGINT NOT NULL,
  kind CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  holder BIGINT NOT NULL,
  KEY kind (kind, thread) USING BTREE,
  KEY holder (holder) USING HASH
) ENGINE=MEMORY DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_holder
-- Holders of claims: a host process or an embedded handle. cycle numbers its transactions, so
-- that after a cut at COMMIT it knows which half it is in. boot_id also names the space of
-- process ids. For people, told with a delay of a few seconds; NULL: no host, or it has not
-- said yet: workers: that take jobs. busy: that run one, whether they take more or not.
-- leaving: that take no more and still run one. scripts: counts the loadings of scripts. skew: how
-- far the clock of its machine was ahead of the server's at its last beat. conflicts:
-- [["settle_lock",deadlocks,lock waits],…], after which its transactions have run again.
CREATE TABLE nightshift_holder (
  id BIGINT NOT NULL PRIMARY KEY,
  kind ENUM('host','handle') NOT NULL,
  host VARCHAR(255) NOT NULL,
  pid INT NOT NULL,
  boot_id VARCHAR(64) NOT NULL,
  connection BIGINT NOT NULL,
  server BIGINT NOT NULL DEFAULT 0,
  started BIGINT NOT NULL,
  beat BIGINT NOT NULL,
  cycle BIGINT NOT NULL DEFAULT 0,
  dead BIGINT NULL,
  version VARCHAR(32) NOT NULL,
  workers INT UNSIGNED NULL,
  busy INT UNSIGNED NULL,
  leaving INT UNSIGNED NULL,
  loads INT UNSIGNED NULL,
  old_scripts INT UNSIGNED NULL,
  skew BIGINT NULL,
  conflicts TEXT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_past_holder
-- Holders that are gone, for people: who ran the jobs of the history. Written when the holder's row
-- is deleted; it goes when the history has nothing so old any more.
CREATE TABLE nightshift_past_holder (
  id BIGINT NOT NULL PRIMARY KEY,
  host VARCHAR(255) NOT NULL,
  pid INT NOT NULL,
  started BIGINT NOT NULL,
  ended BIGINT NOT NULL,
  KEY ended (ended)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_served
-- The handlers and scripts of a live host, for people who ask why a job does not run. Written
-- when it starts and when it reloads its scripts, deleted with the holder's row. workers: how
-- many take jobs, 0 while it is quiet or about to end. queues: ["mail",…], NULL: all. handlers:
-- ["mail.send",…]; a null at the end: and more. reserves: [["mail",2],…], the workers kept for
-- one queue; NULL: none. ended: when its host ended: a report within a minute may see a deploy.
-- NULL: it has not. scripts: a short hash of the texts that its workers run. files:
-- [["jobs.lua","hash"],…], of the scripts. Their last reading. load_began, load_ended: µs of
-- the clock of its machine that starts at 0 with the boot, to compare with the same clock only.
-- load_error: why it failed, so that the earlier scripts go on. NULL: it did not. wanted: how many
-- workers it is to have now. tuned: counts the numbers that it was told, and refused is why the
-- last of them was not taken. NULL: it was.
CREATE TABLE nightshift_served (
  holder BIGINT NOT NULL PRIMARY KEY,
  workers INT UNSIGNED NOT NULL,
  queues MEDIUMTEXT NULL,
  handlers MEDIUMTEXT NOT NULL,
  reserves TEXT NULL,
  ended BIGINT NULL,
  scripts VARCHAR(16) NULL,
  files TEXT NULL,
  load_began BIGINT NULL,
  load_ended BIGINT NULL,
  load_error TEXT NULL,
  wanted INT UNSIGNED NULL,
  tuned INT UNSIGNED NOT NULL DEFAULT 0,
  refused VARCHAR(255) NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_running
-- Jobs that show themselves while they run: longer than a second, or with
-- progress. Removed with the verdict.
CREATE TABLE nightshift_running (
  job_id BIGINT NOT NULL PRIMARY KEY,
  run INT UNSIGNED NOT NULL,
  holder BIGINT NOT NULL,
  worker INT NULL,
  started BIGINT NOT NULL,
  touched BIGINT NOT NULL,
  progress DOUBLE NULL,
  status VARCHAR(255) NULL,
  CONSTRAINT running_progress CHECK (progress IS NULL OR progress BETWEEN 0 AND 1)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_notice
-- A message to a holder about a job it holds. paused: a job that has not begun is to be given
-- back. workers: of no job; a host is to have so many as 'run' says. why: the reason that its
-- canceller gave; NULL: none.
CREATE TABLE nightshift_notice (
  holder BIGINT NOT NULL,
  job_id BIGINT NOT NULL,
  run INT UNSIGNED NOT NULL,
  kind ENUM('cancelled','paused','workers') NOT NULL,
  created BIGINT NOT NULL,
  why VARCHAR(255) NULL,
  PRIMARY KEY (holder, job_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_signal
-- Signals sent to a job; name '' is for any wait. A signal may come before the wait; of one
-- name the last counts. Deleted with the verdict of the run that was given it, if it is still
-- the same; a later signal is for the next wait.
CREATE TABLE nightshift_signal (
  job_id BIGINT NOT NULL,
  name VARCHAR(100) NOT NULL,
  value MEDIUMTEXT NOT NULL,
  sent BIGINT NOT NULL,
  PRIMARY KEY (job_id, name),
  CONSTRAINT signal_value_json CHECK (JSON_VALID(value))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_finished
-- History: every ended job with all columns needed to run it again. The key on (outcome,
-- finished_at) serves pruning and the newest-first listings. The queue is in it, so that rows of
-- others are passed by without being read. after_ids: as in job. phase to
-- state: the columns of a parked job that is to wait again. holder to worker: of the run that it
-- ended with, NULL: not known, or it ended while it did not run. started: when its handler began;
-- in a program, when it was claimed. worker: of a host, its number there.
CREATE TABLE nightshift_finished (
  id BIGINT NOT NULL PRIMARY KEY,
  queue_id INT NOT NULL,
  name VARCHAR(100) NOT NULL,
  payload MEDIUMTEXT NOT NULL,
  priority TINYINT UNSIGNED NOT NULL,
  outcome ENUM('done','dead','cancelled') NOT NULL,
  reason VARCHAR(255) NULL,
  run INT UNSIGNED NOT NULL,
  result MEDIUMTEXT NULL,
  error MEDIUMTEXT NULL,
  attempts INT UNSIGNED NOT NULL,
  polls INT UNSIGNED NOT NULL,
  crashes INT UNSIGNED NOT NULL,
  lost INT UNSIGNED NOT NULL,
  max_attempts INT UNSIGNED NOT NULL,
  max_polls INT UNSIGNED NULL,
  max_crashes INT UNSIGNED NOT NULL,
  backoff BIGINT NOT NULL,
  timeout BIGINT NOT NULL,
  deadline BIGINT NULL,
  created BIGINT NOT NULL,
  finished_at BIGINT NOT NULL,
  parent BIGINT NULL,
  root BIGINT NULL,
  on_fail ENUM('cancel','run') NOT NULL,
  ukey VARCHAR(190) NULL,
  nonce BIGINT NOT NULL,
  holder BIGINT NULL,
  started BIGINT NULL,
  worker SMALLINT UNSIGNED NULL,
  since BIGINT NOT NULL DEFAULT 0,
  decay TINYINT UNSIGNED NOT NULL DEFAULT 8,
  after_ids MEDIUMTEXT NULL,
  phase INT UNSIGNED NOT NULL DEFAULT 0,
  waits ENUM('fail','continue') NULL,
  state MEDIUMTEXT NULL,
  max_phases INT UNSIGNED NULL,
  group_key VARCHAR(190) NULL,
  KEY outcome (outcome, finished_at, id, queue_id),
  CONSTRAINT finished_reason CHECK ((outcome = 'dead') <= (reason IS NOT NULL)),
  CONSTRAINT finished_result CHECK (outcome = 'done' OR result IS NULL),
  CONSTRAINT finished_error CHECK (outcome <> 'done' OR error IS NULL)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_retention
-- How long ended jobs are kept. queue_id 0: of all queues that have no rule of their own. age: µs,
-- -1: for ever; most: so many of the queue, the newest, -1: any number. NULL: as all queues, or as
-- it is without a rule.
CREATE TABLE nightshift_retention (
  queue_id INT NOT NULL,
  outcome ENUM('done','dead','cancelled') NOT NULL,
  age BIGINT NULL,
  most BIGINT NULL,
  PRIMARY KEY (queue_id, outcome),
  CONSTRAINT retention_counts CHECK (age >= -1 AND most >= -1)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_attempt
-- A failed, crashed or lost attempt; or a run that is done, or a poll, and has printed: its log. Of
-- polls the last ten keep theirs. started, worker: as in finished.
CREATE TABLE nightshift_attempt (
  job_id BIGINT NOT NULL,
  run INT UNSIGNED NOT NULL,
  kind ENUM('failed','crashed','lost','printed') NOT NULL,
  ended BIGINT NOT NULL,
  holder BIGINT NULL,
  started BIGINT NULL,
  worker SMALLINT UNSIGNED NULL,
  error MEDIUMTEXT NULL,
  log MEDIUMTEXT NULL,
  PRIMARY KEY (job_id, run)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_unique_key
-- Held by a live job from its push to its end. held: when the period of its push is over, NULL: it
-- has none. until: its job is done before that, and the key is free from then on; NULL: its job
-- lives.
CREATE TABLE nightshift_unique_key (
  queue_id INT NOT NULL,
  ukey VARCHAR(190) NOT NULL,
  job_id BIGINT NOT NULL,
  held BIGINT NULL,
  until BIGINT NULL,
  PRIMARY KEY (queue_id, ukey),
  CONSTRAINT unique_key_until CHECK (until IS NULL OR until <= held)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_slot
-- A taken slot of a semaphore; a lock is a semaphore of one. The owner is a
-- running job, by the token of its claim, or else a holder. A row with an owner that is gone is a
-- free slot: it need not be found when its owner dies. token is
-- random and changes hands with the slot.
CREATE TABLE nightshift_slot (
  name VARCHAR(190) NOT NULL,
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
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_on_dead
-- The job to push when a job of this name is dead, as the scripts that were loaded last declare it.
-- queue NULL: the dead job's own. The unique key of a job so pushed is dead:ID:RUN, and no other
-- key begins so.
CREATE TABLE nightshift_on_dead (
  name VARCHAR(100) NOT NULL PRIMARY KEY,
  on_dead VARCHAR(100) NOT NULL,
  queue VARCHAR(64) NULL,
  CONSTRAINT on_dead_name_length CHECK (LENGTH(on_dead) BETWEEN 1 AND 100),
  CONSTRAINT on_dead_name_plain CHECK (on_dead NOT REGEXP '[[:cntrl:]]')
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_limit
-- What a queue's jobs may do at once and in a time; its claims go through admission. A claim that
-- admits has the row locked, so there is one at a time. running: places for its jobs. rate: so many
-- starts in rate_span µs; rate_window: counted in fixed windows, else by a bucket of so many tokens.
-- group_…: the same for each group.
-- ordered: a group's jobs run one after the other; fair: groups take turns. NULL: no such limit.
-- next_at: of a bucket, when all of its tokens are there again; of a window, its begin; used: its
-- starts so far. stopped: none starts before, as the job stopped_by has asked; 0: it is not
-- stopped. lifted: its jobs are on their way back to ready, and then the row is deleted.
CREATE TABLE nightshift_limit (
  queue_id INT NOT NULL PRIMARY KEY,
  running INT UNSIGNED NULL,
  rate INT UNSIGNED NULL,
  rate_span BIGINT NULL,
  rate_window BOOLEAN NOT NULL DEFAULT FALSE,
  group_running INT UNSIGNED NULL,
  group_rate INT UNSIGNED NULL,
  group_span BIGINT NULL,
  group_window BOOLEAN NOT NULL DEFAULT FALSE,
  ordered BOOLEAN NOT NULL DEFAULT FALSE,
  fair BOOLEAN NOT NULL DEFAULT FALSE,
  next_at BIGINT NOT NULL DEFAULT 0,
  used INT UNSIGNED NOT NULL DEFAULT 0,
  stopped BIGINT NOT NULL DEFAULT 0,
  stopped_by BIGINT NULL,
  lifted BOOLEAN NOT NULL DEFAULT FALSE,
  CONSTRAINT limit_rate_span CHECK ((rate IS NULL) = (rate_span IS NULL) AND rate_span > 0),
  CONSTRAINT limit_group_span CHECK ((group_rate IS NULL) = (group_span IS NULL) AND group_span > 0)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_group
-- A group of a limited queue with jobs in its backlog, or with a rate or a job that still counts.
-- Only a claim that admits writes here, and a verdict with stop = "group". rank to job_id: its best
-- job in the backlog, as in ready; job_id 0: it has none. served: when a job of it was admitted
-- last. next_at, used, stopped, stopped_by: as in limit. blocked: no claim looks at it before; 0: at
-- once; 1: the next claim does. head: the job that holds an ordered group, from its first start to
-- its end. Its row in the backlog has the ready_at 0.
CREATE TABLE nightshift_group (
  queue_id INT NOT NULL,
  group_key VARCHAR(190) NOT NULL,
  `rank` TINYINT UNSIGNED NOT NULL DEFAULT 255,
  ready_at BIGINT NOT NULL DEFAULT 0,
  job_id BIGINT NOT NULL DEFAULT 0,
  served BIGINT NOT NULL DEFAULT 0,
  next_at BIGINT NOT NULL DEFAULT 0,
  used INT UNSIGNED NOT NULL DEFAULT 0,
  stopped BIGINT NOT NULL DEFAULT 0,
  stopped_by BIGINT NULL,
  blocked BIGINT NOT NULL DEFAULT 0,
  head BIGINT NULL,
  PRIMARY KEY (queue_id, group_key),
  KEY best (queue_id, blocked, `rank`, ready_at, job_id),
  KEY turns (queue_id, blocked, served, ready_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_backlog
-- Claimable jobs of a limited queue, by group; '': of none. A claim moves them here out of ready, and
-- those that it admits out of here. rank: 0 in an ordered queue, where priority does not count. A row
-- with a missing job, or with another run than its job, is stale, as in ready.
CREATE TABLE nightshift_backlog (
  queue_id INT NOT NULL,
  group_key VARCHAR(190) NOT NULL,
  `rank` TINYINT UNSIGNED NOT NULL,
  ready_at BIGINT NOT NULL,
  job_id BIGINT NOT NULL,
  run INT UNSIGNED NOT NULL,
  alone BOOLEAN NOT NULL DEFAULT FALSE,
  kind INT UNSIGNED NOT NULL,
  PRIMARY KEY (queue_id, group_key, `rank`, ready_at, job_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_grant
-- A place under a limit, of one claim of a job. It counts while its lease stands; the verdict deletes
-- it. One that a claim left, of a holder that is gone, is deleted by the next that admits.
CREATE TABLE nightshift_grant (
  job_id BIGINT NOT NULL PRIMARY KEY,
  run INT UNSIGNED NOT NULL,
  queue_id INT NOT NULL,
  group_key VARCHAR(190) NOT NULL,
  lease BIGINT NOT NULL,
  since BIGINT NOT NULL,
  KEY of_group (queue_id, group_key)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_audit
-- Actions of people: a row for each, written by the transaction that does it. what: to what it was
-- done, and with which values; a job's payload is in none. job: the one that it is about. NULL: it is
-- not about one. jobs: how many it has changed. account: USER() of the session. host, pid: the
-- machine and the process. via: who acted; handler: code of a host. It is not read by anything that
-- runs jobs.
CREATE TABLE nightshift_audit (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at BIGINT NOT NULL,
  verb VARCHAR(24) NOT NULL,
  what VARCHAR(255) NOT NULL,
  job BIGINT NULL,
  jobs BIGINT NOT NULL,
  account VARCHAR(384) NOT NULL,
  host VARCHAR(255) NOT NULL,
  pid INT NOT NULL,
  via ENUM('c','lua','shell','page','handler') NOT NULL,
  KEY at (at),
  KEY verb (verb)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_mended
-- Counts, by kind of fault, the jobs and rows that were in no place, or in a wrong one, and
-- have been mended; last: when.
CREATE TABLE nightshift_mended (
  what VARCHAR(20) NOT NULL PRIMARY KEY,
  n BIGINT NOT NULL,
  last BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_node
-- One row at most: the node of a Galera cluster that writes, as wsrep_incoming_addresses has it.
-- Another node takes its place when it has left the cluster. On other servers there is no row.
CREATE TABLE nightshift_node (
  one TINYINT NOT NULL PRIMARY KEY,
  address VARCHAR(255) NOT NULL,
  since BIGINT NOT NULL,
  CONSTRAINT node_one CHECK (one = 1)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_minute
-- What has happened in a queue (0: in all of them) in so many minutes, 1, 15 or 120, from 'at' on.
-- The row of 0 minutes, at 0, has the sums since the tables were made. failed: attempts that
-- failed, crashed or were lost. waits: runs with a known wait, from the due instant to the start,
-- not of jobs that waited for other jobs. runs: those with a known time. waited, ran: the sums.
-- Handles add to the rows once a minute, so a process that is killed takes its last minute with
-- it. Pushes from SQL are not counted.
CREATE TABLE nightshift_minute (
  minutes SMALLINT NOT NULL,
  at BIGINT NOT NULL,
  queue_id INT NOT NULL,
  done BIGINT NOT NULL,
  failed BIGINT NOT NULL,
  dead BIGINT NOT NULL,
  cancelled BIGINT NOT NULL,
  pushed BIGINT NOT NULL,
  waits BIGINT NOT NULL,
  waited BIGINT NOT NULL,
  longest_wait BIGINT NOT NULL,
  runs BIGINT NOT NULL,
  ran BIGINT NOT NULL,
  longest_run BIGINT NOT NULL,
  PRIMARY KEY (minutes, at, queue_id),
  CONSTRAINT minute_minutes CHECK (minutes IN (0, 1, 15, 120))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_source
-- An application's tables: their rows are taken in as jobs. A queue of the table's name has
-- them; the unique key of a job is row:ID:ROW, and no other key begins so. mapping: as it was
-- given, for people. rate: rows a second that are taken in, NULL: no limit. runner: the holder
-- that last served it, seen: when.
CREATE TABLE nightshift_source (
  id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  tab VARCHAR(64) NOT NULL,
  mapping MEDIUMTEXT NOT NULL,
  rate DOUBLE NULL,
  runner BIGINT NULL,
  seen BIGINT NULL,
  UNIQUE KEY tab (tab),
  CONSTRAINT source_mapping_json CHECK (JSON_VALID(mapping))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_owed
-- Debts to a row of such a table: how often its job has failed more, and how it has ended.
-- NULL: it lives, and is due next at 'due'. Written with the verdict, by the session that ends
-- or fails the job, and only added to; deleted with the change of the row. open: the job went
-- without a start. retry: its row is to be as new. why: the words of the server, where it has
-- refused that change.
CREATE TABLE nightshift_owed (
  seq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  source INT NOT NULL,
  row_id BIGINT NOT NULL,
  job_id BIGINT NOT NULL,
  failures TINYINT UNSIGNED NOT NULL DEFAULT 0,
  due BIGINT NULL,
  outcome ENUM('done','dead','cancelled','open','retry') NULL,
  why VARCHAR(500) NULL,
  KEY of_row (source, row_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin

-- name: create_schedule
-- Recurring jobs. definition: when it ticks and which job that pushes, as JSON. next_at: its next
-- tick, NULL: paused, or it has none any more. version: when the scripts that declare it were
-- loaded, declared: when a host last said so; NULL: it is a program's. last_at, last_job: the
-- last tick that was pushed, and its job. skipped: ticks without a job of their own. error: why
-- its job could not be pushed, so that it has no ticks. lacked_by: the machine of a host that lacks
-- the zone, and has left its ticks to others. lacked_at: when it said so last.
CREATE TABLE nightshift_schedule (
  name VARCHAR(100) NOT NULL PRIMARY KEY,
  definition MEDIUMTEXT NOT NULL,
  next_at BIGINT NULL,
  paused BOOLEAN NOT NULL DEFAULT FALSE,
  version BIGINT NULL,
  declared BIGINT NULL,
  last_at BIGINT NULL,
  last_job BIGINT NULL,
  skipped BIGINT NOT NULL DEFAULT 0,
  error VARCHAR(500) NULL,
  lacked_by VARCHAR(255) NULL,
  lacked_at BIGINT NULL,
  KEY due (next_at),
  KEY declared (declared),
  CONSTRAINT schedule_name_length CHECK (LENGTH(name) BETWEEN 1 AND 100),
  CONSTRAINT schedule_definition_json CHECK (JSON_VALID(definition))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin
