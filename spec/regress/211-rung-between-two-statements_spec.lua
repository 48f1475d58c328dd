-- A ring from within a transaction, as from a trigger, that met a listener between
-- two of its statements ended neither; the look that followed could not see the job
-- yet. It slept on: 4 to 10 s.

local db = require "spec.support.db"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proxy"

local handle, q, url, name

with_database(function(...) handle, q, url, name = ... end)

local WAITER = [[
  local db = assert(require "nightshift".open(%q))
  print "waiting"
  io.flush()
  assert(assert(db:queue "q":claim{ wait = 60 }):ack())
  print "woken"]]

local function count(from) return tonumber(db.sql("SELECT COUNT(*) FROM " .. from, name)) end
local function asleep()
  return count "information_schema.processlist WHERE db = DATABASE() AND state = 'User lock'" == 1
end

it("a ring that comes before its commit, between two statements of a listener, is found soon", function()
  assert(q:push "first")
  assert(q:claim():ack()) -- the queue has its lanes
  local slow = proxy.start(db.shared())
  local waiter = proc.start { proc.lua, "-e", WAITER:format(slow:url(url)) }
  waiter:wait_line "waiting"
  eventually(asleep)
  slow:tell "delay 800" -- each reply, from now on: also that to its being entered again
  handle:execute "CALL nightshift_ring()"
  eventually(function() return db.sleepers(name) == 0 end)
  eventually(function() return db.sleepers(name) == 1 end)
  assert(handle:transaction(function(tx)
    assert(tx:execute "CALL nightshift_push('q', 'second', '1', '')")
    assert(tx:execute "CALL nightshift_ring()")
    slow:tell "delay 0"
    eventually(asleep)
    return true
  end))
  waiter:wait_line("woken", 9) -- not found: 10 s
end)
