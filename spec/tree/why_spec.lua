-- Why a job is not running: the sentence and the facts, for each reason there is.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

describe("reasons:", function()
  local url, name, handle, q

  with_database(function(...) handle, q, url, name = ... end)

  local function why(id)
    local text, fact = assert(handle:why(id))
    assert.equal(id, fact.id)
    assert.matches("^#" .. id .. " '", text)
    assert.is_nil(text:find("\n", 1, true))
    return text, fact
  end

  -- Fields of the facts, and that the sentence has these words.
  local function says(id, kind, ...)
    local text, fact = why(id)
    assert.equal(kind, fact.kind, text)
    for _, words in ipairs { ... } do assert.is_truthy(text:find(words, 1, true), text) end
    return fact, text
  end

  local function eventually_says(id, kind, words)
    return eventually(function()
      local text, fact = why(id)
      return fact.kind == kind and (not words or text:find(words, 1, true)) and fact, text
    end)
  end

  -- A host that runs nothing here has to be of a queue that matters.
  local SLEEPS = [[return { nap = function(job) os.execute 'sleep 600' end, other = function() end,
  steps = function(job) job:progress(0.5, "half way"); os.execute 'sleep 600' end }]]

  local function end_host(h)
    h:signal "QUIT"
    h:wait()
  end

  describe("why, of a job that has ended,", function()
    it("says how, when and by what error", function()
      local done = assert(q:push "a")
      assert(q:claim():ack())
      local fact = says(done, "finished", "#" .. done .. " 'a' ended ", " s ago: done")
      assert.same({ "done", "a", "q" }, { fact.outcome, fact.name, fact.queue })
      local dead = assert(q:push("b", nil, { max_attempts = 1 }))
      assert(q:claim():fail "boom\nat line 3")
      fact = says(dead, "finished", "dead (failed): boom")
      assert.same({ "dead", "failed" }, { fact.outcome, fact.reason })
      local cancelled = assert(q:push "c")
      assert(handle:cancel(cancelled, { reason = "no more need" }))
      fact = says(cancelled, "finished", "cancelled: no more need")
      assert.same({ "no more need" }, { fact.reason, fact.error })
    end)

    it("or was never there, says NOT_FOUND", function()
      local text, message, code = handle:why(4711)
      assert.same({ nil, "NOT_FOUND" }, { text, code })
      assert.matches("4711", message)
      assert.has_error(function() handle:why "1" end)
    end)
  end)

  describe("why, of a job that somebody has,", function()
    it("says who and since when", function()
      local id = assert(q:push "a")
      local job = assert(q:claim())
      local fact = says(id, "running", "has been running for ", "(pid ")
      assert.equal(handle:execute("SELECT id FROM nightshift_holder")[1].id, fact.holder)
      db.sql("UPDATE nightshift_job SET paused = id", name)
      assert.equal(id, says(id, "running", "; it is paused when it comes back").by)
      assert(job:ack())
    end)

    it("says how far it is", function()
      local id = assert(q:push "steps")
      local h = host.start(url, SLEEPS)
      eventually_says(id, "running", "50% done: half way")
      assert.same({ 0.5, "half way" }, { select(2, why(id)).progress, select(2, why(id)).status })
      end_host(h)
    end)

    it("says that it waits there for a worker", function()
      local first = assert(q:push "nap")
      local h = host.start(url, SLEEPS, { "--workers", "1" })
      eventually(function() return handle:execute("SELECT 1 FROM nightshift_running")[1] end)
      local second = assert(q:push "other")
      local fact = eventually(function()
        local _, f = why(second)
        return f.kind == "busy" and f
      end)
      assert.equal(1, fact.workers)
      says(first, "running")
      end_host(h)
    end)

    it("says when that one is gone", function()
      local id = assert(q:push "nap")
      local h = host.start(url, SLEEPS)
      eventually_says(id, "running")
      h:signal "KILL"
      h:wait()
      eventually_says(id, "lost", "which is gone; whatever host lives gives it back")
      assert(handle:rescue())
      says(id, "no_host")
    end)
  end)

  describe("why, of a job that waits for a lock,", function()
    local LOCKS = [[return {
    locks = function(job)
      job:progress(0.1, "before")
      local held <close> = assert(job:db():lock("report"):acquire(600))
      job:log "got it"
      while not job:cancelled() do require "nightshift.core".sleep(0.05) end
    end }]]

    it("says who has it, and what it said before when it has it", function()
      local held = assert(handle:lock("report"):acquire())
      local id = assert(q:push "locks")
      local h = host.start(url, LOCKS)
      local fact = eventually_says(id, "limit", "and waits for the lock 'report', held by ")
      assert.same({ "report", 1 }, { fact.lock, #fact.held_by })
      assert.is_truthy(fact.held_by[1].pid)
      assert(held:release())
      eventually_says(id, "running", "10% done: before")
      local next_one = assert(q:push "locks")
      fact = eventually_says(next_one, "limit", ("held by #%d 'locks'"):format(id))
      assert.equal(id, fact.held_by[1].id)
      end_host(h)
    end)
  end)

  describe("why, of a job that waits,", function()
    it("names those it waits for, and follows them to the cause", function()
      local fetch = assert(q:push("fetch", nil, { delay = 240 }))
      local sibling = assert(q:push "sibling")
      local scan = assert(q:push("scan", nil, { after = { fetch } }))
      local join = assert(q:push("join", nil, { after = { scan, sibling } }))
      local fact = says(join, "waits", ("waits for #%d 'scan' and 1 more; #%d 'scan' waits for #%d 'fetch'; ")
        :format(scan, scan, fetch), ("; #%d 'fetch' is scheduled, due in 3 min 5"):format(fetch))
      assert.equal(2, fact.left)
      table.sort(fact.on, function(a, b) return a.id < b.id end)
      assert.same({ { sibling, "ready" }, { scan, "waiting" } },
        { { fact.on[1].id, fact.on[1].state }, { fact.on[2].id, fact.on[2].state } })
      assert.equal("scheduled", fact.cause.cause.kind)
      assert(handle:run_now(fetch))
      assert(q:claim_many(2)[2])
      says(scan, "waits", ("#%d 'fetch' has been running"):format(fetch))
    end)

    it("finds them wherever their ids are, and stops at some depth", function()
      local ids = { assert(q:push "first") }
      for i = 2, 12 do ids[i] = assert(q:push("next", nil, { after = { ids[i - 1] } })) end
      local fact = says(ids[12], "waits")
      local depth = 1
      while fact.cause do fact, depth = fact.cause, depth + 1 end
      assert.is_true(depth >= 4 and depth < 8, "depth " .. depth)
      db.sql(("INSERT INTO nightshift_edge SELECT seq, 900000 FROM seq_%d_to_%d"):format(100000, 120000), name)
      says(ids[2], "waits", "#" .. ids[1])
    end)

    it("says that they have all ended, when nobody has told it", function()
      local a = assert(q:push "a")
      local b = assert(q:push("b", nil, { after = { a } }))
      local parent = assert(q:push("parent", nil, { priority = 200 }))
      local job = assert(q:claim())
      local kid = assert(job:spawn "kid")
      assert(job:wait())
      assert(q:claim_many(2)[2])
      assert(handle:cancel(a))
      assert(handle:cancel(kid))
      db.sql(([[DELETE FROM nightshift_finished WHERE id IN (%d, %d);
      INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes, backoff,
        timeout, created, due, unmet, nonce, waits)
      VALUES (%d, 1, 'b', '1', 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, NULL),
        (%d, 1, 'p', '1', 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 'fail');
      INSERT INTO nightshift_edge VALUES (%d, %d), (%d, %d)]]):format(b, parent, b, parent, a, b, kid, parent), name)
      assert.equal(("#%d 'b' waits for #%d 'a': all over; the next host that looks around lets it go on"):format(b, a),
        (why(b)))
      says(parent, "waits_children", "all over")
    end)

    it("is not led around in a circle", function()
      local a = assert(q:push "a")
      local b = assert(q:push("b", nil, { after = { a } }))
      db.sql(("INSERT INTO nightshift_edge VALUES (%d, %d); UPDATE nightshift_job SET unmet = 1 WHERE id = %d;"
        .. "DELETE FROM nightshift_ready WHERE job_id = %d"):format(b, a, a, a), name)
      says(a, "waits")
    end)

    it("counts its children and names the one that holds it up", function()
      local parent = assert(q:push "parent")
      local job = assert(q:claim())
      local kids = {}
      for i = 1, 5 do kids[i] = assert(job:spawn("kid", i, i == 5 and { delay = 60 } or nil)) end
      assert(job:wait { on_fail = "continue" })
      for _ = 1, 2 do assert(q:claim():ack()) end
      local fact = says(parent, "waits_children", "waits for its children: 2 of 5 have ended; #")
      assert.same({ 2, 3, 5, "continue" }, { fact.done, fact.left, fact.total, fact.on_fail })
      for _ = 1, 2 do assert(q:claim():ack()) end
      says(parent, "waits_children", "4 of 5", ("#%d 'kid' is scheduled, due in "):format(kids[5]))
    end)

    it("finds the last one among very many children", function()
      local parent = assert(q:push "parent")
      local job = assert(q:claim())
      local kid = assert(job:spawn("kid", 1, { delay = 60 }))
      assert(job:wait())
      db.sql(("INSERT INTO nightshift_child SELECT %d, 0, -CAST(seq AS SIGNED) FROM seq_1_to_12000"):format(parent),
        name)
      local fact = says(parent, "waits_children", "12000 of 12001 have ended", ("; #%d 'kid' is scheduled"):format(kid))
      assert.equal(kid, fact.on[1].id)
    end)

    it("names a signal, and until when", function()
      local id = assert(q:push "a")
      assert(q:claim():wait { signal = "approved", deadline = "1h" })
      local fact = says(id, "waits_signal", "waits for the signal 'approved', for 59 min 5")
      assert.equal("approved", fact.signal)
      local ever = assert(q:push "b")
      assert(q:claim():wait { signal = "word" })
      assert.matches("'word'$", (why(ever)))
    end)

    it("says whose pause holds it", function()
      local root = assert(q:push "root")
      local kid = assert(q:push("kid", nil, { parent = root }))
      db.sql(("UPDATE nightshift_job SET paused = %d, unmet = unmet + 1; DELETE FROM nightshift_ready"):format(root),
        name)
      assert.equal(("#%d 'root' is paused"):format(root), (why(root)))
      local fact = says(kid, "paused", ("is paused with #%d 'root', above it"):format(root))
      assert.equal(root, fact.by)
      db.sql("UPDATE nightshift_job SET unmet = unmet + 2", name)
      says(kid, "paused", "and waits for 2 other jobs besides")
    end)
  end)

  describe("why, of a job that is due later,", function()
    it("says when", function()
      local id = assert(q:push("a", nil, { delay = "2h" }))
      local fact = says(id, "scheduled", "is scheduled, due in 1 h 59 min")
      assert.equal(handle:job(id).due, fact.due)
      assert(q:pause())
      assert.is_true(says(id, "scheduled", "and its queue 'q' is paused").queue_paused)
    end)

    it("says after what failure", function()
      local id = assert(q:push("a", nil, { max_attempts = 4 }))
      assert(q:claim():fail("no such host\nmore", { retry_in = 90 }))
      local fact = says(id, "retry", "is to be tried again in 1 min 2", "attempt 2 of 4, after it failed: no such host")
      assert.same({ 2, 4 }, { fact.attempt, fact.max_attempts })
    end)

    it("says how often it was asked", function()
      local id = assert(q:push("a", nil, { max_polls = 9, deadline = "1d" }))
      assert(q:claim():fail("once", { retry_in = 0 }))
      for i = 1, 2 do assert(assert(q:claim { wait = 20 }):again(i == 1 and 0 or 50)) end
      local fact = says(id, "poll", "polled again in 4", '"not yet" 2 times of at most 9',
        "its deadline is in 23 h 59 min")
      assert.same({ 2, 9 }, { fact.polls, fact.max_polls })
    end)
  end)

  describe("why, of a job that is ready,", function()
    it("says that its deadline has passed, and nobody has seen it", function()
      local first = assert(q:push("a", nil, { delay = 60 }))
      local second = assert(q:push("b", nil, { after = { first }, deadline = 60 }))
      local third = assert(q:push("c", nil, { deadline = 60 }))
      says(third, "no_host", "is ready, but there is no live host")
      db.sql(("UPDATE nightshift_job SET deadline = created WHERE id IN (%d, %d)"):format(second, third), name)
      says(second, "waits", ("waits for #%d 'a', but will not be started, for its deadline passed "):format(first),
        (" ago; #%d 'a' is scheduled"):format(first))
      local fact = says(third, "no_host", "no live host, but will not be started, for its deadline passed")
      assert.equal("float", math.type(fact.deadline))
      assert.is_nil(q:claim())
      says(third, "finished", "dead (deadline)")
    end)

    it("says that its queue is paused", function()
      local id = assert(q:push "nap")
      assert(q:pause())
      says(id, "queue_paused", "is ready, but its queue 'q' is paused")
    end)

    it("says that there is no host, or none for its queue", function()
      local id = assert(q:push "nap")
      local fact = says(id, "no_host", "there is no live host")
      assert.equal(0, fact.hosts)
      assert(handle:queue("own"):push "x")
      local job = assert(handle:queue("own"):claim()) -- now this handle is a program that claims
      says(id, "no_host", "one program claims jobs by itself, and may")
      assert(job:ack())
      local h = host.start(url, SLEEPS, { "--queues", "mail,web" })
      fact = eventually_says(id, "no_host", "no live host serves its queue 'q'; ")
      assert.matches("serves mail, web", (why(id)))
      assert.equal(1, fact.hosts)
      db.sql("DELETE FROM nightshift_served", name)
      says(id, "no_host", "a host is there, and did not tell what for")
      end_host(h)
      says(id, "no_host", "there is no live host")
    end)

    it("says that nobody knows its handler", function()
      local id = assert(q:push "nobody")
      local h = host.start(url, SLEEPS)
      local fact = eventually_says(id, "no_handler",
        "is ready, but no live host that serves 'q' has a handler 'nobody'; known: nap, other, steps")
      assert.same({ "nap", "other", "steps" }, fact.known)
      db.sql("UPDATE nightshift_ready SET kind = 0", name) -- of a program that writes none
      assert(q:push "nap")
      local later = assert(q:push("nobody", nil, { delay = 60 }))
      says(later, "scheduled", "is scheduled, due in 5", " s; no live host that serves 'q' has a handler 'nobody' now")
      eventually_says(id, "no_handler", "no handler 'nobody' (known now: nap, other, steps); it is dead in 9 min")
      end_host(h)
    end)

    it("says that its hosts are quiet", function()
      local h = host.start(url, SLEEPS)
      h:signal "TSTP"
      local id
      eventually(function() return db.sql("SELECT workers FROM nightshift_served", name) == "0" end)
      id = assert(q:push "nap")
      says(id, "quiet", "take no jobs now")
      h:signal "CONT"
      eventually_says(id, "running")
      end_host(h)
    end)

    it("says that all workers are busy, and how many jobs come before it", function()
      assert(q:push_many { { "nap" }, { "nap" } })
      local h = host.start(url, SLEEPS)
      eventually(function() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_running")[1].n == 2 end)
      local ids = {}
      for i = 1, 40 do ids[i] = assert(q:push "nap") end
      local fact = eventually(function()
        local _, f = why(ids[40])
        return f.kind == "busy" and f.ahead and f
      end)
      assert.same({ 2, 0 }, { fact.workers, fact.free })
      assert.is_true(fact.ahead > 0 and fact.ahead < 40)
      says(ids[40], "busy", ("all 2 workers for it are busy; %d jobs come before it"):format(fact.ahead))
      local urgent = assert(q:push("nap", nil, { priority = 200 }))
      assert.is_true(select(2, why(urgent)).kind == "busy")
      local many = {}
      for i = 1, 1500 do many[i] = { "nap" } end
      local last = assert(q:push_many(many))[1500]
      assert.is_true(says(last, "busy", "at least 10").ahead_at_least)
      end_host(h)
    end)

    it("says that it comes next, alone", function()
      local h = host.start(url, SLEEPS)
      eventually(function() return db.sql("SELECT workers FROM nightshift_served", name) == "2" end)
      h:signal "STOP" -- it lives, and claims nothing
      local id = assert(q:push "nap")
      local fact = says(id, "ready", "is ready, and it comes next")
      assert.same({ 2, 2, 0 }, { fact.workers, fact.free, fact.ahead })
      db.sql("UPDATE nightshift_job SET lost = 2", name)
      assert.is_true(says(id, "ready", "it is claimed alone, for its holders have died with it").alone)
      h:signal "KILL"
      h:wait()
    end)
  end)

  describe("what a host can run", function()
    local function served()
      local text = db.sql("SELECT s.holder, s.workers, s.queues, s.handlers FROM nightshift_served s "
        .. "WHERE s.ended IS NULL", name)
      return text
    end

    it("is told from its start on, anew after a reload, and no more after its end", function()
      local h = host.start(url, [[return { ["it's, \"a\""] = function() end }]], { "--queues", "q=3,w" })
      local row = eventually(function() return served() ~= "" and served() end)
      assert.matches('\t2\t%["q","w"%]\t%["it\'s, \\"a\\""%]$', row)
      local file <close> = assert(io.open(h.script, "w"))
      file:write [[return { b = function() end, c = function() end }]]
      file:close()
      h:signal "HUP"
      assert.matches('handlers=2 names="b, c"', (h:wait_line ".*reload.done.*"))
      eventually(function() return served():find('["b","c"]', 1, true) end)
      h:signal "TERM"
      assert.equal(0, h:wait())
      assert.equal("", served())
    end)

    it("is told under its new id by one that was declared dead", function()
      local h = host.start(url, SLEEPS)
      local row = eventually(function() return served() ~= "" and served() end)
      local before = row:match "^%d+"
      db.sql(("UPDATE nightshift_holder SET dead = 1 WHERE id = %s"):format(before), name)
      assert(q:push "other") -- a cycle, in which it finds out
      local after = eventually(function()
        local id = db.sql("SELECT s.holder FROM nightshift_served s JOIN nightshift_holder h ON h.id = s.holder "
          .. "WHERE h.dead IS NULL", name)
        return id ~= "" and id
      end)
      assert.not_equal(before, after)
      end_host(h)
    end)

    it("goes with the row of a holder that died long ago", function()
      local h = host.start(url, SLEEPS)
      local row = eventually(function() return served() ~= "" and served() end)
      h:signal "KILL"
      h:wait()
      db.sql("UPDATE nightshift_holder SET dead = 1", name)
      h = host.start(url, SLEEPS)
      eventually(function()
        local rows = served()
        return rows ~= "" and not rows:find("\n", 1, true) and rows:match "^%d+" ~= row:match "^%d+"
      end)
      end_host(h)
    end)

    it("is cut, not wrong, when there is too much of it", function()
      local h = host.start(url, [[
      local all = {}
      for i = 1, 1000 do all[("handler%090d"):format(i)] = function() end end
      all.zzz = function() os.execute 'sleep 600' end
      return all]])
      eventually(function() return db.sql("SELECT RIGHT(handlers, 6) FROM nightshift_served", name) == ',null]' end)
      h:signal "STOP"
      says(assert(q:push "zzz"), "ready")
      h:signal "KILL"
      h:wait()
    end)
  end)
end)

-- db:why counted a worker that is reserved for another queue as free. A job that it would never
-- take "is ready, and it comes next" for as long as the rest were busy.
describe("why, with workers that are reserved,", function()
  local NAP = [[return { nap = function() os.execute "sleep 600" end }]]

  it("counts those who may take the job", function()
    local url <const> = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local slow, fast = handle:queue "slow", handle:queue "fast"
    local h = host.start(url, NAP, { "--workers", "3", "--queues", "slow,fast", "--reserve", "fast=2" })
    local function running(n)
      eventually(function() return #handle:execute "SELECT 1 FROM nightshift_running" == n end)
    end
    local function says(id, words, workers, free)
      local fact = eventually(function()
        local text, fact = handle:why(id)
        return text:find(words, 1, true) and fact, text
      end)
      assert.same({ "busy", workers, free }, { fact.kind, fact.workers, fact.free })
    end
    assert(slow:push "nap")
    running(1)
    says(assert(slow:push "nap"), "the only worker for it is busy; it comes next", 1, 0)
    for _ = 1, 2 do assert(fast:push "nap") end
    running(3)
    says(assert(fast:push "nap"), "all 3 workers for it are busy; it comes next", 3, 0)
    h:signal "QUIT"
    h:wait(20)
  end)
end)

-- A host had jobs that had been short and then were long. It claimed further ones ahead, sent
-- them behind the long ones, took them back after 20 ms and claimed them again. Those were fifty
-- commits a second and as many runs of each job, for as long as the long ones took. db:why said
-- that it "has been running for 0.0 s".
describe("a host whose workers all have a long job", function()
  local SCRIPT = [[return { short = function() end, long = function() os.execute "sleep 600" end }]]

  it("leaves what it would claim ahead to others", function()
    local url <const> = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    for i = 1, 300 do assert(q:push("short", i)) end
    local h = host.start(url, SCRIPT)
    eventually(function() return #handle:jobs { state = "done", limit = 300 } == 300 end)
    for _ = 1, 2 do assert(q:push "long") end
    eventually(function() return #handle:execute "SELECT 1 FROM nightshift_running" == 2 end)
    local id = assert(q:push "short")
    eventually(function() return handle:job(id).state == "ready" end)
    local run = handle:job(id).run
    for _ = 1, 5 do
      assert(q:push "short")
      nst.sleep(0.2)
      eventually(function()
        return handle:why(id):find("is ready, but all 2 workers for it are busy; it comes next", 1, true)
      end)
    end
    assert.is_true(handle:job(id).run - run <= 1, ("%d runs"):format(handle:job(id).run))
    h:signal "QUIT"
    h:wait(20)
  end)
end)

-- The reason of a cancel was kept as an error, and the log of the host said that the claim was
-- lost. Why counted the attempts of a job that crashes.
describe("cancelled:", function()
  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  describe("the reason of a cancel", function()
    it("is kept as it was said, whatever it is", function()
      for _, text in ipairs { "too slow", "dependency", "a\nb", ("ä"):rep(255), "\0" } do
        local id = assert(q:push "a")
        assert(handle:cancel(id, { reason = text }))
        assert.same({ "cancelled", text }, { handle:job(id).state, handle:job(id).reason })
        assert.is_nil(handle:job(id).error)
      end
    end)

    it("is whole in the error when it is long", function()
      local id, text = assert(q:push "a"), ("äö"):rep(400)
      assert(handle:cancel(id, { reason = text }))
      assert.same({ text:sub(1, 510), text }, { handle:job(id).reason, handle:job(id).error })
    end)

    it("is none when nothing was said", function()
      for _, opts in ipairs { {}, { reason = "" } } do
        local id = assert(q:push "a")
        assert(handle:cancel(id, opts))
        assert.same({ "cancelled" }, { handle:job(id).reason, handle:job(id).error })
        assert.matches("ago: cancelled$", (handle:why(id)))
      end
    end)

    it("is in the host's log, for all of a tree, and in what the handler sees", function()
      local h = host.start(url, [[return {
      parent = function(job)
        if job.phase == 0 then job:spawn "kid" return job:wait() end
      end,
      kid = function()
        print "runs"
        local ok, err = pcall(function() while true do os.execute "sleep 0.02" end end)
        print(err)
      end,
    }]])
      local id = assert(q:push "parent")
      h:wait_line "^runs"
      assert(handle:cancel(id, { tree = true, reason = "wrong file" }))
      h:wait_line "^cancelled: stopped at"
      local stop = host.events(select(2, h:text()), "job.stop")
      assert.equal(1, #stop)
      h:wait_line 'job.stop .*why="cancelled: wrong file"'
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end)

  it("why tells how many crashes a job has left", function()
    local id = assert(q:push("dies", nil, { delay = "1h" }))
    local name = url:match "/([^/?]+)%?"
    db.sql("UPDATE nightshift_job SET crashes = 2, run = 3 WHERE id = " .. id, name)
    db.sql("UPDATE nightshift_scheduled SET run = 3 WHERE job_id = " .. id, name)
    db.sql(([[INSERT INTO nightshift_attempt (job_id, run, kind, ended, error)
    VALUES (%d, 2, 'crashed', 1, 'killed by signal 9')]]):format(id), name)
    local text, fact = handle:why(id)
    assert.matches("is to be tried again in 59 min %d+ s, after it crashed, 2 of 5 crashes: killed by signal 9$", text)
    assert.same({ 2, 5 }, { fact.crashes, fact.max_crashes })
  end)
end)
