-- Limited queues. It measures the rate of no-op jobs of a queue without limits, alone, and beside
-- 1,000 limited groups. These have started what they may. Then it is the claims of a queue with a
-- group for each of its jobs. Last comes the time to the start of a tenant's job beside another
-- tenant's backlog. A host has sorted that by tenant, or it was just pushed. Prints a JSON line.
--   lua5.4 bench/questions/limits.lua URL BUILD WHAT JOBS
-- WHAT: alone, beside, groups, fair or fresh.
local nightshift = require "nightshift"
local processes = require("bench.lib.programs").processes
local tables = require("bench.lib.programs").tables

local GROUPS <const> = 1000
local STEP <const> = 0.01 -- s, a job of the tenants

local handlers = {
  noop = function() end,
  step = function() require("nightshift.core").sleep(STEP) end,
  start = function() return nightshift.clock() end,
}
if ... == "bench/questions/limits.lua" then return handlers end

local function question(s)
  local function program(what, jobs)
    return function() return s:program("limits", what, jobs)[1] end
  end
  return {
    title = "Limited queues",
    text = "No-op jobs without a limit, alone and beside 1,000 groups that wait. Claims of ten jobs each. "
      .. "From a push to the start, beside another tenant's jobs of 10 ms.",
    ask = {
      program("alone", s:jobs(100000, 1000)),
      program("beside", s:jobs(100000, 1000)),
      program("groups", s:jobs(100000, 1000)),
      program("fair", s:jobs(100000, 1000)),
      program("fresh", s:jobs(100000, 1000)),
    },
    rounds = 3,
  }
end
if ... == "bench.questions.limits" then return question end

local url, build, what, jobs = table.unpack(arg)
jobs = math.tointeger(tonumber(jobs))

local function fill(q, name, n, group)
  for first = 1, n, 1000 do
    local items = {}
    for i = first, math.min(first + 999, n) do items[#items + 1] = { name, i, { group = group and group(i) } } end
    assert(q:push_many(items))
  end
end

local function host(workers)
  return processes.start_host { url = url, build = build, workers = workers, script = "bench/questions/limits.lua" }
end

local function at(list, share)
  table.sort(list)
  return list[math.max(1, math.ceil(#list * share))]
end

local asks = {}

-- The rate of a queue without limits.
local function rate(db, beside)
  local q = assert(db:queue "free")
  if beside then
    local api = assert(db:queue "api")
    assert(api:limit { group = { rate = { 1, "1h" }, running = 1 } })
    fill(api, "noop", 3 * GROUPS, function(i) return "g" .. i % GROUPS end)
  end
  local h <close> = host(4)
  if beside then
    tables.await(db, ("SELECT 1 AS n FROM DUAL WHERE (SELECT COUNT(*) FROM nightshift_job) = %d"):format(2 * GROUPS))
  end
  assert(q:pause())
  fill(q, "noop", jobs)
  local begun = tables.now(db)
  assert(q:resume())
  local ended = tables.await(db, "SELECT 1 AS n FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM nightshift_job j "
    .. "JOIN nightshift_queue q ON q.id = j.queue_id WHERE q.name = 'free')")
  h:stop()
  return ('{"what":"%s","jobs":%d,"rate":%.1f}'):format(beside and "beside 1,000 groups" or "alone", jobs,
    jobs / ((ended - begun) / 1e6))
end

function asks.alone(db) return rate(db, false) end

function asks.beside(db) return rate(db, true) end

function asks.groups(db)
  local q, took = assert(db:queue "api"), {}
  assert(q:limit { group = { running = 1 } })
  fill(q, "noop", jobs, function(i) return "g" .. i end)
  local begun = nightshift.clock()
  for _ = 1, jobs // 10 do
    local start = nightshift.clock()
    local list = assert(q:claim_many(10))
    took[#took + 1] = (nightshift.clock() - start) * 1000
    for _, job in ipairs(list) do assert(job:ack()) end
    if nightshift.clock() - begun > 20 then break end
  end
  return ('{"what":"%d groups, claims","jobs":%d,"rate":%.1f,"p50_ms":%.3f,"p99_ms":%.3f}'):format(jobs, #took,
    #took / (nightshift.clock() - begun), at(took, 0.5), at(took, 0.99))
end

--- Pushes n jobs of a tenant beside another's, 30 ms apart, of the same priority and of others. Gives
--- the JSON line of the times from push to start.
local function beside_a(db, q, n, title)
  local begun, late, priorities = {}, {}, { false, 10, 200 }
  for i = 1, n do
    local at_once = nightshift.clock()
    local id = assert(q:push("start", 1, { group = "b", priority = priorities[i % 3 + 1] or nil }))
    begun[id] = at_once
    assert(db:execute "DO SLEEP(0.03)")
  end
  for id, from in pairs(begun) do
    tables.await(db, ("SELECT 1 AS n FROM nightshift_finished WHERE id = %d"):format(id))
    late[#late + 1] = (assert(db:job(id)).result - from) * 1000
  end
  return ('{"what":"%s","jobs":%d,"p50_ms":%.3f,"p99_ms":%.3f,"max_ms":%.3f}'):format(title, n, at(late, 0.5),
    at(late, 0.99), at(late, 1))
end

function asks.fair(db)
  local q = assert(db:queue "api")
  assert(q:limit { group = { fair = true } })
  fill(q, "step", jobs, function() return "a" end)
  local h <close> = host(4)
  tables.await(db, "SELECT 1 AS n FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM nightshift_ready WHERE job_id > 0)")
  local line = beside_a(db, q, 100, ("fair, %d of another tenant"):format(jobs))
  h:stop()
  return line
end

function asks.fresh(db)
  local q = assert(db:queue "api")
  assert(q:limit { group = { fair = true } })
  assert(q:pause())
  local h <close> = host(4)
  fill(q, "step", jobs, function() return "a" end)
  assert(q:resume())
  local line = beside_a(db, q, 50, ("fair, %d of another tenant just pushed"):format(jobs))
  h:stop()
  return line
end

local db <close> = assert(nightshift.open(url))
tables.empty(db)
print(asks[what](db))
