--- How long is a fault felt? Breaks one part at a time, ROUNDS times, and prints a table of the
-- times, the median and the worst. With a second argument the table is also written into that
-- file, between the lines `<!-- recovery:begin -->` and `<!-- recovery:end -->`.
--     make recovery [ROUNDS=20]
-- Times run from just before the fault, or from the moment when the server accepts connections
-- again. They end at the first line of the job's handler, on one machine. The measured
-- processes run this file, too: it has the handlers of the hosts. With the arguments `claim URL
-- QUEUE` it is a program that claims one job, prints that, and holds it until it is killed.
local nightshift = require "nightshift"
local nst = require "nst"

-- Each start is a line in $RECOVERY_FILE: the monotonic time, the job, its run, the
-- worker, the host.
local function started(job)
  local file <close> = assert(io.open(os.getenv "RECOVERY_FILE", "ab"))
  file:write(("%.6f %d %d %d %s\n"):format(nightshift.clock(), job.id, job.run, nst.ids(), os.getenv "RECOVERY_HOST"))
end

-- `hold` stays in its first run and returns in the next; `note` returns at once.
local handlers = {
  hold = function(job)
    started(job)
    while job.run == 1 and not job:cancelled() do nst.sleep(0.1) end
  end,
  note = started,
}
if ... and (...):find "/recovery%.lua$" then return handlers end

if ... == "claim" then
  local handle = assert(nightshift.open(arg[2]))
  local job = assert(handle:queue(arg[3]):claim { wait = 10 })
  print("claimed " .. job.id)
  io.flush()
  while true do os.execute "sleep 3600" end
end

local db = require "spec.support.db"
local host = require "spec.support.host"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

local rounds = assert(math.tointeger(tonumber(arg[1])), "usage: recovery.lua ROUNDS [PAGE]")
local page = arg[2]
local JOBS = proc.root .. "/bench/recovery.lua"

-- Faults that take half a minute each are measured in several places at once.
local AT_ONCE = 5

local server = db.server()
local url, handle, file -- of the measurement that runs

-- ------------------------------------------------------------------- tools

local function wait_for(what, seconds, fn)
  local stop = nst.clock() + seconds
  while true do
    local result = fn()
    if result then return result end
    if nst.clock() > stop then error("no " .. what .. " within " .. seconds .. " s", 0) end
    nst.sleep(0.001)
  end
end

local function fresh()
  url = server:fresh()
  handle = assert(nightshift.open(url))
  file = os.tmpname()
end

--- A host of its own; `way` is another URL to the same database.
local function new_host(name, workers, way)
  return host.start(way or url, JOBS, { "--workers", tostring(workers or 2) },
    { RECOVERY_FILE = file, RECOVERY_HOST = name })
end

--- The line of a job's start in a run, or in any run above 1.
local function start_of(id, run)
  for line in io.lines(file) do
    local at, job, number, pid, name = line:match "^(%S+) (%d+) (%d+) (%d+) (%S+)$"
    if job and tonumber(job) == id and (run and tonumber(number) == run or not run and tonumber(number) > 1) then
      return { at = tonumber(at), pid = tonumber(pid), host = name }
    end
  end
end

local function first_start(id) return wait_for("first start", 10, function() return start_of(id, 1) end) end

--- Seconds from a moment to the start of the job's next run.
local function again_after(id, since, limit)
  return wait_for("second start", limit, function() return start_of(id) end).at - since
end

local function median(list)
  table.sort(list)
  local n = #list
  return n % 2 == 1 and list[(n + 1) // 2] or (list[n // 2] + list[n // 2 + 1]) / 2
end

local function time_text(seconds)
  if seconds < 0.0995 then return ("%.0f ms"):format(seconds * 1000) end
  return (seconds < 9.95 and "%.2f s" or "%.0f s"):format(seconds)
end

-- ------------------------------------------------------------ measurements

local measures = {}

--- @tparam string fault
-- @tparam string seen
-- @tparam integer n rounds
-- @tparam function make called once, after the database was made
-- @tparam function round gives one time, or several
local function measure(fault, seen, n, make, round)
  measures[#measures + 1] = { fault = fault, seen = seen, n = n, make = make, round = round }
end

measure("worker killed (`kill -9`, crash in C)", "the job starts in another worker; `crashes` + 1", rounds,
  function() new_host "a" end,
  function()
    local id = assert(handle:queue("q"):push "hold")
    local first = first_start(id)
    local since = nst.clock()
    nst.kill(first.pid, "KILL")
    return again_after(id, since, 10)
  end)

local pair -- hosts by name

-- One host of the two dies with a running job; a new one takes its place.
local function lose_host()
  local id = assert(handle:queue("q"):push "hold")
  local first = first_start(id)
  local since = nst.clock()
  local lost = pair[first.host]
  lost:signal "KILL"
  local took = again_after(id, since, 20)
  lost:forget()
  pair[first.host] = new_host(first.host)
  return took
end

measure("host killed (`kill -9`)", "its jobs start on another host; `lost` + 1", rounds,
  function() pair = { a = new_host "a", b = new_host "b" } end, lose_host)

-- Hosts with a running job each fall silent, at moments of their own, while
-- another host is there. `start` gives a host, how to silence it, and how to
-- undo that.
local function silence(start)
  local lost, times = {}, {}
  for i = 1, AT_ONCE do
    local victim = start("v" .. i)
    victim.id = assert(handle:queue("q"):push "hold")
    first_start(victim.id)
    lost[i] = victim
  end
  local other = new_host("b", AT_ONCE)
  for _, victim in ipairs(lost) do
    nst.sleep(0.3)
    victim.since = nst.clock()
    victim.silence()
  end
  for i, victim in ipairs(lost) do times[i] = again_after(victim.id, victim.since, 60) end
  for _, victim in ipairs(lost) do
    victim.undo()
    victim.host:signal "KILL"
    victim.host:forget()
  end
  other:forget()
  return times
end

measure("host stopped for long (SIGSTOP)", "the same; when it comes back its late verdicts are `STALE`", rounds,
  function() end,
  function()
    return silence(function(name)
      local h = new_host(name, 1)
      return { host = h, silence = function() h:signal "STOP" end, undo = function() h:signal "CONT" end }
    end)
  end)

local function holder()
  local id = assert(handle:queue("q"):push "hold")
  local p = proc.start { proc.lua, JOBS, "claim", url, "q" }
  p:wait_line("^claimed", 20)
  return p, id
end

-- Programs claim first; then a host that waits for the queue comes.
local function lose_programs(n, workers)
  local programs, ids = {}, {}
  for i = 1, n do programs[i], ids[i] = holder() end
  local h = new_host("a", workers)
  local since = nst.clock()
  for _, p in ipairs(programs) do p:signal "KILL" end
  local last = 0
  for _, id in ipairs(ids) do last = math.max(last, again_after(id, since, 30)) end
  h:signal "TERM"
  h:wait()
  h:forget()
  for _, p in ipairs(programs) do p:forget() end
  return last
end

measure("Lua program killed while it holds a claim", "a waiting host starts the job", rounds, function() end,
  function() return lose_programs(1) end)

measure("50 such programs killed at once", "the last of their jobs has started", rounds, function() end,
  function() return lose_programs(50, 50) end)

-- Written by a process of its own, because starting the server blocks.
local function watch_server()
  local path = os.tmpname()
  nst.fork(function()
    while not pcall(function()
      local first <close> = assert(nightshift.open(url)) -- luacheck: ignore 211
    end) do nst.sleep(0.002) end
    local out <close> = assert(io.open(path, "wb"))
    out:write(("%.6f\n"):format(nst.clock()))
  end)
  return function()
    return wait_for("server", 60, function()
      local out <close> = assert(io.open(path, "rb"))
      return tonumber(out:read "l" or "")
    end)
  end
end

-- A job falls due while the server is away.
local function lose_server(how)
  local id = assert(handle:queue("q"):push("note", nil, { delay = 0.5 }))
  handle:close()
  server[how](server)
  nst.sleep(1)
  local back = watch_server()
  server:start()
  local since = back()
  handle = assert(nightshift.open(url))
  local first = wait_for("start after the outage", 30, function() return start_of(id) or start_of(id, 1) end)
  return math.max(first.at - since, 0)
end

measure("server killed (`kill -9`)", "jobs that run go on, verdicts are kept; from the server's return to the next job",
  rounds, function() new_host "a" end, function() return lose_server "kill" end)

measure("server restarted", "the same", rounds, function() new_host "a" end, function() return lose_server "stop" end)

measure("every session killed by the server", "the host connects again; the next pushed job starts", rounds,
  function() new_host "a" end,
  function()
    local own = assert(handle:execute "SELECT CONNECTION_ID() AS id")[1].id
    for id in server:sql("SELECT id FROM information_schema.processlist WHERE db = DATABASE() OR db LIKE 'spec%'")
      :gmatch "%d+" do
      if tonumber(id) ~= own then pcall(server.sql, server, "KILL " .. id) end
    end
    local since = nst.clock()
    local id = assert(handle:queue("q"):push "note")
    return wait_for("start", 30, function() return start_of(id, 1) end).at - since
  end)

-- The host's connections stay, and nothing passes.
measure("network cut (no reset: packets vanish)", "the host's jobs start on another; it stops its own when it is back",
  rounds, function() end,
  function()
    return silence(function(name)
      local way = proxy.start(server, "tcp")
      return {
        host = new_host(name, 1, way:url(url)),
        silence = function() way:tell "freeze" end,
        undo = function() way.process:forget() end,
      }
    end)
  end)

-- ------------------------------------------------------------------ report

local function times_of(m)
  m.make()
  local times = {}
  while #times < m.n do
    local got = m.round()
    if type(got) ~= "table" then got = { got } end
    table.move(got, 1, #got, #times + 1, times)
  end
  return times
end

local function run(m)
  fresh()
  local ok, times = pcall(times_of, m)
  proc.forget_all(true)
  handle:close()
  os.remove(file)
  io.stderr:write(m.fault, ": ", ok and ("%d times"):format(#times) or "not measured: " .. tostring(times), "\n")
  return ok and times
end

local function table_of(results)
  local lines = { "| what happens | what you see | median | worst |", "|---|---|---|---|" }
  for _, r in ipairs(results) do
    local middle = median(r.times)
    lines[#lines + 1] = ("| %s | %s | %s | %s |"):format(r.fault, r.seen, time_text(middle),
      time_text(r.times[#r.times]))
  end
  return table.concat(lines, "\n") .. "\n"
end

local function write_into(path, text)
  local input = assert(io.open(path, "rb"))
  local old = input:read "a"
  input:close()
  local before, after = old:match "^(.*<!%-%- recovery:begin %-%->\n).*(<!%-%- recovery:end %-%->.*)$"
  if not before then error(path .. " has no lines <!-- recovery:begin --> and <!-- recovery:end -->", 0) end
  local output <close> = assert(io.open(path, "wb"))
  output:write(before, text, after)
end

local results, good = {}, true
for _, m in ipairs(measures) do
  local times = (not arg[3] or m.fault:find(arg[3], 1, true)) and run(m)
  if times then results[#results + 1] = { fault = m.fault, seen = m.seen, times = times }
  elseif not arg[3] then good = false end
end
local text = table_of(results)
io.write(text)
server:remove()
proc.clean()
if good and page and page ~= "" then write_into(page, text) end
if not good then io.stderr:write "recovery: not everything was measured; no file was changed\n" end
os.exit(good and 0 or 1, true)
