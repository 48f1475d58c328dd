-- Claims beside millions of rows that are not to be claimed: in a database of their
-- own, filled once, in turns with the empty one.
return function(s)
  local function claim(what, batch)
    local jobs = s:jobs(math.min(2000 * batch, 60000), batch)
    local function options(keep) return { jobs = jobs, batch = batch, keep = keep } end
    return function()
      local empty, full = s:both(function() return s:verbs("claim", options(0)) end,
        function() return s:verbs("claim", options(1), "volume") end)
      local floor = s:floor("claim", options(0))
      return { what = what, floor = floor.rate, empty_rate = empty.rate, full_rate = full.rate,
        cost_ratio = empty.rate / full.rate, jobs = jobs }
    end
  end
  return {
    title = "Claims beside millions of other rows",
    text = "Claim + ack in C, in a database with 5 million scheduled, 5 million finished and 1 million waiting jobs,"
      .. " and in an empty one; what one costs beside the other.",
    prepare = function()
      assert(s.db:execute "CREATE OR REPLACE DATABASE volume CHARACTER SET utf8mb4")
      s:init "volume"
      local line = s:script("volume", "volume/program", s.scale)[1]
      io.stderr:write(("bench: volume: %d rows in %.0f s\n"):format(line.rows, line.seconds))
    end,
    clean = function() assert(s.db:execute "DROP DATABASE volume") end,
    ask = { claim("batch 1", 1), claim("batch 100", 100), claim("batch 1000", 1000) },
  }
end
