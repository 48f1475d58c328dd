-- A server whose clock was set back behind its start had been up for less than
-- no time: whoever died on another machine was waited for as long as the step.

local clock = require "spec.support.clock"
local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

describe("a server whose clock is set back behind its start", function()
  it("lets those be rescued who die elsewhere", function()
    local its = clock.new()
    local server = its.shown(db.server)
    local url, name = server:fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push "a")
    local p = proc.start { proc.lua, "-e", ([[
      local db = require "nightshift".open(%q)
      local job = db:queue "q":claim()
      print("holds " .. job.id)
      io.flush()
      os.execute "sleep 60"]]):format(url) }
    p:wait_line "^holds"
    server:sql("UPDATE nightshift_holder SET boot_id = 'elsewhere'", name)
    its.off(-86400)
    p:signal "KILL"
    assert.equal("a", assert(q:claim { wait = 40 }).name)
  end)
end)
