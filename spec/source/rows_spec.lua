-- Rows of adopted tables that are taken in as jobs: which runner gets one, and the columns that
-- tell of its job. And both when other programs change the row, lock it, or die.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local published = require "spec.support.designs".published
local source = require "nightshift.source.table"

local all, one, count, nothing_left = published.all, published.one, published.count, published.nothing_left
local handle, url
published.database(function(...) handle, url = ... end)

--- A published table with so many rows, adopted; the name of its key, and what it logs.
local function open(i, rows, changes)
  local events = {}
  local t, name, done, map = published.open(i, rows, changes, function(event, row)
    events[#events + 1] = event .. " " .. row
  end)
  return t, name, done, map.id or "id", events
end

local HANDLERS = "return { task = function(job) return job.row end }"

for i, published_table in ipairs(published) do
  describe("rows of " .. published_table[1], function()
    it("are claimed in order, each once, and are done with their verdicts", function()
      local t, name, done, key = open(i, 5)
      local first = one(("SELECT * FROM %s ORDER BY %s LIMIT 1"):format(name, key))
      local job = assert(t:claim())
      assert.same({ first[key], first[key], "task" }, { job.row, job.payload[key], job.name })
      local seen, n = {}, 1
      assert.is_true((job:ack()))
      assert.equal(1, count(name, done))
      repeat
        local jobs = assert(t:claim_many(2))
        for _, other in ipairs(jobs) do
          assert.is_nil(seen[other.row])
          seen[other.row], n = true, n + 1
          assert.is_true((other:ack()))
        end
      until #jobs == 0
      assert.same({ 5, 5 }, { n, count(name, done) })
      nothing_left()
    end)

    it("are worked off by hosts that do not know the table, and told of it by who does", function()
      local t, name, done = open(i, 20)
      local taken = 0
      repeat
        local more = assert(t:take(8))
        taken = taken + more
        assert.equal(0, host.drain(url, HANDLERS))
        assert.equal(more, assert(t:pay()))
      until more == 0
      assert.same({ 20, 20 }, { taken, count(name, done) })
      nothing_left()
    end)

    it("are given back when nobody has begun them", function()
      local t, name, _, key = open(i, 2)
      local before = all(("SELECT %s AS id FROM %s ORDER BY 1"):format(key, name))
      assert.equal(2, t:take(10))
      local kept = assert(t:claim())
      assert.equal(1, t:give_back())
      assert.equal(0, t:give_back())
      assert.is_true((kept:ack()))
      assert.equal(1, t:take(10))
      assert.equal(#before, count(name, "TRUE"))
      assert.equal(0, count("nightshift_finished", "outcome <> 'done'"))
    end)

    it("come back from a program that is killed", function()
      local t, name, done = open(i, 3)
      local n = assert(t:take(3))
      local p = proc.start { proc.lua, "-e", [[
      local handle = require "nightshift.core".open { url = os.getenv "NIGHTSHIFT_URL" }
      io.stdout:write(#handle:claim(os.getenv "NIGHTSHIFT_TABLE", 10), "\n")
      io.stdout:flush()
      handle:claim("none", 1, 60000000)]], env = { NIGHTSHIFT_URL = url, NIGHTSHIFT_TABLE = name } }
      p:wait_line("^" .. n)
      p:signal "KILL"
      p:wait()
      assert(handle:rescue { wait = "5s" })
      assert.equal(0, host.drain(url, HANDLERS))
      assert(t:pay())
      assert.equal(n, count(name, done))
      nothing_left()
    end)

    it("that somebody has locked are passed by, and told later", function()
      local t, name, done, key = open(i, 3)
      local locked = one(("SELECT %s AS id FROM %s ORDER BY 1 LIMIT 1"):format(key, name)).id
      local other <close> = assert(nightshift.open(url))
      assert(other._handle:begin())
      local lock = ("SELECT 1 FROM %s WHERE %s = ? FOR UPDATE"):format(name, key)
      assert(other._handle:execute(lock, locked))
      local job = assert(t:claim())
      assert.is_true(job.row ~= locked)
      assert(other._handle:execute(lock, job.row))
      assert.is_true((job:ack()))
      assert.equal(0, count(name, done))
      other._handle:rollback()
      assert.equal(1, t:pay())
      assert.equal(1, count(name, done))
    end)

    it("that are deleted end their jobs", function()
      local t, name, _, key = open(i, 1)
      local job = assert(t:claim())
      all("SET foreign_key_checks = 0")
      all(("DELETE FROM %s WHERE %s = ?"):format(name, key), job.row)
      assert.equal("STALE", (select(3, job:ack())))
      assert.equal("cancelled", handle:job(job.id).state)
      assert.equal(0, t:pay())
      nothing_left()
    end)
  end)
end

describe("a row that is given back", function()
  it("leaves no attempt and no signal of its job", function()
    local t = open(1, 1)
    local job = assert(t:claim())
    assert.is_true((job:fail("no", { retry_in = 0 })))
    assert(handle:signal(job.id, 1, "go"))
    assert.equal(1, t:give_back())
    assert.same({ status = "open", iteration = 1 }, one "SELECT status, iteration FROM migration_task")
    for _, name in ipairs { "attempt", "signal", "finished" } do
      assert.equal(0, count("nightshift_" .. name, "TRUE"), name)
    end
    nothing_left()
  end)
end)

describe("a failure", function()
  it("is counted with its verdict, and its job comes back", function()
    local t = open(1, 1)
    local job = assert(t:claim())
    assert.is_true((job:fail("no", { retry_in = 0 })))
    assert.same({ status = "processing", iteration = 1, claimedBy = "ns:" .. job.id },
      one "SELECT status, iteration, claimedBy FROM migration_task")
    local again = assert(t:claim())
    assert.same({ job.id, 2 }, { again.id, again.attempt })
    assert.is_true((again:ack()))
    assert.equal(1, one "SELECT iteration FROM migration_task".iteration)
  end)

  it("lowers a priority, counts down, and says when the next run is due", function()
    local t = open(3, 1)
    all "UPDATE queue_table SET job_attempts = 2"
    local job = assert(t:claim())
    assert.same({ 29, 30 }, { job.attempt, job.max_attempts })
    assert.is_true((job:fail("no", { retry_in = 3600 })))
    local row = one [[SELECT job_queue_status AS s, job_attempts AS n, job_queue_priority AS p,
      TIMESTAMPDIFF(SECOND, NOW(), job_retry_after) AS t FROM queue_table]]
    assert.same({ "in_progress", 1, 99 }, { row.s, row.n, row.p })
    assert.is_true(row.t > 3590 and row.t <= 3601, row.t)
    assert(handle:run_now(job.id))
    job = assert(t:claim())
    assert.equal(30, job.attempt)
    assert.same({ true, true }, { job:fail "no" })
    assert.same({ s = "failed", n = 0 }, one "SELECT job_queue_status AS s, job_attempts AS n FROM queue_table")
    nothing_left()
  end)

  it("uses attempts up where no status says so", function()
    local t = open(4, 1)
    for attempt = 1, 3 do
      local job = assert(t:claim())
      assert.equal(attempt, job.attempt)
      assert.is_true((job:fail("no", { retry_in = 0 })))
    end
    assert.same({ is_done = 0, failure_count = 3 }, one "SELECT is_done, failure_count FROM worker_queue")
    assert.is_nil(t:claim())
    nothing_left()
  end)

  it("of a row without attempts left does not come, because it is never run", function()
    local t = open(3, 2)
    all "UPDATE queue_table SET job_attempts = 0 WHERE job_queue_id = 1"
    assert.equal(2, assert(t:claim()).row)
    assert.is_nil(t:claim())
  end)
end)

describe("a row", function()
  it("may say which handler has it, and what it gets", function()
    local t = open(3, 1, { name = { column = "job_queue_name" }, payload = { column = "job_queue_data" } })
    all [[UPDATE queue_table SET job_queue_name = 'video.encode', job_queue_data = '{"a":[1,{}]}']]
    local job = assert(t:claim())
    assert.same({ "video.encode", { a = { 1, {} } } }, { job.name, job.payload })
  end)

  it("has columns of any name, and values of any text", function()
    all [[CREATE TABLE `sel``ect` (`the ``id` INT PRIMARY KEY, `order` VARCHAR(99) NOT NULL, `x?y` VARCHAR(64) NULL)]]
    local open_text, done_text = "a'b\\\" -- ?", "`; DROP TABLE x"
    all("INSERT INTO `sel``ect` VALUES (7, ?, NULL)", open_text)
    local t = assert(source.new(handle, { table = "sel`ect", id = "THE `ID", claimed_by = "X?Y",
      status = { column = "Order", open = open_text, processing = "?", done = done_text } }))
    local job = assert(t:claim())
    assert.same({ 7, open_text }, { job.payload["the `id"], job.payload.order })
    assert.equal("?", one "SELECT `order` AS o FROM `sel``ect`".o)
    assert.is_true((job:ack()))
    assert.equal(done_text, one "SELECT `order` AS o FROM `sel``ect`".o)
  end)

  it("that others have taken ends its job, and is left to them", function()
    local t, _, _, _, events = open(1, 2)
    local jobs = assert(t:claim_many(2))
    all("UPDATE migration_task SET claimedBy = 'theirs' WHERE id = ?", jobs[1].row)
    assert.equal(1, t:rescue())
    assert.equal("cancelled", handle:job(jobs[1].id).state)
    assert.equal("STALE", (select(3, jobs[1]:ack())))
    assert.is_true((jobs[2]:ack()))
    assert(t:pay())
    assert.same({ { status = "processing", claimedBy = "theirs" } },
      all("SELECT status, claimedBy FROM migration_task WHERE id = ?", jobs[1].row))
    assert.equal("row.lost " .. jobs[1].row, events[1])
    nothing_left()
  end)

  it("that others have had for too long comes back, with an attempt more", function()
    local t = open(1, 2)
    all [[UPDATE migration_task SET status = 'processing', claimedBy = 'theirs',
      claimedAt = NOW() - INTERVAL IF(id = 1, 60, 121) SECOND]]
    assert.equal(1, t:rescue())
    assert.same({ { status = "processing", iteration = 0 }, { status = "open", iteration = 1 } },
      all "SELECT status, iteration FROM migration_task ORDER BY id")
  end)

  it("that the server refuses to change is left alone, and those behind it go on", function()
    local t, name, done, _, events = open(1, 3)
    all [[CREATE TRIGGER refuses BEFORE UPDATE ON migration_task FOR EACH ROW
      IF NEW.id = 1 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF]]
    assert.equal(2, t:take(5))
    assert.same({ "row.refused 1" }, events)
    all "DROP TRIGGER refuses"
    all [[CREATE TRIGGER refuses BEFORE UPDATE ON migration_task FOR EACH ROW
      IF NEW.id = 2 AND NEW.status = 'complete' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not done'; END IF]]
    assert.equal(0, host.drain(url, HANDLERS))
    assert.equal(1, t:pay())
    assert.same({ 1, "not done" }, { count(name, done), one "SELECT why FROM nightshift_owed".why:match "not done" })
  end)

  it("is one commit with the caller's own", function()
    local t, name, done = open(1, 1)
    local job = assert(t:claim())
    handle:transaction(function()
      assert(job:ack())
      return nil, "no"
    end)
    assert.equal(0, count(name, done))
    assert(handle:transaction(function(tx)
      assert.equal("STATE", (select(3, t:claim())))
      assert(tx:ack(job))
      return true
    end))
    assert.equal(1, count(name, done))
    nothing_left()
  end)
end)

describe("a retry of the job of a row", function()
  it("opens the row with all its attempts, for a job of its own", function()
    local t = open(3, 1)
    local job = assert(t:claim())
    assert(job:discard "no")
    assert.is_true(handle:retry(job.id))
    assert.is_true(handle:retry(job.id))
    assert.equal("dead", handle:job(job.id).state)
    assert.equal(1, t:pay())
    assert.same({ s = "queued", n = 30 }, one "SELECT job_queue_status AS s, job_attempts AS n FROM queue_table")
    local again = assert(t:claim())
    assert.same({ 1, 1 }, { again.row, again.attempt })
    local none, message, code = handle:retry(job.id)
    assert.same({ nil, ("job %d cannot run again: its row has job %d, which has not finished"):format(job.id, again.id),
      "DUPLICATE" }, { none, message, code })
    assert(again:ack())
    none, message, code = handle:retry(again.id)
    assert.same({ nil, ("job %d stands for a row that is done: only dead rows are retried"):format(again.id), "STATE" },
      { none, message, code })
    nothing_left()
  end)

  it("comes after the end of that job, whoever writes that", function()
    local t, name = open(4, 1)
    assert.equal(1, t:take(1))
    local id = one "SELECT id FROM nightshift_job".id
    assert(handle:cancel(id))
    assert.is_true(handle:retry(id))
    assert.equal(1, t:pay())
    assert.same({ n = 3 }, one "SELECT failure_count AS n FROM worker_queue")
    assert.equal(1, t:pay())
    assert.same({ n = 0 }, one "SELECT failure_count AS n FROM worker_queue")
    assert.equal(1, count(name, "TRUE"))
    nothing_left()
  end)

  it("with all below it is one of the row, which has other children then", function()
    local t = open(4, 1)
    local job = assert(t:claim())
    local child = assert(job:spawn("child", 1))
    assert(job:wait())
    assert(handle:cancel(child))
    assert.equal("dead", handle:job(job.id).state)
    assert.equal(1, handle:retry(job.id, { tree = true }))
    assert.equal("cancelled", handle:job(child).state)
    assert.equal(2, assert(t:pay()) + assert(t:pay()))
    assert.equal(1, assert(t:claim()).row)
  end)

  it("goes with its transaction", function()
    local t = open(4, 1)
    local job = assert(t:claim())
    assert(job:discard "no")
    handle:transaction(function()
      assert(handle:retry(job.id))
      return nil, "no"
    end)
    nothing_left()
    assert(handle:transaction(function() return handle:retry(job.id) end))
    assert.equal(1, t:pay())
  end)
end)

it("many that take rows in at once take each of them once", function()
  local t, name, done = open(1, 300)
  local PROGRAM = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(os.getenv "NIGHTSHIFT_URL"))
  local map = load("return " .. io.read "a")()
  local t = assert(require "nightshift.source.table".new(db, map))
  local n, empty = 0, 0
  repeat
    local jobs = assert(t:claim_many(7))
    for _, job in ipairs(jobs) do
      assert(job:ack())
      n = n + 1
    end
    empty = #jobs == 0 and empty + 1 or 0
  until empty == 3
  print("did " .. n)]]
  local list, sum = {}, 0
  for i = 1, 4 do
    list[i] = proc.start { proc.lua, fixture.file("many.lua", PROGRAM), stdin = published[1][4],
      env = { NIGHTSHIFT_URL = url } }
  end
  for _, p in ipairs(list) do
    sum = sum + p:wait_line("^did (%d+)", 60)
    assert.equal(0, p:wait())
  end
  assert.same({ 300, 300, 300 }, { sum, count(name, done), count("nightshift_finished", "TRUE") })
  assert(t:pay())
  nothing_left()
end)
