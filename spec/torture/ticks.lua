--- A schedule in a torture: a tick a second, each of them made up for when it was missed. Hosts push its
-- jobs while they are killed and the server restarts. In the end there are as many jobs as ticks.

local nst = require "nst"

local ticks = {}

--- The name of the schedule, and of its jobs.
ticks.NAME = "tick"

local first -- seconds since 1970: its first tick

--- Adds the schedule.
function ticks.prepare(db)
  first = assert(db:schedule { name = ticks.NAME, cron = "* * * * * *", missed = "all",
    push = { ticks.NAME, nil, { queue = "ticks", max_crashes = 100 } } })
end

--- Ends its ticks, so that the rest of its jobs can be worked off. A frozen host may hold the row.
function ticks.finish(db)
  local ok, message
  for _ = 1, 20 do
    ok, message = db:schedule_pause(ticks.NAME)
    if ok then return end
    nst.sleep(1)
  end
  error(message)
end

--- When all is over; `found` gets a kind and a text. How many ticks there were.
function ticks.check(db, found)
  local row = assert(db:schedules())[1]
  if row.error then found("schedule", "it has failed: " .. row.error) end
  local n = assert(db:execute("SELECT COUNT(*) AS n FROM nightshift_finished WHERE name = ?", ticks.NAME))[1].n
  local want = row.last and math.tointeger(row.last - first) + 1 or 0
  if n ~= want then found("schedule", ("%d ticks have %d jobs"):format(want, n)) end
  return want
end

return ticks
