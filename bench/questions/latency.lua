-- From the call of q:push to the first line of the handler: under a host that sleeps, and under
-- one that is half busy. Beside a push and a claim by one connection in bare SQL. Prints a JSON
-- line for each.
--   lua5.4 bench/questions/latency.lua URL BUILD [SCALE]
--   lua5.4 bench/questions/latency.lua URL feed RATE FILE
-- The second is the load: RATE jobs a second until FILE is gone. One clock: the monotonic one
-- of the machine, which the handler reads first and returns. This program reads it before the
-- push. So a figure has in it the push's own commit, the ring, and the claim's commit.
local nightshift = require "nightshift"
local processes = require("bench.lib.programs").processes

-- The handlers for `nightshift work`: "start" returns its time, "noop" is the load around it.
local handlers = {
  start = function() return nightshift.clock() end,
  noop = function() end,
}
if ... == "bench/questions/latency.lua" then return handlers end

local function question(s)
  local ask = {
    function()
      local line = s:floor("latency", { jobs = s:jobs(1000) })
      line.what = "bare SQL: one connection pushes, commits, claims, commits"
      return line
    end,
  }
  table.insert(ask, function() return s:program("latency", s.scale) end)
  return { title = "From push to handler", ask = ask }
end
if ... == "bench.questions.latency" then return question end

local url, build, scale = arg[1], arg[2], tonumber(arg[3] or 1)
local WORKERS = 2
local FIRST, DRAINED = 200, 50000
local IDLE, BUSY = math.max(50, 1000 * scale // 1), math.max(50, 1000 * scale // 1)
local TICK = 0.01 -- of the load, seconds
local payload = ("x"):rep(98) -- 100 bytes with its quotes

local db <close> = assert(nightshift.open(url))
local q = assert(db:queue "bench")

-- Pushes 'n' jobs that do nothing, a thousand at a time.
local function push_noops(n)
  for done = 0, n - 1, 1000 do
    local items = {}
    for i = 1, math.min(1000, n - done) do items[i] = { "noop", payload } end
    assert(q:push_many(items))
  end
end

local function sleep(seconds) assert(db:execute("DO SLEEP(?)", math.max(seconds, 0))) end

if build == "feed" then
  local rate, file = scale, arg[4]
  local due = nightshift.clock()
  local owed = 0
  while io.open(file) do
    owed = owed + rate * TICK
    push_noops(math.floor(owed))
    owed = owed % 1
    due = due + TICK
    sleep(due - nightshift.clock())
  end
  return
end

for _, name in ipairs { "job", "ready", "lease", "finished", "scheduled", "edge", "child" } do
  assert(db:execute("TRUNCATE nightshift_" .. name))
end

-- Reads one number from the database.
local function ask(sql, ...) return assert(db:execute(sql, ...))[1].n end

local function wait_until(what, sql, ...)
  for _ = 1, 6000 do
    if ask(sql, ...) ~= 0 then return end
    sleep(0.01)
  end
  error(("bench: %s does not come"):format(what), 0)
end

-- Half of the jobs a second that are pushed and done, both at once.
local function half_of_all()
  local jobs = DRAINED * scale // 1
  local begun = ask "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS n"
  push_noops(jobs)
  wait_until("the end of the jobs", "SELECT COUNT(*) = 0 AS n FROM nightshift_job")
  local last = ask "SELECT MAX(finished_at) AS n FROM nightshift_finished"
  return jobs / ((last - begun) / 1e6) / 2
end

-- Pushes one job after the other with pauses, and tells the delay of each start.
local function sample(n, pause)
  local pushed, late = {}, {}
  for i = 1, n do
    local at = nightshift.clock()
    pushed[i] = { id = assert(q:push("start", payload)), at = at }
    sleep(pause * (0.5 + math.random()))
  end
  wait_until("the last job", "SELECT COUNT(*) = 0 AS n FROM nightshift_job WHERE id = ?", pushed[n].id)
  for i, p in ipairs(pushed) do
    wait_until("a job", "SELECT COUNT(*) AS n FROM nightshift_finished WHERE id = ? AND outcome = 'done'", p.id)
    late[i] = (assert(db:job(p.id)).result - p.at) * 1000
  end
  table.sort(late)
  return late
end

local function at(sorted, share) return sorted[math.max(1, math.ceil(#sorted * share))] end

local function tell(what, late, more)
  print(('{"what":"%s","p50_ms":%.3f,"p99_ms":%.3f,"max_ms":%.3f,"jobs":%d%s}')
    :format(what, at(late, 0.5), at(late, 0.99), late[#late], #late, more or ""))
end

-- Pushes so many jobs a second beside this process, until it is closed.
local function feed(rate)
  local file = os.tmpname()
  local command = ("%s bench/questions/latency.lua '%s' feed %.0f %s"):format(arg[-1] or "lua5.4", url, rate, file)
  local pipe = assert(io.popen(processes.tied(command)))
  return setmetatable({}, { __close = function()
    os.remove(file)
    pipe:close()
  end })
end

do
  local _ <close> = processes.start_host { url = url, build = build, workers = WORKERS,
    script = "bench/questions/latency.lua" }
  sample(math.min(FIRST, IDLE), 0.005) -- statements get prepared, pages warm
  tell("push to handler start, idle", sample(IDLE, 0.015))
  local rate = half_of_all()
  local _ <close> = feed(rate)
  sleep(0.5)
  tell("push to handler start, half load", sample(BUSY, 0.01), (',"load":%.0f'):format(rate))
end
