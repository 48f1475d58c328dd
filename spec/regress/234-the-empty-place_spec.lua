-- A program that cannot read /proc wrote an empty place, which is that of all such machines: a
-- process of another one that has no such number here counted as gone, and its jobs were given
-- to others while it lived.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local CLAIMER = [[
  local handle = assert(require "nightshift".open(%q))
  assert(handle:queue "q":claim())
  print "claimed"
  require "nst".sleep(60)]]

it("a place has the name of the machine where there is no /proc", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  assert(handle:queue "q":push("job", 1))
  local alone = { "unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh" }
  if proc.run { "unshare", "--mount", "sh", "-c", "mount -t tmpfs none /proc", timeout = 60 } ~= 0 then
    pending "needs the right to mount"
    return
  end
  for i, word in ipairs { proc.lua, "-e", CLAIMER:format(url) } do alone[6 + i] = word end
  local claimer = proc.start(alone)
  claimer:wait_line "claimed"
  local machine = io.popen "hostname":read "l"
  assert.equal(machine, db.sql("SELECT TRIM(boot_id) FROM nightshift_holder", name))
end)
