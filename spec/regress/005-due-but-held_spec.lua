-- A claim that waited turned in circles, thousands of transactions a second,
-- while an open transaction held a scheduled row that had come due.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("a waiting claim", function()
  it("does not turn in circles while a due job is held by a transaction", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local holder <close> = assert(nightshift.open(url))
    assert(handle:queue("q"):push("job", 1, { delay = 0.1 }))
    holder:transaction(function(tx)
      assert(tx:execute "DELETE FROM nightshift_scheduled")
      local function commits() return tonumber((db.sql("SHOW GLOBAL STATUS LIKE 'Com_commit'"):match "%d+")) end
      local before = commits()
      assert.is_nil(handle:queue("q"):claim { wait = 1 })
      local n = commits() - before
      assert.is_true(n < 200, n .. " transactions in a second")
    end)
  end)
end)
