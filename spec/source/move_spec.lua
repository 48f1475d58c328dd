-- Rows that leave an adopted table: ended ones are deleted or moved to another table, and open
-- ones become jobs of another queue.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local published = require "spec.support.designs".published
local source = require "nightshift.source.table"

local all, one, open, count, refused = published.all, published.one, published.open, published.count, published.refused
local handle, url
published.database(function(...) handle, url = ... end)

local function left(name, key)
  local list = {}
  for i, row in ipairs(all(("SELECT %s AS id FROM %s ORDER BY 1"):format(key or "id", name))) do list[i] = row.id end
  return list
end

local function work(t)
  for job in t:jobs() do assert(job:ack()) end
end

--- Runs a program in which t is the table, and n how many rows have gone.
local function program(table_name, lines)
  return proc.start { proc.lua, fixture.file("moves.lua", ([[
    local nightshift = require "nightshift"
    local db = assert(nightshift.open(os.getenv "NIGHTSHIFT_URL"))
    local t = assert(require "nightshift.source.admin".open(db, "%s"))
    print "begins"
    io.stdout:flush()
    %s
    print("did " .. n)]]):format(table_name, lines)), env = { NIGHTSHIFT_URL = url } }
end

describe("rows that have ended", function()
  it("are deleted, and no others", function()
    local t = open(4, 3)
    work(t)
    all "INSERT INTO worker_queue (command, failure_count) VALUES ('open', 0), ('dead', 3)"
    assert.equal(2, t:prune { limit = 2 })
    assert.same({ 3, 4, 5 }, left "worker_queue")
    assert.equal(1, t:prune())
    assert.equal(0, t:prune())
    assert.same({ 4, 5 }, left "worker_queue")
  end)

  it("are deleted when they are dead, and that is asked for", function()
    local t = open(4, 3)
    assert(assert(t:claim()):ack())
    assert(assert(t:claim()):ack())
    assert(assert(t:claim()):discard "no")
    all "INSERT INTO worker_queue (command, failure_count) VALUES ('dead for others', 3), ('open', 0)"
    refused("INVALID", "nothing says when rows of 'worker_queue' were dead", t:prune { state = "dead", older = "1h" })
    assert.equal(2, t:prune { state = "dead" })
    assert.equal(2, t:prune { state = "done" })
    assert.same({ 5 }, left "worker_queue")
  end)

  it("are deleted when they are old enough, as a column says", function()
    local t = open(1, 3)
    work(t)
    all "UPDATE migration_task SET completedAt = UTC_TIMESTAMP() - INTERVAL id HOUR"
    local map = load("return " .. published[1][4])()
    map.time_zone = "+00:00"
    t = assert(source.new(handle, map))
    assert.equal(0, t:prune { older = "1d" })
    assert.equal(2, t:prune { older = "90m" })
    assert.same({ 1 }, left "migration_task")
    refused("INVALID", "nothing says when rows of 'worker_queue' were done", open(4, 1):prune { older = 1 })
    t = open(2, 2)
    for job in t:jobs() do assert(job:discard "no") end
    all "UPDATE job_queue SET updated = NOW() - INTERVAL id HOUR"
    assert.equal(1, t:prune { state = "dead", older = "90m" })
    assert.equal(0, t:prune { older = 0 })
  end)

  it("are deleted by thousands, past what somebody has locked", function()
    local t = open(4, 4000)
    all "UPDATE worker_queue SET is_done = id % 2"
    local other <close> = assert(nightshift.open(url))
    assert(other._handle:begin())
    assert(other:execute "SELECT id FROM worker_queue WHERE id IN (1, 2, 1001) FOR UPDATE")
    assert.equal(1998, t:prune())
    assert(other._handle:commit())
    assert.equal(2, t:prune())
    assert.equal(2000, count("worker_queue", "NOT is_done"))
  end)

  it("stay while another row has them for its parent; children go first", function()
    local t = open(3, 0)
    all "INSERT INTO queue_table (job_queue_name) SELECT 'task' FROM seq_1_to_5"
    all "UPDATE queue_table SET job_queue_parent_job_id = job_queue_id - 1 WHERE job_queue_id IN (2, 3, 5)"
    all "UPDATE queue_table SET job_queue_status = 'processed' WHERE job_queue_id < 5"
    assert.equal(3, t:prune())
    assert.same({ 4, 5 }, left("queue_table", "job_queue_id"))
    assert.equal(5, assert(t:claim()).row)
  end)

  it("are moved, with all that they say, or stay where they are", function()
    local t = open(1, 4)
    refused("NOT_FOUND", "CREATE TABLE `migration_archive` LIKE `migration_task`",
      t:prune { into = "migration_archive" })
    refused("INVALID", "cannot be moved", t:prune { into = "migration_task" })
    all "CREATE TABLE migration_archive LIKE migration_task"
    all "CREATE TABLE migration_narrow (id INT PRIMARY KEY, status VARCHAR(20))"
    all "CREATE TABLE migration_aria ENGINE=Aria AS SELECT * FROM migration_task WHERE FALSE"
    refused("INVALID", "'migration_narrow' has no column 'iteration'", t:prune { into = "migration_narrow" })
    refused("INVALID", "is not an InnoDB table", t:prune { into = "migration_aria" })
    assert(assert(t:claim()):ack())
    assert(assert(t:claim()):ack())
    local rows = all "SELECT * FROM migration_task WHERE status = 'complete' ORDER BY id"
    assert.equal(2, t:prune { into = "migration_archive" })
    assert.same(rows, all "SELECT * FROM migration_archive ORDER BY id")
    assert.same({ 3, 4 }, left "migration_task")
    -- what is there already is not overwritten, and nothing is lost
    work(t)
    all "INSERT INTO migration_archive SELECT * FROM migration_task WHERE id = 4"
    refused("DUPLICATE", "'migration_archive' has one of these rows already: delete it there, or in 'migration_task'",
      t:prune { into = "migration_archive" })
    assert.same({ 3, 4 }, left "migration_task")
    assert.same({ 1, 2, 4 }, left "migration_archive")
    all "DELETE FROM migration_archive WHERE id = 4"
    all "ALTER TABLE migration_archive ADD extra INT AS (iteration + 1) PERSISTENT"
    assert.equal(2, t:prune { into = "migration_archive" })
    assert.same({ 1, 2, 3, 4 }, left "migration_archive")
  end)

  it("are moved to no table by any text, and pruned outside of transactions", function()
    local t = open(4, 1)
    for _, words in ipairs { "' OR '1'='1", "%", "`", "a`b", "t` -- ", "?" } do
      assert.equal("NOT_FOUND", select(3, t:prune { into = words }), words)
    end
    refused("INVALID", "cannot be moved", t:prune { into = "a\0b" })
    refused("INVALID", "a table's name has", t:prune { into = "" })
    refused("INVALID", "older", t:prune { older = -1 })
    for _, call in ipairs { function() t:prune { into = 5 } end, function() t:prune(1) end } do
      assert.is_truthy(select(2, pcall(call)):find "move_spec.lua:%d+: nightshift: ")
    end
    assert(handle:transaction(function()
      refused("STATE", "inside a transaction", t:prune())
      return true
    end))
  end)

  it("stay while they have a job, or are owed something", function()
    local t = open(4, 3)
    assert.equal(2, t:take(2))
    all "UPDATE worker_queue SET is_done = TRUE" -- by hand
    assert(handle:cancel(one "SELECT MIN(id) AS id FROM nightshift_job".id))
    assert.equal(1, t:prune())
    assert.same({ 1, 2 }, left "worker_queue")
    assert.equal(1, t:rescue())
    assert.equal(2, t:prune())
  end)

  it("are in one of two tables, whoever dies while they are moved", function()
    local ROWS = 20000
    local t = open(1, ROWS)
    all "CREATE TABLE migration_archive LIKE migration_task"
    all "UPDATE migration_task SET status = 'complete', completedAt = NOW()"
    repeat
      local list = {}
      for i = 1, 2 do
        list[i] = program("migration_task", "local n = assert(t:prune { into = 'migration_archive' })")
      end
      local before = count "migration_archive"
      list[1]:wait_line "^begins"
      eventually(function() return count "migration_archive" > before or count "migration_task" == 0 end)
      for _, p in ipairs(list) do
        p:signal "KILL"
        p:wait()
      end
      assert.equal(ROWS, count "(SELECT id FROM migration_archive UNION ALL SELECT id FROM migration_task) x")
    until count "migration_archive" > ROWS / 4
    assert(t:prune { into = "migration_archive" })
    eventually(function()
      assert(t:prune { into = "migration_archive" })
      return count "migration_archive" == ROWS
    end)
    assert.equal(0, count "migration_task")
  end)
end)

describe("open rows", function()
  for i, published_table in ipairs(published) do
    it("of " .. published_table[1] .. " become jobs of another queue, and others stay", function()
      local t = open(i, 5, i == 3 and { parent = false } or nil)
      local key = t.key
      local rows = {}
      for _, row in ipairs(all(("SELECT * FROM %s"):format(t.name))) do rows[row[key]] = row end
      local jobs = assert(t:claim_many(2))
      assert(jobs[1]:ack())
      assert.same({ jobs = 3, left = 1 }, t:drain { into = "post" })
      assert.equal(2, count(t.name))
      assert.same({ jobs = 0, left = 1 }, t:drain { into = "post" })
      assert.equal(3, count("nightshift_job", "ukey IS NULL AND name = 'task'"))
      assert(jobs[2]:ack())
      assert.equal(0, host.drain(url, "return { task = function(job) return job.row == nil and job.payload end }"))
      for _, done in ipairs(handle:jobs { queue = "post", state = "done" }) do
        local was = handle:job(done.id).result
        assert.equal(rows[was[key]][key], was[key])
        rows[was[key]] = nil
      end
      assert.same({ true, true }, { rows[jobs[1].row] ~= nil, rows[jobs[2].row] ~= nil })
      rows[jobs[1].row], rows[jobs[2].row] = nil, nil
      assert.is_nil(next(rows))
    end)
  end

  local function create(columns, rows)
    all("CREATE TABLE mails (id BIGINT PRIMARY KEY AUTO_INCREMENT, recipient VARCHAR(99), sent INT NOT NULL DEFAULT 0"
      .. columns .. ")")
    all("INSERT INTO mails " .. rows)
  end

  local function adopt(changes)
    local map = { table = "mails", name = "mail.send", alone = true,
      status = { column = "sent", open = 0, done = 1, failed = 9 } }
    for key, value in pairs(changes) do map[key] = value end
    return assert(source.new(handle, map))
  end

  it("keep priority, attempts and their time, as far as a job has room for them", function()
    create(", prio INT NULL, tries INT NULL, later DATETIME NULL", [[(id, recipient, prio, tries, later)
      VALUES (1, 'a', 7, 2, NULL), (2, 'b', -3, NULL, NULL),
      (3, 'c', 999, 3, UTC_TIMESTAMP() + INTERVAL 3 HOUR), (4, 'd', NULL, 0, '2000-01-01'), (5, 'e', 1, 9, NULL)]])
    local t = adopt { priority = { column = "prio", decay = 3 }, attempts = "tries", max_attempts = 4,
      retry_after = "later", time_zone = "+00:00" }
    assert.equal(4, assert(t:drain { into = "post" }).jobs)
    local found = {}
    for i, j in ipairs(all [[SELECT priority, decay, attempts, max_attempts,
        CAST(ROUND((due - created) / 60000000) AS SIGNED) AS wait FROM nightshift_job
        ORDER BY JSON_VALUE(payload, '$.id')]]) do
      found[i] = { j.priority, j.decay, j.attempts, j.max_attempts, j.wait }
    end
    assert.same({ { 7, 3, 2, 4, 0 }, { 0, 3, 0, 4, 0 }, { 255, 3, 3, 4, 180 }, { 100, 8, 0, 4, 0 } }, found)
    assert.equal(1, count "nightshift_scheduled")
    assert.same({ 5 }, left "mails") -- it has no attempts left
  end)

  it("that are too big, no text, or locked stay, and are counted", function()
    create(", data BLOB NULL, body MEDIUMTEXT NULL", [[(id, recipient, data, body) VALUES (1, 'no text', UNHEX('ff00'),
      NULL), (2, 'big', NULL, REPEAT('x', 2000000)), (3, 'fine', 'text', 'y'), (4, 'locked', NULL, NULL)]])
    local t = adopt {}
    local other <close> = assert(nightshift.open(url))
    assert(other._handle:begin())
    assert(other:execute "SELECT id FROM mails WHERE id = 4 FOR UPDATE")
    assert.same({ jobs = 1, left = 3 }, t:drain { into = "post" })
    assert.same({ 1, 2, 4 }, left "mails")
    other._handle:rollback()
    assert.same({ jobs = 1, left = 2 }, t:drain { into = "post" })
  end)

  it("are drained into a queue, with no parents, and outside of transactions", function()
    create(", boss INT NULL", "(recipient) VALUES ('a')")
    local t = adopt {}
    refused("INVALID", "queue name is empty", t:drain { into = "" })
    refused("INVALID", "wait for their parents", adopt { parent = "boss" }:drain { into = "post" })
    assert.is_truthy(select(2, pcall(t.drain, t)):find "drain: 'into' is missing")
    assert(handle:transaction(function()
      refused("STATE", "inside a transaction", t:drain { into = "post" })
      return true
    end))
    assert.equal(1, count "mails")
  end)

  it("are a row or a job, once, whoever drains and dies, while others work on them", function()
    local ROWS = 12000
    local t = open(1, ROWS)
    local n = 0
    repeat
      local list, before = {}, count "migration_task"
      for i = 1, 2 do list[i] = program("migration_task", "local n = assert(t:drain { into = 'post' }).jobs") end
      list[1]:wait_line "^begins"
      repeat
        for _, job in ipairs(assert(t:claim_many(20))) do
          assert(job:ack())
          n = n + 1
        end
      until count "migration_task" < before
      for _, p in ipairs(list) do
        p:signal "KILL"
        p:wait()
      end
    until count "migration_task" < ROWS / 2
    assert(t:give_back()) -- what it has taken in ahead
    eventually(function()
      assert(t:give_back())
      assert(t:drain { into = "post" })
      return count("migration_task", "status = 'open'") == 0
    end)
    assert(t:pay())
    assert.same({ n, n }, { count("migration_task", "status = 'complete'"), count "migration_task" })
    assert.equal(ROWS - n, count "nightshift_job")
    assert.equal(ROWS - n, one "SELECT COUNT(DISTINCT JSON_VALUE(payload, '$.id')) AS n FROM nightshift_job".n)
    assert.equal(0, count("migration_task t JOIN nightshift_job j ON t.id = JSON_VALUE(j.payload, '$.id')"))
  end)
end)
