--- How results look: aligned tables, times, JSON.
--
-- Plain text without colour or cursor movement, the same on a terminal and in
-- a pipe, so NO_COLOR has nothing to switch off. Text that came from jobs is
-- shown with its control characters escaped.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local units = require "nightshift.units"

local output = {}

--- Writes to stdout; a full disk or a closed pipe ends the command.
function output.write(...)
  local ok, message = io.write(...)
  if not ok then context.fail(context.FAILURE, "cannot write the output: %s", message) end
end

--- Writes one line.
function output.line(text)
  output.write(text or "", "\n")
end

local function escape(char)
  return char == "\0" and "\\0" or ("\\x%02x"):format(char:byte())
end

local function escape_rune(char)
  return ("\\u{%x}"):format(utf8.codepoint(char))
end

-- Characters that a terminal obeys or swallows: C1 controls, marks that turn the direction,
-- separators, tags, and characters without width.
local HIDDEN = {
  "\xC2[\x80-\x9F]", "\xD8\x9C", "\xE2\x80[\x8B-\x8F\xA8-\xAE]", "\xE2\x81[\xA0-\xAF]", "\xEF\xBB\xBF",
  "\xF3\xA0[\x80\x81][\x80-\xBF]",
}

--- Text of a job for a terminal: newline and tab stay; other controls and invisible characters
-- are escaped.
---@param text any
---@return string
function output.safe(text)
  local safe = tostring(text):gsub("[^%C\n\t]", escape)
  if not safe:find "[\x80-\xFF]" then return safe end
  for _, pattern in ipairs(HIDDEN) do safe = safe:gsub(pattern, escape_rune) end
  return safe
end

--- The first line, cut to `max` characters.
function output.one_line(text, max)
  local line = output.safe(text):match "[^\n]*":gsub("\t", " ")
  local length = utf8.len(line)
  if not length or length <= max then return line end
  return line:sub(1, utf8.offset(line, max) - 1) .. "…"
end

--- An instant as RFC 3339, UTC; "-" when absent.
function output.time(instant)
  return instant and units.instant(instant) or "-"
end

--- A span of seconds: see units.lua.
output.span = units.span

--- Prints one value as a line of JSON, its instants as texts.
function output.json(value)
  local text = assert(core.encode(units.texts(value), math.maxinteger))
  output.line(text)
end

--- Rows as a JSON list.
function output.json_list(rows)
  output.json(core.array(rows))
end

local function width(text)
  return utf8.len(text) or #text
end

local function pad(text, size, right)
  local space = (" "):rep(size - width(text))
  return right and space .. text or text .. space
end

local function cells_of(columns, row)
  local cells = {}
  for i, column in ipairs(columns) do
    local value = column.get(row)
    cells[i] = value == nil and "-" or output.safe(value)
  end
  return cells
end

--- Writes an aligned table. Columns: {title, get, right = true|nil}.
function output.table(columns, rows)
  local lines, sizes = { {} }, {}
  for i, column in ipairs(columns) do lines[1][i] = column.title end
  for _, row in ipairs(rows) do lines[#lines + 1] = cells_of(columns, row) end
  for i = 1, #columns do
    sizes[i] = 0
    for _, cells in ipairs(lines) do sizes[i] = math.max(sizes[i], width(cells[i])) end
  end
  for _, cells in ipairs(lines) do
    for i, column in ipairs(columns) do cells[i] = pad(cells[i], sizes[i], column.right) end
    output.line((table.concat(cells, "  "):gsub(" +$", "")))
  end
end

--- A column that shows a field; numbers stand right.
function output.column(title, key, right)
  return { title = title, get = function(row) return row[key] end, right = right }
end

-- ------------------------------------------------------------------ progress

local EVERY <const> = 0.2 -- s between two looks of a line of progress
local BAR <const> = 20 -- columns

local NONE <const> = { show = function() end, clear = function() end, finish = function() end }

--- "12,345,678"
function output.thousands(n)
  local text = tostring(n):reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (text:gsub("^,", ""))
end

--- A line on stderr about long work: how much is done, how fast, and how long the rest takes.
-- There is none unless stderr is a terminal that can clear a line.
---@param noun string "jobs"
---@param total integer|nil of what `show` gets behind the count, or of the count itself
---@return table progress show(count, part), clear() before something else is written, finish()
function output.progress(noun, total)
  local columns = core.terminal(2)
  if not columns or (os.getenv "TERM" or "dumb") == "dumb" then return NONE end
  local began, shown, visible = core.clock(), 0, false
  local self = {}
  function self.show(count, part)
    local now = core.clock()
    if now - shown < EVERY then return end
    shown = now
    local took, done = now - began, total and total > 0 and math.min(1, (part or count) / total)
    local text = ("%s %s  %s/s"):format(output.thousands(count), noun, output.thousands(count // took | 0))
    if done then
      local full = done * BAR // 1 | 0
      text = ("[%s%s] %3d%%  %s  %s left"):format(("#"):rep(full), (" "):rep(BAR - full), done * 100 // 1, text,
        done > 0 and output.span(took / done - took) or "-")
    end
    io.stderr:write("\r", text:sub(1, columns - 1), "\27[K")
    visible = true
  end
  function self.clear()
    if visible then io.stderr:write "\r\27[K" end
    visible = false
  end
  self.finish = self.clear
  return self
end

--- "1 job", "2 jobs".
function output.count(n, noun)
  return ("%d %s%s"):format(n, noun, n == 1 and "" or "s")
end

return output
