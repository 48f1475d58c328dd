-- Jobs that had been sent ahead behind a slow one, or waited in a host that
-- stopped, went back behind everything that had been pushed since.

local host = require "spec.support.host"

local _, q, url

with_database(function(...) _, q, url = ... end)

local SCRIPT = [[
local core = require "nightshift.core"
return {
  job = function(job)
    print("began " .. job.payload.i)
    core.sleep(job.payload.slow and 1 or 0.003)
  end,
  long = function() print "long" core.sleep(1) end,
}]]

local function began(log)
  local order = {}
  for i in log:gmatch "began (%d+)" do order[#order + 1] = math.tointeger(tonumber(i)) end
  return order
end

-- How far behind its turn any job began.
local function worst(order)
  local late = 0
  for at, i in ipairs(order) do late = math.max(late, at - i) end
  return late
end

describe("jobs that were not begun keep their place", function()
  it("when the one before them in their worker takes long", function()
    local jobs = {}
    for i = 1, 1500 do jobs[i] = { "job", { i = i, slow = i == 100 or i == 101 } } end
    assert(q:push_many(jobs))
    local h = host.spawn(url, SCRIPT, { "--drain-within", "0", "--drain" })
    assert.equal(0, h:wait(120))
    local order = began((h:text()))
    assert.equal(1500, #order)
    assert.is_true(worst(order) < 1200, ("one began %d jobs late"):format(worst(order)))
  end)

  it("when their host stops", function()
    local jobs = {}
    for i = 1, 400 do jobs[i] = { "job", { i = i, slow = i == 300 } } end
    assert(q:push_many(jobs))
    local h = host.start(url, SCRIPT, { "--workers", "1" })
    h:wait_line "began 300"
    h:signal "TERM"
    assert.equal(0, h:wait())
    local given_back, last = 0, 0
    for _, job in ipairs(assert(q:claim_many(400))) do
      given_back = given_back + (job.run > 1 and 1 or 0)
      assert.is_true(job.payload.i > last, ("%d after %d"):format(job.payload.i, last))
      last = job.payload.i
    end
    assert.is_true(given_back > 0)
    assert.equal(400, last)
  end)
end)
