-- Many polling jobs that are parked, some of which fall due each second: see
-- bench/parked.lua.
local stage = require "bench.stage"

return function(s)
  return stage.has "parked" and {
    title = "Parked polling jobs",
    rounds = 1,
    ask = {
      function() return s:program("parked", s.scale, "idle") end,
      function() return s:program("parked", s.scale, "due") end,
    },
  }
end
