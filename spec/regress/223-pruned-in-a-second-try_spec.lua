-- A prune that had to be run again, because somebody held a row of it, went on behind the
-- rows that its first try had read, and left up to 1,000 of them.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

describe("a prune whose transaction is run again", function()
  it("deletes all that it was asked to", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url .. (url:find "?" and "&" or "?") .. "read_timeout=9s"))
    local q, ids = handle:queue "q", {}
    for i = 1, 20 do ids[i] = assert(q:push("job", i, { max_attempts = 2 })) end
    for _, job in ipairs(q:claim_many(20)) do assert(job:fail("no", { retry_in = 0 })) end
    for _, job in ipairs(q:claim_many(20)) do assert(job:fail "no") end
    assert.equal("20", db.sql("SELECT COUNT(*) FROM nightshift_finished", name))
    local hold = ("START TRANSACTION; SELECT job_id FROM nightshift_attempt WHERE job_id = %d FOR UPDATE; %s"):format(
      ids[10], "SELECT SLEEP(4); ROLLBACK")
    local holder = proc.start { "sh", "-c", ("echo %q | mariadb --no-defaults -S %s -u root --unbuffered -N %s"):format(
      hold, db.shared().socket, name) }
    holder:wait_line(tostring(ids[10]))
    local deleted = assert(handle:prune { dead = 0, done = 0 })
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_finished", name))
    assert.is_truthy(deleted)
    assert.is_true(handle:stats().counters.lock_waits > 0)
    holder:wait()
  end)
end)
