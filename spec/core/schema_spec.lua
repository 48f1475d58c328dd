-- The schema: made once, checked at connect, and impossible states refused.

local core = require "nightshift.core"
local nightshift = require "nightshift"
local db = require "spec.support.db"

local function database(url) return url:match "/([^/?]+)%?" end

describe("the schema", function()
  it("is created once and left alone after that", function()
    local url = db.empty()
    local handle <close> = assert(core.open { url = url, no_schema = true })
    assert.equal(0, handle:migrate())
    local schema = core.schema()
    assert.equal(schema[#schema].version, handle:migrate())
  end)

  it("is finished by the next migration when one was cut off", function()
    local url = db.empty()
    local handle <close> = assert(core.open { url = url, no_schema = true })
    for i, statement in ipairs(core.schema()) do
      if i > 5 then break end
      assert(handle:execute(statement.text))
    end
    assert.equal("SCHEMA", select(3, nightshift.open(url)))
    assert.equal(0, handle:migrate())
    assert(nightshift.open(url)):close()
  end)

  it("that is missing, older or newer is named at connect, with what to do", function()
    local url = db.empty()
    local none, message, code = nightshift.open(url)
    assert.same({ nil, "SCHEMA" }, { none, code })
    assert.is_truthy(message:find("nightshift init", 1, true))
    url = db.fresh()
    db.sql("UPDATE nightshift_meta SET value = '0' WHERE name = 'schema'", database(url))
    assert.is_truthy(select(2, nightshift.open(url)):find("nightshift init", 1, true))
    db.sql("UPDATE nightshift_meta SET value = '99' WHERE name = 'schema'", database(url))
    none, message, code = nightshift.open(url)
    assert.same({ nil, "SCHEMA" }, { none, code })
    assert.is_truthy(message:find("newer", 1, true))
  end)

  it("makes impossible states impossible", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:queue("q"):push("a", 1))
    for _, sql in ipairs {
      "UPDATE nightshift_job SET payload = '{'",
      "UPDATE nightshift_job SET attempts = max_attempts",
      "UPDATE nightshift_job SET crashes = max_crashes",
      "UPDATE nightshift_job SET run = 0",
      "UPDATE nightshift_job SET run = 4000000001",
      "UPDATE nightshift_job SET name = ''",
      "UPDATE nightshift_job SET name = 'a\nb'",
      "UPDATE nightshift_job SET parent = id, root = id",
      "UPDATE nightshift_job SET parent = 1",
      "UPDATE nightshift_job SET missed = 1",
      "UPDATE nightshift_job SET state = 'x'",
      "UPDATE nightshift_job SET timeout = 0",
      "UPDATE nightshift_ready SET job_id = 0",
      "UPDATE nightshift_ready SET run = 0",
      "INSERT INTO nightshift_ready VALUES (1, 1, 9223372036854775807, 5, 1, 0, 0)",
      "INSERT INTO nightshift_scheduled VALUES (1, 0, 1, 1, 1, 0)",
      "INSERT INTO nightshift_edge VALUES (1, 1)",
      "INSERT INTO nightshift_child VALUES (1, 0, 1)",
      "INSERT INTO nightshift_signal VALUES (1, 'a', '[', 1)",
      "INSERT INTO nightshift_lease VALUES (1, 1, 1, '[')",
      "INSERT INTO nightshift_queue (name, created) VALUES ('', 1)",
      "INSERT INTO nightshift_queue (name, created) VALUES ('a\tb', 1)",
      [[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls, crashes,
          lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, on_fail, nonce)
        VALUES (1, 1, 'a', '1', 1, 'dead', 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 'cancel', 1)]],
    } do
      local none, message = handle:execute(sql)
      assert.is_nil(none, sql .. " was taken")
      assert.is_truthy(message:find "CONSTRAINT", sql .. ": " .. message)
    end
  end)

  it("shows live and ended jobs with their states in two views", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push_many {
      { "spawns", 1, { priority = 200 } }, { "runs", 1, { priority = 190 } }, { "is.done", 1, { priority = 180 } },
      { "is.dead", 1, { priority = 170 } }, { "is.ready", 1 }, { "is.later", 1, { delay = 60 } },
    })
    local jobs = q:claim_many(4)
    jobs[1]:spawn("waits", 1)
    jobs[1]:again(60)
    jobs[3]:ack()
    jobs[4]:discard "no good"
    local rows = assert(handle:execute [[SELECT id, name, state, queue, created, due FROM nightshift_jobs
      UNION ALL SELECT id, name, state, queue, created, finished_at FROM nightshift_history ORDER BY name]])
    local seen = {}
    for _, row in ipairs(rows) do
      assert.equal("q", row.queue)
      assert.matches("^%d%d%d%d%-%d%d%-%d%d %d%d:%d%d:%d%d%.%d%d%d%d%d%d$", row.created)
      assert.matches("^%d%d%d%d%-%d%d%-%d%d %d%d:%d%d:%d%d%.%d%d%d%d%d%d$", row.due)
      assert.equal(row.state, assert(handle:job(row.id)).state)
      seen[#seen + 1] = row.name .. "=" .. row.state
    end
    assert.same({ "is.dead=dead", "is.done=done", "is.later=scheduled", "is.ready=ready", "runs=running",
      "spawns=scheduled", "waits=waiting" }, seen)
  end)
end)
