-- Jobs through `nightshift work`: what handlers return, raise and ask for.

local host = require "spec.support.host"
local nightshift = require "nightshift"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

local ONCE = { max_attempts = 1 }

-- Pushes one job that has one attempt, works until nothing is left, and gives
-- what became of it, and the log.
local function work_one(script, name, payload, opts)
  local id = assert(q:push(name, payload, opts or ONCE))
  local status, log = host.drain(url, script, { "--drain-within", "5" })
  assert.equal(0, status, log)
  return assert(handle:job(id)), log, id
end

describe("a handler's return", function()
  it("is the job's result, exact to the last bit", function()
    local script = [[return { echo = function(job) return job.payload end }]]
    local payload = { n = 1 << 62, f = 0.1, s = "ü\n", list = nightshift.array {}, deep = { { a = nightshift.null } } }
    local job = work_one(script, "echo", payload)
    assert.equal("done", job.state)
    assert.same(payload, job.result)
    assert.equal("integer", math.type(job.result.n))
  end)

  it("may be nothing, or false", function()
    local script = [[return { none = function() end, no = function() return false end }]]
    local none = assert(q:push("none"))
    assert.equal(false, work_one(script, "no").result)
    assert.is_nil(handle:job(none).result)
  end)

  it("that cannot be encoded is a failure with its path", function()
    local job = work_one([[return { bad = function() return { list = { 1, print } } end }]], "bad")
    assert.equal("dead", job.state)
    assert.matches("result.list[2]: cannot encode a function", job.error, 1, true)
  end)

  it("over the size limit is a failure that says so", function()
    local job = work_one([[return { big = function() return ("x"):rep(2 << 20) end }]], "big")
    assert.equal("dead", job.state)
    assert.matches("over the limit of 1048576", job.error, 1, true)
  end)
end)

describe("a handler's error", function()
  local function error_of(body)
    return work_one("return { bad = function(job) " .. body .. " end }", "bad").error
  end

  it("is kept with file, line and traceback", function()
    local text = error_of "local function inner() error('boom') end inner() return 1"
    assert.matches("jobs.lua:1: boom", text, 1, true)
    assert.matches("in .-'inner'", text)
    assert.is_nil(text:find "worker.lua")
  end)

  it("may be nil", function() assert.matches("without an error value", error_of "error()") end)

  it("may be a table", function() assert.matches('{"code":5}', error_of "error {code = 5}", 1, true) end)

  it("may be a table whose __tostring raises", function()
    assert.matches("__tostring fails",
      error_of "error(setmetatable({}, {__tostring = function() error 'no' end}))", 1, true)
  end)

  it("may be huge: it is cut", function()
    local text = error_of "error(('x'):rep(3000000), 0)"
    assert.is_true(#text < 80000 and #text > 60000, #text)
  end)

  it("may be binary", function() assert.matches("a??b", error_of [[error("a\xff\xfeb", 0)]], 1, true) end)

  it("may be a stack overflow", function()
    assert.matches("stack overflow", error_of "local function f() return 1 + f() end f()")
  end)

  it("goes before a verdict that was given earlier", function()
    assert.matches("late", error_of "job:ack(1) error 'late'")
  end)
end)

describe("os.exit in a handler", function()
  it("ends the worker; what it has written is there", function()
    local path = fixture.dir() .. "/written"
    local job, log = work_one(([[return { exit = function(job)
      if job.crashes == 1 then return "again" end
      kept = io.open(%q, "w")
      kept:write "all of it"
      pcall(os.exit, false)
    end }]]):format(path), "exit")
    assert.same({ "done", "again", 0 }, { job.state, job.result, job.attempts }, log)
    assert.equal("all of it", io.open(path):read "a")
    assert.equal(1, #host.events(log, "worker.died"))
    local row = handle:execute("SELECT error, log FROM nightshift_attempt WHERE job_id = ?", job.id)[1]
    assert.equal("worker exited with status 1", row.error)
    assert.matches("os.exit called\nstack traceback:.*jobs.lua:5", row.log)
  end)
end)

describe("a verdict", function()
  it("of again brings the job back with its state", function()
    local job = work_one([[
      return { poll = function(job)
        if job.polls < 3 then return job:again(0.01, { n = (job.state and job.state.n or 0) + 1 }) end
        return { job.state.n, job.attempt }
      end }]], "poll")
    assert.same({ 3, 1 }, job.result)
    assert.equal(3, job.polls)
  end)

  it("of fail counts and is retried", function()
    local job = work_one([[
      return { flaky = function(job)
        if job.attempt < 3 then return job:fail("not yet", { retry_in = 0.01 }) end
        return job.attempt
      end }]], "flaky", nil, { max_attempts = 5 })
    assert.equal(3, job.result)
  end)

  it("of discard is final", function()
    local job = work_one([[return { give_up = function(job) return job:discard("no use") end }]],
      "give_up", nil, { max_attempts = 5 })
    assert.equal("dead", job.state)
    assert.matches("no use", job.error)
  end)
end)

describe("a spawned child", function()
  it("runs after its parent, with the id that was given", function()
    local job = work_one([[
      return {
        parent = function(job) return { job:spawn("child", { n = 7 }), job:spawn("child", { n = 8 }) } end,
        child = function(job) return { job.parent, job.payload.n } end,
      }]], "parent")
    assert.same({ job.id, 7 }, handle:job(job.result[1]).result)
    assert.same({ job.id, 8 }, handle:job(job.result[2]).result)
  end)

  it("comes in any number", function()
    work_one([[return {
      many = function(job) for i = 1, 500 do job:spawn("one", i) end end,
      one = function() end }]], "many")
    assert.equal(501, #handle:execute("SELECT id FROM nightshift_finished WHERE outcome = 'done'"))
  end)

  it("is dropped when the parent fails", function()
    work_one([[return { parent = function(job) job:spawn("child") error "no" end }]], "parent")
    assert.equal(1, #handle:execute("SELECT id FROM nightshift_finished"))
    assert.equal(0, #handle:execute("SELECT id FROM nightshift_job"))
  end)
end)

describe("a background handler", function()
  it("starts once and polls until it is done", function()
    local job = work_one([[
      local nightshift = require "nightshift"
      return { ["video.encode"] = nightshift.background {
        start = function(job) return { op = job.payload.file .. ".op" } end,
        poll = function(job, op)
          if job.polls < 2 then return job:again() end
          return { op.op, job.payload.file, job.polls }
        end,
        every = 0.02 } }]], "video.encode", { file = "a.mov" })
    assert.same({ op = "a.mov.op" }, job.result)
    local rows = handle:execute "SELECT id FROM nightshift_finished WHERE name = 'video.encode:poll'"
    assert.same({ "a.mov.op", "a.mov", 2 }, handle:job(rows[1].id).result)
  end)
end)

describe("a job without a handler", function()
  it("that is claimed all the same goes back, and the message lists the names there are", function()
    local id = q:push "nosuch"
    handle:execute "UPDATE nightshift_ready SET kind = 0" -- as an older program writes it
    local h = host.start(url, [[return { b = function() end, a = function() end }]])
    h:wait_line "no handler named 'nosuch'; known: a, b"
    eventually(function() return handle:job(id).run == 2 end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

describe("what a handler says", function()
  it("is logged with the job, and kept with a failed attempt", function()
    local _, log, id = work_one([[
      return { talk = function(job) job:log "one" job:log "two\nthree" error "end" end }]], "talk")
    assert.matches('event=job.log id=' .. id .. ' name=talk text="two\\nthree"', log, 1, true)
    local rows = handle:execute("SELECT log FROM nightshift_attempt WHERE job_id = ?", id)
    assert.equal("one\ntwo\nthree\n", rows[1].log)
  end)

  it("by print arrives unharmed", function()
    q:push("say", nil, ONCE)
    local h = host.spawn(url, [[return { say = function() print("hello") io.write("a", "b\n") end }]],
      { "--drain-within", "0" })
    assert.equal(0, h:wait())
    assert.equal("hello\nab\n", (h:text()))
  end)

  it("as progress is shown while it runs", function()
    local id = q:push("slow")
    local h = host.start(url, [[return { slow = function(job)
      job:progress(0.5, "half way")
      os.execute "sleep 20"
    end }]])
    eventually(function() return (handle:job(id).progress or 0) == 0.5 end)
    assert.equal("half way", handle:job(id).status)
    h:signal "QUIT"
    assert.equal(0, h:wait())
  end)
end)

describe("a running job", function()
  it("learns that it was cancelled", function()
    local id = q:push("wait")
    local h = host.start(url, [[return { wait = function(job)
      print "waits"
      while not job:cancelled() do require "nightshift.core".sleep(0.02) end
      print "cancelled"
    end }]])
    h:wait_line "^waits" -- what is claimed and has not started would not start
    assert(handle:cancel(id))
    h:wait_line("^cancelled", 20)
    h:wait_line "event=job.stale"
    assert.equal("cancelled", handle:job(id).state)
  end)

  it("has a database of its own when it asks for one", function()
    local job = work_one([[return { ask = function(job)
      return job:db():execute("SELECT 6 * 7 AS n")[1].n
    end }]], "ask")
    assert.equal(42, job.result)
  end)

  it("is told at its own line that it cannot have one", function()
    local job = work_one([[
require "nightshift".open = function() return nil, "no way in", "GONE" end
return { ask = function(job)
  local db = job:db()
  return db ~= nil
end }]], "ask")
    assert.matches("^[^\n]*jobs%.lua:3: nightshift: job:db: no way in %(GONE%)\n", job.error)
  end)

  it("has random numbers that no other worker has", function()
    for _ = 1, 8 do q:push "random" end
    host.drain(url, [[return { random = function() os.execute "sleep 0.1" return math.random(0) end }]],
      { "--workers", "4", "--drain" })
    local seen = {}
    for _, row in ipairs(handle:execute "SELECT id FROM nightshift_finished") do
      local n = handle:job(row.id).result
      assert.is_nil(seen[n])
      seen[n] = true
    end
  end)
end)

describe("--queues", function()
  it("serves the named ones only, also one that comes to be later", function()
    local h = host.start(url, [[return { a = function() end }]], { "--queues", "later=2,mail" })
    local other = handle:queue("other"):push "a"
    local id = handle:queue("later"):push "a"
    eventually(function() return handle:job(id).state == "done" end)
    assert.equal("ready", handle:job(other).state)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

describe("without --queues", function()
  it("every queue is served, also a new one, unless it is paused", function()
    local h = host.start(url, [[return { a = function() end }]])
    local paused = handle:queue "paused"
    paused:push "a"
    eventually(function() return #handle:execute "SELECT id FROM nightshift_finished" == 1 end)
    assert(paused:pause())
    local id = paused:push "a"
    local new = handle:queue("new"):push "a"
    eventually(function() return handle:job(new).state == "done" end)
    assert.equal("ready", handle:job(id).state)
    assert(paused:resume())
    eventually(function() return handle:job(id).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

describe("--log json", function()
  it("writes one JSON object per line", function()
    q:push("bad", nil, ONCE)
    local _, log = host.drain(url, [[return { bad = function() error 'a "quoted"\nerror' end }]],
      { "--log", "json", "--drain" })
    local events = {}
    for line in log:gmatch "[^\n]+" do
      local entry = assert(nightshift.decode(line))
      events[entry.event] = entry
    end
    assert.is_not_nil(events["host.ready"].pid)
    assert.matches('a "quoted"', events["job.failed"].error, 1, true)
  end)
end)

describe("--drain", function()
  it("waits for what is due soon, and not for what is due later", function()
    local soon = q:push("a", nil, { delay = 0.4 })
    local later = q:push("a", nil, { delay = 600 })
    local status = host.drain(url, [[return { a = function() end }]], { "--drain-within", "5" })
    assert.equal(0, status)
    assert.equal("done", handle:job(soon).state)
    assert.equal("scheduled", handle:job(later).state)
  end)
end)
