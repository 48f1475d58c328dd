--- The tables of four published queues, to the letter, and a fifth that was described. Each has
-- its name, definition, a way to add rows, the mapping as Lua text, and the condition of done
-- rows. And such a table in a database of a test.

-- luacheck: no max line length

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

local published = {
  { "migration_task", read "examples/migration/seed.lua":match "CREATE TABLE.-=utf8",
    "(status, iteration, imageUrl) SELECT 'open', 0, CONCAT('http://localhost/', seq)",
    [[{ table = "migration_task", name = "task",
    status = { column = "status", open = "open", processing = "processing", done = "complete" },
    claimed_by = "claimedBy", claimed_at = "claimedAt", completed_at = "completedAt", attempts = "iteration",
    max_attempts = 20, overdue = "2m" }]],
    "status = 'complete' AND completedAt >= claimedAt" },
  { "job_queue", [[
CREATE TABLE IF NOT EXISTS job_queue(
id int(10) not null auto_increment,

updated timestamp not null,
started timestamp not null,

state ENUM('NEW', 'WORKING', 'DONE', 'ERROR' ) default 'NEW',

PRIMARY KEY ( id ),
KEY( STATE )
) ENGINE=Innodb;]],
    "(updated, started) SELECT NOW(), NOW()",
    [[{ table = "job_queue", name = "task", updated = "updated", started = "started",
    status = { column = "state", open = "NEW", processing = "WORKING", done = "DONE", failed = "ERROR" } }]],
    "state = 'DONE' AND started >= NOW() - INTERVAL 1 HOUR AND updated >= started" },
  { "queue_table", [[
CREATE TABLE IF NOT EXISTS `queue_table` (
`job_queue_id` INT AUTO_INCREMENT PRIMARY KEY,
`job_queue_parent_job_id` INT,
`job_queue_name` VARCHAR(255) NOT NULL,
`job_queue_status` ENUM('queued', 'in_progress', 'failed', 'processed') DEFAULT 'queued',
`job_queue_priority` TINYINT UNSIGNED NOT NULL DEFAULT 100,
`job_queue_data` JSON DEFAULT NULL,
`created_at` TIMESTAMP DEFAULT CURRENT_TIMESTAMP(),
`updated_at` TIMESTAMP DEFAULT CURRENT_TIMESTAMP() ON UPDATE CURRENT_TIMESTAMP(),
`job_retry_after` timestamp NULL DEFAULT NULL,
`job_attempts` tinyint(3) unsigned NOT NULL DEFAULT 30,
KEY `job_queue_status_idx` (`job_queue_status`),
KEY `job_queue_parent_job_id_idx` (`job_queue_parent_job_id`),
KEY idx_priority_id_covering (job_queue_priority DESC, job_queue_id ASC),
KEY (`job_queue_name`),
CONSTRAINT `job_queue_child_to_parent_foreign` FOREIGN KEY (`job_queue_parent_job_id`) REFERENCES `queue_table` (`job_queue_id`) ON UPDATE CASCADE ON DELETE CASCADE
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_ci;]],
    [[(job_queue_parent_job_id, job_queue_name, job_queue_data)
    SELECT IF(seq > 2, 1 + seq % 2, NULL), 'task', JSON_OBJECT('n', seq)]],
    [[{ table = "queue_table", name = "task", id = "job_queue_id",
    parent = "job_queue_parent_job_id",
    status = { column = "job_queue_status", open = "queued", processing = "in_progress", done = "processed",
      failed = "failed" },
    priority = { column = "job_queue_priority", decay = 1 }, retry_after = "job_retry_after",
    attempts_left = "job_attempts", max_attempts = 30 }]],
    "job_queue_status = 'processed' AND job_attempts BETWEEN 1 AND 30" },
  { "worker_queue", [[
CREATE TABLE IF NOT EXISTS worker_queue
(
id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
command TEXT NOT NULL,
is_done BOOLEAN NOT NULL DEFAULT FALSE,
failure_count SMALLINT DEFAULT 0
) ENGINE=InnoDB DEFAULT CHARSET=UTF8MB4;]],
    "(command) SELECT CONCAT('do ', seq)",
    [[{ table = "worker_queue", name = "task", attempts = "failure_count", max_attempts = 3,
    alone = true, status = { column = "is_done", open = false, done = true } }]],
    "is_done AND failure_count < 3" },
  -- A date of the last checkout, which is long ago for who has none, and a flag.
  { "checkout", [[
CREATE TABLE checkout (
id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
last_checkout TIMESTAMP NOT NULL DEFAULT '1970-01-02 00:00:00',
completed_at TIMESTAMP NULL,
KEY (last_checkout)
) ENGINE=InnoDB]],
    "(last_checkout) SELECT '1970-01-02 00:00:00'",
    [[{ table = "checkout", name = "task",
    status = { column = "last_checkout", open = "1970-01-02 00:00:00", processing = "now" },
    claimed_at = "last_checkout", completed_at = "completed_at", overdue = "2m" }]],
    "completed_at IS NOT NULL AND last_checkout >= NOW() - INTERVAL 1 HOUR" },
}

local handle

--- A new database for each test; `take` gets its handle, its URL, and a queue.
function published.database(take)
  with_database(function(db, q, url)
    handle = db
    take(db, url, q)
  end)
end

--- Runs a statement.
function published.all(sql, ...) return assert(handle._handle:execute(sql, ...)) end

--- Its first row.
function published.one(sql, ...) return published.all(sql, ...)[1] end

--- How many rows there are, or there are of those.
function published.count(name, which)
  return published.one(("SELECT COUNT(*) AS n FROM %s WHERE %s"):format(name, which or "TRUE")).n
end

--- Nothing of any row is left in our tables.
function published.nothing_left()
  for _, name in ipairs { "job", "unique_key", "owed", "lease" } do
    assert(published.count("nightshift_" .. name) == 0, name)
  end
end

--- Makes a table, with so many rows. Its mapping, with changes (false: leave it out), its name, and which
-- rows are done.
function published.make(i, rows, changes)
  local name, definition, columns, given, done = table.unpack(published[i])
  published.all(definition)
  if rows > 0 then published.all(("INSERT INTO %s %s FROM seq_1_to_%d"):format(name, columns, rows)) end
  local map = load("return " .. given)()
  for key, value in pairs(changes or {}) do map[key] = value or nil end
  return map, name, done
end

--- The same, adopted: the table, its name, which rows are done, and its mapping.
function published.open(i, rows, changes, log)
  local map, name, done = published.make(i, rows, changes)
  return assert(require "nightshift.source.table".new(handle, map, log)), name, done, map
end

--- Is it a failure with that code, and these words in its message?
function published.refused(code, words, value, message, got)
  assert(value == nil and got == code and message:find(words, 1, true), ("%s: %s (%s)"):format(value, message, got))
end

return published
