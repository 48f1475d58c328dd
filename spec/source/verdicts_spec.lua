-- Verdicts of programs on jobs that stand for rows of adopted tables. The row is written in the
-- transaction that settles the job, by as few statements as a batch of jobs needs.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local published = require "spec.support.designs".published
local source = require "nightshift.source.table"

local all, one, count, nothing_left = published.all, published.one, published.count, published.nothing_left
local make, open = published.make, published.open
local handle, url
published.database(function(...) handle, url = ... end)

local function refuse(which)
  all(([[CREATE TRIGGER refuses BEFORE UPDATE ON migration_task FOR EACH ROW
    IF NEW.status = 'complete' AND (%s) THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not done'; END IF]])
    :format(which))
end

--- Ends jobs in one transaction.
local function ack_all(jobs)
  local ok, message, code = handle:transaction(function(tx)
    for _, job in ipairs(jobs) do tx:ack(job) end
    return true
  end)
  return ok, message, code
end

describe("a verdict", function()
  it("stands when the server refuses the change of its row, which is owed and tried again", function()
    local t, name, done = open(1, 1)
    refuse "TRUE"
    assert.is_true((assert(t:claim()):ack()))
    assert.equal(0, count(name, done))
    assert.same({ "done", "not done" }, { one "SELECT outcome FROM nightshift_owed".outcome,
      one "SELECT why FROM nightshift_owed".why:match "not done" })
    assert.equal(0, t:pay())
    all "DROP TRIGGER refuses"
    t.unpaid = {} -- a minute later
    assert.equal(1, t:pay())
    assert.equal(1, count(name, done))
    nothing_left()
  end)

  it("of one row that is refused, or locked, keeps no other of its transaction", function()
    local t, name, done = open(1, 9)
    refuse "NEW.id = 4"
    local jobs = assert(t:claim_many(9))
    local other <close> = assert(nightshift.open(url))
    assert(other._handle:begin())
    assert(other._handle:execute "SELECT 1 FROM migration_task WHERE id = 6 FOR UPDATE")
    assert(ack_all(jobs))
    assert.same({ 7, 2, 9 }, { count(name, done), count("nightshift_owed", "TRUE"),
      count("nightshift_finished", "outcome = 'done'") })
    other._handle:rollback()
    all "DROP TRIGGER refuses"
    assert.equal(2, t:pay())
    assert.equal(9, count(name, done))
    nothing_left()
  end)

  it("waits for no session that has locked the table, to alter it say", function()
    local t, name, done = open(1, 4)
    local jobs = assert(t:claim_many(4))
    local other <close> = assert(nightshift.open(url))
    assert(other._handle:execute "LOCK TABLES migration_task WRITE")
    assert.is_true((jobs[1]:ack()))
    assert.same({ true, false }, { jobs[2]:fail("no", { retry_in = 3600 }) })
    assert(ack_all { jobs[3], jobs[4] })
    assert.equal(4, count("nightshift_owed", "why IS NULL"))
    assert(other._handle:execute "UNLOCK TABLES")
    assert.equal(4, t:pay())
    assert.same({ 3, 1 }, { count(name, done), count(name, "status = 'processing' AND iteration = 1") })
  end)

  it("is STALE when another program has the row, and ends the job; so is all of its transaction", function()
    local t, name, done = open(1, 3)
    local jobs = assert(t:claim_many(3))
    all "UPDATE migration_task SET claimedBy = 'theirs' WHERE id IN (1, 2)"
    assert.equal("STALE", (select(3, ack_all(jobs))))
    assert.same({ 0, 3 }, { count(name, done), count("nightshift_job", "TRUE") })
    assert.equal("STALE", (select(3, jobs[1]:fail "no")))
    assert.equal("STALE", (select(3, jobs[2]:again(0))))
    assert.same({ "cancelled", "the row was taken or changed" }, { handle:job(jobs[1].id).state,
      handle:job(jobs[1].id).reason })
    assert.is_true((jobs[3]:ack()))
    assert.equal(2, count(name, "claimedBy = 'theirs' AND iteration = 0"))
    nothing_left()
  end)

  it("writes its row at once, whatever it is", function()
    local t = open(3, 2)
    local failed, given_up = table.unpack(assert(t:claim_many(2)))
    assert(failed:fail("no", { retry_in = 3600 }))
    assert(given_up:discard "no")
    assert.same({ "in_progress", 29, "failed", 30 }, { one "SELECT job_queue_status AS s FROM queue_table".s,
      one "SELECT job_attempts AS n FROM queue_table".n,
      one "SELECT job_queue_status AS s FROM queue_table WHERE job_queue_id = 2".s,
      one "SELECT job_attempts AS n FROM queue_table WHERE job_queue_id = 2".n })
    assert.equal(0, count("nightshift_owed", "TRUE"))
  end)

  it("costs few statements, and a batch of them as many", function()
    local function status(which)
      return tonumber(assert(handle._handle:execute(("SHOW SESSION STATUS LIKE '%s'"):format(which)))[1].Value)
    end
    local t = open(1, 440)
    local function cost(jobs, end_all)
      local statements, written = status "Questions", status "Handler_write"
      assert(end_all(jobs))
      return status "Questions" - statements - 2, status "Handler_write" - written
    end
    local function ack(jobs) return jobs[1]:ack() end
    cost(assert(t:claim_many(1)), ack) -- all is prepared
    local statements, written = cost(assert(t:claim_many(1)), ack)
    assert.is_true(statements <= 12, statements)
    assert.is_true(written <= 2, written) -- a row of history, and the temporary one of a list
    local few, many = cost(assert(t:claim_many(2)), ack_all), cost(assert(t:claim_many(400)), ack_all)
    assert.is_true(few <= 16 and many <= few + 4, few .. " " .. many)
  end)
end)

describe("rows", function()
  it("are taken in ahead by a program that uses them up, and are open again when it goes", function()
    local function rows(n) return { open = 60 - n, processing = n } end
    local function found()
      local states = { open = 0, processing = 0 }
      for _, row in ipairs(all "SELECT status, COUNT(*) AS n FROM migration_task GROUP BY status") do
        states[row.status] = row.n
      end
      return states
    end
    local map = make(1, 60)
    local its = assert(nightshift.open(url))
    local t = assert(source.new(its, map))
    assert(t:claim())
    assert.same(rows(1), found())
    for _ = 1, 20 do assert(t:claim()) end
    assert.is_true(found().processing > 21)
    its:close()
    assert.same(rows(0), found())
    do
      local own = assert(nightshift.open(url))
      local other = assert(source.new(own, map))
      for _ = 1, 5 do assert(other:claim()) end
    end
    collectgarbage()
    collectgarbage()
    assert.same(rows(0), found())
    local p = proc.start { proc.lua, "-e", [[
    local db = assert(require "nightshift".open(os.getenv "NIGHTSHIFT_URL"))
    local map = load("return " .. os.getenv "NIGHTSHIFT_MAP")()
    local t = assert(require "nightshift.source.table".new(db, map))
    for _ = 1, 5 do assert(t:claim()) end]], env = { NIGHTSHIFT_URL = url, NIGHTSHIFT_MAP = published[1][4] } }
    assert.equal(0, p:wait())
    assert.same(rows(0), found())
    nothing_left()
  end)

  it("come as they are waited for", function()
    local t, name, done = open(1, 0)
    local p = proc.start { proc.lua, "-e", [[
    local db = assert(require "nightshift".open(os.getenv "NIGHTSHIFT_URL"))
    for i = 1, 3 do
      assert(db:execute "DO SLEEP(0.1)")
      assert(db:execute "INSERT INTO migration_task (status, iteration, imageUrl) VALUES ('open', 0, '')")
    end]], env = { NIGHTSHIFT_URL = url } }
    local n = 0
    for job in t:jobs { wait = 20 } do
      assert(job:ack())
      n = n + 1
      if n == 3 then break end
    end
    p:wait()
    assert.same({ 3, 3 }, { n, count(name, done) })
    nothing_left()
  end)

  -- Each statement of the program may be cut: it gives its verdicts again until they are told.
  for _, i in ipairs(os.getenv "NIGHTSHIFT_LONG" and { 1, 4 } or { 1 }) do
    it("of " .. published[i][1] .. " are done once, whatever statement a KILL QUERY hits", function()
      local map_name, _, _, given = table.unpack(published[i])
      local _, name, done = make(i, 300)
      all [[CREATE TABLE effect (id INT PRIMARY KEY, times INT NOT NULL)]]
      local p = proc.start { proc.lua, "-e", [[
      local nightshift = require "nightshift"
      local db = assert(nightshift.open(os.getenv "NIGHTSHIFT_URL"))
      local map = load("return " .. os.getenv "NIGHTSHIFT_MAP")()
      local t
      repeat t = require "nightshift.source.table".new(db, map) until t
      print("session " .. db:execute "SELECT CONNECTION_ID() AS id"[1].id)
      io.stdout:flush()
      local function insist(fn)
        while true do
          local ok, message, code = fn()
          if ok then return ok end
          assert(code == "BUSY" or code == "GONE" or code == "SQL" or code == "STALE", message)
          if code == "STALE" then return false end
        end
      end
      local round = 0
      while true do
        round = round + 1
        local jobs = insist(function() return t:claim_many(round % 5 + 1) end)
        if #jobs == 0 then break end
        if round % 2 == 0 then
          insist(function()
            return db:transaction(function(tx)
              for _, job in ipairs(jobs) do
                tx:execute("INSERT INTO effect VALUES (?, 1) ON DUPLICATE KEY UPDATE times = times + 1", job.row)
                tx:ack(job)
              end
              return true
            end)
          end)
        else
          for _, job in ipairs(jobs) do
            if insist(function() return job:ack() end) then
              insist(function() return db:execute("INSERT IGNORE INTO effect VALUES (?, 1)", job.row) end)
            end
          end
        end
      end
      print "over"]], env = { NIGHTSHIFT_URL = url, NIGHTSHIFT_MAP = given } }
      assert.equal(map_name, name)
      local session = p:wait_line("^session (%d+)", 20)
      repeat
        pcall(all, "KILL QUERY " .. session)
        all "DO SLEEP(0.001)"
      until p:ended()
      assert.equal(0, p:wait())
      eventually(function()
        local t = assert(source.new(handle, load("return " .. given)()))
        for _, job in ipairs(assert(t:claim_many(100))) do assert(job:ack()) end
        assert(t:pay())
        return count(name, done) == 300
      end, 20)
      assert.same({ 0, 300 }, { count("effect", "times <> 1"), count("nightshift_finished", "outcome = 'done'") })
      assert(handle:rescue()) -- rows of leases of which the last verdict was cut
      nothing_left()
    end)
  end
end)

-- With innodb_rollback_on_timeout a row that is locked costs the whole transaction.
describe("where a lock wait ends the transaction", function()
  it("a verdict stands when another session has locked its row, and so do those beside it", function()
    local server = db.server "innodb_rollback_on_timeout=ON\n"
    local there = server:fresh()
    local its <close> = assert(nightshift.open(there))
    local other <close> = assert(nightshift.open(there))
    assert(its:execute(published[1][2]))
    assert(its:execute("INSERT INTO migration_task " .. published[1][3] .. " FROM seq_1_to_3"))
    local map = load("return " .. published[1][4])()
    local t = assert(source.new(its, map))
    local jobs = assert(t:claim_many(3))
    assert(other._handle:begin())
    assert(other._handle:execute "SELECT 1 FROM migration_task WHERE id < 3 FOR UPDATE")
    assert(jobs[1]:ack())
    assert(its:transaction(function(tx)
      tx:ack(jobs[2])
      tx:ack(jobs[3])
      return true
    end))
    local function statuses() return #assert(its:execute "SELECT 1 FROM migration_task WHERE status = 'complete'") end
    assert.equal(1, statuses())
    other._handle:rollback()
    assert.equal(2, t:pay())
    assert.equal(3, statuses())
  end)
end)
