-- One claimer with a connection of its own: claims one job at a time until the
-- queue stays empty, and appends each id to a file. usage: claimer URL FILE
local nightshift = require "nightshift"
local url, path = arg[1], arg[2]
local db = assert(nightshift.open(url))
local q = db:queue "load"
local file = assert(io.open(path, "ab"))
file:setvbuf "line"
io.write "ready\n"
io.flush()
io.read() -- the start
while true do
  local job, message = q:claim()
  if not job then
    assert(not message, message)
    break
  end
  file:write(job.id, "\n")
  local ok, why, reason = job:ack()
  assert(ok, tostring(why) .. " " .. tostring(reason))
end
local counters = db:stats().counters or {}
print(("done deadlocks=%s"):format(counters.deadlocks))
db:close()
