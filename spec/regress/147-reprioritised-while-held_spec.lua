-- Another priority took the job's row out of scheduled only if nobody held it,
-- and then put in a new one: with the old one still there that was DUPLICATE.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

it("a job due later gets its priority though somebody holds its row for a moment", function()
  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local id = assert(q:push("job", 1, { delay = 3600 }))
  local path = fixture.file("hold.lua", [[
    local h = assert(require "nightshift".open(arg[1]))
    h:transaction(function(tx)
      assert(tx:execute "SELECT * FROM nightshift_scheduled FOR UPDATE")
      print "holds"
      io.stdout:flush()
      tx:execute "SELECT SLEEP(0.5)"
    end)
  ]])
  local p = proc.start { proc.lua, path, url }
  p:wait_line "holds"
  assert(handle:reprioritise(id, 7))
  assert.equal(0, p:wait())
  assert.same({ 7, "scheduled" }, { handle:job(id).priority, handle:job(id).state })
  assert(handle:run_now(id))
  assert.equal(7, assert(q:claim()).priority)
end)
