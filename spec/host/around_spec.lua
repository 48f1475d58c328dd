-- What goes around handlers: checks of payloads, wrappers, pauses, hooks, verdicts that are raised,
-- and the end of the host.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

describe("around a handler:", function()
  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  local function drain(script, args) return host.drain(url, script, args) end

  it("check ends jobs with payloads that it refuses, before anything runs", function()
    local ids = {}
    for i, payload in ipairs { { to = "a" }, {}, { to = 5 }, { to = "raise" }, { to = "silent" } } do
      ids[i] = q:push("m", payload)
    end
    drain [[return { m = {
      check = function(p)
        if p.to == "silent" then return end
        if p.to == "raise" then error("so not") end
        if p.to == nil then return nil, "no address" end
        return type(p.to) == "string"
      end,
      run = function(job) return "ran" end,
    } }]]
    local jobs = {}
    for i, id in ipairs(ids) do jobs[i] = handle:job(id) end
    assert.same({ "done", "dead", "dead", "dead", "done" },
      { jobs[1].state, jobs[2].state, jobs[3].state, jobs[4].state, jobs[5].state })
    assert.same({ "discarded", "payload refused: no address" }, { jobs[2].reason, jobs[2].error })
    assert.equal("payload refused: its check says false", jobs[3].error)
    assert.matches("payload refused: .*so not", jobs[4].error)
  end)

  it("around is called in the handler's place", function()
    local id = q:push("m", 5)
    local failed = q:push("m", 6, { max_attempts = 1 })
    drain [[return { m = {
      around = function(job, run) return "<" .. assert(run(job)) .. ">" end,
      run = function(job) if job.payload == 6 then return nil, "no" end return job.payload end,
    } }]]
    assert.equal("<5>", handle:job(id).result)
    assert.matches("no", handle:job(failed).error)
  end)

  it("backoff says when the next attempt comes", function()
    local fn, text = q:push "f", q:push("t", nil, { backoff = 500 })
    local told = q:push "r"
    drain [[return {
      f = { backoff = function(n, err) return err:find "no" and 100 * n end, run = function() return nil, "no" end },
      t = { backoff = "2m", run = function() return nil, "no" end },
      r = { backoff = 7, run = function(job) return job:fail("x", { retry_in = 1000 }) end },
    }]]
    local now = handle:execute "SELECT UNIX_TIMESTAMP(NOW(6)) AS t"[1].t
    local function wait(id) return handle:job(id).due - now end
    assert.is_true(wait(fn) > 90 - proc.limit(5) and wait(fn) <= 100)
    assert.is_true(wait(text) > 96 - proc.limit(5) and wait(text) <= 144)
    assert.is_true(wait(told) > 900)
  end)

  it("a backoff that fails leaves the job its own", function()
    local id = q:push("f", nil, { backoff = 100 })
    local _, log = drain [[return {
      f = { backoff = function() error "oh" end, run = function() return nil, "no" end } }]]
    assert.equal("scheduled", handle:job(id).state)
    assert.matches("worker.hook_failed pid=%d+ on=backoff", log)
    assert.matches("oh", log)
  end)

  it("an error in a hook changes nothing", function()
    q:push "ok"
    local _, log = drain [[
      require "nightshift".on("job.done", function() error "oh" end)
      return { ok = function() return "fine" end }]]
    assert.equal("done", handle:jobs { name = "ok" }[1].state)
    assert.matches("worker.hook_failed.*oh", log)
  end)

  it("max_attempts and timeout of a handler count where the push says nothing", function()
    local few, more, said = q:push "few", q:push "more", q:push("few", nil, { max_attempts = 4 })
    local slow, long = q:push "slow", q:push("slow", nil, { timeout = 30 })
    local stuck = q:push "stuck"
    drain([[
      local sleep = require "nightshift.core".sleep
      return {
        few = { max_attempts = 2, backoff = function() return 0.01 end, run = function() return nil, "no" end },
        more = { max_attempts = 12, backoff = function() return 0.01 end, run = function() return nil, "no" end },
        slow = { timeout = "300ms", max_attempts = 1, run = function() sleep(0.9) return "slow" end },
        stuck = { timeout = 0.2, max_attempts = 1, run = function() os.execute "exec sleep 60" end },
      }]], { "--drain-within", "1s", "--workers", "5" })
    local function of(id)
      local job = handle:job(id)
      return { job.state, job.attempts, job.max_attempts }
    end
    assert.same({ "dead", 2, 2 }, of(few))
    assert.same({ "dead", 12, 12 }, of(more))
    assert.same({ "dead", 4, 4 }, of(said))
    assert.same({ "dead", 1, 1 }, of(slow))
    assert.matches("timeout after 0.3 s", handle:job(slow).error)
    assert.same({ "dead", 1, 1 }, of(stuck))
    assert.matches("timeout after 0.2 s", handle:job(stuck).error)
    assert.equal("slow", handle:job(long).result)
  end)

  it("children and schedules are pushed with the queue and priority of their handler", function()
    q:push "parent"
    drain [[return {
      parent = function(job) job:spawn "kid" job:spawn("kid", nil, { queue = "own", priority = 3 }) end,
      kid = { queue = "kids", priority = 7, max_attempts = 3, every = "1h", run = function(job) return nil, "no" end },
    }]]
    local kids = {}
    for i, job in ipairs(handle:jobs { name = "kid" }) do
      local info = handle:job(job.id)
      kids[i] = ("%s %d"):format(info.queue, info.max_attempts)
    end
    table.sort(kids)
    assert.same({ "kids 3", "own 3" }, kids)
    local row = handle:schedules()[1]
    assert.same({ "kids", { priority = 7, max_attempts = 3 } }, { row.queue, row.options })
  end)

  it("hooks run in order, beside the job", function()
    q:push "ok"
    q:push("no", nil, { max_attempts = 1 })
    q:push "bad"
    local h = host.start(url, [[
      local nightshift = require "nightshift"
      for _, event in ipairs { "job.start", "job.done", "job.failed", "job.dead" } do
        nightshift.on(event, function(job, a, b)
          print(("%s %s %s %s"):format(event, job.name, a, math.type(b) or tostring(b)))
          io.stdout:flush()
        end)
      end
      return {
        ok = function() return "fine" end,
        no = function() return nil, "broken" end,
        bad = function(job) return job:discard "never" end,
      }]])
    for _, line in ipairs { "job.start ok nil nil", "job.done ok fine float", "job.failed no broken float",
      "job.dead no failed broken", "job.dead bad discarded never" } do
      h:wait_line(line, 20)
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("discard and retry_in are raised from anywhere below", function()
    local gone, later, rolled = q:push "gone", q:push "later", q:push "rolled"
    drain [[
      local nightshift = require "nightshift"
      local function deep(fn, ...) local t = table.pack(fn(...)) return t end
      return {
        gone = function() deep(nightshift.discard, "no such user") return "never" end,
        later = function() deep(nightshift.retry_in, "10m", "greylisted") return "never" end,
        rolled = function(job)
          job:db():transaction(function(tx)
            tx:queue "q":push "child"
            nightshift.discard "half way"
          end)
        end,
      }]]
    local job = handle:job(gone)
    assert.same({ "dead", "discarded", "no such user" }, { job.state, job.reason, job.error })
    job = handle:job(later)
    assert.same({ "scheduled", 1 }, { job.state, job.attempts })
    assert.is_true(job.due - job.created > 590)
    assert.equal("discarded", handle:job(rolled).reason)
    assert.same({}, handle:jobs { name = "child" })
  end)

  it("they end jobs of programs, too", function()
    local gone, later = q:push "gone", q:push "later"
    for job in q:jobs() do
      local ok, err = pcall(function()
        local claimed <close> = job
        if claimed.name == "gone" then nightshift.discard "no" end
        nightshift.retry_in(1000)
      end)
      assert.is_false(ok)
      assert.is_string(tostring(err))
    end
    assert.equal("discarded", handle:job(gone).reason)
    assert.equal("scheduled", handle:job(later).state)
    local ERROR = "SELECT error FROM nightshift_attempt WHERE job_id = ?"
    assert.equal("to be retried in 1000 s", handle:execute(ERROR, later)[1].error)
  end)

  it("they are verdicts of nightshift run", function()
    local script = fixture.file("jobs.lua", [[local n = require "nightshift"
      return { gone = function() n.discard "no" end, later = { run = function() n.retry_in("10m", "wait") end } }]])
    local _, out = proc.nightshift { "run", "gone", "--script", script }
    assert.matches("discard: no", out)
    _, out = proc.nightshift { "run", "later", "--script", script }
    assert.matches("fail, retry in 10m.*: wait", out)
  end)

  it("a long handler sees that its host drains", function()
    local id = q:push "long"
    local h = host.start(url, [[return { long = function(job)
      print "begun"
      io.stdout:flush()
      local n = 0
      while not job:stopping() do require "nightshift.core".sleep(0.01) n = n + 1 end
      return job:again(0, { n = n })
    end }]])
    h:wait_line("begun", 20)
    h:signal "TERM"
    assert.equal(0, h:wait())
    local job = handle:job(id)
    assert.same({ "ready", 0 }, { job.state, job.attempts })
    assert.is_true(job.kept.n > 0)
  end)

  it("a checkpoint is there in the next run, whatever ended the last", function()
    local crash, fail, stop = q:push "crash", q:push "fail", q:push("stuck", nil, { timeout = 0.2 })
    drain([[
      local function go(how)
        return function(job)
          if job.state then return { job.state.n, job.attempt, job.crashes } end
          assert(job:checkpoint { n = 1 })
          assert(job:checkpoint { n = 7 })
          assert(job:checkpoint { n = 7 })
          return how(job)
        end
      end
      return {
        crash = go(function() os.execute "kill -9 $PPID" end),
        fail = { run = go(function() error "no" end), backoff = function() return 0 end },
        stuck = { run = go(function() while true do end end), backoff = function() return 0 end },
      }]], { "--drain-within", "8s" })
    assert.same({ 7, 1, 1 }, handle:job(crash).result)
    assert.same({ 7, 2, 0 }, handle:job(fail).result)
    assert.same({ 7, 2, 0 }, handle:job(stop).result)
  end)

  it("a checkpoint of a program is part of its transaction, and of a lost claim it is STALE", function()
    q:push "a"
    local job = q:claim()
    handle:transaction(function()
      assert(job:checkpoint "half")
      return nil, "no"
    end)
    assert.is_nil(handle:job(job.id).kept)
    assert.is_true(job:checkpoint { list = nightshift.array {} })
    assert.equal("running", handle:job(job.id).state)
    handle:cancel(job.id)
    assert.equal("STALE", select(3, job:checkpoint "late"))
    assert.has_error(function() job:checkpoint(print) end)
  end)

  it("mistakes are told when scripts are loaded", function()
    for body, message in pairs {
      ["check = 5"] = "check must be a function, got number",
      ["around = {}"] = "around must be a function, got table",
      ["backoff = true"] = "backoff must be seconds",
      ["backoff = 'soon'"] = "backoff: ",
      ["bakoff = 5"] = "unknown field 'bakoff'; known: around, backoff, check",
    } do
      local script = fixture.file("jobs.lua", "return { x = { run = print, " .. body .. " } }")
      local status, _, err = proc.nightshift({ "run", "x", "--script", script })
      assert.not_equal(0, status)
      assert.matches(message, err, 1, true)
    end
    assert.has_error(function() nightshift.on("job.never", print) end)
  end)
end)
