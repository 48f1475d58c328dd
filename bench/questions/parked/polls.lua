-- What a poll costs after many polls: claims one job and gives it back "not yet",
-- again and again, and compares the last thousand rounds with the first.
--   polls.lua URL [N] [DELAY] [hold]
-- DELAY is what `again` is given, seconds: 0 goes to the ready jobs at once, more
-- goes by way of the scheduled ones. With `hold` a transaction that reads is open
-- meanwhile, as a backup's, so that purge removes no row. The url is of a database
-- with our tables and nothing else in it.
local nightshift = require "nightshift"

local url = assert(arg[1], "usage: polls.lua URL [N] [DELAY] [hold]")
local n = tonumber(arg[2]) or 100000
local delay = tonumber(arg[3]) or 0
local SAMPLE = 1000

local db = assert(nightshift.open(url))
local reader
if arg[4] == "hold" then
  reader = assert(nightshift.open(url))
  assert(reader:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
  assert(reader._handle:begin())
  assert(reader:execute "SELECT 1 FROM nightshift_meta")
end
local q = db:queue "polls"
local id = assert(q:push("poll", { n = 1 }))

local function median(list)
  table.sort(list)
  return list[(#list + 1) // 2]
end

-- Microseconds of a round in the middle of a sample.
local function sample()
  local times = {}
  for i = 1, SAMPLE do
    local begun = nightshift.clock()
    local job = assert(q:claim { wait = 5 })
    assert(job:again(delay, i))
    times[i] = nightshift.clock() - begun
  end
  return median(times) * 1e6
end

local first = sample()
for _ = 1, math.max(0, n // SAMPLE - 2) do sample() end
local last = sample()

local function count(table_name) return db:execute("SELECT COUNT(*) AS n FROM nightshift_" .. table_name)[1].n end
local polls = assert(db:job(id)).polls
print(("{\"polls\":%d,\"delay\":%g,\"hold\":%s,\"first_us\":%.1f,\"last_us\":%.1f,\"ratio\":%.2f,"
  .. "\"job\":%d,\"ready\":%d,\"scheduled\":%d,\"attempt\":%d}")
  :format(polls, delay, reader ~= nil, first, last, last / first, count "job", count "ready", count "scheduled",
    count "attempt"))
if reader then reader:close() end
db:close()
