-- Jobs that wait for a word from outside.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

describe("signals:", function()
  local url, name, handle, q

  with_database(function(...) handle, q, url, name = ... end)

  local function parked(opts)
    local id = assert(q:push "job")
    assert(q:claim():wait(opts))
    return id
  end

  describe("a job that waits for a signal", function()
    it("runs when it comes, with its value", function()
      local id = parked { signal = "approved" }
      assert.is_nil(q:claim())
      assert.equal("waiting", handle:job(id).state)
      assert(handle:signal(id, { by = "me" }, "approved"))
      local job = assert(q:claim())
      assert.same({ id, 1, 1, { by = "me" } }, { job.id, job.phase, job.attempt, job.signal })
      assert(job:ack())
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_signal", name)))
    end)

    it("runs when one without a name comes, not when another does", function()
      local id = parked { signal = "approved" }
      assert(handle:signal(id, 1, "other"))
      assert.is_nil(q:claim())
      assert(handle:signal(id, 2))
      assert.equal(2, assert(q:claim()).signal)
    end)

    it("does not wait for what has come before", function()
      local id = assert(q:push "job")
      assert(handle:signal(id, "early", "approved"))
      assert(q:claim():wait { signal = "approved" })
      assert.equal("early", assert(q:claim()).signal)
    end)

    it("runs at its deadline without one", function()
      local id = parked { signal = "approved", deadline = 0.3 }
      local job = assert(q:claim { wait = 20 })
      assert.equal(id, job.id)
      assert.is_nil(job.signal)
      assert.equal("approved", job.awaits)
    end)

    it("waits anew for each wait", function()
      local id = parked { signal = "a" }
      assert(handle:signal(id, 1, "a"))
      assert(q:claim():wait { signal = "a" })
      assert.is_nil(q:claim())
      assert(handle:signal(id, 2, "a"))
      assert.equal(2, assert(q:claim()).signal)
    end)

    it("keeps its value when the run with it fails", function()
      local id = parked { signal = "a" }
      assert(handle:signal(id, 1, "a"))
      assert(q:claim():fail("oh", { retry_in = 0 }))
      assert.equal(1, assert(q:claim { wait = 20 }).signal)
      assert.equal(id, handle:jobs()[1].id)
    end)

    it("hears SQL, and a sleeping host is woken", function()
      local h = host.start(url, [[return { job = function(job)
      if job.phase == 0 then return job:wait { signal = "approved", deadline = "1h" } end
      return job.signal
    end }]])
      local id = assert(q:push "job")
      eventually(function() return handle:execute("SELECT awaits FROM nightshift_job WHERE id = ?", id)[1].awaits end)
      db.sql(([[CALL nightshift_signal(%d, '{"yes":1}', 'approved'); CALL nightshift_ring()]]):format(id), name)
      assert.same({ yes = 1 }, eventually(function() return handle:job(id).result end))
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("that is not there: NOT_FOUND", function()
      assert.equal("NOT_FOUND", select(3, handle:signal(4711, 1)))
      local id = assert(q:push "job")
      assert(q:claim():ack())
      assert.equal("NOT_FOUND", select(3, handle:signal(id, 1)))
      assert.error_matches(function() db.sql(("CALL nightshift_signal(%d, '1', NULL)"):format(id), name) end,
        "no such live job")
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_signal", name)))
    end)

    it("tells null and false from nothing", function()
      local id = parked { signal = "a" }
      assert(handle:signal(id, nil, "a"))
      local job = assert(q:claim())
      assert.equal(nightshift.null, job.signal)
      assert(job:wait { signal = "a" })
      assert(handle:signal(id, false))
      assert.is_false(assert(q:claim()).signal)
    end)

    it("gets the last of several", function()
      local id = parked { signal = "a" }
      for i = 1, 3 do assert(handle:signal(id, i, "a")) end
      assert.equal(3, assert(q:claim()).signal)
      assert.is_nil(q:claim())
    end)

    it("takes one with a name and one without for two", function()
      local id = parked { signal = "a" }
      assert(handle:signal(id, "named", "a"))
      assert(handle:signal(id, "any"))
      local job = assert(q:claim())
      assert.equal("named", job.signal)
      assert(job:wait { signal = "a" })
      job = assert(q:claim())
      assert.equal("any", job.signal)
      assert(job:wait { signal = "a" })
      assert.is_nil(q:claim())
    end)

    it("is not given what came after its deadline until it waits again", function()
      local id = parked { signal = "a", deadline = 0.01 }
      local job = assert(q:claim { wait = 20 })
      assert(handle:signal(id, "late", "a"))
      assert.same({ nil, 1 }, { job.signal, job.phase })
      assert(job:wait { signal = "a" })
      assert.equal("late", assert(q:claim()).signal)
    end)

    it("has no signal left after it was polled again", function()
      local id = parked { signal = "a" }
      assert(handle:signal(id, 1, "a"))
      assert(q:claim():again(0))
      local job = assert(q:claim())
      assert.same({ id, nil, nil }, { job.id, job.signal, job.awaits })
    end)

    it("of a value that is too big is not told", function()
      local id = parked { signal = "a" }
      local big = ("x"):rep(2 << 20)
      assert.equal("TOO_BIG", select(3, handle:signal(id, big)))
      assert.error_matches(function()
        db.sql(("CALL nightshift_signal(%d, CONCAT('\"', REPEAT('x', 1048575), '\"'), NULL)"):format(id), name)
      end, "over 1 MiB")
      assert.error_matches(function() db.sql(("CALL nightshift_signal(%d, 'yes', NULL)"):format(id), name) end,
        "not valid JSON")
      assert.error_matches(function() db.sql(("CALL nightshift_signal(%d, NULL, NULL)"):format(id), name) end,
        "not valid JSON")
      assert.is_nil(q:claim())
      local generous <close> = assert(nightshift.open { url = url, max_payload = 4 << 20 })
      assert(generous:signal(id, big))
      assert.equal(big, assert(q:claim()).signal)
    end)

    it("hears nothing from a transaction that rolls back", function()
      local id = parked { signal = "a" }
      pcall(handle.transaction, handle, function(tx)
        assert(tx:signal(id, 1))
        error "no"
      end)
      db.sql(("BEGIN; CALL nightshift_signal(%d, '2', NULL); ROLLBACK"):format(id), name)
      assert.is_nil(q:claim())
      assert.equal("waiting", handle:job(id).state)
      assert(handle:transaction(function(tx) assert(tx:signal(id, 3)) end))
      assert.equal(3, assert(q:claim()).signal)
    end)

    it("hears a trigger", function()
      local id = parked { signal = "approved" }
      db.sql([[CREATE TABLE approval (job BIGINT, who VARCHAR(20));
      CREATE TRIGGER approved AFTER INSERT ON approval FOR EACH ROW
        CALL nightshift_signal(NEW.job, JSON_OBJECT('by', NEW.who), 'approved')]], name)
      db.sql(("INSERT INTO approval VALUES (%d, 'me')"):format(id), name)
      assert.same({ by = "me" }, assert(q:claim()).signal)
      assert.error_matches(function() db.sql("INSERT INTO approval VALUES (4711, 'me')", name) end, "no such live job")
      assert.equal("1", (db.sql("SELECT COUNT(*) FROM approval", name)))
    end)

    it("may be run at once, without one", function()
      local id = parked { signal = "a" }
      assert(handle:run_now(id))
      local job = assert(q:claim())
      assert.same({ id, "a", nil }, { job.id, job.awaits, job.signal })
    end)

    it("that was cancelled and retried hears nothing of its former life", function()
      local id = parked { signal = "a" }
      assert(handle:signal(id, 1, "b"))
      assert(handle:cancel(id))
      assert(handle:retry(id))
      assert(q:claim():wait { signal = "b" })
      assert.is_nil(q:claim())
    end)

    it("leaves nothing behind once its history is pruned", function()
      local id = parked { signal = "a" }
      assert(handle:signal(id, 1, "b"))
      assert(handle:cancel(id))
      assert(handle:prune { dead = 0 })
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_signal", name)))
    end)
  end)

  describe("what comes while a job parks", function()
    -- Each round every sender is told a job, and sends after a random moment; the
    -- jobs are parked meanwhile.
    it("from 20 connections is never lost", function()
      local SENDERS, ROUNDS = 20, os.getenv "NIGHTSHIFT_LONG" and 25 or 12
      local folder = fixture.dir()
      local program = fixture.file("sender.lua", [[
      local db = assert(require "nightshift".open(arg[1]))
      local nst = require "nst"
      math.randomseed(tonumber(arg[3]))
      for line in io.lines(arg[2]) do
        nst.sleep(math.random() * 0.02)
        local id = math.tointeger(tonumber(line))
        assert(db:signal(id, id, math.random(2) == 1 and "go" or nil))
      end]])
      local senders, pipes = {}, {}
      for i = 1, SENDERS do
        local pipe = folder .. "/" .. i
        os.execute("mkfifo " .. pipe)
        senders[i] = proc.start { proc.lua, program, url, pipe, i }
        pipes[i] = assert(io.open(pipe, "w"))
        pipes[i]:setvbuf "line"
      end
      for _ = 1, ROUNDS do
        local items, told = {}, {}
        for i = 1, SENDERS do items[i] = { "job" } end
        assert(q:push_many(items))
        local jobs = assert(q:claim_many(SENDERS))
        for i, job in ipairs(jobs) do pipes[i]:write(job.id, "\n") end
        for _, job in ipairs(jobs) do assert(job:wait { signal = "go", deadline = "1h" }) end
        for _ = 1, SENDERS do
          local job = assert(q:claim { wait = 30 }, "lost")
          assert.same({ job.id, 1, nil }, { job.signal, job.phase, told[job.id] })
          told[job.id] = true
          assert(job:ack())
        end
      end
      for i, pipe in ipairs(pipes) do
        pipe:close()
        assert.equal(0, senders[i]:wait(120), senders[i]:transcript())
      end
      assert.equal("0 0 0", (db.sql([[SELECT CONCAT((SELECT COUNT(*) FROM nightshift_job), ' ',
      (SELECT COUNT(*) FROM nightshift_scheduled), ' ', (SELECT COUNT(*) FROM nightshift_signal))]], name)))
    end)
  end)

  describe("a job of a host that waits for a signal", function()
    local WAITER = [[return { job = function(job)
      local trace = io.open(job.payload, "a")
      trace:write(job.phase, " ", tostring(job.signal), "\n")
      trace:close()
      if job.phase == 0 then return job:wait { signal = "go", deadline = "1h" } end
      if job.signal == "die" and job.crashes == 0 then os.execute "kill -9 $PPID" end
      return job.signal
    end }]]

    local function awaits(h, id)
      return eventually(function() return h:execute("SELECT awaits FROM nightshift_job WHERE id = ?", id)[1].awaits end)
    end

    local function lines(path)
      local list = {}
      for line in io.lines(path) do list[#list + 1] = line end
      return list
    end

    it("gets it when its worker, and when its host was killed", function()
      local trace = fixture.dir() .. "/trace"
      local h = host.start(url, WAITER)
      local id = assert(q:push("job", trace))
      awaits(handle, id)
      h:signal "KILL"
      h:wait()
      assert(handle:signal(id, "die", "go"))
      h = host.start(url, WAITER)
      assert.equal("die", eventually(function() return handle:job(id).result end))
      assert.same({ "0 nil", "1 die", "1 die" }, lines(trace))
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("gets it when the server was killed before, and after", function()
      local server = db.server()
      local there = server:fresh()
      local trace = fixture.dir() .. "/trace"
      local h = host.start(there, WAITER)
      local sender = assert(nightshift.open(there))
      local there_q = sender:queue "q"
      local before, after = assert(there_q:push("job", trace)), assert(there_q:push("job", trace .. 2))
      awaits(sender, before)
      awaits(sender, after)
      h:signal "STOP" -- so that it does not hear of the second
      assert(sender:signal(after, 2))
      server:kill()
      assert.equal("GONE", select(3, sender:signal(before, 1)))
      server:start()
      assert(sender:signal(before, 1))
      h:signal "CONT"
      assert.equal(1, eventually(function() return sender:job(before).result end, 60))
      assert.equal(2, eventually(function() return sender:job(after).result end, 60))
      assert.same({ "0 nil", "1 1" }, lines(trace))
      assert.same({ "0 nil", "1 2" }, lines(trace .. 2))
      sender:close()
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end)
end)

-- A signal that came while the run was at work that the one before it had woken was deleted
-- with that run's verdict. A job that waits for one after the other missed it and slept until
-- its deadline.
describe("a signal that comes while the one before is dealt with", function()
  it("satisfies the next wait", function()
    local handle <close> = assert(nightshift.open((db.fresh())))
    local q = handle:queue "q"
    local id = assert(q:push "job")
    assert(q:claim():wait { signal = "message" })
    for i = 1, 5 do
      if i == 1 then assert(handle:signal(id, 1, "message")) end
      local job = assert(q:claim())
      assert.equal(i, job.signal)
      assert(handle:signal(id, i + 1, "message"))
      assert(job:wait { signal = "message" })
    end
  end)
end)

-- A job that had waited for a signal and then failed, or polled, ran at once when another
-- signal of that name came. Their sender could undo its backoff. It was shown as waiting, too.
describe("a job that has waited for a signal", function()
  local handle, q, id

  with_database(function(...)
    handle, q = ...
    id = assert(q:push "job")
    assert(q:claim():wait { signal = "a" })
    assert(handle:signal(id, 1, "a"))
  end)

  it("keeps to its backoff, and is given the newest afterwards", function()
    assert(q:claim():fail("oh", { retry_in = "1h" }))
    assert(handle:signal(id, 2, "a"))
    assert.is_nil(q:claim())
    assert.equal("scheduled", handle:job(id).state)
    assert(handle:run_now(id))
    assert.equal(2, assert(q:claim()).signal)
  end)

  it("keeps to its pace, and hears it at its next wait", function()
    assert(q:claim():again "1h")
    assert(handle:signal(id, 2, "a"))
    assert.is_nil(q:claim())
    assert.equal("scheduled", handle:job(id).state)
    assert(handle:run_now(id))
    local job = assert(q:claim())
    assert.is_nil(job.signal)
    assert(job:wait { signal = "a" })
    assert.equal(2, assert(q:claim()).signal)
  end)
end)

-- A signal moved the job's row in scheduled and left its due time at the deadline. Until it was
-- promoted the job was "waiting", and another priority in between scheduled it for the deadline
-- again, without a second signal for ever.
describe("a job whose signal has come", function()
  local handle, q
  with_database(function(...) handle, q = ... end)

  it("is ready, and stays so with another priority", function()
    local id = assert(q:push "job")
    assert(q:claim():wait { signal = "go" })
    assert.equal("waiting", handle:job(id).state)
    assert(handle:signal(id, 1, "go"))
    assert.equal("ready", handle:job(id).state)
    assert(handle:reprioritise(id, 7))
    local job = assert(q:claim())
    assert.same({ id, 7, 1 }, { job.id, job.priority, job.signal })
  end)
end)

-- A job that had once waited for a signal looked as if it still did, whenever it was due later.
-- It was "waiting" while it polled or stood in its backoff, and any further signal cut its
-- delay short.
describe("a job that has waited for a signal", function()
  local handle, q, id
  with_database(function(...)
    handle, q = ...
    id = assert(q:push "job")
    assert(q:claim():wait { signal = "go" })
    assert(handle:signal(id, 1, "go"))
  end)

  for verb, give in pairs {
    again = function(job) return job:again(3600) end,
    fail = function(job) return job:fail("no", { retry_in = 3600 }) end,
  } do
    it("is scheduled after " .. verb .. ", and another signal does not hurry it", function()
      assert(give(assert(q:claim())))
      assert.equal("scheduled", handle:job(id).state)
      assert.equal("scheduled", handle:jobs({})[1].state)
      assert(handle:signal(id, 2, "go"))
      assert.equal("scheduled", handle:job(id).state)
      assert.is_nil(q:claim())
      assert.equal(id, handle:jobs({ state = "scheduled" })[1].id)
      assert.same({}, handle:jobs { state = "waiting" })
    end)
  end
end)

-- A job past its own deadline waited for a signal, as handlers do that ask `if job.signal ==
-- nil` and not for the phase. It ran again at once, without end: a thousand runs a second.
describe("a job that waits for a signal after its own deadline", function()
  local handle, q

  with_database(function(...) handle, q = ... end)

  --- A job that has had a run after its deadline.
  local function late()
    local id = assert(q:push("a", nil, { deadline = 2 }))
    assert(q:claim():wait { signal = "go" })
    local job = assert(q:claim { wait = 20 })
    assert.is_nil(job.signal)
    return id, job
  end

  it("is dead, and what it waited with is not left behind", function()
    local id, job = late()
    local child = assert(job:spawn "child")
    assert(job:wait { signal = "go" })
    assert.is_nil(q:claim { strict = true })
    local info = handle:job(id)
    assert.same({ "dead", "deadline", 2 }, { info.state, info.reason, info.run })
    assert.equal("dead", handle:job(child).state)
  end)

  it("runs when the signal is there already", function()
    local id, job = late()
    assert(handle:signal(id, 7, "go"))
    assert(job:wait { signal = "go" })
    job = assert(q:claim())
    assert.equal(7, job.signal)
    assert(job:ack())
  end)

  it("is found by a deadline that is set while it is parked", function()
    local id = assert(q:push "a")
    assert(q:claim():wait { signal = "go" })
    assert(handle:deadline(id, 0.1))
    nst.sleep(0.2)
    local job = q:claim { wait = 3 }
    if job then assert(job:wait { signal = "go" }) end
    assert.equal("dead", handle:job(id).state)
  end)
end)
