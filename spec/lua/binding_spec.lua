-- The C module as it is: types in, types out, handles that survive any treatment. spec/core
-- tests the meaning of the verbs.

local core = require "nightshift.core"
local proc = require "spec.support.proc"
local server = require "spec.support.db"

local null = core.null

local url
setup(function() url = server.fresh() end)

local open_handles = setmetatable({}, { __mode = "k" })

local function open()
  local handle = assert(core.open { url = url })
  open_handles[handle] = true
  return handle
end

local db
before_each(function() db = open() end)
after_each(function()
  collectgarbage("incremental", 200, 100) -- a test may have changed it
  for handle in pairs(open_handles) do handle:close() end
end)

local function answer(...)
  local value, message, code = ...
  return { value, code }, message
end

local function push_one(queue, entry)
  return assert(db:push(queue, { entry }))[1]
end

describe("the module", function()
  it("exports one symbol and needs no Lua library", function()
    local path = package.searchpath("nightshift.core", package.cpath)
    if not path then return pending "the module is linked into the program" end
    local names = {}
    for line in io.popen("nm -D --defined-only '" .. path .. "'"):lines() do
      names[#names + 1] = line:match "%S+$"
    end
    assert.same({ "luaopen_nightshift_core" }, names)
    assert.is_nil(io.popen("ldd '" .. path .. "'"):read("a"):find "liblua")
  end)

  it("shows its version, its schema and its statements", function()
    assert.truthy(core._VERSION:find "^%d+%.%d+%.%d+$")
    local schema = core.schema()
    assert.is_true(#schema > 5)
    assert.equal(1, schema[1].version)
    assert.truthy(schema[1].text:find "CREATE")
    assert.is_string(schema[1].name)
    assert.is_nil(core.sql "no_such_statement")
    assert.has_error(function() core.sql {} end)
  end)

  it("has a clock that goes forward", function()
    local a = core.clock()
    local b = core.clock()
    assert.equal("float", math.type(a))
    assert.is_true(b >= a)
  end)

  it("prints null as null and other light userdata as ever", function()
    assert.equal("null", tostring(null))
    assert.equal("userdata", type(null))
  end)
end)

describe("open", function()
  it("raises for an unknown key and names the known ones", function()
    assert.error_matches(function() core.open { hots = "x" } end,
      "unknown option 'hots' %(known: url, host, user, password, database, socket, port, ")
    assert.error_matches(function() core.open { "x" } end, "option names are strings, got a number")
    assert.error_matches(function() core.open { ["url\0"] = "x" } end, "unknown option 'url'")
  end)

  it("raises for a wrong type", function()
    assert.error_matches(function() core.open { url = 5 } end, "bad option 'url' %(string expected, got number%)")
    assert.error_matches(function() core.open { port = 1.5 } end, "bad option 'port' %(1.5 is no integer%)")
    assert.error_matches(function() core.open { port = {} } end, "integer expected, got table")
    assert.error_matches(function() core.open { no_schema = 1 } end, "boolean expected, got number")
    assert.error_matches(function() core.open "mysql://x/y" end, "table expected")
  end)

  it("refuses a bad value", function()
    for _, bad in ipairs {
      { host = "a\0b" }, { port = 65536, host = "x" }, { port = -1, host = "x" }, { url = "postgres://x/y" },
      { host = "x", max_payload = -1 }, { host = "x", connect_timeout = -1 },
    } do
      local got, message = answer(core.open(bad))
      assert.same({ nil, "INVALID" }, got)
      assert.is_string(message)
    end
  end)

  it("reads the table raw", function()
    local trap = setmetatable({ host = "a\0" }, {
      __index = function() error "called" end,
      __pairs = function() error "called" end,
    })
    assert.same({ nil, "INVALID" }, (answer(core.open(trap))))
  end)
end)

describe("a handle", function()
  it("is closed as often as one likes", function()
    assert.is_true(db:is_open())
    db:close()
    db:close()
    assert.is_false(db:is_open())
    assert.equal("nightshift.db: closed", tostring(db))
  end)

  it("refuses every verb once it is closed", function()
    local verbs = getmetatable(db).__index
    db:close()
    for name, verb in pairs(verbs) do
      if name ~= "close" and name ~= "is_open" then
        local ok, message = pcall(verb, db, "q", {}, 1)
        assert.is_false(ok, name)
        if not message:find "bad argument" then
          assert.truthy(message:find("attempt to use a closed database", 1, true), name .. ": " .. message)
        end
      end
    end
    assert.error_matches(function() db:now() end, "attempt to use a closed database")
    assert.error_matches(function() db:push("q", {}) end, "attempt to use a closed database")
    assert.error_matches(function() db:info(1) end, "attempt to use a closed database")
    assert.error_matches(function() db:execute "SELECT 1" end, "attempt to use a closed database")
  end)

  it("refuses a wrong self in every function, collecting included", function()
    local functions = {}
    for name, f in pairs(getmetatable(db).__index) do functions[name] = f end
    for name, f in pairs(getmetatable(db)) do
      if type(f) == "function" then functions[name] = f end
    end
    for name, f in pairs(functions) do
      for _, self in ipairs { io.stdout, {}, "x", 5, null, print } do
        assert.is_false(pcall(f, self, 1, 1, 1), name)
      end
      assert.is_false(pcall(f), name)
    end
    assert.is_true(db:is_open())
  end)

  it("survives its metatable being played with", function()
    getmetatable(db).__gc(db)
    getmetatable(db).__close(db)
    db:close()
    assert.is_false(db:is_open())
  end)

  it("closes at the end of its scope", function()
    local kept
    do
      local scoped <close> = open()
      kept = scoped
    end
    assert.is_false(kept:is_open())
  end)

  it("gives its connection up when it is collected", function()
    local mine = db:execute("SELECT CONNECTION_ID() AS id")[1].id
    local other = open()
    local id = other:execute("SELECT CONNECTION_ID() AS id")[1].id
    assert.not_equal(mine, id)
    other = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    local gone = false
    for _ = 1, 100 do -- the server takes a moment
      gone = #db:execute("SELECT 1 FROM information_schema.processlist WHERE id = ?", id) == 0
      if gone then break end
      db:execute "DO SLEEP(0.02)"
    end
    assert.is_true(gone)
  end)

  -- Runs a function over and over while finalisers of dropped tables run in the middle of it.
  -- It ends after a second, or when the function says so.
  local function amid_finalisers(finaliser, fn)
    local live, runs = true, 0
    local function arm()
      setmetatable({}, { __gc = function()
        if not live then return end -- the last one is collected amid another test
        runs = runs + 1
        finaliser()
        if live then arm() end
      end })
    end
    collectgarbage("incremental", 100, 400) -- cycle after cycle, in small steps
    collectgarbage()
    arm()
    local stop = core.clock() + 1
    repeat until fn() or core.clock() > stop
    live = false
    return runs
  end

  it("may be used by finalisers in the middle of its verbs", function()
    local runs = amid_finalisers(function()
      assert(db:execute("SELECT 'another' AS i, 'row' AS t"))
    end, function()
      local rows = assert(db:execute "SELECT seq AS i, CONCAT('text ', seq) AS t FROM seq_1_to_200")
      for i, row in ipairs(rows) do assert(row.i == i and row.t == "text " .. i) end
    end)
    assert.is_true(runs > 0)
  end)

  it("may be closed by finalisers in the middle of its verbs", function()
    local message
    amid_finalisers(function() db:close() end, function()
      local ok, why = pcall(db.execute, db, "SELECT seq AS i, CONCAT('text ', seq) AS t FROM seq_1_to_200")
      message = why
      return not ok
    end)
    assert.equal("attempt to use a closed database", message)
  end)

  it("takes garbage collection at every instruction", function()
    -- in a process of its own, with a small heap: this one's is large
    local status, _, err = proc.run { proc.lua, "-e", ([[
    local db = assert(require "nightshift.core".open { url = %q })
    debug.sethook(function() collectgarbage() end, "", 1)
    local id = assert(db:push("gc", { { name = "a", payload = { list = { 1, "x" } }, unique = "gc" } }))[1]
    local job = db:claim("gc", 1)[1]
    local ok, dead = db:settle { id = job.id, run = job.run, lease = job.lease, kind = "ack", result = { 1 } }
    local info = db:info(id)
    local rows = db:execute("SELECT ? AS a, 2 AS b", "x")
    debug.sethook()
    assert(job.id == id and #job.payload.list == 2 and job.payload.list[2] == "x")
    assert(ok == true and dead == false)
    assert(#info.result == 1 and info.result[1] == 1)
    assert(#rows == 1 and rows[1].a == "x" and rows[1].b == 2)]]):format(url) }
    assert.equal(0, status, err)
  end)
end)

describe("push", function()
  it("raises for an unknown key and names the job among many", function()
    assert.error_matches(function() db:push("q", { { nam = "x" } }) end,
      "unknown option 'nam' %(known: name, payload, queue, ")
    assert.error_matches(function() db:push("q", { { name = "a" }, { name = "b", priorty = 1 } }) end,
      "job 2: unknown option 'priorty'")
  end)

  it("raises for a wrong type", function()
    assert.error_matches(function() db:push("q", { {} }) end, "the job has no 'name'")
    assert.error_matches(function() db:push("q", { "x" }) end, "a job is a table, got string")
    assert.error_matches(function() db:push("q", { { name = 5 } }) end, "bad option 'name' %(string expected")
    assert.error_matches(function() db:push("q", { { name = "x", delay = "soon" } }) end, "'delay' %(integer expected")
    assert.error_matches(function() db:push("q", { { name = "x", priority = 1.5 } }) end, "1.5 is no integer")
    assert.error_matches(function() db:push("q", { { name = "x", priority = 0 / 0 } }) end, "no integer")
    assert.error_matches(function() db:push("q") end, "table expected")
    assert.error_matches(function() db:push({}, {}) end, "string expected")
  end)

  it("takes floats that are integers", function()
    local id = push_one("floats", { name = "x", priority = 7.0, max_attempts = 2.0 ^ 4 })
    local info = db:info(id)
    assert.equal(7, info.priority)
    assert.equal(16, info.max_attempts)
  end)

  it("refuses bad values and writes nothing", function()
    local cycle = {}
    cycle.x = { cycle }
    for _, bad in ipairs {
      { { name = "" }, "INVALID", "name" },
      { { name = ("x"):rep(101) }, "INVALID", "name" },
      { { name = "a\0b" }, "INVALID", "name" },
      { { name = "a\nb" }, "INVALID", "name" },
      { { name = "a\xFF" }, "INVALID", "name" },
      { { name = "a", queue = "" }, "INVALID", "queue" },
      { { name = "a", priority = 256 }, "INVALID", "priority" },
      { { name = "a", priority = math.mininteger }, "INVALID", "priority" },
      { { name = "a", delay = -1 }, "INVALID", "delay" },
      { { name = "a", payload = cycle }, "INVALID", "payload.x[1]: " },
      { { name = "a", payload = print }, "INVALID", "payload: cannot encode a function" },
      { { name = "a", payload = { list = { 1, "\xFF" } } }, "INVALID", "payload.list[2]: " },
      { { name = "a", payload = ("x"):rep(2097152) }, "TOO_BIG", "2097154 bytes" },
    } do
      local got, message = answer(db:push("bad", { bad[1] }))
      assert.same({ nil, bad[2] }, got, message)
      assert.truthy(message:find(bad[3], 1, true), message)
      got, message = answer(db:push("bad", { { name = "good" }, bad[1] }))
      assert.same({ nil, bad[2] }, got, message)
    end
    for _, queue in ipairs { "", ("q"):rep(65), "a\0b", "a\tb" } do
      assert.same({ nil, "INVALID" }, (answer(db:push(queue, { { name = "x" } }))))
    end
    assert.same({}, assert(db:claim("bad", 10)))
  end)

  it("names the bad one of many", function()
    local _, message = db:push("bad", { { name = "a" }, { name = "a", payload = { print } } })
    assert.equal("job 2: payload[1]: cannot encode a function", message)
  end)

  it("keeps every kind of payload", function()
    local payloads = {
      5, 5.0, math.mininteger, 0.1, "x\0y\u{e9}", true, false, {}, core.array(), { 1, { 2 } }, { a = { b = null } },
      { [""] = "" }, ("x"):rep(1048574),
    }
    for i, payload in ipairs(payloads) do
      push_one("payloads", { name = "x", payload = payload })
      local job = db:claim("payloads", 1)[1]
      assert.same(payload, job.payload, tostring(i))
      assert.equal(math.type(payload), math.type(job.payload))
      assert.equal(core.encode(payload), core.encode(job.payload))
    end
  end)

  it("takes nil and null as null, which a job shows as nil", function()
    push_one("nulls", { name = "x" })
    push_one("nulls", { name = "x", payload = null })
    for _, job in ipairs(db:claim("nulls", 2)) do assert.is_nil(job.payload) end
  end)

  it("nests as deep as the server allows", function()
    local deep = {}
    for _ = 2, 31 do deep = { deep } end
    assert.truthy(db:push("deep", { { name = "x", payload = deep } }))
    local got, message = answer(db:push("deep", { { name = "x", payload = { deep } } }))
    assert.same({ nil, "INVALID" }, got)
    assert.truthy(message:find("nested deeper than 31 tables", 1, true))
  end)

  it("is empty when there is nothing to push", function()
    assert.same({}, db:push("q", {}))
  end)
end)

describe("a claimed job", function()
  it("has its fields with exact types", function()
    local id = push_one("fields", { name = "n", payload = { 1 }, priority = 120, deadline = 60000000 })
    local job = db:claim("fields", 1, 0)[1]
    assert.equal(id, job.id)
    assert.equal("fields", job.queue)
    assert.equal("n", job.name)
    for _, name in ipairs {
      "id", "run", "lease", "attempts", "polls", "crashes", "max_attempts", "priority",
    } do assert.equal("integer", math.type(job[name]), name) end
    for _, name in ipairs { "created", "due", "deadline", "timeout" } do
      assert.equal("float", math.type(job[name]), name)
    end
    assert.equal(3600, job.timeout)
    assert.near(60, job.deadline - job.created, 0.001)
    assert.near(os.time(), job.created, 60)
    assert.equal(120, job.priority)
    assert.is_nil(job.max_polls)
    assert.is_nil(job.parent)
    assert.is_nil(job.root)
    assert.is_nil(job.state)
    assert.equal(("%x"):format(id), job.key:match "^(%x+)%-%x+$")
    assert.equal(16, #job.key:match "%-(%x+)$")
  end)

  it("says why its payload could not be decoded, and spares the others", function()
    local good = push_one("odd", { name = "x", payload = { 1 } })
    local bad = push_one("odd", { name = "x", payload = { 1 } })
    assert(db:execute("UPDATE nightshift_job SET payload = '[123456789012345678901]' WHERE id = ?", bad))
    local found = {}
    for _, job in ipairs(db:claim("odd", 10)) do found[job.id] = job end
    assert.same({ 1 }, found[good].payload)
    assert.is_nil(found[good].payload_error)
    assert.is_nil(found[bad].payload)
    assert.truthy(found[bad].payload_error:find("^payload: not JSON we can keep exactly: line 1"))
  end)

  it("is not there when the queue is empty", function()
    assert.same({}, assert(db:claim("empty", 5)))
    assert.has_error(function() db:claim("empty", 0) end)
    assert.has_error(function() db:claim("empty", 1, -1) end)
    assert.has_error(function() db:claim() end)
  end)
end)

describe("settle", function()
  local function claimed(queue, entry)
    push_one(queue, entry or { name = "x" })
    return assert(db:claim(queue, 1)[1])
  end

  local function verdict(job, fields)
    fields.id, fields.run, fields.lease = job.id, job.run, job.lease
    return fields
  end

  it("raises for a table that is no verdict", function()
    assert.error_matches(function() db:settle() end, "table expected")
    assert.error_matches(function() db:settle {} end, "'id' and 'run'")
    assert.error_matches(function() db:settle { id = 1, run = 1 } end, "bad 'kind' %(absent%)")
    assert.error_matches(function() db:settle { id = 1, run = 1, kind = "bury" } end, "'kind' bury %(known: ack, fail")
    assert.error_matches(function() db:settle { id = 1, run = 1, kind = "ack", children = 5 } end, "table expected")
    assert.error_matches(function() db:settle { id = 1, run = 1, kind = "ack", why = 5 } end, "unknown option 'why'")
  end)

  it("refuses values that cannot be kept, and leaves the claim as it is", function()
    local job = claimed "refuse"
    for field, value in pairs { result = print, state = { { 0 / 0 } } } do
      local got, message = answer(db:settle(verdict(job, { kind = "ack", [field] = value })))
      assert.same({ nil, "INVALID" }, got)
      assert.truthy(message:find("^" .. field), message)
    end
    local got, message = answer(db:settle(verdict(job, { kind = "ack", result = ("x"):rep(2097152) })))
    assert.same({ nil, "TOO_BIG" }, got)
    assert.truthy(message:find "result is 2097154 bytes")
    got = answer(db:settle(verdict(job, { kind = "again", delay = -5 })))
    assert.same({ nil, "INVALID" }, got)
    got, message = answer(db:settle(verdict(job, { kind = "ack",
      children = { { id = 1, name = "a" }, { id = 2, name = "b", payload = print } } })))
    assert.same({ nil, "INVALID" }, got)
    assert.equal("child 2: payload: cannot encode a function", message)
    assert.is_true(db:settle(verdict(job, { kind = "ack", result = { ok = true } })))
    assert.same({ ok = true }, db:info(job.id).result)
  end)

  it("keeps the state between polls", function()
    local job = claimed "polls"
    assert.is_true(db:settle(verdict(job, { kind = "again", delay = 0, state = { page = 2, seen = core.array() } })))
    job = db:claim("polls", 1, 2000000)[1]
    assert.same({ page = 2, seen = {} }, job.state)
    assert.equal(core.encode(core.array()), core.encode(job.state.seen))
    assert.equal(1, job.polls)
  end)

  it("writes children whose ids were taken before", function()
    local job = claimed "family"
    local ids = assert(db:take_ids(2))
    assert.is_true(db:settle(verdict(job, { kind = "ack", children = {
      { id = ids[1], name = "kid", payload = { n = 1 } }, { id = ids[2], name = "kid", payload = { n = 2 } },
    } })))
    local kids = db:claim("family", 10)
    assert.equal(2, #kids)
    for _, kid in ipairs(kids) do
      assert.equal(job.id, kid.parent)
      assert.equal(job.id, kid.root)
      assert.equal(kid.payload.n == 1 and ids[1] or ids[2], kid.id)
    end
  end)

  it("tells whether the job is dead now, and STALE the second time", function()
    local job = claimed("dead", { name = "x", max_attempts = 1 })
    local ok, dead = db:settle(verdict(job, { kind = "fail", error = "no" }))
    assert.is_true(ok)
    assert.is_true(dead)
    assert.same({ nil, "STALE" }, (answer(db:settle(verdict(job, { kind = "ack" })))))
  end)
end)

describe("touch", function()
  it("checks the progress", function()
    push_one("touch", { name = "x" })
    local job = db:claim("touch", 1)[1]
    for _, p in ipairs { -0.1, 1.1, 0 / 0, 1 / 0 } do
      assert.same({ nil, "INVALID" }, (answer(db:touch(job.id, job.run, p))))
    end
    assert.is_true(db:touch(job.id, job.run))
    assert.is_true(db:touch(job.id, job.run, 0.25, "quarter"))
    local info = db:info(job.id)
    assert.equal(0.25, info.progress)
    assert.equal("quarter", info.status)
    assert.equal("running", info.where)
    assert.same({ nil, "STALE" }, (answer(db:touch(job.id, job.run + 1))))
    assert.has_error(function() db:touch(job.id, 1.5) end)
    assert.has_error(function() db:touch("x", 1) end)
  end)
end)

describe("execute", function()
  local function one(sql, ...)
    local rows = assert(db:execute(sql, ...))
    assert.equal(1, #rows)
    return rows[1]
  end

  it("gives every column type exactly", function()
    assert(db:execute [[CREATE TEMPORARY TABLE every (t TINYINT, s SMALLINT, m MEDIUMINT, i INT, b BIGINT,
      u BIGINT UNSIGNED, f FLOAT, d DOUBLE, n DECIMAL(30,10), y YEAR, da DATE, ti TIME(3), dt DATETIME(6),
      ts TIMESTAMP(6), ch CHAR(5), vc VARCHAR(50), bi VARBINARY(50), tx TEXT, bl LONGBLOB, e ENUM('a','b'),
      st SET('x','y'), bo BOOLEAN, js JSON)]])
    local changed = assert(db:execute([[INSERT INTO every VALUES (-128, -32768, -8388608, -2147483648,
      -9223372036854775808, 18446744073709551615, 1.5, 0.1, 12345678901234567890.0123456789, 2026, '2026-02-28',
      '-10:20:30.456', '2026-02-28 01:02:03.000004', '2026-02-28 01:02:03.000004', 'ab', 'é', ?, 'text', ?, 'b',
      'x,y', TRUE, '{}')]], "\0\xFF", ("\0"):rep(100000)))
    assert.same({ affected = 1, insert_id = 0 }, changed)
    assert.same({
      t = -128, s = -32768, m = -8388608, i = -2147483648, b = math.mininteger, u = "18446744073709551615", f = 1.5,
      d = 0.1, n = "12345678901234567890.0123456789", y = 2026, da = "2026-02-28", ti = "-10:20:30.456",
      dt = "2026-02-28 01:02:03.000004", ts = "2026-02-28 01:02:03.000004", ch = "ab", vc = "é", bi = "\0\xFF",
      tx = "text", bl = ("\0"):rep(100000), e = "b", st = "x,y", bo = 1, js = "{}",
    }, one "SELECT * FROM every")
    local row = one "SELECT b, u, f, d, CAST(2 AS DOUBLE) AS two FROM every"
    assert.equal("integer", math.type(row.b))
    assert.equal("float", math.type(row.f))
    assert.equal("float", math.type(row.two))
    assert.equal(math.maxinteger, one("SELECT CAST(9223372036854775807 AS UNSIGNED) AS u").u)
    db:execute "DROP TEMPORARY TABLE every"
  end)

  it("binds every parameter type exactly", function()
    local row = one("SELECT ? AS a, ? AS b, ? AS c, ? AS d, ? AS e, ? AS f, ? AS g, ? AS h, ? AS i",
      nil, null, true, false, math.mininteger, math.maxinteger, 0.1, "x\0y\u{e9}", "")
    assert.same({ c = 1, d = 0, e = math.mininteger, f = math.maxinteger, g = 0.1, h = "x\0y\u{e9}", i = "" }, row)
    assert.equal("float", math.type(one("SELECT ? AS a", 2.0).a))
  end)

  it("counts trailing nils as parameters", function()
    assert.same({ a = 1 }, one("SELECT ? AS a, ? AS b, ? AS c", 1, nil, nil))
    assert.same({ nil, "INVALID" }, (answer(db:execute("SELECT ? AS a", 1, nil))))
    assert.same({ nil, "INVALID" }, (answer(db:execute("SELECT ? AS a"))))
    assert.same({ nil, "INVALID" }, (answer(db:execute("SELECT 1", 1))))
  end)

  it("raises for a parameter that SQL does not know", function()
    for _, bad in ipairs { {}, print, io.stdout, coroutine.create(print) } do
      assert.error_matches(function() db:execute("SELECT ?", bad) end, "bad argument #2 to 'execute'")
    end
    assert.has_error(function() db:execute() end)
    assert.has_error(function() db:execute {} end)
  end)

  it("takes many columns and many rows", function()
    local list = {}
    for i = 1, 1500 do list[i] = i .. " AS c" .. i end
    local row = one("SELECT " .. table.concat(list, ", "))
    for i = 1, 1500 do assert(row["c" .. i] == i) end
    local rows = assert(db:execute "SELECT seq AS i, REPEAT('x', seq) AS t FROM seq_1_to_3000")
    assert.equal(3000, #rows)
    for i, r in ipairs(rows) do assert(r.i == i and #r.t == i) end
  end)

  it("tells no rows from no result", function()
    assert.same({}, assert(db:execute "SELECT 1 AS a FROM DUAL WHERE FALSE"))
    assert.same({ affected = 0, insert_id = 0 }, assert(db:execute "SET @x = 1"))
  end)

  it("passes on what the server says", function()
    local got, message = answer(db:execute "SELEC 1")
    assert.same({ nil, "SQL" }, got)
    assert.truthy(message:find("1064", 1, true), message)
    assert.same({ nil, "NOT_FOUND" }, (answer(db:execute "@no_such_statement")))
    assert.equal(2, one("SELECT 2 AS two").two)
  end)
end)

describe("transactions", function()
  it("do not nest and say so", function()
    assert.is_false(db:in_transaction())
    assert.is_true(db:begin())
    assert.is_true(db:in_transaction())
    assert.same({ nil, "STATE" }, (answer(db:begin())))
    local id = push_one("tx", { name = "x" })
    assert.is_true(db:rollback())
    assert.same({ nil, "STATE" }, (answer(db:commit())))
    assert.same({ nil, "NOT_FOUND" }, (answer(db:info(id))))
    assert.is_true(db:begin())
    id = push_one("tx", { name = "x" })
    assert.is_true(db:commit())
    assert.equal("ready", db:info(id).where)
  end)
end)

describe("the other verbs", function()
  it("return true, or nil with message and code", function()
    local id = push_one("outside", { name = "x", delay = 3600000000 })
    assert.equal("scheduled", db:info(id).where)
    assert.is_true(db:run_now(id))
    assert.is_true(db:cancel(id, "no longer wanted"))
    assert.same({ nil, "STATE" }, (answer(db:cancel(id))))
    assert.is_true(db:retry(id))
    assert.is_true(db:pause("outside", true))
    assert.same({}, db:claim("outside", 1))
    assert.is_true(db:pause("outside", false))
    assert.equal(id, db:claim("outside", 1, 5000000)[1].id)
    for _, verb in ipairs { "info", "cancel", "retry", "run_now" } do
      assert.same({ nil, "NOT_FOUND" }, (answer(db[verb](db, 999999999999))))
      assert.has_error(function() db[verb](db, "x") end)
      assert.has_error(function() db[verb](db, 1.5) end)
    end
    assert.same({ nil, "NOT_FOUND" }, (answer(db:pause("no such queue", false))))
    assert.has_error(function() db:pause("outside") end)
  end)

  it("list and count", function()
    local id = assert(db:queue_id("listed", true))
    assert.equal(id, db:queue_id("listed"))
    assert.same({ nil, "NOT_FOUND" }, (answer(db:queue_id "never made")))
    local found
    for _, queue in ipairs(db:queues()) do found = found or (queue.name == "listed" and queue) end
    assert.same({ id = id, name = "listed", paused = false, removed = false, limited = false }, found)
    local before = db:counters().pushed
    push_one("listed", { name = "x" })
    assert.equal(before + 1, db:counters().pushed)
    assert.equal("integer", math.type(db:now()))
    assert.is_true(db:ring())
    assert.equal("integer", math.type(db:prune(-1, -1, 1)))
    assert.equal("integer", math.type(db:migrate()))
  end)

  it("take ids in blocks that never repeat", function()
    local seen = {}
    for _, n in ipairs { 1, 99, 250, 1 } do
      local ids = assert(db:take_ids(n))
      assert.equal(n, #ids)
      for _, id in ipairs(ids) do
        assert.is_nil(seen[id])
        seen[id] = true
      end
    end
    assert.has_error(function() db:take_ids(0) end)
    assert.has_error(function() db:take_ids(10001) end)
    assert.has_error(function() db:take_ids(-1) end)
  end)
end)

describe("any order of any verbs", function()
  it("ends in values, codes or plain errors", function()
    math.randomseed(5)
    local names = {}
    for name in pairs(getmetatable(db).__index) do names[#names + 1] = name end
    table.sort(names)
    local loop = {}
    loop[1] = loop
    local values = {
      function() return nil end, function() return 1 end, function() return "q" end, function() return {} end,
      function() return { { name = "x", payload = { 1 } } } end, function() return -1 end,
      function() return { { name = "x", payload = loop } } end, function() return 2.5 end,
      function() return { id = 1, run = 1, kind = "ack", result = 1 } end, function() return true end,
      function() return "SELECT 1 AS a" end, function() return null end, function() return math.maxinteger end,
      function() return print end, function() return db end, function() return "\0\xFF" end,
    }
    local fuzzed = open()
    for _ = 1, 1500 do
      local name = names[math.random(#names)]
      local given = {}
      local n = math.random(0, 3)
      for i = 1, n do given[i] = values[math.random(#values)]() end
      if name ~= "claim" or given[3] ~= math.maxinteger then -- would wait for ever
        local result = table.pack(pcall(fuzzed[name], fuzzed, table.unpack(given, 1, n)))
        if result[1] and result[2] == nil and result.n > 1 then assert.is_string(result[4], name) end
        if not result[1] then assert.is_string(result[2], name) end
      end
      if not fuzzed:is_open() then fuzzed = open() end
    end
  end)
end)
