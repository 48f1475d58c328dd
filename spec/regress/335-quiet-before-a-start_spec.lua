-- A host that was told to be quiet took back what its workers had not started, and forgot
-- those that had nothing else: they got no job any more when it went on.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

describe("a worker whose jobs were taken back before it started one", function()
  it("gets jobs again when its host goes on", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local h = host.start(url, "return { noop = function() end }", { "--workers", "1" })
    local worker = host.member(h.pid)
    nst.kill(worker, "STOP")
    local id = assert(handle:queue("q"):push "noop")
    eventually(function()
      h:signal "USR1"
      local _, log = h:text()
      return log:find "event=dump.host [^\n]*outstanding=1 backlog=0"
    end)
    h:signal "TSTP"
    h:wait_line("event=host.quiet", 20)
    eventually(function() return handle:job(id).state == "ready" end)
    nst.kill(worker, "CONT")
    h:signal "CONT"
    eventually(function() return handle:job(id).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
