-- A verdict that was cut at its commit, could not ask whether it was written and
-- said GONE, said STALE when it was repeated, though it had been written.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proxy = require "spec.support.proxy"

describe("a verdict that is cut at its commit while the server cannot be reached", function()
  local url, name, p, handle

  before_each(function()
    url, name = db.fresh()
    p = proxy.start(db.shared())
    handle = assert(nightshift.open(p:url(url)))
    assert(handle:queue("q"):push("job", 1))
  end)
  after_each(function() handle:close() end)

  local function gone(when, verb)
    p:tell("commit " .. when .. " 1")
    p:tell "lasting"
    local none, _, code = verb()
    assert.same({ nil, "GONE" }, { none, code })
    assert.equal("yes", p:tell "fired")
    p:tell "admit"
  end

  local function past() return db.sql("SELECT outcome, result FROM nightshift_finished", name) end

  for _, when in ipairs { "before", "after" } do
    it("is good when it is repeated: cut " .. when, function()
      local job = assert(handle:queue("q"):claim())
      gone(when, function() return job:ack "done" end)
      assert.is_true(assert(job:ack "done"))
      assert.equal('done\t"done"', past())
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_lease", name))
    end)

    it("is good when it is repeated after other verdicts: cut " .. when, function()
      assert(handle:queue("q"):push("job", 2))
      local jobs = assert(handle:queue("q"):claim_many(2))
      gone(when, function() return jobs[1]:again(60) end)
      assert(jobs[2]:ack())
      assert.is_true(assert(jobs[1]:again(60)))
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_lease", name))
      assert.equal("1", db.sql("SELECT polls FROM nightshift_job", name))
    end)
  end

  it("is asked of the holder that wrote it, though it was declared dead since", function()
    local job = assert(handle:queue("q"):claim())
    gone("after", function() return job:ack() end)
    db.sql("UPDATE nightshift_holder SET dead = beat", name)
    assert.is_true(assert(job:ack()))
    assert(handle:queue("q"):push("next", 2))
    assert.is_true((assert(handle:queue("q"):claim()):ack()))
    assert.equal("2", db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
  end)

  it("is lost when another one was written", function()
    local job = assert(handle:queue("q"):claim())
    gone("after", function() return job:ack() end)
    assert.equal("STALE", select(3, job:fail "no"))
    assert.equal("done\tNULL", past())
  end)
end)
