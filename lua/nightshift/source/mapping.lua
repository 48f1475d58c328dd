--- The mapping of an adopted table: the use of each of its columns, checked against the live
-- table.
--
-- A mapping that has passed is true of the table as it is. Every name is a column's, as the
-- server writes it. Every value of the status can be in its column, and the states can be told
-- apart. A fault is named, with the present state, before anything is written.

local core = require "nightshift.core"
local failure = require "nightshift.failure"
local options = require "nightshift.options"

local caught, fail, must, raise = failure.caught, failure.fail, failure.must, options.raise

---@class nightshift.source.Field a live column
---@field name string
---@field type string as the server writes it: "enum('a','b')"
---@field kind "whole"|"text"|"words"|"time"|"other"
---@field nullable boolean
---@field primary boolean
---@field generated boolean the server makes its value, and it is never written
---@field json boolean the server sees to it that it holds JSON
---@field charset string|nil
---@field collation string|nil
---@field least integer|nil of whole numbers
---@field most integer|nil of whole numbers; of text its characters

---@class nightshift.source.Mapping
---@field table string
---@field fields nightshift.source.Field[]
---@field keys nightshift.source.Field[] the primary key
---@field engine string|nil nil: the table is being altered
---@field parts table<string, nightshift.source.Field> by their use
---@field states table<string, any> open, processing, done, failed, parent_done: values of the status
---@field push table options of the push of each job
---@field zone string in which times without a zone are written
local mapping = {}

-- ------------------------------------------------------------- the options

local column = options.typed "string"

--- Check: a value of the status column. A boolean is a number.
local function state(value, what)
  local kind = type(value)
  if kind == "boolean" then return value and 1 or 0 end
  if kind == "string" or math.type(value) == "integer" or value == core.null then return value end
  raise("%s must be text, a whole number, a boolean or nightshift.null, got %s", what,
    kind == "number" and value or kind)
end

--- Makes a check for a column by its name, or a table that names it and more.
local function part(known)
  return function(value, what)
    if type(value) == "string" then return { column = value } end
    if type(value) ~= "table" then raise("%s must be a table or a column's name, got %s", what, type(value)) end
    local given, message = options.read(what, value, known)
    if given and not given.column then raise("%s: 'column' is missing", what) end
    return given, message
  end
end

local column_of = part { column = column }

--- Check: text, or {column =} that has the text.
local function text_or_column(value, what)
  if type(value) == "string" then return { text = value } end
  return column_of(value, what)
end

--- Check of an option that was removed: raises the advice.
local function gone(advice)
  return function() raise("adopt: %s", advice) end
end

local SECOND = 1000000 -- µs

--- Check: seconds between two looks at a table without open rows.
local function every(value, what)
  local us, message = options.duration(value, what)
  if not us then return nil, message end
  if us >= SECOND // 20 and us <= 60 * SECOND then return us end
  return nil, ("%s must be from 0.05 to 60 seconds"):format(what)
end

-- The parts in the order of their checks; then the options of a push that all of its jobs have,
-- and the states.
local PARTS = { "id", "status", "claimed_by", "claimed_at", "completed_at", "started", "updated", "retry_after",
  "host", "attempts", "attempts_left", "priority", "parent", "name", "payload" }
local PUSH = { "max_polls", "max_crashes", "deadline", "timeout", "backoff" }
local STATES = { "open", "processing", "done", "failed", "parent_done" }

local MAPPING = {
  strategy = gone "there is one way to claim: leave 'strategy' out",
  allow_alter = gone "no triggers are added to a table, which is looked at each second: leave 'allow_alter' out",
  table = column, status = part { column = column, open = state, processing = state, done = state, failed = state },
  priority = part { column = column, higher_first = options.typed "boolean", decay = options.integer(0, 1 << 31) },
  parent = part { column = column, done = state }, name = text_or_column, payload = column_of,
  max_attempts = options.COUNT, overdue = options.duration, order = options.one_of("id", "-id"),
  alone = options.typed "boolean", time_zone = column, every = every,
}
for _, name in ipairs(PARTS) do MAPPING[name] = MAPPING[name] or column end
for _, name in ipairs(PUSH) do MAPPING[name] = options.PUSH[name] end

--- The name of a part, or a state, in messages.
local function called(name) return MAPPING[name] == column and name or name .. ".column" end

local function state_called(name) return name == "parent_done" and "parent.done" or "status." .. name end

--- The options as this page wants them: names of columns in `columns`, by part.
local function flat(given)
  local priority, name = given.priority or {}, given.name or {}
  local map = { table = given.table, columns = {}, states = {}, parts = {}, push = {},
    max_attempts = given.max_attempts, overdue = given.overdue, zone = given.time_zone, alone = given.alone,
    every = given.every, handler = name.text or not name.column and given.table or nil,
    decay = priority.decay or 0, lower_first = priority.higher_first == false, newest_first = given.order == "-id" }
  for _, part_name in ipairs(PARTS) do
    local one = given[part_name]
    if type(one) == "table" then one = one.column end
    map.columns[part_name] = one or part_name == "id" and "id" or nil
  end
  for _, state_name in ipairs(STATES) do map.states[state_name] = given.status[state_name] end
  map.states.parent_done = given.parent and given.parent.done
  for _, option in ipairs(PUSH) do map.push[option] = given[option] end
  return map
end

--- Reads a mapping, without a look at the table.
---@type fun(given: table): nightshift.source.Mapping|nil, string?, string?
mapping.read = caught(function(given)
  if type(given) ~= "table" then raise("adopt wants a table of options, got %s", type(given)) end
  local read = must(options.read("adopt", given, MAPPING))
  for _, needed in ipairs { "table", "status" } do
    if not read[needed] then raise("adopt: '%s' is missing", needed) end
  end
  local map, json, message = flat(read), core.encode(given)
  if not json then fail("INVALID", "adopt: %s", (message:gsub("^payload%.", ""))) end
  map.given = json
  return map
end)

-- ------------------------------------------------------------ the live columns

local function invalid(format, ...) fail("INVALID", "adopt: " .. format, ...) end

local KINDS = {}
for kind, types in pairs {
  whole = "tinyint smallint mediumint int bigint", words = "enum", time = "datetime timestamp date",
  text = "char varchar tinytext text mediumtext longtext",
} do
  for name in types:gmatch "%a+" do KINDS[name] = kind end
end

local BITS = { tinyint = 8, smallint = 16, mediumint = 24, int = 32, bigint = 64 }

--- Sets the limits of a whole number, so that counting stops there.
local function set_limits(field, name)
  local natural = field.type:find "unsigned" ~= nil
  local bits = BITS[name]
  field.most = bits < 64 and (1 << (natural and bits or bits - 1)) - 1 or math.maxinteger
  field.least = natural and 0 or -field.most - 1
end

--- A name of the server's that goes into statements as it is.
local function word(text) return text and text:find "^[%w_]+$" and text or nil end

local function field_of(row)
  local name = row.data_type:lower()
  local field = { name = row.name, type = row.type, kind = KINDS[name] or "other", nullable = row.nullable ~= 0,
    primary = row.is_primary ~= 0, json = row.is_json ~= 0, generated = row.is_generated ~= 0 }
  field.charset, field.collation = word(row.charset), word(row.collation)
  if field.kind == "whole" then set_limits(field, name) end
  if field.kind == "text" then field.most = row.length end
  return field
end

--- A name in backticks; a backtick in it is doubled.
---@param name string
---@return string
function mapping.quoted(name) return "`" .. name:gsub("`", "``") .. "`" end

--- A template of sql/query with its marks filled in: names in backticks, and texts that are made
--- of names and literals.
---@param name string
---@param marks table<string, string>
---@return string
function mapping.fill(name, marks)
  return (core.sql(name):gsub("{(%l+)}", marks))
end

local TRIES, AGAIN = 20, 0.02 -- seconds; while another session alters it the server's lists may lack its key

--- Is the table there? Waits for a session that alters it.
local function is_there(handle, name)
  return handle:execute("@:" .. mapping.fill("source_there", { table = mapping.quoted(name) }))
end

--- Reads the live columns of the table, its keys, its engine, and the server's time zone.
local function read_fields(map, handle)
  local name = map.table
  if name:lower():find "^nightshift_" then invalid("'%s' is, by its name, a table of nightshift's own", name) end
  for _ = 1, TRIES do
    map.fields, map.keys = {}, {}
    for i, row in ipairs(must(handle:execute("@source_columns", name, name, name, name))) do
      map.fields[i], map.engine, map.zone = field_of(row), row.engine, map.zone or row.zone
      map.keys[#map.keys + 1] = map.fields[i].primary and map.fields[i] or nil
    end
    if #map.keys > 0 or not is_there(handle, name) then break end
    core.sleep(AGAIN)
  end
  if #map.fields > 0 then return end
  fail("NOT_FOUND", "adopt: there is no table '%s' in this database, or this user may not see it", name)
end

-- ------------------------------------------------------------------- columns

local function find_columns(map)
  for _, name in ipairs(PARTS) do
    local wanted = map.columns[name]
    for _, field in ipairs(wanted and map.fields or {}) do
      if field.name:lower() == wanted:lower() then map.parts[name] = field end
    end
    if wanted and not map.parts[name] then
      local names = {}
      for i, field in ipairs(map.fields) do names[i] = field.name end
      invalid("%s: table '%s' has no column '%s'; it has: %s", called(name), map.table, options.shown(wanted),
        table.concat(names, ", "))
    end
  end
end

local CLAIMANT = 20 -- characters of claimed_by, at least: "ns:" and the id of a job
local LONGEST = (1 << 31) - 1 -- seconds since 1970 that a column holds, at least

local function whole(field) return field.kind == "whole", "a whole number" end

local function text(field) return field.kind == "text", "text" end

--- From some times it is reckoned how much later it is: a day is not enough for that.
local function time(field, map, name)
  local reckoned = name == "retry_after" or name == "claimed_at" and map.overdue
  if field.kind == "whole" then return field.most >= LONGEST, "INT or BIGINT to hold seconds since 1970" end
  if field.kind ~= "time" then return false, "a date and time, or whole seconds since 1970" end
  return not (reckoned and field.type:lower() == "date"), "a date with a time"
end

-- Does a column fit its part? And the type that it must have, in words; by part.
local CHECKS = {
  id = whole, priority = whole, parent = whole, attempts = whole, attempts_left = whole, host = text,
  claimed_at = time, completed_at = time, started = time, updated = time, retry_after = time,
  name = function(field) return field.kind == "text" or field.kind == "words", "text" end,
  claimed_by = function(field)
    return field.kind == "text" and field.most >= CLAIMANT, ("text of %d characters or more"):format(CLAIMANT)
  end,
}

-- Parts that are only read.
local READ = { id = true, parent = true, name = true, payload = true }

--- Each part's column is of the kind that the part needs.
local function check_kinds(map)
  for _, name in ipairs(PARTS) do
    local field, fits, wants = map.parts[name], true, nil
    if field and CHECKS[name] then fits, wants = CHECKS[name](field, map, name) end
    if not fits then invalid("%s: column '%s' is %s; it must be %s", called(name), field.name, field.type, wants) end
    if field and field.generated and not (READ[name] or name == "priority" and map.decay == 0) then
      invalid("%s: column '%s' is GENERATED, and here it must be one that can be written", called(name), field.name)
    end
  end
  local counter = map.parts.attempts or map.parts.attempts_left
  if counter and (map.max_attempts or 0) > counter.most then
    invalid("max_attempts: column '%s' is %s and ends at %d, before %d", counter.name, counter.type, counter.most,
      map.max_attempts)
  end
end

--- A row is one row of its id, and found by it.
local function check_key(map)
  local name, keys = map.parts.id.name, map.keys
  if #keys == 1 and keys[1] == map.parts.id then return end
  local has = ("that has %d columns: make them a UNIQUE key, and a number the primary one"):format(#keys)
  if #keys == 1 then has = ("that is '%s': name that"):format(keys[1].name) end
  if #keys == 0 then
    local quoted = mapping.quoted
    has = ("'%s' has none: ALTER TABLE %s ADD PRIMARY KEY (%s)"):format(map.table, quoted(map.table), quoted(name))
  end
  invalid("id: column '%s' must be the primary key, by itself, and %s", name, has)
end

--- Each part has a column of its own. A date may serve as the status, and be the date of just
-- that event.
local function check_shared(map)
  local uses = {} -- the part that a column was seen for
  for _, name in ipairs(PARTS) do
    local field = map.parts[name]
    local one = field and uses[field]
    local event = one == "status" and field.kind == "time" and (name == "claimed_at" or name == "completed_at")
    if one and not event then
      invalid("%s and %s are both column '%s': each needs one of its own", called(one), called(name), field.name)
    end
    if field then uses[field] = name end
  end
end

-- -------------------------------------------------------------- status values

local function is_date(value)
  return type(value) == "string" and (value:find "^%d%d%d%d%-%d%d%-%d%d$" ~= nil
    or value:find "^%d%d%d%d%-%d%d%-%d%d %d%d:%d%d:%d%d$" ~= nil)
end

--- Is a state a special date, and not any date?
---@param map nightshift.source.Mapping
---@param name string of the state
---@return boolean
function mapping.is_date(map, name)
  return map.parts.status.kind == "time" and is_date(map.states[name])
end

--- The words of "enum('a','b''c')".
local function words(kind)
  local list = {}
  for text_in in kind:gsub("''", "\1"):gmatch "'([^']*)'" do list[text_in:gsub("\1", "'")] = true end
  return list
end

--- Can a value be in the status column? And how a message says that it cannot.
local function fits(field, value)
  if value == core.null then return field.nullable, "is never NULL:" end
  if field.kind == "words" then return type(value) == "string" and words(field.type)[value], "is" end
  if field.kind == "time" then return value == "now" or is_date(value), 'knows "now", null and dates and is' end
  return field.kind ~= "whole" or math.type(value) and value >= field.least and value <= field.most, "is"
end

local function check_value(map, name, value)
  local field = map.parts.status
  local good, why = fits(field, value)
  if good then return end
  local shown = value == core.null and "NULL" or type(value) == "string" and "'" .. options.shown(value) .. "'" or value
  invalid("%s: %s is no value of column '%s', which %s %s", state_called(name), shown, field.name, why, field.type)
end

--- Each state is a value of its own.
local function check_states(map)
  local seen = {}
  for _, name in ipairs(STATES) do
    local value = map.states[name]
    local key = type(value) == "string" and value:lower() or value
    if value ~= nil then check_value(map, name, value) end
    if value ~= nil and name ~= "parent_done" then
      if seen[key] then
        invalid("%s and %s are the same, so nobody can tell such rows apart", state_called(seen[key]),
          state_called(name))
      end
      seen[key] = name
    end
  end
end

-- ---------------------------------------------------------------- all of it

--- Does the row say that it is claimed?
---@param map nightshift.source.Mapping
function mapping.shows_claims(map) return map.states.processing ~= nil or map.parts.claimed_by ~= nil end

local function shows_end(map) -- a row that has failed for good; it would look like an open one
  local parts = map.parts
  return map.states.failed ~= nil or parts.attempts_left or parts.attempts and map.max_attempts
end

-- Mappings that are no use: how to know one, and what is said of it.
local REFUSALS = {
  { function(map) return map.parts.attempts and map.parts.attempts_left end,
    "attempts are counted up ('attempts') or down ('attempts_left'), not both" },
  { function(map) return map.overdue and not map.parts.claimed_at end,
    "'overdue' needs to know since when a row is claimed: name the column 'claimed_at'" },
  { function(map) return not mapping.shows_claims(map) and not map.alone end,
    "what shows that a row of '{table}' is taken? 'status.processing', or a 'claimed_by' column. "
      .. "Where there is neither, and no other program works on the table, say alone = true" },
  { function(map) return map.states.open == nil end, "'status.open' is needed" },
  { function(map) return map.states.done == nil and not map.parts.completed_at end,
    "how is a row marked as done? By 'status.done', or by a 'completed_at' column" },
  { function(map) return not mapping.shows_claims(map) and not shows_end(map) end,
    "what ends a row of '{table}' that has failed for good? 'status.failed', 'attempts_left', or 'attempts' "
      .. "and 'max_attempts'" },
  { function(map) return map.engine and map.engine ~= "InnoDB" end, -- none: the table is being altered
    "table '{table}' is {engine}, which has no row locks: ALTER TABLE {table} ENGINE=InnoDB" },
}

local function check_use(map)
  for _, refusal in ipairs(REFUSALS) do
    local is_refused, message = table.unpack(refusal)
    if is_refused(map) then invalid("%s", (message:gsub("{(%l+)}", map))) end
  end
end

--- Written into statements, so it may only look like a time zone.
local function check_zone(map, handle)
  if #map.zone > 64 or not map.zone:find "^[%w_/+:-]+$" then
    invalid("time_zone must be like \"+02:00\" or \"Europe/Vienna\", not '%s'", options.shown(map.zone))
  end
  local ok, message, code = handle:execute("@:" .. mapping.fill("source_try", { zone = map.zone }))
  if code == "SQL" then
    invalid("the server does not know the time zone '%s'; names like Europe/Vienna need its tables: "
      .. "mariadb-tzinfo-to-sql", map.zone)
  end
  must(ok, message, code)
end

--- Reads a mapping and checks it against the live table.
---@type fun(handle: userdata, given: table): nightshift.source.Mapping|nil, string?, string?
mapping.check = caught(function(handle, given)
  local map = must(mapping.read(given))
  for _, check in ipairs { read_fields, find_columns, check_kinds, check_key, check_states, check_use, check_shared,
    check_zone } do
    check(map, handle)
  end
  return map
end)

return mapping
