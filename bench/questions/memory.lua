-- What a worker takes of memory: see bench/memory.lua.
local stage = require "bench.stage"

return function(s)
  return stage.has "memory" and {
    title = "Memory per worker",
    rounds = 1,
    ask = { function() return s:program("memory", s.scale) end },
  }
end
