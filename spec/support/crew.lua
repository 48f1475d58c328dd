--- Crews for specs: processes of their own that work on an adopted table, each with
-- a connection of its own. They run the handlers of a script, as a host does, and may
-- be killed at any time.
--
--     local c = crew.start(4, url, map, script, { block = 10 })
--     c:kill(1)
--     c:wait()
--
-- And programs that specs run beside them: crew.lua NAME ARGUMENT…

local core = require "nightshift.core"
local journal = require "spec.support.proc".journal
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
    local jobs = assert(t:claim_many(block, { wait = options.wait or 0.5 }))
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
---@param options {block: integer?, wait: number?, gate: string?}? rows of a claim; how long it waits;
--- the path of a FIFO before which all wait
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

-- ------------------------------------------------------------------ programs

local programs = {}

-- Pushes numbers until a file is there, and appends each id with its number to another one. A push
-- that is in doubt is repeated with its id.
function programs.pusher(url, path, stop)
  local handle = assert(nightshift.open(url))
  local file = assert(io.open(path, "ab"))
  file:setvbuf "no"
  local n, again = 0, nil
  while not io.open(stop) do
    local id, why, code, doubt = handle:queue "q":push("a", n, { id = again })
    if id then
      file:write(id .. " " .. n .. "\n")
      n, again = n + 1, nil
      nst.sleep(0.003) -- so that hosts keep up
    else
      assert(code == "GONE" or code == "BUSY", why)
      again = doubt or again
      nst.sleep(0.05)
    end
  end
end

-- One claimer with a connection of its own. It claims one job at a time until the queue stays
-- empty, and appends each id to a file.
function programs.claimer(url, path)
  local db = assert(nightshift.open(url))
  local q = db:queue "load"
  local file = assert(io.open(path, "ab"))
  file:setvbuf "line"
  io.write "ready\n"
  io.flush()
  io.read() -- the start
  while true do
    local job, message = q:claim()
    if not job then
      assert(not message, message)
      break
    end
    file:write(job.id, "\n")
    local ok, why, reason = job:ack()
    assert(ok, tostring(why) .. " " .. tostring(reason))
  end
  local counters = db:stats().counters or {}
  print(("done deadlocks=%s"):format(counters.deadlocks))
  db:close()
end

-- The classic mistake, as a negative control: SELECT … SKIP LOCKED and the UPDATE each
-- in its own transaction.
function programs.naive(url, path)
  local db = assert(core.open { url = url, no_schema = true })
  local file = assert(io.open(path, "ab"))
  file:setvbuf "line"
  io.write "ready\n"
  io.flush()
  io.read()
  while true do
    local rows = assert(db:execute "SELECT id FROM naive WHERE state = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED")
    if not rows[1] then break end
    assert(db:execute("UPDATE naive SET state = 1 WHERE id = ?", rows[1].id))
    file:write(rows[1].id, "\n")
  end
  print "done"
end

-- Pushes keyed jobs again and again, keeping or replacing those that are there: alone, with other
-- sessions, and in transactions. Prints "ready", then each id that a push gave, then "done".
function programs.keeper(url, n)
  local db = assert(nightshift.open(url))
  local q = db:queue "q"

  local function keep(i)
    return { unique = { key = "k" .. i % 3, on_conflict = i % 5 == 0 and "replace" or "keep" } }
  end

  local ways = {
    function(i) return { q:push("one", i, keep(i)) } end,
    function(i) return q:push_many { { "many", i, keep(i) }, { "plain", i }, { "many", i, keep(i + 1) } } end,
    function(i)
      return db:transaction(function(tx)
        local id, message, code = tx:queue("q"):push("tx", i, keep(i))
        if not id then return nil, message, code end
        return { id }
      end)
    end,
  }

  io.write "ready\n"
  for i = 1, tonumber(n) do
    local ids, message, code = ways[i % #ways + 1](i)
    while not ids or not ids[1] do -- a deadlock, or a connection that was killed
      code = code or ids and ids[3]
      assert(code == "BUSY" or code == "GONE", message or ids and ids[2])
      ids, message, code = ways[i % #ways + 1](i)
    end
    io.write(table.concat(ids, "\n"), "\n")
  end
  io.write "done\n"
end

-- Gets in the way of one transaction of another session. A trigger makes that one
-- lock two rows of the table `tangle`, first 2, then 1; we hold 1.
--
-- How:
--   deadlock  as soon as a session waits for us we ask for what they hold. We
--             have changed more rows, so it is their transaction that ends
--   wait      we stay until a session has given up waiting
-- Prints "armed", then "sprung" when we have let go.
function programs.saboteur(url, how)
  local db = assert(nightshift.open(url))
  local watch = assert(nightshift.open(url))

  local function waiter()
    local rows = assert(watch:execute [[SELECT trx_id FROM information_schema.INNODB_TRX t
      JOIN information_schema.PROCESSLIST p ON p.id = t.trx_mysql_thread_id
      WHERE trx_state = 'LOCK WAIT' AND p.db = DATABASE()]])
    return rows[1] and rows[1].trx_id
  end

  -- InnoDB shows the same list again to a session that asks within a tenth of a second.
  local function wait_for(fn)
    local value = fn()
    while not value do
      nst.sleep(0.12)
      value = fn()
    end
    return value
  end

  pcall(db.transaction, db, function(tx)
    assert(tx:execute "INSERT INTO junk SELECT seq FROM seq_1_to_500")
    assert(tx:execute "UPDATE tangle SET n = n + 1 WHERE id = 1")
    io.write "armed\n"
    io.flush()
    local who = wait_for(waiter)
    if how == "deadlock" then
      assert(tx:execute "UPDATE tangle SET n = n + 1 WHERE id = 2")
    else
      wait_for(function() return waiter() ~= who end)
    end
    error "nothing of this is to stay"
  end)
  print "sprung"
end

-- Takes part in a storm of KILL QUERY (spec/core/cut_spec.lua) as `push`, `claim` or `kill`.
-- Ends when the file `stop` is there, the killer when it has killed NUMBER times. Lines:
--
--   pushes  pushed  TIME IDS                  the answer was yes
--   runs    claimed TIME ID RUN | ended TIME ID VERDICT
--   codes   CODE TIME VERB MESSAGE            what was answered instead
function programs.storm(part, url, folder, number)
  math.randomseed(tonumber(number))
  local codes, runs = journal.writer(folder, "codes"), journal.writer(folder, "runs")
  local pushes = journal.writer(folder, "pushes")
  local db

  local function stopping()
    local file = io.open(folder .. "/stop")
    return file and file:close()
  end

  local function told(verb, ok, message, code)
    if not ok and code then codes(code, verb, (message:gsub("%s", "-"))) end
    return ok, message, code
  end

  -- Until it is known what became of it; STALE and the like are the end of it.
  local function insist(verb, fn)
    local ok, _, code
    repeat ok, _, code = told(verb, fn()) until ok or (code ~= "GONE" and code ~= "BUSY")
    return ok, code
  end

  local parts = {}

  local OPTIONS = { max_polls = 5, backoff = 0.05, max_attempts = 5 }

  function parts.push()
    local q = db:queue "q"
    while not stopping() do
      local n = math.random(20)
      local items = {}
      for i = 1, n do items[i] = { "work", i, { delay = i % 7 == 0 and 0.05 or nil, backoff = OPTIONS.backoff } } end
      local ids
      if n == 1 then
        ids = { (told("push", q:push("work", 1, OPTIONS))) }
      else
        ids = told("push_many", q:push_many(items)) or {}
      end
      if #ids > 0 then pushes("pushed", table.concat(ids, ",")) end
      nst.sleep(math.random() * 0.02)
    end
  end

  -- What becomes of a run.
  local function plan(job)
    local what = job.phase == 0 and (job.id * 31 + job.run) % 10 or 9
    if job.run > 3 or what > 3 then
      return "ack", function() return job:ack() end
    elseif what == 0 then
      return "again", function() return job:again(0.02) end
    elseif what == 1 then
      return "fail", function() return job:fail("as planned", { retry_in = 0.02 }) end
    elseif what == 2 and job.payload ~= 0 then
      for _ = 1, 3 do
        if not job:spawn("work", 0) then return "release", function() return job:release() end end
      end
      return "ack", function() return job:ack() end
    end
    return "wait", function() return job:wait { signal = "go" } end
  end

  local function send(id)
    return insist("signal", function() return db:signal(id, 1, "go") end)
  end

  function parts.claim()
    local q = db:queue "q"
    repeat
      local jobs = told("claim", q:claim_many(math.random(12), { wait = 0.1 })) or {}
      for _, job in ipairs(jobs) do runs("claimed", job.id, job.run) end
      for _, job in ipairs(jobs) do
        local verdict, give = plan(job)
        local ok, code = insist(verdict, give)
        runs("ended", job.id, ok and verdict or code)
        if verdict == "wait" then send(job.id) end
      end
    until #jobs == 0 and stopping()
  end

  function parts.kill()
    local n, most = 0, tonumber(number)
    while n < most do
      local list = assert(db:execute [[SELECT id FROM information_schema.processlist
        WHERE db = DATABASE() AND id <> CONNECTION_ID()]])
      for _ = 1, 100 do
        if #list > 0 and db:execute("KILL QUERY " .. list[math.random(#list)].id) then n = n + 1 end
        nst.sleep(math.random() * 0.002)
      end
    end
    runs("killed", n)
  end

  repeat
    db = nightshift.open(url)
  until db
  parts[part]()
  db:close()
end

if (...) == "spec.support.crew" then return crew end
programs[arg[1]](table.unpack(arg, 2))
