--- `nightshift doctor`: the checks, in the order in which they are printed. And their common
-- parts: statements for which a refusal is a finding, and the words for an impossible look.
--
-- A check looks at one thing and returns "ok", "warn" or "fail", its finding, and, unless all
-- is well, advice. It changes nothing in the database: the row of 'write' is gone when it is
-- committed. It never shows a password, a payload or another session's query.

local units = require "nightshift.units"

local doctor = {}

-- ------------------------------------------------------- the common parts of checks

function doctor.is_read_only(message)
  return message:find("(1290)", 1, true) ~= nil and message:find "read.only" ~= nil
end

--- Rows of a statement, or nil: this user may not ask, or the server knows no such thing, or
-- takes no writing. Other trouble ends the examination.
function doctor.ask(seen, statement, ...)
  local rows, message, code = seen.handle:execute("@" .. statement, ...)
  if rows or code == "DENIED" or code == "SQL" or code == "SCHEMA" or code == "BUSY"
    or doctor.is_read_only(message) then
    return rows, message
  end
  error({ message = message, code = code }, 0)
end

--- The same for a check that needs the rows: without them it ends, and tells why.
function doctor.need(seen, statement, ...)
  local rows, message = doctor.ask(seen, statement, ...)
  return rows and (rows[1] or error({ skip = statement .. " gives no row" }, 0)) or error({ skip = message }, 0)
end

function doctor.pairs_of(rows)
  local found = {}
  for _, row in ipairs(rows or {}) do found[row.Variable_name:lower()] = row.Value end
  return found
end

function doctor.number(text) return tonumber(text) or 0 end
function doctor.is_on(text) return text == "ON" or text == "1" end
function doctor.seconds(us) return units.fixed(us / 1000000, 1) .. " s" end

--- The procedures that this account is shown, by name.
function doctor.routines(seen)
  if not seen.routines then
    seen.routines = {}
    for _, row in ipairs(doctor.ask(seen, "doctor_routines") or {}) do seen.routines[row.name] = row end
  end
  return seen.routines
end

doctor.CALLS_ONLY = "not looked at: this account may only call the procedures"

doctor.NOT_LOOKED_AT = "not looked at: the tables are not as they should be"

doctor.STALLED = "not tried: no write comes through"

-- ------------------------------------------------------------------- the checks

-- The files of this folder with checks; they use the functions above.
local GROUPS = { "server", "tables", "calls", "jobs" }

-- A later check may use the values that an earlier one has left in 'seen'.
local ORDER = {
  "server", "connection", "clock", "isolation", "settings", "durability", "binlog", "writable",
  "schema", "tables", "write", "ids", "procedures", "grants", "ring", "locks", "plans", "timeouts",
  "connections", "statements", "tmpdir", "transactions", "handlers", "paused", "holders", "scripts", "lost",
  "adopted", "schedules",
}

local function check_of(name)
  for _, group in ipairs(GROUPS) do
    local check = require("nightshift.doctor." .. group)[name]
    if check then return check end
  end
end

--- Collects the facts that several checks use.
local function look(handle)
  local seen = { handle = handle }
  seen.server = doctor.need(seen, "doctor_server")
  seen.global = doctor.pairs_of(doctor.ask(seen, "doctor_variables"))
  seen.session = doctor.pairs_of(doctor.ask(seen, "doctor_variables_session"))
  seen.status = doctor.pairs_of(doctor.ask(seen, "doctor_status"))
  return seen
end

-- Advice when there is no connection, by code.
local ADVICE = {
  GONE = "start the server, or mend host, port or socket in the URL",
  DENIED = "mend user, password or tls in the URL, or the grants",
  SCHEMA = "create the database, then run nightshift init",
  SERVER = "connect to one MariaDB of 10.6 or later; to fail over, give it a semi-synchronous replica",
}

-- Advice by a part of the server's message, for any code.
local TROUBLES = {
  ["not answer"] = "it is there, but frozen or overloaded: see whether its process is stopped and whether its machine "
    .. "swaps or waits for a disk, read its error log, then restart it",
  ["(1461)"] = "raise max_prepared_stmt_count, and find the program that leaves statements open",
  ["max-session-mem-used"] = "raise max_session_mem_used, or take it out of my.cnf",
}

local function refused(message, code)
  local advice = ADVICE[code] or "mend the URL"
  for text, what in pairs(TROUBLES) do
    if message:find(text, 1, true) then advice = what end
  end
  return { name = "server", level = "fail", found = message, advice = advice }
end

--- Runs one check. A look that the server refuses is a finding, too.
local function examine(name, seen)
  local ok, level, found, advice = pcall(check_of(name), seen)
  if ok then return { name = name, level = level, found = found, advice = advice } end
  if type(level) ~= "table" or not level.skip then error(level, 0) end
  return { name = name, level = "warn", found = "not looked at: " .. level.skip,
    advice = "mend what the server says" }
end

--- Examines one database. Gives a list of {name, level, found, advice}, and
-- the code that cut it short, if any did.
---@param open fun(): table|nil, string?, string? opens a core handle
---@param tell fun(finding: table) gets each as soon as it is found
---@return table[] findings
---@return string? code
function doctor.run(open, tell)
  local findings = {}
  local function add(finding)
    findings[#findings + 1] = finding
    tell(finding)
  end
  local handle <close>, message, code = open()
  if not handle then
    add(refused(message, code))
    return findings, code
  end
  local ok, err = pcall(function()
    local seen = look(handle)
    seen.open = open
    for _, name in ipairs(ORDER) do
      add(examine(name, seen))
    end
  end)
  if ok then return findings end
  if type(err) ~= "table" then error(err, 0) end
  add(refused(err.message or err.skip, err.code))
  return findings, err.code
end

return doctor
