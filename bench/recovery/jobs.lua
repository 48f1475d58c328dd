--- Handlers of the recovery bench. Each start is a line in $RECOVERY_FILE: the
-- monotonic time, the job, its run, the worker, the host. `hold` stays in its
-- first run and returns in the next; `note` returns at once.

local nightshift = require "nightshift"
local nst = require "nst"

local function started(job)
  local file <close> = assert(io.open(os.getenv "RECOVERY_FILE", "ab"))
  file:write(("%.6f %d %d %d %s\n"):format(nightshift.clock(), job.id, job.run, nst.ids(), os.getenv "RECOVERY_HOST"))
end

return {
  hold = function(job)
    started(job)
    while job.run == 1 and not job:cancelled() do nst.sleep(0.1) end
  end,
  note = started,
}
