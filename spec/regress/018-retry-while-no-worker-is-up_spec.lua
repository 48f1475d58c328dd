-- A job that came back while its host had no worker, because the only one was
-- being replaced, used to wait for the next sign of life of the host: up to
-- 10 s. Nobody noted that there was something to claim.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

it("a retry is not forgotten while the only worker is replaced", function()
  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local h = host.start(url, [[return { job = { memory = "1M", run = function(job)
    if job.attempt < 5 then return ("x"):rep(1 << 22) end
    return job.attempt
  end } }]], { "--workers", "1" })
  local took
  for _ = 1, 3 do -- a busy machine is slow now and then
    local start = nst.clock()
    local id = handle:queue "q":push("job", nil, { backoff = 0.01, max_attempts = 10 })
    assert.equal(5, eventually(function() return handle:job(id).result end, 60))
    took = nst.clock() - start
    if took < proc.limit(8) then break end
  end
  assert.is_true(took < proc.limit(8), took)
  h:signal "TERM"
  assert.equal(0, h:wait())
end)
