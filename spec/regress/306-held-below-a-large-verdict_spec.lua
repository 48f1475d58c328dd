-- A dependent that somebody held while a verdict with many children was written was told by
-- the next look: up to ten seconds after its row was free.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local SCRIPT = [[return {
  many = function(job)
    for i = 1, 200 do assert(job:spawn("child", i, { queue = "nobody" })) end
  end,
  after = function() end,
}]]

describe("a dependent of a job with many children", function()
  it("that was held when the job ended runs as soon as it is free", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local h = host.start(url, SCRIPT, { "--queues", "q" })
    local many = assert(q:push("many", 1, { delay = 3600 }))
    local after = assert(q:push("after", 1, { after = { many } }))
    local other <close> = assert(nightshift.open(url))
    assert(other:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", after))
      assert(handle:run_now(many))
      eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_met", name) ~= "0" end)
      nst.sleep(1) -- longer than who has ended it tries to tell
      return true
    end))
    local freed = nightshift.clock()
    eventually(function() return assert(handle:job(after)).state == "done" end)
    local late = nightshift.clock() - freed
    assert.is_true(late < proc.limit(9), ("ran after %.1f s"):format(late))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
