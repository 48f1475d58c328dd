-- Batch handlers: many jobs in one call, a verdict for each. How a batch is put together, and the
-- jobs of one that is stopped, whose worker or host dies, or whose queue is paused.

local handlers = require "nightshift.handlers"
local host = require "spec.support.host"
local nst = require "nst"
local proc = require "spec.support.proc"

describe("a batch handler", function()
  local url, handle, q
  with_database(function(...) handle, q, url = ... end)

  -- Handlers by name: `sizes` says in each result how many jobs there were, `pid` is of the worker.
  local SCRIPT = [[
    local core = require "nightshift.core"
    local function pid() return io.open "/proc/self/stat":read "a":match "^%d+" end
    local function has(jobs, word)
      for _, job in ipairs(jobs) do if job.payload == word then return true end end
    end
    local function sizes(jobs)
      local results = {}
      for i in ipairs(jobs) do results[i] = #jobs end
      return results
    end
  ]]

  local function start(text, args)
    return host.start(url, SCRIPT .. text, args or { "--workers", "1" })
  end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait(), h:transcript())
  end

  --- Pushes jobs with these payloads, in one commit.
  local function push(payloads, opts, name, queue)
    local list = {}
    for i, payload in ipairs(payloads) do list[i] = { name or "many", payload, opts } end
    return assert((queue or q):push_many(list))
  end

  local function numbers(n)
    local list = {}
    for i = 1, n do list[i] = i end
    return list
  end

  local function state(id) return handle:job(id).state end

  local function ended(ids, timeout)
    eventually(function()
      for _, id in ipairs(ids) do
        local now = state(id)
        if now ~= "done" and now ~= "dead" and now ~= "cancelled" then return false end
      end
      return true
    end, timeout)
    local jobs = {}
    for i, id in ipairs(ids) do jobs[i] = handle:job(id) end
    return jobs
  end

  --- Its first attempt that failed.
  local function attempt(id)
    return handle:execute("SELECT error, log FROM nightshift_attempt WHERE job_id = ? ORDER BY run", id)[1]
  end

  --- How many of the jobs were called together with how many.
  local function counts(jobs)
    local n = {}
    for _, job in ipairs(jobs) do n[job.result] = (n[job.result] or 0) + 1 end
    return n
  end

  describe("is called", function()
    it("with full batches at once, and with the rest after `within`", function()
      local ids = push(numbers(25))
      local h = start "return { many = { run = sizes, batch = 10, within = 0.1 } }"
      assert.same({ [10] = 20, [5] = 5 }, counts(ended(ids)))
      stop(h)
    end)

    it("with jobs that come while the first one waits, and with no other queue's or name's", function()
      local h = start "return { many = { run = sizes, batch = 4, within = 60 }, few = { run = sizes, batch = 3 } }"
      local other = handle:queue "other"
      local ids = push { 1 }
      local rest = push({ 1, 2 }, nil, nil, other)
      local few = push({ 1, 2, 3 }, nil, "few")
      assert.same({ [3] = 3 }, counts(ended(few)))
      for i = 2, 4 do
        assert.equal("running", eventually(function() return state(ids[1]) == "running" and "running" end))
        ids[i] = push { i }[1]
      end
      assert.same({ [4] = 4 }, counts(ended(ids)))
      assert.equal("running", state(rest[1]))
      push({ 3, 4 }, nil, nil, other)
      assert.same({ [4] = 2 }, counts(ended(rest)))
      stop(h)
    end)

    it("with jobs of one claim, past those of other names, which keep their turn", function()
      local list = {}
      for i = 1, 100 do list[i] = { i % 2 == 0 and "many" or "one", i, { timeout = 60 } } end
      local ids = assert(q:push_many(list))
      local many, one = {}, {}
      for i, id in ipairs(ids) do table.insert(i % 2 == 0 and many or one, id) end
      local h = start [[return { one = function() return 1 end, many = { batch = 50, within = 60, run = function(jobs)
        print "holds"
        io.stdout:flush()
        while not jobs[1]:stopping() do core.sleep(0.01) end
      end } }]]
      h:wait_line("holds", 20)
      -- a lease is of a claim: the one that has found the first of them has taken the rest
      local leases = {}
      for _, row in ipairs(handle:execute "SELECT jobs FROM nightshift_lease") do
        for _, id in ipairs(many) do
          if row.jobs:find("[" .. id .. ",", 1, true) then leases[row.jobs] = true end
        end
      end
      assert.is_nil(next(leases, (next(leases))))
      assert.equal("running", state(many[1]))
      local second = start "return { one = function() return 1 end }"
      assert.same({ [1] = 50 }, counts(ended(one)))
      stop(h)
      stop(second)
    end)

    it("by a worker that does other jobs meanwhile", function()
      local ids = push(numbers(3))
      local h = start "return { many = { run = sizes, batch = 4, within = 60 }, one = function() return 1 end }"
      eventually(function() return state(ids[3]) == "running" end)
      assert.same({ [1] = 3 }, counts(ended(push(numbers(3), nil, "one"))))
      ids[4] = push { 4 }[1]
      assert.same({ [4] = 4 }, counts(ended(ids)))
      stop(h)
    end)

    it("in each of its workers, also reserved ones and a process for each", function()
      for _, args in ipairs { { "--workers", "2", "--reserve", "q=1" }, { "--workers", "2", "--isolation", "job" } } do
        local ids = push(numbers(20))
        local h = start("return { many = { run = sizes, batch = 10, within = 60 } }", args)
        assert.same({ [10] = 20 }, counts(ended(ids)))
        stop(h)
      end
    end)
  end)

  describe("ends each job", function()
    it("by its verb; the rest are done, with a table of results", function()
      local h = start [[return { many = { batch = 10, within = 60, run = function(jobs)
        local results = {}
        for i, job in ipairs(jobs) do
          local p = job.payload
          if p == "ack" then job:ack "by ack" end
          if p == "fail" then job:fail "no" end
          if p == "discard" then job:discard "never" end
          if p == "spawn" then job:spawn("child", i) end
          if p == "again" and job.polls == 0 then job:again(0, "kept") end
          if p == "again" and job.polls == 1 then job:ack(job.state) end
          if p == "log" then job:log "a line" job:fail "with a log" end
          results[i] = "by " .. p
        end
        return results
      end }, child = function() return "born" end }]]
      local ids = push({ "ack", "fail", "discard", "spawn", "again", "log", "return", "a", "b", "c" },
        { max_attempts = 1 })
      -- the one that comes again waits for a batch of its own
      eventually(function() return handle:job(ids[5]).polls == 1 and state(ids[5]) == "running" end)
      push(numbers(9))
      local jobs = ended(ids)
      local results = {}
      for i = 1, 8 do results[i] = jobs[i].result or false end
      assert.same({ "by ack", false, false, "by spawn", "kept", false, "by return", "by a" }, results)
      assert.same({ "no", "never", "with a log" }, { jobs[2].error, jobs[3].error, jobs[6].error })
      assert.equal("discarded", jobs[3].reason)
      assert.equal("a line\n", attempt(ids[6]).log)
      eventually(function()
        return handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished WHERE parent = ?", ids[4])[1].n == 1
      end)
      stop(h)
    end)

    it("as failed when it raises, or does not return results, but for verdicts that were given", function()
      local h = start [[
        local function ends(how)
          return { batch = 3, within = 60, run = function(jobs)
            jobs[2]:ack "mine"
            return how(jobs)
          end }
        end
        return {
          raises = ends(function() error "all of it" end),
          none = ends(function() return nil, "nothing" end),
          odd = ends(function() return 7 end),
          asks = ends(function() require "nightshift".discard "all of them" end),
          open = ends(function(jobs)
            assert(jobs[1]:db():transaction(function(tx) return tx:ack(jobs[1], "written") end))
            coroutine.wrap(function() jobs[1]:db():transaction(coroutine.yield) end)()
          end),
        }]]
      local texts = { raises = "all of it\n", none = "^nothing$", odd = "must return a table of results",
        asks = "^all of them$", open = "it was rolled back" }
      local ids = {}
      for name in pairs(texts) do ids[name] = push(numbers(3), { max_attempts = 1 }, name) end
      for name, text in pairs(texts) do
        local jobs = ended(ids[name])
        assert.matches(text, jobs[3].error, nil, name)
        if name == "open" then -- what was left behind undoes all but what was written
          assert.equal("written", jobs[1].result)
          assert.matches(text, jobs[2].error)
        else
          assert.equal("mine", jobs[2].result)
          assert.matches(text, jobs[1].error)
        end
      end
      stop(h)
    end)

    it("with checks, hooks and functions around it for every job", function()
      local h = start [[
        require "nightshift".on("job.start", function(job) print("starts " .. job.payload) end)
        require "nightshift".on("job.done", function(job, result) print("done " .. job.payload .. " " .. result) end)
        require "nightshift".on("job.dead", function(job, why) print("dead " .. job.payload .. " " .. why) end)
        return { many = { batch = 3, within = 60, check = function(p) return p ~= "b", "bad letter" end,
          around = function(jobs, run) print("around " .. #jobs) return run(jobs) end,
          run = function(jobs)
            local results = {}
            for i, job in ipairs(jobs) do results[i] = job.payload:upper() end
            return results
          end } }]]
      local jobs = ended(push { "a", "b", "c" })
      assert.same({ "A", "C" }, { jobs[1].result, jobs[3].result })
      assert.equal("payload refused: bad letter", jobs[2].error)
      stop(h)
      local out = h:text()
      for _, line in ipairs { "starts a", "starts b", "starts c", "around 2", "done a A", "dead b discarded",
        "done c C" } do
        assert.is_truthy(out:find(line, 1, true), line)
      end
    end)

  end)

  describe("that goes wrong", function()
    local function runs(jobs, field)
      local list = {}
      for i, job in ipairs(jobs) do list[i] = job[field] end
      return list
    end

    it("has its jobs run alone, so that a bad one fails alone", function()
      local h = start [[
        local function bad(how, timeout)
          return { batch = 4, within = 60, timeout = timeout, memory = "4M", run = function(jobs)
            if jobs[2] then jobs[2]:ack "told" end
            if has(jobs, "bad") then how(jobs) end
            return sizes(jobs)
          end }
        end
        return {
          raises = bad(function() error "bad one" end),
          dies = bad(function() os.execute("kill -9 " .. pid()) end),
          slow = bad(function() while true do end end, 0.2),
          fat = bad(function()
            local kept = {}
            for i = 1, 1e7 do kept[i] = { i } end
          end),
        }]]
      local ids = {}
      for _, name in ipairs { "raises", "dies", "slow", "fat" } do
        ids[name] = push({ 1, 2, "bad", 4 }, { max_attempts = 2, max_crashes = 2, backoff = 0.01 }, name)
      end
      for name, text in pairs { raises = "bad one", slow = "timeout after 0%.2 s", fat = "memory limit of 4 MiB" } do
        local jobs = ended(ids[name])
        assert.same({ 1, "told", nil, 1 }, { jobs[1].result, jobs[2].result, jobs[3].result, jobs[4].result }, name)
        assert.same({ 1, 0, 2, 1 }, runs(jobs, "attempts"), name)
        assert.matches(text, attempt(jobs[1].id).error)
        assert.matches(text, jobs[3].error)
      end
      -- the verdicts of a worker that died were not told
      local jobs = ended(ids.dies)
      assert.same({ 1, 1, nil, 1 }, { jobs[1].result, jobs[2].result, jobs[3].result, jobs[4].result })
      assert.same({ 1, 1, 2, 1 }, runs(jobs, "crashes"))
      assert.same({ 0, 0, 0, 0 }, runs(jobs, "attempts"))
      assert.equal("poison", jobs[3].reason)
      stop(h)
    end)

    it("and loses its host: another has the jobs, once each", function()
      local mark = fixture.file("mark", "")
      assert(os.remove(mark))
      local script = ([[return { many = { batch = 3, within = 0.1, run = function(jobs)
        if not io.open(%q) then
          print "holds"
          io.stdout:flush()
          core.sleep(60)
        end
        return sizes(jobs)
      end } }]]):format(mark)
      local first = start(script)
      local ids = push(numbers(3))
      first:wait_line("holds", 20)
      assert(io.open(mark, "w")):close()
      nst.kill(first.pid, "KILL")
      local second = start(script)
      local jobs = ended(ids)
      assert.same({ 0, 0, 0 }, runs(jobs, "crashes"))
      assert.same({ 2, 2, 2 }, runs(jobs, "run"))
      stop(second)
    end)
  end)

  describe("is told", function()
    it("which one of its jobs is cancelled; the rest go on", function()
      local mark = fixture.file("mark", "")
      assert(os.remove(mark))
      local h = start(([[return { many = { batch = 3, within = 60, run = function(jobs)
        print "holds"
        io.stdout:flush()
        while not jobs[2]:cancelled() do core.sleep(0.01) end
        local told = {}
        for i, job in ipairs(jobs) do told[i] = { job:cancelled(), job:stopping() } end
        while not io.open %q do core.sleep(0.01) end
        return { told[1], told[2], told[3] }
      end } }]]):format(mark))
      local ids = push(numbers(3))
      h:wait_line("holds", 20)
      assert(handle:cancel(ids[2], { reason = "not this one" }))
      -- A sign of life may tell first, without the reason, which then follows while the batch runs.
      h:wait_line('event=job.stop id=' .. ids[2] .. ' .*not this one')
      assert(io.open(mark, "w")):close()
      local jobs = ended(ids)
      assert.equal("cancelled", jobs[2].state)
      for _, i in ipairs { 1, 3 } do assert.same({ false, false }, jobs[i].result) end
      stop(h)
    end)

    it("that the host drains, and shows the progress of each job", function()
      local h = start [[return { many = { batch = 3, within = 60, run = function(jobs)
        for i, job in ipairs(jobs) do job:progress(i / 10, "part " .. i) end
        print "holds"
        io.stdout:flush()
        while not jobs[3]:stopping() do core.sleep(0.01) end
        for _, job in ipairs(jobs) do job:again(0) end
      end } }]]
      local ids = push(numbers(3))
      h:wait_line("holds", 20)
      eventually(function()
        for i, id in ipairs(ids) do
          local job = handle:job(id)
          if job.status ~= "part " .. i or job.progress ~= i / 10 then return false end
        end
        return true
      end)
      stop(h)
      for _, id in ipairs(ids) do assert.same({ 1, 0 }, { handle:job(id).polls, handle:job(id).attempts }) end
    end)
  end)

  describe("that waits for more jobs", function()
    local WAITS = "return { many = { run = sizes, batch = 10, within = 60 } }"

    local function waiting(h, n)
      local ids = push(numbers(n))
      eventually(function() return state(ids[n]) == "running" end)
      return ids, h
    end

    local function untouched(ids)
      eventually(function()
        for _, id in ipairs(ids) do
          if state(id) == "running" then return false end
        end
        return true
      end)
      for _, id in ipairs(ids) do assert.same({ 0, 0 }, { handle:job(id).attempts, handle:job(id).crashes }) end
    end

    it("is given back when the host ends or rests; a job of it that is paused is", function()
      local h = start(WAITS)
      local ids = waiting(h, 3)
      assert(handle:execute "UPDATE nightshift_lease SET claimed = claimed - 5000000") -- as if it had waited
      local says, fact = handle:why(ids[1])
      assert.equal("batch", fact.kind)
      assert.matches("^#?.*was taken .* ago by .*, and waits there for more jobs of its batch", says)
      assert(handle:pause(ids[1]))
      untouched { ids[1] }
      assert.equal("running", state(ids[2]))
      assert(handle:resume(ids[1]))
      eventually(function() return state(ids[1]) == "running" end)
      h:signal "TSTP"
      untouched(ids)
      h:signal "CONT"
      eventually(function() return state(ids[3]) == "running" end)
      stop(h)
      untouched(ids)
    end)

    it("is given back when its queue or its name is paused, also by a host that drains", function()
      local h = start(WAITS)
      local ids = waiting(h, 3)
      assert(q:pause())
      untouched(ids)
      assert(q:resume())
      eventually(function() return state(ids[3]) == "running" end)
      assert(handle:pause_name "many")
      untouched(ids)
      stop(h)
      assert(handle:resume_name "many")
      local second = start(WAITS, { "--workers", "1", "--drain" })
      eventually(function() return state(ids[3]) == "running" end)
      assert(q:pause())
      assert.equal(0, second:wait(20), second:transcript())
      untouched(ids)
    end)

    it("is given back from behind jobs that keep every worker busy", function()
      local go = fixture.dir() .. "/go"
      local h = start(([[return {
        many = { run = sizes, batch = 10, within = 1 },
        hold = function() while not io.open(%q) do core.sleep(0.01) end end }]]):format(go))
      local ids = waiting(h, 3)
      local held = assert(q:push "hold")
      eventually(function() return state(held) == "running" end)
      nst.sleep(1.1) -- the batch waits for the worker now
      assert(q:pause())
      untouched(ids)
      assert.equal("running", state(held))
      assert(io.open(go, "w")):close()
      assert.equal("done", ended({ held })[1].state)
      stop(h)
    end)

    it("loses a job that is cancelled, and its host", function()
      local h = start(WAITS)
      local ids = waiting(h, 3)
      assert(handle:cancel(ids[1]))
      nst.kill(h.pid, "KILL")
      local second = start("return { many = { run = sizes, batch = 10, within = 0.1 } }")
      local jobs = ended(ids)
      assert.same({ "cancelled", 2, 2 }, { jobs[1].state, jobs[2].result, jobs[3].result })
      assert.same({ 0, 0 }, { jobs[2].crashes, jobs[3].crashes })
      stop(second)
    end)

    it("is called by scripts that are loaded anew, whether these take batches or not", function()
      local h = start(WAITS)
      local function reload(text)
        local file <close> = assert(io.open(h.script, "w"))
        file:write(SCRIPT, text)
        file:close()
        h:signal "HUP"
      end
      local ids = waiting(h, 3)
      reload "return { many = function() return 'single' end }"
      assert.same({ single = 3 }, counts(ended(ids)))
      h:wait_line("reload.done", 20)
      reload "return { many = { run = sizes, batch = 2, within = 60 } }"
      h:wait_line("reload.done", 20, 2)
      eventually(function() return #host.members(h.pid, "ns-worker") == 1 end)
      assert.same({ [2] = 4 }, counts(ended(push(numbers(4)))))
      stop(h)
    end)
  end)

  it("is run by hand with one job", function()
    local script = fixture.file("jobs.lua", SCRIPT .. "return { many = { run = sizes, batch = 10 } }")
    assert.equal("ack 1\n", proc.succeeds { "run", "many", "7", "--script", script })
  end)

  it("has its fields checked when it is loaded", function()
    local function fault(fields)
      local path = fixture.file("jobs.lua", ("return { many = { run = function() end, %s } }"):format(fields))
      local set, message = handlers.load { path }
      assert.is_nil(set)
      return message
    end
    assert.matches("batch must be an integer from 1 to 1000", fault "batch = 0")
    assert.matches("batch must be an integer from 1 to 1000", fault "batch = 1001")
    assert.matches("batch must be an integer from 1 to 1000", fault "batch = '10'")
    assert.matches("within goes with batch", fault "within = 1")
    assert.matches("within must be at most 60 s", fault "batch = 2, within = '2m'")
    assert.matches("within", fault "batch = 2, within = 'soon'")
    assert.matches("within must be seconds", fault "batch = 2, within = {}")
  end)
end)
