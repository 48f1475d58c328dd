-- A command that only reads made a private database where it found none, 115 MB of it,
-- and said that there was no such job. `nightshift --help` listed its commands in another
-- order now and then. HUP, sent while `nightshift --url … work` started, ended it.

local nst = require "nst"
local proc = require "spec.support.proc"

local url
with_database(function(_, _, address) url = address end)

local function there(folder)
  local home <close> = io.open(folder .. "/.nightshift")
  return home ~= nil
end

describe("a command that looks at jobs where there is no database", function()
  for _, args in ipairs { { "status" }, { "show", "5" }, { "jobs" }, { "why", "5" }, { "cancel", "5" },
    { "doctor" }, { "prune" }, { "pause", "q" } } do
    it("says where it looked and how to make one: " .. args[1], function()
      local folder = fixture.dir()
      local status, _, err = proc.nightshift(args, nil, { cwd = folder })
      assert.equal(78, status)
      assert.matches("--url.*%$NIGHTSHIFT_URL.*" .. folder:gsub("%p", "%%%0") .. ".*nightshift init", err)
      assert.is_false(there(folder))
    end)
  end
end)

describe("nightshift --help", function()
  it("is the same each time", function()
    local _, first = proc.nightshift { "--help" }
    for _ = 1, 8 do assert.equal(first, (select(2, proc.nightshift { "--help" }))) end
  end)
end)

-- What /proc says of HUP in process 'pid': "waits", "heard" or "ends it".
local function hup(pid)
  local file <close> = io.open(("/proc/%d/status"):format(pid))
  local text = file and file:read "a" or ""
  local function has(field) return tonumber(text:match(field .. ":%s*(%x+)") or "0", 16) & 1 == 1 end
  return has "SigBlk" and "waits" or has "SigCgt" and "heard" or "ends it"
end

describe("a host that is being started with an option before its command", function()
  it("has HUP wait until it listens", function()
    local file = fixture.file("jobs.lua", "return { noop = function() end }")
    local waited = 0
    for _ = 1, 10 do
      local h = proc.start { proc.program, "--url", url, "work", file, "--workers", "1" }
      local stop = nst.clock() + 10
      while hup(h.pid) == "ends it" and nst.clock() < stop do end
      waited = waited + (hup(h.pid) == "waits" and 1 or 0)
      h:signal "HUP"
      h:wait_line("event=host.ready", 20)
      h:signal "TERM"
      assert.equal(0, h:wait(20))
      if waited > 1 then break end
    end
    assert.is_true(waited > 0)
  end)
end)
