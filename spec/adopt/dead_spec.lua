-- What becomes of rows of an adopted table that have ended, or that the server refuses.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local lab = require "spec.support.lab"

-- What becomes of rows of an adopted table that have ended: dead ones are listed with
-- their errors, counted by kinds of them and run again; finished ones are deleted or moved.
describe("ended rows:", function()
  local a, b
  lab.handles(2, function(...) a, b = ... end)
  after_each(crew.clean)

  local function all(sql, ...) return assert(a:execute(sql, ...)) end

  local function one(sql, ...) return all(sql, ...)[1] end

  local function refused(code, words, value, message, got)
    assert.is_nil(value)
    assert.equal(code, got, message)
    assert.is_truthy(message:find(words, 1, true), message)
  end

  --- The errors that are kept: row = text.
  local function errors()
    local found = {}
    for _, row in ipairs(all "SELECT row_id, error FROM nightshift_adopted_error") do found[row.row_id] = row.error end
    return found
  end

  local function new(name, rows, changes)
    designs.create(a, name, rows)
    all "DELETE FROM nightshift_adopted_error"
    return assert(a:adopt(designs.map(name, changes)))
  end

  local function ids(rows)
    local list = {}
    for i, row in ipairs(rows) do list[i] = row.id end
    return list
  end

  --- Fails rows until they are dead, with what `error_of` says of each.
  local function kill(t, error_of)
    repeat
      local jobs = assert(t:claim_many(100))
      for _, job in ipairs(jobs) do assert(job:fail(error_of(job), { retry_in = 0 })) end
    until #jobs == 0
  end

  --- Five commands, dead of three kinds of errors.
  local function dead_commands()
    local t = new("worker_queue", 5)
    kill(t, function(job)
      if job.id == 5 then return "no such command" end
      return ("jobs.lua:%d: timeout after %d s (table: 0x%x)\nstack"):format(job.id, job.id * 10, job.id * 4000)
    end)
    return t
  end

  --- How each design's rows die: by a word, or of their last attempt.
  local DEATHS = {
    { "worker_queue", "transaction", nil, 3 },
    { "queue_table", "skip_locked", "UPDATE queue_table SET attempts = 1", 30 },
    { "queue_table", "named_lock", "UPDATE queue_table SET attempts = 1", 30 }, { "job_queue", "transaction", nil, 1 },
    { "job_queue", "skip_locked", nil, 1 },
  }

  describe("dead rows", function()
    for _, case in ipairs(DEATHS) do
      local name, strategy, prepare, attempts = table.unpack(case)
      it(("of %s by %s are listed with their last error, and run again as new"):format(name, strategy), function()
        local t = new(name, 2, { strategy = strategy })
        if prepare then all(prepare) end
        local job = assert(t:claim())
        assert(job:ack())
        assert.same({}, t:dead())
        local before = one("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED) AS us").us
        if designs[name].map.status.failed and attempts == 1 then
          assert(assert(t:claim()):discard "broken")
        else
          kill(t, function(of) return of.attempt == attempts and "broken" or "not yet" end)
        end
        local rows = assert(t:dead())
        assert.same({ 2, attempts, "broken", 2 }, { rows[1].id, rows[1].attempts, rows[1].error, rows[1].payload.id })
        assert.is_true(rows[1].failed_at >= before / 1e6 and rows[1].failed_at <= before / 1e6 + 60)
        assert.equal(1, #rows)
        assert.equal(1, t:stats().dead)
        assert.is_nil(t:claim())
        assert.is_true(t:retry(2))
        assert.same({}, t:dead())
        job = assert(t:claim())
        assert.same({ 2, 1 }, { job.id, job.attempt })
        assert(job:ack())
        assert.equal(2, t:stats().done)
        assert.same({}, errors())
      end)
    end

    it("of a table that keeps a time are open at once when they are run again", function()
      local t = new("queue_table", 1)
      all "UPDATE queue_table SET attempts = 1"
      assert(assert(t:claim()):fail("no", { retry_in = 3600 }))
      assert.is_true(t:retry(1))
      assert.same({ n = 30 }, one("SELECT attempts AS n FROM queue_table "
        .. "WHERE status = 'queued' AND retry_after IS NULL"))
      assert(assert(t:claim()):ack())
    end)

    it("are there as well when they died before anybody adopted their table", function()
      local t = new("worker_queue", 3)
      all "UPDATE worker_queue SET failure_count = 100 WHERE id < 3"
      local rows = assert(t:dead())
      assert.same({ 1, 2 }, ids(rows))
      assert.same({ 100 }, { rows[1].attempts, rows[1].error, rows[1].failed_at })
      assert.same({ { error = "", count = 2, id = 2 } }, t:dead { by = "error" })
      assert.equal(2, t:retry { error = "" })
      assert.equal(3, t:stats().ready)
    end)

    it("are counted by kinds of errors, which differ in more than numbers", function()
      local t = dead_commands()
      local kinds = assert(t:dead { by = "error" })
      local timeout, other = kinds[1], kinds[2]
      assert.equal(2, #kinds)
      assert.same({ "jobs.lua:#: timeout after # s (table: #)", 4, 4 }, { timeout.error, timeout.count, timeout.id })
      assert.same({ "no such command", 1, 5 }, { other.error, other.count, other.id })
      assert.is_true(timeout.first > 0 and timeout.first <= timeout.last)
      assert.same({ 1, 2, 3, 4 }, ids(t:dead { error = timeout.error }))
      assert.same({ 3 }, ids(t:dead { error = t:dead()[3].error }))
      assert.same({ 1, 2 }, ids(t:dead { limit = 2 }))
      assert.same({ timeout }, t:dead { by = "error", limit = 1 })
    end)

    it("run again by id, by ids, by error, by a kind of errors, or all", function()
      local t = dead_commands()
      assert.same({ 2 }, ids(t:dead { error = "jobs.lua:2: timeout after 20 s (table: 0x1f40)" })) -- its first line
      assert.is_true(t:retry(1))
      refused("STATE", "row 1 of 'worker_queue' is not dead: it runs, or may still be claimed", t:retry(1))
      refused("NOT_FOUND", "'worker_queue' has no row 99", t:retry(99))
      assert.equal(1, t:retry { 1, 2, 99 })
      assert.equal(1, t:retry { error = t:dead()[1].error })
      assert.same({ 4, 5 }, ids(t:dead()))
      assert.equal(1, t:retry { error = t:dead { by = "error" }[1].error })
      assert.equal(1, #t:dead())
      assert.equal(0, t:retry { error = "another" })
      assert.equal(1, t:retry "all")
      assert.equal(0, t:retry "all")
      assert.same({}, errors())
      for job in t:jobs() do assert(job:ack()) end
      refused("STATE", "row 2 of 'worker_queue' is not dead: it is done", t:retry(2))
      assert.equal(5, t:stats().done)
    end)

    it("are asked for by any text, and moved to no table by any", function()
      local t = dead_commands()
      for _, text in ipairs { "' OR '1'='1", "x' OR TRUE -- ", "%", "_", "#", "\\", "`", "a`b", "t` -- ", "?" } do
        assert.equal(0, t:retry { error = text }, text)
        assert.same({}, t:dead { error = text }, text)
        assert.same({}, t:dead { error = text, by = "error" }, text)
        assert.equal("NOT_FOUND", select(3, t:prune { into = text }), text)
      end
      assert.equal("INVALID", select(3, t:prune { into = "a\0b" }))
      assert.equal(5, t:stats().dead)
    end)

    it("run again by thousands", function()
      local t = new("worker_queue", 1)
      designs.fill(a, "worker_queue", 1999)
      all "UPDATE worker_queue SET failure_count = 3"
      assert.equal(2000, t:retry "all")
      assert.equal(2000, one "SELECT COUNT(*) AS n FROM worker_queue WHERE failure_count = 0".n)
    end)

    it("that somebody has locked stay dead, and are waited for by nobody who asks for all", function()
      local t = dead_commands()
      assert(b._handle:begin())
      assert(b:execute "SELECT id FROM worker_queue WHERE id = 3 FOR UPDATE")
      assert.equal(4, t:retry "all")
      assert(b._handle:commit())
      assert.same({ 3 }, ids(t:dead()))
      assert.is_true(t:retry(3))
    end)

    it("do not run again when nothing says how many attempts they have", function()
      new("queue_table", 1)
      local map = designs.map "queue_table"
      map.max_attempts = nil
      local t = assert(a:adopt(map))
      all "UPDATE queue_table SET status = 'failed'"
      refused("INVALID", "'max_attempts'", t:retry(1))
      refused("INVALID", "'max_attempts'", t:retry "all")
    end)

    it("are asked for with words that are known", function()
      local t = new("worker_queue", 1)
      for _, call in ipairs {
        function() t:retry() end, function() t:retry "some" end, function() t:retry { "1" } end,
        function() t:retry { error = "x", id = 1 } end, function() t:retry { error = 5 } end,
        function() t:dead { what = 1 } end, function() t:dead(5) end, function() t:prune { into = 5 } end,
        function() t:prune(1) end, function() t.retry(1) end,
      } do
        local ok, message = pcall(call)
        assert.is_false(ok)
        assert.is_truthy(message:find "dead_spec.lua:%d+: nightshift: ", message)
      end
      assert.equal("INVALID", select(3, t:dead { limit = 0 }))
      assert.equal("INVALID", select(3, t:dead { by = "day" }))
      assert.equal("INVALID", select(3, t:prune { older = -1 }))
      assert.equal("INVALID", select(3, t:prune { into = "" }))
      assert.equal(0, t:retry {})
    end)
  end)

  describe("the last error of a row", function()
    it("is there as long as it is not done", function()
      local t = new("migration_task", 2)
      assert(assert(t:claim()):fail "first")
      assert.same({ "first" }, errors())
      assert(assert(t:claim()):fail "second")
      assert.same({ attempt = 2 }, one "SELECT attempt FROM nightshift_adopted_error WHERE error = 'second'")
      assert(assert(t:claim()):again(0))
      assert(assert(t:claim()):release())
      assert.same({ "second" }, errors())
      assert(assert(t:claim()):ack())
      assert.same({}, errors())
    end)

    it("is there, too, when the table does not count failures", function()
      local t = new("job_queue", 2, { strategy = "skip_locked" })
      for _ = 1, 3 do assert(assert(t:claim()):fail("no", { retry_in = 0 })) end
      assert.same({ attempt = 3 }, one "SELECT attempt FROM nightshift_adopted_error WHERE row_id = 1")
      assert(assert(b:adopt(designs.map("job_queue", { strategy = "skip_locked" })):claim()):ack())
      assert.same({}, errors())
    end)

    it("is one that people can read, whatever the handler has said", function()
      local t = new("migration_task", 3)
      local jobs = assert(t:claim_many(3))
      assert(jobs[1]:fail(("ä"):rep(2000)))
      assert(jobs[2]:fail "bad \xFF byte")
      assert(jobs[3]:fail "")
      local found = errors()
      assert.equal(("ä"):rep(500), found[1])
      assert.equal("bad ? byte", found[2])
      assert.equal("failed, without an error", found[3])
    end)

    it("is that of the verdict, or of none when that is rolled back", function()
      local t = new("migration_task", 1)
      local job = assert(t:claim())
      assert.is_false((pcall(a.transaction, a, function()
        assert(job:fail "no")
        error "never mind"
      end)))
      assert.same({}, errors())
      assert(job:fail "yes")
      assert.same({ "yes" }, errors())
    end)

    it("holds up no verdict", function()
      for _, case in ipairs { { "migration_task", "update_limit" }, { "migration_task", "transaction" } } do
        local t = new(case[1], 1, { strategy = case[2] })
        assert(assert(t:claim()):fail "first")
        assert(b._handle:begin())
        assert(b:execute "SELECT * FROM nightshift_adopted_error FOR UPDATE")
        assert(assert(t:claim()):fail "second")
        assert(assert(t:claim()):ack())
        assert(b._handle:commit())
        assert.same({ "first" }, errors())
        assert.same({ n = 2 }, one "SELECT iteration AS n FROM migration_task WHERE status = 'complete'")
      end
    end)

    it("says why a row came back without a verdict", function()
      local t = new("migration_task", 2, { overdue = 1 })
      local c = crew.start(1, lab.url(), designs.map "migration_task",
        "return function() while true do require 'nst'.sleep(1) end end")
      eventually(function() return t:stats().running == 1 end)
      c:kill(1)
      eventually(function()
        assert(t:rescue())
        return errors()[1] == "its holder died"
      end)
      all [[UPDATE migration_task SET status = 'processing', claimedBy = 'me', claimedAt = NOW() - INTERVAL 1 HOUR
      WHERE id = 2]]
      assert.equal(1, t:rescue())
      assert.equal("overdue: it was claimed too long", errors()[2])
      assert.is_nil(one "SELECT holder FROM nightshift_adopted_error WHERE row_id = 2".holder)
    end)

    it("is not kept of more than 100,000 rows: the oldest go", function()
      local t = new("worker_queue", 1)
      designs.fill(a, "worker_queue", 100009)
      all "UPDATE worker_queue SET failure_count = 3"
      all [[INSERT INTO nightshift_adopted_error (tab, row_id, at, attempt, error)
      SELECT 'worker_queue', id, 1000000 - id, 3, 'no' FROM worker_queue]]
      assert(t:rescue())
      assert.same({ n = 100000, last = 100000 },
        one "SELECT COUNT(*) AS n, MAX(row_id) AS last FROM nightshift_adopted_error")
    end)

    it("goes with its row, whoever has ended or deleted that", function()
      local t = dead_commands()
      assert.equal(5, #ids(t:dead()))
      all "DELETE FROM worker_queue WHERE id = 1"
      all "UPDATE worker_queue SET is_done = TRUE WHERE id = 2"
      all "UPDATE worker_queue SET failure_count = 0 WHERE id = 3"
      assert.same({ 4, 5 }, ids(t:dead()))
      local other = assert(b:adopt(designs.map "worker_queue")) -- another handle's look
      assert(other:rescue())
      local found = errors()
      assert.same({ false, false, true, true, true },
        { found[1] ~= nil, found[2] ~= nil, found[3] ~= nil, found[4] ~= nil, found[5] ~= nil })
    end)
  end)

  describe("finished rows", function()
    local function done(t)
      for job in t:jobs() do assert(job:ack()) end
    end

    local function left(name) return ids(all(("SELECT id FROM %s ORDER BY id"):format(name))) end

    it("are deleted, and no others", function()
      local t = new("worker_queue", 3)
      done(t)
      all "INSERT INTO worker_queue (command, failure_count) VALUES ('open', 0), ('dead', 3)"
      assert.equal(2, t:prune { limit = 2 })
      assert.same({ 3, 4, 5 }, left "worker_queue")
      assert.equal(1, t:prune())
      assert.equal(0, t:prune())
      assert.same({ 4, 5 }, left "worker_queue")
    end)

    it("are deleted when they are dead, and that is asked for", function()
      local t = new("worker_queue", 2)
      done(t)
      all "INSERT INTO worker_queue (command) VALUES ('bad')"
      for _ = 1, 3 do assert(assert(t:claim()):fail "no") end
      all "INSERT INTO worker_queue (command, failure_count) VALUES ('dead for others', 3), ('open', 0)"
      assert.equal(0, t:prune { state = "dead", older = "1h" })
      all "UPDATE nightshift_adopted_error SET at = at - 7200 * 1000000"
      assert.equal(1, t:prune { state = "dead", older = "1h" })
      assert.same({ 1, 2, 4, 5 }, left "worker_queue")
      assert.equal(1, t:prune { state = "dead" })
      assert.equal(2, t:prune { state = "done" })
      assert.same({ 5 }, left "worker_queue")
      assert.equal(0, all "SELECT COUNT(*) AS n FROM nightshift_adopted_error"[1].n)
    end)

    it("are deleted when they are old enough", function()
      local t = new("migration_task", 3)
      done(t)
      all "UPDATE migration_task SET completedAt = NOW() - INTERVAL id HOUR"
      assert.equal(0, t:prune { older = "1d" })
      assert.equal(2, t:prune { older = "90m" })
      assert.same({ 1 }, left "migration_task")
      refused("INVALID", "nothing says when rows of 'worker_queue' were done", new("worker_queue",
        1):prune { older = 1 })
    end)

    it("are deleted by thousands, past what somebody has locked", function()
      local t = new("worker_queue", 1)
      designs.fill(a, "worker_queue", 1999)
      all "UPDATE worker_queue SET is_done = id % 2"
      assert(b._handle:begin())
      assert(b:execute "SELECT id FROM worker_queue WHERE id IN (1, 2, 1001) FOR UPDATE")
      assert.equal(998, t:prune())
      assert(b._handle:commit())
      assert.equal(2, t:prune())
      assert.equal(1000, one "SELECT COUNT(*) AS n FROM worker_queue WHERE NOT is_done".n)
    end)

    it("stay while another row has them for its parent; children go first", function()
      local t = new("queue_table", 5)
      all "UPDATE queue_table SET parent_id = id - 1 WHERE id IN (2, 3, 5)"
      all "UPDATE queue_table SET status = 'processed' WHERE id < 5"
      assert.equal(3, t:prune())
      assert.same({ 4, 5 }, left "queue_table")
      assert.equal(5, assert(t:claim()).id)
    end)

    it("are moved, with all that they say, or stay where they are", function()
      local t = new("migration_task", 4)
      all "DROP TABLE IF EXISTS migration_archive, migration_narrow, migration_aria"
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
      done(t)
      all "INSERT INTO migration_archive (id, imageUrl) VALUES (4, 'another')"
      local none, message, code = t:prune { into = "migration_archive" }
      assert.same({ nil, "DUPLICATE" }, { none, code }, message)
      assert.is_truthy(message:find "'migration_archive' has one of these rows already: delete it .*'4'", message)
      assert.same({ 3, 4 }, left "migration_task")
      assert.same({ 1, 2, 4 }, left "migration_archive")
      all "DELETE FROM migration_archive WHERE id = 4"
      all "ALTER TABLE migration_archive ADD extra INT AS (iteration + 1) PERSISTENT"
      assert.equal(2, t:prune { into = "migration_archive" })
      assert.same({ 1, 2, 3, 4 }, left "migration_archive")
    end)

    it("are not pruned inside a transaction, which would lock them for long", function()
      local t = new("worker_queue", 1)
      assert(a:transaction(function()
        refused("STATE", "inside a transaction", t:prune())
        return true
      end))
    end)
  end)
end)

-- A row that the server refuses to mark as taken, because of a trigger or a constraint of
-- the table's people: the rest are done all the same, and the caller is told.
describe("refused marks:", function()
  local db, _, url
  with_database(function(...) db, _, url = ... end)

  local function all(sql, ...) return assert(db:execute(sql, ...)) end

  local function open_ids()
    local ids = {}
    for i, row in ipairs(all "SELECT id FROM migration_task WHERE status = 'open' ORDER BY id") do ids[i] = row.id end
    return ids
  end

  local TRIGGER = [[CREATE TRIGGER theirs BEFORE UPDATE ON migration_task FOR EACH ROW
  IF NEW.id IN (%s) AND NEW.status = 'processing' THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one';
  END IF]]

  local function prepare(rows, refused)
    designs.create(db, "migration_task", rows)
    all(TRIGGER:format(refused))
  end

  local HANDLERS = "return { migrate = function() end }"

  for _, strategy in ipairs(designs.migration_task.strategies) do
    describe("by " .. strategy .. " a row that is refused", function()
      local function adopt() return assert(db:adopt(designs.map("migration_task", { strategy = strategy }))) end

      it("stays open, and a host does the others, tells of it once, and ends", function()
        prepare(30, "2")
        local status, log = host.drain(url, HANDLERS,
          { "--drain", "--workers", "2", "--adopt", designs.file("migration_task", { strategy = strategy }) })
        assert.same({ 2 }, open_ids(), log)
        assert.equal(1, status, log)
        local lines = host.events(log, "row.refused")
        assert.equal(1, #lines, log)
        assert.same({ "migration_task", "2" }, { lines[1].table, lines[1].id })
        assert.is_truthy(log:find('error="not this one', 1, true), log)
      end)

      it("is passed over by a program, which is told when there is no other", function()
        prepare(6, "1, 3, 4")
        local t = adopt()
        for _, id in ipairs { 2, 5 } do
          local job = assert(t:claim())
          assert.equal(id, job.id)
          assert.is_true((job:ack()))
        end
        assert(assert(t:claim_many(10))[1]:ack())
        assert.same({ 1, 3, 4 }, open_ids())
        assert.same({}, t:claim_many(10))
        local other <close> = assert(require "nightshift".open(url))
        local jobs, message, code = assert(other:adopt(designs.map("migration_task", { strategy = strategy })))
          :claim_many(10)
        assert.same({ nil, "SQL" }, { jobs, code })
        assert.is_truthy(message:find("row %d of 'migration_task' cannot be claimed: .*not this one"), message)
      end)
    end)
  end

  it("a row that breaks a constraint of the table is passed over", function()
    designs.create(db, "migration_task", 3)
    all "UPDATE migration_task SET imageUrl = 'none' WHERE id = 1"
    all "ALTER TABLE migration_task ADD CHECK (imageUrl <> 'none' OR claimedBy IS NULL)"
    local t = assert(db:adopt(designs.map "migration_task"))
    for id = 2, 3 do assert.equal(id, assert(t:claim()).id) end
  end)
end)

-- A verdict that the server refused because of what was in the row, as for a unique index
-- of the table's people, was tried again for ever, and with it all that were settled
-- together: their rows stayed claimed, and the host did not end.
describe("a verdict that breaks an index", function()
  local db
  lab.handles(1, function(handle) db = handle end)

  local function count(where) return assert(db:execute("SELECT COUNT(*) AS n FROM once WHERE " .. where))[1].n end

  for _, column in ipairs { "claimed_by = 'who',", "" } do
    it("holds up nobody else" .. (column == "" and ", where grips say whose a row is" or ""), function()
      assert(db:execute "DROP TABLE IF EXISTS once")
      assert(db:execute [[CREATE TABLE once (id INT AUTO_INCREMENT PRIMARY KEY, state VARCHAR(9) DEFAULT 'open',
      payment INT NULL, who VARCHAR(64) NULL, UNIQUE (state, payment))]])
      assert(db:execute "INSERT INTO once (payment, state) VALUES (7, 'done')")
      assert(db:execute "INSERT INTO once (payment) VALUES (7), (NULL), (8), (NULL)")
      local map = fixture.file("map.lua", ([[return { table = "once", strategy = "skip_locked", %s
      status = { column = "state", open = "open", processing = "busy", done = "done" } }]]):format(column))
      local h = host.start(lab.url(), "return { once = function() end }", { "--adopt", map, "--workers", "4" })
      eventually(function() return count "state = 'done'" == 4 end)
      h:wait_line("job.refused id=2 code=DUPLICATE", 10)
      h:signal "TERM"
      assert.equal(0, h:wait(20))
      assert.equal(1, count "id = 2 AND state = 'open'")
    end)
  end

  it("is told to a program, which may say something else", function()
    assert(db:execute "UPDATE once SET state = 'open' WHERE id = 2")
    local t = assert(db:adopt { table = "once", strategy = "skip_locked", claimed_by = "who",
      status = { column = "state", open = "open", processing = "busy", done = "done" } })
    local job = assert(t:claim())
    local ok, message, code = job:ack()
    assert.same({ nil, "DUPLICATE" }, { ok, code })
    assert.is_truthy(message:find("done-7", 1, true), message)
    assert.is_true((job:fail("paid before", { retry_in = 0 })))
  end)
end)

-- A host that was to end when nothing was left did not look at what the dead had left when
-- that had come to light after its last look, and ended although rows were still taken.
describe("rows of a dead holder:", function()
  local db
  lab.handles(1, function(handle) db = handle end)

  local function all(sql, ...) return assert(db:execute(sql, ...)) end

  local MAP = [[return { table = "dk", claimed_by = "cb", strategy = "skip_locked",
  status = { column = "st", open = "o", processing = "p", done = "d" } }]]

  it("a drain ends when what a dead holder had is done, too", function()
    all [[CREATE TABLE dk (id INT AUTO_INCREMENT PRIMARY KEY, st VARCHAR(9) NOT NULL DEFAULT 'o', cb VARCHAR(64) NULL)]]
    all "INSERT INTO dk () VALUES (), ()"
    local gate = fixture.dir() .. "/gate"
    assert(os.execute("mkfifo " .. gate))
    local h = host.start(lab.url(), ([[return { dk = function(job)
      if job.id == 1 then io.open(%q):read "a" end
    end }]]):format(gate), { "--adopt", fixture.file("map.lua", MAP), "--workers", "1", "--drain" })
    eventually(function() return all "SELECT COUNT(*) AS n FROM dk WHERE st = 'p' AND id = 1"[1].n == 1 end)
    -- the second is a holder's that is not known, as if it had been buried after the look at the start
    all "UPDATE dk SET st = 'p', cb = 'ns:34400:3785bfa9248e7e6a' WHERE id = 2"
    assert(io.open(gate, "w")):close()
    assert.equal(0, h:wait(30))
    assert.equal(2, all "SELECT COUNT(*) AS n FROM dk WHERE st = 'd'"[1].n)
  end)
end)

-- An error of the server that has nothing to do with a row's values ended, or spent an attempt
-- of, whatever row of an adopted table it met.
describe("trouble of the server's own with a row", function()
  local db, _, url
  with_database(function(...) db, _, url = ... end)

  local function all(sql, ...) return assert(db:execute(sql, ...)) end
  local function complete() return all("SELECT COUNT(*) AS n FROM migration_task WHERE status = 'complete'")[1].n end

  it("is waited for: the row is done in the end, and was begun once", function()
    designs.create(db, "migration_task", 3)
    all "CREATE TABLE trouble (number INT)"
    all "INSERT INTO trouble VALUES (1175)"
    all [[CREATE TRIGGER theirs BEFORE UPDATE ON migration_task FOR EACH ROW
    IF NEW.status = 'complete' AND NEW.id = 2 AND EXISTS(SELECT 1 FROM trouble) THEN
      SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1175, MESSAGE_TEXT = 'planted';
    END IF]]
    local begun = fixture.file("begun", "")
    local h = host.start(url, ([[return { migrate = function(job)
      local file <close> = assert(io.open(%q, "ab"))
      file:write(job.id .. "\n")
    end }]]):format(begun), { "--adopt", designs.file "migration_task" })
    h:wait_line "event=db.error .*number=1175 "
    eventually(function() return complete() == 2 end)
    assert.equal("processing", all("SELECT status FROM migration_task WHERE id = 2")[1].status)
    all "DELETE FROM trouble"
    eventually(function() return complete() == 3 end, 20)
    h:signal "TERM"
    assert.equal(0, h:wait())
    local lines = {}
    for line in io.lines(begun) do lines[#lines + 1] = line end
    table.sort(lines)
    assert.same({ "1", "2", "3" }, lines)
  end)
end)
