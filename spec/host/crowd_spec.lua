-- Many workers, and what they cost; workers that are forked per job.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

local SCRIPT = [[
local nightshift, core = require "nightshift", require "nightshift.core"
local pid = function() return (io.open "/proc/self/stat":read "a"):match "^%d+" end
local seen = 0
return {
  meet = function(job)
    nightshift.shared:incr("here", 1)
    while nightshift.shared:get "here" < job.payload do core.sleep(0.02) end
    return nightshift.shared:get "here"
  end,
  mark = function(job)
    local file <close> = assert(io.open(job.payload.file, "a"))
    file:write(job.payload.n, "\n")
    core.sleep(job.payload.sleep or 0)
    return ("x"):rep(job.payload.size or 0)
  end,
  whoami = function()
    seen = seen + 1
    return { pid = pid(), seen = seen }
  end,
  dies = function(job) if job.crashes == 0 then os.execute("kill -9 " .. pid()) end return job.crashes end,
}]]

local function stop(h)
  h:signal "TERM"
  assert.equal(0, h:wait(60))
end

local function count_done() return handle:execute [[SELECT COUNT(*) AS n FROM nightshift_finished
  WHERE outcome = 'done']][1].n end

describe("a host with hundreds of workers", function()
  it("has them all busy at one moment", function()
    local h = host.start(url, SCRIPT, { "--workers", "300" })
    local items = {}
    for i = 1, 300 do items[i] = { "meet", 300 } end
    assert(q:push_many(items))
    eventually(function() return count_done() == 300 end, 60)
    stop(h)
  end)

  it("needs no descriptor for a worker", function()
    local h = proc.start { "sh", "-c", 'ulimit -n 100; exec "$@"', "sh", proc.program, "work",
      fixture.file("jobs.lua", SCRIPT), "--workers", "200", env = { NIGHTSHIFT_URL = url } }
    h:wait_line("host.ready", 60)
    local id = q:push("meet", 1)
    eventually(function() return handle:job(id).state == "done" end)
    stop(h)
  end)

  -- A run that is over counts once, one that was cut off by a kill may have begun:
  -- each job begins at least once and ends exactly once.
  it("loses no job and ends none twice when workers are killed at random", function()
    local h = host.start(url, SCRIPT, { "--workers", "200" })
    local file = fixture.file("marks", "")
    local items = {}
    for i = 1, 3000 do
      items[i] = { "mark", { file = file, n = i, size = i % 50 * 700, sleep = i % 7 == 0 and 0.05 or nil },
        { max_crashes = 50 } }
    end
    assert(q:push_many(items))
    math.randomseed(7)
    for _ = 1, 60 do
      local workers = host.members(h.pid)
      if #workers > 0 then nst.kill(workers[math.random(#workers)], "KILL") end
      if count_done() == 3000 then break end
    end
    eventually(function() return count_done() == 3000 end, 120)
    local begun = {}
    for line in io.lines(file) do begun[line] = true end
    for i = 1, 3000 do assert.is_true(begun[tostring(i)], i) end
    assert.equal(0, handle:execute "SELECT COUNT(*) AS n FROM nightshift_job"[1].n)
    assert.equal(0, handle:execute "SELECT COUNT(*) AS n FROM nightshift_lease"[1].n)
    stop(h)
  end)

  it("loses no job when the process that forked them is killed", function()
    local h = host.start(url, SCRIPT, { "--workers", "200" })
    local file = fixture.file("marks", "")
    local items = {}
    for i = 1, 1000 do items[i] = { "mark", { file = file, n = i, sleep = 0.05 } } end
    assert(q:push_many(items))
    eventually(function() return count_done() > 100 end)
    nst.kill(host.member(h.pid, "ns-zygote"), "KILL")
    eventually(function() return count_done() == 1000 end, 120)
    stop(h)
  end)
end)

describe("large payloads and results", function()
  it("pass piece by piece", function()
    local h = host.start(url, [[return { echo = function(job) return job.payload end }]])
    local ids, text = {}, ("0123456789"):rep(30000)
    for i = 1, 20 do ids[i] = assert(q:push("echo", text .. i)) end
    for i = 1, 20 do
      eventually(function() return handle:job(ids[i]).state == "done" end)
      assert.equal(text .. i, handle:job(ids[i]).result)
    end
    stop(h)
  end)
end)

describe("--isolation job", function()
  it("runs every job in a process of its own", function()
    local h = host.start(url, SCRIPT, { "--isolation", "job" })
    local items = {}
    for i = 1, 50 do items[i] = { "whoami" } end
    assert(q:push_many(items))
    eventually(function() return count_done() == 50 end)
    local pids = {}
    for _, row in ipairs(handle:execute "SELECT result FROM nightshift_finished") do
      local result = nightshift.decode(row.result)
      assert.equal(1, result.seen)
      assert.is_nil(pids[result.pid])
      pids[result.pid] = true
    end
    stop(h)
    assert.is_nil(h:transcript():find "worker.died")
  end)

  it("blames a job that kills its process, and no other", function()
    local h = host.start(url, SCRIPT, { "--isolation", "job" })
    local bad = q:push "dies"
    local items = {}
    for i = 1, 50 do items[i] = { "whoami" } end
    local ids = assert(q:push_many(items))
    eventually(function() return count_done() == 51 end)
    assert.equal(1, handle:job(bad).result)
    for _, id in ipairs(ids) do assert.equal(0, handle:job(id).crashes) end
    stop(h)
  end)

  it("must be job or worker", function()
    local status, _, err = proc.nightshift({ "work", "x.lua", "--isolation", "none" }, url)
    assert.equal(2, status)
    assert.matches("isolation", err)
  end)
end)

it("a host that may not have what its workers need says so and starts nothing", function()
  local status, _, err = proc.run { "sh", "-c", 'ulimit -n 50; exec "$@"', "sh", proc.program, "work",
    fixture.file("jobs.lua", SCRIPT), "--workers", "7", env = { NIGHTSHIFT_URL = url } }
  assert.equal(78, status)
  assert.matches("7 workers need 64 open files, there are 50: raise the limit of open files", err, 1, true)
end)
