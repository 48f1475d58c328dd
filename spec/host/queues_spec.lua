-- Reserved workers, stretches of jobs, hosts with nothing to do, and pauses.

local core = require "nightshift.core"
local crew = require "spec.support.crew"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- Reserved workers: they take jobs of one queue only, so slow jobs of other queues
-- never occupy them all.
describe("reserves:", function()
  local SCRIPT = [[
  local function hang(job)
    local seconds = job.payload or 600
    job:progress(0.5)
    while type(seconds) == "string" and not io.open(seconds) do require "nightshift.core".sleep(0.02) end
    if type(seconds) == "number" then os.execute("exec sleep " .. seconds) end
  end
  return { slow = hang, fast = function(job) return { pid = job.payload } end,
    nap = function() require "nightshift.core".sleep(0.02) end }]]

  local url, handle, slow, fast, h

  local function start(...)
    h = host.start(url, SCRIPT, { "--workers", "4", ... })
    return h
  end

  before_each(function()
    url = db.fresh()
    handle = assert(nightshift.open(url))
    slow, fast = handle:queue "slow", handle:queue "fast"
  end)

  after_each(function()
    if h then
      h:signal "QUIT"
      h:wait()
      h = nil
    end
    handle:close()
  end)

  local function pushed(q, name, n, payload)
    local items = {}
    for i = 1, n do items[i] = { name, payload } end
    return assert(q:push_many(items))
  end

  -- Slow jobs that a worker has begun.
  local function running(queue)
    local n = 0
    for _, row in ipairs(assert(handle:jobs { state = "running", queue = queue })) do
      if row.progress then n = n + 1 end
    end
    return n
  end

  --- Seconds from a push to the end of its job.
  local function took(q, name, payload)
    local from = nightshift.clock()
    local id = assert(q:push(name, payload))
    eventually(function() return handle:job(id).state == "done" end)
    return nightshift.clock() - from
  end

  describe("reserved workers", function()
    it("start a job at once while all others hang, and never take another queue's", function()
      start("--reserve", "fast=2")
      pushed(slow, "slow", 10)
      eventually(function() return running "slow" == 2 end)
      for _ = 1, 5 do assert.is_true(took(fast, "fast") < proc.limit(9)) end
      -- two workers are idle, eight slow jobs wait: nothing was claimed ahead
      assert.equal(2, running "slow")
      for _, row in ipairs(handle:stats().queues) do
        if row.name == "slow" then assert.same({ 2, 8 }, { row.running, row.ready }) end
      end
    end)

    it("take what was pushed before, and all that their queue has, one after the other", function()
      pushed(slow, "slow", 4)
      local ids = pushed(fast, "nap", 50)
      start("--reserve", "fast=1")
      eventually(function() return handle:job(ids[50]).state == "done" end)
      eventually(function() return running "slow" == 3 end)
    end)

    it("are not all: the others take jobs of that queue, too", function()
      start("--reserve", "fast=1")
      pushed(fast, "slow", 5)
      eventually(function() return running "fast" == 4 end)
    end)

    it("get jobs that others had taken first, once those are slow", function()
      start("--reserve", "fast=2")
      local ids = pushed(fast, "nap", 250) -- workers learn that jobs are short, and claim ahead
      eventually(function() return handle:job(ids[250]).state == "done" end)
      pushed(slow, "slow", 40)
      eventually(function() return running "slow" == 2 end)
      local more = pushed(fast, "nap", 100)
      eventually(function() return handle:job(more[100]).state == "done" end)
      assert.equal(2, running "slow")
    end)

    it("hear of a push when others come free in between", function()
      start("--reserve", "fast=2")
      for i = 1, 5 do
        local go = fixture.dir() .. "/go" .. i
        pushed(slow, "slow", 2, go)
        eventually(function() return running "slow" == 2 end)
        assert.is_true(took(fast, "fast") < proc.limit(9))
        assert(io.open(go, "w")):close()
        eventually(function() return running "slow" == 0 end)
        -- the listener has waited for fast jobs alone; now it must hear of slow ones
        assert.is_true(took(slow, "fast") < proc.limit(9))
        assert.is_true(took(fast, "fast") < proc.limit(9))
      end
    end)

    it("leave a host idle that is full with slow jobs", function()
      start("--reserve", "fast=1")
      pushed(slow, "slow", 50)
      eventually(function() return running "slow" == 3 end)
      local function claims() return tonumber(db.sql "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'":match "%d+") end
      took(fast, "fast")
      eventually(function()
        local before = claims()
        core.sleep(1)
        return claims() - before < 60
      end)
    end)

    it("may be all there are when each queue has its own", function()
      start("--reserve", "fast=2", "--reserve", "slow=2", "--queues", "fast,slow")
      pushed(slow, "slow", 5)
      eventually(function() return running "slow" == 2 end)
      assert.is_true(took(fast, "fast") < proc.limit(9))
      assert.equal(2, running "slow")
    end)

    it("work with shares, a paused queue, a reload, and are shown", function()
      start("--queues", "slow=3,fast=1", "--reserve", "fast=1")
      assert(fast:pause())
      pushed(slow, "slow", 5)
      eventually(function() return running "slow" == 3 end)
      local id = assert(fast:push "fast")
      h:signal "HUP"
      h:wait_line("reload.done", 20)
      assert.equal("ready", handle:job(id).state)
      assert(fast:resume())
      eventually(function() return handle:job(id).state == "done" end)
      h:signal "USR1"
      h:wait_line("dump.reserve", 20)
      assert.matches("queue=fast workers=1", (select(2, h:text())))
    end)

    it("drain to the end", function()
      pushed(slow, "nap", 20)
      pushed(fast, "nap", 20)
      local status = host.drain(url, SCRIPT, { "--workers", "3", "--reserve", "fast=1", "--drain-within", "500ms" })
      assert.equal(0, status)
      assert.equal(40, #handle:jobs { state = "done", limit = 100 })
    end)
  end)

  describe("work refuses", function()
    local function refused(pattern, ...)
      local command = { proc.program, "work", fixture.file("jobs.lua", SCRIPT), "--workers", "3", ... }
      command.env = { NIGHTSHIFT_URL = url }
      local status, _, err = proc.run(command)
      assert.equal(2, status)
      assert.matches(pattern, err)
    end

    it("a reserve that cannot be", function()
      refused("4 workers are reserved, but there are only 3", "--reserve", "a=4")
      refused("all 3 workers are reserved, and none is left", "--reserve", "a=1,b=2")
      refused("all 3 workers are reserved, and none is left", "--reserve", "a=3", "--queues", "a,b")
      refused("'c' is not among the queues", "--reserve", "c=1", "--queues", "a,b")
      refused("'a' is named twice", "--reserve", "a=1", "--reserve", "a=1")
      refused("'a' is not QUEUE=N", "--reserve", "a")
      refused("the workers of 'a' must be from 1 to 20000, got '0'", "--reserve", "a=0")
    end)

    it("an order that is not said, or is none", function()
      refused("say in which order", "--strict")
      refused("'a' cannot have a weight", "--strict", "--queues", "a=2,b")
    end)
  end)

  describe("strict order", function()
    it("serves the first queue before the next, and high priorities before low ones", function()
      local a, b = handle:queue "a", handle:queue "b"
      local low = assert(a:push("nap", nil, { priority = 0 }))
      pushed(b, "nap", 5)
      pushed(a, "nap", 100)
      host.drain(url, SCRIPT, { "--workers", "1", "--strict", "--queues", "a,b", "--drain-within", "500ms" })
      local function finished(which, where) -- of one commit are those with one instant
        return assert(handle:execute("SELECT " .. which .. [[(f.finished_at) AS at FROM nightshift_finished f
        JOIN nightshift_queue q ON q.id = f.queue_id WHERE ]] .. where, low))[1].at
      end
      assert.is_true(finished("MAX", "f.id <> ? AND q.name = 'a'") <= finished("MAX", "f.id = ?"))
      assert.is_true(finished("MAX", "f.id = ?") <= finished("MIN", "f.id <> ? AND q.name = 'b'"))
    end)
  end)
end)

-- Jobs that end in long stretches, as they were pushed: whole stretches of rows
-- move to the history at once, and it cannot be told.
describe("stretches:", function()
  local HANDLERS = [[return { noop = function() end, answer = function() return 42 end }]]

  describe("a stretch of jobs that are done", function()
    local url, handle, q

    local serve = host.lend(function(...) handle, q, url = ... end)

    local before -- how many are done
    local function all() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished")[1].n end
    local function done() return all() - before end

    before_each(function()
      serve(HANDLERS)
      before = all()
      assert(q:pause())
    end)

    local function push(n, name, options)
      local jobs = {}
      for i = 1, n do jobs[i] = { name or "noop", i, options } end
      return assert(q:push_many(jobs))
    end

    it("leaves one that somebody holds for later", function()
      local ids = push(200)
      local other <close> = assert(core.open { url = url })
      assert(other:begin())
      assert(other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", ids[100]))
      assert(q:resume())
      eventually(function() return done() == 199 end)
      assert.equal("running", handle:job(ids[100]).state)
      assert(other:rollback())
      eventually(function() return done() == 200 end)
    end)

    it("passes over those that were ended while they ran", function()
      local ids = push(200)
      local held <close> = assert(core.open { url = url })
      assert(held:begin())
      assert(held:execute("SELECT id FROM nightshift_job WHERE id BETWEEN ? AND ? FOR UPDATE", ids[1], ids[200]))
      assert(q:resume())
      eventually(function() return handle:job(ids[200]).state == "running" end)
      -- as db:cancel and db:retry do: their rows are gone, or have another run
      assert(held:execute("DELETE FROM nightshift_job WHERE id = ?", ids[50]))
      assert(held:execute("UPDATE nightshift_job SET run = 7 WHERE id = ?", ids[60]))
      assert(held:commit())
      eventually(function() return done() == 198 end)
      assert.same({ 0, 7 }, {
        handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished WHERE id IN (?, ?)", ids[50], ids[60])[1].n,
        handle:execute("SELECT run FROM nightshift_job WHERE id = ?", ids[60])[1].run,
      })
      assert(handle:execute("DELETE FROM nightshift_job WHERE id = ?", ids[60]))
    end)

    it("leaves the same history as jobs that end one by one", function()
      local options = { priority = 120, max_attempts = 4, max_polls = 9, backoff = 3, timeout = 77, deadline = 3600 }
      local ids = push(100, "noop", options)
      local one = assert(q:push("answer", 1, options))
      assert(q:resume())
      eventually(function() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n == 0 end)
      local function row(id)
        local r = assert(handle:execute("SELECT * FROM nightshift_finished WHERE id = ?", id))[1]
        for _, name in ipairs { "id", "name", "payload", "nonce", "result", "holder" } do r[name] = nil end
        for _, name in ipairs { "created", "started", "finished_at", "deadline", "worker" } do
          r[name] = r[name] > 0
        end
        return r
      end
      assert.same(row(one), row(ids[50]))
      assert.equal(101, done())
      assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
      eventually(function() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_lease")[1].n == 0 end)
    end)

    it("releases what waited for them", function()
      local ids = push(100)
      local join = assert(q:push("noop", nil, { after = ids }))
      assert(q:resume())
      eventually(function() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n == 0 end)
      assert.equal("done", handle:job(join).state)
    end)
  end)

  describe("a host that keeps the history of failures only", function()
    local HISTORY = { "--drain-within", "500ms", "--history", "failed" }
    local MORE = [[return {
    noop = function() end,
    answer = function(job) return job.payload end,
    parent = function(job)
      if job.phase > 0 then return #job.results end
      for i = 1, 20 do job:spawn("noop", i) end
      return job:wait()
    end,
    bad = function(job) return job:discard "no" end,
  }]]
    local url, handle, q

    before_each(function()
      url = db.fresh()
      handle = assert(nightshift.open(url))
      q = handle:queue "q"
    end)

    after_each(function() handle:close() end)

    it("forgets what is done and keeps what is dead", function()
      for i = 1, 50 do assert(q:push("noop", i)) end
      for i = 1, 50 do assert(q:push("answer", i, { unique = "k" .. i })) end
      local dead = assert(q:push "bad")
      assert.equal(0, host.drain(url, MORE, HISTORY))
      local rows = assert(handle:execute "SELECT id, outcome FROM nightshift_finished")
      assert.same({ { id = dead, outcome = "dead" } }, rows)
      for _, name in ipairs { "job", "ready", "lease", "unique_key" } do
        assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_" .. name .. " WHERE "
          .. (name == "ready" and "job_id > 0" or "TRUE"))[1].n, name)
      end
    end)

    it("keeps children, whose parents ask for them, and lets go what waits", function()
      local parent = assert(q:push "parent")
      local after = assert(q:push("noop", nil, { after = { parent } }))
      assert.equal(0, host.drain(url, MORE, HISTORY))
      assert.equal(20, handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished WHERE parent = ?", parent)[1].n)
      for _, id in ipairs { parent, after } do
        assert.same({ nil, "NOT_FOUND" }, { handle:job(id), select(3, handle:job(id)) })
      end
      assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
    end)

    it("leaves one that somebody holds for later", function()
      local ids = {}
      for i = 1, 50 do ids[i] = assert(q:push("noop", i)) end
      local other <close> = assert(core.open { url = url })
      assert(other:begin())
      assert(other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", ids[20]))
      local h = host.start(url, MORE, { "--history", "failed" })
      local function live() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n end
      eventually(function() return live() == 1 end)
      assert(other:rollback())
      eventually(function() return live() == 0 end)
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("is there for embedded handles, too", function()
      local short <close> = assert(nightshift.open { url = url, history = "failed" })
      assert(q:push "noop")
      assert(short:queue("q"):claim():ack())
      assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished")[1].n)
      assert.same({ nil, "INVALID" }, { (nightshift.open { url = url, history = "none" }),
        (select(3, nightshift.open { url = url, history = "none" })) })
    end)
  end)
end)

-- A host with nothing to do does nothing, and starts what comes at once.
describe("an idle host", function()
  local function cpu_ticks(pid)
    local file <close> = io.open(("/proc/%d/stat"):format(pid))
    local user, system = file:read("a"):match "%) %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ (%d+) (%d+)"
    return user + system
  end

  it("asks the server nothing and takes no time", function()
    local server = db.spare()
    local url = server:fresh()
    local h = host.start(url, "return { a = function() end }")
    local function questions()
      return tonumber(server:sql("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'"):match "%d+")
    end
    eventually(function() -- a window that nothing of a slow start falls into
      local before, ticks = questions(), cpu_ticks(h.pid)
      nst.sleep(4)
      -- a listener's turn or a ping may fall into this window
      return questions() - before <= 8 and cpu_ticks(h.pid) - ticks <= 1
    end, 40)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("starts a pushed job at once", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local h = host.start(url, [[
    local nightshift = require "nightshift"
    return { when = function() return nightshift.clock() end }]])
    local delays = {}
    for i = 1, 5 do
      nst.sleep(0.6)
      local pushed = nightshift.clock()
      local id = q:push "when"
      delays[i] = eventually(function() return handle:job(id).result end) - pushed
    end
    table.sort(delays)
    assert.is_true(delays[2] < proc.limit(0.9), delays[2]) -- lost: 1.1 s
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("starts a delayed job when it is due", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local h = host.start(url, [[
    local nightshift = require "nightshift"
    return { when = function() return nightshift.clock() end }]])
    local least = math.huge
    for _ = 1, 10 do -- a busy machine is late now and then
      local pushed = nightshift.clock()
      local id = handle:queue("q"):push("when", nil, { delay = 0.5 })
      local took = eventually(function() return handle:job(id).result end) - pushed
      assert.is_true(took >= 0.5, took)
      least = math.min(least, took)
      if least < 0.5 + proc.limit(0.2) then break end
    end
    assert.is_true(least < 0.5 + proc.limit(0.2), least)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- Hosts that die, stop, or lose their connection: their jobs run elsewhere.
describe("a host that", function()
  local url, trace, script, handle, q

  with_database(function(...)
    handle, q, url = ...
    trace = fixture.file("trace", "")
    script = fixture.file("jobs.lua", ([[
      local function note(what, job)
        local f <close> = io.open(%q, "a")
        f:write(what, " ", job.id, " ", job.run, " ", (require "nightshift".clock()), "\n")
      end
      return {
        long = function(job)
          note("start", job)
          if job.run == 1 then
            for i = 1, 3000 do
              require "nightshift.core".sleep(0.02)
              if job:cancelled() then note("told", job) error "told" end
            end
          end
          note("finish", job)
        end,
        quick = function(job) note("finish", job) end,
      }]]):format(trace))
  end)

  local function sql(text) return db.sql(text, url:match "/([^/?]+)%?") end

  local function lines(pattern)
    local n, last = 0, nil
    for line in io.lines(trace) do
      if line:find(pattern) then n, last = n + 1, line end
    end
    return n, last
  end

  local function start(...) return host.start(url, script, { "--workers", "4", ... }) end

  -- A host with a long job in hand, and another one to take over.
  local function pair()
    local first = start()
    local id = assert(q:push("long"))
    eventually(function() return lines "^start" == 1 end)
    local second = start()
    return first, second, id
  end

  local function connections(h)
    local list = {}
    for id in sql(("SELECT connection FROM nightshift_holder WHERE pid = %d"):format(h.pid)):gmatch "%d+" do
      list[#list + 1] = id
    end
    return list
  end

  it("is killed with -9 loses its jobs to another one at once", function()
    local first, second, id = pair()
    local killed = nightshift.clock()
    first:signal "KILL"
    eventually(function() return assert(handle:job(id)).state == "done" end)
    local _, line = lines(("^start %d 2"):format(id))
    assert.is_true(tonumber(line:match "[%d.]+$") - killed < proc.limit(9)) -- by the round: 10 s
    local attempts = sql("SELECT kind FROM nightshift_attempt WHERE job_id = " .. id)
    assert.equal("lost", attempts)
    second:signal "TERM"
    assert.equal(0, second:wait())
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
  end)

  it("is stopped is given up with its connection; later its verdict is refused and its handler told", function()
    local first, second, id = pair()
    first:signal "STOP"
    for _, thread in ipairs(connections(first)) do sql("KILL " .. thread) end -- as the server does after 30 s
    eventually(function() return assert(handle:job(id)).state == "done" end, 40)
    first:signal "CONT"
    eventually(function() return lines(("^told %d 1"):format(id)) == 1 end, 20)
    first:wait_line "event=holder.lost"
    local after = assert(q:push("quick"))
    second:signal "TERM"
    assert.equal(0, second:wait())
    eventually(function() return assert(handle:job(after)).state == "done" end) -- it works on, under a new name
    first:signal "TERM"
    assert.equal(0, first:wait())
    assert.equal(2, (lines(("^start %d"):format(id))))
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
  end)

  it("lives but loses its connection comes back before anybody takes its jobs", function()
    local first, second, id = pair()
    for _ = 1, 3 do
      local before = connections(first)[1]
      sql("KILL " .. before)
      eventually(function() return connections(first)[1] ~= before end)
    end
    nightshift.open(url):close()
    assert.is_nil(first:transcript():find "holder.lost")
    assert.equal("running", assert(handle:job(id)).state)
    assert.equal(1, assert(handle:job(id)).run)
    assert(handle:cancel(id))
    for _, h in ipairs { first, second } do
      h:signal "TERM"
      assert.equal(0, h:wait())
    end
  end)

  it("runs a job that is cancelled tells its handler", function()
    local h = start()
    local id = assert(q:push("long"))
    eventually(function() return lines "^start" == 1 end)
    local asked = nightshift.clock()
    assert(handle:cancel(id))
    eventually(function() return lines "^told" == 1 end)
    assert.is_true(nightshift.clock() - asked < proc.limit(9)) -- by the round: 10 s
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_notice")
  end)

  it("has prefetched innocent jobs does not condemn them when one of them kills it", function()
    local killer = fixture.file("killer.lua", [[
      local function stat(pid)
        local f <close> = io.open(("/proc/%s/stat"):format(pid))
        local name, parent = f:read "a":match "%((.-)%) %a (%d+)"
        return parent, name
      end
      local function host()
        local pid = stat "self"
        while select(2, stat(pid)) ~= "nightshift" do pid = stat(pid) end
        return pid
      end
      return {
        killer = function()
          os.execute("kill -9 " .. host())
          os.execute "sleep 5"
        end,
        innocent = function() require "nightshift.core".sleep(0.01) end,
      }]])
    local items = {}
    for i = 1, 200 do items[i] = { "innocent", i, { max_crashes = 1 } } end
    items[50] = { "killer", 0, { max_crashes = 3 } }
    local ids = assert(q:push_many(items))
    local deaths = 0
    while assert(handle:job(ids[50])).state ~= "dead" and deaths < 12 do
      local h = host.spawn(url, killer, { "--workers", "4", "--drain-within", "2s" })
      if h:wait(60) == 0 then break end
      deaths = deaths + 1
      eventually(function() -- the server hears of its end a moment later
        return handle:rescue() and sql "SELECT COUNT(*) FROM nightshift_lease" == "0"
      end)
    end
    host.drain(url, killer, { "--drain-within", "2s" })
    local job = assert(handle:job(ids[50]))
    assert.equal("poison", job.reason)
    assert.equal(5, deaths)
    assert.equal("199", sql "SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'")
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
  end)
end)

describe("a queue is removed", function()
  local url, handle, database, q

  with_database(function(...) handle, q, url, database = ... end)

  local function shown()
    local names = {}
    for i, row in ipairs(assert(handle:stats()).queues) do names[i] = row.name end
    return table.concat(names, " ")
  end

  local function run_all(name)
    local queue, n = assert(handle:queue(name)), 0
    for job in function() return queue:claim() end do
      assert(job:ack())
      n = n + 1
    end
    return n
  end

  it("once it has no live job, with its pause; its history stays, and the next push makes it anew", function()
    local id = assert(q:push "n")
    local ok, message, code = handle:remove_queue "q"
    assert.same({ nil, "queue 'q' is needed: it has a live job: let them end, or move, cancel or delete them",
      "STATE" }, { ok, message, code })
    assert.equal(1, run_all "q")
    assert(q:pause())
    assert.is_true(handle:remove_queue "q")
    assert.equal("", shown())
    assert.equal("q", handle:job(id).queue)
    assert.equal(id, handle:jobs { queue = "q" }[1].id)
    assert.equal("NOT_FOUND", select(3, handle:remove_queue "q"))
    assert.equal("NOT_FOUND", select(3, handle:remove_queue "none"))
    assert.equal("INVALID", select(3, handle:remove_queue ""))
    assert.error_matches(function() handle:remove_queue(5) end, "remove_queue: the name must be a string")
    local other <close> = assert(nightshift.open(url))
    assert(other:queue "q":push "n")
    assert.equal("q", shown())
    assert.equal(1, run_all "q")
    assert.equal("q", shown())
  end)

  it("not while a schedule, on_dead, an adopted table or a host needs it", function()
    local function refused(what)
      local ok, message, code = handle:remove_queue "q"
      assert.same({ nil, "STATE" }, { ok, code })
      assert.matches("^queue 'q' is needed: " .. what, message)
    end
    assert(q:push "n")
    assert.equal(1, run_all "q")
    assert(handle:schedule { name = "s", every = "1d", push = { "n", nil, { queue = "q" } } })
    refused "the schedule 's' pushes to it"
    assert(handle:schedule_remove "s")
    assert(handle:execute "INSERT INTO nightshift_on_dead VALUES ('a', 'b', 'q')")
    refused "on_dead of 'a'"
    assert(handle:execute "DELETE FROM nightshift_on_dead")
    local h = host.start(url, "return { n = function() end }", { "--queues", "q=2,p" })
    eventually(function() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_served")[1].n == 1 end)
    refused "host .* %(pid %d+%) serves it by name"
    host.stop(h)
    assert.is_true(handle:remove_queue "q")
  end)

  it("and is there again for a push from SQL, and for a handle or a host that knew it before", function()
    local old <close> = assert(nightshift.open(url))
    assert(old:queue "q":push "n")
    assert.equal(1, run_all "q")
    assert.is_true(handle:remove_queue "q")
    db.sql("CALL nightshift_push('q', 'n', 'null', NULL)", database)
    assert.equal("0", db.sql("SELECT removed FROM nightshift_queue WHERE name = 'q'", database))
    assert.equal(1, run_all "q")
    assert.is_true(handle:remove_queue "q")
    assert(old:queue "q":push "n") -- with the id that it knows
    assert.equal("q", shown())
    local claimer <close> = assert(nightshift.open(url))
    assert(assert(claimer:queue "q":claim()):ack())
    assert.equal("q", shown())
    assert.is_true(handle:remove_queue "q")
    assert(old:queue "q":push "n")
    assert.equal(0, (host.drain(url, "return { n = function() end }", { "--drain-within", "100ms" })))
    assert.equal("q", shown())
  end)

  it("beside ten pushers, and no job is lost", function()
    local pushers = crew.fork(10, function(i)
      local own = assert(nightshift.open(url))
      local queue = assert(own:queue "q")
      for k = 1, 20 do
        if i % 2 == 0 and k % 5 == 0 then
          own:close()
          own = assert(nightshift.open(url))
          queue = assert(own:queue "q")
        end
        assert(queue:push("n", k))
      end
      own:close()
    end)
    local removed, done = 0, 0
    eventually(function()
      if handle:remove_queue "q" then removed = removed + 1 end
      done = done + run_all "q"
      return done == 200
    end, 30)
    pushers:wait(60)
    assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
    assert.equal(200, handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished")[1].n)
    assert(q:push "n")
    assert.equal("q", shown())
  end)

  it("by the shell", function()
    assert(q:push "n")
    local status, _, err = proc.nightshift({ "remove-queue", "q" }, url)
    assert.equal(1, status)
    assert.matches("it has a live job", err)
    assert.equal(1, run_all "q")
    local text
    status, text = proc.nightshift({ "remove-queue", "q" }, url)
    assert.same({ 0, "q removed\n" }, { status, text })
  end)
end)

-- Kill-switches: names of jobs that are paused, all queues at once, a queue before its first push.
describe("switches:", function()
  local SCRIPT = [[return { a = function() end, b = function() end,
    hold = function(job) while not io.open(job.payload) do require "nightshift.core".sleep(0.02) end end }]]

  local url, name, handle, q

  with_database(function(...) handle, q, url, name = ... end)

  local function state(id) return handle:job(id).state end

  local function done(id) eventually(function() return state(id) == "done" end) end

  -- A host that has told of its pauses, so it obeys from now on.
  local function told(h, what) h:wait_line(what, 20) end

  local function started(what)
    local h = host.start(url, SCRIPT)
    told(h, what)
    return h
  end

  describe("a name that is paused", function()
    it("is claimed by no program, in any queue, until it is resumed", function()
      local ids = { assert(q:push "a"), assert(q:push "b"), assert(handle:queue("r"):push "a") }
      assert.is_true(handle:pause_name "a")
      assert.is_false(handle:pause_name "a")
      local other <close> = assert(nightshift.open(url))
      local job = assert(other:queue("q"):claim())
      assert.equal("b", job.name)
      assert(job:ack())
      assert.is_nil(other:queue("q"):claim())
      assert.is_nil(q:claim { names = { "a", "b" } })
      assert.is_nil(handle:queue("r"):claim())
      assert.equal("ready", state(ids[1]))
      assert.is_true(other:resume_name "a")
      assert.is_false(other:resume_name "a")
      assert.equal(ids[1], q:claim { names = { "a" } }.id)
      assert.equal(ids[3], other:queue("r"):claim().id)
    end)

    it("is left alone where its row does not tell its name, and other names of programs go on", function()
      local id = assert(q:push "a")
      assert(handle:execute("UPDATE nightshift_ready SET kind = 0 WHERE job_id = ?", id))
      assert(handle:pause_name "a")
      assert.is_nil(q:claim())
      assert.is_nil(q:claim())
      assert(q:push "b")
      assert.equal("b", q:claim().name)
    end)

    it("wakes a program that waits when it is resumed, also one that waits for that name", function()
      assert(handle:pause_name "a")
      local id = assert(q:push "a")
      for _, names in ipairs { "nil", "{ 'a' }" } do
        local script = fixture.file("claim.lua", ([[
          local db = assert(require "nightshift".open(%q))
          print "waits"
          io.stdout:flush()
          local job = assert(db:queue "q":claim { wait = 60, names = %s })
          assert(job:release())
          print(job.id)
        ]]):format(url, names))
        local program = proc.start { proc.lua, script }
        program:wait_line("waits", 20)
        eventually(function() return handle:execute "SELECT COUNT(*) AS n FROM nightshift_listener"[1].n > 0 end)
        local from = nightshift.clock()
        assert.is_true(handle:resume_name "a")
        assert.equal(0, program:wait())
        assert.is_true(nightshift.clock() - from < proc.limit(5))
        assert.equal(("waits\n%d\n"):format(id), (program:text()))
        assert.is_true(handle:pause_name "a")
      end
    end)

    it("starts on no host until it is resumed; what runs goes on, and hosts that come later obey", function()
      local go = fixture.dir() .. "/go"
      local one = host.start(url, SCRIPT)
      local running = assert(q:push("hold", go))
      eventually(function() return state(running) == "running" end)
      assert(handle:pause_name "hold")
      assert(handle:pause_name "a")
      told(one, "names.paused names=\"a, hold\"")
      local two = started "names.paused"
      local ids = { assert(q:push "a"), assert(handle:queue("new"):push "a") }
      for _ = 1, 20 do done(assert(q:push "b")) end
      assert.same({ "ready", "ready", "running" }, { state(ids[1]), state(ids[2]), state(running) })
      assert(io.open(go, "w")):close()
      done(running)
      one:signal "KILL"
      one:wait()
      assert(handle:resume_name "a")
      for _, id in ipairs(ids) do done(id) end
      told(two, "names.paused names=hold")
      assert(handle:resume_name "hold")
      told(two, "names.resumed")
      host.stop(two)
    end)

    it("wakes each host at once when it is resumed, whichever has its handler", function()
      local hosts = { host.start(url, "return { c = function() end }"), host.start(url, SCRIPT),
        host.start(url, "return { c = function() end }") }
      assert(handle:pause_name "a")
      for round = 1, 3 do
        local id = assert(q:push "a")
        nst.sleep(0.05 * round) -- their looks at the queues become rare
        local from = nightshift.clock()
        assert(handle:resume_name "a")
        done(id)
        assert.is_true(nightshift.clock() - from < proc.limit(2))
        assert(handle:pause_name "a")
      end
      for _, h in ipairs(hosts) do host.stop(h) end
    end)

    it("comes back to no host when its host is killed in it", function()
      local go = fixture.dir() .. "/go"
      local one = host.start(url, SCRIPT)
      local id = assert(q:push("hold", go))
      eventually(function() return state(id) == "running" end)
      assert(handle:pause_name "hold")
      one:signal "KILL"
      one:wait()
      local two = host.start(url, SCRIPT)
      eventually(function() return state(id) == "ready" end, 30)
      done(assert(q:push "b"))
      assert.equal("ready", state(id))
      assert(io.open(go, "w")):close()
      assert(handle:resume_name "hold")
      done(id)
      host.stop(two)
    end)

    it("leaves an idle host asleep beside its ready jobs", function()
      assert(handle:pause_name "a")
      assert(q:push "a")
      local h = started "names.paused"
      host.await_quiet()
      host.stop(h)
    end)
  end)

  describe("all queues that are paused", function()
    it("start nothing anywhere, new ones among them, until all are resumed", function()
      local ids = { assert(q:push "a") }
      assert.is_true(handle:pause_all())
      assert.is_false(handle:pause_all())
      ids[2] = assert(handle:queue("later"):push "a")
      assert.is_nil(q:claim())
      assert.is_nil(handle:queue("later"):claim())
      local h = started "names.paused"
      ids[3] = assert(handle:queue("latest"):push "b")
      nst.sleep(0.5) -- nothing is to happen
      for _, id in ipairs(ids) do assert.equal("ready", state(id)) end
      for _, row in ipairs(handle:stats().queues) do assert.is_true(row.paused) end
      local from = nightshift.clock()
      assert.is_true(handle:resume_all())
      assert.is_false(handle:resume_all())
      for _, id in ipairs(ids) do done(id) end
      assert.is_true(nightshift.clock() - from < proc.limit(5))
      host.stop(h)
    end)

    it("leave an idle host asleep", function()
      assert(q:push "a")
      assert(handle:pause_all())
      local h = started "names.paused"
      host.await_quiet()
      host.stop(h)
    end)
  end)

  it("a drain ends while all that is left is paused", function()
    local left = { assert(q:push "a"), assert(q:push("a", nil, { delay = 0.2 })) }
    local work = assert(q:push "b")
    assert(handle:pause_name "a")
    local status, log = host.drain(url, SCRIPT)
    assert.equal(0, status, log)
    assert.equal("done", state(work))
    work = assert(q:push "b")
    assert(handle:resume_name "a")
    assert(handle:pause_all())
    status, log = host.drain(url, SCRIPT)
    assert.equal(0, status, log)
    assert.same({ "ready", "ready" }, { state(left[1]), state(work) })
  end)

  it("a queue is paused before its first push", function()
    assert.is_true(handle:queue("mail"):pause())
    local id = assert(handle:queue("mail"):push "a")
    assert.is_nil(handle:queue("mail"):claim())
    assert(handle:queue("mail"):resume())
    assert.equal(id, handle:queue("mail"):claim().id)
    assert.equal("NOT_FOUND", select(3, handle:queue("other"):resume()))
  end)

  it("a pause in a transaction counts when that is committed", function()
    local id = assert(q:push "a")
    assert.has_error(function()
      handle:transaction(function()
        assert(handle:pause_name "a")
        error "no"
      end)
    end)
    assert(handle:transaction(function() assert(handle:pause_name "b") end))
    assert.equal(id, q:claim().id)
    assert.equal("1", (db.sql("SELECT COUNT(*) FROM nightshift_paused_name WHERE name = 'b'", name)))
  end)

  it("refuses what is no name", function()
    assert.equal("INVALID", select(3, handle:pause_name ""))
    assert.equal("INVALID", select(3, handle:resume_name(("x"):rep(101))))
    assert.has_error(function() handle:pause_name() end, "nightshift: pause_name: the name must be a string, got nil")
  end)

  it("why, status, doctor and the shell say so", function()
    local id, later = assert(q:push "a"), assert(q:push("a", nil, { delay = 60 }))
    local function run(...)
      local status, out, err = proc.nightshift({ ... }, url)
      assert.is_true(status <= 1 or status == 4, err) -- 4: doctor warns
      return out, status
    end
    assert.equal("jobs named a: paused\njobs named b c: paused\n", run("pause", "--name", "a", "b c"))
    assert.equal("jobs named a: paused before\nevery queue: paused\n", run("pause", "--name", "a", "--all"))
    local says, fact = handle:why(id)
    assert.same({ "all_paused", "is ready, but every queue is paused" }, { fact.kind, says:match "is ready.*" })
    assert.matches("every queue is paused, since .*jobs named a are paused, since .*jobs named b c are",
      (run "status"))
    assert.matches("warn +paused +paused: every queue, jobs named 'a', jobs named 'b c'", (run "doctor"))
    assert.equal("every queue: resumed\n", run("resume", "--all"))
    says, fact = handle:why(id)
    assert.same({ "name_paused", "is ready, but jobs named 'a' are paused" }, { fact.kind, says:match "is ready.*" })
    assert.is_true(select(2, handle:why(later)).name_paused)
    local paused = handle:stats().paused
    assert.same({ nil, "a", "b c" }, { paused.all, paused.names[1].name, paused.names[2].name })
    assert.equal("jobs named a: resumed\njobs named x: not paused\n", run("resume", "--name", "a", "--name", "x"))
    assert.equal("mail paused\n", run("pause", "mail"))
  end)
end)
