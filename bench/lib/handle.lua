-- The same work as in floor.c and verbs.c, done from plain Lua with the public API. Prints one
-- JSON line.
--   lua5.4 handle.lua URL WHAT [JOBS [BATCH]] [OPTION=NUMBER…]
-- Options are jobs, batch, payload (bytes).
-- WHAT is one of
--   push           q:push_many, `batch` jobs at a time
--   single         q:push
--   transaction    q:push inside a transaction with a row of an application
--   ack            q:claim and job:ack, one by one
--   batch          q:claim_many, and the acks of a batch in one transaction
--   fill           pushes only, and prints nothing
local nightshift = require "nightshift"

local url, what = arg[1], arg[2]
local asked = { jobs = 1000, batch = 1, payload = 100 }
local unnamed = { "jobs", "batch" }
for i = 3, #arg do
  local name, value = arg[i]:match "^(%w+)=(%d+)$"
  if not name then name, value = table.remove(unnamed, 1), arg[i] end
  assert(asked[name], "handle: an option is jobs=, batch= or payload=NUMBER")
  asked[name] = assert(math.tointeger(tonumber(value)), "handle: not a number")
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
      assert(#jobs > 0, "handle: nothing to claim")
      settle_together(jobs)
      left = left - #jobs
    end
  end,
}

if what == "fill" or what == "ack" or what == "batch" then push_all(FILL) end
if what == "fill" then return end
local start = nightshift.clock()
assert(DO[what], "handle: what is that?")()
local seconds = nightshift.clock() - start
print(('{"what":"%s","jobs":%d,"batch":%d,"payload":%d,"seconds":%.6f,"rate":%.1f}')
  :format(what, asked.jobs, asked.batch, asked.payload, seconds, asked.jobs / seconds))
