--- The page of adopted tables: their rows by state, their hosts, next steps, and the actions on them.
-- Long ones are runs: see runs.lua.
--
-- Invariant: counts go to COUNTED and no further, and say so.

local admin = require "nightshift.source.admin"
local layout = require "nightshift.web.layout"
local options = require "nightshift.options"
local runs = require "nightshift.web.runs"
local units = require "nightshift.units"

local COUNTED <const> = 10000
local STATES <const> = { "ready", "waiting", "running", "done", "dead" }

--- The next steps of a person about a table, in sentences.
local function steps_of(row)
  local list = {}
  if row.error then list[#list + 1] = "Its rows cannot be read: " .. row.error end
  if not row.served then
    list[#list + 1] = "No host takes in its rows. Start one: nightshift work jobs.lua --adopt mapping.lua"
  elseif row.paused then
    list[#list + 1] = "It is paused, so none of its rows starts. Resume it."
  end
  for _, trouble in ipairs(admin.troubles(row)) do list[#list + 1] = trouble end
  local counts = row.counts
  if counts and counts.dead > 0 then
    list[#list + 1] = "Some rows are dead. Look at their errors, mend the cause, and run them again."
  end
  if counts and counts.ready + counts.waiting + counts.running == 0 and counts.dead == 0 then
    list[#list + 1] = "No row is open. When nothing adds rows any more, the table has done its work."
  end
  return list
end

--- "12", "10,000+", or "–": its rows cannot be read.
local function count_of(row, state, h)
  local counts = row.counts
  return counts and h.atleast(counts[state], counts.approximate and counts.approximate[state]) or "–"
end

--- One table with facts that cost more: the index that it lacks, and its mapping.
local function detail(context, data, name)
  for _, row in ipairs(data.rows) do
    if row.table == name then
      local t = admin.open(context.db, name)
      data.one, data.heading = row, name
      data.advice = t and t:advice() or nil
      return data
    end
  end
  return nil, 404, ("No table '%s' has been adopted."):format(options.shown(name))
end

--- The page that asks whether open rows are to become jobs.
local function confirm(data, into)
  local ok, message = options.name("the queue's name", into, options.MAX_QUEUE)
  if not ok then
    data.trouble = message
    return data
  end
  local counts = data.one.counts
  if not counts then return data end
  data.into, data.heading = into, ("Drain %s?"):format(data.one.table)
  data.open = counts.ready + counts.waiting
  data.at_least = counts.approximate and (counts.approximate.ready or counts.approximate.waiting)
  return data
end

local function load(context, request)
  local rows, message = admin.status(context.db, COUNTED)
  if not rows then return nil, 503, message end
  local query = request.query
  local data = { rows = rows, states = STATES, readonly = context.readonly, heading = "Adopted tables",
    steps_of = steps_of, count_of = count_of }
  if not query.table then return data end
  local found, status, why = detail(context, data, query.table)
  if not found then return nil, status, why end
  if query.into and query.into ~= "" then return confirm(data, query.into) end
  return data
end

-- -------------------------------------------------------------------- actions

local function name_of(request)
  local name = request.form.table
  if type(name) == "string" and name ~= "" then return name end
  return nil, "the form names no table", "INVALID"
end

--- Where an action leads to: the page of the table.
local function back(name) return "/adopted" .. layout.query_of { table = name } end

local function set_paused(verb, said)
  return function(context, request)
    local name, message, code = name_of(request)
    if not name then return nil, message, code end
    local queue
    queue, message, code = context.db:queue(name)
    if not queue then return nil, message, code end
    local ok
    ok, message, code = queue[verb](queue)
    if not ok then return nil, message, code end
    return { said = said:format(name), to = back(name) }
  end
end

local actions = { pause = set_paused("pause", "%s is paused."), resume = set_paused("resume", "%s goes on.") }

--- How fast its rows are taken in, by all together.
function actions.tune(context, request)
  local name, message, code = name_of(request)
  if not name then return nil, message, code end
  local rate = tonumber(request.form.rate)
  if not rate then return nil, "the rate must be a number of rows a second; 0: no limit", "INVALID" end
  rate, message = admin.TUNE.rate(rate, "the rate")
  if not rate then return nil, message, "INVALID" end
  local ok
  ok, message, code = admin.tune(context.db._handle, name, { rate = rate })
  if not ok then return nil, message, code end
  return { said = rate == 0 and name .. " has no limit." or ("%s: %s rows a second."):format(name, units.number(rate)),
    to = back(name) }
end

--- Begins a long action on the table of the form. `work` gives a sentence.
local function long(title, work)
  return function(context, request)
    local name, message, code = name_of(request)
    if not name then return nil, message, code end
    local t
    t, message, code = admin.open(context.db, name)
    if not t then return nil, message, code end
    return runs.begin { title = title:format(name), noun = "rows", path = "/adopted", query = { table = name },
      work = function(told) return work(t, told, request.form) end }
  end
end

actions.retry = long("Run dead rows of %s again", function(t, told)
  local n, message, code = admin.retry(t, told)
  if not n then return nil, message, code end
  return ("%d rows will run again."):format(n)
end)

actions.drain = long("Drain %s", function(t, told, form)
  local into = form.into
  if type(into) ~= "string" or into == "" then return nil, "the form names no queue", "INVALID" end
  local done, message, code = admin.drain(t, { into = into, told = told })
  if not done then return nil, message, code end
  return ("%d rows became jobs of the queue '%s'; %d open ones are left."):format(done.jobs, into, done.left)
end)

-- ------------------------------------------------------------------ templates

local COUNTS <const> = [==[
# local function counts_of(row)
# for _, state in ipairs(states) do
<td class="number" data-label="$(state)">$(count_of(row, state, h))</td>
# end
# end
# local function state_of(row)
# if row.paused then
$(h.state("paused"))
# elseif row.served then
$(h.state("ok", "served"))
# else
$(h.state("warn", "not served"))
# end
# end
]==]

local TABLES <const> = [==[
# if #rows == 0 then
$(h.empty("No table has been adopted. Rows of a table that you have can run as jobs. A file says how:",
"nightshift adopt mapping.lua"))
# else
<section class="panel" aria-label="Adopted tables">
<table class="table cards">
<thead><tr><th scope="col">Table</th><th scope="col">State</th>
# for _, state in ipairs(states) do
<th scope="col" class="number">$(state)</th>
# end
<th scope="col" class="number">Rows a second</th><th scope="col">Next</th></tr></thead>
<tbody data-live="adopted">
# for _, row in ipairs(rows) do
<tr data-row>
<td data-label="Table">$(h.link("/adopted", { table = row.table }, row.table))</td>
<td data-label="State">
# state_of(row)
</td>
# counts_of(row)
<td class="number" data-label="Rows a second">$(row.rate and h.count(row.rate) or "no limit")</td>
<td data-label="Next">$(steps_of(row)[1])</td>
</tr>
# end
</tbody></table></section>
# end
]==]

local ONE <const> = [==[
# local row = one
<section class="panel"><div class="scroll" tabindex="0" role="region" aria-label="Its rows"><table class="table cards">
<thead><tr><th scope="col">State</th>
# for _, state in ipairs(states) do
<th scope="col" class="number">$(state)</th>
# end
<th scope="col" class="number">Rows a second</th></tr></thead>
<tbody data-live="one"><tr><td data-label="State">
# state_of(row)
</td>
# counts_of(row)
<td class="number" data-label="Rows a second">$(row.rate and h.count(row.rate) or "no limit")</td></tr>
</tbody></table></div>
<p>Its jobs: $(h.queue(row.table))</p></section>
# local list = steps_of(row)
# if #list > 0 or advice then
<section class="panel"><h2>What to do next</h2><ul>
# for _, text in ipairs(list) do
<li>$(text)</li>
# end
# if advice then
<li>Looks for rows lack an index: <code>$(advice)</code></li>
# end
</ul></section>
# end
# if not readonly then
<section class="panel"><h2>Actions</h2>
<div class="toolbar">
# if row.paused then
$(h.form("/adopted/resume", { table = row.table }, "Resume", { class = "button main" }))
# else
$(h.form("/adopted/pause", { table = row.table }, "Pause", nil))
# end
# if row.counts and row.counts.dead > 0 then
$(h.form("/adopted/retry", { table = row.table }, "Run dead rows again", nil))
# end
</div>
<form method="post" action="$(h.url("/adopted/tune"))" class="toolbar">
$(h.csrf())
<input type="hidden" name="table" value="$(row.table)">
<div class="field"><label for="adop-rate">Rows a second; 0: no limit</label><input id="adop-rate"
name="rate" inputmode="decimal" required value="$(row.rate or 0)"></div>
<button class="button">Set</button></form>
<form method="get" action="$(h.url("/adopted"))" class="toolbar">
<input type="hidden" name="table" value="$(row.table)">
<div class="field"><label for="adop-into">Drain into the queue</label><input id="adop-into" name="into"
maxlength="64" required autocapitalize="none"></div>
<button class="button danger">Drain…</button></form>
</section>
# end
<section class="panel"><h2>Mapping</h2>
$(h.json(row.mapping))
</section>
<p>$(h.link("/adopted", nil, "All adopted tables"))</p>
]==]

local CONFIRM <const> = [==[
<section class="panel">
<p class="large"><strong>$(h.atleast(open, at_least))</strong> open rows of $(one.table)
become jobs of the queue '$(into)', and are deleted from the table.</p>
<p>Rows that are claimed or locked stay, and so do ended ones.</p>
# if readonly then
<p>This page is read-only: nothing can be changed here.</p>
# else
<div class="toolbar">
$(h.form("/adopted/drain", { table = one.table, into = into }, "Drain", { class = "button danger" }))
$(h.link("/adopted", { table = one.table }, "Back"))</div>
# end
</section>
]==]

return {
  path = "/adopted",
  title = function(data) return data.heading end,
  entry = "Adopted tables",
  nav = "adopted",
  load = load,
  body = COUNTS .. [==[
# if trouble then
<p class="error" role="alert">$(trouble)</p>
# end
# if into then
]==] .. CONFIRM .. "# elseif one then\n" .. ONE .. "# else\n" .. TABLES .. "# end\n",
  actions = actions,
}
