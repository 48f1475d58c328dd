-- Designs of queues in a database. A queue of commands, and a controller that starts one process
-- per job. A migration by workers on many machines, and a job manager.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local lab = require "spec.support.db".lab
local ledger = require "spec.support.crew".ledger

-- Design: a queue of commands, written by any program in plain SQL. Nothing in the row says that
-- it is claimed: its job does. Failures are counted up to a limit, and what has reached it is
-- a dead letter.
describe("a queue of commands:", function()
  local LIMIT = 3

  local db, path
  lab.handles(1, function(handle) db, path = handle, fixture.dir() .. "/ledger" end)
  after_each(crew.clean)

  local function all(sql) return assert(db:execute(sql)) end

  local function count(where) return all("SELECT COUNT(*) AS n FROM worker_queue WHERE " .. where)[1].n end

  local function map(changes) return designs.map("worker_queue", changes) end

  local function adopt(changes) return assert(db:adopt(map(changes))) end

  --- A producer that knows nothing of us.
  local function produce(commands)
    local lines = {}
    for i, command in ipairs(commands) do
      lines[i] = ("INSERT INTO worker_queue (command) VALUES ('%s');"):format(command)
    end
    require "spec.support.db".sql(table.concat(lines, "\n"), lab.database)
  end

  local function commands(t)
    local list = {}
    for job in t:jobs() do
      list[#list + 1] = job.payload.command
      assert.is_true((job:ack()))
    end
    return list
  end

  describe("commands", function()
    it("of producers in plain SQL run in their order", function()
      designs.create(db, "worker_queue", 0)
      produce { "first", "second", "third" }
      assert.same({ "first", "second", "third" }, commands(adopt()))
      assert.equal(3, count "is_done AND failure_count = 0")
    end)

    it("run the last one first when that is asked for", function()
      designs.create(db, "worker_queue", 0)
      produce { "first", "second", "third" }
      assert.same({ "third", "second", "first" }, commands(adopt { order = "-id" }))
    end)

    it("are claimed without a word in the row, or a lock on it", function()
      designs.create(db, "worker_queue", 2)
      local t = adopt()
      local job = assert(t:claim())
      assert.equal(2, count "NOT is_done AND failure_count = 0")
      assert.equal(2, #all "SELECT id FROM worker_queue WHERE NOT is_done FOR UPDATE SKIP LOCKED")
      local other <close> = lab.open()
      assert.equal(2, assert(assert(other:adopt(map())):claim()).row)
      assert.is_true((job:ack()))
    end)

    it("come back within seconds when their worker is dead, with a failure counted", function()
      designs.create(db, "worker_queue", 1)
      local c = crew.start(1, lab.url(), map(), ledger.script(path) .. [[
      return function(job)
        begin(job.row)
        while true do require "nst".sleep(1) end
      end]])
      eventually(function() return ledger.count(path) == 1 end)
      local t = adopt()
      assert.is_nil(t:claim())
      c:kill(1)
      local job = eventually(function() return t:claim() end)
      assert.equal(1, job.row)
      assert.is_true((job:ack()))
      assert.equal(1, count "is_done AND failure_count = 1")
    end)
  end)

  -- The end of a row passed by a failure that was still owed to it: that was never counted then.
  it("have each failure counted, though a row was locked when it failed", function()
    for _, block in ipairs { 1, 2 } do -- an end in one statement, and ends of many
      designs.create(db, "worker_queue", 2)
      local t = adopt()
      local other, locker <close> = lab.open(), lab.open()
      local theirs = assert(other:adopt(map()))
      local jobs = assert(t:claim_many(block))
      assert(locker._handle:begin())
      assert(locker:execute "SELECT * FROM worker_queue FOR UPDATE")
      for _, job in ipairs(jobs) do assert(job:fail("no", { retry_in = 0 })) end
      assert(locker._handle:rollback())
      local again = assert(theirs:claim_many(block))
      assert.same({ block, jobs[1].row }, { #again, again[1].row })
      if block == 1 then assert(again[1]:ack()) end
      assert(block == 1 or other:transaction(function(tx)
        for _, job in ipairs(again) do assert(tx:ack(job)) end
        return true
      end))
      eventually(function()
        t:pay()
        return count "is_done AND failure_count = 1" == block
      end)
      other:close()
    end
  end)

  local COMMANDS = 100

  -- Commands named "bad" never work, "shy" ones at the third attempt.
  local HANDLER = [[
  return function(job)
    begin(job.row)
    local name = job.payload.command
    if name == "bad" or name == "shy" and job.attempt < 3 then
      left(job.row)
      error(name .. " command")
    end
    require "nst".sleep(0.01)
    done(job.row)
  end]]

  describe("a hundred commands", function()
    it("end done or dead, whoever is killed", function()
      designs.create(db, "worker_queue", 0)
      local list = {}
      for i = 1, COMMANDS do list[i] = i % 20 == 0 and "bad" or i % 10 == 5 and "shy" or "good" end
      produce(list)
      local killed = {}
      local c = crew.start(6, lab.url(), map(), ledger.script(path) .. HANDLER)
      for i = 1, 4 do
        eventually(function() return ledger.count(path) >= 35 * i end)
        killed[c:kill(i)] = true
      end
      c:wait()
      local found, spent = ledger.read(path, killed), 0
      for _, row in ipairs(all "SELECT id, command, is_done, failure_count FROM worker_queue") do
        local failures = ({ good = 0, shy = 2, bad = LIMIT })[row.command]
        assert.is_true(row.is_done == 0 or row.command ~= "bad", row.id)
        assert.is_true(row.is_done == 1 or row.failure_count >= LIMIT, row.id)
        assert.is_true(row.is_done == 0 or found.done[row.id] >= 1, row.id)
        spent = spent + row.failure_count - failures
        assert.is_true(row.failure_count >= failures, row.id)
      end
      assert.is_true(spent >= 0 and spent <= 4, spent)
      assert.equal(COMMANDS // 20, count "NOT is_done AND command = 'bad'")
      assert.equal(0, count "NOT is_done AND command = 'good'") -- a kill may use up the last attempt of a shy one
    end)
  end)

  describe("dead letters", function()
    -- Three commands, of which the second has failed as often as it may.
    local function kill_one()
      designs.create(db, "worker_queue", 0)
      produce { "good", "bad", "good" }
      local t = adopt()
      for job in t:jobs() do
        if job.payload.command == "bad" then assert.is_true((job:fail("bad command", { retry_in = 0 })))
        else assert.is_true((job:ack())) end
      end
      return t
    end

    it("are what has failed as often as it may, and nobody claims them", function()
      local t = kill_one()
      assert.is_nil(t:claim())
      assert.same({ { id = 2, failure_count = LIMIT } },
        all "SELECT id, failure_count FROM worker_queue WHERE NOT is_done")
    end)

    it("run again when their count is taken back, in SQL", function()
      local t = kill_one()
      all "UPDATE worker_queue SET failure_count = 0 WHERE NOT is_done"
      local job = assert(t:claim())
      assert.same({ 2, 1 }, { job.row, job.attempt })
      assert.is_true((job:ack()))
      assert.equal(3, count "is_done")
    end)
  end)

  -- ------------------------------------------------------------------ under hosts

  --- As HANDLER, but the bad ones work once there is a file.
  local function script(mark)
    return ledger.script(path) .. ([[
    return { worker_queue = function(job)
      begin(job.row)
      local name, mended = job.payload.command, io.open(%q)
      if name == "bad" and not mended or name == "shy" and job.attempt < 3 then
        left(job.row)
        error(("%%s command, number %%d"):format(name, job.row))
      end
      require "nightshift.core".sleep(0.005)
      done(job.row)
      return job:ack()
    end }]]):format(mark)
  end

  local function mixed(n)
    local list = {}
    for i = 1, n do list[i] = i % 20 == 0 and "bad" or i % 10 == 5 and "shy" or "good" end
    return list
  end

  local function start_host(mark, order)
    local file = designs.file("worker_queue", { order = order, backoff = 0.5 })
    return host.start(lab.url(), mark .. ".lua", { "--adopt", file, "--workers", "4", "--log", "json" })
  end

  --- Everything is done or dead, and the rows say so.
  local function settled()
    return count "NOT is_done AND failure_count < 3" == 0
      and #all "SELECT id FROM nightshift_job UNION ALL SELECT seq FROM nightshift_owed" == 0
  end

  describe("commands on several hosts", function()
    local mark, hosts
    before_each(function()
      mark, hosts = fixture.dir() .. "/mended", {}
      local file <close> = assert(io.open(mark .. ".lua", "w"))
      file:write(script(mark))
      file:close()
      designs.create(db, "worker_queue", 0)
    end)

    local function stop()
      for _, h in ipairs(hosts) do
        if not h:ended() then
          h:signal "TERM"
          assert.equal(0, h:wait(30))
        end
      end
    end

    for _, order in ipairs { "id", "-id" } do
      it(("by %s end done or dead though workers and a host are killed"):format(order), function()
        produce(mixed(COMMANDS))
        hosts = { start_host(mark, order), start_host(mark, order) }
        local function begun(n) return function() return ledger.count(path) >= n end end
        eventually(begun(20))
        produce(mixed(COMMANDS)) -- while they work
        local killed = {}
        for i = 1, 3 do
          eventually(begun(50 * i), 120)
          local pid = host.members(hosts[2].pid)[1]
          killed[pid] = true
          nst.kill(pid, "KILL")
        end
        local orphaned = {}
        for _, pid in ipairs(host.members(hosts[1].pid)) do killed[pid], orphaned[pid] = true, true end
        hosts[1]:signal "KILL"
        hosts[1]:wait()
        hosts[1] = start_host(mark, order)
        eventually(settled, 120)
        stop()
        local found, dead = ledger.read(path, killed, orphaned), 0
        for _, row in ipairs(all "SELECT id, command, is_done, failure_count FROM worker_queue") do
          local failures = ({ good = 0, shy = 2, bad = LIMIT })[row.command]
          if row.is_done == 1 then
            assert.is_true(row.command ~= "bad" and row.failure_count >= failures, row.id) -- a kill counts as well
            assert.is_true(found.done[row.id] >= 1, row.id)
          else
            assert.is_true(row.failure_count >= LIMIT, row.id)
            assert.is_true(row.command == "shy" or row.command == "bad" and not found.done[row.id], row.id)
            dead = dead + 1
          end
        end
        assert.equal(2 * COMMANDS // 20, count "NOT is_done AND command = 'bad'")
        assert.equal(dead, adopt():stats().dead)
        assert.equal(2 * COMMANDS, count "TRUE")
      end)
    end

    it("run the oldest first, or the newest", function()
      for _, order in ipairs { "id", "-id" } do
        designs.create(db, "worker_queue", 0)
        produce { "a", "b", "c", "d", "e" }
        os.remove(path)
        local file = designs.file("worker_queue", { order = order })
        local status, log = host.drain(lab.url(), mark .. ".lua", { "--adopt", file, "--workers", "1", "--drain" })
        assert.equal(0, status, log)
        local ids = {}
        for line in io.lines(path) do ids[#ids + 1] = tonumber(line:match "^begin (%d+)") end
        assert.same(order == "id" and { 1, 2, 3, 4, 5 } or { 5, 4, 3, 2, 1 }, ids)
      end
    end)

    it("leave dead letters that are listed, analysed, run again, and then pruned or moved", function()
      produce(mixed(60))
      hosts = { start_host(mark), start_host(mark) }
      local t = adopt()
      eventually(function() return settled() and t:stats().dead == 3 end, 120)
      for _, job in ipairs(assert(db:jobs { queue = "worker_queue", state = "dead", limit = 3 })) do
        local found = db:job(job.id)
        assert.same({ 0, LIMIT, "bad" }, { found.payload.id % 20, found.attempts, found.payload.command })
        assert.is_truthy(found.error:find("bad command, number " .. found.payload.id, 1, true), found.error)
      end
      io.open(mark, "w"):close()
      assert.is_true(t:retry(20))
      eventually(function() return count "id = 20 AND is_done AND failure_count = 0" == 1 end)
      assert.equal(2, t:retry "all")
      eventually(function() return count "is_done" == 60 end)
      assert.equal(0, t:stats().dead)
      stop()
      all "DROP TABLE IF EXISTS worker_archive"
      all "CREATE TABLE worker_archive LIKE worker_queue"
      assert.equal(40, t:prune { into = "worker_archive", limit = 40 })
      assert.equal(20, t:prune())
      assert.equal(0, count "TRUE")
      assert.equal(40, #all "SELECT id FROM worker_archive WHERE is_done AND id <= 40")
    end)
  end)
end)

-- Design: a controller starts one process per job. As published the process keeps the job's row
-- locked while it works. Here no row is locked, and a dead one's job is free within seconds.
describe("a controller:", function()
  local db, path
  lab.handles(1, function(handle) db, path = handle, fixture.dir() .. "/ledger" end)
  after_each(crew.clean)

  local function all(sql) return assert(db:execute(sql)) end

  local function count(where) return all("SELECT COUNT(*) AS n FROM job_queue WHERE " .. where)[1].n end

  local function map(changes) return designs.map("job_queue", changes) end

  local function waits() return tonumber(all "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'"[1].Value) end

  --- Is the row free of other locks?
  local function is_free(id)
    local rows = all(("SELECT id FROM job_queue WHERE id = %d FOR UPDATE SKIP LOCKED"):format(id))
    return #rows == 1
  end

  -- Works until it is killed.
  local ENDLESS = [[
  return function(job)
    begin(job.row)
    while true do require "nst".sleep(1) end
  end]]

  local function endless() return crew.start(1, lab.url(), map(), ledger.script(path) .. ENDLESS) end

  describe("a job's row", function()
    it("says WORKING, and is not locked, for as long as its process works", function()
      designs.create(db, "job_queue", 2)
      local c = endless()
      eventually(function() return ledger.count(path) == 1 end)
      assert.equal(1, count "id = 1 AND state = 'WORKING' AND started IS NOT NULL AND updated >= started")
      assert.is_true(is_free(1) and is_free(2))
      c:kill(1)
    end)

    it("is free within seconds when its process is killed, and nobody has waited for it", function()
      designs.create(db, "job_queue", 1)
      assert(db:rescue { wait = "5s" }) -- of the test before
      local before = waits()
      for _ = 1, 3 do
        local begun = ledger.count(path) + 1
        local c = endless()
        eventually(function() return ledger.count(path) == begun end)
        local t = assert(db:adopt(map()))
        assert.equal(0, t:rescue())
        assert.is_nil(t:claim())
        local killed = nst.clock()
        c:kill(1)
        eventually(function() return assert(t:rescue()) == 1 end)
        assert.is_true(nst.clock() - killed < proc.limit(9), nst.clock() - killed)
      end
      local job = assert(assert(db:adopt(map())):claim())
      assert.equal(1, job.row)
      assert.is_true((job:ack()))
      assert.equal(1, count "state = 'DONE'")
      assert.equal(before, waits())
    end)

    it("is freed by whoever claims next, without anybody asking", function()
      designs.create(db, "job_queue", 1)
      local c = endless()
      eventually(function() return ledger.count(path) == 1 end)
      c:kill(1)
      local t = assert(db:adopt(map()))
      local job = assert(t:claim { wait = proc.limit(9) })
      assert.equal(1, job.row)
      assert.is_true((job:ack()))
    end)
  end)

  local JOBS = 60

  -- Takes a moment; some do not work out.
  local HANDLER = [[
  return function(job)
    begin(job.row)
    require "nst".sleep(0.02)
    done(job.row)
    if job.row % 10 == 0 then job:discard "no use" end
  end]]

  describe("sixty jobs", function()
    it("are each done by one process at a time, whoever is killed", function()
      designs.create(db, "job_queue", JOBS)
      local killed = {}
      local c = crew.start(8, lab.url(), map(), ledger.script(path) .. HANDLER)
      for i = 1, 5 do
        eventually(function() return ledger.count(path) >= 16 * i end)
        killed[c:kill(i)] = true
      end
      crew.start(3, lab.url(), map(), ledger.script(path) .. HANDLER):wait() -- joins in, drains, exits
      c:wait()
      local found, begun = ledger.read(path, killed), 0
      for _, row in ipairs(all "SELECT id, state FROM job_queue") do
        assert.equal(row.id % 10 == 0 and "ERROR" or "DONE", row.state)
        assert.is_true(found.done[row.id] >= 1, row.id)
        begun = begun + found.begun[row.id]
      end
      assert.is_true(begun <= JOBS + 5, begun)
      assert.equal(JOBS, count "started IS NOT NULL AND updated >= started")
    end)
  end)

  describe("a job that a process gives back as it ends", function()
    it("is as it was", function()
      designs.create(db, "job_queue", 1)
      local other <close> = lab.open()
      assert(assert(assert(other:adopt(map())):claim()))
      other:close()
      assert.equal(1, count "state = 'NEW'")
      assert.is_true(is_free(1))
    end)
  end)

  describe("under hosts", function()
    local function script(body)
      return ledger.script(path) .. "return { job_queue = function(job)\nbegin(job.row)\n" .. body
        .. "\ndone(job.row)\nend }"
    end

    local BRIEF = [[
    require "nightshift.core".sleep(0.1)
    if job.row % 10 == 0 then done(job.row) return job:discard "no use" end]]

    local function arguments(...)
      return { "--adopt", designs.file "job_queue", "--isolation", "job", "--workers", "4", ... }
    end

    local function ok(...)
      local status, out, err = proc.nightshift({ ... }, lab.url())
      assert.equal(0, status, err)
      return out
    end

    --- Who has begun which row: ids by process.
    local function begun()
      local found = {}
      local file <close> = io.open(path, "rb")
      for id, pid in (file and file:read "a" or ""):gmatch "begin (%d+) (%d+)\n" do
        pid = tonumber(pid)
        found[pid] = found[pid] or {}
        table.insert(found[pid], tonumber(id))
      end
      return found
    end

    --- What runs, by row.
    local function running()
      local rows = nightshift.decode(ok("status", "--json")).running
      for _, row in ipairs(rows) do row.row = db:job(row.id).payload.id end
      table.sort(rows, function(a, b) return a.row < b.row end)
      return rows
    end

    it("a job has a process of its own, and shows where it runs, since when, and what it says", function()
      designs.create(db, "job_queue", 5)
      local h = host.start(lab.url(), script [[
      job:progress(0.25, "a quarter of " .. job.row)
      if job.row > 2 then while true do require "nightshift.core".sleep(1) end end]], arguments())
      local rows
      eventually(function()
        rows = running()
        local told = 0
        for _, row in ipairs(rows) do told = told + (row.status and 1 or 0) end
        return #rows == 3 and told == 3 and count "state = 'DONE'" == 2
      end)
      local by_pid = begun()
      for _, ids in pairs(by_pid) do assert.equal(1, #ids) end
      local text = ok "status"
      for i, row in ipairs(rows) do
        assert.same({ "job_queue", i + 2, h.pid, 0.25, "a quarter of " .. i + 2 },
          { row.queue, row.row, row.pid, row.progress, row.status })
        assert.same({ row.row }, by_pid[row.worker])
        assert.equal(io.open "/proc/sys/kernel/hostname":read "l", row.host)
        assert.is_true(row.started <= row.touched)
        assert.is_true(is_free(row.row))
        assert.is_truthy(text:find(("\n *%d +job_queue +job_queue +[^ ]+ +%d +20.* 25%%%%  a quarter of %d"):format(
          row.id, row.worker, row.row)), text)
      end
      nst.kill(rows[1].worker, "KILL")
      eventually(function() -- had by another process
        local again = running()
        return again[1] and again[1].row == 3 and again[1].worker and again[1].worker ~= rows[1].worker
      end)
      h:signal "QUIT"
      assert.equal(0, h:wait(20))
      assert.equal(3, count "state = 'NEW'")
    end)

    it("sixty jobs are each done by one process, by hosts that join in, drain and exit", function()
      designs.create(db, "job_queue", JOBS)
      local hosts = {}
      for i = 1, 3 do hosts[i] = host.spawn(lab.url(), script(BRIEF), arguments "--drain") end
      eventually(function() return ledger.count(path) >= 20 end)
      hosts[1]:signal "KILL"
      hosts[1]:wait(20)
      local victims = 0
      for _, member in ipairs(host.members(hosts[2].pid)) do
        if victims < 2 and nst.kill(member, "KILL") then victims = victims + 1 end
      end
      hosts[4] = host.spawn(lab.url(), script(BRIEF), arguments "--drain") -- as cron would
      for i = 2, 4 do assert.equal(0, hosts[i]:wait(90), hosts[i]:transcript()) end
      assert.equal(0, (host.drain(lab.url(), script(BRIEF), arguments "--drain"))) -- nothing is left
      local total = 0
      for pid, ids in pairs(begun()) do
        assert.equal(1, #ids, pid)
        total = total + 1
      end
      -- what a host and two workers had, and those with a verdict on its way
      assert.is_true(total >= JOBS and total <= JOBS + 2 * (4 + victims), total)
      for _, row in ipairs(all "SELECT id, state FROM job_queue") do
        assert.equal(row.id % 10 == 0 and "ERROR" or "DONE", row.state, row.id)
      end
      assert.equal(JOBS, count "started IS NOT NULL AND updated >= started")
    end)

    it("a drain ends while its table is paused, and leaves the rows open", function()
      designs.create(db, "job_queue", JOBS)
      local t = assert(db:adopt(map()))
      local h = host.spawn(lab.url(), script(BRIEF), arguments "--drain")
      eventually(function() return ledger.count(path) >= 10 end)
      assert.is_true((t:pause()))
      assert.equal(0, h:wait(90))
      assert.equal(0, count "state = 'WORKING'")
      assert.is_true(count "state = 'NEW'" > 0)
      assert.is_true((t:resume()))
      assert.equal(0, (host.drain(lab.url(), script(BRIEF), arguments "--drain")))
      assert.equal(0, count "state = 'NEW'")
    end)

    it("a drain ends with the last row, however slowly rows are given out", function()
      designs.create(db, "job_queue", 12)
      local t = assert(db:adopt(map()))
      assert.is_true((t:tune { rate = 3 }))
      local hosts = {}
      for i = 1, 2 do hosts[i] = host.spawn(lab.url(), script(BRIEF), arguments "--drain") end
      for i = 1, 2 do
        assert.equal(0, hosts[i]:wait(90))
        assert.equal(0, count "state = 'NEW'")
      end
    end)
  end)
end)

-- ----- a migration, and a job manager

-- Design: a migration of 50,000 images, of 1,000 without NIGHTSHIFT_LONG, by workers on many
-- machines. They claim blocks of 10 tasks under a fresh claim id and complete or reset each.
describe("a migration:", function()
  local TASKS = os.getenv "NIGHTSHIFT_LONG" and 50000 or 1000
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

  local function start(n, wait)
    return crew.start(n, lab.url(), map(), ledger.script(path) .. HANDLER, { block = BLOCK, wait = wait })
  end

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

  describe("many tasks", function()
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
      start(2, 3):wait()
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
        require "nightshift.core".sleep(0.06)
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
      fill(200)
      local hosts = { start_host(), start_host() }
      local t = assert(db:adopt(map()))
      eventually(function() return #begun() > 30 end)
      assert.is_true((t:pause()))
      local paused = nst.clock()
      eventually(function() return count "status = 'processing'" == 0 end)
      nst.sleep(math.max(0, paused + 1.5 - nst.clock())) -- nothing is to happen
      local before = begun()
      assert.is_true(before[#before].at < paused + proc.limit(4)) -- the 200 take two
      assert.is_true(#before < 200)
      assert.equal(#before, count "status = 'complete'")
      assert.is_true((t:resume()))
      eventually(function() return count "status = 'complete'" == 200 end, 60)
      for _, h in ipairs(hosts) do
        h:signal "TERM"
        assert.equal(0, h:wait(30))
      end
      assert.equal(200, count "status = 'complete' AND iteration = 0 AND completedAt >= claimedAt")
      assert.equal(200, #begun())
    end)

    it("are all completed though a host and workers of the other are killed", function()
      fill(200)
      local hosts = { start_host "--drain", start_host "--drain" }
      eventually(function() return #begun() > 30 end)
      hosts[1]:signal "KILL"
      hosts[1]:wait()
      nst.kill(host.members(hosts[2].pid)[1], "KILL")
      eventually(function() return #begun() > 80 end)
      nst.kill(host.members(hosts[2].pid)[1], "KILL")
      assert.equal(0, hosts[2]:wait(90))
      assert.equal(200, count "status = 'complete' AND completedAt >= claimedAt")
      local again = all "SELECT SUM(iteration) AS n FROM migration_task"[1].n
      assert.is_true(tonumber(again) >= 1)
      assert.is_true(#begun() <= 200 + tonumber(again))
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
    local WORKERS = 50 -- from as many on, says who published it, some had the same

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

  local JOBS, CHILDREN, KILLS = 160, 40, 3

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

  describe("200 jobs, some of them children,", function()
    for _, claimers in ipairs(os.getenv "NIGHTSHIFT_LONG" and { 80, 200, 500 } or { 12 }) do
      local crowd = ("by %d claimers with a connection each, of whom some are killed"):format(claimers)
      it("are each had once " .. crowd, function()
        fill()
        local gate = fixture.dir() .. "/gate"
        assert(os.execute("mkfifo " .. gate))
        local c = crew.start(claimers, lab.url(), map(), ledger.script(path) .. HANDLER, { gate = gate })
        eventually(function() return ledger.count(gate .. ".ready") == claimers end, 120)
        local opened, killed = assert(io.open(gate, "w")), {}
        for i = 1, KILLS do
          eventually(function() return ledger.count(path) >= 40 * i end, 120)
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

  describe("200 jobs on two hosts with 80 workers", function()
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
      eventually(function() return ledger.count(path) >= 70 end, 120)
      for _, pid in ipairs(host.members(hosts[1].pid)) do killed[pid], orphaned[pid] = true, true end
      hosts[1]:signal "KILL"
      hosts[1]:wait(20)
      for i = 1, 3 do
        eventually(function() return ledger.count(path) >= 100 + 70 * i end, 120)
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
