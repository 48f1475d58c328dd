-- Designs that were published, and the faults that databases as queues are blamed for.

local crew = require "spec.support.crew"
local host = require "spec.support.host"
local lab = require "spec.support.db".lab
local ledger = require "spec.support.crew".ledger
local nightshift = require "nightshift"
local nst = require "nst"
local servers = require "spec.support.db"

-- Faults that databases as queues are blamed for, and that are not so here. An idle host does
-- not poll, and claimers do not wait for each other's locks. The tables that claims read stay
-- small however many jobs have gone through them.
describe("remedies:", function()
  local db
  lab.handles(1, function(handle) db = handle end)
  after_each(crew.clean)

  local function all(sql, ...) return assert(db:execute(sql, ...)) end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait(30))
  end

  local NOOP = "return { noop = function() end }"

  describe("an idle host", function()
    local SECONDS, ROUND = 20, 10

    --- What the server was asked: time in seconds and text, but for what this test asks.
    local function asked()
      local list = {}
      for line in lab.sql([[SELECT UNIX_TIMESTAMP(event_time), REPLACE(CONVERT(argument USING utf8mb4), '\n', ' ')
      FROM mysql.general_log WHERE command_type = 'Execute' OR command_type = 'Query'
        AND argument NOT LIKE 'SET GLOBAL%' AND argument NOT LIKE '%general_log%' ORDER BY event_time]])
        :gmatch "[^\n]+" do
        local at, text = line:match "^([%d.]+)\t(.*)$"
        list[#list + 1] = { at = tonumber(at), text = text }
      end
      return list
    end

    it("asks nothing between its rounds of ten seconds, though jobs are there for later", function()
      local q = db:queue "later"
      for _ = 1, 20 do assert(q:push("noop", nil, { delay = 3600 })) end
      local h = host.start(lab.url(), NOOP)
      nst.sleep(5) -- what follows a start
      local list, quiet, busy -- busy: seconds in which there was anything
      for _ = 1, 2 do -- a slow start may reach into the first
        lab.sql "SET GLOBAL log_output = 'TABLE'; TRUNCATE mysql.general_log; SET GLOBAL general_log = ON"
        nst.sleep(SECONDS)
        lab.sql "SET GLOBAL general_log = OFF"
        list, quiet, busy = asked(), 0, 0
        for i = 2, #list do
          local gap = list[i].at - list[i - 1].at
          quiet = math.max(quiet, gap)
          busy = busy + math.min(gap, 1)
        end
        if quiet > ROUND - 2 and busy < SECONDS / 2 then break end
      end
      stop(h)
      local looks = 0 -- for schedules
      for _, statement in ipairs(list) do
        assert.is_nil(statement.text:find "DELETE FROM nightshift_ready", statement.text)
        looks = looks + (statement.text:find "nightshift_schedule[^d]" and 1 or 0)
      end
      assert.is_true(looks <= SECONDS // ROUND + 1, looks)
      assert.is_true(quiet > ROUND - 2, ("%d statements, quiet for %.3f s"):format(#list, quiet))
      assert.is_true(busy < SECONDS / 2, busy)
      assert.is_true(#list <= 40 * (SECONDS // ROUND + 1), #list)
    end)
  end)

  describe("64 claimers with a connection each", function()
    local CLAIMERS, PUSHERS, JOBS = 64, 4, 3200

    local function waits() return tonumber(all "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'"[1].Value) end

    --- Says that it is there, and claims until nothing comes any more.
    local function claim_all(there)
      local own <close> = lab.open()
      local q, empty = own:queue "hot", 0
      assert.is_nil(q:claim())
      local file <close> = assert(io.open(there, "ab"))
      file:write "there\n"
      file:flush()
      while empty < 3 do
        local jobs = assert(q:claim_many(5, { wait = 1 }))
        for _, job in ipairs(jobs) do assert(job:ack()) end
        empty = #jobs == 0 and empty + 1 or 0
      end
    end

    local function push_all(i)
      local own <close> = lab.open()
      local q = own:queue "hot"
      for n = 1, JOBS // PUSHERS do assert(q:push("noop", { i, n })) end
    end

    --- Writes down who waits for which lock, when one does.
    local function watch(path)
      local own <close> = lab.open()
      while true do
        if assert(own:execute "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")[1].Value ~= "0" then
          local status = assert(own:execute "SHOW ENGINE INNODB STATUS")[1].Status
          local file <close> = assert(io.open(path, "ab"))
          file:write(status:match "LIST OF TRANSACTIONS.-FILE I/O" or status)
        end
        nst.sleep(0.01)
      end
    end

    local function text(path)
      local file <close> = io.open(path, "rb")
      return file and file:read "a" or "nobody was seen waiting"
    end

    it("never wait for a row, while others push", function()
      db:queue "hot":push("noop", 0)
      assert(db:queue("hot"):claim()):ack()
      local there = fixture.dir() .. "/there"
      local claimers = crew.fork(CLAIMERS, function() claim_all(there) end)
      eventually(function() return ledger.count(there) == CLAIMERS end, 60)
      local seen, before = fixture.dir() .. "/waits", waits()
      crew.fork(1, function() watch(seen) end)
      local pushers = crew.fork(PUSHERS, push_all)
      pushers:wait(120)
      claimers:wait(120)
      assert.equal(before, waits(), text(seen))
      assert.equal(JOBS + 1,
        all "SELECT COUNT(*) AS n FROM nightshift_finished WHERE outcome = 'done' AND run = 1"[1].n)
      assert.equal(0, all "SELECT COUNT(*) AS n FROM nightshift_ready WHERE job_id > 0"[1].n)
    end)
  end)

  -- make test-million: 1,000,000
  local MANY = tonumber(os.getenv "NIGHTSHIFT_MANY") or 15000

  describe(("%d jobs"):format(MANY), function()
    local BATCH, BACKLOG = 1000, 5000
    local MIB = 1024 * 1024

    --- Rows of the tables that claims read.
    local function hot()
      return all [[SELECT (SELECT COUNT(*) FROM nightshift_job) AS jobs,
      (SELECT COUNT(*) FROM nightshift_ready) AS ready]][1]
    end

    --- Bytes of a table's file.
    local function size(name)
      return all([[SELECT FILE_SIZE AS n FROM information_schema.INNODB_SYS_TABLESPACES
      WHERE NAME = CONCAT(CAST(CONVERT(DATABASE() USING filename) AS BINARY), '/', ?)]], name)[1].n
    end

    --- Pushes them, as many as are not waiting yet; calls back with what there is.
    local function push(look)
      local q, jobs, pushed = db:queue "many", {}, 0
      for i = 1, BATCH do jobs[i] = { "noop", i } end
      while pushed < MANY do
        local there = hot()
        look(there)
        if there.jobs <= BACKLOG - BATCH then
          assert(q:push_many(jobs))
          pushed = pushed + BATCH
        else
          nst.sleep(0.002)
        end
      end
    end

    it("go through tables that stay small, and are all in the history", function()
      local workers = { "--workers", "4", "--queues", "many" }
      local h = host.start(lab.url(), NOOP, workers)
      local other = host.start(lab.url(), NOOP, workers)
      local waiting = all "SELECT COUNT(*) AS n FROM nightshift_scheduled"[1].n -- of the test before
      local most, started = 0, nightshift.clock()
      push(function(there) most = math.max(most, there.jobs + there.ready) end)
      eventually(function() return hot().jobs <= waiting end, 120)
      local took = nightshift.clock() - started
      stop(h)
      stop(other)
      local history = all [[SELECT COUNT(*) AS n, COUNT(DISTINCT id) AS ids, SUM(run) AS runs FROM nightshift_finished
      WHERE outcome = 'done' AND name = 'noop' AND queue_id = (SELECT id FROM nightshift_queue WHERE name = 'many')]][1]
      local file = size "nightshift_job" + size "nightshift_ready"
      local report = ("%d jobs in %.1f s: at most %d hot rows, in files of %.0f MiB, of history %.0f MiB")
        :format(MANY, took, most, file / MIB, size "nightshift_finished" / MIB)
      if os.getenv "NIGHTSHIFT_MANY" then print(report) end
      assert.equal(MANY, history.n, report)
      assert.equal(MANY, history.ids)
      assert.is_true(most <= 3 * BACKLOG, report) -- two rows a job, and sentinels
      assert.is_true(file <= 64 * MIB, report)
      assert.is_true(MANY < 1000000 or size "nightshift_finished" > 2 * file, report)
    end)
  end)
end)

-- The tables of four published queues, as they were published to the letter, and a fifth that
-- was described. Each is adopted as it is, and worked off by hosts that are killed.
describe("a published table", function()
  -- luacheck: no max line length
  local TABLES = require "spec.support.designs".published
  local ROWS, count = 60, TABLES.count

  local url
  TABLES.database(function(_, at) url = at end)

  -- Each third row fails once, where the table counts attempts.
  local SCRIPT = [[return { task = function(job)
  require "nightshift.core".sleep(0.01)
  local counts = job.payload.iteration or job.payload.job_attempts or job.payload.failure_count
  if counts and job.row % 3 == 0 and job.attempt == 1 then error "once" end
end }]]

  for i, t in ipairs(TABLES) do
    it(t[1] .. " is worked off by hosts that are killed", function()
      local _, name, done = TABLES.make(i, ROWS)
      local path = fixture.file(name .. ".lua", "return " .. t[4])
      for killed = 1, 2 do
        local h = host.start(url, SCRIPT, { "--adopt", path, "--workers", "3" })
        eventually(function() return count(name, done) >= killed * ROWS // 4 end, 20)
        h:signal "KILL"
        h:wait()
      end
      local last = host.start(url, SCRIPT, { "--adopt", path, "--workers", "3" })
      local ok = pcall(eventually, function() return count(name, done) == ROWS end, 30)
      assert.is_true(ok, ("%d of %d are done"):format(count(name, done), ROWS))
      last:signal "TERM"
      assert.equal(0, last:wait())
    end)
  end

  -- Each claim notes down, in the buffer pool, all rows that it has read past.
  it("of which thousands of rows are locked one by one does not fill a small buffer pool", function()
    local server = servers.server "innodb-buffer-pool-size=64M\n"
    local own = server:fresh()
    local name, definition, rows, mapping, done = table.unpack(TABLES[4])
    server:sql(definition, servers.name(own))
    server:sql(("INSERT INTO %s %s FROM seq_1_to_4000"):format(name, rows), servers.name(own))
    local h = host.start(own, "return { task = function() end }",
      { "--adopt", fixture.file("pool.lua", "return " .. mapping), "--workers", "4" })
    eventually(function()
      local n = server:sql(("SELECT COUNT(*) FROM %s WHERE %s"):format(name, done), servers.name(own))
      return tonumber(n) >= 800
    end, 60)
    assert.is_false((server.process:ended()))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
