--- Checks of the schema that `nightshift init` made: tables, views, the sequence of ids, plans
-- of hot statements. A check is a function of this table by its name; nightshift.doctor has the
-- form of its results. `hot`, `lanes` and `question` are for specs, too.

local core = require "nightshift.core"
local doctor = require "nightshift.doctor"
local shards = require "nightshift.sharded.shards"

local ask, number, routines = doctor.ask, doctor.number, doctor.routines

local checks = {}

local function newest_schema()
  local schema = core.schema()
  return schema[#schema].version
end

function checks.schema(seen)
  local rows, message, code = ask(seen, "handle_schema")
  local version = rows and rows[1] and math.tointeger(tonumber(rows[1].value))
  local ours = newest_schema()
  seen.tables = version == ours or code == "BUSY"
  if code == "BUSY" then return "note", "not looked at: " .. message, "see write" end
  if not rows and message:find("(1142)", 1, true) then
    seen.calls_only = next(routines(seen)) ~= nil
    if seen.calls_only then
      return "note", "not looked at: this account may only call the procedures", "see nightshift doctor --grants"
    end
    return "fail", message, "grant what the user needs: nightshift doctor --grants"
  elseif not version then
    return "fail", "there are no Nightshift tables in this database", "nightshift init"
  elseif version < ours then
    return "fail", ("version %d, older than the %d of this program"):format(version, ours), "nightshift migrate"
  elseif version > ours then
    return "fail", ("version %d, newer than the %d of this program"):format(version, ours), "upgrade this program"
  end
  return "ok", "version " .. version, nil, version
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
    local ok, message, code = doctor.may(seen, name)
    doctor.not_busy(seen, message, code)
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

-- ----------------------------------------------------------------------- drift

-- Tables as the schema makes them, beside tables as the server shows them. Both texts have a line
-- for each column, key and constraint, and are read by the same function.

--- A type in one form: without display widths and words for the same.
local function type_of(line)
  local name, rest = line:lower():match "^(%l+)(.*)"
  local size, behind = rest:match "^(%b())(.*)"
  if name == "boolean" or name == "bool" then name = "tinyint" end
  if name:find "int$" then size = "" end
  local null = line:find "NOT NULL" or line:find "PRIMARY KEY"
  return name .. (size or "") .. ((behind or rest):find "^ unsigned" and " unsigned" or "")
    .. (null and " NOT NULL" or " NULL")
end

--- Lists of columns and keys, which also have them by name: {name, text, is}; the names of checks.
local function read(text)
  local has = { columns = {}, keys = {}, checks = {} }
  local function add(list, name, what, is)
    list[#list + 1] = { name = name, text = what, is = is }
    list[name] = list[#list]
  end
  for line in text:gsub("`", ""):gmatch "\n  (%S[^\n]*)" do
    line = line:gsub(",$", "")
    local kind, name, columns = line:match "^(%u*) ?KEY ([%w_]*) ?(%b())"
    if kind then
      add(has.keys, name == "" and "PRIMARY" or name, line, kind .. columns:gsub("%s", ""))
    elseif line:find "^CONSTRAINT " then
      name = line:match "^CONSTRAINT (%S+)"
      add(has.checks, name, text:match("CONSTRAINT `?" .. name .. "`? CHECK %b()"))
    else
      local column, rest = line:match "^([%w_]+) (.+)"
      if line:find(" PRIMARY KEY", 1, true) then add(has.keys, "PRIMARY", ("PRIMARY KEY (%s)"):format(column),
        ("PRIMARY(%s)"):format(column)) end
      if column then add(has.columns, column, rest:gsub(" PRIMARY KEY", ""), type_of(rest)) end
    end
  end
  return has
end

--- The difference of one column: a status, its text, and the part of an ALTER TABLE; nil: none.
local function column_drift(want, have)
  if not have then
    return "fail", ("lacks the column %s"):format(want.name), ("ADD COLUMN %s %s"):format(want.name, want.text)
  elseif have.is ~= want.is then
    return "warn", ("has %s as %s, not %s"):format(want.name, have.is, want.is),
      ("MODIFY COLUMN %s %s"):format(want.name, want.text)
  end
end

--- The same for a column that is not ours.
local function stranger(have)
  local needs = have.is:find "NOT NULL" and not have.text:find "DEFAULT" and not have.text:find "AUTO_INCREMENT"
  return needs and "fail" or "note", ("has a column %s that is not ours%s"):format(have.name,
    needs and ", and no row without it" or ""), ("DROP COLUMN %s"):format(have.name)
end

local function key_drift(want, have)
  if have and have.is == want.is then return nil end
  local drop = not have and "" or want.name == "PRIMARY" and "DROP PRIMARY KEY, " or ("DROP KEY %s, "):format(want.name)
  return "warn", ("%s the key %s"):format(have and "has other columns in" or "lacks", want.name),
    ("%sADD %s"):format(drop, want.text)
end

--- Tells of each difference of a table.
local function compare(want, have, tell)
  for _, column in ipairs(want.columns) do tell(column_drift(column, have.columns[column.name])) end
  for _, column in ipairs(have.columns) do
    if not want.columns[column.name] then tell(stranger(column)) end
  end
  for _, key in ipairs(want.keys) do tell(key_drift(key, have.keys[key.name])) end
  for _, check in ipairs(want.checks) do
    if not have.checks[check.name] then
      tell("warn", ("lacks the check %s"):format(check.name), "ADD " .. check.text)
    end
  end
end

-- The server shows bodies with their texts read once: without backslashes before backslashes.
local function plain(text) return (text:gsub("\\", "")) end

--- Routines of this database with another text than ours, as far as this account is shown texts.
local function other_routines(seen)
  local other = {}
  for _, statement in ipairs(core.schema()) do
    local row = routines(seen)[statement.text:match "^CREATE OR REPLACE %u+ (nightshift_[%l_]+)" or ""]
    local changed = row and row.text and not plain(statement.text):find(plain(row.text), 1, true)
    if changed then other[#other + 1] = row.name end
  end
  return other
end

local WORSE = { ok = 1, note = 2, warn = 3, fail = 4 }
local SHOWN = 4

function checks.drift(seen)
  local worst, texts, fixes, looked = "ok", {}, {}, 0
  local function add(status, text, fix)
    if WORSE[status] > WORSE[worst] then worst = status end
    texts[#texts + 1], fixes[#fixes + 1] = text, fix
  end
  for _, statement in ipairs(core.schema()) do
    local name = statement.text:match "^CREATE TABLE (nightshift_[%l_]+)"
    local rows, message, code = nil, nil, nil
    if name then rows, message, code = seen.handle:execute("SHOW CREATE TABLE " .. name) end
    doctor.not_busy(seen, message, code)
    if rows then
      looked = looked + 1
      compare(read(statement.text), read(rows[1]["Create Table"]), function(status, text, fix)
        if status then add(status, ("%s %s"):format(name, text), ("ALTER TABLE %s %s"):format(name, fix)) end
      end)
    end
  end
  local other = other_routines(seen)
  if #other > 0 then
    add("warn", table.concat(other, ", ") .. " have another text than this program's", "nightshift migrate")
  end
  if looked == 0 then return doctor.hidden() end
  if #texts == 0 then return "ok", ("%d tables are as the schema makes them"):format(looked), nil, 0 end
  local more = #texts > SHOWN and ("; and %d more"):format(#texts - SHOWN) or ""
  return worst, table.concat(texts, "; ", 1, math.min(SHOWN, #texts)) .. more,
    table.concat(fixes, "; ", 1, math.min(SHOWN, #fixes)), #texts
end

-- ------------------------------------------------------------------------- ids

local LAST_BLOCK = math.maxinteger // 100 -- ids come in blocks of 100
local FAR_BLOCK = 1000000000000000 -- a thousand blocks a second for 30,000 years

--- The statement that takes the sequence back, behind the ids in use.
local function restart(seen)
  local most = FAR_BLOCK * 100
  local rows = ask(seen, "doctor_ids_used", most, most, most, most)
  local block = rows and tostring(rows[1].block + 1000) or "N, above the highest id of jobs, leases and holders / 100"
  return ("find out who called SETVAL, then as an administrator: ALTER SEQUENCE nightshift_id RESTART %s"):format(block)
end

--- The ids of a database that is a shard: it has a part of all ids, and there are no more behind it.
local function shard_ids(block, low, high)
  local blocks = shards.BLOCKS
  local shard = low // blocks
  local found = ("shard %d: block %d of %d"):format(shard, block - low, blocks)
  if low % blocks ~= 0 or high > low + blocks - 1 then
    return "fail", ("%s, and blocks %d to %d are not those of a shard"):format(found, low, high),
      ("as an administrator: ALTER SEQUENCE nightshift_id MINVALUE %d MAXVALUE %d"):format(shard * blocks,
        (shard + 1) * blocks - 1)
  elseif block - low < blocks // 10 * 9 then
    return "ok", found
  end
  return "warn", found .. ": its ids are nearly used", "put a new shard into the list for the pushes to come"
end

function checks.ids(seen)
  local rows = ask(seen, "doctor_ids")
  if not rows then return doctor.hidden() end
  local block, low, high = rows[1].next, rows[1].low, rows[1].high
  if low ~= 1 then return shard_ids(block, low, high) end
  local found = ("block %d of %d"):format(block, LAST_BLOCK)
  if block < FAR_BLOCK then return "ok", found end
  if block < LAST_BLOCK then
    return "warn", found .. ": no use comes this far, a program has set the sequence", restart(seen)
  end
  return "fail", found .. ": there are no more ids, every push fails", restart(seen)
end

-- ------------------------------------------------------------------------- plans

--- The condition of a claim over so many lanes, and its parameters: queue 1.
---@param lanes integer
---@return string
---@return table
function checks.lanes(lanes)
  local ranges, params = {}, { 1 }
  for i = 1, lanes do
    ranges[i] = "(rank = ? AND ready_at >= ? AND ready_at < ?)"
    params[#params + 1] = 155 + i % 100
    params[#params + 1] = 0
    params[#params + 1] = math.maxinteger
  end
  params[#params + 1] = 10
  return table.concat(ranges, " OR "), params
end

local RANGES, LANE_PARAMS = checks.lanes(2)

--- The statements with plans that decide how fast the queue is, with values to ask the server for
-- the plan by. Each: statement and parameters. A plan may depend on the rows there are: a check of
-- an almost empty table says little.
checks.hot = {
  { "claim_above", 1, 255 },
  { "claim_fast", table.unpack(LANE_PARAMS) },
  { "claim_skip", table.unpack(LANE_PARAMS) },
  { "claim_late", table.unpack(LANE_PARAMS) },
  { "claim_below", table.unpack(LANE_PARAMS) },
  { "claim_more", 1, 155, 0, 10, 7, 1, 10 },
  { "claim_drop", "[[1,155,100,1]]" },
  { "claim_firsts", "[1,2]" },
  { "claim_head", 1, 155, 0 },
  { "claim_busy_queues", "[1,2]" },
  { "claim_promote", 0, math.maxinteger, 10 },
  { "claim_promote_skip", 0, math.maxinteger, 10 },
  { "claim_promote_next", 0 },
  { "claim_read", "[[100,1],[101,1]]" },
  { "claim_read_again", "[[100,1],[101,1]]" },
  { "claim_upcoming", 0, 60000000, 1000 },
  { "claim_stretch", 100, 109, 1 },
  { "settle_done", 1, 100, 109, 1, 10 },
  { "settle_done_gone", 100, 109, 1, 10 },
  { "settle_done_list", 1, "[[100,1,null]]" },
  { "settle_done_ours", "[[100,1],[101,1]]" },
  { "settle_lock", "[[100,1],[101,1]]" },
  { "settle_stands", "[[100,1]]" },
  { "settle_shown", 1, '[[100,1,1,0.5,"x"]]' },
  { "settle_gone", "[100]" },
  { "settle_parked", '[["fail",1,100]]' },
  { "settle_keys", '[[0,1,"key"]]' },
  { "settle_finish", 1, '[{"i":100,"o":"done"}]' },
  { "depend_edges", "[100]" },
  { "depend_edges_between", 100, 200, 10 },
  { "depend_lock", "[100]" },
  { "depend_met", "[[1,100]]" },
  { "depend_there", "[100]" },
  { "depend_pending", 0, 1000 },
  { "depend_cut", 100, 101, 10 },
  { "edge_after", 100 },
  { "edge_children", "[100]" },
  { "edge_children_failed", "[[100,1]]" },
  { "edge_children_lock", "[100]" },
  { "edge_circle", 100, 100 },
  { "edge_circle_turn" },
  { "edge_circle_wait" },
  { "edge_followed", "[100,101]" },
  { "edge_held", "[100]" },
  { "edge_dependents", "[100]" },
  { "edge_count", 100 },
  { "edge_ended", 100 },
  { "edge_lock", 100 },
  { "edge_results", 100, 500, 0 },
  { "edge_counts", "[100]" },
  { "signal_find", 100, "go" },
  { "push_scheduled", "[100,101]" },
  { "listen_look", 99, 0 },
  { "prune_members", "[100]", 10 },
  { "prune_chosen", 3600000000, "[[100,1]]", "done" },
  { "prune_count", "done", math.maxinteger, math.maxinteger, math.maxinteger, 10 },
  { "prune_page", "done", 0, 0, 0, 3600000000, 0, 10 },
  { "prune_select", 3600000000, "done", 0, 0, 0, 3600000000, 10 },
  { "prune_siblings", 100, 0, 0, 0, 10 },
}

--- A statement of sql/query in a form that EXPLAIN takes: marks filled in, parts that EXPLAIN
-- does not know left out.
---@param name string
---@param ranges string? the condition of a claim; default: two lanes
---@return string
function checks.question(name, ranges)
  local fill = (ranges or RANGES):gsub("%%", "%%%%")
  return "EXPLAIN " .. core.sql(name):gsub("^SET STATEMENT.-FOR%s+", ""):gsub("RETURNING.*$", "")
    :gsub("/%*lanes%*/", fill):gsub("%(queues%)", "(1,2)")
    :gsub("/%*near%*/", "TRUE")
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
  local bad, asked = {}, 0
  for _, hot in ipairs(checks.hot) do
    local rows = seen.handle:execute(checks.question(hot[1]), table.unpack(hot, 2))
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
    return doctor.hidden()
  end
  return "ok", ("%d of %d hot statements looked at, each reads by key"):format(asked, #checks.hot)
end

return checks
