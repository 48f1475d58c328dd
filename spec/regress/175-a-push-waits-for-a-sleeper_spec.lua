-- Whoever waited for work looked at the ready rows with locks and slept in one statement,
-- and so kept what the look had locked for as long as it slept. When purge removed such a
-- row the server made its lock one on the gap, and nobody could push there: pushes waited
-- for sleepers, who only woke for a push. Seen once in some runs of 64 claimers beside
-- other work.

local crew = require "spec.support.crew"
local lab = require "spec.support.lab"

local db
lab.handles(1, function(handle) db = handle end)
after_each(crew.clean)

local function rows(sql) return assert(db:execute(sql)) end

it("whoever sleeps for want of work keeps no lock", function()
  local q = db:queue "q"
  local reader <close> = lab.open() -- purge removes nothing: the sleeper's look goes over deleted rows
  for i = 1, 20 do assert(q:push("noop", i)) end
  assert(reader:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
  assert(reader._handle:begin())
  assert(reader:execute "SELECT 1 FROM nightshift_meta")
  for _ = 1, 20 do assert(assert(q:claim()):ack()) end
  crew.fork(2, function()
    local own <close> = lab.open()
    assert(own:queue "q":claim { wait = 60 }):ack()
  end)
  eventually(function()
    return #rows "SELECT 1 FROM information_schema.PROCESSLIST WHERE db = DATABASE() AND STATE = 'User lock'" == 2
  end)
  assert.same({}, rows [[SELECT p.ID AS id, t.trx_lock_structs AS locks
    FROM information_schema.PROCESSLIST p
    JOIN information_schema.INNODB_TRX t ON t.trx_mysql_thread_id = p.ID
    WHERE p.DB = DATABASE() AND p.STATE = 'User lock' AND t.trx_lock_structs > 0]])
  for i = 1, 2 do assert(q:push("noop", i)) end
  eventually(function() return rows "SELECT COUNT(*) AS n FROM nightshift_finished"[1].n == 22 end)
end)
