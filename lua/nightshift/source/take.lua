--- Taking in rows of an adopted table: each becomes a job with a unique key that names it, and
-- the row shows that.
--
-- Both are one transaction. Rows are found without locks, and locked, skipping locks of other
-- sessions. Then they are asked for once more whether they have a job or a debt: a look may be
-- older than that. A row that the server refuses to change, or that cannot be a job, is left
-- alone for a while. The rows behind it go on.

local core = require "nightshift.core"
local failure = require "nightshift.failure"
local steps = require("nightshift.source.text").steps

local fail, must = failure.fail, failure.must

local take = {}

local REFUSED = 60 -- seconds for which a refused row is left alone
local PASSED = 0.2 -- ... and a row that has a job
local FEWER, PAUSE = 4, 0.01 -- rows, and seconds, after a try that other sessions' locks have ended
local PAGE = 16    -- rows beyond twice the wanted number that a look finds: other hosts may have
                   -- some locked
local MOST = 10000 -- rows that a look finds
local WHOLE = 10   -- seconds between looks at all rows, also those below the floor
local MANY = 1000000 -- attempts, where nothing counts them
local TRIES, WIDER = 6, 8 -- looks, each so many times as wide, past rows that other sessions have
                          -- locked

-- --------------------------------------------------------------------- a look

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
function take.look(self, n)
  local ids = steps.ids(steps.run(self, "look", floor_of(self), left_alone(self), self.served, n))
  if self.in_order and ids[1] then self.floor = ids[1] end
  return ids
end

-- ---------------------------------------------------------------- rows as jobs

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

-- --------------------------------------------------------------------- taking

--- The rows without a job and without debts.
---@param rows table[]
---@return table[]
function take.free_of(self, rows)
  local free, known = {}, {}
  for _, row in ipairs(steps.ask(self, "source_known", self.queue, self.id, steps.list(steps.ids(rows, self.key)))) do
    known[row.id] = true
  end
  for _, row in ipairs(rows) do
    if not known[row[self.key]] then free[#free + 1] = row end
  end
  return free, known
end

--- Pushes a job for each row. Jobs of rows that have failed before have failed as often.
---@param queue string
---@param rows table[]
---@param change fun(entry: table, row: table, i: integer) of the options of each push
function take.push(self, queue, rows, change)
  local entries, failed, marks = {}, {}, {}
  for i, row in ipairs(rows) do
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
  local rows = steps.run(self, "lock", steps.list(ids), n)
  for i, row in ipairs(rows) do marks[i] = ("[%d,%d]"):format(row[self.key], jobs[i]) end
  steps.change(self, "mark", marks, self.marks)
  if #rows == 0 then return {} end
  local free, known = take.free_of(self, rows)
  if #free < #rows then -- the job is cancelled soon, or has just ended
    for id in pairs(known) do self.refused[id] = core.clock() + PASSED end
    fail("BUSY", "a row has a job already")
  end
  take.push(self, self.name, rows, function(entry, _, i) entry.id = jobs[i] end)
  return table.move(jobs, 1, #rows, 1, {})
end

local function each(self, ids, wanted)
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
function take.rows(self, n)
  local ids, taken, message, code
  local width = n * 2 + PAGE
  for i = 1, TRIES do
    ids = take.look(self, width)
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
  return each(self, ids, n)
end

return take
