-- The memory of a host and its workers, after each worker has run a hundred jobs. It is PSS: a
-- page that n processes share counts as a n-th of one for each.
--   lua5.4 bench/questions/memory.lua URL BUILD [SCALE]
-- SCALE multiplies the number of workers, 500.
local nightshift = require "nightshift"
local processes = require "bench.lib.processes"

local function question(s)
  return {
    title = "Memory per worker",
    rounds = 1,
    ask = { function() return s:program("memory", s.scale) end },
  }
end
if ... == "bench.questions.memory" then return question end

local url, build, scale = arg[1], arg[2], tonumber(arg[3] or 1)
local workers = math.max(2, math.floor(500 * scale))
local jobs = workers * 100

local function name(pid)
  local file <close> = io.open(("/proc/%d/comm"):format(pid))
  return file and file:read "l"
end

-- KiB; nothing when the process is gone.
local function pss(pid)
  local file <close> = io.open(("/proc/%d/smaps_rollup"):format(pid))
  return file and tonumber(file:read "a":match "Pss:%s*(%d+)")
end

-- Before the host starts: a listener that sleeps would hold this up.
local function clear(db)
  for _, table_name in ipairs { "job", "ready", "lease", "finished", "scheduled" } do
    assert(db:execute("TRUNCATE nightshift_" .. table_name))
  end
end

local function fill(db)
  local q = assert(db:queue "bench")
  local payload = ("x"):rep(98)
  for _ = 1, jobs // 100 do
    local items = {}
    for i = 1, 100 do items[i] = { "noop", payload } end
    assert(q:push_many(items))
  end
end

local function await_end(db)
  repeat
    local row = assert(db:execute "SELECT COUNT(*) AS n FROM nightshift_job")[1]
    assert(db:execute "DO SLEEP(0.05)")
  until row.n == 0
end

local db <close> = assert(nightshift.open(url))
clear(db)
local h <close> = processes.start_host { url = url, build = build, workers = workers }
fill(db)
await_end(db)
local all, ours, n = 0, 0, 0
for _, pid in ipairs(processes.below(h.pid)) do
  local kib = pss(pid) or 0
  all = all + kib
  if name(pid) == "ns-worker" then ours, n = ours + kib, n + 1 end
end
assert(n == workers, "not all workers are there")
print(('{"what":"a worker","pss_kib":%.0f,"workers":%d}'):format(ours / n, workers))
print(('{"what":"host with %d workers, all told","pss_mib":%.1f,"workers":%d}'):format(workers, all / 1024, workers))
