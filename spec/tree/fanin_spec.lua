-- Many that end at once, and one that waits for all of them: it runs once, after
-- the last, with all their results, whatever is killed in the middle.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local function lines(path)
  local list = {}
  for line in io.lines(path) do list[#list + 1] = line end
  return list
end

-- ----------------------------------------------------- a stage on two hosts

local PIECES = 1500

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
    local ROUNDS, SIBLINGS, PROGRAMS = 300, 8, 4
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

-- One pushes a job and then, a moment later, one that waits for it; another has
-- claimed and ended it by then, or is about to, or does so meanwhile.
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
    local ROUNDS, PUSHERS, ENDERS = 700, 3, 2
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
    assert(io.open(pushed, "w")):close() -- whoever finds nothing before that is only early
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
