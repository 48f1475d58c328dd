--- `nightshift doctor`: the checks, in the order in which they are printed.
--
-- A check looks at one thing and returns "ok", "warn" or "fail", what it found,
-- and, unless all is well, what to do. It changes nothing in the database (the row of
-- 'write' is gone when it is committed) and never shows a password, a payload or another
-- session's query.

local looking = require "nightshift.doctor.looking"

local GROUPS = { require "nightshift.doctor.server", require "nightshift.doctor.tables",
  require "nightshift.doctor.calls", require "nightshift.doctor.jobs" }

-- A later check may look at what an earlier one has left in 'seen'.
local ORDER = {
  "server", "connection", "clock", "isolation", "settings", "durability", "binlog", "writable",
  "schema", "tables", "write", "ids", "procedures", "grants", "ring", "locks", "plans", "timeouts",
  "connections", "statements", "tmpdir", "transactions", "handlers", "holders", "scripts", "lost",
  "adopted",
}

local function check_of(name)
  for _, group in ipairs(GROUPS) do
    if group[name] then return group[name] end
  end
end

local doctor = {}

--- What several checks look at.
local function look(handle)
  local seen = { handle = handle }
  seen.server = looking.need(seen, "doctor_server")
  seen.global = looking.pairs_of(looking.ask(seen, "doctor_variables"))
  seen.session = looking.pairs_of(looking.ask(seen, "doctor_variables_session"))
  seen.status = looking.pairs_of(looking.ask(seen, "doctor_status"))
  return seen
end

-- What to do when there is no connection, by code.
local ADVICE = {
  GONE = "start the server, or mend host, port or socket in the URL",
  DENIED = "mend user, password or tls in the URL, or the grants",
  SCHEMA = "create the database, then run nightshift init",
  SERVER = "connect to one MariaDB of 10.6 or later; to fail over, give it a semi-synchronous replica",
}

-- Whatever its code: what the server says, and what to do.
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

--- Runs one. What the server keeps it from looking at is a finding, too.
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
