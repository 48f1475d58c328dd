-- A claim of several stretches is read with a statement for each. One whose connection
-- was lost between them, and did not come back at once, kept what it had read and read
-- all again: those jobs stood in the claim twice, and a host ran each of them twice.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proxy = require "spec.support.proxy"

local LENGTH, STRETCHES = 9, 3

describe("a claim of several stretches", function()
  local url, direct, through

  setup(function()
    url = db.fresh()
    direct = assert(nightshift.open(url))
    assert(direct:execute "SELECT SETVAL(nightshift_id, 100000)") -- ids of one length: packets too
  end)
  before_each(function() through = proxy.start(db.shared()) end)
  teardown(function() direct:close() end)

  -- Claims all through a connection that 'arm' breaks: they come in one call or two.
  -- Returns the packets.
  local function claim(arm)
    for _ = 1, STRETCHES do
      assert(direct:transaction(function(tx)
        for i = 1, LENGTH do assert(tx:queue "q":push("job", i)) end
        assert(tx:queue "gap":push "job")
      end))
    end
    local handle <close> = assert(nightshift.open(through:url(url)))
    arm()
    local jobs, _, code = handle:queue "q":claim_many(LENGTH * STRETCHES)
    local packets = through:packets()
    through:tell "fired"
    through:tell "refuse 0"
    if not jobs then
      assert.equal("GONE", code)
      jobs = assert(handle:queue "q":claim_many(LENGTH * STRETCHES))
    end
    local seen = {}
    for _, job in ipairs(jobs) do
      assert.is_nil(seen[job.id], ("job %d came twice"):format(job.id))
      seen[job.id] = true
    end
    assert.equal(LENGTH * STRETCHES, #jobs)
    for _, job in ipairs(jobs) do assert(job:ack()) end
    return packets
  end

  it("brings each job once, wherever its connection is cut while it is read", function()
    local packets = claim(function() through:tell "trace" end)
    local committed = false
    local cuts = 0
    for _, packet in ipairs(packets) do
      committed = committed or packet.who == "C"
      if committed then
        claim(function()
          through:tell(("cut %d"):format(packet.at))
          through:tell "refuse 1"
        end)
        cuts = cuts + 1
      end
    end
    assert.is_true(cuts > 2 * STRETCHES, cuts)
  end)
end)
