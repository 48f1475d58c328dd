-- Ctrl-C ended a program that waited for a job, or for the server, only when that wait was
-- over: the interpreter raises its error in a debug hook, and no hook ran meanwhile.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

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
        assert(m:lock())
        nst.sleep(60)
      end)
      while m:lock(0) do
        m:unlock()
        nst.sleep(0.01)
      end
      waits()
      m:lock(60)]])
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
