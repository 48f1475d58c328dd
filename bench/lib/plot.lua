--- Line plots as SVG: panels side by side, both axes logarithmic, each line named at its
--- end. Nothing is taken from elsewhere; colours follow the reader's light or dark theme.
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

local function text(x, y, words, class, anchor)
  return ('<text x="%.1f" y="%.1f"%s%s>%s</text>'):format(x, y, class and (' class="%s"'):format(class) or "",
    anchor and (' text-anchor="%s"'):format(anchor) or "", escape(words))
end

local function line(x1, y1, x2, y2, class)
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
    out[#out + 1] = line(0, y, WIDTH, y, "g")
    out[#out + 1] = text(-6, y + 4, tick_text(power), nil, "end")
  end
  for _, x in ipairs(asked.ticks) do
    out[#out + 1] = line(scale.x(x), HEIGHT, scale.x(x), HEIGHT + 4, "a")
    out[#out + 1] = text(scale.x(x), HEIGHT + 16, tostring(x), nil, "middle")
  end
  out[#out + 1] = line(0, HEIGHT, WIDTH, HEIGHT, "a")
  out[#out + 1] = line(0, 0, 0, HEIGHT, "a")
  out[#out + 1] = text(WIDTH / 2, HEIGHT + 31, asked.x, nil, "middle")
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
  out[#out + 1] = text(0, -12, panel.title, "h")
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
    out[#out + 1] = line(WIDTH + 1, name.at, WIDTH + 9, name.y, name.class)
    out[#out + 1] = text(WIDTH + 12, name.y + 4, name.words, name.class .. "-t")
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
    "<title>" .. escape(asked.title) .. "</title>", style(), text(LEFT, 22, asked.title, "H"),
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

return plot
