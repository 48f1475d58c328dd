-- A push that was cut at its commit, could not ask whether it had happened and
-- said GONE, made a second job when it was repeated.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proxy = require "spec.support.proxy"

describe("a push that is cut at its commit while the server cannot be reached", function()
  local url, name, p, handle

  before_each(function()
    url, name = db.fresh()
    p = proxy.start(db.shared())
    handle = assert(nightshift.open(p:url(url)))
    assert(handle:queue("q"):push("first"))
  end)
  after_each(function() handle:close() end)

  local function gone(when, ...)
    p:tell("commit " .. when .. " 1")
    p:tell "lasting"
    local none, _, code = handle:queue("q"):push(...)
    assert.same({ nil, "GONE" }, { none, code })
    assert.equal("yes", p:tell "fired")
  end
  local function count() return db.sql("SELECT COUNT(*) FROM nightshift_job", name) end

  for _, when in ipairs { "before", "after" } do
    it("is one push with its repetition: cut " .. when, function()
      gone(when, "second", { n = 1 }, { unique = "k", delay = 5 })
      assert.equal("GONE", select(3, handle:queue("q"):push("second", { n = 1 }, { unique = "k", delay = 5 })))
      p:tell "admit"
      local id = assert(handle:queue("q"):push("second", { n = 1 }, { unique = "k", delay = 5 }))
      assert.equal("2", count())
      assert.equal("second", assert(handle:job(id)).name)
    end)
  end

  it("is one push with its repetition in a transaction", function()
    gone("after", "second")
    p:tell "admit"
    assert(handle:transaction(function(tx) return tx:queue("q"):push("second") end))
    assert.equal("2", count())
  end)

  it("is repeated once only: the next one is new", function()
    gone("after", "second")
    p:tell "admit"
    local id = assert(handle:queue("q"):push("second"))
    assert.not_equal(id, assert(handle:queue("q"):push("second")))
    assert.equal("3", count())
  end)

  it("is not mistaken for one that asks for something else", function()
    gone("after", "second", { n = 1 })
    p:tell "admit"
    assert(handle:queue("q"):push("second", { n = 2 }))
    assert(handle:queue("other"):push("second", { n = 1 }))
    assert.equal("4", count())
  end)
end)
