-- nightshift.shared, mutexes and semaphores in the workers of a host, and in crowds that are
-- killed.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- nightshift.shared, mutexes and semaphores in the workers of a host.
describe("in a host:", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local function script(text)
    return [[
    local nightshift = require "nightshift"
    local shared, mutex, semaphore = nightshift.shared, nightshift.mutex, nightshift.semaphore
  ]] .. text
  end

  local ONCE = { max_attempts = 1 }

  -- The job once it has ended.
  local function ended(id)
    return eventually(function()
      local job = assert(handle:job(id))
      return (job.state == "done" or job.state == "dead") and job
    end, 20)
  end

  local function result(id)
    local job = ended(id)
    assert.equal("done", job.state, job.error)
    return job.result
  end

  describe("the shared dict", function()
    it("is one for all workers, and stays through a reload and a worker's death", function()
      local h = host.start(url, script [[return {
      count = function() return shared:incr "n" end,
      die = function() if shared:add("dead", true) then os.execute "kill -9 $PPID" end end,
    }]], { "--workers", "4" })
      local ids = {}
      for i = 1, 100 do ids[i] = { "count" } end
      ids = assert(q:push_many(ids))
      local seen = {}
      for _, id in ipairs(ids) do seen[result(id)] = true end
      assert.equal(100, #seen)
      result(assert(q:push "die"))
      assert.equal(101, result(assert(q:push "count")))
      h:signal "HUP"
      h:wait_line "reload.done"
      assert.equal(102, result(assert(q:push "count")))
    end)

    it("is as large as --shared or NIGHTSHIFT_SHARED says", function()
      local jobs = script [[return { fill = function(job)
      for i = 1, 10000 do
        local ok, _, code = shared:set("key" .. i, ("x"):rep(1000))
        if not ok then return { stored = #shared:keys(), code = code } end
      end
      return { stored = #shared:keys() }
    end }]]
      local function fill(args, env)
        local id = assert(q:push("fill", nil, ONCE))
        local status, log = host.drain(url, jobs, { "--drain-within", "0", table.unpack(args) }, env)
        assert.equal(0, status, log)
        return result(id)
      end
      local default = fill {}
      assert.equal("FULL", default.code)
      assert.is_true(default.stored > 700 and default.stored < 1000, default.stored)
      local small = fill { "--shared", "128K" }
      assert.equal("FULL", small.code)
      assert.is_true(small.stored < 128)
      local evicting = fill { "--shared", "128K,evict" }
      assert.same({ stored = small.stored }, evicting)
      assert.same(small, fill({}, { NIGHTSHIFT_SHARED = "128K" }))
      assert.same(small, fill({ "--shared", "128K" }, { NIGHTSHIFT_SHARED = "4M" }))
    end)

    it("of a bad size keeps the host from starting: 2", function()
      local path = fixture.file("jobs.lua", "return { a = function() end }")
      local status, _, err = proc.nightshift({ "work", path, "--shared", "lots" }, url)
      assert.equal(2, status, err)
      assert.matches("bad size of the shared dict 'lots': expected 64K to 64G", err, 1, true)
      status, _, err = proc.nightshift({ "work", path }, url, { env = { NIGHTSHIFT_SHARED = "1X" } })
      assert.equal(2, status, err)
      assert.matches("bad size of the shared dict '1X'", err, 1, true)
    end)

    it("has no name that could be left behind", function()
      local h = host.start(url, script [[return { use = function()
      shared:set("key", 1)
      return mutex "m" (function() return true end)
    end }]])
      assert.is_true(result(assert(q:push "use")))
      for _, pid in ipairs { h.pid, table.unpack(host.members(h.pid)) } do
        for line in io.lines(("/proc/%d/maps"):format(pid)) do
          local name = line:match "rw%-s.-(/.*)$" or line:match "rw%-s.-(%[.*)$"
          assert.is_true(name == nil or name:find "^/dev/zero %(deleted%)" ~= nil or name == "[anon_shmem]", line)
        end
      end
    end)
  end)

  -- What a job may leave locked, and how it may end.
  describe("what a job leaves locked is given back", function()
    local JOBS = script [[
    local gpu
    return {
      leave = function(job)
        assert(mutex "m":acquire())
        gpu = assert(semaphore("gpu", 1):acquire())
        if job.payload == "raise" then error "on purpose" end
        if job.payload == "exit" then os.exit(1) end
        if job.payload == "again" then return job:again(3600) end
        if job.payload == "kill" then os.execute "kill -9 $PPID" end
        if job.payload == "hang" then os.execute "exec sleep 1000" end
      end,
      take = function(job)
        return mutex("m", { timeout = 20 })(function()
          return semaphore("gpu", 1, { timeout = 20 })(function() return "taken" end)
        end) or error "not free"
      end,
      -- what an earlier job of this worker had locked is not this one's
      stale = function(job)
        local ok = pcall(gpu and gpu.release or error, gpu)
        return not ok
      end,
    }]]

    for _, how in ipairs { "return", "raise", "exit", "again", "kill", "hang" } do
      it("when it ends by " .. how, function()
        host.start(url, JOBS, { "--workers", "1" })
        local opts = { max_attempts = 1, max_crashes = 1, timeout = how == "hang" and 0.3 or nil }
        assert(q:push("leave", how, opts))
        assert.equal("taken", result(assert(q:push("take", nil, ONCE))))
        assert.is_true(result(assert(q:push("stale", nil, ONCE))))
      end)
    end

    it("at once to one who waits for it", function()
      host.start(url, JOBS, { "--workers", "2" })
      assert(q:push("leave", "hang", { max_attempts = 1, timeout = 0.5 }))
      assert.equal("taken", result(assert(q:push("take", nil, ONCE))))
    end)
  end)

  describe("a mutex between workers", function()
    it("is free at once when its holder is killed in the critical section", function()
      local h = host.start(url, script [[return {
      hold = function() mutex "m" (function()
        shared:set("holder", io.open "/proc/self/stat":read "n")
        os.execute "exec sleep 1000"
      end) end,
      holder = function() return shared:get "holder" end,
      take = function() return mutex "m" (function() return "taken" end) end,
    }]], { "--workers", "3" })
      assert(q:push("hold", nil, { max_attempts = 1, max_crashes = 1 }))
      local holder = eventually(function() return result(assert(q:push "holder")) end, 20)
      local id = assert(q:push "take")
      eventually(function() return assert(handle:job(id)).state == "running" end)
      nst.kill(holder, "KILL")
      assert.equal("taken", result(id))
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end)

  describe("a semaphore between workers", function()
    it("lets no more in than it has units", function()
      local h = host.start(url, script [[return {
      work = function() return semaphore("gpu", 2)(function()
        local inside = shared:incr "inside"
        require "nightshift.core".sleep(0.02)
        shared:incr("inside", -1)
        return inside
      end) end,
    }]], { "--workers", "6" })
      local jobs = {}
      for i = 1, 24 do jobs[i] = { "work", nil, ONCE } end
      local most = 0
      for _, id in ipairs(assert(q:push_many(jobs))) do most = math.max(most, result(id)) end
      assert.equal(2, most)
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end)
end)

-- Processes are killed at random moments while they change the dict and hold
-- locks, hundreds of times; spec/unit/shared.c does the same place by place.
describe("a crowd that is killed at random", function()
  -- A crowd that changes everything; $KILLS of it are killed. Every value tells
  -- by itself whether it is whole.
  local PROGRAM = [[
  local nightshift = require "nightshift"
  local nst = require "nst"
  local shared = nightshift.shared
  local evicting = os.getenv "NIGHTSHIFT_SHARED":find "evict"
  local kills = tonumber(os.getenv "KILLS")
  local seed = math.random(1 << 30)
  print("seed " .. seed)

  local function fill()
    local n = 0
    while n < 1000 and shared:set("fill" .. n, "value") do n = n + 1 end
    return #shared:keys "fill"
  end
  local function empty()
    for _, key in ipairs(shared:keys()) do shared:delete(key) end
    assert(#shared:keys() == 0)
  end
  local capacity = fill()
  empty()

  local function whole(key, value)
    if type(value) == "number" then return true end
    local text = type(value) == "table" and value.text or value
    local letter, n = text:match "^(%a)(%d+):"
    return text == letter .. n .. ":" .. letter:rep(tonumber(n))
  end
  local function text()
    local letter, n = string.char(math.random(97, 122)), math.random(0, 2000)
    return letter .. n .. ":" .. letter:rep(n)
  end
  local function refused(ok, message, code) assert(ok ~= nil or code == "FULL", message) end

  local actions = {
    function(key) refused(shared:set(key, text())) end,
    function(key) refused(shared:set(key, math.random(1 << 50))) end,
    function(key) refused(shared:set(key, { text = text(), list = { 1, 2, 3 } }, 0.001 * math.random(20))) end,
    function(key) shared:delete(key) end,
    function(key)
      local value = shared:get(key)
      assert(value == nil or whole(key, value), key)
    end,
    function() shared:incr "counter" end,
    -- 'guarded' is counted by get and set, 'after' at the end of the section
    function()
      assert(nightshift.mutex "guard" (function()
        local n = shared:get "guarded"
        if n then shared:set("guarded", n + 1) end
        shared:incr "after"
        return true
      end))
    end,
    function() assert(nightshift.semaphore("pair", 2)(function() return true end)) end,
  }
  -- numbers that exist need no room, so they are never refused
  shared:set("guarded", 0)
  shared:set("after", 0)
  shared:set("counter", 0)

  local function crowd(i)
    return nst.fork(function()
      math.randomseed(seed + i)
      while true do actions[math.random(#actions)]("key" .. math.random(40)) end
    end)
  end
  local function reap(pid)
    local how, number
    repeat how, number = nst.reap(pid) until how
    assert(how == "signal" and number == 9, ("%d ended by %s %d"):format(pid, how, number))
  end

  local pids, born = {}, 0
  local function fork(at)
    born = born + 1
    pids[at] = crowd(born)
  end
  for i = 1, 5 do fork(i) end
  math.randomseed(seed)
  for n = 1, kills do
    nst.sleep(math.random() * 0.002)
    local at = math.random(5)
    nst.kill(pids[at], "KILL")
    reap(pids[at])
    fork(at)
    if n % 20 == 0 then
      for _, key in ipairs(shared:keys()) do
        local value, message = shared:get(key)
        assert(message == nil and (value == nil or whole(key, value)), key)
      end
    end
  end
  for i = 1, 5 do nst.kill(pids[i], "KILL") end
  for i = 1, 5 do reap(pids[i]) end

  -- nobody else is left: nothing is stuck, no memory has leaked
  assert(nightshift.mutex "guard":acquire(5)):release()
  for _ = 1, 2 do assert(nightshift.semaphore("pair", 2):acquire(5)):release() end
  local guarded, after, counter = shared:get "guarded", shared:get "after", shared:get "counter"
  if not evicting then
    assert(after <= guarded and guarded <= after + kills + 5, guarded .. " " .. after)
    assert(counter > 0)
    print("updates " .. counter + guarded)
  end
  empty()
  local now = fill()
  assert(now == capacity, ("room for %d, at first for %d"):format(now, capacity))
]]

  local function survives(size)
    local status, out, err = proc.run { proc.lua, "-e", PROGRAM, timeout = 120,
      env = { NIGHTSHIFT_SHARED = size, KILLS = os.getenv "NIGHTSHIFT_LONG" and 250 or 100 } }
    assert.equal(0, status, out .. err)
    return out
  end

  it("leaves a dict that is whole, with all its room, and no lock held", function()
    local out = survives "64K"
    assert.is_true(tonumber(out:match "updates (%d+)") > 1000, out)
  end)

  it("the same in a dict that evicts", function() survives "64K,evict" end)
end)

-- The bank account: 200 workers withdraw from one balance by get and then set, 100,000 times with
-- NIGHTSHIFT_LONG. Under the mutex not one is lost. Without it some are, so the test would notice a
-- mutex that does nothing.
describe("40,000 withdrawals by 200 workers", function()
  local WORKERS, JOBS, EACH = 200, 1000, os.getenv "NIGHTSHIFT_LONG" and 100 or 40

  -- The pause between get and set makes room for other processes to come between.
  local SCRIPT = ([[
  local nightshift = require "nightshift"
  local shared, clock = nightshift.shared, nightshift.clock
  local account = nightshift.mutex "account"
  local function withdraw()
    local balance = shared:get "balance"
    local till = clock() + 5e-6
    repeat until clock() >= till
    assert(shared:set("balance", balance - 1))
    return balance
  end
  local function run(job, each)
    shared:add("balance", %d)
    for _ = 1, job.payload do assert(each()) end
    if shared:incr "ended" == 1000 then return shared:get "balance" end
  end
  return {
    guarded = function(job) return run(job, function() return account(withdraw) end) end,
    unguarded = function(job) return run(job, withdraw) end,
  }]]):format(JOBS * EACH)

  -- The balance at the end.
  local function withdraw_all(name)
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local jobs = {}
    for i = 1, JOBS do jobs[i] = { name, EACH, { max_attempts = 1 } } end
    assert(handle:queue("bank"):push_many(jobs))
    local status, log = host.drain(url, SCRIPT, { "--workers", WORKERS, "--drain-within", "0" })
    assert.equal(0, status, log)
    local rows = assert(handle:execute [[
    SELECT outcome, COUNT(*) AS jobs, MAX(result) AS balance FROM nightshift_finished GROUP BY outcome]])
    assert.same({ 1, "done", JOBS }, { #rows, rows[1].outcome, rows[1].jobs })
    return nightshift.decode(rows[1].balance)
  end

  it("leave exactly nothing under the mutex", function() assert.equal(0, withdraw_all "guarded") end)

  it("leave too much without it", function() assert.is_true(withdraw_all "unguarded" > 0) end)
end)
