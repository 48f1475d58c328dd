--- The outcomes of the jobs that a job has waited for: `job.results`.
--
-- It looks like a list: its children in the order in which they were spawned. Behind them come
-- the jobs of its `after`, in their order. It reads a page at a time from the database, so a
-- job with 10,000 children needs no memory for them. Rows are not read again while the page is
-- the same. A job without `after` asks nothing about that. And the ends of jobs that a program
-- waits for.

local core = require "nightshift.core"
local units = require "nightshift.units"

local PAGE = 500

local results = {}

--- One outcome: "done", "dead" or "cancelled"; nil while the job lives; "gone" for a job of
-- `after` that the history does not have any more.
---@class nightshift.Result
---@field id integer
---@field name string?
---@field outcome string?
---@field result any
---@field reason string?
---@field error string?
---@field after true? it is none of its children

local function entry(row, after)
  local value = row.result and core.decode(row.result)
  if value == core.null then value = nil end
  return { id = row.id, name = row.name, outcome = row.outcome, result = value, reason = row.reason,
    error = row.error, after = after }
end

local function ask(pages, statement, ...)
  local rows, message = pages.ask(statement, ...)
  if not rows then error("job.results: " .. message, 0) end
  return rows
end

-- Children and jobs of `after`: how to count them, and how to read some of them.
local CHILDREN = {
  count = function(pages) return ask(pages, "edge_count", pages.parent)[1].n end,
  read = function(pages, first) return ask(pages, "edge_results", pages.parent, pages.size, first) end,
}
local FOLLOWED = {
  count = function(pages) return #pages.ids end,
  read = function(pages, first)
    local ids = table.move(pages.ids, first + 1, math.min(first + pages.size, #pages.ids), 1, {})
    return #ids > 0 and ask(pages, "edge_followed", core.encode(core.array(ids))) or {}
  end,
}

local function read(pages, first)
  local rows = pages.kind.read(pages, first)
  pages.first, pages.rows = first, rows
  -- Cut short: the database is not to look at many large results for a few.
  pages.size = math.min(PAGE, math.max(2 * #rows, 8))
end

local function has(pages, i)
  return pages.rows and i > pages.first and i <= pages.first + #pages.rows
end

--- The row of item i; raises with the database's words. A page of large results is
-- shorter: then the next begins behind it.
local function row_of(pages, i)
  if not has(pages, i) then
    local follows = pages.rows and i == pages.first + #pages.rows + 1
    read(pages, follows and i - 1 or (i - 1) // PAGE * PAGE)
    if not has(pages, i) and pages.first < i - 1 then read(pages, i - 1) end
  end
  return pages.rows[i - pages.first]
end

local function count(pages)
  pages.n = pages.n or pages.kind.count(pages)
  return pages.n
end

local function item(children, followed, i)
  local n = #followed.ids > 0 and count(children) or math.maxinteger
  if i > n then
    local row = row_of(followed, i - n)
    return row and entry(row, true)
  end
  local row = row_of(children, i)
  return row and entry(row)
end

--- Ids of the jobs that a job was pushed to wait for, apart from parent and children, as a
-- statement gives them.
---@param rows table[]
---@return integer[]
function results.ids(rows)
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row.id end
  return ids
end

---@param parent integer the job's id
---@param after integer[] jobs that it was pushed to wait for
---@param asks fun(statement: string, ...): table?, string? runs a statement
---@return nightshift.Result[]
function results.of(parent, after, asks)
  local children = { kind = CHILDREN, parent = parent, ask = asks, size = PAGE }
  local followed = { kind = FOLLOWED, ids = after, ask = asks, size = PAGE }
  return setmetatable({}, {
    __len = function() return count(children) + count(followed) end,
    __index = function(_, i)
      if math.type(i) ~= "integer" or i < 1 then return nil end
      return item(children, followed, i)
    end,
    __pairs = function(list) return ipairs(list) end,
    __newindex = function() error("job.results cannot be changed", 2) end,
    __name = "nightshift.results",
    children = children,
  })
end

-- ------------------------------------------------------------ ends that are waited for

local function encoded(ids) return core.encode(core.array(ids)) end

--- The outcomes of these jobs, by id; the server cuts a long answer short.
local function outcomes(handle, ids)
  local found, first = {}, 1
  while first <= #ids do
    local rows, message, code = handle:execute("@edge_followed", encoded(table.move(ids, first,
      math.min(#ids, first + PAGE - 1), 1, {})))
    if not rows then return nil, message, code end
    for _, row in ipairs(rows) do found[row.id] = entry(row) end
    first = first + #rows
  end
  return found
end

local function still_live(ids, found)
  local live = {}
  for _, id in ipairs(ids) do
    if not found[id].outcome then live[#live + 1] = id end
  end
  return live
end

local function too_late(ids, live, us)
  local seconds = units.number(us / 1000000)
  if #ids == 1 then return nil, ("job %d has not ended within %s s"):format(ids[1], seconds), "BUSY" end
  return nil, ("%d of %d jobs have not ended within %s s, job %d among them"):format(#live, #ids, seconds, live[1]),
    "BUSY"
end

--- Waits for the ends of jobs. "gone": it was deleted meanwhile, or left no history.
---@param handle userdata core handle, in no transaction
---@param ids integer[]
---@param us integer how long, at most
---@return nightshift.Result[]|nil ends in the order of the ids
---@return string? message
---@return string? code NOT_FOUND, BUSY
function results.wait(handle, ids, us)
  local stop = core.clock() + us / 1000000
  local found, message, code = outcomes(handle, ids)
  if not found then return nil, message, code end
  for _, id in ipairs(ids) do
    if found[id].outcome == "gone" then
      return nil, ("there is no job %d, live or in the history"):format(id), "NOT_FOUND"
    end
  end
  local live = still_live(ids, found)
  while #live > 0 do
    local rest = math.floor((stop - core.clock()) * 1000000)
    if rest <= 0 then return too_late(ids, live, us) end
    local left, more
    left, message, code = handle:wait(encoded(live), rest)
    if not left then return nil, message, code end
    more, message, code = outcomes(handle, live)
    if not more then return nil, message, code end
    for id, row in pairs(more) do found[id] = row end
    live = still_live(live, found)
  end
  local list = {}
  for i, id in ipairs(ids) do list[i] = found[id] end
  return list
end

--- How many of them are children.
function results.children(list)
  return count(getmetatable(list).children)
end

return results
