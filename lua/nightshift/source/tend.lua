--- What an adopted table needs while its jobs are at work: those with rows that other programs have
-- taken or changed are cancelled, claims are renewed, rows that other programs have had for too
-- long come back, and jobs that were never begun are given back when no host is to begin them.

local steps = require "nightshift.source.steps"

local tend = {}

local AT_ONCE = 1000
local CHANGED = "the row was taken or changed"

--- Calls fn with the marks "[row,job]" of all live jobs, a thousand at a time.
local function each_live(self, fn)
  local prefix = ("row:%d:"):format(self.id)
  local from, stop = prefix, ("row:%d;"):format(self.id) -- ";" is behind ":"
  repeat
    local rows, message, code = steps.ask(self, "source_live", self.queue, from, stop, AT_ONCE)
    if not rows then return nil, message, code end
    local marks = {}
    for i, row in ipairs(rows) do marks[i] = ("[%s,%d]"):format(row.row_id, row.job_id) end
    if #marks > 0 then
      local ok
      ok, message, code = fn(steps.list(marks))
      if not ok then return nil, message, code end
      from = rows[#rows].ukey
    end
  until #rows < AT_ONCE
  return true
end

--- Cancels jobs with rows that are not theirs any more; how many.
---@param self nightshift.source.Table
---@return integer|nil
---@return string? message
---@return string? code
function tend.lost(self)
  local n = 0
  local ok, message, code = each_live(self, function(marks)
    local lost, why, kind = steps.run(self, "lost", marks)
    for _, row in ipairs(lost or {}) do
      if self.handle:cancel(row.job, CHANGED) then
        n = n + 1
        self.log("row.lost", row.id)
      end
    end
    return lost, why, kind
  end)
  if not ok then return nil, message, code end
  return n
end

--- Says of all rows that are at work that they still are.
---@param self nightshift.source.Table
function tend.renew(self)
  if not self.texts.renew then return true end
  local ok, message, code = each_live(self, function(marks)
    local result, why, kind = steps.run(self, "renew", marks)
    if not result and kind == "BUSY" then return true end -- one is locked: the next time
    return result, why, kind
  end)
  return ok, message, code
end

local function reset(self, ids)
  local rows, message, code = steps.run(self, "overdue_lock", steps.list(ids), #ids)
  if not rows then return nil, message, code end
  local marks = {}
  for i, row in ipairs(rows) do marks[i] = ("[%d,0,1]"):format(row.id) end
  local ok
  ok, message, code = steps.change(self, "reset", marks, true)
  if not ok then return nil, message, code end
  for _, row in ipairs(rows) do self.log("row.reset", row.id) end
  return #rows
end

--- Gives back what other programs have had for longer than the mapping says; how many rows.
---@param self nightshift.source.Table
function tend.overdue(self)
  if not self.texts.overdue then return 0 end
  local rows, message, code = steps.run(self, "overdue", AT_ONCE)
  if not rows then return nil, message, code end
  if #rows == 0 then return 0 end
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row.id end
  return steps.transaction(self, reset, ids)
end

-- ---------------------------------------------------------------- giving back

--- Ends jobs that were never begun without a trace, and owes their rows to be open.
local function give_back(self)
  local ready, message, code = steps.ask(self, "source_back_ready", self.queue, AT_ONCE)
  if not ready then return nil, message, code end
  local ids, ranks = {}, {}
  for i, row in ipairs(ready) do
    ids[i] = row.job_id
    ranks[row.job_id] = ("[%d,%d,%d]"):format(row.rank, row.ready_at, row.job_id)
  end
  local jobs
  jobs, message, code = steps.ask(self, "source_back_jobs", self.id, steps.list(ids))
  if not jobs then return nil, message, code end
  if #jobs == 0 then return 0 end
  local gone, places, marks, owed = {}, {}, {}, {}
  for i, job in ipairs(jobs) do
    gone[i], places[i] = job.id, ranks[job.id]
    marks[i] = ("[%s,%d]"):format(job.row_id, job.id)
    owed[i] = ('[%d,%s,%d,0,null,"open"]'):format(self.id, job.row_id, job.id)
  end
  for _, change in ipairs {
    { "source_owe", steps.list(owed) }, { "source_back_unready", self.queue, steps.list(places) },
    { "source_back_keys", self.queue, self.id, steps.list(marks) }, { "settle_gone", steps.list(gone) },
  } do
    local result
    result, message, code = steps.ask(self, table.unpack(change))
    if not result then return nil, message, code end
    if result.affected ~= #jobs then return nil, "a job was given back by halves", "BUSY" end
  end
  return #jobs
end

--- Gives back what no claim has begun; how many jobs. Their rows are owed it: see pay.lua.
---@param self nightshift.source.Table
---@return integer|nil
---@return string? message
---@return string? code
function tend.give_back(self)
  local sum = 0
  repeat
    local n, message, code = steps.transaction(self, give_back)
    if not n then return nil, message, code end
    sum = sum + n
  until n == 0
  return sum
end

return tend
