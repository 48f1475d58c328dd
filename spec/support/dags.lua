--- Random graphs of jobs whose ends are known beforehand, whatever is killed
-- while they run: what each job is to do stands in its payload.
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
local function node(tag, depth, place)
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
    for i = 1, math.random(n.plan == "wait" and 1 or 0, 6) do n.kids[i] = node(tag .. "." .. i, depth + 1, i) end
  end
  return n
end

--- A graph of n jobs, besides their children; from math.random.
function dags.make(n)
  local graph = {}
  for i = 1, n do graph[i] = node(tostring(i), 0, i) end
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

-- A list of jobs, each after others of the list.
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

return dags
