-- Jobs that wait for a word from outside.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

local url, name, handle, q

before_each(function()
  url, name = db.fresh()
  handle = assert(nightshift.open(url))
  q = handle:queue "q"
end)

after_each(function() handle:close() end)

local function parked(opts)
  local id = assert(q:push "job")
  assert(q:claim():wait(opts))
  return id
end

describe("a job that waits for a signal", function()
  it("runs when it comes, with its value", function()
    local id = parked { signal = "approved" }
    assert.is_nil(q:claim())
    assert.equal("waiting", handle:job(id).state)
    assert(handle:signal(id, { by = "me" }, "approved"))
    local job = assert(q:claim())
    assert.same({ id, 1, 1, { by = "me" } }, { job.id, job.phase, job.attempt, job.signal })
    assert(job:ack())
    assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_signal", name)))
  end)

  it("runs when one without a name comes, not when another does", function()
    local id = parked { signal = "approved" }
    assert(handle:signal(id, 1, "other"))
    assert.is_nil(q:claim())
    assert(handle:signal(id, 2))
    assert.equal(2, assert(q:claim()).signal)
  end)

  it("does not wait for what has come before", function()
    local id = assert(q:push "job")
    assert(handle:signal(id, "early", "approved"))
    assert(q:claim():wait { signal = "approved" })
    assert.equal("early", assert(q:claim()).signal)
  end)

  it("runs at its deadline without one", function()
    local id = parked { signal = "approved", deadline = 0.3 }
    local job = assert(q:claim { wait = 5 })
    assert.equal(id, job.id)
    assert.is_nil(job.signal)
    assert.equal("approved", job.awaits)
  end)

  it("waits anew for each wait", function()
    local id = parked { signal = "a" }
    assert(handle:signal(id, 1, "a"))
    assert(q:claim():wait { signal = "a" })
    assert.is_nil(q:claim())
    assert(handle:signal(id, 2, "a"))
    assert.equal(2, assert(q:claim()).signal)
  end)

  it("keeps its value when the run with it fails", function()
    local id = parked { signal = "a" }
    assert(handle:signal(id, 1, "a"))
    assert(q:claim():fail("oh", { retry_in = 0 }))
    assert.equal(1, assert(q:claim { wait = 5 }).signal)
    assert.equal(id, handle:jobs()[1].id)
  end)

  it("hears SQL, and a sleeping host is woken", function()
    local h = host.start(url, [[return { job = function(job)
      if job.phase == 0 then return job:wait { signal = "approved", deadline = "1h" } end
      return job.signal
    end }]])
    local id = assert(q:push "job")
    eventually(function() return handle:execute("SELECT awaits FROM nightshift_job WHERE id = ?", id)[1].awaits end)
    db.sql(([[CALL nightshift_signal(%d, '{"yes":1}', 'approved'); CALL nightshift_ring()]]):format(id), name)
    assert.same({ yes = 1 }, eventually(function() return handle:job(id).result end))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("that is not there: NOT_FOUND", function()
    assert.equal("NOT_FOUND", select(3, handle:signal(4711, 1)))
  end)
end)
