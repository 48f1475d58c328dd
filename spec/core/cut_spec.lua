-- A connection that breaks in the middle of a verb. The answer to the caller agrees with the
-- tables, and a repeated verb comes to the same end as one that was never cut. Waits that are
-- cut short: at Ctrl-C, when a program is to end, and when a session keeps something locked.

local core = require "nightshift.core"
local db = require "spec.support.db"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local journal = require "spec.support.proc".journal
local proxy = require "spec.support.proc".proxy

-- A connection that breaks while a slot is taken, given back or waited for. The answer to the
-- caller agrees with the table, and no unknown slot is left. Cut are the ends of what either
-- side said, ± 1; with NIGHTSHIFT_CUT=all it is every byte.
describe("a connection that is cut", function()
  local ALL = os.getenv "NIGHTSHIFT_CUT" == "all"

  local url, direct, through

  setup(function()
    url = db.fresh()
    direct = assert(core.open { url = url })
    assert(direct:execute "SELECT SETVAL(nightshift_id, 100000)") -- ids of one length: packets too
  end)
  before_each(function() through = proxy.start(db.shared()) end)
  teardown(function() direct:close() end)

  local function rows() return direct:execute("SELECT COUNT(*) AS n FROM nightshift_slot")[1].n end

  -- The verbs: what stands before, what is cut, and what has to be true then.
  local verbs = {
    acquire = {
      verb = function(handle) return handle:slot_acquire("x", 2) end,
      check = function(handle, token)
        assert.equal(1, rows())
        assert.is_true(handle:slot_holds(token))
        assert(handle:slot_release(token))
      end,
    },
    ["take over"] = {
      prepare = function()
        assert(direct:execute [[INSERT INTO nightshift_slot (name, slot, token, holder, since)
          VALUES ('x', 1, 1, 1, 1), ('x', 2, 2, 1, 1)]])
      end,
      verb = function(handle) return handle:slot_acquire("x", 2) end,
      check = function(handle, token)
        assert(handle:slot_release(token))
        assert.is_true(rows() <= 1) -- 0: the first was taken over and given back, unheard
      end,
    },
    release = {
      prepare = function(handle) return assert(handle:slot_acquire("x", 1)) end,
      verb = function(handle, token) return handle:slot_release(token) end,
      check = function() assert.equal(0, rows()) end,
    },
    wait = {
      verb = function(handle)
        local token, message, code = handle:slot_acquire("x", 1, 1)
        if code ~= "BUSY" then return token, message, code end
        return handle:slot_acquire("x", 1, 20000000) -- the session that was cut is still next in line
      end,
      check = function(handle, token) assert(handle:slot_release(token)) end,
    },
  }

  -- One try on a connection of its own, with prepared statements; 'arm'
  -- breaks it. Says whether it broke, and what was told.
  local function try(case, arm)
    assert(direct:execute "DELETE FROM nightshift_slot")
    local handle <close> = assert(core.open { url = through:url(url) })
    assert(handle:slot_release(assert(handle:slot_acquire("x", 2, 1))))
    local given = case.prepare and case.prepare(handle)
    arm()
    local result, message, code = case.verb(handle, given)
    local fired = through:tell "fired" == "yes"
    through:tell "admit"
    if result then
      case.check(handle, result)
    else
      assert.equal("GONE", code, message)
      assert(handle:now()) -- connects again
    end
    if not case.prepare or given then assert.equal(0, rows()) end
    assert(handle:slot_release(assert(handle:slot_acquire("x", 2))))
    return fired, result
  end

  -- Where to cut.
  local function places(case)
    try(case, function() through:tell "trace" end)
    local packets = through:packets()
    local set, list = {}, {}
    for i, packet in ipairs(packets) do
      local turn = not packets[i + 1] or packets[i + 1].who ~= packet.who
      for at = packet.at - 1, packet.at + 1 do set[at] = set[at] or turn and at - packet.at end
    end
    for at = 0, packets[#packets].at do
      if ALL or set[at] then list[#list + 1] = at end
    end
    return list
  end

  for name, case in pairs(verbs) do
    it("at an edge of " .. name .. " changes nothing for the caller", function()
      for _, at in ipairs(places(case)) do
        local _, told = try(case, function() through:tell("cut " .. at) end)
        assert.is_truthy(told, "byte " .. at)
      end
    end)

    it("for a while, at an edge of " .. name .. ", leaves no slot behind", function()
      local gone = 0
      for _, at in ipairs(places(case)) do
        local _, told = try(case, function()
          through:tell("cut " .. at)
          through:tell "lasting"
        end)
        if not told then gone = gone + 1 end
      end
      assert.is_true(gone > 0)
    end)
  end
end)

-- A claim that was cut at its commit and could not reconnect said GONE and forgot what it had
-- taken. When the commit had happened, it never ran.
describe("a claim that is cut at its commit while the server cannot be reached", function()
  local url, name, handle

  before_each(function()
    url, name = db.fresh()
    local setup <close> = assert(nightshift.open(url))
    assert(setup:queue("q"):push("job", 1))
  end)
  after_each(function() handle:close() end)

  local function cut_off(when)
    local p = proxy.start(db.shared())
    handle = assert(nightshift.open(p:url(url)))
    p:tell("commit " .. when .. " 1")
    p:tell "lasting"
    local none, _, code = handle:queue("q"):claim()
    assert.is_nil(none)
    assert.equal("GONE", code)
    assert.equal("yes", p:tell "fired")
    p:tell "admit"
  end

  for _, when in ipairs { "before", "after" } do
    it("finds its job with the next claim: cut " .. when, function()
      cut_off(when)
      local job = assert(handle:queue("q"):claim())
      assert.is_nil(handle:queue("q"):claim())
      assert.is_true((job:ack()))
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_lease", name))
    end)
  end

  it("gives it back when the handle closes", function()
    cut_off "after"
    local other <close> = assert(nightshift.open(url))
    assert.is_nil(other:queue("q"):claim())
    handle:close()
    assert.is_true((assert(other:queue("q"):claim()):ack()))
  end)

  it("does not give back what it never had", function()
    cut_off "before"
    local other <close> = assert(nightshift.open(url))
    local job = assert(other:queue("q"):claim())
    handle:close()
    assert.is_true((job:ack()))
  end)
end)

-- A verdict that was cut at its commit, could not ask whether it was written and said GONE,
-- said STALE when it was repeated. Yet it had been written.
describe("a verdict that is cut at its commit while the server cannot be reached", function()
  local url, name, p, handle

  before_each(function()
    url, name = db.fresh()
    p = proxy.start(db.shared())
    handle = assert(nightshift.open(p:url(url)))
    assert(handle:queue("q"):push("job", 1))
  end)
  after_each(function() handle:close() end)

  local function gone(when, verb)
    p:tell("commit " .. when .. " 1")
    p:tell "lasting"
    local none, _, code = verb()
    assert.same({ nil, "GONE" }, { none, code })
    assert.equal("yes", p:tell "fired")
    p:tell "admit"
  end

  local function past() return db.sql("SELECT outcome, result FROM nightshift_finished", name) end

  for _, when in ipairs { "before", "after" } do
    it("is good when it is repeated: cut " .. when, function()
      local job = assert(handle:queue("q"):claim())
      gone(when, function() return job:ack "done" end)
      assert.is_true(assert(job:ack "done"))
      assert.equal('done\t"done"', past())
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_lease", name))
    end)

    it("is good when it is repeated after other verdicts: cut " .. when, function()
      assert(handle:queue("q"):push("job", 2))
      local jobs = assert(handle:queue("q"):claim_many(2))
      gone(when, function() return jobs[1]:again(60) end)
      assert(jobs[2]:ack())
      assert.is_true(assert(jobs[1]:again(60)))
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_lease", name))
      assert.equal("1", db.sql("SELECT polls FROM nightshift_job", name))
    end)
  end

  it("is asked of the holder that wrote it, though it was declared dead since", function()
    local job = assert(handle:queue("q"):claim())
    gone("after", function() return job:ack() end)
    db.sql("UPDATE nightshift_holder SET dead = beat", name)
    assert.is_true(assert(job:ack()))
    assert(handle:queue("q"):push("next", 2))
    assert.is_true((assert(handle:queue("q"):claim()):ack()))
    assert.equal("2", db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
  end)

  it("is lost when another one was written", function()
    local job = assert(handle:queue("q"):claim())
    gone("after", function() return job:ack() end)
    assert.equal("STALE", select(3, job:fail "no"))
    assert.equal("done\tNULL", past())
  end)
end)

-- A push was cut at its commit, could not ask whether it had happened and said GONE. It made a
-- second job when it was repeated.
describe("a push that is cut at its commit while the server cannot be reached", function()
  local url, name, p, handle

  before_each(function()
    url, name = db.fresh()
    p = proxy.start(db.shared())
    handle = assert(nightshift.open(p:url(url)))
    assert(handle:queue("q"):push("first"))
  end)
  after_each(function() handle:close() end)

  local function gone(when, ...)
    p:tell("commit " .. when .. " 1")
    p:tell "lasting"
    local none, _, code = handle:queue("q"):push(...)
    assert.same({ nil, "GONE" }, { none, code })
    assert.equal("yes", p:tell "fired")
  end
  local function count() return db.sql("SELECT COUNT(*) FROM nightshift_job", name) end

  for _, when in ipairs { "before", "after" } do
    it("is one push with its repetition: cut " .. when, function()
      gone(when, "second", { n = 1 }, { unique = "k", delay = 5 })
      assert.equal("GONE", select(3, handle:queue("q"):push("second", { n = 1 }, { unique = "k", delay = 5 })))
      p:tell "admit"
      local id = assert(handle:queue("q"):push("second", { n = 1 }, { unique = "k", delay = 5 }))
      assert.equal("2", count())
      assert.equal("second", assert(handle:job(id)).name)
    end)
  end

  it("is one push with its repetition in a transaction", function()
    gone("after", "second")
    p:tell "admit"
    assert(handle:transaction(function(tx) return tx:queue("q"):push("second") end))
    assert.equal("2", count())
  end)

  it("is repeated once only: the next one is new", function()
    gone("after", "second")
    p:tell "admit"
    local id = assert(handle:queue("q"):push("second"))
    assert.not_equal(id, assert(handle:queue("q"):push("second")))
    assert.equal("3", count())
  end)

  it("is not mistaken for one that asks for something else", function()
    gone("after", "second", { n = 1 })
    p:tell "admit"
    assert(handle:queue("q"):push("second", { n = 2 }))
    assert(handle:queue("other"):push("second", { n = 1 }))
    assert.equal("4", count())
  end)
end)

-- A verdict on a row of an adopted table was told STALE when its COMMIT was cut, as if another
-- claimant had the row. It may have been written.
for _, when in ipairs { "before", "after" } do
  it("an ack of a row whose COMMIT is cut is not stale: " .. when, function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    designs.create(handle, "job_queue", 1)
    local way = proxy.start(db.shared())
    local other <close> = assert(nightshift.open(way:url(url)))
    local job = assert(assert(other:adopt(designs.map "job_queue")):claim())
    way:tell(("commit %s 1"):format(when))
    assert.is_true((job:ack()))
    assert.equal("yes", way:tell "fired")
    assert.equal("DONE", assert(handle:execute "SELECT state FROM job_queue")[1].state)
  end)
end

-- What is sent behind a lease runs even when the lease was refused. Had that been a deadlock,
-- which ends the transaction, the number of the cycle was committed by itself. And a cut of the
-- next try's COMMIT was taken for one that had worked: its verdicts were lost.
it("the number of a cycle whose lease met a deadlock is not written", function()
  local CLAIMER = [[
  local handle = assert(require "nightshift".open(%q))
  print("took", assert(handle:queue("q"):claim { wait = 30 }).id)]]

  local function waits(how_many)
    return function()
      return db.sql "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'" == how_many
    end
  end

  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local other <close> = assert(nightshift.open(url))
  local id = assert(handle:queue("q"):push "job")
  -- the first lease meets a deadlock, the second waits until it has been looked
  db.sql([[CREATE TABLE weight (n INT);
    CREATE TABLE bait (n INT PRIMARY KEY);
    INSERT INTO bait VALUES (1);
    DELIMITER $$
    CREATE TRIGGER planted BEFORE INSERT ON nightshift_lease FOR EACH ROW
      BEGIN
        SET @tries = COALESCE(@tries, 0) + 1;
        IF @tries = 1 THEN
          UPDATE bait SET n = 2;
        ELSE
          SET @got = GET_LOCK('279', 20);
        END IF;
      END$$]], name)
  local gate <close> = assert(nightshift.open(url))
  assert(gate:execute "DO GET_LOCK('279', 0)")
  local claimer
  assert(other:transaction(function(tx)
    assert(tx:execute "UPDATE bait SET n = 3")
    assert(tx:execute "INSERT INTO weight SELECT seq FROM seq_1_to_2000") -- the lighter one gives way
    claimer = proc.start { proc.lua, "-e", CLAIMER:format(url) }
    eventually(waits "1")
    assert(tx:execute("DELETE FROM nightshift_ready WHERE job_id = ?", id + 1000)) -- a scan, that meets its row
    return nil, "undone"
  end) == nil)
  eventually(function()
    return db.sql [[SELECT COUNT(*) FROM information_schema.processlist
      WHERE state = 'User lock' AND info LIKE '%GET_LOCK(''279''%']] == "1"
  end)
  assert.equal("0", db.sql("SELECT cycle FROM nightshift_holder", name))
  assert(gate:execute "DO RELEASE_LOCK('279')")
  claimer:wait_line("took%s+" .. id)
end)

-- A claim of several stretches is read with a statement for each. One that lost its connection
-- between them, and did not come back at once, kept what it had read and read all again. Those
-- jobs stood in the claim twice, and a host ran each of them twice.
describe("a claim of several stretches", function()
  local LENGTH, STRETCHES = 9, 3

  local url, direct, through

  setup(function()
    url = db.fresh()
    direct = assert(nightshift.open(url))
    assert(direct:execute "SELECT SETVAL(nightshift_id, 100000)") -- ids of one length: packets too
  end)
  before_each(function() through = proxy.start(db.shared()) end)
  teardown(function() direct:close() end)

  -- Claims all through a connection that 'arm' breaks: they come in one call or two.
  -- Returns the packets.
  local function claim(arm)
    for _ = 1, STRETCHES do
      assert(direct:transaction(function(tx)
        local jobs = {}
        for i = 1, LENGTH do jobs[i] = { "job", i } end
        assert(tx:queue "q":push_many(jobs))
        assert(tx:queue "gap":push "job")
      end))
    end
    local handle <close> = assert(nightshift.open(through:url(url)))
    arm()
    local jobs, _, code = handle:queue "q":claim_many(LENGTH * STRETCHES)
    local packets = through:packets()
    through:tell "fired"
    through:tell "refuse 0"
    if not jobs then
      assert.equal("GONE", code)
      jobs = assert(handle:queue "q":claim_many(LENGTH * STRETCHES))
    end
    local seen = {}
    for _, job in ipairs(jobs) do
      assert.is_nil(seen[job.id], ("job %d came twice"):format(job.id))
      seen[job.id] = true
    end
    assert.equal(LENGTH * STRETCHES, #jobs)
    assert(handle:transaction(function(tx)
      for _, job in ipairs(jobs) do assert(tx:ack(job)) end
      return true
    end))
    return packets
  end

  it("brings each job once, wherever its connection is cut while it is read", function()
    local packets = claim(function() through:tell "trace" end)
    local committed = false
    local cuts = 0
    for _, packet in ipairs(packets) do
      committed = committed or packet.who == "C"
      if committed then
        claim(function()
          through:tell(("cut %d"):format(packet.at))
          through:tell "refuse 1"
        end)
        cuts = cuts + 1
      end
    end
    assert.is_true(cuts > 2 * STRETCHES, cuts)
  end)
end)

-- A push is one statement that commits: a KILL QUERY may come before the commit, or
-- behind it, while the ring is on its way. The push that was written must not be
-- told as one that was not, nor be written again.
describe("a push that a KILL QUERY hits", function()
  local KILLER = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  print "killing"
  io.flush()
  while db:execute("KILL QUERY %d") do
    local until_ = nightshift.clock() + math.random() * 0.003
    while nightshift.clock() < until_ do end -- finer than any sleep
  end]]

  it("at any moment is written once, or not and says so", function()
    local url = db.fresh()
    local handle = assert(nightshift.open(url))
    local watch <close> = assert(nightshift.open(url))
    local q = handle:queue "mail"
    assert(q:push("first", 0))
    local thread = assert(handle:execute "SELECT CONNECTION_ID() AS n")[1].n
    local killer = proc.start { proc.lua, "-e", KILLER:format(url, thread) }
    killer:wait_line "killing"
    local told, refused = { first = true }, 0
    for i = 1, math.ceil((os.getenv "NIGHTSHIFT_LONG" and 1000 or 300) / proc.limit(1)) do
      local name = "job-" .. i
      local id, _, code
      repeat -- GONE: not known, but the same again is written once
        if i % 3 == 0 then id, _, code = q:push_many { { name, 1 }, { name, 2 } } else id, _, code = q:push(name, i) end
      until code ~= "GONE"
      if id then told[name] = true else refused = refused + 1; assert.equal("BUSY", code) end
    end
    killer:signal "KILL"
    killer:wait()
    handle:close()
    local rows = assert(watch:execute [[SELECT j.name, COUNT(DISTINCT j.id) AS jobs, COUNT(r.job_id) AS ready
      FROM nightshift_job j LEFT JOIN nightshift_ready r ON r.job_id = j.id GROUP BY j.name]])
    for _, row in ipairs(rows) do
      local n = tonumber(row.name:match "%d+") or 1
      assert.is_true(told[row.name], row.name .. " was told as refused, and is there")
      assert.equal(n % 3 == 0 and 2 or 1, row.jobs, row.name)
      assert.equal(row.jobs, row.ready, row.name)
      told[row.name] = nil
    end
    assert.is_nil(next(told), "one that was told as written is not there")
  end)
end)

-- A KILL QUERY that comes between two statements makes the server refuse the next one. When
-- that was a ROLLBACK or a COMMIT, the handle took it for done, and its next beginning
-- committed what was still open. Rows that had been rolled back were there (2 % of the kills),
-- and what was told BUSY, and so was run again, was written twice.
describe("a transaction whose end a KILL QUERY hits", function()
  -- Kills the session until it is told to end.
  local KILLER = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  print "killing"
  io.flush()
  while true do
    local id = assert(db:execute "SELECT id FROM victim")[1].id
    db:execute("KILL QUERY " .. id)
    local until_ = nightshift.clock() + math.random() * 0.001
    while nightshift.clock() < until_ do end -- finer than any sleep
  end]]

  local url, name, handle, killer

  -- The session may be another one after a kill.
  local function show_victim()
    db.sql("REPLACE INTO victim VALUES (1, " .. handle:execute "SELECT CONNECTION_ID() AS n"[1].n .. ")", name)
  end

  before_each(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    db.sql([[CREATE TABLE kept (n INT NOT NULL, KEY (n));
      CREATE TABLE victim (one INT PRIMARY KEY, id BIGINT NOT NULL)]], name)
    show_victim()
    killer = proc.start { proc.lua, "-e", KILLER:format(url) }
    killer:wait_line "killing"
  end)
  after_each(function()
    if killer then
      killer:signal "KILL"
      killer:wait()
    end
    handle:close()
  end)

  local function rest()
    killer:signal "KILL"
    killer:wait()
    killer = nil
    repeat until handle:transaction(function(tx) return tx:execute "INSERT INTO kept VALUES (0)" end)
  end

  local TRIES = math.ceil((os.getenv "NIGHTSHIFT_LONG" and 1200 or 300) / proc.limit(1))

  it("is rolled back when its function raises", function()
    for i = 1, TRIES do
      pcall(handle.transaction, handle, function(tx)
        tx:execute("INSERT INTO kept VALUES (?)", i)
        error "no"
      end)
      if i % 50 == 0 then pcall(show_victim) end
    end
    rest()
    assert.equal("0", db.sql("SELECT COUNT(*) FROM kept WHERE n > 0", name))
  end)

  it("is written once when it is run again after BUSY", function()
    local doubt = {}
    for i = 1, TRIES do
      local ok, code
      repeat
        local ran, done, _, why = pcall(handle.transaction, handle, function(tx)
          local wrote, message = tx:execute("INSERT INTO kept VALUES (?)", i)
          if not wrote then error(message) end
          return true
        end)
        ok, code = ran and done, why
      until ok or code == "GONE"
      doubt[i] = code == "GONE" or nil
      if i % 50 == 0 then pcall(show_victim) end
    end
    rest()
    assert.equal("0", db.sql("SELECT COUNT(*) - COUNT(DISTINCT n) FROM kept WHERE n > 0", name))
    for n in db.sql("SELECT DISTINCT n FROM kept", name):gmatch "%d+" do doubt[tonumber(n)] = true end
    for i = 1, TRIES do assert.is_true(doubt[i], i .. " was told to be written") end
  end)
end)

-- A statement that a KILL QUERY cuts may be answered with OK. Such were a DELETE that did
-- nothing, an array-bound one that left off in the middle, and a DELETE … RETURNING without its
-- rows. So jobs were given out twice under one token, were done and came again, or stayed for
-- ever. And callers were told "Commands out of sync (2014)".
--
-- NIGHTSHIFT_KILLS=100000 makes the storm longer.
describe("a storm of KILL QUERY", function()
  local KILLS = tonumber(os.getenv "NIGHTSHIFT_KILLS") or math.ceil(200 / proc.limit(1))
  local HANDLER = [[
  local journal = require "spec.support.proc".journal
  local note
  return { work = function(job)
    note = note or journal.writer(%q, "runs")
    note("claimed", job.id, job.run)
    if job.id %% 5 == 0 and job.run == 1 then return job:again(0.01) end
    return job.run
  end }]]

  local PROMISED = { GONE = true, BUSY = true }

  local url, name, folder, members

  before_each(function()
    url, name = db.fresh()
    nightshift.open(url):close()
    folder, members = proc.folder(), {}
  end)

  local function start(role, number)
    local member = proc.start { proc.lua, "spec/support/crew.lua", "storm", role, url, folder, number,
      env = { LUA_PATH = "./?.lua;./lua/?.lua;./lua/?/init.lua;;" }, cwd = proc.root }
    members[#members + 1] = member
    return member
  end

  local function codes()
    local seen = {}
    for w in journal.lines(folder, "codes") do
      if not PROMISED[w[1]] then seen[#seen + 1] = table.concat(w, " ") end
    end
    return seen
  end

  local function check_tokens()
    local seen, twice = {}, {}
    for w in journal.lines(folder, "runs") do
      local token = w[1] == "claimed" and w[3] .. ":" .. w[4]
      if token and seen[token] then twice[#twice + 1] = token end
      seen[token or 1] = true
    end
    assert.same({}, twice)
  end

  local function check_pushes()
    local past = {}
    local done = db.sql("SELECT id FROM nightshift_finished WHERE outcome = 'done'", name)
    for id in done:gmatch "%d+" do past[id] = true end
    for w in journal.lines(folder, "pushes") do
      for id in w[3]:gmatch "%d+" do assert.is_true(past[id], "job " .. id .. " was pushed, and is not done") end
    end
  end

  it("loses nothing, doubles nothing, and is told as GONE or BUSY", function()
    local h = host.start(url, HANDLER:format(folder), { "--workers", "2", "--queues", "q" },
      { LUA_PATH = ("%s/?.lua;%s/lua/?.lua;%s/lua/?/init.lua;;"):format(proc.root, proc.root, proc.root) })
    for i = 1, 2 do start("push", i) end
    for i = 1, 3 do start("claim", i) end
    start("kill", KILLS):wait(KILLS / 100 + proc.limit(60))
    assert(io.open(folder .. "/stop", "w")):close()
    for _, member in ipairs(members) do assert.equal(0, member:wait(proc.limit(60)), member:transcript()) end
    local live
    pcall(eventually, function()
      live = db.sql("SELECT COUNT(*) FROM nightshift_job", name)
      return live == "0"
    end)
    h:signal "TERM"
    local status = h:wait(proc.limit(30))
    local _, log = h:text()
    assert.equal("0", live, db.sql("SELECT id, run, unmet, due, waits FROM nightshift_job LIMIT 20", name))
    assert.equal(0, status, log)
    assert.same({}, codes())
    check_tokens()
    check_pushes()
    for _, hot in ipairs { "scheduled", "edge", "met", "signal", "lease", "running", "unique_key" } do
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_" .. hot, name), hot)
    end
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", name))
    assert.is_nil(log:find("2014", 1, true))
    assert.is_nil(log:find("event=job.stale", 1, true), log)
  end)
end)

-- A connection is cut at any byte of a verb. The database is in one of the two legal states,
-- and the answer to the caller agrees with it. A verb that said GONE and is repeated comes to
-- the same end as one that was never cut.
--
-- Cut are the ends of what either side said. From the last statement before the COMMIT to the
-- COMMIT's reply they are cut ± 1, too. So is every 61st byte (with NIGHTSHIFT_LONG=1 each).
-- With NIGHTSHIFT_CUT=all (make test-cut-all) it is every byte; where time runs slower
-- (sanitizers, valgrind) only some of them.

local ALL = os.getenv "NIGHTSHIFT_CUT" == "all"
local EVERY = ALL and 1 or math.ceil(proc.limit(1))
local INSIDE = os.getenv "NIGHTSHIFT_LONG" and 1 or 61

-- The state of one job by its name and id, in one statement, so in one view.
local STATE = [[SELECT
  (SELECT COUNT(*) FROM nightshift_job WHERE name = ?) AS live,
  (SELECT COUNT(*) FROM nightshift_ready r JOIN nightshift_job j ON j.id = r.job_id AND j.run = r.run
    WHERE j.name = ?) AS ready,
  (SELECT COUNT(*) FROM nightshift_finished WHERE id = ?) AS past,
  (SELECT COUNT(*) FROM nightshift_job WHERE parent = ?) AS children,
  (SELECT COUNT(*) FROM nightshift_edge WHERE on_id = ?) AS edges,
  (SELECT COUNT(*) FROM nightshift_attempt WHERE job_id = ?) AS attempts,
  (SELECT COUNT(*) FROM nightshift_scheduled s JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
    WHERE j.id = ?) AS later,
  (SELECT COUNT(*) FROM nightshift_lease) AS leases,
  (SELECT COUNT(*) FROM nightshift_audit WHERE verb <> 'update') AS acted]] -- a repeated update is another one

-- Each has the step before the verb ('prepare' gives the verb's subject), the verb, and the two
-- states it may leave (missing fields are 0). Then the answer of its repetition when it is done
-- already.
local verbs = {
  push = {
    verb = function(q, _, name) return q:push(name, { n = 1 }, { unique = name }) end,
    no = {}, yes = { live = 1, ready = 1 }, alone = true, -- its one statement commits
  },
  push_many = {
    verb = function(q, _, name) return q:push_many { { name, 1 }, { name, 2 }, { name, 3, { priority = 7 } } } end,
    no = {}, yes = { live = 3, ready = 3 },
  },
  ["push_many that keeps"] = {
    verb = function(q, _, name)
      local keep = { unique = { key = name, on_conflict = "keep" } }
      return q:push_many { { name, 1 }, { name, 2, keep }, { name, 3, keep } }
    end,
    no = {}, yes = { live = 2, ready = 2 },
  },
  ["push that is repeated by its id"] = {
    verb = function(q, _, name, id) return q:push(name, { n = id and 2 or 1 }, id and { id = id }) end,
    no = {}, yes = { live = 1, ready = 1 }, alone = true,
  },
  ["push_many that is repeated by its ids"] = {
    verb = function(q, _, name, ids)
      local items = {}
      for i = 1, 3 do items[i] = { name, ids and i + 1 or i, ids and { id = ids[i] } } end
      return q:push_many(items)
    end,
    no = {}, yes = { live = 3, ready = 3 },
  },
  ["push that replaces"] = {
    verb = function(q, _, name)
      return q:push(name, { n = 1 }, { delay = 0, unique = { key = name, on_conflict = "replace" } })
    end,
    no = {}, yes = { live = 1, ready = 1 }, alone = true,
  },
  ["push that replaces a job"] = {
    prepare = function(_, _, q) return { id = assert(q:push("old", 1, { unique = "cut", delay = 60 })) } end,
    verb = function(q, _, name)
      return q:push(name, { n = 1 }, { unique = { key = "cut", on_conflict = "replace" } })
    end,
    no = { live = 1, ready = 1, later = 1 }, yes = { live = 2, ready = 2 },
  },
  claim = {
    prepare = function(_, pushed) return pushed end,
    verb = function(q) return q:claim() end,
    no = { live = 1, ready = 1 }, yes = { live = 1, leases = 1 },
  },
  ["ack with a child"] = {
    prepare = function(q) return assert(q:claim()) end,
    verb = function(_, job)
      job._children = nil
      job:spawn("child", 1)
      return job:ack { ok = true }
    end,
    no = { live = 1, leases = 1 }, yes = { past = 1, children = 1 },
  },
  fail = {
    prepare = function(q) return assert(q:claim()) end,
    verb = function(_, job) return job:fail "no luck" end,
    no = { live = 1, leases = 1 }, yes = { live = 1, attempts = 1, later = 1 },
  },
  ["again with a child"] = {
    prepare = function(q) return assert(q:claim()) end,
    verb = function(_, job)
      job._children = nil
      job:spawn("child", 1)
      return job:again(60, { page = 2 })
    end,
    no = { live = 1, leases = 1 }, yes = { live = 1, children = 1, edges = 1, later = 1 },
  },
  ["wait with a child"] = {
    prepare = function(q) return assert(q:claim()) end,
    verb = function(_, job)
      job._children = nil
      job:spawn("child", 1)
      return job:wait()
    end,
    no = { live = 1, leases = 1 }, yes = { live = 1, children = 1 },
  },
  ["ack of the last child"] = {
    prepare = function(its, _, q) -- one claim on the connection: a later one looks for due jobs, or not yet
      local parent = assert(q:claim())
      parent:spawn("child", 1)
      assert(parent:wait())
      return assert(its:claim())
    end,
    verb = function(_, job) return job:ack "last" end,
    no = { live = 1, leases = 1, edges = 1 }, yes = { live = 1, ready = 1, past = 1 },
  },
  cancel = {
    prepare = function(_, pushed) return pushed end,
    verb = function(q, job) return q.db:cancel(job.id) end,
    no = { live = 1, ready = 1 }, yes = { past = 1, acted = 1 }, again = "STATE",
  },
  update = {
    prepare = function(_, pushed) return pushed end,
    verb = function(q, job) return q.db:update(job.id, { payload = 2, tags = { "t" }, due = 32503600000 }) end,
    no = { live = 1, ready = 1 }, yes = { live = 1, later = 1 },
  },
  delete = {
    prepare = function(_, pushed) return pushed end,
    verb = function(q, job) return q.db:delete(job.id) end,
    no = { live = 1, ready = 1 }, yes = { acted = 1 }, again = "NOT_FOUND",
  },
}

describe("a connection that is cut at any byte", function()
  local url, direct, q, through, serial

  setup(function()
    url = db.fresh()
    direct = assert(nightshift.open(url))
    assert(direct:execute "SELECT SETVAL(nightshift_id, 100000)") -- ids of one length: packets too
    local wipes = {}
    for i, name in ipairs { "job", "ready", "scheduled", "edge", "child", "lease", "unique_key", "finished",
      "attempt", "tag", "audit" } do
      wipes[i] = "DELETE FROM nightshift_" .. name .. (name == "ready" and " WHERE job_id > 0;" or ";")
    end
    assert(direct:execute("CREATE PROCEDURE wipe() BEGIN " .. table.concat(wipes) .. "END"))
    q = direct:queue "q"
    assert(q:push "warm-up")
    assert(q:claim()):ack()
    serial = 0
  end)
  -- Leaves nothing for the next try.
  local function clean() assert(direct:execute "CALL wipe()") end

  before_each(function() through = proxy.start(db.shared()) end)
  after_each(function() clean() end)
  teardown(function() direct:close() end)

  local function is(state, name, id)
    local row = assert(direct:execute(STATE, name, name, id, id, id, id, id))[1]
    for key, n in pairs(row) do
      if n ~= (state[key] or 0) then return false, ("%s = %d"):format(key, n) end
    end
    return true
  end

  -- One try on a connection of its own; 'arm' breaks it. Returns whether it did,
  -- what was told, and the packets of a trace.
  local function try(case, arm, tracing)
    serial = serial + 1
    local name = ("try-%06d"):format(serial)
    local pushed = case.prepare and { id = assert(q:push(name, 1)) }
    local handle <close> = assert(nightshift.open(through:url(url)))
    local its = { db = handle }
    setmetatable(its, { __index = function(_, verb)
      return function(_, ...) return handle:queue("q")[verb](handle:queue "q", ...) end
    end })
    local job = case.prepare and case.prepare(its, pushed, q)
    local id = job and job.id or 0
    arm()
    local first, message, code, given = case.verb(its, job, name)
    local packets = tracing and through:packets()
    local fired = through:tell "fired" == "yes"
    if first then
      assert(is(case.yes, name, id))
    else
      assert.equal("GONE", code or message)
      through:tell "admit"
      assert(is(case.no, name, id) or is(case.yes, name, id))
      local second, _, why = case.verb(its, job, name, given)
      assert.is_truthy(second or (case.again and why == case.again), why)
      assert(is(case.yes, name, id))
      if case.verb == verbs.claim.verb then assert.is_nil(its:claim()) end
    end
    return fired, first, packets
  end

  -- Where to cut: every byte, or the interesting ones.
  local function places(packets, case)
    local last = packets[#packets].at
    local set, list = {}, {}
    local commit, statement, reply
    for i, packet in ipairs(packets) do
      local turn = packets[i + 1] and packets[i + 1].who:lower() ~= packet.who:lower()
      for at = packet.at - 1, packet.at + 1 do set[at] = set[at] or turn and at - packet.at end
      if packet.who == "C" then commit = i end
      if packet.who == "c" and not commit then statement = i end
      if packet.who == "s" and commit and not reply then reply = packet.at end
    end
    local from = packets[(case.again or case.alone) and commit - 1 or statement - 1].at
    for at = 0, last do
      local inside = at >= from and at <= reply
      local chosen = ALL or set[at] and (inside or set[at] == 0) or inside and at % INSIDE == 0
      if chosen and at % EVERY == 0 then list[#list + 1] = { at = at, inside = inside } end
    end
    return list
  end

  -- Of the shortest of three: now and then a try says more, because what it needs
  -- was not prepared yet.
  local function trace(case)
    local shortest
    for _ = 1, 3 do
      local _, _, packets = try(case, function() through:tell "trace" end, true)
      clean()
      if not shortest or packets[#packets].at < shortest[#shortest].at then shortest = packets end
    end
    return places(shortest, case)
  end

  for name, case in pairs(verbs) do
    it("at any byte of " .. name .. " leaves it done once", function()
      for _, place in ipairs(trace(case)) do
        local _, told = try(case, function() through:tell("cut " .. place.at) end)
        assert.is_truthy(told, "the server was there, the verb could be repeated: byte " .. place.at)
        clean()
      end
    end)

    it("for a while, at any byte of " .. name .. ", leaves it done or not, and once when repeated", function()
      local gone = 0
      for _, place in ipairs(trace(case)) do
        if place.inside or ALL then
          local fired, told
          for _ = 1, 3 do -- a try may say less than the traced one did: then once more
            fired, told = try(case, function()
              through:tell("cut " .. place.at)
              through:tell "lasting"
            end)
            through:tell "admit"
            if fired then break end
            clean()
          end
          assert.is_true(fired, ("byte %d never passed"):format(place.at))
          if not told then gone = gone + 1 end
          clean()
        end
      end
      assert.is_true(gone > 0)
    end)
  end
end)

-- ----- interrupts

-- Ctrl-C ended a program that waited for a job, or for the server, only when that wait was
-- over. The interpreter raises its error in a debug hook, and no hook ran meanwhile.
describe("interrupts:", function()
  local START = [[
  local nightshift = require "nightshift"
  local url = %q
  local db = assert(nightshift.open(url))
  local q = db:queue "q"
  local function waits() io.stdout:write "waits\n" io.stdout:flush() end
]]

  describe("Ctrl-C", function()
    local url, name
    before_each(function() url, name = db.fresh() end)

    local function start(program)
      local p = proc.start { proc.lua, "-e", START:format(url) .. program }
      p:wait_line "^waits"
      return p
    end

    local function sleeps(what)
      eventually(function()
        local found = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND " .. what
        return db.sql(found, name) ~= "0"
      end)
    end

    local LISTENS = "info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state = 'User lock'"

    local function ends(p)
      local since = nightshift.clock()
      p:signal "INT"
      assert.not_equal(0, p:wait())
      local took = nightshift.clock() - since
      local _, err = p:text()
      assert.is_truthy(err:find("interrupted!", 1, true), err)
      assert.is_true(took < proc.limit(6), took) -- when the wait is over: 10 s, or 60
    end

    it("ends a wait for a job", function()
      local p = start "waits() q:claim{ wait = 60 }"
      sleeps(LISTENS)
      ends(p)
    end)

    it("ends one in a coroutine", function()
      local p = start "waits() print(coroutine.wrap(function() return q:claim{ wait = 60 } end)())"
      sleeps(LISTENS)
      ends(p)
    end)

    it("ends a loop over jobs", function()
      local p = start "waits() for job in q:jobs{ wait = 60 } do print(job) end"
      sleeps(LISTENS)
      ends(p)
    end)

    it("ends a statement of one's own, and the program's session with it", function()
      local p = start "waits() db:execute 'DO SLEEP(60)'"
      sleeps "info LIKE 'DO SLEEP%'"
      ends(p)
    end)

    it("ends a statement that is being prepared behind a table's lock", function()
      local other <close> = assert(nightshift.open(url))
      assert(other:execute "CREATE TABLE t (a INT) ENGINE=InnoDB")
      assert(other:execute "LOCK TABLES t WRITE")
      local p = start "waits() db:execute('SELECT a FROM t WHERE a = ?', 1)"
      sleeps "state LIKE 'Waiting for table%'"
      ends(p)
    end)

    it("ends a wait for a lock across hosts", function()
      local other <close> = assert(nightshift.open(url))
      local held <close> = assert(other:lock "l":acquire()) -- luacheck: ignore 211
      local p = start "waits() db:lock 'l':acquire(60)"
      ends(p)
    end)

    it("ends a wait for a row of an adopted table", function()
      db.sql("CREATE TABLE a (id INT AUTO_INCREMENT PRIMARY KEY, state VARCHAR(10) DEFAULT 'open')", name)
      local p = start [[
      local a = assert(db:adopt{ table = "a", id = "id", status = { column = "state", open = "open",
        processing = "busy", done = "done", failed = "failed" }, name = "a" })
      waits()
      a:claim{ wait = 60 }]]
      ends(p)
    end)

    it("ends a wait for a lock on this host", function()
      ends(start [[
      local m = nightshift.mutex "m"
      local nst = require "nst"
      nightshift.shared:keys() -- the memory is there before
      nst.fork(function()
        assert(m:acquire())
        nst.sleep(60)
      end)
      while m:acquire(0) do
        m:release()
        nst.sleep(0.01)
      end
      waits()
      m:acquire(60)]])
    end)

    it("leaves a handle that goes on", function()
      local p = start [[
      waits()
      local ok, message = pcall(q.claim, q, { wait = 60 })
      assert(not ok and message:find "interrupted!", message)
      assert(q:push("a", 1))
      assert(assert(q:claim()):ack())
      io.stdout:write "went on\n"]]
      sleeps(LISTENS)
      p:signal "INT"
      p:wait_line "^went on"
      assert.equal(0, p:wait())
    end)
  end)

  describe("debug hooks", function()
    local handle, q

    with_database(function(opened, queue) handle, q = opened, queue end)
    after_each(function() debug.sethook() end)

    it("run while a claim waits", function()
      for _, count in ipairs { 1, 1000 } do
        local n = 0
        debug.sethook(function() n = n + 1 end, "", count)
        assert.is_nil(q:claim { wait = 2 })
        debug.sethook()
        assert.is_true(n >= 4, n)
      end
    end)

    it("may not use the handle that waits", function()
      local message
      debug.sethook(function()
        if not debug.traceback():find("claim", 1, true) then return end
        debug.sethook()
        for _, verb in ipairs { "push", "close" } do
          local object = verb == "push" and q or handle
          local _
          _, message = pcall(object[verb], object, "a", 1)
          if not message then return end
        end
      end, "", 1000)
      assert.is_nil(q:claim { wait = 1 })
      assert.is_truthy(message:find("in a hook", 1, true), message)
      assert(q:push("a", 1))
    end)
  end)
end)

-- A program that held a job with a server that had stopped answering never ended: closing its
-- handle waited for the server, without end. A host's listeners could keep it, too.
describe("while the server is frozen", function()
  local START = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  local q = db:queue "q"
  local function go()
    io.stdout:write "go\n"
    io.stdout:flush()
    io.read()
  end
]]

  local server, url
  setup(function() server = db.spare() end)
  before_each(function() url = server:fresh() end)
  after_each(function() server:thaw() end)

  -- Runs a program up to its go(), freezes the server, and lets it go on; s until it ended.
  local function frozen_from(program, options)
    local fifo = fixture.dir() .. "/fifo"
    assert(os.execute("mkfifo " .. fifo))
    local text = START:format(url .. (options or "")) .. program
    local p = proc.start { "sh", "-c", 'exec "$@" < "$0"', fifo, proc.lua, "-e", text }
    local go <close> = assert(io.open(fifo, "w"))
    p:wait_line("^go", 20)
    server:freeze()
    local since = nightshift.clock()
    go:write "\n"
    go:flush()
    local how = p:wait(25)
    local _, err = p:text()
    return nightshift.clock() - since, how, err
  end

  for what, program in pairs {
    ["with a claim"] = "assert(q:push 'a') local job = assert(q:claim()) go()",
    ["by os.exit"] = "assert(q:push 'a') local job = assert(q:claim()) go() os.exit(0, true)",
    ["that closes"] = "assert(q:push 'a') local job = assert(q:claim()) go() db:close()",
    ["with a lock"] = "local l = assert(db:lock 'l':acquire()) go()",
    ["after a wait"] = "q:claim{ wait = 0.1 } go()",
  } do
    it("a program ends " .. what, function()
      local took, how, err = frozen_from(program)
      assert.is_true(took < proc.limit(20), took)
      assert.equal(0, how, err)
    end)
  end

  it("a program ends that would commit", function()
    local took, how, err = frozen_from([[
      local ok, message, code = db:transaction(function(tx)
        assert(tx:execute "INSERT INTO nightshift_meta VALUES ('x', 'y')")
        go()
        return true
      end)
      assert(code == "GONE", message)]], "&read_timeout=2s")
    assert.is_true(took < proc.limit(20), took)
    assert.equal(0, how, err)
  end)

  it("a wait for a job ends at Ctrl-C, and so does a verb", function()
    for _, program in ipairs { "go() q:claim{ wait = 60 }", "go() q:push 'a'" } do
      local p = proc.start { "sh", "-c", 'exec "$@"', "sh", proc.lua, "-e",
        (START:format(url):gsub("io.read%(%)", "require 'nst'.sleep(0.5)")) .. program }
      p:wait_line("^go", 20)
      server:freeze()
      os.execute "sleep 2"
      local since = nightshift.clock()
      p:signal "INT"
      p:wait()
      local took = nightshift.clock() - since
      local _, err = p:text()
      server:thaw()
      assert.is_truthy(err:find("interrupted!", 1, true), err)
      assert.is_true(took < proc.limit(15), took)
    end
  end)

  it("a host that is told to end does", function()
    local h = host.start(url, "return { a = function() end }", { "--drain-timeout", "1s" })
    server:freeze()
    local since = nightshift.clock()
    h:signal "TERM"
    h:wait(40)
    local took = nightshift.clock() - since
    assert.is_true(took < proc.limit(19), took)
  end)
end)

-- Under TLS, too, a wait ends at Ctrl-C, and a program with a frozen server ends. There the
-- library reads more than it is asked for, so what has been read is not waited for.
describe("under TLS", function()
  local START = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open{ host = "127.0.0.1", port = %d, user = "u", password = "hunter2", database = %q,
    tls = "trust" })
  assert(assert(db:execute "SHOW STATUS LIKE 'Ssl_cipher'")[1].Value ~= "")
  local q = db:queue "q"
  local function waits() io.stdout:write "waits\n" io.stdout:flush() end
]]

  local function read(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read "a"
  end

  local server, port, name

  setup(function()
    local folder = fixture.dir()
    local status, _, err = proc.run { "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
      "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", folder .. "/key.pem", "-out", folder .. "/cert.pem",
      "-days", "2", "-subj", "/CN=spec" }
    assert.equal(0, status, err)
    port = proc.free_port()
    server = db.server(([[
skip-networking=0
bind-address=127.0.0.1
port=%d
ssl-cert=FOLDER/cert.pem
ssl-key=FOLDER/key.pem
]]):format(port), { ["cert.pem"] = read(folder .. "/cert.pem"), ["key.pem"] = read(folder .. "/key.pem") })
    local _
    _, name = server:fresh()
    server:sql(("CREATE USER u IDENTIFIED BY 'hunter2'; GRANT ALL ON `%s`.* TO u"):format(name))
  end)
  teardown(function() server:remove() end)
  after_each(function() server:thaw() end)

  local function start(program)
    local p = proc.start { proc.lua, "-e", START:format(port, name) .. program }
    p:wait_line("^waits", 20)
    return p
  end

  local function sleeps(what)
    eventually(function()
      return server:sql(("SELECT COUNT(*) FROM information_schema.processlist WHERE db = '%s' AND %s"):format(name,
        what)) ~= "0"
    end)
  end

  local function ends(p, within)
    local since = nightshift.clock()
    p:signal "INT"
    p:wait()
    local took = nightshift.clock() - since
    local _, err = p:text()
    assert.is_truthy(err:find("interrupted!", 1, true), err)
    assert.is_true(took < proc.limit(within), took)
  end

  it("waits end at Ctrl-C", function()
    local p = start "waits() q:claim{ wait = 60 }"
    sleeps "state = 'User lock'"
    ends(p, 6)
    p = start "waits() db:execute 'DO SLEEP(60)'"
    sleeps "info LIKE 'DO SLEEP%'"
    ends(p, 6)
  end)

  it("large answers, batches and pushes in pieces come whole", function()
    local handle <close> = assert(nightshift.open { host = "127.0.0.1", port = port, user = "u", password = "hunter2",
      database = name, tls = "trust" })
    local q = handle:queue "large"
    local items = {}
    for i = 1, 200 do items[i] = { "a", ("x"):rep(i * 300) } end
    assert(q:push_many(items))
    for _ = 1, 4 do
      local jobs = assert(q:claim_many(50))
      assert.equal(50, #jobs)
      for _, job in ipairs(jobs) do assert(job:ack { n = #job.payload }) end
    end
    assert.equal(3000000, #assert(handle:execute "SELECT REPEAT('x', 3000000) AS x")[1].x)
  end)

  it("a program ends while the server is frozen", function()
    for _, wait in ipairs { "", "q:claim{ wait = 0.1 }" } do
      local p = start(wait .. "assert(q:push 'a') local job = assert(q:claim()) waits() os.execute 'sleep 0.7'")
      server:freeze()
      local since = nightshift.clock()
      p:wait(20)
      local took = nightshift.clock() - since
      server:thaw()
      assert.is_true(took < proc.limit(15), took)
    end
  end)

  it("a wait ends at Ctrl-C while the server is frozen", function()
    local p = start "waits() db:queue 'none':claim{ wait = 60 }"
    sleeps "state = 'User lock'"
    server:freeze()
    ends(p, 15)
  end)
end)

-- A verb that met a locked table or row began anew twenty times, each for as long as a lock is
-- waited for. A push beside LOCK TABLES took seven minutes to say BUSY. A look at dead holders
-- that a KILL QUERY met was logged as an error, and waited ten seconds to come again.
describe("locked for minutes:", function()
  local PATIENCE = 3 -- s: read_timeout

  describe("what somebody keeps locked", function()
    local url, locker, handle, q

    before_each(function()
      url = db.fresh()
      locker = assert(nightshift.open(url))
      handle = assert(nightshift.open(("%s&read_timeout=%ds"):format(url, PATIENCE)))
      q = handle:queue "q"
    end)
    after_each(function()
      locker:close()
      handle:close()
    end)

    local function busy(verb)
      local since = nightshift.clock()
      local none, message, code = verb()
      local took = nightshift.clock() - since
      assert.same({ nil, "BUSY" }, { none, code }, message)
      assert.is_true(took >= PATIENCE / 2 and took < proc.limit(3 * PATIENCE), took)
    end

    it("is waited for like a reply: a table", function()
      local id = assert(q:push "first")
      local job = assert(q:claim())
      assert(locker:execute "LOCK TABLES nightshift_job WRITE, nightshift_ready WRITE")
      busy(function() return q:push "a" end)
      busy(function() return q:push_many { { "a" }, { "b" } } end)
      busy(function() return job:ack() end)
      assert(locker:execute "UNLOCK TABLES")
      assert(job:ack())
      assert.equal("done", handle:job(id).state)
      assert(q:push "a")
      assert.equal(1, #assert(q:claim_many(10)))
    end)

    it("is waited for like a reply: a row", function()
      local id = assert(q:push "first")
      assert(locker:transaction(function(tx)
        assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id))
        busy(function() return handle:cancel(id) end)
        return true
      end))
      assert(handle:cancel(id))
    end)
  end)

  it("a look at the dead that is hit by a KILL comes again soon, and is no error", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local id = assert(handle:queue "q":push "a")
    local holder = proc.start { proc.lua, "-e", ([[
    assert(require "nightshift".open(%q):queue "q":claim())
    print "holds"
    io.flush()
    os.execute "sleep 60"]]):format(url) }
    holder:wait_line("^holds", 20)
    local h = host.start(url, "return { a = function() end }")
    db.sql([[CREATE TRIGGER trouble BEFORE UPDATE ON nightshift_holder FOR EACH ROW
    IF NEW.dead IS NOT NULL THEN SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317; END IF]], name)
    holder:signal "KILL"
    h:wait_line("level=warn event=rescue.failed code=BUSY", 20)
    db.sql("DROP TRIGGER trouble", name)
    local since = nightshift.clock()
    eventually(function() return handle:job(id).state == "done" end, 20)
    local took = nightshift.clock() - since
    assert.is_true(took < proc.limit(9), took) -- by the round: 10 s
    h:signal "TERM"
    assert.equal(0, h:wait(20))
    assert.is_nil(h:transcript():find("level=error", 1, true), h:transcript())
  end)
end)
