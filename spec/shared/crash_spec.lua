-- Processes are killed at random moments while they change the dict and hold
-- locks, hundreds of times; spec/shared/units.c does the same place by place.

local proc = require "spec.support.proc"

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
  assert(nightshift.mutex "guard":lock(5)):unlock()
  for _ = 1, 2 do assert(nightshift.semaphore("pair", 2):lock(5)):unlock() end
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
    env = { NIGHTSHIFT_SHARED = size, KILLS = 250 } }
  assert.equal(0, status, out .. err)
  return out
end

describe("a crowd that is killed at random", function()
  it("leaves a dict that is whole, with all its room, and no lock held", function()
    local out = survives "64K"
    assert.is_true(tonumber(out:match "updates (%d+)") > 1000, out)
  end)

  it("the same in a dict that evicts", function() survives "64K,evict" end)
end)
