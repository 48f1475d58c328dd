-- `nightshift run`: one handler inline, its verdict on stdout, no queue.

local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local script

local HANDLERS = [[
local nightshift = require "nightshift"
return {
  double = function(job)
    job:log("doubling \27[31m")
    job:progress(0.5, "half")
    return { twice = job.payload * 2 }
  end,
  none = function() end,
  parent = function(job)
    job:spawn("double", { n = 1 })
    return job:ack "spawned"
  end,
  later = function(job) return job:again("5m", { seen = job.state, polls = job.polls }) end,
  stop = function(job) return job:discard "no such user" end,
  broken = function(job)
    local function deep() error { code = 5 } end
    deep()
  end,
  unstorable = function() return { f = print } end,
  ["video.encode"] = nightshift.background {
    start = function(job) return { pid = job.payload } end,
    poll = function(job, op)
      if job.polls < 2 then return job:again() end
      return { pid = op.pid, from = job.payload }
    end,
    every = 5, growth = 2, jitter = 0,
  },
}
]]

setup(function() script = fixture.file("jobs.lua", HANDLERS) end)

local function run_of(file, ...)
  local exit, out, err = proc.nightshift { "run", "--script", file, ... }
  return { exit = exit, out = out, err = err }
end

local function run(...) return run_of(script, ...) end

describe("run", function()
  it("prints the result, and the job's own words on stderr", function()
    local result = run("double", "21")
    assert.same({ 0, 'ack {"twice":42}\n', "log doubling \\x1b[31m\nprogress 50% half\n" },
      { result.exit, result.out, result.err })
    assert.equal("ack\n", run("none").out)
  end)

  it("prints children and verdicts", function()
    assert.equal('ack "spawned"\nspawn 2 double {"n":1}\n', run("parent").out)
    local later = run("later", "--state", "[1]", "--polls", "3").out
    assert.same({ polls = 3, seen = { 1 } }, nightshift.decode(later:match "^again in 5m0s ({.*})\n$"))
    local result = run "stop"
    assert.same({ 1, "discard: no such user\n" }, { result.exit, result.out })
  end)

  it("runs a poll of a background handler by itself", function()
    local wrapped = '{"payload":7,"operation":{"pid":9}}'
    assert.equal("again in 5.0s\n", run("video.encode:poll", wrapped).out)
    assert.equal("again in 10s\n", run("video.encode:poll", wrapped, "--polls", "1").out)
    local last = run("video.encode:poll", wrapped, "--polls", "2").out
    assert.same({ pid = 9, from = 7 }, nightshift.decode(last:match "^ack ({.*})\n$"))
  end)

  it("shows a traceback of the handler and nothing of us", function()
    local result = run "broken"
    assert.equal(1, result.exit)
    assert.equal("", result.out)
    assert.is_truthy(result.err:find('nightshift: broken raised: {"code":5}\nstack traceback:\n', 1, true), result.err)
    assert.is_truthy(result.err:find "jobs.lua:%d+: in .-deep")
    assert.is_nil(result.err:find "run%.lua")
  end)

  it("says why a result cannot be stored", function()
    local result = run "unstorable"
    assert.equal(1, result.exit)
    assert.is_truthy(result.err:find("result.f: cannot encode a function", 1, true), result.err)
  end)

  it("names the known handlers for an unknown one", function()
    local result = run "duoble"
    assert.equal(1, result.exit)
    assert.is_truthy(result.err:find("no handler named 'duoble'; known: broken, double", 1, true), result.err)
    assert.is_truthy(result.err:find("did you mean 'double'?", 1, true), result.err)
  end)

  it("exits 78 for a script that does not load, with file and line", function()
    local cases = {
      { "return {", "bad.lua:1:" },
      { "\nerror 'at load'", "bad.lua:2:" },
      { "local x = 1", "must return a table of handlers" },
      { "return { a = 5 }", "handler 'a' is a number" },
    }
    for _, case in ipairs(cases) do
      local result = run_of(fixture.file("bad.lua", case[1]), "a")
      assert.equal(78, result.exit, result.err)
      assert.is_truthy(result.err:find(case[2], 1, true), result.err)
    end
    local result = run_of("/nonexistent/jobs.lua", "a")
    assert.equal(78, result.exit)
    assert.is_truthy(result.err:find("/nonexistent/jobs.lua", 1, true), result.err)
  end)
end)
