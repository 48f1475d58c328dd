-- run_now of a job that was paused was refused because it "is waiting for other
-- jobs"; there were none.

local db = require "spec.support.db"
local nightshift = require "nightshift"

describe("run_now", function()
  it("says that it is a pause that holds the job", function()
    local handle <close> = assert(nightshift.open((db.fresh())))
    local id = assert(handle:queue("q"):push("job", nil, { delay = 60 }))
    assert(handle:pause(id))
    local ok, message, code = handle:run_now(id)
    assert.same({ nil, ("job %d is not scheduled: it is paused"):format(id), "STATE" }, { ok, message, code })
    assert(handle:resume(id))
    assert.is_true(handle:run_now(id))
  end)
end)
