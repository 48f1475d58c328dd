--- The statements of an adopted table, made of its mapping: which rows may be taken in, which
-- are a job's, and what is written into them.
--
-- What is the same for all tables stands in sql/query/source.sql, with marks for what is not.
-- Values of the mapping stand in them as literals, names in backticks; what a statement is
-- given is one list in JSON, and numbers.
--
-- Every statement runs in UTC, so each time is an instant: columns without a zone are read and
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

--- Makes the parts of statements that a mapping needs, as functions of `map`.
local Maker = {}
Maker.__index = Maker

--- A column of the row, `t` unless told.
function Maker:column(part, alias) return (alias or "t") .. "." .. quoted(self.map.parts[part].name) end

function Maker:has(part) return self.map.parts[part] ~= nil end

function Maker:state(name) return self.map.states[name] end

-- --------------------------------------------------------------------- times

--- Has the column a time without a zone?
local function is_local(field) return not field.type:lower():find "^timestamp" end

--- An instant, in UTC, as the column has it.
function Maker:as_column(field, instant)
  if field.kind == "whole" then return ("CEIL(UNIX_TIMESTAMP(%s))"):format(instant) end
  return is_local(field) and ("CONVERT_TZ(%s, '+00:00', '%s')"):format(instant, self.map.zone) or instant
end

--- What the column says, as an instant in UTC: of two that it may mean, in an hour that comes
-- twice, the later.
function Maker:instant(field, value)
  if field.kind == "whole" then return ("FROM_UNIXTIME(%s)"):format(value) end
  if not is_local(field) then return value end
  local zone = self.map.zone
  return ("(CONVERT_TZ(%s, '%s', '+00:00') + INTERVAL (CONVERT_TZ(CONVERT_TZ(%s, '%s', '+00:00') + INTERVAL 1 HOUR, "
    .. "'+00:00', '%s') = %s) HOUR)"):format(value, zone, value, zone, zone, value)
end

local NOW = "UTC_TIMESTAMP(6)"
local RENEWED = 15000000 -- µs: a claim that is younger need not be renewed

function Maker:now(part)
  local field = self.map.parts[part]
  if field.kind == "whole" then return "UNIX_TIMESTAMP()" end
  return self:as_column(field, NOW)
end

--- Is the time of a column at least so many µs ago? NULL is not.
function Maker:is_past(part, us)
  local field, column = self.map.parts[part], self:column(part)
  if field.kind == "whole" then return ("%s <= UNIX_TIMESTAMP() - %d"):format(column, -(-(us or 0) // 1000000)) end
  return ("%s <= %s - INTERVAL %d MICROSECOND"):format(self:instant(field, column), NOW, us or 0)
end

-- -------------------------------------------------------------------- states

--- A value of the status, in its column's collation: with another one an index would not do.
function Maker:value(name)
  local field, value = self.map.parts.status, self:state(name)
  local date = field.kind == "time" and type(value) == "string"
  if date and not is_local(field) then
    return ("CONVERT_TZ(CAST(%s AS DATETIME), '%s', '+00:00')"):format(literal(value), self.map.zone)
  end
  if type(value) == "string" and field.charset and field.collation then
    return ("CONVERT(%s USING %s) COLLATE %s"):format(literal(value), field.charset, field.collation)
  end
  return literal(value)
end

function Maker:in_state(name, alias)
  local column, value = self:column("status", alias), self:state(name)
  if value == core.null then return column .. " IS NULL" end
  if self.map.parts.status.kind ~= "time" or mapping.is_date(self.map, name) then
    return column .. " = " .. self:value(name)
  end
  local words = { column .. " IS NOT NULL" } -- any date, but those of other states
  for _, other in ipairs { "open", "processing", "done", "failed" } do
    if mapping.is_date(self.map, other) then words[#words + 1] = column .. " <> " .. self:value(other) end
  end
  return table.concat(words, " AND ")
end

--- The assignment of a state; its value for any date is now.
function Maker:set_state(name)
  local column, value = self:column "status", self:state(name)
  if value ~= core.null and self.map.parts.status.kind == "time" and not mapping.is_date(self.map, name) then
    return column .. " = " .. self:now "status"
  end
  return column .. " = " .. self:value(name)
end

-- ---------------------------------------------------------------- conditions

local function all_of(words) return #words > 0 and "(" .. table.concat(words, ") AND (") .. ")" or "TRUE" end

--- The row is unclaimed, as far as a column tells.
function Maker:is_free()
  return self:column "claimed_by" .. (self.map.parts.claimed_by.nullable and " IS NULL" or " = ''")
end

--- Rows that are done stay in a state of open rows when only a date tells.
function Maker:not_done(words)
  if self:state "done" == nil then words[#words + 1] = self:column "completed_at" .. " IS NULL" end
  return words
end

--- It may fail once more: one that may not is never run.
function Maker:may_fail(words)
  if self:has "attempts_left" then words[#words + 1] = self:column "attempts_left" .. " > 0" end
  if self:has "attempts" and self.map.max_attempts then
    words[#words + 1] = ("COALESCE(%s, 0) < %d"):format(self:column "attempts", self.map.max_attempts)
  end
  return words
end

--- Unclaimed rows that may be run sooner or later.
function Maker:waiting()
  local words = self:may_fail(self:not_done { self:in_state "open" })
  if self:state "processing" == nil and self:has "claimed_by" then words[#words + 1] = self:is_free() end
  words[#words + 1] = ("(%s | 0) BETWEEN 1 AND %d"):format(self:column "id", math.maxinteger)
  return words
end

--- ... that are due.
function Maker:due(words)
  if not self:has "retry_after" then return words end
  words[#words + 1] = ("%s IS NULL OR %s"):format(self:column "retry_after", self:is_past "retry_after")
  return words
end

function Maker:parent_done(words)
  if not self:has "parent" then return words end
  local name = self:state "parent_done" ~= nil and "parent_done" or self:state "done" ~= nil and "done"
  local done = name and self:in_state(name, "p") or self:column("completed_at", "p") .. " IS NOT NULL"
  words[#words + 1] = ("%s IS NULL OR (SELECT %s FROM %s p WHERE %s = %s)"):format(self:column "parent", done,
    self.table, self:column("id", "p"), self:column "parent")
  return words
end

--- The row has no job, and is owed nothing.
function Maker:without_job(words)
  words[#words + 1] = ("NOT EXISTS (SELECT 1 FROM nightshift_unique_key u WHERE u.queue_id = %d AND u.ukey = "
    .. "CONCAT('row:%d:', %s))"):format(self.queue, self.source, self:column "id")
  words[#words + 1] = ("NOT EXISTS (SELECT 1 FROM nightshift_owed o WHERE o.source = %d AND o.row_id = %s)"):format(
    self.source, self:column "id")
  return words
end

--- Where nothing in the row says that it is taken, its job does, and what is owed to it.
function Maker:unkeyed(words)
  if self:state "processing" ~= nil or self:has "claimed_by" then return words end
  return self:without_job(words)
end

--- What a row says of the job that has it, in its column's collation.
function Maker:claimant()
  local field = self.map.parts.claimed_by
  if not (field.charset and field.collation) then return "CONCAT('ns:', l.job)" end
  return ("CONVERT(CONCAT('ns:', l.job) USING %s) COLLATE %s"):format(field.charset, field.collation)
end

--- Rows of which the list l names the job.
function Maker:ours()
  local words
  if self:state "processing" ~= nil then words = self:not_done { self:in_state "processing" } end
  words = words or self:not_done { self:in_state "open" }
  if self:has "claimed_by" then words[#words + 1] = self:column "claimed_by" .. " = " .. self:claimant() end
  return all_of(words)
end

--- Rows claimed by another program.
function Maker:theirs()
  local words = self:not_done { self:in_state(self:state "processing" ~= nil and "processing" or "open") }
  if self:has "claimed_by" then
    words[#words + 1] = ("%s NOT LIKE 'ns:%%'"):format(self:column "claimed_by")
    if not self.map.parts.claimed_by.nullable then words[#words + 1] = self:column "claimed_by" .. " <> ''" end
  else
    words[#words + 1] = ("NOT EXISTS (SELECT 1 FROM nightshift_unique_key u WHERE u.queue_id = %d AND u.ukey = "
      .. "CONCAT('row:%d:', %s))"):format(self.queue, self.source, self:column "id")
  end
  return words
end

--- Rows that have failed for good. Where no column can say so, they are still their jobs'.
function Maker:dead()
  if self:state "failed" ~= nil then return self:in_state "failed" end
  local some = self:may_fail {}
  if #some == 0 then return self:ours() end
  return all_of(self:not_done { self:in_state "open", ("NOT (%s)"):format(all_of(some)) })
end

-- --------------------------------------------------------------- assignments

--- "c = now" for a column of time that is not also the status.
function Maker:set_now(words, part)
  if self:has(part) and self.map.parts[part] ~= self.map.parts.status then
    words[#words + 1] = self:column(part) .. " = " .. self:now(part)
  end
end

--- The row is not claimed any more.
function Maker:unclaim(words)
  local by, at = self.map.parts.claimed_by, self.map.parts.claimed_at
  if by then words[#words + 1] = self:column "claimed_by" .. (by.nullable and " = NULL" or " = ''") end
  if at and at.nullable and at ~= self.map.parts.status then
    words[#words + 1] = self:column "claimed_at" .. " = NULL"
  end
end

--- l.n failures more; what is counted stops where its column ends, and so does the priority.
function Maker:count(words)
  local function put(part, format)
    if self:has(part) then words[#words + 1] = (format:gsub("%%c", (self:column(part):gsub("%%", "%%%%")))) end
  end
  local most = self:has "attempts" and self.map.parts.attempts.most
  put("attempts", ("%%c = IF(COALESCE(%%c, 0) < %s - l.n, COALESCE(%%c, 0) + l.n, GREATEST(COALESCE(%%c, 0), %s))")
    :format(most, most))
  put("attempts_left", "%c = IF(%c > l.n, %c - l.n, IF(l.n > 0, 0, %c))")
  local priority, decay = self.map.parts.priority, self.map.decay
  if not priority or decay == 0 then return end
  if self.map.lower_first then
    put("priority", ("%%c = IF(%%c > %d - l.n * %d, %d, %%c + l.n * %d)"):format(priority.most, decay, priority.most,
      decay))
  else
    put("priority", ("%%c = IF(%%c < %d + l.n * %d, %d, %%c - l.n * %d)"):format(priority.least, decay, priority.least,
      decay))
  end
end

--- A row that is taken in: it names its claimant.
function Maker:taken()
  local words = {}
  if self:state "processing" ~= nil then words[1] = self:set_state "processing" end
  if self:has "claimed_by" then words[#words + 1] = self:column "claimed_by" .. " = " .. self:claimant() end
  self:set_now(words, "claimed_at")
  self:set_now(words, "started")
  if self:has "host" then
    words[#words + 1] = ("%s = LEFT(%s, %d)"):format(self:column "host", literal(self.host), self.map.parts.host.most)
  end
  self:set_now(words, "updated")
  return words
end

--- µs of the least that a column of time can say.
local function unit_of(field)
  if field.kind == "whole" then return 1000000 end
  return 10 ^ (6 - (tonumber(field.type:match "%((%d)%)") or 0)) // 1 | 0
end

--- A failure, while the job lives: when it is due, where the row can say so. That is rounded up:
-- the row is not claimed before.
function Maker:failed()
  local words, field = {}, self.map.parts.retry_after
  self:count(words)
  if field then
    local unit = unit_of(field)
    local due = ("FROM_UNIXTIME((l.due + %d) DIV %d * %d / 1000000)"):format(unit - 1, unit, unit)
    words[#words + 1] = ("%s = COALESCE(%s, %s)"):format(self:column "retry_after", self:as_column(field, due),
      self:column "retry_after")
  end
  self:set_now(words, "updated")
  return words
end

function Maker:done()
  local words = {}
  if self:state "done" ~= nil then words[1] = self:set_state "done" end
  self:count(words)
  self:set_now(words, "completed_at")
  self:set_now(words, "updated")
  return words
end

--- Given up: failed, or its attempts are used up. Where neither can be said it stays as it is,
-- out of the way.
function Maker:given_up()
  local words = {}
  self:count(words)
  if self:state "failed" ~= nil then
    words[#words + 1] = self:set_state "failed"
  elseif self:has "attempts_left" then
    words[#words + 1] = self:column "attempts_left" .. " = 0"
    words[#words + 1] = self:set_state "open"
  elseif self:has "attempts" and self.map.max_attempts then
    words[#words + 1] = ("%s = GREATEST(COALESCE(%s, 0), %d)"):format(self:column "attempts", self:column "attempts",
      self.map.max_attempts)
    words[#words + 1] = self:set_state "open"
  else
    self:set_now(words, "updated")
    return words
  end
  self:unclaim(words)
  self:set_now(words, "updated")
  return words
end

function Maker:opened()
  local words = { self:set_state "open" }
  self:count(words)
  self:unclaim(words)
  self:set_now(words, "updated")
  return words
end

--- As it was before its first attempt, but for a priority that has sunk.
function Maker:as_new()
  local words, later = { self:set_state "open" }, self.map.parts.retry_after
  if self:has "attempts" then words[#words + 1] = self:column "attempts" .. " = 0" end
  if self:has "attempts_left" then
    words[#words + 1] = ("%s = %d"):format(self:column "attempts_left", self.map.max_attempts or 1)
  end
  if later then
    words[#words + 1] = self:column "retry_after" .. " = " .. (later.nullable and "NULL" or self:now "retry_after")
  end
  self:unclaim(words)
  self:set_now(words, "updated")
  return words
end

--- A row with an overdue claim: another failure, which may be its last.
function Maker:reset()
  local words, last = {}, nil
  if self:has "attempts_left" then
    last = self:column "attempts_left" .. " <= 1"
  elseif self:has "attempts" and self.map.max_attempts then
    last = ("COALESCE(%s, 0) >= %d"):format(self:column "attempts", self.map.max_attempts - 1)
  end
  if last and self:state "failed" ~= nil then
    words[1] = ("%s = IF(%s, %s, %s)"):format(self:column "status", last, self:value "failed", self:value "open")
  else
    words[1] = self:set_state "open"
  end
  self:count(words)
  self:unclaim(words)
  self:set_now(words, "updated")
  return words
end

-- ---------------------------------------------------------------- statements

--- A template, with the names that all have.
function Maker:fill(name, marks)
  local all = { table = self.table, id = self:column "id" }
  for mark, words in pairs(marks) do all[mark] = words end
  return mapping.fill(name, all)
end

--- A change of rows of jobs; nil when the row says all that it can.
function Maker:write(words, condition)
  if #words == 0 then return nil end
  return self:fill("source_write", { set = table.concat(words, ", "), where = condition or "TRUE" })
end

function Maker:order()
  local words, map = {}, self.map
  if self:has "priority" then words[1] = self:column "priority" .. (map.lower_first and "" or " DESC") end
  words[#words + 1] = self:column "id" .. (map.newest_first and " DESC" or "")
  return table.concat(words, ", ")
end

--- Has this row a handler among the names that are given? Null: all have.
function Maker:is_served()
  if not self:has "name" then return "? IS NULL OR TRUE" end
  return ("COALESCE(JSON_CONTAINS(?, JSON_QUOTE(CONVERT(%s USING utf8mb4))), TRUE)"):format(self:column "name")
end

--- Seconds until the time of a column.
function Maker:seconds_to(part)
  local field, column = self.map.parts[part], self:column(part)
  if field.kind == "whole" then return ("%s - UNIX_TIMESTAMP()"):format(column) end
  return ("TIMESTAMPDIFF(MICROSECOND, %s, %s) / 1000000"):format(NOW, self:instant(field, column))
end

--- All columns, as text has them: times in the mapping's zone.
function Maker:columns()
  local words = {}
  for i, field in ipairs(self.map.fields) do
    local column = "t." .. quoted(field.name)
    words[i] = column
    if field.kind == "time" and not is_local(field) then
      words[i] = ("COALESCE(CONVERT_TZ(%s, '+00:00', '%s'), %s) AS %s"):format(column, self.map.zone, column,
        quoted(field.name))
    end
  end
  return table.concat(words, ", ")
end

--- What makes parts of the statements of a table.
---@param map nightshift.source.Mapping checked
---@param source integer its id
---@param queue integer id of its queue
---@param host string? name of this machine
function text.maker(map, source, queue, host)
  return setmetatable({ map = map, source = source, queue = queue, host = host, table = quoted(map.table) }, Maker)
end

--- The statements of a table.
---@param map nightshift.source.Mapping checked
---@param source integer its id
---@param queue integer id of its queue
---@param host string name of this machine
---@return table<string, string>
---@return string ends a job that is done, and writes its row
function text.make(map, source, queue, host)
  local m, out = text.maker(map, source, queue, host), {}
  out.look = m:fill("source_look", { where = all_of(m:unkeyed(m:parent_done(m:due(m:waiting())))), order = m:order(),
    served = m:is_served() })
  if m:has "retry_after" then
    out.next = m:fill("source_next", { where = all_of(m:waiting()), seconds = m:seconds_to "retry_after" })
  end
  out.lock = m:fill("source_lock", { columns = m:columns(), where = all_of(m:due(m:waiting())) })
  out.mark = m:write(m:taken())
  out.hold = m:fill("source_hold", { where = m:ours() })
  out.wait = out.hold:gsub("SKIP LOCKED$", "WAIT 1")
  out.lost = m:fill("source_lost", { where = m:ours() })
  out.lives, out.done, out.dead = m:write(m:failed(), m:ours()), m:write(m:done(), m:ours()),
    m:write(m:given_up(), m:ours())
  out.open, out.retry = m:write(m:opened()), m:write(m:as_new(), m:dead())
  if map.parts.claimed_at then
    local stale = m:is_past("claimed_at", math.min(RENEWED, (map.overdue or RENEWED * 8) // 8))
    out.renew = m:write({ m:column "claimed_at" .. " = " .. m:now "claimed_at" }, all_of { m:ours(), stale })
  end
  if map.overdue then
    local overdue = m:theirs()
    overdue[#overdue + 1] = m:is_past("claimed_at", map.overdue)
    out.overdue = m:fill("source_overdue", { where = all_of(overdue) })
    out.overdue_lock = m:fill("source_lock", { columns = m:column "id" .. " AS id", where = all_of(overdue) })
    out.reset = m:write(m:reset())
  end
  return out, m:fill("source_end", { set = table.concat(m:done(), ", "), where = m:ours() })
end

return text
