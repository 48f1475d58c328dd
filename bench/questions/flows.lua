-- Trees of jobs: parents that wait for ten children (bench/flows.lua), and one
-- parent that waits for very many (bench/fanin.lua), beside unrelated jobs.
local stage = require "bench.stage"

return function(s)
  local siblings = s:jobs(10000)
  local function fanin(what) return s:program("fanin", what, siblings)[1] end
  local ask = {
    function()
      local line = s:beside(("%d siblings under two hosts; floor: as many unrelated jobs"):format(siblings),
        function() return fanin "unrelated" end, function() return fanin "siblings" end)
      return line
    end,
  }
  if stage.has "flows" then table.insert(ask, 1, function() return s:program("flows", s.scale) end) end
  return { title = "Flows", ask = ask }
end
