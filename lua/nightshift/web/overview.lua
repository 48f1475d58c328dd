--- The first page: troubles, charts of the work done, errors, queues and hosts.
--
-- Reasons for jobs not to run stand on top, each with a link to mend it. The figures are those of
-- the page of queues, whose counts are bounded, and of the minutes that hosts have counted.
--
-- Invariant: the page costs the same however many jobs there are.

local admin = require "nightshift.source.admin"
local chart = require "nightshift.web.chart"
local hosts = require "nightshift.hosts"
local layout = require "nightshift.web.layout"
local limit = require "nightshift.limit"
local memory_of = require("nightshift.web.hosts").memory_of
local queues = require "nightshift.web.queues"
local report = require "nightshift.report"
local series = require("nightshift.report.figures").series
local units = require "nightshift.units"
local versions = hosts.versions

local SPANS <const> = { { "1h", 3600, "1 hour", 1 }, { "1d", 86400, "1 day", 15 }, { "7d", 604800, "7 days", 120 } }
local STATES <const> = { "ready", "running", "scheduled", "waiting", "dead" }
local SILENT <const> = 30 -- s; a host says that it lives every ten
local LONG <const> = 600 -- s that a job may be ready
local NAMED <const> = 20 -- rows of one kind that need attention
local GLANCE <const> = 2000 -- ready and scheduled jobs that are looked at for names without a host
local KINDS <const>, LOOKED <const>, TEXT <const> = 5, 300, 200 -- errors: kinds, jobs looked at, bytes

-- -------------------------------------------------------------------- attention

local function jobs(count, more) return ("%s%s job%s"):format(count, more and "+" or "", count == 1 and "" or "s") end

local function add_pauses(list, stats)
  local paused = stats.paused
  if paused.all then
    list[#list + 1] = { bad = true, text = "Every queue is paused: no job starts anywhere.", path = "/queues",
      link = "Queues", action = "/queues/resume_all", label = "Resume all" }
  end
  for i = 1, math.min(NAMED, #paused.names) do
    local name = paused.names[i].name
    list[#list + 1] = { text = ("Jobs named '%s' are paused."):format(name), path = "/jobs",
      query = { state = "ready", name = name }, link = "Its jobs", action = "/queues/resume_name",
      fields = { name = name }, label = "Resume" }
  end
  for _, row in ipairs(stats.queues) do
    local n = row.ready + row.scheduled
    if row.paused and not paused.all and n > 0 then
      local more = row.approximate and (row.approximate.ready or row.approximate.scheduled)
      list[#list + 1] = { text = ("The queue '%s' is paused, and has %s."):format(row.name, jobs(n, more)),
        path = "/jobs", query = { queue = row.name, state = row.ready > 0 and "ready" or "scheduled" },
        link = "Its jobs", action = "/queues/resume", fields = { queue = row.name }, label = "Resume" }
    end
  end
end

--- Limits that keep all waiting jobs of their queue from starting. Gives the queues.
local function add_full(list, stats, limits)
  local held, paused = {}, {}
  for _, row in ipairs(stats.queues) do paused[row.name] = row.paused or stats.paused.all end
  for _, row in ipairs(limits) do
    if row.holds and not paused[row.queue] then
      held[row.queue] = true
      local text = ("The queue '%s' has a full limit: %s."):format(row.queue, row.holds)
      list[#list + 1] = { text = text, path = "/jobs", query = { queue = row.queue, state = "ready" },
        link = "Its jobs", more = "/limits", more_query = { queue = row.queue }, more_link = "Its limit" }
    end
    if row.full then
      local text = ("The backlog of '%s' is full: pushes are refused."):format(row.queue)
      list[#list + 1] = { bad = true, text = text, path = "/limits", query = { queue = row.queue },
        link = "Its limit" }
    end
  end
  return held
end

--- Names that no host serves; or there is no host at all.
local function add_unserved(list, stats, live)
  local ready, more = 0, false
  for _, row in ipairs(stats.queues) do
    ready, more = ready + row.ready, more or row.approximate ~= nil and row.approximate.ready == true
  end
  if live == 0 then
    if ready > 0 then
      list[#list + 1] = { bad = true, text = ("No host runs, and %s %s ready. Start one: nightshift work FILE"):format(
        jobs(ready, more), ready == 1 and "is" or "are"), path = "/hosts", link = "Hosts" }
    end
    return
  end
  for i = 1, math.min(NAMED, #stats.unserved) do
    local row = stats.unserved[i]
    local text = "No live host has a handler for " .. hosts.unserved_text(row, "due later") .. "."
    local state = row.later < row.n and "ready" or "scheduled"
    list[#list + 1] = { bad = true, text = text, path = "/jobs", link = "Its jobs",
      query = { name = row.name, queue = row.queue, state = state } }
  end
end

local function add_hosts(list, stats)
  for _, row in ipairs(stats.holders) do
    local name = ("Host %d (pid %d on %s)"):format(row.id, row.pid, row.host)
    if row.load_error then
      local text = versions.failure(row, stats.now - row.load_ended):gsub("^host", "Host", 1)
      list[#list + 1] = { bad = true, text = text, path = "/hosts", link = "Hosts" }
    end
    if row.kind == "host" and stats.now - row.beat > SILENT then
      local text = ("%s has been silent for %s."):format(name, units.words(stats.now - row.beat))
      list[#list + 1] = { bad = true, text = text, path = "/hosts", link = "Hosts" }
    end
    if row.unsettled then
      local late = row.unsettled
      local text = ("The database does not take %d verdicts of host %d; the oldest has waited %s."):format(late.n,
        row.id, units.words(late.oldest))
      list[#list + 1] = { bad = true, text = text, path = "/hosts", link = "Hosts" }
    end
  end
end

--- Ready jobs that have waited long, though nothing of the above says why.
local function add_late(list, stats, live, full)
  local unserved = full
  for _, row in ipairs(stats.unserved) do unserved[row.queue] = true end
  for _, row in ipairs(stats.queues) do
    local held = row.paused or stats.paused.all or unserved[row.name] or live == 0
    if not held and (row.oldest or 0) > LONG then
      local text = ("The oldest ready job of '%s' has waited %s: its workers are busy, or too few."):format(row.name,
        units.words(row.oldest))
      list[#list + 1] = { text = text, path = "/jobs", link = "Its jobs",
        query = { queue = row.name, state = "ready" } }
    end
  end
end

--- Adopted tables and schedules that are in trouble.
local function add_others(list, tables, schedules)
  for _, row in ipairs(tables) do
    for _, text in ipairs(admin.troubles(row)) do
      list[#list + 1] = { text = text:gsub("^%l", string.upper) .. ".", path = "/adopted", link = "Adopted tables" }
    end
  end
  for _, row in ipairs(schedules) do
    list[#list + 1] = { bad = true, text = ("The schedule '%s' has no ticks: %s"):format(row.name, row.error),
      path = "/schedules", link = "Schedules" }
  end
end

--- How many jobs are looked at for names that no host serves; nil: all of them are.
local function glanced(stats, live)
  local more, ready, scheduled = false, 0, 0
  for _, row in ipairs(stats.queues) do
    ready, scheduled = ready + row.ready, scheduled + row.scheduled
    more = more or row.approximate and (row.approximate.ready or row.approximate.scheduled)
  end
  return live > 0 and (more or ready > GLANCE or scheduled > GLANCE) and GLANCE or nil
end

--- All that needs attention, the worst first.
local function attention(stats, live, tables, schedules, limits)
  local list, sorted = {}, {}
  add_others(list, tables, schedules)
  add_pauses(list, stats)
  local full = add_full(list, stats, limits)
  add_unserved(list, stats, live)
  add_hosts(list, stats)
  add_late(list, stats, live, full)
  for _, bad in ipairs { true, false } do
    for _, row in ipairs(list) do
      if (row.bad or false) == bad then sorted[#sorted + 1] = row end
    end
  end
  return sorted
end

-- --------------------------------------------------------------------- figures

--- Jobs of each state in all queues.
local function totals(stats)
  local tiles = {}
  for i, state in ipairs(STATES) do
    local tile = { state = state, n = 0 }
    for _, row in ipairs(stats.queues) do
      tile.n = tile.n + (row[state] or 0)
      tile.more = tile.more or row.approximate and row.approximate[state]
    end
    tiles[i] = tile
  end
  return tiles
end

local function span_of(request)
  for _, span in ipairs(SPANS) do
    if request.query.span == span[1] then return span end
  end
  return SPANS[1]
end

--- A column of the buckets, each divided by `by`.
local function column(rows, key, by)
  local values = {}
  for i, row in ipairs(rows) do values[i] = row[key] and row[key] / (by or 1) end
  return values
end

local function rate(value) return ("%s/min"):format(layout.count(value < 100 and value or math.floor(value + 0.5))) end

local function whole(value) return layout.count(math.ceil(value)) end

local function draw(rows, span)
  local at = column(rows, "at")
  local function panel(title, format, list)
    return { title = title, html = chart.draw { title = title .. ", last " .. span[3], at = at, span = span[2],
      format = format, series = list } }
  end
  local minutes = span[4]
  return {
    panel("Throughput", rate, {
      { label = "done", class = "green", area = true, values = column(rows, "done", minutes) },
      { label = "pushed", class = "blue", dashed = true, values = column(rows, "pushed", minutes) } }),
    panel("Latency", layout.seconds, {
      { label = "mean wait", class = "blue", area = true, values = column(rows, "wait") },
      { label = "mean run", class = "violet", values = column(rows, "run") } }),
    panel("Failures", whole, {
      { label = "failed attempts", class = "violet", area = true, values = column(rows, "failed") },
      { label = "dead", class = "red", values = column(rows, "dead") } }),
  }
end

-- ----------------------------------------------------------------------- page

local function load(context, request)
  local db, span = context.db, span_of(request)
  local ok, kinds, tables, schedules
  local list, message, code = queues.look(db._handle, math.floor(context.now * 1000000))
  if not list then return nil, message, code end
  local stats
  stats, message, code = report.stats(db._handle, GLANCE, list)
  if not stats then return nil, message, code end
  local rows
  rows, message, code = series(db, span[2])
  if not rows then return nil, message, code end
  tables, message, code = admin.list(db._handle)
  if not tables then return nil, message, code end
  schedules, message, code = db._handle:execute("@report_schedules_failed", NAMED)
  if not schedules then return nil, message, code end
  local limits
  limits, message, code = limit.list(db._handle)
  if not limits then return nil, message, code end
  local live = {}
  for _, row in ipairs(stats.holders) do
    if row.kind == "host" then
      live[#live + 1], row.memory = row, memory_of(row)
    end
  end
  ok, message, code = queues.add_rates(db._handle, stats.queues)
  if not ok then return nil, message, code end
  kinds, message, code = db:errors { since = "1h", look = LOOKED, limit = KINDS }
  if not kinds then return nil, message, code end
  return {
    stats = stats, list = attention(stats, #live, tables, schedules, limits), tiles = totals(stats), hosts = live,
    glanced = glanced(stats, #live),
    charts = draw(rows, span), spans = SPANS, span = span, rows = queues.rows, kinds = kinds,
    first_line = function(text) return layout.cut(text:match "[^\n]*", TEXT) end,
  }
end

local BODY <const> = [[
<div data-live="attention">
# if #list > 0 then
<section aria-labelledby="attention-title"><h2 id="attention-title">Needs attention</h2>
<ul class="attention">
# for _, row in ipairs(list) do
<li class="$(row.bad and "is-bad" or "")"><p>$(row.text)</p>$(h.link(row.path, row.query, row.link))
# if row.more then
$(h.link(row.more, row.more_query, row.more_link))
# end
# if row.action then
$(h.form(row.action, row.fields, row.label))
# end
</li>
# end
</ul></section>
# end
# if glanced then
<p class="dim">Names that no host serves are looked for among the first $(h.count(glanced)) ready jobs, and as many
scheduled ones.</p>
# end
</div>
<ul class="tiles" data-live="tiles">
# for _, tile in ipairs(tiles) do
<li class="tile"><a href="$(h.url("/jobs", { state = tile.state }))"><b>$(h.atleast(tile.n, tile.more))</b>
<span>$(tile.state)</span></a></li>
# end
</ul>
<section aria-labelledby="charts-title">
<div class="title"><h2 id="charts-title">What has happened</h2>
<ul class="tabs" aria-label="Time that the charts show">
# for _, item in ipairs(spans) do
<li><a href="$(h.url("/", { span = item[1] }))"
# if item == span then
aria-current="true"
# end
>$(item[3])</a></li>
# end
</ul></div>
<div class="grid">
# for i, panel in ipairs(charts) do
<section class="panel" aria-label="$(panel.title)"><h2>$(panel.title)</h2>
<div data-live="chart$(i)">$(panel.html)</div></section>
# end
</div></section>
<section class="panel" aria-labelledby="queues-title">
<h2 id="queues-title">Queues <span class="more">$(h.link("/queues", nil, "All queues"))</span></h2>
<div data-live="queues">$(rows(h, stats, { brief = true }))</div>
</section>
<section class="panel" aria-labelledby="errors-title">
<h2 id="errors-title">Failures of the last hour <span class="more">$(h.link("/errors", nil, "All errors"))</span></h2>
<div data-live="errors">
# if #kinds == 0 then
<p class="dim">No job has failed.</p>
# else
<table class="table cards"><thead><tr><th scope="col">Error</th><th scope="col">Job</th><th scope="col">Queue</th>
<th scope="col" class="number">Dead</th><th scope="col" class="number">Retrying</th>
<th scope="col">Last</th></tr></thead><tbody>
# for _, row in ipairs(kinds) do
<tr data-row><th scope="row">$(h.link("/jobs", { error = row.error }, first_line(row.error)))</th>
<td data-label="Job">$(row.name)</td><td data-label="Queue">$(h.queue(row.queue))</td>
<td class="number" data-label="Dead">$(h.count(row.dead))</td>
<td class="number" data-label="Retrying">$(h.count(row.retrying))</td>
<td data-label="Last">$(h.time(row.last))</td></tr>
# end
</tbody></table>
# end
</div></section>
<section class="panel" aria-labelledby="hosts-title">
<h2 id="hosts-title">Hosts <span class="more">$(h.link("/hosts", nil, "Workers"))</span></h2>
<div data-live="hosts">
# if #hosts == 0 then
$(h.empty("No host runs. Hosts run the jobs, with the handlers of Lua files.", "nightshift work FILE"))
# else
<table class="table cards"><thead><tr><th scope="col">Host</th><th scope="col" class="number">Pid</th>
<th scope="col" class="number">Workers</th><th scope="col" class="number">Busy</th><th scope="col">Scripts</th>
<th scope="col" class="number">Memory</th><th scope="col">Since</th><th scope="col">Last sign</th></tr></thead><tbody>
# for _, row in ipairs(hosts) do
<tr data-row><th scope="row">$(h.link("/hosts", nil, row.host))</th><td class="number" data-label="Pid">$(row.pid)</td>
<td class="number" data-label="Workers">$(h.count(row.workers))</td>
<td class="number" data-label="Busy">$(h.count(row.busy))</td>
<td data-label="Scripts"><code>$(row.scripts or "–")</code>
# if (row.old_scripts or 0) > 0 then
<span class="warn">$(row.old_scripts) old</span>
# end
</td><td class="number" data-label="Memory">$(h.bytes(row.memory))</td>
<td data-label="Since">$(h.time(row.started))</td><td data-label="Last sign">$(h.time(row.beat))</td></tr>
# end
</tbody></table>
# end
</div></section>
]]

return { path = "/", title = "Overview", nav = "overview", load = load, body = BODY }
