-- 200 programs that claimed a hundred jobs each at one moment skipped each other's locked rows:
-- claims took half a minute, were cut by the read timeout, and failed with GONE.

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local nightshift = require "nightshift"

after_each(crew.clean)

local handle, q, url
with_database(function(...) handle, q, url = ... end)

local function push(n)
  local items = {}
  for i = 1, 1000 do items[i] = { "job", i } end
  for _ = 1, n // 1000 do assert(q:push_many(items)) end
end

local function count(sql) return assert(handle:execute("SELECT COUNT(*) AS n FROM " .. sql))[1].n end

--- Statements that leave a gate: nobody else sends any DO here.
local function leaves() return tonumber((db.sql "SHOW GLOBAL STATUS LIKE 'Com_do'":match "%d+")) end

--- A session that is in all gates of the queue and does not come out.
local function stay_in_gates()
  local stopped = assert(nightshift.open(url))
  local queue = assert(stopped:execute "SELECT id FROM nightshift_queue WHERE name = 'q'")[1].id
  for gate = 1, 16 do
    assert(stopped:execute("DO GET_LOCK(CONCAT('nightshift-gate:', MD5(DATABASE()), ':', ?, ':', ?), 0)", queue, gate))
  end
  return stopped
end

local function open(address)
  local own, message, code
  repeat
    own, message, code = nightshift.open(address)
  until own or code ~= "GONE" -- not everybody is heard at once
  return assert(own, message)
end

it("each job goes to one of a crowd, and no claim fails", function()
  local CLAIMERS, BATCH, JOBS = 200, 100, 24000
  push(JOBS)
  local folder = fixture.dir()
  assert(os.execute("mkfifo " .. folder .. "/gate"))
  local c = crew.fork(CLAIMERS, function(i)
    local own = open(url .. "&read_timeout=10s")
    local mine = own:queue "q"
    local ready <close> = assert(io.open(folder .. "/ready", "ab"))
    ready:write "."
    ready:close()
    assert(io.open(folder .. "/gate", "r")):close()
    local ids <close> = assert(io.open(folder .. "/ids" .. i, "w"))
    repeat
      local jobs = assert(mine:claim_many(BATCH))
      for _, job in ipairs(jobs) do ids:write(job.id, "\n") end
      assert(own:transaction(function(tx)
        for _, job in ipairs(jobs) do assert(tx:ack(job)) end
      end))
    until #jobs == 0
    own:close()
  end)
  eventually(function()
    local ready <close> = io.open(folder .. "/ready")
    return ready and #ready:read "a" == CLAIMERS
  end, 120)
  local opened = assert(io.open(folder .. "/gate", "w"))
  c:wait(120)
  opened:close()
  local claimed, n = {}, 0
  for i = 1, CLAIMERS do
    for id in io.lines(folder .. "/ids" .. i) do
      assert.is_nil(claimed[id], "a job was claimed twice")
      claimed[id], n = true, n + 1
    end
  end
  assert.same({ JOBS, JOBS, 0 }, { n, count "nightshift_finished WHERE outcome = 'done'", count "nightshift_job" })
end)

-- Rows of others in number, and as a crowd has them: held by a transaction.
describe("a claim past very many rows that somebody holds", function()
  local HELD = 120000
  local LANE = "nightshift_ready WHERE ready_at < 9223372036854775807 ORDER BY queue_id, rank, ready_at, job_id LIMIT "

  local function beside_holder(fn)
    push(HELD + 1000)
    local other <close> = assert(nightshift.open(url))
    assert(other:transaction(function(tx)
      tx:execute(("SELECT job_id FROM %s%d FOR UPDATE"):format(LANE, HELD))
      fn(assert(handle:execute(("SELECT job_id FROM %s%d, 12"):format(LANE, HELD))))
      return true
    end))
  end

  it("goes in by a gate and takes the next, in order", function()
    beside_holder(function(free)
      local before = leaves()
      for i = 1, 6 do assert.equal(free[i].job_id, assert(q:claim()).id) end
      assert.is_true(leaves() > before)
    end)
  end)

  it("waits only a moment for who stays in the gates", function()
    beside_holder(function(free)
      local stopped <close> = stay_in_gates()
      for i = 1, 12 do
        local start = nightshift.clock()
        assert.equal(free[i].job_id, assert(q:claim()).id)
        assert.is_true(nightshift.clock() - start < 15, "it was waited for")
      end
      stopped:close()
    end)
  end)
end)

it("who claims alone, or with a few, asks for no gate", function()
  local handles = { handle }
  for i = 2, 8 do handles[i] = assert(nightshift.open(url)) end
  push(1000)
  local stopped <close> = stay_in_gates()
  local before = leaves()
  for _ = 1, 20 do
    for _, own in ipairs(handles) do assert(assert(own:queue("q"):claim()):ack()) end
  end
  assert.equal(before, leaves())
  for i = 2, 8 do handles[i]:close() end
  stopped:close()
end)
