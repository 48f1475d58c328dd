-- The job object, without a database and with one: verbs, children, errors that leave a block.
-- The laws: every state of a job × every verb, allowed or refused, and the state after. One table:
-- a change that adds a state or a verb adds its row or column there.

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
local verdicts = {
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

  for name, verdict in pairs(verdicts) do
    it(("%s of a running job makes it %s, and a second verdict is STALE"):format(name, verdict.after), function()
      local id, job = bring "running"
      assert.is_truthy(verdict.call(job))
      assert.equal(verdict.after, assert(handle:job(id)).state)
      for _, again in pairs(verdicts) do assert.equal("STALE", select(3, again.call(job))) end
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
