-- `database=` in an option file was not taken for a database, while host, user,
-- password and port of the same file were.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

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
