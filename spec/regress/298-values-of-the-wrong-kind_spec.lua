-- Small misuses were answered worse than large ones: a wrong type with a code where all
-- others raise, a raise that named a line of the library, a message of a megabyte, a
-- sequence of nodes that overflowed Lua's stack, and parameters whose check took time by
-- the square of their number.

local nightshift = require "nightshift"
local nst = require "nst"

local handle, q

with_database(function(...) handle, q = ... end)

local HERE = "298%-values%-of%-the%-wrong%-kind_spec.lua:%d+: "

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
    assert_short(select(2, nightshift.mutex(LONG):lock()))
    assert_short(select(2, nightshift.mutex(("\xff"):rep(200)):lock()))
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
