-- job:spawn answers nil when no id is to be had. A handler that did not look at
-- the answer ended its run as if it had the child.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proxy = require "spec.support.proxy"

describe("a run whose child could not be spawned", function()
  it("does not end with a verdict that would bring it", function()
    local p = proxy.start(db.shared())
    local handle <close> = assert(nightshift.open(p:url((db.fresh()))))
    local q = assert(handle:queue "q")
    local id = assert(q:push "parent")
    local job = assert(q:claim())
    p:tell "refuse"
    p:tell "close"
    local child, message, code = true, nil, nil
    for _ = 1, 200 do -- those of the block are had without the server
      child, message, code = job:spawn "child"
      if not child then break end
    end
    assert.is_nil(child)
    assert.equal("GONE", code, message)
    p:tell "admit"
    for _, verb in ipairs { "ack", "again", "wait" } do
      local ok, why, what = job[verb](job)
      assert.is_nil(ok)
      assert.matches("a child was not spawned", why)
      assert.equal("GONE", what)
    end
    assert(job:fail "no child")
    assert.equal("scheduled", handle:job(id).state)
  end)
end)
