-- Gets in the way of one transaction of somebody else. A trigger makes that one
-- lock two rows of the table `tangle`, first 2, then 1; we hold 1.
--
-- usage: saboteur.lua URL deadlock|wait
--   deadlock  as soon as somebody waits for us we ask for what they hold. We
--             have changed more rows, so it is their transaction that ends
--   wait      we stay until somebody has given up waiting
-- Prints "armed", then "sprung" when we have let go.

local nightshift = require "nightshift"
local nst = require "nst"

local db = assert(nightshift.open(arg[1]))
local watch = assert(nightshift.open(arg[1]))

local function waiter()
  local rows = assert(watch:execute [[SELECT trx_id FROM information_schema.INNODB_TRX t
    JOIN information_schema.PROCESSLIST p ON p.id = t.trx_mysql_thread_id
    WHERE trx_state = 'LOCK WAIT' AND p.db = DATABASE()]])
  return rows[1] and rows[1].trx_id
end

-- InnoDB shows the same list again to whoever asks within a tenth of a second.
local function wait_for(fn)
  local value = fn()
  while not value do
    nst.sleep(0.12)
    value = fn()
  end
  return value
end

pcall(db.transaction, db, function(tx)
  assert(tx:execute "INSERT INTO junk SELECT seq FROM seq_1_to_500")
  assert(tx:execute "UPDATE tangle SET n = n + 1 WHERE id = 1")
  io.write "armed\n"
  io.flush()
  local who = wait_for(waiter)
  if arg[2] == "deadlock" then
    assert(tx:execute "UPDATE tangle SET n = n + 1 WHERE id = 2")
  else
    wait_for(function() return waiter() ~= who end)
  end
  error "nothing of this is to stay"
end)
print "sprung"
