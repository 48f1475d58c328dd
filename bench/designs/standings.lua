--- The output of bench/designs/strategies.lua: tables of medians, and the plots.
--
-- Results are lines of bench/designs/contenders.lua: results.work[name][workers][round],
-- results.death[name][round], results.purge[name][round] = {free=, blocked=}. And
-- results.rows[name][i], one for each number of workers.
local contenders = require "bench.designs.contenders"
local plot = require "bench.lib.plot"
local report = require "bench.lib.report"

local standings = {}

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
