--- An adopted table in a program: its rows are taken in as jobs of a queue of its name. A
-- verdict and its row are one commit: the core writes both (src/core/source/pay.c). In all files of
-- this folder `self` is such a table.

local admin = require "nightshift.source.admin"
local audit = require "nightshift.audit"
local core = require "nightshift.core"
local failure = require "nightshift.failure"
local mapping = require "nightshift.source.mapping"
local options = require "nightshift.options"
local queue = require "nightshift.queue"
local steps = require("nightshift.source.text").steps
local text = require "nightshift.source.text"
local work = require "nightshift.source.work"

local caught, fail, must, try = failure.caught, failure.fail, failure.must, failure.try

---@class nightshift.source.Table
---@field handle userdata core handle
---@field map nightshift.source.Mapping
---@field id integer of nightshift_source
---@field name string of its queue
---@field queue integer id of that
---@field texts table<string, string> see text.lua
---@field backend nightshift.Backend the handle's, of its jobs
---@field touched fun(job: nightshift.Job) says of a job's row that it is still at work
---@field served string|nil names of handlers, as JSON; null: of all rows. Rows of other names are not taken in
---@field log fun(event: string, row: integer, message: string?)
local source = {}
local methods = options.methods({}, "t")
local meta = { __index = methods, __name = "nightshift.source" }

local function live(self, verb)
  options.own(self, meta, "t", verb)
  return (options.live(self.handle, verb))
end

-- ------------------------------------------------------------------ the verbs

local CLAIM = { wait = options.duration }
local EVERY = 1 -- seconds between looks

local AHEAD, MOST = 50, 1000 -- rows that are taken in together: per row that is claimed, and in all
local SOON = 1               -- seconds in which they are to be used up

--- Takes rows in, more than are claimed where they are used up soon; the rest waits for the next
-- claim, of any program. False: there are none.
local function take_ahead(self, limit)
  local now, most = core.clock(), math.max(limit, math.min(limit * AHEAD, MOST))
  local n = now - self.took_at < SOON and self.ahead * 2 or self.ahead // 2
  self.ahead, self.took_at = math.max(limit, math.min(n, most)), now
  local taken = work.take(self, self.ahead)
  if #taken > 0 then self.taken = taken end
  return #taken > 0
end

--- Gives back jobs of holders that have died. False: none has.
local function from_the_dead(self)
  if core.clock() < self.look_at then return false end
  self.look_at = core.clock() + EVERY
  return must(self.handle:look(0)).jobs > 0
end

--- Claims ready jobs, and after that takes in rows.
local function claim_now(self, limit)
  work.turn(self)
  local claimed = must(self.handle:claim(self.name, limit, 0, 0))
  if #claimed > 0 then return claimed end
  work.pay(self)
  if not (take_ahead(self, limit) or from_the_dead(self)) then return claimed end
  return (must(self.handle:claim(self.name, limit, 0, 0)))
end

--- The usable jobs of a claim. The handle knows the tables with rows of its own: see
-- source.leave.
local function usable(self, claimed)
  for id, job in pairs(self.held) do
    if job._settled then self.held[id] = nil end
  end
  local jobs = queue.usable(claimed, self.backend)
  for _, job in ipairs(jobs) do
    self.held[job.id] = job.row and job or nil
    job._touched = job.row and self.touched
  end
  self.sources[self] = (next(self.held) or next(self.taken)) and true or nil
  return jobs
end

local claim = caught(function(self, verb, limit, opts)
  local handle = live(self, verb)
  local given = must(options.read(verb, opts, CLAIM))
  steps.outside(self, "rows of an adopted table cannot be claimed")
  local stop = core.clock() + (given.wait or 0) / 1000000
  self.refusal = false
  while true do
    local claimed = claim_now(self, limit)
    local left = stop - core.clock()
    if #claimed == 0 and left <= 0 and self.refusal then fail("SQL", "%s", self.refusal) end
    if #claimed == 0 and left > 0 then
      claimed = must(handle:claim(self.name, limit, math.min(left, EVERY) * 1000000 // 1 | 0, 0))
    end
    local jobs = usable(self, claimed)
    if #jobs > 0 or left <= 0 and #claimed == 0 then return jobs end
  end
end)

queue.add_claims(methods, live, claim, "rows")

--- Makes a verb of a function of the table and its argument, which are options where `checks` are
-- given; library/nightshift.lua has the types of all.
local function verb(name, fn, checks)
  methods[name] = caught(function(self, given)
    live(self, name)
    if checks then given = must(options.read(name, given, checks)) end
    return (fn(self, given))
  end)
end

local SURE = 2000000 -- µs that it may take to be sure that a holder is dead

--- Gives back jobs of dead holders and rows that other programs have had for too long. Cancels
-- jobs with rows that were taken or changed, and writes debts; returns how many rows.
verb("rescue", function(self)
  local dead, lost = must(self.handle:look(SURE)), work.tend(self, false)
  work.pay(self)
  return dead.jobs + lost + work.overdue(self)
end)

--- Takes in up to n rows, for any worker of the queue; how many.
verb("take", function(self, n) return #work.take(self, n) end)

--- Gives back rows that were taken in and never begun; returns how many.
verb("give_back", function(self)
  local n = work.give_back(self)
  work.pay(self)
  return n
end)

--- Writes all debts to rows; returns how many.
verb("pay", work.pay)

verb("pause", function(self) return (must(self.handle:pause(self.name, true))) end)

verb("resume", function(self) return (must(self.handle:pause(self.name, false))) end)

admin.define(verb)

function meta.__tostring(self) return "nightshift.source: " .. self.map.table end

--- The id of this process.
local function process()
  local file <close> = io.open "/proc/self/stat"
  return file and file:read "n"
end

--- The handle is about to be closed: gives back its unsettled claims, and jobs that it has taken
-- in and that no handle has claimed.
function source.leave(self)
  if self.pid ~= process() then return end -- its parent's
  local entries, ids = {}, self.taken
  for id, job in pairs(self.held) do
    if not job._settled then
      entries[#entries + 1], ids[#ids + 1] = self.backend.entry(job, { kind = "release" }), id
    end
  end
  self.held, self.taken, self.sources[self] = {}, {}, nil
  if #entries > 0 then self.handle:settle_all(entries) end
  if #ids > 0 and try(work.give_back, self, ids) then try(work.pay, self) end
end

-- -------------------------------------------------------------------- opening

--- Writes the row of nightshift_source; in a program it is an action of people.
local function write(handle, map, by_host)
  local function add() return handle:execute("@source_add", map.table, map.given) end
  if by_host then return add() end
  return audit.once(handle, "adopt", "table " .. map.table, add)
end

--- The row of nightshift_source, which is added when it is the first time.
local function register(handle, map, by_host)
  for _ = 1, 2 do
    local row = must(handle:execute("@source_find", map.table))[1]
    if row and options.same(core.decode(row.mapping), core.decode(map.given)) then return row end
    must(write(handle, map, by_host))
  end
  fail("BUSY", "the mapping is changed all the time")
end

local function machine()
  local file <close> = io.open "/proc/sys/kernel/hostname"
  return file and file:read "l" or ""
end

--- Takes a table as a source of jobs.
---@type fun(db: nightshift.Db, given: table, log: (fun(event: string, row: integer, message: string?))?):
--- nightshift.source.Table|nil, string?, string?
source.new = caught(function(db, given, log)
  local handle = db._handle
  local map = must(mapping.check(handle, given))
  local row = register(handle, map, log ~= nil)
  local queue_id = must(handle:queue_id(map.table, true))
  local texts, ends = text.make(map, row.id, queue_id, machine())
  local self = setmetatable({ db = db, table = map.table, handle = handle, backend = db._backend, map = map,
    id = row.id, name = map.table, queue = queue_id, texts = texts, log = log or function() end,
    key = map.parts.id.name, names = {}, refused = {}, unpaid = {}, locked = {}, floor = 1, served = core.null,
    whole_at = 0, paid_to = 0, behind = 0, in_order = not map.parts.priority and not map.newest_first, held = {},
    taken = {}, ahead = 1, took_at = -math.huge, turn_at = 0, look_at = 0, refusal = false, sources = db._sources,
    pid = process() }, meta)
  for _, field in ipairs(map.fields) do self.names[field.name] = core.encode(field.name) end
  -- The statements that surely change a row, so that the number of changes can be checked.
  local shows = mapping.shows_claims(map)
  self.marks = shows
  self.changes = { done = true, open = shows, dead = map.states.failed ~= nil }
  function self.touched(claimed) try(work.renew, self, ("[%d,%d]"):format(claimed.row, claimed.id)) end
  must(handle:serve(self.id, { hold = texts.next_hold, lost = texts.lost, lives = texts.lives, done = texts.done,
    dead = texts.dead, shows_dead = self.changes.dead, ends = ends }))
  return self
end)

return source
