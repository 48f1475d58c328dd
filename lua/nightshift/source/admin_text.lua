--- The statements with which people look at an adopted table and put it in order: its rows by
-- state, those that are dead, those that have ended, those that are open.
--
-- They are made when the first of them is wanted: hosts need none of them.

local core = require "nightshift.core"
local mapping = require "nightshift.source.mapping"
local text = require "nightshift.source.text"

local admin_text = {}

local function all_of(words) return #words > 0 and "(" .. table.concat(words, ") AND (") .. ")" or "TRUE" end

--- Open rows that are not due, or wait for their parents.
local function later(m)
  local early = m:parent_done(m:due {})
  if #early == 0 then return "FALSE" end
  local words = m:unkeyed(m:waiting())
  words[#words + 1] = ("NOT COALESCE(%s, FALSE)"):format(all_of(early))
  return all_of(words)
end

--- µs until the row is due; NULL: that is not what it waits for.
local function until_due(m)
  local field = m.map.parts.retry_after
  if not field then return "NULL" end
  return ("NULLIF(GREATEST(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), %s), 0), 0)"):format(
    m:instant(field, m:column "retry_after"))
end

local function done(m)
  if m:state "done" ~= nil then return m:in_state "done" end
  return m:column "completed_at" .. " IS NOT NULL"
end

--- Rows that have failed for good. Where no state and no counter says so, they still name their
-- last job; without a column for that they look like those of other programs.
local function dead(m)
  if m:state "failed" ~= nil or #m:may_fail {} > 0 then return m:dead() end
  if not m:has "claimed_by" then return "FALSE" end
  local words = m:not_done { m:in_state(m:state "processing" ~= nil and "processing" or "open") }
  words[#words + 1] = m:column "claimed_by" .. " LIKE 'ns:%'"
  return all_of(m:without_job(words))
end

--- Rows that other programs have. Where nothing in a row says so there are none: see `alone`.
local function theirs(m)
  return (m:state "processing" ~= nil or m:has "claimed_by") and all_of(m:theirs()) or "FALSE"
end

--- No row has it for its parent.
local function childless(m)
  if not m:has "parent" then return "TRUE" end
  return ("NOT EXISTS (SELECT 1 FROM %s c WHERE %s = %s AND %s <> %s)"):format(m.table, m:column("parent", "c"),
    m:column "id", m:column("id", "c"), m:column "id")
end

--- The column that says when a row was done; nil: none does.
---@param map nightshift.source.Mapping
---@return string|nil its part
function admin_text.ended(map)
  if map.parts.completed_at then return "completed_at" end
  if map.parts.status.kind == "time" then return "status" end
  return map.parts.updated and "updated"
end

--- It ended at least so many µs ago, which is a parameter. Of a dead row its job says when, where no
-- column does.
local function is_old(m, part)
  if not part then return ("p.at <= (%s) - ?"):format(core.sql "source_now") end
  local field, column = m.map.parts[part], m:column(part)
  if field.kind == "whole" then return column .. " <= UNIX_TIMESTAMP() - CEIL(? / 1000000)" end
  return ("%s <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND"):format(m:instant(field, column))
end

--- Statements that find rows in the order of their ids: all that have ended so, and the old ones.
local function add_picks(m, out, name, ended, part)
  local index = "FORCE INDEX (PRIMARY)"
  out[name .. "_lock"] = m:fill("source_lock", { columns = m:column "id", where = ended })
  out[name .. "_pick"] = m:fill("source_pick", { index = index, past = "", where = all_of { ended, childless(m) } })
  if not part and name == "done" then return end
  out[name .. "_old"] = m:fill("source_pick", { index = index, past = part and "" or m.past,
    where = all_of { ended, childless(m), is_old(m, part) } })
end

--- Adds them to those of text.lua.
---@param self nightshift.source.Table
---@return table<string, string>
function admin_text.of(self)
  local out = self.texts
  if out.counts then return out end
  local m, map = text.maker(self.map, self.id, self.queue), self.map
  local is_dead, is_done = dead(m), done(m)
  local open = all_of(m:waiting())
  m.past = mapping.fill("source_past", { queue = ("%d"):format(m.queue), source = ("%d"):format(m.source),
    id = m:column "id" })
  local marks = { past = m.past, where = is_dead, columns = m:columns() }
  out.counts = m:fill("source_counts", { ready = all_of(m:unkeyed(m:parent_done(m:due(m:waiting())))), later = later(m),
    ["until"] = until_due(m), theirs = theirs(m), done = is_done, dead = is_dead })
  out.row = m:fill("source_row", { done = is_done, dead = is_dead })
  out.dead_list, out.dead_kinds = m:fill("source_dead", marks), m:fill("source_dead_kinds", marks)
  out.dead_blamed = m:fill("source_dead_blamed", marks)
  out.dead_ids = m:fill("source_pick", { index = "", past = "", where = is_dead })
  out.again = m:write(m:as_new(), is_dead)
  add_picks(m, out, "done", is_done, admin_text.ended(map))
  add_picks(m, out, "dead", is_dead, map.parts.updated and "updated")
  out.open_pick = m:fill("source_pick", { index = "FORCE INDEX (PRIMARY)", past = "",
    where = all_of(m:unkeyed(m:waiting())) })
  out.open_lock = m:fill("source_lock", { columns = m:columns() .. ", " .. until_due(m) .. " AS `ns:delay`",
    where = open })
  out.delete = m:fill("source_delete", {})
  return out
end

return admin_text
