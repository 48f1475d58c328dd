-- The handlers of bench/questions/flows/program.lua: a parent that spawns its children, waits for
-- them and runs once more, and children that do nothing.
local payload = ("x"):rep(98) -- 100 bytes with its quotes

return {
  noop = function() end,
  parent = function(job)
    if job.phase > 0 then return end
    for _ = 1, job.payload do job:spawn("noop", payload) end
    return job:wait()
  end,
}
