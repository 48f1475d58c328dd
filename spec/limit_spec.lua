-- Limits of queues as programs and people set them and look at them: q:limit, q:limits, db:limits,
-- `why`, and the commands. The rows of backlogs, groups and grants are made here by hand, so what a
-- text says does not hang on when a claim admits.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

describe("limits:", function()
  local url, name, handle, n = nil, nil, nil, 0

  setup(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
  end)

  teardown(function() handle:close() end)

  local function fresh_queue()
    n = n + 1
    return assert(handle:queue("q" .. n)), "q" .. n
  end

  local function sql(text, ...) return assert(handle:execute(text, ...)) end

  local function queue_id(queue) return sql("SELECT id FROM nightshift_queue WHERE name = ?", queue)[1].id end

  --- Moves ready jobs of a queue to its backlog, as a claim does; they are of one group.
  local function back(queue, group, ordered)
    local id = queue_id(queue)
    sql("UPDATE nightshift_job SET group_key = NULLIF(?, '') WHERE queue_id = ? AND group_key IS NULL", group, id)
    sql([[INSERT INTO nightshift_backlog SELECT queue_id, ?, IF(?, 0, `rank`), ready_at, job_id, run, alone, kind
      FROM nightshift_ready WHERE queue_id = ? AND job_id > 0]], group, ordered or false, id)
    sql([[REPLACE INTO nightshift_group (queue_id, group_key, `rank`, ready_at, job_id)
      SELECT queue_id, group_key, `rank`, ready_at, job_id FROM nightshift_backlog WHERE queue_id = ? AND group_key = ?
      ORDER BY `rank`, ready_at, job_id LIMIT 1]], id, group)
    sql("DELETE FROM nightshift_ready WHERE queue_id = ? AND job_id > 0", id)
  end

  --- How many rows of the queue a table has.
  local function rows(table, queue)
    return sql(("SELECT COUNT(*) AS n FROM nightshift_%s WHERE queue_id = ?"):format(table), queue_id(queue))[1].n
  end

  describe("q:limit", function()
    it("sets what q:limits and db:limits give back, and makes the queue", function()
      local q, queue = fresh_queue()
      assert.is_nil((q:limits()))
      local given = { running = 100, rate = { 500, "1m" },
        group = { running = 2, rate = { 10, 1, "window" }, ordered = true, fair = true } }
      assert.is_true(q:limit(given))
      local got = assert(q:limits())
      assert.same({ running = 0, waiting = 0, groups = 0, full_groups = 0 }, got.counts)
      assert.same({ queue, 100, { 500, 60 } },
        { got.queue, got.running, got.rate })
      assert.same({ running = 2, rate = { 10, 1, "window" }, ordered = true, fair = true }, got.group)
      assert.is_true(q:limit { running = 3 })
      got = assert(q:limits())
      assert.same({ 3 }, { got.running, got.rate, got.group })
      local found
      for _, row in ipairs(assert(handle:limits())) do found = found or row.queue == queue end
      assert.is_true(found)
      assert.equal(1, sql("SELECT limited FROM nightshift_queue WHERE name = ?", queue)[1].limited)
    end)

    it("says what a value has to be, and leaves the limit as it was", function()
      local q = fresh_queue()
      assert(q:limit { running = 3 })
      for words, bad in pairs {
        ["limit: running must be a whole number from 1 to 1000000, got 0"] = { running = 0 },
        ["limit: rate: the number of starts must be a whole number from 1"] = { rate = { 0, "1m" } },
        ["limit: rate: the time: "] = { rate = { 1, "soon" } },
        ["from a microsecond a start to a year, got 500d"] = { rate = { 1, "500d" } },
        ["the third value can be \"window\", for fixed windows; got 'often'"] = { rate = { 1, "1s", "often" } },
        ["there is no limit in this table; give one of"] = { group = { ordered = false } },
      } do
        local ok, message, code = q:limit(bad)
        assert.same({ nil, "INVALID" }, { ok, code })
        assert.is_truthy(message:find(words, 1, true), message)
      end
      for words, bad in pairs {
        ["did you mean 'running'?"] = { runing = 1 },
        ['limit: rate must be a table like {500, "1m"}: so many starts in that time; got number'] = { rate = 5 },
        ["it has the key 'n'"] = { rate = { n = 5 } },
        ["limit: group must be a table like {running = 2}, of limits of each group; got boolean"] = { group = true },
        ["limit: group: ordered must be a boolean, got number"] = { group = { ordered = 1 } },
        ["limit wants a table like {running = 10}, or nil for no limit; got string"] = "10",
      } do
        local ok, message = pcall(q.limit, q, bad)
        assert.is_false(ok)
        assert.is_truthy(message:find(words, 1, true), message)
      end
      assert.equal(3, q:limits().running)
    end)

    it("counts what runs from the beginning, and keeps a rate that stays", function()
      local q, queue = fresh_queue()
      assert(q:push_many { { "a" }, { "a" }, { "a" } })
      local jobs = assert(q:claim_many(2))
      assert(q:limit { running = 2, rate = { 5, "1h" } })
      assert.equal(2, q:limits().counts.running)
      local id = queue_id(queue)
      local function spent() return sql("SELECT next_at, used FROM nightshift_limit WHERE queue_id = ?", id)[1] end
      sql("UPDATE nightshift_limit SET next_at = 7, used = 3 WHERE queue_id = ?", id)
      assert(q:limit { running = 9, rate = { 5, "1h" } })
      assert.same({ next_at = 7, used = 3 }, spent())
      assert(q:limit { running = 9, rate = { 6, "1h" } })
      assert.same({ next_at = 0, used = 0 }, spent())
      for _, job in ipairs(jobs) do assert(job:ack()) end
      assert.equal(0, q:limits().counts.running)
    end)

    it("with nil ends it; the backlog is ready again", function()
      local q, queue = fresh_queue()
      assert.is_true(q:limit(nil)) -- there is none
      local ids = assert(q:push_many { { "a" }, { "b", nil, { priority = 200 } } })
      assert(q:limit { running = 1 })
      back(queue, "g")
      assert.same({ 0, 2 }, { rows("ready", queue), q:limits().counts.waiting })
      assert(q:limit(nil))
      assert.is_nil((q:limits()))
      assert.same({ 0, 0, 0 }, { rows("backlog", queue), rows("group", queue), rows("grant", queue) })
      assert.same({ { limited = 0 } },
        sql("SELECT limited FROM nightshift_queue WHERE name = ?", queue))
      assert.same({ ids[2], ids[1] }, { q:claim().id, q:claim().id })
    end)

    it("that changes the order moves the backlog, which has another order then", function()
      local q, queue = fresh_queue()
      assert(q:push_many { { "a" }, { "b" } })
      assert(q:limit { group = { running = 1 } })
      back(queue, "g")
      assert(q:limit { group = { running = 2 } })
      assert.equal(2, rows("backlog", queue))
      assert(q:limit { group = { running = 2, ordered = true } })
      assert.same({ 0, 2 }, { rows("backlog", queue),
        sql("SELECT COUNT(*) AS n FROM nightshift_ready WHERE queue_id = ? AND job_id > 0", queue_id(queue))[1].n })
      local id = queue_id(queue)
      sql([[INSERT INTO nightshift_backlog SELECT ?, 'g', 0, seq, seq, 1, 0, 0 FROM seq_1_to_10001]], id)
      local ok, message, code = q:limit { group = { running = 2 } }
      assert.same({ nil, "STATE" }, { ok, code })
      assert.matches("has more than 10000 jobs", message)
      assert.is_true(q:limits().group.ordered)
      assert(q:limit(nil)) -- claims move such a backlog
      assert.is_true(q:limits().lifted)
      assert.equal(1, sql("SELECT limited FROM nightshift_queue WHERE id = ?", id)[1].limited)
      sql("DELETE FROM nightshift_backlog WHERE queue_id = ?", id)
    end)

    it("goes with its queue when that is removed", function()
      local q, queue = fresh_queue()
      assert(q:limit { running = 1, backlog = 1 })
      assert(q:push "a")
      assert(q:claim():ack())
      assert.is_true((handle:remove_queue(queue)))
      assert.is_nil((q:limits()))
      for _ = 1, 2 do assert(q:push("a", nil, { wait = 20 })) end
      assert.equal(2, #q:claim_many(2))
    end)

    it("is in the audit, and is undone with its transaction", function()
      local q, queue = fresh_queue()
      assert(q:limit { running = 5, rate = { 500, 60 }, group = { rate = { 1, "90s" }, ordered = true, fair = true } })
      local row = handle:audit { verb = "limit", limit = 1 }[1]
      assert.equal(("queue %s: 5 running, 500/1m; each group: 1/90s, ordered; groups take turns"):format(queue),
        row.what)
      local _, _, code = handle:transaction(function(tx)
        assert(tx.queue)
        assert(q:limit { running = 6 })
        return nil, "no", "NO"
      end)
      assert.equal("NO", code)
      assert.equal(5, q:limits().running)
      assert(q:limit(nil))
      assert.equal(("queue %s: none"):format(queue), handle:audit { verb = "limit", limit = 1 }[1].what)
    end)
  end)

  describe("why", function()
    local function why(id, ...)
      local text, fact = assert(handle:why(id))
      assert.equal("limited", fact.kind, text)
      for _, words in ipairs { ... } do assert.is_truthy(text:find(words, 1, true), text) end
      return fact
    end

    it("names the jobs that have the places of a queue", function()
      local q, queue = fresh_queue()
      assert(q:limit { running = 2 })
      assert(q:push_many { { "a" }, { "b" }, { "c" } })
      sql("UPDATE nightshift_limit SET running = 3 WHERE queue_id = ?", queue_id(queue)) -- both may run meanwhile
      local jobs = {}
      sql("UPDATE nightshift_queue SET limited = 0 WHERE name = ?", queue)
      for i = 1, 2 do jobs[i] = assert(q:claim()) end
      assert(q:limit { running = 2 })
      local waits = assert(handle:jobs { queue = queue, state = "ready" })[1].id
      local fact = why(waits, ("waits for a place in queue %s, 2 of 2 running since 20"):format(queue),
        ("#%d 'a', #%d 'b'"):format(jobs[1].id, jobs[2].id))
      assert.same({ "running", 2, 2, queue }, { fact.limit, fact.running, fact.places, fact.queue })
      assert.equal(jobs[1].id, fact.held_by[1].id)
      for _, job in ipairs(jobs) do assert(job:ack()) end
      assert(handle:why(waits))
      assert.not_equal("limited", select(2, handle:why(waits)).kind)
    end)

    it("names the places, the order, the rate and the stop of a group", function()
      local q, queue = fresh_queue()
      local first, second, third = table.unpack(assert(q:push_many { { "a" }, { "a" }, { "a" } }))
      local job = assert(q:claim())
      local id = queue_id(queue)
      sql("UPDATE nightshift_job SET group_key = 'tenant:7' WHERE queue_id = ?", id)
      assert(q:limit { group = { running = 1, rate = { 1, "1h" } } })
      back(queue, "tenant:7")
      local fact = why(second, "waits for a place in group tenant:7, 1 of 1 running since ", ("#%d 'a'"):format(first))
      assert.equal("tenant:7", fact.group)
      assert(q:limit { group = { rate = { 1, "1h" } } })
      sql("UPDATE nightshift_group SET next_at = (SELECT MAX(claimed) FROM nightshift_lease) + 3600000000 "
        .. "WHERE queue_id = ?", id)
      fact = why(second, "waits for the rate of group tenant:7: next start in 59 min")
      assert.equal("rate", fact.limit)
      assert.is_true(fact.due > os.time())
      sql("UPDATE nightshift_group SET next_at = 0, stopped = ? WHERE queue_id = ?", (os.time() + 600) * 1000000, id)
      why(second, "for group tenant:7 is stopped until 20", "a job asked for it")
      assert(q:limit { group = { ordered = true } })
      back(queue, "tenant:7", true)
      fact = why(second, ("waits for job %d, which is before it in ordered group tenant:7"):format(first),
        ("; #%d 'a' has been running"):format(first))
      assert.equal(first, fact.before)
      assert(job:ack())
      why(third, ("waits for job %d, which is before it in ordered group tenant:7"):format(second))
    end)

    it("says when a queue's rate lets the next one start, and until when it is stopped", function()
      local q, queue = fresh_queue()
      local id = assert(q:push "a")
      assert(q:limit { rate = { 2, "1m", "window" } })
      sql("UPDATE nightshift_limit SET used = 2, next_at = ? WHERE queue_id = ?", os.time() * 1000000, queue_id(queue))
      why(id, ("waits for the rate of queue %s: next start in 5"):format(queue))
      assert.matches("its rate of 2/1m is used up, next start in 5", q:limits().holds)
      assert.is_true(q:limits().due > os.time() + 30)
      sql("UPDATE nightshift_limit SET stopped = ? WHERE queue_id = ?", (os.time() + 600) * 1000000, queue_id(queue))
      why(id, ("queue %s is stopped until 20"):format(queue))
      assert.matches("it is stopped for [59]", q:limits().holds)
    end)
  end)

  it("a job stops its group, or its queue, until it comes back", function()
    local q, queue = fresh_queue()
    assert(q:limit { running = 5 })
    assert(q:push("a", nil, { group = "tenant:7" }))
    local job = assert(q:claim())
    assert.has_error(function() job:again { retry_after = 600, stop = "all" } end)
    assert(job:again { retry_after = 600, stop = "queue" })
    assert.is_true(q:limits().stopped > os.time() + 500)
    local text, fact = handle:why(assert(q:push "c"))
    assert.is_truthy(text:find((" more: job %d asked for it"):format(job.id), 1, true), text)
    assert.equal(job.id, fact.stopped_by)
    sql("UPDATE nightshift_limit SET stopped = 0 WHERE queue_id = ?", queue_id(queue))
    assert(q:push("b", nil, { group = "tenant:8" }))
    local h = host.start(url, [[return { b = function(job)
      return job:again { retry_after = 600, stop = "group" } end }]], { "--queues", queue })
    eventually(function()
      local row = sql("SELECT stopped FROM nightshift_group WHERE queue_id = ? AND group_key = 'tenant:8'",
        queue_id(queue))[1]
      return row and row.stopped > (os.time() + 500) * 1000000
    end)
    host.stop(h)
    local by = handle:jobs { queue = queue, state = "scheduled", name = "b" }[1].id
    local waits = assert(q:push("d", nil, { group = "tenant:8" }))
    assert.matches(("group tenant:8 is stopped .*: job %d asked for it"):format(by), (handle:why(waits)))
    assert(handle:cancel(handle:jobs { queue = queue, name = "c" }[1].id))
    assert(handle:cancel(job.id))
    assert.is_nil(q:claim())
    assert.matches("^its one group with jobs is stopped for [59].* more$", q:limits().holds)
  end)

  describe("a bound of waiting jobs", function()
    local MESSAGE <const> = "queue %s is full: 3 jobs wait, and its limit allows no more; push later"

    local function full(queue, id, message, code)
      assert.same({ nil, "FULL" }, { id, code })
      assert.is_truthy(message:find(MESSAGE:format(queue), 1, true), message)
    end

    --- A queue with a bound of three jobs, which wait.
    local function full_queue(more)
      local q, queue = fresh_queue()
      local given = { backlog = 3 }
      for key, value in pairs(more or {}) do given[key] = value end
      assert(q:limit(given))
      for i = 1, 3 do assert(q:push("a", i)) end
      return q, queue
    end

    local function command(argv, input)
      local all = { proc.build .. "/bin/nightshift", "--url", url, table.unpack(argv) }
      all.stdin = input
      return proc.run(all)
    end

    it("refuses every push of programs, of the shell and of SQL, and says so", function()
      local q, queue = full_queue()
      full(queue, q:push("a", 4))
      full(queue, q:push_many { { "a" }, { "a" } })
      full(queue, q:push("a", 4, { delay = 60 }))
      full(queue, handle:flow { name = "root", queue = queue, children = { { name = "a" } } })
      local _, message, code = handle:transaction(function(tx) return tx:queue(queue):push("a") end)
      full(queue, nil, message, code)
      local none, said = handle:execute("CALL nightshift_push(?, 'a', '1', NULL)", queue)
      assert.is_nil(none)
      assert.is_truthy(said:find(("nightshift_push: FULL: queue %s is full: 3 jobs wait"):format(queue), 1, true), said)
      local status, out, err = command { "push", queue, "a" }
      assert.same({ 1, "" }, { status, out })
      assert.is_truthy(err:find(MESSAGE:format(queue), 1, true), err)
      status, out, err = command({ "push", queue, "a", "--lines" }, "1\n2\n")
      assert.same({ 1, "" }, { status, out })
      assert.matches("lines 1 to 2: queue .* is full.*%(FULL%); 0 jobs pushed before them", err)
      assert.equal(3, rows("ready", queue) - sql(
        "SELECT COUNT(*) AS n FROM nightshift_ready WHERE queue_id = ? AND job_id <= 0", queue_id(queue))[1].n)
    end)

    it("says of one job that it waits", function()
      local q, queue = fresh_queue()
      assert(q:limit { backlog = 1 })
      assert(q:push "a")
      local _, message = q:push "a"
      assert.matches(": 1 job waits, and its limit", message)
      _, message = handle:execute("CALL nightshift_push(?, 'a', '1', NULL)", queue)
      assert.matches("is full: 1 job waits; push later", message)
    end)

    it("does not count jobs that were cancelled or moved, while no claim can start another", function()
      local q, queue = full_queue { running = 1 }
      assert(q:claim())
      assert(q:push("a", 4))
      assert.is_nil(q:claim())
      assert.equal(3, rows("backlog", queue))
      assert.same({ true, 3 }, { q:limits().full, q:limits().counts.waiting })
      local ids = assert(handle:jobs { queue = queue, state = "ready" })
      assert(handle:cancel(ids[1].id))
      assert(handle:move { queue = queue, state = "ready", to = queue .. "b" })
      assert.same({ nil, 0 }, { q:limits().full, q:limits().counts.waiting })
      for i = 1, 3 do assert(q:push("a", i, { wait = 20 })) end
      full(queue, q:push("a", 4))
    end)

    it("is shown, and ends with the limit", function()
      local q, queue = full_queue()
      assert.same({ 3, true, 3 }, { q:limits().backlog, q:limits().full, q:limits().counts.waiting })
      assert.is_nil(q:limits().counts.running)
      assert.equal(0, sql("SELECT limited FROM nightshift_queue WHERE name = ?", queue)[1].limited)
      assert.matches(queue .. " +3 +0 +3 waiting +full: pushes are refused", select(2, command { "limits" }))
      assert.is_truthy(select(2, command { "status" }):find(
        ("next: nightshift limits %s  # pushes are refused: 3 of 3 jobs wait\n"):format(queue), 1, true))
      assert.equal(3, nightshift.decode((select(2, command { "limits", queue, "--json" }))).backlog)
      assert(q:limit { running = 9 })
      assert.is_nil(q:limits().backlog)
      assert(q:push("a", 4, { wait = 20 })) -- at the next count
      assert.equal(queue .. ": 9 running, 4 waiting\n",
        (select(2, command { "limit", queue, "--running", "9", "--backlog", "4" })))
      assert(q:limit(nil))
      assert(q:push("a", 5, { wait = 20 }))
      assert.is_nil((q:limits()))
    end)

    it("counts jobs in the backlog of the other limits, too, and none that runs or is due later", function()
      local q, queue = full_queue { running = 1 }
      local job = assert(q:claim())
      assert.equal(2, rows("backlog", queue))
      assert(q:push("a", 4, { delay = 3600, wait = 20 }))
      assert(q:push("a", 5, { wait = 20 }))
      full(queue, q:push("a", 6))
      assert(job:ack())
    end)

    it("lets children, schedules and retries in anyhow", function()
      local q, queue = full_queue()
      local job = assert(q:claim())
      assert(q:push("a", 4, { wait = 20 }))
      assert(q:push("child", 1, { parent = job.id }))
      job:spawn("child", 2)
      assert(job:ack())
      assert(handle:schedule { name = "tick" .. queue, cron = "0 3 1 1 *", push = { "a", nil, { queue = queue } } })
      assert(handle:schedule_run("tick" .. queue))
      assert.equal(6, q:stats().ready)
      assert(handle:retry(job.id))
      assert.equal(7, q:stats().ready)
      full(queue, q:push("a", 5))
    end)

    it("is gone over by moved jobs, and by those that are pushed for dead ones", function()
      local q, queue = full_queue()
      local other = fresh_queue()
      local ids = assert(other:push_many { { "a" }, { "a" } })
      assert.equal(2, assert(handle:move { queue = other.name, name = "a", to = queue }).changed)
      assert.equal(5, q:stats().ready)
      assert.equal(queue, handle:job(ids[1]).queue)
      full(queue, q:push("a", 4))
      assert(other:push("dies", 1, { max_attempts = 1 }))
      local h = host.start(url, ([[return { bury = function() end,
        dies = { on_dead = "bury", on_dead_queue = %q, run = function() error "no" end } }]]):format(queue),
        { "--queues", other.name })
      eventually(function() return q:stats().ready == 6 end)
      host.stop(h)
      assert.equal("bury", handle:jobs { queue = queue, name = "bury" }[1].name)
      full(queue, q:push("a", 4))
    end)

    it("makes a push with `wait` wait for room, or so long", function()
      local q, queue = full_queue()
      local began = nightshift.clock()
      full(queue, q:push("a", 4, { wait = 0.2 }))
      assert.is_true(nightshift.clock() - began >= 0.2)
      local _, message, code = handle:transaction(function(tx) return tx:queue(queue):push("a", 4, { wait = 1 }) end)
      assert.equal("INVALID", code)
      assert.matches("a transaction does not wait for room", message)
      local waits = proc.start { proc.build .. "/bin/nightshift", "--url", url, "push", queue, "b", "--wait", "60" }
      full(queue, q:push_many({ { "a" } }, { wait = 0.5 })) -- it waits meanwhile
      assert(assert(q:claim()):ack())
      waits:wait_line("^%d+$", 60)
      assert.equal(0, (waits:wait()))
      assert.equal(3, q:stats().ready)
    end)

    it("is learned by programs that know the queue, within about a hundred pushes", function()
      local q, queue = fresh_queue()
      local other <close> = assert(nightshift.open(url))
      assert(other:queue(queue):push("a"))
      assert(q:limit { backlog = 2 })
      local pushes = 0
      while pushes < 300 and other:queue(queue):push("a") do pushes = pushes + 1 end
      assert.equal("FULL", (select(3, other:queue(queue):push("a"))))
      assert.is_true(pushes <= 100, pushes)
    end)

    it("costs pushes to other queues nothing", function()
      local q = fresh_queue()
      local function cost()
        assert(q:push("a"))
        local function status()
          local list = {}
          for _, row in ipairs(sql [[SHOW SESSION STATUS WHERE Variable_name IN ('Com_stmt_execute', 'Handler_read_key',
            'Handler_read_first', 'Handler_read_next', 'Handler_read_rnd_next', 'Handler_write')]]) do
            list[row.Variable_name] = tonumber(row.Value)
          end
          return list
        end
        local least = {}
        for _ = 1, 3 do -- one of them may take new ids
          local before = status()
          for _ = 1, 5 do assert(q:push("a")) end
          for key, value in pairs(status()) do
            least[key] = math.min(least[key] or math.huge, value - before[key])
          end
        end
        return least
      end
      sql "UPDATE nightshift_queue SET backlog = NULL"
      for _ = 1, 110 do assert(q:push("a")) end -- the last bounds are forgotten
      local without = cost()
      full_queue()
      assert.same(without, cost())
    end)
  end)

  describe("the commands", function()
    local function run(exit, ...)
      local argv = { proc.build .. "/bin/nightshift", "--url", url, ... }
      local status, out, err = proc.run(argv)
      assert.equal(exit, status, out .. err)
      return out, err
    end

    it("set a limit, show it with its groups, and end it", function()
      local q, queue = fresh_queue()
      local out = run(0, "limit", queue, "--running", "1", "--rate", "500/1m", "--group-running", "2",
        "--group-rate", "10/1s", "--ordered", "--fair")
      assert.equal(queue
        .. ": 1 running, 500/1m; each group: 2 running, 10/1s, ordered; groups take turns\n", out)
      run(0, "limit", queue, "--running", "1", "--rate", "5/1m", "--window")
      assert.same({ 5, 60, "window" }, q:limits().rate)
      assert(q:push_many { { "a" }, { "a" }, { "a" } })
      sql("UPDATE nightshift_queue SET limited = 0 WHERE name = ?", queue)
      assert(q:claim())
      assert(q:limit { running = 1 })
      back(queue, "tenant:7")
      out = run(0, "limits", queue)
      assert.matches("\n" .. queue .. " +1/1 +2 +1 +1 running +1 of 1 running\n", out)
      assert.matches("\nGROUP +RUNNING +WAITING.*\ntenant:7 +0 +2", out)
      assert.same({ 2, 1 }, { q:stats().ready, q:stats().running })
      assert.equal(2, #assert(handle:jobs { queue = queue, state = "ready" }))
      assert.equal("nightshift: 2 jobs would be cancelled; add --yes to do it\n",
        select(2, run(2, "cancel", "--queue", queue, "--state", "ready")))
      out = run(0, "status")
      assert.matches("\n" .. queue .. " +2 .* limited *\n", out)
      assert.matches("next: nightshift limits " .. queue .. "  # full limit: 1 of 1 running\n", out)
      assert.equal(queue .. ": no limit\n", (run(0, "limit", queue, "--off")))
      assert.matches("queue '" .. queue .. "' has no limit", select(2, run(1, "limits", queue)))
    end)

    it("say what is wrong with their options", function()
      local function says(words, ...)
        local err = select(2, run(2, "limit", "q", ...))
        assert.is_truthy(err:find(words, 1, true), err)
      end
      says "give a limit, like --running 10; or --off"
      says("--off goes without other options of a limit", "--off", "--running", "1")
      says("--rate must be starts and a time, like \"500/1m\"; got 'fast'", "--rate", "fast")
      says("--window goes with --rate or --group-rate", "--window")
      says("limit: running must be a whole number from 1", "--running", "0")
    end)
  end)

  it("cost a queue without one nothing: it is as before", function()
    local q, queue = fresh_queue()
    assert(q:push "a")
    assert(q:claim():ack())
    assert.equal("0", db.sql(("SELECT limited FROM nightshift_queue WHERE name = '%s'"):format(queue), name))
  end)
end)
