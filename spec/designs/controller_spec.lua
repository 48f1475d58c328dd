-- Design: a controller starts one process per job. The process keeps the job's row
-- locked while it works, so a dead one's job is free at once.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local lab = require "spec.support.lab"
local ledger = require "spec.support.ledger"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local db, path
lab.handles(1, function(handle) db, path = handle, fixture.dir() .. "/ledger" end)
after_each(crew.clean)

local function all(sql) return assert(db:execute(sql)) end

local function count(where) return all("SELECT COUNT(*) AS n FROM job_queue WHERE " .. where)[1].n end

local function map(changes) return designs.map("job_queue", changes) end

local function waits() return tonumber(all "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'"[1].Value) end

--- Does nobody else have the row locked?
local function is_free(id)
  local rows = all(("SELECT id FROM job_queue WHERE id = %d FOR UPDATE SKIP LOCKED"):format(id))
  return #rows == 1
end

-- Works until it is killed.
local ENDLESS = [[
  return function(job)
    begin(job.id)
    while true do require "nst".sleep(1) end
  end]]

local function endless() return crew.start(1, lab.url(), map(), ledger.script(path) .. ENDLESS) end

describe("a job's row", function()
  it("is locked, and says WORKING, for as long as its process works", function()
    designs.create(db, "job_queue", 2)
    local c = endless()
    eventually(function() return ledger.count(path) == 1 end)
    assert.equal(1, count "id = 1 AND state = 'WORKING' AND started IS NOT NULL AND updated >= started")
    assert.is_false(is_free(1))
    assert.is_true(is_free(2))
    c:kill(1)
  end)

  it("is free at once when its process is killed, and nobody has waited for it", function()
    designs.create(db, "job_queue", 1)
    local before = waits()
    for _ = 1, 3 do
      local c = endless()
      local begun = ledger.count(path) + 1
      eventually(function() return ledger.count(path) == begun end)
      local t = assert(db:adopt(map()))
      assert.equal(0, t:rescue()) -- it is locked: a look goes past
      assert.is_nil(t:claim())
      local killed = nst.clock()
      c:kill(1)
      eventually(function() return is_free(1) end)
      eventually(function() return assert(t:rescue()) == 1 end)
      assert.is_true(nst.clock() - killed < proc.limit(9), nst.clock() - killed)
      assert.equal(1, count "state = 'NEW'")
    end
    local job = assert(assert(db:adopt(map())):claim())
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
    assert.equal(1, job.id)
    assert.is_true((job:ack()))
  end)
end)

local JOBS = 150

-- Takes a moment; some do not work out.
local HANDLER = [[
  return function(job)
    begin(job.id)
    require "nst".sleep(0.02)
    done(job.id)
    if job.id % 10 == 0 then job:discard "no use" end
  end]]

describe("150 jobs", function()
  it("are each done by one process at a time, whoever is killed", function()
    designs.create(db, "job_queue", JOBS)
    local killed, before = {}, waits()
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
    assert.equal(before, waits())
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
    return ledger.script(path) .. "return { job_queue = function(job)\nbegin(job.id)\n" .. body
      .. "\ndone(job.id)\nend }"
  end

  local BRIEF = [[
    require "nightshift.core".sleep(0.02)
    if job.id % 10 == 0 then done(job.id) return job:discard "no use" end]]

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

  local function running() return nightshift.decode(ok("status", "--json")).adopted.running end

  it("a job has a process of its own, and shows where it runs, since when, and what it says", function()
    designs.create(db, "job_queue", 5)
    local h = host.start(lab.url(), script [[
      job:progress(0.25, "a quarter of " .. job.id)
      if job.id > 2 then while true do require "nightshift.core".sleep(1) end end]], arguments())
    local rows
    eventually(function()
      rows = running()
      local told = 0
      for _, row in ipairs(rows) do told = told + (row.status and 1 or 0) end
      return #rows == 3 and told == 3 and count "state = 'DONE'" == 2
    end)
    local by_pid = begun()
    for _, ids in pairs(by_pid) do assert.equal(1, #ids) end
    table.sort(rows, function(a, b) return a.id < b.id end)
    local text = ok "status"
    for i, row in ipairs(rows) do
      assert.same({ "job_queue", i + 2, h.pid, 0.25, "a quarter of " .. i + 2 },
        { row.table, row.id, row.pid, row.progress, row.status })
      assert.same({ row.id }, by_pid[row.worker])
      assert.equal(io.open "/proc/sys/kernel/hostname":read "l", row.host)
      assert.is_true(row.started > 0 and row.started <= row.touched)
      assert.is_false(is_free(row.id))
      assert.is_truthy(text:find(("\njob_queue +%d +[^ ]+ +%d +20.* 25%%%%  a quarter of %d"):format(row.id, row.worker,
        row.id)), text)
    end
    nst.kill(rows[1].worker, "KILL")
    eventually(function() -- free, and had by another process
      local again = running()
      table.sort(again, function(a, b) return a.id < b.id end)
      return again[1] and again[1].id == 3 and again[1].worker and again[1].worker ~= rows[1].worker
    end)
    h:signal "QUIT"
    assert.equal(0, h:wait(20))
    assert.equal(3, count "state = 'NEW'")
  end)

  it("150 jobs are each done by one process, by hosts that join in, drain and exit", function()
    designs.create(db, "job_queue", JOBS)
    local before, hosts = waits(), {}
    for i = 1, 3 do hosts[i] = host.spawn(lab.url(), script(BRIEF), arguments "--drain") end
    eventually(function() return ledger.count(path) >= 40 end)
    hosts[1]:signal "KILL"
    hosts[1]:wait(20)
    local victims = 0
    for _, member in ipairs(host.members(hosts[2].pid)) do
      if victims < 2 and nst.kill(member, "KILL") then victims = victims + 1 end
    end
    hosts[4] = host.spawn(lab.url(), script(BRIEF), arguments "--drain") -- as cron would
    for i = 2, 4 do assert.equal(0, hosts[i]:wait(90)) end
    assert.equal(0, (host.drain(lab.url(), script(BRIEF), arguments "--drain"))) -- nothing is left
    local total = 0
    for pid, ids in pairs(begun()) do
      assert.equal(1, #ids, pid)
      total = total + 1
    end
    -- what a host and two workers had, and those whose verdict was on its way
    assert.is_true(total >= JOBS and total <= JOBS + 2 * (4 + victims), total)
    for _, row in ipairs(all "SELECT id, state FROM job_queue") do
      assert.equal(row.id % 10 == 0 and "ERROR" or "DONE", row.state, row.id)
    end
    assert.equal(JOBS, count "started IS NOT NULL AND updated >= started")
    assert.equal(0, all "SELECT COUNT(*) AS n FROM nightshift_grip"[1].n)
    assert.equal(before, waits())
  end)

  it("a drain that is paused goes on when it is resumed", function()
    designs.create(db, "job_queue", JOBS)
    local t = assert(db:adopt(map()))
    local h = host.spawn(lab.url(), script(BRIEF), arguments "--drain")
    eventually(function() return ledger.count(path) >= 10 end)
    assert.is_true((t:pause()))
    h:wait_line "event=adopted.paused"
    eventually(function() return count "state = 'WORKING'" == 0 end)
    local open = count "state = 'NEW'"
    assert.is_true(open > 0)
    assert.is_false((pcall(h.wait, h, 3))) -- two looks and more
    assert.equal(open, count "state = 'NEW'")
    assert.is_true((t:resume()))
    assert.equal(0, h:wait(90))
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

  it("a drain exits while its table is paused, and says that it leaves rows", function()
    designs.create(db, "job_queue", 2)
    local t = assert(db:adopt(map()))
    assert.is_true((t:pause())) -- nobody has claimed yet
    local status, log = host.drain(lab.url(), script(BRIEF), arguments "--drain")
    assert.equal(0, status, log)
    assert.is_truthy(log:find "event=adopted.paused table=job_queue advice=\"it was when this host began", log)
    assert.equal(2, count "state = 'NEW'")
    assert.is_true((t:resume()))
    assert.equal(0, (host.drain(lab.url(), script(BRIEF), arguments "--drain")))
    assert.equal(2, count "state = 'DONE'")
  end)
end)
