-- The private server: made when no URL is given, shared by all processes of a
-- folder, gone with the last of them, however they end.

local nst = require "nst"
local proc = require "spec.support.proc"

local PROGRAM = [[
local nst = require "nst"
local db, message, code = require "nightshift".open()
if not db then
  print(("failed %s: %s"):format(code, message))
  os.exit(1)
end
print(("open %d %s"):format(nst.ids(), db:execute("SELECT @@datadir AS at")[1].at))
io.stdout:flush()
nst.sleep(tonumber(arg[1]))
]]

local STARTED = "nightshift: started a private MariaDB in ./.nightshift (for development)\n"

local NOBODY = { "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups" }

-- The program comes by stdin, so that any user can read it.
local function command(seconds, dir, prefix)
  local list = { cwd = dir, env = { NIGHTSHIFT_URL = false }, stdin = PROGRAM, timeout = 60 }
  table.move(prefix or {}, 1, #(prefix or {}), 1, list)
  table.move({ proc.lua, "-", tostring(seconds) }, 1, 3, #list + 1, list)
  return list
end

-- A process that opens the private server of 'dir' and stays.
local function user(dir, prefix)
  local p = proc.start(command(100, dir, prefix))
  p:wait_line("^open", 60)
  return p
end

-- One that opens it and ends.
local function visit(dir, prefix) return proc.run(command(0, dir, prefix)) end

-- Runs a program of its own in 'dir'.
local function script(dir, text)
  return proc.start { proc.lua, "-", stdin = text, cwd = dir, env = { NIGHTSHIFT_URL = false } }
end

local function exists(path)
  local file <close> = io.open(path)
  return file ~= nil
end

local function read(path)
  local file <close> = io.open(path)
  return file and file:read "a"
end

local function write(path, text)
  local file <close> = assert(io.open(path, "w"))
  file:write(text)
end

-- A process that is there and no zombie.
local function lives(pid)
  local stat = pid and read("/proc/" .. pid .. "/stat")
  return stat and not stat:find "%) Z "
end

local function server_pid(dir) return tonumber(read(dir .. "/.nightshift/server.pid") or "") end

local function guardian(dir)
  for pid in io.popen "ls /proc":read "a":gmatch "%d+" do
    if read("/proc/" .. pid .. "/comm") == "nightshift-db\n" then
      local link = io.popen("readlink /proc/" .. pid .. "/cwd 2>/dev/null"):read "l"
      if link == dir .. "/.nightshift" then return tonumber(pid) end
    end
  end
end

local function gone(dir, pid)
  return not lives(pid) and not exists(dir .. "/.nightshift/server.pid") and not guardian(dir)
end

describe("the private server", function()
  local dir

  before_each(function() dir = fixture.dir() end)
  after_each(function()
    eventually(function() return not guardian(dir) end, 30) -- its users are dead by now
  end)

  it("is made in .nightshift, says so once, and is there for the next at once", function()
    local first = user(dir)
    local _, err = first:text()
    assert.equal(STARTED, err)
    assert.equal("*\n", read(dir .. "/.nightshift/.gitignore"))
    assert.is_truthy(read(dir .. "/.nightshift/version"):find "MariaDB")
    local status, out
    status, out, err = visit(dir)
    assert.equal(0, status)
    assert.equal("", err)
    assert.is_truthy(out:find(dir .. "/.nightshift/data/", 1, true), out)
  end)

  it("lets nobody else in, opens no port, and is durable", function()
    local p = user(dir)
    assert.equal("700", io.popen("stat -c %a " .. dir .. "/.nightshift"):read "l")
    local settings = read(dir .. "/.nightshift/my.cnf")
    for _, line in ipairs { "skip-networking", "innodb-flush-log-at-trx-commit=1", "max-connections=1000" } do
      assert.is_truthy(settings:find(line, 1, true))
    end
    assert.equal(0, (proc.run { "mariadb", "--defaults-file=" .. dir .. "/.nightshift/my.cnf", "-e",
      "SELECT * FROM nightshift_jobs" }))
    p:forget()
  end)

  it("ends when its last user leaves", function()
    local first, second = user(dir), user(dir)
    local pid = server_pid(dir)
    first:signal "TERM"
    first:wait()
    nst.sleep(0.2)
    assert.is_truthy(lives(pid))
    second:signal "TERM"
    eventually(function() return gone(dir, pid) end)
    assert.is_false(exists(dir .. "/.nightshift/s.sock"))
  end)

  it("ends when its last user is killed", function()
    local p = user(dir)
    local pid = server_pid(dir)
    p:signal "KILL"
    eventually(function() return gone(dir, pid) end)
  end)

  it("is not kept by programs that a user started", function()
    local p = script(dir, [[
      local db = assert(require "nightshift".open())
      os.execute "sleep 100 & echo open $!"
    ]])
    local sleeper = tonumber(p:wait_line("^open (%d+)", 60))
    assert.equal(0, p:wait())
    eventually(function() return not guardian(dir) end)
    assert.is_truthy(lives(sleeper))
  end)

  it("is kept by a forked child", function()
    local p = script(dir, [[
      local nst = require "nst"
      local db = assert(require "nightshift".open())
      print("open", nst.fork(function() nst.sleep(100) end))
      io.stdout:flush()
      nst.sleep(100)
    ]])
    p:wait_line("^open", 60)
    assert.is_truthy(guardian(dir))
  end)

  it("is started once by many at the same time", function()
    local users = {}
    for i = 1, 5 do users[i] = proc.start(command(100, dir)) end
    local lines = 0
    for _, p in ipairs(users) do
      p:wait_line("^open", 60)
      local _, err = p:text()
      if err == STARTED then lines = lines + 1 else assert.equal("", err) end
    end
    assert.equal(1, lines)
  end)

  it("survives a storm of short visits", function()
    visit(dir)
    local visitors = {}
    for _ = 1, 6 do
      for i = 1, 4 do visitors[i] = proc.start(command(0, dir)) end
      for _, p in ipairs(visitors) do assert.equal(0, p:wait(60), p:transcript()) end
    end
  end)

  it("is started again when it dies while it is used", function()
    local p = user(dir)
    local pid = server_pid(dir)
    assert(nst.kill(pid, "KILL"))
    eventually(function() return server_pid(dir) ~= pid and lives(server_pid(dir)) end)
    local status, out, err = visit(dir)
    assert.same({ 0, "" }, { status, err }, out)
    p:forget()
  end)

  it("is started again by the next user when its guardian was killed too", function()
    local p = user(dir)
    local pid = server_pid(dir)
    assert(nst.kill(guardian(dir), "KILL"))
    eventually(function() return not lives(pid) end)
    local status, _, err = visit(dir)
    assert.same({ 0, STARTED }, { status, err })
    p:forget()
  end)

  it("is started again by a handle that has it open, wherever its process has gone", function()
    assert(os.execute("mkfifo " .. dir .. "/go"))
    local program = [[
      local nst = require "nst"
      local db = assert(require "nightshift".open())
      local q = db:queue "mail"
      assert(q:push("a", 1))
      nst.chdir "/"
      print "open"
      io.stdout:flush()
      io.open("GO"):read "a"
      assert(q:push("b", 2))
      print(#db:jobs{ queue = "mail" } .. " jobs")
    ]]
    local p = script(dir, (program:gsub("GO", dir .. "/go")))
    p:wait_line("^open", 60)
    local pid = server_pid(dir)
    assert(nst.kill(guardian(dir), "KILL"))
    eventually(function() return not lives(pid) end)
    write(dir .. "/go", "")
    p:wait_line("^2 jobs", 60)
    assert.equal(0, p:wait())
  end)

  it("keeps what was written when everything is killed", function()
    local p = script(dir, [[
      local nst = require "nst"
      local db = assert(require "nightshift".open())
      print("pushed " .. assert(db:queue "mail":push("a", 1)))
      io.stdout:flush()
      nst.sleep(100)
    ]])
    local id = p:wait_line("^pushed (%d+)", 60)
    nst.kill(guardian(dir), "KILL")
    nst.kill(server_pid(dir), "KILL")
    p:signal "KILL"
    p:wait()
    p = script(dir, ([[
      local db = assert(require "nightshift".open())
      print("found", assert(db:job(%s)).state)
    ]]):format(id))
    assert.equal("ready", p:wait_line("^found\t(%a+)", 60))
  end)

  it("is made anew when its making was killed", function()
    for _, delay in ipairs { 0.05, 0.2, 0.4 } do
      local here = fixture.dir()
      local p = proc.start(command(100, here))
      nst.sleep(delay)
      local pid = guardian(here)
      if pid then nst.kill(pid, "KILL") end
      p:signal "KILL"
      p:wait()
      local status, out = visit(here)
      assert.equal(0, status, out)
      eventually(function() return not guardian(here) end)
    end
  end)

  it("works wherever the folder is", function()
    local long = ("a long name "):rep(12):sub(1, -2)
    for _, name in ipairs { "two words", "quo'te\"s", "a#b%41$HOME", "caf\u{e9}", "new\nline", long .. "/" .. long } do
      local here = dir .. "/" .. name
      assert.equal(0, (proc.run { "mkdir", "-p", here }))
      local status, out, err = visit(here)
      assert.equal(0, status, out .. err)
      eventually(function() return not guardian(here) end)
    end
    assert.equal("", io.popen("find /tmp -maxdepth 2 -name home -lname '" .. dir .. "*'"):read "a")
  end)

  it("refuses a path that MariaDB cannot use", function()
    local here = dir .. ("/" .. ("x"):rep(200)):rep(3)
    assert.equal(0, (proc.run { "mkdir", "-p", here }))
    local status, out = visit(here)
    assert.equal(1, status)
    assert.is_truthy(out:find("failed INVALID: private server: the path of ./.nightshift is", 1, true), out)
  end)

  it("says why it cannot start", function()
    visit(dir)
    eventually(function() return not guardian(dir) end)
    write(dir .. "/.nightshift/data/ibdata1", ("nonsense"):rep(100000))
    local status, out = visit(dir)
    assert.equal(1, status)
    assert.is_truthy(out:find("failed GONE: private server: ./.nightshift did not start (mariadbd: exit status 1)", 1,
      true), out)
    assert.is_truthy(out:find("InnoDB", 1, true), out)
  end)

  it("refuses the folder of another version of MariaDB, untouched", function()
    visit(dir)
    eventually(function() return not guardian(dir) end)
    write(dir .. "/.nightshift/version", "mariadbd  Ver 12.3.1-MariaDB for Linux\n")
    local status, out = visit(dir)
    assert.equal(1, status)
    assert.is_truthy(out:find("failed SERVER: private server: ./.nightshift was made by MariaDB 12.3", 1, true), out)
  end)

  describe("of an ordinary user", function()
    before_each(function()
      local _, euid = nst.ids()
      if euid ~= 0 then return pending "only root can become somebody else" end
      local look = table.move(NOBODY, 1, #NOBODY, 1, {})
      table.move({ "test", "-r", proc.build .. "/nightshift/core.so" }, 1, 3, #look + 1, look)
      if proc.run(look) ~= 0 then
        return pending "the build folder is not open to others"
      end
      os.execute("chown 65534 " .. dir)
    end)

    it("needs no rights", function()
      user(dir, NOBODY)
      assert.equal("65534", io.popen("stat -c %u /proc/" .. server_pid(dir)):read "l")
    end)

    it("is closed to others, root too", function()
      assert(os.execute("install -d -o 65534 -m 700 " .. dir .. "/.nightshift"))
      local status, out = visit(dir)
      assert.equal(1, status)
      assert.is_truthy(out:find("failed DENIED: private server: ./.nightshift belongs to user 65534", 1, true), out)
    end)

    it("says DENIED where it may not write", function()
      os.execute("chown 0 " .. dir .. " && chmod 755 " .. dir)
      local status, out = visit(dir, NOBODY)
      assert.equal(1, status)
      assert.is_truthy(out:find("failed DENIED: private server: cannot create ./.nightshift: Permission", 1, true), out)
    end)
  end)
end)
