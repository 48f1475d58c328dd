-- nightshift.shared: every verb, in this process; programs of plain Lua try other sizes and
-- several processes. nightshift.mutex and nightshift.semaphore: in one process, between a
-- process and its children, and after a death. All three in the workers of a host, and in crowds
-- that are killed.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local shared = nightshift.shared

before_each(function()
  for _, key in ipairs(shared:keys()) do shared:delete(key) end
end)

-- Runs a program of plain Lua with a dict of a given size.
local function program(text, size)
  local status, out, err = proc.run { proc.lua, "-e", [[
    local nightshift = require "nightshift"
    local shared = nightshift.shared
    local nst = require "nst"
  ]] .. text, env = { NIGHTSHIFT_SHARED = size or false } }
  return status, out, err
end

local function runs(text, size)
  local status, out, err = program(text, size)
  assert.equal(0, status, out .. err)
  return out
end

describe("set and get", function()
  it("keep every kind of value exactly", function()
    local values = {
      "", "text", "a\0b\xff", ("long"):rep(1000), 0, 1, -1, math.maxinteger, math.mininteger, 0.1, -0.0, 1e308,
      math.huge, -math.huge, 1.0, true, false,
    }
    for _, value in ipairs(values) do
      assert.is_true(shared:set("key", value))
      local back = shared:get "key"
      assert.equal(value, back)
      assert.equal(math.type(value), math.type(back))
    end
    assert.is_true(shared:set("key", 0 / 0))
    local nan = shared:get "key"
    assert.is_true(nan ~= nan)
  end)

  it("keep small tables, with exact integers", function()
    local value = { id = (1 << 62) + 1, list = { 1, 2.5, "three", nightshift.null }, empty = nightshift.array {},
      deep = { { a = { b = true } } } }
    assert.is_true(shared:set("key", value))
    local back = shared:get "key"
    assert.same(value, back)
    assert.equal("integer", math.type(back.id))
    assert.are_not.equal(value, back) -- a copy
  end)

  it("take any bytes as a key", function()
    local keys = { "a", "a\0", "\0", " ", ("k"):rep(255), ("k"):rep(254), "\xff", "a\nb" }
    for i, key in ipairs(keys) do assert.is_true(shared:set(key, i)) end
    for i, key in ipairs(keys) do assert.equal(i, shared:get(key)) end
    assert.equal(#keys, #shared:keys())
  end)

  it("replace a value by one of another kind and size", function()
    local values = { 1, ("x"):rep(5000), "y", { 1 }, false, ("z"):rep(200), 2.5 }
    for _ = 1, 100 do
      for _, value in ipairs(values) do
        shared:set("key", value)
        assert.same(value, shared:get "key")
      end
    end
  end)

  it("give a bare nil for a key that is not there", function()
    assert.equal(1, select("#", shared:get "none"))
    assert.is_nil(shared:get "none")
  end)
end)

describe("bad input", function()
  local function refused(code, text, ok, message, got)
    assert.is_nil(ok)
    assert.equal(code, got)
    assert.matches(text, message, 1, true)
  end

  it("in a key is INVALID", function()
    for _, verb in ipairs { "get", "delete", "ttl", "incr" } do
      refused("INVALID", "1 to 255 bytes, this one has 0", shared[verb](shared, ""))
      refused("INVALID", "this one has 256", shared[verb](shared, ("k"):rep(256)))
    end
    refused("INVALID", "this one has 0", shared:set("", 1))
    refused("INVALID", "this one has 0", shared:add("", 1))
    refused("INVALID", "this one has 0", shared:cas("", nil, 1))
  end)

  it("in a value is INVALID and says where", function()
    refused("INVALID", "value: cannot encode a function", shared:set("key", print))
    refused("INVALID", "value.list[2]: cannot encode a function", shared:set("key", { list = { 1, print } }))
    refused("INVALID", "value.x: cannot encode nan", shared:set("key", { x = 0 / 0 }))
    refused("INVALID", "cannot encode a thread", shared:cas("key", nil, coroutine.create(print)))
    assert.same({}, shared:keys())
  end)

  it("in a ttl is INVALID", function()
    refused("INVALID", "a ttl of 0", shared:set("key", 1, 0))
    refused("INVALID", "0 or more", shared:set("key", 1, -1))
    refused("INVALID", "bad duration 'soon'", shared:add("key", 1, "soon"))
    refused("INVALID", "not a number", shared:set("key", 1, 0 / 0))
    assert.is_nil(shared:get "key")
  end)

  it("that is a caller's bug raises", function()
    assert.error_matches(function() shared.get "key" end, "bad argument #1 to 'get' %(table expected, got string%)")
    assert.error_matches(function() shared:get() end, "string expected, got no value")
    assert.error_matches(function() shared:get(5) end, "string expected, got number")
    assert.error_matches(function() shared:set "key" end, "a value expected; delete removes a key")
    assert.error_matches(function() shared:set("key", nil) end, "a value expected")
    assert.error_matches(function() shared:set("key", 1, true) end, "number of seconds")
    assert.error_matches(function() shared:incr("key", "1") end, "number expected, got string")
    assert.error_matches(function() shared:incr("key", 1, {}) end, "number expected, got table")
    assert.error_matches(function() shared:cas("key", {}, 1) end, "string, number, boolean or nil expected, got table")
    assert.error_matches(function() shared:keys {} end, "string expected, got table")
  end)
end)

describe("add", function()
  it("sets a key that is absent, and no other", function()
    assert.is_true(shared:add("key", 1))
    assert.is_false(shared:add("key", 2))
    assert.equal(1, shared:get "key")
    shared:set("key", false)
    assert.is_false(shared:add("key", 2))
  end)

  it("sets one that has expired", function()
    shared:set("key", 1, 0.01)
    eventually(function() return shared:add("key", 2) end)
    assert.equal(2, shared:get "key")
    assert.equal(math.huge, shared:ttl "key")
  end)
end)

describe("incr", function()
  it("counts from 0 by 1 unless told", function()
    assert.equal(1, shared:incr "key")
    assert.equal(2, shared:incr "key")
    assert.equal(12, shared:incr("key", 10))
    assert.equal(9, shared:incr("key", -3))
    assert.equal(105, shared:incr("other", 5, 100))
    assert.equal(110, shared:incr("other", 5, 100))
  end)

  it("keeps integers integers and makes floats where one is", function()
    assert.equal("integer", math.type(shared:incr("key", 1)))
    assert.equal("float", math.type(shared:incr("key", 1.0)))
    assert.equal(2.5, shared:incr("key", 0.5))
    assert.equal("integer", math.type(shared:incr("exact", 1, 1 << 60)))
    assert.equal((1 << 60) + 1, shared:get "exact")
  end)

  it("refuses to overflow", function()
    shared:set("key", math.maxinteger)
    local ok, message, code = shared:incr "key"
    assert.is_nil(ok)
    assert.equal("INVALID", code)
    assert.matches("beyond 64 bits", message)
    assert.equal(math.maxinteger, shared:get "key")
    shared:set("key", math.mininteger)
    assert.equal("INVALID", select(3, shared:incr("key", -1)))
  end)

  it("refuses what is no number, and says what it is", function()
    for kind, value in pairs { string = "5", boolean = true, table = { 1 } } do
      shared:set("key", value)
      local ok, message, code = shared:incr "key"
      assert.is_nil(ok)
      assert.equal("INVALID", code)
      assert.matches("the key has a " .. kind, message)
      assert.same(value, shared:get "key")
    end
  end)

  it("keeps the ttl", function()
    shared:set("key", 1, 100)
    shared:incr "key"
    local left = shared:ttl "key"
    assert.is_true(left > 0 and left <= 100)
  end)
end)

describe("cas", function()
  it("sets only what is as it was", function()
    shared:set("key", "old")
    assert.is_false(shared:cas("key", "other", "new"))
    assert.is_true(shared:cas("key", "old", "new"))
    assert.equal("new", shared:get "key")
    assert.is_false(shared:cas("key", "old", "newer"))
  end)

  it("takes nil for no value, on both sides", function()
    assert.is_true(shared:cas("key", nil, 1))
    assert.is_false(shared:cas("key", nil, 2))
    assert.is_false(shared:cas("key", 2, nil))
    assert.is_true(shared:cas("key", 1, nil))
    assert.is_nil(shared:get "key")
    assert.is_true(shared:cas("key", nil, nil))
    assert.is_true(shared:cas "key")
  end)

  it("compares as Lua does", function()
    local values = { 1, 1.0, 0, -0.0, "1", "", true, false, 1 << 53, 2.0 ^ 53, (1 << 53) + 1, math.maxinteger, 2.0 ^ 63,
      math.mininteger, -2.0 ^ 63, math.huge, 0.5, "a\0b", "a\0c", ("x"):rep(100), ("x"):rep(99) .. "y" }
    for _, stored in ipairs(values) do
      for _, old in ipairs(values) do
        shared:set("key", stored)
        assert.equal(stored == old, shared:cas("key", old, "new"), tostring(stored) .. " and " .. tostring(old))
      end
    end
    shared:set("key", 0 / 0)
    assert.is_false(shared:cas("key", 0 / 0, 1))
    shared:set("key", { 1 })
    assert.is_false(shared:cas("key", "[1]", 1))
  end)

  it("may store a table, and keeps the ttl", function()
    shared:set("key", 1, 100)
    assert.is_true(shared:cas("key", 1, { a = 1 }))
    assert.same({ a = 1 }, shared:get "key")
    assert.is_true(shared:ttl "key" <= 100)
  end)
end)

describe("delete", function()
  it("says whether there was something", function()
    shared:set("key", false)
    assert.is_true(shared:delete "key")
    assert.is_false(shared:delete "key")
    assert.is_nil(shared:get "key")
  end)
end)

describe("a ttl", function()
  it("ends a key", function()
    shared:set("key", 1, "20ms")
    local left = shared:ttl "key"
    assert.is_true(left == nil or left <= 0.02)
    eventually(function() return shared:get "key" == nil end)
    assert.is_nil(shared:ttl "key")
    assert.is_false(shared:delete "key")
    assert.same({}, shared:keys())
  end)

  it("is math.huge for what stays, nil for what is not there", function()
    shared:set("key", 1)
    assert.equal(math.huge, shared:ttl "key")
    assert.is_nil(shared:ttl "none")
  end)

  it("is the last set's", function()
    shared:set("key", 1, 0.01)
    shared:set("key", 2)
    nst.sleep(0.02)
    assert.equal(2, shared:get "key")
    shared:set("key", 3, "1h")
    local left = shared:ttl "key"
    assert.is_true(left > 3000 and left <= 3600)
  end)
end)

describe("keys", function()
  it("are all, or those with a prefix", function()
    for i = 1, 300 do shared:set("a:" .. i, i) end
    for i = 1, 50 do shared:set("b\0" .. i, i) end
    assert.equal(350, #shared:keys())
    assert.equal(300, #shared:keys "a:")
    assert.equal(50, #shared:keys "b\0")
    assert.same({}, shared:keys "c")
    local found = shared:keys "a:30"
    table.sort(found)
    assert.same({ "a:30", "a:300" }, found)
    assert.same({}, shared:keys(("x"):rep(300)))
  end)
end)

describe("memory", function()
  it("is bounded: FULL refuses and changes nothing", function()
    runs([[
      local n = 0
      while true do
        local ok, message, code = shared:set("key" .. n, "value")
        if not ok then
          assert(code == "FULL" and message:find("full %(65536 bytes%)"), message)
          break
        end
        n = n + 1
      end
      assert(n > 250 and n < 400, n)
      assert(#shared:keys() == n)
      for i = 0, n - 1 do assert(shared:get("key" .. i) == "value") end
      -- numbers replace what is there without room; what was deleted is room again
      assert(shared:set("key0", 1))
      local more = 0
      while shared:set("more" .. more, 1) do more = more + 1 end
      assert(more < 3 and shared:incr("key0") == 2 and shared:cas("key0", 2, 3))
      for i = 1, n - 1 do assert(shared:delete("key" .. i)) end
      for i = 1, n - 1 do assert(shared:set("other" .. i, "value")) end
    ]], "64K")
  end)

  it("has no room for a value larger than all of it: TOO_BIG", function()
    runs([[
      assert(shared:set("key", ("x"):rep(50000)))
      local ok, message, code = shared:set("key", ("x"):rep(70000))
      assert(ok == nil and code == "TOO_BIG" and message:find "70000 bytes", message)
      assert(select(3, shared:set("table", { ("x"):rep(70000) })) == "TOO_BIG")
      assert(#shared:get "key" == 50000)
    ]], "64K")
  end)

  it("of what has expired is room", function()
    runs([[
      for round = 1, 5 do
        local n = 0
        while shared:set("key" .. round .. "." .. n, "value", 0.05) do n = n + 1 end
        assert(n > 200, n)
        nst.sleep(0.06)
      end
      assert(#shared:keys() == 0)
    ]], "64K")
  end)

  it("that evicts gives the least recently used away", function()
    runs([[
      for i = 1, 10000 do
        assert(shared:set("key" .. i, "value"))
        assert(shared:get "key1" == "value") -- in use
      end
      local keys = shared:keys()
      assert(#keys > 250 and #keys < 400, #keys)
      for i = 10000, 10000 - #keys + 2, -1 do assert(shared:get("key" .. i), i) end
      assert(shared:get "key1")
      assert(shared:set("large", ("x"):rep(50000)) and #shared:get "large" == 50000)
      assert(shared:set("large", ("y"):rep(50000)) and shared:get "large" == ("y"):rep(50000))
      assert(select(3, shared:set("large", ("x"):rep(70000))) == "TOO_BIG")
    ]], "64K,evict")
  end)

  it("is used to the end by values of all sizes at random", function()
    runs([[
      math.randomseed(7)
      local model = {}
      local full = 0
      for _ = 1, 30000 do
        local key = "k" .. math.random(60)
        local pick = math.random(10)
        if pick <= 6 then
          local value = pick <= 3 and math.random(1 << 40) or ("v"):rep(math.random(0, 4000))
          local ok, _, code = shared:set(key, value)
          if ok then model[key] = value else assert(code == "FULL") full = full + 1 end
        elseif pick <= 8 then
          assert(shared:delete(key) == (model[key] ~= nil))
          model[key] = nil
        else
          assert(shared:get(key) == model[key])
        end
      end
      local n = 0
      for key, value in pairs(model) do n = n + 1 assert(shared:get(key) == value) end
      assert(#shared:keys() == n and full > 100)
    ]], "64K")
  end)

  it("is as large as asked for, once", function()
    runs([[
      assert(shared:open "256K")
      local ok, message, code = shared:open "1M"
      assert(ok == nil and code == "STATE" and message:find "already")
      assert(shared:set("key", ("x"):rep(200000)))
      assert(select(3, shared:set("key", ("x"):rep(300000))) == "TOO_BIG")
    ]], "64K")
    runs [[assert(shared:set("key", ("x"):rep(900000)))]] -- 1M
  end)

  it("of a bad size is INVALID at the first use, with what is expected", function()
    runs([[
      for _, call in ipairs { { "get", "k" }, { "set", "k", 1 }, { "incr", "k" }, { "keys" } } do
        local ok, message, code = shared[ call[1] ](shared, table.unpack(call, 2))
        assert(ok == nil and code == "INVALID" and message:find("'lots': expected 64K to 64G", 1, true), message)
      end
      assert(select(3, nightshift.mutex "a":acquire()) == "INVALID")
      assert(shared:open "64K" and shared:set("k", 1))
    ]], "lots")
  end)
end)

describe("in Lua", function()
  it("it may be used by finalisers and coroutines at any time", function()
    -- a program of its own, as what is collected all the time had better be little
    runs [[
      shared:set("table", { list = { 1, 2, 3 }, text = ("t"):rep(300) })
      shared:set("text", ("x"):rep(500))
      local function litter()
        setmetatable({}, { __gc = function()
          shared:incr "finalised"
          shared:get "text"
          shared:set("other", { 1, 2 })
        end })
      end
      debug.sethook(function() collectgarbage() end, "", 20)
      for _ = 1, 50 do
        litter()
        local co = coroutine.wrap(function()
          local value = shared:get "table"
          coroutine.yield(value)
        end)
        local value = co()
        assert(value.text == ("t"):rep(300) and #value.list == 3)
        assert(shared:get "text" == ("x"):rep(500))
      end
      debug.sethook()
      collectgarbage()
      assert(shared:get "finalised" >= 50)
    ]]
  end)

  it("all states of a process share it", function()
    -- a second copy of the module in this state is as good as a second state
    package.loaded["nightshift.core"] = nil
    local again = require "nightshift.core"
    package.loaded["nightshift.core"] = core
    again.shared:set("key", "seen")
    assert.equal("seen", shared:get "key")
  end)
end)

-- ------------------------------------------------------- mutex and semaphore

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
    assert(lock:acquire())
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
  await(fork(function() nightshift.shared:set("free", lock:acquire(0) ~= nil) end))
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
      assert.equal(lock, lock:acquire())
      assert.is_false(is_free(make "m"))
      assert.is_true(lock:release())
      assert.is_true(is_free(make "m"))
    end)

    it("is unlocked at the end of its variable's scope", function()
      do
        local held <close> = assert(make "m":acquire())
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
          local ok, message = pcall(function() again:acquire() end)
          assert.is_false(ok)
          assert.matches("shared_spec.lua:%d+: nightshift: " .. kind .. " 'm': held by this process already", message)
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
      assert.error_matches(function() lock:release() end, kind .. " 'm': release: this object does not hold it")
      lock:acquire()
      assert.error_matches(function() make "m":release() end, "this object does not hold it")
      lock:release()
      assert.error_matches(function() lock:release() end, "this object does not hold it")
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
      assert.equal("BUSY", select(3, lock:acquire(0)))
      assert.equal("BUSY", select(3, lock:acquire "1ms"))
    end)

    it("is free when its holder is killed", function()
      local lock = make "m"
      local pid = holder(lock)
      await_holders(1)
      nst.kill(pid, "KILL")
      assert(lock:acquire(10))
      lock:release()
    end)

    it("goes to one who waits when its holder is killed or unlocks", function()
      for _, ending in ipairs { "KILL", "unlock" } do
        local lock = make(ending)
        local pid = fork(function()
          assert(lock:acquire())
          nightshift.shared:set("held", true)
          eventually(function() return nightshift.shared:get "go" end, 30)
          lock:release()
          nightshift.shared:set("held", false)
        end)
        eventually(function() return nightshift.shared:get "held" end)
        local waiter = fork(function() assert(lock:acquire(30)) end)
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
      lock:acquire()
      local how, status = await(fork(function()
        assert(select(3, lock:acquire(0)) == "BUSY")
        assert(not pcall(lock.release, lock))
        do local _ <close> = lock end
        require "nightshift.core".unlock_all()
        collectgarbage()
        assert(select(3, make "m":acquire(0)) == "BUSY")
      end))
      assert.same({ "exit", 0 }, { how, status })
      assert.is_false(is_free(make "m"))
      lock:release()
      assert.is_true(is_free(make "m"))
    end)

    it("stays held when its object is dropped", function()
      make "m":acquire()
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
        for _, try in ipairs { function() return lock:acquire() end, function() return lock(print) end } do
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
      assert.equal("INVALID", select(3, make "m":acquire(-1)))
    end)

    it("raises for a caller's bug", function()
      assert.error_matches(function() make(5) end, "the name must be a string, got number")
      assert.error_matches(function() make() end, "the name must be a string, got nil")
      assert.error_matches(function() make("m", { tiemout = 1 }) end, "did you mean 'timeout'")
      assert.error_matches(function() make("m", 5) end, "options must be a table")
      assert.error_matches(function() make("m", { timeout = {} }) end, "must be seconds")
      assert.error_matches(function() make "m" () end, "a function expected, got nil")
      assert.error_matches(function() make "m":acquire {} end, "must be seconds")
    end)
  end)
end

describe("a semaphore of n", function()
  it("has n holders at most, and n", function()
    local lock = semaphore("gpu", 3)
    for _ = 1, 3 do holder(lock) end
    await_holders(3)
    assert.equal("BUSY", select(3, lock:acquire(0.05)))
    nst.kill((next(children)), "KILL")
    assert(lock:acquire(10))
    assert.is_false(is_free(lock))
    lock:release()
    assert.is_true(is_free(lock))
  end)

  it("checks n", function()
    for _, n in ipairs { 0, -1, 1.5, 1001, math.huge } do
      assert.equal("INVALID", select(3, semaphore("gpu", n):acquire()))
    end
    assert.error_matches(function() semaphore "gpu" end, "n must be a whole number, got nil")
    assert.error_matches(function() semaphore("gpu", "2") end, "got string")
    assert(semaphore("gpu", 1000):acquire())
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

-- ----- in hosts

-- nightshift.shared, mutexes and semaphores in the workers of a host.
describe("in a host: #long", function()
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
      local worker = eventually(function() return result(assert(q:push "holder")) end, 20)
      local id = assert(q:push "take")
      eventually(function() return assert(handle:job(id)).state == "running" end)
      nst.kill(worker, "KILL")
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

-- Processes are killed at random moments while they change the dict and hold locks: 60 times, and
-- 250 times with NIGHTSHIFT_LONG. spec/unit/shared.c does the same place by place.
describe("a crowd that is killed at random #long", function()
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
      env = { NIGHTSHIFT_SHARED = size, KILLS = os.getenv "NIGHTSHIFT_LONG" and 250 or 60 } }
    assert.equal(0, status, out .. err)
    return out
  end

  it("leaves a dict that is whole, with all its room, and no lock held", function()
    local out = survives "64K"
    assert.is_true(tonumber(out:match "updates (%d+)") > 600, out)
  end)

  it("the same in a dict that evicts", function() survives "64K,evict" end)
end)

-- The bank account: workers withdraw from one balance by get and then set. With NIGHTSHIFT_LONG it
-- is 200 of them, 100,000 times. Under the mutex not one is lost. Without it some are, so the test
-- would notice a mutex that does nothing.
describe("20,000 withdrawals by many workers #long", function()
  local LONG = os.getenv "NIGHTSHIFT_LONG"
  local WORKERS, JOBS, EACH = LONG and 200 or 64, LONG and 1000 or 400, LONG and 100 or 50

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
    if shared:incr "ended" == %d then return shared:get "balance" end
  end
  return {
    guarded = function(job) return run(job, function() return account(withdraw) end) end,
    unguarded = function(job) return run(job, withdraw) end,
  }]]):format(JOBS * EACH, JOBS)

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
