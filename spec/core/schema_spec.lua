-- The schema: made once, checked at connect, made anew, and impossible states refused.

local core = require "nightshift.core"
local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

-- The schema: made once, checked at connect, and impossible states refused.
describe("the schema", function()
  local function database(url) return url:match "/([^/?]+)%?" end

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

-- A procedure that was dropped, or whose definer was, stayed away: the tables
-- were of the right version, so no migration made it again, and the doctor said
-- to grant what was not there.
describe("migrate, with tables that are current", function()
  local PROCEDURES = { "nightshift_listen", "nightshift_nudge", "nightshift_push", "nightshift_ring",
    "nightshift_signal" }

  local url, name
  before_each(function() url, name = db.fresh() end)

  local function doctor(place)
    local _, out = proc.nightshift({ "doctor", "--json" }, place)
    local found = {}
    for _, check in ipairs(nightshift.decode(out).checks) do found[check.name] = check end
    return found
  end

  local function expect(check, level, found, advice)
    assert.equal(level, check.level, check.found)
    assert.is_truthy(check.found:find(found, 1, true), check.found)
    if advice then assert.is_truthy(check.advice:find(advice, 1, true), check.advice) end
  end

  for _, command in ipairs { "migrate", "init" } do
    it("makes procedures and views anew: " .. command, function()
      for _, procedure in ipairs(PROCEDURES) do db.sql("DROP PROCEDURE " .. procedure, name) end
      db.sql("DROP VIEW nightshift_jobs, nightshift_history", name)
      expect(doctor(url).procedures, "fail", table.concat(PROCEDURES, ", ") .. " not there", "nightshift migrate")
      expect(doctor(url).tables, "fail", "nightshift_history is not there, nightshift_jobs is not there",
        "nightshift migrate")
      local exit, out, err = proc.nightshift({ command }, url)
      assert.same({ 0, "" }, { exit, err })
      assert.matches("^the tables are of version %d+ already; procedures and views were made anew\n$", out)
      local found = doctor(url)
      expect(found.procedures, "ok", "5")
      expect(found.tables, "ok", "")
      expect(found.ring, "ok", "ended a listener's sleep")
    end)
  end

  it("gives them an owner who is there, and leaves who may call them", function()
    local empty, database = db.empty()
    local maker, definer = db.user(empty, "ALL")
    local made <close> = assert(core.open { url = maker, no_schema = true })
    assert(made:migrate())
    local worker, user = db.user(empty, "")
    local _, text = proc.nightshift { "doctor", "--grants", "worker", "--user", user .. "@localhost" }
    db.sql(text, database)
    db.sql(("DROP USER %s@localhost"):format(definer))
    local found = doctor(worker)
    expect(found.procedures, "fail", definer .. "@localhost", "nightshift migrate")
    assert.equal(0, (proc.nightshift({ "migrate" }, empty)))
    found = doctor(worker)
    expect(found.procedures, "ok", "4")
    expect(found.ring, "ok", "ended a listener's sleep", nil)
    expect(found.grants, "ok", "worker")
  end)

  it("is told from a right to call that is missing", function()
    local reach, user = db.user(url, "SELECT")
    expect(doctor(reach).ring, "warn", "may not call nightshift_ring", "GRANT EXECUTE")
    expect(doctor(reach).procedures, "ok", "")
    db.sql(("GRANT EXECUTE ON `%s`.* TO %s@localhost; DROP PROCEDURE nightshift_ring"):format(name, user), name)
    local found = doctor(reach)
    expect(found.procedures, "fail", "nightshift_ring", "nightshift migrate")
    expect(found.ring, "warn", "nobody wakes", "see procedures")
    assert.is_nil(found.grants.found:find("EXECUTE on nightshift_ring", 1, true))
  end)

  it("does so while jobs flow and callers are in the middle of a transaction", function()
    local pusher = assert(nightshift.open(url))
    local worker = assert(nightshift.open(url))
    local caller = assert(core.open { url = url })
    local admin <close> = assert(core.open { url = url, no_schema = true })
    assert(pusher:queue("q"):push("first", 1)) -- makes the queue
    assert(worker:queue("q"):claim()):ack()
    assert(caller:begin())
    assert(caller:execute "CALL nightshift_push('q', 'a', '1', NULL)")
    for i = 1, 5 do
      assert(pusher:queue("q"):push("b", i))
      assert(admin:migrate())
      assert(pusher._handle:ring())
      assert(worker:queue("q"):claim { wait = 20 }):ack()
      assert(pusher._handle:execute "CALL nightshift_push('q', 'c', '1', NULL)")
      assert(worker:queue("q"):claim { wait = 20 }):ack()
    end
    assert(caller:execute "CALL nightshift_push('q', 'a', '1', NULL)")
    assert(caller:commit())
    assert.equal("2", db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", name))
    for _, handle in ipairs { pusher, worker, caller } do handle:close() end
  end)
end)

-- A job whose row said run = 4294967295, which a pusher's account could write,
-- could not be given back: the next run does not fit. Nor could a job come back
-- whose polls, losses or missing handlers had reached their column's limit.
describe("a count at its limit", function()
  local MAX = 4294967295

  local url, name, handle, q

  with_database(function(...) handle, q, url, name = ... end)

  local function set(what) db.sql("UPDATE nightshift_job SET " .. what, name) end
  local function value(what) return db.sql("SELECT " .. what .. " FROM nightshift_job", name) end

  --- As the rescue does: its holder is nobody known.
  local function lose(job)
    db.sql(("DELETE FROM nightshift_ready WHERE job_id = %d"):format(job.id), name)
    db.sql(("INSERT INTO nightshift_lease VALUES (7, 7, 1, '[[%d,%d]]')"):format(job.id, job.run), name)
    return proc.nightshift({ "rescue" }, url) == 0
  end

  --- Gives the job back through the C module, which knows every other kind.
  local function settle(kind, prepare)
    if prepare then set(prepare) end
    if kind == "lost" then
      local id, run = value "id, run":match "(%d+)\t(%d+)"
      return lose { id = tonumber(id), run = tonumber(run) }
    end
    local h <close> = assert(core.open { url = url })
    local claimed = assert(h:claim("q", 1, 0))[1]
    return h:settle { id = claimed.id, run = claimed.run, lease = claimed.lease, kind = kind }
  end

  it("of runs is not one that a pusher can write", function()
    assert(q:push("a", 1))
    local ok, message = handle:execute "UPDATE nightshift_job SET run = 4000000001"
    assert.is_nil(ok)
    assert.is_truthy(message:find("job_run_counts", 1, true), message)
  end)

  for _, kind in ipairs { "release", "again", "fail", "crash", "missing", "lost" } do
    it("of runs ends the job that would go beyond it: " .. kind, function()
      assert(q:push("a", 1))
      set "run = 4000000000"
      db.sql("UPDATE nightshift_ready SET run = 4000000000 WHERE job_id > 0", name)
      assert(settle(kind))
      assert.equal("", value "id")
      assert.equal("dead\ttoo many runs\t4000000000", db.sql(
        "SELECT outcome, reason, run FROM nightshift_finished", name))
    end)
  end

  for count, kind in pairs { polls = "again", lost = "lost", missed = "missing" } do
    it("of " .. count .. " stays there", function()
      assert(q:push("a", 1))
      set "max_polls = NULL"
      local also = count == "missed" and ", missing_since = UNIX_TIMESTAMP(NOW(6)) * 1000000" or ""
      assert(settle(kind, ("%s = %d%s"):format(count, MAX, also)))
      assert.equal(("%d\t2"):format(MAX), value(count .. ", run"))
    end)
  end

  it("of polls is kept in the history", function()
    assert(q:push("a", 1))
    local job = assert(q:claim())
    set(("polls = %d, max_polls = %d"):format(MAX, MAX))
    assert(job:again(0))
    assert.equal(("poll deadline\t%d"):format(MAX), db.sql("SELECT reason, polls FROM nightshift_finished", name))
  end)

  it("of microseconds is the longest delay there is", function()
    assert(q:push("a", 1))
    local job = assert(q:claim())
    set "backoff = 9223372036854775807"
    assert(job:again())
    local years = tonumber(value "(due - created) / 1000000 / 86400 / 365.25")
    assert.is_true(years > 99 and years < 101, years)
  end)
end)

-- NEXTVAL needs INSERT on a sequence, and SETVAL needs no more. A pusher that set
-- nightshift_id to its end stopped all pushes, and the doctor saw nothing.
describe("nightshift_id", function()
  local url, name

  before_each(function() url, name = db.fresh() end)

  local function ids(place)
    local _, out = proc.nightshift({ "doctor", "--json" }, place or url)
    for _, check in ipairs(nightshift.decode(out).checks) do
      if check.name == "ids" then return check end
    end
  end

  local function push()
    local handle <close> = assert(nightshift.open(url))
    return handle:queue("q"):push("a", 1)
  end

  local function as_pusher(sql)
    local _, user = db.user(url, "")
    local _, text = proc.nightshift { "doctor", "--grants", "pusher", "--user", user .. "@localhost" }
    db.sql(text, name)
    local reach = db.url(name, user, "Pass-word_1")
    local handle <close> = assert(nightshift.open(reach))
    assert(handle:execute(sql))
    return reach
  end

  it("that only pushes have moved is all right", function()
    assert(push())
    assert.equal("ok", ids().level)
    local reach = as_pusher "SELECT 1"
    assert.equal("ok", ids(reach).level)
    assert.equal("ok", ids((db.user(url, "CREATE TEMPORARY TABLES"))).level)
  end)

  it("that was set far ahead is named, with the way back", function()
    local first = assert(push())
    as_pusher "SELECT SETVAL(nightshift_id, 5000000000000000)"
    local far = assert(push())
    assert.is_true(far > first * 1000)
    local check = ids()
    assert.equal("warn", check.level)
    assert.is_truthy(check.found:find("block 5000000000", 1, true), check.found)
    local statement = check.advice:match "ALTER SEQUENCE nightshift_id RESTART %d+"
    assert.is_truthy(statement, check.advice)
    db.sql(statement, name)
    assert.equal("ok", ids().level)
    local id = assert(push())
    assert.is_true(id > first and id < far)
  end)

  for _, last in ipairs { "92233720368547758", "9223372036854775806" } do
    it("that was set to its end is a failure, and no number of ours runs over: " .. last, function()
      local first = assert(push())
      local reach = as_pusher(("SELECT SETVAL(nightshift_id, %s)"):format(last))
      local id, message, code = push()
      assert.same({ nil, "SQL" }, { id, code })
      assert.is_truthy(message:find("nightshift doctor", 1, true) or message:find("run out", 1, true), message)
      local check = ids()
      assert.equal("fail", check.level)
      assert.is_truthy(ids(reach).advice:find("ALTER SEQUENCE nightshift_id RESTART", 1, true))
      db.sql(check.advice:match "ALTER SEQUENCE nightshift_id RESTART %d+", name)
      assert.is_true(assert(push()) > first)
      assert.equal("ok", ids().level)
    end)
  end
end)
