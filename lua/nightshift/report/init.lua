--- Reports for people: counts of queues, actions, and what is known of one job; read-only.
--
-- The statements are in sql/query/report.sql; this file picks one and shapes
-- its rows.

local core = require "nightshift.core"
local filter = require "nightshift.filter"
local hosts = require "nightshift.hosts"
local jobs = require "nightshift.report.jobs"
local options = require "nightshift.options"
local pauses = require("nightshift.queue").pauses
local units = require "nightshift.units"

local report = { jobs = jobs.list, errors = jobs.errors, FILTER = jobs.FILTER, ERRORS = jobs.ERRORS }

-- --------------------------------------------------------------------- counts

-- How many jobs of each queue are in which state, for `status` and db:stats. Counts go to MOST
-- and no further: a larger one is given as MOST, and its state is named in the row's `approximate`.
-- So are all queues' counts of a state when its statement stopped after LOOKED rows, for any queue
-- may have more. That bounds the time of all counts together, whatever the tables hold.

local MOST = 1000
report.MOST = MOST
local LOOKED = 4000 -- rows that a statement reads when no key leads to a queue's own
report.GLANCED = 1000 -- so many for a page

--- The state of a count: rows of queues by id, the server's clock, and the states for which
-- statements have stopped early.
---@class nightshift.Tally
---@field handle userdata core handle
---@field by_id table<integer, table>
---@field now integer µs
---@field cut table<string, boolean>
---@field most integer rows that a statement reads

--- The rows of a statement; trouble ends all counting.
local function ask(tally, statement, ...)
  local rows, message, code = tally.handle:execute("@report_counts_" .. statement, ...)
  if not rows then error { message = message, code = code } end
  return rows
end

--- Adds the counts of `rows` to the queues.
local function add(tally, state, rows)
  local looked = 0
  for _, row in ipairs(rows) do
    local queue = tally.by_id[row.queue_id]
    looked = looked + (row.looked or 0)
    if queue then
      queue[state] = queue[state] + (row.n or MOST + 1)
      if row.oldest then queue.oldest = math.max(queue.oldest or 0, (tally.now - row.oldest) / 1000000) end
      if row.next then queue.next = math.max(0, row.next - tally.now) / 1000000 end
    end
  end
  if looked >= tally.most then tally.cut[state] = true end
end

--- Adds jobs in ready and in backlogs of limited queues, and due jobs that are not yet moved there.
local function add_ready(tally)
  local rows, many = ask(tally, "ready", MOST), {}
  for _, row in ipairs(rows) do
    if not row.n then many[#many + 1] = row.queue_id end
  end
  add(tally, "ready", rows)
  if #many > 0 then add(tally, "ready", ask(tally, "lanes", "[" .. table.concat(many, ",") .. "]")) end
  local ok, backlog = pcall(ask, tally, "backlog", MOST)
  if ok then add(tally, "ready", backlog) -- an account with older grants may not see them
  elseif type(backlog) ~= "table" or backlog.code ~= "DENIED" then error(backlog, 0) end
  add(tally, "ready", ask(tally, "due", tally.most))
end

--- Adds jobs due later, and jobs that wait: for jobs, or for a signal. Waits for a signal
-- without a deadline are the last rows of scheduled.
local function add_scheduled_and_waiting(tally)
  local rows = ask(tally, "scheduled", tally.most)
  add(tally, "scheduled", rows)
  for _, row in ipairs(rows) do row.n, row.next, row.looked = row.awaiting, nil, nil end
  if tally.cut.scheduled then rows, tally.cut.waiting = ask(tally, "awaiting", tally.most), true end
  add(tally, "waiting", rows)
  add(tally, "waiting", ask(tally, "waiting", tally.most, tally.most))
end

local STATES = { "ready", "scheduled", "running", "waiting", "dead" }
report.STATES = STATES

--- Adds dead jobs. `bare`: without the right to see them there is no count of them.
local function add_dead(tally, bare)
  local ok, rows = pcall(ask, tally, "dead", tally.most)
  if ok then return add(tally, "dead", rows) end
  if not bare or type(rows) ~= "table" or rows.code ~= "DENIED" then error(rows, 0) end
  for _, queue in pairs(tally.by_id) do queue.dead = nil end
end

--- Counts go no further than MOST; a larger or an unfinished count is approximate. `exact`: a
-- finished one is not.
local function bound(tally, row, exact)
  for _, state in ipairs(STATES) do
    if row[state] and (tally.cut[state] or row[state] > MOST and not exact) then
      row[state] = math.min(row[state], MOST)
      row.approximate = row.approximate or {}
      row.approximate[state] = true
    end
  end
end

--- A tally of all queues, by id and in their order.
local function new_tally(handle, now, most)
  local queues, message, code = handle:queues()
  if not queues then return nil, message, code end
  local tally, all = { handle = handle, now = now, by_id = {}, cut = {}, most = most or LOOKED }, {}
  for i, queue in ipairs(queues) do
    all[i] = { name = queue.name, paused = queue.paused, limited = queue.limited or nil, ready = 0, scheduled = 0,
      running = 0, waiting = 0, dead = 0 }
    tally.by_id[queue.id] = all[i]
  end
  return tally, all, queues
end

--- Does the counting; nil, a message and a code.
local function tried(fn)
  local ok, trouble = pcall(fn)
  if not ok and type(trouble) ~= "table" then error(trouble, 0) end
  if not ok then return nil, trouble.message, trouble.code end
  return true
end

--- Rows of all queues by name: name, paused, limited, counts per state, `oldest` and `next`. oldest:
-- seconds that the oldest ready job has waited; next: seconds to the next due one.
---@param handle userdata core handle
---@param now integer the server's clock, µs
---@param bare boolean? an account that may not read history gets no count of dead jobs
---@param most integer? rows that a statement reads, LOOKED unless told
---@return table[]? rows
---@return string? message
---@return string? code
local function count_queues(handle, now, bare, most)
  local tally, all, queues = new_tally(handle, now, most)
  if not tally then return nil, all, queues end
  local ok, message, code = tried(function()
    add_ready(tally)
    add_scheduled_and_waiting(tally)
    add(tally, "running", ask(tally, "running", tally.most))
    add_dead(tally, bare)
  end)
  if not ok then return nil, message, code end
  local rows = {}
  for i, row in ipairs(all) do
    local live = row.ready + row.scheduled + row.running + row.waiting > 0
    if live or not queues[i].removed then rows[#rows + 1] = row end
  end
  for _, row in ipairs(rows) do bound(tally, row) end
  table.sort(rows, function(a, b) return a.name < b.name end)
  return rows
end

--- The same rows, with the numbers of a glance of `scale` (report/scale.lua): only dead jobs are
-- counted here. Exact numbers go further than MOST. Each row has the glance's own as `scaled`.
---@param handle userdata core handle
---@param glance nightshift.Scale
---@param facts {next: table<string, number>}
---@return table[]? rows
---@return string? message
---@return string? code
function report.scaled_queues(handle, glance, facts)
  local tally, all, code = new_tally(handle, 0, report.GLANCED)
  if not tally then return nil, all, code end
  local ok, message
  ok, message, code = tried(function() add_dead(tally) end)
  if not ok then return nil, message, code end
  local by_name, rows = {}, {}
  for _, row in ipairs(all) do by_name[row.name] = row end
  for _, one in ipairs(glance.queues) do
    local row = by_name[one.name]
    if row then -- it was not made meanwhile
      row.scaled, row.next, row.oldest = one, facts.next[row.name], one.ready > 0 and one.oldest_age or nil
      for _, state in ipairs(STATES) do row[state] = one[state] or row[state] end
      bound({ cut = setmetatable({ dead = tally.cut.dead }, { __index = one.approximate }) }, row, true)
      rows[#rows + 1] = row
    end
  end
  return rows
end

report.queues = count_queues

local ENDED_LOOK = 5000 -- ended jobs that a look at how fast they end reads

--- Jobs a second that have ended with an outcome within a span, in all and by queue.
---@param handle userdata core handle
---@param outcome "done"|"dead"|"cancelled"
---@param now integer the server's clock, µs
---@param span integer µs
---@return number? rate
---@return table<string, number>|string by_queue
---@return string? code
function report.rates(handle, outcome, now, span)
  local rows, message, code = handle:execute("@report_ended", outcome, now - span, ENDED_LOOK)
  if not rows then return nil, message, code end
  local n, oldest = 0, now
  for _, row in ipairs(rows) do n, oldest = n + row.n, math.min(oldest, row.oldest) end
  local seconds = (n < ENDED_LOOK and span or math.max(1, now - oldest)) / 1000000
  local by_queue = {}
  for _, row in ipairs(rows) do by_queue[row.queue] = row.n / seconds end
  return n / seconds, by_queue
end

--- Holders that are not known dead, with verdicts of theirs that wait to be written.
---@param handle userdata core handle
---@return nightshift.Holder[]|nil
---@return string? message
---@return string? code
function report.holders(handle)
  local holders, message, code = units.rows(handle:execute "@report_holders")
  if not holders then return nil, message, code end
  local late
  late, message, code = hosts.owed(handle)
  if not late then return nil, message, code end
  for _, holder in ipairs(holders) do
    local told = late[holder.id]
    holder.unsettled = told and { n = told.n, oldest = units.seconds(told.oldest), server = told.server }
  end
  return holders
end

--- Everything db:stats shows. A page looks at fewer rows, for which see hosts.unserved, and has its
-- own rows of queues.
---@param handle userdata core handle
---@param glance integer?
---@param given table[]? rows of queues
function report.stats(handle, glance, given)
  local now, message, code = handle:now()
  if not now then return nil, message, code end
  local queues, holders, left
  queues, message, code = given, nil, nil
  if not queues then queues, message, code = count_queues(handle, now) end
  if not queues then return nil, message, code end
  holders, message, code = report.holders(handle)
  if not holders then return nil, message, code end
  left, message, code = hosts.unserved(handle, true, glance)
  if not left then return nil, message, code end
  local paused
  paused, message, code = pauses.list(handle)
  if not paused then return nil, message, code end
  local counters = handle:counters()
  counters.slowest = units.seconds(counters.slowest)
  left = units.rows(left)
  return { now = units.seconds(now), queues = queues, holders = holders, unserved = left, paused = paused,
    counters = counters }
end

local ACTIONS <const> = 100 -- rows of the audit, unless told

--- The options of db:audit.
report.AUDIT = {
  since = filter.CONDITIONS.since,
  verb = options.typed "string",
  before = options.integer(1, math.maxinteger),
  limit = options.integer(1, 100000),
}

--- Actions of people, the newest first.
---@param handle userdata core handle
---@param given table checked
---@return table[]|nil
---@return string? message
---@return string? code
function report.audit(handle, given)
  local null, since = core.null, given.since and given.since.at
  if given.since and not since then
    local now, message, code = handle:now()
    if not now then return nil, message, code end
    since = now - given.since.ago
  end
  local at, verb, before = since or null, given.verb or null, given.before or null
  return units.rows(handle:execute("@report_audit", at, at, verb, verb, before, before, given.limit or ACTIONS))
end

--- Slots that are held, by name.
function report.slots(handle)
  return units.rows(handle:execute "@report_slots")
end

--- Up to `limit` running jobs that show how far they are, the longest first.
function report.progress(handle, limit)
  return units.rows(handle:execute("@report_progress", limit))
end

--- Up to `limit` jobs that have run for about a second, the longest first; with an id that job, if
-- it is one.
function report.running(handle, limit, id)
  return units.rows(handle:execute("@report_running", id or core.null, id or core.null, limit))
end

--- Up to `limit` jobs that wait for another attempt, the last that failed first: `ended` is when, and
-- `due` when it begins. Of scheduled jobs the first GLANCED are looked at.
function report.retrying(handle, limit)
  return units.rows(handle:execute("@report_retrying", report.GLANCED, limit))
end

--- Failed attempts of a job, oldest first.
function report.attempts(handle, id)
  return units.rows(handle:execute("@report_attempts", id))
end

--- What runs have printed that have not failed, oldest first: of polls the last ten.
function report.outputs(handle, id)
  return units.rows(handle:execute("@report_outputs", id))
end

--- The last `limit` of them, newest first: of each error the beginning, of each log the end, so many
-- characters.
function report.last_attempts(handle, id, limit, characters)
  return units.rows(handle:execute("@report_attempts_last", characters, characters, id, limit))
end

--- The states of some jobs by id: {name =, state =, finished_at =}. Jobs that are unknown are left
-- out.
---@param handle userdata core handle
---@param ids integer[]
---@return table<integer, table>|nil
---@return string? message
---@return string? code
function report.outcomes(handle, ids)
  local found = {}
  if #ids == 0 then return found end
  local rows, message, code = units.rows(handle:execute("@report_outcomes", "[" .. table.concat(ids, ",") .. "]"))
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do found[row.id] = row end
  return found
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
function report.prunable(handle, keep_done, keep_dead, keep_cancelled)
  local now, message, code = handle:now()
  if not now then return nil, message, code end
  local function before(keep) return keep < 0 and 0 or now - keep end
  local rows
  rows, message, code = handle:execute("@report_prunable", before(keep_done), before(keep_dead),
    before(keep_cancelled))
  if not rows then return nil, message, code end
  local prunable = { done = 0, dead = 0, cancelled = 0 }
  for _, row in ipairs(rows) do prunable[row.outcome] = row.n end
  return prunable
end

return report
