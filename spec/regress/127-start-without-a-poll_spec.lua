-- When no id was to be had for the polling child, a background job was done
-- without one: the operation had started and nobody ever asked for it again.

local background = require "nightshift.background"
local job = require "nightshift.job"
local nightshift = require "nightshift"

describe("a background job that cannot spawn its poll", function()
  it("fails, and is tried again", function()
    local definition = nightshift.background { start = function() return "op" end, poll = function() end }
    local backend = { take_id = function() return nil, "the server is away", "GONE" end }
    local parent = job.new({ id = 1, run = 1, name = "encode", queue = "q", attempts = 0 }, backend)
    assert.error_matches(function() background.expand("encode", definition).encode(parent) end, "the server is away")
  end)
end)
