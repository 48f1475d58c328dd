--- Cron expressions: five fields, or six with seconds in front, or @daily and the like.
--
-- Where the hour is `*` or `*/n`, time is elapsed time: an hour that comes twice runs twice,
-- and a skipped hour does not run. A fixed time of day is run once a day. A time inside a
-- skipped hour runs at the end of that hour; of an hour that comes twice the first counts.

local zone = require "nightshift.schedule.zone"

local cron = {}

---@class nightshift.Cron
---@field fields table<string, table<integer, true>> values by field
---@field any_hour boolean the hour is `*` or `*/n`
---@field any_day boolean the day of the month is not restricted
---@field any_weekday boolean

local MONTHS = { jan = 1, feb = 2, mar = 3, apr = 4, may = 5, jun = 6, jul = 7, aug = 8, sep = 9, oct = 10, nov = 11,
  dec = 12 }
local WEEKDAYS = { sun = 0, mon = 1, tue = 2, wed = 3, thu = 4, fri = 5, sat = 6 }

local FIELDS = {
  { name = "second", min = 0, max = 59 },
  { name = "minute", min = 0, max = 59 },
  { name = "hour", min = 0, max = 23 },
  { name = "day", min = 1, max = 31 },
  { name = "month", min = 1, max = 12, names = MONTHS },
  { name = "weekday", min = 0, max = 7, names = WEEKDAYS },
}

local SHORT = {
  ["@yearly"] = "0 0 1 1 *", ["@annually"] = "0 0 1 1 *", ["@monthly"] = "0 0 1 * *", ["@weekly"] = "0 0 * * 0",
  ["@daily"] = "0 0 * * *", ["@midnight"] = "0 0 * * *", ["@hourly"] = "0 * * * *",
}

-- --------------------------------------------------------------------- parsing

local function value_of(field, text)
  local n = field.names and field.names[text:lower()] or text:find "^%d+$" and math.tointeger(tonumber(text))
  if n and n >= field.min and n <= field.max then return n end
  return nil, ("'%s' is no %s; %s"):format(text, field.name,
    field.names and ("%d to %d, or a name of three letters"):format(field.min, field.max)
    or ("%d to %d"):format(field.min, field.max))
end

--- From, to and step of one item of a list.
local function range_of(field, item)
  local range, step = item:match "^([^/]+)/?(.*)$"
  if not range or item:find "/$" or item:find "/.*/" then
    return nil, ("'%s' is no %s"):format(item, field.name)
  end
  local every = 1
  if step ~= "" then
    every = step:find "^%d+$" and math.tointeger(tonumber(step)) or 0
    if every < 1 then return nil, ("the step '%s' of the %s must be a whole number from 1"):format(step, field.name) end
  end
  if range == "*" then return field.min, field.name == "weekday" and 6 or field.max, every end
  local first, last = range:match "^([^-]+)-([^-]+)$"
  local from, to, message
  from, message = value_of(field, first or range)
  if not from then return nil, message end
  if not first then return from, step ~= "" and field.max or from, every end
  to, message = value_of(field, last)
  if not to then return nil, message end
  if from > to then
    return nil, ("'%s' ends before it begins; write it as two: %s-%d,%d-%s"):format(range, first, field.max, field.min,
      last)
  end
  return from, to, every
end

local function read_field(field, text)
  local set = {}
  if text:find "^," or text:find ",$" or text:find ",," then
    return nil, ("'%s' has an empty %s"):format(text, field.name)
  end
  for item in text:gmatch "[^,]+" do
    local from, to, step = range_of(field, item)
    if not from then return nil, to end
    for n = from, to, step do set[field.name == "weekday" and n % 7 or n] = true end
  end
  return set
end

--- Reads an expression.
---@param text string
---@return nightshift.Cron|nil
---@return string? message
---@return string? code
function cron.parse(text)
  local words = {}
  for word in (SHORT[text:lower()] or text):gmatch "%S+" do words[#words + 1] = word end
  if #words == 5 then table.insert(words, 1, "0") end
  if #words ~= 6 then
    return nil, ("a cron expression has five fields (minute hour day month weekday), six with seconds in front, or is "
      .. "one of @yearly, @monthly, @weekly, @daily, @hourly; '%s' has %d"):format(text, #words), "INVALID"
  end
  local fields = {}
  for i, field in ipairs(FIELDS) do
    local set, message = read_field(field, words[i])
    if not set then return nil, ("cron '%s': %s"):format(text, message), "INVALID" end
    fields[field.name] = set
  end
  return { fields = fields, any_hour = words[3]:sub(1, 1) == "*", any_day = words[4]:sub(1, 1) == "*",
    any_weekday = words[6]:sub(1, 1) == "*" }
end

-- ------------------------------------------------------------------ local times

local DAY = 86400
local FAR = 8 * 366 -- days: 29 February comes at least so often

--- Where both days are restricted, either will do. `d`: the day of the month of `days`.
local function is_day(self, days, d)
  local fields = self.fields
  local day, weekday = fields.day[d], fields.weekday[zone.weekday(days)]
  if self.any_day or self.any_weekday then return day and weekday end
  return day or weekday
end

--- The least value of a set from n on.
local function least(set, n, max)
  for i = n, max do
    if set[i] then return i end
  end
end

--- The first time of day, in seconds, from `from` on.
local function time_of_day(self, from)
  local fields = self.fields
  local h, m, s = from // 3600, from // 60 % 60, from % 60
  local hour = least(fields.hour, h, 23)
  while hour do
    if hour > h then m, s = 0, 0 end
    local minute = least(fields.minute, m, 59)
    while minute do
      local second = least(fields.second, (hour > h or minute > m) and 0 or s, 59)
      if second then return hour * 3600 + minute * 60 + second end
      minute, s = least(fields.minute, minute + 1, 59), 0
    end
    hour = least(fields.hour, hour + 1, 23)
  end
end

--- The first local time from `from` on, before `to`, in seconds since 1970 as if it were UTC.
local function find_local(self, from, to)
  local days, second = from // DAY, from % DAY
  local last = math.min((to - 1) // DAY, days + FAR)
  while days <= last do
    local y, m, d = zone.date(days)
    local is_month = self.fields.month[m]
    local at = is_month and is_day(self, days, d) and time_of_day(self, second)
    if at then
      local found = days * DAY + at
      return found < to and found or nil
    end
    days, second = is_month and days + 1 or zone.days(y, m + 1, 1), 0
  end
end

-- ------------------------------------------------------------------------ ticks

--- The first tick of a span from `t` on. A fixed time of day that was skipped before the span is
-- at its begin; one that has been once is not again.
local function find_in_span(self, span, t)
  local from, moved = t + span.offset, span.offset - span.before
  if not self.any_hour and span.from > -math.huge and moved ~= 0 then
    local before = span.from + span.before -- the local time when it began, by the offset of before
    if moved > 0 and t <= span.from and find_local(self, before, before + moved) then return span.from end
    if moved < 0 then from = math.max(from, before) end
  end
  local to = span.to == math.huge and from + (FAR + 1) * DAY or span.to + span.offset
  local found = from < to and find_local(self, math.tointeger(from), math.tointeger(to))
  return found and found - span.offset
end

--- The first tick after an instant, in whole seconds; nil: none within eight years.
---@param self nightshift.Cron
---@param after number seconds since 1970 UTC
---@param where table zone
---@return integer?
function cron.next(self, after, where)
  local t = math.floor(after) + 1
  local far = t + FAR * DAY
  while t < far do
    local span = where:span(t)
    local found = find_in_span(self, span, t)
    if found then return found end
    if span.to == math.huge then return nil end
    t = span.to
  end
end

return cron
