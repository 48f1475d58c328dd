--- What people look at: listings of jobs and counts of queues, read-only.
--
-- The statements are in sql/query/report.sql; this file picks one and shapes
-- its rows. Counts are exact up to some 200,000 rows (0.2 s); a larger table is
-- counted without looking at its jobs, or only in part, and the count is then
-- named in `approximate`.

local core = require "nightshift.core"
local options = require "nightshift.options"
local unserved = require "nightshift.unserved"

local report = {}

--- Rows up to which counts look at every job.
local EXACT = 200000

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
  return and_then(handle, rows, limit, "@report_jobs_awaiting", EXACT, queue, queue, name, name)
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

--- Runs a count; large tables by `rough`, which looks at no job.
local function counted(handle, exact, rough)
  local rows, message, code = handle:execute(rough)
  if not rows then return nil, message, code end
  local total = 0
  for _, row in ipairs(rows) do total = total + row.n end
  if total <= EXACT then return handle:execute(exact) end
  for _, row in ipairs(rows) do row.approximate = true end
  return rows
end

--- Runs a count that looks at the first EXACT rows only.
local function capped(handle, statement, ...)
  local rows, message, code = handle:execute(statement, EXACT, ...)
  if not rows then return nil, message, code end
  local total = 0
  for _, row in ipairs(rows) do total = total + row.n end
  if total >= EXACT then
    for _, row in ipairs(rows) do row.approximate = true end
  end
  return rows
end

--- Those in ready and those that are due.
local function ready(handle)
  local rows, message, code = counted(handle, "@report_stats_ready", "@report_stats_ready_rows")
  if not rows then return nil, message, code end
  local due
  due, message, code = counted(handle, "@report_stats_due", "@report_stats_due_rows")
  if not due then return nil, message, code end
  return table.move(due, 1, #due, #rows + 1, rows)
end

--- Those that wait for jobs and those that wait for signals.
local function waiting(handle)
  local rows, message, code = capped(handle, "@report_stats_waiting", EXACT)
  if not rows then return nil, message, code end
  local more
  more, message, code = handle:execute("@report_stats_awaiting", EXACT)
  if not more then return nil, message, code end
  local looked = 0
  for _, row in ipairs(more) do looked = looked + row.looked end
  for _, row in ipairs(more) do
    row.approximate = looked >= EXACT or nil
    rows[#rows + 1] = row
  end
  return rows
end

local COUNTS = {
  ready = ready,
  scheduled = function(h) return counted(h, "@report_stats_scheduled", "@report_stats_scheduled_rows") end,
  running = function(h) return h:execute "@report_stats_running" end,
  waiting = waiting,
  dead = function(h) return capped(h, "@report_stats_dead") end,
}

local function empty_rows(queues)
  local rows, by_id = {}, {}
  for i, queue in ipairs(queues) do
    local row = { name = queue.name, paused = queue.paused }
    for state in pairs(COUNTS) do row[state] = 0 end
    rows[i], by_id[queue.id] = row, row
  end
  return rows, by_id
end

local function add_counts(by_id, state, counts, now)
  for _, count in ipairs(counts) do
    local row = by_id[count.queue_id]
    if row then
      row[state] = row[state] + count.n
      if count.approximate then
        row.approximate = row.approximate or {}
        row.approximate[state] = true
      end
      if count.oldest then row.oldest = math.max(row.oldest or 0, (now - count.oldest) / 1000000) end
      if count.next then row.next = math.max(0, count.next - now) / 1000000 end
    end
  end
end

--- Rows of `queues`: name, paused, counts per state, `oldest` (seconds the
-- oldest ready job has waited), `next` (seconds to the next due one).
local function queue_rows(handle, now)
  local queues, message, code = handle:queues()
  if not queues then return nil, message, code end
  local rows, by_id = empty_rows(queues)
  for state, count in pairs(COUNTS) do
    local counts
    counts, message, code = count(handle)
    if not counts then return nil, message, code end
    add_counts(by_id, state, counts, now)
  end
  table.sort(rows, function(a, b) return a.name < b.name end)
  return rows
end

--- Everything db:stats shows.
---@param handle userdata core handle
function report.stats(handle)
  local now, message, code = handle:now()
  if not now then return nil, message, code end
  local queues, holders
  queues, message, code = queue_rows(handle, now)
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
