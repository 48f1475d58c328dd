-- A program that held a lock and took it again through another object waited
-- for itself, 30 seconds unless told; and who else held one was not said.

local nightshift = require "nightshift"
local nst = require "nst"
local db = require "spec.support.db"
local host = require "spec.support.host"
local proc = require "spec.support.proc"

describe("a slot that is held by whoever asks for it", function()
  local url
  before_each(function() url = db.fresh() end)

  local function at_once(fn, ...)
    local start = nst.clock()
    local none, message, code = fn(...)
    assert.is_true(nst.clock() - start < proc.limit(10)) -- of itself: for ever
    assert.is_nil(none)
    return message, code
  end

  it("is STATE at once, for a lock and for all slots of a semaphore", function()
    local handle <close> = assert(nightshift.open(url))
    local held <close> = assert(handle:lock("a"):acquire())
    local message, code = at_once(handle:lock "a", function() end)
    assert.equal("STATE", code)
    assert.is_truthy(message:find("'a' is held by this handle already", 1, true), message)
    local one <close> = assert(handle:semaphore("s", 2):acquire())
    do
      local two <close> = assert(handle:semaphore("s", 2):acquire())
      message, code = at_once(handle:semaphore("s", 2), function() end)
      assert.equal("STATE", code)
      assert.is_truthy(message:find("all 2 slots of 's' are held by this handle already", 1, true), message)
      assert.is_true(two:is_held())
    end
    local again <close> = assert(handle:semaphore("s", 2):acquire())
    assert.is_true(held:is_held() and one:is_held() and again:is_held())
  end)

  it("is BUSY for one who does not wait, and for one of two", function()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local held <close> = assert(handle:semaphore("s", 2):acquire())
    local also <close> = assert(other:semaphore("s", 2):acquire())
    local message, code = at_once(function() return handle:semaphore("s", 2):acquire(0.05) end)
    assert.equal("BUSY", code)
    assert.is_truthy(message:find("all 2 slots of 's' are taken", 1, true), message)
    local lock <close> = assert(handle:lock("a"):acquire())
    assert.equal("BUSY", select(2, at_once(function() return handle:lock("a"):acquire(0) end)))
    assert.is_true(held:is_held() and also:is_held() and lock:is_held())
  end)

  it("tells who holds a lock: a program, or a job", function()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local held = assert(other:lock("a"):acquire())
    local message, code = at_once(function() return handle:lock("a"):acquire(0.05) end)
    assert.equal("BUSY", code)
    assert.is_truthy(message:find(("'a' is held by process %d on "):format((nst.ids())), 1, true), message)
    assert(held:release())
    local id = assert(handle:queue("q"):push("holds", 1))
    local p = host.start(url, [[return {
      holds = function(job)
        local db = job:db()
        return db:lock "a" (function()
          local none, message, code = db:lock("a"):acquire()
          assert(none == nil and code == "STATE" and message:find("held by this job already", 1, true), message)
          job:log "has it"
          while not job:cancelled() do require "nightshift.core".sleep(0.01) end
        end)
      end }]])
    p:wait_line "has it"
    message, code = at_once(function() return handle:lock("a"):acquire(0.05) end)
    assert.equal("BUSY", code)
    assert.is_truthy(message:find(("'a' is held by job %d"):format(id), 1, true), message)
  end)
end)
