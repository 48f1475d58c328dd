-- Waiting for jobs without polling: no wake-up is lost and sleeping costs nothing. Waiting for
-- a server that goes silent, or is lost: how long, and the fate of its old session.

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local host = require "spec.support.host"
local lab = require "spec.support.db".lab
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

describe("a waiting claim", function()
  local WAITER = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  local q = db:queue "mail"
  print "waiting"
  io.flush()
  local worst, n = 0, 0
  for job in q:jobs{ wait = 30 } do
    local late = nightshift.clock() - job.payload
    worst, n = math.max(worst, late), n + 1
    assert(job:ack())
    if job.name == "last" then break end
  end
  print(("worst %%.3f of %%d"):format(worst, n))]]

  it("sees each of hundreds of pushes at random moments at once", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "mail"
    local waiter = proc.start { proc.lua, "-e", WAITER:format(url) }
    waiter:wait_line "waiting"
    local pushes = math.ceil(600 / proc.limit(1))
    for i = 1, pushes do
      local until_ = nightshift.clock() + math.random() * 0.004
      while nightshift.clock() < until_ do end -- finer than any sleep
      assert(q:push(i == pushes and "last" or "next", nightshift.clock()))
    end
    waiter:wait_line("worst", 60)
    local worst, n = waiter:text():match "worst (%S+) of (%d+)"
    assert.equal(tostring(pushes), n)
    assert.is_true(tonumber(worst) < proc.limit(9), "one came after " .. worst .. " s") -- lost: 10 s
  end)

  it("is rung by the one push that concerns it, and several kinds each by theirs", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local waiters = {}
    for i, queue in ipairs { "a", "b", "c" } do
      waiters[i] = proc.start { proc.lua, "-e", (WAITER:format(url):gsub('"mail"', '"' .. queue .. '"')) }
      waiters[i]:wait_line "waiting"
    end
    for i, queue in ipairs { "c", "a", "b" } do
      assert(handle:queue(queue):push("last", nightshift.clock()))
      local waiter = waiters[({ 3, 1, 2 })[i]]
      waiter:wait_line("worst", 9) -- unrung: 10 s
    end
  end)

  it("whose process was killed is struck off the list, and the next one is rung", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local killed = proc.start { proc.lua, "-e", WAITER:format(url) }
    killed:wait_line "waiting"
    eventually(function() return db.sleepers(name) == 1 end)
    local other = proc.start { proc.lua, "-e", WAITER:format(url) }
    other:wait_line "waiting"
    eventually(function() return db.sleepers(name) == 2 end)
    killed:signal "KILL"
    killed:wait()
    assert(handle:queue("mail"):push("last", nightshift.clock()))
    other:wait_line("worst", 9)
    eventually(function()
      handle._handle:ring()
      return db.sleepers(name) == 0
    end)
  end)

  it("asks the server nothing while it sleeps", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local waiter = proc.start { proc.lua, "-e", WAITER:format(url) }
    waiter:wait_line "waiting"
    local function statements()
      local rows = assert(handle:execute [[SELECT VARIABLE_VALUE AS n FROM information_schema.GLOBAL_STATUS
        WHERE VARIABLE_NAME = 'QUESTIONS']])
      return tonumber(rows[1].n)
    end
    eventually(function()
      return #assert(handle:execute [[SELECT 1 FROM information_schema.processlist
        WHERE info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state = 'User lock']]) == 1
    end)
    eventually(function() -- a look of its own, each ten seconds, may fall into one of these
      local before = statements()
      assert(handle:execute "DO SLEEP(2)")
      return statements() - before <= 3 -- our own two, and at most one more
    end)
    assert(handle:queue("mail"):push("last", nightshift.clock()))
    waiter:wait_line "worst"
  end)
end)

-- A handle that waited for work looked at the ready rows with locks and slept in one statement.
-- So it kept those locks for as long as it slept. When purge removed such a row the server made
-- its lock one on the gap, and no push could write there. Pushes waited for sleepers, who only
-- woke for a push. Seen once in some runs of 64 claimers beside other work.
describe("sleepers:", function()
  local database
  lab.handles(1, function(handle) database = handle end)
  after_each(crew.clean)

  local function rows(sql) return assert(database:execute(sql)) end

  it("whoever sleeps for want of work keeps no lock", function()
    local q = database:queue "q"
    local reader <close> = lab.open() -- purge removes nothing: the sleeper's look goes over deleted rows
    for i = 1, 20 do assert(q:push("noop", i)) end
    assert(reader:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert(reader._handle:begin())
    assert(reader:execute "SELECT 1 FROM nightshift_meta")
    for _ = 1, 20 do assert(assert(q:claim()):ack()) end
    crew.fork(2, function()
      local own <close> = lab.open()
      assert(own:queue "q":claim { wait = 60 }):ack()
    end)
    eventually(function()
      return #rows "SELECT 1 FROM information_schema.PROCESSLIST WHERE db = DATABASE() AND STATE = 'User lock'" == 2
    end)
    assert.same({}, rows [[SELECT p.ID AS id, t.trx_lock_structs AS locks
    FROM information_schema.PROCESSLIST p
    JOIN information_schema.INNODB_TRX t ON t.trx_mysql_thread_id = p.ID
    WHERE p.DB = DATABASE() AND p.STATE = 'User lock' AND t.trx_lock_structs > 0]])
    for i = 1, 2 do assert(q:push("noop", i)) end
    eventually(function() return rows "SELECT COUNT(*) AS n FROM nightshift_finished"[1].n == 22 end)
  end)
end)

-- A handle that waited for jobs of a queue did not listen for a while after a push into another
-- one. That lasted up to five seconds, longer for an older push.
describe("a waiting claim", function()
  local WAITER = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  for job in db:queue "mine":jobs{ wait = 30 } do
    print(("late %%.3f"):format(nightshift.clock() - job.payload))
    io.flush()
    assert(job:ack())
  end]]

  local url, name
  before_each(function() url, name = db.fresh() end)

  local function sleepers()
    return tonumber(db.sql([[SELECT COUNT(*) FROM information_schema.processlist
      WHERE db = DATABASE() AND info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state = 'User lock']], name))
  end

  for lapse, bound in pairs { [0.5] = 1, [1.8] = 3, [2.6] = 3 } do
    it(("hears of a push %g s after one into another queue"):format(lapse), function()
      local handle <close> = assert(nightshift.open(url))
      local waiter = proc.start { proc.lua, "-e", WAITER:format(url) }
      eventually(function() return sleepers() == 1 end)
      assert(handle:queue "other":push("a", 1))
      nst.sleep(lapse)
      assert(handle:queue "mine":push("b", nightshift.clock()))
      local late = tonumber(waiter:wait_line "^late (%S+)")
      assert.is_true(late < proc.limit(bound), late)
    end)
  end
end)

-- Consumers of paused queues were one kind of sleeper, whatever their queues: a resume ended
-- the sleep of the oldest and the newest of them. And the one with that queue slept on for up
-- to ten seconds.
describe("consumers of paused queues", function()
  local CONSUMER = [[
  local db = assert(require "nightshift".open(%q))
  for job in db:queue %q:jobs { wait = 60 } do
    assert(job:ack())
    break
  end]]

  it("are woken by the resume of their own queue, the middle one, too", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local all = {}
    local function asleep(n, ms) -- so many consumers, for so long
      eventually(function()
        return db.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'User %' AND time_ms > "
          .. ms, name) == tostring(n)
      end)
    end
    for i, queue in ipairs { "one", "two", "three" } do
      assert(handle:queue(queue):push "noop")
      assert(handle:queue(queue):pause())
      all[i] = proc.start { proc.lua, "-e", CONSUMER:format(url, queue) }
      asleep(i, 0)
    end
    asleep(3, 3000) -- a sleep looks again in its first two seconds
    assert(handle:queue "two":resume())
    local resumed = nightshift.clock()
    assert.equal(0, all[2]:wait(60))
    local late = nightshift.clock() - resumed
    for _, consumer in ipairs(all) do consumer:signal "KILL" end
    assert.is_true(late < proc.limit(5), ("%.1f s late"):format(late))
  end)
end)

local function sessions(name)
  return tonumber((db.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE db = '" .. name .. "'")))
end

describe("a handle with a read_timeout", function()
  local url, name, p, handle

  before_each(function()
    url, name = db.fresh()
    p = proxy.start(db.shared())
    handle = assert(nightshift.open(p:url(url) .. "&read_timeout=3s&connect_timeout=3s"))
    assert(handle:queue("q"):push "first")
  end)
  after_each(function()
    p:tell "thaw"
    handle:close()
  end)

  it("does not wait for a silent server for ever, and works again when it is back", function()
    p:tell "freeze"
    local started = nightshift.clock()
    local none, _, code = handle:queue("q"):push "second"
    assert.same({ nil, "GONE" }, { none, code })
    assert.is_true(nightshift.clock() - started < proc.limit(25)) -- its own: 30 s and more
    p:tell "thaw"
    assert(handle:queue("q"):push "second")
    assert.equal("2", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
  end)

  it("reconnects past a connection that went silent, and ends the session it left", function()
    local job = assert(handle:queue("q"):claim())
    local before = sessions(name)
    p:tell "strand" -- the server is there, only this connection is not
    assert(job:ack "done")
    eventually(function() return sessions(name) == before end)
    assert.equal("done", db.sql("SELECT outcome FROM nightshift_finished", name))
    p:tell "thaw"
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
  end)

  it("takes back its locks from the session that went silent inside a transaction", function()
    assert.has_error(function()
      assert(handle:transaction(function(tx)
        assert(tx:queue("q"):push("second", 1, { unique = "k" }))
        p:tell "strand"
        assert(tx:execute "SELECT 1")
      end))
    end)
    assert(handle:queue("q"):push("second", 1, { unique = "k" }))
    assert.equal(0, handle:stats().counters.lock_waits, "it waited for a lock of its own")
    eventually(function() return sessions(name) == 1 end)
  end)

  it("kills nobody after the server was started again, though ids repeat", function()
    local server = db.server()
    local its = server:fresh()
    local q <close> = assert(nightshift.open(its))
    local id = assert(q:execute "SELECT CONNECTION_ID() AS id")[1].id
    nst.sleep(1.1) -- starts are told apart by the second
    server:kill()
    server:start()
    local others = {}
    repeat -- another session has that id now
      others[#others + 1] = assert(nightshift.open(its))
      local now = assert(others[#others]:execute "SELECT CONNECTION_ID() AS id")[1].id
    until now >= id
    assert(q:execute "SELECT 1")
    for _, other in ipairs(others) do
      assert.is_true(other:transaction(function(tx) return assert(tx:execute "SELECT 1") and true end))
      assert.equal(0, other:stats().counters.reconnects)
      other:close()
    end
  end)

  it("takes durations above zero only", function()
    for _, bad in ipairs { "soon", "0" } do
      local none, message, code = nightshift.open(url .. "&read_timeout=" .. bad)
      assert.same({ nil, "INVALID" }, { none, code })
      assert.is_truthy(message:find("read_timeout", 1, true), message)
    end
  end)
end)

describe("a connection over TCP", function()
  it("is watched by the kernel: a machine that vanishes is noticed within half a minute", function()
    local p = proxy.start(db.shared(), "tcp")
    local handle <close> = assert(nightshift.open(p:url((db.fresh()))))
    assert(handle:execute "SELECT 1")
    local far = (":%04X "):format(p.port)
    local timers = {}
    for line in io.lines "/proc/net/tcp" do
      local remote, timer, left = line:match "^%s*%d+: %x+:%x+ (%x+:%x+ )01 %x+:%x+ (%x+):(%x+)"
      if remote and remote:find(far, 1, true) then timers[#timers + 1] = { timer, tonumber(left, 16) } end
    end
    assert.equal(1, #timers)
    assert.equal("02", timers[1][1], "keepalive")
    assert.is_true(timers[1][2] <= 1500, timers[1][2] .. " hundredths of a second")
  end)
end)

describe("the caller's own SQL", function()
  local url, name, handle

  with_database(function(opened, _, at, database) handle, url, name = opened, at, database end)

  local function lose()
    for id in db.sql("SELECT id FROM information_schema.processlist WHERE db = '" .. name .. "'"):gmatch "%d+" do
      pcall(db.sql, "KILL " .. id) -- it may be gone by now
    end
    eventually(function() return sessions(name) == 0 end)
  end

  it("works after its connection was lost while idle", function()
    lose()
    assert.equal(2, assert(handle:execute "SELECT 1 + 1 AS n")[1].n)
    lose()
    assert(handle:execute "INSERT INTO nightshift_meta VALUES ('x', 'y')")
    assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_meta WHERE name = 'x'", name))
  end)

  it("says GONE when its transaction is cut at the commit, and all or nothing of it stands", function()
    for when, there in pairs { before = "0", after = "1" } do
      local p = proxy.start(db.shared())
      local cut <close> = assert(nightshift.open(p:url(url)))
      assert(cut:queue(when))
      local none, _, code = cut:transaction(function(tx)
        assert(tx:queue(when):push("job"))
        assert(tx:execute("INSERT INTO nightshift_meta VALUES (?, 'x')", when))
        p:tell("commit " .. when .. " 1")
        return true
      end)
      assert.same({ nil, "GONE" }, { none, code })
      assert.equal(there, db.sql("SELECT COUNT(*) FROM nightshift_meta WHERE name = '" .. when .. "'", name))
      assert.equal(there == "1", cut:queue(when):claim() ~= nil)
    end
  end)

  it("does not go on in another session when its transaction is lost", function()
    local none, message, code = handle:transaction(function(tx)
      assert(tx:execute "INSERT INTO nightshift_meta VALUES ('x', 'y')")
      lose()
      return tx:execute "INSERT INTO nightshift_meta VALUES ('z', 'y')"
    end)
    assert.is_nil(none)
    assert.is_truthy(code == "GONE" or code == "BUSY", message)
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_meta WHERE name IN ('x', 'z')", name))
    assert(handle:execute "SELECT 1")
  end)
end)

describe("opening", function()
  it("names the file that is missing", function()
    local url = db.fresh()
    for key, what in pairs { ca = "ca file", cert = "cert file", key = "key file", file = "file" } do
      local none, message, code = nightshift.open { url = url, [key] = "/no/such.pem" }
      assert.same({ nil, "INVALID" }, { none, code })
      assert.equal(("cannot read the %s '/no/such.pem': No such file or directory"):format(what), message)
    end
  end)

  it("never shows the password, however it fails", function()
    local p = proxy.start(db.shared(), "tcp")
    local url = db.user((db.fresh()), "SELECT"):gsub("Pass%-word_1", "s3cret-Wrong")
    local messages = {}
    local function note(where)
      local none, message = nightshift.open(where)
      assert.is_nil(none)
      messages[#messages + 1] = message
    end
    note(url)
    note(p:url(url))
    note((url:gsub("unix_socket=.*", "unix_socket=/no/such.sock")))
    note((url:gsub("@localhost/.*", "@127.0.0.1:1/x?tls=off")))
    note((url:gsub("@localhost/.*", "@no.such.host.invalid/x?tls=off&connect_timeout=1s")))
    p:tell "refuse"
    note(p:url(url))
    p:tell "admit"
    p:tell "freeze"
    note(p:url(url) .. "&connect_timeout=1s")
    p:tell "thaw"
    assert.equal(7, #messages)
    for _, message in ipairs(messages) do assert.is_nil(message:find("s3cret", 1, true), message) end
  end)
end)

-- A handle that lost its connection while it was idle said GONE once for each verb that did not
-- begin with a transaction. Yet the server was there.
describe("a handle whose connection was lost while it was idle", function()
  local handle, name

  before_each(function()
    local url
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    assert(handle:queue("q"):push("job", 1))
  end)
  after_each(function() handle:close() end)

  local verbs = {
    push = function() return handle:queue("new"):push("job", 1) end,
    claim = function() return handle:queue("q"):claim() end,
    job = function() return handle:job(assert(handle:queue("q"):push("job", 1))) end,
    pause = function() return handle:queue("q"):pause() end,
    transaction = function() return handle:transaction(function(tx) return tx:queue("q"):push("job", 1) end) end,
  }
  for verb, call in pairs(verbs) do
    it("connects again: " .. verb, function()
      for id in db.sql("SELECT id FROM information_schema.processlist WHERE db = '" .. name .. "'"):gmatch "%d+" do
        db.sql("KILL " .. id)
      end
      assert.is_truthy(assert(call()))
    end)
  end
end)

-- A handler that asked for the results of its children when a KILL met its connection got an
-- error raised, and the attempt had failed. A read of our own is asked again.
describe("a read that a KILL cuts:", function()
  --- In its second phase it waits until the file is there before it asks.
  local SCRIPT <const> = [[return {
  parent = function(job)
    if job.phase == 0 then
      job:spawn "child"
      return job:wait()
    end
    print "asks"
    while not io.open %q do require "nightshift.core".sleep(0.02) end
    return job.results[1].result
  end,
  child = function() return "told" end,
}]]

  for _, kill in ipairs { "KILL QUERY", "KILL" } do
    it("results are asked for again after a " .. kill, function()
      local url, name = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      local go = fixture.dir() .. "/go"
      local h = host.start(url, SCRIPT:format(go), { "--workers", "1" })
      local id = assert(handle:queue("q"):push "parent")
      h:wait_line("asks", 20)
      local other <close> = assert(nightshift.open(url))
      assert(other:execute "LOCK TABLES nightshift_finished WRITE")
      assert(io.open(go, "w")):close()
      local waiting = eventually(function()
        local list = db.sql([[SELECT id FROM information_schema.processlist
        WHERE state LIKE 'Waiting for table%' AND info LIKE '%nightshift_child c FORCE%']], name)
        return list ~= "" and list
      end)
      db.sql(kill .. " " .. waiting, name)
      assert(other:execute "UNLOCK TABLES")
      eventually(function() return handle:job(id).state == "done" end)
      assert.equal("told", handle:job(id).result)
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_attempt WHERE kind <> 'printed'", name))
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end
end)
