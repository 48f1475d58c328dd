-- A claim that was cut at its commit and could not reconnect said GONE and
-- forgot what it had taken; when the commit had happened, nobody ever ran it.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proxy = require "spec.support.proxy"

describe("a claim that is cut at its commit while the server cannot be reached", function()
  local url, name, handle

  before_each(function()
    url, name = db.fresh()
    local setup <close> = assert(nightshift.open(url))
    assert(setup:queue("q"):push("job", 1))
  end)
  after_each(function() handle:close() end)

  local function cut_off(when)
    local p = proxy.start(db.shared())
    handle = assert(nightshift.open(p:url(url)))
    p:tell("commit " .. when .. " 1")
    p:tell "lasting"
    local none, _, code = handle:queue("q"):claim()
    assert.is_nil(none)
    assert.equal("GONE", code)
    assert.equal("yes", p:tell "fired")
    p:tell "admit"
  end

  for _, when in ipairs { "before", "after" } do
    it("finds its job with the next claim: cut " .. when, function()
      cut_off(when)
      local job = assert(handle:queue("q"):claim())
      assert.is_nil(handle:queue("q"):claim())
      assert.is_true((job:ack()))
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_lease", name))
    end)
  end

  it("gives it back when the handle closes", function()
    cut_off "after"
    local other <close> = assert(nightshift.open(url))
    assert.is_nil(other:queue("q"):claim())
    handle:close()
    assert.is_true((assert(other:queue("q"):claim()):ack()))
  end)

  it("does not give back what it never had", function()
    cut_off "before"
    local other <close> = assert(nightshift.open(url))
    local job = assert(other:queue("q"):claim())
    handle:close()
    assert.is_true((job:ack()))
  end)
end)
