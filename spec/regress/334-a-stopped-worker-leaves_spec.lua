-- A worker that was stopped while it was idle, and then told to leave, as at a reload of the
-- scripts, kept its place for ever: nobody waited for it, as it had no job. Its host ran one
-- job less at once from then on, and kept the scripts of before.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

describe("a worker that is stopped while it is idle", function()
  it("gives its place to another when it does not leave", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local go = fixture.dir() .. "/go"
    local h = host.start(url, host.holding(go), { "--workers", "2" })
    local stopped = host.member(h.pid)
    nst.kill(stopped, "STOP")
    h:signal "HUP"
    h:wait_line("event=reload.done", 20)
    for _ = 1, 2 do assert(handle:queue("q"):push "hold") end
    eventually(function()
      local _, count = h:text():gsub("holds\n", "")
      return count == 2
    end, 60)
    assert(io.open(go, "w")):close()
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
