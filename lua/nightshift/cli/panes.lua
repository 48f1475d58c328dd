--- What `top` shows: tables and texts, with what is selected, and how far they are scrolled; how
-- they are drawn; the columns of its tables. The screen is that of src/host/screen.c.
--
-- Invariant: the selected row is known by its key, so it stays selected when rows come, go or move.

local output = require "nightshift.cli.output"
local units = require "nightshift.units"

local panes = {}

local GAP <const> = 1 -- column between two columns of a table
local MOST <const> = 1000 -- characters of a cell that are looked at

-- ------------------------------------------------------------------------ tables

local Table = {}
Table.__index = Table

--- A table without rows. A column has `title`, `get(row)`, and a `width`, or a `weight`: its part
-- of the rest. `right`: it stands right. `from`: it is left out on narrower screens. `style(row)`:
-- the name of one. The number of rows follows the first title, unless it is `bare`. A row has a
-- `key`, and `words`, which a filter looks into; one with `whole` is that text, across all columns.
---@param columns table[]
---@param none string what to say without rows
function panes.table(columns, none)
  return setmetatable({ columns = columns, none = none, all = {}, rows = {}, at = 1, first = 1 }, Table)
end

--- Gives it other rows; those without the filter's text in their words are left out.
---@param all table[]
---@param filter string in lower case; "": all
function Table:set(all, filter)
  self.all, self.rows = all, {}
  for _, row in ipairs(all) do
    if filter == "" or row.words:lower():find(filter, 1, true) then self.rows[#self.rows + 1] = row end
  end
  for i, row in ipairs(self.rows) do
    if row.key == self.key then
      self.at = i
      return
    end
  end
  self:go(self.at)
end

--- Selects the row of this number, or the nearest one.
function Table:go(at)
  self.at = math.max(1, math.min(at, #self.rows))
  self.key = self.rows[self.at] and self.rows[self.at].key
end

--- Does what a key that moves the selection says.
---@return boolean whether it is such a key
function Table:move(key)
  local page = math.max(1, (self.height or 2) - 2)
  local to = ({ up = self.at - 1, k = self.at - 1, down = self.at + 1, j = self.at + 1, pgup = self.at - page,
    pgdn = self.at + page, home = 1, g = 1, ["end"] = #self.rows, G = #self.rows })[key]
  if to then self:go(to) end
  return to ~= nil
end

--- The selected row; nil: there is none.
function Table:row() return self.rows[self.at] end

--- The columns that are shown, with their widths.
local function layout(columns, width)
  local shown, sizes, rest, weights = {}, {}, width, 0
  for _, column in ipairs(columns) do
    if width >= (column.from or 0) then
      shown[#shown + 1] = column
      rest = rest - (column.width or 0) - (#shown > 1 and GAP or 0)
      weights = weights + (column.weight or 0)
    end
  end
  for i, column in ipairs(shown) do
    sizes[i] = column.width or math.max(0, rest) * column.weight // weights
  end
  return shown, sizes
end

local function put_cell(screen, y, x, size, column, text, style)
  if column.right and #text < size then text = (" "):rep(size - #text) .. text end -- numbers are ASCII
  screen.put(y, x, size, text, style)
end

local function draw_row(screen, styles, y, width, row, shown, sizes, base)
  screen.put(y, 0, width, row.whole and output.one_line(row.whole, MOST) or "", base | styles[row.style or "plain"])
  if row.whole then return end
  local x = 0
  for i, column in ipairs(shown) do
    local style = column.style and column.style(row)
    local value = column.get(row)
    put_cell(screen, y, x, sizes[i], column, output.one_line(value == nil and "" or value, MOST),
      base | styles[style or "plain"])
    x = x + sizes[i] + GAP
  end
end

local function draw_titles(self, screen, styles, y, width, shown, sizes, focused)
  local style = focused and styles.reverse | styles.bold or styles.bold
  screen.put(y, 0, width, "", style)
  local x = 0
  for i, column in ipairs(shown) do
    local text = column.title
    if i == 1 and not column.bare and #self.all > 0 then
      text = ("%s %d"):format(text, #self.rows)
      if #self.rows < #self.all then text = ("%s of %d"):format(text, #self.all) end
    end
    put_cell(screen, y, x, sizes[i], column, text, style)
    x = x + sizes[i] + GAP
  end
end

--- Draws titles and rows into so many lines.
function Table:draw(screen, styles, y, height, width, focused)
  self.height = height
  local shown, sizes = layout(self.columns, width)
  local room = height - 1
  draw_titles(self, screen, styles, y, width, shown, sizes, focused)
  if #self.rows == 0 and room > 0 then
    screen.put(y + 1, 0, width, #self.all > 0 and "none that has the filter's text" or self.none)
  end
  if self.at < self.first then self.first = self.at end
  if self.at >= self.first + room then self.first = self.at - room + 1 end
  self.first = math.max(1, math.min(self.first, #self.rows - room + 1))
  for i = 1, math.min(room, #self.rows - self.first + 1) do
    local n = self.first + i - 1
    draw_row(screen, styles, y + i, width, self.rows[n], shown, sizes,
      focused and n == self.at and styles.reverse or 0)
  end
end

--- The lines of each table, of so many in all. Where there are few, `focus` has them alone.
---@param tables table[]
---@param height integer
---@param focus integer
---@return table<integer, integer> lines by number; a table without has none
function panes.share(tables, height, focus)
  local least = height // #tables
  if least < 4 then return { [focus] = height } end
  local lines, left = {}, height
  for i, pane in ipairs(tables) do
    lines[i] = math.min(least, 1 + math.max(1, #pane.rows))
    left = left - lines[i]
  end
  local order = { focus }
  for i = 1, #tables do order[#order + 1] = i end
  for _, i in ipairs(order) do
    local more = math.min(left, math.max(0, 1 + #tables[i].rows - lines[i]))
    lines[i], left = lines[i] + more, left - more
  end
  lines[#tables] = lines[#tables] + left
  return lines
end

-- ------------------------------------------------------------------------- texts

local Text = {}
Text.__index = Text

--- A text that is scrolled, below a title.
---@param title string
function panes.text(title)
  return setmetatable({ title = title, lines = {}, first = 1, height = 2 }, Text)
end

--- Gives it other lines, which are safe for terminals.
---@param text string
function Text:set(text)
  self.lines, self.pieces = {}, nil
  for line in (text:gsub("\n$", "") .. "\n"):gmatch "([^\n]*)\n" do
    self.lines[#self.lines + 1] = line:gsub("\t", "    ")
  end
end

--- Does what a key that scrolls says.
---@return boolean whether it is such a key
function Text:move(key)
  local page = math.max(1, self.height - 2)
  local to = ({ up = self.first - 1, k = self.first - 1, down = self.first + 1, j = self.first + 1,
    pgup = self.first - page, pgdn = self.first + page, [" "] = self.first + page, home = 1, g = 1,
    ["end"] = math.maxinteger, G = math.maxinteger })[key]
  if to then self.first = math.max(1, to) end
  return to ~= nil
end

--- The lines cut into pieces that fit; later ones of a line are indented.
local function wrapped(screen, lines, width)
  local pieces = {}
  for _, line in ipairs(lines) do
    local indent, from = "", 1
    repeat
      local n = screen.fit(line, math.max(2, width - #indent), from)
      pieces[#pieces + 1] = indent .. line:sub(from, from + n - 1)
      from, indent = from + n, width > 20 and "    " or ""
    until from > #line or n == 0
  end
  return pieces
end

--- Draws title and text into so many lines.
function Text:draw(screen, styles, y, height, width)
  self.height = height
  if not self.pieces or self.width ~= width then
    self.pieces, self.width = wrapped(screen, #self.lines > 0 and self.lines or { "…" }, width), width
  end
  local pieces = self.pieces
  self.first = math.max(1, math.min(self.first, #pieces - (height - 1) + 1))
  local last = math.min(#pieces, self.first + height - 2)
  screen.put(y, 0, width, ("%s  %d-%d of %d"):format(self.title, self.first, last, #pieces),
    styles.reverse | styles.bold)
  for i = self.first, last do screen.put(y + 1 + i - self.first, 0, width, pieces[i]) end
end

-- --------------------------------------------------------------------- sparklines

local BARS <const> = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" }
local ASCII_BARS <const> = { ".", ":", "-", "=", "+", "*", "#", "@" }

--- Numbers as a row of bars, the last `width` of them: a blank for 0, the full bar for the largest.
---@param values number[]
---@param width integer
---@param utf8 boolean
---@return string
function panes.sparkline(values, width, utf8)
  local bars, most, text = utf8 and BARS or ASCII_BARS, 0, {}
  local first = math.max(1, #values - width + 1)
  for i = first, #values do most = math.max(most, values[i]) end
  for i = first, #values do
    text[#text + 1] = values[i] <= 0 and " " or bars[math.max(1, math.ceil(values[i] / most * #bars))]
  end
  return table.concat(text)
end

-- --------------------------------------------------------------- the tables of top

local function span(seconds) return output.span(seconds and math.max(0, seconds)) end

local function count_of(state)
  return function(row)
    return row.approximate and row.approximate[state] and row[state] .. "+" or row[state]
  end
end

--- "0.5/s", "1,234/s".
---@param rate number
---@return string
function panes.rate(rate)
  if rate == 0 then return "0/s" end
  return (rate < 100 and units.fixed(rate, 1) or output.thousands(math.floor(rate + 0.5))) .. "/s"
end

local function percent(row)
  return row.progress and ("%d%%"):format(math.floor(row.progress * 100))
end

--- A column that shows a field.
local function field(key, column)
  column.get = function(row) return row[key] end
  return column
end

local function counted(title, state, from, colour)
  return { title = title, get = count_of(state), width = 6, right = true, from = from,
    style = function(row) return row[state] and row[state] > 0 and colour or nil end }
end

--- "2/5": of so many places.
local function running_of(column)
  local get = column.get
  column.width = 8
  function column.get(row) return row.places and ("%s/%d"):format(get(row), row.places) or get(row) end
  return column
end

local STATES <const> = { running = "green", dead = "red", waiting = "yellow" }

local function state_style(row) return STATES[row.state] end

--- The tables by name.
---@param self table the session: `now`, the server's clock; `by_queue`, jobs done a second
---@return table<string, table>
function panes.tables(self)
  local function ago(key)
    return function(row) return row[key] and span(self.now - row[key]) end
  end
  local id = field("id", { title = "ID", width = 9, right = true })
  self.id = id -- it is as wide as the ids that are shown
  local queue = field("queue", { title = "QUEUE", weight = 2, from = 60 })
  return {
    queues = panes.table({
      field("name", { title = "QUEUES", weight = 1 }),
      counted("READY", "ready"), running_of(counted("RUN", "running", nil, "green")), counted("SCHED", "scheduled", 60),
      counted("WAIT", "waiting", 60), counted("DEAD", "dead", nil, "red"),
      { title = "OLDEST", get = function(row) return row.oldest and span(row.oldest) end, width = 7, right = true,
        from = 50 },
      { title = "DONE", width = 9, right = true, from = 70, get = function(row)
        return self.by_queue[row.name] and panes.rate(self.by_queue[row.name])
      end },
      { title = "", get = function(row) return row.paused and "paused" or "" end, width = 6,
        style = function() return "yellow" end },
    }, "no queues yet; `nightshift push` makes the first"),
    work = panes.table({
      field("name", { title = "HOSTS, JOBS", weight = 3, bare = true }), queue, id,
      { title = "WORKER", get = function(row) return row.worker end, width = 7, right = true, from = 70 },
      { title = "FOR", get = function(row) return span(self.now - (row.started or row.claimed)) end, width = 7,
        right = true },
      { title = "", get = percent, width = 4, right = true },
      field("status", { title = "SAYS", weight = 4, from = 60 }),
    }, "no host runs, and no program holds jobs; `nightshift work` starts a host"),
    failures = panes.table({
      field("name", { title = "FAILURES", weight = 3 }), queue, id,
      { title = "AGO", get = ago "failed", width = 7, right = true },
      { title = "ERROR", weight = 6, style = function(row) return row.again and "yellow" or "red" end,
        get = function(row)
          local text = row.error or row.reason
          return row.again and ("again in %s: %s"):format(span(row.again - self.now), text) or text
        end },
    }, "no job has failed"),
    jobs = panes.table({
      field("name", { title = "JOBS", weight = 3 }), id,
      field("state", { title = "STATE", width = 9, style = state_style }),
      field("priority", { title = "PRIO", width = 4, right = true, from = 60 }),
      { title = "FAILED", get = function(row) return ("%d/%d"):format(row.attempts, row.max_attempts) end, width = 7,
        right = true, from = 60 },
      { title = "AGE", get = ago "created", width = 7, right = true },
      { title = "", get = function(row) return row.error or row.status or "" end, weight = 4, from = 70 },
    }, "no jobs"),
  }
end

-- ------------------------------------------------------------------- the header of top

local function sum_of(queues, state)
  local sum, more = 0, ""
  for _, row in ipairs(queues) do
    sum = sum + (row[state] or 0)
    if row.approximate and row.approximate[state] then more = "+" end
  end
  return ("%s%s %s"):format(output.thousands(sum), more, state)
end

--- How many jobs are in which state, in all queues: on a narrow screen the most telling states.
function panes.totals(queues, width)
  local list = {}
  local order = width < 60 and { "ready", "running", "dead" } or { "ready", "running", "scheduled", "waiting", "dead" }
  for i, state in ipairs(order) do list[i] = sum_of(queues, state) end
  return table.concat(list, "  ")
end

--- How many hosts there are, with how many workers.
function panes.hosts(holders)
  local hosts, workers, busy = 0, 0, 0
  for _, row in ipairs(holders) do
    if row.workers then hosts, workers, busy = hosts + 1, workers + row.workers, busy + row.busy end
  end
  return ("%s, %s, %d busy"):format(output.count(hosts, "host"), output.count(workers, "worker"), busy)
end

return panes
