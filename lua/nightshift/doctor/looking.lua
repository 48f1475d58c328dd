--- What all checks of `nightshift doctor` look with: statements for which a refusal is a finding,
-- and what is said where nothing can be looked at.

local decimal = require "nightshift.decimal"

local looking = {}

function looking.is_read_only(message)
  return message:find("(1290)", 1, true) ~= nil and message:find "read.only" ~= nil
end

--- Rows of a statement, or nil: this user may not ask, or the server knows no
-- such thing, or takes no writing. Other trouble ends the examination.
function looking.ask(seen, statement, ...)
  local rows, message, code = seen.handle:execute("@" .. statement, ...)
  if rows or code == "DENIED" or code == "SQL" or code == "SCHEMA" or code == "BUSY"
    or looking.is_read_only(message) then
    return rows, message
  end
  error({ message = message, code = code }, 0)
end

--- The same where a check can say nothing without: it ends, and tells why.
function looking.need(seen, statement, ...)
  local rows, message = looking.ask(seen, statement, ...)
  return rows and (rows[1] or error({ skip = statement .. " gives no row" }, 0)) or error({ skip = message }, 0)
end

function looking.pairs_of(rows)
  local found = {}
  for _, row in ipairs(rows or {}) do found[row.Variable_name:lower()] = row.Value end
  return found
end

function looking.number(text) return tonumber(text) or 0 end
function looking.is_on(text) return text == "ON" or text == "1" end
function looking.seconds(us) return decimal.fixed(us / 1000000, 1) .. " s" end

--- The procedures that this account is shown, by name.
function looking.routines(seen)
  if not seen.routines then
    seen.routines = {}
    for _, row in ipairs(looking.ask(seen, "doctor_routines") or {}) do seen.routines[row.name] = row end
  end
  return seen.routines
end

looking.CALLS_ONLY = "not looked at: this account may only call the procedures"

looking.NOT_LOOKED_AT = "not looked at: the tables are not as they should be"

looking.STALLED = "not tried: no write comes through"

return looking
