-- Each look at the head of the scheduled jobs began at the table's start. While
-- purge was held up, by a backup say, it read every row that had ever been
-- promoted: a job that had polled 6,000 times cost 2.6 times as much as at first.
-- It begins behind what was promoted now, and what commits behind that is found.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

local url, handle, q

before_each(function()
  url = db.fresh()
  handle = assert(nightshift.open(url))
  q = handle:queue "q"
end)

after_each(function() handle:close() end)

local function poll(times)
  local least = math.huge
  for _ = 1, times do
    local begun = nightshift.clock()
    assert(assert(q:claim { wait = 5 }):again(1e-6))
    least = math.min(least, nightshift.clock() - begun)
  end
  return least
end

describe("the scheduled jobs", function()
  it("cost the same while purge is held up, however many there were", function()
    local reader <close> = assert(nightshift.open(url))
    assert(reader:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert(reader:execute "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    assert(q:push "poll")
    poll(50) -- the very first is ready, and comes without a look
    local first = poll(300)
    poll(6000)
    local last = poll(300)
    assert.is_true(last < 1.8 * first, ("%.0f µs, at first %.0f µs"):format(last * 1e6, first * 1e6))
  end)

  it("are found when they commit behind what was promoted", function()
    local late <close> = assert(nightshift.open(url))
    assert(late._handle:begin())
    local id = assert(late:queue("q"):push("late", nil, { delay = 0.05 }))
    assert(q:push("poll", nil, { priority = 200 }))
    local h = host.start(url, [[return {
      poll = function(job) return job:again(0.001) end, late = function() end }]])
    eventually(function() return handle:execute("SELECT MAX(polls) AS n FROM nightshift_job")[1].n > 100 end)
    assert(late._handle:commit())
    eventually(function() return handle:job(id).state == "done" end, 3)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("are found by who waits, when they commit behind what was promoted", function()
    local late <close> = assert(nightshift.open(url))
    assert(late._handle:begin())
    local id = assert(late:queue("q"):push("late", nil, { delay = 0.05 }))
    for _ = 1, 3 do
      assert(q:push("early", nil, { delay = 0.06 }))
      assert(assert(q:claim { wait = 5 }):ack())
    end
    assert(late._handle:commit())
    assert.equal(id, assert(q:claim { wait = 2 }).id)
  end)
end)
