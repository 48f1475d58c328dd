--- How many jobs of each queue are in which state: what `status` and db:stats show.
--
-- Counts go to MOST and no further: a larger one is given as MOST, and its state is named
-- in the row's `approximate`. So are all queues' counts of a state when its statement
-- stopped after LOOKED rows, for any queue may have more. That bounds the time of all
-- counts together, whatever the tables hold. The statements are in sql/query/report.sql.

local counts = {}

local MOST = 1000
local LOOKED = 4000 -- rows that a statement looks at which no key leads to a queue's own

--- What is being counted: rows of queues by id, the server's clock, and the states for which
-- statements have stopped early.
---@class nightshift.Tally
---@field handle userdata core handle
---@field by_id table<integer, table>
---@field now integer µs
---@field cut table<string, boolean>

--- The rows of a statement; trouble ends all counting.
local function ask(tally, statement, ...)
  local rows, message, code = tally.handle:execute("@report_counts_" .. statement, ...)
  if not rows then error { message = message, code = code } end
  return rows
end

--- Adds the counts of `rows` to the queues.
local function add(tally, state, rows)
  local looked = 0
  for _, row in ipairs(rows) do
    local queue = tally.by_id[row.queue_id]
    looked = looked + (row.looked or 0)
    if queue then
      queue[state] = queue[state] + (row.n or MOST + 1)
      if row.oldest then queue.oldest = math.max(queue.oldest or 0, (tally.now - row.oldest) / 1000000) end
      if row.next then queue.next = math.max(0, row.next - tally.now) / 1000000 end
    end
  end
  if looked >= LOOKED then tally.cut[state] = true end
end

--- Those in ready, and those that are due and not yet moved there.
local function add_ready(tally)
  local rows, lanes = ask(tally, "ready", MOST), nil
  for _, row in ipairs(rows) do
    if not row.n then
      lanes = lanes or ask(tally, "lanes")
      for _, lane in ipairs(lanes) do
        if lane.queue_id == row.queue_id then row.oldest = lane.oldest end
      end
    end
  end
  add(tally, "ready", rows)
  add(tally, "ready", ask(tally, "due", LOOKED))
end

--- Those due later, and those that wait: for jobs, or for a signal. Waits for a signal
-- without a deadline are the last rows of scheduled.
local function add_scheduled_and_waiting(tally)
  local rows = ask(tally, "scheduled", LOOKED)
  add(tally, "scheduled", rows)
  for _, row in ipairs(rows) do row.n, row.next, row.looked = row.awaiting, nil, nil end
  if tally.cut.scheduled then rows, tally.cut.waiting = ask(tally, "awaiting", LOOKED), true end
  add(tally, "waiting", rows)
  add(tally, "waiting", ask(tally, "waiting", LOOKED, LOOKED))
end

local STATES = { "ready", "scheduled", "running", "waiting", "dead" }

--- Counts go no further than MOST; what goes further, or may, is approximate.
local function bound(tally, row)
  for _, state in ipairs(STATES) do
    if tally.cut[state] or row[state] > MOST then
      row[state] = math.min(row[state], MOST)
      row.approximate = row.approximate or {}
      row.approximate[state] = true
    end
  end
end

--- Rows of all queues by name: name, paused, counts per state, `oldest` (seconds the
-- oldest ready job has waited), `next` (seconds to the next due one).
---@param handle userdata core handle
---@param now integer the server's clock, µs
---@return table[]? rows
---@return string? message
---@return string? code
function counts.of_queues(handle, now)
  local queues, message, code = handle:queues()
  if not queues then return nil, message, code end
  local tally, rows = { handle = handle, now = now, by_id = {}, cut = {} }, {}
  for i, queue in ipairs(queues) do
    rows[i] = { name = queue.name, paused = queue.paused, ready = 0, scheduled = 0, running = 0, waiting = 0, dead = 0 }
    tally.by_id[queue.id] = rows[i]
  end
  local ok, trouble = pcall(function()
    add_ready(tally)
    add_scheduled_and_waiting(tally)
    add(tally, "running", ask(tally, "running", LOOKED))
    add(tally, "dead", ask(tally, "dead", LOOKED))
  end)
  if not ok and type(trouble) ~= "table" then error(trouble, 0) end
  if not ok then return nil, trouble.message, trouble.code end
  for _, row in ipairs(rows) do bound(tally, row) end
  table.sort(rows, function(a, b) return a.name < b.name end)
  return rows
end

return counts
