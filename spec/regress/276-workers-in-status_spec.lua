-- Nobody could see what the workers of a host did: status showed none of them, so a host
-- whose idle workers got no jobs looked like any other.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local url, handle, q
with_database(function(...) handle, q, url = ... end)

local function holder()
  local _, out = proc.nightshift({ "status", "--json" }, url)
  for _, row in ipairs(nightshift.decode(out).holders) do
    if row.kind == "host" then return row end
  end
end

local function shows(workers, busy, leaving, loads)
  eventually(function()
    local row = holder()
    return row and row.workers == workers and row.busy == busy and row.leaving == leaving
      and row.loads == loads
  end, 20)
end

describe("status", function()
  it("shows a host's workers and how often it has loaded its scripts", function()
    local h = host.start(url, [[return { long = function() os.execute "sleep 600" end }]], { "--workers", "3" })
    shows(3, 0, 0, 1)
    assert(q:push "long")
    shows(3, 1, 0, 1)
    h:signal "HUP"
    shows(2, 1, 1, 2)
    local _, text = proc.nightshift({ "status" }, url)
    assert.matches("2, 1 busy, 1 leaving", text, 1, true)
    local row = handle:stats().holders[1]
    assert.same({ 2, 1, 1, 2 }, { row.workers, row.busy, row.leaving, row.loads })
    h:signal "QUIT"
    h:wait(20)
  end)
end)
