-- A handler that forgot `if job.phase == 0` spawned and waited without end, and one that waited
-- for children that it did not have ran hundreds of times a second: no budget was spent, and
-- nothing was said.

local host = require "spec.support.host"

local handle, q, url

with_database(function(...) handle, q, url = ... end)

local function info(id)
  local job = assert(handle:job(id))
  return job.state, job.reason, job.error, job.phase
end

--- Runs the job and its children, as one who forgets the phase, until it is not claimed any more.
local function spawn_for_ever(most)
  local phases = 0
  for job in q:jobs() do
    if job.name == "child" then
      assert(job:ack())
    else
      assert(phases < most, "it goes on")
      assert(job:spawn "child")
      phases = phases + 1
      assert(job:wait())
    end
  end
  return phases
end

describe("a wait for children that were never made", function()
  it("raises, in a program and in a handler", function()
    local id = assert(q:push "a")
    local job = assert(q:claim())
    assert.error_matches(function() job:wait() end, "wait: job %d+ has no children; spawn some first, or name a signal")
    assert(job:release())
    assert(handle:cancel(id))
    id = assert(handle:queue "default":push("forgot", nil, { max_attempts = 1 }))
    assert.equal(0, (host.drain(url, [[return { forgot = function(job) return job:wait() end }]])))
    local state, reason, err = info(id)
    assert.same({ "dead", "failed" }, { state, reason })
    assert.matches("has no children", err)
  end)

  it("is none when there are some of an earlier run, or of somebody else", function()
    assert(q:push "a")
    local job = assert(q:claim())
    assert(q:push("child", nil, { parent = job.id, delay = 60 }))
    assert(job:wait())
    assert.equal("waiting", handle:job(job.id).state)
  end)
end)

describe("the phases of a job", function()
  it("have a limit, and whoever reaches it is told what to write", function()
    local id = assert(q:push("a", nil, { max_phases = 3 }))
    assert.equal(4, spawn_for_ever(10))
    local state, reason, err = info(id)
    assert.same({ "dead", "too many phases" }, { state, reason })
    assert.matches("job.phase == 0", err, 1, true)
    assert.matches("max_phases", err)
    assert.equal(3, #assert(handle:jobs { name = "child", state = "done" })) -- the last one was not written
    assert(handle:retry(id))
    assert.equal(4, spawn_for_ever(10)) -- with fresh budgets, and the limit that it was pushed with
  end)

  it("are a hundred unless told", function()
    local id = assert(q:push "a")
    assert.equal(101, spawn_for_ever(200))
    assert.equal("too many phases", select(2, info(id)))
  end)

  it("have none when that is told", function()
    assert(q:push("a", nil, { max_phases = 0 }))
    assert.error_matches(function() spawn_for_ever(110) end, "it goes on")
  end)

  it("are counted from the last signal", function()
    local id = assert(q:push("a", nil, { max_phases = 2 }))
    for i = 1, 6 do
      local job = assert(q:claim { wait = 5 })
      assert.equal(i > 1 and i - 1 or nil, job.signal)
      assert(job:wait { signal = "go" })
      assert(handle:signal(id, i, "go"))
    end
    for _ = 1, 2 do
      local job = assert(q:claim { wait = 5 })
      assert(job:wait { signal = "never", deadline = 0 })
    end
    assert(assert(q:claim { wait = 5 }):wait { signal = "never", deadline = 0 })
    assert.equal("too many phases", select(2, info(id)))
  end)

  it("are limited from SQL and by spawn, too", function()
    assert(handle:execute [[CALL nightshift_push('q', 'a', '1', '{"max_phases": 1}')]])
    assert.equal(2, spawn_for_ever(10))
    assert.is_nil((handle:execute [[CALL nightshift_push('q', 'a', '1', '{"max_phases": -1}')]]))
    assert(q:push "parent")
    local job = assert(q:claim())
    assert(job:spawn("a", nil, { max_phases = 1 }))
    assert(job:ack())
    assert.equal(2, spawn_for_ever(10))
    assert.equal("INVALID", select(3, q:push("a", nil, { max_phases = -1 })))
  end)

  it("are limited by the handler, unless the push has said", function()
    local d = handle:queue "default"
    local mine, told = assert(d:push "forgot"), assert(d:push("forgot", nil, { max_phases = 5 }))
    assert.equal(0, (host.drain(url, [[return {
      forgot = { max_phases = 2, run = function(job)
        job:spawn "child"
        return job:wait()
      end },
      child = function() end,
    }]])))
    for _, id in ipairs { mine, told } do assert.equal("too many phases", select(2, info(id))) end
    local children = {}
    for _, row in ipairs(assert(handle:execute [[SELECT parent, COUNT(*) AS n FROM nightshift_finished
      WHERE name = 'child' GROUP BY parent]])) do children[row.parent] = row.n end
    assert.same({ [mine] = 2, [told] = 5 }, children)
  end)
end)
