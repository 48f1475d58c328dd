-- Jobs of programs that die: they come back to living holders.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

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

  it("fifty programs that die at once are rescued together", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local items, programs = {}, {}
    for i = 1, 51 do items[i] = { "a", i } end
    assert(q:push_many(items))
    for i = 1, 50 do programs[i] = claimer(1) end
    assert(q:claim())
    assert.equal(51, holders())
    for _, p in ipairs(programs) do p:signal "KILL" end
    local started = nightshift.clock()
    local seen = 0
    while seen < 50 do
      seen = seen + #assert(q:claim_many(50, { wait = 20 }))
    end
    assert.is_true(nightshift.clock() - started < proc.limit(9)) -- one by one: 50 s
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
