-- A handle that was closed while somebody held the row of a job it had claimed
-- did not give the job back, and removed its holder: nobody could ever claim it.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

describe("closing a handle", function()
  it("waits a moment for rows that others hold, and gives the jobs back", function()
    local url = db.fresh()
    local handle = assert(nightshift.open(url))
    local id = assert(handle:queue("q"):push("job", 1))
    assert(handle:queue("q"):claim())
    local locker = proc.start { proc.lua, "-e", ([[
      local db = require "nightshift".open(%q)
      db:transaction(function(tx)
        tx:execute("SELECT id FROM nightshift_job WHERE id = %d FOR UPDATE")
        print "locked"
        tx:execute "DO SLEEP(0.5)"
        return true
      end)]]):format(url, id) }
    locker:wait_line "locked"
    handle:close()
    local other <close> = assert(nightshift.open(url))
    assert.equal(id, assert(other:queue("q"):claim { wait = 20 }).id)
  end)
end)
