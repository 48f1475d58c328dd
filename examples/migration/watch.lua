-- Shows how far the migration is, until nothing is open. Exits with 1 when tasks have
-- been given up.
local nightshift = require "nightshift"

local LIMIT = dofile((arg[0]:match "^(.*/)" or "./") .. "migration.lua").max_attempts
local WIDTH, BACK = 40, 10 -- characters of the bar; seconds of which the rate is the mean
local db = assert(nightshift.open())
local on_terminal = os.execute "test -t 1"
local begun, seen = nightshift.clock(), {}

local function count(where)
  return assert(db:execute("SELECT COUNT(*) AS n FROM migration_task WHERE " .. where))[1].n
end

-- Tasks a second, of late.
local function rate(complete)
  local now = nightshift.clock()
  seen[#seen + 1] = { at = now, complete = complete }
  while #seen > 2 and seen[2].at < now - BACK do table.remove(seen, 1) end
  return (complete - seen[1].complete) / math.max(now - seen[1].at, 0.001)
end

local function time(seconds)
  seconds = math.ceil(seconds)
  if seconds >= 3600 then return ("%d:%02d h"):format(seconds // 3600, seconds % 3600 // 60) end
  return ("%d:%02d min"):format(seconds // 60, seconds % 60)
end

local total, last = count "TRUE", -1
local complete, dead
repeat
  complete, dead = count "status = 'complete'", count("status = 'open' AND iteration >= " .. LIMIT)
  local speed, part = rate(complete), total > 0 and complete / total or 1
  local bar = ("#"):rep(math.floor(part * WIDTH)) .. ("."):rep(WIDTH - math.floor(part * WIDTH))
  local left = speed > 0 and (", %s left"):format(time((total - dead - complete) / speed)) or ""
  local line = ("[%s] %d of %d, %.0f/s%s"):format(bar, complete, total, speed, left)
  if on_terminal then io.write("\r", line, "\27[K")
  elseif math.floor(part * 10) > last then print(line) end
  io.flush()
  last = math.floor(part * 10)
until complete + dead >= total or not os.execute "sleep 0.25"

if on_terminal then print() end
print(("%d complete, %d given up, %.1f s"):format(complete, dead, nightshift.clock() - begun))
os.exit(dead == 0, true)
