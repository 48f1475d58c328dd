--- The care for an adopted table while its jobs are at work. Jobs with rows that other programs
-- have taken or changed are cancelled, and claims are renewed. Rows that other programs have
-- had for too long come back. Jobs that were never begun are given back when no host is to
-- begin them.

local core = require "nightshift.core"
local failure = require "nightshift.failure"
local pay = require "nightshift.source.pay"
local steps = require("nightshift.source.text").steps

local tend = {}

local AT_ONCE = 1000
local CHANGED = "the row was taken or changed"

--- Says of the rows of a list, [[row,job],…], that they still are at work. When one is locked: the
-- next time.
local function renew(self, marks)
  local _, message, code = failure.try(steps.run, self, "renew", marks)
  if code and code ~= "BUSY" then failure.must(nil, message, code) end
end

--- Says so of one row.
---@param mark string "[row,job]"
function tend.renew(self, mark)
  if self.texts.renew then renew(self, steps.list { mark }) end
end

--- Cancels those of a list that have lost their row; how many.
local function cancel_lost(self, marks)
  local n = 0
  for _, row in ipairs(steps.run(self, "lost", marks)) do
    if self.handle:cancel(row.job, CHANGED) then
      n = n + 1
      self.log("row.lost", row.id)
    end
  end
  return n
end

--- Cancels live jobs with rows that are not theirs any more; how many. If it `renews`, it says of
-- the other rows that they are at work.
---@param renews boolean
---@return integer
function tend.live(self, renews)
  local n, from, stop = 0, ("row:%d:"):format(self.id), ("row:%d;"):format(self.id) -- ";" is behind ":"
  repeat
    local rows = steps.ask(self, "source_live", self.queue, from, stop, AT_ONCE)
    local marks = steps.list(steps.marks("[{row_id},{job_id}]", rows))
    if #rows > 0 then n, from = n + cancel_lost(self, marks), rows[#rows].ukey end
    if #rows > 0 and renews and self.texts.renew then renew(self, marks) end
  until #rows < AT_ONCE
  return n
end

local function reset(self, ids)
  local rows = steps.run(self, "overdue_lock", steps.list(ids), #ids)
  steps.change(self, "reset", steps.marks("[{id},0,1]", rows), true)
  for _, row in ipairs(rows) do self.log("row.reset", row.id) end
  return #rows
end

--- Gives back rows that other programs have had for longer than the mapping allows; returns how
-- many.
---@return integer
function tend.overdue(self)
  local rows = self.texts.overdue and steps.run(self, "overdue", AT_ONCE) or {}
  return #rows > 0 and failure.must(failure.transaction(self.handle, reset, self, steps.ids(rows))) or 0
end

local TURN = 2 -- seconds

--- Looks after the table, when no other program has for two seconds.
function tend.turn(self)
  local now = core.clock()
  if now < self.turn_at then return end
  self.turn_at = now + TURN
  local turn, message, code = failure.try(steps.ask, self, "source_turn", self.id, TURN * 1000000)
  if code == "BUSY" then return end
  if failure.must(turn, message, code).affected == 0 then return end
  tend.live(self, true)
  pay.all(self)
  tend.overdue(self)
end

-- ---------------------------------------------------------------- giving back

--- Ends jobs without a trace, and owes their rows to be open.
local function give_back(self, ids)
  local parts = self.map.parts
  local counts = (parts.attempts or parts.attempts_left) and 1 or 0 -- does the row know of failures?
  local jobs = steps.ask(self, "source_back_ready", self.queue, self.id, counts, ids, AT_ONCE)
  if #jobs == 0 then return 0 end
  local function list(format) return steps.list(steps.marks(format, jobs)) end
  local gone = list "{id}"
  steps.ask(self, "prune_attempts", gone) -- as many as there are
  steps.ask(self, "prune_signals", gone)
  for _, change in ipairs {
    { "source_owe", list(('[{row_id},{id},0,null,"open",%d]'):format(self.id)) },
    { "source_back_unready", self.queue, list "[{rank},{ready_at},{id}]" },
    { "settle_unique_list", list(('[{id},%d,"row:%d:{row_id}"]'):format(self.queue, self.id)) },
    { "settle_gone", gone },
  } do
    steps.all_of(steps.ask(self, table.unpack(change)), #jobs)
  end
  return #jobs
end

--- Gives back ready jobs whose row knows all of their past: all, or some; returns how many.
-- Their rows get a debt: see pay.lua.
---@param ids integer[]?
---@return integer
function tend.give_back(self, ids)
  local sum, list = 0, ids and steps.list(ids) or core.null
  repeat
    local n = failure.must(failure.transaction(self.handle, give_back, self, list))
    sum = sum + n
  until n == 0
  return sum
end

return tend
