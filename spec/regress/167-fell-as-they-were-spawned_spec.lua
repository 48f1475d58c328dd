-- Children that were spawned after a job that had failed fell before the other
-- jobs of their batch had ended: out of the order of their ids, by which the
-- host then looked for those, and it crashed.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"

local HANDLERS = [[
return {
  parent = function(job)
    for _ = 1, 60 do job:spawn("child", nil, { after = { job.payload.failed } }) end
  end,
  other = function() end,
  child = function() end,
}]]

describe("children that fall as they are spawned", function()
  it("do not hide from its dependents what ends with them", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local failed = assert(q:push "other")
    assert(q:claim():discard "no")
    local jobs, after = {}, {}
    for i = 1, 600 do jobs[i] = { i % 10 == 0 and "parent" or "other", { failed = failed } } end
    for i, id in ipairs(assert(q:push_many(jobs))) do after[i] = { "other", nil, { after = { id } } } end
    assert(handle:queue("later"):push_many(after))
    local status, log = host.drain(url, HANDLERS, { "--workers", "4", "--drain-within", "500ms" })
    assert.equal(0, status, log)
    assert.equal("done\t1200\ncancelled\t3600", db.sql([[SELECT outcome, COUNT(*) FROM nightshift_finished
      WHERE outcome <> 'dead' GROUP BY outcome ORDER BY 1]], name))
  end)
end)
