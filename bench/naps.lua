-- The handler of bench/contenders.lua: writes down that a job has begun, in one write
-- to a file of many writers, and sleeps as long as a job takes.
local core = require "nightshift.core"

local files = {}

local function open(path)
  local file = assert(io.open(path, "ab"))
  file:setvbuf "full" -- one write at each flush
  files[path] = file
  return file
end

return {
  nap = function(job)
    local file = files[job.payload.file] or open(job.payload.file)
    file:write(job.id, "\n")
    file:flush()
    core.sleep(job.payload.seconds)
  end,
}
