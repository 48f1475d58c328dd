-- Builds and runs the crash sweep: killed at every store of every change.

local proc = require "spec.support.proc"

it("a change of the dict is done or not done, wherever its process is killed", function()
  local program = proc.build .. "/shared-units"
  local folder = proc.build:gsub("^" .. proc.root:gsub("%p", "%%%0") .. "/", "")
  local status, out, err = proc.run { "/usr/bin/env", "make", "-s", "-f", "Makefile", "-f", "spec/shared/units.mk",
    "O=" .. folder, folder .. "/shared-units", timeout = 300 }
  assert.equal(0, status, out .. err)
  status, out, err = proc.run { program, timeout = 120 }
  assert.equal(0, status, out .. err)
  for _, group in ipairs { "sizes", "crashes", "crashes in lock and unlock", "the table of locks",
    "a latch that many want" } do
    assert.matches(group .. "\n", out, 1, true)
  end
end)
