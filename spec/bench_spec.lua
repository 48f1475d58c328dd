-- The bench still measures what the tables are: a very small one, whose figures
-- say nothing.

local proc = require "spec.support.proc"

it("the bench prints a rate for every question", function()
  local p = proc.start { "make", "--no-print-directory", "bench", "ARGS=--rounds 1 --scale 0.01" }
  local status = p:wait(120)
  assert.equal(0, status, p:transcript())
  local out = p:text()
  for _, line in ipairs {
    "push_many, 1000 a time, C", "push, one a time, Lua", "claim %+ ack, batch 1000, C", "work, 8 workers",
  } do
    assert.matches("| " .. line .. "[^|]*| +%d+ | +%d+ | [%d.]+ |", out)
  end
end)
