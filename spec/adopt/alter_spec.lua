-- Triggers on an adopted table that ring: none without leave; with them a row that
-- somebody adds in plain SQL starts at once, whatever his transaction does, and whoever
-- adds it never has trouble with them.

local designs = require "spec.support.designs"
local host = require "spec.support.host"
local lab = require "spec.support.lab"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local servers = require "spec.support.db"

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

--- Waits until somebody sleeps for the table.
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
        nst.sleep(seconds) -- longer than anybody looks again
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
    for _, grant in ipairs(grants) do lab.sql(("GRANT %s TO %s@localhost"):format(grant:format(lab.database), name)) end
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
        "-e", ("USE `%s`; "):format(lab.database) .. designs.migration_task.row }
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
    local status, _, err = proc.nightshift({ "work", fixture.file("jobs.lua", WHEN:format "/dev/null"), "--adopt", file,
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
