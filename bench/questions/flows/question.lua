-- Trees of jobs: parents that wait for ten children, beside the same in bare SQL
-- (bench/questions/flows/program.lua; floor.c), and one parent that waits for very many, beside
-- unrelated jobs (bench/questions/flows/fanin.lua).

-- Which of the floor's figures stands beside a line of flows.lua.
local function floor_of(floor, line)
  if line.what:find "pushed and processed" then return floor.both_rate end
  return line.what:find "pushed" and floor.push_rate or floor.rate
end

return function(s)
  local siblings = s:jobs(10000)
  local function fanin(what) return s:program("flows/fanin", what, siblings)[1] end
  local function flows()
    local floor, lines = s:both(
      function() return s:floor("flows", { jobs = s:jobs(3000, 100), batch = 1000 }) end,
      function() return s:program("flows/program", s.scale) end)
    for _, line in ipairs(lines) do
      line.floor, line.ours, line.rate = floor_of(floor, line), line.rate, nil
      line.ratio = line.ours / line.floor
    end
    return lines
  end
  return {
    title = "Flows",
    text = "Parents with ten children each, parents per second; and one parent of very many, jobs per second, under two"
      .. " hosts: there the floor is as many jobs that nobody waits for.",
    ask = {
      flows,
      function()
        return s:beside(("%d siblings and their parent"):format(siblings), function() return fanin "unrelated" end,
          function() return fanin "siblings" end)
      end,
    },
  }
end
