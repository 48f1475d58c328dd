-- nightshift.shared, mutexes and semaphores in the workers of a host.

local host = require "spec.support.host"
local nst = require "nst"
local proc = require "spec.support.proc"

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
        assert(mutex "m":lock())
        gpu = assert(semaphore("gpu", 1):lock())
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
        local ok = pcall(gpu and gpu.unlock or error, gpu)
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
        os.execute "sleep 0.02"
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
