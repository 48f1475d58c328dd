-- A long chain of jobs, each waiting for the one before: as the first failed, all
-- of it was cancelled by a function that called itself, and the stack ended.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

local LENGTH = 3000

local FAIL = [[
local nightshift = require "nightshift"
local db = assert(nightshift.open(arg[1]))
assert(assert(db:queue "q":claim()):discard "no")
while db:job(tonumber(arg[2])).state == "waiting" do db:queue "q":claim() end
db:close()]]

describe("a long chain of jobs", function()
  it("is cancelled when its first fails, by a program with a small stack", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local last = assert(handle:queue "q":push "first")
    assert(handle:transaction(function(tx)
      for _ = 1, LENGTH do last = assert(tx:queue "q":push("next", nil, { after = { last } })) end
      return true
    end))
    local status, _, err = proc.run { "sh", "-c", 'ulimit -s 512; exec "$@"', "sh", proc.lua,
      fixture.file("fail.lua", FAIL), url, last, timeout = 60 }
    assert.equal(0, status, err)
    assert.equal("cancelled", handle:job(last).state)
    assert.matches("^job %d+, which it waited for, failed$", handle:job(last).error)
  end)
end)
