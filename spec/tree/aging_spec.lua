-- Aging: what lies below a saturated priority is claimed all the same, within a
-- number of claims that can be counted.

local nightshift = require "nightshift"

local TURN = 16 -- rows in true order for one that is aged

local handle, q, url

with_database(function(...) handle, q, url = ... end)

local function pushed(n, priority)
  local items = {}
  for i = 1, n do items[i] = { "job", nil, { priority = priority } } end
  return assert(q:push_many(items))
end

--- Claims one after the other until all of `wanted` have come; how many that took,
-- and how many of them were wanted.
local function claims_until(wanted, claim)
  local missing, n = 0, 0
  for _ in pairs(wanted) do missing = missing + 1 end
  local found = {}
  while missing > 0 do
    local jobs = claim()
    assert.is_true(#jobs > 0, "the load has run out")
    for _, job in ipairs(jobs) do
      n = n + 1
      if wanted[job.id] and not found[job.id] then
        found[job.id], missing = n, missing - 1
      end
      assert(job:ack())
    end
  end
  return n, found
end

local function one() return { q:claim() } end

describe("aging", function()
  it("starts a job at the bottom within 16 claims", function()
    pushed(200, 200)
    local low = assert(q:push("low", nil, { priority = 0 }))
    assert.is_true(claims_until({ [low] = true }, one) <= TURN + 1)
  end)

  it("costs one claim in 16, oldest first", function()
    local low = pushed(20, 0)
    pushed(400, 200)
    local came = {}
    for n = 1, 170 do
      local job = assert(q:claim())
      if job.priority == 0 then came[#came + 1] = { n, job.id } end
      assert(job:ack())
    end
    assert.equal(10, #came)
    for i, pair in ipairs(came) do assert.same({ i * (TURN + 1), low[i] }, pair) end
  end)

  it("reaches every lower priority in turn, however many jobs lie at the bottom", function()
    pushed(3000, 200)
    pushed(100, 0)
    local wanted = {}
    for _, priority in ipairs { 4, 12, 20, 84, 92, 100, 199 } do wanted[pushed(1, priority)[1]] = true end
    -- every other turn is the lowest lane's; the rest go round the eight of them
    assert.is_true(claims_until(wanted, one) <= 2 * 8 * (TURN + 1))
  end)

  it("goes on in batches, as a part of them", function()
    pushed(6000, 200)
    local low = pushed(30, 0)
    local wanted = {}
    for _, id in ipairs(low) do wanted[id] = true end
    local n = claims_until(wanted, function() return assert(q:claim_many(100)) end)
    assert.is_true(n >= 30 * TURN - 100, "not before their time: " .. n)
    assert.is_true(n <= 30 * TURN + 2000, n)
  end)

  it("finds a lane that comes up later, and what was committed late", function()
    pushed(10, 200)
    local other <close> = assert(nightshift.open(url))
    local late
    assert(other:transaction(function(tx)
      late = assert(tx:queue("q"):push("low", nil, { priority = 0 }))
      assert(q:push("low", nil, { priority = 0 })) -- claimed first, and so the floor rises
      for _ = 1, 11 do assert(q:claim():ack()) end
      pushed(4 * TURN, 200)
      for _ = 1, 2 * TURN do assert(q:claim():ack()) end
      return true
    end))
    local low = assert(q:push("middle", nil, { priority = 50 }))
    local wanted, deadline = { [late] = true, [low] = true }, nightshift.clock() + 60
    while next(wanted) do
      assert.is_true(nightshift.clock() < deadline, "never found")
      pushed(2 * TURN, 200)
      for _ = 1, 2 * TURN do
        local job = assert(q:claim())
        wanted[job.id] = nil
        assert(job:ack())
      end
    end
  end)

  it("is each queue's own", function()
    local other = handle:queue "other"
    local low = assert(other:push("low", nil, { priority = 0 }))
    pushed(2 * TURN, 200)
    for _ = 1, 2 * TURN do assert(q:claim():ack()) end
    assert.equal("ready", handle:job(low).state)
  end)

  it("does not exist for a strict claim", function()
    pushed(5 * TURN, 200)
    local low = assert(q:push("low", nil, { priority = 0 }))
    for _ = 1, 5 * TURN do
      local job = assert(q:claim { strict = true })
      assert.equal(200, job.priority)
      assert(job:ack())
    end
    assert.equal(low, q:claim({ strict = true }).id)
  end)

  it("leaves those below alone while nothing has to wait", function()
    for _ = 1, 3 * TURN do
      pushed(1, 200)
      assert(q:claim():ack())
      assert.is_nil(q:claim())
    end
    local low = assert(q:push("low", nil, { priority = 0 }))
    local high = pushed(1, 200)[1]
    assert.same({ high, low }, { q:claim().id, q:claim().id })
  end)
end)
