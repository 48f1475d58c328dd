-- Whoever waits learns of a holder's death by its named lock. When he was stopped while he
-- waited, the lock became his and stayed his, so the dead holder counted as alive for
-- everybody else, and its jobs stayed away as long as he was stopped.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local CLAIMER = [[
  local db = assert(require "nightshift".open(%q))
  assert(db:queue "q":claim())
  print "holds"
  io.flush()
  os.execute "sleep 60"]]

local WAITER = [[
  local db = assert(require "nightshift".open(%q))
  db:queue "none":claim{ wait = 60 }]]

describe("a process that is stopped while it waits", function()
  local url, name
  before_each(function() url, name = db.fresh() end)

  local function sql(text) return db.sql(text, name) end

  local function start(program, line)
    local p = proc.start { proc.lua, "-e", program:format(url) }
    if line then p:wait_line(line) end
    return p
  end

  local function sleepers()
    return tonumber(sql [[SELECT COUNT(*) FROM information_schema.processlist
      WHERE db = DATABASE() AND info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state = 'User lock']])
  end

  -- Its sleep has seen that another holder is there: it began after that one's claim.
  local function watches()
    eventually(function() return sleepers() == 1 end)
    sql "CALL nightshift_ring()"
    eventually(function() return sleepers() == 1 end)
  end

  -- As if they ran where process ids say nothing.
  local function elsewhere() sql "UPDATE nightshift_holder SET boot_id = 'elsewhere'" end

  local function aged_server()
    eventually(function()
      return tonumber(sql [[SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS
        WHERE VARIABLE_NAME = 'UPTIME']]) >= 15
    end)
  end

  local stops = {
    handle = function() return start(WAITER) end,
    host = function() return host.start(url, "return { a = function() end }", { "--queues", "none" }) end,
  }
  for kind, begin in pairs(stops) do
    for _, where in ipairs { "this machine", "another one" } do
      it(("keeps no jobs of a program on %s, as a %s"):format(where, kind), function()
        local handle <close> = assert(nightshift.open(url))
        assert(handle:queue "q":push("a", 1))
        local stopped = begin()
        local dies = start(CLAIMER, "holds")
        watches()
        stopped:signal "STOP"
        if where == "another one" then
          aged_server()
          elsewhere()
        end
        dies:signal "KILL"
        dies:wait()
        local since = nightshift.clock()
        assert.equal(2, assert(handle:queue "q":claim { wait = 30 }, "no job came back").run)
        local took = nightshift.clock() - since
        assert.is_true(took < proc.limit(9), took) -- by the round: 10 s
        stopped:signal "CONT"
      end)
    end
  end
end)
