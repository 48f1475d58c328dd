-- `nightshift work jobs.lua --adopt migration.lua`: a host serves existing tables; triggers that
-- ring; the log.

local designs = require "spec.support.designs"
local host = require "spec.support.host"
local lab = require "spec.support.lab"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local servers = require "spec.support.db"

-- `nightshift work jobs.lua --adopt migration.lua`: a host serves existing tables, and
-- whatever becomes of it, its workers and its handlers, each row ends once.
describe("hosts of adopted tables:", function()
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
end)

-- Triggers on an adopted table that ring: none without leave; with them a row that is added in
-- plain SQL starts at once, whatever its transaction does, and its writer never has trouble with
-- them.
describe("tables with triggers:", function()
  local db
  lab.handles(1, function(handle) db = handle end)

  local function all(sql, ...) return assert(db:execute(sql, ...)) end

  local function map(name, changes)
    local given = designs.map(name, changes)
    given.allow_alter = true
    return given
  end

  --- All that the server knows of a table that we might have touched.
  local function shape(name)
    local parts = { all("SHOW CREATE TABLE " .. name)[1]["Create Table"]:gsub(" AUTO_INCREMENT=%d+", "") }
    for _, row in ipairs(all([[SELECT TRIGGER_NAME AS name, ACTION_STATEMENT AS text FROM information_schema.TRIGGERS
    WHERE TRIGGER_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE = ? ORDER BY TRIGGER_NAME]], name)) do
      parts[#parts + 1] = row.name .. ": " .. row.text
    end
    return table.concat(parts, "\n")
  end

  local function triggers(name)
    local names = {}
    for line in shape(name):gmatch "[^\n]+" do names[#names + 1] = line:match "^(nightshift_ring_[%w_]+): " end
    return names
  end

  --- Waits until a listener sleeps for the table.
  local function heard(name)
    return eventually(function()
      return all([[SELECT IS_USED_LOCK(CONCAT('nightshift-ear:', MD5(DATABASE()), MD5(?), ':0')) AS n]], name)[1].n
        and #all "SELECT 1 FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'" > 0
    end)
  end

  local WHEN = [[
  local function run(job)
    local file <close> = assert(io.open(%q, "ab"))
    file:write(("%%d %%.6f\n"):format(job.id, require("nightshift").clock()))
  end
  return { migrate = run, job_queue = run, queue_table = run, worker_queue = run, checkout = run }]]

  local function begun(path)
    local found = {}
    local file <close> = io.open(path, "rb")
    for id, at in (file and file:read "a" or ""):gmatch "(%d+) ([%d.]+)\n" do found[tonumber(id)] = tonumber(at) end
    return found
  end

  local function start(name, changes, args)
    local path = fixture.dir() .. "/begun"
    local h = host.start(lab.url(), WHEN:format(path),
      { "--adopt", designs.file(name, changes), table.unpack(args or {}) })
    return h, path
  end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end

  describe("without leave", function()
    for _, name in ipairs(designs.names) do
      it("nothing is added to " .. name, function()
        designs.create(db, name, 2)
        local before = shape(name)
        local h, path = start(name)
        eventually(function() return begun(path)[1] and begun(path)[2] end)
        stop(h)
        assert.equal(before, shape(name))
        local t = assert(db:adopt(designs.map(name)))
        assert.is_nil(t:claim { wait = 0.01 })
        assert.equal(before, shape(name))
      end)
    end
  end)

  describe("triggers", function()
    for _, name in ipairs(designs.names) do
      for _, strategy in ipairs(designs[name].strategies) do
        it(("start the rows of %s by %s at once"):format(name, strategy), function()
          designs.create(db, name, 0)
          local h, path = start(name, { strategy = strategy }, { "--allow-alter" })
          local ROWS = 20
          heard(name)
          local late = {}
          for i = 1, ROWS do
            local added = nightshift.clock()
            all(designs[name].row)
            local ok, at = pcall(eventually, function() return begun(path)[i] end)
            assert.is_true(ok, ("row %d: %s\n%s"):format(i, at, h:transcript()))
            late[i] = at - added
          end
          table.sort(late)
          assert.is_true(late[ROWS // 4] < proc.limit(0.3), late[ROWS // 4]) -- a look a second: 0.5 and more
          stop(h)
        end)
      end
    end

    it("wake a program that waits for a row", function()
      designs.create(db, "migration_task", 0)
      local t = assert(db:adopt(map "migration_task"))
      local times = {}
      for i = 1, 10 do
        local started = nightshift.clock()
        local pid = assert(nst.fork(function()
          nst.sleep(0.2)
          lab.sql(("INSERT INTO `%s`.migration_task (imageUrl) VALUES ('a')"):format(lab.database))
          os.exit(0, true)
        end))
        local job = assert(t:claim { wait = 30 })
        times[i] = nightshift.clock() - started
        assert.equal(i, job.id)
        assert.is_true((job:ack()))
        eventually(function() return nst.reap(pid) end)
      end
      table.sort(times)
      assert.is_true(times[2] < proc.limit(0.6), times[2]) -- a look a second: 1 s
    end)

    it("wake for a row that is open again, and for the child of one that is done", function()
      designs.create(db, "queue_table", 2)
      all "UPDATE queue_table SET status = 'failed'"
      local h, path = start("queue_table", nil, { "--allow-alter" })
      heard "queue_table"
      local since = nightshift.clock()
      all "UPDATE queue_table SET status = 'queued' WHERE id = 2"
      eventually(function() return begun(path)[2] end)
      all "INSERT INTO queue_table (name, parent_id) VALUES ('child', 1)"
      nst.sleep(0.3) -- nothing is to happen
      assert.is_nil(begun(path)[3])
      all "UPDATE queue_table SET status = 'processed' WHERE id = 1"
      eventually(function() return begun(path)[3] end)
      assert.is_true(nightshift.clock() - since < proc.limit(9)) -- by the round: 10 s
      stop(h)
    end)

    it("are heard though whoever rings commits long after", function()
      designs.create(db, "migration_task", 0)
      local h, path = start("migration_task", nil, { "--allow-alter" })
      heard "migration_task"
      for i, seconds in ipairs { 0.02, 0.3, 3 } do
        local committed
        assert(db:transaction(function(tx)
          assert(tx:execute(designs.migration_task.row))
          nst.sleep(seconds) -- longer than a handle takes to look again
          committed = nightshift.clock()
          return true
        end))
        local began = eventually(function() return begun(path)[i] end)
        assert.is_true(began - committed < proc.limit(9), began - committed)
      end
      stop(h)
    end)

    it("leave those of others alone, and are dropped without a trace", function()
      designs.create(db, "migration_task", 1)
      all "CREATE OR REPLACE TABLE seen (id INT)"
      all "CREATE TRIGGER theirs AFTER INSERT ON migration_task FOR EACH ROW INSERT INTO seen VALUES (NEW.id)"
      local before = shape "migration_task"
      local file = designs.file "migration_task"
      local t = assert(db:adopt(map "migration_task"))
      assert.same({ "nightshift_ring_insert_migration_task", "nightshift_ring_update_migration_task" },
        triggers "migration_task")
      all(designs.migration_task.row)
      assert.same({ 2 }, { all "SELECT id FROM seen"[1].id })
      local status, out = proc.nightshift({ "work", file, "--adopt", file, "--drop-triggers" }, lab.url())
      assert.equal(0, status)
      assert.is_truthy(out:find("migration_task", 1, true))
      assert.equal(before, shape "migration_task")
      assert(db:adopt(map "migration_task"))
      assert.equal(2, #triggers "migration_task")
      assert.is_true((t:drop_triggers()))
      assert.equal(before, shape "migration_task")
      assert.is_true((t:drop_triggers()))
    end)

    it("are made anew for another mapping, and once by two at a time", function()
      designs.create(db, "migration_task", 1)
      assert(db:adopt(map "migration_task"))
      local before = shape "migration_task"
      assert(db:adopt(map "migration_task"))
      assert.equal(before, shape "migration_task")
      assert(db:adopt(map("migration_task", { status = { column = "status", open = "open", done = "complete" } })))
      assert.is_not.equal(before, shape "migration_task")
      local file = designs.file "migration_task"
      local hosts = {}
      for i = 1, 2 do
        hosts[i] = host.spawn(lab.url(), WHEN:format(fixture.dir() .. "/begun"), { "--adopt", file, "--allow-alter" })
      end
      for i = 1, 2 do hosts[i]:wait_line("host.ready", 20) end
      assert.equal(before, shape "migration_task")
      for i = 1, 2 do stop(hosts[i]) end
    end)

    it("have names of their own for tables of any name", function()
      for _, name in ipairs { "käse `t.`", ("x"):rep(64) } do
        local quoted = "`" .. name:gsub("`", "``") .. "`"
        all("CREATE OR REPLACE TABLE " .. quoted .. " (`t.``id` INT AUTO_INCREMENT PRIMARY KEY, s VARCHAR(9) "
          .. "CHARACTER SET latin1 DEFAULT 'ä''', w INT, KEY (s))")
        local t = assert(db:adopt { table = name, id = "t.`id", status = { column = "s", open = "ä'",
          processing = "p", done = "d" }, strategy = "transaction", allow_alter = true })
        assert.equal(0, #assert(t:claim_many(2)))
        local times = {}
        for i = 1, 6 do
          local since = nightshift.clock()
          local pid = assert(nst.fork(function()
            nst.sleep(0.1)
            lab.sql(("INSERT INTO `%s`.%s (w) VALUES (1)"):format(lab.database, quoted))
            os.exit(0, true)
          end))
          local job = assert(t:claim { wait = 30 })
          times[i] = nightshift.clock() - since
          assert.is_true((job:ack()))
          eventually(function() return nst.reap(pid) end)
        end
        table.sort(times)
        assert.is_true(times[2] < proc.limit(0.7), times[2]) -- a look a second: 1 s
        all("DROP TABLE " .. quoted)
      end
    end)
  end)

  describe("whoever adds a row", function()
    --- A user who has no rights but those.
    local function user(grants)
      local url, name = servers.shared():user(lab.url(), "")
      for _, grant in ipairs(grants) do lab.sql(("GRANT %s TO %s@localhost"):format(grant:format(lab.database),
        name)) end
      return url, name
    end

    it("needs no right for it, and no table of nightshift's", function()
      designs.create(db, "migration_task", 0)
      local h, path = start("migration_task", nil, { "--allow-alter" })
      heard "migration_task"
      local url = user { "INSERT ON `%s`.migration_task" }
      local late = {}
      for i = 1, 5 do
        local status, out, err = proc.run { "mariadb", "--no-defaults",
          "--socket=" .. url:match "unix_socket=(.*)", "--user=" .. url:match "//(.-):", "--password=Pass-word_1",
          "--init-command=" .. nst.session, "-e",
          ("SET autocommit = 1; USE `%s`; "):format(lab.database) .. designs.migration_task.row }
        assert.equal(0, status, out .. err)
        local added = nightshift.clock()
        late[i] = eventually(function() return begun(path)[i] end) - added
      end
      table.sort(late)
      assert.is_true(late[3] < proc.limit(0.25), late[3]) -- a look a second: 0.5 and more
      stop(h)
    end)

    it("does not notice when nightshift's tables are gone", function()
      local url = servers.fresh()
      local own <close> = assert(nightshift.open(url))
      designs.create(own, "migration_task", 1)
      assert(own:adopt(map "migration_task"))
      for _, row in ipairs(assert(own:execute [[SELECT TABLE_NAME AS name, TABLE_TYPE AS kind
      FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'nightshift%']])) do
        local kind = row.kind == "VIEW" and "VIEW" or row.kind == "SEQUENCE" and "SEQUENCE" or "TABLE"
        assert(own:execute(("DROP %s %s"):format(kind, row.name)))
      end
      assert(own:execute(designs.migration_task.row))
      assert(own:execute "UPDATE migration_task SET status = 'complete'")
      assert.equal(2, assert(own:execute "SELECT COUNT(*) AS n FROM migration_task")[1].n)
    end)

    it("does not notice when who added the triggers may read the table no more", function()
      designs.create(db, "migration_task", 0)
      local url, name = user { "ALL ON `%s`.*" }
      local own <close> = assert(nightshift.open(url))
      assert(own:adopt(map "migration_task"))
      own:close()
      lab.sql(("REVOKE ALL ON `%s`.* FROM %s@localhost; GRANT TRIGGER ON `%s`.migration_task TO %s@localhost")
        :format(lab.database, name, lab.database, name))
      all(designs.migration_task.row)
      all "UPDATE migration_task SET status = 'complete'"
      assert.equal(1, #all "SELECT id FROM migration_task WHERE status = 'complete'")
      assert(assert(db:adopt(designs.map "migration_task")):drop_triggers())
    end)

    it("is told what the user lacks who was to add triggers", function()
      designs.create(db, "migration_task", 0)
      local url, name = user { "SELECT, INSERT, UPDATE, DELETE, EXECUTE ON `%s`.*" }
      local before = shape "migration_task"
      do
        local own <close> = assert(nightshift.open(url))
        local t, message, code = own:adopt(map "migration_task")
        assert.same({ nil, "DENIED" }, { t, code })
        assert.is_truthy(message:find("GRANT TRIGGER, SELECT ON `migration_task`", 1, true), message)
      end
      local file = designs.file "migration_task"
      local status, _, err = proc.nightshift({ "work", fixture.file("jobs.lua", WHEN:format "/dev/null"), "--adopt",
        file,
        "--allow-alter" }, url)
      assert.equal(78, status)
      assert.is_truthy(err:find("GRANT TRIGGER", 1, true), err)
      assert.equal(before, shape "migration_task")
      lab.sql(("GRANT TRIGGER ON `%s`.migration_task TO %s@localhost"):format(lab.database, name))
      local own <close> = assert(nightshift.open(url))
      assert(own:adopt(map "migration_task"))
      assert.equal(2, #triggers "migration_task")
    end)

    it("is not held up by triggers that are to be added", function()
      designs.create(db, "migration_task", 1)
      assert(db:transaction(function(tx)
        assert(tx:execute "SELECT * FROM migration_task")
        local own <close> = lab.open()
        local t, message, code = own:adopt(map "migration_task")
        assert.same({ nil, "BUSY" }, { t, code })
        assert.is_truthy(message:find("transaction", 1, true), message)
        return true
      end))
      assert.equal(0, #triggers "migration_task")
      local inside = select(3, db:transaction(function()
        return select(3, db:adopt(map "migration_task")) == "STATE" and true
      end))
      assert.equal("STATE", inside) -- a verb that failed keeps it from being committed
    end)
  end)

  it("an idle table that rings is hardly looked at", function()
    designs.create(db, "migration_task", 0)
    local WINDOW = 8
    --- Looks for rows in that many seconds.
    local function looks(args)
      local h = start("migration_task", nil, args)
      nst.sleep(2.5) -- what follows a start
      lab.sql "SET GLOBAL log_output = 'TABLE'; TRUNCATE mysql.general_log; SET GLOBAL general_log = ON"
      nst.sleep(WINDOW)
      lab.sql "SET GLOBAL general_log = OFF"
      stop(h)
      return tonumber(lab.sql [[SELECT COUNT(*) FROM mysql.general_log
      WHERE argument LIKE '%SELECT t.`id`_FROM (SELECT t.`id` FROM `migration\_task`%']])
    end
    local plain, rung = looks(), looks { "--allow-alter" }
    assert.is_true(plain >= WINDOW / 2, plain)
    assert.is_true(rung <= 3, rung) -- its own, and after a look at who is dead; each 10 s
  end)
end)
