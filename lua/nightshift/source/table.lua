--- An adopted table in a program: its rows are taken in as jobs of a queue of its name. A
-- verdict and its row are one commit: the core writes both (src/core/source/pay.c).

local admin = require "nightshift.source.admin"
local core = require "nightshift.core"
local mapping = require "nightshift.source.mapping"
local move = require "nightshift.source.move"
local options = require "nightshift.options"
local pay = require "nightshift.source.pay"
local queue = require "nightshift.queue"
local take = require "nightshift.source.take"
local tend = require "nightshift.source.tend"
local text = require "nightshift.source.text"

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
  local taken, message, code = take.rows(self, self.ahead)
  if not taken then return nil, message, code end
  if #taken > 0 then self.taken = taken end
  return #taken > 0
end

--- Nothing is there, unless holders have died. False: none has.
local function from_the_dead(self)
  if core.clock() < self.look_at then return false end
  self.look_at = core.clock() + EVERY
  local dead, message, code = self.handle:look(0)
  if not dead then return nil, message, code end
  return dead.jobs > 0
end

--- Claims ready jobs, and after that takes in rows.
local function claim_now(self, limit)
  local claimed, message, code = tend.turn(self)
  if claimed then claimed, message, code = self.handle:claim(self.name, limit, 0, 0) end
  if not claimed or #claimed > 0 then return claimed, message, code end
  local taken
  taken, message, code = pay.all(self)
  if taken then taken, message, code = take_ahead(self, limit) end
  if taken == false then taken, message, code = from_the_dead(self) end
  if taken == nil then return nil, message, code end
  if not taken then return {} end
  claimed, message, code = self.handle:claim(self.name, limit, 0, 0)
  return claimed, message, code
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

local function claim(self, verb, limit, opts)
  local handle = live(self, verb)
  local given, message, code = options.read(verb, opts, CLAIM)
  if not given then return nil, message, code end
  if handle:in_transaction() then
    return nil, "rows of an adopted table cannot be claimed inside a transaction, which nobody sees yet", "STATE"
  end
  local stop = core.clock() + (given.wait or 0) / 1000000
  self.refusal = false
  while true do
    local claimed
    claimed, message, code = claim_now(self, limit)
    if not claimed then return nil, message, code end
    local left = stop - core.clock()
    if #claimed == 0 then
      if left <= 0 and self.refusal then return nil, self.refusal, "SQL" end
      if left <= 0 then return {} end
      claimed, message, code = handle:claim(self.name, limit, math.min(left, EVERY) * 1000000 // 1 | 0, 0)
      if not claimed then return nil, message, code end
    end
    local jobs = usable(self, claimed)
    if #jobs > 0 then return jobs end
  end
end

queue.add_claims(methods, live, claim, "rows")

local SURE = 2000000 -- µs that it may take to be sure that a holder is dead

--- Gives back jobs of dead holders and rows that other programs have had for too long. Cancels
-- jobs with rows that were taken or changed, and writes debts; returns how many rows.
---@return integer|nil
---@return string? message
---@return string? code
function methods:rescue()
  local handle = live(self, "rescue")
  local dead, message, code = handle:look(SURE)
  local lost, paid, back
  if dead then lost, message, code = tend.lost(self) end
  if lost then paid, message, code = pay.all(self) end
  if paid then back, message, code = tend.overdue(self) end
  if not back then return nil, message, code end
  return dead.jobs + lost + back
end

--- Takes in up to n rows, for any worker of the queue; how many.
---@param n integer
function methods:take(n)
  live(self, "take")
  local taken, message, code = take.rows(self, n)
  if not taken then return nil, message, code end
  return #taken
end

--- Gives back rows that were taken in and never begun; returns how many.
function methods:give_back()
  live(self, "give_back")
  local n, message, code = tend.give_back(self)
  if not n then return nil, message, code end
  local paid
  paid, message, code = pay.all(self)
  if not paid then return nil, message, code end
  return n
end

--- Writes all debts to rows; returns how many.
function methods:pay()
  live(self, "pay")
  return pay.all(self)
end

function methods:pause() return live(self, "pause"):pause(self.name, true) end

function methods:resume() return live(self, "resume"):pause(self.name, false) end

admin.define(methods, live)
move.define(methods, live)

function meta.__tostring(self) return "nightshift.source: " .. self.map.table end

--- The id of this process.
local function process()
  local file <close> = io.open "/proc/self/stat"
  return file and file:read "n"
end

--- The handle is about to be closed: gives back its unsettled claims, and jobs that it has taken
-- in and that no handle has claimed.
---@param self nightshift.source.Table
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
  if #ids > 0 and tend.give_back(self, ids) then pay.all(self) end
end

-- -------------------------------------------------------------------- opening

--- The row of nightshift_source, which is added when it is the first time.
local function register(handle, map)
  for _ = 1, 2 do
    local rows, message, code = handle:execute("@source_find", map.table)
    if not rows then return nil, message, code end
    if rows[1] and rows[1].mapping == map.given then return rows[1] end
    local ok
    ok, message, code = handle:execute("@source_add", map.table, map.given)
    if not ok then return nil, message, code end
  end
  return nil, "the mapping is changed all the time", "BUSY"
end

local function machine()
  local file <close> = io.open "/proc/sys/kernel/hostname"
  return file and file:read "l" or ""
end

--- Takes a table as a source of jobs.
---@param db nightshift.Db
---@param given table the mapping
---@param log (fun(event: string, row: integer, message: string?))?
---@return nightshift.source.Table|nil
---@return string? message
---@return string? code
function source.new(db, given, log)
  local handle, row, queue_id = db._handle, nil, nil
  local map, message, code = mapping.check(handle, given)
  if map then row, message, code = register(handle, map) end
  if row then queue_id, message, code = handle:queue_id(map.table, true) end
  if not queue_id then return nil, message, code end
  local texts, ends = text.make(map, row.id, queue_id, machine())
  local self = setmetatable({ db = db, table = map.table, handle = handle, backend = db._backend, map = map,
    id = row.id, name = map.table, queue = queue_id, texts = texts, log = log or function() end,
    key = map.parts.id.name, names = {}, refused = {}, unpaid = {}, locked = {}, floor = 1, served = core.null,
    whole_at = 0, paid_to = 0, in_order = not map.parts.priority and not map.newest_first, held = {}, taken = {},
    ahead = 1, took_at = -math.huge, turn_at = 0, look_at = 0, refusal = false, sources = db._sources,
    pid = process() }, meta)
  for _, field in ipairs(map.fields) do self.names[field.name] = core.encode(field.name) end
  -- The statements that surely change a row, so that the number of changes can be checked.
  local shows = map.states.processing ~= nil or map.parts.claimed_by ~= nil
  self.marks = shows
  self.changes = { done = true, open = shows, dead = map.states.failed ~= nil }
  function self.touched(claimed) tend.renew_one(self, ("[%d,%d]"):format(claimed.row, claimed.id)) end
  local ok
  ok, message, code = handle:serve(self.id, { hold = texts.hold, lost = texts.lost, lives = texts.lives,
    done = texts.done, dead = texts.dead, shows_dead = self.changes.dead, ends = ends })
  if not ok then return nil, message, code end
  return self
end

return source
