--- Programs that specs run beside them: programs.lua NAME ARGUMENT…

local core = require "nightshift.core"
local journal = require "spec.support.proc".journal
local nightshift = require "nightshift"
local nst = require "nst"

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
  local function settle(job)
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
        local verdict, give = settle(job)
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

programs[arg[1]](table.unpack(arg, 2))
