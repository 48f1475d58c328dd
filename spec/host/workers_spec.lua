-- Workers: they are replaced when they stop, die or leave; their tasks are given back and keep
-- their places. Ways for a worker to die, the entry of each in the job's history, and that no
-- process of a worker outlives it.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

-- A job came back while its host had no worker, because the only one was being replaced. It
-- used to wait for the next sign of life of the host: up to 10 s. It was not noted that there
-- was something to claim.
it("a retry is not forgotten while the only worker is replaced", function()
  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local h = host.start(url, [[return { job = { memory = "1M", run = function(job)
    if job.attempt < 5 then return ("x"):rep(1 << 22) end
    return job.attempt
  end } }]], { "--workers", "1" })
  local took
  for _ = 1, 3 do -- a busy machine is slow now and then
    local start = nst.clock()
    local id = handle:queue "q":push("job", nil, { backoff = 0.01, max_attempts = 10 })
    assert.equal(5, eventually(function() return handle:job(id).result end, 60))
    took = nst.clock() - start
    if took < proc.limit(8) then break end
  end
  assert.is_true(took < proc.limit(8), took)
  h:signal "TERM"
  assert.equal(0, h:wait())
end)

-- A worker that was stopped while it was idle kept the job that was sent to it, for ever. The
-- job's timeout runs from its start.
describe("a worker that is stopped while it is idle", function()
  it("does not keep the job that is sent to it", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local h = host.start(url, "return { noop = function() end }", { "--workers", "1" })
    nst.kill(host.member(h.pid), "STOP")
    local id = handle:queue("q"):push "noop"
    h:wait_line("event=worker.unresponsive", 20)
    eventually(function() return handle:job(id).state == "done" end, 20)
    assert.equal(0, handle:job(id).crashes)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A host with workers that had all been killed, and which waited before it forked new ones,
-- kept what it had claimed. And jobs that kill workers, standing together before other jobs,
-- took every worker it forked.
describe("in back-off:", function()
  local url, handle

  with_database(function(opened, _, at) handle, url = opened, at end)

  local SCRIPT = [[return {
  noop = function() end,
  die = function() os.execute("kill -9 " .. (io.open "/proc/self/stat":read "a"):match "^%d+") end,
}]]

  local function push(queue, name, n, options)
    local items = {}
    for i = 1, n do items[i] = { name, nil, options } end
    return assert(handle:queue(queue):push_many(items))
  end

  local function finished(queue)
    return handle:execute([[SELECT COUNT(*) AS n FROM nightshift_finished f
    JOIN nightshift_queue q ON q.id = f.queue_id WHERE q.name = ? AND f.outcome = 'done']], queue)[1].n
  end

  -- A host that has learnt that jobs are short, and therefore claims ahead.
  local function start(workers)
    push("good", "noop", 400)
    local h = host.start(url, SCRIPT, { "--workers", workers, "--queues", "bad,good" })
    eventually(function() return finished "good" == 400 end, 60)
    return h
  end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  describe("while all workers of a host wait to be forked", function()
    it("what it claimed is given back", function()
      local h = start "8"
      push("bad", "die", 600, { max_crashes = 1 })
      h:wait_line("worker.crash_loop .*wait_seconds=10", 20)
      eventually(function() return #handle:execute "SELECT id FROM nightshift_lease" == 0 end, 9) -- 10 s: over
      stop(h)
    end)
  end)

  describe("jobs that kill workers, claimed before others", function()
    it("do not keep the others from being run", function()
      local h = start "2"
      push("bad", "die", 16, { max_crashes = 1 })
      h:wait_line("worker.crash_loop", 20)
      assert(handle:transaction(function()
        push("bad", "die", 24, { max_crashes = 8 })
        push("good", "noop", 100)
      end))
      eventually(function() return finished "good" == 500 end, 120)
      stop(h)
    end)
  end)
end)

-- A zygote that was stopped was waited for without end: workers that it should
-- have killed ran on, dead ones were not reported. A stopped seed kept the host
-- from ending, with its signals blocked.
describe("stopped processes:", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local SCRIPT = [[return {
  loop = function() print "looping" while true do require "nightshift.core".sleep(0.002) end end,
  nap = function(job) if job.attempt == 1 then print "napping" os.execute "sleep 20" end return job.crashes end,
  noop = function() return "ran" end,
}]]

  local function stop_all(h, name)
    for _, pid in ipairs(host.members(h.pid, name)) do nst.kill(pid, "STOP") end
  end

  local function assert_nobody(family)
    host.await_gone(family)
  end

  local function finish(h)
    local family = host.family(h.pid)
    h:signal "QUIT"
    assert.equal(0, h:wait(20))
    assert_nobody(family)
  end

  describe("a zygote that is stopped", function()
    it("is replaced when a job has to be stopped; nothing else is blamed", function()
      local h = host.start(url, SCRIPT)
      local innocent = q:push "nap"
      h:wait_line "^napping"
      local loop = q:push("loop", nil, { timeout = 3, max_attempts = 1 })
      h:wait_line "^looping"
      stop_all(h, "ns-zygote")
      h:wait_line("zygote.unresponsive", 30)
      h:wait_line("zygote.died", 20)
      eventually(function() return handle:job(loop).state == "dead" end)
      assert.matches("^timeout after 3 s", handle:job(loop).error)
      assert.same({ 0, 0 }, { handle:job(loop).crashes, handle:job(innocent).crashes })
      local id = q:push "noop"
      eventually(function() return handle:job(id).result == "ran" end)
      finish(h)
    end)

    it("is replaced when a worker has gone", function()
      local h = host.start(url, SCRIPT)
      local id = q:push "nap"
      h:wait_line "^napping"
      stop_all(h, "ns-zygote")
      for _, pid in ipairs(host.members(h.pid)) do nst.kill(pid, "KILL") end
      h:wait_line("zygote.died", 30)
      local other = q:push "noop"
      eventually(function() return handle:job(other).result == "ran" end)
      assert.equal(0, handle:job(id).crashes)
      finish(h)
    end)
  end)

  describe("a keeper that is stopped", function()
    it("is replaced when its zygote has to be", function()
      local h = host.start(url, SCRIPT)
      local loop = q:push("loop", nil, { timeout = 3, max_attempts = 1 })
      h:wait_line "^looping"
      stop_all(h, "ns-zygote")
      stop_all(h, "ns-keeper")
      h:wait_line("keeper.unresponsive", 30)
      eventually(function() return handle:job(loop).state == "dead" end)
      local id = q:push "noop"
      eventually(function() return handle:job(id).result == "ran" end)
      finish(h)
    end)
  end)

  describe("a seed that is stopped", function()
    it("does not keep the host from ending", function()
      local h = host.start(url, SCRIPT)
      local family = host.family(h.pid)
      stop_all(h, "ns-seed")
      h:signal "TERM"
      assert.equal(0, h:wait(20))
      h:wait_line "seed.unresponsive"
      assert_nobody(family)
    end)
  end)
end)

-- Jobs had been sent ahead behind a slow one, or waited in a host that stopped. They went back
-- behind all jobs that had been pushed since.
describe("jobs that were not begun keep their place", function()
  local _, q, url

  with_database(function(...) _, q, url = ... end)

  local SCRIPT = [[
local core = require "nightshift.core"
return {
  job = function(job)
    print("began " .. job.payload.i)
    core.sleep(job.payload.slow and 1 or 0.003)
  end,
  long = function() print "long" core.sleep(1) end,
}]]

  local function began(log)
    local order = {}
    for i in log:gmatch "began (%d+)" do order[#order + 1] = math.tointeger(tonumber(i)) end
    return order
  end

  -- How far behind its turn any job began.
  local function worst(order)
    local late = 0
    for at, i in ipairs(order) do late = math.max(late, at - i) end
    return late
  end

  it("when the one before them in their worker takes long", function()
    local jobs = {}
    for i = 1, 1000 do jobs[i] = { "job", { i = i, slow = i == 100 or i == 101 } } end
    assert(q:push_many(jobs))
    local h = host.spawn(url, SCRIPT, { "--drain-within", "0", "--drain" })
    assert.equal(0, h:wait(120))
    local order = began((h:text()))
    assert.equal(1000, #order)
    assert.is_true(worst(order) < 800, ("one began %d jobs late"):format(worst(order)))
  end)

  it("when their host stops", function()
    local jobs = {}
    for i = 1, 400 do jobs[i] = { "job", { i = i, slow = i == 300 } } end
    assert(q:push_many(jobs))
    local h = host.start(url, SCRIPT, { "--workers", "1" })
    h:wait_line "began 300"
    h:signal "TERM"
    assert.equal(0, h:wait())
    local given_back, last = 0, 0
    for _, job in ipairs(assert(q:claim_many(400))) do
      given_back = given_back + (job.run > 1 and 1 or 0)
      assert.is_true(job.payload.i > last, ("%d after %d"):format(job.payload.i, last))
      last = job.payload.i
    end
    assert.is_true(given_back > 0)
    assert.equal(400, last)
  end)
end)

-- A worker that is about to leave says so with a verdict. The host took back the jobs that it
-- had sent ahead to that worker. Each of them became a verdict in a list that grew and moved.
-- The values of the worker's own verdict were then written to where the list had been. The job
-- was done, or came again, without its result, its children, its delay and its state.
describe("the verdict of a worker that leaves with jobs sent ahead to it", function()
  local SCRIPT = [[
  local kept = {}
  local function leave_open() for i = 1, 200 do kept[#kept + 1] = io.open "/dev/null" end end
  return {
    short = function() end,
    leaver = function(job)
      for i = 1, 3 do job:spawn("short", i) end
      leave_open()
      return job:ack { made = "leaver" }
    end,
    again = function(job)
      if job.run > 1 then return job:ack(job.state) end
      leave_open()
      return job:again(0.2, { made = "again" })
    end,
  }]]

  local url, handle
  with_database(function(opened, _, address) handle, url = opened, address end)

  --- Drains 'n' short jobs, one of 'name', and 300 short ones that are sent behind it.
  -- The list has to grow at the right moment, so this is done with several numbers.
  local function run(n, name)
    local id
    assert(handle:transaction(function(tx)
      for i = 1, n do assert(tx:queue("q"):push("short", i)) end
      id = assert(tx:queue("q"):push(name))
      for i = 1, 300 do assert(tx:queue("q"):push("short", i)) end
    end))
    local status, _, err = proc.run { "sh", "-c", 'ulimit -n 128; exec "$@"', "sh", proc.program,
      "work", fixture.file("jobs.lua", SCRIPT), "--workers", "1", "--drain", "--drain-within", "2s",
      env = { NIGHTSHIFT_URL = url } }
    assert.equal(0, status, err)
    return id, handle:job(id)
  end

  for _, n in ipairs { 20, 60, 130 } do
    it(("carries result and children, after %d jobs"):format(n), function()
      local id, job = run(n, "leaver")
      assert.same({ "done", { made = "leaver" } }, { job.state, job.result })
      assert.equal(3, #handle:execute("SELECT 1 FROM nightshift_child WHERE parent = ?", id))
    end)

    it(("carries delay and state, after %d jobs"):format(n), function()
      local _, job = run(n, "again")
      assert.same({ "done", { made = "again" } }, { job.state, job.result })
    end)
  end
end)

-- With a process per job, a sign of life and the verdict of a job that ended at once were
-- written together. The sign found no claim any more, and the next process in that seat
-- was told that the claim of its job was lost.
describe("a job in a process of its own", function()
  local PAIRS = 25
  local SCRIPT = [[
local core = require "nightshift.core"
return {
  brief = function(job) job:progress(0.5) end,
  long = function() core.sleep(0.15) end,
}]]

  it("is not stopped for one that showed that it lived and ended", function()
    local url, name = db.fresh()
    local p = proxy.start(db.shared())
    local handle <close> = assert(nightshift.open(url))
    local items = {}
    for i = 1, PAIRS do
      items[2 * i - 1] = { "brief", i }
      items[2 * i] = { "long", i }
    end
    assert(handle:queue "q":push_many(items))
    p:tell "delay 5" -- so that a process is there before the sign of life is written
    local h = host.start(p:url(url), SCRIPT, { "--isolation", "job" })
    eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_job", name) == "0" end, 60)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
    assert.is_nil(h:transcript():find("job.stop", 1, true))
    assert.is_nil(h:transcript():find("STALE", 1, true))
    assert.equal(2 * PAIRS .. "", db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
  end)
end)

-- A worker that was stopped while it was idle, and then told to leave, as at a reload, kept its
-- place for ever. It was not waited for, as it had no job. Its host ran one job less at once
-- from then on, and kept the scripts of before.
describe("a worker that is stopped while it is idle", function()
  it("gives its place to another when it does not leave", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local go = fixture.dir() .. "/go"
    local h = host.start(url, host.holding(go), { "--workers", "2" })
    local stopped = host.member(h.pid)
    nst.kill(stopped, "STOP")
    h:signal "HUP"
    h:wait_line("event=reload.done", 20)
    for _ = 1, 2 do assert(handle:queue("q"):push "hold") end
    eventually(function()
      local _, count = h:text():gsub("holds\n", "")
      return count == 2
    end, 60)
    assert(io.open(go, "w")):close()
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A host that was told to be quiet took back what its workers had not started, and forgot those
-- that had nothing else. They got no job any more when it went on.
describe("a worker whose jobs were taken back before it started one", function()
  it("gets jobs again when its host goes on", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local h = host.start(url, "return { noop = function() end }", { "--workers", "1" })
    local worker = host.member(h.pid)
    nst.kill(worker, "STOP")
    local id = assert(handle:queue("q"):push "noop")
    eventually(function()
      h:signal "USR1"
      local _, log = h:text()
      return log:find "event=dump.host [^\n]*outstanding=1 backlog=0"
    end)
    h:signal "TSTP"
    h:wait_line("event=host.quiet", 20)
    eventually(function() return handle:job(id).state == "ready" end)
    nst.kill(worker, "CONT")
    h:signal "CONT"
    eventually(function() return handle:job(id).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A worker lived for as long as its host, whatever a handler's C code leaked.
describe("recycling:", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  local SCRIPT = [[
local kept = {}
local function pid() return io.open "/proc/self/stat":read "n" end
return {
  pid = pid,
  eat = function()
    kept[#kept + 1] = ("x"):rep(10 << 20)
    return pid()
  end,
}]]

  --- The pids that ran n jobs, and how many each of them ran.
  local function run(name, n, ...)
    local h = host.start(url, SCRIPT, { "--workers", "2", ... })
    local jobs, by_pid, pids = {}, {}, 0
    for i = 1, n do jobs[i] = { name, nil, { max_attempts = 1, max_crashes = 1 } } end
    for _, id in ipairs(assert(q:push_many(jobs))) do
      local job = eventually(function()
        local found = handle:job(id)
        return found.state:match "^d" and found
      end, 30)
      assert.same({ "done", 0 }, { job.state, job.crashes })
      pids = pids + (by_pid[job.result] and 0 or 1)
      by_pid[job.result] = (by_pid[job.result] or 0) + 1
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.is_nil(host.death(h:transcript()), h:transcript())
    return by_pid, pids
  end

  describe("a worker is replaced, and nothing that it was sent is lost,", function()
    it("after as many jobs as --recycle says", function()
      local by_pid, pids = run("pid", 200, "--recycle", "20")
      assert.is_true(pids >= 10, pids)
      for _, n in pairs(by_pid) do assert.is_true(n <= 20, n) end
    end)

    it("when it has more memory than --recycle-memory says", function()
      local by_pid = run("eat", 8, "--recycle-memory", "40M")
      for _, n in pairs(by_pid) do assert.is_true(n <= 4, n) end
    end)

    it("and never without these", function()
      local _, pids = run("pid", 100)
      assert.is_true(pids <= 2, pids)
    end)
  end)

  it("--recycle wants a number above 0, --recycle-memory a size", function()
    for _, args in ipairs { { "--recycle", "0" }, { "--recycle-memory", "much" } } do
      local h = host.spawn(url, SCRIPT, args)
      assert.equal(2, h:wait())
      assert.is_truthy(h:transcript():find(args[1], 1, true), h:transcript())
    end
  end)
end)

-- The number of workers was that of --workers, for as long as the host lived.
describe("the number of workers", function()
  local url, handle, q
  local go, h

  with_database(function(...) handle, q, url = ... end)

  local function start(...)
    go = fixture.dir() .. "/go"
    h = host.start(url, host.holding(go), { "--workers", "2", ... })
    return h
  end

  local function stop()
    io.open(go, "w"):close()
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.is_nil(host.death(h:transcript()), h:transcript())
  end

  local function workers(n)
    return eventually(function()
      local list = host.members(h.pid)
      return #list == n and list
    end)
  end

  --- Is this among the host's numbers of workers in status?
  local function shown(key, n)
    eventually(function()
      for _, row in ipairs(handle:stats().holders) do
        if row.pid == h.pid then return row[key] == n end
      end
    end)
  end

  --- Sends the signal and waits until it has been obeyed, or refused.
  local function tell(name, event, n)
    h:signal(name)
    return h:wait_line("event=" .. event .. " .*", 20, n)
  end

  it("is one more after TTIN, and one fewer after TTOU, at once", function()
    start()
    assert.matches("workers=3 was=2 by=SIGTTIN", tell("TTIN", "host.workers", 1))
    workers(3)
    tell("TTIN", "host.workers", 2)
    workers(4)
    shown("workers", 4)
    for _ = 1, 4 do q:push "hold" end
    h:wait_line("^holds", 20, 4)
    for n = 3, 4 do tell("TTOU", "host.workers", n) end
    shown("leaving", 2)
    assert.equal(2, handle:execute "SELECT workers FROM nightshift_served"[1].workers)
    stop()
  end)

  it("lets idle workers go first, and a busy one when its job is done", function()
    start()
    local held = q:push "hold"
    h:wait_line "^holds"
    tell("TTOU", "host.workers", 1)
    workers(1) -- the busy one
    assert.matches("why=.it may have 1 to 1000 workers", tell("TTOU", "host.not_tuned", 1))
    tell("TTIN", "host.workers", 2)
    local other = q:push "hold"
    h:wait_line("^holds", 20, 2)
    tell("TTOU", "host.workers", 3)
    shown("leaving", 1)
    tell("TTIN", "host.workers", 4) -- a new one, beside the one that is leaving
    workers(3)
    local third = q:push "hold"
    h:wait_line("^holds", 20, 3)
    io.open(go, "w"):close()
    for _, id in ipairs { held, other, third } do
      assert.equal("held", eventually(function() return handle:job(id).result end))
      assert.equal(0, handle:job(id).crashes)
    end
    workers(2)
    stop()
  end)

  it("stays after a reload, and with the death of a worker", function()
    start()
    tell("TTIN", "host.workers", 1)
    workers(3)
    q:push "hold"
    h:wait_line "^holds"
    tell("HUP", "reload.done", 1)
    workers(3)
    tell("TTOU", "host.workers", 2) -- the one with earlier scripts
    io.open(go, "w"):close()
    local list = workers(2)
    nst.kill(list[1], "KILL")
    eventually(function() return host.name(list[1]) == nil end)
    workers(2)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("may be changed while a host is quiet, or works in a process per job", function()
    start("--isolation", "job")
    h:signal "TSTP"
    h:wait_line "event=host.quiet"
    tell("TTIN", "host.workers", 1)
    h:signal "CONT"
    h:wait_line "event=host.continue"
    for _ = 1, 3 do q:push "hold" end
    h:wait_line("^holds", 20, 3)
    tell("TTOU", "host.workers", 2)
    stop()
  end)

  it("keeps reserved workers, and one for the other queues", function()
    start("--queues", "q,r", "--reserve", "r=1")
    assert.equal("host.workers", tell("TTIN", "host.workers", 1):match "event=(%S+)")
    tell("TTOU", "host.workers", 2)
    assert.matches("why=.it may have 2 to 1000 workers, reserved ones among them",
      tell("TTOU", "host.not_tuned", 1))
    q:push "hold"
    handle:queue "r":push "hold"
    h:wait_line("^holds", 20, 2)
    stop()
  end)
end)

-- Its own machine alone could change the number of a host's workers.
describe("tune", function()
  local url, handle, q, name

  with_database(function(...) handle, q, url = ... end)
  before_each(function() name = db.name(url) end)

  local SCRIPT = "return { noop = function() end, nap = function() require 'nightshift.core'.sleep(0.3) end }"

  local function tune(...) return proc.nightshift({ "tune", ... }, url) end

  local function ok(...)
    local exit, out, err = tune(...)
    assert.same({ 0, "" }, { exit, err })
    return out
  end

  local function row_of(h)
    for _, row in ipairs(handle:stats().holders) do
      if row.pid == h.pid then return row end
    end
  end

  local function stop(...)
    for _, h in ipairs { ... } do
      h:signal "TERM"
      assert.equal(0, h:wait())
    end
  end

  it("changes the workers of the host that is named, in less than a second", function()
    local h, other = host.start(url, SCRIPT), host.start(url, SCRIPT)
    local row = row_of(h)
    local began = nst.clock()
    assert.equal(("host %d (pid %d on %s): 5 workers, before 2\n"):format(row.id, h.pid, row.host),
      ok("--host", row.id, "--workers", "5"))
    assert.is_true(nst.clock() - began < proc.limit(1), nst.clock() - began)
    h:wait_line "event=host.workers workers=5 was=2 by=tune"
    eventually(function() return #host.members(h.pid) == 5 end)
    assert.equal(2, #host.members(other.pid))
    assert.equal(5, row_of(h).wanted)
    assert.matches("1 worker, before 5", ok("--host", row.id, "--workers", "1"))
    eventually(function() return #host.members(h.pid) == 1 end)
    stop(other)
    assert.matches("3 workers, before 1", ok("--host", row.host, "--workers", "3")) -- the only one there now
    stop(h)
  end)

  it("reaches hosts that are busy, quiet, or have nothing to do", function()
    local h = host.start(url, SCRIPT)
    local id = row_of(h).id
    for _ = 1, 40 do q:push "nap" end
    eventually(function() return handle:stats().queues[1].running > 0 end)
    assert.same({ 4, 2 }, (function(now) return { now.workers, now.was } end)(assert(handle:tune_host(id, 4))))
    h:signal "TSTP"
    h:wait_line "event=host.quiet"
    assert(q:push "noop")
    assert.equal(6, assert(handle:tune_host(id, 6)).workers)
    h:signal "CONT"
    eventually(function() return handle:stats().queues[1].ready == 0 end)
    eventually(function() return handle:stats().queues[1].running == 0 end)
    assert.equal(2, assert(handle:tune_host(id, 2)).workers)
    eventually(function() return #host.members(h.pid) == 2 end)
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_notice", name))
    stop(h)
  end)

  it("says which hosts there are when it does not know the name, or not which is meant", function()
    assert.same({ nil, "no host is there", "NOT_FOUND" }, { handle:tune_host("web9", 2) })
    local h, other = host.start(url, SCRIPT), host.start(url, SCRIPT)
    local a, b = row_of(h), row_of(other)
    local both = ("%d (pid %d on %s), %d (pid %d on %s)"):format(a.id, a.pid, a.host, b.id, b.pid, b.host)
    for _, case in ipairs {
      { { "--host", "web9" }, 1, ("there is no host 'web9'; there are: %s (NOT_FOUND)"):format(both) },
      { { "--host", 7 }, 1, ("there is no host '7'; there are: %s (NOT_FOUND)"):format(both) },
      { { "--host", a.host }, 2, ("'%s' has several hosts, so name one by its id: %s (INVALID)"):format(a.host, both) },
      { { "--host", a.id, "--workers", "1001" }, 2, "it may have 1 to 1000 workers (INVALID)" },
      { { "--host", a.id, "--workers", "0" }, 2, "the workers must be a whole number from 1 to 20000, got 0" },
    } do
      local args = case[1]
      local exit, out, err = tune(args[1], args[2], args[3] or "--workers", args[4] or "3")
      assert.same({ case[2], "" }, { exit, out })
      assert.is_truthy(err:find(case[3], 1, true), err)
    end
    local ROWS = "SELECT COUNT(*) FROM nightshift_served WHERE "
    assert.equal("1", db.sql(ROWS .. "refused LIKE 'it may have 1 to 1000%'", name))
    ok("--host", a.id, "--workers", "2")
    assert.equal("2", db.sql(ROWS .. "refused IS NULL AND wanted = 2", name))
    stop(h, other)
  end)

  it("is refused inside a transaction, and raises for what is no host", function()
    assert(handle:transaction(function()
      assert.same({ nil, "tune_host inside a transaction", "STATE" }, { handle:tune_host(1, 2) })
    end))
    assert.error_matches(function() handle:tune_host({}, 2) end, "the host must be an id or a name, got table")
    assert.error_matches(function() handle:tune_host(1, "2") end, "the workers must be a whole number, got string")
  end)

  it("wants either a host with workers or a table with a rate", function()
    for _, case in ipairs {
      { {}, "give --host with --workers, or TABLE with --rate" }, { { "--host", "1" }, "give --workers" },
      { { "--workers", "1" }, "give --host" }, { { "t", "--host", "1", "--workers", "1" }, "a host has workers, and" },
    } do
      local exit, _, err = tune(table.unpack(case[1]))
      assert.equal(2, exit)
      assert.is_truthy(err:find(case[2], 1, true), err)
    end
  end)

  it("keeps the number while a holder is lost and comes back", function()
    local h = host.start(url, SCRIPT)
    ok("--host", row_of(h).id, "--workers", "3")
    db.sql(("UPDATE nightshift_holder SET dead = 1 WHERE id = %d"):format(row_of(h).id), name)
    assert(q:push "noop")
    h:wait_line("event=holder.lost", 20)
    eventually(function()
      local row = row_of(h)
      return row and row.wanted == 3
    end)
    assert.equal(3, #host.members(h.pid))
    stop(h)
  end)
end)

-- No process of a worker outlives it, its zygote, its keeper or its host,
-- unless it was put into a session of its own.
describe("orphans:", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  -- Each starts processes that print "sleeper PID", one way or another. The
  -- second run of a job returns.
  local SCRIPT = [=[
local function shell(text)
  return function(job)
    print "started"
    if job.crashes == 0 then os.execute(text) end
  end
end
local function once(text) -- there is a file then
  return function(job)
    if io.open(job.payload) then return end
    io.open(job.payload, "w"):close()
    os.execute(text)
  end
end
local SLEEP = "sh -c 'echo sleeper $$; exec sleep 300'"
return {
  child = shell(SLEEP .. "; true"),
  orphan = shell("(" .. SLEEP .. " &); sleep 300"),
  grouped = shell([[exec bash -c "set -m; sh -c 'echo sleeper \$\$; exec sleep 300' & sleep 300"]]),
  pipe = function(job)
    print "started"
    if job.crashes == 0 then io.popen(SLEEP .. "; true"):read "n" os.execute "sleep 300" end
  end,
  daemon = shell("setsid " .. SLEEP .. " & wait"),
  left = shell(SLEEP .. " >&2 &"),
  files = shell("setsid sh -c 'ls -l /proc/self/fd >&2; echo listed $$; exec sleep 300' & wait"),
  parent = once "kill -9 $(ps -o ppid= -p $PPID); sleep 300",
  grandparent = once "kill -9 $(ps -o ppid= -p $(ps -o ppid= -p $PPID)); sleep 300",
  noop = function() end,
}]=]

  local function gone(pids)
    host.await_gone(pids)
  end

  local function sleeper(h, n) return (math.tointeger(tonumber((h:wait_line("^sleeper (%d+)", 20, n))))) end

  local function stop(h, how)
    h:signal(how or "TERM")
    assert.equal(0, h:wait())
  end

  local function done(id) eventually(function() return handle:job(id).state == "done" end) end

  -- The worker that is busy: the one with children.
  local function busy(h)
    return eventually(function()
      for _, pid in ipairs(host.members(h.pid)) do
        if #host.children(pid) > 0 then return pid end
      end
    end)
  end

  describe("kill -9 of a worker takes with it", function()
    for _, name in ipairs { "child", "orphan" } do
      it("a grandchild: " .. name, function()
        local h = host.start(url, SCRIPT)
        local id = q:push(name)
        local pid = sleeper(h)
        nst.kill(busy(h), "KILL")
        gone { pid }
        done(id)
        assert.equal(1, handle:job(id).crashes)
        stop(h)
      end)
    end

    it("what io.popen started", function()
      local h = host.start(url, SCRIPT)
      local id = q:push "pipe"
      local worker = busy(h)
      local below = eventually(function()
        local family = host.family(worker)
        for _, pid in ipairs(family) do
          if host.name(pid) == "sleep" then return family end
        end
      end)
      nst.kill(worker, "KILL")
      gone(below)
      done(id)
      stop(h)
    end)

    it("what an earlier job left running", function()
      local h = host.start(url, SCRIPT, { "--workers", "1" })
      done(q:push "left")
      local pid = sleeper(h)
      assert.equal("sleep", eventually(function() return host.name(pid) == "sleep" and "sleep" end))
      nst.kill(host.member(h.pid), "KILL")
      gone { pid }
      stop(h)
    end)
  end)

  describe("a process in a session of its own", function()
    it("survives its worker and its host, and has nothing of theirs open", function()
      local h = host.start(url, SCRIPT)
      q:push "files"
      nst.kill(tonumber(h:wait_line "^listed (%d+)"), "KILL")
      local _, err = h:text()
      local open = {}
      for fd in err:gmatch " (%d+) %-> %S+" do open[#open + 1] = tonumber(fd) end
      table.sort(open)
      assert.same({ 0, 1, 2, 3 }, open, err) -- 3 is the folder that ls reads
      assert.is_nil(err:find("socket:", 1, true), err)
      q:push "daemon"
      local daemon = sleeper(h)
      h:signal "KILL"
      h:wait()
      nst.sleep(0.2)
      eventually(function() return host.name(daemon) == "sleep" end)
      nst.kill(daemon, "KILL")
    end)
  end)

  describe("kill -9 of the host", function()
    it("leaves no process of its workers", function()
      local h = host.start(url, SCRIPT, { "--workers", "5" })
      local pids = {}
      for n, name in ipairs { "child", "orphan", "grouped", "left" } do
        q:push(name)
        pids[n] = sleeper(h, n)
      end
      for _, pid in ipairs(host.family(h.pid)) do pids[#pids + 1] = pid end
      h:signal "KILL"
      h:wait()
      gone(pids)
    end)
  end)

  describe("a job that kills its zygote", function()
    it("ends the processes of all its workers; the host goes on and blames nobody for sure", function()
      local h = host.start(url, SCRIPT, { "--workers", "3" })
      local others = { q:push "orphan", q:push "grouped" }
      local pids = { sleeper(h), (sleeper(h, 2)) }
      local id = q:push("parent", fixture.dir() .. "/once")
      h:wait_line "zygote.died"
      gone(pids)
      done(id)
      for _, other in ipairs { id, table.unpack(others) } do
        local row = eventually(function()
          return handle:execute("SELECT kind, error FROM nightshift_attempt WHERE job_id = ?", other)[1]
        end)
        assert.same({ "lost", "worker lost together with the process that forked it" }, { row.kind, row.error })
        assert.equal(0, handle:job(other).crashes)
      end
      done(q:push "noop")
      stop(h, "QUIT")
    end)

    it("is blamed when it was the only one that ran", function()
      local h = host.start(url, SCRIPT)
      local id = q:push("parent", fixture.dir() .. "/once")
      done(id)
      assert.equal(1, handle:job(id).crashes)
      stop(h)
    end)
  end)

  describe("a job that kills its keeper", function()
    it("ends the processes of all its workers and the host goes on", function()
      local h = host.start(url, SCRIPT)
      q:push "grouped"
      local pid = sleeper(h)
      local keeper = host.member(h.pid, "ns-keeper")
      q:push("grandparent", fixture.dir() .. "/once")
      h:wait_line "keeper.died"
      gone { pid, keeper }
      done(q:push "noop")
      eventually(function() return #host.members(h.pid, "ns-keeper") == 1 end) -- its first fork bears that name, too
      stop(h, "QUIT")
    end)
  end)

  describe("kill -9 of the seed", function()
    it("is not noticed; a keeper that dies after it ends the host, and the jobs are given back", function()
      local h = host.start(url, SCRIPT)
      local keeper = host.member(h.pid, "ns-keeper")
      local seed = host.member(h.pid, "ns-seed")
      nst.kill(seed, "KILL")
      gone { seed }
      done(q:push "noop")
      local id = q:push "child"
      local pid = sleeper(h)
      nst.kill(keeper, "KILL")
      assert.equal(1, h:wait())
      gone { pid }
      assert.equal("ready", handle:job(id).state)
    end)
  end)
end)

-- Ways for a worker to die, and what the job's history says of each.
describe("causes of death:", function()
  local url, handle, q, cpath

  with_database(function(...) handle, q, url = ... end)

  local MODULE = [[
#include <lua.h>
#include <lauxlib.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static volatile int depth;
static int segv(lua_State *L) { *(volatile int *)8 = 1; return 0; }
static int deep(int n) { volatile char a[4096]; a[0] = (char)n; return n < 0 ? 0 : deep(n + 1) + a[0]; }
static int overflow(lua_State *L) { lua_pushinteger(L, deep(depth)); return 1; }
static int aborts(lua_State *L) { abort(); return 0; }
static int exits(lua_State *L) { exit((int)luaL_checkinteger(L, 1)); return 0; }
static int babbles(lua_State *L) {
  for (int fd = 3; fd < 64; fd++) if (write(fd, "\377\1\7nonsense", 11) < 0) continue;
  return 0;
}
static int hangs_up(lua_State *L) {
  for (int fd = 3; fd < 64; fd++) close(fd);
  return 0;
}
int luaopen_fault(lua_State *L) {
  static const luaL_Reg all[] = {{"segv", segv}, {"overflow", overflow}, {"abort", aborts}, {"exit", exits},
                                 {"babble", babbles}, {"hang_up", hangs_up},
                                 {NULL, NULL}};
  luaL_newlib(L, all);
  return 1;
}]]

  setup(function() cpath = fixture.module("fault", MODULE) end)

  -- `long` is an innocent in the next seat; `kin` kills an ancestor of its shell.
  local SCRIPT = [[
local fault = require "fault"
local function worker() return (io.open "/proc/self/stat":read "a"):match "^%d+" end
local function kill(signal) return function() os.execute("kill -" .. signal .. " " .. worker()) end end
local deaths = {
  sigkill = kill(9), sigbus = kill(7), segv = fault.segv, overflow = fault.overflow, abort = fault.abort,
  exit3 = function() fault.exit(3) end, exit0 = function() fault.exit(0) end,
  os_exit = function() os.exit(4, true) end,
}
local handlers = {
  noop = function() end,
  babbles = function() fault.babble() return "said" end,
  hangs_up = function() fault.hang_up() return "said" end,
  kin = function(job)
    local up = "p=$PPID; for i in $(seq %d); do p=$(ps -o ppid= -p $p); done; kill -9 $p; sleep 60"
    os.execute(up:format(job.payload))
  end,
  long = function() print "started" os.execute "sleep 2" return "undisturbed" end,
}
for name, die in pairs(deaths) do
  handlers[name] = function(job)
    if job.crashes > 0 and job.payload ~= "always" then return job.crashes end
    job:log "last words"
    job:log(name)
    die()
  end
end
return handlers]]

  local function start(args) return host.start(url, SCRIPT, args, { LUA_CPATH = proc.build .. "/?.so;" .. cpath }) end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  local signal = os.getenv "SAN" and "killed by signal %d+ %b()" or nil -- a sanitizer aborts where other builds fault

  local causes = {
    sigkill = "killed by signal 9 %(Killed%)",
    sigbus = signal or "killed by signal 7 %(Bus error%)",
    segv = signal or "killed by signal 11 %(Segmentation fault%)",
    overflow = signal or "killed by signal 11 %(Segmentation fault%)",
    abort = "killed by signal 6 %(Aborted%)",
    exit3 = "exited with status 3",
    exit0 = "exited with status 0",
    os_exit = "exited with status 4",
  }

  describe("a worker that dies of its job", function()
    it("is replaced at once; the job runs again and its history has the cause and the last lines", function()
      local h = start { "--workers", "4" }
      local long = q:push "long"
      h:wait_line "^started"
      for name, cause in pairs(causes) do
        local from = nst.clock()
        local id = q:push(name)
        local job = eventually(function()
          local job = handle:job(id)
          return job.state == "done" and job
        end)
        assert.is_true(nst.clock() - from < proc.limit(9), name) -- by the round: 10 s
        assert.same({ 1, 1, 0 }, { job.result, job.crashes, job.attempts }, name)
        local rows = handle:execute("SELECT error, log FROM nightshift_attempt WHERE job_id = ?", id)
        assert.equal(1, #rows, name)
        assert.matches("^worker " .. cause .. "$", rows[1].error)
        assert.equal("last words\n" .. name .. "\n", (rows[1].log:gsub("os.exit called.*", "")))
      end
      assert.equal("undisturbed", eventually(function() return handle:job(long).result end))
      assert.equal(0, handle:job(long).crashes)
      eventually(function() return #host.members(h.pid) == 4 end)
      stop(h)
    end)

    it("over and over makes the job dead as poison with every attempt, while others run on", function()
      local h = start()
      local bad = q:push("segv", "always", { max_crashes = 3 })
      eventually(function() return handle:job(bad).state == "dead" end)
      local row = handle:execute("SELECT reason, crashes FROM nightshift_finished WHERE id = ?", bad)[1]
      assert.same({ "poison", 3 }, { row.reason, row.crashes })
      assert.equal(3, #handle:execute("SELECT run FROM nightshift_attempt WHERE job_id = ?", bad))
      local id = q:push "noop"
      eventually(function() return handle:job(id).state == "done" end)
      stop(h)
    end)
  end)

  describe("a handler that writes into whatever descriptors it finds, or closes them,", function()
    it("harms neither its own job nor the host", function()
      local h = start { "--workers", "2" }
      for _ = 1, 20 do
        for _, name in ipairs { "babbles", "hangs_up", "noop" } do assert(q:push(name)) end
      end
      local rows = eventually(function()
        local rows = handle:execute [[SELECT name, result, crashes, attempts FROM nightshift_finished
        WHERE outcome = 'done']]
        return #rows == 60 and rows
      end)
      for _, row in ipairs(rows) do
        assert.same({ row.name, row.name ~= "noop" and '"said"' or nil, 0, 0 },
          { row.name, row.result, row.crashes, row.attempts })
      end
      stop(h)
    end)
  end)

  for up, who in ipairs { "zygote", "keeper", "seed" } do
    describe("a job that kills its " .. who .. " whenever it runs", function()
      it(up < 3 and "is poison; the host lives on" or "does not end the host", function()
        local h = start()
        local id = q:push("kin", up, up < 3 and { max_crashes = 2 } or { timeout = 1, max_attempts = 1 })
        eventually(function() return handle:job(id).state == "dead" end, 30)
        if up < 3 then
          local row = handle:execute("SELECT reason, crashes FROM nightshift_finished WHERE id = ?", id)[1]
          assert.same({ "poison", 2 }, { row.reason, row.crashes })
        end
        id = q:push "noop"
        eventually(function() return handle:job(id).state == "done" end)
        stop(h)
      end)
    end)
  end
end)
