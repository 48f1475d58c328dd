-- CALL nightshift_push and nightshift_signal: their results for a producer in SQL, and the rows
-- they leave behind.

local core = require "nightshift.core"
local db = require "spec.support.db"
local nightshift = require "nightshift"
local nst = require "nst"

-- What a producer in SQL gets: durations as texts, an id, and errors that say their code,
-- what was wrong, and what to write.
describe("CALL nightshift_push", function()
  local handle, name

  setup(function()
    local url
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
  end)
  teardown(function() handle:close() end)

  local function call(text, ...)
    local rows, message, code = handle:execute("CALL nightshift_push" .. text, ...)
    if not rows then return nil, message, code end
    return assert(handle:execute "SELECT @nightshift_id AS id")[1].id
  end

  local function push(options) return call("('q', 'n', '1', ?)", options) end

  for text, seconds in pairs {
    ["90"] = 90, ["90s"] = 90, ["0.25"] = 0.25, ["1.5s"] = 1.5, ["5m"] = 300, ["1h30m"] = 5400, ["250ms"] = 0.25,
    ["2d"] = 172800, ["1w2d3h4m5s6ms7us"] = 788645.006007, ["7us"] = 0.000007, ["1m1ms"] = 60.001, ["0"] = 0,
  } do
    it("takes " .. text .. " as the same duration as Lua does", function()
      assert.equal(seconds, assert(core.duration(text)) / 1e6)
      local id = assert(push(('{"delay": "%s", "backoff": "%s", "deadline": "100d"}'):format(text, text)))
      local sql = "SELECT due - created AS delay, backoff FROM nightshift_job WHERE id = ?"
      local us = math.floor(seconds * 1e6 + 0.5)
      assert.same({ { delay = us, backoff = us } }, assert(handle:execute(sql, id)))
    end)
  end

  local NONE = { "", "soon", "5 m", "5M", "m", "1m1h", "1m1m", "1.m", ".5s", "1s2", "5min", "--5", ("9"):rep(101),
    "1e3", "1E2", "1e-7", "1e400" }
  for _, text in ipairs(NONE) do
    it("takes '" .. text .. "' for no duration, and says so", function()
      local none, message = push(('{"delay": "%s"}'):format(text))
      assert.is_nil(none)
      assert.is_truthy(message:find("nightshift_push: INVALID: ", 1, true), message)
      assert.is_truthy(message:find("delay", 1, true), message)
    end)
  end

  it("leaves the id of the job in @nightshift_id", function()
    local id = assert(push '{}')
    assert.equal("n", assert(handle:job(id)).name)
  end)

  it("leaves no id of an earlier call where it is refused", function()
    assert(push '{"unique": "u2"}')
    for _, options in ipairs { '{"unique": "u2"}', '{"delay": "soon"}', "{" } do
      assert.is_nil((push(options)))
      assert.is_nil(assert(handle:execute "SELECT @nightshift_id AS id")[1].id)
    end
  end)

  it("keeps the job that has a key, or says which one it is", function()
    local id = assert(push '{"unique": {"key": "u1", "on_conflict": "keep"}}')
    assert.equal(id, push '{"unique": {"key": "u1", "on_conflict": "keep"}}')
    assert.equal(id, handle:queue("q"):push("n", 1, { unique = { key = "u1", on_conflict = "keep" } }))
    for _, unique in ipairs { '"u1"', '{"key": "u1"}', '{"key": "u1", "on_conflict": "refuse"}' } do
      local none, message, code = push(('{"unique": %s}'):format(unique))
      assert.same({ nil, "DUPLICATE" }, { none, code })
      assert.is_truthy(message:find(("nightshift_push: DUPLICATE: job %d"):format(id), 1, true), message)
      assert.is_truthy(message:find("'u1'", 1, true), message)
    end
    assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_unique_key WHERE ukey = 'u1'", name))
  end)

  for text, words in pairs {
    ["(NULL, 'n', '1', NULL)"] = "INVALID: the queue is NULL",
    ["('', 'n', '1', NULL)"] = "INVALID: the queue is empty",
    ["('q', NULL, '1', NULL)"] = "INVALID: the job name is NULL",
    ["('q', '', '1', NULL)"] = "INVALID: the job name is empty",
    ["('q', 'a\\nb', '1', NULL)"] = "INVALID: the job name has a control character",
    ["(REPEAT('é', 33), 'n', '1', NULL)"] = "INVALID: the queue has 66 bytes, the limit is 64",
    ["('q', 'n', NULL, NULL)"] = "INVALID: the payload is NULL",
    ["('q', 'n', '{', NULL)"] = "INVALID: the payload is not valid JSON",
    ["('q', 'n', '1', '[]')"] = "INVALID: the options are not a JSON object",
    ["('q', 'n', '1', '{\"dely\": 1}')"] = "INVALID: unknown option dely",
    ["('q', 'n', '1', '{\"priority\": \"high\"}')"] = "INVALID: wrong type: priority",
    ["('q', 'n', '1', '{\"priority\": 256}')"] = "INVALID: out of range: priority",
    ["('q', 'n', '1', '{\"delay\": 1e400}')"] = "INVALID: out of range: delay",
    ["('q', 'n', '1', '{\"parent\": 1}')"] = "NOT_FOUND: the parent, job 1, is no live job",
    ["('q', 'n', '1', '{\"after\": [1]}')"] = "NOT_FOUND: job 1",
    ["('q', 'n', '1', '{\"unique\": {\"on_conflict\": \"keep\"}}')"] = "INVALID: unique is a key or",
    ["('q', 'n', '1', '{\"unique\": {\"key\": \"k\", \"on_conflict\": \"drop\"}}')"] = "INVALID: unique is a key or",
    ["('q', 'n', '1', '{\"unique\": {\"key\": \"k\", \"perod\": 1}}')"] = "INVALID: unique is a key or",
    ["('q', 'n', '1', '{\"unique\": {\"key\": \"k\", \"period\": 0}}')"] = "INVALID: out of range: period",
    ["('q', 'n', '1', '{\"unique\": {\"key\": \"k\", \"period\": \"soon\"}}')"] = "INVALID: out of range: period",
    [ [[('q', 'n', '1', CONCAT('{"unique": "', REPEAT('k', 191), '"}'))]] ] = "INVALID: the unique key has 191 char",
  } do
    it("refuses " .. text .. " by name", function()
      local none, message = call(text)
      assert.is_nil(none)
      assert.is_truthy(message:find("nightshift_push: " .. words, 1, true), message)
    end)
  end
end)

describe("CALL nightshift_signal", function()
  it("says what it refuses by name", function()
    local _, name = db.fresh()
    for call, words in pairs { ["(1, '1', NULL)"] = "NOT_FOUND: ", ["(1, '{', NULL)"] = "INVALID: the value" } do
      local ok, message = pcall(db.sql, "CALL nightshift_signal" .. call, name)
      assert.is_false(ok)
      assert.is_truthy(tostring(message):find("nightshift_signal: " .. words, 1, true), message)
    end
  end)
end)

-- nightshift_push, called outside a transaction, left the unique key of a push that the server
-- refused. It took a negative delay and silently dropped options of the wrong type. It did not
-- find a queue that was newer than its transaction's view.
describe("nightshift_push", function()
  local url, name

  before_each(function() url, name = db.fresh() end)

  it("leaves nothing when it is refused", function()
    for _, call in ipairs {
      [['q', '', '1', '{"unique": "k"}']], [['q', 'n', '1', '{"unique": "k", "priority": 999}']] } do
      assert.is_false((pcall(db.sql, "CALL nightshift_push(" .. call .. ")", name)))
    end
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_unique_key", name))
    db.sql([[CALL nightshift_push('q', 'n', '1', '{"unique": "k"}')]], name)
    local ok, message = pcall(db.sql, [[CALL nightshift_push('q', 'n', '1', '{"unique": "k"}')]], name)
    assert.is_false(ok)
    assert.is_truthy(tostring(message):find("1062 (23000)", 1, true), message)
    assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_unique_key", name))
    assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
  end)

  for option, expected in pairs {
    ['"delay": -5'] = "out of range: delay",
    ['"delay": "soon"'] = "no duration: delay",
    ['"delay": [5]'] = "wrong type: delay",
    ['"priority": 256'] = "out of range: priority",
    ['"priority": 1.5'] = "out of range: priority",
    ['"unique": {"a": 1}'] = "unique is a key or",
    ['"unique": ""'] = "out of range: unique",
    ['"max_attempts": 0, "timeout": 0'] = "out of range: timeout,max_attempts",
    ['"backoff": -1'] = "out of range: backoff",
    ['"max_polls": -2'] = "out of range: max_polls",
    ['"group": 7'] = "wrong type: group",
    ['"group": ""'] = "the group must have 1 to 190 characters",
    ['"group": "a\\\\u0085b"'] = "and no control characters",
  } do
    it("refuses " .. option, function()
      local ok, message = pcall(db.sql, ("CALL nightshift_push('q', 'n', '1', '{%s}')"):format(option), name)
      assert.is_false(ok)
      assert.is_truthy(tostring(message):find(expected, 1, true), tostring(message))
    end)
  end

  it("takes every option", function()
    db.sql([[CALL nightshift_push('q', 'n', '1', '{"delay": 0.25, "priority": 0, "decay": 255, "unique": 7,
      "max_attempts": 2, "max_crashes": 1, "max_polls": -1, "backoff": 0.5, "timeout": 1.5, "deadline": 60,
      "group": "tenant:\\u00e9 "}')]], name)
    local row = db.sql([[SELECT due - created, priority, rank, decay, ukey, max_attempts, max_crashes, max_polls,
      backoff, timeout, deadline - created, HEX(group_key) FROM nightshift_job]], name)
    assert.equal("250000 0 255 255 7 2 1 NULL 500000 1500000 60000000 74656E616E743AC3A920", (row:gsub("\t", " ")))
  end)

  it("finds a queue that is newer than the view of its transaction", function()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert(handle:transaction(function(tx)
      assert(tx:execute "SELECT COUNT(*) FROM nightshift_queue")
      db.sql("CALL nightshift_push('new', 'first', '1', NULL)", name)
      assert(tx:execute "CALL nightshift_push('new', 'second', '1', NULL)")
      return true
    end))
    assert.equal("2", db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", name))
  end)
end)

-- A program in REPEATABLE READ, the server's default, pushed by CALL after a job that had
-- ended. The gap where that had been stayed locked until its commit, and pushes of other
-- clients, and hosts with children to write, waited for it.
describe("nightshift_push after a job that has ended", function()
  it("holds up no other push in REPEATABLE READ", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(core.open { url = url })
    local q = handle:queue "q"
    local ended = assert(q:push "job")
    assert(q:claim():ack())
    nst.sleep(1.5) -- until purge has removed its row: then its place is a gap
    assert(handle:execute "SET innodb_lock_wait_timeout = 8")
    assert(other:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert(other:begin())
    assert(other:execute("CALL nightshift_push('q', 'job', '1', ?)", ('{"after":[%d]}'):format(ended)))
    local begun = nightshift.clock()
    assert(q:push "job")
    assert.is_true(nightshift.clock() - begun < 7)
    assert(other:rollback())
    assert(q:claim():ack())
    assert.is_nil(q:claim())
  end)
end)

-- CALL nightshift_push on a session of utf8mb3 that is not strict wrote "?" for an emoji; on one of
-- latin1 with a client that sends UTF-8 it kept "Ã¼" for "ü". Such calls are refused, and
-- the message says what to do. A client that sends what its session can carry is served,
-- whatever the character set.
describe("a text that a session cannot carry", function()
  local EMOJI, LATIN1 = '{"t": "ü 😀"}', '{"t": "\xFC \x80"}' -- the second is "ü €" there

  --- Runs SQL on a new session; what it says, or the error.
  local function run(name, ...)
    local ok, text = pcall(db.sql, table.concat({ ... }, "; "), name)
    return text, not ok
  end

  local function push(payload, queue, options)
    return ("CALL nightshift_push('%s', 'n', '%s', %s)"):format(queue or "q", payload, options or "NULL")
  end

  local handle, url, name

  before_each(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
  end)

  after_each(function() handle:close() end)

  local function jobs() return assert(handle:execute "SELECT COUNT(*) AS n FROM nightshift_job")[1].n end

  --- Is refused, with words of ours or, when the session is strict, of the server.
  local function refuses(words, ...)
    local text, failed = run(name, ...)
    assert.is_true(failed, text)
    assert.is_truthy(text:find(words, 1, true), text)
    assert.equal(0, jobs())
  end

  --- Is taken; the payload's text is given.
  local function takes(...)
    local text, failed = run(name, ...)
    assert.is_false(failed, text)
    local job <close> = assert(handle:queue "q":claim())
    assert(job:ack())
    return job.payload.t
  end

  it("is refused where the character set has no such character", function()
    refuses("push_payload", "SET NAMES utf8mb3, sql_mode = 'STRICT_TRANS_TABLES'", push(EMOJI))
    for _, set in ipairs { "utf8mb3", "ascii" } do
      local session = ("SET NAMES %s, sql_mode = ''"):format(set)
      refuses("SET NAMES utf8mb4", session, push(EMOJI))
      refuses("SET NAMES utf8mb4", session, push("{}", "😀"))
      refuses("SET NAMES utf8mb4", session, push("{}", "q", [['{"unique": "😀"}']]))
      refuses("SET NAMES utf8mb4", session, "PREPARE s FROM 'CALL nightshift_push(?, ?, ?, NULL)'",
        "SET @q = 'q', @n = 'n', @p = '" .. EMOJI .. "'", "EXECUTE s USING @q, @n, @p")
      refuses("SET NAMES utf8mb4", session, "START TRANSACTION", push(EMOJI), "COMMIT")
    end
    refuses("SET NAMES utf8mb4", "SET NAMES utf8mb4, sql_mode = ''", push '{"t": "\xFC"}')
    refuses("the queue has", "SET sql_mode = ''", push("{}", ("q"):rep(99)))
  end)

  it("is refused where UTF-8 is sent under another name", function()
    for _, set in ipairs { "latin1", "cp1251", "cp850", "koi8r" } do
      for _, text in ipairs { "ü", "ü 😀", "Привет", "“€”" } do
        local said, failed = run(name, "SET NAMES " .. set, push(('{"t": "%s"}'):format(text)))
        assert.is_true(failed, set .. text)
        assert.is_truthy(said:find("SET NAMES utf8mb4", 1, true) or said:find("push_payload", 1, true), said)
      end
    end
    refuses("nightshift_push: INVALID: the text is UTF-8, but the session says latin1", "SET NAMES latin1", push(EMOJI))
    refuses("the text is UTF-8", "SET NAMES latin1", push("{}", "bühne"))
    refuses("the text is UTF-8", "SET NAMES latin1", push("{}", "q", [['{"unique": "ü"}']]))
  end)

  it("is refused as a signal, too", function()
    local id = assert(handle:queue "q":push "n")
    local function signal(value, called) return ("CALL nightshift_signal(%d, '%s', '%s')"):format(id, value, called) end
    for session, words in pairs {
      ["SET NAMES utf8mb3, sql_mode = 'STRICT_TRANS_TABLES'"] = "signal_",
      ["SET NAMES utf8mb3, sql_mode = ''"] = "SET NAMES utf8mb4",
      ["SET NAMES latin1"] = "the text is UTF-8",
    } do
      for _, call in ipairs { signal('"😀"', "n"), signal("1", "😀") } do
        local text, failed = run(name, session, call)
        assert.is_true(failed)
        assert.is_truthy(text:find(words, 1, true), text)
      end
      assert.is_false(select(2, run(name, session, signal("1", "n"))))
    end
    assert.equal(1, assert(handle:execute "SELECT COUNT(*) AS n FROM nightshift_signal")[1].n)
  end)

  it("keeps none of the next ones out", function()
    for _, mode in ipairs { "", "STRICT_TRANS_TABLES" } do
      local session = ("SET NAMES utf8mb3, sql_mode = '%s'"):format(mode)
      db.sql(([[SET NAMES utf8mb3; CREATE OR REPLACE PROCEDURE several() BEGIN
          DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SET @refused = @refused + 1;
          SET @refused = 0;
          %s; %s; %s; %s;
        END]]):format(push(EMOJI), push(EMOJI), push '{"t": "why?"}', push(EMOJI)), name)
      assert.equal("3", run(name, session, "CALL several()", "SELECT @refused"))
      assert.equal("why?", takes(session, "DO 0"))
      assert.is_nil(handle:queue "q":claim())
    end
    -- A statement that was refused before leaves its warnings and its error where the next call
    -- sees them.
    db.sql([[CREATE PROCEDURE quiet() BEGIN
        DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
        EXECUTE IMMEDIATE 'CALL nightshift_push("q", "n", CONCAT("{", x''FC'', "}"), NULL)';
      END]], name)
    assert.equal("ü", takes("SET sql_mode = ''", "CALL quiet()", push '{"t": "ü"}'))
    assert.equal("?", takes("SET sql_mode = ''", "SELECT 'a' + 1", push '{"t": "?"}'))
  end)

  it("is one that a session can carry, if it can", function()
    for _, set in ipairs { "utf8mb4", "binary" } do
      assert.equal("ü 😀", takes("SET NAMES " .. set, push(EMOJI)))
    end
    assert.equal("ü", takes("SET NAMES utf8mb3", push '{"t": "ü"}'))
    assert.equal("ü €", takes("SET NAMES latin1", push(LATIN1)))
    assert.equal("ü €", takes("SET NAMES latin1, sql_mode = ''", push(LATIN1)))
    assert.equal("NESCAFÉ®?", takes("SET NAMES latin1", push '{"t": "NESCAF\xC9\xAE?"}'))
    assert.equal("При", takes("SET NAMES cp1251", push '{"t": "\xCF\xF0\xE8"}'))
    assert.equal("Ã¼", takes("SET NAMES utf8mb4", push '{"t": "Ã¼"}'))
    assert.equal("ü", takes("SET NAMES latin1", push [[{"t": "\\u00fc"}]]))
    assert.equal("ü 😀", takes("SET NAMES latin1", ("CALL nightshift_push('q', 'n', _utf8mb4'%s', NULL)"):format(EMOJI)))
    assert.equal("ü", takes("SET NAMES latin1", "CALL nightshift_push('q', 'n', _utf8mb4'{\"t\": \"ü\"}', NULL)"))
    assert.equal("ü", takes("SET NAMES utf8mb4, character_set_results = NULL", push '{"t": "ü"}'))
  end)

  it("is nothing that a trigger passes on from a column of another set", function()
    db.sql([[SET NAMES utf8mb4; CREATE TABLE old (t VARCHAR(50)) CHARACTER SET latin1;
      CREATE TRIGGER old_ai AFTER INSERT ON old FOR EACH ROW
        CALL nightshift_push('q', 'n', JSON_OBJECT('t', NEW.t), NULL)]], name)
    db.sql("ALTER TABLE old ADD push_payload VARCHAR(1)", name)
    assert.equal("ü", takes("SET NAMES latin1, sql_mode = ''", "INSERT INTO old VALUES ('\xFC', 'too long')"))
    db.sql("ALTER TABLE old DROP push_payload", name)
    for _, mode in ipairs { "", "STRICT_TRANS_TABLES" } do
      mode = (", sql_mode = '%s'"):format(mode)
      assert.equal("ü €", takes("SET NAMES latin1" .. mode, "INSERT INTO old VALUES ('\xFC \x80')"))
      assert.equal("ü €", takes("SET NAMES utf8mb4" .. mode, "INSERT INTO old VALUES ('ü €')"))
    end
  end)
end)

-- Trees from SQL: nightshift_push with parent, after and on_fail.
describe("trees from SQL:", function()
  local url, name, handle, q

  with_database(function(...) handle, q, url, name = ... end)

  local function call(options, on)
    local h = on or handle._handle
    local ok, message = h:execute("CALL nightshift_push('q', 'late', '1', ?)", (assert(core.encode(options))))
    if not ok then return nil, message end
    return assert(h:execute "SELECT @nightshift_id AS id")[1].id
  end

  local function edges() return assert(handle:execute "SELECT on_id, job_id FROM nightshift_edge ORDER BY on_id") end

  local function end_one(how, ...)
    local job = assert(q:claim())
    assert(job[how](job, ...))
    return job.id
  end

  -- What an ended target means: how it ends, on_fail, state of the new job.
  local CASES = {
    { "ack", "cancel", "ready" }, { "discard", "cancel", "cancelled" }, { "discard", "run", "ready" },
  }

  for _, within in ipairs { "in autocommit", "in a transaction" } do
    describe("CALL nightshift_push " .. within, function()
      local function push(options)
        if within == "in autocommit" then return call(options) end
        assert(handle._handle:begin())
        local id, message = call(options)
        assert(handle._handle:commit())
        return id, message
      end

      it("waits for all that it names, once each", function()
        local a, b = assert(q:push "a"), assert(q:push "b")
        local id = assert(push { after = { b, a, a } })
        assert.same({ { on_id = a, job_id = id }, { on_id = b, job_id = id } }, edges())
        assert.same({ "waiting", 2 }, { handle:job(id).state, handle:job(id).unmet })
        end_one "ack"
        assert.equal(1, handle:job(id).unmet)
        end_one "ack"
        assert.equal(id, assert(q:claim()).id)
        assert.same({}, edges())
      end)

      it("waits for its delay as well", function()
        local a = assert(q:push "a")
        local id = assert(push { after = { a }, delay = 3600 })
        end_one "ack"
        assert.equal("scheduled", handle:job(id).state)
      end)

      for _, case in ipairs(CASES) do
        local how, on_fail, state = table.unpack(case)
        it(("with on_fail %s is %s after %s"):format(on_fail, state, how), function()
          local a = assert(q:push "a")
          end_one(how, "no")
          local id = assert(push { after = { a }, on_fail = on_fail, unique = "u" })
          assert.equal(state, handle:job(id).state)
          assert.same({}, edges())
          assert.equal(state == "ready" and 1 or 0, (#assert(handle:execute "SELECT 1 FROM nightshift_unique_key")))
          if state == "cancelled" then assert.equal("dependency", handle:job(id).reason) end
        end)

        it(("with on_fail %s is %s before %s"):format(on_fail, state, how), function()
          local id = assert(push { after = { (assert(q:push "a")) }, on_fail = on_fail })
          assert.equal("waiting", handle:job(id).state)
          end_one(how, "no")
          assert.equal(state, handle:job(id).state)
        end)
      end

      it("waits for who lives, and is cancelled for who has failed", function()
        local a = assert(q:push "a")
        end_one("discard", "no")
        local id = assert(push { after = { a, (assert(q:push "b")) } })
        assert.equal("cancelled", handle:job(id).state)
        assert.same({}, edges())
      end)

      it("makes a child of a live job", function()
        local top = assert(q:push "top")
        local id = assert(push { parent = top })
        local below = assert(push { parent = id })
        assert.same({ top, top, id, top }, { handle:job(id).parent, handle:job(id).root, handle:job(below).parent,
          handle:job(below).root })
        local job = assert(q:claim())
        assert.same({ top, 1, id }, { job.id, #job.results, job.results[1].id })
      end)

      for what, options in pairs {
        ["job 4711, which this is to wait for, is unknown"] = { after = { 4711 } },
        ["the parent, job 4711, is no live job"] = { parent = 4711 },
        ["out of range: after"] = { after = core.array {} },
        ["wrong type: after"] = { after = 12 },
        ["wrong type: parent"] = { parent = "x" },
        ["wrong type: on_fail"] = { on_fail = 1 },
        ["out of range: on_fail"] = { on_fail = "stop" },
        ["out of range: parent"] = { parent = 0 },
      } do
        it("says: " .. what, function()
          local id, message = push(options)
          assert.is_nil(id)
          assert.is_truthy(message:find(what, 1, true), message)
          for _, list in ipairs { { 0 }, { "1.5" }, { -1 }, { { 1 } } } do
            assert.is_truthy(select(2, push { after = list }):find("out of range: after", 1, true))
          end
          assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
          assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_child", name))
        end)
      end
    end)
  end

  describe("CALL nightshift_push", function()
    it("in a transaction holds what it waits for until the commit", function()
      local a = assert(q:push "a")
      local job = assert(q:claim())
      local other <close> = assert(core.open { url = url })
      assert(other:begin())
      local id = assert(call({ after = { a } }, other))
      assert.same({}, handle:execute("SELECT 1 FROM nightshift_job WHERE id = ? FOR UPDATE SKIP LOCKED", a))
      assert(other:commit())
      assert(job:ack())
      assert.equal(id, assert(q:claim()).id)
    end)

    it("from a trigger", function()
      local a = assert(q:push "a")
      db.sql([[CREATE TABLE ours (id BIGINT) ENGINE=InnoDB;
      CREATE TRIGGER pushes AFTER INSERT ON ours FOR EACH ROW
      CALL nightshift_push('q', 'late', '1', CONCAT('{"after":[', NEW.id, ']}'))]], name)
      assert(handle:execute("INSERT INTO ours VALUES (?)", a))
      assert.equal("waiting", handle:job(edges()[1].job_id).state)
      end_one "ack"
      assert.equal("late", assert(q:claim()).name)
    end)

    it("loses no edge to those who end what it waits for", function()
      local N = 300
      local targets = {}
      for i = 1, N do targets[i] = { "a", i } end
      local ids = assert(q:push_many(targets))
      local proc = require "spec.support.proc"
      local path = fixture.file("end.lua", [[
      local q = assert(require "nightshift".open(arg[1])):queue "q"
      for _ = 1, ]] .. N .. [[ do
        local job = assert(q:claim { wait = 20 })
        if job.name == "late" then job:ack() else assert(job:ack()) end
      end
    ]])
      local p = proc.start { proc.lua, path, url }
      for i = 1, N do assert(call { after = { ids[i], ids[N + 1 - i] } }) end
      assert.equal(0, p:wait())
      while true do
        local job = q:claim()
        if not job then break end
        assert(job:ack())
      end
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
      assert.same({}, edges())
      assert.equal(tostring(2 * N), db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
    end)
  end)
end)

-- CALL nightshift_push with a parent that was parked for its children. It did not wait for the
-- new one, which was then in its results without an outcome.
for _, within in ipairs { "in autocommit", "in a transaction" } do
  describe("CALL nightshift_push below a parent that waits for its children, " .. within, function()
    local handle, q, parent

    before_each(function()
      handle = assert(nightshift.open((db.fresh())))
      q = handle:queue "q"
      parent = assert(q:push "parent")
    end)
    after_each(function() handle:close() end)

    local function call(options)
      local h = handle._handle
      if within == "in a transaction" then assert(h:begin()) end
      local ok, message = h:execute("CALL nightshift_push('q', 'late', '1', ?)", (assert(core.encode(options))))
      local id = assert(h:execute "SELECT @nightshift_id AS id")[1].id
      if within == "in a transaction" then assert(h:commit()) end
      if not ok then return nil, message end
      return id
    end

    local function park(policy)
      local job = assert(q:claim())
      job:spawn("child", 1)
      assert(job:wait { on_fail = policy })
    end

    local function unmet() return handle:job(parent).unmet end

    it("is waited for, too", function()
      park()
      local late = assert(call { parent = parent })
      assert.equal(2, unmet())
      assert(q:claim():ack "child")
      assert.equal("waiting", handle:job(parent).state)
      local job = q:claim()
      assert.equal(late, job.id)
      assert(job:ack "late")
      job = q:claim()
      assert.same({ parent, 2, "late" }, { job.id, #job.results, job.results[2].result })
    end)

    it("and is cancelled at once: as its policy says", function()
      local bad = assert(q:push("bad", nil, { priority = 200 }))
      assert(q:claim():discard "no")
      for policy, expected in pairs { fail = "dead", continue = "ready" } do
        park(policy)
        local late = assert(call { parent = parent, after = { bad } })
        assert.equal("cancelled", handle:job(late).state)
        assert(handle:rescue()) -- as hosts do every second: the parent is told
        assert(q:claim():ack())
        assert.equal(expected, handle:job(parent).state)
        if policy == "continue" then
          local job = assert(q:claim())
          assert.same({ parent, "cancelled" }, { job.id, job.results[2].outcome })
          assert(job:ack())
        end
        parent = assert(q:push "parent")
      end
    end)

    it("does not wait for that parent, nor for what waits for it", function()
      park()
      local third = assert(q:push("third", nil, { after = { parent } }))
      local late = assert(call { parent = parent, after = { parent } })
      assert.equal("ready", handle:job(late).state)
      local id, message = call { parent = parent, after = { third } }
      assert.is_nil(id)
      assert.matches("would wait for itself", message, 1, true)
      assert.equal(2, unmet())
      for _ = 1, 2 do assert(q:claim():ack()) end
      local job = assert(q:claim())
      assert.same({ parent, 2 }, { job.id, #job.results })
    end)

    it("is not waited for by a parent that waits for a signal, or runs", function()
      local job = assert(q:claim())
      assert(call { parent = parent })
      assert(job:wait { signal = "go" })
      assert(call { parent = parent })
      assert.equal(0, unmet())
      assert.same({}, handle:execute "SELECT * FROM nightshift_edge")
    end)
  end)
end
