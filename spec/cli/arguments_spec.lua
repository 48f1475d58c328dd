-- The command line without a database, or with a faulty one: usage, help, version, errors. Also
-- `nightshift run`.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- What a command says of itself, or all do: "nightshift NAME --help", run once.
local HELPS = {}
local function help_of(name)
  if not HELPS[name or 1] then
    local exit, out = proc.nightshift { name or "--help", name and "--help" }
    assert.equal(0, exit)
    HELPS[name or 1] = out
  end
  return HELPS[name or 1]
end

-- The command line before any database: usage, help, init --print, version.
describe("without a database:", function()
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
        { { "push", "q", '{"a": 1}' }, "is no job's name but a payload; say QUEUE NAME PAYLOAD" },
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
        { { "run-now" }, "give either job ids or a filter" },
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
        { { "work", "x.lua", "--log", "xml" }, "must be one of 'logfmt', 'json'" },
        { { "prune", "--done", "x" }, "--done: bad duration 'x'" },
        { { "run", "name" }, "run wants FILE NAME [JSON]; it got 'name' alone" },
        { { "run", "a", "1", "2", "--script", "x.lua" }, "with --script run wants NAME [JSON] alone" },
      }
      for i, case in ipairs(cases) do
        local program = case[1][1] == "work" or i % 10 == 1 -- some see the whole program, as all of a host do
        local exit, out, err = (program and proc.nightshift or proc.command_line)(case[1])
        assert.equal(2, exit, table.concat(case[1], " ") .. "\n" .. err)
        assert.is_truthy(err:find "^nightshift: ", err)
        assert.is_truthy(err:find(case[2], 1, true), err)
        assert.equal("", out)
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
      for _, command in ipairs { "init", "migrate", "work", "push", "run", "status", "jobs", "show", "retry", "cancel",
        "run-now", "signal", "pause", "resume", "prune", "version" } do
        assert.is_truthy(help_of():find("\n   " .. command:gsub("-", "%%-") .. " "), command)
        local help = help_of(command)
        assert.is_truthy(help:find("^Usage: nightshift " .. command:gsub("-", "%%-")), help)
      end
    end)
  end)

  it("knows the module of each command", function()
    local expected, modules = {}, require "nightshift.cli".module_of
    for path in io.popen "ls lua/nightshift/cli/*.lua":lines() do
      local name = path:match "(%l+)%.lua$"
      local commands = name ~= "init" and require("nightshift.cli." .. name).commands
      for command in pairs(commands or {}) do expected[command] = name end
    end
    assert.same(expected, modules)
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
      local url, name = db.fresh()
      local facts = nightshift.decode(run({ "version", "--json" }, url).out)
      local schema = require "nightshift.core".schema()
      local newest = schema[#schema].version
      assert.same({ newest, newest, name }, { facts.schema, facts.tables, facts.database })
      assert.is_truthy(facts.server:find "MariaDB")
      assert.is_nil(facts.error)
    end)

    it("says that it may not look where it may not", function()
      local url, name = db.fresh()
      local weak, user = db.user(url, "")
      db.sql(("GRANT EXECUTE ON PROCEDURE nightshift_ring TO %s@localhost"):format(user), name)
      local result = run({ "version" }, weak)
      assert.equal(0, result.exit)
      assert.is_truthy(result.out:find("this user may not look at the version of the tables", 1, true), result.out)
      assert.is_nil(result.out:find("none", 1, true), result.out)
      local facts = nightshift.decode(run({ "version", "--json" }, weak).out)
      assert.same({ "DENIED", name }, { facts.tables_code, facts.database })
      assert.is_nil(facts.tables)
      assert.is_truthy(run({ "version" }, (db.empty())).out:find("tables of version none", 1, true))
    end)
  end)

  describe("init --print", function()
    it("needs no database and names every statement", function()
      local result = run({ "init", "--print" })
      assert.equal(0, result.exit)
      assert.is_truthy(result.out:find("\n-- version 1: create_job\nCREATE TABLE nightshift_job", 1, true))
    end)

    it("gives tables that the library accepts", function()
      local url, name = db.empty()
      db.sql(run({ "init", "--print" }).out, name)
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
end)

-- What the command line says when the database is not as it should be. One clear line on
-- stderr, exit code 69 when unreachable, 78 when misconfigured.
describe("the command line", function()
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
    local url, user = db.user(db.fresh(), "SELECT")
    local result = run({ "status" }, (url:gsub("Pass%-word_1", "hunter2")))
    expect(result, 78, user, "(DENIED)")
    assert.is_nil(result.err:find("hunter2", 1, true))
  end)

  it("exits 78 when a privilege is missing", function()
    local url = db.fresh()
    expect(run({ "status" }, (db.user(url, ""))), 78, "(DENIED)")
    local reader = db.user(url, "SELECT")
    expect(run({ "push", "q", "n", "1" }, reader), 78, "(DENIED)")
    assert.equal(0, run({ "jobs" }, reader).exit)
  end)

  it("exits 78 when the database is missing", function()
    expect(run({ "status" }, db.url "no_such_database"), 78, "no_such_database")
  end)

  it("exits 78 when the tables are missing, older or newer, and says what to run", function()
    local url, name = db.empty()
    expect(run({ "status" }, url), 78, "nightshift init", "(SCHEMA)")
    assert.matches("^created the tables, version %d+\n$", run({ "init" }, url).out)
    assert.matches("^the tables are of version %d+ already; procedures and views were made anew\n$",
      run({ "init" }, url).out)
    db.sql("UPDATE nightshift_meta SET value = '99' WHERE name = 'schema'", name)
    expect(run({ "push", "q", "n", "1" }, url), 78, "99", "newer", "(SCHEMA)")
    expect(run({ "migrate" }, url), 78, "newer", "(SCHEMA)")
    db.sql("UPDATE nightshift_meta SET value = '0' WHERE name = 'schema'", name)
    expect(run({ "status" }, url), 78, "run `nightshift", "(SCHEMA)")
  end)

  it("exits 1 when the answer cannot be written", function()
    if not io.open "/dev/full" then return pending "no /dev/full" end
    local exit, _, err = proc.run { "sh", "-c", "exec " .. proc.program .. " init --print > /dev/full" }
    assert.equal(1, exit)
    assert.is_truthy(err:find("cannot write", 1, true), err)
  end)
end)

-- A command that only reads made a private database where it found none, 115 MB of it,
-- and said that there was no such job. `nightshift --help` listed its commands in another
-- order now and then. HUP, sent while `nightshift --url … work` started, ended it.
describe("before there is a database:", function()
  local url
  with_database(function(_, _, address) url = address end)

  local function there(folder)
    local home <close> = io.open(folder .. "/.nightshift")
    return home ~= nil
  end

  describe("a command that looks at jobs where there is no database", function()
    for _, args in ipairs { { "status" }, { "show", "5" }, { "jobs" }, { "why", "5" }, { "cancel", "5" },
      { "doctor" }, { "prune" }, { "pause", "q" } } do
      it("says where it looked and how to make one: " .. args[1], function()
        local folder = fixture.dir()
        local status, _, err = proc.nightshift(args, nil, { cwd = folder })
        assert.equal(78, status)
        assert.matches("--url.*%$NIGHTSHIFT_URL.*" .. folder:gsub("%p", "%%%0") .. ".*nightshift init", err)
        assert.is_false(there(folder))
      end)
    end
  end)

  describe("nightshift --help", function()
    it("is the same each time", function()
      local _, first = proc.nightshift { "--help" }
      for _ = 1, 8 do assert.equal(first, (select(2, proc.nightshift { "--help" }))) end
    end)
  end)

  -- What /proc says of HUP in process 'pid': "waits", "heard" or "ends it".
  local function hup(pid)
    local file <close> = io.open(("/proc/%d/status"):format(pid))
    local text = file and file:read "a" or ""
    local function has(field) return tonumber(text:match(field .. ":%s*(%x+)") or "0", 16) & 1 == 1 end
    return has "SigBlk" and "waits" or has "SigCgt" and "heard" or "ends it"
  end

  describe("a host that is being started with an option before its command", function()
    it("has HUP wait until it listens", function()
      local file = fixture.file("jobs.lua", "return { noop = function() end }")
      local waited = 0
      for _ = 1, 10 do
        local h = proc.start { proc.program, "--url", url, "work", file, "--workers", "1" }
        local stop = nst.clock() + 10
        while hup(h.pid) == "ends it" and nst.clock() < stop do end
        waited = waited + (hup(h.pid) == "waits" and 1 or 0)
        h:signal "HUP"
        h:wait_line("event=host.ready", 20)
        h:signal "TERM"
        assert.equal(0, h:wait(20))
        if waited > 1 then break end
      end
      assert.is_true(waited > 0)
    end)
  end)
end)

-- `nightshift run`: one handler inline, its verdict on stdout, no queue.
describe("run", function()
  local script

  local HANDLERS = [[
local nightshift = require "nightshift"
return {
  double = function(job)
    job:log("doubling \27[31m")
    job:progress(0.5, "half")
    return { twice = job.payload * 2 }
  end,
  none = function() end,
  parent = function(job)
    job:spawn("double", { n = 1 })
    return job:ack "spawned"
  end,
  later = function(job) return job:again("5m", { seen = job.state, polls = job.polls }) end,
  stop = function(job) return job:discard "no such user" end,
  broken = function(job)
    local function deep() error { code = 5 } end
    deep()
  end,
  unstorable = function() return { f = print } end,
  ["video.encode"] = nightshift.background {
    start = function(job) return { pid = job.payload } end,
    poll = function(job, op)
      if job.polls < 2 then return job:again() end
      return { pid = op.pid, from = job.payload }
    end,
    every = 5, growth = 2, jitter = 0,
  },
}
]]

  setup(function() script = fixture.file("jobs.lua", HANDLERS) end)

  local function run_of(file, ...)
    local exit, out, err = proc.nightshift { "run", "--script", file, ... }
    return { exit = exit, out = out, err = err }
  end

  local function run(...) return run_of(script, ...) end

  it("prints the result, and the job's own words on stderr", function()
    local result = run("double", "21")
    assert.same({ 0, 'ack {"twice":42}\n', "log doubling \\x1b[31m\nprogress 50% half\n" },
      { result.exit, result.out, result.err })
    assert.equal("ack\n", run("none").out)
  end)

  it("prints children and verdicts", function()
    assert.equal('ack "spawned"\nspawn 2 double {"n":1}\n', run("parent").out)
    local later = run("later", "--state", "[1]", "--polls", "3").out
    assert.same({ polls = 3, seen = { 1 } }, nightshift.decode(later:match "^again in 5m0s ({.*})\n$"))
    local result = run "stop"
    assert.same({ 1, "discard: no such user\n" }, { result.exit, result.out })
  end)

  it("runs a poll of a background handler by itself", function()
    local wrapped = '{"payload":7,"operation":{"pid":9}}'
    assert.equal("again in 5.0s\n", run("video.encode:poll", wrapped).out)
    assert.equal("again in 10s\n", run("video.encode:poll", wrapped, "--polls", "1").out)
    local last = run("video.encode:poll", wrapped, "--polls", "2").out
    assert.same({ pid = 9, from = 7 }, nightshift.decode(last:match "^ack ({.*})\n$"))
  end)

  it("shows a traceback of the handler and nothing of us", function()
    local result = run "broken"
    assert.equal(1, result.exit)
    assert.equal("", result.out)
    assert.is_truthy(result.err:find('nightshift: broken raised: {"code":5}\nstack traceback:\n', 1, true), result.err)
    assert.is_truthy(result.err:find "jobs.lua:%d+: in .-deep")
    assert.is_nil(result.err:find "run%.lua")
  end)

  it("says why a result cannot be stored", function()
    local result = run "unstorable"
    assert.equal(1, result.exit)
    assert.is_truthy(result.err:find("result.f: cannot encode a function", 1, true), result.err)
  end)

  it("names the known handlers for an unknown one", function()
    local result = run "duoble"
    assert.equal(1, result.exit)
    assert.is_truthy(result.err:find("no handler named 'duoble'; known: broken, double", 1, true), result.err)
    assert.is_truthy(result.err:find("did you mean 'double'?", 1, true), result.err)
  end)

  it("exits 78 for a script that does not load, with file and line", function()
    local cases = {
      { "return {", "bad.lua:1:" },
      { "\nerror 'at load'", "bad.lua:2:" },
      { "local x = 1", "must return a table of handlers" },
      { "return { a = 5 }", "handler 'a' is a number" },
    }
    for _, case in ipairs(cases) do
      local result = run_of(fixture.file("bad.lua", case[1]), "a")
      assert.equal(78, result.exit, result.err)
      assert.is_truthy(result.err:find(case[2], 1, true), result.err)
    end
    local result = run_of("/nonexistent/jobs.lua", "a")
    assert.equal(78, result.exit)
    assert.is_truthy(result.err:find("/nonexistent/jobs.lua", 1, true), result.err)
  end)
end)

-- `nightshift run` gave handlers no phase, no results and no signal. A background handler that
-- waits, every parent and every wait for a signal broke in it or took the wrong way.
describe("run", function()
  local script

  setup(function()
    script = fixture.file("jobs.lua", [[
local nightshift = require "nightshift"
local polls = 0
local function op(wait)
  return nightshift.background {
    start = function(job) return { pid = job.payload } end,
    poll = function(job, operation)
      if job.polls < 2 then return job:again() end
      return { pid = operation.pid, from = job.payload, polls = job.polls }
    end,
    every = 0.01, jitter = 0, wait = wait,
  }
end
return {
  ["op.loose"] = op(false), ["op.tied"] = op(true),
  ["op.late"] = nightshift.background { start = function() return 1 end, poll = function(job) return job:again() end,
    every = 0.01, deadline = 0.05, wait = true },
  parent = function(job)
    if job.phase == 0 then
      for i = 1, 2 do job:spawn("child", i) end
      return job:wait { state = { kept = 1 } }
    end
    local sum = job.state.kept
    for _, child in ipairs(job.results) do sum = sum + child.result end
    return { sum = sum, n = #job.results }
  end,
  child = function(job) return job.payload * 10 end,
  chain = function(job)
    if job.phase > 0 then return job.results[2].result end
    local first = job:spawn("child", 4)
    job:spawn("next", nil, { after = { first } })
    return job:wait()
  end,
  next = function(job) return { job.results[1].result, #job.after } end,
  fragile = function(job)
    if job.phase == 0 then
      job:spawn("broken", 1)
      return job:wait { on_fail = job.payload }
    end
    return { job.results[1].outcome, job.results[1].error }
  end,
  broken = function() return nil, "no luck" end,
  approve = function(job)
    if job.phase == 0 then return job:wait { signal = "approved" } end
    return job.signal == nil and job:discard "nobody answered" or { said = job.signal }
  end,
  forget = function(job)
    job:spawn("child", 1)
    return job:wait()
  end,
  orphan = function(job)
    if job.phase == 0 then job:spawn("elsewhere", 1); return job:wait() end
    return job.results[1].result
  end,
}]])
  end)

  local function run(...)
    local exit, out, err = proc.nightshift { "run", "--script", script, ... }
    local lines = {}
    for line in out:gmatch "[^\n]+" do lines[#lines + 1] = line end
    return exit, lines, err
  end

  local function last(...)
    local exit, lines, err = run(...)
    assert.equal(0, exit, err)
    return nightshift.decode(lines[#lines]:match "ack (.*)$")
  end

  it("drives a parent through its phases, with its children", function()
    local exit, lines = run "parent"
    assert.equal(0, exit)
    assert.same({ 'wait for children {"kept":1}', "spawn 2 child 1", "spawn 3 child 2", "child 2: ack 10",
      "child 3: ack 20" }, { table.unpack(lines, 1, 5) })
    assert.same({ sum = 31, n = 2 }, nightshift.decode(lines[6]:match "^ack (.*)$"))
  end)

  it("gives a child what became of those it was spawned to wait for", function()
    assert.same({ 40, 1 }, last "chain")
  end)

  it("takes the place of children with --results, and begins at a phase", function()
    assert.same({ sum = 8, n = 2 }, last("parent", "--results", '[{"result": 3}, {"result": 4}]'))
    assert.same({ sum = 5, n = 1 },
      last("parent", "--phase", "1", "--state", '{"kept":0}', "--results", '[{"result":5}]'))
    assert.equal(9, last("orphan", "--results", '[{"result": 9}]'))
    local exit, _, err = run "orphan"
    assert.equal(1, exit)
    assert.matches("no handler for the child 'elsewhere' here; say with --results", err, 1, true)
    for _, bad in ipairs { "5", '{"a":1}', "[5]", '[{"outcom":"done"}]', '[{"outcome":"lost"}]' } do
      exit, _, err = run("parent", "--results", bad)
      assert.equal(2, exit, bad)
      assert.matches("--results", err, 1, true)
    end
  end)

  it("polls what a background handler has started until it is ready", function()
    assert.same({ pid = 7, from = 7, polls = 2 }, last("op.loose", "7"))
    assert.same({ pid = 7, from = 7, polls = 2 }, last("op.tied", "7"))
    local exit, lines = run "op.late"
    assert.equal(1, exit)
    assert.matches("discard: poll deadline", table.concat(lines, "\n"), 1, true)
  end)

  it("fails with a child, or goes on", function()
    local exit, lines = run("fragile", '"fail"')
    assert.equal(1, exit)
    assert.equal("dead: child failed: no luck", lines[#lines])
    assert.same({ "dead", "no luck" }, last("fragile", '"continue"'))
  end)

  it("hands on a signal, or says how to", function()
    assert.same({ said = { ok = true } }, last("approve", "--signal", '{"ok":true}'))
    assert.same({ said = 5 }, last("approve", "--phase", "1", "--signal", "5"))
    local exit, lines = run "approve"
    assert.same({ 0, { "wait for the signal 'approved'", "waiting; go on with --phase 1 --signal JSON" } },
      { exit, lines })
    assert.equal(1, (run("approve", "--phase", "1")))
  end)

  it("ends who forgets the phase", function()
    local exit, lines = run "forget"
    assert.equal(1, exit)
    assert.matches("^dead: too many phases", lines[#lines])
  end)
end)

-- The manual pages are made from the parser: what --help says stands there, too.
describe("manual pages", function()
  local folder

  setup(function()
    folder = fixture.dir()
    local status, _, err = proc.run { proc.lua, "doc/generate.lua", "man", folder, "1.2.3" }
    assert.equal(0, status, err)
  end)

  local function page(name)
    local file <close> = assert(io.open(("%s/%s.1"):format(folder, name)))
    return (file:read("a"):gsub("\\%-", "-"))
  end

  it("are there for the program and for each command, with all options", function()
    local main, commands = page "nightshift", 0
    for name in help_of():match "Commands:(\n.-)\n\n":gmatch "\n   (%l[%w-]*)" do
      commands = commands + 1
      assert.matches(("nightshift-%s\\fR(1)"):format(name), main, 1, true)
      local text = page("nightshift-" .. name)
      for option in help_of(name):gmatch "\n   (%-%-[%w-]+)" do
        assert.matches("\\fB" .. option .. "\\fR", text, 1, true)
      end
      assert.matches(".SH EXIT STATUS", text, 1, true)
      assert.equal(name == "work", text:find("\\fB3\\fR", 1, true) ~= nil, name)
    end
    assert.is_true(commands > 20, commands)
  end)

  it("begin no line with what a formatter obeys but its own requests", function()
    for file in io.popen("ls " .. folder):lines() do
      for line in io.lines(folder .. "/" .. file) do
        local good = not line:find "^[.']" or line:find "^%.%u%u?%f[ \0]" or line == ".nf" or line == ".fi"
        assert.is_truthy(good, line)
      end
    end
  end)
end)

-- `make docs` adds two pages to the site: all of Lua from its annotations, all of the shell.
describe("the made reference", function()
  local lua_page, shell_page

  setup(function()
    local folder = fixture.dir()
    local status, _, err = proc.run { proc.lua, "doc/generate.lua", "reference", folder }
    assert.equal(0, status, err)
    local function read(name)
      local file <close> = assert(io.open(folder .. "/" .. name))
      return file:read "a"
    end
    lua_page, shell_page = read "reference-lua.md", read "reference-shell.md"
  end)

  it("has each function, class and field that is annotated", function()
    local class
    for line in io.lines "library/nightshift.lua" do
      local field = line:match "^%-%-%-@field (%S+)"
      local call = line:match "^function ([%w_.:]+%b())"
      local form = line:match "^%-%-%-@overload fun%(self: [%w.]+, (.*)"
      class = line:match "^%-%-%-@class ([%w.]+)" or class
      if form then assert.matches("Also `(" .. form .. "`", lua_page, 1, true) end
      if call then assert.matches("### `" .. call:gsub("^%u", string.lower) .. "`", lua_page, 1, true) end
      if field then
        local section = lua_page:match("\n## " .. class:gsub("%p", "%%%0") .. "\n(.-)\n## ") or lua_page
        assert.matches("| `" .. field .. "` |", section, 1, true)
      end
    end
  end)

  it("has each command and option", function()
    for name in help_of():match "Commands:(\n.-)\n\n":gmatch "\n   (%l[%w-]*)" do
      local section = (shell_page .. "\n## "):match("\n## nightshift " .. name:gsub("%-", "%%-") .. "\n(.-)\n## ")
      assert.is_truthy(section, name)
      for option in help_of(name):gmatch "\n   (%-%-[%w-]+)" do
        assert.is_truthy(section:find("`" .. option .. "`", 1, true) or section:find(option .. "`", 1, true), option)
      end
    end
  end)
end)
