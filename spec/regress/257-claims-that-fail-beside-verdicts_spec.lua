-- A cycle whose claim failed had written its verdicts one by one; they came again with the next,
-- and were told, and logged, as claims that were lost: job.stale, of a job that was done.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

local HANDLERS = [[return { job = function(job)
  while not io.open(job.payload) do os.execute "sleep 0.01" end
end }]]

it("verdicts that were written before the claim failed are not stale", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  db.sql([[CREATE TABLE trouble (number INT);
    DELIMITER $$
    CREATE TRIGGER trouble BEFORE INSERT ON nightshift_lease FOR EACH ROW
      IF EXISTS(SELECT 1 FROM trouble) THEN
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1175, MESSAGE_TEXT = 'planted';
      END IF$$]], name)
  local h = host.start(url, HANDLERS)
  local go, ids = fixture.dir() .. "/go", {}
  for i = 1, 2 do ids[i] = assert(q:push("job", go)) end
  for i = 1, 2 do
    eventually(function() return handle:job(ids[i]).state == "running" end)
  end
  db.sql("INSERT INTO trouble VALUES (1)", name)
  for i = 3, 12 do ids[i] = assert(q:push("job", go)) end
  io.open(go, "w"):close()
  h:wait_line "event=db.error .*number=1175 "
  for i = 1, 2 do
    eventually(function() return handle:job(ids[i]).state == "done" end)
  end
  h:wait_line("event=db.error .*number=1175 ", 20, 2)
  db.sql("DELETE FROM trouble", name)
  for _, id in ipairs(ids) do
    eventually(function() return handle:job(id).state == "done" end, 20)
    assert.same({ 1, 0 }, { handle:job(id).run, handle:job(id).attempts })
  end
  h:signal "TERM"
  assert.equal(0, h:wait())
  assert.same({}, host.events(select(2, h:text()), "job.stale"))
end)

-- The same of a program: of verdicts that were settled apart the first are written, and then
-- the server is gone.
it("verdicts that were written before the call failed are told so when they come again", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local claimer <close> = assert(core.open { url = url })
  local items, acks = {}, {}
  for i = 1, 4 do items[i] = { "job", i } end
  assert(handle:queue("q"):push_many(items))
  for i, job in ipairs(claimer:claim("q", 4)) do
    acks[i] = { id = job.id, run = job.run, lease = job.lease, kind = "ack" }
  end
  -- trouble of all together, then of the second half a link that is cut
  db.sql(([[CREATE TABLE tries (n INT) ENGINE=Aria;
    INSERT INTO tries VALUES (0);
    DELIMITER $$
    CREATE TRIGGER trouble BEFORE INSERT ON nightshift_finished FOR EACH ROW
      IF NEW.id = %d THEN
        UPDATE tries SET n = n + 1;
        IF (SELECT n FROM tries) = 1 THEN
          SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1175, MESSAGE_TEXT = 'planted';
        ELSE
          KILL CONNECTION_ID();
        END IF;
      END IF$$]]):format(acks[3].id), name)
  local ok, message, code = claimer:settle_all(acks)
  assert.same({ nil, "GONE" }, { ok, code }, message)
  assert.equal("2", db.sql("SELECT COUNT(*) FROM nightshift_finished", name))
  db.sql("DROP TRIGGER trouble", name)
  assert(claimer:settle_all(acks))
  assert.equal("4", db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
end)
