--- A wall clock that can be set for single processes; the monotonic one stays.
-- See spec/c/meddle.c.
--
--     local its = clock.new()
--     local server = its.shown(db.server)  -- or: proc.start { …, env = its.env }
--     its.off(-86400)                      -- a day back, now

local nst = require "nst"
local proc = require "spec.support.proc"

local clock = {}

--- A clock, right at first.
function clock.new()
  local path = fixture.file("clock", ("i8"):pack(0))
  local self = { env = { LD_PRELOAD = proc.build .. "/meddle.so", MEDDLE_CLOCK = path } }

  --- Sets it off by so many seconds, for all who have it.
  function self.off(seconds)
    local file <close> = assert(io.open(path, "r+b"))
    file:write(("i8"):pack(seconds))
  end

  --- Calls a function whose processes have it, and gives what that returned.
  function self.shown(fn, ...)
    for name, value in pairs(self.env) do nst.setenv(name, value) end
    local _ <close> = setmetatable({}, { __close = function()
      for name in pairs(self.env) do nst.setenv(name, nil) end
    end })
    return (fn(...))
  end

  return self
end

return clock
