--- Checks of machines: the limits of files and processes, disks, the redo log, and whether the
-- server of this machine is reached by its socket. A check is a function of this table by its
-- name; nightshift.doctor has the form of its results. Nothing here is written or made.

local doctor = require "nightshift.doctor"

local number, size = doctor.number, doctor.size

local checks = {}

local function first_line(path)
  local file <close> = io.open(path)
  return file and file:read "l"
end

--- Does the server run on this machine? Containers of one machine have names of their own.
local function is_here(seen)
  return seen.server.host == first_line "/proc/sys/kernel/hostname"
end

-- -------------------------------------------------------------- the way to the server

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
