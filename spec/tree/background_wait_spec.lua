-- nightshift.background{wait = true}: whoever waits for the job waits for its
-- operation, and sees the operation's result.

local host = require "spec.support.host"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

-- Runs all there is with an operation of these options; polls are fast.
local function work(options, more)
  local status, log = host.drain(url, ([[
    local nightshift = require "nightshift"
    return {
      encode = nightshift.background { wait = true, every = 0.01, start = function(job) return job.payload end, %s },
      %s
    }]]):format(options, more or ""))
  assert.equal(0, status, log)
end

local TWICE = [[poll = function(job, op)
  if job.polls < 2 then return job:again() end
  return { op = op }
end]]

describe("a background job that waits", function()
  it("is done when its operation is, with its result", function()
    local id = assert(q:push("encode", "film"))
    work(TWICE)
    local info = handle:job(id)
    assert.same({ "done", { op = "film" } }, { info.state, info.result })
  end)

  it("has its result in job.results of a parent, and is what `after` waits for", function()
    local id = assert(q:push "parent")
    work(TWICE, [[
      parent = function(job)
        if job.phase == 0 then
          local a, b = job:spawn("encode", 1), job:spawn("encode", 2)
          job:spawn("join", { a, b }, { after = { a, b } })
          return job:wait()
        end
        return { job.results[1].result.op, job.results[2].result.op, job.results[3].result }
      end,
      join = function(job)
        local states = {}
        for i, other in ipairs(job.payload) do states[i] = job:db():job(other).result.op end
        return states
      end,]])
    assert.same({ 1, 2, { 1, 2 } }, handle:job(id).result)
  end)

  it("is dead when its operation fails, with the error", function()
    local id = assert(q:push("encode", "film"))
    work [[max_attempts = 1, poll = function() error("no picture", 0) end]]
    local info = handle:job(id)
    assert.same({ "dead", "discarded" }, { info.state, info.reason })
    assert.matches("^no picture", info.error)
    local late = assert(q:push("encode", "film"))
    work [[max_polls = 1, poll = function(job) return job:again() end]]
    assert.same({ "dead", "poll deadline" }, { handle:job(late).state, handle:job(late).error })
  end)

  it("starts another operation when it is retried", function()
    local id = assert(q:push("encode", "film"))
    work [[poll = function(job) return job:discard "no picture" end]]
    assert.equal("dead", handle:job(id).state)
    assert(handle:retry(id))
    work(TWICE)
    assert.same({ "done", { op = "film" } }, { handle:job(id).state, handle:job(id).result })
  end)

  it("may wait for a signal before it starts", function()
    local id = assert(q:push("encode", "film"))
    assert(handle:signal(id, "yes", "approved"))
    work([[start = function(job)
      if job.phase == 0 then return job:wait { signal = "approved" } end
      return job.signal
    end, ]] .. TWICE)
    assert.same({ "done", { op = "yes" } }, { handle:job(id).state, handle:job(id).result })
  end)
end)
