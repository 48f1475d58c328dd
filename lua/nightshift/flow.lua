--- Flows: many jobs that wait for each other, pushed as one.
--
--     db:flow{ name = "report", children = {
--       { name = "fetch", payload = {1}, as = "first" },
--       { name = "fetch", payload = {2}, after = { "first" } },
--     } }
--
-- A node is a job that runs when its children have ended; a child may say
-- `after` which other nodes, by the names they are given with `as`, it waits for
-- as well. The graph is checked before anything is written: unknown names, names
-- that stand twice, and circles are refused. Ids are taken first, so that all of
-- it goes into one transaction.

local core = require "nightshift.core"
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

--- All nodes, a parent before its children: {node, parent, i, level, waits = {…}}.
-- Most are leaves, without options: what they do not need is not made.
local function collect(node, parent, i, list, names)
  check_node(node, parent, i)
  if names[node] then refuse_again(node, parent) end
  local item = {
    node = node, parent = parent, i = i, level = parent and parent.level + 1 or 1,
    waits = nil, id = nil, queue = nil, -- come later, and have their room now
  }
  list[#list + 1] = item
  names[node] = item
  if node.as then
    if names[node.as] then raise("flow: the name '%s' stands twice", node.as) end
    names[node.as] = item
  end
  if not node.children then return item end
  local waits = {}
  item.waits = waits
  for k, child in ipairs(node.children) do waits[k] = collect(child, item, k, list, names) end
  return item
end

--- What it is to run after: nodes, and ids of other jobs. True: it names nodes.
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

--- Raises for nodes that wait for each other, with the way around.
local function refuse_circle(item, path)
  local labels, first = { label_of(item.node) }, #path
  while path[first] ~= item do first = first - 1 end
  for i = first + 1, #path do labels[#labels + 1] = label_of(path[i].node) end
  labels[#labels + 1] = label_of(item.node)
  raise("flow: nothing could ever start: %s", table.concat(labels, " waits for "))
end

--- Follows what `item` waits for; `path` is how it was come to.
local function follow(item, path)
  if item.seen == "done" then return end
  if item.seen == "now" then refuse_circle(item, path) end
  item.seen = "now"
  path[#path + 1] = item
  for _, other in ipairs(item.waits or {}) do follow(other, path) end
  item.seen = "done"
  path[#path] = nil
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

--- Adds to the options of a node what it waits for.
local function with_after(item, given)
  local after = {}
  for i, other in ipairs(item.waits or {}) do after[i] = other.id end
  for _, id in ipairs(item.others or {}) do after[#after + 1] = id end
  if #after == 0 then return given end
  given = given or {}
  given.after = after
  return given
end

--- The entry of a node for the core's push; a leaf without options has nothing to
-- be checked that the core does not check.
local function entry_of(item)
  local node, given = item.node, settings(item.node)
  local parent = item.parent and item.parent.id
  if item.waits or item.others then given = with_after(item, given) end
  if not given then
    local payload = node.payload
    if payload == nil then payload = core.null end
    return { name = node.name, payload = payload, id = item.id, queue = item.queue, parent = parent }
  end
  local entry, message, code = options.entry("flow: " .. label_of(node), node.name, node.payload, given)
  if not entry then return nil, message, code end
  entry.id, entry.queue, entry.parent = item.id, item.queue, parent or entry.parent
  return entry
end

--- The ids in the shape of what was given: {id =, children = {…}}.
local function shape(item)
  local children = item.node.children
  if not children or #children == 0 then return { id = item.id } end
  local ids = {}
  for i = 1, #children do ids[i] = shape(item.waits[i]) end
  return { id = item.id, children = ids }
end

local IDS = 10000 -- that are taken at once

--- As many ids, ascending.
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

--- Checks a flow and adds its nodes to `list`; gives its root's item.
local function add(list, root, number)
  local names, from = {}, #list + 1 -- names: item by 'as', and by node
  local first, named = collect(root, nil, number, list, names), false
  local queue = root.queue or "default"
  for i = from, #list do
    local item = list[i]
    if item.node.after and resolve(item, names) then named = true end
    item.queue = item.node.queue or queue
  end
  for i = from, named and #list or 0 do follow(list[i], {}) end -- a mere tree has no circle
  return first
end

--- The items of all flows, level by level: who ends together has ids in a row.
local function by_level(list)
  local levels, sorted = {}, {}
  for _, item in ipairs(list) do
    local items = levels[item.level]
    if not items then
      items = {}
      levels[item.level] = items
    end
    items[#items + 1] = item
  end
  for _, items in ipairs(levels) do table.move(items, 1, #items, #sorted + 1, sorted) end
  return sorted
end

--- Gives all nodes their ids, and pushes them in one transaction.
local function push(handle, list)
  local ids, message, code = take_ids(handle, #list)
  if not ids then return nil, message, code end
  local entries = {}
  list = by_level(list)
  for i, item in ipairs(list) do item.id = ids[i] end
  for i, item in ipairs(list) do
    entries[i], message, code = entry_of(item)
    if not entries[i] then return nil, message, code end
  end
  return handle:push("default", entries)
end

--- Pushes a flow; gives the id of its root, and all ids in the shape of the flow.
---@param handle table the core's
---@param root table
---@return integer|nil id
---@return table|string|nil ids or the message
---@return string? code
function flow.push(handle, root)
  local list = {}
  local first = add(list, root)
  local ids, message, code = push(handle, list)
  if not ids then return nil, message, code end
  return first.id, shape(first)
end

--- Pushes many flows, all or none; gives the ids of their roots, and all ids.
---@param handle table the core's
---@param roots table[]
---@return integer[]|nil ids
---@return table[]|string|nil shapes or the message
---@return string? code
function flow.push_many(handle, roots)
  if type(roots) ~= "table" then raise("flow_many wants a list of flows, got %s", type(roots)) end
  local hole = options.hole(roots)
  if hole then raise("flow_many wants a list without holes; item %d is nil", hole) end
  local list, firsts, shapes = {}, {}, {}
  for i, root in ipairs(roots) do firsts[i] = add(list, root, i) end
  if #list == 0 then return {}, {} end
  local ids, message, code = push(handle, list)
  if not ids then return nil, message, code end
  ids = {}
  for i, first in ipairs(firsts) do ids[i], shapes[i] = first.id, shape(first) end
  return ids, shapes
end

return flow
