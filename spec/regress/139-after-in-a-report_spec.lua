-- What a spawned child was to wait for was not copied out of the worker's report:
-- the host read it from memory that held the next report by then.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"

describe("children that handlers spawn after each other", function()
  it("wait for each other, however many reports a host gets at once", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local jobs = {}
    for i = 1, 200 do jobs[i] = { "parent", ("x"):rep(i % 50) } end
    assert(handle:queue "q":push_many(jobs))
    local status, log = host.drain(url, [[return {
      parent = function(job)
        local first = job:spawn("child", job.payload)
        local second = job:spawn("child", job.payload, { after = { first } })
        job:spawn("child", job.payload, { after = { first, second } })
      end,
      child = function() end,
    }]], { "--workers", "4", "--drain-within", "500ms" })
    assert.equal(0, status, log)
    assert.equal("", (db.sql("SELECT error FROM nightshift_attempt LIMIT 1", name)))
    assert.equal("800\t800", (db.sql("SELECT COUNT(*), SUM(outcome = 'done') FROM nightshift_finished", name)))
  end)
end)
