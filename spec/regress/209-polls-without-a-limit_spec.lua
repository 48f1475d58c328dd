-- A poll of nightshift.background that has only a deadline was said to be one
-- "of at most 1000000000".

local nightshift = require "nightshift"
local db = require "spec.support.db"
local handlers = require "nightshift.background".expand("op", nightshift.background {
  start = function() return 1 end,
  poll = function(job) return job:again() end,
  every = 60, deadline = "2h",
})

it("a poll with a deadline and no max_polls is said to have no more than that", function()
  local handle <close> = assert(nightshift.open((db.fresh())))
  local q = handle:queue "q"
  assert(q:push "op")
  local job = assert(q:claim())
  assert(job:ack(handlers[job.name](job)))
  local polling = assert(q:claim())
  handlers[polling.name](polling)
  local text = assert(handle:why(polling.id))
  assert.matches('having said "not yet" 1 time; its deadline is in 1h59m', text, 1, true)
end)
