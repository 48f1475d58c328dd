-- Kill-switches: names of jobs that are paused, all queues at once, a queue before its first push.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

describe("switches:", function()
  local SCRIPT = [[return { a = function() end, b = function() end,
    hold = function(job) while not io.open(job.payload) do require "nightshift.core".sleep(0.02) end end }]]

  local url, name, handle, q

  with_database(function(...) handle, q, url, name = ... end)

  local function state(id) return handle:job(id).state end

  local function done(id) eventually(function() return state(id) == "done" end) end

  -- A host that has told of its pauses, so it obeys from now on.
  local function told(h, what) h:wait_line(what, 20) end

  local function started(what)
    local h = host.start(url, SCRIPT)
    told(h, what)
    return h
  end

  describe("a name that is paused", function()
    it("is claimed by no program, in any queue, until it is resumed", function()
      local ids = { assert(q:push "a"), assert(q:push "b"), assert(handle:queue("r"):push "a") }
      assert.is_true(handle:pause_name "a")
      assert.is_false(handle:pause_name "a")
      local other <close> = assert(nightshift.open(url))
      local job = assert(other:queue("q"):claim())
      assert.equal("b", job.name)
      assert(job:ack())
      assert.is_nil(other:queue("q"):claim())
      assert.is_nil(q:claim { names = { "a", "b" } })
      assert.is_nil(handle:queue("r"):claim())
      assert.equal("ready", state(ids[1]))
      assert.is_true(other:resume_name "a")
      assert.is_false(other:resume_name "a")
      assert.equal(ids[1], q:claim { names = { "a" } }.id)
      assert.equal(ids[3], other:queue("r"):claim().id)
    end)

    it("is left alone where its row does not tell its name, and other names of programs go on", function()
      local id = assert(q:push "a")
      assert(handle:execute("UPDATE nightshift_ready SET kind = 0 WHERE job_id = ?", id))
      assert(handle:pause_name "a")
      assert.is_nil(q:claim())
      assert.is_nil(q:claim())
      assert(q:push "b")
      assert.equal("b", q:claim().name)
    end)

    it("wakes a program that waits when it is resumed, also one that waits for that name", function()
      assert(handle:pause_name "a")
      local id = assert(q:push "a")
      for _, names in ipairs { "nil", "{ 'a' }" } do
        local script = fixture.file("claim.lua", ([[
          local db = assert(require "nightshift".open(%q))
          print "waits"
          io.stdout:flush()
          local job = assert(db:queue "q":claim { wait = 60, names = %s })
          assert(job:release())
          print(job.id)
        ]]):format(url, names))
        local program = proc.start { proc.lua, script }
        program:wait_line("waits", 20)
        eventually(function() return handle:execute "SELECT COUNT(*) AS n FROM nightshift_listener"[1].n > 0 end)
        local from = nightshift.clock()
        assert.is_true(handle:resume_name "a")
        assert.equal(0, program:wait())
        assert.is_true(nightshift.clock() - from < proc.limit(5))
        assert.equal(("waits\n%d\n"):format(id), (program:text()))
        assert.is_true(handle:pause_name "a")
      end
    end)

    it("starts on no host until it is resumed; what runs goes on, and hosts that come later obey", function()
      local go = fixture.dir() .. "/go"
      local one = host.start(url, SCRIPT)
      local running = assert(q:push("hold", go))
      eventually(function() return state(running) == "running" end)
      assert(handle:pause_name "hold")
      assert(handle:pause_name "a")
      told(one, "names.paused names=\"a, hold\"")
      local two = started "names.paused"
      local ids = { assert(q:push "a"), assert(handle:queue("new"):push "a") }
      for _ = 1, 20 do done(assert(q:push "b")) end
      assert.same({ "ready", "ready", "running" }, { state(ids[1]), state(ids[2]), state(running) })
      assert(io.open(go, "w")):close()
      done(running)
      one:signal "KILL"
      one:wait()
      assert(handle:resume_name "a")
      for _, id in ipairs(ids) do done(id) end
      told(two, "names.paused names=hold")
      assert(handle:resume_name "hold")
      told(two, "names.resumed")
      host.stop(two)
    end)

    it("wakes each host at once when it is resumed, whichever has its handler", function()
      local hosts = { host.start(url, "return { c = function() end }"), host.start(url, SCRIPT),
        host.start(url, "return { c = function() end }") }
      assert(handle:pause_name "a")
      for round = 1, 3 do
        local id = assert(q:push "a")
        nst.sleep(0.05 * round) -- their looks at the queues become rare
        local from = nightshift.clock()
        assert(handle:resume_name "a")
        done(id)
        assert.is_true(nightshift.clock() - from < proc.limit(2))
        assert(handle:pause_name "a")
      end
      for _, h in ipairs(hosts) do host.stop(h) end
    end)

    it("comes back to no host when its host is killed in it", function()
      local go = fixture.dir() .. "/go"
      local one = host.start(url, SCRIPT)
      local id = assert(q:push("hold", go))
      eventually(function() return state(id) == "running" end)
      assert(handle:pause_name "hold")
      one:signal "KILL"
      one:wait()
      local two = host.start(url, SCRIPT)
      eventually(function() return state(id) == "ready" end, 30)
      done(assert(q:push "b"))
      assert.equal("ready", state(id))
      assert(io.open(go, "w")):close()
      assert(handle:resume_name "hold")
      done(id)
      host.stop(two)
    end)

    it("leaves an idle host asleep beside its ready jobs", function()
      assert(handle:pause_name "a")
      assert(q:push "a")
      local h = started "names.paused"
      host.await_quiet()
      host.stop(h)
    end)
  end)

  describe("all queues that are paused", function()
    it("start nothing anywhere, new ones among them, until all are resumed", function()
      local ids = { assert(q:push "a") }
      assert.is_true(handle:pause_all())
      assert.is_false(handle:pause_all())
      ids[2] = assert(handle:queue("later"):push "a")
      assert.is_nil(q:claim())
      assert.is_nil(handle:queue("later"):claim())
      local h = started "names.paused"
      ids[3] = assert(handle:queue("latest"):push "b")
      nst.sleep(0.5) -- nothing is to happen
      for _, id in ipairs(ids) do assert.equal("ready", state(id)) end
      for _, row in ipairs(handle:stats().queues) do assert.is_true(row.paused) end
      local from = nightshift.clock()
      assert.is_true(handle:resume_all())
      assert.is_false(handle:resume_all())
      for _, id in ipairs(ids) do done(id) end
      assert.is_true(nightshift.clock() - from < proc.limit(5))
      host.stop(h)
    end)

    it("leave an idle host asleep", function()
      assert(q:push "a")
      assert(handle:pause_all())
      local h = started "names.paused"
      host.await_quiet()
      host.stop(h)
    end)
  end)

  it("a drain ends while all that is left is paused", function()
    local left = { assert(q:push "a"), assert(q:push("a", nil, { delay = 0.2 })) }
    local work = assert(q:push "b")
    assert(handle:pause_name "a")
    local status, log = host.drain(url, SCRIPT)
    assert.equal(0, status, log)
    assert.equal("done", state(work))
    work = assert(q:push "b")
    assert(handle:resume_name "a")
    assert(handle:pause_all())
    status, log = host.drain(url, SCRIPT)
    assert.equal(0, status, log)
    assert.same({ "ready", "ready" }, { state(left[1]), state(work) })
  end)

  it("a queue is paused before its first push", function()
    assert.is_true(handle:queue("mail"):pause())
    local id = assert(handle:queue("mail"):push "a")
    assert.is_nil(handle:queue("mail"):claim())
    assert(handle:queue("mail"):resume())
    assert.equal(id, handle:queue("mail"):claim().id)
    assert.equal("NOT_FOUND", select(3, handle:queue("other"):resume()))
  end)

  it("a pause in a transaction counts when that is committed", function()
    local id = assert(q:push "a")
    assert.has_error(function()
      handle:transaction(function()
        assert(handle:pause_name "a")
        error "no"
      end)
    end)
    assert(handle:transaction(function() assert(handle:pause_name "b") end))
    assert.equal(id, q:claim().id)
    assert.equal("1", (db.sql("SELECT COUNT(*) FROM nightshift_paused_name WHERE name = 'b'", name)))
  end)

  it("refuses what is no name", function()
    assert.equal("INVALID", select(3, handle:pause_name ""))
    assert.equal("INVALID", select(3, handle:resume_name(("x"):rep(101))))
    assert.has_error(function() handle:pause_name() end, "nightshift: pause_name: the name must be a string, got nil")
  end)

  it("why, status, doctor and the shell say so", function()
    local id, later = assert(q:push "a"), assert(q:push("a", nil, { delay = 60 }))
    local function run(...)
      local status, out, err = proc.nightshift({ ... }, url)
      assert.is_true(status <= 1, err)
      return out, status
    end
    assert.equal("jobs named a: paused\njobs named b c: paused\n", run("pause", "--name", "a", "b c"))
    assert.equal("jobs named a: paused before\nevery queue: paused\n", run("pause", "--name", "a", "--all"))
    local says, fact = handle:why(id)
    assert.same({ "all_paused", "is ready, but every queue is paused" }, { fact.kind, says:match "is ready.*" })
    assert.matches("every queue is paused, since .*jobs named a are paused, since .*jobs named b c are",
      (run "status"))
    assert.matches("warn +paused +paused: every queue, jobs named 'a', jobs named 'b c'", (run "doctor"))
    assert.equal("every queue: resumed\n", run("resume", "--all"))
    says, fact = handle:why(id)
    assert.same({ "name_paused", "is ready, but jobs named 'a' are paused" }, { fact.kind, says:match "is ready.*" })
    assert.is_true(select(2, handle:why(later)).name_paused)
    local paused = handle:stats().paused
    assert.same({ nil, "a", "b c" }, { paused.all, paused.names[1].name, paused.names[2].name })
    assert.equal("jobs named a: resumed\njobs named x: not paused\n", run("resume", "--name", "a", "--name", "x"))
    assert.equal("mail paused\n", run("pause", "mail"))
  end)
end)
