--- MariaDB servers for specs. One server serves the whole run; it starts when first asked for
-- and dies with the run, however that ends. It has a folder of its own and only a Unix socket.
-- Specs that stop, kill or freeze a server take db.spare(), which is there beside it. Those that
-- change a server's settings make one of their own with db.server().
--
--     local url = db.fresh()            -- new database with our tables
--     db.sql("SELECT 1", "mysql")       -- as administrator
--     local weak = db.user(url, "SELECT") -- URL of a user who may only read

local nst = require "nst"
local proc = require "spec.support.proc"

local db = {}
--- $PATH as the run has it, with the real mariadb-install-db.
db.path = os.getenv "PATH"
local Server = {}
Server.__index = Server

-- Where the folders of servers are made: in memory where there is room for it, because most
-- of a new database's time is the disk's. What kills a process loses nothing of that.
local MEMORY, ROOM = "/dev/shm", 4 << 20 -- KiB that are free

local function home()
  local free = io.popen(("df -Pk %s 2>/dev/null | awk 'NR == 2 {print $4}'"):format(MEMORY)):read "n"
  return free and free >= ROOM and ("%s/nightshift-%s"):format(MEMORY, nst.ids and select(2, nst.ids()) or "0")
    or proc.build .. "/test"
end

-- A tmpdir of its own, because a server that starts wipes the temporary
-- tables it finds there, whosever they are.
local SETTINGS = [[
[mariadbd]
socket=SOCKET
datadir=FOLDER/data
pid-file=FOLDER/server.pid
log-error=FOLDER/server.log
tmpdir=FOLDER/tmp
skip-networking
skip-name-resolve
skip-log-bin
performance-schema=OFF
log-warnings=1
max-connections=1000
max-allowed-packet=64M
innodb-flush-log-at-trx-commit=2
innodb-buffer-pool-size=128M
innodb-log-file-size=64M
aria-log-file-size=8M
aria-pagecache-buffer-size=8M
key-buffer-size=1M
]]

-- `make test-hostile`: all that a server, a database and an account may have for a default is
-- as odd as it can be. And no client gets the character set that it asks for.
local HOSTILE = os.getenv "NIGHTSHIFT_HOSTILE" == "1"
local ODD = HOSTILE and [[
character-set-server=latin1
collation-server=latin1_german2_ci
skip-character-set-client-handshake
init-connect="SET NAMES latin1 COLLATE latin1_german2_ci, autocommit=0, sql_auto_is_null=1, timestamp=1"
sql-mode=ANSI,NO_BACKSLASH_ESCAPES,NO_ZERO_DATE,NO_ZERO_IN_DATE,PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE
completion-type=CHAIN
group-concat-max-len=4
div-precision-increment=0
innodb-strict-mode=OFF
explicit-defaults-for-timestamp=OFF
lc-time-names=ja_JP
]] or ""
local DATABASE, USER, DEFAULTS = "spec", "root", "utf8mb4 COLLATE utf8mb4_bin"
if HOSTILE then
  DATABASE, USER, DEFAULTS = "bühne-日本", "odd", "latin1 COLLATE latin1_german2_ci"
end

--- Is all odd?
db.odd = HOSTILE
--- The user of the URLs that are given out: an administrator, but for one right where all is odd.
db.account = USER

local servers = {}

local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

local function write(path, text)
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(text))
end

local function tail(path)
  local file <close> = io.open(path, "rb")
  return file and file:read "a":sub(-2000) or ""
end

local function find(program)
  for folder in (db.path .. ":/usr/sbin:/usr/libexec"):gmatch "[^:]+" do
    local file = io.open(folder .. "/" .. program)
    if file then
      file:close()
      return folder .. "/" .. program
    end
  end
  error(program .. " is not installed: make deps")
end

-- The server's, as text.
local function version()
  local _, out = proc.run { find "mariadbd", "--no-defaults", "--version" }
  return out:match "Ver ([%w.-]+)"
end

-- Folders of runs that were killed.
local function sweep(parent)
  for folder in io.popen("ls -d " .. quoted(parent) .. "/server-* 2>/dev/null"):lines() do
    local pid = folder:match "server%-(%d+)%-"
    if pid and not nst.kill(tonumber(pid), "0") then nst.remove(folder) end
  end
end

-- Private servers and benches make data folders of their own. Where the words and the settings are
-- those of an earlier one, this program gives them a copy. It stands before the real one in $PATH.
local COPIER <const> = [=[
#!/bin/sh
# Made by spec/support/db.lua.
copies=%s real=%s key= data=
for word; do
  case $word in
    --datadir=*) data=${word#*=} ;;
    --defaults-file=*) file=${word#*=} && key="$key $(grep -v / "$file")" ;;
    *) key="$key $word" ;;
  esac
done
[ -n "$data" ] || data=$(sed -n 's/^datadir=//p' "$file")
copy=$copies-$(printf %%s "$key" | cksum | tr ' ' -)
[ -r "$copy" ] && mkdir -p "$data" && cp -a "$copy/." "$data" && exit
"$real" "$@" || exit
cp -a --sparse=always "$data" "$copy.$$" 2>/dev/null && mv -T "$copy.$$" "$copy" 2>/dev/null || rm -rf "$copy.$$"
]=]

--- From now on processes find it.
function db.copy_installations()
  local folder = proc.build .. "/test"
  local path = folder .. "/bin/mariadb-install-db"
  assert(os.execute("mkdir -p " .. quoted(folder .. "/bin")))
  local own = ("%s.%d"):format(path, (nst.ids()))
  write(own, COPIER:format(quoted(folder .. "/copy-" .. version()), quoted(find "mariadb-install-db")))
  assert(os.execute(("chmod 755 %s && mv %s %s"):format(quoted(own), quoted(own), quoted(path))))
  nst.setenv("PATH", folder .. "/bin:" .. db.path)
end

-- A data folder as mariadb-install-db makes it. Most of what that does is to fill tables with help,
-- which takes a processor for a second. So it is done once for a build folder, and servers get
-- copies. Processes wait for the one that makes it.
local MAKE <const> = [[
test -d "$1" && exit
rm -rf "$1".new "$1".tmp && mkdir "$1".tmp || exit
"$2" --defaults-file="$3" --skip-test-db --skip-name-resolve --force \
  --auth-root-authentication-method=normal && rm -rf "$1".tmp && mv "$1".new "$1"]]

local function installed()
  if db.installed then return db.installed end
  local folder = ("%s/test/%s%s"):format(proc.build, HOSTILE and "odd-" or "", version())
  assert(os.execute("mkdir -p " .. quoted(proc.build .. "/test")))
  -- The installation must not see user=root: it would chown parts of the system.
  local places = { data = folder .. ".new", tmp = folder .. ".tmp" }
  local settings = proc.folder() .. "/install.cnf"
  write(settings, ((SETTINGS .. ODD):gsub("FOLDER/([%w.]+)", function(name)
    return places[name] or folder .. "." .. name
  end)))
  local status, out, err = proc.run { "flock", folder .. ".lock", "sh", "-c", MAKE, "sh", folder,
    find "mariadb-install-db", settings, timeout = 120 }
  if status ~= 0 then error("mariadb-install-db: " .. out .. err .. tail(folder .. ".log")) end
  db.installed = folder
  return folder
end

--- The database of a URL.
function db.name(url) return (url:match "^%w+://[^/]*/([^?]*)") end

--- A server of one's own, running. server:remove() ends it, and so does the
-- helper, as with processes.
-- @tparam[opt] string more lines for its settings; FOLDER is its folder
-- @tparam[opt] table files name = text, put into its folder before it starts
-- @tparam[opt] string parent an existing folder to make its own in
function db.server(more, files, parent)
  db.home = db.home or home()
  parent = parent or db.home
  assert(os.execute("mkdir -p " .. quoted(parent)))
  sweep(parent)
  local pid, euid = nst.ids()
  local self = setmetatable({ of_test = db.in_test, made = {}, used = {}, definitions = {}, tests = 0 }, Server)
  self.folder = assert(nst.mkdtemp(("%s/server-%d-"):format(parent, pid)))
  self.socket_folder = proc.folder()
  self.socket = self.socket_folder .. "/s.sock"
  self.settings = self.folder .. "/my.cnf"
  assert(os.execute("mkdir " .. quoted(self.folder .. "/tmp")))
  for name, text in pairs(files or {}) do write(self.folder .. "/" .. name, text) end
  local settings = SETTINGS .. ODD .. (more or "")
  settings = settings:gsub("%u%u%u%u%u%u", { SOCKET = self.socket, FOLDER = self.folder })
  write(self.settings, settings .. (euid == 0 and "user=root\n" or ""))
  assert(os.execute(("cp -r --sparse=always %s %s/data"):format(quoted(installed()), quoted(self.folder))))
  servers[self] = true
  self:start()
  if HOSTILE then -- init_connect is for those without CONNECTION ADMIN
    self:sql("SET sql_log_bin=0; CREATE USER odd@localhost; GRANT ALL ON *.* TO odd@localhost WITH GRANT OPTION;"
      .. "REVOKE CONNECTION ADMIN ON *.* FROM odd@localhost")
  end
  return self
end

--- Starts it (again) and waits until it answers.
function Server:start()
  self.process = proc.start { find "mariadbd", "--defaults-file=" .. self.settings, keep = true }
  local stop = nst.clock() + proc.limit(120)
  while not pcall(self.sql, self, "SELECT 1") do
    if self.process:ended() or nst.clock() > stop then
      error("mariadbd does not start: " .. tail(self.folder .. "/server.log"), 2)
    end
    nst.sleep(0.02)
  end
end

--- Ends it cleanly; new connections are refused until start.
function Server:stop()
  self.process:signal "TERM"
  self.process:wait(120)
  self.process:forget()
end

--- kill -9.
function Server:kill()
  self.process:signal "KILL"
  self.process:wait(120)
  self.process:forget()
end

--- Stops the world: connections stay but nothing answers, until thaw.
--- Stops all of its threads: a signal alone returns before the last of them has stopped.
function Server:freeze()
  assert(self.process:signal "STOP")
  local running
  repeat
    running = false
    for stat in io.popen(("cat /proc/%d/task/*/stat"):format(self.process.pid)):lines() do
      running = running or not stat:match "^%d+ %(.*%) T"
    end
  until not running
end

function Server:thaw() assert(self.process:signal "CONT") end

function Server:remove()
  servers[self] = nil
  if self.process then self.process:forget() end
  nst.remove(self.folder)
  nst.remove(self.socket_folder)
end

--- Runs SQL, one or more statements, as administrator.
-- @tparam string text
-- @tparam[opt] string database
-- @treturn string the rows, columns separated by tabs, without headings
-- @raise the server's message
function Server:sql(text, database)
  -- These tables are a copy, which is made anew when it was not read for 0.1 s.
  if text:lower():find "innodb_[tl][ro][xc]" then nst.sleep(0.11) end
  local out, message
  if text:find "DELIMITER" then -- a word of the client's
    local status
    status, out, message = proc.run { find "mariadb", "--no-defaults", "--socket=" .. self.socket, "--user=root",
      "--batch", "--raw", "--skip-column-names", "--init-command=" .. nst.session,
      stdin = ("USE `%s`;\n"):format(database or "mysql") .. text, timeout = 120 }
    out = status == 0 and out
  else
    -- The place above max_connections may still be the one that has just closed.
    local stop = nst.clock() + proc.limit(20)
    repeat
      out, message = nst.sql(self.socket, database or "mysql", text)
    until out or not message:find("1040", 1, true) or nst.clock() > stop
  end
  if not out then error(message:gsub("%s+$", ""), 2) end
  return (out:gsub("\n$", ""))
end

--- The listeners of a database that sleep.
-- @treturn string a line for each: thread and holder
function Server:asleep(database)
  return self:sql([[SELECT DISTINCT thread, holder FROM nightshift_listener WHERE thread =
    IS_USED_LOCK(CONCAT_WS(':', 'nightshift-ear', MD5(DATABASE()), thread, holder, kind))]], database)
end

--- How many they are.
function Server:sleepers(database) return select(2, self:asleep(database):gsub("[^\n]+", "")) end

--- URL of a database on this server.
function Server:url(database, user, password)
  return ("mysql://%s%s@localhost/%s?unix_socket=%s")
    :format(user or USER, password and ":" .. password or "", database, self.socket)
end

local made = 0
local function new_name(prefix)
  made = made + 1
  return ("%s_%d"):format(prefix, made)
end

--- A new database without tables.
-- @treturn string URL
-- @treturn string its name
function Server:empty()
  local name = new_name(DATABASE)
  self:sql(("CREATE DATABASE `%s` CHARACTER SET %s"):format(name, DEFAULTS))
  if self.names then self.names[#self.names + 1] = name end
  return self:url(name), name
end

-- A fresh database costs the server 26 tables and the next test's end as many drops. So a
-- database that tests have used is emptied and given out again, if all but its rows is as it
-- was made. These are its files of definitions, its routines, and no session in it. A file that
-- asks a server of its own for many says `server.reuses = true`.

local SESSIONS <const> = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = '%s'"
local ROUTINES <const> = "SELECT COUNT(*), COALESCE(MAX(modified), 0) FROM mysql.proc WHERE db = '%s'"

-- What tells whether tables, triggers, views or routines have changed: the files of definitions,
-- and the answer to ROUTINES.
function Server:state_of(name, routines)
  local files = nst.definitions(("%s/data/%s"):format(self.folder, name))
  if not files then return end -- a name that the server encodes
  local lines = {}
  for line in files:gmatch "[^\n]+" do lines[#lines + 1] = line end
  table.sort(lines)
  lines[#lines + 1] = routines or self:sql(ROUTINES:format(name))
  return table.concat(lines, "\n")
end

-- A database as new, from which rows that a new one has are copied; its tables with whether
-- a new one has rows.
function Server:learn_blank()
  self.blank = select(2, self:make())
  self.tables = {}
  local list = self:sql(([[SELECT table_name, auto_increment IS NOT NULL FROM information_schema.tables
    WHERE table_schema = '%s' AND table_type = 'BASE TABLE']]):format(self.blank))
  local counted = {}
  for tab, counts in list:gmatch "([^\n\t]+)\t(%d)" do
    self.tables[tab] = self:sql(("SELECT EXISTS (SELECT 1 FROM `%s`.`%s`)"):format(self.blank, tab)) == "1"
    if counts == "1" then counted[#counted + 1] = quoted(tab) end
  end
  self.counted = table.concat(counted, ", ")
end

-- SQL that gives the tables with rows, or a next number, not as in a new database.
function Server:touched(name)
  local parts = { ([[SELECT table_name FROM information_schema.tables
    WHERE table_schema = '%s' AND table_name IN (%s) AND auto_increment > 1]]):format(name, self.counted) }
  for tab, filled in pairs(self.tables) do
    local its = ("SELECT * FROM `%s`.`%s`"):format(name, tab)
    local blank = ("SELECT * FROM `%s`.`%s`"):format(self.blank, tab)
    if filled then -- in a table of its own: EXISTS takes the columns away from what is compared
      for _, two in ipairs { { its, blank }, { blank, its } } do
        parts[#parts + 1] = ("SELECT '%s' FROM (%s EXCEPT %s) differ"):format(tab, two[1], two[2])
      end
    else
      parts[#parts + 1] = ("SELECT '%s' FROM DUAL WHERE EXISTS (%s)"):format(tab, its)
    end
  end
  return table.concat(parts, " UNION ")
end

-- Drops the tables that a test has made beside ours, with their triggers.
function Server:drop_others(name)
  local ours, steps = self.definitions[name], { "SET lock_wait_timeout = 0, foreign_key_checks = 0" }
  for tab in (ours and nst.definitions(("%s/data/%s"):format(self.folder, name)) or ""):gmatch "([%w_]+)%.frm " do
    if not ours:find(tab .. ".frm ", 1, true) then
      steps[#steps + 1] = ("DROP TABLE IF EXISTS `%s`.`%s`"):format(name, tab)
    end
  end
  if steps[2] then pcall(self.sql, self, table.concat(steps, ";")) end
end

-- Makes a used database as new, by two connections: each costs the server as much as some tables.
-- @return true, or nil when a session is in it, or false when it cannot be
function Server:empty_again(name)
  self:drop_others(name)
  local ok, text = pcall(self.sql, self,
    table.concat({ ROUTINES:format(name), SESSIONS:format(name), self:touched(name) }, ";\n"))
  if not ok then return false end -- a table is gone
  local lines = {}
  for line in text:gmatch "[^\n]+" do lines[#lines + 1] = line end
  local state = self:state_of(name, lines[1])
  if not state or state ~= self.definitions[name] then return false end
  if lines[2] ~= "0" then return nil end
  local steps = { "SET lock_wait_timeout = 0, foreign_key_checks = 0" }
  for _, tab in ipairs(table.move(lines, 3, #lines, 1, {})) do
    steps[#steps + 1] = ("TRUNCATE `%s`.`%s`"):format(name, tab)
    if self.tables[tab] then
      steps[#steps + 1] = ("INSERT INTO `%s`.`%s` SELECT * FROM `%s`.`%s`"):format(name, tab, self.blank, tab)
    end
  end
  steps[#steps + 1] = ("ALTER SEQUENCE `%s`.nightshift_id RESTART"):format(name)
  steps[#steps + 1] = ROUTINES:format(name)
  local routines
  ok, routines = pcall(self.sql, self, table.concat(steps, ";"))
  if not ok then return false end
  self.definitions[name] = self:state_of(name, routines)
  return true
end

-- A new one.
function Server:make()
  local url, name = self:empty()
  local handle = assert(require "nightshift.core".open { url = url, no_schema = true })
  assert(handle:migrate())
  handle:close()
  return url, name
end

-- A database that before_each makes is the test's: when it makes the next one, the test is over. So
-- the one that the same lines have made before is given back, but not one of the same test.
function Server:replace_earlier(place)
  for i, one in ipairs(self.made) do
    if one.place == place and one.test < self.tests then
      self.used[#self.used + 1] = table.remove(self.made, i).name
      return
    end
  end
end

--- A database with our tables and no rows.
-- @treturn string URL
-- @treturn string its name
function Server:fresh()
  if not self.reuses then return self:make() end -- one that ends with its test, or file
  if not self.blank then self:learn_blank() end
  local place = not db.in_test and debug.traceback() or nil
  if place then self:replace_earlier(place) end
  local url, name
  local busy = {}
  while not name and #self.used > 0 do
    local used = table.remove(self.used)
    local empty = self:empty_again(used)
    if empty then
      url, name = self:url(used), used
    elseif empty == nil then
      busy[#busy + 1] = used
    else
      pcall(self.sql, self, ("SET lock_wait_timeout = 0; DROP DATABASE IF EXISTS `%s`"):format(used))
    end
  end
  table.move(busy, 1, #busy, #self.used + 1, self.used)
  if not name then
    url, name = self:make()
    self.definitions[name] = self:state_of(name)
  end
  self.made[#self.made + 1] = { name = name, of_test = db.in_test, place = place, test = self.tests }
  return url, name
end

-- Databases of tests that are over, or of a file, can be used again.
function Server:put_back(every)
  self.tests = self.tests + 1
  local kept = {}
  for _, one in ipairs(self.made) do
    if not (one.of_test or every) then
      kept[#kept + 1] = one
    else
      self.used[#self.used + 1] = one.name
    end
  end
  self.made = kept
end

--- A user with few privileges.
-- @tparam string url of a database
-- @tparam string privileges as in GRANT, "" for none: "SELECT", "SELECT, INSERT"
-- @treturn string URL of that database for the user
-- @treturn string the user's name
function Server:user(url, privileges)
  local database = db.name(url)
  local user, password = new_name "user", "Pass-word_1"
  self:sql(("CREATE USER %s@localhost IDENTIFIED BY '%s'"):format(user, password))
  if privileges ~= "" then self:sql(("GRANT %s ON `%s`.* TO %s@localhost"):format(privileges, database, user)) end
  return self:url(database, user, password), user
end

--- The server of the run.
function db.shared()
  if not db.main then
    db.main = db.server()
    db.main.reuses = true
  end
  return db.main
end

-- It runs, whatever a test has left of it.
local function is_alive(server)
  if server.process:ended() then return false end
  server:thaw()
  return true
end

--- A server for tests that stop, kill or freeze it. There is one for the whole run, because to make
-- one takes the processor for half a second. It runs when it is given out. What a test sets for
-- all sessions it puts back.
function db.spare()
  if not db.extra then
    db.extra = db.server()
    db.extra.names = {} -- of databases, which go behind their file
  elseif not is_alive(db.extra) then
    db.extra:start()
  end
  return db.extra
end

-- The databases that a file has made in it.
local function empty_spare(self)
  if #self.names == 0 or not is_alive(self) then return end
  local steps = { "SET lock_wait_timeout = 0" }
  for i, name in ipairs(self.names) do steps[i + 1] = ("DROP DATABASE IF EXISTS `%s`"):format(name) end
  pcall(self.sql, self, table.concat(steps, ";"))
  self.names = {}
end

for _, name in ipairs { "sql", "url", "empty", "fresh", "user", "asleep", "sleepers" } do
  db[name] = function(...) return db.shared()[name](db.shared(), ...) end
end

--- Removes the servers that the test made; with `every`, those of setup too.
-- Never the shared one, nor the spare one.
function db.remove_all(every)
  for server in pairs(servers) do
    if server.reuses then server:put_back(every) end
  end
  if db.extra and every then empty_spare(db.extra) end
  for server in pairs(servers) do
    if server ~= db.main and server ~= db.extra and (server.of_test or every) then server:remove() end
  end
end

--- The end of the run.
function db.clean()
  for _, server in pairs { db.main, db.extra } do server:remove() end
end

-- ----------------------------------------------------------------------- lab

-- One database of the shared server for a spec file in which all tests use it: lab.handles().
-- Or lab.fresh() in setup and lab.open() in the test.
local lab = {}
local socket

--- A new database with our tables; its name is lab.database.
function lab.fresh()
  local url
  url, lab.database = db.fresh()
  socket = url:match "unix_socket=(.*)"
end

--- Opens it as administrator, or as `options` say.
-- @treturn Database, or nil, message, code
function lab.try_open(options)
  local all = { socket = socket, user = db.account, database = lab.database }
  for name, value in pairs(options or {}) do all[name] = value end
  return require "nightshift".open(all)
end

--- Its URL, for other programs.
function lab.url() return db.url(lab.database) end

function lab.open(options) return assert(lab.try_open(options)) end

--- For a whole file: its database, and before each test handles, which end with it.
--
--     local a, b
--     lab.handles(2, function(...) a, b = ... end)
function lab.handles(n, take)
  local open = {}
  local busted = require "busted"
  busted.setup(lab.fresh)
  busted.before_each(function()
    for i = 1, n do open[i] = lab.open() end
    take(table.unpack(open))
  end)
  busted.after_each(function()
    for i = n, 1, -1 do open[i]:close() end
  end)
end

local names = 0

--- A queue that no other test of the file uses.
function lab.queue(handle)
  names = names + 1
  return assert(handle:queue("lab" .. names))
end

--- The ids of jobs, or rows of them, in their order.
function lab.ids_of(rows)
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row.id end
  return ids
end

--- Runs SQL as administrator, outside any database.
function lab.sql(text) return db.sql(text) end

--- Another database, without tables.
-- @treturn string its name
function lab.empty_database() return (select(2, db.empty())) end

db.lab = lab

return db
