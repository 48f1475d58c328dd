-- A host that is to end while its server is away used to crash: what it did after a
-- reconnect that was given up (the look for claims that its memory has lost) took the
-- connection for granted. And its upkeep's thread, which was about to try to connect
-- again, was left alone with memory that was freed.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nst = require "nst"

local HOSTS = 10

describe("hosts that have lost their server for seconds", function()
  it("end well", function()
    local server = db.server()
    local url = server:fresh()
    local hosts = {}
    for i = 1, HOSTS do hosts[i] = host.start(url, "return {}", { "--workers", "1" }) end
    server:kill() -- the last ones are about to write what they serve
    for _, h in ipairs(hosts) do h:wait_line("db.lost", 20) end
    nst.sleep(2.5) -- from now on seconds lie between two tries
    for _, h in ipairs(hosts) do
      h:signal "TERM"
      assert.equal(0, h:wait(60), h:transcript())
    end
  end)
end)
