-- TLS to the server: verified when asked, encrypted when trusted, and never
-- quietly plain text. The certificates are made here by openssl.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

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

--- A port nobody uses, below those that the kernel gives out.
local function free_port()
  local used = read "/proc/net/tcp" .. read "/proc/net/tcp6"
  local port
  repeat port = math.random(20000, 32000) until not used:find((":%04X "):format(port), 1, true)
  return port
end

--- This machine's address on a network, if it is on one.
local function outer_address()
  local pipe <close> = io.popen "hostname -I 2>/dev/null"
  return pipe:read "a":match "%d+%.%d+%.%d+%.%d+"
end

describe("TLS", function()
  local folder, server, port, outer, name

  setup(function()
    folder, port, outer = fixture.dir(), free_port(), outer_address()
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
    server:sql(("CREATE USER u IDENTIFIED BY 'hunter2'; GRANT ALL ON %s.* TO u"):format(name))
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
    refused("TLS", nightshift.open { file = file, database = name })
    local plain <close> = assert(nightshift.open { file = file, database = name, tls = "off" })
    assert.equal("", cipher(plain))
  end)

  it("is used by the listener as well", function()
    local handle <close> = assert(open { tls = "verify", ca = folder .. "/ca.pem" })
    local function accepted()
      return tonumber(handle:execute("SHOW GLOBAL STATUS LIKE 'Ssl_accepts'")[1].Value)
    end
    local before = accepted()
    assert.is_nil(handle:queue("q"):claim { wait = 0.05 })
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
