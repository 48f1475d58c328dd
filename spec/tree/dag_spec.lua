-- Random graphs of jobs with random ends: every job finishes, none starts before the jobs it
-- waits for, and each cancelled job had a reason. With two hosts, where every process is killed
-- at random, and the server, too: make test-dags SECONDS=600. SEED=n repeats the run that a
-- failure names.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

-- Random graphs of jobs with ends that are known beforehand, whatever is killed while they run.
-- What each job is to do stands in its payload.
--
--     local graph = dags.make(200)
--     dags.push(handle, graph)
--     ... hosts run dags.HANDLERS, with DAG_LOG in their environment ...
--     dags.check(handle, graph, log)
local dags = {}

--- The handler file. Each run writes `start TAG ID RUN PHASE` and, right before
-- its verdict, `end TAG ID RUN PHASE`; a line is one write with O_APPEND.
dags.HANDLERS = [[
local nightshift = require "nightshift"

local function note(kind, job)
  local file <close> = assert(io.open(os.getenv "DAG_LOG", "ab"))
  file:setvbuf "full"
  assert(file:write(kind, " ", job.payload.tag, " ", job.id, " ", job.run, " ", job.phase, "\n"))
end

local function spawn(job)
  local ids = {}
  for i, kid in ipairs(job.payload.kids) do
    local after = {}
    for _, k in ipairs(kid.after) do after[#after + 1] = ids[k] end
    kid.by = job.run
    ids[i] = job:spawn("node", kid, { after = #after > 0 and after or nil, on_fail = kid.on_fail,
      max_attempts = kid.max_attempts, backoff = 0, max_crashes = 1000, priority = kid.priority })
  end
end

local plans = {}
function plans.done(job) return job.payload.tag end
function plans.fail() error("planned", 0) end
function plans.discard(job) return job:discard "planned" end
function plans.retry(job)
  if job.attempt == 1 then error("planned", 0) end
  return job.payload.tag
end
function plans.again(job)
  assert((job.state or 0) == job.polls, "a state that is not the last one")
  if job.polls < job.payload.polls then return job:again(0, job.polls + 1) end
  return job.payload.tag
end
function plans.spawn(job)
  spawn(job)
  return job.payload.tag
end
function plans.wait(job)
  if job.phase == 0 then
    spawn(job)
    return job:wait { on_fail = job.payload.policy }
  end
  assert(#job.results - #job.after == #job.payload.kids, "children that are missing, or too many")
  for _, child in ipairs(job.results) do assert(child.outcome or child.after, "a child that lives") end
  return job.payload.tag
end
return { node = function(job)
  note("start", job)
  local till = nightshift.clock() + job.payload.takes
  while nightshift.clock() < till do end
  local result
  local ok, why = pcall(function() result = table.pack(plans[job.payload.plan](job)) end)
  note("end", job)
  if not ok then error(why, 0) end
  return table.unpack(result, 1, result.n)
end }
]]

local PLANS = {
  { "done", 8 }, { "fail", 2 }, { "discard", 1 }, { "retry", 3 }, { "again", 3 }, { "spawn", 2 }, { "wait", 4 },
}

local function pick_plan(depth)
  local list = {}
  for _, item in ipairs(PLANS) do
    if depth < 2 or item[1] ~= "spawn" and item[1] ~= "wait" then
      for _ = 1, item[2] do list[#list + 1] = item[1] end
    end
  end
  return list[math.random(#list)]
end

-- One job: `after` are places among those before it in the same list.
local function random_node(tag, depth, place)
  local n = {
    tag = tag, plan = pick_plan(depth), after = {}, on_fail = math.random(3) == 1 and "run" or "cancel",
    priority = 90 + math.random(20), takes = math.random() ^ 4 * 0.02,
  }
  for _ = 1, math.random(4) == 1 and 0 or math.random(3) do
    local at = place - math.ceil(math.random() ^ 2 * math.min(place, 40))
    if at >= 1 then n.after[at] = true end
  end
  local list = {}
  for at in pairs(n.after) do list[#list + 1] = at end
  n.after = list
  n.max_attempts = n.plan == "fail" and 2 or 50
  if n.plan == "again" then n.polls = math.random(4) end
  if n.plan == "spawn" or n.plan == "wait" then
    n.kids, n.policy = {}, math.random(2) == 1 and "continue" or "fail"
    for i = 1, math.random(n.plan == "wait" and 1 or 0, 6) do n.kids[i] = random_node(tag .. "." .. i, depth + 1, i) end
  end
  return n
end

--- A graph of n jobs, besides their children; from math.random.
function dags.make(n)
  local graph = {}
  for i = 1, n do graph[i] = random_node(tostring(i), 0, i) end
  return graph
end

--- Pushes it in one transaction.
function dags.push(handle, graph)
  assert(handle:transaction(function(tx)
    for _, n in ipairs(graph) do
      local after = {}
      for _, at in ipairs(n.after) do after[#after + 1] = graph[at].id end
      n.id = assert(tx:queue "q":push("node", n, { after = #after > 0 and after or nil, on_fail = n.on_fail,
        max_attempts = n.max_attempts, backoff = 0, max_crashes = 1000, priority = n.priority }))
    end
    return true
  end))
end

-- ------------------------------------------------------------------ the model

local REASONS = { fail = "failed", discard = "discarded" }

local foresee

-- A list of jobs, each after some of the list.
local function foresee_all(list, into)
  for _, n in ipairs(list) do
    local dropped = false
    for _, at in ipairs(n.after) do dropped = dropped or list[at].outcome ~= "done" end
    if dropped and n.on_fail == "cancel" then
      n.outcome, n.reason = "cancelled", "dependency"
    else
      foresee(n, into)
    end
    into[n.tag] = n
  end
end

-- What comes of one that runs, and of its children.
function foresee(n, into)
  n.outcome, n.reason = "done", nil
  if REASONS[n.plan] then n.outcome, n.reason = "dead", REASONS[n.plan] end
  if not n.kids then return end
  foresee_all(n.kids, into)
  for _, kid in ipairs(n.kids) do
    kid.above = n
    if n.plan == "wait" and n.policy == "fail" and kid.outcome ~= "done" then
      n.outcome, n.reason = "dead", "child failed"
    end
  end
end

-- ------------------------------------------------------------------ the checks

local function wrong(format, ...) error(format:format(...), 0) end

-- Lines of a log: of each tag its first start, the first start after a wait, and
-- of each run its last line.
local function read_log(path)
  local log = {}
  local at = 0
  for line in io.lines(path) do
    at = at + 1
    local kind, tag, _, run, phase = line:match "^(%a+) (%S+) (%d+) (%d+) (%d+)$"
    local of = log[tag] or { runs = {}, ends = {} }
    log[tag] = of
    if kind == "start" then
      of.first = of.first or at
      if phase ~= "0" then of.joined = of.joined or at end
    else
      of.ends[tonumber(run)] = at
    end
    of.runs[tonumber(run)] = at
  end
  return log
end

-- The last line of the run by which a job ended; 0: it never ran.
local function over(log, n)
  local of = log[n.tag]
  return of and of.runs[n.row.run] or 0
end

local ATTEMPTS = { fail = 2, retry = 1 }

local function check_row(n, row)
  n.row = row
  if row.outcome ~= n.outcome or row.reason ~= n.reason then
    wrong("job %s (%s) is %s, %s, %s; expected %s, %s", n.tag, n.plan, row.outcome, row.reason, row.error, n.outcome,
      n.reason)
  end
  if n.outcome == "done" and row.result ~= '"' .. n.tag .. '"' then
    wrong("job %s has the result %s", n.tag, row.result)
  end
  if n.outcome ~= "cancelled" then
    -- each verdict counted once; one that reads results fails while the server is away
    if n.plan ~= "wait" and row.attempts ~= (ATTEMPTS[n.plan] or 0) then
      wrong("job %s (%s) has %d attempts", n.tag, n.plan, row.attempts)
    end
    if row.polls ~= (n.polls or 0) then wrong("job %s has polled %d times", n.tag, row.polls) end
  end
end

-- The error of one that was dropped names one that failed.
local function check_error(n, ids)
  local culprit = (n.reason == "dependency" or n.reason == "child failed")
    and math.tointeger(tonumber((n.row.error or ""):match "job (%d+)"))
  if culprit and not (ids[culprit] and ids[culprit].outcome ~= "done") then
    wrong("job %s blames %s", n.tag, n.row.error)
  elseif culprit == nil then
    wrong("job %s blames nobody: %s", n.tag, n.row.error)
  end
end

local function check_order(n, list, log)
  local of = log[n.tag]
  if n.outcome == "cancelled" then
    if of then wrong("job %s was cancelled and ran", n.tag) end
    return
  end
  if not of then wrong("job %s is %s and never ran", n.tag, n.outcome) end
  for _, at in ipairs(n.after) do
    if over(log, list[at]) > of.first then wrong("job %s started before %s had ended", n.tag, list[at].tag) end
  end
  for _, kid in ipairs(n.kids or {}) do
    local first = log[kid.tag] and log[kid.tag].first
    if kid.row.by == nil then wrong("job %s was spawned by nobody", kid.tag) end
    if first and first < (of.ends[kid.row.by] or math.huge) then
      wrong("job %s started before the run that spawned it had ended", kid.tag)
    end
    if of.joined and n.plan == "wait" and over(log, kid) > of.joined then
      wrong("job %s went on before its child %s had ended", n.tag, kid.tag)
    end
  end
  if n.plan == "wait" and n.outcome == "done" and not of.joined then wrong("job %s never went on", n.tag) end
  if n.kids then
    for _, kid in ipairs(n.kids) do
      if kid.row.by ~= n.kids[1].row.by then wrong("children of two runs of job %s", n.tag) end
      check_order(kid, n.kids, log)
    end
  end
end

--- Raises when the jobs did not end as they had to.
function dags.check(handle, graph, path)
  local expected, ids, count = {}, {}, 0
  foresee_all(graph, expected)
  for _ in pairs(expected) do count = count + 1 end
  local rows = assert(handle:execute [[SELECT id, run, outcome, reason, result, error, attempts, polls,
    JSON_VALUE(payload, '$.tag') AS tag, CAST(JSON_VALUE(payload, '$.by') AS INT) AS `by` FROM nightshift_finished]])
  for _, row in ipairs(rows) do
    local n = expected[row.tag]
    if not n then wrong("job %s was not to be", row.tag) end
    if n.row then wrong("job %s is there twice", row.tag) end
    check_row(n, row)
    ids[row.id] = n
  end
  if #rows ~= count then
    for tag, n in pairs(expected) do
      if not n.row then wrong("job %s is missing", tag) end
    end
  end
  for _, n in pairs(expected) do check_error(n, ids) end
  local log = read_log(path)
  for _, n in ipairs(graph) do check_order(n, graph, log) end
  for _, left in ipairs { "job", "edge", "lease" } do
    local n = assert(handle:execute("SELECT COUNT(*) AS n FROM nightshift_" .. left))[1].n
    if n ~= 0 then wrong("%d rows of %s are left", n, left) end
  end
  return #rows
end

local LONG = os.getenv "NIGHTSHIFT_LONG"
local GRAPHS, JOBS = LONG and 12 or 3, 60
local seed = math.tointeger(tonumber(os.getenv "SEED" or "")) or os.time() % 100000
local seconds = tonumber(os.getenv "DAG_SECONDS" or "")

local function pick(n) return math.random(n) end

-- Jobs that wait for up to four earlier ones; what each is to come to.
local function push_graph(q)
  local graph = {}
  for i = 1, JOBS do
    local node = { after = {}, on_fail = pick(3) == 1 and "run" or "cancel", plan = pick(10) }
    for _ = 1, i > 1 and pick(5) - 1 or 0 do node.after[graph[pick(i - 1)].id] = true end
    local after = {}
    for id in pairs(node.after) do after[#after + 1] = id end
    node.id = assert(q:push("node", { plan = node.plan }, {
      after = #after > 0 and after or nil, on_fail = node.on_fail, max_attempts = 2, backoff = 0, priority = pick(3),
    }))
    graph[i], graph[node.id] = node, node
  end
  return graph
end

local function check_start(graph, job)
  local node = graph[job.id]
  for id in pairs(node and node.after or {}) do
    local other = graph[id]
    assert(other.ended, ("job %d started before %d had ended"):format(job.id, id))
    assert(other.ended == "done" or node.on_fail == "run", ("job %d started although %d failed"):format(job.id, id))
  end
  if node then
    assert(not node.ended, ("job %d started after its end"):format(job.id))
    node.started = true
  end
end

-- What a job does, and whether it has ended with that.
local function act(job, node)
  local plan = job.payload.plan
  if plan == 1 then
    assert(job:discard "planned")
    return "dead"
  elseif plan == 2 then
    local _, dead = assert(job:fail "planned")
    return dead and "dead"
  elseif plan == 3 and job.polls < 3 then
    assert(job:again(0))
  elseif plan == 4 and job.attempt == 1 and not node.released then
    node.released = true
    assert(job:release())
  elseif plan <= 6 and job.phase == 0 then
    node.kids = pick(4) - 1
    for _ = 1, node.kids do assert(job:spawn("kid", { plan = pick(8) + 2 })) end
    if node.kids == 0 then
      assert(job:ack(job.id))
      return "done"
    end
    assert(job:wait { on_fail = "continue" })
  else
    if job.phase > 0 then
      assert.equal(node.kids, #job.results - #job.after)
      for _, child in ipairs(job.results) do assert.is_truthy(child.outcome or child.after) end
    end
    assert(job:ack(job.id))
    return "done"
  end
end

-- Those that wait for what has failed are cancelled with it.
local function note_cancelled(handle, graph)
  for _, row in ipairs(assert(handle:execute "SELECT id FROM nightshift_finished WHERE outcome = 'cancelled'")) do
    local node = graph[row.id]
    if node and not node.ended then
      node.ended = "cancelled"
      assert(not node.started, ("job %d was cancelled after its start"):format(node.id))
      local why
      for id in pairs(node.after) do
        local state = handle:job(id).state
        why = why or state == "dead" or state == "cancelled"
      end
      assert(why, ("job %d was cancelled for no reason"):format(node.id))
    end
  end
end

describe("a random graph of jobs", function()
  it("finishes, in order, whatever its jobs do", function()
    math.randomseed(seed)
    local url, name = db.fresh()
    local handles = { assert(nightshift.open(url)), assert(nightshift.open(url)) }
    for _ = 1, GRAPHS do
      local graph, kids = push_graph(handles[1]:queue "q"), {}
      local idle = 0
      while idle < 3 do
        local jobs = handles[pick(2)]:queue "q":claim_many(pick(8), { wait = 0.01 })
        idle = #jobs == 0 and idle + 1 or 0
        for _, job in ipairs(jobs) do
          check_start(graph, job)
          kids[job.id] = kids[job.id] or {}
          local ended = act(job, graph[job.id] or kids[job.id])
          if graph[job.id] and ended then graph[job.id].ended = ended end
        end
        note_cancelled(handles[1], graph)
      end
      for i = 1, JOBS do assert.is_truthy(graph[i].ended, "seed " .. seed .. ": job " .. graph[i].id .. " hangs") end
    end
    for _, left in ipairs { "job", "edge", "lease" } do
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_" .. left, name)), "seed " .. seed .. ": " .. left)
    end
    for _, handle in ipairs(handles) do handle:close() end
  end)
end)

-- ------------------------------------------------------------- under kills

-- A server, two hosts on it, and what can be done to them.
local World = {}
World.__index = World

local function world(server)
  local self = setmetatable({ server = server, hosts = {} }, World)
  self.url = server:fresh()
  self.log = fixture.file("log", "")
  for i = 1, 2 do self:start(i) end
  self.handle = assert(nightshift.open(self.url))
  return self
end

function World:start(i)
  self.hosts[i] = host.start(self.url, dags.HANDLERS, { "--workers", "3" }, { DAG_LOG = self.log })
end

local STRIKES = {}

function STRIKES.worker(self)
  local workers = host.members(self.hosts[math.random(2)].pid)
  if #workers > 0 then nst.kill(workers[math.random(#workers)], "KILL") end
end

function STRIKES.host(self)
  local i = math.random(2)
  self.hosts[i]:signal "KILL"
  self.hosts[i]:wait()
  self.hosts[i]:forget()
  self:start(i)
end

function STRIKES.server(self)
  self.server:kill()
  nst.sleep(math.random() * 0.5)
  self.server:start()
end

function World:left()
  local rows = self.handle:execute "SELECT COUNT(*) AS n FROM nightshift_job"
  return rows and rows[1].n or math.huge
end

-- What a stuck graph looks like.
function World:describe()
  local list = {}
  for _, job in ipairs(self.handle:jobs { limit = 20 } or {}) do
    list[#list + 1] = ("%d %s %s"):format(job.id, job.state, job.payload.tag)
  end
  return table.concat(list, "; ")
end

-- One graph to its end; `strikes` is a list of names, each struck at a random moment.
function World:run(n, strikes, patience)
  local graph = dags.make(n)
  dags.push(self.handle, graph)
  for _, name in ipairs(strikes) do
    local stop = nst.clock() + math.random() * 0.8
    while nst.clock() < stop and self:left() > 0 do nst.sleep(0.02) end
    if self:left() == 0 then break end
    STRIKES[name](self)
  end
  local ok = pcall(eventually, function() return self:left() == 0 end, patience)
  assert(ok, ok or "left: " .. self:describe())
  eventually(function() -- the last leases go with the next cycle
    return assert(self.handle:execute "SELECT COUNT(*) AS n FROM nightshift_lease")[1].n == 0
  end)
  return dags.check(self.handle, graph, self.log)
end

function World:close()
  self.handle:close()
  for _, h in ipairs(self.hosts) do
    h:signal "TERM"
    assert.equal(0, h:wait(60))
    h:forget()
  end
end

-- What other programs may do to jobs meanwhile. What it comes to is another matter.
local MEDDLING = {
  function(self, id) return self.handle:cancel(id) end,
  function(self, id) return self.handle:retry(id) end,
  function(self, id) return self.handle:reprioritise(id, math.random(0, 255)) end,
  function(self, id) return self.handle:run_now(id) end,
  function(self, id)
    pcall(self.handle.transaction, self.handle, function(tx)
      tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id)
      nst.sleep(math.random() * 0.2)
      self.handle:cancel(id)
      if math.random(2) == 1 then error "rolled back" end
      return true
    end)
  end,
  function(self, id) return self.handle:queue "q":push("node", { tag = "x", plan = "done", takes = 0, after = {} },
    { parent = id }) end,
}

-- Does that for some seconds, and says which of the jobs are left behind.
function World:meddle(n, seconds_of_it)
  local graph = dags.make(n)
  dags.push(self.handle, graph)
  local stop = nst.clock() + seconds_of_it
  while nst.clock() < stop do
    local from = math.random(3) == 1 and "finished" or "job"
    local rows = assert(self.handle:execute(("SELECT id FROM nightshift_%s ORDER BY RAND() LIMIT 1"):format(from)))
    if rows[1] then MEDDLING[math.random(#MEDDLING)](self, rows[1].id) end
  end
  local ok = pcall(eventually, function() return self:left() == 0 end, 120)
  assert(ok, ok or "left: " .. self:describe())
  for _, left in ipairs { "edge", "met", "lease", "signal", "unique_key" } do
    eventually(function()
      return assert(self.handle:execute("SELECT COUNT(*) AS n FROM nightshift_" .. left))[1].n == 0
    end, 20)
  end
end

local function one(server, s, n, strikes, patience)
  math.randomseed(s)
  local w = world(server)
  local ok, why = pcall(w.run, w, n, strikes, patience)
  if not ok then error(("SEED=%d: %s"):format(s, why), 0) end
  w:close()
  return why
end

local function pick_strikes(kinds, n)
  local list = {}
  for i = 1, n do list[i] = kinds[math.random(#kinds)] end
  return list
end

describe("a random graph of jobs on two hosts", function()
  it("ends as it has to, though workers and hosts are killed", function()
    one(db.shared(), seed, LONG and 250 or 120, { "worker", "host", "worker", "worker", "host", "worker" }, 120)
  end)

  it("ends as it has to, though the server is killed", function()
    one(db.server(), seed + 1, LONG and 150 or 80, { "worker", "server", "worker" }, 120)
  end)

  it("ends, whatever is cancelled, retried, held and added meanwhile", function()
    math.randomseed(seed + 2)
    local w = world(db.shared())
    local ok, why = pcall(w.meddle, w, LONG and 300 or 150, 4)
    if not ok then error(("SEED=%d: %s"):format(seed, why), 0) end
    w:close()
  end)

  if seconds then
    it("ends as it has to, time and again", function()
      local server = db.server()
      local stop, n, jobs, s = nst.clock() + seconds, 0, 0, seed
      while nst.clock() < stop do
        math.randomseed(s)
        local kinds = { "worker", "worker", "worker", "worker", "host", "host", "server" }
        jobs = jobs + one(server, s, math.random(500), pick_strikes(kinds, math.random(0, 12)), 120)
        n, s = n + 1, s + 1
        io.write(("%d graphs, %d jobs, seed %d\n"):format(n, jobs, s - 1))
        io.flush()
      end
    end)
  end
end)
