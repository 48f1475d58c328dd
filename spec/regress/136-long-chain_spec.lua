-- A long chain of jobs, each waiting for the one before: as the first failed, all
-- of it was cancelled by a function that called itself, and the stack ended.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("a chain of 20,000 jobs", function()
  it("is cancelled when its first fails", function()
    local handle <close> = assert(nightshift.open((db.fresh())))
    local q = handle:queue "q"
    local first = assert(q:push "first")
    local last = first
    handle:transaction(function(tx)
      for _ = 1, 20000 do last = assert(tx:queue "q":push("next", nil, { after = { last } })) end
      return true
    end)
    assert(q:claim():discard "no")
    eventually(function()
      q:claim() -- whoever looks goes on with what is left
      return handle:job(last).state == "cancelled"
    end, 60)
    assert.matches("^job %d+, which it waited for, failed$", handle:job(last).error)
  end)
end)
