-- A host that had just become busy looked at other holders up to ten seconds later: its next
-- look had been set while it listened, and nobody listened any more.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local SCRIPT = [[
local core = require "nightshift.core"
return { long = function() core.sleep(60) end }]]

describe("a host whose workers have all become busy", function()
  it("sees at once that another has died", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local one = host.start(url, SCRIPT, { "--queues", "one" })
    nst.sleep(1.5) -- its first looks are over: idle, it has the next one in ten seconds
    local other = host.start(url, SCRIPT, { "--queues", "other", "--workers", "1" })
    local theirs = assert(handle:queue "other":push "long")
    local function state(id) return assert(handle:job(id)).state end
    eventually(function() return state(theirs) == "running" end)
    local items = {}
    for i = 1, 10 do items[i] = { "long", i } end
    local ids = assert(handle:queue "one":push_many(items))
    eventually(function()
      local n = 0
      for _, id in ipairs(ids) do n = n + (state(id) == "running" and 1 or 0) end
      return n == 2
    end)
    local killed = nightshift.clock()
    other:signal "KILL"
    eventually(function() return state(theirs) ~= "running" end)
    local late = nightshift.clock() - killed
    assert.is_true(late < proc.limit(9), ("seen after %.1f s"):format(late))
    one:signal "KILL"
  end)
end)
