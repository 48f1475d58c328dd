--- A job and all jobs below it, read for a drawing. Of each job the first children are read, and
-- the rest are counted by state.
--
-- Invariant: a reading is bounded by its levels and, where that is asked for, by its jobs. A job
-- with `inner` has children that were not read.

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

local function node_of(row)
  return {
    id = row.id, name = row.name, state = row.state, paused = row.paused, progress = row.progress,
    status = row.status, reason = row.reason, error = row.error, inner = row.inner_node ~= nil or nil,
    attempts = row.attempts, max_attempts = row.max_attempts, run = row.run,
  }
end

--- Adds the jobs below a node that may be claimed, by id.
local function add_claimable(node, list, by_id)
  for _, child in ipairs(node.children or {}) do
    if child.run and (child.state == "ready" or child.paused) then
      list[#list + 1], by_id[child.id] = ("[%d,%d]"):format(child.id, child.run), child
    end
    add_claimable(child, list, by_id)
  end
end

--- Gives the claimed jobs below a node their state.
local function mark_claimed(handle, top)
  local list, by_id = {}, {}
  add_claimable(top, list, by_id)
  if #list == 0 then return top end
  local claimed, message, code = handle:execute("@report_jobs_claimed", "[" .. table.concat(list, ",") .. "]")
  if not claimed then return nil, message, code end
  for _, claim in ipairs(claimed) do
    local node = by_id[claim.id]
    node.state = "running"
  end
  return top
end

--- How many children come after the first ones, by state.
---@param handle userdata core handle
---@param id integer
---@param first integer
---@return table<string, integer>|false|nil counts false: there are none
---@return string? message
---@return string? code
function tree.rest(handle, id, first)
  local rows, message, code = handle:execute("@report_tree_rest", id, first)
  if not rows then return nil, message, code end
  local counts
  for _, row in ipairs(rows) do
    counts = counts or {}
    counts[row.state] = row.n
  end
  return counts or false
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
  for _, child in ipairs(children) do
    if child.inner and depth < limits.depth and limits.jobs > 0 then
      local ok
      ok, message, code = add_children(handle, child, limits, depth + 1)
      if not ok then return nil, message, code end
    end
  end
  node.children = children
  if #rows < limit or not limits.counted then return true end
  local rest
  rest, message, code = tree.rest(handle, node.id, #rows)
  if rest == nil then return nil, message, code end
  node.more = rest or nil
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
  return mark_claimed(handle, top)
end

return tree
