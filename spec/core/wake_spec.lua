-- Waiting for jobs without polling: no wake-up is lost, and sleeping costs nothing. The cost of a
-- push and its ring; no ring is lost. Waits for the ends of jobs, which are rung. Waiting for a
-- server that goes silent, or is lost: how long, and the fate of its old session.

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy
local lab = require "spec.support.db".lab

describe("a ring #long", function()
  -- Two rings each: 10,000 rings with NIGHTSHIFT_LONG.
  local ROUNDS = math.ceil((os.getenv "NIGHTSHIFT_LONG" and 5000 or 250) / proc.limit(1))

  -- Answers each job of "there" by one of "back", at a moment of its own.
  local ANSWERER = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  local there, back = db:queue "there", db:queue "back"
  print "waiting"
  io.flush()
  for job in there:jobs{ wait = 30 } do
    assert(job:ack())
    local until_ = nightshift.clock() + math.random() * 0.001
    while nightshift.clock() < until_ do end -- finer than any sleep
    assert(back:push("next", 1))
    if job.name == "last" then break end
  end]]

  -- A waiting claim, which says when it has got its job.
  local WAITER = [[
  local db = assert(require "nightshift".open(%q))
  print "waiting"
  io.flush()
  assert(assert(db:queue "mail":claim{ wait = 30 }):ack())
  print "woken"]]

  local SLEEPS = [[SELECT COUNT(*) AS n FROM information_schema.processlist
  WHERE db = DATABASE() AND info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state LIKE 'User %']]

  local function number(handle, sql) return math.tointeger(tonumber(assert(handle:execute(sql))[1].n)) end

  -- How often the caller of a verb waits for the server, with each reply DELAY later.
  -- The least of some: a machine may be busy.
  local DELAY = math.ceil(proc.limit(0.2) * 1000)
  local function waits(p, least_of_all, verb, prepare)
    local least = math.huge
    for i = 1, 6 do
      if prepare then prepare() end
      p:tell("delay " .. DELAY)
      local start = nightshift.clock()
      assert(verb(i))
      local took = nightshift.clock() - start
      p:tell "delay 0"
      least = math.min(least, took * 1000 // DELAY)
      if least <= least_of_all then break end
    end
    return least
  end

  local url, handle

  with_database(function(opened, _, at) handle, url = opened, at end)

  local function sleeping()
    local waiter = proc.start { proc.lua, "-e", WAITER:format(url) }
    waiter:wait_line "waiting"
    eventually(function() return number(handle, SLEEPS) == 1 end)
    return waiter
  end

  it("at any moment, from any kind of push, is not lost: thousands of them", function()
    assert(handle:execute "CREATE TABLE ordered (id INT PRIMARY KEY AUTO_INCREMENT)")
    assert(handle:execute [[CREATE TRIGGER ordered_push AFTER INSERT ON ordered FOR EACH ROW
      CALL nightshift_push('there', 'next', '1', '')]])
    local there, back = handle:queue "there", handle:queue "back"
    local ways = {
      function() assert(there:push("next", 1)) end,
      function() assert(there:push_many { { "next", 1 } }) end,
      function() assert(handle:transaction(function(tx) return assert(tx:queue("there"):push("next", 1)) end)) end,
      function() -- from SQL, the ring after the commit
        assert(handle:execute "INSERT INTO ordered VALUES ()")
        assert(handle:execute "CALL nightshift_ring()")
      end,
      function() -- and before it, as from a trigger
        assert(handle:transaction(function(tx)
          assert(tx:execute "INSERT INTO ordered VALUES ()")
          assert(tx:execute "CALL nightshift_ring()")
          return true
        end))
      end,
    }
    assert(there:push("next", 1))
    local answerer = proc.start { proc.lua, "-e", ANSWERER:format(url) }
    answerer:wait_line "waiting"
    assert(assert(back:claim { wait = 20 }):ack())
    local worst = 0
    for i = 1, ROUNDS do
      local pushed = nightshift.clock()
      ways[i % #ways + 1]()
      local job = assert(back:claim { wait = 20 })
      worst = math.max(worst, nightshift.clock() - pushed)
      assert(job:ack())
      local until_ = nightshift.clock() + math.random() * 0.001
      while nightshift.clock() < until_ do end
    end
    assert(there:push("last", 1))
    assert.is_true(worst < proc.limit(9), ("one came after %.3f s"):format(worst)) -- lost: 10 s
  end)

  it("takes no time of a push that nobody waits for, and none of one that somebody does", function()
    local p = proxy.start(db.shared())
    local through <close> = assert(nightshift.open(p:url(url)))
    local q = through:queue "mail"
    local items = {}
    for i = 1, 20 do items[i] = { "many", i } end
    local function one() return q:push("mail", 1) end
    local function many() return q:push_many(items) end
    assert(one() and many()) -- now everything is prepared
    assert.equal(1, waits(p, 1, one))
    assert.equal(1, waits(p, 1, function(i) return q:push("mail", 1, { unique = "a" .. i, delay = 60 }) end))
    assert.equal(3, waits(p, 3, many)) -- and now and then one for ids
    assert.equal(1, waits(p, 1, one, function()
      while #assert(handle:queue("mail"):claim_many(1000)) > 0 do end
      sleeping()
    end))
  end)

  it("is sent once for many jobs, and kills nothing when nobody sleeps", function()
    local q = handle:queue "mail"
    local items = {}
    for i = 1, 500 do items[i] = { "many", i } end
    local function kills(verb)
      local sql = "SELECT VARIABLE_VALUE AS n FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME = 'COM_KILL'"
      local before = number(handle, sql)
      assert(verb())
      return number(handle, sql) - before
    end
    assert.equal(0, kills(function() return q:push_many(items) end))
    assert.equal(0, kills(function() return q:push("mail", 1) end))
    while #assert(q:claim_many(1000)) > 0 do end
    local waiter = sleeping()
    assert.equal(1, kills(function() return q:push_many(items) end))
    waiter:wait_line "woken"
    while #assert(q:claim_many(1000)) > 0 do end
    waiter = sleeping()
    assert.equal(1, kills(function() return q:push("mail", 1) end))
    waiter:wait_line "woken"
  end)

  it("that may not be asked for is made up for by a look every second or so", function()
    local name = url:match "/([^/?]+)%?"
    local _, user = db.user(url, "")
    local _, text = proc.nightshift { "doctor", "--grants", "worker", "--user", user .. "@localhost" }
    db.sql(text, name)
    db.sql(("REVOKE EXECUTE ON PROCEDURE nightshift_listen FROM %s@localhost"):format(user), name)
    local worker = db.url(name, user, "Pass-word_1")
    local _, out = proc.nightshift({ "doctor" }, worker)
    assert.is_truthy(out:find("nightshift_listen", 1, true), out)
    local h = host.start(worker, "return { a = function() end }")
    for _ = 1, 3 do
      eventually(function() return number(handle, SLEEPS) == 1 end)
      local id = assert(handle:queue("mail"):push("a", 1))
      eventually(function() return assert(handle:job(id)).state == "done" end, 9) -- unrung: 10 s
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A host with a user that may not call nightshift_listen, or nightshift_ring, started without a
-- word. It then learnt of each push up to ten seconds late.
describe("a host that cannot be rung, or cannot ring #long", function()
  local url, name, worker, user

  before_each(function()
    url, name = db.fresh()
    local _
    _, user = db.user(url, "")
    local _, text = proc.nightshift { "doctor", "--grants", "worker", "--user", user .. "@localhost" }
    db.sql(text, name)
    worker = db.url(name, user, "Pass-word_1")
  end)

  local function warnings()
    local status, log = host.drain(worker, "return { a = function() end }")
    assert.equal(0, status, log)
    local lines = {}
    for line in log:gmatch "[^\n]+" do
      if line:find("event=host.unrung ", 1, true) then lines[#lines + 1] = line end
    end
    return lines
  end

  local function executed()
    return tonumber((db.sql "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'":match "%d+$"))
  end

  it("says so in one line, with what to grant", function()
    assert.same({}, warnings())
    for _, procedure in ipairs { "nightshift_listen", "nightshift_ring" } do
      db.sql(("REVOKE EXECUTE ON PROCEDURE %s FROM %s@localhost"):format(procedure, user), name)
    end
    local lines = warnings()
    assert.equal(1, #lines)
    assert.is_truthy(lines[1]:find("nightshift_listen, nightshift_ring", 1, true), lines[1])
    assert.is_truthy(lines[1]:find("denied", 1, true), lines[1])
    assert.is_truthy(lines[1]:find("doctor --grants worker", 1, true), lines[1])
  end)

  it("says so when they are not there, and finds its work all the same", function()
    db.sql(("GRANT EXECUTE ON `%s`.* TO %s@localhost; DROP PROCEDURE nightshift_listen"):format(name, user), name)
    local lines = warnings()
    assert.equal(1, #lines)
    assert.is_truthy(lines[1]:find("nightshift migrate", 1, true), lines[1])
    local h = host.start(worker, "return { a = function() end }")
    local handle <close> = assert(nightshift.open(url))
    eventually(function() -- behind what follows a start
      local before = executed()
      nst.sleep(3)
      return executed() - before < 16
    end, 30)
    local id = assert(handle:queue("q"):push("a", 1))
    eventually(function() return assert(handle:job(id)).state == "done" end, 15)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- All SLEEP()s of a server share a mutex. A KILL QUERY that found it taken waited for two
-- seconds, and the sleeper with it. So did a push with a ring that ended the sleep of a host,
-- when an application slept somewhere.
describe("a ring #long", function()
  local SLEEPER = [[
  local db = assert(require "nightshift".open(%q))
  print "sleeping"
  io.flush()
  while true do assert(db:execute "DO SLEEP(0.0001)") end]]

  it("is not held up by others who sleep in the server", function()
    local url = db.fresh()
    local work = host.start(url, 'return { job = function() return require "nightshift".clock() end }')
    local sleepers = {}
    for i = 1, 4 do
      sleepers[i] = proc.start { proc.lua, "-e", SLEEPER:format(url) }
      sleepers[i]:wait_line "sleeping"
    end
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local slow = 0
    for i = 1, 20 do
      local start = nightshift.clock()
      local id = assert(q:push("job", i))
      slow = slow + (nightshift.clock() - start < 1.5 and 0 or 1)
      eventually(function() return assert(handle:job(id)).state == "done" end)
      slow = slow + (handle:job(id).result - start < 1.5 and 0 or 1)
    end
    assert.is_true(slow <= 2, slow .. " pushes were held up, or jobs came late") -- a machine may be busy
    for _, sleeper in ipairs(sleepers) do
      sleeper:signal "KILL"
      sleeper:wait()
    end
    work:signal "TERM"
    assert.equal(0, (work:wait()))
  end)
end)

-- A ring from within a transaction, as from a trigger, that met a listener between two of its
-- statements ended neither. The look that followed could not see the job yet. It slept on: 4 to
-- 10 s.
describe("between two statements: #long", function()
  local handle, q, url, name

  with_database(function(...) handle, q, url, name = ... end)

  local WAITER = [[
  local db = assert(require "nightshift".open(%q))
  print "waiting"
  io.flush()
  assert(assert(db:queue "q":claim{ wait = 60 }):ack())
  print "woken"]]

  local function count(from) return tonumber(db.sql("SELECT COUNT(*) FROM " .. from, name)) end
  local function asleep()
    return count "information_schema.processlist WHERE db = DATABASE() AND state = 'User lock'" == 1
  end

  it("a ring that comes before its commit, between two statements of a listener, is found soon", function()
    assert(q:push "first")
    assert(q:claim():ack()) -- the queue has its lanes
    local slow = proxy.start(db.shared())
    local waiter = proc.start { proc.lua, "-e", WAITER:format(slow:url(url)) }
    waiter:wait_line "waiting"
    eventually(asleep)
    slow:tell "delay 800" -- each reply, from now on: also that to its being entered again
    handle:execute "CALL nightshift_ring()"
    eventually(function() return db.sleepers(name) == 0 end)
    eventually(function() return db.sleepers(name) == 1 end)
    assert(handle:transaction(function(tx)
      assert(tx:execute "CALL nightshift_push('q', 'second', '1', '')")
      assert(tx:execute "CALL nightshift_ring()")
      slow:tell "delay 0"
      eventually(asleep)
      return true
    end))
    waiter:wait_line("woken", 9) -- not found: 10 s
  end)
end)

-- A host in a database without queues listened for no queue, and for no new one either. The
-- greatest id that it knew was 0, which stood for "new ones do not matter". A first job with a
-- ring that came before the host had put its name down started ten seconds late.
describe("a host that has seen no queue yet #long", function()
  local SLEEPER = [[SELECT time_ms / 1000 AS age FROM information_schema.processlist
  WHERE db = DATABASE() AND info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state = 'User lock']]

  local handle, url
  with_database(function(h, _, u) handle, url = h, u end)

  it("finds the first job without a ring", function()
    local h = host.start(url, "return { job = function() end }")
    eventually(function()
      return handle:execute("SELECT MAX(workers) AS n FROM nightshift_holder")[1].n == 2
    end)
    eventually(function() return handle:execute(SLEEPER)[1] end)
    local rung = nst.clock()
    assert(handle:execute "CALL nightshift_ring()")
    eventually(function() -- so that it looks often
      local sleeper = handle:execute(SLEEPER)[1]
      return sleeper and tonumber(sleeper.age) < nst.clock() - rung
    end)
    assert(handle:execute "CALL nightshift_push('q', 'job', 'null', '{}')")
    eventually(function() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished")[1].n == 1 end, 8)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A queue was resumed after its host, or its consumer, had read that it is paused, and before
-- its listener slept. No sleeper was rung, and the listener looked into other queues only. So
-- the jobs began up to ten seconds late.
describe("a queue that is resumed before its listener sleeps #long", function()
  local CONSUMER = [[
  local db = assert(require "nightshift".open(%q))
  for job in db:queue "late":jobs { wait = 60 } do
    assert(job:ack())
    break
  end]]

  --- Has a listener that puts its name down take two seconds for it.
  local function slow_down(handle)
    local row = assert(handle:execute "SHOW CREATE PROCEDURE nightshift_listen")[1]
    local slow, n = row["Create Procedure"]:gsub("^CREATE (.-)IF p_queues IS NULL THEN",
      "CREATE OR REPLACE %1DO SLEEP(IF(p_queues IS NULL, 0, 2)); IF p_queues IS NULL THEN", 1)
    assert.equal(1, n)
    assert(handle:execute(slow))
  end

  local url, handle

  before_each(function()
    url = db.fresh()
    handle = assert(nightshift.open(url))
    slow_down(handle)
    assert(handle:queue "late":push "noop")
    assert(handle:queue "late":pause())
  end)

  after_each(function() handle:close() end)

  local function count(what) return assert(handle:execute("SELECT COUNT(*) AS n FROM " .. what))[1].n end

  -- Seconds from its resume to the end of its job.
  local function resume()
    eventually(function()
      return count "information_schema.processlist WHERE db = DATABASE() AND state = 'User sleep'" > 0
    end)
    assert(handle:queue "late":resume())
    local resumed = nightshift.clock()
    eventually(function() return count "nightshift_job" == 0 end)
    return nightshift.clock() - resumed
  end

  it("is served at once by its host", function()
    local h = host.spawn(url, "return { noop = function() end }")
    local late = resume()
    h:signal "KILL"
    assert.is_true(late < proc.limit(9), ("%.1f s late"):format(late))
  end)

  it("is served at once by its consumer", function()
    local p = proc.start { proc.lua, "-e", CONSUMER:format(url) }
    local late = resume()
    p:signal "KILL"
    assert.is_true(late < proc.limit(9), ("%.1f s late"):format(late))
  end)
end)

-- Waiting for the ends of jobs, without polling: db:wait and db:wait_all. A wait that is not rung
-- looks again after ten seconds, so what takes less has been rung.
describe("a wait for the end of a job #long", function()
  local RUNG = 6 -- seconds

  local handle, q, url, name

  with_database(function(...) handle, q, url, name = ... end)
  after_each(crew.clean)

  local function edges() return db.sql("SELECT COUNT(*) FROM nightshift_edge WHERE job_id < 0", name) end

  --- Has `fn` called once `n` waits sleep; the waits run in processes, and write their answers.
  local function waiting(n, ids, wait, fn)
    db.sql("CREATE TABLE IF NOT EXISTS answer (text TEXT, ended DOUBLE)", name)
    local c = crew.fork(n, function(i)
      local own <close> = eventually(function() return nightshift.open(url) end)
      local id = ids[(i - 1) % #ids + 1]
      local outcome, result, why = own:wait(id, wait)
      assert(own:execute("INSERT INTO answer VALUES (?, ?)",
        ("%s %s %s"):format(outcome, result and nightshift.encode(result), why), nightshift.clock()))
    end)
    eventually(function()
      return edges() == tostring(n) and tonumber(db.sql(([[SELECT COUNT(*) FROM information_schema.processlist
        WHERE state = 'User lock' AND db = '%s']]):format(name), name)) >= n
    end)
    local asleep = nightshift.clock()
    fn(c)
    c:wait()
    assert.equal("0", edges())
    local text, last = db.sql("SELECT GROUP_CONCAT(DISTINCT text), MAX(ended) FROM answer", name):match "(.*)\t(.*)"
    db.sql("DELETE FROM answer", name)
    assert.is_true(tonumber(last) - asleep < RUNG, tonumber(last) - asleep)
    return text
  end

  it("gives the outcome and the result at once when it has ended", function()
    local id = assert(q:push("a", 1))
    assert(q:claim():ack { sum = 7 })
    assert.same({ "done", { sum = 7 } }, { handle:wait(id, 0) })
    id = assert(q:push("a", 1))
    assert(q:claim():discard "broken")
    assert.same({ "dead", nil, "broken" }, { handle:wait(id, 5) })
    id = assert(q:push("a", 1))
    assert(handle:cancel(id, { reason = "not needed" }))
    assert.same({ "cancelled", nil, "not needed" }, { handle:wait(id, 5) })
    local outcome, message, code = handle:wait(id + 50, 5)
    assert.same({ nil, "NOT_FOUND" }, { outcome, code })
    assert.matches("no job " .. id + 50, message)
  end)

  it("says BUSY when the time is up, and leaves nothing behind", function()
    local id, other = assert(q:push("a", 1)), assert(q:push("b", 1))
    local outcome, message, code = handle:wait(id, 0.05)
    assert.same({ nil, "BUSY" }, { outcome, code })
    assert.matches(("job %d has not ended within 0%%.05 s"):format(id), message)
    assert(q:claim():ack())
    outcome, message, code = handle:wait_all({ id, other }, 0.05)
    assert.same({ nil, "BUSY" }, { outcome, code })
    assert.matches(("1 of 2 jobs have not ended within 0%%.05 s, job %d among them"):format(other), message)
    assert.equal("0", edges())
    handle:transaction(function() assert.equal("STATE", select(3, handle:wait(other, 1))) end)
    assert.has_error(function() handle:wait("x", 1) end)
    assert.has_error(function() handle:wait_all({ id, nil, id }, 1) end)
    assert.equal("INVALID", select(3, handle:wait(id, "soon")))
  end)

  it("is woken by an end of any kind", function()
    local kinds = {
      ["done {\"n\":1} nil"] = function() return q:push("a", 1), function() assert(q:claim():ack { n = 1 }) end end,
      ["dead nil no"] = function()
        return q:push("a", 1, { max_attempts = 1 }), function() assert(q:claim():fail "no") end
      end,
      ["cancelled nil cancelled"] = function()
        local id = assert(q:push("a", 1, { delay = 60 }))
        return id, function() assert(handle:cancel(id)) end
      end,
      ["gone nil nil"] = function()
        local id = assert(q:push("a", 1, { delay = 60 }))
        return id, function() assert(handle:delete(id)) end
      end,
      ["dead nil in a transaction"] = function()
        return q:push("a", 1), function()
          local job = assert(q:claim())
          assert(handle:transaction(function() return job:discard "in a transaction" end))
        end
      end,
    }
    for answer, make in pairs(kinds) do
      local id, ends = make()
      assert.equal(answer, waiting(1, { id }, 60, ends))
    end
    local first = assert(q:push("a", 1, { delay = 60 }))
    local second = assert(q:push("b", 1, { after = { first } }))
    assert.matches("^cancelled nil job %d+, which it waited for, failed$",
      waiting(2, { second }, 60, function() assert(handle:cancel(first, { tree = true })) end))
  end)

  it("by a host's verdict wakes 20, which ask nothing before", function()
    local id = assert(q:push("n", 1, { delay = 3600 }))
    local function questions()
      return tonumber(db.sql([[SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS
        WHERE VARIABLE_NAME = 'QUESTIONS']]))
    end
    local h = host.start(url, "return { n = function() return { ok = true } end }", { "--workers", "1" })
    assert.equal('done {"ok":true} nil', waiting(20, { id }, 60, function()
      h:signal "STOP"
      eventually(function() -- but for these questions; 20 that poll would ask more all the time
        local before = questions()
        nst.sleep(0.3)
        return questions() - before < 15
      end)
      h:signal "CONT"
      assert(handle:run_now(id))
    end))
    h:signal "TERM"
    assert.equal(0, h:wait(30))
  end)

  it("costs an end without waits nothing more", function()
    local function calls()
      return tonumber(db.sql([[SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS
        WHERE VARIABLE_NAME = 'COM_CALL_PROCEDURE']]))
    end
    assert(q:push_many { { "a", 1 }, { "b", 1 } })
    local jobs = q:claim_many(2)
    local before = calls()
    assert(jobs[1]:ack())
    assert.equal(before, calls())
    waiting(1, { jobs[2].id }, 60, function()
      before = calls()
      assert(jobs[2]:ack())
      assert.equal(before + 1, calls())
    end)
  end)

  it("that was killed, or hangs, keeps nothing from ending", function()
    local id = assert(q:push("a", 1))
    assert.equal("done nil nil", waiting(3, { id }, 60, function(c)
      c:kill(1)
      assert(q:claim():ack())
    end))
    assert.equal("done", handle:job(id).state)
  end)

  it("of many gives all ends in their order", function()
    local ids = {}
    for i = 1, 30 do ids[i] = assert(q:push("n", i)) end
    local c = crew.fork(1, function()
      local own <close> = assert(nightshift.open(url))
      for job in own:queue "q":jobs { wait = 1 } do
        if job.payload % 3 == 0 then assert(job:discard "third") else assert(job:ack(job.payload)) end
      end
    end)
    local ends = assert(handle:wait_all(ids, 30))
    for i, row in ipairs(ends) do
      assert.same({ ids[i], i % 3 == 0 and "dead" or "done" }, { row.id, row.outcome })
      assert.equal(i % 3 ~= 0 and i or nil, row.result)
    end
    c:wait()
    assert.same({}, handle:wait_all({}, 0))
    assert.equal("0", edges())
  end)
end)

-- ----- listening

describe("a waiting claim", function()
  local WAITER = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  local q = db:queue "mail"
  print "waiting"
  io.flush()
  local worst, n = 0, 0
  for job in q:jobs{ wait = 30 } do
    local late = nightshift.clock() - job.payload
    worst, n = math.max(worst, late), n + 1
    assert(job:ack())
    if job.name == "last" then break end
  end
  print(("worst %%.3f of %%d"):format(worst, n))]]

  it("sees each of hundreds of pushes at random moments at once", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "mail"
    local waiter = proc.start { proc.lua, "-e", WAITER:format(url) }
    waiter:wait_line "waiting"
    local pushes = math.ceil(300 / proc.limit(1))
    for i = 1, pushes do
      local until_ = nightshift.clock() + math.random() * 0.004
      while nightshift.clock() < until_ do end -- finer than any sleep
      assert(q:push(i == pushes and "last" or "next", nightshift.clock()))
    end
    waiter:wait_line("worst", 60)
    local worst, n = waiter:text():match "worst (%S+) of (%d+)"
    assert.equal(tostring(pushes), n)
    assert.is_true(tonumber(worst) < proc.limit(9), "one came after " .. worst .. " s") -- lost: 10 s
  end)

  it("is rung by the one push that concerns it, and several kinds each by theirs", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local waiters = {}
    for i, queue in ipairs { "a", "b", "c" } do
      waiters[i] = proc.start { proc.lua, "-e", (WAITER:format(url):gsub('"mail"', '"' .. queue .. '"')) }
      waiters[i]:wait_line "waiting"
    end
    for i, queue in ipairs { "c", "a", "b" } do
      assert(handle:queue(queue):push("last", nightshift.clock()))
      local waiter = waiters[({ 3, 1, 2 })[i]]
      waiter:wait_line("worst", 9) -- unrung: 10 s
    end
  end)

  it("whose process was killed is struck off the list, and the next one is rung", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local killed = proc.start { proc.lua, "-e", WAITER:format(url) }
    killed:wait_line "waiting"
    eventually(function() return db.sleepers(name) == 1 end)
    local other = proc.start { proc.lua, "-e", WAITER:format(url) }
    other:wait_line "waiting"
    eventually(function() return db.sleepers(name) == 2 end)
    killed:signal "KILL"
    killed:wait()
    assert(handle:queue("mail"):push("last", nightshift.clock()))
    other:wait_line("worst", 9)
    eventually(function()
      handle._handle:ring()
      return db.sleepers(name) == 0
    end)
  end)

  it("asks the server nothing while it sleeps", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local waiter = proc.start { proc.lua, "-e", WAITER:format(url) }
    waiter:wait_line "waiting"
    local function statements()
      local rows = assert(handle:execute [[SELECT VARIABLE_VALUE AS n FROM information_schema.GLOBAL_STATUS
        WHERE VARIABLE_NAME = 'QUESTIONS']])
      return tonumber(rows[1].n)
    end
    eventually(function()
      return #assert(handle:execute [[SELECT 1 FROM information_schema.processlist
        WHERE info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state = 'User lock']]) == 1
    end)
    eventually(function() -- a look of its own, each ten seconds, may fall into one of these
      local before = statements()
      assert(handle:execute "DO SLEEP(2)")
      return statements() - before <= 3 -- our own two, and at most one more
    end)
    assert(handle:queue("mail"):push("last", nightshift.clock()))
    waiter:wait_line "worst"
  end)
end)

-- A handle that waited for work looked at the ready rows with locks and slept in one statement.
-- So it kept those locks for as long as it slept. When purge removed such a row the server made
-- its lock one on the gap, and no push could write there. Pushes waited for sleepers, who only
-- woke for a push. Seen once in some runs of 64 claimers beside other work.
describe("sleepers:", function()
  local database
  lab.handles(1, function(handle) database = handle end)
  after_each(crew.clean)

  local function rows(sql) return assert(database:execute(sql)) end

  it("whoever sleeps for want of work keeps no lock", function()
    local q = database:queue "q"
    local reader <close> = lab.open() -- purge removes nothing: the sleeper's look goes over deleted rows
    for i = 1, 20 do assert(q:push("noop", i)) end
    assert(reader:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert(reader._handle:begin())
    assert(reader:execute "SELECT 1 FROM nightshift_meta")
    for _ = 1, 20 do assert(assert(q:claim()):ack()) end
    crew.fork(2, function()
      local own <close> = lab.open()
      assert(own:queue "q":claim { wait = 60 }):ack()
    end)
    eventually(function()
      return #rows "SELECT 1 FROM information_schema.PROCESSLIST WHERE db = DATABASE() AND STATE = 'User lock'" == 2
    end)
    assert.same({}, rows [[SELECT p.ID AS id, t.trx_lock_structs AS locks
    FROM information_schema.PROCESSLIST p
    JOIN information_schema.INNODB_TRX t ON t.trx_mysql_thread_id = p.ID
    WHERE p.DB = DATABASE() AND p.STATE = 'User lock' AND t.trx_lock_structs > 0]])
    for i = 1, 2 do assert(q:push("noop", i)) end
    eventually(function() return rows "SELECT COUNT(*) AS n FROM nightshift_finished"[1].n == 22 end)
  end)
end)

-- A handle that waited for jobs of a queue did not listen for a while after a push into another
-- one. That lasted up to five seconds, longer for an older push.
describe("a waiting claim", function()
  local WAITER = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  for job in db:queue "mine":jobs{ wait = 30 } do
    print(("late %%.3f"):format(nightshift.clock() - job.payload))
    io.flush()
    assert(job:ack())
  end]]

  local url, name
  before_each(function() url, name = db.fresh() end)

  local function sleepers()
    return tonumber(db.sql([[SELECT COUNT(*) FROM information_schema.processlist
      WHERE db = DATABASE() AND info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state = 'User lock']], name))
  end

  for lapse, bound in pairs { [0.5] = 1, [1.8] = 3, [2.6] = 3 } do
    it(("hears of a push %g s after one into another queue"):format(lapse), function()
      local handle <close> = assert(nightshift.open(url))
      local waiter = proc.start { proc.lua, "-e", WAITER:format(url) }
      eventually(function() return sleepers() == 1 end)
      assert(handle:queue "other":push("a", 1))
      nst.sleep(lapse)
      assert(handle:queue "mine":push("b", nightshift.clock()))
      local late = tonumber(waiter:wait_line "^late (%S+)")
      assert.is_true(late < proc.limit(bound), late)
    end)
  end
end)

-- Consumers of paused queues were one kind of sleeper, whatever their queues: a resume ended
-- the sleep of the oldest and the newest of them. And the one with that queue slept on for up
-- to ten seconds.
describe("consumers of paused queues", function()
  local CONSUMER = [[
  local db = assert(require "nightshift".open(%q))
  for job in db:queue %q:jobs { wait = 60 } do
    assert(job:ack())
    break
  end]]

  it("are woken by the resume of their own queue, the middle one, too", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local all = {}
    local function asleep(n, ms) -- so many consumers, for so long
      eventually(function()
        return db.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'User %' AND time_ms > "
          .. ms, name) == tostring(n)
      end)
    end
    for i, queue in ipairs { "one", "two", "three" } do
      assert(handle:queue(queue):push "noop")
      assert(handle:queue(queue):pause())
      all[i] = proc.start { proc.lua, "-e", CONSUMER:format(url, queue) }
      asleep(i, 0)
    end
    asleep(3, 3000) -- a sleep looks again in its first two seconds
    assert(handle:queue "two":resume())
    local resumed = nightshift.clock()
    assert.equal(0, all[2]:wait(60))
    local late = nightshift.clock() - resumed
    for _, consumer in ipairs(all) do consumer:signal "KILL" end
    assert.is_true(late < proc.limit(5), ("%.1f s late"):format(late))
  end)
end)

local function sessions(name)
  return tonumber((db.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE db = '" .. name .. "'")))
end

describe("a handle with a read_timeout", function()
  local url, name, p, handle

  before_each(function()
    url, name = db.fresh()
    p = proxy.start(db.shared())
    handle = assert(nightshift.open(p:url(url) .. "&read_timeout=3s&connect_timeout=3s"))
    assert(handle:queue("q"):push "first")
  end)
  after_each(function()
    p:tell "thaw"
    handle:close()
  end)

  it("does not wait for a silent server for ever, and works again when it is back", function()
    p:tell "freeze"
    local started = nightshift.clock()
    local none, _, code = handle:queue("q"):push "second"
    assert.same({ nil, "GONE" }, { none, code })
    assert.is_true(nightshift.clock() - started < proc.limit(25)) -- its own: 30 s and more
    p:tell "thaw"
    assert(handle:queue("q"):push "second")
    assert.equal("2", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
  end)

  it("reconnects past a connection that went silent, and ends the session it left", function()
    local job = assert(handle:queue("q"):claim())
    local before = sessions(name)
    p:tell "strand" -- the server is there, only this connection is not
    assert(job:ack "done")
    eventually(function() return sessions(name) == before end)
    assert.equal("done", db.sql("SELECT outcome FROM nightshift_finished", name))
    p:tell "thaw"
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
  end)

  it("takes back its locks from the session that went silent inside a transaction", function()
    assert.has_error(function()
      assert(handle:transaction(function(tx)
        assert(tx:queue("q"):push("second", 1, { unique = "k" }))
        p:tell "strand"
        assert(tx:execute "SELECT 1")
      end))
    end)
    assert(handle:queue("q"):push("second", 1, { unique = "k" }))
    assert.equal(0, handle:stats().counters.lock_waits, "it waited for a lock of its own")
    eventually(function() return sessions(name) == 1 end)
  end)

  it("kills nobody after the server was started again, though ids repeat", function()
    local server = db.spare()
    local its = server:fresh()
    local q <close> = assert(nightshift.open(its))
    local id = assert(q:execute "SELECT CONNECTION_ID() AS id")[1].id
    nst.sleep(1.1) -- starts are told apart by the second
    server:kill()
    server:start()
    local others = {}
    repeat -- another session has that id now
      others[#others + 1] = assert(nightshift.open(its))
      local now = assert(others[#others]:execute "SELECT CONNECTION_ID() AS id")[1].id
    until now >= id
    assert(q:execute "SELECT 1")
    for _, other in ipairs(others) do
      assert.is_true(other:transaction(function(tx) return assert(tx:execute "SELECT 1") and true end))
      assert.equal(0, other:stats().counters.reconnects)
      other:close()
    end
  end)

  it("takes durations above zero only", function()
    for _, bad in ipairs { "soon", "0" } do
      local none, message, code = nightshift.open(url .. "&read_timeout=" .. bad)
      assert.same({ nil, "INVALID" }, { none, code })
      assert.is_truthy(message:find("read_timeout", 1, true), message)
    end
  end)
end)

describe("a connection over TCP", function()
  it("is watched by the kernel: a machine that vanishes is noticed within half a minute", function()
    local p = proxy.start(db.shared(), "tcp")
    local handle <close> = assert(nightshift.open(p:url((db.fresh()))))
    assert(handle:execute "SELECT 1")
    local far = (":%04X "):format(p.port)
    local timers = {}
    for line in io.lines "/proc/net/tcp" do
      local remote, timer, left = line:match "^%s*%d+: %x+:%x+ (%x+:%x+ )01 %x+:%x+ (%x+):(%x+)"
      if remote and remote:find(far, 1, true) then timers[#timers + 1] = { timer, tonumber(left, 16) } end
    end
    assert.equal(1, #timers)
    assert.equal("02", timers[1][1], "keepalive")
    assert.is_true(timers[1][2] <= 1500, timers[1][2] .. " hundredths of a second")
  end)
end)

describe("the caller's own SQL", function()
  local url, name, handle

  with_database(function(opened, _, at, database) handle, url, name = opened, at, database end)

  local function lose()
    for id in db.sql("SELECT id FROM information_schema.processlist WHERE db = '" .. name .. "'"):gmatch "%d+" do
      pcall(db.sql, "KILL " .. id) -- it may be gone by now
    end
    eventually(function() return sessions(name) == 0 end)
  end

  it("works after its connection was lost while idle", function()
    lose()
    assert.equal(2, assert(handle:execute "SELECT 1 + 1 AS n")[1].n)
    lose()
    assert(handle:execute "INSERT INTO nightshift_meta VALUES ('x', 'y')")
    assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_meta WHERE name = 'x'", name))
  end)

  it("says GONE when its transaction is cut at the commit, and all or nothing of it stands", function()
    for when, there in pairs { before = "0", after = "1" } do
      local p = proxy.start(db.shared())
      local cut <close> = assert(nightshift.open(p:url(url)))
      assert(cut:queue(when))
      local none, _, code = cut:transaction(function(tx)
        assert(tx:queue(when):push("job"))
        assert(tx:execute("INSERT INTO nightshift_meta VALUES (?, 'x')", when))
        p:tell("commit " .. when .. " 1")
        return true
      end)
      assert.same({ nil, "GONE" }, { none, code })
      assert.equal(there, db.sql("SELECT COUNT(*) FROM nightshift_meta WHERE name = '" .. when .. "'", name))
      assert.equal(there == "1", cut:queue(when):claim() ~= nil)
    end
  end)

  it("does not go on in another session when its transaction is lost", function()
    local none, message, code = handle:transaction(function(tx)
      assert(tx:execute "INSERT INTO nightshift_meta VALUES ('x', 'y')")
      lose()
      return tx:execute "INSERT INTO nightshift_meta VALUES ('z', 'y')"
    end)
    assert.is_nil(none)
    assert.is_truthy(code == "GONE" or code == "BUSY", message)
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_meta WHERE name IN ('x', 'z')", name))
    assert(handle:execute "SELECT 1")
  end)
end)

describe("opening", function()
  it("names the file that is missing", function()
    local url = db.fresh()
    for key, what in pairs { ca = "ca file", cert = "cert file", key = "key file", file = "file" } do
      local none, message, code = nightshift.open { url = url, [key] = "/no/such.pem" }
      assert.same({ nil, "INVALID" }, { none, code })
      assert.equal(("cannot read the %s '/no/such.pem': No such file or directory"):format(what), message)
    end
  end)

  it("never shows the password, however it fails", function()
    local p = proxy.start(db.shared(), "tcp")
    local url = db.user((db.fresh()), "SELECT"):gsub("Pass%-word_1", "s3cret-Wrong")
    local messages = {}
    local function note(where)
      local none, message = nightshift.open(where)
      assert.is_nil(none)
      messages[#messages + 1] = message
    end
    note(url)
    note(p:url(url))
    note((url:gsub("unix_socket=.*", "unix_socket=/no/such.sock")))
    note((url:gsub("@localhost/.*", "@127.0.0.1:1/x?tls=off")))
    note((url:gsub("@localhost/.*", "@no.such.host.invalid/x?tls=off&connect_timeout=1s")))
    p:tell "refuse"
    note(p:url(url))
    p:tell "admit"
    p:tell "freeze"
    note(p:url(url) .. "&connect_timeout=1s")
    p:tell "thaw"
    assert.equal(7, #messages)
    for _, message in ipairs(messages) do assert.is_nil(message:find("s3cret", 1, true), message) end
  end)
end)

-- A handle that lost its connection while it was idle said GONE once for each verb that did not
-- begin with a transaction. Yet the server was there.
describe("a handle whose connection was lost while it was idle", function()
  local handle, name

  before_each(function()
    local url
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    assert(handle:queue("q"):push("job", 1))
  end)
  after_each(function() handle:close() end)

  local verbs = {
    push = function() return handle:queue("new"):push("job", 1) end,
    claim = function() return handle:queue("q"):claim() end,
    job = function() return handle:job(assert(handle:queue("q"):push("job", 1))) end,
    pause = function() return handle:queue("q"):pause() end,
    transaction = function() return handle:transaction(function(tx) return tx:queue("q"):push("job", 1) end) end,
  }
  for verb, call in pairs(verbs) do
    it("connects again: " .. verb, function()
      for id in db.sql("SELECT id FROM information_schema.processlist WHERE db = '" .. name .. "'"):gmatch "%d+" do
        db.sql("KILL " .. id)
      end
      assert.is_truthy(assert(call()))
    end)
  end
end)

-- A handler that asked for the results of its children when a KILL met its connection got an
-- error raised, and the attempt had failed. A read of our own is asked again.
describe("a read that a KILL cuts:", function()
  --- In its second phase it waits until the file is there before it asks.
  local SCRIPT <const> = [[return {
  parent = function(job)
    if job.phase == 0 then
      job:spawn "child"
      return job:wait()
    end
    print "asks"
    while not io.open %q do require "nightshift.core".sleep(0.02) end
    return job.results[1].result
  end,
  child = function() return "told" end,
}]]

  for _, kill in ipairs { "KILL QUERY", "KILL" } do
    it("results are asked for again after a " .. kill, function()
      local url, name = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      local go = fixture.dir() .. "/go"
      local h = host.start(url, SCRIPT:format(go), { "--workers", "1" })
      local id = assert(handle:queue("q"):push "parent")
      h:wait_line("asks", 20)
      local other <close> = assert(nightshift.open(url))
      assert(other:execute "LOCK TABLES nightshift_finished WRITE")
      assert(io.open(go, "w")):close()
      local waiting = eventually(function()
        local list = db.sql([[SELECT id FROM information_schema.processlist
        WHERE state LIKE 'Waiting for table%' AND info LIKE '%nightshift_child c FORCE%']], name)
        return list ~= "" and list
      end)
      db.sql(kill .. " " .. waiting, name)
      assert(other:execute "UNLOCK TABLES")
      eventually(function() return handle:job(id).state == "done" end)
      assert.equal("told", handle:job(id).result)
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_attempt WHERE kind <> 'printed'", name))
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end
end)
