--- Checks of the server: versions, clock, settings, replicas. And of machines: whether the server
-- of this one is reached by its socket, the limits of files and processes, disks, the redo log. A
-- check is a function of this table by its name; nightshift.doctor has the form of its results.
-- Nothing here is written or made.

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

-- ------------------------------------------------------------------- the machine

local function first_line(path)
  local file <close> = io.open(path)
  return file and file:read "l"
end

--- Does the server run on this machine? Containers of one machine have names of their own.
local function is_here(seen)
  return seen.server.host == first_line "/proc/sys/kernel/hostname"
end

-- -------------------------------------------------------- the way to the server

local ENOENT <const> = 2

--- Is a socket, or anything, at this path? A socket cannot be opened as a file.
local function is_there(path)
  local file <close>, _, errno = io.open(path)
  return file ~= nil or errno ~= ENOENT
end

function checks.socket(seen)
  local peer, path = seen.server.peer or "", seen.server.socket or ""
  if not peer:find ":%d+$" then return "ok", "by the socket " .. path, nil, "socket" end
  local found = ("over TCP, from %s"):format(peer:gsub(":%d+$", ""))
  local is_near = peer:find "^localhost:" or peer:find "^127%." or peer:find "^::1:"
  if not is_near or not is_here(seen) or path == "" or not is_there(path) then return "ok", found, nil, "tcp" end
  return "note", ("%s, though the server runs here and has a socket: each round trip takes longer"):format(found),
    ("mysql://USER@localhost/%s?unix_socket=%s"):format(seen.server.db or "DATABASE", path), "tcp"
end

-- ---------------------------------------------------------------------- limits

local SPARE_FILES, SPARE_TASKS <const> = 64, 16 -- of a host, besides its workers: rlimits.c

--- The hard limit of a process, which a host raises its own to: nil, unlimited or not told.
local function limit(pid, name)
  local file <close> = io.open(("/proc/%s/limits"):format(pid))
  local text = file and file:read "a" or ""
  return tonumber((text:match(name .. " +%S+ +(%S+)")))
end

local function processors()
  local n = 0
  for line in io.lines "/proc/cpuinfo" do n = n + (line:find "^processor" and 1 or 0) end
  return math.max(n, 1)
end

--- The most workers of a live host; a host that is told no number has one for each processor.
local function workers(seen)
  local most = processors()
  for _, h in ipairs(doctor.holders(seen)) do
    if h.lives then most = math.max(most, number(h.workers)) end
  end
  return most
end

function checks.limits(seen)
  local files, tasks = limit("self", "Max open files"), limit("self", "Max processes")
  local n = workers(seen)
  local found = ("a program of this shell may have %s files and %s processes; a host of %d workers needs %d and %d")
    :format(files or "any number of", tasks or "any number of", n, SPARE_FILES, n + SPARE_TASKS)
  if files and files < SPARE_FILES then
    return "warn", found, "ulimit -Hn 1024, or LimitNOFILE= of a service", files
  elseif tasks and tasks < n + SPARE_TASKS then
    return "warn", found, ("ulimit -Hu %d, or LimitNPROC= of a service"):format(4 * (n + SPARE_TASKS)), tasks
  end
  return "ok", found, nil, files
end

function checks.files(seen)
  local most, used = number(seen.global.open_files_limit), number(seen.status.open_files)
  local connections = number(seen.global.max_connections)
  local found = ("the server may have %d open files, %d of them for connections; tables use %d"):format(most,
    connections, used)
  if most >= connections + used + 100 then return "ok", found, nil, used end
  return "warn", found .. ": connections are refused, or tables not opened, when there are no more (errno 24)",
    ("open_files_limit=%d in my.cnf, and LimitNOFILE= of its service; or a smaller max_connections"):format(
      2 * (connections + used + 100)), used
end

-- ----------------------------------------------------------------------- disks

function checks.tmpdir(seen)
  local folder = seen.global.tmpdir
  if folder == "/tmp" or folder == "/var/tmp" then
    return "note", folder .. " may be another server's too: one that starts there wipes the temporary tables it finds, "
      .. "and crashes the one that uses them", "if several servers run on that machine, give each a tmpdir of its own"
  end
  return "ok", folder
end

local LOW, EMPTY <const> = 1 << 30, 128 << 20 -- bytes that are left on a disk

--- The file system of a folder: its mark, the bytes that are free, all bytes. nil: not told.
local function space(folder)
  local pipe <close> = io.popen(("timeout 1 df -Pk %s 2>/dev/null"):format(doctor.word(folder)))
  local text = pipe and pipe:read "a" or ""
  local all, free, mount = text:match "\n%S.- (%d+) +%d+ +(%d+) +%S+ +([^\n]+)"
  if mount then return mount, tonumber(free) * 1024, tonumber(all) * 1024 end
end

--- The folders that the server writes, each with a name for people.
local function folders(seen)
  local g, list = seen.global, {}
  local function add(name, path)
    if path and path ~= "" and path:find "^/" then list[#list + 1] = { name = name, path = path } end
  end
  add("datadir", g.datadir)
  add("tmpdir", g.tmpdir and g.tmpdir:match "^[^:]*")
  add("binary log", g.log_bin_basename and g.log_bin_basename:match "^(.*)/")
  return list
end

function checks.disk(seen)
  if not is_here(seen) then
    return "note", ("not looked at: the server runs on %s"):format(seen.server.host), "run nightshift doctor there"
  end
  local texts, known, least = {}, {}, nil
  for _, folder in ipairs(folders(seen)) do
    local mount, free, all = space(folder.path)
    if mount and not known[mount] then
      known[mount] = true
      texts[#texts + 1] = ("%s %s has %s of %s free"):format(folder.name, folder.path, size(free), size(all))
      least = math.min(least or free, free)
    end
  end
  if not least then
    return "note", "not looked at: df tells nothing of the server's folders", "df -h, as the server's user"
  end
  local found = table.concat(texts, ", ")
  if least >= LOW then return "ok", found, nil, least end
  return least < EMPTY and "fail" or "warn", found .. ": a server without room stops, or crashes",
    "make room there: PURGE BINARY LOGS, nightshift prune, or a larger disk", least
end

local SMALL_REDO <const> = 32 << 20 -- bytes
local FULL <const> = 0.85 -- of the redo log; from there on each write waits for pages

function checks.redo(seen)
  local bytes = number(seen.global.innodb_log_file_size)
  local age, most = number(seen.status.innodb_checkpoint_age), number(seen.status.innodb_checkpoint_max_age)
  local full = most > 0 and age / most or 0
  local found = ("innodb_log_file_size is %s, %d %% of it in use"):format(size(bytes), full * 100 // 1)
  local larger = "SET GLOBAL innodb_log_file_size=1073741824 (MariaDB 10.9 or later), and in my.cnf"
  if full > FULL then return "warn", found .. ": writes wait until pages are on disk", larger, full end
  if bytes < SMALL_REDO then return "note", found .. ": a busy queue fills it within seconds", larger, full end
  return "ok", found, nil, full
end

return checks
