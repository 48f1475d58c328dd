-- The report: medians over the rounds, as Markdown and as JSON.
--
-- A question yields lines: tables with `what`, the row's title, and figures. Lines with the
-- same `what` are the same row in different rounds. Figures are rates (floor, ours, rate,
-- full_rate), ratios, and numbers with a unit at the end of the name (p50_ms). All other fields
-- are parameters, for the JSON only.
local report = {}

local UNITS = { ms = true, us = true, s = true, kib = true, mib = true, bytes = true, percent = true, per_s = true }
-- Columns that come first, in this order; the rest follow by name.
local FIRST = {
  "floor", "ours", "empty_rate", "full_rate", "free_rate", "blocked_rate", "rate", "ratio", "cost_ratio", "p50_ms",
  "free_p50_ms", "blocked_p50_ms", "p50_cost_ratio", "p95_ms", "p99_ms", "free_p99_ms", "blocked_p99_ms",
  "p99_cost_ratio", "max_ms", "cpu_ms", "cpu_s", "floor_cpu_s",
}

local function unit_of(name) return name:match "_(per_s)$" or name:match "_(%w+)$" end

local function is_rate(name) return name == "floor" or name == "ours" or name:find "rate$" ~= nil end

local function is_figure(name, value)
  return type(value) == "number" and (is_rate(name) or name:find "ratio$" or UNITS[unit_of(name)] ~= nil)
end

function report.median(list)
  local sorted = table.move(list, 1, #list, 1, {})
  table.sort(sorted)
  local middle = #sorted // 2
  return #sorted % 2 == 1 and sorted[middle + 1] or (sorted[middle] + sorted[middle + 1]) / 2
end

-- The rows in the order of their first lines, each with its lines.
local function rows_of(lines)
  local rows, by_title = {}, {}
  for _, line in ipairs(lines) do
    local row = by_title[line.what]
    if not row then
      row = { what = line.what, lines = {} }
      rows[#rows + 1], by_title[line.what] = row, row
    end
    table.insert(row.lines, line)
  end
  return rows
end

local function values(lines, name)
  local list = {}
  for _, line in ipairs(lines) do list[#list + 1] = line[name] end
  return list
end

local function summary(row)
  local medians = { what = row.what, rounds = row.lines }
  for _, line in ipairs(row.lines) do
    for name, value in pairs(line) do
      if is_figure(name, value) then medians[name] = report.median(values(row.lines, name)) end
    end
  end
  return medians
end

--- The medians of all rows.
function report.summarise(lines)
  local rows = rows_of(lines)
  for i, row in ipairs(rows) do rows[i] = summary(row) end
  return rows
end

local function columns_of(rows)
  local there, list = {}, {}
  for _, row in ipairs(rows) do
    for name, value in pairs(row) do there[name] = there[name] or is_figure(name, value) end
  end
  for _, name in ipairs(FIRST) do
    if there[name] then list[#list + 1] = name end
    there[name] = nil
  end
  local rest = {}
  for name, shown in pairs(there) do
    if shown then rest[#rest + 1] = name end
  end
  table.sort(rest)
  return table.move(rest, 1, #rest, #list + 1, list)
end

-- "p99_ms" as "p99, ms", "full_rate" as "full".
local function title_of(name)
  local unit = unit_of(name)
  if not UNITS[unit] then return (name:gsub("_rate$", ""):gsub("_", " ")) end
  return ("%s, %s"):format(name:sub(1, -#unit - 2):gsub("_", " "), (unit:gsub("percent", "%%"):gsub("_", " ")))
end

local function with_commas(n)
  local text, more = ("%.0f"):format(n), 1
  while more > 0 do text, more = text:gsub("^(%-?%d+)(%d%d%d)", "%1,%2") end
  return text
end

local function shown(name, value)
  if not value then return "" end
  if is_rate(name) or value >= 1000 then return with_commas(value) end
  return (value >= 100 and "%.0f" or value >= 10 and "%.1f" or "%.2f"):format(value)
end

local function row_text(columns, row)
  local cells = {}
  for i, name in ipairs(columns) do cells[i] = shown(name, row[name]) end
  return ("| %s | %s |"):format(row.what, table.concat(cells, " | "))
end

--- One question as Markdown: its title, its text, its table.
function report.markdown(question)
  local columns, titles = columns_of(question.rows), {}
  for i, name in ipairs(columns) do titles[i] = title_of(name) end
  local lines = { "", "### " .. question.title }
  if question.text then lines[#lines + 1] = report.wrapped(question.text) end
  lines[#lines + 1] = ""
  lines[#lines + 1] = ("| | %s |"):format(table.concat(titles, " | "))
  lines[#lines + 1] = "|---" .. ("|---:"):rep(#columns) .. "|"
  for _, row in ipairs(question.rows) do lines[#lines + 1] = row_text(columns, row) end
  return table.concat(lines, "\n")
end

--- A paragraph in lines of 100 columns.
function report.wrapped(text)
  local lines, line = {}, ""
  for word in text:gmatch "%S+" do
    if line ~= "" and utf8.len(line) + 1 + utf8.len(word) > 100 then
      lines[#lines + 1], line = line, word
    else
      line = line == "" and word or line .. " " .. word
    end
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

--- The text above the tables.
function report.preamble(facts)
  local m, v = facts.machine, facts.versions
  local lines = {
    ("Machine: %d × %s, %d MB, %s; load at the start %s."):format(m.processors, m.processor, m.memory_mb, m.system,
      m.load),
    ("Nightshift %s %s, %s, MariaDB %s."):format(v.nightshift, v.commit, v.lua, v.server),
    ("Server: %s. Server, clients and workers share the processors."):format(facts.settings),
    ("Payload 100 bytes and history on unless said otherwise.%s Jobs per second, medians of %d rounds. A ratio is the"
      .. " median of the ratios within the rounds."):format(
      facts.scale == 1 and "" or (" All numbers of jobs times %g."):format(facts.scale), facts.rounds),
  }
  for i, line in ipairs(lines) do lines[i] = report.wrapped(line) end
  return table.concat(lines, "\n")
end

return report
