-- The commands on adopted tables: status, pause, tune, jobs, retry, prune, adopt, and doctor's
-- words on rows that wait for a host.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local published = require "spec.support.designs".published

local all, open = published.all, published.open
local handle, url
published.database(function(...) handle, url = ... end)

local function file(i) return fixture.file("map.lua", "return " .. published[i][4]) end

local function run(...)
  local status, out, err = proc.nightshift({ ... }, url)
  return { exit = status, out = out, err = err }
end

local function ok(...)
  local result = run(...)
  assert.equal(0, result.exit, result.err)
  return result.out
end

local function says(words, text) assert.is_truthy(text:find(words, 1, true), text) end

describe("status", function()
  it("counts the rows of adopted tables, and shows what runs of them", function()
    open(1, 3)
    all "UPDATE migration_task SET status = 'complete' WHERE id = 3"
    local h = host.start(url, [[return { task = function(job)
      job:progress(0.5, "half of " .. job.payload.imageUrl)
      require "nightshift.core".sleep(1000)
    end }]], { "--workers", "1", "--adopt", file(1) })
    local status, row
    eventually(function()
      status = nightshift.decode(ok("status", "--json"))
      row = status.running[1]
      return row and row.status and status.adopted.tables[1].counts.running == 1
    end)
    local t = status.adopted.tables[1]
    assert.same({ "migration_task", 1, 1, 1, false, true, 0 },
      { t.table, t.counts.ready, t.counts.done, t.counts.running, t.paused, t.served, t.owed })
    assert.same({ "migration_task", 0.5 }, { row.queue, row.progress })
    local text = ok "status"
    assert.is_truthy(text:find "\nTABLE +READY +WAITING +RUNNING +DONE +DEAD +NEXT DUE", text)
    assert.is_truthy(text:find "\nmigration_task +1 +0 +1 +1 +0 ", text)
    assert.is_truthy(text:find "migration_task +task .* 50%% +half of http", text)
    h:signal "QUIT"
    assert.equal(0, h:wait(20))
  end)

  it("says what was decided about a table, what its rows are owed, and why it cannot be counted", function()
    local t = open(1, 1)
    assert.equal("migration_task paused\n", ok("pause", "migration_task"))
    assert.equal("migration_task tuned\n", ok("tune", "migration_task", "--rate", "5"))
    says("paused, 5/s", ok "status")
    assert.equal("migration_task resumed\n", ok("resume", "migration_task"))
    ok("tune", "migration_task", "--rate", "0")
    assert.is_nil(ok "status":find("5/s", 1, true))
    assert.equal(1, t:take(1))
    assert(handle:cancel(all "SELECT id FROM nightshift_job"[1].id))
    says("rows of migration_task that do not say what became of their jobs: 1; nobody has served it yet", ok "status")
    assert(t:pay())
    all "DROP TABLE migration_task"
    assert.is_truthy(ok "status":find "\nmigration_task +%- +%- +%- +%- +%- +%- +%w")
    assert.is_string(nightshift.decode(ok("status", "--json")).adopted.tables[1].error)
  end)
end)

describe("tune", function()
  it("changes how fast a table is worked on, for hosts that run", function()
    open(1, 200)
    ok("tune", "migration_task", "--rate", "2")
    local h = host.start(url, "return { task = function() end }", { "--adopt", file(1) })
    local function done() return all "SELECT COUNT(*) AS n FROM migration_task WHERE status = 'complete'"[1].n end
    eventually(function() return done() >= 2 end)
    assert.is_true(done() < 150)
    ok("tune", "migration_task", "--rate", "0")
    eventually(function() return done() == 200 end)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end)

  it("says what it wants, and which tables it does not know", function()
    for _, case in ipairs {
      { { "tune", "t" }, 2, "give --rate" },
      { { "tune", "t", "--rate", "fast" }, 2, "--rate must be a number, got 'fast'" },
      { { "tune", "t", "--rate", "-1" }, 2, "--rate must be 0" }, { { "tune", "t", "--block", "5" }, 2, "--block" },
      { { "tune", "nobodys", "--rate", "1" }, 1, "nobody has adopted a table 'nobodys' yet" },
    } do
      local result = run(table.unpack(case[1]))
      assert.equal(case[2], result.exit, result.err)
      says(case[3], result.err)
    end
  end)
end)

describe("rows that have ended", function()
  --- Three commands, of which the last is done, and the rest are dead.
  local function prepare()
    local t = open(4, 3)
    for job in t:jobs() do
      if job.row == 3 then assert(job:ack())
      else assert(job:fail(("no route to host %d\nat all"):format(job.row), { retry_in = 0 })) end
    end
    return t
  end

  it("are listed as jobs, with their errors, or by kinds of them", function()
    prepare()
    local kind = nightshift.decode(ok("errors", "--queue", "worker_queue", "--json"))[1]
    assert.same({ "no route to host #", 2 }, { kind.error, kind.dead })
    local out = ok("jobs", "--queue", "worker_queue", "--state", "dead")
    assert.is_truthy(out:find "worker_queue +task +dead +%d+ +3/3 .* ago +failed: no route to host 1", out)
  end)

  it("run again by id, or all when that is meant", function()
    prepare()
    assert.equal("2 retried\n", ok("retry", "--table", "worker_queue", "2"))
    local again = run("retry", "--table", "worker_queue", "2", "1", "99")
    assert.same({ 1, "1 retried\n" }, { again.exit, again.out })
    says("2: row 2 of 'worker_queue' is not dead", again.err)
    says("99: 'worker_queue' has no row 99 (NOT_FOUND)", again.err)
    local t = open(4, 0) -- another program, which has not looked at rows before
    for job in t:jobs() do assert(job:fail("once more", { retry_in = 0 })) end
    local asked = run("retry", "--table", "worker_queue")
    assert.same({ 2, "" }, { asked.exit, asked.out })
    says("2 rows would be retried; add --yes to do it", asked.err)
    assert.equal("2 rows retried\n", ok("retry", "--table", "worker_queue", "--yes"))
    assert.equal("no dead rows\n", ok("retry", "--table", "worker_queue", "--yes"))
    assert.equal(2, t:stats().ready)
  end)

  it("run again by an error, or a kind of errors", function()
    local t = prepare()
    local args = { "retry", "--queue", "worker_queue", "--error", "no route to host 1" }
    says("1 job would be retried; add --yes to do it", run(table.unpack(args)).err)
    args[5] = "no route to host #"
    args[6] = "--yes"
    assert.equal("2 jobs retried\n", ok(table.unpack(args)))
    assert.equal(2, t:pay())
    assert.same({ 0, 2 }, { t:stats().dead, t:stats().ready })
    args[5] = "another"
    assert.equal("no such jobs\n", ok(table.unpack(args)))
  end)

  it("run again by their jobs", function()
    local t = prepare()
    local job = handle:jobs { queue = "worker_queue", state = "dead" }[1].id
    assert.equal(("%d retried\n"):format(job), ok("retry", tostring(job)))
    assert.equal(1, t:pay())
    assert.same({ 1, 1 }, { t:stats().dead, t:stats().ready })
  end)

  it("are deleted or moved", function()
    local t = prepare()
    local asked = run("prune", "--table", "worker_queue")
    assert.same({ 2, "" }, { asked.exit, asked.out })
    says("1 row would be deleted; add --yes to do it", asked.err)
    local missing = run("prune", "--table", "worker_queue", "--into", "worker_archive", "--yes")
    assert.equal(1, missing.exit)
    says("CREATE TABLE `worker_archive` LIKE `worker_queue`", missing.err)
    all "CREATE TABLE worker_archive LIKE worker_queue"
    assert.equal("moved 1 row\n", ok("prune", "--table", "worker_queue", "--into", "worker_archive", "--yes"))
    assert.equal("nothing to delete\n", ok("prune", "--table", "worker_queue", "--yes"))
    assert.same({ { id = 3 } }, all "SELECT id FROM worker_archive")
    assert.equal(2, t:stats().dead)
    assert.equal(2, run("prune", "--table", "worker_queue", "--older", "1d").exit)
  end)

  it("are of a table that somebody has adopted, and options say which", function()
    prepare()
    says("nobody has adopted a table 'nowhere' yet", run("retry", "--table", "nowhere").err)
    for _, args in ipairs {
      { "retry", "--table", "t", "--error", "x" }, { "retry", "--table", "t", "--state", "dead" },
      { "prune", "--older", "1d" }, { "prune", "--table", "t", "--tree", "1" },
      { "prune", "--table", "t", "--limit", "0" }, { "prune", "--table", "t", "--older", "x" },
    } do
      assert.equal(2, run(table.unpack(args)).exit, table.concat(args, " "))
    end
  end)
end)

describe("adopt", function()
  it("checks a mapping, counts, and says which index is missing", function()
    open(1, 3000)
    all "ANALYZE TABLE migration_task"
    local out = ok("adopt", file(1))
    says("migration_task: 3000 ready, 0 waiting, 0 running, 0 done, 0 dead\n", out)
    says("looks for rows lack an index: CREATE INDEX nightshift_claim ON `migration_task` (`status`, `id`)", out)
    local result = nightshift.decode(ok("adopt", file(1), "--json"))[1]
    assert.same({ "migration_task", 3000, true }, { result.table, result.counts.ready, result.index ~= nil })
    local wrong = run("adopt", fixture.file("wrong.lua", [[return { table = "t", status = { colum = "x" } }]]))
    assert.equal(78, wrong.exit)
    says("unknown option 'colum'; did you mean 'column'?", wrong.err)
    local twice = run("adopt", fixture.file("twice.lua", ("return { %s, %s }"):format(published[1][4],
      published[1][4])))
    says("table 'migration_task' is named twice", twice.err)
  end)

  it("makes open rows jobs of a queue when that is meant, and tells what stays", function()
    local t = open(1, 5)
    local job = assert(t:claim())
    local args = { "adopt", file(1), "--drain-into", "post" }
    local asked = run(table.unpack(args))
    assert.same({ 2, "" }, { asked.exit, asked.out })
    says("migration_task: 4 rows would become jobs of post; 1 open left; add --yes to do it", asked.err)
    assert.equal(5, all "SELECT COUNT(*) AS n FROM migration_task"[1].n)
    args[#args + 1] = "--yes"
    assert.equal("migration_task: 4 rows became jobs of post; 1 open left\n", ok(table.unpack(args)))
    assert.equal(4, #handle:jobs { queue = "post" })
    assert(job:ack())
    args[#args + 1] = "--json"
    assert.same({ { table = "migration_task", jobs = 0, left = 0 } },
      nightshift.decode(ok(table.unpack(args))))
    assert.equal(2, run("adopt", file(1), "--drain-into", "").exit)
  end)
end)

describe("doctor", function()
  local function adopted()
    for _, check in ipairs(nightshift.decode(run("doctor", "--json").out).findings) do
      if check.name == "adopted" then return check end
    end
  end

  it("tells of rows that wait for a host, and of those that the server refuses", function()
    local t = open(1, 2)
    assert.same({ "ok", "no row of 1 adopted tables waits for a host" }, { adopted().status, adopted().says })
    assert.equal(2, t:take(2))
    for _, job in ipairs(all "SELECT id FROM nightshift_job") do assert(handle:cancel(job.id)) end
    all "UPDATE nightshift_source SET seen = (UNIX_TIMESTAMP() - 100) * 1000000"
    local found = adopted()
    assert.equal("warn", found.status)
    assert.is_truthy(found.says:find "rows of migration_task that do not say what became of their jobs: 2; nobody has "
      .. "served it for 1%d%d s", found.says)
    all [[CREATE TRIGGER refuses BEFORE UPDATE ON migration_task FOR EACH ROW
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one']]
    assert(t:pay())
    says("rows of migration_task that the server refuses to change: 2: not this one", adopted().says)
  end)
end)
