--- The page of errors: kinds of errors of dead jobs, and of jobs that are tried again, the most
-- frequent first. Each leads to its jobs, and to the action that runs them again.
--
-- Invariant: only the last jobs are looked at, LOOK of either sort, more when that is asked for. The
-- page says how many these were.

local report = require "nightshift.report"

local LOOK <const>, LOOK_MORE <const> = 1000, 2000 -- dead jobs, and scheduled ones
local KINDS <const> = 50

local function text_of(query, key)
  local value = query[key]
  if type(value) == "string" and value ~= "" then return value end
end

local function load(context, request)
  local query, given = request.query, {}
  local data = { rows = {}, given = given, readonly = context.readonly }
  for _, key in ipairs { "queue", "name", "since" } do
    local value = text_of(query, key)
    if value then
      local ok, message = report.ERRORS[key](value, key)
      if ok == nil or not utf8.len(value) then
        data.trouble = message or key .. " is not valid UTF-8"
        return data
      end
      given[key] = value
    end
  end
  local more = query.look == "more"
  local rows, rest, code = context.db:errors { queue = given.queue, name = given.name, since = given.since,
    limit = KINDS, look = more and LOOK_MORE or LOOK }
  if not rows then
    data.trouble = code and ("%s (%s)"):format(rest, code) or rest
    return data
  end
  data.rows, data.looked, data.looks_more = rows, rest and rest.looked, more
  function data.jobs(row, state, verb)
    return { state = state, error = row.error, queue = given.queue, name = given.name, since = given.since,
      verb = verb }
  end
  function data.look_more() return { queue = given.queue, name = given.name, since = given.since, look = "more" } end
  return data
end

local BODY <const> = [==[
<form class="toolbar" method="get" action="$(h.url("/errors"))" role="search" aria-label="Filter errors">
<div class="field"><label for="erro-queue">Queue</label><input id="erro-queue" name="queue"
value="$(given.queue)" maxlength="64" autocapitalize="none"></div>
<div class="field"><label for="erro-name">Name</label><input id="erro-name" name="name"
value="$(given.name)" maxlength="100" autocapitalize="none"></div>
<div class="field"><label for="erro-since">Since</label><input id="erro-since" name="since"
value="$(given.since)" placeholder="2h, or 2026-11-26T06:00:00Z"></div>
<button class="button main">Show</button> <a class="button" href="$(h.url("/errors"))">Clear</a>
</form>
# if trouble then
<p class="error" role="alert">$(trouble)</p>
# elseif #rows == 0 then
# if looked then
$(h.empty("None of the last jobs that failed is like this.", nil))
# else
$(h.empty("No job is dead, and none waits for another attempt. Failures stand here by their kind.",
"nightshift errors"))
# end
# else
<section class="panel" aria-label="Kinds of errors">
<table class="table cards">
<thead><tr><th scope="col">Error</th><th scope="col" class="number">Dead</th>
<th scope="col" class="number">Tried again</th><th scope="col">First</th><th scope="col">Last</th>
<th scope="col">A job</th>
# if not readonly then
<th scope="col"><span class="unseen">Action</span></th>
# end
</tr></thead>
<tbody data-live="errors">
# for _, row in ipairs(rows) do
<tr data-row>
<td data-label="Error" class="error"><code>$(row.error)</code></td>
<td data-label="Dead" class="number">
# if row.dead > 0 then
$(h.link("/jobs", jobs(row, "dead"), h.count(row.dead)))
# else
0
# end
</td>
<td data-label="Tried again" class="number">
# if row.retrying > 0 then
$(h.link("/jobs", jobs(row, "scheduled"), h.count(row.retrying)))
# else
0
# end
</td>
<td data-label="First">$(h.time(row.first))</td>
<td data-label="Last">$(h.time(row.last))</td>
<td data-label="A job">$(h.job(row.id)) $(row.name)</td>
# if not readonly then
<td>
# if row.dead > 0 then
$(h.link("/jobs", jobs(row, "dead", "retry"), "Run all again…", "button"))
# end
</td>
# end
</tr>
# end
</tbody></table></section>
# end
# if looked then
<p class="dim">Of dead jobs and of scheduled ones the last $(h.count(looked)) were looked at.
# if not looks_more then
$(h.link("/errors", look_more(), "Look at more"))
# end
</p>
# end
]==]

return { path = "/errors", title = "Errors", nav = "errors", load = load, body = BODY }
