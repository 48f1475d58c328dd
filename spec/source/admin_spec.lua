-- Verbs of people on an adopted table: they count its rows, set its pace, and run dead rows
-- again.

local core = require "nightshift.core"
local admin = require "nightshift.source.admin"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local published = require "spec.support.designs".published

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
  -- Where neither a state, a counter nor a claimant says that a row is dead it is one that others have.
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
    refused("NOT_FOUND", "nobody has adopted a table 'other' yet", admin.tune(handle._handle, "other", { rate = 1.0 }))
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
    local ROWS, PROGRAMS = 1500, 4
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
    all [[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, reason, run, attempts, polls,
      crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, on_fail, nonce)
      SELECT seq, 1, 'x', '1', 1, 'dead', 'failed', 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, seq, 'cancel', 1
      FROM seq_1_to_100]]
    assert.equal("PRIMARY const", key("admin_past_row", "f", 7))
  end)
end)
