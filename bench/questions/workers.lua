-- Many workers on one host: see bench/workers.lua.
local stage = require "bench.stage"

return function(s)
  return stage.has "workers" and {
    title = "Many workers",
    rounds = 1,
    ask = { function() return s:program("workers", s.scale) end },
  }
end
