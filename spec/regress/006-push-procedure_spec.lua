-- nightshift_push, called outside a transaction, left the unique key of a push
-- that the server refused; took a negative delay and silently dropped options
-- of the wrong type; and did not find a queue that was newer than its
-- transaction's view.

local nightshift = require "nightshift"
local db = require "spec.support.db"

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
  } do
    it("refuses " .. option, function()
      local ok, message = pcall(db.sql, ("CALL nightshift_push('q', 'n', '1', '{%s}')"):format(option), name)
      assert.is_false(ok)
      assert.is_truthy(tostring(message):find(expected, 1, true), tostring(message))
    end)
  end

  it("takes every option", function()
    db.sql([[CALL nightshift_push('q', 'n', '1', '{"delay": 0.25, "priority": 0, "decay": 255, "unique": 7,
      "max_attempts": 2, "max_crashes": 1, "max_polls": -1, "backoff": 0.5, "timeout": 1.5, "deadline": 60}')]], name)
    local row = db.sql([[SELECT due - created, priority, rank, decay, ukey, max_attempts, max_crashes, max_polls,
      backoff, timeout, deadline - created FROM nightshift_job]], name)
    assert.equal("250000 0 255 255 7 2 1 NULL 500000 1500000 60000000", (row:gsub("\t", " ")))
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
