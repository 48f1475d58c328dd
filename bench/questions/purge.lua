-- Claims while a long read transaction keeps the server from purging: see
-- bench/purge.lua.
local stage = require "bench.stage"

return function(s)
  return stage.has "purge" and {
    title = "Purge blocked",
    rounds = 1,
    ask = { function() return s:program("purge", s.scale) end },
  }
end
