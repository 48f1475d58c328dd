-- An error of the server that no table knew counted as the fault of the verdict it met: a
-- full tmpdir, a limit or a setting ended finished jobs as dead, spent attempts, or had
-- them run again and again.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

-- A file that is full (error 3), no table of a descriptor (20, 23), a record of another file
-- (1026), an old key file (1034), no memory to sort (1038), rows that are not to be updated
-- (1175), a transaction over its cache (1197), too many statements (1461), a statement that
-- is to be prepared again (1615), too many transactions (1637), STATEMENT (1665), a
-- transaction that only reads (1792), a read-only table (1836), an index of another making
-- (1874), a table of an engine that has lost it (1932), and one that nobody knows yet.
local TROUBLES = { 3, 20, 23, 1026, 1034, 1038, 1175, 1197, 1461, 1615, 1637, 1665, 1792, 1836, 1874, 1932, 4999 }
local VALUES = { 1048, 1264, 1265, 1292, 1366, 1406, 1644, 4025, 4038, 4078 }

local HANDLERS = [[
  local function wait(path)
    while not io.open(path) do os.execute "sleep 0.01" end
  end
  return {
    quick = function() return 1 end,
    slow = function(job) wait(job.payload.go) return ("x"):rep(job.payload.size) end,
  }
]]

-- What is written of a job that ends so fails with an error of our choice.
local function plant(name, number)
  db.sql(([[CREATE TABLE trouble (number INT, sort VARCHAR(20) COLLATE utf8mb4_nopad_bin);
    INSERT INTO trouble VALUES (%d, 'done');
    DELIMITER $$
    CREATE TRIGGER trouble BEFORE INSERT ON nightshift_finished FOR EACH ROW BEGIN
      DECLARE v_number INT DEFAULT NULL;
      SELECT MAX(number) INTO v_number FROM trouble WHERE sort = NEW.outcome AND NEW.name <> 'quick';
      IF v_number IS NOT NULL THEN
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = v_number, MESSAGE_TEXT = 'planted';
      END IF;
    END$$]]):format(number), name)
end

local function runs(handle, id)
  local job = assert(handle:job(id))
  return { job.state, job.run, job.attempts }
end

describe("the server's own trouble with a verdict", function()
  local handle, q, url, name
  with_database(function(...) handle, q, url, name = ... end)

  it("is BUSY for a program, spends nothing, and the verdict can be given again", function()
    plant(name, 0)
    for _, number in ipairs(TROUBLES) do
      assert(handle:execute("UPDATE trouble SET number = ?", number))
      local id = assert(q:push("job", 1, { max_attempts = 1 }))
      local job = assert(q:claim())
      local none, message, code = job:ack "result"
      assert.same({ nil, "BUSY" }, { none, code }, message)
      assert.is_truthy(message:find("(" .. number .. ")", 1, true), message)
      assert(handle:execute "UPDATE trouble SET number = NULL")
      assert(job:ack "result")
      assert.same({ "done", 1, 0 }, runs(handle, id))
    end
  end)

  it("is waited for by a host, which goes on with all else", function()
    plant(name, 0)
    local h = host.start(url, HANDLERS)
    local go = fixture.file("go", "")
    for _, number in ipairs(TROUBLES) do
      assert(handle:execute("UPDATE trouble SET number = ?", number))
      local ill = assert(q:push("slow", { go = go, size = 10 }, { max_attempts = 1 }))
      h:wait_line("event=db.error .*number=" .. number .. " ")
      local well = assert(q:push "quick")
      eventually(function() return handle:job(well).state == "done" end)
      assert.same({ "running", 1, 0 }, runs(handle, ill))
      assert(handle:execute "UPDATE trouble SET number = NULL")
      eventually(function() return handle:job(ill).state == "done" end)
      assert.same({ "done", 1, 0 }, runs(handle, ill))
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("is not what a value causes: then the job fails, and the failure says why", function()
    plant(name, 0)
    local h = host.start(url, HANDLERS)
    local go = fixture.file("go", "")
    for _, number in ipairs(VALUES) do
      assert(handle:execute("UPDATE trouble SET number = ?", number))
      local id = assert(q:push("slow", { go = go, size = 10 }, { max_attempts = 1 }))
      eventually(function() return handle:job(id).state == "dead" end)
      assert.matches("the verdict was refused: .*%(" .. number .. "%)", handle:job(id).error)
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("keeps what was refused twice, and does not run it again", function()
    plant(name, 1644)
    db.sql("INSERT INTO trouble VALUES (1644, 'dead')", name)
    local h = host.start(url, HANDLERS)
    local id = assert(q:push("slow", { go = fixture.file("go", ""), size = 10 }, { max_attempts = 1 }))
    h:wait_line "event=db.error .*number=1644 .*verdicts=1"
    assert.same({ "running", 1, 0 }, runs(handle, id))
    db.sql("DELETE FROM trouble", name)
    eventually(function() return handle:job(id).state == "done" end)
    assert.same({ "done", 1, 0 }, runs(handle, id))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("is one line at a time for many verdicts, and all are written in the end", function()
    plant(name, 1175)
    local h = host.start(url, HANDLERS)
    local go = fixture.file("go", "")
    local jobs = {}
    for i = 1, 300 do jobs[i] = { i % 3 == 0 and "slow" or "quick", { go = go, size = 10 }, { max_attempts = 1 } } end
    local ids = assert(q:push_many(jobs))
    h:wait_line "event=db.error .*number=1175 "
    eventually(function()
      return db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name) == "200"
    end)
    db.sql("DELETE FROM trouble", name)
    eventually(function()
      return db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name) == "300"
    end)
    for _, id in ipairs(ids) do assert.same({ "done", 1, 0 }, runs(handle, id)) end
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.same({}, host.events(select(2, h:text()), "job.stale"))
  end)
end)

describe("a full tmpdir of a server with a binary log", function()
  local server, folder

  setup(function()
    folder = fixture.dir() .. "/small"
    if not os.execute(("mkdir %s && mount -t tmpfs -o size=3m none %s 2>/dev/null"):format(folder, folder)) then
      folder = nil
      return
    end
    server = db.server("log-bin\nbinlog-format=ROW\ntmpdir=" .. folder .. "\n")
  end)
  teardown(function()
    if not folder then return end
    server:remove()
    os.execute("umount " .. folder)
  end)

  it("has large results wait, with nothing spent; small ones are written", function()
    if not folder then
      pending "no tmpfs can be mounted here"
      return
    end
    local url = server:fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local h = host.start(url, HANDLERS)
    local go = fixture.dir() .. "/go"
    local once = assert(q:push("slow", { go = go, size = 300000 }, { max_attempts = 1 }))
    local often = assert(q:push("slow", { go = go, size = 300000 }, { max_attempts = 10 }))
    eventually(function() return runs(handle, often)[1] == "running" end)
    os.execute(("head -c 10M /dev/zero > %s/filler 2>/dev/null"):format(folder))
    assert(io.open(go, "w")):close()
    h:wait_line "event=db.error .*number=3 .*verdicts="
    local small = assert(q:push("slow", { go = go, size = 10 }))
    eventually(function() return handle:job(small).state == "done" end)
    assert.same({ { "running", 1, 0 }, { "running", 1, 0 } }, { runs(handle, once), runs(handle, often) })
    assert(os.remove(folder .. "/filler"))
    eventually(function() return handle:job(once).state == "done" and handle:job(often).state == "done" end)
    assert.same({ { "done", 1, 0 }, { "done", 1, 0 } }, { runs(handle, once), runs(handle, often) })
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
