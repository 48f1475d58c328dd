-- Jobs, or verdicts, that were together over max_allowed_packet cost the
-- connection, and each repetition cost the next one: GONE, for ever.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("jobs that are together over the server's max_allowed_packet", function()
  local server, url

  before_each(function()
    server = db.server()
    server:sql "SET GLOBAL max_allowed_packet = 1048576"
    url = server:fresh()
  end)

  it("are pushed in one transaction", function()
    local handle <close> = assert(nightshift.open(url))
    local items = {}
    for i = 1, 20 do items[i] = { "big", ("x"):rep(200000) } end
    assert.equal(20, #assert(handle:queue("q"):push_many(items)))
  end)

  it("are refused one by one when a single one is", function()
    local handle <close> = assert(nightshift.open(url))
    local none, message, code = handle:queue("q"):push("big", ("x"):rep(1048000))
    assert.is_nil(none)
    assert.equal("TOO_BIG", code)
    assert.is_truthy(message:find("max_allowed_packet", 1, true))
    assert(handle:queue("q"):push("small", 1))
  end)
end)
