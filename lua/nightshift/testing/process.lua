--- The process of a test: it runs jobs, lets time pass, and dies where it is told to.
--
-- t:drain runs ready jobs to their ends, one by one, as a worker runs them. The parts of a worker
-- are those of worker.lua, so options of handlers, hooks and verdicts mean the same. A handler that
-- fails is retried as its job says: later, so it is scheduled when the drain ends. There is no
-- host: no time limits and no memory limits, and os.exit raises. A drain is one worker, from its
-- `worker.start` to its `worker.stop`; behind a death there is another one.
--
-- At a crash point the process dies as by kill -9, and its database sees just that. A point
-- replaces a verb of core's handles until it has come. At it the server kills the connection of the
-- handle, which rolls back what was not committed. The holder of that connection is dead, so its
-- claims are given back at once, as another holder does within two seconds. The handle is closed,
-- and an error unwinds what runs: the process has ended there. Verbs of other handles go on. A
-- death before a commit is a death before the verb: the database cannot tell them apart.
--
-- Invariant: each run is settled before the next begins, unless the process died in it.

local core = require "nightshift.core"
local handlers = require "nightshift.handlers"
local hooks = require("nightshift.job").hooks
local nightshift = require "nightshift"
local options = require "nightshift.options"
local runner = require "nightshift.schedule.runner"
local worker = require "nightshift.worker"

local process = {}

local RUNS <const> = 10000        -- of one drain, unless it says another number
local NEVER <const> = 50 * 31557600 * 1000000 -- µs: a job that is due later waits for a signal without a deadline
local SHOWN <const> = 5           -- errors that a message repeats

-- ------------------------------------------------------------------------ the clock

--- Has so many µs pass for all that is in the database; what is due then is ready.
---@param self nightshift.Testing
---@param by integer
---@return true|nil
---@return string? message
---@return string? code
function process.due(self, by)
  local handle = self._handle
  local ok, message, code = handle:begin()
  if ok then ok, message, code = handle:execute("@testing_due", by) end
  if ok and by > 0 then ok, message, code = handle:execute("@testing_shift", by) end
  if ok then ok, message, code = handle:commit() end
  if ok then
    self._ahead = self._ahead + by
    return true
  end
  handle:rollback()
  return nil, message, code
end

-- ------------------------------------------------------------------- crash points

-- By point: the verbs of core's handles, and whether it lies behind them.
local POINTS = {
  ["push.before_commit"] = { verbs = { "push" } },
  ["push.after_commit"] = { verbs = { "push" }, after = true },
  ["claim.after_commit"] = { verbs = { "claim" }, after = true },
  ["settle.before_commit"] = { verbs = { "settle", "settle_all" } },
  ["settle.after_commit"] = { verbs = { "settle", "settle_all" }, after = true },
  ["transaction.before_commit"] = { verbs = { "commit" } },
  ["transaction.after_commit"] = { verbs = { "commit" }, after = true },
}

local GONE_WITHIN <const> = 5 -- seconds; a kill waits for a statement that runs

--- The verbs of all core handles.
local function verbs_of(kit) return getmetatable(kit._handle).__index end

--- Takes back the replacement of a point.
---@param kit nightshift.Testing
function process.disarm(kit)
  for name, verb in pairs(kit._replaced or {}) do verbs_of(kit)[name] = verb end
  kit._replaced, kit._died = nil, nil
end

--- Ends a handle as a kill of its process does.
---@param kit nightshift.Testing
---@param handle userdata core handle
function process.cut(kit, handle)
  if not handle:is_open() then return end
  local own = kit._handle
  local rows = handle:execute "@testing_connection"
  local id = rows and rows[1].id
  if id then
    own:execute("@testing_kill", id)
    local stop = core.clock() + GONE_WITHIN
    repeat
      local gone = own:execute("@testing_gone", id)
    until not gone or gone[1].gone == 1 or core.clock() > stop or core.sleep(0.001)
    own:execute("@testing_end_holder", id)
    own:look(0)
  end
  handle:close()
end

local function die(kit, handle, point)
  process.disarm(kit)
  kit._died = point
  process.cut(kit, handle)
  error("nightshift.testing: the process died at " .. point, 0)
end

--- Did the verb do something? A claim that finds nothing commits nothing.
local function has_written(results)
  local first = results[1]
  return first ~= nil and not (type(first) == "table" and next(first) == nil)
end

local replace

--- The verb that dies at its nth call. Behind a verb of an open transaction it dies behind its
-- commit.
local function dying(kit, point, verb, at, nth)
  local left = nth
  return function(handle, ...)
    if handle == kit._handle or handle == kit._keeper then return options.values(verb(handle, ...)) end
    if not at.after then
      left = left - 1
      if left > 0 then return options.values(verb(handle, ...)) end
      die(kit, handle, point)
    end
    local results = table.pack(verb(handle, ...))
    if has_written(results) then left = left - 1 end
    if left > 0 then return table.unpack(results, 1, results.n) end
    if not handle:in_transaction() then die(kit, handle, point) end
    process.disarm(kit)
    replace(kit, point, POINTS["transaction.after_commit"], 1)
    return table.unpack(results, 1, results.n)
  end
end

function replace(kit, point, at, nth)
  local verbs = verbs_of(kit)
  kit._replaced = {}
  for _, name in ipairs(at.verbs) do
    kit._replaced[name] = verbs[name]
    verbs[name] = dying(kit, point, verbs[name], at, nth)
  end
end

--- Has the process die at a point, the nth time that it comes there.
---@param kit nightshift.Testing
---@param point string
---@param nth integer
---@return true|nil
---@return string? message
---@return string? code
function process.arm(kit, point, nth)
  local at = POINTS[point]
  if not at then
    local known = {}
    for name in pairs(POINTS) do known[#known + 1] = name end
    table.sort(known)
    return nil, ("crash_at: there is no point '%s'; known: %s"):format(options.shown(point), table.concat(known, ", ")),
      "INVALID"
  end
  if nth < 1 then return nil, "crash_at: which time must be 1 or more, got " .. nth, "INVALID" end
  process.disarm(kit)
  replace(kit, point, at, nth)
  return true
end

-- --------------------------------------------------------------------- handlers

local loaded = {} -- by their paths: a file that registers hooks is loaded once

--- The handlers that were given, checked as a host checks them.
local function load_set(given)
  if type(given) == "string" then given = { given } end
  if type(given) ~= "table" then
    options.raise("drain: the handlers must be a table of handlers, a file or a list of files, got %s", type(given))
  end
  if given[1] == nil then return handlers.load { given } end
  for i, path in ipairs(given) do
    if type(path) ~= "string" then options.raise("drain: item %d must be a file's path, got %s", i, type(path)) end
  end
  local key = table.concat(given, "\n")
  local message
  if not loaded[key] then loaded[key], message = handlers.load(given) end
  return loaded[key], message
end

-- ------------------------------------------------------------ a process that works

---@class nightshift.Drain one drain
---@field kit nightshift.Testing
---@field set nightshift.Handlers
---@field counts nightshift.TestedJobs
---@field work nightshift.Db claims and settles
---@field run function of worker.parts
---@field run_batch function
---@field reset function
---@field backend nightshift.Backend
---@field jobs table[]? the fields of the jobs that run; one, but in a batch
---@field lines string[][]? their logs

--- Calls the functions of an event of the worker. Their errors are errors of the drain.
local function run_hooks(self, event)
  hooks.run(event, function(name, text)
    self.counts.errors[#self.counts.errors + 1] = { name = name, error = text }
  end)
end

--- The verbs that a worker gets from its host.
local function api_of(self)
  local function touch(progress, text, at)
    local job, handle = self.jobs[(at or 0) + 1], self.work._handle
    return handle:touch(job.id, job.run, progress, text)
  end
  local function is_lost(at) return not touch(nil, nil, at) end
  return {
    touch = touch, cancelled = is_lost, stopping = is_lost,
    log = function(text, at)
      table.insert(self.lines[(at or 0) + 1], text)
      return true
    end,
    run = function() end, -- of a program: core knows when it has claimed the job
    take_id = function()
      local ids, message, code = self.work._handle:take_ids(1)
      if not ids then return nil, message, code end
      return ids[1]
    end,
    quota = function() end, limit = function() end,
    complain = function(event, text)
      self.counts.errors[#self.counts.errors + 1] = { name = event, error = text }
    end,
  }
end

--- Opens the handle that claims, unless it is open, and makes the worker.
local function begin(self)
  local work = self.kit._work
  if not (work and work:is_open()) then
    local message, code
    work, message, code = nightshift.open(self.kit.url)
    if not work then return nil, message, code end
    self.kit._work = work
  end
  self.work = work
  self.run, self.run_batch, self.reset, self.backend = worker.parts(self.set, api_of(self), { url = self.kit.url })
  run_hooks(self, "worker.start")
  return true
end

--- After a death: whatever the process had is cut, and another process goes on.
local function begin_again(self)
  local opened = self.backend.opened()
  process.cut(self.kit, self.work._handle)
  if opened then process.cut(self.kit, opened._handle) end
  self.kit._died = nil
  self.counts.crashed = self.counts.crashed + 1
  return begin(self)
end

--- Ends the process of earlier drains.
---@param kit nightshift.Testing
function process.close(kit)
  if kit._work then kit._work:close() end
  kit._work = nil
end

-- ------------------------------------------------------------------- declarations

--- Writes, as hosts do, of the scripts that they have loaded: jobs for dead ones.
local function declare(self)
  local list, handle = "[" .. table.concat(self.set.on_dead, ",") .. "]", self.kit._handle
  local ok, message, code = true, nil, nil
  if #self.set.on_dead > 0 then
    ok, message, code = handle:execute("@holder_on_dead_queues", list)
    if ok then ok, message, code = handle:execute("@holder_on_dead", list) end
  end
  if ok then
    ok, message, code = handle:execute("@holder_on_dead_over", list, core.encode(core.array { table.unpack(
      self.set.names) }))
  end
  return ok, message, code
end

--- Declares the schedules of the handlers, and pushes the jobs of ticks that are due, as the runner
-- of a host does. Gives the first trouble.
local function tick(self)
  local trouble
  if self.ticker or #self.set.schedules == 0 then
    local rows, message, code = self.kit._handle:execute "@testing_tick"
    if not rows then return nil, message, code end
    if rows[1].due == 0 then return true end
  end
  self.ticker = self.ticker or runner.new({ close = function() end }, self.kit._handle)
  self.ticker.host = {
    declared = function() return "[" .. table.concat(self.set.schedules, ",") .. "]", 1, 0 end,
    log = function(level, event, ...)
      local fields, given = {}, { ... }
      for i = 1, #given, 2 do fields[given[i]] = given[i + 1] end
      local is_trouble = level == "error" or event == "schedule.no_zone"
      if is_trouble then trouble = trouble or ("%s: %s"):format(fields.name or "schedules", fields.error) end
    end,
    fired = function() end, wait = function() return true end,
  }
  self.ticker:run()
  if trouble then return nil, trouble, "FAILED" end
  return true
end

-- --------------------------------------------------------------------------- a run

local function log_of(lines)
  return #lines > 0 and table.concat(lines, "\n", math.max(1, #lines - 99)) or nil
end

local COUNTED = { ack = "done", fail = "failed", discard = "dead", again = "again", wait = "waiting" }

local function count(self, job, kind, dead, err)
  local counts = self.counts
  local what = COUNTED[kind]
  if what then counts[what] = counts[what] + 1 end
  if dead and kind ~= "discard" then counts.dead = counts.dead + 1 end
  if kind == "fail" or kind == "discard" or dead then
    counts.errors[#counts.errors + 1] = { id = job.id, name = job.name, attempt = job.attempts + 1, error = err,
      dead = dead or kind == "discard" }
  end
end

--- Writes how the run of a job ended. A verdict that cannot be written is a failure.
local function settle(self, job, entry)
  local handle = self.work._handle
  local ok, dead, code = handle:settle(entry)
  if not ok and (code == "INVALID" or code == "TOO_BIG") then
    entry = { id = entry.id, run = entry.run, lease = entry.lease, kind = "fail", error = dead, log = entry.log }
    ok, dead, code = handle:settle(entry)
  end
  if ok then
    count(self, job, entry.kind, dead == true, entry.error)
    return true
  end
  if code ~= "STALE" then return nil, dead, code end
  local ended = entry.kind == "ack" and entry.go_on == 1 -- by tx:ack of its handler
  if ended then count(self, job, "ack") else self.counts.stale = self.counts.stale + 1 end
  return true
end

local function no_exit() error("os.exit called by a handler", 2) end

--- Calls the handler. os.exit would end the tests.
local function call(run, given)
  local exit = os.exit
  os.exit = no_exit -- luacheck: ignore 122
  local ok, results, verdicts = pcall(run, given)
  os.exit = exit -- luacheck: ignore 122
  if not ok then error(results, 0) end
  return results, verdicts
end

local function failure(entry, err)
  return { id = entry.id, run = entry.run, lease = entry.lease, kind = "fail", error = err, most = entry.most }
end

--- Runs claimed jobs: one, or a batch in one call.
local function run(self, claimed)
  self.jobs, self.lines = claimed, {}
  for i = 1, #claimed do self.lines[i] = {} end
  self.counts.runs = self.counts.runs + #claimed
  local results, verdicts = {}, {}
  if self.set.batches[claimed[1].name] then
    results, verdicts = call(self.run_batch, claimed)
  else
    results[1], verdicts[1] = call(self.run, claimed[1])
  end
  if self.kit._died then error(self.kit._died, 0) end
  local entries = {}
  for i, fields in ipairs(claimed) do
    entries[i] = verdicts[i] or { id = fields.id, run = fields.run, lease = fields.lease, kind = "ack",
      result = results[i] }
  end
  local left = self.reset(entries[1])
  for i, entry in ipairs(entries) do
    if left then entry = failure(entry, left) end
    entry.log = log_of(self.lines[i])
    local ok, message, code = settle(self, claimed[i], entry)
    if not ok then return nil, message, code end
  end
  return true
end

-- --------------------------------------------------------------------------- rounds

local BEYOND = "t:drain has run %d jobs and does not come to an end; the last was job %d, %s. More are allowed with "
  .. "{runs = N}"

--- Runs the ready jobs of a queue that have these names, `most` at a time. How many, or nil,
-- message, code.
local function run_names(self, queue, names, most)
  local n = 0
  while true do
    local claimed, message, code = self.work._handle:claim(queue, most, 0, 0, true, names)
    if not claimed then return nil, message, code end
    if not claimed[1] then return n end
    if self.counts.runs >= self.runs then
      local last = claimed[1]
      for _, one in ipairs(claimed) do
        self.work._handle:settle { id = one.id, run = one.run, lease = one.lease, kind = "release" }
      end
      return nil, BEYOND:format(self.counts.runs, last.id, last.name), "FAILED"
    end
    local ok
    ok, message, code = run(self, claimed)
    if not ok then return nil, message, code end
    n = n + #claimed
  end
end

--- Runs the ready jobs of a queue: those that go one by one, then batches.
local function run_queue(self, queue)
  local single, n = {}, 0
  for _, name in ipairs(self.set.names) do
    if not self.set.batches[name] then single[#single + 1] = name end
  end
  if #single > 0 then
    local ran, message, code = run_names(self, queue, single, 1)
    if not ran then return nil, message, code end
    n = ran
  end
  for name, batch in pairs(self.set.batches) do
    local ran, message, code = run_names(self, queue, { name }, batch.most)
    if not ran then return nil, message, code end
    n = n + ran
  end
  return n
end

--- Runs what is ready, in all queues, until nothing is. How many jobs.
local function run_queues(self)
  local n, before = 0
  if #self.set.names == 0 then return 0 end
  repeat
    before = n
    local rows, message, code = self.kit._handle:execute "@testing_queues"
    if not rows then return nil, message, code end
    for _, row in ipairs(rows) do
      local ran
      ran, message, code = run_queue(self, row.name)
      if not ran then return nil, message, code end
      n = n + ran
    end
  until n == before
  return n
end

--- What is due now is ready, as are jobs of due ticks and of claims that are over; runs all of it.
-- How many jobs.
local function round(self)
  local ok, message, code = process.due(self.kit, 0)
  if ok then ok, message, code = tick(self) end
  if ok then ok, message, code = self.work._handle:look(0) end
  if not ok then return nil, message, code end
  return run_queues(self)
end

--- The same; after a death of the process another one goes on.
local function try_round(self)
  local results = table.pack(pcall(round, self))
  if self.kit._died then
    local ok, message, code = begin_again(self)
    if not ok then return nil, message, code end
    return 1
  end
  if not results[1] then error(results[2], 0) end
  return table.unpack(results, 2, results.n)
end

--- Moves the clock on to the first scheduled job; false: there is none.
local function skip(self)
  local rows, message, code = self.kit._handle:execute "@testing_first_due"
  if not rows then return nil, message, code end
  local us = rows[1].us
  if not us or us > NEVER then return false end
  us = math.max(us, 1)
  self.counts.advanced = self.counts.advanced + us / 1000000
  return process.due(self.kit, us)
end

local function rounds(self)
  repeat
    local n, message, code = try_round(self)
    if not n then return nil, message, code end
    local skipped = false
    if self.scheduled then skipped, message, code = skip(self) end
    if skipped == nil then return nil, message, code end
  until n == 0 and not skipped
  return true
end

local function count_left(self)
  local rows, message, code = self.kit._handle:execute "@testing_left"
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do self.counts.left[row.name] = row.n end
  return true
end

local function told(counts)
  local lines = {}
  for i, one in ipairs(counts.errors) do
    if i > SHOWN then
      lines[i] = ("and %d more"):format(#counts.errors - SHOWN)
      break
    end
    lines[i] = one.id and ("%s, job %d, attempt %d: %s"):format(one.name, one.id, one.attempt, one.error)
      or ("%s: %s"):format(one.name, one.error)
  end
  return table.concat(lines, "\n")
end

local OPTIONS = { may_fail = options.typed "boolean", scheduled = options.typed "boolean",
  runs = options.integer(1, 1 << 30) }

--- Runs ready jobs, and what becomes ready meanwhile. With `scheduled` those due later, too: the
-- clock moves on to them. A failure of a handler is an error of the drain, FAILED, when all has
-- run; with `may_fail` it is only counted.
---@param kit nightshift.Testing
---@param given table|string
---@param opts {may_fail: boolean?, scheduled: boolean?, runs: integer?}?
---@return nightshift.TestedJobs|nil
---@return string? message
---@return string? code
---@return nightshift.TestedJobs? counts
function process.drain(kit, given, opts)
  local read, message, code = options.read("drain", opts, OPTIONS)
  if not read then return nil, message, code end
  local set
  set, message = load_set(given)
  if not set then return nil, "drain: " .. message, "INVALID" end
  if kit._draining then options.raise "drain: a handler cannot drain" end
  local self = { kit = kit, set = set, scheduled = read.scheduled, runs = read.runs or RUNS,
    counts = { runs = 0, done = 0, failed = 0, dead = 0, again = 0, waiting = 0, stale = 0, crashed = 0, advanced = 0,
      left = {}, errors = {} } }
  local ok
  kit._draining = true
  local _ <close> = setmetatable({}, { __close = function()
    kit._draining = nil
    if self.backend then self.backend.close() end
  end })
  ok, message, code = begin(self)
  if ok then ok, message, code = declare(self) end
  if ok then ok, message, code = rounds(self) end
  if ok then ok, message, code = count_left(self) end
  if self.backend then run_hooks(self, "worker.stop") end
  if not ok then return nil, message, code, self.counts end
  if #self.counts.errors == 0 or read.may_fail then return self.counts end
  return nil, told(self.counts), "FAILED", self.counts
end

return process
