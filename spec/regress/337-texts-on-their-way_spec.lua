-- CALL nightshift_push on a session of utf8mb3 that is not strict wrote "?" for an emoji; on
-- one of latin1 whose client sends UTF-8 it kept "Ã¼" for "ü". Such calls are refused, and
-- the message says what to do. A client that sends what its session can carry is served,
-- whatever the character set.

local nightshift = require "nightshift"
local db = require "spec.support.db"

local EMOJI, LATIN1 = '{"t": "ü 😀"}', '{"t": "\xFC \x80"}' -- the second is "ü €" there

--- Runs SQL on a new session; what it says, or the error.
local function run(name, ...)
  local ok, text = pcall(db.sql, table.concat({ ... }, "; "), name)
  return text, not ok
end

local function push(payload, queue, options)
  return ("CALL nightshift_push('%s', 'n', '%s', %s)"):format(queue or "q", payload, options or "NULL")
end

describe("a text that a session cannot carry", function()
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
    -- A statement that was refused before leaves its warnings and its error where the next call sees them.
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
