-- Deleted rows. "prune": jobs of one queue beside a host's own prune of a large tree of another, a
-- day too old: the delay of their starts. "purge": rows that purge cannot remove: the same work
-- with and without a transaction that reads, open elsewhere for the whole run, as a backup's.
-- Prints a JSON line; of purge each figure of both, and the cost of one relative to the other.
--   lua5.4 bench/questions/deletes.lua URL BUILD SCALE WHAT
-- WHAT is `prune`, or of purge one of
--   claim BATCH    settles a batch and claims the next, by the C library
--   work           `nightshift work` drains a queue
--   lanes          ... of jobs of many priorities that come back several times
--   handle         a job is pushed and claimed by a handle, one after the other
--   host           jobs trickle through an idle host, from the push to the verdict
-- Before the last two, as many jobs have been worked off while purge was blocked.
local nightshift = require "nightshift"
local processes = require("bench.lib.stage").processes
local tables = require("bench.lib.stage").tables

-- The handlers for `nightshift work`: one does nothing, one comes back as often as its payload
-- says.
local handlers = {
  noop = function() end,
  returns = function(job)
    if job.polls < job.payload then return job:again(0) end
  end,
}
if ... == "bench/questions/deletes.lua" then return handlers end

local questions = {}

function questions.prune(s)
  return {
    title = "Beside a prune",
    text = "One job every 5 ms, from its push to its handler: before and while the host deletes another queue's"
      .. " history, a tree of 300,000 children.",
    ask = { function() return s:program("deletes", s.scale, "prune") end },
  }
end

function questions.purge(s)
  local function ask(...)
    local words = { ... }
    return function() return s:program("deletes", s.scale, table.unpack(words)) end
  end
  return {
    title = "Purge blocked",
    text = "The same without and with a transaction that reads, open elsewhere for the whole run, as a backup's; and"
      .. " the ratio of the two. Before the last two rows, 300,000 jobs had been worked off.",
    ask = { ask("claim", 100), ask("claim", 1000), ask "work", ask "lanes", ask "handle", ask "host" },
  }
end

if ... == "bench.questions.deletes" then return questions end

local url, build, scale, what = arg[1], arg[2], tonumber(arg[3]), arg[4]
local db <close> = assert(nightshift.open(url))
local q = assert(db:queue "bench")

local function sleep(seconds) assert(db:execute("DO SLEEP(?)", seconds)) end

-- ---------------------------------------------------------------------- prune

-- A push every 5 ms or so. "before" are the pushes until the prune began. The handlers are in
-- bench/questions/work.lua.
local function beside_a_prune()
  local CHILDREN = math.max(1000, 300000 * scale // 1)
  local FIRST_PRUNE = 6 -- seconds after its start, of a host
  local WARM, BEFORE = 1.5, 5.5 -- seconds after that start: where "before" begins and ends
  local PAUSE, AT_ONCE = 0.004, 25 -- between pushes; so many between two looks
  local LONGEST = 170 -- seconds

  local COLUMNS = [[id, queue_id, name, payload, priority, outcome, run, attempts, polls, crashes, lost, max_attempts,
  max_crashes, backoff, timeout, created, finished_at, parent, root, on_fail, nonce]]

  -- Plants a tree that was done two days ago; gives its first and its last id.
  local function plant()
    tables.empty(db)
    local root = assert(q:push("old", ("x"):rep(98)))
    local base = tables.take_ids(db, CHILDREN)
    local old = "created - 2 * 86400000000"
    local function finished(id, parent)
      return ([[INSERT INTO nightshift_finished (%s) SELECT %s, queue_id, name, payload, priority, 'done', run, 0, 0, 0,
      0, 1, 1, 1, 1, %s, %s, %s, %s, on_fail, nonce FROM nightshift_job]]):format(COLUMNS, id, old, old, parent, parent)
    end
    assert(db:execute(finished("id", "NULL")))
    for first = 1, CHILDREN, 100000 do
      local range = ("seq_%d_to_%d"):format(first, math.min(first + 99999, CHILDREN))
      assert(db:execute(("%s JOIN %s"):format(finished(base .. " + seq", "id"), range)))
      assert(db:execute(("INSERT INTO nightshift_child SELECT %d, seq, %d + seq FROM %s"):format(root, base, range)))
    end
    for _, name in ipairs { "job", "ready" } do assert(db:execute("DELETE FROM nightshift_" .. name)) end
    return root, base + CHILDREN
  end

  local function is_there(id)
    return tables.ask(db, "SELECT id AS n FROM nightshift_finished WHERE id = ?", id) ~= nil
  end

  local function push_some()
    for _ = 1, AT_ONCE do
      assert(q:push("start", nightshift.clock()))
      sleep(PAUSE)
    end
  end

  -- How late, ms, each was that was pushed then; sorted.
  local function late(from, to)
    local list = {}
    for _, row in ipairs(assert(db:execute "SELECT payload, result FROM nightshift_finished WHERE name = 'start'")) do
      local pushed, started = tonumber(row.payload), tonumber(row.result)
      if pushed >= from and pushed < to then list[#list + 1] = (started - pushed) * 1000 end
    end
    table.sort(list)
    return list
  end

  local function at(sorted, share) return sorted[math.max(1, math.ceil(#sorted * share))] end

  local root, last = plant()
  tables.rest(db)
  local h <close> = processes.start_host { url = url, build = build, workers = 2,
    script = "bench/questions/work.lua" }
  local begun = nightshift.clock()
  repeat push_some() until nightshift.clock() > begun + FIRST_PRUNE and not is_there(last)
  local going = nightshift.clock()
  repeat push_some() until not is_there(root) or nightshift.clock() > begun + LONGEST
  local gone = nightshift.clock()
  assert(not is_there(root), "bench: the prune does not end")
  for _ = 1, 2000 do
    if not tables.ask(db, "SELECT id AS n FROM nightshift_job LIMIT 1") then break end
    sleep(0.01)
  end
  h:stop()
  local before, beside = late(begun + WARM, begun + BEFORE), late(begun + FIRST_PRUNE, gone)
  tables.empty(db)
  print(assert(nightshift.encode {
    what = "start of a job beside a prune", before_p50_ms = at(before, 0.5), before_p99_ms = at(before, 0.99),
    p50_ms = at(beside, 0.5), p99_ms = at(beside, 0.99), max_ms = at(beside, 1), prune_s = gone - begun - FIRST_PRUNE,
    walk_s = going - begun - FIRST_PRUNE, children = CHILDREN, jobs = #beside,
  }))
end

if what == "prune" then return beside_a_prune() end

-- ---------------------------------------------------------------------- purge

local JOBS = math.max(2000, 100000 * scale // 1000 * 1000)
local BURIED = math.max(2000, 300000 * scale // 1000 * 1000)
local SINGLE = math.max(20, 500 * scale // 1)
local WARM = SINGLE // 5 -- jobs of a trickle before the counted ones: a host begins without floors
local PAUSE = 0.01 -- seconds, on average, between the jobs of a trickle
local LANES, RETURNS = 32, 3

assert(q:push "noop") -- makes the queue
local queue = tables.ask(db, "SELECT id AS n FROM nightshift_queue WHERE name = 'bench'")

local function start_host(options)
  return processes.start_host { url = url, build = build, workers = 8, script = "bench/questions/deletes.lua",
    options = options }
end

local function wait_for_the_end()
  for _ = 1, 60000 do
    if not tables.ask(db, "SELECT id AS n FROM nightshift_job LIMIT 1") then return end
    sleep(0.01)
  end
  error("bench: the jobs do not end", 0)
end

-- Drains a queue of such jobs; gives the seconds from its opening.
local function drain(n, job)
  tables.empty(db)
  job.queue = queue
  tables.fill(db, n, job)
  assert(q:pause())
  local h <close> = start_host()
  local begun = tables.now(db)
  assert(q:resume())
  wait_for_the_end()
  local last = tables.ask(db, "SELECT MAX(finished_at) AS n FROM nightshift_finished")
  h:stop()
  assert(tables.ask(db, "SELECT COUNT(*) AS n FROM nightshift_finished WHERE outcome = 'done'") == n,
    "bench: not every job is done")
  return (last - begun) / 1e6
end

-- The percentiles of times, ms.
local function spread(times)
  table.sort(times)
  local function at(share) return times[math.max(1, math.ceil(#times * share))] end
  return { p50_ms = at(0.5), p99_ms = at(0.99) }
end

local measures = {}

function measures.claim()
  local command = ("%s/bench/verbs '%s' claim jobs=%d batch=%s"):format(build, url, JOBS, arg[5])
  local pipe <close> = assert(io.popen(processes.tied(command)))
  return { rate = assert(nightshift.decode(pipe:read "a")).rate }
end

function measures.work() return { rate = JOBS / drain(JOBS, {}) } end

function measures.lanes()
  local jobs = JOBS // (RETURNS + 1)
  local seconds = drain(jobs, { name = "returns", payload = tostring(RETURNS), rank = ("seq %% %d * 8"):format(LANES) })
  return { rate = jobs * (RETURNS + 1) / seconds }
end

function measures.handle()
  drain(BURIED, {})
  local times = {}
  for i = 1, SINGLE do
    local begun = nightshift.clock()
    assert(q:push("noop", i))
    local job = assert(q:claim { wait = 5 })
    times[i] = (nightshift.clock() - begun) * 1000
    assert(job:ack())
    assert(not q:claim())
  end
  return spread(times)
end

-- By the server's clock, which both moments are read from.
function measures.host()
  drain(BURIED, {})
  local h <close> = start_host()
  local begun
  for i = 1 - WARM, SINGLE do
    if i == 1 then begun = tables.now(db) end
    assert(q:push("noop", i))
    sleep(PAUSE * (0.5 + math.random()))
  end
  wait_for_the_end()
  h:stop()
  local times = {}
  for i, row in ipairs(assert(db:execute("SELECT finished_at - created AS n FROM nightshift_finished WHERE created > ?",
    begun))) do
    times[i] = row.n / 1000
  end
  return spread(times)
end

local titles = {
  claim = "claim + ack, batch " .. (arg[5] or ""),
  work = "work, 8 workers",
  lanes = ("work, jobs of %d priorities that come back %d times"):format(LANES, RETURNS),
  handle = "push, then claim, one handle",
  host = "push to verdict, a trickle through a host",
}

tables.rest(db)
local free = measures[what]()
tables.rest(db)
local blocked
do
  local _ <close> = tables.hold(nightshift.open, url)
  blocked = measures[what]()
end
tables.empty(db)

local line = { what = titles[what], jobs = free.rate and JOBS or SINGLE }
for name, value in pairs(free) do line["free_" .. name], line["blocked_" .. name] = value, blocked[name] end
if free.rate then
  line.cost_ratio = free.rate / blocked.rate
else
  line.p50_cost_ratio, line.p99_cost_ratio = blocked.p50_ms / free.p50_ms, blocked.p99_ms / free.p99_ms
end
print(assert(nightshift.encode(line)))
