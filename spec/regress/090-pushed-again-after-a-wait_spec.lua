-- A push that waits for others, and whose transaction had to be run again, counted
-- what it waits for once more with each try, and then waited for ever.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

describe("a push after others, whose transaction is run again", function()
  it("waits for each of them once", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local a, b = assert(q:push "a"), assert(q:push "b")
    assert(handle:execute "SET innodb_lock_wait_timeout = 1")
    local locked = proc.start { "mariadb", "--no-defaults", "--socket=" .. db.shared().socket, "--user=root", name,
      "-e", ("BEGIN; SELECT id FROM nightshift_job WHERE id = %d FOR UPDATE; DO SLEEP(4); COMMIT"):format(b) }
    eventually(function()
      local row = other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE SKIP LOCKED", b)
      return #row == 0
    end)
    local c = assert(q:push("c", nil, { after = { a, b } }))
    assert.is_true(handle._handle:counters().lock_waits > 0)
    assert.equal(2, handle:job(c).unmet)
    assert.equal(0, (locked:wait(20)))
    assert(q:claim():ack())
    assert(q:claim():ack())
    assert.equal(c, assert(q:claim()).id)
  end)
end)
