--- The page of limits: queues with one, how much of each is used, and groups with the most waiting
-- jobs. Forms set and end limits.
--
-- Invariant: counts are bounded, as in `nightshift limits`.

local limit = require "nightshift.limit"

local limits = {}

local BOXES <const> = {
  { "window", "Fixed windows" }, { "ordered", "Groups in order" }, { "fair", "Groups take turns" },
}

local GROUPS <const> = 20

local function rate_text(list) return list and limit.rate_text(list[1], math.floor(list[2] * 1000000 + 0.5)) end

--- The limit in the fields of the form.
local function fields_of(row)
  local own = row and row.group or {}
  row = row or {}
  return { running = row.running, rate = rate_text(row.rate), backlog = row.backlog, group_running = own.running,
    group_rate = rate_text(own.rate), ordered = own.ordered, fair = own.fair,
    window = row.rate and row.rate[3] or own.rate and own.rate[3] }
end

local function load(context, request)
  local rows, message, code = limit.list(context.db._handle)
  if not rows then return nil, message, code end
  local queue, groups, own = request.query.queue, {}, nil
  if queue == "" then queue = nil end
  for _, row in ipairs(rows) do
    row.words = limit.words(row)
    if row.queue == queue then own = row end
  end
  if own then
    groups, message, code = limit.groups(context.db._handle, queue, GROUPS)
    if not groups then return nil, message, code end
  end
  return { rows = rows, queue = queue, own = own, groups = groups, set = fields_of(own), boxes = BOXES,
    most = limit.MOST }
end

local BODY <const> = [==[
<section class="panel" aria-label="Limits"><div data-live="limits">
# if #rows == 0 then
$(h.empty("No queue has a limit: as many jobs run as there are workers.", "nightshift limit QUEUE --running 10"))
# else
<table class="table cards"><thead><tr><th scope="col">Queue</th><th scope="col" class="number">Running</th>
<th scope="col" class="number">Waiting</th><th scope="col" class="number">Groups</th><th scope="col">Limit</th>
<th scope="col">Now</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead><tbody>
# for _, row in ipairs(rows) do
# local capped = row.counts.capped or {}
<tr data-row><th scope="row">$(h.link("/limits", { queue = row.queue }, row.queue))</th>
<td class="number" data-label="Running">$(row.counts.running and h.count(row.counts.running) or "")
# if row.running then
of $(h.count(row.running))
# end
</td>
<td class="number" data-label="Waiting">$(h.link("/jobs", { queue = row.queue, state = "ready" },
h.atleast(row.counts.waiting, capped.waiting)))</td>
<td class="number" data-label="Groups">$(h.atleast(row.counts.groups, capped.groups))</td>
<td data-label="Limit">$(row.words)</td>
<td data-label="Now">
# if row.lifted then
<span class="dim">it ends</span>
# elseif row.holds then
<span class="warn">full limit: $(row.holds)</span>
# end
# if row.full then
<span class="warn">full: pushes are refused</span>
# end
# if not (row.lifted or row.holds or row.full) then
–
# end
</td>
<td class="end">
$(h.form("/limits/lift", { queue = row.queue }, "End", { label = "End the limit of " .. row.queue,
confirm = "End the limit of " .. row.queue .. "? As many of its jobs run as there are workers." }))
</td></tr>
# end
</tbody></table>
# end
</div></section>
# if own then
<section class="panel" aria-labelledby="groups-title"><h2 id="groups-title">Groups of $(queue)</h2>
<div data-live="groups">
# if #groups == 0 then
<p class="dim">No job waits in its backlog.</p>
# else
<table class="table cards"><thead><tr><th scope="col">Group</th><th scope="col" class="number">Running</th>
<th scope="col" class="number">Waiting</th><th scope="col">Next start</th></tr></thead><tbody>
# for _, row in ipairs(groups) do
<tr><th scope="row">$(row.group == "" and "without a group" or row.group)</th>
<td class="number" data-label="Running">$(h.count(row.running))
# if row.places and row.group ~= "" then
of $(h.count(row.places))
# end
</td>
<td class="number" data-label="Waiting">$(h.count(row.waiting))</td>
<td data-label="Next start">$(h.time(row.due))</td></tr>
# end
</tbody></table>
<p class="dim">Of a long backlog the first $(h.count(most)) jobs are looked at.</p>
# end
</div></section>
# end
# if not readonly then
<section class="panel" aria-labelledby="set-title"><h2 id="set-title">Set a limit</h2>
<p class="dim">It replaces the whole limit of the queue. An empty field is no limit.</p>
<form method="post" action="$(h.url("/limits/set"))" class="toolbar">$(h.csrf())
<div class="field"><label for="queue">Queue</label>
<input id="queue" name="queue" required maxlength="64" value="$(queue or "")"></div>
<div class="field"><label for="running">Running at once</label>
<input id="running" name="running" inputmode="numeric" value="$(set.running or "")"></div>
<div class="field"><label for="rate">Starts, like 500/1m</label>
<input id="rate" name="rate" value="$(set.rate or "")"></div>
<div class="field"><label for="backlog">Waiting at most</label>
<input id="backlog" name="backlog" inputmode="numeric" value="$(set.backlog or "")"></div>
<div class="field"><label for="group_running">Running of a group</label>
<input id="group_running" name="group_running" inputmode="numeric" value="$(set.group_running or "")"></div>
<div class="field"><label for="group_rate">Starts of a group</label>
<input id="group_rate" name="group_rate" value="$(set.group_rate or "")"></div>
# for _, box in ipairs(boxes) do
<label><input type="checkbox" name="$(box[1])" value="1"
# if set[box[1]] then
checked
# end
> $(box[2])</label>
# end
<button class="button main">Set</button></form></section>
# end
]==]

-- --------------------------------------------------------------------- actions

--- A number in a field; nil: the field is empty. Raises its words for any other text.
local function number(form, key)
  local text = (form[key] or ""):match "^%s*(.-)%s*$"
  if text == "" then return nil end
  return math.tointeger(tonumber(text)) or error({ key .. " must be a whole number, got '" .. text .. "'" }, 0)
end

local function rate(form, key)
  local text = (form[key] or ""):match "^%s*(.-)%s*$"
  if text == "" then return nil end
  local n, span = text:match "^(%d+)%s*/%s*(.+)$"
  if not n then error({ key .. " must be starts and a time, like 500/1m; got '" .. text .. "'" }, 0) end
  return { math.tointeger(tonumber(n)), span, form.window and "window" or nil }
end

local function wanted(form)
  local own = { running = number(form, "group_running"), rate = rate(form, "group_rate"),
    ordered = form.ordered and true or nil, fair = form.fair and true or nil }
  return { running = number(form, "running"), rate = rate(form, "rate"), backlog = number(form, "backlog"),
    group = next(own) and own or nil }
end

local function change(context, name, given, said)
  local queue, message, code = context.db:queue(name)
  if not queue then return nil, message, code end
  local ok
  ok, message, code = queue:limit(given)
  if not ok then return nil, message, code end
  return { said = said:format(name) }
end

local function set(context, request)
  local ok, given = pcall(wanted, request.form)
  if not ok and type(given) ~= "table" then error(given, 0) end
  if not ok then return nil, given[1], "INVALID" end
  return change(context, request.form.queue or "", given, "The queue '%s' has its limit.")
end

local function lift(context, request)
  return change(context, request.form.queue or "", nil, "The queue '%s' has no limit any more.")
end

limits.path, limits.title, limits.nav, limits.load, limits.body = "/limits", "Limits", "limits", load, BODY
limits.actions = { set = set, lift = lift }

return limits
