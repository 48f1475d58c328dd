-- How long and how many ended jobs are kept, by queue and outcome: rules, what goes by them, hosts
-- that are killed at it.

local core = require "nightshift.core"
local crew = require "spec.support.crew"
local db = require "spec.support.db"
local host = require "spec.support.host"
local plans = require "nightshift.doctor.plans"
local proc = require "spec.support.proc"

local DAY <const> = 86400

local handle, url, name

with_database(function(h, _, u, n) handle, url, name = h, u, n end)
after_each(crew.clean)

local function one(sql) return tonumber((db.sql(sql, name))) end

--- `n` ended jobs of a queue, from `base` on by id; the k-th ended `age` seconds ago, k µs later.
local function ended(queue, outcome, n, age, base)
  local id = assert(handle._handle:queue_id(queue, true))
  db.sql(([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, reason, run, attempts,
      polls, crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, on_fail, nonce)
    SELECT %d + seq, %d, 'job', 'null', 100, '%s', IF('%s' = 'dead', 'failed', NULL), 1, 0, 0, 0, 0, 1, 1, 1, 1, 1,
      UNIX_TIMESTAMP() * 1000000 - %d * 1000000 + seq, 'cancel', 1 FROM seq_1_to_%d]]):format(base, id, outcome,
      outcome, age, n), name)
end

--- How many ended jobs of a queue and an outcome are there?
local function left(queue, outcome)
  return one(([[SELECT COUNT(*) FROM nightshift_finished f JOIN nightshift_queue q ON q.id = f.queue_id
    WHERE q.name = '%s' AND outcome = '%s']]):format(queue, outcome))
end

--- What a host does, until there is nothing left to do; the calls that it took.
local function as_host(own)
  local calls, barren = 0, 0
  repeat
    barren = assert(own:prune(math.mininteger, math.mininteger, 1)) == 0 and barren + 1 or 0
    calls = calls + 1
  until barren == 3
  return calls - barren
end

describe("rules of retention", function()
  it("are read with what they have of the rule of all queues", function()
    local day, month = { age = DAY, count = false }, { age = 30 * DAY, count = false }
    assert.same({ { done = day, dead = month, cancelled = month } }, handle:retention())
    assert.is_true(handle:retain("mail", { dead = { age = "90d", count = 10000 }, done = false }))
    assert.is_true(handle:retain(nil, { cancelled = 3600 }))
    assert.is_true(handle:retain("mail", { dead = { count = 5 } }))
    local hour = { age = 3600, count = false }
    assert.same({ { done = day, dead = month, cancelled = hour },
      { queue = "mail", done = { age = false, count = false }, dead = { age = 90 * DAY, count = 5 }, cancelled = hour },
    }, handle:retention())
    assert.is_true(handle:retain("mail", { dead = { age = "default", count = "default" }, done = "default" }))
    assert.same({ { done = day, dead = month, cancelled = hour } }, handle:retention())
    assert.equal(1, one "SELECT COUNT(*) FROM nightshift_retention")
  end)

  it("are refused when they say nothing, or what cannot be", function()
    for _, bad in ipairs { { "q", {} }, { "", { done = 1 } }, { "q", { dead = {} } }, { "q", { dead = "soon" } },
      { "q", { dead = { count = -1 } } }, { "q", { dead = { age = -1 } } }, { ("x"):rep(65), { done = 1 } } } do
      local ok, message, code = handle:retain(bad[1], bad[2])
      assert.same({ nil, "INVALID" }, { ok, code }, message)
    end
    assert.error_matches(function() handle:retain("q", { lost = 1 }) end, "retain: unknown option 'lost'")
    assert.error_matches(function() handle:retain("q", { dead = { days = 1 } }) end, "retain: dead: unknown option")
    assert.error_matches(function() handle:retain({ dead = 1 }) end, "retain: the name must be a string")
    assert.error_matches(function() handle:retain "q" end, "retain: the rules must be a table")
    assert.equal(0, one "SELECT COUNT(*) FROM nightshift_retention")
  end)

  it("are set and shown by the shell", function()
    local function run(...) return proc.nightshift({ ... }, url) end
    local status, out = run("retain", "mail", "--done", "1h", "--dead", "never", "--dead-count", "500")
    assert.equal(0, status, out)
    assert.matches("mail +1h0m +for ever, the newest 500 +30d0h", out)
    status, out = run "retention"
    assert.equal(0, status)
    assert.matches("all +1d0h +30d0h +30d0h", out)
    assert.equal(2, (run "retain"))
    assert.equal(2, (run("retain", "--dead-count", "many")))
    assert.equal(2, (run("retain", "--done", "soon")))
    assert.equal(0, (run("retain", "mail", "--done", "default", "--dead", "default", "--dead-count", "default")))
    assert.equal(1, #handle:retention())
  end)

  it("are obeyed by prune, unless it is told an age", function()
    ended("mail", "done", 3, 7200, 0)
    ended("other", "done", 3, 7200, 10)
    assert(handle:retain("mail", { done = "1h" }))
    assert.equal(3, handle:prune())
    assert.same({ 0, 3 }, { left("mail", "done"), left("other", "done") })
    local status, _, err = proc.nightshift({ "prune" }, url)
    assert.equal(2, status)
    assert.matches("nightshift retention", err)
    status = proc.nightshift({ "prune", "--yes" }, url)
    assert.same({ 0, 3 }, { status, left("other", "done") })
    assert.equal(0, handle:prune { done = false })
    assert.equal(3, handle:prune { done = "1h" })
  end)
end)

describe("history goes", function()
  it("by the age of its queue and outcome", function()
    for i, queue in ipairs { "short", "long", "any" } do
      for k, outcome in ipairs { "done", "dead", "cancelled" } do
        ended(queue, outcome, 5, 40 * DAY, i * 1000 + k * 100)
        ended(queue, outcome, 5, 3600, i * 1000 + k * 100 + 50)
      end
    end
    assert(handle:retain("short", { dead = 60, cancelled = "1d" }))
    assert(handle:retain("long", { done = false, dead = "90d" }))
    as_host(handle._handle)
    local function row(queue) return { left(queue, "done"), left(queue, "dead"), left(queue, "cancelled") } end
    assert.same({ 5, 0, 5 }, row "short")
    assert.same({ 10, 10, 5 }, row "long")
    assert.same({ 5, 5, 5 }, row "any")
    assert(handle:retain(nil, { dead = 60 })) -- a rule that changes is obeyed from the start
    as_host(handle._handle)
    assert.same({ 5, 0, 5 }, row "any")
    assert.same({ 10, 10, 5 }, row "long")
  end)

  it("by number, the oldest first, also where many ended at one instant", function()
    ended("a", "dead", 100, 3600, 0)
    ended("b", "dead", 30, 3600, 1000)
    ended("c", "dead", 30, 3600, 2000)
    db.sql("UPDATE nightshift_finished SET finished_at = (UNIX_TIMESTAMP() - 60) * 1000000 WHERE id <= 1100", name)
    assert(handle:retain(nil, { dead = { count = 20 } }))
    assert(handle:retain("a", { dead = { count = 7 } }))
    assert(handle:retain("b", { dead = { age = false, count = false } }))
    as_host(handle._handle)
    assert.same({ 7, 30, 20 }, { left("a", "dead"), left("b", "dead"), left("c", "dead") })
    assert.equal(94, one "SELECT MIN(id) FROM nightshift_finished")
    assert.equal(2011, one "SELECT MIN(id) FROM nightshift_finished WHERE id > 2000")
    ended("a", "dead", 3, 1, 5000)
    as_host(handle._handle)
    assert.same({ 7, 97 }, { left("a", "dead"), one "SELECT MIN(id) FROM nightshift_finished" })
    assert(handle:retain("a", { dead = { count = 0 } }))
    as_host(handle._handle)
    assert.equal(0, left("a", "dead"))
  end)

  it("behind pages of rows that stay", function()
    ended("kept", "done", 25000, 10 * DAY, 0)
    ended("many", "done", 2500, 9 * DAY, 100000)
    ended("few", "done", 5, 11 * DAY, 200000)
    assert(handle:retain("kept", { done = "90d" }))
    assert(handle:retain("few", { done = { age = false, count = 2 } }))
    assert(handle:retain("many", { done = { age = "1d", count = 10 } }))
    assert.is_true(as_host(handle._handle) <= 5)
    assert.same({ 25000, 0, 2 }, { left("kept", "done"), left("many", "done"), left("few", "done") })
  end)

  it("with attempts, tags and signals, but not with a unique key whose period goes on", function()
    local q = assert(handle:queue "q")
    local id = assert(q:push("job", 1, { unique = { key = "k", period = "1h" }, tags = { "t" }, max_attempts = 2 }))
    assert(assert(q:claim()):fail("no", { retry_in = 0 }))
    assert(handle:signal(id, 1, "s"))
    assert(assert(q:claim()):ack())
    assert(handle:retain("q", { done = { count = 0 } }))
    as_host(handle._handle)
    for _, tab in ipairs { "finished", "attempt", "tag", "signal" } do
      assert.equal(0, one("SELECT COUNT(*) FROM nightshift_" .. tab), tab)
    end
    assert.equal("DUPLICATE", select(3, q:push("job", 1, { unique = "k" })))
  end)

  it("as a tree, once each of its jobs may go by the rule of its own queue", function()
    local q, audit = assert(handle:queue "q"), assert(handle:queue "audit")
    assert(q:push "top")
    local top = assert(q:claim())
    assert(top:spawn("kid", 1, { queue = "audit" }))
    assert(top:spawn("kid", 2, { queue = "q", delay = 60 }))
    assert(top:ack())
    assert(assert(audit:claim()):ack())
    local late = assert(handle:jobs { state = "scheduled" })[1].id
    assert(handle:retain("q", { done = 0, cancelled = 0 }))
    as_host(handle._handle)
    assert.equal(2, one "SELECT COUNT(*) FROM nightshift_finished") -- one of it lives
    assert(handle:cancel(late))
    as_host(handle._handle)
    assert.equal(3, one "SELECT COUNT(*) FROM nightshift_finished") -- the audit's is young
    assert(handle:retain("audit", { done = { count = 0 } }))
    as_host(handle._handle)
    assert.equal(0, one "SELECT COUNT(*) FROM nightshift_finished")
    assert.equal(0, one "SELECT COUNT(*) FROM nightshift_child")
  end)

  -- A host deleted done jobs first, as long as there were any: at a job a second, always. Its dead
  -- and cancelled ones stayed for ever.
  it("of all outcomes in turn, though there is always more of one", function()
    ended("q", "done", 3500, 2 * DAY, 0)
    ended("q", "dead", 3, 40 * DAY, 10000)
    ended("q", "cancelled", 3, 40 * DAY, 20000)
    for _ = 1, 3 do assert(handle._handle:prune(math.mininteger, math.mininteger, 1)) end
    assert.same({ 0, 0 }, { left("q", "dead"), left("q", "cancelled") })
    assert.is_true(left("q", "done") >= 2500)
  end)

  it("not when the job was retried, or its retry has ended, since it was looked at", function()
    local q = assert(handle:queue "q")
    local id = assert(q:push "job")
    assert(assert(q:claim()):discard "no")
    assert(handle:retain("q", { dead = { count = 0 } }))
    assert(handle:transaction(function()
      assert(handle:retry(id))
      local own <close> = assert(core.open { url = url })
      assert.equal(0, (own:prune(math.mininteger, math.mininteger, 1))) -- it is locked
      return true
    end))
    as_host(handle._handle)
    assert.equal("ready", handle:job(id).state)
  end)

  it("by pages of the key, without a sort and without reading rows", function()
    ended("q", "done", 5000, DAY, 0)
    db.sql("ANALYZE TABLE nightshift_finished", name)
    local big = math.maxinteger
    for statement, params in pairs { prune_count = { "done", big, big, big, 1000 },
      prune_page = { "done", 0, 0, 0, DAY, 0, 1000 } } do
      local rows = assert(handle:execute(plans.question(statement), table.unpack(params)))
      assert.same({ 1, "outcome" }, { #rows, rows[1].key })
      assert.matches("Using index", rows[1].Extra)
      assert.is_nil(rows[1].Extra:find("filesort", 1, true))
    end
    for _, row in ipairs(assert(handle:execute(plans.question "prune_chosen", DAY, "[[1,1]]", "done"))) do
      if row.table == "f" then assert.same({ "PRIMARY", "eq_ref" }, { row.key, row.type }) end
    end
  end)
end)

describe("hosts and programs that delete at one moment", function()
  it("leave what the rules keep, though they are killed in the middle", function()
    ended("q", "dead", 6000, DAY, 0)
    ended("other", "dead", 3000, DAY, 100000)
    assert(handle:retain("q", { dead = { count = 50 } }))
    local c = crew.fork(6, function()
      local own <close> = assert(core.open { url = url })
      as_host(own)
    end)
    eventually(function() return left("q", "dead") < 5000 end)
    for i = 1, 3 do c:kill(i) end
    eventually(function() -- rows of a batch that another one is at are passed by
      as_host(handle._handle)
      return left("q", "dead") <= 50
    end)
    assert.same({ 50, 5951, 3000 }, { left("q", "dead"), one "SELECT MIN(id) FROM nightshift_finished",
      left("other", "dead") })
  end)

  it("obey a rule that is set while they run", function()
    ended("q", "dead", 1500, DAY, 0)
    local hosts = {}
    for i = 1, 2 do hosts[i] = host.start(url, "return { a = function() end }") end
    assert(handle:retain("q", { dead = { age = "90d", count = 20 } }))
    eventually(function() return left("q", "dead") < 1500 end, 60)
    hosts[1]:signal "KILL"
    hosts[1]:wait()
    eventually(function() return left("q", "dead") == 20 end, 60)
    hosts[2]:signal "TERM"
    assert.equal(0, hosts[2]:wait())
    assert.equal(1481, one "SELECT MIN(id) FROM nightshift_finished")
  end)
end)
