-- The schema: made once, checked at connect, made anew, and impossible states refused. The
-- plans of the hot statements: the index they use, and nothing sorted.

local core = require "nightshift.core"
local db = require "spec.support.db"
local filter = require "nightshift.filter"
local nightshift = require "nightshift"
local plans = require "nightshift.doctor.tables"
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
    jobs[1]:again(60, { page = 2 })
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
    assert.equal('{"page":2}', assert(handle:execute "SELECT kept FROM nightshift_jobs WHERE name = 'spawns'")[1].kept)
    assert.same({ "is.dead=dead", "is.done=done", "is.later=scheduled", "is.ready=ready", "runs=running",
      "spawns=scheduled", "waits=waiting" }, seen)
  end)
end)

-- A procedure that was dropped, or lost its definer, stayed away: the tables were of the right
-- version. So no migration made it again, and the doctor said to grant what was not there.
describe("migrate, with tables that are current", function()
  local PROCEDURES = { "nightshift_listen", "nightshift_nudge", "nightshift_push", "nightshift_ring",
    "nightshift_room", "nightshift_signal", "nightshift_wake" }

  local url, name
  before_each(function() url, name = db.fresh() end)

  local function doctor(place)
    local _, out = proc.nightshift({ "doctor", "--json" }, place)
    local found = {}
    for _, check in ipairs(nightshift.decode(out).findings) do found[check.name] = check end
    return found
  end

  local function expect(check, level, found, advice)
    assert.equal(level, check.status, check.says)
    assert.is_truthy(check.says:find(found, 1, true), check.says)
    if advice then assert.is_truthy(check.fix:find(advice, 1, true), check.fix) end
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
      expect(found.procedures, "ok", "7")
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
    expect(found.procedures, "ok", "6")
    expect(found.ring, "ok", "ended a listener's sleep", nil)
    expect(found.grants, "ok", "worker")
  end)

  it("is told from a right to call that is missing", function()
    local reach, user = db.user(url, "SELECT")
    expect(doctor(reach).ring, "note", "may not call nightshift_ring", "GRANT EXECUTE")
    expect(doctor(reach).procedures, "ok", "")
    db.sql(("GRANT EXECUTE ON `%s`.* TO %s@localhost; DROP PROCEDURE nightshift_ring"):format(name, user), name)
    local found = doctor(reach)
    expect(found.procedures, "fail", "nightshift_ring", "nightshift migrate")
    expect(found.ring, "warn", "no host wakes", "see procedures")
    assert.is_nil(found.grants.says:find("EXECUTE on nightshift_ring", 1, true))
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

-- A job with a row that said run = 4294967295, which a pusher's account could write, could not
-- be given back. The next run does not fit. Nor could a job come back when its polls, losses or
-- missing handlers had reached their column's limit.
describe("a count at its limit", function()
  local MAX = 4294967295

  local url, name, handle, q

  with_database(function(...) handle, q, url, name = ... end)

  local function set(what) db.sql("UPDATE nightshift_job SET " .. what, name) end
  local function value(what) return db.sql("SELECT " .. what .. " FROM nightshift_job", name) end

  --- As the rescue does: its holder is not known.
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
    for _, check in ipairs(nightshift.decode(out).findings) do
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
    assert.equal("ok", ids().status)
    local reach = as_pusher "SELECT 1"
    assert.equal("ok", ids(reach).status)
    assert.equal("note", ids((db.user(url, "CREATE TEMPORARY TABLES"))).status)
  end)

  it("that was set far ahead is named, with the way back", function()
    local first = assert(push())
    as_pusher "SELECT SETVAL(nightshift_id, 5000000000000000)"
    local far = assert(push())
    assert.is_true(far > first * 1000)
    local check = ids()
    assert.equal("warn", check.status)
    assert.is_truthy(check.says:find("block 5000000000", 1, true), check.says)
    local statement = check.fix:match "ALTER SEQUENCE nightshift_id RESTART %d+"
    assert.is_truthy(statement, check.fix)
    db.sql(statement, name)
    assert.equal("ok", ids().status)
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
      assert.equal("fail", check.status)
      assert.is_truthy(ids(reach).fix:find("ALTER SEQUENCE nightshift_id RESTART", 1, true))
      db.sql(check.fix:match "ALTER SEQUENCE nightshift_id RESTART %d+", name)
      assert.is_true(assert(push()) > first)
      assert.equal("ok", ids().status)
    end)
  end
end)

describe("the plan of", function()
  local url, handle, filled, parent

  setup(function()
    url = db.fresh()
    filled = assert(nightshift.open(url))
    for queue = 1, 3 do
      local items = {}
      for i = 1, 400 do items[i] = { "x", i, { priority = i % 100, delay = i % 2 * 3600 } } end
      assert(filled:queue("q" .. queue):push_many(items))
    end
    local done = {}
    for i = 1, 500 do done[i] = { "x", i } end
    assert(filled:queue("done"):push_many(done))
    for _, job in ipairs(filled:queue("done"):claim_many(500)) do assert(job:ack()) end
    for i = 1, 200 do filled:semaphore("s" .. i % 4, 100):acquire(0) end
    local ids = {}
    for i = 1, 40 do ids[i] = assert(filled:queue("tops"):push("top", i)) end
    for i, top in ipairs(ids) do
      local below = {}
      for j = 1, 60 do below[j] = { "below", j, { parent = top, after = { ids[i % #ids + 1] } } } end
      assert(filled:queue("below"):push_many(below))
    end
    for _, job in ipairs(filled:queue("tops"):claim_many(20)) do assert(job:ack()) end
    for _, job in ipairs(filled:queue("below"):claim_many(600)) do assert(job:ack()) end
    parent = ids[40]
    for i = 1, 300 do assert(filled:signal(parent, i, "s" .. i)) end
    db.sql([[ANALYZE TABLE nightshift_child, nightshift_edge, nightshift_signal, nightshift_ready, nightshift_job,
      nightshift_scheduled, nightshift_finished, nightshift_slot]],
      url:match "/([^/?]+)%?")
    handle = assert(core.open { url = url })
  end)
  teardown(function()
    handle:close()
    filled:close()
  end)

  local function explain(question, ...)
    local rows = assert(handle:execute(question, ...))
    local by_table = {}
    for _, row in ipairs(rows) do by_table[row.table or "-"] = row end
    return by_table
  end

  for _, lanes in ipairs { 1, 32, 100 } do
    for _, name in ipairs { "claim_fast", "claim_skip", "claim_skip_soon", "claim_skip_long", "claim_late" } do
      it(("%s with %d lanes is one range scan in the order of the key"):format(name, lanes), function()
        local ranges, params = plans.lanes(lanes)
        local row = explain(plans.question(name, ranges), table.unpack(params)).nightshift_ready
        assert.equal("PRIMARY", row.key)
        assert.equal("range", row.type)
        assert.is_nil(row.Extra:find "filesort")
      end)
    end
  end

  for name, params in pairs { claim_above = { 1, 200 }, claim_head = { 1, 200, 0 } } do
    it(name .. " reads one row by the key", function()
      local row = explain(plans.question(name), table.unpack(params)).nightshift_ready
      assert.equal("PRIMARY", row.key)
      assert.equal("range", row.type)
      assert.is_nil(row.Extra:find "filesort")
    end)
  end

  it("claim_prescan and claim_prescan_end read a part of a lane in its order", function()
    for name, params in pairs {
      claim_prescan = { 1, 155, 10, 0, 10, 1000, 5, 1000 },
      claim_prescan_end = { 1, 155, 10, 0, 10, 1000, 1, 155, 10, 0, 10, 1000 },
    } do
      local row = explain(plans.question(name), table.unpack(params)).nightshift_ready
      assert.same({ "PRIMARY", "range" }, { row.key, row.type })
      assert.is_nil(tostring(row.Extra):find("filesort", 1, true))
    end
  end)

  it("claim_busy_queues looks at each queue by itself", function()
    local row = explain(plans.question "claim_busy_queues", "[1,2]").r
    assert.equal("PRIMARY", row.key)
    assert.equal("DEPENDENT SUBQUERY", row.select_type)
    assert.equal("ref", row.type)
  end)

  it("claim_firsts looks at each queue by itself, and locks one row of it", function()
    local rows = explain(plans.question "claim_firsts", "[1,2]")
    assert.same({ "PRIMARY", "DEPENDENT SUBQUERY", "ref" }, { rows.f.key, rows.f.select_type, rows.f.type })
    assert.same({ "PRIMARY", "eq_ref" }, { rows.r.key, rows.r.type })
    assert.is_nil(rows.f.Extra:find "filesort")
  end)

  it("claim_drop deletes one key at a time", function()
    local row = explain(plans.question "claim_drop", "[[1,155,100,1]]").r
    assert.same({ "PRIMARY", "eq_ref" }, { row.key, row.type })
  end)

  for _, name in ipairs { "claim_promote", "claim_promote_skip" } do
    it(name .. " reads the head of scheduled", function()
      local row = explain(plans.question(name), 0, math.maxinteger, 10).nightshift_scheduled
      assert.equal("PRIMARY", row.key)
      assert.is_nil(row.Extra:find "filesort")
    end)
  end

  it("claim_upcoming reads what is due soon of scheduled, and the jobs of it by key", function()
    local within = 60 * 1000000
    local plan = explain(plans.question "claim_upcoming", 1, within, 1000)
    assert.same({ "PRIMARY", "range" }, { plan.s.key, plan.s.type })
    assert.is_true(tonumber(plan.s.rows) < 10, plan.s.rows .. " rows: all are due in an hour")
    assert.is_nil(tostring(plan.s.Extra):find("filesort", 1, true))
    assert.same({ "eq_ref", "eq_ref" }, { plan.j.type, plan.q.type })
  end)

  -- without the forced index a small table is scanned, and waits on locks
  for name, params in pairs {
    claim_read = { "[[100,1],[101,1]]" }, claim_read_again = { "[[100,1],[101,1]]" },
    settle_lock = { "[[100,1],[101,1]]" },
    settle_stands = { "[[100,1]]" }, push_scheduled = { "[100,101]" }, settle_gone = { "[100]" },
    settle_done_list = { 1, "[[100,1,5,1,null]]" }, settle_done_ours = { "[100,101]" },
    settle_finish = { '[{"i":100,"o":"done"}]' }, settle_shown = { 1, '[[100,1,1,0.5,"x",1]]' },
    settle_parked = { '[["fail",1,100]]' }, depend_met = { "[[1,100]]" },
  } do
    it(name .. " reads jobs one key at a time", function()
      local row = explain(plans.question(name), table.unpack(params)).j
      assert.equal("PRIMARY", row.key)
      assert.equal("eq_ref", row.type)
    end)
  end

  for name, found in pairs {
    claim_stretch = { "j", { 100, 109, 1 } },
    settle_done = { "j", { 1, ("0"):rep(140), 100, ("0"):rep(50), 100, 100, 109, 1, 10 } },
    settle_done_gone = { "nightshift_job", { 100, 109, 1, 10 } },
  } do
    it(name .. " reads a range of jobs, and no more", function()
      local row = explain(plans.question(name), table.unpack(found[2]))[found[1]]
      assert.same({ "PRIMARY", "range" }, { row.key, row.type })
      assert.is_true(tonumber(row.rows) <= 10, row.rows .. " rows")
      assert.is_nil(row.Extra:find "filesort")
    end)
  end

  it("dependents are found and told by key", function()
    local edges = explain(plans.question "depend_edges", "[100]").e
    assert.equal("PRIMARY ref", edges.key .. " " .. edges.type)
    local between = explain(plans.question "depend_edges_between", 100, 110, 10).nightshift_edge
    assert.equal("PRIMARY range", between.key .. " " .. between.type)
    local jobs = explain(plans.question "depend_lock", "[100]").j
    assert.equal("PRIMARY eq_ref", jobs.key .. " " .. jobs.type)
    local cut = explain(plans.question "depend_cut", 100, 101, 10).nightshift_edge
    assert.equal("PRIMARY range", cut.key .. " " .. cut.type)
  end)

  for name, found in pairs {
    report_tree_below = { "c", { "[100,101]" } }, admin_tree_children = { "c", { "[100]" } },
    report_tree_ids = { "nightshift_child", { 1, 100, 10 } },
  } do
    it(name .. " reads children by their parent", function()
      local row = explain(plans.question(name), table.unpack(found[2]))[found[1]]
      assert.equal("PRIMARY", row.key)
      assert.is_true(row.type == "ref" or row.type == "range", row.type)
    end)
  end

  for name, params in pairs {
    admin_tree_lock = { "[100,101]" }, report_tree_states = { "[100,101]" },
    admin_tree_after = { "[100,101]" }, report_tree_children = { "[100,101]", 1 },
  } do
    it(name .. " reads jobs one key at a time", function()
      local row = explain(plans.question(name), table.unpack(params)).j
      assert.equal("PRIMARY", row.key)
      assert.equal("eq_ref", row.type)
    end)
  end

  for name, params in pairs {
    admin_tree_hold_ready = { "[[1,100,5,1],[1,100,6,2]]" }, admin_tree_hold_scheduled = { "[[1,1,1],[2,2,1]]" },
  } do
    it(name .. " locks rows one key at a time", function()
      local plan = explain(plans.question(name), table.unpack(params))
      local row = plan.r or plan.s
      assert.equal("PRIMARY", row.key)
      assert.equal("eq_ref", row.type)
    end)
  end

  for name, list in pairs {
    settle_unique_list = '[[100,1,"a"],[101,1,"b"]]', settle_unique_held = '[[100,1,"a"],[101,1,"b"]]',
    audit_keys_over = '[[1,"a"],[1,"b"]]',
  } do
    it(name .. " changes one key at a time", function()
      local row = explain(plans.question(name), list).u
      assert.same({ "PRIMARY", "eq_ref" }, { row.key, row.type })
    end)
  end

  it("admin_tree_ready_at reads a lane once", function()
    local plan = explain(plans.question "admin_tree_ready_at", 1, 100, 0, math.maxinteger, "[1,2]")
    assert.equal("PRIMARY range", plan.r.key .. " " .. plan.r.type)
    assert.is_nil(plan.r.Extra:find "join buffer")
  end)

  for name, params in pairs { admin_tree_past = { "[100]" }, admin_tree_retry = { -1, "[100]" } } do
    it(name .. " reads history one key at a time", function()
      local row = explain(plans.question(name), table.unpack(params)).f
      assert.equal("PRIMARY", row.key)
      assert.equal("eq_ref", row.type)
    end)
  end

  it("admin_tree_unlink finds edges by key", function()
    local row = explain(plans.question "admin_tree_unlink", "[100]", "[100]", "[100]").e
    assert.equal("PRIMARY", row.key)
    assert.equal("eq_ref", row.type)
  end)

  local CLAIMS <const> = filter.claims(100, 101)

  -- The values of a filter, all absent or all given; see filter.lua.
  local function filtered(before, given, after)
    local params = table.move(before, 1, #before, 1, {})
    for i = 1, filter.VALUES do
      params[#params + 1] = given and (i > 8 and "an error" or i > 4 and 100 or 1) or nightshift.null
    end
    return table.move(after, 1, #after, #params + 1, params)
  end

  for _, given in ipairs { true, false } do
    local with = given and " with a filter" or ""
    local null = nightshift.null

    it("a listing of one outcome reads a part of its key, and jobs one by one" .. with, function()
      local plan = explain(plans.question "report_jobs_finished",
        table.unpack(filtered({ "done", 1, math.maxinteger, math.maxinteger, 9, given and 1 or null,
          given and 1 or null, 20 }, given, { 10 })))
      assert.same({ "outcome", "range" }, { plan.nightshift_finished.key, plan.nightshift_finished.type })
      assert.is_nil(plan.nightshift_finished.Extra:find "filesort")
      assert.is_truthy(plan.nightshift_finished.Extra:find "Using index")
      assert.same({ "PRIMARY", "eq_ref" }, { plan.f.key, plan.f.type })
    end)

    it("a listing of children reads the range of their parent, and jobs one by one" .. with, function()
      local first = explain(plans.question "report_jobs_children_from", parent, math.maxinteger, 10).nightshift_child
      assert.equal("PRIMARY", first.key)
      assert.is_nil(first.Extra:find "filesort")
      local range = explain(plans.question "report_jobs_children", parent, math.maxinteger, 1, 10).nightshift_child
      assert.equal("PRIMARY", range.key)
      assert.is_true(range.type == "ref" or range.type == "range", range.type)
      for name, alias in pairs { report_jobs_child_live = "j", report_jobs_child_ended = "f" } do
        local before = alias == "j" and { "[100,101]", 100, 101, CLAIMS, null, null } or { "[100,101]", null, null }
        local plan = explain(plans.question(name), table.unpack(filtered(before, given, { 10 })))
        assert.same({ "PRIMARY", "eq_ref" }, { plan[alias].key, plan[alias].type })
      end
    end)

    it("a listing by tag reads its range of the key, in its order" .. with, function()
      for name, alias in pairs { report_jobs_tagged_live = "j", report_jobs_tagged_ended = "f" } do
        local before = { "a", math.maxinteger, 1, null, null }
        if alias == "j" then before = { 100, 101, CLAIMS, table.unpack(before) } end
        local plan = explain(plans.question(name), table.unpack(filtered(before, given, { 10 })))
        assert.same({ "tag", "PRIMARY", "eq_ref" }, { plan.p.key, plan[alias].key, plan[alias].type })
      end
    end)

    it("a page of a listing by id reads a range of ids" .. with, function()
      local ids = assert(filled:execute [[SELECT (SELECT MAX(id) - 20 FROM nightshift_job) AS live,
        (SELECT MAX(id) - 20 FROM nightshift_finished) AS ended]])[1]
      for kind, alias in pairs { live = "j", ended = "f" } do
        local before = { math.maxinteger, ids[kind], null, null }
        if kind == "live" then before = { ids[kind], ids[kind] + 20, CLAIMS, table.unpack(before) } end
        local plan = explain(plans.question("report_jobs_page_" .. kind),
          table.unpack(filtered(before, given, { 10 })))
        assert.same({ "PRIMARY", "range" }, { plan[alias].key, plan[alias].type })
        assert.is_true(tonumber(plan[alias].rows) <= 100, plan[alias].rows .. " rows")
      end
    end)

    it("a listing of ready or scheduled jobs reads their own table, and jobs one by one" .. with, function()
      for name, before in pairs { report_jobs_ready = { 1, 2 }, report_jobs_scheduled = {}, report_jobs_due = {} } do
        local plan = explain(plans.question(name), table.unpack(filtered(before, given, { 10 })))
        local row = plan.r or plan.s
        assert.same({ "PRIMARY", "PRIMARY", "eq_ref" }, { row.key, plan.j.key, plan.j.type }, name)
        assert.is_nil(tostring(row.Extra):find "filesort")
      end
    end)

    it("an error of a live job is that of one attempt, found by key" .. with, function()
      if not given then return end
      assert(filled:execute [[REPLACE INTO nightshift_attempt (job_id, run, kind, ended)
        SELECT id, seq, 'failed', 1 FROM nightshift_job JOIN seq_1_to_3]])
      assert(filled:execute "ANALYZE TABLE nightshift_attempt")
      local plan = explain(plans.question "report_jobs_scheduled", table.unpack(filtered({}, given, { 10 })))
      assert.same({ "PRIMARY", "ref" }, { plan.a.key, plan.a.type })
    end)
  end

  for _, given in ipairs { true, false } do
    local with = given and " with a filter" or ""

    it("filter_live, filter_ended and the verbs on many read jobs one key at a time" .. with, function()
      local null = nightshift.null
      for name, before in pairs { filter_live = { "[100,101]", 100, 101, CLAIMS, null, null },
        filter_ended = { "[100,101]", null, null },
        admin_many_past = { "[100,101]", null, null },
        admin_many_move = { "[100,101]", 1, 1, null, null } } do
        local plan = explain(plans.question(name), table.unpack(filtered(before, given, {})))
        local row = plan.j or plan.f
        assert.same({ "PRIMARY", "eq_ref" }, { row.key, row.type }, name)
      end
    end)
  end

  it("kinds of errors are read from a part of a key, and jobs one by one", function()
    local null = nightshift.null
    local plan = explain(plans.question "report_errors_dead", 1, 20, null, null, null, null)
    assert.same({ "outcome", "range" }, { plan.nightshift_finished.key, plan.nightshift_finished.type })
    assert.same({ "PRIMARY", "eq_ref" }, { plan.f.key, plan.f.type })
    plan = explain(plans.question "report_errors_scheduled", 20, null, null, null, null, 0)
    assert.equal("PRIMARY", plan.nightshift_scheduled.key)
    assert.same({ "eq_ref", "eq_ref" }, { plan.j.type, plan.a.type })
    plan = explain(plans.question "report_errors_jobs", "[1,2]", "[1,2]")
    assert.same({ "eq_ref", "eq_ref" }, { plan.f.type, plan.j.type })
    plan = explain(plans.question "report_ended", "done", 1, 20)
    assert.same({ "outcome", "range" }, { plan.nightshift_finished.key, plan.nightshift_finished.type })
    assert.is_truthy(plan.nightshift_finished.Extra:find "Using index")
  end)

  it("the walks of a filter each read a range of a key, in its order", function()
    local last = math.maxinteger
    for name, found in pairs {
      filter_children = { "nightshift_child", "PRIMARY", { parent, 0, 0, 0, 10 }, true },
      filter_jobs = { "nightshift_job", "PRIMARY", { 0, last, 10 } },
      filter_outcome = { "nightshift_finished", "outcome", { "done", 0, 0, 0, last, 10 }, true },
      filter_ready = { "nightshift_ready", "PRIMARY", { 1, 155, 0, 0, 0, last, 10 } },
      filter_tagged = { "nightshift_tag", "tag", { "a", 0, 10 }, true },
      filter_scheduled = { "nightshift_scheduled", "PRIMARY", { 0, 0, 0, last, 10 } },
    } do
      local row = explain(plans.question(name), table.unpack(found[3]))[found[1]]
      assert.same({ name, found[2] }, { name, row.key })
      assert.is_true(row.type == "range" or row.type == "ref", name .. ": " .. row.type)
      assert.is_nil(row.Extra:find "filesort", name)
      if found[4] then assert.is_truthy(row.Extra:find "Using index", name) end
    end
    local claims = explain(plans.question "filter_running", 0, last, 10)
    assert.same({ "PRIMARY", "range", "eq_ref" }, { claims.nightshift_lease.key, claims.nightshift_lease.type,
      claims.j.type })
  end)

  -- A GROUP BY of lanes read a row or two of each, until its session had changed a row of ready. From
  -- then on it read all of them.
  it("the lanes of ready are found one by one, in a session that has changed a row of it, too", function()
    assert(handle:execute [[INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)
      SELECT 900 + seq MOD 2, 155 + seq MOD 3, seq, 100000 + seq, 1 FROM seq_1_to_3000]])
    assert(handle:execute "UPDATE nightshift_ready SET alone = TRUE WHERE queue_id = 900 LIMIT 1")
    local lane = explain(plans.question "filter_lane", 900, 900, 155).nightshift_ready
    assert.same({ "PRIMARY", "range" }, { lane.key, lane.type })
    assert.is_nil(lane.Extra:find "filesort")
    local function read()
      local sum = 0
      for _, row in ipairs(assert(handle:execute "SHOW SESSION STATUS LIKE 'Handler_read%'")) do
        sum = sum + tonumber(row.Value)
      end
      return sum
    end
    for name, params in pairs { filter_lane = { 900, 900, 155 }, report_counts_lanes = { "[900,901,902]" } } do
      local before = read()
      local rows = assert(handle:execute("@" .. name, table.unpack(params)))
      assert.is_true(read() - before < 50, ("%s: %d rows"):format(name, read() - before))
      assert.same(name == "filter_lane" and { queue_id = 900, rank = 156 } or { queue_id = 900, n = 0, oldest = 2 },
        rows[1])
    end
    assert(handle:execute "DELETE FROM nightshift_ready WHERE queue_id IN (900, 901)")
  end)

  it("where a listing of one outcome goes on is read from an index alone", function()
    local plan = explain(plans.question "report_jobs_ended_from", "done", 1, math.maxinteger,
      math.maxinteger, 9, 20)
    local row = plan.nightshift_finished
    assert.same({ "outcome", "range" }, { row.key, row.type })
    assert.is_truthy(row.Extra:find "Using index")
  end)

  for name, params in pairs {
    report_counts_waiting = { 10, 10 },
  } do
    it(name .. " reads no jobs for pauses while there are none", function()
      local impossible = 0
      for _, row in ipairs(assert(handle:execute("EXPLAIN " .. core.sql(name), table.unpack(params)))) do
        if (row.Extra or ""):find "Impossible WHERE" then impossible = impossible + 1 end
      end
      assert.equal(1, impossible)
    end)
  end

  for _, name in ipairs { "edge_children", "edge_children_lock" } do
    it(name .. " reads the children of each parent, and their jobs by key", function()
      local plan = explain(plans.question(name), ("[%d]"):format(parent))
      assert.same({ "PRIMARY", "PRIMARY" }, { plan.c.key, plan.j.key })
      assert.same({ "ref", "eq_ref" }, { plan.c.type, plan.j.type })
      assert.is_true(tonumber(plan.c.rows) <= 100, plan.c.rows .. " rows")
    end)
  end

  it("edge_children_failed reads the children of each parent, and history by key", function()
    assert(filled:execute "REPLACE INTO nightshift_lease (id, holder, claimed, jobs) VALUES (77, 77, 1, '[]')")
    local plan = explain(plans.question "edge_children_failed", ("[[%d,77]]"):format(parent))
    assert.same({ "PRIMARY", "PRIMARY", "PRIMARY" }, { plan.l.key, plan.c.key, plan.f.key })
    assert.same({ "eq_ref", "ref", "eq_ref" }, { plan.l.type, plan.c.type, plan.f.type })
  end)

  it("edge_held reads the edges of each parent, and their jobs by key", function()
    local plan = explain(plans.question "edge_held", ("[%d]"):format(parent))
    assert.same({ "PRIMARY", "PRIMARY" }, { plan.e.key, plan.j.key })
    assert.same({ "ref", "eq_ref" }, { plan.e.type, plan.j.type })
  end)

  it("edge_dependents looks for one row of each parent", function()
    local plan = explain(plans.question "edge_dependents", ("[%d]"):format(parent))
    for _, name in ipairs { "c", "e" } do
      assert.same({ "PRIMARY", "ref" }, { plan[name].key, plan[name].type })
    end
  end)

  it("edge_counts counts by key", function()
    local plan = explain(plans.question "edge_counts", ("[%d]"):format(parent))
    for _, name in ipairs { "e", "c", "t", "d" } do
      assert.same({ name, "PRIMARY", "ref" }, { name, plan[name].key, plan[name].type })
    end
    for _, name in ipairs { "h", "j", "k" } do
      assert.same({ name, "PRIMARY", "eq_ref" }, { name, plan[name].key, plan[name].type })
    end
  end)

  it("edge_circle goes from edge to edge by key", function()
    local plan = explain(plans.question "edge_circle", parent, parent)
    assert.same({ "PRIMARY", "PRIMARY" }, { plan.nightshift_edge.key, plan.e.key })
    assert.same({ "ref", "ref" }, { plan.nightshift_edge.type, plan.e.type })
    assert.same({ "PRIMARY", "eq_ref" }, { plan.j.key, plan.j.type })
  end)

  it("edge_results reads a page of children in their order, and each by key", function()
    local plan = explain(plans.question "edge_results", parent, 50, 10)
    local page = plan.c
    assert.same({ "PRIMARY", "ref" }, { page.key, page.type })
    assert.is_nil(page.Extra:find "filesort")
    assert.same({ "eq_ref", "eq_ref", "eq_ref" }, { plan.o.type, plan.f.type, plan.j.type })
  end)

  it("edge_after and edge_followed look up each by key", function()
    local plan = explain(plans.question "edge_followed", "[1,2]")
    assert.same({ "eq_ref", "eq_ref", "eq_ref" }, { plan.e.type, plan.f.type, plan.j.type })
    local id = assert(filled:execute "SELECT MAX(id) AS id FROM nightshift_job WHERE after_ids IS NOT NULL")[1].id
    plan = explain(plans.question "edge_after", id)
    assert.same({ "PRIMARY", "eq_ref", "eq_ref" }, { plan.w.key, plan.f.type, plan.j.type })
    plan = explain(plans.question "admin_after", id, id)
    assert.same({ "PRIMARY", "eq_ref", "eq_ref" }, { plan.nightshift_job.key, plan.f.type, plan.j.type })
  end)

  it("edge_count counts in the key", function()
    local row = explain(plans.question "edge_count", parent).c
    assert.same({ "PRIMARY", "ref" }, { row.key, row.type })
  end)

  for name, place in pairs { edge_lock = "nightshift_job", edge_ended = "nightshift_finished" } do
    it(name .. " reads one row", function()
      local id = assert(filled:execute(("SELECT MIN(id) AS id FROM %s"):format(place)))[1].id
      local row = explain(plans.question(name), id)[place]
      assert.same({ "PRIMARY", "const" }, { row.key, row.type })
    end)
  end

  it("signal_find reads two values at most", function()
    local row = explain(plans.question "signal_find", parent, "s7").nightshift_signal
    assert.same({ "PRIMARY", "range" }, { row.key, row.type })
    assert.is_true(tonumber(row.rows) <= 2, row.rows .. " rows")
  end)

  it("signal_forget reads the values of one job", function()
    local row = explain(plans.question "signal_forget", parent, 1, 0).nightshift_signal
    assert.equal("PRIMARY", row.key)
    assert.is_truthy(row.type == "ref" or row.type == "range", row.type)
  end)

  it("listen_look reads up to the first row of each queue, and locks one by its key", function()
    local plan = explain(plans.question "listen_look", 99, "[1,2]", 0, 0)
    assert.same({ "PRIMARY", "PRIMARY", "PRIMARY" }, { plan.v.key, plan.r.key, plan.q.key })
    assert.same({ "range", "eq_ref", "eq_ref" }, { plan.v.type, plan.r.type, plan.q.type })
  end)

  it("slot_look reads the slots of one name, and their owners by key", function()
    local plan = explain(plans.question "slot_look", 1, 1, 0, "s1", "s1", 20)
    assert.same({ "PRIMARY", "PRIMARY", "PRIMARY" }, { plan.s.key, plan.j.key, plan.h.key })
    assert.same({ "range", "eq_ref", "eq_ref" }, { plan.s.type, plan.j.type, plan.h.type })
    assert.is_true(tonumber(plan.s.rows) <= 25, plan.s.rows .. " rows")
  end)

  for name, params in pairs {
    slot_release = { "s1", 7, "token" }, slot_take_over = { 1, 1, 1, nightshift.null, "s1", 7, 1 },
  } do
    it(name .. " reads one slot", function()
      if params[3] == "token" then -- one that is not there is found out before there is a plan
        local taken = assert(handle:execute "SELECT slot, token FROM nightshift_slot WHERE name = 's1' LIMIT 1")
        params[2], params[3] = taken[1].slot, taken[1].token
      end
      local row = explain(plans.question(name), table.unpack(params)).nightshift_slot
      assert.equal("PRIMARY", row.key)
      assert.equal(1, tonumber(row.rows))
    end)
  end

  -- what db:why asks finds everything by key, or in a stretch of a key
  local WHY = {
    { "ahead", { "nightshift_ready", "ref" }, { "j", "eq_ref" }, 1, 1001 },
    { "attempt", { "nightshift_attempt", "ref" }, 100 },
    { "children_count", { "nightshift_child", "ref" }, 100, 100000 },
    { "children", { "nightshift_child", "ref" }, { "j", "eq_ref" }, 100, 10000, 3 },
    { "claim", { "l", "const" }, { "o", "eq_ref" }, 100, 100 },
    { "busy", { "j", "eq_ref" }, 1, 4 },
    { "hosts", { "s", "eq_ref" } },
    { "job", { "j", "const" }, 100 },
    { "slots", { "s", "ref" }, { "j", "eq_ref" }, { "h", "eq_ref" }, "s1", 100 },
    { "targets", { "nightshift_edge", "const range" }, 50, 100, 100, 20000, 100, 3, 100, 20000, 100, 3, 3 },
  }
  for _, case in ipairs(WHY) do
    it("report_why_" .. case[1] .. " goes by key", function()
      local params, wanted = {}, {}
      for i = 2, #case do
        if type(case[i]) == "table" then wanted[case[i][1]] = case[i][2] else params[#params + 1] = case[i] end
      end
      db.sql([=[INSERT IGNORE INTO nightshift_edge SELECT seq, seq + 1 FROM seq_1_to_5000;
        INSERT IGNORE INTO nightshift_child SELECT seq DIV 50 + 1, 0, seq + 10000 FROM seq_1_to_5000;
        INSERT IGNORE INTO nightshift_attempt (job_id, run, kind, ended) SELECT seq, 1, 'failed', 1 FROM seq_1_to_500;
        INSERT IGNORE INTO nightshift_lease VALUES (100, 1, 1, '[[100,1]]'), (101, 1, 1, '[]');
        INSERT IGNORE INTO nightshift_holder VALUES
          (1, 'host', 'h', 1, '', 1, 0, 1, 1, 1, NULL, '', 1, 0, 0, 1, 0, NULL, NULL),
          (2, 'host', 'h', 1, '', 1, 0, 1, 1, 1, NULL, '', 1, 0, 0, 1, 0, NULL, NULL);
        INSERT IGNORE INTO nightshift_served (holder, workers, handlers) VALUES (1, 1, '[]'), (2, 1, '[]'),
          (3, 1, '[]');
        ANALYZE TABLE nightshift_edge, nightshift_child, nightshift_attempt]=], url:match "/([^/?]+)%?")
      local rows, seen = assert(handle:execute(plans.question("report_why_" .. case[1]), table.unpack(params))), {}
      for _, row in ipairs(rows) do
        if wanted[row.table] then
          seen[row.table] = true
          assert.equal("PRIMARY", row.key, row.table)
          assert.is_truthy(wanted[row.table]:find(row.type, 1, true), row.table .. ": " .. row.type)
          assert.is_nil((row.Extra or ""):find "filesort", row.table)
        end
      end
      for name in pairs(wanted) do assert.is_true(seen[name], name) end
    end)
  end

  it("prune_siblings reads on behind one of them", function()
    local rows = assert(handle:execute(plans.question "prune_siblings", parent, 1048576, 1048576, parent + 10, 10))
    assert.same({ "PRIMARY", "range" }, { rows[1].key, rows[1].type })
    for _, row in ipairs(rows) do
      assert.equal("PRIMARY", row.key, row.table)
      assert.is_nil((row.Extra or ""):find "filesort", row.table)
    end
  end)

  it("prune_select reads the oldest of one outcome", function()
    local row = explain(plans.question "prune_select", 3600000000, "done", 0, 0, 0, 3600000000, 10).f
    assert.equal("outcome", row.key)
    assert.is_nil(row.Extra:find "filesort")
  end)
end)
