-- nightshift.shared: every verb, in this process. What other sizes do, and
-- what happens between processes, is tried in programs of plain Lua.

local core = require "nightshift.core"
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
      assert(select(3, nightshift.mutex "a":lock()) == "INVALID")
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
