--- The page of jobs: a list by a filter, actions on ticked jobs and on all of the filter.
--
-- An action on a filter is first a page that counts these jobs. Its form begins a
-- run, which is done in slices: see runs.lua. Ticked jobs are done at once, one after the other.
--
-- Invariant: the list is db:jobs, so it goes by key, and its cost does not depend on the
-- history. A count stops after COUNTING seconds, and says so.

local core = require "nightshift.core"
local change = require "nightshift.change"
local filter = require "nightshift.filter"
local many = require "nightshift.many"
local layout = require "nightshift.web.layout"
local options = require "nightshift.options"
local runs = require "nightshift.web.runs"

local STATES <const> = { "running", "ready", "scheduled", "waiting", "done", "dead", "cancelled" }
local KEYS <const> = { "state", "queue", "name", "tag", "group", "error", "since", "parent" }
local SIZES <const> = { 25, 50, 100, 200 } -- rows of a page
local ROWS <const> = 50
local LOOK <const>, LOOKING <const> = 2000, 0.015 -- jobs that are looked at at a time; seconds after which no more are
local COUNTING <const>, COUNTING_ON <const> = 0.015, 0.8 -- seconds, and when more is asked for
local TOLD <const> = 3 -- failures of ticked jobs that are told
local SINGLE <const> = 25 -- jobs of a batch, where each is a transaction

local function set(...)
  local found = {}
  for _, word in ipairs { ... } do found[word] = true end
  return found
end

local LIVE <const> = set("running", "ready", "scheduled", "waiting")

--- The verbs. `states`: of jobs that it is for. `default`: the states of a filter without one.
-- `core`: the verb of many.lua. `field`: of the form, a value that it needs. `done` is said of jobs,
-- and `label` is on the button.
local VERBS <const> = {
  retry = { label = "Run again", core = "retry", states = filter.ENDED, default = "dead", done = "will run again",
    about = "They get fresh attempts and the payload that they have." },
  run_now = { label = "Run now", core = "run_now", states = set "scheduled", default = "scheduled",
    done = "made ready" },
  reprioritise = { label = "Change priority", core = "reprioritise", states = LIVE, default = "live",
    field = "priority", done = "have another priority" },
  move = { label = "Move to a queue", core = "move", field = "to", done = "moved",
    states = set("scheduled", "waiting", "ready", "done", "dead", "cancelled"),
    default = "scheduled, ready and waiting" },
  due = { label = "Change due time", core = "update", field = "due", done = "have another due time",
    states = set("scheduled", "waiting", "ready", "dead", "cancelled"), default = "scheduled, ready and waiting" },
  cancel = { label = "Cancel", core = "cancel", states = LIVE, default = "live", field = "reason", class = "danger",
    done = "cancelled", about = "They end as cancelled. Running ones are told, and stopped if they do not listen." },
  delete = { label = "Delete", core = "delete", class = "danger", done = "deleted",
    states = set("scheduled", "waiting", "ready", "done", "dead", "cancelled"), default = "done, dead and cancelled",
    about = "They go with payload, result, errors and log. That cannot be undone." },
  signal = { label = "Send a signal", field = "value", states = set "waiting", done = "told" }, -- of ticked jobs only
}
local ORDER <const> = { "retry", "run_now", "reprioritise", "move", "due", "cancel", "delete" }

-- -------------------------------------------------------------------- filter

--- A field of a form or query; nil: it is empty.
local function text_of(fields, key)
  local value = fields[key]
  if type(value) ~= "string" or value == "" then return nil end
  return value
end

local function whole(text) return text and text:find "^%d+$" and math.tointeger(tonumber(text)) end

--- The conditions among the fields, as db:jobs takes them.
---@return table|nil given
---@return string? message
local function filter_of(fields)
  local given = {}
  for _, key in ipairs(KEYS) do
    local value = text_of(fields, key)
    if value and key == "parent" then
      value = whole(value)
      if not value or value < 1 then return nil, "The parent must be a job's id, which is a number" end
    end
    if value then
      if type(value) == "string" and not utf8.len(value) then return nil, key .. " is not valid UTF-8" end
      local ok, message = filter.CONDITIONS[key](value, key)
      if ok == nil then return nil, message end
      given[key] = value
    end
  end
  return given
end

--- The filter in words: "dead jobs of the queue 'mail' with the error '…'".
local function in_words(given, kind)
  local text = (given.state or kind or "") .. " jobs"
  if given.queue then text = ("%s of the queue '%s'"):format(text, given.queue) end
  if given.name then text = ("%s named '%s'"):format(text, given.name) end
  if given.tag then text = ("%s with the tag '%s'"):format(text, given.tag) end
  if given.group then text = ("%s of the group '%s'"):format(text, given.group) end
  if given.error then text = ("%s with the error '%s'"):format(text, given.error) end
  if given.parent then text = ("%s that are children of job %d"):format(text, given.parent) end
  if given.since then text = ("%s since %s"):format(text, given.since) end
  return text:gsub("^ ", "")
end

--- A copy with more, or other, fields; "" takes one away.
local function with(fields, more)
  local all = {}
  for key, value in pairs(fields) do all[key] = value end
  for key, value in pairs(more) do all[key] = value ~= "" and value or nil end
  return all
end

--- The verbs that can be done to jobs of a filter, in their order.
local function verbs_for(given)
  local list = {}
  for _, key in ipairs(ORDER) do
    local verb = VERBS[key]
    if not given.state or verb.states[given.state] then
      list[#list + 1] = { key = key, label = verb.label, class = verb.class }
    end
  end
  return list
end

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
  local id = whole(text)
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
  local id = text_of(query, "id")
  local rows, more
  if id then
    rows, more = by_id(context, id)
    if not rows then rows, data.trouble, more = {}, more, nil end
    return rows, more
  end
  local size = math.min(math.max(whole(text_of(query, "limit")) or ROWS, 1), SIZES[#SIZES])
  local wanted = with(given, { limit = size, look = LOOK })
  wanted.after = whole(text_of(query, "after")) or nil
  local message, code
  rows, message, code = looked_for(context.db, wanted, core.clock() + LOOKING)
  if rows then return rows, message end
  data.trouble = code and ("%s (%s)"):format(message, code) or message
  return {}
end

-- ------------------------------------------------------------------- counting

--- How many jobs a verb would be done to, as far as the time allows.
---@return integer|nil n
---@return boolean|string at_least there may be more; or the message
local function count(context, verb, given, seconds)
  local ran, checked, message = pcall(many.read, verb.core, with(given, verb.core == "move" and { to = "x" }
    or verb.core == "reprioritise" and { priority = 0 } or {}))
  if not ran or not checked then return nil, ran and message or checked end
  local n, stop, enough = 0, core.clock() + seconds, {}
  function checked.told(found)
    n = found
    if core.clock() > stop then error({ message = enough }, 0) end
  end
  local all, problem = many.count(context.db._handle, verb.core, checked)
  if all then return all, false end
  if problem ~= enough then return nil, problem end
  return n, true
end

--- The page that asks whether it is to be done.
local function confirm(context, query, given, data)
  local verb = VERBS[query.verb]
  if not verb or not verb.core then return nil, 404, "There is no such action on the jobs of a filter." end
  if next(given) == nil then
    data.trouble = "An action on many jobs wants a filter with at least one condition."
    return data
  end
  if given.state and not verb.states[given.state] then
    data.trouble = ("'%s' cannot be done to %s jobs."):format(verb.label, given.state)
    return data
  end
  local n, at_least = count(context, verb, given, query.on and COUNTING_ON or COUNTING)
  if not n then
    data.trouble = at_least
    return data
  end
  data.verb, data.asks, data.n, data.at_least = query.verb, verb, n, at_least
  data.words = in_words(given, verb.default)
  data.count_on = at_least and not query.on and with(given, { verb = query.verb, on = "1" }) or nil
  data.heading = verb.label .. "?"
  return data
end

local function load(context, request)
  local query = request.query
  local given, message = filter_of(query)
  local data = { heading = "Jobs", query = query, given = given or query, states = STATES, sizes = SIZES, rows = {},
    size = whole(text_of(query, "limit")) or ROWS, readonly = context.readonly, when = when, noted = noted,
    with = with }
  if not given then
    data.trouble = message
    return data
  end
  data.filtered, data.verbs, data.may = next(given) ~= nil, verbs_for(given), {}
  for _, verb in ipairs(data.verbs) do data.may[verb.key] = true end
  if text_of(query, "verb") then return confirm(context, query, given, data) end
  local more
  data.rows, more = list(context, query, given, data)
  if more then
    local size = data.size ~= ROWS and tostring(data.size) or ""
    data.next_page = with(given, { after = tostring(more.after), limit = size })
    data.looked = more.looked
  end
  data.first = text_of(query, "after") and with(given, { limit = text_of(query, "limit") or "" })
  return data
end

-- -------------------------------------------------------------------- actions

--- The value that a verb needs, from a form: a table with that field.
---@return table|nil
---@return string? message
local function needs_of(verb, form)
  local key = verb.field
  local text = key and text_of(form, key)
  if not key or key == "reason" then return { reason = key and text or nil } end
  if key == "value" then
    local value, message = core.decode(text or "null")
    if value == nil then return nil, "the value of the signal is not JSON: " .. message end
    return { value = value, signal = text_of(form, "signal") }
  end
  if not text then return nil, ("'%s' needs a value: the field is empty"):format(verb.label) end
  local value, check, what = text, options.UPDATE[key], key
  if key == "priority" then
    value = whole(text)
    if not value then
      return nil, ("the priority must be a number from 0 to 255, got '%s'"):format(options.shown(text))
    end
  end
  if key == "to" then
    local ok, message = options.name("the queue's name", text, options.MAX_QUEUE)
    if not ok then return nil, message end
    return { to = text }
  end
  local good, message = check(value, what)
  if good == nil then return nil, message end
  return { [key] = value }
end

--- A sentence about the outcome of a run.
local function sentence(verb, counts)
  local said = ("%d job%s %s."):format(counts.changed, counts.changed == 1 and "" or "s", verb.done)
  if counts.refused > 0 then
    said = ("%s %d are as before: another live job has their unique key."):format(said, counts.refused)
  end
  local left = counts.found - counts.changed - counts.refused
  if left > 0 then said = ("%s %d had gone on meanwhile."):format(said, left) end
  return said
end

local actions = {}

--- Begins a verb on all jobs of a filter.
function actions.begin(context, request)
  local form = request.form
  local verb = VERBS[form.verb]
  if not verb or not verb.core then return nil, "there is no such action on the jobs of a filter", "INVALID" end
  local given, message = filter_of(form)
  if not given then return nil, message, "INVALID" end
  if next(given) == nil then return nil, "an action on many jobs wants a filter", "INVALID" end
  local needs
  needs, message = needs_of(verb, form)
  if not needs then return nil, message, "INVALID" end
  local asked, values = given, nil
  if verb.core == "update" then values = change.read(needs) else asked = with(given, needs) end
  local checked, code
  checked, message, code = many.read(verb.core, asked)
  if not checked then return nil, message, code end
  if values then checked.change = { values = values } end
  checked.batch = (verb.core == "update" or verb.core == "delete") and SINGLE or nil
  local handle = context.db._handle
  return runs.begin {
    title = ("%s: %s"):format(verb.label, in_words(given, verb.default)), noun = "jobs", total = whole(form.total),
    path = "/jobs", query = given,
    work = function(told)
      checked.told = told
      local counts, problem, kind = many.run(handle, verb.core, checked)
      if not counts then return nil, problem, kind end
      return sentence(verb, counts)
    end,
  }
end

--- One job each: the verbs on ticked jobs.
local ONE <const> = {
  retry = function(db, id) return db:retry(id) end,
  run_now = function(db, id) return db:run_now(id) end,
  reprioritise = function(db, id, needs) return db:reprioritise(id, needs.priority) end,
  move = function(db, id, needs) return db:update(id, { queue = needs.to }) end,
  due = function(db, id, needs) return db:update(id, { due = needs.due }) end,
  cancel = function(db, id, needs) return db:cancel(id, { reason = needs.reason }) end,
  delete = function(db, id) return db:delete(id) end,
  signal = function(db, id, needs) return db:signal(id, needs.value, needs.signal) end,
}

--- Does a verb to ticked jobs; their checkboxes are named job_ID.
function actions.ticked(context, request)
  local form = request.form
  local verb, ids = VERBS[form.verb], {}
  if not verb then return nil, "press the button of what is to be done: Enter in a field does nothing", "INVALID" end
  for key in pairs(form) do
    local id = whole(key:match "^job_(%d+)$")
    if id and #ids < SIZES[#SIZES] then ids[#ids + 1] = id end
  end
  if #ids == 0 then return nil, "no job was ticked", "INVALID" end
  local needs, message = needs_of(verb, form)
  if not needs then return nil, message, "INVALID" end
  table.sort(ids)
  local done, failures = 0, {}
  for _, id in ipairs(ids) do
    local ok, problem = ONE[form.verb](context.db, id, needs)
    if ok then done = done + 1 else failures[#failures + 1] = ("job %d: %s"):format(id, problem) end
  end
  local said = ("%d job%s %s."):format(done, done == 1 and "" or "s", verb.done)
  if #failures > 0 then
    said = ("%s %d not: %s"):format(said, #failures, table.concat(failures, "; ", 1, math.min(#failures, TOLD)))
  end
  return { said = said, to = "/jobs" .. layout.query_of(filter_of(form) or {}) }
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
  actions = actions,
}
