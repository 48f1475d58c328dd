-- A queue was resumed after its host, or its consumer, had read that it is paused, and before
-- its listener slept: nobody was rung, and the listener looked into other queues only. So
-- the jobs began up to ten seconds late.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local CONSUMER = [[
  local db = assert(require "nightshift".open(%q))
  for job in db:queue "late":jobs { wait = 60 } do
    assert(job:ack())
    break
  end]]

--- Has whoever puts its name down take two seconds for it.
local function slow_down(handle)
  local row = assert(handle:execute "SHOW CREATE PROCEDURE nightshift_listen")[1]
  local slow, n = row["Create Procedure"]:gsub("^CREATE (.-)IF p_queues IS NULL THEN",
    "CREATE OR REPLACE %1DO SLEEP(IF(p_queues IS NULL, 0, 2)); IF p_queues IS NULL THEN", 1)
  assert.equal(1, n)
  assert(handle:execute(slow))
end

describe("a queue that is resumed before its listener sleeps", function()
  local url, handle

  before_each(function()
    url = db.fresh()
    handle = assert(nightshift.open(url))
    slow_down(handle)
    assert(handle:queue "late":push "noop")
    assert(handle:queue "late":pause())
  end)

  after_each(function() handle:close() end)

  local function count(what) return assert(handle:execute("SELECT COUNT(*) AS n FROM " .. what))[1].n end

  -- Seconds from its resume to the end of its job.
  local function resume()
    eventually(function()
      return count "information_schema.processlist WHERE db = DATABASE() AND state = 'User sleep'" > 0
    end)
    assert(handle:queue "late":resume())
    local resumed = nightshift.clock()
    eventually(function() return count "nightshift_job" == 0 end)
    return nightshift.clock() - resumed
  end

  it("is served at once by its host", function()
    local h = host.spawn(url, "return { noop = function() end }")
    local late = resume()
    h:signal "KILL"
    assert.is_true(late < proc.limit(9), ("%.1f s late"):format(late))
  end)

  it("is served at once by its consumer", function()
    local p = proc.start { proc.lua, "-e", CONSUMER:format(url) }
    local late = resume()
    p:signal "KILL"
    assert.is_true(late < proc.limit(9), ("%.1f s late"):format(late))
  end)
end)
