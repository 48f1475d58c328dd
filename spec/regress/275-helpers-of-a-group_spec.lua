-- No program that a handler started could gain rights, and there was no way to allow it:
-- sendmail, whose helper is of a group of its own, did not work in handlers.

local host = require "spec.support.host"

local url, handle, q
with_database(function(...) handle, q, url = ... end)

local SCRIPT = [[return {
  status = function() return io.open "/proc/self/status":read "a" end,
  helper = function(job) return io.popen(job.payload):read "l" end,
}]]

local function ask(name, payload)
  local id = assert(q:push(name, payload))
  return eventually(function() return handle:job(id).result end, 20)
end

describe("--allow-setuid", function()
  it("lets programs that handlers start gain rights", function()
    local h = host.start(url, SCRIPT, { "--allow-setuid" })
    assert.matches("NoNewPrivs:\t0", ask "status", 1, true)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end)

  if io.popen "id -u":read "l" ~= "0" then return pending "wants root" end

  it("does so for those of another group, when workers run as somebody else", function()
    local file = fixture.file("jobs.lua", SCRIPT)
    local folder = file:match "^(.*)/"
    assert(os.execute(("chmod 755 '%s' && chmod 644 '%s' && cp /usr/bin/id '%s/helper'"
      .. " && chgrp mail '%s/helper' && chmod 2755 '%s/helper'"):format(folder, file, folder, folder, folder)))
    for group, args in pairs { mail = { "--user", "nobody", "--allow-setuid" }, nogroup = { "--user", "nobody" } } do
      local h = host.start(url, file, args)
      assert.equal(group, ask("helper", folder .. "/helper -gn"))
      h:signal "TERM"
      assert.equal(0, h:wait(20))
    end
  end)
end)
