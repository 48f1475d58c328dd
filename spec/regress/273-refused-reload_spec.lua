-- A reload that came while too many generations of scripts were alive was refused and
-- forgotten: once the old ones had gone the host still ran the script before the last.
-- Later, an event at the moment of the next try stopped the host's timer, and with it
-- all timeouts and stops of jobs.

local host = require "spec.support.host"

local url, handle, q
with_database(function(...) handle, q, url = ... end)

local function script(version)
  return ([[return { long = function() os.execute "sleep 600" end, version = function() return %d end }]])
    :format(version)
end

local function rewrite(h, version)
  local file <close> = assert(io.open(h.script, "w"))
  file:write(script(version))
end

describe("a reload while 32 generations are alive", function()
  it("is done when one of them has gone", function()
    local h = host.start(url, script(0), { "--workers", "33" })
    local version, ids = 0, {}
    repeat
      ids[#ids + 1] = assert(q:push "long")
      eventually(function()
        return handle:execute("SELECT COUNT(*) AS n FROM nightshift_running")[1].n == #ids
      end, 20)
      version = version + 1
      rewrite(h, version)
      h:signal "HUP"
      eventually(function()
        local done = #host.events(h:transcript(), "reload.done")
        return done == version or h:transcript():find "event=reload.refused"
      end, 20)
    until h:transcript():find "event=reload.refused"
    eventually(function()
      return (assert(handle:stats()).holders[1].load_error or ""):find "too many generations"
    end, 20)
    assert(handle:cancel(ids[1]))
    eventually(function()
      local id = assert(q:push "version")
      return eventually(function() return handle:job(id).result end, 20) == version
    end, 40)
    assert.equal(1, #host.events(h:transcript(), "reload.refused"))
    eventually(function() return assert(handle:stats()).holders[1].load_error == nil end, 20)
    h:signal "QUIT"
    h:wait(20)
  end)
end)
