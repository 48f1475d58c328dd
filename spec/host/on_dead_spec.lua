-- Jobs that are pushed when other jobs are dead: by each road to a death, once, in the transaction
-- that writes it. Their payload, and how scripts declare them.

local core = require "nightshift.core"
local db = require "spec.support.db"
local designs = require "spec.support.designs"
local handlers = require "nightshift.handlers"
local host = require "spec.support.host"
local proc = require "spec.support.proc"

describe("a job that is dead", function()
  local handle, q, url, name
  with_database(function(...) handle, q, url, name = ... end)

  local function all(sql, ...) return assert(handle:execute(sql, ...)) end

  local function declare(of, on_dead, queue)
    all("REPLACE INTO nightshift_on_dead (name, on_dead, queue) VALUES (?, ?, ?)", of, on_dead or "buried", queue)
  end

  before_each(function() declare "bad" end)

  --- The jobs that were pushed, live or ended, oldest first.
  local function pushed(of)
    of = of or "buried"
    return all([[SELECT id, name, payload, ukey FROM nightshift_job WHERE name = ? UNION ALL
      SELECT id, name, payload, ukey FROM nightshift_finished WHERE name = ? ORDER BY id]], of, of)
  end

  --- What they say of the jobs, by id; none is there twice.
  local function said()
    local list = {}
    for _, row in ipairs(pushed()) do
      local payload = core.decode(row.payload)
      assert.is_nil(list[payload.id])
      list[payload.id] = payload
    end
    return list
  end

  local function push(payload, opts) return assert(q:push("bad", payload, opts)) end

  local function claim(of) return assert(q:claim { names = { of or "bad" } }) end

  --- Lets a claim run out, as twice before.
  local function lose(id)
    all("UPDATE nightshift_job SET lost = 2 WHERE id = ?", id)
    assert.equal(1, #assert(q:claim_many(1, { lease = 0.05, names = { "bad" } })))
    eventually(function()
      assert(handle:rescue())
      return handle:job(id).state == "dead"
    end)
  end

  it("has a job pushed, ready for a worker, that says all of it", function()
    local id = push({ to = "a@b" }, { max_attempts = 1 })
    assert(claim():fail "no such box")
    local job = claim "buried"
    assert.same({ id = id, name = "bad", queue = "q", run = 1, attempts = 1, crashes = 0, reason = "failed",
      error = "no such box", payload = { to = "a@b" } }, job.payload)
    assert.equal(("dead:%d:1"):format(id), pushed()[1].ukey)
    assert(job:ack())
    assert.equal(0, all("SELECT COUNT(*) AS n FROM nightshift_unique_key")[1].n)
  end)

  it("has it by each road to a death, once", function()
    local roads = {}
    local function road(reason, opts, act)
      local id = push(reason, opts)
      act(id)
      roads[id] = reason
    end
    road("failed", { max_attempts = 1 }, function() assert(claim():fail "no") end)
    road("discarded", nil, function() assert(claim():discard "no") end)
    road("deadline", { deadline = 0.000001 }, function() assert.is_nil((q:claim { names = { "bad" } })) end)
    road("poison", { max_crashes = 1 }, lose)
    road("child failed", nil, function()
      local job = claim()
      assert(job:spawn "plain")
      assert(job:wait())
      assert(claim("plain"):discard "no")
    end)
    road("too many phases", { max_phases = 1 }, function()
      for _ = 1, 2 do
        local job = claim()
        assert(job:spawn("plain"))
        assert(job:wait())
        local child = q:claim { names = { "plain" } }
        if child then assert(child:ack()) end
      end
    end)
    road("poll deadline", { max_polls = 1 }, function()
      for _ = 1, 2 do assert(claim():again(0)) end
    end)
    local found = said()
    for id, reason in pairs(roads) do
      assert.equal("dead", handle:job(id).state, reason)
      assert.is_table(found[id], reason)
      assert.same({ reason, handle:job(id).reason, handle:job(id).error },
        { found[id].payload, found[id].reason, found[id].error })
      found[id] = nil
    end
    assert.is_nil(next(found))
  end)


  it("has none pushed when it is cancelled, done, or of another name", function()
    assert(handle:cancel(push(1)))
    push(2)
    assert(claim():ack())
    local first = assert(q:push("plain", 1))
    push(3, { after = { first } })
    assert(claim("plain"):discard "no")
    assert.same({}, pushed())
  end)

  it("has none pushed for the end of such a job, and one more for a second death", function()
    declare "buried"
    local id = push(1)
    assert(claim():discard "one")
    assert(claim("buried"):discard "no")
    assert.equal(1, #pushed())
    assert(handle:retry(id))
    assert(claim():discard "two")
    assert(handle:retry(id))
    assert(claim():discard "three") -- the second is there still
    local errors, keys = {}, {}
    for i, row in ipairs(pushed()) do errors[i], keys[i] = core.decode(row.payload).error, row.ukey end
    assert.same({ "one", "two", "three" }, errors)
    assert.same({ ("dead:%d:1"):format(id), ("dead:%d:2"):format(id), ("dead:%d:3"):format(id) }, keys)
    assert.equal(2, all("SELECT COUNT(*) AS n FROM nightshift_unique_key")[1].n)
  end)

  it("has it with its transaction, or not at all", function()
    for i, ends in ipairs { false, true } do
      push(i)
      local job = claim()
      assert(handle._handle:begin())
      assert(job:discard "no")
      assert.equal(1, #pushed())
      assert(ends and handle._handle:commit() or handle._handle:rollback())
      assert.equal(i - 1, #pushed())
      if not ends then assert(handle:cancel(job.id)) end
    end
    assert(claim "buried")
  end)

  it("has it in another queue, and in its own when that is gone", function()
    all "INSERT INTO nightshift_queue (name, created) VALUES ('graves', 1)"
    declare("bad", "buried", "graves")
    push(1)
    assert(claim():discard "no")
    assert.equal("q", assert(handle:queue("graves"):claim()).payload.queue)
    declare("bad", "buried", "gone")
    push(2)
    assert(claim():discard "no")
    assert.equal(2, claim("buried").payload.payload)
  end)

  it("may have any error", function()
    local bytes = {}
    for byte = 0, 255 do bytes[byte + 1] = string.char(byte) end
    local texts = { table.concat(bytes), "'); DROP TABLE nightshift_job; --", '\\"', "\u{2028}\u{10FFFF}é",
      ("\1"):rep(20000) }
    for _, text in ipairs(texts) do
      local id = push({ ["'\"\n"] = "'); --" }, { max_attempts = 1 })
      assert(claim():fail(text))
      local payload, error_of = said()[id], handle:job(id).error
      assert.equal(core.encode { ["'\"\n"] = "'); --" }, core.encode(payload.payload))
      assert.equal(error_of:sub(1, 16384), payload.error)
    end
  end)

  it("has its payload left out, and its size told, when it is too large or too deep for one more level", function()
    local big, ids, told = ("x"):rep(1048574), {}, {}
    local function deep(n) return ("["):rep(n) .. ("]"):rep(n) end
    local most = 1
    while all("SELECT JSON_VALID(?) AS ok", deep(most + 1))[1].ok == 1 do most = most + 1 end
    for i, json in ipairs { '"' .. big .. '"', deep(most - 1), deep(most), '"' .. big .. 'x"' } do
      ids[i] = push(0)
      all("UPDATE nightshift_job SET payload = ? WHERE id = ?", json, ids[i])
    end
    for _ = 1, #ids do assert(claim():discard "no") end
    for i, id in ipairs(ids) do
      local text = all("SELECT payload FROM nightshift_job WHERE ukey = ?", ("dead:%d:1"):format(id))[1].payload
      told[i] = text:match '"payload":' or text:match '"payload_bytes":%d+'
    end
    assert.same({ '"payload":', '"payload":', '"payload_bytes":' .. 2 * most, '"payload_bytes":1048577' }, told)
  end)

  it("has a key that no other push may give", function()
    local says = "push: unique begins with 'dead:', as those of jobs pushed for dead ones do; choose another beginning"
    assert.same({ nil, says, "INVALID" }, { q:push("bad", 1, { unique = "dead:1:1" }) })
    assert.is_false((pcall(db.sql, [[CALL nightshift_push('q', 'bad', '1', '{"unique": "dead:1:1"}')]], name)))
    assert(q:push("bad", 1, { unique = "deadly" }))
  end)

  it("has it when it is of a row of an adopted table, in a program, too", function()
    designs.create(handle, "migration_task", 2)
    local t = assert(handle:adopt(designs.map "migration_task"))
    local job = assert(t:claim())
    declare(job.name)
    assert(job:discard "no")
    local payload = said()[job.id]
    assert.same({ job.name, "migration_task", "no", 1 },
      { payload.name, payload.queue, payload.error, payload.payload.id })
    assert(handle:queue("migration_task"):claim { names = { "buried" } }):ack()
    assert.equal(2, assert(t:claim()).row)
  end)

  -- One statement for a batch with dead jobs when no handler says on_dead, and four and the ring
  -- when one does.
  it("costs jobs that are not dead nothing, and dead ones one statement", function()
    local function statements()
      return tonumber(all "SHOW SESSION STATUS LIKE 'Com_stmt_execute'"[1].Value)
    end
    local function cost(of, verb)
      local least = math.huge
      for _ = 1, 4 do
        assert(q:push(of, 1, { max_attempts = 2, backoff = 3600 }))
        local job = claim(of)
        local before = statements()
        verb(job)
        least = math.min(least, statements() - before)
      end
      return least
    end
    local function discard(job) assert(job:discard "no") end
    local plain, bad = cost("plain", discard), cost("bad", discard)
    assert.equal(4, bad - plain)
    local function fail(job) assert(job:fail "no") end
    assert.equal(cost("plain", fail), cost("bad", fail))
  end)

  it("is found by key", function()
    all "INSERT INTO nightshift_on_dead SELECT CONCAT('h', seq), 'x', NULL FROM seq_1_to_1000"
    all "ANALYZE TABLE nightshift_on_dead, nightshift_finished, nightshift_queue"
    for statement, params in pairs {
      settle_on_dead = { "[[0,1,1],[1,2,1]]" }, settle_on_dead_push = { "[[1,2,3,4,5,6,7,8]]" },
      holder_on_dead_over = { '[{"name":"a"}]', '["a",null]' },
    } do
      for _, row in ipairs(all("EXPLAIN " .. core.sql(statement), table.unpack(params))) do
        if row.table and #row.table == 1 and row.table ~= "v" and row.table ~= "h" then
          assert.equal("eq_ref", row.type, statement .. " " .. row.table)
        end
      end
    end
  end)

  -- Kills the session that ends jobs, between and amid its statements.
  it("has it once, whenever the connection is killed", function()
    all "CREATE TABLE victim (one INT PRIMARY KEY, id BIGINT NOT NULL)"
    local function show()
      db.sql("REPLACE INTO victim VALUES (1, " .. all "SELECT CONNECTION_ID() AS n"[1].n .. ")", name)
    end
    show()
    local N = math.ceil(100 / proc.limit(1))
    for i = 1, N do push(i, { max_attempts = 1 }) end
    local jobs = assert(q:claim_many(N))
    local killer = proc.start { proc.lua, "-e", ([[
    local nightshift = require "nightshift"
    local db = assert(nightshift.open(%q))
    print "killing"
    io.flush()
    while true do
      local id = assert(db:execute "SELECT id FROM victim")[1].id
      db:execute((math.random(10) == 1 and "KILL " or "KILL QUERY ") .. id)
      require "nightshift.core".sleep(math.random() * 0.003)
    end]]):format(url) }
    killer:wait_line "killing"
    for i, job in ipairs(jobs) do
      repeat
        local ran, ok, _, code = pcall(i % 2 == 0 and job.fail or job.discard, job, "no")
      until ran and (ok or code == "STALE")
      pcall(show)
    end
    killer:signal "KILL"
    killer:wait()
    local dead = tonumber((db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'dead'", name)))
    assert.equal(N, dead)
    assert.equal(dead, tonumber((db.sql([[SELECT COUNT(DISTINCT f.id) FROM nightshift_finished f
      JOIN nightshift_job j ON j.ukey = CONCAT('dead:', f.id, ':', f.run)
      JOIN nightshift_unique_key u ON u.job_id = j.id JOIN nightshift_ready r ON r.job_id = j.id]], name))))
    assert.equal(dead, tonumber((db.sql("SELECT COUNT(*) FROM nightshift_job WHERE name = 'buried'", name))))
  end)
end)

describe("scripts say what is pushed for dead jobs:", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  local function rows()
    local list = {}
    for i, row in ipairs(handle:execute "SELECT name, on_dead, queue FROM nightshift_on_dead ORDER BY name") do
      list[i] = ("%s %s %s"):format(row.name, row.on_dead, row.queue or "-")
    end
    return table.concat(list, ", ")
  end

  local function script(body)
    return "local function no() return nil, 'no' end local function see(job) return job.payload end return {"
      .. body .. "}"
  end

  local function write(path, text)
    local file <close> = assert(io.open(path, "wb"))
    file:write(text)
  end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  it("those that were loaded last, for the handlers that they have", function()
    local BOTH = script [[ a = { run = no, on_dead = "see", on_dead_queue = "graves" },
      b = { run = no, on_dead = "see" }, see = see ]]
    local first = host.start(url, BOTH)
    eventually(function() return rows() == "a see graves, b see -" end)
    assert.equal(1, #handle:execute "SELECT id FROM nightshift_queue WHERE name = 'graves'")
    local second = host.start(url, script [[ a = { run = no, on_dead = "other" }, c = { run = no } ]])
    eventually(function() return rows() == "a other -, b see -" end)
    write(second.script, script [[ a = no, c = no ]])
    second:signal "HUP"
    second:wait_line("reload.done", 20)
    eventually(function() return rows() == "b see -" end)
    first:signal "HUP"
    first:wait_line("reload.done", 20)
    eventually(function() return rows() == "a see graves, b see -" end)
    stop(first)
    stop(second)
    assert.equal(0, host.drain(url, script [[ b = no, see = see ]]))
    assert.equal("a see graves", rows())
  end)

  it("before the first of their jobs runs", function()
    local id = q:push("a", { n = 1 }, { max_attempts = 1 })
    assert.equal(0, host.drain(url, script [[ a = { run = no, on_dead = "see" }, see = see ]]))
    local result = handle:jobs({ name = "see", state = "done" })[1]
    local seen = handle:job(result.id).result
    assert.same({ id, "failed", { n = 1 } }, { seen.id, seen.reason, seen.payload })
  end)

  it("which wakes the host that has the queue of such a job", function()
    local works = host.start(url, script [[ a = { run = no, on_dead = "see", on_dead_queue = "graves" } ]],
      { "--queues", "q" })
    local buries = host.start(url, script [[ see = see ]], { "--queues", "graves" })
    eventually(function() return #handle:execute "SELECT 1 FROM nightshift_listener" >= 2 end)
    q:push("a", 1, { max_attempts = 1 })
    local since = core.clock()
    eventually(function() return #handle:jobs { name = "see", state = "done" } == 1 end)
    assert.is_true(core.clock() - since < proc.limit(4)) -- unheard: ten seconds
    stop(works)
    stop(buries)
  end)

  it("also for jobs that are dead by the death of their host, or their worker", function()
    local SCRIPT = script [[ a = { run = function(job) print "runs" require "nightshift.core".sleep(600) end,
      on_dead = "see" }, b = { run = function() os.execute "kill -9 $PPID" end, on_dead = "see" }, see = see ]]
    local first = host.start(url, SCRIPT)
    local worker = q:push("b", 1, { max_crashes = 1 })
    eventually(function() return handle:job(worker).state == "dead" end)
    local id = q:push("a", 2, { max_crashes = 1 })
    first:wait_line "runs"
    handle:execute("UPDATE nightshift_job SET lost = 2 WHERE id = ?", id) -- as twice before
    first:signal "KILL"
    first:wait()
    local second = host.start(url, SCRIPT)
    eventually(function() return #handle:jobs { name = "see", state = "done" } == 2 end)
    local seen = {}
    for _, job in ipairs(handle:jobs { name = "see", state = "done" }) do
      local result = handle:job(job.id).result
      seen[result.id] = result.reason
    end
    assert.same({ [worker] = handle:job(worker).reason, [id] = handle:job(id).reason }, seen)
    stop(second)
  end)

  it("also for rows of adopted tables", function()
    designs.create(handle, "migration_task", 3)
    local name = designs.map "migration_task".name or "migrate"
    local h = host.start(url, script([[ [%q] = { run = function(job) return job:discard "no" end, on_dead = "see" },
      see = see ]]):format(name), { "--adopt", designs.file "migration_task" })
    eventually(function() return #handle:jobs { name = "see", state = "done" } == 3 end)
    stop(h)
  end)

  it("and not wrongly", function()
    for body, message in pairs {
      ["on_dead = 5"] = "on_dead must be a string, got number",
      ["on_dead = ''"] = "on_dead is empty",
      ["on_dead = ('x'):rep(101)"] = "on_dead has 101 bytes, the limit is 100",
      ["on_dead = 'a\\nb'"] = "control character",
      ["on_dead_queue = 'x'"] = "on_dead_queue goes with on_dead",
      ["on_dead = 'x', on_dead_queue = ('x'):rep(65)"] = "on_dead_queue has 65 bytes, the limit is 64",
    } do
      local none, text = handlers.load { fixture.file("bad.lua", "return { a = { run = print, " .. body .. " } }") }
      assert.is_nil(none)
      assert.matches("handler 'a': .*" .. message, text)
    end
  end)
end)
