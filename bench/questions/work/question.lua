-- End to end through `nightshift work`, beside claim + ack of the floor in batches
-- of 1000; and what both sides cost the processors, server and clients, push and
-- process and purge together.
local WORKERS = { 1, 2, 8, 80, 500 }

local function per_10k(line) return (line.server_cpu + line.client_cpu) / line.jobs * 10000 end

return function(s)
  local jobs = s:jobs(100000, 1000)
  local ask = {}
  local function add(workers, history, title)
    table.insert(ask, function()
      local floor, ours = s:both(
        function() return s:floor("claim", { jobs = jobs, batch = 1000, history = history == "all" and 1 or 0 }) end,
        function() return s:program("work/program", jobs, workers, 100, history)[1] end)
      return {
        what = title, jobs = jobs, workers = workers,
        floor = floor.rate, ours = ours.rate, ratio = ours.rate / floor.rate,
        cpu_s = per_10k(ours), floor_cpu_s = per_10k(floor), server_cpu_s = ours.server_cpu / jobs * 10000,
      }
    end)
  end
  for _, n in ipairs(WORKERS) do add(n, "all", ("%d worker%s"):format(n, n > 1 and "s" or "")) end
  for _, n in ipairs(WORKERS) do add(n, "failed", ("%d worker%s, no history"):format(n, n > 1 and "s" or "")) end
  return {
    title = "End to end: no-op jobs through `nightshift work`",
    text = "Floor: claim + ack in batches of 1000. No history: `--history failed`, and the floor writes none. Processor"
      .. " time is per 10,000 jobs, of the server and all clients, pushing, processing and purging together; of it the"
      .. " server's in a column of its own.",
    ask = ask,
  }
end
