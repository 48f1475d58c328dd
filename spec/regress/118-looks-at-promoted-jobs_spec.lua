-- Each look at the head of the scheduled jobs began at the table's start. While
-- purge was held up, by a backup say, it read every row that had ever been
-- promoted: a job that had polled 6,000 times cost 2.6 times as much as at first.
-- It begins behind what was promoted now (bench/polls.lua has the figures, with
-- "hold"), and what commits behind that is found.

local host = require "spec.support.host"
local nightshift = require "nightshift"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

describe("the scheduled jobs", function()
  it("are found when they commit behind what was promoted", function()
    local late <close> = assert(nightshift.open(url))
    assert(late._handle:begin())
    local id = assert(late:queue("q"):push("late", nil, { delay = 0.05 }))
    assert(q:push("poll", nil, { priority = 200 }))
    local h = host.start(url, [[return {
      poll = function(job) return job:again(0.001) end, late = function() end }]])
    eventually(function() return handle:execute("SELECT MAX(polls) AS n FROM nightshift_job")[1].n > 100 end)
    assert(late._handle:commit())
    eventually(function() return handle:job(id).state == "done" end, 9) -- by the round: 10 s
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("are found by who waits, when they commit behind what was promoted", function()
    local late <close> = assert(nightshift.open(url))
    assert(late._handle:begin())
    local id = assert(late:queue("q"):push("late", nil, { delay = 0.05 }))
    for _ = 1, 3 do
      assert(q:push("early", nil, { delay = 0.06 }))
      assert(assert(q:claim { wait = 20 }):ack())
    end
    assert(late._handle:commit())
    assert.equal(id, assert(q:claim { wait = 9 }).id)
  end)
end)
