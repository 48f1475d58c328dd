-- A deadline brings forward when a job is due, so that it ends then. A later one, or
-- none, left it there: a job of tomorrow ran at the deadline that had been taken
-- back, and who waited for a signal was told that nobody had answered.

local nst = require "nst"

describe("another deadline", function()
  local handle, q

  with_database(function(...) handle, q = ... end)

  local function due_in(id)
    local job = assert(handle:job(id))
    return math.floor((job.due - job.created) / 1000000 + 0.5)
  end

  -- A deadline is reckoned from the moment when it is set, however late that is.
  local function due_after(seconds, id, ...)
    local before = handle._handle:now()
    assert(handle:deadline(id, ...))
    local due = assert(handle:job(id)).due - seconds * 1000000
    assert.is_true(due >= before and due <= handle._handle:now(), due - before)
  end

  -- what is taken back counts for one job and for trees, and again and again
  for _, tree in ipairs { false, true } do
    it("lets a job be due when it was to be" .. (tree and ", in a tree" or ""), function()
      local id = assert(q:push("job", nil, { delay = 3600 }))
      for _, later in ipairs { "2h", false, "90m" } do
        due_after(1800, id, "30m", { tree = tree })
        due_after(2400, id, "40m", { tree = tree })
        assert(handle:deadline(id, later, { tree = tree }))
        assert.equal(3600, due_in(id))
      end
      assert(handle:deadline(id, 0.3, { tree = tree }))
      assert(handle:deadline(id, false, { tree = tree }))
      nst.sleep(0.5)
      assert.is_nil(q:claim())
      assert(handle:run_now(id))
      assert.equal(id, assert(q:claim()).id)
    end)
  end

  it("lets who is parked wait on for a signal, as long as it was to", function()
    local id = assert(q:push("job", nil, { deadline = 10 }))
    local before = handle._handle:now()
    assert(q:claim():wait { signal = "go", deadline = "1h" })
    local after = handle._handle:now()
    assert(handle:deadline(id, "2h"))
    local due = handle:job(id).due - 3600000000
    assert.is_true(due >= before and due <= after, due - before)
    assert(handle:deadline(id, 0.1))
    assert(handle:deadline(id, false))
    nst.sleep(0.5)
    assert.is_nil(q:claim())
    assert.equal("waiting", handle:job(id).state)
    assert(handle:signal(id, "yes"))
    assert.equal("yes", assert(q:claim()).signal)
  end)

  it("reaches a job that is paused meanwhile", function()
    local id = assert(q:push("job", nil, { delay = 3600 }))
    assert(handle:deadline(id, "30m"))
    assert(handle:pause(id))
    assert(handle:deadline(id, false))
    assert(handle:resume(id))
    assert.same({ 3600, "scheduled" }, { due_in(id), handle:job(id).state })
  end)
end)
