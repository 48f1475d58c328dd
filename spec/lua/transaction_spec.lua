-- db:transaction, tx:try and tx:ack: which changes are written together, and which failures
-- undo them.

local host = require "spec.support.host"
local lab = require "spec.support.db".lab
local nightshift = require "nightshift"

-- tx:ack: the end of a job and its own rows in one transaction.
describe("tx:ack", function()
  local url, handle, q

  with_database(function(opened, _, at)
    handle, url = opened, at
    q = assert(handle:queue "default")
    assert(handle:execute "CREATE TABLE mark (id BIGINT NOT NULL) ENGINE=InnoDB")
  end)

  local function marks() return handle:execute("SELECT COUNT(*) AS n FROM mark")[1].n end

  local function mark(tx, job) assert(tx:execute("INSERT INTO mark VALUES (?)", job.id)) end

  it("ends jobs together with the rows that belong to them", function()
    assert(q:push_many { { "a" }, { "b" } })
    local jobs = assert(q:claim_many(2))
    assert(handle:transaction(function(tx)
      for i, job in ipairs(jobs) do
        mark(tx, job)
        assert.is_true(tx:ack(job, i))
      end
    end))
    assert.equal(2, marks())
    for i, job in ipairs(jobs) do
      assert.equal("done", handle:job(job.id).state)
      assert.equal(i, handle:job(job.id).result)
    end
  end)

  it("counts for nothing when the transaction does not commit", function()
    assert(q:push "a")
    local job = assert(q:claim())
    assert.error_matches(function()
      handle:transaction(function(tx)
        assert(tx:ack(job))
        error "no"
      end)
    end, "no")
    assert.equal("running", handle:job(job.id).state)
    assert.is_true(job:ack())
  end)

  it("keeps the transaction from its commit when the claim is lost", function()
    assert(q:push "a")
    local job = assert(q:claim())
    assert(handle:cancel(job.id))
    local done, message, code = handle:transaction(function(tx)
      mark(tx, job)
      tx:ack(job) -- what it says is not looked at
    end)
    assert.is_nil(done)
    assert.matches("job " .. job.id, message)
    assert.equal("STALE", code)
    assert.equal(0, marks())
  end)

  it("takes no job of another handle", function()
    local other <close> = assert(nightshift.open(url))
    assert(q:push "a")
    local job = assert(q:claim())
    assert.error_matches(function()
      other:transaction(function(tx) tx:ack(job) end)
    end, "job %d+ was not claimed on this handle")
    assert.error_matches(function()
      handle:transaction(function(tx) tx:ack(5) end)
    end, "tx:ack wants a job, got number")
    assert.is_true(job:ack())
  end)

  it("ends the job of a handler with what the handler writes, and its children come", function()
    local id = assert(q:push "pay")
    local status, log = host.drain(url, [[return {
      pay = function(job)
        job:spawn("after", 1)
        assert(job:db():transaction(function(tx)
          assert(tx:execute("INSERT INTO mark VALUES (?)", job.id))
          assert(tx:ack(job, "paid"))
        end))
        error "too late to count"
      end,
      after = function() end,
    }]])
    assert.equal(0, status, log)
    assert.equal(1, marks())
    local job = assert(handle:job(id))
    assert.equal("done", job.state)
    assert.equal("paid", job.result)
    assert.equal(0, job.attempts)
    assert.equal(1, handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished WHERE parent = ?", id)[1].n)
  end)
end)

-- Statements that end a transaction (COMMIT, CREATE TABLE, TRUNCATE, BEGIN, LOCK TABLES, a
-- procedure that does) went unnoticed inside db:transaction. What came behind them was
-- committed statement by statement, and a raise undid nothing.
describe("a statement that ends the transaction", function()
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

-- db:transaction committed after a verb in it had failed. There was a row without its job when
-- the payload was too large, or half of two statements when the second was misspelt. And a
-- function that returned nil and a message had its work committed all the same. There was no
-- way to let a part fail. tx:ack of a handler's own job made the host warn of a stale verdict
-- each time.
describe("verbs that fail in a transaction:", function()
  local handle, q, url

  with_database(function(opened, queue, at)
    handle, q, url = opened, queue, at
    assert(handle:execute "CREATE TABLE mark (id BIGINT NOT NULL PRIMARY KEY) ENGINE=InnoDB")
  end)

  local function marks()
    local list = {}
    for i, row in ipairs(assert(handle:execute "SELECT id FROM mark ORDER BY id")) do list[i] = row.id end
    return list
  end

  local function mark(tx, id) return tx:execute("INSERT INTO mark VALUES (?)", id) end

  local function pushed() return assert(handle:execute "SELECT COUNT(*) AS n FROM nightshift_job")[1].n end

  --- What a transaction gives in which `fn` does something that fails behind a row and a job.
  local function spoiled(fn)
    local given = table.pack(handle:transaction(function(tx)
      assert(mark(tx, 1))
      assert(tx:queue "q":push "good")
      fn(tx)
      mark(tx, 2)
      return "not looked at"
    end))
    assert.same({}, marks())
    assert.equal(0, pushed())
    return table.unpack(given, 1, given.n)
  end

  describe("a transaction in which a verb failed", function()
    local CASES = {
      ["a push that is too large"] = { function(tx) tx:queue "q":push("a", ("x"):rep(2 << 20)) end, "TOO_BIG" },
      ["a push with a bad option"] = { function(tx) tx:queue "q":push("a", 1, { delay = -1 }) end, "INVALID" },
      ["a push on a queue of the handle"] = { function() q:push("a", 1, { delay = -1 }) end, "INVALID" },
      ["a list of pushes"] = { function() q:push_many { { "a" }, { "a", 1, { priority = 999 } } } end, "INVALID" },
      ["a flow"] = { function() handle:flow { name = "a", after = { 1 << 50 } } end, "NOT_FOUND" },
      ["a statement"] = { function(tx) tx:execute "SELEC 1" end, "SQL" },
      ["a signal to nobody"] = { function(tx) tx:signal(1 << 50, 1) end, "NOT_FOUND" },
      ["a verb on a job"] = { function() handle:cancel(1 << 50) end, "NOT_FOUND" },
      ["a queue's bad name"] = { function(tx) tx:queue "" end, "INVALID" },
    }
    for name, case in pairs(CASES) do
      it("is rolled back, and gives the failure: " .. name, function()
        local value, message, code = spoiled(case[1])
        assert.is_nil(value)
        assert.is_string(message)
        assert.equal(case[2], code)
      end)
    end

    it("gives the first failure, whatever came after it", function()
      local _, message, code = spoiled(function(tx)
        tx:signal(1 << 50, 1)
        tx:execute "SELEC 1"
      end)
      assert.matches("no live job has the id", message)
      assert.equal("NOT_FOUND", code)
    end)

    it("is named by the error of code that took its nil for a value", function()
      for _, way in ipairs { function(_, fn) return fn end, function(tx, fn) return function() tx:try(fn) end end } do
        local ok, err = pcall(handle.transaction, handle, function(tx)
          way(tx, function()
            local row = tx:execute "SELECT * FROM no_such"
            return row[1].id
          end)()
        end)
        assert.is_false(ok)
        assert.matches("^[^\n]*no_such' doesn't exist[^\n]*; then: [^\n]*attempt to index a nil value", err)
        ok, err = pcall(handle.transaction, handle, function(tx)
          way(tx, function() error((select(2, tx:execute "SELECT * FROM no_such"))) end)()
        end)
        assert.is_false(ok)
        assert.is_nil(err:find("then:", 1, true), err) -- it says so itself
      end
    end)

    it("is one with a taken unique key", function()
      assert(q:push("first", 1, { unique = "u", delay = 60 }))
      local value, message, code = handle:transaction(function(tx)
        mark(tx, 1)
        tx:queue "q":push("second", 1, { unique = "u" })
      end)
      assert.same({ nil, "DUPLICATE" }, { value, code })
      assert.matches("u", message)
      assert.same({}, marks())
    end)

    it("is one with a verdict on a lost job", function()
      assert(q:push "a")
      local job = assert(q:claim())
      assert(handle:cancel(job.id))
      assert.same({ nil, "STALE" }, { (function()
        local value, _, code = handle:transaction(function(tx)
          mark(tx, 1)
          job:ack()
        end)
        return value, code
      end)() })
      assert.same({}, marks())
    end)

    it("is not one that only looked for what is not there", function()
      assert(handle:transaction(function(tx)
        assert(mark(tx, 1))
        assert.equal("NOT_FOUND", select(3, handle:job(1 << 50)))
      end))
      assert.same({ 1 }, marks())
    end)

    it("leaves the handle as it was", function()
      spoiled(function(tx) tx:execute "SELEC 1" end)
      assert.is_true(handle:transaction(function(tx) assert(mark(tx, 7)) end))
      assert.same({ 7 }, marks())
      assert.equal("INVALID", select(3, q:push("a", 1, { delay = -1 })))
      assert.is_true(handle:transaction(function(tx) assert(mark(tx, 8)) end))
    end)
  end)

  describe("a function that returns nil and a message", function()
    it("is rolled back, and they are given back", function()
      assert.same({ nil, "no such customer", "MINE" }, { handle:transaction(function(tx)
        assert(mark(tx, 1))
        return nil, "no such customer", "MINE"
      end) })
      assert.same({}, marks())
    end)

    it("is committed when it returns nothing else", function()
      assert.same({ n = 1 }, table.pack(handle:transaction(function(tx)
        assert(mark(tx, 1))
        return nil
      end)))
      assert.same({ n = 2 }, table.pack(handle:transaction(function() return nil, nil end)))
      assert.same({ false, "x" }, { handle:transaction(function(tx)
        assert(mark(tx, 2))
        return false, "x"
      end) })
      assert.same({ 1, 2 }, marks())
    end)
  end)

  describe("tx:try", function()
    it("undoes what failed in it alone, and says why", function()
      local said
      assert.equal("done", handle:transaction(function(tx)
        assert(mark(tx, 1))
        said = { tx:try(function()
          assert(mark(tx, 2))
          assert(tx:queue "q":push "bad")
          tx:queue "q":push("a", 1, { delay = -1 })
        end) }
        assert(mark(tx, 3))
        assert(tx:queue "q":push "good")
        return "done"
      end))
      assert.same({ nil, "INVALID" }, { said[1], said[3] })
      assert.same({ 1, 3 }, marks())
      assert.equal("good", handle:jobs()[1].name)
      assert.equal(1, pushed())
    end)

    it("gives what its function returns; nil and a message undo", function()
      handle:transaction(function(tx)
        assert.same({ "a", "b" }, { tx:try(function(inner)
          assert.equal(tx, inner)
          assert(mark(inner, 1))
          return "a", "b"
        end) })
        assert.is_true(tx:try(function() end))
        assert.same({ nil, "no", "WHY" }, { tx:try(function()
          assert(mark(tx, 2))
          return nil, "no", "WHY"
        end) })
      end)
      assert.same({ 1 }, marks())
    end)

    it("nests", function()
      assert(handle:transaction(function(tx)
        assert(tx:try(function()
          assert(mark(tx, 1))
          assert.is_nil(tx:try(function()
            assert(mark(tx, 2))
            assert(tx:try(function() assert(mark(tx, 3)) end))
            return nil, "no"
          end))
          assert(mark(tx, 4))
        end))
        assert.is_nil(tx:try(function()
          assert(tx:try(function() assert(mark(tx, 5)) end))
          mark(tx, 1) -- is there already
        end))
      end))
      assert.same({ 1, 4 }, marks())
    end)

    it("undoes what raised in it, and the error goes on", function()
      local mine = { why = "mine" }
      assert(handle:transaction(function(tx)
        assert(mark(tx, 1))
        local ok, err = pcall(tx.try, tx, function()
          assert(mark(tx, 2))
          error(mine)
        end)
        assert.is_false(ok)
        assert.equal(mine, err)
      end))
      assert.same({ 1 }, marks())
      assert.is_false(pcall(handle.transaction, handle, function(tx)
        assert(mark(tx, 3))
        tx:try(function() error "out of both" end)
      end))
      assert.same({ 1 }, marks())
    end)

    it("holds the acks of jobs: a lost one undoes it, the others stand, what was undone is open", function()
      assert(q:push_many { { "a" }, { "b" }, { "c" } })
      local jobs = assert(q:claim_many(3))
      assert(handle:cancel(jobs[2].id))
      assert(handle:transaction(function(tx)
        for i, job in ipairs(jobs) do
          local ok, _, code = tx:try(function()
            assert(mark(tx, i))
            assert(tx:ack(job, i))
            if i == 3 then return nil, "changed my mind", "MINE" end
          end)
          assert.equal(({ true, nil, nil })[i], ok)
          assert.equal(({ nil, "STALE", "MINE" })[i], code)
        end
      end))
      assert.same({ 1 }, marks())
      assert.equal("done", handle:job(jobs[1].id).state)
      assert.is_true(jobs[3]:ack "later")
      assert.equal("later", handle:job(jobs[3].id).result)
      assert.equal("STALE", select(3, jobs[2]:ack()))
      assert.equal(0, assert(handle:execute "SELECT COUNT(*) AS n FROM nightshift_lease")[1].n)
    end)

    it("cannot save a transaction that the server has rolled back", function()
      assert(handle:execute "INSERT INTO mark VALUES (1), (2)")
      local value, _, code = handle:transaction(function(tx)
        assert(tx:execute "UPDATE mark SET id = 10 WHERE id = 1")
        tx:try(function() tx:execute "SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT = 'a deadlock', MYSQL_ERRNO = 1213" end)
        assert.is_nil((tx:execute "INSERT INTO mark VALUES (99)"))
        assert.is_nil((tx:try(function() assert(mark(tx, 98)) end)))
      end)
      assert.is_nil(value)
      assert.is_true(code == "BUSY" or code == "GONE", tostring(code))
      assert.same({ 1, 2 }, marks())
    end)

    it("is misused without a function, or behind the end", function()
      local kept
      assert.error_matches(function() handle:transaction(function(tx)
        kept = tx
        tx:try()
      end) end, "try wants a function, got nil")
      assert.error_matches(function() kept:try(function() end) end, "this transaction has ended")
    end)
  end)

  it("a handler's transaction is no other, and a job that it acked is no stale one", function()
    assert(handle:queue "default":push_many { { "paid" }, { "unpaid", nil } })
    local h = host.start(url, [[return {
    paid = function(job)
      return job:db():transaction(function(tx)
        assert(tx:execute("INSERT INTO mark VALUES (1)"))
        tx:try(function() tx:execute "INSERT INTO mark VALUES (2)"; tx:execute "SELEC 1" end)
        return tx:ack(job, { ok = 1 })
      end)
    end,
    unpaid = function(job)
      local value, message, code = job:db():transaction(function(tx)
        assert(tx:execute("INSERT INTO mark VALUES (3)"))
        tx:execute "SELEC 1"
        return tx:ack(job, "paid")
      end)
      return job:discard(("%s %s"):format(value, code))
    end,
  }]], { "--queues", "default=1" })
    eventually(function() return assert(handle:execute "SELECT COUNT(*) AS n FROM nightshift_finished")[1].n == 2 end)
    assert.same({ 1 }, marks())
    h:signal "TERM"
    assert.equal(0, h:wait())
    local _, log = h:text()
    assert.is_nil(log:find("event=job.stale", 1, true), log)
    local outcomes = {}
    for _, row in ipairs(assert(handle:execute "SELECT name, outcome, error FROM nightshift_finished")) do
      outcomes[row.name] = { row.outcome, row.error }
    end
    assert.same({ paid = { "done" }, unpaid = { "dead", "nil SQL" } }, outcomes)
  end)
end)

-- What a bad value or a bad option gets is part of it.
describe("the public handle:", function()
  local open = lab.open

  local db
  lab.handles(1, function(handle) db = handle end)

  local function fresh_queue() return lab.queue(db) end

  describe("a transaction", function()
    it("commits rows and jobs together and gives what the function returned", function()
      db:execute "CREATE TABLE IF NOT EXISTS api_rows (n INT) ENGINE=InnoDB"
      local q = fresh_queue()
      local id, word = db:transaction(function(tx)
        tx:execute("INSERT INTO api_rows VALUES (?)", 1)
        return tx:queue(q.name):push("a", 1), "word"
      end)
      assert.equal("word", word)
      assert.equal("ready", db:job(id).state)
      assert.equal(1, db:execute("SELECT COUNT(*) AS n FROM api_rows")[1].n)
      assert.is_true(db:transaction(function() end))
      q:claim():ack()
    end)

    it("keeps nothing when the function raises, and passes the error on", function()
      db:execute "CREATE TABLE IF NOT EXISTS api_none (n INT) ENGINE=InnoDB"
      local q = fresh_queue()
      local mine = { why = "changed my mind" }
      local ok, err = pcall(db.transaction, db, function(tx)
        tx:execute("INSERT INTO api_none VALUES (?)", 1)
        assert(tx:queue(q.name):push("a", 1))
        error(mine)
      end)
      assert.is_false(ok)
      assert.equal(mine, err)
      assert.equal(0, db:execute("SELECT COUNT(*) AS n FROM api_none")[1].n)
      assert.same({}, db:jobs { queue = q.name })
      assert.is_truthy(q:push("a", 1))
      q:claim():ack()
    end)

    it("takes the verdict of a job with it, and opens the job again after a rollback", function()
      db:execute "CREATE TABLE IF NOT EXISTS api_acks (n INT) ENGINE=InnoDB"
      local q = fresh_queue()
      local id = q:push("a", 1)
      local job = q:claim()
      assert.is_false(pcall(db.transaction, db, function(tx)
        tx:execute "INSERT INTO api_acks VALUES (1)"
        assert(job:ack "too early")
        error "no"
      end))
      assert.equal("running", db:job(id).state)
      db:transaction(function(tx)
        tx:execute "INSERT INTO api_acks VALUES (2)"
        assert(job:ack "in time")
      end)
      assert.same({ "done", "in time" }, { db:job(id).state, db:job(id).result })
      assert.same({ { n = 2 } }, db:execute "SELECT n FROM api_acks")
      assert.equal("STALE", select(3, job:ack()))
    end)

    it("claims nothing: that would undo the claim with the rest", function()
      local q = fresh_queue()
      q:push("a", 1)
      db:transaction(function() assert.equal("STATE", select(3, q:claim())) end)
      assert(q:pause())
      db:transaction(function() assert.equal("STATE", select(3, q:claim { wait = 30 })) end)
      assert(q:resume())
      q:claim():ack()
    end)

    it("is invisible to others until the commit", function()
      local q = fresh_queue()
      local other <close> = open()
      db:transaction(function(tx)
        tx:queue(q.name):push("a", 1)
        assert.is_nil(other:queue(q.name):claim())
      end)
      assert.is_truthy(other:queue(q.name):claim())
    end)

    it("does not nest, and its handle ends with it", function()
      local kept
      assert.error_matches(function()
        db:transaction(function(tx)
          kept = tx
          db:transaction(function() end)
        end)
      end, "transaction: this handle is already in one")
      assert.error_matches(function() kept:execute "SELECT 1" end, "this transaction has ended")
      assert.error_matches(function() kept:queue "x" end, "this transaction has ended")
      assert.is_true(db:transaction(function() end))
      assert.error_matches(function() db:transaction() end, "transaction wants a function, got nil")
    end)

    it("survives a function that closes the handle", function()
      local other = open()
      assert.is_false(pcall(other.transaction, other, function() other:close() end))
      assert.error_matches(function() other:ping() end, "closed database")
    end)

    it("may be left by a coroutine that never comes back", function()
      local other <close> = open()
      local thread = coroutine.create(function()
        other:transaction(function(tx)
          tx:queue("left"):push("a", 1)
          coroutine.yield()
        end)
      end)
      assert(coroutine.resume(thread))
      coroutine.close(thread)
      assert.same({}, db:jobs { queue = "left" })
      assert.is_true(other:transaction(function() end))
    end)
  end)

  describe("execute", function()
    it("keeps types exact", function()
      local row = db:execute([[SELECT CAST(? AS SIGNED) AS i, CAST(1.5 AS DOUBLE) AS d, 1.50 AS dec2, NULL AS none,
      CAST('2024-02-29' AS DATE) AS day, CAST(18446744073709551615 AS UNSIGNED) AS big, ? AS s, ? AS yes]],
        math.mininteger, "a\0b", true)[1]
      assert.same({ i = math.mininteger, d = 1.5, dec2 = "1.50", day = "2024-02-29", big = "18446744073709551615",
        s = "a\0b", yes = 1 }, row)
      assert.equal("float", math.type(row.d))
      assert.equal("integer", math.type(row.i))
    end)

    it("takes nil and null as NULL, wherever they stand", function()
      local row = db:execute("SELECT ? IS NULL AS a, ? IS NULL AS b, ? IS NULL AS c", nil, nightshift.null, nil)[1]
      assert.same({ a = 1, b = 1, c = 1 }, row)
    end)

    it("tells rows changed and the id made", function()
      db:execute "CREATE OR REPLACE TABLE api_ids (id INT AUTO_INCREMENT PRIMARY KEY, n INT)"
      assert.same({ affected = 2, insert_id = 1 }, db:execute "INSERT INTO api_ids (n) VALUES (5), (6)")
      assert.equal(2, db:execute("UPDATE api_ids SET n = 7").affected)
    end)

    it("passes on what the server says", function()
      local none, message, code = db:execute "SELEC 1"
      assert.same({ nil, "SQL" }, { none, code })
      assert.is_truthy(message:find "1064")
      assert.matches("transaction_spec.lua:%d+: nightshift: execute: parameter 2 must be nil, a boolean, .*, "
        .. "got a table$",
        select(2, pcall(function() db:execute("SELECT ?, ?", 1, {}) end)))
      assert.matches("transaction_spec.lua:%d+: nightshift: execute: the statement must be a string, got nil",
        select(2, pcall(function() db:execute() end)))
    end)
  end)
end)
