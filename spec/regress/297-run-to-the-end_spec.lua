-- `nightshift run` gave handlers no phase, no results and no signal: a background handler that
-- waits, every parent and every wait for a signal broke in it or took the wrong way.

local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local script

setup(function()
  script = fixture.file("jobs.lua", [[
local nightshift = require "nightshift"
local polls = 0
local function op(wait)
  return nightshift.background {
    start = function(job) return { pid = job.payload } end,
    poll = function(job, operation)
      if job.polls < 2 then return job:again() end
      return { pid = operation.pid, from = job.payload, polls = job.polls }
    end,
    every = 0.01, jitter = 0, wait = wait,
  }
end
return {
  ["op.loose"] = op(false), ["op.tied"] = op(true),
  ["op.late"] = nightshift.background { start = function() return 1 end, poll = function(job) return job:again() end,
    every = 0.01, deadline = 0.05, wait = true },
  parent = function(job)
    if job.phase == 0 then
      for i = 1, 2 do job:spawn("child", i) end
      return job:wait { state = { kept = 1 } }
    end
    local sum = job.state.kept
    for _, child in ipairs(job.results) do sum = sum + child.result end
    return { sum = sum, n = #job.results }
  end,
  child = function(job) return job.payload * 10 end,
  chain = function(job)
    if job.phase > 0 then return job.results[2].result end
    local first = job:spawn("child", 4)
    job:spawn("next", nil, { after = { first } })
    return job:wait()
  end,
  next = function(job) return { job.results[1].result, #job.after } end,
  fragile = function(job)
    if job.phase == 0 then
      job:spawn("broken", 1)
      return job:wait { on_fail = job.payload }
    end
    return { job.results[1].outcome, job.results[1].error }
  end,
  broken = function() return nil, "no luck" end,
  approve = function(job)
    if job.phase == 0 then return job:wait { signal = "approved" } end
    return job.signal == nil and job:discard "nobody answered" or { said = job.signal }
  end,
  forget = function(job)
    job:spawn("child", 1)
    return job:wait()
  end,
  orphan = function(job)
    if job.phase == 0 then job:spawn("elsewhere", 1); return job:wait() end
    return job.results[1].result
  end,
}]])
end)

local function run(...)
  local exit, out, err = proc.nightshift { "run", "--script", script, ... }
  local lines = {}
  for line in out:gmatch "[^\n]+" do lines[#lines + 1] = line end
  return exit, lines, err
end

local function last(...)
  local exit, lines, err = run(...)
  assert.equal(0, exit, err)
  return nightshift.decode(lines[#lines]:match "ack (.*)$")
end

describe("run", function()
  it("drives a parent through its phases, with its children", function()
    local exit, lines = run "parent"
    assert.equal(0, exit)
    assert.same({ 'wait for children {"kept":1}', "spawn 2 child 1", "spawn 3 child 2", "child 2: ack 10",
      "child 3: ack 20" }, { table.unpack(lines, 1, 5) })
    assert.same({ sum = 31, n = 2 }, nightshift.decode(lines[6]:match "^ack (.*)$"))
  end)

  it("gives a child what became of those it was spawned to wait for", function()
    assert.same({ 40, 1 }, last "chain")
  end)

  it("takes the place of children with --results, and begins at a phase", function()
    assert.same({ sum = 8, n = 2 }, last("parent", "--results", '[{"result": 3}, {"result": 4}]'))
    assert.same({ sum = 5, n = 1 },
      last("parent", "--phase", "1", "--state", '{"kept":0}', "--results", '[{"result":5}]'))
    assert.equal(9, last("orphan", "--results", '[{"result": 9}]'))
    local exit, _, err = run "orphan"
    assert.equal(1, exit)
    assert.matches("no handler for the child 'elsewhere' here; say with --results", err, 1, true)
    for _, bad in ipairs { "5", '{"a":1}', "[5]", '[{"outcom":"done"}]', '[{"outcome":"lost"}]' } do
      exit, _, err = run("parent", "--results", bad)
      assert.equal(2, exit, bad)
      assert.matches("--results", err, 1, true)
    end
  end)

  it("polls what a background handler has started until it is ready", function()
    assert.same({ pid = 7, from = 7, polls = 2 }, last("op.loose", "7"))
    assert.same({ pid = 7, from = 7, polls = 2 }, last("op.tied", "7"))
    local exit, lines = run "op.late"
    assert.equal(1, exit)
    assert.matches("discard: poll deadline", table.concat(lines, "\n"), 1, true)
  end)

  it("fails with a child, or goes on", function()
    local exit, lines = run("fragile", '"fail"')
    assert.equal(1, exit)
    assert.equal("dead: child failed: no luck", lines[#lines])
    assert.same({ "dead", "no luck" }, last("fragile", '"continue"'))
  end)

  it("hands on a signal, or says how to", function()
    assert.same({ said = { ok = true } }, last("approve", "--signal", '{"ok":true}'))
    assert.same({ said = 5 }, last("approve", "--phase", "1", "--signal", "5"))
    local exit, lines = run "approve"
    assert.same({ 0, { "wait for the signal 'approved'", "waiting; go on with --phase 1 --signal JSON" } },
      { exit, lines })
    assert.equal(1, (run("approve", "--phase", "1")))
  end)

  it("ends who forgets the phase", function()
    local exit, lines = run "forget"
    assert.equal(1, exit)
    assert.matches("^dead: too many phases", lines[#lines])
  end)
end)
