-- What libmariadb reads from the environment by itself must not matter: a
-- password that nobody gave, option files, plugins to load.

local db = require "spec.support.db"
local proc = require "spec.support.proc"

local TRY = [=[
local nightshift = require "nightshift"
local options = { socket = arg[1], user = arg[2], database = arg[3] }
if arg[4] ~= "" then options[arg[4]] = arg[5] end
local handle, message, code = nightshift.open(options)
print(handle and "open" or code, message or "")
]=]

describe("the environment", function()
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
