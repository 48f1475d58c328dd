--- Charts as SVG: lines over time, with a text that says the same and a table of the figures.
--
-- Invariant: a chart has no style and no script, and no text of a user. Its classes stand in
-- the style sheet, so that it follows light and dark.

local layout = require "nightshift.web.layout"
local units = require "nightshift.units"

local chart = {}

local WIDTH <const>, HEIGHT <const> = 360, 152
local LEFT <const>, RIGHT <const>, TOP <const>, BOTTOM <const> = 2, 358, 20, 128

--- The next larger of 1, 2, 5, 10, 20, … that a scale may end with.
local function top_of(value)
  if value <= 0 then return 1 end
  local step = 10 ^ math.floor(math.log(value, 10))
  for _, factor in ipairs { 1, 2, 5 } do
    if value <= factor * step * 1.0000001 then return factor * step end
  end
  return 10 * step
end

local function n(value) return units.fixed(value, 1) end

--- The values as stretches without a hole: {{{x, y}, …}, …}.
local function stretches(values, count, top)
  local list, open = {}, nil
  for i = 1, count do
    local value = values[i]
    if value then
      local x = LEFT + (RIGHT - LEFT) * (i - 1) / math.max(1, count - 1)
      local y = BOTTOM - (BOTTOM - TOP) * math.min(1, value / top)
      if not open then
        open = {}
        list[#list + 1] = open
      end
      open[#open + 1] = { x, y }
    else
      open = nil
    end
  end
  return list
end

--- The paths of one series: its area, and its line; a value alone is a dot.
local function draw(series, count, top)
  local out = {}
  for _, points in ipairs(stretches(series.values, count, top)) do
    local path = {}
    for i, point in ipairs(points) do path[i] = (i == 1 and "M" or "L") .. n(point[1]) .. " " .. n(point[2]) end
    if #points == 1 then path[2] = "h0.1" end
    local line = table.concat(path)
    if series.area and #points > 1 then
      out[#out + 1] = ('<path class="area %s" d="%sL%s %d L%s %dZ"/>'):format(series.class, line,
        n(points[#points][1]), BOTTOM, n(points[1][1]), BOTTOM)
    end
    out[#out + 1] = ('<path class="line %s" d="%s"/>'):format(series.class .. (series.dashed and " dashed" or ""), line)
  end
  return table.concat(out)
end

--- "12:30", or "23.11. 12:30" where days pass; UTC.
local function clock(instant, span)
  return os.date(span > 90000 and "!%d.%m. %H:%M" or "!%H:%M", math.floor(instant))
end

local function last_and_most(values, count)
  local last, most = values[count], nil
  for i = 1, count do
    if values[i] and (not most or values[i] > most) then most = values[i] end
  end
  return last, most
end

--- The same as a sentence, for screen readers.
local function says(given, count)
  local parts = {}
  for _, series in ipairs(given.series) do
    local last, most = last_and_most(series.values, count)
    parts[#parts + 1] = most and ("%s: at most %s, at last %s"):format(series.label, given.format(most),
      last and given.format(last) or "none") or series.label .. ": none"
  end
  return table.concat(parts, ". ") .. "."
end

local CHART <const> = layout.compile("a chart", [[
<figure class="chart">
<ul class="legend">
# for _, series in ipairs(series) do
<li><span class="key $(series.key)" aria-hidden="true"></span>$(series.label) <b>$(series.now)</b></li>
# end
</ul>
<svg viewBox="0 0 $(width) $(height)" role="img" aria-label="$(title). $(says)">
<line class="axis" x1="0" y1="$(top)" x2="$(width)" y2="$(top)"/>
<line class="axis" x1="0" y1="$(middle)" x2="$(width)" y2="$(middle)"/>
<line class="axis" x1="0" y1="$(bottom)" x2="$(width)" y2="$(bottom)"/>
$(paths)
<text x="0" y="14">$(most)</text>
<text x="0" y="$(height - 6)">$(first)</text>
<text x="$(width)" y="$(height - 6)" text-anchor="end">$(last)</text>
</svg>
<details><summary>Figures</summary>
<div class="scroll" tabindex="0" role="region" aria-label="$(title): figures"><table class="table">
<thead><tr><th scope="col">From (UTC)</th>
# for _, series in ipairs(series) do
<th scope="col" class="number">$(series.label)</th>
# end
</tr></thead>
<tbody>
# for i = count, 1, -1 do
<tr><th scope="row">$(clock(at[i]))</th>
# for _, series in ipairs(series) do
<td class="number">$(series.values[i] and format(series.values[i]) or "–")</td>
# end
</tr>
# end
</tbody></table></div></details>
</figure>
]])

--- A chart: title; at: instants, the oldest first; span: seconds of all; series: {{label =, class =
-- "blue", values = list with holes, area =, dashed =}, …}; format(value).
---@param given table
---@return table html raw
function chart.draw(given)
  local count, highest = #given.at, 0
  for _, series in ipairs(given.series) do
    highest = math.max(highest, select(2, last_and_most(series.values, count)) or 0)
  end
  local top, paths, shown = top_of(highest), {}, {}
  for i, series in ipairs(given.series) do
    paths[i] = draw(series, count, top)
    local now = series.values[count]
    shown[i] = { label = series.label, class = series.class, values = series.values,
      key = series.class .. (series.dashed and " dashed" or ""), now = now and given.format(now) or "–" }
  end
  return layout.raw(CHART {
    title = given.title, says = says(given, count), series = shown, at = given.at, count = count,
    format = given.format, width = WIDTH, height = HEIGHT, top = TOP, bottom = BOTTOM,
    middle = (TOP + BOTTOM) // 2, paths = layout.raw(table.concat(paths)), most = given.format(top),
    first = clock(given.at[1], given.span), last = clock(given.at[count], given.span),
    clock = function(instant) return clock(instant, given.span) end,
  })
end

return chart
