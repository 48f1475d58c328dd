-- Jobs that wait for the world outside. Polls: their budgets, state, cost and end, and phases
-- without end. Signals: each reaches the wait that it is for.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- Polling: its budgets, what it keeps, what it costs, how it ends; and a start
-- step that is safe to repeat.
describe("polls:", function()
  local url, name, handle, q

  with_database(function(...) handle, q, url, name = ... end)

  local function ended(id, timeout)
    return eventually(function()
      local info = handle:job(id)
      return (info.state == "done" or info.state == "dead") and info
    end, timeout)
  end

  local function child_of(id)
    local sql = "SELECT id FROM nightshift_child WHERE parent = ?"
    return eventually(function() return handle:execute(sql, id)[1] end).id
  end

  --- The poll of a background job, when it has ended.
  local function poll_of(id) return ended(child_of(id), 40) end

  local function counts(info) return { info.state, info.reason, info.attempts, info.polls, info.crashes } end

  local function attempts_kept() return tonumber((db.sql("SELECT COUNT(*) FROM nightshift_attempt", name))) end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  -- Polls as its payload says, a letter per run: n not yet, e raises, c its worker
  -- dies, d done. The run's number is in the state.
  local LETTERS = [[return { slow = require "nightshift".background {
  every = 0.01, max_polls = %s, max_attempts = 3, max_crashes = 3,
  start = function(job) return job.payload end,
  poll = function(job, letters)
    local run = job.polls + job.attempts + job.crashes + 1
    local letter = letters:sub(run, run)
    if letter == "e" then error "no" end
    if letter == "c" then os.execute "kill -9 $PPID" end
    if letter == "d" then return { state = job.state, polls = job.polls } end
    return job:again { delay = 0.001, state = (job.state or "") .. letter }
  end } }]]

  describe("a poll's budgets", function()
    --- Walks of some letters, all at once.
    local function walk(all, max_polls)
      -- an attempt's backoff is seconds: whatever is scheduled is run at once
      local h, ended_at = host.start(url, LETTERS:format(max_polls or 100)), {}
      local ids = {}
      for i, letters in ipairs(all) do ids[i] = assert(q:push("slow", letters)) end
      for i, id in ipairs(ids) do
        local child = child_of(id)
        ended_at[i] = eventually(function()
          local now = handle:job(child)
          if now.state == "scheduled" and now.due - now.created > 1 then handle:run_now(child) end
          return (now.state == "done" or now.state == "dead") and now
        end, 90)
      end
      stop(h)
      return table.unpack(ended_at)
    end

    it("are of their own: polls cost no attempt, errors and crashes no poll; the state stays", function()
      local info = walk { "nnennccnend" }
      assert.same({ "done", nil, 2, 6, 2 }, counts(info))
      assert.same({ state = "nnnnnn", polls = 6 }, info.result)
      assert.equal(4, attempts_kept())
    end)

    it("each end it with a reason of their own", function()
      local plain, failed, poison, mixed = walk({ "nnnnnnn", "nenee", "cncc", "ncenecnnn" }, 3)
      assert.same({ "dead", "poll deadline", 0, 4, 0 }, counts(plain))
      assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_attempt WHERE job_id = ?", plain.id)[1].n)
      assert.same({ "dead", "failed", 3, 2, 0 }, counts(failed))
      assert.same({ "dead", "poison", 0, 1, 3 }, counts(poison))
      assert.same({ "dead", "poll deadline", 2, 4, 2 }, counts(mixed))
    end)
  end)

  describe("the state of a poll", function()
    it("outlives the hosts", function()
      local SCRIPT = [[return { slow = function(job)
      if job.polls == 3 then return job.state end
      return job:again { delay = job.payload, state = (job.state or 0) + 1 }
    end }]]
      local id = assert(q:push("slow", 0.3))
      for polls = 1, 3 do
        local h = host.start(url, SCRIPT)
        eventually(function() return handle:job(id).polls >= polls end)
        h:signal "KILL"
        h:wait()
      end
      local h = host.start(url, SCRIPT)
      local info = ended(id)
      assert.same({ "done", 3, 0, 0 }, { info.state, info.result, info.attempts, info.crashes })
      stop(h)
    end)
  end)

  describe("a job that has polled 1,000 times", function()
    it("costs what it cost at first, in time and in rows", function()
      local bench = proc.root .. "/bench/questions/waiting.lua"
      local report
      for _ = 1, 3 do -- other jobs may be busy at its end, and were not at its start
        local status, out, err = proc.run { proc.lua, bench, (db.fresh()), proc.build, "polls", "1000", timeout = 300 }
        assert.equal(0, status, err)
        report = nightshift.decode(out)
        assert.same({ 1000, 1, 0, 0 }, { report.polls, report.job, report.scheduled, report.attempt })
        assert.is_true(report.ready <= 15, report.ready .. " rows of ready") -- one, and an end per lane
        if report.ratio <= 3 then break end
      end
      assert.is_true(report.ratio <= 3, report.ratio) -- the figure is the bench's; growth would be worse
    end)
  end)

  describe("the end of a poll that is not ready in time", function()
    --- How the polls of some definitions end, on one host.
    local function run(...)
      local script, ids = "local background = require 'nightshift'.background\nreturn {\n", {}
      for i, definition in ipairs { ... } do
        script = script .. ("slow%d = background { start = function() return 7 end, %s },\n"):format(i, definition)
      end
      local h = host.start(url, script .. "}")
      for i in ipairs { ... } do ids[i] = assert(q:push("slow" .. i)) end
      for i, id in ipairs(ids) do ids[i] = poll_of(id) end
      stop(h)
      return table.unpack(ids)
    end

    it("is what on_timeout returns, at the deadline and after max_polls", function()
      local definition = [[%s, poll = function(job) return job:again() end,
        on_timeout = function(job, operation) return { operation, job.polls } end]]
      for _, info in ipairs { run(definition:format "deadline = 2, every = 0.1",
        definition:format "max_polls = 2, every = 0.02") } do
        assert.same({ "done", 7 }, { info.state, info.result[1] })
        assert.is_true(info.result[2] >= 2)
      end
    end)

    it("is never left out because the poll itself took too long", function()
      local info = run [[deadline = 3, every = 0.1,
      poll = function(job) os.execute "sleep 3.5" return job:again() end,
      on_timeout = function() return "asked" end]]
      assert.same({ "done", "asked" }, { info.state, info.result })
    end)

    it("keeps its error", function()
      local info, again = run([[max_polls = 1, every = 0.02, poll = function(job) return job:again() end,
      on_timeout = function() error "gave up" end]], [[max_polls = 1, every = 0.02,
      poll = function(job) return job:again() end, on_timeout = function(job) return job:again(1) end]])
      assert.same({ "dead", "poll deadline" }, { info.state, info.reason })
      assert.is_truthy(info.error:find("gave up", 1, true) and info.error:find("stack traceback", 1, true))
      assert.same({ "dead", "poll deadline" }, { again.state, again.reason })
      assert.equal(0, attempts_kept())
    end)

    it("may be left to people", function()
      local h = host.start(url, [[return { slow = require "nightshift".background {
      start = function() return 7 end, max_polls = 1, every = 0.02,
      poll = function(job) if job.signal then return job.signal end return job:again() end,
      on_timeout = function(job) return job:wait { signal = "decided" } end } }]])
      local id = assert(q:push "slow")
      local child = eventually(function()
        return handle:execute("SELECT id FROM nightshift_job WHERE parent = ? AND awaits = 'decided'", id)[1]
      end)
      assert(handle:signal(child.id, "go on", "decided"))
      assert.equal("go on", ended(child.id).result)
      stop(h)
    end)
  end)

  describe("the start step", function()
    -- The remote side is a folder: an operation is started by making a folder of
    -- its key's name, once. Each call, start and poll is a line in a file.
    local SCRIPT = [[
    local function note(job, file, text)
      local log = io.open(job.payload.remote .. "/" .. file, "a")
      log:write(text, "\n")
      log:close()
    end
    local function exists(path)
      local file = io.open(path)
      return file and file:close()
    end
    return { slow = require "nightshift".background {
      every = 0.02,
      start = function(job)
        local remote = job.payload.remote
        note(job, "calls", job.key)
        if os.execute("mkdir " .. remote .. "/" .. job.key .. " 2>/dev/null") then
          note(job, "started", job.key)
          if job.payload.dies then os.execute "kill -9 $PPID" end
          while job.payload.waits and not exists(remote .. "/go") do require "nightshift.core".sleep(0.02) end
        end
        return { key = job.key }
      end,
      poll = function(job, operation)
        note(job, "polls", operation.key)
        return operation.key
      end } }]]

    local function lines(path)
      local list = {}
      local file = io.open(path)
      for line in file and file:lines() or function() end do list[#list + 1] = line end
      return list
    end

    local function assert_once(remote, key, calls)
      assert.equal(calls, #lines(remote .. "/calls"))
      for _, file in ipairs { "calls", "started", "polls" } do
        for _, line in ipairs(lines(remote .. "/" .. file)) do assert.equal(key, line) end
      end
      assert.same({ key }, lines(remote .. "/started"))
      assert.same({ key }, lines(remote .. "/polls"))
    end

    it("starts once when its worker is killed behind the remote call", function()
      local remote = fixture.dir()
      local h = host.start(url, SCRIPT)
      local id = assert(q:push("slow", { remote = remote, dies = true }))
      assert.equal("done", poll_of(id).state)
      assert_once(remote, handle:job(id).key, 2)
      assert.equal(1, handle:job(id).crashes)
      stop(h)
    end)

    it("starts once when its host is killed there, and when it is retried", function()
      local remote = fixture.dir()
      local h = host.start(url, SCRIPT)
      local id = assert(q:push("slow", { remote = remote, waits = true }))
      eventually(function() return lines(remote .. "/started")[1] end)
      h:signal "KILL"
      h:wait()
      h = host.start(url, SCRIPT)
      assert.equal("done", poll_of(id).state)
      local key = handle:job(id).key
      assert_once(remote, key, 2)
      assert(handle:retry(id))
      eventually(function() return #lines(remote .. "/calls") == 3 end)
      eventually(function() return handle:job(id).state == "done" end)
      assert.same({ key }, lines(remote .. "/started"))
      assert.equal(key, handle:job(id).key)
      stop(h)
    end)

    it("is followed by one poll when the server is killed meanwhile", function()
      local server = db.spare()
      local there = server:fresh()
      local remote = fixture.dir()
      local h = host.start(there, SCRIPT)
      local pusher <close> = assert(nightshift.open(there))
      local id = assert(pusher:queue("q"):push("slow", { remote = remote, waits = true }))
      eventually(function() return lines(remote .. "/started")[1] end)
      server:kill()
      assert(io.open(remote .. "/go", "w")):close()
      nst.sleep(0.2) -- its verdict is kept: no host is there to take it
      server:start()
      eventually(function() return lines(remote .. "/polls")[1] end, 30)
      eventually(function() return pusher:execute("SELECT COUNT(*) AS n FROM nightshift_finished")[1].n == 2 end, 30)
      assert_once(remote, pusher:job(id).key, 1)
      stop(h)
    end)
  end)
end)

-- A retried job had no deadline any more. A poll that had given up at its deadline and was
-- retried polled for ever, and its on_timeout was never called.
describe("a job that is retried", function()
  it("has as long as it had at first", function()
    local handle <close> = assert(nightshift.open((db.fresh())))
    local q = handle:queue "q"
    local id = assert(q:push("job", nil, { deadline = 2 }))
    local first = assert(q:claim())
    local stop = first.deadline - first.created
    assert.is_true(stop >= 1.999999 and stop < 2.001, stop)
    assert(first:again(0.01))
    eventually(function()
      local polling = q:claim { wait = 5 }
      return polling == nil or select(2, polling:again(0.01)) == true
    end)
    assert.equal("poll deadline", handle:job(id).reason)
    assert(handle:retry(id))
    local job = assert(q:claim())
    assert.near(stop, job.deadline - job.created, 1e-5)
    assert(job:again(0))
    assert.equal("ready", handle:job(id).state)
  end)
end)

-- A deadline brings forward when a job is due, so that it ends then. A later one, or none, left
-- it there: a job of tomorrow ran at the deadline that had been taken back. A job that waited
-- for a signal was told that there was no answer.
describe("another deadline", function()
  local handle, q

  with_database(function(...) handle, q = ... end)

  local function due_in(id)
    local job = assert(handle:job(id))
    return math.floor(job.due - job.created + 0.5)
  end

  -- A deadline is reckoned from the moment when it is set, however late that is.
  local function due_after(seconds, id, ...)
    local before = handle:stats().now
    assert(handle:deadline(id, ...))
    local due = assert(handle:job(id)).due - seconds
    assert.is_true(due >= before - 1e-5 and due <= handle:stats().now + 1e-5, due - before)
  end

  -- what is taken back counts for one job and for trees, and again and again
  for _, tree in ipairs { false, true } do
    it("lets a job be due when it was to be" .. (tree and ", in a tree" or ""), function()
      local id = assert(q:push("job", nil, { delay = 3600 }))
      for _, later in ipairs { "2h", false, "90m" } do
        due_after(1800, id, "30m", { tree = tree })
        due_after(2400, id, "40m", { tree = tree })
        assert(handle:deadline(id, later, { tree = tree }))
        assert.equal(3600, due_in(id))
      end
      assert(handle:deadline(id, 0.3, { tree = tree }))
      assert(handle:deadline(id, false, { tree = tree }))
      nst.sleep(0.5)
      assert.is_nil(q:claim())
      assert(handle:run_now(id))
      assert.equal(id, assert(q:claim()).id)
    end)
  end

  it("lets who is parked wait on for a signal, as long as it was to", function()
    local id = assert(q:push("job", nil, { deadline = 10 }))
    local before = handle:stats().now
    assert(q:claim():wait { signal = "go", deadline = "1h" })
    local after = handle:stats().now
    assert(handle:deadline(id, "2h"))
    local due = handle:job(id).due - 3600
    assert.is_true(due >= before - 1e-5 and due <= after + 1e-5, due - before)
    assert(handle:deadline(id, 0.1))
    assert(handle:deadline(id, false))
    nst.sleep(0.5)
    assert.is_nil(q:claim())
    assert.equal("waiting", handle:job(id).state)
    assert(handle:signal(id, "yes"))
    assert.equal("yes", assert(q:claim()).signal)
  end)

  it("reaches a job that is paused meanwhile", function()
    local id = assert(q:push("job", nil, { delay = 3600 }))
    assert(handle:deadline(id, "30m"))
    assert(handle:pause(id))
    assert(handle:deadline(id, false))
    assert(handle:resume(id))
    assert.same({ 3600, "scheduled" }, { due_in(id), handle:job(id).state })
  end)
end)

-- A poll that raised shortly before its deadline, or at its last look, was dead at once, reason
-- "deadline": its backoff ended later. It had nine attempts left, had no last look, and
-- on_timeout was never called.
describe("a poll that fails before its deadline", function()
  local handle, h

  after_each(function()
    h:signal "QUIT"
    h:wait()
    handle:close()
  end)

  local function ended(definition)
    local url = db.fresh()
    handle = assert(nightshift.open(url))
    h = host.start(url, ([[return { slow = require "nightshift".background {
    start = function() return 7 end, every = 0.1, deadline = 2, %s } }]]):format(definition))
    local id = assert(handle:queue("q"):push "slow")
    return eventually(function()
      local child = handle:execute("SELECT id FROM nightshift_child WHERE parent = ?", id)[1]
      local poll = child and handle:job(child.id)
      return poll and (poll.state == "done" or poll.state == "dead") and poll
    end)
  end

  it("has its last look at the deadline", function()
    local poll = ended [[poll = function(job)
      if job.attempt == 1 then error "503" end
      return job.due >= job.deadline
    end]]
    assert.same({ "done", true, 1 }, { poll.state, poll.result, poll.attempts })
  end)

  it("and at it, leaves it to on_timeout", function()
    local poll = ended [[poll = function() error "503" end,
      on_timeout = function(job, operation) return { operation, job.attempts } end]]
    assert.same({ "done", { 7, 1 } }, { poll.state, poll.result })
  end)

  it("and at it, is dead for its deadline when nobody says more", function()
    local poll = ended [[poll = function() error "503" end]]
    assert.same({ "dead", "poll deadline", 2 }, { poll.state, poll.reason, poll.attempts })
    assert.matches("503", poll.error)
  end)
end)

-- A handler that forgot `if job.phase == 0` spawned and waited without end. And one that waited
-- for children that it did not have ran hundreds of times a second: no budget was spent, and
-- nothing was said.
describe("phases:", function()
  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  local function info(id)
    local job = assert(handle:job(id))
    return job.state, job.reason, job.error, job.phase
  end

  --- Runs the job and its children, as one who forgets the phase, until it is not claimed any more.
  local function spawn_for_ever(most)
    local phases = 0
    for job in q:jobs() do
      if job.name == "child" then
        assert(job:ack())
      else
        assert(phases < most, "it goes on")
        assert(job:spawn "child")
        phases = phases + 1
        assert(job:wait())
      end
    end
    return phases
  end

  describe("a wait for children that were never made", function()
    it("raises, in a program and in a handler", function()
      local id = assert(q:push "a")
      local job = assert(q:claim())
      assert.error_matches(function() job:wait() end,
        "wait: job %d+ has no children; spawn some first, or name a signal")
      assert(job:release())
      assert(handle:cancel(id))
      id = assert(handle:queue "default":push("forgot", nil, { max_attempts = 1 }))
      assert.equal(0, (host.drain(url, [[return { forgot = function(job) return job:wait() end }]])))
      local state, reason, err = info(id)
      assert.same({ "dead", "failed" }, { state, reason })
      assert.matches("has no children", err)
    end)

    it("is none when there are some of an earlier run, or of somebody else", function()
      assert(q:push "a")
      local job = assert(q:claim())
      assert(q:push("child", nil, { parent = job.id, delay = 60 }))
      assert(job:wait())
      assert.equal("waiting", handle:job(job.id).state)
    end)
  end)

  describe("the phases of a job", function()
    it("have a limit, and whoever reaches it is told what to write", function()
      local id = assert(q:push("a", nil, { max_phases = 3 }))
      assert.equal(4, spawn_for_ever(10))
      local state, reason, err = info(id)
      assert.same({ "dead", "too many phases" }, { state, reason })
      assert.matches("job.phase == 0", err, 1, true)
      assert.matches("max_phases", err)
      assert.equal(3, #assert(handle:jobs { name = "child", state = "done" })) -- the last one was not written
      assert(handle:retry(id))
      assert.equal(4, spawn_for_ever(10)) -- with fresh budgets, and the limit that it was pushed with
    end)

    it("are a hundred unless told", function()
      local id = assert(q:push "a")
      assert.equal(101, spawn_for_ever(200))
      assert.equal("too many phases", select(2, info(id)))
    end)

    it("have none when that is told", function()
      assert(q:push("a", nil, { max_phases = 0 }))
      assert.error_matches(function() spawn_for_ever(110) end, "it goes on")
    end)

    it("are counted from the last signal", function()
      local id = assert(q:push("a", nil, { max_phases = 2 }))
      for i = 1, 6 do
        local job = assert(q:claim { wait = 5 })
        assert.equal(i > 1 and i - 1 or nil, job.signal)
        assert(job:wait { signal = "go" })
        assert(handle:signal(id, i, "go"))
      end
      for _ = 1, 2 do
        local job = assert(q:claim { wait = 5 })
        assert(job:wait { signal = "never", deadline = 0 })
      end
      assert(assert(q:claim { wait = 5 }):wait { signal = "never", deadline = 0 })
      assert.equal("too many phases", select(2, info(id)))
    end)

    it("are limited from SQL and by spawn, too", function()
      assert(handle:execute [[CALL nightshift_push('q', 'a', '1', '{"max_phases": 1}')]])
      assert.equal(2, spawn_for_ever(10))
      assert.is_nil((handle:execute [[CALL nightshift_push('q', 'a', '1', '{"max_phases": -1}')]]))
      assert(q:push "parent")
      local job = assert(q:claim())
      assert(job:spawn("a", nil, { max_phases = 1 }))
      assert(job:ack())
      assert.equal(2, spawn_for_ever(10))
      assert.equal("INVALID", select(3, q:push("a", nil, { max_phases = -1 })))
    end)

    it("are limited by the handler, unless the push has said", function()
      local d = handle:queue "default"
      local mine, told = assert(d:push "forgot"), assert(d:push("forgot", nil, { max_phases = 5 }))
      assert.equal(0, (host.drain(url, [[return {
      forgot = { max_phases = 2, run = function(job)
        job:spawn "child"
        return job:wait()
      end },
      child = function() end,
    }]])))
      for _, id in ipairs { mine, told } do assert.equal("too many phases", select(2, info(id))) end
      local children = {}
      for _, row in ipairs(assert(handle:execute [[SELECT parent, COUNT(*) AS n FROM nightshift_finished
      WHERE name = 'child' GROUP BY parent]])) do children[row.parent] = row.n end
      assert.same({ [mine] = 2, [told] = 5 }, children)
    end)
  end)
end)

-- ----- signals

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
    it("from 12 connections is never lost", function()
      local SENDERS, ROUNDS = 12, os.getenv "NIGHTSHIFT_LONG" and 25 or 12
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
      local server = db.spare()
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
