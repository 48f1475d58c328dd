--- Designs of queues in a database, and how each is adopted: four published ones, and a fifth that
-- was described. `designs` has tables like those, with other lengths, defaults and keys;
-- `designs.published` has them to the letter.

local nightshift = require "nightshift"

local designs = {}

--- Workers on many machines claim blocks of tasks under a claim id.
designs.migration_task = {
  table = [[CREATE TABLE migration_task (
    id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    status ENUM('open','processing','complete') NOT NULL DEFAULT 'open',
    iteration INT NOT NULL DEFAULT 0,
    claimedBy VARCHAR(36) NULL,
    claimedAt DATETIME NULL,
    completedAt DATETIME NULL,
    imageUrl VARCHAR(255) NOT NULL,
    KEY (status))]],
  row = "INSERT INTO migration_task (imageUrl) VALUES ('http://localhost/a.png')",
  map = {
    table = "migration_task", name = "migrate",
    status = { column = "status", open = "open", processing = "processing", done = "complete" },
    claimed_by = "claimedBy", claimed_at = "claimedAt", completed_at = "completedAt", attempts = "iteration",
    overdue = 120,
  },
}

--- A controller forks one worker per job, which keeps the row locked.
designs.job_queue = {
  table = [[CREATE TABLE job_queue (
    id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    updated TIMESTAMP NULL,
    started TIMESTAMP NULL,
    state ENUM('NEW','WORKING','DONE','ERROR') NOT NULL DEFAULT 'NEW',
    KEY (state))]],
  row = "INSERT INTO job_queue () VALUES ()",
  map = {
    table = "job_queue", updated = "updated", started = "started",
    status = { column = "state", open = "NEW", processing = "WORKING", done = "DONE", failed = "ERROR" },
  },
}

--- Jobs with parents, priorities and attempts that are counted down.
designs.queue_table = {
  table = [[CREATE TABLE queue_table (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    parent_id BIGINT UNSIGNED NULL,
    name VARCHAR(100) NOT NULL,
    status ENUM('queued','in_progress','failed','processed') NOT NULL DEFAULT 'queued',
    priority INT NOT NULL DEFAULT 100,
    data JSON NULL,
    retry_after DATETIME NULL,
    attempts TINYINT UNSIGNED NOT NULL DEFAULT 30,
    KEY (status, priority),
    FOREIGN KEY (parent_id) REFERENCES queue_table (id))]],
  row = [[INSERT INTO queue_table (name, data) VALUES ('resize', '{"w":[1,2]}')]],
  map = {
    table = "queue_table",
    status = {
      column = "status", open = "queued", processing = "in_progress", done = "processed", failed = "failed",
    },
    priority = { column = "priority", decay = 1 }, retry_after = "retry_after", attempts_left = "attempts",
    max_attempts = 30, parent = "parent_id",
  },
}

--- Commands with failures that are counted up to a limit.
designs.worker_queue = {
  table = [[CREATE TABLE worker_queue (
    id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    command VARCHAR(255) NOT NULL,
    is_done BOOLEAN NOT NULL DEFAULT FALSE,
    failure_count TINYINT NOT NULL DEFAULT 0,
    KEY (is_done))]],
  row = "INSERT INTO worker_queue (command) VALUES ('echo')",
  map = {
    table = "worker_queue", status = { column = "is_done", open = false, done = true },
    attempts = "failure_count", max_attempts = 3, alone = true,
  },
}

--- The date of the last checkout tells.
designs.checkout = {
  table = [[CREATE TABLE checkout (
    id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    last_checkout DATETIME NULL,
    done_at DATETIME NULL,
    by_whom VARCHAR(64) NOT NULL DEFAULT '',
    KEY (last_checkout))]],
  row = "INSERT INTO checkout () VALUES ()",
  map = {
    table = "checkout", status = { column = "last_checkout", open = nightshift.null, processing = "now" },
    claimed_by = "by_whom", claimed_at = "last_checkout", completed_at = "done_at", overdue = 120,
  },
}

designs.names = { "checkout", "job_queue", "migration_task", "queue_table", "worker_queue" }

--- The mapping of a design, with changes.
---@param name string
---@param changes table?
---@return table
function designs.map(name, changes)
  local map = {}
  for key, value in pairs(designs[name].map) do map[key] = value end
  for key, value in pairs(changes or {}) do map[key] = value end
  return map
end

--- A value as Lua text.
local function text_of(value)
  if value == nightshift.null then return "require('nightshift').null" end
  if type(value) ~= "table" then return ("%q"):format(value) end
  local parts = {}
  for key, item in pairs(value) do parts[#parts + 1] = ("[%q] = %s"):format(key, text_of(item)) end
  return "{ " .. table.concat(parts, ", ") .. " }"
end

--- A file that returns the mapping, for `nightshift work --adopt`.
---@param name string
---@param changes table?
---@return string path
function designs.file(name, changes)
  return fixture.file("adopt-" .. name .. ".lua", "return " .. text_of(designs.map(name, changes)))
end

--- Forgets all jobs, and what rows are owed.
local function forget(db)
  for _, name in ipairs { "job", "ready", "scheduled", "unique_key", "owed" } do
    assert(db:execute("DELETE FROM nightshift_" .. name .. (name == "ready" and " WHERE job_id > 0" or "")))
  end
end

--- Makes the table anew, with so many rows; there is no job any more.
---@param db nightshift.Db
---@param name string
---@param rows integer
function designs.create(db, name, rows)
  assert(db:execute("DROP TABLE IF EXISTS " .. name))
  assert(db:execute(designs[name].table))
  forget(db)
  for _ = 1, rows do assert(db:execute(designs[name].row)) end
end

--- Adds rows, all alike, in one statement.
---@param db nightshift.Db
---@param name string
---@param rows integer
function designs.fill(db, name, rows)
  local columns, values = designs[name].row:match "^INSERT INTO [%w_]+ %((.*)%) VALUES %((.*)%)$"
  if columns == "" then columns, values = "id", "NULL" end
  assert(db:execute(("INSERT INTO %s (%s) SELECT %s FROM seq_1_to_%d"):format(name, columns, values, rows)))
end

-- ------------------------------------------------------------ to the letter

-- Each published table has its name, definition, a way to add rows, the mapping as Lua text, and
-- the condition of done rows. And such a table in a database of a test.

-- A file of the source tree that this one is of.
local function read(path)
  local root = debug.getinfo(1, "S").source:match "^@(.*)spec/support/designs.lua$"
  local file <close> = assert(io.open(root .. path))
  return file:read "a"
end

-- luacheck: push no max line length
local published = {
  { "migration_task", read "examples/migration/tools.lua":match "CREATE TABLE.-=utf8",
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
-- luacheck: pop

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

--- Makes a table, with so many rows. Its mapping, with changes (false: leave it out), its name, and
-- which rows are done.
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

designs.published = published

return designs
