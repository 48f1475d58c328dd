--- The statements of an adopted table, made of its mapping. They tell which rows may be taken
-- in, which are a job's, and which have ended, and they write the columns.
--
-- Text that is the same for all tables stands in sql/query/source.sql, with marks for the rest.
-- Values of the mapping stand in them as literals, names in backticks. The parameter of a
-- statement is one list in JSON, and numbers. A statement is made at its first use.
--
-- A part of a statement about a column that is not mapped is nil, and is left out.
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

--- All of some conditions.
local function all_of(...)
  local words = joined(") AND (", ...)
  return words and "(" .. words .. ")"
end

local function set_of(...) return joined(", ", ...) end

--- Makes the parts of statements that a mapping needs.
---@class nightshift.source.Maker
---@field map nightshift.source.Mapping
---@field parts table<string, nightshift.source.Field>
---@field states table<string, any>
local Maker = {}
Maker.__index = Maker

--- A column of the row, `t` unless told.
function Maker:column(part, alias)
  local field = self.parts[part]
  return field and (alias or "t") .. "." .. quoted(field.name)
end

--- A text with columns of the row for {part}, and values for {1}, {2}; nil: one of them is not
-- there.
function Maker:sql(words, ...)
  local values, whole = { ... }, true
  words = words:gsub("{([%l%d_]+)}", function(mark)
    local value = values[tonumber(mark)] or self:column(mark)
    whole = whole and value
    return value
  end)
  return whole and words or nil
end

-- --------------------------------------------------------------------- times

--- Has the column a time without a zone?
local function is_local(field) return not field.type:lower():find "^timestamp" end

--- An instant, in UTC, as the column has it.
function Maker:as_column(part, instant)
  local field = self.parts[part]
  if not field or field.kind == "time" and not is_local(field) then return instant end
  if field.kind == "whole" then return self:sql("CEIL(UNIX_TIMESTAMP({1}))", instant) end
  return self:sql("CONVERT_TZ({1}, '+00:00', '{2}')", instant, self.map.zone)
end

--- The column's value as an instant in UTC. In an hour that comes twice it may mean two
-- instants; this is the later.
function Maker:instant(part)
  local field, column = self.parts[part], self:column(part)
  if not field or field.kind == "time" and not is_local(field) then return column end
  if field.kind == "whole" then return self:sql("FROM_UNIXTIME({1})", column) end
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
  local field = self.parts[part]
  if field and field.kind == "whole" then
    return self:sql("{1} <= UNIX_TIMESTAMP() - CEIL({2} / 1000000)", self:column(part), us)
  end
  return self:sql("{1} <= {2} - INTERVAL {3} MICROSECOND", self:instant(part), NOW, us)
end

--- µs until the row is due; NULL: it does not wait for its time.
function Maker:until_due()
  return self:sql("NULLIF(GREATEST(TIMESTAMPDIFF(MICROSECOND, {1}, {2}), 0), 0)", NOW, self:instant "retry_after")
    or "NULL"
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
  if type(value) ~= "string" then return literal(value) end
  if field.kind == "time" and not is_local(field) then
    return self:sql("CONVERT_TZ(CAST({1} AS DATETIME), '{2}', '+00:00')", literal(value), self.map.zone)
  end
  return self:collated("status", literal(value))
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

--- Rows that are done stay in a state of open rows when only a date tells.
function Maker:not_done() return self.states.done == nil and self:sql "{completed_at} IS NULL" end

--- May the row fail once more? A row that may not is never run.
function Maker:may_fail()
  return self:sql "{attempts_left} > 0" or self:sql("COALESCE({attempts}, 0) < {1}", self.map.max_attempts)
end

--- The value of a column that names nothing, or no time; nil: it cannot say that.
function Maker:nothing(part)
  local field = self.parts[part]
  return field and (field.nullable and "NULL" or field.kind == "text" and "''") or nil
end

--- Unclaimed rows that may be run sooner or later.
function Maker:waiting()
  return all_of(self:in_state "open", self:not_done(), self:may_fail(),
    self.states.processing == nil and self:sql("{claimed_by} <=> {1}", self:nothing "claimed_by"),
    self:sql("({id} | 0) BETWEEN 1 AND {1}", math.maxinteger))
end

--- ... that are due.
function Maker:due() return self:sql("{retry_after} IS NULL OR {1}", self:is_past("retry_after", 0)) end

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

--- The same for tables without a column that shows claims.
function Maker:unkeyed() return not mapping.shows_claims(self.map) and self:is_free() end

--- Rows that may be taken in now.
function Maker:ready() return all_of(self:waiting(), self:due(), self:parent_done(), self:unkeyed()) end

--- Open rows that are not due, or wait for their parents.
function Maker:later()
  local early = self:sql("NOT COALESCE({1}, FALSE)", all_of(self:due(), self:parent_done()))
  return early and all_of(self:waiting(), self:unkeyed(), early) or "FALSE"
end

--- Rows that are claimed, as far as their state says.
function Maker:claimed(...)
  return all_of(self:in_state(self.states.processing ~= nil and "processing" or "open"), self:not_done(), ...)
end

--- The value by which a row names its job.
function Maker:claimant(job) return self:collated("claimed_by", ("CONCAT('ns:', %s)"):format(job or "l.job")) end

--- Rows of a job, which the list l names unless it is told.
function Maker:ours(job) return self:claimed(self:sql("{claimed_by} = {1}", self:claimant(job))) end

--- Rows claimed by another program. Where nothing in a row says so there are none: see `alone`.
function Maker:theirs()
  if not mapping.shows_claims(self.map) then return "FALSE" end
  return self:claimed(self:sql "{claimed_by} NOT LIKE 'ns:%'" or self:has_no_job(),
    self.states.processing == nil and self:sql "{claimed_by} <> ''")
end

function Maker:done()
  return self.states.done ~= nil and self:in_state "done" or self:sql "{completed_at} IS NOT NULL"
end

--- Rows that have failed for good; `unsaid`: the condition for a table without a column for
-- that.
function Maker:dead(unsaid)
  if self.states.failed ~= nil then return self:in_state "failed" end
  local spent = self:sql("NOT ({1})", self:may_fail())
  return spent and all_of(self:in_state "open", self:not_done(), spent) or unsaid
end

--- The same, for people: rows without such a column still name their last job.
function Maker:seen_dead()
  local last = self:sql "{claimed_by} LIKE 'ns:%'"
  return self:dead(last and self:claimed(last, self:is_free()) or "FALSE")
end

--- No row has it for its parent.
function Maker:is_childless()
  return self:sql("NOT EXISTS (SELECT 1 FROM {1} c WHERE {2} = {id} AND {3} <> {id})", self.table,
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
  return set_of(self:sql("{claimed_by} = {1}", self:nothing "claimed_by"),
    self.parts.claimed_at ~= self.parts.status and self:sql("{claimed_at} = {1}", self:nothing "claimed_at"))
end

--- Counts l.n failures more; the count stops at its column's limit, and so does the priority.
function Maker:count()
  local parts, map = self.parts, self.map
  local limit, beyond, less, more = "least", "<", "-", "+"
  if map.lower_first then limit, beyond, less, more = "most", ">", "+", "-" end
  return set_of(self:sql("{attempts} = IF(COALESCE({attempts}, 0) < {1} - l.n, COALESCE({attempts}, 0) + l.n, "
      .. "GREATEST(COALESCE({attempts}, 0), {1}))", parts.attempts and parts.attempts.most),
    self:sql "{attempts_left} = IF({attempts_left} > l.n, {attempts_left} - l.n, IF(l.n > 0, 0, {attempts_left}))",
    map.decay > 0 and self:sql("{priority} = IF({priority} {3} {1} {5} l.n * {2}, {1}, {priority} {4} l.n * {2})",
      parts.priority and parts.priority[limit], map.decay, beyond, less, more))
end

--- A row that is taken in: it names its claimant.
function Maker:set_taken()
  local host = self.parts.host
  return set_of(self:set_state "processing", self:sql("{claimed_by} = {1}", self:claimant()),
    self:set_now "claimed_at", self:set_now "started",
    self:sql("{host} = LEFT({1}, {2})", literal(self.host), host and host.most), self:set_now "updated")
end

--- µs of the least that a column of time can say.
local function unit_of(field)
  if field.kind == "whole" then return 1000000 end
  return 10 ^ (6 - (tonumber(field.type:match "%((%d)%)") or 0)) // 1 | 0
end

--- A failure, while the job lives: when it is due, where the row can say so. That is rounded up:
-- the row is not claimed before.
function Maker:set_failed()
  local unit = self.parts.retry_after and unit_of(self.parts.retry_after)
  local due = unit and self:sql("FROM_UNIXTIME((l.due + {1}) DIV {2} * {2} / 1000000)", unit - 1, unit)
  return set_of(self:count(), self:sql("{retry_after} = COALESCE({1}, {retry_after})",
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
  return self:set_back(self:count(), self:sql "{attempts_left} = 0"
    or self:sql("{attempts} = GREATEST(COALESCE({attempts}, 0), {1})", self.map.max_attempts), self:set_state "open")
end

--- Sets a row as before its first attempt, except for a priority that has sunk.
function Maker:set_new()
  return self:set_back(self:set_state "open", self:sql "{attempts} = 0",
    self:sql("{attempts_left} = {1}", self.map.max_attempts or 1),
    self:sql("{retry_after} = {1}", self:nothing "retry_after") or self:set_now "retry_after")
end

--- A row with an overdue claim: another failure, which may be its last.
function Maker:set_reset()
  local last = self:sql "{attempts_left} <= 1"
    or self.map.max_attempts and self:sql("COALESCE({attempts}, 0) >= {1}", self.map.max_attempts - 1)
  local fails = self.states.failed ~= nil and self:sql("{status} = IF({1}, {2}, {3})", last, self:value "failed",
    self:value "open")
  return self:set_back(fails or self:set_state "open", self:count())
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

--- Rows in the order of their ids.
function Maker:pick(...) return self:fill("source_pick", { where = all_of(...) }) end

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
  dead_all = function(m) return m:pick(m:seen_dead()) end,
  again = function(m) return m:write(m:set_new(), m:seen_dead()) end,
  done_lock = function(m) return m:lock(m:done(), m:column "id") end,
  dead_lock = function(m) return m:lock(m:seen_dead(), m:column "id") end,
  open_lock = function(m) return m:lock(m:waiting(), m:columns() .. ", " .. m:until_due() .. " AS `ns:delay`") end,
  done_pick = function(m) return m:pick(m:done(), m:is_childless()) end,
  dead_pick = function(m) return m:pick(m:seen_dead(), m:is_childless()) end,
  open_pick = function(m) return m:pick(m:waiting(), m:unkeyed()) end,
  done_old = function(m)
    local part = m.parts.completed_at and "completed_at" or m.parts.status.kind == "time" and "status"
      or m.parts.updated and "updated"
    return part and m:pick(m:done(), m:is_childless(), m:is_past(part, "?"))
  end,
  dead_old = function(m)
    return m.parts.updated and m:pick(m:seen_dead(), m:is_childless(), m:is_past("updated", "?"))
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
