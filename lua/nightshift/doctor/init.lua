--- `nightshift doctor`: the checks, in the order in which they are printed. And their common
-- parts: statements for which a refusal is a finding, and the words for an impossible look.
--
-- A check looks at one thing and returns a status, a text, unless all is well the fix, and a value
-- for programs. The status is "ok"; "note", which is worth knowing, or could not be seen;
-- "warn", or "fail". It changes nothing in the database: the row of 'write' is gone when it is
-- committed. Its statements have a second each. It never shows a password, a payload or a value
-- in the query of another session.

local units = require "nightshift.units"

local doctor = {}

-- ------------------------------------------------------- the common parts of checks

function doctor.is_read_only(message)
  return message:find("(1290)", 1, true) ~= nil and message:find "read.only" ~= nil
end

--- After a first statement that took too long, or waited for a lock, later ones get less time.
-- Where tables are locked each of them would cost a second.
local function hurry(seen, message)
  if seen.hurried or not (message:find("(1969)", 1, true) or message:find("(1205)", 1, true)) then return end
  seen.hurried = true
  seen.handle:execute("@doctor_limits", 0.2, 0, 0)
end

--- Rows of a statement, or nil: this user may not ask, or the server knows no such thing, or
-- takes no writing. Other trouble ends the examination.
function doctor.ask(seen, statement, ...)
  local rows, message, code = seen.handle:execute("@" .. statement, ...)
  if rows then return rows end
  if code == "BUSY" then hurry(seen, message) end
  if code == "DENIED" or code == "SQL" or code == "SCHEMA" or code == "BUSY" or doctor.is_read_only(message) then
    return nil, message, code
  end
  error({ message = message, code = code }, 0)
end

--- The same for a check that needs the rows: without them it ends, and tells why.
function doctor.need(seen, statement, ...)
  local rows, message = doctor.ask(seen, statement, ...)
  return rows and (rows[1] or error({ skip = statement .. " gives no row" }, 0)) or error({ skip = message }, 0)
end

--- May this account run a statement of sql/query? As handle:may, asked once for two checks.
function doctor.may(seen, name)
  seen.may = seen.may or {}
  if not seen.may[name] then seen.may[name] = table.pack(seen.handle:may(name)) end
  return table.unpack(seen.may[name], 1, 3)
end

--- Ends a look at many things at the first that the server does not answer in time.
function doctor.not_busy(seen, message, code)
  if code ~= "BUSY" then return end
  hurry(seen, message)
  error({ skip = message, fix = "see write" }, 0)
end

function doctor.pairs_of(rows)
  local found = {}
  for _, row in ipairs(rows or {}) do found[row.Variable_name:lower()] = row.Value end
  return found
end

function doctor.number(text) return tonumber(text) or 0 end
function doctor.is_on(text) return text == "ON" or text == "1" end
function doctor.seconds(us) return units.fixed(us / 1000000, 1) .. " s" end

local UNITS = { "KiB", "MiB", "GiB", "TiB" }

--- Bytes for people: "12.3 GiB".
function doctor.size(bytes)
  local n, unit = bytes / 1024, 1
  while n >= 1024 and unit < #UNITS do n, unit = n / 1024, unit + 1 end
  return (n < 10 and units.fixed(n, 1) or math.floor(n)) .. " " .. UNITS[unit]
end

--- A text as a shell takes it for one word.
function doctor.word(text)
  return text:find "^[%w_./:@-]+$" and text or "'" .. text:gsub("'", "'\\''") .. "'"
end

--- The procedures that this account is shown, by name.
function doctor.routines(seen)
  if not seen.routines then
    seen.routines = {}
    for _, row in ipairs(doctor.ask(seen, "doctor_routines") or {}) do seen.routines[row.name] = row end
  end
  return seen.routines
end

--- Do named locks not serve here, by a row of meta?
function doctor.no_locks(seen)
  if seen.no_locks == nil then
    local rows = doctor.ask(seen, "holder_locks")
    seen.no_locks = rows ~= nil and rows[1] ~= nil and select(2, next(rows[1])) == 0
  end
  return seen.no_locks
end

--- Holders, in rows of doctor_holders with `lives`; none where this account may not read them.
-- The second value is nil then.
function doctor.holders(seen)
  if seen.holders == nil then
    seen.holders = doctor.ask(seen, "doctor_holders") or false
    for _, h in ipairs(seen.holders or {}) do
      h.lives = not h.dead and (h.gone ~= 1 or doctor.no_locks(seen))
    end
  end
  return seen.holders or {}, seen.holders or nil
end

--- An account as SQL writes it.
function doctor.quoted(account)
  local name, host = account:match "^(.*)@([^@]*)$"
  return ("'%s'@'%s'"):format(name, host)
end

--- The results of a check that lacks a right of the whole server. `says`: its text so far.
function doctor.lacking(seen, right, says)
  local part = says and says .. "; more is not shown" or "not looked at"
  return "note", ("%s: this account lacks %s"):format(part, right),
    ("GRANT %s ON *.* TO %s"):format(right, doctor.quoted(seen.server.account))
end

--- The results of a check that may not read its tables.
function doctor.hidden()
  return "note", "not looked at: this account may not read them", "see nightshift doctor --grants dashboard"
end

-- ------------------------------------------------------------------- the checks

-- The files of this folder with checks; they use the functions above.
local GROUPS = { "server", "tables", "grants", "jobs" }

-- A later check may use the values that an earlier one has left in 'seen'.
local ORDER = {
  "server", "versions", "connection", "socket", "clock", "isolation", "sql_mode", "settings", "durability", "binlog",
  "writable", "schema", "tables", "drift", "write", "ids", "procedures", "grants", "ring", "locks", "plans",
  "timeouts", "connections", "statements", "limits", "files", "tmpdir", "disk", "redo", "replication",
  "transactions", "waits", "deadlocks", "handlers", "paused", "holders", "scripts", "lost", "adopted", "schedules",
}

-- The needs of checks. "tables": tables of our version. "calls": such tables, or procedures that
-- may be called. "writes": a write comes through.
local TABLES, CALLS, WRITES <const> = { "tables" }, { "calls" }, { "calls", "writes" }
local NEEDS = {
  tables = TABLES, drift = TABLES, write = TABLES, ids = TABLES, handlers = TABLES, paused = TABLES, holders = TABLES,
  scripts = TABLES, lost = TABLES, adopted = TABLES, schedules = TABLES,
  plans = { "tables", "writes" }, -- plans lock like their statements
  grants = CALLS, procedures = WRITES, ring = WRITES,
}

--- Why a check cannot be made: status, text, fix.
local function obstacle(name, seen)
  for _, need in ipairs(NEEDS[name] or {}) do
    if need == "writes" and seen.stalled then return "note", "not tried: no write comes through", "see write" end
    local there = seen.tables or need ~= "tables" and seen.calls_only
    if not there and seen.calls_only then
      return "note", "not looked at: this account may only call the procedures", "see nightshift doctor --grants"
    elseif not there then
      return "note", "not looked at: the tables are not as they should be", "see schema"
    end
  end
end

local function check_of(name)
  for _, group in ipairs(GROUPS) do
    local check = require("nightshift.doctor." .. group)[name]
    if check then return check end
  end
end

--- Collects the facts that several checks use.
local function look(handle)
  local seen = { handle = handle }
  seen.session = doctor.pairs_of(doctor.ask(seen, "doctor_variables_session"))
  handle:execute("@doctor_limits", 1, 1, 1)
  seen.server = doctor.need(seen, "doctor_server")
  seen.global = doctor.pairs_of(doctor.ask(seen, "doctor_variables"))
  seen.status = doctor.pairs_of(doctor.ask(seen, "doctor_status"))
  return seen
end

-- The fix when there is no connection, by code.
local FIXES = {
  GONE = "start the server, or mend host, port or socket in the URL",
  DENIED = "mend user, password or tls in the URL, or the grants",
  SCHEMA = "create the database, then run nightshift init",
  SERVER = "connect to one MariaDB of 10.6 or later; to fail over, give it a semi-synchronous replica",
}

-- The fix by a part of the server's message, for any code.
local TROUBLES = {
  ["not answer"] = "it is there, but frozen or overloaded: see whether its process is stopped and whether its machine "
    .. "swaps or waits for a disk, read its error log, then restart it",
  ["(1461)"] = "raise max_prepared_stmt_count, and find the program that leaves statements open",
  ["max-session-mem-used"] = "raise max_session_mem_used, or take it out of my.cnf",
  ["Galera"] = "nodes have named locks of their own, and a commit may be undone by another node: name all nodes in the "
    .. "URL (mysql://user@a,b,c/db), with the same settings, as doc/failover.md has them",
  ["(2001)"] = "a socket's path has at most 107 bytes: give the server a shorter one (socket= in my.cnf)",
}

local function refused(message, code)
  local fix = FIXES[code] or "mend the URL"
  for text, what in pairs(TROUBLES) do
    if message:find(text, 1, true) then fix = what end
  end
  return { name = "server", status = "fail", says = message, fix = fix }
end

--- Runs one check. A look that the server refuses is a finding, too.
local function examine(name, seen)
  local ok, status, says, fix, value = true, obstacle(name, seen)
  if not status then ok, status, says, fix, value = pcall(check_of(name), seen) end
  if ok then
    return { name = name, status = status, says = says, fix = status ~= "ok" and fix or nil, value = value }
  end
  if type(status) ~= "table" or not status.skip then error(status, 0) end
  return { name = name, status = "note", says = "not looked at: " .. status.skip,
    fix = status.fix or "mend what the server says" }
end

--- Examines one database. Gives a list of {name, status, says, fix, value}, and
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
