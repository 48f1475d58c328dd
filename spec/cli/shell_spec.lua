-- What helps at a prompt: help with examples and defaults, the version, mistyped words, completions.
-- Where a database was looked for, and that looking makes none. Settings.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local server = require "spec.support.host"
local proc = require "spec.support.proc"

local context = require "nightshift.cli.context"
local help = require "nightshift.cli.help"
local parser = require "nightshift.cli".parser()

local function run(argv, url, more)
  local exit, out, err = proc.nightshift(argv, url, more)
  return { exit = exit, out = out, err = err }
end

--- What runs commands on a database. The program runs the first of each module of commands, and
-- those that read stdin, call handlers or ask it for more. The other ones run in this process.
local function runner(url, folder)
  local started, module_of = {}, require "nightshift.cli".module_of
  return function(argv, stdin)
    local module = module_of[argv[1]]
    if not started[module] or stdin or argv[1] == "run" or argv[1] == "reload" then
      started[module] = true
      return run(argv, url, { stdin = stdin, cwd = folder })
    end
    local exit, out, err = proc.command_line { "--url", url, table.unpack(argv) }
    return { exit = exit, out = out, err = err }
  end
end

local function says(words, text) assert.is_truthy(text:find(words, 1, true), text) end

--- The arguments as a shell would give them, up to a pipe, a redirection or another command.
local function words_of(line)
  local list = {}
  local pipe <close> = assert(io.popen(("for word in %s; do printf '%%s\\n' \"$word\"; done")
    :format(line:match "^(.-) [|<>&]" or line)))
  for word in pipe:lines() do list[#list + 1] = word end
  return list
end

describe("help", function()
  it("has examples of each command, which the parser takes", function()
    for _, command in ipairs(parser._commands) do
      local examples = help.EXAMPLES[command._name]
      assert.is_truthy(examples and #examples > 0, command._name)
      for _, example in ipairs(examples) do
        local words = words_of(example)
        assert.equal(command._name, words[1])
        local good, message = require "nightshift.cli".parser():pparse(context.mark_numbers(words))
        assert.is_true(good, example .. ": " .. tostring(message))
        says("   nightshift " .. example .. "\n", command:get_help() .. "\n")
      end
    end
  end)

  it("says the default of each option that takes a value, but for conditions", function()
    local function told(element)
      local text = element:_get_description()
      return text:find "efault" or text:find "without: " or text:find "^Only " or text:find "^With a filter: "
    end
    for _, command in ipairs(parser._commands) do
      for _, option in ipairs(command._options) do
        local flag = option._maxargs == 0
        assert.is_truthy(flag or told(option), command._name .. " " .. option._name)
      end
      for _, argument in ipairs(command._arguments) do
        assert.is_truthy(argument._minargs > 0 and not argument._default or told(argument), command._name)
      end
    end
  end)

  it("of a command is that of its --help, and of all that of --help", function()
    for _, name in ipairs { "push", "status", "help" } do
      local result = run { "help", name }
      assert.same({ 0, (select(2, proc.nightshift { name, "--help" })), "" }, { result.exit, result.out, result.err })
    end
    assert.equal((select(2, proc.nightshift { "--help" })), run({ "help" }).out)
    local result = run { "help", "pussh" }
    assert.same({ 2, "" }, { result.exit, result.out })
    says("unknown command 'pussh', did you mean 'push'?\nTry `nightshift --help`.", result.err)
  end)
end)

it("--version is one line", function()
  assert.same({ exit = 0, out = ("nightshift %s\n"):format(nightshift._VERSION), err = "" }, run { "--version" })
end)

describe("a mistyped word", function()
  it("is said with what was meant, and where to read on", function()
    local cases = {
      { { "list" }, "unknown command 'list', did you mean 'jobs'?\nTry `nightshift --help`." },
      { { "worker" }, "did you mean 'work'?" },
      { { "reprioritize", "5", "6" }, "did you mean 'reprioritise'?" },
      { { "statsu" }, "did you mean 'status'?" },
      { { "push", "q", "n", "--uniqe-peroid", "5" },
        "unknown option '--uniqe-peroid', did you mean '--unique-period'?\nTry `nightshift push --help`." },
      { { "work", "x.lua", "--drain-time", "5" }, "did you mean '--drain-timeout'?" },
      { { "push", "q", "n", "1", "--priority", "high" }, "--priority: 'high' is not a whole number" },
      { { "push", "q", "n", "1", "--priority=high" }, "--priority: 'high' is not a whole number" },
      { { "jobs", "--state", "redy" }, "'cancelled'; got 'redy', did you mean 'ready'?" },
      { { "jobs", "--state=failed" }, "got 'failed', did you mean 'dead'?" },
      { { "cancel", "--state", "dead" }, "'waiting'; got 'dead'\n" },
      { { "schedules", "puase", "x" }, "got 'puase', did you mean 'pause'?" },
      { { "doctor", "--grants", "wroker" }, "got 'wroker', did you mean 'worker'?" },
    }
    for _, case in ipairs(cases) do
      local result = run(case[1])
      assert.same({ 2, "" }, { result.exit, result.out }, result.err)
      says(case[2], result.err)
    end
  end)
end)

describe("a mistyped queue", function()
  local url, handle

  setup(function()
    url = db.fresh()
    handle = assert(nightshift.open(url))
    for _, name in ipairs { "mail", "shard1" } do assert(handle:queue(name):push("n", 1)) end
  end)

  teardown(function() handle:close() end)

  it("is said where a filter finds nothing", function()
    local told = "nightshift: there is no queue 'mial'; did you mean 'mail'?\n"
    for _, argv in ipairs { { "jobs", "--queue", "mial" }, { "errors", "--queue", "mial" },
      { "cancel", "--queue", "mial" }, { "move", "mail", "--queue", "mial", "--yes" } } do
      local result = run(argv, url)
      assert.same({ 0, told }, { result.exit, result.err }, argv[1])
    end
    local list = run({ "jobs", "--queue", "mial", "--json" }, url)
    assert.same({ "[]\n", told }, { list.out, list.err })
  end)

  it("is said by verbs on queues", function()
    for _, verb in ipairs { "resume", "remove-queue" } do
      local result = run({ verb, "mial" }, url)
      assert.equal(1, result.exit)
      says("; did you mean 'mail'? (NOT_FOUND)", result.err)
    end
    local result = run({ "pause", "mial" }, url)
    assert.same({ 0, "mial paused\n", "nightshift: there was no queue 'mial' before; did you mean 'mail'?\n" },
      { result.exit, result.out, result.err })
    result = run({ "retain", "mali", "--done", "1d" }, url)
    assert.same({ 0, "nightshift: there was no queue 'mali' before; did you mean 'mail'?\n" },
      { result.exit, result.err })
  end)

  it("and a mistyped name of a job, a schedule or a host are said, too", function()
    local busy = server.start(url, "return { ['mail.send'] = function() end }", { "--queues", "none" })
    local told = "nightshift: no live host has a handler 'mail.sned'; did you mean 'mail.send'?\n"
    for _, argv in ipairs { { "jobs" }, { "errors" }, { "retry" }, { "pause" } } do
      table.move({ "--name", "mail.sned" }, 1, 2, 2, argv)
      local result = run(argv, url)
      assert.same({ 0, told }, { result.exit, result.err }, argv[1])
    end
    assert.equal("jobs named mail.snd: not paused; did you mean 'mail.sned'?\n",
      run({ "resume", "--name", "mail.snd" }, url).out)
    assert.equal("", run({ "jobs", "--name", "mail.send" }, url).err)
    assert(handle:schedule { name = "report.daily", every = "1d", push = { "n" } })
    says("there is no schedule 'report.dayly'; `nightshift schedules` lists them; did you mean 'report.daily'?",
      run({ "schedules", "run", "report.dayly" }, url).err)
    local name = handle:stats().holders[1].host
    says(("there is no host '%sx'; did you mean '%s'?\n"):format(name, name),
      run({ "health", "--host", name .. "x" }, url).err)
    busy:signal "QUIT"
    busy:wait(20)
  end)

  it("is not seen in one that is there, is like none, or differs in digits", function()
    for _, name in ipairs { "mail", "invoices", "shard2" } do
      assert.equal("", run({ "jobs", "--queue", name, "--state", "dead" }, url).err)
    end
  end)
end)

describe("a database that is not reached", function()
  it("is named by socket, or by host and port, with where its address is from", function()
    local cases = {
      { "mysql://x@127.0.0.1:1/x", "cannot connect to 127.0.0.1, port 1: refused: no server listens there" },
      { "mysql://x@localhost/x?unix_socket=/nonexistent/s.sock",
        "cannot connect to socket /nonexistent/s.sock: No such file or directory (2002) (GONE)" },
      { "mysql://x@no-such-host.invalid/x", "cannot connect to no-such-host.invalid, port 3306: " },
    }
    for _, case in ipairs(cases) do
      local result = run({ "status" }, case[1])
      assert.equal(69, result.exit)
      says(case[2], result.err)
      says("; the address is from $NIGHTSHIFT_URL\n", result.err)
      says("; the address is from --url\n", run({ "--url", case[1], "status" }, "mysql://y@127.0.0.1:2/y").err)
    end
  end)

  it("is told of by a host, and by those who look at servers", function()
    local url = "mysql://x@127.0.0.1:1/x"
    local file = fixture.file("jobs.lua", "return { noop = function() end }")
    local host = run({ "work", file, "--workers", "1" }, url)
    assert.equal(69, host.exit)
    says("127.0.0.1, port 1", host.err)
    says("nightshift: the address is from $NIGHTSHIFT_URL\n", host.err)
    says("the address is from $NIGHTSHIFT_URL", run({ "doctor" }, url).out)
    says("the address is from $NIGHTSHIFT_URL", run({ "version" }, url).out)
  end)

  it("that refuses an account is named, too, and privileges that lack have their remedy", function()
    local url = db.fresh()
    local weak = db.user(url, "SELECT")
    says("; the address is from $NIGHTSHIFT_URL\n", run({ "status" }, (weak:gsub("Pass%-word_1", "other"))).err)
    local refused = run({ "push", "q", "n" }, weak)
    assert.equal(78, refused.exit)
    says("`nightshift doctor --grants` prints what each role needs", refused.err)
  end)
end)

describe("a command that looks, or changes what is there,", function()
  -- What each is called with; false: it needs no database, or makes its tables.
  local ARGUMENTS <const> = {
    init = false, migrate = false, push = false, work = false, run = false, help = false, version = false,
    completion = false, config = false,
    doctor = {}, retain = { "--done", "1d" }, retention = {}, prune = {}, reload = {}, jobs = {}, errors = {},
    show = { "1" }, why = { "1" }, wait = { "1" }, retry = { "1" }, cancel = { "1" }, delete = { "1" },
    update = { "1", "--priority", "5" }, ["run-now"] = { "1" }, reprioritise = { "1", "5" },
    move = { "q", "--queue", "r" }, signal = { "1", "1" }, deadline = { "1", "1h" }, status = {}, pause = { "q" },
    resume = { "q" }, ["remove-queue"] = { "q" }, tune = { "--host", "1", "--workers", "1" }, rescue = {},
    schedules = {}, limit = { "q", "--off" }, limits = {}, scale = {},
    adopt = { "map.lua" }, health = {}, audit = {}, top = {}, web = { "--listen", "127.0.0.1:0" },
  }
  local TELLS <const> = { doctor = true, health = true } -- by 1, as what they have found
  local folder, call_gone

  setup(function()
    folder = fixture.dir()
    call_gone = runner("mysql://x@localhost/x?unix_socket=/nonexistent/s.sock", folder)
    local file <close> = assert(io.open(folder .. "/map.lua", "w"))
    file:write 'return { table = "t", status = { column = "s", open = 0, done = 1 } }'
  end)

  for _, command in ipairs(parser._commands) do
    local name = command._name
    it("makes no database: " .. name, function()
      assert.is_not_nil(ARGUMENTS[name], "a line for it above")
      if not ARGUMENTS[name] then return end
      local argv = { name, table.unpack(ARGUMENTS[name]) }
      local nowhere = run(argv, nil, { cwd = folder })
      assert.equal(78, nowhere.exit, nowhere.err)
      says("there is no database to look at", nowhere.err)
      assert.is_nil((io.open(folder .. "/.nightshift")))
      local absent = run(argv, db.url "never_made", { cwd = folder })
      assert.is_true(absent.exit == 78 or TELLS[name] and absent.exit == 1, absent.err)
      says("the database 'never_made' does not exist", absent.err .. absent.out)
      assert.equal("", db.sql "SHOW DATABASES LIKE 'never%'")
    end)

    it("ends with 69 without a server, and with 2 for an option it does not know: " .. name, function()
      local argv = { name, table.unpack(ARGUMENTS[name] or {}) }
      if ARGUMENTS[name] then
        assert.equal(name == "health" and 1 or 69, call_gone(argv).exit)
      end
      argv[#argv + 1] = "--no-such-option"
      local wrong, out, err = proc.command_line(argv)
      assert.same({ 2, "" }, { wrong, out })
      says(("unknown option '--no-such-option'\nTry `nightshift %s --help`."):format(name), err)
    end)
  end
end)

-- `status`, and then what its last lines name: no id has to be known, and the third command at the
-- latest says the cause.
describe("from status to the cause:", function()
  local url, handle, q, busy

  setup(function()
    url = db.fresh()
    handle = assert(nightshift.open(url))
    q = handle:queue "mail"
    busy = server.start(url, [[return {
      good = function() return "well" end,
      bad = function() return nil, "no luck" end,
      crash = function() os.execute "kill -9 $PPID" end,
    }]], { "--workers", "1" })
  end)

  teardown(function()
    handle:close()
    busy:forget()
  end)

  --- The words of the command that a text names for a cause.
  local function next_command(text, cause)
    for command, why in text:gmatch "next: nightshift ([^\n]-)  # ([^\n]*)" do
      if why:find(cause, 1, true) then return words_of(command) end
    end
    error(("nothing leads on to %q:\n%s"):format(cause, text))
  end

  local function ok(argv)
    local result = run(argv, url)
    assert.same({ 0, "" }, { result.exit, result.err })
    return result.out
  end

  --- The id in the first row of a table.
  local function first_id(text) return (assert(text:match "\n *(%d+)", text)) end

  it("a paused queue, whatever its name", function()
    for _, name in ipairs { "late", "it's 1", "77" } do
      ok { "pause", "--queue", name }
      local id = assert(handle:queue(name):push "good")
      local text = ok { "status" }
      local listed = first_id(ok { "jobs", "--queue", name })
      says(("is ready, but its queue '%s' is paused"):format(name), ok { "why", listed })
      ok(next_command(text, ("queue '%s' is paused"):format(name)))
      eventually(function() return handle:job(id).state == "done" end)
      assert.is_nil(ok { "status" }:find("is paused", 1, true))
    end
    ok { "pause", "--all" }
    ok(next_command(ok { "status" }, "every queue is paused"))
    ok { "pause", "--name", "it's bad" }
    ok(next_command(ok { "status" }, "jobs named 'it's bad' are paused"))
  end)

  it("a name that no host serves", function()
    local id = assert(q:push "god")
    local list = ok(next_command(ok { "status" }, "no live host has a handler for 'god'"))
    assert.equal(tostring(id), first_id(list))
    says("is ready, but no live host that serves 'mail' has a handler 'god'; known: bad, crash, good",
      ok { "why", first_id(list) })
    assert(handle:cancel(id))
  end)

  it("a job that kills its workers, and one that fails again and again", function()
    local poison = assert(q:push("crash", nil, { max_crashes = 1 }))
    local failing = assert(q:push("bad", nil, { backoff = "1h" }))
    eventually(function() return handle:job(poison).state == "dead" and handle:job(failing).attempts == 1 end)
    local text = ok { "status" }
    local command = next_command(text, "1 dead: worker killed by signal # (Killed)")
    assert.same({ "why", tostring(poison) }, command)
    assert.matches("'crash' ended %S+ s ago: dead %(poison%): worker killed by signal 9 %(Killed%)", ok(command))
    command = next_command(text, "1 to be tried again: no luck")
    assert.same({ "why", tostring(failing) }, command)
    assert.matches("is to be tried again in [%d a-z]+, attempt 2 of 10, after it failed: no luck", ok(command))
    says("no luck", ok { "errors" })
  end)

  it("no host at all", function()
    local other = db.fresh()
    local own <close> = assert(nightshift.open(other))
    local id = assert(own:queue "mail":push "good")
    own:close()
    local list = run(next_command(run({ "status" }, other).out, "no host or program claims them"), other)
    assert.equal(tostring(id), first_id(list.out))
    says("is ready, but there is no live host", run({ "why", first_id(list.out) }, other).out)
  end)

  it("a server that is stopped", function()
    local stopped = "mysql://x@localhost/x?unix_socket=/nonexistent/s.sock"
    local result = run({ "status" }, stopped)
    assert.equal(69, result.exit)
    local command = assert(result.err:match "`nightshift (%S+)` says what to do", result.err)
    result = run({ command }, stopped)
    assert.equal(69, result.exit)
    assert.matches("^fail  server .*/nonexistent/s.sock.*  → start the server", result.out)
  end)

  it("nothing is named where all is well", function()
    assert.is_nil(run({ "status" }, (db.fresh())).out:find("next:", 1, true))
  end)
end)

describe("completions", function()
  local folder

  setup(function()
    folder = fixture.dir()
    local status, _, err = proc.run { proc.lua, "doc/generate.lua", "completion", folder }
    assert.equal(0, status, err)
  end)

  local function text(name)
    local file <close> = assert(io.open(folder .. "/" .. name))
    return file:read "a"
  end

  --- What bash offers when TAB is hit behind these words.
  local function offered(...)
    local script = ([[source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _nightshift
      printf '%s\n' "${COMPREPLY[@]}"]])
    local status, out, err = proc.run { "bash", "-c", script, "bash", folder .. "/nightshift", "nightshift", ... }
    assert.same({ 0, "" }, { status, err })
    return out
  end

  it("are what the command prints", function()
    for shell, name in pairs { bash = "nightshift", zsh = "_nightshift", fish = "nightshift.fish" } do
      local result = run { "completion", shell }
      assert.same({ 0, "" }, { result.exit, result.err })
      assert.equal(text(name), result.out)
    end
    assert.equal(2, run({ "completion", "tcsh" }).exit)
  end)

  it("offer commands, their options and the words that these take, in bash", function()
    assert.equal("status\n", offered "stat")
    assert.equal("--drain\n--drain-within\n--drain-timeout\n", offered("work", "--drain"))
    assert.equal("ready\n", offered("jobs", "--state", "re"))
    assert.equal("push\n", offered("help", "pus"))
    assert.equal("--json\n", offered("--url", "mysql://x", "status", "--js"))
  end)

  it("name each command and option, in all shells", function()
    local files = { text "nightshift", text "_nightshift", text "nightshift.fish" }
    for _, command in ipairs(parser._commands) do
      for i, script in ipairs(files) do
        says(command._name, script)
        for _, option in ipairs(command._options) do
          local name = option._aliases[#option._aliases]
          says(i == 3 and "-l " .. name:sub(3) or name, script)
        end
      end
    end
  end)

  for shell, name in pairs { zsh = "_nightshift", fish = "nightshift.fish" } do
    it("are read without an error by " .. shell, function()
      if not os.execute(("command -v %s >/dev/null"):format(shell)) then return pending("no " .. shell) end
      local status, _, err = proc.run { shell, "-n", folder .. "/" .. name }
      assert.same({ 0, "" }, { status, err })
    end)
  end
end)

-- A file of settings, the environment, and arguments, which go before both.
describe("settings", function()
  local function config(text) return fixture.file("config", text) end

  --- The rows of `config`, by key.
  local function shown(argv, url, env)
    local result = run(table.move(argv, 1, #argv, 1, {}), url, { env = env })
    assert.same({ 0, "" }, { result.exit, result.err })
    local rows = {}
    for _, row in ipairs(nightshift.decode(result.out)) do rows[row.key] = row end
    return rows
  end

  it("are those of the arguments, else of the environment, else of the file, else defaults", function()
    local file = config "# ours\n\nurl = mysql://app:s3:cr@t@db/shop\nworkers=8\n  queues = mail=3,low\nlog=json\n"
    local rows = shown({ "--config", file, "config", "--json" }, nil, { NIGHTSHIFT_WORKERS = "5" })
    assert.same({ key = "config", value = file, from = "--config" }, rows.config)
    assert.same({ key = "url", value = "mysql://app:***@db/shop", from = file .. ", line 3" }, rows.url)
    assert.same({ key = "workers", value = "5", from = "$NIGHTSHIFT_WORKERS" }, rows.workers)
    assert.same({ key = "queues", value = "mail=3,low", from = file .. ", line 5" }, rows.queues)
    assert.same({ key = "memory", default = "no limit", from = "default" }, rows.memory)
    rows = shown({ "--config", file, "config", "--json" }, "mysql://me:hunter2@here/x")
    assert.same({ key = "url", value = "mysql://me:***@here/x", from = "$NIGHTSHIFT_URL" }, rows.url)
    rows = shown({ "--config", file, "--url", "mysql://a:b@c/d", "config", "--json" }, "mysql://me:hunter2@here/x")
    assert.same({ key = "url", value = "mysql://a:***@c/d", from = "--url" }, rows.url)
  end)

  it("are shown for people without the password", function()
    local result = run({ "config" }, "mysql://me:hunter2@here/x")
    assert.same({ 0, "" }, { result.exit, result.err })
    assert.matches("\nurl +mysql://me:%*%*%*@here/x +%$NIGHTSHIFT_URL\n", result.out)
    assert.is_nil(result.out:find("hunter2", 1, true))
  end)

  it("know each option of work", function()
    local rows = shown { "config", "--json" }
    for _, command in ipairs(parser._commands) do
      for _, option in ipairs(command._name == "work" and command._options or {}) do
        local key = option._aliases[#option._aliases]:sub(3)
        assert.is_truthy(key == "help" or rows[key] and rows[key].default, key)
      end
    end
  end)

  it("are of the first file that is there", function()
    local home, other = fixture.dir(), config "workers = 2\n"
    assert(os.execute(("mkdir -p '%s/.config/nightshift'"):format(home)))
    local own <close> = assert(io.open(home .. "/.config/nightshift/config", "w"))
    own:write "workers = 3\n"
    own:flush()
    local env = { NIGHTSHIFT_CONFIG = false, HOME = home, XDG_CONFIG_HOME = false }
    local rows = shown({ "config", "--json" }, nil, env)
    assert.same({ "found", "3" }, { rows.config.from, rows.workers.value })
    env.NIGHTSHIFT_CONFIG = other
    rows = shown({ "config", "--json" }, nil, env)
    assert.same({ other, "$NIGHTSHIFT_CONFIG", "2" }, { rows.config.value, rows.config.from, rows.workers.value })
    env.NIGHTSHIFT_CONFIG, env.XDG_CONFIG_HOME = false, fixture.dir()
    assert.equal("none", shown({ "config", "--json" }, nil, env).config.default)
  end)

  it("open the database of the file, and are named where it is not reached", function()
    local url = db.fresh()
    local good = run({ "--config", config("url = " .. url), "push", "q", "n" })
    assert.same({ 0, "" }, { good.exit, good.err })
    local file = config "\nurl = mysql://x@127.0.0.1:1/x\n"
    says("; the address is from " .. file .. ", line 2\n", run({ "status", "--config=" .. file }).err)
    assert.equal(0, run({ "--config", file, "status" }, url).exit)
  end)

  it("are options of work", function()
    local url = db.fresh()
    local jobs = fixture.file("jobs.lua", "return { noop = function() end }")
    local file = config "drain = yes\nworkers = 2\nlog = json\nsingle = no\n"
    local result = run({ "work", jobs, "--config", file, "--workers", "3" }, url)
    assert.equal(0, result.exit, result.err)
    says('"event":"host.ready"', result.err)
    says('"workers":3', result.err)
  end)

  it("that are wrong end their command with 78, and file and line", function()
    local jobs = fixture.file("jobs.lua", "return { noop = function() end }")
    local function refused(text, words)
      local file = config(text)
      for _, argv in ipairs { { "config" }, { "work", jobs } } do
        local result = run({ "--config", file, table.unpack(argv) })
        assert.same({ 78, "" }, { result.exit, result.out }, result.err)
        says((words:gsub("FILE", (file:gsub("%%", "%%%%")))), result.err)
      end
    end
    refused("wokers = 5\n", "nightshift: FILE, line 1: unknown key 'wokers'; did you mean 'workers'?\n")
    refused("\nworkers 5\n", "nightshift: FILE, line 2: 'key = value' is expected\n")
    refused("workers = 5\nworkers = 6\n", "FILE, line 2: 'workers' is given twice")
    refused("log = xml\n", "FILE, line 1: log: argument for option '--log' must be one of")
    refused("workers = many\n", "FILE, line 1: workers: 'many' is not a whole number")
    refused("strict = perhaps\n", "FILE, line 1: strict must be true or false, got 'perhaps'")
    local absent = run({ "--config", "/nonexistent/c", "status" })
    assert.equal(78, absent.exit)
    says("cannot read the file of settings that --config names: /nonexistent/c: No such file", absent.err)
    local few = run({ "--config", config "workers = 0\n", "work", jobs })
    assert.equal(2, few.exit)
    assert.matches("%-%-workers must be from 1 to 20000, got 0 %(.*config, line 1%)\n", few.err)
    assert.equal(0, run({ "--config", "/nonexistent/c", "push", "--help" }).exit)
  end)
end)

-- What each command prints with --json, beside the table of doc/reference.md. A key of the table in
-- brackets may be absent.
describe("--json", function()
  local url, handle, script, tried, ran, facts, call

  --- The fields of a class of the annotations.
  local function fields_of(class)
    local file <close> = assert(io.open "library/nightshift.lua")
    local found, inside = {}, false
    for line in file:lines() do
      if line:find "^%-%-%-@class" then inside = line:match "^%-%-%-@class ([%w.]+)" == class end
      local field = inside and line:match "^%-%-%-@field ([%w_]+)"
      if field then found[field] = true end
    end
    return found
  end

  --- Compares the facts of `why`, and of what the job waits for, with the annotations.
  local function compare_facts(fact, wrong)
    for key in pairs(fact) do
      if not facts[key] then wrong[#wrong + 1] = ("why (%s) has %s"):format(fact.kind, key) end
    end
    if fact.cause then compare_facts(fact.cause, wrong) end
  end

  --- Rows of the table: {prints, always = {key = true}, known = {key = true}} by command, and of lists
  -- and objects inside by "command.key".
  local function read_table()
    local file <close> = assert(io.open "doc/reference.md")
    local rows = {}
    for line in file:read "a":match "\n### JSON\n(.-)\n#":gmatch "[^\n]+" do
      local names, prints, keys = line:match "^| (`[^|]*`) | ([^|]*) | ([^|]*) |$"
      for name in (names or ""):gmatch "`([^`]+)`" do
        rows[name] = { prints = prints, always = {}, known = {} }
        for bracket, key in keys:match "^[^;:]*":gmatch "(%[?)`([^`]+)`" do
          rows[name].known[key] = true
          rows[name].always[key] = bracket == "" or nil
        end
      end
    end
    return rows
  end

  --- Compares an object, or all of a list, with the row of the table, and what is inside.
  local function compare(rows, name, value, wrong)
    local row = rows[name]
    local list = value
    if not row.prints:find "^a list" and not row.prints:find "^objects" then list = { value } end
    for _, object in ipairs(list) do
      for key, inner in pairs(object) do
        if not row.known[key] and not row.known["…"] then wrong[#wrong + 1] = name .. " has " .. tostring(key) end
        local deeper = name .. "." .. tostring(key)
        if rows[deeper] then compare(rows, deeper, inner, wrong) end
      end
      for key in pairs(row.always) do
        if object[key] == nil then wrong[#wrong + 1] = name .. " lacks " .. key end
      end
    end
    tried[name] = (tried[name] or 0) + #list
  end

  --- Runs a command; the lines of its output as values.
  local function values(exit, argv, stdin)
    local words = table.move(argv, 1, #argv, 1, {})
    words[#words + 1] = "--json"
    ran[argv[1]] = true
    local result = call(words, stdin)
    assert.equal(exit, result.exit, table.concat(argv, " ") .. ": " .. result.err .. result.out)
    local list = {}
    for line in result.out:gmatch "[^\n]+" do list[#list + 1] = assert(nightshift.decode(line)) end
    return list
  end

  setup(function()
    tried, ran, facts = {}, {}, fields_of "nightshift.Why"
    url = db.fresh()
    call = runner(url)
    handle = assert(nightshift.open(url))
    script = fixture.file("jobs.lua", [[return {
      good = function(job) return { n = job.payload } end,
      bad = function() return nil, "no luck" end,
      parent = function(job)
        if job.phase > 0 then return #job.results end
        job:spawn("good", 1)
        return job:wait { state = "half" }
      end,
      long = function(job)
        job:progress(0.5, "half")
        job:db():lock "report"(function() require "nightshift.core".sleep(600) end)
      end,
    }]])
  end)

  teardown(function() handle:close() end)

  it("is as the reference says, for each command, with its exit code", function()
    local rows, wrong = read_table(), {}
    local q = handle:queue "mail"
    local function id(...) return tostring(assert(q:push(...))) end
    local function try(name, exit, argv, stdin)
      local list = values(exit, argv, stdin)
      assert.is_truthy(#list > 0, name)
      if rows[name] and rows[name].prints:find "^objects" then list = { list } end
      if not rows[name] then
        wrong[#wrong + 1] = "no row: " .. name
      else
        for _, value in ipairs(list) do compare(rows, name, value, wrong) end
      end
      if name == "why" then
        assert.is_string(list[1].text)
        list[1].text = nil
        compare_facts(list[1], wrong)
      end
    end
    local dead = id("bad", 7, { max_attempts = 1 })
    local good = id("good", 8, { tags = { "x" } })
    local parent = id("parent", 9)
    local later = id("good", 1, { delay = "1h", unique = "k" })
    local host = run({ "work", script, "--workers", "1", "--drain", "--drain-within", "0" }, url)
    assert.equal(0, host.exit, host.err)
    local waits = id("parent", 9, { after = { tonumber(later) } })
    try("init", 0, { "init" })
    try("migrate", 0, { "migrate" })
    try("push", 0, { "push", "mail", "good", "1" })
    try("push --lines", 0, { "push", "mail", "good", "--lines" }, "1\n2\n")
    for _, state in ipairs { "ready", "scheduled", "waiting", "done", "dead" } do
      try("jobs", 0, { "jobs", "--state", state })
    end
    try("jobs", 0, { "jobs" })
    try("errors", 0, { "errors" })
    for _, one in ipairs { dead, good, parent, later, waits } do
      try("show", 0, { "show", one })
      try("why", 0, { "why", one })
    end
    try("show --tree", 0, { "show", parent, "--tree" })
    try("wait", 1, { "wait", dead, good })
    try("verbs on ids", 1, { "retry", dead, "999999999" })
    try("verbs on trees", 0, { "cancel", waits, "--tree", "--yes" })
    try("verbs on ids", 0, { "cancel", later })
    try("verbs on ids", 0, { "update", dead, "--priority", "5" })
    try("verbs on ids", 1, { "run-now", dead })
    try("verbs on ids", 0, { "reprioritise", dead, "9" })
    try("verbs on ids", 0, { "deadline", dead, "2h" })
    try("verbs on ids", 0, { "delete", good })
    for _, argv in ipairs { { "retry", "--queue", "none" }, { "reprioritise", "7", "--queue", "mail" },
      { "move", "other", "--queue", "mail" }, { "run-now", "--queue", "other" },
      { "update", "--priority", "8", "--queue", "other" }, { "cancel", "--queue", "other" },
      { "delete", "--queue", "other" } } do
      argv[#argv + 1] = "--yes"
      try("verbs on filters", 0, argv)
    end
    local told = id("parent", 9)
    try("signal", 0, { "signal", told, "1", "--name", "go" })
    local long, unknown = id("long"), id "nobody"
    local busy = server.start(url, script, { "--workers", "1", "--queues", "mail" })
    eventually(function() return #assert(handle:slots()) == 1 end)
    try("pause", 0, { "pause", "mail", told, "--name", "good", "--all" })
    try("status", 0, { "status" })
    try("scale", 0, { "scale", "mail" })
    try("status --series", 0, { "status", "--series", "1h", "--queue", "mail" })
    for _, one in ipairs { long, unknown } do
      try("show", 0, { "show", one })
      try("why", 0, { "why", one })
    end
    try("jobs", 0, { "jobs", "--state", "running" })
    try("tune", 0, { "tune", "--host", tostring(handle:stats().holders[1].id), "--workers", "2" })
    try("reload", 0, { "reload" })
    try("health", 0, { "health" })
    try("health", 1, { "health", "--host", "nowhere" })
    busy:signal "QUIT"
    busy:wait(20)
    try("resume", 1, { "resume", "mail", "nowhere", told, "--name", "good", "--all" })
    try("remove-queue", 1, { "remove-queue", "nowhere" })
    assert(handle:schedule { name = "tick", every = "10m", push = { "good", 1 } })
    try("schedules", 0, { "schedules" })
    try("schedules VERB", 0, { "schedules", "run", "tick" })
    try("schedules VERB", 0, { "schedules", "pause", "tick" })
    try("rescue", 0, { "rescue", "--wait", "0" })
    try("retain", 0, { "retain", "mail", "--done", "1d" })
    try("retention", 0, { "retention" })
    try("limit", 0, { "limit", "narrow", "--running", "5", "--group-rate", "10/1s" })
    try("limits", 0, { "limits" })
    assert(handle:queue "narrow":push("good", 1))
    handle:execute([[INSERT INTO nightshift_backlog SELECT queue_id, 'g', `rank`, ready_at, job_id, run, alone, kind
      FROM nightshift_ready WHERE job_id = (SELECT MAX(id) FROM nightshift_job)]])
    try("limits QUEUE", 0, { "limits", "narrow" })
    try("prune", 0, { "prune", "--done", "0", "--dead", "0", "--yes" })
    try("doctor", 4, { "doctor" })
    try("version", 0, { "version" })
    try("config", 0, { "config" })
    try("run", 0, { "run", script, "parent" })
    try("run", 1, { "run", script, "bad" })
    handle:execute "CREATE TABLE task (id INT AUTO_INCREMENT PRIMARY KEY, state INT NOT NULL, by_whom CHAR(35))"
    handle:execute "INSERT INTO task (state) VALUES (0), (1), (1), (2)"
    local map = fixture.file("map.lua", [[return { table = "task", status = { column = "state", open = 0, done = 1,
      failed = 2, processing = 3 }, claimed_by = "by_whom" }]])
    try("adopt", 0, { "adopt", map })
    try("status", 0, { "status" })
    try("adopt", 0, { "adopt", map, "--drain-into", "tasks", "--yes" })
    try("tune", 0, { "tune", "task", "--rate", "5" })
    try("audit", 0, { "audit", "--limit", "1000" })
    local acted = {}
    for _, row in ipairs(assert(handle:audit { limit = 1000 })) do acted[row.verb .. " " .. row.via] = row.what end
    for _, verb in ipairs { "retry", "cancel", "update", "reprioritise", "deadline", "delete", "move", "signal",
      "pause", "resume", "tune", "schedule_run", "schedule_pause", "limit", "retain", "prune", "adopt", "drain" } do
      assert.is_truthy(acted[verb .. " shell"], verb)
    end
    assert.matches("^host %d+ %(pid %d+ on .+%): 2 workers$", acted["tune shell"]) -- the oldest
    assert.equal("schedule tick", acted["schedule lua"])
    local untried = {}
    for name in pairs(rows) do
      if not tried[name] then untried[#untried + 1] = name end
    end
    table.sort(wrong)
    assert.same({}, wrong)
    assert.same({}, untried)
    local none = { work = true, top = true, web = true, help = true, completion = true } -- the log of work has its own
    for _, command in ipairs(parser._commands) do
      local has = false
      for _, option in ipairs(command._options) do has = has or option._name == "--json" end
      assert.equal(not none[command._name], has, command._name)
      assert.is_true(none[command._name] or ran[command._name], command._name)
    end
  end)
end)

-- What each command says to people, on a database with a host.
describe("in words", function()
  it("each command tells its outcome, and ends with its exit code", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q, seen = handle:queue "mail", { work = true, top = true, web = true } -- which have specs of their own
    local call = runner(url)
    local script = fixture.file("jobs.lua", [[return {
      good = function(job) return { n = job.payload } end,
      bad = function() return nil, "no luck" end,
    }]])
    local function id(...) return tostring(assert(q:push(...))) end
    local function try(exit, argv, pattern)
      local result = call(argv)
      assert.equal(exit, result.exit, table.concat(argv, " ") .. ": " .. result.err .. result.out)
      assert.matches(pattern, exit == 0 and result.out or result.out .. result.err)
      seen[argv[1]] = true
    end
    local dead, done = id("bad", 7, { max_attempts = 1 }), id("good", 8)
    local busy = server.start(url, script, { "--workers", "1" })
    try(1, { "wait", dead, done }, ("^%s dead no luck\n%s done {\"n\":8}\n$"):format(dead, done))
    try(0, { "init" }, "^the tables are of version %d+ already; procedures and views were made anew\n$")
    try(0, { "migrate" }, "^the tables are of version %d+ already; procedures and views were made anew\n$")
    try(0, { "health" }, "^host %d+ %(pid %d+ on [^ ]+%) lives; its last beat was %S+ ago\n$")
    try(1, { "health", "--host", "nowhere" }, "^nightshift: there is no host 'nowhere'")
    try(0, { "reload" }, "^host %d+ %(pid %d+ on [^ ]+%) runs %x+, as before\n$")
    try(0, { "tune", "--host", tostring(handle:stats().holders[1].id), "--workers", "2" },
      "^host %d+ %(pid %d+ on [^ ]+%): 2 workers, before 1\n$")
    try(0, { "pause", "mail", "--name", "bad" }, "^mail paused\njobs named bad: paused\n$")
    try(0, { "push", "mail", "good", "1", "--delay", "1h" }, "^%d+\n$")
    try(1, { "resume", "nowhere" }, "^nightshift: nowhere: .*%(NOT_FOUND%)")
    local later, other = id("good", 1, { delay = "1h" }), id("good", 2, { delay = "1h" })
    try(0, { "status" }, "^QUEUE +READY .*\nmail +0 +3 .* paused\n.*\njobs named bad are paused, since .*\n *HOLDER ")
    try(0, { "jobs", "--state", "dead" }, "^ *ID +QUEUE .*\n *" .. dead .. " +mail +bad +dead ")
    try(0, { "errors" }, "^DEAD +RETRYING .*\n +1 +0 .* no luck\n$")
    try(0, { "show", dead }, "^id +" .. dead .. "\n.*\nstate +dead\n.*\nrun 1 failed at ")
    try(0, { "why", dead }, "^#" .. dead .. " 'bad' ended %S+ s ago: dead %(failed%): no luck\n$")
    try(0, { "update", later, "--priority", "5" }, "^" .. later .. " changed\n$")
    try(0, { "reprioritise", later, "9" }, "^" .. later .. " with priority 9\n$")
    try(0, { "deadline", later, "2h" }, "^" .. later .. " ")
    try(1, { "signal", "999999999", "1" }, "^nightshift: there is no job 999999999")
    try(0, { "signal", later, "1", "--name", "go" }, "^" .. later .. " is told 'go', and does not wait for a signal")
    try(2, { "move", "else", "--queue", "mail" }, "^nightshift: 3 jobs would be moved; add %-%-yes to do it\n$")
    try(0, { "move", "else", "--queue", "mail", "--yes" }, "^3 jobs moved\n$")
    try(0, { "cancel", later }, "^" .. later .. " cancelled\n$")
    try(0, { "delete", later }, "^" .. later .. " deleted\n$")
    try(0, { "resume", "mail", "--name", "bad" }, "^mail resumed\njobs named bad: resumed\n$")
    try(0, { "run-now", other }, "^" .. other .. " is ready\n$")
    try(0, { "retry", done }, "^" .. done .. " retried; it had been done\n$")
    try(1, { "retry", "999999999" }, "^nightshift: 999999999: .*%(NOT_FOUND%)")
    try(0, { "wait", other, done }, ("^%s done {\"n\":2}\n%s done "):format(other, done))
    try(0, { "audit", "--verb", "pause" }, "\n[^\n]+ pause +[^\n]*mail")
    try(0, { "schedules" }, "^no schedules; handlers declare them")
    try(0, { "retain", "mail", "--done", "1d" }, "^QUEUE +DONE .*\nall .*\nmail +1d0h ")
    try(0, { "retention" }, "^QUEUE +DONE .*\nall .*\nmail +1d0h ")
    try(0, { "scale" }, "^QUEUE ")
    try(0, { "limits" }, "^no queue has a limit; `nightshift limit QUEUE")
    try(0, { "limit", "mail", "--running", "2" }, "^mail: 2 running\n$")
    try(0, { "limits" }, "^QUEUE +RUNNING +WAITING +GROUPS +LIMIT *\nmail +0/2 +0 +0 +2 running *\n$")
    try(0, { "limit", "mail", "--off" }, "^mail: no limit\n$")
    try(0, { "prune", "--done", "0", "--dead", "0", "--yes" }, "^deleted %d+ jobs\n$")
    try(1, { "remove-queue", "nowhere" }, "^nightshift: nowhere: .*%(NOT_FOUND%)")
    try(0, { "remove-queue", "mail" }, "^mail removed\n$")
    handle:execute "CREATE TABLE task (id INT AUTO_INCREMENT PRIMARY KEY, state INT NOT NULL, by_whom CHAR(35))"
    handle:execute "INSERT INTO task (state) VALUES (0), (1)"
    local map = fixture.file("map.lua", [[return { table = "task", status = { column = "state", open = 0, done = 1,
      failed = 2, processing = 3 }, claimed_by = "by_whom" }]])
    try(0, { "adopt", map }, "^task: 1 ready, 0 waiting, 0 running, 1 done, 0 dead\n")
    try(0, { "tune", "task", "--rate", "5" }, "^task tuned\n$")
    try(1, { "tune", "tasks", "--rate", "5" }, "'tasks' yet; did you mean 'task'%? %(NOT_FOUND%)\n$")
    busy:signal "QUIT"
    busy:wait(20)
    try(0, { "rescue", "--wait", "0" }, "^0 jobs of 0 dead holders given back\n$")
    try(1, { "health" }, "^nightshift: no host of this database runs on ")
    try(0, { "version" }, "^nightshift  %S+\nschema +%d+\nlua +Lua 5%.4\nserver +%S+")
    try(0, { "config" }, "\nurl +mysql://")
    try(0, { "run", script, "good", "3" }, '^ack {"n":3}\n$')
    try(1, { "run", script, "bad" }, "^fail: no luck\n")
    try(0, { "help", "push" }, "^Usage: nightshift push ")
    try(0, { "completion", "bash" }, "^_nightshift")
    local doctor = run({ "doctor" }, url)
    assert.is_true(doctor.exit == 0 or doctor.exit == 4, doctor.out)
    assert.matches("^ok    server ", doctor.out)
    seen.doctor = true
    for _, command in ipairs(parser._commands) do assert.is_true(seen[command._name], command._name) end
  end)
end)

-- What a terminal sees: its width, its colours. `script` gives a command one.
describe("on a terminal", function()
  local url

  setup(function()
    url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "mail"
    assert(q:push(("long.name."):rep(9), 1))
    assert(q:push("bad", 1, { max_attempts = 1 }))
    local job = q:claim { names = { "bad" } }
    job:fail(("no luck, "):rep(20))
  end)

  --- What a command writes on a terminal, of 70 columns unless it is told.
  local function typed(command, env, columns)
    local status, out = proc.run { "script", "-qec", ("stty cols %d; %s"):format(columns or 70, command), "/dev/null",
      env = env }
    assert.equal(0, status, out)
    return (out:gsub("\r\n", "\n"))
  end

  local function jobs(env)
    env.NIGHTSHIFT_URL = url
    return typed(proc.program .. " jobs", env)
  end

  it("tables fit, and numbers stay whole", function()
    local text, n = jobs { TERM = "dumb" }, 0
    for line in text:gmatch "[^\n]+" do
      n = n + 1
      assert.is_true(utf8.len(line) <= 70, line)
    end
    assert.equal(3, n)
    says("…", text)
    assert.matches("\n *%d+  mail +long[^ ]*… ", text)
    local piped = run({ "jobs" }, url)
    says(("long.name."):rep(9), piped.out)
  end)

  it("states have colours, unless NO_COLOR or the terminal says no, or it is a pipe", function()
    local red = "\27[31mdead\27[0m"
    says(red, jobs { TERM = "xterm", NO_COLOR = false })
    says(red, jobs { TERM = "xterm", NO_COLOR = "" })
    for _, env in ipairs { { TERM = "xterm", NO_COLOR = "1" }, { TERM = "dumb", NO_COLOR = false },
      { TERM = "", NO_COLOR = false } } do
      assert.is_nil(jobs(env):find("\27", 1, true))
    end
    local env = { TERM = "xterm", NO_COLOR = false }
    assert.is_nil(run({ "jobs" }, url, { env = env }).out:find("\27", 1, true))
  end)

  it("verbs on many jobs, and on rows of a table, say how far they are", function()
    local many = db.fresh()
    local handle <close> = assert(nightshift.open(many))
    local items = {}
    for i = 1, 5000 do items[i] = { "n", i } end
    assert(handle:queue "crowd":push_many(items))
    local env = { NIGHTSHIFT_URL = many, TERM = "xterm" }
    local text = typed(proc.program .. " cancel --queue crowd --yes --rate 9000", env)
    assert.matches("\r%[#* *%] +%d+%%  [%d,]+ jobs  [%d,]+/s  [%d.]+%l* left\27%[K", text)
    assert.matches("\r\27%[K5000 jobs cancelled\n$", text)
    text = typed(proc.program .. " prune --done 0 --dead 0 --yes", env)
    assert.matches("\r%[#* *%] +%d+%%  [%d,]+ jobs  [%d,]+/s  [%d.]+%l* left\27%[K", text)
    assert.matches("\r\27%[Kdeleted 5000 jobs\n$", text)
  end)

  it("work --drain says how far it is, below its log, and what handlers print is whole", function()
    local own = db.fresh()
    local handle <close> = assert(nightshift.open(own))
    local items = {}
    for i = 1, 30 do items[i] = { "n", i } end
    assert(handle:queue "crowd":push_many(items))
    local script = fixture.file("jobs.lua", [[return { n = function(job)
      print("said " .. job.payload)
      require "nightshift.core".sleep(0.03)
    end }]])
    local command = ("%s work %s --workers 1 --drain-within 0"):format(proc.program, script)
    local env = { NIGHTSHIFT_URL = own, TERM = "xterm" }
    local text = typed(command, env, 90)
    assert.matches("\r%[#+ *%] +%d+%%  %d+ of 30 jobs  %d+/s  %d+s left\27%[K\r", text)
    assert.matches("\27%[Ksaid 30\n", text)
    assert.matches("\r\27%[K\r[^#]*event=host.end [^\n]*\n$", text)
    assert.is_nil(typed(command, { NIGHTSHIFT_URL = own, TERM = "dumb" }, 90):find("\27", 1, true))
  end)

  it("push --lines says how far it is, with the time that is left when stdin is a file", function()
    local lines = {}
    for i = 1, 20000 do lines[i] = ("%d"):format(i) end
    local file = fixture.file("lines", table.concat(lines, "\n"))
    local command = ("%s push mail n --lines < %s > /dev/null"):format(proc.program, file)
    local text = typed(command, { NIGHTSHIFT_URL = url, TERM = "xterm" })
    assert.matches("\r%[#* *%] +%d+%%  [%d,]+ jobs  [%d,]+/s  [%d.]+%l* left\27%[K", text)
    assert.matches("\r\27%[K$", text)
    assert.equal("", typed(command, { NIGHTSHIFT_URL = url, TERM = "dumb" }))
  end)
end)
