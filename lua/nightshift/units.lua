--- Units as callers see them, and as text for people. Times are seconds, and instants are seconds
-- since 1970 UTC, both with fractions. Tables and the core count microseconds; here alone these
-- become seconds.
--
-- Which fields of a row are times is said by their names, which mean the same in every row.
-- Text has a decimal point, whatever decimal sign the program's locale has. Dates of HTTP, and its
-- Retry-After, become seconds, too.

local core = require "nightshift.core"

local units = {}

local MICROSECONDS <const> = 1000000

local function set(...)
  local names = {}
  for _, name in ipairs { ... } do names[name] = true end
  return names
end

--- Fields that are instants.
units.INSTANTS = set("at", "created", "due", "deadline", "claimed", "finished_at", "started", "touched", "beat",
  "load_ended", "since", "ended", "dead_at", "failed_at", "first", "last", "now")

--- Fields that are spans.
units.SPANS = set("timeout", "backoff", "waited")

--- Seconds of microseconds; nil of nil.
---@param us integer?
---@return number?
function units.seconds(us) return us and us / MICROSECONDS end

--- Turns the times of a row into seconds; once.
---@generic T: table
---@param row T changed
---@return T
function units.row(row)
  for key, value in pairs(row) do
    local is_time = units.INSTANTS[key] or units.SPANS[key]
    if is_time and type(value) == "number" then row[key] = value / MICROSECONDS end
  end
  return row
end

--- Turns the times of rows into seconds; a failure (nil, message, code) passes unchanged.
function units.rows(rows, ...)
  for _, row in ipairs(rows or {}) do units.row(row) end
  return rows, ...
end

--- An instant as RFC 3339, UTC.
---@param instant number seconds since 1970
---@param digits integer? of the fraction: 3, or 6
---@return string
function units.instant(instant, digits)
  local us = math.floor(instant * MICROSECONDS + 0.5)
  local fraction = digits == 6 and (".%06dZ"):format(us % MICROSECONDS) or (".%03dZ"):format(us % MICROSECONDS // 1000)
  return os.date("!%Y-%m-%dT%H:%M:%S", us // MICROSECONDS) .. fraction
end

-- Values of users: none of them is a time of ours.
local THEIRS <const> = set("payload", "result", "kept", "signal", "counters", "mapping")

--- A copy in which instants are RFC 3339 texts, for JSON.
function units.texts(value)
  if type(value) ~= "table" then return value end
  local copy = setmetatable({}, getmetatable(value))
  for key, item in pairs(value) do
    if THEIRS[key] then
      copy[key] = item
    elseif units.INSTANTS[key] and type(item) == "number" then
      copy[key] = units.instant(item, 6)
    else
      copy[key] = units.texts(item)
    end
  end
  return copy
end

-- ------------------------------------------------------------- numbers, spans

local UNITS = { { 86400, "d" }, { 3600, "h" }, { 60, "m" } }

--- The fewest digits that say the number: 2 → "2", 0.25 → "0.25".
---@param value number
---@return string
function units.number(value)
  local text = core.encode(value) or tostring(value) -- JSON knows no infinities
  return (text:gsub("%.0$", ""))
end

--- The text with so many digits behind the point.
---@param value number 0 or more
---@param digits integer 1 or more
---@return string
function units.fixed(value, digits)
  local scale = math.tointeger(10 ^ digits)
  local scaled = math.floor(value * scale + 0.5)
  return ("%d.%0" .. digits .. "d"):format(scaled // scale, scaled % scale)
end

--- Seconds with their two largest units: "3d4h", "2m5s", "0.4s"; "-" when absent.
---@param seconds number?
---@return string
function units.span(seconds)
  if not seconds then return "-" end
  if seconds < 10 then return units.fixed(math.max(0, seconds), 1) .. "s" end
  local rest = math.floor(seconds)
  for i, unit in ipairs(UNITS) do
    if rest >= unit[1] then
      local small = UNITS[i + 1] or { 1, "s" }
      return ("%d%s%d%s"):format(rest // unit[1], unit[2], rest % unit[1] // small[1], small[2])
    end
  end
  return rest .. "s"
end

--- The same for sentences: "3 d 4 h", "2 min 5 s", "1 h", "0.4 s".
---@param seconds number
---@return string
function units.words(seconds)
  local text = units.span(seconds):gsub("(%a)(%d)", "%1 %2"):gsub("(%d)(%a)", "%1 %2")
  return (text:gsub("m%f[^%a]", "min"):gsub(" 0 %a+$", ""))
end

-- ----------------------------------------------------------------- dates of HTTP

-- Texts in, seconds out. A date has one of the three forms of RFC 9110, section 5.6.7, and is GMT
-- whatever the machine's time zone is. Any other text gives nil, never an error: it comes from
-- other people's servers.

local MONTHS = { Jan = 1, Feb = 2, Mar = 3, Apr = 4, May = 5, Jun = 6,
  Jul = 7, Aug = 8, Sep = 9, Oct = 10, Nov = 11, Dec = 12 }
local DAYS = { Mon = "Monday", Tue = "Tuesday", Wed = "Wednesday", Thu = "Thursday", Fri = "Friday",
  Sat = "Saturday", Sun = "Sunday" }
local LENGTHS = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }

local function length(year, month)
  local leap = year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
  return month == 2 and leap and 29 or LENGTHS[month]
end

--- Days from 1970-01-01 to a day of the Gregorian calendar: years that begin in
-- March have their odd day at the end.
local function days(year, month, day)
  if month < 3 then year, month = year - 1, month + 12 end
  return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719469
end

local function numbers(...)
  local list = { ... }
  for i = 1, #list do list[i] = math.tointeger(tonumber(list[i])) end
  return table.unpack(list)
end

--- Seconds since 1970; nil when there is no such moment.
local function epoch(year, month, day, hour, minute, second)
  month = MONTHS[month]
  year, day, hour, minute, second = numbers(year, day, hour, minute, second)
  if not month or day < 1 or day > length(year, month) then return nil end
  if hour > 23 or minute > 59 or second > 60 then return nil end -- 60: a leap second
  return days(year, month, day) * 86400 + hour * 3600 + minute * 60 + second
end

--- Seconds since 1970 of a text like 2026-11-26T06:00:00Z, which may lack its end: the seconds, the
-- time of the day. UTC, unless it ends in an offset like +02:00. nil when it is no such text, or
-- there is no such moment.
---@param text string
---@return number|nil
function units.instant_of(text)
  local year, month, day, rest = text:match "^(%d%d%d%d)-(%d%d)-(%d%d)(.*)$"
  if rest == "" then rest = "T00:00" end
  local time, sign, ahead, more = (rest or ""):match "^(.-)([+-])(%d%d):(%d%d)$"
  local hour, minute, tail = (time or rest or ""):match "^[T ](%d%d):(%d%d)(.-)Z?$"
  local second = tail == "" and 0 or tonumber(tail and tail:match "^:(%d%d%.?%d*)$")
  if not second or time and rest:find "Z" then return nil end
  year, month, day, hour, minute, ahead, more = numbers(year, month, day, hour, minute, ahead or 0, more or 0)
  if month < 1 or month > 12 or day < 1 or day > length(year, month) then return nil end
  if hour > 23 or minute > 59 or second >= 61 or ahead > 23 or more > 59 then return nil end
  local offset = (ahead * 60 + more) * (sign == "-" and -60 or 60)
  return days(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - offset
end

local YEAR = 31556952 -- seconds, on average

--- Of two digits: the year in this century, or a hundred years before it when
-- that is more than 50 years ahead.
local function century(digits, month, now)
  local this = 1970 + now // YEAR
  local year = this - this % 100 + math.tointeger(tonumber(digits))
  local first = MONTHS[month] and epoch(year, month, 1, 0, 0, 0)
  return first and first > now + 50 * YEAR and year - 100 or year
end

local function imf(text)
  local name, day, month, year, h, m, s = text:match "^(%a%a%a), (%d%d) (%a%a%a) (%d%d%d%d) (%d%d):(%d%d):(%d%d) GMT$"
  return DAYS[name] and epoch(year, month, day, h, m, s)
end

local function rfc850(text, now)
  local name, day, month, year, h, m, s = text:match "^(%a+), (%d%d)%-(%a%a%a)%-(%d%d) (%d%d):(%d%d):(%d%d) GMT$"
  if not name or DAYS[name:sub(1, 3)] ~= name then return nil end
  return epoch(century(year, month, now), month, day, h, m, s)
end

local function asctime(text)
  local name, month, day, h, m, s, year =
    text:match "^(%a%a%a) (%a%a%a) ([ %d]%d) (%d%d):(%d%d):(%d%d) (%d%d%d%d)$"
  return DAYS[name] and epoch(year, month, day, h, m, s)
end

local function trimmed(text) return text:match "^%s*(.-)%s*$" end

--- The moment a date names, in seconds since 1970; nil when it is no date.
---@param text string
---@param now integer? seconds since 1970, for years of two digits; default: this machine's clock
---@return integer|nil
function units.http_date(text, now)
  text = trimmed(text)
  return imf(text) or rfc850(text, now or os.time()) or asctime(text) or nil
end

--- How long a Retry-After asks to wait, in seconds; negative when the moment is
-- over; nil when it is neither a number nor a date.
---@param text string
---@param date string? the Date of the same response: clocks differ. Without a
-- usable one this machine's clock counts
---@return number|nil
function units.retry_after(text, date)
  text = trimmed(text)
  if text:find "^[+-]?%d+$" or text:find "^[+-]?%d+%.%d+$" then return tonumber(text) end
  local now = date and units.http_date(date) or os.time()
  local at = units.http_date(text, now)
  return at and at - now
end

return units
