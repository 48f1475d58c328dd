-- What a push and its ring cost, and that no ring is lost.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proxy"

-- Two rings each: 10,000 rings with NIGHTSHIFT_LONG.
local ROUNDS = math.ceil((os.getenv "NIGHTSHIFT_LONG" and 5000 or 1500) / proc.limit(1))

-- Answers each job of "there" by one of "back", at a moment of its own.
local ANSWERER = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  local there, back = db:queue "there", db:queue "back"
  print "waiting"
  io.flush()
  for job in there:jobs{ wait = 30 } do
    assert(job:ack())
    local until_ = nightshift.clock() + math.random() * 0.001
    while nightshift.clock() < until_ do end -- finer than any sleep
    assert(back:push("next", 1))
    if job.name == "last" then break end
  end]]

-- A waiting claim, which says when it has got its job.
local WAITER = [[
  local db = assert(require "nightshift".open(%q))
  print "waiting"
  io.flush()
  assert(assert(db:queue "mail":claim{ wait = 30 }):ack())
  print "woken"]]

local SLEEPS = [[SELECT COUNT(*) AS n FROM information_schema.processlist
  WHERE db = DATABASE() AND info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state LIKE 'User %']]

local function number(handle, sql) return math.tointeger(tonumber(assert(handle:execute(sql))[1].n)) end

-- How often the caller of a verb waits for the server, each of whose replies comes
-- DELAY later. The least of some: a machine may be busy.
local DELAY = math.ceil(proc.limit(0.2) * 1000)
local function waits(p, least_of_all, verb, prepare)
  local least = math.huge
  for i = 1, 6 do
    if prepare then prepare() end
    p:tell("delay " .. DELAY)
    local start = nightshift.clock()
    assert(verb(i))
    local took = nightshift.clock() - start
    p:tell "delay 0"
    least = math.min(least, took * 1000 // DELAY)
    if least <= least_of_all then break end
  end
  return least
end

describe("a ring", function()
  local url, handle

  with_database(function(opened, _, at) handle, url = opened, at end)

  local function sleeping()
    local waiter = proc.start { proc.lua, "-e", WAITER:format(url) }
    waiter:wait_line "waiting"
    eventually(function() return number(handle, SLEEPS) == 1 end)
    return waiter
  end

  it("at any moment, from any kind of push, is not lost: thousands of them", function()
    assert(handle:execute "CREATE TABLE ordered (id INT PRIMARY KEY AUTO_INCREMENT)")
    assert(handle:execute [[CREATE TRIGGER ordered_push AFTER INSERT ON ordered FOR EACH ROW
      CALL nightshift_push('there', 'next', '1', '')]])
    local there, back = handle:queue "there", handle:queue "back"
    local ways = {
      function() assert(there:push("next", 1)) end,
      function() assert(there:push_many { { "next", 1 } }) end,
      function() assert(handle:transaction(function(tx) return assert(tx:queue("there"):push("next", 1)) end)) end,
      function() -- from SQL, the ring after the commit
        assert(handle:execute "INSERT INTO ordered VALUES ()")
        assert(handle:execute "CALL nightshift_ring()")
      end,
      function() -- and before it, as from a trigger
        assert(handle:transaction(function(tx)
          assert(tx:execute "INSERT INTO ordered VALUES ()")
          assert(tx:execute "CALL nightshift_ring()")
          return true
        end))
      end,
    }
    assert(there:push("next", 1))
    local answerer = proc.start { proc.lua, "-e", ANSWERER:format(url) }
    answerer:wait_line "waiting"
    assert(assert(back:claim { wait = 20 }):ack())
    local worst = 0
    for i = 1, ROUNDS do
      local pushed = nightshift.clock()
      ways[i % #ways + 1]()
      local job = assert(back:claim { wait = 20 })
      worst = math.max(worst, nightshift.clock() - pushed)
      assert(job:ack())
      local until_ = nightshift.clock() + math.random() * 0.001
      while nightshift.clock() < until_ do end
    end
    assert(there:push("last", 1))
    assert.is_true(worst < proc.limit(9), ("one came after %.3f s"):format(worst)) -- lost: 10 s
  end)

  it("takes no time of a push that nobody waits for, and none of one that somebody does", function()
    local p = proxy.start(db.shared())
    local through <close> = assert(nightshift.open(p:url(url)))
    local q = through:queue "mail"
    local items = {}
    for i = 1, 20 do items[i] = { "many", i } end
    local function one() return q:push("mail", 1) end
    local function many() return q:push_many(items) end
    assert(one() and many()) -- now everything is prepared
    assert.equal(1, waits(p, 1, one))
    assert.equal(1, waits(p, 1, function(i) return q:push("mail", 1, { unique = "a" .. i, delay = 60 }) end))
    assert.equal(3, waits(p, 3, many)) -- and now and then one for ids
    assert.equal(1, waits(p, 1, one, function()
      while #assert(handle:queue("mail"):claim_many(1000)) > 0 do end
      sleeping()
    end))
  end)

  it("is sent once for many jobs, and kills nothing when nobody sleeps", function()
    local q = handle:queue "mail"
    local items = {}
    for i = 1, 500 do items[i] = { "many", i } end
    local function kills(verb)
      local sql = "SELECT VARIABLE_VALUE AS n FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME = 'COM_KILL'"
      local before = number(handle, sql)
      assert(verb())
      return number(handle, sql) - before
    end
    assert.equal(0, kills(function() return q:push_many(items) end))
    assert.equal(0, kills(function() return q:push("mail", 1) end))
    while #assert(q:claim_many(1000)) > 0 do end
    local waiter = sleeping()
    assert.equal(1, kills(function() return q:push_many(items) end))
    waiter:wait_line "woken"
    while #assert(q:claim_many(1000)) > 0 do end
    waiter = sleeping()
    assert.equal(1, kills(function() return q:push("mail", 1) end))
    waiter:wait_line "woken"
  end)

  it("that may not be asked for is made up for by a look every second or so", function()
    local name = url:match "/([^/?]+)%?"
    local _, user = db.user(url, "")
    local _, text = proc.nightshift { "doctor", "--grants", "worker", "--user", user .. "@localhost" }
    db.sql(text, name)
    db.sql(("REVOKE EXECUTE ON PROCEDURE nightshift_listen FROM %s@localhost"):format(user), name)
    local worker = db.url(name, user, "Pass-word_1")
    local _, out = proc.nightshift({ "doctor" }, worker)
    assert.is_truthy(out:find("nightshift_listen", 1, true), out)
    local h = host.start(worker, "return { a = function() end }")
    for _ = 1, 3 do
      eventually(function() return number(handle, SLEEPS) == 1 end)
      local id = assert(handle:queue("mail"):push("a", 1))
      eventually(function() return assert(handle:job(id)).state == "done" end, 9) -- unrung: 10 s
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
