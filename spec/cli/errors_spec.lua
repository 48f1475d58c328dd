-- What the command line says when the database is not as it should be: one
-- clear line on stderr, exit code 69 when unreachable, 78 when misconfigured.

local proc = require "spec.support.proc"
local server = require "spec.support.db"

local function run(argv, url)
  local exit, out, err = proc.nightshift(argv, url)
  return { exit = exit, out = out, err = err }
end

local READ = { { "status" }, { "jobs" }, { "show", "1" }, { "why", "1" }, { "push", "q", "n", "1" }, { "retry", "1" },
  { "cancel", "1" }, { "run-now", "1" }, { "signal", "1", "1" }, { "pause", "q" }, { "resume", "q" }, { "prune" },
  { "migrate" }, { "init" } }

local function expect(result, exit, ...)
  assert.equal(exit, result.exit, result.err .. result.out)
  assert.equal("", result.out)
  assert.is_truthy(result.err:find "^nightshift: [^\n]+\n$", result.err)
  for _, text in ipairs { ... } do assert.is_truthy(result.err:find(text, 1, true), result.err) end
end

describe("the command line", function()
  it("exits 69 with every command when the server is down", function()
    for _, argv in ipairs(READ) do
      expect(run(argv, "mysql://root@localhost/x?unix_socket=/nonexistent/s.sock"), 69,
        "/nonexistent/s.sock", "(GONE)")
    end
  end)

  it("exits 69 for an unknown host and a closed port", function()
    expect(run({ "status" }, "mysql://x@no-such-host.invalid/x"), 69, "no-such-host.invalid", "(GONE)")
    expect(run({ "status" }, "mysql://x@127.0.0.1:1/x"), 69, "(GONE)")
  end)

  it("exits 78 for a bad URL, without its password", function()
    local result = run({ "status" }, "postgres://me:hunter2@x/y")
    expect(result, 78, "(INVALID)")
    assert.is_nil(result.err:find("hunter2", 1, true))
    expect(run({ "status" }, "mysql://localhost/x?sokcet=1"), 78, "sokcet")
  end)

  it("exits 78 for a wrong password, without showing it", function()
    local url, user = server.user(server.fresh(), "SELECT")
    local result = run({ "status" }, (url:gsub("Pass%-word_1", "hunter2")))
    expect(result, 78, user, "(DENIED)")
    assert.is_nil(result.err:find("hunter2", 1, true))
  end)

  it("exits 78 when a privilege is missing", function()
    local url = server.fresh()
    expect(run({ "status" }, (server.user(url, ""))), 78, "(DENIED)")
    local reader = server.user(url, "SELECT")
    expect(run({ "push", "q", "n", "1" }, reader), 78, "(DENIED)")
    assert.equal(0, run({ "jobs" }, reader).exit)
  end)

  it("exits 78 when the database is missing", function()
    expect(run({ "status" }, server.url "no_such_database"), 78, "no_such_database")
  end)

  it("exits 78 when the tables are missing, older or newer, and says what to run", function()
    local url, name = server.empty()
    expect(run({ "status" }, url), 78, "nightshift init", "(SCHEMA)")
    assert.matches("^created the tables, version %d+\n$", run({ "init" }, url).out)
    assert.matches("^the tables are of version %d+ already; procedures and views were made anew\n$",
      run({ "init" }, url).out)
    server.sql("UPDATE nightshift_meta SET value = '99' WHERE name = 'schema'", name)
    expect(run({ "push", "q", "n", "1" }, url), 78, "99", "newer", "(SCHEMA)")
    expect(run({ "migrate" }, url), 78, "newer", "(SCHEMA)")
    server.sql("UPDATE nightshift_meta SET value = '0' WHERE name = 'schema'", name)
    expect(run({ "status" }, url), 78, "run `nightshift", "(SCHEMA)")
  end)

  it("exits 1 when the answer cannot be written", function()
    if not io.open "/dev/full" then return pending "no /dev/full" end
    local exit, _, err = proc.run { "sh", "-c", "exec " .. proc.program .. " init --print > /dev/full" }
    assert.equal(1, exit)
    assert.is_truthy(err:find("cannot write", 1, true), err)
  end)
end)
