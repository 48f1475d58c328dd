-- Random graphs of jobs with random ends: every job finishes, none starts before
-- what it waits for, and what is cancelled had a reason. With two hosts, of which
-- everything is killed at random, too, and the server: make test-dags SECONDS=600.
-- SEED=n repeats what a failure names.

local dags = require "spec.support.dags"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

local GRAPHS, JOBS = 12, 60
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

-- What others may do to jobs meanwhile. What it comes to is another matter.
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
    one(db.shared(), seed, 250, { "worker", "host", "worker", "worker", "host", "worker" }, 120)
  end)

  it("ends as it has to, though the server is killed", function()
    one(db.server(), seed + 1, 150, { "worker", "server", "worker" }, 120)
  end)

  it("ends, whatever is cancelled, retried, held and added meanwhile", function()
    math.randomseed(seed + 2)
    local w = world(db.shared())
    local ok, why = pcall(w.meddle, w, 300, 4)
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
