-- Claims with many queues, many handles, and many rows that are gone already. Faults that databases
-- as queues are blamed for.

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local host = require "spec.support.host"
local lab = require "spec.support.db".lab
local ledger = require "spec.support.crew".ledger
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- Many claimers at once: each job exactly once, and no deadlock that a caller
-- sees. The same detector is shown to catch a queue that is wrong.
describe("concurrent claimers", function()
  -- With NIGHTSHIFT_LONG 200 of them and 20,000 jobs.
  local LONG = os.getenv "NIGHTSHIFT_LONG"
  local CLAIMERS, JOBS = LONG and 200 or 12, LONG and 20000 or 500

  -- Starts n programs, lets them go together, waits; returns id -> how often.
  local function run(program, url, n)
    local folder = fixture.dir()
    local started = {}
    os.execute("mkfifo " .. folder .. "/go")
    for i = 1, n do
      started[i] = proc.start { "/bin/sh", "-c", ("exec %s spec/support/crew.lua %s '%s' %s/ids.%d < %s/go")
        :format(proc.lua, program, url, folder, i, folder) }
    end
    local go = assert(io.open(folder .. "/go", "w"))
    for _, p in ipairs(started) do p:wait_line("ready", 120) end
    go:write(("\n"):rep(n))
    go:close()
    for _, p in ipairs(started) do assert.equal(0, p:wait(300), p:transcript()) end
    local seen = {}
    for i = 1, n do
      for line in io.lines(("%s/ids.%d"):format(folder, i)) do seen[line] = (seen[line] or 0) + 1 end
    end
    return seen
  end

  local function twice(seen)
    local n = 0
    for _, times in pairs(seen) do
      if times > 1 then n = n + 1 end
    end
    return n
  end

  it("each with its own connection take each of thousands of jobs exactly once", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local items = {}
    for i = 1, JOBS do items[i] = { "x", i } end
    local ids = assert(handle:queue("load"):push_many(items))
    local seen = run("claimer", url, CLAIMERS)
    for _, id in ipairs(ids) do assert.equal(1, seen[tostring(id)], "job " .. id) end
    assert.equal(0, twice(seen))
    assert.equal(tostring(JOBS), (db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name)))
    for _, left in ipairs { "job", "lease", "holder" } do
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_" .. left, name)), left)
    end
  end)

  it("that select and update in separate transactions are caught by the same detector", function()
    local url, name = db.empty()
    db.sql([[CREATE TABLE naive (id INT PRIMARY KEY, state INT NOT NULL, KEY (state, id));
      INSERT INTO naive SELECT seq, 0 FROM seq_1_to_400]], name)
    assert.is_true(twice(run("naive", url, 8)) > 0)
  end)
end)

-- A host that served 1,500 queues asked each of them at each wake, which took 0.7 s from a push
-- to its job's start. It did so again at each look after it.
it("a host of many queues asks those that have something", function()
  local QUEUES = 150

  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local ids = {}
  assert(handle:transaction(function(tx)
    for i = 1, QUEUES do ids[i] = tx:queue("q" .. i):push "job" end
    return true
  end))
  local h = host.start(url, "return { job = function() end }")
  local function done(id) eventually(function() return handle:job(id).state == "done" end) end
  for _, id in ipairs(ids) do done(id) end
  local function executed()
    return tonumber(assert(handle:execute "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'")[1].Value)
  end
  local before = executed()
  done(assert(handle:queue("q" .. QUEUES // 2):push "job"))
  local took = executed() - before
  assert.is_true(took < QUEUES, took)
  h:signal "TERM"
  assert.equal(0, h:wait())
end)

-- A host with jobs in 5,000 queues did 770 a second. For each job it went several times through
-- all its queues in memory, and asked one of them by itself.
describe("many queues:", function()
  local QUEUES, EACH = os.getenv "NIGHTSHIFT_LONG" and 400 or 100, 8
  local NOTHING = "return { job = function() end }"

  local function executed()
    return tonumber(db.sql("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'"):match "%d+")
  end

  -- Paused, so that a host finds all jobs at once. Gives the handle and the database's name.
  local function filled(options, before)
    local url, name = db.fresh()
    if before then before(url) end
    local handle = assert(nightshift.open(url))
    assert(handle:transaction(function(tx)
      local jobs = {}
      for i = 1, EACH do jobs[i] = { "job", i, options and options(i) } end
      for i = 1, QUEUES do assert(tx:queue("q" .. i):push_many(jobs)) end
      return true
    end))
    return handle, name, url
  end

  local function drained(name) return db.sql("SELECT 1 FROM nightshift_job LIMIT 1", name) == "" end

  it("a claim of many queues with a few jobs each takes a few statements", function()
    local handle <close>, name, url = filled()
    local before = executed()
    local h = host.start(url, NOTHING)
    eventually(function() return drained(name) end, 60)
    local cycles = tonumber(db.sql("SELECT cycle FROM nightshift_holder WHERE kind = 'host'", name))
    local a_job = (executed() - before - 20 * cycles) / (QUEUES * EACH) -- but for what each cycle takes anyway
    assert.is_true(a_job < 0.25, a_job)
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.equal(tostring(QUEUES * EACH),
      db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
    assert(handle:queue "q1")
  end)

  -- A host with workers that all seem to be long at one job gives back what it has claimed
  -- ahead. So on a busy machine a job may have another run, and be started once all the same.
  it("two hosts share them, and each job is started once", function()
    local hosts
    local path = fixture.dir() .. "/ledger"
    local script = ledger.script(path) .. "return { job = function(job) begin(job.id) done(job.id) end }"
    local handle <close>, name = filled(nil, function(url) -- both are there before the first job
      hosts = { host.start(url, script), host.start(url, script) }
    end)
    eventually(function() return drained(name) end, 60)
    for _, h in ipairs(hosts) do
      h:signal "TERM"
      assert.equal(0, h:wait())
    end
    assert.equal(tostring(QUEUES * EACH),
      db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
    local found, n = ledger.read(path), 0
    for id, times in pairs(found.begun) do
      assert.same({ 1, 1 }, { times, found.done[id] })
      n = n + 1
    end
    assert.equal(QUEUES * EACH, n)
    assert.equal("2", db.sql("SELECT COUNT(DISTINCT holder) FROM nightshift_finished", name))
    assert(handle:queue "q1")
  end)

  it("a host of many queues that are empty is silent", function()
    local handle <close>, name, url = filled()
    local h = host.start(url, NOTHING)
    eventually(function() return drained(name) end, 60)
    eventually(function()
      local before = executed()
      db.sql "DO SLEEP(0.3)"
      return executed() - before < 20
    end)
    local id = assert(handle:queue("q7"):push "job") -- and hears of the next
    eventually(function() return handle:job(id).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("jobs below others in their queue have their turn", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:transaction(function(tx)
      local urgent = {}
      for i = 1, 100 do urgent[i] = { "job", i, { priority = 200 } } end
      for i = 1, 6 do
        assert(tx:queue("q" .. i):push("low", i, { priority = 1 }))
        assert(tx:queue("q" .. i):push_many(urgent))
      end
      return true
    end))
    local h = host.start(url, [[local nst = require "nst"
    local function nap() nst.sleep(0.001) end -- so that a claim has few places
    return { job = nap, low = nap }]])
    eventually(function() return drained(name) end, 60)
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.equal("0", db.sql([[SELECT COUNT(*) FROM nightshift_finished f WHERE name = 'low' AND NOT EXISTS(
    SELECT 1 FROM nightshift_finished o WHERE o.queue_id = f.queue_id
      AND o.finished_at > f.finished_at + 10000)]], name))
  end)
end)

-- 200 programs that claimed a hundred jobs each at one moment skipped each other's locked rows.
-- Claims took half a minute, were cut by the read timeout, and failed with GONE.
describe("a crowd:", function()
  after_each(crew.clean)

  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  local function push(n)
    local items = {}
    for i = 1, 1000 do items[i] = { "job", i } end
    for _ = 1, n // 1000 do assert(q:push_many(items)) end
  end

  local function count(sql) return assert(handle:execute("SELECT COUNT(*) AS n FROM " .. sql))[1].n end

  --- Statements that leave a gate: no other program sends any DO here.
  local function leaves() return tonumber((db.sql "SHOW GLOBAL STATUS LIKE 'Com_do'":match "%d+")) end

  --- A session that is in all gates of the queue and does not come out.
  local function stay_in_gates()
    local stopped = assert(nightshift.open(url))
    local queue = assert(stopped:execute "SELECT id FROM nightshift_queue WHERE name = 'q'")[1].id
    for gate = 1, 16 do
      assert(stopped:execute("DO GET_LOCK(CONCAT('nightshift-gate:', MD5(DATABASE()), ':', ?, ':', ?), 0)", queue,
        gate))
    end
    return stopped
  end

  local function open(address)
    local own, message, code
    repeat
      own, message, code = nightshift.open(address)
    until own or code ~= "GONE" -- not all are heard at once
    return assert(own, message)
  end

  it("each job goes to one of a crowd, and no claim fails", function()
    local LONG = os.getenv "NIGHTSHIFT_LONG"
    local CLAIMERS, BATCH, JOBS = LONG and 200 or 16, 100, LONG and 24000 or 2000
    push(JOBS)
    local folder = fixture.dir()
    assert(os.execute("mkfifo " .. folder .. "/gate"))
    local c = crew.fork(CLAIMERS, function(i)
      local own = open(url .. "&read_timeout=10s")
      local mine = own:queue "q"
      local ready <close> = assert(io.open(folder .. "/ready", "ab"))
      ready:write "."
      ready:close()
      assert(io.open(folder .. "/gate", "r")):close()
      local ids <close> = assert(io.open(folder .. "/ids" .. i, "w"))
      repeat
        local jobs = assert(mine:claim_many(BATCH))
        for _, job in ipairs(jobs) do ids:write(job.id, "\n") end
        assert(own:transaction(function(tx)
          for _, job in ipairs(jobs) do assert(tx:ack(job)) end
        end))
      until #jobs == 0
      own:close()
    end)
    eventually(function()
      local ready <close> = io.open(folder .. "/ready")
      return ready and #ready:read "a" == CLAIMERS
    end, 120)
    local opened = assert(io.open(folder .. "/gate", "w"))
    c:wait(120)
    opened:close()
    local claimed, n = {}, 0
    for i = 1, CLAIMERS do
      for id in io.lines(folder .. "/ids" .. i) do
        assert.is_nil(claimed[id], "a job was claimed twice")
        claimed[id], n = true, n + 1
      end
    end
    assert.same({ JOBS, JOBS, 0 }, { n, count "nightshift_finished WHERE outcome = 'done'", count "nightshift_job" })
  end)

  -- Rows of other names in number, and as a crowd has them: held by a transaction.
  it("claims past very many held rows by a gate, in order, and waits only a moment at a gate that is taken", function()
    local HELD = 120000
    local LANE = "nightshift_ready"
      .. " WHERE ready_at < 9223372036854775807 ORDER BY queue_id, rank, ready_at, job_id LIMIT "
    push(1000)
    assert(handle:execute([[INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)
      SELECT r.queue_id, r.rank, r.ready_at - 1000000, r.job_id + seq, r.run
      FROM (SELECT * FROM nightshift_ready WHERE job_id > 0 LIMIT 1) r JOIN seq_1_to_]] .. HELD))
    local other <close> = assert(nightshift.open(url))
    assert(other:transaction(function(tx)
      tx:execute(("SELECT job_id FROM %s%d FOR UPDATE"):format(LANE, HELD))
      local free = assert(handle:execute(("SELECT job_id FROM %s%d, 18"):format(LANE, HELD)))
      local before = leaves()
      for i = 1, 6 do assert.equal(free[i].job_id, assert(q:claim()).id) end
      assert.is_true(leaves() > before)
      local stopped <close> = stay_in_gates()
      for i = 7, 18 do
        local start = nightshift.clock()
        assert.equal(free[i].job_id, assert(q:claim()).id)
        assert.is_true(nightshift.clock() - start < 15, "it was waited for")
      end
      stopped:close()
      return true
    end))
  end)

  it("who claims alone, or with a few, asks for no gate", function()
    local handles = { handle }
    for i = 2, 8 do handles[i] = assert(nightshift.open(url)) end
    push(1000)
    local stopped <close> = stay_in_gates()
    local before = leaves()
    for _ = 1, 20 do
      for _, own in ipairs(handles) do assert(assert(own:queue("q"):claim()):ack()) end
    end
    assert.equal(before, leaves())
    for i = 2, 8 do handles[i]:close() end
    stopped:close()
  end)
end)

-- A claim starts where it has come to. Jobs committed late below that place, or with an older
-- one, were found by reading the whole queue again, deleted rows and all. With purge blocked
-- each such look stopped the claims for as long as there were rows to read.
describe("floors:", function()
  local handle, q, url, name

  with_database(function(...) handle, q, url, name = ... end)

  local function pushed(n, options)
    local items = {}
    for i = 1, n do items[i] = { "job", i, options } end
    return assert(q:push_many(items))
  end

  local function claims(n, size)
    for _ = 1, n do
      local jobs = assert(q:claim_many(size or 1))
      assert(handle:transaction(function(tx)
        for _, job in ipairs(jobs) do assert(tx:ack(job)) end -- all at once
        return true
      end))
    end
  end

  --- A transaction that reads, as a backup's: purge removes nothing until it ends.
  local function blocking()
    local reader = assert(nightshift.open(url))
    assert(reader:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert(reader._handle:begin())
    assert(reader:execute "SELECT 1 FROM nightshift_meta")
    return reader
  end

  -- Claims on, while there always is more, until a job has come; seconds that took.
  local function time_until(id)
    local start = nightshift.clock()
    while true do
      pushed(50)
      for _, job in ipairs(assert(q:claim_many(20))) do
        assert(job:ack())
        if job.id == id then return nightshift.clock() - start end
      end
      assert.is_true(nightshift.clock() - start < proc.limit(40), "never found")
    end
  end

  --- What the page on claims promises of hidden rows, seconds.
  local function stated()
    local file <close> = assert(io.open(proc.root .. "/doc/internals/claim.md"))
    return tonumber((assert(file:read "a":match "hidden row is found within%s+(%d+) ms"))) / 1000
  end

  describe("below the floor of a busy queue", function()
    for _, blocked in ipairs { false, true } do
      local when = blocked and ", with purge blocked" or ""

      it("a push that commits late is found within the sweep's interval" .. when, function()
        local _ <close> = blocked and blocking() or nil
        pushed(1000)
        claims(5, 100)
        local late <close> = assert(nightshift.open(url))
        local id
        assert(late:transaction(function(tx)
          id = assert(tx:queue "q":push "late")
          pushed(1000)
          claims(10, 100) -- rows that came after it
          return true
        end))
        local sweeps = handle:stats().counters.sweeps
        assert.is_true(time_until(id) < proc.limit(stated() + 8)) -- and what the claims take
        assert.is_true(handle:stats().counters.sweeps > sweeps)
      end)
    end

    it("a job that comes back with an older place is found", function()
      local id = pushed(1)[1]
      local job = assert(q:claim())
      assert.equal(id, job.id)
      pushed(500)
      claims(10, 20)
      assert(job:release())
      db.sql("UPDATE nightshift_ready SET ready_at = 5 WHERE job_id = " .. id, name)
      assert.is_true(time_until(id) < proc.limit(stated() + 8))
    end)

    it("a priority that nobody has known is found, and claimed before the others", function()
      pushed(500)
      claims(5, 20)
      local other <close> = assert(nightshift.open(url))
      local id = assert(other:queue "q":push("high", nil, { priority = 250 }))
      assert.is_true(time_until(id) < proc.limit(stated() + 8))
    end)

    it("nothing of a lower priority is claimed before its turn", function()
      local late <close> = assert(nightshift.open(url))
      pushed(20, { priority = 5 })
      local high
      claims(1, 1)
      assert(late:transaction(function(tx)
        assert(tx:queue "q":push("low", nil, { priority = 5 }))
        pushed(1, { priority = 5 })
        claims(1, 30)
        high = pushed(1000, { priority = 200 })
        return true
      end))
      for _ = 1, #high // 20 do
        for _, job in ipairs(assert(q:claim_many(20, { strict = true }))) do
          assert.equal(200, job.priority)
          assert(job:ack())
        end
      end
      assert.equal("low", assert(q:claim()).name)
    end)
  end)

  describe("below the floor of an idle host", function()
    local h

    after_each(function()
      h:signal "QUIT"
      h:wait()
    end)

    local function is_done(id)
      return function() return handle:job(id).state == "done" end
    end

    it("what is committed late is found, among more removed rows than it reads at a time", function()
      local _ <close> = blocking()
      for _ = 1, 4 do pushed(1000) end
      claims(4, 1000)
      h = host.start(url, "return { job = function() end }")
      for _ = 1, 10 do eventually(is_done(pushed(1)[1])) end
      local id
      assert(handle:transaction(function(tx)
        id = assert(tx:queue "q":push "job")
        assert(tx:execute("UPDATE nightshift_ready SET ready_at = 5 WHERE job_id = ?", id))
        return true
      end))
      -- two hundred times what reading all takes
      eventually(is_done(id), 30)
    end)
  end)

  describe("sweeps", function()
    it("take at most 5 % of the time, however many removed rows there are", function()
      local _ <close> = blocking()
      pushed(4000)
      claims(4, 1000)
      local part
      for _ = 1, 3 do -- one that gets no time for a moment counts for as long
        pushed(3000)
        local before, start = handle:stats().counters, nightshift.clock()
        claims(150, 20)
        local seconds, now = nightshift.clock() - start, handle:stats().counters
        assert.is_true(now.sweeps > before.sweeps)
        part = (now.swept - before.swept) / 1e6 / (seconds + 0.2) -- one may have begun at the end
        if part <= 0.05 then break end
      end
      assert.is_true(part <= 0.05, part)
    end)

    it("put up a sentinel that is gone", function()
      pushed(10, { priority = 7 })
      pushed(10)
      claims(1, 20)
      local function sentinels()
        return db.sql("SELECT rank FROM nightshift_ready WHERE job_id = 0 ORDER BY rank", name)
      end
      assert.equal("155\n248", sentinels())
      db.sql("DELETE FROM nightshift_ready WHERE job_id = 0 AND rank = 155", name)
      eventually(function()
        pushed(1, { priority = 7 })
        claims(1, 1)
        q:claim()
        return sentinels() == "155\n248"
      end)
    end)
  end)

  describe("a claim", function()
    it("over more lanes than one statement has finds every one", function()
      local items = {}
      for priority = 0, 255 do items[#items + 1] = { "job", nil, { priority = priority } } end
      assert(q:push_many(items))
      local seen = 0
      while seen < 256 do
        local jobs = assert(q:claim_many(10))
        assert.is_true(#jobs > 0, seen .. " of 256")
        for _, job in ipairs(jobs) do
          seen = seen + 1
          assert(job:ack())
        end
      end
      assert(q:push_many(items))
      assert.equal(256, #assert(q:claim_many(300)))
    end)
  end)
end)

-- Each look at the head of the scheduled jobs began at the table's start. While purge was held
-- up, by a backup say, it read every row that had ever been promoted. A job that had polled
-- 6,000 times cost 2.6 times as much as at first. It begins behind what was promoted now
-- (bench/questions/waiting.lua has the figures, with "hold"), and what commits behind that is
-- found.
describe("the scheduled jobs", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  it("are found when they commit behind what was promoted", function()
    local late <close> = assert(nightshift.open(url))
    assert(late._handle:begin())
    local id = assert(late:queue("q"):push("late", nil, { delay = 0.05 }))
    assert(q:push("poll", nil, { priority = 200 }))
    local h = host.start(url, [[return {
      poll = function(job) return job:again(0.001) end, late = function() end }]])
    eventually(function() return handle:execute("SELECT MAX(polls) AS n FROM nightshift_job")[1].n > 100 end)
    assert(late._handle:commit())
    eventually(function() return handle:job(id).state == "done" end, 9) -- by the round: 10 s
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("are found by who waits, when they commit behind what was promoted", function()
    local late <close> = assert(nightshift.open(url))
    assert(late._handle:begin())
    local id = assert(late:queue("q"):push("late", nil, { delay = 0.05 }))
    for _ = 1, 3 do
      assert(q:push("early", nil, { delay = 0.06 }))
      assert(assert(q:claim { wait = 20 }):ack())
    end
    assert(late._handle:commit())
    nst.sleep(0.05) -- a look that has just been is not done again at once
    local start = nst.clock()
    assert.equal(id, assert(q:claim { wait = 9 }).id)
    assert.is_true(nst.clock() - start < proc.limit(4), nst.clock() - start)
  end)
end)

-- Faults that databases as queues are blamed for, and that are not so here. An idle host does
-- not poll, and claimers do not wait for each other's locks. The tables that claims read stay
-- small however many jobs have gone through them.
describe("remedies:", function()
  local handle
  lab.handles(1, function(opened) handle = opened end)
  after_each(crew.clean)

  local function all(sql, ...) return assert(handle:execute(sql, ...)) end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait(30))
  end

  local NOOP = "return { noop = function() end }"

  describe("an idle host", function()
    local SECONDS, ROUND = 20, 10

    --- What the server was asked: time in seconds and text, but for what this test asks.
    local function asked()
      local list = {}
      for line in lab.sql([[SELECT UNIX_TIMESTAMP(event_time), REPLACE(CONVERT(argument USING utf8mb4), '\n', ' ')
      FROM mysql.general_log WHERE command_type = 'Execute' OR command_type = 'Query'
        AND argument NOT LIKE 'SET GLOBAL%' AND argument NOT LIKE '%general_log%' ORDER BY event_time]])
        :gmatch "[^\n]+" do
        local at, text = line:match "^([%d.]+)\t(.*)$"
        list[#list + 1] = { at = tonumber(at), text = text }
      end
      return list
    end

    it("asks nothing between its rounds of ten seconds, though jobs are there for later", function()
      local q = handle:queue "later"
      for _ = 1, 20 do assert(q:push("noop", nil, { delay = 3600 })) end
      local h = host.start(lab.url(), NOOP)
      nst.sleep(5) -- what follows a start
      local list, quiet, busy -- busy: seconds in which there was anything
      for _ = 1, 2 do -- a slow start may reach into the first
        lab.sql "SET GLOBAL log_output = 'TABLE'; TRUNCATE mysql.general_log; SET GLOBAL general_log = ON"
        nst.sleep(SECONDS)
        lab.sql "SET GLOBAL general_log = OFF"
        list, quiet, busy = asked(), 0, 0
        for i = 2, #list do
          local gap = list[i].at - list[i - 1].at
          quiet = math.max(quiet, gap)
          busy = busy + math.min(gap, 1)
        end
        if quiet > ROUND - 2 and busy < SECONDS / 2 then break end
      end
      stop(h)
      local looks = 0 -- for schedules
      for _, statement in ipairs(list) do
        assert.is_nil(statement.text:find "DELETE FROM nightshift_ready", statement.text)
        looks = looks + (statement.text:find "nightshift_schedule[^d]" and 1 or 0)
      end
      assert.is_true(looks <= SECONDS // ROUND + 1, looks)
      assert.is_true(quiet > ROUND - 2, ("%d statements, quiet for %.3f s"):format(#list, quiet))
      assert.is_true(busy < SECONDS / 2, busy)
      assert.is_true(#list <= 40 * (SECONDS // ROUND + 1), #list)
    end)
  end)

  -- 64 of them with NIGHTSHIFT_LONG.
  describe("a crowd of claimers with a connection each", function()
    local LONG = os.getenv "NIGHTSHIFT_LONG"
    local CLAIMERS, PUSHERS, JOBS = LONG and 64 or 16, 4, LONG and 1200 or 160

    local function waits() return tonumber(all "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'"[1].Value) end

    --- Says that it is there, and claims until nothing comes any more.
    local function claim_all(there)
      local own <close> = lab.open()
      local q, empty = own:queue "hot", 0
      assert.is_nil(q:claim())
      local file <close> = assert(io.open(there, "ab"))
      file:write "there\n"
      file:flush()
      while empty < 3 do
        local jobs = assert(q:claim_many(5, { wait = 1 }))
        for _, job in ipairs(jobs) do assert(job:ack()) end
        empty = #jobs == 0 and empty + 1 or 0
      end
    end

    local function push_all(i)
      local own <close> = lab.open()
      local q = own:queue "hot"
      for n = 1, JOBS // PUSHERS do assert(q:push("noop", { i, n })) end
    end

    --- Writes down who waits for which lock, when one does.
    local function watch(path)
      local own <close> = lab.open()
      while true do
        if assert(own:execute "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")[1].Value ~= "0" then
          local status = assert(own:execute "SHOW ENGINE INNODB STATUS")[1].Status
          local file <close> = assert(io.open(path, "ab"))
          file:write(status:match "LIST OF TRANSACTIONS.-FILE I/O" or status)
        end
        nst.sleep(0.1)
      end
    end

    local function text(path)
      local file <close> = io.open(path, "rb")
      return file and file:read "a" or "nobody was seen waiting"
    end

    it("never wait for a row, while others push", function()
      handle:queue "hot":push("noop", 0)
      assert(handle:queue("hot"):claim()):ack()
      local there = fixture.dir() .. "/there"
      local claimers = crew.fork(CLAIMERS, function() claim_all(there) end)
      eventually(function() return ledger.count(there) == CLAIMERS end, 60)
      local seen, before = fixture.dir() .. "/waits", waits()
      crew.fork(1, function() watch(seen) end)
      local pushers = crew.fork(PUSHERS, push_all)
      pushers:wait(120)
      claimers:wait(120)
      assert.equal(before, waits(), text(seen))
      assert.equal(JOBS + 1,
        all "SELECT COUNT(*) AS n FROM nightshift_finished WHERE outcome = 'done' AND run = 1"[1].n)
      assert.equal(0, all "SELECT COUNT(*) AS n FROM nightshift_ready WHERE job_id > 0"[1].n)
    end)
  end)

  -- make test-million: 1,000,000
  local MANY = tonumber(os.getenv "NIGHTSHIFT_MANY") or 6000

  describe(("%d jobs"):format(MANY), function()
    local BATCH, BACKLOG = 500, math.min(5000, MANY // 3)
    local MIB = 1024 * 1024

    --- Rows of the tables that claims read.
    local function hot()
      return all [[SELECT (SELECT COUNT(*) FROM nightshift_job) AS jobs,
      (SELECT COUNT(*) FROM nightshift_ready) AS ready]][1]
    end

    --- Bytes of a table's file.
    local function size(name)
      return all([[SELECT FILE_SIZE AS n FROM information_schema.INNODB_SYS_TABLESPACES
      WHERE NAME = CONCAT(CAST(CONVERT(DATABASE() USING filename) AS BINARY), '/', ?)]], name)[1].n
    end

    --- Pushes them, as many as are not waiting yet; calls back with what there is.
    local function push(look)
      local q, jobs, pushed = handle:queue "many", {}, 0
      for i = 1, BATCH do jobs[i] = { "noop", i } end
      while pushed < MANY do
        local there = hot()
        look(there)
        if there.jobs <= BACKLOG - BATCH then
          assert(q:push_many(jobs))
          pushed = pushed + BATCH
        else
          nst.sleep(0.002)
        end
      end
    end

    it("go through tables that stay small, and are all in the history", function()
      local workers = { "--workers", "4", "--queues", "many" }
      local h = host.start(lab.url(), NOOP, workers)
      local other = host.start(lab.url(), NOOP, workers)
      local waiting = all "SELECT COUNT(*) AS n FROM nightshift_scheduled"[1].n -- of the test before
      local most, started = 0, nightshift.clock()
      push(function(there) most = math.max(most, there.jobs + there.ready) end)
      eventually(function() return hot().jobs <= waiting end, 120)
      local took = nightshift.clock() - started
      stop(h)
      stop(other)
      local history = all [[SELECT COUNT(*) AS n, COUNT(DISTINCT id) AS ids, SUM(run) AS runs FROM nightshift_finished
      WHERE outcome = 'done' AND name = 'noop' AND queue_id = (SELECT id FROM nightshift_queue WHERE name = 'many')]][1]
      local file = size "nightshift_job" + size "nightshift_ready"
      local report = ("%d jobs in %.1f s: at most %d hot rows, in files of %.0f MiB, of history %.0f MiB")
        :format(MANY, took, most, file / MIB, size "nightshift_finished" / MIB)
      if os.getenv "NIGHTSHIFT_MANY" then print(report) end
      assert.equal(MANY, history.n, report)
      assert.equal(MANY, history.ids)
      assert.is_true(most <= 3 * BACKLOG, report) -- two rows a job, and sentinels
      assert.is_true(file <= 64 * MIB, report)
      assert.is_true(MANY < 1000000 or size "nightshift_finished" > 2 * file, report)
    end)
  end)
end)

-- The tables of four published queues, as they were published to the letter, and a fifth that
-- was described. Each is adopted as it is, and worked off by hosts that are killed.
describe("a published table", function()
  -- luacheck: no max line length
  local TABLES = require "spec.support.designs".published
  local ROWS, count = 45, TABLES.count

  local url
  TABLES.database(function(_, at) url = at end)

  -- Each third row fails once, where the table counts attempts.
  local SCRIPT = [[return { task = function(job)
  require "nightshift.core".sleep(0.01)
  local counts = job.payload.iteration or job.payload.job_attempts or job.payload.failure_count
  if counts and job.row % 3 == 0 and job.attempt == 1 then error "once" end
end }]]

  for i, t in ipairs(TABLES) do
    it(t[1] .. " is worked off by hosts that are killed", function()
      local _, name, done = TABLES.make(i, ROWS)
      local path = fixture.file(name .. ".lua", "return " .. t[4])
      local first = host.start(url, SCRIPT, { "--adopt", path, "--workers", "3" })
      eventually(function() return count(name, done) >= ROWS // 4 end, 20)
      first:signal "KILL"
      first:wait()
      local last = host.start(url, SCRIPT, { "--adopt", path, "--workers", "3" })
      local ok = pcall(eventually, function() return count(name, done) == ROWS end, 30)
      assert.is_true(ok, ("%d of %d are done"):format(count(name, done), ROWS))
      last:signal "TERM"
      assert.equal(0, last:wait())
    end)
  end

  -- Each claim notes down, in the buffer pool, all rows that it has read past.
  it("of which thousands of rows are locked one by one does not fill a small buffer pool", function()
    local server = db.server "innodb-buffer-pool-size=64M\n"
    local own = server:fresh()
    local name, definition, rows, mapping, done = table.unpack(TABLES[4])
    server:sql(definition, db.name(own))
    server:sql(("INSERT INTO %s %s FROM seq_1_to_4000"):format(name, rows), db.name(own))
    local h = host.start(own, "return { task = function() end }",
      { "--adopt", fixture.file("pool.lua", "return " .. mapping), "--workers", "4" })
    eventually(function()
      local n = server:sql(("SELECT COUNT(*) FROM %s WHERE %s"):format(name, done), db.name(own))
      return tonumber(n) >= 800
    end, 60)
    assert.is_false((server.process:ended()))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
