-- A child kept a reference to the payload and the options that it was spawned with, and was
-- written as they were at the verdict: three children spawned in a loop with one table were
-- three times the last. Options that were changed to something bad meanwhile broke the
-- verdict with an error of the interpreter, and the job could not even be given back.

local host = require "spec.support.host"

local handle, q, url

with_database(function(...) handle, q, url = ... end)

local function children()
  return assert(handle:execute [[SELECT payload, 255 - rank AS priority FROM nightshift_job
    WHERE parent > 0 ORDER BY id]])
end

local EXPECTED = {
  { payload = '{"n":1}', priority = 1 }, { payload = '{"n":2}', priority = 2 }, { payload = '{"n":3}', priority = 3 },
}

describe("a child", function()
  it("is what it was when it was spawned", function()
    assert(q:push "parent")
    local job = assert(q:claim())
    local payload, options = {}, {}
    for i = 1, 3 do
      payload.n, options.priority = i, i
      assert(job:spawn("child", payload, options))
    end
    assert(job:ack())
    assert.same(EXPECTED, children())
  end)

  it("is the same in a handler, which waits for it", function()
    assert(handle:queue "default":push "parent")
    local h = host.start(url, [[return {
      parent = function(job)
        if job.phase > 0 then return true end
        local payload, options = {}, { queue = "elsewhere" }
        for i = 1, 3 do
          payload.n, options.priority = i, i
          job:spawn("child", payload, options)
        end
        return job:wait()
      end,
    }]], { "--queues", "default=1" })
    eventually(function() return #children() == 3 end)
    assert.same(EXPECTED, children())
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("does not feel what is made of its tables later", function()
    assert(q:push "parent")
    local job = assert(q:claim())
    local payload, options = { n = 1 }, { priority = 1 }
    assert(job:spawn("child", payload, options))
    options.priority, options.nonsense, payload.f = 999, true, print
    assert(job:ack())
    assert.same({ EXPECTED[1] }, children())
  end)

  it("whose payload is too large keeps its parent from being done", function()
    assert(q:push "parent")
    local job = assert(q:claim())
    assert(job:spawn("child", ("x"):rep(3 << 20)))
    local ok, message, code = job:ack()
    assert.same({ nil, "TOO_BIG" }, { ok, code })
    assert.matches("payload: 3145730 bytes of JSON, the limit is 1048576", message, 1, true)
    assert(job:release())
    assert.same({}, children())
  end)
end)
