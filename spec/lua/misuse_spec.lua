-- Misuse of the library is answered in the caller's words, and names the caller's line.

local nightshift = require "nightshift"
local nst = require "nst"
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
    db:execute "CREATE TABLE t (id INT PRIMARY KEY, done BOOLEAN NOT NULL)"
    local adopted = assert(db:adopt { table = "t", status = { column = "done", open = false, done = true } })
    local there = { nightshift = nightshift, Db = methods(db), Queue = methods(queue), Job = methods(job),
      Transaction = methods(tx), Shared = nightshift.shared, Lock = methods(nightshift.mutex "m"),
      DbLock = methods(db:lock "l"), Adopted = methods(adopted) }
    local said = documented()
    for owner, functions in pairs(there) do assert.same(keys(functions), keys(said[owner]), owner) end
    assert.same(keys(there), keys(said))
  end)
end)

-- db:signal and db:reprioritise handed what they got to the core: its words for a
-- wrong argument spoke of a line inside Nightshift; so did job:wait for a policy
-- that there is not. Found by the fuzzer.
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

-- Small misuses were answered worse than large ones: a wrong type with a code where all
-- others raise, a raise that named a line of the library, a message of a megabyte, a
-- sequence of nodes that overflowed Lua's stack, and parameters whose check took time by
-- the square of their number.
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

-- What stood behind a hole in `after` or in a flow's children was left out in
-- silence: a job did not wait for it, or was never pushed. A node that stood in
-- a flow twice was two jobs, one below itself was a stack overflow, and a child's
-- `parent` was ignored.
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
