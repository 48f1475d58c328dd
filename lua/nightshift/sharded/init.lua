--- Several databases as one: `nightshift.sharded`. Jobs go to one of them by a key, and verbs on
-- jobs find the database of an id. Each database is a shard, with a number (shards.lua).
--
-- A shard is reached when it is needed first. One that does not answer is away: its verbs are GONE
-- at once for a while, then one of them tries again. So no call waits for it for long, and few do.
--
-- Invariant: a verb on one shard does nothing on another. What is done on all says where it was
-- not.

local core = require "nightshift.core"
local shards = require "nightshift.sharded.shards"
local options = require "nightshift.options"
local push = require "nightshift.sharded.push"

local raise = options.raise

local sharded = {}
local methods = options.methods({}, "db")
local meta = { __index = methods, __name = "nightshift.sharded" }

local FIRST <const>, LONGEST <const> = 1, 30 -- s that a shard is away for, before one verb tries again
local TIMES <const> = 10 -- as long as the last try has taken: at most a tenth of the time is lost

---@class nightshift.Shard
---@field number integer|nil nil: it was not reached so far, and its address has no number
---@field place string where it is, for messages
---@field where table options of nightshift.open
---@field db nightshift.Db|nil
---@field again number|nil by core.clock: it is away until then
---@field tries integer that have failed, one after the other
---@field why string the last failure

-- ------------------------------------------------------------------- reaching

local function name_of(shard)
  return shard.number and ("shard %d (%s)"):format(shard.number, shard.place) or ("the shard at %s"):format(shard.place)
end

local function gone_text(shard) return ("%s is away: %s"):format(name_of(shard), shard.why) end

--- What a verb has answered decides whether the shard is away.
local function note(shard, began, code, message)
  if code ~= "GONE" then
    shard.again, shard.tries = nil, 0
    return
  end
  local now = core.clock()
  shard.tries, shard.why = shard.tries + 1, tostring(message)
  local pause = shard.tries == 1 and FIRST or math.max(FIRST, math.min(LONGEST, TIMES * (now - began)))
  shard.again = now + pause
end

--- The shard's number is learnt, and is that of no other; or it is as the list says.
local function learn(self, shard)
  local found, message, code = shards.read(shard.db._handle)
  if not found then return nil, message, code end
  if shard.number == found then return true end
  if shard.number then
    return nil, ("the list says so, but the database is shard %d"):format(found), "STATE"
  end
  if self._by[found] then
    return nil, ("%s and %s are both shard %d; nightshift init --shard gives an empty database a number"):format(
      self._by[found].place, shard.place, found), "INVALID"
  end
  shard.number, self._by[found] = found, shard
  return true
end

local function connect(self, shard)
  local db, message, code = self._open(shard.where)
  if not db then return nil, message, code end
  shard.db = db
  if self._act then db._handle:act_as(self._act) end
  local good
  good, message, code = learn(self, shard)
  if good then return db end
  db:close()
  shard.db = nil
  return nil, message, code
end

--- The database of a shard; nil: it is away, or cannot be opened.
local function reach(self, shard)
  local began = core.clock()
  if shard.again and began < shard.again then return nil, gone_text(shard), "GONE" end
  if shard.db then return shard.db end
  local db, message, code = connect(self, shard)
  note(shard, began, code, message)
  if db then return db end
  return nil, code == "GONE" and gone_text(shard) or ("%s: %s"):format(name_of(shard), message), code
end

--- The values of a verb as they are; a failure names its shard.
local function told(shard, began, first, message, code, ...)
  if first ~= nil or message == nil then
    note(shard, began)
    return first, message, code, ...
  end
  note(shard, began, code, message)
  if code == "GONE" then return nil, gone_text(shard), code, ... end
  return nil, message, code, ...
end

--- Calls fn(db, …) on a shard.
local function on(self, shard, fn, ...)
  local db, message, code = reach(self, shard)
  if not db then return nil, message, code end
  return told(shard, core.clock(), fn(db, ...))
end

--- Have all shards a number? They are asked for it; nil: one is away, and its number is unknown.
local function know_all(self)
  for _, shard in ipairs(self._unknown and self._list or {}) do
    if not shard.number then
      local db, message, code = reach(self, shard)
      if not db then
        return nil, message .. (code == "GONE" and "; its number is not known: write shard=N into its URL" or ""), code
      end
    end
  end
  self._unknown = false
  return true
end

local function live(self, verb)
  options.own(self, meta, "db", verb)
  if self._closed then raise("%s: a closed database handle cannot be used", verb) end
  return self
end

-- -------------------------------------------------------------------- choosing

--- The shard with a number.
local function by_number(self, found, what)
  local shard = self._by[found]
  if shard then return shard end
  local known, message, code = know_all(self)
  if self._by[found] then return self._by[found] end
  if not known then return nil, message, code end
  return nil, ("%s is of shard %d, and the list has no such shard"):format(what, found), "NOT_FOUND"
end

local function check_id(verb, id)
  local whole = math.tointeger(id)
  if type(id) == "number" and whole then return whole end
  raise("%s: the id must be an integer, got %s", verb, type(id) == "number" and id or "a " .. type(id))
end

--- The shard of an id.
local function of_id(self, verb, id)
  local whole = check_id(verb, id)
  if whole < 1 then return nil, ("there is no job %d"):format(whole), "NOT_FOUND" end
  return by_number(self, shards.of(whole), ("job %d"):format(whole))
end

--- The shard of a key.
local function of_key(self, key)
  local known, message, code = know_all(self)
  if not known then return nil, message, code end
  local numbers = {}
  for n in pairs(self._by) do numbers[#numbers + 1] = n end
  return self._by[shards.pick(key, numbers)]
end

--- Calls fn(db, shard) on every shard. Gives its values by shard, and those shards that are away,
-- each {shard =, place =, message =}. Another failure ends it.
local function on_all(self, fn)
  local values, missing = {}, {}
  for _, shard in ipairs(self._list) do
    local value, message, code = on(self, shard, fn, shard)
    if value == nil and message ~= nil then
      if code ~= "GONE" then return nil, message, code end
      missing[#missing + 1] = { shard = shard.number, place = shard.place, message = message }
    else
      values[#values + 1] = { shard = shard, value = value, more = message }
    end
  end
  for _, one in ipairs(missing) do self.noted[one.place] = one end
  if #values == 0 then return nil, missing[1].message, "GONE" end
  return values, #missing > 0 and missing or nil
end

-- What push.lua and shards.lua use of this file.
local inside = { on = on, reach = reach, on_all = on_all, of_id = of_id, of_key = of_key, name_of = name_of,
  live = live }

-- ------------------------------------------------------------------ single jobs

--- A function that calls a verb of a database; not by a tail call: see options.raise.
local function caller(verb)
  return function(db, ...) return options.values(db[verb](db, ...)) end
end

--- A verb on one job, done by its database.
local function add_by_id(verb)
  methods[verb] = function(self, id, ...)
    live(self, verb)
    local shard, message, code = of_id(self, verb, id)
    if not shard then return nil, message, code end
    return options.values(on(self, shard, caller(verb), id, ...))
  end
end

for _, verb in ipairs { "job", "why", "progress", "pause", "resume", "deadline", "wait", "signal" } do
  add_by_id(verb)
end

--- A verb on one job, or on all of a filter: then the counts of all shards, and in `missing` those
-- that are away.
local function add_by_filter(verb)
  add_by_id(verb)
  local one = methods[verb]
  methods[verb] = function(self, id, ...)
    if type(id) ~= "table" then return options.values(one(self, id, ...)) end
    live(self, verb)
    if id.parent then
      local shard, message, code = of_id(self, verb, id.parent)
      if not shard then return nil, message, code end
      return options.values(on(self, shard, caller(verb), id, ...))
    end
    local given, call = table.pack(...), caller(verb)
    local values, missing, code = on_all(self, function(db)
      return options.values(call(db, id, table.unpack(given, 1, given.n)))
    end)
    if not values then return nil, missing, code end
    return shards.counts(values, missing)
  end
end

for _, verb in ipairs { "cancel", "retry", "delete", "update", "run_now", "reprioritise" } do add_by_filter(verb) end
add_by_filter "move"

--- Waits for the ends of many jobs; each database is asked for its own.
function methods:wait_all(ids, wait)
  live(self, "wait_all")
  if type(ids) ~= "table" then raise("wait_all: the ids must be a list, got a %s", type(ids)) end
  local us, problem = options.duration(wait, "wait_all: the time")
  if not us then return nil, problem, "INVALID" end
  local groups, order = {}, {}
  for i, id in ipairs(ids) do
    local shard, message, code = of_id(self, "wait_all", id)
    if not shard then return nil, message, code end
    if not groups[shard] then groups[shard], order[#order + 1] = { ids = {}, at = {} }, shard end
    table.insert(groups[shard].ids, id)
    table.insert(groups[shard].at, i)
  end
  local stop, ends = core.clock() + us / 1000000, {}
  for _, shard in ipairs(order) do
    local group, left = groups[shard], math.max(0, stop - core.clock())
    local rows, message, code = on(self, shard, caller "wait_all", group.ids, left)
    if not rows then return nil, message, code end
    for k, row in ipairs(rows) do ends[group.at[k]] = row end
  end
  return ends
end

-- ---------------------------------------------------------------------- on all

--- A verb that changes something in every database; nil and a message when it was not done in all.
-- `absent`: a database without the thing is fine, as long as one has it.
local function change_all(self, verb, absent, ...)
  live(self, verb)
  local given, changed, there = table.pack(...), false, false
  local why, kind
  local values, missing, code = on_all(self, function(db)
    local value, message, problem = db[verb](db, table.unpack(given, 1, given.n))
    if value == nil and absent and problem == "NOT_FOUND" then
      why, kind = message, problem
      return false
    end
    there = there or value ~= nil
    return value, message, problem
  end)
  if not values then return nil, missing, code end
  for _, row in ipairs(values) do changed = row.value or changed end
  if missing then return nil, (there and "done in the databases that answer; " or "") .. missing[1].message, "GONE" end
  if not there and kind then return nil, why, kind end
  return changed
end

for verb, absent in pairs { pause_name = false, resume_name = false, pause_all = false, resume_all = false,
  retain = false, remove_queue = true, schedule_pause = true, schedule_resume = true, schedule_run = true,
  schedule_remove = true, tune_host = true } do
  methods[verb] = function(self, ...) return options.values(change_all(self, verb, absent, ...)) end
end

--- Does every database answer? nil, and the first that does not.
function methods:ping()
  local values, missing, code = on_all(live(self, "ping"), function(db) return options.values(db:ping()) end)
  if not values then return nil, missing, code end
  if missing then return nil, missing[1].message, "GONE" end
  return true
end

-- ----------------------------------------------------------- keys and databases

--- The handle of one database, for verbs that stay within one: transactions, claims, SQL.
---@param found integer the shard's number
function methods:shard(found)
  live(self, "shard")
  local whole, message = shards.check(found, "shard: the number")
  if not whole then return nil, message, "INVALID" end
  local shard, why, code = by_number(self, whole, "this")
  if not shard then return nil, why, code end
  return options.values(reach(self, shard))
end

--- The handle of the database that has a key's jobs.
---@param key string|integer
function methods:of_key(key)
  live(self, "of_key")
  local shard, message, code = of_key(self, shards.key(key, "of_key: the key"))
  if not shard then return nil, message, code end
  return options.values(reach(self, shard))
end

--- The databases in the order of the list: {shard =, place =, away = why, or nil}.
function methods:shards()
  live(self, "shards")
  local list = {}
  for i, shard in ipairs(self._list) do
    local db, message = reach(self, shard)
    list[i] = { shard = shard.number, place = shard.place, away = not db and message or nil }
  end
  return list
end

--- A lock or semaphore of the database that its name goes to, as a key does.
local function add_lock(verb)
  methods[verb] = function(self, name, ...)
    live(self, verb)
    local shard, message = of_key(self, shards.key(name, verb .. ": the name"))
    local db, problem
    if shard then db, problem = reach(self, shard) end
    if not db then raise("%s: %s", verb, problem or message) end
    return (db[verb](db, name, ...))
  end
end
add_lock "lock"
add_lock "semaphore"

--- A schedule is of the database that its name goes to, as a key does.
function methods:schedule(given, extra)
  live(self, "schedule")
  options.no_more("schedule", "a table", extra)
  if type(given) ~= "table" or type(given.name) ~= "string" then raise "schedule wants a table with a name" end
  local shard, message, code = of_key(self, given.name)
  if not shard then return nil, message, code end
  return options.values(on(self, shard, caller "schedule", given))
end

-- Verbs that are of one database, and what to write.
for verb, instead in pairs { transaction = "db:of_key(key):transaction(fn)", execute = "db:shard(n) and its execute",
  adopt = "db:shard(n):adopt{…}", migrate = "nightshift init", rescue = "db:shard(n):rescue()",
  prune = "db:shard(n):prune(…)" } do
  methods[verb] = function(self)
    live(self, verb)
    raise("%s is of one database: write %s", verb, instead)
  end
end

-- ----------------------------------------------------------------- birth, death

function methods:is_open()
  options.own(self, meta, "db", "is_open")
  return not self._closed
end

--- Closes all of them.
function methods:close()
  options.own(self, meta, "db", "close")
  if self._closed then return end
  self._closed = true
  for _, shard in ipairs(self._list) do
    if shard.db then shard.db:close() end
  end
end

meta.__close = methods.close

function meta.__tostring(self) return ("nightshift.sharded: %d databases"):format(#self._list) end

push.add(methods, inside)
shards.add(methods, inside)

--- Calls fn(db) on the shard with a number, unless that is away.
function methods:_ask(found, fn)
  local shard, message, code = by_number(self, found, "this")
  if not shard then return nil, message, code end
  return options.values(on(self, shard, fn))
end

--- What actions are noted as, as of a core handle.
function methods:_act_as(what)
  self._act = what
  for _, shard in ipairs(self._list) do
    if shard.db then shard.db._handle:act_as(what) end
  end
end

--- A shard of an item of the list.
local function read_item(item, i)
  local where = {}
  if type(item) == "string" then
    where.url = item
  elseif type(item) == "table" then
    for key, value in next, item do where[key] = value end
  else
    raise("sharded: item %d must be a URL or a table of options, got %s", i, type(item))
  end
  local found, message
  if where.url then where.url, found, message = shards.strip(where.url) end
  if where.shard ~= nil then found, message = shards.check(where.shard, ("sharded: item %d: shard"):format(i)) end
  if message then return nil, message end
  where.shard = nil
  return { number = found, where = where, tries = 0,
    place = where.url and shards.place(where.url) or where.socket or where.host or "a private server" }
end

--- Opens them; those with a number in the list are reached when they are needed.
---@param list table|nil nil: $NIGHTSHIFT_URL
---@param open function nightshift.open
---@return nightshift.Sharded|nil
---@return string? message
---@return string? code
function sharded.open(list, open)
  if list == nil then list = shards.split((options.address() or {}).url or "") end
  if type(list) ~= "table" then raise("sharded wants a list of URLs, got %s", type(list)) end
  local hole = options.hole(list)
  if hole then raise("sharded wants a list of URLs; item %d is nil", hole) end
  if #list == 0 then return nil, "sharded: the list has no database, and $NIGHTSHIFT_URL names none", "INVALID" end
  local self = setmetatable({ _list = {}, _by = {}, _open = open, _turn = math.random(#list), _unknown = false,
    _inside = inside, noted = {} }, meta)
  for i, item in ipairs(list) do
    local shard, message = read_item(item, i)
    if not shard then return nil, message, "INVALID" end
    if shard.number and self._by[shard.number] then
      return nil, ("sharded: items %s and %s are both shard %d"):format(self._by[shard.number].place, shard.place,
        shard.number), "INVALID"
    end
    if shard.number then self._by[shard.number] = shard else self._unknown = true end
    self._list[i] = shard
  end
  local known, message, code = know_all(self)
  if not known and code ~= "GONE" then
    self:close()
    return nil, message, code
  end
  return self
end

return sharded
