-- A handler that returned nil and a message, as Lua's own functions and all verbs of the
-- library do when they fail, was done: its failure was lost without a trace.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local background = require "nightshift.background"
local proc = require "spec.support.proc"

local handle, q, url

with_database(function(opened, _, at)
  handle, url = opened, at
  q = handle:queue "default"
end)

local SCRIPT = [[
local nightshift = require "nightshift"
return {
  said = function() return nil, "remote said 503", "MINE" end,
  verb = function(job) return job:db():execute "SELEC 1" end,
  child = function(job)
    job:spawn("no", 1)
    return nil, { status = 503 }
  end,
  no = function() return false end,
  nothing = function() return nil end,
  nils = function() return nil, nil end,
  two = function() return "result", "more" end,
  again = function(job)
    job:again(3600)
    return nil, "the verdict counts"
  end,
  ["op"] = nightshift.background { start = function() return nil, "cannot start" end, poll = function() end },
  ["slow"] = nightshift.background {
    start = function() return 1 end,
    poll = function() return nil, "cannot poll" end, max_attempts = 1,
  },
}
]]

local function outcome(id)
  local info = assert(handle:job(id))
  return { info.state, info.attempts, info.error, info.result }
end

it("nil and a message from a handler are a failure, and false is a result", function()
  local ids = {}
  for _, name in ipairs { "said", "verb", "child", "no", "nothing", "nils", "two", "op" } do
    ids[name] = assert(q:push(name, nil, { max_attempts = 1 }))
  end
  ids.again, ids.slow = assert(q:push "again"), assert(q:push "slow")
  assert.equal(0, (host.drain(url, SCRIPT)))
  assert.same({ "dead", 1, "remote said 503" }, outcome(ids.said))
  assert.same({ "dead", 1, '{"status":503}' }, outcome(ids.child))
  assert.same({ "dead", 1, "cannot start" }, outcome(ids.op))
  assert.matches("1064", outcome(ids.verb)[3])
  assert.same({ "done", 0, nil, false }, outcome(ids.no))
  assert.same({ "done", 0 }, outcome(ids.nothing))
  assert.same({ "done", 0 }, outcome(ids.nils))
  assert.same({ "done", 0, nil, "result" }, outcome(ids.two))
  assert.equal("scheduled", outcome(ids.again)[1])
  assert.same({}, handle:jobs { name = "op:poll" })
  assert.same({}, handle:jobs { name = "no", state = "dead" })
  local poll = assert(handle:jobs { name = "slow:poll" })[1]
  assert.same({ "dead", 1, "cannot poll" }, outcome(poll.id))
end)

describe("nil and a message of a poll's last look", function()
  local function last_poll(def)
    local polls = background.expand("op", nightshift.background(def))["op:poll"]
    assert(q:push("op:poll", { operation = 1 }, { deadline = 0, max_polls = 5 }))
    local polling = assert(q:claim())
    local result = polls(polling)
    if not polling._settled then assert(polling:ack(result)) end
    return outcome(polling.id)
  end

  it("are no answer in it: on_timeout says what then", function()
    assert.same({ "done", 0, nil, "gave up" }, last_poll {
      start = print, poll = function() return nil, "not there" end, on_timeout = function() return "gave up" end,
      deadline = 60,
    })
  end)

  it("are its end when on_timeout returns them", function()
    local said = last_poll {
      start = print, poll = function(job) return job:again() end,
      on_timeout = function() return nil, "nobody knows" end, deadline = 60,
    }
    assert.same({ "dead", "nobody knows" }, { said[1], said[3] })
  end)
end)

it("`nightshift run` says the same", function()
  local exit, out = proc.nightshift { "run", "said", "--script", fixture.file("jobs.lua", SCRIPT) }
  assert.same({ 1, "fail: remote said 503\n" }, { exit, out })
  exit, out = proc.nightshift { "run", "no", "--script", fixture.file("jobs.lua", SCRIPT) }
  assert.same({ 0, "ack false\n" }, { exit, out })
end)
