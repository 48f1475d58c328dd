-- The job object without a database: a backend that writes down what it gets.

local job = require "nightshift.job"
local nightshift = require "nightshift"

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
      { "again", { { retry_after = 1.5, state = 4 } }, { kind = "again", delay = 1.5, state = 4, asked = true } },
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
      local asked = case[3] == nil or nil
      assert.same({ kind = "again", delay = case[2], state = case[1].state, asked = asked }, seen.verdicts[1], i)
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
