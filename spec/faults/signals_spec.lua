-- Signals at bad moments: in the first milliseconds, again and again, and in
-- the middle of every system call.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local url, name

before_each(function() url, name = db.fresh() end)

local function sql(text) return db.sql(text, name) end

-- Processes with this text in their arguments.
local function with_argument(text)
  local list = {}
  for path in io.popen "ls -d /proc/[0-9]* 2>/dev/null":lines() do
    local file = io.open(path .. "/cmdline", "rb")
    local line = file and file:read "a"
    if file then file:close() end
    if line and line:find(text, 1, true) then list[#list + 1] = path end
  end
  return list
end

describe("SIGTERM to a host that is being born", function()
  local function leaves_nothing(delay, script)
    local path = fixture.file("jobs.lua", script)
    local h = host.spawn(url, path)
    nst.sleep(delay)
    h:signal "TERM"
    local how = h:wait(20)
    assert.is_true(how == 0 or how == "signal 15", how)
    eventually(function() return #with_argument(path) == 0 end)
    return how
  end

  it("at any moment leaves no process, no job and nobody who holds one", function()
    local handle <close> = assert(nightshift.open(url))
    local id = assert(handle:queue "q":push "noop")
    for i = 0, 15 do leaves_nothing(i * i * 0.0005, "return { other = function() end }") end
    eventually(function() -- the server hears of an end a moment later
      return handle:rescue { wait = 0 } and sql "SELECT COUNT(*) FROM nightshift_holder WHERE dead IS NULL" == "0"
    end)
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
    assert(handle:cancel(id))
  end)

  it("while its handlers take for ever to load ends it at once", function()
    local start = nst.clock()
    assert.equal("signal 15", leaves_nothing(0.2, "while true do end"))
    assert.is_true(nst.clock() - start < proc.limit(20))
  end)
end)

describe("SIGTERM five times", function()
  it("in a row gives the running job back, whole, and leaves nobody", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local h = host.start(url, [[return { sleep = function() os.execute "echo started; sleep 60" end }]])
    local id = q:push "sleep"
    h:wait_line "^started"
    local family = host.family(h.pid)
    h:signal "TERM" -- the kernel makes one of several that are not seen yet
    h:wait_line "host.drain"
    for _ = 1, 4 do
      h:signal "TERM"
      nst.sleep(0.002)
    end
    local how = h:wait(20)
    assert.is_true(how == 0 or how == 1, how) -- 1: it did not wait for its last verdicts
    eventually(function()
      for _, pid in ipairs(family) do
        if host.name(pid) then return false end
      end
      return true
    end)
    eventually(function() return handle:rescue { wait = 0 } and handle:job(id).state == "ready" end)
    local job = handle:job(id)
    assert.same({ 0, 0 }, { job.attempts, job.crashes })
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
  end)
end)

describe("a deployment under load", function()
  it("of five hosts, one after the other, loses nothing and runs nothing twice", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local ran = fixture.file("ran", "")
    local script = ([[return { note = function(job)
      local file <close> = io.open(%q, "a")
      file:write(job.id, "\n")
      os.execute "sleep 0.002"
    end }]]):format(ran)
    local items, ids = {}, {}
    for i = 1, 100 do items[i] = { "note", i } end
    local function push() table.move(assert(q:push_many(items)), 1, #items, #ids + 1, ids) end
    push()
    local old = host.start(url, script)
    for i = 1, 5 do
      push()
      local new = host.start(url, script)
      push()
      eventually(function() return tonumber((sql "SELECT COUNT(*) FROM nightshift_finished")) > i * 20 end, 60)
      old:signal "TERM"
      assert.equal(0, old:wait())
      old = new
    end
    eventually(function() return sql "SELECT COUNT(*) FROM nightshift_job" == "0" end, 60)
    old:signal "TERM"
    assert.equal(0, old:wait())
    local seen = {}
    for id in io.lines(ran) do seen[id] = (seen[id] or 0) + 1 end
    for _, id in ipairs(ids) do assert.equal(1, seen[tostring(id)], id) end
    assert.equal(tostring(#ids), (sql "SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'"))
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_attempt")
  end)
end)

describe("a signal in every other system call", function()
  it("makes no verb of a program fail", function()
    local status, out, err = proc.run { proc.lua, "-e", ([[
      require "meddle"
      local nightshift = require "nightshift"
      local db = assert(nightshift.open(%q))
      local q = db:queue "q"
      local n = 0
      for i = 1, 150 do
        assert(q:push("job", { n = i }))
        assert(q:push("later", ("x"):rep(100000), { delay = 60 }))
        local job = assert(q:claim())
        assert(job:progress(0.5))
        assert(db:transaction(function(tx) return assert(tx:execute "SELECT 1 AS n")[1].n end) == 1)
        assert(job:ack(job.payload))
        n = n + 1
      end
      assert(not q:claim { wait = 0.5 })
      assert(db:lock "l"(function() return true end))
      assert(db:stats().counters.reconnects == 0)
      print(n)]]):format(url), timeout = 180 }
    assert.same({ 0, "150\n" }, { status, out }, err)
  end)

  local STORMY = [[
    local nightshift = require "nightshift"
    return {
      child = function(job) return job.payload end,
      work = function(job)
        require "meddle"
        job:log(("x"):rep(5000))
        job:spawn("child", ("y"):rep(200000))
        job:progress(0.5, "half")
        assert(job:db():execute "SELECT 1")
        local n = 0
        for i = 1, 1e6 do n = n + i % 2 end
        return { n, ("z"):rep(300000) }
      end,
    }]]

  local function works(env)
    local handle <close> = assert(nightshift.open(url))
    local items = {}
    for i = 1, 20 do items[i] = { "work", i, { max_attempts = 1 } } end
    assert(handle:queue "q":push_many(items))
    local h = host.start(url, STORMY, nil, env)
    eventually(function()
      return sql "SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done' AND crashes = 0" == "40"
    end, 180)
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_attempt")
    assert.is_nil(h:transcript():find "level=error", h:transcript())
  end

  it("makes no worker fail", function() works {} end)

  it("makes no host fail", function()
    if os.getenv "SAN" then return pending "sanitizers want to be loaded first" end
    works { LD_PRELOAD = proc.build .. "/meddle.so", MEDDLE_STORM = 1 }
  end)
end)
