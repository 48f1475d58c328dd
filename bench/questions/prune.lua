-- Jobs of one queue beside a host's own prune of a large tree of another, a day too old: the
-- delay of their starts. Prints a JSON line.
--   lua5.4 bench/questions/prune.lua URL BUILD SCALE
-- A push every 5 ms or so. "before" are the pushes until the prune began. The handlers are in
-- bench/questions/latency.lua.
local nightshift = require "nightshift"
local processes = require "bench.lib.processes"
local tables = require "bench.lib.tables"

local function question(s)
  return {
    title = "Beside a prune",
    text = "One job every 5 ms, from its push to its handler: before and while the host deletes another queue's"
      .. " history, a tree of 300,000 children.",
    ask = { function() return s:program("prune", s.scale) end },
  }
end
if ... == "bench.questions.prune" then return question end

local url, build, scale = arg[1], arg[2], tonumber(arg[3])
local CHILDREN = math.max(1000, 300000 * scale // 1)
local FIRST_PRUNE = 6 -- seconds after its start, of a host
local WARM, BEFORE = 1.5, 5.5 -- seconds after that start: where "before" begins and ends
local PAUSE, AT_ONCE = 0.004, 25 -- between pushes; so many between two looks
local LONGEST = 170 -- seconds

local db <close> = assert(nightshift.open(url))
local q = assert(db:queue "bench")

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

local function is_there(id) return tables.ask(db, "SELECT id AS n FROM nightshift_finished WHERE id = ?", id) ~= nil end

local function sleep(seconds) assert(db:execute("DO SLEEP(?)", seconds)) end

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
local h <close> = processes.start_host { url = url, build = build, workers = 2, script = "bench/questions/latency.lua" }
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
