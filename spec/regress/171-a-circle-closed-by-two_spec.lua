-- Two parents that parked in overlapping transactions, whose children waited
-- crosswise for jobs behind the other parent: each alone was refused, together
-- they waited for each other for ever.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("two waits that would close a circle together", function()
  local url, one, two

  before_each(function()
    url = db.fresh()
    one, two = assert(nightshift.open(url)), assert(nightshift.open(url))
  end)

  after_each(function()
    one:close()
    two:close()
  end)

  -- A claimed parent, and the end of a chain behind it.
  local function chain(handle, queue)
    local q = handle:queue(queue)
    local parent = assert(q:push "parent")
    local job = assert(q:claim())
    local x = assert(q:push("x", nil, { after = { parent } }))
    return job, assert(q:push("y", nil, { after = { x } }))
  end

  it("wait one after the other, and the second is refused", function()
    local p1, y1 = chain(one, "a")
    local p2, y2 = chain(two, "b")
    assert(p1:spawn("child", nil, { after = { y2 } }))
    assert(p2:spawn("child", nil, { after = { y1 } }))
    assert(one:transaction(function()
      assert(p1:wait())
      local ok, _, code = p2:wait()
      assert.same({ nil, "BUSY" }, { ok, code })
    end))
    local ok, message, code = p2:wait()
    assert.same({ nil, "INVALID" }, { ok, code })
    assert.matches("would wait for itself", message)
    assert(p2:ack())
    local ended = {}
    eventually(function()
      local job = two:queue("b"):claim() or one:queue("a"):claim()
      if not job then return false end
      ended[#ended + 1] = job.name
      return assert(job:ack()) and #ended == 7
    end)
    assert.equal("done", one:job(p1.id).state)
    assert.same({ "x", "y", "child", "parent", "x", "y", "child" }, ended)
  end)

  it("do not hold each other up where no circle can be", function()
    local p1 = chain(one, "a")
    local p2 = chain(two, "b")
    assert(p1:spawn "child")
    assert(p2:spawn "child")
    assert(one:transaction(function()
      assert(p1:wait())
      assert(p2:wait())
    end))
  end)
end)
