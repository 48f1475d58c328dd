--- How a queue's limit holds a ready job back, for `why`: the first reason, from the queue to the
-- job's group. Read without locks; the statements are report_limit_… of sql/query/report.sql.

local core = require "nightshift.core"
local limit = require "nightshift.limit"
local units = require "nightshift.units"

local limits = {}

local SHOWN <const> = 3 -- running jobs that have the places

--- The rows of a statement; trouble ends the whole question, as in why.lua.
local function ask(handle, statement, ...)
  local rows, message, code = handle:execute("@" .. statement, ...)
  if not rows then error { message = message, code = code } end
  return rows
end

local function span(us) return units.words(math.max(0, us) / 1000000) end

local function instant(us) return (units.instant(us / 1000000):gsub("%.%d+Z$", "Z")) end

--- "group tenant:7", "queue mail".
local function what_of(row, of_group)
  return of_group and "group " .. row.group or "queue " .. row.queue
end

--- No place: the jobs that have them. nil: there is one meanwhile.
local function without_place(handle, row, places, of_group)
  local group = of_group and row.group or core.null
  local rows = ask(handle, "report_limit_running", row.queue_id, group, group, SHOWN)
  local n = rows[1] and rows[1].n or 0
  if n < places then return nil end
  local fact, names = { limit = "running", running = n, places = places, since = rows[1].since, held_by = {} }, {}
  for i, job in ipairs(rows) do
    fact.held_by[i] = { id = job.id, name = job.name, since = job.since }
    names[i] = job.name and ("#%d '%s'"):format(job.id, job.name) or ("#%d"):format(job.id)
  end
  if n > #rows then names[#names] = ("%s and %d more"):format(names[#names], n - #rows) end
  fact.says = ("waits for a place in %s, %d of %d running since %s: %s"):format(what_of(row, of_group), n, places,
    instant(fact.since), table.concat(names, ", "))
  return fact
end

local function by_rate(row, due, of_group)
  return { limit = "rate", due = due,
    says = ("waits for the rate of %s: next start in %s"):format(what_of(row, of_group), span(due - row.now)) }
end

local function by_stop(row, stopped, by, of_group)
  return { limit = "stop", due = stopped, stopped_by = by,
    says = ("waits, for %s is stopped until %s, for %s more: %s asked for it"):format(what_of(row, of_group),
      instant(stopped), span(stopped - row.now), by and ("job %d"):format(by) or "a job") }
end

local function of_queue(handle, row)
  if row.stopped > row.now then return by_stop(row, row.stopped, row.stopped_by, false) end
  if row.places and row.held >= row.places then
    local fact = without_place(handle, row, row.places, false)
    if fact then return fact end
  end
  local due = limit.next_start(row, row.rate, row.rate_span, row.rate_window)
  return due and by_rate(row, due, false)
end

--- Which job is before it in its ordered group? It holds the group, or is the first of its backlog.
local function before_in_order(handle, row, id)
  local first = row.head
  if not first and row.first ~= id then first = row.first end
  if not first then
    local running = ask(handle, "report_limit_running", row.queue_id, row.group, row.group, 1)[1]
    first = running and running.id
  end
  if not first or first == id then return nil end
  return { limit = "order", before = first,
    says = ("waits for job %d, which is before it in ordered group %s"):format(first, row.group) }
end

local function of_group(handle, row, id)
  local now = { now = row.now, next_at = row.group_next_at or 0, used = row.group_used or 0 }
  local due = limit.next_start(now, row.group_rate, row.group_span, row.group_window)
  local stopped = (row.group_stopped or 0) > row.now and row.group_stopped
  local fact = row.ordered == 1 and before_in_order(handle, row, id)
  if not fact and row.group_running then fact = without_place(handle, row, row.group_running, true) end
  if fact then return fact end
  if stopped and stopped > (due or 0) then return by_stop(row, stopped, row.group_stopped_by, true) end
  return due and by_rate(row, due, true)
end

--- The fact; nil: no limit holds the job back. `before` is the job that it waits for.
---@param handle userdata core handle
---@param id integer of a live job that is ready
---@return table|nil
function limits.hold(handle, id)
  local row = ask(handle, "report_limit_job", id)[1]
  if not row or row.lifted == 1 then return nil end
  local fact = of_queue(handle, row)
  if not fact and row.group ~= "" then fact = of_group(handle, row, id) end
  if not fact then return nil end
  fact.kind, fact.queue = "limited", row.queue
  fact.group = row.group ~= "" and row.group or nil
  return fact
end

return limits
