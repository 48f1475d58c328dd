--- Pushes to several databases: which of them a job goes to.
--
-- A job goes to the shard of its key. Without one it goes where its parent is, or a job that it
-- waits for, or as its unique key says. Where these differ a push is refused, since trees and unique
-- keys stay within one database. Else its group says where, as if that were the key: so limits of
-- groups and their order hold for all databases. A job with none of these goes to the next shard
-- that answers.
--
-- Invariant: a push that may be written is not tried elsewhere.

local shards = require "nightshift.sharded.shards"
local options = require "nightshift.options"

local raise = options.raise

local push = {}

--- The text of a unique key, if the options have one that can be read; db:push checks it.
local function unique_of(given)
  local own = given.unique
  if type(own) == "table" then own = rawget(own, "key") end
  return type(own) == "string" and own or nil
end

--- Adds the shard of a job to `found`; nil and a message when that is another one than before.
local function join(self, inside, found, id, what)
  if math.type(id) ~= "integer" then return true end -- the push itself refuses it
  local shard, message, code = inside.of_id(self, "push", id)
  if not shard then return nil, message, code end
  if not found.shard then
    found.shard, found.what = shard, ("%s, job %d,"):format(what, id)
    return true
  elseif found.shard == shard then
    return true
  end
  return nil, ("%s, job %d, is of %s, and %s is of %s: a tree stays within one database"):format(what, id,
    inside.name_of(shard), found.what, inside.name_of(found.shard)), "INVALID"
end

--- Joins the ids of a list of jobs to wait for.
local function join_list(self, inside, found, list)
  for _, id in ipairs(type(list) == "table" and list or {}) do
    local good, message, code = join(self, inside, found, id, "a job that it waits for")
    if not good then return nil, message, code end
  end
  return true
end

--- The shard that the options of a push ask for; false: any. And these without the key.
local function route(self, inside, verb, given)
  if type(given) ~= "table" then return false, given end
  local rest, found = {}, {}
  for key, value in next, given do rest[key] = value end
  rest.key = nil
  local good, message, code = true, nil, nil
  if given.id then
    good, message, code = join(self, inside, found, given.id, "the id to push again with")
    return good and (found.shard or false), good and rest or message, code
  end
  local key = given.key ~= nil and shards.key(given.key, verb .. ": key") or nil
  if key then
    found.shard, message, code = inside.of_key(self, key)
    if not found.shard then return nil, message, code end
    found.what = ("the key '%s'"):format(options.shown(key))
  end
  if given.parent then good, message, code = join(self, inside, found, given.parent, "the parent") end
  if good then good, message, code = join_list(self, inside, found, given.after) end
  if not good then return nil, message, code end
  local unique = not key and unique_of(given)
  if not unique and not found.shard and type(given.group) == "string" then
    found.shard, message, code = inside.of_key(self, given.group)
    if not found.shard then return nil, message, code end
  end
  if not unique then return found.shard or false, rest end
  local shard
  shard, message, code = inside.of_key(self, unique)
  if not shard then return nil, message, code end
  if found.shard and found.shard ~= shard then
    return nil, ("%s is of %s, and the unique key '%s' of %s, where it would be looked for: give a key, which then "
      .. "says where"):format(found.what, inside.name_of(found.shard), options.shown(unique), inside.name_of(shard)),
      "INVALID"
  end
  return shard, rest
end

--- Calls fn(db) on the next shard that answers. One that fails without a doubt is passed by.
local function on_next(self, inside, fn)
  local last
  for _ = 1, #self._list do
    self._turn = self._turn % #self._list + 1
    local given = table.pack(inside.on(self, self._list[self._turn], fn))
    if given[1] ~= nil or given[3] ~= "GONE" or given[4] ~= nil then return table.unpack(given, 1, given.n) end
    last = given
  end
  return table.unpack(last, 1, last.n)
end

local function on_shard(self, inside, shard, fn)
  if shard then return options.values(inside.on(self, shard, fn)) end
  return options.values(on_next(self, inside, fn))
end

-- ------------------------------------------------------------------------ queues

local queue = options.methods({}, "q")
local meta = { __index = queue, __name = "nightshift.sharded queue" }

local function live(self, verb)
  options.own(self, meta, "q", verb)
  return self._of, (self._inside.live(self._of, verb) and self._inside)
end

--- Pushes one job, as q:push does. `key` chooses its database.
function queue:push(name, payload, opts, extra)
  local of, inside = live(self, "push")
  options.no_more("push", "name, payload and options", extra)
  local shard, rest, code = route(of, inside, "push", opts)
  if shard == nil then return nil, rest, code end
  local own = self.name
  return on_shard(of, inside, shard, function(db) return options.values(db:queue(own):push(name, payload, rest)) end)
end

--- The items by shard, in the order of their first items: {shard =, items =, at =}.
local function grouped(of, inside, items)
  local groups, by_shard = {}, {}
  for i, item in ipairs(items) do
    if type(item) ~= "table" then
      raise("push_many: item %d must be {name, payload, options}, got %s", i, type(item))
    end
    local shard, rest, code = route(of, inside, "push_many: item " .. i, item[3])
    if shard == nil then return nil, ("item %d: %s"):format(i, rest), code end
    local group = by_shard[shard]
    if not group then
      group = { shard = shard, items = {}, at = {} }
      by_shard[shard], groups[#groups + 1] = group, group
    end
    group.items[#group.items + 1], group.at[#group.at + 1] = { item[1], item[2], rest }, i
  end
  return groups
end

--- What has become of a group, by the places of its items.
local function place_all(group, list, to)
  for k, i in ipairs(group.at) do to[i] = type(list) == "table" and list[k] or nil end
end

--- Pushes many jobs: those of one shard in one transaction, all or none. So some shards may have
-- theirs when another fails: then `pushed` has the ids by place, and `again` those to repeat a push
-- with.
function queue:push_many(items, opts)
  local of, inside = live(self, "push_many")
  if type(items) ~= "table" then raise("push_many wants a list of items, got %s", type(items)) end
  local hole = options.hole(items)
  if hole then raise("push_many: item %d is nil; a list has no holes", hole) end
  local groups, message, code = grouped(of, inside, items)
  if not groups then return nil, message, code end
  for _, group in ipairs(groups) do -- nothing is written when one is known to be away
    local db
    if group.shard then db, message, code = inside.reach(of, group.shard) end
    if group.shard and not db then return nil, message, code end
  end
  local own, ids, words = self.name, {}, nil
  for _, group in ipairs(groups) do
    local list, more
    list, message, code, more = on_shard(of, inside, group.shard, function(db)
      return options.values(db:queue(own):push_many(group.items, opts))
    end)
    if not list then
      if #groups == 1 then return nil, message, code, more end
      local again = {}
      place_all(group, code == "GONE" and more, again)
      return nil, message, code, { pushed = ids, again = again }
    end
    place_all(group, list, ids)
    if message then
      words = words or {}
      place_all(group, message, words)
    end
  end
  return ids, words
end

--- The places of items that go to one database each, for a caller that pushes those one by one.
---@return integer[][]|nil
---@return string? message
---@return string? code
function queue:_parts(items)
  local of, inside = live(self, "push_many")
  local groups, message, code = grouped(of, inside, items)
  if not groups then return nil, message, code end
  for i, group in ipairs(groups) do groups[i] = group.at end
  return groups
end

--- Of each database: a queue is in all of them.
for _, verb in ipairs { "pause", "resume" } do
  queue[verb] = function(self)
    local of, inside = live(self, verb)
    local own, done = self.name, false
    local values, missing, code = inside.on_all(of, function(db)
      local good, message, problem = db:queue(own)[verb](db:queue(own))
      if good == nil and problem == "NOT_FOUND" then return false end
      done = done or good ~= nil
      return good, message, problem
    end)
    if not values then return nil, missing, code end
    if missing then return nil, (done and "done in the databases that answer; " or "") .. missing[1].message, "GONE" end
    if not done then return nil, ("there is no queue '%s'"):format(own), "NOT_FOUND" end
    return true
  end
end

--- Limits the queue in every database, as q:limit: each counts its own jobs.
function queue:limit(given, extra)
  local of, inside = live(self, "limit")
  options.no_more("limit", "a table, or nil", extra)
  local own = self.name
  local values, missing, code = inside.on_all(of, function(db)
    local q = db:queue(own)
    return options.values(q:limit(given))
  end)
  if not values then return nil, missing, code end
  if missing then return nil, "done in the databases that answer; " .. missing[1].message, "GONE" end
  return true
end

--- The limit of the first database that has one, with the counts of all; a bare nil: none has.
-- `shards` has the limit of each, as q:limits; `missing` those that are away.
function queue:limits()
  local of, inside = live(self, "limits")
  local own, sum = self.name, nil
  local values, missing, code = inside.on_all(of, function(db)
    local q = db:queue(own)
    local row, message, problem = q:limits()
    return row or not message and false, message, problem
  end)
  if not values then return nil, missing, code end
  for _, one in ipairs(values) do
    if one.value then
      sum = sum or shards.first_limit(one.value, missing)
      shards.add_limit(sum, one.value, one.shard.number)
    end
  end
  return sum
end

--- Counts of all databases, as q:stats; `missing` has those that are away.
function queue:stats()
  local of = live(self, "stats")
  local all, message, code = of:stats()
  if not all then return nil, message, code end
  local found = { name = self.name, paused = false, ready = 0, scheduled = 0, running = 0, waiting = 0, dead = 0 }
  for _, row in ipairs(all.queues) do
    if row.name == self.name then found = row end
  end
  found.missing = all.missing
  return found
end

for _, verb in ipairs { "claim", "claim_many", "jobs" } do
  queue[verb] = function(self)
    live(self, verb)
    raise("%s: jobs are claimed from one database: db:shard(n):queue(name):%s(…)", verb, verb)
  end
end

function meta.__tostring(self) return "nightshift.sharded queue: " .. self.name end

-- ------------------------------------------------------------------------ flows

--- Joins the jobs that the nodes of a flow wait for; does one have a unique key?
local function join_nodes(self, inside, found, node)
  if type(node) ~= "table" then return true end
  local good, message, code = join_list(self, inside, found, node.after)
  if not good then return nil, message, code end
  found.unique = found.unique or unique_of(node)
  for _, child in ipairs(type(node.children) == "table" and node.children or {}) do
    good, message, code = join_nodes(self, inside, found, child)
    if not good then return nil, message, code end
  end
  return true
end

--- The shard of a flow, which has its key at its root; and the root without it.
local function route_flow(self, inside, verb, root)
  if type(root) ~= "table" then return false, root end
  local rest, found = {}, {}
  for key, value in next, root do rest[key] = value end
  rest.key = nil
  local message, code, good
  if root.key ~= nil then
    local key = shards.key(root.key, verb .. ": key")
    found.shard, message, code = inside.of_key(self, key)
    if not found.shard then return nil, message, code end
    found.what = ("the key '%s'"):format(options.shown(key))
  end
  if root.parent then
    good, message, code = join(self, inside, found, root.parent, "the parent")
    if not good then return nil, message, code end
  end
  good, message, code = join_nodes(self, inside, found, root)
  if not good then return nil, message, code end
  if found.unique and not found.shard then
    return nil, ("%s: it has the unique key '%s'; give the flow a key, which says where it is looked for"):format(verb,
      options.shown(found.unique)), "INVALID"
  end
  return found.shard or false, rest
end

--- Adds the verbs that push.
---@param methods table<string, function>
---@param inside table of init.lua
function push.add(methods, inside)
  --- A handle on the queue `name` of all databases.
  function methods:queue(name)
    inside.live(self, "queue")
    if type(name) ~= "string" then raise("queue: the name must be a string, got %s", type(name)) end
    local ok, message, code = options.name("queue name", name, options.MAX_QUEUE)
    if not ok then return nil, message, code end
    return setmetatable({ name = name, _of = self, _inside = inside }, meta)
  end

  --- Pushes a tree of jobs, as db:flow does; `key` at its root chooses its database.
  function methods:flow(root, extra)
    inside.live(self, "flow")
    options.no_more("flow", "a tree of jobs", extra)
    local shard, rest, code = route_flow(self, inside, "flow", root)
    if shard == nil then return nil, rest, code end
    return on_shard(self, inside, shard, function(db) return options.values(db:flow(rest)) end)
  end

  --- Pushes many trees in one transaction: all of one database.
  function methods:flow_many(roots, extra)
    inside.live(self, "flow_many")
    options.no_more("flow_many", "a list of flows", extra)
    if type(roots) ~= "table" then raise("flow_many wants a list of flows, got %s", type(roots)) end
    local chosen, list = false, {}
    for i, root in ipairs(roots) do
      local shard, rest, code = route_flow(self, inside, "flow_many: flow " .. i, root)
      if shard == nil then return nil, rest, code end
      if shard and chosen and shard ~= chosen then
        return nil, ("flow_many: flow %d is of %s, and one before it of %s: they are one transaction, which stays "
          .. "within one database"):format(i, inside.name_of(shard), inside.name_of(chosen)), "INVALID"
      end
      chosen, list[i] = chosen or shard, rest
    end
    return on_shard(self, inside, chosen, function(db) return options.values(db:flow_many(list)) end)
  end
end

return push
