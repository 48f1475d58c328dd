-- Claims of some names, and hosts of different scripts: each leaves the jobs of other programs
-- alone, and is not slowed down by them.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

-- A row in ready or scheduled says which name it is of, whatever wrote it: a claim of
-- some names reads no job to know. Rows that did not say so were open to every claim.
describe("a row of what may be claimed says the kind of its job", function()
  local handle, q, name

  with_database(function(opened, queue, _, at) handle, q, name = opened, queue, at end)

  -- Rows that say something else than their job, and how many there are.
  local function wrong(where)
    local text = db.sql([[SELECT COUNT(*), COALESCE(SUM(r.kind <> CRC32(j.name)), 0) FROM
    (SELECT job_id, kind FROM nightshift_ready WHERE job_id > 0
     UNION ALL SELECT job_id, kind FROM nightshift_scheduled) r
    JOIN nightshift_job j ON j.id = r.job_id]], name)
    local rows, bad = text:match "(%d+)%s+(%d+)"
    assert.is_true(tonumber(rows) > 0, where .. ": there is no row")
    assert.equal("0", bad, where)
  end

  it("when it is pushed", function()
    for i, options in ipairs { {}, { delay = 60 }, { unique = "k" }, { unique = "l", delay = 60 }, { priority = 3 } } do
      assert(q:push("grüße." .. i, i, options))
    end
    assert(q:push_many { { "a", 1 }, { "b", 2, { delay = 60 } }, { "c", 3, { unique = "m" } }, { "d", 4 } })
    wrong "push"
    db.sql([[CALL nightshift_push('default', 'sql.grüße', '1', NULL);
      CALL nightshift_push('default', 'later', '1', '{"delay":60}')]], name)
    wrong "CALL nightshift_push"
  end)

  it("when it comes back", function()
    local ids = {}
    for i, verb in ipairs { "release", "fail", "again", "wait" } do
      ids[i] = assert(q:push("back." .. verb, i, { backoff = 60 }))
      local job = assert(q:claim())
      assert(job[verb](job, verb == "again" and 60 or verb == "wait" and { signal = "s" } or "why"))
      wrong(verb)
      if verb == "release" then assert(q:claim():ack()) end
    end
    assert(handle:run_now(ids[2]))
    wrong "run_now"
    assert(handle:reprioritise(ids[3], 7))
    assert(handle:reprioritise(ids[2], 8))
    wrong "reprioritise"
    assert(handle:signal(ids[4], 1, "s"))
    wrong "signal"
    assert(handle:pause(ids[4]))
    assert(handle:resume(ids[4]))
    wrong "resume"
    db.sql("UPDATE nightshift_scheduled SET run_at = 1", name)
    assert(q:claim()) -- promotes
    wrong "promotion"
  end)

  it("when it is of a tree", function()
    local first = assert(q:push("first", 1))
    assert(q:push("second", 2, { after = { first } }))
    assert(q:claim():ack())
    wrong "after"
    assert(q:claim():ack())
    local parent = assert(q:push("parent", 1))
    local job = assert(q:claim())
    for i = 1, 3 do assert(job:spawn("kid." .. i, i, { delay = i == 3 and 60 or nil })) end
    assert(job:wait { on_fail = "continue" })
    wrong "children"
    for _ = 1, 2 do assert(q:claim():discard "so") end
    assert(handle:run_now(handle:execute("SELECT job_id FROM nightshift_scheduled")[1].job_id))
    assert(q:claim():ack())
    wrong "the parent, whose children have ended"
    assert(q:claim():discard "so")
    assert(handle:retry(parent, { tree = true }))
    assert.is_true(handle:job(parent).id == parent)
    wrong "retry of a tree"
  end)
end)

-- A claim took jobs of all names. What it could not run it gave back, and that came again after
-- 1, 2, 4 ... s. Programs with different handlers on one queue slowed each other, and a name
-- that no program knew was claimed again and again.
describe("names that a claim asks for:", function()
  local handle, q, url, name

  with_database(function(...) handle, q, url, name = ... end)

  local function names(jobs)
    local list = {}
    for i, job in ipairs(jobs) do list[i] = job.name end
    return list
  end

  -- Rows of a name that is not served, written as a foreign INSERT would.
  local function unserved(n, ready_at)
    db.sql(([[INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes,
      backoff,
      timeout, created, due, nonce)
    SELECT 10000000 + seq, 1, 'nobodys', '1', 100, 155, 1, 1, 1, 1000000, 1, 1, 1 FROM seq_1_to_%d;
    INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
    SELECT 1, 155, %s, 10000000 + seq, 1, CRC32('nobodys') FROM seq_1_to_%d]]):format(n, ready_at, n), name)
  end

  describe("a claim of some names", function()
    it("leaves jobs of other names as they are, ready", function()
      local ids = assert(q:push_many { { "a", 1 }, { "b", 2 }, { "c", 3 }, { "a", 4 }, { "b", 5, { priority = 255 } } })
      assert.same({ "a", "a" }, names(assert(q:claim_many(10, { names = { "a" } }))))
      assert.is_nil(q:claim { names = { "a" } })
      for _, i in ipairs { 2, 3, 5 } do
        local job = handle:job(ids[i])
        assert.same({ "ready", 1 }, { job.state, job.run })
      end
      local found = {} -- a claim that met other names looks at the next priority for 3 ms at most
      while #found < 3 do
        local more = assert(q:claim_many(10, { names = { "c", "b" }, wait = 20 }))
        table.move(names(more), 1, #more, #found + 1, found)
      end
      assert.same({ "b", "b", "c" }, found)
    end)

    it("is followed by one of all, or of others, that sees all", function()
      assert(q:push_many { { "a", 1 }, { "b", 2 }, { "a", 3 }, { "c", 4 } })
      assert.same({ "a", "a" }, names(assert(q:claim_many(10, { names = { "a" } }))))
      assert.same({ "c" }, names(assert(q:claim_many(10, { names = { "c" } }))))
      assert.same({ "b" }, names(assert(q:claim_many(10))))
    end)

    it("takes what comes back, is due, is signalled, and is pushed from SQL", function()
      local only = { names = { "a" }, wait = 20 }
      assert(q:push("b", 0))
      assert(q:push("a", 1, { backoff = 0.05, delay = 0.05 }))
      assert(q:claim(only)):fail "once"
      assert(q:claim(only)):release()
      local job = assert(q:claim(only))
      assert(job:wait { signal = "s" })
      assert(handle:signal(job.id, 1, "s"))
      assert(q:claim(only)):ack()
      db.sql("CALL nightshift_push('q', 'b', '1', NULL); CALL nightshift_push('q', 'a', '1', NULL)", name)
      assert(q:claim(only)):ack()
    end)

    it("wakes for those, and sleeps on for others", function()
      assert(q:push("b", 0))
      local other <close> = assert(nightshift.open(url))
      local sleeper = proc.start { proc.lua, "-e", ([[
      local q = require "nightshift".open(%q):queue "q"
      io.stderr:write "ready\n"
      local job = assert(q:claim{wait = 20, names = {"a"}})
      io.stderr:write("got ", job.name, "\n")
      job:ack()]]):format(url) }
      sleeper:wait_line("ready", 20)
      eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_listener", name) == "1" end, 20)
      assert(other:queue("q"):push("b", 1))
      assert(other:queue("q"):push("a", 1))
      sleeper:wait_line("got a", 20)
      assert.equal(0, sleeper:wait(20))
    end)

    it("gives a job back whose name has the same number", function()
      local twin = "codding" -- CRC32 is that of "gnu"
      assert.equal("1", db.sql(("SELECT CRC32('%s') = CRC32('gnu')"):format(twin), name))
      local id = assert(q:push(twin, 1))
      assert(q:push("gnu", 1))
      assert.same({ "gnu" }, names(assert(q:claim_many(10, { names = { "gnu" } }))))
      assert.equal("scheduled", handle:job(id).state)
    end)

    it("refuses what are no names", function()
      assert.same({ nil, "INVALID" }, { q:claim { names = {} }, select(3, q:claim { names = {} }) })
      assert.equal("INVALID", select(3, q:claim { names = { "a\nb" } }))
      assert.has_error(function() q:claim { names = "a" } end)
      assert.has_error(function() q:claim { names = { 1 } } end)
    end)
  end)

  -- Rows that a handle's session has read.
  local function reads(h)
    local n = 0
    for _, row in ipairs(assert(h:execute "SHOW SESSION STATUS LIKE 'Handler_read_%'")) do n = n + row.Value end
    return n
  end

  -- 500,000 with NIGHTSHIFT_LONG.
  local MANY = os.getenv "NIGHTSHIFT_LONG" and 500000 or 30000

  describe("behind many jobs that nobody serves", function()
    for _, at in ipairs { "seq", "7" } do
      local when = at == "7" and ", all of one instant" or ""

      it("a claim finds its own, and reads the others once" .. when, function()
        local id = assert(q:push("a", 0, { delay = 3600 }))
        unserved(MANY, at)
        local h2 <close> = assert(nightshift.open(url))
        local q2 = h2:queue "q"
        assert(q:push("a", 1))
        assert(q2:claim { names = { "a" } }):ack()
        local before = reads(h2)
        for i = 1, 20 do
          assert(q:push("a", i))
          assert(q2:claim { names = { "a" } }):ack()
        end
        local read = reads(h2) - before
        assert.is_true(read < 2 * MANY, read .. " rows read by 20 claims")
        -- one that is before all of them
        db.sql(([[DELETE FROM nightshift_scheduled WHERE job_id = %d; UPDATE nightshift_job SET due = 1 WHERE id = %d;
        INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
        VALUES (1, 155, 3, %d, 1, CRC32('a'))]]):format(id, id, id), name)
        assert.equal(id, assert(q2:claim { names = { "a" } }).id)
      end)
    end
  end)
end)

-- A host claimed every job of its queues. What it had no handler for came back after 1, 2, 4
-- ... 60 s and was dead after ten minutes. Two hosts with different scripts on one database
-- delayed each other's jobs by seconds, a host without handlers those of all hosts.
describe("scripts that differ:", function()
  local handle, q, url, name

  with_database(function(...) handle, q, url, name = ... end)

  local function ends(h)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end

  local function live(of)
    return tonumber((db.sql(("SELECT COUNT(*) FROM nightshift_job WHERE name = '%s'"):format(of), name)))
  end

  describe("hosts of one database with different scripts", function()
    it("leave each other's jobs alone", function()
      local a = host.start(url, "return { a = function() end }")
      local b = host.start(url, "return { b = function() end }")
      local none = host.start(url, "return {}")
      for i = 1, 20 do assert(q:push(i % 2 == 0 and "a" or "b", i)) end
      eventually(function() return live "a" + live "b" == 0 end)
      assert.equal("0\t1", (db.sql("SELECT MAX(missed), MAX(f.run) FROM nightshift_finished f "
        .. "LEFT JOIN nightshift_job j "
        .. "ON j.id = f.id", name):gsub("NULL", "0")))
      for _, h in ipairs { a, b, none } do
        ends(h)
        assert.is_nil(select(2, h:text()):find("job.no_handler", 1, true))
      end
    end)

    it("leave what nobody can run ready, and status, why and doctor say so", function()
      local id = assert(q:push("helo.say", 1))
      local h = host.start(url, "return { ['hello.say'] = function() end }")
      assert(q:push("hello.say", 1))
      eventually(function() return live "hello.say" == 0 end)
      local job = handle:job(id)
      assert.same({ "ready", 1 }, { job.state, job.run })
      local text = "no live host has a handler for 'helo.say' (1 in queue 'q'; did you mean 'hello.say'?)"
      eventually(function()
        return select(2, proc.nightshift({ "status" }, url)):find(text, 1, true) ~= nil
      end)
      assert.is_truthy(select(2, proc.nightshift({ "doctor" }, url)):find(text, 1, true))
      assert.is_truthy(select(2, proc.nightshift({ "why", id }, url)):find(
        "no live host that serves 'q' has a handler 'helo.say'; known: hello.say", 1, true))
      ends(h)
    end)

    it("leave what nobody can run when it is due, and status says so before", function()
      local h = host.start(url, "return { hello = function() end }")
      assert(q:push("helo", 1, { delay = 3600 }))
      assert(q:push("hello", 1, { delay = 3600 }))
      assert(q:push("bye", 1))
      assert(q:push("bye", 1, { delay = "200d" }))
      local asks = assert(q:push "ask")
      assert(q:claim { names = { "ask" } }):wait { signal = "ok" } -- due never
      assert.equal("waiting", handle:job(asks).state)
      local _, status = proc.nightshift({ "status" }, url)
      assert.is_truthy(status:find("for 'bye' (2 in queue 'q', 1 of them due later)\n", 1, true), status)
      assert.is_truthy(status:find("for 'helo' (1 in queue 'q', due later; did you mean 'hello'?)\n", 1, true), status)
      assert.equal(2, select(2, status:gsub("\nno live host has a handler for", "")))
      local rows = assert(handle:stats()).unserved
      assert.same({ { "bye", 2, 1 }, { "helo", 1, 1 } }, { { rows[1].name, rows[1].n, rows[1].later },
        { rows[2].name, rows[2].n, rows[2].later } })
      assert.same({ true, 0.0 }, { rows[1].waited > 0, rows[2].waited })
      local _, doctor = proc.nightshift({ "doctor" }, url)
      assert.is_nil(doctor:find("'helo'", 1, true)) -- nothing waits yet
      ends(h)
    end)

    it("say nothing of a name whose host ended within a minute", function()
      local a = host.start(url, "return { a = function() end }")
      local b = host.start(url, "return { b = function() end }")
      eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_served", name) == "2" end)
      ends(a)
      assert(q:push("a", 1))
      local stats = assert(handle:stats())
      assert.same({}, stats.unserved)
      db.sql("UPDATE nightshift_served SET ended = ended - 60000000", name)
      assert.equal("a", assert(handle:stats()).unserved[1].name)
      ends(b)
    end)

    it("claim what they have come to know with a reload, and no more what they have forgotten", function()
      local h = host.start(url, "return { a = function() end }")
      local id = assert(q:push("b", 1))
      assert(q:push("a", 1))
      eventually(function() return live "a" == 0 end)
      local file <close> = assert(io.open(h.script, "w"))
      file:write "return { b = function() end }"
      file:close()
      h:signal "HUP"
      eventually(function() return handle:job(id).state == "done" end)
      local other = assert(q:push("a", 1))
      assert(q:push("b", 1))
      eventually(function() return live "b" == 0 end)
      assert.equal("ready", handle:job(other).state)
      ends(h)
    end)

    it("claim only what --only names", function()
      local other = assert(q:push("b", 1))
      local h = host.start(url, "return { a = function() end, b = function() end }", { "--only", "a,nosuch" })
      assert(q:push("a", 1))
      eventually(function() return live "a" == 0 end)
      assert.equal("ready", handle:job(other).state)
      ends(h)
      assert.equal("nosuch", host.events(select(2, h:text()), "only.no_handler")[1].name)
    end)

    it("write one line a minute about a name that was claimed all the same", function()
      for i = 1, 100 do assert(q:push("nosuch", i)) end
      db.sql("UPDATE nightshift_ready SET kind = 0", name) -- as a program of before writes them
      local h = host.start(url, "return { a = function() end }")
      eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_job WHERE missed = 1", name) == "100" end)
      ends(h)
      assert.equal(1, #host.events(select(2, h:text()), "job.no_handler"))
    end)
  end)

  -- 500,000 with NIGHTSHIFT_LONG.
  local MANY = os.getenv "NIGHTSHIFT_LONG" and 500000 or 50000

  describe("behind many jobs that nobody serves", function()
    it("a host works as without them", function()
      db.sql(([[INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes,
        backoff, timeout, created, due, nonce)
      SELECT 10000000 + seq, 1, 'nobodys', '1', 100, 155, 1, 1, 1, 1000000, 1, 1, 1 FROM seq_1_to_%d;
      INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
      SELECT 1, 155, seq, 10000000 + seq, 1, CRC32('nobodys') FROM seq_1_to_%d]]):format(MANY, MANY), name)
      local h = host.start(url, "return { a = function() end }")
      for _ = 1, 20 do
        local items = {}
        for i = 1, 100 do items[i] = { "a", i } end
        assert(q:push_many(items))
      end
      eventually(function() return live "a" == 0 end, 60)
      assert.equal(tostring(MANY), (db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", name)))
      ends(h)
    end)
  end)
end)

-- `work --drain` with a job with a name that no script has waited for its death, minutes, and
-- ended with 0. And a drain of an adopted table ended while rows were open. A claim had read
-- before they were due, and the look at due rows came after that.
describe("a drain that leaves jobs which no script can run", function()
  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  local function drain(script, args)
    local h = host.spawn(url, script, args or { "--drain" })
    local code = h:wait(20)
    local _, err = h:text()
    return code, err
  end

  it("ends at once, names them and the nearest known name, and exits with 3", function()
    for i = 1, 3 do assert(q:push("helo.say", i)) end
    assert(q:push("hello.say", 1))
    local code, err = drain "return { ['hello.say'] = function() end, other = function() end }"
    assert.equal(3, code)
    assert.is_truthy(err:find("jobs are left that no script here can run: 'helo.say' (3 in queue 'q'; "
      .. "did you mean 'hello.say'?)", 1, true), err)
    assert.is_truthy(err:find("known here: hello.say, other", 1, true), err)
    assert.equal(3, #assert(handle:jobs { state = "ready" }))
  end)

  it("does so without any handler, and with --only", function()
    assert(q:push("a", 1))
    local code, err = drain "return {}"
    assert.equal(3, code)
    assert.is_truthy(err:find("'a' (1 in queue 'q')", 1, true), err)
    code = drain("return { a = function() end, b = function() end }", { "--drain", "--only", "b" })
    assert.equal(3, code)
  end)

  it("exits with 0 when all is done, or what is left is in other or paused queues", function()
    assert(q:push("a", 1))
    assert(handle:queue("other"):push("b", 1))
    assert(handle:queue("still"):push("b", 1))
    assert(handle:queue("still"):pause())
    assert.equal(0, (drain("return { a = function() end }", { "--drain", "--queues", "q,still" })))
    assert.equal(3, (drain "return { a = function() end }"))
  end)
end)

-- A claim of some names looks ahead a few thousand rows, so that it never goes through all that
-- lies there for other programs. While many jobs of one instant were worked off it looked
-- further and further ahead. And the claim behind the last of them went through it all. With
-- nothing but rows of other names ahead a claim failed with BUSY, and looked below them all
-- again and again.
describe("far behind one instant", function()
  local handle, q
  with_database(function(...) handle, q = ... end)

  local OWN <const>, OTHERS <const> = 40000, 80000

  local function reads()
    return tonumber(assert(handle:execute "SHOW SESSION STATUS LIKE 'Handler_read_next'")[1].Value)
  end

  it("jobs of one instant are claimed without a look at all that lies behind them", function()
    local items = {}
    for i = 1, 1000 do items[i] = { "own" } end
    for _ = 1, OWN // #items do assert(q:push_many(items)) end
    assert(handle:execute "UPDATE nightshift_ready SET ready_at = 1000 WHERE job_id > 0")
    assert(handle:execute(([[INSERT INTO nightshift_ready (queue_id, `rank`, ready_at, job_id, run, kind)
    SELECT queue_id, `rank`, 1000 + seq, %d + seq, 1, 4711 FROM seq_1_to_%d,
      (SELECT DISTINCT queue_id, `rank` FROM nightshift_ready WHERE job_id > 0) v]]):format(1 << 40, OTHERS)))
    local claimed, looks, last = 0, 0
    repeat
      local before = reads()
      local jobs = assert(q:claim_many(1000, { names = { "own" } }))
      last = reads() - before
      looks = looks + (last > 4000 and 1 or 0)
      claimed = claimed + #jobs
    until #jobs == 0
    assert.equal(OWN, claimed)
    assert.is_true(looks <= 3, looks) -- two, and the one that found no more
    assert.is_true(last <= 5 * OTHERS, last)
  end)
end)
