-- Limits of queues and of groups, from a claim's side: places, rates, order, turns.

local sleep = require "nightshift.core".sleep
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

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
    flood(20000)
    local h = host.start(url, ([[return { call = function()
        while not io.open(%q) do require "nightshift.core".sleep(0.01) end
        return require "nightshift".clock()
      end }]]):format(path), { "--workers", "1" })
    eventually(function()
      return handle:execute("SELECT COUNT(*) AS n FROM nightshift_ready WHERE job_id > 0")[1].n == 0
    end, 60)
    assert.is_true(count "backlog" > 19900)
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
  local SECONDS <const> = os.getenv "NIGHTSHIFT_LONG" and 60 or 5
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
    for i = 1, 120 do assert(q:push("call", i, { group = ("abc"):sub(i % 3 + 1, i % 3 + 1), max_crashes = 100 })) end
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
      assert.is_true(#list >= 40, group)
    end
  end)
end)
