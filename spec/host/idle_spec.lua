-- A host with nothing to do does nothing, and starts what comes at once.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local function cpu_ticks(pid)
  local file <close> = io.open(("/proc/%d/stat"):format(pid))
  local user, system = file:read("a"):match "%) %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ (%d+) (%d+)"
  return user + system
end

it("asks the server nothing and takes no time", function()
  local server = db.server()
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
