-- A push that was refused inside a transaction left its first unique keys
-- behind, and the commit made them stand without a job, for ever.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("a push that is refused in a transaction", function()
  it("leaves nothing for the transaction to commit", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push("holder", 1, { unique = "taken" }))
    assert(handle:transaction(function(tx)
      assert(tx:queue("q"):push("kept", 1))
      local none, _, code = tx:try(function(part)
        return part:queue("q"):push_many { { "a", 1, { unique = "free" } }, { "b", 1, { unique = "taken" } } }
      end)
      assert.is_nil(none)
      assert.equal("DUPLICATE", code)
      return true
    end))
    assert.equal("2", db.sql("SELECT COUNT(*) FROM nightshift_job", db.name(url)))
    assert(q:push("c", 1, { unique = "free" }))
  end)
end)
