-- The command line before any database: usage, help, init --print, version.

local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local server = require "spec.support.db"

local function run(argv, url)
  local exit, out, err = proc.nightshift(argv, url)
  return { exit = exit, out = out, err = err }
end

describe("usage", function()
  it("is exit code 2, a line on stderr and nothing on stdout", function()
    local cases = {
      { {}, "nightshift: a command is required" },
      { { "pussh" }, "unknown command 'pussh', did you mean 'push'?" },
      { { "push" }, "missing argument 'queue'" },
      { { "push", "q" }, "missing argument 'name'" },
      { { "push", "q", "n", "1", "extra" }, "too many arguments" },
      { { "push", "q", "n", "1", "--delayy", "5" }, "unknown option '--delayy', did you mean '--delay'?" },
      { { "push", "q", "n", "1", "--priority", "high" }, "'high' is not a whole number" },
      { { "push", "q", "n", "1", "--priority" }, "option '--priority' requires an argument" },
      { { "push", "q", "n", "{x" }, "the payload: not JSON: line 1, column 2" },
      { { "push", "q", "n", "" }, "the payload: not JSON" },
      { { "show", "12x" }, "'12x' is not a job id" },
      { { "push", "q", "n", "1", "--priority", "300" }, "priority must be a whole number from 0 to 255, got 300" },
      { { "push", "q", "n", "1", "--priority", "-1" }, "priority must be a whole number from 0 to 255, got -1" },
      { { "push", "q", "n", "1", "--delay", "x" }, "delay: bad duration 'x'" },
      { { "push", "q", "n", "1", "--delay", "-5" }, "delay: bad duration '-5'" },
      { { "push", "q", "n", "1", "--delay", "-.5s" }, "delay: bad duration '-.5s'" },
      { { "push", "q", "n", "1", "--timeout", "0" }, "timeout must be at least a microsecond, got 0" },
      { { "push", "q", "n", "1", "--unique", "" }, "unique is empty" },
      { { "push", "", "n", "1" }, "queue name is empty" },
      { { "push", "q", "n\n", "1" }, "job name has a control character at byte 2" },
      { { "push", "q", "n", "-5x" }, "the payload: not JSON" },
      { { "jobs", "--limit", "0" }, "limit must be a whole number from 1 to 2147483648, got 0" },
      { { "jobs", "--limit", "-3" }, "limit must be a whole number from 1 to 2147483648, got -3" },
      { { "pause", "" }, "queue name is empty" },
      { { "cancel", "1", "--reason", "\xff" }, "--reason is not valid UTF-8 at byte 1" },
      { { "show", "-1" }, "'-1' is not a job id" },
      { { "retry", "5", "-1" }, "'-1' is not a job id" },
      { { "-1" }, "unknown command '-1'" },
      { { "push", "q", "n", "1", "-5" }, "too many arguments" },
      { { "rescue", "--wait", "-1" }, "--wait: bad duration '-1'" },
      { { "prune", "--done", "-1d" }, "--done: bad duration '-1d'" },
      { { "run", "n", "--script", "x.lua", "--polls", "-1" }, "--polls must be a whole number from 0" },
      { { "run", "n", "--script", "x.lua", "--attempt", "0" }, "--attempt must be a whole number from 1" },
      { { "show", "0" }, "'0' is not a job id" },
      { { "show", "99999999999999999999" }, "is not a job id" },
      { { "jobs", "--state", "deceased" }, "must be one of 'scheduled', 'ready'" },
      { { "retry" }, "give either job ids or a filter" },
      { { "cancel", "5", "--queue", "q" }, "give either job ids or a filter" },
      { { "run-now" }, "missing argument 'id'" },
      { { "signal", "x", "1" }, "'x' is not a job id" },
      { { "signal", "1", "{" }, "the value: " },
      { { "signal", "1", "1", "--name", "" }, "signal name is empty" },
      { { "work" }, "missing argument 'files'" },
      { { "work", "x.lua", "--workers", "0" }, "--workers must be from 1 to 20000, got 0" },
      { { "work", "x.lua", "--workers", "-1" }, "--workers must be from 1 to 20000, got -1" },
      { { "work", "x.lua", "--memory", "-1" }, '--memory must be bytes or a text like "64M" (K, M, G), got -1' },
      { { "work", "x.lua", "--memory", "1K" }, "--memory must be at least 64K, got 1K" },
      { { "work", "x.lua", "--memory", "99999999999G" },
        "--memory is too large: at most 1048576G, got 99999999999G" },
      { { "work", "x.lua", "--memory", "99999999999999999999" }, "--memory is too large: at most 1048576G" },
      { { "work", "x.lua", "--queues", "a=many" }, "--queues: the weight of 'a' must be from 1 to 1000, got 'many'" },
      { { "work", "x.lua", "--queues", "a=" }, "--queues: the weight of 'a' must be from 1 to 1000, got ''" },
      { { "work", "x.lua", "--workers", "many" }, "'many' is not a whole number" },
      { { "work", "x.lua", "--queues", "a=3,a" }, "--queues: 'a' is named twice" },
      { { "work", "x.lua", "--queues", "a=0" }, "--queues: the weight of 'a' must be from 1 to 1000, got '0'" },
      { { "work", "x.lua", "--queues", "a,,b" }, "--queues: queue name is empty" },
      { { "work", "x.lua", "--queues", ("q"):rep(65) }, "--queues: queue name has 65 bytes, the limit is 64" },
      { { "work", "x.lua", "--drain-within", "soon" }, "--drain-within: bad duration 'soon'" },
      { { "work", "x.lua", "--log", "xml" }, "must be one of 'text', 'json'" },
      { { "prune", "--done", "x" }, "--done: bad duration 'x'" },
      { { "run", "name" }, "missing option '--script'" },
    }
    for _, case in ipairs(cases) do
      local result = run(case[1])
      assert.equal(2, result.exit, table.concat(case[1], " ") .. "\n" .. result.err)
      assert.is_truthy(result.err:find("^nightshift: "), result.err)
      assert.is_truthy(result.err:find(case[2], 1, true), result.err)
      assert.equal("", result.out)
    end
  end)

  it("is wrong before any server is asked", function()
    local nobody = "mysql://root@localhost/x?unix_socket=/nonexistent/s.sock"
    for _, argv in ipairs { { "push", "q", "n", "1", "--priority", "300" }, { "push", "", "n" }, { "pause", "" },
      { "jobs", "--limit", "0" }, { "cancel", "1", "--reason", "\xff" } } do
      assert.equal(2, run(argv, nobody).exit, table.concat(argv, " "))
    end
  end)

  it("is explained by --help, for all and for each command", function()
    local result = run({ "--help" })
    assert.equal(0, result.exit)
    for _, command in ipairs { "init", "migrate", "work", "push", "run", "status", "jobs", "show", "retry", "cancel",
      "run-now", "signal", "pause", "resume", "prune", "version" } do
      assert.is_truthy(result.out:find("\n   " .. command:gsub("-", "%%-") .. " "), command)
      local help = run({ command, "--help" })
      assert.equal(0, help.exit)
      assert.is_truthy(help.out:find("^Usage: nightshift " .. command:gsub("-", "%%-")), help.out)
    end
  end)
end)

describe("version", function()
  it("never fails, with or without a server", function()
    local result = run({ "version" })
    assert.equal(0, result.exit)
    assert.is_truthy(result.out:find "^nightshift +%d+%.%d+")
    assert.is_truthy(result.out:find("not asked", 1, true))
    result = run({ "version" }, "mysql://x@localhost/x?unix_socket=/nonexistent")
    assert.equal(0, result.exit)
    assert.is_truthy(result.out:find("not reached", 1, true), result.out)
    assert.is_truthy(result.out:find("GONE", 1, true), result.out)
    assert.equal(0, run({ "version" }, "nonsense").exit)
  end)

  it("tells of library, tables and server", function()
    local url, name = server.fresh()
    local facts = nightshift.decode(run({ "version", "--json" }, url).out)
    local schema = require "nightshift.core".schema()
    local newest = schema[#schema].version
    assert.same({ newest, newest, name }, { facts.schema, facts.tables, facts.database })
    assert.is_truthy(facts.server:find "MariaDB")
    assert.is_nil(facts.error)
  end)

  it("says that it may not look where it may not", function()
    local url, name = server.fresh()
    local weak, user = server.user(url, "")
    server.sql(("GRANT EXECUTE ON PROCEDURE nightshift_ring TO %s@localhost"):format(user), name)
    local result = run({ "version" }, weak)
    assert.equal(0, result.exit)
    assert.is_truthy(result.out:find("this user may not look at the version of the tables", 1, true), result.out)
    assert.is_nil(result.out:find("none", 1, true), result.out)
    local facts = nightshift.decode(run({ "version", "--json" }, weak).out)
    assert.same({ "DENIED", name }, { facts.tables_code, facts.database })
    assert.is_nil(facts.tables)
    assert.is_truthy(run({ "version" }, (server.empty())).out:find("tables of version none", 1, true))
  end)
end)

describe("init --print", function()
  it("needs no database and names every statement", function()
    local result = run({ "init", "--print" })
    assert.equal(0, result.exit)
    assert.is_truthy(result.out:find("\n-- version 1: create_job\nCREATE TABLE nightshift_job", 1, true))
  end)

  it("gives tables that the library accepts", function()
    local url, name = server.empty()
    server.sql(run({ "init", "--print" }).out, name)
    local result = run({ "push", "q", "n", "1" }, url)
    assert.equal("", result.err)
    assert.equal(0, result.exit)
    assert.matches("^the tables are of version %d+ already; procedures and views were made anew\n$",
      run({ "migrate" }, url).out)
  end)
end)

describe("a command without the module argparse", function()
  it("says how to get it, and ends with 78", function()
    local folder = proc.folder()
    assert(io.open(folder .. "/argparse.lua", "w")):write('error "not here"'):close()
    local path = ("%s/?.lua;%s/lua/?.lua;%s/lua/?/init.lua;;"):format(folder, proc.root, proc.root)
    local exit, out, err = proc.nightshift({ "status" }, nil, { env = { LUA_PATH = path } })
    assert.same({ 78, "" }, { exit, out })
    assert.is_truthy(err:find("apt-get install lua-argparse", 1, true), err)
  end)
end)
