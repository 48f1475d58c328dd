-- db:adopt: rows of existing tables as jobs. Which claimant gets a row of each design, the
-- columns that a verdict writes, and the rows of a claimant that dies.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local lab = require "spec.support.db".lab
local ledger = require "spec.support.crew".ledger
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy
local servers = require "spec.support.db"

local PATH = proc.root .. "/?.lua;" .. proc.root .. "/lua/?.lua;" .. proc.root .. "/lua/?/init.lua;;"

local function code_of(_, _, code) return code end

local function rows_of(jobs)
  local list = {}
  for i, job in ipairs(jobs) do list[i] = job.row end
  return list
end

--- Nothing of any row is left in our tables.
local function nothing_left(db)
  for _, name in ipairs { "job", "unique_key", "owed" } do
    assert.equal(0, db:execute("SELECT COUNT(*) AS n FROM nightshift_" .. name)[1].n, name)
  end
end

describe("adopted rows:", function()
  local a, b
  lab.handles(2, function(...) a, b = ... end)

  --- A row without the times at which it was changed.
  local function row(name, id)
    local found = assert(a:execute("SELECT * FROM " .. name .. " WHERE id = ?", id))[1]
    found.updated, found.started = nil, nil
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
  local t = assert(db:adopt(designs.map(arg[2])))
  local jobs = assert(t:claim_many(tonumber(arg[3])))
  io.stdout:setvbuf "no"
  print("holds " .. #jobs)
  require "nightshift.core".sleep(1000)]]

  local function sitter(name, n)
    local p = proc.start { proc.lua, fixture.file("sitter.lua", SITTER), lab.url(), name, n, env = { LUA_PATH = PATH } }
    p:wait_line("holds " .. n)
    return p
  end

  for _, name in ipairs(designs.names) do
    describe(name, function()
      local ta, tb
      local function start(rows)
        designs.create(a, name, rows)
        ta, tb = assert(a:adopt(designs.map(name))), assert(b:adopt(designs.map(name)))
      end

      it("gives each row to one, lowest id first, and marks it done", function()
        start(5)
        local one, two = assert(ta:claim_many(2)), assert(tb:claim_many(10))
        assert.same({ 1, 2 }, rows_of(one))
        assert.same({ 3, 4, 5 }, rows_of(two))
        assert.is_nil(ta:claim())
        for _, jobs in ipairs { one, two } do
          for _, job in ipairs(jobs) do
            assert.equal(job.row, job.payload.id)
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
        nothing_left(a)
      end)

      it("gives a released row again, at no cost", function()
        start(1)
        local job = assert(ta:claim())
        local before = row(name, 1)
        assert.is_true((job:release()))
        assert.same(before, row(name, 1))
        local again = assert(tb:claim())
        assert.same({ 1, 1 }, { again.row, again.attempt })
      end)

      it("counts a failure and gives the row again", function()
        start(1)
        assert.is_true((assert(ta:claim()):fail("no", { retry_in = 0 })))
        local left, up = designs[name].map.attempts_left, designs[name].map.attempts
        if left then assert.equal(29, row(name, 1)[left]) end
        if up then assert.equal(1, row(name, 1)[up]) end
        local job = assert(tb:claim())
        assert.same({ 1, 2 }, { job.row, job.attempt })
        assert.is_true((job:ack()))
      end)

      it("lets a row come back after `again`, which costs no attempt", function()
        start(1)
        assert.is_true((assert(ta:claim()):again(0)))
        local again = assert(tb:claim())
        assert.same({ 1, 1 }, { again.row, again.attempt })
      end)

      it("gives back what a closed handle held, as it was", function()
        start(3)
        local before = row(name, 2)
        assert.equal(3, #ta:claim_many(3))
        a:close()
        a = lab.open()
        assert.same(before, row(name, 2))
        nothing_left(a)
        assert.same({ 1, 2, 3 }, rows_of(tb:claim_many(3)))
      end)

      it("gives others the rows of one that was killed, within seconds", function()
        start(4)
        local p = sitter(name, 2)
        assert.same({ 3, 4 }, rows_of(tb:claim_many(10)))
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
        table.sort(got, function(x, y) return x.row < y.row end)
        assert.same({ 1, 2 }, rows_of(got))
        for _, job in ipairs(got) do assert.is_true((job:ack())) end
      end)

      it("settles nothing for one whose row was given to another", function()
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

      it("has no row locked while it is worked on", function()
        start(3)
        assert.equal(2, #ta:claim_many(2))
        assert.equal(3, #assert(b:execute("SELECT id FROM " .. name .. " FOR UPDATE SKIP LOCKED")))
      end)

      it("is claimed from past rows that others have locked, without a wait", function()
        start(1)
        designs.fill(a, name, 199)
        local function waits()
          return assert(b:execute "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'")[1].Value
        end
        local before = waits()
        assert(a:transaction(function(tx)
          assert(tx:execute(("SELECT * FROM %s WHERE id <= 150 FOR UPDATE"):format(name)))
          assert.same({ 151, 152, 153 }, rows_of(tb:claim_many(3)))
          return true
        end))
        assert.same({ 1, 2 }, rows_of(tb:claim_many(2, { wait = proc.limit(2) })))
        assert.equal(before, waits())
      end)
    end)
  end
end)

-- Many programs at one table, some of which are killed in the middle of a row. Each row is done
-- once in the end, and no two programs have it at the same time.
describe("a crowd of programs:", function()
  setup(lab.fresh)

  -- Claims until all is done, and tells the ledger which row it has.
  -- usage: URL DESIGN FOLDER KILL, the round in which to die, OPEN
  local WORKER = [[
  local nst = require "nst"
  local designs = require "spec.support.designs"
  local db = assert(require "nightshift".open(arg[1]))
  local name, folder, last = arg[2], arg[3], tonumber(arg[4])
  local t = assert(db:adopt(designs.map(name, { max_attempts = 30 })))
  local acks = assert(io.open(folder .. "/acks", "ab"))
  acks:setvbuf "no"
  local round = 0
  local function open()
    return assert(db:execute("SELECT COUNT(*) AS n FROM " .. name .. " WHERE " .. arg[5]))[1].n > 0
  end
  while open() do
    for _, job in ipairs(assert(t:claim_many(3, { wait = 1 }))) do
      begin(job.row)
      nst.sleep(0.005)
      round = round + 1
      if round == last then nst.kill((nst.ids()), "KILL") end
      left(job.row)
      if round % 7 == 0 then assert(job:fail("now and then", { retry_in = 0 }))
      elseif job:ack() then acks:write("done " .. job.row .. "\n") end
    end
  end
  db:close()]]

  local LEFT = {
    migration_task = "status <> 'complete'", job_queue = "state <> 'DONE'", queue_table = "status <> 'processed'",
    worker_queue = "NOT is_done", checkout = "done_at IS NULL",
  }

  local ROWS, PROGRAMS = 40, 4

  for _, name in ipairs(designs.names) do
    it("share " .. name .. ", and all of it is done once", function()
      local db <close> = lab.open()
      designs.create(db, name, ROWS)
      local folder, killed = fixture.dir(), {}
      local program = fixture.file("worker.lua", ledger.script(folder .. "/ledger") .. WORKER)
      local function start(last)
        return proc.start { proc.lua, program, lab.url(), name, folder, last, LEFT[name], env = { LUA_PATH = PATH } }
      end
      local doomed, others = { start(1), start(2) }, {}
      for _, p in ipairs(doomed) do
        assert.equal("signal 9", p:wait(120), p:transcript())
        killed[p.pid] = true
      end
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
      ledger.read(folder .. "/ledger", killed) -- raises when two had a row at once
      assert.equal(0, assert(db:execute("SELECT COUNT(*) AS n FROM " .. name .. " WHERE " .. LEFT[name]))[1].n)
      nothing_left(db)
    end)
  end

  -- All at once: no verdict is refused, and no living claimant loses a row, which would cost
  -- an attempt.
  describe("a crowd, with a connection each,", function()
    local UNTOUCHED = { migration_task = "iteration = 0", queue_table = "attempts = 30" }
    local LONG = os.getenv "NIGHTSHIFT_LONG"
    local CROWD_ROWS, CLAIMERS = LONG and 400 or 80, LONG and 120 or 10

    after_each(crew.clean)

    for name, untouched in pairs(UNTOUCHED) do
      it("has each row of " .. name .. " once", function()
        local db <close> = lab.open()
        designs.create(db, name, 1)
        designs.fill(db, name, CROWD_ROWS - 1)
        local folder = fixture.dir()
        local path, gate = folder .. "/ledger", folder .. "/gate"
        assert(os.execute("mkfifo " .. gate))
        local c = crew.start(CLAIMERS, lab.url(), designs.map(name), ledger.script(path)
          .. "return function(job) begin(job.row) done(job.row) end", { gate = gate })
        eventually(function() return ledger.count(gate .. ".ready") == CLAIMERS end, 120)
        local opened = assert(io.open(gate, "w"))
        c:wait(120)
        opened:close()
        local found = ledger.read(path)
        for id = 1, CROWD_ROWS do assert.same({ 1, 1 }, { found.begun[id], found.done[id] }) end
        assert.equal(CROWD_ROWS, assert(db:execute(("SELECT COUNT(*) AS n FROM %s WHERE %s"):format(name,
          untouched)))[1].n)
      end)
    end
  end)
end)

-- A claim that met a table which had just been altered lost what it had marked. The rows stayed
-- taken for as long as their claimant lived.
describe("a claim that could not be read", function()
  local db
  lab.handles(1, function(handle) db = handle end)

  local function all(sql) return assert(db:execute(sql)) end

  it("comes with the next claim", function()
    all [[CREATE TABLE em (id INT AUTO_INCREMENT PRIMARY KEY, st VARCHAR(9) NOT NULL DEFAULT 'o', cb VARCHAR(64) NULL,
      n INT NOT NULL DEFAULT 0)]]
    all "INSERT INTO em () VALUES (), (), ()"
    local t = assert(db:adopt { table = "em", attempts = "n", claimed_by = "cb",
      status = { column = "st", open = "o", processing = "p", done = "d" } })
    all "ALTER TABLE em CHANGE n nn INT NOT NULL DEFAULT 0"
    for _ = 1, 2 do
      local job, _, code = t:claim()
      assert.same({ nil, "SQL" }, { job, code })
    end
    all "ALTER TABLE em CHANGE nn n INT NOT NULL DEFAULT 0"
    for id = 1, 3 do
      local job = assert(t:claim())
      assert.equal(id, job.row)
      assert.is_true((job:ack()))
    end
    assert.equal(3, #all "SELECT id FROM em WHERE st = 'd'")
  end)
end)

-- A row that the server refuses to mark as taken, because of a trigger or a constraint of the
-- table's people. The rest are done all the same, and the caller is told.
describe("a row that is refused", function()
  local db
  lab.handles(1, function(handle) db = handle end)

  it("is passed over by a program, which is told when there is no other", function()
    designs.create(db, "migration_task", 6)
    assert(db:execute [[CREATE TRIGGER theirs BEFORE UPDATE ON migration_task FOR EACH ROW
      IF NEW.id IN (1, 3, 4) AND NEW.status = 'processing' THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one';
      END IF]])
    local t = assert(db:adopt(designs.map "migration_task"))
    for _, id in ipairs { 2, 5 } do
      local job = assert(t:claim())
      assert.equal(id, job.row)
      assert.is_true((job:ack()))
    end
    assert(assert(t:claim_many(10))[1]:ack())
    assert.same({ { id = 1 }, { id = 3 }, { id = 4 } },
      assert(db:execute "SELECT id FROM migration_task WHERE status = 'open' ORDER BY id"))
    assert.same({}, t:claim_many(10))
    local other <close> = lab.open()
    local jobs, message, code = assert(other:adopt(designs.map "migration_task")):claim_many(10)
    assert.same({ nil, "SQL" }, { jobs, code })
    assert.is_truthy(message:find("row %d of 'migration_task' cannot be claimed: .*not this one"), message)
  end)

  it("may break a constraint of the table", function()
    designs.create(db, "migration_task", 3)
    assert(db:execute "UPDATE migration_task SET imageUrl = 'none' WHERE id = 1")
    assert(db:execute "ALTER TABLE migration_task ADD CHECK (imageUrl <> 'none' OR claimedBy IS NULL)")
    local t = assert(db:adopt(designs.map "migration_task"))
    for id = 2, 3 do assert.equal(id, assert(t:claim()).row) end
  end)
end)

-- Other programs reset claims that are old. A claim at which somebody works is never old.
describe("a claim that is worked on", function()
  local db
  lab.handles(1, function(handle) db = handle end)

  local function all(sql, ...) return assert(db:execute(sql, ...)) end

  local function age()
    return all "SELECT TIMESTAMPDIFF(SECOND, claimedAt, NOW()) AS s FROM migration_task WHERE id = 1"[1].s
  end

  local function claim_long_ago()
    designs.create(db, "migration_task", 2)
    local t = assert(db:adopt(designs.map "migration_task"))
    local job = assert(t:claim())
    all "UPDATE migration_task SET claimedAt = NOW() - INTERVAL 100 SECOND WHERE id = 1"
    return t, job
  end

  it("is renewed by its program when it says how far it is", function()
    local _, job = claim_long_ago()
    assert.is_true((job:progress(0.5)))
    assert.is_true(age() < 50)
    assert.is_true((job:ack()))
  end)

  it("is renewed by programs that claim", function()
    local t, job = claim_long_ago()
    local done = assert(t:claim()):ack()
    eventually(function()
      assert(t:claim_many(1))
      return age() < 50
    end)
    assert.is_true(done and job:ack())
  end)
end)

-- Programs that claim one row after the other: a claim is one statement, and so is an ack. All
-- else that a claim and an ack have to see is seen. And a connection that breaks in one leaves
-- each row done once, whatever the program was told.
local ROWS, WARM = 12, 9 -- rows are taken in by 1, 2, 4, 8
local NAME = "migration_task"

describe("rows that are claimed one by one", function()
  local a, b, t
  lab.handles(2, function(...) a, b = ... end)

  --- Some are done, and others are taken in already.
  before_each(function()
    designs.create(a, NAME, 40)
    t = assert(a:adopt(designs.map(NAME)))
    for _ = 1, WARM do assert(assert(t:claim()):ack()) end
  end)

  local function count(sql) return assert(b:execute("SELECT COUNT(*) AS n FROM " .. sql))[1].n end

  it("cost two statements each", function()
    local function statements()
      return tonumber(assert(a:execute "SHOW SESSION STATUS LIKE 'Questions'")[1].Value)
    end
    local before = statements()
    for _ = 1, 30 do assert(assert(t:claim()):ack()) end
    local each = (statements() - before) / 30
    assert.is_true(each < 6, each) -- with the looks around, more on a slow machine, and taking in
  end)

  it("are passed by when their jobs are cancelled, and no lease is left", function()
    local ready = assert(b:execute "SELECT job_id AS id FROM nightshift_ready WHERE job_id > 0 ORDER BY 1")
    for i = 1, #ready - 1 do assert(b:cancel(ready[i].id)) end
    local job = assert(t:claim())
    assert.equal(ready[#ready].id, job.id)
    assert.equal(1, count "nightshift_lease")
    assert.is_true((job:ack()))
    assert.equal(0, count "nightshift_lease")
  end)

  it("are not given while the table is paused", function()
    assert(b:queue(NAME):pause())
    assert.is_nil((t:claim()))
    assert(b:queue(NAME):resume())
    assert(assert(t:claim()):ack())
  end)

  it("are not given while their name is paused, or every queue", function()
    local name = b:execute("SELECT MIN(name) AS name FROM nightshift_job")[1].name
    assert(b:pause_name(name))
    assert.is_nil((t:claim()))
    assert(b:resume_name(name))
    assert(assert(t:claim()):ack())
    assert(b:pause_all())
    assert.is_nil((t:claim()))
    assert(b:resume_all())
    assert(assert(t:claim()):ack())
  end)

  it("release the jobs that wait for theirs", function()
    local q, job = b:queue "q", assert(t:claim())
    local next_id = assert(q:push("next", 1, { after = { job.id } }))
    assert.is_nil((q:claim()))
    assert.is_true((job:ack { n = 1 }))
    assert.equal(next_id, assert(q:claim()).id)
    assert.same({ n = 1 }, b:job(job.id).result)
  end)

  it("are settled in another way when others hold them", function()
    local job = assert(t:claim())
    assert(b:transaction(function(tx)
      assert(tx:execute("SELECT * FROM " .. NAME .. " WHERE id = ? FOR UPDATE", job.row))
      assert.is_true((job:ack()))
      return true
    end))
    assert.equal("done", b:job(job.id).state)
    assert.equal(1, count "nightshift_owed")
    assert.equal(1, t:pay())
    assert.equal(1, count(("%s WHERE id = %d AND status = 'complete'"):format(NAME, job.row)))
  end)

  it("are those of other programs when these have changed them", function()
    local job = assert(t:claim())
    assert(b:execute("UPDATE " .. NAME .. " SET claimedBy = 'theirs' WHERE id = ?", job.row))
    local ok, _, code = job:ack()
    assert.same({ nil, "STALE" }, { ok, code })
    assert.equal("cancelled", b:job(job.id).state)
    assert.equal(1, count(("%s WHERE id = %d AND claimedBy = 'theirs'"):format(NAME, job.row)))
  end)
end)

describe("a connection that breaks while rows are worked on one by one:", function()
  local direct, through
  setup(function()
    lab.fresh()
    direct = lab.open()
    designs.create(direct, NAME, ROWS)
  end)
  before_each(function() through = proxy.start(servers.shared()) end)
  teardown(function() direct:close() end)

  local function count(sql, ...) return assert(direct:execute("SELECT COUNT(*) AS n FROM " .. sql, ...))[1].n end

  --- The same verb until it says how it ended; a cut one says GONE.
  local function insist(verb, ...)
    for _ = 1, 3 do
      local value, message, code = verb(...)
      if value ~= nil or message == nil then return value end
      assert.equal("GONE", code, message)
      through:tell "admit"
    end
    error "it never worked"
  end

  -- What each verb begins with, and the verb.
  local cases = {
    claim = {
      statements = 2, begin = function() end,
      run = function(t)
        local job = assert(insist(t.claim, t))
        assert.is_true(insist(job.ack, job))
      end,
    },
    ack = {
      statements = 1, begin = function(t) return assert(t:claim()) end,
      run = function(_, job) assert.is_true(insist(job.ack, job)) end,
    },
  }

  --- A table of which some rows are done, as fast as they can be. Then the verb, with the proxy
  -- armed for it; then all the rest.
  local function try(case, arm)
    assert(direct:execute "DELETE FROM nightshift_finished")
    assert(direct:execute("UPDATE " .. NAME .. " SET status = 'open', claimedBy = NULL, claimedAt = NULL"))
    local its <close> = assert(nightshift.open(through:url(lab.url())))
    local t = assert(its:adopt(designs.map(NAME)))
    for _ = 1, WARM do assert(assert(t:claim()):ack()) end
    local job = case.begin(t)
    arm()
    case.run(t, job)
    local packets, fired = through:packets(), through:tell "fired" == "yes"
    through:tell "admit"
    for next_job in t:jobs() do assert.is_true((next_job:ack())) end
    assert.equal(ROWS, count(NAME .. " WHERE status = 'complete' AND iteration = 0"))
    assert.equal(ROWS, count "nightshift_finished WHERE outcome = 'done' AND attempts = 0")
    assert.equal(ROWS, count "(SELECT DISTINCT ukey FROM nightshift_finished) k")
    for _, name in ipairs { "job", "unique_key", "lease", "owed" } do
      assert.equal(0, count("nightshift_" .. name), name)
    end
    return packets, fired
  end

  --- Where to cut: at the end of the first statement, and at that of its answer.
  local function places(case)
    for _ = 1, 20 do -- now and then a claim looks around, too
      local packets, sent, answered = try(case, function() through:tell "trace" end), 0, nil
      for _, packet in ipairs(packets) do
        if packet.who:lower() == "c" then sent = sent + 1 elseif sent == 1 then answered = packet.at end
      end
      if sent == case.statements then return { packets[1].at - 1, packets[1].at, answered - 1 } end
    end
    error "it is more than one statement"
  end

  for name, case in pairs(cases) do
    it("in a " .. name, function()
      for _, at in ipairs(places(case)) do
        for _, lasting in ipairs { false, true } do
          local _, fired = try(case, function()
            through:tell("cut " .. at)
            if lasting then through:tell "lasting" end
          end)
          assert.is_true(fired, ("byte %d never passed"):format(at))
        end
      end
    end)
  end
end)
