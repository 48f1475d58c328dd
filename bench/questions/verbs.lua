-- Verbs beside bare SQL, each a question of its own: push, claim and ack, claims of many
-- handles at once, payloads of 64 KiB. What they run is in bench/floor. As a program this file
-- does the same work as floor.c and verbs.c, from plain Lua with the public API, and prints one
-- JSON line.
--   lua5.4 bench/questions/verbs.lua URL WHAT [JOBS [BATCH]] [OPTION=NUMBER…]
-- Options are jobs, batch, payload (bytes).
-- WHAT is one of
--   push           q:push_many, `batch` jobs at a time
--   single         q:push
--   transaction    q:push inside a transaction with a row of an application
--   ack            q:claim and job:ack, one by one
--   batch          q:claim_many, and the acks of a batch in one transaction
--   fill           pushes only, and prints nothing
local nightshift = require "nightshift"

local questions = {}

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
          function() return s:program("work", jobs, 8, PAYLOAD)[1] end)
      end,
    },
  }
end

if ... == "bench.questions.verbs" then return questions end

local url, what = arg[1], arg[2]
local asked = { jobs = 1000, batch = 1, payload = 100 }
local unnamed = { "jobs", "batch" }
for i = 3, #arg do
  local name, value = arg[i]:match "^(%w+)=(%d+)$"
  if not name then name, value = table.remove(unnamed, 1), arg[i] end
  assert(asked[name], "verbs: an option is jobs=, batch= or payload=NUMBER")
  asked[name] = assert(math.tointeger(tonumber(value)), "verbs: not a number")
end
local payload = ("x"):rep(asked.payload - 2) -- with its quotes
local FILL = math.max(1, math.min(1000, 8000000 // (asked.payload + 100)))

local db <close> = assert(nightshift.open(url))
local q = assert(db:queue "bench")
for _, name in ipairs { "job", "ready", "lease", "finished", "scheduled", "edge", "child", "met" } do
  assert(db:execute("TRUNCATE nightshift_" .. name))
end
assert(db:execute [[CREATE OR REPLACE TABLE bench_order
  (id BIGINT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(100)) ENGINE=InnoDB]])

local function push_all(size)
  for done = 0, asked.jobs - 1, size do
    local items = {}
    for i = 1, math.min(size, asked.jobs - done) do items[i] = { "noop", payload } end
    assert(q:push_many(items))
  end
end

local function settle_together(jobs)
  assert(db:transaction(function(tx)
    for _, job in ipairs(jobs) do assert(tx:ack(job)) end
  end))
end

local DO = {
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
      assert(#jobs > 0, "verbs: nothing to claim")
      settle_together(jobs)
      left = left - #jobs
    end
  end,
}

if what == "fill" or what == "ack" or what == "batch" then push_all(FILL) end
if what == "fill" then return end
local start = nightshift.clock()
assert(DO[what], "verbs: what is that?")()
local seconds = nightshift.clock() - start
print(('{"what":"%s","jobs":%d,"batch":%d,"payload":%d,"seconds":%.6f,"rate":%.1f}')
  :format(what, asked.jobs, asked.batch, asked.payload, seconds, asked.jobs / seconds))
