-- A server that gives every client a character set of its own (skip-character-set-client-
-- handshake) reads the database's name at the connect in that one: `bühne` was unknown.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"
local proc = require "spec.support.proc"

local NAME = "bühne-日本"

describe("a database whose name is not ASCII", function()
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
