-- Processes that die or are stopped, and the outcomes of their jobs: workers, zygote, keeper
-- and host that are killed. Running jobs that are told, interrupted, and get SIGTERM and
-- SIGKILL. Then jobs that are pushed when other jobs are dead: by each road to a death, once, in
-- the transaction that writes it. Their payload, and how scripts declare them.

local core = require "nightshift.core"
local db = require "spec.support.db"
local designs = require "spec.support.designs"
local handlers = require "nightshift.handlers"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local url, handle, q, database

with_database(function(...) handle, q, url, database = ... end)

-- sleep runs for ever the first time and not the second
local SCRIPT = [[
local function pid() return (io.open "/proc/self/stat":read "a"):match "^%d+" end
return {
  hang = function(job)
    print("started " .. pid())
    if job.crashes == 0 and job.attempt == 1 then os.execute "sleep 60" end
    return { crashes = job.crashes, attempt = job.attempt }
  end,
  die = function(job) job:log "last words" os.execute("kill -9 " .. pid()) end,
  noop = function() end,
  mark = function(job) print("ran " .. job.id) end,
  slow = function() os.execute "sleep 60" end,
}]]

local function stop(h)
  h:signal "TERM"
  assert.equal(0, h:wait())
end

describe("kill -9 of a worker", function()
  it("counts as a crash of its job, which runs again at once", function()
    local h = host.start(url, SCRIPT)
    local delays = {}
    for i = 1, 5 do
      local id = q:push "hang"
      local pid = tonumber(h:wait_line("^started (%d+)", 20, 2 * i - 1))
      local start = nst.clock()
      nst.kill(pid, "KILL")
      h:wait_line("^started", 20, 2 * i)
      delays[i] = nst.clock() - start
      eventually(function() return handle:job(id).state == "done" end)
      assert.same({ crashes = 1, attempt = 1 }, handle:job(id).result)
      h:wait_line('job.crashed .*error="worker killed by signal 9 %(Killed%)"', 20, i)
      eventually(function() return #host.members(h.pid) == 2 end)
    end
    table.sort(delays)
    assert.is_true(delays[1] < 0.1 + proc.limit(0.6), delays[1]) -- as if it were the second crash: 1 s
    stop(h)
  end)

  it("again and again makes the job dead, and only that job", function()
    local ids = {}
    for i = 1, 20 do ids[i] = q:push "noop" end
    local bad = q:push("die", nil, { max_crashes = 3 })
    for i = 21, 40 do ids[i] = q:push "noop" end
    assert.equal(0, (host.drain(url, SCRIPT, { "--drain-within", "2s" })))
    local job = handle:job(bad)
    assert.same({ "dead", 3 }, { job.state, job.crashes })
    assert.matches("worker killed by signal 9", job.error)
    for _, id in ipairs(ids) do assert.same({ "done", 0 }, { handle:job(id).state, handle:job(id).crashes }) end
    local rows = handle:execute("SELECT log FROM nightshift_attempt WHERE job_id = ?", bad)
    assert.equal("last words\n", rows[1].log)
  end)

  it("while it is idle costs nothing but a fork", function()
    local h = host.start(url, SCRIPT)
    nst.kill(host.member(h.pid), "KILL")
    h:wait_line "worker.died"
    eventually(function() return #host.members(h.pid) == 2 end)
    local id = q:push "noop"
    eventually(function() return handle:job(id).state == "done" end)
    stop(h)
  end)

  it("in the middle of thousands of jobs loses none and blames only what ran", function()
    local items = {}
    for i = 1, 2000 do items[i] = { "noop" } end
    assert(q:push_many(items))
    local h = host.start(url, SCRIPT, { "--drain", "--workers", "4" })
    for _ = 1, 10 do
      local workers = host.members(h.pid)
      if #workers > 0 then nst.kill(workers[math.random(#workers)], "KILL") end
      nst.sleep(0.02)
    end
    assert.equal(0, h:wait(60))
    local counts = handle:execute(
      "SELECT COUNT(*) AS n, SUM(outcome = 'done') AS done, MAX(crashes) AS crashes FROM nightshift_finished")[1]
    assert.equal(2000, counts.n)
    assert.equal(2000, tonumber(counts.done))
  end)
end)

describe("a worker that dies of its own fault", function()
  it("is a crash that names the signal", function()
    local id = q:push("fault", nil, { max_crashes = 1 })
    host.drain(url, [[return { fault = function()
      os.execute("kill -7 " .. (io.open "/proc/self/stat":read "a"):match "^%d+")
    end }]])
    assert.matches("worker killed by signal 7 %(Bus error%)", handle:job(id).error)
  end)
end)

describe("workers that die one after the other", function()
  it("are replaced more and more slowly", function()
    for _ = 1, 4 do q:push("die", nil, { max_crashes = 10 }) end
    local h = host.start(url, SCRIPT)
    h:wait_line("worker.crash_loop", 20, 2)
    stop(h)
  end)
end)

describe("a job over its timeout", function()
  it("is stopped and fails; nothing is blamed on the worker", function()
    local id = q:push("slow", nil, { timeout = 0.2, max_attempts = 1 })
    local status, log = host.drain(url, SCRIPT)
    assert.equal(0, status)
    local job = handle:job(id)
    assert.same({ "dead", 0 }, { job.state, job.crashes })
    assert.matches("timeout after 0.2 s", job.error, 1, true)
    assert.is_nil(host.death(log))
  end)

  it("is killed when it does not listen", function()
    local id = q:push("deaf", nil, { timeout = 0.2, max_attempts = 1 })
    local start = nst.clock()
    host.drain(url, [[return { deaf = function()
      os.execute("kill -STOP " .. (io.open "/proc/self/stat":read "a"):match "^%d+")
    end }]])
    assert.matches("timeout after 0.2 s", handle:job(id).error, 1, true)
    assert.is_true(nst.clock() - start > 2)
  end)
end)

describe("a short job behind a long one", function()
  it("does not wait for it", function()
    local h = host.start(url, SCRIPT)
    local items = {}
    for i = 1, 1200 do items[i] = { "noop" } end -- the host learns that jobs are short
    items[601] = { "hang" }
    local ids = assert(q:push_many(items))
    eventually(function() return handle:job(ids[602]).state == "done" and handle:job(ids[1200]).state == "done" end)
    eventually(function()
      return #handle:execute "SELECT id FROM nightshift_finished" == 1199
    end)
    assert.equal("running", handle:job(ids[601]).state)
    h:signal "QUIT"
    assert.equal(0, h:wait())
  end)
end)

describe("kill -9 of the zygote", function()
  it("is survived: a new one is made and the jobs run again", function()
    local h = host.start(url, SCRIPT)
    local id = q:push "hang"
    h:wait_line "^started"
    nst.kill(host.member(h.pid, "ns-zygote"), "KILL")
    h:wait_line "zygote.died"
    eventually(function() return handle:job(id).state == "done" end)
    assert.equal(1, handle:job(id).result.crashes)
    stop(h)
  end)
end)

describe("kill -9 of the keeper", function()
  it("is survived: a new one is made and the jobs run again", function()
    local h = host.start(url, SCRIPT)
    local id = q:push "hang"
    h:wait_line "^started"
    nst.kill(host.member(h.pid, "ns-keeper"), "KILL")
    h:wait_line "keeper.died"
    eventually(function() return handle:job(id).state == "done" end)
    assert.equal(1, handle:job(id).result.crashes)
    stop(h)
  end)
end)

describe("kill -9 of the host", function()
  it("leaves no process", function()
    local h = host.start(url, SCRIPT, { "--workers", "5" })
    q:push "hang"
    h:wait_line "^started"
    local family
    eventually(function() -- a process that is being forked has its parent's name for a moment
      family = {}
      for _, name in ipairs { "ns-keeper", "ns-zygote", "ns-worker" } do
        for _, pid in ipairs(host.members(h.pid, name)) do family[#family + 1] = pid end
      end
      return #family == 7
    end)
    h:signal "KILL"
    h:wait()
    host.await_gone(family)
  end)
end)

local ONCE = { timeout = 0.2, max_attempts = 1 }

-- ThreadSanitizer keeps signals back until the program calls the system.
local function signals_arrive()
  if os.getenv "SAN" ~= "thread" then return true end
  pending "not under ThreadSanitizer: a loop gets no signals"
end

-- One host for the jobs with a timeout, and its database.
local lab, serve

-- Runs one job that has a timeout until it has ended; the job, the log and
-- whether the worker lived on.
local function work(body, options)
  local h = serve(("local spin = function() while true do end end\nreturn { job = function(job) %s end }"):format(body))
  local id = assert(lab:queue "q":push("job", nil, options or ONCE))
  local job = eventually(function()
    local one = lab:job(id)
    return (one.state == "done" or one.state == "dead") and one
  end)
  return job, h:transcript(), not host.death(h:transcript())
end

-- The steps of stopping are half a second, one and two. On a busy machine a worker may come
-- late for one of them, and gets the next. One of three is in time.
local function work_until(body, fits)
  local job, log, lives
  for _ = 1, 3 do
    job, log, lives = work(body)
    if fits(job) then break end
  end
  return job, log, lives
end

-- Each is stopped by the hook, at the line that is in the message.
local halted = {
  ["a loop"] = { "\nwhile true do end", 2 },
  ["a loop with a pcall in it"] = {
    "while true do pcall(function() local x = 0 for i = 1, 1e9 do x = x + i end end) end", 1 },
  ["pcalls in pcalls"] = { [[
    local function deep(n) while true do pcall(n > 0 and deep or spin, n - 1) end end
    deep(5)]] },
  ["a loop in a coroutine"] = { "\ncoroutine.wrap(function() while true do end end)()", 2 },
  ["a coroutine that is older than the question"] = { [[
    local co = coroutine.create(function() while true do coroutine.yield() end end)
    while true do coroutine.resume(co) end]] },
  ["a coroutine that swallows it"] = { [[
    while true do coroutine.resume(coroutine.create(spin)) end]] },
  ["a coroutine's close"] = { [[
    local co = coroutine.create(function() local x <close> = setmetatable({}, { __close = spin }) coroutine.yield() end)
    coroutine.resume(co)
    coroutine.close(co)]] },
  ["a metamethod"] = { "return setmetatable({}, { __index = function() while true do end end }).x", 1 },
  ["a sort"] = { "table.sort({ 3, 2, 1 }, function() while true do end end)", 1 },
  ["calls of C functions"] = { "while true do os.execute 'sleep 0.01' end" },
}

describe("after a loop was stopped", function()
  it("the worker works on, with nothing left of the hook", function()
    if not signals_arrive() then return end
    local script = [[
      kept = coroutine.wrap(function() while true do coroutine.yield() for _ = 1, 1e9 do end end end)
      kept()
      local function spin() while true do end end
      return {
        bad = function() kept() spin() end,
        good = function()
          local n = 0
          for _ = 1, 1e6 do n = n + 1 end
          local co = coroutine.wrap(function() for i = 1, 1e5 do coroutine.yield(i) end end)
          for _ = 1, 1e5 do co() end
          return { n, debug.gethook() == nil, (io.open "/proc/self/stat":read "a"):match "^%d+" }
        end }]]
    local h = host.start(url, script, { "--workers", "1" })
    local worker, lived = host.member(h.pid), 0
    for _ = 1, 3 do
      q:push("bad", nil, ONCE)
      local id = q:push "good"
      local result = eventually(function() return handle:job(id).result end)
      assert.same({ 1000000, true }, { result[1], result[2] })
      lived = lived + (result[3] == tostring(worker) and 1 or 0)
      worker = result[3]
    end
    assert.is_true(lived > 0) -- one that gets no time for a second is replaced
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

describe("timeouts:", function()
  serve = host.lend(function(opened) lab = opened end, { "--workers", "1" })

  describe("a job over its timeout is stopped with the place it was at:", function()
    local jobs, log = {}, nil

    setup(function() -- all in one run
      local where = db.fresh()
      local other <close> = assert(nightshift.open(where))
      local script = { "local spin = function() while true do end end return {" }
      for name, case in pairs(halted) do
        jobs[name] = assert(other:queue "q":push(name, nil, ONCE))
        local ITS <const> = "[%q] = load(%q, '=code', 't', setmetatable({ spin = spin }, { __index = _G })),"
        script[#script + 1] = ITS:format(name, case[1])
      end
      script[#script + 1] = "}"
      local status
      status, log = host.drain(where, table.concat(script, "\n"), { "--drain-within", "1", "--workers", "3" })
      assert.equal(0, status, log)
      for name, id in pairs(jobs) do jobs[name] = other:job(id) end
    end)

    for name, case in pairs(halted) do
      it(name, function()
        if not signals_arrive() then return end
        local place = "^timeout after 0.2 s at " .. (case[2] and "code:" .. case[2] or "[^:]+:%d+") .. "\n"
        local job = jobs[name]
        if not job.error:find(place) then -- it came too late: again, alone
          local ALONE <const> = "return load(%q, '=code', 't', setmetatable({ spin = spin }, { __index = _G }))(job)"
          job = work_until(ALONE:format(case[1]), function(one) return one.error:find(place) end)
        end
        assert.equal("dead", job.state)
        assert.same({ 0, 1 }, { job.crashes, job.attempts })
        assert.matches(place, job.error)
      end)
    end

    it("no worker is killed", function()
      if not signals_arrive() then return end
      assert.is_nil(log:find "killed by signal", log)
    end)
  end)

  describe("a handler over its timeout", function()
    it("that asks job:cancelled() may end by itself", function()
      local job = work_until([[
        while not job:cancelled() do require "nightshift.core".sleep(0.02) end
        return "in order"]], function(one) return one.state == "done" end)
      assert.same({ "done", "in order" }, { job.state, job.result })
    end)

    it("has time to clean up", function()
      if not signals_arrive() then return end
      local path = fixture.dir() .. "/cleaned"
      local job = work_until(([[
        local file <close> = setmetatable({}, { __close = function() os.execute "echo yes >%s" end })
        while true do end]]):format(path), function(one) return one.error:find " at " end)
      assert.matches("^timeout after 0.2 s at ", job.error)
      assert.equal("yes", io.open(path):read "l")
    end)

    it("that hides from that is stopped all the same, and the place is known", function()
      if not signals_arrive() then return end
      for _, body in ipairs { "xpcall(spin, function() while true do end end)",
        "while true do pcall(debug.sethook) end", "pcall(spin) debug.sethook() os.execute 'sleep 20'" } do
        local job = work_until(body, function(one) return one.error:find " at " end)
        assert.same({ "dead", 0 }, { job.state, job.crashes })
        assert.matches("^timeout after 0.2 s at [^\n]*:%d+\n", job.error, 1, false, body)
      end
    end)

    it("cannot end well any more once it was stopped", function()
      if not signals_arrive() then return end
      local job = work_until("pcall(spin) return 'fine'", function(one) return one.error:find " at " end)
      assert.matches("^timeout after 0.2 s at .-jobs.lua:1\n", job.error)
    end)

    it("that is inside a C function gets SIGTERM", function()
      local job, log = work [[return ("a"):rep(50000):find((".-"):rep(50) .. "b")]]
      assert.same({ "dead", "timeout after 0.2 s", 0 }, { job.state, job.error, job.crashes })
      assert.is_nil(host.death(log), log)
    end)

    it("that hears nothing is killed", function()
      local job = work [[
        local pid = (io.open "/proc/self/stat":read "a"):match "^%d+"
        os.execute("kill -STOP " .. pid)]]
      assert.same({ "dead", "timeout after 0.2 s" }, { job.state, job.error })
    end)

    it("that crashes meanwhile has crashed", function()
      local text
      for _ = 1, 3 do -- as above
        text = work([[
          while not job:cancelled() do require "nightshift.core".sleep(0.02) end
          os.execute("kill -9 " .. (io.open "/proc/self/stat":read "a"):match "^%d+")]],
          { timeout = 0.2, max_attempts = 1, max_crashes = 1 }).error
        if text:find "killed by signal 9" then break end
      end
      assert.matches("killed by signal 9", text)
    end)
  end)
end)

describe("a job that is cancelled while it runs", function()
  it("is told, then stopped; the worker takes the next one", function()
    local h = host.start(url, [[return {
      stubborn = function(job)
        print "started"
        while true do if job:touch() then require "nightshift.core".sleep(0.05) end end
      end,
      noop = function() end }]], { "--workers", "1" })
    local id = q:push "stubborn"
    h:wait_line "^started"
    assert(handle:cancel(id, { reason = "too slow" }))
    local after = q:push "noop"
    eventually(function() return handle:job(after).state == "done" end)
    assert.same({ "cancelled", "too slow" }, { handle:job(id).state, handle:job(id).reason })
    h:wait_line 'job.stop .*why="cancelled: too slow"'
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.is_nil(host.death(h:transcript()))
  end)
end)

describe("a host that stops", function()
  it("gives jobs back whose loops it had to stop", function()
    local h = host.start(url, [[return { job = function()
      print "started"
      while true do pcall(load "while true do end") end
    end }]])
    local id = q:push "job"
    h:wait_line "^started"
    h:signal "QUIT"
    assert.equal(0, h:wait(20))
    local job = handle:job(id)
    assert.same({ "ready", 0, 0 }, { job.state, job.attempts, job.crashes })
  end)
end)

describe("the coroutine functions of a worker", function()
  it("are as the library's", function()
    local script = [=[
      local chunk = [[
        local log = {}
        local function note(...)
          local n = select("#", ...)
          for i = 1, n do log[#log + 1] = (tostring((select(i, ...))):gsub("0x%x+", ""):gsub("to '.-'", "")) end
          log[#log + 1] = n
        end
        local c = coroutine
        local co = c.create(function(a, b) note(a, b) note(c.yield(1, 2, 3)) error "oops" end)
        note(c.resume(co, "x", "y")) note(c.resume(co)) note(c.resume(co)) note(c.status(co))
        note(c.resume(c.create(function() return end)))
        note(c.resume(c.create(function() error({}) end)))
        note(pcall(c.resume, 1)) note(pcall(c.wrap)) note(pcall(c.close))
        local w = c.wrap(function(...) note(...) note(c.yield(...)) return "end" end)
        note(w(1, nil)) note(w()) note(pcall(w))
        local function fails() error "inside" end
        note(pcall(c.wrap(function() local x <close> = setmetatable({}, {__close = note}) fails() end)))
        note(pcall(c.wrap(function() local x <close> = setmetatable({}, {__close = fails}) error "no" end)))
        note(pcall(c.wrap(function() error({}) end)))
        note(c.resume(c.running())) note(pcall(c.close, c.running()))
        local half = c.create(function() local x <close> = setmetatable({}, {__close = note}) c.yield(1) end)
        c.resume(half) note(c.close(half)) note(c.status(half)) note(c.close(half))
        local bad = c.create(function() local x <close> = setmetatable({}, {__close = fails}) c.yield(1) end)
        c.resume(bad) note(c.close(bad))
        local outer outer = c.create(function() note(c.resume(outer)) note(pcall(c.close, outer)) end)
        note(c.resume(outer))
        local sum = 0
        for i in c.wrap(function() for i = 1, 10 do c.yield(i) end end) do sum = sum + i end
        note(sum)
        local function nest(n) return n == 0 and "deep" or c.wrap(nest)(n - 1) end
        note(nest(100)) note((pcall(nest, 100000)))
        note((select("#", c.wrap(function() c.yield(table.unpack({}, 1, 5000)) end)())))
        return log
      ]]
      return { ours = function() return assert(load(chunk, "=chunk"))() end, text = function() return chunk end }]=]
    local ours, text = q:push "ours", q:push "text"
    assert.equal(0, (host.drain(url, script)))
    local theirs = assert(load(handle:job(text).result, "=chunk"))()
    assert.equal("done", handle:job(ours).state, handle:job(ours).error)
    assert.same(theirs, handle:job(ours).result)
  end)
end)

describe("a job that is dead", function()
  local function all(sql, ...) return assert(handle:execute(sql, ...)) end

  local function declare(of, on_dead, queue)
    all("REPLACE INTO nightshift_on_dead (name, on_dead, queue) VALUES (?, ?, ?)", of, on_dead or "buried", queue)
  end

  before_each(function() declare "bad" end)

  --- The jobs that were pushed, live or ended, oldest first.
  local function pushed(of)
    of = of or "buried"
    return all([[SELECT id, name, payload, ukey FROM nightshift_job WHERE name = ? UNION ALL
      SELECT id, name, payload, ukey FROM nightshift_finished WHERE name = ? ORDER BY id]], of, of)
  end

  --- What they say of the jobs, by id; none is there twice.
  local function said()
    local list = {}
    for _, row in ipairs(pushed()) do
      local payload = core.decode(row.payload)
      assert.is_nil(list[payload.id])
      list[payload.id] = payload
    end
    return list
  end

  local function push(payload, opts) return assert(q:push("bad", payload, opts)) end

  local function claim(of) return assert(q:claim { names = { of or "bad" } }) end

  --- Lets a claim run out, as twice before.
  local function lose(id)
    all("UPDATE nightshift_job SET lost = 2 WHERE id = ?", id)
    assert.equal(1, #assert(q:claim_many(1, { lease = 0.05, names = { "bad" } })))
    eventually(function()
      assert(handle:rescue())
      return handle:job(id).state == "dead"
    end)
  end

  it("has a job pushed, ready for a worker, that says all of it", function()
    local id = push({ to = "a@b" }, { max_attempts = 1 })
    assert(claim():fail "no such box")
    local job = claim "buried"
    assert.same({ id = id, name = "bad", queue = "q", run = 1, attempts = 1, crashes = 0, reason = "failed",
      error = "no such box", payload = { to = "a@b" } }, job.payload)
    assert.equal(("dead:%d:1"):format(id), pushed()[1].ukey)
    assert(job:ack())
    assert.equal(0, all("SELECT COUNT(*) AS n FROM nightshift_unique_key")[1].n)
  end)

  it("has it by each road to a death, once", function()
    local roads = {}
    local function road(reason, opts, act)
      local id = push(reason, opts)
      act(id)
      roads[id] = reason
    end
    road("failed", { max_attempts = 1 }, function() assert(claim():fail "no") end)
    road("discarded", nil, function() assert(claim():discard "no") end)
    road("deadline", { deadline = 0.000001 }, function() assert.is_nil((q:claim { names = { "bad" } })) end)
    road("poison", { max_crashes = 1 }, lose)
    road("child failed", nil, function()
      local job = claim()
      assert(job:spawn "plain")
      assert(job:wait())
      assert(claim("plain"):discard "no")
    end)
    road("too many phases", { max_phases = 1 }, function()
      for _ = 1, 2 do
        local job = claim()
        assert(job:spawn("plain"))
        assert(job:wait())
        local child = q:claim { names = { "plain" } }
        if child then assert(child:ack()) end
      end
    end)
    road("poll deadline", { max_polls = 1 }, function()
      for _ = 1, 2 do assert(claim():again(0)) end
    end)
    local found = said()
    for id, reason in pairs(roads) do
      assert.equal("dead", handle:job(id).state, reason)
      assert.is_table(found[id], reason)
      assert.same({ reason, handle:job(id).reason, handle:job(id).error },
        { found[id].payload, found[id].reason, found[id].error })
      found[id] = nil
    end
    assert.is_nil(next(found))
  end)


  it("has none pushed when it is cancelled, done, or of another name", function()
    assert(handle:cancel(push(1)))
    push(2)
    assert(claim():ack())
    local first = assert(q:push("plain", 1))
    push(3, { after = { first } })
    assert(claim("plain"):discard "no")
    assert.same({}, pushed())
  end)

  it("has none pushed for the end of such a job, and one more for a second death", function()
    declare "buried"
    local id = push(1)
    assert(claim():discard "one")
    assert(claim("buried"):discard "no")
    assert.equal(1, #pushed())
    assert(handle:retry(id))
    assert(claim():discard "two")
    assert(handle:retry(id))
    assert(claim():discard "three") -- the second is there still
    local errors, keys = {}, {}
    for i, row in ipairs(pushed()) do errors[i], keys[i] = core.decode(row.payload).error, row.ukey end
    assert.same({ "one", "two", "three" }, errors)
    assert.same({ ("dead:%d:1"):format(id), ("dead:%d:2"):format(id), ("dead:%d:3"):format(id) }, keys)
    assert.equal(2, all("SELECT COUNT(*) AS n FROM nightshift_unique_key")[1].n)
  end)

  it("has it with its transaction, or not at all", function()
    for i, ends in ipairs { false, true } do
      push(i)
      local job = claim()
      assert(handle._handle:begin())
      assert(job:discard "no")
      assert.equal(1, #pushed())
      assert(ends and handle._handle:commit() or handle._handle:rollback())
      assert.equal(i - 1, #pushed())
      if not ends then assert(handle:cancel(job.id)) end
    end
    assert(claim "buried")
  end)

  it("has it in another queue, and in its own when that is gone", function()
    all "INSERT INTO nightshift_queue (name, created) VALUES ('graves', 1)"
    declare("bad", "buried", "graves")
    push(1)
    assert(claim():discard "no")
    assert.equal("q", assert(handle:queue("graves"):claim()).payload.queue)
    declare("bad", "buried", "gone")
    push(2)
    assert(claim():discard "no")
    assert.equal(2, claim("buried").payload.payload)
  end)

  it("may have any error", function()
    local bytes = {}
    for byte = 0, 255 do bytes[byte + 1] = string.char(byte) end
    local texts = { table.concat(bytes), "'); DROP TABLE nightshift_job; --", '\\"', "\u{2028}\u{10FFFF}é",
      ("\1"):rep(20000) }
    for _, text in ipairs(texts) do
      local id = push({ ["'\"\n"] = "'); --" }, { max_attempts = 1 })
      assert(claim():fail(text))
      local payload, error_of = said()[id], handle:job(id).error
      assert.equal(core.encode { ["'\"\n"] = "'); --" }, core.encode(payload.payload))
      assert.equal(error_of:sub(1, 16384), payload.error)
    end
  end)

  it("has its payload left out, and its size told, when it is too large or too deep for one more level", function()
    local big, ids, told = ("x"):rep(1048574), {}, {}
    local function deep(n) return ("["):rep(n) .. ("]"):rep(n) end
    local most = 1
    while all("SELECT JSON_VALID(?) AS ok", deep(most + 1))[1].ok == 1 do most = most + 1 end
    for i, json in ipairs { '"' .. big .. '"', deep(most - 1), deep(most), '"' .. big .. 'x"' } do
      ids[i] = push(0)
      all("UPDATE nightshift_job SET payload = ? WHERE id = ?", json, ids[i])
    end
    for _ = 1, #ids do assert(claim():discard "no") end
    for i, id in ipairs(ids) do
      local text = all("SELECT payload FROM nightshift_job WHERE ukey = ?", ("dead:%d:1"):format(id))[1].payload
      told[i] = text:match '"payload":' or text:match '"payload_bytes":%d+'
    end
    assert.same({ '"payload":', '"payload":', '"payload_bytes":' .. 2 * most, '"payload_bytes":1048577' }, told)
  end)

  it("has a key that no other push may give", function()
    local says = "push: unique begins with 'dead:', as those of jobs pushed for dead ones do; choose another beginning"
    assert.same({ nil, says, "INVALID" }, { q:push("bad", 1, { unique = "dead:1:1" }) })
    assert.is_false((pcall(db.sql, [[CALL nightshift_push('q', 'bad', '1', '{"unique": "dead:1:1"}')]], database)))
    assert(q:push("bad", 1, { unique = "deadly" }))
  end)

  it("has it when it is of a row of an adopted table, in a program, too", function()
    designs.create(handle, "migration_task", 2)
    local t = assert(handle:adopt(designs.map "migration_task"))
    local job = assert(t:claim())
    declare(job.name)
    assert(job:discard "no")
    local payload = said()[job.id]
    assert.same({ job.name, "migration_task", "no", 1 },
      { payload.name, payload.queue, payload.error, payload.payload.id })
    assert(handle:queue("migration_task"):claim { names = { "buried" } }):ack()
    assert.equal(2, assert(t:claim()).row)
  end)

  -- One statement for a batch with dead jobs when no handler says on_dead, and four and the ring
  -- when one does.
  it("costs jobs that are not dead nothing, and dead ones one statement", function()
    local function statements()
      return tonumber(all "SHOW SESSION STATUS LIKE 'Com_stmt_execute'"[1].Value)
    end
    local function cost(of, verb)
      local least = math.huge
      for _ = 1, 4 do
        assert(q:push(of, 1, { max_attempts = 2, backoff = 3600 }))
        local job = claim(of)
        local before = statements()
        verb(job)
        least = math.min(least, statements() - before)
      end
      return least
    end
    local function discard(job) assert(job:discard "no") end
    local plain, bad = cost("plain", discard), cost("bad", discard)
    assert.equal(4, bad - plain)
    local function fail(job) assert(job:fail "no") end
    assert.equal(cost("plain", fail), cost("bad", fail))
  end)

  it("is found by key", function()
    all "INSERT INTO nightshift_on_dead SELECT CONCAT('h', seq), 'x', NULL FROM seq_1_to_1000"
    all "ANALYZE TABLE nightshift_on_dead, nightshift_finished, nightshift_queue"
    for statement, params in pairs {
      settle_on_dead = { "[[0,1,1],[1,2,1]]" }, settle_on_dead_push = { "[[1,2,3,4,5,6,7,8]]" },
      holder_on_dead_over = { '[{"name":"a"}]', '["a",null]' },
    } do
      for _, row in ipairs(all("EXPLAIN " .. core.sql(statement), table.unpack(params))) do
        if row.table and #row.table == 1 and row.table ~= "v" and row.table ~= "h" then
          assert.equal("eq_ref", row.type, statement .. " " .. row.table)
        end
      end
    end
  end)

  -- Kills the session that ends jobs, between and amid its statements.
  it("has it once, whenever the connection is killed", function()
    all "CREATE TABLE victim (one INT PRIMARY KEY, id BIGINT NOT NULL)"
    local function show()
      db.sql("REPLACE INTO victim VALUES (1, " .. all "SELECT CONNECTION_ID() AS n"[1].n .. ")", database)
    end
    show()
    local N = math.ceil(60 / proc.limit(1))
    for i = 1, N do push(i, { max_attempts = 1 }) end
    local jobs = assert(q:claim_many(N))
    local killer = proc.start { proc.lua, "-e", ([[
    local nightshift = require "nightshift"
    local db = assert(nightshift.open(%q))
    print "killing"
    io.flush()
    while true do
      local id = assert(db:execute "SELECT id FROM victim")[1].id
      db:execute((math.random(10) == 1 and "KILL " or "KILL QUERY ") .. id)
      require "nightshift.core".sleep(math.random() * 0.003)
    end]]):format(url) }
    killer:wait_line "killing"
    for i, job in ipairs(jobs) do
      repeat
        local ran, ok, _, code = pcall(i % 2 == 0 and job.fail or job.discard, job, "no")
      until ran and (ok or code == "STALE")
      pcall(show)
    end
    killer:signal "KILL"
    killer:wait()
    local dead = tonumber((db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'dead'", database)))
    assert.equal(N, dead)
    assert.equal(dead, tonumber((db.sql([[SELECT COUNT(DISTINCT f.id) FROM nightshift_finished f
      JOIN nightshift_job j ON j.ukey = CONCAT('dead:', f.id, ':', f.run)
      JOIN nightshift_unique_key u ON u.job_id = j.id JOIN nightshift_ready r ON r.job_id = j.id]], database))))
    assert.equal(dead, tonumber((db.sql("SELECT COUNT(*) FROM nightshift_job WHERE name = 'buried'", database))))
  end)
end)

describe("scripts say what is pushed for dead jobs:", function()
  local function rows()
    local list = {}
    for i, row in ipairs(handle:execute "SELECT name, on_dead, queue FROM nightshift_on_dead ORDER BY name") do
      list[i] = ("%s %s %s"):format(row.name, row.on_dead, row.queue or "-")
    end
    return table.concat(list, ", ")
  end

  local function script(body)
    return "local function no() return nil, 'no' end local function see(job) return job.payload end return {"
      .. body .. "}"
  end

  local function write(path, text)
    local file <close> = assert(io.open(path, "wb"))
    file:write(text)
  end

  it("those that were loaded last, for the handlers that they have", function()
    local BOTH = script [[ a = { run = no, on_dead = "see", on_dead_queue = "graves" },
      b = { run = no, on_dead = "see" }, see = see ]]
    local first = host.start(url, BOTH)
    eventually(function() return rows() == "a see graves, b see -" end)
    assert.equal(1, #handle:execute "SELECT id FROM nightshift_queue WHERE name = 'graves'")
    local second = host.start(url, script [[ a = { run = no, on_dead = "other" }, c = { run = no } ]])
    eventually(function() return rows() == "a other -, b see -" end)
    write(second.script, script [[ a = no, c = no ]])
    second:signal "HUP"
    second:wait_line("reload.done", 20)
    eventually(function() return rows() == "b see -" end)
    first:signal "HUP"
    first:wait_line("reload.done", 20)
    eventually(function() return rows() == "a see graves, b see -" end)
    stop(first)
    stop(second)
    assert.equal(0, host.drain(url, script [[ b = no, see = see ]]))
    assert.equal("a see graves", rows())
  end)

  it("before the first of their jobs runs", function()
    local id = q:push("a", { n = 1 }, { max_attempts = 1 })
    assert.equal(0, host.drain(url, script [[ a = { run = no, on_dead = "see" }, see = see ]]))
    local result = handle:jobs({ name = "see", state = "done" })[1]
    local seen = handle:job(result.id).result
    assert.same({ id, "failed", { n = 1 } }, { seen.id, seen.reason, seen.payload })
  end)

  it("which wakes the host that has the queue of such a job", function()
    local works = host.start(url, script [[ a = { run = no, on_dead = "see", on_dead_queue = "graves" } ]],
      { "--queues", "q" })
    local buries = host.start(url, script [[ see = see ]], { "--queues", "graves" })
    eventually(function() return #handle:execute "SELECT 1 FROM nightshift_listener" >= 2 end)
    q:push("a", 1, { max_attempts = 1 })
    local since = core.clock()
    eventually(function() return #handle:jobs { name = "see", state = "done" } == 1 end)
    assert.is_true(core.clock() - since < proc.limit(4)) -- unheard: ten seconds
    stop(works)
    stop(buries)
  end)

  it("also for jobs that are dead by the death of their host, or their worker", function()
    local jobs = script [[ a = { run = function(job) print "runs" require "nightshift.core".sleep(600) end,
      on_dead = "see" }, b = { run = function() os.execute "kill -9 $PPID" end, on_dead = "see" }, see = see ]]
    local first = host.start(url, jobs)
    local worker = q:push("b", 1, { max_crashes = 1 })
    eventually(function() return handle:job(worker).state == "dead" end)
    local id = q:push("a", 2, { max_crashes = 1 })
    first:wait_line "runs"
    handle:execute("UPDATE nightshift_job SET lost = 2 WHERE id = ?", id) -- as twice before
    first:signal "KILL"
    first:wait()
    local second = host.start(url, jobs)
    eventually(function() return #handle:jobs { name = "see", state = "done" } == 2 end)
    local seen = {}
    for _, job in ipairs(handle:jobs { name = "see", state = "done" }) do
      local result = handle:job(job.id).result
      seen[result.id] = result.reason
    end
    assert.same({ [worker] = handle:job(worker).reason, [id] = handle:job(id).reason }, seen)
    stop(second)
  end)

  it("also for rows of adopted tables", function()
    designs.create(handle, "migration_task", 3)
    local adopted = designs.map "migration_task".name or "migrate"
    local h = host.start(url, script([[ [%q] = { run = function(job) return job:discard "no" end, on_dead = "see" },
      see = see ]]):format(adopted), { "--adopt", designs.file "migration_task" })
    eventually(function() return #handle:jobs { name = "see", state = "done" } == 3 end)
    stop(h)
  end)

  it("and not wrongly", function()
    for body, message in pairs {
      ["on_dead = 5"] = "on_dead must be a string, got number",
      ["on_dead = ''"] = "on_dead is empty",
      ["on_dead = ('x'):rep(101)"] = "on_dead has 101 bytes, the limit is 100",
      ["on_dead = 'a\\nb'"] = "control character",
      ["on_dead_queue = 'x'"] = "on_dead_queue goes with on_dead",
      ["on_dead = 'x', on_dead_queue = ('x'):rep(65)"] = "on_dead_queue has 65 bytes, the limit is 64",
    } do
      local none, text = handlers.load { fixture.file("bad.lua", "return { a = { run = print, " .. body .. " } }") }
      assert.is_nil(none)
      assert.matches("handler 'a': .*" .. message, text)
    end
  end)
end)
