--- The care for an adopted table while its jobs are at work. Jobs with rows that other programs
-- have taken or changed are cancelled, and claims are renewed. Rows that other programs have
-- had for too long come back. Jobs that were never begun are given back when no host is to
-- begin them.

local core = require "nightshift.core"
local pay = require "nightshift.source.pay"
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

--- As renew, of one row.
---@param self nightshift.source.Table
---@param mark string "[row,job]"
function tend.renew_one(self, mark)
  if not self.texts.renew then return true end
  local result, message, code = steps.run(self, "renew", steps.list { mark })
  if result or code == "BUSY" then return true end
  return nil, message, code
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

--- Gives back rows that other programs have had for longer than the mapping allows; returns how
-- many.
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

local TURN = 2 -- seconds

--- Looks after the table, when no other program has for two seconds.
---@param self nightshift.source.Table
---@return true|nil
---@return string? message
---@return string? code
function tend.turn(self)
  local now = core.clock()
  if now < self.turn_at then return true end
  self.turn_at = now + TURN
  local turn, message, code = steps.ask(self, "source_turn", self.id, TURN * 1000000)
  if not turn and code == "BUSY" or turn and turn.affected == 0 then return true end
  for _, step in ipairs { tend.lost, pay.all, tend.renew, tend.overdue } do
    if turn then turn, message, code = step(self) end
  end
  if turn then return true end
  return nil, message, code
end

-- ---------------------------------------------------------------- giving back

--- Is a failure known to the row, and not to its job alone? 0 or 1.
local function counts(self)
  local parts = self.map.parts
  return (parts.attempts or parts.attempts_left) and 1 or 0
end

--- Ends jobs without a trace, and owes their rows to be open.
local function give_back(self, ids)
  local jobs, message, code = steps.ask(self, "source_back_ready", self.queue, self.id, counts(self), ids, AT_ONCE)
  if not jobs then return nil, message, code end
  if #jobs == 0 then return 0 end
  local gone, places, marks, owed = {}, {}, {}, {}
  for i, job in ipairs(jobs) do
    gone[i], places[i] = job.id, ("[%d,%d,%d]"):format(job.rank, job.ready_at, job.id)
    marks[i] = ("[%s,%d]"):format(job.row_id, job.id)
    owed[i] = ('[%d,%s,%d,0,null,"open"]'):format(self.id, job.row_id, job.id)
  end
  for _, statement in ipairs { "prune_attempts", "prune_signals" } do -- as many as there are
    local result
    result, message, code = steps.ask(self, statement, steps.list(gone))
    if not result then return nil, message, code end
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

--- Gives back ready jobs whose row knows all of their past: all, or some; returns how many.
-- Their rows get a debt: see pay.lua.
---@param self nightshift.source.Table
---@param ids integer[]?
---@return integer|nil
---@return string? message
---@return string? code
function tend.give_back(self, ids)
  local sum, list = 0, ids and steps.list(ids) or core.null
  repeat
    local n, message, code = steps.transaction(self, give_back, list)
    if not n then return nil, message, code end
    sum = sum + n
  until n == 0
  return sum
end

return tend
