-- Events into a table, 100 by one statement: a handler that takes many jobs in one call. Rows and
-- verdicts are one commit, so each event is there once, whatever is killed in between.
--
--     nightshift push events event.store '{"kind": "click", "page": "/start"}'
--     nightshift work examples/events/jobs.lua
local nightshift = require "nightshift"

nightshift.on("worker.start", function()
  local db <close> = assert(nightshift.open())
  assert(db:execute [[CREATE TABLE IF NOT EXISTS event
    (id BIGINT PRIMARY KEY, kind VARCHAR(100) NOT NULL, body LONGTEXT NOT NULL)]])
end)

local INSERT = [[INSERT INTO event (id, kind, body)
  SELECT v.id, v.kind, v.body FROM JSON_TABLE(?, '$[*]' COLUMNS
    (id BIGINT PATH '$.id', kind VARCHAR(100) PATH '$.kind', body LONGTEXT PATH '$.body')) v]]

local function store(jobs)
  local rows = {}
  for i, job in ipairs(jobs) do
    rows[i] = { id = job.id, kind = job.payload.kind, body = nightshift.encode(job.payload) }
  end
  return jobs[1]:db():transaction(function(tx)
    local stored, message = tx:execute(INSERT, nightshift.encode(rows))
    if not stored then return nil, message end
    for _, job in ipairs(jobs) do tx:ack(job) end
    return true
  end)
end

return {
  ["event.store"] = {
    batch = 100, within = 0.5, run = store,
    check = function(event) return type(event) == "table" and type(event.kind) == "string", "an event has a kind" end,
  },
}
