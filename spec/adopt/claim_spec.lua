-- db:adopt: rows of existing tables as jobs. Who gets a row, how each verdict leaves it, what
-- happens to the rows of a claimant that dies, and what is locked.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local lab = require "spec.support.lab"
local ledger = require "spec.support.crew".ledger
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proxy"

-- db:adopt: rows of existing tables as jobs. Each published design under every
-- strategy that it allows: who gets a row, how each verdict leaves it, and what
-- happens to the rows of a claimant that dies.
describe("adopted rows:", function()
  local a, b
  lab.handles(2, function(...) a, b = ... end)

  local function code_of(_, _, code) return code end

  local function ids(jobs)
    local list = {}
    for i, job in ipairs(jobs) do list[i] = job.id end
    return list
  end

  --- The one row, with times as whether there is one.
  local function row(name, id)
    local found = assert(a:execute("SELECT * FROM " .. name .. " WHERE id = ?", id))[1]
    return found
  end

  local function status(name, id) return row(name, id)[designs[name].map.status.column] end

  --- What the status column says of a row in a state, as SQL gives it.
  local function value(name, state)
    local v = designs[name].map.status[state]
    if v == true or v == false then return v and 1 or 0 end
    return v
  end

  -- A program that claims and then does nothing until it is killed.
  local SITTER = [[
  local designs = require "spec.support.designs"
  local db = assert(require "nightshift".open(arg[1]))
  local t = assert(db:adopt(designs.map(arg[2], { strategy = arg[3] })))
  local jobs = assert(t:claim_many(tonumber(arg[4])))
  io.stdout:setvbuf "no"
  print("holds " .. #jobs)
  require "nightshift.core".sleep(1000)]]

  local function sitter(name, strategy, n)
    local p = proc.start { proc.lua, fixture.file("sitter.lua", SITTER), lab.url(), name, strategy, n,
      env = { LUA_PATH = proc.root .. "/?.lua;" .. proc.root .. "/lua/?.lua;" .. proc.root .. "/lua/?/init.lua;;" } }
    p:wait_line("holds " .. n)
    return p
  end

  for _, name in ipairs(designs.names) do
    for _, strategy in ipairs(designs[name].strategies) do
      describe(name .. " by " .. strategy, function()
        local ta, tb
        local function start(rows, changes)
          designs.create(a, name, rows)
          local map = designs.map(name, changes)
          map.strategy = strategy
          ta, tb = assert(a:adopt(map)), assert(b:adopt(map))
        end

        it("gives each row to one, lowest id first, and marks it done", function()
          start(5)
          local one, two = assert(ta:claim_many(2)), assert(tb:claim_many(10))
          assert.same({ 1, 2 }, ids(one))
          assert.same({ 3, 4, 5 }, ids(two))
          assert.is_nil(ta:claim())
          for _, jobs in ipairs { one, two } do
            for _, job in ipairs(jobs) do
              assert.equal(job.id, job.payload.id)
              assert.equal(designs[name].map.name or name, job.name)
              assert.equal(1, job.attempt)
              assert.is_true((job:ack()))
              assert.equal("STALE", code_of(job:ack()))
            end
          end
          for id = 1, 5 do
            if value(name, "done") then assert.equal(value(name, "done"), status(name, id)) end
          end
          assert.is_nil(ta:claim())
          assert.is_nil(tb:claim())
        end)

        it("gives a released row again, as it was", function()
          start(1)
          local before = row(name, 1)
          local job = assert(ta:claim())
          assert.is_true((job:release()))
          local after = row(name, 1)
          after.updated, after.started, before.updated, before.started = nil, nil, nil, nil
          assert.same(before, after)
          assert.equal(1, assert(tb:claim()).attempt)
        end)

        it("counts a failure and gives the row again", function()
          start(1)
          assert.is_true((assert(ta:claim()):fail("no", { retry_in = 0 })))
          local left, up = designs[name].map.attempts_left, designs[name].map.attempts
          if left then assert.equal(29, row(name, 1)[left]) end
          if up then assert.equal(1, row(name, 1)[up]) end
          local job = assert(tb:claim())
          assert.equal((left or up) and 2 or 1, job.attempt)
          assert.is_true((job:ack()))
        end)

        it("lets a row come back after `again`, which costs no attempt", function()
          start(1)
          assert.is_true((assert(ta:claim()):again(0)))
          assert.equal(1, assert(tb:claim()).attempt)
        end)

        it("gives back what a closed handle held", function()
          start(3)
          assert.equal(3, #ta:claim_many(3))
          a:close()
          assert.same({ 1, 2, 3 }, ids(tb:claim_many(3)))
        end)

        it("gives others the rows of one that was killed, within seconds", function()
          start(4)
          local p = sitter(name, strategy, 2)
          assert.same({ 3, 4 }, ids(tb:claim_many(10)))
          local before = nightshift.clock()
          p:signal "KILL"
          p:wait()
          local got = {}
          while #got < 2 do
            local jobs = assert(tb:claim_many(10, { wait = proc.limit(9) }))
            assert.is_true(#jobs > 0)
            for _, job in ipairs(jobs) do got[#got + 1] = job end
          end
          assert.is_true(nightshift.clock() - before < proc.limit(9)) -- by the round: 10 s
          table.sort(got, function(x, y) return x.id < y.id end)
          assert.same({ 1, 2 }, ids(got))
          for _, job in ipairs(got) do assert.is_true((job:ack())) end
        end)

        it("settles nothing for one whose row was given to another", function()
          if strategy == "transaction" then return end -- there it is the lock that says so
          start(1)
          local job = assert(ta:claim())
          assert(a:execute("UPDATE nightshift_holder SET dead = ? WHERE connection = CONNECTION_ID()",
            (a._handle:now())))
          assert.equal(1, tb:rescue())
          local other = assert(tb:claim())
          assert.is_true(job:cancelled())
          for _, verb in ipairs { "ack", "release" } do assert.equal("STALE", code_of(job[verb](job))) end
          assert.is_true((other:touch()))
          assert.is_true((other:ack()))
        end)
      end)
    end
  end
end)

-- Many programs at one table, some of which are killed in the middle of a row: each
-- row is done once in the end, and no two programs have it at the same time.
describe("a crowd of programs:", function()
  setup(lab.fresh)

  -- Claims until all is done. A row that is claimed is a folder for as long: who finds
  -- it there shares the row. usage: URL DESIGN STRATEGY FOLDER KILL, the round in
  -- which to die
  local WORKER = [[
  local nst = require "nst"
  local designs = require "spec.support.designs"
  local db = assert(require "nightshift".open(arg[1]))
  local name, folder, last = arg[2], arg[4], tonumber(arg[5])
  local t = assert(db:adopt(designs.map(name, { strategy = arg[3], max_attempts = 30 })))
  local acks = assert(io.open(folder .. "/acks", "ab"))
  acks:setvbuf "no"
  local round = 0
  local function open()
    return assert(db:execute("SELECT COUNT(*) AS n FROM " .. name .. " WHERE " .. arg[6]))[1].n > 0
  end
  while open() do
    for _, job in ipairs(assert(t:claim_many(3, { wait = 1 }))) do
      local at = ("%s/row-%d"):format(folder, job.id)
      local mine = assert(io.open(at .. "." .. (nst.ids()), "wb"))
      mine:close()
      nst.sleep(0.005)
      local seen = io.popen("ls " .. at .. ".*")
      local n = 0
      for _ in seen:lines() do n = n + 1 end
      seen:close()
      round = round + 1
      if n > 1 then acks:write("shared " .. job.id .. "\n") end
      if round == last then
        os.remove(at .. "." .. (nst.ids()))
        nst.kill((nst.ids()), "KILL")
      end
      os.remove(at .. "." .. (nst.ids()))
      if round % 7 == 0 then assert(job:fail("now and then", { retry_in = 0 }))
      elseif job:ack() then acks:write("done " .. job.id .. "\n") end
    end
  end
  db:close()]]

  local LEFT = {
    migration_task = "status <> 'complete'", job_queue = "state <> 'DONE'", queue_table = "status <> 'processed'",
    worker_queue = "NOT is_done", checkout = "done_at IS NULL",
  }

  local ROWS, PROGRAMS = 60, 6

  for _, name in ipairs(designs.names) do
    for _, strategy in ipairs(designs[name].strategies) do
      it(("share %s by %s, and all of it is done once"):format(name, strategy), function()
        local db <close> = lab.open()
        designs.create(db, name, ROWS)
        local folder, program = fixture.dir(), fixture.file("worker.lua", WORKER)
        local function start(last)
          return proc.start { proc.lua, program, lab.url(), name, strategy, folder, last, LEFT[name], env = {
            LUA_PATH = proc.root .. "/?.lua;" .. proc.root .. "/lua/?.lua;" .. proc.root .. "/lua/?/init.lua;;",
          } }
        end
        local doomed, others = { start(1), start(2) }, {}
        for _, p in ipairs(doomed) do assert.equal("signal 9", p:wait(120), p:transcript()) end
        for i = 1, PROGRAMS do others[i] = start(0) end
        for _, p in ipairs(others) do assert.equal(0, p:wait(120), p:transcript()) end
        local done, total = {}, 0
        for line in io.lines(folder .. "/acks") do
          local id = tonumber(line:match "^done (%d+)$")
          assert(id, line)
          assert.is_nil(done[id], line)
          done[id], total = true, total + 1
        end
        assert.equal(ROWS, total)
        assert.equal(0, assert(db:execute("SELECT COUNT(*) AS n FROM " .. name .. " WHERE " .. LEFT[name]))[1].n)
        assert.equal(0, assert(db:execute "SELECT COUNT(*) AS n FROM nightshift_grip")[1].n)
      end)
    end
  end

  -- All at once: no verdict is refused, and no living claimant loses a row, which would cost
  -- an attempt.
  describe("a crowd, with a connection each,", function()
    local UNTOUCHED = { migration_task = "iteration = 0", queue_table = "attempts = 30" }
    local CROWD_ROWS, CLAIMERS = 400, 120

    after_each(crew.clean)

    for name, strategies in pairs {
      migration_task = { "update_limit" }, queue_table = { "skip_locked", "named_lock", "transaction" },
    } do
      for _, strategy in ipairs(strategies) do
        it(("has each row of %s once by %s"):format(name, strategy), function()
          local db <close> = lab.open()
          designs.create(db, name, 1)
          designs.fill(db, name, CROWD_ROWS - 1)
          local folder = fixture.dir()
          local path, gate = folder .. "/ledger", folder .. "/gate"
          assert(os.execute("mkfifo " .. gate))
          local c = crew.start(CLAIMERS, lab.url(), designs.map(name, { strategy = strategy }), ledger.script(path)
            .. "return function(job) begin(job.id) done(job.id) end", { gate = gate })
          eventually(function() return ledger.count(gate .. ".ready") == CLAIMERS end, 120)
          local opened = assert(io.open(gate, "w"))
          c:wait(120)
          opened:close()
          local found = ledger.read(path)
          for id = 1, CROWD_ROWS do assert.same({ 1, 1 }, { found.begun[id], found.done[id] }) end
          assert.equal(CROWD_ROWS, assert(db:execute(("SELECT COUNT(*) AS n FROM %s WHERE %s"):format(name,
            UNTOUCHED[name])))[1].n)
        end)
      end
    end
  end)
end)

-- Rows of an adopted table that another session has locked: claims go past them, and lock
-- no more than they take; a verdict comes as soon as its row is free.
describe("locked rows:", function()
  local a, b
  lab.handles(2, function(...) a, b = ... end)

  local function ids(jobs)
    local list = {}
    for i, job in ipairs(jobs) do list[i] = job.id end
    return list
  end

  --- Waits for locks counted by the server since it started.
  local function waits()
    return tonumber(assert(b:execute "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'")[1].Value)
  end

  -- A program that locks a row for a while.
  local HOLDER = [[
  local db = assert(require "nightshift".open(arg[1]))
  assert(db._handle:begin())
  assert(db:execute(arg[2]))
  io.stdout:setvbuf "no"
  print "locked"
  require "nightshift.core".sleep(0.5)
  assert(db._handle:rollback())
  db:close()]]

  local function lock(sql)
    local p = proc.start { proc.lua, fixture.file("holder.lua", HOLDER), lab.url(), sql,
      env = { LUA_PATH = proc.root .. "/lua/?.lua;" .. proc.root .. "/lua/?/init.lua;;" } }
    p:wait_line "locked"
    return p
  end

  for _, name in ipairs(designs.names) do
    for _, strategy in ipairs(designs[name].strategies) do
      it(("of %s are passed by %s, at once"):format(name, strategy), function()
        designs.create(a, name, 200)
        local t = assert(b:adopt(designs.map(name, { strategy = strategy })))
        local before = waits()
        assert(a:transaction(function(tx)
          assert(tx:execute(("SELECT * FROM %s WHERE id <= 150 FOR UPDATE"):format(name)))
          assert.same({ 151, 152, 153 }, ids(t:claim_many(3)))
          return true
        end))
        assert.same({ 1, 2 }, ids(t:claim_many(2)))
        assert.equal(before, waits())
      end)
    end
  end

  it("by a claim are those it takes, though the server has to sort", function()
    designs.create(a, "queue_table", 1)
    designs.fill(a, "queue_table", 500)
    assert(a:execute "UPDATE queue_table SET priority = id % 7")
    local map = designs.map("queue_table", { strategy = "transaction", status = {
      column = "status", open = "queued", done = "processed", failed = "failed" } })
    local ta, tb = assert(a:adopt(map)), assert(b:adopt(map))
    assert.same({ 6, 13, 20 }, ids(ta:claim_many(3)))
    assert.same({ 27, 34, 41 }, ids(tb:claim_many(3)))
  end)

  for name, strategy in pairs { migration_task = "update_limit", job_queue = "skip_locked", checkout = "named_lock" } do
    it(("of %s keep a verdict waiting no longer than they are"):format(name), function()
      designs.create(a, name, 2)
      local t = assert(a:adopt(designs.map(name, { strategy = strategy })))
      local jobs = assert(t:claim_many(2))
      local before, asked = waits(), nightshift.clock()
      local p = lock(("SELECT * FROM %s WHERE id = 1 FOR UPDATE"):format(name))
      assert.is_true((jobs[2]:ack()))
      assert.is_true((jobs[1]:ack()))
      assert.is_true(nightshift.clock() - asked < proc.limit(20)) -- of itself: for ever, or refused
      assert.equal(before, waits())
      assert.equal(0, p:wait(20))
      assert.is_nil(t:claim())
      assert.equal("STALE", select(3, jobs[1]:ack()))
    end)
  end
end)

-- A ring ended the query of a handle that waited for a row, and that query might be opening the
-- table just then. The server reads a table's triggers when it opens it; with a KILL in
-- the middle it kept what it could not read, so that for all sessions that got that copy of
-- the table from its cache INSERTs failed ("Unknown trigger has an error in its body"),
-- and claims, for good.
--
-- How often that happens is a matter of microseconds; so what is looked at here is that a handle
-- that may be rung does not touch the table, and that another one looks for it.
describe("a ring:", function()
  local db
  lab.handles(1, function(handle) db = handle end)
  after_each(function()
    lab.sql "SET GLOBAL general_log = OFF"
    crew.clean()
  end)

  local function ask(sql, ...) return assert(db:execute(sql, ...))[1] end

  it("whoever may be rung does not open the table", function()
    designs.create(db, "migration_task", 0)
    local map = designs.map("migration_task", { allow_alter = true })
    assert(db:adopt(map))
    lab.sql "SET GLOBAL log_output = 'TABLE'; TRUNCATE mysql.general_log; SET GLOBAL general_log = ON"
    crew.fork(1, function()
      local own <close> = lab.open()
      local t = assert(own:adopt(map))
      while true do assert(assert(t:claim { wait = 30 }):ack()) end
    end)
    local ear = eventually(function()
      return ask("SELECT IS_USED_LOCK(CONCAT('nightshift-ear:', MD5(DATABASE()), MD5('migration_task'), ':0')) AS n").n
    end)
    local function done(n)
      return ask "SELECT COUNT(*) AS n FROM migration_task WHERE status = 'complete'".n == n
    end
    for i = 1, 3 do
      assert(db:execute(designs.migration_task.row))
      eventually(function() return done(i) end)
    end
    lab.sql "SET GLOBAL general_log = OFF"
    local function statements(which)
      return ask([[SELECT COUNT(*) AS n FROM mysql.general_log
      WHERE argument LIKE '%migration\_task%' AND ]] .. which, ear).n
    end
    assert.equal(0, statements "thread_id = ?")
    assert.is_true(statements "thread_id <> ? AND argument LIKE '%SELECT EXISTS(%'" >= 3)
  end)
end)

-- A claim that had marked its rows and could not read them, as their table had just been
-- altered, forgot them: they stayed taken for as long as their claimant lived.
describe("a claim that could not be read", function()
  local db
  lab.handles(1, function(handle) db = handle end)

  local function all(sql) return assert(db:execute(sql)) end

  local function count(where) return all("SELECT COUNT(*) AS n FROM em WHERE " .. where)[1].n end

  for _, strategy in ipairs { "update_limit", "skip_locked", "named_lock" } do
    local map = ([[{ table = "em", attempts = "n", claimed_by = "cb", strategy = %q,
    status = { column = "st", open = "o", processing = "p", done = "d" } }]]):format(strategy)

    before_each(function()
      all "DROP TABLE IF EXISTS em"
      all [[CREATE TABLE em (id INT AUTO_INCREMENT PRIMARY KEY, st VARCHAR(9) NOT NULL DEFAULT 'o', cb VARCHAR(64) NULL,
      n INT NOT NULL DEFAULT 0)]]
    end)

    it("comes with the next claim by " .. strategy, function()
      all "INSERT INTO em () VALUES (), (), ()"
      local t = assert(db:adopt(assert(load("return " .. map))()))
      all "ALTER TABLE em CHANGE n nn INT NOT NULL DEFAULT 0"
      for _ = 1, 2 do
        local job, _, code = t:claim()
        assert.same({ nil, "SQL" }, { job, code })
      end
      all "ALTER TABLE em CHANGE nn n INT NOT NULL DEFAULT 0"
      for id = 1, 3 do
        local job = assert(t:claim())
        assert.equal(id, job.id)
        assert.is_true((job:ack()))
      end
      assert.equal(3, count "st = 'd'")
    end)

    it("is run by a host by " .. strategy, function()
      local h = host.start(lab.url(), "return { em = function() end }",
        { "--adopt", fixture.file("map.lua", "return " .. map), "--workers", "2" })
      all "INSERT INTO em () VALUES ()"
      eventually(function() return count "st = 'd'" == 1 end)
      all "ALTER TABLE em CHANGE n nn INT NOT NULL DEFAULT 0"
      all "INSERT INTO em () VALUES (), (), (), (), (), ()"
      h:wait_line("adopted.error", 20)
      all "ALTER TABLE em CHANGE nn n INT NOT NULL DEFAULT 0"
      eventually(function() return count "st = 'd'" == 7 end, 30)
      h:signal "TERM"
      assert.equal(0, h:wait(20))
    end)
  end
end)

-- With the strategy `transaction` a row is marked as taken, for all to see, and then
-- locked again. A look in between took it for a dead worker's: it cost an
-- attempt, and the claimer its row. In a crowd that happened to most claims.
describe("before it is locked:", function()
  local db = require "spec.support.db"

  local a
  lab.handles(1, function(handle) a = handle end)
  after_each(crew.clean)

  local COUNTED = { migration_task = "iteration = 1", queue_table = "attempts < 30", job_queue = "FALSE" }

  -- So long it is between the mark and the lock, too.
  local function slow_url()
    local slow = proxy.start(db.shared())
    slow:tell "delay 40"
    return slow:url(lab.url())
  end

  for name, counted in pairs(COUNTED) do
    it(("a row of %s is not taken from one who is about to lock it"):format(name), function()
      designs.create(a, name, 3)
      local map = designs.map(name, { strategy = "transaction" })
      local t = assert(a:adopt(map))
      local url, path = slow_url(), fixture.dir() .. "/claimed"
      local c = crew.fork(1, function()
        local own = assert(nightshift.open(url))
        local jobs = assert(assert(own:adopt(map)):claim_many(3))
        for _, job in ipairs(jobs) do assert(job:ack()) end
        local file <close> = assert(io.open(path, "w"))
        file:write(#jobs)
        file:close()
        own:close()
      end)
      local freed = 0
      repeat
        freed = freed + assert(t:rescue())
        local file <close> = io.open(path)
      until file or c:has_ended(1)
      assert.equal(0, c:wait_one(1, 20))
      assert.equal(0, freed)
      assert.equal("3", assert(io.open(path)):read "a")
      assert.equal(0, assert(a:execute(("SELECT COUNT(*) AS n FROM %s WHERE %s"):format(name, counted)))[1].n)
      assert.is_nil(t:claim())
    end)
  end

  it("a row comes back, and costs an attempt, when its claimer dies there", function()
    designs.create(a, "queue_table", 1)
    local map = designs.map("queue_table", { strategy = "transaction" })
    local t, url = assert(a:adopt(map)), slow_url()
    local c = crew.fork(1, function() assert(assert(nightshift.open(url)):adopt(map)):claim() end)
    local function is(what) return assert(a:execute("SELECT 1 FROM queue_table WHERE " .. what))[1] ~= nil end
    eventually(function() return is "status = 'in_progress'" end, 20)
    c:kill(1)
    eventually(function() return assert(t:rescue()) == 1 end)
    assert.is_true(is "status = 'queued' AND attempts = 29")
  end)
end)

-- A job that came back with a server's word, again{retry_after = …}, slows its whole
-- table. Other claimants had read a quarter of a second before that it may be claimed from, and
-- the row, the first in order, went to one of them at once.
describe("told to wait:", function()
  setup(lab.fresh)

  for _, name in ipairs { "checkout", "job_queue", "migration_task" } do
    for _, strategy in ipairs(designs[name].strategies) do
      it(("nobody claims from %s by %s after a row was told to wait"):format(name, strategy), function()
        local a <close> = lab.open()
        local b <close> = lab.open()
        designs.create(a, name, 3)
        local map = designs.map(name, { strategy = strategy })
        local ta, tb = assert(a:adopt(map)), assert(b:adopt(map))
        local job = assert(ta:claim())
        assert(assert(tb:claim()):ack()) -- knows what is decided
        assert.is_true((job:again { retry_after = 3600 }))
        assert.is_nil(tb:claim())
        assert.is_nil(ta:claim())
        assert.is_true(ta:resume())
        assert.equal(1, assert(ta:claim { wait = 20 }).id)
      end)
    end
  end
end)
