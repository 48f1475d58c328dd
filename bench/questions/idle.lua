-- The cost of a host with nothing to do: its processor time and the server's, and its
-- statements. Prints a JSON line for each number of workers.
--   lua5.4 bench/questions/idle.lua URL BUILD SECONDS WORKERS…
-- A second is quiet when no statement reached the server in it. The server's own
-- time is measured first, without a host, and taken off.
local nightshift = require "nightshift"
local processes = require "bench.lib.processes"

local function question(s)
  return {
    title = "An idle host",
    text = "Processor time of all the host's processes, and of the server on its behalf, as parts of one processor."
      .. " Statements to the server, and how many of the seconds had none.",
    rounds = 1,
    ask = { function()
      local part = math.min(s.scale, 1)
      return s:program("idle", math.max(2, 20 * part // 1 | 0), 8, math.max(20, 500 * part // 1 | 0))
    end },
  }
end
if ... == "bench.questions.idle" then return question end

local url, build, seconds = arg[1], arg[2], math.tointeger(tonumber(arg[3]))
local SETTLE = math.min(12, seconds) -- seconds until a host has done its first round of looking

local db <close> = assert(nightshift.open(url))
local server = processes.server(db)

local function sleep(n) assert(os.execute("sleep " .. n)) end

-- Statements so far, but for these questions.
local asked = 0
local function questions()
  asked = asked + 1
  return tonumber(assert(db:execute "SHOW GLOBAL STATUS LIKE 'Questions'")[1].Value) - asked
end

local function used_by(pids)
  local sum = 0
  for _, pid in ipairs(pids) do sum = sum + processes.used(pid) end
  return sum
end

-- The parts of a processor that the server and `pids` use, percent; statements a
-- second; the part of the seconds that are quiet, percent.
local function watch(pids)
  local of_server, of_host, first, quiet = processes.used(server), used_by(pids), questions(), 0
  local last = first
  for _ = 1, seconds do
    sleep(1)
    local now = questions()
    if now == last then quiet = quiet + 1 end
    last = now
  end
  local function percent(used) return used / seconds * 100 end
  return percent(processes.used(server) - of_server), percent(used_by(pids) - of_host), (last - first) / seconds,
    percent(quiet)
end

local alone = watch {}
for i = 4, #arg do
  local workers = tonumber(arg[i])
  local h = processes.start_host { url = url, build = build, workers = workers }
  sleep(SETTLE)
  local together, of_host, statements, quiet = watch(processes.below(h.pid))
  h:stop()
  print(('{"what":"%d workers","workers":%d,"seconds":%d,"host_cpu_percent":%.3f,"server_cpu_percent":%.3f,'
    .. '"queries_per_s":%.2f,"quiet_percent":%.0f}'):format(workers, workers, seconds, of_host,
    math.max(0, together - alone), statements, quiet))
end
