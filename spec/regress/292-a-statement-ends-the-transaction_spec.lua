-- Statements that end a transaction (COMMIT, CREATE TABLE, TRUNCATE, BEGIN, LOCK TABLES, a
-- procedure that does) went unnoticed inside db:transaction: what came behind them was
-- committed statement by statement, and a raise undid nothing.

local handle

with_database(function(opened)
  handle = opened
  assert(handle:execute "CREATE TABLE mark (id BIGINT NOT NULL PRIMARY KEY) ENGINE=InnoDB")
  assert(handle:execute "CREATE TABLE other (id BIGINT NOT NULL PRIMARY KEY) ENGINE=InnoDB")
end)

local function names()
  local list = {}
  for i, row in ipairs(assert(handle:execute "SELECT name FROM nightshift_job ORDER BY id")) do list[i] = row.name end
  return table.concat(list, " ")
end

local ENDS = {
  ["COMMIT"] = "before", ["ROLLBACK"] = "", ["BEGIN"] = "before", ["START TRANSACTION"] = "before",
  ["CREATE OR REPLACE TABLE zz (a INT)"] = "before", ["TRUNCATE other"] = "before",
  ["LOCK TABLES mark WRITE"] = "before",
  ["/* x */ COMMIT AND CHAIN"] = "before", ["CALL ends()"] = "before", ["CALL begins()"] = "before",
}

describe("a statement that ends the transaction", function()
  before_each(function()
    assert(handle:execute "CREATE PROCEDURE ends() COMMIT")
    assert(handle:execute "CREATE PROCEDURE begins() BEGIN COMMIT; START TRANSACTION; END")
  end)

  for sql, stays in pairs(ENDS) do
    it("is noticed: " .. sql, function()
      local said, later
      local value, message, code = handle:transaction(function(tx)
        tx:queue "q":push "before"
        said = { tx:execute(sql) }
        later = { tx:queue "q":push "after" }
        return true
      end)
      assert.same({ nil, "STATE" }, { said[1], said[3] })
      assert.matches("this statement has ended the transaction", said[2])
      assert.is_nil(later[1])
      assert.same({ nil, said[2], "STATE" }, { value, message, code })
      assert.equal(stays, names())
      assert.is_true(handle:transaction(function(tx) assert(tx:queue "q":push "next") end))
      assert.matches("next$", names())
    end)
  end

  it("is none that only says so, or goes back to a savepoint", function()
    for _, sql in ipairs { "SELECT 'COMMIT'", "SAVEPOINT mine", "ROLLBACK TO mine", "ROLLBACK WORK TO SAVEPOINT mine",
      "RELEASE SAVEPOINT mine", "SET @x = 1", "CREATE TEMPORARY TABLE tt (a INT)", "DO 1", "SHOW WARNINGS" } do
      assert(handle:execute "DROP TEMPORARY TABLE IF EXISTS tt")
      assert.is_true(handle:transaction(function(tx)
        if sql:find "mine$" and not sql:find "^SAVE" then assert(tx:execute "SAVEPOINT mine") end
        assert(tx:execute(sql))
        assert(tx:execute "INSERT IGNORE INTO mark VALUES (1)")
      end), sql)
    end
  end)

  it("is noticed inside tx:try, which cannot save it", function()
    local said
    local value, _, code = handle:transaction(function(tx)
      tx:queue "q":push "before"
      said = { tx:try(function() tx:execute "COMMIT" end) }
      tx:queue "q":push "after"
    end)
    assert.same({ nil, "STATE" }, { said[1], said[3] })
    assert.same({ nil, "STATE" }, { value, code })
    assert.equal("before", names())
  end)
end)
