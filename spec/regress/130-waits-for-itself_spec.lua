-- A parent that waits for its children, one of which waits for the parent:
-- nobody was ever to run again.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("a parent and a child that wait for each other", function()
  local handle, q

  before_each(function()
    handle = assert(nightshift.open((db.fresh())))
    q = handle:queue "q"
  end)
  after_each(function() handle:close() end)

  local function state(id) return handle:job(id).state end

  it("do not: a child of an earlier run is claimable once its parent waits for it", function()
    local parent = assert(q:push "parent")
    local job = q:claim()
    local child = job:spawn("child", 1)
    local later = job:spawn("child", 2, { delay = 60 })
    assert(job:again(0))
    assert.same({ "waiting", "waiting" }, { state(child), state(later) })
    assert(q:claim():wait())
    assert.same({ "waiting", "ready", "scheduled" }, { state(parent), state(child), state(later) })
    assert(q:claim():ack())
    assert(handle:run_now(later))
    assert(q:claim():ack())
    assert.equal(1, q:claim().phase)
  end)

  it("do not: a child that is spawned after its parent, or pushed", function()
    local parent = assert(q:push "parent")
    local job = q:claim()
    local pushed = assert(q:push("child", nil, { parent = parent, after = { parent } }))
    local child = job:spawn("child", 1, { after = { parent } })
    assert(job:wait())
    local late = assert(q:push("child", nil, { parent = parent, after = { parent } }))
    assert.same({ "ready", "ready", "ready" }, { state(pushed), state(child), state(late) })
    for _ = 1, 3 do assert(q:claim():ack()) end
    assert.equal(parent, q:claim().id)
  end)

  it("by a third: the verdict is refused, and says so", function()
    local parent = assert(q:push "parent")
    local third = assert(q:push("third", nil, { after = { parent } }))
    local job = q:claim()
    local child = job:spawn("child", 1, { after = { third } })
    local ok, message, code = job:wait()
    assert.same({ nil, "INVALID" }, { ok, code })
    assert.equal(("job %d would wait for itself: its child, job %d, waits for a job that waits for it")
      :format(parent, child), message)
    assert(job:ack())
    assert(q:claim():ack())
    assert.equal("ready", state(child))
  end)

  it("by a third, through a late push: it is refused", function()
    local parent = assert(q:push "parent")
    local third = assert(q:push("third", nil, { after = { parent } }))
    local job = q:claim()
    job:spawn("child", 1)
    assert(job:wait())
    local ok, _, code = q:push("late", nil, { parent = parent, after = { third } })
    assert.same({ nil, "INVALID" }, { ok, code })
    assert(q:claim():ack())
    assert.equal(parent, q:claim().id)
  end)

  it("as a grandchild that is to wait for its grandparent: refused", function()
    local parent = assert(q:push "parent")
    local job = q:claim()
    job:spawn("child", 1)
    assert(job:wait())
    job = q:claim()
    job:spawn("grandchild", 1, { after = { parent } })
    assert.equal("INVALID", select(3, job:wait()))
    assert(job:ack())
    assert.equal(parent, q:claim().id)
  end)
end)
