-- A job past its own deadline that waited for a signal, as handlers do that ask
-- `if job.signal == nil` and not for the phase, ran again at once, without end:
-- a thousand runs a second.

local nst = require "nst"

local handle, q

with_database(function(...) handle, q = ... end)

--- A job that has had a run after its deadline.
local function late()
  local id = assert(q:push("a", nil, { deadline = 2 }))
  assert(q:claim():wait { signal = "go" })
  local job = assert(q:claim { wait = 20 })
  assert.is_nil(job.signal)
  return id, job
end

describe("a job that waits for a signal after its own deadline", function()
  it("is dead, and what it waited with is not left behind", function()
    local id, job = late()
    local child = assert(job:spawn "child")
    assert(job:wait { signal = "go" })
    assert.is_nil(q:claim { strict = true })
    local info = handle:job(id)
    assert.same({ "dead", "deadline", 2 }, { info.state, info.reason, info.run })
    assert.equal("dead", handle:job(child).state)
  end)

  it("runs when the signal is there already", function()
    local id, job = late()
    assert(handle:signal(id, 7, "go"))
    assert(job:wait { signal = "go" })
    job = assert(q:claim())
    assert.equal(7, job.signal)
    assert(job:ack())
  end)

  it("is found by a deadline that is set while it is parked", function()
    local id = assert(q:push "a")
    assert(q:claim():wait { signal = "go" })
    assert(handle:deadline(id, 0.1))
    nst.sleep(0.2)
    local job = q:claim { wait = 3 }
    if job then assert(job:wait { signal = "go" }) end
    assert.equal("dead", handle:job(id).state)
  end)
end)
