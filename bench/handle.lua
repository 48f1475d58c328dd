-- The same work as floor.c and verbs.c, done from plain Lua with the public
-- API. Prints one JSON line.
--   lua5.4 handle.lua URL push JOBS BATCH    q:push_many
--   lua5.4 handle.lua URL single JOBS        q:push
--   lua5.4 handle.lua URL ack JOBS           q:claim, job:ack: one by one
--   lua5.4 handle.lua URL fill JOBS          pushes only, prints nothing
local nightshift = require "nightshift"

local url, what, jobs, batch = arg[1], arg[2], tonumber(arg[3]), tonumber(arg[4] or 1)
local payload = ("x"):rep(98) -- 100 bytes with its quotes

local db <close> = assert(nightshift.open(url))
local q = assert(db:queue "bench")
for _, name in ipairs { "job", "ready", "lease", "finished", "scheduled" } do
  assert(db:execute("TRUNCATE nightshift_" .. name))
end

local function push_all(size)
  for done = 0, jobs - 1, size do
    local items = {}
    for i = 1, math.min(size, jobs - done) do items[i] = { "noop", payload } end
    assert(q:push_many(items))
  end
end

local function push_singly()
  for _ = 1, jobs do assert(q:push("noop", payload)) end
end

local function ack_singly()
  for _ = 1, jobs do assert(assert(q:claim()):ack()) end
end

if what == "ack" or what == "fill" then push_all(1000) end
if what == "fill" then return end
local start = nightshift.clock()
if what == "push" then push_all(batch) elseif what == "single" then push_singly() end
if what == "ack" then ack_singly() end
local seconds = nightshift.clock() - start
print(('{"what":"%s","side":"lua","jobs":%d,"batch":%d,"seconds":%.6f,"rate":%.1f}')
  :format(what, jobs, batch, seconds, jobs / seconds))
