-- A push after other jobs that was the victim of a deadlock was repeated, and its
-- job then waited for each of them twice: for ever.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

local PUSH = [[
local nightshift = require "nightshift"
local db = assert(nightshift.open(arg[1]))
print(assert(db:queue "q":push("next", nil, { after = { tonumber(arg[2]), tonumber(arg[3]) } })))
db:close()]]

describe("a push after others", function()
  it("that is repeated after a deadlock waits for each of them once", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local a, b = assert(q:push "job"), assert(q:push "job")
    local many = {}
    for i = 1, 100 do many[i] = { "heavy", i } end
    local p
    assert(other:transaction(function(tx)
      assert(tx:queue "heavy":push_many(many)) -- so that the other one is the victim
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", b))
      p = proc.start { proc.lua, fixture.file("push.lua", PUSH), url, a, b }
      eventually(function()
        return db.sql [[SELECT COUNT(*) FROM information_schema.processlist
          WHERE time_ms > 50 AND info LIKE 'SELECT id FROM nightshift_job%SHARE MODE']] ~= "0"
      end)
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", a))
      return true
    end))
    assert.equal(0, p:wait())
    local id = math.tointeger(tonumber((p:text())))
    assert.equal("2\t2", (db.sql(([[SELECT unmet, (SELECT COUNT(*) FROM nightshift_edge WHERE job_id = id)
      FROM nightshift_job WHERE id = %d]]):format(id), name)))
    for _ = 1, 2 do assert(q:claim():ack()) end
    assert.equal(id, q:claim().id)
  end)
end)
