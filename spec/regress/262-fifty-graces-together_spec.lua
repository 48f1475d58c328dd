-- A machine that dies takes all its holders with it. Their graces, a second each, have to
-- run together for all of their jobs to be back within two.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local HOLDERS = [[
  local nightshift = require "nightshift"
  local handles = {}
  for i = 1, 50 do
    handles[i] = assert(nightshift.open(%q))
    assert(handles[i]:queue "q":claim())
  end
  print "hold"
  io.flush()
  os.execute "sleep 60"]]

it("fifty holders of another machine that die together are missed together", function()
  local url, name = db.fresh()
  eventually(function()
    return tonumber((db.sql "SHOW GLOBAL STATUS LIKE 'Uptime'":match "%d+$")) >= 15
  end, 20)
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  for i = 1, 50 do assert(q:push("a", i)) end
  local p = proc.start { proc.lua, "-e", HOLDERS:format(url) }
  p:wait_line("hold", 20)
  assert.is_nil(q:claim())
  db.sql("UPDATE nightshift_holder SET boot_id = 'elsewhere'", name)
  local since = nightshift.clock()
  p:signal "KILL"
  local back = 0
  while back < 50 do
    local jobs = assert(q:claim_many(50, { wait = 20 }))
    assert.is_true(#jobs > 0, "no more came back")
    back = back + #jobs
  end
  local took = nightshift.clock() - since
  assert.is_true(took < proc.limit(9), took) -- by the round 10 s, one by one 50
end)
