-- Limits of queues and of groups. From a claim's side: places, rates, order, turns. As programs and
-- people set them and look at them: q:limit, q:limits, db:limits, `why`, and the commands. There
-- the rows of backlogs, groups and grants are made by hand, so what a text says does not hang on
-- when a claim admits.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local sleep = require "nightshift.core".sleep

describe("a limited queue", function()
  local url, handle, q

  with_database(function(opened, _, at)
    handle, url = opened, at
    q = handle:queue "api"
  end)

  --- Pushes so many jobs of a group; their ids.
  local function push(group, n, options)
    local ids = {}
    for i = 1, n do
      local o = { group = group }
      for k, v in pairs(options or {}) do o[k] = v end
      ids[i] = assert(q:push("call", { group or "", i }, o))
    end
    return ids
  end

  local function ids(jobs, message, code)
    local list = {}
    for i, job in ipairs(assert(jobs, message and message .. code)) do list[i] = job.id end
    return list
  end

  local function groups(jobs)
    local list = {}
    for i, job in ipairs(assert(jobs)) do list[i] = job.payload[1] end
    table.sort(list)
    return table.concat(list, " ")
  end

  local function count(name)
    return tonumber(assert(handle:execute("SELECT COUNT(*) AS n FROM nightshift_" .. name))[1].n)
  end

  it("runs no more of a group at once than it may", function()
    assert(q:limit { group = { running = 2 } })
    push("a", 5)
    push("b", 1)
    push(nil, 3)
    local jobs = q:claim_many(20)
    assert.equal(6, #jobs)
    assert.equal(0, #q:claim_many(20))
    for _, job in ipairs(jobs) do
      if job.payload[1] == "a" then
        assert(job:ack())
        break
      end
    end
    assert.equal("a", q:claim().payload[1])
    assert.is_nil(q:claim())
  end)

  it("runs no more of all its jobs at once than it may, whatever their groups", function()
    assert(q:limit { running = 3, group = { running = 2 } })
    push("a", 3)
    push("b", 3)
    local jobs = q:claim_many(20)
    assert.equal("a a b", groups(jobs))
    assert(jobs[3]:ack())
    assert.equal("b", q:claim().payload[1])
  end)

  it("has the places of jobs that ran when it was set back with each of them", function()
    push("a", 8)
    local jobs = q:claim_many(5)
    assert(q:limit { running = 3 })
    for i = 1, 3 do assert(jobs[i]:ack()) end
    local sixth = assert(q:claim { wait = 10 })
    assert.equal(3, q:limits().counts.running)
    assert(jobs[4]:ack()) -- the limit is known by now
    assert.equal(2, q:limits().counts.running)
    assert.is_truthy(q:claim { wait = 10 })
    assert.is_nil(q:claim())
    assert(sixth:ack())
    assert.equal("a", assert(q:claim { wait = 10 }).payload[1])
  end)

  it("keeps the places of a claim that asks twice, as those of hosts with several queues do", function()
    assert(q:limit { group = { running = 1 } })
    local a = push("a", 2)
    local job = assert(q:claim())
    assert.equal(1, count "backlog")
    assert(job:ack())
    local id = handle._handle:queue_id("api", false)
    local LEASE <const> = 987654321 -- it is written when the claim is
    handle:transaction(function()
      local function take() return assert(handle._handle:execute("@admission_take", id, 5, LEASE, 1, 1)) end
      assert.equal(a[2], take()[1].job)
      assert.equal(0, take()[1].job)
      assert.equal(1, count "grant")
      return nil, "it was none"
    end)
  end)

  it("takes the best job that has a place first", function()
    assert(q:limit { group = { running = 1 } })
    local a, b = push("a", 2), push("b", 2, { priority = 150 })
    assert.same({ b[1], a[1] }, ids(q:claim_many(5)))
  end)

  it("gives the places of a program that was killed to others at once", function()
    assert(q:limit { group = { running = 1 } })
    push("a", 2)
    local other = proc.start { proc.lua, "-e", ([[
      assert(require "nightshift".open(%q):queue "api":claim())
      print "claimed"
      io.stdout:flush()
      require "nightshift.core".sleep(60)]]):format(url) }
    other:wait_line("claimed", 20)
    assert.is_nil(q:claim())
    other:signal "KILL"
    local began = nightshift.clock()
    local job = assert(q:claim { wait = 20 })
    assert.is_true(nightshift.clock() - began < proc.limit(2))
    assert(job:ack())
    assert(assert(q:claim()):ack())
    assert.is_nil(q:claim())
    assert.equal(0, count "grant")
    other:wait()
  end)

  it("starts no more than a bucket has tokens, and later those that came back", function()
    assert(q:limit { rate = { 5, "1s" } })
    push("a", 12)
    assert.equal(5, #q:claim_many(20))
    assert(q:claim { wait = 20 })
    local started = handle:execute "SELECT COUNT(*) AS n, MAX(since) - MIN(since) AS span FROM nightshift_grant"[1]
    assert.equal(6, started.n)
    assert.is_true(started.span >= 200000, started.span) -- by the server's clock, however slow claims are
  end)

  it("counts the starts of a group by windows, when it is told to", function()
    assert(q:limit { group = { rate = { 2, 3600, "window" } } })
    push("a", 3)
    push("b", 1)
    assert.equal("a a b", groups(q:claim_many(20)))
  end)

  it("runs an ordered group one after the other, and a job that failed keeps its turn", function()
    assert(q:limit { group = { ordered = true } })
    local a, b = push("a", 3, { max_attempts = 2, backoff = 0.2 }), push("b", 1)
    local jobs = q:claim_many(20)
    assert.same({ a[1], b[1] }, ids(jobs))
    assert(jobs[1]:fail "first")
    local again = assert(q:claim { wait = 10 })
    assert.equal(a[1], again.id)
    assert(again:fail "dead now")
    local next_one = assert(q:claim { wait = 10 })
    assert.equal(a[2], next_one.id)
    assert(handle:cancel(a[2]))
    next_one:ack()
    assert.equal(a[3], assert(q:claim { wait = 10 }).id)
  end)

  -- The next job waited for a second.
  it("lets an ordered group go on at once when the job that has it is cancelled, deleted or put elsewhere", function()
    assert(q:limit { group = { ordered = true } })
    local held = {}
    for group in ("abcdef"):gmatch "." do held[group] = push(group, 2) end
    local heads = q:claim_many(20)
    assert.equal("a b c d e f", groups(heads))
    for _, job in ipairs(heads) do assert(job:fail("later", { retry_in = 3600 })) end
    local function goes_on(group)
      local job = assert(q:claim())
      assert.equal(held[group][2], job.id)
      assert(job:ack())
    end
    assert.equal(0, #q:claim_many(20))
    assert(handle:cancel(held.a[1]))
    goes_on "a"
    assert(handle:delete(held.b[1]))
    goes_on "b"
    assert(handle:cancel(held.c[1], { tree = true }))
    goes_on "c"
    assert(handle:move { queue = "api", state = "scheduled", group = "d", to = "elsewhere" })
    goes_on "d"
    assert(handle:transaction(function() return handle:update(held.e[1], { group = "g" }) end))
    goes_on "e"
    assert(handle:pause(held.f[1]))
    assert.is_nil(q:claim())
    assert.equal(1, q:limits().counts.full_groups)
    assert(handle:run_now(held.e[1]))
    assert.equal(held.e[1], assert(q:claim()).id)
  end)

  it("goes on when a program is cut off while it says that a group's first job is gone", function()
    assert(q:limit { group = { ordered = true } })
    local a = push("a", 2)
    for _, job in ipairs(q:claim_many(20)) do assert(job:fail("later", { retry_in = 3600 })) end
    local p
    assert(handle:transaction(function(tx)
      assert(tx:execute("SELECT group_key FROM nightshift_group WHERE group_key = 'a' FOR UPDATE"))
      p = proc.start { proc.lua, "-e", ([[
        local db = assert(require "nightshift".open(%q))
        assert(db:cancel(%d))
        io.stdout:write "cancelled\n" io.stdout:flush()
        require "nightshift.core".sleep(60)
      ]]):format(url, a[1]) }
      local waits
      eventually(function()
        waits = assert(tx:execute("SELECT id FROM information_schema.processlist WHERE db = DATABASE() "
          .. "AND info LIKE '%nightshift_group%' AND id <> CONNECTION_ID()"))[1]
        return waits
      end)
      assert(tx:execute(("KILL QUERY %d"):format(waits.id)))
      p:wait_line "^cancelled"
      return true
    end))
    push("c", 1)
    assert.equal("a c", groups { assert(q:claim { wait = 5 }), assert(q:claim { wait = 5 }) })
    p:signal "KILL"
  end)

  it("keeps the order of a group past jobs that another session has locked, and other groups go on", function()
    assert(q:limit { group = { ordered = true } })
    local a, b = push("a", 3, { priority = 50 }), push("b", 1)
    push("a", 1, { priority = 200 })
    local other <close> = assert(nightshift.open(url))
    assert(handle:transaction(function(tx)
      assert(tx:execute("SELECT 1 FROM nightshift_ready WHERE job_id = ? FOR UPDATE", a[1]))
      assert.same({ b[1] }, ids(other:queue("api"):claim_many(5)))
      assert.is_nil(other:queue("api"):claim())
      return true
    end))
    for i = 1, 3 do
      local job = assert(other:queue("api"):claim { wait = 10 })
      assert.equal(a[i], job.id)
      assert(job:ack())
    end
  end)

  it("refuses a child in the ordered group of its parent, which would wait for it", function()
    assert(q:limit { group = { ordered = true } })
    local own, other = { group = "a" }, { group = "b" }
    local a = push("a", 1)
    local job = assert(q:claim())
    local none, message, code = q:push("call", { "a" }, { group = "a", parent = job.id })
    assert.same({ nil, "INVALID" }, { none, code })
    assert.is_truthy(message:find(("the parent, job %d, is in the same ordered group"):format(a[1]), 1, true), message)
    none, message = handle:execute("CALL nightshift_push('api', 'call', '1', ?)",
      ('{"group": "a", "parent": %d}'):format(job.id))
    assert.is_nil(none)
    assert.matches("nightshift_push: INVALID: the parent is in the same ordered group", message)
    assert(job:spawn("call", { "b" }, other))
    assert(handle:queue("other"):push("call", {}, { group = "a", parent = job.id }))
    none, message, code = job:spawn("call", { "a" }, own)
    assert.same({ nil, "INVALID" }, { none, code })
    assert.matches("^the group 'a' is ordered, and this job is in it.*give the child another group, or none$", message)
    none, message, code = job:ack() -- a run that lacks a child is not done
    assert.same({ nil, "INVALID" }, { none, code }, message)
    assert(job:fail "no")
    assert(q:limit { group = { running = 1 } })
    assert(q:push("call", { "a" }, { group = "a", parent = job.id }))
  end)

  it("lets groups take turns, when it is to be fair", function()
    assert(q:limit { group = { fair = true } })
    local a = push("a", 50)
    assert.same({ a[1] }, ids(q:claim_many(1)))
    local b = push("b", 2)
    assert.same({ b[1], a[2], b[2], a[3] }, ids(q:claim_many(4)))
  end)

  --- Pushes n jobs of group "a" by few statements.
  local function flood(n)
    for _ = 1, n, 1000 do
      local items = {}
      for i = 1, 1000 do items[i] = { "call", { "a" }, { group = "a" } } end
      assert(q:push_many(items))
    end
  end

  -- It came behind all of them.
  it("gives a job that was pushed behind many of another group its turn at once, when it is to be fair", function()
    assert(q:limit { group = { fair = true } })
    flood(5000)
    local b = assert(q:push("call", { "b" }, { group = "b" }))
    local low = assert(q:push("call", { "c" }, { group = "c", priority = 1 }))
    local started = ids(q:claim_many(3))
    table.sort(started)
    assert.same({ b, low }, { started[2], started[3] })
    b = assert(q:push("call", { "b" }, { group = "b" }))
    local n = 0
    repeat n = n + 1 until assert(q:claim()).id == b
    assert.is_true(n <= 3, n)
  end)

  it("is sorted by a host while its workers are busy, when it is to be fair", function()
    local path = fixture.dir() .. "/go"
    assert(q:limit { group = { fair = true } })
    flood(10000)
    local h = host.start(url, ([[return { call = function()
        while not io.open(%q) do require "nightshift.core".sleep(0.01) end
        return require "nightshift".clock()
      end }]]):format(path), { "--workers", "1" })
    eventually(function()
      return handle:execute("SELECT COUNT(*) AS n FROM nightshift_ready WHERE job_id > 0")[1].n == 0
    end, 60)
    assert.is_true(count "backlog" > 9900)
    assert(io.open(path, "w")):close()
    local began = nightshift.clock()
    local b = assert(q:push("call", { "b" }, { group = "b" }))
    assert(handle:wait(b, 60))
    assert.is_true(handle:job(b).result - began < proc.limit(1))
    host.stop(h)
  end)

  it("starts nothing of a group that a job of it has stopped", function()
    assert(q:limit { group = { running = 10 } })
    push("a", 3)
    push("b", 1)
    local job = q:claim()
    assert(job:again { retry_after = 30, stop = "group" })
    assert.equal("b", groups(q:claim_many(5)))
    push("b", 1)
    assert(q:claim():again { retry_after = 30, stop = "queue" })
    push("c", 1)
    assert.equal(0, #q:claim_many(5))
  end)

  it("forgets a waiting job that is cancelled, keeps one that is paused, moves one that is changed", function()
    assert(q:limit { group = { running = 1 } })
    local a = push("a", 5)
    local job = assert(q:claim())
    assert.equal(a[1], job.id)
    assert(handle:cancel(a[2]))
    assert(handle:pause(a[3]))
    assert(handle:update(a[5], { priority = 200 }))
    assert(job:ack())
    job = assert(q:claim())
    assert.equal(a[5], job.id)
    assert(handle:resume(a[3]))
    assert(job:ack())
    job = assert(q:claim())
    assert.equal(a[4], job.id)
    assert(job:ack())
    job = assert(q:claim())
    assert.equal(a[3], job.id)
    assert(job:ack())
    assert.equal(0, count "backlog" + count "grant" + count "job")
  end)

  it("lists its waiting jobs as ready, and verbs on ready jobs find them", function()
    assert(q:limit { group = { running = 1 } })
    local a, b = push("a", 3), push("b", 2)
    assert.equal(2, #q:claim_many(5))
    local list = assert(handle:jobs { state = "ready", queue = "api" })
    assert.same({ a[2], a[3], b[2] }, { list[1].id, list[2].id, list[3].id })
    assert.equal(3, #list)
    assert.equal(3, assert(handle:reprioritise({ state = "ready", queue = "api" }, 50)).changed)
    assert.equal(3, #assert(handle:jobs { state = "ready" }))
  end)

  it("has no limits any more when they are taken away", function()
    assert(q:limit { group = { running = 1, ordered = true } })
    local a = push("a", 4)
    local job = assert(q:claim())
    assert(q:limit(nil))
    assert.same({ a[2], a[3], a[4] }, ids(q:claim_many(5)))
    assert(job:ack())
    assert.equal(0, count "limit" + count "group" + count "backlog" + count "grant")
  end)

  it("has its waiting jobs somewhere: only one that has lost its row is put back", function()
    assert(q:limit { group = { running = 1 } })
    local a = push("a", 4)
    local job = assert(q:claim())
    assert.equal(3, count "backlog")
    assert(handle:execute("DELETE FROM nightshift_backlog WHERE job_id = ?", a[2]))
    assert(handle:execute "INSERT INTO nightshift_meta VALUES ('mend_every', '200000')")
    local h = host.start(url, "return {}", { "--queues", "other", "--workers", "1" })
    eventually(function() return count "mended" == 1 end, 90)
    host.stop(h)
    assert.same({ { n = 1 } }, handle:execute "SELECT CAST(SUM(n) AS SIGNED) AS n FROM nightshift_mended")
    for _ = 1, 3 do
      assert(job:ack())
      job = assert(q:claim())
    end
    assert(job:ack())
    assert.equal(0, count "job")
  end)

  it("is drained at its rate, and does not hold up a drain that cannot run what waits in it", function()
    assert(q:limit { rate = { 2, "1s" } })
    push("a", 4)
    local script = "return { call = function() end }"
    assert.equal(0, (host.drain(url, script)))
    assert.equal(0, count "job")
    assert(q:push("unserved", 1))
    local began = nst.clock()
    assert.equal(3, (host.drain(url, script)))
    assert.is_true(nst.clock() - began < proc.limit(20))
    assert.equal(1, count "job")
  end)

  it("gives lower priorities of jobs without a group their turns, but to a strict claim", function()
    assert(q:limit { running = 1000 })
    local low, high = push(nil, 4, { priority = 10 }), push(nil, 100)
    push(nil, 4, { priority = 50 })
    local jobs = ids(q:claim_many(32, { strict = true }))
    assert.same(table.move(high, 1, 32, 1, {}), jobs)
    local at = {}
    for i, id in ipairs(ids(q:claim_many(64))) do
      for k, one in ipairs(low) do at[k] = one == id and i or at[k] end
    end
    assert.same({ 16, 32, 48, 64 }, at)
    assert.equal(12, #q:claim_many(20))
  end)

  -- It stalled the queue for as long as the server kept its session.
  it("is not kept from the rest for long by a program that freezes in the middle of a claim", function()
    assert(q:limit { group = { running = 1 } })
    push("a", 1)
    push("b", 1)
    local way = proc.proxy.start(db.shared())
    way:tell "delay 200"
    local other = proc.start { proc.lua, "-e", ([[
      local nightshift = require "nightshift"
      local db = assert(nightshift.open(%q))
      local job = assert(db:queue "api":claim { wait = 60 })
      print("claimed " .. job.payload[1])
      assert(job:ack())]]):format(way:url(url)) }
    local function is_free()
      return #assert(handle:execute "SELECT 1 FROM nightshift_limit FOR UPDATE SKIP LOCKED") > 0
    end
    eventually(function() return not is_free() end)
    other:signal "STOP"
    way:tell "delay 0"
    assert.is_false(is_free())
    local began = nightshift.clock()
    local job = assert(q:claim { wait = 60 })
    assert.is_true(nightshift.clock() - began < proc.limit(10))
    assert.equal("a", job.payload[1])
    other:signal "CONT"
    other:wait_line("^claimed b", 60)
    assert.equal(0, (other:wait()))
    assert(job:ack())
    assert.equal(0, count "grant" + count "backlog" + count "job")
  end)

  it("leaves a transaction of its program all the time that it takes", function()
    assert(q:limit { running = 1 })
    push("a", 1)
    assert(assert(q:claim()):ack())
    local function idle() return handle:execute("SELECT @@idle_transaction_timeout AS n")[1].n end
    assert.equal(5, idle())
    assert(handle:transaction(function(tx)
      assert.equal(0, tx:execute("SELECT @@idle_transaction_timeout AS n")[1].n)
      return tx:queue("api"):push("call", { "a" })
    end))
    assert(assert(q:claim()):ack())
    assert.equal(5, idle())
  end)

  it("does not wait for a claim of another session", function()
    assert(q:limit { group = { running = 1 } })
    push("a", 2)
    push("b", 2)
    local other <close> = assert(nightshift.open(url))
    assert(handle:transaction(function(tx)
      assert(tx:execute("SELECT * FROM nightshift_limit FOR UPDATE"))
      local began = nightshift.clock()
      assert.is_nil(other:queue("api"):claim())
      assert.is_true(nightshift.clock() - began < proc.limit(0.5))
      return true
    end))
    assert(other:queue("api"):claim { wait = 5 })
  end)
end)

-- Two hosts, one of which is killed again and again, while jobs come, are cancelled, paused and
-- changed, and limits change. NIGHTSHIFT_LONG: a minute of it.
describe("limits under faults", function()
  local SECONDS <const> = os.getenv "NIGHTSHIFT_LONG" and 60 or 3
  local MOST <const>, MOST_OF_GROUP <const> = 5, 3 -- of all limits that are set
  local SCRIPT <const> = [[
    local sleep = require "nightshift.core".sleep
    return { call = { backoff = 0.05, max_attempts = 3, run = function(job)
      local file <close> = assert(io.open(%q, "a"))
      assert(file:write(job.group, " ", job.payload, "\n"))
      file:close()
      sleep(0.003)
      if job.payload %% 9 == 0 then error "no" end
    end } }]]

  --- The starts of each group, as their numbers.
  local function starts_of(path)
    local starts = {}
    for line in io.lines(path) do
      local group, number = line:match "^(%a) (%d+)$"
      starts[group] = starts[group] or {}
      table.insert(starts[group], tonumber(number))
    end
    return starts
  end

  --- Places by group that count, and in all.
  local function places(handle)
    local all = 0
    for _, row in ipairs(assert(handle:execute([[SELECT g.group_key, COUNT(*) AS n FROM nightshift_grant g
        JOIN nightshift_lease l ON l.id = g.lease GROUP BY g.group_key]]))) do
      assert.is_true(row.n <= MOST_OF_GROUP, row.group_key)
      all = all + row.n
    end
    assert.is_true(all <= MOST)
    return all
  end

  local url, handle, q
  with_database(function(opened, _, at)
    handle, url = opened, at
    q = handle:queue "api"
  end)

  --- Does one thing to some job, whatever comes of it.
  local function meddle(random, n)
    local list = assert(handle:jobs { queue = "api", limit = 20 })
    local job = list[1] and list[random(#list)]
    if random(3) > 1 or not job then
      n = n + 1
      assert(q:push("call", n, { group = ("abc"):sub(random(3)):sub(1, 1), priority = random(99, 101),
        max_crashes = 100 }))
    else
      local verbs = {
        function() return handle:cancel(job.id) end,
        function() return handle:pause(job.id) end,
        function() return handle:resume(job.id) end,
        function() return handle:update(job.id, { priority = random(90, 110) }) end,
        function() return handle:update(job.id, { group = ("abc"):sub(random(3)):sub(1, 1) }) end,
      }
      verbs[random(#verbs)]()
    end
    return n
  end

  local function all_end()
    for _, job in ipairs(assert(handle:jobs { state = "waiting", limit = 10000 })) do handle:resume(job.id) end
    eventually(function() return assert(handle:execute "SELECT COUNT(*) AS n FROM nightshift_job")[1].n == 0 end, 60)
    assert.equal(0, places(handle))
    assert.same({ { n = 0 } }, handle:execute "SELECT COUNT(*) AS n FROM nightshift_mended")
  end

  it("no place is lost or given twice, and no job is nowhere", function()
    local path = fixture.dir() .. "/starts"
    local script, seed, n = SCRIPT:format(path), os.time(), 0
    local random = math.random
    math.randomseed(seed)
    assert(q:limit { running = MOST, group = { running = MOST_OF_GROUP } })
    local stays, dies = host.start(url, script, { "--workers", "4" }), host.start(url, script, { "--workers", "4" })
    local until_when, kill_at = nightshift.clock() + SECONDS, nightshift.clock() + 1
    while nightshift.clock() < until_when do
      n = meddle(random, n)
      places(handle)
      if random(40) == 1 then
        assert(q:limit { running = random(2, MOST),
          group = { running = random(1, MOST_OF_GROUP), fair = random(2) == 1 } })
      end
      if nightshift.clock() > kill_at then
        dies:signal "KILL"
        dies:wait()
        dies, kill_at = host.start(url, script, { "--workers", "4" }), nightshift.clock() + 1
      end
    end
    all_end()
    host.stop(stays)
    host.stop(dies)
    assert.is_true(n > 50, n)
  end)

  it("no job of an ordered group starts before the one before it has ended", function()
    local path = fixture.dir() .. "/starts"
    local script = SCRIPT:format(path)
    assert(q:limit { group = { ordered = true } })
    for i = 1, 90 do assert(q:push("call", i, { group = ("abc"):sub(i % 3 + 1, i % 3 + 1), max_crashes = 100 })) end
    local stays, dies = host.start(url, script, { "--workers", "3" }), host.start(url, script, { "--workers", "3" })
    for _ = 1, 2 do
      sleep(0.5)
      dies:signal "KILL"
      dies:wait()
      dies = host.start(url, script, { "--workers", "3" })
    end
    all_end()
    host.stop(stays)
    host.stop(dies)
    for group, list in pairs(starts_of(path)) do
      for i = 2, #list do assert.is_true(list[i] >= list[i - 1], group .. " " .. table.concat(list, " ")) end
      assert.is_true(#list >= 30, group)
    end
  end)
end)

-- ----- how people set them and look at them

describe("limits:", function()
  local url, name, handle, n = nil, nil, nil, 0

  setup(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
  end)

  teardown(function() handle:close() end)

  local function fresh_queue()
    n = n + 1
    return assert(handle:queue("q" .. n)), "q" .. n
  end

  local function sql(text, ...) return assert(handle:execute(text, ...)) end

  local function queue_id(queue) return sql("SELECT id FROM nightshift_queue WHERE name = ?", queue)[1].id end

  --- Moves ready jobs of a queue to its backlog, as a claim does; they are of one group.
  local function back(queue, group, ordered)
    local id = queue_id(queue)
    sql("UPDATE nightshift_job SET group_key = NULLIF(?, '') WHERE queue_id = ? AND group_key IS NULL", group, id)
    sql([[INSERT INTO nightshift_backlog SELECT queue_id, ?, IF(?, 0, `rank`), ready_at, job_id, run, alone, kind
      FROM nightshift_ready WHERE queue_id = ? AND job_id > 0]], group, ordered or false, id)
    sql([[REPLACE INTO nightshift_group (queue_id, group_key, `rank`, ready_at, job_id)
      SELECT queue_id, group_key, `rank`, ready_at, job_id FROM nightshift_backlog WHERE queue_id = ? AND group_key = ?
      ORDER BY `rank`, ready_at, job_id LIMIT 1]], id, group)
    sql("DELETE FROM nightshift_ready WHERE queue_id = ? AND job_id > 0", id)
  end

  --- How many rows of the queue a table has.
  local function rows(table, queue)
    return sql(("SELECT COUNT(*) AS n FROM nightshift_%s WHERE queue_id = ?"):format(table), queue_id(queue))[1].n
  end

  describe("q:limit", function()
    it("sets what q:limits and db:limits give back, and makes the queue", function()
      local q, queue = fresh_queue()
      assert.is_nil((q:limits()))
      local given = { running = 100, rate = { 500, "1m" },
        group = { running = 2, rate = { 10, 1, "window" }, ordered = true, fair = true } }
      assert.is_true(q:limit(given))
      local got = assert(q:limits())
      assert.same({ running = 0, waiting = 0, groups = 0, full_groups = 0 }, got.counts)
      assert.same({ queue, 100, { 500, 60 } },
        { got.queue, got.running, got.rate })
      assert.same({ running = 2, rate = { 10, 1, "window" }, ordered = true, fair = true }, got.group)
      assert.is_true(q:limit { running = 3 })
      got = assert(q:limits())
      assert.same({ 3 }, { got.running, got.rate, got.group })
      local found
      for _, row in ipairs(assert(handle:limits())) do found = found or row.queue == queue end
      assert.is_true(found)
      assert.equal(1, sql("SELECT limited FROM nightshift_queue WHERE name = ?", queue)[1].limited)
    end)

    it("says what a value has to be, and leaves the limit as it was", function()
      local q = fresh_queue()
      assert(q:limit { running = 3 })
      for words, bad in pairs {
        ["limit: running must be a whole number from 1 to 1000000, got 0"] = { running = 0 },
        ["limit: rate: the number of starts must be a whole number from 1"] = { rate = { 0, "1m" } },
        ["limit: rate: the time: "] = { rate = { 1, "soon" } },
        ["from a microsecond a start to a year, got 500d"] = { rate = { 1, "500d" } },
        ["the third value can be \"window\", for fixed windows; got 'often'"] = { rate = { 1, "1s", "often" } },
        ["there is no limit in this table; give one of"] = { group = { ordered = false } },
      } do
        local ok, message, code = q:limit(bad)
        assert.same({ nil, "INVALID" }, { ok, code })
        assert.is_truthy(message:find(words, 1, true), message)
      end
      for words, bad in pairs {
        ["did you mean 'running'?"] = { runing = 1 },
        ['limit: rate must be a table like {500, "1m"}: so many starts in that time; got number'] = { rate = 5 },
        ["it has the key 'n'"] = { rate = { n = 5 } },
        ["limit: group must be a table like {running = 2}, of limits of each group; got boolean"] = { group = true },
        ["limit: group: ordered must be a boolean, got number"] = { group = { ordered = 1 } },
        ["limit wants a table like {running = 10}, or nil for no limit; got string"] = "10",
      } do
        local ok, message = pcall(q.limit, q, bad)
        assert.is_false(ok)
        assert.is_truthy(message:find(words, 1, true), message)
      end
      assert.equal(3, q:limits().running)
    end)

    it("counts what runs from the beginning, and keeps a rate that stays", function()
      local q, queue = fresh_queue()
      assert(q:push_many { { "a" }, { "a" }, { "a" } })
      local jobs = assert(q:claim_many(2))
      assert(q:limit { running = 2, rate = { 5, "1h" } })
      assert.equal(2, q:limits().counts.running)
      local id = queue_id(queue)
      local function spent() return sql("SELECT next_at, used FROM nightshift_limit WHERE queue_id = ?", id)[1] end
      sql("UPDATE nightshift_limit SET next_at = 7, used = 3 WHERE queue_id = ?", id)
      assert(q:limit { running = 9, rate = { 5, "1h" } })
      assert.same({ next_at = 7, used = 3 }, spent())
      assert(q:limit { running = 9, rate = { 6, "1h" } })
      assert.same({ next_at = 0, used = 0 }, spent())
      for _, job in ipairs(jobs) do assert(job:ack()) end
      assert.equal(0, q:limits().counts.running)
    end)

    it("with nil ends it; the backlog is ready again", function()
      local q, queue = fresh_queue()
      assert.is_true(q:limit(nil)) -- there is none
      local ids = assert(q:push_many { { "a" }, { "b", nil, { priority = 200 } } })
      assert(q:limit { running = 1 })
      back(queue, "g")
      assert.same({ 0, 2 }, { rows("ready", queue), q:limits().counts.waiting })
      assert(q:limit(nil))
      assert.is_nil((q:limits()))
      assert.same({ 0, 0, 0 }, { rows("backlog", queue), rows("group", queue), rows("grant", queue) })
      assert.same({ { limited = 0 } },
        sql("SELECT limited FROM nightshift_queue WHERE name = ?", queue))
      assert.same({ ids[2], ids[1] }, { q:claim().id, q:claim().id })
    end)

    it("that changes the order moves the backlog, which has another order then", function()
      local q, queue = fresh_queue()
      assert(q:push_many { { "a" }, { "b" } })
      assert(q:limit { group = { running = 1 } })
      back(queue, "g")
      assert(q:limit { group = { running = 2 } })
      assert.equal(2, rows("backlog", queue))
      assert(q:limit { group = { running = 2, ordered = true } })
      assert.same({ 0, 2 }, { rows("backlog", queue),
        sql("SELECT COUNT(*) AS n FROM nightshift_ready WHERE queue_id = ? AND job_id > 0", queue_id(queue))[1].n })
      local id = queue_id(queue)
      sql([[INSERT INTO nightshift_backlog SELECT ?, 'g', 0, seq, seq, 1, 0, 0 FROM seq_1_to_10001]], id)
      local ok, message, code = q:limit { group = { running = 2 } }
      assert.same({ nil, "STATE" }, { ok, code })
      assert.matches("has more than 10000 jobs", message)
      assert.is_true(q:limits().group.ordered)
      assert(q:limit(nil)) -- claims move such a backlog
      assert.is_true(q:limits().lifted)
      assert.equal(1, sql("SELECT limited FROM nightshift_queue WHERE id = ?", id)[1].limited)
      sql("DELETE FROM nightshift_backlog WHERE queue_id = ?", id)
    end)

    it("goes with its queue when that is removed", function()
      local q, queue = fresh_queue()
      assert(q:limit { running = 1, backlog = 1 })
      assert(q:push "a")
      assert(q:claim():ack())
      assert.is_true((handle:remove_queue(queue)))
      assert.is_nil((q:limits()))
      for _ = 1, 2 do assert(q:push("a", nil, { wait = 20 })) end
      assert.equal(2, #q:claim_many(2))
    end)

    it("is in the audit, and is undone with its transaction", function()
      local q, queue = fresh_queue()
      assert(q:limit { running = 5, rate = { 500, 60 }, group = { rate = { 1, "90s" }, ordered = true, fair = true } })
      local row = handle:audit { verb = "limit", limit = 1 }[1]
      assert.equal(("queue %s: 5 running, 500/1m; each group: 1/90s, ordered; groups take turns"):format(queue),
        row.what)
      local _, _, code = handle:transaction(function(tx)
        assert(tx.queue)
        assert(q:limit { running = 6 })
        return nil, "no", "NO"
      end)
      assert.equal("NO", code)
      assert.equal(5, q:limits().running)
      assert(q:limit(nil))
      assert.equal(("queue %s: none"):format(queue), handle:audit { verb = "limit", limit = 1 }[1].what)
    end)
  end)

  describe("why", function()
    local function why(id, ...)
      local text, fact = assert(handle:why(id))
      assert.equal("limited", fact.kind, text)
      for _, words in ipairs { ... } do assert.is_truthy(text:find(words, 1, true), text) end
      return fact
    end

    it("names the jobs that have the places of a queue", function()
      local q, queue = fresh_queue()
      assert(q:limit { running = 2 })
      assert(q:push_many { { "a" }, { "b" }, { "c" } })
      sql("UPDATE nightshift_limit SET running = 3 WHERE queue_id = ?", queue_id(queue)) -- both may run meanwhile
      local jobs = {}
      sql("UPDATE nightshift_queue SET limited = 0 WHERE name = ?", queue)
      for i = 1, 2 do jobs[i] = assert(q:claim()) end
      assert(q:limit { running = 2 })
      local waits = assert(handle:jobs { queue = queue, state = "ready" })[1].id
      local fact = why(waits, ("waits for a place in queue %s, 2 of 2 running since 20"):format(queue),
        ("#%d 'a', #%d 'b'"):format(jobs[1].id, jobs[2].id))
      assert.same({ "running", 2, 2, queue }, { fact.limit, fact.running, fact.places, fact.queue })
      assert.equal(jobs[1].id, fact.held_by[1].id)
      for _, job in ipairs(jobs) do assert(job:ack()) end
      assert(handle:why(waits))
      assert.not_equal("limited", select(2, handle:why(waits)).kind)
    end)

    it("names the places, the order, the rate and the stop of a group", function()
      local q, queue = fresh_queue()
      local first, second, third = table.unpack(assert(q:push_many { { "a" }, { "a" }, { "a" } }))
      local job = assert(q:claim())
      local id = queue_id(queue)
      sql("UPDATE nightshift_job SET group_key = 'tenant:7' WHERE queue_id = ?", id)
      assert(q:limit { group = { running = 1, rate = { 1, "1h" } } })
      back(queue, "tenant:7")
      local fact = why(second, "waits for a place in group tenant:7, 1 of 1 running since ", ("#%d 'a'"):format(first))
      assert.equal("tenant:7", fact.group)
      assert(q:limit { group = { rate = { 1, "1h" } } })
      sql("UPDATE nightshift_group SET next_at = (SELECT MAX(claimed) FROM nightshift_lease) + 3600000000 "
        .. "WHERE queue_id = ?", id)
      fact = why(second, "waits for the rate of group tenant:7: next start in 59 min")
      assert.equal("rate", fact.limit)
      assert.is_true(fact.due > os.time())
      sql("UPDATE nightshift_group SET next_at = 0, stopped = ? WHERE queue_id = ?", (os.time() + 600) * 1000000, id)
      why(second, "for group tenant:7 is stopped until 20", "a job asked for it")
      assert(q:limit { group = { ordered = true } })
      back(queue, "tenant:7", true)
      fact = why(second, ("waits for job %d, which is before it in ordered group tenant:7"):format(first),
        ("; #%d 'a' has been running"):format(first))
      assert.equal(first, fact.before)
      assert(job:ack())
      why(third, ("waits for job %d, which is before it in ordered group tenant:7"):format(second))
    end)

    it("says when a queue's rate lets the next one start, and until when it is stopped", function()
      local q, queue = fresh_queue()
      local id = assert(q:push "a")
      assert(q:limit { rate = { 2, "1m", "window" } })
      sql("UPDATE nightshift_limit SET used = 2, next_at = ? WHERE queue_id = ?", os.time() * 1000000, queue_id(queue))
      why(id, ("waits for the rate of queue %s: next start in 5"):format(queue))
      assert.matches("its rate of 2/1m is used up, next start in 5", q:limits().holds)
      assert.is_true(q:limits().due > os.time() + 30)
      sql("UPDATE nightshift_limit SET stopped = ? WHERE queue_id = ?", (os.time() + 600) * 1000000, queue_id(queue))
      why(id, ("queue %s is stopped until 20"):format(queue))
      assert.matches("it is stopped for [59]", q:limits().holds)
    end)
  end)

  it("a job stops its group, or its queue, until it comes back", function()
    local q, queue = fresh_queue()
    assert(q:limit { running = 5 })
    assert(q:push("a", nil, { group = "tenant:7" }))
    local job = assert(q:claim())
    assert.has_error(function() job:again { retry_after = 600, stop = "all" } end)
    assert(job:again { retry_after = 600, stop = "queue" })
    assert.is_true(q:limits().stopped > os.time() + 500)
    local text, fact = handle:why(assert(q:push "c"))
    assert.is_truthy(text:find((" more: job %d asked for it"):format(job.id), 1, true), text)
    assert.equal(job.id, fact.stopped_by)
    sql("UPDATE nightshift_limit SET stopped = 0 WHERE queue_id = ?", queue_id(queue))
    assert(q:push("b", nil, { group = "tenant:8" }))
    local h = host.start(url, [[return { b = function(job)
      return job:again { retry_after = 600, stop = "group" } end }]], { "--queues", queue })
    eventually(function()
      local row = sql("SELECT stopped FROM nightshift_group WHERE queue_id = ? AND group_key = 'tenant:8'",
        queue_id(queue))[1]
      return row and row.stopped > (os.time() + 500) * 1000000
    end)
    host.stop(h)
    local by = handle:jobs { queue = queue, state = "scheduled", name = "b" }[1].id
    local waits = assert(q:push("d", nil, { group = "tenant:8" }))
    assert.matches(("group tenant:8 is stopped .*: job %d asked for it"):format(by), (handle:why(waits)))
    assert(handle:cancel(handle:jobs { queue = queue, name = "c" }[1].id))
    assert(handle:cancel(job.id))
    assert.is_nil(q:claim())
    assert.matches("^its one group with jobs is stopped for [59].* more$", q:limits().holds)
  end)

  describe("a bound of waiting jobs", function()
    local MESSAGE <const> = "queue %s is full: 3 jobs wait, and its limit allows no more; push later"

    local function full(queue, id, message, code)
      assert.same({ nil, "FULL" }, { id, code })
      assert.is_truthy(message:find(MESSAGE:format(queue), 1, true), message)
    end

    --- A queue with a bound of three jobs, which wait.
    local function full_queue(more)
      local q, queue = fresh_queue()
      local given = { backlog = 3 }
      for key, value in pairs(more or {}) do given[key] = value end
      assert(q:limit(given))
      for i = 1, 3 do assert(q:push("a", i)) end
      return q, queue
    end

    local function command(argv, input)
      local all = { proc.build .. "/bin/nightshift", "--url", url, table.unpack(argv) }
      all.stdin = input
      return proc.run(all)
    end

    it("refuses every push of programs, of the shell and of SQL, and says so", function()
      local q, queue = full_queue()
      full(queue, q:push("a", 4))
      full(queue, q:push_many { { "a" }, { "a" } })
      full(queue, q:push("a", 4, { delay = 60 }))
      full(queue, handle:flow { name = "root", queue = queue, children = { { name = "a" } } })
      local _, message, code = handle:transaction(function(tx) return tx:queue(queue):push("a") end)
      full(queue, nil, message, code)
      local none, said = handle:execute("CALL nightshift_push(?, 'a', '1', NULL)", queue)
      assert.is_nil(none)
      assert.is_truthy(said:find(("nightshift_push: FULL: queue %s is full: 3 jobs wait"):format(queue), 1, true), said)
      local status, out, err = command { "push", queue, "a" }
      assert.same({ 1, "" }, { status, out })
      assert.is_truthy(err:find(MESSAGE:format(queue), 1, true), err)
      status, out, err = command({ "push", queue, "a", "--lines" }, "1\n2\n")
      assert.same({ 1, "" }, { status, out })
      assert.matches("lines 1 to 2: queue .* is full.*%(FULL%); 0 jobs pushed before them", err)
      assert.equal(3, rows("ready", queue) - sql(
        "SELECT COUNT(*) AS n FROM nightshift_ready WHERE queue_id = ? AND job_id <= 0", queue_id(queue))[1].n)
    end)

    it("says of one job that it waits", function()
      local q, queue = fresh_queue()
      assert(q:limit { backlog = 1 })
      assert(q:push "a")
      local _, message = q:push "a"
      assert.matches(": 1 job waits, and its limit", message)
      _, message = handle:execute("CALL nightshift_push(?, 'a', '1', NULL)", queue)
      assert.matches("is full: 1 job waits; push later", message)
    end)

    it("does not count jobs that were cancelled or moved, while no claim can start another", function()
      local q, queue = full_queue { running = 1 }
      assert(q:claim())
      assert(q:push("a", 4))
      assert.is_nil(q:claim())
      assert.equal(3, rows("backlog", queue))
      assert.same({ true, 3 }, { q:limits().full, q:limits().counts.waiting })
      local ids = assert(handle:jobs { queue = queue, state = "ready" })
      assert(handle:cancel(ids[1].id))
      assert(handle:move { queue = queue, state = "ready", to = queue .. "b" })
      assert.same({ nil, 0 }, { q:limits().full, q:limits().counts.waiting })
      for i = 1, 3 do assert(q:push("a", i, { wait = 20 })) end
      full(queue, q:push("a", 4))
    end)

    it("is shown, and ends with the limit", function()
      local q, queue = full_queue()
      assert.same({ 3, true, 3 }, { q:limits().backlog, q:limits().full, q:limits().counts.waiting })
      assert.is_nil(q:limits().counts.running)
      assert.equal(0, sql("SELECT limited FROM nightshift_queue WHERE name = ?", queue)[1].limited)
      assert.matches(queue .. " +3 +0 +3 waiting +full: pushes are refused", select(2, command { "limits" }))
      assert.is_truthy(select(2, command { "status" }):find(
        ("next: nightshift limits %s  # pushes are refused: 3 of 3 jobs wait\n"):format(queue), 1, true))
      assert.equal(3, nightshift.decode((select(2, command { "limits", queue, "--json" }))).backlog)
      assert(q:limit { running = 9 })
      assert.is_nil(q:limits().backlog)
      assert(q:push("a", 4, { wait = 20 })) -- at the next count
      assert.equal(queue .. ": 9 running, 4 waiting\n",
        (select(2, command { "limit", queue, "--running", "9", "--backlog", "4" })))
      assert(q:limit(nil))
      assert(q:push("a", 5, { wait = 20 }))
      assert.is_nil((q:limits()))
    end)

    it("counts jobs in the backlog of the other limits, too, and none that runs or is due later", function()
      local q, queue = full_queue { running = 1 }
      local job = assert(q:claim())
      assert.equal(2, rows("backlog", queue))
      assert(q:push("a", 4, { delay = 3600, wait = 20 }))
      assert(q:push("a", 5, { wait = 20 }))
      full(queue, q:push("a", 6))
      assert(job:ack())
    end)

    it("lets children, schedules and retries in anyhow", function()
      local q, queue = full_queue()
      local job = assert(q:claim())
      assert(q:push("a", 4, { wait = 20 }))
      assert(q:push("child", 1, { parent = job.id }))
      job:spawn("child", 2)
      assert(job:ack())
      assert(handle:schedule { name = "tick" .. queue, cron = "0 3 1 1 *", push = { "a", nil, { queue = queue } } })
      assert(handle:schedule_run("tick" .. queue))
      assert.equal(6, q:stats().ready)
      assert(handle:retry(job.id))
      assert.equal(7, q:stats().ready)
      full(queue, q:push("a", 5))
    end)

    it("is gone over by moved jobs, and by those that are pushed for dead ones", function()
      local q, queue = full_queue()
      local other = fresh_queue()
      local ids = assert(other:push_many { { "a" }, { "a" } })
      assert.equal(2, assert(handle:move { queue = other.name, name = "a", to = queue }).changed)
      assert.equal(5, q:stats().ready)
      assert.equal(queue, handle:job(ids[1]).queue)
      full(queue, q:push("a", 4))
      assert(other:push("dies", 1, { max_attempts = 1 }))
      local h = host.start(url, ([[return { bury = function() end,
        dies = { on_dead = "bury", on_dead_queue = %q, run = function() error "no" end } }]]):format(queue),
        { "--queues", other.name })
      eventually(function() return q:stats().ready == 6 end)
      host.stop(h)
      assert.equal("bury", handle:jobs { queue = queue, name = "bury" }[1].name)
      full(queue, q:push("a", 4))
    end)

    it("makes a push with `wait` wait for room, or so long", function()
      local q, queue = full_queue()
      local began = nightshift.clock()
      full(queue, q:push("a", 4, { wait = 0.2 }))
      assert.is_true(nightshift.clock() - began >= 0.2)
      local _, message, code = handle:transaction(function(tx) return tx:queue(queue):push("a", 4, { wait = 1 }) end)
      assert.equal("INVALID", code)
      assert.matches("a transaction does not wait for room", message)
      local waits = proc.start { proc.build .. "/bin/nightshift", "--url", url, "push", queue, "b", "--wait", "60" }
      full(queue, q:push_many({ { "a" } }, { wait = 0.5 })) -- it waits meanwhile
      assert(assert(q:claim()):ack())
      waits:wait_line("^%d+$", 60)
      assert.equal(0, (waits:wait()))
      assert.equal(3, q:stats().ready)
    end)

    it("is learned by programs that know the queue, within about a hundred pushes", function()
      local q, queue = fresh_queue()
      local other <close> = assert(nightshift.open(url))
      assert(other:queue(queue):push("a"))
      assert(q:limit { backlog = 2 })
      local pushes = 0
      while pushes < 300 and other:queue(queue):push("a") do pushes = pushes + 1 end
      assert.equal("FULL", (select(3, other:queue(queue):push("a"))))
      assert.is_true(pushes <= 100, pushes)
    end)

    it("costs pushes to other queues nothing", function()
      local q = fresh_queue()
      local function cost()
        assert(q:push("a"))
        local function status()
          local list = {}
          for _, row in ipairs(sql [[SHOW SESSION STATUS WHERE Variable_name IN ('Com_stmt_execute', 'Handler_read_key',
            'Handler_read_first', 'Handler_read_next', 'Handler_read_rnd_next', 'Handler_write')]]) do
            list[row.Variable_name] = tonumber(row.Value)
          end
          return list
        end
        local least = {}
        for _ = 1, 3 do -- one of them may take new ids
          local before = status()
          for _ = 1, 5 do assert(q:push("a")) end
          for key, value in pairs(status()) do
            least[key] = math.min(least[key] or math.huge, value - before[key])
          end
        end
        return least
      end
      sql "UPDATE nightshift_queue SET backlog = NULL"
      for _ = 1, 110 do assert(q:push("a")) end -- the last bounds are forgotten
      local without = cost()
      full_queue()
      assert.same(without, cost())
    end)
  end)

  describe("the commands", function()
    local function run(exit, ...)
      local argv = { proc.build .. "/bin/nightshift", "--url", url, ... }
      local status, out, err = proc.run(argv)
      assert.equal(exit, status, out .. err)
      return out, err
    end

    it("set a limit, show it with its groups, and end it", function()
      local q, queue = fresh_queue()
      local out = run(0, "limit", queue, "--running", "1", "--rate", "500/1m", "--group-running", "2",
        "--group-rate", "10/1s", "--ordered", "--fair")
      assert.equal(queue
        .. ": 1 running, 500/1m; each group: 2 running, 10/1s, ordered; groups take turns\n", out)
      run(0, "limit", queue, "--running", "1", "--rate", "5/1m", "--window")
      assert.same({ 5, 60, "window" }, q:limits().rate)
      assert(q:push_many { { "a" }, { "a" }, { "a" } })
      sql("UPDATE nightshift_queue SET limited = 0 WHERE name = ?", queue)
      assert(q:claim())
      assert(q:limit { running = 1 })
      back(queue, "tenant:7")
      out = run(0, "limits", queue)
      assert.matches("\n" .. queue .. " +1/1 +2 +1 +1 running +1 of 1 running\n", out)
      assert.matches("\nGROUP +RUNNING +WAITING.*\ntenant:7 +0 +2", out)
      assert.same({ 2, 1 }, { q:stats().ready, q:stats().running })
      assert.equal(2, #assert(handle:jobs { queue = queue, state = "ready" }))
      assert.equal("nightshift: 2 jobs would be cancelled; add --yes to do it\n",
        select(2, run(2, "cancel", "--queue", queue, "--state", "ready")))
      out = run(0, "status")
      assert.matches("\n" .. queue .. " +2 .* limited *\n", out)
      assert.matches("next: nightshift limits " .. queue .. "  # full limit: 1 of 1 running\n", out)
      assert.equal(queue .. ": no limit\n", (run(0, "limit", queue, "--off")))
      assert.matches("queue '" .. queue .. "' has no limit", select(2, run(1, "limits", queue)))
    end)

    it("say what is wrong with their options", function()
      local function says(words, ...)
        local err = select(2, run(2, "limit", "q", ...))
        assert.is_truthy(err:find(words, 1, true), err)
      end
      says "give a limit, like --running 10; or --off"
      says("--off goes without other options of a limit", "--off", "--running", "1")
      says("--rate must be starts and a time, like \"500/1m\"; got 'fast'", "--rate", "fast")
      says("--window goes with --rate or --group-rate", "--window")
      says("limit: running must be a whole number from 1", "--running", "0")
    end)
  end)

  it("cost a queue without one nothing: it is as before", function()
    local q, queue = fresh_queue()
    assert(q:push "a")
    assert(q:claim():ack())
    assert.equal("0", db.sql(("SELECT limited FROM nightshift_queue WHERE name = '%s'"):format(queue), name))
  end)
end)
