-- Jobs of hosts and programs that die: they come back to living holders. Which are blamed, and
-- when the rows of the dead go.

local core = require "nightshift.core"
local crew = require "spec.support.crew"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

-- When the server refused to give back one job, the rest of its lease was not rescued. Every
-- other dead holder was not rescued either, and no message said so.
describe("one job of a dead program that cannot be given back", function()
  local url, name, handle

  with_database(function(opened, _, at, database) handle, url, name = opened, at, database end)

  -- Seven jobs in the hands of a program that is killed; the fourth cannot be
  -- given back.
  local function disaster()
    local ids = {}
    for i = 1, 7 do ids[i] = assert(handle:queue "q":push("job", i)) end
    local p = proc.start { proc.lua, "-e", [[
    local handle = require "nightshift.core".open { url = os.getenv "NIGHTSHIFT_URL" }
    io.stdout:write(#handle:claim("q", 10), "\n")
    io.stdout:flush()
    handle:claim("none", 1, 60000000)]], env = { NIGHTSHIFT_URL = url } }
    assert.equal("7", p:wait_line "^(%d)")
    db.sql(([[CREATE TRIGGER stubborn BEFORE UPDATE ON nightshift_job FOR EACH ROW
    SET NEW.run = IF(NEW.id = %d AND NEW.lost > 0, -1, NEW.run)]]):format(ids[4]), name)
    p:signal "KILL"
    p:wait()
    return ids
  end

  local function others_came_back(ids)
    for i, id in ipairs(ids) do
      if i ~= 4 and handle:job(id).state == "running" then return false end
    end
    return true
  end

  it("does not keep the others, and the rescue tells", function()
    local ids = disaster()
    local given, message, code = handle:rescue { wait = "2s" }
    assert.is_nil(given)
    assert.matches("^6 jobs came back, others did not: .*Out of range", message)
    assert.equal("SQL", code)
    assert.is_true(others_came_back(ids))
    assert.equal("running", handle:job(ids[4]).state)
    db.sql("DROP TRIGGER stubborn", name)
    assert.equal(1, assert(handle:rescue()).jobs)
    assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_lease", name)))
  end)

  it("is in the log of the host that found it, which goes on", function()
    local h = host.start(url, "return { other = function() end }", { "--queues", "empty" })
    local ids = disaster()
    eventually(function() return others_came_back(ids) end)
    h:wait_line "rescue.failed.*Out of range"
    local id = assert(handle:queue "empty":push "other")
    eventually(function() return handle:job(id).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("keeps no other dead holder waiting", function()
    disaster()
    local other = assert(core.open { url = url })
    local id = assert(other:push("r", { { name = "job" } }))[1]
    assert(other:claim("r", 1))
    db.sql("UPDATE nightshift_holder SET pid = 4194305", name)
    local thread = assert(handle:execute([=[
      SELECT IS_USED_LOCK(CONCAT('nightshift:', MD5(DATABASE()), ':', holder)) AS n
      FROM nightshift_lease WHERE JSON_CONTAINS(jobs, ?)]=], ("[[%d,1]]"):format(id)))[1].n
    assert(handle:execute("KILL " .. thread))
    eventually(function()
      handle:rescue()
      return handle:job(id).state == "ready"
    end)
    other:close()
  end)
end)

-- The rows of dead holders stayed for a day, and for ever where no other holder died. After the
-- primary had died, its replica had all holders of before.
describe("rows of the dead", function()
  local HALF_A_MINUTE <const> = 30000000 -- µs
  local CLAIMER = [[
  assert(require "nightshift".open(%q):queue "q":claim())
  print "holds"
  io.flush()
  os.execute "sleep 60"]]

  local url, name

  before_each(function() url, name = db.fresh() end)

  local function ask(sql) return db.sql(sql, name) end

  local function pids(where) return ask("SELECT pid FROM nightshift_holder WHERE " .. (where or "TRUE")) end

  local function claimer()
    local p = proc.start { proc.lua, "-e", CLAIMER:format(url) }
    p:wait_line("^holds", 20)
    return p
  end

  --- As if they had been dead for that much longer.
  local function age(us) ask(("UPDATE nightshift_holder SET dead = dead - %d"):format(us)) end

  local function killed(p)
    p:signal "KILL"
    p:wait(10)
  end

  it("go half a minute after the death, with any host", function()
    local handle <close> = assert(nightshift.open(url))
    for _ = 1, 2 do assert(handle:queue "q":push("x", 1)) end
    local dead = { claimer(), claimer() }
    local h = host.start(url, "return { a = function() end }", { "--only", "a" })
    for _, p in ipairs(dead) do killed(p) end
    eventually(function() return select(2, pids "dead IS NOT NULL":gsub("%d+", "")) == 2 end, 20)
    age(HALF_A_MINUTE - 15000000) -- 15 s are left: more than it takes until the next look
    eventually(function() return pids() == tostring(h.pid) end, 40)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end)

  it("go with any program that claims, not before their time nor with jobs", function()
    local handle <close> = assert(nightshift.open(url))
    local id = assert(handle:queue "q":push("x", 1))
    local p = claimer()
    killed(p)
    assert(handle:rescue { wait = "5s" })
    assert(handle:rescue())
    assert.equal(tostring(p.pid), pids())
    ask(([=[INSERT INTO nightshift_lease (id, holder, claimed, jobs)
    SELECT 77, h.id, 1, '[[%d,1]]' FROM nightshift_holder h]=]):format(id))
    age(HALF_A_MINUTE)
    local blocker <close> = assert(nightshift.open(url))
    assert(blocker:transaction(function(tx)
      assert(tx:execute "SELECT id FROM nightshift_lease WHERE id = 77 FOR UPDATE")
      handle:rescue()
      assert.equal(tostring(p.pid), pids())
      return true
    end))
    eventually(function()
      assert(handle:rescue())
      return ask "SELECT COUNT(*) FROM nightshift_lease" == "0"
    end, 20)
    age(HALF_A_MINUTE)
    local other <close> = assert(nightshift.open(url))
    assert.equal(1, #assert(other:queue "q":claim_many(10)))
    assert.equal("", pids("pid = " .. p.pid))
  end)

  it("leave what their hosts could run for the rest of the minute", function()
    local h = host.start(url, "return { a = function() end }")
    eventually(function() return ask "SELECT COUNT(*) FROM nightshift_served" == "1" end)
    killed(h)
    local handle <close> = assert(nightshift.open(url))
    ask(("UPDATE nightshift_holder SET dead = %d - %d"):format(handle._handle:now(), HALF_A_MINUTE + 5000000))
    assert(handle:rescue())
    assert.equal("", pids())
    assert.equal("1", ask "SELECT COUNT(*) FROM nightshift_served WHERE ended IS NOT NULL")
    assert.equal(1, #assert(handle._handle:execute "@report_served"))
  end)

  describe("do not matter to a verdict that was cut at its commit", function()
    local p, handle, q

    before_each(function()
      p = proxy.start(db.shared())
      handle = assert(nightshift.open(p:url(url)))
      q = handle:queue "q"
    end)
    after_each(function() handle:close() end)

    --- Declared dead, rescued and buried, before it can ask.
    local function buried(when, verb)
      p:tell("commit " .. when .. " 1")
      p:tell "lasting"
      local none, _, code = verb()
      assert.same({ nil, "GONE" }, { none, code })
      local other <close> = assert(nightshift.open(url))
      ask "UPDATE nightshift_holder SET dead = beat"
      assert(other:rescue())
      age(HALF_A_MINUTE)
      assert(other:rescue())
      assert.equal("", pids())
      p:tell "admit"
    end

    local VERBS = {
      ack = function(job) return job:ack "done" end,
      fail = function(job) return job:fail "no" end,
    }
    for verb, give in pairs(VERBS) do
      it("was written: " .. verb, function()
        assert(q:push("job", 1))
        local job = assert(q:claim())
        buried("after", function() return give(job) end)
        assert.is_true(assert(give(job)))
      end)

      it("was not: " .. verb, function()
        assert(q:push("job", 1))
        local job = assert(q:claim())
        buried("before", function() return give(job) end)
        assert.equal("STALE", select(3, give(job)))
        assert.equal("1", ask "SELECT COUNT(*) FROM nightshift_job")
      end)
    end

    it("is told apart from one that was written before it", function()
      assert(q:push_many { { "a" }, { "b" } })
      local jobs = assert(q:claim_many(2))
      assert(jobs[1]:ack())
      buried("before", function() return jobs[2]:ack() end)
      assert.equal("STALE", select(3, jobs[2]:ack()))
    end)
  end)
end)

-- A job that was lost with its holder twice is claimed alone, one at a time per holder. While
-- one of them ran, a second one that was ready kept its host busy. A claim took it and put it
-- back, hundreds of times a second.
describe("beside a job that is claimed alone", function()
  local url, name, handle, q, folder
  before_each(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    q = handle:queue "q"
    folder = fixture.dir()
  end)
  after_each(function() handle:close() end)

  local function suspects(n)
    local ids = {}
    for i = 1, n do ids[i] = assert(q:push("long", i)) end
    db.sql("UPDATE nightshift_job SET lost = 2; UPDATE nightshift_ready SET alone = TRUE WHERE job_id > 0", name)
    return ids
  end

  local function statements()
    return tonumber((db.sql "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'":match "%d+$"))
      + tonumber((db.sql "SHOW GLOBAL STATUS LIKE 'Com_commit'":match "%d+$"))
  end

  local function end_of(i) assert(io.open(folder .. "/" .. i, "wb")):close() end

  local SCRIPT = [[
    local nightshift = require "nightshift"
    return {
      long = function(job)
        local started = nightshift.clock()
        while not io.open(%q .. "/" .. job.payload) do require "nightshift.core".sleep(0.01) end
        return started
      end,
      short = function() end,
    }]]

  local function running(ids)
    local n = 0
    for _, id in ipairs(ids) do n = n + (assert(handle:job(id)).state == "running" and 1 or 0) end
    return n
  end

  it("a host is as quiet as an idle one, serves others, and starts the next at once", function()
    local ids = suspects(3)
    local h = host.start(url, SCRIPT:format(folder))
    eventually(function() return running(ids) == 1 end)
    local short = assert(q:push "short")
    eventually(function() return handle:job(short).state == "done" end)
    eventually(function() -- behind the looks after a wake; a claim and its return: hundreds a second
      local before = statements()
      nst.sleep(3)
      return statements() - before <= 15
    end, 30)
    assert.equal(1, running(ids))
    for i = 1, 2 do -- the order of the rest is theirs
      local done = {}
      for k, id in ipairs(ids) do done[k] = handle:job(id).state == "done" end
      local now
      for k, id in ipairs(ids) do now = now or (assert(handle:job(id)).state == "running" and k) end
      local ended = nightshift.clock()
      end_of(now)
      local function follower()
        for k, id in ipairs(ids) do
          if k ~= now and not done[k] and assert(handle:job(id)).state == "running" then return nightshift.clock() end
        end
      end
      local late = eventually(follower) - ended
      assert.is_true(late < proc.limit(9), ("number %d came after %.3f s"):format(i + 1, late))
    end
    for i = 1, 3 do end_of(i) end
    eventually(function()
      for _, id in ipairs(ids) do if handle:job(id).state ~= "done" then return false end end
      return true
    end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("a handle that has one gets others, and waits for work without taking what it may not have", function()
    suspects(2)
    local first = assert(q:claim())
    local short = assert(q:push "short")
    assert.equal(short, assert(q:claim { wait = 20 }).id)
    local before = statements()
    assert.is_nil(q:claim { wait = 3 })
    local asked = statements() - before
    assert.is_true(asked <= 100, asked .. " statements in three seconds") -- as above
    assert(first:ack())
    local started = nightshift.clock()
    assert.equal("long", assert(q:claim { wait = 20 }).name)
    assert.is_true(nightshift.clock() - started < proc.limit(9)) -- by the round: 10 s
  end)
end)

-- A job that had killed three holders waited a second before its next run, as one with a worker
-- that has died. It was claimed after that like any other. What was beside it then, and had
-- lost two holders before, was condemned in its place.
describe("a job that was lost with its holders", function()
  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  -- A program that claims a job, and is killed with it.
  local function claimed_and_lost()
    local p = proc.start { proc.lua, "-e", ([[
    local db = assert(require "nightshift".open(%q))
    assert(db:queue "q":claim())
    io.stdout:write "holds\n":flush()
    io.read()
    os.execute "sleep 60"]]):format(url), stdin = "x\n" }
    p:wait_line "holds"
    p:signal "KILL"
  end

  -- How it is claimed next, when that may be now.
  local function ready(id)
    return handle:execute("SELECT alone FROM nightshift_ready WHERE job_id = ?", id)[1]
  end

  it("is claimed alone, and at once, until it is dead", function()
    local id = assert(q:push("killer", nil, { max_crashes = 3 }))
    for deaths = 1, 5 do
      claimed_and_lost()
      local job = eventually(function()
        assert(handle:rescue())
        local job = handle:job(id)
        return (job.run > deaths or job.state == "dead") and job
      end, 20)
      assert.equal(deaths < 5 and "ready" or "dead", job.state, deaths .. " holders died")
      local row = ready(id)
      assert.equal(deaths < 5 and (deaths < 2 and 0 or 1) or nil, row and row.alone, deaths .. " holders died")
    end
    assert.equal("poison", handle:job(id).reason)
  end)
end)

-- Three crashes within milliseconds made a job dead: a library that was being replaced
-- for a second condemned every job that came across it.
describe("a job whose worker dies again and again", function()
  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  local function script(broken)
    return ([[return { fragile = function(job)
    local file = io.open %q
    if not file then return job.crashes end
    os.execute("kill -9 " .. (io.open "/proc/self/stat":read "a"):match "^%%d+")
  end }]]):format(broken)
  end

  local function crashed(id, times)
    return eventually(function()
      local job = assert(handle:job(id))
      return job.crashes == times and job
    end, 20)
  end

  -- Seconds from a job's last crash to its next run.
  local function pause(id)
    return handle:execute([[SELECT (j.due - MAX(a.ended)) / 1000000 AS s
    FROM nightshift_job AS j, nightshift_attempt AS a
    WHERE j.id = ? AND a.job_id = j.id]], id)[1].s
  end

  it("waits 0, 1, 10 and 60 s, and is dead at the fifth time", function()
    local broken = fixture.file("broken", "")
    local h = host.start(url, script(broken))
    local id = assert(q:push "fragile")
    crashed(id, 2)
    for i, seconds in ipairs { 10, 60 } do
      crashed(id, 2 + i)
      assert.is_true(math.abs(pause(id) - seconds) < 0.1, pause(id))
      assert(handle:run_now(id))
    end
    eventually(function() return handle:job(id).state == "dead" end)
    assert.equal("poison", handle:job(id).reason)
    local runs = handle:execute("SELECT ended FROM nightshift_attempt WHERE job_id = ? ORDER BY run", id)
    assert.equal(5, #runs)
    assert.is_true(runs[2].ended - runs[1].ended < 1000000, "the first crash costs no time")
    assert.is_true(runs[3].ended - runs[2].ended >= 1000000, "the second costs one second")
    h:signal "TERM"
    h:wait()
  end)

  it("is done when what killed it is mended within seconds", function()
    local broken = fixture.file("broken", "")
    local h = host.start(url, script(broken))
    local id = assert(q:push "fragile")
    crashed(id, 3)
    assert(os.remove(broken))
    assert(handle:run_now(id))
    eventually(function() return handle:job(id).state == "done" end)
    assert.equal(3, handle:job(id).result)
    h:signal "TERM"
    h:wait()
  end)
end)

-- ------------------------------------------------------- how the dead are found

describe("liveness:", function()
  local url

  before_each(function() url = db.fresh() end)

  local function database() return url:match "/([^/?]+)%?" end
  local function sql(text) return db.sql(text, database()) end

  -- A program that claims `n` jobs, says so and hangs.
  local function claimer(n, options, env)
    local p = proc.start { proc.lua, "-e", ([[
      local nightshift = require "nightshift"
      local db = assert(nightshift.open(%q))
      local jobs = assert(db:queue "q":claim_many(%d, %s))
      io.stdout:write("holds ", #jobs, "\n"):flush()
      io.read()
      os.execute "sleep 60"]]):format(url, n, options or "nil"), stdin = "x\n", env = env }
    p:wait_line "holds"
    return p
  end

  local function holders() return tonumber(sql "SELECT COUNT(*) FROM nightshift_holder WHERE dead IS NULL") end

  -- Makes the process ids of the holders mean nothing here: as if they ran on
  -- another machine.
  local function elsewhere() sql "UPDATE nightshift_holder SET boot_id = 'elsewhere'" end

  -- The server has been up for longer than the grace after a start.
  local function aged_server()
    eventually(function()
      return tonumber(sql [[SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS
        WHERE VARIABLE_NAME = 'UPTIME']]) >= 15
    end)
  end

  it("a program killed with -9 loses its jobs to a handle that waits, at once on one machine", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push_many { { "a", 1 }, { "b", 2 }, { "c", 3 } })
    local p = claimer(2)
    assert.equal("c", assert(q:claim()).name)
    p:signal "KILL"
    local started = nightshift.clock()
    local job = assert(q:claim { wait = 20 })
    assert.is_true(nightshift.clock() - started < proc.limit(9)) -- by the round: 10 s
    assert.equal("a", job.name)
    assert.equal(2, job.run)
    assert.equal(1, job.attempt)
    assert.equal("b", assert(q:claim()).name)
  end)

  -- Such a process was looked at again after ten seconds, and given half a minute. So is one that
  -- is being killed, for the moment between the end of its connections and its own.
  it("a program that is killed behind its connection loses its jobs at once, too", function()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:queue "q":push "job")
    local p = claimer(1)
    local c = crew.fork(1, function()
      local own <close> = assert(nightshift.open(url))
      assert(assert(own:queue "q":claim { wait = 25 }):ack())
    end)
    eventually(function() return db.sleepers(database()) == 1 end)
    sql("KILL " .. sql("SELECT connection FROM nightshift_holder WHERE pid = " .. p.pid))
    nst.sleep(0.3) -- it has been looked at, and lives
    assert.equal("1", sql "SELECT COUNT(*) FROM nightshift_lease")
    p:signal "KILL"
    local started = nightshift.clock()
    c:wait(30)
    assert.is_true(nightshift.clock() - started < proc.limit(4))
  end)

  it("a program on another machine is waited for until its grace is over", function()
    aged_server()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push("a", 1))
    local p = claimer(1)
    assert.is_nil(q:claim())
    elsewhere()
    p:signal "KILL"
    local started = nightshift.clock()
    assert.equal("a", assert(q:claim { wait = 20 }).name)
    local took = nightshift.clock() - started
    assert.is_true(took >= 0.9 and took < proc.limit(9), took) -- by the round: 10 s
  end)

  it("a program killed with -9 loses its jobs at the next connect when nobody lived", function()
    local handle = assert(nightshift.open(url))
    local id = assert(handle:queue "q":push("a", 1))
    handle:close()
    local p = claimer(1)
    p:signal "KILL"
    p:wait()
    local of_host <close> = assert(nightshift.open { url = url, no_look = true }) -- its host looks
    assert.equal("running", assert(of_host:job(id)).state)
    eventually(function()
      local next_one <close> = assert(nightshift.open(url))
      return assert(next_one:job(id)).state == "ready"
    end)
  end)

  it("the command rescue gives jobs back, and says how many", function()
    aged_server()
    local handle = assert(nightshift.open(url))
    assert(handle:queue "q":push_many { { "a", 1 }, { "b", 2 } })
    handle:close()
    local p = claimer(2)
    elsewhere()
    p:signal "KILL"
    local status, out = proc.nightshift({ "rescue", "--wait", "20s" }, url)
    assert.equal(0, status)
    assert.equal("2 jobs of 1 dead holders given back\n", out)
    assert.equal("2", sql "SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0")
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
    assert.equal("lost\nlost", sql "SELECT kind FROM nightshift_attempt")
  end)

  it("twenty programs that die at once are rescued together", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local items, programs = {}, {}
    for i = 1, 21 do items[i] = { "a", i } end
    assert(q:push_many(items))
    for i = 1, 20 do programs[i] = claimer(1) end
    assert(q:claim())
    assert.equal(21, holders())
    for _, p in ipairs(programs) do p:signal "KILL" end
    local started = nightshift.clock()
    local seen = 0
    while seen < 20 do
      seen = seen + #assert(q:claim_many(20, { wait = 20 }))
    end
    assert.is_true(nightshift.clock() - started < proc.limit(9)) -- one by one: 20 s
    assert.equal(1, holders())
  end)

  it("a handle that is closed or collected gives its jobs back at once", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push("a", 1))
    for _, drop in ipairs { "close", "collect" } do
      local other = assert(nightshift.open(url))
      assert.equal("a", assert(other:queue "q":claim { wait = 20 }).name)
      assert.is_nil(q:claim())
      if drop == "close" then other:close() end
      other = nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
      local job = assert(q:claim())
      assert(job:release())
    end
  end)

  it("a stopped program keeps its jobs as long as its connection lives", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push("a", 1))
    local p = claimer(1)
    p:signal "STOP"
    assert.is_nil(q:claim { wait = 2 })
    p:signal "CONT"
  end)

  it("a claim with a lease ends when nobody touches it", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push("a", 1))
    local hung <close> = assert(nightshift.open(url))
    local job = assert(hung:queue "q":claim { lease = 6 })
    assert.is_nil(q:claim { wait = 3.5 })
    assert.is_true(job:touch())
    assert.is_nil(q:claim { wait = 3.5 })
    local again = assert(q:claim { wait = 20 })
    assert.equal(2, again.run)
    local ok, _, code = job:ack()
    assert.is_nil(ok)
    assert.equal("STALE", code)
    assert(again:ack())
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_expiry")
  end)

  it("a handle that waits learns of a lease that is taken meanwhile, and when it ends", function()
    local handle <close> = assert(nightshift.open(url))
    local waiting, job
    local n = 0
    repeat -- until the job is ours before it is theirs
      n = n + 1
      local q = handle:queue("q" .. n)
      assert(q:push("a", 1))
      waiting = proc.start { proc.lua, "-e", ([[
        local db = assert(require "nightshift".open(%q))
        assert(db:queue "other":push("b", 1))
        assert(db:queue "other":claim()) -- a holder
        io.stdout:write("waits\n"):flush()
        io.stdout:write("got ", assert(db:queue "q%d":claim { wait = 30 }).run, "\n"):flush()]]):format(url, n) }
      job = q:claim { lease = 1.5 }
    until job and job.run == 1
    local started = nightshift.clock()
    assert.equal("2", waiting:wait_line "^got (%d)")
    local took = nightshift.clock() - started
    assert.is_true(took >= 1.4 and took < proc.limit(9), took) -- not learnt: by the round, 10 s
    assert.equal("STALE", select(3, job:ack()))
  end)

  it("a lease that was settled in time leaves nothing behind", function()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:queue "q":push("a", 1))
    assert(assert(handle:queue "q":claim { lease = 60 }):ack())
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_expiry")
  end)

  it("a holder that was declared dead finds out and goes on under a new name", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push_many { { "a", 1 }, { "b", 2 } })
    local job = assert(q:claim_many(2))[1]
    sql "UPDATE nightshift_holder SET dead = 1"
    local other <close> = assert(nightshift.open(url))
    assert(other:rescue { wait = 0 })
    local next_one = assert(q:claim())
    assert.equal(job.id, next_one.id)
    assert.equal(2, next_one.run)
    assert.equal("STALE", select(3, job:ack()))
    assert(next_one:ack())
    assert.equal(1, holders())
  end)

  -- Ends the connections of all who hold something.
  local function cut()
    for thread in sql "SELECT connection FROM nightshift_holder WHERE dead IS NULL":gmatch "%d+" do
      pcall(sql, "KILL " .. thread)
      eventually(function() return sql("SELECT 1 FROM information_schema.processlist WHERE id = " .. thread) == "" end)
    end
  end

  it("a living program whose connection is ended keeps its jobs", function()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(core.open { url = url })
    assert(handle:queue "q":push("a", 1))
    local job = assert(handle:queue "q":claim())
    cut()
    assert.same({ holders = 0, jobs = 0, poison = 0 }, assert(other:look(2000000)))
    assert.is_true(job:ack())
  end)

  it("a stopped one whose connection is ended does not", function()
    aged_server()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:queue "q":push("a", 1))
    local p = claimer(1)
    p:signal "STOP"
    cut()
    assert.equal(2, assert(handle:queue "q":claim { wait = 40 }).run)
    p:signal "CONT"
  end)

  it("a holder that loses touch again and again takes the blame from its job", function()
    aged_server()
    local handle <close> = assert(core.open { url = url })
    local other <close> = assert(core.open { url = url })
    local id = assert(handle:push("q", { { name = "a", max_crashes = 1 } }))[1]
    for run = 1, 6 do
      assert.equal(run, assert(handle:claim("q"))[1].run)
      elsewhere() -- where its process is not seen
      cut()
      assert.equal(1, assert(other:look(15000000)).jobs)
      assert.equal("1", sql("SELECT lost FROM nightshift_job WHERE id = " .. id))
      assert(handle:claim "none") -- comes back
      assert.equal("0 0", (sql("SELECT CONCAT(lost, ' ', crashes) FROM nightshift_job WHERE id = " .. id)))
    end
  end)

  it("a holder whose row is gone finds out when it reconnects", function()
    local handle = assert(core.open { url = url })
    assert(handle:push("q", { { name = "a", payload = 1 } }))
    local job = assert(handle:claim("q"))[1]
    local thread = sql "SELECT connection FROM nightshift_holder"
    sql "DELETE FROM nightshift_holder"
    sql("KILL " .. thread)
    local again = assert(handle:claim("q"))
    assert.equal(0, #again) -- its own claim has no holder now: an orphan
    assert(handle:look())
    assert.equal(job.id, assert(handle:claim("q"))[1].id)
    handle:close()
  end)

  it("a job lost twice is claimed alone, and lost then is a crash", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local ids = assert(q:push_many {
      { "killer", 1, { max_crashes = 2 } }, { "innocent", 2, { max_crashes = 1 } }, { "other", 3, { max_crashes = 1 } },
    })
    local function die(n, expect)
      local p = claimer(n)
      assert.equal("holds " .. expect, p:text():match "holds %d")
      p:signal "KILL"
      eventually(function()
        return handle:rescue { wait = 0 } and sql "SELECT COUNT(*) FROM nightshift_lease" == "0"
      end)
    end
    die(10, 3)
    die(10, 3)
    assert.equal("1\n1\n1", sql "SELECT alone FROM nightshift_ready WHERE job_id > 0")
    die(10, 1) -- the killer, alone: first crash
    assert.equal("3", sql("SELECT lost FROM nightshift_job WHERE id = " .. ids[1]))
    assert.equal("1", sql("SELECT crashes FROM nightshift_job WHERE id = " .. ids[1]))
    -- it has sunk: the innocent come first now, one by one, and live
    for _, name in ipairs { "innocent", "other" } do
      local jobs = assert(q:claim_many(10))
      assert.equal(1, #jobs)
      assert.equal(name, jobs[1].name)
      assert.is_nil(q:claim())
      assert(jobs[1]:ack())
    end
    die(10, 1)
    local dead = assert(handle:job(ids[1]))
    assert.equal("dead", dead.state)
    assert.equal("poison", dead.reason)
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0")
  end)

  it("a job that was lost and then came back alive is like any other", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local id = assert(q:push("a", 1))
    sql("UPDATE nightshift_job SET lost = 2")
    sql("UPDATE nightshift_ready SET alone = TRUE WHERE job_id > 0")
    local job = assert(q:claim())
    assert(job:again(0))
    assert.equal("0", sql("SELECT lost FROM nightshift_job WHERE id = " .. id))
    eventually(function() return q:claim() end)
  end)

  it("where named locks do not serve, a program gone from this machine is still found", function()
    sql "INSERT INTO nightshift_meta VALUES ('named_locks', 'off')"
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push("a", 1))
    local p = claimer(1)
    assert.is_nil(q:claim { wait = 1 })
    p:signal "KILL"
    eventually(function() return assert(handle:rescue { wait = 0 }).jobs == 1 end)
  end)

  it("a host whose beat stands still is dead, whoever owns its lock", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push("a", 1))
    local p = claimer(1)
    elsewhere()
    sql "UPDATE nightshift_holder SET kind = 'host', beat = beat - 20000000"
    local started = nightshift.clock()
    assert.equal(0, assert(handle:rescue { wait = 0 }).jobs)
    local found = assert(handle:rescue { wait = 30 })
    assert.equal(1, found.jobs)
    local took = nightshift.clock() - started
    assert.is_true(took > 9 and took < proc.limit(25), took)
    p:signal "KILL"
  end)

  it("a rescue goes around a job that somebody's transaction holds, and comes back for it", function()
    local handle <close> = assert(nightshift.open(url))
    local ids = assert(handle:queue "q":push_many { { "a", 1 }, { "b", 2 } })
    local p = claimer(2)
    local other <close> = assert(core.open { url = url })
    assert(other:begin())
    assert(other:execute("SELECT 1 FROM nightshift_job WHERE id = ? FOR UPDATE", ids[1]))
    p:signal "KILL"
    eventually(function() return assert(handle:rescue { wait = 0 }).jobs == 1 end)
    assert.equal("1", sql "SELECT COUNT(*) FROM nightshift_lease")
    other:rollback()
    assert.equal(1, assert(handle:rescue { wait = 0 }).jobs)
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
  end)
end)

-- A handle that was closed while a session held the row of a job it had claimed did not give
-- the job back. It removed its holder, so the job could never be claimed.
describe("closing a handle", function()
  it("waits a moment for rows that others hold, and gives the jobs back", function()
    local url = db.fresh()
    local handle = assert(nightshift.open(url))
    local id = assert(handle:queue("q"):push("job", 1))
    assert(handle:queue("q"):claim())
    local locker = proc.start { proc.lua, "-e", ([[
      local db = require "nightshift".open(%q)
      db:transaction(function(tx)
        tx:execute("SELECT id FROM nightshift_job WHERE id = %d FOR UPDATE")
        print "locked"
        tx:execute "DO SLEEP(0.5)"
        return true
      end)]]):format(url, id) }
    locker:wait_line "locked"
    handle:close()
    local other <close> = assert(nightshift.open(url))
    assert.equal(id, assert(other:queue("q"):claim { wait = 20 }).id)
  end)
end)

-- The look after dead holders deleted the rows of the long dead with a DELETE that locked all
-- holders one after the other. So it waited for holders in the middle of a claim, which keeps
-- its holder's row locked until its commit.
describe("beside claims", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  local function ask(sql, ...) return assert(handle:execute(sql, ...))[1] end

  local function waits() return tonumber(ask("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'").Value) end

  local CLAIM = [[
  local db = assert(require "nightshift".open(arg[1]))
  assert(db:queue("q"):claim())
  print "claimed"
  require "nst".sleep(60)]]

  --- Adds one who has been dead for long.
  local function add_dead(id)
    assert(handle:execute([[INSERT INTO nightshift_holder
    (id, kind, host, pid, boot_id, connection, started, beat, version, dead)
    VALUES (?, 'host', 'h', 1, '', 1, 1, 1, '', 1)]], id))
  end

  it("the long dead are buried while the living claim", function()
    assert(q:push_many { { "a" }, { "b" } })
    local living <close> = assert(nightshift.open(url))
    assert(living:queue "q":claim())
    local id = ask("SELECT MAX(id) AS id FROM nightshift_holder").id
    local mortal = proc.start { proc.lua, fixture.file("claim.lua", CLAIM), url }
    mortal:wait_line "claimed"
    local locker <close> = assert(nightshift.open(url))
    local before = waits()
    assert(locker:transaction(function(tx)
      assert.equal(1, assert(tx:execute("UPDATE nightshift_holder SET cycle = cycle + 1 WHERE id = ?", id)).affected)
      add_dead(1)
      mortal:signal "KILL"
      mortal:wait(10)
      eventually(function()
        assert(handle:rescue())
        return ask("SELECT COUNT(*) AS n FROM nightshift_holder WHERE id = 1").n == 0
      end)
      return true
    end))
    assert.equal(before, waits())
  end)
end)

-- A program that cannot read /proc wrote an empty place, which is that of all such machines. A
-- process of another one that has no such number here counted as gone, and its jobs were given
-- to other holders while it lived.
it("a place has the name of the machine where there is no /proc", function()
  local CLAIMER = [[
  local handle = assert(require "nightshift".open(%q))
  assert(handle:queue "q":claim())
  print "claimed"
  require "nst".sleep(60)]]

  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  assert(handle:queue "q":push("job", 1))
  local alone = { "unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh" }
  if proc.run { "unshare", "--mount", "sh", "-c", "mount -t tmpfs none /proc", timeout = 60 } ~= 0 then
    pending "needs the right to mount"
    return
  end
  for i, word in ipairs { proc.lua, "-e", CLAIMER:format(url) } do alone[6 + i] = word end
  local claimer = proc.start(alone)
  claimer:wait_line "claimed"
  local machine = io.popen "hostname":read "l"
  assert.equal(machine, db.sql("SELECT TRIM(boot_id) FROM nightshift_holder", name))
end)

-- A waiter learns of a holder's death by its named lock. When the waiter was stopped meanwhile,
-- the lock became its own and stayed so. So the dead holder counted as alive for all other
-- holders, and its jobs stayed away as long as the waiter was stopped.
describe("a process that is stopped while it waits", function()
  local CLAIMER = [[
  local db = assert(require "nightshift".open(%q))
  assert(db:queue "q":claim())
  print "holds"
  io.flush()
  os.execute "sleep 60"]]

  local WAITER = [[
  local db = assert(require "nightshift".open(%q))
  db:queue "none":claim{ wait = 60 }]]

  local url, name
  before_each(function() url, name = db.fresh() end)

  local function sql(text) return db.sql(text, name) end

  local function start(program, line)
    local p = proc.start { proc.lua, "-e", program:format(url) }
    if line then p:wait_line(line) end
    return p
  end

  local function sleepers()
    return tonumber(sql [[SELECT COUNT(*) FROM information_schema.processlist
      WHERE db = DATABASE() AND info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state = 'User lock']])
  end

  -- Its sleep has seen that another holder is there: it began after that one's claim.
  local function watches()
    eventually(function() return sleepers() == 1 end)
    sql "CALL nightshift_ring()"
    eventually(function() return sleepers() == 1 end)
  end

  -- As if they ran where process ids say nothing.
  local function elsewhere() sql "UPDATE nightshift_holder SET boot_id = 'elsewhere'" end

  local function aged_server()
    eventually(function()
      return tonumber(sql [[SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS
        WHERE VARIABLE_NAME = 'UPTIME']]) >= 15
    end)
  end

  local stops = {
    handle = function() return start(WAITER) end,
    host = function() return host.start(url, "return { a = function() end }", { "--queues", "none" }) end,
  }
  for kind, begin in pairs(stops) do
    for _, where in ipairs { "this machine", "another one" } do
      it(("keeps no jobs of a program on %s, as a %s"):format(where, kind), function()
        local handle <close> = assert(nightshift.open(url))
        assert(handle:queue "q":push("a", 1))
        local stopped = begin()
        local dies = start(CLAIMER, "holds")
        watches()
        stopped:signal "STOP"
        if where == "another one" then
          aged_server()
          elsewhere()
        end
        dies:signal "KILL"
        dies:wait()
        local since = nightshift.clock()
        assert.equal(2, assert(handle:queue "q":claim { wait = 30 }, "no job came back").run)
        local took = nightshift.clock() - since
        assert.is_true(took < proc.limit(9), took) -- by the round: 10 s
        stopped:signal "CONT"
      end)
    end
  end
end)

-- A machine that dies takes all its holders with it. Their graces, a second each, have to
-- run together for all of their jobs to be back within two.
it("fifty holders of another machine that die together are missed together", function()
  local HOLDERS = [[
  local nightshift = require "nightshift"
  local handles = {}
  for i = 1, 50 do
    handles[i] = assert(nightshift.open(%q))
    assert(handles[i]:queue "q":claim())
  end
  print "hold"
  io.flush()
  os.execute "sleep 60"]]

  local url, name = db.fresh()
  eventually(function()
    return tonumber((db.sql "SHOW GLOBAL STATUS LIKE 'Uptime'":match "%d+$")) >= 15
  end, 20)
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  for i = 1, 50 do assert(q:push("a", i)) end
  local p = proc.start { proc.lua, "-e", HOLDERS:format(url) }
  p:wait_line("hold", 20)
  assert.is_nil(q:claim())
  db.sql("UPDATE nightshift_holder SET boot_id = 'elsewhere'", name)
  local since = nightshift.clock()
  p:signal "KILL"
  local back = 0
  while back < 50 do
    local jobs = assert(q:claim_many(50, { wait = 20 }))
    assert.is_true(#jobs > 0, "no more came back")
    back = back + #jobs
  end
  local took = nightshift.clock() - since
  assert.is_true(took < proc.limit(9), took) -- by the round 10 s, one by one 50
end)
