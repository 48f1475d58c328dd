--- Numbers of queues for autoscalers: how much waits, how fast jobs come and go, how long the rest
-- takes. And how many workers would be done with it in time.
--
-- Invariant: an answer costs the same however many jobs there are. Up to MOST ready jobs of a queue
-- are counted each time. A count of more is remembered: no more than a hundredth of the time goes
-- into counting. Where they are too many to be counted, it is what the server supposes. A glance
-- counts no more than MOST rows of anything.

local core = require "nightshift.core"
local options = require "nightshift.options"
local pauses = require("nightshift.queue").pauses
local units = require "nightshift.units"

local MOST <const> = 1000 -- rows of a queue that are counted one by one; so of waiting and running ones, of all queues
local JOINED <const> = 5000 -- ready rows of all queues; up to so many, rows of jobs that have gone on are left out
local LOOKED <const> = 10000 -- scheduled rows that are counted
local RARELY <const> = 100 -- times as long as it took, a count of many rows is good
local OLD <const> = 600000000 -- µs that a glance takes a count for
local MINUTES <const> = 5 -- that rates are of
local SILENT <const> = 20 -- s without a beat, after which a host's workers do not count
local LEAST <const> = 0.001 -- s of a worker: the least for a job
local SHORT <const> = 0.01 -- s: beside such a job the time between two of them counts
local TARGET <const> = 60 -- s

local scale = {}

--- The options of db:scale.
scale.OPTIONS = {
  target = function(value, what)
    local us, message = options.duration(value, what)
    if us and us < 1000000 then return nil, what .. " must be a second at least" end
    return us and us / 1000000, message
  end,
  queues = function(value, what)
    local wrong = type(value) ~= "table" and type(value)
    for i = 1, wrong and 0 or #value do wrong = wrong or type(value[i]) ~= "string" and "a " .. type(value[i]) end
    if wrong then options.raise("%s must be a list of names of queues, got %s", what, wrong) end
    return value
  end,
}

--- The rows of a statement; trouble ends the look.
local function ask(look, statement, ...)
  local rows, message, code = look.handle:execute("@" .. statement, ...)
  if not rows then error({ message = message, code = code }, 0) end
  return rows
end

-- --------------------------------------------------------------------- counts

--- A queue while it is looked at: its row of the answer, and the parts of that.
---@class nightshift.Scaled
---@field id integer
---@field row nightshift.ScaleRow
---@field since integer? µs: when its oldest ready job became so
---@field next integer? µs: when its next scheduled one is due
---@field limit table? of nightshift_limit
---@field idle integer workers that run nothing
---@field long integer jobs that have run for longer than the target
---@field past table counts of the last minutes

local function older(queue, since)
  if since then queue.since = math.min(queue.since or since, since) end
end

--- Adds `rows` to a state of the queues; `most`: there may be more when so many were looked at.
local function add(look, state, rows, most)
  local looked = 0
  for _, row in ipairs(rows) do
    local queue = look.by_id[row.queue_id]
    looked = looked + (row.looked or 0)
    if queue then
      queue.row[state] = queue.row[state] + (row.n or 0)
      older(queue, row.oldest)
      if row.next then queue.next = math.min(queue.next or row.next, row.next) end
    end
  end
  if looked >= most then look.cut[state] = true end
end

-- All rows of a table are counted where a queue has more than MOST: an eighth of a second for a
-- million. The numbers are good for RARELY times as long. Rows of nightshift_meta have them for
-- all programs.

-- The last count of each handle, by table: for accounts that may not write these rows.
local own = setmetatable({}, { __mode = "k" })

local function is_good(look, at, took)
  local age = look.now - at
  return age >= 0 and age < RARELY * took
end

--- Is it good, or good enough for a glance?
local function is_of_use(look, at, took)
  return is_good(look, at, took) or look.glances and math.abs(look.now - at) < OLD
end

--- The rows of a count, and their age in seconds.
local function taken(look, found, at, good)
  look.stale = look.stale or not good
  return found, (look.now - at) / 1000000
end

--- The remembered rows of some queues, and how old the oldest of them is; nil: one is not there, or
-- too old.
local function remembered(look, what, queues)
  local last = own[look.handle] and own[look.handle][what]
  if last and is_good(look, last.at, last.took) then return taken(look, last.found, last.at, true) end
  local found, oldest, good = {}, look.now, true
  for _, row in ipairs(ask(look, "report_scale_counted", what .. ":%")) do
    local n, at, took = row.counted:match "^(%d+),(%d+),(%d+)$"
    if n and is_of_use(look, at, took) then
      found[row.queue_id] = { n = tonumber(n), at = tonumber(at), good = is_good(look, at, took) }
    end
  end
  for _, queue in ipairs(queues) do
    local one = found[queue.id]
    if not one and last and is_of_use(look, last.at, last.took) then return taken(look, last.found, last.at, false) end
    if not one then return nil end
    oldest, good = math.min(oldest, one.at), good and one.good
  end
  return taken(look, found, oldest, good)
end

--- As many rows as the server supposes, for plans, that each queue has.
local function guess_all(look, what, queues)
  local found = {}
  for _, queue in ipairs(queues) do
    local n = ask(look, ("report_scale_%s_guess"):format(what), queue.id)[1].rows
    found[queue.id] = { n = math.tointeger(tonumber(n)) or 0 }
    queue.cut = { ready = true }
  end
  return found
end

--- Counts all rows, and remembers the larger numbers. Nil: it takes too long.
local function count_all(look, what)
  local handle, began = look.handle, core.clock()
  local statement = ("report_scale_%s_all"):format(what)
  local rows, message, code = handle:execute("@" .. statement)
  if not rows and message:find("(1969)", 1, true) then return nil end
  if not rows then error({ message = message, code = code }, 0) end
  local took, found, list = math.ceil((core.clock() - began) * 1000000), {}, core.array {}
  for _, row in ipairs(rows) do
    found[row.queue_id] = { n = row.n }
    if row.n > MOST then list[#list + 1] = core.array { row.queue_id, row.n } end
  end
  own[handle] = own[handle] or {}
  own[handle][what] = { found = found, at = look.now, took = took }
  if not handle:in_transaction() then
    handle:execute("@admin_scale_counted", what, look.now, took, assert(core.encode(list)))
  end
  return found, 0
end

--- Adds the ready jobs of queues with more than MOST.
local function add_many(look, what, queues)
  local found, age = remembered(look, what, queues)
  if not found and not look.glances then found, age = count_all(look, what) end
  look.stale = look.stale or not found
  if not found and not look.glances then found = guess_all(look, what, queues) end
  for _, queue in ipairs(queues) do
    local row = queue.row
    local n = found and found[queue.id] and found[queue.id].n or 0
    row.ready, row.counted_ago = row.ready + math.max(n, MOST + 1), math.max(row.counted_ago, age or 0)
    if not found then queue.cut = { ready = true } end
  end
end

--- Adds jobs in ready.
local function add_ready(look)
  local rows, sum, many, ids = ask(look, "report_scale_ready", MOST), 0, {}, {}
  for _, row in ipairs(rows) do sum = sum + (row.n or 0) end
  if sum <= JOINED then rows = ask(look, "report_counts_ready", MOST) end
  add(look, "ready", rows, math.huge)
  for _, row in ipairs(rows) do
    if not row.n then many[#many + 1], ids[#ids + 1] = look.by_id[row.queue_id], row.queue_id end
  end
  if #many == 0 then return end
  add(look, "ready", ask(look, "report_counts_lanes", "[" .. table.concat(ids, ",") .. "]"), math.huge)
  add_many(look, "ready", many)
end

--- Adds jobs of limited queues that stand in their backlogs.
local function add_backlog(look)
  local rows, many = ask(look, "report_scale_backlog", MOST), {}
  add(look, "ready", rows, math.huge)
  for _, row in ipairs(rows) do
    local queue = look.by_id[row.queue_id]
    if queue then queue.limit = row end
    if queue and not row.n then many[#many + 1] = queue end
  end
  if #many > 0 then add_many(look, "backlog", many) end
end

--- Adds scheduled jobs. Only among few are waits for a signal told from them.
local function add_scheduled(look)
  local most = look.glances and MOST + 1 or LOOKED
  local rows, looked = ask(look, "report_scale_scheduled", most), 0
  for _, row in ipairs(rows) do looked = looked + row.looked end
  if looked > MOST then
    look.cut.waiting = look.glances or nil
    return add(look, "scheduled", rows, most)
  end
  rows = ask(look, "report_counts_scheduled", MOST + 1)
  add(look, "scheduled", rows, math.huge)
  for _, row in ipairs(rows) do row.n, row.next, row.looked = math.tointeger(tonumber(row.awaiting)), nil, nil end
  add(look, "waiting", rows, math.huge)
end

local function count(look)
  add_ready(look)
  add_backlog(look)
  add(look, "ready", ask(look, "report_counts_due", MOST), MOST)
  add_scheduled(look)
  add(look, "running", ask(look, "report_counts_running", MOST), MOST)
  add(look, "waiting", ask(look, "report_counts_waiting", MOST, MOST), MOST)
  for _, row in ipairs(ask(look, "report_scale_long", math.ceil(look.target * 1000000))) do
    local queue = look.by_id[row.queue_id]
    if queue then queue.long = row.n end
  end
  for _, row in ipairs(ask(look, "report_scale_minutes", MINUTES)) do
    local queue = look.by_id[row.queue_id]
    if queue then queue.past = row end
  end
end

-- -------------------------------------------------------------------- workers

local function set_of(text)
  local set = {}
  for _, item in ipairs(text and core.decode(text) or {}) do set[item] = true end
  return set
end

--- Is a holder gone that is not known to be? A server without named locks of holders cannot say.
local function is_gone(look, holder)
  if holder.kind == "host" and holder.silent > SILENT * 1000000 then return true end
  if holder.free ~= 1 then return false end
  if look.locks == nil then look.locks = ask(look, "report_why_locks")[1].serve == 1 end
  return look.locks
end

--- Hosts that live, with the queues that they serve, and whether a program claims, too.
local function read_holders(look)
  local hosts, programs = {}, false
  for _, row in ipairs(ask(look, "report_scale_holders")) do
    if not is_gone(look, row) then
      if row.kind == "handle" then programs = true end
      if row.kind == "host" and row.workers then
        local kept = 0
        row.own = {}
        for _, reserve in ipairs(row.reserves and core.decode(row.reserves) or {}) do
          row.own[reserve[1]], kept = reserve[2], kept + reserve[2]
        end
        row.serves, row.shared = row.queues and set_of(row.queues), math.max(0, row.workers - kept)
        hosts[#hosts + 1] = row
      end
    end
  end
  return hosts, programs
end

--- Adds the workers that may take jobs of each queue, without workers that are kept for another one.
local function add_workers(look, wanted)
  local hosts, programs = read_holders(look)
  look.programs, look.workers, look.busy = programs, 0, 0
  for _, host in ipairs(hosts) do
    local serves = false
    for _, queue in ipairs(wanted) do
      local row = queue.row
      local n = (not host.serves or host.serves[row.name]) and host.shared + (host.own[row.name] or 0) or 0
      if n > 0 then
        local busy = math.min(n, host.busy or 0)
        row.workers, row.busy, queue.idle, serves = row.workers + n, row.busy + busy, queue.idle + n - busy, true
      end
    end
    if serves then
      look.workers = look.workers + host.workers
      look.busy = look.busy + math.min(host.workers, host.busy or 0)
    end
  end
end

-- -------------------------------------------------------------------- verdicts

local NOTHING <const> = { pushed = 0, ended = 0, runs = 0, ran = 0, hour_ended = 0, hour_runs = 0, hour_ran = 0 }

local function mean(sum, n) return n > 0 and sum / n / 1000000 or nil end

--- Seconds of a worker that a job takes until it ends, all of its runs together; nil: not known.
local function work_of(past)
  local work = mean(past.ran, past.ended) or mean(past.ran, past.runs) or mean(past.hour_ran, past.hour_ended)
    or mean(past.hour_ran, past.hour_runs)
  return work and math.max(work, LEAST)
end

--- Jobs a second that leave the queue with the workers there are: its part of the busy ones, and the
-- idle ones. Of short jobs, and without hosts, it is the rate of the last minutes. 0: not known.
local function speed_of(look, queue, work)
  local row, limit = queue.row, queue.limit or {}
  if row.workers == 0 then return look.programs and row.rate_out or 0 end
  local busy = row.running > 0 and row.busy * row.running / look.running or 0
  local workers = queue.idle + busy
  if limit.running then workers = math.min(workers, limit.running) end
  local speed = work and workers / work or row.rate_out
  if not work or work < SHORT then speed = math.max(speed, row.rate_out) end
  return limit.rate and math.min(speed, limit.rate * 1000000 / limit.rate_span) or speed
end

--- Workers that keep up with the pushes, and are done with the ready jobs within the target.
local function need_of(look, queue, work)
  local row, limit = queue.row, queue.limit or {}
  if row.paused or row.ready + row.running == 0 and row.rate_in == 0 then return 0 end
  local rate = row.rate_in + row.ready / look.target
  if limit.rate then rate = math.min(rate, limit.rate * 1000000 / limit.rate_span) end
  local need = rate * work + queue.long
  return limit.running and math.min(need, limit.running) or need
end

--- Does a queue want a worker, however little there is to do?
local function has_work(look, queue)
  local due = queue.next and queue.next - look.now <= look.target * 1000000
  return not queue.row.paused and (queue.row.ready + queue.row.running > 0 or due == true)
end

local function judge(look, queue)
  local row, past = queue.row, queue.past
  local work = work_of(past)
  row.rate_in, row.rate_out = past.pushed / MINUTES / 60, past.ended / MINUTES / 60
  row.run = mean(past.ran, past.runs) or mean(past.hour_ran, past.hour_runs)
  row.oldest_age = queue.since and math.max(0, (look.now - queue.since) / 1000000) or 0
  local speed = row.paused and 0 or speed_of(look, queue, work)
  if row.ready == 0 then row.drain_seconds = 0 elseif speed > 0 then row.drain_seconds = row.ready / speed end
  queue.least = has_work(look, queue) and 1 or 0
  queue.need = work and need_of(look, queue, work) or 0
  queue.unknown = not work and queue.least > 0
  row.wanted = math.max(queue.least, math.ceil(queue.need), queue.unknown and row.workers or 0)
  for _, cut in ipairs { look.cut, queue.cut } do
    for state in pairs(cut) do
      row.approximate = row.approximate or {}
      row.approximate[state] = true
    end
  end
end

local SUMS <const> = { "ready", "scheduled", "running", "waiting", "rate_in", "rate_out" }

--- All queues of an answer together.
local function total_of(look, queues)
  local total = { counted_ago = 0, oldest_age = 0, drain_seconds = 0, workers = look.workers, busy = look.busy }
  local need, least, unknown, ran, runs = 0, 0, false, 0, 0
  for _, key in ipairs(SUMS) do total[key] = 0 end
  for _, queue in ipairs(queues) do
    local row = queue.row
    for _, key in ipairs(SUMS) do total[key] = total[key] + row[key] end
    total.oldest_age = math.max(total.oldest_age, row.oldest_age)
    if not row.paused then
      total.drain_seconds = total.drain_seconds and row.drain_seconds and math.max(total.drain_seconds,
        row.drain_seconds)
    end
    for state in pairs(row.approximate or {}) do
      total.approximate = total.approximate or {}
      total.approximate[state] = true
    end
    total.counted_ago = math.max(total.counted_ago, row.counted_ago)
    local past = queue.past
    local lately = past.runs > 0
    ran, runs = ran + (lately and past.ran or past.hour_ran), runs + (lately and past.runs or past.hour_runs)
    need, least = need + queue.need, math.max(least, queue.least)
    unknown = unknown or queue.unknown
  end
  total.run = mean(ran, runs)
  total.wanted = math.max(least, math.ceil(need), unknown and look.workers or 0)
  return total
end

--- The queues that are asked for; without names all that were not removed.
local function choose(look, names)
  if not names or #names == 0 then
    local list = {}
    for _, queue in ipairs(look.all) do
      local row = queue.row
      if not queue.removed or row.ready + row.scheduled + row.running + row.waiting > 0 then list[#list + 1] = queue end
    end
    table.sort(list, function(a, b) return a.row.name < b.row.name end)
    return list
  end
  local by_name, list = {}, {}
  for _, queue in ipairs(look.all) do by_name[queue.row.name] = queue end
  for i, name in ipairs(names) do
    list[i] = by_name[name] or error({ message = ("there is no queue '%s'"):format(options.shown(name)),
      code = "NOT_FOUND" }, 0)
  end
  return list
end

local function new_queue(found, all_paused)
  local row = { name = found.name, paused = found.paused or all_paused, ready = 0, scheduled = 0, running = 0,
    waiting = 0, counted_ago = 0, workers = 0, busy = 0 }
  return { id = found.id, removed = found.removed, row = row, idle = 0, long = 0, past = NOTHING }
end

local function read(look, names)
  count(look)
  local wanted, rows = choose(look, names), core.array {}
  add_workers(look, wanted)
  look.running = 0
  for _, queue in ipairs(look.all) do look.running = look.running + queue.row.running end
  for i, queue in ipairs(wanted) do
    judge(look, queue)
    rows[i] = queue.row
  end
  return { at = units.seconds(look.now), target = look.target, queues = rows, total = total_of(look, wanted) }
end

local function new_look(handle, target)
  local now, queues, paused, message, code
  now, message, code = handle:now()
  if not now then return nil, message, code end
  queues, message, code = handle:queues()
  if not queues then return nil, message, code end
  paused, message, code = pauses.list(handle)
  if not paused then return nil, message, code end
  local look = { handle = handle, now = now, target = target, all = {}, by_id = {}, cut = {} }
  for i, found in ipairs(queues) do
    look.all[i] = new_queue(found, paused.all ~= nil)
    look.by_id[found.id] = look.all[i]
  end
  return look
end

--- Reads the answer; nil, a message and a code.
local function answer_of(look, names)
  local ok, answer = pcall(read, look, names)
  if ok then return answer end
  if type(answer) ~= "table" then error(answer, 0) end
  return nil, answer.message, answer.code
end

--- See db:scale. `drain_seconds` and `run` are nil where they are not known.
---@param handle userdata core handle
---@param given {queues: string[]?, target: number?} checked
---@return nightshift.Scale|nil
---@return string? message
---@return string? code
function scale.look(handle, given)
  local look, message, code = new_look(handle, given.target or TARGET)
  if not look then return nil, message, code end
  return answer_of(look, given.queues)
end

--- The same of all queues for a page, which does not wait for a count of many rows. It takes the last
-- one; without any, a queue has more than MOST. Facts are `next`: seconds until the next job of a
-- queue is due, by its name; and `stale`: scale.look would count many rows now.
---@param handle userdata core handle
---@return nightshift.Scale|nil
---@return table|string|nil facts
---@return string? code
function scale.glance(handle)
  local look, message, code = new_look(handle, TARGET)
  if not look then return nil, message, code end
  look.glances = true
  local answer
  answer, message, code = answer_of(look)
  if not answer then return nil, message, code end
  local facts = { next = {}, stale = look.stale }
  for _, queue in ipairs(look.all) do
    facts.next[queue.row.name] = queue.next and math.max(0, queue.next - look.now) / 1000000
  end
  return answer, facts
end

return scale
