-- The handlers of bench/questions/workers/program.lua.
local core = require "nightshift.core"
local shared = require "nightshift".shared

return {
  noop = function() end,
  -- Ends when as many as the payload says have begun: when all are busy at once.
  -- They look 4,000 times a second, all together.
  meet = function(job)
    assert(shared:incr("here", 1))
    while assert(shared:get "here") < job.payload do core.sleep(job.payload / 4000 * (0.5 + math.random())) end
  end,
  second = function() core.sleep(1) end,
}
