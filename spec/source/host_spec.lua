-- Hosts that serve adopted tables: rows are taken in, run and written, whatever becomes of hosts,
-- workers and programs beside them.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local published = require "spec.support.designs".published

describe("a host with an adopted table", function()
  local all, one, how_many, nothing_left = published.all, published.one, published.count, published.nothing_left
  local db, q, url
  published.database(function(...) db, url, q = ... end)

  local function count(name, state)
    local status = designs[name].map.status
    local value = status[state]
    if value == true or value == false then value = value and 1 or 0 end
    return one(("SELECT COUNT(*) AS n FROM %s WHERE %s = ?"):format(name, status.column), value).n
  end

  --- Writes a line when a row begins, and does what is given.
  local function handlers(folder, more)
    return ([[
    local function note(text)
      local file <close> = assert(io.open(%q .. "/starts", "a"))
      file:write(text, "\n")
    end
    local function run(job) note(job.row) %s end
    return { migrate = run, job_queue = run, queue_table = run, worker_queue = run, checkout = run }]])
      :format(folder, more or "")
  end

  local function starts(folder)
    local ids, file = {}, io.open(folder .. "/starts")
    for line in file and file:lines() or function() end do ids[#ids + 1] = tonumber(line) end
    if file then file:close() end
    return ids
  end

  --- Waits until no row begins for that many seconds; how many have.
  local function rests(folder, seconds)
    return eventually(function()
      local before = #starts(folder)
      nst.sleep(seconds)
      return #starts(folder) == before and before
    end)
  end

  local function args(name, more)
    local list = { "--adopt", designs.file(name) }
    return table.move(more or {}, 1, #(more or {}), 3, list)
  end

  local function stop(h, signal)
    h:signal(signal or "TERM")
    assert.equal(0, h:wait(20))
  end

  for i, published_table in ipairs(published) do
    it("drains " .. published_table[1] .. " as it was published", function()
      local _, name, done = published.make(i, 50)
      local file = fixture.file(name .. ".lua", "return " .. published_table[4])
      local status, log = host.drain(url, "return { task = function() end }", { "--adopt", file, "--drain" })
      assert.equal(0, status, log)
      assert.equal(50, how_many(name, done))
      nothing_left()
    end)
  end

  for _, name in ipairs(designs.names) do
    it("gives back at once what a killed host had of " .. name, function()
      designs.create(db, name, 3)
      local folder, other = fixture.dir(), fixture.dir()
      local first = host.start(url, handlers(folder, "require 'nightshift.core'.sleep(1000)"),
        args(name, { "--workers", "3" }))
      eventually(function() return #starts(folder) == 3 end)
      local second = host.start(url, handlers(other), args(name, { "--workers", "3" }))
      nst.sleep(0.6)
      assert.equal(0, #starts(other))
      local killed = nightshift.clock()
      first:signal "KILL"
      eventually(function() return #starts(other) == 3 end)
      assert.is_true(nightshift.clock() - killed < proc.limit(9)) -- by the round: 10 s
      eventually(function() return how_many("nightshift_job", "TRUE") + how_many("nightshift_owed", "TRUE") == 0 end)
      stop(second)
    end)
  end

  for _, name in ipairs { "migration_task", "queue_table", "job_queue" } do
    it("counts one attempt, at once, for a worker that is killed: " .. name, function()
      designs.create(db, name, 2)
      local folder = fixture.dir()
      local h = host.start(url, handlers(folder, [[
      local mark = io.open("]] .. folder .. [[/killed")
      if job.row == 1 and not mark then
        io.open("]] .. folder .. [[/killed", "w"):close()
        os.execute("kill -9 $PPID")
      end
      local file <close> = assert(io.open("]] .. folder .. [[/attempts", "a"))
      file:write(job.row, " ", job.attempt, "\n")]]), args(name))
      eventually(function() return count(name, "done") == 2 end)
      assert.equal(3, #starts(folder))
      local told = {}
      for line in io.lines(folder .. "/attempts") do told[#told + 1] = line end
      table.sort(told)
      assert.same({ "1 2", "2 1" }, told)
      local map = designs[name].map
      if map.attempts then
        assert.equal(1, one(("SELECT %s AS n FROM %s WHERE id = 1"):format(map.attempts, name)).n)
      elseif map.attempts_left then
        assert.equal(29, one(("SELECT %s AS n FROM %s WHERE id = 1"):format(map.attempts_left, name)).n)
      end
      stop(h)
    end)
  end

  it("ends a row whose attempts are used up by deaths of its workers, and runs it no more", function()
    designs.create(db, "queue_table", 1)
    local column = designs.queue_table.map.attempts_left
    all(("UPDATE queue_table SET %s = 2"):format(column))
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder, 'os.execute("kill -9 $PPID")'),
      { "--adopt", designs.file("queue_table", { max_crashes = 10 }), "--workers", "2" })
    eventually(function() return count("queue_table", "failed") == 1 end)
    assert.equal(0, one(("SELECT %s AS n FROM queue_table"):format(column)).n)
    assert.equal(2, #starts(folder))
    local job = db:jobs { queue = "queue_table", state = "dead" }[1]
    assert.same({ "failed", 30, 2 }, { job.reason, job.attempts, job.crashes })
    nothing_left()
    stop(h)
  end)

  it("counts failures, waits, and ends a row at last", function()
    designs.create(db, "queue_table", 1)
    all "UPDATE queue_table SET attempts = 3"
    local folder = fixture.dir()
    local status, log = host.drain(url, handlers(folder, "return job:fail('no', { retry_in = 0.05 })"),
      args("queue_table", { "--drain" }))
    assert.equal(0, status, log)
    assert.equal(3, #starts(folder))
    assert.same({ status = "failed", attempts = 0 }, one "SELECT status, attempts FROM queue_table")
    assert.equal(2, #host.events(log, "job.failed"))
    assert.equal(1, #host.events(log, "job.dead"))
    nothing_left()
  end)

  it("keeps a row that has failed for as long, where no column says until when", function()
    designs.create(db, "migration_task", 3)
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder, "if job.row == 1 and job.attempt == 1 then "
      .. "return job:fail('later', { retry_in = 3 }) end"), args "migration_task")
    eventually(function() return count("migration_task", "done") == 2 end)
    assert.equal("processing", one "SELECT status FROM migration_task WHERE id = 1".status)
    eventually(function() return one "SELECT iteration FROM migration_task WHERE id = 1".iteration == 1 end)
    eventually(function() return count("migration_task", "done") == 3 end)
    assert.equal(4, #starts(folder))
    stop(h)
  end)

  it("has children of rows, and rows that wait for signals", function()
    designs.create(db, "migration_task", 1)
    local h = host.start(url, [[return {
      migrate = function(job)
        if job.phase == 0 then
          job:spawn("part", { 1 }, { queue = "migration_task" })
          return job:wait { signal = "go" }
        end
        return job.signal
      end,
      part = function() return "made" end }]], args "migration_task")
    local id
    eventually(function()
      local row = one "SELECT job_id FROM nightshift_unique_key"
      id = row and row.job_id
      return id and db:job(id) and db:job(id).state == "waiting"
    end)
    assert.equal("processing", one "SELECT status FROM migration_task".status)
    assert(db:signal(id, 7, "go"))
    eventually(function() return count("migration_task", "done") == 1 end)
    assert.equal("done", db:job(id).state)
    stop(h)
  end)

  it("writes a row that somebody has locked when that is over, and the others at once", function()
    designs.create(db, "migration_task", 6)
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder, "require 'nightshift.core'.sleep(1)"), args "migration_task")
    eventually(function() return #starts(folder) >= 1 end)
    assert(db:transaction(function(tx)
      assert(tx:execute "SELECT * FROM migration_task WHERE id = 1 FOR UPDATE")
      eventually(function() return count("migration_task", "done") == 5 end)
      return true
    end))
    eventually(function() return count("migration_task", "done") == 6 end)
    stop(h)
  end)

  it("begins nothing while people pause the table, and gives back what was not begun", function()
    designs.create(db, "migration_task", 200)
    local folder = fixture.dir()
    local script = handlers(folder, "require 'nightshift.core'.sleep(0.05)")
    local a, b = host.start(url, script, args "migration_task"), host.start(url, script, args "migration_task")
    eventually(function() return #starts(folder) >= 10 end)
    assert.equal(0, (proc.nightshift({ "pause", "migration_task" }, url)))
    assert.is_true(rests(folder, 0.7) < 200)
    eventually(function() return count("migration_task", "processing") == 0 end)
    assert.equal(#starts(folder), count("migration_task", "done"))
    assert.equal(0, (proc.nightshift({ "resume", "migration_task" }, url)))
    eventually(function() return count("migration_task", "done") == 200 end, 60)
    assert.equal(200, #starts(folder))
    stop(a)
    stop(b)
  end)

  it("begins nothing while every queue is paused", function()
    designs.create(db, "migration_task", 10)
    assert(db:pause_all())
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder), args "migration_task")
    h:wait_line("adopted.paused", 20)
    assert.same({}, starts(folder))
    assert(db:resume_all())
    eventually(function() return count("migration_task", "done") == 10 end)
    stop(h)
  end)

  it("gives back at its end what was not begun", function()
    designs.create(db, "migration_task", 50)
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder, "require 'nightshift.core'.sleep(0.2)"), args "migration_task")
    eventually(function() return #starts(folder) >= 4 end)
    stop(h)
    assert.equal(0, count("migration_task", "processing"))
    assert.equal(#starts(folder), count("migration_task", "done"))
    nothing_left()
  end)

  it("serves queues beside the tables when they are named", function()
    designs.create(db, "migration_task", 3)
    local ids = assert(q:push_many { { "plain", 1 }, { "plain", 2 } })
    local script = handlers(fixture.dir()):gsub("return { ", "return { plain = function(job) return job.id end, ")
    local status, log = host.drain(url, script, args("migration_task", { "--drain", "--queues", q.name }))
    assert.equal(0, status, log)
    assert.equal(3, count("migration_task", "done"))
    for _, id in ipairs(ids) do assert.equal("done", assert(db:job(id)).state) end
  end)

  it("leaves queues alone when none is named", function()
    designs.create(db, "migration_task", 1)
    local id = assert(q:push("migrate", 1))
    local status, log = host.drain(url, handlers(fixture.dir()), args("migration_task", { "--drain" }))
    assert.equal(0, status, log)
    assert.equal("ready", assert(db:job(id)).state)
    assert.equal(1, count("migration_task", "done"))
  end)

  it("says which handler is missing, and takes in nothing for it", function()
    designs.create(db, "migration_task", 1)
    local status, log = host.drain(url, "return { other = function() end }", args("migration_task", { "--drain" }))
    assert.equal(0, status, log)
    assert.same("migrate", host.events(log, "adopted.no_handler")[1].handler)
    assert.equal(1, count("migration_task", "open"))
  end)

  it("leaves the machine to the host that is there, with --single, and says so", function()
    designs.create(db, "migration_task", 1)
    local script, single = handlers(fixture.dir()), args("migration_task", { "--single" })
    local first, second = host.start(url, script, single), host.spawn(url, script, single)
    assert.equal(0, second:wait(20))
    local _, err = second:text()
    assert.equal("nightshift: --single: another host of this database runs on this machine\n", err)
    local free = host.start(url, script, args "migration_task") -- as it likes
    stop(first)
    second = host.spawn(url, script, single)
    assert.equal(0, second:wait(20))
    assert.equal(err, select(2, second:text()))
    stop(free)
    first = host.start(url, script, single)
    first:signal "KILL"
    first:wait(20)
    stop(host.start(url, script, single))
  end)

  it("says which index is missing", function()
    designs.create(db, "queue_table", 1)
    designs.fill(db, "queue_table", 3000)
    all "UPDATE queue_table SET status = 'processed' WHERE id > 1"
    all "ANALYZE TABLE queue_table"
    local status, log = host.drain(url, handlers(fixture.dir()), args("queue_table", { "--drain" }))
    assert.equal(0, status, log)
    assert.truthy(log:find("event=adopted.index", 1, true), log)
  end)

  it("takes no more rows in a second than people say", function()
    designs.create(db, "migration_task", 40)
    assert(assert(db:adopt(designs.map "migration_task")):tune { rate = 10 })
    local began = nightshift.clock()
    local status, log = host.drain(url, handlers(fixture.dir()), args("migration_task", { "--drain" }))
    assert.equal(0, status, log)
    assert.is_true(nightshift.clock() - began > 3, nightshift.clock() - began)
    assert.equal(40, count("migration_task", "done"))
  end)

  it("waits, when it drains, for rows that are due soon, and says for which", function()
    designs.create(db, "queue_table", 1)
    all "UPDATE queue_table SET retry_after = NOW() + INTERVAL 2 SECOND"
    local status, log = host.drain(url, handlers(fixture.dir()), args("queue_table", { "--drain" }))
    assert.equal(0, status, log)
    assert.equal(1, count("queue_table", "done"))
    local waits = host.events(log, "drain.waits")
    assert.same({ 1, "queue_table" }, { #waits, waits[1].table })
    assert.truthy(waits[1].next:find "^%d+%-%d+%-%d+T%d+:%d+:%d+Z$", waits[1].next)
  end)

  it("takes in rows of the names that hosts serve, where rows have names", function()
    all(published[3][2])
    all "INSERT INTO queue_table (job_queue_name, job_queue_data) VALUES ('a', '{\"n\":1}'), ('b', '2'), ('a', '3')"
    local map = "return { table = 'queue_table', id = 'job_queue_id', name = { column = 'job_queue_name' }, "
      .. "payload = { column = 'job_queue_data' }, attempts_left = 'job_attempts', status = { "
      .. "column = 'job_queue_status', open = 'queued', processing = 'in_progress', done = 'processed', "
      .. "failed = 'failed' } }"
    local folder = fixture.dir()
    local status, log = host.drain(url, ([[return { a = function(job)
      local file <close> = assert(io.open(%q .. "/starts", "a"))
      file:write(type(job.payload) == "table" and job.payload.n or job.payload, "\n")
    end }]]):format(folder), { "--adopt", fixture.file("map.lua", map), "--drain" })
    assert.equal(0, status, log)
    local seen = starts(folder)
    table.sort(seen)
    assert.same({ 1, 3 }, seen)
    assert.same({ "processed", "queued", "processed" }, (function()
      local states = {}
      for i, row in ipairs(all "SELECT job_queue_status AS s FROM queue_table ORDER BY 1 * job_queue_id") do
        states[i] = row.s
      end
      return states
    end)())
  end)

  it("leaves rows alone that the server refuses to mark, and says so", function()
    designs.create(db, "migration_task", 3)
    all [[CREATE TRIGGER refuse BEFORE UPDATE ON migration_task FOR EACH ROW
      IF NEW.id = 2 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF]]
    local status, log = host.drain(url, handlers(fixture.dir()), args("migration_task", { "--drain" }))
    assert.equal(1, status, log)
    assert.equal(2, count("migration_task", "done"))
    local refused = host.events(log, "row.refused")
    assert.same({ 1, "2" }, { #refused, refused[1].row })
  end)

  it("refuses a table without row locks", function()
    designs.create(db, "migration_task", 1)
    all "ALTER TABLE migration_task ENGINE=Aria"
    local h = host.spawn(url, handlers(fixture.dir()), args "migration_task")
    assert.equal(78, h:wait(20))
    local _, err = h:text()
    assert.truthy(err:find("table 'migration_task' is Aria, which has no row locks", 1, true), err)
  end)

  it("drains past rows whose ids no job can have", function()
    designs.create(db, "migration_task", 3)
    all "ALTER TABLE migration_task MODIFY id BIGINT UNSIGNED NOT NULL"
    all "INSERT INTO migration_task (id, imageUrl) VALUES (0, ''), (18446744073709551615, '')"
    local folder = fixture.dir()
    local status, log = host.drain(url, handlers(folder), args("migration_task", { "--drain" }))
    assert.equal(0, status, log)
    assert.equal(3, #starts(folder))
  end)

  it("goes on when the server was away, the table was renamed, or its runner's session was killed", function()
    designs.create(db, "migration_task", 2)
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder), args "migration_task")
    eventually(function() return count("migration_task", "done") == 2 end)
    all "RENAME TABLE migration_task TO elsewhere"
    h:wait_line("adopted.error", 30)
    all "RENAME TABLE elsewhere TO migration_task"
    all(designs.migration_task.row)
    eventually(function() return count("migration_task", "done") == 3 end)
    all(("KILL %d"):format(one "SELECT runner FROM nightshift_source".runner))
    all(designs.migration_task.row)
    eventually(function() return count("migration_task", "done") == 4 end)
    stop(h)
  end)
end)

-- Hosts on an adopted table beside the workers that were published with it, in their own SQL.
-- No row is done twice, none is lost, and none of their statements is refused because of us.
-- Where there are many of them the server refuses some (1213, a deadlock) without us as well. A
-- claim of theirs locks the index first and then the row, a reset the row and then the index.
describe("a host beside published workers", function()
  local ROWS <const>, BLOCK <const> = 2000, 10

  local count = published.count
  local url, path
  published.database(function(_, at) url, path = at, fixture.dir() .. "/ledger" end)
  after_each(crew.clean)

  local function write(line)
    local file <close> = assert(io.open(path, "ab"))
    file:write(line, "\n")
  end

  -- As published, but for its 35 characters of a UUID.
  local CLAIM = [[UPDATE migration_task SET status = 'processing', claimedBy = ?, claimedAt = UTC_TIMESTAMP()
  WHERE status = 'open' ORDER BY id ASC LIMIT ]] .. BLOCK
  local READ = "SELECT id, iteration, imageUrl FROM migration_task WHERE claimedBy = ? AND status = 'processing'"
  local DONE = [[UPDATE migration_task SET status = 'complete', completedAt = UTC_TIMESTAMP()
  WHERE id = ? AND status = 'processing']]
  local RESET = [[UPDATE migration_task SET status = 'open', iteration = ( iteration + 1 ), claimedBy = NULL,
  claimedAt = NULL WHERE id = ?]]
  local REAP = [[UPDATE migration_task SET status = 'open', iteration = ( iteration + 1 ), claimedBy = NULL,
  claimedAt = NULL WHERE status = 'processing' AND completedAt IS NULL
  AND claimedAt <= DATE_ADD( UTC_TIMESTAMP(), INTERVAL -2 MINUTE )]]

  --- Runs a statement of theirs; what is refused is written down, and tried again.
  local function ask(own, sql, ...)
    local rows, message
    repeat
      rows, message = own:execute(sql, ...)
      if not rows then
        write("refused " .. message:gsub("\n", " "))
        nst.sleep(0.01)
      end
    until rows
    return rows
  end

  --- One of theirs: claims blocks, completes most, resets some, until nothing is left.
  local function work(number)
    local own <close> = assert(nightshift.open(url))
    ask(own, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ") -- the server's own
    local round = 0
    repeat
      round = round + 1
      local me = ("%032d-%d"):format(round, number)
      ask(own, REAP)
      ask(own, CLAIM, me)
      for _, task in ipairs(ask(own, READ, me)) do
        local fails = task.id % 50 == 0 and task.iteration == 0
        if not fails then write("did " .. task.id) end
        ask(own, fails and RESET or DONE, task.id)
      end
    until ask(own, "SELECT COUNT(*) AS n FROM migration_task WHERE status <> 'complete'")[1].n == 0
  end

  --- What the ledger says: who did how many rows, and what was refused. No row is there twice.
  local function read()
    local done, ours, refused = {}, 0, {}
    for line in io.lines(path) do
      local id = line:match "^did (%d+)$"
      if id then
        assert.is_nil(done[id], id)
        done[id] = true
      elseif line == "ours" then
        ours = ours + 1
      else
        refused[#refused + 1] = line
      end
    end
    return ours, refused
  end

  for _, theirs in ipairs { 1, 3 } do
    it("does rows that they do not, and waits for none that they lock: " .. theirs, function()
      local _, name = published.make(1, ROWS)
      local map = published[1][4]
      local h = host.start(url, ([[return { task = function(job)
        local file <close> = assert(io.open(%q, "ab"))
        file:write("did " .. job.row .. "\n", "ours\n")
      end }]]):format(path), { "--workers", "4", "--adopt", fixture.file("map.lua", "return " .. map) })
      crew.fork(theirs, work):wait(110) -- their claims are reset after two minutes
      eventually(function() return count "nightshift_owed" == 0 end)
      h:signal "TERM"
      assert.equal(0, h:wait(20))
      local ours, refused = read()
      if theirs == 1 then assert.same({}, refused) end
      assert.equal(ROWS, count(name, "status = 'complete' AND completedAt >= claimedAt"))
      assert.equal(count(name, "claimedBy LIKE 'ns:%'"), ours)
      assert.is_true(ours > 0 and ours < ROWS, ours)
      assert.is_nil(h:transcript():find "level=error", h:transcript())
      assert.equal(0, count "nightshift_job")
    end)
  end
end)

-- Under a host that the spec plays: when it looks again.
describe("a runner", function()
  local NAME = "migration_task"
  local lab = require "spec.support.db".lab
  local runner = require "nightshift.source.runner"

  local db
  lab.handles(1, function(handle) db = handle end)

  --- What it waits between its rounds, the first without one.
  local function pauses(rounds)
    local found = {}
    local played = {
      drain = false, within = 60, log = function() end, tell = function() end,
      workers = function() return '["migrate"]', 1 end,
      wait = function(seconds)
        found[#found + 1] = seconds
        return #found == rounds
      end,
    }
    local its = assert(runner.open({ url = lab.url() }, played, require "nightshift".encode(designs.map(NAME))))
    its:run()
    return found
  end

  it("that is held back by a rate waits until that lets it go on", function()
    designs.create(db, NAME, 20)
    assert(assert(db:adopt(designs.map(NAME))):tune { rate = 0.2 })
    local found = pauses(4)
    for i = 1, 4 do assert.is_true(found[i] > 0.1, found[i]) end
  end)
end)
