--- What has happened in a queue, or in all of them, over the last hour, day or week: for charts.
--
-- The counts are rows of nightshift_minute, which hosts and programs write once a minute. They last
-- when those end. A process that is killed takes its last minute with it, and pushes from SQL are not
-- counted. Buckets begin at full minutes, quarters of an hour, or even hours, UTC.

local core = require "nightshift.core"
local options = require "nightshift.options"
local units = require "nightshift.units"

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
local function series(db, span, queue)
  local minutes, n = table.unpack(SPANS[span] or options.raise("series: the span is 3600, 86400 or 604800 seconds"))
  local numbers = core.array {}
  for i = 1, n do numbers[i] = n - i end
  local name = queue or core.null
  local rows, message, code = db._handle:execute("@report_series", minutes, name, name, core.encode(numbers))
  if not rows then return nil, message, code end
  for i, row in ipairs(rows) do rows[i] = bucket_of(row) end
  return rows
end

return series
