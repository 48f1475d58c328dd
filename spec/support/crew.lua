--- Crews for specs: processes of their own that work on an adopted table, each with
-- a connection of its own. They run the handlers of a script, as a host does, and may
-- be killed at any time.
--
--     local c = crew.start(4, url, map, script, { block = 10 })
--     c:kill(1)
--     c:wait()

local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local crew = {}
local Crew = {}
Crew.__index = Crew
local crews = {}

--- Is there anything left to do, for anybody?
local function has_ended(db, map)
  local status = map.status
  local left, values = { ("`%s` = ?"):format(status.column) }, { status.open }
  if status.processing ~= nil then
    left[2], values[2] = left[1], status.processing
  end
  local where = "(" .. table.concat(left, " OR ") .. ")"
  if map.attempts and map.max_attempts then
    where, values[#values + 1] = where .. (" AND `%s` < ?"):format(map.attempts), map.max_attempts
  end
  local rows = assert(db:execute(("SELECT 1 FROM `%s` WHERE %s LIMIT 1"):format(map.table, where),
    table.unpack(values)))
  return #rows == 0
end

local function settle(verb, ...)
  local ended, message, code = verb(...)
  assert(ended or code == "STALE", message) -- it was settled by the handler, or is lost
end

local function run(handler, job)
  local ok, result = pcall(handler, job)
  if ok then settle(job.ack, job) else settle(job.fail, job, result, { retry_in = 0 }) end
end

--- A server that a crowd wants to talk to at once does not hear everybody.
local function open(url)
  local db, message, code
  repeat
    db, message, code = nightshift.open(url)
  until db or code ~= "GONE"
  return assert(db, message)
end

--- Works until all is done. With a gate, which is a FIFO, not before somebody opens it.
local function work(url, map, handler, options)
  local db = open(url)
  local t = assert(db:adopt(map))
  local block = options.block or 1
  if options.gate then
    local ready <close> = assert(io.open(options.gate .. ".ready", "ab"))
    ready:write "ready\n"
    ready:close()
    assert(io.open(options.gate, "r")):close()
  end
  repeat
    local jobs = assert(t:claim_many(block, { wait = 0.5 }))
    for _, job in ipairs(jobs) do run(handler, job) end
  until #jobs == 0 and has_ended(db, map)
  db:close()
end

--- Forks `n` processes that each call a function; it gets its number.
---@param n integer
---@param fn fun(i: integer)
function crew.fork(n, fn)
  local self = setmetatable({ pids = {}, ends = {} }, Crew)
  for i = 1, n do
    self.pids[i] = assert(nst.fork(function() fn(i) end))
  end
  crews[#crews + 1] = self
  return self
end

--- The same for an adopted table. The script returns the handler.
---@param n integer
---@param url string
---@param map table
---@param script string Lua
---@param options {block: integer?, gate: string?}? rows of a claim; the path of a FIFO before which all wait
function crew.start(n, url, map, script, options)
  local handler = assert(load(script, "=handler"))()
  return crew.fork(n, function() work(url, map, handler, options or {}) end)
end

function Crew:kill(i)
  assert(nst.kill(self.pids[i], "KILL"))
  self:wait_one(i, 10)
  return self.pids[i]
end

--- Has it?
---@param i integer
---@return boolean
function Crew:has_ended(i)
  local how, number
  if not self.ends[i] then how, number = nst.reap(self.pids[i]) end
  if how then self.ends[i] = how == "exit" and number or ("signal " .. number) end
  return self.ends[i] ~= nil
end

function Crew:wait_one(i, timeout)
  local stop = nst.clock() + proc.limit(timeout)
  while not self:has_ended(i) do
    if nst.clock() > stop then
      error(("process %d of the crew does not end"):format(i), 3)
    else
      nst.sleep(0.005)
    end
  end
  return self.ends[i]
end

--- Waits for all; those that were not killed have to end well.
---@param timeout number? seconds; 60
function Crew:wait(timeout)
  for i in ipairs(self.pids) do
    local how = self:wait_one(i, timeout or 60)
    assert(how == 0 or how == "signal 9", ("process %d of the crew: %s"):format(i, how))
  end
end

--- Ends what a test has left: after_each(crew.clean).
function crew.clean()
  for _, self in ipairs(crews) do
    for i in ipairs(self.pids) do
      if not self.ends[i] then self:kill(i) end
    end
  end
  crews = {}
end

return crew
