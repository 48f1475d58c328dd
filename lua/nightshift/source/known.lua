--- The adopted tables of a database: their mappings, their settings, and the debts to their
-- rows.

local core = require "nightshift.core"
local failure = require "nightshift.source.failure"
local options = require "nightshift.options"
local units = require "nightshift.units"

local caught, must = failure.caught, failure.must

local known = {}

local SLOWEST = 1 / 3155760000 -- rows a second: one in a century

local function rate(value, what)
  if type(value) ~= "number" then options.raise("%s must be a number, got %s", what, type(value)) end
  if value == 0 or value >= SLOWEST and value <= 1000000 then return value + 0.0 end
  return nil, ("%s must be 0, or from one row in 100 years to 1000000 a second, got %s"):format(what,
    units.number(value))
end

known.TUNE = { rate = rate }

--- The tables: `table`, `mapping`, `paused`, `rate`, `served`, `unserved`, `owed`, `refused`,
-- `why`. served: a host takes in its rows; unserved: seconds since one did. owed: rows with
-- debts; refused: the ones of them that the server has refused to change, and `why`, its words.
---@param handle userdata core handle
---@return table[]|nil
---@return string? message
---@return string? code
function known.list(handle)
  local rows, message, code = handle:execute "@source_list"
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do
    row.mapping, row.paused, row.served = core.decode(row.mapping), row.paused ~= 0, row.served ~= 0
    row.unserved = not row.served and row.unserved and row.unserved / 1000000 or nil
  end
  return rows
end

--- The reasons why rows of a table do not tell of their jobs, for people.
---@param row table one of `list`
---@return string[]
function known.troubles(row)
  local list, unpaid = {}, row.owed - row.refused
  if unpaid > 0 and not row.served then
    list[1] = ("rows of %s that do not say what became of their jobs: %d; %s"):format(row.table, unpaid, row.unserved
      and ("nobody has served it for %s s"):format(units.fixed(row.unserved, 0)) or "nobody has served it yet")
  end
  if row.refused > 0 then
    list[#list + 1] = ("rows of %s that the server refuses to change: %d: %s"):format(row.table, row.refused,
      options.shown(row.why, 200))
  end
  return list
end

local function find(handle, name)
  local row = must(handle:execute("@source_find", name))[1]
  if row then return row end
  failure.fail("NOT_FOUND", "nobody has adopted a table '%s' yet", name)
end

--- Changes the settings of a known table: handle, name, and `given`, checked as TUNE.
---@type fun(handle: userdata, name: string, given: {rate: number?}): true|nil, string?, string?
known.tune = caught(function(handle, name, given)
  local row = find(handle, name)
  if given.rate then must(handle:execute("@source_tune", given.rate > 0 and given.rate or core.null, row.id)) end
  return true
end)

--- A table that is known, as it was adopted last.
---@type fun(db: nightshift.Db, name: string): nightshift.source.Table|nil, string?, string?
known.open = caught(function(db, name)
  return (must(require "nightshift.source.table".new(db, core.decode(find(db._handle, name).mapping))))
end)

--- The rows of a table by state, as it was adopted last; or nil and why not.
local function count(db, map)
  local ran, t, message = pcall(require "nightshift.source.table".new, db, map)
  if ran and t then return t:stats() end
  return nil, ran and message or tostring(t)
end

--- Adopted tables for people: the rows of `list`, with `counts`, or `error`, the reason why
-- there are none.
---@type fun(db: nightshift.Db): table[]|nil, string?, string?
known.status = caught(function(db)
  local tables = must(known.list(db._handle))
  for _, row in ipairs(tables) do row.counts, row.error = count(db, row.mapping) end
  return tables
end)

return known
