-- Designs: a migration by workers on many machines, and a job manager.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local lab = require "spec.support.db".lab
local ledger = require "spec.support.crew".ledger
local nst = require "nst"
local proc = require "spec.support.proc"

-- Design: a migration of 50,000 images, of 2,000 without NIGHTSHIFT_LONG, by workers on many
-- machines. They claim blocks of 10 tasks under a fresh claim id and complete or reset each.
describe("a migration:", function()
  local TASKS = os.getenv "NIGHTSHIFT_LONG" and 50000 or 2000
  local BLOCK = 10

  local db, path
  lab.handles(1, function(handle) db, path = handle, fixture.dir() .. "/ledger" end)
  after_each(crew.clean)

  local function all(sql) return assert(db:execute(sql)) end

  local function count(where) return all("SELECT COUNT(*) AS n FROM migration_task WHERE " .. where)[1].n end

  local function read(name)
    local file <close> = io.open(name, "rb")
    return file and file:read "a" or ""
  end

  local function fill(n)
    designs.create(db, "migration_task", 1)
    designs.fill(db, "migration_task", n - 1)
  end

  local function map(changes) return designs.map("migration_task", changes) end

  --- One image in a thousand cannot be had the first time.
  local HANDLER = [[
  return function(job)
    begin(job.row)
    if job.attempt == 1 and job.row % 1000 == 0 then
      left(job.row)
      error("no image for task " .. job.row)
    end
    done(job.row)
  end]]

  local function start(n) return crew.start(n, lab.url(), map(), ledger.script(path) .. HANDLER, { block = BLOCK }) end

  --- Waits for so many lines, then kills.
  local function kill(c, i, lines, killed)
    eventually(function() return ledger.count(path) >= lines end, 60)
    killed[c:kill(i)] = true
  end

  --- What a task without interference looks like.
  local function check_row(row, found, kills)
    local failures = row.id % 1000 == 0 and 1 or 0
    assert.equal("complete", row.status, row.id)
    assert.equal(1, row.timed, row.id)
    assert.is_true(row.iteration >= failures and row.iteration <= failures + kills, row.id)
    -- What is lost with a program that is killed goes back as it was, and is not counted.
    assert.is_true(found.begun[row.id] <= row.iteration + 1 + kills, row.id)
    assert.is_true(found.done[row.id] >= 1 and found.done[row.id] <= 1 + kills, row.id)
  end

  describe("thousands of tasks", function()
    it("are each completed, once, by workers of whom some are killed", function()
      fill(TASKS)
      local killed, first = {}, start(3)
      kill(first, 1, TASKS // 5, killed) -- each task is two lines
      kill(first, 2, TASKS * 3 // 5, killed)
      local second = start(2)
      kill(second, 1, TASKS * 6 // 5, killed)
      first:wait()
      second:wait()
      local found, again, iterations, claims = ledger.read(path, killed), 0, 0, {}
      for _, row in ipairs(all [[SELECT id, status, iteration, claimedBy, claimedAt <= completedAt AS timed
      FROM migration_task ORDER BY id]]) do
        check_row(row, found, 3)
        again, iterations = again + found.done[row.id] - 1, iterations + row.iteration
        assert.is_nil(claims[row.claimedBy], row.id)
        claims[row.claimedBy] = true
      end
      assert.equal(TASKS, count "TRUE")
      assert.is_true(again <= 3, again) -- a kill between the work and its verdict
      local lost = iterations - TASKS // 1000
      assert.is_true(lost > 0 and lost <= 3 * BLOCK, lost) -- a block each
    end)
  end)

  describe("a block", function()
    it("is ten tasks, each under a claim id of its own, and counts what fails", function()
      fill(30)
      local t = assert(db:adopt(map()))
      local blocks = {}
      for i = 1, 3 do
        blocks[i] = assert(t:claim_many(BLOCK))
        assert.equal(BLOCK, #blocks[i])
      end
      assert.equal(3 * BLOCK, count "status = 'processing' AND claimedBy LIKE 'ns:%' AND claimedAt IS NOT NULL")
      assert.equal(3 * BLOCK, all "SELECT COUNT(DISTINCT claimedBy) AS n FROM migration_task"[1].n)
      for _, job in ipairs(blocks[1]) do assert.is_true((job:ack())) end
      for _, job in ipairs(blocks[2]) do assert.is_true((job:fail("no image", { retry_in = 0 }))) end
      assert.equal(BLOCK, count "status = 'complete' AND iteration = 0 AND completedAt >= claimedAt")
      assert.equal(BLOCK, count "status = 'processing' AND iteration = 1")
      for i, job in ipairs(assert(t:claim_many(BLOCK))) do
        assert.same({ blocks[2][i].row, 2 }, { job.row, job.attempt })
      end
    end)
  end)

  -- A program in another language claims as the design says, and dies.
  local function claim_in_sql(id, seconds)
    all(([[UPDATE migration_task SET status = 'processing', claimedBy = UUID(), claimedAt = NOW() - INTERVAL %d SECOND
    WHERE id = %d]]):format(seconds, id))
  end

  describe("a claim of somebody who never came back", function()
    for _, case in ipairs { { 120, nil }, { 30, 30 } } do
      local overdue, given = case[1], case[2]
      it(("is reset after %d seconds, and counted"):format(overdue), function()
        fill(3)
        local t = assert(db:adopt(map { overdue = given or designs.migration_task.map.overdue }))
        claim_in_sql(1, overdue + 1)
        claim_in_sql(2, overdue - 10)
        all "UPDATE migration_task SET status = 'complete' WHERE id = 3"
        assert.equal(1, t:rescue())
        assert.equal(1, count "id = 1 AND status = 'open' AND iteration = 1 AND claimedBy IS NULL")
        assert.equal(1, count "id = 2 AND status = 'processing' AND iteration = 0")
        local job = assert(t:claim())
        assert.same({ 1, 2 }, { job.row, job.attempt })
        assert.is_true((job:ack()))
      end)
    end

    it("is reset while others work, without anybody asking", function()
      fill(50)
      claim_in_sql(7, 130)
      start(2):wait()
      assert.equal(49, count "status = 'complete' AND iteration = 0")
      assert.equal(1, count "status = 'complete' AND iteration = 1 AND id = 7")
    end)
  end)

  describe("a worker that dies", function()
    it("is missed within seconds, not after two minutes", function()
      fill(BLOCK)
      local c = crew.start(1, lab.url(), map(), ledger.script(path) .. [[
      return function(job)
        begin(job.row)
        while true do require "nst".sleep(1) end
      end]], { block = BLOCK })
      eventually(function() return ledger.count(path) == 1 end)
      local t = assert(db:adopt(map()))
      assert.is_nil(t:claim())
      local killed = nst.clock()
      c:kill(1)
      local jobs = {}
      eventually(function()
        table.move(assert(t:claim_many(BLOCK)), 1, BLOCK, #jobs + 1, jobs)
        return #jobs == BLOCK
      end)
      assert.is_true(nst.clock() - killed < proc.limit(9), nst.clock() - killed) -- by the round: 10 s
      for _, job in ipairs(jobs) do assert.is_true((job:ack())) end
      assert.equal(BLOCK, count "status = 'complete' AND iteration = 1")
    end)
  end)

  describe("tasks on two hosts", function()
    -- Says when it begins, on the clock that all processes of a machine share.
    local function script()
      return ([[
      local nightshift = require "nightshift"
      return { migrate = function(job)
        local file <close> = assert(io.open(%q, "ab"))
        file:write(("%%d %%.6f\n"):format(job.row, nightshift.clock()))
        require "nightshift.core".sleep(0.02)
      end }]]):format(path)
    end

    local function start_host(drain)
      return host.start(lab.url(), script(), { "--adopt", designs.file "migration_task",
        "--workers", "3", drain })
    end

    local function begun()
      local list = {}
      for id, at in read(path):gmatch "(%d+) ([%d.]+)\n" do list[#list + 1] = { id = tonumber(id),
        at = tonumber(at) } end
      return list
    end

    it("stop within a second, those that run end, and go on when they may", function()
      fill(600)
      local hosts = { start_host(), start_host() }
      local t = assert(db:adopt(map()))
      eventually(function() return #begun() > 30 end)
      assert.is_true((t:pause()))
      local paused = nst.clock()
      eventually(function() return count "status = 'processing'" == 0 end)
      nst.sleep(math.max(0, paused + 1.5 - nst.clock())) -- nothing is to happen
      local before = begun()
      assert.is_true(before[#before].at < paused + proc.limit(4)) -- the 600 take two
      assert.is_true(#before < 600)
      assert.equal(#before, count "status = 'complete'")
      assert.is_true((t:resume()))
      eventually(function() return count "status = 'complete'" == 600 end, 60)
      for _, h in ipairs(hosts) do
        h:signal "TERM"
        assert.equal(0, h:wait(30))
      end
      assert.equal(600, count "status = 'complete' AND iteration = 0 AND completedAt >= claimedAt")
      assert.equal(600, #begun())
    end)

    it("are all completed though a host and workers of the other are killed", function()
      fill(600)
      local hosts = { start_host "--drain", start_host "--drain" }
      eventually(function() return #begun() > 30 end)
      hosts[1]:signal "KILL"
      hosts[1]:wait()
      nst.kill(host.members(hosts[2].pid)[1], "KILL")
      eventually(function() return #begun() > 200 end)
      nst.kill(host.members(hosts[2].pid)[1], "KILL")
      assert.equal(0, hosts[2]:wait(90))
      assert.equal(600, count "status = 'complete' AND completedAt >= claimedAt")
      local again = all "SELECT SUM(iteration) AS n FROM migration_task"[1].n
      assert.is_true(tonumber(again) >= 1)
      assert.is_true(#begun() <= 600 + tonumber(again))
    end)
  end)
end)

-- Design: a job manager with parents, priorities and retries. As printed its claim never runs a
-- child, and its many workers have the same job twice. Here is why, and that neither happens
-- with us.
describe("a job manager:", function()
  local db, path
  lab.handles(1, function(handle)
    db, path = handle, fixture.dir() .. "/ledger"
    designs.create(db, "queue_table", 0)
  end)
  after_each(crew.clean)

  local function all(sql, ...) return assert(db:execute(sql, ...)) end

  local function count(where) return all("SELECT COUNT(*) AS n FROM queue_table WHERE " .. where)[1].n end

  local function map(changes) return designs.map("queue_table", changes) end

  local function adopt(changes) return assert(db:adopt(map(changes))) end

  local function push(columns)
    columns.name = columns.name or "resize"
    local names, marks, values = {}, {}, {}
    for name, value in pairs(columns) do
      names[#names + 1], marks[#marks + 1], values[#values + 1] = name, "?", value
    end
    all(("INSERT INTO queue_table (%s) VALUES (%s)"):format(table.concat(names, ", "), table.concat(marks, ", ")),
      table.unpack(values))
  end

  -- The published claim. %s: what it compares the parent's status with.
  local CLAIM = [[SELECT q.id FROM queue_table q LEFT JOIN queue_table p ON p.id = q.parent_id
  WHERE q.status = 'queued' AND q.attempts > 0 AND (q.retry_after IS NULL OR q.retry_after <= NOW())
    AND (q.parent_id IS NULL OR p.status = '%s')
  ORDER BY q.priority DESC, q.id LIMIT 1 FOR UPDATE SKIP LOCKED]]

  describe("a child", function()
    before_each(function()
      push { status = "processed" }
      push { parent_id = 1 }
    end)

    it("never runs by the published claim: no status is called 'process'", function()
      assert.equal(1, count "id = 1 AND status = 'processed'")
      assert.same({}, all(CLAIM:format "process"))
      assert.same({ { id = 2 } }, all(CLAIM:format "processed"))
    end)

    it("runs here, when its parent is processed and not before", function()
      local t = adopt()
      for _, status in ipairs { "queued", "in_progress", "failed" } do
        all("UPDATE queue_table SET status = ?, retry_after = NOW() + INTERVAL 1 HOUR WHERE id = 1", status)
        assert.is_nil(t:claim(), status)
      end
      all "UPDATE queue_table SET status = 'processed' WHERE id = 1"
      local job = assert(t:claim())
      assert.same({ 2, 1 }, { job.row, job.payload.parent_id })
      assert.is_true((job:ack()))
    end)

    it("cannot wait for a status that there is none of: that is said at once", function()
      local t, message, code = db:adopt(map { parent = { column = "parent_id", done = "process" } })
      assert.is_nil(t)
      assert.equal("INVALID", code)
      assert.truthy(message:find("parent.done", 1, true) and message:find("'process'", 1, true), message)
    end)
  end)

  describe("a job", function()
    it("comes by priority, then by its id", function()
      all "DELETE FROM nightshift_ready" -- and with it what is known of other priorities
      for i = 1, 30 do push { priority = 100 + i * 7 % 5 } end
      local expected, got = {}, {}
      for i, row in ipairs(all "SELECT id FROM queue_table ORDER BY priority DESC, id") do expected[i] = row.id end
      local other <close> = lab.open()
      for i, job in ipairs(assert(assert(other:adopt(map())):claim_many(50))) do got[i] = job.row end
      assert.same(expected, got)
    end)

    it("does not come before its retry_after", function()
      push { priority = 200, retry_after = "2999-01-01" }
      push { priority = 100 }
      local t = adopt()
      assert.equal(2, assert(t:claim()).row)
      assert.is_nil(t:claim())
      all "UPDATE queue_table SET retry_after = NOW() - INTERVAL 1 SECOND WHERE id = 1"
      assert.equal(1, assert(t:claim()).row)
    end)

    it("sinks by one with each failure", function()
      push { priority = 101 }
      push { priority = 100 }
      local t = adopt { priority = { column = "priority", decay = 1 } }
      local job = assert(t:claim())
      assert.is_true((job:fail("no", { retry_in = 3600 })))
      local other = assert(t:claim())
      assert.same({ 1, 2 }, { job.row, other.row })
      assert.is_true((other:release())) -- not its fault
      assert.same({ { id = 1, priority = 100, attempts = 29 }, { id = 2, priority = 100, attempts = 30 } },
        all "SELECT id, priority, attempts FROM queue_table")
    end)

    it("is failed after thirty attempts, and its children do not run", function()
      push {}
      push { parent_id = 1 }
      local t = adopt()
      for attempt = 1, 30 do
        local job = assert(t:claim())
        assert.same({ 1, attempt }, { job.row, job.attempt })
        assert.is_true((job:fail("no", { retry_in = 0 })))
        assert.equal(30 - attempt, all "SELECT attempts FROM queue_table WHERE id = 1"[1].attempts)
      end
      assert.is_nil(t:claim())
      assert.equal(1, count "id = 1 AND status = 'failed' AND attempts = 0 AND priority = 70")
    end)

    it("has its JSON as it was written", function()
      push { data = '{"w":[1,2],"empty":[],"big":9007199254740993}' }
      local data = assert(adopt():claim()).payload.data
      assert.same({ 1, 2 }, data.w)
      assert.equal(9007199254740993, data.big)
    end)
  end)

  describe("a job that many ask for", function()
    local WORKERS = 50

    it("is had by all of them when its status is written after the locking transaction", function()
      for _ = 1, WORKERS do push {} end
      local handles, got = {}, {}
      for i = 1, WORKERS do
        handles[i] = lab.open()
        assert(handles[i]._handle:begin())
        local row = assert(handles[i]:execute(CLAIM:format "processed"))[1]
        assert(handles[i]._handle:commit()) -- and with it the lock
        got[row.id] = (got[row.id] or 0) + 1
      end
      for _, handle in ipairs(handles) do
        assert(handle:execute "UPDATE queue_table SET status = 'in_progress' WHERE id = 1")
        handle:close()
      end
      assert.same({ [1] = WORKERS }, got)
    end)

    it("is had by one here: its status is written before the lock goes", function()
      for _ = 1, WORKERS do push {} end
      local handles, got = {}, {}
      for i = 1, WORKERS do
        handles[i] = lab.open()
        local job = assert(assert(handles[i]:adopt(map())):claim())
        assert.is_nil(got[job.row])
        got[job.row] = true
        assert.equal(i, count "status = 'in_progress'")
      end
      for _, handle in ipairs(handles) do handle:close() end
      assert.equal(WORKERS, count "status = 'queued' AND attempts = 30")
    end)
  end)

  local JOBS, CHILDREN, KILLS = 250, 50, 3

  -- The last jobs are children of the first.
  local function fill()
    all(("INSERT INTO queue_table (name, priority) SELECT 'parent', seq %% 7 FROM seq_1_to_%d"):format(JOBS))
    all(("INSERT INTO queue_table (name, parent_id, priority) "
      .. "SELECT 'child', seq, 9 FROM seq_1_to_%d"):format(CHILDREN))
    all "CREATE INDEX claims ON queue_table (status, priority DESC, id)"
  end

  local HANDLER = [[
  return function(job)
    begin(job.row)
    require "nst".sleep(0.01)
    done(job.row)
  end]]

  describe("300 jobs, some of them children,", function()
    for _, claimers in ipairs(os.getenv "NIGHTSHIFT_LONG" and { 80, 200, 500 } or { 24 }) do
      local crowd = ("by %d claimers with a connection each, of whom some are killed"):format(claimers)
      it("are each had once " .. crowd, function()
        fill()
        local gate = fixture.dir() .. "/gate"
        assert(os.execute("mkfifo " .. gate))
        local c = crew.start(claimers, lab.url(), map(), ledger.script(path) .. HANDLER, { gate = gate })
        eventually(function() return ledger.count(gate .. ".ready") == claimers end, 120)
        local opened, killed = assert(io.open(gate, "w")), {}
        for i = 1, KILLS do
          eventually(function() return ledger.count(path) >= 60 * i end, 120)
          killed[c:kill(i)] = true
        end
        c:wait(120)
        opened:close()
        local found, begun = ledger.read(path, killed), 0
        for _, row in ipairs(all "SELECT id, parent_id, status, attempts FROM queue_table") do
          assert.equal("processed", row.status, row.id)
          assert.is_true(row.attempts >= 30 - KILLS, row.id)
          assert.is_true(not row.parent_id or found.first[row.id] > found.last[row.parent_id], row.id)
          begun = begun + found.begun[row.id]
        end
        assert.equal(JOBS + CHILDREN, count "TRUE")
        local lost = begun - JOBS - CHILDREN
        assert.is_true(lost >= 0 and lost <= KILLS, lost)
      end)
    end
  end)

  describe("300 jobs on two hosts with 80 workers", function()
    -- Every tenth fails once, every tenth but one asks for a second try after a while.
    local function script()
      return ledger.script(path) .. [[
      return { queue_table = function(job)
        begin(job.row)
        require "nightshift.core".sleep(0.02)
        if job.attempt == 1 and job.row % 10 == 0 then
          left(job.row)
          return job:fail("not yet", { retry_in = 0.1 })
        elseif not job.state and job.row % 10 == 1 then
          left(job.row)
          return job:again(0.1, "once")
        end
        done(job.row)
      end }]]
    end

    local function start()
      return host.start(lab.url(), script(), { "--adopt", designs.file("queue_table", {
        priority = { column = "priority", decay = 1 } }), "--workers", "40", "--drain-within", "3s" })
    end

    it("are each done once, parents first, though a host and workers of the other are killed", function()
      fill()
      local hosts, killed, orphaned = { start(), start() }, {}, {}
      local function kill(pid)
        killed[pid] = true
        nst.kill(pid, "KILL")
      end
      eventually(function() return ledger.count(path) >= 100 end, 120)
      for _, pid in ipairs(host.members(hosts[1].pid)) do killed[pid], orphaned[pid] = true, true end
      hosts[1]:signal "KILL"
      hosts[1]:wait(20)
      for i = 1, 3 do
        eventually(function() return ledger.count(path) >= 150 + 100 * i end, 120)
        kill(host.members(hosts[2].pid)[i])
      end
      assert.equal(0, hosts[2]:wait(120))
      local found, begun, done = ledger.read(path, killed, orphaned), 0, 0
      for _, row in ipairs(all [[SELECT id, parent_id, status, attempts, priority, IF(name = 'child', 9, id % 7) AS was
      FROM queue_table]]) do
        assert.equal("processed", row.status, row.id)
        local returns = found.begun[row.id] - 1
        assert.is_true(row.attempts >= 30 - 1 - KILLS and row.attempts <= 30, row.id)
        assert.is_true(30 - row.attempts <= returns + 1, row.id) -- the dead host had not begun all it had
        assert.is_true(row.id % 10 > 1 or returns >= 1 or row.attempts < 30, row.id)
        assert.equal(row.was - (30 - row.attempts), row.priority, row.id) -- it has sunk
        assert.is_true(not row.parent_id or found.first[row.id] > found.last[row.parent_id], row.id)
        begun, done = begun + found.begun[row.id], done + found.done[row.id]
      end
      assert.equal(JOBS + CHILDREN, count "TRUE")
      local lost = begun - (JOBS + CHILDREN) - (JOBS + CHILDREN) // 5
      -- rows of the dead: each worker's one, those with a verdict on its way, and those sent
      -- ahead to the workers of a dead host
      assert.is_true(lost >= -40 and lost <= 3 * (40 + 3) + found.orphans, lost)
      assert.is_true(done - JOBS - CHILDREN <= 2 * (40 + 3) + found.orphans, done)
      assert.is_true(count "retry_after > '2000-01-01'" > 0) -- not of one that was done before it was written
    end)
  end)

  describe("of 30,000 jobs the 300 that are queued", function()
    local function plan()
      local sql = CLAIM:format "processed":gsub("FOR UPDATE.*", "")
      return all("EXPLAIN " .. sql)[1]
    end

    --- How the server finds the rows that a claim may take in.
    local function look(t)
      local sql = t.texts.look:gsub("^SET STATEMENT .- FOR%s", "", 1)
      return assert(db._handle:execute("EXPLAIN " .. sql, 1, "[]", "null", 36))[1]
    end

    it("are found, in order, by the index that is advised", function()
      all [[INSERT INTO queue_table (name, priority, status)
      SELECT 'x', seq * 7919 % 1000, IF(seq % 100, 'processed', 'queued') FROM seq_1_to_30000]]
      all "ANALYZE TABLE queue_table"
      local t = adopt()
      assert.is_truthy(look(t).Extra:find "filesort", look(t).Extra)
      local sql = assert(t:advice())
      all(sql)
      assert.is_false(t:advice())
      local key = sql:match "INDEX (%S+)":gsub("`", "")
      for _, row in ipairs { plan(), look(t) } do
        assert.equal(key, row.key, sql)
        assert.is_nil(row.Extra:find "filesort", row.Extra)
      end
    end)
  end)
end)
