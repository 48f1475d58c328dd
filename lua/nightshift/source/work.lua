--- The work on rows of an adopted table: they are taken in as jobs, and tended while these are at
-- work. They are paid what is owed to them, so that they tell of their jobs.
--
-- Taking in: the job's unique key names the row, and the row shows the job. Both are one
-- transaction. Rows are found without locks, and locked, skipping locks of other sessions. Then
-- they are asked for once more whether they have a job or a debt: a look may be older than that. A
-- row that the server refuses to change, or that cannot be a job, is left alone for a while. The
-- rows behind it go on.
--
-- Tending: jobs with rows that other programs have taken or changed are cancelled, and claims are
-- renewed. Rows that other programs have had for too long come back. Jobs that were never begun
-- are given back when no host is to begin them.
--
-- Paying: debts are read in the order of the rows, and added up for each: how often its job has
-- failed more, and its end. A row is written only while it is that job's. A row that another
-- program has taken or changed is let go, and a locked one comes later.

local core = require "nightshift.core"
local failure = require "nightshift.failure"
local steps = require("nightshift.source.text").steps

local fail, must = failure.fail, failure.must

local work = {}

local AT_ONCE = 1000 -- rows, jobs or debts of one statement
local REFUSED = 60 -- seconds for which a row is left alone that the server refuses to change
local PASSED = 0.2 -- ... and a row that has a job already
local FEWER, PAUSE = 4, 0.01 -- rows, and seconds, after a try that other sessions' locks have ended
local PAGE = 16    -- rows beyond twice the wanted number that a look finds: other hosts may have
                   -- some locked
local MOST = 10000 -- rows that a look finds
local WHOLE = 10   -- seconds between looks at all rows, also those below the floor
local MANY = 1000000 -- attempts, where nothing counts them
local TRIES, WIDER = 6, 8 -- looks, each so many times as wide, past rows that other sessions have
                          -- locked

-- ------------------------------------------------------- taking in: a look

--- The rows that are left alone now, as JSON.
local function left_alone(self)
  local ids, now = {}, core.clock()
  for id, over in pairs(self.refused) do
    if over > now then ids[#ids + 1] = id else self.refused[id] = nil end
  end
  return "[" .. table.concat(ids, ",") .. "]"
end

--- The id from which on a row may be open: the rows before it were looked at a moment ago.
local function floor_of(self)
  local now = core.clock()
  if now >= self.whole_at then self.floor, self.whole_at = 1, now + WHOLE end
  return self.floor
end

--- Ids of so many rows that may be taken in.
---@param n integer
---@return integer[]
function work.look(self, n)
  local ids = steps.ids(steps.run(self, "look", floor_of(self), left_alone(self), self.served, n))
  if self.in_order and ids[1] then self.floor = ids[1] end
  return ids
end

-- -------------------------------------------------- taking in: rows as jobs

local function json_of(field, value)
  if field.json then return value end
  local json, message = core.encode(value)
  return json or fail("INVALID", "column '%s': %s", field.name, message)
end

--- All columns of a row as JSON, without NULLs; or one column of it.
local function payload_of(self, row)
  local one, parts = self.map.parts.payload, {}
  if one then return row[one.name] == nil and "null" or json_of(one, row[one.name]) end
  for _, field in ipairs(self.map.fields) do
    local value = row[field.name]
    if value ~= nil then parts[#parts + 1] = self.names[field.name] .. ":" .. json_of(field, value) end
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

--- How often the row has failed, and how often it may in all.
local function attempts_of(map, row)
  local left = map.parts.attempts_left and row[map.parts.attempts_left.name]
  if left then
    local most = math.max(map.max_attempts or left, left)
    return most - left, most
  end
  local failed = map.parts.attempts and math.max(row[map.parts.attempts.name] or 0, 0) or 0
  return failed, map.max_attempts or failed + MANY
end

local function clamp(n) return math.min(math.max(n, 0), 255) end

local function priority_of(map, row)
  local priority = map.parts.priority and row[map.parts.priority.name]
  if not priority then return nil end
  priority = clamp(math.tointeger(tonumber(priority)) or 255)
  return map.lower_first and 255 - priority or priority
end

--- The entry of a push for a row, and how often it has failed.
local function entry_of(self, row)
  local map = self.map
  local failed, most = attempts_of(map, row)
  local entry = { name = map.handler or row[map.parts.name.name] or "", json = payload_of(self, row),
    unique = ("row:%d:%d"):format(self.id, row[self.key]), priority = priority_of(map, row),
    max_attempts = math.min(most, MANY), anyhow = 1 }
  for name, value in pairs(map.push) do entry[name] = value end
  return entry, math.min(failed, entry.max_attempts - 1)
end

-- ------------------------------------------------------ taking in: the rows

--- The rows without a job and without debts.
---@param found table[]
---@return table[]
function work.free_of(self, found)
  local free, known = {}, {}
  for _, row in ipairs(steps.ask(self, "source_known", self.queue, self.id, steps.list(steps.ids(found, self.key)))) do
    known[row.id] = true
  end
  for _, row in ipairs(found) do
    if not known[row[self.key]] then free[#free + 1] = row end
  end
  return free, known
end

--- Pushes a job for each row. Jobs of rows that have failed before have failed as often.
---@param queue string
---@param found table[]
---@param change fun(entry: table, row: table, i: integer) of the options of each push
function work.push(self, queue, found, change)
  local entries, failed, marks = {}, {}, {}
  for i, row in ipairs(found) do
    entries[i], failed[i] = entry_of(self, row)
    change(entries[i], row, i)
  end
  for i, id in ipairs(must(self.handle:push(queue, entries))) do
    if failed[i] > 0 then marks[#marks + 1] = ("[%d,%d]"):format(id, failed[i]) end
  end
  if #marks > 0 then steps.ask(self, "source_attempts", steps.list(marks)) end
end

--- Locks up to n of the rows, marks them, and pushes their jobs; returns the jobs. No statement
-- comes between the lock and the mark. A program that walks an index waits for such a row with
-- its place in the index locked. Then the row cannot be marked.
local function take_in(self, ids, n)
  local jobs, marks = must(self.handle:take_ids(math.min(n, #ids))), {}
  local locked = steps.run(self, "lock", steps.list(ids), n)
  for i, row in ipairs(locked) do marks[i] = ("[%d,%d]"):format(row[self.key], jobs[i]) end
  steps.change(self, "mark", marks, self.marks)
  if #locked == 0 then return {} end
  local free, known = work.free_of(self, locked)
  if #free < #locked then -- the job is cancelled soon, or has just ended
    for id in pairs(known) do self.refused[id] = core.clock() + PASSED end
    fail("BUSY", "a row has a job already")
  end
  work.push(self, self.name, locked, function(entry, _, i) entry.id = jobs[i] end)
  return table.move(jobs, 1, #locked, 1, {})
end

--- One by one, after a refusal of many.
local function take_each(self, ids, wanted)
  local jobs = {}
  for _, id in ipairs(ids) do
    if #jobs == wanted then break end
    local taken, message, code = failure.transaction(self.handle, take_in, self, { id }, 1)
    if not taken and not steps.is_of_row(message, code) then must(nil, message, code) end
    if not taken then
      self.refused[id] = core.clock() + REFUSED
      self.refusal = ("row %d of '%s' cannot be claimed: %s"):format(id, self.table, message)
      self.log("row.refused", id, message)
    end
    jobs[#jobs + 1] = taken and taken[1]
  end
  return jobs
end

--- Takes in up to n rows; the ids of their jobs.
---@param n integer
---@return integer[]
function work.take(self, n)
  local ids, taken, message, code
  local width = n * 2 + PAGE
  for i = 1, TRIES do
    ids = work.look(self, width)
    if #ids == 0 then return {} end
    taken, message, code = failure.try(failure.once, self.handle, take_in, self, ids, n)
    if taken and (#taken > 0 or #ids < width) then return taken end
    if not taken and code ~= "DUPLICATE" and code ~= "BUSY" then break end -- another took it in a moment ago
    if taken then width = math.min(width * WIDER, MOST) end -- all of these are locked, or have a job
    if code == "BUSY" then
      n = math.max(1, n // FEWER)
      core.sleep(PAUSE * i * math.random())
    end
  end
  if taken or code == "BUSY" then return taken or {} end
  if not steps.is_of_row(message, code) then must(nil, message, code) end
  return take_each(self, ids, n)
end

-- --------------------------------------------------------------------- paying

local PATIENCE, LONGEST = 1, 60 -- seconds for which a locked row is skipped, and between waits for
                                -- it

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

local function pay_some(self) return settle(self, next_debts(self)) end

--- Pays the debts to one row. When none is left the row is not waited for.
local function pay_row(self, id, waits)
  local debts = steps.ask(self, "source_debts", self.id, id - 1, id, AT_ONCE)
  if #debts == 0 then self.locked[id] = nil end
  return settle(self, debts, waits)
end

--- Does so in a transaction; nil: the row is locked. One that the server refuses to change rests.
local function alone(self, id, waits)
  local paid, message, code = failure.try(failure.once, self.handle, pay_row, self, id, waits)
  if paid then return paid end
  if code == "BUSY" then return note_locked(self, id) end
  if not steps.is_of_row(message, code) then must(nil, message, code) end
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
local function pay_each(self)
  local n = 0
  for _, sum in ipairs(add_up(self, next_debts(self))) do n = n + (alone(self, sum.row) or 0) end
  return n
end

--- Pays all that can be paid now; returns how many rows.
---@return integer
function work.pay(self)
  local sum = 0
  repeat
    local n, message, code = failure.transaction(self.handle, pay_some, self)
    if not n and code ~= "BUSY" and not steps.is_of_row(message, code) then must(nil, message, code) end
    sum = sum + (n or pay_each(self))
    self.paid_to = self.behind
  until self.paid_to == 0
  return sum + wait_for_locked(self)
end

-- -------------------------------------------------------------------- tending

local CHANGED = "the row was taken or changed"

--- Says of the rows of a list, [[row,job],…], that they still are at work. When one is locked: the
-- next time.
local function renew(self, marks)
  local _, message, code = failure.try(steps.run, self, "renew", marks)
  if code and code ~= "BUSY" then must(nil, message, code) end
end

--- Says so of one row.
---@param mark string "[row,job]"
function work.renew(self, mark)
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
function work.tend(self, renews)
  local n, from, stop = 0, ("row:%d:"):format(self.id), ("row:%d;"):format(self.id) -- ";" is behind ":"
  repeat
    local live = steps.ask(self, "source_live", self.queue, from, stop, AT_ONCE)
    local marks = steps.list(steps.marks("[{row_id},{job_id}]", live))
    if #live > 0 then n, from = n + cancel_lost(self, marks), live[#live].ukey end
    if #live > 0 and renews and self.texts.renew then renew(self, marks) end
  until #live < AT_ONCE
  return n
end

local function reset(self, ids)
  local overdue = steps.run(self, "overdue_lock", steps.list(ids), #ids)
  steps.change(self, "reset", steps.marks("[{id},0,1]", overdue), true)
  for _, row in ipairs(overdue) do self.log("row.reset", row.id) end
  return #overdue
end

--- Gives back rows that other programs have had for longer than the mapping allows; returns how
-- many.
---@return integer
function work.overdue(self)
  local overdue = self.texts.overdue and steps.run(self, "overdue", AT_ONCE) or {}
  return #overdue > 0 and must(failure.transaction(self.handle, reset, self, steps.ids(overdue))) or 0
end

local TURN = 2 -- seconds

--- Looks after the table, when no other program has for two seconds.
function work.turn(self)
  local now = core.clock()
  if now < self.turn_at then return end
  self.turn_at = now + TURN
  local turn, message, code = failure.try(steps.ask, self, "source_turn", self.id, TURN * 1000000)
  if code == "BUSY" then return end
  if must(turn, message, code).affected == 0 then return end
  work.tend(self, true)
  work.pay(self)
  work.overdue(self)
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
-- Their rows get a debt.
---@param ids integer[]?
---@return integer
function work.give_back(self, ids)
  local sum, list = 0, ids and steps.list(ids) or core.null
  repeat
    local n = must(failure.transaction(self.handle, give_back, self, list))
    sum = sum + n
  until n == 0
  return sum
end

return work
