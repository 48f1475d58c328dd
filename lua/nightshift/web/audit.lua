--- The page of the audit: who did what, when, from which machine; newest first, by verb and time.

local report = require "nightshift.report"

local ROWS <const> = 50 -- of a page

local VIA <const> = {
  shell = "the shell", page = "the page", lua = "a Lua program", c = "a C program", handler = "a handler",
}

-- The verbs that a list offers; any other may be written into the address.
local VERBS <const> = { "adopt", "cancel", "deadline", "delete", "drain", "move", "pause", "prune", "remove_queue",
  "reprioritise", "resume", "retain", "retry", "run_now", "schedule", "schedule_pause", "schedule_remove",
  "schedule_resume", "schedule_run", "signal", "tune", "update" }

local function given_of(query)
  local function text(key) return query[key] ~= "" and query[key] or nil end
  return { verb = text "verb", since = text "since", before = math.tointeger(tonumber(text "after")) }
end

--- The options of db:audit, or nil and why they are wrong.
local function checked(given)
  local fine, message = true, nil
  if given.since then fine, message = report.AUDIT.since(given.since, "Since") end
  if not fine then return nil, message end
  if given.before and given.before < 1 then given.before = nil end
  return { verb = given.verb, since = given.since, before = given.before, limit = ROWS + 1 }
end

local function load(context, request)
  local given = given_of(request.query)
  local data = { given = given, verbs = VERBS, via = VIA, rows = {}, filtered = given.verb or given.since }
  local wanted, message = checked(given)
  if not wanted then
    data.trouble = message
    return data
  end
  local rows, why, code = context.db:audit(wanted)
  if not rows and code ~= "DENIED" then return nil, 503, why end
  data.rows, data.trouble = rows or {}, not rows and why or nil
  if #data.rows > ROWS then
    data.rows[#data.rows] = nil
    data.more = { after = data.rows[ROWS].id }
  end
  return data
end

local BODY <const> = [==[
<form class="toolbar" method="get" action="$(h.url("/audit"))" role="search" aria-label="Filter actions">
<div class="field"><label for="audit-verb">Verb</label><select id="audit-verb" name="verb"><option value="">any</option>
# for _, verb in ipairs(verbs) do
<option value="$(verb)"$(raw(verb == given.verb and " selected" or ""))>$(verb)</option>
# end
</select></div>
<div class="field"><label for="audit-since">Since</label><input id="audit-since" name="since"
value="$(given.since or "")" placeholder="2h, or 2026-11-26T06:00:00Z"></div>
<button class="button main">Show</button> <a class="button" href="$(h.url("/audit"))">Clear</a>
</form>
# if trouble then
<p class="error" role="alert">$(trouble)</p>
# else
<div data-live="actions">
# if #rows == 0 and filtered then
$(h.empty("No action is like this."))
# elseif #rows == 0 then
$(h.empty("No action has been taken yet. Retries, cancels, pauses and the like stand here for 90 days.",
"nightshift audit"))
# else
<section class="panel" aria-label="Actions">
<table class="table cards">
<thead><tr><th scope="col">When</th><th scope="col">Verb</th><th scope="col">What</th>
<th scope="col" class="number">Jobs</th><th scope="col">Account</th><th scope="col">From</th></tr></thead><tbody>
# for _, row in ipairs(rows) do
<tr data-row><td data-label="When">$(h.time(row.at))</td>
<td data-label="Verb">$(row.verb)</td>
<td data-label="What">
# if row.job then
$(h.link({ "jobs", row.job }, nil, row.what))
# else
$(row.what)
# end
</td>
<td data-label="Jobs" class="number $(row.jobs == 0 and "zero" or "")">$(h.count(row.jobs))</td>
<td data-label="Account">$(row.account)</td>
<td data-label="From">$(via[row.via] or row.via) on $(row.host) <span class="dim">pid $(row.pid)</span></td></tr>
# end
</tbody></table>
</section>
$(h.pager(request, { more = more }))
# end
</div>
# end
]==]

return { path = "/audit", title = "Audit", nav = "audit", load = load, body = BODY }
