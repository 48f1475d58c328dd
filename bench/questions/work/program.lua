-- Jobs end to end: pushed in bulk, then worked off by `nightshift work`, whose
-- workers are all up before the first job may start. Prints one JSON line.
--   lua5.4 work.lua URL BUILD JOBS WORKERS [PAYLOAD [all|failed]]
-- The last is the host's --history. The rate is from the moment the queue is opened
-- to the last verdict, by the server's clock. Fails unless every job is done.
local host = require "bench.lib.host"
local nightshift = require "nightshift"

local url, build, jobs, workers, payload = arg[1], arg[2], tonumber(arg[3]), tonumber(arg[4]), arg[5] or "100"
local history = arg[6] or "all"
local LUA = arg[-1] or "lua5.4"

assert(os.execute(("%s bench/lib/handle.lua '%s' fill jobs=%d payload=%s"):format(LUA, url, jobs, payload)))
local db <close> = assert(nightshift.open(url))
local q = assert(db:queue "bench")

-- One number out of the database.
local function ask(sql)
  local row = assert(db:execute(sql))[1]
  return row and row.n
end

local function server_now()
  return ask "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS n"
end

-- The last job is looked for from the end, where those stand that end last. Gives
-- the moment when it was gone.
local function wait_until_done()
  for _ = 1, 12000 do
    if not ask "SELECT id AS n FROM nightshift_job ORDER BY id DESC LIMIT 1" then return server_now() end
    assert(db:execute "DO SLEEP(0.01)")
  end
  error("bench: the jobs do not end", 0)
end

assert(q:pause())
local h = host.start { url = url, build = build, workers = workers, options = "--history " .. history }
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
