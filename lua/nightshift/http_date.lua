--- Dates of HTTP, and its Retry-After.
--
-- Pure: texts in, seconds out. A date has one of the three forms of RFC 9110,
-- section 5.6.7, and is GMT whatever the machine's time zone is. What is none
-- of them is nil, never an error: it comes from other people's servers.

local http_date = {}

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
function http_date.parse(text, now)
  text = trimmed(text)
  return imf(text) or rfc850(text, now or os.time()) or asctime(text) or nil
end

--- How long a Retry-After asks to wait, in seconds; negative when the moment is
-- over; nil when it is neither a number nor a date.
---@param text string
---@param date string? the Date of the same response: clocks differ. Without a
-- usable one this machine's clock counts
---@return number|nil
function http_date.delay(text, date)
  text = trimmed(text)
  if text:find "^[+-]?%d+$" or text:find "^[+-]?%d+%.%d+$" then return tonumber(text) end
  local now = date and http_date.parse(date) or os.time()
  local at = http_date.parse(text, now)
  return at and at - now
end

return http_date
