-- Jobs that were lost with their holders: which are given back, which are blamed, and when the
-- rows of the dead go.

local core = require "nightshift.core"
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
