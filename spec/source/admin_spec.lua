-- Verbs of people on an adopted table: they count its rows, set its pace, and run dead rows
-- again. The commands on adopted tables: status, pause, tune, jobs, retry, prune, adopt, and the
-- words of doctor on rows that wait for a host.

local admin = require "nightshift.source.admin"
local core = require "nightshift.core"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local published = require "spec.support.designs".published
local source = require "nightshift.source.table"

describe("adopted tables:", function()
  local all, one, open, refused = published.all, published.one, published.open, published.refused
  local handle, url
  published.database(function(...) handle, url = ... end)

  local function counts(t)
    local s = assert(t:stats())
    return { s.ready, s.waiting, s.running, s.done, s.dead }
  end

  --- Fails rows until they are dead.
  local function kill(t)
    repeat
      local jobs = assert(t:claim_many(100))
      for _, job in ipairs(jobs) do assert(job:fail("broken", { retry_in = 0 })) end
    until #jobs == 0
  end

  --- Five commands, dead.
  local function dead_commands()
    local t = open(4, 5)
    kill(t)
    return t
  end

  describe("counts", function()
    -- Where neither a state, a counter nor a claimant says that a row is dead it is one that others
    -- have.
    local UNSEEN = { checkout = true }

    for i, published_table in ipairs(published) do
      it("of rows of " .. published_table[1] .. " say what their jobs do", function()
        local t = open(i, 5, i == 3 and { parent = false } or nil)
        assert.same({ 5, 0, 0, 0, 0 }, counts(t))
        assert.equal(3, t:take(3))
        assert.same({ 5, 0, 0, 0, 0 }, counts(t))
        local jobs = assert(t:claim_many(3))
        assert.same({ 2, 0, 3, 0, 0 }, counts(t))
        assert(jobs[1]:ack())
        assert(jobs[2]:fail("no", { retry_in = 3600 }))
        assert.same({ 2, 1, 1, 1, 0 }, counts(t))
        assert.is_true(math.abs(t:stats().next - 3600) < 60)
        assert(jobs[3]:discard "no")
        assert.same(UNSEEN[published_table[1]] and { 2, 1, 1, 1, 0 } or { 2, 1, 0, 1, 1 }, counts(t))
      end)
    end

    it("tell rows of others, and those that wait for their parents or their time", function()
      local t = open(3, 5) -- 3 to 5 have 1 or 2 for a parent
      all "UPDATE queue_table SET job_retry_after = NOW() + INTERVAL 60 SECOND WHERE job_queue_id = 1"
      all "UPDATE queue_table SET job_queue_status = 'in_progress' WHERE job_queue_id = 2"
      assert.same({ 0, 4, 1, 0, 0 }, counts(t))
      assert.is_true(t:stats().next > 0 and t:stats().next <= 60)
      t = open(1, 3)
      all "UPDATE migration_task SET status = 'processing', claimedBy = 'theirs' WHERE id = 1"
      assert.same({ 2, 0, 1, 0, 0 }, counts(t))
    end)

    it("know rows that nothing but their last job calls dead", function()
      local t = open(1, 2, { max_attempts = false })
      assert(assert(t:claim()):discard "no")
      assert.same({ 1, 0, 0, 0, 1 }, counts(t))
      assert.is_true(t:retry(1))
      assert.same({ 2, 0, 0, 0, 0 }, counts(t))
    end)

    it("end at a hundred thousand", function()
      local t = open(4, 100001)
      local stats = t:stats()
      assert.same({ 100000, { ready = true }, "worker_queue" }, { stats.ready, stats.approximate, stats.name })
    end)
  end)

  describe("the advice", function()
    for i, wanted in ipairs {
      "CREATE INDEX nightshift_claim ON `migration_task` (`status`, `id`)", false,
      "CREATE INDEX nightshift_claim ON `queue_table` (`job_queue_status`, `job_queue_priority` DESC, `job_queue_id`)",
      "CREATE INDEX nightshift_claim ON `worker_queue` (`is_done`, `id`)", false,
    } do
      it("for " .. published[i][1] .. " is " .. tostring(wanted), function()
        local t = open(i, 3000)
        all("ANALYZE TABLE " .. t.name)
        local sql = t:advice()
        assert.equal(wanted, sql)
        if sql then
          all(sql)
          all("ANALYZE TABLE " .. t.name)
          assert.is_false(t:advice())
        end
      end)
    end
  end)

  describe("a table that is known", function()
    it("is worked on at the rate that was said last", function()
      local t = open(1, 0)
      local function rate() return one("SELECT rate FROM nightshift_source WHERE tab = 'migration_task'").rate end
      assert.is_nil(rate())
      assert.is_true(t:tune { rate = 2.5 })
      assert.equal(2.5, rate())
      assert.is_true(t:tune {})
      assert.equal(2.5, rate())
      assert.is_true(t:tune { rate = 0 })
      assert.is_nil(rate())
      refused("INVALID", "rate must be 0, or from one row", t:tune { rate = -1 })
      for _, word in ipairs { "block", "workers" } do
        local ok, message = pcall(function() t:tune { [word] = 5 } end)
        assert.is_false(ok)
        assert.is_truthy(message:find("tune: unknown option '" .. word .. "'", 1, true), message)
      end
      refused("NOT_FOUND", "nobody has adopted a table 'other' yet",
        admin.tune(handle._handle, "other", { rate = 1.0 }))
    end)

    it("is listed with what was decided, and what its rows are owed, and opened by its name", function()
      local t, _, _, map = open(1, 2)
      assert.is_true(t:pause())
      assert.equal(2, t:take(2))
      for _, job in ipairs(all "SELECT id FROM nightshift_job") do assert(handle:cancel(job.id)) end
      all "UPDATE nightshift_owed SET why = 'no room' LIMIT 1"
      local row = assert(admin.list(handle._handle))[1]
      assert.same({ "migration_task", map, true, nil, 2, 1, "no room" },
        { row.table, row.mapping, row.paused, row.rate, row.owed, row.refused, row.why })
      assert.same({ false, nil }, { row.served, row.unserved })
      assert.same({ "rows of migration_task that do not say what became of their jobs: 1; nobody has served it yet",
        "rows of migration_task that the server refuses to change: 1: no room" }, admin.troubles(row))
      assert.is_true(t:resume())
      assert.equal(2, assert(admin.open(handle, "migration_task")):pay())
      row = assert(admin.status(handle))[1]
      assert.same({ false, 0, 2 }, { row.paused, row.owed, row.counts.dead })
      refused("NOT_FOUND", "nobody has adopted a table 'other' yet", admin.open(handle, "other"))
      all "ALTER TABLE migration_task DROP COLUMN claimedBy"
      row = assert(admin.status(handle))[1]
      assert.is_nil(row.counts)
      assert.is_truthy(row.error:find "has no column 'claimedBy'", row.error)
    end)
  end)

  describe("dead rows", function()
    local PREPARE = { queue_table = "UPDATE queue_table SET job_attempts = 1" }

    for i, published_table in ipairs(published) do
      local name = published_table[1]
      if name ~= "checkout" then
        it("of " .. name .. " are listed as their jobs, with the last error, and run again as new", function()
          local t, _, _, map = open(i, 2, i == 3 and { parent = false } or nil)
          if PREPARE[name] then all(PREPARE[name]) end
          assert(assert(t:claim()):ack())
          if map.max_attempts then kill(t) else assert(assert(t:claim()):discard "broken") end
          local jobs = assert(handle:jobs { queue = name, state = "dead" })
          assert.same({ 1, "broken", map.max_attempts or 0 }, { #jobs, jobs[1].error, jobs[1].attempts })
          assert.equal(1, t:stats().dead)
          assert.is_nil(t:claim())
          assert.is_true(t:retry(2))
          assert.equal(0, t:stats().dead)
          local job = assert(t:claim())
          assert.same({ 2, 1 }, { job.row, job.attempt })
          assert(job:ack())
          assert.equal(2, t:stats().done)
        end)
      end
    end

    it("are there as well when they died before anybody adopted their table", function()
      local t = open(4, 3)
      all "UPDATE worker_queue SET failure_count = 100 WHERE id < 3"
      assert.same({ 1, 0, 0, 0, 2 }, counts(t))
      assert.is_true(t:retry(1))
      assert.equal(1, t:retry "all")
      assert.equal(3, t:stats().ready)
    end)

    it("run again by id, by ids, or all", function()
      local t = dead_commands()
      assert.is_true(t:retry(1))
      refused("STATE", "row 1 of 'worker_queue' is not dead: it runs, or may still be claimed", t:retry(1))
      refused("NOT_FOUND", "'worker_queue' has no row 99", t:retry(99))
      assert.equal(1, t:retry { 1, 2, 99 })
      assert.equal(3, t:stats().dead)
      assert.equal(3, t:retry "all")
      assert.equal(0, t:retry "all")
      for job in t:jobs() do assert(job:ack()) end
      refused("STATE", "row 2 of 'worker_queue' is not dead: it is done", t:retry(2))
      assert.equal(5, t:stats().done)
    end)

    it("run again by a filter of jobs, too, and stay with their table", function()
      local t = dead_commands()
      local kind = handle:errors({ queue = "worker_queue" })[1].error
      assert.same({ found = 5, changed = 0, refused = 0 },
        handle:move { state = "dead", queue = "worker_queue", error = kind, to = "other" })
      assert.same({ found = 5, changed = 5, refused = 0 }, handle:retry { queue = "worker_queue", error = kind })
      assert(t:pay())
      assert.equal(0, t:stats().dead)
      for job in t:jobs() do assert(job:ack()) end
      assert.equal(5, t:stats().done)
    end)

    it("run again at once, though those behind them have been looked at", function()
      local t = open(1, 3, { max_attempts = 1 })
      local jobs = assert(t:claim_many(2))
      assert(jobs[1]:discard "no")
      assert(jobs[2]:discard "no")
      assert(assert(t:claim()):ack())
      assert.is_nil(t:claim())
      assert.is_true(handle:retry(jobs[1].id))
      assert.equal(1, assert(t:claim()).row)
      assert.is_nil(t:claim())
      assert.is_true(t:retry(2))
      assert.equal(2, assert(t:claim()).row)
    end)

    it("that somebody has locked stay dead, and are waited for by nobody who asks for all", function()
      local t = dead_commands()
      local other <close> = assert(nightshift.open(url))
      assert(other._handle:begin())
      assert(other:execute "SELECT id FROM worker_queue WHERE id = 3 FOR UPDATE")
      assert.equal(4, t:retry "all")
      refused("BUSY", "row 3 of 'worker_queue' is locked by somebody else", t:retry(3))
      assert(other._handle:commit())
      assert.equal(1, t:stats().dead)
      assert.is_true(t:retry(3))
    end)

    it("do not run again when nothing says how many attempts they have", function()
      local t = open(3, 1, { max_attempts = false })
      all "UPDATE queue_table SET job_queue_status = 'failed'"
      refused("INVALID", "'max_attempts'", t:retry(1))
      refused("INVALID", "'max_attempts'", t:retry "all")
    end)

    it("are asked for with words that are known, and outside of transactions", function()
      local t = open(4, 1)
      for _, call in ipairs {
        function() t:retry() end, function() t:retry "some" end, function() t:retry { "1" } end,
        function() t:retry { error = "x" } end, function() t:retry { 1, nil, 2 } end, function() t.retry(1) end,
      } do
        local ok, message = pcall(call)
        assert.is_false(ok)
        assert.is_truthy(message:find "admin_spec.lua:%d+: nightshift: ", message)
      end
      assert.equal(0, t:retry {})
      assert(handle:transaction(function()
        refused("STATE", "inside a transaction", t:retry "all")
        return true
      end))
    end)

    it("are opened once, however many ask at once, while others die", function()
      local ROWS, PROGRAMS = 600, 4
      local t = open(4, ROWS)
      all "UPDATE worker_queue SET failure_count = 3"
      local PROGRAM = [[
      local nightshift = require "nightshift"
      local db = assert(nightshift.open(os.getenv "NIGHTSHIFT_URL"))
      local t = assert(require "nightshift.source.admin".open(db, "worker_queue"))
      local opened, died = 0, 0
      for _ = 1, 6 do
        opened = opened + assert(t:retry "all")
        for _, job in ipairs(assert(t:claim_many(40))) do
          local ok, _, code = job:discard "no"
          if ok then died = died + 1 else assert(code == "STALE", code) end
        end
      end
      print(("did %d %d"):format(opened, died))]]
      local list, opened, died = {}, 0, 0
      for i = 1, PROGRAMS do
        list[i] = proc.start { proc.lua, fixture.file("again.lua", PROGRAM), env = { NIGHTSHIFT_URL = url } }
      end
      for _, p in ipairs(list) do
        local o, d = p:wait_line("^did (%d+) (%d+)", 60)
        opened, died = opened + o, died + d
        assert.equal(0, p:wait())
      end
      assert(t:pay())
      local left = t:stats()
      assert.equal(ROWS, left.dead + left.ready + left.running)
      assert.equal(ROWS + died, opened + left.dead)
      assert.is_true(died > 0)
    end)
  end)

  describe("statements with which people look at rows", function()
    for i, published_table in ipairs(published) do
      it("of " .. published_table[1] .. " change and lock them by the primary key, and sort none that has ended",
        function()
          local t = open(i, 3000)
          all("ANALYZE TABLE " .. t.name)
          local texts = t.texts
          local PARAMS = { open_lock = { "[1,2]", 2 }, done_lock = { "[1,2]", 2 }, dead_lock = { "[1,2]", 2 },
            delete = { "[1,2]" }, again = { "[[1,0,0,null]]" }, row = { 1 }, done_pick = { 1, 10 },
            dead_pick = { 1, 10 }, open_pick = { 1, 10 }, done_old = texts.done_old and { 5, 1, 10 } }
          for statement, params in pairs(PARAMS) do
            local sql = texts[statement]:gsub("^SET STATEMENT .- FOR%s", "", 1)
            for _, row in ipairs(all("EXPLAIN " .. sql, table.unpack(params))) do
              if row.table == "t" then
                local kind = statement:find "_pick" or statement:find "_old"
                assert.equal("PRIMARY", row.key, statement)
                assert.is_truthy(kind or row.type == "eq_ref" or row.type == "const", statement .. ": " .. row.type)
              end
              assert.is_nil(tostring(row.Extra):find("filesort", 1, true), statement)
            end
          end
        end)
    end

    it("find jobs of rows by their keys", function()
      all [[INSERT INTO nightshift_unique_key (queue_id, ukey, job_id)
        SELECT 1, CONCAT('row:1:', seq), seq FROM seq_1_to_3000]]
      for _, row in ipairs(all("EXPLAIN " .. core.sql "source_jobs", 1, "row:1:", "row:1;", 10)) do
        if row.table == "nightshift_unique_key" then assert.equal("PRIMARY range", row.key .. " " .. row.type) end
        if row.table == "j" then assert.equal("PRIMARY eq_ref", row.key .. " " .. row.type) end
      end
    end)

    it("find what was decided, what rows are owed, and a job's row by their keys", function()
      open(1, 1)
      all "INSERT INTO nightshift_owed (source, row_id, job_id) SELECT seq % 3, seq, seq FROM seq_1_to_3000"
      all "ANALYZE TABLE nightshift_owed"
      local function key(statement, name, ...)
        for _, row in ipairs(all("EXPLAIN " .. core.sql(statement), ...)) do
          if row.table == name then return ("%s %s"):format(row.key, row.type) end
        end
      end
      assert.equal("PRIMARY index", key("source_list", "nightshift_owed"))
      assert.equal("PRIMARY range", key("source_tune", "nightshift_source", 5.0, 1))
      assert.equal("tab const", key("source_find", "nightshift_source", "migration_task"))
      all [[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, reason, run, attempts,
        polls,
        crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, on_fail, nonce)
        SELECT seq, 1, 'x', '1', 1, 'dead', 'failed', 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, seq, 'cancel', 1
        FROM seq_1_to_100]]
      assert.equal("PRIMARY const", key("admin_past_row", "f", 7))
    end)
  end)
end)

-- Rows that leave an adopted table: ended ones are deleted or moved to another table, and open
-- ones become jobs of another queue.
describe("moving rows:", function()
  local all, one, open, count = published.all, published.one, published.open, published.count
  local refused = published.refused
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
        assert.is_truthy(select(2, pcall(call)):find "admin_spec.lua:%d+: nightshift: ")
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
      local ROWS = 8000
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
      create(", data BLOB NULL, body MEDIUMTEXT NULL", [[(id, recipient, data, body) VALUES
        (1, 'no text', UNHEX('ff00'),
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
      local ROWS = 6000
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
end)

describe("commands on adopted tables:", function()
  local all, open = published.all, published.open
  local handle, url
  published.database(function(...) handle, url = ... end)

  local function file(i) return fixture.file("map.lua", "return " .. published[i][4]) end

  local function run(...)
    local status, out, err = proc.nightshift({ ... }, url)
    return { exit = status, out = out, err = err }
  end

  local function ok(...)
    local result = run(...)
    assert.equal(0, result.exit, result.err)
    return result.out
  end

  local function says(words, text) assert.is_truthy(text:find(words, 1, true), text) end

  describe("status", function()
    it("counts the rows of adopted tables, and shows what runs of them", function()
      open(1, 3)
      all "UPDATE migration_task SET status = 'complete' WHERE id = 3"
      local h = host.start(url, [[return { task = function(job)
      job:progress(0.5, "half of " .. job.payload.imageUrl)
      require "nightshift.core".sleep(1000)
    end }]], { "--workers", "1", "--adopt", file(1) })
      local status, row
      eventually(function()
        status = nightshift.decode(ok("status", "--json"))
        row = status.running[1]
        return row and row.status and status.adopted.tables[1].counts.running == 1
      end)
      local t = status.adopted.tables[1]
      assert.same({ "migration_task", 1, 1, 1, false, true, 0 },
        { t.table, t.counts.ready, t.counts.done, t.counts.running, t.paused, t.served, t.owed })
      assert.same({ "migration_task", 0.5 }, { row.queue, row.progress })
      local text = ok "status"
      assert.is_truthy(text:find "\nTABLE +READY +WAITING +RUNNING +DONE +DEAD +NEXT DUE", text)
      assert.is_truthy(text:find "\nmigration_task +1 +0 +1 +1 +0 ", text)
      assert.is_truthy(text:find "migration_task +task .* 50%% +half of http", text)
      h:signal "QUIT"
      assert.equal(0, h:wait(20))
    end)

    it("says what was decided about a table, what its rows are owed, and why it cannot be counted", function()
      local t = open(1, 1)
      assert.equal("migration_task paused\n", ok("pause", "migration_task"))
      assert.equal("migration_task tuned\n", ok("tune", "migration_task", "--rate", "5"))
      says("paused, 5/s", ok "status")
      assert.equal("migration_task resumed\n", ok("resume", "migration_task"))
      ok("tune", "migration_task", "--rate", "0")
      assert.is_nil(ok "status":find("5/s", 1, true))
      assert.equal(1, t:take(1))
      assert(handle:cancel(all "SELECT id FROM nightshift_job"[1].id))
      says("rows of migration_task that do not say what became of their jobs: 1; nobody has served it yet", ok "status")
      assert(t:pay())
      all "DROP TABLE migration_task"
      assert.is_truthy(ok "status":find "\nmigration_task +%- +%- +%- +%- +%- +%- +%w")
      assert.is_string(nightshift.decode(ok("status", "--json")).adopted.tables[1].error)
    end)
  end)

  describe("tune", function()
    it("changes how fast a table is worked on, for hosts that run", function()
      open(1, 200)
      ok("tune", "migration_task", "--rate", "2")
      local h = host.start(url, "return { task = function() end }", { "--adopt", file(1) })
      local function done() return all "SELECT COUNT(*) AS n FROM migration_task WHERE status = 'complete'"[1].n end
      eventually(function() return done() >= 2 end)
      assert.is_true(done() < 150)
      ok("tune", "migration_task", "--rate", "0")
      eventually(function() return done() == 200 end)
      h:signal "TERM"
      assert.equal(0, h:wait(20))
    end)

    it("says what it wants, and which tables it does not know", function()
      for _, case in ipairs {
        { { "tune", "t" }, 2, "give --rate" },
        { { "tune", "t", "--rate", "fast" }, 2, "--rate must be a number, got 'fast'" },
        { { "tune", "t", "--rate", "-1" }, 2, "--rate must be 0" }, { { "tune", "t", "--block", "5" }, 2, "--block" },
        { { "tune", "nobodys", "--rate", "1" }, 1, "nobody has adopted a table 'nobodys' yet" },
      } do
        local result = run(table.unpack(case[1]))
        assert.equal(case[2], result.exit, result.err)
        says(case[3], result.err)
      end
    end)
  end)

  describe("rows that have ended", function()
    --- Three commands, of which the last is done, and the rest are dead.
    local function prepare()
      local t = open(4, 3)
      for job in t:jobs() do
        if job.row == 3 then assert(job:ack())
        else assert(job:fail(("no route to host %d\nat all"):format(job.row), { retry_in = 0 })) end
      end
      return t
    end

    it("are listed as jobs, with their errors, or by kinds of them", function()
      prepare()
      local kind = nightshift.decode(ok("errors", "--queue", "worker_queue", "--json"))[1]
      assert.same({ "no route to host #", 2 }, { kind.error, kind.dead })
      local out = ok("jobs", "--queue", "worker_queue", "--state", "dead")
      assert.is_truthy(out:find "worker_queue +task +dead +%d+ +3/3 .* ago +failed: no route to host 1", out)
    end)

    it("run again by id, or all when that is meant", function()
      prepare()
      assert.equal("2 retried\n", ok("retry", "--table", "worker_queue", "2"))
      local again = run("retry", "--table", "worker_queue", "2", "1", "99")
      assert.same({ 1, "1 retried\n" }, { again.exit, again.out })
      says("2: row 2 of 'worker_queue' is not dead", again.err)
      says("99: 'worker_queue' has no row 99 (NOT_FOUND)", again.err)
      local t = open(4, 0) -- another program, which has not looked at rows before
      for job in t:jobs() do assert(job:fail("once more", { retry_in = 0 })) end
      local asked = run("retry", "--table", "worker_queue")
      assert.same({ 2, "" }, { asked.exit, asked.out })
      says("2 rows would be retried; add --yes to do it", asked.err)
      assert.equal("2 rows retried\n", ok("retry", "--table", "worker_queue", "--yes"))
      assert.equal("no dead rows\n", ok("retry", "--table", "worker_queue", "--yes"))
      assert.equal(2, t:stats().ready)
    end)

    it("run again by an error, or a kind of errors", function()
      local t = prepare()
      local args = { "retry", "--queue", "worker_queue", "--error", "no route to host 1" }
      says("1 job would be retried; add --yes to do it", run(table.unpack(args)).err)
      args[5] = "no route to host #"
      args[6] = "--yes"
      assert.equal("2 jobs retried\n", ok(table.unpack(args)))
      assert.equal(2, t:pay())
      assert.same({ 0, 2 }, { t:stats().dead, t:stats().ready })
      args[5] = "another"
      assert.equal("no such jobs\n", ok(table.unpack(args)))
    end)

    it("run again by their jobs", function()
      local t = prepare()
      local job = handle:jobs { queue = "worker_queue", state = "dead" }[1].id
      assert.equal(("%d retried\n"):format(job), ok("retry", tostring(job)))
      assert.equal(1, t:pay())
      assert.same({ 1, 1 }, { t:stats().dead, t:stats().ready })
    end)

    it("are deleted or moved", function()
      local t = prepare()
      local asked = run("prune", "--table", "worker_queue")
      assert.same({ 2, "" }, { asked.exit, asked.out })
      says("1 row would be deleted; add --yes to do it", asked.err)
      local missing = run("prune", "--table", "worker_queue", "--into", "worker_archive", "--yes")
      assert.equal(1, missing.exit)
      says("CREATE TABLE `worker_archive` LIKE `worker_queue`", missing.err)
      all "CREATE TABLE worker_archive LIKE worker_queue"
      assert.equal("moved 1 row\n", ok("prune", "--table", "worker_queue", "--into", "worker_archive", "--yes"))
      assert.equal("nothing to delete\n", ok("prune", "--table", "worker_queue", "--yes"))
      assert.same({ { id = 3 } }, all "SELECT id FROM worker_archive")
      assert.equal(2, t:stats().dead)
      assert.equal(2, run("prune", "--table", "worker_queue", "--older", "1d").exit)
    end)

    it("are of a table that somebody has adopted, and options say which", function()
      prepare()
      says("nobody has adopted a table 'nowhere' yet", run("retry", "--table", "nowhere").err)
      for _, args in ipairs {
        { "retry", "--table", "t", "--error", "x" }, { "retry", "--table", "t", "--state", "dead" },
        { "prune", "--older", "1d" }, { "prune", "--table", "t", "--tree", "1" },
        { "prune", "--table", "t", "--limit", "0" }, { "prune", "--table", "t", "--older", "x" },
      } do
        assert.equal(2, run(table.unpack(args)).exit, table.concat(args, " "))
      end
    end)
  end)

  describe("adopt", function()
    it("checks a mapping, counts, and says which index is missing", function()
      open(1, 3000)
      all "ANALYZE TABLE migration_task"
      local out = ok("adopt", file(1))
      says("migration_task: 3000 ready, 0 waiting, 0 running, 0 done, 0 dead\n", out)
      says("looks for rows lack an index: CREATE INDEX nightshift_claim ON `migration_task` (`status`, `id`)", out)
      local result = nightshift.decode(ok("adopt", file(1), "--json"))[1]
      assert.same({ "migration_task", 3000, true }, { result.table, result.counts.ready, result.index ~= nil })
      local wrong = run("adopt", fixture.file("wrong.lua", [[return { table = "t", status = { colum = "x" } }]]))
      assert.equal(78, wrong.exit)
      says("unknown option 'colum'; did you mean 'column'?", wrong.err)
      local twice = run("adopt", fixture.file("twice.lua", ("return { %s, %s }"):format(published[1][4],
        published[1][4])))
      says("table 'migration_task' is named twice", twice.err)
    end)

    it("makes open rows jobs of a queue when that is meant, and tells what stays", function()
      local t = open(1, 5)
      local job = assert(t:claim())
      local args = { "adopt", file(1), "--drain-into", "post" }
      local asked = run(table.unpack(args))
      assert.same({ 2, "" }, { asked.exit, asked.out })
      says("migration_task: 4 rows would become jobs of post; 1 open left; add --yes to do it", asked.err)
      assert.equal(5, all "SELECT COUNT(*) AS n FROM migration_task"[1].n)
      args[#args + 1] = "--yes"
      assert.equal("migration_task: 4 rows became jobs of post; 1 open left\n", ok(table.unpack(args)))
      assert.equal(4, #handle:jobs { queue = "post" })
      assert(job:ack())
      args[#args + 1] = "--json"
      assert.same({ { table = "migration_task", jobs = 0, left = 0 } },
        nightshift.decode(ok(table.unpack(args))))
      assert.equal(2, run("adopt", file(1), "--drain-into", "").exit)
    end)
  end)

  describe("doctor", function()
    local function adopted()
      for _, check in ipairs(nightshift.decode(run("doctor", "--json").out).findings) do
        if check.name == "adopted" then return check end
      end
    end

    it("tells of rows that wait for a host, and of those that the server refuses", function()
      local t = open(1, 2)
      assert.same({ "ok", "no row of 1 adopted tables waits for a host" }, { adopted().status, adopted().says })
      assert.equal(2, t:take(2))
      for _, job in ipairs(all "SELECT id FROM nightshift_job") do assert(handle:cancel(job.id)) end
      all "UPDATE nightshift_source SET seen = (UNIX_TIMESTAMP() - 100) * 1000000"
      local found = adopted()
      assert.equal("warn", found.status)
      assert.is_truthy(found.says:find("rows of migration_task that do not say what became of their jobs: 2; "
        .. "nobody has served it for 1%d%d%.%d s"), found.says)
      all [[CREATE TRIGGER refuses BEFORE UPDATE ON migration_task FOR EACH ROW
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one']]
      assert(t:pay())
      says("rows of migration_task that the server refuses to change: 2: not this one", adopted().says)
    end)
  end)
end)
