-- Work done: by verbs, and by `nightshift work`, beside bare SQL. What the verbs run in C and SQL is
-- in bench/floor. Prints a JSON line for each row.
--
-- Verbs: push, claim and ack, claims of many handles at once, payloads of 64 KiB. As a program this
-- file does the same work as floor.c and verbs.c, from plain Lua with the public API.
--   lua5.4 bench/questions/work.lua URL BUILD VERB [JOBS [BATCH]] [OPTION=NUMBER…]
-- Options are jobs, batch, payload (bytes). VERB is one of
--   push           q:push_many, `batch` jobs at a time
--   single         q:push
--   transaction    q:push inside a transaction with a row of an application
--   ack            q:claim and job:ack, one by one
--   batch          q:claim_many, and the acks of a batch in one transaction
--   fill           pushes only, and prints nothing
--
-- Work, end to end: jobs pushed in bulk, then worked off, with all workers up before the first job
-- may start. Beside them claim + ack of the floor in batches of 1000. And the processor time of both
-- sides, server and clients, for push and process and purge together.
--   lua5.4 bench/questions/work.lua URL BUILD work JOBS WORKERS [PAYLOAD [all|failed]]
-- The last is the host's --history. The rate is from the moment the queue is opened to the last
-- verdict, by the server's clock. Fails unless every job is done.
--
-- Latency: from the call of q:push to the first line of the handler, under a host that sleeps, and
-- under one that is half busy. Beside a push and a claim by one connection in bare SQL.
--   lua5.4 bench/questions/work.lua URL BUILD latency [SCALE]
--   lua5.4 bench/questions/work.lua URL BUILD feed RATE FILE
-- "feed" is the load: RATE jobs a second until FILE is gone. One clock: the monotonic one
-- of the machine, which the handler reads first and returns. This program reads it before the
-- push. So a figure has in it the push's own commit, the ring, and the claim's commit.
local nightshift = require "nightshift"

-- The handlers for `nightshift work`, here and in every question without its own. "noop" does
-- nothing, so that only the queue costs time; "start" returns its time.
local handlers = {
  start = function() return nightshift.clock() end,
  noop = function() end,
}
if ... == "bench/questions/work.lua" then return handlers end

local processes = require("bench.lib.stage").processes
local tables = require("bench.lib.stage").tables

local questions = {}

-- ----------------------------------------------------------- questions: verbs

-- Push: in bulk, one at a time, in a caller's transaction.
function questions.push(s)
  local many, few = s:jobs(100000, 1000), s:jobs(4000)
  local function beside(title, what, side, options)
    return function()
      return s:beside(title, function() return s:floor(what, options) end,
        function() return s[side](s, what, options) end)
    end
  end
  return {
    title = "Push",
    text = "In a transaction: begin, one row of an application's table, one push, commit.",
    ask = {
      beside("push_many, 1000 a time, C", "push", "verbs", { jobs = many, batch = 1000 }),
      beside("push_many, 1000 a time, Lua", "push", "handle", { jobs = many, batch = 1000 }),
      beside("push, one a time, C", "single", "verbs", { jobs = few }),
      beside("push, one a time, Lua", "single", "handle", { jobs = few }),
      beside("push in a transaction, C", "transaction", "verbs", { jobs = few }),
      beside("push in a transaction, Lua", "transaction", "handle", { jobs = few }),
    },
  }
end

local CLAIMED = { [1] = 2000, [10] = 15000, [100] = 50000, [1000] = 60000 } -- about two seconds each

-- Claim and ack through the API at several batch sizes, with history and without.
function questions.claim(s)
  local function floor(options)
    return function() return s:floor("claim", options) end
  end
  local ask = {}
  local function cycles(history, title)
    for _, batch in ipairs { 1, 10, 100, 1000 } do
      local options = { jobs = s:jobs(CLAIMED[batch], batch), batch = batch, history = history }
      table.insert(ask, function()
        return s:beside(title:format(batch), floor(options), function() return s:verbs("claim", options) end)
      end)
    end
  end
  local function from_lua(title, what, jobs, batch)
    table.insert(ask, function()
      return s:beside(title, floor { jobs = s:jobs(CLAIMED[batch], batch), batch = batch, history = 1 },
        function() return s:handle(what, { jobs = s:jobs(jobs, batch), batch = batch }) end)
    end)
  end
  cycles(1, "claim + ack, batch %d, C")
  cycles(0, "claim + ack, batch %d, C, no history")
  from_lua("claim + ack, one by one, Lua", "ack", 2000, 1)
  from_lua("claim_many + acks in one transaction, batch 10, Lua", "batch", 3000, 10)
  from_lua("claim_many + acks in one transaction, batch 100, Lua", "batch", 6000, 100)
  return { title = "Claim and ack", text = "No history: neither writes a row for jobs that are done.", ask = ask }
end

local CASES = { { 1, 1 }, { 2, 1 }, { 8, 1 }, { 32, 1 }, { 100, 1 }, { 200, 1 }, { 8, 100 }, { 200, 100 } }
local SHARED = { [1] = 3000, [100] = 50000 }

-- Many handles that claim from one queue at one time, each on a connection of its
-- own. verbs.c fails unless every job is claimed exactly once.
function questions.handles(s)
  local ask = {}
  for _, case in ipairs(CASES) do
    local handles, batch = table.unpack(case)
    local jobs = s:jobs(SHARED[batch], batch)
    local title = ("%d handle%s, batch %d"):format(handles, handles > 1 and "s" or "", batch)
    local function measure()
      return s:beside(title, function() return s:floor("claim", { jobs = jobs, batch = batch }) end,
        function() return s:verbs("handles", { jobs = jobs, batch = batch, handles = handles }) end)
    end
    if handles <= math.max(8, jobs // batch) then ask[#ask + 1] = measure end -- so that most have a job
  end
  return {
    title = "Claim and ack by concurrent handles",
    text = "The floor is one connection. Every job was claimed exactly once, or this would have failed.",
    ask = ask,
  }
end

local PAYLOAD = 65536

-- Payloads of 64 KiB.
function questions.large(s)
  local jobs, few = s:jobs(2000, 100), s:jobs(500)
  local function options(batch) return { jobs = batch > 1 and jobs or few, batch = batch, payload = PAYLOAD } end
  local function floor(what, batch) return function() return s:floor(what, options(batch)) end end
  local function verbs(what, batch) return function() return s:verbs(what, options(batch)) end end
  return {
    title = "Payloads of 64 KiB",
    ask = {
      function() return s:beside("push_many, 100 a time, C", floor("push", 100), verbs("push", 100)) end,
      function() return s:beside("push, one a time, C", floor("single", 1), verbs("single", 1)) end,
      function() return s:beside("claim + ack, batch 100, C", floor("claim", 100), verbs("claim", 100)) end,
      function()
        return s:beside("`nightshift work`, 8 workers, beside claim + ack in batches of 100", floor("claim", 100),
          function() return s:program("work", "work", jobs, 8, PAYLOAD)[1] end)
      end,
    },
  }
end

-- ------------------------------------------------------------ questions: work

local WORKERS = { 1, 2, 8, 80, 500 }

local function per_10k(line) return (line.server_cpu + line.client_cpu) / line.jobs * 10000 end

function questions.work(s)
  local jobs = s:jobs(100000, 200)
  local ask = {}
  local function add(workers, history, title)
    table.insert(ask, function()
      local floor, ours = s:both(
        function() return s:floor("claim", { jobs = jobs, batch = 1000, history = history == "all" and 1 or 0 }) end,
        function() return s:program("work", "work", jobs, workers, 100, history)[1] end)
      return {
        what = title, jobs = jobs, workers = workers,
        floor = floor.rate, ours = ours.rate, ratio = ours.rate / floor.rate,
        cpu_s = per_10k(ours), floor_cpu_s = per_10k(floor), server_cpu_s = ours.server_cpu / jobs * 10000,
      }
    end)
  end
  local numbers = {}
  for i, n in ipairs(WORKERS) do numbers[i] = n <= jobs // 100 and n or nil end -- so that each has some jobs
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

function questions.latency(s)
  local ask = {
    function()
      local line = s:floor("latency", { jobs = s:jobs(1000) })
      line.what = "bare SQL: one connection pushes, commits, claims, commits"
      return line
    end,
  }
  table.insert(ask, function() return s:program("work", "latency", s.scale) end)
  return { title = "From push to handler", ask = ask }
end

if ... == "bench.questions.work" then return questions end

local url, build, what = arg[1], arg[2], arg[3]
local LUA = arg[-1] or "lua5.4"
local measures = {}

-- -------------------------------------------------------------- work by verbs

local VERBS <const> = { push = true, single = true, transaction = true, ack = true, batch = true, fill = true }

local function read_options(...)
  local asked, unnamed = { jobs = 1000, batch = 1, payload = 100 }, { "jobs", "batch" }
  for _, text in ipairs { ... } do
    local name, value = text:match "^(%w+)=(%d+)$"
    if not name then name, value = table.remove(unnamed, 1), text end
    assert(asked[name], "work: an option is jobs=, batch= or payload=NUMBER")
    asked[name] = assert(math.tointeger(tonumber(value)), "work: not a number")
  end
  return asked
end

local function by_verbs(...)
  local asked = read_options(...)
  local payload = ("x"):rep(asked.payload - 2) -- with its quotes
  local most = math.max(1, math.min(1000, 8000000 // (asked.payload + 100))) -- of one push that fills
  local db <close> = assert(nightshift.open(url))
  local q = assert(db:queue "bench")
  tables.empty(db)
  assert(db:execute [[CREATE OR REPLACE TABLE bench_order
    (id BIGINT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(100)) ENGINE=InnoDB]])

  local function push_all(size)
    for done = 0, asked.jobs - 1, size do
      local items = {}
      for i = 1, math.min(size, asked.jobs - done) do items[i] = { "noop", payload } end
      assert(q:push_many(items))
    end
  end

  local run = {
    push = function() push_all(asked.batch) end,
    single = function()
      for _ = 1, asked.jobs do assert(q:push("noop", payload)) end
    end,
    transaction = function()
      for _ = 1, asked.jobs do
        assert(db:transaction(function(tx)
          assert(tx:execute "INSERT INTO bench_order (note) VALUES ('paid')")
          assert(tx:queue "bench":push("noop", payload))
        end))
      end
    end,
    ack = function()
      for _ = 1, asked.jobs do assert(assert(q:claim()):ack()) end
    end,
    batch = function()
      local left = asked.jobs
      while left > 0 do
        local jobs = assert(q:claim_many(asked.batch))
        assert(#jobs > 0, "work: nothing to claim")
        assert(db:transaction(function(tx)
          for _, job in ipairs(jobs) do assert(tx:ack(job)) end
        end))
        left = left - #jobs
      end
    end,
  }
  if what == "fill" or what == "ack" or what == "batch" then push_all(most) end
  if what == "fill" then return end
  local start = nightshift.clock()
  run[what]()
  local seconds = nightshift.clock() - start
  print(('{"what":"%s","jobs":%d,"batch":%d,"payload":%d,"seconds":%.6f,"rate":%.1f}')
    :format(what, asked.jobs, asked.batch, asked.payload, seconds, asked.jobs / seconds))
end

for verb in pairs(VERBS) do measures[verb] = by_verbs end

-- ---------------------------------------------------------------- work by a host

-- The last job is looked for from the end, where the jobs stand that end last. Gives the moment
-- when it was gone.
local function wait_until_done(db)
  for _ = 1, 12000 do
    if not tables.ask(db, "SELECT id AS n FROM nightshift_job ORDER BY id DESC LIMIT 1") then return tables.now(db) end
    assert(db:execute "DO SLEEP(0.01)")
  end
  error("bench: the jobs do not end", 0)
end

function measures.work(jobs, workers, payload, history)
  jobs, workers, history = tonumber(jobs), tonumber(workers), history or "all"
  local fill = ("%s bench/questions/work.lua '%s' '%s' fill jobs=%d payload=%s"):format(LUA, url, build, jobs,
    payload or "100")
  assert(os.execute(processes.tied(fill)))
  local db <close> = assert(nightshift.open(url))
  local q = assert(db:queue "bench")
  assert(q:pause())
  local h = processes.start_host { url = url, build = build, workers = workers, options = "--history " .. history }
  local start = tables.now(db)
  assert(q:resume())
  local gone = wait_until_done(db)
  h:stop()
  local function finished(which)
    return tables.ask(db, "SELECT COUNT(*) AS n FROM nightshift_finished WHERE outcome " .. which)
  end
  assert(finished "<> 'done'" == 0 and finished "= 'done'" == (history == "all" and jobs or 0),
    "bench: not every job is done")
  local last = tables.ask(db, "SELECT MAX(finished_at) AS n FROM nightshift_finished") or gone
  local seconds = (last - start) / 1e6
  print(('{"what":"work","jobs":%d,"workers":%d,"history":"%s","seconds":%.6f,"rate":%.1f}')
    :format(jobs, workers, history, seconds, jobs / seconds))
end

-- ------------------------------------------------------------------- latency

local FIRST, DRAINED = 200, 50000
local TICK = 0.01 -- of the load, seconds
local padding = ("x"):rep(98) -- 100 bytes with its quotes

local function sleep(db, seconds) assert(db:execute("DO SLEEP(?)", math.max(seconds, 0))) end

-- Pushes 'n' jobs that do nothing, a thousand at a time.
local function push_noops(q, n)
  for done = 0, n - 1, 1000 do
    local items = {}
    for i = 1, math.min(1000, n - done) do items[i] = { "noop", padding } end
    assert(q:push_many(items))
  end
end

function measures.feed(rate, file)
  local db <close> = assert(nightshift.open(url))
  local q = assert(db:queue "bench")
  local due = nightshift.clock()
  local owed = 0
  while io.open(file) do
    owed = owed + tonumber(rate) * TICK
    push_noops(q, math.floor(owed))
    owed = owed % 1
    due = due + TICK
    sleep(db, due - nightshift.clock())
  end
end

local function wait_until(db, expected, sql, ...)
  for _ = 1, 6000 do
    if tables.ask(db, sql, ...) ~= 0 then return end
    sleep(db, 0.01)
  end
  error(("bench: %s does not come"):format(expected), 0)
end

-- Half of the jobs a second that are pushed and done, both at once.
local function half_of_all(db, q, scale)
  local jobs = DRAINED * scale // 1
  local begun = tables.now(db)
  push_noops(q, jobs)
  wait_until(db, "the end of the jobs", "SELECT COUNT(*) = 0 AS n FROM nightshift_job")
  local last = tables.ask(db, "SELECT MAX(finished_at) AS n FROM nightshift_finished")
  return jobs / ((last - begun) / 1e6) / 2
end

-- Pushes one job after the other with pauses, and tells the delay of each start.
local function sample(db, q, n, pause)
  local pushed, late = {}, {}
  for i = 1, n do
    local at = nightshift.clock()
    pushed[i] = { id = assert(q:push("start", padding)), at = at }
    sleep(db, pause * (0.5 + math.random()))
  end
  wait_until(db, "the last job", "SELECT COUNT(*) = 0 AS n FROM nightshift_job WHERE id = ?", pushed[n].id)
  for i, p in ipairs(pushed) do
    wait_until(db, "a job", "SELECT COUNT(*) AS n FROM nightshift_finished WHERE id = ? AND outcome = 'done'", p.id)
    late[i] = (assert(db:job(p.id)).result - p.at) * 1000
  end
  table.sort(late)
  return late
end

local function at(sorted, share) return sorted[math.max(1, math.ceil(#sorted * share))] end

local function tell(title, late, more)
  print(('{"what":"%s","p50_ms":%.3f,"p99_ms":%.3f,"max_ms":%.3f,"jobs":%d%s}')
    :format(title, at(late, 0.5), at(late, 0.99), late[#late], #late, more or ""))
end

-- Pushes so many jobs a second beside this process, until it is closed.
local function feed(rate)
  local file = os.tmpname()
  local command = ("%s bench/questions/work.lua '%s' '%s' feed %.0f %s"):format(LUA, url, build, rate, file)
  local pipe = assert(io.popen(processes.tied(command)))
  return setmetatable({}, { __close = function()
    os.remove(file)
    pipe:close()
  end })
end

function measures.latency(scale)
  scale = tonumber(scale or 1)
  local samples = math.max(20, 1000 * scale // 1)
  local db <close> = assert(nightshift.open(url))
  local q = assert(db:queue "bench")
  tables.empty(db)
  local _ <close> = processes.start_host { url = url, build = build, workers = 2 }
  sample(db, q, math.min(FIRST, samples), 0.005) -- statements get prepared, pages warm
  tell("push to handler start, idle", sample(db, q, samples, 0.015))
  local rate = half_of_all(db, q, scale)
  local _ <close> = feed(rate)
  sleep(db, 0.5)
  tell("push to handler start, half load", sample(db, q, samples, 0.01), (',"load":%.0f'):format(rate))
end

measures[what](table.unpack(arg, 4))
