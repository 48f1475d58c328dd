-- Every state of a job × every verb: allowed or refused, and the state after.
-- One table; a change that adds a state or a verb adds its row or column here.

local nightshift = require "nightshift"

-- what brings a fresh job into each state; returns the claim if there is one
local reach = {
  ready = function() end,
  scheduled = function(q) q:claim():again(3600) end,
  running = function(q) return q:claim() end,
  done = function(q) q:claim():ack "r" end,
  dead = function(q) q:claim():discard "bad" end,
  cancelled = function(q, id) q._db:cancel(id) end,
  waiting = true, -- made by its parent, below
}

-- verb -> state before -> state after, or the code of the refusal
local laws = {
  cancel = { ready = "cancelled", scheduled = "cancelled", running = "cancelled", waiting = "cancelled",
    done = "STATE", dead = "STATE", cancelled = "STATE" },
  retry = { ready = "STATE", scheduled = "STATE", running = "STATE", waiting = "STATE",
    done = "ready", dead = "ready", cancelled = "ready" },
  run_now = { ready = "STATE", scheduled = "ready", running = "STATE", waiting = "STATE",
    done = "STATE", dead = "STATE", cancelled = "STATE" },
}

-- verdicts of a claim that holds, and of one that was lost to `cancel`
local verdicts = {
  ack = { call = function(job) return job:ack "r" end, after = "done" },
  fail = { call = function(job) return job:fail "e" end, after = "scheduled" },
  again = { call = function(job) return job:again(60) end, after = "scheduled" },
  discard = { call = function(job) return job:discard "no" end, after = "dead" },
  release = { call = function(job) return job:release() end, after = "ready" },
}

describe("the laws", function()
  local url, handle, q

  with_database(function(...)
    handle, q, url = ...
    q._db = q._db or handle
  end)

  local function bring(state)
    if state == "waiting" then
      assert(q:push("parent", 1))
      local parent = assert(q:claim())
      local child = parent:spawn("child", 1)
      assert(parent:again(3600))
      return child
    end
    local id = assert(q:push("job", 1))
    local claim = reach[state](q, id)
    return id, claim
  end

  for verb, row in pairs(laws) do
    for state, expected in pairs(row) do
      it(("%s of a %s job: %s"):format(verb, state, expected), function()
        local id = bring(state)
        assert.equal(state, assert(handle:job(id)).state)
        local ok, message, code = handle[verb](handle, id)
        if expected == expected:upper() then
          assert.is_nil(ok)
          assert.equal(expected, code)
          assert.is_truthy(message:find(tostring(id), 1, true))
          assert.equal(state, assert(handle:job(id)).state)
        else
          assert.is_truthy(ok, message)
          assert.equal(expected, assert(handle:job(id)).state)
        end
      end)
    end
    it(verb .. " of an id that never was: NOT_FOUND", function()
      assert.equal("NOT_FOUND", select(3, handle[verb](handle, 4711)))
    end)
  end

  for name, verdict in pairs(verdicts) do
    it(("%s of a running job makes it %s, and a second verdict is STALE"):format(name, verdict.after), function()
      local id, job = bring "running"
      assert.is_truthy(verdict.call(job))
      assert.equal(verdict.after, assert(handle:job(id)).state)
      for _, again in pairs(verdicts) do assert.equal("STALE", select(3, again.call(job))) end
    end)

    it(name .. " of a claim that was cancelled meanwhile is STALE and changes nothing", function()
      local id, job = bring "running"
      local other <close> = assert(nightshift.open(url))
      assert(other:cancel(id))
      local child = job:spawn("child", 1)
      assert.equal("STALE", select(3, verdict.call(job)))
      assert.equal("cancelled", assert(handle:job(id)).state)
      assert.equal("NOT_FOUND", select(3, handle:job(child)))
    end)
  end

  it("a child is claimable when its parent is done, in the same commit", function()
    local _, job = bring "running"
    local child = job:spawn("child", { n = 1 }, { priority = 7 })
    assert.equal("NOT_FOUND", select(3, handle:job(child)))
    assert(job:ack())
    local claimed = assert(q:claim())
    assert.same({ child, job.id, 1, 7 }, { claimed.id, claimed.parent, claimed.payload.n, claimed.priority })
  end)

  it("a child spawned before an again waits for the parent's done", function()
    local _, job = bring "running"
    local child = job:spawn("child", 1)
    assert(job:again(0))
    assert.equal("waiting", assert(handle:job(child)).state)
    local back = assert(q:claim())
    assert.equal(job.id, back.id)
    assert.is_nil(q:claim())
    assert(back:ack())
    assert.equal(child, assert(q:claim()).id)
  end)

  it("a waiting child is cancelled when its parent dies", function()
    local _, job = bring "running"
    local child = job:spawn("child", 1)
    assert(job:again(0))
    assert(q:claim()):discard "no"
    local info = assert(handle:job(child))
    assert.same({ "cancelled", "dependency" }, { info.state, info.reason })
  end)

  it("children of a failed run are dropped", function()
    local _, job = bring "running"
    local child = job:spawn("child", 1)
    assert(job:fail("no", { retry_in = 0 }))
    assert.equal("NOT_FOUND", select(3, handle:job(child)))
  end)

  it("a job that fails too often is dead, with every attempt on record", function()
    local id = assert(q:push("job", 1, { max_attempts = 3 }))
    for i = 1, 3 do
      local job = assert(q:claim())
      assert.equal(i, job.attempt)
      assert(job:fail("error " .. i, { retry_in = 0 }))
    end
    local info = assert(handle:job(id))
    assert.same({ "dead", "failed", "error 3" }, { info.state, info.reason, info.error })
    local rows = assert(handle:execute("SELECT error FROM nightshift_attempt WHERE job_id = ? ORDER BY run", id))
    assert.same({ "error 1", "error 2", "error 3" }, { rows[1].error, rows[2].error, rows[3].error })
  end)

  it("a poll past its deadline or its number is dead, reason poll deadline", function()
    local late = assert(q:push("late", 1, { deadline = 2 }))
    local many = assert(q:push("many", 1, { max_polls = 2 }))
    for job in q:jobs { wait = 4 } do
      if job.name == "late" then job:again(2.5, { n = job.polls }) else job:again(0) end
    end
    assert.equal("poll deadline", assert(handle:job(late)).reason)
    assert.equal("poll deadline", assert(handle:job(many)).reason)
    assert.equal(3, assert(handle:job(many)).polls)
  end)

  it("a job sinks with each return that is not its end, and release costs nothing", function()
    assert(q:push("job", 1, { priority = 20 }))
    local seen = {}
    for _, verb in ipairs { "again", "release", "fail", "again", "again" } do
      local job = assert(q:claim { wait = 20 })
      seen[#seen + 1] = job.priority
      if verb == "again" then job:again(0)
      elseif verb == "release" then job:release()
      else job:fail("e", { retry_in = 0 }) end
    end
    seen[#seen + 1] = assert(q:claim { wait = 20 }).priority
    assert.same({ 20, 12, 12, 4, 0, 0 }, seen)
  end)
end)
