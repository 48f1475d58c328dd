--- Figures of the database: those that a host's /metrics has now, and series for charts.
--
-- A host has its figures read when a request asks (src/host/figures.c), at most every five seconds.
-- An account of a host may read no history, so they may lack dead jobs.
--
-- A series is what has happened in a queue, or in all of them, over the last hour, day or week. The
-- counts are rows of nightshift_minute, which hosts and programs write once a minute. They last
-- when those end. A process that is killed takes its last minute with it, and pushes from SQL are
-- not counted. Buckets begin at full minutes, quarters of an hour, or even hours, UTC.

local core = require "nightshift.core"
local hosts = require "nightshift.hosts"
local limit = require "nightshift.limit"
local options = require "nightshift.options"
local report = require "nightshift.report"
local scale = require "nightshift.report.scale"
local units = require "nightshift.units"

local figures = {}

-- ---------------------------------------------------------------------- /metrics

local MOST <const>, STATES <const> = report.MOST, report.STATES

local UNSERVED_AGE = 10 -- s: names without a handler are looked for so often
local READ_TIMEOUT = 5 -- s

local function tell_queues(host, queues)
  host.family("nightshift_jobs", "Jobs by queue and state; counts stop at " .. MOST .. ".")
  for _, row in ipairs(queues) do
    for _, state in ipairs(STATES) do
      if row[state] then host.sample("nightshift_jobs", row[state], "queue", row.name, "state", state) end
    end
  end
  host.family("nightshift_jobs_capped", "1: there may be more jobs than were counted.")
  for _, row in ipairs(queues) do
    for _, state in ipairs(STATES) do
      if row.approximate and row.approximate[state] then
        host.sample("nightshift_jobs_capped", 1, "queue", row.name, "state", state)
      end
    end
  end
  host.family("nightshift_queue_oldest_ready_age_seconds", "How long the oldest ready job has waited; 0: none is.")
  for _, row in ipairs(queues) do
    host.sample("nightshift_queue_oldest_ready_age_seconds", math.max(row.oldest or 0, 0), "queue", row.name)
  end
  host.family("nightshift_queue_paused", "1: none of its jobs is started.")
  for _, row in ipairs(queues) do
    host.sample("nightshift_queue_paused", row.paused and 1 or 0, "queue", row.name)
  end
end

--- Ready jobs that no live host has a handler for, by queue.
local function tell_unserved(self)
  local now = core.clock()
  if not self.unserved or now - self.unserved_at > UNSERVED_AGE then
    local rows, message, code = hosts.unserved(self.handle)
    if not rows then return nil, message, code end
    local sums = {}
    for _, row in ipairs(rows) do sums[row.queue] = (sums[row.queue] or 0) + row.n end
    self.unserved, self.unserved_at = sums, now
  end
  self.host.family("nightshift_jobs_unserved", "Ready jobs with a name that no live host serves.")
  for queue, n in pairs(self.unserved) do self.host.sample("nightshift_jobs_unserved", n, "queue", queue) end
  return true
end

--- Limits of queues, and how much of them is used.
local function tell_limits(self)
  local list, message, code = limit.list(self.handle)
  if not list then return code == "DENIED" or nil, message, code end -- an account with older grants
  local host = self.host
  host.family("nightshift_limit_running", "Running jobs that have a place of their queue's limit.")
  for _, row in ipairs(list) do
    if row.counts.running then host.sample("nightshift_limit_running", row.counts.running, "queue", row.queue) end
  end
  host.family("nightshift_limit_places", "Jobs that may run at once, where that is limited.")
  for _, row in ipairs(list) do
    if row.running then host.sample("nightshift_limit_places", row.running, "queue", row.queue) end
  end
  host.family("nightshift_backlog_jobs", "Jobs that wait in a limited queue; the count stops at " .. limit.MOST .. ".")
  for _, row in ipairs(list) do host.sample("nightshift_backlog_jobs", row.counts.waiting, "queue", row.queue) end
  host.family("nightshift_limit_full", "1: the limit keeps all waiting jobs of the queue from starting.")
  for _, row in ipairs(list) do host.sample("nightshift_limit_full", row.holds and 1 or 0, "queue", row.queue) end
  host.family("nightshift_queue_full", "1: pushes to the queue are refused, as so many jobs wait as its limit allows.")
  for _, row in ipairs(list) do
    if row.backlog then host.sample("nightshift_queue_full", row.full and 1 or 0, "queue", row.queue) end
  end
  return true
end

local OTHER = "other" -- queues behind the first hundred together

--- Pushed jobs by queue, as their handles have told them: sums that no restart sets back. Queues have
-- their own counts by the order in which they were made, so no count moves to another one.
local function tell_pushed(self)
  local rows, message, code = self.handle:execute("@report_pushed")
  if not rows then return code == "DENIED" or nil, message, code end -- an account with older grants
  local counts, names, rest = {}, {}, 0
  for _, row in ipairs(rows) do
    rest = row.queue and rest - row.pushed or rest + row.pushed
    if row.queue and row.removed == 0 then counts[row.queue], names[#names + 1] = row.pushed, row.queue end
  end
  if rest > 0 then
    if not counts[OTHER] then names[#names + 1] = OTHER end
    counts[OTHER] = (counts[OTHER] or 0) + rest
  end
  self.host.family("nightshift_jobs_enqueued_total", "Jobs that hosts and programs have pushed since the tables were "
    .. "made, told once a minute; not those of SQL.", "counter")
  for _, name in ipairs(names) do
    self.host.sample("nightshift_jobs_enqueued_total", counts[name], "queue", name)
  end
  return true
end

--- Figures for autoscalers, with the target that `nightshift scale` has unless told.
local function tell_scale(self)
  local found, message, code = scale.look(self.handle, {})
  if not found then return code == "DENIED" or nil, message, code end -- an account with older grants
  local host = self.host
  host.family("nightshift_queue_drain_seconds", "Until its ready jobs are done, with the workers there are; "
    .. "absent: not known.")
  for _, row in ipairs(found.queues) do
    if row.drain_seconds then host.sample("nightshift_queue_drain_seconds", row.drain_seconds, "queue", row.name) end
  end
  host.family("nightshift_queue_workers_wanted", "Workers that keep up, and are done with its ready jobs in a minute.")
  for _, row in ipairs(found.queues) do
    host.sample("nightshift_queue_workers_wanted", row.wanted, "queue", row.name)
  end
  return true
end

--- Tells all figures; then the server's version.
local function tell_figures(self)
  local handle, host = self.handle, self.host
  local server, message, code = handle:execute "@report_server"
  if not server then return nil, message, code end
  local now, queues, holders
  now, message, code = handle:now()
  if not now then return nil, message, code end
  queues, message, code = report.queues(handle, now, true)
  if not queues then return nil, message, code end
  holders, message, code = handle:execute "@report_holders"
  if not holders then return nil, message, code end
  tell_queues(host, queues)
  local live = 0
  for _, row in ipairs(holders) do live = live + (row.kind == "host" and 1 or 0) end
  host.family("nightshift_hosts", "Live hosts of the database.")
  host.sample("nightshift_hosts", live)
  local ok
  ok, message, code = tell_unserved(self)
  if ok then ok, message, code = tell_pushed(self) end
  if ok then ok, message, code = tell_limits(self) end
  if ok then ok, message, code = tell_scale(self) end
  if not ok then return nil, message, code end
  return server[1].version
end

local Reader = {}
Reader.__index = Reader

--- Answers requests until the host ends. What fails is said once, until it is well again.
function Reader:run()
  while not self.host.wait() do
    local server, message = tell_figures(self)
    if not server and message ~= self.told then self.host.log("warn", "figures.failed", "error", message) end
    self.told = not server and message or nil
    self.host.tell(server ~= nil, server or nil)
  end
  self.db:close()
end

--- Opens the runner that reads them.
---@param connection table options of nightshift.open
---@param host table
---@return table|nil
---@return string? message
---@return string? code
function figures.open(connection, host)
  connection.read_timeout = math.min(connection.read_timeout or READ_TIMEOUT, READ_TIMEOUT)
  local db, message, code = require "nightshift".open(connection)
  if not db then return nil, message, code end
  return setmetatable({ db = db, handle = db._handle, host = host }, Reader)
end

-- ------------------------------------------------------------------------ series

-- By seconds of the span: minutes of a bucket, and how many there are.
local SPANS = { [3600] = { 1, 60 }, [86400] = { 15, 96 }, [604800] = { 120, 84 } }

local function mean(sum, n) return n > 0 and sum / n / 1000000 or nil end

--- A bucket: the instant that it begins, jobs that ended and were pushed in it, attempts that
-- failed, and seconds of waits and runs.
---@class nightshift.Bucket
---@field at number instant
---@field done integer jobs
---@field failed integer attempts that failed, crashed or were lost
---@field dead integer jobs
---@field cancelled integer jobs
---@field pushed integer jobs
---@field runs integer
---@field wait number? mean seconds from the due instant of a job to its start; nil: none has started
---@field wait_max number
---@field run number? mean seconds of a run
---@field run_max number
local function bucket_of(row)
  return {
    at = units.seconds(row.at), done = row.done, failed = row.failed, dead = row.dead, cancelled = row.cancelled,
    pushed = row.pushed, runs = row.runs,
    wait = mean(row.waited, row.waits), wait_max = row.longest_wait / 1000000,
    run = mean(row.ran, row.runs), run_max = row.longest_run / 1000000,
  }
end

--- 60 minutes, 96 quarters of an hour, or 84 times two hours, the newest last; without a row a bucket
-- is all zeros. The newest one has the last minute that has been over for 15 seconds: what hosts have
-- counted is written by then. A queue that does not exist has zeros.
---@param db nightshift.Db
---@param span integer seconds: 3600, 86400 or 604800
---@param queue string? nil: all queues
---@return nightshift.Bucket[]|nil
---@return string? message
---@return string? code
function figures.series(db, span, queue)
  local minutes, n = table.unpack(SPANS[span] or options.raise("series: the span is 3600, 86400 or 604800 seconds"))
  local numbers = core.array {}
  for i = 1, n do numbers[i] = n - i end
  local name = queue or core.null
  local rows, message, code = db._handle:execute("@report_series", minutes, name, name, core.encode(numbers))
  if not rows then return nil, message, code end
  for i, row in ipairs(rows) do rows[i] = bucket_of(row) end
  return rows
end

return figures
