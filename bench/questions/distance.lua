-- Hosts and programs that are far from the server: a proxy answers them so many milliseconds later.
-- It measures no-op jobs through a host of 8 workers, and the time from a push to the handler's start
-- on an idle host. Then a start of a host, how long its kill is felt, and the verbs of a program, one
-- by one. With more hosts it is the rate of all, and the server's processor time for each 10,000
-- jobs. And what they cost while they are idle. Prints a JSON line.
--   lua5.4 bench/questions/distance.lua URL BUILD NEAR DELAY JOBS HOSTS
-- NEAR is the URL without the proxy. With 0 hosts it measures the rest. Otherwise hosts have 2
-- workers each.
local core = require "nightshift.core"
local nightshift = require "nightshift"
local processes = require("bench.lib.stage").processes
local tables = require("bench.lib.stage").tables

local handlers = {
  start = function() return nightshift.clock() end,
  hold = function(job)
    if job.run == 1 then core.sleep(1000) end
    return nightshift.clock()
  end,
  noop = function() end,
}
if ... == "bench/questions/distance.lua" then return handlers end

local DELAYS <const>, HOSTS <const> = { 0, 0.2, 1, 5 }, { 1, 10, 50 }

-- The stage behind a proxy.
local function at(s, delay)
  local way = os.tmpname()
  os.execute(("mkfifo %s.in %s.out"):format(way, way))
  local command = processes.tied(("%s/proxy %s.sock '%s' %s"):format(s.build, way, s.socket, way))
  local pipe = assert(io.popen("echo $$; " .. command))
  local pid = assert(pipe:read "n")
  assert(pipe:read "l" and pipe:read "l" == "listening")
  local to, from = assert(io.open(way .. ".in", "w")), assert(io.open(way .. ".out"))
  to:write("delay ", delay, "\n")
  to:flush()
  assert(from:read "l" == "ok")
  local far = setmetatable({ socket = way .. ".sock" }, { __index = s })
  return far, setmetatable({}, { __close = function()
    os.execute(("kill %d; rm -f %s %s.*"):format(pid, way, way))
    pipe:close()
  end })
end

local function question(s)
  local ask = {}
  for _, delay in ipairs(DELAYS) do
    table.insert(ask, function()
      local far <const>, gone <close> = at(s, delay)
      local line = far:program("distance", ("'%s'"):format(s:url "nightshift"), delay, s:jobs(40000, 1000), 0)[1]
      line.what = ("%g ms"):format(delay)
      return line, gone
    end)
  end
  for _, n in ipairs(HOSTS) do
    table.insert(ask, function()
      local far <const>, gone <close> = at(s, 1)
      local line = far:program("distance", ("'%s'"):format(s:url "nightshift"), 1, s:jobs(40000, 1000), n)[1]
      line.what = ("1 ms, %d host%s"):format(n, n == 1 and "" or "s")
      return line, gone
    end)
  end
  return {
    title = "Far from the server",
    text = "Each answer comes so much later. Rate: no-op jobs through one host of 8 workers, or hosts of 2."
      .. " Recovery: from kill -9 of a host to its job on another one. Of many hosts the server's processor time,"
      .. " cpu, is that for 10,000 jobs; idle is a part of one processor, with the statements to it.",
    ask = ask,
    rounds = 3,
  }
end
if ... == "bench.questions.distance" then return question end

local url, build, near, _, jobs, hosts = table.unpack(arg)
jobs, hosts = math.tointeger(tonumber(jobs)), math.tointeger(tonumber(hosts))
local SCRIPT <const> = "bench/questions/distance.lua"

local function start_host(workers)
  return processes.start_host { url = url, build = build, workers = workers, script = SCRIPT }
end

local DONE <const> = "SELECT 1 AS n FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM nightshift_job)"

local function fill(q, n)
  local items = {}
  for i = 1, 1000 do items[i] = { "noop", i } end
  for _ = 1, n // 1000 do assert(q:push_many(items)) end
end

-- Jobs a second, from resume to the last end.
local function rate(db, q, n)
  assert(q:pause())
  fill(q, n)
  local begun = tables.now(db)
  assert(q:resume())
  return n / ((tables.await(db, DONE) - begun) / 1e6)
end

local function median(list)
  table.sort(list)
  return list[(#list + 1) // 2]
end

local function timed(list, fn)
  local begun = nightshift.clock()
  local result = assert(fn())
  list[#list + 1] = (nightshift.clock() - begun) * 1000
  return result
end

-- Push, claim, ack, each alone, ms.
local function verbs()
  local far <close> = assert(nightshift.open(url))
  local q, push, claim, ack = assert(far:queue "alone"), {}, {}, {}
  for _ = 1, 30 do
    timed(push, function() return q:push("x", 1) end)
    local job = timed(claim, function() return q:claim() end)
    timed(ack, function() return job:ack() end)
  end
  return median(push), median(claim), median(ack)
end

local function latency(db, q)
  local late = {}
  for i = 1, 100 do
    assert(db:execute "DO SLEEP(0.03)")
    local begun = nightshift.clock()
    local id = assert(q:push("start", 1))
    tables.await(db, DONE)
    late[i] = (assert(db:job(id)).result - begun) * 1000
  end
  return median(late)
end

-- From the kill of a host to the start of its job on another one, ms.
local function recovery(db, q)
  local felt = {}
  local h = start_host(2)
  for i = 1, 3 do
    local id = assert(q:push "hold")
    tables.await(db, "SELECT 1 AS n FROM nightshift_lease")
    local other = start_host(2)
    local killed = nightshift.clock()
    os.execute("kill -KILL " .. h.pid)
    tables.await(db, DONE)
    felt[i] = (assert(db:job(id)).result - killed) * 1000
    h.pipe:close()
    h = other
  end
  h:stop()
  return median(felt)
end

local function statements(db)
  return tonumber(assert(db:execute "SHOW GLOBAL STATUS LIKE 'Questions'")[1].Value)
end

-- What hosts cost the server while there is nothing to do: percent of a processor, statements a
-- second.
local function idle(db, server)
  local seconds = math.max(2, math.min(20, jobs // 1000))
  assert(db:execute "DO SLEEP(1)")
  local asked, used = statements(db), processes.used(server)
  os.execute("sleep " .. seconds)
  return (processes.used(server) - used) * 100 / seconds, (statements(db) - asked - 1) / seconds
end

local db <close> = assert(nightshift.open(near))
tables.empty(db)
local q = assert(db:queue "bench")
if hosts == 0 then
  local begun = nightshift.clock()
  local h <close> = start_host(8)
  local start = (nightshift.clock() - begun) * 1000
  local per_second = rate(db, q, jobs)
  local late = latency(db, q)
  h:stop()
  local felt = recovery(db, q)
  local push, claim, ack = verbs()
  print(('{"what":"distance","jobs":%d,"rate":%.1f,"p50_ms":%.3f,"start_ms":%.1f,"recovery_ms":%.1f,"push_ms":%.3f,'
    .. '"claim_ms":%.3f,"ack_ms":%.3f}'):format(jobs, per_second, late, start, felt, push, claim, ack))
else
  local list, server = {}, processes.server(db)
  for i = 1, hosts do list[i] = start_host(2) end
  local resting, asked = idle(db, server)
  local used = processes.used(server)
  local per_second = rate(db, q, jobs)
  used = processes.used(server) - used
  for _, h in ipairs(list) do h:stop() end
  print(('{"what":"distance","jobs":%d,"rate":%.1f,"cpu_s":%.4f,"idle_percent":%.3f,"idle_queries_per_s":%.2f}')
    :format(jobs, per_second, used / jobs * 10000, resting, asked))
end
