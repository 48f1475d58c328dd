-- Whoever looked after dead holders deleted the rows of the long dead with a DELETE that
-- locked all holders one after the other, and so waited for those that were in the middle
-- of a claim, which keeps its holder's row locked until its commit.

local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local handle, q, url
with_database(function(...) handle, q, url = ... end)

local function ask(sql, ...) return assert(handle:execute(sql, ...))[1] end

local function waits() return tonumber(ask("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'").Value) end

local CLAIM = [[
  local db = assert(require "nightshift".open(arg[1]))
  assert(db:queue("q"):claim())
  print "claimed"
  require "nst".sleep(60)]]

--- Adds one who has been dead for long.
local function add_dead(id)
  assert(handle:execute([[INSERT INTO nightshift_holder
    (id, kind, host, pid, boot_id, connection, started, beat, version, dead)
    VALUES (?, 'host', 'h', 1, '', 1, 1, 1, '', 1)]], id))
end

it("the long dead are buried while the living claim", function()
  assert(q:push_many { { "a" }, { "b" } })
  local living <close> = assert(nightshift.open(url))
  assert(living:queue "q":claim())
  local id = ask("SELECT MAX(id) AS id FROM nightshift_holder").id
  local mortal = proc.start { proc.lua, fixture.file("claim.lua", CLAIM), url }
  mortal:wait_line "claimed"
  local locker <close> = assert(nightshift.open(url))
  local before = waits()
  assert(locker:transaction(function(tx)
    assert.equal(1, assert(tx:execute("UPDATE nightshift_holder SET cycle = cycle + 1 WHERE id = ?", id)).affected)
    add_dead(1)
    mortal:signal "KILL"
    mortal:wait(10)
    eventually(function()
      assert(handle:rescue())
      return ask("SELECT COUNT(*) AS n FROM nightshift_holder WHERE id = 1").n == 0
    end)
    return true
  end))
  assert.equal(before, waits())
end)
