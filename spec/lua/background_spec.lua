-- nightshift.background: the checks of a definition, its two handlers, and jobs that wait for
-- the operation.

local background = require "nightshift.background"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

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
