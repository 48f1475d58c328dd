-- Random graphs of jobs with random ends: every job finishes, none starts before
-- what it waits for, and what is cancelled had a reason.

local db = require "spec.support.db"
local nightshift = require "nightshift"

local GRAPHS, JOBS = 12, 60
local seed = math.tointeger(os.getenv "SEED") or os.time()

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
    assert(job:wait { on_fail = "continue" })
  else
    if job.phase > 0 then
      assert.equal(node.kids, #job.results)
      for _, child in ipairs(job.results) do assert.is_truthy(child.outcome) end
    end
    assert(job:ack(job.id))
    return "done"
  end
end

-- Those that wait for what has failed are cancelled with it.
local function note_cancelled(handle, graph)
  for i = 1, JOBS do
    local node = graph[i]
    if not node.ended and handle:job(node.id).state == "cancelled" then
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
