--- The page of one job: its state and why it does not run, its runs, its tree, and its actions.
--
-- Invariant: all of it is bounded: the last RUNS runs, with so much of each text, and so many other
-- jobs.

local core = require "nightshift.core"
local graph = require "nightshift.web.graph"
local layout = require "nightshift.web.layout"
local options = require "nightshift.options"
local report = require "nightshift.report"
local jobs = require "nightshift.report.jobs"

local RUNS <const> = 20 -- failed ones that are shown
local TEXT <const> = 16384 -- characters of an error or a log
local BELOW <const> = { children = 12, depth = 5, jobs = 80 } -- jobs of the tree
local ABOVE <const> = 8 -- parents
local COUNTED <const> = 10000 -- children
local NEIGHBOURS <const> = 20 -- jobs that it waits for, and that wait for it
local EDITED <const> = 65536 -- bytes of a payload that can be edited; layout.pretty gives so many

local ENDED <const> = { done = true, dead = true, cancelled = true }
local STATES <const> = { "done", "running", "ready", "scheduled", "waiting", "dead", "cancelled" }
local KINDS <const> = { failed = "failed", crashed = "crashed", lost = "was lost with its host" }

local function id_of(request)
  local text = request.args.id
  return text:find "^%d+$" and math.tointeger(tonumber(text))
end

local function text_of(form, key)
  local value = form[key]
  if type(value) == "string" and value ~= "" then return value end
end

-- -------------------------------------------------------------------- reading

--- Raises a failure, which ends the page; `load` catches it.
local function must(value, message, code)
  if value == nil then error({ message = message, code = code }, 0) end
  return value, message
end

--- The run that is under way, as far as its host has told.
local function present_run(handle, info, fact)
  if info.state ~= "running" then return nil end
  local row = must(report.running(handle, 1, info.id))[1] or {}
  return { run = info.run, word = "is running", state = "running", host = row.host or fact.host,
    pid = row.worker or row.pid or fact.pid, started = row.started or fact.since, progress = row.progress,
    status = row.status, live = true }
end

--- The run that the job ended with.
local function last_run(info)
  local run = info.last_run
  return { run = info.run, word = info.state, state = info.state, host = run and run.host, pid = run and run.pid,
    worker = run and run.worker, started = run and run.started, ended = info.finished_at,
    seconds = run and run.seconds, error = info.error, reason = info.reason, log = info.output }
end

--- Its runs, the newest first. The run that a dead job ended with is its last failure, too.
local function runs_of(handle, info, fact)
  local list = { present_run(handle, info, fact) }
  local attempts = must(report.last_attempts(handle, info.id, RUNS + 1, TEXT))
  local first = attempts[1]
  if ENDED[info.state] and not (first and first.run == info.run) then list[#list + 1] = last_run(info) end
  for i = 1, math.min(#attempts, RUNS) do
    local row = attempts[i]
    list[#list + 1] = { run = row.run, word = KINDS[row.kind] or row.kind, state = row.kind, host = row.host,
      pid = row.pid, worker = row.worker, started = row.started, ended = row.ended,
      seconds = row.started and row.ended - row.started, error = row.error, log = row.log }
  end
  return list, #attempts > RUNS
end

--- "on web1, process 12, worker 3": as much as is known.
local function place_of(run)
  return (run.host and ("on %s, process %d"):format(run.host, run.pid or 0) or "")
    .. (run.worker and (", worker %d"):format(run.worker) or "")
end

--- Jobs by their ids, each with its state; and whether there are more.
local function briefs(handle, ids)
  local some = table.move(ids or {}, 1, math.min(#(ids or {}), NEIGHBOURS), 1, {})
  local found, list = must(report.outcomes(handle, some)), {}
  for i, id in ipairs(some) do list[i] = found[id] or { id = id, state = "gone" } end
  return list, ids and #ids > NEIGHBOURS
end

--- Tells jobs with more children than were read how many these are, up to COUNTED. `counts`: of the
-- job itself, which are known.
local function count_children(handle, node, counts)
  if node.more and counts then
    node.n = not counts.more and counts.total or nil
  elseif node.more then
    node.n = must(handle:execute("@report_why_children_count", node.id, COUNTED))[1].n
    if node.n >= COUNTED then node.n = nil end
  end
  for _, child in ipairs(node.children or {}) do count_children(handle, child) end
end

--- The payload as it can be edited: its text; nil: parts are hidden, or it is too long.
local function editable(context, info)
  local payload = info.payload
  if payload == nil then payload = core.null end
  if not options.same(payload, context.redact(payload)) then return nil end
  local text = layout.pretty(payload)
  return #text <= EDITED and text or nil
end

--- Which actions there are for a job of this state.
local function may_of(info)
  local state = info.state
  local live, running = not ENDED[state], state == "running"
  return { retry = not live, run_now = state == "scheduled", cancel = live, delete = not running,
    pause = live and info.paused ~= info.id, resume = live and info.paused == info.id, reprioritise = live,
    change = not running and state ~= "done", signal = live }
end

local function read(context, id, data)
  local handle = context.db._handle
  local info = must(context.db:job(id))
  local why, fact = must(context.db:why(id))
  data.job, data.why, data.heading = info, why, ("Job %d"):format(id)
  data.may, data.ended = may_of(info), ENDED[info.state]
  data.place_of = place_of
  data.runs, data.more_runs = runs_of(handle, info, fact)
  data.parents, data.more_parents = must(jobs.parents(handle, info.parent, ABOVE))
  data.after, data.more_after = briefs(handle, info.after)
  local waiters = must(report.waiters(handle, id, NEIGHBOURS + 1))
  data.waiters, data.more_waiters = briefs(handle, waiters)
  data.below, data.graph = must(jobs.tree(handle, id, BELOW)), graph
  data.children = data.below.children and must(context.db:children(id))
  count_children(handle, data.below, data.children)
  data.states = STATES
  data.payload_text = not context.readonly and data.may.change and editable(context, info)
  data.readonly = context.readonly
  return data
end

local function load(context, request)
  local id = id_of(request)
  if not id then return nil, 404, "A job's id is a number." end
  local data = {}
  local ran, trouble = pcall(read, context, id, data)
  if ran then return data end
  if type(trouble) ~= "table" then error(trouble, 0) end
  return nil, trouble.code == "NOT_FOUND" and 404 or 503, trouble.message
end

-- -------------------------------------------------------------------- actions

--- An action of one job: the words about its outcome, and its verb, which gives a value; or nil, a
-- message, a code.
local function action(said, fn)
  return function(context, request)
    local id = id_of(request)
    if not id then return nil, "a job's id is a number", "INVALID" end
    local done, message, code = fn(context.db, id, request.form)
    if done == nil then return nil, message, code end
    return { said = type(said) == "function" and said(done, id) or said, to = "/jobs/" .. id }
  end
end

--- As many as a verb on a tree tells; else the one job.
local function counted(one, many)
  return function(done)
    if math.type(done) ~= "integer" or done == 1 then return one end
    return many:format(done, done == 1 and "" or "s")
  end
end

local function tree_of(form) return { tree = form.tree == "1" or nil } end

local function whole(text, what, least, most)
  local n = text:find "^%d+$" and math.tointeger(tonumber(text))
  if n and n >= least and n <= most then return n end
  return nil, ("%s must be a whole number from %d to %d, got '%s'"):format(what, least, most, options.shown(text))
end

--- A JSON text of a form as a value.
local function value_of(text, what)
  local value, message = core.decode(text)
  if value == nil then return nil, ("%s is not JSON: %s"):format(what, message) end
  return value
end

local READ <const> = {
  payload = function(text) return value_of(text, "the payload") end,
  set = function(text)
    local value, message = value_of(text, "the patch")
    if value == nil then return nil, message end
    if type(value) ~= "table" then return nil, "the patch must be an object of JSON, like {\"key\": \"value\"}" end
    return value
  end,
  priority = function(text) return whole(text, "the priority", 0, 255) end,
  max_attempts = function(text) return whole(text, "the number of attempts", 1, 1000000) end,
  queue = function(text) return text end,
  due = function(text) return text end,
  tags = function(text)
    local list = {}
    for tag in (text == "-" and "" or text):gmatch "[^,]+" do list[#list + 1] = tag:match "^%s*(.-)%s*$" end
    return list
  end,
  group = function(text) return text ~= "-" and text end,
}

--- The changes of a form: its fields that are not empty.
local function changes_of(form)
  local given = {}
  for key, read_field in pairs(READ) do
    local text = text_of(form, key)
    if text then
      local value, message = read_field(text)
      if value == nil then return nil, message, "INVALID" end
      given[key] = value
    end
  end
  if next(given) == nil then return nil, "nothing was to be changed: all fields are empty", "INVALID" end
  return given
end

local actions = {
  retry = action(counted("It will run again.", "%d job%s will run again."), function(db, id, form)
    return db:retry(id, tree_of(form))
  end),
  run_now = action("It is ready now.", function(db, id) return db:run_now(id) end),
  cancel = action(counted("It was cancelled.", "%d job%s cancelled."), function(db, id, form)
    return db:cancel(id, { reason = text_of(form, "reason"), tree = form.tree == "1" or nil })
  end),
  pause = action(counted("It is paused.", "%d job%s paused."), function(db, id) return db:pause(id) end),
  resume = action(counted("It goes on.", "%d job%s go on."), function(db, id) return db:resume(id) end),
  reprioritise = action("It has another priority.", function(db, id, form)
    local priority, message = whole(form.priority or "", "the priority", 0, 255)
    if not priority then return nil, message, "INVALID" end
    return db:reprioritise(id, priority)
  end),
  change = action("It was changed.", function(db, id, form)
    local given, message, code = changes_of(form)
    if not given then return nil, message, code end
    return db:update(id, given)
  end),
  signal = action("The signal was sent.", function(db, id, form)
    local value, message = value_of(text_of(form, "value") or "null", "the value")
    if value == nil then return nil, message, "INVALID" end
    return db:signal(id, value, text_of(form, "name"))
  end),
}

--- A deleted job has no page, so this one leads to the list.
function actions.delete(context, request)
  local id = id_of(request)
  if not id then return nil, "a job's id is a number", "INVALID" end
  local done, message, code = context.db:delete(id, tree_of(request.form))
  if done == nil then return nil, message, code end
  return { said = done == true and ("Job %d was deleted."):format(id) or ("%d jobs were deleted."):format(done),
    to = "/jobs" }
end

-- ------------------------------------------------------------------ templates

local HEAD <const> = [==[
# local function at(name) return "/jobs/" .. job.id .. "/" .. name end
<section class="panel" data-live="head">
<p class="large">$(h.state(job.state)) <strong>$(job.name)</strong> in $(h.queue(job.queue))</p>
<p class="why">$(why)</p>
# local run = runs[1]
# if run and run.live and run.progress then
<progress max="1" value="$(run.progress)" aria-label="How far it is"></progress>
# end
</section>
# if not readonly then
<div class="toolbar" role="group" aria-label="Actions">
# if may.run_now then
$(h.form(at "run_now", {}, "Run now", { class = "button main" }))
# end
# if may.retry then
$(h.form(at "retry", {}, "Run again", { class = "button main" }))
# if below.children then
$(h.form(at "retry", { tree = "1" }, "Run failed jobs below it again", nil))
# end
# end
# if may.pause then
$(h.form(at "pause", {}, "Pause", nil))
# end
# if may.resume then
$(h.form(at "resume", {}, "Resume", nil))
# end
# if may.delete then
$(h.form(at "delete", {}, "Delete", { class = "button danger",
confirm = "Delete this job, with all that is known of it?" }))
# if ended and below.children then
$(h.form(at "delete", { tree = "1" }, "Delete with all below it", { class = "button danger",
confirm = "Delete this job and all jobs below it?" }))
# end
# end
</div>
# if may.cancel then
<form method="post" action="$(h.url(at "cancel"))" class="toolbar">
$(h.csrf())
<div class="field"><label for="job-reason">Reason</label><input id="job-reason" name="reason"
maxlength="200" placeholder="kept with the job"></div>
# if below.children then
<label><input type="checkbox" name="tree" value="1"> with all below it</label>
# end
<button class="button danger">Cancel</button>
</form>
# end
# end
]==]

local FACTS <const> = [==[
<section class="panel"><h2>Facts</h2>
<dl class="facts">
<dt>Queue</dt><dd>$(h.queue(job.queue))</dd>
<dt>Name</dt><dd>$(h.link("/jobs", { name = job.name }, job.name))</dd>
<dt>Pushed</dt><dd>$(h.time(job.created))</dd>
# if job.due and not ended then
<dt>Due</dt><dd>$(h.time(job.due))</dd>
# end
# if job.finished_at then
<dt>Ended</dt><dd>$(h.time(job.finished_at))</dd>
# end
<dt>Priority</dt><dd>$(job.priority)</dd>
<dt>Failed</dt><dd>$(job.attempts) of $(job.max_attempts) attempts</dd>
# if (job.crashes or 0) > 0 then
<dt>Crashed</dt><dd>$(job.crashes) of $(job.max_crashes)</dd>
# end
# if (job.polls or 0) > 0 then
<dt>Polls</dt><dd>$(job.polls)
# if job.max_polls then
of at most $(job.max_polls)
# end
</dd>
# end
# if job.reason then
<dt>Reason</dt><dd>$(job.reason)</dd>
# end
# if job.tags then
<dt>Tags</dt><dd>
# for _, tag in ipairs(job.tags) do
$(h.link("/jobs", { tag = tag }, tag, "chip"))
# end
</dd>
# end
# if job.group then
<dt>Group</dt><dd>$(h.link("/jobs", { group = job.group }, job.group, "chip"))</dd>
# end
# if job.unique then
<dt>Unique key</dt><dd><code>$(job.unique)</code></dd>
# end
# if job.awaits then
<dt>Awaits</dt><dd>the signal <code>$(job.awaits)</code></dd>
# end
# if job.deadline then
<dt>Deadline</dt><dd>$(h.time(job.deadline))</dd>
# end
<dt>Timeout</dt><dd>$(h.seconds(job.timeout))</dd>
<dt>Key</dt><dd><code>$(job.key)</code></dd>
</dl></section>
<section class="panel"><h2>Payload</h2>
$(h.json(job.payload == nil and null or job.payload))
# if job.kept ~= nil then
<h2>Kept by its last run</h2>
$(h.json(job.kept))
# end
# if job.state == "done" then
<h2>Result</h2>
$(h.json(job.result == nil and null or job.result))
# end
</section>
]==]

local TIMELINE <const> = [==[
<section class="panel"><h2>Runs</h2>
# if #runs == 0 then
<p class="dim">It has not run yet.</p>
# end
<ol class="timeline" data-live="runs">
# for _, run in ipairs(runs) do
<li><p><strong>Run $(run.run)</strong> $(h.state(run.state, run.word))
# if run.started then
began $(h.time(run.started)),
# end
# if run.ended then
ended $(h.time(run.ended))
# end
# if run.seconds then
after $(h.seconds(run.seconds))
# end
$(place_of(run))</p>
# if run.progress or run.status then
<p>$(run.progress and ("%d%%"):format(run.progress * 100 // 1) or "") $(run.status)</p>
# end
# if run.error then
<pre class="error" tabindex="0">$(run.error)</pre>
# end
# if run.log then
<details open><summary>Log and output</summary><pre class="log" tabindex="0">$(run.log)</pre></details>
# end
</li>
# end
# if more_runs then
<li class="dim">and earlier ones: <code>nightshift show $(job.id)</code></li>
# end
<li><p><strong>Pushed</strong> $(h.time(job.created))</p></li>
</ol></section>
]==]

local TREE <const> = [==[
# local function draw(node)
<li><span class="node">$(h.state(node.state)) $(h.job(node.id)) $(node.name)
# if node.progress then
<progress max="1" value="$(node.progress)" aria-label="How far it is"></progress>
# end
# if node.error then
<span class="dim">$((node.error:match "[^\n]*"))</span>
# end
</span>
# if node.children then
<ul>
# for _, child in ipairs(node.children) do
# draw(child)
# end
# if node.more then
<li class="dim">and $(node.n and h.count(node.n - #node.children) or "") more:
$(h.link("/jobs", { parent = node.id }, "all children"))</li>
# end
</ul>
# elseif node.inner then
<ul><li class="dim">$(h.link("/jobs", { parent = node.id }, "its children"))</li></ul>
# end
</li>
# end
# local function some(list, more)
<ul class="bare">
# for _, node in ipairs(list) do
<li>$(h.state(node.state)) $(h.job(node.id)) $(node.name)</li>
# end
# if more then
<li class="dim">and more</li>
# end
</ul>
# end
# if below.children or #parents > 0 then
<section class="panel"><h2>Tree</h2>
# if children then
<p data-live="children">$(h.atleast(children.total, children.more))
$(children.total == 1 and "child" or "children")$(children.estimated and ", by a sample" or ""):
# for _, state in ipairs(states) do
# if children[state] > 0 then
$(h.link("/jobs", { parent = job.id, state = state }, ("%s%s %s"):format(children.estimated and "about " or "",
h.count(children[state]), state)))
# end
# end
</p>
# end
<div class="scroll" tabindex="0" role="region" aria-label="The tree as a picture"
data-live="graph">$(graph.tree(h, parents, below, more_parents))</div>
<details><summary>As a list</summary>
# if #parents > 0 then
<ol class="path" aria-label="Jobs above it">
# if more_parents then
<li class="dim">…</li>
# end
# for _, node in ipairs(parents) do
<li>$(h.state(node.state)) $(h.job(node.id)) $(node.name)</li>
# end
</ol>
# end
<div class="scroll" tabindex="0" role="region" aria-label="Jobs below it"><ul class="tree" data-live="tree">
# draw(below)
</ul></div></details></section>
# end
# if #after > 0 or #waiters > 0 then
<section class="panel"><h2>Flow</h2>
<div class="scroll" tabindex="0" role="region" aria-label="The flow as a picture"
data-live="flow">$(graph.flow(h, job, after, waiters,
{ after = more_after, waiters = more_waiters }))</div>
<p class="dim">An arrow leads from a job to one that waits for it.</p>
<details><summary>As a list</summary><div class="flow">
# if #after > 0 then
<div><h3>It waits for</h3>
# some(after, more_after)
</div>
# end
<div><h3>This job</h3><ul class="bare"><li>$(h.state(job.state)) $(job.id) $(job.name)</li></ul></div>
# if #waiters > 0 then
<div><h3>Waits for it</h3>
# some(waiters, more_waiters)
</div>
# end
</div></details></section>
# end
]==]

local CHANGE <const> = [==[
# if not readonly and may.change then
<section class="panel"><h2>Change</h2>
<form method="post" action="$(h.url("/jobs/" .. job.id .. "/change"))" class="toolbar">
$(h.csrf())
<div class="field"><label for="job-priority">Priority</label><input id="job-priority" name="priority"
type="number" min="0" max="255" placeholder="$(job.priority)"></div>
<div class="field"><label for="job-queue">Queue</label><input id="job-queue" name="queue"
maxlength="64" placeholder="$(job.queue)" autocapitalize="none"></div>
<div class="field"><label for="job-due">Due, in UTC</label><input id="job-due" name="due"
placeholder="2030-01-31T12:00:00Z"></div>
<div class="field"><label for="job-max_attempts">Attempts</label><input id="job-max_attempts"
name="max_attempts" type="number" min="1" placeholder="$(job.max_attempts)"></div>
<div class="field"><label for="job-tags">Tags, with commas; "-": none</label><input id="job-tags"
name="tags" placeholder="$(job.tags and table.concat(job.tags, ", "))"></div>
<div class="field"><label for="job-group">Group; "-": none</label><input id="job-group"
name="group" maxlength="190" placeholder="$(job.group)" autocapitalize="none"></div>
<button class="button">Change</button>
</form>
<form method="post" action="$(h.url("/jobs/" .. job.id .. "/change"))" class="toolbar">
$(h.csrf())
# if payload_text then
<div class="field wide"><label for="job-payload">Payload, JSON</label><textarea id="job-payload" name="payload"
rows="8" spellcheck="false" maxlength="200000">$(payload_text)</textarea></div>
# else
<div class="field wide"><label for="job-set">What is to be different in the payload, JSON: keys with new
values; null deletes a key</label>
<textarea id="job-set" name="set" rows="4" spellcheck="false" placeholder='{"key": "value"}'></textarea></div>
# end
<button class="button">Change the payload</button>
</form></section>
# elseif not readonly and may.reprioritise then
<section class="panel"><h2>Change</h2>
<form method="post" action="$(h.url("/jobs/" .. job.id .. "/reprioritise"))" class="toolbar">
$(h.csrf())
<div class="field"><label for="job-priority">Priority</label><input id="job-priority" name="priority"
type="number" min="0" max="255" required placeholder="$(job.priority)"></div>
<button class="button">Change priority</button>
</form></section>
# end
# if not readonly and may.signal then
<section class="panel"><h2>Send a signal</h2>
<form method="post" action="$(h.url("/jobs/" .. job.id .. "/signal"))" class="toolbar">
$(h.csrf())
<div class="field"><label for="job-name">Signal</label><input id="job-name" name="name" maxlength="100"
value="$(job.awaits)" placeholder="the one it waits for"></div>
<div class="field"><label for="job-value">Value, JSON</label><input id="job-value" name="value"
placeholder="null"></div>
<button class="button">Send</button>
</form></section>
# end
]==]

return {
  path = "/jobs/{id}",
  title = function(data) return data.heading end,
  nav = "jobs",
  load = function(context, request)
    local data, status, message = load(context, request)
    if data then data.null = core.null end
    return data, status, message
  end,
  body = HEAD .. TIMELINE .. TREE .. FACTS .. CHANGE,
  actions = actions,
}
