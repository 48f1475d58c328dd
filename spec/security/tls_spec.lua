-- TLS to the server, the environment that libmariadb reads, core dumps, and what compiler and
-- linker were asked for.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proxy"

-- TLS to the server: verified when asked, encrypted when trusted, and never
-- quietly plain text. The certificates are made here by openssl.
describe("TLS", function()
  local function openssl(folder, ...)
    local status, _, err = proc.run { "openssl", cwd = folder, ... }
    assert.equal(0, status, err)
  end

  local NEW_KEY = { "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes" }

  --- A certificate authority, and by it a server's certificate for `name`.
  local function authority(folder, name)
    openssl(folder, "req", "-x509", "-keyout", "ca-key.pem", "-out", "ca.pem", "-days", "2", "-subj", "/CN=spec CA",
      table.unpack(NEW_KEY))
    openssl(folder, "req", "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=server", table.unpack(NEW_KEY))
    local file <close> = assert(io.open(folder .. "/names", "w"))
    file:write("subjectAltName=", name, "\n")
    file:close()
    openssl(folder, "x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial",
      "-days", "2", "-extfile", "names", "-out", "cert.pem")
  end

  local function read(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read "a"
  end

  --- This machine's address on a network, if it is on one.
  local function outer_address()
    local pipe <close> = io.popen "hostname -I 2>/dev/null"
    return pipe:read "a":match "%d+%.%d+%.%d+%.%d+"
  end

  local folder, server, port, outer, name

  setup(function()
    folder, port, outer = fixture.dir(), proc.free_port(), outer_address()
    authority(folder, "IP:127.0.0.1")
    server = db.server(([[
skip-networking=0
bind-address=%s
port=%d
ssl-cert=FOLDER/cert.pem
ssl-key=FOLDER/key.pem
]]):format(outer and "127.0.0.1," .. outer or "127.0.0.1", port),
      { ["cert.pem"] = read(folder .. "/cert.pem"), ["key.pem"] = read(folder .. "/key.pem") })
    local _
    _, name = server:fresh()
    server:sql(("CREATE USER u IDENTIFIED BY 'hunter2'; GRANT ALL ON `%s`.* TO u"):format(name))
  end)

  local function open(options)
    local all = { host = "127.0.0.1", port = port, user = "u", password = "hunter2", database = name }
    for key, value in pairs(options or {}) do all[key] = value end
    return nightshift.open(all)
  end

  local function cipher(handle)
    return assert(handle:execute "SHOW STATUS LIKE 'Ssl_cipher'")[1].Value
  end

  local function refused(text, handle, message, code)
    assert.is_nil(handle)
    assert.equal("DENIED", code, message)
    assert.is_truthy(message:find(text), message)
  end

  it("verify refuses a certificate that nobody known has signed", function()
    refused("certificate", open { tls = "verify" })
  end)

  it("verify accepts it with the authority's certificate", function()
    local handle <close> = assert(open { tls = "verify", ca = folder .. "/ca.pem" })
    assert.is_truthy(cipher(handle):find "^TLS_")
  end)

  it("is verified when a ca is given without a word about tls", function()
    local handle <close> = assert(open { ca = folder .. "/ca.pem" })
    assert.is_truthy(cipher(handle):find "^TLS_")
  end)

  it("verify refuses the certificate of another host", function()
    if not outer then return pending "this machine is on no network" end
    refused("certificate", open { host = outer, tls = "verify", ca = folder .. "/ca.pem" })
  end)

  it("verify refuses a ca file that is not there", function()
    assert.is_nil((open { tls = "verify", ca = folder .. "/none.pem" }))
  end)

  it("trust encrypts and asks for no certificate", function()
    local handle <close> = assert(open { tls = "trust" })
    assert.is_truthy(cipher(handle):find "^TLS_")
  end)

  it("off sends plain text, and this machine is off by itself", function()
    for _, options in ipairs { { tls = "off" }, {} } do
      local handle <close> = assert(open(options))
      assert.equal("", cipher(handle))
    end
  end)

  it("is verified by itself to another machine", function()
    if not outer then return pending "this machine is on no network" end
    refused("certificate", open { host = outer })
    local plain <close> = assert(open { host = outer, tls = "off" })
    assert.equal("", cipher(plain))
  end)

  it("is wanted to another machine that only an option file names", function()
    if not outer then return pending "this machine is on no network" end
    local file = fixture.file("my.cnf", ("[client]\nhost=%s\nport=%d\nuser=u\npassword=hunter2\n"):format(outer, port))
    refused("certificate", nightshift.open { file = file, database = name })
    local trusted <close> = assert(nightshift.open { file = file, database = name, tls = "trust" })
    assert.is_truthy(cipher(trusted):find "^TLS_")
    local plain <close> = assert(nightshift.open { file = file, database = name, tls = "off" })
    assert.equal("", cipher(plain))
  end)

  it("takes the authority that an option file names, but no leave to skip the check", function()
    local lines = ("[client]\nhost=127.0.0.1\nport=%d\nuser=u\npassword=hunter2\n"):format(port)
    local file = fixture.file("ca.cnf", lines .. "ssl-ca=" .. folder .. "/ca.pem\n")
    local verified <close> = assert(nightshift.open { file = file, database = name, tls = "verify" })
    assert.is_truthy(cipher(verified):find "^TLS_")
    file = fixture.file("lax.cnf", lines .. "ssl-verify-server-cert=0\n")
    refused("certificate", nightshift.open { file = file, database = name, tls = "verify" })
  end)

  it("is wanted to a name or number that only looks like this machine", function()
    local plain = proxy.start(db.shared(), "tcp")
    plain:tell "trace"
    refused("offers no TLS", open { host = "127.1", port = math.tointeger(tonumber(plain.port)) })
    assert.is_nil(plain:tell("report"):find "[cC]")
    local handle = nightshift.open { url = plain:url(db.fresh()):gsub("%?tls=off", "") }
    assert.is_truthy(handle)
    handle:close()
  end)

  -- The same machine, seen from a network where it has another address.
  local ADDRESS = "192.0.2.9"
  local ELSEWHERE = "ip link set lo up && ip addr add " .. ADDRESS .. "/32 dev lo &&"

  local function other_network()
    local _, euid = nst.ids()
    return euid == 0 and os.execute("unshare -n sh -c '" .. ELSEWHERE .. " true' 2>/dev/null")
      and os.execute "nsenter --version >/dev/null 2>&1"
  end

  it("sends nothing to another machine without TLS, whoever names it", function()
    if not other_network() then return pending "only root can make a network to try this in" end
    local url, database = db.fresh()
    local far = proxy.start(db.shared(), "tcp:" .. ADDRESS, "unshare -n sh -c '" .. ELSEWHERE .. ' exec "$@"\' sh')
    local function open_there(query)
      far:tell "trace"
      local exit, _, err = proc.run { "nsenter", "-n", "-t", far.process.pid, proc.program, "status", "--url",
        "mysql:///" .. database .. "?" .. query }
      local sent = far:tell("report"):find "[cC]"
      return exit, err, sent
    end
    local to = ("host=%s\nport=%s\nuser=root\n"):format(ADDRESS, far.port)
    local file = fixture.file("far.cnf", "[client]\n" .. to .. "[odd]\nport=" .. far.port .. "\n")
    local connection = fixture.file("odd.cnf",
      ("[client]\nconnection=host=%s;port=%s;user=root\n"):format(ADDRESS, far.port))
    for _, query in ipairs { "file=" .. file, "file=" .. file .. "&group=odd", "file=" .. connection } do
      local exit, err, sent = open_there(query)
      assert.equal(78, exit, err)
      assert.is_truthy(err:find("offers no TLS", 1, true), err)
      assert.is_nil(sent)
    end
    local exit, err, sent = open_there("file=" .. file .. "&tls=off")
    assert.equal(0, exit, err)
    assert.is_truthy(sent)
    -- a socket is of this machine, whatever host a file names
    local socket = url:match "unix_socket=([^&]*)"
    exit, err, sent = open_there("file=" .. file .. "&unix_socket=" .. socket)
    assert.equal(0, exit, err)
    assert.is_nil(sent)
  end)

  it("is off to this machine when only an option file names it", function()
    for _, host in ipairs { "127.0.0.1", "localhost", "127.9.9.9" } do
      local plain = proxy.start(db.shared(), "tcp:" .. (host == "localhost" and "127.0.0.1" or host))
      local _, database = db.fresh()
      local lines = ("[client]\nhost=%s\nport=%s\nuser=root\nprotocol=1\n"):format(host, plain.port)
      local handle <close> = assert(nightshift.open { file = fixture.file("my.cnf", lines), database = database })
      assert.equal("", cipher(handle))
    end
  end)

  it("is used by the listener as well", function()
    local handle <close> = assert(open { tls = "verify", ca = folder .. "/ca.pem" })
    local function accepted()
      return tonumber(handle:execute("SHOW GLOBAL STATUS LIKE 'Ssl_accepts'")[1].Value)
    end
    local before = accepted()
    eventually(function() -- a claim whose time is over with its first look makes no listener
      assert.is_nil(handle:queue("q"):claim { wait = 0.2 })
      return accepted() > before
    end)
    assert.equal(before + 1, accepted())
  end)

  for _, tls in ipairs { "verify", "trust" } do
    it(tls .. " refuses a server that offers none", function()
      local url = db.fresh()
      local handle, message, code = nightshift.open(url .. "&tls=" .. tls)
      refused("TLS", handle, message, code)
    end)
  end
end)

-- What libmariadb reads from the environment by itself must not matter: a
-- password that nobody gave, option files, plugins to load.
describe("the environment", function()
  local TRY = [=[
local nightshift = require "nightshift"
local options = { socket = arg[1], user = arg[2], database = arg[3] }
if arg[4] ~= "" then options[arg[4]] = arg[5] end
local handle, message, code = nightshift.open(options)
print(handle and "open" or code, message or "")
]=]

  local url, name, user, program

  before_each(function()
    local root
    root, name = db.fresh()
    url, user = db.user(root, "ALL")
    program = fixture.file("try.lua", TRY)
  end)

  -- A program of somebody's with the module: what does open say?
  local function try(env, key, value)
    local status, out, err = proc.run { proc.lua, program, db.shared().socket, user, name, key or "", value or "",
      env = env }
    assert.equal(0, status, err)
    return out:match "^%w+", out
  end

  it("gives no password: MYSQL_PWD", function()
    assert.equal("DENIED", try { MYSQL_PWD = "Pass-word_1" })
    assert.equal("open", try({ MYSQL_PWD = "wrong" }, "password", "Pass-word_1"))
    local status, _, err = proc.nightshift({ "status" }, (url:gsub(":Pass%-word_1", "")),
      { env = { MYSQL_PWD = "Pass-word_1" } })
    assert.equal(78, status, err)
  end)

  it("gives no password beside an option file either, and the file's counts", function()
    local without = fixture.file("my.cnf", "[client]\n")
    local with = fixture.file("my.cnf", "[client]\npassword=Pass-word_1\n")
    assert.equal("DENIED", try({ MYSQL_PWD = "Pass-word_1" }, "file", without))
    assert.equal("open", try({ MYSQL_PWD = "wrong" }, "file", with))
  end)

  it("names no folder of option files: MYSQL_HOME", function()
    local home = fixture.file("my.cnf", "[nightshift]\npassword=Pass-word_1\n"):match "(.*)/"
    for _, variable in ipairs { "MYSQL_HOME", "MARIADB_HOME" } do
      assert.equal("DENIED", try({ [variable] = home, HOME = fixture.dir() }, "group", "nightshift"))
    end
  end)

  it("loads no plugins: LIBMYSQL_PLUGINS, MARIADB_PLUGIN_DIR", function()
    local source = fixture.file("evil.c", [[
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void loaded(void) { fclose(fopen(getenv("MARKER"), "w")); }
]])
    local folder = fixture.dir()
    assert.equal(0, (proc.run { "cc", "-shared", "-fPIC", "-o", folder .. "/evil.so", source }))
    local function loads(marker, ...)
      local env = { NIGHTSHIFT_URL = url, LIBMYSQL_PLUGINS = "evil", MARIADB_PLUGIN_DIR = folder, MARKER = marker }
      local status, _, err = proc.run { env = env, ... }
      assert.equal(0, status, err)
      return io.open(marker) ~= nil
    end
    assert.is_true(loads(folder .. "/1", "mariadb", "--no-defaults", "--socket=" .. db.shared().socket, "--user=root",
      "-e", "SELECT 1"), "the trap does not work")
    assert.is_false(loads(folder .. "/2", proc.program, "status"))
    assert.is_false(loads(folder .. "/3", proc.lua, program, db.shared().socket, user, name, "password", "Pass-word_1"))
  end)
end)

-- The host has the URL with its password in memory, so it leaves no core behind,
-- however generous the limits of whoever starts it are.
describe("a core dump", function()
  local function read(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read "a"
  end

  --- Soft and hard, in bytes. Of 1 the kernel makes nothing, see process/isolation.c.
  local function limits(pid)
    local soft, hard = read("/proc/" .. pid .. "/limits"):match "Max core file size%s+(%S+)%s+(%S+)"
    return { tonumber(soft), tonumber(hard) }
  end

  local function started(limit)
    local folder = fixture.dir()
    local p = proc.start { "sh", "-c", "ulimit -c " .. limit .. '; exec "$@"', "sh", proc.program, "work",
      fixture.file("jobs.lua", "return {}"), cwd = folder, env = { NIGHTSHIFT_URL = (db.fresh()) } }
    p:wait_line "host.ready"
    return p, folder
  end

  it("of the host is not written", function()
    local p, folder = started "$(ulimit -H -c)"
    assert.same({ 1, 1 }, limits(p.pid))
    assert(os.execute("kill -SEGV " .. p.pid))
    p:wait()
    assert.is_nil(io.popen("ls " .. folder):read "l")
  end)

  it("stays away where it was", function()
    local limit = limits(started("0").pid)
    assert.is_true(limit[1] <= 1 and limit[2] <= 1)
  end)
end)

-- What the compiler and the linker were asked for stands in what they made.
-- The sanitizers' builds have their own flags.
describe("the built", function()
  local PROGRAM = proc.build .. "/bin/nightshift"
  local MODULE = proc.build .. "/nightshift/core.so"

  local function read(command)
    local pipe <close> = assert(io.popen(command .. " 2>&1"))
    return pipe:read "a"
  end

  local has_readelf = read "command -v readelf" ~= ""

  if os.getenv "SAN" or not has_readelf then
    return pending "needs readelf and a build without sanitizers"
  end

  it("program is position independent", function()
    assert.is_truthy(read("readelf -hW " .. PROGRAM):find "Type: +DYN")
    assert.is_truthy(read("readelf -dW " .. PROGRAM):find "Flags:[^\n]*PIE")
  end)

  for name, file in pairs { program = PROGRAM, module = MODULE } do
    it(name .. " has no executable stack and no writable relocations", function()
      local segments, dynamic = read("readelf -lW " .. file), read("readelf -dW " .. file)
      assert.is_truthy(segments:find "GNU_STACK[^\n]* RW +0x")
      assert.is_truthy(segments:find "GNU_RELRO")
      assert.is_truthy(dynamic:find "NOW")
      assert.is_nil(dynamic:find "TEXTREL")
    end)

    it(name .. " guards its stack and its buffers", function()
      local symbols = read("nm -D " .. file)
      assert.is_truthy(symbols:find "__stack_chk_fail")
      assert.is_truthy(symbols:find "__memcpy_chk")
    end)
  end

  it("code marks where jumps may land (x86)", function()
    if not read "uname -m":find "x86_64" then return pending "another machine" end
    assert.is_truthy(read("readelf -nW " .. proc.build .. "/core/link/url.o"):find "IBT, SHSTK")
  end)
end)
