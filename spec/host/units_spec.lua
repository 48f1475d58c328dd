-- Runs the C checks of frames, rings, slots, pacing, batches, names, lines, log lines and looks.

local proc = require "spec.support.proc"

it("the host's pure parts hold", function()
  local program = proc.build .. "/host-units"
  local folder = proc.build:gsub("^" .. proc.root:gsub("%p", "%%%0") .. "/", "")
  local status, out, err = proc.run { "/usr/bin/env", "make", "-s", "-f", "Makefile", "-f", "spec/host/units.mk",
    "O=" .. folder, folder .. "/host-units", timeout = 300 }
  assert.equal(0, status, out .. err)
  status, out, err = proc.run { program, timeout = 120 }
  assert.equal(0, status, out .. err)
  for _, group in ipairs {
    "frames", "rings", "bell", "slots", "limits", "pacing",
    "storms", "batches", "spilling", "names", "lines", "log lines", "utf8", "windows", "patience",
    "single",
  } do
    assert.matches(group .. "\n", out, 1, true)
  end
end)
