-- The host has the URL with its password in memory, so it leaves no core behind,
-- however generous the limits of whoever starts it are.

local db = require "spec.support.db"
local proc = require "spec.support.proc"

local function read(path)
  local file <close> = assert(io.open(path, "rb"))
  return file:read "a"
end

describe("a core dump", function()
  --- Soft and hard, in bytes. Of 1 the kernel makes nothing, see process/privileges.c.
  local function limits(pid)
    local soft, hard = read("/proc/" .. pid .. "/limits"):match "Max core file size%s+(%S+)%s+(%S+)"
    return { tonumber(soft), tonumber(hard) }
  end

  local function started(limit)
    local folder = fixture.dir()
    local p = proc.start { "sh", "-c", "ulimit -c " .. limit .. '; exec "$@"', "sh", proc.program, "work",
      fixture.file("jobs.lua", "return {}"), cwd = folder, env = { NIGHTSHIFT_URL = (db.fresh()) } }
    p:wait_line "host.ready"
    return p, folder
  end

  it("of the host is not written", function()
    local p, folder = started "$(ulimit -H -c)"
    assert.same({ 1, 1 }, limits(p.pid))
    assert(os.execute("kill -SEGV " .. p.pid))
    p:wait()
    assert.is_nil(io.popen("ls " .. folder):read "l")
  end)

  it("stays away where it was", function()
    local limit = limits(started("0").pid)
    assert.is_true(limit[1] <= 1 and limit[2] <= 1)
  end)
end)
