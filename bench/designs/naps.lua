-- The handlers of bench/designs/contenders.lua, whatever they are called: one writes down that a
-- job has begun, in one write to a file of many writers, and sleeps as long as a job
-- takes.
local core = require "nightshift.core"

local NAMES = { "nap", "migrate", "job_queue", "queue_table", "worker_queue", "checkout" }

---@param path string
---@param seconds number
return function(path, seconds)
  local file
  local function nap(job)
    if not file then
      file = assert(io.open(path, "ab"))
      file:setvbuf "full" -- one write at each flush
    end
    file:write((job.row or job.id), "\n")
    file:flush()
    core.sleep(seconds)
  end
  local handlers = {}
  for _, name in ipairs(NAMES) do handlers[name] = nap end
  return handlers
end
