--- The output of bench/designs/strategies.lua: tables of medians, and the plots.
--
-- Results are lines of bench/designs/contenders.lua: results.work[name][workers][round],
-- results.death[name][round], results.purge[name][round] = {free=, blocked=}. And
-- results.rows[name][i], one for each number of workers.
local contenders = require "bench.designs.contenders"
local report = require "bench.lib.report"

local standings = {}

-- ----------------------------------------------------------------------- plots

-- Line plots as SVG: panels side by side, both axes logarithmic, each line named at its end.
-- Nothing is taken from elsewhere; colours follow the reader's light or dark theme.
local plot = {}

local WIDTH, HEIGHT = 250, 180                            -- of a panel's axes
local LEFT, RIGHT, TOP, BOTTOM = 62, 190, 34, 44          -- around them: ticks and names
local COLUMNS, HEAD, LINE = 2, 34, 13                     -- panels in a row, title, text

-- Lines in the order of a panel: colours that both themes carry, and patterns besides.
local LOOKS = {
  { light = "#b45309", dark = "#f59e0b", dash = "6 3" }, { light = "#1d4ed8", dark = "#7aa8ff" },
  { light = "#b91c1c", dark = "#ff7b72", dash = "2 3" }, { light = "#047857", dark = "#3fd19b", dash = "9 3 2 3" },
  { light = "#6d28d9", dark = "#c4a5ff", dash = "1 2" }, { light = "#0e7490", dark = "#5cd0e6" },
}
local QUIET = { light = "#6b7280", dark = "#9ca3af", dash = "3 3" } -- the line that the coloured ones are compared with

local function escape(text)
  return (text:gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end

local function style()
  local light, dark = {}, {}
  local function rule(list, class, look, colour)
    list[#list + 1] = (".%s{stroke:%s}.%s-t{fill:%s}"):format(class, look[colour], class, look[colour])
  end
  for i, look in ipairs(LOOKS) do
    rule(light, "s" .. i, look, "light")
    rule(dark, "s" .. i, look, "dark")
  end
  rule(light, "q", QUIET, "light")
  rule(dark, "q", QUIET, "dark")
  return ("<style>text{font:11px sans-serif;fill:#1f2328}.h{font-weight:bold;font-size:12px}.H{font-weight:bold;"
    .. "font-size:15px}.a{stroke:#8c959f}.g{stroke:#8c959f;stroke-opacity:.3}polyline{fill:none;stroke-width:2}%s"
    .. "@media(prefers-color-scheme:dark){text{fill:#e6edf3}%s}</style>"):format(table.concat(light),
      table.concat(dark))
end

local function write_at(x, y, words, class, anchor)
  return ('<text x="%.1f" y="%.1f"%s%s>%s</text>'):format(x, y, class and (' class="%s"'):format(class) or "",
    anchor and (' text-anchor="%s"'):format(anchor) or "", escape(words))
end

local function stroke(x1, y1, x2, y2, class)
  return ('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>'):format(x1, y1, x2, y2, class)
end

--- Whole powers of ten around all values.
local function decades(panels)
  local least, most = math.huge, 0
  for _, panel in ipairs(panels) do
    for _, series in ipairs(panel.series) do
      for _, point in ipairs(series.points) do
        if point[2] > 0 then least, most = math.min(least, point[2]), math.max(most, point[2]) end
      end
    end
  end
  if most == 0 then return 0, 1 end
  local low, high = math.floor(math.log(least, 10)), math.ceil(math.log(most, 10))
  return low, math.max(high, low + 1)
end

local function tick_text(power)
  if power < 0 then return ("%." .. -power .. "f"):format(10.0 ^ power) end
  return (("%d"):format(10 ^ power // 1):reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", ""))
end

--- Positions of names, from top to bottom, so far apart that they can be read.
local function spread(names)
  table.sort(names, function(a, b) return a.y < b.y end)
  for i = 2, #names do names[i].y = math.max(names[i].y, names[i - 1].y + LINE) end
  local over = #names > 0 and names[#names].y - HEIGHT or 0
  for i = #names, 1, -1 do
    if over > 0 then names[i].y = math.min(names[i].y, HEIGHT - (#names - i) * LINE) end
  end
end

local function axes(out, scale, asked)
  for power = scale.low, scale.high do
    local y = scale.y(10.0 ^ power)
    out[#out + 1] = stroke(0, y, WIDTH, y, "g")
    out[#out + 1] = write_at(-6, y + 4, tick_text(power), nil, "end")
  end
  for _, x in ipairs(asked.ticks) do
    out[#out + 1] = stroke(scale.x(x), HEIGHT, scale.x(x), HEIGHT + 4, "a")
    out[#out + 1] = write_at(scale.x(x), HEIGHT + 16, tostring(x), nil, "middle")
  end
  out[#out + 1] = stroke(0, HEIGHT, WIDTH, HEIGHT, "a")
  out[#out + 1] = stroke(0, 0, 0, HEIGHT, "a")
  out[#out + 1] = write_at(WIDTH / 2, HEIGHT + 31, asked.x, nil, "middle")
  out[#out + 1] = ('<text transform="translate(-48 %d) rotate(-90)" text-anchor="middle">%s</text>')
    :format(HEIGHT // 2, escape(asked.y))
end

local function draw(out, scale, series, class, dash)
  local points, last = {}, nil
  for _, point in ipairs(series.points) do
    if point[2] > 0 then
      last = { scale.x(point[1]), scale.y(point[2]) }
      points[#points + 1] = ("%.1f,%.1f"):format(last[1], last[2])
    end
  end
  if not last then return nil end
  out[#out + 1] = ('<polyline class="%s"%s points="%s"/>'):format(class,
    dash and (' stroke-dasharray="%s"'):format(dash) or "", table.concat(points, " "))
  return { y = last[2], at = last[2], words = series.label, class = class }
end

local function panel_of(out, scale, panel, asked)
  out[#out + 1] = write_at(0, -12, panel.title, "h")
  axes(out, scale, asked)
  local names = {}
  local n = 0
  for _, series in ipairs(panel.series) do
    n = n + (series.quiet and 0 or 1)
    local class, look = series.quiet and "q" or "s" .. n, series.quiet and QUIET or LOOKS[n]
    names[#names + 1] = draw(out, scale, series, class, look.dash)
  end
  spread(names)
  for _, name in ipairs(names) do
    out[#out + 1] = stroke(WIDTH + 1, name.at, WIDTH + 9, name.y, name.class)
    out[#out + 1] = write_at(WIDTH + 12, name.y + 4, name.words, name.class .. "-t")
  end
end

---@class bench.Plot
---@field title string
---@field x string the axis, with its unit
---@field y string
---@field ticks number[] of x
---@field panels {title: string, series: {label: string, quiet: boolean?, points: number[][]}[]}[]

--- The plot as an SVG document. Values of zero have no place on it and are left out.
---@param asked bench.Plot
---@return string
function plot.svg(asked)
  local low, high = decades(asked.panels)
  local first, last = asked.ticks[1], asked.ticks[#asked.ticks]
  local range = math.max(math.log(last / first), 1e-9)
  local scale = {
    low = low, high = high,
    x = function(v) return 8 + math.log(v / first) / range * (WIDTH - 16) end,
    y = function(v) return HEIGHT - (math.log(v, 10) - low) / (high - low) * HEIGHT end,
  }
  local columns = math.min(COLUMNS, #asked.panels)
  local across, down = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
  local width, height = columns * across, HEAD + math.ceil(#asked.panels / columns) * down
  local out = {
    ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">')
      :format(width, height, width, height),
    "<title>" .. escape(asked.title) .. "</title>", style(), write_at(LEFT, 22, asked.title, "H"),
  }
  for i, panel in ipairs(asked.panels) do
    out[#out + 1] = ('<g transform="translate(%d %d)">'):format((i - 1) % columns * across + LEFT,
      HEAD + (i - 1) // columns * down + TOP)
    panel_of(out, scale, panel, asked)
    out[#out + 1] = "</g>"
  end
  out[#out + 1] = "</svg>\n"
  return table.concat(out, "\n")
end

-- ---------------------------------------------------------------------- tables

local function number(value)
  if not value or value ~= value then return "" end
  if value >= 1000 then -- 1,234
    return (("%.0f"):format(value):reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", ""))
  end
  if math.type(value) == "integer" then return tostring(value) end
  return (value >= 100 and "%.0f" or value >= 10 and "%.1f" or value == 0 and "%.0f" or "%.2f"):format(value)
end

local function median(list) return #list > 0 and report.median(list) or nil end

local function each(lines, fn)
  local list = {}
  for i, line in ipairs(lines or {}) do list[#list + 1] = fn(line, i) end
  return list
end

local function of(lines, name) return median(each(lines, function(line) return line[name] end)) end

local function sum(lines, name)
  local n = 0
  for _, line in ipairs(lines or {}) do n = n + (line[name] or 0) end
  return n
end

local function table_text(title, text, heads, rows)
  local lines = { "", "### " .. title }
  if text then lines[#lines + 1] = report.wrapped(text) end
  lines[#lines + 1] = ""
  lines[#lines + 1] = "| | " .. table.concat(heads, " | ") .. " |"
  lines[#lines + 1] = "|---" .. ("|---:"):rep(#heads) .. "|"
  for _, row in ipairs(rows) do
    lines[#lines + 1] = ("| %s | %s |"):format(row.title, table.concat(row, " | "))
  end
  return table.concat(lines, "\n")
end

-- A table with a column for each number of workers.
local function over_workers(results, asked, title, text, cell)
  local heads, rows = {}, {}
  for i, workers in ipairs(asked.workers) do heads[i] = ("%d worker%s"):format(workers, workers > 1 and "s" or "") end
  for _, c in ipairs(asked.list) do
    local row, lines = { title = contenders.title(c) }, results.work[c.name]
    for i, workers in ipairs(asked.workers) do row[i] = cell(lines[workers], c, workers) end
    rows[#rows + 1] = row
  end
  return table_text(title, text, heads, rows)
end

local function ratio(results, c, lines, workers)
  local beside = c.beside and results.work[c.beside]
  beside = beside and beside[workers]
  return beside and median(each(lines, function(line, i)
    return beside[i] and beside[i].rate > 0 and line.rate / beside[i].rate or nil
  end))
end

local function rates(results, asked)
  return over_workers(results, asked, "Jobs per second", "In parentheses: beside the same table as published, or the"
    .. " published SQL with that index where there is one, in the same rounds.", function(lines, c, workers)
      local beside = ratio(results, c, lines, workers)
      return number(of(lines, "rate")) .. (beside and (" (%s ×)"):format(number(beside)) or "")
    end)
end

local function claims(results, asked)
  return over_workers(results, asked, "Time of a claim, ms: median · 99th percentile",
    "From asking to having rows, waits for locks included. Under a host the dispatcher claims, ahead of the workers.",
    function(lines)
      local p50, p99 = of(lines, "p50_ms"), of(lines, "p99_ms")
      return p50 and ("%s · %s"):format(number(p50), number(p99)) or ""
    end)
end

local function per_thousand(lines, name)
  return median(each(lines, function(line) return line.jobs > 0 and line[name] / line.jobs * 1000 or nil end))
end

local function locks(results, asked)
  return over_workers(results, asked, "Lock waits · deadlocks, for 1,000 jobs", nil, function(lines)
    local waits, deadlocks = per_thousand(lines, "waits"), per_thousand(lines, "deadlocks")
    return waits and ("%s · %s"):format(number(waits), number(deadlocks)) or ""
  end)
end

local function again(results, asked)
  return over_workers(results, asked, "Jobs that ran more than once",
    "Executions beyond the first of each job, and the number of jobs that ran, in all rounds together.", function(lines)
      return ("%d of %s"):format(sum(lines, "again"), number(sum(lines, "begun")))
    end)
end

local function deaths(results, asked)
  local rows = {}
  for _, c in ipairs(asked.list) do
    local lines = results.death[c.name]
    if lines and #lines > 0 then
      local seconds = of(lines, "free_s")
      local worst = math.max(0, table.unpack(each(lines, function(line) return line.free_s end)))
      rows[#rows + 1] = { title = contenders.title(c), seconds and number(seconds) or "never",
        seconds and number(worst) or "" }
    end
  end
  return table_text("A dead worker: seconds until its rows are elsewhere",
    "One worker holds rows, another waits for some; the first is killed. " .. contenders.death,
    { "median", "longest" }, rows)
end

local function purges(results, asked)
  local rows = {}
  for _, c in ipairs(asked.list) do
    local lines = results.purge[c.name]
    if lines and #lines > 0 then
      local free = median(each(lines, function(line) return line.free.rate end))
      local blocked = median(each(lines, function(line) return line.blocked.rate end))
      local cost = median(each(lines, function(line)
        return line.blocked.rate > 0 and line.free.rate / line.blocked.rate or nil
      end))
      rows[#rows + 1] = { title = contenders.title(c), number(free), number(blocked), number(cost) }
    end
  end
  return table_text(("Purge blocked: jobs per second, %d workers"):format(asked.purge_workers),
    ("Just before, %s other rows were done. Purge is blocked by a read transaction that is open all the time,"
      .. " as a backup's is."):format(number(asked.buried)), { "free", "blocked", "cost" }, rows)
end

local function many(results, asked)
  local heads, rows = {}, {}
  for i, workers in ipairs(asked.many_workers) do
    heads[i] = ("%d worker%s"):format(workers, workers > 1 and "s" or "")
  end
  for _, c in ipairs(asked.list) do
    local row, lines = { title = contenders.title(c) }, results.rows[c.name] or {}
    for i, workers in ipairs(asked.many_workers) do
      local line = {}
      for _, one in ipairs(lines) do
        if one.workers == workers then line[1] = one end
      end
      row[i] = line[1] and ("%s · %s"):format(number(line[1].p50_ms), number(line[1].p99_ms)) or ""
    end
    if #lines > 0 then rows[#rows + 1] = row end
  end
  return table_text("A large table: time of a claim, ms: median · 99th percentile",
    contenders.many(number(asked.many)), heads, rows)
end

--- All results as Markdown.
function standings.markdown(results, asked)
  local parts = {}
  if asked.topics.work then
    for _, part in ipairs { rates, claims, locks, again } do parts[#parts + 1] = part(results, asked) end
  end
  if asked.topics.death then parts[#parts + 1] = deaths(results, asked) end
  if asked.topics.purge then parts[#parts + 1] = purges(results, asked) end
  if asked.topics.rows then parts[#parts + 1] = many(results, asked) end
  return table.concat(parts, "\n") .. "\n"
end

-- ------------------------------------------------------------------- plots

local YARDSTICK = "host"

local function points(results, name, figure, asked)
  local list = {}
  for _, workers in ipairs(asked.workers) do
    local value = of(results.work[name][workers], figure)
    if value then list[#list + 1] = { workers, value } end
  end
  return list
end

local function panels(results, figure, asked, yardstick)
  local list = {}
  for _, group in ipairs(contenders.groups) do
    local panel = { title = group.title, series = {} }
    for _, c in ipairs(asked.list) do
      local line = c.group == group.name and points(results, c.name, figure, asked) or {}
      if #line > 0 then table.insert(panel.series, { label = c.what, points = line }) end
    end
    if #panel.series > 0 then list[#list + 1] = panel end
    if yardstick and #panel.series > 0 and group.name ~= "own" and results.work[yardstick] then
      table.insert(panel.series, { label = "Nightshift, one host", quiet = true,
        points = points(results, yardstick, figure, asked) })
    end
  end
  return list
end

--- The plots: their names and documents.
function standings.plots(results, asked)
  local function svg(title, y, figure, yardstick)
    return plot.svg { title = title, x = "workers", y = y, ticks = asked.workers,
      panels = panels(results, figure, asked, yardstick) }
  end
  return {
    rate = svg(("Jobs of %g ms per second"):format(asked.job_ms), "jobs per second", "rate", YARDSTICK),
    claim = svg("Time of a claim, 99th percentile", "ms", "p99_ms"),
  }
end

return standings
