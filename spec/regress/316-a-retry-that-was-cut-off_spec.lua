-- A retry of a tree that was cut off holds its jobs until it is made again. What looks for
-- jobs that are nowhere took that for a pause that is over, and let them go: they ran
-- before what they wait for. And the retry that was made again let them go, but said that
-- nothing had failed.

local nightshift = require "nightshift"
local db = require "spec.support.db"

it("jobs that a retry has left held stay so until it is made again", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local top = assert(q:push "top")
  local low = assert(q:push("low", nil, { parent = top, after = { top } }))
  db.sql(([[UPDATE nightshift_job SET run = run + 1, paused = -%d, unmet = 1;
    DELETE FROM nightshift_edge; DELETE FROM nightshift_ready WHERE job_id > 0]]):format(top), name)
  for _ = 1, 3 do
    local found = assert(handle._handle:mend(true))
    assert.same({ 0, 0, 0 }, { found.jobs, found.rows, found.twice })
  end
  assert.is_nil(q:claim())
  assert.equal(2, handle:retry(top, { tree = true }))
  local job = assert(q:claim())
  assert.equal(top, job.id)
  assert.is_nil(q:claim())
  assert(job:ack())
  assert.equal(low, assert(q:claim()).id)
  assert.equal("STATE", select(3, handle:retry(top, { tree = true })))
end)
