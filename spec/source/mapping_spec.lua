-- Mappings: each is checked against the live table before anything is written, and its order,
-- attempts, times and parents hold.

local core = require "nightshift.core"
local db = require "spec.support.db"
local designs = require "spec.support.designs"
local lab = require "spec.support.db".lab
local mapping = require "nightshift.source.mapping"
local nightshift = require "nightshift"
local published = require "spec.support.designs".published
local text = require "nightshift.source.text"

describe("mappings:", function()
  local a
  lab.handles(1, function(handle)
    a = handle
  end)

  local function code_of(_, _, code) return code end

  local function all(sql, ...) return assert(a:execute(sql, ...)) end

  local function one(sql, ...) return all(sql, ...)[1] end

  local function rows_of(jobs)
    local list = {}
    for i, job in ipairs(jobs) do list[i] = job.row end
    return list
  end

  local function adopt(name, changes) return assert(a:adopt(designs.map(name, changes))) end

  -- A table that has nothing to show that a row is taken is worked on alone.
  local function adopt_by(map)
    if type(map) == "table" and map.alone == nil then map.alone = true end
    local t, message, code = a:adopt(map)
    return t, message, code
  end

  describe("a mapping that does not fit the table:", function()
    local function refused(name, changes, words)
      designs.create(a, name, 1)
      local before = all("SELECT * FROM " .. name)
      local t, message, code = adopt_by(designs.map(name, changes))
      assert.is_nil(t)
      assert.equal("INVALID", code)
      assert.truthy(message:find(words), message)
      assert.same(before, all("SELECT * FROM " .. name))
    end

    it("is told which value its status column does not know, as the published query did not", function()
      refused("queue_table", { parent = { column = "parent_id", done = "process" } },
        "parent.done: 'process' is no value of column 'status', which is enum%(.*'processed'%)")
    end)

    --- A table with columns of these types, and a mapping that uses them as `parts` say.
    local function odd(types, parts, words)
      assert(a:execute "DROP TABLE IF EXISTS odd")
      assert(a:execute("CREATE TABLE odd (id INT AUTO_INCREMENT PRIMARY KEY, st VARCHAR(9), who VARCHAR(64), "
        .. types .. ")"))
      local map = { table = "odd", claimed_by = "who",
        status = { column = "st", open = "o", processing = "p", done = "d" } }
      for part, value in pairs(parts) do map[part] = value end
      local t, message, code = adopt_by(map)
      if not words then return assert(t, message) end
      assert.same({ nil, "INVALID" }, { t, code })
      assert.is_truthy(message:find(words), message)
    end

    it("is told of a day where times are reckoned from", function()
      odd("c DATE NULL", { claimed_at = "c", overdue = 120 },
        "claimed_at: column 'c' is date; it must be .* with a time")
      odd("c DATE NULL", { retry_after = "c" }, "retry_after: column 'c' is date; it must be a date with a time")
      odd("c DATE NULL", { completed_at = "c" })
    end)

    it("is told of numbers that hold no time", function()
      for _, kind in ipairs { "TINYINT", "SMALLINT UNSIGNED", "MEDIUMINT" } do
        for _, part in ipairs { "claimed_at", "retry_after", "completed_at" } do
          odd("c " .. kind .. " NULL", { [part] = "c" }, part .. ": column 'c' is .*; it must be INT or BIGINT")
        end
      end
      odd("c INT NULL", { completed_at = "c" })
    end)

    it("is told of attempts that a counter cannot reach", function()
      odd("n TINYINT NULL", { attempts = "n", max_attempts = 128 },
        "max_attempts: column 'n' is tinyint%(4%) and ends at 127, before 128")
      odd("n TINYINT UNSIGNED NULL", { attempts_left = "n", max_attempts = 256 }, "ends at 255, before 256")
      odd("n TINYINT NULL", { attempts = "n", max_attempts = 127 })
    end)

    it("is told what in it is not text", function()
      refused("migration_task", { claimed_by = "\xff" }, "adopt: claimed_by: .*UTF%-8")
      refused("migration_task", { status = { column = "status", open = "o\xc3", done = "done" } },
        "adopt: status.open: .*UTF%-8")
    end)

    it("is told the columns that there are", function()
      refused("migration_task", { claimed_by = "claimed_by" }, "no column 'claimed_by'; it has: id, status, iteration")
    end)

    for words, given in pairs {
      ["claimed_by: column 'id' is int"] = { "migration_task", { claimed_by = "id" } },
      ["must be a date and time, or whole seconds"] = { "migration_task", { claimed_at = "imageUrl" } },
      ["attempts: .* must be a whole number"] = { "migration_task", { attempts = "imageUrl" } },
      ["id: .* must be the primary key"] = { "migration_task", { id = "iteration" } },
      ["the same, so nobody can tell"] = {
        "migration_task", { status = { column = "status", open = "open", done = "open" } },
      },
      ["needs to know since when"] = { "queue_table", { overdue = 60 } },
      ["what shows that a row .* is taken"] = { "worker_queue", { alone = false } },
      ["not both"] = { "queue_table", { attempts = "priority" } },
      ["'status.open' is needed"] = { "job_queue", { status = { column = "state", done = "DONE" } } },
      ["how is a row marked as done"] = { "job_queue", { status = { column = "state", open = "NEW" } } },
      ['time_zone must be like "%+02:00"'] = { "job_queue", { time_zone = "'; DROP TABLE x" } },
      ["does not know the time zone 'Mars/Base'"] = { "job_queue", { time_zone = "Mars/Base" } },
      ["order must be one of id, %-id, got 'name'"] = { "job_queue", { order = "name" } },
      ["is never NULL"] = { "job_queue", { status = { column = "state", open = nightshift.null, done = "DONE" } } },
      ["is tinyint"] = { "worker_queue", { status = { column = "is_done", open = 0, done = 200 } } },
    } do
      it("is refused: " .. words, function() refused(given[1], given[2], words) end)
    end

    for words, given in pairs {
      ["id: column 'iteration' must be the primary key, by itself, and that is 'id': name that"] = {
        { id = "iteration" }, "DO 1",
      },
      ["id: column 'id' must be .* has none: ALTER TABLE `migration_task` ADD PRIMARY KEY %(`id`%)"] = {
        {}, "ALTER TABLE migration_task DROP PRIMARY KEY, ADD UNIQUE KEY (id)",
      },
      ["id: .* and that has 2 columns: make them a UNIQUE key"] = {
        {}, "ALTER TABLE migration_task DROP PRIMARY KEY, ADD PRIMARY KEY (id, iteration)",
      },
      ["completed_at: column 'gone' is GENERATED"] = {
        { completed_at = "gone" }, "ALTER TABLE migration_task ADD gone DATETIME AS (claimedAt + INTERVAL 1 DAY)",
      },
      ["attempts: column 'tries' is GENERATED"] = {
        { attempts = "tries" }, "ALTER TABLE migration_task ADD tries INT AS (iteration * 2) STORED",
      },
      ["priority.column: column 'rank' is GENERATED"] = {
        { priority = { column = "rank", decay = 1 } }, "ALTER TABLE migration_task ADD rank INT AS (iteration * 2)",
      },
      ["claimed_by: column 'claimedBy' is varchar%(19%); it must be text of 20 characters or more"] = {
        {}, "ALTER TABLE migration_task MODIFY claimedBy VARCHAR(19) NULL",
      },
      ["claimed_at and started are both column 'claimedAt'"] = { { started = "claimedAt" }, "DO 1" },
      ["completed_at and updated are both column 'completedAt'"] = { { updated = "COMPLETEDAT" }, "DO 1" },
      ["attempts and priority.column are both column 'iteration'"] = {
        { priority = { column = "iteration" } }, "DO 1",
      },
    } do
      it("is refused: " .. words, function()
        designs.create(a, "migration_task", 1)
        all(given[2])
        local t, message, code = adopt_by(designs.map("migration_task", given[1]))
        assert.is_nil(t)
        assert.equal("INVALID", code)
        assert.truthy(message:find(words), message)
      end)
    end

    it("may have a GENERATED column that is only read", function()
      designs.create(a, "migration_task", 3)
      all "ALTER TABLE migration_task ADD rank INT AS (IF(id = 2, 9, 1))"
      assert.equal(2, assert(adopt("migration_task", { priority = { column = "rank" } }):claim()).row)
    end)

    it("is refused for a table of nightshift's own", function()
      for _, name in ipairs { "nightshift_holder", "NIGHTSHIFT_job" } do
        local t, message, code = adopt_by { table = name,
          status = { column = "dead", open = nightshift.null, done = 1 } }
        assert.is_nil(t)
        assert.equal("INVALID", code)
        assert.truthy(message:find("'" .. name .. "' is, by its name, a table of nightshift's own", 1, true), message)
      end
    end)

    it("is refused when there is no such table", function()
      local _, message, code = adopt_by { table = "nowhere", status = { column = "x", open = 1, done = 2 } }
      assert.equal("NOT_FOUND", code)
      assert.truthy(message:find "no table 'nowhere'")
    end)

    for what, call in pairs {
      ["adopt wants a table of options, got nil"] = function() adopt_by() end,
      ["'table' is missing"] = function() adopt_by { status = "x" } end,
      ["'status' is missing"] = function() adopt_by { table = "x" } end,
      ["unknown option 'claimedby'; did you mean 'claimed_by'"] = function() adopt_by { claimedby = "x" } end,
      ["unknown option 'opne'; did you mean 'open'"] = function() adopt_by { status = { opne = 1 } } end,
      ["status.*: open must be text"] = function() adopt_by { status = { open = 1.5 } } end,
      ["'column' is missing"] = function() adopt_by { status = { open = 1 } } end,
      ["there is one way to claim: leave 'strategy' out"] = function() adopt_by { strategy = "skip_locked" } end,
      ["looked at each second: leave 'allow_alter' out"] = function() adopt_by { allow_alter = true } end,
    } do
      it("raises: " .. what, function()
        local ok, message = pcall(call)
        assert.is_false(ok)
        assert.truthy(message:find("^spec/source/mapping_spec%.lua:%d+: nightshift: .*" .. what), message)
      end)
    end
  end)

  describe("a table without row locks", function()
    for _, engine in ipairs { "MyISAM", "Aria", "MEMORY" } do
      it("is adopted by nobody, until it has them: " .. engine, function()
        designs.create(a, "migration_task", 2)
        all("ALTER TABLE migration_task ENGINE=" .. engine)
        local t, message, code = a:adopt(designs.map "migration_task")
        assert.same({ nil, "INVALID" }, { t, code })
        assert.equal(("adopt: table 'migration_task' is %s, which has no row locks: ALTER TABLE migration_task "
          .. "ENGINE=InnoDB"):format(engine), message)
        assert.equal(2, one "SELECT COUNT(*) AS n FROM migration_task WHERE status = 'open' AND claimedBy IS NULL".n)
        all "ALTER TABLE migration_task ENGINE=InnoDB"
        assert.is_true((assert(adopt "migration_task":claim()):ack()))
      end)
    end

    it("may be partitioned", function()
      designs.create(a, "migration_task", 2)
      all "ALTER TABLE migration_task PARTITION BY HASH (id) PARTITIONS 3"
      local jobs = assert(adopt "migration_task":claim_many(5))
      assert.equal(2, #jobs)
      for _, job in ipairs(jobs) do assert.is_true((job:ack())) end
    end)
  end)

  describe("a row whose id no job can have", function()
    local BAD = { "BIGINT", "(0), (-7)", "BIGINT UNSIGNED", "(0), (9223372036854775808), (18446744073709551615)" }

    for i = 1, 3, 2 do
      for _, name in ipairs { "migration_task", "job_queue", "checkout" } do
        it(("is never claimed, and in nobody's way: %s, %s"):format(name, BAD[i]), function()
          designs.create(a, name, 2)
          all("ALTER TABLE " .. name .. " MODIFY id " .. BAD[i] .. " NOT NULL")
          if designs[name].row:find "imageUrl" then all "ALTER TABLE migration_task ALTER imageUrl SET DEFAULT ''" end
          all("INSERT INTO " .. name .. " (id) VALUES (9223372036854775807), " .. BAD[i + 1])
          local t = adopt(name, { order = "-id" })
          for _, id in ipairs { math.maxinteger, 2, 1 } do
            local job = assert(t:claim())
            assert.equal(id, job.row)
            assert.is_true((job:ack()))
          end
          assert.is_nil(t:claim())
        end)
      end
    end
  end)

  describe("the payload", function()
    it("is the row: whole numbers exact, JSON decoded, NULL left out, the rest text", function()
      all "DROP TABLE IF EXISTS wide"
      all [[CREATE TABLE wide (id INT PRIMARY KEY, done BOOLEAN NOT NULL DEFAULT 0, big BIGINT, huge BIGINT UNSIGNED,
        r DOUBLE, d DECIMAL(20,10), j JSON, t VARCHAR(99) CHARACTER SET utf8mb4, n INT,
        at DATETIME(3))]]
      all([[INSERT INTO wide VALUES (1, 0, ?, 18446744073709551615, 0.5, 1.25, '{"a":[1,{"b":null}]}', ?, NULL,
        '2020-01-02 03:04:05.678')]], math.mininteger, 'q"\\\n\u{1F600}')
      local t = assert(a:adopt { table = "wide", status = { column = "done", open = false, done = true, failed = 2 },
        alone = true })
      local job = assert(t:claim())
      assert.same({ id = 1, done = 0, big = math.mininteger, huge = "18446744073709551615", r = 0.5, d = "1.2500000000",
        j = { a = { 1, { b = nightshift.null } } }, t = 'q"\\\n\u{1F600}', at = "2020-01-02 03:04:05.678" },
        job.payload)
    end)
  end)

  describe("the order", function()
    it("is the highest priority, then the lowest id; a row sinks with each failure", function()
      designs.create(a, "queue_table", 4)
      all "UPDATE queue_table SET priority = 100 + (id = 3)"
      local t = adopt "queue_table"
      assert.same({ 3, 1, 2, 4 }, rows_of(t:claim_many(4)))
      a:close()
      a = lab.open()
      t = adopt "queue_table"
      local job = assert(t:claim())
      assert.is_true((job:again(3600)))
      assert.same({ 3, 101 }, { job.row, one "SELECT priority AS p FROM queue_table WHERE id = 3".p })
      job = assert(t:claim())
      assert.is_true((job:fail("no", { retry_in = 3600 })))
      assert.same({ 1, 99 }, { job.row, one "SELECT priority AS p FROM queue_table WHERE id = 1".p })
      assert.equal(2, assert(t:claim()).row)
    end)

    it("is the other way round when the mapping says so", function()
      designs.create(a, "queue_table", 4)
      all "UPDATE queue_table SET priority = 100 + (id = 3)"
      local lowest = { column = "priority", higher_first = false, decay = 5 }
      local t = adopt("queue_table", { priority = lowest, order = "-id" })
      assert.same({ 4, 2, 1, 3 }, rows_of(t:claim_many(4)))
    end)

    it("stops sinking where the column ends", function()
      designs.create(a, "queue_table", 1)
      all "ALTER TABLE queue_table MODIFY priority TINYINT UNSIGNED NOT NULL"
      local t = adopt("queue_table", { priority = { column = "priority", decay = 70 } })
      for _, left in ipairs { 30, 0, 0 } do
        assert.is_true((assert(t:claim()):fail("no", { retry_in = 0 })))
        assert.equal(left, one "SELECT priority AS p FROM queue_table".p)
      end
    end)
  end)

  describe("a parent", function()
    it("is done before its child is claimed", function()
      designs.create(a, "queue_table", 2)
      all "UPDATE queue_table SET parent_id = 2 WHERE id = 1"
      local t = adopt "queue_table"
      local parent = assert(t:claim())
      assert.equal(2, parent.row)
      assert.is_nil(t:claim())
      assert.is_true((parent:ack()))
      local child = assert(t:claim())
      assert.same({ 1, 2 }, { child.row, child.payload.parent_id })
    end)
  end)

  describe("attempts", function()
    it("that are spent end a row as failed", function()
      designs.create(a, "queue_table", 1)
      all "UPDATE queue_table SET attempts = 2"
      local t = adopt "queue_table"
      assert.same({ true, false }, { assert(t:claim()):fail("no", { retry_in = 0 }) })
      assert.same({ true, true }, { assert(t:claim()):fail("no", { retry_in = 0 }) })
      assert.same({ status = "failed", attempts = 0 }, one "SELECT status, attempts FROM queue_table")
      assert.is_nil(t:claim())
    end)

    it("stop counting where the column ends", function()
      designs.create(a, "migration_task", 1)
      all "ALTER TABLE migration_task MODIFY iteration TINYINT NOT NULL DEFAULT 126"
      all "UPDATE migration_task SET iteration = 126"
      local t = adopt "migration_task"
      for _ = 1, 2 do
        assert.is_true((assert(t:claim()):fail("no", { retry_in = 0 })))
        assert.equal(127, one "SELECT iteration AS n FROM migration_task".n)
      end
    end)

    it("are over with a discard; a row that cannot say so stays out of the way", function()
      designs.create(a, "queue_table", 1)
      assert.is_true((assert(adopt "queue_table":claim()):discard "no use"))
      assert.equal("failed", one "SELECT status FROM queue_table".status)
      designs.create(a, "worker_queue", 1)
      assert.is_true((assert(adopt "worker_queue":claim()):discard "no use"))
      assert.equal(3, one "SELECT failure_count AS n FROM worker_queue".n)
      designs.create(a, "migration_task", 1)
      local t = adopt "migration_task"
      local job = assert(t:claim())
      assert.is_true((job:discard "no use"))
      assert.same({ status = "processing", claimedBy = "ns:" .. job.id },
        one "SELECT status, claimedBy FROM migration_task")
      assert.is_nil(t:claim())
      assert.equal("dead", a:job(job.id).state)
    end)
  end)

  describe("retry_after", function()
    it("keeps a row back until it is over", function()
      designs.create(a, "queue_table", 2)
      all "UPDATE queue_table SET retry_after = NOW() + INTERVAL 1 HOUR WHERE id = 1"
      local t = adopt "queue_table"
      assert.same({ 2 }, rows_of(t:claim_many(5)))
      all "UPDATE queue_table SET retry_after = NOW() WHERE id = 1"
      eventually(function() return #t:claim_many(5) == 1 end)
    end)

    it("says when a job that has failed runs again", function()
      designs.create(a, "queue_table", 1)
      local t = adopt "queue_table"
      local job = assert(t:claim())
      assert.is_true((job:fail("no", { retry_in = 3600 })))
      local left = one "SELECT TIMESTAMPDIFF(SECOND, NOW(), retry_after) AS s FROM queue_table".s
      assert.is_true(left >= 3590 and left <= 3601, left)
      assert.is_nil(t:claim())
      assert.is_true((a:run_now(job.id)))
      assert.equal(1, assert(t:claim()).row)
    end)

    for _, kind in ipairs { "DATETIME", "DATETIME(1)", "TIMESTAMP", "BIGINT" } do
      it("is never before the delay is over where it is " .. kind, function()
        designs.create(a, "queue_table", 4)
        all("ALTER TABLE queue_table MODIFY retry_after " .. kind .. " NULL")
        local jobs = adopt "queue_table":claim_many(4)
        for i, delay in ipairs { 0.001, 0.45, 0.9, 1.9 } do
          local since = one "SELECT UNIX_TIMESTAMP(NOW(6)) AS t".t
          assert.is_true((jobs[i]:fail("no", { retry_in = delay })))
          local row = one("SELECT UNIX_TIMESTAMP("
            .. (kind == "BIGINT" and "FROM_UNIXTIME(retry_after)" or "retry_after")
            .. ") AS t FROM queue_table WHERE id = ?", jobs[i].row)
          assert.is_true(row.t - since >= delay and row.t - since < delay + 10, row.t - since)
        end
      end)
    end

    it("is kept in the time zone of the mapping", function()
      designs.create(a, "queue_table", 3)
      all "UPDATE queue_table SET retry_after = UTC_TIMESTAMP() + INTERVAL 285 + 10 * id MINUTE"
      local t = adopt("queue_table", { time_zone = "+05:00" })
      local jobs = t:claim_many(5)
      assert.same({ 1 }, rows_of(jobs)) -- 295 minutes: over for five
      assert.is_true((jobs[1]:fail("no", { retry_in = 60 })))
      local ahead = one [[SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), retry_after) AS s
        FROM queue_table WHERE id = 1]].s
      assert.is_true(ahead > 5 * 3600 and ahead <= 5 * 3600 + 61, ahead)
    end)

    it("may be whole seconds", function()
      designs.create(a, "queue_table", 2)
      all "ALTER TABLE queue_table MODIFY retry_after BIGINT NULL"
      all "UPDATE queue_table SET retry_after = UNIX_TIMESTAMP() + 600 WHERE id = 2"
      local t = adopt "queue_table"
      local jobs = t:claim_many(5)
      assert.same({ 1 }, rows_of(jobs))
      assert.is_true((jobs[1]:fail("no", { retry_in = 60 })))
      local left = one "SELECT retry_after - UNIX_TIMESTAMP() AS s FROM queue_table WHERE id = 1".s
      assert.is_true(left > 50 and left <= 61, left)
    end)
  end)

  describe("a claim", function()
    it("is written into the row, and taken out again", function()
      designs.create(a, "migration_task", 1)
      local job = assert(adopt "migration_task":claim())
      local row = one [[SELECT status, claimedBy, TIMESTAMPDIFF(SECOND, claimedAt, NOW()) < 10 AS fresh
        FROM migration_task]]
      assert.same({ status = "processing", claimedBy = "ns:" .. job.id, fresh = 1 }, row)
      assert.is_true((job:ack()))
      row = one "SELECT status, TIMESTAMPDIFF(SECOND, completedAt, NOW()) < 10 AS fresh FROM migration_task"
      assert.same({ status = "complete", fresh = 1 }, row)
    end)

    it("is none inside a transaction; a verdict inside one counts when that commits", function()
      designs.create(a, "migration_task", 1)
      local t = adopt "migration_task"
      local job = assert(t:claim())
      assert.error(function()
        a:transaction(function()
          assert.equal("STATE", code_of(t:claim()))
          assert.is_true((job:ack()))
          error "back"
        end)
      end)
      assert.equal("processing", one "SELECT status FROM migration_task".status)
      assert.is_true((a:transaction(function() assert.is_true((job:ack())) end)))
      assert.equal("complete", one "SELECT status FROM migration_task".status)
    end)

    it("of our own is never overdue", function()
      designs.create(a, "migration_task", 1)
      local t = adopt "migration_task"
      local job = assert(t:claim())
      all "UPDATE migration_task SET claimedAt = NOW() - INTERVAL 10 MINUTE"
      assert.equal(0, t:rescue())
      assert.is_true((job:ack()))
    end)

    it("may have children, and waits for them", function()
      designs.create(a, "job_queue", 1)
      local t = adopt "job_queue"
      local job = assert(t:claim())
      assert(job:spawn("part", { n = 1 }))
      assert.is_true((job:wait()))
      assert.equal("WORKING", one "SELECT state FROM job_queue".state)
      local child = assert(t:claim())
      assert.same({ "part", nil }, { child.name, child.row })
      assert.is_true((child:ack "whole"))
      job = assert(t:claim())
      assert.same({ 1, 1, "whole" }, { job.row, job.phase, job.results[1].result })
      assert.is_true((job:ack()))
      assert.equal("DONE", one "SELECT state FROM job_queue".state)
    end)
  end)
end)

-- The statements that a mapping makes of an adopted table. Each published one, as the server
-- plans and runs it; and times in hours that are missing or come twice.
describe("statements of mappings:", function()
  local handle
  setup(function() handle = assert(nightshift.open((db.fresh()))) end)
  teardown(function() handle:close() end)

  local function all(sql, ...) return assert(handle._handle:execute(sql, ...)) end

  --- The mapping of a published table, and its statements.
  local function texts_of(source, changes)
    local given = load("return " .. source)()
    for key, value in pairs(changes or {}) do given[key] = value end
    local map = assert(mapping.check(handle._handle, given))
    local texts = text.make(map, 1, 1, "here")
    return texts
  end

  local NAMES = { "look", "next", "lock", "mark", "hold", "wait", "lost", "lives", "done", "dead", "open", "retry",
    "renew", "overdue", "overdue_lock", "reset" }

  -- Values for the placeholders of a statement, by its name.
  local PARAMS = { look = { 1, "[3]", nightshift.null, 10 }, next = {},
    lock = { "[1,2,3]", 3 }, overdue = { 10 }, overdue_lock = { "[1,2]", 2 } }

  local function params_of(statement)
    return table.unpack(PARAMS[statement] or { "[[1,5,1,1700000000000000],[2,6,0,null]]" })
  end

  for _, published_table in ipairs(published) do
    local table_name, definition, rows, given = table.unpack(published_table)

    describe("statements about " .. table_name, function()
      local texts

      --- Calls fn with each statement that the mapping needs.
      local function each(fn)
        for _, statement in ipairs(NAMES) do
          if texts[statement] then fn(statement, texts[statement]) end
        end
      end

      setup(function()
        all(definition)
        all(("INSERT INTO %s %s FROM seq_1_to_3000"):format(table_name, rows))
        all("ANALYZE TABLE " .. table_name)
        texts = texts_of(given)
      end)

      it("change and lock rows by the primary key, one at a time", function()
        each(function(statement, sql)
          local plan = {}
          for _, row in ipairs(all("EXPLAIN " .. sql:gsub("^SET STATEMENT .- FOR%s", "", 1), params_of(statement))) do
            plan[row.table or "-"] = row
          end
          if statement ~= "look" and statement ~= "overdue" and statement ~= "next" then
            assert.is_truthy(plan.t, statement .. ": " .. tostring(plan["-"] and plan["-"].Extra) .. "\n" .. sql)
            assert.same({ "PRIMARY", "eq_ref" }, { plan.t.key, plan.t.type }, statement .. ": " .. sql)
          end
          assert.is_nil(tostring(plan.l and plan.l.Extra):find("filesort", 1, true), statement)
        end)
      end)

      it("are taken by the server", function()
        each(function(statement, sql)
          assert(handle._handle:begin())
          local result, message = handle._handle:execute(sql, params_of(statement))
          assert.is_truthy(result, ("%s: %s\n%s"):format(statement, message, sql))
          handle._handle:rollback()
        end)
      end)

      it("find rows in order, and leave some alone", function()
        local found = all(texts.look, 1, "[3]", nightshift.null, 5)
        for i, row in ipairs(found) do assert.is_true(row.id ~= 3 and (i == 1 or row.id > found[i - 1].id)) end
        assert.is_true(#found > 0)
      end)

      it("take a row, hold it for its job and no other, and give it back", function()
        assert(handle._handle:begin())
        local id = all(texts.look, 1, "[]", nightshift.null, 1)[1].id
        assert.equal(1, #all(texts.lock, ("[%d]"):format(id), 1))
        if texts.mark then all(texts.mark, ("[[%d,77]]"):format(id)) end
        local mine, other = ("[[%d,77,1,null]]"):format(id), ("[[%d,78]]"):format(id)
        assert.same({ id }, { all(texts.hold, mine)[1].id })
        if texts.hold:find("ns:", 1, true) then
          assert.same({}, all(texts.hold, other))
          assert.same({ { id = id, job = 78 } }, all(texts.lost, other))
        end
        assert.same({}, all(texts.lost, mine))
        all(texts.open, mine)
        assert.equal(1, #all(texts.lock, ("[%d]"):format(id), 1))
        if texts.mark then
          assert.equal(0, all(texts.done, mine).affected)
          all(texts.mark, mine)
        end
        assert.equal(1, all(texts.done, mine).affected)
        assert.same({}, all(texts.lock, ("[%d]"):format(id), 1))
        handle._handle:rollback()
      end)
    end)
  end

  describe("statements about what rows are owed, and their jobs,", function()
    setup(function()
      all [[INSERT INTO nightshift_owed (source, row_id, job_id) SELECT seq % 3, seq, seq FROM seq_1_to_3000]]
      all [[INSERT INTO nightshift_unique_key (queue_id, ukey, job_id)
        SELECT seq % 3 + 1, CONCAT('row:1:', seq), seq FROM seq_1_to_3000]]
      all "ANALYZE TABLE nightshift_owed, nightshift_unique_key"
    end)

    for statement, found in pairs {
      source_attempts = { "j", "PRIMARY", "[[1,2]]" }, source_turn = { "nightshift_source", "PRIMARY", 1, 5 },
      source_back_unready = { "r", "PRIMARY", 1, "[[100,5,1]]" },
      source_back_ready = { "r", "PRIMARY", 1, 1, 1, "[1]", 10 },
      source_debts = { "nightshift_owed", "of_row", 1, 5, 6, 10 },
      source_live = { "nightshift_unique_key", "PRIMARY", 1, "row:1:",
        "row:1;", 10 }, source_paid = { "o", "PRIMARY", "[1,2]" },
      source_refused = { "nightshift_owed", "of_row", "no", 1, 2 },
    } do
      it("read by key: " .. statement, function()
        local row
        for _, each in ipairs(all("EXPLAIN " .. core.sql(statement), table.unpack(found, 3))) do
          if each.table == found[1] then row = each end
        end
        assert.equal(found[2], row.key)
        assert.is_true(row.type == "eq_ref" or row.type == "ref" or row.type == "range", row.type)
        assert.is_nil(tostring(row.Extra):find("filesort", 1, true))
      end)
    end

    it("read by key: source_known", function()
      local keys = {}
      for _, row in ipairs(all("EXPLAIN " .. core.sql "source_known", 1, 1, "[1,2]")) do
        keys[row.table or "-"] = ("%s %s"):format(row.key, row.type)
      end
      assert.same({ "PRIMARY eq_ref", "of_row ref" }, { keys.u, keys.o })
    end)
  end)

  -- A zone with an hour that is missing, from 1774746000 on, and one that comes twice, from
  -- 1792890000.
  describe("times without a zone", function()
    local SPRING, AUTUMN, HOUR = 1774746000, 1792890000, 3600

    setup(function()
      db.sql(([[REPLACE INTO time_zone (Time_zone_id, Use_leap_seconds) VALUES (9001, 'N');
        REPLACE INTO time_zone_name (Name, Time_zone_id) VALUES ('Spec/Summer', 9001);
        REPLACE INTO time_zone_transition_type (Time_zone_id, Transition_type_id, `Offset`, Is_DST, Abbreviation)
          VALUES (9001, 0, 3600, 0, 'W'), (9001, 1, 7200, 1, 'S');
        REPLACE INTO time_zone_transition (Time_zone_id, Transition_time, Transition_type_id)
          VALUES (9001, 0, 0), (9001, %d, 1), (9001, %d, 0)]]):format(SPRING, AUTUMN), "mysql")
      all [[CREATE TABLE timed (id INT PRIMARY KEY, st VARCHAR(9) NOT NULL, who VARCHAR(40) NULL,
        at DATETIME NULL, later DATETIME NULL)]]
    end)

    local MAP = [[{ table = "timed", claimed_by = "who", claimed_at = "at", retry_after = "later", overdue = 600,
      time_zone = "Spec/Summer", status = { column = "st", open = "o", processing = "p", done = "d" } }]]

    local function at(instant) all("SET timestamp = " .. instant) end

    after_each(function()
      all "SET timestamp = DEFAULT"
      all "DELETE FROM timed"
    end)

    --- How many rows are overdue so many seconds after one was claimed at an instant.
    local function overdue(texts, claimed, seconds)
      all "DELETE FROM timed"
      all("INSERT INTO timed VALUES (1, 'p', 'them', CONVERT_TZ(FROM_UNIXTIME(?), '+00:00', 'Spec/Summer'), NULL)",
        claimed)
      at(claimed + seconds)
      return #all(texts.overdue, 10)
    end

    it("are overdue after as long as always when an hour is missing", function()
      local texts = texts_of(MAP)
      for _, claimed in ipairs { SPRING - 300, SPRING - 1, SPRING, SPRING + 300 } do
        assert.equal(0, overdue(texts, claimed, 599), claimed)
        assert.equal(1, overdue(texts, claimed, 601), claimed)
      end
    end)

    it("are never overdue too soon when an hour comes twice", function()
      local texts = texts_of(MAP)
      for _, claimed in ipairs { AUTUMN - HOUR - 1, AUTUMN - HOUR, AUTUMN - 300, AUTUMN, AUTUMN + 300,
        AUTUMN + HOUR } do
        assert.equal(0, overdue(texts, claimed, 599), claimed)
        assert.equal(1, overdue(texts, claimed, 601 + HOUR), claimed)
      end
    end)

    it("of a retry that would fall into the missing hour are behind it", function()
      local texts = texts_of(MAP)
      at(SPRING - 60)
      all "INSERT INTO timed VALUES (1, 'p', 'ns:5', NULL, NULL)"
      all(texts.lives, ("[[1,5,1,%d]]"):format((SPRING + 60) * 1000000 - 1))
      all "UPDATE timed SET st = 'o', who = NULL"
      assert.equal("2026-03-29 03:01:00", all "SELECT later FROM timed"[1].later)
      assert.equal(0, #all(texts.look, 1, "[]", nightshift.null, 5))
      at(SPRING + 59)
      assert.equal(0, #all(texts.look, 1, "[]", nightshift.null, 5))
      at(SPRING + 60)
      assert.equal(1, #all(texts.look, 1, "[]", nightshift.null, 5))
    end)

    it("that are too far away for the server's clock are not over", function()
      local texts = texts_of(MAP)
      all "INSERT INTO timed VALUES (1, 'o', NULL, NULL, '9999-12-31 23:59:59')"
      assert.equal(0, #all(texts.look, 1, "[]", nightshift.null, 5))
    end)
  end)
end)
