-- A verb that met a table or a row that somebody kept locked began anew twenty times, each for
-- as long as a lock is waited for: a push beside LOCK TABLES took seven minutes to say BUSY. A
-- look at dead holders that a KILL QUERY met was logged as an error, and waited ten seconds to
-- come again.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local PATIENCE = 5 -- s: read_timeout

describe("what somebody keeps locked", function()
  local url, locker, handle, q

  before_each(function()
    url = db.fresh()
    locker = assert(nightshift.open(url))
    handle = assert(nightshift.open(("%s&read_timeout=%ds"):format(url, PATIENCE)))
    q = handle:queue "q"
  end)
  after_each(function()
    locker:close()
    handle:close()
  end)

  local function busy(verb)
    local since = nightshift.clock()
    local none, message, code = verb()
    local took = nightshift.clock() - since
    assert.same({ nil, "BUSY" }, { none, code }, message)
    assert.is_true(took >= PATIENCE / 2 and took < proc.limit(3 * PATIENCE), took)
  end

  it("is waited for like a reply: a table", function()
    local id = assert(q:push "first")
    local job = assert(q:claim())
    assert(locker:execute "LOCK TABLES nightshift_job WRITE, nightshift_ready WRITE")
    busy(function() return q:push "a" end)
    busy(function() return q:push_many { { "a" }, { "b" } } end)
    busy(function() return job:ack() end)
    assert(locker:execute "UNLOCK TABLES")
    assert(job:ack())
    assert.equal("done", handle:job(id).state)
    assert(q:push "a")
    assert.equal(1, #assert(q:claim_many(10)))
  end)

  it("is waited for like a reply: a row", function()
    local id = assert(q:push "first")
    assert(locker:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id))
      busy(function() return handle:cancel(id) end)
      return true
    end))
    assert(handle:cancel(id))
  end)
end)

it("a look at the dead that is hit by a KILL comes again soon, and is no error", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local id = assert(handle:queue "q":push "a")
  local holder = proc.start { proc.lua, "-e", ([[
    assert(require "nightshift".open(%q):queue "q":claim())
    print "holds"
    io.flush()
    os.execute "sleep 60"]]):format(url) }
  holder:wait_line("^holds", 20)
  local h = host.start(url, "return { a = function() end }")
  db.sql([[CREATE TRIGGER trouble BEFORE UPDATE ON nightshift_holder FOR EACH ROW
    IF NEW.dead IS NOT NULL THEN SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317; END IF]], name)
  holder:signal "KILL"
  h:wait_line("level=warn event=rescue.failed code=BUSY", 20)
  db.sql("DROP TRIGGER trouble", name)
  local since = nightshift.clock()
  eventually(function() return handle:job(id).state == "done" end, 20)
  local took = nightshift.clock() - since
  assert.is_true(took < proc.limit(9), took) -- by the round: 10 s
  h:signal "TERM"
  assert.equal(0, h:wait(20))
  assert.is_nil(h:transcript():find("level=error", 1, true), h:transcript())
end)
