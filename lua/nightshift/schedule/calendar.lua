--- Calendar: time zones, and cron expressions, which name ticks in them.
--
-- Zones are from the system's tzdata (TZif files, RFC 9636). A zone is a list of spans of time: in
-- each of them local time is UTC plus one offset. Times after the last span of a file follow the
-- rule at its end, year by year.
--
-- Expressions have five fields, or six with seconds in front, or are @daily and the like. Where the
-- hour is `*` or `*/n`, time is elapsed time: an hour that comes twice runs twice, and a skipped
-- hour does not run. A fixed time of day is run once a day. A time inside a skipped hour runs at
-- the end of that hour; of an hour that comes twice the first counts.
--
-- Invariant: the spans of a zone follow each other without a gap; each has the offset of the one
-- before it.

local calendar = {}

local FOLDERS = { "/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/usr/share/lib/zoneinfo" }
local DAY, YEAR = 86400, 31556952 -- seconds; of an average year

---@class nightshift.Span
---@field from number seconds since 1970 UTC; -math.huge: always
---@field to number where the next one begins
---@field offset integer seconds that local time is ahead of UTC
---@field before integer the offset of the span before it

-- --------------------------------------------------------------------- dates

--- Days since 1970-01-01 of a date of the Gregorian calendar; months beyond 12 are of later years.
---@param y integer
---@param m integer
---@param d integer
---@return integer
function calendar.days(y, m, d)
  y, m = y + (m - 1) // 12, (m - 1) % 12 + 1
  if m <= 2 then y = y - 1 end
  local era = y // 400
  local of_era = y - era * 400
  local of_year = (153 * (m + (m > 2 and -3 or 9)) + 2) // 5 + d - 1
  return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
end

--- The date of a day since 1970.
---@param days integer
---@return integer year
---@return integer month
---@return integer day
function calendar.date(days)
  days = days + 719468
  local era = days // 146097
  local of_era = days - era * 146097
  local y = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
  local of_year = of_era - (365 * y + y // 4 - y // 100)
  local shifted = (5 * of_year + 2) // 153
  local m = shifted < 10 and shifted + 3 or shifted - 9
  return y + era * 400 + (m <= 2 and 1 or 0), m, of_year - (153 * shifted + 2) // 5 + 1
end

--- The day of the week of a day since 1970; 0: Sunday.
---@param days integer
function calendar.weekday(days) return (days + 4) % 7 end

-- ------------------------------------------------ zones: the rule at the end

--- "[+-]hh[:mm[:ss]]" in seconds, and the rest of the text.
local function read_time(text)
  local sign, h, rest = text:match "^([+-]?)(%d+)(.*)$"
  if not h then return nil end
  local sum, unit = tonumber(h) * 3600, 60
  local part, more = rest:match "^:(%d%d)(.*)$"
  while part and unit >= 1 do
    sum, rest, unit = sum + tonumber(part) * unit, more, unit // 60
    part, more = rest:match "^:(%d%d)(.*)$"
  end
  return math.tointeger(sign == "-" and -sum or sum), rest
end

--- The date of a change, "M3.5.0/2", "J60" or "59": a function that gives its day of a year; and
-- the seconds after that day's midnight.
local function read_change(text)
  local date, at = text:match "^([^/]+)/?(.*)$"
  local seconds = at ~= "" and read_time(at) or 7200
  local m, week, weekday = date:match "^M(%d+)%.(%d)%.(%d)$"
  if m then
    m, week, weekday = math.tointeger(m), math.tointeger(week), math.tointeger(weekday)
    return function(y)
      local first = calendar.days(y, m, 1)
      local day = first + (weekday - calendar.weekday(first)) % 7 + (week - 1) * 7
      while day >= calendar.days(y, m + 1, 1) do day = day - 7 end
      return day
    end, seconds
  end
  local julian, n = date:match "^(J?)(%d+)$"
  if not n then return nil end
  n = math.tointeger(n)
  return function(y)
    if julian == "" then return calendar.days(y, 1, 1) + n end
    local day = calendar.days(y, 1, 1) + n - 1
    local is_leap = calendar.days(y, 3, 1) - calendar.days(y, 2, 1) == 29
    return is_leap and n >= 60 and day + 1 or day -- 29 February has no number
  end, seconds
end

--- A POSIX TZ text, "CET-1CEST,M3.5.0,M10.5.0/3": {std =, dst =, begins =, ends =}; the offsets,
-- and functions that give the instants of both changes in a year. Nil: it is none.
local function read_rule(text)
  local rest, std, dst
  rest = text:match "^<[%w+-]+>(.*)$" or text:match "^%a+(.*)$"
  if not rest then return nil end
  std, rest = read_time(rest)
  if not std then return nil end
  local rule = { std = -std, around = {} }
  if rest == "" then return rule end
  rest = rest:match "^<[%w+-]+>(.*)$" or rest:match "^%a+(.*)$"
  if not rest then return nil end
  if rest:find "^[+%-%d]" then dst, rest = read_time(rest) end
  rule.dst = dst and -dst or rule.std + 3600
  local first, second = rest:match "^,([^,]+),([^,]+)$"
  if not first then return nil end
  local begins, begins_at = read_change(first)
  local ends, ends_at = read_change(second)
  if not begins or not ends then return nil end
  function rule.begins(y) return begins(y) * DAY + begins_at - rule.std end
  function rule.ends(y) return ends(y) * DAY + ends_at - rule.dst end
  return rule
end

--- The changes of a rule around an instant: {{at, offset}, …} in order. The changes around each
-- year are kept.
local function changes_around(rule, t)
  local y = 1970 + t // YEAR | 0
  local list = rule.around[y]
  if list then return list end
  list = {}
  rule.around[y] = list
  for year = y - 2, y + 2 do
    list[#list + 1] = { rule.begins(year), rule.dst }
    list[#list + 1] = { rule.ends(year), rule.std }
  end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return list
end

-- --------------------------------------------------------- zones: the files

local HEADER = ">c4 xxxxxxxxxxxxxxxx I4 I4 I4 I4 I4 I4"

--- The block at `at`, with times of `size` bytes: a list of changes {at, offset}, the offset before
-- the first, and where the block ends.
local function read_block(data, at, size)
  local magic, isutc, isstd, leaps, ntimes, ntypes, nchars
  magic, isutc, isstd, leaps, ntimes, ntypes, nchars, at = HEADER:unpack(data, at)
  if magic ~= "TZif" then return nil end
  local stop = at + ntimes * (size + 1) + ntypes * 6 + nchars + leaps * (size + 4) + isstd + isutc
  if stop > #data + 1 then return nil end
  local offsets, changes = {}, {}
  local types = at + ntimes * (size + 1)
  for i = 0, ntypes - 1 do offsets[i] = (">i4"):unpack(data, types + i * 6) end
  for i = 0, ntimes - 1 do
    local offset = offsets[data:byte(at + ntimes * size + i)]
    changes[#changes + 1] = { (">i" .. size):unpack(data, at + i * size), offset }
  end
  return changes, offsets[0], stop
end

--- The whole file; nil: it is none of a zone.
local function parse(data)
  if #data < 44 or data:sub(1, 4) ~= "TZif" then return nil end
  local changes, first, stop = read_block(data, 1, 4)
  if not changes then return nil end
  local footer = ""
  if data:byte(5) >= 50 then -- version 2
    changes, first, stop = read_block(data, stop, 8)
    if not changes then return nil end
    footer = data:sub(stop):match "^\n([^\n]*)\n" or ""
  end
  return { changes = changes, first = first or 0, rule = read_rule(footer) }
end

-- $TZDIR stands in place of the system's folders, as for the C library.
local function read_file(name)
  local own = os.getenv "TZDIR"
  for _, folder in ipairs(own and { own } or FOLDERS) do
    local file <close> = io.open(folder .. "/" .. name, "rb")
    local data = file and file:read "a"
    if data then return data end
  end
end

-- ------------------------------------------------------------ zones: a zone

local methods = {}
local meta = { __index = methods }

--- The last change at or before an instant, by its place; 0: it is before the first.
local function place(changes, t)
  local low, high = 0, #changes
  while low < high do
    local middle = (low + high + 1) // 2
    if changes[middle][1] <= t then low = middle else high = middle - 1 end
  end
  return low
end

local function span_of(changes, first, t)
  local i = place(changes, t)
  local this, after = changes[i], changes[i + 1]
  return {
    from = this and this[1] or -math.huge, to = after and after[1] or math.huge,
    offset = this and this[2] or first, before = i > 1 and changes[i - 1][2] or first,
  }
end

--- The span of time that an instant is in.
---@param t number seconds since 1970 UTC
---@return nightshift.Span
function methods:span(t)
  local changes, rule = self.changes, self.rule
  local last = changes[#changes]
  if last and t < last[1] or not rule then return span_of(changes, self.first, t) end
  local from, offset = last and last[1] or -math.huge, last and last[2] or self.first
  if not rule.dst then
    return { from = from, to = math.huge, offset = rule.std, before = offset }
  end
  local span = span_of(changes_around(rule, t), rule.std, t)
  if span.from <= from then -- the file's last span is the rule's first
    local before = changes[#changes - 1]
    span.from, span.before = from, before and before[2] or self.first
  end
  return span
end

local known = {}

--- A zone by its name in tzdata.
---@param name string "Europe/Vienna"
---@return table|nil
---@return string? message
---@return string? code
function calendar.zone(name)
  if known[name] then return known[name] end
  local plain = name:find "^[%w_+-][%w_+/-]*$" and not name:find "//" and name:sub(-1) ~= "/"
  local data = plain and read_file(name)
  local parsed = data and parse(data)
  if not parsed and name == "UTC" then parsed = { changes = {}, first = 0 } end -- known without tzdata
  if not parsed then
    return nil, ("there is no time zone '%s' in the system's tzdata; a zone is a name like Europe/Vienna or UTC"
      .. " (its files are in the package tzdata)"):format(name), "INVALID"
  end
  known[name] = setmetatable(parsed, meta)
  return known[name]
end

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

-- -------------------------------------------------------- expressions: parsing

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
function calendar.parse(text)
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

-- ---------------------------------------------------- expressions: local times

local FAR = 8 * 366 -- days: 29 February comes at least so often

--- Where both days are restricted, either will do. `d`: the day of the month of `days`.
local function is_day(self, days, d)
  local fields = self.fields
  local day, weekday = fields.day[d], fields.weekday[calendar.weekday(days)]
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
    local y, m, d = calendar.date(days)
    local is_month = self.fields.month[m]
    local at = is_month and is_day(self, days, d) and time_of_day(self, second)
    if at then
      local found = days * DAY + at
      return found < to and found or nil
    end
    days, second = is_month and days + 1 or calendar.days(y, m + 1, 1), 0
  end
end

-- ---------------------------------------------------------- expressions: ticks

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
function calendar.next(self, after, where)
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

return calendar
