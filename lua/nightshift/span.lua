--- A span of time as people read it.

local decimal = require "nightshift.decimal"

local UNITS = { { 86400, "d" }, { 3600, "h" }, { 60, "m" } }

--- Seconds with their two largest units: "3d4h", "2m5s", "0.4s"; "-" when absent.
---@param seconds number?
---@return string
local function span(seconds)
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

return span
