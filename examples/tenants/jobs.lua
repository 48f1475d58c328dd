-- Calls of an API that takes five a second from each tenant, and two at once. The queue's limit
-- keeps to that, over all hosts; a tenant with many calls does not hold up another one. Each call
-- is a line of the file $CALLS: tenant, instant. See the README for the commands.

local nightshift = require "nightshift"

local path = os.getenv "CALLS" or "calls.txt"

--- The API. It says 429 when a tenant's calls come too fast, which they do not.
local function call(tenant)
  local file <close> = assert(io.open(path, "a"))
  assert(file:write(("%s %.3f\n"):format(tenant, nightshift.clock())))
  return 200
end

return {
  ["api.call"] = function(job)
    if call(job.group) == 429 then return job:again { retry_after = 1, stop = "group" } end
    return true
  end,
}
