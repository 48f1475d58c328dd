--- The page of schedules: recurring jobs with their next ticks and the end of the last job, and
-- the actions on them.

local report = require "nightshift.report"

--- "0 3 * * * Europe/Vienna", "every 600 s"; nil: it cannot be read.
local function rule_of(row, h)
  if row.every then return "every " .. h.seconds(row.every) end
  if not row.cron then return "–" end
  return row.zone == "UTC" and row.cron or row.cron .. " " .. row.zone
end

local function load(context)
  local rows, message = context.db:schedules()
  if not rows then return nil, 503, message end
  local ids = {}
  for _, row in ipairs(rows) do ids[#ids + 1] = row.last_id end
  local outcomes
  outcomes, message = report.outcomes(context.db._handle, ids)
  if not outcomes then return nil, 503, message end
  for _, row in ipairs(rows) do row.outcome = row.last_id and (outcomes[row.last_id] or { state = "gone" }) end
  return { rows = rows, readonly = context.readonly, rule_of = rule_of }
end

--- An action on the schedule that the form names.
local function action(verb, said)
  return function(context, request)
    local name = request.form.name
    if type(name) ~= "string" or name == "" then return nil, "the form names no schedule", "INVALID" end
    local done, message, code = context.db["schedule_" .. verb](context.db, name)
    if not done then return nil, message, code end
    return { said = said:format(name, done) }
  end
end

local BODY <const> = [==[
# if #rows == 0 then
$(h.empty("There are no schedules. A handler declares one with cron or every, and a program with db:schedule:",
'["report.daily"] = { run = f, cron = "0 3 * * *" }'))
# else
<section class="panel" aria-label="Schedules">
<table class="table cards">
<thead><tr><th scope="col">Name</th><th scope="col">When</th><th scope="col">Job</th><th scope="col">Queue</th>
<th scope="col">Last</th><th scope="col">Next</th>
# if not readonly then
<th scope="col"><span class="unseen">Actions</span></th>
# end
</tr></thead>
<tbody data-live="schedules">
# for _, row in ipairs(rows) do
<tr data-row>
<td data-label="Name"><strong>$(row.name)</strong>
# if row.paused then
$(h.state("paused"))
# end
# if row.declared then
<span class="dim">by scripts</span>
# end
# if row.skipped > 0 then
<span class="dim">$(h.count(row.skipped)) skipped</span>
# end
# if row.error then
<p class="error">$(row.error)</p>
# end
</td>
<td data-label="When"><code>$(rule_of(row, h))</code></td>
<td data-label="Job">$(row.job and h.link("/jobs", { name = row.job }, row.job))</td>
<td data-label="Queue">$(row.queue and h.queue(row.queue))</td>
<td data-label="Last">
# if row.last then
$(h.time(row.last))
# else
never
# end
# if row.outcome then
$(h.state(row.outcome.state)) $(h.job(row.last_id))
# end
</td>
<td data-label="Next">
# if row.due then
$(h.time(row.due))
# if #row.upcoming > 1 then
<details><summary>then</summary><ul class="bare">
# for i = 2, #row.upcoming do
<li>$(h.time(row.upcoming[i]))</li>
# end
</ul></details>
# end
# else
–
# end
</td>
# if not readonly then
<td class="end">
$(h.form("/schedules/run", { name = row.name }, "Run now", { label = "Run " .. row.name .. " now" }))
# if row.paused or row.error then
$(h.form("/schedules/resume", { name = row.name }, "Resume", { label = "Resume " .. row.name }))
# else
$(h.form("/schedules/pause", { name = row.name }, "Pause", { label = "Pause " .. row.name }))
# end
$(h.form("/schedules/remove", { name = row.name }, "Remove", { class = "button danger",
label = "Remove " .. row.name, confirm = row.declared and
"Remove it? Scripts that declare it bring it back within the hour." or "Remove this schedule?" }))
</td>
# end
</tr>
# end
</tbody></table></section>
# end
]==]

return {
  path = "/schedules", title = "Schedules", nav = "schedules", load = load, body = BODY,
  actions = {
    pause = action("pause", "'%s' is paused."),
    resume = action("resume", "'%s' goes on."),
    run = action("run", "'%s' has pushed job %d."),
    remove = action("remove", "'%s' is removed."),
  },
}
