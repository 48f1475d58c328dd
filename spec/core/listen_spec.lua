-- Waiting without polling: no wake-up is lost, and sleeping costs nothing.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

local WAITER = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  local q = db:queue "mail"
  print "waiting"
  io.flush()
  local worst, n = 0, 0
  for job in q:jobs{ wait = 30 } do
    local late = nightshift.clock() - job.payload
    worst, n = math.max(worst, late), n + 1
    assert(job:ack())
    if job.name == "last" then break end
  end
  print(("worst %%.3f of %%d"):format(worst, n))]]

describe("a waiting claim", function()
  it("sees each of 1,000 pushes at random moments at once", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "mail"
    local waiter = proc.start { proc.lua, "-e", WAITER:format(url) }
    waiter:wait_line "waiting"
    for i = 1, 1000 do
      local until_ = nightshift.clock() + math.random() * 0.004
      while nightshift.clock() < until_ do end -- finer than any sleep
      assert(q:push(i == 1000 and "last" or "next", nightshift.clock()))
    end
    waiter:wait_line("worst", 60)
    local worst, n = waiter:text():match "worst (%S+) of (%d+)"
    assert.equal("1000", n)
    assert.is_true(tonumber(worst) < proc.limit(9), "one came after " .. worst .. " s") -- lost: 10 s
  end)

  it("is rung by the one push that concerns it, and several kinds each by theirs", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local waiters = {}
    for i, queue in ipairs { "a", "b", "c" } do
      waiters[i] = proc.start { proc.lua, "-e", (WAITER:format(url):gsub('"mail"', '"' .. queue .. '"')) }
      waiters[i]:wait_line "waiting"
    end
    for i, queue in ipairs { "c", "a", "b" } do
      assert(handle:queue(queue):push("last", nightshift.clock()))
      local waiter = waiters[({ 3, 1, 2 })[i]]
      waiter:wait_line("worst", 9) -- unrung: 10 s
    end
  end)

  it("whose process was killed is struck off the list, and the next one is rung", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local killed = proc.start { proc.lua, "-e", WAITER:format(url) }
    killed:wait_line "waiting"
    eventually(function() return db.sleepers(name) == 1 end)
    local other = proc.start { proc.lua, "-e", WAITER:format(url) }
    other:wait_line "waiting"
    eventually(function() return db.sleepers(name) == 2 end)
    killed:signal "KILL"
    killed:wait()
    assert(handle:queue("mail"):push("last", nightshift.clock()))
    other:wait_line("worst", 9)
    eventually(function()
      handle._handle:ring()
      return db.sleepers(name) == 0
    end)
  end)

  it("asks the server nothing while it sleeps", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local waiter = proc.start { proc.lua, "-e", WAITER:format(url) }
    waiter:wait_line "waiting"
    local function statements()
      local rows = assert(handle:execute [[SELECT VARIABLE_VALUE AS n FROM information_schema.GLOBAL_STATUS
        WHERE VARIABLE_NAME = 'QUESTIONS']])
      return tonumber(rows[1].n)
    end
    eventually(function()
      return #assert(handle:execute [[SELECT 1 FROM information_schema.processlist
        WHERE info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state = 'User lock']]) == 1
    end)
    eventually(function() -- a look of its own, each ten seconds, may fall into one of these
      local before = statements()
      assert(handle:execute "DO SLEEP(2)")
      return statements() - before <= 3 -- our own two, and at most one more
    end)
    assert(handle:queue("mail"):push("last", nightshift.clock()))
    waiter:wait_line "worst"
  end)
end)
