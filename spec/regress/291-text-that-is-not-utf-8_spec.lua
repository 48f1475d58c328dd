-- Text that is not UTF-8 was copied whole for each bad byte: 100,000 such bytes in job:log
-- took five seconds, and an error of 64 KiB of them held its worker for three. An error
-- value whose metatable is protected by a number or true raised in the library itself: the
-- job stayed claimed, and in a handler the error that was kept was the library's.

local host = require "spec.support.host"
local job = require "nightshift.job"
local nst = require "nst"

local handle, q, url

with_database(function(...) handle, q, url = ... end)

local function seconds(fn)
  local before = nst.clock()
  fn()
  return nst.clock() - before
end

describe("text that is not UTF-8", function()
  it("costs no more than text that is", function()
    assert(q:push "a")
    local claimed = assert(q:claim())
    local bad = ("\xff"):rep(100000)
    assert.is_true(seconds(function() assert(claimed:log(bad)) end) < 3)
    assert.is_true(seconds(function() assert(claimed:fail(bad)) end) < 3)
    local row = handle:execute("SELECT error, log FROM nightshift_attempt WHERE job_id = ?", claimed.id)[1]
    assert.equal(16384, #row.log)
    assert.matches("^%?+$", row.log)
    assert.matches("^%?+… %(100000 bytes%)$", row.error)
  end)

  it("keeps what is good between what is not", function()
    assert.equal("a?b??c", job.error_text "a\xffb\xc3\xe2c")
    assert.equal("?", job.error_text "\xff")
    assert.equal("?ä", job.error_text "\xffä")
  end)

  it("is cut on a whole character in a log", function()
    assert(q:push "a")
    local claimed = assert(q:claim())
    assert(claimed:log("x" .. ("ä"):rep(20000)))
    assert(claimed:fail "e")
    local log = handle:execute("SELECT log FROM nightshift_attempt WHERE job_id = ?", claimed.id)[1].log
    assert.is_truthy(utf8.len(log))
    assert.is_nil(log:find("?", 1, true))
    assert.equal(16384, #log)
  end)
end)

describe("an error value whose metatable is protected", function()
  local SHIELDS = { 1, true, false, "no" }

  it("is kept as what it is", function()
    for _, shield in ipairs(SHIELDS) do
      assert.equal('{"code":5}', job.error_text(setmetatable({ code = 5 }, { __metatable = shield })))
      assert.equal("shown", job.error_text(setmetatable({},
        { __metatable = shield, __tostring = function() return "shown" end })))
    end
  end)

  it("fails the job that it was raised in", function()
    local id = assert(handle:queue "default":push("a", nil, { max_attempts = 1 }))
    assert.equal(0, (host.drain(url, [[return {
      a = function() error(setmetatable({ code = 5 }, { __metatable = 1 })) end,
    }]])))
    assert.matches('^{"code":5}', handle:job(id).error)
  end)
end)
