-- Design: a migration of 50,000 images by workers on many machines, who claim blocks
-- of 10 tasks under a fresh claim id and complete or reset each.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local lab = require "spec.support.lab"
local ledger = require "spec.support.ledger"
local nst = require "nst"
local proc = require "spec.support.proc"

local TASKS = 50000
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

local function map(changes)
  changes = changes or {}
  changes.strategy = "update_limit"
  return designs.map("migration_task", changes)
end

--- One image in a thousand cannot be had the first time.
local HANDLER = [[
  return function(job)
    begin(job.id)
    if job.payload.iteration == 0 and job.id % 1000 == 0 then
      left(job.id)
      error("no image for task " .. job.id)
    end
    done(job.id)
  end]]

local function start(n) return crew.start(n, lab.url(), map(), ledger.script(path) .. HANDLER, { block = BLOCK }) end

--- Waits for so many lines, then kills.
local function kill(c, i, lines, killed)
  eventually(function() return ledger.count(path) >= lines end, 60)
  killed[c:kill(i)] = true
end

--- What a task that nobody has interfered with looks like.
local function check_row(row, found, kills)
  local failures = row.id % 1000 == 0 and 1 or 0
  assert.equal("complete", row.status, row.id)
  assert.equal(1, row.timed, row.id)
  assert.is_true(row.iteration >= failures and row.iteration <= failures + kills, row.id)
  assert.is_true(found.begun[row.id] <= row.iteration + 1, row.id)
  assert.is_true(found.done[row.id] >= 1 and found.done[row.id] <= 1 + kills, row.id)
end

describe("50,000 tasks", function()
  it("are each completed, once, by workers of whom some are killed", function()
    fill(TASKS)
    local killed, first = {}, start(3)
    kill(first, 1, 10000, killed)
    kill(first, 2, 30000, killed)
    local second = start(2)
    kill(second, 1, 60000, killed)
    first:wait()
    second:wait()
    local found, again, iterations, claims = ledger.read(path, killed), 0, 0, {}
    for _, row in ipairs(all [[SELECT id, status, iteration, claimedBy, claimedAt <= completedAt AS timed
      FROM migration_task ORDER BY id]]) do
      check_row(row, found, 3)
      again, iterations = again + found.done[row.id] - 1, iterations + row.iteration
      claims[row.claimedBy] = (claims[row.claimedBy] or 0) + 1
    end
    assert.equal(TASKS, count "TRUE")
    assert.is_true(again <= 3, again) -- a kill between the work and its verdict
    local lost = iterations - TASKS // 1000
    assert.is_true(lost > 0 and lost <= 3 * BLOCK, lost) -- a block each
    for by, n in pairs(claims) do assert.is_true(n <= BLOCK, by) end
  end)
end)

describe("a block", function()
  local function claim_ids()
    local seen = {}
    for _, row in ipairs(all [[SELECT claimedBy, COUNT(*) AS n FROM migration_task WHERE status = 'processing'
      GROUP BY claimedBy]]) do
      seen[row.claimedBy] = row.n
    end
    return seen
  end

  it("is ten tasks under a claim id of its own; those that are reset are claimed under another", function()
    fill(30)
    local t = assert(db:adopt(map()))
    local blocks, before = {}, {}
    for i = 1, 3 do
      blocks[i] = assert(t:claim_many(BLOCK))
      assert.equal(BLOCK, #blocks[i])
    end
    for by, n in pairs(claim_ids()) do
      assert.equal(BLOCK, n)
      before[#before + 1], before[by] = by, true
    end
    assert.equal(3, #before)
    for _, job in ipairs(blocks[1]) do assert.is_true((job:ack())) end
    for _, job in ipairs(blocks[2]) do assert.is_true((job:fail "no image")) end
    assert.equal(BLOCK, count "status = 'complete' AND iteration = 0 AND completedAt >= claimedAt")
    assert.equal(BLOCK, count "status = 'open' AND iteration = 1 AND claimedBy IS NULL AND claimedAt IS NULL")
    for i, job in ipairs(assert(t:claim_many(BLOCK))) do
      assert.equal(blocks[2][i].id, job.id)
      assert.equal(2, job.attempt)
    end
    local fresh = 0
    for by in pairs(claim_ids()) do
      if not before[by] then fresh = fresh + 1 end
    end
    assert.equal(1, fresh)
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
      assert.same({ 1, 2 }, { job.id, job.attempt })
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

  it("is no claim any more when it comes back after all", function()
    fill(1)
    local t = assert(db:adopt(map()))
    local job = assert(t:claim())
    all "UPDATE migration_task SET claimedAt = NOW() - INTERVAL 121 SECOND"
    assert.equal(1, t:rescue())
    local again = assert(t:claim())
    assert.equal("STALE", select(3, job:ack()))
    assert.is_true((again:ack()))
    assert.equal(1, count "status = 'complete' AND iteration = 1")
  end)
end)

describe("a worker that dies", function()
  it("is missed within seconds, not after two minutes", function()
    fill(BLOCK)
    local c = crew.start(1, lab.url(), map(), ledger.script(path) .. [[
      return function(job)
        begin(job.id)
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
    assert.equal(BLOCK, count "status = 'processing' AND iteration = 1")
  end)
end)

describe("tasks on two hosts", function()
  -- Says when it begins, on the clock that all processes of a machine share.
  local function script()
    return ([[
      local nightshift = require "nightshift"
      return { migrate = function(job)
        local file <close> = assert(io.open(%q, "ab"))
        file:write(("%%d %%.6f\n"):format(job.id, nightshift.clock()))
        require "nightshift.core".sleep(0.02)
      end }]]):format(path)
  end

  local function start_host(drain)
    return host.start(lab.url(), script(), { "--adopt", designs.file("migration_task", { strategy = "update_limit" }),
      "--workers", "3", drain })
  end

  local function begun()
    local list = {}
    for id, at in read(path):gmatch "(%d+) ([%d.]+)\n" do list[#list + 1] = { id = tonumber(id), at = tonumber(at) } end
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
