-- A wait of more microseconds than the clock can count to was over at once.

local core = require "nightshift.core"
local server = require "spec.support.db"

describe("a wait for ever", function()
  it("of a claim lasts until a job is there", function()
    local db <close> = assert(core.open { url = server.fresh() })
    assert(db:push("q", { { name = "later", delay = 300000 } }))
    assert.equal("later", assert(db:claim("q", 1, math.maxinteger))[1].name)
  end)

  it("of a look ends when nobody seems dead", function()
    local db <close> = assert(core.open { url = server.fresh() })
    assert.same({ holders = 0, jobs = 0, poison = 0 }, db:look(math.maxinteger))
  end)

  it("cannot be negative", function()
    local db <close> = assert(core.open { url = server.fresh() })
    assert.has_error(function() db:claim("q", 1, -1) end)
    assert.has_error(function() db:claim("q", 1, 0, -1) end)
    assert.has_error(function() db:look(-1) end)
  end)
end)
