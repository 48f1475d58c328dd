-- db:signal and db:reprioritise handed what they got to the core: its words for a
-- wrong argument spoke of a line inside Nightshift; so did job:wait for a policy
-- that there is not. Found by the fuzzer.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("a wrong argument is the caller's, in words:", function()
  local handle
  setup(function() handle = assert(nightshift.open((db.fresh()))) end)
  teardown(function() handle:close() end)

  for what, call in pairs {
    ["signal: the id must be an integer, got 1.5"] = function() handle:signal(1.5, 1) end,
    ["signal: the id must be an integer, got a string"] = function() handle:signal("1", 1) end,
    ["signal: the name must be a string, got table"] = function() handle:signal(1, 1, {}) end,
    ["reprioritise: the priority must be an integer, got 1.5"] = function() handle:reprioritise(1, 1.5) end,
    ["reprioritise: the priority must be an integer, got nil"] = function() handle:reprioritise(1) end,
    ["reprioritise: the priority must be an integer, got string"] = function() handle:reprioritise(1, "9") end,
  } do
    it(what, function()
      local ok, message = pcall(call)
      assert.is_false(ok)
      assert.is_truthy(message:find(what, 1, true), message)
      assert.is_truthy(message:find("148-signal-to-half-a-job_spec.lua:", 1, true), message)
    end)
  end

  it("a policy of wait that there is not", function()
    assert(handle:queue("wait"):push("a", 1))
    local job = assert(handle:queue("wait"):claim())
    local ok, message = pcall(job.wait, job, { on_fail = "ignore" })
    assert.is_false(ok)
    assert.is_truthy(message:find("wait: on_fail must be", 1, true), message)
    assert(job:release())
  end)

  it("a priority out of range is INVALID", function()
    local id = assert(handle:queue("q"):push("a", 1))
    assert.equal("INVALID", select(3, handle:reprioritise(id, 256)))
  end)
end)
