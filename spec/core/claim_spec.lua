-- Claims: in order, each job to one holder, never waiting for a lock.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proxy = require "spec.support.proc".proxy

describe("a claim", function()
  local function database(url) return url:match "/([^/?]+)%?" end

  local url, handle, q

  with_database(function(opened, _, at)
    handle, url = opened, at
    q = handle:queue "mail"
  end)

  local function names(jobs)
    local list = {}
    for i, job in ipairs(jobs) do list[i] = job.name end
    return list
  end

  it("takes higher priority first, then first come first served", function()
    assert(q:push_many {
      { "c", {} }, { "e", {}, { priority = 0 } }, { "a", {}, { priority = 255 } },
      { "d", {} }, { "b", {}, { priority = 101 } },
    })
    assert.same({ "a", "b", "c", "d", "e" }, names(q:claim_many(10)))
  end)

  it("finds a higher lane that appears while lower ones are being claimed", function()
    local items = {}
    for i = 1, 3000 do items[i] = { "low", i } end
    assert(q:push_many(items))
    for _ = 1, 20 do assert(q:claim()):ack() end
    local other <close> = assert(nightshift.open(url))
    assert(other:queue("mail"):push("high", {}, { priority = 200 }))
    local tries = 0
    eventually(function()
      tries = tries + 1
      local job = assert(q:claim())
      job:ack()
      return job.name == "high"
    end, 30)
    assert.is_true(tries < 2800, tries .. " lower jobs came first")
  end)

  it("finds a job that was committed late, below the rows already claimed", function()
    local late <close> = assert(nightshift.open(url))
    assert(q:push("first", 1))
    assert(late:transaction(function(tx)
      assert(tx:queue("mail"):push("late", {}))
      for i = 1, 50 do assert(q:push("early", i)) end
      for _ = 1, 30 do assert(q:claim()):ack() end
      return true
    end))
    local seen = {}
    eventually(function() -- what is late by seconds is looked for now and then
      for job in q:jobs() do
        seen[job.name] = (seen[job.name] or 0) + 1
        assert(job:ack())
      end
      return seen.late
    end)
    assert.same({ early = 21, late = 1 }, seen)
  end)

  it("goes around rows that somebody's transaction holds", function()
    assert(q:push_many { { "a", 1 }, { "b", 2 }, { "c", 3 } })
    local other <close> = assert(core.open { url = url })
    assert(other:begin())
    assert(other:execute [[SELECT * FROM nightshift_ready WHERE queue_id = 1 AND rank = 155
      ORDER BY ready_at LIMIT 1 FOR UPDATE]])
    local started = nightshift.clock()
    assert.same({ "b", "c" }, names(q:claim_many(10)))
    assert.is_true(nightshift.clock() - started < 10) -- behind them: BUSY
    other:rollback()
    assert.same({ "a" }, names(q:claim_many(10)))
  end)

  it("drops rows whose job is gone or has another run", function()
    local id = assert(q:push("a", 1))
    db.sql(([[INSERT INTO nightshift_ready SELECT queue_id, rank, 1, id, 77, 0, 0 FROM nightshift_job WHERE id = %d;
      INSERT INTO nightshift_ready SELECT queue_id, rank, 2, id + 1, 1, 0, 0 FROM nightshift_job WHERE id = %d]])
      :format(id, id),
      database(url))
    local job = assert(q:claim())
    assert.equal(id, job.id)
    assert(job:ack())
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", database(url)))
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_lease", database(url)))
  end)

  it("puts a sentinel at the end of each lane it has met", function()
    assert(q:push_many { { "a", 1 }, { "b", 2, { priority = 7 } } })
    q:claim_many(2)
    assert.equal("155\n248", db.sql("SELECT rank FROM nightshift_ready WHERE job_id = 0 ORDER BY rank", database(url)))
  end)

  it("writes one lease for a batch and deletes it with the last verdict", function()
    assert(q:push_many { { "a", 1 }, { "b", 2 }, { "c", 3 } })
    local jobs = q:claim_many(3)
    local function leases() return db.sql("SELECT COUNT(*) FROM nightshift_lease", database(url)) end
    assert.equal("1", leases())
    jobs[2]:ack()
    jobs[1]:fail "no"
    assert.equal("1", leases())
    jobs[3]:again(60)
    assert.equal("0", leases())
  end)

  it("waits without a query and takes what is pushed within milliseconds", function()
    local waiter <close> = assert(nightshift.open(url))
    local idle = waiter:queue "mail"
    idle:claim()
    local proc = require "spec.support.proc"
    local pusher = proc.start { proc.lua, "-e", ([[
      local nightshift = require "nightshift"
      local q = nightshift.open(%q):queue "mail"
      for line in io.lines() do
        q:push("now", {})
        print "pushed"
      end]]):format(url), stdin = "1\n" } -- it may come before we sleep or after: both must work
    local job = assert(idle:claim { wait = 20 })
    assert.equal("now", job.name)
    pusher:wait_line "pushed"
  end)

  it("of a paused queue gives nothing until it is resumed", function()
    assert(q:push("a", 1))
    assert(q:pause())
    assert.is_nil(q:claim())
    assert.is_nil(q:claim { wait = 0.2 })
    assert(q:resume())
    assert.equal("a", assert(q:claim()).name)
  end)

  it("comes back when its handle is closed", function()
    assert(q:push("a", 1))
    do
      local other <close> = assert(nightshift.open(url))
      assert.equal("a", assert(other:queue("mail"):claim()).name)
      assert.is_nil(q:claim())
    end
    local job = assert(q:claim())
    assert.same({ "a", 1 }, { job.name, job.attempt })
  end)
end)

-- Claims of several runs of one job were told apart by the id alone. A verdict could be written
-- with the run of an older claim, and the job was lost.
describe("a job that was cancelled and retried twice", function()
  local url, name, handle, other, id

  before_each(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    other = assert(nightshift.open(url))
    id = assert(handle:queue("q"):push("job", 1))
  end)
  after_each(function()
    handle:close()
    other:close()
  end)

  local function start_over()
    assert(other:cancel(id))
    assert(other:retry(id))
  end

  it("comes back when the handle that claimed each run closes", function()
    for i = 1, 3 do
      assert(handle:queue("q"):claim())
      if i < 3 then start_over() end
    end
    handle:close()
    local job = assert(other:queue("q"):claim())
    assert.equal(id, job.id)
    assert.is_true((job:ack()))
  end)

  it("is claimed once when its old rows are still there, and its lease goes", function()
    start_over()
    start_over()
    local jobs = assert(handle:queue("q"):claim_many(10))
    assert.equal(1, #jobs)
    assert.is_true((jobs[1]:progress(0.5)))
    assert.is_true((jobs[1]:ack()))
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_lease", name))
  end)
end)

-- A claim that waited turned in circles, thousands of transactions a second,
-- while an open transaction held a scheduled row that had come due.
describe("a waiting claim", function()
  it("does not turn in circles while a due job is held by a transaction", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local holder <close> = assert(nightshift.open(url))
    assert(handle:queue("q"):push("job", 1, { delay = 0.1 }))
    holder:transaction(function(tx)
      assert(tx:execute "DELETE FROM nightshift_scheduled")
      local function commits() return tonumber((db.sql("SHOW GLOBAL STATUS LIKE 'Com_commit'"):match "%d+")) end
      local before = commits()
      assert.is_nil(handle:queue("q"):claim { wait = 1 })
      local n = commits() - before
      assert.is_true(n < 200, n .. " transactions in a second")
    end)
  end)
end)

-- A wait of more microseconds than the clock can count to was over at once.
describe("a wait for ever", function()
  it("of a claim lasts until a job is there", function()
    local handle <close> = assert(core.open { url = db.fresh() })
    assert(handle:push("q", { { name = "later", delay = 300000 } }))
    assert.equal("later", assert(handle:claim("q", 1, math.maxinteger))[1].name)
  end)

  it("of a look ends when nobody seems dead", function()
    local handle <close> = assert(core.open { url = db.fresh() })
    assert.same({ holders = 0, jobs = 0, poison = 0 }, handle:look(math.maxinteger))
  end)

  it("cannot be negative", function()
    local handle <close> = assert(core.open { url = db.fresh() })
    assert.has_error(function() handle:claim("q", 1, -1) end)
    assert.has_error(function() handle:claim("q", 1, 0, -1) end)
    assert.has_error(function() handle:look(-1) end)
  end)
end)

-- A job that was cancelled while a host had claimed it and not begun it was begun all the same.
-- It ran until its first sign of life; so did one behind it.
describe("a job that is cancelled while it waits in a host", function()
  it("is not begun", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local folder = fixture.dir()
    local h = host.start(url, ([[return { slow = function(job)
      io.open("%s/" .. job.id, "w"):close()
      while not io.open "%s/go" do require "nightshift.core".sleep(0.02) end
    end }]]):format(folder, folder), { "--workers", "1" })
    local ids = {}
    for i = 1, 3 do ids[i] = assert(q:push("slow", i)) end
    local function begun(id) return io.open(folder .. "/" .. id) ~= nil end
    eventually(function() return begun(ids[1]) end)
    assert(handle:cancel(ids[2]))
    io.open(folder .. "/go", "w"):close()
    eventually(function() return handle:job(ids[3]).state == "done" end)
    assert.is_false(begun(ids[2]))
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end)
end)

-- The server lets a locking read see a commit a moment before a snapshot does. A claim took a
-- ready row and read its job in a snapshot that did not show it yet. It took the job for
-- cancelled, and forgot it, so that it never ran. And a job was woken by a signal that its
-- claim did not see. Seen on a machine with far more to do than it could. Here the moment is as
-- long as it takes. Of two rows that belong together one is committed by itself, and the
-- claimer's replies are slow.
describe("what a locking read sees before a snapshot does", function()
  local proc = require "spec.support.proc"

  local DELAY = 400 -- ms, of each reply

  local handle, q, url, late
  with_database(function(...) handle, q, url = ... end)
  before_each(function() late = assert(nightshift.open(url)) end)
  after_each(function() late:close() end)

  local CLAIM = [[
  local db = assert(require "nightshift".open(arg[1]))
  db:queue("q"):claim():ack() -- all that it says from here on is prepared
  print "open"
  io.open(arg[2]):read "a" -- until it may go on
  local job = assert(db:queue("q"):claim { wait = 20 })
  print("has " .. job.run .. " " .. tostring(job.signal))
  job:ack(job.signal)]]

  --- A claimer with replies that are slow from now on; it claims when it is told to.
  local function claimer()
    assert(q:push "warm-up")
    local through, gate = proxy.start(db.shared()), fixture.dir() .. "/gate"
    assert(os.execute("mkfifo " .. gate))
    local process = proc.start { proc.lua, fixture.file("claim.lua", CLAIM), through:url(url), gate }
    process:wait_line "^open"
    through:tell("delay " .. DELAY)
    return process, through, gate
  end

  --- It claims, and as soon as the ready row is taken what 'late' has done is committed.
  local function claim_and_commit(gate)
    assert(io.open(gate, "w")):close()
    eventually(function()
      return handle:execute("SELECT COUNT(*) AS n FROM nightshift_ready WHERE job_id > 0")[1].n == 0
    end)
    assert(late._handle:commit())
  end

  it("is a job that is claimed, not one that is gone", function()
    local process, through, gate = claimer()
    local id = assert(q:push "job")
    assert(handle:execute("UPDATE nightshift_ready SET run = 2 WHERE job_id = ?", id))
    assert(late._handle:begin())
    assert(late:execute("UPDATE nightshift_job SET run = 2 WHERE id = ?", id))
    claim_and_commit(gate)
    process:wait_line "^has 2 nil"
    through:tell "delay 0"
    assert.equal(0, process:wait(20))
    assert.equal("done", handle:job(id).state)
  end)

  it("is a signal", function()
    local process, through, gate = claimer()
    local id = assert(q:push "job")
    assert(assert(q:claim()):wait { signal = "go" })
    assert(late._handle:begin())
    assert(late:execute("INSERT INTO nightshift_signal VALUES (?, 'go', '7', 1)", id))
    assert(handle:execute("DELETE FROM nightshift_scheduled WHERE job_id = ?", id))
    assert(handle:execute("UPDATE nightshift_job SET due = 1 WHERE id = ?", id))
    assert(handle:execute("INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)"
      .. " SELECT queue_id, rank, created + 1, id, run FROM nightshift_job WHERE id = ?", id))
    claim_and_commit(gate)
    process:wait_line "^has 2 7"
    through:tell "delay 0"
    assert.equal(0, process:wait(20))
    assert.equal(7, handle:job(id).result)
  end)
end)

-- A forked child took over its parent's verdicts on jobs that were claimed too late, and settled
-- claims that are not its own.
it("what a parent has claimed too late is none of a forked child's business", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local other <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local id = assert(q:push("job", 1, { deadline = 3600 }))
  db.sql("UPDATE nightshift_job SET deadline = 1", name)
  assert(other:transaction(function(tx)
    assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id))
    assert.is_nil(q:claim())
    return true
  end))
  assert.equal("running", other:job(id).state)
  local pid = nst.fork(function()
    assert(not q:claim())
    handle:close()
  end)
  local how, status
  eventually(function()
    how, status = nst.reap(pid)
    return how
  end)
  assert.same({ "exit", 0 }, { how, status })
  assert.equal("running", other:job(id).state)
  assert.is_nil(q:claim())
  assert.equal("dead", other:job(id).state)
end)

-- Acks that go together and were not all written were told apart by their jobs alone. Of three
-- runs of one job, a lost one was told that it was written, and the one that is held that it
-- was not.
it("of the runs of a job that are acked together the one that is held is done", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local id = assert(handle:queue "q":push("job", 1))
  local claimer <close> = assert(core.open { url = url })
  local acks = {}
  for run = 1, 3 do -- the middle one is looked at first when a token is searched
    if run > 1 then
      db.sql(([[UPDATE nightshift_job SET run = %d WHERE id = %d; UPDATE nightshift_lease SET jobs = '[]';
        INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
          SELECT queue_id, rank, 1, id, run, CRC32(name) FROM nightshift_job]]):format(run, id), name)
    end
    local job = assert(claimer:claim("q", 1)[1])
    assert.same({ id, run }, { job.id, job.run })
    acks[run] = { id = job.id, run = job.run, lease = job.lease, kind = "ack" }
  end
  local ok, message, code = claimer:settle_all { acks[2], acks[3], acks[1] }
  assert.same({ nil, "STALE" }, { ok, code }, message)
  assert.matches("run 2,", message)
  code = select(3, claimer:settle_all { acks[3] })
  assert.equal("STALE", code)
  assert.equal("done", handle:job(id).state)
  assert.equal("3", db.sql("SELECT run FROM nightshift_finished", name))
  assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_lease", name))
end)

-- db:job and `nightshift show` named the holder with the least id of all who had anything,
-- whatever holder had the job. MariaDB 10.11 takes MIN over an indexed column from the whole
-- table when the join is with JSON_TABLE.
describe("the holder of a job", function()
  it("is the one that has it, not the first of all that have any", function()
    local url = db.fresh()
    local first <close> = assert(nightshift.open(url))
    local second <close> = assert(nightshift.open(url))
    local ids = first:queue("q"):push_many { { "a" }, { "b" } }
    local a, b = assert(first:queue("q"):claim()), assert(second:queue("q"):claim())
    assert.same(ids, { a.id, b.id })
    local holders = {}
    for i, id in ipairs(ids) do
      holders[i] = first:job(id).holder
      assert.equal(holders[i], select(2, assert(first:why(id))).holder)
    end
    assert.equal(2, #holders)
    assert.not_equal(holders[1], holders[2])
  end)
end)

-- A start of a host asked for each statement by itself whether it may be run: 258 waits on one
-- connection. A proxy with a delay counts how often a client waits.
describe("waits for the server, by a proxy:", function()
  local way, there, url

  before_each(function()
    url = db.fresh()
    way = proxy.start(db.shared())
    there = way:url(url)
    way:tell "delay 5"
  end)

  -- Of all connections since the last time, and of the one that has waited most.
  local function waits()
    local sum, most = 0, 0
    for n in way:tell("turns"):gmatch "%d+" do
      n = math.tointeger(tonumber(n))
      sum, most = sum + n, math.max(most, n)
    end
    return sum, most
  end

  -- Of the fourth job on: statements are prepared with their first use.
  local function one_by_one(options)
    local handle <close> = assert(nightshift.open(there))
    local q, found = handle:queue "q", nil
    for i = 1, 5 do
      found = {}
      waits()
      assert(q:push("a", 1, options and { unique = options.unique .. i }))
      found[1] = waits()
      local job = assert(q:claim())
      found[2] = waits()
      assert(job:ack(1))
      found[3] = waits()
      assert.same({ "done", 1 }, { handle:job(job.id).state, handle:job(job.id).result })
    end
    return table.concat(found, " ")
  end

  it("a push, a claim and an ack are one each", function()
    assert.equal("1 1 1", one_by_one())
  end)

  it("so are those of jobs with unique keys", function()
    assert.equal("1 1 1", one_by_one { unique = "key" })
  end)

  -- Of a verdict in the program's transaction, and of the commit behind it.
  local function joined(verb, options)
    local handle <close> = assert(nightshift.open(there))
    local q, inside, behind = handle:queue "q", nil, nil
    for i = 1, 4 do
      assert(q:push("a", 1, options and { unique = options.unique .. i }))
      local job = assert(q:claim())
      assert(handle:transaction(function()
        waits()
        assert(verb(job))
        inside = waits()
      end))
      behind = waits()
    end
    return inside .. " " .. behind
  end

  it("an ack in a transaction is one; the commit is one, and one more for all claims", function()
    assert.equal("1 2", joined(function(job) return job:ack(1) end))
    assert.equal("1 2", joined(function(job) return job:ack(1) end, { unique = "key" }))
  end)

  it("a failure, a poll and a release in a transaction are 3", function()
    assert.equal("3 2", joined(function(job) return job:fail "no" end))
    assert.equal("3 2", joined(function(job) return job:again(5) end))
    assert.equal("3 3", joined(function(job) return job:release() end)) -- and rings
  end)

  -- Of the third time on; `prepare` is not counted.
  local function alone(prepare, verb)
    local handle <close> = assert(nightshift.open(there))
    local q, found = handle:queue "q", nil
    for _ = 1, 3 do
      local with = prepare(q, handle)
      waits()
      assert(verb(with, q))
      found = waits()
    end
    return found
  end

  local function take(q)
    assert(q:push("a", 1))
    return assert(q:claim())
  end

  it("the exceptions take 5 to claim and 6 to 14 for a verdict", function()
    local function ack(job) return job:ack(1) end

    -- The first of so many children.
    local function child(number)
      return function(q, handle)
        local parent, queue = take(q), "children of " .. number
        for i = 1, number do parent:spawn("b", i, { queue = queue }) end
        assert(parent:wait())
        return assert(handle:queue(queue):claim())
      end
    end

    local function shown(q)
      local job = take(q)
      assert(job:progress(0.5))
      return job
    end

    local function two(q) assert(q:push_many { { "a" }, { "a" } }) end

    local most = { several = 5, fail = 6, again = 6, release = 7, shown = 8, child = 11, last = 14 }
    local found = {
      several = alone(two, function(_, q) return q:claim_many(2) end),
      fail = alone(take, function(job) return job:fail "no" end),
      again = alone(take, function(job) return job:again(5) end),
      release = alone(take, function(job) return job:release() end),
      shown = alone(shown, ack), child = alone(child(2), ack), last = alone(child(1), ack),
    }
    for name, n in pairs(found) do assert.is_true(n <= most[name], name .. " " .. n) end
  end)

  it("a thousand acks of such jobs in a transaction are 20 at most", function()
    local handle <close> = assert(nightshift.open(there))
    local q, items = handle:queue "q", {}
    for i = 1, 1000 do items[i] = { "a", i, { unique = "k" .. i } } end
    assert(q:push_many(items))
    local jobs = assert(q:claim_many(1000))
    assert.equal(1000, #jobs)
    waits()
    assert(handle:transaction(function(tx)
      for _, job in ipairs(jobs) do tx:ack(job) end
      return true
    end))
    local n = waits()
    assert.is_true(n <= 20, n)
    assert.same({ 1000, 0 }, { #assert(handle:execute "SELECT 1 FROM nightshift_finished"),
      #assert(handle:execute "SELECT 1 FROM nightshift_unique_key") })
  end)

  it("an open is 4, and a first claim, which registers and prepares, is 19 at most", function()
    assert(assert(nightshift.open(url)):queue("q"):push("a", 1))
    local handle <close> = assert(nightshift.open(there))
    local opened = waits()
    assert(handle:queue("q"):claim())
    local claimed = waits()
    assert.is_true(opened <= 4 and claimed <= 19, opened .. " " .. claimed)
  end)

  it("a host is ready after 15 on its connection, and has ended its first job after 65", function()
    assert(assert(nightshift.open(url)):queue("q"):push("a", 1))
    way:tell "delay 25" -- so many packets take some milliseconds to send
    local h = host.start(there, "return { a = function() end }")
    local _, ready = waits()
    local handle <close> = assert(nightshift.open(url))
    eventually(function() return handle:queue("q"):stats().running + handle:queue("q"):stats().ready == 0 end)
    local _, done = waits()
    host.stop(h)
    assert.is_true(ready <= 15 and ready + done <= 65, ready .. " " .. done)
  end)
end)

-- A statement is prepared and run in one go: its execution names the number that the server will
-- give it. The caller's own SQL may take numbers in between.
it("a statement runs though the server gives it another number than was guessed", function()
  local url, name = db.fresh()
  db.sql("CREATE PROCEDURE takes_a_number() EXECUTE IMMEDIATE 'DO 1'", name)
  local handle <close> = assert(nightshift.open(url))
  for i = 1, 3 do
    for _ = 1, i do assert(handle:execute "CALL takes_a_number()") end
    local q = handle:queue("q" .. i)
    local id = assert(q:push("a", i))
    assert(handle:execute "CALL takes_a_number()")
    local job = assert(q:claim())
    assert.same({ id, i }, { job.id, job.payload })
    assert(handle:execute "CALL takes_a_number()")
    assert(job:ack(i))
    assert.equal("done", handle:job(id).state)
  end
end)

it("a statement that the server has no room to prepare runs no other one in its place", function()
  local server = db.spare()
  local url, name = server:fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  assert(q:push("a", 1))
  server:sql "SET GLOBAL max_prepared_stmt_count = 0"
  local job, message, code = q:claim()
  assert.same({ nil, "BUSY" }, { job, code }, message)
  local rows = server:sql("SELECT COUNT(*), (SELECT COUNT(*) FROM nightshift_lease) FROM nightshift_ready", name)
  assert.equal("1\t0", rows)
  server:sql "SET GLOBAL max_prepared_stmt_count = 16382"
  job = assert(q:claim())
  assert(job:ack(1))
end)
