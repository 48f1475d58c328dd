-- The runner of an adopted table under a host that the spec plays: when it looks again.

local designs = require "spec.support.designs"
local lab = require "spec.support.lab"
local runner = require "nightshift.source.runner"

local NAME = "migration_task"

describe("a runner", function()
  local db
  lab.handles(1, function(handle) db = handle end)

  --- What it waits between its rounds, the first without one.
  local function pauses(rounds)
    local found = {}
    local host = {
      drain = false, within = 60, log = function() end, tell = function() end,
      serves = function() return '["migrate"]' end,
      taking = function() return 1 end,
      wait = function(seconds)
        found[#found + 1] = seconds
        return #found == rounds
      end,
    }
    local its = assert(runner.open({ url = lab.url() }, require "nightshift".encode(designs.map(NAME)), host))
    its:run()
    return found
  end

  it("that is held back by a rate waits until that lets it go on", function()
    designs.create(db, NAME, 20)
    assert(assert(db:adopt(designs.map(NAME))):tune { rate = 0.2 })
    local found = pauses(4)
    for i = 1, 4 do assert.is_true(found[i] > 0.1, found[i]) end
  end)
end)
