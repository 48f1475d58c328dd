--- Designs of queues in a database: tables like the published ones, with other lengths, defaults
-- and keys, and how each is adopted. The published ones to the letter are in
-- spec/designs/remedies_spec.lua.

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

return designs
