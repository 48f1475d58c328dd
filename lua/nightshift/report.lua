--- What people look at: listings of jobs and counts of queues, read-only.
--
-- The statements are in sql/query/report.sql; this file picks one and shapes
-- its rows. Counts are in counts.lua.

local core = require "nightshift.core"
local counts = require "nightshift.counts"
local options = require "nightshift.options"
local unserved = require "nightshift.unserved"

local report = {}

local AWAITING = 20000 -- rows of scheduled, the last ones, that are looked at for waits for a signal

--- What db:jobs accepts.
report.FILTER = {
  state = options.one_of("scheduled", "ready", "running", "waiting", "done", "dead", "cancelled"),
  queue = options.typed "string",
  name = options.typed "string",
  limit = options.integer(1, 1 << 31),
}

-- One function per listing: the core handle, then queue id, name (each may be
-- null) and limit.
local listings = {}

--- Adds the rows of a second statement, whose last parameter is a limit, up to `limit` in all.
local function and_then(handle, rows, limit, statement, ...)
  if #rows >= limit then return rows end
  local params = table.pack(...)
  params[params.n + 1] = limit - #rows
  local more, message, code = handle:execute(statement, table.unpack(params, 1, params.n + 1))
  if not more then return nil, message, code end
  return table.move(more, 1, #more, #rows + 1, rows)
end

-- First those in ready, then those that are due and were not yet moved there.
function listings.ready(handle, queue, name, limit)
  local first, behind = 0, 0x7FFFFFFF
  if queue ~= core.null then first, behind = queue, queue + 1 end
  local rows, message, code = handle:execute("@report_jobs_ready", first, behind, name, name, limit)
  if not rows then return nil, message, code end
  return and_then(handle, rows, limit, "@report_jobs_due", queue, queue, name, name)
end

for _, state in ipairs { "scheduled", "running" } do
  listings[state] = function(handle, queue, name, limit)
    return handle:execute("@report_jobs_" .. state, queue, queue, name, name, limit)
  end
end

-- First those that wait for other jobs, then those that wait for a signal.
function listings.waiting(handle, queue, name, limit)
  local rows, message, code = handle:execute("@report_jobs_waiting", queue, queue, name, name, limit,
    queue, queue, name, name, limit, limit)
  if not rows then return nil, message, code end
  return and_then(handle, rows, limit, "@report_jobs_awaiting", AWAITING, queue, queue, name, name)
end

for _, outcome in ipairs { "done", "dead", "cancelled" } do
  listings[outcome] = function(handle, queue, name, limit)
    return handle:execute("@report_jobs_finished", outcome, queue, queue, name, name, limit)
  end
end

local function every_state(handle, queue, name, limit)
  return handle:execute("@report_jobs_all", queue, queue, name, name, limit,
    queue, queue, name, name, limit, limit)
end

--- Lists jobs; a queue that does not exist has none.
---@param handle userdata core handle
---@param filter nightshift.JobFilter checked
function report.jobs(handle, filter)
  local queue = core.null
  if filter.queue then
    local id, message, code = handle:queue_id(filter.queue, false)
    if not id and code == "NOT_FOUND" then return {} end
    if not id then return nil, message, code end
    queue = id
  end
  local listing = filter.state and listings[filter.state] or every_state
  return listing(handle, queue, filter.name or core.null, filter.limit or 50)
end

--- Everything db:stats shows.
---@param handle userdata core handle
function report.stats(handle)
  local now, message, code = handle:now()
  if not now then return nil, message, code end
  local queues, holders
  queues, message, code = counts.of_queues(handle, now)
  if not queues then return nil, message, code end
  holders, message, code = handle:execute "@report_holders"
  if not holders then return nil, message, code end
  local left
  left, message, code = unserved.find(handle)
  if not left then return nil, message, code end
  return { now = now, queues = queues, holders = holders, unserved = left, counters = handle:counters() }
end

--- Slots that are held, by name.
function report.slots(handle)
  return handle:execute "@report_slots"
end

--- Failed attempts of a job, oldest first.
function report.attempts(handle, id)
  return handle:execute("@report_attempts", id)
end

--- Ids of up to `limit` jobs that wait for this one.
function report.waiters(handle, id, limit)
  local rows, message, code = handle:execute("@report_waiters", id, limit)
  if not rows then return nil, message, code end
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row.job_id end
  return ids
end

--- How many finished jobs a prune with these ages (µs; negative: none) takes.
function report.prunable(handle, keep_done, keep_dead)
  local now, message, code = handle:now()
  if not now then return nil, message, code end
  local function before(keep) return keep < 0 and 0 or now - keep end
  local rows
  rows, message, code = handle:execute("@report_prunable", before(keep_done), before(keep_dead))
  if not rows then return nil, message, code end
  local counts = { done = 0, dead = 0, cancelled = 0 }
  for _, row in ipairs(rows) do counts[row.outcome] = row.n end
  return counts
end

return report
