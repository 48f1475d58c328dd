-- A worker that was stopped while it was idle kept the job that was sent to
-- it, for ever: the job's timeout runs from its start.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

describe("a worker that is stopped while it is idle", function()
  it("does not keep the job that is sent to it", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local h = host.start(url, "return { noop = function() end }", { "--workers", "1" })
    nst.kill(host.member(h.pid), "STOP")
    local id = handle:queue("q"):push "noop"
    h:wait_line("event=worker.unresponsive", 20)
    eventually(function() return handle:job(id).state == "done" end, 20)
    assert.equal(0, handle:job(id).crashes)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
