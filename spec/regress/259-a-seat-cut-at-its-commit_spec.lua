-- A verdict on a row that is claimed by a lock, whose COMMIT was cut, was told STALE, as if
-- somebody else had the row; it may have been written, and that is GONE.

local db = require "spec.support.db"
local designs = require "spec.support.designs"
local nightshift = require "nightshift"
local proxy = require "spec.support.proxy"

for _, when in ipairs { "before", "after" } do
  it("an ack whose COMMIT is cut is not stale: " .. when, function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    designs.create(handle, "job_queue", 1)
    local way = proxy.start(db.shared())
    local other <close> = assert(nightshift.open(way:url(url)))
    local job = assert(assert(other:adopt(designs.map("job_queue", { strategy = "transaction" }))):claim())
    way:tell(("commit %s 1"):format(when))
    local ok, message, code = job:ack()
    assert.equal("yes", way:tell "fired")
    assert.same({ nil, "GONE" }, { ok, code }, message)
  end)
end
