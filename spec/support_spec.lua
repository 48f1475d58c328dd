-- The harness itself, which other specs rely on. The checks in C: frames, rings, slots, pacing,
-- batches, names, lines, log lines and looks of the host. And the crash sweep of the shared
-- dict: its process is killed at every store of every change.

local db = require "spec.support.db"
local nst = require "nst"
local proc = require "spec.support.proc"

describe("a process", function()
  it("gives back its status and both outputs", function()
    local status, out, err = proc.run { "sh", "-c", "echo out; echo err >&2; exit 3" }
    assert.same({ 3, "out\n", "err\n" }, { status, out, err })
  end)

  it("gets text, environment and folder", function()
    local dir = fixture.dir()
    local _, out = proc.run { "sh", "-c", "cat; echo $A-$HOME; pwd", stdin = "hello\n", cwd = dir,
      env = { A = "a", HOME = false } }
    assert.equal("hello\na-\n" .. dir .. "\n", out)
  end)

  it("that cannot be started raises with its name", function()
    assert.error_matches(function() proc.start { "/nonexistent/program" } end, "/nonexistent/program: No such file")
  end)

  it("is waited for by what it prints", function()
    local p = proc.start { "sh", "-c", "echo one; sleep 0.2; echo port 42; exec sleep 100" }
    assert.equal("42", p:wait_line "^port (%d+)")
    assert.equal("one", p:wait_line "one")
    p:signal "TERM"
    assert.equal("signal 15", p:wait())
  end)

  it("that ends without the line raises with what it printed", function()
    local p = proc.start { "sh", "-c", "echo other" }
    assert.error_matches(function() p:wait_line "never" end, "no line like \"never\".*other")
  end)

  it("has nothing open but its standard files", function()
    local _, out = proc.run { "sh", "-c", "ls /proc/self/fd | wc -l" }
    assert.equal(4, tonumber(out)) -- and the folder that ls reads
  end)

  it("is killed with its children when it is forgotten", function()
    local p = proc.start { "sh", "-c", "sleep 100 & echo $!; wait" }
    local child = tonumber(p:wait_line "%d+")
    p:forget()
    eventually(function() return not nst.kill(child, "0") or
      io.open("/proc/" .. child .. "/stat"):read "a":find(" Z ", 1, true) end)
  end)
end)

describe("the server", function()
  it("runs SQL and gives rows", function()
    assert.equal("1\tx\n2\tNULL", db.sql "SELECT 1, 'x' UNION SELECT 2, NULL")
    assert.error_matches(function() db.sql "SELECT nonsense" end, "nonsense")
  end)

  it("has a new database with tables for each who asks", function()
    local url, name = db.fresh()
    local _, other = db.fresh()
    assert.not_equal(name, other)
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
    local handle <close> = assert(require "nightshift".open(url))
    assert.is_truthy(handle)
  end)

  it("makes users who may little", function()
    local url, name = db.empty()
    db.sql("CREATE TABLE t (a INT)", name)
    local handle <close> = assert(require "nightshift.core".open { url = db.user(url, "SELECT"), no_schema = true })
    assert.same({}, handle:execute "SELECT * FROM t")
    assert.equal("DENIED", select(3, handle:execute "INSERT INTO t VALUES (1)"))
  end)

  it("of one's own can be stopped, killed and started", function()
    local server = db.server()
    local _, name = server:fresh()
    server:kill()
    assert.error_matches(function() server:sql "SELECT 1" end, "Can't connect")
    server:start()
    assert.equal("0", server:sql("SELECT COUNT(*) FROM nightshift_job", name))
    server:stop()
    assert.is_false(pcall(server.sql, server, "SELECT 1"))
  end)
end)

describe("eventually", function()
  it("gives what the function gave", function()
    local n = 0
    assert.same({ 3, "x" }, { eventually(function()
      n = n + 1
      return n == 3 and n, "x"
    end) })
  end)

  it("raises in the end", function()
    assert.error_matches(function() eventually(function() end, 0.05) end, "not within 0.05 s")
  end)
end)

-- Builds a program of mk/test.mk and runs it; it says each group that it has checked.
local function assert_checks(name, groups)
  local folder = proc.build:gsub("^" .. proc.root:gsub("%p", "%%%0") .. "/", "")
  local status, out, err = proc.run { "/usr/bin/env", "make", "-s", "O=" .. folder, folder .. "/" .. name,
    timeout = 300 }
  assert.equal(0, status, out .. err)
  status, out, err = proc.run { proc.build .. "/" .. name, timeout = 120 }
  assert.equal(0, status, out .. err)
  for _, group in ipairs(groups) do assert.matches(group .. "\n", out, 1, true) end
end

it("the host's pure parts hold", function()
  assert_checks("host-units", {
    "frames", "rings", "bell", "slots", "limits", "pacing", "storms", "batches", "spilling", "names",
    "lines", "log lines", "utf8", "windows", "single",
  })
end)

it("a change of the dict is done or not done, wherever its process is killed", function()
  assert_checks("shared-units", {
    "sizes", "crashes", "crashes in lock and unlock", "the table of locks", "a latch that many want",
  })
end)
