--- Jobs around a job as a picture: its tree, and the jobs that wait for each other.
--
-- From left to right stand parents before children, and each job before the jobs that wait for it. A
-- box has a job's name, its state as a word in its colour, and its id; it leads to the job's page.
--
-- Invariant: a picture says nothing that the list beside it does not say. So it is hidden from screen
-- readers, and Tab passes it by. Texts of users are escaped, and cut.

local layout = require "nightshift.web.layout"

local graph = {}

local WIDE <const>, HIGH <const> = 184, 44 -- pixels of a box
local GAP <const>, ROW <const> = 40, 56 -- between two columns; from row to row
local EDGE <const> = 4 -- around the picture
local NAME <const> = 22 -- characters of a name

--- A name that fits into a box.
local function short(name)
  local n = utf8.len(name)
  if not n or n <= NAME then return name end
  return name:sub(1, utf8.offset(name, NAME) - 1) .. "…"
end

local function left(column) return EDGE + column * (WIDE + GAP) end
local function top(row) return EDGE + row * ROW end

--- An empty picture.
local function new() return { boxes = {}, lines = {}, notes = {}, columns = 0, rows = 0 } end

local function reach(picture, column, row)
  picture.columns, picture.rows = math.max(picture.columns, column + 1), math.max(picture.rows, row + 1)
end

local function add_box(picture, node, column, row, own)
  reach(picture, column, row)
  picture.boxes[#picture.boxes + 1] = { id = node.id, name = node.name or "", short = short(node.name or "gone"),
    state = node.state, x = left(column), y = math.floor(top(row)), own = own }
end

local function add_note(picture, text, column, row, query)
  reach(picture, column, row)
  picture.notes[#picture.notes + 1] = { text = text, x = left(column), y = math.floor(top(row)) + HIGH // 2 + 4,
    query = query }
end

--- A line from a job to one in a later column; of `waits` it is dashed.
local function add_line(picture, column, row, to_column, to_row, waits)
  local x, y = left(column) + WIDE, math.floor(top(row)) + HIGH // 2
  local to_x, to_y = left(to_column), math.floor(top(to_row)) + HIGH // 2
  local bend = (to_x - x) // 2
  picture.lines[#picture.lines + 1] = { waits = waits, path = ("M%d %dC%d %d %d %d %d %d"):format(x, y, x + bend, y,
    to_x - bend, to_y, to_x, to_y), head = ("M%d %dl-7 -4v8z"):format(to_x, to_y) }
end

--- Draws a node and all below it; its row, which is the middle of its children's.
local function add_tree(picture, node, column, own)
  local rows, children = {}, node.children or {}
  for i, child in ipairs(children) do rows[i] = add_tree(picture, child, column + 1) end
  if node.more or node.inner then
    local more = node.n and node.n > #children and ("and %s more"):format(layout.count(node.n - #children))
    rows[#rows + 1] = picture.next
    add_note(picture, more or (node.inner and "its children" or "and more"), column + 1, picture.next,
      { parent = node.id })
    picture.next = picture.next + 1
  end
  local row
  if #rows > 0 then
    row = (rows[1] + rows[#rows]) / 2
  else
    row, picture.next = picture.next, picture.next + 1
  end
  add_box(picture, node, column, row, own)
  for i = 1, #rows do add_line(picture, column, row, column + 1, rows[i]) end
  return row
end

local PICTURE <const> = layout.compile("a graph of jobs", [[
<svg class="graph" width="$(width)" height="$(height)" viewBox="0 0 $(width) $(height)" aria-hidden="true">
# for _, line in ipairs(lines) do
<path class="edge $(line.waits and "waits" or "")" d="$(line.path)"/>
# if line.waits then
<path class="head" d="$(line.head)"/>
# end
# end
# for _, box in ipairs(boxes) do
<a href="$(h.url("/jobs/" .. box.id))" tabindex="-1"><g class="$(box.own and "own " or "")is-$(box.state)">
<title>$(box.name)</title>
<rect class="box" x="$(box.x)" y="$(box.y)" width="$(wide)" height="$(high)" rx="6"/>
<rect class="bar" x="$(box.x)" y="$(box.y + 8)" width="4" height="$(high - 16)"/>
<text x="$(box.x + 14)" y="$(box.y + 19)">$(box.short)</text>
<text class="word" x="$(box.x + 14)" y="$(box.y + 35)">$(box.state) <tspan class="id">$(box.id)</tspan></text>
</g></a>
# end
# for _, note in ipairs(notes) do
# if note.query then
<a href="$(h.url("/jobs", note.query))" tabindex="-1"><text class="note" x="$(note.x)"
y="$(note.y)">$(note.text)</text></a>
# else
<text class="note" x="$(note.x)" y="$(note.y)">$(note.text)</text>
# end
# end
</svg>
]])

local function draw(h, picture)
  return layout.raw(PICTURE { h = h, boxes = picture.boxes, lines = picture.lines, notes = picture.notes,
    wide = WIDE, high = HIGH, width = left(picture.columns) - GAP + EDGE,
    height = math.ceil(top(picture.rows)) - ROW + HIGH + EDGE })
end

--- The tree around a job: the jobs above it in a line, and all below it. `n` of a node: how many
-- children it has.
---@param h table
---@param parents nightshift.Node[] from the root on
---@param node nightshift.Node with `children`, as tree.read gives it
---@param more boolean? there are more jobs above
---@return table html
function graph.tree(h, parents, node, more)
  local picture = new()
  local first = more and 1 or 0
  picture.next = 0
  local row = add_tree(picture, node, first + #parents, true)
  if more then add_note(picture, "more above", 0, row) end
  for i, parent in ipairs(parents) do
    add_box(picture, parent, first + i - 1, row)
    add_line(picture, first + i - 1, row, first + i, row)
  end
  return draw(h, picture)
end

--- The jobs that a job waits for, the job, and the jobs that wait for it.
---@param h table
---@param job table {id, name, state}
---@param after table[]
---@param waiters table[]
---@param more {after: boolean?, waiters: boolean?}
---@return table html
function graph.flow(h, job, after, waiters, more)
  local picture = new()
  local lists = { { after, more.after }, { waiters, more.waiters } }
  local highest = 1
  for _, list in ipairs(lists) do highest = math.max(highest, #list[1] + (list[2] and 1 or 0)) end
  local middle, column = (highest - 1) / 2, #after > 0 and 1 or 0
  add_box(picture, job, column, middle, true)
  for side, list in ipairs(lists) do
    local n = #list[1] + (list[2] and 1 or 0)
    local at = side == 1 and 0 or column + 1
    for i, node in ipairs(list[1]) do
      local row = middle - (n - 1) / 2 + i - 1
      add_box(picture, node, at, row)
      if side == 1 then
        add_line(picture, at, row, column, middle, true)
      else
        add_line(picture, column, middle, at, row, true)
      end
    end
    if list[2] then add_note(picture, "and more", at, middle + (n - 1) / 2) end
  end
  return draw(h, picture)
end

return graph
