--- Times as callers see them: seconds, and instants as seconds since 1970 UTC, both with
-- fractions. Tables and the core count microseconds; here alone these become seconds.
--
-- Which fields of a row are times is said by their names, which mean the same in every row.

local times = {}

local MICROSECONDS <const> = 1000000

local function set(...)
  local names = {}
  for _, name in ipairs { ... } do names[name] = true end
  return names
end

--- Fields that are instants.
times.INSTANTS = set("created", "due", "deadline", "claimed", "finished_at", "started", "touched", "beat", "load_ended",
  "since", "ended", "dead_at", "failed_at", "first", "last", "now")

--- Fields that are spans.
times.SPANS = set("timeout", "backoff", "waited")

--- Seconds of microseconds; nil of nil.
---@param us integer?
---@return number?
function times.seconds(us) return us and us / MICROSECONDS end

--- The same row with its times in seconds; once.
---@generic T: table
---@param row T changed
---@return T
function times.row(row)
  for key, value in pairs(row) do
    local is_time = times.INSTANTS[key] or times.SPANS[key]
    if is_time and type(value) == "number" then row[key] = value / MICROSECONDS end
  end
  return row
end

--- The same rows with their times in seconds; a failure (nil, message, code) as it came.
function times.rows(rows, ...)
  for _, row in ipairs(rows or {}) do times.row(row) end
  return rows, ...
end

--- An instant as RFC 3339, UTC.
---@param instant number seconds since 1970
---@param digits integer? of the fraction: 3, or 6
---@return string
function times.text(instant, digits)
  local us = math.floor(instant * MICROSECONDS + 0.5)
  local fraction = digits == 6 and (".%06dZ"):format(us % MICROSECONDS) or (".%03dZ"):format(us % MICROSECONDS // 1000)
  return os.date("!%Y-%m-%dT%H:%M:%S", us // MICROSECONDS) .. fraction
end

-- What users have put there: none of their values is a time of ours.
local THEIRS <const> = set("payload", "result", "kept", "signal", "counters", "mapping")

--- A copy in which instants are RFC 3339 texts, for JSON.
function times.texts(value)
  if type(value) ~= "table" then return value end
  local copy = setmetatable({}, getmetatable(value))
  for key, item in pairs(value) do
    if THEIRS[key] then
      copy[key] = item
    elseif times.INSTANTS[key] and type(item) == "number" then
      copy[key] = times.text(item, 6)
    else
      copy[key] = times.texts(item)
    end
  end
  return copy
end

return times
