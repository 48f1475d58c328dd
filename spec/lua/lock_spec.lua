-- db:lock and db:semaphore: which caller is let in, which waits, and which slots are held when
-- something goes wrong.

local core = require "nightshift.core"
local host = require "spec.support.host"
local lab = require "spec.support.db".lab
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local server = require "spec.support.db"

describe("slots:", function()
  local a, b
  lab.handles(2, function(...) a, b = ... end)
  after_each(function() lab.sql("DELETE FROM `" .. lab.database .. "`.nightshift_slot") end)

  local function rows()
    return tonumber((lab.sql("SELECT COUNT(*) FROM `" .. lab.database .. "`.nightshift_slot")))
  end

  local function code_of(_, _, code) return code end

  local function names(db)
    local list = {}
    for i, row in ipairs(db:slots()) do list[i] = row.name end
    return list
  end

  describe("a lock", function()
    it("runs the function while it is held, and gives what that returned", function()
      local got = table.pack(a:lock "report"(function(x, y)
        assert.equal("BUSY", code_of(b:lock("report"):acquire(0)))
        return x, nil, y
      end, 1, 2))
      assert.same({ 1, nil, 2, n = 3 }, got)
      assert.equal(0, rows())
      assert(b:lock("report"):acquire(0))
    end)

    it("is given back when the function raises, and the error passes with its line", function()
      local ok, message = pcall(a:lock "report", function() error "no luck" end)
      assert.is_false(ok)
      assert.truthy(message:find "lock_spec%.lua:%d+: no luck$")
      assert.equal(0, rows())
    end)

    it("is given back when the function is a coroutine's that is closed inside", function()
      local thread = coroutine.create(function() a:lock "report"(function() coroutine.yield() end) end)
      coroutine.resume(thread)
      assert.equal(1, rows())
      coroutine.close(thread)
      assert.equal(0, rows())
    end)

    it("is taken and given back by hand", function()
      local l = a:lock "report"
      assert.is_false(l:is_held())
      assert.equal(l, l:acquire())
      assert.is_true(l:is_held())
      assert.equal("nightshift.lock 'report' (held)", tostring(l))
      assert.equal("BUSY", code_of(b:lock("report"):acquire(0)))
      assert.is_true((l:release()))
      assert.is_false(l:is_held())
      assert(b:lock("report"):acquire(0))
    end)

    it("is given back at the end of its scope", function()
      do
        local held <close> = assert(a:lock("report"):acquire()) -- luacheck: ignore 211
        assert.equal(1, rows())
      end
      assert.equal(0, rows())
      do
        local never <close> = a:lock "report" -- luacheck: ignore 211
      end
    end)

    it("is given back when its handle is closed or collected, and not before", function()
      a:lock("kept"):acquire()
      lab.open():lock("dropped"):acquire()
      collectgarbage()
      collectgarbage()
      assert.same({ "kept" }, names(b))
      a:close()
      assert.same({}, names(b))
    end)

    it("is one, whichever object asks, and a semaphore of one", function()
      local one, two = a:lock "report", a:lock "report"
      assert(one:acquire())
      assert.equal("BUSY", code_of(two:acquire(0)))
      assert.equal("BUSY", code_of(a:semaphore("report", 1):acquire(0)))
      assert.error_matches(function() one:acquire() end, "held by this very object")
      assert(one:release())
      assert.error_matches(function() one:release() end, "is not held by this object")
      assert(two:acquire(0))
    end)

    it("has a name of its own: case, blanks, quotes, 190 characters of any language", function()
      for _, name in ipairs { "x", "X", "x ", " x", "%", "'", "\\", ("ж"):rep(190), ("😀"):rep(190) } do
        assert(a:lock(name):acquire(0))
      end
      assert.equal(9, rows())
    end)
  end)

  describe("a semaphore", function()
    it("lets in as many as there are slots", function()
      local held = {}
      for i = 1, 3 do held[i] = assert((i % 2 == 0 and a or b):semaphore("gpu", 3):acquire(0)) end
      assert.equal("BUSY", code_of(a:semaphore("gpu", 3):acquire(0)))
      assert(held[2]:release())
      assert(b:semaphore("gpu", 3):acquire(0))
    end)

    it("has as many slots as the one who asks says", function()
      for _ = 1, 20 do assert(a:semaphore("gpu", 20):acquire(0)) end
      assert.equal("BUSY", code_of(b:semaphore("gpu", 3):acquire(0)))
      assert(b:semaphore("gpu", 21):acquire(0))
      assert.equal("ran", b:semaphore("many", 10000)(function() return "ran" end))
    end)
  end)

  describe("who finds nothing free", function()
    it("is told so at once, or when the time is up", function()
      local held <close> = assert(a:lock("report"):acquire()) -- luacheck: ignore 211
      local start = nst.clock()
      local none, message, code = b:lock("report", { timeout = 0 })(error)
      assert.same({ nil, "BUSY" }, { none, code })
      assert.truthy(message:find("report", 1, true))
      none, message, code = b:lock("report", { timeout = "300ms" })(error)
      assert.same({ nil, "BUSY" }, { none, code })
      assert.truthy(message:find("waited 0.3 s", 1, true))
      assert.equal("BUSY", code_of(b:lock("report"):acquire "100ms"))
      assert.is_true(nst.clock() - start >= 0.4)
    end)

    it("waits for it", function()
      local held = assert(a:lock("report"):acquire())
      local waiter = proc.start { proc.lua, fixture.file("waiter.lua", [[
      local db = assert(require "nightshift".open(arg[1]))
      io.stdout:setvbuf "no"
      print "asks"
      print(db:lock("report")(function() return "let in" end))]]), lab.url() }
      waiter:wait_line "asks"
      nst.sleep(0.3) -- it has looked by now
      assert.falsy(waiter:text():find "let in")
      assert(held:release())
      waiter:wait_line "let in"
      assert.equal(0, waiter:wait())
    end)

    it("goes behind those who have waited", function()
      local held = assert(a:lock("report"):acquire())
      local waiter = proc.start { proc.lua, fixture.file("waiter.lua", [[
      local db = assert(require "nightshift".open(arg[1]))
      io.stdout:setvbuf "no"
      db:lock("report")(function() print "let in" end)]]), lab.url() }
      eventually(function()
        return a:execute("SELECT IS_USED_LOCK(CONCAT('nightshift-next:', MD5(DATABASE()), MD5(?))) AS u",
          "report")[1].u
      end)
      assert(held:release())
      assert(held:acquire())
      assert.truthy(waiter:text():find "let in")
      assert.equal(0, waiter:wait())
    end)

    it("does not wait for ever for one that was stopped while it was next", function()
      local held = assert(a:lock("report"):acquire())
      assert.equal(1, b._handle:execute(
        "SELECT GET_LOCK(CONCAT('nightshift-next:', MD5(DATABASE()), MD5(?)), 0) AS got", "report")[1].got)
      assert(held:release())
      assert(held:acquire(0)) -- who tries once takes what there is
      assert(held:release())
      assert(held:acquire(proc.limit(20)))
    end)
  end)

  describe("what a handle holds", function()
    it("outlives its connection", function()
      local l = assert(a:lock("report"):acquire())
      lab.sql("KILL " .. a:execute("SELECT CONNECTION_ID() AS id")[1].id)
      assert.equal("BUSY", code_of(b:lock("report"):acquire(0)))
      assert.is_true(l:is_held())
      assert.is_true((l:release()))
      assert(b:lock("report"):acquire(0))
    end)

    it("is free once the handle's holder has been taken for dead, and then its release is STALE", function()
      local l = assert(a:lock("report"):acquire())
      lab.sql(("UPDATE `%s`.nightshift_holder SET dead = 1 WHERE id = %d"):format(lab.database, a:slots()[1].holder))
      assert.same({}, names(a))
      local other = assert(b:lock("report"):acquire(0))
      assert.equal("STALE", code_of(l:release()))
      assert.is_true(other:is_held())
      assert.same({ "report" }, names(b))
    end)

    it("is free when the handle's holder is not known any more, and the handle goes on as another", function()
      local l = assert(a:lock("report"):acquire())
      local holder = a:slots()[1].holder
      lab.sql(("DELETE FROM `%s`.nightshift_holder"):format(lab.database))
      assert(assert(b:lock("report"):acquire(0)):release())
      assert(a:lock("report"):acquire(0))
      assert.is_false(l:is_held())
      assert.is_true(a:slots()[1].holder > holder)
    end)

    it("is none of a forked child's business", function()
      local l = assert(a:lock("report"):acquire())
      local pid = nst.fork(function()
        assert(not l:is_held())
        assert(select(3, a:lock("report"):acquire(0)) == "BUSY")
        assert(select(3, l:release()) == "STALE")
        assert(a:lock("mine"):acquire(0))
        a:close()
      end)
      local how, status
      eventually(function()
        how, status = nst.reap(pid)
        return how
      end)
      assert.same({ "exit", 0 }, { how, status })
      assert.same({ "report" }, names(b))
      assert.is_true((l:release()))
    end)

    it("is not taken inside a transaction, and given back with its end", function()
      local l = assert(a:lock("report"):acquire())
      assert(a:transaction(function()
        assert.equal("STATE", code_of(a:lock("other"):acquire(0)))
        assert.is_true((l:release()))
        assert.is_false(l:is_held())
        assert.equal("BUSY", code_of(b:lock("report"):acquire(0)))
      end))
      assert.equal(0, rows())
      assert(l:acquire())
      assert.error(function()
        a:transaction(function()
          l:release()
          error "back"
        end)
      end)
      assert.equal(0, rows())
    end)

    it("is listed", function()
      local before = assert(a:stats()).now
      local held = { assert(a:lock("b"):acquire()), assert(b:semaphore("a", 1):acquire()) }
      local list = a:slots()
      assert.equal(2, #held)
      assert.same({ "a", 1, "b", 1 }, { list[1].name, list[1].slot, list[2].name, list[2].slot })
      assert.is_nil(list[1].job)
      assert.is_true(list[1].holder ~= list[2].holder and list[2].since >= before)
      local _, out = proc.nightshift({ "status", "--json" }, lab.url())
      assert.equal(list[1].holder, nightshift.decode(out).slots[1].holder)
      _, out = proc.nightshift({ "status" }, lab.url())
      assert.truthy(out:find(("b +1 +holder %d"):format(list[2].holder)))
    end)

    it("leaves rows behind when nobody asks for it again, and they are pruned", function()
      assert(a:lock("one-off"):acquire())
      lab.sql(("DELETE FROM `%s`.nightshift_holder"):format(lab.database))
      assert.equal(1, rows())
      local held = assert(b:lock("held"):acquire())
      assert(b:prune {})
      assert.equal(1, rows())
      assert.is_true(held:is_held())
    end)
  end)

  describe("a server that was away", function()
    it("lets nobody in where somebody is, and gets what was given back meanwhile", function()
      local own = server.server()
      local url, name = own:fresh()
      local inside, gone = assert(nightshift.open(url)), assert(nightshift.open(url))
      local held, released = assert(inside:lock("kept"):acquire()), assert(gone:lock("given"):acquire())
      eventually(function() -- servers that start within two seconds of each other look like one
        return tonumber(own:sql("SHOW GLOBAL STATUS LIKE 'Uptime'"):match "%d+") >= 3
      end)
      own:kill()
      assert.equal("GONE", code_of(released:release()))
      assert.is_false(released:is_held())
      assert.equal("GONE", code_of(released:acquire(5)))
      own:start()
      local other <close> = assert(nightshift.open(url))
      assert.equal("BUSY", code_of(other:lock("kept"):acquire(1.5))) -- no connection holds it, but a living handle
      assert.is_true((held:release()))
      assert.equal("1", own:sql("SELECT COUNT(*) FROM nightshift_slot", name))
      assert(gone:ping())
      assert.equal("0", own:sql("SELECT COUNT(*) FROM nightshift_slot", name))
      assert(released:acquire(0))
      inside:close()
      gone:close()
    end)
  end)

  describe("twenty programs", function()
    -- Reads a number in a file and writes it back plus one: an owner that comes in between shows.
    -- usage: URL FOLDER ROUNDS, and the round in which to die
    local PROGRAM = [[
    local core = require "nightshift.core"
    local db = assert(require "nightshift".open(arg[1]))
    local folder, rounds, last = arg[2], tonumber(arg[3]), tonumber(arg[4])
    local lock = db:lock("sum", { timeout = "2m" })
    local function add(round)
      local file = io.open(folder .. "/sum")
      local sum = file and file:read "n" or 0
      if round == last then os.execute("kill -9 " .. (io.open "/proc/self/stat":read "a"):match "^%d+") end
      core.sleep(0.001)
      local out = assert(io.open(folder .. "/new", "w"))
      out:write(sum + 1)
      out:close()
      os.rename(folder .. "/new", folder .. "/sum")
      local seen = io.open(folder .. "/seen", "ab")
      seen:write(sum, "\n")
      seen:close()
      return true
    end
    for round = 1, rounds do assert(lock(add, round)) end
    db:close()]]

    it("that ask for one lock, some of which are killed inside, come in one at a time, without an error", function()
      local folder, program = fixture.dir(), fixture.file("adder.lua", PROGRAM)
      local before = lab.sql "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'"
      local programs = {}
      for i = 1, 20 do
        programs[i] = proc.start { proc.lua, program, lab.url(), folder, 6, i % 4 == 0 and i // 4 or 0 }
      end
      for i, p in ipairs(programs) do assert.equal(i % 4 == 0 and "signal 9" or 0, p:wait(120), p:transcript()) end
      local seen = {}
      for line in io.lines(folder .. "/seen") do seen[#seen + 1] = tonumber(line) end
      assert.equal(15 * 6 + 0 + 1 + 2 + 3 + 4, #seen)
      table.sort(seen)
      for i, sum in ipairs(seen) do assert.equal(i - 1, sum) end
      assert(assert(a:lock("sum"):acquire(proc.limit(20))):release()) -- of one that was killed last of all
      assert.same({}, a:slots())
      assert.equal(before, lab.sql "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
    end)
  end)

  describe("bad arguments", function()
    for what, call in pairs {
      ["must be a string, got number"] = function() a:lock(5) end,
      ["must be a string, got nil"] = function() a:semaphore() end,
      ["is empty"] = function() a:lock "" end,
      ["control character at byte 2"] = function() a:lock "a\nb" end,
      ["not valid UTF%-8"] = function() a:lock "\xff" end,
      ["191 characters, the limit is 190"] = function() a:lock(("ж"):rep(191)) end,
      ["whole number, got nil"] = function() a:semaphore "x" end,
      ["whole number from 1 to 10000, got 0"] = function() a:semaphore("x", 0) end,
      ["from 1 to 10000, got 10001"] = function() a:semaphore("x", 10001) end,
      ["from 1 to 10000, got 1.5"] = function() a:semaphore("x", 1.5) end,
      ["unknown option 'timeot'; did you mean 'timeout'"] = function() a:lock("x", { timeot = 1 }) end,
      ["timeout: bad duration"] = function() a:lock("x", { timeout = "5 parsecs" }) end,
      ["timeout must be seconds"] = function() a:lock("x", { timeout = true }) end,
      ["acquire: the timeout"] = function() a:lock("x"):acquire(-1) end,
      ["wants a function, got nil"] = function() a:lock "x"() end,
    } do
      it("raise: " .. what, function()
        local ok, message = pcall(call)
        assert.is_false(ok)
        assert.truthy(message:find("^spec/lua/lock_spec%.lua:%d+: nightshift: .*" .. what), message)
        assert.equal(0, rows())
      end)
    end

    it("are refused by the core, too", function()
      local handle <close> = assert(core.open { url = lab.url() })
      for _, given in ipairs { { "", 1 }, { "a\0b", 1 }, { ("ж"):rep(191), 1 }, { "x", 0 }, { "x", 10001 } } do
        assert.equal("INVALID", code_of(handle:slot_acquire(table.unpack(given))))
      end
      assert.equal("STALE", code_of(handle:slot_release(1)))
      assert.is_false(handle:slot_holds(1))
      handle:slot_give_up "x"
    end)
  end)
end)

-- A program that held a lock and took it again through another object waited for itself, 30
-- seconds unless told. And who else held one was not said.
describe("a slot that is held by whoever asks for it", function()
  local url
  before_each(function() url = server.fresh() end)

  local function at_once(fn, ...)
    local start = nst.clock()
    local none, message, code = fn(...)
    assert.is_true(nst.clock() - start < proc.limit(10)) -- of itself: for ever
    assert.is_nil(none)
    return message, code
  end

  it("is STATE at once, for a lock and for all slots of a semaphore", function()
    local handle <close> = assert(nightshift.open(url))
    local held <close> = assert(handle:lock("a"):acquire())
    local message, code = at_once(handle:lock "a", function() end)
    assert.equal("STATE", code)
    assert.is_truthy(message:find("'a' is held by this handle already", 1, true), message)
    local one <close> = assert(handle:semaphore("s", 2):acquire())
    do
      local two <close> = assert(handle:semaphore("s", 2):acquire())
      message, code = at_once(handle:semaphore("s", 2), function() end)
      assert.equal("STATE", code)
      assert.is_truthy(message:find("all 2 slots of 's' are held by this handle already", 1, true), message)
      assert.is_true(two:is_held())
    end
    local again <close> = assert(handle:semaphore("s", 2):acquire())
    assert.is_true(held:is_held() and one:is_held() and again:is_held())
  end)

  it("is BUSY for one who does not wait, and for one of two", function()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local held <close> = assert(handle:semaphore("s", 2):acquire())
    local also <close> = assert(other:semaphore("s", 2):acquire())
    local message, code = at_once(function() return handle:semaphore("s", 2):acquire(0.05) end)
    assert.equal("BUSY", code)
    assert.is_truthy(message:find("all 2 slots of 's' are taken", 1, true), message)
    local lock <close> = assert(handle:lock("a"):acquire())
    assert.equal("BUSY", select(2, at_once(function() return handle:lock("a"):acquire(0) end)))
    assert.is_true(held:is_held() and also:is_held() and lock:is_held())
  end)

  it("tells who holds a lock: a program, or a job", function()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local held = assert(other:lock("a"):acquire())
    local message, code = at_once(function() return handle:lock("a"):acquire(0.05) end)
    assert.equal("BUSY", code)
    assert.is_truthy(message:find(("'a' is held by process %d on "):format((nst.ids())), 1, true), message)
    assert(held:release())
    local id = assert(handle:queue("q"):push("holds", 1))
    local p = host.start(url, [[return {
      holds = function(job)
        local db = job:db()
        return db:lock "a" (function()
          local none, message, code = db:lock("a"):acquire()
          assert(none == nil and code == "STATE" and message:find("held by this job already", 1, true), message)
          job:log "has it"
          while not job:cancelled() do require "nightshift.core".sleep(0.01) end
        end)
      end }]])
    p:wait_line "has it"
    message, code = at_once(function() return handle:lock("a"):acquire(0.05) end)
    assert.equal("BUSY", code)
    assert.is_truthy(message:find(("'a' is held by job %d"):format(id), 1, true), message)
  end)
end)

-- Locks and semaphores in handlers: slots belong to the running job, whatever
-- happens to its worker.
describe("slots of jobs:", function()
  local url, handle, q, folder

  with_database(function(...)
    handle, q, url = ...
    folder = fixture.dir()
  end)

  -- In `add` a number in a file is read and written back plus one: an owner that comes in between
  -- shows. `enter` tells when it comes and goes. Both may kill their
  -- worker while they are inside, once.
  local SCRIPT = [[
local core = require "nightshift.core"
local FOLDER = "%s"
local function die() os.execute("kill -9 " .. (io.open "/proc/self/stat":read "a"):match "^%%d+") end
local function append(name, ...)
  local file <close> = assert(io.open(FOLDER .. name, "ab"))
  file:write(table.concat({ ... }, " "), "\n")
end
local function add(job)
  local file <close> = io.open(FOLDER .. "/sum")
  local sum = file and file:read "n" or 0
  if job.payload.dies and job.crashes == 0 then die() end
  core.sleep(0.002)
  local new = FOLDER .. "/sum." .. job.id
  local out <close> = assert(io.open(new, "w"))
  out:write(sum + 1)
  out:close()
  os.rename(new, FOLDER .. "/sum")
  append("/seen", sum)
end
local function free(job, name)
  return (job:db():lock(name):acquire(0)) ~= nil
end
local shared
return {
  add = function(job)
    if job.payload.careless then return add(job) end
    assert(job:db():lock("sum", { timeout = "2m" })(function() add(job) return true end))
  end,
  enter = function(job)
    assert(job:db():semaphore("room", 3, { timeout = "2m" })(function()
      append("/room", "+1")
      core.sleep(0.005)
      append("/room", "-1")
      if job.payload.dies and job.crashes == 0 then die() end
      return true
    end))
  end,
  crash = function(job)
    local ok = free(job, "mine")
    if job.crashes == 0 then die() end
    return ok
  end,
  keep = function(job)
    shared = shared or job:db():lock "kept"
    assert(shared:acquire(30))
    print("keeps " .. job.id)
    if job.payload == "long" then core.sleep(60) end
    if job.payload == "fail" then error "no" end
    if job.payload == "again" then return job:again(3600) end
    return "kept"
  end,
}]]

  local function script() return (SCRIPT:format(folder)) end

  local function push_all(name, n, payload)
    local items = {}
    for i = 1, n do items[i] = { name, payload(i), { max_crashes = 10 } } end
    assert(q:push_many(items))
  end

  -- Two hosts work until nothing is left.
  local function drain(workers)
    local args = { "--drain-within", "500ms", "--workers", tostring(workers) }
    local hosts = { host.spawn(url, script(), args), host.spawn(url, script(), args) }
    for _, h in ipairs(hosts) do assert.equal(0, h:wait(120), h:transcript()) end
  end

  local function numbers(name)
    local list = {}
    for line in io.lines(folder .. name) do list[#list + 1] = tonumber(line) end
    return list
  end

  describe("a lock of two hosts with twenty workers", function()
    it("lets in one at a time, when workers are killed inside, too", function()
      push_all("add", 80, function(i) return { dies = i % 20 == 0 } end)
      drain(10)
      local seen = numbers "/seen"
      table.sort(seen)
      for i = 1, 80 do assert.equal(i - 1, seen[i]) end
      assert.equal(80, #seen)
      assert.equal("80", (handle:execute "SELECT SUM(outcome = 'done') AS n FROM nightshift_finished")[1].n)
      assert.equal(4, (handle:execute "SELECT COUNT(*) AS n FROM nightshift_attempt")[1].n)
      assert.same({}, handle:slots())
    end)

    it("is needed: without it the same detector fires", function()
      push_all("add", 80, function() return { careless = true } end)
      drain(10)
      local seen, twice = {}, 0
      for _, n in ipairs(numbers "/seen") do
        twice = twice + (seen[n] and 1 or 0)
        seen[n] = true
      end
      assert.is_true(twice > 0)
    end)
  end)

  describe("a semaphore of three", function()
    it("lets in three at a time and not more", function()
      push_all("enter", 80, function(i) return { dies = i % 25 == 0 } end)
      drain(10)
      local inside, most = 0, 0
      for _, step in ipairs(numbers "/room") do
        inside = inside + step
        most = math.max(most, inside)
      end
      assert.equal(0, inside)
      assert.equal(3, most)
      assert.same({}, handle:slots())
    end)
  end)

  describe("what a job holds", function()
    local function work() return host.start(url, script(), { "--workers", "1" }) end

    it("is free for its next run when its worker was killed", function()
      local h = work()
      local id = q:push "crash"
      eventually(function() return handle:job(id).state == "done" end)
      assert.same({ 1, true }, { handle:job(id).crashes, handle:job(id).result })
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("is the job's while it runs, and free with its verdict, whatever that is", function()
      local h = work()
      for i, payload in ipairs { "done", "fail", "again", "done" } do
        local id = q:push("keep", payload)
        h:wait_line("^keeps " .. id)
        eventually(function() return handle:job(id).state ~= "running" and handle:job(id).state ~= "ready" end)
        assert.same({}, handle:slots(), i)
        assert.equal(payload == "done" and "kept" or nil, handle:job(id).result)
      end
      assert(handle:lock("kept")(function() return true end))
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("is free for whoever waits when its host was killed", function()
      local h = work()
      local id = q:push("keep", "long")
      h:wait_line("^keeps " .. id)
      h:signal "KILL"
      assert(handle:lock("kept"):acquire(proc.limit(20))) -- no other process is there to notice
      assert.equal(2, handle:job(id).run)
    end)

    it("is free at once when it is cancelled", function()
      local h = work()
      local id = q:push("keep", "long")
      h:wait_line("^keeps " .. id)
      local slot = handle:slots()[1]
      assert.same({ "kept", id, 1, nil }, { slot.name, slot.job, slot.run, slot.holder })
      assert.equal("BUSY", select(3, handle:lock("kept"):acquire(0)))
      assert(handle:cancel(id))
      assert(handle:lock("kept"):acquire(0))
      h:signal "KILL"
    end)
  end)
end)
