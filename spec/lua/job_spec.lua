-- The job object, without a database and with one: verbs, children, errors that leave a block.
-- The laws: every state of a job × every verb, allowed or refused, and the state after. One table:
-- a change that adds a state or a verb adds its row or column there.
-- nightshift.background: the checks of a definition, its two handlers, and jobs that wait for
-- the operation.

local background = require "nightshift.background"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

-- The job object without a database: a backend that writes down what it gets.
describe("without a database:", function()
  local job = require "nightshift.job"

  local function fields(extra)
    local t = { id = 7, run = 2, lease = 3, queue = "mail", name = "email.send", payload = { to = "a" },
      attempts = 1, polls = 0, crashes = 0, max_attempts = 10, priority = 100 }
    for key, value in pairs(extra or {}) do t[key] = value end
    return t
  end

  local function recorder(answer)
    local seen = { verdicts = {}, lines = {} }
    local backend = { last_id = 100 }
    function backend.settle(_, verdict)
      seen.verdicts[#seen.verdicts + 1] = verdict
      if answer then return table.unpack(answer, 1, 3) end
      return true, false
    end
    function backend.touch() return true end
    function backend.progress(_, p, text)
      seen.progress, seen.text = p, text
      return true
    end
    function backend.log(_, text)
      seen.lines[#seen.lines + 1] = text
      return true
    end
    function backend.cancelled() return false end
    function backend.take_id()
      backend.last_id = backend.last_id + 1
      return backend.last_id
    end
    return seen, backend
  end

  local function new(answer, extra)
    local seen, backend = recorder(answer)
    return job.new(fields(extra), backend), seen
  end

  describe("a job", function()
    it("counts attempts from one", function()
      assert.equal(2, new().attempt)
    end)

    it("shows its id and name as text", function()
      assert.equal("nightshift.job: 7 email.send", tostring(new()))
    end)

    it("hands each verb to its backend", function()
      local cases = {
        { "ack", { { n = 1 } }, { kind = "ack", result = { n = 1 } } },
        { "fail", { "boom", { retry_in = "1m" } }, { kind = "fail", error = "boom", delay = 60.0 } },
        { "again", { 30, { page = 2 } }, { kind = "again", delay = 30.0, state = { page = 2 } } },
        { "again", { "2m" }, { kind = "again", delay = 120.0 } },
        { "again", { { retry_after = 1.5, state = 4 } }, { kind = "again", delay = 1.5, state = 4 } },
        { "again", { { delay = "2m", state = false } }, { kind = "again", delay = 120.0, state = false } },
        { "again", {}, { kind = "again" } },
        { "discard", { "no such user" }, { kind = "discard", error = "no such user" } },
        { "release", {}, { kind = "release" } },
      }
      for _, case in ipairs(cases) do
        local j, seen = new()
        assert.is_true(j[case[1]](j, table.unpack(case[2])))
        assert.same({ case[3] }, seen.verdicts)
      end
    end)

    it("comes back when a response's Retry-After says, and by its delay when that says nothing", function()
      local null = nightshift.null
      local date = "Sun, 06 Nov 1994 08:49:37 GMT"
      local cases = {
        { { retry_after = "120", delay = 5, state = 1 }, 120 },
        { { retry_after = 120, delay = 5, state = 1 }, 120 },
        { { retry_after = "Sun, 06 Nov 1994 08:50:37 GMT", date = date }, 60 },
        { { retry_after = "soon", delay = 5 }, 5, false }, { { retry_after = null, date = null, delay = 5 }, 5, false },
        { { retry_after = "" }, nil, false }, { { retry_after = 0 / 0 }, nil, false },
        { { retry_after = "0", delay = 5 }, 1 }, { { retry_after = "-7" }, 1 }, { { retry_after = -math.huge }, 1 },
        { { retry_after = date, delay = 5 }, 1 },
        { { retry_after = ("9"):rep(400) }, 3155760000 }, { { retry_after = math.huge }, 3155760000 },
      }
      for i, case in ipairs(cases) do
        local j, seen = new()
        j:again(case[1])
        assert.same({ kind = "again", delay = case[2], state = case[1].state }, seen.verdicts[1], i)
      end
    end)

    it("is settled once: the second verb says STALE and reaches nobody", function()
      local j, seen = new()
      j:ack()
      local ok, message, code = j:fail "late"
      assert.is_nil(ok)
      assert.equal("job 7 is already settled by ack", message)
      assert.equal("STALE", code)
      assert.equal(1, #seen.verdicts)
    end)

    it("is not shown alive once it is settled", function()
      local j, seen = new()
      j:again(30)
      assert.same({ nil, "job 7 is already settled by again", "STALE" }, { j:touch() })
      assert.same({ nil, "job 7 is already settled by again", "STALE" }, { j:progress(0.5) })
      assert.is_nil(seen.progress)
      assert.error_matches(function() j:progress(2) end, "from 0 to 1")
    end)

    it("may be settled again after a verdict that was not written", function()
      local j, seen = new { nil, "payload too big", "TOO_BIG" }
      assert.is_nil(j:ack(("x"):rep(10)))
      j:fail "result too big"
      assert.equal(2, #seen.verdicts)
    end)

    it("counts as settled when its claim is lost", function()
      local j, seen = new { nil, "lost", "STALE" }
      j:ack()
      j:ack()
      assert.equal(1, #seen.verdicts)
    end)

    it("is released by <close> unless it is settled", function()
      local seen
      do
        local j <close>, record = new()
        seen = record
        assert.equal(7, j.id)
      end
      assert.same({ { kind = "release" } }, seen.verdicts)
      do
        local j <close>, record = new()
        seen = record
        j:ack(1)
      end
      assert.equal("ack", seen.verdicts[1].kind)
      assert.equal(1, #seen.verdicts)
    end)

    it("takes progress from 0 to 1, forgives a rounding error and refuses the rest", function()
      local j, seen = new()
      j:progress(1.0000001, "last page")
      assert.equal(1.0, seen.progress)
      assert.equal("last page", seen.text)
      j:progress(-1e-9)
      assert.equal(0.0, seen.progress)
      for given, shown in pairs { [5] = "5", [-1] = "%-1", [2] = "2", [1.01] = "1.01", [math.huge] = "inf" } do
        assert.error_matches(function() j:progress(given) end, "progress must be a number from 0 to 1, got " .. shown)
      end
      assert.error_matches(function() j:progress "half" end, "progress must be a number from 0 to 1, got a string")
      assert.error_matches(function() j:progress(0 / 0) end, "progress must be a number from 0 to 1, got %-?nan")
      assert.error_matches(function() j:progress(0.5, {}) end, "progress: the text must be a string, got table")
    end)

    it("logs any value as valid UTF-8", function()
      local j, seen = new()
      j:log "plain"
      j:log(42)
      j:log "bad \xff byte"
      assert.same({ "plain", "42", "bad ? byte" }, seen.lines)
    end)

    it("says that a connection is only for workers", function()
      assert.error_matches(function() new():db() end, "job:db%(%) is for handlers inside a worker")
    end)
  end)

  describe("a bad value in a job's verb", function()
    it("raises, because a handler's returned nil would read as done", function()
      local cases = {
        { function(j) j:again "5x" end, "again: the delay: bad duration '5x'" },
        { function(j) j:again(-1) end, "again: the delay" },
        { function(j) j:again(0 / 0) end, "again: the delay" },
        { function(j) j:again(print) end, "again: the delay must be seconds or a text" },
        { function(j) j:again { retry_after = {} } end, "retry_after must be the text of a header, got a table" },
        { function(j) j:again { retry_after = "5", date = 5 } end, "date must be the text of a header" },
        { function(j) j:again { delay = "5x" } end, "again: delay: bad duration '5x'" },
        { function(j) j:again { after = 3 } end, "unknown option 'after'; known: date, delay, retry_after, state" },
        { function(j) j:fail("x", { retry_on = 5 }) end, "fail: unknown option 'retry_on'; did you mean 'retry_in'" },
        { function(j) j:fail("x", 5) end, "fail: options must be a table, got number" },
        { function(j) j:spawn(nil) end, "spawn: the job's name must be a string, got nil" },
        { function(j) j:spawn "" end, "spawn: the job's name is empty" },
        { function(j) j:spawn(("n"):rep(101)) end, "has 101 bytes, the limit is 100" },
        { function(j) j:spawn "a\0b" end, "control character at byte 2" },
        { function(j) j:spawn("a", print) end, "spawn: payload: cannot encode a function" },
        { function(j) j:spawn("a", 1, { queue = "x\n" }) end, "the queue's name has a control character" },
        { function(j) j:spawn("a", 1, { priority = 256 }) end, "spawn: priority must be a whole number from 0 to 255" },
        { function(j) j:spawn("a", 1, { timeout = 0 }) end, "spawn: timeout must be at least a microsecond, got 0" },
        { function(j) j:spawn("a", 1, { unique = "" }) end, "spawn: unique is empty" },
        { function(j) j:spawn("a", 1, {}, 2) end, "spawn takes name, payload and options; it got a number" },
        { function(j) j:spawn("a", 1, { dealy = 1 }) end, "spawn: unknown option 'dealy'; did you mean 'delay'" },
      }
      for _, case in ipairs(cases) do
        local j, seen = new()
        local ok, message = pcall(case[1], j)
        assert.is_false(ok)
        assert.is_truthy(message:find(case[2], 1, true) or message:find(case[2]), message)
        assert.is_truthy(message:find("job_spec.lua:", 1, true), "blames the caller: " .. message)
        assert.same({}, seen.verdicts)
      end
    end)

    it("has no position rather than a wrong one after a tail call", function()
      local j = new()
      local function handler() return j:again "5x" end
      local _, message = pcall(handler)
      assert.is_truthy(message:find "^nightshift: again", message)
    end)
  end)

  describe("an error value", function()
    it("becomes text that can be stored", function()
      assert.equal("boom", job.error_text "boom")
      assert.equal("failed without an error value", job.error_text(nil))
      assert.equal('{"code":5}', job.error_text { code = 5 })
      assert.equal("42", job.error_text(42))
      assert.equal("text of it", job.error_text(setmetatable({}, { __tostring = function() return "text of it" end })))
      assert.equal("(table whose __tostring fails)",
        job.error_text(setmetatable({}, { __tostring = function() error "no" end })))
      assert.is_truthy(job.error_text({ print }):find "^table: ")
      assert.equal("a?b", job.error_text "a\xffb")
    end)

    it("is cut when huge, on a whole character", function()
      local text = job.error_text(("ä"):rep(100000))
      assert.is_true(#text < 66000)
      assert.is_truthy(utf8.len(text))
      assert.is_truthy(text:find("(200000 bytes)", 1, true))
    end)
  end)

  describe("spawn", function()
    it("gives ids at once and hands the children over with the verdict", function()
      local j, seen = new()
      local first = j:spawn("fetch", { 1 })
      local second = j:spawn("fetch", nil, { queue = "slow", delay = "1m" })
      assert.same({ 101, 102 }, { first, second })
      assert.same({}, seen.verdicts)
      j:ack()
      assert.same({
        { id = 101, name = "fetch", queue = "mail", json = "[1]" },
        { id = 102, name = "fetch", queue = "slow", json = "null", delay = 60000000 },
      }, seen.verdicts[1].children)
    end)

    it("is refused on a settled job", function()
      local j = new()
      j:ack()
      assert.error_matches(function() j:spawn "late" end, "job 7 is already settled")
    end)

    it("tells why there is no id", function()
      local j = new()
      j._backend.take_id = function() return nil, "server away", "GONE" end
      assert.same({ nil, "server away", "GONE" }, { j:spawn "x" })
      assert.is_nil(j._children)
    end)
  end)
end)

-- job:spawn answers nil when no id is to be had. A handler that did not look at
-- the answer ended its run as if it had the child.
describe("a run whose child could not be spawned", function()
  it("does not end with a verdict that would bring it", function()
    local p = proxy.start(db.shared())
    local handle <close> = assert(nightshift.open(p:url((db.fresh()))))
    local q = assert(handle:queue "q")
    local id = assert(q:push "parent")
    local job = assert(q:claim())
    p:tell "refuse"
    p:tell "close"
    local child, message, code = true, nil, nil
    for _ = 1, 200 do -- those of the block are had without the server
      child, message, code = job:spawn "child"
      if not child then break end
    end
    assert.is_nil(child)
    assert.equal("GONE", code, message)
    p:tell "admit"
    for _, verb in ipairs { "ack", "again", "wait" } do
      local ok, why, what = job[verb](job)
      assert.is_nil(ok)
      assert.matches("a child was not spawned", why)
      assert.equal("GONE", what)
    end
    assert(job:fail "no child")
    assert.equal("scheduled", handle:job(id).state)
  end)
end)

-- A child kept a reference to the payload and the options that it was spawned with, and was
-- written as they were at the verdict. Three children spawned in a loop with one table were
-- three times the last. Options that were changed to something bad meanwhile broke the verdict
-- with an error of the interpreter. And the job could not even be given back.
describe("a child", function()
  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  local function children()
    return assert(handle:execute [[SELECT payload, 255 - rank AS priority FROM nightshift_job
    WHERE parent > 0 ORDER BY id]])
  end

  local EXPECTED = {
    { payload = '{"n":1}', priority = 1 }, { payload = '{"n":2}', priority = 2 }, { payload = '{"n":3}', priority = 3 },
  }

  it("is what it was when it was spawned", function()
    assert(q:push "parent")
    local job = assert(q:claim())
    local payload, options = {}, {}
    for i = 1, 3 do
      payload.n, options.priority = i, i
      assert(job:spawn("child", payload, options))
    end
    assert(job:ack())
    assert.same(EXPECTED, children())
  end)

  it("is the same in a handler, which waits for it", function()
    assert(handle:queue "default":push "parent")
    local h = host.start(url, [[return {
      parent = function(job)
        if job.phase > 0 then return true end
        local payload, options = {}, { queue = "elsewhere" }
        for i = 1, 3 do
          payload.n, options.priority = i, i
          job:spawn("child", payload, options)
        end
        return job:wait()
      end,
    }]], { "--queues", "default=1" })
    eventually(function() return #children() == 3 end)
    assert.same(EXPECTED, children())
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("does not feel what is made of its tables later", function()
    assert(q:push "parent")
    local job = assert(q:claim())
    local payload, options = { n = 1 }, { priority = 1 }
    assert(job:spawn("child", payload, options))
    options.priority, options.nonsense, payload.f = 999, true, print
    assert(job:ack())
    assert.same({ EXPECTED[1] }, children())
  end)

  it("whose payload is too large keeps its parent from being done", function()
    assert(q:push "parent")
    local job = assert(q:claim())
    assert(job:spawn("child", ("x"):rep(3 << 20)))
    local ok, message, code = job:ack()
    assert.same({ nil, "TOO_BIG" }, { ok, code })
    assert.matches("payload: 3145730 bytes of JSON, the limit is 1048576", message, 1, true)
    assert(job:release())
    assert.same({}, children())
  end)
end)

-- A handler that returned nil and a message, as Lua's own functions and all verbs of the
-- library do when they fail, was done. Its failure was lost without a trace.
describe("returns:", function()
  local handle, q, url

  with_database(function(opened, _, at)
    handle, url = opened, at
    q = handle:queue "default"
  end)

  local SCRIPT = [[
local nightshift = require "nightshift"
return {
  said = function() return nil, "remote said 503", "MINE" end,
  verb = function(job) return job:db():execute "SELEC 1" end,
  child = function(job)
    job:spawn("no", 1)
    return nil, { status = 503 }
  end,
  no = function() return false end,
  caught = function() return pcall(error, "smtp down", 0) end,
  joined = function(job)
    return job:db():transaction(function(tx)
      tx:execute("INSERT INTO paid VALUES (?)", job.id)
      return tx:ack(job, job.payload)
    end)
  end,
  nothing = function() return nil end,
  nils = function() return nil, nil end,
  two = function() return "result", "more" end,
  again = function(job)
    job:again(3600)
    return nil, "the verdict counts"
  end,
  ["op"] = nightshift.background { start = function() return nil, "cannot start" end, poll = function() end },
  ["slow"] = nightshift.background {
    start = function() return 1 end,
    poll = function() return nil, "cannot poll" end, max_attempts = 1,
  },
}
]]

  local function outcome(id)
    local info = assert(handle:job(id))
    return { info.state, info.attempts, info.error, info.result }
  end

  it("nil and a message from a handler are a failure, and false is a result", function()
    local ids = {}
    for _, name in ipairs { "said", "verb", "child", "no", "caught", "nothing", "nils", "two", "op" } do
      ids[name] = assert(q:push(name, nil, { max_attempts = 1 }))
    end
    ids.again, ids.slow = assert(q:push "again"), assert(q:push "slow")
    assert.equal(0, (host.drain(url, SCRIPT)))
    assert.same({ "dead", 1, "remote said 503" }, outcome(ids.said))
    assert.same({ "dead", 1, '{"status":503}' }, outcome(ids.child))
    assert.same({ "dead", 1, "cannot start" }, outcome(ids.op))
    assert.matches("1064", outcome(ids.verb)[3])
    assert.same({ "done", 0, nil, false }, outcome(ids.no))
    assert.same({ "dead", 1, "smtp down" }, outcome(ids.caught))
    assert.same({ "done", 0 }, outcome(ids.nothing))
    assert.same({ "done", 0 }, outcome(ids.nils))
    assert.same({ "done", 0, nil, "result" }, outcome(ids.two))
    assert.equal("scheduled", outcome(ids.again)[1])
    assert.same({}, handle:jobs { name = "op:poll" })
    assert.same({}, handle:jobs { name = "no", state = "dead" })
    local poll = assert(handle:jobs { name = "slow:poll" })[1]
    assert.same({ "dead", 1, "cannot poll" }, outcome(poll.id))
  end)

  describe("nil and a message of a poll's last look", function()
    local function last_poll(def)
      local polls = background.expand("op", nightshift.background(def))["op:poll"]
      assert(q:push("op:poll", { operation = 1 }, { deadline = 0, max_polls = 5 }))
      local polling = assert(q:claim())
      local result = polls(polling)
      if not polling._settled then assert(polling:ack(result)) end
      return outcome(polling.id)
    end

    it("are no answer in it: on_timeout says what then", function()
      assert.same({ "done", 0, nil, "gave up" }, last_poll {
        start = print, poll = function() return nil, "not there" end, on_timeout = function() return "gave up" end,
        deadline = 60,
      })
    end)

    it("are its end when on_timeout returns them", function()
      local said = last_poll {
        start = print, poll = function(job) return job:again() end,
        on_timeout = function() return nil, "nobody knows" end, deadline = 60,
      }
      assert.same({ "dead", "nobody knows" }, { said[1], said[3] })
    end)
  end)

  it("`nightshift run` says the same", function()
    local exit, out = proc.nightshift { "run", "said", "--script", fixture.file("jobs.lua", SCRIPT) }
    assert.same({ 1, "fail: remote said 503\n" }, { exit, out })
    exit, out = proc.nightshift { "run", "no", "--script", fixture.file("jobs.lua", SCRIPT) }
    assert.same({ 0, "ack false\n" }, { exit, out })
    exit, out = proc.nightshift { "run", "caught", "--script", fixture.file("jobs.lua", SCRIPT) }
    assert.same({ 1, "fail: smtp down\n" }, { exit, out })
  end)

  it("`nightshift run` takes tx:ack as the verdict, once the transaction is committed", function()
    assert(handle:execute "CREATE TABLE paid (id BIGINT)")
    local script = fixture.file("jobs.lua", SCRIPT)
    local exit, out = proc.nightshift({ "run", "joined", '"euros"', "--script", script }, url)
    assert.same({ 0, 'ack "euros"\n' }, { exit, out })
    assert.equal(1, #handle:execute "SELECT id FROM paid")
    assert(handle:execute "DROP TABLE paid")
    exit, out = proc.nightshift({ "run", "joined", "1", "--script", script }, url)
    assert.equal(1, exit)
    assert.matches("^fail: .*paid' doesn't exist", out)
  end)
end)

-- An error that left the block of `local job <close> = q:claim()`, or a loop over q:jobs(),
-- gave its job back untouched. It ran 1,299 times in two seconds: no attempt spent, no error
-- kept, never dead. A loop that went on without a verdict kept all its jobs claimed.
describe("consumers:", function()
  local handle, q

  with_database(function(opened, queue)
    handle, q = opened, queue
  end)

  local function info(id)
    local job = assert(handle:job(id))
    return { job.state, job.attempts, job.error }
  end

  local function attempt(id)
    return handle:execute("SELECT kind, error FROM nightshift_attempt WHERE job_id = ?", id)[1]
  end

  describe("an error that leaves the block of a claim", function()
    it("is an attempt that failed, with its error and its back-off", function()
      local id = assert(q:push("a", nil, { max_attempts = 2, backoff = 0 }))
      for _ = 1, 2 do
        local ok, err = pcall(function()
          local job <close> = assert(q:claim { wait = 5 })
          assert.equal(id, job.id)
          error { code = 5 }
        end)
        assert.same({ false, { code = 5 } }, { ok, err })
      end
      assert.is_nil(q:claim())
      assert.same({ "dead", 2, '{"code":5}' }, info(id))
      assert.same({ kind = "failed", error = '{"code":5}' }, attempt(id))
    end)

    it("changes nothing of a job that has its verdict, or a handle that is closed", function()
      local id = assert(q:push "a")
      assert.is_false(pcall(function()
        local job <close> = assert(q:claim())
        assert(job:ack "r")
        error "too late"
      end))
      assert.same({ "done", 0 }, info(id))
      local other = assert(require "nightshift".open((require "spec.support.db".fresh())))
      assert(other:queue "q":push "a")
      assert.error_matches(function()
        local job <close> = assert(other:queue "q":claim())
        other:close()
        error(job.name .. " is over", 0)
      end, "a is over")
    end)

    it("gives the job back when nothing was wrong", function()
      local id = assert(q:push "a")
      do
        local job <close> = assert(q:claim())
        assert.equal(id, job.id)
      end
      assert.same({ "ready", 0 }, info(id))
    end)
  end)

  describe("a loop over q:jobs()", function()
    it("fails a job that it goes on without a verdict of", function()
      local ids = assert(q:push_many { { "a" }, { "b" } })
      local seen = 0
      for job in q:jobs() do
        seen = seen + 1
        if job.name == "b" then assert(job:ack()) end
      end
      assert.equal(2, seen)
      assert.same({ "scheduled", 1 }, { table.unpack(info(ids[1]), 1, 2) })
      assert.same({ kind = "failed", error = "no verdict" }, attempt(ids[1]))
      assert.same({ "done", 0 }, info(ids[2]))
    end)

    it("fails the job that an error leaves it with, and gives one back on break", function()
      local id = assert(q:push "a")
      for _ in q:jobs() do break end -- luacheck: ignore 512
      assert.same({ "ready", 0 }, info(id))
      assert.error_matches(function()
        for _ in q:jobs() do error("boom", 0) end
      end, "boom")
      assert.same({ "scheduled", 1 }, { table.unpack(info(id), 1, 2) })
      assert.equal("boom", attempt(id).error)
    end)

    it("does the same with rows of an adopted table", function()
      assert(handle:execute [[CREATE TABLE mails (id INT PRIMARY KEY AUTO_INCREMENT, state VARCHAR(20) NOT NULL,
      token VARCHAR(60) NULL, tries INT NOT NULL DEFAULT 0) ENGINE=InnoDB]])
      assert(handle:execute "INSERT INTO mails (state) VALUES ('new'), ('new')")
      local t = assert(handle:adopt { table = "mails", name = "mail.send", claimed_by = "token", attempts = "tries",
        max_attempts = 1,
        status = { column = "state", open = "new", done = "sent", failed = "failed", processing = "busy" } })
      local n = 0
      for job in t:jobs() do
        n = n + 1
        if n == 2 then assert(job:ack()) end
      end
      local states = {}
      for i, row in ipairs(assert(handle:execute "SELECT state FROM mails ORDER BY id")) do states[i] = row.state end
      table.sort(states)
      assert.same({ "failed", "sent" }, states)
    end)
  end)
end)

-- what brings a fresh job into each state; returns the claim if there is one
local reach = {
  ready = function() end,
  scheduled = function(q) q:claim():again(3600) end,
  running = function(q) return q:claim() end,
  done = function(q) q:claim():ack "r" end,
  dead = function(q) q:claim():discard "bad" end,
  cancelled = function(q, id) q._db:cancel(id) end,
  waiting = true, -- made by its parent, below
}

-- verb -> state before -> state after, or the code of the refusal
local laws = {
  cancel = { ready = "cancelled", scheduled = "cancelled", running = "cancelled", waiting = "cancelled",
    done = "STATE", dead = "STATE", cancelled = "STATE" },
  retry = { ready = "STATE", scheduled = "STATE", running = "STATE", waiting = "STATE",
    done = "ready", dead = "ready", cancelled = "ready" },
  run_now = { ready = "STATE", scheduled = "ready", running = "STATE", waiting = "STATE",
    done = "STATE", dead = "STATE", cancelled = "STATE" },
}

-- verdicts of a claim that holds, and of one that was lost to `cancel`
local endings = {
  ack = { call = function(job) return job:ack "r" end, after = "done" },
  fail = { call = function(job) return job:fail "e" end, after = "scheduled" },
  again = { call = function(job) return job:again(60) end, after = "scheduled" },
  discard = { call = function(job) return job:discard "no" end, after = "dead" },
  release = { call = function(job) return job:release() end, after = "ready" },
}

describe("the laws", function()
  local url, handle, q

  with_database(function(...)
    handle, q, url = ...
    q._db = q._db or handle
  end)

  local function bring(state)
    if state == "waiting" then
      assert(q:push("parent", 1))
      local parent = assert(q:claim())
      local child = parent:spawn("child", 1)
      assert(parent:again(3600))
      return child
    end
    local id = assert(q:push("job", 1))
    local claim = reach[state](q, id)
    return id, claim
  end

  for verb, row in pairs(laws) do
    for state, expected in pairs(row) do
      it(("%s of a %s job: %s"):format(verb, state, expected), function()
        local id = bring(state)
        assert.equal(state, assert(handle:job(id)).state)
        local ok, message, code = handle[verb](handle, id)
        if expected == expected:upper() then
          assert.is_nil(ok)
          assert.equal(expected, code)
          assert.is_truthy(message:find(tostring(id), 1, true))
          assert.equal(state, assert(handle:job(id)).state)
        else
          assert.is_truthy(ok, message)
          assert.equal(expected, assert(handle:job(id)).state)
        end
      end)
    end
    it(verb .. " of an id that never was: NOT_FOUND", function()
      assert.equal("NOT_FOUND", select(3, handle[verb](handle, 4711)))
    end)
  end

  for name, verdict in pairs(endings) do
    it(("%s of a running job makes it %s, and a second verdict is STALE"):format(name, verdict.after), function()
      local id, job = bring "running"
      assert.is_truthy(verdict.call(job))
      assert.equal(verdict.after, assert(handle:job(id)).state)
      for _, again in pairs(endings) do assert.equal("STALE", select(3, again.call(job))) end
    end)

    it(name .. " of a claim that was cancelled meanwhile is STALE and changes nothing", function()
      local id, job = bring "running"
      local other <close> = assert(nightshift.open(url))
      assert(other:cancel(id))
      local child = job:spawn("child", 1)
      assert.equal("STALE", select(3, verdict.call(job)))
      assert.equal("cancelled", assert(handle:job(id)).state)
      assert.equal("NOT_FOUND", select(3, handle:job(child)))
    end)
  end

  it("a child is claimable when its parent is done, in the same commit", function()
    local _, job = bring "running"
    local child = job:spawn("child", { n = 1 }, { priority = 7 })
    assert.equal("NOT_FOUND", select(3, handle:job(child)))
    assert(job:ack())
    local claimed = assert(q:claim())
    assert.same({ child, job.id, 1, 7 }, { claimed.id, claimed.parent, claimed.payload.n, claimed.priority })
  end)

  it("a child spawned before an again waits for the parent's done", function()
    local _, job = bring "running"
    local child = job:spawn("child", 1)
    assert(job:again(0))
    assert.equal("waiting", assert(handle:job(child)).state)
    local back = assert(q:claim())
    assert.equal(job.id, back.id)
    assert.is_nil(q:claim())
    assert(back:ack())
    assert.equal(child, assert(q:claim()).id)
  end)

  it("a waiting child is cancelled when its parent dies", function()
    local _, job = bring "running"
    local child = job:spawn("child", 1)
    assert(job:again(0))
    assert(q:claim()):discard "no"
    local info = assert(handle:job(child))
    assert.same({ "cancelled", "dependency" }, { info.state, info.reason })
  end)

  it("children of a failed run are dropped", function()
    local _, job = bring "running"
    local child = job:spawn("child", 1)
    assert(job:fail("no", { retry_in = 0 }))
    assert.equal("NOT_FOUND", select(3, handle:job(child)))
  end)

  it("a job that fails too often is dead, with every attempt on record", function()
    local id = assert(q:push("job", 1, { max_attempts = 3 }))
    for i = 1, 3 do
      local job = assert(q:claim())
      assert.equal(i, job.attempt)
      assert(job:fail("error " .. i, { retry_in = 0 }))
    end
    local info = assert(handle:job(id))
    assert.same({ "dead", "failed", "error 3" }, { info.state, info.reason, info.error })
    local rows = assert(handle:execute("SELECT error FROM nightshift_attempt WHERE job_id = ? ORDER BY run", id))
    assert.same({ "error 1", "error 2", "error 3" }, { rows[1].error, rows[2].error, rows[3].error })
  end)

  it("a poll past its deadline or its number is dead, reason poll deadline", function()
    local late = assert(q:push("late", 1, { deadline = 2 }))
    local many = assert(q:push("many", 1, { max_polls = 2 }))
    for job in q:jobs { wait = 4 } do
      if job.name == "late" then job:again(2.5, { n = job.polls }) else job:again(0) end
    end
    assert.equal("poll deadline", assert(handle:job(late)).reason)
    assert.equal("poll deadline", assert(handle:job(many)).reason)
    assert.equal(3, assert(handle:job(many)).polls)
  end)

  it("a job sinks with each return that is not its end, and release costs nothing", function()
    assert(q:push("job", 1, { priority = 20 }))
    local seen = {}
    for _, verb in ipairs { "again", "release", "fail", "again", "again" } do
      local job = assert(q:claim { wait = 20 })
      seen[#seen + 1] = job.priority
      if verb == "again" then job:again(0)
      elseif verb == "release" then job:release()
      else job:fail("e", { retry_in = 0 }) end
    end
    seen[#seen + 1] = assert(q:claim { wait = 20 }).priority
    assert.same({ 20, 12, 12, 4, 0, 0 }, seen)
  end)
end)

-- ----- background jobs

-- nightshift.background: the checks of a definition, and its two handlers.
describe("definitions:", function()
  local job = require "nightshift.job"

  local function nothing() end

  local function define(extra)
    local def = { start = nothing, poll = nothing }
    for key, value in pairs(extra or {}) do def[key] = value end
    return nightshift.background(def)
  end

  local function new_job(name, payload, polls)
    local verdicts, last_id = {}, 0
    local backend = {
      settle = function(_, verdict)
        verdicts[#verdicts + 1] = verdict
        return verdict
      end,
      take_id = function()
        last_id = last_id + 1
        return last_id
      end,
    }
    return job.new({ id = 50, run = 1, name = name, queue = "q", payload = payload, attempts = 0, polls = polls or 0 },
      backend), verdicts
  end

  describe("a background definition", function()
    it("is marked and has defaults", function()
      local def = define()
      assert.is_true(background.is(def))
      assert.is_false(background.is { start = nothing, poll = nothing })
      assert.is_false(background.is(nothing))
      assert.equal(5, def.every)
      assert.equal(1, def.growth)
    end)

    it("reads durations as seconds or texts", function()
      local def = define { every = "500ms", max_every = "1m", deadline = "2h", max_polls = 9 }
      assert.equal(0.5, def.every)
      assert.equal(60, def.max_every)
      assert.equal(7200, def.deadline)
      assert.equal(9, def.max_polls)
    end)

    it("polls no slower than its deadline and its longest pause want, unless told", function()
      assert.equal(2, define { deadline = 2 }.every)
      assert.equal(3, define { max_every = 3, deadline = "1h" }.every)
      assert.equal(0.1, define().jitter)
    end)

    it("does not keep the caller's table", function()
      local given = { start = nothing, poll = nothing }
      nightshift.background(given)
      assert.is_nil(given.__nightshift_background)
    end)

    it("raises at the definition and names the bad key", function()
      local cases = {
        { { start = nothing }, "'poll' is missing" },
        { { poll = nothing }, "'start' is missing" },
        { { start = nothing, poll = "x" }, "poll must be a function, got string" },
        { { start = nothing, poll = nothing, evry = 5 }, "unknown option 'evry'; did you mean 'every'" },
        { { start = nothing, poll = nothing, every = 0 }, "every must be more than zero" },
        { { start = nothing, poll = nothing, every = "often" }, "every: bad duration 'often'" },
        { { start = nothing, poll = nothing, every = true }, "every must be seconds or a text" },
        { { start = nothing, poll = nothing, growth = 0.5 }, "growth must be at least 1, got 0.5" },
        { { start = nothing, poll = nothing, growth = math.huge }, "growth must be at least 1" },
        { { start = nothing, poll = nothing, growth = "2" }, "growth must be a number, got string" },
        { { start = nothing, poll = nothing, max_every = -1 }, "max_every" },
        { { start = nothing, poll = nothing, every = 9, max_every = 8 },
          "max_every (8 s) is shorter than every (9 s)" },
        { { start = nothing, poll = nothing, every = 6, deadline = 3 }, "deadline (3 s) is shorter than every (6 s)" },
        { { start = nothing, poll = nothing, jitter = 1.5 }, "jitter must be from 0 to 1, got 1.5" },
        { { start = nothing, poll = nothing, jitter = -0.1 }, "jitter must be from 0 to 1, got -0.1" },
        { { start = nothing, poll = nothing, jitter = 0 / 0 }, "jitter must be from 0 to 1" },
        { { start = nothing, poll = nothing, jitter = "10%" }, "jitter must be a number, got string" },
        { { start = nothing, poll = nothing, on_timeout = nothing }, "'on_timeout' needs a deadline or max_polls" },
        { { start = nothing, poll = nothing, on_timeout = 5, deadline = 9 }, "on_timeout must be a function" },
        { { start = nothing, poll = nothing, deadline = 0 }, "deadline must be more than zero" },
        { { start = nothing, poll = nothing, max_polls = 0 }, "max_polls must be a whole number from 1" },
        { { start = nothing, poll = nothing, max_polls = 1.5 }, "max_polls must be a whole number" },
        { "start", "background wants a table, got string" },
      }
      for _, case in ipairs(cases) do
        local ok, message = pcall(nightshift.background, case[1])
        assert.is_false(ok)
        assert.is_truthy(message:find(case[2], 1, true), message)
      end
    end)
  end)

  describe("the pace of polls", function()
    it("is even without growth", function()
      local def = define { every = 5 }
      assert.same({ 5.0, 5.0, 5.0 }, { background.pace(def, 0), background.pace(def, 1), background.pace(def,
        1000000) })
    end)

    it("grows up to max_every, however many polls there were", function()
      local def = define { every = 2, growth = 1.5, max_every = 10 }
      assert.same({ 2.0, 3.0, 4.5 }, { background.pace(def, 0), background.pace(def, 1), background.pace(def, 2) })
      assert.equal(10, background.pace(def, 50))
      assert.equal(10, background.pace(def, 1000000))
    end)

    it("has an hour as the longest pause unless told", function()
      assert.equal(3600, background.pace(define { every = 1, growth = 10 }, 100))
      assert.equal(7200, background.pace(define { every = "2h", growth = 10 }, 100))
    end)
  end)

  describe("the starting handler", function()
    it("ends with the operation and spawns the polling child", function()
      local def = define {
        start = function(j) return { pid = j.payload.n } end,
        deadline = "2h", max_polls = 7,
      }
      local handlers = background.expand("video.encode", def)
      local j, verdicts = new_job("video.encode", { n = 4 })
      assert.same({ pid = 4 }, handlers["video.encode"](j))
      assert.same({}, verdicts)
      local child = j._children[1]
      assert.same({ payload = { n = 4 }, operation = { pid = 4 } }, nightshift.decode(child.json))
      assert.same({ 1, 1, "video.encode:poll", 7200000000, 7 },
        { #j._children, child.id, child.name, child.deadline, child.max_polls })
    end)

    it("spawns nothing when it raises or gives a verdict of its own", function()
      local raising = background.expand("x", define { start = function() error "no" end }).x
      local j = new_job "x"
      assert.is_false(pcall(raising, j))
      assert.is_nil(j._children)

      local busy = background.expand("x", define { start = function(k) return k:again(3) end }).x
      local k, verdicts = new_job "x"
      assert.equal("again", busy(k).kind)
      assert.equal(1, #verdicts)
      assert.is_nil(k._children)
    end)

    it("fails when the operation cannot be stored", function()
      local start = background.expand("x", define { start = function() return io.stdout end }).x
      assert.error_matches(function() start(new_job "x") end, "payload%.operation: cannot encode")
    end)
  end)

  describe("the polling handler", function()
    local wrapped = { payload = { n = 4 }, operation = { pid = 9 } }

    it("sees the original payload and the operation", function()
      local seen
      local poll = background.expand("v", define {
        poll = function(j, op)
          seen = { j.payload, op }
          return "result"
        end,
      })["v:poll"]
      assert.equal("result", poll(new_job("v:poll", wrapped)))
      assert.same({ { n = 4 }, { pid = 9 } }, seen)
    end)

    it("comes back at its pace when `again` names no delay", function()
      local def = define { poll = function(j) return j:again() end, every = 2, growth = 2, max_every = 60, jitter = 0 }
      local poll = background.expand("v", def)["v:poll"]
      for polls, delay in pairs { [0] = 2, 4, 8, 16, 32, 60 } do
        assert.equal(delay, poll(new_job("v:poll", wrapped, polls)).delay)
      end
    end)

    it("comes back when it says, if it names a delay", function()
      local def = define { poll = function(j) return j:again(1.5, "page 3") end }
      local verdict = background.expand("v", def)["v:poll"](new_job("v:poll", wrapped))
      assert.equal(1.5, verdict.delay)
      assert.equal("page 3", verdict.state)
    end)

    it("keeps the pace with a state alone", function()
      local def = define { poll = function(j) return j:again(nil, { page = 3 }) end, every = 7, jitter = 0 }
      local verdict = background.expand("v", def)["v:poll"](new_job("v:poll", wrapped))
      assert.equal(7, verdict.delay)
      assert.same({ page = 3 }, verdict.state)
    end)

    it("spreads its pauses by the jitter, evenly to both sides", function()
      local def = define { poll = function(j) return j:again() end, every = 10, jitter = 0.2 }
      local poll = background.expand("v", def)["v:poll"]
      local least, most, sum = math.huge, 0, 0
      for _ = 1, 2000 do
        local delay = poll(new_job("v:poll", wrapped)).delay
        least, most, sum = math.min(least, delay), math.max(most, delay), sum + delay
      end
      assert.is_true(least >= 8 and least < 8.2 and most <= 12 and most > 11.8)
      assert.is_true(math.abs(sum / 2000 - 10) < 0.2)
    end)

    --- What a poll gets for a Retry-After: the least and most of many.
    local function asked(options, retry_after, date)
      local def = define(options)
      function def.poll(j) return j:again { retry_after = retry_after, date = date } end
      local poll = background.expand("v", def)["v:poll"]
      local least, most = math.huge, 0
      for _ = 1, 300 do
        local delay = poll(new_job("v:poll", wrapped)).delay
        least, most = math.min(least, delay), math.max(most, delay)
      end
      return least, most
    end

    it("comes back when a server has asked for it, never sooner, a little later", function()
      local least, most = asked({ every = 5, jitter = 0.5 }, "120")
      assert.is_true(least >= 120 and least < 125 and most <= 180 and most > 170)
      least, most = asked({ every = 5, jitter = 0 }, "Fri, 31 Dec 1999 23:59:59 GMT", "Fri, 31 Dec 1999 23:59:29 GMT")
      assert.same({ 30, 30 }, { least, most })
    end)

    it("keeps its pace when a server's wish is unreadable, and does not hurry when it is over", function()
      assert.same({ 5.0, 5.0 }, { asked({ jitter = 0 }, "soon") })
      assert.same({ 5.0, 5.0 }, { asked({ jitter = 0 }, nil) })
      assert.same({ 1, 1 }, { asked({ jitter = 0 }, "0") })
      assert.same({ 1, 1 }, { asked({ jitter = 0 }, "-30") })
      assert.same({ 1, 1 }, { asked({ jitter = 0 }, "Sun, 06 Nov 1994 08:49:37 GMT") })
      assert.same({ 0.25, 0.25 }, { asked({ jitter = 0, every = 0.25 }, "0") })
    end)

    it("says what is wrong with a payload that no start made", function()
      local poll = background.expand("v", define())["v:poll"]
      assert.error_matches(function() poll(new_job("v:poll", 5)) end,
        "v:poll: the payload of a poll is {payload = …, operation = …}")
    end)
  end)

  describe("on_timeout", function()
    local wrapped = { payload = { n = 4 }, operation = { pid = 9 } }
    local SECOND = 1000000

    --- A run of a poll: what the handler returned, its verdicts.
    local function run(def, fields)
      def.poll = def.poll or function(j) return j:again() end
      local j, verdicts = new_job("v:poll", wrapped, fields.polls)
      for key, value in pairs(fields) do j[key] = value end
      return background.expand("v", define(def))["v:poll"](j), verdicts
    end

    local late = { due = 50 * SECOND, deadline = 50 * SECOND }
    local spent = { due = 1, polls = 3, max_polls = 3 }

    it("is called in place of the last not yet, with the operation", function()
      for _, fields in ipairs { late, spent } do
        local seen
        local result, verdicts = run({ deadline = 50, on_timeout = function(j, op)
          seen = { j.payload, op }
          return "partly"
        end }, fields)
        assert.same({ { n = 4 }, { pid = 9 } }, seen)
        assert.equal("partly", result)
        assert.same({}, verdicts)
      end
    end)

    it("is not called before, nor when the poll has another answer", function()
      local def = { deadline = 50, max_polls = 3, every = 1, jitter = 0, on_timeout = function() error "called" end }
      local early = { due = 49 * SECOND, deadline = 50 * SECOND, polls = 2, max_polls = 3 }
      assert.same({ kind = "again", delay = 1, go_on = 1 }, (run(def, early)))
      def.poll = function() return "ready" end
      assert.equal("ready", (run(def, late)))
      def.poll = function(j) return j:fail "no" end
      assert.equal("fail", run(def, early).kind)
      assert.equal("fail", run(def, spent).kind)
    end)

    it("is called when the look at the deadline fails", function()
      local logged
      for _, poll in ipairs {
        function() error "503" end, function(j) return j:fail "503" end, function(j) j:fail "503" error "503" end,
      } do
        local result, verdicts = run({ deadline = 50, poll = poll, on_timeout = function(_, op) return op end },
          { due = late.due, deadline = late.deadline, log = function(_, text) logged = text end,
            cancelled = function() return false end })
        assert.same({ { pid = 9 }, {} }, { result, verdicts })
        assert.matches("503", logged)
      end
    end)

    it("may give a verdict of its own", function()
      for verb, kind in pairs { discard = "discard", ack = "ack", release = "release" } do
        local _, verdicts = run({ deadline = 50, on_timeout = function(j) return j[verb](j) end }, late)
        assert.same({ kind }, { verdicts[1].kind, verdicts[2] and verdicts[2].kind })
      end
    end)

    it("ends the poll as dead when it raises, fails or says not yet", function()
      local cases = {
        { function() error "no luck" end, "no luck" },
        { function(j) return j:fail "no luck" end, "^no luck$" },
        { function(j) j:fail "no luck" j:ack() end, "^no luck$" },
      }
      for _, case in ipairs(cases) do
        local _, verdicts = run({ deadline = 50, on_timeout = case[1] }, late)
        assert.equal(1, #verdicts)
        assert.equal("again", verdicts[1].kind)
        assert.is_nil(verdicts[1].go_on)
        assert.is_truthy(verdicts[1].error:find(case[2]), verdicts[1].error)
      end
      local _, verdicts = run({ deadline = 50, on_timeout = function(j) return j:again(30) end }, late)
      assert.same({ { kind = "again", delay = 30 } }, verdicts)
    end)

    it("leaves out what the poll had spawned", function()
      local spawned
      run({ deadline = 50, poll = function(j)
        j:spawn("child", 1)
        return j:again()
      end, on_timeout = function(j) spawned = j._children or "none" end }, late)
      assert.equal("none", spawned)
    end)
  end)
end)

-- nightshift.background{wait = true}: a wait for the job is a wait for its operation,
-- and sees the operation's result.
describe("a background job that waits", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  -- Runs all there is with an operation of these options; polls are fast.
  local function work(options, more)
    local status, log = host.drain(url, ([[
    local nightshift = require "nightshift"
    return {
      encode = nightshift.background { wait = true, every = 0.01, start = function(job) return job.payload end, %s },
      %s
    }]]):format(options, more or ""))
    assert.equal(0, status, log)
  end

  local TWICE = [[poll = function(job, op)
  if job.polls < 2 then return job:again() end
  return { op = op }
end]]

  it("is done when its operation is, with its result", function()
    local id = assert(q:push("encode", "film"))
    work(TWICE)
    local info = handle:job(id)
    assert.same({ "done", { op = "film" } }, { info.state, info.result })
  end)

  it("has its result in job.results of a parent, and is what `after` waits for", function()
    local id = assert(q:push "parent")
    work(TWICE, [[
      parent = function(job)
        if job.phase == 0 then
          local a, b = job:spawn("encode", 1), job:spawn("encode", 2)
          job:spawn("join", { a, b }, { after = { a, b } })
          return job:wait()
        end
        return { job.results[1].result.op, job.results[2].result.op, job.results[3].result }
      end,
      join = function(job)
        local states = {}
        for i, other in ipairs(job.payload) do states[i] = job:db():job(other).result.op end
        return states
      end,]])
    assert.same({ 1, 2, { 1, 2 } }, handle:job(id).result)
  end)

  it("is dead when its operation fails, with the error", function()
    local id = assert(q:push("encode", "film"))
    work [[max_attempts = 1, poll = function() error("no picture", 0) end]]
    local info = handle:job(id)
    assert.same({ "dead", "discarded" }, { info.state, info.reason })
    assert.matches("^no picture", info.error)
    local late = assert(q:push("encode", "film"))
    work [[max_polls = 1, poll = function(job) return job:again() end]]
    assert.same({ "dead", "poll deadline" }, { handle:job(late).state, handle:job(late).error })
  end)

  it("starts another operation when it is retried", function()
    local id = assert(q:push("encode", "film"))
    work [[poll = function(job) return job:discard "no picture" end]]
    assert.equal("dead", handle:job(id).state)
    assert(handle:retry(id))
    work(TWICE)
    assert.same({ "done", { op = "film" } }, { handle:job(id).state, handle:job(id).result })
  end)

  it("waits for its operation again when its tree is retried", function()
    local id = assert(q:push("encode", "film"))
    work [[poll = function(job) return job:discard "no picture" end]]
    assert.equal("dead", handle:job(id).state)
    assert.equal(2, handle:retry(id, { tree = true }))
    assert.equal("waiting", handle:job(id).state)
    work(TWICE)
    assert.same({ "done", { op = "film" } }, { handle:job(id).state, handle:job(id).result })
  end)

  it("may wait for a signal before it starts", function()
    local id = assert(q:push("encode", "film"))
    assert(handle:signal(id, "yes", "approved"))
    work([[start = function(job)
      if job.phase == 0 then return job:wait { signal = "approved" } end
      return job.signal
    end, ]] .. TWICE)
    assert.same({ "done", { op = "yes" } }, { handle:job(id).state, handle:job(id).result })
  end)
end)

-- When no id was to be had for the polling child, a background job was done without one. The
-- operation had started and it was never asked for again.
describe("a background job that cannot spawn its poll", function()
  local job = require "nightshift.job"

  it("fails, and is tried again", function()
    local definition = nightshift.background { start = function() return "op" end, poll = function() end }
    local backend = { take_id = function() return nil, "the server is away", "GONE" end }
    local parent = job.new({ id = 1, run = 1, name = "encode", queue = "q", attempts = 0 }, backend)
    assert.error_matches(function() background.expand("encode", definition).encode(parent) end, "the server is away")
  end)
end)

-- A poll of nightshift.background that has only a deadline was said to be one
-- "of at most 1000000000".
it("a poll with a deadline and no max_polls is said to have no more than that", function()
  local handlers = require "nightshift.background".expand("op", nightshift.background {
    start = function() return 1 end,
    poll = function(job) return job:again() end,
    every = 60, deadline = "2h",
  })

  local handle <close> = assert(nightshift.open((db.fresh())))
  local q = handle:queue "q"
  assert(q:push "op")
  local job = assert(q:claim())
  assert(job:ack(handlers[job.name](job)))
  local polling = assert(q:claim())
  handlers[polling.name](polling)
  local text = assert(handle:why(polling.id))
  assert.matches('having said "not yet" 1 time; its deadline is in 1 h 59 min', text, 1, true)
end)
