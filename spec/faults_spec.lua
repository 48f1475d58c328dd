-- Faults of the world around. Deadlocks, lock waits and locked tables, in every verb and in a host:
-- real ones, made by another session that holds the rows or tables. Tables, rights and rows that
-- are not as expected. Clocks that jump: the server's, which is the only one that counts, and a
-- host's, which does not.

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
  local p = proc.start { proc.lua, "spec/support/programs.lua", "saboteur", url, how }
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
