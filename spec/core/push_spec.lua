-- Pushes: durable, all or none, never doubled, never in anybody's way.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proxy"

-- A handle whose nth commit from now on is cut.
local function cutting(url, when, nth)
  local p = proxy.start(db.shared())
  local handle = assert(nightshift.open(p:url(url)))
  p:tell(("commit %s %d"):format(when, nth))
  return handle, p
end

describe("a push", function()
  local url

  before_each(function() url = db.fresh() end)

  local function count(what) return tonumber((db.sql("SELECT COUNT(*) FROM " .. what, url:match "/([^/?]+)%?"))) end

  for _, when in ipairs { "before", "after" } do
    it("whose connection is cut " .. when .. " its commit is repeated without a second job", function()
      local through <close> = assert(nightshift.open(url)) -- its queue exists, so that the first COMMIT is the push's
      through:queue("mail"):push("first", {})
      local handle <close>, p = cutting(url, when, 1)
      local id = assert(handle:queue("mail"):push("second", { n = 1 }))
      assert.equal("yes", p:tell "fired")
      assert.equal("second", assert(through:job(id)).name)
      assert.equal(2, count "nightshift_job")
      assert.equal(2, count "nightshift_ready WHERE job_id > 0")
    end)
  end

  it("whose cut commit happened, and whose job is done by then, is not pushed again", function()
    local host <close> = assert(nightshift.open(url))
    host:queue "mail"
    assert(host:queue("mail"):push("warm-up", {}))
    assert(host:queue("mail"):claim()):ack()
    local handle <close>, p = cutting(url, "after", 1)
    local worker = proc.start { proc.lua, "-e", ([[
      local db = require "nightshift".open(%q)
      local job = db:queue "mail":claim{ wait = 20 }
      job:ack() print "acked"]]):format(url) }
    local id = assert(handle:queue("mail"):push("only", {}))
    assert.equal("yes", p:tell "fired")
    worker:wait_line "acked"
    eventually(function() return host:job(id).state == "done" end)
    assert.equal(0, count "nightshift_job")
    assert.equal(2, count "nightshift_finished")
  end)

  it("in a transaction that stays open stops neither claims nor other pushes", function()
    local caller <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    assert(other:queue("mail"):push("before", {}))
    local order = {}
    assert(caller:transaction(function(tx)
      assert(tx:queue("mail"):push("inside", {}))
      local started = nightshift.clock()
      assert(other:queue("mail"):push("after", {}))
      for _ = 1, 2 do
        local job = assert(other:queue("mail"):claim())
        order[#order + 1] = job.name
        assert(job:ack())
      end
      assert.is_nil(other:queue("mail"):claim())
      assert.is_true(nightshift.clock() - started < proc.limit(10), "something waited for the open transaction")
      return true
    end))
    assert.same({ "before", "after" }, order)
    assert.equal("inside", assert(other:queue("mail"):claim()).name)
  end)

  it("into a queue that is new, in a transaction that stays open, does not stop others there", function()
    local caller <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    assert(caller:transaction(function(tx)
      assert(tx:queue("brand new"):push("inside", {}))
      assert(other:queue("brand new"):push("outside", {}))
      assert.equal("outside", assert(other:queue("brand new"):claim()).name)
      return true
    end))
  end)

  it("is forgotten when its transaction rolls back", function()
    local handle <close> = assert(nightshift.open(url))
    assert.has_error(function()
      handle:transaction(function(tx)
        assert(tx:queue("mail"):push("never", {}))
        error "changed my mind"
      end)
    end)
    assert.equal(0, count "nightshift_job")
    assert.is_nil(handle:queue("mail"):claim())
  end)

  it("of many is all or none", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "mail"
    assert(q:push("holder", {}, { unique = "k" }))
    local none, message, code = q:push_many { { "a", {} }, { "b", {}, { unique = "k" } } }
    assert.is_nil(none)
    assert.equal("DUPLICATE", code)
    assert.is_truthy(message:find("'k'", 1, true))
    assert.equal(1, count "nightshift_job")
  end)

  it("of 10,000 has 10,000 ids, in order, all different", function()
    local handle <close> = assert(nightshift.open(url))
    local items = {}
    for i = 1, 10000 do items[i] = { "n", i } end
    local ids = assert(handle:queue("mail"):push_many(items))
    assert.equal(10000, #ids)
    for i = 2, #ids do assert.is_true(ids[i] > ids[i - 1]) end
    assert.equal(10000, count "nightshift_ready WHERE job_id > 0")
  end)

  it("with a unique key is refused while the first lives, and taken after its end", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "mail"
    local first = assert(q:push("a", {}, { unique = "welcome:42" }))
    assert.equal("DUPLICATE", select(3, q:push("a", {}, { unique = "welcome:42" })))
    assert(handle:queue("other"):push("a", {}, { unique = "welcome:42" }))
    assert(q:claim()):ack()
    assert(q:push("a", {}, { unique = "welcome:42" }))
    assert.equal("DUPLICATE", select(3, handle:retry(first)))
  end)

  it("with a delay becomes claimable when it is due, not before", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "mail"
    local started = nightshift.clock()
    assert(q:push("later", {}, { delay = 2 }))
    assert.is_nil(q:claim())
    assert.equal("later", assert(q:claim { wait = 20 }).name)
    local took = nightshift.clock() - started
    assert.is_true(took > 1.9 and took < proc.limit(8), ("came after %g s"):format(took)) -- by the round: 10 s
  end)
end)

describe("nightshift_push", function()
  it("pushes from SQL, from a trigger too, and a ring wakes a waiting claim", function()
    local url = db.fresh()
    local name = url:match "/([^/?]+)%?"
    db.sql([[CREATE TABLE customer (id INT PRIMARY KEY, mail VARCHAR(100));
      CREATE TRIGGER welcome AFTER INSERT ON customer FOR EACH ROW
        CALL nightshift_push('mail', 'welcome', JSON_OBJECT('to', NEW.mail),
          '{"priority": 120, "unique": "w1"}')]], name)
    local waiting = proc.start { proc.lua, "-e", ([[
      local db = require "nightshift".open(%q)
      local q = db:queue "mail"
      print "waiting"
      local job = q:claim{ wait = 20 }
      print(job.name, job.payload.to, job.priority)]]):format(url) }
    waiting:wait_line "waiting"
    db.sql("INSERT INTO customer VALUES (1, 'a@example.com'); CALL nightshift_ring()", name)
    waiting:wait_line "welcome\ta@example.com\t120"
  end)

  it("refuses bad JSON, unknown options and bad names", function()
    local url = db.fresh()
    local name = url:match "/([^/?]+)%?"
    for call, expected in pairs {
      ["'q', 'n', '{', NULL"] = "payload is not valid JSON",
      ["'q', 'n', '1', '[]'"] = "options are not a JSON object",
      ["'q', 'n', '1', '{\"priorty\": 1}'"] = "unknown option priorty",
      ["'', 'n', '1', NULL"] = "the queue is empty",
      ["'q', '', '1', NULL"] = "the job name is empty",
    } do
      local ok, message = pcall(db.sql, "CALL nightshift_push(" .. call .. ")", name)
      assert.is_false(ok)
      assert.is_truthy(tostring(message):find(expected, 1, true), tostring(message))
    end
    assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_job", name):gsub("%s", "")))
  end)
end)
