-- Output of busted for people and for CI: the plain dots, a line per slow
-- test and per slow file, and as the last line "N passed, N failed, N skipped". Nothing run is a
-- failure.

local SLOW, SLOW_FILE = 5, 10 -- seconds

return function(options)
  local busted = require "busted"
  local handler = require "busted.outputHandlers.plainTerminal"(options)
  local slow = {}

  busted.subscribe({ "test", "end" }, function(test)
    if test.duration and test.duration > SLOW then
      slow[#slow + 1] = ("%6.1f s  %s"):format(test.duration, handler.getFullName(test))
    end
    return nil, true
  end)

  busted.subscribe({ "file", "end" }, function(file)
    if file.duration and file.duration > SLOW_FILE then
      slow[#slow + 1] = ("%6.1f s  %s"):format(file.duration, file.name)
    end
    return nil, true
  end)

  busted.subscribe({ "exit" }, function()
    local failed = handler.failuresCount + handler.errorsCount
    if #slow > 0 then io.write("\nslow:\n", table.concat(slow, "\n"), "\n") end
    io.write(("%d passed, %d failed, %d skipped\n"):format(handler.successesCount, failed, handler.pendingsCount))
    io.flush()
    if handler.successesCount + failed == 0 then os.exit(1, true) end
    return nil, true
  end, { priority = 100 })

  return handler
end
