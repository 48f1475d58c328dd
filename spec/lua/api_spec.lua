-- The public handles against a real server: open, queue, push, claim, verbs. The answers to bad
-- values and bad options are part of it. Transactions and listings have files of their own.

local lab = require "spec.support.db".lab
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local server = require "spec.support.db"

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
