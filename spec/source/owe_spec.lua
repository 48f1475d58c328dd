-- Jobs that stand for rows of adopted tables. Each road that a job may take to a failure or to
-- its end leaves its row one debt, in the transaction that writes it.

local db = require "spec.support.db"
local host = require "spec.support.host"
local options = require "nightshift.options"
local proc = require "spec.support.proc"

describe("a job of a row", function()
  local handle, q, url, name
  with_database(function(...) handle, q, url, name = ... end)

  local function all(sql, ...) return assert(handle:execute(sql, ...)) end

  --- Pushes a job that stands for a row of the first source.
  local function push(row, opts, job)
    local entry = assert(options.entry("push", job or "task", { row = row }, opts))
    entry.unique = "row:1:" .. row
    return assert(handle._handle:push("q", { entry }))[1]
  end

  --- What a row is owed, in words: "failures outcome", in order.
  local function owed(row)
    local list = {}
    for i, debt in ipairs(all("SELECT failures, outcome FROM nightshift_owed WHERE source = 1 AND row_id = ? "
      .. "ORDER BY seq", row)) do
      list[i] = debt.failures .. " " .. (debt.outcome or "lives")
    end
    return list
  end

  local function claim() return assert(q:claim()) end

  local SCRIPT = [[return {
    task = function(job) return job.row end,
    bad = function(job) return job:fail("no", { retry_in = 3600 }) end,
    worst = function(job) return job:discard "no" end,
    killer = function() os.execute "kill -9 $PPID" end,
  }]]

  it("knows which, in a program and in a host, and no other job does", function()
    push(7)
    local job = claim()
    assert.equal(7, job.row)
    assert(job:ack())
    local id = push(9223372036854775807)
    local plain = assert(q:push("task", 1, { unique = "rows:1:7" }))
    assert.equal(0, host.drain(url, SCRIPT))
    assert.equal(9223372036854775807, handle:job(id).result)
    assert.is_nil(handle:job(plain).result)
    assert.equal(0, all("SELECT COUNT(*) AS n FROM nightshift_owed WHERE row_id NOT IN (7, 9223372036854775807)")[1].n)
  end)

  it("has a key that nobody else may give", function()
    local says = "push: unique begins with 'row:', as those of adopted rows do; choose another beginning"
    assert.same({ nil, says, "INVALID" },
      { q:push("task", 1, { unique = "row:1:7" }) })
    assert.equal("INVALID", select(3, q:push("task", 1, { unique = { key = "row:", on_conflict = "keep" } })))
    for _, key in ipairs { '"row:1:7"', '{"key": "row:1:7", "on_conflict": "keep"}' } do
      assert.is_false((pcall(db.sql, ([[CALL nightshift_push('q', 'task', '1', '{"unique": %s}')]]):format(key), name)))
    end
    assert.equal(0, all("SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
  end)

  it("is taken in once, whatever else is pushed with it", function()
    push(7)
    local entries = {}
    for i = 1, 3 do
      entries[i] = assert(options.entry("push", "task", i))
      entries[i].unique = "row:1:" .. ({ 8, 7, 9 })[i]
    end
    local none, message, code = handle._handle:push("q", entries)
    assert.same({ nil, "DUPLICATE" }, { none, code }, message)
    assert.equal(1, all("SELECT COUNT(*) AS n FROM nightshift_unique_key")[1].n)
  end)

  it("is owed once when it is done, alone or among many, with or without history", function()
    push(1)
    assert(claim():ack())
    assert.same({ "0 done" }, owed(1))
    for row = 2, 40 do push(row) end
    for _, job in ipairs(assert(q:claim_many(39))) do assert(job:ack()) end
    for row = 41, 80 do push(row) end
    assert.equal(0, host.drain(url, SCRIPT, { "--history", "failed", "--drain-within", "500ms" }))
    assert.equal(40, all("SELECT COUNT(*) AS n FROM nightshift_finished")[1].n)
    for row = 2, 80 do assert.same({ "0 done" }, owed(row), row) end
  end)

  it("is owed each failure, with the time of the next run, and the end", function()
    local id = push(1, { max_attempts = 2 })
    assert(claim():fail("no", { retry_in = 3600 }))
    assert.same({ "1 lives" }, owed(1))
    local due = all("SELECT due FROM nightshift_job WHERE id = ?", id)[1].due
    assert.equal(due, all "SELECT due FROM nightshift_owed"[1].due)
    assert(handle:run_now(id))
    assert(claim():fail "no")
    assert.same({ "1 lives", "1 dead" }, owed(1))
    push(2)
    assert(claim():discard "no")
    assert.same({ "0 dead" }, owed(2))
    push(3, { deadline = 0 })
    assert.is_nil((assert(q:claim_many(5))[1]))
    eventually(function() return owed(3)[1] end)
    assert.same({ "0 dead" }, owed(3))
  end)

  it("is owed nothing by what is no failure and no end", function()
    local id = push(1)
    assert(claim():release())
    assert(claim():again(0))
    local job = claim()
    assert(job:progress(0.5, "half"))
    assert(job:spawn "child")
    assert(job:wait())
    assert(handle:pause(id))
    assert(handle:resume(id))
    assert.same({}, owed(1))
    assert.equal("waiting", handle:job(id).state)
  end)

  it("is owed its cancel, also of a tree, and of what waited for it", function()
    assert(handle:cancel(push(1)))
    assert.same({ "0 cancelled" }, owed(1))
    local first = push(2)
    local second = push(3, { after = { first } })
    push(4, { after = { second } })
    assert(handle:cancel(first))
    for row = 2, 4 do assert.same({ "0 cancelled" }, owed(row), row) end
    local top = push(5)
    for row = 6, 9 do push(row, { parent = top }) end
    assert.equal(5, handle:cancel(top, { tree = true }))
    for row = 5, 9 do assert.same({ "0 cancelled" }, owed(row), row) end
    push(10, { after = { first } })
    assert.same({ "0 cancelled" }, owed(10))
  end)

  it("is owed its end when a child of it fails", function()
    push(1)
    local job = claim()
    assert(job:spawn "bad")
    assert(job:wait())
    assert(claim():discard "no")
    assert.same({ "0 dead" }, owed(1))
  end)

  it("is owed nothing by a transaction that is rolled back", function()
    push(1)
    local job = claim()
    handle:transaction(function(tx)
      assert(tx:ack(job))
      return nil, "no"
    end)
    assert.same({}, owed(1))
    assert(handle:transaction(function(tx)
      assert(tx:ack(job))
      return true
    end))
    assert.same({ "0 done" }, owed(1))
  end)

  it("is owed a failure when its holder dies, and when it kills its worker", function()
    push(1)
    local p = proc.start { proc.lua, "-e", [[
    local handle = require "nightshift.core".open { url = os.getenv "NIGHTSHIFT_URL" }
    io.stdout:write(#handle:claim("q", 10), "\n")
    io.stdout:flush()
    handle:claim("none", 1, 60000000)]], env = { NIGHTSHIFT_URL = url } }
    assert.equal("1", p:wait_line "^(%d)")
    p:signal "KILL"
    p:wait()
    assert(handle:rescue { wait = "5s" })
    assert.same({ "1 lives" }, owed(1))
    local job = claim()
    assert.equal(1, job.attempts) -- the handler is told of as many failures as the row
    assert(job:ack())
    assert.same({ "1 lives", "0 done" }, owed(1))
    push(2, { max_crashes = 2 }, "killer")
    local h = host.start(url, SCRIPT)
    eventually(function() return #owed(2) == 2 end)
    assert.same({ "1 lives", "1 dead" }, owed(2))
    push(3, { max_attempts = 1, max_crashes = 2 }, "killer")
    eventually(function() return #owed(3) > 0 end)
    assert.same({ "1 dead" }, owed(3)) -- that was its last attempt
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("waits for nobody who has locked what its row is owed", function()
    push(1)
    assert(claim():fail("no", { retry_in = 0 }))
    local other <close> = assert(require "nightshift.core".open { url = url })
    assert(other:begin())
    assert(other:execute "SELECT * FROM nightshift_owed FOR UPDATE")
    assert(claim():ack())
    assert.same({ "1 lives", "0 done" }, owed(1))
    assert(other:rollback())
  end)

  -- How many statements a plain push, claim and ack are, and how many rows they write.
  it("costs others nothing", function()
    local function status(which)
      return tonumber(assert(handle:execute(("SHOW SESSION STATUS LIKE '%s'"):format(which)))[1].Value)
    end
    local function cost(act)
      local least = { math.huge, math.huge }
      for _ = 1, 20 do -- what is prepared once, and signs of life, come with some
        local statements, rows = status "Com_stmt_execute", status "Handler_write"
        act()
        least[1] = math.min(least[1], status "Com_stmt_execute" - statements)
        least[2] = math.min(least[2], status "Handler_write" - rows)
      end
      return least
    end
    local function run(opts)
      return cost(function()
        assert(q:push("plain", 1, opts))
        assert(claim():ack())
      end)
    end
    assert.same({ plain = { 9, 4 }, keyed = { 12, 5 } }, { plain = run(), keyed = run { unique = "k" } })
  end)
end)
