-- Design: a controller starts one process per job. The process keeps the job's row
-- locked while it works, so a dead one's job is free at once.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local lab = require "spec.support.lab"
local ledger = require "spec.support.ledger"
local nst = require "nst"
local proc = require "spec.support.proc"

setup(lab.fresh)

local db, path
before_each(function()
  db, path = lab.open(), fixture.dir() .. "/ledger"
end)
after_each(function()
  crew.clean()
  db:close()
end)

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
      assert.is_true(nst.clock() - killed < proc.limit(2), nst.clock() - killed)
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
    local job = assert(t:claim { wait = proc.limit(5) })
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
