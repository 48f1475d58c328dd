-- Children that a run spawns, many or few: they are written whole, and delay no other job. The
-- results that a job gets of its children, and of the jobs that it was pushed after.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- Children that a host's workers spawn, with siblings to wait for. What a worker says of them
-- is kept until it is written, however many speak at once.
it("hundreds of parents of siblings that wait for each other, in one host", function()
  local PARENTS = 250
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local items = {}
  for i = 1, PARENTS do items[i] = { "parent", i } end
  assert(handle:queue("q"):push_many(items))
  local status, log = host.drain(url, [[return {
    parent = function(job)
      local one = job:spawn("child", ("x"):rep(job.payload * 7 % 900))
      local two = job:spawn("child", 2, { after = { one } })
      job:spawn("child", 3, { after = { two, one } })
    end,
    child = function() end,
  }]])
  assert.equal(0, status, log)
  assert.equal("", db.sql("SELECT error FROM nightshift_attempt LIMIT 1", name))
  assert.equal(tostring(4 * PARENTS), db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
end)

-- A verdict that parked a parent looked at all of its children for each of them.
-- A hundred thousand kept the host's only dispatcher busy until it was taken for
-- dead, and then the next host.
describe("a verdict with many children", function()
  --- Seconds of this process's own time, per child, of the verdict `verb`.
  local function cost(handle, verb, n)
    local q = handle:queue "q"
    local best = math.huge
    for _ = 1, n > 1000 and 1 or 3 do
      assert(q:push "parent")
      local job = assert(q:claim())
      for i = 1, n do assert(job:spawn("child", { i }, { queue = "children" })) end
      local start = os.clock()
      assert(verb(job))
      best = math.min(best, (os.clock() - start) / n)
    end
    return best
  end

  local verbs = {
    wait = function(job) return job:wait() end,
    again = function(job) return job:again("1h") end,
  }

  for name, verb in pairs(verbs) do
    it("costs what its children cost: " .. name, function()
      local url = db.fresh()
      local handle <close> = assert(nightshift.open { url = url, max_children = 30000 })
      cost(handle, verb, 100)
      local few = cost(handle, verb, 1000)
      local many = cost(handle, verb, 10000)
      -- each with all the rest: 10 times as much
      assert.is_true(many < 5 * few, ("%.1f µs and %.1f µs a child"):format(few * 1e6, many * 1e6))
    end)
  end
end)

-- A run could spawn any number of children. 300,000 were written in one transaction by the
-- host's only dispatcher, which was taken for dead meanwhile, as was the next host.
describe("a run that spawns more children than it may", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  local SCRIPT = [[
return {
  parent = function(job)
    for i = 1, job.payload do
      local id, message = job:spawn("child", i)
      if not id then
        job:log(message)
        break
      end
    end
  end,
  child = function() end,
  tick = function() end,
}]]

  local function ends(id)
    return eventually(function()
      local job = handle:job(id)
      return job.state:match "^d" and job
    end, 60)
  end

  it("is told at the one that is too many, and fails", function()
    local h = host.start(url, SCRIPT)
    local ids = {}
    for i = 1, 20 do ids[i] = assert(q:push "tick") end
    local id = assert(q:push("parent", 300000, { max_attempts = 1 }))
    local job = ends(id)
    assert.equal("dead", job.state)
    assert.matches("a run may spawn 2000 children.*%-%-max%-children N", job.error)
    assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_child")[1].n)
    for _, tick in ipairs(ids) do assert.equal("done", ends(tick).state) end
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("may have more when the host says so", function()
    local h = host.start(url, SCRIPT, { "--max-children", "2100" })
    assert.equal("done", ends(assert(q:push("parent", 2100, { max_attempts = 1 }))).state)
    assert.equal("dead", ends(assert(q:push("parent", 2101, { max_attempts = 1 }))).state)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("in a program cannot end as if it had them", function()
    local small <close> = assert(nightshift.open { url = url, max_children = 3 })
    assert(q:push "parent")
    local job = assert(small:queue("q"):claim())
    for i = 1, 3 do assert(job:spawn("child", i)) end
    local id, message, code = job:spawn("child", 4)
    assert.is_nil(id)
    assert.equal("TOO_BIG", code)
    assert.matches("a run may spawn 3 children.*max_children = N", message)
    local ok, _, why = job:ack()
    assert.same({ nil, "TOO_BIG" }, { ok, why })
    assert(job:fail "too many")
  end)
end)

-- `job:spawn` waits for an id while the server is away, and did so in C. A job that was to stop
-- meanwhile could not be told, and its worker was killed instead.
describe("a job that spawns while the server is away", function()
  local SCRIPT = [[
return {
  parent = function(job)
    print "started"
    io.read "l"
    job:spawn "child"
  end,
  child = function() end,
}]]

  local server, url, h, id, worker

  -- A job that is about to spawn, and the server gone.
  local function leave(timeout)
    server = db.spare()
    url = server:fresh()
    local gate = fixture.dir() .. "/gate"
    assert(os.execute("mkfifo " .. gate))
    h = host.start(url, SCRIPT:gsub("io.read \"l\"", ("local f = io.open %q f:read 'l' f:close()"):format(gate)),
      { "--workers", "1" })
    worker = host.member(h.pid)
    local handle <close> = assert(nightshift.open(url))
    id = assert(handle:queue("q"):push("parent", nil, { timeout = timeout, max_attempts = 1 }))
    h:wait_line "^started"
    server:stop()
    h:wait_line "event=db.lost"
    assert(io.open(gate, "w")):close()
  end

  local function ended()
    local handle <close> = assert(nightshift.open(url))
    local job = eventually(function()
      local job = handle:job(id)
      return job.state:match "^d" and job
    end, 20)
    return job, handle:execute("SELECT COUNT(*) AS n FROM nightshift_child")[1].n
  end

  local function stop()
    assert.same({ worker }, host.members(h.pid))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  it("goes on when it is back", function()
    leave(60) -- the server takes its time to end and to start
    nst.sleep(0.3)
    server:start()
    local job, children = ended()
    assert.same({ "done", 1 }, { job.state, children })
    stop()
  end)

  it("is stopped like any other, and its worker lives on", function()
    leave(4)
    h:wait_line "event=job.timeout"
    h:wait_line "event=job.failed"
    server:start()
    local job, children = ended()
    assert.same({ "dead", 0 }, { job.state, children })
    assert.matches("^timeout after 4 s at .-in method 'spawn'\n.-jobs.lua:5", job.error)
    stop()
  end)
end)

-- A verdict with many children was written in the transaction in which a host also claims:
-- no jobs were started meanwhile, of whatever queue.
describe("a verdict with many children", function()
  local SCRIPT = [[
local function spawn(job, n)
  for i = 1, n do assert(job:spawn("child", i, { queue = "nobody" })) end
end
return {
  tick = function() end,
  child = function() end,
  ack = function(job) spawn(job, job.payload) return #"done" end,
  again = function(job)
    if job.state then return job.state end
    spawn(job, job.payload)
    return job:again(0.3, "came back")
  end,
  signals = function(job)
    local got = job.state or {}
    if job.signal then got[#got + 1] = job.signal end
    if #got == 1 and job.signal then spawn(job, 200) return job:again(0, got) end
    if #got < 2 then return job:wait { signal = "go", state = got } end
    return got
  end,
  fails = function(job)
    spawn(job, job.payload - 1)
    job:spawn("child", {}, { unique = "taken", queue = "nobody" })
  end,
}]]

  local url

  local function start(...) return host.start(url, SCRIPT, { "--queues", "q,other", ... }) end

  local handle, q
  with_database(function(...) handle, q, url = ... end)

  local function count(what) return handle:execute("SELECT COUNT(*) AS n FROM nightshift_" .. what)[1].n end
  local function ended(id) return handle:job(id).state:match "^d" and handle:job(id) end
  local function done(id)
    local job = eventually(function() return ended(id) end, 20)
    assert.equal("done", job.state, job.error)
    return job.result
  end

  --- Calls `fn` while rows of children cannot be read or written.
  local function without_children(fn)
    local other <close> = assert(nightshift.open(url))
    assert(other:execute "LOCK TABLES nightshift_child WRITE")
    fn()
    assert(other:execute "UNLOCK TABLES")
  end

  local function waits_for_children()
    return handle:execute([[SELECT COUNT(*) AS n FROM information_schema.processlist
      WHERE db = DATABASE() AND state LIKE 'Waiting for table%'
        AND info LIKE 'INSERT INTO nightshift_child%']])[1].n > 0
  end

  it("delays no job of another queue, and its host ends when it is written", function()
    local h = start()
    local parent
    without_children(function()
      parent = assert(q:push("ack", 2000))
      eventually(waits_for_children)
      for _ = 1, 20 do done(assert(handle:queue "other":push "tick")) end
      eventually(waits_for_children)
      h:signal "TERM"
      h:wait_line "event=host.drain"
      assert.equal("running", handle:job(parent).state)
    end)
    assert.equal(0, h:wait())
    assert.equal(4, done(parent))
    assert.equal(2000, count "child")
    assert.equal(2000, count "ready WHERE job_id > 0")
    assert.equal(0, count "lease")
    assert.is_nil(h:transcript():find "job.stale")
  end)

  it("is whole, or not there, after kill -9", function()
    local h = start()
    local parent
    without_children(function()
      parent = assert(q:push("ack", 2000))
      eventually(waits_for_children)
      h:signal "KILL"
      h:wait()
    end)
    h = start()
    done(parent)
    assert.equal(2000, count "child")
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("comes back when it is due, though its host has nothing else to do", function()
    local h = start()
    local id = assert(q:push("again", 300))
    assert.equal("came back", done(id))
    eventually(function() return count "lease" == 0 end)
    assert.equal(0, count "running")
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("takes back the signal that its run was given", function()
    local h = start()
    local id = assert(q:push "signals")
    assert(handle:signal(id, "first", "go"))
    eventually(function() return handle:execute("SELECT awaits FROM nightshift_job WHERE id = ?", id)[1].awaits end)
    eventually(function() return count "child" == 200 and handle:job(id).state == "waiting" or
      handle:execute("SELECT waits FROM nightshift_job WHERE id = ?", id)[1].waits == "signal" end)
    assert(handle:signal(id, "second", "go"))
    assert.same({ "first", "second" }, done(id))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("that the server refuses fails its job", function()
    assert(handle:queue "nobody":push("child", 0, { unique = "taken" }))
    local h = start()
    local id = assert(q:push("fails", 300, { max_attempts = 1 }))
    local job = eventually(function() return ended(id) end)
    assert.equal("dead", job.state)
    assert.matches("the verdict was refused: .*taken", job.error)
    assert.equal(0, count "child")
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A host's cycle wrote all verdicts that had come in, with up to a hundred children each. For
-- 16 workers these were some thousands of rows, for 32 ten times that. Jobs of all other queues
-- waited for them.
describe("jobs that spawn 90 children each", function()
  local CHILDREN, PARENTS = 90, 300
  local MOST = 1600 -- children that are written together

  local SCRIPT = ([[
return {
  parent = function(job)
    for i = 1, %d do job:spawn("child", i, { queue = "nobody" }) end
  end,
  tick = function() end,
}]]):format(CHILDREN)

  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  local function ask(sql, ...) return handle:execute("SELECT " .. sql, ...)[1].n end
  local function ended() return ask "COUNT(*) AS n FROM nightshift_finished WHERE name = 'parent'" end

  -- The rows of one statement have one instant.
  local function written_together()
    return ask [[MAX(together) AS n FROM
      (SELECT COUNT(*) AS together FROM nightshift_job WHERE name = 'child' GROUP BY created) s]]
  end

  it("are written few at a time, and those of another queue start in between", function()
    local h = host.start(url, SCRIPT, { "--queues", "q,other", "--workers", "32" })
    local parents, ticks = {}, 0
    for i = 1, PARENTS do parents[i] = { "parent", nil, { max_attempts = 1 } } end
    assert(q:push_many(parents))
    repeat
      local id = assert(handle:queue "other":push "tick")
      eventually(function() return handle:job(id).state == "done" end)
      ticks = ticks + 1
    until ended() == PARENTS
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.equal(CHILDREN * PARENTS, ask "COUNT(*) AS n FROM nightshift_child")
    assert.equal(0, ask "COUNT(*) AS n FROM nightshift_lease")
    assert.equal(0, ask "COUNT(*) AS n FROM nightshift_finished WHERE outcome <> 'done'")
    assert.is_true(ticks > 3, ticks)
    local most = written_together()
    assert.is_true(most <= MOST, ("%d children were written together"):format(most))
  end)
end)

-- A dependent that was locked while a verdict with many children was written was told by the
-- next look. That came up to ten seconds after its row was free.
describe("a dependent of a job with many children", function()
  local SCRIPT = [[return {
  many = function(job)
    for i = 1, 200 do assert(job:spawn("child", i, { queue = "nobody" })) end
  end,
  after = function() end,
}]]

  it("that was held when the job ended runs as soon as it is free", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local h = host.start(url, SCRIPT, { "--queues", "q" })
    local many = assert(q:push("many", 1, { delay = 3600 }))
    local after = assert(q:push("after", 1, { after = { many } }))
    local other <close> = assert(nightshift.open(url))
    assert(other:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", after))
      assert(handle:run_now(many))
      eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_met", name) ~= "0" end)
      nst.sleep(1) -- longer than who has ended it tries to tell
      return true
    end))
    local freed = nightshift.clock()
    eventually(function() return assert(handle:job(after)).state == "done" end)
    local late = nightshift.clock() - freed
    assert.is_true(late < proc.limit(9), ("ran after %.1f s"):format(late))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A host's thread that talks to the database also fetched the ids of children, when a worker
-- asked for them. While a ring of its own lasted, two seconds when a KILL QUERY had to wait,
-- handlers that spawned waited with it. They could run out of time. A host keeps a stock.
describe("a handler that spawns", function()
  local SCRIPT <const> = [[return {
  parent = function(job)
    if job.phase > 0 then return end
    while not io.open %q do require "nightshift.core".sleep(0.02) end
    for _ = 1, job.payload.children do job:spawn "child" end
    return job:wait()
  end,
  child = function() end,
}]]

  it("does not wait for a ring of its host", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local folder = fixture.dir()
    local q = handle:queue "q"
    local h = host.start(url, SCRIPT:format(folder .. "/go"), { "--workers", "1" })
    local function parent(children, options)
      local items = { { "parent", { children = children }, options } }
      for _ = 1, 200 do items[#items + 1] = { "child" } end
      return assert(q:push_many(items))[1]
    end
    local function is_done(id)
      return function() return handle:job(id).state == "done" end
    end
    assert(io.open(folder .. "/go", "w")):close()
    for _ = 1, 4 do eventually(is_done(parent(950))) end -- the worker asks for thousands by now
    os.remove(folder .. "/go")
    db.sql([[CREATE TABLE rung (n INT); INSERT INTO rung VALUES (0)]], name)
    db.sql([[CREATE OR REPLACE PROCEDURE nightshift_ring() BEGIN
      IF CONNECTION_ID() IN (SELECT connection FROM nightshift_holder WHERE kind = 'host') THEN
        UPDATE rung SET n = n + 1;
        IF (SELECT n FROM rung) = 1 THEN DO SLEEP(6); END IF;
      END IF;
    END]], name)
    local id = parent(950, { timeout = 5, max_attempts = 1 })
    eventually(function()
      return db.sql("SELECT id FROM information_schema.processlist WHERE state = 'User sleep'", name) ~= ""
    end)
    assert(io.open(folder .. "/go", "w")):close()
    eventually(is_done(id))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- What a spawned child was to wait for was not copied out of the worker's report. The host read
-- it from memory that held the next report by then.
describe("children that handlers spawn after each other", function()
  it("wait for each other, however many reports a host gets at once", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local jobs = {}
    for i = 1, 200 do jobs[i] = { "parent", ("x"):rep(i % 50) } end
    assert(handle:queue "q":push_many(jobs))
    local status, log = host.drain(url, [[return {
      parent = function(job)
        local first = job:spawn("child", job.payload)
        local second = job:spawn("child", job.payload, { after = { first } })
        job:spawn("child", job.payload, { after = { first, second } })
      end,
      child = function() end,
    }]], { "--workers", "4", "--drain-within", "500ms" })
    assert.equal(0, status, log)
    assert.equal("", (db.sql("SELECT error FROM nightshift_attempt LIMIT 1", name)))
    assert.equal("800\t800", (db.sql("SELECT COUNT(*), SUM(outcome = 'done') FROM nightshift_finished", name)))
  end)
end)

-- Children that were spawned after a failed job fell before the other jobs of their batch had
-- ended. They were out of the order of their ids, by which the host then looked for them, and
-- it crashed.
describe("children that fall as they are spawned", function()
  local HANDLERS = [[
return {
  parent = function(job)
    for _ = 1, 60 do job:spawn("child", nil, { after = { job.payload.failed } }) end
  end,
  other = function() end,
  child = function() end,
}]]

  it("do not hide from its dependents what ends with them", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local failed = assert(q:push "other")
    assert(q:claim():discard "no")
    local jobs, after = {}, {}
    for i = 1, 300 do jobs[i] = { i % 10 == 0 and "parent" or "other", { failed = failed } } end
    for i, id in ipairs(assert(q:push_many(jobs))) do after[i] = { "other", nil, { after = { id } } } end
    assert(handle:queue("later"):push_many(after))
    local status, log = host.drain(url, HANDLERS, { "--workers", "4", "--drain-within", "500ms" })
    assert.equal(0, status, log)
    assert.equal("done\t600\ncancelled\t1800", db.sql([[SELECT outcome, COUNT(*) FROM nightshift_finished
      WHERE outcome <> 'dead' GROUP BY outcome ORDER BY 1]], name))
  end)
end)

-- The counts of a parent's children, however many there are: rows of many are made here by SQL.
describe("the counts of children", function()
  local url, handle
  setup(function()
    url = db.fresh()
    handle = assert(nightshift.open(url))
  end)
  teardown(function() handle:close() end)

  it("are exact by state, live or ended", function()
    local q, children = handle:queue "q", {}
    assert(q:push "parent")
    local parent = assert(q:claim())
    for i = 1, 7 do
      children[i] = assert(parent:spawn("child", i, { queue = "children", delay = i == 7 and "1h" or nil }))
    end
    assert(parent:wait())
    local claimed = handle:queue "children":claim_many(4)
    assert.equal(4, #claimed)
    claimed[1]:ack()
    claimed[2]:ack()
    claimed[3]:discard "no"
    assert(handle:cancel(children[6]))
    local expected = { total = 7, done = 2, dead = 1, cancelled = 1, running = 1, ready = 1, scheduled = 1,
      waiting = 0 }
    assert.same(expected, assert(handle:children(parent.id)))
    local shown = nightshift.decode(proc.succeeds({ "show", tostring(parent.id), "--json" }, url))
    assert.same(expected, shown.children)
    assert.equal(8, shown.tree.total)
    expected = { total = 0, done = 0, dead = 0, cancelled = 0, running = 0, ready = 0, scheduled = 0, waiting = 0 }
    assert.same(expected, assert(handle:children(children[1])))
    local none, message, code = handle:children(4711)
    assert.same({ nil, "there is no job 4711, live or in the history", "NOT_FOUND" }, { none, message, code })
    assert.error_matches(function() handle:children "x" end, "children: the id must be an integer")
  end)

  it("are exact in all and estimated by state beyond ten thousand, without a look at each", function()
    local id = assert(handle:queue("q"):push "root")
    local FIRST, N = 900000000, 60000
    assert(handle:execute(("INSERT INTO nightshift_child SELECT ?, seq, ? + seq FROM seq_1_to_%d"):format(N),
      id, FIRST))
    assert(handle:execute(([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, reason,
        run, attempts, polls, crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at,
        on_fail, nonce)
      SELECT ? + seq, 1, 'child', '1', 100, IF(seq MOD 10, 'done', 'dead'), IF(seq MOD 10, NULL, 'attempts'),
        1, 0, 0, 0, 0, 10, 5, 1, 1, 1, seq, 'cancel', seq
      FROM seq_1_to_%d]]):format(N // 2), FIRST))
    local function read_rows(fn)
      assert(handle:execute "FLUSH STATUS")
      local result, sum = fn(), 0
      for _, row in ipairs(handle:execute "SHOW SESSION STATUS LIKE 'Handler_read_key'") do sum = sum + row.Value end
      return result, sum
    end
    local counts, reads = read_rows(function() return assert(handle:children(id)) end)
    assert.same({ N, true, nil }, { counts.total, counts.estimated, counts.more })
    for state, n in pairs { done = 0.45 * N, dead = 0.05 * N, gone = 0.5 * N } do
      assert.is_true(math.abs(counts[state] - n) < 0.03 * N, ("%s: %d"):format(state, counts[state]))
    end
    assert.is_true(reads < 20000, reads)
    local shown = nightshift.decode(proc.succeeds({ "show", tostring(id), "--json" }, url))
    assert.same({ counts, nil }, { shown.children, shown.tree })
    assert.matches("\nchildren +about 2[5-8],%d+ of 60,000 done, ", proc.succeeds({ "show", tostring(id) }, url))
    assert.matches("and about 59,%d+ more: ", proc.succeeds({ "show", tostring(id), "--tree" }, url))
  end)
end)

-- ----- results

-- A job that was pushed to wait for other jobs has what became of them, as a parent has what
-- became of its children.
describe("job.results of a job with after", function()
  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  local function take(name)
    local job = assert(q:claim())
    assert.equal(name, job.name)
    return job
  end

  local function done(name, result) assert(take(name):ack(result)) end

  local function questions()
    return tonumber(assert(handle:execute "SHOW SESSION STATUS LIKE 'Questions'")[1].Value)
  end

  it("has what became of each, in the order of after", function()
    local a, b, c = assert(q:push "a"), assert(q:push "b"), assert(q:push "c")
    local id = assert(q:push("late", nil, { after = { c, a, b }, on_fail = "run" }))
    done("a", { n = 1 })
    assert(take "b":discard "not this")
    done("c", "third")
    local job = take "late"
    assert.same({ id, { c, a, b }, 3 }, { job.id, job.after, #job.results })
    assert.same({ id = c, name = "c", outcome = "done", result = "third", after = true }, job.results[1])
    assert.same({ id = a, name = "a", outcome = "done", result = { n = 1 }, after = true }, job.results[2])
    assert.same({ id = b, name = "b", outcome = "dead", reason = "discarded", error = "not this", after = true },
      job.results[3])
    assert.is_nil(job.results[4])
    local n = 0
    for i, result in ipairs(job.results) do
      n = n + 1
      assert.equal(job.after[i], result.id)
    end
    assert.equal(3, n)
    assert(job:ack())
    assert.same({ c, a, b }, handle:job(id).after)
  end)

  it("is there whenever the others have ended, and for every attempt", function()
    local a = assert(q:push "a")
    done("a", 1)
    local id = assert(q:push("late", nil, { after = { a }, backoff = 0.001, max_attempts = 2 }))
    assert.same({ a }, handle:job(id).after)
    local job = take "late"
    assert.equal(1, job.results[1].result)
    assert(job:again(0))
    eventually(function() return handle:run_now(id) or handle:job(id).state == "ready" end)
    job = take "late"
    assert.equal(1, job.results[1].result)
    assert(job:discard "no")
    assert.same({ a }, handle:job(id).after)
    assert(handle:retry(id))
    job = take "late"
    assert.same({ { a }, 1 }, { job.after, job.results[1].result })
    assert(job:ack())
    assert(handle:retry(id))
    assert.equal(1, take "late".results[1].result)
  end)

  it("says of one that was pruned that it is gone, of one that was retried that it lives", function()
    local a, b = assert(q:push "a"), assert(q:push "b")
    assert(q:push("late", nil, { after = { a, b }, delay = "1h" }))
    local id = assert(q:push("later", nil, { after = { a, b }, on_fail = "run" }))
    done("a", 1)
    assert(take "b":discard "no")
    assert.equal(1, handle:prune { done = 0, dead = false })
    assert(handle:retry(b))
    local job = assert(q:claim())
    assert.equal(id, job.id)
    assert.same({ id = a, outcome = "gone", after = true }, job.results[1])
    assert.same({ id = b, name = "b", after = true }, job.results[2])
  end)

  it("stands behind its children, and a wait is for those", function()
    local a = assert(q:push "a")
    local id = assert(q:push("late", nil, { after = { a } }))
    done("a", "first")
    local job = take "late"
    assert.error_matches(function() job:wait() end, ("wait: job %d has no children"):format(id))
    assert(job:spawn "kid")
    assert(job:wait())
    done("kid", "second")
    job = take "late"
    assert.same({ 2, "second", "first" }, { #job.results, job.results[1].result, job.results[2].result })
    assert.same({ nil, true, nil }, { job.results[1].after, job.results[2].after, job.results[3] })
    local seen = {}
    for _, result in ipairs(job.results) do seen[#seen + 1] = result.result end
    assert.same({ "second", "first" }, seen)
  end)

  it("does not have the parent of a child that was spawned before an again", function()
    assert(q:push "parent")
    local a = assert(q:push "a")
    local parent = take "parent"
    assert(parent:spawn "kid")
    assert(parent:spawn("late", nil, { after = { a } }))
    assert(parent:again(0))
    done("a", 1)
    eventually(function() return handle:run_now(parent.id) or handle:job(parent.id).state == "ready" end)
    done("parent", 2)
    local kid = take "kid"
    assert.same({ {}, 0 }, { kid.after, #kid.results })
    assert.is_nil(handle:job(kid.id).after)
    local late = take "late"
    assert.same({ { a }, 1, 1 }, { late.after, #late.results, late.results[1].result })
  end)

  it("is there for jobs that SQL has pushed", function()
    local a = assert(q:push "a")
    assert(handle._handle:execute("CALL nightshift_push('q', 'late', 'null', ?)", core.encode { after = { a } }))
    done("a", { 1, 2 })
    local job = take "late"
    assert.same({ { a }, { 1, 2 } }, { job.after, job.results[1].result })
  end)

  it("is read a page at a time, of large results in small ones", function()
    local large = ("x"):rep(1000000)
    local items = {}
    for i = 1, 620 do items[i] = { i <= 10 and "large" or "small" } end
    assert(q:push("late", nil, { after = assert(q:push_many(items)) }))
    for i, job in ipairs(q:claim_many(620)) do assert(job:ack(i <= 10 and large .. i or i)) end
    local job = take "late"
    assert.equal(620, #job.results)
    for i, result in ipairs(job.results) do assert.equal(i <= 10 and large .. i or i, result.result) end
    assert.equal(570, job.results[570].result)
    assert.equal(large .. 3, job.results[3].result)
  end)

  it("costs nothing where it is not used", function()
    assert(q:push "parent")
    local job = take "parent"
    local before = questions()
    assert.same({}, job.after)
    assert.equal(1, questions() - before) -- the question itself
    assert(job:spawn "kid")
    assert(job:wait())
    done("kid", 1)
    job = take "parent"
    before = questions()
    local n = 0
    for _ in ipairs(job.results) do n = n + 1 end
    assert.same({ 1, 3 }, { n, questions() - before }) -- a page, an empty one behind it
  end)

  it("is there in a worker, and in what people see", function()
    local h = host.start(url, [[return {
      a = function(job) return job.payload * 2 end,
      late = function(job)
        local sum = 0
        for _, result in ipairs(job.results) do sum = sum + result.result end
        return { sum, #job.after, job.after[1] }
      end,
    }]])
    local a = assert(q:push("a", 2))
    local id = assert(q:push("late", nil, { after = { a, assert(q:push("a", 3)) } }))
    eventually(function() return handle:job(id).state == "done" end)
    assert.same({ 10, 2, a }, handle:job(id).result)
    local _, out = proc.nightshift({ "show", tostring(id) }, url)
    assert.matches(("\nafter         %d %d\n"):format(table.unpack(handle:job(id).after)), out)
    _, out = proc.nightshift({ "show", tostring(id), "--json" }, url)
    assert.same(handle:job(id).after, nightshift.decode(out).after)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- Many that end at once, and one that waits for all of them. It runs once, after the last, with
-- all their results, whatever is killed in the middle.
describe("fan-in:", function()
  local function lines(path)
    local list = {}
    for line in io.lines(path) do list[#list + 1] = line end
    return list
  end

  -- ----------------------------------------------------- a stage on two hosts

  local PIECES = os.getenv "NIGHTSHIFT_LONG" and 900 or 160

  -- The next stage is a child, too: so the parent waits for it, and it for the rest.
  local HANDLERS = [[
local function note(...)
  local file <close> = assert(io.open(os.getenv "FANIN_LOG", "ab"))
  file:setvbuf "full"
  assert(file:write(table.concat({ ... }, " "), "\n"))
end
return {
  stage = function(job)
    if job.phase == 0 then
      local ids = {}
      for i = 1, job.payload do ids[i] = job:spawn("piece", i) end
      job:spawn("next", "next", { after = ids })
      return job:wait()
    end
    note("join", job.id, job.run)
    local sum, last = 0, nil
    for i, child in ipairs(job.results) do
      assert(child.outcome == "done", "a child that is not done")
      if i <= job.payload then
        assert(child.result == i, "results out of order")
        sum = sum + child.result
      end
      last = child.result
    end
    return { #job.results, sum, last }
  end,
  piece = function(job)
    note("piece", job.id, job.run)
    require "nightshift.core".sleep(0.005)
    return job.payload
  end,
  next = function(job)
    note("next", job.id, job.run)
    return "next"
  end,
}]]

  describe("a stage of siblings on two hosts", function()
    local log, server, hosts

    local function start()
      local h = host.start(server.url_of_it, HANDLERS, { "--workers", "3" }, { FANIN_LOG = log })
      hosts[#hosts + 1] = h
      return h
    end

    local function count()
      local file <close> = io.open(log)
      local n = 0
      for _ in file:lines() do n = n + 1 end
      return n
    end

    -- Runs a stage; `strike` happens in the middle of it.
    -- A kill may come while the join runs: then it runs again, with one verdict.
    local function run(strike, killed)
      local name
      server.url_of_it, name = server:fresh()
      log = fixture.file("log", "")
      hosts = {}
      start()
      start()
      local handle = assert(nightshift.open(server.url_of_it))
      local id = assert(handle:queue "q":push("stage", PIECES))
      local from = math.random(PIECES // 10, PIECES // 2)
      eventually(function() return count() >= from end, 60)
      strike()
      local info = eventually(function()
        local job = handle:job(id)
        return job and job.state ~= "waiting" and job.finished_at and job
      end, 120)
      assert.same({ "done", { PIECES + 1, PIECES * (PIECES + 1) // 2, "next" } }, { info.state, info.result })
      local seen, pieces = {}, {}
      for i, line in ipairs(lines(log)) do
        local kind, job = line:match "^(%a+) (%d+)"
        assert.is_nil(seen[line], "twice: " .. line)
        seen[line] = i
        if kind == "piece" then
          -- a worker of a host that was killed may write a moment later what another has done since
          assert.is_true(not seen.next or killed and pieces[job], "a piece after the next stage")
          pieces[job] = true
        else
          assert.is_true(killed or not seen[kind], kind .. " ran twice")
          seen[kind] = i
        end
      end
      local n = 0
      for _ in pairs(pieces) do n = n + 1 end
      assert.equal(PIECES, n)
      assert.is_true(seen.next < seen.join)
      handle:close()
      for _, h in ipairs(hosts) do
        if not h:ended() then
          h:signal "TERM"
          assert.equal(0, h:wait())
        end
      end
      assert.equal(("%d\t%d"):format(PIECES + 2, PIECES + 2),
        (server:sql("SELECT COUNT(*), SUM(outcome = 'done') FROM nightshift_finished", name)))
      for _, left in ipairs { "job", "edge", "lease" } do
        assert.equal("0", (server:sql("SELECT COUNT(*) FROM nightshift_" .. left, name)), left)
      end
    end

    it("joins once", function()
      server = db.shared()
      run(function() end)
    end)

    it("joins once, though a worker is killed in the middle", function()
      server = db.shared()
      run(function()
        local workers = host.members(hosts[1].pid)
        nst.kill(workers[math.random(#workers)], "KILL")
      end, true)
    end)

    it("joins once, though a host is killed in the middle", function()
      server = db.shared()
      run(function()
        hosts[1]:signal "KILL"
        hosts[1]:wait()
        start()
      end, true)
    end)

    it("joins once, though the server is killed in the middle", function()
      server = db.spare()
      run(function()
        server:kill()
        server:start()
      end, true)
    end)
  end)

  -- --------------------------------------------------- siblings at one moment

  -- Programs that claim what is in a queue and settle at the same moments: at whole
  -- ticks of the clock that all of them read.
  local CLAIMER = [[
local nightshift = require "nightshift"
local url, seed = arg[1], tonumber(arg[2])
math.randomseed(seed)
local TICK = 0.004
local db = assert(nightshift.open(url))
local q = db:queue "kids"
while true do
  local jobs = assert(q:claim_many(2, { wait = 0.5 }))
  if #jobs == 0 then break end
  for _, job in ipairs(jobs) do
    local tick = (nightshift.clock() // TICK + 1) * TICK
    require "nightshift.core".sleep(math.max(0, tick - nightshift.clock() - 0.0003))
    while nightshift.clock() < tick do end
    if math.random(8) == 1 then
      db:transaction(function() return assert(job:ack(job.payload)) end)
    else
      assert(job:ack(job.payload))
    end
  end
end
db:close()]]

  describe("siblings that end at the same moment", function()
    it("never leave their parent behind", function()
      local ROUNDS, SIBLINGS, PROGRAMS = os.getenv "NIGHTSHIFT_LONG" and 150 or 60, 8, 4
      local url, name = db.fresh()
      local handle = assert(nightshift.open(url))
      local q = handle:queue "q"
      for _ = 1, ROUNDS do
        assert(q:push "parent")
        local job = q:claim()
        for i = 1, SIBLINGS do job:spawn("kid", i, { queue = "kids" }) end
        assert(job:wait())
      end
      local script = fixture.file("claimer.lua", CLAIMER)
      local programs = {}
      for i = 1, PROGRAMS do programs[i] = proc.start { proc.lua, script, url, i } end
      for _, p in ipairs(programs) do
        local how = p:wait(120)
        assert.equal(0, how, select(2, p:text()))
      end
      local n = 0
      for job in q:jobs { wait = 0 } do
        assert.equal(SIBLINGS, #job.results)
        for i, child in ipairs(job.results) do assert.same({ "done", i }, { child.outcome, child.result }) end
        assert(job:ack())
        n = n + 1
      end
      assert.equal(ROUNDS, n)
      for _, left in ipairs { "job", "edge", "lease" } do
        assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_" .. left, name)), left)
      end
      handle:close()
    end)
  end)

  -- ------------------------------------------------ a push against an end

  -- One pushes a job and then, a moment later, one that waits for it. Another has claimed and
  -- ended it by then, or is about to, or does so meanwhile.
  local PUSHER = [[
local nightshift = require "nightshift"
local url, seed, rounds = arg[1], tonumber(arg[2]), tonumber(arg[3])
math.randomseed(seed)
local db = assert(nightshift.open(url))
local first, second = db:queue "first", db:queue "second"
for _ = 1, rounds do
  local on = assert(first:push("job", math.random(3)))
  require "nightshift.core".sleep(math.random() * 0.002)
  local policy = math.random(2) == 1 and "run" or "cancel"
  assert(second:push("job", on, { after = { on }, on_fail = policy }))
end
db:close()]]

  local ENDER = [[
local nightshift = require "nightshift"
local db = assert(nightshift.open(arg[1]))
local q = db:queue "first"
while true do
  local job = q:claim { wait = 0.5 }
  if not job and io.open(arg[2]) then break end
  if not job then goto on end
  if job.payload == 1 then assert(job:discard "no") else assert(job:ack()) end
  ::on::
end
db:close()]]

  describe("a push after a job that is about to end", function()
    it("is never forgotten", function()
      local ROUNDS, PUSHERS, ENDERS = os.getenv "NIGHTSHIFT_LONG" and 350 or 100, 3, 2
      local url, name = db.fresh()
      local pusher, ender = fixture.file("pusher.lua", PUSHER), fixture.file("ender.lua", ENDER)
      local pushers, enders, pushed = {}, {}, fixture.dir() .. "/pushed"
      for i = 1, PUSHERS do pushers[i] = proc.start { proc.lua, pusher, url, i, ROUNDS } end
      for i = 1, ENDERS do enders[i] = proc.start { proc.lua, ender, url, pushed } end
      local function end_well(programs)
        for _, p in ipairs(programs) do
          local how = p:wait(120)
          assert.equal(0, how, select(2, p:text()))
        end
      end
      end_well(pushers)
      assert(io.open(pushed, "w")):close() -- a look that finds nothing before that is only early
      end_well(enders)
      local handle = assert(nightshift.open(url))
      local ran = 0
      for job in handle:queue "second":jobs { wait = 0 } do
        assert(job:ack())
        ran = ran + 1
      end
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_job", name)))
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_edge", name)))
      local wrong = db.sql([[SELECT COUNT(*) FROM nightshift_finished d
      JOIN nightshift_finished f ON f.id = JSON_VALUE(d.payload, '$') WHERE d.queue_id <> f.queue_id
      AND d.outcome <> IF(f.outcome = 'done' OR d.on_fail = 'run', 'done', 'cancelled')]], name)
      assert.equal("0", wrong)
      local dropped = tonumber((db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'cancelled'", name)))
      assert.equal(ROUNDS * PUSHERS, ran + dropped)
      handle:close()
    end)
  end)
end)

-- job.results was in the order of the children's ids. The worker that ran the parent takes ids
-- from a block of its own. So children of a later run, spawned on another host or by another
-- worker, could stand before those of an earlier one.
describe("job.results", function()
  it("is in the order of spawning, whoever ran the parent", function()
    local url = db.fresh()
    local a, b = assert(nightshift.open(url)), assert(nightshift.open(url))
    assert(a:queue "q":push "parent")              -- a has the lower block
    local job = b:queue "q":claim()
    assert(job:spawn("kid", "first"))
    assert(job:wait())
    assert(b:queue "q":claim():ack "first")
    job = a:queue "q":claim()
    assert(job:spawn("kid", "second"))
    assert(job:wait())
    assert(a:queue "q":claim():ack "second")
    job = a:queue "q":claim()
    assert.same({ "first", "second" }, { job.results[1].result, job.results[2].result })
    a:close()
    b:close()
  end)
end)

-- A job that was retried still had the children of its earlier life in job.results. So what a
-- handler finds there is not what it has spawned: the failed child that ended the first life
-- came first.
describe("a parent that is retried", function()
  it("has the children of this life in job.results", function()
    local handle = assert(nightshift.open(db.fresh()))
    local q = handle:queue "q"
    local id = assert(q:push "parent")
    local job = q:claim()
    assert(job:spawn "kid")
    assert(job:wait())
    assert(q:claim():discard "no")
    assert.equal("dead", handle:job(id).state)
    assert(handle:retry(id))
    job = q:claim()
    assert.equal(0, #job.results)
    assert(job:spawn "kid")
    assert(job:wait())
    assert(q:claim():ack "yes")
    job = q:claim()
    assert.same({ 1, "yes" }, { #job.results, job.results[1].result })
    handle:close()
  end)
end)

-- A job that waited once more after some of its children had been pruned. Its verdict was never
-- written, because those were neither live nor ended.
describe("a job whose earlier children are in no history any more", function()
  it("can wait for others", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local parent = assert(q:push "parent")
    local job = q:claim()
    for i = 1, 2 do job:spawn("child", i) end
    assert(job:wait())
    for _ = 1, 2 do assert(q:claim():ack()) end
    job = q:claim()
    db.sql("DELETE FROM nightshift_finished", name)
    job:spawn("child", 3)
    assert(job:wait())
    assert.equal("waiting", handle:job(parent).state)
    assert(q:claim():ack())
    assert.equal(2, q:claim().phase)
  end)
end)

-- A page of job.results was 500 children, however large their results were: up
-- to half a gigabyte at once, three times that in Lua.
describe("results that are large", function()
  it("are read a few at a time, each once", function()
    local handle <close> = assert(nightshift.open((db.fresh())))
    local q = handle:queue "q"
    assert(q:push("parent", 1, { priority = 200 }))
    local job = assert(q:claim())
    for i = 1, 40 do assert(job:spawn("child", i)) end
    assert(job:wait())
    for i = 1, 40 do
      local large = i > 10 and i <= 30
      assert(assert(q:claim()):ack(i .. (large and ("x"):rep(1000000) or "")))
    end
    job = assert(q:claim())
    collectgarbage()
    local before, most, seen = collectgarbage "count", 0, {}
    for i, child in ipairs(job.results) do
      seen[i] = math.tointeger(tonumber(child.result:match "^%d+"))
      child.result = nil
      collectgarbage()
      most = math.max(most, collectgarbage "count" - before)
    end
    for i = 1, 40 do assert.equal(i, seen[i]) end
    assert.equal(40, #job.results)
    assert.is_true(most < 12000, most .. " KiB")
    for _, i in ipairs { 40, 1, 20, 19, 12, 39 } do
      assert.equal(tostring(i), job.results[i].result:match "^%d+")
    end
    assert.is_nil(job.results[41])
    assert(job:ack())
  end)
end)
