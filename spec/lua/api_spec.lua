-- The public handles against a real server: open, queue, push, claim, verbs. The answers to bad
-- values and bad options are part of it. db:transaction, tx:try and tx:ack: which changes are
-- written together, and which failures undo them. Listings have a file of their own.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local server = require "spec.support.db"
local lab = require "spec.support.db".lab

local open, ids_of = lab.open, lab.ids_of

local db
lab.handles(1, function(handle) db = handle end)

local function fresh_queue() return lab.queue(db) end

describe("open", function()
  it("raises for an unknown option and suggests the nearest", function()
    assert.error_matches(function() nightshift.open { hots = "x" } end,
      "open: unknown option 'hots'; did you mean 'host'%?")
    assert.error_matches(function() nightshift.open { zzz = 1 } end,
      "unknown option 'zzz'; known: ca, cert, connect_timeout")
    assert.error_matches(function() nightshift.open { [1] = "x" } end, "unknown option '1'")
  end)

  it("raises for a wrong type", function()
    assert.error_matches(function() nightshift.open(5) end, "open wants a URL or a table of options, got number")
    assert.error_matches(function() nightshift.open { port = "3306" } end,
      "open: port must be a whole number, got string")
    assert.error_matches(function() nightshift.open { user = 1 } end, "open: user must be a string, got number")
  end)

  it("tells of a bad value", function()
    local none, message, code = nightshift.open { host = "localhost", port = 70000 }
    assert.same({ nil, "INVALID" }, { none, code })
    assert.is_truthy(message:find("port must be a whole number from 1 to 65535, got 70000", 1, true))
    assert.equal("INVALID", select(3, nightshift.open { connect_timeout = "soon" }))
    assert.equal("INVALID", select(3, nightshift.open "postgres://x/y"))
  end)

  it("says GONE when nobody listens there, soon", function()
    local start = nightshift.clock()
    local none, message, code = nightshift.open { socket = "/nonexistent/s.sock", user = "x", database = "x" }
    assert.same({ nil, "GONE" }, { none, code })
    assert.is_truthy(message:find("/nonexistent/s.sock", 1, true), message)
    assert.is_true(nightshift.clock() - start < proc.limit(15))
    assert.equal("GONE", select(3, nightshift.open { host = "127.0.0.1", port = 1, user = "x", database = "x" }))
  end)

  it("says GONE for an unknown host", function()
    local none, message, code = nightshift.open { host = "no-such-host.invalid", user = "x", database = "x" }
    assert.same({ nil, "GONE" }, { none, code })
    assert.is_truthy(message:find("no-such-host.invalid", 1, true), message)
  end)

  it("says DENIED for a wrong password, and does not show it", function()
    local reader, user = server.user(lab.url(), "SELECT")
    local none, message, code = nightshift.open((reader:gsub("Pass%-word_1", "wrong-secret")))
    assert.same({ nil, "DENIED" }, { none, code })
    assert.is_truthy(message:find(user, 1, true), message)
    assert.is_nil(message:find("wrong-secret", 1, true))
  end)

  it("says DENIED when privileges are missing, and to whom", function()
    local nobody, name = server.user(lab.url(), "")
    local none, message, code = nightshift.open(nobody)
    assert.same({ nil, "DENIED" }, { none, code })
    assert.is_truthy(message:find(name, 1, true), message)
    local weak, user = server.user(lab.url(), "SELECT")
    local reader <close> = assert(nightshift.open(weak))
    none, message, code = reader:queue("denied"):push("a", 1)
    assert.same({ nil, "DENIED" }, { none, code })
    assert.is_truthy(message:find(user, 1, true), message)
  end)

  it("tells that the database is missing", function()
    local none, message, code = nightshift.open(server.url "no_such_database")
    assert.is_nil(none)
    assert.is_truthy(message:find("no_such_database", 1, true), message)
    assert.is_truthy(code == "SCHEMA" or code == "DENIED", code)
  end)

  it("says SCHEMA and the command to run when the tables are missing, older or newer", function()
    local empty = server.empty()
    local none, message, code = nightshift.open(empty)
    assert.same({ nil, "SCHEMA" }, { none, code })
    assert.is_truthy(message:find("nightshift init", 1, true), message)

    local plain <close> = assert(nightshift.open { url = empty, no_schema = true })
    local schema = require "nightshift.core".schema()
    local newest = schema[#schema].version
    assert.same({ 0, newest }, { plain:migrate() })
    assert.same({ newest, newest }, { plain:migrate() })
    nightshift.open(empty):close()

    assert(plain:execute "UPDATE nightshift_meta SET value = '99' WHERE name = 'schema'")
    none, message, code = nightshift.open(empty)
    assert.same({ nil, "SCHEMA" }, { none, code })
    assert.is_truthy(message:find("99", 1, true) and message:find("newer", 1, true), message)
    assert.equal("SCHEMA", select(3, plain:migrate()))

    assert(plain:execute "UPDATE nightshift_meta SET value = '0' WHERE name = 'schema'")
    none, message, code = nightshift.open(empty)
    assert.same({ nil, "SCHEMA" }, { none, code })
    assert.is_truthy(message:find("run `nightshift", 1, true), message)
  end)

  it("takes the address from $NIGHTSHIFT_URL when it gets none", function()
    local script = [[
      local db, message, code = require "nightshift".open()
      print(db and "open" or message, code)]]
    local function run(env)
      local _, out = proc.run { proc.lua, "-e", script, env = { NIGHTSHIFT_URL = env } }
      return out
    end
    assert.equal("open\tnil\n", run(lab.url()))
    assert.is_truthy(run("mysql://x@localhost/x?unix_socket=/nonexistent/s.sock"):find "/nonexistent/s.sock.*\tGONE\n$")
  end)

  it("loads adopted tables, schedules and reports with the first verb that needs them", function()
    local script = [[
      local db = assert(require "nightshift".open())
      local function loaded()
        local names = {}
        for _, name in ipairs { "report", "schedule", "source.table" } do
          if package.loaded["nightshift." .. name] then names[#names + 1] = name end
        end
        print("loaded: " .. table.concat(names, " "))
      end
      local q = assert(db:queue "]] .. fresh_queue().name .. [[")
      assert(q:push "a")
      assert(q:claim():ack())
      loaded()
      assert(db:schedules())
      loaded()
      assert(db:jobs { state = "done" })
      loaded()]]
    local _, out, err = proc.run { proc.lua, "-e", script, env = { NIGHTSHIFT_URL = lab.url() } }
    assert.equal("loaded: \nloaded: schedule\nloaded: report schedule\n", out, err)
  end)

  it("ends with the server, and works again when it is back", function()
    local own = server.server()
    local other <close> = assert(nightshift.open((own:fresh())))
    local q = other:queue "mail"
    local id = assert(q:push("a", 1))
    own:stop()
    local none, message, code = q:push("a", 2)
    assert.same({ nil, "GONE" }, { none, code })
    assert.is_truthy(message:find(own.socket, 1, true), message)
    assert.equal("GONE", select(3, other:ping()))
    assert.equal("GONE", select(3, q:claim()))
    own:start()
    assert.is_true(other:ping())
    local job = q:claim()
    assert.equal(id, job.id)
    assert.is_true(job:ack())
  end)
end)

describe("a database handle", function()
  it("closes twice, and raises when used closed", function()
    local other = open()
    local q = other:queue "mail"
    other:close()
    other:close()
    assert.error_matches(function() q:push("a", 1) end, "closed database")
    assert.error_matches(function() other:ping() end, "closed database")
    assert.is_truthy(tostring(other):find "closed")
  end)

  it("raises for every verb when it is closed, with the caller's position", function()
    local other = open()
    local q = other:queue "closed"
    q:push("a", 1)
    local job, lock = q:claim(), other:lock "closed"
    other:close()
    local verbs = {
      queue = function() other:queue "x" end, job = function() other:job(1) end, jobs = function() other:jobs() end,
      cancel = function() other:cancel(1) end, retry = function() other:retry(1) end,
      run_now = function() other:run_now(1) end, transaction = function() other:transaction(print) end,
      execute = function() other:execute "SELECT 1" end, lock = function() other:lock "x" end,
      semaphore = function() other:semaphore("x", 2) end, slots = function() other:slots() end,
      stats = function() other:stats() end, prune = function() other:prune() end,
      rescue = function() other:rescue() end, migrate = function() other:migrate() end,
      ping = function() other:ping() end, push = function() q:push("a", 1) end,
      push_many = function() q:push_many {} end, claim = function() q:claim() end,
      claim_many = function() q:claim_many(5) end, ["jobs "] = function() q:jobs() end,
      pause = function() q:pause() end, resume = function() q:resume() end, ["stats "] = function() q:stats() end,
      ack = function() job:ack() end, fail = function() job:fail "x" end, again = function() job:again(1) end,
      discard = function() job:discard "x" end, release = function() job:release() end,
      touch = function() job:touch() end, progress = function() job:progress(0.5) end,
      cancelled = function() job:cancelled() end, spawn = function() job:spawn "x" end,
      acquire = function() lock:acquire() end,
    }
    for verb, call in pairs(verbs) do
      local ok, message = pcall(call)
      assert.is_false(ok, verb)
      assert.is_truthy(message:find("^spec/lua/api_spec%.lua:%d+: nightshift: " .. verb:match "%S+"
        .. ": a closed database handle cannot be used$"), message)
    end
    assert.is_false(lock:is_held())
    local left <close> = job -- was given back by the close
    assert.equal("ready", db:job(left.id).state)
    db:cancel(left.id)
  end)

  it("says that its verbs want a colon, to the caller", function()
    local q = fresh_queue()
    q:push("a", 1)
    local job <close> = q:claim()
    local lock, mutex = db:lock "colon", nightshift.mutex "colon"
    local calls = {
      ["db.queue: write it with a colon, db:queue(…); its first argument was a string"] =
        function() db.queue "x" end,
      ["db.close: write it with a colon"] = function() db.close() end,
      ["q.push: write it with a colon, q:push(…); its first argument was a string"] = function() q.push "a" end,
      ["q.claim: write it with a colon, q:claim(…); its first argument was nil"] = function() q.claim() end,
      ["job.ack: write it with a colon, job:ack(…); its first argument was nil"] = function() job.ack() end,
      ["job.progress: write it with a colon"] = function() job.progress(0.5) end,
      ["job.spawn: write it with a colon"] = function() job.spawn "x" end,
      ["lock.acquire: write it with a colon"] = function() lock.acquire() end,
      ["mutex.acquire: write it with a colon"] = function() mutex.acquire(5) end,
      ["tx.queue: write it with a colon"] = function() db:transaction(function(tx) tx.queue "x" end) end,
    }
    for expected, call in pairs(calls) do
      local ok, message = pcall(call)
      assert.is_false(ok, expected)
      assert.is_truthy(message:find("^spec/lua/api_spec%.lua:%d+: nightshift: "), message)
      assert.is_truthy(message:find(expected, 1, true), message)
    end
  end)

  it("is closed by <close>", function()
    local kept
    do
      local other <close> = open()
      kept = other
      assert.is_true(other:ping())
    end
    assert.error_matches(function() kept:ping() end, "closed database")
  end)

  it("lives as long as a queue of it", function()
    local q = open():queue "kept"
    collectgarbage()
    collectgarbage()
    assert.is_truthy(q:push("a", 1))
    q:claim():ack()
    q._db:close()
  end)
end)

describe("a queue name", function()
  it("is refused before anything is written", function()
    local cases = {
      { "", "queue name is empty" },
      { ("q"):rep(65), "queue name has 65 bytes, the limit is 64" },
      { ("ä"):rep(33), "queue name has 66 bytes, the limit is 64" },
      { "a\0b", "queue name has a control character at byte 2" },
      { "a\n", "queue name has a control character at byte 2" },
      { "a\u{85}", "queue name has a control character at byte 2" },
      { "a\xff", "queue name is not valid UTF-8 at byte 2" },
    }
    for _, case in ipairs(cases) do
      assert.same({ nil, case[2], "INVALID" }, { db:queue(case[1]) })
    end
    assert.error_matches(function() db:queue(5) end, "queue: the name must be a string, got number")
    assert.error_matches(function() db:queue() end, "queue: the name must be a string, got nil")
  end)

  it("may be 64 bytes of anything printable", function()
    for _, name in ipairs { ("q"):rep(64), "mail queue", "ä/ö=ü,%_'\"`\\", "日本語" } do
      local q = assert(db:queue(name))
      local id = assert(q:push("a", 1))
      local job = assert(q:claim())
      assert.same({ id, name }, { job.id, job.queue })
      job:ack()
    end
  end)
end)

describe("push", function()
  it("gives ids, and claim gives the jobs back in order", function()
    local q = fresh_queue()
    local first = assert(q:push("email.send", { to = "a@example.com", n = 1 << 62, list = {} }))
    local second = assert(q:push "ping")
    local a, b = q:claim(), q:claim()
    assert.same({ first, second }, { a.id, b.id })
    assert.equal("email.send", a.name)
    assert.same({ to = "a@example.com", n = 1 << 62, list = {} }, a.payload)
    assert.is_nil(b.payload)
    assert.same({ 1, 0, 1, q.name }, { a.attempt, a.polls, a.run, a.queue })
    assert.is_truthy(a.key:match "^%x+%-%x+$")
    assert.is_true(a:ack { bytes = 5 })
    assert.is_true(b:ack())
    local third, message = q:claim()
    assert.is_nil(third)
    assert.is_nil(message)
    assert.same({ bytes = 5 }, db:job(first).result)
  end)

  it("obeys priority and delay", function()
    local q = fresh_queue()
    q:push("low", 1, { priority = 10 })
    q:push("later", 1, { delay = "1h" })
    q:push("high", 1, { priority = 200 })
    local claimed = q:claim_many(10)
    assert.equal(2, #claimed)
    assert.same({ "high", "low" }, { claimed[1].name, claimed[2].name })
    for _, job in ipairs(claimed) do job:ack() end
  end)

  it("keeps a unique key to one live job", function()
    local q = fresh_queue()
    local id = assert(q:push("a", 1, { unique = "k" }))
    local none, message, code = q:push("a", 2, { unique = "k" })
    assert.same({ nil, "DUPLICATE" }, { none, code })
    assert.is_truthy(message:find(tostring(id), 1, true), message)
    q:claim():ack()
    q:push("a", 3, { unique = "k" })
    q:claim():ack()
  end)

  it("takes any text as a unique key, byte by byte, and shows it without control characters", function()
    local q = fresh_queue()
    local keys = { "a", "a\0", "a\0b", "a ", "A", "ä\n\27[31m", ("ж"):rep(190) }
    for _, key in ipairs(keys) do
      local id = assert(q:push("a", 1, { unique = key }))
      assert.equal(key, db:job(id).unique)
      local none, message, code = q:push("a", 1, { unique = key })
      assert.same({ nil, "DUPLICATE" }, { none, code })
      assert.is_nil(message:find "%c")
      assert.is_truthy(utf8.len(message), message)
      assert.is_truthy(message:find(("is held by job %d"):format(id), 1, true), message)
    end
    for job in q:jobs() do job:ack() end
  end)

  it("refuses a bad name, before anything is written", function()
    local q = fresh_queue()
    for _, name in ipairs { "", ("n"):rep(101), "a\0b", "a\27[31m", "a\xff" } do
      local none, message, code = q:push(name, 1)
      assert.same({ nil, "INVALID" }, { none, code })
      assert.is_truthy(message:find "name", message)
    end
    assert.error_matches(function() q:push(nil, 1) end, "push: the job's name must be a string, got nil")
    assert.error_matches(function() q:push("a", 1, {}, 4) end,
      "push takes name, payload and options; it got a number behind them")
    assert.same({}, db:jobs { queue = q.name })
    q:push(("n"):rep(100))
    q:claim():ack()
  end)

  it("refuses a bad payload and shows its path", function()
    local q = fresh_queue()
    local cycle = { list = { 1, 2 } }
    cycle.list[3] = { x = cycle }
    local deep = {}
    for _ = 1, 3000 do deep = { deep } end
    local cases = {
      { cycle, "payload.list[3].x", "INVALID" },
      { { f = print }, "payload.f: cannot encode a function", "INVALID" },
      { { a = { "x", "\xff" } }, "payload.a[2]", "INVALID" },
      { { n = 0 / 0 }, "payload.n", "INVALID" },
      { { [1] = 1, x = 2 }, "payload", "INVALID" },
      { { co = coroutine.create(print) }, "payload.co", "INVALID" },
      { deep, "payload", "INVALID" },
      { ("x"):rep(2 << 20), "over the limit of 1048576", "TOO_BIG" },
    }
    for _, case in ipairs(cases) do
      local none, message, code = q:push("a", case[1])
      assert.same({ nil, case[3] }, { none, code })
      assert.is_truthy(message:find(case[2], 1, true), message)
    end
    assert.same({}, db:jobs { queue = q.name })
    assert.is_truthy(q:push("a", "the handle still works"))
    q:claim():ack()
  end)

  it("takes a payload up to the limit that open was given", function()
    local big <close> = open { max_payload = 3 << 20 }
    local q = big:queue "big"
    assert.is_truthy(q:push("a", ("x"):rep(2 << 20)))
    local job = q:claim()
    assert.equal(2 << 20, #job.payload)
    job:ack()
    local small <close> = open { max_payload = 10 }
    assert.equal("TOO_BIG", select(3, small:queue("small"):push("a", "0123456789")))
  end)

  it("raises for an unknown option and for wrong types", function()
    local q = fresh_queue()
    local cases = {
      { { dealy = 5 }, "push: unknown option 'dealy'; did you mean 'delay'?" },
      { { max_attemps = 5 }, "did you mean 'max_attempts'?" },
      { { retries = 5 }, "push: unknown option 'retries'; known: after, at, backoff, deadline, decay, delay" },
      { { 5 }, "push: unknown option '1'" },
      { 5, "push: options must be a table, got number" },
      { { delay = {} }, "push: delay must be seconds or a text like \"5m\", got table" },
      { { priority = "high" }, "push: priority must be a whole number, got string" },
      { { unique = 42 }, "push: unique must be a string or {key =, period =, on_conflict =}, got number" },
    }
    for _, case in ipairs(cases) do
      local ok, message = pcall(q.push, q, "a", 1, case[1])
      assert.is_false(ok)
      assert.is_truthy(message:find(case[2], 1, true), message)
      assert.is_truthy(message:find("api_spec.lua:", 1, true), message)
    end
  end)

  it("refuses bad values of options", function()
    local q = fresh_queue()
    local cases = {
      { { delay = -1 }, "push: delay" }, { { delay = "5x" }, "push: delay: bad duration '5x'" },
      { { delay = 0 / 0 }, "push: delay" }, { { delay = math.huge }, "push: delay" },
      { { priority = 256 }, "priority must be a whole number from 0 to 255, got 256" },
      { { priority = -1 }, "priority" }, { { priority = 1.5 }, "priority" },
      { { max_attempts = 0 }, "max_attempts" }, { { max_crashes = 0 }, "max_crashes" },
      { { max_attempts = 1000001 }, "max_attempts must be a whole number from 1 to 1000000, got 1000001" },
      { { max_polls = 0 }, "max_polls" },
      { { timeout = 0 }, "push: timeout must be at least a microsecond, got 0" },
      { { timeout = "0s" }, "push: timeout must be at least a microsecond, got 0s" },
      { { delay = "36526d" }, "push: delay must be at most 3155760000 s (100 years), got 36526d" },
      { { unique = "" }, "push: unique is empty; it must have 1 to 190 characters" },
      { { unique = ("ä"):rep(191) }, "push: unique has 191 characters, the limit is 190" },
      { { unique = "a\xff" }, "push: unique is not valid UTF-8 at byte 2" },
    }
    for _, case in ipairs(cases) do
      local none, message, code = q:push("a", 1, case[1])
      assert.same({ nil, "INVALID" }, { none, code }, case[2])
      assert.is_truthy(message:find(case[2], 1, true), message)
    end
    assert.same({}, db:jobs { queue = q.name })
  end)
end)

describe("push_many", function()
  it("pushes all, in order", function()
    local q = fresh_queue()
    local items = {}
    for i = 1, 250 do items[i] = { "n", i } end
    local ids = assert(q:push_many(items))
    assert.equal(250, #ids)
    local claimed = q:claim_many(1000)
    assert.same(ids, ids_of(claimed))
    for i, job in ipairs(claimed) do
      assert.equal(i, job.payload)
      job:ack()
    end
    assert.same({}, q:push_many {})
  end)

  it("pushes all or none, and says which item is bad", function()
    local q = fresh_queue()
    local none, message, code = q:push_many { { "a", 1 }, { "b", print } }
    assert.same({ nil, "INVALID" }, { none, code })
    assert.is_truthy(message:find("2", 1, true) and message:find("payload", 1, true), message)
    assert.equal("INVALID", select(3, q:push_many { { "a", 1 }, { "", 1 } }))
    assert.equal("DUPLICATE", select(3, q:push_many { { "a", 1, { unique = "u" } }, { "a", 1, { unique = "u" } } }))
    message = select(2, q:push_many { { "a", 1 }, { "b", 1, { delay = "x" } } })
    assert.is_truthy(message:find("push_many: item 2: delay", 1, true), message)
    assert.error_matches(function() q:push_many { { "a" }, { nil, "b" } } end,
      "item 2: the job's name must be a string")
    assert.error_matches(function() q:push_many { "a" } end, "item 1 must be {name, payload, options}, got string")
    assert.error_matches(function() q:push_many "a" end, "push_many wants a list")
    local bad = {
      { { { "a", 1 }, nil, { "a", 2 } }, "item 2 is nil, but there is an item 3; a list has no holes" },
      { { [2] = { "a", 1 } }, "item 1 is nil, but there is an item 2" },
      { { x = { "a" } }, "push_many wants a list of items; this one has the key 'x'" },
      { { { "a" }, [0] = { "a" } }, "this one has the key 0" },
      { { { "a" }, [1.5] = { "a" } }, "this one has the key (a number)" },
      { { { "a", 1, {}, 4 } }, "item 1 must be {name, payload, options}; it has the key 4" },
      { { { "a", 1 }, { "a", 1, delay = 5 } }, "item 2 must be {name, payload, options}; it has the key 'delay'" },
    }
    for _, case in ipairs(bad) do
      local ok, why = pcall(q.push_many, q, case[1])
      assert.is_false(ok)
      assert.is_truthy(why:find(case[2], 1, true), why)
      assert.is_truthy(why:find("api_spec.lua:", 1, true), why)
    end
    assert.error_matches(function() q:push_many { { "a", 1, { dealy = 1 } } } end, "did you mean 'delay'")
    assert.same({}, db:jobs { queue = q.name })
  end)
end)

describe("claim", function()
  it("refuses what it does not know", function()
    local q = fresh_queue()
    assert.error_matches(function() q:claim { wiat = 1 } end, "claim: unknown option 'wiat'; did you mean 'wait'")
    assert.equal("INVALID", select(3, q:claim { wait = -1 }))
    assert.equal("INVALID", select(3, q:claim_many(0)))
    assert.equal("INVALID", select(3, q:claim_many(10001)))
    assert.error_matches(function() q:claim_many "x" end, "number of jobs must be a whole number, got string")
  end)

  it("waits as long as it is told", function()
    local q = fresh_queue()
    local start = nightshift.clock()
    assert.is_nil(q:claim { wait = 0.3 })
    local took = nightshift.clock() - start
    assert.is_true(took >= 0.29 and took < proc.limit(10), took)
  end)

  it("finds a scheduled job when it is due", function()
    local q = fresh_queue()
    local id = q:push("soon", 1, { delay = 0.2 })
    assert.is_nil(q:claim())
    local job = assert(q:claim { wait = 20 })
    assert.equal(id, job.id)
    job:ack()
  end)

  it("leaves a paused queue alone", function()
    local q = fresh_queue()
    assert.equal("NOT_FOUND", select(3, q:resume()))
    assert.is_true(q:pause())
    q:push("a", 1)
    assert.is_nil(q:claim())
    assert.is_true(q:stats().paused)
    assert.is_true(q:resume())
    q:claim():ack()
  end)
end)

describe("a claimed job", function()
  it("ends once: the second verb says STALE", function()
    local q = fresh_queue()
    q:push("a", 1)
    local job = q:claim()
    assert.is_true(job:ack())
    assert.equal("STALE", select(3, job:ack()))
    assert.equal("STALE", select(3, job:touch()))
    assert.is_true(job:cancelled())
  end)

  it("and all verbs give their values, and no nil behind them", function()
    local q = fresh_queue()
    local function count(...) return select("#", ...) end
    local id = assert(q:push "a")
    assert.same({ 2, 2, 1, 2, 1 }, { count(db:flow { name = "b" }), count(db:flow_many { { name = "b" } }),
      count(db:jobs { queue = q.name }), count(db:why(id)), count(q:claim_many(5, { names = { "c" } })) })
    local job = q:claim()
    assert.equal(1, count(job:progress(0.5)))
    assert.equal(2, count(job:fail("x", { retry_in = 0 })))
    assert.equal(2, count(q:claim():again(0)))
    assert.equal(1, count(q:claim():ack()))
    assert(db:transaction(function(tx)
      assert.same({ 1, 1 }, { count(tx:queue(q.name)), count(tx:execute "SELECT 1") })
    end))
  end)

  it("comes back after fail, with the error in its history", function()
    local q = fresh_queue()
    local id = q:push("a", 1, { max_attempts = 2 })
    local job = q:claim()
    job:log "about to fail"
    local ok, dead = job:fail("boom", { retry_in = 0 })
    assert.same({ true, false }, { ok, dead })
    job = q:claim { wait = 20 }
    assert.same({ id, 2, 2 }, { job.id, job.attempt, job.run })
    ok, dead = job:fail { code = 5 }
    assert.same({ true, true }, { ok, dead })
    local info = db:job(id)
    assert.same({ "dead", '{"code":5}' }, { info.state, info.error })
    assert.is_truthy(info.reason)
    assert.is_nil(info.where)
  end)

  it("comes back after again, with its state and without a spent attempt", function()
    local q = fresh_queue()
    local id = q:push("a", 1)
    q:claim():again(0, { page = 2 })
    local job = q:claim { wait = 20 }
    assert.same({ { page = 2 }, 1, 1 }, { job.state, job.polls, job.attempt })
    job:again(60)
    local info = db:job(id)
    assert.same({ "scheduled", { page = 2 } }, { info.state, info.kept })
    assert.is_true(db:run_now(id))
    q:claim():ack()
  end)

  it("is dead at once after discard", function()
    local q = fresh_queue()
    local id = q:push("a", 1)
    q:claim():discard "no such user"
    local info = db:job(id)
    assert.same({ "dead", "no such user" }, { info.state, info.error })
  end)

  it("is given back by release, and by the end of its block", function()
    local q = fresh_queue()
    local id = q:push("a", 1)
    q:claim():release()
    do
      local job <close> = q:claim()
      assert.same({ id, 1 }, { job.id, job.attempt })
    end
    local job = q:claim()
    assert.same({ id, 1 }, { job.id, job.attempt })
    job:ack()
  end)

  it("shows progress", function()
    local q = fresh_queue()
    local id = q:push("a", 1)
    local job = q:claim()
    assert.is_true(job:progress(0.4, "page 4/10"))
    local info = db:job(id)
    assert.same({ "running", 0.4, "page 4/10" }, { info.state, info.progress, info.status })
    local row = db:jobs({ state = "running", queue = q.name })[1]
    assert.same({ id, 0.4, "page 4/10" }, { row.id, row.progress, row.status })
    job:ack()
  end)

  it("keeps its claim when the result cannot be stored", function()
    local q = fresh_queue()
    q:push("a", 1)
    local job = q:claim()
    local none, message, code = job:ack { f = print }
    assert.same({ nil, "INVALID" }, { none, code })
    assert.is_truthy(message:find("result.f", 1, true), message)
    assert.equal("TOO_BIG", select(3, job:ack(("x"):rep(2 << 20))))
    assert.is_true(job:ack "small")
  end)

  it("takes an error text that is huge or not UTF-8", function()
    local q = fresh_queue()
    local id = q:push("a", 1, { max_attempts = 1 })
    assert.is_true(q:claim():fail(("\xffx"):rep(1 << 20)))
    assert.equal("dead", db:job(id).state)
  end)

  it("gives its children to the queue with its ack", function()
    local q = fresh_queue()
    q:push("parent", 1)
    local job = q:claim()
    local child = assert(job:spawn("child", { n = 1 }))
    local other = assert(job:spawn("child", nil, { queue = q.name .. "-other" }))
    assert.equal("NOT_FOUND", select(3, db:job(child)))
    job:ack()
    local claimed = q:claim()
    assert.same({ child, job.id, { n = 1 } }, { claimed.id, claimed.parent, claimed.payload })
    claimed:ack()
    claimed = db:queue(q.name .. "-other"):claim()
    assert.equal(other, claimed.id)
    claimed:ack()
  end)

  it("drops its children with a failure", function()
    local q = fresh_queue()
    q:push("parent", 1, { max_attempts = 1 })
    local job = q:claim()
    local child = job:spawn("child", 1)
    job:fail "no"
    assert.equal("NOT_FOUND", select(3, db:job(child)))
  end)
end)

describe("q:jobs()", function()
  it("runs until the queue is empty", function()
    local q = fresh_queue()
    q:push_many { { "a", 1 }, { "a", 2 }, { "a", 3 } }
    local sum = 0
    for job in q:jobs() do
      sum = sum + job.payload
      job:ack()
    end
    assert.equal(6, sum)
  end)

  it("gives an unsettled job back on break", function()
    local q = fresh_queue()
    local id = q:push("a", 1)
    for job in q:jobs() do -- luacheck: ignore 512
      assert.equal(id, job.id)
      break
    end
    local job = q:claim()
    assert.same({ id, 1 }, { job.id, job.attempt })
    job:ack()
  end)

  it("leaves a settled job alone on break", function()
    local q = fresh_queue()
    local id = q:push("a", 1)
    for job in q:jobs() do -- luacheck: ignore 512
      job:ack()
      break
    end
    assert.equal("done", db:job(id).state)
  end)
end)

describe("verbs from outside", function()
  it("cancel a live job once", function()
    local q = fresh_queue()
    local id = q:push("a", 1)
    local job = q:claim()
    assert.is_true(db:cancel(id))
    assert.is_true(job:cancelled())
    assert.equal("STALE", select(3, job:ack()))
    assert.equal("STATE", select(3, db:cancel(id)))
    assert.equal("NOT_FOUND", select(3, db:cancel(1 << 60)))
    assert.error_matches(function() db:cancel "1" end, "cancel: the id must be an integer, got a string")
    assert.error_matches(function() db:job(1.5) end, "job: the id must be an integer, got 1.5")
    assert.error_matches(function() db:cancel(id, { raeson = "x" }) end, "did you mean 'reason'")
    assert.same({ nil, "cancel: reason is not valid UTF-8 at byte 2", "INVALID" },
      { db:cancel(id, { reason = "a\xff" }) })
  end)

  it("retry a finished job with fresh budgets", function()
    local q = fresh_queue()
    local id = q:push("a", 1, { max_attempts = 1 })
    assert.equal("STATE", select(3, db:retry(id)))
    q:claim():fail "x"
    assert.is_true(db:retry(id))
    local job = q:claim()
    assert.same({ id, 1 }, { job.id, job.attempt })
    job:ack()
    assert.equal("NOT_FOUND", select(3, db:retry(1 << 60)))
    assert.equal("NOT_FOUND", select(3, db:run_now(1 << 60)))
    assert.equal("NOT_FOUND", select(3, db:job(1 << 60)))
  end)

  it("prune deletes history by age and keeps what false names", function()
    local q = fresh_queue()
    local done, dead = q:push("a", 1), q:push("b", 1)
    q:claim():ack()
    q:claim():discard "x"
    assert.equal(0, db:prune())
    assert.is_true(db:prune { done = 0, dead = false } >= 1)
    assert.equal("NOT_FOUND", select(3, db:job(done)))
    assert.equal("dead", db:job(dead).state)
    assert.is_true(db:prune { dead = 0 } >= 1)
    assert.equal("NOT_FOUND", select(3, db:job(dead)))
    assert.error_matches(function() db:prune { days = 1 } end, "prune: unknown option 'days'")
    assert.equal("INVALID", select(3, db:prune { done = "x" }))
  end)
end)

-- ----- transactions

-- tx:ack: the end of a job and its own rows in one transaction.
describe("tx:ack", function()
  local url, handle, q

  with_database(function(opened, _, at)
    handle, url = opened, at
    q = assert(handle:queue "default")
    assert(handle:execute "CREATE TABLE mark (id BIGINT NOT NULL) ENGINE=InnoDB")
  end)

  local function marks() return handle:execute("SELECT COUNT(*) AS n FROM mark")[1].n end

  local function mark(tx, job) assert(tx:execute("INSERT INTO mark VALUES (?)", job.id)) end

  it("ends jobs together with the rows that belong to them", function()
    assert(q:push_many { { "a" }, { "b" } })
    local jobs = assert(q:claim_many(2))
    assert(handle:transaction(function(tx)
      for i, job in ipairs(jobs) do
        mark(tx, job)
        assert.is_true(tx:ack(job, i))
      end
    end))
    assert.equal(2, marks())
    for i, job in ipairs(jobs) do
      assert.equal("done", handle:job(job.id).state)
      assert.equal(i, handle:job(job.id).result)
    end
  end)

  it("counts for nothing when the transaction does not commit", function()
    assert(q:push "a")
    local job = assert(q:claim())
    assert.error_matches(function()
      handle:transaction(function(tx)
        assert(tx:ack(job))
        error "no"
      end)
    end, "no")
    assert.equal("running", handle:job(job.id).state)
    assert.is_true(job:ack())
  end)

  it("keeps the transaction from its commit when the claim is lost", function()
    assert(q:push "a")
    local job = assert(q:claim())
    assert(handle:cancel(job.id))
    local done, message, code = handle:transaction(function(tx)
      mark(tx, job)
      tx:ack(job) -- what it says is not looked at
    end)
    assert.is_nil(done)
    assert.matches("job " .. job.id, message)
    assert.equal("STALE", code)
    assert.equal(0, marks())
  end)

  it("takes no job of another handle", function()
    local other <close> = assert(nightshift.open(url))
    assert(q:push "a")
    local job = assert(q:claim())
    assert.error_matches(function()
      other:transaction(function(tx) tx:ack(job) end)
    end, "job %d+ was not claimed on this handle")
    assert.error_matches(function()
      handle:transaction(function(tx) tx:ack(5) end)
    end, "tx:ack wants a job, got number")
    assert.is_true(job:ack())
  end)

  it("ends the job of a handler with what the handler writes, and its children come", function()
    local id = assert(q:push "pay")
    local status, log = host.drain(url, [[return {
      pay = function(job)
        job:spawn("after", 1)
        assert(job:db():transaction(function(tx)
          assert(tx:execute("INSERT INTO mark VALUES (?)", job.id))
          assert(tx:ack(job, "paid"))
        end))
        error "too late to count"
      end,
      after = function() end,
    }]])
    assert.equal(0, status, log)
    assert.equal(1, marks())
    local job = assert(handle:job(id))
    assert.equal("done", job.state)
    assert.equal("paid", job.result)
    assert.equal(0, job.attempts)
    assert.equal(1, handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished WHERE parent = ?", id)[1].n)
  end)
end)

-- Statements that end a transaction (COMMIT, CREATE TABLE, TRUNCATE, BEGIN, LOCK TABLES, a
-- procedure that does) went unnoticed inside db:transaction. What came behind them was
-- committed statement by statement, and a raise undid nothing.
describe("a statement that ends the transaction", function()
  local handle

  with_database(function(opened)
    handle = opened
    assert(handle:execute "CREATE TABLE mark (id BIGINT NOT NULL PRIMARY KEY) ENGINE=InnoDB")
    assert(handle:execute "CREATE TABLE other (id BIGINT NOT NULL PRIMARY KEY) ENGINE=InnoDB")
  end)

  local function names()
    local list = {}
    for i, row in ipairs(assert(handle:execute "SELECT name FROM nightshift_job ORDER BY id")) do list[i] = row.name end
    return table.concat(list, " ")
  end

  local ENDS = {
    ["COMMIT"] = "before", ["ROLLBACK"] = "", ["BEGIN"] = "before", ["START TRANSACTION"] = "before",
    ["CREATE OR REPLACE TABLE zz (a INT)"] = "before", ["TRUNCATE other"] = "before",
    ["LOCK TABLES mark WRITE"] = "before",
    ["/* x */ COMMIT AND CHAIN"] = "before", ["CALL ends()"] = "before", ["CALL begins()"] = "before",
  }

  before_each(function()
    assert(handle:execute "CREATE PROCEDURE ends() COMMIT")
    assert(handle:execute "CREATE PROCEDURE begins() BEGIN COMMIT; START TRANSACTION; END")
  end)

  for sql, stays in pairs(ENDS) do
    it("is noticed: " .. sql, function()
      local said, later
      local value, message, code = handle:transaction(function(tx)
        tx:queue "q":push "before"
        said = { tx:execute(sql) }
        later = { tx:queue "q":push "after" }
        return true
      end)
      assert.same({ nil, "STATE" }, { said[1], said[3] })
      assert.matches("this statement has ended the transaction", said[2])
      assert.is_nil(later[1])
      assert.same({ nil, said[2], "STATE" }, { value, message, code })
      assert.equal(stays, names())
      assert.is_true(handle:transaction(function(tx) assert(tx:queue "q":push "next") end))
      assert.matches("next$", names())
    end)
  end

  it("is none that only says so, or goes back to a savepoint", function()
    for _, sql in ipairs { "SELECT 'COMMIT'", "SAVEPOINT mine", "ROLLBACK TO mine", "ROLLBACK WORK TO SAVEPOINT mine",
      "RELEASE SAVEPOINT mine", "SET @x = 1", "CREATE TEMPORARY TABLE tt (a INT)", "DO 1", "SHOW WARNINGS" } do
      assert(handle:execute "DROP TEMPORARY TABLE IF EXISTS tt")
      assert.is_true(handle:transaction(function(tx)
        if sql:find "mine$" and not sql:find "^SAVE" then assert(tx:execute "SAVEPOINT mine") end
        assert(tx:execute(sql))
        assert(tx:execute "INSERT IGNORE INTO mark VALUES (1)")
      end), sql)
    end
  end)

  it("is noticed inside tx:try, which cannot save it", function()
    local said
    local value, _, code = handle:transaction(function(tx)
      tx:queue "q":push "before"
      said = { tx:try(function() tx:execute "COMMIT" end) }
      tx:queue "q":push "after"
    end)
    assert.same({ nil, "STATE" }, { said[1], said[3] })
    assert.same({ nil, "STATE" }, { value, code })
    assert.equal("before", names())
  end)
end)

-- db:transaction committed after a verb in it had failed. There was a row without its job when
-- the payload was too large, or half of two statements when the second was misspelt. And a
-- function that returned nil and a message had its work committed all the same. There was no
-- way to let a part fail. tx:ack of a handler's own job made the host warn of a stale verdict
-- each time.
describe("verbs that fail in a transaction:", function()
  local handle, q, url

  with_database(function(opened, queue, at)
    handle, q, url = opened, queue, at
    assert(handle:execute "CREATE TABLE mark (id BIGINT NOT NULL PRIMARY KEY) ENGINE=InnoDB")
  end)

  local function marks()
    local list = {}
    for i, row in ipairs(assert(handle:execute "SELECT id FROM mark ORDER BY id")) do list[i] = row.id end
    return list
  end

  local function mark(tx, id) return tx:execute("INSERT INTO mark VALUES (?)", id) end

  local function pushed() return assert(handle:execute "SELECT COUNT(*) AS n FROM nightshift_job")[1].n end

  --- What a transaction gives in which `fn` does something that fails behind a row and a job.
  local function spoiled(fn)
    local given = table.pack(handle:transaction(function(tx)
      assert(mark(tx, 1))
      assert(tx:queue "q":push "good")
      fn(tx)
      mark(tx, 2)
      return "not looked at"
    end))
    assert.same({}, marks())
    assert.equal(0, pushed())
    return table.unpack(given, 1, given.n)
  end

  describe("a transaction in which a verb failed", function()
    local CASES = {
      ["a push that is too large"] = { function(tx) tx:queue "q":push("a", ("x"):rep(2 << 20)) end, "TOO_BIG" },
      ["a push with a bad option"] = { function(tx) tx:queue "q":push("a", 1, { delay = -1 }) end, "INVALID" },
      ["a push on a queue of the handle"] = { function() q:push("a", 1, { delay = -1 }) end, "INVALID" },
      ["a list of pushes"] = { function() q:push_many { { "a" }, { "a", 1, { priority = 999 } } } end, "INVALID" },
      ["a flow"] = { function() handle:flow { name = "a", after = { 1 << 50 } } end, "NOT_FOUND" },
      ["a statement"] = { function(tx) tx:execute "SELEC 1" end, "SQL" },
      ["a signal to nobody"] = { function(tx) tx:signal(1 << 50, 1) end, "NOT_FOUND" },
      ["a verb on a job"] = { function() handle:cancel(1 << 50) end, "NOT_FOUND" },
      ["a queue's bad name"] = { function(tx) tx:queue "" end, "INVALID" },
    }
    for name, case in pairs(CASES) do
      it("is rolled back, and gives the failure: " .. name, function()
        local value, message, code = spoiled(case[1])
        assert.is_nil(value)
        assert.is_string(message)
        assert.equal(case[2], code)
      end)
    end

    it("gives the first failure, whatever came after it", function()
      local _, message, code = spoiled(function(tx)
        tx:signal(1 << 50, 1)
        tx:execute "SELEC 1"
      end)
      assert.matches("no live job has the id", message)
      assert.equal("NOT_FOUND", code)
    end)

    it("is named by the error of code that took its nil for a value", function()
      for _, way in ipairs { function(_, fn) return fn end, function(tx, fn) return function() tx:try(fn) end end } do
        local ok, err = pcall(handle.transaction, handle, function(tx)
          way(tx, function()
            local row = tx:execute "SELECT * FROM no_such"
            return row[1].id
          end)()
        end)
        assert.is_false(ok)
        assert.matches("^[^\n]*no_such' doesn't exist[^\n]*; then: [^\n]*attempt to index a nil value", err)
        ok, err = pcall(handle.transaction, handle, function(tx)
          way(tx, function() error((select(2, tx:execute "SELECT * FROM no_such"))) end)()
        end)
        assert.is_false(ok)
        assert.is_nil(err:find("then:", 1, true), err) -- it says so itself
      end
    end)

    it("is one with a taken unique key", function()
      assert(q:push("first", 1, { unique = "u", delay = 60 }))
      local value, message, code = handle:transaction(function(tx)
        mark(tx, 1)
        tx:queue "q":push("second", 1, { unique = "u" })
      end)
      assert.same({ nil, "DUPLICATE" }, { value, code })
      assert.matches("u", message)
      assert.same({}, marks())
    end)

    it("is one with a verdict on a lost job", function()
      assert(q:push "a")
      local job = assert(q:claim())
      assert(handle:cancel(job.id))
      assert.same({ nil, "STALE" }, { (function()
        local value, _, code = handle:transaction(function(tx)
          mark(tx, 1)
          job:ack()
        end)
        return value, code
      end)() })
      assert.same({}, marks())
    end)

    it("is not one that only looked for what is not there", function()
      assert(handle:transaction(function(tx)
        assert(mark(tx, 1))
        assert.equal("NOT_FOUND", select(3, handle:job(1 << 50)))
      end))
      assert.same({ 1 }, marks())
    end)

    it("leaves the handle as it was", function()
      spoiled(function(tx) tx:execute "SELEC 1" end)
      assert.is_true(handle:transaction(function(tx) assert(mark(tx, 7)) end))
      assert.same({ 7 }, marks())
      assert.equal("INVALID", select(3, q:push("a", 1, { delay = -1 })))
      assert.is_true(handle:transaction(function(tx) assert(mark(tx, 8)) end))
    end)
  end)

  describe("a function that returns nil and a message", function()
    it("is rolled back, and they are given back", function()
      assert.same({ nil, "no such customer", "MINE" }, { handle:transaction(function(tx)
        assert(mark(tx, 1))
        return nil, "no such customer", "MINE"
      end) })
      assert.same({}, marks())
    end)

    it("is committed when it returns nothing else", function()
      assert.same({ n = 1 }, table.pack(handle:transaction(function(tx)
        assert(mark(tx, 1))
        return nil
      end)))
      assert.same({ n = 2 }, table.pack(handle:transaction(function() return nil, nil end)))
      assert.same({ false, "x" }, { handle:transaction(function(tx)
        assert(mark(tx, 2))
        return false, "x"
      end) })
      assert.same({ 1, 2 }, marks())
    end)
  end)

  describe("tx:try", function()
    it("undoes what failed in it alone, and says why", function()
      local said
      assert.equal("done", handle:transaction(function(tx)
        assert(mark(tx, 1))
        said = { tx:try(function()
          assert(mark(tx, 2))
          assert(tx:queue "q":push "bad")
          tx:queue "q":push("a", 1, { delay = -1 })
        end) }
        assert(mark(tx, 3))
        assert(tx:queue "q":push "good")
        return "done"
      end))
      assert.same({ nil, "INVALID" }, { said[1], said[3] })
      assert.same({ 1, 3 }, marks())
      assert.equal("good", handle:jobs()[1].name)
      assert.equal(1, pushed())
    end)

    it("gives what its function returns; nil and a message undo", function()
      handle:transaction(function(tx)
        assert.same({ "a", "b" }, { tx:try(function(inner)
          assert.equal(tx, inner)
          assert(mark(inner, 1))
          return "a", "b"
        end) })
        assert.is_true(tx:try(function() end))
        assert.same({ nil, "no", "WHY" }, { tx:try(function()
          assert(mark(tx, 2))
          return nil, "no", "WHY"
        end) })
      end)
      assert.same({ 1 }, marks())
    end)

    it("nests", function()
      assert(handle:transaction(function(tx)
        assert(tx:try(function()
          assert(mark(tx, 1))
          assert.is_nil(tx:try(function()
            assert(mark(tx, 2))
            assert(tx:try(function() assert(mark(tx, 3)) end))
            return nil, "no"
          end))
          assert(mark(tx, 4))
        end))
        assert.is_nil(tx:try(function()
          assert(tx:try(function() assert(mark(tx, 5)) end))
          mark(tx, 1) -- is there already
        end))
      end))
      assert.same({ 1, 4 }, marks())
    end)

    it("undoes what raised in it, and the error goes on", function()
      local mine = { why = "mine" }
      assert(handle:transaction(function(tx)
        assert(mark(tx, 1))
        local ok, err = pcall(tx.try, tx, function()
          assert(mark(tx, 2))
          error(mine)
        end)
        assert.is_false(ok)
        assert.equal(mine, err)
      end))
      assert.same({ 1 }, marks())
      assert.is_false(pcall(handle.transaction, handle, function(tx)
        assert(mark(tx, 3))
        tx:try(function() error "out of both" end)
      end))
      assert.same({ 1 }, marks())
    end)

    it("holds the acks of jobs: a lost one undoes it, the others stand, what was undone is open", function()
      assert(q:push_many { { "a" }, { "b" }, { "c" } })
      local jobs = assert(q:claim_many(3))
      assert(handle:cancel(jobs[2].id))
      assert(handle:transaction(function(tx)
        for i, job in ipairs(jobs) do
          local ok, _, code = tx:try(function()
            assert(mark(tx, i))
            assert(tx:ack(job, i))
            if i == 3 then return nil, "changed my mind", "MINE" end
          end)
          assert.equal(({ true, nil, nil })[i], ok)
          assert.equal(({ nil, "STALE", "MINE" })[i], code)
        end
      end))
      assert.same({ 1 }, marks())
      assert.equal("done", handle:job(jobs[1].id).state)
      assert.is_true(jobs[3]:ack "later")
      assert.equal("later", handle:job(jobs[3].id).result)
      assert.equal("STALE", select(3, jobs[2]:ack()))
      assert.equal(0, assert(handle:execute "SELECT COUNT(*) AS n FROM nightshift_lease")[1].n)
    end)

    it("cannot save a transaction that the server has rolled back", function()
      assert(handle:execute "INSERT INTO mark VALUES (1), (2)")
      local value, _, code = handle:transaction(function(tx)
        assert(tx:execute "UPDATE mark SET id = 10 WHERE id = 1")
        tx:try(function() tx:execute "SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT = 'a deadlock', MYSQL_ERRNO = 1213" end)
        assert.is_nil((tx:execute "INSERT INTO mark VALUES (99)"))
        assert.is_nil((tx:try(function() assert(mark(tx, 98)) end)))
      end)
      assert.is_nil(value)
      assert.is_true(code == "BUSY" or code == "GONE", tostring(code))
      assert.same({ 1, 2 }, marks())
    end)

    it("is misused without a function, or behind the end", function()
      local kept
      assert.error_matches(function() handle:transaction(function(tx)
        kept = tx
        tx:try()
      end) end, "try wants a function, got nil")
      assert.error_matches(function() kept:try(function() end) end, "this transaction has ended")
    end)
  end)

  it("a handler's transaction is no other, and a job that it acked is no stale one", function()
    assert(handle:queue "default":push_many { { "paid" }, { "unpaid", nil } })
    local h = host.start(url, [[return {
    paid = function(job)
      return job:db():transaction(function(tx)
        assert(tx:execute("INSERT INTO mark VALUES (1)"))
        tx:try(function() tx:execute "INSERT INTO mark VALUES (2)"; tx:execute "SELEC 1" end)
        return tx:ack(job, { ok = 1 })
      end)
    end,
    unpaid = function(job)
      local value, message, code = job:db():transaction(function(tx)
        assert(tx:execute("INSERT INTO mark VALUES (3)"))
        tx:execute "SELEC 1"
        return tx:ack(job, "paid")
      end)
      return job:discard(("%s %s"):format(value, code))
    end,
  }]], { "--queues", "default=1" })
    eventually(function() return assert(handle:execute "SELECT COUNT(*) AS n FROM nightshift_finished")[1].n == 2 end)
    assert.same({ 1 }, marks())
    h:signal "TERM"
    assert.equal(0, h:wait())
    local _, log = h:text()
    assert.is_nil(log:find("event=job.stale", 1, true), log)
    local outcomes = {}
    for _, row in ipairs(assert(handle:execute "SELECT name, outcome, error FROM nightshift_finished")) do
      outcomes[row.name] = { row.outcome, row.error }
    end
    assert.same({ paid = { "done" }, unpaid = { "dead", "nil SQL" } }, outcomes)
  end)
end)

-- What a bad value or a bad option gets is part of it.
describe("the public handle:", function()
  describe("a transaction", function()
    it("commits rows and jobs together and gives what the function returned", function()
      db:execute "CREATE TABLE IF NOT EXISTS api_rows (n INT) ENGINE=InnoDB"
      local q = fresh_queue()
      local id, word = db:transaction(function(tx)
        tx:execute("INSERT INTO api_rows VALUES (?)", 1)
        return tx:queue(q.name):push("a", 1), "word"
      end)
      assert.equal("word", word)
      assert.equal("ready", db:job(id).state)
      assert.equal(1, db:execute("SELECT COUNT(*) AS n FROM api_rows")[1].n)
      assert.is_true(db:transaction(function() end))
      q:claim():ack()
    end)

    it("keeps nothing when the function raises, and passes the error on", function()
      db:execute "CREATE TABLE IF NOT EXISTS api_none (n INT) ENGINE=InnoDB"
      local q = fresh_queue()
      local mine = { why = "changed my mind" }
      local ok, err = pcall(db.transaction, db, function(tx)
        tx:execute("INSERT INTO api_none VALUES (?)", 1)
        assert(tx:queue(q.name):push("a", 1))
        error(mine)
      end)
      assert.is_false(ok)
      assert.equal(mine, err)
      assert.equal(0, db:execute("SELECT COUNT(*) AS n FROM api_none")[1].n)
      assert.same({}, db:jobs { queue = q.name })
      assert.is_truthy(q:push("a", 1))
      q:claim():ack()
    end)

    it("takes the verdict of a job with it, and opens the job again after a rollback", function()
      db:execute "CREATE TABLE IF NOT EXISTS api_acks (n INT) ENGINE=InnoDB"
      local q = fresh_queue()
      local id = q:push("a", 1)
      local job = q:claim()
      assert.is_false(pcall(db.transaction, db, function(tx)
        tx:execute "INSERT INTO api_acks VALUES (1)"
        assert(job:ack "too early")
        error "no"
      end))
      assert.equal("running", db:job(id).state)
      db:transaction(function(tx)
        tx:execute "INSERT INTO api_acks VALUES (2)"
        assert(job:ack "in time")
      end)
      assert.same({ "done", "in time" }, { db:job(id).state, db:job(id).result })
      assert.same({ { n = 2 } }, db:execute "SELECT n FROM api_acks")
      assert.equal("STALE", select(3, job:ack()))
    end)

    it("claims nothing: that would undo the claim with the rest", function()
      local q = fresh_queue()
      q:push("a", 1)
      db:transaction(function() assert.equal("STATE", select(3, q:claim())) end)
      assert(q:pause())
      db:transaction(function() assert.equal("STATE", select(3, q:claim { wait = 30 })) end)
      assert(q:resume())
      q:claim():ack()
    end)

    it("is invisible to others until the commit", function()
      local q = fresh_queue()
      local other <close> = open()
      db:transaction(function(tx)
        tx:queue(q.name):push("a", 1)
        assert.is_nil(other:queue(q.name):claim())
      end)
      assert.is_truthy(other:queue(q.name):claim())
    end)

    it("does not nest, and its handle ends with it", function()
      local kept
      assert.error_matches(function()
        db:transaction(function(tx)
          kept = tx
          db:transaction(function() end)
        end)
      end, "transaction: this handle is already in one")
      assert.error_matches(function() kept:execute "SELECT 1" end, "this transaction has ended")
      assert.error_matches(function() kept:queue "x" end, "this transaction has ended")
      assert.is_true(db:transaction(function() end))
      assert.error_matches(function() db:transaction() end, "transaction wants a function, got nil")
    end)

    it("survives a function that closes the handle", function()
      local other = open()
      assert.is_false(pcall(other.transaction, other, function() other:close() end))
      assert.error_matches(function() other:ping() end, "closed database")
    end)

    it("may be left by a coroutine that never comes back", function()
      local other <close> = open()
      local thread = coroutine.create(function()
        other:transaction(function(tx)
          tx:queue("left"):push("a", 1)
          coroutine.yield()
        end)
      end)
      assert(coroutine.resume(thread))
      coroutine.close(thread)
      assert.same({}, db:jobs { queue = "left" })
      assert.is_true(other:transaction(function() end))
    end)
  end)

  describe("execute", function()
    it("keeps types exact", function()
      local row = db:execute([[SELECT CAST(? AS SIGNED) AS i, CAST(1.5 AS DOUBLE) AS d, 1.50 AS dec2, NULL AS none,
      CAST('2024-02-29' AS DATE) AS day, CAST(18446744073709551615 AS UNSIGNED) AS big, ? AS s, ? AS yes]],
        math.mininteger, "a\0b", true)[1]
      assert.same({ i = math.mininteger, d = 1.5, dec2 = "1.50", day = "2024-02-29", big = "18446744073709551615",
        s = "a\0b", yes = 1 }, row)
      assert.equal("float", math.type(row.d))
      assert.equal("integer", math.type(row.i))
    end)

    it("takes nil and null as NULL, wherever they stand", function()
      local row = db:execute("SELECT ? IS NULL AS a, ? IS NULL AS b, ? IS NULL AS c", nil, nightshift.null, nil)[1]
      assert.same({ a = 1, b = 1, c = 1 }, row)
    end)

    it("tells rows changed and the id made", function()
      db:execute "CREATE OR REPLACE TABLE api_ids (id INT AUTO_INCREMENT PRIMARY KEY, n INT)"
      assert.same({ affected = 2, insert_id = 1 }, db:execute "INSERT INTO api_ids (n) VALUES (5), (6)")
      assert.equal(2, db:execute("UPDATE api_ids SET n = 7").affected)
    end)

    it("passes on what the server says", function()
      local none, message, code = db:execute "SELEC 1"
      assert.same({ nil, "SQL" }, { none, code })
      assert.is_truthy(message:find "1064")
      assert.matches("api_spec.lua:%d+: nightshift: execute: parameter 2 must be nil, a boolean, .*, "
        .. "got a table$",
        select(2, pcall(function() db:execute("SELECT ?, ?", 1, {}) end)))
      assert.matches("api_spec.lua:%d+: nightshift: execute: the statement must be a string, got nil",
        select(2, pcall(function() db:execute() end)))
    end)
  end)
end)
