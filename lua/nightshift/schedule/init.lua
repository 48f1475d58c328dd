--- Recurring jobs: the verbs on schedules, and writing their rows.
--
-- A schedule is a row of nightshift_schedule with its definition and the instant of its next
-- tick. Hosts push its jobs: see runner.lua. It is either a program's (db:schedule), or
-- declared by handler scripts. Then it has the instant at which the scripts were loaded, and
-- the newest scripts count.
--
-- Invariant: a schedule whose times stay the same keeps the instant of its next tick.

local audit = require "nightshift.audit"
local core = require "nightshift.core"
local definition = require "nightshift.schedule.definition"
local failure = require "nightshift.failure"
local options = require "nightshift.options"
local zone = require "nightshift.schedule.zone"

local schedule = {}

local SECOND <const> = 1000000
local UPCOMING = 5

schedule.ENDS = 86400 * SECOND -- without a sign of a script that declares it a schedule ends

local function ask(handle, statement, ...) return handle:execute("@" .. statement, ...) end

--- Runs a function in a transaction of its own, or in the open one.
local function transaction(handle, fn)
  if handle:in_transaction() then return fn() end
  return failure.transaction(handle, function() return failure.must(fn()) end)
end

schedule.transaction = transaction

local function what_of(name) return "schedule " .. name end

--- Writes the row of an action in the open transaction. Declarations of scripts are none.
local function note(handle, verb, name, jobs) return audit.note(handle, verb, what_of(name), jobs) end

-- --------------------------------------------------------------------- writing

--- The row of a name, locked; it is added when there is none.
local function hold(handle, name)
  local ok, message, code = ask(handle, "schedule_add", name)
  if not ok then return nil, message, code end
  local rows
  rows, message, code = ask(handle, "schedule_hold", name)
  if not rows then return nil, message, code end
  if rows[1] then return rows[1] end
  return nil, "the schedule is removed and added all the time", "BUSY"
end

--- Writes a definition. `version`: when the scripts that declare it were loaded, µs; nil: it is
-- a program's. Gives its outcome: "added", "changed", "kept", "superseded" (newer scripts have
-- declared another), "taken" (a program's has the name). And its next tick.
---@param handle userdata core handle
---@param name string
---@param def nightshift.Schedule
---@param version integer?
---@return string|nil
---@return integer|string? next µs, or the message
---@return string? code
function schedule.put(handle, name, def, version)
  local text, message, code = core.encode(def, nil, "schedule")
  if not text then return nil, message, code end
  return transaction(handle, function()
    local row, why, kind = hold(handle, name)
    if not row then return nil, why, kind end
    local new = row.definition == "null"
    if not new and (row.version == nil) ~= (version == nil) then return "taken" end
    local equal = not new and definition.same(row.definition, text)
    local is_old = version and not new and row.version > version and row.declared > row.now - schedule.ENDS
    if is_old and not equal then return "superseded" end
    local next_at = row.next_at
    local stays = not new and not row.error and (equal or definition.same_times(row.definition, def))
    if not stays then next_at = definition.next(def, row.now) end
    if row.paused == 1 then next_at = nil end
    local done
    done, why, kind = ask(handle, "schedule_put", text, next_at, version and math.max(version, row.version or version),
      version and row.now, name)
    if done and not version and not equal then done, why, kind = note(handle, "schedule", name) end
    if not done then return nil, why, kind end
    return new and "added" or equal and "kept" or "changed", next_at
  end)
end

--- Tells hosts that a tick may come sooner than they know. They find a tick that is not
-- committed yet by themselves.
local function tell(handle)
  if not handle:in_transaction() then handle:ring() end
end

--- Adds a schedule, or changes it; while its times are the same its next tick stays.
---@param handle userdata core handle
---@param given table
---@return number|nil next instant of the next tick
---@return string? message
---@return string? code
function schedule.set(handle, given)
  local name, def, code = definition.check("schedule", given)
  if not name then return nil, def, code end
  local what, next_at
  what, next_at, code = schedule.put(handle, name, def --[[@as nightshift.Schedule]])
  if not what then return nil, next_at, code end
  if what == "taken" then
    return nil, ("schedule '%s' is declared by handler scripts; change it there, or choose another name"):format(name),
      "STATE"
  end
  tell(handle)
  return next_at and next_at / SECOND or false
end

-- --------------------------------------------------------------------- looking

local function next_times(def, row)
  local list, t = {}, row.next_at
  while t and #list < UPCOMING do
    list[#list + 1] = t / SECOND
    t = definition.next(def, t, t)
  end
  return list
end

--- A row that a hand has broken is shown with that as its error.
local function shown(row)
  local def, message = definition.read(row.definition)
  local list = { name = row.name, paused = row.paused == 1, declared = row.version ~= nil, upcoming = {},
    last = row.last_at and row.last_at / SECOND, last_id = row.last_job, skipped = row.skipped,
    error = row.error or message }
  if not def then return list end
  local times = next_times(def, row)
  local spans = {}
  for key, value in pairs(def.options) do
    local is_span = key == "backoff" or key == "timeout" or key == "deadline"
    spans[key] = is_span and value / SECOND or value
  end
  list.cron, list.every, list.zone = def.cron, def.every and def.every / SECOND, def.cron and def.zone or nil
  list.queue, list.job, list.payload, list.options = def.queue, def.job, def.payload, next(spans) and spans or nil
  list.missed, list.overlap, list.due, list.upcoming = def.missed, def.overlap, times[1], times
  return list
end

--- All schedules, by name.
---@param handle userdata core handle
---@return table[]|nil
---@return string? message
---@return string? code
function schedule.list(handle)
  local rows, message, code = ask(handle, "schedule_list")
  if not rows then return nil, message, code end
  for i, row in ipairs(rows) do rows[i] = shown(row) end
  return rows
end

local function not_found(name)
  return nil, ("there is no schedule '%s'; `nightshift schedules` lists them"):format(options.shown(name)), "NOT_FOUND"
end

--- Reads the row of a schedule, locked.
local function find(handle, name)
  local rows, message, code = ask(handle, "schedule_hold", name)
  if not rows then return nil, message, code end
  if rows[1] then return rows[1] end
  return not_found(name)
end

-- -------------------------------------------------------------------- changing

--- The next tick of a row from now on; nil: there is none any more. With a message: it cannot be
-- told on this machine.
local function next_tick(row)
  local def, message, code = definition.read(row.definition)
  if not def then return nil, message, code end
  local known
  known, message, code = zone.open(def.zone)
  if not known then return nil, message, code end
  return definition.next(def, row.now)
end

--- Stops its ticks, or lets them go on, those of a schedule that has failed, too; what was between
-- is not made up for.
---@param handle userdata core handle
---@param name string
---@param paused boolean
---@return true|nil
---@return string? message
---@return string? code
function schedule.pause(handle, name, paused)
  local ok, message, code = transaction(handle, function()
    local row, why, kind = find(handle, name)
    if not row then return nil, why, kind end
    local next_at = row.next_at
    if paused then next_at = nil
    elseif row.paused == 1 or row.error then
      next_at, why, kind = next_tick(row)
      if not next_at and why then return nil, why, kind end
    end
    local done
    done, why, kind = ask(handle, "schedule_pause", next_at, paused, next_at, name)
    if not done then return nil, why, kind end
    return note(handle, paused and "schedule_pause" or "schedule_resume", name)
  end)
  if not ok then return nil, message, code end
  if not paused then tell(handle) end
  return true
end

---@param handle userdata core handle
---@param name string
---@return true|nil
---@return string? message
---@return string? code
function schedule.remove(handle, name)
  local removed, message, code = audit.once(handle, "schedule_remove", what_of(name), function()
    local result, why, kind = ask(handle, "schedule_remove", name)
    if not result then return nil, why, kind end
    return result.affected > 0
  end)
  if removed == false then return not_found(name) end
  return removed, message, code
end

--- The entry that a tick pushes.
---@param name string
---@param def nightshift.Schedule
---@return table entry of the core's push
function schedule.entry(name, def)
  local entry = { name = def.job, payload = def.payload, anyhow = 1 }
  for key, value in pairs(def.options) do entry[key] = value end
  if def.overlap == "skip" then entry.unique, entry.on_conflict = "schedule:" .. name, 1 end
  return entry
end

--- Pushes its job now, beside its ticks; with `overlap = "skip"` gives the live one, if there is
-- one.
---@param handle userdata core handle
---@param name string
---@return integer|nil id
---@return string? message
---@return string? code
function schedule.run(handle, name)
  local id, message, code = transaction(handle, function()
    local row, why, kind = find(handle, name)
    if not row then return nil, why, kind end
    local def, ids
    def, why, kind = definition.read(row.definition)
    if not def then return nil, why, kind end
    ids, why, kind = handle:push(def.queue, { schedule.entry(name, def) })
    if not ids then return nil, why, kind end
    local ok
    ok, why, kind = note(handle, "schedule_run", name, 1)
    if not ok then return nil, why, kind end
    return ids[1]
  end)
  return id, message, code
end

return schedule
