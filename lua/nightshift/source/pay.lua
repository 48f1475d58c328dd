--- Paying: writes debts into the rows of an adopted table, which then tell of their jobs.
--
-- Debts are read in the order of the rows, and added up for each: how often its job has failed
-- more, and its end. A row is written only while it is that job's. A row that another program
-- has taken or changed is let go, and a locked one comes later.

local core = require "nightshift.core"
local steps = require "nightshift.source.steps"

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
    local rests = self.unpaid[debt.row_id]
    if rests and rests <= now then self.unpaid[debt.row_id], rests = nil, nil end
    if not rests then
      if not last or last.row ~= debt.row_id then
        last = { row = debt.row_id, n = 0, seqs = {}, outcome = "lives" }
        list[#list + 1] = last
      end
      -- a retry refers to the row once the end of its job stands there
      if debt.outcome ~= "retry" or last.outcome == "retry" or #last.seqs == 0 then
        last.job, last.n, last.due = debt.job_id, last.n + debt.failures, debt.due or last.due
        last.outcome = debt.outcome or last.outcome
        last.seqs[#last.seqs + 1] = debt.seq
      end
    end
  end
  return list
end

local function marks_of(list)
  local marks = {}
  for i, sum in ipairs(list) do marks[i] = ("[%d,%d]"):format(sum.row, sum.job) end
  return steps.list(marks)
end

local function set_of(rows)
  local set = {}
  for _, row in ipairs(rows) do set[row.id] = true end
  return set
end

--- Locks the rows that are still their jobs'. Gives which are, and which another program has.
local function hold(self, list, waits)
  local held, lost, message, code
  held, message, code = steps.run(self, waits and "wait" or "hold", marks_of(list))
  if not held then return nil, message, code end
  held, lost = set_of(held), {}
  local rest = {}
  for _, sum in ipairs(list) do
    if not held[sum.row] and sum.outcome ~= "retry" then rest[#rest + 1] = sum end
  end
  if #rest > 0 then
    lost, message, code = steps.run(self, "lost", marks_of(rest))
    if not lost then return nil, message, code end
    lost = set_of(lost)
  end
  return held, lost
end

--- Runs one statement for each outcome that occurs.
local function write(self, sums)
  local lists = {}
  for _, sum in ipairs(sums) do
    local name = TEXTS[sum.outcome]
    lists[name] = lists[name] or {}
    table.insert(lists[name], ("[%d,%d,%d,%s]"):format(sum.row, sum.job, sum.n, sum.due or "null"))
  end
  for name, items in pairs(lists) do
    local ok, message, code = steps.change(self, name, items, self.changes[name])
    if not ok then return nil, message, code end
    if name == "open" or name == "retry" then self.whole_at = 0 end -- the next look is for these, too
  end
  return true
end

local function forget(self, sums)
  local seqs = {}
  for _, sum in ipairs(sums) do table.move(sum.seqs, 1, #sum.seqs, #seqs + 1, seqs) end
  if #seqs == 0 then return true end
  local result, message, code = steps.ask(self, "source_paid", steps.list(seqs))
  if not result then return nil, message, code end
  if result.affected == #seqs then return true end
  return nil, "what was paid is still owed", "BUSY"
end

--- A row that is locked is waited for when it has been for a second.
local function note_locked(self, row)
  if not self.locked[row] then self.locked[row] = { at = core.clock() + PATIENCE, pause = PATIENCE } end
end

--- Pays these debts, as far as their rows are not locked, or `waits` for the locks. Debts to
-- rows that other programs have are dropped; returns how many rows were written.
local function settle(self, list, waits)
  if #list == 0 then return 0 end
  local held, lost, code = hold(self, list, waits)
  if not held then return nil, lost, code end
  local mine, over = {}, {}
  for _, sum in ipairs(list) do
    local paid = held[sum.row] or sum.outcome == "retry"
    if paid then mine[#mine + 1] = sum end
    if paid or lost[sum.row] then over[#over + 1] = sum else note_locked(self, sum.row) end
  end
  local ok, message
  ok, message, code = write(self, mine)
  if ok then ok, message, code = forget(self, over) end
  if not ok then return nil, message, code end
  for row in pairs(lost) do self.log("row.lost", row) end
  for _, sum in ipairs(over) do self.locked[sum.row] = nil end
  return #mine
end

--- Reads some, from where the last look ended, and pays them.
local function some(self)
  local debts, message, code = steps.ask(self, "source_debts", self.id, self.paid_to, AT_ONCE)
  if not debts then return nil, message, code end
  self.paid_next = #debts == AT_ONCE and debts[#debts].row_id or 0
  return settle(self, add_up(self, debts))
end

--- Pays the debts to one row, on the open transaction, or in one of its own.
---@param self nightshift.source.Table
---@param row integer
---@return integer|nil
---@return string? message
---@return string? code
function pay.row(self, row)
  local debts, message, code = steps.ask(self, "source_debts_of", self.id, steps.list { row })
  if not debts then return nil, message, code end
  return settle(self, add_up(self, debts))
end

--- Waits for rows that have been locked for long, until one is not free within a second; returns
-- how many were written. No other row of the table is locked meanwhile, so the session that
-- holds the lock does not wait for us.
local function wait_for_locked(self)
  local n, now = 0, core.clock()
  for row, locked in pairs(self.locked) do
    if locked.at <= now then
      local paid, message, code = steps.once(self, function()
        local debts, why, kind = steps.ask(self, "source_debts_of", self.id, steps.list { row })
        if not debts then return nil, why, kind end
        if #debts == 0 then self.locked[row] = nil end
        return settle(self, add_up(self, debts), true)
      end)
      if not paid and code ~= "BUSY" then return nil, message, code end
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
  local debts, message, code = steps.ask(self, "source_debts", self.id, self.paid_to, AT_ONCE)
  if not debts then return nil, message, code end
  local n = 0
  for _, sum in ipairs(add_up(self, debts)) do
    local paid
    paid, message, code = steps.transaction(self, pay.row, sum.row)
    if not paid and code ~= "BUSY" and not steps.is_of_row(message, code) then return nil, message, code end
    if not paid and code == "BUSY" then
      note_locked(self, sum.row)
    elseif not paid then
      self.unpaid[sum.row] = core.clock() + REFUSED
      self.log("row.refused", sum.row, message)
      steps.ask(self, "source_refused", message:sub(1, 500), steps.list(sum.seqs))
    end
    n = n + (paid or 0)
  end
  return n
end

--- Pays up to a thousand; how many rows, and whether there may be more.
---@param self nightshift.source.Table
---@return integer|nil
---@return boolean|string more, or a message
---@return string? code
function pay.some(self)
  local n, message, code = steps.transaction(self, some)
  if not n and code ~= "BUSY" and not steps.is_of_row(message, code) then return nil, message, code end
  if not n then n, message, code = each(self) end
  if not n then return nil, message, code end
  self.paid_to = self.paid_next or 0
  return n, self.paid_to ~= 0
end

--- Pays all that can be paid now; returns how many rows.
---@param self nightshift.source.Table
function pay.all(self)
  local sum = 0
  repeat
    local n, more, code = pay.some(self)
    if not n then return nil, more, code end
    sum = sum + n
  until not more
  local n, message, code = wait_for_locked(self)
  if not n then return nil, message, code end
  return sum + n
end

return pay
