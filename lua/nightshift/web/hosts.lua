--- The page of hosts: their workers, scripts and memory, the jobs that they run, and programs that
-- claim by themselves. Its action is the number of a host's workers.
--
-- Memory is read in /proc, so it is known of hosts on the machine of this page alone.

local hosts = require "nightshift.hosts"
local report = require "nightshift.report"
local versions = hosts.versions

local SHOWN <const> = 200 -- running jobs
local NAMED <const> = 5 -- names without a host
local GLANCE <const> = 2000 -- ready jobs that are looked at for names that no host has
local ANSWER <const> = 1 -- seconds that a host has to say what it has done
local CHILDREN <const> = 256 -- processes of a host that are looked at
local PAGE <const> = 4096 -- bytes of a page of memory, on all machines that Debian has packages for

local function read(path)
  local file <close> = io.open(path, "rb")
  return file and file:read "a"
end

--- Bytes of memory that a process has now; nil: it is gone.
local function resident(pid)
  local pages = (read(("/proc/%d/statm"):format(pid)) or ""):match "^%d+ (%d+)"
  return pages and math.tointeger(tonumber(pages)) * PAGE
end

--- Bytes of a host with its workers; nil: it is on another machine. Pages that they share count for
-- each.
local function memory_of(row)
  local machine = (read "/proc/sys/kernel/hostname" or ""):match "[^\n]*"
  if row.host ~= machine then return nil end
  local name = read(("/proc/%d/comm"):format(row.pid))
  local sum = name and name:find "^nightshift" and resident(row.pid)
  if not sum then return nil end
  local n = 0
  for pid in (read(("/proc/%d/task/%d/children"):format(row.pid, row.pid)) or ""):gmatch "%d+" do
    n = n + 1
    if n <= CHILDREN then sum = sum + (resident(pid) or 0) end
  end
  return sum
end

--- "4, 2 busy, 1 leaving"; "0 of 4, 0 busy": it is to have others.
local function workers_of(row)
  local of = row.wanted and row.wanted ~= row.workers and (" of %d"):format(row.wanted) or ""
  local text = ("%d%s, %d busy"):format(row.workers, of, row.busy)
  return row.leaving > 0 and ("%s, %d leaving"):format(text, row.leaving) or text
end

--- Ready jobs that no live host has a handler for, among the first ones.
local function unserved(handle)
  local names, lives, code = hosts.names(handle)
  if code then return nil, lives end
  if not names or not lives then return {} end
  local rows, message = hosts.left(handle, names, nil, 0, GLANCE)
  for _, row in ipairs(rows or {}) do row.near = hosts.near(row.name, names) end
  return rows, message
end

local function load(context)
  local handle = context.db._handle
  local holders, message = report.holders(handle)
  if not holders then return nil, 503, message end
  local running
  running, message = report.running(handle, SHOWN + 1)
  if not running then return nil, 503, message end
  local left
  left, message = unserved(handle)
  if not left then return nil, 503, message end
  local data = { hosts = {}, programs = {}, running = {}, by_host = {}, more = #running > SHOWN, unserved = {},
    glance = GLANCE, readonly = context.readonly, now = context.now, workers_of = workers_of }
  for _, row in ipairs(holders) do
    local list = row.kind == "host" and data.hosts or data.programs
    list[#list + 1] = row
    if row.kind == "host" then
      row.memory = memory_of(row)
      row.trouble = row.load_error and versions.failure(row, context.now - row.load_ended)
    end
  end
  for i = 1, math.min(#running, SHOWN) do
    local row = running[i]
    data.by_host[row.holder] = data.by_host[row.holder] or {}
    table.insert(data.by_host[row.holder], row)
  end
  for i = 1, math.min(#left, NAMED) do data.unserved[i] = hosts.unserved_text(left[i]) end
  data.more_unserved = #left > NAMED
  return data
end

local actions = {}

--- Changes the number of a host's workers.
function actions.tune(context, request)
  local form = request.form
  local id, n = math.tointeger(tonumber(form.host)), math.tointeger(tonumber(form.workers))
  if not id then return nil, "the form names no host", "INVALID" end
  if not n then return nil, "the workers must be a whole number, from 1 on", "INVALID" end
  local now, message, code = hosts.tune(context.db._handle, id, n, ANSWER)
  if not now then return nil, message, code end
  return { said = ("Host %d on %s is to have %d worker%s; it had %d."):format(now.id, now.host, now.workers,
    now.workers == 1 and "" or "s", now.was) }
end

local BODY <const> = [==[
# if #hosts == 0 then
$(h.empty("No host is there, so no job is run. Start one with a file of handlers:",
"nightshift work jobs.lua --workers 4"))
# end
# for _, text in ipairs(unserved) do
<p class="error">No live host has a handler for $(text)</p>
# end
# if more_unserved then
<p class="error">There are more such names. See $(h.link("/", nil, "the overview"))</p>
# end
# if #hosts > 0 then
<p class="dim">Names that no host serves are looked for among the first $(h.count(glance)) ready jobs.</p>
# end
# for _, row in ipairs(hosts) do
<section class="panel host" aria-labelledby="host-$(row.id)">
<h2 id="host-$(row.id)">$(row.host) <span class="more dim">process $(row.pid), host $(row.id)</span></h2>
# if row.trouble then
<p class="error">$(row.trouble)</p>
# end
# if row.unsettled then
<p class="error">The database does not take $(h.count(row.unsettled.n)) of its verdicts,
the oldest for $(h.seconds(row.unsettled.oldest)) $(row.unsettled.server)</p>
# end
<dl class="facts" data-live="host-$(row.id)">
<dt>Workers</dt><dd>$(row.workers and workers_of(row) or "not told yet")</dd>
<dt>Up since</dt><dd>$(h.time(row.started))</dd>
<dt>Last sign</dt><dd>$(h.time(row.beat))</dd>
<dt>Scripts</dt><dd><code>$(row.scripts or "–")</code>
# if (row.old_scripts or 0) > 0 then
<span class="dim">$(h.count(row.old_scripts)) workers still run older ones</span>
# end
</dd>
<dt>Memory</dt><dd>
# if row.memory then
$(h.bytes(row.memory))
# else
<span class="dim">known on its own machine</span>
# end
</dd>
<dt>Version</dt><dd>$(row.version)</dd>
<dt>Batches</dt><dd>$(h.count(row.leases))</dd>
</dl>
# if not readonly and row.workers then
<form method="post" action="$(h.url("/hosts/tune"))" class="toolbar">
$(h.csrf())
<input type="hidden" name="host" value="$(row.id)">
<div class="field"><label for="workers-$(row.id)">Workers</label><input id="workers-$(row.id)" name="workers"
type="number" min="1" max="20000" required value="$(row.wanted or row.workers)"></div>
<button class="button" aria-label="Set the workers of host $(row.id)">Set</button>
</form>
# end
# local list = by_host[row.id]
<div data-live="jobs-$(row.id)">
# if list then
<div class="scroll" tabindex="0" role="region" aria-label="Jobs that it runs"><table class="table cards">
<thead><tr><th scope="col" class="number">Process</th><th scope="col" class="number">Job</th><th scope="col">Name</th>
<th scope="col">Queue</th><th scope="col" class="number">Runs for</th><th scope="col">Progress</th></tr></thead>
<tbody>
# for _, job in ipairs(list) do
<tr data-row>
<td class="number" data-label="Process">$(job.worker or "–")</td>
<td class="number" data-label="Job">$(h.job(job.id))</td>
<td data-label="Name">$(job.name)</td>
<td data-label="Queue">$(h.queue(job.queue))</td>
<td class="number" data-label="Runs for">$(h.seconds(math.max(0, now - job.started)))</td>
<td data-label="Progress">
# if job.progress then
<progress max="1" value="$(job.progress)" aria-label="How far job $(job.id) is"></progress>
$(("%d%%"):format(job.progress * 100 // 1))
# end
$(job.status)</td>
</tr>
# end
</tbody></table></div>
# else
<p class="dim">None of its jobs has run for a second.</p>
# end
</div>
</section>
# end
# if more then
<p class="dim">There are more running jobs: $(h.link("/jobs", { state = "running" }, "all of them"))</p>
# end
# if #programs > 0 then
<section class="panel"><h2>Programs</h2>
<p class="dim">They push or claim by themselves. This page is one of them.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Programs"><table class="table cards">
<thead><tr><th scope="col">Machine</th><th scope="col" class="number">Process</th><th scope="col">Since</th>
<th scope="col">Last sign</th><th scope="col" class="number">Batches</th><th scope="col">Version</th></tr></thead>
<tbody data-live="programs">
# for _, row in ipairs(programs) do
<tr data-row><td data-label="Machine">$(row.host)</td><td class="number" data-label="Process">$(row.pid)</td>
<td data-label="Since">$(h.time(row.started))</td><td data-label="Last sign">$(h.time(row.beat))</td>
<td class="number" data-label="Batches">$(h.count(row.leases))</td><td data-label="Version">$(row.version)</td></tr>
# end
</tbody></table></div></section>
# end
]==]

return { path = "/hosts", title = "Hosts", nav = "hosts", load = load, body = BODY, actions = actions,
  memory_of = memory_of }
