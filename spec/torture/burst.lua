--- Many jobs of one kind in one push, written down as a pusher's are. Kinds are those of
-- outcomes.lua: what such a job does is not left to chance.

local nightshift = require "nightshift"
local journal = require "spec.torture.journal"
local proc = require "spec.support.proc"

local burst = {}

local QUEUES <const> = { "a", "b", "c" }
local made = 0

local function item(tag, kind)
  return { "work", { tag = tag, kind = kind },
    { backoff = 0.2, max_attempts = 3, timeout = proc.limit(30), max_polls = 6, max_crashes = 3 } }
end

--- Pushes them into one queue.
-- @tparam Cast cast
-- @tparam string kind
-- @tparam integer n
-- @tparam[opt] string queue else one of its choice
-- @treturn boolean whether they are there; false too when nobody knows
function burst.push(cast, kind, n, queue)
  local handle <close> = nightshift.open(cast.url)
  if not handle then return false end
  cast.pushes = cast.pushes or journal.writer(cast.folder, "pushes")
  made = made + 1
  local tag, items = ("burst.%d"):format(made), {}
  for i = 1, n do items[i] = item(("%s.%d"):format(tag, i), kind) end
  cast.pushes("intend", tag, "bulk", n)
  local ids, _, code = handle:queue(queue or QUEUES[math.random(3)]):push_many(items)
  if ids then cast.pushes("acked", tag, table.concat(ids, ","))
  else cast.pushes(code == "GONE" and "doubt" or "refused", tag, code or "NONE") end
  return ids ~= nil
end

return burst
