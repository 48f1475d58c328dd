-- `work --drain` over more than eight queues never ended when the last row of one of them
-- had been committed late: the look that found it was to be followed by another, which no
-- queue gets that one question for all has told to be empty.

local core = require "nightshift.core"
local host = require "spec.support.host"
local nightshift = require "nightshift"

local handle, q, url
with_database(function(...) handle, q, url = ... end)

local QUEUES <const> = 12
local SCRIPT = [[return {
  noop = function() end,
  long = function(job)
    local sleep = require "nightshift.core".sleep
    while not io.open(job.payload) do sleep(0.02) end
  end }]]

describe("a drain of many queues", function()
  it("ends though one of them had a row that was committed late", function()
    for i = 1, QUEUES do assert(handle:queue("other" .. i):push "noop") end
    local go = fixture.dir() .. "/go"
    assert(handle:queue("other1"):push("long", go))
    local other <close> = assert(nightshift.open(url))
    local early, h
    assert(other:transaction(function(tx)
      early = assert(tx:queue("q"):push "noop")
      local later = assert(q:push "noop")
      h = host.spawn(url, SCRIPT, { "--drain", "--workers", "2" })
      eventually(function() return handle:job(later).state == "done" end)
      core.sleep(0.1) -- the floor of the queue is above the early row now
      return true
    end))
    eventually(function() return handle:job(early).state == "done" end, 60)
    assert(io.open(go, "w")):close()
    assert.equal(0, h:wait(30), (select(2, h:text())))
  end)
end)
