-- Design: a queue of commands, written by any program in plain SQL. The claim is the
-- open transaction; failures are counted up to a limit, and what has reached it is a
-- dead letter.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local lab = require "spec.support.lab"
local ledger = require "spec.support.ledger"

local LIMIT = 3

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

  it("are held by the open transaction, of which the row says nothing", function()
    designs.create(db, "worker_queue", 2)
    local t = adopt()
    local job = assert(t:claim())
    assert.equal(2, count "NOT is_done AND failure_count = 0")
    assert.same({ { id = 2 } }, all "SELECT id FROM worker_queue WHERE NOT is_done FOR UPDATE SKIP LOCKED")
    assert.is_true((job:release()))
    assert.equal(2, #all "SELECT id FROM worker_queue WHERE NOT is_done FOR UPDATE SKIP LOCKED")
  end)

  it("are free the moment that their worker is dead, with no failure counted", function()
    designs.create(db, "worker_queue", 1)
    local c = crew.start(1, lab.url(), map(), ledger.script(path) .. [[
      return function(job)
        begin(job.id)
        while true do require "nst".sleep(1) end
      end]])
    eventually(function() return ledger.count(path) == 1 end)
    local t = adopt()
    assert.is_nil(t:claim())
    c:kill(1)
    local job = eventually(function() return t:claim() end)
    assert.same({ 1, 1 }, { job.id, job.attempt })
    assert.is_true((job:ack()))
  end)
end)

local COMMANDS = 200

-- Commands named "bad" never work, "shy" ones at the third attempt.
local HANDLER = [[
  return function(job)
    begin(job.id)
    local name = job.payload.command
    if name == "bad" or name == "shy" and job.attempt < 3 then
      left(job.id)
      error(name .. " command")
    end
    require "nst".sleep(0.01)
    done(job.id)
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
    local found, begun = ledger.read(path, killed), 0
    for _, row in ipairs(all "SELECT id, command, is_done, failure_count FROM worker_queue") do
      local failures = ({ good = 0, shy = 2, bad = LIMIT })[row.command]
      assert.same({ row.command ~= "bad" and 1 or 0, failures }, { row.is_done, row.failure_count }, row.id)
      begun = begun + found.begun[row.id] - failures - row.is_done
    end
    assert.is_true(begun >= 0 and begun <= 4, begun)
  end)
end)

describe("dead letters", function()
  -- Three commands, of which the second has failed as often as it may.
  local function kill_one()
    designs.create(db, "worker_queue", 0)
    produce { "good", "bad", "good" }
    local t = adopt()
    for job in t:jobs() do
      if job.payload.command == "bad" then assert.is_true((job:fail "bad command"))
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
    assert.same({ 2, 1 }, { job.id, job.attempt })
    assert.is_true((job:ack()))
    assert.equal(3, count "is_done")
  end)
end)
