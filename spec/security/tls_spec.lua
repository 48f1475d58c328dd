-- TLS to the server: verified when asked, encrypted when trusted, and never
-- quietly plain text. The certificates are made here by openssl.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proxy"

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

describe("TLS", function()
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
