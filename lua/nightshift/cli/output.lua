--- How results look: aligned tables, times, JSON.
--
-- On a terminal tables fit into its width, and some words have colour. In a pipe, or a file, all text
-- is whole and plain. Text that came from jobs is shown with its control characters escaped.

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

--- Gets what output.json is called with, in place of printing it; nil: it is printed.
---@type fun(value: any)|nil
output.sink = nil

--- Prints one value as a line of JSON, its instants as texts.
function output.json(value)
  if output.sink then return output.sink(value) end
  local text = assert(core.encode(units.texts(value), math.maxinteger))
  output.line(text)
end

--- Rows as a JSON list.
function output.json_list(rows)
  rows.missing = nil -- databases that are away: said on stderr
  output.json(core.array(rows))
end

--- The outcomes of a verb for one thing after the other: told at once, or with --json as a list in
-- the end.
---@param args table of the command
---@return table told done(row, text), failed(row, what, message, code), finish() gives the exit code
function output.outcomes(args)
  local rows, exit = core.array {}, 0
  local self = {}
  local function add(row, ok)
    row.ok = ok
    rows[#rows + 1] = row
  end
  function self.done(row, text)
    if args.json then add(row, true) else output.line(text) end
  end
  function self.failed(row, what, message, code)
    exit = context.FAILURE
    if not args.json or code == "GONE" then return context.report_failure(what, message, code) end
    row.error, row.code = message, code
    add(row, false)
  end
  function self.finish()
    if args.json then output.json(rows) end
    return exit
  end
  return self
end

local function width(text)
  return utf8.len(text) or #text
end

-- ---------------------------------------------------------------- terminals

local COLOURS <const> = { red = "31", green = "32", yellow = "33", bold = "1" }

--- Columns of the terminal that stdout is; nil: it is none.
local function columns_of_stdout() return core.terminal(1) end

local function is_dumb()
  local term = os.getenv "TERM"
  return not term or term == "" or term == "dumb"
end

-- Are there colours? $NO_COLOR, set to anything, says no.
local function has_colours()
  return not is_dumb() and (os.getenv "NO_COLOR" or "") == "" and columns_of_stdout() ~= nil
end

--- The text in a colour, on a terminal that has them.
---@param text string
---@param colour "red"|"green"|"yellow"|"bold"|nil
---@return string
function output.paint(text, colour)
  if not colour or not has_colours() then return text end
  return ("\27[%sm%s\27[0m"):format(COLOURS[colour], text)
end

local LEAST <const> = 6 -- columns that a text keeps
local GAP <const> = 2 -- between two columns of a table

--- Makes the widest texts of a table smaller until it fits. Numbers stay whole.
local function fit(columns, sizes, room)
  local sum = GAP * (#sizes - 1)
  for _, size in ipairs(sizes) do sum = sum + size end
  while sum > room do
    local widest
    for i, column in ipairs(columns) do
      local shrinks = not column.right and sizes[i] > LEAST
      if shrinks and (not widest or sizes[i] > sizes[widest]) then widest = i end
    end
    if not widest then return end
    sizes[widest], sum = sizes[widest] - 1, sum - 1
  end
end

local function cut(text, size)
  if width(text) <= size then return text end
  return text:sub(1, (utf8.offset(text, size) or size) - 1) .. "…"
end

local function cells_of(columns, row)
  local cells = {}
  for i, column in ipairs(columns) do
    local value = column.get(row)
    cells[i] = value == nil and "-" or output.safe(value)
  end
  return cells
end

-- A line of a table; `row` nil: of titles.
local function table_line(columns, sizes, cells, row)
  local painted = {}
  for i, column in ipairs(columns) do
    local text, colour = cut(cells[i], sizes[i]), "bold"
    if row then colour = column.colour and column.colour(row) end
    local blanks = (" "):rep(sizes[i] - width(text))
    text = text ~= "" and output.paint(text, colour) or text
    painted[i] = column.right and blanks .. text or text .. blanks
  end
  return (table.concat(painted, (" "):rep(GAP)):gsub(" +$", ""))
end

--- Writes an aligned table. Columns: {title, get, right = true|nil, colour = nil or a function of the
-- row}; texts stand left, and are cut where a terminal is too narrow.
function output.table(columns, rows)
  local lines, sizes = { {} }, {}
  for i, column in ipairs(columns) do lines[1][i] = column.title end
  for _, row in ipairs(rows) do lines[#lines + 1] = cells_of(columns, row) end
  for i = 1, #columns do
    sizes[i] = 0
    for _, cells in ipairs(lines) do sizes[i] = math.max(sizes[i], width(cells[i])) end
  end
  local room = columns_of_stdout()
  if room then fit(columns, sizes, room) end
  for i, cells in ipairs(lines) do output.line(table_line(columns, sizes, cells, rows[i - 1])) end
end

--- A column that shows a field; numbers stand right.
function output.column(title, key, right)
  return { title = title, get = function(row) return row[key] end, right = right }
end

local STATES <const> = { running = "green", dead = "red", waiting = "yellow" }

--- The colour of a job's state.
function output.state_colour(row) return STATES[row.state] end

-- ------------------------------------------------------------------ progress

local EVERY <const> = 0.2 -- s between two looks of a line of progress
local BAR <const> = 20 -- columns

local NONE <const> = { active = false, show = function() end, clear = function() end, finish = function() end }

--- "12,345,678"
function output.thousands(n)
  local text = tostring(n):reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (text:gsub("^,", ""))
end

--- A line on stderr about long work: how much is done, how fast, and how long the rest takes.
-- There is none unless stderr is a terminal that can clear a line.
---@param noun string "jobs"
---@param total integer|nil the end of the part that `show` gets, or of the count itself
---@return table progress active: it is seen; show(count, part), clear() before something else is
-- written, finish()
function output.progress(noun, total)
  local columns = core.terminal(2)
  if not columns or is_dumb() then return NONE end
  local began, shown, visible = core.clock(), 0, false
  local self = { active = true }
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
