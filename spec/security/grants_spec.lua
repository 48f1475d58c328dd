-- The grants that `nightshift doctor --grants` prints: enough for each role's
-- verbs, for nothing else, and each of them needed.

local core = require "nightshift.core"
local db = require "spec.support.db"
local grants = require "nightshift.doctor.grants"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local function printed(role, account)
  local status, out, err = proc.nightshift { "doctor", "--grants", role, "--user", account }
  assert.equal(0, status, err)
  return out
end

--- A new database and a user of it with what the doctor prints for a role.
local function installed(role)
  local root, name = db.fresh()
  local url, user = db.user(root, "")
  db.sql(printed(role, user .. "@localhost"), name)
  return { root = root, name = name, url = url, user = user }
end

local function denied(value, message, code)
  assert.is_nil(value)
  assert.equal("DENIED", code, message)
end

local verbs = {} -- role -> function(place) that does all it may do

function verbs.caller(place)
  local h <close> = assert(core.open { url = place.url, no_schema = true })
  assert(h:execute("CALL nightshift_push('mail', 'email.send', '{}', '{\"unique\":\"a\",\"delay\":1}')"))
  local id = assert(h:execute "SELECT @nightshift_id AS id")[1].id
  assert(h:execute("CALL nightshift_push('mail', 'email.send', '{}', ?)",
    ('{"after":[%d],"parent":%d}'):format(id, id)))
  assert(h:execute("CALL nightshift_signal(?, 'true', 'approved')", id))
  assert(h:execute("CALL nightshift_ring()"))
end

function verbs.pusher(place)
  local h <close> = assert(nightshift.open(place.url))
  local q = assert(h:queue "mail")
  assert(q:push("email.send", { to = "a" }, { unique = "a" }))
  assert.equal("DUPLICATE", select(3, q:push("email.send", { to = "a" }, { unique = "a" })))
  assert(q:push_many { { "a", 1, { delay = 60 } }, { "b", 2, { priority = 3 } } })
  assert(h:transaction(function(tx) assert(tx:queue("new"):push("c", 3)) end))
  local id = assert(q:push("a", 1))
  assert(q:push("after", 1, { after = { id }, parent = id }))
  assert(q:push("after", 1, { after = { place.done } }))
  assert(q:push("late", 1, { after = { id }, parent = place.parked }))
  assert(h:flow { name = "all", children = { { name = "a", as = "a" }, { name = "b", after = { "a" } } } })
  assert(h:queue("narrow"):push("a", 1))
  assert(h:signal(id, { yes = true }, "approved"))
  assert(h._handle:ring())
end

-- Jobs of every ending, and a host that works them.
local HANDLERS = [[return {
  plain = function(job) assert(job.tags[1] == "w"); job:progress(0.5, "half"); job:spawn("child", 1); return 1 end,
  child = function() end,
  poll = function(job) if job.polls == 0 then return job:again(0, { n = 1 }) end end,
  fails = function() error "no" end,
  gone = function(job) return job:discard "no" end,
  parent = function(job) if job.polls == 0 then job:spawn("child", 1); return job:again(0) end end,
  waits = function(job)
    if job.phase == 0 then job:spawn("child", 1); return job:wait { on_fail = "continue" } end
    if job.phase == 1 then assert(job.results[1].outcome == "done"); return job:wait { signal = "go" } end
    return job.signal
  end,
}]]

function verbs.worker(place)
  -- A round before may have ended in the middle of a limit; a host would try to go by it for ever.
  db.sql([[DELETE FROM nightshift_limit; DELETE FROM nightshift_backlog;
    UPDATE nightshift_queue SET limited = FALSE]], place.name)
  local h <close> = assert(nightshift.open(place.url))
  assert(h._handle:ring()) -- first: without these two all goes on, only later
  assert(h._handle:execute("@listen_nudge", 0, 0))
  assert(h._handle:execute("@listen_out"))
  assert(h._handle:execute("@wait_ring", "[]"))
  assert(h._handle:execute "@report_pushed") -- of the metrics
  local q = assert(h:queue "mail")
  place.turn = (place.turn or 0) + 1 -- a schedule that stays the same is no action
  assert(h:schedule { name = "nightly", cron = "0 3 1 1 *", push = { "plain", place.turn } })
  assert(q:push("plain", 1, { unique = "w", tags = { "w" } }))
  assert(h:queue("narrow"):push("plain", 1))
  for _, name in ipairs { "poll", "fails", "gone", "parent" } do assert(q:push(name, 1, { max_attempts = 1 })) end
  local waits = assert(q:push("waits", 1, { max_attempts = 1 }))
  assert(h:signal(waits, "gone", "go"))
  local status, log = host.drain(place.url, HANDLERS)
  assert.is_true(status == 0 or status == 3, log) -- 3: jobs of other names are left
  assert.is_nil(log:find("denied", 1, true), log)
  assert.equal("gone", db.sql("SELECT JSON_VALUE(CONCAT('[', result, ']'), '$[0]') FROM nightshift_finished WHERE id = "
    .. waits, place.name))
  assert(q:push("mine", 1))
  local names = { "mine" }
  local job = assert(q:claim { names = names })
  assert(job:touch())
  assert(job:release())
  assert(assert(q:claim { names = names, lease = 60 }):ack())
  assert.equal(1, (h:lock "worker" (function() return 1 end)))
  assert.equal(0, (proc.nightshift({ "rescue", "--wait", "0" }, place.url)))
  assert.is_nil(q:claim { names = names, wait = 0.01 })
  local few = h:queue "few"
  for _ = 1, 3 do assert(few:push("mine", 1)) end
  db.sql([[REPLACE INTO nightshift_limit (queue_id, rate, rate_span) SELECT id, 100, 1000000 FROM nightshift_queue
    WHERE name = 'few'; UPDATE nightshift_queue SET limited = TRUE WHERE name = 'few']], place.name)
  for _ = 1, 2 do assert(assert(few:claim { names = names }):ack()) end
  db.sql("UPDATE nightshift_limit SET lifted = TRUE", place.name)
  assert(assert(few:claim { names = names }):ack())
  assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_limit", place.name))
end

function verbs.dashboard(place)
  local h <close> = assert(nightshift.open(place.url))
  assert(h:stats())
  assert.equal("cancel", assert(h:audit { verb = "cancel" })[1].verb)
  for _, state in ipairs { false, "scheduled", "ready", "running", "waiting", "done", "dead", "cancelled" } do
    assert(h:jobs { state = state or nil })
  end
  for _, row in ipairs(assert(h:jobs())) do assert.equal("table", type(assert(h:job(row.id)).payload)) end
  for _, view in ipairs { "nightshift_jobs", "nightshift_history" } do assert(h:execute("SELECT * FROM " .. view)) end
  assert.equal(0, (proc.nightshift({ "status" }, place.url)))
  for _, row in ipairs(assert(h:jobs())) do
    assert.equal(0, (proc.nightshift({ "show", tostring(row.id) }, place.url)))
    assert.equal(0, (proc.nightshift({ "why", tostring(row.id) }, place.url)))
  end
end

local function read_denied(h, ...)
  for _, sql in ipairs { ... } do denied(h:execute(sql)) end
end

local forbidden = {} -- role -> function(place) that tries what it may not do

function forbidden.caller(place)
  local h <close> = assert(core.open { url = place.url, no_schema = true })
  read_denied(h, "SELECT id FROM nightshift_job", "SELECT id FROM nightshift_queue", "SELECT 1 FROM nightshift_jobs",
    "SELECT 1 FROM nightshift_history", "INSERT INTO nightshift_queue (name, created) VALUES ('x', 1)",
    "SELECT 1 FROM spec_secret")
  denied(nightshift.open(place.url))
end

function forbidden.pusher(place)
  local h <close> = assert(nightshift.open(place.url))
  read_denied(h, "SELECT payload FROM nightshift_job", "SELECT * FROM nightshift_job",
    "SELECT payload FROM nightshift_finished", "SELECT result FROM nightshift_finished",
    "SELECT 1 FROM nightshift_ready", "SELECT 1 FROM nightshift_jobs", "SELECT 1 FROM nightshift_history",
    "SELECT 1 FROM spec_secret", "DELETE FROM nightshift_ready", "UPDATE nightshift_job SET payload = '2'",
    "DROP TABLE nightshift_job", "CALL nightshift_push('a', 'b', '1', '{}')")
  local id = assert(h:queue("mail"):push("a", { secret = true }))
  denied(h:queue("mail"):push("b", 1, { after = { place.dead } })) -- would have to end at once
  denied(h:reprioritise(id, 1))
  read_denied(h, "SELECT value FROM nightshift_signal", "DELETE FROM nightshift_edge", "SELECT 1 FROM nightshift_child")
  denied(h:queue("mail"):claim())
  denied(h:job(id))
  denied(h:jobs())
  denied(h:cancel(id))
  denied(h:run_now(id))
  denied(h:prune())
  denied(h._handle:pause("mail", true))
end

function forbidden.worker(place)
  local h <close> = assert(nightshift.open(place.url))
  read_denied(h, "SELECT 1 FROM spec_secret", "DROP TABLE nightshift_job", "ALTER TABLE nightshift_job ADD x INT",
    "CREATE TABLE x (x INT)", "TRUNCATE nightshift_job", "SELECT error FROM nightshift_attempt",
    "SELECT payload FROM nightshift_finished", "DELETE FROM nightshift_finished",
    "UPDATE nightshift_meta SET value = '0'", "UPDATE nightshift_queue SET paused = TRUE",
    "SELECT 1 FROM nightshift_jobs", "SELECT 1 FROM nightshift_history", "CALL nightshift_push('a', 'b', '1', '{}')",
    "SELECT account FROM nightshift_audit", "DELETE FROM nightshift_audit", "UPDATE nightshift_audit SET account = 'x'")
  denied(h:prune())
  denied(h:audit())
  denied(h._handle:pause("mail", true))
end

function forbidden.dashboard(place)
  local h <close> = assert(nightshift.open(place.url))
  read_denied(h, "SELECT 1 FROM spec_secret", "INSERT INTO nightshift_queue (name, created) VALUES ('x', 1)",
    "DELETE FROM nightshift_finished", "UPDATE nightshift_job SET payload = '2'",
    "DELETE FROM nightshift_lease", "CALL nightshift_push('a', 'b', '1', '{}')",
    "CALL nightshift_signal(1, '1', 'a')")
  local id = assert(h:jobs())[1].id
  denied(h:queue("mail"):push("a", 1))
  denied(h:queue("mail"):claim())
  denied(h:cancel(id))
  denied(h:prune { done = 0, dead = 0 })
  denied(h._handle:pause("mail", true))
  denied(h._handle:ring())
end

--- Something for those who look: a job of each kind, with a failure.
local function fill(place)
  local h <close> = assert(nightshift.open(place.root))
  local q = h:queue "mail"
  assert(q:push_many { { "a", { n = 1 } }, { "b", { n = 2 }, { delay = 60 } }, { "c", { n = 3 } } })
  assert(assert(q:claim()):fail "no")
  local done = assert(q:claim())
  assert(done:ack())
  place.done = done.id
  place.dead = assert(q:push("dead", { n = 5 }))
  assert(h:cancel(place.dead))
  local parked = h:queue "parked"
  place.parked = assert(parked:push("parked", { n = 7 }))
  local parent = assert(parked:claim())
  parent:spawn("child", { n = 6 })
  assert(parent:wait())
  assert(q:push("d", { n = 4 }))
  assert(h:queue("narrow"):limit { backlog = 1000 })
  db.sql("CREATE TABLE spec_secret (x INT)", place.name)
  db.sql(("CREATE TABLE spec_theirs (id INT PRIMARY KEY, state INT); GRANT SELECT ON spec_theirs TO %s@localhost")
    :format(place.user), place.name)
  local t = assert(h:adopt { table = "spec_theirs", status = { column = "state", open = 1, processing = 3, done = 2 } })
  assert(t:claim_many(1))
end

--- Each privilege of a role by itself: {revoke, grant}, statements.
local function single(role, account)
  local list = {}
  for _, item in ipairs(grants[role].tables) do
    for privilege, columns in (item[2] .. ","):gmatch " ?(%u+) ?(%b())," do
      for column in columns:gmatch "[%w_]+" do
        list[#list + 1] = { ("%s (%s) ON %s"):format(privilege, column, item[1]) }
      end
    end
    local rest = (", " .. item[2]):gsub(", %u+ %b()", "")
    for privilege in rest:gmatch "%u+" do list[#list + 1] = { ("%s ON %s"):format(privilege, item[1]) } end
  end
  for _, routine in ipairs(grants[role].routines) do list[#list + 1] = { "EXECUTE ON PROCEDURE " .. routine } end
  for i, item in ipairs(list) do
    list[i] = { what = item[1], revoke = ("REVOKE %s FROM %s"):format(item[1], account),
      grant = ("GRANT %s TO %s"):format(item[1], account) }
  end
  return list
end

--- May the user still prepare every statement of the role? `first`: one that is refused is enough.
local function complete(place, role, first)
  local h = core.open { url = place.url }
  if not h then return false end
  local refused = {}
  for _, name in ipairs(core.statements()) do
    local _, message, code = h:may(name)
    if grants[role].runs(name) and code == "DENIED" then refused[#refused + 1] = name .. ": " .. message end
    if first and refused[1] then break end
  end
  h:close()
  return #refused == 0, table.concat(refused, "\n")
end

for _, role in ipairs(grants.names) do
  describe("the grants of a " .. role, function()
    it("are enough for all it does", function()
      local place = installed(role)
      fill(place)
      if role ~= "caller" then assert(complete(place, role)) end
      verbs[role](place)
    end)

    it("are enough for nothing else", function()
      local place = installed(role)
      fill(place)
      forbidden[role](place)
    end)

    it("are all needed", function()
      local place = installed(role)
      fill(place)
      local idle = {}
      for _, item in ipairs(single(role, place.user .. "@localhost")) do
        db.sql(item.revoke, place.name)
        local whole = role == "caller" or complete(place, role, true)
        if whole and pcall(verbs[role], place) then idle[#idle + 1] = item.what end
        db.sql(item.grant, place.name)
      end
      assert.same({}, idle)
    end)
  end)
end

describe("doctor --grants", function()
  it("prints every role for users of its own, and needs no server", function()
    local status, out = proc.nightshift({ "doctor", "--grants" }, "mysql://u@127.0.0.1:1/x")
    assert.equal(0, status)
    for _, role in ipairs(grants.names) do
      assert.is_truthy(out:find(("TO 'nightshift_%s'@'%%';"):format(role), 1, true), out)
    end
  end)

  it("takes a user with and without a host, and refuses what would need quoting", function()
    assert.is_truthy(printed("pusher", "app@10.0.0.%"):find("TO 'app'@'10.0.0.%';", 1, true))
    assert.is_truthy(printed("pusher", "app"):find("TO 'app'@'%';", 1, true))
    assert.is_truthy(printed("pusher", "a@b@c"):find("TO 'a@b'@'c';", 1, true))
    for _, bad in ipairs { "a'b", "a\\b", "a`b", "@h", "a@", "", "a\nb" } do
      local status, out, err = proc.nightshift { "doctor", "--grants", "pusher", "--user", bad }
      assert.equal(2, status, out)
      assert.is_truthy(err:find("is not a user", 1, true), err)
    end
  end)
end)

describe("users of different rights", function()
  it("cannot act without a row in the audit", function()
    local place = installed "worker"
    db.sql(("REVOKE INSERT ON nightshift_audit FROM %s@localhost"):format(place.user), place.name)
    local h <close> = assert(nightshift.open(place.url))
    local ok, message, code = h:schedule { name = "nightly", cron = "0 3 1 1 *", push = { "plain", 1 } }
    assert.same({ nil, "DENIED" }, { ok, code })
    assert.matches("nothing was done, because the audit of actions cannot be written: .*nightshift_audit", message)
    assert.same({}, h:schedules())
    assert(h:queue "mail":push("plain", 1))
    assert(assert(h:queue "mail":claim()):ack())
  end)

  it("cannot have each other's queries ended", function()
    local place = installed "worker"
    local h <close> = assert(nightshift.open(place.url))
    read_denied(h, "INSERT INTO nightshift_listener (thread, kind) VALUES (1, 'x')",
      "UPDATE nightshift_listener SET thread = 1", "DELETE FROM nightshift_listener")
    assert(h._handle:execute("@listen_in", "[1]", 5))
    local thread = h:execute("SELECT CONNECTION_ID() AS id")[1].id
    assert.equal(("%d\t5"):format(thread), db.asleep(place.name))
    assert(h._handle:execute "@listen_out")
    assert.equal("", db.asleep(place.name))
  end)

  it("may wait for jobs even when they may not be rung", function()
    local place = installed "worker"
    db.sql(("REVOKE EXECUTE ON PROCEDURE nightshift_listen FROM %s@localhost"):format(place.user), place.name)
    local h <close> = assert(nightshift.open(place.url))
    local before = nightshift.clock()
    local none, message = h:queue("mail"):claim { wait = 0.3 }
    assert.same({ nil, nil, true }, { none, message, nightshift.clock() - before > 0.25 })
  end)

  it("wake each other: a caller's ring ends a worker's sleep", function()
    local place = installed "worker"
    local caller, name = db.user(place.root, "")
    db.sql(printed("caller", name .. "@localhost"), place.name)
    local path = fixture.file("claim.lua", [[
      local h = assert(require "nightshift".open(arg[1]))
      print "waits"
      io.stdout:flush()
      local before = require "nightshift".clock()
      local job = assert(h:queue("mail"):claim { wait = 60 })
      print("got " .. job.name, require "nightshift".clock() - before < 8)
      job:ack()
      h:close()
    ]])
    local p = proc.start { proc.lua, path, place.url }
    p:wait_line "waits"
    eventually(function() return db.sleepers(place.name) == 1 end)
    local h <close> = assert(core.open { url = caller, no_schema = true })
    assert(h:execute("CALL nightshift_push('mail', 'now', '1', NULL)"))
    assert(h:execute("CALL nightshift_ring()"))
    assert.equal("got now	true", (p:wait_line "^got.*"))
  end)
end)
