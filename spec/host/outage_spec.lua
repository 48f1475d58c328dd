-- The database goes away and comes back while a host runs.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

describe("outages:", function()
  local server, url

  setup(function() server = db.spare() end)
  before_each(function() url = server:fresh() end)
  after_each(function() -- a test that failed may have left it in any state
    if not pcall(server.sql, server, "SELECT 1") then server:start() end
    server:sql "SET GLOBAL read_only = 0, GLOBAL max_connections = 1000"
  end)

  local SCRIPT = [[return {
  noop = function() end,
  slow = function(job) print "started" os.execute "sleep 1" return "slept" end,
  long = function() print "started" os.execute "sleep 60" end,
}]]

  -- With a handle that is open only meanwhile: it may not live through the outage.
  local function with(fn)
    local handle <close> = assert(nightshift.open(url))
    return fn(handle)
  end

  local function state(id)
    return with(function(handle) return handle:job(id).state end)
  end

  local function push(name)
    return with(function(handle) return assert(handle:queue("q"):push(name)) end)
  end

  for _, how in ipairs { "stop", "kill" } do
    describe("a server that goes away (" .. how .. ")", function()
      it("is waited for; the handler goes on and its result is kept", function()
        local h = host.start(url, SCRIPT)
        local id = push "slow"
        h:wait_line "^started"
        server[how](server)
        h:wait_line "db.lost why="
        nst.sleep(1.5)
        server:start()
        h:wait_line("db.back", 20)
        eventually(function() return state(id) == "done" or nst.sleep(0.1) end)
        local after = push "noop"
        eventually(function() return state(after) == "done" or nst.sleep(0.1) end)
        h:signal "TERM"
        assert.equal(0, h:wait())
      end)
    end)
  end

  describe("a large result while the server is away", function()
    it("waits in a file without a name, and arrives", function()
      local folder, go = fixture.dir(), fixture.dir() .. "/go"
      local h = host.start(url, ([[return { big = function(job)
      print "started"
      while not io.open %q do require "nightshift.core".sleep(0.02) end
      return tostring(job.id):rep(100000):sub(1, 300000)
    end }]]):format(go), { "--workers", "2" }, { TMPDIR = folder })
      local ids = { push "big", push "big" }
      h:wait_line("^started", 20, 2)
      server:stop()
      h:wait_line "db.lost"
      assert(io.open(go, "w")):close()
      local function spilled()
        local maps <close> = io.open(("/proc/%d/maps"):format(h.pid))
        return select(2, maps:read "a":gsub(" rw%-s [^\n]*" .. folder:gsub("%p", "%%%0") .. "/[^\n]*%(deleted%)", ""))
      end
      eventually(function() return spilled() == 2 end)
      server:start()
      for _, id in ipairs(ids) do
        eventually(function() return state(id) == "done" or nst.sleep(0.1) end, 20)
        local expected = tostring(id):rep(100000):sub(1, 300000)
        assert.is_true(with(function(handle) return handle:job(id).result end) == expected)
      end
      eventually(function() return spilled() == 0 end)
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("arrives as well when there is no room for a file", function()
      local h = host.start(url, [[return { big = function(job)
      print "started"
      os.execute "sleep 0.5"
      return ("y"):rep(300000)
    end }]], { "--workers", "1" }, { TMPDIR = "/nowhere" })
      local id = push "big"
      h:wait_line "^started"
      server:stop()
      h:wait_line "db.lost"
      nst.sleep(0.5)
      server:start()
      eventually(function() return state(id) == "done" or nst.sleep(0.1) end, 20)
      assert.is_true(with(function(handle) return handle:job(id).result end) == ("y"):rep(300000))
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end)

  describe("a host that is to stop while the server is away", function()
    it("tries until its drain timeout, then ends with 1", function()
      local h = host.start(url, SCRIPT, { "--drain-timeout", "500ms" })
      push "long"
      h:wait_line "^started"
      server:kill()
      h:signal "TERM"
      assert.equal(1, h:wait(25))
      h:wait_line "host.give_up"
    end)

    it("ends at once when it has nothing to tell it", function()
      local h = host.start(url, SCRIPT)
      server:kill()
      h:wait_line("db.lost", 20)
      h:signal "TERM"
      assert.equal(0, h:wait(20)) -- its drain timeout is 30 s
    end)

    it("ends at the third asking", function()
      local h = host.start(url, SCRIPT)
      push "long"
      h:wait_line "^started"
      server:kill()
      h:wait_line("db.lost", 20)
      h:signal "TERM"
      h:wait_line "host.drain"
      h:signal "TERM"
      h:wait_line "host.stop"
      h:signal "TERM"
      assert.equal(1, h:wait(25))
    end)
  end)

  -- Many small jobs; each handler says in a file that it ran.
  local NOTES = [[return {
  note = function(job)
    local file = assert(io.open(%q, "a"))
    file:write(job.id, "\n")
    file:close()
    require "nightshift.core".sleep(0.01)
    return { id = job.id }
  end,
  slow = function() print "started" os.execute "sleep 1" return "slept" end,
}]]
  local JOBS = 100
  local GRANTS = "SELECT, INSERT, UPDATE, DELETE, EXECUTE" -- no administrator: read_only and max_connections hold

  describe("a host in the middle of its work", function()
    local name, notes, ids

    before_each(function()
      name = url:match "/([^/?]+)%?"
      notes = fixture.file("notes", "")
      ids = with(function(handle)
        local items = {}
        for i = 1, JOBS do items[i] = { "note", i } end
        return assert(handle:queue("q"):push_many(items))
      end)
    end)

    local function start(where, args) return host.start(where, NOTES:format(notes), args) end

    local function count(what) return tonumber((server:sql("SELECT COUNT(*) FROM nightshift_" .. what, name))) end

    -- Some are done and some are not.
    local function midway(done) eventually(function() return count "finished" >= (done or 20) end, 20) end

    -- Every job ended, once, and its handler ran once; then the host ends.
    local function assert_all_done(h)
      eventually(function() return count "job" == 0 or nst.sleep(0.1) end, 120)
      h:signal "TERM"
      assert.equal(0, h:wait(60), h:transcript())
      assert.equal(#ids, count "finished WHERE outcome = 'done'")
      assert.equal(0, count "lease")
      assert.equal(0, count "attempt")
      local ran = {}
      for id in io.lines(notes) do ran[id] = (ran[id] or 0) + 1 end
      for _, id in ipairs(ids) do assert.equal(1, ran[tostring(id)], "job " .. id) end
    end

    local function kill_sessions(user)
      for id in server:sql("SELECT id FROM information_schema.processlist WHERE user = '" .. user
        .. "'"):gmatch "%d+" do
        pcall(server.sql, server, "KILL " .. id)
      end
    end

    for _, how in ipairs { "stop", "kill" } do
      it("loses nothing and runs nothing twice when the server goes (" .. how .. ") and comes back", function()
        local h = start(url)
        for time = 1, how == "kill" and 2 or 1 do
          midway(time * 20)
          server[how](server)
          h:wait_line("db.lost", 20, time)
          server:start()
          h:wait_line("db.back", 20, time)
        end
        assert_all_done(h)
      end)
    end

    it("loses nothing when its connections are killed again and again", function()
      local where, user = server:user(url, GRANTS)
      local h = start(where)
      for _ = 1, 10 do
        kill_sessions(user)
        nst.sleep(0.1)
      end
      assert_all_done(h)
    end)

    it("waits while the server takes no more connections", function()
      local where, user = server:user(url, GRANTS)
      local h = start(where)
      midway()
      server:sql "SET GLOBAL max_connections = 10"
      local others = {}
      local hog = server:user(url, "SELECT")
      local other, message, code
      repeat
        kill_sessions(user)
        other, message, code = nightshift.open(hog)
        others[#others + 1] = other
      until not other
        and server:sql("SELECT COUNT(*) FROM information_schema.processlist WHERE user = '" .. user .. "'") == "0"
      assert.equal("GONE", code)
      assert.is_truthy(message:find("Too many connections", 1, true), message)
      h:wait_line("db.lost", 20)
      nst.sleep(1)
      for _, each in ipairs(others) do each:close() end
      h:wait_line("db.back", 20)
      assert_all_done(h)
    end)

    it("waits while the server is read-only, and spends no attempt on it", function()
      local where = server:user(url, GRANTS)
      local h = start(where)
      midway()
      server:sql "SET GLOBAL read_only = 1"
      ids[#ids + 1] = push "note" -- an administrator may: what it has may be done by now
      h:wait_line("db.lost", 20)
      local handle <close> = assert(nightshift.open(where))
      local none, message, code = handle:queue("q"):push "note"
      assert.same({ nil, "GONE" }, { none, code })
      assert.is_truthy(message:find("read-only", 1, true), message)
      nst.sleep(1)
      server:sql "SET GLOBAL read_only = 0"
      h:wait_line("db.back", 20)
      assert_all_done(h)
    end)

    it("waits while nothing passes, and goes on where it was", function()
      local p = proxy.start(server)
      local h = start(p:url(url) .. "&read_timeout=1s&connect_timeout=1s")
      midway()
      p:tell "freeze"
      h:wait_line("db.lost", 20)
      nst.sleep(1)
      p:tell "thaw"
      h:wait_line("db.back", 20)
      assert_all_done(h)
    end)

    it("leaves connections that went silent, and ends their sessions", function()
      local p = proxy.start(server)
      local where, user = server:user(url, GRANTS)
      local h = start(p:url(where) .. "&read_timeout=1s&connect_timeout=1s")
      midway()
      p:tell "strand"
      assert_all_done(h)
      p:tell "thaw"
      eventually(function()
        return server:sql("SELECT COUNT(*) FROM information_schema.processlist WHERE user = '" .. user .. "'") == "0"
      end)
    end)

    it("goes on when each reply takes half a second", function()
      local p = proxy.start(server)
      local h = start(p:url(url))
      midway()
      p:tell "delay 500"
      nst.sleep(1)
      local id = with(function(handle) -- what it has may be done by now
        return assert(handle:queue("q"):push("note", 0, { priority = 200 }))
      end)
      ids[#ids + 1] = id
      eventually(function() return state(id) == "done" or nst.sleep(0.1) end, 60)
      p:tell "delay 0"
      assert_all_done(h)
    end)

    it("waits for room when the disk is full, and loses nothing", function()
      local folder = fixture.dir() .. "/disk"
      if not os.execute(("mkdir %s && mount -t tmpfs -o size=400m none %s 2>/dev/null"):format(folder, folder)) then
        pending "no tmpfs can be mounted here"
        return
      end
      local usual = server
      finally(function()
        server:remove()
        server = usual
        os.execute("umount " .. folder)
      end)
      server = db.server(nil, nil, folder)
      url = server:fresh()
      name = url:match "/([^/?]+)%?"
      local h = start(url)
      os.execute(("head -c 1G /dev/zero > %s/filler 2>/dev/null"):format(folder))
      local handle <close> = assert(nightshift.open(url))
      ids = {}
      local none, code
      repeat -- into the room that the tables still have
        local id
        id, none, code = handle:queue("q"):push("note", ("x"):rep(100000))
        ids[#ids + 1] = id
      until not id
      assert.is_truthy(code == "BUSY" or code == "GONE", none)
      assert(os.remove(folder .. "/filler"))
      if server.process:ended() then
        server.process:forget()
        server:start()
      end
      assert_all_done(h)
    end)
  end)

  describe("many hosts that lose their server together", function()
    local HOSTS = os.getenv "NIGHTSHIFT_LONG" and 50 or 6

    it("are all back within seconds, and do not come at once", function()
      local p = proxy.start(server)
      local hosts = {}
      for i = 1, HOSTS do hosts[i] = host.spawn(p:url(url), SCRIPT, { "--workers", "1" }) end
      for _, h in ipairs(hosts) do h:wait_line("host.ready", 60) end
      server:kill()
      for _, h in ipairs(hosts) do h:wait_line("db.lost", 30) end
      nst.sleep(3)
      p:tell "accepts"
      server:start()
      local started = nst.clock()
      for _, h in ipairs(hosts) do h:wait_line("db.back", 30) end
      local took = nst.clock() - started
      local _, busiest = p:tell("accepts"):match "(%d+) (%d+)"
      assert.is_true(took < proc.limit(18), took .. " s")
      assert.is_true(tonumber(busiest) <= 10 * HOSTS, busiest .. " connections within a second")
      for _, h in ipairs(hosts) do h:signal "TERM" end
      for _, h in ipairs(hosts) do assert.equal(0, h:wait(60)) end
    end)
  end)

  describe("a handle", function()
    it("says GONE and why while the server is away, keeps its claims, and works when it is back", function()
      local handle <close> = assert(nightshift.open(url))
      local q = handle:queue "q"
      assert(q:push_many { { "a", 1 }, { "b", 2 } })
      local jobs = q:claim_many(2)
      assert(jobs[1]:ack())
      server:kill()
      for verb, call in pairs {
        push = function() return q:push("c", 3) end,
        claim = function() return q:claim() end,
        ack = function() return jobs[2]:ack() end,
        touch = function() return jobs[2]:touch() end,
        execute = function() return handle:execute "SELECT 1" end,
        transaction = function() return handle:transaction(function() return true end) end,
      } do
        local none, message, code = call()
        assert.same({ nil, "GONE" }, { none, code }, verb)
        assert.is_truthy(message:find("cannot connect", 1, true), verb .. ": " .. message)
      end
      server:start()
      assert(jobs[2]:ack())
      assert(q:push("c", 3))
      assert.equal("c", assert(q:claim()).name)
    end)
  end)
end)

-- A handler has ended, and the database does not take its verdict: people see that, of
-- this job and of no other.
describe("a verdict that the database does not take", function()
  local SCRIPT = [[
local function wait(name, path)
  print(name .. " holds")
  while not io.open(path) do require "nightshift.core".sleep(0.01) end
end
return {
  ends = function() wait("ends", %q) return 1 end,
  fails = function() wait("fails", %q) error "no" end,
  breaks = function() wait("breaks", %q) error "no" end,
  runs = function() wait("runs", %q) end,
}]]

  local server, url, handle, locker, ends, stays, h
  setup(function() server = db.spare() end)
  before_each(function()
    url = server:fresh()
    handle, locker = assert(nightshift.open(url)), assert(nightshift.open(url))
    ends, stays = fixture.dir() .. "/go", fixture.dir() .. "/go"
    h = host.start(url, SCRIPT:format(ends, ends, ends, stays))
  end)
  after_each(function()
    handle:close()
    locker:close()
  end)

  local function go(path) assert(io.open(path, "w")):close() end

  --- Ids of jobs of these names; all of them run.
  local function started(...)
    local ids = {}
    for i, name in ipairs { ... } do
      ids[i] = assert(handle:queue "q":push(name, nil, { backoff = "1h" }))
      h:wait_line("^" .. name .. " holds")
    end
    return table.unpack(ids)
  end

  local function owed(id)
    return eventually(function()
      local text, fact = handle:why(id)
      return fact.kind == "unsettled" and { text = text, fact = fact }
    end)
  end

  local function ended(id, state)
    go(stays)
    eventually(function() return handle:job(id).state == state end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  it("is told of while nothing can be written, and of no job that runs", function()
    local id, other = started("ends", "runs")
    eventually(function() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_running")[1].n == 2 end)
    assert(locker:execute "FLUSH TABLES WITH READ LOCK")
    go(ends)
    local got = owed(id)
    assert.is_true(got.fact.waited > 1 and got.fact.waited < proc.limit(20), got.fact.waited)
    assert.equal("Waiting for backup lock", got.fact.server)
    assert.matches(("^#%d 'ends' has run for %%S+ s on %%S+ %%(pid %d%%), and its verdict has waited for [%%d.]+ s, "
      .. "for the database does not take it: Waiting for backup lock$"):format(id, h.pid), got.text)
    for _ = 1, 20 do
      assert.equal("running", (select(2, handle:why(other)).kind))
      assert.equal("unsettled", (select(2, handle:why(id)).kind))
    end
    local late = handle:stats().holders[1].unsettled
    assert.same({ 1, "Waiting for backup lock" }, { late.n, late.server })
    assert.is_true(late.oldest >= got.fact.waited)
    local _, out = proc.nightshift({ "status" }, url)
    assert.matches("\nthe database does not take 1 verdict of holder %d+, the oldest for [%d.]+s: "
      .. "Waiting for backup lock\n", out)
    _, out = proc.nightshift({ "status", "--json" }, url)
    assert.equal(1, nightshift.decode(out).holders[1].unsettled.n)
    assert(locker:execute "UNLOCK TABLES")
    eventually(function() return handle:job(id).state == "done" end)
    assert.equal("running", (select(2, handle:why(other)).kind))
    eventually(function() return not handle:stats().holders[1].unsettled end)
    _, out = proc.nightshift({ "status" }, url)
    assert.is_nil(out:find("does not take", 1, true))
    ended(other, "done")
  end)

  it("does not make of a job that began behind it one that waits for its batch", function()
    local id, other = started("ends", "runs")
    assert(locker:execute "FLUSH TABLES WITH READ LOCK")
    go(ends)
    owed(id)
    eventually(function()
      return handle:execute [[
        SELECT MAX(claimed) + 2e6 < UNIX_TIMESTAMP(NOW(6)) * 1e6 AS late FROM nightshift_lease]][1].late == 1
    end)
    assert.equal("running", (select(2, handle:why(other)).kind))
    assert(locker:execute "UNLOCK TABLES")
    ended(other, "done")
  end)

  it("is told of whatever it is", function()
    local one, two = started("fails", "breaks")
    assert(locker:execute "LOCK TABLES nightshift_attempt WRITE")
    go(ends)
    eventually(function() return (handle:stats().holders[1].unsettled or {}).n == 2 end)
    owed(one)
    owed(two)
    assert(locker:execute "UNLOCK TABLES")
    eventually(function() return handle:job(two).state == "scheduled" end)
    ended(one, "scheduled")
  end)

  it("is told of while somebody holds its job's row", function()
    local id = started "ends"
    assert(locker._handle:begin())
    assert(locker:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id))
    go(ends)
    assert.is_true(owed(id).fact.waited > 1)
    assert(locker._handle:rollback())
    ended(id, "done")
  end)

  it("is nothing that an account knows that does not see the host's sessions", function()
    local id = started "ends"
    local weak <close> = assert(nightshift.open(server:user(url, "SELECT, INSERT, UPDATE, DELETE, EXECUTE")))
    assert(locker:execute "FLUSH TABLES WITH READ LOCK")
    go(ends)
    owed(id)
    assert.equal("running", (select(2, weak:why(id)).kind))
    assert.is_nil(weak:stats().holders[1].unsettled)
    assert(locker:execute "UNLOCK TABLES")
    ended(id, "done")
  end)
end)

-- A host that had just become busy looked at other holders up to ten seconds later. Its next
-- look had been set while it listened, and it listened no more.
describe("a host whose workers have all become busy", function()
  local SCRIPT = [[
local core = require "nightshift.core"
return { long = function() core.sleep(60) end }]]

  it("sees at once that another has died", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local one = host.start(url, SCRIPT, { "--queues", "one" })
    nst.sleep(1.5) -- its first looks are over: idle, it has the next one in ten seconds
    local other = host.start(url, SCRIPT, { "--queues", "other", "--workers", "1" })
    local theirs = assert(handle:queue "other":push "long")
    local function state(id) return assert(handle:job(id)).state end
    eventually(function() return state(theirs) == "running" end)
    local items = {}
    for i = 1, 10 do items[i] = { "long", i } end
    local ids = assert(handle:queue "one":push_many(items))
    eventually(function()
      local n = 0
      for _, id in ipairs(ids) do n = n + (state(id) == "running" and 1 or 0) end
      return n == 2
    end)
    local killed = nightshift.clock()
    other:signal "KILL"
    eventually(function() return state(theirs) ~= "running" end)
    local late = nightshift.clock() - killed
    assert.is_true(late < proc.limit(9), ("seen after %.1f s"):format(late))
    one:signal "KILL"
  end)
end)

-- A host that has lost touch with the database starts nothing.
it("a job that was sent ahead waits until the host is back in touch", function()
  -- `cut` stops its host in the middle of short jobs and turns the host's clock of the database
  -- back. That is the word in front of the slots.
  local SCRIPT = [[
local function cut(job)
  os.execute("kill -STOP " .. job.payload.host)
  local start, size
  for line in io.lines "/proc/self/maps" do
    local from, to = line:match "^(%x+)%-(%x+) rw%-s 0+ 00:%x+ %d+ +/dev/zero"
    from, to = tonumber(from or "0", 16), tonumber(to or "0", 16)
    if to > 0 and (not size or to - from > size) then start, size = from, to - from end -- of all places
  end
  local memory <close> = assert(io.open("/proc/self/mem", "r+b"))
  memory:seek("set", start)
  memory:write(("i8"):pack(1))
  memory:close()
  print "cut"
end
return {
  cut = cut,
  noop = function() end,
  mark = function(job)
    local file <close> = io.open(job.payload, "a")
    file:write "started\n"
  end,
}]]

  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local h = host.start(url, SCRIPT, { "--workers", "1" })
  local path = fixture.dir() .. "/marks"
  io.open(path, "w"):close()
  local function marks()
    local _, n = io.open(path):read "a":gsub("\n", "")
    return n
  end
  local items = {}
  for i = 1, 1000 do items[i] = { "noop" } end -- the host learns that jobs are short
  items[1001] = { "cut", { host = h.pid } }
  for i = 1002, 1100 do items[i] = { "mark", path } end
  assert(q:push_many(items))
  h:wait_line "^cut"
  nst.sleep(0.5)
  assert.equal(0, marks())
  h:signal "CONT"
  eventually(function() return marks() == 99 end, 20)
  eventually(function() return #handle:execute "SELECT id FROM nightshift_finished" == 1100 end)
  h:signal "TERM"
  assert.equal(0, h:wait())
end)
