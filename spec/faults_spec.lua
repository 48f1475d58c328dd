-- Faults of the world around. Deadlocks, lock waits and locked tables, in every verb and in a host:
-- real ones, made by another session that holds the rows or tables. Tables, rights and rows that
-- are not as expected. Clocks that jump: the server's, which is the only one that counts, and a
-- host's, which does not. The server's own trouble: it spends nothing of a job, is waited for, and
-- is named.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- Each table that some verb writes, and when its trigger comes.
local TRIGGERS = { job = "INSERT", lease = "INSERT", finished = "INSERT", attempt = "INSERT", running = "INSERT",
  ready = "INSERT", unique_key = "INSERT", queue = "UPDATE" }

local function tangle(name)
  local sql = { [[CREATE TABLE tangle (id INT PRIMARY KEY, n INT NOT NULL); CREATE TABLE junk (n INT PRIMARY KEY);
    INSERT INTO tangle VALUES (1, 0), (2, 0);]] }
  for on, event in pairs(TRIGGERS) do
    sql[#sql + 1] = ([[CREATE TRIGGER tangle_%s BEFORE %s ON nightshift_%s FOR EACH ROW BEGIN
      UPDATE tangle SET n = n + 1 WHERE id = 2; UPDATE tangle SET n = n + 1 WHERE id = 1; END//]]):format(on, event, on)
  end
  db.sql(sql[1] .. "\nDELIMITER //\n" .. table.concat(sql, "\n", 2), name)
end

local function saboteur(url, how)
  local p = proc.start { proc.lua, "spec/support/crew.lua", "saboteur", url, how }
  p:wait_line "^armed"
  return p
end

-- What stands before the verb, the verb itself, and the outcome it leads to.
local function claimed(q)
  assert(q:push "job")
  return assert(q:claim())
end
local verbs = {
  push = { nil, function(q) return q:push("job", 1, { unique = "k" }) end, "ready" },
  push_many = { nil, function(q) return q:push_many { { "job", 1 }, { "job", 2 } } end },
  claim = { function(q) return assert(q:push "job") end, function(q) return q:claim() end, "running" },
  ack = { claimed, function(_, job) return job:ack "result" end, "done" },
  fail = { claimed, function(_, job) return job:fail "no" end, "scheduled" },
  discard = { claimed, function(_, job) return job:discard "no" end, "dead" },
  ["ack with a child"] = { claimed, function(_, job)
    if not job._children then job:spawn "child" end
    return job:ack()
  end, "done" },
  ["again with a child"] = { claimed, function(_, job)
    if not job._children then job:spawn "child" end
    return job:again(60)
  end, "scheduled" },
  release = { claimed, function(_, job) return job:release() end, "ready" },
  run_now = { function(q) return assert(q:push("job", 1, { delay = 60 })) end,
    function(q, id) return q._db:run_now(id) end, "ready" },
  cancel = { function(q) return assert(q:push "job") end, function(q, id) return q._db:cancel(id) end, "cancelled" },
  pause = { claimed, function(q) return q:pause() end, "running" },
  retry = { function(q)
    local job = claimed(q)
    assert(job:discard "no")
    return job.id
  end, function(q, id) return q._db:retry(id) end, "ready" },
}
-- One statement by itself is not run again: it says BUSY, and may be repeated.
local once = {
  progress = { claimed, function(_, job) return job:progress(0.5) end, "running" },
  ["a transaction"] = { claimed, function(q, job)
    return q._db:transaction(function(tx)
      local id, message, code = tx:queue("q"):push "job"
      if not id then return nil, message, code end
      return job:ack()
    end)
  end, "done" },
}

for how, counter in pairs { deadlock = "deadlocks", wait = "lock_waits" } do
  describe(("a lock that another session holds (%s)"):format(how), function()
    local url, handle, q

    before_each(function()
      local name
      url, name = db.fresh()
      handle = assert(nightshift.open(url))
      assert(handle:execute "SET SESSION innodb_lock_wait_timeout=1")
      q = handle:queue "q"
      q._db = handle
      assert(q:push "warm-up")
      assert(q:claim()):ack()
      tangle(name)
    end)
    after_each(function() handle:close() end)

    local function state(before) return handle:job(type(before) == "table" and before.id or before).state end

    for verb, case in pairs(verbs) do
      it("is met by " .. verb .. ", which is run again unseen", function()
        local before = case[1] and case[1](q)
        local other = saboteur(url, how)
        local result, message = case[2](q, before)
        assert.is_truthy(result, message)
        other:wait_line "^sprung"
        local n = handle:stats().counters[counter]
        assert.is_true(n >= 1 and n <= (how == "wait" and 3 or 1), n)
        if case[3] then assert.equal(case[3], state(before or result)) end
      end)
    end

    for verb, case in pairs(once) do
      it("is met by " .. verb .. ", which says BUSY and can be given again", function()
        local before = case[1](q)
        local other = saboteur(url, how)
        local none, _, code = case[2](q, before)
        assert.same({ nil, "BUSY" }, { none, code })
        other:wait_line "^sprung"
        assert.is_truthy(case[2](q, before))
        assert.equal(case[3], state(before))
      end)
    end

    it("is met by a host, which neither loses a job nor runs one twice", function()
      local ran = fixture.file("ran", "")
      local other = saboteur(url, how)
      local script = ([[return { note = function(job)
        local file <close> = io.open(%q, "a")
        file:write(job.id, "\n")
      end }]]):format(ran)
      local pusher = proc.start { proc.lua, "-e", ([[
        local q = require "nightshift".open(%q):queue "q"
        local items = {}
        for i = 1, 50 do items[i] = { "note", i } end
        assert(q:push_many(items))]]):format(url) } -- the first to meet it
      other:wait_line "^sprung"
      assert.equal(0, pusher:wait())
      other = saboteur(url, how)
      local h = host.start(url, script)
      other:wait_line "^sprung"
      local function noted() return #handle:execute "SELECT id FROM nightshift_finished WHERE name = 'note'" end
      eventually(function() return noted() == 50 end, 60)
      -- and the doctor says which statement of a host has met it
      local check, said = how == "deadlock" and "deadlocks" or "waits", nil
      eventually(function()
        for _, found in ipairs(nightshift.decode((select(2, proc.nightshift({ "doctor", "--json" }, url)))).findings) do
          if found.name == check then said = found.says end
        end
        return said:find "; hosts here have run again for [%l_A-Z]+ %(%d+%)"
      end)
      h:signal "TERM"
      assert.equal(0, h:wait())
      local seen = 0
      for _ in io.lines(ran) do seen = seen + 1 end
      assert.equal(50, seen)
      assert.equal(0, #handle:execute "SELECT id FROM nightshift_lease")
    end)
  end)
end

-- A session that holds whole tables until two other sessions wait for them.
local HOLDS = {
  ["LOCK TABLES"] = { "LOCK TABLES nightshift_job WRITE, nightshift_lease WRITE", nil, "UNLOCK TABLES" },
  ["an ALTER TABLE behind an open transaction"] = { "START TRANSACTION; SELECT COUNT(*) FROM nightshift_job",
    "ALTER TABLE nightshift_job COMMENT 'altered'", "COMMIT" },
}

describe("a table that somebody has locked", function()
  for what, case in pairs(HOLDS) do
    it("is waited for by handles and hosts: " .. what, function()
      local url, name = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      local q = handle:queue "q"
      local go = fixture.dir() .. "/go"
      local h = host.start(url, ([[return { hold = function()
        print "holds"
        while not io.open %q do require "nightshift.core".sleep(0.02) end
        return "held"
      end }]]):format(go))
      local id = q:push "hold"
      h:wait_line "^holds"
      local holder = proc.start { proc.lua, "-e", ([[
        local nst = require "nst"
        local watch = require "nightshift".open(%q)
        local core = require "nightshift.core"
        local db = core.open { url = %q }
        local verbs = { ["START TRANSACTION"] = db.begin, COMMIT = db.commit }
        local function run(text)
          for s in (text .. ";"):gmatch "(.-); *" do assert((verbs[s] or db.execute)(db, s)) end
        end
        run(%q)
        print "locked"
        io.flush()
        repeat
          nst.sleep(0.02)
          local n = watch:execute("SELECT COUNT(*) AS n FROM information_schema.PROCESSLIST " ..
            "WHERE db = DATABASE() AND state LIKE 'Waiting for table%%'")[1].n
        until n >= %d
        run(%q)
        print "free"]]):format(url, url, case[1], case[2] and 3 or 2, case[3]) }
      holder:wait_line "^locked"
      local alter = case[2] and proc.start { proc.lua, "-e", ([[
        assert(require "nightshift.core".open { url = %q }:execute(%q))]]):format(url, case[2]) }
      if alter then
        eventually(function()
          return db.sql("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE db = '" .. name ..
            "' AND info LIKE 'ALTER%' AND state LIKE 'Waiting for table%'") == "1"
        end)
      end
      assert(io.open(go, "w")):close() -- so it ends while the table is locked
      local job = assert(q:push("hold"))
      assert.is_truthy(job)
      holder:wait_line "^free"
      for _, one in ipairs { id, job } do
        eventually(function() return handle:job(one).state == "done" end)
        assert.same({ "held", 1 }, { handle:job(one).result, handle:job(one).run })
      end
      if alter then assert.equal(0, alter:wait()) end
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end

  it("for longer than the wait for it is BUSY, and the handle is good afterwards", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:execute "SET SESSION lock_wait_timeout=1")
    local q = handle:queue "q"
    assert(q:push "first")
    local holder <close> = assert(nightshift.open(url))
    assert(holder:execute "LOCK TABLES nightshift_running WRITE")
    local job = assert(q:claim())
    local none, _, code = job:progress(0.5)
    assert.same({ nil, "BUSY" }, { none, code })
    assert(holder:execute "UNLOCK TABLES")
    assert(job:progress(0.5))
    assert(job:ack())
  end)
end)

-- Tables, rights and rows that are not as a running host expects them.
describe("tables:", function()
  -- `hold` ends when there is a file.
  local SCRIPT = [[return {
  hold = function(job)
    print "holds"
    while not io.open(job.payload) do require "nightshift.core".sleep(0.02) end
    return "held"
  end,
  noop = function() return "ran" end,
}]]

  -- Each: what breaks, what mends it. The user of the host is USER.
  local troubles = {
    ["a table that is gone"] = { "RENAME TABLE nightshift_lease TO gone", "RENAME TABLE gone TO nightshift_lease" },
    ["a table of verdicts that is gone"] = { "RENAME TABLE nightshift_finished TO gone",
      "RENAME TABLE gone TO nightshift_finished" },
    ["a newer schema, at its next connect"] = {
      "UPDATE nightshift_meta SET value = value + 1 WHERE name = 'schema'",
      "UPDATE nightshift_meta SET value = value - 1 WHERE name = 'schema'", true },
    ["an account that is locked, at its next connect"] = { "ALTER USER USER@localhost ACCOUNT LOCK",
      "ALTER USER USER@localhost ACCOUNT UNLOCK", true, "db.lost" },
  }

  describe("a running host that meets", function()
    for what, case in pairs(troubles) do
      it(what .. " says so, goes on trying and loses nothing", function()
        local url, name = db.fresh()
        local where, user = db.user(url, "SELECT, INSERT, UPDATE, DELETE, EXECUTE")
        local handle <close> = assert(nightshift.open(url))
        local q = handle:queue "q"
        local function sql(text) return db.sql((text:gsub("DATABASE", name):gsub("USER@", user .. "@")), name) end
        local h = host.start(where, SCRIPT)
        local go = fixture.dir() .. "/go"
        local id = q:push("hold", go)
        local waiting = q:push("noop", nil, { delay = 1 })
        h:wait_line "^holds"
        sql(case[1])
        if case[3] then
          for thread in sql("SELECT id FROM information_schema.PROCESSLIST WHERE user = '" .. user
            .. "'"):gmatch "%d+" do
            pcall(sql, "KILL " .. thread)
          end
        end
        assert(io.open(go, "w")):close()
        h:wait_line("event=" .. (case[4] or "db.error"), 20, case[4] and 1 or 2)
        sql(case[2])
        for _, one in ipairs { id, waiting } do
          eventually(function() return handle:job(one).state == "done" end)
          assert.equal(1, handle:job(one).run)
        end
        h:signal "TERM"
        assert.equal(0, h:wait())
        assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
      end)
    end
  end)

  describe("a process id that somebody else has by now", function()
    it("keeps its dead holder alive for the grace only, and its owner is left alone", function()
      local url, name = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      local q = handle:queue "q"
      assert(q:push "a")
      local p = proc.start { proc.lua, "-e", ([[
      local db = require "nightshift".open(%q)
      assert(db:queue "q":claim())
      print "holds"
      io.flush()
      os.execute "sleep 60"]]):format(url) }
      p:wait_line "^holds"
      local bystander = proc.start { "sleep", "60" }
      -- a number comes again when the rest have been used: the holder is older
      db.sql(("UPDATE nightshift_holder SET pid = %d, started = started - 60000000"):format(bystander.pid), name)
      p:signal "KILL"
      local start = nst.clock()
      assert.equal("a", assert(q:claim { wait = 40 }).name)
      local took = nst.clock() - start
      assert.is_true(took >= 0.9 and took < proc.limit(23), took)
      -- 15 s after the server's start, 1 s else; by the round 10 more
      assert.is_false(bystander:ended())
    end)
  end)

  describe("a verdict that comes twice", function()
    it("is refused the second time: of one handle, of another, and after the job ran again", function()
      local url, name = db.fresh()
      local a <close> = assert(nightshift.open(url))
      local b <close> = assert(nightshift.open(url))
      local q = a:queue "q"
      local id = assert(q:push("job", nil, { max_attempts = 5 }))
      local first = assert(q:claim())
      assert(first:fail("once", { retry_in = 0 }))
      assert.equal("STALE", select(3, first:ack()))
      local second = eventually(function() return b:queue "q":claim() end)
      first._settled = nil -- as a program would that lost track of it
      assert.equal("STALE", select(3, first:ack "first"))
      assert(second:ack "second")
      second._settled = nil
      assert.equal("STALE", select(3, second:ack "third"))
      assert.equal("second", a:job(id).result)
      assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_finished", name))
    end)
  end)
end)

-- ------------------------------------------------------------------- clocks

-- A wall clock that can be set for single processes; the monotonic one stays.
-- See spec/c/meddle.c.
--
--     local its = clock.new()
--     local server = its.shown(db.server)  -- or: proc.start { …, env = its.env }
--     its.off(-86400)                      -- a day back, now
local clock = {}

--- A clock, right at first.
function clock.new()
  local path = fixture.file("clock", ("i8"):pack(0))
  local self = { env = { LD_PRELOAD = proc.build .. "/meddle.so", MEDDLE_CLOCK = path } }

  --- Sets it off by so many seconds, for all who have it.
  function self.off(seconds)
    local file <close> = assert(io.open(path, "r+b"))
    file:write(("i8"):pack(seconds))
  end

  --- Calls a function with processes that have it, and gives what that returned.
  function self.shown(fn, ...)
    for name, value in pairs(self.env) do nst.setenv(name, value) end
    local _ <close> = setmetatable({}, { __close = function()
      for name in pairs(self.env) do nst.setenv(name, nil) end
    end })
    return (fn(...))
  end

  return self
end

describe("clocks:", function()
  local DAY = 86400

  local SCRIPT = [[return {
  when = function(job) return job:db():execute("SELECT UNIX_TIMESTAMP() AS t")[1].t end,
  hold = function() os.execute "echo holds; sleep 2" return "held" end,
  noop = function() return "ran" end,
}]]

  describe("the server's clock", function()
    local its, server, url, handle, q

    setup(function()
      its = clock.new()
      server = its.shown(db.server)
    end)
    before_each(function()
      its.off(0)
      url = server:fresh()
      handle = assert(nightshift.open(url))
      q = handle:queue "q"
    end)
    after_each(function()
      handle:close()
      its.off(0)
    end)

    local function sql(text) return server:sql(text, url:match "/([^/?]+)%?") end
    local function done(id, timeout)
      return eventually(function()
        local job = handle:job(id)
        return job.state == "done" and job
      end, timeout)
    end
    local function time() return tonumber((server:sql "SELECT UNIX_TIMESTAMP()")) end

    it("is the one that jumps in these tests", function()
      local before = time()
      its.off(DAY)
      assert.is_true(math.abs(time() - before - DAY) < 60)
    end)

    for _, jump in ipairs { DAY, -DAY } do
      it(("jumps by %+d s: what runs goes on, what is pushed starts at once, nobody is taken for dead"):format(jump),
        function()
          local h = host.start(url, SCRIPT)
          local other = host.start(url, SCRIPT)
          for _ = 1, 20 do done(q:push "noop") end
          local id = q:push "hold"
          eventually(function() return h:transcript():find "holds" or other:transcript():find "holds" end)
          its.off(jump)
          for _ = 1, 5 do
            local start = nst.clock()
            done(q:push "noop")
            assert.is_true(nst.clock() - start < proc.limit(9), nst.clock() - start)
          end
          assert.equal(1, done(id).run)
          for _, one in ipairs { h, other } do
            assert.is_nil(one:transcript():find "holder.lost")
            one:signal "TERM"
            assert.equal(0, one:wait())
          end
          assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_attempt")
        end)
    end

    it("jumps back: a handle finds what is pushed into a queue it has already emptied", function()
      for i = 1, 10 do
        q:push("early", i)
        assert(q:claim()):ack()
      end
      its.off(-DAY)
      local other <close> = assert(nightshift.open(url))
      assert(other:queue "q":push "late")
      assert.equal("late", assert(q:claim { wait = 20 }).name)
    end)

    it("jumps ahead: a delayed job is due, an untouched lease is over, and its late verdict is STALE", function()
      assert(q:push("leased"))
      local job = assert(q:claim { lease = 3600 })
      local id = assert(q:push("later", nil, { delay = 3600 }))
      its.off(DAY)
      local other <close> = assert(nightshift.open(url))
      local seen = {}
      for _ = 1, 2 do
        local one = assert(other:queue "q":claim { wait = 30 })
        seen[one.name] = one.run
        assert(one:ack())
      end
      assert.same({ leased = 2, later = 1 }, seen)
      assert.equal("done", handle:job(id).state)
      assert.equal("STALE", select(3, job:ack()))
    end)
  end)

  describe("a host's clock", function()
    if os.getenv "SAN" then return pending "sanitizers want to be loaded first" end

    it("may be off and jump: jobs are due by the server's, and nobody is taken for dead", function()
      local its = clock.new()
      local url, name = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      local q = handle:queue "q"
      its.off(-DAY)
      local h = host.start(url, SCRIPT, nil, its.env)
      local other = host.start(url, SCRIPT)
      local held = q:push "hold"
      for _, jump in ipairs { 0, DAY, -30 * DAY } do
        its.off(jump)
        local start = nst.clock()
        local ids = { q:push "when", q:push("when", nil, { delay = 0.4 }) }
        for _, id in ipairs(ids) do
          local job = eventually(function()
            local job = handle:job(id)
            return job.state == "done" and job
          end)
          assert.is_true(math.abs(job.result - os.time()) < 60) -- wrong: a day
        end
        local took = nst.clock() - start
        assert.is_true(took >= 0.4 and took < proc.limit(9), took)
      end
      eventually(function() return handle:job(held).state == "done" end)
      assert.equal(1, handle:job(held).run)
      h:wait_line "ts=%d+-%d+-%d+T"
      for _, one in ipairs { h, other } do
        assert.is_nil(one:transcript():find "holder.lost")
        one:signal "TERM"
        assert.equal(0, one:wait())
      end
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_attempt", name))
    end)

    it("is read for the log alone", function()
      local found = {}
      local CLOCKS = "grep -lE 'CLOCK_REALTIME|gettimeofday|[^_a-z]time\\('"
      for line in io.popen(CLOCKS .. " src/*/*.c src/*/*/*.c | sort"):lines() do
        found[#found + 1] = line
      end
      assert.same({ "src/base/log.c" }, found)
    end)
  end)
end)

-- A server with a clock that was set back behind its start had been up for less than no time. A
-- holder that died on another machine was waited for as long as the step.
describe("a server whose clock is set back behind its start", function()
  it("lets those be rescued who die elsewhere", function()
    local its = clock.new()
    local server = its.shown(db.server)
    local url, name = server:fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push "a")
    local p = proc.start { proc.lua, "-e", ([[
      local db = require "nightshift".open(%q)
      local job = db:queue "q":claim()
      print("holds " .. job.id)
      io.flush()
      os.execute "sleep 60"]]):format(url) }
    p:wait_line "^holds"
    server:sql("UPDATE nightshift_holder SET boot_id = 'elsewhere'", name)
    its.off(-86400)
    p:signal "KILL"
    assert.equal("a", assert(q:claim { wait = 40 }).name)
  end)
end)

-- ----- the server's own trouble

-- A full disk, a full table or a killed query counted as the fault of the verdict. A host
-- turned results into failures, or dropped them.
describe("a verdict that meets the server's own trouble", function()
  for number, trouble in pairs { [1021] = "a full disk", [1114] = "a full table", [1317] = "a killed query" } do
    it("is BUSY and can be given again: " .. trouble, function()
      local url, name = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      local id = assert(handle:queue("q"):push("job", 1))
      local job = assert(handle:queue("q"):claim())
      db.sql(([[CREATE TRIGGER trouble BEFORE INSERT ON nightshift_finished FOR EACH ROW
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = %d]]):format(number), name)
      local none, _, code = job:ack "result"
      assert.is_nil(none)
      assert.equal("BUSY", code)
      db.sql("DROP TRIGGER trouble", name)
      assert.is_true((job:ack "result"))
      assert.equal("result", assert(handle:job(id)).result)
    end)
  end
end)

-- A host with a user that may not run every statement said it was ready, logged one
-- error and then worked nothing, for ever.
describe("a host whose user lacks a privilege", function()
  for _, granted in ipairs { "SELECT", "SELECT, INSERT, UPDATE, EXECUTE" } do
    it("ends at once with 78 and names what is denied: only " .. granted, function()
      local url = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      assert(handle:queue("q"):push("a", 1))
      local file = fixture.file("jobs.lua", "return { a = function() end }")
      local status, _, err = proc.nightshift({ "work", file, "--drain" }, (db.user(url, granted)))
      assert.equal(78, status)
      assert.is_truthy(err:find("command denied", 1, true), err)
      assert.equal("ready", assert(handle:jobs {})[1].state)
    end)
  end
end)

-- A host that had lost a privilege never noticed that it was granted again. The server looks
-- rights up when a connection is made, and the host kept its own.
describe("a running host whose right is taken away", function()
  it("says so, and works on when it is given back", function()
    local url, name = db.fresh()
    local where, user = db.user(url, "SELECT, INSERT, UPDATE, DELETE, EXECUTE")
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local go = fixture.dir() .. "/go"
    local h = host.start(where, host.holding(go))
    local id = q:push "hold"
    h:wait_line "^holds"
    db.sql(("REVOKE DELETE ON `%s`.* FROM %s@localhost"):format(name, user))
    for thread in db.sql("SELECT id FROM information_schema.PROCESSLIST WHERE user = '" .. user .. "'"):gmatch "%d+" do
      pcall(db.sql, "KILL " .. thread)
    end
    assert(io.open(go, "w")):close()
    h:wait_line("event=db.error code=DENIED", 20, 2)
    local waiting = q:push "hold"
    db.sql(("GRANT DELETE ON `%s`.* TO %s@localhost"):format(name, user))
    for _, one in ipairs { id, waiting } do
      eventually(function() return handle:job(one).state == "done" end)
      assert.equal(1, handle:job(one).run)
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A verdict that could not be written because a column of ours was missing was taken for
-- refused. The job failed without a line in the log and ran again, until its attempts were
-- spent.
describe("a column that is gone", function()
  local TABLE = "ALTER TABLE nightshift_finished "

  local url, name, handle

  with_database(function(opened, _, at, database) handle, url, name = opened, at, database end)

  it("is waited for by a host, which keeps its verdicts", function()
    local go = fixture.dir() .. "/go"
    local h = host.start(url, host.holding(go))
    local id = handle:queue "q":push "hold"
    h:wait_line "^holds"
    db.sql(TABLE .. "RENAME COLUMN holder TO gone", name)
    assert(io.open(go, "w")):close()
    h:wait_line("event=db.error code=SCHEMA", 20, 2)
    db.sql(TABLE .. "RENAME COLUMN gone TO holder", name)
    eventually(function() return handle:job(id).state == "done" end)
    assert.same({ "held", 1 }, { handle:job(id).result, handle:job(id).run })
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("is SCHEMA to a handle, whose claim stands", function()
    assert(handle:queue "q":push "job")
    local job = assert(handle:queue "q":claim())
    db.sql(TABLE .. "RENAME COLUMN holder TO gone", name)
    assert.equal("SCHEMA", select(3, job:ack "result"))
    db.sql(TABLE .. "RENAME COLUMN gone TO holder", name)
    assert(job:ack "result")
    assert.equal("SQL", select(3, handle:execute "SELECT nothing_of_ours FROM nightshift_job"))
  end)
end)

-- An error of the server that no table knew counted as the fault of the verdict it met. A full
-- tmpdir, a limit or a setting ended finished jobs as dead, spent attempts, or had them run
-- again and again.
describe("trouble with a verdict:", function()
  -- Full file (3), no table of a descriptor (20, 23), record of another file (1026), old key
  -- file (1034), no memory to sort (1038). Rows not to be updated (1175). Transaction over its
  -- cache (1197), too many statements (1461), statement to be prepared again (1615), too many
  -- transactions (1637), STATEMENT (1665). Read-only transaction (1792) or table (1836), index
  -- of another making (1874), table lost by its engine (1932), and one that is not known yet.
  local TROUBLES = { 3, 20, 23, 1026, 1034, 1038, 1175, 1197, 1461, 1615, 1637, 1665, 1792, 1836, 1874, 1932, 4999 }
  local VALUES = { 1048, 1264, 1265, 1292, 1366, 1406, 1644, 4025, 4038, 4078 }

  local HANDLERS = [[
  local function wait(path)
    while not io.open(path) do require "nightshift.core".sleep(0.01) end
  end
  return {
    quick = function() return 1 end,
    slow = function(job) wait(job.payload.go) return ("x"):rep(job.payload.size) end,
  }
]]

  -- What is written of a job that ends so fails with an error of our choice.
  local function plant(name, number)
    db.sql(([[CREATE TABLE trouble (number INT, sort VARCHAR(20) COLLATE utf8mb4_nopad_bin);
    INSERT INTO trouble VALUES (%d, 'done');
    DELIMITER $$
    CREATE TRIGGER trouble BEFORE INSERT ON nightshift_finished FOR EACH ROW BEGIN
      DECLARE v_number INT DEFAULT NULL;
      SELECT MAX(number) INTO v_number FROM trouble WHERE sort = NEW.outcome AND NEW.name <> 'quick';
      IF v_number IS NOT NULL THEN
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = v_number, MESSAGE_TEXT = 'planted';
      END IF;
    END$$]]):format(number), name)
  end

  local function runs(handle, id)
    local job = assert(handle:job(id))
    return { job.state, job.run, job.attempts }
  end

  describe("the server's own trouble with a verdict", function()
    local handle, q, url, name
    with_database(function(...) handle, q, url, name = ... end)

    it("is BUSY for a program, spends nothing, and the verdict can be given again", function()
      plant(name, 0)
      for _, number in ipairs(TROUBLES) do
        assert(handle:execute("UPDATE trouble SET number = ?", number))
        local id = assert(q:push("job", 1, { max_attempts = 1 }))
        local job = assert(q:claim())
        local none, message, code = job:ack "result"
        assert.same({ nil, "BUSY" }, { none, code }, message)
        assert.is_truthy(message:find("(" .. number .. ")", 1, true), message)
        assert(handle:execute "UPDATE trouble SET number = NULL")
        assert(job:ack "result")
        assert.same({ "done", 1, 0 }, runs(handle, id))
      end
    end)

    it("is waited for by a host, which goes on with all else", function()
      plant(name, 0)
      local h = host.start(url, HANDLERS)
      local go = fixture.file("go", "")
      for _, number in ipairs(TROUBLES) do
        assert(handle:execute("UPDATE trouble SET number = ?", number))
        local ill = assert(q:push("slow", { go = go, size = 10 }, { max_attempts = 1 }))
        h:wait_line("event=db.error .*number=" .. number .. " ")
        local well = assert(q:push "quick")
        eventually(function() return handle:job(well).state == "done" end)
        assert.same({ "running", 1, 0 }, runs(handle, ill))
        assert(handle:execute "UPDATE trouble SET number = NULL")
        eventually(function() return handle:job(ill).state == "done" end)
        assert.same({ "done", 1, 0 }, runs(handle, ill))
      end
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("is not what a value causes: then the job fails, and the failure says why", function()
      plant(name, 0)
      local h = host.start(url, HANDLERS)
      local go = fixture.file("go", "")
      for _, number in ipairs(VALUES) do
        assert(handle:execute("UPDATE trouble SET number = ?", number))
        local id = assert(q:push("slow", { go = go, size = 10 }, { max_attempts = 1 }))
        eventually(function() return handle:job(id).state == "dead" end)
        assert.matches("the verdict was refused: .*%(" .. number .. "%)", handle:job(id).error)
      end
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("keeps what was refused twice, and does not run it again", function()
      plant(name, 1644)
      db.sql("INSERT INTO trouble VALUES (1644, 'dead')", name)
      local h = host.start(url, HANDLERS)
      local id = assert(q:push("slow", { go = fixture.file("go", ""), size = 10 }, { max_attempts = 1 }))
      h:wait_line "event=db.error .*number=1644 .*verdicts=1"
      assert.same({ "running", 1, 0 }, runs(handle, id))
      -- A try says first done, then dead: it must find dead refused to the end.
      db.sql("DELETE FROM trouble WHERE sort = 'done'", name)
      eventually(function() return handle:job(id).state == "done" end)
      assert.same({ "done", 1, 0 }, runs(handle, id))
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("is one line at a time for many verdicts, and all are written in the end", function()
      plant(name, 1175)
      local begun = fixture.dir() .. "/"
      local h = host.start(url, ([[
        local function begin(job)
          local file <close> = io.open(%q .. job.id, "a")
          file:write "x"
        end
        return {
          quick = function(job) begin(job) return 1 end,
          slow = function(job) begin(job) return ("x"):rep(job.payload.size) end,
        }]]):format(begun))
      local jobs = {}
      for i = 1, 150 do jobs[i] = { i % 3 == 0 and "slow" or "quick", { size = 10 }, { max_attempts = 1 } } end
      local ids = assert(q:push_many(jobs))
      h:wait_line "event=db.error .*number=1175 "
      eventually(function()
        return db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name) == "100"
      end)
      db.sql("DELETE FROM trouble", name)
      eventually(function()
        return db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name) == "150"
      end)
      -- one that was given back before it began has another run
      for _, id in ipairs(ids) do
        local job = assert(handle:job(id))
        assert.same({ "done", 0, "x" }, { job.state, job.attempts, io.open(begun .. id):read "a" })
      end
      h:signal "TERM"
      assert.equal(0, h:wait())
      assert.same({}, host.events(select(2, h:text()), "job.stale"))
    end)
  end)

  describe("a full tmpdir of a server with a binary log", function()
    local server, folder

    setup(function()
      folder = fixture.dir() .. "/small"
      if not os.execute(("mkdir %s && mount -t tmpfs -o size=3m none %s 2>/dev/null"):format(folder, folder)) then
        folder = nil
        return
      end
      server = db.server("log-bin\nbinlog-format=ROW\ntmpdir=" .. folder .. "\n")
    end)
    teardown(function()
      if not folder then return end
      server:remove()
      os.execute("umount " .. folder)
    end)

    it("has large results wait, with nothing spent; small ones are written", function()
      if not folder then
        pending "no tmpfs can be mounted here"
        return
      end
      local url = server:fresh()
      local handle <close> = assert(nightshift.open(url))
      local q = handle:queue "q"
      local h = host.start(url, HANDLERS)
      local go = fixture.dir() .. "/go"
      local single = assert(q:push("slow", { go = go, size = 300000 }, { max_attempts = 1 }))
      local often = assert(q:push("slow", { go = go, size = 300000 }, { max_attempts = 10 }))
      eventually(function() return runs(handle, often)[1] == "running" end)
      os.execute(("head -c 10M /dev/zero > %s/filler 2>/dev/null"):format(folder))
      assert(io.open(go, "w")):close()
      h:wait_line "event=db.error .*number=3 .*verdicts="
      local small = assert(q:push("slow", { go = go, size = 10 }))
      eventually(function() return handle:job(small).state == "done" end)
      assert.same({ { "running", 1, 0 }, { "running", 1, 0 } }, { runs(handle, single), runs(handle, often) })
      assert(os.remove(folder .. "/filler"))
      eventually(function() return handle:job(single).state == "done" and handle:job(often).state == "done" end)
      assert.same({ { "done", 1, 0 }, { "done", 1, 0 } }, { runs(handle, single), runs(handle, often) })
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end)
end)

-- A variable that the server had set for all sessions lost jobs (completion_type=CHAIN), left
-- them ready (sql_select_limit), or kept a host from working at all. Doctor ended with an
-- internal error, and what other options refuse was taken for a read-only server.
describe("under what a server sets for all sessions,", function()
  local server, url

  setup(function() server = db.server() end)
  before_each(function() url = server:fresh() end)

  -- The setting, and what puts it back.
  local SETTINGS = {
    { "completion_type=CHAIN", "completion_type=NO_CHAIN" },
    { "completion_type=2", "completion_type=NO_CHAIN" },
    { "sql_select_limit=1", "sql_select_limit=18446744073709551615" },
    { "sql_safe_updates=1", "sql_safe_updates=0" },
    { "tx_read_only=1", "tx_read_only=0" },
    { "sort_buffer_size=1024", "sort_buffer_size=2097152" },
    { "max_join_size=10, GLOBAL sql_big_selects=0", "max_join_size=18446744073709551615, GLOBAL sql_big_selects=1" },
    { "max_recursive_iterations=0", "max_recursive_iterations=1000" },
    { "sql_auto_is_null=1", "sql_auto_is_null=0" },
    { "unique_checks=0, GLOBAL foreign_key_checks=0", "unique_checks=1, GLOBAL foreign_key_checks=1" },
    { "check_constraint_checks=0", "check_constraint_checks=1" },
  }

  local HANDLERS = [[return {
  quick = function(job) return job.payload end,
  flaky = function(job) if job.attempts == 0 then job:fail("once", { retry_in = 0 }) end end,
  parent = function(job)
    if job.phase > 0 then return #job.results end
    for i = 1, 20 do job:spawn("quick", i) end
    return job:wait()
  end,
}]]

  local function with(setting, fn)
    server:sql("SET GLOBAL " .. setting[1])
    local ok, why = pcall(fn)
    server:sql("SET GLOBAL " .. setting[2])
    if not ok then error(why, 0) end
  end

  for _, setting in ipairs(SETTINGS) do
    it("all kinds of jobs are done, and doctor names it: " .. setting[1], function()
      with(setting, function()
        local handle <close> = assert(nightshift.open(url))
        local q = handle:queue "q"
        local jobs = {}
        for i = 1, 250 do jobs[i] = { "quick", i } end
        assert(q:push_many(jobs))
        assert(q:push "flaky")
        local parent = assert(q:push "parent")
        assert(handle:execute("CALL nightshift_push('q', 'quick', '1', NULL)"))
        local other <close> = assert(nightshift.open(url)) -- sees only what is committed
        assert.equal(253, other:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
        local status, log = host.drain(url, HANDLERS)
        assert.equal(0, status, log)
        assert.equal(0, other:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
        assert.equal(20, handle:job(parent).result)
        local exit, json, err = proc.nightshift({ "doctor", "--json" }, url)
        assert.same({ 4, "" }, { exit, err })
        assert.is_truthy(json:find(setting[1]:match "^[%l_]+", 1, true), json)
      end)
    end)
  end

  -- An old piece of advice, which undoes the character set that the client has asked for.
  for _, first in ipairs { "SET NAMES utf8", "SET NAMES latin1, collation_connection = latin1_german1_ci",
    "SET timestamp = 1, autocommit = 0, sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES', group_concat_max_len = 4" } do
    it("texts stay what they are, and doctor names it: init_connect=" .. first, function()
      local name = db.name(url)
      server:sql(("CREATE OR REPLACE USER plain@localhost; GRANT ALL ON `%s`.* TO plain@localhost"):format(name))
      local setting = { ('init_connect="%s"'):format(first), "init_connect=''" }
      with(setting, function()
        local plain = server:url(name, "plain")
        local handle <close> = assert(nightshift.open(plain))
        local q = assert(handle:queue "emoji 😀")
        local id = assert(q:push("smile 😀", { text = "ü 😀" }, { unique = "key 😀" }))
        local before = handle:job(id)
        assert.is_true(before.created > 1.7e9)
        assert.equal(0, (host.drain(plain, [[return { ["smile 😀"] = function(job)
          job:log "log 😀"
          if job.attempts == 0 then return job:fail("error 😀", { retry_in = 0 }) end
          return { was = job.payload.text, row = job:db():execute("SELECT '😀' AS s")[1].s }
        end }]])))
        local info = handle:job(id)
        assert.same({ "done", "smile 😀", "emoji 😀" }, { info.state, info.name, info.queue })
        assert.same({ was = "ü 😀", row = "😀" }, info.result)
        local other <close> = assert(nightshift.open(url)) -- an account that is spared
        assert.same(info, other:job(id))
        local _, json = proc.nightshift({ "doctor", "--json" }, plain)
        assert.is_truthy(json:find("init_connect=SET", 1, true), json)
      end)
    end)
  end

  it("a limit of memory is the server's trouble, and named", function()
    server:sql "SET GLOBAL max_session_mem_used=8192"
    local none, message, code = nightshift.open(url)
    local exit, json, err = proc.nightshift({ "doctor", "--json" }, url)
    server:sql "SET GLOBAL max_session_mem_used=9223372036854775807"
    assert.same({ nil, "BUSY" }, { none, code }, message)
    assert.is_truthy(message:find("max-session-mem-used", 1, true), message)
    assert.same({ 1, "" }, { exit, err })
    assert.is_truthy(json:find("max_session_mem_used", 1, true), json)
    server:sql "SET GLOBAL max_session_mem_used=2097152"
    exit, json = proc.nightshift({ "doctor", "--json" }, url)
    server:sql "SET GLOBAL max_session_mem_used=9223372036854775807"
    assert.is_truthy(json:find("max_session_mem_used", 1, true), exit .. json)
  end)

  it("an engine for all tables keeps init from making ours, and is named", function()
    local empty = server:empty()
    server:sql "SET GLOBAL enforce_storage_engine=Aria"
    local exit, _, err = proc.nightshift({ "init" }, empty)
    local _, json = proc.nightshift({ "doctor", "--json" }, empty)
    server:sql "SET GLOBAL enforce_storage_engine=NULL"
    assert.not_equal(0, exit)
    assert.is_nil(err:find("read%-only"), err)
    assert.is_nil(err:find("start the server", 1, true), err)
    assert.is_truthy(json:find("enforce_storage_engine", 1, true), json)
    exit, _, err = proc.nightshift({ "init" }, empty)
    assert.same({ 0, "" }, { exit, err })
  end)
end)

-- A host kept 182 prepared statements open and a program 26 to 40, of the 16,382 that a server
-- has for all. The 91st host or the 631st handle took them from every program of that server,
-- and ended with "bad configuration".
describe("the prepared statements of a server", function()
  local HANDLES, HOSTS = tonumber(os.getenv "NIGHTSHIFT_HANDLES") or 20, tonumber(os.getenv "NIGHTSHIFT_HOSTS") or 3
  local PER_HANDLE, PER_HOST = 9, 50
  local HANDLERS = [[return {
  a = function(job)
    if job.payload == "fails" and job.attempts == 0 then job:fail("once", { retry_in = 0 }) return end
    if job.payload == "parent" and job.phase == 0 then
      job:spawn("a", 1)
      return job:wait()
    end
    return job.payload
  end }]]

  local server

  setup(function() server = db.server "max-connections=3000\n" end)

  local function status(name)
    return math.tointeger(tonumber((server:sql(("SHOW GLOBAL STATUS LIKE '%s'"):format(name)):match "%d+$")))
  end

  local url, name

  before_each(function() url, name = server:fresh() end)

  it("are few of each program, which does all kinds of things", function()
    local handles = {}
    local before = status "Prepared_stmt_count"
    for i = 1, HANDLES do
      local handle = assert(nightshift.open(url))
      local q = handle:queue("q" .. i % 5)
      assert(q:push("a", i))
      assert(assert(q:claim()):ack(i))
      handles[i] = handle
    end
    local handle = handles[1]
    local q = handle:queue "q"
    assert(q:push_many { { "a", 1 }, { "a", 2, { priority = 200 } }, { "a", 3, { delay = "1h" } } })
    assert(q:push("a", 4, { unique = "u" }))
    assert(handle:execute("SELECT ? AS x", 1))
    assert(q:claim():fail "no")
    local parent = assert(q:claim())
    parent:spawn("a", 1)
    assert(parent:wait())
    assert(handle:signal(parent.id, "x"))
    assert(handle:stats())
    assert(handle:lock "l"(function() return true end))
    assert(handle:prune { done = 0 })
    local after = status "Prepared_stmt_count"
    assert.is_true(after - before <= HANDLES * PER_HANDLE, ("%d of %d handles"):format(after - before, HANDLES))
    assert.equal("1", server:sql "PREPARE s FROM 'select 1'; EXECUTE s")
    for _, h in ipairs(handles) do h:close() end
  end)

  it("stay prepared in a loop that pushes, claims and acks", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local function round(n)
      for i = 1, n do
        assert(q:push("a", i))
        assert(assert(q:claim()):ack(i))
      end
    end
    round(50)
    local before = status "Com_stmt_prepare"
    round(400)
    local more = status "Com_stmt_prepare" - before
    assert.is_true(more <= 200, more .. " prepared anew for 400 jobs")
  end)

  it("are few of each host", function()
    local before = status "Prepared_stmt_count"
    local hosts = {}
    for i = 1, HOSTS do hosts[i] = host.spawn(url, HANDLERS, { "--workers", "1" }) end
    for _, h in ipairs(hosts) do h:wait_line("host.ready", 120) end
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    for i = 1, 40 * HOSTS do assert(q:push("a", ({ "fails", "parent", "plain", i })[i % 4 + 1])) end
    eventually(function() return server:sql("SELECT COUNT(*) FROM nightshift_job", name) == "0" end, 60)
    local open = status "Prepared_stmt_count" - before
    assert.is_true(open <= HOSTS * PER_HOST + PER_HANDLE, ("%d of %d hosts"):format(open, HOSTS))
    assert.equal("1", server:sql "PREPARE s FROM 'select 1'; EXECUTE s")
    for _, h in ipairs(hosts) do h:signal "TERM" end
    for _, h in ipairs(hosts) do assert.equal(0, h:wait(120), h:transcript()) end
  end)

  it("that are all taken are waited for, and doctor says so", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local id = assert(q:push("a", 1))
    local job = assert(q:claim())
    local limit = server:sql "SELECT @@max_prepared_stmt_count"
    server:sql "SET GLOBAL max_prepared_stmt_count=1"
    local none, message, code = job:fail "not yet"
    local late <close> = assert(nightshift.open(url)) -- prepares nothing
    local pushed, why, which = late:queue("q"):push("b", 1)
    local exit, json = proc.nightshift({ "doctor", "--json" }, url)
    server:sql("SET GLOBAL max_prepared_stmt_count=" .. limit)
    assert.same({ nil, "BUSY" }, { none, code }, message)
    assert.same({ nil, "BUSY" }, { pushed, which }, why)
    assert.is_truthy(why:find("(1461)", 1, true), why)
    assert.equal(1, exit)
    assert.is_truthy(json:find("raise max_prepared_stmt_count", 1, true), json)
    assert(job:ack())
    assert.equal("done", handle:job(id).state)
  end)
end)

-- With innodb_rollback_on_timeout a row that another session holds costs the whole transaction.
-- A host without history passed over such a row among the jobs of a stretch, and went on. Half
-- of its cycle was undone, the rest written at once, and it took itself for dead.
describe("where a lock wait ends the transaction", function()
  local LENGTH, STRETCHES = 9, 3

  local server, url, handle

  setup(function()
    server = db.server "innodb_rollback_on_timeout=ON\n"
    url = server:fresh()
    handle = assert(nightshift.open(url))
  end)
  teardown(function() handle:close() end)

  local function live(ids)
    local list = table.concat(ids, ",")
    return handle:execute(("SELECT COUNT(*) AS n FROM nightshift_job WHERE id IN (%s)"):format(list))[1].n
  end

  it("a host that keeps failures only ends all jobs but the one that is held", function()
    local ids = {}
    for _ = 1, STRETCHES do
      assert(handle:transaction(function(tx)
        for i = 1, LENGTH do ids[#ids + 1] = assert(tx:queue "q":push("job", i)) end
        assert(tx:queue "gap":push "job")
      end))
    end
    local others <close> = assert(core.open { url = url })
    local its <close> = assert(core.open { url = url })
    local last = ids[#ids]
    assert(others:begin())
    assert(others:execute("SELECT id FROM nightshift_job WHERE id < ? FOR UPDATE", last))
    assert(its:begin())
    assert(its:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", last))
    local trace = fixture.file("trace", "")
    local h = host.start(url, ([[return { job = function(job)
      local file <close> = assert(io.open(%q, "a"))
      file:write(job.id, "\n")
    end }]]):format(trace), { "--history", "failed", "--queues", "q=1" })
    eventually(function()
      local n = 0
      for _ in io.lines(trace) do n = n + 1 end
      return n == #ids
    end)
    local holder = its:execute("SELECT id FROM nightshift_holder WHERE kind = 'host'")
    assert(others:rollback())
    eventually(function() return live(ids) == 1 end)
    assert.same(holder, its:execute("SELECT id FROM nightshift_holder WHERE kind = 'host' AND dead IS NULL"))
    assert(its:rollback())
    eventually(function() return live(ids) == 0 end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
