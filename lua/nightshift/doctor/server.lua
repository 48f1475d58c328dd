--- Checks of the server and of the way to it: version, clock, settings, limits. A check is a
-- function of this table by its name; nightshift.doctor has the form of its results.

local core = require "nightshift.core"
local doctor = require "nightshift.doctor"
local units = require "nightshift.units"

local ask, need, number, is_on = doctor.ask, doctor.need, doctor.number, doctor.is_on

local checks = {}

function checks.server(seen)
  local s = seen.server
  return "ok", ("%s (%s) on %s, up %d s; database %s as %s"):format(s.version, s.comment, s.host,
    number(seen.status.uptime), s.db or "-", s.account)
end

function checks.connection(seen)
  local times = {}
  for i = 1, 7 do
    local before = core.clock()
    need(seen, "doctor_free_lock", "nightshift-doctor")
    times[i] = (core.clock() - before) * 1000
  end
  table.sort(times)
  local cipher = seen.status.ssl_cipher or ""
  local secrecy = cipher == "" and "no TLS" or "TLS by " .. cipher
  local found = ("a round trip takes %s ms, %s"):format(units.fixed(times[4], 2), secrecy)
  if times[4] < 20 then return "ok", found end
  return "warn", found, "a claim and a verdict take some round trips each: run hosts near the server"
end

function checks.clock(seen)
  local before = os.time()
  local now, message = seen.handle:now()
  if not now then error({ skip = message }, 0) end
  now = now // 1000000
  local after = os.time()
  local off = math.max(before - now - 1, now - after - 1, 0)
  if off < 2 then return "ok", "server and this machine agree" end
  return "warn", ("the server's clock is %d s %s this machine's"):format(off, now > after and "ahead of" or "behind"),
    "jobs are due by the server's clock alone: let NTP set both"
end

function checks.isolation(seen)
  local level = seen.session.transaction_isolation or seen.session.tx_isolation or "unknown"
  if level == "READ-COMMITTED" then return "ok", level end
  return "fail", level .. " although READ-COMMITTED was asked for",
    "something between here and the server changes sessions: connect without it"
end

--- Settings that a server may have for all sessions, and our sessions set back. Each has a
-- pattern of good values, and the effect of other values on sessions that call the procedures by
-- themselves.
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

function checks.settings(seen)
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
  -- it may do anything to a session; the usual one is SET NAMES of another character set
  local first = g.init_connect or ""
  if first ~= "" then
    wrong[#wrong + 1] = ("init_connect=%s (each new session of an account without SUPER begins with it)"):format(first)
  end
  if #wrong > 0 then
    return "warn", table.concat(wrong, ", ") .. ": our own sessions set it back, those of other programs do not",
      "take it out of my.cnf, or have programs that call nightshift_push or nightshift_signal set it for themselves"
  end
  return "ok", "nothing is set for all sessions that would break one"
end

function checks.durability(seen)
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
end

function checks.binlog(seen)
  if not is_on(seen.global.log_bin) then return "ok", "no binary log" end
  local format = seen.global.binlog_format
  if format ~= "STATEMENT" then return "ok", "binlog_format=" .. format end
  return "fail", "binlog_format=STATEMENT refuses every write of READ COMMITTED (error 1665)",
    "SET GLOBAL binlog_format=ROW (or MIXED), and in my.cnf"
end

function checks.writable(seen)
  if is_on(seen.global.read_only) or is_on(seen.global.innodb_read_only) then
    return "fail", "the server is read-only", "connect to the primary, or SET GLOBAL read_only=0"
  end
  return "ok", "read_only=OFF"
end

function checks.timeouts(seen)
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
end

function checks.connections(seen)
  local limit, used, most = number(seen.global.max_connections), number(seen.status.threads_connected),
    number(seen.status.max_used_connections)
  local found = ("%d of %d in use, %d at most so far"):format(used, limit, most)
  if used > 0.8 * limit or most >= limit then
    return "warn", found, "raise max_connections: a host needs three, a handler that opens the database one more each"
  end
  return "ok", found
end

function checks.statements(seen)
  local limit, used = number(seen.global.max_prepared_stmt_count), number(seen.status.prepared_stmt_count)
  local found = ("%d of %d prepared statements are open"):format(used, limit)
  if used > 0.8 * limit then
    return "warn", found .. ": programs get error 1461 when there are no more",
      "raise max_prepared_stmt_count: a host keeps at most 50, a handle 9; find who keeps the others"
  end
  return "ok", found
end

function checks.tmpdir(seen)
  local folder = seen.global.tmpdir
  if folder == "/tmp" or folder == "/var/tmp" then
    return "warn", folder .. " may be another server's too: one that starts there wipes the temporary tables it finds, "
      .. "and crashes the one that uses them", "if several servers run on that machine, give each a tmpdir of its own"
  end
  return "ok", folder
end

local OLD = 60 -- seconds of an open transaction that are worth a word

function checks.transactions(seen)
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
end

return checks
