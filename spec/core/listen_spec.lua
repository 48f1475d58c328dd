-- Waiting without polling: no wake-up is lost, and sleeping costs nothing.

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local lab = require "spec.support.lab"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

describe("a waiting claim", function()
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

-- Whoever waited for work looked at the ready rows with locks and slept in one statement,
-- and so kept what the look had locked for as long as it slept. When purge removed such a
-- row the server made its lock one on the gap, and nobody could push there: pushes waited
-- for sleepers, who only woke for a push. Seen once in some runs of 64 claimers beside
-- other work.
describe("sleepers:", function()
  local database
  lab.handles(1, function(handle) database = handle end)
  after_each(crew.clean)

  local function rows(sql) return assert(database:execute(sql)) end

  it("whoever sleeps for want of work keeps no lock", function()
    local q = database:queue "q"
    local reader <close> = lab.open() -- purge removes nothing: the sleeper's look goes over deleted rows
    for i = 1, 20 do assert(q:push("noop", i)) end
    assert(reader:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert(reader._handle:begin())
    assert(reader:execute "SELECT 1 FROM nightshift_meta")
    for _ = 1, 20 do assert(assert(q:claim()):ack()) end
    crew.fork(2, function()
      local own <close> = lab.open()
      assert(own:queue "q":claim { wait = 60 }):ack()
    end)
    eventually(function()
      return #rows "SELECT 1 FROM information_schema.PROCESSLIST WHERE db = DATABASE() AND STATE = 'User lock'" == 2
    end)
    assert.same({}, rows [[SELECT p.ID AS id, t.trx_lock_structs AS locks
    FROM information_schema.PROCESSLIST p
    JOIN information_schema.INNODB_TRX t ON t.trx_mysql_thread_id = p.ID
    WHERE p.DB = DATABASE() AND p.STATE = 'User lock' AND t.trx_lock_structs > 0]])
    for i = 1, 2 do assert(q:push("noop", i)) end
    eventually(function() return rows "SELECT COUNT(*) AS n FROM nightshift_finished"[1].n == 22 end)
  end)
end)

-- Whoever waited for jobs of a queue did not listen for a while after a push into another
-- one: the longer that push lay back, up to five seconds.
describe("a waiting claim", function()
  local WAITER = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  for job in db:queue "mine":jobs{ wait = 30 } do
    print(("late %%.3f"):format(nightshift.clock() - job.payload))
    io.flush()
    assert(job:ack())
  end]]

  local url, name
  before_each(function() url, name = db.fresh() end)

  local function sleepers()
    return tonumber(db.sql([[SELECT COUNT(*) FROM information_schema.processlist
      WHERE db = DATABASE() AND info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state = 'User lock']], name))
  end

  for lapse, bound in pairs { [0.5] = 1, [1.8] = 3, [2.6] = 3 } do
    it(("hears of a push %g s after one into another queue"):format(lapse), function()
      local handle <close> = assert(nightshift.open(url))
      local waiter = proc.start { proc.lua, "-e", WAITER:format(url) }
      eventually(function() return sleepers() == 1 end)
      assert(handle:queue "other":push("a", 1))
      nst.sleep(lapse)
      assert(handle:queue "mine":push("b", nightshift.clock()))
      local late = tonumber(waiter:wait_line "^late (%S+)")
      assert.is_true(late < proc.limit(bound), late)
    end)
  end
end)

-- Consumers whose queues were paused were one kind of sleeper, whatever their queues: a
-- resume ended the sleep of the oldest and the newest of them, and the one whose queue it was
-- slept on for up to ten seconds.
describe("consumers of paused queues", function()
  local CONSUMER = [[
  local db = assert(require "nightshift".open(%q))
  for job in db:queue %q:jobs { wait = 60 } do
    assert(job:ack())
    break
  end]]

  it("are woken by the resume of their own queue, the middle one, too", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local all = {}
    local function asleep(n, ms) -- so many consumers, for so long
      eventually(function()
        return db.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'User %' AND time_ms > "
          .. ms, name) == tostring(n)
      end)
    end
    for i, queue in ipairs { "one", "two", "three" } do
      assert(handle:queue(queue):push "noop")
      assert(handle:queue(queue):pause())
      all[i] = proc.start { proc.lua, "-e", CONSUMER:format(url, queue) }
      asleep(i, 0)
    end
    asleep(3, 3000) -- a sleep looks again in its first two seconds
    assert(handle:queue "two":resume())
    local resumed = nightshift.clock()
    assert.equal(0, all[2]:wait(60))
    local late = nightshift.clock() - resumed
    for _, consumer in ipairs(all) do consumer:signal "KILL" end
    assert.is_true(late < proc.limit(5), ("%.1f s late"):format(late))
  end)
end)
