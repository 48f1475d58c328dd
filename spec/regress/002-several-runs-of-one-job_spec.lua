-- Claims of several runs of one job were told apart by the id alone: a verdict
-- could be written with the run of an older claim, and the job was lost.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("a job that was cancelled and retried twice", function()
  local url, name, handle, other, id

  before_each(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    other = assert(nightshift.open(url))
    id = assert(handle:queue("q"):push("job", 1))
  end)
  after_each(function()
    handle:close()
    other:close()
  end)

  local function start_over()
    assert(other:cancel(id))
    assert(other:retry(id))
  end

  it("comes back when the handle that claimed each run closes", function()
    for i = 1, 3 do
      assert(handle:queue("q"):claim())
      if i < 3 then start_over() end
    end
    handle:close()
    local job = assert(other:queue("q"):claim())
    assert.equal(id, job.id)
    assert.is_true((job:ack()))
  end)

  it("is claimed once when its old rows are still there, and its lease goes", function()
    start_over()
    start_over()
    local jobs = assert(handle:queue("q"):claim_many(10))
    assert.equal(1, #jobs)
    assert.is_true((jobs[1]:progress(0.5)))
    assert.is_true((jobs[1]:ack()))
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_lease", name))
  end)
end)
