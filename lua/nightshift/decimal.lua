--- Numbers with fractions, and spans of time, as text for people: with a point, whatever
-- decimal sign the program's locale has.

local core = require "nightshift.core"

local decimal = {}

local UNITS = { { 86400, "d" }, { 3600, "h" }, { 60, "m" } }

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

--- Seconds with their two largest units: "3d4h", "2m5s", "0.4s"; "-" when absent.
---@param seconds number?
---@return string
function decimal.span(seconds)
  if not seconds then return "-" end
  if seconds < 10 then return decimal.fixed(math.max(0, seconds), 1) .. "s" end
  local rest = math.floor(seconds)
  for i, unit in ipairs(UNITS) do
    if rest >= unit[1] then
      local small = UNITS[i + 1] or { 1, "s" }
      return ("%d%s%d%s"):format(rest // unit[1], unit[2], rest % unit[1] // small[1], small[2])
    end
  end
  return rest .. "s"
end

return decimal
