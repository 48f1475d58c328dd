--- Fuzzes the JSON bridge: texts, and values.
--
-- A text that decodes encodes again (unless it is nested deeper than we store),
-- and comes back the same. A value that encodes decodes to the same, where nil
-- is null and an unmarked empty table is an object. Nothing raises.

local core = require "nightshift.core"
local values = require "spec.fuzz.values"

local function check(good, ...)
  if not good then error(("%s"):rep(select("#", ...)):format(...), 2) end
end

local same

local function same_table(a, b)
  for key, value in next, a do
    if not same(value, rawget(b, key)) then return false end
  end
  for key in next, b do
    if rawget(a, key) == nil then return false end
  end
  return true
end

function same(a, b)
  if math.type(a) ~= math.type(b) or type(a) ~= type(b) then return false end
  if type(a) == "number" then return a == b end
  return a == b or (type(a) == "table" and same_table(a, b))
end

local function refused(message, code)
  check(type(message) == "string" and (code == "INVALID" or code == "TOO_BIG"), "refused with ", message, " ", code)
  check(utf8.len(message) and not message:find "%c", "a bad message: ", message)
end

-- Encodes and decodes; the text, or nil when it was refused.
local function trip(value, max)
  local text, message, code = core.encode(value, max)
  if not text then return refused(message, code) end
  check(#text <= (max or math.huge), "longer than asked for")
  check(utf8.len(text), "not UTF-8: ", text)
  local back, why = core.decode(text)
  check(back ~= nil, "encoded, but does not decode: ", why)
  if value == nil then value = core.null end
  check(same(value, back), "came back different: ", text)
  return text
end

local function decode(text)
  local value, message, code = core.decode(text)
  if value == nil then return refused(message, code) end
  local again, why = core.encode(value)
  check(again or why:find "nested deeper" or why:find "NUL byte", "decoded, but does not encode: ", why)
  if again then trip(value) end
end

return function(data)
  local kind = data:byte() or 0
  if kind < 128 then return decode(data:sub(2)) end
  local reader = values.reader(data:sub(2))
  trip(reader:value(), kind < 160 and kind or nil)
end
