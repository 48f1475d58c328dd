-- Builds and runs the checks in C: frames, rings, slots, pacing, batches, names, lines, log
-- lines and looks of the host; and the crash sweep of the shared dict, whose process is killed
-- at every store of every change.

local proc = require "spec.support.proc"

-- Builds a program of mk/test.mk and runs it; it says each group that it has checked.
local function assert_checks(name, groups)
  local folder = proc.build:gsub("^" .. proc.root:gsub("%p", "%%%0") .. "/", "")
  local status, out, err = proc.run { "/usr/bin/env", "make", "-s", "O=" .. folder, folder .. "/" .. name,
    timeout = 300 }
  assert.equal(0, status, out .. err)
  status, out, err = proc.run { proc.build .. "/" .. name, timeout = 120 }
  assert.equal(0, status, out .. err)
  for _, group in ipairs(groups) do assert.matches(group .. "\n", out, 1, true) end
end

it("the host's pure parts hold", function()
  assert_checks("host-units", {
    "frames", "rings", "bell", "slots", "limits", "pacing", "storms", "batches", "spilling", "names",
    "lines", "log lines", "utf8", "windows", "patience", "single",
  })
end)

it("a change of the dict is done or not done, wherever its process is killed", function()
  assert_checks("shared-units", {
    "sizes", "crashes", "crashes in lock and unlock", "the table of locks", "a latch that many want",
  })
end)
