-- A verdict that parked a parent looked at all of its children for each of them.
-- A hundred thousand kept the host's only dispatcher busy until it was taken for
-- dead, and then the next host.

local nightshift = require "nightshift"
local db = require "spec.support.db"

--- Seconds of this process's own time, per child, of the verdict `verb`.
local function cost(handle, verb, n)
  local q = handle:queue "q"
  local best = math.huge
  for _ = 1, n > 1000 and 1 or 3 do
    assert(q:push "parent")
    local job = assert(q:claim())
    for i = 1, n do assert(job:spawn("child", { i }, { queue = "children" })) end
    local start = os.clock()
    assert(verb(job))
    best = math.min(best, (os.clock() - start) / n)
  end
  return best
end

describe("a verdict with many children", function()
  local verbs = {
    wait = function(job) return job:wait() end,
    again = function(job) return job:again("1h") end,
  }

  for name, verb in pairs(verbs) do
    it("costs what its children cost: " .. name, function()
      local url = db.fresh()
      local handle <close> = assert(nightshift.open { url = url, max_children = 30000 })
      cost(handle, verb, 100)
      local few = cost(handle, verb, 1000)
      local many = cost(handle, verb, 20000)
      -- each with all others: 20 times as much
      assert.is_true(many < 8 * few, ("%.1f µs and %.1f µs a child"):format(few * 1e6, many * 1e6))
    end)
  end
end)
