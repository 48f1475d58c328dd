-- A handle whose connection was lost while it was idle said GONE once for each
-- verb that did not begin with a transaction, though the server was there.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("a handle whose connection was lost while it was idle", function()
  local handle, name

  before_each(function()
    local url
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    assert(handle:queue("q"):push("job", 1))
  end)
  after_each(function() handle:close() end)

  local verbs = {
    push = function() return handle:queue("new"):push("job", 1) end,
    claim = function() return handle:queue("q"):claim() end,
    job = function() return handle:job(assert(handle:queue("q"):push("job", 1))) end,
    pause = function() return handle:queue("q"):pause() end,
    transaction = function() return handle:transaction(function(tx) return tx:queue("q"):push("job", 1) end) end,
  }
  for verb, call in pairs(verbs) do
    it("connects again: " .. verb, function()
      for id in db.sql("SELECT id FROM information_schema.processlist WHERE db = '" .. name .. "'"):gmatch "%d+" do
        db.sql("KILL " .. id)
      end
      assert.is_truthy(assert(call()))
    end)
  end
end)
