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

--- Is there anything left to do, for any worker?
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

--- A server that a crowd wants to talk to at once does not hear all.
local function open(url)
  local db, message, code
  repeat
    db, message, code = nightshift.open(url)
  until db or code ~= "GONE"
  return assert(db, message)
end

--- Works until all is done. With a gate, which is a FIFO, not before it is opened.
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

-- ------------------------------------------------------------------ ledger

-- The file in which workers record the rows that they work on, and its contents. It tells which
-- worker has begun and ended which row, in order.
local ledger = {}
crew.ledger = ledger

--- Lua text for the top of a handler script: begin(id), and done(id) or left(id), which
-- has not done it, append a line.
---@param path string
function ledger.script(path)
  return ([[
  local file, pid
  local function open() -- in the process that works
    local own <close> = assert(io.open "/proc/self/stat")
    file, pid = assert(io.open(%q, "ab")), own:read "n"
    file:setvbuf "no"
  end
  local function write(what, id)
    if not file then open() end
    assert(file:write(("%%s %%d %%d\n"):format(what, id, pid)))
  end
  local function begin(id) write("begin", id) end
  local function done(id) write("done", id) end
  local function left(id) write("left", id) end ]]):format(path)
end

--- Reads it. Raises when two had a row at once: one has begun it before the other was
-- done or killed.
---@param path string
---@param killed table<integer, boolean>? by process id
---@param orphaned table<integer, boolean>? those of a killed host: for a moment they go on with
---what other hosts have taken over, and it is not heard of
---@return table found by row: `begun` and `done`, how often; `first` begin and `last`
-- done, numbers of lines; `running`, the holder. `orphans`: rows that the orphaned have done
function ledger.read(path, killed, orphaned)
  local found, n = { begun = {}, done = {}, first = {}, last = {}, running = {}, orphans = 0 }, 0
  for line in io.lines(path) do
    n = n + 1
    local what, id, pid = line:match "^(%l+) (%d+) (%d+)$"
    id, pid = assert(math.tointeger(tonumber(id)), line), math.tointeger(tonumber(pid))
    if what == "done" and orphaned and orphaned[pid] then found.orphans = found.orphans + 1 end
    local holder = found.running[id]
    local free = not holder or killed and killed[holder]
    local late = orphaned and orphaned[pid] and holder ~= pid and not (what == "begin" and free)
    if what == "begin" and not late then
      assert(free, ("row %d: %d and %d at once"):format(id, holder or 0, pid))
      found.running[id], found.begun[id] = pid, (found.begun[id] or 0) + 1
      found.first[id] = found.first[id] or n
    elseif not late then
      assert(holder == pid, ("row %d is done by %d, but %d has it"):format(id, pid, holder or 0))
      found.running[id] = nil
      if what == "done" then found.done[id], found.last[id] = (found.done[id] or 0) + 1, n end
    end
  end
  return found
end

local counted = {} -- by path: bytes that were read, and lines in them

--- How many lines there are. It only grows, and is asked for often: what is new is read.
---@param path string
function ledger.count(path)
  local known = counted[path] or { at = 0, n = 0 }
  local file <close> = io.open(path, "rb")
  if not file then return 0 end
  if file:seek "end" < known.at then known = { at = 0, n = 0 } end -- another of that name
  file:seek("set", known.at)
  local text = file:read "a"
  for _ in text:gmatch "\n" do known.n = known.n + 1 end
  known.at = known.at + #text
  counted[path] = known
  return known.n
end

return crew
