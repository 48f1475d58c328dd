--- A job and all below it, for people: nodes with the first children of each.

local tree = {}

-- Levels that are read; whatever is deeper is only said to be there.
local DEPTH = 64

local function node_of(row)
  return {
    id = row.id, name = row.name, state = row.state, paused = row.paused, progress = row.progress,
    status = row.status, reason = row.reason, error = row.error, inner = row.inner_node ~= nil or nil,
  }
end

--- How many children come after the first ones, which were read, by state.
local function count_rest(handle, id, first)
  local rows, message, code = handle:execute("@report_tree_rest", id, first)
  if not rows then return nil, message, code end
  local counts
  for _, row in ipairs(rows) do
    counts = counts or {}
    counts[row.state] = row.n
  end
  return counts or false
end

local function add_children(handle, node, limit, depth)
  node.inner = nil
  local rows, message, code = handle:execute("@report_tree_rows", node.id, limit)
  if not rows then return nil, message, code end
  local children = {}
  for i, row in ipairs(rows) do
    children[i] = node_of(row)
    if children[i].inner and depth < DEPTH then
      local ok
      ok, message, code = add_children(handle, children[i], limit, depth + 1)
      if not ok then return nil, message, code end
    end
  end
  node.children = children
  if #rows < limit then return true end
  local rest
  rest, message, code = count_rest(handle, node.id, #rows)
  if rest == nil then return nil, message, code end
  node.more = rest or nil
  return true
end

--- Reads a tree: {id, name, state, paused, progress, status, reason, error,
-- children = {…}, more = {done = 9980, …} of those that are left out}.
---@param handle userdata core handle
---@param id integer
---@param limit integer children of one job
---@return table|nil
---@return string? message
---@return string? code
function tree.read(handle, id, limit)
  local rows, message, code = handle:execute("@report_tree_job", id)
  if not rows then return nil, message, code end
  if not rows[1] then
    return nil, ("there is no job %d, live or in the history"):format(id), "NOT_FOUND"
  end
  local top = node_of(rows[1])
  if not top.inner then return top end
  local ok
  ok, message, code = add_children(handle, top, limit, 1)
  if not ok then return nil, message, code end
  return top
end

return tree
