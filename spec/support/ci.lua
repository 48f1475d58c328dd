-- Output of busted for people and for CI: the plain dots, a line per slow test and per slow
-- file. Then each failure with its first lines once more (CI keeps the end of long output). The
-- last line is "N passed, N failed, N skipped". Nothing run is a failure. With
-- NIGHTSHIFT_TIMES=FILE each spec file's seconds are added to that file: the longest come first in
-- spec/support/shards.sh. The two figures behind them are the processor's seconds of the specs with
-- their processes, and of the servers that all share. Tests that take more than one such second
-- have lines, too.

local SLOW, SLOW_FILE = 5, 10 -- seconds
local DEAR = 1 -- seconds of the processor
local LINES = 12 -- of a failure's message

-- "failed: NAME" and the first lines of its message, each behind "failed|".
local function told(failure)
  local message = failure.message
  if type(message) ~= "string" then message = require("pl.pretty").write(message) end
  local out = { ("failed: %s (%s:%s)"):format(failure.name, failure.trace and failure.trace.short_src or "?",
    failure.trace and failure.trace.currentline or "?") }
  for line in message:gmatch "[^\n]+" do
    if #out > LINES then break end
    out[#out + 1] = "failed| " .. line
  end
  return table.concat(out, "\n")
end

-- Seconds of the processor that a process and its children that have ended took.
local function processor(pid)
  local file <close> = io.open(("/proc/%s/stat"):format(pid))
  local sum = 0
  local fields = file and file:read("a"):match "^.*%) (.*)" or ""
  local n = 0
  for field in fields:gmatch "%S+" do
    n = n + 1
    if n >= 12 and n <= 15 then sum = sum + tonumber(field) / 100 end -- utime, stime, of children
  end
  return sum
end

return function(options)
  local busted = require "busted"
  local handler = require "busted.outputHandlers.plainTerminal"(options)
  local slow = {}
  local times, todo = os.getenv "NIGHTSHIFT_TIMES", os.getenv "NIGHTSHIFT_TODO"

  -- Several processes have the same list of files. Each file stands in a folder, which only one
  -- process takes it from; the other ones run nothing of it.
  if todo then
    busted.subscribe({ "file", "start" }, function(file)
      local path = todo .. "/" .. file.name:gsub("^%./", ""):gsub("/", "+")
      if not os.remove(path) then
        file.run, file.taken = setmetatable({}, { __index = file.run, __call = function() end }), true
      end
      return nil, true
    end)
  end

  local begun = {} -- when a file and a test began
  local function spent()
    local db = require "spec.support.db"
    local sum = 0
    for _, server in pairs { db.main, db.extra } do
      if server.process and not server.process:ended() then sum = sum + processor(server.process.pid) end
    end
    return { processor "self", sum }
  end
  local function begins(what)
    busted.subscribe({ what, "start" }, function()
      begun[what] = spent()
      return nil, true
    end)
  end
  local function write_times(what, seconds, name)
    local out <close> = assert(io.open(times, "a"))
    local now, was = spent(), begun[what]
    if what == "test" and now[1] + now[2] - was[1] - was[2] < DEAR then return end
    out:write(("%7.1f %7.1f %7.1f %s\n"):format(seconds, now[1] - was[1], now[2] - was[2], name))
  end
  if times then
    begins "file"
    begins "test"
  end

  busted.subscribe({ "test", "end" }, function(test)
    if test.duration and test.duration > SLOW then
      slow[#slow + 1] = ("%6.1f s  %s"):format(test.duration, handler.getFullName(test))
    end
    if times and test.duration then write_times("test", test.duration, "   " .. handler.getFullName(test)) end
    return nil, true
  end)

  busted.subscribe({ "file", "end" }, function(file)
    if file.duration and file.duration > SLOW_FILE then
      slow[#slow + 1] = ("%6.1f s  %s"):format(file.duration, file.name)
    end
    if times and file.duration and not file.taken then write_times("file", file.duration, file.name) end
    return nil, true
  end)

  busted.subscribe({ "exit" }, function()
    local failed = handler.failuresCount + handler.errorsCount
    if #slow > 0 then io.write("\nslow:\n", table.concat(slow, "\n"), "\n") end
    for _, list in ipairs { handler.failures, handler.errors } do
      for _, failure in ipairs(list) do io.write(told(failure), "\n") end
    end
    io.write(("%d passed, %d failed, %d skipped\n"):format(handler.successesCount, failed, handler.pendingsCount))
    io.flush()
    if handler.successesCount + failed == 0 then os.exit(1, true) end
    return nil, true
  end, { priority = 100 })

  return handler
end
