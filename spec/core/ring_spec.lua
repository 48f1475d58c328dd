-- The cost of a push and its ring; no ring is lost. Waits for the ends of jobs, which are rung.

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

describe("a ring", function()
  -- Two rings each: 10,000 rings with NIGHTSHIFT_LONG.
  local ROUNDS = math.ceil((os.getenv "NIGHTSHIFT_LONG" and 5000 or 400) / proc.limit(1))

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
describe("a host that cannot be rung, or cannot ring", function()
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
describe("a ring", function()
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
    for i = 1, 40 do
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
describe("between two statements:", function()
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
describe("a host that has seen no queue yet", function()
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
describe("a queue that is resumed before its listener sleeps", function()
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
describe("a wait for the end of a job", function()
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

  it("by a host's verdict wakes 50, which ask nothing before", function()
    local id = assert(q:push("n", 1, { delay = 3600 }))
    local function questions()
      return tonumber(db.sql([[SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS
        WHERE VARIABLE_NAME = 'QUESTIONS']]))
    end
    local h = host.start(url, "return { n = function() return { ok = true } end }", { "--workers", "1" })
    assert.equal('done {"ok":true} nil', waiting(50, { id }, 60, function()
      h:signal "STOP"
      eventually(function() -- but for these questions; 50 that poll would ask more all the time
        local before = questions()
        nst.sleep(0.3)
        return questions() - before < 25
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
