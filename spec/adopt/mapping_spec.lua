-- What a mapping may say: it is checked against the live table before anything is written, what
-- it says of order, attempts, times and parents is what happens, and by which plans.

local designs = require "spec.support.designs"
local lab = require "spec.support.lab"
local mapping = require "nightshift.source.mapping"
local nightshift = require "nightshift"

local a
lab.handles(1, function(handle) a = handle end)

local function code_of(_, _, code) return code end

local function all(sql, ...) return assert(a:execute(sql, ...)) end

local function one(sql, ...) return all(sql, ...)[1] end

local function ids(jobs)
  local list = {}
  for i, job in ipairs(jobs) do list[i] = job.id end
  return list
end

local function adopt(name, changes) return assert(a:adopt(designs.map(name, changes))) end

-- Both ways to work on a table check its mapping alike.
local ENGINES = {}

function ENGINES.adopted(map)
  if type(map) == "table" then map.alone = nil end
  local t, message, code = a:adopt(map)
  return t, message, code
end

-- One that has nothing else to show that a row is taken works on it alone.
function ENGINES.source(map)
  if type(map) == "table" then
    map.strategy = nil
    if map.alone == nil then map.alone = true end
  end
  local t, message, code = mapping.check(a._handle, map)
  return t, message, code
end

for engine, adopt_by in pairs(ENGINES) do
describe("a mapping that does not fit the table, " .. engine .. ":", function()
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
    local map = { table = "odd", strategy = "skip_locked", claimed_by = "who",
      status = { column = "st", open = "o", processing = "p", done = "d" } }
    for part, value in pairs(parts) do map[part] = value end
    local t, message, code = adopt_by(map)
    if not words then return assert(t, message) end
    assert.same({ nil, "INVALID" }, { t, code })
    assert.is_truthy(message:find(words), message)
  end

  it("is told of a day where times are reckoned from", function()
    odd("c DATE NULL", { claimed_at = "c", overdue = 120 }, "claimed_at: column 'c' is date; it must be .* with a time")
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
      "adopt: status: open: .*UTF%-8")
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
    ["needs to know since when"] = { "queue_table", { overdue = 60, strategy = "transaction" } },
    ["does not say which rows it took"] = { "queue_table", { strategy = "update_limit" } },
    ["what shows that a row .* is taken"] = { "worker_queue", { strategy = "skip_locked", alone = false } },
    ["not both"] = { "queue_table", { attempts = "priority" } },
    ["'status.open' is needed"] = { "job_queue", { status = { column = "state", done = "DONE" } } },
    ["how is a row marked as done"] = { "job_queue", { status = { column = "state", open = "NEW" } } },
    ['time_zone must be like "%+02:00"'] = { "job_queue", { time_zone = "'; DROP TABLE x" } },
    ["does not know the time zone 'Mars/Base'"] = { "job_queue", { time_zone = "Mars/Base" } },
    ['order must be "id" or "%-id"'] = { "job_queue", { order = "name" } },
    ["is never NULL"] = { "job_queue", { status = { column = "state", open = nightshift.null, done = "DONE" } } },
    ["is tinyint"] = { "worker_queue", { status = { column = "is_done", open = 0, done = 200 } } },
  } do
    local only = words == "does not say which rows it took" and "adopted" or engine
    if only == engine then it("is refused: " .. words, function() refused(given[1], given[2], words) end) end
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

  if engine == "adopted" then it("may have a GENERATED column that is only read", function()
    designs.create(a, "migration_task", 3)
    all "ALTER TABLE migration_task ADD rank INT AS (IF(id = 2, 9, 1))"
    assert.equal(2, assert(adopt("migration_task", { priority = { column = "rank" } }):claim()).id)
  end) end

  it("is refused for a table of nightshift's own", function()
    for _, name in ipairs { "nightshift_holder", "NIGHTSHIFT_job" } do
      local t, message, code = adopt_by { table = name, status = { column = "dead", open = nightshift.null, done = 1 } }
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
  } do
    it("raises: " .. what, function()
      local ok, message = pcall(call)
      assert.is_false(ok)
      assert.truthy(message:find("^spec/adopt/mapping_spec%.lua:%d+: nightshift: .*" .. what), message)
    end)
  end
end)
end

describe("a table without row locks", function()
  for _, engine in ipairs { "MyISAM", "Aria", "MEMORY" } do
    it("is claimed from by nobody, until it has them: " .. engine, function()
      designs.create(a, "migration_task", 2)
      all("ALTER TABLE migration_task ENGINE=" .. engine)
      for _, strategy in ipairs(designs.migration_task.strategies) do
        local t = adopt("migration_task", { strategy = strategy })
        local job, message, code = t:claim()
        assert.is_nil(job)
        assert.equal("INVALID", code)
        assert.equal(("table 'migration_task' is %s, which has no row locks: ALTER TABLE migration_task ENGINE=InnoDB, "
          .. "or move its rows out with nightshift adopt --drain-into"):format(engine), message)
        assert.equal(2, one "SELECT COUNT(*) AS n FROM migration_task WHERE status = 'open' AND claimedBy IS NULL".n)
      end
      local t = adopt "migration_task"
      assert.equal("INVALID", code_of(t:claim()))
      all "ALTER TABLE migration_task ENGINE=InnoDB"
      assert.is_true((assert(t:claim()):ack()))
    end)
  end

  it("may be partitioned", function()
    designs.create(a, "migration_task", 2)
    all "ALTER TABLE migration_task PARTITION BY HASH (id) PARTITIONS 3"
    assert.equal(2, #assert(adopt "migration_task":claim_many(5)))
  end)
end)

describe("a row whose id no job can have", function()
  local BAD = { "BIGINT", "(0), (-7)", "BIGINT UNSIGNED", "(0), (9223372036854775808), (18446744073709551615)" }

  for i = 1, 3, 2 do
    for _, name in ipairs { "migration_task", "job_queue", "checkout" } do
      for _, strategy in ipairs(designs[name].strategies) do
        it(("is never claimed, and in nobody's way: %s by %s, %s"):format(name, strategy, BAD[i]), function()
          designs.create(a, name, 2)
          all("ALTER TABLE " .. name .. " MODIFY id " .. BAD[i] .. " NOT NULL")
          if designs[name].row:find "imageUrl" then all "ALTER TABLE migration_task ALTER imageUrl SET DEFAULT ''" end
          all("INSERT INTO " .. name .. " (id) VALUES (9223372036854775807), " .. BAD[i + 1])
          local t = adopt(name, { strategy = strategy, order = "-id" })
          for _, id in ipairs { math.maxinteger, 2, 1 } do
            local job = assert(t:claim())
            assert.equal(id, job.id)
            assert.is_true((job:ack()))
          end
          assert.is_nil(t:claim())
          local stats = assert(t:stats())
          assert.same({ 0, 0, 3 }, { stats.ready, stats.waiting, stats.done })
        end)
      end
    end
  end

  it("is added and changed without a warning where triggers ring", function()
    designs.create(a, "migration_task", 0)
    all "ALTER TABLE migration_task MODIFY id BIGINT UNSIGNED NOT NULL"
    local t = adopt("migration_task", { allow_alter = true })
    all "INSERT INTO migration_task (id, imageUrl) VALUES (18446744073709551615, 'x'), (0, 'y')"
    assert.same({}, all "SHOW WARNINGS")
    all "UPDATE migration_task SET imageUrl = 'z'"
    assert.same({}, all "SHOW WARNINGS")
    assert.is_nil(t:claim())
  end)
end)

describe("names of columns", function()
  it("may be anything that the server takes, and are found whatever their case", function()
    all "DROP TABLE IF EXISTS `select`"
    all [[CREATE TABLE `select` (`the ``id` INT PRIMARY KEY, `order` VARCHAR(9) NOT NULL, `x?y` VARCHAR(64) NULL)]]
    all "INSERT INTO `select` VALUES (7, 'a''b', NULL)"
    local t = assert(a:adopt { table = "select", id = "THE `ID", claimed_by = "X?Y",
      status = { column = "Order", open = "a'b", processing = "?", done = "`" } })
    local job = assert(t:claim())
    assert.same({ 7, "?" }, { job.payload["the `id"], job.payload.order })
    assert.is_true((job:ack()))
    assert.equal("`", one "SELECT `order` AS o FROM `select`".o)
  end)
end)

describe("the payload", function()
  it("is the row: whole numbers exact, JSON decoded, NULL left out, the rest text", function()
    all "DROP TABLE IF EXISTS wide"
    all [[CREATE TABLE wide (id INT PRIMARY KEY, done BOOLEAN NOT NULL DEFAULT 0, big BIGINT, huge BIGINT UNSIGNED,
      r DOUBLE, d DECIMAL(20,10), j JSON, t VARCHAR(99) CHARACTER SET utf8mb4, n INT,
      at DATETIME(3))]]
    all([[INSERT INTO wide VALUES (1, 0, ?, 18446744073709551615, 0.5, 1.25, '{"a":[1,{"b":null}]}', ?, NULL,
      '2020-01-02 03:04:05.678')]], math.mininteger, 'q"\\\n\u{1F600}')
    local t = assert(a:adopt { table = "wide", status = { column = "done", open = false, done = true } })
    local job = assert(t:claim())
    assert.same({ id = 1, done = 0, big = math.mininteger, huge = "18446744073709551615", r = 0.5, d = "1.2500000000",
      j = { a = { 1, { b = nightshift.null } } }, t = 'q"\\\n\u{1F600}', at = "2020-01-02 03:04:05.678" }, job.payload)
  end)
end)

describe("the order", function()
  it("is the highest priority, then the lowest id; a row sinks with each unfinished return", function()
    designs.create(a, "queue_table", 4)
    all "UPDATE queue_table SET priority = 100 + (id = 3)"
    local t = adopt "queue_table"
    assert.same({ 3, 1, 2, 4 }, ids(t:claim_many(4)))
    a:close()
    local other <close> = lab.open()
    t = assert(other:adopt(designs.map "queue_table"))
    assert.is_true((assert(t:claim()):again(0)))
    assert.equal(100, other:execute "SELECT priority AS p FROM queue_table WHERE id = 3"[1].p)
    local first = assert(t:claim())
    assert.equal(1, first.id)
    assert.is_true((first:fail("no", { retry_in = 0 })))
    assert.equal(2, assert(t:claim()).id)
  end)

  it("is the other way round when the mapping says so", function()
    designs.create(a, "queue_table", 4)
    all "UPDATE queue_table SET priority = 100 + (id = 3)"
    local lowest = { column = "priority", higher_first = false, decay = 5 }
    local t = adopt("queue_table", { priority = lowest, order = "-id" })
    assert.same({ 4, 2, 1, 3 }, ids(t:claim_many(4)))
  end)

  it("stops sinking where the column ends", function()
    designs.create(a, "queue_table", 1)
    all "ALTER TABLE queue_table MODIFY priority TINYINT UNSIGNED NOT NULL"
    local t = adopt("queue_table", { priority = { column = "priority", decay = 70 } })
    for _, left in ipairs { 30, 0, 0 } do
      assert.is_true((assert(t:claim()):again(0)))
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
    assert.same({ 2 }, { parent.id })
    assert.is_nil(t:claim())
    assert.is_true((parent:ack()))
    local child = assert(t:claim())
    assert.same({ 1, 2 }, { child.id, child.parent })
  end)
end)

describe("attempts", function()
  it("that are spent end a row as failed", function()
    designs.create(a, "queue_table", 1)
    all "UPDATE queue_table SET attempts = 2"
    local t = adopt "queue_table"
    assert.same({ true, false }, { assert(t:claim()):fail("no", { retry_in = 0 }) })
    assert.same({ true, true }, { assert(t:claim()):fail("no", { retry_in = 0 }) })
    local row = one "SELECT status, attempts FROM queue_table"
    assert.same({ status = "failed", attempts = 0 }, row)
    assert.is_nil(t:claim())
  end)

  it("end a row where no status says so", function()
    designs.create(a, "worker_queue", 2)
    local t = adopt "worker_queue"
    for i = 1, 3 do
      local job = assert(t:claim())
      assert.same({ 1, i, i - 1 }, { job.id, job.attempt, job.payload.failure_count })
      assert.same({ true, i == 3 }, { job:fail "no" })
    end
    assert.equal(2, assert(t:claim()).id)
    assert.same({ is_done = 0, failure_count = 3 }, one "SELECT is_done, failure_count FROM worker_queue WHERE id = 1")
  end)

  it("stop counting where the column ends", function()
    designs.create(a, "worker_queue", 1)
    all "UPDATE worker_queue SET failure_count = 127"
    local map = designs.map "worker_queue"
    map.max_attempts = nil
    local t = assert(a:adopt(map))
    assert.is_true((assert(t:claim()):fail "no"))
    assert.equal(127, one "SELECT failure_count AS n FROM worker_queue".n)
  end)

  it("are over with a discard; a row that cannot be given up says so", function()
    designs.create(a, "queue_table", 1)
    assert.is_true((assert(adopt "queue_table":claim()):discard "no use"))
    assert.equal("failed", one "SELECT status FROM queue_table".status)
    designs.create(a, "worker_queue", 1)
    assert.is_true((assert(adopt "worker_queue":claim()):discard "no use"))
    assert.equal(3, one "SELECT failure_count AS n FROM worker_queue".n)
    designs.create(a, "migration_task", 1)
    local job = assert(adopt "migration_task":claim())
    local _, message, code = job:discard "no use"
    assert.equal("INVALID", code)
    assert.truthy(message:find "cannot be given up", message)
    assert.is_true((job:ack()))
  end)
end)

describe("retry_after", function()
  it("keeps a row back for the delay of its verdict", function()
    designs.create(a, "queue_table", 2)
    local t = adopt "queue_table"
    assert.is_true((assert(t:claim()):again(3600)))
    local left = one "SELECT TIMESTAMPDIFF(SECOND, NOW(), retry_after) AS s FROM queue_table WHERE id = 1".s
    assert.is_true(left >= 3590 and left <= 3601, left)
    assert.same({ 2 }, ids(t:claim_many(5)))
    all "UPDATE queue_table SET retry_after = NOW() WHERE id = 1"
    assert.same({ 1 }, ids(t:claim_many(5)))
  end)

  for _, kind in ipairs { "DATETIME", "DATETIME(1)", "TIMESTAMP", "BIGINT" } do
    it("is never before the delay is over where it is " .. kind, function()
      designs.create(a, "queue_table", 4)
      all("ALTER TABLE queue_table MODIFY retry_after " .. kind .. " NULL")
      local t = adopt "queue_table"
      for _, delay in ipairs { 0.001, 0.45, 0.9, 1.9 } do
        local job = assert(t:claim())
        local since = one "SELECT UNIX_TIMESTAMP(NOW(6)) AS t".t
        assert.is_true((job:again(delay)))
        local row = one("SELECT UNIX_TIMESTAMP(" .. (kind == "BIGINT" and "FROM_UNIXTIME(retry_after)" or "retry_after")
          .. ") AS t FROM queue_table WHERE id = ?", job.id)
        assert.is_true(row.t - since >= delay and row.t - since < delay + 10, row.t - since)
      end
      all "UPDATE queue_table SET status = 'queued', retry_after = NULL"
      assert.is_true((assert(t:claim()):again(0)))
      assert(t:claim())
    end)
  end

  it("is kept in the time zone of the mapping", function()
    designs.create(a, "queue_table", 1)
    local t = adopt("queue_table", { time_zone = "+05:00" })
    assert.is_true((assert(t:claim()):again(60)))
    local ahead = one "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), retry_after) AS s FROM queue_table".s
    assert.is_true(ahead > 5 * 3600 and ahead <= 5 * 3600 + 61, ahead)
    assert.is_nil(t:claim())
    all "UPDATE queue_table SET retry_after = UTC_TIMESTAMP() + INTERVAL 4 HOUR"
    assert(t:claim())
  end)

  it("may be whole seconds", function()
    designs.create(a, "queue_table", 1)
    all "ALTER TABLE queue_table MODIFY retry_after BIGINT NULL"
    local t = adopt "queue_table"
    assert.is_true((assert(t:claim()):again(60)))
    local left = one "SELECT retry_after - UNIX_TIMESTAMP() AS s FROM queue_table".s
    assert.is_true(left > 50 and left <= 61, left)
    assert.is_nil(t:claim())
  end)
end)

describe("a claim that is overdue", function()
  it("comes back, whoever has it, with an attempt more", function()
    designs.create(a, "migration_task", 2)
    local t = adopt("migration_task", { strategy = "update_limit" })
    local job = assert(t:claim())
    all [[UPDATE migration_task SET status = 'processing', claimedBy = 'somebody', claimedAt = NOW() - INTERVAL 3 MINUTE
      WHERE id = 2]]
    assert.equal(1, t:rescue())
    all "UPDATE migration_task SET claimedAt = NOW() - INTERVAL 119 SECOND WHERE id = 1"
    assert.equal(0, t:rescue())
    assert.is_true((job:touch())) -- from now on
    all "UPDATE migration_task SET claimedAt = NOW() - INTERVAL 121 SECOND WHERE id = 1"
    assert.equal(1, t:rescue())
    assert.equal("STALE", code_of(job:ack()))
    for _, row in ipairs(all "SELECT status, iteration, claimedBy, claimedAt FROM migration_task") do
      assert.same({ status = "open", iteration = 1 }, row)
    end
  end)
end)

describe("a claim", function()
  it("is written into the row, and taken out again", function()
    designs.create(a, "migration_task", 1)
    local job = assert(adopt "migration_task":claim())
    local row = one "SELECT status, claimedBy, TIMESTAMPDIFF(SECOND, claimedAt, NOW()) AS s FROM migration_task"
    assert.same({ "processing", true }, { row.status, row.s < 10 })
    local holder = a._handle:execute "SELECT LOWER(CONV(MAX(id), 10, 36)) AS id FROM nightshift_holder"[1].id
    local run = a._handle:execute("SELECT LOWER(CONV(?, 10, 36)) AS run", job.run)[1].run
    assert.equal(("ns:%s:%s"):format(holder, run), row.claimedBy)
    assert.is_true(#row.claimedBy <= 20)
    assert.is_true((job:ack()))
    row = one "SELECT status, TIMESTAMPDIFF(SECOND, completedAt, NOW()) AS s FROM migration_task"
    assert.same({ "complete", true }, { row.status, row.s < 10 })
  end)

  it("leaves nothing behind where a row of our own says it", function()
    designs.create(a, "job_queue", 3)
    local t = adopt("job_queue", { strategy = "skip_locked" })
    local jobs = t:claim_many(3)
    assert.equal(3, one "SELECT COUNT(*) AS n FROM nightshift_grip".n)
    assert.is_true((jobs[1]:ack()))
    assert.is_true((jobs[2]:fail "no"))
    assert.is_true((jobs[3]:release()))
    assert.equal(0, one "SELECT COUNT(*) AS n FROM nightshift_grip".n)
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

  it("has no children", function()
    designs.create(a, "job_queue", 2)
    local t = adopt "job_queue"
    local job = assert(t:claim())
    assert.equal(0, #job.results)
    assert.equal("INVALID", code_of(job:spawn("x", 1)))
    assert.equal("INVALID", code_of(job:wait()))
    assert.error_matches(function() t:claim():wait() end, "has no children")
  end)
end)

describe("the advice", function()
  local function fill(sql)
    designs.create(a, "queue_table", 1)
    all(sql)
    all [[INSERT INTO queue_table (name, status, priority) SELECT 'x', IF(seq % 100, 'processed', 'queued'), seq % 7
      FROM seq_1_to_5000]]
    all "ANALYZE TABLE queue_table"
  end

  it("is the index that is missing, and none once it is there", function()
    fill "DO 1"
    local t = adopt "queue_table"
    local sql = assert(t:advice())
    assert.equal("CREATE INDEX nightshift_claim ON `queue_table` (`status`, `priority` DESC, `id`)", sql)
    all(sql)
    all "ANALYZE TABLE queue_table"
    assert.is_false(t:advice())
  end)

  it("is none for a small table that has its index", function()
    designs.create(a, "migration_task", 3)
    assert.is_false(adopt "migration_task":advice())
  end)
end)

-- The plans of the statements that adopted tables run, as the server saw them: rows
-- are changed by their key and nothing else, and no claim sorts where the advised
-- index is there.
describe("plans:", function()
  setup(lab.fresh)

  local ROWS = 3000

  --- What `act` has the server run on a table, each statement once.
  local function statements(name, act)
    lab.sql "SET GLOBAL log_output = 'TABLE'; TRUNCATE mysql.general_log; SET GLOBAL general_log = ON"
    local ok, message = pcall(act)
    lab.sql "SET GLOBAL general_log = OFF"
    assert(ok, message)
    local db <close> = lab.open()
    local found, seen = {}, {}
    for _, row in ipairs(assert(db:execute(
      "SELECT CONVERT(argument USING utf8mb4) AS text FROM mysql.general_log WHERE command_type = 'Execute'"))) do
      local text = row.text:gsub("^SET STATEMENT.- FOR ", "")
      local shape = text:gsub("'[^']*'", "?"):gsub("%d+", "?")
      if text:find("`" .. name .. "`", 1, true) and not text:find "^EXPLAIN" and not seen[shape] then
        seen[shape] = true
        found[#found + 1] = text
      end
    end
    return found
  end

  --- How the server finds the rows of the table, first to last; none: it has found by
  -- the key that there is none any more, or knows that there cannot be one.
  local function plan_of(db, text)
    local rows, found = assert(db:execute("EXPLAIN " .. text), text), {}
    for _, row in ipairs(rows) do
      if row.table == "t" then found[#found + 1] = row end
    end
    assert.is_truthy(found[1] or rows[1].Extra:find "after reading const tables"
      or rows[1].Extra:find "Impossible WHERE", text)
    return found
  end

  local function is_by_key(row, text)
    assert.equal("PRIMARY", row.key, text)
    assert.is_truthy(row.type == "eq_ref" or row.type == "const" or row.type == "range", text)
    assert.is_true(tonumber(row.rows) <= 1, text)
  end

  --- Neither all rows, nor all of an index, nor sorted.
  local function is_look(row, text)
    assert.is_truthy(row.key, text)
    assert.is_truthy(row.type == "ref" or row.type == "range" or row.type == "ref_or_null", text)
    assert.is_nil((row.Extra or ""):find "filesort", text)
  end

  --- Rows in the order of their ids, from some id on.
  local function is_walk(row, text)
    assert.equal("PRIMARY", row.key, text)
    assert.is_nil((row.Extra or ""):find "filesort", text)
  end

  --- Most rows are done, as in a table that is used.
  local function age(db, name)
    local status = designs[name].map.status
    local done = status.done == nil and "2020-01-01" or status.done == true and 1 or status.done
    assert(db:execute(("UPDATE %s SET %s = ? WHERE id %% 20"):format(name, status.column), done))
  end

  --- All that can become of a row.
  local function live(name, strategy)
    local db <close> = lab.open()
    local t = assert(db:adopt(designs.map(name, { strategy = strategy })))
    local jobs = assert(t:claim_many(5))
    assert(jobs[1]:touch())
    assert(jobs[1]:ack())
    assert(jobs[2]:fail("no", { retry_in = 3600 }))
    assert(jobs[3]:again(3600))
    assert(jobs[4]:release())
    jobs[5]:discard "no"
    assert(t:rescue())
    assert(t:retry "all")
    t:retry(jobs[1].id)
    assert(t:prune { limit = 2 })
  end

  for _, name in ipairs(designs.names) do
    for _, strategy in ipairs(designs[name].strategies) do
      it(("%s by %s reads no more than it has to"):format(name, strategy), function()
        local db <close> = lab.open()
        designs.create(db, name, 1)
        designs.fill(db, name, ROWS)
        age(db, name)
        local t = assert(db:adopt(designs.map(name, { strategy = strategy })))
        for _ = 1, 2 do
          local sql = t:advice()
          if sql then assert(db:execute(sql)) end
        end
        assert.is_false(t:advice())
        assert(db:execute("OPTIMIZE TABLE " .. name)) -- without the dead
        local changes, looks = 0, 0
        for _, text in ipairs(statements(name, function() live(name, strategy) end)) do
          local by_key, rows = text:find("FORCE INDEX (PRIMARY)", 1, true), plan_of(db, text)
          for i, row in ipairs(rows) do
            local walks = text:find "FORCE INDEX %(PRIMARY%).*FORCE INDEX %(PRIMARY%)"
            local check = by_key and i == 1 and is_by_key or walks and is_walk or is_look
            check(row, text)
          end
          if by_key then changes = changes + 1 end
          if not by_key or #rows > 1 then looks = looks + 1 end
        end
        assert.is_true(changes >= 2, "changes: " .. changes)
        assert.is_true(looks >= 1, "looks: " .. looks)
      end)
    end
  end

  it("a drain reads by the key, and deletes one row by it at a time", function()
    local db <close> = lab.open()
    designs.create(db, "migration_task", 1)
    designs.fill(db, "migration_task", ROWS)
    age(db, "migration_task")
    assert(db:execute "OPTIMIZE TABLE migration_task")
    local ranges, keys = 0, 0
    local function drain()
      local other <close> = lab.open()
      local locker <close> = lab.open()
      assert(locker._handle:begin())
      assert(locker:execute "SELECT id FROM migration_task WHERE id = 100 FOR UPDATE")
      assert(assert(other:adopt(designs.map "migration_task")):drain { into = "post", batch = 200, limit = 800 })
    end
    for _, text in ipairs(statements("migration_task", drain)) do
      if text:find("$[0]", 1, true) or text:find "FORCE INDEX %(PRIMARY%) WHERE t%.`id` >= " then
        for _, row in ipairs(plan_of(db, text)) do
          assert.equal("PRIMARY", row.key, text)
          assert.is_nil((row.Extra or ""):find "filesort", text)
          if row.type == "range" then ranges = ranges + 1 else keys = keys + 1 end
          if row.type ~= "range" then is_by_key(row, text) end
        end
      end
    end
    assert.is_true(ranges >= 1 and keys >= 3, ("%d ranges, %d by key"):format(ranges, keys))
  end)
end)
