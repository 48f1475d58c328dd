--- Flows: many jobs that wait for each other, pushed as one.
--
--     db:flow{ name = "report", children = {
--       { name = "fetch", payload = {1}, as = "first" },
--       { name = "fetch", payload = {2}, after = { "first" } },
--     } }
--
-- A node is a job that runs when its children have ended. With `after` a child names other
-- nodes that it waits for as well, by the names that they have in `as`. The graph is checked
-- before anything is written: unknown names, names that stand twice, and circles are refused.
-- Ids are taken first, so that all of it goes into one transaction.

local options = require "nightshift.options"

local raise = options.raise

local flow = {}

-- Keys of a node beside the options of a push.
local NODE = { name = true, payload = true, queue = true, children = true, as = true, after = true }

local function label_of(node) return node.as and ("'%s'"):format(node.as) or ("'%s'"):format(node.name) end

--- Where a node stands, in words; a root's number is its place among many.
local function place_of(parent, i)
  local numbers = {}
  while parent do
    table.insert(numbers, 1, ("child %d"):format(i))
    parent, i = parent.parent, parent.i
  end
  table.insert(numbers, 1, i and ("flow %d"):format(i) or "the flow")
  return table.concat(numbers, ", ")
end

local function check_list(list, key, parent, i)
  if list == nil then return end
  if type(list) ~= "table" then
    raise("flow: %s: '%s' must be a list, got %s", place_of(parent, i), key, type(list))
  end
  local hole = options.hole(list)
  if hole then
    raise("flow: %s: '%s' must be a list without holes; item %d is nil", place_of(parent, i), key, hole)
  end
end

local function check_node(node, parent, i)
  if type(node) ~= "table" then raise("flow: %s must be a table, got %s", place_of(parent, i), type(node)) end
  if type(node.name) ~= "string" then
    raise("flow: %s: the job's name must be a string, got %s", place_of(parent, i), type(node.name))
  end
  if node.as ~= nil and type(node.as) ~= "string" then
    raise("flow: %s: 'as' must be a string, got %s", place_of(parent, i), type(node.as))
  end
  if node.queue ~= nil and type(node.queue) ~= "string" then
    raise("flow: %s: 'queue' must be a string, got %s", place_of(parent, i), type(node.queue))
  end
  if parent and node.parent ~= nil then
    raise("flow: %s: its parent is the node above it; 'parent' is for the flow", place_of(parent, i))
  end
  check_list(node.children, "children", parent, i)
  check_list(node.after, "after", parent, i)
end

--- Raises for a table that stands below itself, with the way around, or twice.
local function refuse_again(node, parent)
  local labels = { label_of(node) }
  local up = parent
  while up and up.node ~= node do
    table.insert(labels, 1, label_of(up.node))
    up = up.parent
  end
  if up then
    raise("flow: nothing could ever start: %s waits for %s", label_of(up.node), table.concat(labels, " waits for "))
  end
  raise("flow: the node %s stands twice; say 'as' in one place, and 'after' in the other", label_of(node))
end

--- Checks a node and notes it. Most are leaves, and so are their items small: {node, parent, i,
-- id}. A node with children also has its list of waits, and the queue of children that name
-- none.
---@param tree table names: item by 'as', and by node; queue; after: items that have it, or nil
local function note(tree, node, parent, i)
  check_node(node, parent, i)
  local names = tree.names
  if names[node] then refuse_again(node, parent) end
  local item = { node = node, parent = parent, i = i, id = nil }
  names[node] = item
  if node.as then
    if names[node.as] then raise("flow: the name '%s' stands twice", node.as) end
    names[node.as] = item
  end
  if node.after then
    tree.after = tree.after or {}
    table.insert(tree.after, item)
  end
  if node.children then item.waits, item.queue = {}, tree.queue end
  return item
end

--- Notes the children of a level's items, in their order, as the level below.
local function descend(tree, level, below)
  for _, item in ipairs(level) do
    for k, child in ipairs(item.node.children or {}) do
      local noted = note(tree, child, item, k)
      item.waits[k], below[#below + 1] = noted, noted
    end
  end
end

--- Collects a node and all below it, level by level: a flow may be deeper than Lua's stack.
---@param levels table[][] lists of items, which earlier calls may have begun
local function collect(tree, levels, root, number)
  local first = note(tree, root, nil, number)
  local level, depth = { first }, 1
  while #level > 0 do
    local all, below = levels[depth] or {}, {}
    levels[depth] = table.move(level, 1, #level, #all + 1, all)
    descend(tree, level, below)
    level, depth = below, depth + 1
  end
  return first
end

--- Resolves the `after` of an item: nodes, and ids of other jobs. True: it names nodes.
local function resolve(item, names)
  local named = false
  for _, name in ipairs(item.node.after) do
    if math.type(name) == "integer" then
      item.others = item.others or {}
      table.insert(item.others, name)
    elseif type(name) == "string" and names[name] then
      item.waits = item.waits or {}
      table.insert(item.waits, names[name])
      named = true
    else
      raise("flow: %s is to run after '%s', and there is no node of that name", label_of(item.node), tostring(name))
    end
  end
  return named
end

local SHOWN = 20 -- nodes of a circle

--- Raises for nodes that wait for each other, with the way around.
local function refuse_circle(item, path)
  local labels, first = { label_of(item.node) }, #path
  while path[first] ~= item do first = first - 1 end
  for i = first + 1, math.min(#path, first + SHOWN) do labels[#labels + 1] = label_of(path[i].node) end
  if #path > first + SHOWN then labels[#labels + 1] = ("… (%d more)"):format(#path - first - SHOWN) end
  labels[#labels + 1] = label_of(item.node)
  raise("flow: nothing could ever start: %s", table.concat(labels, " waits for "))
end

--- Follows the waits of `first`, depth first. `path` has the items on the way to the present
-- one, `at` how many waits of each have been followed.
local function follow(first)
  local path, at = { first }, { 0 }
  first.seen = "now"
  while #path > 0 do
    local depth = #path
    local item, i = path[depth], at[depth] + 1
    local other = item.waits and item.waits[i]
    at[depth] = i
    if not other then
      item.seen, path[depth], at[depth] = "done", nil, nil
    elseif other.seen == "now" then
      refuse_circle(other, path)
    elseif not other.seen then
      other.seen, path[depth + 1], at[depth + 1] = "now", other, 0
    end
  end
end

--- The options among the keys of a node, nil when there are none.
local function settings(node)
  local given
  for key, value in next, node do
    if not NODE[key] then
      given = given or {}
      given[key] = value
    end
  end
  return given
end

--- Adds the waits of a node to its options.
local function with_after(item, given)
  local after = {}
  for i, other in ipairs(item.waits or {}) do after[i] = other.id end
  for _, id in ipairs(item.others or {}) do after[#after + 1] = id end
  if #after == 0 then return given end
  given = given or {}
  given.after = after
  return given
end

--- The entry of a node for the core's push. It is plain for a leaf without options: the core
-- itself checks all of that.
local function entry_of(item)
  local node, up, given = item.node, item.parent, settings(item.node)
  local queue = node.queue or item.queue or up and up.queue or "default"
  if item.waits or item.others then given = with_after(item, given) end
  if not given then return { node.name, node.payload, item.id, queue, up and up.id } end
  local entry, message, code = options.entry("flow: " .. label_of(node), node.name, node.payload, given, options.FLOW)
  if not entry then return nil, message, code end
  entry.id, entry.queue, entry.parent = item.id, queue, up and up.id or entry.parent
  return entry
end

--- The ids in the shape of the flow: {id =, children = {…}}. It goes a level at a time: `after`
-- has put other nodes behind the children of `waits`.
local function shape(first)
  local whole = { id = first.id }
  local level = { [first] = whole }
  while next(level) do
    local below = {}
    for item, ids in next, level do
      local children = item.node.children or {}
      if #children > 0 then ids.children = {} end
      for i = 1, #children do
        local its = { id = item.waits[i].id }
        ids.children[i], below[item.waits[i]] = its, its
      end
    end
    level = below
  end
  return whole
end

local IDS = 10000 -- that are taken at once

--- Takes so many ids, ascending.
local function take_ids(handle, n)
  local ids = {}
  while #ids < n do
    local some, message, code = handle:take_ids(math.min(n - #ids, IDS))
    if not some then return nil, message, code end
    table.move(some, 1, #some, #ids + 1, ids)
  end
  for i = 2, n do
    if ids[i] < ids[i - 1] then
      table.sort(ids)
      break
    end
  end
  return ids
end

--- Checks a flow and adds its nodes to `levels`; gives its root's item.
local function add(levels, root, number)
  local tree = { names = {}, queue = type(root) == "table" and root.queue or nil, after = nil }
  local first, named = collect(tree, levels, root, number), false
  for _, item in ipairs(tree.after or {}) do named = resolve(item, tree.names) or named end
  if named then follow(first) end -- a mere tree has no circle; all is below the root
  return first
end

--- Gives all nodes their ids, level by level, so that jobs that end together have ids in a row.
-- Pushes them in one transaction.
local function push(handle, levels)
  local n = 0
  for _, level in ipairs(levels) do n = n + #level end
  local ids, message, code = take_ids(handle, n)
  if not ids then return nil, message, code end
  local entries = {}
  n = 0
  for _, level in ipairs(levels) do
    for k, item in ipairs(level) do item.id = ids[n + k] end
    n = n + #level
  end
  n = 0
  for _, level in ipairs(levels) do
    for k, item in ipairs(level) do
      entries[n + k], message, code = entry_of(item)
      if not entries[n + k] then return nil, message, code end
    end
    n = n + #level
  end
  local holder
  ids, message, code, holder = handle:push("default", entries)
  if code == "GONE" then return nil, message, code end -- a flow cannot be repeated by its ids
  return ids, message, code, holder
end

--- Pushes a flow; gives the id of its root, and all ids in the shape of the flow.
---@param handle table the core's
---@param root table
---@return integer|nil id
---@return table|string|nil ids or the message
---@return string? code
---@return integer? holder with DUPLICATE: the live job that has the key
function flow.push(handle, root)
  local levels = {}
  local first = add(levels, root)
  local ids, message, code, holder = push(handle, levels)
  if not ids then return nil, message, code, holder end
  return first.id, shape(first)
end

--- Pushes many flows, all or none; gives the ids of their roots, and all ids.
---@param handle table the core's
---@param roots table[]
---@return integer[]|nil ids
---@return table[]|string|nil shapes or the message
---@return string? code
---@return integer? holder with DUPLICATE: the live job that has the key
function flow.push_many(handle, roots)
  if type(roots) ~= "table" then raise("flow_many wants a list of flows, got %s", type(roots)) end
  local hole = options.hole(roots)
  if hole then raise("flow_many wants a list without holes; item %d is nil", hole) end
  local levels, firsts, shapes = {}, {}, {}
  for i, root in ipairs(roots) do firsts[i] = add(levels, root, i) end
  if #firsts == 0 then return {}, {} end
  local ids, message, code, holder = push(handle, levels)
  if not ids then return nil, message, code, holder end
  ids = {}
  for i, first in ipairs(firsts) do ids[i], shapes[i] = first.id, shape(first) end
  return ids, shapes
end

return flow
