--- The statements of an adopted table, made of its mapping. They tell which rows may be taken
-- in, which are a job's, and which have ended, and they write the columns.
--
-- Rules say what makes a statement: texts with marks. The mark {claimed_by} is that part's column,
-- or the rule of that name; {now updated} is a function of the maker with an argument. A text with
-- a mark that the mapping has nothing for is nil itself, and is left out. Values of the mapping
-- stand in the texts as literals, names in backticks. The parameters are one list in JSON, and
-- numbers. A statement is made at its first use.
--
-- Every statement runs in UTC, so each time is an instant. Columns without a zone are read and
-- written through the mapping's zone, in which hours may be missing or come twice.

local core = require "nightshift.core"
local failure = require "nightshift.failure"
local mapping = require "nightshift.source.mapping"

local text = {}

local must = failure.must
local quoted = mapping.quoted

--- Makes the texts of one table.
---@class nightshift.source.Maker
---@field map nightshift.source.Mapping
---@field parts table<string, nightshift.source.Field>
---@field states table<string, any>
---@field row string the alias of the row
---@field job string the id of its job
local Maker = {}
Maker.__index = Maker

--- A value as text of a statement; only letters of numbers come of it.
local function literal(value)
  if value == core.null then return "NULL" end
  if type(value) == "number" then return ("%d"):format(value) end
  return ("_utf8mb4 X'%s'"):format((value:gsub(".", function(c) return ("%02X"):format(c:byte()) end)))
end

--- The column of a part.
function Maker:column(part)
  local field = self.parts[part]
  return field and self.row .. "." .. quoted(field.name)
end

--- A text with its marks filled in, and values for {1}, {2}; nil: one of them is not there.
function Maker:sql(words, ...)
  local values, whole = { ... }, true
  words = words:gsub("{([%w_]+) ?([%l_]*)}", function(mark, argument)
    local value
    if argument ~= "" then value = self[mark](self, argument)
    elseif tonumber(mark) then value = values[tonumber(mark)]
    else value = self:column(mark) or self:rule(mark) end
    whole = whole and value
    return value or nil
  end)
  return whole and words or nil
end

--- The same for another row, or job: fields that differ.
function Maker:with(changes)
  for key, value in pairs(self) do changes[key] = changes[key] or value end
  return setmetatable(changes, Maker)
end

-- --------------------------------------------------------------------- times

--- Has the column a time without a zone?
local function is_local(field) return field.kind == "time" and not field.type:lower():find "^timestamp" end

--- An instant, in UTC, as the column has it.
function Maker:as_column(part, instant)
  local field = self.parts[part]
  if field and field.kind == "whole" then return self:sql("CEIL(UNIX_TIMESTAMP({1}))", instant) end
  return field and is_local(field) and self:sql("CONVERT_TZ({1}, '+00:00', '{2}')", instant, self.map.zone) or instant
end

--- The column's value as an instant in UTC. In an hour that comes twice it may mean two
-- instants; this is the later.
function Maker:instant(part)
  local field, column = self.parts[part], self:column(part)
  if field and field.kind == "whole" then return self:sql("FROM_UNIXTIME({1})", column) end
  if not field or not is_local(field) then return column end
  return self:sql("(CONVERT_TZ({1}, '{2}', '+00:00') + INTERVAL (CONVERT_TZ(CONVERT_TZ({1}, '{2}', '+00:00') "
    .. "+ INTERVAL 1 HOUR, '+00:00', '{2}') = {1}) HOUR)", column, self.map.zone)
end

local NOW = "UTC_TIMESTAMP(6)"

function Maker:now(part)
  local field = self.parts[part]
  return field and (field.kind == "whole" and "UNIX_TIMESTAMP()" or self:as_column(part, NOW))
end

--- Is the time of a column at least so many µs ago? NULL is not.
function Maker:is_past(part, us)
  local field = self.parts[part]
  if field and field.kind == "whole" then
    return self:sql("{1} <= UNIX_TIMESTAMP() - CEIL({2} / 1000000)", self:column(part), us)
  end
  return self:sql("{1} <= {2} - INTERVAL {3} MICROSECOND", self:instant(part), NOW, us)
end

--- ... by now; ... by as long as a parameter says.
function Maker:over(part) return self:is_past(part, 0) end

function Maker:old(part) return self:is_past(part, "?") end

--- µs until the time of a column; NULL: it is over.
function Maker:left(part)
  return self:sql("NULLIF(GREATEST(TIMESTAMPDIFF(MICROSECOND, {1}, {2}), 0), 0)", NOW, self:instant(part))
end

--- µs of the least that a column of time can say.
local function unit_of(field)
  if field.kind == "whole" then return 1000000 end
  return 10 ^ (6 - (tonumber(field.type:match "%((%d)%)") or 0)) // 1 | 0
end

-- -------------------------------------------------------------------- states

--- A text as its column compares it; with another collation an index would not do.
function Maker:collated(part, value)
  local field = self.parts[part]
  if not (field and field.charset and field.collation) then return value end
  return self:sql("CONVERT({1} USING {2}) COLLATE {3}", value, field.charset, field.collation)
end

--- A value of the status.
function Maker:value(name)
  local field, value = self.parts.status, self.states[name]
  if type(value) ~= "string" then return value ~= nil and literal(value) or nil end
  if field.kind == "time" and not is_local(field) then
    return self:sql("CONVERT_TZ(CAST({1} AS DATETIME), '{2}', '+00:00')", literal(value), self.map.zone)
  end
  return self:collated("status", literal(value))
end

--- Is a state any date, except for dates of other states?
function Maker:is_any(name)
  return self.states[name] ~= core.null and self.parts.status.kind == "time" and not mapping.is_date(self.map, name)
end

--- Is the row in a state?
function Maker:is(name)
  local value = self:value(name)
  if not value then return nil end
  if self.states[name] == core.null then return self:sql "{status} IS NULL" end
  if not self:is_any(name) then return self:sql("{status} = {1}", value) end
  local words = { self:sql "{status} IS NOT NULL" }
  for _, other in ipairs { "open", "processing", "done", "failed" } do
    words[#words + 1] = mapping.is_date(self.map, other) and self:sql("{status} <> {1}", self:value(other)) or nil
  end
  return table.concat(words, " AND ")
end

--- The assignment of a state; its value for any date is now.
function Maker:set(name)
  local value = self:value(name)
  return value and self:sql("{status} = {1}", self:is_any(name) and self:now "status" or value)
end

--- The limit of a column: of counts, or characters.
function Maker:most(part) return self.parts[part] and self.parts[part].most end

--- The value of a column that names nothing, or no time; nil: it cannot say that.
function Maker:nothing(part)
  local field = self.parts[part]
  return field and (field.nullable and "NULL" or field.kind == "text" and "''") or nil
end

--- The assignment of a value to a column, unless the status has that column.
function Maker:assign(part, value)
  local is_own = value and self.parts[part] ~= self.parts.status
  return is_own and self:column(part) .. " = " .. value or nil
end

function Maker:stamp(part) return self:assign(part, self:now(part)) end

function Maker:clear(part) return self:assign(part, self:nothing(part)) end

-- --------------------------------------------------------------------- rules

--- The texts of a list that are there, with another between them; nil: none is.
local function joined(m, list, between, before, behind)
  local words = {}
  for _, one in ipairs(list) do words[#words + 1] = m:sql(one) end
  return #words > 0 and before .. table.concat(words, between) .. behind or nil
end

--- All of some conditions; the assignments of some columns; the first of some texts: as far as
-- they are there.
local function all(list) return function(m) return joined(m, list, ") AND (", "(", ")") end end

local function set(list) return function(m) return joined(m, list, ", ", "", "") end end

local function first(list)
  return function(m)
    local words
    for _, one in ipairs(list) do words = words or m:sql(one) end
    return words
  end
end

--- A text where the mapping has no value for a state.
local function without(state, words) return function(m) return m.states[state] == nil and m:sql(words) end end

local RENEWED = 15000000 -- µs: a claim that is younger need not be renewed

local rules = {
  -- Unclaimed rows that may be run sooner or later. Rows that are done stay in a state of open
  -- rows when only a date tells. A row that may not fail once more is never run.
  not_done = without("done", "{completed_at} IS NULL"),
  may_fail = first { "{attempts_left} > 0", "COALESCE({attempts}, 0) < {max_attempts}" },
  unclaimed = without("processing", "{claimed_by} <=> {nothing claimed_by}"),
  waiting = all { "{is open}", "{not_done}", "{may_fail}", "{unclaimed}",
    "({id} | 0) BETWEEN 1 AND 9223372036854775807" },

  -- ... that may be taken in now, or not yet. Where no column shows claims they have no job and are
  -- owed nothing.
  has_no_job = "NOT EXISTS (SELECT 1 FROM nightshift_unique_key u WHERE u.queue_id = {queue} AND u.ukey = "
    .. "CONCAT('row:{source}:', {id}))",
  is_free = all { "{has_no_job}",
    "NOT EXISTS (SELECT 1 FROM nightshift_owed o WHERE o.source = {source} AND o.row_id = {id})" },
  unkeyed = function(m) return not mapping.shows_claims(m.map) and m:rule "is_free" end,
  free = all { "{waiting}", "{unkeyed}" },
  due = "{retry_after} IS NULL OR {over retry_after}",
  lockable = all { "{waiting}", "{due}" },
  parent_is_done = function(m)
    return m:with { row = "p" }:rule(m.states.parent_done ~= nil and "is_parent_done" or "done")
  end,
  is_parent_done = "{is parent_done}",
  parent_done = "{parent} IS NULL OR (SELECT {parent_is_done} FROM {table} p WHERE {parent_id} = {parent})",
  parent_id = function(m) return m:with { row = "p" }:column "id" end,
  timely = all { "{due}", "{parent_done}" },
  ready = all { "{free}", "{timely}" },
  later = first { "{free} AND NOT COALESCE({timely}, FALSE)", "FALSE" },
  until_due = first { "{left retry_after}", "NULL" },

  -- Rows at work: all, those of a job, those of other programs. Where nothing in a row says so
  -- there are none of these: see `alone`.
  at_work = first { "{is processing}", "{is open}" },
  claimed = all { "{at_work}", "{not_done}" },
  claimant = function(m) return m:collated("claimed_by", ("CONCAT('ns:', %s)"):format(m.job)) end,
  ours = all { "{claimed}", "{claimed_by} = {claimant}" },
  not_ours = first { "{claimed_by} NOT LIKE 'ns:%'", "{has_no_job}" },
  named = without("processing", "{claimed_by} <> ''"),
  theirs = function(m)
    return mapping.shows_claims(m.map) and all { "{claimed}", "{not_ours}", "{named}" }(m) or "FALSE"
  end,
  -- A verdict writes a row only behind all that is owed to it; else it is owed, too.
  in_turn = "{ours} AND (SELECT o.seq FROM nightshift_owed o FORCE INDEX (of_row) WHERE o.source = {source} "
    .. "AND o.row_id = {id} LIMIT 1) IS NULL",
  overdue = function(m)
    local us = m.map.overdue
    return us and m:sql("{theirs} AND {1}", m:is_past("claimed_at", us))
  end,

  -- Rows that have ended. For people, rows without a column for that still name their last job.
  done = first { "{is done}", "{completed_at} IS NOT NULL" },
  untouched = all { "{is open}", "{not_done}" },
  said_dead = first { "{is failed}", "{untouched} AND NOT ({may_fail})" },
  dead_of_job = first { "{said_dead}", "{ours}" },
  last_job = "{claimed_by} LIKE 'ns:%' AND {claimed} AND {is_free}",
  dead = first { "{said_dead}", "{last_job}", "FALSE" },
  childless = function(m)
    local c = m:with { row = "c" }
    return m:sql("NOT EXISTS (SELECT 1 FROM {table} c WHERE {1} = {id} AND {2} <> {id})", c:column "parent",
      c:column "id")
  end,
  done_leaf = all { "{done}", "{childless}" }, dead_leaf = all { "{dead}", "{childless}" },
  date_of_state = function(m) return m.parts.status.kind == "time" and m:old "status" end,
  done_long_ago = first { "{old completed_at}", "{date_of_state}", "{old updated}" },

  -- Assignments. l.n failures more are counted as far as their column goes.
  count = set { "{attempts} = IF(COALESCE({attempts}, 0) < {most attempts} - l.n, COALESCE({attempts}, 0) + l.n, "
    .. "GREATEST(COALESCE({attempts}, 0), {most attempts}))",
    "{attempts_left} = IF({attempts_left} > l.n, {attempts_left} - l.n, IF(l.n > 0, 0, {attempts_left}))",
    "{priority_sinks}" },
  -- ... and so is what a failure costs.
  priority_sinks = function(m)
    local field, limit, beyond, less, more = m.parts.priority, "least", "<", "-", "+"
    if m.map.lower_first then limit, beyond, less, more = "most", ">", "+", "-" end
    return m.map.decay > 0 and m:sql("{priority} = IF({priority} {3} {1} {5} l.n * {2}, {1}, {priority} {4} l.n * {2})",
      field and field[limit], m.map.decay, beyond, less, more)
  end,
  -- The time of the next run, rounded up: the row is not claimed before.
  due_of = function(m)
    local unit = m.parts.retry_after and unit_of(m.parts.retry_after)
    return unit and m:as_column("retry_after", m:sql("FROM_UNIXTIME((l.due + {1}) DIV {2} * {2} / 1000000)",
      unit - 1, unit))
  end,
  unclaim = set { "{clear claimed_by}", "{clear claimed_at}", "{stamp updated}" },
  to_taken = set { "{set processing}", "{claimed_by} = {claimant}", "{stamp claimed_at}", "{stamp started}",
    "{host} = LEFT({machine}, {most host})", "{stamp updated}" },
  to_failed = set { "{count}", "{retry_after} = COALESCE({due_of}, {retry_after})", "{stamp updated}" },
  to_done = set { "{set done}", "{count}", "{stamp completed_at}", "{stamp updated}" },
  to_end = set { "{set done}", "{stamp completed_at}", "{stamp updated}" }, -- it has not failed since it said so
  to_open = set { "{set open}", "{count}", "{unclaim}" },
  -- Given up: failed, or its attempts are used up. Where neither can be said the row stays as it
  -- is, out of the way.
  used_up = first { "{attempts_left} = 0", "{attempts} = GREATEST(COALESCE({attempts}, 0), {max_attempts})" },
  given_up = first { "{set failed}", "{used_up}, {set open}" },
  to_dead = function(m)
    return set { "{count}", "{given_up}", m:rule "given_up" and "{unclaim}" or "{stamp updated}" }(m)
  end,
  -- As before its first attempt, except for a priority that has sunk.
  attempts_in_all = first { "{max_attempts}", "1" },
  at_once = first { "{clear retry_after}", "{stamp retry_after}" },
  to_new = set { "{set open}", "{attempts} = 0", "{attempts_left} = {attempts_in_all}", "{at_once}", "{unclaim}" },
  -- Overdue: another failure, which may be its last.
  is_last = first { "{attempts_left} <= 1", "COALESCE({attempts}, 0) >= {max_attempts} - 1" },
  after_reset = first { "{status} = IF({is_last}, {value failed}, {value open})", "{set open}" },
  to_reset = set { "{after_reset}", "{count}", "{unclaim}" },

  -- All columns, as text: times in the mapping's zone.
  columns = function(m)
    local words = {}
    for i, field in ipairs(m.map.fields) do
      words[i] = "t." .. quoted(field.name)
      if field.kind == "time" and not is_local(field) then
        words[i] = m:sql("COALESCE(CONVERT_TZ({1}, '+00:00', '{2}'), {1}) AS {3}", words[i], m.map.zone,
          quoted(field.name))
      end
    end
    return table.concat(words, ", ")
  end,
  direction = function(m) return m.map.lower_first and "" or " DESC" end,
  id_direction = function(m) return m.map.newest_first and " DESC" or "" end,
  order = set { "{priority}{direction}", "{id}{id_direction}" },
  served = first { "COALESCE(JSON_CONTAINS(?, JSON_QUOTE(CONVERT({name} USING utf8mb4))), TRUE)",
    "? IS NULL OR TRUE" },
  renewable = function(m)
    return m:sql("{ours} AND {1}", m:is_past("claimed_at", math.min(RENEWED, (m.map.overdue or RENEWED * 8) // 8)))
  end,
}

--- The text of a rule; nil: the mapping has nothing for it.
function Maker:rule(name)
  local rule = rules[name]
  if type(rule) == "string" then return self:sql(rule) end
  if rule then return rule(self) or nil end
  return self[name]
end

-- ---------------------------------------------------------------- statements

--- Rows that are found without locks, by an index of the status, or in the order of their ids.
local function find(where, order) return { "pick", where = where, index = "", order = order or "NULL" } end

local function walk(where)
  return { "pick", where = where .. " AND {id} > ?", index = "FORCE INDEX (PRIMARY)", order = "{id}" }
end

--- Rows of a list are locked; or those that are still a job's; or written.
local function lock(where, given) return { "lock", where = where, columns = given or "{id} AS id" } end

local function hold(past, where) return { "hold", where = where or "{ours}", past = past } end

local function write(words, where) return { "write", set = words, where = where or "TRUE" } end

--- The statements by their names: a template of sql/query, and a text for each of its marks.
local statements = {
  -- Rows that have a handler among the names that are given; null: all have.
  look = find("{ready} AND {id} >= ? AND NOT JSON_CONTAINS(?, {id}) AND ({served})", "{order}"),
  next = { "next", where = "{waiting}", ["until"] = "{left retry_after}" },
  lock = lock("{lockable}", "{columns}"), mark = write "{to_taken}",
  hold = hold "SKIP LOCKED", next_hold = hold("SKIP LOCKED", "{in_turn}"), wait = hold "WAIT 1",
  lost = { "lost", where = "{ours}" },
  lives = write("{to_failed}", "{ours}"), done = write("{to_done}", "{ours}"), dead = write("{to_dead}", "{ours}"),
  open = write "{to_open}", retry = write("{to_new}", "{dead_of_job}"),
  renew = write("{claimed_at} = {now claimed_at}", "{renewable}"),
  overdue = find "{overdue}", overdue_lock = lock "{overdue}", reset = write "{to_reset}",
  ends = { "end", set = "{to_end}", where = "{in_turn}" },
  -- Questions of people, and rows that leave the table.
  counts = { "counts", ready = "{ready}", later = "{later}", ["until"] = "{until_due}", theirs = "{theirs}",
    done = "{done}", dead = "{dead}" },
  row = { "row", done = "{done}", dead = "{dead}" },
  dead_all = walk "({dead})", again = write("{to_new}", "{dead}"),
  done_lock = lock("{done}", "{id}"), dead_lock = lock("{dead}", "{id}"),
  open_lock = lock("{waiting}", "{columns}, {until_due} AS `ns:delay`"),
  done_pick = walk "{done_leaf}", dead_pick = walk "{dead_leaf}", open_pick = walk "{free}",
  done_old = walk "{done_leaf} AND {done_long_ago}", dead_old = walk "{dead_leaf} AND {old updated}",
  delete = { "delete" },
}

--- Makes a statement; nil: the mapping has no use for it.
local function make(m, name)
  local statement = statements[name]
  if not statement then return nil end
  local marks = { table = m.table, id = m:column "id" }
  for mark, words in pairs(statement) do
    if mark ~= 1 then marks[mark] = m:sql(words) end
    if mark ~= 1 and not marks[mark] then return nil end
  end
  return mapping.fill("source_" .. statement[1], marks)
end

--- The statements of a table, by their names; a statement that the mapping does not need is nil.
---@param map nightshift.source.Mapping checked
---@param source integer its id
---@param queue integer id of its queue
---@param host string name of this machine
---@return table<string, string>
---@return string ends a job that is done, and writes its row
function text.make(map, source, queue, host)
  local m = setmetatable({ map = map, parts = map.parts, states = map.states, source = source, queue = queue,
    machine = literal(host), max_attempts = map.max_attempts, table = quoted(map.table), row = "t", job = "l.job" },
    Maker)
  local texts = setmetatable({}, { __index = function(texts, name)
    texts[name] = make(name == "ends" and m:with { job = "v_job" } or m, name)
    return rawget(texts, name)
  end })
  return texts, texts.ends
end

-- -------------------------------------------------------------------------- steps

-- Statements that are run, on the core's handle. What fails raises: see failure.lua.
local steps = {}
text.steps = steps

-- Errors of a table that has changed since it was adopted, and of the server.
local NOT_OF_ROW = { ["1054"] = true, ["1064"] = true, ["1146"] = true, ["1265"] = true, GONE = true, BUSY = true,
  DENIED = true, SCHEMA = true, STATE = true }

--- Is an error the fault of a row, and not of the server, its table, or another transaction?
---@param message string
---@param code string
function steps.is_of_row(message, code)
  return not (NOT_OF_ROW[code] or NOT_OF_ROW[message:match "%((%d+)%)$"])
end

--- Fails inside a transaction.
---@param what string the verb that cannot be done
function steps.outside(self, what)
  if self.handle:in_transaction() then failure.fail("STATE", "%s inside a transaction", what) end
end

--- A list as JSON.
---@param items any[] numbers, or lists as text
---@return string
function steps.list(items) return "[" .. table.concat(items, ",") .. "]" end

--- One field of each row: a list.
---@param rows table[]
---@param field string? "id", unless told
---@return any[]
function steps.ids(rows, field)
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row[field or "id"] end
  return ids
end

--- Rows as items of a list in JSON; {field} in the format is a field of the row.
---@param format string "[{id},{job}]"
---@param rows table[]
---@return string[]
function steps.marks(format, rows)
  local marks = {}
  for i, row in ipairs(rows) do marks[i] = format:gsub("{([%w_]+)}", row) end
  return marks
end

--- Runs a statement of the table by its name in text.lua.
---@param name string
---@return table
function steps.run(self, name, ...) return (must(self.handle:execute("@:" .. self.texts[name], ...))) end

--- Runs a statement of sql/query.
---@param statement string its name
---@return table
function steps.ask(self, statement, ...) return (must(self.handle:execute("@" .. statement, ...))) end

--- Fails unless as many rows were changed. A server that a KILL QUERY has hit may stop in the
-- middle and report success.
---@param result table
---@param n integer
function steps.all_of(result, n)
  if result.affected < n then failure.fail("BUSY", "the server has changed %d rows of %d", result.affected, n) end
end

--- Changes rows of a list, where the mapping has a word for that; each of them, where `each`
-- says so.
---@param name string
---@param marks string[]
---@param each boolean
function steps.change(self, name, marks, each)
  if not self.texts[name] or #marks == 0 then return end
  local result = steps.run(self, name, steps.list(marks))
  if each then steps.all_of(result, #marks) end
end

return text
