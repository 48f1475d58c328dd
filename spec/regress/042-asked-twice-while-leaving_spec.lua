-- A second TERM that came when a host had written everything and was leaving
-- made it end with 1, as if it had given verdicts up.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nst = require "nst"

describe("a host that is told to stop again and again", function()
  it("ends with 0 when there is nothing to give up", function()
    local h = host.start(db.fresh(), "return { noop = function() end }")
    for _ = 1, 100 do
      if h:ended() then break end
      h:signal "TERM"
      nst.sleep(0.001)
    end
    assert.equal(0, h:wait())
  end)
end)
