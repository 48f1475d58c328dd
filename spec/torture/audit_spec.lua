-- The audit of a torture finds faults: each kind is planted once, in a small world that is
-- otherwise in order.

local audit = require "spec.torture.audit"
local journal = require "spec.torture.journal"
local lab = require "spec.support.db".lab
local nightshift = require "nightshift"

local folder, db, q, write

-- A writer per file, so that a test can add lines.
local function writers()
  return setmetatable({}, { __index = function(t, name)
    local fn = journal.writer(folder, name)
    rawset(t, name, fn)
    return fn
  end })
end

-- Pushes a job as the pusher does and writes that down.
local function push(tag, options)
  write.pushes("intend", tag, "one", 1)
  local id = assert(q:push("work", { tag = tag .. ".1" }, options))
  write.pushes("acked", tag, id)
  return id
end

local function start(job, plan, last, who)
  write.runs("start", job.id, job.run, 4711, who or "host1", last or 0, plan or "ack")
end

local function finish(job, verdict) write.runs("finish", job.id, job.run, 4711, verdict) end

-- Claims a job and runs it as a handler would.
local function run(plan)
  local job = assert(q:claim())
  start(job, plan)
  return job
end

local function ack(job)
  finish(job, "ack")
  assert(job:ack())
  write.runs("answer", job.id, job.run, "ack", "ok")
end

local function kinds()
  local seen, list = {}, {}
  for _, finding in ipairs(audit.run(db, folder).findings) do
    if not seen[finding.kind] then list[#list + 1] = finding.kind end
    seen[finding.kind] = true
  end
  table.sort(list)
  return list
end

-- A world with a bit of everything in it.
local function world()
  folder = fixture.dir()
  write = writers()
  lab.fresh()
  db = lab.open()
  audit.prepare(db)
  q = db:queue "a"
  push "p1.1"
  ack(run())                                          -- at once
  push("p1.2", { backoff = 0 })
  local job = run "raise"
  finish(job, "fail")
  assert(job:fail "as planned")
  ack(run())                                          -- after a failure
  local parent = push "p1.3"
  job = run "spawn_again"
  local child = job:spawn("work", { tag = "p1.3.1.c1-1" })
  write.runs("spawn", job.id, job.run, child, "p1.3.1.c1-1")
  finish(job, "again")
  assert(job:again(0, { polls = 1, last = job.run }))
  job = assert(q:claim())
  start(job, "ack", 1)
  ack(job)
  ack(run())                                          -- the child
  write.pushes("intend", "p1.4", "rolled", 2)
  write.pushes("rolled", "p1.4")
  push "p1.5"
  job = run "ack"                                     -- killed with its worker
  write.faults("fault", "worker-KILL", 4711)
  assert(job:release())
  ack(run())
  local cancelled = push("p1.6", { delay = 60 })
  write.verbs("cancel", cancelled, "intend")
  assert(db:cancel(cancelled))
  write.verbs("cancel", cancelled, "ok")
  assert(db:execute "DELETE FROM nightshift_scheduled") -- its claimer drops it when due
  return parent, child
end

-- Closed before the look: a holder that leaves takes its row away.
local function rest()
  db:close()
  db = lab.open()
end

describe("the audit", function()
  after_each(function() db:close() end)

  it("finds nothing where nothing is wrong", function()
    world()
    rest()
    local report = audit.run(db, folder)
    assert.same({}, report.findings)
    assert.equal(5, report.counts.done)
    assert.equal(1, report.counts["again: fault of its worker"])
    assert.equal(1, report.counts["again: again"])
  end)

  -- name of the fault, what is planted, kinds that must be reported
  local function plants(name, plant, ...)
    local expected = { ... }
    it("reports " .. name, function()
      local parent, child = world()
      plant(parent, child)
      rest()
      assert.same(expected, kinds())
    end)
  end

  local function sql(text, ...) return assert(db:execute(text, ...)) end

  -- A job that is dead, and one that was pushed for it.
  local function death()
    require("spec.torture.checks").deaths.prepare(db)
    local dead = push("p2.1", { max_attempts = 1 })
    local job = run "raise"
    finish(job, "fail")
    assert(job:fail "as planned")
    assert(assert(db:queue "deaths":claim()):ack())
    return dead
  end

  it("finds nothing wrong with a job for each death", function()
    world()
    local dead = death()
    assert(db:retry(dead))
    write.verbs("retry", dead, 1, "dead", "intend")
    write.verbs("retry", dead, 1, "dead", "ok")
    ack(run())
    rest()
    local report = audit.run(db, folder)
    assert.same({}, report.findings)
    assert.equal(1, report.counts["deaths with a job"])
  end)

  plants("a death without a job", function()
    death()
    sql "DELETE FROM nightshift_finished WHERE name = 'death'"
  end, "death")

  plants("a job for what did not die", function()
    death()
    sql "UPDATE nightshift_finished SET payload = JSON_SET(payload, '$.run', 7) WHERE name = 'death'"
  end, "death")

  plants("a job that is lost", function(parent)
    sql("DELETE FROM nightshift_finished WHERE id = ?", parent)
  end, "lost", "lost ack")

  plants("a job in a batch that had failed before", function(parent)
    local row = sql("SELECT job_id AS id, run FROM nightshift_attempt WHERE kind = 'failed'")[1]
    write.runs("member", row.id, row.run + 1, "key", 2)
    write.runs("member", parent, 1, "key", 2)
  end, "batch")

  plants("a push that was refused and is there", function()
    write.pushes("refused", "p1.1", "BUSY")
  end, "ghost")

  plants("a push that was rolled back and is there", function()
    write.pushes("intend", "p2.1", "rolled", 1)
    write.pushes("rolled", "p2.1")
    assert(q:push("work", { tag = "p2.1.1" }))
    ack(run())
  end, "ghost", "half")

  plants("half a bulk push", function()
    write.pushes("intend", "p2.1", "bulk", 2)
    assert(q:push("work", { tag = "p2.1.1" }))
    ack(run())
  end, "half")

  plants("a transaction that wrote its row and not its job", function()
    write.pushes("intend", "p2.1", "transaction", 1)
    sql "INSERT INTO torture_note VALUES ('p2.1')"
  end, "half")

  plants("a push that happened twice", function()
    assert(q:push("work", { tag = "p1.1.1" }))
    ack(run())
  end, "doubled")

  plants("a job that nobody pushed", function()
    assert(q:push("work", { tag = "p9.1.1" }))
    ack(run())
  end, "unknown")

  plants("a child that nobody spawned", function(_, child)
    sql("UPDATE nightshift_finished SET parent = parent + 1 WHERE id = ?", child)
  end, "unknown")

  plants("a child that was lost", function(_, child)
    sql("DELETE FROM nightshift_finished WHERE id = ?", child)
  end, "children", "left over", "lost", "lost ack")

  plants("a child of a verdict that was not accepted", function()
    push "p2.1"
    local job = run "spawn_raise"
    write.runs("spawn", job.id, job.run, 99900, "p2.1.1.c1-1")
    finish(job, "fail")
    assert(job:fail("as planned", { retry_in = 0 }))
    ack(run())
    sql([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, reason, run, result,
      error, attempts, polls, crashes, lost, max_attempts, max_polls, max_crashes, backoff, timeout, deadline, created,
      finished_at, parent, root, on_fail, ukey, nonce, holder, decay)
      SELECT 99900, queue_id, name, '{"tag":"p2.1.1.c1-1"}', priority,
      'cancelled', NULL, run, NULL, NULL, attempts, polls, crashes, lost, max_attempts, max_polls, max_crashes, backoff,
      timeout, deadline, created, finished_at, id, id, on_fail, ukey, nonce, holder, decay
      FROM nightshift_finished WHERE id = ?]], job.id)
    write.verbs("cancel", 99900, "ok")
  end, "children")

  plants("a run that was executed twice", function()
    push "p2.1"
    local job = run()
    start(job)
    ack(job)
  end, "twice")

  plants("a row that was written with a verdict that did not count", function(parent)
    sql("INSERT INTO torture_effect VALUES (?, 1)", parent)
  end, "double effect")

  plants("a row that was written twice", function(parent)
    sql("INSERT INTO torture_effect VALUES (?, 2), (?, 2)", parent, parent)
  end, "double effect")

  plants("a job that is done and never finished", function()
    push "p2.1"
    local job = run()
    assert(job:ack())
  end, "effect")

  plants("a job that is done and never ran", function()
    push "p2.1"
    assert(q:claim()):ack()
  end, "effect")

  plants("an ack that was taken for a failure", function()
    push("p2.1", { max_attempts = 1 })
    local job = run()
    finish(job, "ack")
    assert(job:fail "wrong")
  end, "effect")

  plants("nothing of an ack whose worker was frozen before it was told", function()
    push("p2.1", { max_attempts = 1 })
    local job = run()
    finish(job, "ack")
    write.faults("fault", "worker-STOP", 4711)
    assert(job:fail "timeout after 3 s")
  end)

  plants("an ack that was confirmed and did not count", function()
    push "p2.1"
    local job = run()
    finish(job, "ack")
    write.runs("answer", job.id, job.run, "ack", "ok")
    assert(job:release())
    write.faults("fault", "host-KILL", "host1", 1)
    ack(run())
  end, "lost ack")

  plants("a run that was repeated for no reason", function()
    push "p2.1"
    local job = assert(q:claim())
    start(job, "ack", 0, "host7")
    write.runs("finish", job.id, job.run, 4712, "ack")
    write.faults("fault", "host-KILL", "host2", 2)
    assert(job:release())
    local again = assert(q:claim())
    write.runs("start", again.id, again.run, 4713, "host7", 0, "ack")
    ack(again)
    assert(io.open(folder .. "/faults", "wb")):close() -- the fault of worker 4711 would explain it
  end, "unexplained")

  plants("a run after the end", function(parent)
    start { id = parent, run = 9 }
  end, "after")

  plants("a state that is not the one that was kept", function(parent)
    write.runs("bad", parent, 2, "state-of-poll-7")
  end, "state")

  plants("a job that is cancelled and nobody asked", function()
    local id = push("p2.1", { delay = 60 })
    assert(db:cancel(id))
    sql "DELETE FROM nightshift_scheduled"
  end, "cancelled")

  plants("a cancel that was confirmed and did not hold", function(parent)
    write.verbs("cancel", parent, "ok")
  end, "verb")

  plants("a retry that was confirmed and did not happen", function(parent)
    write.verbs("retry", parent, 2, "done", "ok")
  end, "verb")

  -- A tree as the pruner pushes it, worked off; its root, and the ids as they are written.
  local function tree()
    write.pushes("intend", "tree.p.1", "tree", 3)
    local id, ids = assert(db:flow { name = "work", queue = "a", payload = { tag = "tree.p.1.1" }, children = {
      { name = "work", payload = { tag = "tree.p.1.2" } }, { name = "work", payload = { tag = "tree.p.1.3" } } } })
    local list = ("%d,%d,%d"):format(id, ids.children[1].id, ids.children[2].id)
    write.pushes("acked", "tree.p.1", list)
    for _ = 1, 3 do ack(run()) end
    return id, list
  end

  local function prune(id, how)
    write.verbs("prune", id, "intend")
    if how then write.verbs("prune", id, how) end
  end

  plants("nothing of a tree that was pruned, nor of one that was not", function()
    local id = tree()
    prune(id, "ok")
    assert(db:prune { tree = id })
  end)

  plants("a tree of which nobody pruned a job", function()
    sql("DELETE FROM nightshift_finished WHERE parent = ? LIMIT 1", (tree()))
  end, "left over", "lost", "lost ack")

  plants("what is left of a tree that was pruned", function()
    local id = tree()
    prune(id, "ok")
    sql("DELETE FROM nightshift_finished WHERE parent = ? LIMIT 1", id)
  end, "half pruned", "left over")

  plants("a tree that was pruned from its top", function()
    local id = tree()
    prune(id)
    sql("DELETE FROM nightshift_finished WHERE id = ?", id)
  end, "half pruned")

  plants("a job that was pruned before it ended", function()
    local id, list = tree()
    prune(id, "ok")
    assert(db:prune { tree = id })
    write.pushes("acked", "tree.p.1", list .. ",100000")
  end, "pruned")

  -- A host that ended well; it has run a job of three lines to its end.
  local function log(text)
    push "p2.1"
    local job = assert(q:claim())
    start(job, "logs", 0, "host9")
    write.runs("logged", job.id, job.run, 3)
    ack(job)
    write.faults("end", "well", "host9")
    local file <close> = assert(io.open(folder .. "/host9.err", "wb"))
    for line in text:gmatch "%S+" do
      file:write("ts=1 level=info event=", (line:gsub("_", " "):gsub("ID", job.id)), "\n")
    end
  end

  plants("nothing of lines that are there", function() log "job.log_id=ID job.log_id=ID job.log_id=ID" end)

  plants("nothing of lines that the log says it dropped", function() log "job.log_id=ID log.dropped_lines=2" end)

  plants("lines that are not in a log", function() log "job.log_id=ID log.dropped_lines=1" end, "log")

  plants("a line that is none", function() log "job.log_id=ID job.log_id=ID job.log_id=ID ?" end, "log")

  plants("a job that was nowhere and was mended", function()
    log "job.log_id=ID job.log_id=ID job.log_id=ID job.mended_id=7"
  end, "nowhere")

  plants("a signal that reached nobody", function()
    local id = push "p2.1"
    sql "DELETE FROM nightshift_ready WHERE job_id > 0"
    write.verbs("signal", id, 1, "ok")
  end, "left over", "stuck", "unfinished")

  plants("a job that was replaced and is lost", function() write.latest("acked", 77) end, "lost")

  plants("a job that was deleted and is there", function()
    local id = assert(q:push("erased", 1))
    assert(assert(q:claim()):ack())
    write.erased("acked", id)
    write.erased("delete", id, "ok")
  end, "erased")

  plants("a job that is gone though its delete was refused", function()
    write.erased("acked", 77)
    write.erased("delete", 77, "STATE")
  end, "lost")

  plants("a job that was pushed within the period of another", function()
    for i = 1, 2 do
      local id = push("p2." .. i)
      ack(run())
      sql("UPDATE nightshift_finished SET ukey = 'held 1', created = ? WHERE id = ?", i * 500000, id)
    end
  end, "unique")

  plants("a job that has not ended", function()
    push "p2.1"
    sql "DELETE FROM nightshift_ready WHERE job_id > 0"
  end, "left over", "unfinished")

  -- planted last: each handle that connects looks after holders and leases
  for _, left in ipairs {
    { "ready", "INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run) VALUES (1, 155, 1, 77, 1)" },
    { "scheduled", "INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run) VALUES (1, 77, 1, 155, 1)" },
    { "edge", "INSERT INTO nightshift_edge (on_id, job_id) VALUES (1, 77)" },
    { "lease", "INSERT INTO nightshift_lease (id, holder, claimed, jobs) VALUES (1, 1, 1, '[[77,1]]')" },
    { "unique key", "INSERT INTO nightshift_unique_key (queue_id, ukey, job_id) VALUES (1, 'key', 77)" },
    { "signal", "INSERT INTO nightshift_signal (job_id, name, value, sent) VALUES (77, 'go', '1', 1)" },
    { "notice", "INSERT INTO nightshift_notice (holder, job_id, run, kind, created) VALUES (1, 77, 1, 1, 1)" },
    { "running", "INSERT INTO nightshift_running (job_id, run, holder, started, touched) VALUES (77, 1, 1, 1, 1)" },
    { "expiry", "INSERT INTO nightshift_expiry (lease, expires) VALUES (1, 1)" },
    { "holder", [[INSERT INTO nightshift_holder (id, kind, host, pid, boot_id, connection, started, beat, version)
      VALUES (1, 'host', 'here', 1, '', 1, 1, 1, '0')]] },
  } do
    it("reports a row of " .. left[1] .. " left over", function()
      world()
      rest()
      assert(db:execute(left[2]))
      assert.same({ "left over" }, kinds())
    end)
  end
end)

describe("the journal", function()
  it("keeps the lines of many writers whole", function()
    local nst = require "nst"
    folder = fixture.dir()
    local pids = {}
    for i = 1, 4 do
      pids[i] = nst.fork(function()
        local note = journal.writer(folder, "runs")
        for n = 1, 500 do note("start", i, n, ("x"):rep(n % 100)) end
      end)
    end
    for _, pid in ipairs(pids) do eventually(function() return nst.reap(pid) end) end
    local n, last = 0, {}
    for w in journal.lines(folder, "runs") do
      n = n + 1
      assert.equal("start", w[1])
      assert.is_true(w[2] <= nightshift.clock())
      assert.equal((last[w[3]] or 0) + 1, tonumber(w[4]))
      last[w[3]] = tonumber(w[4])
    end
    assert.equal(2000, n)
  end)
end)
