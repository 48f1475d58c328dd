-- Acks that go together and were not all written were told apart by their jobs alone: of three
-- runs of one job, a lost one was told that it was written, and the one that is held that it
-- was not.

local core = require "nightshift.core"
local db = require "spec.support.db"
local nightshift = require "nightshift"

it("of the runs of a job that are acked together the one that is held is done", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local id = assert(handle:queue "q":push("job", 1))
  local claimer <close> = assert(core.open { url = url })
  local acks = {}
  for run = 1, 3 do -- the middle one is looked at first when a token is searched
    if run > 1 then
      db.sql(([[UPDATE nightshift_job SET run = %d WHERE id = %d; UPDATE nightshift_lease SET jobs = '[]';
        INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
          SELECT queue_id, rank, 1, id, run, CRC32(name) FROM nightshift_job]]):format(run, id), name)
    end
    local job = assert(claimer:claim("q", 1)[1])
    assert.same({ id, run }, { job.id, job.run })
    acks[run] = { id = job.id, run = job.run, lease = job.lease, kind = "ack" }
  end
  local ok, message, code = claimer:settle_all { acks[2], acks[3], acks[1] }
  assert.same({ nil, "STALE" }, { ok, code }, message)
  assert.matches("run 2,", message)
  code = select(3, claimer:settle_all { acks[3] })
  assert.equal("STALE", code)
  assert.equal("done", handle:job(id).state)
  assert.equal("3", db.sql("SELECT run FROM nightshift_finished", name))
  assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_lease", name))
end)
