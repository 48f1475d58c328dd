-- Parents with ten children, through to the parent's run after the last of them,
-- under one host with 8 workers. A line is pushing, processing or both; its rate
-- is of parents, eleven jobs each.
--   lua5.4 flows.lua URL BUILD [SCALE]
-- Flows: pushed in bulk, 100 a transaction; the children run, then their parent.
-- Parents that wait: each spawns its children, is parked by job:wait, and runs once
-- more after them. Processing is from the first claim to the last verdict.
local nightshift = require "nightshift"

local url, build, scale = arg[1], arg[2], tonumber(arg[3] or 1)
local CHILDREN, WORKERS, AT_ONCE = 10, 8, 100
local parents = math.max(AT_ONCE, math.floor(6000 * scale))
local log = build .. "/bench/flows.log"
local payload = ("x"):rep(98) -- 100 bytes with its quotes

local db <close> = assert(nightshift.open(url))

local function empty()
  for _, name in ipairs { "job", "ready", "lease", "finished", "scheduled", "edge", "child", "met" } do
    assert(db:execute("TRUNCATE nightshift_" .. name))
  end
end

local function push_flows(n)
  local flows = {}
  for i = 1, n do
    local children = {}
    for k = 1, CHILDREN do children[k] = { name = "noop", payload = payload } end
    flows[i] = { name = "noop", payload = payload, queue = "bench", children = children }
  end
  assert(db:flow_many(flows))
end

local function push_parents(n)
  local items = {}
  for i = 1, n do items[i] = { "parent", CHILDREN } end
  assert(db:queue("bench"):push_many(items))
end

-- Seconds that pushing takes.
local function pushing(push)
  local begun = nightshift.clock()
  for done = 0, parents - 1, AT_ONCE do push(math.min(AT_ONCE, parents - done)) end
  return nightshift.clock() - begun
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

-- Seconds from the first claim to the last verdict.
local function processing()
  local command = "NIGHTSHIFT_URL='%s' %s/bin/nightshift work bench/questions/flows/handlers.lua --workers %d"
    .. " --drain --drain-within 0 >%s 2>&1"
  local host = assert(io.popen(command:format(url, build, WORKERS, log)))
  local begun = first_claim()
  if not host:close() then error("flows: the host failed, see " .. log, 0) end
  local row = assert(db:execute [[SELECT COUNT(*) AS n, MAX(finished_at) AS last
    FROM nightshift_finished WHERE outcome = 'done']])[1]
  assert(row.n == parents * (CHILDREN + 1), "flows: not every job is done")
  return (row.last - begun) / 1e6
end

local function line(what, seconds)
  print(('{"what":"%s","rate":%.1f,"parents":%d,"children":%d,"workers":%d}')
    :format(what, parents / seconds, parents, CHILDREN, WORKERS))
end

empty()
local pushed = pushing(push_flows)
local processed = processing()
line("flows of 10 children, pushed in bulk", pushed)
line("flows of 10 children, processed", processed)
line("flows of 10 children, pushed and processed", pushed + processed)
empty()
pushing(push_parents)
line("parents that spawn 10 children and wait, processed", processing())
