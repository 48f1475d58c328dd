-- Misuse of the library is answered in the caller's words, and names the caller's line. Texts as
-- they are said: errors with a NUL, text that is not UTF-8, characters that cannot be seen.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local server = require "spec.support.db"

-- A method that is not there: the message says which one is like it.
describe("a method that is misspelt", function()
  local db

  setup(function() db = assert(nightshift.open((server.fresh()))) end)
  teardown(function() db:close() end)

  local function message_of(fn, ...)
    local ok, message = pcall(fn, ...)
    assert.is_false(ok)
    return message
  end

  it("raises at the caller's line with the name that was meant", function()
    local q = db:queue "q"
    for expected, fn in pairs {
      ["db has no method 'canel'; did you mean 'cancel'?"] = function() db:canel(1) end,
      ["q has no method 'psuh'; did you mean 'push'?"] = function() q:psuh("a", 1) end,
      ["the lock has no method 'releese'"] = function() db:lock("l"):releese() end,
      ["tx has no method 'excute'; did you mean 'execute'?"] = function()
        assert(db:transaction(function(tx) tx:excute "SELECT 1" end))
      end,
    } do
      local message = message_of(fn)
      assert.is_truthy(message:find(expected, 1, true), message)
      assert.is_truthy(message:find("misuse_spec.lua:", 1, true), message)
    end
  end)
end)

-- The typed reference for editors names exactly what there is.
describe("library/nightshift.lua", function()
  local function documented()
    local found = {}
    local file <close> = assert(io.open "library/nightshift.lua")
    for line in file:lines() do
      local owner, name = line:match "^function ([%w_]+)[.:]([%w_]+)%("
      if not owner then owner, name = line:match "^(nightshift)%.([%w_]+) =" end
      if owner then
        found[owner] = found[owner] or {}
        found[owner][name] = true
      end
    end
    return found
  end

  local function keys(t)
    local list = {}
    for key in pairs(t) do list[#list + 1] = key end
    table.sort(list)
    return list
  end

  local function methods(object)
    local meta = getmetatable(object)
    return meta.methods or meta.__index
  end

  it("has every public function and no other", function()
    local db <close> = assert(nightshift.open((server.fresh())))
    local queue = db:queue "mail"
    queue:push("a", 1)
    local job <close> = queue:claim()
    local tx
    db:transaction(function(t) tx = t end)
    db:execute "CREATE TABLE t (id INT PRIMARY KEY, state INT NOT NULL)"
    local adopted = assert(db:adopt { table = "t",
      status = { column = "state", open = 0, processing = 1, done = 2 } })
    local there = { nightshift = nightshift, Db = methods(db), Queue = methods(queue), Job = methods(job),
      Transaction = methods(tx), Shared = nightshift.shared, Lock = methods(nightshift.mutex "m"),
      DbLock = methods(db:lock "l"), Adopted = methods(adopted), testing = require "nightshift.testing" }
    server.sql "CREATE OR REPLACE DATABASE misuse_test"
    local kit <close> = assert(there.testing.open(server.url "misuse_test"))
    there.Testing = methods(kit)
    local said = documented()
    for owner, functions in pairs(there) do assert.same(keys(functions), keys(said[owner]), owner) end
    assert.same(keys(there), keys(said))
  end)
end)

-- db:signal and db:reprioritise handed what they got to the core: its words for a wrong
-- argument spoke of a line inside Nightshift. So did job:wait for a policy that there is not.
-- Found by the fuzzer.
describe("a wrong argument is the caller's, in words:", function()
  local handle
  setup(function() handle = assert(nightshift.open((server.fresh()))) end)
  teardown(function() handle:close() end)

  for what, call in pairs {
    ["signal: the id must be an integer, got 1.5"] = function() handle:signal(1.5, 1) end,
    ["signal: the id must be an integer, got a string"] = function() handle:signal("1", 1) end,
    ["signal: the name must be a string, got table"] = function() handle:signal(1, 1, {}) end,
    ["reprioritise: the priority must be an integer, got 1.5"] = function() handle:reprioritise(1, 1.5) end,
    ["reprioritise: the priority must be an integer, got nil"] = function() handle:reprioritise(1) end,
    ["reprioritise: the priority must be an integer, got string"] = function() handle:reprioritise(1, "9") end,
  } do
    it(what, function()
      local ok, message = pcall(call)
      assert.is_false(ok)
      assert.is_truthy(message:find(what, 1, true), message)
      assert.is_truthy(message:find("misuse_spec.lua:", 1, true), message)
    end)
  end

  it("a policy of wait that there is not", function()
    assert(handle:queue("wait"):push("a", 1))
    local job = assert(handle:queue("wait"):claim())
    local ok, message = pcall(job.wait, job, { on_fail = "ignore" })
    assert.is_false(ok)
    assert.is_truthy(message:find("wait: on_fail must be", 1, true), message)
    assert(job:release())
  end)

  it("a priority out of range is INVALID", function()
    local id = assert(handle:queue("q"):push("a", 1))
    assert.equal("INVALID", select(3, handle:reprioritise(id, 256)))
  end)
end)

-- Small misuses were answered worse than large ones. A wrong type got a code where all other
-- verbs raise, a raise named a line of the library, and a message had a megabyte. A sequence of
-- nodes overflowed Lua's stack, and the check of parameters took time by the square of their
-- number.
describe("values of the wrong kind:", function()
  local handle, q

  with_database(function(...) handle, q = ... end)

  local HERE = "misuse_spec.lua:%d+: "

  local function assert_raises(pattern, fn, ...)
    local ok, message = pcall(fn, ...)
    assert.is_false(ok)
    assert.matches(HERE .. "nightshift: " .. pattern, message)
  end

  it("a priority far out of range is refused", function()
    local id = assert(q:push "a")
    for _, priority in ipairs { math.mininteger, math.maxinteger, -1, 256 } do
      local ok, message, code = handle:reprioritise(id, priority)
      assert.is_nil(ok)
      assert.matches("the priority must be 0 to 255, got " .. tostring(priority), message, 1, true)
      assert.equal("INVALID", code)
    end
  end)

  it("what a job is to wait for raises when it is no list of ids", function()
    assert_raises("push: after must be a list of job ids, got a number", function() q:push("a", 1, { after = 5 }) end)
    assert_raises("push: after: item 1 must be a job's id, got a string",
      function() q:push("a", 1, { after = { "5" } }) end)
    local id, message, code = q:push("a", 1, { after = { -5 } })
    assert.same({ nil, "INVALID" }, { id, code })
    assert.matches("item 1 must be a job's id, got -5", message, 1, true)
  end)

  it("a flow that is misused names the caller's line", function()
    assert_raises("flow: the flow must be a table, got number", function() handle:flow(5) end)
    assert_raises("flow_many wants a list of flows, got number", function() handle:flow_many(5) end)
  end)

  it("a flow of a long chain, written last first, is checked whole", function()
    local half = 99999
    local halves = { { name = "b", children = {} }, { name = "b", children = {} } }
    for i = 1, 2 * half do
      local after = { "n" .. (i + 1) }
      table.insert(halves[i > half and 2 or 1].children, { name = "a", as = "n" .. i, after = after })
    end
    local last = halves[2].children[half]
    last.after = nil
    -- refused for its root, so that nothing is written: only the check of the graph is long
    local id, message, code = handle:flow { name = "root", children = halves, priority = 999 }
    assert.same({ nil, "INVALID" }, { id, code })
    assert.matches("priority", message)
    last.after = { "n" .. (2 * half - 100) }
    assert_raises("flow: nothing could ever start: 'n199898' waits for 'n199899'.*… %(80 more%) waits for 'n199898'$",
      function() handle:flow { name = "root", children = halves } end)
  end)

  it("a flow with children at every level has its ids in the same shape", function()
    local id, ids = handle:flow { name = "a", children = {
      { name = "b", as = "b" },
      { name = "c", after = { "b" }, children = { { name = "d" }, { name = "e", after = { "b" } } } } } }
    assert.equal(id, ids.id)
    assert.same({ 2, 2 }, { #ids.children, #ids.children[2].children })
    assert.same({ "b", "c", "d", "e" }, { handle:job(ids.children[1].id).name, handle:job(ids.children[2].id).name,
      handle:job(ids.children[2].children[1].id).name, handle:job(ids.children[2].children[2].id).name })
    assert.is_nil(ids.children[1].children)
  end)

  it("a flow may be deeper than the stack of Lua", function()
    local node = { name = "leaf", priority = 999 }
    for _ = 1, 100000 do node = { name = "a", children = { node } } end
    local id, message, code = handle:flow(node)
    assert.same({ nil, "INVALID" }, { id, code })
    assert.matches("priority", message)
  end)

  it("many parameters are checked in time that grows as they do", function()
    local list = {}
    for i = 1, 60000 do list[i] = i end
    local before = nst.clock()
    assert.equal("INVALID", select(3, handle:execute("SELECT 1", table.unpack(list))))
    assert.is_true(nst.clock() - before < 3)
    assert_raises("execute: parameter 3 must be nil, .* got a table",
      function() handle:execute("SELECT ?, ?, ?", 1, nil, {}) end)
  end)

  it("a transaction whose handle was closed inside it says so", function()
    local other = assert(nightshift.open(handle:execute "SELECT 1" and (require "spec.support.db".fresh())))
    assert_raises("transaction: its handle was closed inside it; nothing was committed", function()
      other:transaction(function() other:close() end)
    end)
  end)

  describe("a message", function()
    local LONG = ("x"):rep(1 << 20)

    local function assert_short(message)
      assert.is_string(message)
      assert.is_true(#message < 1000, #message .. " bytes")
      assert.is_truthy(utf8.len(message), "not UTF-8")
    end

    it("does not repeat all of what came in", function()
      assert_short(select(2, nightshift.mutex(LONG):acquire()))
      assert_short(select(2, nightshift.mutex(("\xff"):rep(200)):acquire()))
      assert_short(select(2, nightshift.shared:set(LONG, 1)))
      assert_short(select(2, handle:jobs { state = LONG }))
      assert_short(select(2, handle:jobs { state = "a\xff" }))
      assert_short(select(2, nightshift.open { url = "mysql://h/d?" .. LONG .. "=1" }))
      assert_short(select(2, nightshift.open { url = LONG }))
      assert_short(select(2, nightshift.open { url = "\xff" }))
      assert_short(select(2, pcall(q.push, q, "a", 1, { [LONG] = 1 })))
      assert_short(select(2, q:push("a", 1, { delay = LONG })))
      assert_short(select(2, pcall(handle.lock, handle, LONG)))
    end)
  end)

  describe("an adopted table", function()
    local mapping

    before_each(function()
      assert(handle:execute [[CREATE TABLE mails (id INT PRIMARY KEY AUTO_INCREMENT, state VARCHAR(20) NOT NULL,
      token VARCHAR(60) NULL) ENGINE=InnoDB]])
      mapping = { table = "mails", name = "mail.send", claimed_by = "token",
        status = { column = "state", open = "new", done = "sent", failed = "failed", processing = "busy" } }
    end)

    it("refuses a rate that nobody could wait for", function()
      local t = assert(handle:adopt(mapping))
      local ok, message, code = t:tune { rate = 1e-13 }
      assert.same({ nil, "INVALID" }, { ok, code })
      assert.matches("tune: rate must be", message)
    end)

    it("raises for an order of the wrong type", function()
      mapping.order = 5
      assert_raises("adopt: order must be", function() handle:adopt(mapping) end)
    end)

    it("reads a mapping as it is, whatever its metatable says", function()
      setmetatable(mapping, { __pairs = function() return function(_, k) if not k then return 1, print end end end })
      local t, message = handle:adopt(mapping)
      assert.is_truthy(t, message)
    end)
  end)
end)

-- What stood behind a hole in `after` or in a flow's children was left out in silence. A job
-- did not wait for it, or was never pushed. A node that stood in a flow twice was two jobs, one
-- below itself was a stack overflow, and a child's `parent` was ignored.
describe("what a job waits for", function()
  local handle
  before_each(function() handle = assert(nightshift.open((server.fresh()))) end)
  after_each(function() handle:close() end)

  it("is a list without holes", function()
    local q = handle:queue "q"
    local id = assert(q:push "job")
    for _, after in ipairs { { id, nil, id }, { id, x = id }, { x = id }, { [2] = id } } do
      assert.error_matches(function() q:push("next", 1, { after = after }) end,
        "push: after must be a list without holes")
    end
    local job = assert(q:claim())
    assert.error_matches(function() job:spawn("next", 1, { after = { id, nil, id } }) end, "without holes")
    assert(job:release())
    assert.equal(1, #handle:jobs())
  end)

  it("is a list in a flow, too", function()
    local function refuses(flow, message, ...)
      local more = table.pack(...)
      assert.error_matches(function() handle:flow(flow, table.unpack(more)) end, message, 1, true)
    end
    local leaf = { name = "leaf" }
    refuses({ name = "a", children = { leaf, nil, { name = "b" } } },
      "flow: the flow: 'children' must be a list without holes; item 2 is nil")
    refuses({ name = "a", children = { x = leaf } }, "'children' must be a list without holes")
    refuses({ name = "a", children = { { name = "b", after = { x = "c" } } } },
      "flow: the flow, child 1: 'after' must be a list without holes")
    refuses({ name = "a", children = { { name = "b", children = { leaf } }, leaf } }, "the node 'leaf' stands twice")
    refuses({ name = "a", children = { { name = "b", parent = 1 } } }, "its parent is the node above it")
    refuses({ name = "a" }, "flow takes a tree of jobs", { queue = "q" })
    assert.equal(0, #handle:jobs())
  end)

  it("is not itself", function()
    local a = { name = "a" }
    local b = { name = "b", children = { a } }
    a.children = { b }
    assert.error_matches(function() handle:flow { name = "root", children = { a } } end,
      "nothing could ever start: 'a' waits for 'b' waits for 'a'")
  end)

  it("may be deep", function()
    local node = { name = "leaf" }
    for _ = 1, 20000 do node = { name = "node", children = { node } } end
    assert(handle:flow(node))
  end)
end)

-- An error was cut at its first NUL on its way through a traceback, and so was a text of
-- job:progress. `error "a\0b"` was kept as "a". What a job says is kept to its last byte, and
-- shown with "\0" in its place.
describe("a NUL in an error", function()
  -- Each fails with "a", NUL and its name, or has it in front of what follows.
  local SCRIPT = [[
local nightshift = require "nightshift"
local function poll(job) error("a\0" .. job.name, 0) end
return {
  raised = function() error("a\0raised") end,
  bare = function() error("a\0bare", 0) end,
  made = function() error(setmetatable({}, { __tostring = function() return "a\0made" end })) end,
  asserted = function() assert(nil, "a\0asserted") end,
  returned = function() return nil, "a\0returned" end,
  failed = function(job) job:fail("a\0failed") end,
  discarded = function(job) job:discard("a\0discarded") end,
  wrapped = function() coroutine.wrap(function() error("a\0wrapped") end)() end,
  transaction = function(job)
    job:db():transaction(function() error("a\0transaction", 0) end)
  end,
  locked = function(job) job:db():lock "l" (function() error("a\0locked", 0) end) end,
  left = function(job)
    job:db()._handle:begin()
    error("a\0left", 0)
  end,
  looked = nightshift.background { start = function() return 1 end, max_polls = 1, every = 0.1, max_attempts = 1,
    poll = function(job) return job:again() end, on_timeout = poll },
  polled = nightshift.background { start = function() return 1 end, poll = poll, max_attempts = 1 },
  child = function() error("a\0child", 0) end,
  parent = function(job)
    if job.phase > 0 then return job:discard(job.results[1].error:match "^[^\n]*" .. "\0parent") end
    job:spawn("child", nil, { max_attempts = 1 })
    return job:wait { on_fail = "continue" }
  end,
  logs = function(job)
    job:log "a\0logs"
    job:progress(0.5, "a\0progress")
    error("a\0after", 0)
  end,
}]]

  local NAMES = { "raised", "bare", "made", "asserted", "returned", "failed", "discarded", "wrapped", "transaction",
    "locked", "left", "parent", "logs" }
  local at_once = { discarded = true, parent = true }

  --- The first row of a query on a job.
  local function first(handle, sql, id) return assert(handle:execute(sql, id))[1] end

  local url, handle

  before_each(function()
    url = server.fresh()
    handle = assert(nightshift.open(url))
  end)

  after_each(function() handle:close() end)

  local function drained(names, ...)
    local q, ids = assert(handle:queue "q"), {}
    for _, name in ipairs(names) do ids[name] = assert(q:push(name, nil, { max_attempts = 1 })) end
    local status, log = host.drain(url, SCRIPT, ...)
    assert.equal(0, status, log)
    return ids, log
  end

  it("and all behind it is in the tables, in the log and shown", function()
    local ids, log = drained(NAMES)
    for _, name in ipairs(NAMES) do
      local want = "a\0" .. (name == "parent" and "child\0" or "") .. (name == "logs" and "after" or name)
      local shown = want:gsub("%z", "\\0")
      for _, sql in ipairs { "SELECT error FROM nightshift_finished WHERE id = ?",
        "SELECT error FROM nightshift_attempt WHERE job_id = ? ORDER BY run DESC" } do
        local row = first(handle, sql, ids[name])
        local discarded = not row and at_once[name] -- which is no attempt
        assert.is_truthy(discarded or row.error:find(want, 1, true), ("%s: %q"):format(name, row and row.error))
      end
      assert.is_truthy(handle:job(ids[name]).error:find(want, 1, true), name)
      assert.is_truthy(log:gsub("\\\\", "\\"):find(shown, 1, true), log)
      for _, command in ipairs { "show", "why" } do
        local argv = { "--url", url, command, tostring(ids[name]) }
        local _, out = (name == "bare" and proc.nightshift or proc.command_line)(argv)
        assert.is_truthy(out:find(shown, 1, true), command .. out)
        argv[#argv + 1] = "--json"
        local _, json = (name == "bare" and proc.nightshift or proc.command_line)(argv)
        assert.is_truthy(json:find((want:gsub("%z", "\\u0000")), 1, true), command .. json)
      end
    end
    assert.is_nil(log:find("\0", 1, true))
    assert.matches("stack traceback:.*jobs.lua", handle:job(ids.raised).error)
    assert.matches("a%zleft.*it was rolled back", handle:job(ids.left).error)
    assert.equal("a\0logs\n", first(handle, "SELECT log FROM nightshift_attempt WHERE job_id = ?", ids.logs).log)
    local _, jobs = proc.nightshift({ "jobs", "--state", "dead" }, url)
    assert.is_truthy(jobs:find("a\\0bare", 1, true), jobs)
  end)

  it("of a poll, and of what is called at its end", function()
    drained { "polled", "looked" }
    local rows = assert(handle:execute "SELECT name, error FROM nightshift_finished WHERE outcome = 'dead' ORDER BY id")
    assert.equal(2, #rows)
    for _, row in ipairs(rows) do
      assert.is_truthy(row.error:find("a\0" .. row.name, 1, true), ("%q"):format(row.error))
    end
  end)

  it("of a handler file is on stderr, and of a hook in the log", function()
    local status, log = host.drain(url, 'error("a\\0file and more", 0)')
    assert.equal(78, status, log)
    assert.is_truthy(log:find("a\\0file and more\n", 1, true), log)
    local _, _, err = proc.nightshift({ "run", "n", "--script", fixture.file("j.lua", 'error("a\\0file", 0)') }, url)
    assert.is_truthy(err:find("a\\0file\n", 1, true), err)
    status, log = host.drain(url, [[require "nightshift".on("worker.start", function() error("a\0hook", 0) end)
      return {}]])
    assert.equal(0, status, log)
    assert.is_truthy(log:find("a\\0hook", 1, true), log)
  end)

  it("is kept by who claims in a program, and its text in what is shown", function()
    local q = assert(handle:queue "q")
    local id = assert(q:push("a", nil, { max_attempts = 1 }))
    pcall(function()
      local job <close> = assert(q:claim())
      assert(job:progress(0.5, "a\0progress"))
      assert.equal("a\0progress", assert(handle:job(id)).status)
      error("a\0program", 0)
    end)
    assert.equal("a\0program", handle:job(id).error)
    assert.equal("a\0program", first(handle, "SELECT error FROM nightshift_finished WHERE id = ?", id).error)
  end)

  it("is one in a log of JSON", function()
    local _, log = drained({ "bare" }, { "--drain-within", "500ms", "--log", "json" })
    local found
    for line in log:gmatch "[^\n]+" do
      local entry = assert(nightshift.decode(line))
      if entry.event == "job.dead" then found = entry.error:match "^[^\n]*" end
    end
    assert.equal("a\0bare", found)
  end)
end)

-- Text that is not UTF-8 was copied whole for each bad byte. 100,000 such bytes in job:log took
-- five seconds, and an error of 64 KiB of them held its worker for three. An error value with a
-- metatable that is protected by a number or true raised in the library itself. The job stayed
-- claimed, and in a handler the error that was kept was the library's.
describe("bytes:", function()
  local job = require "nightshift.job"

  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  --- Seconds of processor time in this process: a busy machine adds none.
  local function seconds(fn)
    local before = os.clock()
    fn()
    return os.clock() - before
  end

  describe("text that is not UTF-8", function()
    it("costs no more than text that is", function()
      assert(q:push "a")
      local claimed = assert(q:claim())
      local bad = ("\xff"):rep(100000)
      assert.is_true(seconds(function() assert(claimed:log(bad)) end) < 1)
      assert.is_true(seconds(function() assert(claimed:fail(bad)) end) < 1)
      local row = handle:execute("SELECT error, log FROM nightshift_attempt WHERE job_id = ?", claimed.id)[1]
      assert.equal(16384, #row.log)
      assert.matches("^%?+$", row.log)
      assert.matches("^%?+… %(100000 bytes%)$", row.error)
    end)

    it("keeps what is good between what is not", function()
      assert.equal("a?b??c", job.error_text "a\xffb\xc3\xe2c")
      assert.equal("?", job.error_text "\xff")
      assert.equal("?ä", job.error_text "\xffä")
    end)

    it("is cut on a whole character in a log", function()
      assert(q:push "a")
      local claimed = assert(q:claim())
      assert(claimed:log("x" .. ("ä"):rep(20000)))
      assert(claimed:fail "e")
      local log = handle:execute("SELECT log FROM nightshift_attempt WHERE job_id = ?", claimed.id)[1].log
      assert.is_truthy(utf8.len(log))
      assert.is_nil(log:find("?", 1, true))
      assert.equal(16384, #log)
    end)
  end)

  describe("an error value whose metatable is protected", function()
    local SHIELDS = { 1, true, false, "no" }

    it("is kept as what it is", function()
      for _, shield in ipairs(SHIELDS) do
        assert.equal('{"code":5}', job.error_text(setmetatable({ code = 5 }, { __metatable = shield })))
        assert.equal("shown", job.error_text(setmetatable({},
          { __metatable = shield, __tostring = function() return "shown" end })))
      end
    end)

    it("fails the job that it was raised in", function()
      local id = assert(handle:queue "default":push("a", nil, { max_attempts = 1 }))
      assert.equal(0, (host.drain(url, [[return {
      a = function() error(setmetatable({ code = 5 }, { __metatable = 1 })) end,
    }]])))
      assert.matches('^{"code":5}', handle:job(id).error)
    end)
  end)
end)

-- Characters that turn the direction of text, or hide in it, went to the terminal as they are.
-- A queue or job could look like another one.
describe("a character that cannot be seen", function()
  local HIDDEN = { 0x61C, 0x200B, 0x200E, 0x200F, 0x2028, 0x202A, 0x202E, 0x2060, 0x2066, 0x2069, 0xFEFF, 0xE0041 }

  it("is written out where queues and jobs are shown, and kept in JSON", function()
    local url = server.fresh()
    local handle <close> = assert(nightshift.open(url))
    local ids = {}
    for i, code in ipairs(HIDDEN) do
      local char = utf8.char(code)
      ids[i] = assert(handle:queue("q" .. char .. "x"):push("n" .. char .. "x", 1, { unique = "u" .. char }))
    end
    local function check(code, command, exit, out)
      local shown = ("\\u{%x}x"):format(code)
      assert.equal(0, exit)
      assert.is_nil(out:find(utf8.char(code), 1, true), command .. shown)
      assert.is_truthy(out:find("q" .. shown, 1, true), out)
    end
    for _, command in ipairs { "jobs", "status" } do
      local exit, out = proc.nightshift({ command }, url)
      for _, code in ipairs(HIDDEN) do check(code, command, exit, out) end
    end
    for i, code in ipairs(HIDDEN) do
      check(code, "show", proc.command_line { "--url", url, "show", tostring(ids[i]) })
      local _, json = proc.command_line { "--url", url, "show", tostring(ids[i]), "--json" }
      assert.equal(("n%sx"):format(utf8.char(code)), nightshift.decode(json).name)
    end
  end)

  it("is written out in errors and logs", function()
    local url = server.fresh()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:queue("q"):push("a", "\u{202E}\u{9B}31mred", { max_attempts = 1 }))
    local status, log = host.drain(url, [[return { a = function(job)
      job:log(job.payload)
      error(job.payload, 0)
    end }]])
    assert.equal(0, status)
    assert.is_truthy(log:find("\\u{202e}\\u{9b}31mred", 1, true), log)
    assert.is_nil(log:find("\u{202E}", 1, true), log)
    local _, out = proc.nightshift({ "jobs" }, url)
    assert.is_truthy(out:find("\\u{202e}\\u{9b}31mred", 1, true), out)
    assert.is_nil(out:find("\u{202E}", 1, true) or out:find("\u{9B}", 1, true))
    status, log = host.drain(url, "return {}", { "--drain", "--log", "json" })
    assert.equal(0, status, log)
  end)

  it("leaves what can be seen as it is", function()
    local url = server.fresh()
    local handle <close> = assert(nightshift.open(url))
    local name = "über.צ.שם.名前.🚀"
    assert(handle:queue("q"):push(name, 1))
    local _, out = proc.nightshift({ "jobs" }, url)
    assert.is_truthy(out:find(name, 1, true), out)
  end)
end)

-- A host with a log that is read slowly dropped at its end what was not written yet. The line
-- with the number of lost lines was dropped as well, because the pipe was full. Or it told of
-- the same lines as another line. So their number was not known.
describe("the end of a log:", function()
  local url, _, q
  with_database(function(...) _, q, url = ... end)

  local JOBS <const>, LINES <const> = 100, 20 -- of 1500 bytes: three times what is kept for a reader

  local SCRIPT = ([[return { log = function(job) for _ = 1, %d do job:log(("x"):rep(1500)) end end }]]):format(LINES)

  it("a host that ends says what its slow reader will never see", function()
    local pipe = fixture.dir() .. "/pipe"
    assert(os.execute("mkfifo " .. pipe))
    local reader = proc.start { proc.lua, proc.root .. "/spec/torture/programs.lua", "reader", pipe }
    for i = 1, JOBS do assert(q:push("log", i)) end
    local h = proc.start { "sh", "-c", 'exec "$@" 2>' .. pipe, "sh", proc.program, "work",
      fixture.file("jobs.lua", SCRIPT), "--workers", "2", "--drain", env = { NIGHTSHIFT_URL = url } }
    assert.equal(0, h:wait(60))
    reader:wait(20)
    local log, dropped = reader:text(), 0
    for n in log:gmatch "event=log.dropped lines=(%d+)" do dropped = dropped + tonumber(n) end
    local told = select(2, log:gsub("event=job.log ", "")) + dropped
    assert.is_true(told >= JOBS * LINES and told <= JOBS * LINES + 3, told) -- the host's ready, drain and end
  end)
end)
