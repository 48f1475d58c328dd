--- Reads a host's log as a serial console does: 100 KB a second. usage: reader.lua PIPE;
-- writes to its standard output what it has read, line by line, and ends with the log.

local nst = require "nst"

local RATE <const> = 100 * 1024 -- bytes a second
local STEP <const> = 0.1 -- seconds between two looks

local n = 0
for line in assert(io.open(arg[1])):lines "L" do
  io.stdout:write(line)
  io.stdout:flush()
  n = n + #line
  if n > RATE * STEP then
    n = 0
    nst.sleep(STEP)
  end
end
