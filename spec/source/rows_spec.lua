-- Rows of adopted tables that are taken in as jobs: which runner gets one, and the columns that
-- tell of its job. And both when other programs change the row, lock it, or die. Verdicts on them:
-- the row is written in the transaction that settles the job, by as few statements as a batch of
-- jobs needs. Hosts that serve adopted tables: rows are taken in, run and written, whatever becomes
-- of hosts, workers and programs beside them.

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local options = require "nightshift.options"
local proc = require "spec.support.proc"
local source = require "nightshift.source.table"
local published = require "spec.support.designs".published

describe("rows that are taken in:", function()
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
        local jobs = assert(handle:queue(name):claim_many(10))
        for _, job in ipairs(jobs) do assert(job:ack()) end
        assert(t:pay())
        assert.same({ n, n }, { #jobs, count(name, done) })
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

  describe("rows of all published tables", function()
    it("are worked off by hosts that do not know the tables, and told of it by who does", function()
      local tables, taken = {}, {}
      for i in ipairs(published) do
        local t, name, done = open(i, 10)
        tables[i], taken[i] = { t = t, name = name, done = done }, 0
      end
      for _ = 1, 3 do -- rows with parents come after these
        local more = {}
        for i, one_of in ipairs(tables) do more[i] = assert(one_of.t:take(5)) end
        local status, log = host.drain(url, HANDLERS)
        assert.equal(0, status, log)
        for i, one_of in ipairs(tables) do
          assert.equal(more[i], assert(one_of.t:pay()))
          taken[i] = taken[i] + more[i]
        end
      end
      assert.same({ 10, 10, 10, 10, 10 }, taken)
      for _, one_of in ipairs(tables) do
        assert.equal(0, one_of.t:take(5))
        assert.equal(10, count(one_of.name, one_of.done), one_of.name)
      end
      nothing_left()
    end)
  end)

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
      local unfinished = "job %d cannot run again: its row has job %d, which has not finished"
      assert.same({ nil, unfinished:format(job.id, again.id),
        "DUPLICATE" }, { none, message, code })
      assert(again:ack())
      none, message, code = handle:retry(again.id)
      local done_already = "job %d stands for a row that is done: only dead rows are retried"
      assert.same({ nil, done_already:format(again.id), "STATE" },
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
end)

describe("verdicts on rows:", function()
  local all, one, count, nothing_left = published.all, published.one, published.count, published.nothing_left
  local make, open = published.make, published.open
  local handle, url
  published.database(function(...) handle, url = ... end)

  local function refuse(which)
    all(([[CREATE TRIGGER refuses BEFORE UPDATE ON migration_task FOR EACH ROW
      IF NEW.status = 'complete' AND (%s) THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not done'; END IF]])
      :format(which))
  end

  --- Ends jobs in one transaction.
  local function ack_all(jobs)
    local ok, message, code = handle:transaction(function(tx)
      for _, job in ipairs(jobs) do tx:ack(job) end
      return true
    end)
    return ok, message, code
  end

  describe("a verdict", function()
    it("stands when the server refuses the change of its row, which is owed and tried again", function()
      local t, name, done = open(1, 1)
      refuse "TRUE"
      assert.is_true((assert(t:claim()):ack()))
      assert.equal(0, count(name, done))
      assert.same({ "done", "not done" }, { one "SELECT outcome FROM nightshift_owed".outcome,
        one "SELECT why FROM nightshift_owed".why:match "not done" })
      assert.equal(0, t:pay())
      all "DROP TRIGGER refuses"
      t.unpaid = {} -- a minute later
      assert.equal(1, t:pay())
      assert.equal(1, count(name, done))
      nothing_left()
    end)

    it("of one row that is refused, or locked, keeps no other of its transaction", function()
      local t, name, done = open(1, 9)
      refuse "NEW.id = 4"
      local jobs = assert(t:claim_many(9))
      local other <close> = assert(nightshift.open(url))
      assert(other._handle:begin())
      assert(other._handle:execute "SELECT 1 FROM migration_task WHERE id = 6 FOR UPDATE")
      assert(ack_all(jobs))
      assert.same({ 7, 2, 9 }, { count(name, done), count("nightshift_owed", "TRUE"),
        count("nightshift_finished", "outcome = 'done'") })
      other._handle:rollback()
      all "DROP TRIGGER refuses"
      assert.equal(2, t:pay())
      assert.equal(9, count(name, done))
      nothing_left()
    end)

    it("waits for no session that has locked the table, to alter it say", function()
      local t, name, done = open(1, 4)
      local jobs = assert(t:claim_many(4))
      local other <close> = assert(nightshift.open(url))
      assert(other._handle:execute "LOCK TABLES migration_task WRITE")
      assert.is_true((jobs[1]:ack()))
      assert.same({ true, false }, { jobs[2]:fail("no", { retry_in = 3600 }) })
      assert(ack_all { jobs[3], jobs[4] })
      assert.equal(4, count("nightshift_owed", "why IS NULL"))
      assert(other._handle:execute "UNLOCK TABLES")
      assert.equal(4, t:pay())
      assert.same({ 3, 1 }, { count(name, done), count(name, "status = 'processing' AND iteration = 1") })
    end)

    it("is STALE when another program has the row, and ends the job; so is all of its transaction", function()
      local t, name, done = open(1, 3)
      local jobs = assert(t:claim_many(3))
      all "UPDATE migration_task SET claimedBy = 'theirs' WHERE id IN (1, 2)"
      assert.equal("STALE", (select(3, ack_all(jobs))))
      assert.same({ 0, 3 }, { count(name, done), count("nightshift_job", "TRUE") })
      assert.equal("STALE", (select(3, jobs[1]:fail "no")))
      assert.equal("STALE", (select(3, jobs[2]:again(0))))
      assert.same({ "cancelled", "the row was taken or changed" }, { handle:job(jobs[1].id).state,
        handle:job(jobs[1].id).reason })
      assert.is_true((jobs[3]:ack()))
      assert.equal(2, count(name, "claimedBy = 'theirs' AND iteration = 0"))
      nothing_left()
    end)

    it("writes its row at once, whatever it is", function()
      local t = open(3, 2)
      local failed, given_up = table.unpack(assert(t:claim_many(2)))
      assert(failed:fail("no", { retry_in = 3600 }))
      assert(given_up:discard "no")
      assert.same({ "in_progress", 29, "failed", 30 }, { one "SELECT job_queue_status AS s FROM queue_table".s,
        one "SELECT job_attempts AS n FROM queue_table".n,
        one "SELECT job_queue_status AS s FROM queue_table WHERE job_queue_id = 2".s,
        one "SELECT job_attempts AS n FROM queue_table WHERE job_queue_id = 2".n })
      assert.equal(0, count("nightshift_owed", "TRUE"))
    end)

    it("costs few statements, and a batch of them as many", function()
      local function status(which)
        return tonumber(assert(handle._handle:execute(("SHOW SESSION STATUS LIKE '%s'"):format(which)))[1].Value)
      end
      local t = open(1, 440)
      local function cost(jobs, end_all)
        local statements, written = status "Questions", status "Handler_write"
        assert(end_all(jobs))
        return status "Questions" - statements - 2, status "Handler_write" - written
      end
      local function ack(jobs) return jobs[1]:ack() end
      cost(assert(t:claim_many(1)), ack) -- all is prepared
      local statements, written = cost(assert(t:claim_many(1)), ack)
      assert.is_true(statements <= 12, statements)
      assert.is_true(written <= 2, written) -- a row of history, and the temporary one of a list
      local few, many = cost(assert(t:claim_many(2)), ack_all), cost(assert(t:claim_many(400)), ack_all)
      assert.is_true(few <= 16 and many <= few + 4, few .. " " .. many)
    end)
  end)

  describe("rows", function()
    it("are taken in ahead by a program that uses them up, and are open again when it goes", function()
      local function rows(n) return { open = 60 - n, processing = n } end
      local function found()
        local states = { open = 0, processing = 0 }
        for _, row in ipairs(all "SELECT status, COUNT(*) AS n FROM migration_task GROUP BY status") do
          states[row.status] = row.n
        end
        return states
      end
      local map = make(1, 60)
      local its = assert(nightshift.open(url))
      local t = assert(source.new(its, map))
      assert(t:claim())
      assert.same(rows(1), found())
      for _ = 1, 20 do assert(t:claim()) end
      assert.is_true(found().processing > 21)
      its:close()
      assert.same(rows(0), found())
      do
        local own = assert(nightshift.open(url))
        local other = assert(source.new(own, map))
        for _ = 1, 5 do assert(other:claim()) end
      end
      collectgarbage()
      collectgarbage()
      assert.same(rows(0), found())
      local p = proc.start { proc.lua, "-e", [[
      local db = assert(require "nightshift".open(os.getenv "NIGHTSHIFT_URL"))
      local map = load("return " .. os.getenv "NIGHTSHIFT_MAP")()
      local t = assert(require "nightshift.source.table".new(db, map))
      for _ = 1, 5 do assert(t:claim()) end]], env = { NIGHTSHIFT_URL = url, NIGHTSHIFT_MAP = published[1][4] } }
      assert.equal(0, p:wait())
      assert.same(rows(0), found())
      nothing_left()
    end)

    it("come as they are waited for", function()
      local t, name, done = open(1, 0)
      local p = proc.start { proc.lua, "-e", [[
      local db = assert(require "nightshift".open(os.getenv "NIGHTSHIFT_URL"))
      for i = 1, 3 do
        assert(db:execute "DO SLEEP(0.1)")
        assert(db:execute "INSERT INTO migration_task (status, iteration, imageUrl) VALUES ('open', 0, '')")
      end]], env = { NIGHTSHIFT_URL = url } }
      local n = 0
      for job in t:jobs { wait = 20 } do
        assert(job:ack())
        n = n + 1
        if n == 3 then break end
      end
      p:wait()
      assert.same({ 3, 3 }, { n, count(name, done) })
      nothing_left()
    end)

    -- Each statement of the program may be cut: it gives its verdicts again until they are told.
    for _, i in ipairs(os.getenv "NIGHTSHIFT_LONG" and { 1, 4 } or { 1 }) do
      it("of " .. published[i][1] .. " are done once, whatever statement a KILL QUERY hits", function()
        local map_name, _, _, given = table.unpack(published[i])
        local _, name, done = make(i, 300)
        all [[CREATE TABLE effect (id INT PRIMARY KEY, times INT NOT NULL)]]
        local p = proc.start { proc.lua, "-e", [[
        local nightshift = require "nightshift"
        local db = assert(nightshift.open(os.getenv "NIGHTSHIFT_URL"))
        local map = load("return " .. os.getenv "NIGHTSHIFT_MAP")()
        local t
        repeat t = require "nightshift.source.table".new(db, map) until t
        print("session " .. db:execute "SELECT CONNECTION_ID() AS id"[1].id)
        io.stdout:flush()
        local function insist(fn)
          while true do
            local ok, message, code = fn()
            if ok then return ok end
            assert(code == "BUSY" or code == "GONE" or code == "SQL" or code == "STALE", message)
            if code == "STALE" then return false end
          end
        end
        local round = 0
        while true do
          round = round + 1
          local jobs = insist(function() return t:claim_many(round % 5 + 1) end)
          if #jobs == 0 then break end
          if round % 2 == 0 then
            insist(function()
              return db:transaction(function(tx)
                for _, job in ipairs(jobs) do
                  tx:execute("INSERT INTO effect VALUES (?, 1) ON DUPLICATE KEY UPDATE times = times + 1", job.row)
                  tx:ack(job)
                end
                return true
              end)
            end)
          else
            for _, job in ipairs(jobs) do
              if insist(function() return job:ack() end) then
                insist(function() return db:execute("INSERT IGNORE INTO effect VALUES (?, 1)", job.row) end)
              end
            end
          end
        end
        print "over"]], env = { NIGHTSHIFT_URL = url, NIGHTSHIFT_MAP = given } }
        assert.equal(map_name, name)
        local session = p:wait_line("^session (%d+)", 20)
        repeat
          pcall(all, "KILL QUERY " .. session)
          all "DO SLEEP(0.001)"
        until p:ended()
        assert.equal(0, p:wait())
        eventually(function()
          local t = assert(source.new(handle, load("return " .. given)()))
          for _, job in ipairs(assert(t:claim_many(100))) do assert(job:ack()) end
          assert(t:pay())
          return count(name, done) == 300
        end, 20)
        assert.same({ 0, 300 }, { count("effect", "times <> 1"), count("nightshift_finished", "outcome = 'done'") })
        assert(handle:rescue()) -- rows of leases of which the last verdict was cut
        nothing_left()
      end)
    end
  end)

  -- With innodb_rollback_on_timeout a row that is locked costs the whole transaction.
  describe("where a lock wait ends the transaction", function()
    it("a verdict stands when another session has locked its row, and so do those beside it", function()
      local server = db.server "innodb_rollback_on_timeout=ON\n"
      local there = server:fresh()
      local its <close> = assert(nightshift.open(there))
      local other <close> = assert(nightshift.open(there))
      assert(its:execute(published[1][2]))
      assert(its:execute("INSERT INTO migration_task " .. published[1][3] .. " FROM seq_1_to_3"))
      local map = load("return " .. published[1][4])()
      local t = assert(source.new(its, map))
      local jobs = assert(t:claim_many(3))
      assert(other._handle:begin())
      assert(other._handle:execute "SELECT 1 FROM migration_task WHERE id < 3 FOR UPDATE")
      assert(jobs[1]:ack())
      assert(its:transaction(function(tx)
        tx:ack(jobs[2])
        tx:ack(jobs[3])
        return true
      end))
      local function statuses() return #assert(its:execute "SELECT 1 FROM migration_task WHERE status = 'complete'") end
      assert.equal(1, statuses())
      other._handle:rollback()
      assert.equal(2, t:pay())
      assert.equal(3, statuses())
    end)
  end)
end)

-- Jobs that stand for rows of adopted tables. Each road that a job may take to a failure or to
-- its end leaves its row one debt, in the transaction that writes it.
describe("debts of rows:", function()
  describe("a job of a row", function()
    local handle, q, url, name
    with_database(function(...) handle, q, url, name = ... end)

    local function all(sql, ...) return assert(handle:execute(sql, ...)) end

    --- Pushes a job that stands for a row of the first source.
    local function push(row, opts, job)
      local entry = assert(options.entry("push", job or "task", { row = row }, opts))
      entry.unique = "row:1:" .. row
      return assert(handle._handle:push("q", { entry }))[1]
    end

    --- What a row is owed, in words: "failures outcome", in order.
    local function owed(row)
      local list = {}
      for i, debt in ipairs(all("SELECT failures, outcome FROM nightshift_owed WHERE source = 1 AND row_id = ? "
        .. "ORDER BY seq", row)) do
        list[i] = debt.failures .. " " .. (debt.outcome or "lives")
      end
      return list
    end

    local function claim() return assert(q:claim()) end

    local SCRIPT = [[return {
      task = function(job) return job.row end,
      bad = function(job) return job:fail("no", { retry_in = 3600 }) end,
      worst = function(job) return job:discard "no" end,
      killer = function() os.execute "kill -9 $PPID" end,
    }]]

    it("knows which, in a program and in a host, and no other job does", function()
      push(7)
      local job = claim()
      assert.equal(7, job.row)
      assert(job:ack())
      local id = push(9223372036854775807)
      local plain = assert(q:push("task", 1, { unique = "rows:1:7" }))
      assert.equal(0, host.drain(url, SCRIPT))
      assert.equal(9223372036854775807, handle:job(id).result)
      assert.is_nil(handle:job(plain).result)
      assert.equal(0, all([[SELECT COUNT(*) AS n FROM nightshift_owed
        WHERE row_id NOT IN (7, 9223372036854775807)]])[1].n)
    end)

    it("has a key that nobody else may give", function()
      local says = "push: unique begins with 'row:', as those of adopted rows do; choose another beginning"
      assert.same({ nil, says, "INVALID" },
        { q:push("task", 1, { unique = "row:1:7" }) })
      assert.equal("INVALID", select(3, q:push("task", 1, { unique = { key = "row:", on_conflict = "keep" } })))
      for _, key in ipairs { '"row:1:7"', '{"key": "row:1:7", "on_conflict": "keep"}' } do
        assert.is_false((pcall(db.sql,
          ([[CALL nightshift_push('q', 'task', '1', '{"unique": %s}')]]):format(key), name)))
      end
      assert.equal(0, all("SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
    end)

    it("is taken in once, whatever else is pushed with it", function()
      push(7)
      local entries = {}
      for i = 1, 3 do
        entries[i] = assert(options.entry("push", "task", i))
        entries[i].unique = "row:1:" .. ({ 8, 7, 9 })[i]
      end
      local none, message, code = handle._handle:push("q", entries)
      assert.same({ nil, "DUPLICATE" }, { none, code }, message)
      assert.equal(1, all("SELECT COUNT(*) AS n FROM nightshift_unique_key")[1].n)
    end)

    it("is owed once when it is done, alone or among many, with or without history", function()
      push(1)
      assert(claim():ack())
      assert.same({ "0 done" }, owed(1))
      for row = 2, 40 do push(row) end
      for _, job in ipairs(assert(q:claim_many(39))) do assert(job:ack()) end
      for row = 41, 80 do push(row) end
      assert.equal(0, host.drain(url, SCRIPT, { "--history", "failed", "--drain-within", "500ms" }))
      assert.equal(40, all("SELECT COUNT(*) AS n FROM nightshift_finished")[1].n)
      for row = 2, 80 do assert.same({ "0 done" }, owed(row), row) end
    end)

    it("is owed each failure, with the time of the next run, and the end", function()
      local id = push(1, { max_attempts = 2 })
      assert(claim():fail("no", { retry_in = 3600 }))
      assert.same({ "1 lives" }, owed(1))
      local due = all("SELECT due FROM nightshift_job WHERE id = ?", id)[1].due
      assert.equal(due, all "SELECT due FROM nightshift_owed"[1].due)
      assert(handle:run_now(id))
      assert(claim():fail "no")
      assert.same({ "1 lives", "1 dead" }, owed(1))
      push(2)
      assert(claim():discard "no")
      assert.same({ "0 dead" }, owed(2))
      push(3, { deadline = 0 })
      assert.is_nil((assert(q:claim_many(5))[1]))
      eventually(function() return owed(3)[1] end)
      assert.same({ "0 dead" }, owed(3))
    end)

    it("is owed nothing by what is no failure and no end", function()
      local id = push(1)
      assert(claim():release())
      assert(claim():again(0))
      local job = claim()
      assert(job:progress(0.5, "half"))
      assert(job:spawn "child")
      assert(job:wait())
      assert(handle:pause(id))
      assert(handle:resume(id))
      assert.same({}, owed(1))
      assert.equal("waiting", handle:job(id).state)
    end)

    it("is owed its cancel, also of a tree, and of what waited for it", function()
      assert(handle:cancel(push(1)))
      assert.same({ "0 cancelled" }, owed(1))
      local first = push(2)
      local second = push(3, { after = { first } })
      push(4, { after = { second } })
      assert(handle:cancel(first))
      for row = 2, 4 do assert.same({ "0 cancelled" }, owed(row), row) end
      local top = push(5)
      for row = 6, 9 do push(row, { parent = top }) end
      assert.equal(5, handle:cancel(top, { tree = true }))
      for row = 5, 9 do assert.same({ "0 cancelled" }, owed(row), row) end
      push(10, { after = { first } })
      assert.same({ "0 cancelled" }, owed(10))
    end)

    it("is owed its end when a child of it fails", function()
      push(1)
      local job = claim()
      assert(job:spawn "bad")
      assert(job:wait())
      assert(claim():discard "no")
      assert.same({ "0 dead" }, owed(1))
    end)

    it("is owed nothing by a transaction that is rolled back", function()
      push(1)
      local job = claim()
      handle:transaction(function(tx)
        assert(tx:ack(job))
        return nil, "no"
      end)
      assert.same({}, owed(1))
      assert(handle:transaction(function(tx)
        assert(tx:ack(job))
        return true
      end))
      assert.same({ "0 done" }, owed(1))
    end)

    it("is owed a failure when its holder dies, and when it kills its worker", function()
      push(1)
      local p = proc.start { proc.lua, "-e", [[
      local handle = require "nightshift.core".open { url = os.getenv "NIGHTSHIFT_URL" }
      io.stdout:write(#handle:claim("q", 10), "\n")
      io.stdout:flush()
      handle:claim("none", 1, 60000000)]], env = { NIGHTSHIFT_URL = url } }
      assert.equal("1", p:wait_line "^(%d)")
      p:signal "KILL"
      p:wait()
      assert(handle:rescue { wait = "5s" })
      assert.same({ "1 lives" }, owed(1))
      local job = claim()
      assert.equal(1, job.attempts) -- the handler is told of as many failures as the row
      assert(job:ack())
      assert.same({ "1 lives", "0 done" }, owed(1))
      push(2, { max_crashes = 2 }, "killer")
      local h = host.start(url, SCRIPT)
      eventually(function() return #owed(2) == 2 end)
      assert.same({ "1 lives", "1 dead" }, owed(2))
      push(3, { max_attempts = 1, max_crashes = 2 }, "killer")
      eventually(function() return #owed(3) > 0 end)
      assert.same({ "1 dead" }, owed(3)) -- that was its last attempt
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("waits for nobody who has locked what its row is owed", function()
      push(1)
      assert(claim():fail("no", { retry_in = 0 }))
      local other <close> = assert(require "nightshift.core".open { url = url })
      assert(other:begin())
      assert(other:execute "SELECT * FROM nightshift_owed FOR UPDATE")
      assert(claim():ack())
      assert.same({ "1 lives", "0 done" }, owed(1))
      assert(other:rollback())
    end)

    -- How many statements a plain push, claim and ack are, and how many rows they write.
    it("costs others nothing", function()
      local function status(which)
        return tonumber(assert(handle:execute(("SHOW SESSION STATUS LIKE '%s'"):format(which)))[1].Value)
      end
      local function cost(act)
        local least = { math.huge, math.huge }
        for _ = 1, 20 do -- what is prepared once, and signs of life, come with some
          local statements, rows = status "Com_stmt_execute", status "Handler_write"
          act()
          least[1] = math.min(least[1], status "Com_stmt_execute" - statements)
          least[2] = math.min(least[2], status "Handler_write" - rows)
        end
        return least
      end
      local function run(opts)
        return cost(function()
          assert(q:push("plain", 1, opts))
          assert(claim():ack())
        end)
      end
      assert.same({ plain = { 5, 4 }, keyed = { 5, 5 } }, { plain = run(), keyed = run { unique = "k" } })
    end)
  end)
end)

-- ----- hosts

describe("a host with an adopted table", function()
  local all, one, how_many, nothing_left = published.all, published.one, published.count, published.nothing_left
  local handle, q, url
  published.database(function(...) handle, url, q = ... end)

  local function count(name, state)
    local status = designs[name].map.status
    local value = status[state]
    if value == true or value == false then value = value and 1 or 0 end
    return one(("SELECT COUNT(*) AS n FROM %s WHERE %s = ?"):format(name, status.column), value).n
  end

  --- Writes a line when a row begins, and does what is given.
  local function handlers(folder, more)
    return ([[
    local function note(text)
      local file <close> = assert(io.open(%q .. "/starts", "a"))
      file:write(text, "\n")
    end
    local function run(job) note(job.row) %s end
    return { migrate = run, job_queue = run, queue_table = run, worker_queue = run, checkout = run }]])
      :format(folder, more or "")
  end

  local function starts(folder)
    local ids, file = {}, io.open(folder .. "/starts")
    for line in file and file:lines() or function() end do ids[#ids + 1] = tonumber(line) end
    if file then file:close() end
    return ids
  end

  --- Waits until no row begins for that many seconds; how many have.
  local function rests(folder, seconds)
    return eventually(function()
      local before = #starts(folder)
      nst.sleep(seconds)
      return #starts(folder) == before and before
    end)
  end

  local function args(name, more)
    local list = { "--adopt", designs.file(name) }
    return table.move(more or {}, 1, #(more or {}), 3, list)
  end

  local function stop(h, signal)
    h:signal(signal or "TERM")
    assert.equal(0, h:wait(20))
  end

  it("drains each table as it was published", function()
    local more, maps = { "--drain" }, {}
    for i, published_table in ipairs(published) do
      published.make(i, 50)
      maps[i] = published_table[4]
    end
    table.move({ "--adopt", fixture.file("maps.lua", "return {" .. table.concat(maps, ",\n") .. "}") }, 1, 2, 2, more)
    local status, log = host.drain(url, "return { task = function() end }", more)
    assert.equal(0, status, log)
    for _, published_table in ipairs(published) do
      assert.equal(50, how_many(published_table[1], published_table[5]), published_table[1])
    end
    nothing_left()
  end)

  it("gives back at once what a killed host had of each table", function()
    local more = { "--workers", "15" }
    for _, name in ipairs(designs.names) do
      designs.create(handle, name, 3)
      table.move({ "--adopt", designs.file(name) }, 1, 2, #more + 1, more)
    end
    local folder, other = fixture.dir(), fixture.dir()
    local first = host.start(url, handlers(folder, "require 'nightshift.core'.sleep(1000)"), more)
    eventually(function() return #starts(folder) == 15 end)
    local second = host.start(url, handlers(other), more)
    nst.sleep(0.6)
    assert.equal(0, #starts(other))
    local killed = nightshift.clock()
    first:signal "KILL"
    eventually(function() return #starts(other) == 15 end)
    assert.is_true(nightshift.clock() - killed < proc.limit(9)) -- by the round: 10 s
    eventually(function() return how_many("nightshift_job", "TRUE") + how_many("nightshift_owed", "TRUE") == 0 end)
    local rows = starts(other)
    table.sort(rows)
    assert.equal("111112222233333", table.concat(rows))
    stop(second)
  end)

  for _, name in ipairs { "migration_task", "queue_table", "job_queue" } do
    it("counts one attempt, at once, for a worker that is killed: " .. name, function()
      designs.create(handle, name, 2)
      local folder = fixture.dir()
      local h = host.start(url, handlers(folder, [[
      local mark = io.open("]] .. folder .. [[/killed")
      if job.row == 1 and not mark then
        io.open("]] .. folder .. [[/killed", "w"):close()
        os.execute("kill -9 $PPID")
      end
      local file <close> = assert(io.open("]] .. folder .. [[/attempts", "a"))
      file:write(job.row, " ", job.attempt, "\n")]]), args(name))
      eventually(function() return count(name, "done") == 2 end)
      assert.equal(3, #starts(folder))
      local told = {}
      for line in io.lines(folder .. "/attempts") do told[#told + 1] = line end
      table.sort(told)
      assert.same({ "1 2", "2 1" }, told)
      local map = designs[name].map
      if map.attempts then
        assert.equal(1, one(("SELECT %s AS n FROM %s WHERE id = 1"):format(map.attempts, name)).n)
      elseif map.attempts_left then
        assert.equal(29, one(("SELECT %s AS n FROM %s WHERE id = 1"):format(map.attempts_left, name)).n)
      end
      stop(h)
    end)
  end

  it("ends a row whose attempts are used up by deaths of its workers, and runs it no more", function()
    designs.create(handle, "queue_table", 1)
    local column = designs.queue_table.map.attempts_left
    all(("UPDATE queue_table SET %s = 2"):format(column))
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder, 'os.execute("kill -9 $PPID")'),
      { "--adopt", designs.file("queue_table", { max_crashes = 10 }), "--workers", "2" })
    eventually(function() return count("queue_table", "failed") == 1 end)
    assert.equal(0, one(("SELECT %s AS n FROM queue_table"):format(column)).n)
    assert.equal(2, #starts(folder))
    local job = handle:jobs { queue = "queue_table", state = "dead" }[1]
    assert.same({ "failed", 30, 2 }, { job.reason, job.attempts, job.crashes })
    nothing_left()
    stop(h)
  end)

  it("counts failures, waits, and ends a row at last", function()
    designs.create(handle, "queue_table", 1)
    all "UPDATE queue_table SET attempts = 3"
    local folder = fixture.dir()
    local status, log = host.drain(url, handlers(folder, "return job:fail('no', { retry_in = 0.05 })"),
      args("queue_table", { "--drain" }))
    assert.equal(0, status, log)
    assert.equal(3, #starts(folder))
    assert.same({ status = "failed", attempts = 0 }, one "SELECT status, attempts FROM queue_table")
    assert.equal(2, #host.events(log, "job.failed"))
    assert.equal(1, #host.events(log, "job.dead"))
    nothing_left()
  end)

  it("keeps a row that has failed for as long, where no column says until when", function()
    designs.create(handle, "migration_task", 3)
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder, "if job.row == 1 and job.attempt == 1 then "
      .. "return job:fail('later', { retry_in = 3 }) end"), args "migration_task")
    eventually(function() return count("migration_task", "done") == 2 end)
    assert.equal("processing", one "SELECT status FROM migration_task WHERE id = 1".status)
    eventually(function() return one "SELECT iteration FROM migration_task WHERE id = 1".iteration == 1 end)
    eventually(function() return count("migration_task", "done") == 3 end)
    assert.equal(4, #starts(folder))
    stop(h)
  end)

  it("has children of rows, and rows that wait for signals", function()
    designs.create(handle, "migration_task", 1)
    local h = host.start(url, [[return {
      migrate = function(job)
        if job.phase == 0 then
          job:spawn("part", { 1 }, { queue = "migration_task" })
          return job:wait { signal = "go" }
        end
        return job.signal
      end,
      part = function() return "made" end }]], args "migration_task")
    local id
    eventually(function()
      local row = one "SELECT job_id FROM nightshift_unique_key"
      id = row and row.job_id
      return id and handle:job(id) and handle:job(id).state == "waiting"
    end)
    assert.equal("processing", one "SELECT status FROM migration_task".status)
    assert(handle:signal(id, 7, "go"))
    eventually(function() return count("migration_task", "done") == 1 end)
    assert.equal("done", handle:job(id).state)
    stop(h)
  end)

  it("writes a row that somebody has locked when that is over, and the others at once", function()
    designs.create(handle, "migration_task", 6)
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder, "require 'nightshift.core'.sleep(1)"), args "migration_task")
    eventually(function() return #starts(folder) >= 1 end)
    assert(handle:transaction(function(tx)
      assert(tx:execute "SELECT * FROM migration_task WHERE id = 1 FOR UPDATE")
      eventually(function() return count("migration_task", "done") == 5 end)
      return true
    end))
    eventually(function() return count("migration_task", "done") == 6 end)
    stop(h)
  end)

  it("begins nothing while people pause the table, and gives back what was not begun", function()
    designs.create(handle, "migration_task", 120)
    local folder = fixture.dir()
    local script = handlers(folder, "require 'nightshift.core'.sleep(0.08)")
    local a, b = host.start(url, script, args "migration_task"), host.start(url, script, args "migration_task")
    eventually(function() return #starts(folder) >= 10 end)
    assert.equal(0, (proc.nightshift({ "pause", "migration_task" }, url)))
    assert.is_true(rests(folder, 0.7) < 120)
    eventually(function() return count("migration_task", "processing") == 0 end)
    assert.equal(#starts(folder), count("migration_task", "done"))
    assert.equal(0, (proc.nightshift({ "resume", "migration_task" }, url)))
    eventually(function() return count("migration_task", "done") == 120 end, 60)
    assert.equal(120, #starts(folder))
    stop(a)
    stop(b)
  end)

  it("begins nothing while every queue is paused", function()
    designs.create(handle, "migration_task", 10)
    assert(handle:pause_all())
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder), args "migration_task")
    h:wait_line("adopted.paused", 20)
    assert.same({}, starts(folder))
    assert(handle:resume_all())
    eventually(function() return count("migration_task", "done") == 10 end)
    stop(h)
  end)

  it("gives back at its end what was not begun", function()
    designs.create(handle, "migration_task", 50)
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder, "require 'nightshift.core'.sleep(0.2)"), args "migration_task")
    eventually(function() return #starts(folder) >= 4 end)
    stop(h)
    assert.equal(0, count("migration_task", "processing"))
    assert.equal(#starts(folder), count("migration_task", "done"))
    nothing_left()
  end)

  it("serves queues beside the tables when they are named", function()
    designs.create(handle, "migration_task", 3)
    local ids = assert(q:push_many { { "plain", 1 }, { "plain", 2 } })
    local script = handlers(fixture.dir()):gsub("return { ", "return { plain = function(job) return job.id end, ")
    local status, log = host.drain(url, script, args("migration_task", { "--drain", "--queues", q.name }))
    assert.equal(0, status, log)
    assert.equal(3, count("migration_task", "done"))
    for _, id in ipairs(ids) do assert.equal("done", assert(handle:job(id)).state) end
  end)

  it("leaves queues alone when none is named", function()
    designs.create(handle, "migration_task", 1)
    local id = assert(q:push("migrate", 1))
    local status, log = host.drain(url, handlers(fixture.dir()), args("migration_task", { "--drain" }))
    assert.equal(0, status, log)
    assert.equal("ready", assert(handle:job(id)).state)
    assert.equal(1, count("migration_task", "done"))
  end)

  it("says which handler is missing, and takes in nothing for it", function()
    designs.create(handle, "migration_task", 1)
    local status, log = host.drain(url, "return { other = function() end }", args("migration_task", { "--drain" }))
    assert.equal(0, status, log)
    assert.same("migrate", host.events(log, "adopted.no_handler")[1].handler)
    assert.equal(1, count("migration_task", "open"))
  end)

  it("leaves the machine to the host that is there, with --single, and says so", function()
    designs.create(handle, "migration_task", 1)
    local script, single = handlers(fixture.dir()), args("migration_task", { "--single" })
    local first, second = host.start(url, script, single), host.spawn(url, script, single)
    assert.equal(0, second:wait(20))
    local _, err = second:text()
    assert.equal("nightshift: --single: another host of this database runs on this machine\n", err)
    local free = host.start(url, script, args "migration_task") -- as it likes
    stop(first)
    second = host.spawn(url, script, single)
    assert.equal(0, second:wait(20))
    assert.equal(err, select(2, second:text()))
    stop(free)
    first = host.start(url, script, single)
    first:signal "KILL"
    first:wait(20)
    stop(host.start(url, script, single))
  end)

  it("says which index is missing", function()
    designs.create(handle, "queue_table", 1)
    designs.fill(handle, "queue_table", 3000)
    all "UPDATE queue_table SET status = 'processed' WHERE id > 1"
    all "ANALYZE TABLE queue_table"
    local status, log = host.drain(url, handlers(fixture.dir()), args("queue_table", { "--drain" }))
    assert.equal(0, status, log)
    assert.truthy(log:find("event=adopted.index", 1, true), log)
  end)

  it("takes no more rows in a second than people say", function()
    designs.create(handle, "migration_task", 30)
    assert(assert(handle:adopt(designs.map "migration_task")):tune { rate = 10 })
    local began = nightshift.clock()
    local status, log = host.drain(url, handlers(fixture.dir()), args("migration_task", { "--drain" }))
    assert.equal(0, status, log)
    assert.is_true(nightshift.clock() - began > 2, nightshift.clock() - began)
    assert.equal(30, count("migration_task", "done"))
  end)

  it("waits, when it drains, for rows that are due soon, and says for which", function()
    designs.create(handle, "queue_table", 1)
    all "UPDATE queue_table SET retry_after = NOW() + INTERVAL 4 SECOND"
    local status, log = host.drain(url, handlers(fixture.dir()), args("queue_table", { "--drain" }))
    assert.equal(0, status, log)
    assert.equal(1, count("queue_table", "done"))
    local waits = host.events(log, "drain.waits")
    assert.same({ 1, "queue_table" }, { #waits, waits[1].table })
    assert.truthy(waits[1].next:find "^%d+%-%d+%-%d+T%d+:%d+:%d+Z$", waits[1].next)
  end)

  it("takes in rows of the names that hosts serve, where rows have names", function()
    all(published[3][2])
    all "INSERT INTO queue_table (job_queue_name, job_queue_data) VALUES ('a', '{\"n\":1}'), ('b', '2'), ('a', '3')"
    local map = "return { table = 'queue_table', id = 'job_queue_id', name = { column = 'job_queue_name' }, "
      .. "payload = { column = 'job_queue_data' }, attempts_left = 'job_attempts', status = { "
      .. "column = 'job_queue_status', open = 'queued', processing = 'in_progress', done = 'processed', "
      .. "failed = 'failed' } }"
    local folder = fixture.dir()
    local status, log = host.drain(url, ([[return { a = function(job)
      local file <close> = assert(io.open(%q .. "/starts", "a"))
      file:write(type(job.payload) == "table" and job.payload.n or job.payload, "\n")
    end }]]):format(folder), { "--adopt", fixture.file("map.lua", map), "--drain" })
    assert.equal(0, status, log)
    local seen = starts(folder)
    table.sort(seen)
    assert.same({ 1, 3 }, seen)
    assert.same({ "processed", "queued", "processed" }, (function()
      local states = {}
      for i, row in ipairs(all "SELECT job_queue_status AS s FROM queue_table ORDER BY 1 * job_queue_id") do
        states[i] = row.s
      end
      return states
    end)())
  end)

  it("leaves rows alone that the server refuses to mark, and says so", function()
    designs.create(handle, "migration_task", 3)
    all [[CREATE TRIGGER refuse BEFORE UPDATE ON migration_task FOR EACH ROW
      IF NEW.id = 2 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF]]
    local status, log = host.drain(url, handlers(fixture.dir()), args("migration_task", { "--drain" }))
    assert.equal(1, status, log)
    assert.equal(2, count("migration_task", "done"))
    local refused = host.events(log, "row.refused")
    assert.same({ 1, "2" }, { #refused, refused[1].row })
  end)

  it("refuses a table without row locks", function()
    designs.create(handle, "migration_task", 1)
    all "ALTER TABLE migration_task ENGINE=Aria"
    local h = host.spawn(url, handlers(fixture.dir()), args "migration_task")
    assert.equal(78, h:wait(20))
    local _, err = h:text()
    assert.truthy(err:find("table 'migration_task' is Aria, which has no row locks", 1, true), err)
  end)

  it("drains past rows whose ids no job can have", function()
    designs.create(handle, "migration_task", 3)
    all "ALTER TABLE migration_task MODIFY id BIGINT UNSIGNED NOT NULL"
    all "INSERT INTO migration_task (id, imageUrl) VALUES (0, ''), (18446744073709551615, '')"
    local folder = fixture.dir()
    local status, log = host.drain(url, handlers(folder), args("migration_task", { "--drain" }))
    assert.equal(0, status, log)
    assert.equal(3, #starts(folder))
  end)

  it("goes on when the server was away, the table was renamed, or its runner's session was killed", function()
    designs.create(handle, "migration_task", 2)
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder), args "migration_task")
    eventually(function() return count("migration_task", "done") == 2 end)
    all "RENAME TABLE migration_task TO elsewhere"
    h:wait_line("adopted.error", 30)
    all "RENAME TABLE elsewhere TO migration_task"
    all(designs.migration_task.row)
    eventually(function() return count("migration_task", "done") == 3 end)
    all(("KILL %d"):format(one "SELECT runner FROM nightshift_source".runner))
    all(designs.migration_task.row)
    eventually(function() return count("migration_task", "done") == 4 end)
    stop(h)
  end)
end)

-- Hosts on an adopted table beside the workers that were published with it, in their own SQL.
-- No row is done twice, none is lost, and none of their statements is refused because of us.
-- Where there are many of them the server refuses some (1213, a deadlock) without us as well. A
-- claim of theirs locks the index first and then the row, a reset the row and then the index.
describe("a host beside published workers", function()
  local ROWS <const>, BLOCK <const> = 1000, 10

  local count = published.count
  local url, path
  published.database(function(_, at) url, path = at, fixture.dir() .. "/ledger" end)
  after_each(crew.clean)

  local function write(line)
    local file <close> = assert(io.open(path, "ab"))
    file:write(line, "\n")
  end

  -- As published, but for its 35 characters of a UUID.
  local CLAIM = [[UPDATE migration_task SET status = 'processing', claimedBy = ?, claimedAt = UTC_TIMESTAMP()
  WHERE status = 'open' ORDER BY id ASC LIMIT ]] .. BLOCK
  local READ = "SELECT id, iteration, imageUrl FROM migration_task WHERE claimedBy = ? AND status = 'processing'"
  local DONE = [[UPDATE migration_task SET status = 'complete', completedAt = UTC_TIMESTAMP()
  WHERE id = ? AND status = 'processing']]
  local RESET = [[UPDATE migration_task SET status = 'open', iteration = ( iteration + 1 ), claimedBy = NULL,
  claimedAt = NULL WHERE id = ?]]
  local REAP = [[UPDATE migration_task SET status = 'open', iteration = ( iteration + 1 ), claimedBy = NULL,
  claimedAt = NULL WHERE status = 'processing' AND completedAt IS NULL
  AND claimedAt <= DATE_ADD( UTC_TIMESTAMP(), INTERVAL -2 MINUTE )]]

  --- Runs a statement of theirs; what is refused is written down, and tried again.
  local function ask(own, sql, ...)
    local rows, message
    repeat
      rows, message = own:execute(sql, ...)
      if not rows then
        write("refused " .. message:gsub("\n", " "))
        nst.sleep(0.01)
      end
    until rows
    return rows
  end

  --- One of theirs: claims blocks, completes most, resets some, until nothing is left.
  local function work(number)
    local own <close> = assert(nightshift.open(url))
    ask(own, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ") -- the server's own
    local round = 0
    repeat
      round = round + 1
      local me = ("%032d-%d"):format(round, number)
      ask(own, REAP)
      ask(own, CLAIM, me)
      for _, task in ipairs(ask(own, READ, me)) do
        local fails = task.id % 50 == 0 and task.iteration == 0
        if not fails then write("did " .. task.id) end
        ask(own, fails and RESET or DONE, task.id)
      end
    until ask(own, "SELECT COUNT(*) AS n FROM migration_task WHERE status <> 'complete'")[1].n == 0
  end

  --- What the ledger says: who did how many rows, and what was refused. No row is there twice.
  local function read()
    local done, ours, refused = {}, 0, {}
    for line in io.lines(path) do
      local id = line:match "^did (%d+)$"
      if id then
        assert.is_nil(done[id], id)
        done[id] = true
      elseif line == "ours" then
        ours = ours + 1
      else
        refused[#refused + 1] = line
      end
    end
    return ours, refused
  end

  for _, theirs in ipairs { 1, 3 } do
    it("does rows that they do not, and waits for none that they lock: " .. theirs, function()
      local _, name = published.make(1, ROWS)
      local map = published[1][4]
      local h = host.start(url, ([[return { task = function(job)
        require "nightshift.core".sleep(0.002)
        local file <close> = assert(io.open(%q, "ab"))
        file:write("did " .. job.row .. "\n", "ours\n")
      end }]]):format(path), { "--workers", "4", "--adopt", fixture.file("map.lua", "return " .. map) })
      crew.fork(theirs, work):wait(110) -- their claims are reset after two minutes
      eventually(function() return count "nightshift_owed" == 0 end)
      h:signal "TERM"
      assert.equal(0, h:wait(20))
      local ours, refused = read()
      if theirs == 1 then assert.same({}, refused) end
      assert.equal(ROWS, count(name, "status = 'complete' AND completedAt >= claimedAt"))
      assert.equal(count(name, "claimedBy LIKE 'ns:%'"), ours)
      assert.is_true(ours > 0 and ours < ROWS, ours)
      assert.is_nil(h:transcript():find "level=error", h:transcript())
      assert.equal(0, count "nightshift_job")
    end)
  end
end)

-- Under a host that the spec plays: when it looks again.
describe("a runner", function()
  local NAME = "migration_task"
  local lab = require "spec.support.db".lab
  local runner = require "nightshift.source.runner"

  local handle
  lab.handles(1, function(opened) handle = opened end)

  --- What it waits between its rounds, the first without one.
  local function pauses(rounds)
    local found = {}
    local played = {
      drain = false, within = 60, log = function() end, tell = function() end,
      workers = function() return '["migrate"]', 1 end,
      wait = function(seconds)
        found[#found + 1] = seconds
        return #found == rounds
      end,
    }
    local its = assert(runner.open({ url = lab.url() }, played, require "nightshift".encode(designs.map(NAME))))
    its:run()
    return found
  end

  it("that is held back by a rate waits until that lets it go on", function()
    designs.create(handle, NAME, 20)
    assert(assert(handle:adopt(designs.map(NAME))):tune { rate = 0.2 })
    local found = pauses(4)
    for i = 1, 4 do assert.is_true(found[i] > 0.1, found[i]) end
  end)
end)
