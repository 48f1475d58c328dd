--- Paying: writes debts into the rows of an adopted table, which then tell of their jobs.
--
-- Debts are read in the order of the rows, and added up for each: how often its job has failed
-- more, and its end. A row is written only while it is that job's. A row that another program
-- has taken or changed is let go, and a locked one comes later.

local core = require "nightshift.core"
local failure = require "nightshift.failure"
local steps = require("nightshift.source.text").steps

local pay = {}

local AT_ONCE = 1000
local PATIENCE, LONGEST = 1, 60 -- seconds for which a locked row is skipped, and between waits for
                                -- it
local REFUSED = 60 -- seconds until a row that the server refuses to change is tried again

-- The statement of text.lua that writes an outcome.
local TEXTS = { done = "done", dead = "dead", cancelled = "dead", open = "open", retry = "retry", lives = "lives" }

--- Adds up the debts to each row, in its order: a list of {row =, job =, n =, due =, outcome =,
-- seqs =}.
local function add_up(self, debts)
  local list, last, now = {}, nil, core.clock()
  for _, debt in ipairs(debts) do
    local rests = (self.unpaid[debt.row_id] or now) > now
    if not rests and (not last or last.row ~= debt.row_id) then
      last = { row = debt.row_id, n = 0, seqs = {}, outcome = "lives" }
      list[#list + 1], self.unpaid[debt.row_id] = last, nil
    end
    -- a retry refers to the row once the end of its job stands there
    if not rests and (debt.outcome ~= "retry" or last.outcome == "retry" or #last.seqs == 0) then
      last.job, last.n, last.due = debt.job_id, last.n + debt.failures, debt.due or last.due
      last.outcome = debt.outcome or last.outcome
      last.seqs[#last.seqs + 1] = debt.seq
    end
  end
  return list
end

--- The rows, of some sums, that a statement finds: a set.
local function found(self, statement, sums)
  local set = {}
  if #sums == 0 then return set end
  for _, row in ipairs(steps.run(self, statement, steps.list(steps.marks("[{row},{job}]", sums)))) do
    set[row.id] = true
  end
  return set
end

--- Locks the rows that are still their jobs'. Gives which are, and which another program has.
local function hold(self, sums, waits)
  local held, rest = found(self, waits and "wait" or "hold", sums), {}
  for _, sum in ipairs(sums) do
    if not held[sum.row] and sum.outcome ~= "retry" then rest[#rest + 1] = sum end
  end
  return held, found(self, "lost", rest)
end

--- Runs one statement for each outcome that occurs.
local function write(self, sums)
  local lists = {}
  for _, sum in ipairs(sums) do
    local name = TEXTS[sum.outcome]
    lists[name] = lists[name] or {}
    table.insert(lists[name], ("[%d,%d,%d,%s]"):format(sum.row, sum.job, sum.n, sum.due or "null"))
  end
  for name, marks in pairs(lists) do
    steps.change(self, name, marks, self.changes[name])
    if name == "open" or name == "retry" then self.whole_at = 0 end -- the next look is for these, too
  end
end

local function forget(self, sums)
  local seqs = {}
  for _, sum in ipairs(sums) do table.move(sum.seqs, 1, #sum.seqs, #seqs + 1, seqs) end
  if #seqs > 0 then steps.all_of(steps.ask(self, "source_paid", steps.list(seqs)), #seqs) end
end

--- A row that is locked is waited for when it has been for a second.
local function note_locked(self, row)
  if not self.locked[row] then self.locked[row] = { at = core.clock() + PATIENCE, pause = PATIENCE } end
end

--- Pays these debts, as far as their rows are not locked, or `waits` for the locks. Debts to
-- rows that other programs have are dropped; returns how many rows were written.
local function settle(self, debts, waits)
  local sums, mine, over = add_up(self, debts), {}, {}
  local held, lost = hold(self, sums, waits)
  for _, sum in ipairs(sums) do
    local paid = held[sum.row] or sum.outcome == "retry"
    if paid then mine[#mine + 1] = sum end
    if paid or lost[sum.row] then over[#over + 1] = sum else note_locked(self, sum.row) end
  end
  write(self, mine)
  forget(self, over)
  for row in pairs(lost) do self.log("row.lost", row) end
  for _, sum in ipairs(over) do self.locked[sum.row] = nil end
  return #mine
end

--- The next debts, from where the last look ended. `behind`: where the next one begins; 0: it was
-- the last.
local function next_debts(self)
  local debts = steps.ask(self, "source_debts", self.id, self.paid_to, math.maxinteger, AT_ONCE)
  self.behind = #debts == AT_ONCE and debts[#debts].row_id or 0
  return debts
end

local function some(self) return settle(self, next_debts(self)) end

--- Pays the debts to one row. When none is left the row is not waited for.
local function row(self, id, waits)
  local debts = steps.ask(self, "source_debts", self.id, id - 1, id, AT_ONCE)
  if #debts == 0 then self.locked[id] = nil end
  return settle(self, debts, waits)
end

--- Does so in a transaction; nil: the row is locked. One that the server refuses to change rests.
local function alone(self, id, waits)
  local paid, message, code = failure.try(failure.once, self.handle, row, self, id, waits)
  if paid then return paid end
  if code == "BUSY" then return note_locked(self, id) end
  if not steps.is_of_row(message, code) then failure.must(nil, message, code) end
  self.unpaid[id], self.locked[id] = core.clock() + REFUSED, nil
  self.log("row.refused", id, message)
  steps.ask(self, "source_refused", message:sub(1, 500), self.id, id)
  return 0
end

--- Waits for rows that have been locked for long, until one is not free within a second; returns
-- how many were written. No other row of the table is locked meanwhile, so the session that
-- holds the lock does not wait for us.
local function wait_for_locked(self)
  local n, now = 0, core.clock()
  for id, locked in pairs(self.locked) do
    if locked.at <= now then
      local paid = alone(self, id, true)
      locked.pause = math.min(locked.pause * 2, LONGEST)
      locked.at = core.clock() + locked.pause
      if not paid then break end
      n = n + paid
    end
  end
  return n
end

--- The server refuses a row of many: one by one.
local function each(self)
  local n = 0
  for _, sum in ipairs(add_up(self, next_debts(self))) do n = n + (alone(self, sum.row) or 0) end
  return n
end

--- Pays all that can be paid now; returns how many rows.
---@return integer
function pay.all(self)
  local sum = 0
  repeat
    local n, message, code = failure.transaction(self.handle, some, self)
    if not n and code ~= "BUSY" and not steps.is_of_row(message, code) then failure.must(nil, message, code) end
    sum = sum + (n or each(self))
    self.paid_to = self.behind
  until self.paid_to == 0
  return sum + wait_for_locked(self)
end

return pay
