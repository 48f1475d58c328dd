-- Choosing the database: URLs, option files, and names that are not ASCII.

local core = require "nightshift.core"
local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

-- Database URLs: what they mean, and what a bad one is told. Seen from Lua:
-- a good one by where it leads, a bad one by its message.
describe("a database URL", function()
  local function open(url) return core.open { url = url, no_schema = true, connect_timeout = 300000 } end

  local function encode(text)
    return (text:gsub("[^%w]", function(c) return ("%%%02x"):format(c:byte()) end))
  end

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

  it("takes the path of a unix socket for a host", function()
    local handle <close> = assert(open(("mysql://%s@%s/mysql"):format(db.account, encode(db.shared().socket))))
    assert.is_true(handle:is_open())
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
    { "mysql://a,,b/x", "one is empty" },
    { "mysql://a,b,/x", "one is empty" },
    { "mysql://a%2Cb/x", "the host contains an encoded comma" },
    { "mysql://a,b%2Cc/x", "has a comma of its own" },
    { "mysql://u:secret@a:port,b/x", "the port of one is not a number from 1 to 65535" },
    { "mysql://a:65536,b/x", "the port of one is not a number" },
    { "mysql://[::1,b/x", "one is no address" },
    { "mysql://[]:1,b/x", "one is no address" },
    { "mysql://[::1]x,b/x", "one is no address" },
    { "mysql://" .. ("a"):rep(256) .. ",b/x", "one is too long" },
    { "mysql://a,b/x?unix_socket=/s", "unix_socket is of one server" },
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
    { "mysql://a,u:secret/x", "the port of one is not a number" },
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
    for _ = 1, proc.cases(3000) do
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

-- `database=` in an option file was not taken for a database, while host, user,
-- password and port of the same file were.
describe("a database that an option file names", function()
  local url, name, file

  before_each(function()
    url, name = db.fresh()
    file = fixture.file("my.cnf", ("[client]\nsocket=%s\nuser=root\ndatabase=%s\n[other]\ndatabase=nowhere\n"):format(
      url:match "unix_socket=([^&]*)", name))
  end)

  local function where(options)
    local handle <close> = assert(nightshift.open(options))
    return handle:execute("SELECT DATABASE() AS db")[1].db
  end

  it("is used when nothing else names one", function()
    assert.equal(name, where { file = file })
    assert.equal(name, where { url = "mysql:///?file=" .. file })
    assert.equal(name, where { url = "mysql://localhost?file=" .. file })
    local exit, out, err = proc.nightshift({ "status" }, "mysql:///?file=" .. file)
    assert.equal(0, exit, err)
    assert.is_truthy(out)
  end)

  it("is not used when the URL names one", function()
    local _, other = db.fresh()
    assert.equal(other, where { url = "mysql:///" .. other .. "?file=" .. file })
  end)

  it("is named when it does not exist", function()
    local none, message, code = nightshift.open { file = file, group = "other" }
    assert.same({ nil, "SCHEMA" }, { none, code })
    assert.is_truthy(message:find("'nowhere' does not exist", 1, true), message)
  end)

  it("that nobody names is asked for", function()
    local socket = url:match "unix_socket=([^&]*)"
    local plain = fixture.file("plain.cnf", ("[client]\nsocket=%s\nuser=root\n"):format(socket))
    local none, message, code = nightshift.open { file = plain }
    assert.is_nil(none)
    assert.is_truthy(message:find("no database is named", 1, true), message)
    assert.equal("INVALID", code)
  end)
end)

-- A server may give every client a character set of its own
-- (skip-character-set-client-handshake). It reads the database's name at the connect in that
-- one: `bühne` was unknown.
describe("a database whose name is not ASCII", function()
  local host = require "spec.support.host"

  local NAME = "bühne-日本"

  local server

  setup(function()
    server = db.server "character-set-server=latin1\nskip-character-set-client-handshake\n"
    server:sql(("CREATE DATABASE `%s`"):format(NAME))
  end)

  it("is found, whatever character set a server gives its clients", function()
    local url = server:url(NAME)
    assert.equal(0, (proc.nightshift({ "init" }, url)))
    local encoded = url:gsub("[\x80-\xFF]", function(byte) return ("%%%02X"):format(byte:byte()) end)
    local options = ("[client]\nuser=root\nsocket=%s\ndatabase=%s\n"):format(server.socket, NAME)
    options = fixture.file("my.cnf", options)
    for _, to in ipairs { url, encoded, "file", false } do
      local handle <close> = assert(nightshift.open(to == "file" and { file = options } or to or
        { user = "root", socket = server.socket, database = NAME }))
      assert.equal(NAME, handle:execute("SELECT DATABASE() AS name")[1].name)
      local id = assert(handle:queue "q":push("echo", "ü 😀"))
      assert.equal(0, (host.drain(url, [[return { echo = function(job)
        return { job.payload, job:db():execute("SELECT DATABASE() AS name")[1].name }
      end }]])))
      assert.same({ "ü 😀", NAME }, handle:job(id).result)
    end
  end)

  it("is named where it is not there, or not ours", function()
    server:sql "CREATE USER weak@localhost"
    for code, to in pairs { SCHEMA = server:url "böse", DENIED = server:url(NAME, "weak") } do
      local none, message, got = nightshift.open(to)
      assert.same({ code = code }, { none, code = got })
      assert.is_truthy(message:find(db.name(to), 1, true), message)
    end
  end)
end)

-- db:execute said SCHEMA (tables of Nightshift's are missing) of the caller's own, ran the
-- library's statements for texts that begin with "@". And a name of a database that the server
-- refuses was GONE, which programs wait out for ever.
describe("codes:", function()
  local handle, url

  with_database(function(opened, _, at) handle, url = opened, at end)

  local function code_of(sql, ...) return (select(3, handle:execute(sql, ...))) end

  describe("the code of db:execute", function()
    it("is SQL when a table or routine of the caller's is missing", function()
      assert.equal("SQL", code_of "SELECT 1 FROM my_table")
      assert.equal("SQL", code_of "DROP PROCEDURE nope")
      assert.equal("SQL", code_of "CALL nope()")
      assert.equal("SQL", code_of "SELECT 1 FROM nowhere.my_table")
      local code
      handle:transaction(function(tx) code = select(3, tx:execute "SELECT 1 FROM my_table") end)
      assert.equal("SQL", code)
    end)

    it("is SCHEMA when one of ours is", function()
      assert(handle:execute "DROP VIEW nightshift_jobs")
      assert.equal("SCHEMA", code_of "SELECT 1 FROM nightshift_jobs")
      assert.equal("SCHEMA", code_of "CALL nightshift_pull()")
    end)

    it("is SQL for a text that begins with @, whoever knows it", function()
      for _, text in ipairs { "@x", "@queue_list", "@", "@server_now" } do assert.equal("SQL", code_of(text)) end
    end)
  end)

  describe("a name of a database that the server refuses", function()
    for what, name in pairs { ["is too long"] = ("x"):rep(100), ["is no UTF-8"] = "\xff" } do
      it("is INVALID: it " .. what, function()
        local socket = url:match "unix_socket=([^&]*)"
        local none, message, code = nightshift.open { socket = socket, user = "root", database = name }
        assert.same({ nil, "INVALID" }, { none, code }, message)
        assert.matches("no such name of a database", message)
      end)
    end
  end)
end)

-- Durations as people write them.
describe("a duration", function()
  local SECOND = 1000000

  local function refused(value, why)
    local us, message, code = core.duration(value)
    assert.is_nil(us)
    assert.equal("INVALID", code)
    assert.truthy(message:find(why, 1, true), message)
  end

  it("is a number of seconds", function()
    assert.equal(0, core.duration(0))
    assert.equal(90 * SECOND, core.duration(90))
    assert.equal(1500000, core.duration(1.5))
    assert.equal("integer", math.type(core.duration(1.5)))
  end)

  it("is a text of seconds without a unit", function()
    assert.equal(30 * SECOND, core.duration "30")
    assert.equal(SECOND // 2, core.duration "0.5")
  end)

  it("is a number and a unit", function()
    local texts = {
      ["1us"] = 1, ["500ms"] = 500000, ["5s"] = 5 * SECOND, ["5m"] = 300 * SECOND,
      ["2h"] = 7200 * SECOND, ["2d"] = 2 * 86400 * SECOND, ["1w"] = 7 * 86400 * SECOND, ["0s"] = 0,
    }
    for text, us in pairs(texts) do assert.equal(us, core.duration(text), text) end
  end)

  it("is a sequence of them, from large to small", function()
    assert.equal(5400 * SECOND, core.duration "1h30m")
    assert.equal(((7 + 1) * 86400 + 3600 + 60 + 1) * SECOND + 1001, core.duration "1w1d1h1m1s1ms1us")
  end)

  it("has exact fractions, rounded to the nearest microsecond", function()
    assert.equal(100000, core.duration "0.1s")
    assert.equal(1500000, core.duration "1.5s")
    assert.equal(1, core.duration "0.5us")
    assert.equal(0, core.duration "0.4us")
    assert.equal(333333, core.duration "0.333333333333333333333333333333s")
    assert.equal(604800 * SECOND, core.duration "0.999999999999999999999w")
    assert.equal(86400000001, core.duration "1.00000000001157408d") -- 1 day and 1.0000005 µs
  end)

  it("is refused when it is negative, not a number or endless", function()
    refused(-1, "0 or more")
    refused(-0.001, "0 or more")
    refused("-5m", "negative")
    refused(0 / 0, "not a number")
    refused(1 / 0, "1000 years")
    refused("nan", "number is missing")
    refused("inf", "number is missing")
  end)

  it("is refused when it is longer than 1000 years", function()
    assert.equal(31556952000 * SECOND, core.duration(31556952000))
    assert.equal(31556952000 * SECOND, core.duration "31556952000s")
    refused(31556953000, "1000 years")
    refused("31556952000.1s", "1000 years")
    refused("52178w", "1000 years")
    refused("52177w400d", "1000 years")
    refused(("9"):rep(400), "too long")
    refused(math.maxinteger, "1000 years")
  end)

  it("is refused when it is junk, with an example of a good one", function()
    for _, text in ipairs {
      "", " ", "5 m", " 5m", "5m ", "m", "5x", "5M", "5mm", "1e3", "0x10", "+5", "1.", ".5", "1..5s", "1,5s",
      "5m\0", "\0", "1h30", "30m1h", "5m5m", "1h-5m", "5\xC2\xB5s", ("a"):rep(10000),
    } do refused(text, '"5m"') end
  end)

  it("quotes a bad text safely", function()
    local _, message = core.duration("5\n\27[31m" .. ("x"):rep(1000))
    assert.truthy(message:find("bad duration '5??[31mxxx", 1, true), message)
    assert.is_nil(message:find "%c")
    assert.is_true(#message < 300)
  end)

  it("raises for a value of another type", function()
    assert.has_error(function() core.duration() end)
    assert.has_error(function() core.duration {} end)
    assert.has_error(function() core.duration(true) end)
  end)

  it("reads back whatever random texts it accepts, and never fails otherwise", function()
    math.randomseed(42)
    local alphabet = "0123456789.wdhmsu -"
    for _ = 1, proc.cases(20000) do
      local chars = {}
      for i = 1, math.random(0, 8) do
        local at = math.random(#alphabet)
        chars[i] = alphabet:sub(at, at)
      end
      local us, message, code = core.duration(table.concat(chars))
      if us then
        assert.is_true(us >= 0)
        assert.equal(us, core.duration(us .. "us"))
      else
        assert.equal("INVALID", code)
        assert.is_string(message)
      end
    end
  end)
end)
