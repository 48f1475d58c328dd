-- The results that a job gets of its children, and of the jobs that it was pushed after.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- A job that was pushed to wait for other jobs has what became of them, as a parent has what
-- became of its children.
describe("job.results of a job with after", function()
  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  local function take(name)
    local job = assert(q:claim())
    assert.equal(name, job.name)
    return job
  end

  local function done(name, result) assert(take(name):ack(result)) end

  local function questions()
    return tonumber(assert(handle:execute "SHOW SESSION STATUS LIKE 'Questions'")[1].Value)
  end

  it("has what became of each, in the order of after", function()
    local a, b, c = assert(q:push "a"), assert(q:push "b"), assert(q:push "c")
    local id = assert(q:push("late", nil, { after = { c, a, b }, on_fail = "run" }))
    done("a", { n = 1 })
    assert(take "b":discard "not this")
    done("c", "third")
    local job = take "late"
    assert.same({ id, { c, a, b }, 3 }, { job.id, job.after, #job.results })
    assert.same({ id = c, name = "c", outcome = "done", result = "third", after = true }, job.results[1])
    assert.same({ id = a, name = "a", outcome = "done", result = { n = 1 }, after = true }, job.results[2])
    assert.same({ id = b, name = "b", outcome = "dead", reason = "discarded", error = "not this", after = true },
      job.results[3])
    assert.is_nil(job.results[4])
    local n = 0
    for i, result in ipairs(job.results) do
      n = n + 1
      assert.equal(job.after[i], result.id)
    end
    assert.equal(3, n)
    assert(job:ack())
    assert.same({ c, a, b }, handle:job(id).after)
  end)

  it("is there whenever the others have ended, and for every attempt", function()
    local a = assert(q:push "a")
    done("a", 1)
    local id = assert(q:push("late", nil, { after = { a }, backoff = 0.001, max_attempts = 2 }))
    assert.same({ a }, handle:job(id).after)
    local job = take "late"
    assert.equal(1, job.results[1].result)
    assert(job:again(0))
    eventually(function() return handle:run_now(id) or handle:job(id).state == "ready" end)
    job = take "late"
    assert.equal(1, job.results[1].result)
    assert(job:discard "no")
    assert.same({ a }, handle:job(id).after)
    assert(handle:retry(id))
    job = take "late"
    assert.same({ { a }, 1 }, { job.after, job.results[1].result })
    assert(job:ack())
    assert(handle:retry(id))
    assert.equal(1, take "late".results[1].result)
  end)

  it("says of one that was pruned that it is gone, of one that was retried that it lives", function()
    local a, b = assert(q:push "a"), assert(q:push "b")
    assert(q:push("late", nil, { after = { a, b }, delay = "1h" }))
    local id = assert(q:push("later", nil, { after = { a, b }, on_fail = "run" }))
    done("a", 1)
    assert(take "b":discard "no")
    assert.equal(1, handle:prune { done = 0, dead = false })
    assert(handle:retry(b))
    local job = assert(q:claim())
    assert.equal(id, job.id)
    assert.same({ id = a, outcome = "gone", after = true }, job.results[1])
    assert.same({ id = b, name = "b", after = true }, job.results[2])
  end)

  it("stands behind its children, and a wait is for those", function()
    local a = assert(q:push "a")
    local id = assert(q:push("late", nil, { after = { a } }))
    done("a", "first")
    local job = take "late"
    assert.error_matches(function() job:wait() end, ("wait: job %d has no children"):format(id))
    assert(job:spawn "kid")
    assert(job:wait())
    done("kid", "second")
    job = take "late"
    assert.same({ 2, "second", "first" }, { #job.results, job.results[1].result, job.results[2].result })
    assert.same({ nil, true, nil }, { job.results[1].after, job.results[2].after, job.results[3] })
    local seen = {}
    for _, result in ipairs(job.results) do seen[#seen + 1] = result.result end
    assert.same({ "second", "first" }, seen)
  end)

  it("does not have the parent of a child that was spawned before an again", function()
    assert(q:push "parent")
    local a = assert(q:push "a")
    local parent = take "parent"
    assert(parent:spawn "kid")
    assert(parent:spawn("late", nil, { after = { a } }))
    assert(parent:again(0))
    done("a", 1)
    eventually(function() return handle:run_now(parent.id) or handle:job(parent.id).state == "ready" end)
    done("parent", 2)
    local kid = take "kid"
    assert.same({ {}, 0 }, { kid.after, #kid.results })
    assert.is_nil(handle:job(kid.id).after)
    local late = take "late"
    assert.same({ { a }, 1, 1 }, { late.after, #late.results, late.results[1].result })
  end)

  it("is there for jobs that SQL has pushed", function()
    local a = assert(q:push "a")
    assert(handle._handle:execute("CALL nightshift_push('q', 'late', 'null', ?)", core.encode { after = { a } }))
    done("a", { 1, 2 })
    local job = take "late"
    assert.same({ { a }, { 1, 2 } }, { job.after, job.results[1].result })
  end)

  it("is read a page at a time, of large results in small ones", function()
    local large = ("x"):rep(1000000)
    local ids = {}
    for i = 1, 10 do ids[i] = assert(q:push "large") end
    for i = 11, 1200 do ids[i] = assert(q:push "small") end
    assert(q:push("late", nil, { after = ids }))
    for i, job in ipairs(q:claim_many(1200)) do assert(job:ack(i <= 10 and large .. i or i)) end
    local job = take "late"
    assert.equal(1200, #job.results)
    for i, result in ipairs(job.results) do assert.equal(i <= 10 and large .. i or i, result.result) end
    assert.equal(700, job.results[700].result)
    assert.equal(large .. 3, job.results[3].result)
  end)

  it("costs nothing where it is not used", function()
    assert(q:push "parent")
    local job = take "parent"
    local before = questions()
    assert.same({}, job.after)
    assert.equal(1, questions() - before) -- the question itself
    assert(job:spawn "kid")
    assert(job:wait())
    done("kid", 1)
    job = take "parent"
    before = questions()
    local n = 0
    for _ in ipairs(job.results) do n = n + 1 end
    assert.same({ 1, 3 }, { n, questions() - before }) -- a page, an empty one behind it
  end)

  it("is there in a worker, and in what people see", function()
    local h = host.start(url, [[return {
      a = function(job) return job.payload * 2 end,
      late = function(job)
        local sum = 0
        for _, result in ipairs(job.results) do sum = sum + result.result end
        return { sum, #job.after, job.after[1] }
      end,
    }]])
    local a = assert(q:push("a", 2))
    local id = assert(q:push("late", nil, { after = { a, assert(q:push("a", 3)) } }))
    eventually(function() return handle:job(id).state == "done" end)
    assert.same({ 10, 2, a }, handle:job(id).result)
    local _, out = proc.nightshift({ "show", tostring(id) }, url)
    assert.matches(("\nafter         %d %d\n"):format(table.unpack(handle:job(id).after)), out)
    _, out = proc.nightshift({ "show", tostring(id), "--json" }, url)
    assert.same(handle:job(id).after, nightshift.decode(out).after)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- Many that end at once, and one that waits for all of them. It runs once, after the last, with
-- all their results, whatever is killed in the middle.
describe("fan-in:", function()
  local function lines(path)
    local list = {}
    for line in io.lines(path) do list[#list + 1] = line end
    return list
  end

  -- ----------------------------------------------------- a stage on two hosts

  local PIECES = os.getenv "NIGHTSHIFT_LONG" and 900 or 300

  -- The next stage is a child, too: so the parent waits for it, and it for the rest.
  local HANDLERS = [[
local function note(...)
  local file <close> = assert(io.open(os.getenv "FANIN_LOG", "ab"))
  file:setvbuf "full"
  assert(file:write(table.concat({ ... }, " "), "\n"))
end
return {
  stage = function(job)
    if job.phase == 0 then
      local ids = {}
      for i = 1, job.payload do ids[i] = job:spawn("piece", i) end
      job:spawn("next", "next", { after = ids })
      return job:wait()
    end
    note("join", job.id, job.run)
    local sum, last = 0, nil
    for i, child in ipairs(job.results) do
      assert(child.outcome == "done", "a child that is not done")
      if i <= job.payload then
        assert(child.result == i, "results out of order")
        sum = sum + child.result
      end
      last = child.result
    end
    return { #job.results, sum, last }
  end,
  piece = function(job)
    note("piece", job.id, job.run)
    return job.payload
  end,
  next = function(job)
    note("next", job.id, job.run)
    return "next"
  end,
}]]

  describe("a stage of siblings on two hosts", function()
    local log, server, hosts

    local function start()
      local h = host.start(server.url_of_it, HANDLERS, { "--workers", "3" }, { FANIN_LOG = log })
      hosts[#hosts + 1] = h
      return h
    end

    local function count()
      local file <close> = io.open(log)
      local n = 0
      for _ in file:lines() do n = n + 1 end
      return n
    end

    -- Runs a stage; `strike` happens in the middle of it.
    -- A kill may come while the join runs: then it runs again, with one verdict.
    local function run(strike, killed)
      local name
      server.url_of_it, name = server:fresh()
      log = fixture.file("log", "")
      hosts = {}
      start()
      start()
      local handle = assert(nightshift.open(server.url_of_it))
      local id = assert(handle:queue "q":push("stage", PIECES))
      local from = math.random(PIECES // 10, PIECES // 2)
      eventually(function() return count() >= from end, 60)
      strike()
      local info = eventually(function()
        local job = handle:job(id)
        return job and job.state ~= "waiting" and job.finished_at and job
      end, 120)
      assert.same({ "done", { PIECES + 1, PIECES * (PIECES + 1) // 2, "next" } }, { info.state, info.result })
      local seen, pieces = {}, {}
      for i, line in ipairs(lines(log)) do
        local kind, job = line:match "^(%a+) (%d+)"
        assert.is_nil(seen[line], "twice: " .. line)
        seen[line] = i
        if kind == "piece" then
          -- a worker of a host that was killed may write a moment later what another has done since
          assert.is_true(not seen.next or killed and pieces[job], "a piece after the next stage")
          pieces[job] = true
        else
          assert.is_true(killed or not seen[kind], kind .. " ran twice")
          seen[kind] = i
        end
      end
      local n = 0
      for _ in pairs(pieces) do n = n + 1 end
      assert.equal(PIECES, n)
      assert.is_true(seen.next < seen.join)
      handle:close()
      for _, h in ipairs(hosts) do
        if not h:ended() then
          h:signal "TERM"
          assert.equal(0, h:wait())
        end
      end
      assert.equal(("%d\t%d"):format(PIECES + 2, PIECES + 2),
        (server:sql("SELECT COUNT(*), SUM(outcome = 'done') FROM nightshift_finished", name)))
      for _, left in ipairs { "job", "edge", "lease" } do
        assert.equal("0", (server:sql("SELECT COUNT(*) FROM nightshift_" .. left, name)), left)
      end
    end

    it("joins once", function()
      server = db.shared()
      run(function() end)
    end)

    it("joins once, though a worker is killed in the middle", function()
      server = db.shared()
      run(function()
        local workers = host.members(hosts[1].pid)
        nst.kill(workers[math.random(#workers)], "KILL")
      end, true)
    end)

    it("joins once, though a host is killed in the middle", function()
      server = db.shared()
      run(function()
        hosts[1]:signal "KILL"
        hosts[1]:wait()
        start()
      end, true)
    end)

    it("joins once, though the server is killed in the middle", function()
      server = db.server()
      run(function()
        server:kill()
        server:start()
      end, true)
    end)
  end)

  -- --------------------------------------------------- siblings at one moment

  -- Programs that claim what is in a queue and settle at the same moments: at whole
  -- ticks of the clock that all of them read.
  local CLAIMER = [[
local nightshift = require "nightshift"
local url, seed = arg[1], tonumber(arg[2])
math.randomseed(seed)
local TICK = 0.004
local db = assert(nightshift.open(url))
local q = db:queue "kids"
while true do
  local jobs = assert(q:claim_many(2, { wait = 0.5 }))
  if #jobs == 0 then break end
  for _, job in ipairs(jobs) do
    local tick = (nightshift.clock() // TICK + 1) * TICK
    while nightshift.clock() < tick do end
    if math.random(8) == 1 then
      db:transaction(function() return assert(job:ack(job.payload)) end)
    else
      assert(job:ack(job.payload))
    end
  end
end
db:close()]]

  describe("siblings that end at the same moment", function()
    it("never leave their parent behind", function()
      local ROUNDS, SIBLINGS, PROGRAMS = os.getenv "NIGHTSHIFT_LONG" and 150 or 60, 8, 4
      local url, name = db.fresh()
      local handle = assert(nightshift.open(url))
      local q = handle:queue "q"
      for _ = 1, ROUNDS do
        assert(q:push "parent")
        local job = q:claim()
        for i = 1, SIBLINGS do job:spawn("kid", i, { queue = "kids" }) end
        assert(job:wait())
      end
      local script = fixture.file("claimer.lua", CLAIMER)
      local programs = {}
      for i = 1, PROGRAMS do programs[i] = proc.start { proc.lua, script, url, i } end
      for _, p in ipairs(programs) do
        local how = p:wait(120)
        assert.equal(0, how, select(2, p:text()))
      end
      local n = 0
      for job in q:jobs { wait = 0 } do
        assert.equal(SIBLINGS, #job.results)
        for i, child in ipairs(job.results) do assert.same({ "done", i }, { child.outcome, child.result }) end
        assert(job:ack())
        n = n + 1
      end
      assert.equal(ROUNDS, n)
      for _, left in ipairs { "job", "edge", "lease" } do
        assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_" .. left, name)), left)
      end
      handle:close()
    end)
  end)

  -- ------------------------------------------------ a push against an end

  -- One pushes a job and then, a moment later, one that waits for it. Another has claimed and
  -- ended it by then, or is about to, or does so meanwhile.
  local PUSHER = [[
local nightshift = require "nightshift"
local url, seed, rounds = arg[1], tonumber(arg[2]), tonumber(arg[3])
math.randomseed(seed)
local db = assert(nightshift.open(url))
local first, second = db:queue "first", db:queue "second"
for _ = 1, rounds do
  local on = assert(first:push("job", math.random(3)))
  local till = nightshift.clock() + math.random() * 0.002
  while nightshift.clock() < till do end
  local policy = math.random(2) == 1 and "run" or "cancel"
  assert(second:push("job", on, { after = { on }, on_fail = policy }))
end
db:close()]]

  local ENDER = [[
local nightshift = require "nightshift"
local db = assert(nightshift.open(arg[1]))
local q = db:queue "first"
while true do
  local job = q:claim { wait = 0.5 }
  if not job and io.open(arg[2]) then break end
  if not job then goto on end
  if job.payload == 1 then assert(job:discard "no") else assert(job:ack()) end
  ::on::
end
db:close()]]

  describe("a push after a job that is about to end", function()
    it("is never forgotten", function()
      local ROUNDS, PUSHERS, ENDERS = os.getenv "NIGHTSHIFT_LONG" and 350 or 150, 3, 2
      local url, name = db.fresh()
      local pusher, ender = fixture.file("pusher.lua", PUSHER), fixture.file("ender.lua", ENDER)
      local pushers, enders, pushed = {}, {}, fixture.dir() .. "/pushed"
      for i = 1, PUSHERS do pushers[i] = proc.start { proc.lua, pusher, url, i, ROUNDS } end
      for i = 1, ENDERS do enders[i] = proc.start { proc.lua, ender, url, pushed } end
      local function end_well(programs)
        for _, p in ipairs(programs) do
          local how = p:wait(120)
          assert.equal(0, how, select(2, p:text()))
        end
      end
      end_well(pushers)
      assert(io.open(pushed, "w")):close() -- a look that finds nothing before that is only early
      end_well(enders)
      local handle = assert(nightshift.open(url))
      local ran = 0
      for job in handle:queue "second":jobs { wait = 0 } do
        assert(job:ack())
        ran = ran + 1
      end
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_job", name)))
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_edge", name)))
      local wrong = db.sql([[SELECT COUNT(*) FROM nightshift_finished d
      JOIN nightshift_finished f ON f.id = JSON_VALUE(d.payload, '$') WHERE d.queue_id <> f.queue_id
      AND d.outcome <> IF(f.outcome = 'done' OR d.on_fail = 'run', 'done', 'cancelled')]], name)
      assert.equal("0", wrong)
      local dropped = tonumber((db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'cancelled'", name)))
      assert.equal(ROUNDS * PUSHERS, ran + dropped)
      handle:close()
    end)
  end)
end)

-- job.results was in the order of the children's ids. The worker that ran the parent takes ids
-- from a block of its own. So children of a later run, spawned on another host or by another
-- worker, could stand before those of an earlier one.
describe("job.results", function()
  it("is in the order of spawning, whoever ran the parent", function()
    local url = db.fresh()
    local a, b = assert(nightshift.open(url)), assert(nightshift.open(url))
    assert(a:queue "q":push "parent")              -- a has the lower block
    local job = b:queue "q":claim()
    assert(job:spawn("kid", "first"))
    assert(job:wait())
    assert(b:queue "q":claim():ack "first")
    job = a:queue "q":claim()
    assert(job:spawn("kid", "second"))
    assert(job:wait())
    assert(a:queue "q":claim():ack "second")
    job = a:queue "q":claim()
    assert.same({ "first", "second" }, { job.results[1].result, job.results[2].result })
    a:close()
    b:close()
  end)
end)

-- A job that was retried still had the children of its earlier life in job.results. So what a
-- handler finds there is not what it has spawned: the failed child that ended the first life
-- came first.
describe("a parent that is retried", function()
  it("has the children of this life in job.results", function()
    local handle = assert(nightshift.open(db.fresh()))
    local q = handle:queue "q"
    local id = assert(q:push "parent")
    local job = q:claim()
    assert(job:spawn "kid")
    assert(job:wait())
    assert(q:claim():discard "no")
    assert.equal("dead", handle:job(id).state)
    assert(handle:retry(id))
    job = q:claim()
    assert.equal(0, #job.results)
    assert(job:spawn "kid")
    assert(job:wait())
    assert(q:claim():ack "yes")
    job = q:claim()
    assert.same({ 1, "yes" }, { #job.results, job.results[1].result })
    handle:close()
  end)
end)

-- A job that waited once more after some of its children had been pruned. Its verdict was never
-- written, because those were neither live nor ended.
describe("a job whose earlier children are in no history any more", function()
  it("can wait for others", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local parent = assert(q:push "parent")
    local job = q:claim()
    for i = 1, 2 do job:spawn("child", i) end
    assert(job:wait())
    for _ = 1, 2 do assert(q:claim():ack()) end
    job = q:claim()
    db.sql("DELETE FROM nightshift_finished", name)
    job:spawn("child", 3)
    assert(job:wait())
    assert.equal("waiting", handle:job(parent).state)
    assert(q:claim():ack())
    assert.equal(2, q:claim().phase)
  end)
end)

-- A page of job.results was 500 children, however large their results were: up
-- to half a gigabyte at once, three times that in Lua.
describe("results that are large", function()
  it("are read a few at a time, each once", function()
    local handle <close> = assert(nightshift.open((db.fresh())))
    local q = handle:queue "q"
    assert(q:push("parent", 1, { priority = 200 }))
    local job = assert(q:claim())
    for i = 1, 60 do assert(job:spawn("child", i)) end
    assert(job:wait())
    for i = 1, 60 do
      local large = i > 10 and i <= 40
      assert(assert(q:claim()):ack(i .. (large and ("x"):rep(1000000) or "")))
    end
    job = assert(q:claim())
    collectgarbage()
    local before, most, seen = collectgarbage "count", 0, {}
    for i, child in ipairs(job.results) do
      seen[i] = math.tointeger(tonumber(child.result:match "^%d+"))
      child.result = nil
      collectgarbage()
      most = math.max(most, collectgarbage "count" - before)
    end
    for i = 1, 60 do assert.equal(i, seen[i]) end
    assert.equal(60, #job.results)
    assert.is_true(most < 12000, most .. " KiB")
    for _, i in ipairs { 60, 1, 30, 29, 12, 59 } do
      assert.equal(tostring(i), job.results[i].result:match "^%d+")
    end
    assert.is_nil(job.results[61])
    assert(job:ack())
  end)
end)
