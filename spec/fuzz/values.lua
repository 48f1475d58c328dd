--- Lua values from the bytes of a fuzzed input. The same bytes always give the
-- same values; where the bytes end, everything is nil, empty or zero.

local core = require "nightshift.core"

local values = {}
local Reader = {}
Reader.__index = Reader

local DEPTH = 40 -- deeper than JSON may nest

--- A reader of the bytes of `data`.
function values.reader(data) return setmetatable({ data = data, at = 1 }, Reader) end

function Reader:byte()
  local b = self.data:byte(self.at) or 0
  self.at = self.at + 1
  return b
end

function Reader:over() return self.at > #self.data end

--- One of a list.
function Reader:pick(list) return list[self:byte() % #list + 1] end

function Reader:bytes(n)
  local s = self.data:sub(self.at, self.at + n - 1)
  self.at = self.at + n
  return s
end

function Reader:text()
  local n = self:byte()
  return n == 255 and ("x"):rep(self:byte() << 3) or self:bytes(n % 32)
end

-- Eight bytes as a number of the given format.
function Reader:number(format)
  local s = self:bytes(8)
  return (string.unpack(format, s .. ("\0"):rep(8 - #s)))
end

local TEXTS = { "5m", "1h30m", "0", "-1", "1e999", "", "nan", "12", "500ms", "mail", "a\0b", "\xC2\x80", "é", "\xFF",
  "@server_now", "mysql://u:p@h/d", "mysql://h/d?max_payload=9", "ack", "again", "release" }
local NUMBERS = { 0, 1, -1, 0.5, 1 / 0, -1 / 0, 0 / 0, math.maxinteger, math.mininteger, 2 ^ 53, 2 ^ 63, -0.0, 255, 256,
  5e-324, 1.7e308, 0.1, 65536 }
-- Of what a table's keys are made, beside those that the caller names.
local KEYS = { 1, 2, 3, 0, -1, 1.5, true, "", "a", "b", "a\0b", "\xFF", "key with space" }

local make = {}

make[0] = function() return nil end
make[1] = function() return true end
make[2] = function() return false end
make[3] = function(r) return r:byte() end
make[4] = function(r) return r:number "<i8" end
make[5] = function(r) return r:number "<d" end
make[6] = function(r) return r:text() end
make[7] = function(r) return r:pick(TEXTS) end
make[8] = function(r) return r:pick(NUMBERS) end
make[9] = function() return core.null end
make[10] = function(r, depth, keys) return r:list(depth, keys) end
make[11] = function(r, depth, keys) return r:table(depth, keys) end
make[12] = function(r, depth, keys) return core.array(r:list(depth, keys)) end
make[13] = function() return print end
make[14] = function(r) return r.made[r:byte() % (#r.made + 1)] end -- again one of those above or around
make[15] = function(r) -- nested straight down
  local value = r:byte()
  for _ = 1, r:byte() % DEPTH do value = { value } end
  return value
end

--- Any value.
function Reader:value(depth, keys)
  depth = depth or 0
  if depth == 0 then self.made = {} end
  if depth > DEPTH or self:over() then return nil end
  return make[self:byte() % 16](self, depth, keys)
end

function Reader:list(depth, keys)
  local list = {}
  self.made[#self.made + 1] = list
  for i = 1, self:byte() % 8 do list[i] = self:value(depth + 1, keys) end
  return list
end

--- A table with keys that are mostly the given ones.
function Reader:table(depth, keys)
  local t = {}
  if depth == 0 then self.made = {} end
  self.made[#self.made + 1] = t
  for _ = 1, self:byte() % 8 do
    local key = self:pick(keys and self:byte() % 8 > 0 and keys or KEYS)
    t[key] = self:value(depth + 1)
  end
  return t
end

return values
