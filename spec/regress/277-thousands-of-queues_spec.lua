-- A host whose jobs lay in 5,000 queues did 770 a second: for each job it went several times
-- through all its queues in memory, and asked one of them by itself.

local db = require "spec.support.db"
local host = require "spec.support.host"
local ledger = require "spec.support.ledger"
local nightshift = require "nightshift"

local QUEUES, EACH = 400, 12
local NOTHING = "return { job = function() end }"

local function executed()
  return tonumber(db.sql("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'"):match "%d+")
end

-- Paused, so that a host finds all jobs at once. Gives the handle and the database's name.
local function filled(options, before)
  local url, name = db.fresh()
  if before then before(url) end
  local handle = assert(nightshift.open(url))
  assert(handle:transaction(function(tx)
    local jobs = {}
    for i = 1, EACH do jobs[i] = { "job", i, options and options(i) } end
    for i = 1, QUEUES do assert(tx:queue("q" .. i):push_many(jobs)) end
    return true
  end))
  return handle, name, url
end

local function drained(name) return db.sql("SELECT 1 FROM nightshift_job LIMIT 1", name) == "" end

it("a claim of many queues with a few jobs each takes a few statements", function()
  local handle <close>, name, url = filled()
  local before = executed()
  local h = host.start(url, NOTHING)
  eventually(function() return drained(name) end, 60)
  local cycles = tonumber(db.sql("SELECT cycle FROM nightshift_holder WHERE kind = 'host'", name))
  local a_job = (executed() - before - 20 * cycles) / (QUEUES * EACH) -- but for what each cycle takes anyway
  assert.is_true(a_job < 0.25, a_job)
  h:signal "TERM"
  assert.equal(0, h:wait())
  assert.equal(tostring(QUEUES * EACH),
    db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
  assert(handle:queue "q1")
end)

-- A host whose workers all seem to be long at one job gives back what it has claimed ahead,
-- so on a busy machine a job may have another run, and be started once all the same.
it("two hosts share them, and each job is started once", function()
  local hosts
  local path = fixture.dir() .. "/ledger"
  local script = ledger.script(path) .. "return { job = function(job) begin(job.id) done(job.id) end }"
  local handle <close>, name = filled(nil, function(url) -- both are there before the first job
    hosts = { host.start(url, script), host.start(url, script) }
  end)
  eventually(function() return drained(name) end, 60)
  for _, h in ipairs(hosts) do
    h:signal "TERM"
    assert.equal(0, h:wait())
  end
  assert.equal(tostring(QUEUES * EACH),
    db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
  local found, n = ledger.read(path), 0
  for id, times in pairs(found.begun) do
    assert.same({ 1, 1 }, { times, found.done[id] })
    n = n + 1
  end
  assert.equal(QUEUES * EACH, n)
  assert.equal("2", db.sql("SELECT COUNT(DISTINCT holder) FROM nightshift_finished", name))
  assert(handle:queue "q1")
end)

it("a host of many queues that are empty is silent", function()
  local handle <close>, name, url = filled()
  local h = host.start(url, NOTHING)
  eventually(function() return drained(name) end, 60)
  eventually(function()
    local before = executed()
    db.sql "DO SLEEP(0.3)"
    return executed() - before < 20
  end)
  local id = assert(handle:queue("q7"):push "job") -- and hears of the next
  eventually(function() return handle:job(id).state == "done" end)
  h:signal "TERM"
  assert.equal(0, h:wait())
end)

it("jobs below others in their queue have their turn", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  assert(handle:transaction(function(tx)
    local urgent = {}
    for i = 1, 150 do urgent[i] = { "job", i, { priority = 200 } } end
    for i = 1, 20 do
      assert(tx:queue("q" .. i):push("low", i, { priority = 1 }))
      assert(tx:queue("q" .. i):push_many(urgent))
    end
    return true
  end))
  local h = host.start(url, [[local nst = require "nst"
    local function nap() nst.sleep(0.001) end -- so that a claim has few places
    return { job = nap, low = nap }]])
  eventually(function() return drained(name) end, 60)
  h:signal "TERM"
  assert.equal(0, h:wait())
  assert.equal("0", db.sql([[SELECT COUNT(*) FROM nightshift_finished f WHERE name = 'low' AND NOT EXISTS(
    SELECT 1 FROM nightshift_finished o WHERE o.queue_id = f.queue_id
      AND o.finished_at > f.finished_at + 10000)]], name))
end)
