-- What is sent behind a lease runs even when the lease was refused. Had that been a deadlock,
-- which ends the transaction, the number of the cycle was committed by itself, and a cut of
-- the next try's COMMIT was taken for one that had worked: its verdicts were lost.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local CLAIMER = [[
  local handle = assert(require "nightshift".open(%q))
  print("took", assert(handle:queue("q"):claim { wait = 30 }).id)]]

local function waits(how_many)
  return function()
    return db.sql "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'" == how_many
  end
end

it("the number of a cycle whose lease met a deadlock is not written", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local other <close> = assert(nightshift.open(url))
  local id = assert(handle:queue("q"):push "job")
  -- the first lease meets a deadlock, the second waits until it has been looked
  db.sql([[CREATE TABLE weight (n INT);
    CREATE TABLE bait (n INT PRIMARY KEY);
    INSERT INTO bait VALUES (1);
    DELIMITER $$
    CREATE TRIGGER planted BEFORE INSERT ON nightshift_lease FOR EACH ROW
      BEGIN
        SET @tries = COALESCE(@tries, 0) + 1;
        IF @tries = 1 THEN
          UPDATE bait SET n = 2;
        ELSE
          SET @got = GET_LOCK('279', 20);
        END IF;
      END$$]], name)
  local gate <close> = assert(nightshift.open(url))
  assert(gate:execute "DO GET_LOCK('279', 0)")
  local claimer
  assert(other:transaction(function(tx)
    assert(tx:execute "UPDATE bait SET n = 3")
    assert(tx:execute "INSERT INTO weight SELECT seq FROM seq_1_to_2000") -- the lighter one gives way
    claimer = proc.start { proc.lua, "-e", CLAIMER:format(url) }
    eventually(waits "1")
    assert(tx:execute("DELETE FROM nightshift_ready WHERE job_id = ?", id + 1000)) -- a scan, that meets its row
    return nil, "undone"
  end) == nil)
  eventually(function()
    return db.sql [[SELECT COUNT(*) FROM information_schema.processlist
      WHERE state = 'User lock' AND info LIKE '%GET_LOCK(''279''%']] == "1"
  end)
  assert.equal("0", db.sql("SELECT cycle FROM nightshift_holder", name))
  assert(gate:execute "DO RELEASE_LOCK('279')")
  claimer:wait_line("took%s+" .. id)
end)
