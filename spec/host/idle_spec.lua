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
  nst.sleep(2.5) -- the repetitions after a wake
  local before, ticks = questions(), cpu_ticks(h.pid)
  nst.sleep(4)
  -- a listener's turn or a ping may fall into this window
  assert.is_true(questions() - before <= 8, questions() - before)
  assert.is_true(cpu_ticks(h.pid) - ticks <= 1)
  h:signal "TERM"
  assert.equal(0, h:wait())
end)

it("starts a pushed job within milliseconds", function()
  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local h = host.start(url, [[
    local nightshift = require "nightshift"
    return { when = function() return nightshift.clock() end }]])
  local delays = {}
  for i = 1, 20 do
    nst.sleep(0.05)
    local pushed = nightshift.clock()
    local id = q:push "when"
    delays[i] = eventually(function() return handle:job(id).result end) - pushed
  end
  table.sort(delays)
  assert.is_true(delays[10] < proc.limit(0.05), delays[10])
  h:signal "TERM"
  assert.equal(0, h:wait())
end)

it("starts a delayed job when it is due", function()
  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local h = host.start(url, [[
    local nightshift = require "nightshift"
    return { when = function() return nightshift.clock() end }]])
  nst.sleep(0.2)
  local pushed = nightshift.clock()
  local id = handle:queue("q"):push("when", nil, { delay = 0.5 })
  local took = eventually(function() return handle:job(id).result end) - pushed
  assert.is_true(took >= 0.5 and took < 0.5 + proc.limit(0.2), took)
  h:signal "TERM"
  assert.equal(0, h:wait())
end)
