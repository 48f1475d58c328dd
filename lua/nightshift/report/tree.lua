--- A job and all jobs below it, read for a drawing. Of each job the first children are read, and
-- the rest are counted by state.
--
-- Invariant: a reading is bounded by its levels and, where that is asked for, by its jobs. A job
-- with `inner` has children that were not read.

local jobs = require "nightshift.report.jobs"

local tree = {}

local DEPTH <const> = 64 -- levels that are read, unless told

--- A job of a tree.
---@class nightshift.Node
---@field id integer
---@field name string? nil: it is gone
---@field state string
---@field paused integer?
---@field progress number?
---@field status string?
---@field reason string?
---@field error string? its first 300 characters
---@field run integer? of a live one
---@field attempts integer? of a live one
---@field max_attempts integer?
---@field inner true? it has children that were not read
---@field children nightshift.Node[]?
---@field more table<string, integer>|true|nil how many children more there are, by state; true: there are more
---@field estimated true? those numbers are of a sample

local function node_of(row)
  return {
    id = row.id, name = row.name, state = row.state, paused = row.paused, progress = row.progress,
    status = row.status, reason = row.reason, error = row.error, inner = row.inner_node ~= nil or nil,
    attempts = row.attempts, max_attempts = row.max_attempts, run = row.run,
  }
end

--- Adds the jobs below a node.
local function add_below(node, list)
  for _, child in ipairs(node.children or {}) do
    list[#list + 1] = child
    add_below(child, list)
  end
  return list
end

--- Gives the claimed jobs below a node their state.
local function mark_claimed(handle, top)
  local ok, message, code = jobs.mark_claimed(handle, add_below(top, {}))
  if not ok then return nil, message, code end
  return top
end

local STATES <const> = { "done", "dead", "cancelled", "running", "waiting", "scheduled", "ready" }
local EXACT <const> = 10000 -- children that are looked at one by one
local SAMPLE <const> = 2500 -- of more
local MOST <const> = 100000 -- and of no more

--- A number that divides the ids of about SAMPLE of so many children. Ids come in blocks of 100.
local function divisor_of(n)
  local k = n // SAMPLE | 1
  while k % 3 == 0 or k % 5 == 0 or k % 7 == 0 do k = k + 2 end
  return k
end

--- How many children a job has, by state, and `total`. Of more than EXACT the total is exact, and the
-- states are those of a sample: `estimated`. A total of MOST may be larger: `more`.
---@param handle userdata core handle
---@param id integer
---@return nightshift.Children|nil
---@return string? message
---@return string? code
function tree.children(handle, id)
  local rows, message, code = handle:execute("@report_why_children_count", id, MOST + 1)
  if not rows then return nil, message, code end
  local total = math.min(rows[1].n, MOST)
  local counts = { total = total, more = rows[1].n > MOST or nil }
  for _, state in ipairs(STATES) do counts[state] = 0 end
  if total == 0 then return counts end
  local divisor = total > EXACT and divisor_of(total) or 1
  rows, message, code = handle:execute("@report_tree_children", id, divisor, EXACT)
  if not rows then return nil, message, code end
  local seen = 0
  for _, row in ipairs(rows) do seen = seen + row.n end
  for _, row in ipairs(rows) do
    counts[row.state] = total > EXACT and (row.n * total + seen // 2) // seen or row.n
  end
  counts.estimated = total > EXACT or nil
  return counts
end

--- The counts without these children; nil: there are no more.
local function rest_of(counts, shown)
  local rest, left = {}, false
  for _, row in ipairs(shown) do
    if counts[row.state] then counts[row.state] = math.max(0, counts[row.state] - 1) end
  end
  for state, n in pairs(counts) do
    if type(n) == "number" and n > 0 and state ~= "total" then rest[state], left = n, true end
  end
  return left and rest or nil
end

local function add_children(handle, node, limits, depth)
  node.inner = nil
  local limit = math.min(limits.children, limits.jobs)
  local rows, message, code = handle:execute("@report_tree_rows", node.id, limits.counted and limit or limit + 1)
  if not rows then return nil, message, code end
  if #rows > limit then node.more, rows[#rows] = true, nil end
  limits.jobs = limits.jobs - #rows
  local children = {}
  for i, row in ipairs(rows) do children[i] = node_of(row) end
  if limits.counted then
    local ok
    ok, message, code = mark_claimed(handle, { children = children })
    if not ok then return nil, message, code end
  end
  for _, child in ipairs(children) do
    if child.inner and depth < limits.depth and limits.jobs > 0 then
      local ok
      ok, message, code = add_children(handle, child, limits, depth + 1)
      if not ok then return nil, message, code end
    end
  end
  node.children = children
  if #rows < limit or not limits.counted then return true end
  local counts
  counts, message, code = tree.children(handle, node.id)
  if not counts then return nil, message, code end
  if counts.total > #rows then node.more, node.estimated = rest_of(counts, children), counts.estimated end
  return true
end

--- Reads a job, without the jobs below it.
---@param handle userdata core handle
---@param id integer
---@return nightshift.Node|nil
---@return string? message
---@return string? code
function tree.job(handle, id)
  local rows, message, code = handle:execute("@report_tree_job", id)
  if not rows then return nil, message, code end
  if rows[1] then return node_of(rows[1]) end
  return nil, ("there is no job %d, live or in the history"):format(id), "NOT_FOUND"
end

--- The parents of a job, from the root on: at most so many, the nearest ones. One that is not in the
-- history any more has the state "gone".
---@param handle userdata core handle
---@param parent integer? of that job
---@param limit integer
---@return nightshift.Node[]|nil
---@return boolean|string more are there more above these? Or the message
---@return string? code
function tree.parents(handle, parent, limit)
  local list = {}
  while parent and #list < limit do
    local node, message, code = tree.job(handle, parent)
    if not node and code ~= "NOT_FOUND" then return nil, message, code end
    table.insert(list, 1, node or { id = parent, state = "gone" })
    local rows
    rows, message, code = handle:execute("@report_tree_up", parent, parent)
    if not rows then return nil, message, code end
    parent = rows[1] and rows[1].parent
  end
  return list, parent ~= nil
end

--- Reads a job and the jobs below it.
---@param handle userdata core handle
---@param id integer
---@param limits {children: integer, depth: integer?, jobs: integer?} children of one job, levels, jobs in all. With
---`jobs` children that are not read are not counted either
---@return nightshift.Node|nil
---@return string? message
---@return string? code
function tree.read(handle, id, limits)
  local top, message, code = tree.job(handle, id)
  if not top or not top.inner then return top, message, code end
  local left = { children = limits.children, depth = limits.depth or DEPTH, jobs = limits.jobs or math.maxinteger,
    counted = not limits.jobs }
  local ok
  ok, message, code = add_children(handle, top, left, 1)
  if not ok then return nil, message, code end
  if left.counted then return top end
  return mark_claimed(handle, top)
end

return tree
