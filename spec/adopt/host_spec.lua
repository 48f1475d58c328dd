-- `nightshift work jobs.lua --adopt migration.lua`: a host serves existing tables, and
-- whatever becomes of it, its workers and its handlers, each row ends once.

local designs = require "spec.support.designs"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local db, q, url
with_database(function(...) db, q, url = ... end)

local function all(sql, ...) return assert(db._handle:execute(sql, ...)) end -- statements by name, too

local function one(sql, ...) return all(sql, ...)[1] end

local function count(name, state)
  local status = designs[name].map.status
  local value = status[state]
  if value == true or value == false then value = value and 1 or 0 end
  return one(("SELECT COUNT(*) AS n FROM %s WHERE %s = ?"):format(name, status.column), value).n
end

--- Writes a line when a row begins, and sleeps as long as its table says.
local function handlers(folder, more)
  return ([[
    local function note(text)
      local file <close> = assert(io.open(%q .. "/starts", "a"))
      file:write(text, "\n")
    end
    local function run(job) note(job.id) %s end
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

local function args(name, strategy, more)
  local list = { "--adopt", designs.file(name, { strategy = strategy }) }
  for _, arg in ipairs(more or {}) do list[#list + 1] = arg end
  return list
end

for _, name in ipairs(designs.names) do
  for _, strategy in ipairs(designs[name].strategies) do
    it(("drains %s by %s"):format(name, strategy), function()
      designs.create(db, name, 20)
      local folder = fixture.dir()
      local status, log = host.drain(url, handlers(folder), args(name, strategy, { "--drain" }))
      assert.equal(0, status, log)
      local seen = starts(folder)
      table.sort(seen)
      local wanted = {}
      for i = 1, 20 do wanted[i] = i end
      assert.same(wanted, seen)
      assert.same({ 0, 0, 20 }, { assert(assert(db:adopt(designs.map(name))):stats()).ready,
        db:adopt(designs.map(name)):stats().running, db:adopt(designs.map(name)):stats().done })
      assert.equal(0, one "SELECT COUNT(*) AS n FROM nightshift_grip".n)
    end)

    it(("gives back at once what a killed host had of %s by %s"):format(name, strategy), function()
      designs.create(db, name, 3)
      local folder = fixture.dir()
      local sleeper = handlers(folder, "require 'nightshift.core'.sleep(job.run % 2 == 5 and 0 or 1000)")
      local first = host.start(url, sleeper, args(name, strategy, { "--workers", "3" }))
      eventually(function() return #starts(folder) == 3 end)
      local other = fixture.dir()
      local second = host.start(url, handlers(other), args(name, strategy, { "--workers", "3" }))
      nst.sleep(0.6)
      assert.equal(0, #starts(other))
      local killed = nightshift.clock()
      first:signal "KILL"
      eventually(function() return #starts(other) == 3 end)
      assert.is_true(nightshift.clock() - killed < proc.limit(9)) -- by the round: 10 s
      eventually(function() return assert(db:adopt(designs.map(name))):stats().done == 3 end)
      second:signal "TERM"
      assert.equal(0, second:wait(20))
    end)
  end
end

describe("a worker that is killed", function()
  for name, strategy in pairs {
    migration_task = "update_limit", queue_table = "skip_locked", job_queue = "transaction",
  } do
    it("costs its row one attempt, at once: " .. strategy, function()
      designs.create(db, name, 2)
      local folder = fixture.dir()
      local h = host.start(url, handlers(folder, [[
        local mark = io.open("]] .. folder .. [[/killed")
        if job.id == 1 and not mark then
          io.open("]] .. folder .. [[/killed", "w"):close()
          os.execute("kill -9 $PPID")
        end]]), args(name, strategy))
      eventually(function() return count(name, "done") == 2 end)
      assert.equal(3, #starts(folder))
      local map = designs[name].map
      if map.attempts then
        assert.equal(1, one(("SELECT %s AS n FROM %s WHERE id = 1"):format(map.attempts, name)).n)
      elseif map.attempts_left then
        assert.equal(29, one(("SELECT %s AS n FROM %s WHERE id = 1"):format(map.attempts_left, name)).n)
      end
      h:signal "TERM"
      assert.equal(0, h:wait(20))
    end)
  end
end)

describe("a verdict", function()
  it("of fail counts, waits, and is the end at last", function()
    designs.create(db, "queue_table", 1)
    all "UPDATE queue_table SET attempts = 3"
    local folder = fixture.dir()
    local status, log = host.drain(url, handlers(folder, "return job:fail('no', { retry_in = 0.05 })"),
      args("queue_table", "skip_locked", { "--drain" }))
    assert.equal(0, status, log)
    assert.equal(3, #starts(folder))
    assert.same({ status = "failed", attempts = 0 }, one "SELECT status, attempts FROM queue_table")
    assert.equal(3, #host.events(log, "job.failed"))
    assert.equal(1, #host.events(log, "job.dead"))
  end)

  for _, strategy in ipairs { "skip_locked", "transaction" } do
    it("of fail keeps a row for as long where no column says until when: " .. strategy, function()
      designs.create(db, "migration_task", 3)
      local folder = fixture.dir()
      local h = host.start(url, handlers(folder, "if job.id == 1 and job.attempt == 1 then "
        .. "return job:fail('later', { retry_in = 5 }) end"), args("migration_task", strategy))
      eventually(function() return count("migration_task", "done") == 2 end)
      assert.equal("processing", one "SELECT status FROM migration_task WHERE id = 1".status)
      eventually(function() return count("migration_task", "done") == 3 end)
      assert.same({ 1, 2, 3, 1 }, (function()
        local seen = starts(folder)
        table.sort(seen, function(a, b) return a < b end)
        return { seen[1], seen[3], seen[4], seen[2] }
      end)())
      h:signal "TERM"
      assert.equal(0, h:wait(20))
    end)
  end

  it("of again with a server's word slows the whole table", function()
    designs.create(db, "migration_task", 40)
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder,
      "if job.id == 2 and #job.name > 0 and not io.open('" .. folder .. "/asked') then io.open('" .. folder
      .. "/asked', 'w'):close() return job:again{ retry_after = '5' } end require 'nightshift.core'.sleep(0.05)"),
      args("migration_task", "skip_locked"))
    eventually(function() return one "SELECT COUNT(*) AS n FROM nightshift_adopted WHERE held_until > 0".n == 1 end)
    assert.is_true(rests(folder, 0.5) < 40)
    eventually(function() return count("migration_task", "done") == 40 end)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end)

  it("that a row cannot have is a failure", function()
    designs.create(db, "queue_table", 1)
    all "UPDATE queue_table SET attempts = 1"
    local folder = fixture.dir()
    local status, log = host.drain(url, handlers(folder, "return job:wait { signal = 'x' }"),
      args("queue_table", "skip_locked", { "--drain" }))
    assert.equal(0, status, log)
    assert.equal("failed", one "SELECT status FROM queue_table".status)
    assert.equal(1, #host.events(log, "job.refused"))
  end)

  it("whose row somebody has locked waits for it alone", function()
    designs.create(db, "migration_task", 6)
    local folder = fixture.dir()
    local h = host.start(url, handlers(folder, "require 'nightshift.core'.sleep(1)"),
      args("migration_task", "skip_locked"))
    eventually(function() return #starts(folder) >= 1 end)
    assert(db:transaction(function(tx)
      assert(tx:execute "SELECT * FROM migration_task WHERE id = 1 FOR UPDATE")
      eventually(function() return count("migration_task", "done") == 5 end)
      return true
    end))
    eventually(function() return count("migration_task", "done") == 6 end)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end)
end)

describe("a pause", function()
  it("is obeyed by all hosts, and what runs ends", function()
    designs.create(db, "migration_task", 400)
    local folder = fixture.dir()
    local script = handlers(folder, "require 'nightshift.core'.sleep(0.05)")
    local a, b = host.start(url, script, args("migration_task", "update_limit")),
      host.start(url, script, args("migration_task", "update_limit"))
    eventually(function() return #starts(folder) >= 10 end)
    assert.equal(0, (proc.nightshift({ "pause", "migration_task" }, url)))
    assert.is_true(rests(folder, 0.7) < 400)
    eventually(function() return count("migration_task", "processing") == 0 end)
    assert.equal(#starts(folder), count("migration_task", "done"))
    assert.equal(0, (proc.nightshift({ "resume", "migration_task" }, url)))
    eventually(function() return count("migration_task", "done") == 400 end, 60)
    assert.equal(400, #starts(folder))
    for _, h in ipairs { a, b } do
      h:signal "TERM"
      assert.equal(0, h:wait(20))
    end
  end)
end)

describe("a host", function()
  it("serves queues beside the tables when they are named, though ids are the same", function()
    designs.create(db, "migration_task", 0)
    local ids = assert(q:push_many { { "plain", 1 }, { "plain", 2 } })
    for _, id in ipairs(ids) do
      all("INSERT INTO migration_task (id, imageUrl) VALUES (?, 'x')", id)
    end
    local folder = fixture.dir()
    local script = handlers(folder):gsub("return { ", "return { plain = function(job) return job.id end, ")
    local status, log = host.drain(url, script,
      args("migration_task", "skip_locked", { "--drain", "--queues", q.name }))
    assert.equal(0, status, log)
    assert.equal(2, count("migration_task", "done"))
    for _, id in ipairs(ids) do assert.equal("done", assert(db:job(id)).state) end
  end)

  it("leaves queues alone when none is named", function()
    designs.create(db, "migration_task", 1)
    local id = assert(q:push("migrate", 1))
    local status, log = host.drain(url, handlers(fixture.dir()), args("migration_task", "skip_locked", { "--drain" }))
    assert.equal(0, status, log)
    assert.equal("ready", assert(db:job(id)).state)
    assert.equal(1, count("migration_task", "done"))
  end)

  it("says which handler is missing, and claims nothing for it", function()
    designs.create(db, "migration_task", 1)
    local status, log = host.drain(url, "return { other = function() end }",
      args("migration_task", "skip_locked", { "--drain" }))
    assert.equal(0, status, log)
    assert.same({ "migrate" }, { host.events(log, "adopted.no_handler")[1].handler })
    assert.equal(1, count("migration_task", "open"))
  end)

  it("says which index is missing", function()
    designs.create(db, "queue_table", 1)
    designs.fill(db, "queue_table", 3000)
    all "UPDATE queue_table SET status = 'processed' WHERE id > 1"
    all "ANALYZE TABLE queue_table"
    local status, log = host.drain(url, handlers(fixture.dir()), args("queue_table", "skip_locked", { "--drain" }))
    assert.equal(0, status, log)
    assert.truthy(log:find("event=adopted.index", 1, true), log)
  end)

  it("shows what runs, and for how long", function()
    designs.create(db, "migration_task", 1)
    local long = "job:progress(0.5, 'half') require 'nightshift.core'.sleep(1000)"
    local h = host.start(url, handlers(fixture.dir(), long), args("migration_task", "update_limit"))
    local row
    eventually(function()
      row = all("@report_adopted_running", 10)[1]
      return row
    end)
    assert.same({ "migration_task", 1, 0.5, "half", h.pid }, { row.table, row.id, row.progress, row.status, row.pid })
    h:signal "QUIT"
    assert.equal(0, h:wait(20))
    assert.equal(0, one "SELECT COUNT(*) AS n FROM nightshift_grip".n)
    assert.equal("open", one "SELECT status FROM migration_task".status)
  end)

  it("refuses a table without row locks", function()
    designs.create(db, "migration_task", 1)
    all "ALTER TABLE migration_task ENGINE=Aria"
    local h = host.spawn(url, "return {}", { "--adopt", designs.file "migration_task" })
    assert.equal(78, h:wait(20))
    local _, err = h:text()
    assert.truthy(err:find("table 'migration_task' is Aria, which has no row locks", 1, true), err)
  end)

  it("drains past rows whose ids no job can have", function()
    designs.create(db, "migration_task", 3)
    all "ALTER TABLE migration_task MODIFY id BIGINT UNSIGNED NOT NULL"
    all "INSERT INTO migration_task (id, imageUrl) VALUES (0, ''), (18446744073709551615, '')"
    local folder = fixture.dir()
    local status, log = host.drain(url, handlers(folder), args("migration_task", nil, { "--drain" }))
    assert.equal(0, status, log)
    assert.equal(3, #starts(folder))
  end)

  for what, given in pairs {
    ["no such file"] = { "nowhere.lua", "cannot open" },
    ["what is no mapping"] = { "return 1", "must return a mapping" },
    ["a misspelt key"] = { "return { tabel = 'x' }", "unknown option 'tabel'" },
    ["a table twice"] = { "local m = { table = 'x', status = 's' } return { m, m }", "named twice" },
    ["an unknown column"] = {
      "return { table = 'migration_task', status = { column = 'stat', open = 1, done = 2 } }", "no column 'stat'",
    },
  } do
    it("refuses " .. what, function()
      designs.create(db, "migration_task", 1)
      local path = given[1]:find "%.lua$" and given[1] or fixture.file("map.lua", given[1])
      local h = host.spawn(url, "return {}", { "--adopt", path })
      assert.equal(78, h:wait(20))
      local _, err = h:text()
      assert.truthy(err:find(given[2], 1, true), err)
    end)
  end
end)
