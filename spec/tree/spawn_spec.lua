-- Children that a host's workers spawn, with siblings to wait for: what a worker
-- says of them is kept until it is written, however many speak at once.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

it("hundreds of parents of siblings that wait for each other, in one host", function()
  local PARENTS = 400
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local items = {}
  for i = 1, PARENTS do items[i] = { "parent", i } end
  assert(handle:queue("q"):push_many(items))
  local status, log = host.drain(url, [[return {
    parent = function(job)
      local one = job:spawn("child", ("x"):rep(job.payload * 7 % 900))
      local two = job:spawn("child", 2, { after = { one } })
      job:spawn("child", 3, { after = { two, one } })
    end,
    child = function() end,
  }]])
  assert.equal(0, status, log)
  assert.equal("", db.sql("SELECT error FROM nightshift_attempt LIMIT 1", name))
  assert.equal(tostring(4 * PARENTS), db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
end)
