--- Numbers with fractions as text for people: with a point, whatever decimal sign the
-- program's locale has.

local core = require "nightshift.core"

local decimal = {}

--- The fewest digits that say the number: 2 → "2", 0.25 → "0.25".
---@param value number
---@return string
function decimal.text(value)
  local text = core.encode(value) or tostring(value) -- JSON knows no infinities
  return (text:gsub("%.0$", ""))
end

--- So many digits behind the point.
---@param value number 0 or more
---@param digits integer 1 or more
---@return string
function decimal.fixed(value, digits)
  local scale = math.tointeger(10 ^ digits)
  local units = math.floor(value * scale + 0.5)
  return ("%d.%0" .. digits .. "d"):format(units // scale, units % scale)
end

return decimal
