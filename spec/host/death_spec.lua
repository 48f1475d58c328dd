-- What dies, and what becomes of its jobs.

local host = require "spec.support.host"
local nst = require "nst"
local proc = require "spec.support.proc"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

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
    for i = 1, 4000 do items[i] = { "noop" } end
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
    assert.equal(4000, counts.n)
    assert.equal(4000, tonumber(counts.done))
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
    assert.equal(0, #host.events(log, "worker.died"))
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
    for i = 1, 2000 do items[i] = { "noop" } end -- the host learns that jobs are short
    items[1001] = { "hang" }
    local ids = assert(q:push_many(items))
    eventually(function() return handle:job(ids[1002]).state == "done" and handle:job(ids[2000]).state == "done" end)
    eventually(function()
      return #handle:execute "SELECT id FROM nightshift_finished" == 1999
    end)
    assert.equal("running", handle:job(ids[1001]).state)
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
    eventually(function()
      for _, pid in ipairs(family) do
        if host.name(pid) then return false end
      end
      return true
    end)
  end)
end)
