-- `nightshift status` of adopted tables, and `nightshift work --single`.

local designs = require "spec.support.designs"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local db, _, url
with_database(function(...) db, _, url = ... end)

local function ok(args)
  local status, out, err = proc.nightshift(args, url)
  assert.equal(0, status, err)
  return out
end

local LONG = [[return { migrate = function(job)
  job:progress(0.5, "half of " .. job.payload.imageUrl)
  require "nightshift.core".sleep(1000)
end }]]

describe("status", function()
  it("counts the rows of adopted tables, and shows what runs, where and since when", function()
    designs.create(db, "migration_task", 3)
    assert(db:execute "UPDATE migration_task SET status = 'complete' WHERE id = 3")
    local h = host.start(url, LONG, { "--workers", "1", "--adopt", designs.file "migration_task" })
    local status, row
    eventually(function()
      status = nightshift.decode(ok { "status", "--json" })
      row = status.adopted.running[1]
      return row and row.status and status.adopted.tables[1].counts.running == 1
    end)
    local t = status.adopted.tables[1]
    assert.same({ "migration_task", 1, 1, false }, { t.table, t.counts.done, t.counts.running, t.paused })
    assert.same({ "migration_task", h.pid, 0.5, "half of http://localhost/a.png" },
      { row.table, row.pid, row.progress, row.status })
    assert.equal(host.members(h.pid)[1], row.worker)
    assert.equal(io.open "/proc/sys/kernel/hostname":read "l", row.host)
    assert.is_true(row.started > 0 and row.started <= row.touched and row.touched <= status.now + 60000000)
    local text = ok { "status" }
    assert.is_truthy(text:find "\nTABLE +READY +WAITING +RUNNING +DONE +DEAD +NEXT DUE", text)
    assert.is_truthy(text:find "\nmigration_task +1 +0 +1 +1 +0 ", text)
    assert.is_truthy(text:find "\nTABLE +ID +HOST +PID +STARTED +SEEN +DONE +STATUS\n", text)
    local line = ("\nmigration_task +%d +[^ ]+ +%d +20.* 50%%%%  half of http"):format(row.id, row.worker)
    assert.is_truthy(text:find(line), text)
    h:signal "QUIT"
    assert.equal(0, h:wait(20))
    assert.same({}, nightshift.decode(ok { "status", "--json" }).adopted.running)
  end)

  it("says what was decided about a table, and why it cannot be counted", function()
    designs.create(db, "migration_task", 1)
    local t = assert(db:adopt(designs.map "migration_task"))
    assert(assert(t:claim()):release())
    assert(t:tune { rate = 5, block = 7, workers = 3 })
    assert(t:pause())
    local text = ok { "status" }
    assert.is_truthy(text:find("paused, 5/s, blocks of 7, 3 at a time", 1, true), text)
    assert(t:resume())
    assert(t:tune { rate = 0, block = 0, workers = 0 })
    assert(db:execute "DROP TABLE migration_task")
    text = ok { "status" }
    assert.is_truthy(text:find "\nmigration_task +%- +%- +%- +%- +%- +%- +%w", text)
    assert.is_string(nightshift.decode(ok { "status", "--json" }).adopted.tables[1].error)
  end)
end)

describe("tune", function()
  it("changes how fast a table is worked on, for hosts that run", function()
    designs.create(db, "migration_task", 200)
    local t = assert(db:adopt(designs.map "migration_task"))
    assert(assert(t:claim()):release())
    ok { "tune", "migration_task", "--rate", "2" }
    local h = host.start(url, "return { migrate = function() end }", { "--adopt", designs.file "migration_task" })
    local function done()
      return db:execute("SELECT COUNT(*) AS n FROM migration_task WHERE status = 'complete'")[1].n
    end
    eventually(function() return done() >= 2 end)
    assert.is_true(done() < 150)
    assert.equal("migration_task tuned\n", ok { "tune", "migration_task", "--rate", "0", "--block", "5" })
    eventually(function() return done() == 200 end)
    assert.is_truthy(ok { "status" }:find("blocks of 5", 1, true))
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end)

  it("says what it wants, and which tables it does not know", function()
    for _, case in ipairs {
      { { "tune", "migration_task" }, 2, "give --rate, --block or --workers" },
      { { "tune", "migration_task", "--rate", "fast" }, 2, "--rate must be a number, got 'fast'" },
      { { "tune", "migration_task", "--block", "-1" }, 2, "--block must be" },
      { { "tune", "nobodys", "--rate", "1" }, 1, "nobody has adopted a table 'nobodys' yet" },
    } do
      local status, _, err = proc.nightshift(case[1], url)
      assert.equal(case[2], status, err)
      assert.is_truthy(err:find(case[3], 1, true), err)
    end
  end)
end)

describe("work --single", function()
  it("leaves the machine to the host that is there, and says so", function()
    designs.create(db, "migration_task", 1)
    local args = { "--single", "--adopt", designs.file "migration_task" }
    local first = host.start(url, "return { migrate = function() end }", args)
    local second = host.spawn(url, "return { migrate = function() end }", args)
    assert.equal(0, second:wait(20))
    local _, err = second:text()
    assert.equal("nightshift: --single: another host of this database runs on this machine\n", err)
    local free = host.start(url, "return { migrate = function() end }", { "--adopt", args[3] }) -- as it likes
    first:signal "TERM"
    assert.equal(0, first:wait(20))
    second = host.spawn(url, "return { migrate = function() end }", args)
    assert.equal(0, second:wait(20))
    assert.equal(err, select(2, second:text()))
    free:signal "TERM"
    assert.equal(0, free:wait(20))
    first = host.start(url, "return { migrate = function() end }", args)
    first:signal "KILL"
    first:wait(20)
    local third = host.start(url, "return { migrate = function() end }", args)
    third:signal "TERM"
    assert.equal(0, third:wait(20))
  end)
end)

describe("dead rows", function()
  local function run(...)
    local status, out, err = proc.nightshift({ ... }, url)
    return { exit = status, out = out, err = err }
  end

  --- Three commands, of which the last is done, and the others are dead.
  local function prepare()
    designs.create(db, "worker_queue", 3)
    local t = assert(db:adopt(designs.map "worker_queue"))
    for job in t:jobs() do
      if job.id == 3 then assert(job:ack()) else assert(job:fail(("no route to host %d\nat all"):format(job.id))) end
    end
    return t
  end

  it("are listed with their errors, or by kinds of them", function()
    prepare()
    local out = run("jobs", "--table", "worker_queue").out
    assert.is_truthy(out:find "^ID +FAILED +WHEN +HOLDER +ERROR\n", out)
    assert.is_truthy(out:find "\n 1 +3 .* ago .* no route to host 1\n", out)
    out = run("jobs", "--table", "worker_queue", "--state", "dead", "--by", "error").out
    assert.is_truthy(out:find "\n +2 .* ago .* ago +2 +no route to host #\n", out)
    local rows = nightshift.decode(run("jobs", "--table", "worker_queue", "--limit", "1", "--json").out)
    assert.same({ 1, 3, "no route to host 1\nat all", "echo" },
      { rows[1].id, rows[1].attempts, rows[1].error, rows[1].payload.command })
    assert.is_nil(rows[2])
    assert.equal("no dead rows\n", run("jobs", "--table", "worker_queue", "--error", "another").out)
  end)

  it("run again by id, or all of an error when that is meant", function()
    local t = prepare()
    assert.equal("2 retried\n", run("retry", "--table", "worker_queue", "2").out)
    local again = run("retry", "--table", "worker_queue", "2", "1", "99")
    assert.same({ 1, "1 retried\n" }, { again.exit, again.out })
    assert.is_truthy(again.err:find("2: row 2 of 'worker_queue' is not dead", 1, true), again.err)
    assert.is_truthy(again.err:find("99: 'worker_queue' has no row 99 (NOT_FOUND)", 1, true), again.err)
    for job in t:jobs() do assert(job:fail "once more") end
    local asked = run("retry", "--table", "worker_queue", "--error", "once more")
    assert.same({ 2, "" }, { asked.exit, asked.out })
    assert.is_truthy(asked.err:find("2 rows would be retried; add --yes to do it", 1, true), asked.err)
    assert.equal(2, t:stats().dead)
    assert.equal("2 rows retried\n", run("retry", "--table", "worker_queue", "--error", "once more", "--yes").out)
    assert.equal("no dead rows\n", run("retry", "--table", "worker_queue", "--yes").out)
    assert.equal(2, t:stats().ready)
  end)

  it("stay when finished ones are deleted or moved", function()
    local t = prepare()
    local asked = run("prune", "--table", "worker_queue")
    assert.same({ 2, "" }, { asked.exit, asked.out })
    assert.is_truthy(asked.err:find("1 row would be deleted; add --yes to do it", 1, true), asked.err)
    local missing = run("prune", "--table", "worker_queue", "--into", "worker_archive", "--yes")
    assert.equal(1, missing.exit)
    assert.is_truthy(missing.err:find("CREATE TABLE `worker_archive` LIKE `worker_queue`", 1, true), missing.err)
    assert(db:execute "CREATE TABLE worker_archive LIKE worker_queue")
    assert.equal("moved 1 row\n", run("prune", "--table", "worker_queue", "--into", "worker_archive", "--yes").out)
    assert.equal("nothing to delete\n", run("prune", "--table", "worker_queue", "--yes").out)
    assert.equal("nothing to delete\n",
      run("prune", "--table", "worker_queue", "--state", "dead", "--older", "1h", "--yes").out)
    assert.same({ { id = 3 } }, db:execute "SELECT id FROM worker_archive")
    assert.equal(2, t:stats().dead)
    assert.equal(2, run("prune", "--table", "worker_queue", "--older", "1d").exit)
  end)

  it("are of a table that somebody has adopted, and options say which", function()
    prepare()
    assert.is_truthy(run("jobs", "--table", "nowhere").err:find("nobody has adopted a table 'nowhere' yet", 1, true))
    for _, args in ipairs {
      { "jobs", "--by", "error" }, { "jobs", "--table", "t", "--queue", "q" },
      { "jobs", "--table", "t", "--state", "done" },
      { "retry", "--error", "x" }, { "retry", "--table", "t", "--state", "dead" }, { "prune", "--older", "1d" },
      { "retry", "--table", "worker_queue", "--error", "x", "1" }, { "prune", "--table", "t", "--tree", "1" },
      { "prune", "--table", "t", "--limit", "0" }, { "prune", "--table", "t", "--older", "x" },
    } do
      assert.equal(2, run(table.unpack(args)).exit, table.concat(args, " "))
    end
  end)
end)
