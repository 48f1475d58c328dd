-- A program in REPEATABLE READ, the server's default, pushed by CALL after a job
-- that had ended: the gap where that had been stayed locked until its commit, and
-- pushes of others, and hosts with children to write, waited for it.

local core = require "nightshift.core"
local nightshift = require "nightshift"
local nst = require "nst"
local db = require "spec.support.db"

describe("nightshift_push after a job that has ended", function()
  it("holds up no other push in REPEATABLE READ", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(core.open { url = url })
    local q = handle:queue "q"
    local ended = assert(q:push "job")
    assert(q:claim():ack())
    nst.sleep(1.5) -- until purge has removed its row: then its place is a gap
    assert(handle:execute "SET innodb_lock_wait_timeout = 8")
    assert(other:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert(other:begin())
    assert(other:execute("CALL nightshift_push('q', 'job', '1', ?)", ('{"after":[%d]}'):format(ended)))
    local begun = nightshift.clock()
    assert(q:push "job")
    assert.is_true(nightshift.clock() - begun < 7)
    assert(other:rollback())
    assert(q:claim():ack())
    assert.is_nil(q:claim())
  end)
end)
