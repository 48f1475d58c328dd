-- Siblings beside unrelated jobs, under two hosts that are up before the first
-- job may start. Prints one JSON line.
--   lua5.4 fanin.lua URL BUILD siblings|unrelated JOBS
-- siblings: JOBS children of one parent, which is parked until they are done, and
-- runs once more: the rate is theirs, lag_ms what the parent's run takes after the
-- last of them. unrelated: as many jobs that nobody waits for.
local nightshift = require "nightshift"

local url, build, what, jobs = arg[1], arg[2], arg[3], tonumber(arg[4])
local HOSTS, WORKERS = 2, 4
local payload = ("x"):rep(98) -- 100 bytes with its quotes

local db <close> = assert(nightshift.open { url = url, max_children = 1000000 })
local q = assert(db:queue "bench")
for _, name in ipairs { "job", "ready", "lease", "finished", "scheduled", "edge", "child", "met" } do
  assert(db:execute("TRUNCATE nightshift_" .. name))
end

local function push_unrelated()
  for done = 0, jobs - 1, 1000 do
    local items = {}
    for i = 1, math.min(1000, jobs - done) do items[i] = { "noop", payload } end
    assert(q:push_many(items))
  end
end

-- A parent that has spawned its children and waits for them.
local function push_siblings()
  assert(q:push("noop", payload))
  local parent = assert(q:claim())
  for _ = 1, jobs do parent:spawn("noop", payload) end
  assert(parent:wait())
end

local function start_host()
  local command = "NIGHTSHIFT_URL='%s' %s/bin/nightshift work bench/lib/noop.lua --workers %d"
    .. " >>%s/bench/work.log 2>&1 & echo $!"
  local pipe = assert(io.popen(command:format(url, build, WORKERS, build)))
  return assert(pipe:read "n")
end

-- One number out of the database.
local function ask(sql)
  return assert(db:execute(sql))[1].n
end

local function wait_until(sql, n)
  for _ = 1, 12000 do
    if ask(sql) >= n then return end
    assert(db:execute "DO SLEEP(0.01)")
  end
  error("bench: the hosts do not get on, see " .. build .. "/bench/work.log", 0)
end

if what == "siblings" then push_siblings() else push_unrelated() end
assert(q:pause())
local hosts = {}
for i = 1, HOSTS do hosts[i] = start_host() end
wait_until("SELECT COUNT(*) AS n FROM nightshift_holder WHERE kind = 'host' AND dead IS NULL", HOSTS)
assert(q:resume())
local start = ask "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS n"
wait_until("SELECT COUNT(*) AS n FROM nightshift_finished", jobs + (what == "siblings" and 1 or 0))
local function last(which)
  return (ask("SELECT MAX(finished_at) AS n FROM nightshift_finished WHERE " .. which) - start) / 1e6
end
local seconds = last(what == "siblings" and "parent IS NOT NULL" or "TRUE")
local lag = (last "TRUE" - seconds) * 1000 -- from the last sibling's end to its parent's
for _, pid in ipairs(hosts) do os.execute("kill -TERM " .. pid) end
wait_until("SELECT 1 - SIGN(COUNT(*)) AS n FROM nightshift_holder WHERE kind = 'host' AND dead IS NULL", 1)
print(('{"what":"%s","jobs":%d,"seconds":%.6f,"lag_ms":%.1f,"rate":%.1f}')
  :format(what, jobs, seconds, lag, jobs / seconds))
