-- Pushes: durable, all or none, never doubled, never in the way.

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local ledger = crew.ledger
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

-- A handle with a cut at its nth commit from now on.
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

  -- The answer is lost, and the server cannot be asked: whether it was written is not known.
  describe("whose answer was lost", function()
    local handle, through, direct, q

    before_each(function()
      direct, through = assert(nightshift.open(url)), proxy.start(db.shared())
      handle = assert(nightshift.open(through:url(url)))
      q = handle:queue "mail"
      assert(q:push("warm-up", 0))
      assert(q:claim()):ack()
    end)
    after_each(function()
      handle:close()
      direct:close()
    end)

    --- Pushes while the connection is cut at the commit, for good; what GONE gives.
    local function lose(when, push, nth)
      through:tell "lasting"
      through:tell(("commit %s %d"):format(when, nth or 1))
      local none, message, code, ids = push()
      assert.same({ nil, "GONE" }, { none, code }, message)
      assert.equal("yes", through:tell "fired")
      through:tell "admit"
      return ids
    end

    local function all(name)
      return direct:execute([[SELECT id FROM nightshift_job WHERE name = ? UNION ALL
        SELECT id FROM nightshift_finished WHERE name = ?]], name, name)
    end

    for _, when in ipairs { "before", "after" } do
      for _, ends in ipairs { "lives", "has ended" } do
        it(("%s its commit is one job by its id, which %s"):format(when, ends), function()
          local id = lose(when, function() return q:push("lost", { n = 1 }) end)
          assert.equal("integer", math.type(id))
          assert.equal(when == "after" and 1 or 0, #all "lost")
          if ends == "has ended" and when == "after" then assert(direct:queue("mail"):claim():ack()) end
          for _ = 1, 3 do assert.equal(id, (q:push("lost", { n = 2 }, { id = id }))) end
          if ends == "has ended" and when == "before" then assert(direct:queue("mail"):claim():ack()) end
          assert.equal(id, (q:push("lost", { n = 2 }, { id = id })))
          assert.same({ { id = id } }, all "lost")
          assert.equal(when == "after" and 1 or 2, direct:job(id).payload.n)
        end)
      end

      it(when .. " its commit, with a key, is one job by its id", function()
        for i, words in ipairs { "refuse", "keep", "replace" } do
          local options = { unique = { key = "k" .. i, period = 60, on_conflict = words } }
          local id = lose(when, function() return q:push("lost", i, options) end)
          options.id = id
          for _ = 1, 2 do assert.equal(id, (q:push("lost", i, options))) end
          assert(direct:queue("mail"):claim():ack())
          assert.equal(id, (q:push("lost", i, options)))
          assert.equal(i, #all "lost")
          through:tell "admit"
        end
      end)

      it(when .. " its commit, that replaces a job, replaces it once", function()
        local id = assert(direct:queue("mail"):push("old", 1, { unique = "k", delay = 60 }))
        local options = { unique = { key = "k", on_conflict = "replace" } }
        options.id = lose(when, function() return q:push("lost", 2, options) end, 2)
        assert.equal(when == "after" and "lost" or "old", direct:job(id).name)
        local job = when == "after" and assert(direct:queue("mail"):claim()) -- it runs by now
        assert.same({ id, "replaced" }, { q:push("lost", 2, options) })
        job = job or assert(direct:queue("mail"):claim())
        assert.same({ id, 2 }, { job.id, job.payload })
        assert(job:ack())
        assert.equal(id, (q:push("lost", 2, options)))
        assert.equal(0, #direct:execute "SELECT id FROM nightshift_job")
        assert.equal(1, #all "lost")
      end)

      it(when .. " its commit, of many, is repeated whole", function()
        local function items(ids)
          local list = {}
          for i = 1, 3 do list[i] = { "lost", i, ids and { id = ids[i] } } end
          return list
        end
        local ids = lose(when, function() return q:push_many(items()) end)
        assert.equal(3, #ids)
        for _, wrong in ipairs {
          { { "lost", 1, { id = ids[1] } } }, { { "lost", 1, { id = ids[2] } } },
          items { ids[2], ids[1], ids[3] }, items { ids[1], ids[2] }, items { ids[1], ids[2], ids[3] + 1 },
        } do
          local none, message, code = q:push_many(wrong)
          assert.same({ nil, "INVALID" }, { none, code })
          assert.is_truthy(message:find "repeat", message)
        end
        for _ = 1, 2 do assert.same(ids, (q:push_many(items(ids)))) end
        assert.equal(3, #all "lost")
      end)
    end

    it("that is lost again has the same id", function()
      local id = lose("after", function() return q:push("lost", 1) end)
      for _, when in ipairs { "before", "after" } do
        local options = { id = id }
        through:tell "lasting"
        through:tell "cut 1"
        local none, _, code, again = q:push("lost", 1, options)
        assert.same({ nil, "GONE" }, { none, code }, when)
        assert.is_true(again == nil or again == id)
        through:tell "fired"
        through:tell "admit"
      end
      assert.equal(id, (q:push("lost", 1, { id = id })))
      assert.equal(1, #all "lost")
    end)

    it("takes no other id: of no such push, of another handle, of what was never sent", function()
      local id = lose("after", function() return q:push("lost", 1) end)
      for _, wrong in ipairs { { q, 5 }, { q, id + 1 }, { direct:queue "mail", id } } do
        local none, message, code = wrong[1]:push("lost", 1, { id = wrong[2] })
        assert.same({ nil, "INVALID" }, { none, code })
        assert.is_truthy(message:find("was not given by a push on this handle that ended in GONE", 1, true), message)
      end
      assert.has_error(function() handle:flow { name = "lost", id = id } end)
      local ok, message = pcall(function() return direct:queue("mail"):claim():spawn("lost", 1, { id = id }) end)
      assert.is_false(ok)
      assert.is_truthy(message:find("'id'", 1, true), message)
      through:tell "refuse"
      through:tell "close"
      assert.same({ "GONE" }, { select(3, q:push("never", 1)) }) -- nothing was sent: no id
    end)
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

-- A push that was refused inside a transaction left its first unique keys
-- behind, and the commit made them stand without a job, for ever.
describe("a push that is refused in a transaction", function()
  it("leaves nothing for the transaction to commit", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push("holder", 1, { unique = "taken" }))
    assert(handle:transaction(function(tx)
      assert(tx:queue("q"):push("kept", 1))
      local none, _, code = tx:try(function(part)
        return part:queue("q"):push_many { { "a", 1, { unique = "free" } }, { "b", 1, { unique = "taken" } } }
      end)
      assert.is_nil(none)
      assert.equal("DUPLICATE", code)
      return true
    end))
    assert.equal("2", db.sql("SELECT COUNT(*) FROM nightshift_job", db.name(url)))
    assert(q:push("c", 1, { unique = "free" }))
  end)
end)

-- Jobs, or verdicts, that were together over max_allowed_packet cost the
-- connection, and each repetition cost the next one: GONE, for ever.
describe("jobs that are together over the server's max_allowed_packet", function()
  local server, url

  setup(function()
    server = db.server()
    server:sql "SET GLOBAL max_allowed_packet = 1048576"
  end)
  before_each(function() url = server:fresh() end)

  it("are pushed in one transaction", function()
    local handle <close> = assert(nightshift.open(url))
    local items = {}
    for i = 1, 20 do items[i] = { "big", ("x"):rep(200000) } end
    assert.equal(20, #assert(handle:queue("q"):push_many(items)))
  end)

  it("are refused one by one when a single one is", function()
    local handle <close> = assert(nightshift.open(url))
    local none, message, code = handle:queue("q"):push("big", ("x"):rep(1048000))
    assert.is_nil(none)
    assert.equal("TOO_BIG", code)
    assert.is_truthy(message:find("max_allowed_packet", 1, true))
    assert(handle:queue("q"):push("small", 1))
  end)
end)

-- A push that waits for other jobs was in a transaction that had to be run again. With each try
-- it counted those jobs once more, and then waited for ever.
describe("a push after others, whose transaction is run again", function()
  it("waits for each of them once", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local a, b = assert(q:push "a"), assert(q:push "b")
    assert(handle:execute "SET innodb_lock_wait_timeout = 1")
    local locked = proc.start { "mariadb", "--no-defaults", "--socket=" .. db.shared().socket, "--user=root",
      "--init-command=" .. nst.session, "-e",
      ("USE `%s`; BEGIN; SELECT id FROM nightshift_job WHERE id = %d FOR UPDATE; DO SLEEP(4); COMMIT"):format(name, b) }
    eventually(function()
      local row = other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE SKIP LOCKED", b)
      return #row == 0
    end)
    local c = assert(q:push("c", nil, { after = { a, b } }))
    assert.is_true(handle._handle:counters().lock_waits > 0)
    assert.equal(2, handle:job(c).unmet)
    assert.equal(0, (locked:wait(20)))
    assert(q:claim():ack())
    assert(q:claim():ack())
    assert.equal(c, assert(q:claim()).id)
  end)
end)

-- A push after other jobs that was the victim of a deadlock was repeated. Its job then waited
-- for each of them twice: for ever.
describe("a push after others", function()
  local PUSH = [[
local nightshift = require "nightshift"
local db = assert(nightshift.open(arg[1]))
print(assert(db:queue "q":push("next", nil, { after = { tonumber(arg[2]), tonumber(arg[3]) } })))
db:close()]]

  it("that is repeated after a deadlock waits for each of them once", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local a, b = assert(q:push "job"), assert(q:push "job")
    local many = {}
    for i = 1, 100 do many[i] = { "heavy", i } end
    local p
    assert(other:transaction(function(tx)
      assert(tx:queue "heavy":push_many(many)) -- so that the other one is the victim
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", b))
      p = proc.start { proc.lua, fixture.file("push.lua", PUSH), url, a, b }
      eventually(function()
        return db.sql [[SELECT COUNT(*) FROM information_schema.processlist
          WHERE time_ms > 50 AND info LIKE 'SELECT id FROM nightshift_job%SHARE MODE']] ~= "0"
      end)
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", a))
      return true
    end))
    assert.equal(0, p:wait())
    local id = math.tointeger(tonumber((p:text())))
    assert.equal("2\t2", (db.sql(([[SELECT unmet, (SELECT COUNT(*) FROM nightshift_edge WHERE job_id = id)
      FROM nightshift_job WHERE id = %d]]):format(id), name)))
    for _ = 1, 2 do assert(q:claim():ack()) end
    assert.equal(id, q:claim().id)
  end)
end)

-- Unique keys: who has one is told, and a push may keep that job in place of its own.
describe("unique keys:", function()

  local function keep(key) return { unique = { key = key, on_conflict = "keep" } } end

  describe("a taken unique key", function()
    local handle, q

    with_database(function(...) handle, q = ... end)

    it("is met by none of many, which take and free theirs by one statement", function()
      local function executed()
        return tonumber(handle:execute "SHOW SESSION STATUS LIKE 'Com_stmt_execute'"[1].Value)
      end
      local items = {}
      for i = 1, 200 do items[i] = { "a", i, { unique = "k" .. i } } end
      local before = executed()
      assert(q:push_many(items))
      local jobs = assert(q:claim_many(200))
      assert(handle:transaction(function(tx)
        for _, job in ipairs(jobs) do assert(tx:ack(job)) end
      end))
      assert.is_true(executed() - before < 60, executed() - before)
      assert.equal(0, handle:execute "SELECT COUNT(*) AS n FROM nightshift_unique_key"[1].n)
      assert.equal(200, #assert(q:push_many(items)))
    end)

    it("is refused with the id of the job that has it", function()
      local id = assert(q:push("a", 1, { unique = "k" }))
      local again = { unique = { key = "k" } }
      local ways = {
        push = function() return q:push("a", 2, again) end,
        push_many = function() return q:push_many { { "b" }, { "a", 2, again } } end,
        flow = function() return handle:flow { name = "a", queue = "q", unique = "k" } end,
        flow_many = function() return handle:flow_many { { name = "a", queue = "q", unique = "k" } } end,
        transaction = function()
          return handle:transaction(function(tx)
            tx:queue("q"):push("a", 2, again)
            return true
          end)
        end,
        try = function()
          local results
          assert(handle:transaction(function(tx)
            results = table.pack(tx:try(function() return q:push("a", 2, again) end))
            return true
          end))
          return table.unpack(results, 1, results.n)
        end,
        ["a refusing push"] = function()
          return q:push("a", 2, { unique = { key = "k", on_conflict = "refuse" } })
        end,
      }
      for name, way in pairs(ways) do
        local none, message, code, holder = way()
        assert.same({ nil, "DUPLICATE", id }, { none, code, holder }, name)
        assert.is_truthy(message:find(("is held by job %d"):format(id), 1, true), message)
      end
      assert.equal(1, #handle:jobs())
    end)

    it("is told by a retry, too", function()
      local first = assert(q:push("a", 1, { unique = "k" }))
      assert(q:claim():discard "no")
      local second = assert(q:push("a", 2, { unique = "k" }))
      local none, message, code, holder = handle:retry(first)
      assert.same({ nil, "DUPLICATE", second }, { none, code, holder })
      assert.is_truthy(message:find(("job %d"):format(second), 1, true), message)
    end)

    it("is no job's when it stands twice in one push", function()
      local one = { "a", 1, { unique = "twice" } }
      local none, message, code, holder = q:push_many { one, one }
      assert.same({ nil, "DUPLICATE", nil }, { none, code, holder })
      assert.is_truthy(message:find("stands twice", 1, true), message)
    end)

    it("may be kept: nothing is pushed, and the id is that job's", function()
      local id = assert(q:push("a", 1, keep "k"))
      assert.equal(id, q:push("other", 2, keep "k"))
      assert.equal(id, q:push("later", 2, { delay = 60, unique = keep("k").unique }))
      assert.equal(id, q:push("child", 2, { after = { id }, unique = keep("k").unique }))
      assert.same({ "a", 1 }, { handle:job(id).name, handle:job(id).payload })
      assert.equal(1, #handle:jobs())
      assert.not_equal(id, handle:queue("another"):push("a", 1, keep "k"))
      local job = assert(q:claim())
      assert.equal(id, q:push("a", 3, keep "k")) -- it runs
      assert(job:ack())
      assert.is_true(assert(q:push("a", 4, keep "k")) > id)
    end)

    it("is kept for those of many that have one, and the others are pushed", function()
      local a = assert(q:push("a", 1, keep "a"))
      local waits = { after = { a }, unique = keep("c").unique }
      local ids = assert(q:push_many {
        { "x", 1 }, { "a", 2, keep "a" }, { "b", 2, keep "b" }, { "b", 3, keep "b" }, { "y", 3, { delay = 60 } },
        { "c", 4, waits } })
      assert.same({ a, ids[3] }, { ids[2], ids[4] })
      assert.equal("waiting", handle:job(ids[6]).state)
      assert.equal("scheduled", handle:job(ids[5]).state)
      local names = {}
      for i, id in ipairs(ids) do names[i] = handle:job(id).name .. ":" .. handle:job(id).payload end
      assert.same({ "x:1", "a:1", "b:2", "b:2", "y:3", "c:4" }, names)
      assert.equal(5, #handle:jobs())
      assert.equal(a, q:push_many({ { "a", 9, keep "a" } })[1])
      local all = assert(q:push_many { { "a", 9, keep "a" }, { "b", 9, keep "b" } }) -- nothing to write
      assert.same({ a, ids[3] }, all)
    end)

    it("is kept in a transaction, which goes on, however old its view is", function()
      local url = db.fresh()
      for _, level in ipairs { "READ COMMITTED", "REPEATABLE READ" } do
        local own <close> = assert(nightshift.open(url))
        local other <close> = assert(nightshift.open(url))
        assert(own:execute("SET SESSION TRANSACTION ISOLATION LEVEL " .. level))
        local key, id, kept, fresh = "of " .. level, nil, nil, nil
        assert(own:transaction(function(tx)
          assert(tx:execute "SELECT COUNT(*) FROM nightshift_unique_key")
          id = assert(other:queue("q"):push("a", 1, keep(key)))
          kept = assert(tx:queue("q"):push("a", 2, keep(key)))
          fresh = assert(tx:queue("q"):push("b", 2))
          return true
        end))
        assert.equal(id, kept)
        assert.equal("ready", other:job(fresh).state)
      end
    end)

    it("of a transaction that rolls back is free again", function()
      local id
      handle:transaction(function(tx)
        id = assert(tx:queue("q"):push("a", 1, keep "k"))
        assert.equal(id, tx:queue("q"):push("a", 1, keep "k"))
        return nil, "no"
      end)
      assert.not_equal(id, assert(q:push("a", 2, keep "k")))
    end)

    it("is told by a second value when it was kept, of many by place", function()
      local id = assert(q:push("a", 1, keep "k"))
      assert.same({ id, "kept", n = 2 }, table.pack(q:push("a", 2, keep "k")))
      assert.same({ n = 1 }, { n = select("#", q:push("a", 2, keep "other")) })
      local ids, kept = q:push_many { { "x" }, { "a", 2, keep "k" }, { "y" } }
      assert.same({ id, { [2] = "kept" } }, { ids[2], kept })
      assert.equal(1, select("#", q:push_many { { "x" }, { "y" } }))
    end)

    it("wants a key, words that are known, and a job of its own", function()
      for bad, words in pairs {
        ["has no key"] = { on_conflict = "keep" },
        ["did you mean 'on_conflict'?"] = { key = "k", on_conflit = "keep" },
      } do
        local ok, message = pcall(q.push, q, "a", 1, { unique = words })
        assert.is_false(ok)
        assert.is_truthy(message:find(bad, 1, true), message)
      end
      local none, message, code = q:push("a", 1, { unique = { key = "k", on_conflict = "drop" } })
      assert.same({ nil, "INVALID" }, { none, code })
      assert.is_truthy(message:find("refuse, keep, replace", 1, true), message)
      none, message, code = handle:flow { name = "a", unique = { key = "k", on_conflict = "keep" } }
      assert.same({ nil, "INVALID" }, { none, code })
      assert.is_truthy(message:find("is its own job", 1, true), message)
      assert(q:push("a"))
      assert.has_error(function() q:claim():spawn("b", 1, keep "k") end)
    end)
  end)

  -- A period: a job that is done sooner keeps the key until then.
  describe("a key with a period", function()
    local handle, q

    with_database(function(...) handle, q = ... end)

    local function held(period, words)
      return { unique = { key = "k", period = period or "10m", on_conflict = words } }
    end

    --- As if so many seconds had passed.
    local function pass(seconds)
      handle:execute([[UPDATE nightshift_unique_key SET held = held - ?, until = until - ?]], seconds * 1000000,
        seconds * 1000000)
    end

    local function keys() return handle:execute "SELECT COUNT(*) AS n FROM nightshift_unique_key"[1].n end

    it("is held over the end of its job, which is done, and then is the next push's", function()
      local id = assert(q:push("a", 1, held()))
      assert.equal("DUPLICATE", select(3, q:push("a", 2, held())))
      assert(q:claim():ack())
      for _, again in ipairs { held(), held(1), { unique = "k" } } do
        local none, message, code, holder = q:push("a", 2, again)
        assert.same({ nil, "DUPLICATE", id }, { none, code, holder })
        assert.is_truthy(message:find("is done, for 600 s more", 1, true), message)
      end
      assert.same({ id, "kept" }, { q:push("a", 2, held(1, "keep")) })
      assert(handle:queue("other"):push("a", 1, held()))
      assert.equal("DUPLICATE", select(3, q:push_many { { "x" }, { "a", 2, held() } }))
      pass(590)
      assert.equal("DUPLICATE", select(3, q:push("a", 2, held())))
      pass(11)
      local second = assert(q:push("a", 2, held("1h", "keep")))
      assert.is_true(second > id)
      assert.equal("DUPLICATE", select(3, q:push("a", 2, held())))
      assert(q:claim():ack())
      pass(3599)
      assert.equal("DUPLICATE", select(3, q:push("a", 2, held())))
      pass(2)
      local ids = assert(q:push_many { { "a", 3, { unique = "k" } }, { "b", 3, { unique = "l" } } })
      assert.is_true(ids[1] > second)
      assert(q:claim():ack()) -- without a period
      assert(q:push("a", 4, held()))
    end)

    it("is counted from the push: a job that lives longer holds it until its end", function()
      local id = assert(q:push("a", 1, held(1)))
      pass(2)
      assert.equal(id, select(4, q:push("a", 2, held(1))))
      assert(q:claim():fail("once", { retry_in = 0 }))
      assert.equal(id, select(4, q:push("a", 2, held(1))))
      assert(q:claim():ack())
      assert.equal(0, keys())
      assert(q:push("a", 2, held()))
    end)

    it("is free at once when its job is dead or cancelled", function()
      assert(q:push("a", 1, held()))
      assert(q:claim():discard "no")
      local id = assert(q:push("a", 1, held()))
      assert(handle:cancel(id))
      assert.equal(0, keys())
    end)

    it("is the job's own when that is retried, and another's retry is refused", function()
      local dead = assert(q:push("a", 0, held()))
      assert(q:claim():discard "no")
      local id = assert(q:push("a", 1, held()))
      assert(q:claim():ack())
      assert.same({ "DUPLICATE", id }, { select(3, handle:retry(dead)) })
      assert(handle:retry(id))
      assert.equal(id, select(4, q:push("a", 2, held())))
      assert(q:claim():ack())
      assert.equal(id, select(4, q:push("a", 2, held()))) -- the same period
      pass(601)
      assert(handle:retry(dead))
    end)

    it("is for children, flows, SQL, and transactions, too", function()
      local function done()
        for job in q:jobs() do assert(job:ack()) end
      end
      local function spend() return select(4, q:push("a", 2, { unique = "k" })), pass(601) end
      assert(q:push "parent")
      local parent = assert(q:claim())
      local child = parent:spawn("child", 1, held())
      assert(parent:ack())
      done()
      assert.equal(child, (spend()))
      local root = assert(handle:flow { name = "root", queue = "q", unique = held().unique })
      done()
      assert.equal(root, (spend()))
      handle:execute "CALL nightshift_push('q', 'sql', '1', '{\"unique\": {\"key\": \"k\", \"period\": \"10m\"}}')"
      local by_sql = handle:execute "SELECT @nightshift_id AS id"[1].id
      done()
      local none, message = handle:execute "CALL nightshift_push('q', 'sql', '1', '{\"unique\": \"k\"}')"
      assert.is_nil(none)
      assert.is_truthy(message:find(("job %d, which is done, has the unique key"):format(by_sql), 1, true), message)
      assert.equal(by_sql, (spend()))
      local id = assert(handle:transaction(function(tx) return tx:queue("q"):push("tx", 1, held()) end))
      done()
      assert.equal(id, (spend()))
      handle:execute("CALL nightshift_push('q', 'sql', '1', ?)", [[{"unique": {"key": "k", "on_conflict": "keep"}}]])
      assert.not_equal(id, handle:execute "SELECT @nightshift_id AS id"[1].id)
    end)

    it("costs no statement more, and no row: a push without one costs what it did", function()
      local function status()
        local list = {}
        for _, row in ipairs(handle:execute [[SHOW SESSION STATUS WHERE Variable_name IN ('Com_stmt_execute',
          'Handler_write', 'Handler_update', 'Handler_delete')]]) do list[row.Variable_name] = tonumber(row.Value) end
        return list
      end
      local function cost(fn)
        local before = status()
        fn()
        local after = status()
        for key, value in pairs(after) do after[key] = value - before[key] end
        return { after.Com_stmt_execute - 1, after.Handler_write, after.Handler_update, after.Handler_delete }
      end
      local job
      local function claim() job = assert(q:claim()) end
      local function ack() assert(job:ack()) end
      for _, unique in ipairs { "warm", { key = "up", period = 1 } } do -- statements are prepared
        assert(q:push("a", 1, { unique = unique }))
        claim()
        ack()
      end
      for i, way in ipairs {
        { nil, { 1, 2, 0, 0 }, { 1, 1, 1, 2 } },
        { { unique = "k" }, { 1, 3, 0, 0 }, { 1, 1, 1, 3 } },
        { { unique = { key = "l", period = 60 } }, { 1, 3, 0, 0 }, { 1, 1, 2, 2 } },
      } do
        assert.same(way[2], cost(function() assert(q:push("a", 1, way[1])) end), "push " .. i)
        claim()
        assert.same(way[3], cost(ack), "ack " .. i)
      end
    end)

    it("goes when its period is over, without a push", function()
      for i = 1, 20 do assert(q:push("a", i, { unique = { key = "k" .. i, period = i <= 15 and 60 or 7200 } })) end
      for job in q:jobs() do assert(job:ack()) end
      assert(q:push("lives", 1, { unique = { key = "l", period = 60 } }))
      assert.equal(0, assert(handle._handle:mend(false)).twice)
      pass(3600)
      assert(handle._handle:mend(false))
      assert.equal(21, keys())
      assert(handle._handle:mend(true))
      assert.equal(6, keys())
      assert.same({}, handle:execute "SELECT * FROM nightshift_mended") -- it is no fault
    end)

    it("wants a duration", function()
      for _, period in ipairs { 0, -1, "soon", "200y" } do
        local none, message, code = q:push("a", 1, held(period))
        assert.same({ nil, "INVALID" }, { none, code })
        assert.is_truthy(message:find "^push: unique: period", message)
      end
      assert.has_error(function() q:push("a", 1, held {}) end)
    end)
  end)

  describe("a job that has a key is replaced:", function()
    local handle, q, name

    with_database(function(...)
      local _
      handle, q, _, name = ...
    end)

    local function replace(more)
      local options = { unique = { key = "k", on_conflict = "replace" } }
      for key, value in pairs(more or {}) do options[key] = value end
      return options
    end

    --- What is claimable now, one after the other, each done.
    local function work()
      local seen = {}
      for job in q:jobs() do
        seen[#seen + 1] = ("%s %s"):format(job.name, job.payload)
        assert(job:ack())
      end
      return seen
    end

    local function rows(where) return handle:execute("SELECT COUNT(*) AS n FROM nightshift_" .. where)[1].n end

    it("a ready one becomes the new one, with its id", function()
      local id = assert(q:push("old", 1, replace { priority = 7, max_attempts = 3, timeout = 9 }))
      assert(q:push("other", 1))
      assert.same({ id, "replaced", n = 2 }, table.pack(q:push("new", { n = 2 }, replace { max_attempts = 4 })))
      local info = handle:job(id)
      assert.same({ "new", 2, 100, 4, 3600, "ready", "k" },
        { info.name, info.payload.n, info.priority, info.max_attempts, info.timeout, info.state, info.unique })
      assert.same({ id, { [2] = "replaced" } }, (function()
        local ids, outcomes = q:push_many { { "more", 0 }, { "newer", 3, replace() } }
        return { ids[2], outcomes }
      end)())
      assert.same({ "other 1", "newer 3", "more 0" }, work())
      assert.equal(0, rows "ready WHERE job_id > 0")
      assert.equal(0, rows "unique_key")
      assert.is_true(assert(q:push("new", 4, replace())) > id)
    end)

    it("a scheduled one is due when the new one says", function()
      local id = assert(q:push("old", 1, replace { delay = 60 }))
      assert.equal(id, (q:push("later", 2, replace { delay = 3600 })))
      local due = handle:job(id).due
      assert.is_true(due - handle:execute "SELECT UNIX_TIMESTAMP() AS n"[1].n > 3000)
      assert.equal(1, rows "scheduled")
      assert.equal(id, (q:push("now", 3, replace())))
      assert.same({ "now 3" }, work())
      assert.equal(0, rows "scheduled")
      id = assert(q:push("now", 4, replace()))
      assert.equal(id, (q:push("later", 5, replace { delay = 3600 })))
      assert.is_nil(q:claim())
      assert(handle:run_now(id))
      assert.same({ "later 5" }, work())
    end)

    it("one that has failed, or polls, starts afresh", function()
      local id = assert(q:push("old", 1, replace { backoff = 60 }))
      assert(q:claim():fail "no")
      assert.equal(1, handle:job(id).attempts)
      assert.equal(id, (q:push("new", 2, replace())))
      local job = assert(q:claim())
      assert.same({ id, "new", 0, 0 }, { job.id, job.name, job.attempts, job.polls })
      assert(job:again(60, { page = 2 }))
      assert.equal(id, (q:push("newer", 3, replace())))
      job = assert(q:claim())
      assert.same({ id, "newer", 0, nil }, { job.id, job.name, job.polls, job.state })
    end)

    for how, finish in pairs {
      done = function(job) return job:ack() end, dead = function(job) return job:discard "no" end,
      given_back = function(job) return job:release() end,
    } do
      it("a claimed one is followed by the new one, whatever becomes of it: " .. how, function()
        local first = assert(q:push("first", 1, replace()))
        local job = assert(q:claim())
        local second = assert(q:push("second", 2, replace()))
        assert.is_true(second > first)
        assert.same({ second, "replaced" }, { q:push("third", 3, replace()) })
        assert.equal(second, select(4, q:push("fourth", 4, { unique = "k" })))
        assert.is_nil(q:claim())
        assert.is_truthy(handle:why(second):find(("#%d"):format(first), 1, true), (handle:why(second)))
        assert(finish(job))
        if how == "given_back" then
          job = assert(q:claim())
          assert.equal(first, job.id)
          assert(job:ack())
        end
        assert.same({ "third 3" }, work())
        assert.equal(0, rows "unique_key")
        assert.equal(0, rows "edge")
      end)
    end

    it("one that waits for others, or is paused, waits on", function()
      local on = assert(q:push("on", 1))
      local id = assert(q:push("old", 1, { after = { on }, unique = "k" }))
      assert.equal(id, (q:push("new", 2, replace())))
      assert.equal("waiting", handle:job(id).state)
      assert.same({ "on 1", "new 2" }, work())
      id = assert(q:push("old", 1, replace()))
      assert(handle:pause(id))
      assert.equal(id, (q:push("new", 3, replace { delay = 0 })))
      assert.is_nil(q:claim())
      assert(handle:resume(id))
      assert.same({ "new 3" }, work())
      id = assert(q:push("old", 1, replace()))
      local job = assert(q:claim())
      assert(handle:pause(id)) -- while it runs
      local second = assert(q:push("second", 4, replace()))
      assert.not_equal(id, second)
      assert(job:ack())
      assert.same({ "second 4" }, work())
    end)

    it("one that has begun and waits for children or a signal is followed", function()
      local id = assert(q:push("parent", 1, replace()))
      local job = assert(q:claim())
      job:spawn("kid", 1)
      assert(job:wait())
      local second = assert(q:push("second", 2, replace()))
      assert.not_equal(id, second)
      assert.same({ "kid 1", "parent 1", "second 2" }, work())
      id = assert(q:push("asks", 1, replace()))
      assert(q:claim():wait { signal = "go" })
      second = assert(q:push("second", 3, replace()))
      assert.not_equal(id, second)
      assert(handle:signal(id, 1, "go"))
      assert.same({ "asks 1", "second 3" }, work())
    end)

    it("one that is done is not: a new one is pushed, within the period too, and begins it anew", function()
      local period = { unique = { key = "k", period = 60, on_conflict = "replace" } }
      local id = assert(q:push("a", 1, period))
      assert.same({ "a 1" }, work())
      local second, outcome = q:push("a", 2, period)
      assert.is_true(second > id)
      assert.is_nil(outcome)
      assert.equal(second, select(4, q:push("a", 3, { unique = "k" })))
      assert.same({ "a 2" }, work())
      assert.equal(second, select(4, q:push("a", 3, { unique = "k" })))
    end)

    it("in a transaction, which may roll back", function()
      local id = assert(q:push("old", 1, replace()))
      local function tx(fail)
        return handle:transaction(function(t)
          assert.equal(id, (t:queue("q"):push("new", 2, replace())))
          assert.equal(id, (t:queue("q"):push("newer", 3, replace())))
          if fail then return nil, "no" end
          return true
        end)
      end
      assert.is_nil(tx(true))
      assert.equal("old", handle:job(id).name)
      assert.is_true(tx(false))
      assert.same({ "newer 3" }, work())
    end)

    it("a child keeps its parent", function()
      assert(q:push "parent")
      local parent = assert(q:claim())
      local kid = parent:spawn("kid", 1, { unique = "k" })
      assert(parent:wait())
      assert.equal(kid, (q:push("new", 2, replace())))
      assert.same({ "new 2", "parent nil" }, work())
    end)

    it("is refused where it cannot be", function()
      local _, message, code = q:push_many { { "a", 1, replace() }, { "b", 2, replace() } }
      assert.equal("DUPLICATE", code)
      assert.is_truthy(message:find("stands twice", 1, true), message)
      local on = assert(q:push("on", 1))
      for why, bad in pairs { after = { after = { on } }, parent = { parent = on } } do
        _, message, code = q:push("a", 1, replace(bad))
        assert.equal("INVALID", code)
        assert.is_truthy(message:find(("'%s'"):format(why), 1, true), message)
      end
      _, message, code = handle:flow { name = "a", unique = replace().unique }
      assert.equal("INVALID", code)
      assert.is_truthy(message:find("on_conflict 'replace' is for push", 1, true), message)
      local ok, err = pcall(db.sql, [[CALL nightshift_push('q', 'n', '1',
        '{"unique": {"key": "k", "on_conflict": "replace"}}')]], name)
      assert.is_false(ok)
      assert.is_truthy(tostring(err):find("is for q:push", 1, true), err)
    end)

    it("while it is being claimed: each push is run once, or replaced by a later one", function()
      local url = db.fresh()
      local own <close> = assert(nightshift.open(url))
      local mine = own:queue "q"
      local pushers = crew.fork(4, function(i)
        local its <close> = assert(nightshift.open(url))
        for n = 1, 25 do
          local id, message, code
          repeat
            id, message, code = its:queue "q":push("n", { i, n }, { unique = { key = "k", on_conflict = "replace" } })
          until id or code ~= "BUSY"
          assert(id, message)
        end
      end)
      local last, idle = {}, 0
      local function take(wait)
        local job = mine:claim { wait = wait }
        if not job then return false end
        local pusher, n = table.unpack(job.payload)
        assert.is_true(n > (last[pusher] or 0), "a push ran after a later one of its pusher")
        last[pusher] = n
        assert.is_true(own:execute "SELECT COUNT(*) AS n FROM nightshift_job"[1].n <= 2)
        assert(job:ack())
        return true
      end
      while idle < 2 do idle = take(0.5) and 0 or idle + 1 end
      pushers:wait(60)
      while take(0) do end
      local newest = own:execute "SELECT id FROM nightshift_finished ORDER BY finished_at DESC LIMIT 1"[1].id
      assert.equal(25, own:job(newest).payload[2]) -- the last push of all has run
      for _, hot in ipairs { "job", "unique_key", "edge", "scheduled", "ready WHERE job_id > 0", "lease" } do
        assert.equal(0, own:execute("SELECT COUNT(*) AS n FROM nightshift_" .. hot)[1].n, hot)
      end
    end)
  end)

  -- 16 processes push the same keys at once, fewer where time runs slower.
  describe("sixteen pushers", function()
    local PUSHERS = math.max(4, proc.cases(16))
    local MODES = { "refuse", "keep", "replace" }

    --- Pushes a job under each key once the gate is open, and writes down the id that the key has.
    local function contend(url, folder)
      local own <close> = assert(nightshift.open(url))
      local q = own:queue "q"
      local there <close> = assert(io.open(folder .. "/there", "ab"))
      local ids <close> = assert(io.open(folder .. "/ids", "ab"))
      ids:setvbuf "line"
      assert(own:ping())
      there:write "there\n"
      there:flush()
      assert(io.open(folder .. "/gate")):close()
      for _, mode in ipairs(MODES) do
        for _, key in ipairs { "new", "live", "over" } do
          key = mode .. " " .. key
          local id, message, code, holder = q:push(mode, 1, { unique = { key = key, period = 60, on_conflict = mode } })
          assert(id or code == "DUPLICATE", message)
          ids:write(key, "=", id or holder, "\n")
        end
      end
    end

    it("of one key leave one job, and all have its id", function()
      local url = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      local q = handle:queue "q"
      local before = {}
      for _, mode in ipairs(MODES) do
        for _, key in ipairs { "new", "live", "over" } do
          local unique = { key = mode .. " " .. key, period = 60 }
          if key == "over" then before[unique.key] = assert(q:push("old", 1, { unique = unique })) end
        end
      end
      for job in q:jobs() do assert(job:ack()) end
      for _, mode in ipairs(MODES) do
        before[mode .. " live"] = assert(q:push("old", 1, { unique = mode .. " live" }))
      end
      handle:execute "UPDATE nightshift_unique_key SET held = 1, until = 1 WHERE until IS NOT NULL"
      local folder = fixture.dir()
      os.execute("mkfifo " .. folder .. "/gate")
      local pushers = crew.fork(PUSHERS, function() contend(url, folder) end)
      eventually(function() return ledger.count(folder .. "/there") == PUSHERS end, 60)
      local gate = assert(io.open(folder .. "/gate", "w"))
      pushers:wait(60)
      gate:close()
      local ids = {}
      for line in io.lines(folder .. "/ids") do
        local key, id = line:match "^(.+)=(%d+)$"
        ids[key] = ids[key] or {}
        ids[key][tonumber(id)] = (ids[key][tonumber(id)] or 0) + 1
      end
      for _, mode in ipairs(MODES) do
        for _, key in ipairs { "new", "live", "over" } do
          key = mode .. " " .. key
          local id, n = next(ids[key])
          assert.same({ PUSHERS, nil }, { n, (next(ids[key], id)) }, key)
          local row = handle:execute("SELECT job_id FROM nightshift_unique_key WHERE ukey = ?", key)[1]
          local jobs = handle:execute("SELECT id FROM nightshift_job WHERE ukey = ?", key)
          assert.same({ id, { { id = id } } }, { row.job_id, jobs }, key)
          if key:find "live" then assert.equal(before[key], id) else assert.not_equal(before[key], id) end
        end
      end
    end)
  end)

  describe("many that keep the same keys", function()
    it("have jobs that are there, whoever ends them and whatever is killed", function()
      local url, name = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      local q = handle:queue "q"
      local keepers = {}
      for i = 1, 3 do keepers[i] = proc.start { proc.lua, "spec/support/crew.lua", "keeper", url, "90" } end
      local left = 3
      while left > 0 do
        local job = q:claim { wait = 0.1 }
        if job then assert(job:ack()) end
        if job and job.id % 7 == 0 then -- one of them is cut, wherever it is
          pcall(db.sql, [[EXECUTE IMMEDIATE (SELECT CONCAT('KILL ', id) FROM information_schema.PROCESSLIST
          WHERE db = DATABASE() AND info LIKE '%unique_key%' AND id <> CONNECTION_ID() LIMIT 1)]], name)
        end
        left = 0
        for _, keeper in ipairs(keepers) do left = left + (keeper:ended() and 0 or 1) end
      end
      for _, keeper in ipairs(keepers) do
        local out, err = keeper:text()
        assert.is_truthy(out:find "done\n$", err)
        local n = 0
        for id in out:gmatch "%d+" do
          n = n + 1
          assert(handle:job(math.tointeger(id)), "job " .. id .. " was given by a push and is nowhere")
        end
        assert.equal(30 * 5, n)
      end
    end)
  end)
end)
