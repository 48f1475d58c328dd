-- The harness itself, which other specs rely on. The checks in C: frames, rings, slots, pacing,
-- batches, names, lines, log lines and looks of the host. And the crash sweep of the shared
-- dict: its process is killed at every store of every change.
-- The benches: they still measure the tables as they are, and the one of designs still sees a job
-- that runs twice. They are very small, and their figures mean nothing. The audit of a torture
-- finds faults: each kind is planted once, in a small world that is otherwise in order.

local audit = require "spec.torture.audit"
local host = require "spec.support.host"
local journal = require "spec.support.proc".journal
local lab = require "spec.support.db".lab
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local servers = require "spec.support.db"

describe("a process", function()
  it("gives back its status and both outputs", function()
    local status, out, err = proc.run { "sh", "-c", "echo out; echo err >&2; exit 3" }
    assert.same({ 3, "out\n", "err\n" }, { status, out, err })
  end)

  it("gets text, environment and folder", function()
    local dir = fixture.dir()
    local _, out = proc.run { "sh", "-c", "cat; echo $A-$HOME; pwd", stdin = "hello\n", cwd = dir,
      env = { A = "a", HOME = false } }
    assert.equal("hello\na-\n" .. dir .. "\n", out)
  end)

  it("that cannot be started raises with its name", function()
    assert.error_matches(function() proc.start { "/nonexistent/program" } end, "/nonexistent/program: No such file")
  end)

  it("is waited for by what it prints", function()
    local p = proc.start { "sh", "-c", "echo one; sleep 0.2; echo port 42; exec sleep 100" }
    assert.equal("42", p:wait_line "^port (%d+)")
    assert.equal("one", p:wait_line "one")
    p:signal "TERM"
    assert.equal("signal 15", p:wait())
  end)

  it("that ends without the line raises with what it printed", function()
    local p = proc.start { "sh", "-c", "echo other" }
    assert.error_matches(function() p:wait_line "never" end, "no line like \"never\".*other")
  end)

  it("has nothing open but its standard files", function()
    local _, out = proc.run { "sh", "-c", "ls /proc/self/fd | wc -l" }
    assert.equal(4, tonumber(out)) -- and the folder that ls reads
  end)

  it("is killed with its children when it is forgotten", function()
    local p = proc.start { "sh", "-c", "sleep 100 & echo $!; wait" }
    local child = tonumber(p:wait_line "%d+")
    p:forget()
    eventually(function() return not nst.kill(child, "0") or
      io.open("/proc/" .. child .. "/stat"):read "a":find(" Z ", 1, true) end)
  end)
end)

describe("the server", function()
  it("runs SQL and gives rows", function()
    assert.equal("1\tx\n2\tNULL", servers.sql "SELECT 1, 'x' UNION SELECT 2, NULL")
    assert.error_matches(function() servers.sql "SELECT nonsense" end, "nonsense")
  end)

  it("has a new database with tables for each who asks", function()
    local url, name = servers.fresh()
    local _, other = servers.fresh()
    assert.not_equal(name, other)
    assert.equal("0", servers.sql("SELECT COUNT(*) FROM nightshift_job", name))
    local handle <close> = assert(require "nightshift".open(url))
    assert.is_truthy(handle)
  end)

  it("makes users who may little", function()
    local url, name = servers.empty()
    servers.sql("CREATE TABLE t (a INT)", name)
    local weak = servers.user(url, "SELECT")
    local handle <close> = assert(require "nightshift.core".open { url = weak, no_schema = true })
    assert.same({}, handle:execute "SELECT * FROM t")
    assert.equal("DENIED", select(3, handle:execute "INSERT INTO t VALUES (1)"))
  end)

  it("of one's own can be stopped, killed and started", function()
    local server = servers.server()
    local _, name = server:fresh()
    server:kill()
    assert.error_matches(function() server:sql "SELECT 1" end, "Can't connect")
    server:start()
    assert.equal("0", server:sql("SELECT COUNT(*) FROM nightshift_job", name))
    server:stop()
    assert.is_false(pcall(server.sql, server, "SELECT 1"))
  end)
end)

describe("eventually", function()
  it("gives what the function gave", function()
    local n = 0
    assert.same({ 3, "x" }, { eventually(function()
      n = n + 1
      return n == 3 and n, "x"
    end) })
  end)

  it("raises in the end", function()
    assert.error_matches(function() eventually(function() end, 0.05) end, "not within 0.05 s")
  end)
end)

-- Builds a program of mk/test.mk and runs it; it says each group that it has checked.
local function assert_checks(name, groups)
  local folder = proc.build:gsub("^" .. proc.root:gsub("%p", "%%%0") .. "/", "")
  local status, out, err = proc.run { "/usr/bin/env", "make", "-s", "O=" .. folder, folder .. "/" .. name,
    timeout = 300 }
  assert.equal(0, status, out .. err)
  status, out, err = proc.run { proc.build .. "/" .. name, timeout = 120 }
  assert.equal(0, status, out .. err)
  for _, group in ipairs(groups) do assert.matches(group .. "\n", out, 1, true) end
end

it("the host's pure parts hold", function()
  assert_checks("host-units", {
    "frames", "rings", "bell", "slots", "limits", "pacing", "storms", "batches", "spilling", "names",
    "lines", "log lines", "utf8", "windows", "single",
  })
end)

it("a change of the dict is done or not done, wherever its process is killed", function()
  assert_checks("shared-units", {
    "sizes", "crashes", "crashes in lock and unlock", "the table of locks", "a latch that many want",
  })
end)

local function bench(args)
  local p = proc.start { "make", "--no-print-directory", "bench", "ARGS=" .. args }
  return p:wait(240), p
end

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

-- Figures of the row with a title that begins like this.
local function row(report, title)
  for _, question in ipairs(report.questions) do
    for _, found in ipairs(question.rows) do
      if found.what:sub(1, #title) == title then return found end
    end
  end
end

describe("the bench", function()
  it("answers questions, as Markdown and as JSON", function()
    local file = os.tmpname()
    local asked = "push,claim,handles,work,latency,flows,capacity"
    local status, p = bench(("--only %s --rounds 1 --scale 0.002 --json %s"):format(asked, file))
    local report = nightshift.decode(read(file))
    os.remove(file)
    assert.equal(0, status, p:transcript())
    local out = p:text()
    for _, title in ipairs {
      "push_many, 1000 a time, C", "push, one a time, Lua", "push in a transaction, Lua", "claim + ack, batch 1000, C",
      "8 handles, batch 100", "2 workers", "20 siblings",
    } do
      local figures = assert(row(report, title), title)
      assert.is_true(figures.floor > 0, title)
      assert.is_true(out:find("| " .. figures.what .. " | ", 1, true) ~= nil, title)
    end
    assert.is_true(row(report, "bare SQL").p99_ms > 0)
    assert.is_true(row(report, "2 workers").server_cpu_s >= 0)
    local alone, many = row(report, "pushed and worked off one by one"), row(report, "worked off, 2 workers")
    assert.is_true(alone.redo_bytes > many.redo_bytes and many.redo_bytes > 100)
    assert.matches("innodb%-flush%-log%-at%-trx%-commit=1", report.settings)
    assert.matches("MariaDB", report.versions.server)
    for _, question in ipairs(report.questions) do
      assert.is_true(#question.rows > 0, question.name)
      assert.is_true(out:find("### " .. question.title, 1, true) ~= nil, question.name)
    end
  end)

  -- They used to stay for ever: the hosts of a bench that was killed, with hundreds of
  -- workers, and its server.
  for _, signal in ipairs { "TERM", "KILL" } do
    it("leaves no process behind when it gets a SIG" .. signal, function()
      local p = proc.start { "make", "--no-print-directory", "bench", "ARGS=--only memory --rounds 1 --scale 0.004" }
      eventually(function() return #host.members(p.pid) == 2 end, 120)
      local all = host.family(p.pid)
      p:signal(signal)
      p:wait()
      host.await_gone(all)
    end)
  end

  it("says which questions there are", function()
    local status, p = bench "--only nonsense"
    assert.not_equal(0, status)
    local out, err = p:text()
    assert.matches("no question 'nonsense'; there are: push claim", out .. err)
  end)
end)

local function bench_designs(only, args)
  local p = proc.start { "make", "--no-print-directory", "bench-strategies", "ONLY=" .. only, "ARGS=" .. args }
  return p:wait(240), p
end


local function sum(lines, name, field)
  local n = 0
  for _, line in ipairs(lines) do
    if line.name == name then n = n + (line[field] or 0) end
  end
  return n
end

describe("the bench of designs", function()
  it("sets ours beside the published one, and sees what runs twice", function()
    local json, doc = os.tmpname(), os.tmpname()
    local page <close> = assert(io.open(doc, "w"))
    page:write "before\n<!-- strategies:begin -->\nold\n<!-- strategies:end -->\nafter\n"
    page:close()
    -- Between its lock and its mark a worker loses 20 ms, in which another finds the
    -- row as it was.
    local status, p = bench_designs("skip_inside,skip_outside,skip_host", ("--topics work --workers 1,4 --rounds 1"
      .. " --ms 250 --rows 400 --gap-ms 20 --json %s --doc %s"):format(json, doc))
    assert.equal(0, status, p:transcript())
    local lines, text = nightshift.decode(read(json)).work, read(doc)
    assert.equal(6, #lines)
    for _, name in ipairs { "skip_inside", "skip_outside", "skip_host" } do
      assert.is_true(sum(lines, name, "jobs") > 0, name)
    end
    assert.equal(0, sum(lines, "skip_host", "again"))
    assert.equal(0, sum(lines, "skip_inside", "again"))
    assert.is_true(sum(lines, "skip_outside", "again") > 0)
    for _, title in ipairs { "Jobs per second", "Time of a claim", "Lock waits", "Jobs that ran more than once" } do
      assert.is_true(p:text():find("### " .. title, 1, true) ~= nil, title)
      assert.is_true(text:find("### " .. title, 1, true) ~= nil, title)
    end
    assert.matches("^before\n<!%-%- strategies:begin %-%->\nMachine", text)
    assert.matches("<!%-%- strategies:end %-%->\nafter\n$", text)
    assert.is_nil(text:find("old", 1, true))
    for _, name in ipairs { "rate", "claim" } do
      local svg = read(("%s.plots/%s.svg"):format(doc, name))
      assert.matches("^<svg .*</svg>\n$", svg)
      if name == "rate" then assert.matches(">adopted, advised index, one host</text>", svg) end
      os.remove(("%s.plots/%s.svg"):format(doc, name))
    end
    os.remove(doc .. ".plots")
    os.remove(doc)
    os.remove(json)
  end)

  it("asks a large table with each index, when that topic is named", function()
    local json = os.tmpname()
    local status, p = bench_designs("rows", "--many 5000 --many-ms 200 --json " .. json)
    assert.equal(0, status, p:transcript())
    local kept = nightshift.decode(read(json))
    assert.same({ 0, 4 }, { #kept.work, #kept.rows })
    for _, name in ipairs { "skip_inside", "skip_indexed" } do
      assert.is_true(sum(kept.rows, name, "jobs") > 0, name)
    end
    assert.matches("### A large table: .*5,000 rows", (p:text()))
    os.remove(json)
  end)

  it("says which contenders there are", function()
    local status, p = bench_designs("nonsense", "")
    assert.not_equal(0, status)
    local out, err = p:text()
    assert.matches("no contender 'nonsense'; there are: migration migration_host", out .. err)
  end)
end)

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
    local failed = sql("SELECT job_id AS id, run FROM nightshift_attempt WHERE kind = 'failed'")[1]
    write.runs("member", failed.id, failed.run + 1, "key", 2)
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
