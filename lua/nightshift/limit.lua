--- Limits of queues: setting them, how much of each is used, and the reason that holds jobs back.
--
-- A limit is a row of nightshift_limit. Claims of its queue go by it (src/core/admission): they move
-- its ready jobs into a backlog, and admit from there. Here people and programs set it, and look at
-- it.
--
-- Invariant: a change is one transaction that has the row locked, so no claim admits by half of it.
-- The count of a rate goes on while that rate is the same.

local audit = require "nightshift.audit"
local core = require "nightshift.core"
local options = require "nightshift.options"
local units = require "nightshift.units"

local raise = options.raise

local limit = {}

local MOST_PLACES <const> = 1000000
local MOST_STARTS <const> = 1000000000 -- of a rate
local MOST_WAITING <const> = 10000000 -- jobs, of a bound: a push may count so many
local LONGEST <const> = 31536000 * 1000000 -- µs of a rate: a year
local MOVED <const> = 10000 -- jobs of a backlog that one change moves

limit.MOST = 10000 -- no more jobs of a queue are counted, ...
local MOST_GROUPS <const> = 1000 -- ... and no more groups: see report_limits

-- ------------------------------------------------------------------------ checks

--- Check: {n, duration} or {n, duration, "window"}; gives {n =, span = µs, window =}.
local function rate(value, what)
  if type(value) ~= "table" then
    raise('%s must be a table like {500, "1m"}: so many starts in that time; got %s', what, type(value))
  end
  for key in next, value do
    if key ~= 1 and key ~= 2 and key ~= 3 then
      raise('%s must be {n, duration} or {n, duration, "window"}; it has the key %s', what,
        type(key) == "string" and ("'%s'"):format(options.shown(key)) or tostring(key))
    end
  end
  local n, message = options.integer(1, MOST_STARTS)(value[1], what .. ": the number of starts")
  if not n then return nil, message end
  local span
  span, message = options.duration(value[2], what .. ": the time")
  if not span then return nil, message end
  if span < n or span > LONGEST then
    return nil, ("%s: the time must be from a microsecond a start to a year, got %s"):format(what, tostring(value[2]))
  end
  if value[3] ~= nil and value[3] ~= "window" then
    return nil, ('%s: the third value can be "window", for fixed windows; got \'%s\''):format(what,
      options.shown(tostring(value[3])))
  end
  return { n = n, span = span, window = value[3] ~= nil }
end

local places = options.integer(1, MOST_PLACES)

local GROUP = { running = places, rate = rate, ordered = options.typed "boolean", fair = options.typed "boolean" }

local function group(value, what)
  if type(value) ~= "table" then
    raise("%s must be a table like {running = 2}, of limits of each group; got %s", what, type(value))
  end
  local given, message = options.read(what, value, GROUP)
  return given, message
end

local LIMIT = { running = places, rate = rate, backlog = options.integer(1, MOST_WAITING), group = group }

--- A limit as callers write it, checked. `admits`: it has more than a bound of waiting jobs.
---@param given table
---@return table|nil
---@return string? message
---@return string? code
function limit.read(given)
  if type(given) ~= "table" then
    raise("limit wants a table like {running = 10}, or nil for no limit; got %s", type(given))
  end
  local set, message, code = options.read("limit", given, LIMIT)
  if not set then return nil, message, code end
  local own = set.group or {}
  set.group = own
  set.admits = (set.running or set.rate or own.running or own.rate or own.ordered or own.fair) and true
  if not set.admits and not set.backlog then
    return nil, "limit: there is no limit in this table; give one of running, rate, backlog and group, or nil for none",
      "INVALID"
  end
  return set
end

-- ------------------------------------------------------------------------- texts

local function span_text(us)
  local seconds = us / 1000000
  for _, unit in ipairs { { 86400, "d" }, { 3600, "h" }, { 60, "m" } } do
    if seconds % unit[1] == 0 then return units.number(seconds // unit[1]) .. unit[2] end
  end
  return units.number(seconds) .. "s"
end

--- "500/1m", as the shell takes it.
---@param n integer
---@param span integer µs
---@return string
function limit.rate_text(n, span) return ("%d/%s"):format(n, span_text(span)) end

local function add_rate(words, value)
  if value then
    words[#words + 1] = limit.rate_text(value.n, value.span) .. (value.window and " in fixed windows" or "")
  end
end

--- A limit in words: "100 running, 500/1m, 1000 waiting; each group: 2 running, ordered".
---@param set table as `read` gives it
---@return string
function limit.text(set)
  local words, own = {}, {}
  if set.running then words[1] = ("%d running"):format(set.running) end
  add_rate(words, set.rate)
  if set.backlog then words[#words + 1] = ("%d waiting"):format(set.backlog) end
  if set.group.running then own[1] = ("%d running"):format(set.group.running) end
  add_rate(own, set.group.rate)
  if set.group.ordered then own[#own + 1] = "ordered" end
  local parts = { #words > 0 and table.concat(words, ", ") or nil }
  if #own > 0 then parts[#parts + 1] = "each group: " .. table.concat(own, ", ") end
  if set.group.fair then parts[#parts + 1] = "groups take turns" end
  return table.concat(parts, "; ")
end

--- The limit of a row of `list`, in words.
---@param row table
---@return string
function limit.words(row)
  local function numbers(list)
    return list and { n = list[1], span = math.floor(list[2] * 1000000 + 0.5), window = list[3] ~= nil }
  end
  local own = row.group or {}
  return limit.text { running = row.running, rate = numbers(row.rate), backlog = row.backlog,
    group = { running = own.running, rate = numbers(own.rate), ordered = own.ordered, fair = own.fair } }
end

-- ----------------------------------------------------------------------- setting

--- The rows of a statement; trouble is nil, a message and a code.
local function ask(handle, statement, ...) return handle:execute("@" .. statement, ...) end

--- The limit of a queue, its row locked; false: it has none.
local function hold(handle, id)
  local rows, message, code = ask(handle, "admin_limit_hold", id)
  if not rows then return nil, message, code end
  return rows[1] or false
end

--- Moves the queue's backlog into ready. nil: it is too large, or trouble.
---@return integer|nil moved
---@return string? message
---@return string? code
local function move_back(handle, id, name)
  local rows, message, code = ask(handle, "admin_limit_backlog", id, MOVED + 1)
  if not rows then return nil, message, code end
  if #rows > MOVED then
    return nil, ("the backlog of queue '%s' has more than %d jobs, which a change of their order would move at once; "
      .. "pause the queue, lift its limit, wait until `nightshift limits` shows it no more, and set it anew"):format(
      name, MOVED), "STATE"
  end
  local ok = true
  if #rows > 0 then
    local list = {}
    for i, row in ipairs(rows) do
      list[i] = core.array { row.job_id, row.run, row.ready_at, row.alone, row.kind }
    end
    ok, message, code = ask(handle, "admin_limit_back", id, assert(core.encode(core.array(list))))
    if ok then ok, message, code = ask(handle, "admin_limit_moved", id) end
  end
  if ok then ok, message, code = ask(handle, "admin_limit_headless", id) end
  if not ok then return nil, message, code end
  return #rows
end

local function flag(value) return value and 1 or 0 end

local function values(value)
  if not value then return core.null, core.null, 0 end
  return value.n, value.span, flag(value.window)
end

--- Are these numbers of a rate the same? A row has no field that is NULL.
local function same_rate(row, prefix, value)
  local n, span, window = row[prefix .. "rate"], row[prefix == "" and "rate_span" or "group_span"],
    row[prefix == "" and "rate_window" or "group_window"]
  if not value then return n == nil end
  return n == value.n and span == value.span and (window == 1) == value.window
end

--- Writes the row of the limit, and all that follows from it, in the open transaction.
local function put(handle, id, name, set)
  local old, message, code = hold(handle, id)
  if old == nil then return nil, message, code end
  local own = set.group
  if old and (old.lifted == 1 or (old.ordered == 1) ~= (own.ordered or false)) then
    local moved, why, kind = move_back(handle, id, name)
    if not moved then return nil, why, kind end
  end
  local ok
  local n, span, window = values(set.rate)
  local group_n, group_span, group_window = values(own.rate)
  ok, message, code = ask(handle, "admin_limit_put", id, set.running or core.null, n, span, window,
    own.running or core.null, group_n, group_span, group_window, flag(own.ordered),
    flag(own.fair), flag(old and same_rate(old, "", set.rate)))
  if ok and old then
    ok, message, code = ask(handle, "admin_limit_groups", flag(same_rate(old, "group_", own.rate)),
      flag(same_rate(old, "group_", own.rate)), flag(own.ordered), id)
  end
  if ok then ok, message, code = ask(handle, "admin_limit_queue", id) end
  if ok then ok, message, code = ask(handle, "admin_limit_grants", id) end
  if not ok then return nil, message, code end
  return true
end

--- Takes the limit away in the open transaction. A large backlog is moved by the claims that come,
-- and then they end the limit. false: there was none.
local function lift(handle, id, name)
  local old, message, code = hold(handle, id)
  if not old then return old, message, code end
  local moved
  moved, message, code = move_back(handle, id, name)
  if not moved and code ~= "STATE" then return nil, message, code end
  local ok
  if moved then
    ok, message, code = ask(handle, "admin_limit_drop", id)
  else
    ok, message, code = ask(handle, "admin_limit_lift", id)
  end
  if not ok then return nil, message, code end
  return true
end

--- Takes limit and bound of a queue away in the open transaction.
---@param handle userdata core handle
---@param id integer of the queue
---@param name string of the queue
---@return table|nil
---@return string? message
---@return string? code
function limit.drop(handle, id, name)
  local ok, message, code = lift(handle, id, name)
  if ok == nil then return nil, message, code end
  return ask(handle, "admin_limit_bound", core.null, id)
end

--- Gives a queue a limit instead of the one that it has; nil: none.
---@param handle userdata core handle
---@param name string of the queue, checked
---@param given table|nil as callers write it
---@return true|nil
---@return string? message
---@return string? code
function limit.set(handle, name, given)
  local set, id, message, code
  if given ~= nil then
    set, message, code = limit.read(given)
    if not set then return nil, message, code end
  end
  id, message, code = handle:queue_id(name, set ~= nil)
  if not id then
    if not set and code == "NOT_FOUND" then return true end
    return nil, message, code
  end
  local what = ("queue %s: %s"):format(name, set and limit.text(set) or "none")
  local done
  done, message, code = audit.once(handle, "limit", what, function()
    if not set then return limit.drop(handle, id, name) end
    local ok, why, kind = (set.admits and put or lift)(handle, id, name, set)
    if ok == nil then return nil, why, kind end
    return ask(handle, "admin_limit_bound", set.backlog or core.null, id)
  end)
  if not done then return nil, message, code end
  handle:queues() -- so this handle goes by the new bound at once
  if not handle:in_transaction() then handle:ring() end
  return true
end

-- ----------------------------------------------------------------------- looking

local function rate_of(n, span, window)
  if not n then return nil end
  return core.array { n, span / 1000000, window == 1 and "window" or nil }
end

--- When the next start may be, by a rate, µs; nil: at once.
---@param row table `now`, and of a limit or a group `next_at` and `used`
---@param n integer? of the rate
---@param span integer? µs
---@param window integer? 1: it counts in fixed windows
---@return integer|nil
function limit.next_start(row, n, span, window)
  if not n then return nil end
  local at
  if window == 1 then
    at = row.used >= n and row.next_at + span or 0
  else
    at = row.next_at - span + span // n
  end
  return at > row.now and at or nil
end

--- Why no job of any group can start, in words: all are full, or a job has stopped them.
local function held_groups(row, n)
  local which = n == 1 and "its one group with jobs is" or ("each of its %d groups with jobs is"):format(n)
  if row.stopped_groups == 0 then return which .. " full" end
  local span = units.words((row.stopped_until - row.now) / 1000000)
  if row.stopped_groups < n then return ("%s full or stopped, the first for %s more"):format(which, span) end
  return (n == 1 and "%s stopped for %s more" or "%s stopped, the first for %s more"):format(which, span)
end

--- The reason why none of a queue's jobs can start, in words; nil: there is none.
local function held_by(row, counts)
  local due = limit.next_start(row, row.rate, row.rate_span, row.rate_window)
  if row.lifted == 1 then return nil end
  if row.stopped > row.now then
    return ("it is stopped for %s"):format(units.words((row.stopped - row.now) / 1000000))
  elseif row.places and counts.running >= row.places then
    return ("%d of %d running"):format(counts.running, row.places)
  elseif due then
    return ("its rate of %s is used up, next start in %s"):format(limit.rate_text(row.rate, row.rate_span),
      units.words((due - row.now) / 1000000))
  elseif counts.full_groups > 0 and counts.full_groups >= counts.groups then
    return held_groups(row, counts.groups)
  end
end

--- Do as many jobs of the queue wait as may? nil, false: no; or trouble, with a message.
local function is_full(handle, row)
  local counted = row.waiting + row.fresh
  if not row.backlog or counted >= row.backlog or math.max(row.waiting, row.fresh) < limit.MOST then
    return row.backlog and counted >= row.backlog
  end
  local rows, message, code = ask(handle, "report_limit_full", row.queue_id, row.backlog)
  if not rows then return nil, message, code end
  return rows[1].is_full == 1
end

local function shown(row)
  local capped = {}
  local counts = { running = row.limited == 1 and row.held or nil, waiting = row.waiting + row.fresh,
    groups = row.groups, full_groups = row.full_groups }
  for key, most in pairs { waiting = limit.MOST, groups = MOST_GROUPS } do
    if counts[key] >= most then counts[key], capped[key] = most, true end
  end
  counts.capped = next(capped) and capped or nil
  local due = limit.next_start(row, row.rate, row.rate_span, row.rate_window)
  local own = { running = row.group_running, rate = rate_of(row.group_rate, row.group_span, row.group_window),
    ordered = row.ordered == 1 or nil, fair = row.fair == 1 or nil }
  return {
    queue = row.queue, running = row.places, rate = rate_of(row.rate, row.rate_span, row.rate_window),
    backlog = row.backlog, group = next(own) and own or nil, counts = counts,
    full = row.is_full or nil,
    stopped = row.stopped > row.now and row.stopped / 1000000 or nil, due = due and due / 1000000,
    lifted = row.lifted == 1 or nil,
    holds = counts.waiting > 0 and held_by(row, counts) or nil,
  }
end

--- The limit of a queue, or the limits of all that have one, by name: as they were set, and how much
-- is used. counts: {running =, waiting =, groups =}, `capped` names counts that stopped; running is
-- absent where only the waiting jobs have a limit. full: so many wait that pushes are refused.
-- stopped: none starts before; due: the next start, by its rate.
-- holds: why none of the waiting jobs can start, in words.
---@param handle userdata core handle
---@param name string? nil: all
---@return table[]|nil
---@return string? message
---@return string? code
function limit.list(handle, name)
  local rows, message, code = ask(handle, "report_limits", name or core.null, name or core.null)
  if not rows then return nil, message, code end
  local list = core.array {}
  for i, row in ipairs(rows) do
    row.is_full, message, code = is_full(handle, row)
    if message then return nil, message, code end
    list[i] = shown(row)
  end
  return list
end

--- A row of `list` for JSON: instants are texts.
---@param row table is changed
---@return table
function limit.plain(row)
  row.stopped = row.stopped and units.instant(row.stopped, 6)
  row.due = row.due and units.instant(row.due, 6)
  return row
end

--- The limit of a queue; a bare nil: it has none.
---@param handle userdata core handle
---@param name string
---@return table|nil
---@return string? message
---@return string? code
function limit.one(handle, name)
  local list, message, code = limit.list(handle, name)
  if not list then return nil, message, code end
  return list[1]
end

--- The groups of a queue with the most jobs in its backlog: {group =, waiting =, running =, due =,
-- stopped =}. Of a long backlog its first jobs are looked at.
---@param handle userdata core handle
---@param name string
---@param count integer at most so many
---@return table[]|nil
---@return string? message
---@return string? code
function limit.groups(handle, name, count)
  local rows, message, code = ask(handle, "report_limit_groups", name, limit.MOST, count)
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do
    row.due = limit.next_start(row, row.group_rate, row.group_span, row.group_window)
    if row.stopped > row.now then row.due = math.max(row.due or 0, row.stopped) end
    row.due = row.due and row.due / 1000000
  end
  return rows
end

-- ---------------------------------------------------------- what holds a job back

local SHOWN <const> = 3 -- running jobs that have the places

--- The rows of a statement; trouble ends the whole question, as in report/why.lua.
local function found(handle, statement, ...)
  local rows, message, code = ask(handle, statement, ...)
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
local function without_place(handle, row, most, of_group)
  local key = of_group and row.group or core.null
  local rows = found(handle, "report_limit_running", row.queue_id, key, key, SHOWN)
  local n = rows[1] and rows[1].n or 0
  if n < most then return nil end
  local fact, names = { limit = "running", running = n, places = most, since = rows[1].since, held_by = {} }, {}
  for i, job in ipairs(rows) do
    fact.held_by[i] = { id = job.id, name = job.name, since = job.since }
    names[i] = job.name and ("#%d '%s'"):format(job.id, job.name) or ("#%d"):format(job.id)
  end
  if n > #rows then names[#names] = ("%s and %d more"):format(names[#names], n - #rows) end
  fact.says = ("waits for a place in %s, %d of %d running since %s: %s"):format(what_of(row, of_group), n, most,
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
    local running = found(handle, "report_limit_running", row.queue_id, row.group, row.group, 1)[1]
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

--- Why a limit holds a ready job back, as `why` says it: the first reason, from the queue to the
-- job's group; nil: none does. `before` is the job that it waits for. Trouble raises {message =,
-- code =}.
---@param handle userdata core handle
---@param id integer of a live job that is ready
---@return table|nil
function limit.why(handle, id)
  local row = found(handle, "report_limit_job", id)[1]
  if not row or row.lifted == 1 then return nil end
  local fact = of_queue(handle, row)
  if not fact and row.group ~= "" then fact = of_group(handle, row, id) end
  if not fact then return nil end
  fact.kind, fact.queue = "limited", row.queue
  fact.group = row.group ~= "" and row.group or nil
  return fact
end

return limit
