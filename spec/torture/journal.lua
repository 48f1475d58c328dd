--- Append-only files that many processes write at once: attempts, acknowledgements, runs. A line
-- is one write with O_APPEND, so lines never mix and a writer that is killed leaves whole
-- lines. Words are separated by blanks and hold none; the second is the monotonic time.
--
-- Files: `pushes`, `runs`, `verbs`, `faults`; see the writers for their lines.

local nightshift = require "nightshift"

local journal = {}

--- Opens a file for appending.
-- @tparam string folder
-- @tparam string name
-- @treturn function write(kind, ...), which adds a line
function journal.writer(folder, name)
  local file = assert(io.open(folder .. "/" .. name, "ab"))
  file:setvbuf "no" -- with a buffer a long line is two writes
  return function(kind, ...)
    local words = table.pack(kind, ("%.6f"):format(nightshift.clock()), ...)
    for i = 1, words.n do words[i] = tostring(words[i]) end
    assert(file:write(table.concat(words, " ") .. "\n"))
  end
end

--- The lines of a file as lists of words; the time is a number.
-- @treturn function iterator
function journal.lines(folder, name)
  local file = io.open(folder .. "/" .. name, "rb")
  if not file then return function() end end
  return function()
    local line = file:read "l"
    if not line then
      file:close()
      return nil
    end
    local words = {}
    for word in line:gmatch "%S+" do words[#words + 1] = word end
    words[2] = tonumber(words[2])
    return words
  end
end

return journal
