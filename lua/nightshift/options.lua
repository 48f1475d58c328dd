--- Checks on callers' arguments: option tables, names, durations.
--
-- Pure: plain values in, plain values out, no database. Two kinds of mistake are kept apart
-- everywhere. A wrong type or an unknown key is a bug in the caller's program and raises at the
-- caller's line. A bad value came from outside and gives `nil, message, "INVALID"`.

local core = require "nightshift.core"
local units = require "nightshift.units"

local options = {}

-- Source prefix of our own modules, to put the blame on the caller's line.
local HOME = debug.getinfo(1, "S").source:match "^(@.*)options%.lua$"

--- Level, for `error` in the calling function, of the nearest Lua function that is not ours. It
-- is 0 (no position) when there is none or a tail call lost it. So a function that may raise is
-- never called as `return f()` in our own code.
local function callers_level()
  local level = 3
  local info = debug.getinfo(level, "St")
  while info do
    local ours = HOME and info.source:sub(1, #HOME) == HOME
    if info.what ~= "C" and not ours then return level - 1 end
    if ours and info.istailcall then return 0 end
    level = level + 1
    info = debug.getinfo(level, "St")
  end
  return 0
end

local SHOWN = 100    -- bytes of the caller's value that a message repeats
local RAISED = 2000  -- bytes of a whole message

--- The beginning of a text that came from outside, for a message: valid UTF-8, short.
---@param text string
---@param max integer? bytes
---@return string
function options.shown(text, max)
  local cut = #text > (max or SHOWN)
  if cut then text = text:sub(1, max or SHOWN) end
  local length, bad = utf8.len(text)
  while not length do
    text = text:sub(1, bad - 1) .. "?" .. text:sub(bad + 1)
    length, bad = utf8.len(text, bad)
  end
  return cut and text .. "…" or text
end

--- Raises "nightshift: …" at the line of the caller's own code.
---@param format string
---@param ... any values for the format
function options.raise(format, ...)
  error("nightshift: " .. options.shown(format:format(...), RAISED), callers_level())
end

local raise = options.raise

local nearest

--- Makes a missing method raise, with the name of one that is like it. Names that begin with "_"
-- are our own, and may be absent.
---@param methods table<string, function>
---@param noun string the word for such an object: "db"
---@return table methods
function options.methods(methods, noun)
  return setmetatable(methods, { __index = function(_, name)
    if type(name) ~= "string" or name:find "^_" then return nil end
    local near = nearest(name, methods)
    raise("%s has no method '%s'%s", noun, options.shown(name), near and ("; did you mean '%s'?"):format(near) or "")
  end })
end

--- Raises unless a method got its object, as `job.ack()` does not.
---@param object any
---@param meta table of such objects
---@param noun string the word for one: "job"
---@param verb string
function options.own(object, meta, noun, verb)
  if getmetatable(object) == meta then return end
  raise("%s.%s: write it with a colon, %s:%s(…); its first argument was %s", noun, verb, noun, verb,
    object == nil and "nil" or "a " .. type(object))
end

--- The values as they are, no nil behind them. For `return options.values(f())`, since behind a
-- tail call of f the caller's line would be lost.
function options.values(...) return ... end

--- A module that few programs need: a function that gives it, and loads it when it is first called.
-- In a host's worker it is loaded at once: its handlers may damage the standard library. Its user may
-- have no right to read our files.
---@param load fun(): table requires it
---@return fun(): table
function options.later(load)
  local module = package.loaded["nightshift.worker"] and load()
  return function()
    module = module or load()
    return module
  end
end

--- Raises when the handle is closed: the core would, too, but blame our line.
---@param handle userdata the core's
---@param verb string
---@return userdata handle
function options.live(handle, verb)
  if handle:is_open() then return handle end
  raise("%s: a closed database handle cannot be used", verb)
end

--- Raises for an argument behind the last one: Lua would drop it in silence.
---@param verb string
---@param takes string the verb's arguments, in words
---@param extra any
function options.no_more(verb, takes, extra)
  if extra ~= nil then raise("%s takes %s; it got a %s behind them", verb, takes, type(extra)) end
end

--- The first place of a list that is nil though the table has more: values behind a hole would
-- be left out in silence.
---@param list table
---@return integer|nil
function options.hole(list)
  local n = 0
  for _ in next, list do n = n + 1 end
  for i = 1, n do
    if rawget(list, i) == nil then return i end
  end
end

--- Are two values that JSON can hold the same?
function options.same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b and math.type(a) == math.type(b) end
  for key, value in pairs(a) do
    if not options.same(value, b[key]) then return false end
  end
  for key in pairs(b) do
    if a[key] == nil then return false end
  end
  return true
end

--- Number of single edits (insert, delete, replace, swap) from a to b.
local function distance(a, b)
  local older, above = nil, {}
  for j = 0, #b do above[j] = j end
  for i = 1, #a do
    local row = { [0] = i }
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      row[j] = math.min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (same and 0 or 1))
      local swapped = older and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j)
      if swapped then row[j] = math.min(row[j], older[j - 2] + 1) end
    end
    older, above = above, row
  end
  return above[#b]
end

--- The known key that is most like `key`, nil when none is near.
---@param key string
---@param known table<string, any>
---@return string|nil
function options.nearest(key, known)
  local best, best_distance
  for candidate in pairs(known) do
    local d = distance(key, candidate)
    if d <= math.max(1, #candidate // 3) and d < #key then
      if not best or d < best_distance or (d == best_distance and candidate < best) then
        best, best_distance = candidate, d
      end
    end
  end
  return best
end

nearest = options.nearest

local function sorted_keys(known)
  local keys = {}
  for key in pairs(known) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

local function unknown(verb, key, known)
  key = type(key) == "string" and options.shown(key) or key
  local near = type(key) == "string" and options.nearest(key, known)
  if near then raise("%s: unknown option '%s'; did you mean '%s'?", verb, key, near) end
  raise("%s: unknown option '%s'; known: %s", verb, tostring(key),
    table.concat(sorted_keys(known), ", "))
end

--- Reads an option table. Each known key has a check that gets the value and
-- "verb: key" and returns the clean value, or nil and a message.
---@param verb string shown in messages
---@param given table|nil
---@param known table<string, fun(value: any, what: string): any, string?>
---@return table|nil clean a new table
---@return string? message
---@return string? code
function options.read(verb, given, known)
  if given == nil then return {} end
  if type(given) ~= "table" then raise("%s: options must be a table, got %s", verb, type(given)) end
  local clean = {}
  for key, value in next, given do
    local check = known[key]
    if not check then unknown(verb, key, known) end
    local good, message = check(value, verb .. ": " .. key)
    if good == nil then return nil, message, "INVALID" end
    clean[key] = good
  end
  return clean
end

--- Check: a duration, seconds or "5m"; gives microseconds.
function options.duration(value, what)
  local kind = type(value)
  if kind ~= "number" and kind ~= "string" then
    raise('%s must be seconds or a text like "5m", got %s', what, kind)
  end
  local us, message = core.duration(value)
  if us then return us end
  return nil, what .. ": " .. message
end

--- Check: as duration, or false for "never", which gives -1.
function options.duration_or_never(value, what)
  if value == false then return -1 end
  local us, message = options.duration(value, what)
  return us, message
end

local UNITS = { [""] = 1, K = 1 << 10, M = 1 << 20, G = 1 << 30 }
local MAX_SIZE = 1 << 50

--- Check: a number of bytes, or a text like "64M"; at least 64 KiB.
function options.size(value, what)
  local digits, unit = tostring(value):upper():match "^(%d+)([KMG]?)$"
  if not digits then
    return nil, ('%s must be bytes or a text like "64M" (K, M, G), got %s'):format(what, options.shown(tostring(value)))
  end
  local n = math.tointeger(tonumber(digits))
  if not n or n > MAX_SIZE // UNITS[unit] then
    return nil, ("%s is too large: at most %dG, got %s"):format(what, MAX_SIZE // UNITS.G, value)
  end
  n = n * UNITS[unit]
  if n >= UNITS.K * 64 then return n end
  return nil, ("%s must be at least 64K, got %s"):format(what, value)
end

--- Makes a check for a whole number within bounds.
---@param min integer
---@param max integer
function options.integer(min, max)
  return function(value, what)
    if type(value) ~= "number" then raise("%s must be a whole number, got %s", what, type(value)) end
    local whole = math.tointeger(value)
    if whole and whole >= min and whole <= max then return whole end
    return nil, ("%s must be a whole number from %d to %d, got %s"):format(what, min, max, value)
  end
end

--- Makes a check for a value of one type.
---@param kind type
function options.typed(kind)
  return function(value, what)
    if type(value) ~= kind then raise("%s must be a %s, got %s", what, kind, type(value)) end
    return value
  end
end

--- Check: text of any length that the database can keep.
function options.text(value, what)
  if type(value) ~= "string" then raise("%s must be a string, got %s", what, type(value)) end
  local length, bad = utf8.len(value)
  if length then return value end
  return nil, ("%s is not valid UTF-8 at byte %d"):format(what, bad)
end

--- Makes a check for one of some words.
---@param ... string
function options.one_of(...)
  local words = { ... }
  return function(value, what)
    if type(value) ~= "string" then raise("%s must be a string, got %s", what, type(value)) end
    for _, word in ipairs(words) do
      if value == word then return word end
    end
    return nil, ("%s must be one of %s, got '%s'"):format(what, table.concat(words, ", "), options.shown(value))
  end
end

--- Is the text a usable name: not empty, within the limit, valid UTF-8, no
-- control characters?
---@param what string e.g. "queue name"
---@param text string
---@param max integer bytes
---@return true|nil ok
---@return string? message
---@return string? code
function options.name(what, text, max)
  if text == "" then return nil, what .. " is empty", "INVALID" end
  if #text > max then
    return nil, ("%s has %d bytes, the limit is %d"):format(what, #text, max), "INVALID"
  end
  local at = text:find "%c" or text:find "\xC2[\x80-\x9F]"
  if at then
    return nil, ("%s has a control character at byte %d"):format(what, at), "INVALID"
  end
  local length, bad = utf8.len(text)
  if not length then
    return nil, ("%s is not valid UTF-8 at byte %d"):format(what, bad), "INVALID"
  end
  return true
end

-- Limits of names in bytes; the core checks them again.
options.MAX_QUEUE = 64
options.MAX_CHILDREN = 2000 -- of one run, unless told: they are written with its verdict, in one transaction
options.MAX_NAME = 100

local MAX_UNIQUE = 190 -- characters
local CENTURY = 3155760000 -- seconds; no duration of a job is longer
local LAST_INSTANT = 32503680000 -- the year 3000, in seconds since 1970

--- Check: a key, which unlike a name may be any text: it is compared byte by
-- byte, and shown escaped.
local function unique(value, what)
  if type(value) ~= "string" then raise("%s must be a string, got %s", what, type(value)) end
  if value == "" then return nil, ("%s is empty; it must have 1 to %d characters"):format(what, MAX_UNIQUE) end
  local length, bad = utf8.len(value)
  if not length then return nil, ("%s is not valid UTF-8 at byte %d"):format(what, bad) end
  if value:find "^row:" then
    return nil, ("%s begins with 'row:', as those of adopted rows do; choose another beginning"):format(what)
  end
  if value:find "^dead:" then
    return nil, ("%s begins with 'dead:', as those of jobs pushed for dead ones do; choose another beginning"):format(
      what)
  end
  if length <= MAX_UNIQUE then return value end
  return nil, ("%s has %d characters, the limit is %d"):format(what, length, MAX_UNIQUE)
end

--- Makes a check for a duration of a job, at least so many µs long.
local function span(least)
  return function(value, what)
    local us, message = options.duration(value, what)
    if not us then return nil, message end
    if us < least then return nil, ("%s must be at least a microsecond, got %s"):format(what, value) end
    if us <= CENTURY * 1000000 then return us end
    return nil, ("%s must be at most %d s (100 years), got %s"):format(what, CENTURY, value)
  end
end

local CONFLICTS = { refuse = 0, keep = 1, replace = 2 } -- as the core has them
local UNIQUE = { key = unique, period = span(1), on_conflict = options.one_of("refuse", "keep", "replace") }

--- Check: a key, or {key =, period =, on_conflict =}; gives the latter.
local function unique_push(value, what)
  if type(value) ~= "table" then
    if type(value) ~= "string" then
      raise("%s must be a string or {key =, period =, on_conflict =}, got %s", what, type(value))
    end
    local key, message = unique(value, what)
    if not key then return nil, message end
    return { key = key }
  end
  local read, message = options.read(what, value, UNIQUE)
  if not read then return nil, message end
  if not read.key then raise("%s has no key", what) end
  return read
end

-- How often something may happen to a job before it is dead.
options.COUNT = options.integer(1, 1000000)
options.POLLS = options.integer(1, 1000000000)

options.PHASES = options.integer(0, 1000000) -- 0: no limit

local MAX_AFTER = 100000

--- The ids of jobs to wait for, as the core takes them.
local function after(value, what)
  if type(value) ~= "table" then raise("%s must be a list of job ids, got a %s", what, type(value)) end
  if next(value) == nil then return nil, what .. " must be a list of job ids; this one is empty" end
  local hole = options.hole(value)
  if hole then raise("%s must be a list without holes; item %d is nil", what, hole) end
  if #value > MAX_AFTER then return nil, ("%s has %d ids, the limit is %d"):format(what, #value, MAX_AFTER) end
  for i, id in ipairs(value) do
    if type(id) ~= "number" then raise("%s: item %d must be a job's id, got a %s", what, i, type(id)) end
    if math.type(id) ~= "integer" or id < 1 then
      return nil, ("%s: item %d must be a job's id, got %s"):format(what, i, id)
    end
  end
  return "[" .. table.concat(value, ",") .. "]"
end

--- Check: names of jobs, at least one; a list of its own comes back.
function options.names(value, what)
  if type(value) ~= "table" then raise("%s must be a list of job names, got %s", what, type(value)) end
  local hole = options.hole(value)
  if hole then raise("%s must be a list without holes; item %d is nil", what, hole) end
  if #value == 0 then return nil, what .. " is empty; leave it out to claim jobs of all names" end
  local names = {}
  for i, name in ipairs(value) do
    if type(name) ~= "string" then raise("%s: item %d must be a job's name, got %s", what, i, type(name)) end
    if name == "" or #name > options.MAX_NAME or name:find "[%z\1-\31\127]" then
      return nil, ("%s: item %d is no job's name; one has 1 to %d bytes, and no control characters"):format(
        what, i, options.MAX_NAME)
    end
    names[i] = name
  end
  return names
end

--- Check: an instant, seconds since 1970 UTC, or the same as an RFC 3339 text; gives microseconds.
function options.instant(value, what)
  local kind = type(value)
  if kind ~= "number" and kind ~= "string" then
    raise('%s must be seconds since 1970 or a text like "2030-01-31T12:00:00Z", got %s', what, kind)
  end
  local seconds = value
  if kind == "string" then seconds = units.instant_of(value) end
  if not seconds then
    return nil, ('%s must be seconds since 1970 or a text like "2030-01-31T12:00:00Z", got \'%s\''):format(what,
      options.shown(value))
  end
  if seconds > 0 and seconds <= LAST_INSTANT then return math.floor(seconds * 1000000 + 0.5) end
  return nil, ("%s must be after 1970 and before the year 3000, got %s"):format(what, value)
end

--- Check: any JSON value; gives its text.
local function json(value, what)
  local text, message = core.encode(value, math.maxinteger, what)
  if text then return text end
  return nil, message
end

local MAX_TAGS, MAX_TAG = 16, 64 -- of a job; characters

local function check_tag(tag, what)
  if type(tag) ~= "string" then raise("%s must be a text, got %s", what, type(tag)) end
  local length, bad = utf8.len(tag)
  if not length then return nil, ("%s is not valid UTF-8 at byte %d"):format(what, bad) end
  if tag:find "%c" or tag:find "\xC2[\x80-\x9F]" then return nil, what .. " has a control character" end
  if length >= 1 and length <= MAX_TAG then return true end
  return nil, ("%s has %d characters; it must have 1 to %d"):format(what, length, MAX_TAG)
end

--- Check: a list of tags, which may be empty; gives it sorted, as JSON text.
local function tags(value, what)
  if type(value) ~= "table" then raise("%s must be a list of texts, got a %s", what, type(value)) end
  local hole = options.hole(value)
  if hole then raise("%s must be a list without holes; item %d is nil", what, hole) end
  local list, seen = core.array {}, {}
  for i, tag in ipairs(value) do
    local ok, message = check_tag(tag, ("%s: item %d"):format(what, i))
    if not ok then return nil, message end
    if not seen[tag] then list[#list + 1], seen[tag] = tag, true end
  end
  if #list > MAX_TAGS then return nil, ("%s has %d tags, the limit is %d"):format(what, #list, MAX_TAGS) end
  return (core.encode(list))
end

local MAX_GROUP = 190 -- characters

--- Check: what the limits of groups go by.
local function group(value, what)
  if type(value) ~= "string" then raise("%s must be a text, got a %s", what, type(value)) end
  local length, bad = utf8.len(value)
  if not length then return nil, ("%s is not valid UTF-8 at byte %d"):format(what, bad) end
  if value:find "%c" or value:find "\xC2[\x80-\x9F]" then return nil, what .. " has a control character" end
  if length >= 1 and length <= MAX_GROUP then return value end
  return nil, ("%s has %d characters; it must have 1 to %d"):format(what, length, MAX_GROUP)
end

--- What db:update changes; the core checks it again.
options.UPDATE = {
  payload = json,
  queue = options.typed "string",
  priority = options.integer(0, 255),
  due = options.instant,
  max_attempts = options.COUNT,
  tags = tags,
  group = function(value, what) return value == false and "" or group(value, what) end,
  set = options.typed "table", -- change.lua makes a function of it, so it is never read
}

--- The options of a push; the core checks them again.
options.PUSH = {
  after = after,
  on_fail = options.one_of("cancel", "run"),
  parent = options.integer(1, math.maxinteger),
  id = options.integer(1, math.maxinteger),
  delay = span(0),
  at = options.instant,
  tags = tags,
  group = group,
  priority = options.integer(0, 255),
  decay = options.integer(0, 255),
  unique = unique_push,
  max_attempts = options.COUNT,
  max_polls = options.POLLS,
  max_phases = options.PHASES,
  max_crashes = options.COUNT,
  backoff = span(0),
  timeout = span(1),
  deadline = span(0),
}

--- The options of a push of one job; it may wait for room in a queue that is full.
options.PUSH_ONE = { wait = options.duration }
for key, check in pairs(options.PUSH) do options.PUSH_ONE[key] = check end

--- Check: as above for a job that has its id before the key is asked for.
local function unique_own(value, what)
  local read, message = unique_push(value, what)
  local word = read and read.on_conflict
  if word == "keep" or word == "replace" then
    return nil, ("%s: on_conflict '%s' is for push and push_many; a child or node of a flow is its own job"):format(
      what, word)
  end
  return read, message
end

--- The options of a child, which may go to another queue, and has its parent.
options.SPAWN = { queue = options.typed "string" }
for key, check in pairs(options.PUSH) do options.SPAWN[key] = check end
options.SPAWN.parent, options.SPAWN.id, options.SPAWN.unique = nil, nil, unique_own

--- The options of a node of a flow.
options.FLOW = {}
for key, check in pairs(options.PUSH) do options.FLOW[key] = check end
options.FLOW.id, options.FLOW.unique = nil, unique_own

--- Makes one entry for the core's push: options in microseconds, name and payload. A payload of
-- nil is JSON null. The core checks name and payload.
---@param verb string shown in messages
---@param name string
---@param payload any
---@param given table|nil
---@param known table? options.PUSH unless told
---@return table|nil entry
---@return string? message
---@return string? code
function options.entry(verb, name, payload, given, known)
  if type(name) ~= "string" then raise("%s: the job's name must be a string, got %s", verb, type(name)) end
  if payload == nil then payload = core.null end
  if given == nil then return { name = name, payload = payload } end
  local entry, message, code = options.read(verb, given, known or options.PUSH)
  if not entry then return nil, message, code end
  if entry.at and entry.delay then return nil, verb .. ": 'at' and 'delay' exclude each other", "INVALID" end
  if entry.tags == "[]" then entry.tags = nil end
  entry.name, entry.payload = name, payload
  entry.on_fail_run, entry.on_fail = entry.on_fail == "run" and 1 or nil, nil
  entry.again = entry.id and 1 -- of a push that ended in doubt
  local own = entry.unique
  if own then
    entry.unique, entry.period, entry.on_conflict = own.key, own.period, CONFLICTS[own.on_conflict]
  end
  return entry
end

-- ------------------------------------------------------------------- the address

-- The database when no address is given: $NIGHTSHIFT_URL, or, inside a worker, the database that
-- its host serves. A worker's environment has no URL: programs that a handler starts need not know
-- the password.
local served
local in_host = false

--- Options for nightshift.open, or nil: the private server of the folder.
---@return table|nil
function options.address()
  if served then return served end
  local url = os.getenv "NIGHTSHIFT_URL"
  return url and url ~= "" and { url = url } or nil
end

--- From now on this is the default: the host's own connection.
---@param connection table options of nightshift.open; empty: the private server
function options.serve(connection)
  served, in_host = next(connection) and connection or nil, true
end

--- Is this the code of a host: its scripts, in a worker?
---@return boolean
function options.is_in_host() return in_host end

return options
