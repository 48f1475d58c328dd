--- The checks of `nightshift doctor`, in the order in which they are printed.
--
-- A check looks at one thing and returns "ok", "warn" or "fail", what it found,
-- and, unless all is well, what to do. It changes nothing in the database (the row of
-- 'write' is gone when it is committed) and never shows a password, a payload or another
-- session's query.

local core = require "nightshift.core"
local grants = require "nightshift.grants"
local decimal = require "nightshift.decimal"
local plans = require "nightshift.plans"
local unserved = require "nightshift.unserved"
local versions = require "nightshift.versions"

local checks = {}
local list = {}

local function check(name, run) list[#list + 1] = { name = name, run = run } end

local function is_read_only(message)
  return message:find("(1290)", 1, true) ~= nil and message:find "read.only" ~= nil
end

--- Rows of a statement, or nil: this user may not ask, or the server knows no
-- such thing, or takes no writing. Other trouble ends the examination.
local function ask(seen, statement, ...)
  local rows, message, code = seen.handle:execute("@" .. statement, ...)
  if rows or code == "DENIED" or code == "SQL" or code == "SCHEMA" or code == "BUSY" or is_read_only(message) then
    return rows, message
  end
  error({ message = message, code = code }, 0)
end

--- The same where a check can say nothing without: it ends, and tells why.
local function need(seen, statement, ...)
  local rows, message = ask(seen, statement, ...)
  return rows and (rows[1] or error({ skip = statement .. " gives no row" }, 0)) or error({ skip = message }, 0)
end

local function pairs_of(rows)
  local found = {}
  for _, row in ipairs(rows or {}) do found[row.Variable_name:lower()] = row.Value end
  return found
end

--- What several checks look at.
local function look(handle)
  local seen = { handle = handle }
  seen.server = need(seen, "doctor_server")
  seen.global = pairs_of(ask(seen, "doctor_variables"))
  seen.session = pairs_of(ask(seen, "doctor_variables_session"))
  seen.status = pairs_of(ask(seen, "doctor_status"))
  return seen
end

local function number(text) return tonumber(text) or 0 end
local function is_on(text) return text == "ON" or text == "1" end
local function seconds(us) return decimal.fixed(us / 1000000, 1) .. " s" end

check("server", function(seen)
  local s = seen.server
  return "ok", ("%s (%s) on %s, up %d s; database %s as %s"):format(s.version, s.comment, s.host,
    number(seen.status.uptime), s.db or "-", s.account)
end)

check("connection", function(seen)
  local times = {}
  for i = 1, 7 do
    local before = core.clock()
    need(seen, "doctor_free_lock", "nightshift-doctor")
    times[i] = (core.clock() - before) * 1000
  end
  table.sort(times)
  local cipher = seen.status.ssl_cipher or ""
  local secrecy = cipher == "" and "no TLS" or "TLS by " .. cipher
  local found = ("a round trip takes %s ms, %s"):format(decimal.fixed(times[4], 2), secrecy)
  if times[4] < 20 then return "ok", found end
  return "warn", found, "a claim and a verdict take some round trips each: run hosts near the server"
end)

check("clock", function(seen)
  local before = os.time()
  local now, message = seen.handle:now()
  if not now then error({ skip = message }, 0) end
  now = now // 1000000
  local after = os.time()
  local off = math.max(before - now - 1, now - after - 1, 0)
  if off < 2 then return "ok", "server and this machine agree" end
  return "warn", ("the server's clock is %d s %s this machine's"):format(off, now > after and "ahead of" or "behind"),
    "jobs are due by the server's clock alone: let NTP set both"
end)

check("isolation", function(seen)
  local level = seen.session.transaction_isolation or seen.session.tx_isolation or "unknown"
  if level == "READ-COMMITTED" then return "ok", level end
  return "fail", level .. " although READ-COMMITTED was asked for",
    "something between here and the server changes sessions: connect without it"
end)

--- What a server may set for all sessions, and ours set back: a pattern of what is well,
-- and what it does to those who call the procedures by themselves.
local SETTINGS = {
  { "completion_type", "^NO_CHAIN$", "what follows a COMMIT is in a transaction that nobody commits" },
  { "sql_select_limit", "^%d%d%d%d%d%d%d%d%d%d+$", "results are cut" },
  { "sql_safe_updates", "^OFF$", "changes without a key are refused (error 1175)" },
  { "tx_read_only", "^OFF$", "every write is refused (error 1792)" },
  { "sort_buffer_size", "^%d%d%d%d%d%d+$", "sorts have no room (error 1038)" },
  { "max_join_size", "^%d%d%d%d%d%d%d+$", "large reads are refused (error 1104)" },
  { "max_recursive_iterations", "^%d%d%d+$", "lists are cut" },
  { "sql_auto_is_null", "^OFF$", "IS NULL finds what was inserted last" },
  { "unique_checks", "^ON$", "keys are not always checked" },
  { "foreign_key_checks", "^ON$", "keys are not checked" },
  { "check_constraint_checks", "^ON$", "rows that cannot be are written" },
}

local SMALL_SESSION = 64 << 20 -- bytes of memory that a session of a busy host may well need

check("settings", function(seen)
  local g, wrong = seen.global, {}
  for _, setting in ipairs(SETTINGS) do
    local name, well, effect = table.unpack(setting)
    if g[name] and not g[name]:find(well) then wrong[#wrong + 1] = ("%s=%s (%s)"):format(name, g[name], effect) end
  end
  local engine, memory = g.enforce_storage_engine or "", tonumber(g.max_session_mem_used)
  if engine ~= "" and engine ~= "InnoDB" then
    return "fail", ("enforce_storage_engine=%s: the tables cannot be made, nor mended"):format(engine),
      "SET GLOBAL enforce_storage_engine=NULL, and in my.cnf, at least while you migrate"
  elseif memory and memory < SMALL_SESSION then
    return "warn", ("max_session_mem_used=%d: statements over it are refused, and tried again"):format(memory),
      "set it to 256M or more, or take it out of my.cnf"
  end
  -- what it may do to a session is anything; the usual one is SET NAMES of another character set
  local first = g.init_connect or ""
  if first ~= "" then
    wrong[#wrong + 1] = ("init_connect=%s (each new session of an account without SUPER begins with it)"):format(first)
  end
  if #wrong > 0 then
    return "warn", table.concat(wrong, ", ") .. ": our own sessions set it back, those of other programs do not",
      "take it out of my.cnf, or have programs that call nightshift_push or nightshift_signal set it for themselves"
  end
  return "ok", "nothing is set for all sessions that would break one"
end)

check("durability", function(seen)
  local flush, sync = seen.global.innodb_flush_log_at_trx_commit, seen.global.sync_binlog
  local binlog = is_on(seen.global.log_bin)
  local found = ("innodb_flush_log_at_trx_commit=%s%s"):format(flush, binlog and ", sync_binlog=" .. sync or "")
  if flush == "0" then
    return "warn", found .. ": a crash of the server loses up to a second of pushes and verdicts that had returned",
      "SET GLOBAL innodb_flush_log_at_trx_commit=1, and in my.cnf"
  elseif flush ~= "1" then
    return "warn", found .. ": a crash of the machine loses up to a second of pushes and verdicts that had returned",
      "SET GLOBAL innodb_flush_log_at_trx_commit=1, and in my.cnf"
  elseif binlog and sync ~= "1" then
    return "warn", found .. ": after a crash of the machine replicas lack what was committed last",
      "SET GLOBAL sync_binlog=1, and in my.cnf"
  end
  return "ok", found
end)

check("binlog", function(seen)
  if not is_on(seen.global.log_bin) then return "ok", "no binary log" end
  local format = seen.global.binlog_format
  if format ~= "STATEMENT" then return "ok", "binlog_format=" .. format end
  return "fail", "binlog_format=STATEMENT refuses every write of READ COMMITTED (error 1665)",
    "SET GLOBAL binlog_format=ROW (or MIXED), and in my.cnf"
end)

check("writable", function(seen)
  if is_on(seen.global.read_only) or is_on(seen.global.innodb_read_only) then
    return "fail", "the server is read-only", "connect to the primary, or SET GLOBAL read_only=0"
  end
  return "ok", "read_only=OFF"
end)

local function newest_schema()
  local schema = core.schema()
  return schema[#schema].version
end

--- The procedures that this account is shown, by name.
local function routines(seen)
  if not seen.routines then
    seen.routines = {}
    for _, row in ipairs(ask(seen, "doctor_routines") or {}) do seen.routines[row.name] = row end
  end
  return seen.routines
end

local CALLS_ONLY = "not looked at: this account may only call the procedures"

check("schema", function(seen)
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
end)

local NOT_LOOKED_AT = "not looked at: the tables are not as they should be"

--- What the schema makes: name = its engine; false for what has none.
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

--- Those that are not there for sure: no list of the server shows things to
-- whom they are none of his business, but a statement says which it is.
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

check("tables", function(seen)
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
end)

local STALLED = "not tried: no write comes through"

-- What a session that writes is at, as the server says it, and what keeps it there.
local STALLS = {
  { "backup lock", "FLUSH TABLES WITH READ LOCK, or a backup that blocks commits, keeps all writes back",
    "as an administrator find who holds it (SHOW PROCESSLIST: a backup, or a session that sleeps), and end it" },
  { "metadata lock", "LOCK TABLES or an ALTER TABLE keeps writes back",
    "as an administrator find the session that holds or changes the table (SHOW PROCESSLIST), and end it" },
  { "semi-sync", "no replica has acknowledged it",
    "start the replica, or SET GLOBAL rpl_semi_sync_master_enabled=0" },
}
local DISK = "look at the server's disk, full, slow or lost (df, iostat), and at its error log"

--- Why a write does not come back, from what its session is at; and what to do.
local function stalled(state)
  for _, stall in ipairs(STALLS) do
    if state:find(stall[1], 1, true) then return ("%s ('%s')"):format(stall[2], state), stall[3] end
  end
  return ("the server answers what is read, but does not write (it is at '%s')"):format(state), DISK
end

local LOOK_AFTER = 1 -- s of a write, and
local LOOK_EVERY = 0.3

--- A hook that looks at a session while ours waits for it. Gives in `seen.state` what it is
-- at most of the time: a wait for a lock is one of many short ones.
local function looker(seen, thread)
  local count, at = { [""] = 0 }, core.clock() + LOOK_AFTER
  seen.state = ""
  return function()
    if core.clock() < at then return end
    at = core.clock() + LOOK_EVERY
    local ok, rows = pcall(ask, seen, "holder_state", thread)
    if not ok then seen.mute = rows end
    local state = ok and rows and rows[1] and rows[1].state or ""
    count[state] = (count[state] or 0) + 1
    if count[state] > count[seen.state] then seen.state = state end
  end
end

--- Writes a row on a session of its own. Gives the seconds, and how it failed.
local function write(seen)
  local other <close>, message, code = seen.open()
  if not other then error({ skip = ("%s (%s)"):format(message, code) }, 0) end
  local rows = other:execute "@doctor_server"
  local thread, before = rows and rows[1].thread or 0, core.clock()
  debug.sethook(looker(seen, thread), "", 1000) -- runs ten times a second while it waits
  rows, message, code = other:execute "@doctor_write"
  debug.sethook()
  local took = core.clock() - before
  if rows then return took end
  if seen.mute then error(seen.mute, 0) end -- what is read is not answered either
  if code == "GONE" then ask(seen, "doctor_end_session", thread) end
  return took, message, code
end

local LONG = 1 -- s, of a commit that is worth a warning

check("write", function(seen)
  if seen.calls_only then return "ok", CALLS_ONLY end
  if not seen.tables then return "warn", NOT_LOOKED_AT, "see schema" end
  local took, message, code = write(seen)
  if not message then
    local found = ("a row was written and committed in %s ms"):format(decimal.fixed(took * 1000, 1))
    if took < LONG then return "ok", found end
    local why, advice = stalled(seen.state)
    return "warn", ("%s, and so is every claim, push and verdict: %s"):format(found, why), advice
  elseif code == "DENIED" then
    return "ok", "not tried: this user may not write nightshift_running"
  elseif is_read_only(message) then
    return "fail", "the server is read-only", "see writable"
  elseif code ~= "GONE" then
    return "fail", ("%s (%s)"):format(message, code), "mend what the server says"
  end
  seen.stalled = true
  local why, advice = stalled(seen.state)
  return "fail", ("a row was not written within %s s: %s"):format(decimal.fixed(took, 1), why), advice
end)

local LAST_BLOCK = math.maxinteger // 100 -- ids come in blocks of 100
local FAR_BLOCK = 1000000000000000 -- a thousand blocks a second for 30,000 years

--- The statement that takes the sequence back, behind what is in use.
local function restart(seen)
  local most = FAR_BLOCK * 100
  local rows = ask(seen, "doctor_ids_used", most, most, most, most)
  local block = rows and tostring(rows[1].block + 1000) or "N, above the highest id of jobs, leases and holders / 100"
  return ("find out who called SETVAL, then as an administrator: ALTER SEQUENCE nightshift_id RESTART %s"):format(block)
end

check("ids", function(seen)
  local rows = seen.tables and ask(seen, "doctor_ids")
  if not rows then return "ok", "not looked at: this user may not read the sequence" end
  local block = rows[1].next
  local found = ("block %d of %d"):format(block, LAST_BLOCK)
  if block < FAR_BLOCK then return "ok", found end
  if block < LAST_BLOCK then
    return "warn", found .. ": no use comes this far, somebody has set the sequence", restart(seen)
  end
  return "fail", found .. ": there are no more ids, every push fails", restart(seen)
end)

local PROCEDURES = { "listen", "nudge", "push", "ring", "signal" }

--- Calls each procedure to no effect. `absent`: those that are not there, as far
-- as the server tells; `orphaned`: those whose definer is gone.
local function call_all(seen)
  local absent, orphaned, there = {}, {}, 0
  for _, short in ipairs(PROCEDURES) do
    local name = "nightshift_" .. short
    local _, message = ask(seen, "doctor_call_" .. short)
    local number_of = message and message:match "%((%d+)%)$"
    if number_of == "1305" then
      absent[#absent + 1] = name
      absent[name] = true
    elseif number_of == "1449" then
      orphaned[#orphaned + 1] = name
    elseif number_of ~= "1370" then
      there = there + 1
    end
  end
  return absent, orphaned, there
end

check("procedures", function(seen)
  seen.absent = {}
  if not seen.tables and not seen.calls_only then return "warn", NOT_LOOKED_AT, "see schema" end
  if seen.stalled then return "warn", STALLED, "see write" end
  local absent, orphaned, there = call_all(seen)
  seen.absent = absent
  if #absent > 0 then
    return "fail", table.concat(absent, ", ") .. " not there", "nightshift migrate makes procedures anew"
  elseif #orphaned > 0 then
    local definer = (routines(seen)[orphaned[1]] or {}).definer or "their definer"
    return "fail", ("%s belong to %s, and there is no such user any more"):format(
      table.concat(orphaned, ", "), definer),
      "nightshift migrate, by an account that stays and has CONNECTION ADMIN: it makes procedures anew"
  end
  return "ok", ("%d of %d may be called"):format(there, #PROCEDURES)
end)

--- What a role lacks, in words: a list without repetitions.
local function lacks(seen, role, callable)
  local missing, known = {}, {}
  local function add(text)
    if not known[text] then
      known[text] = true
      missing[#missing + 1] = text
    end
  end
  for _, name in ipairs(core.statements()) do
    if role.runs(name) then
      local ok, message, code = seen.handle:may(name)
      if not ok and code == "DENIED" then
        local what, object = message:match "^([%u, ]+) command denied .- table .-([%w_]+)[`'] %(%d+%)$"
        add(what and ("%s on %s"):format(what, object) or message)
      end
    end
  end
  for _, routine in ipairs(role.routines) do
    if not callable[routine] then add((seen.absent[routine] and "" or "EXECUTE on ") .. routine) end
  end
  return missing
end

check("grants", function(seen)
  if not seen.tables and not seen.calls_only then return "warn", NOT_LOOKED_AT, "see schema" end
  local callable, able, unable = routines(seen), {}, {}
  for _, name in ipairs(grants.names) do
    local missing = lacks(seen, grants[name], callable)
    if #missing == 0 then
      able[#able + 1] = name
    else
      local more = #missing > 2 and (" and %d more"):format(#missing - 2) or ""
      unable[#unable + 1] = ("%s lacks %s%s"):format(name, table.concat(missing, ", ", 1, math.min(2, #missing)), more)
    end
  end
  local found = ("%s: enough for %s"):format(seen.server.account, #able > 0 and table.concat(able, ", ") or "nothing")
  if #unable > 0 then found = found .. "; " .. table.concat(unable, "; ") end
  if #able > 0 then return "ok", found end
  return "fail", found, "nightshift doctor --grants shows what to grant"
end)

local function quoted(account)
  local name, host = account:match "^(.*)@([^@]*)$"
  return ("'%s'@'%s'"):format(name, host)
end

--- May this account end queries of other users? nil: we may not see that.
local function may_kill(seen, account)
  local rows = ask(seen, "doctor_user_privileges", quoted(account)) or {}
  for _, row in ipairs(rows) do
    if row.privilege == "SUPER" or row.privilege == "CONNECTION ADMIN" then return true end
  end
  if #rows > 0 then return false end
end

local function judge_ring(seen, definer, took)
  local found = ("a ring ended a listener's sleep after %s ms"):format(decimal.fixed(took / 1000, 1))
  if definer ~= seen.server.account then return "ok", ("%s, by the rights of %s"):format(found, definer) end
  if may_kill(seen, definer) == false then
    return "warn", ("%s; but %s may not end the sleep of other users' listeners: their jobs wait up to 10 s"):format(
      found, definer), ("GRANT CONNECTION ADMIN ON *.* TO %s"):format(quoted(definer))
  end
  return "ok", found
end

check("ring", function(seen)
  if not seen.tables and not seen.calls_only then return "warn", NOT_LOOKED_AT, "see schema" end
  if seen.stalled then return "warn", STALLED, "see write" end
  local callable = routines(seen)
  local ring = callable.nightshift_ring
  if seen.absent.nightshift_ring then
    return "warn", "nightshift_ring is not there: nobody wakes for a push, jobs wait up to 10 s", "see procedures"
  elseif not ring then
    return "warn", "this user may not call nightshift_ring: nobody wakes for its pushes, they wait up to 10 s",
      "GRANT EXECUTE ON PROCEDURE nightshift_ring; nothing to do for one who only reads"
  end
  local listens = callable.nightshift_listen
  local took, message, code
  if listens then
    took, message, code = seen.handle:ring_try()
  else
    took, message, code = seen.handle:ring()
  end
  if not took and message:find("(1449)", 1, true) then
    return "fail", ("nightshift_ring belongs to %s, and there is no such user any more"):format(ring.definer),
      "nightshift migrate, by an account that stays and has CONNECTION ADMIN: it makes procedures anew"
  elseif not took and is_read_only(message) then
    return "fail", "not tried, the server is read-only: who listens there cannot enter the list", "see writable"
  elseif not took then
    return "fail", ("%s (%s)"):format(message, code), "call nightshift_ring by hand and see"
  elseif not listens then
    return "ok", "nightshift_ring may be called; a worker of this account, which may not call nightshift_listen,"
      .. " is not woken: it looks every second or so"
  elseif took < 0 then
    return "fail", ("a listener slept through two seconds of rings: %s may not end its sleep"):format(ring.definer),
      ("GRANT CONNECTION ADMIN ON *.* TO %s"):format(quoted(ring.definer))
  end
  return judge_ring(seen, ring.definer, took)
end)

--- Has somebody written into meta that named locks do not serve here?
local function switched_off(seen)
  local rows = seen.tables and ask(seen, "holder_locks")
  return rows and select(2, next(rows[1])) == 0
end

check("locks", function(seen)
  seen.no_locks = switched_off(seen)
  if seen.no_locks then
    return "warn", "named locks are switched off (nightshift_meta, named_locks)",
      "if they do serve here, take that row out: a dead host is then found at once, not after 30 s"
  end
  local name = ("nightshift-doctor:%s"):format(seen.server.thread)
  local got = ask(seen, "doctor_take_lock", name)
  local other <close>, message = seen.open()
  if not other then error({ skip = message }, 0) end
  local free = other:execute("@doctor_free_lock", name)
  local thread = need(seen, "doctor_server").thread
  if thread ~= seen.server.thread then
    return "fail", "statements of one connection run in different sessions: a proxy shares them out",
      "connect without the proxy, or have it keep one session per connection"
  elseif got and got[1].got == 1 and free and free[1].free == 0 then
    return "ok", "a named lock is held, and seen by others"
  end
  return "fail", "a named lock is not seen by other sessions: a dead host is found by its beat only, after 30 s",
    "connect without a proxy in between"
end)

--- Tables whose every row must never be read by a hot statement.
local BIG = { nightshift_job = true, nightshift_ready = true, nightshift_scheduled = true, nightshift_finished = true }
local FEW = 1000 -- rows that may well be scanned

--- What is wrong with a plan: nil, or the table that is read whole.
local function scanned(rows)
  for _, row in ipairs(rows) do
    local name = row.table or ""
    local real = ({ j = "nightshift_job", f = "nightshift_finished" })[name] or name
    local whole = row.type == "ALL" or (row.Extra or ""):find "filesort"
    if BIG[real] and whole and number(row.rows) > FEW then return real end
  end
end

check("plans", function(seen)
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
end)

check("timeouts", function(seen)
  local g, wrong, todo = seen.global, {}, {}
  local function complain(what, advice)
    wrong[#wrong + 1], todo[#todo + 1] = what, advice
  end
  if number(g.wait_timeout) < 60 then
    complain("wait_timeout=" .. g.wait_timeout .. ": a program that holds claims and is quiet loses them",
      "wait_timeout of some hours")
  end
  if number(g.max_statement_time) > 0 and number(g.max_statement_time) < 15 then
    complain("max_statement_time=" .. g.max_statement_time .. ": it cuts listeners' sleeps of 10 s",
      "max_statement_time=0, or for these users above 15")
  end
  if is_on(g.innodb_rollback_on_timeout) then
    complain("innodb_rollback_on_timeout=ON: claims take their slower path", "innodb_rollback_on_timeout=OFF")
  end
  if number(g.max_allowed_packet) < 4 << 20 then
    complain("max_allowed_packet=" .. g.max_allowed_packet .. ": large payloads and batches are refused",
      "max_allowed_packet=16M")
  end
  if #wrong > 0 then return "warn", table.concat(wrong, "; "), table.concat(todo, "; ") end
  return "ok", ("innodb_lock_wait_timeout=%s here, wait_timeout=%s, max_allowed_packet=%s"):format(
    seen.session.innodb_lock_wait_timeout, g.wait_timeout, g.max_allowed_packet)
end)

check("connections", function(seen)
  local limit, used, most = number(seen.global.max_connections), number(seen.status.threads_connected),
    number(seen.status.max_used_connections)
  local found = ("%d of %d in use, %d at most so far"):format(used, limit, most)
  if used > 0.8 * limit or most >= limit then
    return "warn", found, "raise max_connections: a host needs three, a handler that opens the database one more each"
  end
  return "ok", found
end)

check("statements", function(seen)
  local limit, used = number(seen.global.max_prepared_stmt_count), number(seen.status.prepared_stmt_count)
  local found = ("%d of %d prepared statements are open"):format(used, limit)
  if used > 0.8 * limit then
    return "warn", found .. ": programs get error 1461 when there are no more",
      "raise max_prepared_stmt_count: a host keeps at most 50, a handle 8; find who keeps the others"
  end
  return "ok", found
end)

check("tmpdir", function(seen)
  local folder = seen.global.tmpdir
  if folder == "/tmp" or folder == "/var/tmp" then
    return "warn", folder .. " may be another server's too: one that starts there wipes the temporary tables it finds, "
      .. "and crashes the one that uses them", "if several servers run on that machine, give each a tmpdir of its own"
  end
  return "ok", folder
end)

local OLD = 60 -- seconds of an open transaction that are worth a word

check("transactions", function(seen)
  local history = number(seen.status.innodb_history_list_length)
  local rows = ask(seen, "doctor_transactions", OLD)
  if not rows then
    return history > 1000000 and "warn" or "ok",
      ("%d changes wait for purge; open transactions are not shown without PROCESS"):format(history),
      history > 1000000 and "look for old transactions as an administrator" or nil
  end
  local oldest = rows[1]
  if not oldest then return "ok", ("none is older than %d s; %d changes wait for purge"):format(OLD, history) end
  return "warn", ("session %d of %s has had a transaction open for %d s (%s): deleted rows of the whole server pile up")
    :format(oldest.thread, oldest.user or "?", oldest.age, oldest.command or "?"),
    ("end it, or KILL %d"):format(oldest.thread)
end)

check("handlers", function(seen)
  if seen.calls_only then return "ok", CALLS_ONLY end
  if not seen.tables then return "warn", NOT_LOOKED_AT, "see schema" end
  local rows = unserved.find(seen.handle)
  if not rows then return "ok", "not looked at: this user may not read them" end
  if #rows == 0 then return "ok", "no ready job waits for a handler that no live host has" end
  local texts = {}
  for i, row in ipairs(rows) do texts[i] = unserved.text(row) end
  return "warn", "no live host has a handler for " .. table.concat(texts, ", "),
    "run a host with such a handler, or cancel them; they stay ready"
end)

local SILENT = 30 * 1000000 -- µs without a beat after which a host is dead

check("holders", function(seen)
  if seen.calls_only then return "ok", CALLS_ONLY end
  if not seen.tables then return "warn", NOT_LOOKED_AT, "see schema" end
  local rows = ask(seen, "doctor_holders")
  local orphans = ask(seen, "doctor_orphans")
  if not rows then return "ok", "not looked at: this user may not read them" end
  local living, stale = 0, {}
  for _, h in ipairs(rows) do
    local silent = h.kind == "host" and h.silent > SILENT
    local gone = not seen.no_locks and h.gone == 1
    if h.leases > 0 and (h.dead or gone or silent) then
      stale[#stale + 1] = ("%s %d (pid %d on %s, last seen %s ago) holds %d batches"):format(h.kind, h.id, h.pid,
        h.host, seconds(h.silent), h.leases)
    elseif not h.dead and not gone then
      living = living + 1
    end
  end
  local lost = orphans and orphans[1] and orphans[1].n or 0
  if lost > 0 then stale[#stale + 1] = ("%d batches are held by nobody known"):format(lost) end
  if #stale == 0 then return "ok", ("%d hold claims or may, none of them dead"):format(living) end
  return "warn", "running jobs of the dead: " .. table.concat(stale, "; "),
    "nightshift rescue; a living host does it by itself within seconds"
end)

--- Of whom the lock says that he lives, where locks serve.
local function living(seen, rows)
  local there = {}
  for _, row in ipairs(rows) do
    if seen.no_locks or row.gone ~= 1 then there[#there + 1] = row end
  end
  return there
end

check("scripts", function(seen)
  if seen.calls_only then return "ok", CALLS_ONLY end
  if not seen.tables then return "warn", NOT_LOOKED_AT, "see schema" end
  local rows = ask(seen, "doctor_scripts")
  if not rows then return "ok", "not looked at: this user may not read them" end
  local failed, hashes, known = {}, {}, {}
  local hosts = living(seen, rows)
  for _, row in ipairs(hosts) do
    if row.load_error then failed[#failed + 1] = versions.failure(row, row.ago) end
    if not known[row.scripts] then hashes[#hashes + 1] = row.scripts end
    known[row.scripts] = true
  end
  if #failed > 0 then
    return "fail", table.concat(failed, "; "), "mend the file, then nightshift reload on that machine"
  end
  local differing = versions.differ(hosts)
  if #differing > 0 then
    return "warn", "hosts run different versions of " .. table.concat(differing, "; "),
      "where no deploy is under way: bring the files there, then nightshift reload on each machine"
  end
  if #hosts == 0 then return "ok", "no host lives" end
  return "ok", ("%d host%s, of scripts %s"):format(#hosts, #hosts > 1 and "s" or "", table.concat(hashes, ", "))
end)

local LOOK_AGAIN = 0.5 -- s: what moves is somewhere by then

check("lost", function(seen)
  if seen.calls_only then return "ok", CALLS_ONLY end
  if not seen.tables then return "warn", NOT_LOOKED_AT, "see schema" end
  local round, message, code = seen.handle:mend(false)
  if round and round.seen > 0 then
    core.sleep(LOOK_AGAIN)
    round, message, code = seen.handle:mend(false)
  end
  if not round and code == "DENIED" then return "ok", "not looked at: this user may not read them" end
  if not round then return "warn", ("%s (%s)"):format(message, code), "run it again" end
  local rows = ask(seen, "doctor_mended")
  local past = rows and rows[1] and rows[1].n or 0
  if round.twice == 0 then return "ok", ("every live job is somewhere; %d mended so far"):format(past) end
  return "fail", ("%d jobs or rows are in no place, or in a wrong one"):format(round.twice),
    "a living host mends them within minutes, nightshift rescue at once; please report it"
end)

check("drains", function(seen)
  if seen.calls_only then return "ok", CALLS_ONLY end
  if not seen.tables then return "warn", NOT_LOOKED_AT, "see schema" end
  local rows = ask(seen, "doctor_drained")
  if not rows then return "ok", "not looked at: this user may not read them" end
  if #rows == 0 then return "ok", "no row of an adopted table is half way" end
  local found = {}
  for i, row in ipairs(rows) do found[i] = ("%d of %s"):format(row.n, row.tab) end
  return "warn",
    "rows of adopted tables are half way to a queue, and their drain is over: " .. table.concat(found, ", "),
    "nightshift rescue, by a user who may delete them there; a host that serves the table does it, too"
end)

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
local function examine(item, seen)
  local ok, level, found, advice = pcall(item.run, seen)
  if ok then return { name = item.name, level = level, found = found, advice = advice } end
  if type(level) ~= "table" or not level.skip then error(level, 0) end
  return { name = item.name, level = "warn", found = "not looked at: " .. level.skip,
    advice = "mend what the server says" }
end

--- Examines one database. Gives a list of {name, level, found, advice}, and
-- the code that cut it short, if any did.
---@param open fun(): table|nil, string?, string? opens a core handle
---@param tell fun(finding: table) gets each as soon as it is found
---@return table[] findings
---@return string? code
function checks.run(open, tell)
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
    for _, item in ipairs(list) do
      add(examine(item, seen))
    end
  end)
  if ok then return findings end
  if type(err) ~= "table" then error(err, 0) end
  add(refused(err.message or err.skip, err.code))
  return findings, err.code
end

return checks
