-- Designs: a queue of commands, and a controller that starts one process per job.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local lab = require "spec.support.db".lab
local ledger = require "spec.support.crew".ledger
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

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

  local COMMANDS = 200

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

  describe("200 commands", function()
    it("end done or dead, whoever is killed", function()
      designs.create(db, "worker_queue", 0)
      local list = {}
      for i = 1, COMMANDS do list[i] = i % 20 == 0 and "bad" or i % 10 == 5 and "shy" or "good" end
      produce(list)
      local killed = {}
      local c = crew.start(6, lab.url(), map(), ledger.script(path) .. HANDLER)
      for i = 1, 4 do
        eventually(function() return ledger.count(path) >= 60 * i end)
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
        eventually(begun(40))
        produce(mixed(COMMANDS)) -- while they work
        local killed = {}
        for i = 1, 3 do
          eventually(begun(100 * i), 120)
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
      produce(mixed(100))
      hosts = { start_host(mark), start_host(mark) }
      local t = adopt()
      eventually(function() return settled() and t:stats().dead == 5 end, 120)
      for _, job in ipairs(assert(db:jobs { queue = "worker_queue", state = "dead", limit = 5 })) do
        local found = db:job(job.id)
        assert.same({ 0, LIMIT, "bad" }, { found.payload.id % 20, found.attempts, found.payload.command })
        assert.is_truthy(found.error:find("bad command, number " .. found.payload.id, 1, true), found.error)
      end
      io.open(mark, "w"):close()
      assert.is_true(t:retry(20))
      eventually(function() return count "id = 20 AND is_done AND failure_count = 0" == 1 end)
      assert.equal(4, t:retry "all")
      eventually(function() return count "is_done" == 100 end)
      assert.equal(0, t:stats().dead)
      stop()
      all "DROP TABLE IF EXISTS worker_archive"
      all "CREATE TABLE worker_archive LIKE worker_queue"
      assert.equal(60, t:prune { into = "worker_archive", limit = 60 })
      assert.equal(40, t:prune())
      assert.equal(0, count "TRUE")
      assert.equal(60, #all "SELECT id FROM worker_archive WHERE is_done AND id <= 60")
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

  local JOBS = 150

  -- Takes a moment; some do not work out.
  local HANDLER = [[
  return function(job)
    begin(job.row)
    require "nst".sleep(0.02)
    done(job.row)
    if job.row % 10 == 0 then job:discard "no use" end
  end]]

  describe("150 jobs", function()
    it("are each done by one process at a time, whoever is killed", function()
      designs.create(db, "job_queue", JOBS)
      local killed = {}
      local c = crew.start(8, lab.url(), map(), ledger.script(path) .. HANDLER)
      for i = 1, 5 do
        eventually(function() return ledger.count(path) >= 40 * i end)
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
    require "nightshift.core".sleep(0.02)
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

    it("150 jobs are each done by one process, by hosts that join in, drain and exit", function()
      designs.create(db, "job_queue", JOBS)
      local hosts = {}
      for i = 1, 3 do hosts[i] = host.spawn(lab.url(), script(BRIEF), arguments "--drain") end
      eventually(function() return ledger.count(path) >= 40 end)
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
