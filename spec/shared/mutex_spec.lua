-- nightshift.mutex and nightshift.semaphore: in one process, between a process
-- and its children, and after a death.

local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local mutex, semaphore = nightshift.mutex, nightshift.semaphore

-- Forks; the child dies with this process or before the test ends.
local children = {}
local function fork(fn)
  nightshift.shared:keys() -- the memory is there before
  local pid = assert(nst.fork(fn))
  children[pid] = true
  return pid
end

local function await(pid)
  local how, number
  eventually(function()
    how, number = nst.reap(pid)
    return how
  end, 30)
  children[pid] = nil
  return how, number
end

after_each(function()
  for pid in pairs(children) do
    nst.kill(pid, "KILL")
    await(pid)
  end
  for _, key in ipairs(nightshift.shared:keys()) do nightshift.shared:delete(key) end
  require "nightshift.core".unlock_all()
end)

-- A child that takes the lock and keeps it.
local function holder(lock)
  local pid = fork(function()
    assert(lock:lock())
    nightshift.shared:incr "holders"
    nst.sleep(1000)
  end)
  return pid
end

local function await_holders(n)
  eventually(function() return nightshift.shared:get "holders" == n end)
end

-- Can another process have it now?
local function is_free(lock)
  await(fork(function() nightshift.shared:set("free", lock:lock(0) ~= nil) end))
  return nightshift.shared:get "free"
end

-- Both kinds in turn; a semaphore of one unit is as good as a mutex.
for kind, make in pairs {
  mutex = mutex,
  semaphore = function(name, opts) return semaphore(name, 1, opts) end,
} do
  describe("a " .. kind, function()
    it("runs a function and gives its results", function()
      assert.same({ 1, nil, 3, n = 3 }, table.pack(make "m" (function() return 1, nil, 3 end)))
      assert.same({ n = 0 }, table.pack(make "m" (function() end)))
      assert.equal(5, make "m"(math.max, 3, 5))
    end)

    it("is held inside and free after", function()
      local lock = make "m"
      lock(function() assert.is_false(is_free(make "m")) end)
      assert.is_true(is_free(make "m"))
    end)

    it("is free after an error, which passes on", function()
      local err = { "mine" }
      local ok, message = pcall(make "m", function() error(err) end)
      assert.is_false(ok)
      assert.equal(err, message)
      assert.is_true(is_free(make "m"))
    end)

    it("locks and unlocks", function()
      local lock = make "m"
      assert.equal(lock, lock:lock())
      assert.is_false(is_free(make "m"))
      assert.is_true(lock:unlock())
      assert.is_true(is_free(make "m"))
    end)

    it("is unlocked at the end of its variable's scope", function()
      do
        local held <close> = assert(make "m":lock())
        assert.matches("held", tostring(held))
        assert.is_false(is_free(make "m"))
      end
      assert.is_true(is_free(make "m"))
      do
        local _ <close> = make "m" -- never locked
      end
    end)

    it("is another for another name, and for the other kind", function()
      local other = kind == "mutex" and semaphore("m", 1) or mutex "m"
      make "m" (function()
        assert.is_true(is_free(make "n"))
        assert.is_true(is_free(other))
        assert.equal("nested", other(function() return "nested" end))
      end)
    end)

    it("raises instead of waiting for itself, at the caller's line", function()
      local lock = make "m"
      lock(function()
        for _, again in ipairs { lock, make "m" } do
          local ok, message = pcall(function() again:lock() end)
          assert.is_false(ok)
          assert.matches("mutex_spec.lua:%d+: nightshift: " .. kind .. " 'm': held by this process already", message)
          assert.error_matches(function() again(print) end, "held by this process already")
        end
        -- nor by way of a coroutine
        local co = coroutine.create(function() make "m" (print) end)
        local ok, message = coroutine.resume(co)
        assert.is_false(ok)
        assert.matches("held by this process already", message)
        assert.is_false(is_free(make "m"))
      end)
      assert.is_true(is_free(make "m"))
    end)

    it("raises when what is not held is unlocked", function()
      local lock = make "m"
      assert.error_matches(function() lock:unlock() end, kind .. " 'm': unlock: this object does not hold it")
      lock:lock()
      assert.error_matches(function() make "m":unlock() end, "this object does not hold it")
      lock:unlock()
      assert.error_matches(function() lock:unlock() end, "this object does not hold it")
    end)

    it("gives up after its timeout: BUSY, and who holds it", function()
      local lock = make("m", { timeout = 0.05 })
      local pid = holder(lock)
      await_holders(1)
      local start = nightshift.clock()
      local ran = false
      local ok, message, code = lock(function() ran = true end)
      assert.is_nil(ok)
      assert.is_false(ran)
      assert.equal("BUSY", code)
      assert.matches(kind .. " 'm': not free within 0.05 s; process " .. pid .. " holds it", message, 1, true)
      assert.is_true(nightshift.clock() - start >= 0.05)
      assert.equal("BUSY", select(3, lock:lock(0)))
      assert.equal("BUSY", select(3, lock:lock "1ms"))
    end)

    it("is free when its holder is killed", function()
      local lock = make "m"
      local pid = holder(lock)
      await_holders(1)
      nst.kill(pid, "KILL")
      assert(lock:lock(10))
      lock:unlock()
    end)

    it("goes to one who waits when its holder is killed or unlocks", function()
      for _, ending in ipairs { "KILL", "unlock" } do
        local lock = make(ending)
        local pid = fork(function()
          assert(lock:lock())
          nightshift.shared:set("held", true)
          eventually(function() return nightshift.shared:get "go" end, 30)
          lock:unlock()
          nightshift.shared:set("held", false)
        end)
        eventually(function() return nightshift.shared:get "held" end)
        local waiter = fork(function() assert(lock:lock(30)) end)
        nst.sleep(0.03) -- it sleeps by now, most likely
        if ending == "KILL" then nst.kill(pid, "KILL") else nightshift.shared:set("go", true) end
        local how, status = await(waiter)
        assert.same({ "exit", 0 }, { how, status })
        await(pid)
        nightshift.shared:delete "go"
        nightshift.shared:delete "held"
      end
    end)

    it("is not a forked child's, which can neither use nor free it", function()
      local lock = make "m"
      lock:lock()
      local how, status = await(fork(function()
        assert(select(3, lock:lock(0)) == "BUSY")
        assert(not pcall(lock.unlock, lock))
        do local _ <close> = lock end
        require "nightshift.core".unlock_all()
        collectgarbage()
        assert(select(3, make "m":lock(0)) == "BUSY")
      end))
      assert.same({ "exit", 0 }, { how, status })
      assert.is_false(is_free(make "m"))
      lock:unlock()
      assert.is_true(is_free(make "m"))
    end)

    it("stays held when its object is dropped", function()
      make "m":lock()
      collectgarbage()
      assert.is_false(is_free(make "m"))
    end)

    it("lets a coroutine yield inside", function()
      local co = coroutine.wrap(function()
        return make "m" (function()
          coroutine.yield "inside"
          return "done"
        end)
      end)
      assert.equal("inside", co())
      assert.is_false(is_free(make "m"))
      assert.equal("done", co())
      assert.is_true(is_free(make "m"))
    end)

    it("is given back when a coroutine is closed inside", function()
      local co = coroutine.create(function() make "m" (coroutine.yield) end)
      coroutine.resume(co)
      assert.is_false(is_free(make "m"))
      coroutine.close(co)
      assert.is_true(is_free(make "m"))
    end)

    it("takes any bytes as a name", function()
      local names = { "a", "a\0", "\0", ("n"):rep(100), ("n"):rep(99), "\xff" }
      for _, name in ipairs(names) do
        make(name)(function()
          for _, other in ipairs(names) do assert.equal(other ~= name, is_free(make(other))) end
        end)
      end
    end)

    it("refuses a bad name or timeout with INVALID when it is used", function()
      local function refused(lock, text)
        for _, try in ipairs { function() return lock:lock() end, function() return lock(print) end } do
          local ok, message, code = try()
          assert.is_nil(ok)
          assert.equal("INVALID", code)
          assert.matches(text, message, 1, true)
        end
      end
      refused(make "", "1 to 100 bytes, this one has 0")
      refused(make(("n"):rep(101)), "this one has 101")
      refused(make("m", { timeout = -1 }), "0 or more")
      refused(make("m", { timeout = "soon" }), "bad duration 'soon'")
      assert.equal("INVALID", select(3, make "m":lock(-1)))
    end)

    it("raises for a caller's bug", function()
      assert.error_matches(function() make(5) end, "the name must be a string, got number")
      assert.error_matches(function() make() end, "the name must be a string, got nil")
      assert.error_matches(function() make("m", { tiemout = 1 }) end, "did you mean 'timeout'")
      assert.error_matches(function() make("m", 5) end, "options must be a table")
      assert.error_matches(function() make("m", { timeout = {} }) end, "must be seconds")
      assert.error_matches(function() make "m" () end, "a function expected, got nil")
      assert.error_matches(function() make "m":lock {} end, "must be seconds")
    end)
  end)
end

describe("a semaphore of n", function()
  it("has n holders at most, and n", function()
    local lock = semaphore("gpu", 3)
    for _ = 1, 3 do holder(lock) end
    await_holders(3)
    assert.equal("BUSY", select(3, lock:lock(0.05)))
    nst.kill((next(children)), "KILL")
    assert(lock:lock(10))
    assert.is_false(is_free(lock))
    lock:unlock()
    assert.is_true(is_free(lock))
  end)

  it("checks n", function()
    for _, n in ipairs { 0, -1, 1.5, 1001, math.huge } do
      assert.equal("INVALID", select(3, semaphore("gpu", n):lock()))
    end
    assert.error_matches(function() semaphore "gpu" end, "n must be a whole number, got nil")
    assert.error_matches(function() semaphore("gpu", "2") end, "got string")
    assert(semaphore("gpu", 1000):lock())
  end)
end)

describe("between many processes", function()
  it("a mutex lets one in at a time, a semaphore n, and nobody waits in vain", function()
    local status, out, err = proc.run { proc.lua, "-e", [[
      local nightshift = require "nightshift"
      local nst = require "nst"
      local shared = nightshift.shared
      local mutex, semaphore = nightshift.mutex "m", nightshift.semaphore("s", 3)
      shared:set("most", 0)
      local pids = {}
      for i = 1, 12 do
        pids[i] = nst.fork(function()
          for _ = 1, 200 do
            assert(mutex(function()
              local n = shared:get "n" or 0
              shared:set("n", n + 1)
              return true
            end))
            assert(semaphore(function()
              local inside = shared:incr "inside"
              local most = shared:get "most"
              while inside > most and not shared:cas("most", most, inside) do most = shared:get "most" end
              nst.sleep(0.00005)
              shared:incr("inside", -1)
              return true
            end))
          end
        end)
      end
      for _, pid in ipairs(pids) do
        local how, status
        repeat
          how, status = nst.reap(pid)
          if not how then nst.sleep(0.005) end
        until how
        assert(how == "exit" and status == 0)
      end
      print(shared:get "n", shared:get "inside", shared:get "most")
    ]], timeout = 60 }
    assert.equal(0, status, err)
    assert.equal("2400\t0\t3\n", out)
  end)
end)
