--- What `top` finds for a view: the panes, the jobs of a queue, all about a job. They use what
-- `status`, `jobs` and `show` use.
--
-- Each kind of view has a function, which takes the session. It puts rows and figures into it, and
-- gives true, or nil, a message and a code.

local core = require "nightshift.core"
local jobs = require "nightshift.cli.jobs"
local limit = require "nightshift.limit"
local shards = require "nightshift.sharded.shards"
local output = require "nightshift.cli.output"
local report = require "nightshift.report"
local units = require "nightshift.units"

local looks = {}

local SHOWN <const> = 200 -- jobs of a listing
local SPAN <const> = 10 -- s over which a rate is taken; also of a bar of this session
local MINUTES_EVERY <const> = 15 -- s after which the counts of minutes are read again
local BARS <const> = 60 -- that are remembered

--- Rows of jobs as rows of a table.
local function job_rows(list)
  for _, row in ipairs(list) do
    row.key = row.id
    row.words = table.concat({ row.id, row.queue, row.name, row.status or "", row.error or row.reason or "" }, "\n")
  end
  return list
end

--- A holder as a row; `busy` is as of its last beat.
local function holder_row(self, holder)
  local text = ("%s  %s, pid %d"):format(holder.host, holder.kind, holder.pid)
  if holder.workers then
    text = ("%s  %s, %d busy"):format(text, output.count(holder.workers, "worker"), holder.busy)
    if holder.leaving > 0 then text = ("%s, %d leaving"):format(text, holder.leaving) end
  end
  text = ("%s  up %s"):format(text, output.span(self.now - holder.started))
  if holder.load_error then text = text .. "  its scripts could not be read again" end
  return { key = "holder " .. holder.id, whole = text, words = text, style = holder.load_error and "red" or "bold" }
end

--- Holders, each with its jobs below it. A holder stays when one of its jobs has the filter's text.
local function work_rows(self, holders, running)
  local rows, by_holder, names = {}, {}, {}
  for _, row in ipairs(running) do
    by_holder[row.holder] = by_holder[row.holder] or {}
    table.insert(by_holder[row.holder], row)
    row.name = "  " .. row.name
  end
  for _, holder in ipairs(holders) do
    local row = holder_row(self, holder)
    rows[#rows + 1] = row
    for _, job in ipairs(by_holder[holder.id] or {}) do
      rows[#rows + 1] = job
      row.words = row.words .. "\n" .. job.words
      job.words = job.words .. "\n" .. holder.host
    end
    names[holder.id] = true
  end
  for _, row in ipairs(running) do
    if not names[row.holder] then rows[#rows + 1] = row end -- of a program that has just died
  end
  return rows
end

--- What an account without the right to read history does not see is left out.
local function unless_denied(value, message, code)
  if value == nil and code ~= "DENIED" then return nil, message, code end
  return value or false, message
end

--- Reads how many jobs were done in each minute of the last hour, now and then. Where nothing was
-- counted, or the account may not read it, the bars are those of this session.
local function look_minutes(self)
  local now = core.clock()
  if self.minutes_at and now - self.minutes_at < MINUTES_EVERY then return end
  self.minutes_at = now
  local list = self.db:series { span = 3600 } or {}
  self.minutes = {}
  local sum = 0
  for i, bucket in ipairs(list) do
    self.minutes[i] = bucket.done
    sum = sum + bucket.done
  end
  if sum == 0 then self.minutes = nil end
end

--- Adds the rate of a look to the bars of this session.
local function note_rate(self, rate, now)
  local slot = now // SPAN
  if slot ~= self.slot then
    for _ = self.slot or slot, slot - 1 do
      self.bars[#self.bars + 1] = 0
      if #self.bars > BARS then table.remove(self.bars, 1) end
    end
    self.slot = slot
  end
  self.bars[math.max(1, #self.bars)] = rate
end

--- Adds the number of places to queues with a limit.
local function add_places(queues, limits)
  local places = {}
  for _, row in ipairs(limits) do places[row.queue] = row.running end
  for _, row in ipairs(queues) do row.places = places[row.name] end
end

--- Which of two failures was later?
local function later(a, b) return a.failed > b.failed end

--- Dead jobs and those that are tried again, the last that failed first; false: the account may not
-- read the history.
local function look_at_failures(db)
  local list, message, code = unless_denied(db:jobs { state = "dead", limit = SHOWN })
  if not list then return list, message, code end
  local trying
  trying, message, code = unless_denied(report.retrying(db._handle, SHOWN))
  if trying == nil then return nil, message, code end
  for _, row in ipairs(list) do row.failed = row.finished_at end
  for _, row in ipairs(trying or {}) do
    row.failed, row.again = row.ended, row.due
    list[#list + 1] = row
  end
  table.sort(list, later)
  return table.move(list, 1, SHOWN, 1, {})
end

--- What the panes show of a database.
local function look_at(db)
  local handle = db._handle
  local now, message, code = handle:now()
  if not now then return nil, message, code end
  local queues, holders, running, rate, by_queue, dying, failures
  queues, message, code = report.queues(handle, now, true)
  if not queues then return nil, message, code end
  local limits
  limits, message, code = unless_denied(limit.list(handle))
  if limits == nil then return nil, message, code end
  add_places(queues, limits or {})
  holders, message, code = units.rows(handle:execute "@report_holders")
  if not holders then return nil, message, code end
  running, message, code = db:jobs { state = "running", limit = SHOWN }
  if not running then return nil, message, code end
  rate, by_queue, code = unless_denied(report.rates(handle, "done", now, SPAN * 1000000))
  if rate == nil then return nil, by_queue, code end
  dying, message, code = unless_denied(report.rates(handle, "dead", now, SPAN * 1000000))
  if dying == nil then return nil, message, code end
  failures, message, code = look_at_failures(db)
  if failures == nil then return nil, message, code end
  return { now = units.seconds(now), queues = queues, holders = holders, running = running, rate = rate,
    by_queue = rate and by_queue or {}, dying = dying, failures = failures }
end

--- Adds rows of another database; at most SHOWN stay.
local function add_rows(rows, more, before)
  table.move(more, 1, #more, #rows + 1, rows)
  if before then table.sort(rows, before) end
  for i = #rows, SHOWN + 1, -1 do rows[i] = nil end
end

--- Adds what another database has.
local function add_seen(all, one)
  all.now = math.max(all.now, one.now)
  table.move(one.holders, 1, #one.holders, #all.holders + 1, all.holders)
  add_rows(all.running, one.running, function(a, b) return (a.claimed or 0) < (b.claimed or 0) end)
  all.failures = all.failures and one.failures
  if all.failures then add_rows(all.failures, one.failures, later) end
  all.rate, all.dying = all.rate and one.rate and all.rate + one.rate, all.dying and one.dying and all.dying + one.dying
  for name, rate in pairs(one.by_queue) do all.by_queue[name] = (all.by_queue[name] or 0) + rate end
end

--- The same of several databases together.
local function look_at_all(db)
  local values, missing, code = db._inside.on_all(db, look_at)
  if not values then return nil, missing, code end
  local all, lists = values[1].value, { values[1].value.queues }
  for i = 2, #values do
    add_seen(all, values[i].value)
    lists[i] = values[i].value.queues
  end
  all.queues, all.missing = shards.queues(lists), missing
  return all
end

function looks.panes(self)
  local seen, message, code
  if self.db._inside then seen, message, code = look_at_all(self.db) else seen, message, code = look_at(self.db) end
  if not seen then return nil, message, code end
  self.now, self.rate, self.dying, self.by_queue = seen.now, seen.rate, seen.dying, seen.by_queue
  self.queues, self.holders, self.missing = seen.queues, seen.holders, seen.missing
  local queues, holders, running, failures = seen.queues, seen.holders, seen.running, seen.failures
  note_rate(self, seen.rate or 0, self.now)
  look_minutes(self)
  for _, row in ipairs(queues) do row.key, row.words = row.name, row.name end
  if not failures then self.tables.failures.none = "this account may not read history" end
  self.rows.queues, self.rows.work, self.rows.failures = queues, work_rows(self, holders, job_rows(running)),
    job_rows(failures or {})
  return true
end

--- The server's clock of a look at less than all panes.
local function look_at_clock(self)
  local now, message, code = self.db._handle:now()
  if not now then return nil, message, code end
  self.now = units.seconds(now)
  return true
end

function looks.jobs(self, view)
  local ok, message, code = look_at_clock(self)
  if not ok then return nil, message, code end
  local list
  list, message, code = self.db:jobs { queue = view.queue, limit = SHOWN }
  if not list then return nil, message, code end
  self.rows.jobs = job_rows(list)
  return true
end

local FIRST <const> = { "state", "payload", "result", "error", "status" } -- what people open a job for

--- All about a job: why it does not run, then as `show`.
function looks.job(self, view)
  local ok, message, code = look_at_clock(self)
  if not ok then return nil, message, code end
  local info, why
  local db = self.db
  if db._inside then
    db, message, code = db:shard(shards.of(view.id))
    if not db then return nil, message, code end
  end
  info, message, code = jobs.facts(db, view.id)
  if not info and code == "NOT_FOUND" then
    view.text:set(("there is no job %d any more"):format(view.id))
    return true
  end
  if not info then return nil, message, code end
  why, message, code = db:why(view.id)
  if not why and code ~= "NOT_FOUND" then return nil, message, code end
  local lines = { ("%-13s %s"):format("why", output.safe(why or "-")) }
  jobs.tell(info, function(line) lines[#lines + 1] = line end, FIRST)
  view.text:set(table.concat(lines, "\n"))
  return true
end

return looks
