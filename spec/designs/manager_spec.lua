-- Design: a job manager with parents, priorities and retries. As printed its claim
-- never runs a child, and its many workers have the same job twice; here is why, and
-- that neither happens with us.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local lab = require "spec.support.lab"
local ledger = require "spec.support.ledger"
local nst = require "nst"

local db, path
lab.handles(1, function(handle)
  db, path = handle, fixture.dir() .. "/ledger"
  designs.create(db, "queue_table", 0)
end)
after_each(crew.clean)

local function all(sql, ...) return assert(db:execute(sql, ...)) end

local function count(where) return all("SELECT COUNT(*) AS n FROM queue_table WHERE " .. where)[1].n end

local function map(changes)
  changes = changes or {}
  changes.strategy = "skip_locked"
  return designs.map("queue_table", changes)
end

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
    assert.same({ 2, 1 }, { job.id, job.payload.parent_id })
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
    for i = 1, 30 do push { priority = 100 + i * 7 % 5 } end
    local expected, got = {}, {}
    for i, row in ipairs(all "SELECT id FROM queue_table ORDER BY priority DESC, id") do expected[i] = row.id end
    for job in adopt():jobs() do
      got[#got + 1] = job.id
      assert.is_true((job:ack()))
    end
    assert.same(expected, got)
  end)

  it("does not come before its retry_after", function()
    push { priority = 200 }
    push { priority = 100 }
    local t = adopt()
    assert.is_true((assert(t:claim()):again(3600)))
    assert.equal(2, assert(t:claim()).id)
    assert.is_nil(t:claim())
    all "UPDATE queue_table SET retry_after = NOW() - INTERVAL 1 SECOND WHERE id = 1"
    assert.equal(1, assert(t:claim()).id)
  end)

  it("sinks by one with each unfinished return, below those that wait", function()
    push { priority = 101 }
    push { priority = 100 }
    local t = adopt { priority = { column = "priority", decay = 1 } }
    assert.is_true((assert(t:claim()):fail("no", { retry_in = 0 })))
    assert.is_true((assert(t:claim()):again(0))) -- the same: both have 100 now, and it is the older one
    local job = assert(t:claim())
    assert.equal(2, job.id)
    assert.is_true((job:release())) -- not its fault
    assert.same({ { id = 1, priority = 99, attempts = 29 }, { id = 2, priority = 100, attempts = 30 } },
      all "SELECT id, priority, attempts FROM queue_table")
  end)

  it("is failed after thirty attempts, and its children do not run", function()
    push {}
    push { parent_id = 1 }
    local t = adopt()
    for attempt = 1, 30 do
      local job = assert(t:claim())
      assert.same({ 1, attempt }, { job.id, job.attempt })
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
      assert.is_nil(got[job.id])
      got[job.id] = true
      assert.equal(i, count "status = 'in_progress'")
    end
    for _, handle in ipairs(handles) do handle:close() end
    assert.equal(WORKERS, count "status = 'queued' AND attempts = 30")
  end)
end)

local JOBS, CHILDREN, KILLS = 500, 100, 5

-- The last jobs are children of the first.
local function fill()
  all(("INSERT INTO queue_table (name, priority) SELECT 'parent', seq %% 7 FROM seq_1_to_%d"):format(JOBS))
  all(("INSERT INTO queue_table (name, parent_id, priority) SELECT 'child', seq, 9 FROM seq_1_to_%d"):format(CHILDREN))
  local sql = assert(adopt():advice()) -- the index
  all(sql)
end

local HANDLER = [[
  return function(job)
    begin(job.id)
    require "nst".sleep(0.01)
    done(job.id)
  end]]

describe("600 jobs, some of them children,", function()
  for _, claimers in ipairs { 80, 200, 500 } do
    it(("are each had once by %d claimers with a connection each, of whom some are killed"):format(claimers), function()
      fill()
      local gate = fixture.dir() .. "/gate"
      assert(os.execute("mkfifo " .. gate))
      local c = crew.start(claimers, lab.url(), map(), ledger.script(path) .. HANDLER, { gate = gate })
      eventually(function() return ledger.count(gate .. ".ready") == claimers end, 120)
      local opened, killed = assert(io.open(gate, "w")), {}
      for i = 1, KILLS do
        eventually(function() return ledger.count(path) >= 100 * i end, 120)
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

describe("600 jobs on two hosts with 80 workers", function()
  -- Every tenth fails once, every tenth but one asks for a second try after a while.
  local function script()
    return ledger.script(path) .. [[
      return { queue_table = function(job)
        begin(job.id)
        require "nightshift.core".sleep(0.02)
        local first = job.payload.attempts == 30 and job.payload.retry_after == nil
        if first and job.id % 10 == 0 then
          left(job.id)
          return job:fail("not yet", { retry_in = 0.1 })
        elseif first and job.id % 10 == 1 then
          left(job.id)
          return job:again(0.1)
        end
        done(job.id)
      end }]]
  end

  local function start()
    return host.start(lab.url(), script(), { "--adopt", designs.file("queue_table", { strategy = "skip_locked",
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
      assert.is_true(row.priority <= row.was - math.min(1, returns), row.id) -- it has sunk
      assert.is_true(not row.parent_id or found.first[row.id] > found.last[row.parent_id], row.id)
      begun, done = begun + found.begun[row.id], done + found.done[row.id]
    end
    assert.equal(JOBS + CHILDREN, count "TRUE")
    local lost = begun - (JOBS + CHILDREN) - (JOBS + CHILDREN) // 5
    -- what the dead had: each worker one, those whose verdict was on its way, and what the
    -- workers of a dead host did of what had been sent ahead
    assert.is_true(lost >= -40 and lost <= 3 * (40 + 3) + found.orphans, lost)
    assert.is_true(done - JOBS - CHILDREN <= 2 * (40 + 3) + found.orphans, done)
    assert.is_true(count "retry_after > '2000-01-01'" > JOBS // 10)
  end)
end)

describe("of 30,000 jobs the 300 that are queued", function()
  local function plan()
    local sql = CLAIM:format "processed":gsub("FOR UPDATE.*", "")
    return all("EXPLAIN " .. sql)[1]
  end

  --- Rows that the server reads for a claim of ten.
  local function reads(t)
    assert.equal(10, #assert(t:claim_many(10))) -- prepared, and looked around
    all "FLUSH STATUS"
    assert.equal(10, #assert(t:claim_many(10)))
    local n = 0
    for _, row in ipairs(all "SHOW SESSION STATUS LIKE 'Handler_read%'") do n = n + tonumber(row.Value) end
    return n
  end

  it("are found, in order, by the index that is advised", function()
    all [[INSERT INTO queue_table (name, priority, status)
      SELECT 'x', seq * 7919 % 1000, IF(seq % 100, 'processed', 'queued') FROM seq_1_to_30000]]
    all "ANALYZE TABLE queue_table"
    local t = adopt()
    local published = reads(t)
    local sql = assert(t:advice())
    all(sql)
    assert.is_false(t:advice())
    assert.equal(sql:match "INDEX (%S+)":gsub("`", ""), plan().key, sql)
    assert.is_nil(plan().Extra:find "filesort", plan().Extra)
    local advised = reads(t)
    assert.is_true(published > 300 and advised < 200, published .. " " .. advised)
  end)
end)
