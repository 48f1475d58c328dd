--- Reports for people: listings of jobs and counts of queues, read-only.
--
-- The statements are in sql/query/report.sql; this file picks one and shapes
-- its rows.

local core = require "nightshift.core"
local filter = require "nightshift.filter"
local hosts = require "nightshift.report.hosts"
local options = require "nightshift.options"
local pauses = require("nightshift.queue").pauses
local units = require "nightshift.units"

local report = {}

local LOOK = 20000 -- jobs that a listing looks at when no key leads to the wanted ones alone
local GLANCE = 1000 -- and first at so many, which may be enough
local PASS = 100000 -- the same, where rows of other queues are passed by in the key
local EVERY = math.maxinteger

--- The filter of db:jobs.
report.FILTER = filter.with {
  limit = options.integer(1, 1 << 31),
  after = options.integer(1, math.maxinteger),
}

-- One function per listing: the core handle, then the bound filter and limit.
local listings = {}

--- Adds the rows of a second statement, with a limit as its last parameter, up to `limit` in all.
local function and_then(handle, rows, limit, statement, ...)
  if #rows >= limit then return rows end
  local params = table.pack(...)
  params[params.n + 1] = limit - #rows
  local more, message, code = filter.call(handle, statement, table.unpack(params, 1, params.n + 1))
  if not more then return nil, message, code end
  return table.move(more, 1, #more, #rows + 1, rows)
end

-- First jobs in ready, then due jobs that were not yet moved there.
function listings.ready(handle, wanted, limit)
  local first, behind = 0, 0x7FFFFFFF
  if wanted.queue ~= core.null then first, behind = wanted.queue, wanted.queue + 1 end
  local rows, message, code = filter.call(handle, "report_jobs_ready", first, behind, wanted, limit)
  if not rows then return nil, message, code end
  return and_then(handle, rows, limit, "report_jobs_due", wanted)
end

function listings.scheduled(handle, wanted, limit)
  return filter.call(handle, "report_jobs_scheduled", wanted, limit)
end

-- A batch names its jobs until the last is settled, so many claims may be of jobs that have
-- gone on. Then all are looked at.
function listings.running(handle, wanted, limit)
  local rows, message, code
  for _, look in ipairs { math.max(limit, LOOK), EVERY } do
    rows, message, code = filter.call(handle, "report_jobs_running", look, wanted, limit)
    if not rows or #rows >= limit then break end
  end
  return rows, message, code
end

-- First jobs that wait for other jobs, then jobs that wait for a signal.
function listings.waiting(handle, wanted, limit)
  local rows, message, code = filter.call(handle, "report_jobs_waiting", wanted, limit, wanted, limit, limit)
  if not rows then return nil, message, code end
  return and_then(handle, rows, limit, "report_jobs_awaiting", LOOK, wanted)
end

local function every_state(handle, wanted, limit)
  return filter.call(handle, "report_jobs_all", wanted, limit, wanted, limit, limit)
end

--- The ends of pages with LOOK live and LOOK ended jobs, or all that are left: ids, 0 for all.
-- nil for jobs that cannot have the state.
local function page_ends(handle, state, after)
  local rows, message, code = handle:execute("@report_jobs_from", after, LOOK - 1, after, LOOK - 1)
  if not rows then return nil, message, code end
  return { live = not filter.ENDED[state] and (rows[1].live or 0) or nil,
    ended = (not state or filter.ENDED[state]) and (rows[1].ended or 0) or nil }
end

--- Live and ended jobs of two statements, newest id first: `limit` at most. `ask` runs one of them.
local function by_id(state, limit, ask)
  local list = {}
  for _, kind in ipairs { "live", "ended" } do
    if not state or (kind == "ended") == (filter.ENDED[state] == true) then
      local rows, message, code = ask(kind)
      if not rows then return nil, message, code end
      table.move(rows, 1, #rows, #list + 1, list)
    end
  end
  table.sort(list, function(a, b) return a.id > b.id end)
  while #list > limit do list[#list] = nil end
  return list
end

--- Jobs by id, newest first, below `after`: as many as are found among LOOK live ones and
-- LOOK ended ones. Then how to go on, if there are more to look at.
local function page(handle, ends, wanted, state, after, limit)
  local s = state or core.null
  local list, message, code = by_id(state, limit, function(kind)
    return filter.call(handle, "report_jobs_page_" .. kind, after, ends[kind], s, s, wanted, limit)
  end)
  if not list then return nil, message, code end
  local down = math.max(ends.live or 0, ends.ended or 0)
  while #list > 0 and list[#list].id < down do list[#list] = nil end
  if #list >= limit then return list, { after = list[#list].id } end
  return list, down > 0 and { after = down, looked = LOOK } or nil
end

--- Children of a job, by id, newest first. All of them are looked at.
local function children(handle, given, wanted, after, limit)
  local s = given.state or core.null
  local list, message, code = by_id(given.state, limit, function(kind)
    return filter.call(handle, "report_jobs_child_" .. kind, given.parent, after, s, s, wanted, limit)
  end)
  if not list then return nil, message, code end
  return list, #list >= limit and { after = list[#list].id } or nil
end

--- Jobs with a tag, by id, newest first: as many as are found among LOOK.
local function tagged(handle, given, wanted, after, limit)
  local s = given.state or core.null
  local rows, message, code = handle:execute("@report_jobs_tagged_from", given.tag, after, LOOK - 1)
  if not rows then return nil, message, code end
  local down, list = rows[1] and rows[1].id or 0
  list, message, code = by_id(given.state, limit, function(kind)
    return filter.call(handle, "report_jobs_tagged_" .. kind, given.tag, after, down, s, s, wanted, limit)
  end)
  if not list then return nil, message, code end
  if #list >= limit then return list, { after = list[#list].id } end
  return list, down > 0 and { after = down, looked = LOOK } or nil
end

--- Jobs among the LOOK that ended last.
local function among_last(listed, last_of, wanted, limit)
  for _, look in ipairs { math.max(limit, GLANCE), LOOK } do
    local list, message, code = listed(wanted.since, core.null, look)
    if not list then return nil, message, code end
    if #list >= limit then return list, { after = list[#list].id } end
    if look >= LOOK then
      local rows
      rows, message, code = last_of(LOOK)
      if not rows then return nil, message, code end
      return list, rows[1] and { after = rows[1].id, looked = LOOK } or nil
    end
  end
end

--- Jobs of a queue among the `look` that ended last: others are passed by in the key.
local function of_queue(listed, last_of, wanted, limit, look)
  local rows, message, code = last_of(look)
  if not rows then return nil, message, code end
  local last, list = rows[1]
  list, message, code = listed(last and last.finished_at or wanted.since, wanted.queue, limit)
  if not list then return nil, message, code end
  while last and #list > 0 and list[#list].finished_at == last.finished_at and list[#list].id < last.id do
    list[#list] = nil -- many end at one instant
  end
  if #list >= limit then return list, { after = list[#list].id } end
  if last and look < PASS then return of_queue(listed, last_of, wanted, limit, PASS) end
  return list, last and { after = last.id, looked = look } or nil
end

--- Jobs of one outcome, the last that ended first, behind `after`.
local function ended(handle, given, wanted, limit)
  local state, at, id = given.state, math.maxinteger, given.after or math.maxinteger
  local rows, list, message, code
  if given.after then
    rows, message, code = handle:execute("@report_jobs_ended_at", id, state)
    if not rows then return nil, message, code end
    if not rows[1] then
      return nil, ("job %d, which the list is to go on behind, is not %s any more"):format(id, state), "NOT_FOUND"
    end
    at = rows[1].finished_at
  end
  local function listed(from, queue, look)
    return filter.call(handle, "report_jobs_finished", state, from, at, at, id, queue, queue, look, wanted, limit)
  end
  local function last_of(look)
    return handle:execute("@report_jobs_ended_from", state, wanted.since, at, at, id, look - 1)
  end
  if given.name or given.error then return among_last(listed, last_of, wanted, limit) end
  if given.queue then return of_queue(listed, last_of, wanted, limit, GLANCE) end
  list, message, code = listed(wanted.since, core.null, limit)
  if not list then return nil, message, code end
  return list, #list >= limit and { after = list[#list].id } or nil
end

--- Does a key lead to the wanted live jobs?
local function has_key(given)
  if given.after then return false end
  if not filter.restricts(given) or given.state == "running" then return true end
  return given.state == "ready" and given.queue and not (given.name or given.error or given.since)
end

--- Lists jobs; a queue that does not exist has none. Where no key leads to the wanted jobs they
-- are looked for by id. If there are many, the second value says how to go on.
---@param handle userdata core handle
---@param given nightshift.JobFilter checked
---@return table[]? rows
---@return {after: integer, looked: integer?}|string|nil more
---@return string? code
function report.jobs(handle, given)
  local state, limit, after = given.state, given.limit or 50, given.after or math.maxinteger
  local wanted, message, code = filter.bind(handle, given)
  if not wanted then return wanted == false and {} or nil, message, code end
  if given.parent then return units.rows(children(handle, given, wanted, after, limit)) end
  if given.tag then return units.rows(tagged(handle, given, wanted, after, limit)) end
  if filter.ENDED[state] then return units.rows(ended(handle, given, wanted, limit)) end
  if not has_key(given) then
    local ends
    ends, message, code = page_ends(handle, state, after)
    if not ends then return nil, message, code end
    if given.after or (ends.live or 0) > 0 or (ends.ended or 0) > 0 then
      return units.rows(page(handle, ends, wanted, state, after, limit))
    end
  end
  if state then return units.rows(listings[state](handle, wanted, limit)) end
  local rows
  rows, message, code = every_state(handle, wanted, limit)
  if not rows then return nil, message, code end
  if #rows < limit then return units.rows(rows) end
  return units.rows(rows, { after = rows[#rows].id })
end

-- --------------------------------------------------------------------- errors

--- The options of db:errors.
report.ERRORS = {
  queue = filter.CONDITIONS.queue, name = filter.CONDITIONS.name, since = filter.CONDITIONS.since,
  limit = options.integer(1, 1 << 31),
  look = options.integer(1, 1 << 31),
}

--- Adds kinds of errors to those that were found; `count` has the number.
local function add_kinds(kinds, by_error, rows, count)
  for _, row in ipairs(rows) do
    local kind = by_error[row.error]
    if not kind then
      kind = { error = row.error, count = 0, dead = 0, retrying = 0, first = row.first, last = row.last, id = row.id }
      by_error[row.error], kinds[#kinds + 1] = kind, kind
    end
    if row.last > kind.last then kind.id = row.id end
    kind[count], kind.count = row.n, kind.count + row.n
    kind.first, kind.last = math.min(kind.first, row.first), math.max(kind.last, row.last)
  end
end

--- Adds queue and name of the job that stands for each kind.
local function add_jobs(handle, kinds)
  local ids, kind_of = {}, {}
  for i, kind in ipairs(kinds) do
    ids[i] = kind.id
    kind_of[kind.id] = kind
  end
  local list = "[" .. table.concat(ids, ",") .. "]"
  local rows, message, code = handle:execute("@report_errors_jobs", list, list)
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do
    local kind = kind_of[row.id]
    kind.queue, kind.name = row.queue, row.name
  end
  return kinds
end

--- Kinds of errors of dead jobs, and of jobs that wait for another attempt: the most frequent
-- first. `looked`: it has looked at so many jobs of either, and there are more.
---@param handle userdata core handle
---@param given table checked
---@return nightshift.ErrorKind[]? kinds
---@return {looked: integer}|string|nil more
---@return string? code
function report.errors(handle, given)
  local wanted, message, code = filter.bind(handle, given)
  if not wanted then return wanted == false and {} or nil, message, code end
  local queue, name, look, limit = wanted.queue, given.name or core.null, given.look or LOOK, given.limit or 50
  local kinds, by_error, rows, more = {}, {}
  rows, message, code = handle:execute("@report_errors_dead", wanted.since, look, queue, queue, name, name)
  if not rows then return nil, message, code end
  add_kinds(kinds, by_error, rows, "dead")
  rows, message, code = handle:execute("@report_errors_scheduled", look, queue, queue, name, name, wanted.since)
  if not rows then return nil, message, code end
  add_kinds(kinds, by_error, rows, "retrying")
  more, message, code = handle:execute("@report_errors_more", wanted.since, look, look)
  if not more then return nil, message, code end
  table.sort(kinds, function(a, b)
    if a.count ~= b.count then return a.count > b.count end
    return a.error < b.error
  end)
  while #kinds > limit do kinds[#kinds] = nil end
  kinds, message, code = add_jobs(handle, kinds)
  if not kinds then return nil, message, code end
  return units.rows(kinds, (more[1].dead or more[1].scheduled) and { looked = look } or nil)
end

-- --------------------------------------------------------------------- counts

-- How many jobs of each queue are in which state, for `status` and db:stats. Counts go to MOST
-- and no further: a larger one is given as MOST, and its state is named in the row's `approximate`.
-- So are all queues' counts of a state when its statement stopped after LOOKED rows, for any queue
-- may have more. That bounds the time of all counts together, whatever the tables hold.

local MOST = 1000
local LOOKED = 4000 -- rows that a statement reads when no key leads to a queue's own

--- The state of a count: rows of queues by id, the server's clock, and the states for which
-- statements have stopped early.
---@class nightshift.Tally
---@field handle userdata core handle
---@field by_id table<integer, table>
---@field now integer µs
---@field cut table<string, boolean>

--- The rows of a statement; trouble ends all counting.
local function ask(tally, statement, ...)
  local rows, message, code = tally.handle:execute("@report_counts_" .. statement, ...)
  if not rows then error { message = message, code = code } end
  return rows
end

--- Adds the counts of `rows` to the queues.
local function add(tally, state, rows)
  local looked = 0
  for _, row in ipairs(rows) do
    local queue = tally.by_id[row.queue_id]
    looked = looked + (row.looked or 0)
    if queue then
      queue[state] = queue[state] + (row.n or MOST + 1)
      if row.oldest then queue.oldest = math.max(queue.oldest or 0, (tally.now - row.oldest) / 1000000) end
      if row.next then queue.next = math.max(0, row.next - tally.now) / 1000000 end
    end
  end
  if looked >= LOOKED then tally.cut[state] = true end
end

--- Adds jobs in ready, and due jobs that are not yet moved there.
local function add_ready(tally)
  local rows, lanes = ask(tally, "ready", MOST), nil
  for _, row in ipairs(rows) do
    if not row.n then
      lanes = lanes or ask(tally, "lanes")
      for _, lane in ipairs(lanes) do
        if lane.queue_id == row.queue_id then row.oldest = lane.oldest end
      end
    end
  end
  add(tally, "ready", rows)
  add(tally, "ready", ask(tally, "due", LOOKED))
end

--- Adds jobs due later, and jobs that wait: for jobs, or for a signal. Waits for a signal
-- without a deadline are the last rows of scheduled.
local function add_scheduled_and_waiting(tally)
  local rows = ask(tally, "scheduled", LOOKED)
  add(tally, "scheduled", rows)
  for _, row in ipairs(rows) do row.n, row.next, row.looked = row.awaiting, nil, nil end
  if tally.cut.scheduled then rows, tally.cut.waiting = ask(tally, "awaiting", LOOKED), true end
  add(tally, "waiting", rows)
  add(tally, "waiting", ask(tally, "waiting", LOOKED, LOOKED))
end

local STATES = { "ready", "scheduled", "running", "waiting", "dead" }

--- Adds dead jobs. `bare`: without the right to see them there is no count of them.
local function add_dead(tally, bare)
  local ok, rows = pcall(ask, tally, "dead", LOOKED)
  if ok then return add(tally, "dead", rows) end
  if not bare or type(rows) ~= "table" or rows.code ~= "DENIED" then error(rows, 0) end
  for _, queue in pairs(tally.by_id) do queue.dead = nil end
end

--- Counts go no further than MOST; a larger or an unfinished count is approximate.
local function bound(tally, row)
  for _, state in ipairs(STATES) do
    if row[state] and (tally.cut[state] or row[state] > MOST) then
      row[state] = math.min(row[state], MOST)
      row.approximate = row.approximate or {}
      row.approximate[state] = true
    end
  end
end

--- Rows of all queues by name: name, paused, counts per state, `oldest` and `next`. oldest:
-- seconds that the oldest ready job has waited; next: seconds to the next due one.
---@param handle userdata core handle
---@param now integer the server's clock, µs
---@param bare boolean? an account that may not read history gets no count of dead jobs
---@return table[]? rows
---@return string? message
---@return string? code
local function count_queues(handle, now, bare)
  local queues, message, code = handle:queues()
  if not queues then return nil, message, code end
  local tally, all, removed = { handle = handle, now = now, by_id = {}, cut = {} }, {}, {}
  for i, queue in ipairs(queues) do
    all[i] = { name = queue.name, paused = queue.paused, ready = 0, scheduled = 0, running = 0, waiting = 0, dead = 0 }
    tally.by_id[queue.id], removed[i] = all[i], queue.removed
  end
  local ok, trouble = pcall(function()
    add_ready(tally)
    add_scheduled_and_waiting(tally)
    add(tally, "running", ask(tally, "running", LOOKED))
    add_dead(tally, bare)
  end)
  if not ok and type(trouble) ~= "table" then error(trouble, 0) end
  if not ok then return nil, trouble.message, trouble.code end
  local rows = {}
  for i, row in ipairs(all) do
    local live = row.ready + row.scheduled + row.running + row.waiting > 0
    if live or not removed[i] then rows[#rows + 1] = row end
  end
  for _, row in ipairs(rows) do bound(tally, row) end
  table.sort(rows, function(a, b) return a.name < b.name end)
  return rows
end

report.queues = count_queues

local ENDED_LOOK = 5000 -- ended jobs that a look at how fast they end reads

--- Jobs a second that have ended with an outcome within a span, in all and by queue.
---@param handle userdata core handle
---@param outcome "done"|"dead"|"cancelled"
---@param now integer the server's clock, µs
---@param span integer µs
---@return number? rate
---@return table<string, number>|string by_queue
---@return string? code
function report.rates(handle, outcome, now, span)
  local rows, message, code = handle:execute("@report_ended", outcome, now - span, ENDED_LOOK)
  if not rows then return nil, message, code end
  local n, oldest = 0, now
  for _, row in ipairs(rows) do n, oldest = n + row.n, math.min(oldest, row.oldest) end
  local seconds = (n < ENDED_LOOK and span or math.max(1, now - oldest)) / 1000000
  local by_queue = {}
  for _, row in ipairs(rows) do by_queue[row.queue] = row.n / seconds end
  return n / seconds, by_queue
end

--- Holders that are not known dead, with verdicts of theirs that wait to be written.
---@param handle userdata core handle
---@return nightshift.Holder[]|nil
---@return string? message
---@return string? code
function report.holders(handle)
  local holders, message, code = units.rows(handle:execute "@report_holders")
  if not holders then return nil, message, code end
  local late
  late, message, code = hosts.owed(handle)
  if not late then return nil, message, code end
  for _, holder in ipairs(holders) do
    local told = late[holder.id]
    holder.unsettled = told and { n = told.n, oldest = units.seconds(told.oldest), server = told.server }
  end
  return holders
end

--- Everything db:stats shows.
---@param handle userdata core handle
function report.stats(handle)
  local now, message, code = handle:now()
  if not now then return nil, message, code end
  local queues, holders, left
  queues, message, code = count_queues(handle, now)
  if not queues then return nil, message, code end
  holders, message, code = report.holders(handle)
  if not holders then return nil, message, code end
  left, message, code = hosts.unserved(handle, true)
  if not left then return nil, message, code end
  local paused
  paused, message, code = pauses.list(handle)
  if not paused then return nil, message, code end
  local counters = handle:counters()
  counters.slowest = units.seconds(counters.slowest)
  left = units.rows(left)
  return { now = units.seconds(now), queues = queues, holders = holders, unserved = left, paused = paused,
    counters = counters }
end

-- ------------------------------------------------------- figures of a host's /metrics

-- A host has them read when a request asks (src/host/figures.c), at most every five seconds. An
-- account of a host may read no history, so its figures may lack dead jobs.

local UNSERVED_AGE = 10 -- s: names without a handler are looked for so often
local READ_TIMEOUT = 5 -- s

local function tell_queues(host, queues)
  host.family("nightshift_jobs", "Jobs by queue and state; counts stop at " .. MOST .. ".")
  for _, row in ipairs(queues) do
    for _, state in ipairs(STATES) do
      if row[state] then host.sample("nightshift_jobs", row[state], "queue", row.name, "state", state) end
    end
  end
  host.family("nightshift_jobs_capped", "1: there may be more jobs than were counted.")
  for _, row in ipairs(queues) do
    for _, state in ipairs(STATES) do
      if row.approximate and row.approximate[state] then
        host.sample("nightshift_jobs_capped", 1, "queue", row.name, "state", state)
      end
    end
  end
  host.family("nightshift_queue_oldest_ready_age_seconds", "How long the oldest ready job has waited; 0: none is.")
  for _, row in ipairs(queues) do
    host.sample("nightshift_queue_oldest_ready_age_seconds", math.max(row.oldest or 0, 0), "queue", row.name)
  end
  host.family("nightshift_queue_paused", "1: none of its jobs is started.")
  for _, row in ipairs(queues) do
    host.sample("nightshift_queue_paused", row.paused and 1 or 0, "queue", row.name)
  end
end

--- Ready jobs that no live host has a handler for, by queue.
local function tell_unserved(self)
  local now = core.clock()
  if not self.unserved or now - self.unserved_at > UNSERVED_AGE then
    local rows, message, code = hosts.unserved(self.handle)
    if not rows then return nil, message, code end
    local sums = {}
    for _, row in ipairs(rows) do sums[row.queue] = (sums[row.queue] or 0) + row.n end
    self.unserved, self.unserved_at = sums, now
  end
  self.host.family("nightshift_jobs_unserved", "Ready jobs with a name that no live host serves.")
  for queue, n in pairs(self.unserved) do self.host.sample("nightshift_jobs_unserved", n, "queue", queue) end
  return true
end

local OTHER = "other" -- queues behind the first hundred together

--- Pushed jobs by queue, as their handles have told them: sums that no restart sets back. Queues have
-- their own counts by the order in which they were made, so no count moves to another one.
local function tell_pushed(self)
  local rows, message, code = self.handle:execute("@report_pushed")
  if not rows then return code == "DENIED" or nil, message, code end -- an account with older grants
  local counts, names, rest = {}, {}, 0
  for _, row in ipairs(rows) do
    rest = row.queue and rest - row.pushed or rest + row.pushed
    if row.queue and row.removed == 0 then counts[row.queue], names[#names + 1] = row.pushed, row.queue end
  end
  if rest > 0 then
    if not counts[OTHER] then names[#names + 1] = OTHER end
    counts[OTHER] = (counts[OTHER] or 0) + rest
  end
  self.host.family("nightshift_jobs_enqueued_total", "Jobs that hosts and programs have pushed since the tables were "
    .. "made, told once a minute; not those of SQL.", "counter")
  for _, name in ipairs(names) do
    self.host.sample("nightshift_jobs_enqueued_total", counts[name], "queue", name)
  end
  return true
end

--- Tells all figures; then the server's version.
local function tell_figures(self)
  local handle, host = self.handle, self.host
  local server, message, code = handle:execute "@report_server"
  if not server then return nil, message, code end
  local now, queues, holders
  now, message, code = handle:now()
  if not now then return nil, message, code end
  queues, message, code = count_queues(handle, now, true)
  if not queues then return nil, message, code end
  holders, message, code = handle:execute "@report_holders"
  if not holders then return nil, message, code end
  tell_queues(host, queues)
  local live = 0
  for _, row in ipairs(holders) do live = live + (row.kind == "host" and 1 or 0) end
  host.family("nightshift_hosts", "Live hosts of the database.")
  host.sample("nightshift_hosts", live)
  local ok
  ok, message, code = tell_unserved(self)
  if ok then ok, message, code = tell_pushed(self) end
  if not ok then return nil, message, code end
  return server[1].version
end

local figures = {}
figures.__index = figures

--- Answers requests until the host ends. What fails is said once, until it is well again.
function figures:run()
  while not self.host.wait() do
    local server, message = tell_figures(self)
    if not server and message ~= self.told then self.host.log("warn", "figures.failed", "error", message) end
    self.told = not server and message or nil
    self.host.tell(server ~= nil, server or nil)
  end
  self.db:close()
end

--- Opens the runner that reads them.
---@param connection table options of nightshift.open
---@param host table
---@return table|nil
---@return string? message
---@return string? code
function report.open(connection, host)
  connection.read_timeout = math.min(connection.read_timeout or READ_TIMEOUT, READ_TIMEOUT)
  local db, message, code = require "nightshift".open(connection)
  if not db then return nil, message, code end
  return setmetatable({ db = db, handle = db._handle, host = host }, figures)
end

local ACTIONS <const> = 100 -- rows of the audit, unless told

--- The options of db:audit.
report.AUDIT = {
  since = filter.CONDITIONS.since,
  verb = options.typed "string",
  before = options.integer(1, math.maxinteger),
  limit = options.integer(1, 100000),
}

--- Actions of people, the newest first.
---@param handle userdata core handle
---@param given table checked
---@return table[]|nil
---@return string? message
---@return string? code
function report.audit(handle, given)
  local null, since = core.null, given.since and given.since.at
  if given.since and not since then
    local now, message, code = handle:now()
    if not now then return nil, message, code end
    since = now - given.since.ago
  end
  local at, verb, before = since or null, given.verb or null, given.before or null
  return units.rows(handle:execute("@report_audit", at, at, verb, verb, before, before, given.limit or ACTIONS))
end

--- Slots that are held, by name.
function report.slots(handle)
  return units.rows(handle:execute "@report_slots")
end

--- Up to `limit` running jobs that show how far they are, the longest first.
function report.progress(handle, limit)
  return units.rows(handle:execute("@report_progress", limit))
end

--- Up to `limit` jobs that have run for about a second, the longest first; with an id that job, if
-- it is one.
function report.running(handle, limit, id)
  return units.rows(handle:execute("@report_running", id or core.null, id or core.null, limit))
end

--- Failed attempts of a job, oldest first.
function report.attempts(handle, id)
  return units.rows(handle:execute("@report_attempts", id))
end

--- What runs have printed that have not failed, oldest first: of polls the last ten.
function report.outputs(handle, id)
  return units.rows(handle:execute("@report_outputs", id))
end

--- The last `limit` of them, newest first: of each error the beginning, of each log the end, so many
-- characters.
function report.last_attempts(handle, id, limit, characters)
  return units.rows(handle:execute("@report_attempts_last", characters, characters, id, limit))
end

--- The states of some jobs by id: {name =, state =, finished_at =}. Jobs that are unknown are left
-- out.
---@param handle userdata core handle
---@param ids integer[]
---@return table<integer, table>|nil
---@return string? message
---@return string? code
function report.outcomes(handle, ids)
  local found = {}
  if #ids == 0 then return found end
  local rows, message, code = units.rows(handle:execute("@report_outcomes", "[" .. table.concat(ids, ",") .. "]"))
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do found[row.id] = row end
  return found
end

--- Ids of up to `limit` jobs that wait for this one.
function report.waiters(handle, id, limit)
  local rows, message, code = handle:execute("@report_waiters", id, limit)
  if not rows then return nil, message, code end
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row.job_id end
  return ids
end

--- How many finished jobs a prune with these ages (µs; negative: none) takes.
function report.prunable(handle, keep_done, keep_dead, keep_cancelled)
  local now, message, code = handle:now()
  if not now then return nil, message, code end
  local function before(keep) return keep < 0 and 0 or now - keep end
  local rows
  rows, message, code = handle:execute("@report_prunable", before(keep_done), before(keep_dead),
    before(keep_cancelled))
  if not rows then return nil, message, code end
  local prunable = { done = 0, dead = 0, cancelled = 0 }
  for _, row in ipairs(rows) do prunable[row.outcome] = row.n end
  return prunable
end

return report
