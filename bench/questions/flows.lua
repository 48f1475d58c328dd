-- Trees of jobs: parents that wait for ten children, beside the same in bare SQL (floor.c). And
-- one parent that waits for very many, beside unrelated jobs.
--   lua5.4 bench/questions/flows.lua URL BUILD trees SCALE
-- Parents with ten children, through to the parent's run after the last of them,
-- under one host with 8 workers. Prints a JSON line for pushing, processing and both;
-- its rate is of parents, eleven jobs each. Flows: pushed in bulk, 100 a transaction;
-- the children run, then their parent. Parents that wait: each spawns its children, is
-- parked by job:wait, and runs once more after them. Processing is from the first
-- claim to the last verdict.
--   lua5.4 bench/questions/flows.lua URL BUILD siblings|unrelated JOBS
-- Two hosts with 4 workers, up before the first job may start. Prints one JSON line. siblings:
-- JOBS children of one parent, which is parked until they are done, and runs once more. The
-- rate is the children's; lag_ms is the time from the last of them to the parent's run.
-- unrelated: as many jobs without dependents.
local nightshift = require "nightshift"
local processes = require("bench.lib.programs").processes

local payload = ("x"):rep(98) -- 100 bytes with its quotes

-- The handlers for `nightshift work`: a parent that spawns its children, waits for them and
-- runs once more, and children that do nothing.
local handlers = {
  noop = function() end,
  parent = function(job)
    if job.phase > 0 then return end
    for _ = 1, job.payload do job:spawn("noop", payload) end
    return job:wait()
  end,
}
if ... == "bench/questions/flows.lua" then return handlers end

-- The floor's figure beside a line of ours.
local function floor_of(floor, line)
  if line.what:find "pushed and processed" then return floor.both_rate end
  return line.what:find "pushed" and floor.push_rate or floor.rate
end

local function question(s)
  local siblings = s:jobs(10000)
  local function fanin(what) return s:program("flows", what, siblings)[1] end
  local function trees()
    local floor, lines = s:both(
      function() return s:floor("flows", { jobs = s:jobs(3000, 100), batch = 1000 }) end,
      function() return s:program("flows", "trees", s.scale) end)
    for _, line in ipairs(lines) do
      line.floor, line.ours, line.rate = floor_of(floor, line), line.rate, nil
      line.ratio = line.ours / line.floor
    end
    return lines
  end
  return {
    title = "Flows",
    text = "Parents with ten children each, parents per second. And one parent of very many, jobs per second, under two"
      .. " hosts: there the floor is as many jobs without a parent.",
    ask = {
      trees,
      function()
        return s:beside(("%d siblings and their parent"):format(siblings), function() return fanin "unrelated" end,
          function() return fanin "siblings" end)
      end,
    },
  }
end
if ... == "bench.questions.flows" then return question end

local url, build, what = arg[1], arg[2], arg[3]
local AT_ONCE = 100 -- trees of one transaction

local db <close> = assert(nightshift.open { url = url, max_children = 1000000 })
local q = assert(db:queue "bench")

local function empty()
  for _, name in ipairs { "job", "ready", "lease", "finished", "scheduled", "edge", "child", "met" } do
    assert(db:execute("TRUNCATE nightshift_" .. name))
  end
end

local function push_many(n, name, its_payload)
  for done = 0, n - 1, 1000 do
    local items = {}
    for i = 1, math.min(1000, n - done) do items[i] = { name, its_payload } end
    assert(q:push_many(items))
  end
end

-- ----------------------------------------------------------------- many trees

local CHILDREN, WORKERS = 10, 8
local log = build .. "/bench/flows.log"

local function push_flows(n)
  local flows = {}
  for i = 1, n do
    local children = {}
    for k = 1, CHILDREN do children[k] = { name = "noop", payload = payload } end
    flows[i] = { name = "noop", payload = payload, queue = "bench", children = children }
  end
  assert(db:flow_many(flows))
end

-- The server's time of the first lease; asks until there is one.
local function first_claim()
  for _ = 1, 6000 do
    local row = assert(db:execute "SELECT claimed FROM nightshift_lease ORDER BY id LIMIT 1")[1]
    if row then return row.claimed end
    assert(db:execute "DO SLEEP(0.005)")
  end
  error("flows: the host claims nothing, see " .. log, 0)
end

-- Seconds from the first claim to the last verdict of so many trees.
local function process(parents)
  local command = "NIGHTSHIFT_URL='%s' %s >%s 2>&1"
  local work = ("%s/bin/nightshift work bench/questions/flows.lua --workers %d --drain --drain-within 0")
    :format(build, WORKERS)
  local host = assert(io.popen(command:format(url, processes.tied(work, "QUIT"), log)))
  local begun = first_claim()
  if not host:close() then error("flows: the host failed, see " .. log, 0) end
  local row = assert(db:execute [[SELECT COUNT(*) AS n, MAX(finished_at) AS last
    FROM nightshift_finished WHERE outcome = 'done']])[1]
  assert(row.n == parents * (CHILDREN + 1), "flows: not every job is done")
  return (row.last - begun) / 1e6
end

local function measure_trees(scale)
  local parents = math.max(AT_ONCE, math.floor(6000 * scale))
  local function line(title, seconds)
    print(('{"what":"%s","rate":%.1f,"parents":%d,"children":%d,"workers":%d}')
      :format(title, parents / seconds, parents, CHILDREN, WORKERS))
  end
  empty()
  local begun = nightshift.clock()
  for done = 0, parents - 1, AT_ONCE do push_flows(math.min(AT_ONCE, parents - done)) end
  local pushed = nightshift.clock() - begun
  local processed = process(parents)
  line("flows of 10 children, pushed in bulk", pushed)
  line("flows of 10 children, processed", processed)
  line("flows of 10 children, pushed and processed", pushed + processed)
  empty()
  push_many(parents, "parent", CHILDREN)
  line("parents that spawn 10 children and wait, processed", process(parents))
end

-- ------------------------------------------------------------------- one tree

local HOSTS, WORKERS_OF_EACH = 2, 4

-- A parent that has spawned its children and waits for them.
local function push_siblings(jobs)
  assert(q:push("noop", payload))
  local parent = assert(q:claim())
  for _ = 1, jobs do parent:spawn("noop", payload) end
  assert(parent:wait())
end

-- Reads one number from the database.
local function ask(sql) return assert(db:execute(sql))[1].n end

local function await_finished(n)
  for _ = 1, 12000 do
    if ask "SELECT COUNT(*) AS n FROM nightshift_finished" >= n then return end
    assert(db:execute "DO SLEEP(0.01)")
  end
  error("bench: the hosts do not get on", 0)
end

local function measure_jobs(jobs)
  local siblings = what == "siblings"
  empty()
  if siblings then push_siblings(jobs) else push_many(jobs, "noop", payload) end
  assert(q:pause())
  local hosts = {}
  for i = 1, HOSTS do
    hosts[i] = processes.start_host { url = url, build = build, workers = WORKERS_OF_EACH }
  end
  assert(q:resume())
  local start = ask "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS n"
  await_finished(jobs + (siblings and 1 or 0))
  local function last(which)
    return (ask("SELECT MAX(finished_at) AS n FROM nightshift_finished WHERE " .. which) - start) / 1e6
  end
  local seconds = last(siblings and "parent IS NOT NULL" or "TRUE")
  local lag = (last "TRUE" - seconds) * 1000 -- from the last sibling's end to its parent's
  for _, host in ipairs(hosts) do host:stop() end
  print(('{"what":"%s","jobs":%d,"seconds":%.6f,"lag_ms":%.1f,"rate":%.1f}')
    :format(what, jobs, seconds, lag, jobs / seconds))
end

if what == "trees" then measure_trees(tonumber(arg[4])) else measure_jobs(tonumber(arg[4])) end
