-- `work --drain`: the jobs it waits for, the jobs it leaves, and how a host ends.

local core = require "nightshift.core"
local db = require "spec.support.db"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

-- `work --drain` is about what this host may run: its queues that are not paused, the names
-- that it claims, its tables. Of those it waits for what is due soon, and says so. What it
-- leaves because no script here can run it has exit status 3.
describe("drains:", function()
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
      local map = fixture.file("map.lua", [[return { table = "mails", name = "a",
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

    -- The look below the floor began behind the last job that came back, and passed for a whole
    -- one.
    it("all jobs that came back from behind a long one, among rows of other names", function()
      local others, short = {}, {}
      for n = 1, 1000 do others[n] = { "x", n } end
      for _ = 1, 40 do assert(q:push_many(others)) end
      for n = 1, 15 do short[n] = { "a" } end
      assert(q:push_many(short))
      local over = fixture.dir() .. "/over"
      assert(q:push("stay", over))
      local h = host.spawn(url, [[
        local nst = require "nst"
        return {
          a = function() end,
          long = function(job)
            nst.sleep(0.2)
            io.open(job.payload, "w"):close()
          end,
          stay = function(job) while not io.open(job.payload) do nst.sleep(0.01) end end,
        }]], { "--drain", "--workers", "2", "--only", "a,long,stay" })
      eventually(function() return #handle:jobs { name = "a", state = "done" } == 15 end)
      assert(q:pause()) -- so that jobs with an instant each are claimed together
      assert(q:push("long", over))
      for _ = 1, 15 do assert(q:push "a") end
      assert(q:resume())
      assert.equal(3, h:wait(60), stderr(h))
      assert.same({ { n = 0 } }, handle:execute "SELECT COUNT(*) AS n FROM nightshift_job WHERE name <> 'x'")
    end)

    it("rows of its tables", function()
      db.sql([[CREATE TABLE mails (id INT PRIMARY KEY AUTO_INCREMENT, state VARCHAR(9) NOT NULL DEFAULT 'new',
      due DATETIME(6) NULL)]], name)
      db.sql("INSERT INTO mails (due) VALUES (UTC_TIMESTAMP(6) + INTERVAL 4 SECOND)", name)
      local map = fixture.file("map.lua", [[return { table = "mails", name = "a",
      retry_after = "due", status = { column = "state", open = "new", processing = "busy", done = "sent" } }]])
      local status, h = drain { "--adopt", map }
      assert.equal(0, status, stderr(h))
      assert.equal("1", db.sql("SELECT COUNT(*) FROM mails WHERE state = 'sent'", name))
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

    it("is a look when what is due soon is others', however much it is", function()
      push("q", "a")
      push("other", "a") -- makes the queue
      db.sql([[INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, `rank`, run, kind)
      SELECT (UNIX_TIMESTAMP() + 30) * 1000000 + s.seq, 900000000 + s.seq, k.id, 155, 1, CRC32('a')
      FROM seq_1_to_100000 s JOIN nightshift_queue k ON k.name = 'other']], name)
      assert.equal(0, (drain { "--queues", "q" }))
      local n = looks() -- a second one when the first is more than a second old
      assert.is_true(n == 1 or n == 2, n)
    end)
  end)
end)

local SLOW <const> = 25 -- ms for each answer of the server

-- `work --drain` ended with 0, "nothing left to do", while rows of an adopted table were open.
-- A claim had looked just before they were due, at the full second, and the question what comes
-- due later was asked just after it. Slow answers make that moment long. And where answers take
-- more than 3 ms it never ended once jobs of a queue had come back. The next look for late
-- commits then counted as a job that is due soon.
describe("a drain", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  local RETURNS <const> = 3 -- of each row

  -- Each job comes back a second later until it has run often enough.
  local function script(folder)
    return ([[
    local function run(job)
      local path = %q .. "/" .. (job.payload and job.payload.tag or job.id)
      local file <close> = assert(io.open(path, "a+"))
      local n = select(2, file:read("a"):gsub("x", ""))
      file:write "x"
      file:flush()
      if n < %d then return job:again(1) end
    end
    return { queue_table = run, resize = run }]]):format(folder, RETURNS)
  end

  local function drain(...)
    local way = proxy.start(db.shared())
    way:tell("delay " .. SLOW)
    local h = host.spawn(way:url(url), script(fixture.dir()), { "--drain", ... })
    local status = h:wait(120)
    return status, (select(2, h:text()))
  end

  it("ends when all rows are done that came due while it looked", function()
    designs.create(handle, "queue_table", 2)
    local status, log = drain("--adopt", designs.file "queue_table")
    assert.equal(0, status, log)
    local rows = assert(handle:execute "SELECT status, COUNT(*) AS n FROM queue_table GROUP BY status")
    assert.same({ { status = "processed", n = 2 } }, rows, log)
  end)

  it("ends when all jobs of a queue are done that did", function()
    for i = 1, 2 do assert(q:push("resize", { tag = "job" .. i })) end
    local status, log = drain()
    assert.equal(0, status, log)
    assert.equal(2, #assert(handle:jobs { state = "done" }), log)
  end)
end)

-- Where answers take more than a millisecond a look for due jobs below the floor rests, and is open
-- until then. It goes on with the next claim, and a host whose queues are all paused makes none:
-- its drain never ended.
describe("a drain whose only queue is paused", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  it("ends, also when it had not looked everywhere yet", function()
    local go = fixture.dir() .. "/go"
    local way = proxy.start(db.shared())
    way:tell("delay " .. SLOW)
    local long = assert(q:push("long", go))
    local h = host.start(way:url(url), [[return {
      noop = function() end,
      long = function(job) while not io.open(job.payload) do require "nightshift.core".sleep(0.01) end end,
    }]], { "--drain", "--queues", "q" })
    local last
    for _ = 1, 4 do last = assert(q:push "noop") end
    eventually(function() return handle:job(last).state == "done" end)
    assert(q:pause())
    assert(io.open(go, "w")):close()
    assert.equal(0, h:wait(30), h:transcript())
    assert.equal("done", handle:job(long).state)
  end)
end)

-- While the only worker of a queue was forked anew, claims for the other queues found nothing
-- twice. So the drain ended without the job that had crashed.
describe("a drain whose workers are all reserved", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  it("ends when the queue of a worker that dies is empty, too", function()
    for i = 1, 9 do assert(q:push("crash", i, { max_crashes = 100 })) end
    assert(handle:queue("p"):push "noop")
    local h = host.spawn(url, ([[return {
      noop = function() end,
      crash = function(job)
        local path = ("%s/%%d"):format(job.id)
        if io.open(path) then return end
        io.open(path, "w"):close()
        os.execute "kill -9 $PPID"
      end,
    }]]):format(fixture.dir()), { "--drain", "--queues", "q,p", "--reserve", "q=1", "--reserve", "p=1" })
    assert.equal(0, h:wait(60), h:transcript())
    assert.same({}, handle:jobs { state = "ready" })
    assert.equal(10, #handle:jobs { state = "done" })
  end)
end)

-- `work --drain` over more than eight queues never ended when the last row of one of them had
-- been committed late. The look that found it was to be followed by another, which no queue
-- gets that one question for all has told to be empty.
describe("a drain of many queues", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  local QUEUES <const> = 12
  local SCRIPT = [[return {
  noop = function() end,
  long = function(job)
    local sleep = require "nightshift.core".sleep
    while not io.open(job.payload) do sleep(0.02) end
  end }]]

  it("ends though one of them had a row that was committed late", function()
    for i = 1, QUEUES do assert(handle:queue("other" .. i):push "noop") end
    local go = fixture.dir() .. "/go"
    assert(handle:queue("other1"):push("long", go))
    local other <close> = assert(nightshift.open(url))
    local early, h
    assert(other:transaction(function(tx)
      early = assert(tx:queue("q"):push "noop")
      local later = assert(q:push "noop")
      h = host.spawn(url, SCRIPT, { "--drain", "--workers", "2" })
      eventually(function() return handle:job(later).state == "done" end)
      core.sleep(0.1) -- the floor of the queue is above the early row now
      return true
    end))
    eventually(function() return handle:job(early).state == "done" end, 60)
    assert(io.open(go, "w")):close()
    assert.equal(0, h:wait(30), (select(2, h:text())))
  end)
end)

-- A second TERM that came when a host had written everything and was leaving made it end with
-- 1. That is the status of a host that has given verdicts up.
describe("a host that is told to stop again and again", function()
  it("ends with 0 when there is nothing to give up", function()
    local h = host.start(db.fresh(), "return { noop = function() end }")
    for _ = 1, 100 do
      if h:ended() then break end
      h:signal "TERM"
      nst.sleep(0.001)
    end
    assert.equal(0, h:wait())
  end)
end)

-- A host that was told to end had five seconds for its last statements, whatever its drain
-- timeout. A server that was busy with 300 hosts at once took longer: "host.give_up" and exit
-- code 1, though everything was written.
describe("while the server is frozen a host without jobs", function()
  local SCRIPT = "return { a = function() end }"
  local FROZEN = 7 -- s: longer than that

  local server, url, name
  setup(function() server = db.server() end)
  teardown(function() server:remove() end)
  before_each(function() url, name = server:fresh() end)
  after_each(function() server:thaw() end)

  -- The log may say that the server is frozen, which it is; no other error.
  local function no_error(h)
    for line in h:transcript():gmatch "[^\n]+" do
      assert.is_true(not line:find("level=error", 1, true) or line:find("event=db.frozen", 1, true) ~= nil, line)
    end
  end

  local function told_to_end(...)
    local h = host.start(url, SCRIPT, { ... })
    eventually(function() -- no claim is under way
      return server:sleepers(name) == 1 and server:sql("SELECT workers FROM nightshift_holder", name) == "2"
    end)
    server:freeze()
    h:signal "TERM"
    h:wait_line("host.drain", 20)
    return h
  end

  it("waits for it to say goodbye, and ends with 0", function()
    local h = told_to_end()
    nst.sleep(FROZEN)
    assert.is_nil(h:transcript():find("host.end", 1, true))
    server:thaw()
    assert.equal(0, h:wait(20), h:transcript())
    no_error(h)
    h:wait_line "host.end code=0"
    assert.equal("0", server:sql("SELECT COUNT(*) FROM nightshift_holder", name))
  end)

  it("ends with 0 when its drain timeout is over, for nothing is lost", function()
    local h = told_to_end("--drain-timeout", "1s")
    local since = nightshift.clock()
    assert.equal(0, h:wait(40), h:transcript())
    local took = nightshift.clock() - since
    assert.is_true(took < proc.limit(25), took) -- without it: 30 s
    no_error(h)
  end)

  it("ends sooner when it is told again", function()
    local h = told_to_end()
    local since = nightshift.clock()
    h:signal "TERM"
    assert.equal(0, h:wait(40), h:transcript())
    local took = nightshift.clock() - since
    assert.is_true(took < proc.limit(25), took) -- not told again: 30 s
  end)
end)

-- A host that is to end while its server is away used to crash. What it did after a reconnect
-- that was given up (the look for claims that its memory has lost) took the connection for
-- granted. And its upkeep's thread, which was about to try to connect again, was left alone
-- with memory that was freed.
describe("hosts that have lost their server for seconds", function()
  local HOSTS = 10

  it("end well", function()
    local server = db.server()
    local url = server:fresh()
    local hosts = {}
    for i = 1, HOSTS do hosts[i] = host.start(url, "return {}", { "--workers", "1" }) end
    server:kill() -- the last ones are about to write what they serve
    for _, h in ipairs(hosts) do h:wait_line("db.lost", 20) end
    nst.sleep(2.5) -- from now on seconds lie between two tries
    for _, h in ipairs(hosts) do h:signal "TERM" end
    for _, h in ipairs(hosts) do assert.equal(0, h:wait(60), h:transcript()) end
  end)
end)
