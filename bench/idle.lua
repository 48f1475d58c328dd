-- What a host costs while there is nothing to do: its processor time and the
-- server's, and what it asks the server. Prints one JSON line.
--   lua5.4 idle.lua URL BUILD WORKERS SECONDS
-- The server's own idle time is measured before, without a host, and taken off.
local host = require "bench.host"
local nightshift = require "nightshift"
local processes = require "bench.processes"

local url, build, workers, seconds = arg[1], arg[2], tonumber(arg[3]), tonumber(arg[4])
local SETTLE = seconds / 5 -- after which a host has stopped looking again

local db <close> = assert(nightshift.open(url))
local server = processes.server(db)

local function sleep(n) assert(os.execute("sleep " .. n)) end

local function questions()
  return tonumber(assert(db:execute "SHOW GLOBAL STATUS LIKE 'Questions'")[1].Value)
end

local function used_by(pids)
  local sum = 0
  for _, pid in ipairs(pids) do sum = sum + processes.used(pid) end
  return sum
end

-- Processor seconds of the server and of `pids`, and statements, in that time.
local function watch(pids)
  local asked, of_server, of_host = questions(), processes.used(server), used_by(pids)
  sleep(seconds)
  return processes.used(server) - of_server, used_by(pids) - of_host, questions() - asked - 1 -- our own
end

local alone = watch {}
local h <close> = host.start { url = url, build = build, workers = workers }
sleep(SETTLE)
local together, of_host, asked = watch(processes.below(h.pid))
print(('{"what":"%d workers","workers":%d,"seconds":%g,"queries_per_s":%.3f,"host_cpu_percent":%.4f,'
  .. '"server_cpu_percent":%.4f}'):format(workers, workers, seconds, asked / seconds, of_host / seconds * 100,
  math.max(0, together - alone) / seconds * 100))
