--- Checks of the schema that `nightshift init` made: tables, views, the sequence of ids, plans
-- of hot statements. A check is a function of this table by its name; nightshift.doctor has the
-- form of its results.

local core = require "nightshift.core"
local doctor = require "nightshift.doctor"
local plans = require "nightshift.doctor.plans"

local ask, number, routines = doctor.ask, doctor.number, doctor.routines
local CALLS_ONLY, NOT_LOOKED_AT, STALLED = doctor.CALLS_ONLY, doctor.NOT_LOOKED_AT, doctor.STALLED

local checks = {}

local function newest_schema()
  local schema = core.schema()
  return schema[#schema].version
end

function checks.schema(seen)
  local rows, message = ask(seen, "handle_schema")
  local version = rows and rows[1] and math.tointeger(tonumber(rows[1].value))
  local ours = newest_schema()
  seen.tables = version == ours
  if not rows and message:find("(1142)", 1, true) then
    seen.calls_only = next(routines(seen)) ~= nil
    if seen.calls_only then return "ok", CALLS_ONLY end
    return "fail", message, "grant what the user needs: nightshift doctor --grants"
  elseif not version then
    return "fail", "there are no Nightshift tables in this database", "nightshift init"
  elseif version < ours then
    return "fail", ("version %d, older than the %d of this program"):format(version, ours), "nightshift migrate"
  elseif version > ours then
    return "fail", ("version %d, newer than the %d of this program"):format(version, ours), "upgrade this program"
  end
  return "ok", "version " .. version
end

--- The things that the schema makes: name = its engine; false for a thing without one.
local function expected_tables()
  local expected = {}
  for _, statement in ipairs(core.schema()) do
    local what, name = statement.text:gsub("IF NOT EXISTS ", ""):match "^CREATE[%u ]- (%u+) (nightshift_[%l_]+)"
    if what and what ~= "PROCEDURE" then
      expected[name] = what == "TABLE" and (name == "nightshift_listener" and "MEMORY" or "InnoDB")
    end
  end
  return expected
end

--- Tables that are certainly missing: information_schema hides tables that this account may not
-- see, but the error of a statement tells which it is.
local function missing_tables(seen, expected, shown)
  local missing, names = {}, {}
  for _, name in ipairs(core.statements()) do
    local ok, message, code = seen.handle:may(name)
    local gone = not ok and code == "SCHEMA" and message:match "[.`'](nightshift_[%l_]+)"
    if gone and expected[gone] ~= nil and not shown[gone] then missing[gone] = true end
  end
  for name in pairs(missing) do names[#names + 1] = name .. " is not there" end
  table.sort(names)
  return names
end

--- A server writes the database's name into a view, and so does its dump: restored
-- under another name, the view reads the original. Gives the name of such a view.
local function reads_another(seen)
  for _, row in ipairs(ask(seen, "doctor_tables_views") or {}) do
    local ours = ("`%s`.`nightshift_queue`"):format((seen.server.db:gsub("`", "``")))
    if row.text ~= "" and not row.text:find(ours, 1, true) then return row.name end
  end
end

local VIEWS = { nightshift_history = true, nightshift_jobs = true }

local function are_views(missing)
  for _, says in ipairs(missing) do
    if not VIEWS[says:match "^%S+"] then return false end
  end
  return #missing > 0
end

function checks.tables(seen)
  if seen.calls_only then return "ok", CALLS_ONLY end
  if not seen.tables then return "warn", NOT_LOOKED_AT, "see schema" end
  local expected, shown, wrong = expected_tables(), {}, {}
  for _, row in ipairs(ask(seen, "doctor_tables") or {}) do
    local engine = expected[row.name]
    shown[row.name] = true
    if engine and row.engine ~= engine then wrong[#wrong + 1] = ("%s is %s"):format(row.name, row.engine) end
  end
  local missing = missing_tables(seen, expected, shown)
  local other = reads_another(seen)
  if are_views(missing) then
    return "fail", table.concat(missing, ", "), "nightshift migrate makes the views anew"
  elseif #missing > 0 then
    return "fail", table.concat(missing, ", "),
      "bring it back from a backup; its statement is in nightshift init --print"
  elseif #wrong > 0 then
    return "fail", table.concat(wrong, ", "), "ALTER TABLE … ENGINE=InnoDB (MEMORY for nightshift_listener)"
  elseif other then
    return "fail", ("the view %s shows the jobs of another database, whose dump was restored here"):format(other),
      "nightshift migrate makes the views anew"
  end
  return "ok", "InnoDB, and the list of listeners in memory"
end

local LAST_BLOCK = math.maxinteger // 100 -- ids come in blocks of 100
local FAR_BLOCK = 1000000000000000 -- a thousand blocks a second for 30,000 years

--- The statement that takes the sequence back, behind the ids in use.
local function restart(seen)
  local most = FAR_BLOCK * 100
  local rows = ask(seen, "doctor_ids_used", most, most, most, most)
  local block = rows and tostring(rows[1].block + 1000) or "N, above the highest id of jobs, leases and holders / 100"
  return ("find out who called SETVAL, then as an administrator: ALTER SEQUENCE nightshift_id RESTART %s"):format(block)
end

function checks.ids(seen)
  local rows = seen.tables and ask(seen, "doctor_ids")
  if not rows then return "ok", "not looked at: this user may not read the sequence" end
  local block = rows[1].next
  local found = ("block %d of %d"):format(block, LAST_BLOCK)
  if block < FAR_BLOCK then return "ok", found end
  if block < LAST_BLOCK then
    return "warn", found .. ": no use comes this far, somebody has set the sequence", restart(seen)
  end
  return "fail", found .. ": there are no more ids, every push fails", restart(seen)
end

--- Tables that must never be read as a whole by a hot statement.
local BIG = { nightshift_job = true, nightshift_ready = true, nightshift_scheduled = true, nightshift_finished = true }
local FEW = 1000 -- rows that may well be scanned

--- The fault of a plan: nil, or the table that is read whole.
local function scanned(rows)
  for _, row in ipairs(rows) do
    local name = row.table or ""
    local real = ({ j = "nightshift_job", f = "nightshift_finished" })[name] or name
    local whole = row.type == "ALL" or (row.Extra or ""):find "filesort"
    if BIG[real] and whole and number(row.rows) > FEW then return real end
  end
end

function checks.plans(seen)
  if seen.calls_only then return "ok", CALLS_ONLY end
  if not seen.tables then return "warn", NOT_LOOKED_AT, "see schema" end
  if seen.stalled then return "warn", STALLED, "see write" end -- their plans lock like they do
  local bad, asked = {}, 0
  for _, hot in ipairs(plans.hot) do
    local rows = seen.handle:execute(plans.question(hot[1]), table.unpack(hot, 2))
    if rows then
      asked = asked + 1
      local name = scanned(rows)
      if name then bad[#bad + 1] = ("%s reads all of %s"):format(hot[1], name) end
    end
  end
  if #bad > 0 then
    return "warn", table.concat(bad, ", "), "ANALYZE TABLE nightshift_job, nightshift_ready, nightshift_scheduled, "
      .. "nightshift_finished; if it stays, report it with the EXPLAIN"
  elseif asked == 0 then
    return "ok", "not looked at: this user may run none of the hot statements"
  end
  return "ok", ("%d of %d hot statements looked at, each reads by key"):format(asked, #plans.hot)
end

return checks
