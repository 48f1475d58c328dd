-- `work --drain` is about what this host may run: its queues that are not paused, the names
-- that it claims, its tables. Of those it waits for what is due soon, and says so; what it
-- leaves because no script here can run it has exit status 3.

local db = require "spec.support.db"
local host = require "spec.support.host"

local SCRIPT <const> = "return { a = function() end, b = function() end }"
local AWAY <const> = 40 -- seconds: within what a drain waits for, and longer than a test waits
local PROMPT <const> = 15

local handle, q, url, name
with_database(function(...) handle, q, url, name = ... end)

local function push(queue, job, delay)
  return assert(handle:queue(queue):push(job, nil, { delay = delay or nil }))
end

--- Drains with these arguments; exit status and host. Raises when it takes long.
local function drain(args)
  local h = host.spawn(url, SCRIPT, { "--drain", "--log", "json", table.unpack(args) })
  return h:wait(PROMPT), h
end

local function stderr(h) return (select(2, h:text())) end

describe("a drain does not wait for", function()
  before_each(function()
    push("still", "a")
    assert(handle:queue("still"):pause())
  end)

  -- arguments, the jobs that are left as queue and name, exit status with them
  local CASES <const> = {
    { "another queue than those of --queues", { "--queues", "q" }, { { "other", "a" } }, 0 },
    { "a name without handler in another queue", { "--queues", "q" }, { { "other", "x" } }, 0 },
    { "a paused queue", {}, { { "still", "a" } }, 0 },
    { "a name without handler in a paused queue", {}, { { "still", "x" } }, 0 },
    { "a paused queue among --queues", { "--queues", "q,still" }, { { "still", "a" } }, 0 },
    { "a name without handler", {}, { { "q", "x" } }, 3 },
    { "a name without handler in --queues", { "--queues", "q" }, { { "q", "x" } }, 3 },
    { "a name that is not among --only", { "--only", "a" }, { { "q", "b" } }, 3 },
    { "both, without handler and not among --only", { "--only", "a" }, { { "q", "b" }, { "q", "x" } }, 3 },
    { "names and queues of others", { "--only", "a", "--queues", "q" }, { { "other", "a" }, { "other", "b" } }, 0 },
    { "all of it together", { "--only", "a", "--queues", "q,still" },
      { { "q", "b" }, { "q", "x" }, { "other", "a" }, { "other", "x" }, { "still", "a" } }, 3 },
  }

  for _, case in ipairs(CASES) do
    local what, args, left, code = table.unpack(case)
    for when, delay in pairs { ready = false, scheduled = AWAY } do
      it(("%s, %s, beside a job of its own"):format(what, when), function()
        local own = push("q", "a")
        for _, job in ipairs(left) do push(job[1], job[2], delay) end
        local status, h = drain(args)
        assert.equal(code, status, stderr(h))
        assert.equal("done", handle:job(own).state)
        assert.same({}, host.logged(h, "drain.waits"))
        for _, job in ipairs(left) do
          local named = ("'%s' (1 in queue '%s'%s"):format(job[2], job[1], delay and ", due soon" or "")
          assert.equal(code == 3 and job[1] == "q", stderr(h):find(named, 1, true) ~= nil, stderr(h))
        end
      end)
    end
  end

  it("what is due later than --drain-within, whoever could run it", function()
    for _, job in ipairs { "a", "x" } do push("q", job, AWAY) end
    assert.equal(0, (drain { "--drain-within", "5s" }))
  end)

  it("a scheduled job that was cancelled", function()
    assert(handle:cancel(push("q", "a", AWAY)))
    assert.equal(0, (drain {}))
  end)

  it("a cancelled one that it has been waiting for, longer than for the next", function()
    local late, soon = push("q", "a", AWAY), push("q", "a", 1)
    local h = host.spawn(url, SCRIPT, { "--drain", "--log", "json" })
    eventually(function() return host.logged(h, "drain.waits")[1] end)
    assert(handle:cancel(late))
    assert.equal(0, h:wait(PROMPT))
    assert.equal("done", handle:job(soon).state)
  end)

  it("jobs of queues, when it serves tables only", function()
    db.sql("CREATE TABLE mails (id INT PRIMARY KEY AUTO_INCREMENT, state VARCHAR(9) NOT NULL DEFAULT 'new')", name)
    db.sql("INSERT INTO mails () VALUES (), ()", name)
    local away = push("q", "a", AWAY)
    push("q", "x", AWAY)
    local map = fixture.file("map.lua", [[return { table = "mails", name = "a", strategy = "named_lock",
      status = { column = "state", open = "new", processing = "busy", done = "sent" } }]])
    assert.equal(0, (drain { "--adopt", map }))
    assert.equal("2", db.sql("SELECT COUNT(*) FROM mails WHERE state = 'sent'", name))
    assert(handle:cancel(away))
    local own = push("q", "a", 1)
    assert.equal(3, (drain { "--adopt", map, "--queues", "q" }))
    assert.equal("done", handle:job(own).state)
  end)
end)

--- µs since 1970 of "2025-01-31T12:00:00.000Z", by the server.
local function instant(text)
  local s = text:match "^(%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d+)Z$"
  return s and tonumber(db.sql(("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', '%s')"):format(s)))
end

describe("a drain waits for", function()
  it("what it may run and is due soon, and says what and until when", function()
    local first, last = push("q", "a", 1), push("other", "b", 1.5)
    push("q", "x", 1.2)
    push("q", "a", 600)
    local due = db.sql(("SELECT MIN(run_at), MAX(run_at) FROM nightshift_scheduled WHERE job_id IN (%d, %d)")
      :format(first, last), name)
    local status, h = drain {}
    assert.equal(3, status)
    for _, id in ipairs { first, last } do assert.equal("done", handle:job(id).state) end
    local waits = host.logged(h, "drain.waits")
    assert.equal(1, #waits)
    local said = waits[1]
    assert.same({ 2, "a", "q" }, { said.jobs, said.name, said.queue })
    local from, to = due:match "(%d+)\t(%d+)"
    assert.same({ from // 1000, to // 1000 }, { instant(said.next) // 1000, instant(said["until"]) // 1000 })
  end)

  it("jobs behind more cancelled ones than it claims at once", function()
    local gone = {}
    for i = 1, 25 do gone[i] = push("q", "a") end
    local own = push("q", "a")
    for _, id in ipairs(gone) do assert(handle:cancel(id)) end
    assert.equal(0, (drain { "--workers", "1" }))
    assert.equal("done", handle:job(own).state)
  end)

  it("a retry of its own", function()
    assert(q:push("flaky", nil, { backoff = "1s" }))
    local h = host.spawn(url, [[return { flaky = function(job)
      if job.attempt == 1 then error "no" end end }]], { "--drain", "--log", "json" })
    assert.equal(0, h:wait(PROMPT))
    assert.equal(1, host.logged(h, "drain.waits")[1].jobs)
  end)

  it("rows of its tables, and says of which", function()
    db.sql([[CREATE TABLE mails (id INT PRIMARY KEY AUTO_INCREMENT, state VARCHAR(9) NOT NULL DEFAULT 'new',
      due DATETIME(6) NULL)]], name)
    db.sql("INSERT INTO mails (due) VALUES (UTC_TIMESTAMP(6) + INTERVAL 2 SECOND)", name)
    local map = fixture.file("map.lua", [[return { table = "mails", name = "a", strategy = "named_lock",
      retry_after = "due", status = { column = "state", open = "new", processing = "busy", done = "sent" } }]])
    local status, h = drain { "--adopt", map }
    assert.equal(0, status, stderr(h))
    assert.equal("1", db.sql("SELECT COUNT(*) FROM mails WHERE state = 'sent'", name))
    local said = host.logged(h, "drain.waits")[1]
    assert.equal("mails", said.table)
    assert.is_number(instant(said.next))
  end)
end)

describe("what a drain asks", function()
  before_each(function()
    db.sql "SET GLOBAL log_output = 'TABLE'; TRUNCATE mysql.general_log; SET GLOBAL general_log = ON"
  end)
  after_each(function() db.sql "SET GLOBAL general_log = OFF" end)

  local function looks()
    return tonumber(db.sql [[SELECT COUNT(*) FROM mysql.general_log
      WHERE command_type = 'Execute' AND argument LIKE '%AS upcoming%']])
  end

  it("is nothing more when nothing is due soon", function()
    push("q", "a")
    push("q", "a", 600)
    assert.equal(0, (drain {}))
    assert.equal(0, looks())
  end)

  it("is one look when what is due soon is others', however much it is", function()
    push("q", "a")
    push("other", "a") -- makes the queue
    db.sql([[INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, `rank`, run, kind)
      SELECT (UNIX_TIMESTAMP() + 30) * 1000000 + s.seq, 900000000 + s.seq, k.id, 155, 1, CRC32('a')
      FROM seq_1_to_100000 s JOIN nightshift_queue k ON k.name = 'other']], name)
    assert.equal(0, (drain { "--queues", "q" }))
    assert.equal(1, looks())
  end)
end)
