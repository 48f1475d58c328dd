--- The page of jobs: a list by a filter. Actions on its jobs are in verbs.lua.
--
-- Invariant: the list is db:jobs, so it goes by key, and its cost does not depend on the
-- history.

local core = require "nightshift.core"
local layout = require "nightshift.web.layout"
local verbs = require "nightshift.web.verbs"

local STATES <const> = { "running", "ready", "scheduled", "waiting", "done", "dead", "cancelled" }
local SIZES <const> = { 25, 50, 100, verbs.MOST } -- rows of a page
local ROWS <const> = 50
local LOOK <const>, LOOKING <const> = 2000, 0.015 -- jobs that are looked at at a time; seconds after which no more are

-- ---------------------------------------------------------------------- list

--- The instant that matters in the state of a job, with its word.
local function when(row)
  if row.finished_at then return "ended", row.finished_at end
  if row.state == "scheduled" then return "due", row.due end
  if row.state == "running" and row.claimed then return "claimed", row.claimed end
  return "pushed", row.created
end

--- "paused with 12, for 2 jobs".
local function pause_of(row)
  local text = row.paused == row.id and "paused" or ("paused with job %d"):format(math.abs(row.paused))
  return row.unmet and row.unmet > 1 and ("%s, and waits for %d jobs"):format(text, row.unmet - 1) or text
end

--- The most telling fact of a row.
local function note(row)
  if row.progress or row.status then
    local part = row.progress and ("%d%% "):format(row.progress * 100 // 1) or ""
    return part .. (row.status or "")
  end
  if row.error then return ("%s: %s"):format(row.reason or "error", row.error:match "[^\n]*") end
  if row.awaits then return ("for the signal '%s'"):format(row.awaits) end
  if row.state == "waiting" and row.paused then return pause_of(row) end
  if row.reason then return row.reason end
  if not row.unmet or row.unmet == 0 then return "" end
  return ("for %d job%s"):format(row.unmet, row.unmet == 1 and "" or "s")
end

--- It as HTML: one line, with all of it as the title. An empty one is nothing at all.
local function noted(row)
  local text = layout.escape(note(row))
  return text == "" and "" or layout.raw(('<span class="clip" title="%s">%s</span>'):format(text, text))
end

--- One job by its id, as a list.
local function by_id(context, text)
  local id = verbs.whole(text)
  if not id then return nil, "A job's id is a number" end
  local row, message = context.db:job(id)
  if not row then return nil, message end
  return { row }
end

--- Jobs of a filter, and how to go on. It looks on until there are enough, or the time is over.
local function looked_for(db, wanted, stop)
  local found, looked = {}, 0
  while true do
    local rows, more, code = db:jobs(wanted)
    if not rows then return nil, more, code end
    table.move(rows, 1, #rows, #found + 1, found)
    looked = looked + (more and more.looked or 0)
    local enough = not more or not more.looked or wanted.limit <= #rows or core.clock() > stop
    if enough or wanted.state == "running" then -- the running ones go on in another order
      return found, more and { after = more.after, looked = looked > 0 and looked or nil }
    end
    wanted.limit, wanted.after = wanted.limit - #rows, more.after
  end
end

local function list(context, query, given, data)
  local id = verbs.text_of(query, "id")
  local rows, more
  if id then
    rows, more = by_id(context, id)
    if not rows then rows, data.trouble, more = {}, more, nil end
    return rows, more
  end
  local size = math.min(math.max(verbs.whole(verbs.text_of(query, "limit")) or ROWS, 1), SIZES[#SIZES])
  local wanted = verbs.with(given, { limit = size, look = LOOK })
  wanted.after = verbs.whole(verbs.text_of(query, "after")) or nil
  local message, code
  rows, message, code = looked_for(context.db, wanted, core.clock() + LOOKING)
  if rows then return rows, message end
  data.trouble = code and ("%s (%s)"):format(message, code) or message
  return {}
end

local function load(context, request)
  local query = request.query
  local given, message = verbs.filter_of(query)
  local data = { heading = "Jobs", query = query, given = given or query, states = STATES, sizes = SIZES, rows = {},
    size = verbs.whole(verbs.text_of(query, "limit")) or ROWS, readonly = context.readonly, when = when, noted = noted,
    with = verbs.with }
  if not given then
    data.trouble = message
    return data
  end
  data.filtered, data.verbs, data.may = next(given) ~= nil, verbs.verbs_for(given), {}
  for _, verb in ipairs(data.verbs) do data.may[verb.key] = true end
  if verbs.text_of(query, "verb") then return verbs.confirm(context, query, given, data) end
  local more
  data.rows, more = list(context, query, given, data)
  if more then
    local size = data.size ~= ROWS and tostring(data.size) or ""
    data.next_page = verbs.with(given, { after = tostring(more.after), limit = size })
    data.looked = more.looked
  end
  data.first = verbs.text_of(query, "after") and verbs.with(given, { limit = verbs.text_of(query, "limit") or "" })
  return data
end

-- ------------------------------------------------------------------ templates

local FILTER <const> = [==[
<form class="toolbar" method="get" action="$(h.url("/jobs"))" role="search" aria-label="Filter jobs">
<div class="field"><label for="jobs-state">State</label>
<select id="jobs-state" name="state"><option value="">any</option>
# for _, state in ipairs(states) do
<option value="$(state)"$(raw(state == given.state and " selected" or ""))>$(state)</option>
# end
</select></div>
<div class="field"><label for="jobs-queue">Queue</label><input id="jobs-queue" name="queue"
value="$(given.queue)" maxlength="64" autocapitalize="none"></div>
<div class="field"><label for="jobs-name">Name</label><input id="jobs-name" name="name"
value="$(given.name)" maxlength="100" autocapitalize="none"></div>
<div class="field"><label for="jobs-tag">Tag</label><input id="jobs-tag" name="tag"
value="$(given.tag)" maxlength="64" autocapitalize="none"></div>
<div class="field"><label for="jobs-group">Group</label><input id="jobs-group" name="group"
value="$(given.group)" maxlength="190" autocapitalize="none"></div>
<div class="field wide"><label for="jobs-error">Error</label><input id="jobs-error" name="error"
value="$(given.error)" placeholder="the whole text, its first line, or its kind"></div>
<div class="field"><label for="jobs-since">Since</label><input id="jobs-since" name="since"
value="$(given.since)" placeholder="2h, or 2026-11-26T06:00:00Z"></div>
<div class="field"><label for="jobs-parent">Parent</label><input id="jobs-parent" name="parent"
value="$(given.parent)" inputmode="numeric" placeholder="a job's id"></div>
<div class="field"><label for="jobs-limit">Rows</label>
<select id="jobs-limit" name="limit">
# for _, n in ipairs(sizes) do
<option value="$(n)"$(raw(n == size and " selected" or ""))>$(n)</option>
# end
</select></div>
<button class="button main">Show</button> <a class="button" href="$(h.url("/jobs"))">Clear</a>
</form>
]==]

local CONFIRM <const> = [==[
<section class="panel">
# if n == 0 and not at_least then
$(h.empty("There are no " .. words .. " now.", nil))
<p><a href="$(h.url("/jobs", given))">Back to the list</a></p>
# else
# if n == 0 then
<p class="large">$(asks.label): $(words)</p>
# else
<p class="large">$(asks.label): <strong>$(at_least and "at least " or "")$(h.count(n))</strong> $(words)</p>
# end
# if at_least then
<p>Counting takes long, so it was stopped$(n == 0 and " before one was found" or "").
The action is done to all of them.
# if count_on then
<a href="$(h.url("/jobs", count_on))">Count on for a second</a>
# end
</p>
# end
# if asks.about then
<p>$(asks.about)</p>
# end
# if readonly then
<p>This page is read-only: nothing can be changed here.</p>
# else
<form method="post" action="$(h.url("/jobs/begin"))" class="toolbar">
$(h.csrf())
<input type="hidden" name="verb" value="$(verb)">
# for key, value in pairs(given) do
<input type="hidden" name="$(key)" value="$(value)">
# end
# if not at_least then
<input type="hidden" name="total" value="$(n)">
# end
# if asks.field == "priority" then
<div class="field"><label for="jobs-priority">Priority, 0 to 255, higher first</label>
<input id="jobs-priority" name="priority" type="number" min="0" max="255" required></div>
# elseif asks.field == "to" then
<div class="field"><label for="jobs-to">To the queue</label><input id="jobs-to" name="to" maxlength="64"
required autocapitalize="none"></div>
# elseif asks.field == "due" then
<div class="field"><label for="jobs-due">Due, in UTC</label><input id="jobs-due" name="due" required
placeholder="2030-01-31T12:00:00Z"></div>
# elseif asks.field == "reason" then
<div class="field"><label for="jobs-reason">Reason, kept with the jobs</label><input id="jobs-reason"
name="reason" maxlength="200"></div>
# end
<div class="toolbar"><button
class="button $(asks.class or "main")">$(asks.label) $(at_least and "all" or h.count(n))</button>
<a href="$(h.url("/jobs", given))">Back to the list</a></div>
</form>
# end
# end
</section>
]==]

local ROWS_OF <const> = [==[
# local function live(key, row) return given.state and "" or raw((' data-live="%s%d"'):format(key, row.id)) end
<section class="panel"><div class="scroll" tabindex="0" role="region" aria-label="Jobs">
<table class="table cards">
<thead><tr>
# if not readonly then
<th scope="col"><input type="checkbox" data-check-all aria-label="Tick all jobs of this page"></th>
# end
<th scope="col" class="number">ID</th><th scope="col">State</th><th scope="col">Name</th><th scope="col">Queue</th>
<th scope="col" class="number">Priority</th><th scope="col" class="number">Failed</th><th scope="col">When</th>
<th scope="col">Note</th></tr></thead>
<tbody>
# for _, row in ipairs(rows) do
# local word, at = when(row)
<tr data-row>
# if not readonly then
<td><input type="checkbox" name="job_$(row.id)" value="1" aria-label="Job $(row.id)"></td>
# end
<td class="number" data-label="ID"><a href="$(h.url("/jobs/" .. row.id))">$(row.id)</a></td>
<td data-label="State"$(live("s", row))>$(h.state(row.state))</td>
<td data-label="Name"><a href="$(h.url("/jobs", with(given, { name = row.name })))">$(row.name)</a></td>
<td data-label="Queue"><a href="$(h.url("/jobs", with(given, { queue = row.queue })))">$(row.queue)</a></td>
<td class="number" data-label="Priority">$(row.priority)</td>
<td class="number" data-label="Failed">$(row.attempts)/$(row.max_attempts)</td>
<td data-label="When"$(live("t", row))><span>$(word) $(h.time(at))</span></td>
<td data-label="Note"$(live("n", row))>$(noted(row))</td>
</tr>
# end
</tbody></table></div></section>
]==]

local TICKED <const> = [==[
<button class="unseen" name="verb" value="none" tabindex="-1" aria-hidden="true">Nothing</button>
<fieldset class="panel"><legend>Ticked jobs</legend>
<div class="toolbar">
# if may.retry then
<button name="verb" value="retry">Run again</button>
# end
# if may.run_now then
<button name="verb" value="run_now">Run now</button>
# end
# if may.cancel then
<button name="verb" value="cancel" class="button danger">Cancel</button>
# end
# if may.delete then
<button name="verb" value="delete" class="button danger"
data-confirm="Delete the ticked jobs, with all that is known of them?">Delete</button>
# end
</div>
<details><summary>Priority, queue, due time, signal</summary>
<div class="toolbar"><div class="field"><label for="jobs-priority">Priority</label><input id="jobs-priority"
name="priority" type="number" min="0" max="255"></div>
<button name="verb" value="reprioritise">Change priority</button></div>
<div class="toolbar"><div class="field"><label for="jobs-to">Queue</label><input id="jobs-to" name="to"
maxlength="64" autocapitalize="none"></div>
<button name="verb" value="move">Move</button></div>
<div class="toolbar"><div class="field"><label for="jobs-due">Due, in UTC</label><input id="jobs-due"
name="due" placeholder="2030-01-31T12:00:00Z"></div>
<button name="verb" value="due">Change due time</button></div>
<div class="toolbar">
<div class="field"><label for="jobs-signal">Signal</label><input id="jobs-signal" name="signal" maxlength="100"
placeholder="the one it waits for"></div>
<div class="field"><label for="jobs-value">Value, JSON</label><input id="jobs-value" name="value"
placeholder="null"></div>
<button name="verb" value="signal">Send</button></div>
</details>
</fieldset>
]==]

local LIST <const> = [==[
# if #rows == 0 and not trouble then
# if looked then
<p class="dim">None of the $(h.count(looked)) jobs that were looked at.</p>
# elseif filtered or first then
$(h.empty("No jobs are like this now. Take a condition away, or look at all jobs.", nil))
# else
$(h.empty("There are no jobs yet. Push the first one:",
"nightshift push mail email.send '{\"to\": \"a@example.com\"}'"))
# end
# end
# if filtered and not readonly then
<nav class="toolbar" aria-label="All jobs of this filter"><span class="dim">All jobs of this filter:</span>
# for _, verb in ipairs(verbs) do
<a class="button $(verb.class)"
href="$(h.url("/jobs", with(given, { verb = verb.key })))">$(verb.label)…</a>
# end
</nav>
# end
# if #rows > 0 and not readonly then
<form method="post" action="$(h.url("/jobs/ticked"))">
$(h.csrf())
# for key, value in pairs(given) do
<input type="hidden" name="$(key)" value="$(value)">
# end
# end
# if #rows > 0 then
]==] .. ROWS_OF .. [==[
# if not readonly then
]==] .. TICKED .. [==[
</form>
# end
# end
# if next_page or first then
<nav class="pager" aria-label="Pages">
# if first then
<a href="$(h.url("/jobs", first))">First page</a>
# end
# if next_page then
<a href="$(h.url("/jobs", next_page))" rel="next">
# if looked then
Look at more jobs
# else
Next page
# end
</a>
# end
</nav>
# end
]==]
return {
  path = "/jobs",
  title = function(data) return data.heading end,
  entry = "Jobs",
  nav = "jobs",
  load = load,
  body = "# if verb then\n" .. CONFIRM .. "# else\n" .. FILTER .. [==[
# if trouble then
<p class="error" role="alert">$(trouble)</p>
# end
]==] .. LIST .. "# end\n",
  actions = verbs.actions,
}
