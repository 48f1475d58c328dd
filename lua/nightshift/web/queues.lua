--- The page of queues: counts, ages and rates, how long the rest takes, and pauses.
--
-- Invariant: counts are those of `scale`, bounded, and so the page costs the same however many jobs
-- there are. A count of many ready jobs is done between requests, for later looks.

local layout = require "nightshift.web.layout"
local pauses = require("nightshift.queue").pauses
local report = require "nightshift.report"
local scale = require "nightshift.report.scale"

local queues = {}

local STATES <const> = { "ready", "running", "scheduled", "waiting", "dead" }
local MINUTES <const> = 5 -- of a rate
local BRIEF <const> = 20 -- queues of the overview
local OLD <const> = 60 -- s; a count that is older says so

--- Adds `rate` to the rows: jobs that ended a minute, over the last five.
---@param handle userdata core handle
---@param rows table[] of db:stats
---@return true|nil
---@return string? message
---@return string? code
function queues.add_rates(handle, rows)
  local ended, message, code = handle:execute("@report_rates", MINUTES)
  if not ended then return nil, message, code end
  local by_name = {}
  for _, row in ipairs(ended) do by_name[row.queue] = row.ended end
  for _, row in ipairs(rows) do row.rate = (by_name[row.name] or 0) / MINUTES end
  return true
end

-- Handles of databases with many ready jobs, which are to be counted.
local stale = {}

--- Counts the ready jobs of one database; is one left?
---@return boolean
function queues.turn()
  local handle = next(stale)
  if not handle then return false end
  stale[handle] = nil
  if handle:is_open() then scale.look(handle, {}) end
  return next(stale) ~= nil
end

--- Rows of all queues. An account with older grants has no numbers of `scale`.
---@param handle userdata core handle
---@param now integer the server's clock, µs
---@return table[]|nil
---@return string? message
---@return string? code
function queues.look(handle, now)
  local glance, facts, code = scale.glance(handle)
  if glance then
    stale[handle] = facts.stale or nil
    return report.scaled_queues(handle, glance, facts)
  end
  if code ~= "DENIED" then return nil, facts, code end
  return report.queues(handle, now, false, report.GLANCED)
end

local ROWS <const> = layout.compile("rows of queues", [[
# if #list == 0 then
$(h.empty("There are no queues yet: the first push makes one.", "nightshift push QUEUE NAME '{}'"))
# else
<table class="table cards"><thead><tr><th scope="col">Queue</th>
# for _, state in ipairs(states) do
<th scope="col" class="number">$(state:sub(1, 1):upper() .. state:sub(2))</th>
# end
<th scope="col" class="number">Oldest ready</th><th scope="col" class="number">Next due</th>
# if scales then
<th scope="col" class="number">Pushed a minute</th><th scope="col" class="number">Ended a minute</th>
<th scope="col" class="number">Done in</th><th scope="col" class="number">Workers</th>
# else
<th scope="col" class="number">Per minute</th>
# end
<th scope="col"><span class="unseen">Pause</span></th></tr></thead><tbody>
# for _, row in ipairs(list) do
<tr data-row><th scope="row">$(h.queue(row.name))
# if row.paused then
$(h.state("paused"))
# end
# if row.limited then
$(h.link("/limits", { queue = row.name }, "limited", "dim"))
# end
</th>
# for _, state in ipairs(states) do
<td class="number $(row[state] == 0 and "zero" or "")" data-label="$(state:sub(1, 1):upper() .. state:sub(2))">
# if row[state] == 0 then
0
# else
$(count(row, state))
# end
</td>
# end
<td class="number $(row.oldest and "" or "zero")" data-label="Oldest ready">$(h.seconds(row.oldest))</td>
<td class="number $(row.next and "" or "zero")" data-label="Next due">$(h.seconds(row.next))</td>
# local scaled = row.scaled
# if scales and scaled then
<td class="number" data-label="Pushed a minute">$(per_minute(scaled.rate_in))</td>
<td class="number" data-label="Ended a minute">$(per_minute(scaled.rate_out))</td>
# local many = row.approximate and row.approximate.ready
# local rest = not many and scaled.drain_seconds and h.seconds(scaled.drain_seconds) or "not known"
<td class="number" data-label="Done in">$(rest)</td>
<td class="number" data-label="Workers">$(h.count(scaled.workers)), $(h.atleast(scaled.wanted, many)) wanted</td>
# elseif scales then
<td></td><td></td><td></td><td></td>
# else
<td class="number" data-label="Per minute">$(h.count(row.rate))</td>
# end
<td class="end">
# if row.paused then
$(h.form("/queues/resume", { queue = row.name, to = to }, "Resume", { label = "Resume " .. row.name }))
# else
$(h.form("/queues/pause", { queue = row.name, to = to }, "Pause", { label = "Pause " .. row.name }))
# end
# if removes and row.empty then
# local asks = "Remove the queue " .. row.name .. "? Its history stays."
$(h.form("/queues/remove", { queue = row.name }, "Remove", { label = "Remove " .. row.name, confirm = asks }))
# end
</td></tr>
# end
</tbody></table>
# if left > 0 then
<p class="dim">$(left) more: $(h.link("/queues", nil, "all queues"))</p>
# end
# if note ~= "" then
<p class="dim">$(note)</p>
# end
# end
]])

--- Live jobs.
local function work_of(row) return row.ready + row.running + row.scheduled + row.waiting end

--- What the numbers of these rows do not tell by themselves; "": nothing.
local function note_of(h, list)
  local cut, counting, ago, said = false, false, 0, {}
  for _, row in ipairs(list) do
    local states = row.approximate or {}
    for state in pairs(states) do cut = cut or state ~= "ready" or not row.scaled end
    counting = counting or states.ready and row.scaled ~= nil
    ago = math.max(ago, row.scaled and row.scaled.counted_ago or 0)
  end
  local most = h.atleast(report.MOST, true)
  if cut then said[1] = most .. ": there are more of these, which are not counted." end
  if counting then said[#said + 1] = "Ready jobs are being counted: the next look has their number." end
  if ago >= OLD then said[#said + 1] = ("Ready jobs were counted %s ago."):format(h.seconds(ago)) end
  return table.concat(said, " ")
end

--- The table of queues. `brief`: the busiest only, for the overview.
---@param h table
---@param stats table of db:stats, with rates
---@param opts {brief: boolean?}
---@return table html
function queues.rows(h, stats, opts)
  local list = table.move(stats.queues, 1, #stats.queues, 1, {})
  local left = 0
  for _, row in ipairs(list) do row.empty = work_of(row) == 0 end
  if opts.brief and #list > BRIEF then
    table.sort(list, function(a, b)
      if work_of(a) ~= work_of(b) then return work_of(a) > work_of(b) end
      return a.name < b.name
    end)
    left = #list - BRIEF
    list = table.move(list, 1, BRIEF, 1, {})
  end
  local function count(row, state)
    local more = row.approximate and row.approximate[state]
    return h.link("/jobs", { queue = row.name, state = state }, h.atleast(row[state], more))
  end
  local scales = false
  for _, row in ipairs(list) do scales = scales or not opts.brief and row.scaled ~= nil end
  local function per_minute(rate) return h.count((rate * 600 + 0.5) // 1 / 10) end
  return layout.raw(ROWS { h = h, list = list, states = STATES, left = left, removes = not opts.brief, count = count,
    note = note_of(h, list), scales = scales, per_minute = per_minute, to = opts.brief and "/" or nil })
end

local function load(context)
  local handle = context.db._handle
  local rows, message, code = queues.look(handle, math.floor(context.now * 1000000))
  if not rows then return nil, message, code end
  local ok, paused
  ok, message, code = queues.add_rates(handle, rows)
  if not ok then return nil, message, code end
  paused, message, code = pauses.list(handle)
  if not paused then return nil, message, code end
  return { stats = { queues = rows }, paused = paused, rows = queues.rows }
end

local BODY <const> = [[
<div class="toolbar" data-live="all">
# if paused.all then
<p class="warn">Every queue is paused, since $(h.time(paused.all)).</p>
$(h.form("/queues/resume_all", nil, "Resume all", { class = "button main" }))
# else
# local asks = "Pause every queue? No job starts anywhere until they are resumed."
$(h.form("/queues/pause_all", nil, "Pause all", { confirm = asks }))
# end
</div>
<section class="panel" aria-label="Queues"><div data-live="queues">$(rows(h, stats, {}))</div></section>
<section class="panel" aria-labelledby="names-title"><h2 id="names-title">Paused names</h2>
<div data-live="names">
# if #paused.names == 0 then
<p class="dim">Jobs of every name may start. A name that is paused is so in every queue.</p>
# else
<table class="table cards"><thead><tr><th scope="col">Name</th><th scope="col">Since</th>
<th scope="col"><span class="unseen">Resume</span></th></tr></thead><tbody>
# for _, row in ipairs(paused.names) do
<tr data-row><th scope="row">$(h.link("/jobs", { name = row.name }, row.name))</th>
<td data-label="Since">$(h.time(row.since))</td>
<td class="end">
$(h.form("/queues/resume_name", { name = row.name }, "Resume", { label = "Resume " .. row.name }))</td></tr>
# end
</tbody></table>
# end
</div>
# if not readonly then
<form method="post" action="$(h.url("/queues/pause_name"))" class="toolbar">$(h.csrf())
<div class="field"><label for="name">Name of jobs</label><input id="name" name="name" required maxlength="100"></div>
<button class="button">Pause this name</button></form>
# end
</section>
]]

-- --------------------------------------------------------------------- actions

--- An action on a queue. A button names one that is there; another one would be made.
local function on_queue(verb, said)
  return function(context, request)
    local name = request.form.queue or ""
    local queue, message, code = context.db:queue(name)
    if not queue then return nil, message, code end
    local ok
    ok, message, code = queue[verb](queue)
    if not ok then return nil, message, code end
    return { said = said:format(name), to = request.form.to == "/" and "/" or nil }
  end
end

--- An action on a name of jobs, or on all queues (which is without a name).
local function on_names(verb, said, before)
  return function(context, request)
    local name = request.form.name or ""
    local changed, message, code
    if verb:find "_name$" then
      changed, message, code = context.db[verb](context.db, name)
    else
      changed, message, code = context.db[verb](context.db)
    end
    if changed == nil then return nil, message, code end
    return { said = (changed and said or before):format(name) }
  end
end

local function remove(context, request)
  local name = request.form.queue or ""
  local ok, message, code = context.db:remove_queue(name)
  if not ok then return nil, message, code end
  return { said = ("The queue '%s' is removed."):format(name) }
end

queues.path, queues.title, queues.nav, queues.load, queues.body = "/queues", "Queues", "queues", load, BODY
queues.actions = {
  pause = on_queue("pause", "The queue '%s' is paused: none of its jobs starts."),
  resume = on_queue("resume", "The queue '%s' goes on."),
  pause_all = on_names("pause_all", "Every queue is paused.", "Every queue was paused before."),
  resume_all = on_names("resume_all", "Queues go on, but for those that are paused by themselves.",
    "They were not paused together."),
  pause_name = on_names("pause_name", "Jobs named '%s' are paused.", "Jobs named '%s' were paused before."),
  resume_name = on_names("resume_name", "Jobs named '%s' go on.", "Jobs named '%s' were not paused."),
  remove = remove,
}

return queues
