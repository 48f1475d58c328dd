-- All SLEEP()s of a server share a mutex. A KILL QUERY that found it taken waited for
-- two seconds, and whoever slept with it: so did a push whose ring ended the sleep of
-- a host, when an application slept somewhere.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local SLEEPER = [[
  local db = assert(require "nightshift".open(%q))
  print "sleeping"
  io.flush()
  while true do assert(db:execute "DO SLEEP(0.0001)") end]]

describe("a ring", function()
  it("is not held up by others who sleep in the server", function()
    local url = db.fresh()
    local work = host.start(url, 'return { job = function() return require "nightshift".clock() end }')
    local sleepers = {}
    for i = 1, 4 do
      sleepers[i] = proc.start { proc.lua, "-e", SLEEPER:format(url) }
      sleepers[i]:wait_line "sleeping"
    end
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local slow = 0
    for i = 1, 300 do
      local start = nightshift.clock()
      local id = assert(q:push("job", i))
      slow = slow + (nightshift.clock() - start < 1.5 and 0 or 1)
      eventually(function() return assert(handle:job(id)).state == "done" end)
      slow = slow + (handle:job(id).result - start < 1.5 and 0 or 1)
    end
    assert.is_true(slow <= 6, slow .. " pushes were held up, or jobs came late") -- a machine may be busy
    for _, sleeper in ipairs(sleepers) do
      sleeper:signal "KILL"
      sleeper:wait()
    end
    work:signal "TERM"
    assert.equal(0, (work:wait()))
  end)
end)
