-- Jobs end to end: pushed in bulk, then worked off by `nightshift work`, with all workers up
-- before the first job may start. Beside them claim + ack of the floor in batches of 1000. And
-- the processor time of both sides, server and clients, for push and process and purge
-- together. Prints one JSON line.
--   lua5.4 bench/questions/work.lua URL BUILD JOBS WORKERS [PAYLOAD [all|failed]]
-- The last is the host's --history. The rate is from the moment the queue is opened
-- to the last verdict, by the server's clock. Fails unless every job is done.

-- The handlers for `nightshift work`, here and in every question without its own: it does
-- nothing, so that only the queue costs time.
if ... == "bench/questions/work.lua" then return { noop = function() end } end

local nightshift = require "nightshift"
local processes = require("bench.lib.programs").processes

local WORKERS = { 1, 2, 8, 80, 500 }

local function per_10k(line) return (line.server_cpu + line.client_cpu) / line.jobs * 10000 end

local function question(s)
  local jobs = s:jobs(100000, 1000)
  local ask = {}
  local function add(workers, history, title)
    table.insert(ask, function()
      local floor, ours = s:both(
        function() return s:floor("claim", { jobs = jobs, batch = 1000, history = history == "all" and 1 or 0 }) end,
        function() return s:program("work", jobs, workers, 100, history)[1] end)
      return {
        what = title, jobs = jobs, workers = workers,
        floor = floor.rate, ours = ours.rate, ratio = ours.rate / floor.rate,
        cpu_s = per_10k(ours), floor_cpu_s = per_10k(floor), server_cpu_s = ours.server_cpu / jobs * 10000,
      }
    end)
  end
  local numbers = {}
  for i, n in ipairs(WORKERS) do numbers[i] = n <= jobs // 10 and n or nil end -- so that each has some jobs
  for _, n in ipairs(numbers) do add(n, "all", ("%d worker%s"):format(n, n > 1 and "s" or "")) end
  for _, n in ipairs(numbers) do add(n, "failed", ("%d worker%s, no history"):format(n, n > 1 and "s" or "")) end
  return {
    title = "End to end: no-op jobs through `nightshift work`",
    text = "Floor: claim + ack in batches of 1000. No history: `--history failed`, and the floor writes none. Processor"
      .. " time is per 10,000 jobs, of the server and all clients, for pushing, processing and purging together. The"
      .. " server's part has a column of its own.",
    ask = ask,
  }
end
if ... == "bench.questions.work" then return question end

local url, build, jobs, workers, payload = arg[1], arg[2], tonumber(arg[3]), tonumber(arg[4]), arg[5] or "100"
local history = arg[6] or "all"
local LUA = arg[-1] or "lua5.4"

local fill = ("%s bench/questions/verbs.lua '%s' fill jobs=%d payload=%s"):format(LUA, url, jobs, payload)
assert(os.execute(processes.tied(fill)))
local db <close> = assert(nightshift.open(url))
local q = assert(db:queue "bench")

-- Reads one number from the database.
local function ask(sql)
  local row = assert(db:execute(sql))[1]
  return row and row.n
end

local function server_now()
  return ask "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS n"
end

-- The last job is looked for from the end, where the jobs stand that end last. Gives the moment
-- when it was gone.
local function wait_until_done()
  for _ = 1, 12000 do
    if not ask "SELECT id AS n FROM nightshift_job ORDER BY id DESC LIMIT 1" then return server_now() end
    assert(db:execute "DO SLEEP(0.01)")
  end
  error("bench: the jobs do not end", 0)
end

assert(q:pause())
local h = processes.start_host { url = url, build = build, workers = workers, options = "--history " .. history }
local start = server_now()
assert(q:resume())
local gone = wait_until_done()
h:stop()
local function finished(which) return ask("SELECT COUNT(*) AS n FROM nightshift_finished WHERE outcome " .. which) end
assert(finished "<> 'done'" == 0 and finished "= 'done'" == (history == "all" and jobs or 0),
  "bench: not every job is done")
local last = ask "SELECT MAX(finished_at) AS n FROM nightshift_finished" or gone
local seconds = (last - start) / 1e6
print(('{"what":"work","jobs":%d,"workers":%d,"history":"%s","seconds":%.6f,"rate":%.1f}')
  :format(jobs, workers, history, seconds, jobs / seconds))
