--- The testing kit: a database for tests, and verbs that make it stand still, go on and break.
--
--     local testing = require "nightshift.testing"
--     local t = assert(testing.open())
--
-- A process has one kit at a time. While it is open, `nightshift.open()` without an address opens
-- its database. Programs that do not require this module pay nothing for it. The clock is moved in
-- the tables, and a crash is a replaced verb of the handles of nightshift.core.
--
-- Invariant: no statement but a look at its tables goes to a database that this module has not
-- made. Such a database has a mark with its own name in nightshift_meta.

local core = require "nightshift.core"
local nightshift = require "nightshift"
local options = require "nightshift.options"
local process = require "nightshift.testing.process"
local schedule = require "nightshift.schedule"

local raise = options.raise

local testing = {}

local methods = options.methods({}, "t")

-- ------------------------------------------------------------------ the database

-- Of the private server's databases: nightshift_test_1, …
local NAME, MOST <const> = "nightshift_test_%d", 1000
local PATIENCE <const> = 2 -- seconds; a process of tests that was killed has left its lock by then

--- What the tables of this version are: a database of another one is made anew.
local function version()
  local texts = {}
  for i, statement in ipairs(core.schema()) do texts[i] = statement.text end
  return core.hash(table.concat(texts, "\n"))
end

local function mark_of(name) return name .. " " .. version() end

--- The folder of the server of all tests of this user.
local function home()
  local cache = os.getenv "XDG_CACHE_HOME"
  if not cache or cache == "" then
    cache = os.getenv "HOME"
    if not cache or cache == "" then
      return nil, "testing.open: neither $HOME nor $XDG_CACHE_HOME is set; give a folder: testing.open{dir = …}",
        "INVALID"
    end
    cache = cache .. "/.cache"
  end
  return cache .. "/nightshift/testing"
end

--- Makes the folder unless it is there.
local function make_folder(path)
  local file = io.open(path)
  if file then return file:close() end
  if os.execute("mkdir -p -- '" .. path:gsub("'", "'\\''") .. "'") then return true end
  return nil, "testing.open: the folder " .. path .. " cannot be made", "DENIED"
end

local function hold(keeper, name)
  local rows, message, code = keeper:execute("@testing_lock", name)
  if not rows then return nil, message, code end
  return rows[1].got == 1
end

--- A handle on a database that is marked as of this version, or nil.
local function open_marked(url, mark)
  local handle = core.open { url = url, no_schema = true }
  if not handle then return nil end
  local rows = handle:execute "@testing_mark"
  if rows and rows[1] and rows[1].value == mark then return handle end
  handle:close()
end

--- Makes the tables, and marks them as ours.
local function make_tables(handle, mark)
  local ok, message, code = handle:migrate()
  if ok then ok, message, code = handle:execute("@testing_sign", mark) end
  if ok then return handle end
  handle:close()
  return nil, message, code
end

--- A database of the private server that no other process has: its handle, and the one that keeps
-- it.
local function take_private(dir)
  local ok, message, code = true, nil, nil
  if not dir then dir, message, code = home() end
  if dir then ok, message, code = make_folder(dir) end
  if not (dir and ok) then return nil, message, code end
  local url
  url, message, code = core.private_server(dir)
  if not url then return nil, message, code end
  local keeper
  keeper, message, code = core.open { url = url, no_schema = true }
  if not keeper then return nil, message, code end
  local name, got
  for i = 1, MOST do
    name = NAME:format(i)
    got, message, code = hold(keeper, name)
    if got ~= false then break end
  end
  if not got then return nil, message or "testing.open: every database of tests is in use", code or "BUSY" end
  url = url:gsub("/nightshift%?", "/" .. name .. "?")
  local mark = mark_of(name)
  local handle = open_marked(url, mark)
  if handle then return handle, keeper, url end
  ok, message, code = keeper:execute("@testing_create", name)
  if ok then handle, message, code = core.open { url = url, no_schema = true } end
  if handle then handle, message, code = make_tables(handle, mark) end
  if not handle then return nil, message, code end
  return handle, keeper, url
end

local REFUSED = "testing.open: %s, and tests delete the rows of all tables; it takes an empty database with 'test' "
  .. "in its name, or one that it has made itself"

--- Why a database must not be touched; nil: it may.
local function refusal(handle, name)
  if not name:lower():find "test" then return ("the name of database '%s' does not have 'test' in it"):format(name) end
  local rows, message, code = handle:execute "@testing_tables"
  if not rows then return nil, message, code end
  if rows[1].n == 0 then return nil end
  rows = handle:execute "@testing_mark"
  local made = rows and rows[1] and rows[1].value:match "^(.*) [^ ]*$"
  if made == name then return nil end
  return ("database '%s' has tables that testing.open has not made"):format(name)
end

local function wait_for(handle, name)
  local stop = core.clock() + PATIENCE
  local got, message, code = hold(handle, name)
  while got == false and core.clock() < stop do
    core.sleep(0.02)
    got, message, code = hold(handle, name)
  end
  if got then return true end
  return nil, message or ("testing.open: another process of tests has database '%s'"):format(name), code or "BUSY"
end

--- The database of a URL, if it is one of tests.
local function take_url(url)
  local keeper, message, code = core.open { url = url, no_schema = true }
  if not keeper then return nil, message, code end
  local rows, why, ok
  rows, message, code = keeper:execute "@testing_name"
  if not rows then return nil, message, code end
  local name = rows[1].name or ""
  why, message, code = refusal(keeper, name)
  if why then return nil, REFUSED:format(why), "DENIED" end
  if message then return nil, message, code end
  ok, message, code = wait_for(keeper, name)
  if not ok then return nil, message, code end
  local mark = mark_of(name)
  local handle = open_marked(url, mark)
  if not handle then
    handle, message, code = core.open { url = url, no_schema = true }
    if handle then handle, message, code = make_tables(handle, mark) end
  end
  if not handle then return nil, message, code end
  return handle, keeper, url
end

-- -------------------------------------------------------------------------- a kit

local current -- the open one

local meta = { __name = "nightshift.testing", methods = methods }

--- `t.db` is opened when it is asked for, and again after its crash.
function meta.__index(self, key)
  if key ~= "db" then return methods[key] end
  local db = rawget(self, "_db")
  if not (db and db:is_open()) and self._handle:is_open() then
    db = assert(nightshift.open(self.url))
    self._db = db
  end
  return db
end

local function own(self, verb)
  options.own(self, meta, "t", verb)
  if not self._handle:is_open() then raise("%s: this kit is closed", verb) end
  return self._handle
end

-- Ticks are reckoned by the clock on the wall of the tests, which t:advance has moved on. The rows
-- have the instants by the server's.
local next_tick, due_ticks = schedule.next, schedule.due

local function move_ticks(self)
  function schedule.next(def, after, base)
    local by = self._ahead
    local tick = next_tick(def, after + by, base and base + by)
    return tick and tick - by
  end
  function schedule.due(def, first, now)
    local by = self._ahead
    local ticks = due_ticks(def, first + by, now + by)
    for i, tick in ipairs(ticks) do ticks[i] = tick - by end
    return ticks
  end
end

local OPEN = { url = options.typed "string", dir = options.typed "string" }

--- Opens the kit, with no jobs. Without a URL its database is one of the private server of all
-- tests of this user, under ~/.cache/nightshift/testing. A database of a URL must have `test` in
-- its name, and be empty or made by this function. When the kit is open it is given again.
---@param where string|{url: string?, dir: string?}|nil
---@return nightshift.Testing|nil
---@return string? message
---@return string? code
function testing.open(where)
  if type(where) == "string" then where = { url = where } end
  if where ~= nil and type(where) ~= "table" then
    raise("testing.open wants a URL or a table of options, got %s", type(where))
  end
  local given, message, code = options.read("testing.open", where, OPEN)
  if not given then return nil, message, code end
  if given.url and given.dir then raise "testing.open: 'dir' goes without 'url'" end
  local self = current
  if self and (self._given.url ~= given.url or self._given.dir ~= given.dir) then
    return nil, "testing.open: a kit on another server is open; t:close() ends it", "STATE"
  end
  if not self then
    local handle, keeper, url
    if given.url then handle, keeper, url = take_url(given.url) else handle, keeper, url = take_private(given.dir) end
    if not handle then return nil, keeper, url end
    self = setmetatable({ url = url, _handle = handle, _keeper = keeper, _given = given, _ahead = 0 }, meta)
    move_ticks(self)
    options.serve { url = url }
    current = self
  end
  local ok
  ok, message, code = self:clean()
  if ok then return self end
  return nil, message, code
end

--- The names of the tables that are emptied, as JSON.
local function list_tables(handle)
  local rows, message, code = handle:execute "@testing_list"
  if not rows then return nil, message, code end
  local names = core.array {}
  for i, row in ipairs(rows) do names[i] = row.name end
  return core.encode(names)
end

--- Deletes all jobs, schedules, pauses and history, and forgets a crash that has not come and the
-- hours of t:advance. Queues stay; ids go on.
---@return true|nil
---@return string? message
---@return string? code
function methods:clean()
  local handle = own(self, "clean")
  process.disarm(self)
  self._ahead = 0
  local ok, message, code = self._tables, nil, nil
  if not ok then ok, message, code = list_tables(handle) end
  self._tables = ok
  if ok then ok, message, code = handle:execute("@testing_clean", ok) end
  if not ok then return nil, message, code end
  return true
end

local LONGEST <const> = 3155760000 -- seconds, a century

--- So much time passes for all that is in the database: jobs, retries, claims with a lease,
-- deadlines, unique keys and schedules. What becomes due is ready, in its order.
---@param duration number|string
---@return true|nil
---@return string? message
---@return string? code
function methods:advance(duration)
  own(self, "advance")
  local by, message = options.duration(duration, "advance: the time")
  if not by then return nil, message, "INVALID" end
  if by > LONGEST * 1000000 then return nil, "advance: the time is more than a century", "INVALID" end
  return options.values(process.due(self, by))
end

--- Does a value have all that is wanted of it? Of a table that is each key that is given.
local function has(value, wanted)
  if type(wanted) ~= "table" or type(value) ~= "table" then return value == wanted end
  for key, part in next, wanted do
    if not has(value[key], part) then return false end
  end
  return true
end

local PUSHED = { name = options.typed "string", queue = options.typed "string", payload = function(x) return x end }

local function pushed_of(row)
  return { id = row.id, name = row.name, queue = row.queue, payload = core.decode(row.payload), priority = row.priority,
    state = row.state, created = row.created / 1000000, due = row.due and row.due / 1000000, parent = row.parent,
    unique = row.ukey, group = row.group_key, attempts = row.attempts }
end

--- The jobs that were pushed since the last clean, in their order: live and finished ones, children
-- among them. A payload is wanted to have these parts; it may have more.
---@param filter {name: string?, queue: string?, payload: any}?
---@return nightshift.PushedJob[]|nil
---@return string? message
---@return string? code
function methods:pushed(filter)
  local handle = own(self, "pushed")
  local given, message, code = options.read("pushed", filter, PUSHED)
  if not given then return nil, message, code end
  local rows
  rows, message, code = handle:execute "@testing_pushed"
  if not rows then return nil, message, code end
  local list = {}
  for _, row in ipairs(rows) do
    if row.name == (given.name or row.name) and row.queue == (given.queue or row.queue) then
      local one = pushed_of(row)
      if given.payload == nil or has(one.payload, given.payload) then list[#list + 1] = one end
    end
  end
  return list
end

--- The process dies at a point, as by kill -9: see process.lua.
---@param point string
---@param nth integer? 1: the next time, 2: the time after that
---@return true|nil
---@return string? message
---@return string? code
function methods:crash_at(point, nth)
  own(self, "crash_at")
  if type(point) ~= "string" then raise("crash_at: the point must be a string, got %s", type(point)) end
  if nth ~= nil and math.type(nth) ~= "integer" then raise("crash_at: which time must be an integer, got %s", nth) end
  return options.values(process.arm(self, point, nth or 1))
end

--- Runs ready jobs to their ends, in this process: see process.lua.
---@param handlers table|string handlers by name, or a file, or a list of files
---@param opts {may_fail: boolean?, scheduled: boolean?, runs: integer?}?
---@return nightshift.TestedJobs|nil
---@return string? message
---@return string? code
---@return nightshift.TestedJobs? counts
function methods:drain(handlers, opts)
  own(self, "drain")
  return options.values(process.drain(self, handlers, opts))
end

--- Ends the kit. Its database stays for the next one.
function methods:close()
  options.own(self, meta, "t", "close")
  if not self._handle:is_open() then return end
  process.disarm(self)
  process.close(self)
  if rawget(self, "_db") then self._db:close() end
  self._handle:close()
  self._keeper:close()
  options.serve {}
  schedule.next, schedule.due = next_tick, due_ticks
  current = nil
end

meta.__close = methods.close

function meta.__tostring(self) return "nightshift.testing: " .. self.url end

return testing
