--- Checks of the server and of the way to it: versions, clock, settings, limits; and of its
-- sessions at the moment. A check is a function of this table by its name; nightshift.doctor
-- has the form of its results.

local core = require "nightshift.core"
local doctor = require "nightshift.doctor"
local units = require "nightshift.units"

local ask, need, number, is_on = doctor.ask, doctor.need, doctor.number, doctor.is_on
local lacking, size = doctor.lacking, doctor.size

local checks = {}

function checks.server(seen)
  local s = seen.server
  return "ok", ("%s (%s) on %s, up %d s; database %s as %s"):format(s.version, s.comment, s.host,
    number(seen.status.uptime), s.db or "-", s.account), nil, s.version
end

--- Ours, and versions of live hosts: two beside each other are a deploy, or a forgotten host.
function checks.versions(seen)
  local ours, differing = core._VERSION, {}
  for _, h in ipairs(doctor.holders(seen)) do
    if h.lives and h.version ~= ours then
      differing[#differing + 1] = ("%s %d (pid %d on %s) is %s"):format(h.kind, h.id, h.pid, h.host, h.version)
    end
  end
  local found = ("nightshift %s, %s, client library %s, tables of version %d"):format(ours, _VERSION, core.client(),
    core.schema()[#core.schema()].version)
  if #differing == 0 then return "ok", found, nil, ours end
  return "warn", ("%s; but %s"):format(found, table.concat(differing, ", ", 1, math.min(5, #differing))),
    "where no deploy is under way: install one version, and restart those", ours
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
  if times[4] < 20 then return "ok", found, nil, times[4] / 1000 end
  return "warn", found, "a claim and a verdict take some round trips each: run hosts near the server", times[4] / 1000
end

local SKEW = 2 -- seconds between two clocks that are worth a word

--- How far the clock of this machine is ahead of the server's, as far as whole seconds tell.
local function ahead(seen)
  local before = os.time()
  local now, message = seen.handle:now()
  if not now then error({ skip = message }, 0) end
  now = now // 1000000
  local after = os.time()
  return now > after + 1 and after + 1 - now or now < before - 1 and before - 1 - now or 0
end

local function clock_text(what, off)
  return ("%s is %d s %s the server's"):format(what, math.abs(off) // 1 | 0, off > 0 and "ahead of" or "behind")
end

function checks.clock(seen)
  local here = ahead(seen)
  local texts, most = {}, math.abs(here)
  if most >= SKEW then texts[1] = clock_text("this machine's clock", here) end
  for _, h in ipairs(doctor.holders(seen)) do
    local off = h.lives and h.skew and h.skew / 1e6 or 0
    if math.abs(off) >= SKEW then
      texts[#texts + 1] = clock_text(("that of %s (%s %d)"):format(h.host, h.kind, h.id), off)
      most = math.max(most, math.abs(off))
    end
  end
  if #texts == 0 then return "ok", "server, this machine and those of hosts agree", nil, most end
  return "warn", table.concat(texts, ", ", 1, math.min(5, #texts)),
    "jobs are due by the server's clock, handlers and logs go by theirs: let NTP set all (timedatectl set-ntp 1)", most
end

function checks.isolation(seen)
  local level = seen.session.transaction_isolation or seen.session.tx_isolation or "unknown"
  if level == "READ-COMMITTED" then return "ok", level end
  return "fail", level .. " although READ-COMMITTED was asked for",
    "something between here and the server changes sessions: connect without it"
end

-- As each session of ours is given it, and procedures have it from the one that made them.
local MODE <const> = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"

function checks.sql_mode(seen)
  local other = {}
  for name, row in pairs(doctor.routines(seen)) do
    if row.mode and row.mode ~= MODE then other[#other + 1] = name end
  end
  table.sort(other)
  if seen.session.sql_mode ~= MODE then
    return "fail", ("%s although %s was asked for"):format(seen.session.sql_mode or "unknown", MODE),
      "something between here and the server changes sessions: connect without it"
  elseif #other > 0 then
    return "warn", ("%s: made in a session of another sql_mode, which they run by"):format(table.concat(other, ", ")),
      "nightshift migrate makes procedures anew"
  end
  return "ok", MODE
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

--- The files of the binary log, in words: nil, when this account may not see them.
local function binlog_size(seen)
  local rows = ask(seen, "doctor_binlogs")
  if not rows then return end
  local sum = 0
  for _, row in ipairs(rows) do sum = sum + number(row.File_size) end
  return ("%d file%s of %s"):format(#rows, #rows == 1 and "" or "s", size(sum)), sum
end

function checks.binlog(seen)
  local g = seen.global
  if not is_on(g.log_bin) then return "ok", "no binary log" end
  if g.binlog_format == "STATEMENT" then
    return "fail", "binlog_format=STATEMENT refuses every write of READ COMMITTED (error 1665)",
      "SET GLOBAL binlog_format=ROW (or MIXED), and in my.cnf"
  end
  local files, sum = binlog_size(seen)
  local found = "binlog_format=" .. g.binlog_format
  if number(g.binlog_expire_logs_seconds) == 0 then
    return "note", ("%s, %s; none is ever deleted"):format(found, files or "files of a size that is not shown"),
      "SET GLOBAL binlog_expire_logs_seconds=604800, and in my.cnf; PURGE BINARY LOGS deletes some now", sum
  elseif not files then
    return lacking(seen, "BINLOG MONITOR", found)
  end
  return "ok", ("%s, %s"):format(found, files), nil, sum
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

--- The connections that live hosts and programs of this database have, and may have besides: a
-- handler that opens the database has one more.
local function ours(seen)
  local fixed, more = 0, 0
  for _, h in ipairs(doctor.holders(seen)) do
    if h.lives then
      fixed = fixed + (h.kind == "host" and 4 or 1)
      more = more + number(h.workers)
    end
  end
  return fixed, more
end

function checks.connections(seen)
  local status, server = seen.status, number(seen.global.max_connections)
  local account = number(seen.server.most)
  local limit = account > 0 and math.min(account, server) or server
  local used, most = number(status.threads_connected), number(status.max_used_connections)
  local fixed, more = ours(seen)
  local found = ("%d of %d in use, %d at most so far; hosts and programs here need %d, and handlers up to %d more")
    :format(used, server, most, fixed, more)
  local raise = ("SET GLOBAL max_connections=%d, and in my.cnf"):format(math.max(2 * server, 2 * (fixed + more)))
  if account > 0 and account < server then
    found = ("%s; an account may have %d"):format(found, account)
    raise = "raise max_user_connections, of the server or of the account"
  end
  if used > 0.8 * server or most >= server or fixed + more > 0.9 * limit then return "warn", found, raise, used end
  return "ok", found, nil, used
end

function checks.statements(seen)
  local limit, used = number(seen.global.max_prepared_stmt_count), number(seen.status.prepared_stmt_count)
  local found = ("%d of %d prepared statements are open"):format(used, limit)
  if used > 0.8 * limit then
    return "warn", found .. ": programs get error 1461 when there are no more",
      ("SET GLOBAL max_prepared_stmt_count=%d, and in my.cnf: a host keeps at most 50, a handle 9; find who keeps the "
      .. "rest"):format(math.max(16382, 2 * limit)), used
  end
  return "ok", found, nil, used
end

-- --------------------------------------------------- replicas

--- This server as a copy of another one.
local function judge_replica(row)
  local threads = row.Slave_IO_Running == "Yes" and row.Slave_SQL_Running == "Yes"
  local behind = tonumber(row.Seconds_Behind_Master)
  local found = ("this server is a replica of %s"):format(row.Master_Host or "?")
  if not threads then
    local why = row.Last_SQL_Error ~= "" and row.Last_SQL_Error or row.Last_IO_Error or ""
    return "warn", ("%s, and does not follow it%s"):format(found, why ~= "" and ": " .. why or ""),
      "START REPLICA; after it was promoted: STOP REPLICA; RESET REPLICA ALL"
  elseif not behind or behind > 10 then
    return "warn", ("%s, %s s behind"):format(found, behind or "?"), "hosts and programs connect to the primary", behind
  end
  return "ok", ("%s, %d s behind"):format(found, behind), nil, behind
end

--- Semi-synchronous replication that goes on without an acknowledgement, or waits for it too late.
local function judge_semi_sync(seen)
  local status, point = seen.status, seen.global.rpl_semi_sync_master_wait_point
  if not is_on(seen.global.rpl_semi_sync_master_enabled) then return end
  if is_on(status.rpl_semi_sync_master_status) then
    if point == "AFTER_SYNC" then return end
    return "warn", ("rpl_semi_sync_master_wait_point=%s: hosts see what the replica may never get, so a failover "
      .. "loses it, or runs it twice"):format(point),
      "SET GLOBAL rpl_semi_sync_master_wait_point=AFTER_SYNC, and in my.cnf"
  end
  return "warn", ("semi-synchronous replication has stopped to wait: %s replicas acknowledge, so a failover loses what "
    .. "they lack"):format(status.rpl_semi_sync_master_clients or "no"),
    "start the replica with rpl_semi_sync_slave_enabled=1, or SET GLOBAL rpl_semi_sync_master_enabled=0"
end

local PAUSED <const> = 0.05 -- part of the time that a cluster stood still, which is worth a word

--- This server as the node of a Galera cluster that writes: another one is refused at connect.
local function judge_cluster(seen)
  local g, status = seen.global, seen.status
  local there, all = number(status.wsrep_cluster_size), 0
  for _ in (g.wsrep_cluster_address or ""):gsub("^gcomm://", ""):gsub("%?.*", ""):gmatch "[^,]+" do all = all + 1 end
  local state, paused = status.wsrep_local_state_comment or "?", number(status.wsrep_flow_control_paused)
  local found = ("this node of a Galera cluster, %s, writes; it is %s, one of %d"):format(
    g.wsrep_node_incoming_address or "?", state, there)
  if there < all then
    return "warn", ("%s of %d: each node that is missing makes the next fault a worse one"):format(found, all),
      "start the rest; a node that is gone for good leaves wsrep_cluster_address", there
  elseif state ~= "Synced" then
    return "warn", found .. ": it lags, or gives its data to another node", "wait until it is Synced", there
  elseif paused > PAUSED then
    return "warn", ("%s; flow control stopped all nodes for %d %% of the time"):format(found, 100 * paused // 1 | 0),
      "find the node with the highest wsrep_local_recv_queue_avg: a faster disk, or more wsrep_slave_threads", there
  end
  return "ok", found, nil, there
end

function checks.replication(seen)
  if is_on(seen.global.wsrep_on) then return judge_cluster(seen) end
  local rows = ask(seen, "doctor_replica")
  if rows and rows[1] then return judge_replica(rows[1]) end
  local status, says, fix = judge_semi_sync(seen)
  if status then return status, says, fix end
  if not is_on(seen.global.log_bin) then return "ok", "no binary log, so no replica" end
  local replicas = ask(seen, "doctor_replicas")
  if not rows or not replicas then
    return lacking(seen, rows and "REPLICATION MASTER ADMIN" or "REPLICA MONITOR")
  end
  local semi = is_on(seen.global.rpl_semi_sync_master_enabled)
  local how = semi and (seen.status.rpl_semi_sync_master_clients or "?") .. " of them acknowledge" or "asynchronous"
  return "ok", ("%d replica%s, %s"):format(#replicas, #replicas == 1 and "" or "s", how), nil, #replicas
end

-- --------------------------------------------------- sessions that wait, or keep others waiting

local SHAPE = 100 -- characters of a statement that are shown

--- The words of a statement without its values: up to its first text or comment, numbers as "?".
local function shape(text)
  local plain = text:gsub("%s+", " ")
  local words = plain:match "^[^'\"/#]*":gsub("%-%- .*", "")
  local shown = words:gsub("%f[%w]%d[%w.]*", "?"):sub(1, SHAPE):gsub(" $", "")
  return #words == #plain and #words <= SHAPE and shown or shown .. " …"
end

local known -- statements of ours by their first words

--- The name of a statement of ours, or the words of another one; nil for none.
local function named(text)
  if not text or text == "" then return nil end
  if not known then
    known = {}
    for _, name in ipairs(core.statements()) do known[core.sql(name):gsub("%s+", " "):sub(1, SHAPE)] = name end
  end
  return known[text:gsub("%s+", " "):sub(1, SHAPE)] or shape(text)
end

--- A session in words, and how to end it.
local function session(row)
  local at = named(row.statement)
  return ("session %d of %s@%s"):format(row.thread, row.user or "?", (row.host or "?"):gsub(":%d+$", "")),
    at and ": " .. at or row.command and " (" .. row.command .. ")" or "", ("KILL %d"):format(row.thread)
end

local OLD = 60 -- seconds of an open transaction that are worth a word
local LONG_HISTORY = 1000000 -- changes that wait for purge

function checks.transactions(seen)
  local history = number(seen.status.innodb_history_list_length)
  local rows = ask(seen, "doctor_transactions", OLD)
  local waiting = ("%d changes wait for purge"):format(history)
  if not rows then
    local status, says, fix = lacking(seen, "PROCESS", waiting)
    return history > LONG_HISTORY and "warn" or status, says, fix, history
  end
  local oldest = rows[1]
  if not oldest and history > LONG_HISTORY then
    return "warn", waiting .. ", and no old transaction keeps them: purge is behind",
      "SET GLOBAL innodb_purge_threads=8, and wait; large deletes in smaller parts", history
  elseif not oldest then
    return "ok", ("none is older than %d s; %s"):format(OLD, waiting), nil, history
  end
  local who, at, kill = session(oldest)
  return "warn", ("%s has had a transaction open for %d s%s; deleted rows of the whole server pile up, %s"):format(
    who, oldest.age, at, waiting), ("end it, or %s; idle_transaction_timeout=60 ends such ones"):format(kill), history
end

--- "; hosts here have run again for settle_lock (3), COMMIT (1)": conflicts of live hosts by
-- statement, the most frequent first; "": there were none.
---@param at integer the place of the number in a host's list
local function of_hosts(seen, at)
  local sums, names, texts = {}, {}, {}
  for _, h in ipairs(doctor.holders(seen)) do
    for _, conflict in ipairs(h.lives and h.conflicts and core.decode(h.conflicts) or {}) do
      local name, n = conflict[1], conflict[at]
      if n > 0 and not sums[name] then names[#names + 1] = name end
      sums[name] = (sums[name] or 0) + n
    end
  end
  table.sort(names, function(a, b) return sums[a] > sums[b] or sums[a] == sums[b] and a < b end)
  for i, name in ipairs(names) do texts[i] = ("%s (%d)"):format(name, sums[name]) end
  return #texts > 0 and "; hosts here have run again for " .. table.concat(texts, ", ") or ""
end

local WAITS = 1 -- seconds of a wait for a row that are worth a word

function checks.waits(seen)
  local status = seen.status
  local past = ("%s waits for rows since the server's start, %s s at most"):format(status.innodb_row_lock_waits or "?",
    units.fixed(number(status.innodb_row_lock_time_max) / 1000, 1)) .. of_hosts(seen, 3)
  local rows = ask(seen, "doctor_waits", WAITS)
  if not rows then return lacking(seen, "PROCESS", past) end
  local first = rows[1]
  if not first then return "ok", ("no session waits for a row now; %s"):format(past), nil, 0 end
  local texts = {}
  for i, row in ipairs(rows) do
    local who, at = session(row)
    texts[i] = ("session %d has waited for %d s for a row of %s (%s), which %s holds%s"):format(row.waiting, row.waited,
      row.tab or "?", named(row.waits) or "?", who, at)
  end
  return "warn", table.concat(texts, "; "), ("end that transaction, or %s"):format(select(3, session(first))),
    first.waited
end

--- The two statements of the latest deadlock in the engine's report, and its time; nil: none.
local function latest_deadlock(report)
  local part = report:match "LATEST DETECTED DEADLOCK\n%-+\n(.-)\n%-%-%-%-%-%-%-%-%-%-%-%-\n"
  local at = part and part:match "^%d+%-%d+%-%d+ %d+:%d+:%d+"
  if not at then return nil end
  local statements = {}
  for text in part:gmatch "MariaDB thread id %d+[^\n]*\n(.-)\n%*%*%*" do
    statements[#statements + 1] = named(text) or "?"
  end
  return at, statements
end

local RECENT = 3600 -- seconds
local MANY = 10 -- deadlocks a minute

function checks.deadlocks(seen)
  local n, up = number(seen.status.innodb_deadlocks), math.max(number(seen.status.uptime), 60)
  local found = ("%d since the server's start%s"):format(n, of_hosts(seen, 2))
  if n == 0 then return "ok", "none " .. found:match "since.*", nil, 0 end
  local rows = ask(seen, "doctor_innodb")
  if not rows then return lacking(seen, "PROCESS", found) end
  local at, statements = latest_deadlock(rows[1].Status)
  local ago = at and number(need(seen, "doctor_ago", at).ago)
  if not at or ago > RECENT then return "ok", found .. ", none within the hour", nil, n end
  found = ("%s, the last one %s ago: %s"):format(found, units.span(ago), table.concat(statements, " against "))
  return n * 60 / up > MANY and "warn" or "note", found,
    "Nightshift runs its own statements again; transactions of other programs should lock rows in one order", n
end

return checks
