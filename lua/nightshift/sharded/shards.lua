--- Shards: their numbers; and lists and counts of several, put together for people to look at.
--
-- A shard is a database with a number from 0 to 89. Its ids are those from number x 10^14 on, so an
-- id tells its database: the digits before the last fourteen are the number. The sequence of ids
-- has the number, by its bounds, and nothing else has. A database that was given none is shard 0.
--
-- What is merged has a field `missing` when a database is away: a list of {shard =, place =,
-- message =}. Each list stays in the order of its database; between databases the newest comes
-- first, or the one that is next.
--
-- Invariant: the shard of a key depends on the key and on the numbers of the list, and on nothing
-- else. A new number takes keys from the other ones, and moves none between those.

local options = require "nightshift.options"

-- Loaded with the first listing: a program with one database asks for numbers alone.
local filter = options.later(function() return require "nightshift.filter" end)
local report = options.later(function() return require "nightshift.report" end)

local shards = {}

-- ----------------------------------------------------------------------- numbers

local IDS <const> = 100000000000000 -- of a shard
local BLOCK <const> = 100 -- ids: see handle_ids in sql/query/handle.sql

--- The highest number: its ids are below 2^53, which JSON keeps everywhere.
shards.LAST = 89

--- Blocks of ids of a shard.
shards.BLOCKS = IDS // BLOCK

--- The number of the shard that an id is of.
---@param id integer
---@return integer
function shards.of(id) return id // IDS end

--- Check: the number of a shard.
shards.check = options.integer(0, shards.LAST)

-- ------------------------------------------------------------------- databases

--- The number of a database.
---@param handle userdata core handle
---@return integer|nil
---@return string? message
---@return string? code
function shards.read(handle)
  local rows, message, code = handle:execute "@report_shard"
  if not rows then return nil, message, code end
  local low, next_block = rows[1].low, rows[1].next
  local found = low == 1 and 0 or low // shards.BLOCKS
  local fits = low == 1 or low % shards.BLOCKS == 0
  if fits and next_block <= (found + 1) * shards.BLOCKS then return found end
  return nil, ("the ids of this database, from block %d on, are not those of a shard: see nightshift doctor"):format(
    next_block), "STATE"
end

--- Gives a number to a database that has given no ids so far. It does nothing where the database has
-- that number.
---@param handle userdata core handle
---@param wanted integer
---@return integer|nil number
---@return string? message
---@return string? code
function shards.give(handle, wanted)
  local now, message, code = shards.read(handle)
  if not now then return nil, message, code end
  if now ~= wanted and now == 0 then
    local done
    done, message, code = handle:execute("@admin_shard", wanted * shards.BLOCKS, (wanted + 1) * shards.BLOCKS - 1)
    if not done then return nil, message, code end
    now, message, code = shards.read(handle)
    if not now then return nil, message, code end
  end
  if now == wanted then return now end
  return nil, ("this database is shard %d and cannot be shard %d: %s"):format(now, wanted, now == 0
    and "it has given ids already, so give that number to an empty one" or "it was given that number"), "STATE"
end

-- ------------------------------------------------------------------- addresses

--- A URL without `shard=N`, and N.
---@param url string
---@return string url
---@return integer|nil number
---@return string? message when it is no number of a shard
function shards.strip(url)
  local before, mark, text, behind = url:match "^(.*)([?&])shard=([^&]*)(.*)$"
  if not before then return url, nil end
  local found = text:find "^%d+$" and math.tointeger(tonumber(text))
  if not found or found > shards.LAST then
    return url, nil, ("database URL: shard must be a number from 0 to %d, got '%s'"):format(shards.LAST,
      options.shown(text))
  end
  if behind ~= "" then behind = mark .. behind:sub(2) end
  return before .. behind, found
end

--- The URLs of a text with blanks between them. A blank within one URL is a fault of that.
---@param text string
---@return string[]
function shards.split(text)
  local list = {}
  if not text:find "%s%a[%w+.-]*://" then return text ~= "" and { text } or list end
  for url in text:gmatch "%S+" do list[#list + 1] = url end
  return list
end

--- Where a URL leads to, for messages: without the account and the options.
---@param url string
---@return string
function shards.place(url)
  local rest = url:match "^%a[%w+.-]*://(.*)$" or url
  return options.shown((rest:gsub("^.*@", ""):gsub("%?.*$", "")))
end

-- ------------------------------------------------------------------------ keys

local OFFSET <const>, PRIME <const> = 0xcbf29ce484222325, 0x100000001b3 -- of FNV-1a, 64 bits

local function hash(text)
  local h = OFFSET
  for i = 1, #text do h = (h ~ text:byte(i)) * PRIME end
  return h
end

-- Every bit of the result depends on every bit of x: the last step of SplitMix64.
local function mixed(x)
  x = (x ~ (x >> 30)) * 0xbf58476d1ce4e5b9
  x = (x ~ (x >> 27)) * 0x94d049bb133111eb
  return x ~ (x >> 31)
end

--- The number that a key goes to: the one with the highest weight (rendezvous hashing).
---@param key string
---@param numbers integer[] none twice
---@return integer
function shards.pick(key, numbers)
  local h, best, most = hash(key), nil, nil
  for _, n in ipairs(numbers) do
    local weight = mixed(h ~ mixed(n + 1))
    if not best or math.ult(most, weight) then best, most = n, weight end
  end
  return best
end

--- Check: a key, a text or a whole number; gives a text.
---@param key any
---@param what string
---@return string
function shards.key(key, what)
  if math.type(key) == "integer" then return tostring(key) end
  if type(key) ~= "string" then
    options.raise("%s must be a text or a whole number, got %s", what, type(key))
  end
  return key
end

-- ------------------------------------------------------------------------ lists

--- Counts of a verb on all jobs of a filter.
function shards.counts(values, missing)
  local sum = { found = 0, changed = 0, refused = 0, missing = missing }
  for _, row in ipairs(values) do
    for _, key in ipairs { "found", "changed", "refused" } do sum[key] = sum[key] + row.value[key] end
  end
  return sum
end

--- All lists one behind the other, each row with its shard, sorted.
local function joined(values, missing, before)
  local list = { missing = missing }
  for _, row in ipairs(values) do
    for _, one in ipairs(row.value) do
      one.shard = row.shard.number
      list[#list + 1] = one
    end
  end
  if before then table.sort(list, before) end
  return list
end

-- ---------------------------------------------------------------------- listings

-- Which of two rows comes first, by the state that is listed.
local FIRST <const> = {
  ready = function(a, b)
    if a.priority ~= b.priority then return a.priority > b.priority end
    return a.created < b.created
  end,
  scheduled = function(a, b) return (a.due or 0) < (b.due or 0) end,
  running = function(a, b) return (a.claimed or a.created) < (b.claimed or b.created) end,
}

local function newest(a, b) return (a.finished_at or a.created) > (b.finished_at or b.created) end
local function pushed_last(a, b) return a.created > b.created end

--- Where each database goes on: the ids that a list ended with, by their shards.
local function starts_of(after)
  local starts = {}
  local list = type(after) == "table" and after or { after }
  for i, id in ipairs(list) do
    if math.type(id) ~= "integer" or id < 1 then
      return nil, ("jobs: after: item %d must be a job's id, got %s"):format(i, tostring(id))
    end
    starts[shards.of(id)] = id
  end
  return starts
end

--- Takes rows from the lists until there are `limit`, always the one that comes first.
local function take(values, limit, before)
  local list = {}
  for _, row in ipairs(values) do row.taken = 0 end
  while #list < limit do
    local best
    for _, row in ipairs(values) do
      local head = row.value[row.taken + 1]
      if head and (not best or before(head, best.value[best.taken + 1])) then best = row end
    end
    if not best then break end
    best.taken = best.taken + 1
    list[#list + 1] = best.value[best.taken]
  end
  return list
end

--- How a listing goes on; nil: it is at its end.
local function rest_of(values, starts, by_page)
  local after, more, looked = {}, false, 0
  for _, row in ipairs(values) do
    local n, told = row.taken, row.more
    local at = n > 0 and row.value[n].id or starts[row.shard.number]
    if n == #row.value and told then at = told.after end
    if at then after[#after + 1] = at end
    more = more or told ~= nil or by_page and n < #row.value
    if told and told.looked and n == #row.value then looked = looked + told.looked end
  end
  return more and { after = after, looked = looked > 0 and looked or nil } or nil
end

--- Lists jobs as db:jobs does. `after` is what the list before has given: a list of ids.
local function jobs(self, inside, given)
  given = given or {}
  if type(given) ~= "table" then options.raise("jobs: options must be a table, got %s", type(given)) end
  if given.parent then
    local shard, message, code = inside.of_id(self, "jobs", given.parent)
    if not shard then return nil, message, code end
    return options.values(inside.on(self, shard, function(db) return options.values(db:jobs(given)) end))
  end
  local starts, problem = starts_of(given.after)
  if not starts then return nil, problem, "INVALID" end
  local values, missing, code = inside.on_all(self, function(db, shard)
    local own = {}
    for key, value in next, given do own[key] = value end
    own.after = starts[shard.number]
    return options.values(db:jobs(own))
  end)
  if not values then return nil, missing, code end
  local state = given.state
  local before = FIRST[state] or filter().ENDED[state] and newest or pushed_last
  for _, row in ipairs(values) do
    for _, one in ipairs(row.value) do one.shard = row.shard.number end
    if row.more and not filter().ENDED[state] then before = pushed_last end
  end
  local list = take(values, given.limit or 50, before)
  list.missing = missing
  return list, rest_of(values, starts, not FIRST[state] or given.after ~= nil)
end

-- Adds a kind of errors of one database to those of all.
local function add_kind(kinds, by_error, one, shard)
  local kind = by_error[one.error]
  if not kind then
    by_error[one.error], kinds[#kinds + 1], one.shard = one, one, shard.number
    return
  end
  for _, key in ipairs { "count", "dead", "retrying" } do kind[key] = kind[key] + one[key] end
  kind.first = math.min(kind.first, one.first)
  if one.last > kind.last then
    kind.last, kind.id, kind.queue, kind.name, kind.shard = one.last, one.id, one.queue, one.name, shard.number
  end
end

local function errors(self, inside, given)
  local values, missing, code = inside.on_all(self, function(db) return options.values(db:errors(given)) end)
  if not values then return nil, missing, code end
  local kinds, by_error, looked = {}, {}, 0
  for _, row in ipairs(values) do
    for _, one in ipairs(row.value) do add_kind(kinds, by_error, one, row.shard) end
    if row.more then looked = looked + row.more.looked end
  end
  table.sort(kinds, function(a, b)
    if a.count ~= b.count then return a.count > b.count end
    return a.error < b.error
  end)
  for i = #kinds, (given and given.limit or 50) + 1, -1 do kinds[i] = nil end
  kinds.missing = missing
  return kinds, looked > 0 and { looked = looked } or nil
end

-- ------------------------------------------------------------------------ counts

--- Adds the counts of a queue.
local function add_queue(queues, by_name, one)
  local sum = by_name[one.name]
  if not sum then
    by_name[one.name], queues[#queues + 1] = one, one
    return
  end
  sum.paused = sum.paused or one.paused
  sum.places = sum.places and one.places and sum.places + one.places -- each counts its own jobs
  for _, state in ipairs(report().STATES) do
    if one[state] then sum[state] = (sum[state] or 0) + one[state] end
    if one.approximate and one.approximate[state] then
      sum.approximate = sum.approximate or {}
      sum.approximate[state] = true
    end
  end
  if one.oldest then sum.oldest = math.max(sum.oldest or 0, one.oldest) end
  if one.next then sum.next = math.min(sum.next or one.next, one.next) end
end

--- Counts of queues of several databases, as one list by name.
---@param lists table[][]
---@return table[]
function shards.queues(lists)
  local queues, by_name = {}, {}
  for _, list in ipairs(lists) do
    for _, one in ipairs(list) do add_queue(queues, by_name, one) end
  end
  table.sort(queues, function(a, b) return a.name < b.name end)
  return queues
end

--- A limit like this one, of no database yet: its counts are 0.
function shards.first_limit(row, missing)
  local sum = { counts = { waiting = 0, groups = 0, full_groups = 0 }, shards = {}, missing = missing }
  for _, key in ipairs { "queue", "running", "rate", "backlog", "group" } do sum[key] = row[key] end
  return sum
end

--- Adds the limit of a database, with its counts.
function shards.add_limit(sum, row, shard)
  row.shard = shard
  table.insert(sum.shards, row)
  for key, n in pairs(row.counts) do
    if key ~= "capped" then sum.counts[key] = (sum.counts[key] or 0) + n end
  end
  for key in pairs(row.counts.capped or {}) do
    sum.counts.capped = sum.counts.capped or {}
    sum.counts.capped[key] = true
  end
  sum.full = sum.full or row.full
end

local function add_unserved(list, by_name, one)
  local key = one.queue .. "\0" .. one.name
  local sum = by_name[key]
  if not sum then
    by_name[key], list[#list + 1] = one, one
    return
  end
  sum.n, sum.later = sum.n + one.n, sum.later + one.later
  sum.waited = math.max(sum.waited or 0, one.waited or 0)
end

local function add_paused(paused, one)
  paused.all = paused.all or one.all
  for _, row in ipairs(one.names) do
    local there = false
    for _, have in ipairs(paused.names) do there = there or have.name == row.name end
    if not there then table.insert(paused.names, row) end
  end
end

--- As db:stats: a queue of several databases is one row, and `shards` has how each of them is.
local function stats(self, inside)
  local values, missing, code = inside.on_all(self, function(db) return options.values(db:stats()) end)
  if not values then return nil, missing, code end
  local all = { now = 0, holders = {}, unserved = {}, counters = {}, shards = {}, missing = missing,
    paused = { names = values[1].value.paused.names } }
  local unserved, lists = {}, {}
  for i, row in ipairs(values) do
    local one, ready = row.value, 0
    all.now = math.max(all.now, one.now)
    for _, queue in ipairs(one.queues) do ready = ready + queue.ready end
    lists[i] = one.queues
    for _, holder in ipairs(one.holders) do
      holder.shard = row.shard.number
      table.insert(all.holders, holder)
    end
    for _, left in ipairs(one.unserved) do add_unserved(all.unserved, unserved, left) end
    add_paused(all.paused, one.paused)
    for key, value in pairs(one.counters) do
      if type(value) == "number" then all.counters[key] = (all.counters[key] or 0) + value end
    end
    all.shards[#all.shards + 1] = { shard = row.shard.number, place = row.shard.place, ready = ready,
      holders = #one.holders }
  end
  all.queues = shards.queues(lists)
  return all
end

-- The mean of two means, by how many each is of.
local function mean(a, n, b, m)
  if not a or not b then return a or b end
  return n + m > 0 and (a * n + b * m) / (n + m) or 0
end

local function add_bucket(sum, one)
  sum.run = mean(sum.run, sum.runs, one.run, one.runs)
  sum.wait = mean(sum.wait, sum.runs, one.wait, one.runs)
  for _, key in ipairs { "done", "failed", "dead", "cancelled", "pushed", "runs" } do sum[key] = sum[key] + one[key] end
  for _, key in ipairs { "wait_max", "run_max" } do sum[key] = math.max(sum[key], one[key]) end
end

--- As db:series; buckets of one instant are added.
local function series(self, inside, given)
  local values, missing, code = inside.on_all(self, function(db) return options.values(db:series(given)) end)
  if not values then return nil, missing, code end
  local list, by_instant = {}, {}
  for _, row in ipairs(values) do
    for _, one in ipairs(row.value) do
      local sum = by_instant[one.at]
      if sum then add_bucket(sum, one) else by_instant[one.at], list[#list + 1] = one, one end
    end
  end
  table.sort(list, function(a, b) return a.at < b.at end)
  list.missing = missing
  return list
end

--- As db:audit, without `before`: these rows have no order of their own between databases.
local function audit(self, inside, given)
  if type(given) == "table" and given.before then
    return nil, "audit: 'before' is of one database: db:shard(n):audit{…}", "INVALID"
  end
  local values, missing, code = inside.on_all(self, function(db) return options.values(db:audit(given)) end)
  if not values then return nil, missing, code end
  local list = joined(values, missing, function(a, b) return a.at > b.at end)
  for i = #list, (given and given.limit or 100) + 1, -1 do list[i] = nil end
  return list
end

-- -------------------------------------------------------------------------- birth

local function by_name(a, b)
  if a.name ~= b.name then return a.name < b.name end
  return (a.shard or 0) < (b.shard or 0)
end

local function by_queue(a, b)
  if a.queue ~= b.queue then return a.queue < b.queue end
  return (a.shard or 0) < (b.shard or 0)
end

-- Lists that are put one behind the other, and their order.
local LISTS <const> = { schedules = by_name, slots = by_name, retention = false, limits = by_queue }

local MERGED <const> = { jobs = jobs, errors = errors, stats = stats, series = series, audit = audit }

--- Adds the verbs that look.
---@param methods table<string, function>
---@param inside table of init.lua
function shards.add(methods, inside)
  for verb, fn in pairs(MERGED) do
    methods[verb] = function(self, given)
      inside.live(self, verb)
      return options.values(fn(self, inside, given))
    end
  end
  for verb, before in pairs(LISTS) do
    methods[verb] = function(self)
      inside.live(self, verb)
      local values, missing, code = inside.on_all(self, function(db) return options.values(db[verb](db)) end)
      if not values then return nil, missing, code end
      return joined(values, missing, before or nil)
    end
  end
end

return shards
