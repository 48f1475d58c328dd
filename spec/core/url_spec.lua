-- Database URLs: what they mean, and what a bad one is told. Seen from Lua:
-- a good one by where it leads, a bad one by its message.

local core = require "nightshift.core"
local db = require "spec.support.db"

local function open(url) return core.open { url = url, no_schema = true, connect_timeout = 300000 } end

local function encode(text)
  return (text:gsub("[^%w]", function(c) return ("%%%02x"):format(c:byte()) end))
end

describe("a database URL", function()
  it("may be encoded in every part", function()
    local name, user, password = "data/base ?#@é", "us:er@x%41", "p/a?s#s@w:ö'\"\\ d%"
    db.sql(("CREATE DATABASE `%s`"):format(name))
    db.sql(([[SET sql_mode = 'NO_BACKSLASH_ESCAPES';
      CREATE USER '%s'@localhost IDENTIFIED BY '%s';
      GRANT ALL ON `%s`.* TO '%s'@localhost]]):format(user, password:gsub("'", "''"), name, user))
    local url = ("MySQL://%s:%s@localhost/%s?unix_socket=%s&connect_timeout=1m&max_payload=4096&")
      :format(encode(user), encode(password), encode(name), encode(db.shared().socket))
    local handle <close> = assert(open(url))
    local rows = assert(handle:execute "SELECT DATABASE() AS db, SUBSTRING_INDEX(USER(), '@', 2) AS user")
    assert.same({ name, user }, { rows[1].db, rows[1].user })
  end)

  it("may have a last @ after others in the password", function()
    db.sql "CREATE USER at@localhost IDENTIFIED BY 'a@b@c'; GRANT ALL ON mysql.* TO at@localhost"
    local handle <close> = assert(open("mariadb://at:a@b@c@localhost/mysql?unix_socket=" .. db.shared().socket))
    assert.is_true(handle:is_open())
  end)

  it("takes IPv6 in brackets, with and without a port", function()
    for _, host in ipairs { "[::1]:1", "[%3a%3a1]:1" } do
      local none, message, code = open("mysql://u:secret@" .. host .. "/x")
      assert.same({ nil, "GONE" }, { none, code })
      assert.is_truthy(message:find("::1", 1, true), message)
    end
    assert.equal("GONE", select(3, open "mysql://[::1]/x?connect_timeout=300ms"))
  end)

  local bad = {
    { "", "must begin with mysql:// or mariadb://" },
    { "postgres://u:secret@h/x", "must begin with mysql:// or mariadb://" },
    { "mysql:/h/x", "must begin with mysql:// or mariadb://" },
    { "mysql://u:secret@h:port/x", "port is not a number from 1 to 65535" },
    { "mysql://h:0/x", "port is not a number" },
    { "mysql://h:65536/x", "port is not a number" },
    { "mysql://h:99999999999999999999/x", "port is not a number" },
    { "mysql://::1/x", "port is not a number" },
    { "mysql://[::1/x", "an IPv6 host is written [address]" },
    { "mysql://[]/x", "an IPv6 host is written [address]" },
    { "mysql://[::1]x/y", "an IPv6 host is written [address]" },
    { "mysql://h/a/b", "more than one /" },
    { "mysql://h/x%zz", "database name a % is not followed by two hexadecimal digits" },
    { "mysql://u:secret%@h/x", "password a % is not followed" },
    { "mysql://u%4@h/x", "user name a % is not followed" },
    { "mysql://h/x%00y", "database name contains a NUL" },
    { "mysql://u:%00@h/x", "password contains a NUL" },
    { "mysql://h%0a/x", "host contains a control character" },
    { "mysql://h/x y", "a space or a control character" },
    { "mysql://h/x\n", "a space or a control character" },
    { "mysql://u:12/secret@h/x", "an @ stands behind the host" },
    { "mysql://u:pass/secret@h/x", "an @ stands behind the host" },
    { "mysql://u:pass?secret@h/x", "an @ stands behind the host" },
    { "mysql://u:12#secret@h/x", "contains a #" },
    { "mysql://h/x?passwrod=secret1", "unknown key 'passwrod'; the keys are ca, cert, connect_timeout, file" },
    { "mysql://h/x?%27;=1", "unknown key; the keys are" },
    { "mysql://h/x?ca", "ca has no value" },
    { "mysql://h/x?tls=", "tls has no value" },
    { "mysql://h/x?ca=1&ca=2", "ca is given twice" },
    { "mysql://h/x?tls=maybe", "tls must be off, verify or trust, got 'maybe'" },
    { "mysql://h/x?connect_timeout=soon", "connect_timeout: bad duration 'soon'" },
    { "mysql://h/x?connect_timeout=0", "connect_timeout must be above zero" },
    { "mysql://h/x?max_payload=-1", "max_payload must be a number of bytes" },
    { "mysql://h/x?max_payload=1e6", "max_payload must be a number of bytes, got '1e6'" },
    { "mysql://h/x?max_payload=99999999999", "max_payload must be a number of bytes" },
  }
  for _, case in ipairs(bad) do
    it(("refuses %q and says why"):format(case[1]), function()
      local none, message, code = open(case[1])
      assert.same({ nil, "INVALID" }, { none, code })
      assert.is_truthy(message:find(case[2], 1, true), message)
      assert.is_nil(message:find "secret[^1]")
      assert.is_nil(message:find "secret$")
    end)
  end

  it("never crashes the parser, whatever its bytes", function()
    math.randomseed(20)
    local pieces = { "mysql://", "mariadb://", "u", ":", "@", "/", "?", "&", "=", "%", "%4", "%41", "[", "]", "#", "ca",
      "tls", "port", "\255", "\1", "::", "12", "" }
    for _ = 1, 3000 do
      local parts = { "mysql://" }
      for i = 2, math.random(2, 12) do parts[i] = pieces[math.random(#pieces)] end
      -- A socket that is not there keeps a good one from connecting.
      local none, message, code = core.open { url = table.concat(parts), socket = "/nonexistent/s", database = "x",
        no_schema = true }
      assert.is_nil(none)
      assert.is_truthy((code == "INVALID" or code == "GONE") and #message > 0, message)
    end
  end)
end)
