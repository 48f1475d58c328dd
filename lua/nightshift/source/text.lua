--- The statements of an adopted table, made of its mapping. They tell which rows may be taken
-- in, which are a job's, and which have ended, and they write the columns.
--
-- Text that is the same for all tables stands in sql/query/source.sql, with marks for the rest.
-- Values of the mapping stand in them as literals, names in backticks. The parameter of a
-- statement is one list in JSON, and numbers. A statement is made at its first use.
--
-- Every statement runs in UTC, so each time is an instant. Columns without a zone are read and
-- written through the mapping's zone, in which hours may be missing or come twice.

local core = require "nightshift.core"
local mapping = require "nightshift.source.mapping"

local text = {}

local quoted = mapping.quoted

--- A value as text of a statement; only letters of numbers come of it.
local function literal(value)
  if value == core.null then return "NULL" end
  if type(value) == "number" then return ("%d"):format(value) end
  return ("_utf8mb4 X'%s'"):format((value:gsub(".", function(c) return ("%02X"):format(c:byte()) end)))
end

--- The texts that are there, with another between them; nil: none is.
local function joined(between, ...)
  local list = {}
  for i = 1, select("#", ...) do list[#list + 1] = select(i, ...) or nil end
  return #list > 0 and table.concat(list, between) or nil
end

--- All of some conditions; nil does not count.
local function all_of(...)
  local words = joined(") AND (", ...)
  return words and "(" .. words .. ")"
end

local function set_of(...) return joined(", ", ...) end

--- Makes the parts of statements that a mapping needs: texts, or nil where it says nothing of them.
---@class nightshift.source.Maker
---@field map nightshift.source.Mapping
---@field parts table<string, nightshift.source.Field>
---@field states table<string, any>
local Maker = {}
Maker.__index = Maker

--- A column of the row, `t` unless told.
function Maker:column(part, alias) return (alias or "t") .. "." .. quoted(self.parts[part].name) end

--- A text with columns of the row for {part}, and values for {1}, {2}.
function Maker:sql(words, ...)
  local values = { ... }
  return (words:gsub("{([%l%d_]+)}", function(mark) return values[tonumber(mark)] or self:column(mark) end))
end

-- --------------------------------------------------------------------- times

--- Has the column a time without a zone?
local function is_local(field) return not field.type:lower():find "^timestamp" end

--- An instant, in UTC, as the column has it.
function Maker:as_column(part, instant)
  local field = self.parts[part]
  if field.kind == "whole" then return self:sql("CEIL(UNIX_TIMESTAMP({1}))", instant) end
  return is_local(field) and self:sql("CONVERT_TZ({1}, '+00:00', '{2}')", instant, self.map.zone) or instant
end

--- The column's value as an instant in UTC. In an hour that comes twice it may mean two
-- instants; this is the later.
function Maker:instant(part)
  local field, column = self.parts[part], self:column(part)
  if field.kind == "whole" then return self:sql("FROM_UNIXTIME({1})", column) end
  if not is_local(field) then return column end
  return self:sql("(CONVERT_TZ({1}, '{2}', '+00:00') + INTERVAL (CONVERT_TZ(CONVERT_TZ({1}, '{2}', '+00:00') "
    .. "+ INTERVAL 1 HOUR, '+00:00', '{2}') = {1}) HOUR)", column, self.map.zone)
end

local NOW = "UTC_TIMESTAMP(6)"
local RENEWED = 15000000 -- µs: a claim that is younger need not be renewed

function Maker:now(part)
  return self.parts[part].kind == "whole" and "UNIX_TIMESTAMP()" or self:as_column(part, NOW)
end

--- Is the time of a column at least so many µs ago? NULL is not.
function Maker:is_past(part, us)
  if self.parts[part].kind == "whole" then
    return self:sql("{1} <= UNIX_TIMESTAMP() - CEIL({2} / 1000000)", self:column(part), us)
  end
  return self:sql("{1} <= {2} - INTERVAL {3} MICROSECOND", self:instant(part), NOW, us)
end

--- µs until the row is due; NULL: it does not wait for its time.
function Maker:until_due()
  if not self.parts.retry_after then return "NULL" end
  return self:sql("NULLIF(GREATEST(TIMESTAMPDIFF(MICROSECOND, {1}, {2}), 0), 0)", NOW, self:instant "retry_after")
end

-- -------------------------------------------------------------------- states

--- A value of the status, in its column's collation: with another one an index would not do.
function Maker:value(name)
  local field, value = self.parts.status, self.states[name]
  if field.kind == "time" and type(value) == "string" and not is_local(field) then
    return self:sql("CONVERT_TZ(CAST({1} AS DATETIME), '{2}', '+00:00')", literal(value), self.map.zone)
  end
  return type(value) == "string" and self:collated(field, literal(value)) or literal(value)
end

--- A text as its column compares it.
function Maker:collated(field, value)
  if not (field.charset and field.collation) then return value end
  return self:sql("CONVERT({1} USING {2}) COLLATE {3}", value, field.charset, field.collation)
end

function Maker:in_state(name, alias)
  local column, value = self:column("status", alias), self.states[name]
  if value == core.null then return column .. " IS NULL" end
  if self.parts.status.kind ~= "time" or mapping.is_date(self.map, name) then
    return column .. " = " .. self:value(name)
  end
  local words = { column .. " IS NOT NULL" } -- any date, except dates of other states
  for _, other in ipairs { "open", "processing", "done", "failed" } do
    if mapping.is_date(self.map, other) then words[#words + 1] = column .. " <> " .. self:value(other) end
  end
  return table.concat(words, " AND ")
end

--- The assignment of a state; its value for any date is now.
function Maker:set_state(name)
  local value = self.states[name]
  if value == nil then return nil end
  local is_any = value ~= core.null and self.parts.status.kind == "time" and not mapping.is_date(self.map, name)
  return self:sql("{status} = {1}", is_any and self:now "status" or self:value(name))
end

-- ---------------------------------------------------------------- conditions

--- Does a column of a row show that it is claimed? If not, its job shows it, and the debts to
-- it.
function Maker:shows_claims() return self.states.processing ~= nil or self.parts.claimed_by ~= nil end

--- Rows that are done stay in a state of open rows when only a date tells.
function Maker:not_done() return self.states.done == nil and self:sql "{completed_at} IS NULL" end

--- May the row fail once more? A row that may not is never run.
function Maker:may_fail()
  if self.parts.attempts_left then return self:sql "{attempts_left} > 0" end
  if not (self.parts.attempts and self.map.max_attempts) then return nil end
  return self:sql("COALESCE({attempts}, 0) < {1}", self.map.max_attempts)
end

--- Unclaimed rows that may be run sooner or later.
function Maker:waiting()
  local by = self.states.processing == nil and self.parts.claimed_by
  return all_of(self:in_state "open", self:not_done(), self:may_fail(),
    by and self:sql("{claimed_by}" .. (by.nullable and " IS NULL" or " = ''")),
    self:sql("({id} | 0) BETWEEN 1 AND {1}", math.maxinteger))
end

--- ... that are due.
function Maker:due()
  return self.parts.retry_after and self:sql("{retry_after} IS NULL OR {1}", self:is_past("retry_after", 0))
end

function Maker:parent_done()
  if not self.parts.parent then return nil end
  local name = self.states.parent_done ~= nil and "parent_done" or self.states.done ~= nil and "done"
  local done = name and self:in_state(name, "p") or self:column("completed_at", "p") .. " IS NOT NULL"
  return self:sql("{parent} IS NULL OR (SELECT {1} FROM {2} p WHERE {3} = {parent})", done, self.table,
    self:column("id", "p"))
end

function Maker:has_no_job()
  return self:sql("NOT EXISTS (SELECT 1 FROM nightshift_unique_key u WHERE u.queue_id = {1} AND u.ukey = "
    .. "CONCAT('row:{2}:', {id}))", self.queue, self.source)
end

--- The row has no job, and is owed nothing.
function Maker:is_free()
  return all_of(self:has_no_job(),
    self:sql("NOT EXISTS (SELECT 1 FROM nightshift_owed o WHERE o.source = {1} AND o.row_id = {id})", self.source))
end

--- The same for tables without such a column.
function Maker:unkeyed() return not self:shows_claims() and self:is_free() end

--- Rows that may be taken in now.
function Maker:ready() return all_of(self:waiting(), self:due(), self:parent_done(), self:unkeyed()) end

--- Open rows that are not due, or wait for their parents.
function Maker:later()
  local early = all_of(self:due(), self:parent_done())
  return early and all_of(self:waiting(), self:unkeyed(), self:sql("NOT COALESCE({1}, FALSE)", early)) or "FALSE"
end

--- Rows that are claimed, as far as their state says.
function Maker:claimed(...)
  return all_of(self:in_state(self.states.processing ~= nil and "processing" or "open"), self:not_done(), ...)
end

--- The value by which a row names its job.
function Maker:claimant(job)
  return self:collated(self.parts.claimed_by, ("CONCAT('ns:', %s)"):format(job or "l.job"))
end

--- Rows of a job, which the list l names unless it is told.
function Maker:ours(job)
  return self:claimed(self.parts.claimed_by and self:sql("{claimed_by} = {1}", self:claimant(job)))
end

--- Rows claimed by another program. Where nothing in a row says so there are none: see `alone`.
function Maker:theirs()
  local by = self.parts.claimed_by
  if not self:shows_claims() then return "FALSE" end
  return self:claimed(by and self:sql "{claimed_by} NOT LIKE 'ns:%'",
    by and not by.nullable and self:sql "{claimed_by} <> ''", not by and self:has_no_job())
end

function Maker:done()
  return self.states.done ~= nil and self:in_state "done" or self:sql "{completed_at} IS NOT NULL"
end

--- Rows that have failed for good; `unsaid`: the condition for a table without a column for
-- that.
function Maker:dead(unsaid)
  if self.states.failed ~= nil then return self:in_state "failed" end
  local may_fail = self:may_fail()
  if not may_fail then return unsaid end
  return all_of(self:in_state "open", self:not_done(), self:sql("NOT ({1})", may_fail))
end

--- The same, for people: rows without such a column still name their last job.
function Maker:seen_dead()
  return self:dead(self.parts.claimed_by and self:claimed(self:sql "{claimed_by} LIKE 'ns:%'", self:is_free())
    or "FALSE")
end

--- No row has it for its parent.
function Maker:is_childless()
  return self.parts.parent and self:sql("NOT EXISTS (SELECT 1 FROM {1} c WHERE {2} = {id} AND {3} <> {id})", self.table,
    self:column("parent", "c"), self:column("id", "c"))
end

-- --------------------------------------------------------------- assignments

--- "c = now" for a column of time that is not also the status.
function Maker:set_now(part)
  local is_own = self.parts[part] and self.parts[part] ~= self.parts.status
  return is_own and self:column(part) .. " = " .. self:now(part)
end

--- The row is not claimed any more.
function Maker:unclaim()
  local by, at = self.parts.claimed_by, self.parts.claimed_at
  return set_of(by and self:sql("{claimed_by} = {1}", by.nullable and "NULL" or "''"),
    at and at.nullable and at ~= self.parts.status and self:sql "{claimed_at} = NULL")
end

--- Counts l.n failures more; the count stops at its column's limit, and so does the priority.
function Maker:count()
  local parts, map = self.parts, self.map
  local sinks = parts.priority and map.decay > 0
  local limit, beyond, less, more = "least", "<", "-", "+"
  if map.lower_first then limit, beyond, less, more = "most", ">", "+", "-" end
  return set_of(parts.attempts and self:sql("{attempts} = IF(COALESCE({attempts}, 0) < {1} - l.n, "
      .. "COALESCE({attempts}, 0) + l.n, GREATEST(COALESCE({attempts}, 0), {1}))", parts.attempts.most),
    parts.attempts_left and self:sql "{attempts_left} = IF({attempts_left} > l.n, {attempts_left} - l.n, \z
      IF(l.n > 0, 0, {attempts_left}))",
    sinks and self:sql("{priority} = IF({priority} {3} {1} {5} l.n * {2}, {1}, {priority} {4} l.n * {2})",
      parts.priority[limit], map.decay, beyond, less, more))
end

--- A row that is taken in: it names its claimant.
function Maker:set_taken()
  local parts = self.parts
  return set_of(self:set_state "processing", parts.claimed_by and self:sql("{claimed_by} = {1}", self:claimant()),
    self:set_now "claimed_at", self:set_now "started",
    parts.host and self:sql("{host} = LEFT({1}, {2})", literal(self.host), parts.host.most), self:set_now "updated")
end

--- µs of the least that a column of time can say.
local function unit_of(field)
  if field.kind == "whole" then return 1000000 end
  return 10 ^ (6 - (tonumber(field.type:match "%((%d)%)") or 0)) // 1 | 0
end

--- A failure, while the job lives: when it is due, where the row can say so. That is rounded up:
-- the row is not claimed before.
function Maker:set_failed()
  local later = self.parts.retry_after
  local unit = later and unit_of(later)
  local due = later and self:sql("FROM_UNIXTIME((l.due + {1}) DIV {2} * {2} / 1000000)", unit - 1, unit)
  return set_of(self:count(), later and self:sql("{retry_after} = COALESCE({1}, {retry_after})",
    self:as_column("retry_after", due)), self:set_now "updated")
end

--- Done; with the count of its failures, if there may have been any since it said so.
function Maker:set_done(count)
  return set_of(self:set_state "done", count, self:set_now "completed_at", self:set_now "updated")
end

--- The row leaves its job.
function Maker:set_back(...) return set_of(joined(", ", ...), self:unclaim(), self:set_now "updated") end

--- Given up: failed, or its attempts are used up. Where neither can be said it stays as it is,
-- out of the way.
function Maker:set_dead()
  if self.states.failed ~= nil then return self:set_back(self:count(), self:set_state "failed") end
  if not self:may_fail() then return set_of(self:count(), self:set_now "updated") end
  return self:set_back(self:count(), self.parts.attempts_left and self:sql "{attempts_left} = 0"
    or self:sql("{attempts} = GREATEST(COALESCE({attempts}, 0), {1})", self.map.max_attempts), self:set_state "open")
end

--- Sets a row as before its first attempt, except for a priority that has sunk.
function Maker:set_new()
  local parts, later = self.parts, self.parts.retry_after
  return self:set_back(self:set_state "open", parts.attempts and self:sql "{attempts} = 0",
    parts.attempts_left and self:sql("{attempts_left} = {1}", self.map.max_attempts or 1),
    later and self:sql("{retry_after} = {1}", later.nullable and "NULL" or self:now "retry_after"))
end

--- A row with an overdue claim: another failure, which may be its last.
function Maker:set_reset()
  local opens = self:set_state "open"
  if self:may_fail() and self.states.failed ~= nil then
    local last = self.parts.attempts_left and self:sql "{attempts_left} <= 1"
      or self:sql("COALESCE({attempts}, 0) >= {1}", self.map.max_attempts - 1)
    opens = self:sql("{status} = IF({1}, {2}, {3})", last, self:value "failed", self:value "open")
  end
  return self:set_back(opens, self:count())
end

-- ---------------------------------------------------------------- statements

--- A template, with the names that all have.
function Maker:fill(name, marks)
  marks.table, marks.id = self.table, self:column "id"
  return mapping.fill(name, marks)
end

--- A change of rows of jobs; nil when the row already shows all that it can.
function Maker:write(words, condition)
  return words and self:fill("source_write", { set = words, where = condition or "TRUE" })
end

--- Rows of a list, locked; without columns their ids.
function Maker:lock(condition, columns)
  return self:fill("source_lock", { columns = columns or self:sql "{id} AS id", where = condition })
end

--- Rows in the order of their ids; with their past where a condition is on that.
function Maker:pick(past, ...) return self:fill("source_pick", { past = past or "", where = all_of(...) }) end

--- All columns, as text: times in the mapping's zone.
function Maker:columns()
  local words = {}
  for i, field in ipairs(self.map.fields) do
    local column = "t." .. quoted(field.name)
    words[i] = column
    if field.kind == "time" and not is_local(field) then
      words[i] = self:sql("COALESCE(CONVERT_TZ({1}, '+00:00', '{2}'), {1}) AS {3}", column, self.map.zone,
        quoted(field.name))
    end
  end
  return table.concat(words, ", ")
end

--- The history of dead rows.
function Maker:past()
  return mapping.fill("source_past", { queue = tostring(self.queue), source = tostring(self.source),
    id = self:column "id" })
end

--- How often a dead row has failed: as it says, or its job.
function Maker:failures()
  if self.parts.attempts then return self:sql "CAST(COALESCE({attempts}, 0) AS SIGNED)" end
  if not (self.parts.attempts_left and self.map.max_attempts) then return "p.attempts" end
  return self:sql("GREATEST({1} - CAST(COALESCE({attempts_left}, 0) AS SIGNED), 0)", self.map.max_attempts)
end

--- Dead rows, and the columns that people ask of them.
function Maker:list_dead(columns)
  return self:fill("source_dead", { columns = columns, past = self:past(), where = self:seen_dead() })
end

local function is_overdue(m) return all_of(m:theirs(), m:is_past("claimed_at", m.map.overdue)) end

--- The statements by their names; nil or false where the mapping has no use for one.
local statements = {
  look = function(m) -- rows that have a handler among the names that are given; null: all have
    local order = set_of(m.parts.priority and m:sql("{priority}" .. (m.map.lower_first and "" or " DESC")),
      m:sql("{id}" .. (m.map.newest_first and " DESC" or "")))
    local served = m.parts.name and m:sql "COALESCE(JSON_CONTAINS(?, JSON_QUOTE(CONVERT({name} USING utf8mb4))), TRUE)"
    return m:fill("source_look", { where = m:ready(), order = order, served = served or "? IS NULL OR TRUE" })
  end,
  next = function(m)
    return m.parts.retry_after and m:fill("source_next", { where = m:waiting(), ["until"] = m:until_due() })
  end,
  lock = function(m) return m:lock(all_of(m:waiting(), m:due()), m:columns()) end,
  mark = function(m) return m:write(m:set_taken()) end,
  hold = function(m) return m:fill("source_hold", { where = m:ours(), past = "SKIP LOCKED" }) end,
  wait = function(m) return m:fill("source_hold", { where = m:ours(), past = "WAIT 1" }) end,
  lost = function(m) return m:fill("source_lost", { where = m:ours() }) end,
  lives = function(m) return m:write(m:set_failed(), m:ours()) end,
  done = function(m) return m:write(m:set_done(m:count()), m:ours()) end,
  dead = function(m) return m:write(m:set_dead(), m:ours()) end,
  open = function(m) return m:write(m:set_back(m:set_state "open", m:count())) end,
  retry = function(m) return m:write(m:set_new(), m:dead(m:ours())) end,
  renew = function(m)
    local us = math.min(RENEWED, (m.map.overdue or RENEWED * 8) // 8)
    return m.parts.claimed_at and m:write(m:sql("{claimed_at} = {1}", m:now "claimed_at"),
      all_of(m:ours(), m:is_past("claimed_at", us)))
  end,
  overdue = function(m) return m.map.overdue and m:fill("source_overdue", { where = is_overdue(m) }) end,
  overdue_lock = function(m) return m.map.overdue and m:lock(is_overdue(m)) end,
  reset = function(m) return m.map.overdue and m:write(m:set_reset()) end,
  ends = function(m) return m:fill("source_end", { set = m:set_done(), where = m:ours "v_job" }) end,
  -- Questions of people, and rows that leave the table.
  counts = function(m)
    return m:fill("source_counts", { ready = m:ready(), later = m:later(), ["until"] = m:until_due(),
      theirs = m:theirs(), done = m:done(), dead = m:seen_dead() })
  end,
  row = function(m) return m:fill("source_row", { done = m:done(), dead = m:seen_dead() }) end,
  dead_list = function(m)
    return m:list_dead(m:sql("p.job AS `ns:job`, p.at AS `ns:at`, p.holder AS `ns:holder`, {1} AS `ns:attempts`, "
      .. "LEFT(p.error, 1000) AS `ns:error`, ", m:failures()) .. m:columns())
  end,
  dead_blamed = function(m) return m:list_dead(m:sql "{id} AS id") end,
  dead_all = function(m) return m:pick(nil, m:seen_dead()) end,
  dead_kinds = function(m) return m:fill("source_dead_kinds", { past = m:past(), where = m:seen_dead() }) end,
  again = function(m) return m:write(m:set_new(), m:seen_dead()) end,
  done_lock = function(m) return m:lock(m:done(), m:column "id") end,
  dead_lock = function(m) return m:lock(m:seen_dead(), m:column "id") end,
  open_lock = function(m) return m:lock(m:waiting(), m:columns() .. ", " .. m:until_due() .. " AS `ns:delay`") end,
  done_pick = function(m) return m:pick(nil, m:done(), m:is_childless()) end,
  dead_pick = function(m) return m:pick(nil, m:seen_dead(), m:is_childless()) end,
  open_pick = function(m) return m:pick(nil, m:waiting(), m:unkeyed()) end,
  done_old = function(m)
    local part = m.parts.completed_at and "completed_at" or m.parts.status.kind == "time" and "status"
      or m.parts.updated and "updated"
    return part and m:pick(nil, m:done(), m:is_childless(), m:is_past(part, "?"))
  end,
  dead_old = function(m) -- where no column says when, the history does
    local at = m.parts.updated and m:is_past("updated", "?")
    return m:pick(not at and m:past(), m:seen_dead(), m:is_childless(),
      at or "p.at <= (" .. core.sql "source_now" .. ") - ?")
  end,
  delete = function(m) return m:fill("source_delete", {}) end,
}

--- The statements of a table, by their names; a statement that the mapping does not need is nil.
---@param map nightshift.source.Mapping checked
---@param source integer its id
---@param queue integer id of its queue
---@param host string name of this machine
---@return table<string, string>
---@return string ends a job that is done, and writes its row
function text.make(map, source, queue, host)
  local m = setmetatable({ map = map, parts = map.parts, states = map.states, source = source, queue = queue,
    host = host, table = quoted(map.table) }, Maker)
  local texts = setmetatable({}, { __index = function(texts, name)
    texts[name] = statements[name] and statements[name](m) or nil
    return rawget(texts, name)
  end })
  return texts, texts.ends
end

return text
