--- What people do with an adopted table: they count its rows, pause it, say how fast it is worked
-- on, look at those that are dead, and run them again.
--
-- How many rows there are is what the table says and what their jobs do. Why a row is dead is
-- said by the history of its last job, as long as that is kept.

local admin_text = require "nightshift.source.admin_text"
local core = require "nightshift.core"
local known = require "nightshift.source.known"
local mapping = require "nightshift.source.mapping"
local options = require "nightshift.options"
local pay = require "nightshift.source.pay"
local steps = require "nightshift.source.steps"
local take = require "nightshift.source.take"
local times = require "nightshift.times"

local raise = options.raise

local admin = {}

-- ------------------------------------------------------------------ counting

local COUNTED = 100000 -- rows of a state; counting more takes long

-- The states of jobs as those of rows.
local STATES = { ready = "ready", scheduled = "waiting", waiting = "waiting", running = "running" }

--- Rows by state, counted up to a limit: those that are taken in by the states of their jobs. Also
-- `next`, seconds until one of those that wait is due, `taken`, how many have jobs, and `theirs`, how
-- many other programs have.
---@param self nightshift.source.Table
---@param most integer
---@return table|nil
---@return string? message
---@return string? code
function admin.count(self, most)
  admin_text.of(self)
  local rows, message, code = steps.run(self, "counts", most, most, most, most, most)
  if not rows then return nil, message, code end
  local found = rows[1]
  local counts = { ready = found.ready, waiting = found.later, running = found.theirs, done = found.done,
    dead = found.dead, theirs = found.theirs, taken = 0 }
  local next_us = found.next_due or math.huge
  rows, message, code = steps.ask(self, "source_jobs", self.queue, ("row:%d:"):format(self.id),
    ("row:%d;"):format(self.id), most)
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do
    local name = STATES[row.state]
    counts[name], counts.taken = counts[name] + row.n, counts.taken + row.n
    if row.state == "scheduled" then next_us = math.min(next_us, math.max(row.next_due, 0)) end
  end
  counts.next = next_us < math.huge and next_us / 1000000 or nil
  return counts
end

local function stats(self)
  local counts, message, code = admin.count(self, COUNTED)
  if not counts then return nil, message, code end
  counts.name, counts.taken, counts.theirs = self.name, nil, nil
  for _, state in ipairs { "ready", "waiting", "running", "done", "dead" } do
    if counts[state] >= COUNTED then
      counts[state] = COUNTED
      counts.approximate = counts.approximate or {}
      counts.approximate[state] = true
    end
  end
  return counts
end

-- -------------------------------------------------------------------- advice

local DESCENDING = 1008 -- servers before ignore DESC in an index

--- Does the server find rows by an index, and in order? By the primary key it reads all that are
-- done as well.
local function is_fine(self)
  local sql = self.texts.look:gsub("^SET STATEMENT .- FOR%s", "", 1)
  local plan, message, code = self.handle:execute("@:EXPLAIN " .. sql, 1, "[]", core.null, 10)
  if not plan then return nil, message, code end
  local row = plan[1]
  if not row.type or row.type == "ALL" or row.type == "index" or row.key == "PRIMARY" then return false end
  return not (row.Extra or ""):find "filesort"
end

--- The columns of the index that serves: {name, is descending}.
local function wanted(map)
  local list = { { map.parts.status.name, false } }
  if map.parts.priority then list[2] = { map.parts.priority.name, not map.lower_first } end
  list[#list + 1] = { map.parts.id.name, map.newest_first }
  return list
end

--- The primary key is behind each index, upwards; and order is read either way.
local function serves(index, columns)
  local same, turned = true, true
  for i, column in ipairs(columns) do
    local has = index[i] or i == #columns and #index == i - 1 and { column = column[1], down = 0 }
    if not has or has.column:lower() ~= column[1]:lower() then return false end
    if i > 1 then
      local down = has.down ~= 0
      same, turned = same and down == column[2], turned and down ~= column[2]
    end
  end
  return same or turned
end

local function is_there(self, columns)
  local rows, message, code = steps.ask(self, "source_indexes", self.map.table)
  if not rows then return nil, message, code end
  local indexes = {}
  for _, row in ipairs(rows) do
    indexes[row.name] = indexes[row.name] or {}
    table.insert(indexes[row.name], row)
  end
  for _, index in pairs(indexes) do
    if serves(index, columns) then return true end
  end
  return false
end

local function advice(self)
  local columns = wanted(self.map)
  local enough, message, code = is_fine(self)
  if enough == false then enough, message, code = is_there(self, columns) end
  if enough == nil then return nil, message, code end
  if enough then return false end
  local rows
  rows, message, code = steps.ask(self, "source_version")
  if not rows then return nil, message, code end
  local mixed = #columns == 3 and columns[2][2] ~= columns[3][2] -- all down is read backwards
  local names = {}
  for i, column in ipairs(columns) do
    names[i] = mapping.quoted(column[1]) .. (mixed and column[2] and rows[1].version >= DESCENDING and " DESC" or "")
  end
  return ("CREATE INDEX nightshift_claim ON %s (%s)"):format(mapping.quoted(self.map.table), table.concat(names, ", "))
end

-- ----------------------------------------------------------------- dead rows

local SHOWN = 50
local AT_ONCE = 1000 -- rows of a transaction
local PAGE = 100000  -- ids that are looked for at once

admin.DEAD = { limit = options.integer(1, 1 << 31), error = options.text, by = options.one_of "error" }

--- How often the row has failed, as it says, or its job.
local function failures_of(self, row)
  local parts = self.map.parts
  if parts.attempts then return row[parts.attempts.name] or 0 end
  if parts.attempts_left and self.map.max_attempts then
    return math.max(self.map.max_attempts - (row[parts.attempts_left.name] or 0), 0)
  end
  return row["ns:attempts"]
end

--- A dead row: its payload is as in a job, or text where Lua cannot hold that exactly.
local function dead_row(self, row)
  local entry = take.entry_of(self, row, row[self.key])
  local payload = entry and core.decode(entry.json)
  if payload == nil then payload = entry and entry.json end
  return times.row { id = row[self.key], job = row["ns:job"], failed_at = row["ns:at"], holder = row["ns:holder"],
    error = row["ns:error"], attempts = failures_of(self, row), payload = payload }
end

local function dead(self, given)
  admin_text.of(self)
  local blamed, limit = given.error or core.null, given.limit or SHOWN
  local rows, message, code = steps.run(self, given.by and "dead_kinds" or "dead_list", blamed, limit)
  if not rows then return nil, message, code end
  if given.by then return times.rows(rows) end
  local list = {}
  for i, row in ipairs(rows) do list[i] = dead_row(self, row) end
  return list
end

--- Opens those of the rows that are dead and that no other session has locked; how many.
local function open_again(self, ids)
  local rows, message, code = steps.run(self, "dead_lock", steps.list(ids), #ids)
  if rows then rows, message, code = take.free_of(self, rows) end
  if not rows then return nil, message, code end
  local marks = {}
  for i, row in ipairs(rows) do marks[i] = ("[%d,0,0,null]"):format(row[self.key]) end
  local ok
  ok, message, code = steps.change(self, "again", marks, true)
  if not ok then return nil, message, code end
  self.whole_at = 0 -- the next look is for them, too
  return #rows
end

--- Those of a list, a thousand at a time.
local function retry_list(self, ids)
  local sum = 0
  for from = 1, #ids, AT_ONCE do
    local some = table.move(ids, from, math.min(from + AT_ONCE - 1, #ids), 1, {})
    local n, message, code = steps.transaction(self, open_again, some)
    if not n then return nil, message, code end
    sum = sum + n
  end
  return sum
end

local function ids_of(rows)
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row.id end
  return ids
end

--- All, or those of an error. Each is looked at once.
local function retry_all(self, blamed)
  local sum, last = 0, math.mininteger
  repeat
    local rows, message, code
    if blamed then rows, message, code = steps.run(self, "dead_blamed", blamed, last, PAGE)
    else rows, message, code = steps.run(self, "dead_ids", last, PAGE) end
    local n
    if rows then n, message, code = retry_list(self, ids_of(rows)) end
    if not n then return nil, message, code end
    sum, last = sum + n, #rows > 0 and rows[#rows].id or last
  until #rows < PAGE
  return sum
end

--- Why a row was not opened.
local function not_dead(self, id)
  local rows, message, code = steps.run(self, "row", id)
  if not rows then return nil, message, code end
  local state = rows[1] and rows[1].state
  if not state then return nil, ("'%s' has no row %d"):format(self.name, id), "NOT_FOUND" end
  if state == "dead" then return nil, ("row %d of '%s' is locked by somebody else"):format(id, self.name), "BUSY" end
  return nil, ("row %d of '%s' is not dead: it %s"):format(id, self.name,
    state == "done" and "is done" or "runs, or may still be claimed"), "STATE"
end

local function check_ids(ids)
  local hole = options.hole(ids)
  if hole then raise("retry: the list of ids has a hole at %d", hole) end
  for i, id in ipairs(ids) do
    if math.type(id) ~= "integer" then raise("retry: id %d must be a whole number, got %s", i, type(id)) end
  end
end

local RETRY = { error = options.text }

--- What is to be run again: ids, or an error, or neither for all.
local function read_retry(what)
  if math.type(what) == "integer" then return { ids = { what } } end
  if what == "all" then return {} end
  if type(what) ~= "table" then
    raise('retry wants an id, a list of ids, {error = …} or "all", got %s', tostring(what))
  end
  if what.error ~= nil then
    local given, message, code = options.read("retry", what, RETRY)
    return given, message, code
  end
  check_ids(what)
  return { ids = what }
end

local function retry(self, what, given)
  if self.handle:in_transaction() then return nil, "rows cannot be retried inside a transaction", "STATE" end
  if self.map.parts.attempts_left and not self.map.max_attempts then
    return nil, "'attempts_left' are counted down from a number that the mapping does not say: 'max_attempts'",
      "INVALID"
  end
  admin_text.of(self)
  local n, message, code = pay.all(self)
  if n and given.ids then n, message, code = retry_list(self, given.ids)
  elseif n then n, message, code = retry_all(self, given.error) end
  if not n then return nil, message, code end
  if math.type(what) ~= "integer" then return n end
  if n == 1 then return true end
  return not_dead(self, what)
end

-- ----------------------------------------------------------------- the verbs

--- Adds the verbs to those of an adopted table; library/nightshift.lua has their types.
---@param methods table
---@param live fun(self: nightshift.source.Table, verb: string): userdata
function admin.define(methods, live)
  --- Rows by state: ready, waiting (for their time or their parent), running, done, dead. A count
  -- that stopped at 100,000 is named in `approximate`. `next`: seconds until one that waits for its
  -- time may be claimed.
  function methods:stats()
    live(self, "stats")
    return stats(self)
  end

  --- The index that looks for rows lack to be fast, as a statement that adds it; false when none is
  -- missing.
  function methods:advice()
    live(self, "advice")
    return advice(self)
  end

  --- Says how many rows a second are taken in, by all together; 0: no limit.
  function methods:tune(opts)
    local handle = live(self, "tune")
    local given, message, code = options.read("tune", opts, known.TUNE)
    if not given then return nil, message, code end
    return known.tune(handle, self.name, given)
  end

  --- The rows that no claim takes any more, because they have failed as often as they may or were
  -- given up: each with its last error. `by = "error"`: kinds of errors instead, the most frequent
  -- first; they differ in more than numbers.
  function methods:dead(opts)
    live(self, "dead")
    local given, message, code = options.read("dead", opts, admin.DEAD)
    if not given then return nil, message, code end
    return dead(self, given)
  end

  --- Runs dead rows again, with all their attempts: one by its id, or how many of a list, of an
  -- error or a kind of them, or of all.
  function methods:retry(what)
    live(self, "retry")
    local given, message, code = read_retry(what)
    if not given then return nil, message, code end
    return retry(self, what, given)
  end
end

return admin
