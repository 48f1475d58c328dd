-- What is installed, and where it runs: the unit for systemd, the Debian package, a container's
-- first process. Copies of a database that were made while its jobs ran.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- Runs make in this tree, for the build that the specs run with.
local function make(...)
  local build = proc.build:gsub("^" .. proc.root:gsub("%p", "%%%0") .. "/", "")
  local options = { "env", "-u", "MAKEFLAGS", "-u", "MFLAGS", "make", "--no-print-directory", "-s", "O=" .. build, ... }
  options.env = { DPKG_DEB_COMPRESSOR_TYPE = "gzip", DPKG_DEB_COMPRESSOR_LEVEL = 1 } -- not the smallest, but soon
  options.cwd, options.timeout = proc.root, 300
  local status, out, err = proc.run(options)
  assert.equal(0, status, out .. err)
end

local function can(...) return proc.run { ... } == 0 end

local function write(path, text)
  local file <close> = assert(io.open(path, "w"))
  assert(file:write(text))
end

describe("make install", function()
  it("brings a unit that systemd has nothing to say against", function()
    if not can("sh", "-c", "command -v systemd-analyze") then return pending "systemd-analyze is not installed" end
    local prefix = fixture.dir()
    make("PREFIX=" .. prefix, "install")
    local unit = prefix .. "/lib/systemd/system/nightshift@shop.service"
    assert(os.rename(unit:gsub("shop", ""), unit))
    local status, out, err = proc.run { "systemd-analyze", "verify", "--man=no", unit }
    assert.equal(0, status)
    for line in (out .. err):gmatch "[^\n]+" do assert.is_nil(line:find("nightshift@", 1, true), line) end
    make("PREFIX=" .. prefix, "uninstall")
    os.remove(unit)
    assert.equal("", io.popen(("find %s -type f"):format(prefix)):read "a")
  end)
end)

-- In a copy of this machine that forgets all changes: a file system above the real one. The index
-- of all of its manual pages, which each change of a package makes anew, is of no interest.
local INSIDE = [[set -e
export DEBIAN_FRONTEND=noninteractive HOME=/root
unset LUA_PATH LUA_CPATH NIGHTSHIFT_URL
cd "$(mktemp -d)"
dpkg --force-unsafe-io -i "$1" >/dev/null
dpkg -L nightshift > list
test "$(stat -c %A /usr/bin/nightshift)" = -rwxr-xr-x
lua5.4 -e 'print("module " .. require "nightshift".encode {1})'
test -e /usr/lib/systemd/system/nightshift@.service && test -e /usr/share/man/man1/nightshift-work.1.gz
getent passwd nightshift | cut -d: -f1,6
echo "return { say = function(job) print('said ' .. job.payload) end }" > jobs.lua
nightshift push q say '"it"' 2>/dev/null
nightshift work jobs.lua --workers 1 --drain 2>/dev/null
echo WORK= > /etc/nightshift/shop.env
dpkg --force-unsafe-io -i "$2" >/dev/null
dpkg-query -W -f='${Version} ${Status}\n' nightshift
cat /etc/nightshift/shop.env
dpkg -V nightshift
dpkg -r nightshift >/dev/null 2>&1
test -e /usr/bin/nightshift || echo "removed, but for $(ls /etc/nightshift)"
mkdir -p /var/lib/nightshift/shop
dpkg -P nightshift >/dev/null
while read -r path; do test -d "$path" || ! test -e "$path" || echo "left: $path"; done < list
echo "purged:$(ls -d /etc/nightshift /var/lib/nightshift 2>/dev/null)"
dpkg-query -W nightshift 2>&1 | head -1]]

local OVERLAY = [[set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --bind /dev "$1/root/dev"
ln -sf /bin/true "$1/root/usr/bin/mandb"
cp "$2" "$3" "$1/root/root/"
exec chroot "$1/root" sh -c "$4" sh "/root/${2##*/}" "/root/${3##*/}"]]

describe("make deb", function()
  local old, new

  setup(function()
    if not can("sh", "-c", "command -v dpkg-deb && command -v dpkg-shlibdeps") then return end
    make "deb"
    local arch = io.popen "dpkg --print-architecture":read "l"
    new = ("%s/nightshift_%s-1_%s.deb"):format(proc.build, nightshift._VERSION:match "[%d.]+", arch)
    -- The same with an older number.
    local tree = fixture.dir()
    old = tree .. "/old.deb"
    local status, out, err = proc.run { "sh", "-c", [[dpkg-deb -R "$1" "$2/tree" &&
      sed -i 's/^Version: .*/Version: 0.0.9-1/' "$2/tree/DEBIAN/control" &&
      dpkg-deb --root-owner-group -Znone --build "$2/tree" "$3"]], "sh", new, tree, old }
    assert.equal(0, status, out .. err)
  end)

  it("makes a package that names what it needs", function()
    if not new then return pending "dpkg-dev is not installed" end
    local needs = io.popen(("dpkg-deb -f %s Depends"):format(new)):read "a"
    for _, package in ipairs { "libc6 %(>= ", "libmariadb3 %(>= ", "libjansson4 %(>= ", "libuv1 %(>= ", "liblua5.4%-0",
      "lua%-argparse" } do
      assert.matches(package, needs)
    end
    assert.is_nil(needs:find "ncurses") -- only `top` needs it
    assert.matches("libncursesw6", io.popen(("dpkg-deb -f %s Recommends"):format(new)):read "a")
  end)

  it("makes one that installs, runs, upgrades, and leaves nothing when it is purged", function()
    if not new then return pending "dpkg-dev is not installed" end
    local dir = fixture.dir()
    if not can("unshare", "--mount", "sh", "-c", OVERLAY, "sh", dir, old, new, "true") then
      return pending "no file system can be mounted above this one"
    end
    local status, out, err = proc.run { "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", OVERLAY,
      "sh", dir, old, new, INSIDE, timeout = 180 }
    assert.equal(0, status, out .. err)
    local version = new:match "nightshift_([^_]+)_"
    assert.same(([[module [1]
nightshift:/var/lib/nightshift
100
said it
%s install ok installed
WORK=
removed, but for shop.env
purged:
dpkg-query: no packages found matching nightshift
]]):format(version), out, err)
  end)
end)

-- As in a container whose root cannot be written to. Its signals go to the process below `unshare`.
describe("the first process of a container", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local READ_ONLY = 'mount -o remount,bind,ro / && mount -t tmpfs tmpfs /run && exec "$@"'

  local function contained(...)
    return { "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", READ_ONLY, "sh", ... }
  end

  local function start(script)
    local options = contained(proc.program, "work", fixture.file("jobs.lua", script), "--workers", "2")
    options.env = { NIGHTSHIFT_URL = url, TMPDIR = "/run" }
    local h = proc.start(options)
    function h.tell(_, signal) assert(nst.kill(host.children(h.pid)[1], signal)) end
    return h
  end

  local function refused() return proc.run(contained "true") ~= 0 and "no namespaces can be made here" end

  it("is a host that runs jobs, leaves no zombies, and drains at TERM", function()
    if refused() then return pending(refused()) end
    local go = fixture.dir() .. "/go"
    local h = start(([[return {
      look = function()
        for _ = 1, 5 do os.execute "setsid sleep 0.01 &" end
        return { pid = io.open "/proc/1/comm":read "l", written = io.open("/etc/nightshift-spec", "w") ~= nil,
          much = ("x"):rep(100000) }
      end,
      hold = function()
        print "holds"
        while not io.open %q do require "nightshift.core".sleep(0.02) end
      end,
    }]]):format(go))
    h:wait_line("host.ready", 60)
    local id = assert(q:push "look")
    local result = eventually(function() return handle:job(id).result end)
    assert.same({ "nightshift", false, 100000 }, { result.pid, result.written, #result.much })
    eventually(function()
      for _, pid in ipairs(host.family(h.pid)) do
        local stat = io.open(("/proc/%d/stat"):format(pid))
        if stat and stat:read "a":find "%) Z " then return false end
      end
      return true
    end)
    id = assert(q:push "hold")
    h:wait_line "^holds"
    h:tell "TERM"
    h:wait_line "host.drain"
    write(go, "")
    assert.equal(0, h:wait(30))
    assert.equal("done", handle:job(id).state)
  end)

  -- It has no default actions for signals, so the TERM was lost, and a KILL came in its place.
  it("ends at TERM while it reads its scripts, too", function()
    if refused() then return pending(refused()) end
    local h = start "print 'reads' io.stdout:flush() os.execute 'sleep 600'"
    h:wait_line "^reads"
    h:tell "TERM"
    assert.equal(128 + 15, h:wait(20))
  end)
end)

-- As logrotate does it with `copytruncate`.
describe("a log that is copied and emptied", function()
  local url

  with_database(function(_, _, address) url = address end)

  it("goes on at its beginning, in whole lines", function()
    local log = fixture.dir() .. "/shop.log"
    local h = proc.start { "sh", "-c", [[exec "$@" 2>> "$LOG"]], "sh", proc.program, "work",
      fixture.file("jobs.lua", "return { noop = function() end }"), "--workers", "1",
      env = { NIGHTSHIFT_URL = url, LOG = log } }
    local function text(path)
      local file <close> = io.open(path)
      return file and file:read "a" or ""
    end
    eventually(function() return text(log):find("event=host.ready", 1, true) end)
    for i = 1, 2 do
      assert(os.execute(("cp %s %s.%d && : > %s"):format(log, log, i, log)))
      assert.equal("", text(log))
      h:signal "USR1"
      eventually(function() return text(log):find "event=dump.host [^\n]*\n" end)
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.is_truthy(text(log .. ".1"):find("event=host.ready", 1, true))
    assert.is_truthy(text(log):find("event=host.end", 1, true))
    for _, path in ipairs { log .. ".1", log .. ".2", log } do
      for line in text(path):gmatch "[^\n]*\n?" do
        assert.is_truthy(line == "" or line:find "^ts=%S+ level=%l+ event=%S+.*\n$", line)
      end
    end
  end)
end)

describe("a dump that was made under load", function()
  local NOTE = [[return { note = function(job)
    local file <close> = io.open(%q, "a")
    file:write(job.id, "\n")
    require "nightshift.core".sleep(0.005)
  end }]]

  local PUSHES = [[local nightshift = require "nightshift"
    local q = assert(nightshift.open(arg[1])):queue "q"
    io.stdout:setvbuf "line"
    while true do
      local jobs = { { "note" }, { "note" }, { "note", 1, { delay = "1s" } } }
      for _, id in ipairs(assert(q:push_many(jobs))) do print(id) end
      require "nightshift.core".sleep(0.01)
    end]]

  local function ids(text)
    local set, n = {}, 0
    for id in text:gmatch "%d+" do
      n = n + (set[id] and 0 or 1)
      set[id] = (set[id] or 0) + 1
    end
    return set, n
  end

  it("has each job once, and hosts of the restored database end it", function()
    if not can("sh", "-c", "command -v mariadb-dump") then return pending "mariadb-dump is not installed" end
    local server = db.server()
    local url, name = server:fresh()
    local ran, again = fixture.file("ran", ""), fixture.file("again", "")
    local h = host.start(url, NOTE:format(ran))
    local pusher = proc.start { proc.lua, "-", url, stdin = PUSHES }
    local function done() return tonumber((server:sql("SELECT COUNT(*) FROM nightshift_finished", name))) end
    eventually(function() return done() > 100 end)

    local before = ids((pusher:text()))
    local file = fixture.dir() .. "/dump.sql"
    -- Runs a client program; the words behind `--user` are what doc/deploying.md says.
    local function client(program, words, input)
      local options = { program, "--no-defaults", "--socket=" .. server.socket, "--user=root", timeout = 60 }
      for word in words:gmatch "%S+" do options[#options + 1] = word end
      options.stdin = input
      local status, out, err = proc.run(options)
      assert.equal(0, status, out .. err)
    end
    client("mariadb-dump", "--single-transaction --routines --triggers --result-file=" .. file .. " " .. name)
    local said = #pusher:text()
    eventually(function() return #pusher:text() > said end)
    local after = ids((pusher:text()))
    local at = done()
    eventually(function() return done() > at + 20 end) -- the original goes on
    pusher:forget()
    host.stop(h)

    server:sql "CREATE DATABASE restored"
    local text <close> = assert(io.open(file))
    client("mariadb", "restored", text:read "a")
    local copy = server:url "restored"
    proc.succeeds({ "migrate" }, copy)
    local function ask(sql) return server:sql(sql, "restored") end
    local there, n = ids(ask "SELECT id FROM nightshift_job UNION ALL SELECT id FROM nightshift_finished")
    local live = ids(ask "SELECT id FROM nightshift_job")
    for id in pairs(before) do assert.equal(1, there[id], id) end
    for id, times in pairs(there) do assert.same({ 1, after[id] }, { times, 1 }, id) end
    assert.is_not_nil(next(live))

    local second = host.start(copy, NOTE:format(again))
    eventually(function() return ask "SELECT COUNT(*) FROM nightshift_job" == "0" end, 60)
    local handle <close> = assert(nightshift.open(copy))
    local new = assert(handle:queue "q":push "note") -- ids go on behind those of the dump
    eventually(function() return handle:job(new).state == "done" end)
    host.stop(second)
    local ended = ids(io.open(again):read "a")
    for id in pairs(live) do assert.equal(1, ended[id], id) end
    for id in pairs(ended) do assert.is_truthy(live[id] or id == tostring(new), id) end
    assert.equal(tostring(n + 1), ask "SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'")
    assert.equal("0", ask "SELECT COUNT(*) FROM nightshift_mended")
    handle:close()
    server:remove()
  end)
end)

-- A newer version is simulated by the number that its `migrate` would write.
describe("tables of a newer version", function()
  local url, handle, q, name

  with_database(function(...) handle, q, url, name = ... end)

  local function set_version(n)
    db.sql(("UPDATE nightshift_meta SET value = '%d' WHERE name = 'schema'"):format(n), name)
  end

  it("let hosts go on with the connections they have, and not make new ones", function()
    local h = host.start(url, "return { say = function() return 1 end }")
    set_version(2)
    local id = assert(q:push "say")
    eventually(function() return handle:job(id).state == "done" end)
    proc.fails(78, { "push", "q", "say" }, url, "the tables have version 2, newer than the 1 of this library")
    assert.equal(78, (proc.nightshift({ "work", h.script }, url)))

    for session in db.sql("SELECT connection FROM nightshift_holder WHERE kind = 'host'", name):gmatch "%d+" do
      db.sql("KILL " .. session)
    end
    h:wait_line "event=db.error code=SCHEMA"
    assert.is_false(h:ended())
    set_version(1) -- or a new host runs beside it, and has its jobs meanwhile
    id = assert(q:push "say")
    eventually(function() return handle:job(id).state == "done" end)
    host.stop(h)
  end)
end)
