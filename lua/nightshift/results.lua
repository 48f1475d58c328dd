--- What became of a job's children: `job.results`.
--
-- Looks like a list, in the order in which they were spawned, and reads a page
-- at a time from the database, so a job with 10,000 children needs no memory for
-- them. What is read is not read again while the page is the same.

local core = require "nightshift.core"

local PAGE = 500

local results = {}

--- One child: outcome is "done", "dead" or "cancelled"; nil while it lives.
---@class nightshift.Result
---@field id integer
---@field name string
---@field outcome string?
---@field result any
---@field reason string?
---@field error string?

local function child(row)
  local value = row.result and core.decode(row.result)
  if value == core.null then value = nil end
  return { id = row.id, name = row.name, outcome = row.outcome, result = value, reason = row.reason,
    error = row.error }
end

local function read(pages, first)
  local size = pages.size
  local rows, message = pages.ask("edge_results", pages.parent, size, first)
  if not rows then error("job.results: " .. message, 0) end
  pages.first, pages.rows = first, rows
  -- Cut short: the database is not to look at many large results for a few.
  pages.size = math.min(PAGE, math.max(2 * #rows, 8))
end

local function has(pages, i)
  return pages.rows and i > pages.first and i <= pages.first + #pages.rows
end

--- Reads a page with item i; raises with the database's words. One of large
-- results is shorter: then the next begins behind it.
local function turn_to(pages, i)
  if has(pages, i) then return end
  local follows = pages.rows and i == pages.first + #pages.rows + 1
  read(pages, follows and i - 1 or (i - 1) // PAGE * PAGE)
  if not has(pages, i) and pages.first < i - 1 then read(pages, i - 1) end
end

local function count(pages)
  if not pages.n then
    local rows, message = pages.ask("edge_count", pages.parent)
    if not rows then error("job.results: " .. message, 0) end
    pages.n = rows[1].n
  end
  return pages.n
end

--- @param parent integer the job's id
---@param ask fun(statement: string, ...): table?, string? runs a statement
---@return nightshift.Result[]
function results.of(parent, ask)
  local pages = { parent = parent, ask = ask, size = PAGE }
  return setmetatable({}, {
    __len = function() return count(pages) end,
    __index = function(_, i)
      if math.type(i) ~= "integer" or i < 1 then return nil end
      turn_to(pages, i)
      local row = pages.rows[i - pages.first]
      return row and child(row)
    end,
    __pairs = function(list) return ipairs(list) end,
    __newindex = function() error("job.results cannot be changed", 2) end,
    __name = "nightshift.results",
  })
end

return results
