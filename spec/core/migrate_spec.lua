-- Migrations of tables that are in use: what was there goes on.

local core = require "nightshift.core"
local db = require "spec.support.db"
local nightshift = require "nightshift"

--- A database with the tables of an older version.
local function install(version)
  local url, name = db.empty()
  local handle <close> = assert(core.open { url = url, no_schema = true })
  for _, statement in ipairs(core.schema()) do
    if statement.version <= version then assert(handle:execute(statement.text)) end
  end
  db.sql(("INSERT INTO nightshift_meta (name, value) VALUES ('schema', '%d')"):format(version), name)
  return url, name
end

-- What a program of version 5 left: a job of each state, an edge, history.
local LEFT = [==[
  INSERT INTO nightshift_queue (id, name, created) VALUES (1, 'q', 1);
  INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes, backoff, timeout,
    created, due, parent, root, unmet, nonce)
  VALUES (101, 1, 'ready', '1', 100, 155, 10, 3, 5000000, 3600000000, 1, 1, NULL, NULL, 0, 1),
    (102, 1, 'due', '2', 100, 155, 10, 3, 5000000, 3600000000, 1, 2, NULL, NULL, 0, 2),
    (103, 1, 'parent', '3', 90, 165, 10, 3, 5000000, 3600000000, 1, 1, NULL, NULL, 0, 3),
    (104, 1, 'child', '4', 100, 155, 10, 3, 5000000, 3600000000, 1, 1, 103, 103, 1, 4),
    (105, 1, 'held', '5', 100, 155, 10, 3, 5000000, 3600000000, 1, 1, NULL, NULL, 0, 5);
  INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run) VALUES (1, 155, 1, 101, 1), (1, 165, 2, 103, 1);
  INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run) VALUES (2, 102, 1, 155, 1);
  INSERT INTO nightshift_edge (on_id, job_id) VALUES (103, 104);
  INSERT INTO nightshift_holder (id, kind, host, pid, boot_id, connection, started, beat, version)
  VALUES (900, 'handle', 'h', 1, 'b', 1, 1, 1, '0.1.0');
  INSERT INTO nightshift_lease (id, holder, claimed, jobs) VALUES (901, 900, 1, '[[105,1]]');
  INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, reason, run, attempts, polls,
    crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, on_fail, nonce)
  VALUES (100, 1, 'old', '0', 100, 'dead', 'failed', 3, 3, 0, 0, 0, 3, 3, 1, 1, 1, 2, 'cancel', 9);
  ALTER SEQUENCE nightshift_id RESTART 1000]==]

describe("a migration from version 5", function()
  it("keeps jobs of every state, and they go on", function()
    local url, name = install(5)
    db.sql(LEFT, name)
    assert.equal("SCHEMA", select(3, nightshift.open(url)))
    local raw <close> = assert(core.open { url = url, no_schema = true })
    assert.equal(5, raw:migrate())
    local handle <close> = assert(nightshift.open(url))
    assert.same({ "waiting", 1 }, { handle:job(104).state, handle:job(104).unmet })
    assert.equal(8, assert(handle:execute "SELECT decay FROM nightshift_finished")[1].decay)
    local q = handle:queue "q"
    local seen = {}
    for _ = 1, 4 do
      local job = assert(q:claim())
      seen[job.name] = job.phase
      assert(job:ack())
    end
    assert.same({ ready = 0, due = 0, parent = 0, child = 0 }, seen)
    assert(handle._handle:settle { id = 105, run = 1, lease = 901, kind = "ack" }) -- a run that began before
    assert.equal("done", handle:job(105).state)
    assert(handle:retry(100))
    assert.equal("old", assert(q:claim()).name)
  end)

  it("does not stall the sessions of before, and they still push and finish", function()
    local url, name = install(5)
    db.sql(LEFT, name)
    local old <close> = assert(core.open { url = url, no_schema = true })
    assert(old:execute "START TRANSACTION")
    assert(old:execute "SELECT id FROM nightshift_job LIMIT 1 FOR UPDATE")
    local raw <close> = assert(core.open { url = url, no_schema = true })
    local before = nightshift.clock()
    local _, _, code = raw:migrate()
    assert.is_true(code == "BUSY", tostring(code))
    assert.is_true(nightshift.clock() - before < 30)
    assert(old:execute "COMMIT")
    assert.equal(5, raw:migrate())
    -- statements of version 5, which name no new column
    assert(old:execute [[INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank, max_attempts,
      max_crashes, backoff, timeout, created, due, nonce) VALUES (200, 1, 'n', '1', 100, 155, 1, 1, 1, 1, 1, 1, 1)]])
    assert(old:execute [[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts,
      polls, crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, on_fail, nonce)
      VALUES (201, 1, 'n', '0', 100, 'done', 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 'cancel', 9)]])
  end)

  it("of a long history changes no row of it", function()
    local url, name = install(5)
    db.sql([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls,
        crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, on_fail, nonce)
      SELECT seq, 1, 'n', '"0123456789"', 100, 'done', 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, seq, 'cancel', 9
      FROM seq_1_to_200000]], name)
    local raw <close> = assert(core.open { url = url, no_schema = true })
    local before = nightshift.clock()
    assert.equal(5, raw:migrate())
    local took = nightshift.clock() - before
    assert.is_true(took < 2, took .. " s")
    assert.equal("200000", db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE decay = 8", name))
  end)
end)
