-- A poll that raised shortly before its deadline, or at its last look, was dead
-- at once, reason "deadline", as its backoff would have ended later: with nine
-- attempts left, without a last look, and on_timeout was never called.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

local handle, h

after_each(function()
  h:signal "QUIT"
  h:wait()
  handle:close()
end)

local function ended(definition)
  local url = db.fresh()
  handle = assert(nightshift.open(url))
  h = host.start(url, ([[return { slow = require "nightshift".background {
    start = function() return 7 end, every = 0.1, deadline = 2, %s } }]]):format(definition))
  local id = assert(handle:queue("q"):push "slow")
  return eventually(function()
    local child = handle:execute("SELECT id FROM nightshift_child WHERE parent = ?", id)[1]
    local poll = child and handle:job(child.id)
    return poll and (poll.state == "done" or poll.state == "dead") and poll
  end)
end

describe("a poll that fails before its deadline", function()
  it("has its last look at the deadline", function()
    local poll = ended [[poll = function(job)
      if job.attempt == 1 then error "503" end
      return job.due >= job.deadline
    end]]
    assert.same({ "done", true, 1 }, { poll.state, poll.result, poll.attempts })
  end)

  it("and at it, leaves it to on_timeout", function()
    local poll = ended [[poll = function() error "503" end,
      on_timeout = function(job, operation) return { operation, job.attempts } end]]
    assert.same({ "done", { 7, 1 } }, { poll.state, poll.result })
  end)

  it("and at it, is dead for its deadline when nobody says more", function()
    local poll = ended [[poll = function() error "503" end]]
    assert.same({ "dead", "poll deadline", 2 }, { poll.state, poll.reason, poll.attempts })
    assert.matches("503", poll.error)
  end)
end)
