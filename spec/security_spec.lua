-- Values travel as parameters, never as SQL text; passwords stay where they were put. TLS to
-- the server, the environment that libmariadb reads, core dumps, and the flags of compiler and
-- linker. The grants that `nightshift doctor --grants` prints: enough for each role's verbs, for
-- nothing else, and each of them needed.

local core = require "nightshift.core"
local db = require "spec.support.db"
local grants = require "nightshift.doctor.grants"
local handlers = require "nightshift.handlers"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

-- Values travel as parameters, never as SQL text: the sources are searched for
-- text that is put together, and nasty strings go through every verb.
describe("injection:", function()
  local NASTY = {
    "x'; DROP TABLE nightshift_job; -- ", "' OR '1'='1", '" OR ""="', "`; DROP TABLE nightshift_queue; `", "\\", "\\'",
    "\\\\' OR 1=1 -- ", "'", "''", "'''", '"', "`", "``", ";", "--", "-- ", "#", "/*", "*/",
    "/*! DROP TABLE nightshift_job */", "?", "??", ":name", "@nightshift_id", "@@version", "%", "_", "%s%d%n", "{now}",
    "{end}", "(queues)", "/*lanes*/", "NULL", "null", "nil", "0", "-1", "1e309", "0x41", "CHAR(39)", "SLEEP(10)",
    "x' AND SLEEP(10) AND 'x", "\u{BF}'", "縗' OR 1=1", "\u{202E}abc", "\u{FEFF}bom", "e\u{301}", "\u{1F4A3}", "a b",
      " a",
    "a ", "<script>alert(1)</script>", "${jndi:ldap://x}", "$.a", "$[*]", "[1,2]", '{"id":1}', "A", "a", "ß", "ss",
  }

  local function read(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read "a"
  end

  local function files(pattern)
    local list = {}
    for path in io.popen("ls " .. pattern):lines() do list[#list + 1] = path end
    return list
  end

  --- What the schema is, in one text.
  local function schema(name)
    return db.sql([[SELECT table_name, column_name, column_type, is_nullable, column_default
    FROM information_schema.columns WHERE table_schema = DATABASE() ORDER BY 1, ordinal_position;
    SELECT routine_name, MD5(routine_definition), definer FROM information_schema.routines
    WHERE routine_schema = DATABASE() ORDER BY 1;
    SELECT table_name, constraint_name, check_clause FROM information_schema.check_constraints
    WHERE constraint_schema = DATABASE() ORDER BY 1, 2]], name)
  end

  describe("SQL", function()
    it("is put together in few places only, from numbers and fixed text", function()
      -- the ranges of a claim's lanes, the numbers of its names. The ids of queues of a listener
      -- and of a drain that looks ahead. Also numbers of verdicts, in a comment
      local allowed = { ["src/core/claim/statement.c"] = true, ["src/core/wake/listener.c"] = true,
        ["src/core/claim/promote.c"] = true, ["src/base/text.c"] = true,
        ["src/core/holder/holder.c"] = true }
      local found = {}
      for _, path in ipairs(files "src/*/*.c src/*/*/*.c") do
        local source = read(path):gsub('"%s*\n%s*"', "")
        if source:find("ns_buf_fill(", 1, true) and not allowed[path] then found[#found + 1] = path .. " fills in" end
        -- a format that takes text, and begins like SQL
        for literal in source:gmatch '"([^"\n]*)"' do
          if literal:find "^%u%u%u%u+ %u*.*%%[%d%.%*]*s" and not literal:find "^%u+ %l" then
            found[#found + 1] = path .. ": " .. literal
          end
        end
      end
      assert.same({}, found)
    end)

    it("is in Lua the name of a statement, or the caller's own", function()
      local found = {}
      for _, path in ipairs(files "lua/nightshift/*.lua lua/nightshift/*/*.lua") do
        for argument in read(path):gmatch ":execute%s*(%b())" do
          local first = argument:match "^%(%s*([^,]-)%s*[,)]"
          local fine = first:find '^"@[%l_]+"$' or first:find '^"@" %.%. statement$' -- a name
            or first == '"@report_jobs_page_" .. kind' or first == '"@report_why_" .. statement' -- one of some
            or first == '"@admin_payloads_" .. kind' -- ended or live
            or first == '"@report_counts_" .. statement'
            or first == "sql" -- db:execute itself
            or (first == "..." or first == "table.unpack(given") and path:find "cli/shards%.lua$" -- the same, handed on
            or first == "statement" -- of report.lua, a name
            or first == '"SHOW CREATE TABLE " .. name' -- of the schema's own text
            or first:find "^checks%.question%(" -- an EXPLAIN
            or first:find '^"@:" %.%. mapping%.fill%(' -- a template: names in backticks, literals in hex
            or first == "moves" and path:find "source/admin%.lua$" -- the same: names in backticks
            or first == '"@:" .. self.texts[name]' -- made of those by source/text.lua
          if not fine then found[#found + 1] = path .. ": execute" .. argument end
        end
      end
      assert.same({}, found)
    end)

    it("has a parameter, not a quoted value, in every statement, and is one statement", function()
      for _, name in ipairs(core.statements()) do
        local sql = core.sql(name)
        assert.is_nil(sql:find "'%?'", name)
        local whole = sql:find "^BEGIN NOT ATOMIC%s.*%sEND%s*$"
        assert.is_true(whole ~= nil or not sql:gsub("'[^'\n]*'", ""):find ";%s*%S", name)
      end
      assert.is_true(#core.statements() > 50)
    end)

    it("of the caller is one statement as well", function()
      local handle <close> = assert(nightshift.open((db.fresh())))
      assert.equal("SQL", select(3, handle:execute "SELECT 1; SELECT 2"))
    end)
  end)

  describe("nasty strings", function()
    local url, name, handle, before

    setup(function()
      url, name = db.fresh()
      before = schema(name)
      handle = assert(nightshift.open(url))
    end)
    teardown(function() handle:close() end)
    after_each(function() assert.equal(before, schema(name)) end)

    it("come back from push, claim and every verdict as they went in", function()
      for _, text in ipairs(NASTY) do
        local q = assert(handle:queue(text))
        local id = assert(q:push(text, { [text] = text }, { unique = text }))
        local other = assert(q:push(text, text))
        assert.equal("DUPLICATE", select(3, q:push(text, 1, { unique = text })), text)
        local job = assert(q:claim())
        assert.same({ id, text, text, { [text] = text } }, { job.id, job.name, job.queue, job.payload })
        assert(job:progress(0.5, text))
        job:log(text)
        assert(job:again(0, { s = text }))
        local seen = 0
        for back in q:jobs() do
          seen = seen + 1
          if back.id == id then
            assert.same({ s = text }, back.state)
            assert(back:ack(text))
          else
            assert(back:discard(text))
          end
        end
        assert.equal(2, seen)
        assert.equal(text, assert(handle:job(id)).result)
        assert.equal(text, assert(handle:job(other)).error)
      end
    end)

    it("change nothing but what they name, through the verbs from outside", function()
      local q = handle:queue "victim"
      local victim = assert(q:push("victim", 1))
      for i = 1, #NASTY, 2 do
        local text = NASTY[i]
        local mine = assert(handle:queue(text))
        local id = assert(mine:push(text, 1))
        assert(mine:pause())
        assert.is_nil((mine:claim()))
        assert(mine:resume())
        for _, row in ipairs(assert(handle:jobs { queue = text, name = text, limit = 100 })) do
          assert.same({ text, text }, { row.queue, row.name })
        end
        for _, row in ipairs(assert(handle:jobs { queue = text, error = text })) do
          assert.is_true(row.error == text or row.error == nil, row.error)
        end
        assert.same({ found = 1, changed = 1, refused = 0 },
          assert(handle:reprioritise({ queue = text, name = text }, 90)))
        for _, verb in ipairs { "cancel", "run_now" } do
          assert.equal(0, assert(handle[verb](handle, { error = text })).found, verb)
        end
        assert(handle:cancel(id, { reason = text }))
        assert.equal(1, assert(handle:retry { state = "cancelled", queue = text, error = text }).changed)
        assert(assert(mine:claim()):fail(text))
        assert(handle:run_now(id))
        assert(assert(mine:claim()):ack { text })
        assert.equal("ready", assert(handle:job(victim)).state)
      end
      assert.equal(victim, assert(q:claim()).id)
    end)

    it("are bound in transactions and in the caller's own SQL", function()
      for _, text in ipairs(NASTY) do
        local rows = assert(handle:transaction(function(tx)
          assert(tx:queue(text):push(text, text))
          return tx:execute("SELECT ? AS it, ? = ? AS same", text, text, text)
        end))
        assert.same({ text, 1 }, { rows[1].it, rows[1].same })
      end
    end)

    it("may be anything in nightshift_push", function()
      for _, text in ipairs(NASTY) do
        local payload, options = nightshift.encode { text }, nightshift.encode { unique = "push:" .. text }
        assert(handle:execute("CALL nightshift_push(?, ?, ?, ?)", text, text, payload, options))
        local id = handle:execute("SELECT @nightshift_id AS id")[1].id
        local info = assert(handle:job(id))
        assert.same({ text, text, text, "push:" .. text }, { info.queue, info.name, info.payload[1], info.unique })
        assert.is_nil((handle:execute("CALL nightshift_push('q', 'n', '1', ?)", nightshift.encode { [text] = text })))
      end
    end)

    it("may be anything on the command line", function()
      for i = 1, #NASTY, 8 do
        local text = NASTY[i]
        local status, out, err = proc.nightshift({ "push", "--", text, text, nightshift.encode(text) }, url)
        assert.equal(0, status, err)
        local id = out:match "^(%d+)\n$"
        assert.equal(0, (proc.nightshift({ "jobs", "--queue=" .. text, "--name=" .. text }, url)))
        assert.equal(0, (proc.nightshift({ "pause", "--", text }, url)))
        assert.equal(0, (proc.nightshift({ "resume", "--", text }, url)))
        assert.equal(0, (proc.nightshift({ "cancel", "--reason=" .. text, id }, url)))
        local _, json = proc.nightshift({ "show", id, "--json" }, url)
        local info = nightshift.decode(json)
        assert.same({ text, text, text, "cancelled" }, { info.queue, info.name, info.payload, info.state })
      end
    end)

    it("are compared byte for byte as names of queues", function()
      local ids, n = {}, 0
      for _, queue in ipairs { "A", "a", "a ", " a", "ß", "ss", "e\u{301}", "\u{E9}" } do
        ids[assert(handle._handle:queue_id("same:" .. queue, true))] = queue
      end
      for _ in pairs(ids) do n = n + 1 end
      assert.equal(8, n)
    end)

    it("do not depend on the server's sql_mode", function()
      db.sql "SET GLOBAL sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'"
      local ok, err = pcall(function()
        local other <close> = assert(nightshift.open(url))
        for i = 1, 20 do
          local id = assert(other:queue("mode"):push(NASTY[i], NASTY[i]))
          assert.same({ NASTY[i], NASTY[i] }, { other:job(id).name, other:job(id).payload })
        end
      end)
      db.sql "SET GLOBAL sql_mode = DEFAULT"
      assert(ok, err)
    end)
  end)
end)

-- Passwords stay where they were put. They are neither in the output of `ps`, nor in the
-- environment of workers or their children, nor in logs and messages.
describe("a password", function()
  local SECRET = "Pass-word_1" -- of db.user

  local function read(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read "a"
  end

  local function hides(text)
    assert.is_nil(text:find(SECRET, 1, true), text)
  end

  -- A handler that tells what it can see of the secret.
  local LOOK = [[
local early = os.getenv "NIGHTSHIFT_URL"
local function sees(text) return text:find("Pass-word_1", 1, true) ~= nil end
return { look = function(job)
  local block <close> = io.open "/proc/self/environ"
  local child <close> = io.popen "env"
  return { early = early ~= nil, late = os.getenv "NIGHTSHIFT_URL" ~= nil, password = os.getenv "MYSQL_PWD" ~= nil,
    block = sees(block:read "a"), child = sees(child:read "a") }
end,
open = function(job)
  local db <close> = assert(require "nightshift".open())
  return db:execute("SELECT DATABASE() AS name")[1].name
end }
]]

  local url, open, name

  before_each(function()
    local root
    root, name = db.fresh()
    url = db.user(root, "ALL")
    open = assert(nightshift.open(root))
  end)
  after_each(function() open:close() end)

  local function results(script, env, args)
    for job in script:gmatch "%S+" do assert(open:queue("q"):push(job, 1)) end
    local status, log = host.drain(url, LOOK, args or { "--drain-within", "500ms" }, env)
    assert.equal(0, status, log)
    hides(log)
    local found = {}
    for _, row in ipairs(assert(open:jobs { state = "done" })) do found[row.name] = open:job(row.id).result end
    return found
  end

  it("is not in a worker's environment, nor in that of what it starts", function()
    assert.same({ early = false, late = false, password = false, block = false, child = false },
      results("look", { MYSQL_PWD = SECRET }).look)
  end)

  it("is in both when the host was asked to leave it there", function()
    assert.same({ early = true, late = true, password = true, block = false, child = true },
      results("look", { MYSQL_PWD = SECRET }, { "--drain-within", "500ms", "--keep-env" }).look)
  end)

  it("need not be known to a handler that opens its host's database", function()
    assert.equal(name, results("open").open)
  end)

  it("is gone from the arguments and the environment block of every process of a host", function()
    for _, form in ipairs { { "--url=" .. url }, { "--url", url } } do
      local path = fixture.file("jobs.lua", LOOK)
      local h = proc.start { proc.program, "work", path, "--workers", "2", form[1], form[2],
        env = { NIGHTSHIFT_URL = url, MYSQL_PWD = SECRET } }
      h:wait_line("host.ready", 20)
      local family = host.family(h.pid)
      table.insert(family, h.pid)
      assert.is_true(#family >= 4)
      for _, pid in ipairs(family) do
        local arguments = read(("/proc/%d/cmdline"):format(pid))
        hides(arguments)
        if pid == h.pid then assert.is_truthy(arguments:find("@localhost/" .. name, 1, true), arguments) end
        hides(read(("/proc/%d/environ"):format(pid)))
      end
      assert(h:signal "USR1")
      h:wait_line "dump.host"
      assert(h:signal "TERM")
      assert.equal(0, h:wait())
      local out, err = h:text()
      hides(out .. err)
    end
  end)

  it("with no @ behind it is blanked with all of its URL", function()
    local p = proc.start { proc.program, "push", "q", "n", "-", "--url", "mysql://u:" .. SECRET,
      env = { NIGHTSHIFT_URL = false }, stdin = "1" }
    p:wait()
    local out, err = p:text()
    hides(out .. err)
  end)

  it("is in no message about a connection that fails", function()
    local bad = {
      url:gsub("Pass%-word_1", "%0x"),
      "mysql://u:" .. SECRET .. "@no-such-host.invalid/x",
      "mysql://u:" .. SECRET .. "@127.0.0.1:1/x",
      "mysql://u:" .. SECRET .. "@localhost/x?unix_socket=/nonexistent",
      "mysql://u:" .. SECRET .. "@h:port/x",
      "mysql://u:" .. SECRET .. "/@h/x",
      "mysql://u:" .. SECRET .. "#@h/x",
      "mysql://u:" .. SECRET .. "%@h/x",
      "mysql://u:" .. SECRET,
      "mysql:/u:" .. SECRET .. "@h/x",
      "postgres://u:" .. SECRET .. "@h/x",
      "u:" .. SECRET .. "@h/x",
      (url:gsub("/[^/]+_%d+%?", "/no_such_database?")),
    }
    local commands = { { "status" }, { "doctor" }, { "work", fixture.file("jobs.lua", LOOK) } }
    for i, address in ipairs(bad) do
      -- all of them where it is a URL, and one in turn where it is none
      local is_url = i <= 4 or i == #bad
      for k = is_url and 1 or i % 3 + 1, is_url and 3 or i % 3 + 1 do
        local argv = commands[k]
        local status, out, err = proc.nightshift(argv, address)
        assert.not_equal(0, status, address)
        hides(out .. err)
      end
      local none, message = nightshift.open(address)
      assert.is_nil(none)
      hides(message)
    end
  end)

  it("is in no text of a handle or of its errors", function()
    local handle <close> = assert(nightshift.open(url))
    hides(tostring(handle))
    hides(tostring(handle:queue "q"))
    hides(select(2, handle:execute "SELECT nonsense"))
    hides(select(2, pcall(nightshift.open, { url = url, sokcet = 1 })))
  end)
end)

-- Job scripts are text, and names are names: nothing that a job carries ever
-- becomes a path or code.
describe("a handler file", function()
  for _, strip in ipairs { false, true } do
    it("of bytecode is refused, and the message says what it is; stripped: " .. tostring(strip), function()
      local chunk = string.dump(assert(load "return { a = function() end }"), strip)
      local file = fixture.file("jobs.lua", chunk)
      local none, message = handlers.load { file }
      assert.is_nil(none)
      assert.is_truthy(message:find(file, 1, true), message)
      assert.is_truthy(message:find("compiled", 1, true), message)
      local status, _, err = proc.nightshift({ "work", file, "--drain" }, (db.fresh()))
      assert.equal(78, status)
      assert.is_truthy(err:find("compiled", 1, true), err)
      assert.equal(78, (proc.nightshift { "run", "a", "--script", file }))
    end)
  end

  it("of bytecode behind a first line with # is refused as well", function()
    local file = fixture.file("jobs.lua", "#!/usr/bin/lua\n" .. string.dump(assert(load "return {}")))
    assert.is_nil((handlers.load { file }))
  end)

  it("that is hidden in a folder is not read", function()
    local folder = fixture.dir()
    for name, text in pairs { [".evil.lua"] = "error 'evil'", ["evil.lua~"] = "error 'evil'",
      ["a.lua"] = "return { a = function() return 1 end }" } do
      local file <close> = assert(io.open(folder .. "/" .. name, "w"))
      file:write(text)
    end
    local status, out, err = proc.nightshift { "run", "a", "--script", folder }
    assert.same({ 0, "ack 1\n", "" }, { status, out, err })
  end)
end)

describe("a name that looks like a path", function()
  local NAMES = { "../../../../etc/passwd", "/etc/passwd", "..", ".", "a/b", "jobs.lua", "./jobs", "a/../jobs",
    "~root/x", "file:///etc/passwd", "$(touch evil)", "`touch evil`", "; touch evil", "|touch evil", "%s%n%p", "-h",
    "" }

  it("is a name: of a job, of its queue and of its unique key", function()
    local url = db.fresh()
    local open <close> = assert(nightshift.open(url))
    local folder = fixture.dir()
    local script = [[local functions = { known = function() end }
      return functions]]
    local path = folder .. "/jobs.lua"
    local file <close> = assert(io.open(path, "w"))
    file:write(script)
    file:flush()
    local pushed = 0
    for _, name in ipairs(NAMES) do
      if name ~= "" then
        assert(open:queue(name):push(name, { name = name }, { unique = name }))
        pushed = pushed + 1
      else
        assert.equal("INVALID", select(3, open:queue(name)))
        assert.equal("INVALID", select(3, open:queue("q"):push(name, 1)))
      end
    end
    local h = proc.start { proc.program, "work", path, "--workers", "2", cwd = folder,
      env = { NIGHTSHIFT_URL = url } }
    local known = assert(open:queue("q"):push "known")
    eventually(function() return assert(open:job(known)).state == "done" end, 20)
    assert.equal(pushed, #assert(open:jobs { state = "ready" }))
    assert(h:signal "TERM")
    assert.equal(0, h:wait())
    local listing <close> = io.popen("ls -A " .. folder)
    assert.equal("jobs.lua\n", listing:read "a")
    for _, row in ipairs(assert(open:jobs { state = "ready" })) do
      assert.equal(row.name, row.queue)
    end
  end)

  it("with a NUL, a control character or bad UTF-8 is refused before anything is written", function()
    local open <close> = assert(nightshift.open((db.fresh())))
    local q = open:queue "q"
    for _, name in ipairs { "a\0b", "a\0", "\0", "a\nb", "a\27[31m", "a\127", "\xff\xfe", "\xc0\xaf",
      "\xed\xa0\x80" } do
      assert.equal("INVALID", select(3, q:push(name, 1)), name)
      assert.equal("INVALID", select(3, open:queue(name)), name)
    end
    assert.same({}, assert(open:jobs()))
  end)

  it("of a handler file's handler may be a path no more than any other", function()
    local file = fixture.file("jobs.lua", "return { ['../x'] = function() return 'ran' end }")
    local url = db.fresh()
    local open <close> = assert(nightshift.open(url))
    local id = assert(open:queue("q"):push("../x", 1))
    assert.equal(0, (host.drain(url, file)))
    assert.equal("ran", open:job(id).result)
  end)
end)

-- TLS to the server: verified when asked, encrypted when trusted, and never
-- quietly plain text. The certificates are made here by openssl.
describe("TLS", function()
  local function openssl(folder, ...)
    local status, _, err = proc.run { "openssl", cwd = folder, ... }
    assert.equal(0, status, err)
  end

  local NEW_KEY = { "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes" }

  --- A certificate authority, and by it a server's certificate for `name`.
  local function authority(folder, name)
    openssl(folder, "req", "-x509", "-keyout", "ca-key.pem", "-out", "ca.pem", "-days", "2", "-subj", "/CN=spec CA",
      table.unpack(NEW_KEY))
    openssl(folder, "req", "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=server", table.unpack(NEW_KEY))
    local file <close> = assert(io.open(folder .. "/names", "w"))
    file:write("subjectAltName=", name, "\n")
    file:close()
    openssl(folder, "x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial",
      "-days", "2", "-extfile", "names", "-out", "cert.pem")
  end

  local function read(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read "a"
  end

  --- This machine's address on a network, if it is on one.
  local function outer_address()
    local pipe <close> = io.popen "hostname -I 2>/dev/null"
    return pipe:read "a":match "%d+%.%d+%.%d+%.%d+"
  end

  local folder, server, port, outer, name

  setup(function()
    folder, port, outer = fixture.dir(), proc.free_port(), outer_address()
    authority(folder, "IP:127.0.0.1")
    server = db.server(([[
skip-networking=0
bind-address=%s
port=%d
ssl-cert=FOLDER/cert.pem
ssl-key=FOLDER/key.pem
]]):format(outer and "127.0.0.1," .. outer or "127.0.0.1", port),
      { ["cert.pem"] = read(folder .. "/cert.pem"), ["key.pem"] = read(folder .. "/key.pem") })
    local _
    _, name = server:fresh()
    server:sql(("CREATE USER u IDENTIFIED BY 'hunter2'; GRANT ALL ON `%s`.* TO u"):format(name))
  end)

  local function open(options)
    local all = { host = "127.0.0.1", port = port, user = "u", password = "hunter2", database = name }
    for key, value in pairs(options or {}) do all[key] = value end
    return nightshift.open(all)
  end

  local function cipher(handle)
    return assert(handle:execute "SHOW STATUS LIKE 'Ssl_cipher'")[1].Value
  end

  local function refused(text, handle, message, code)
    assert.is_nil(handle)
    assert.equal("DENIED", code, message)
    assert.is_truthy(message:find(text), message)
  end

  it("verify refuses a certificate that nobody known has signed", function()
    refused("certificate", open { tls = "verify" })
  end)

  it("verify accepts it with the authority's certificate", function()
    local handle <close> = assert(open { tls = "verify", ca = folder .. "/ca.pem" })
    assert.is_truthy(cipher(handle):find "^TLS_")
  end)

  it("is verified when a ca is given without a word about tls", function()
    local handle <close> = assert(open { ca = folder .. "/ca.pem" })
    assert.is_truthy(cipher(handle):find "^TLS_")
  end)

  it("verify refuses the certificate of another host", function()
    if not outer then return pending "this machine is on no network" end
    refused("certificate", open { host = outer, tls = "verify", ca = folder .. "/ca.pem" })
  end)

  it("verify refuses a ca file that is not there", function()
    assert.is_nil((open { tls = "verify", ca = folder .. "/none.pem" }))
  end)

  it("trust encrypts and asks for no certificate", function()
    local handle <close> = assert(open { tls = "trust" })
    assert.is_truthy(cipher(handle):find "^TLS_")
  end)

  it("off sends plain text, and this machine is off by itself", function()
    for _, options in ipairs { { tls = "off" }, {} } do
      local handle <close> = assert(open(options))
      assert.equal("", cipher(handle))
    end
  end)

  it("is verified by itself to another machine", function()
    if not outer then return pending "this machine is on no network" end
    refused("certificate", open { host = outer })
    local plain <close> = assert(open { host = outer, tls = "off" })
    assert.equal("", cipher(plain))
  end)

  it("is wanted to another machine that only an option file names", function()
    if not outer then return pending "this machine is on no network" end
    local file = fixture.file("my.cnf", ("[client]\nhost=%s\nport=%d\nuser=u\npassword=hunter2\n"):format(outer, port))
    refused("certificate", nightshift.open { file = file, database = name })
    local trusted <close> = assert(nightshift.open { file = file, database = name, tls = "trust" })
    assert.is_truthy(cipher(trusted):find "^TLS_")
    local plain <close> = assert(nightshift.open { file = file, database = name, tls = "off" })
    assert.equal("", cipher(plain))
  end)

  it("takes the authority that an option file names, but no leave to skip the check", function()
    local lines = ("[client]\nhost=127.0.0.1\nport=%d\nuser=u\npassword=hunter2\n"):format(port)
    local file = fixture.file("ca.cnf", lines .. "ssl-ca=" .. folder .. "/ca.pem\n")
    local verified <close> = assert(nightshift.open { file = file, database = name, tls = "verify" })
    assert.is_truthy(cipher(verified):find "^TLS_")
    file = fixture.file("lax.cnf", lines .. "ssl-verify-server-cert=0\n")
    refused("certificate", nightshift.open { file = file, database = name, tls = "verify" })
  end)

  it("is wanted to a name or number that only looks like this machine", function()
    local plain = proxy.start(db.shared(), "tcp")
    plain:tell "trace"
    refused("offers no TLS", open { host = "127.1", port = math.tointeger(tonumber(plain.port)) })
    assert.is_nil(plain:tell("report"):find "[cC]")
    local handle = nightshift.open { url = plain:url(db.fresh()):gsub("%?tls=off", "") }
    assert.is_truthy(handle)
    handle:close()
  end)

  -- The same machine, seen from a network where it has another address.
  local ADDRESS = "192.0.2.9"
  local ELSEWHERE = "ip link set lo up && ip addr add " .. ADDRESS .. "/32 dev lo &&"

  local function other_network()
    local _, euid = nst.ids()
    return euid == 0 and os.execute("unshare -n sh -c '" .. ELSEWHERE .. " true' 2>/dev/null")
      and os.execute "nsenter --version >/dev/null 2>&1"
  end

  it("sends nothing to another machine without TLS, whoever names it", function()
    if not other_network() then return pending "only root can make a network to try this in" end
    local url, database = db.fresh()
    local far = proxy.start(db.shared(), "tcp:" .. ADDRESS, "unshare -n sh -c '" .. ELSEWHERE .. ' exec "$@"\' sh')
    local function open_there(query)
      far:tell "trace"
      local exit, _, err = proc.run { "nsenter", "-n", "-t", far.process.pid, proc.program, "status", "--url",
        "mysql:///" .. database .. "?" .. query }
      local sent = far:tell("report"):find "[cC]"
      return exit, err, sent
    end
    local to = ("host=%s\nport=%s\nuser=root\n"):format(ADDRESS, far.port)
    local file = fixture.file("far.cnf", "[client]\n" .. to .. "[odd]\nport=" .. far.port .. "\n")
    local connection = fixture.file("odd.cnf",
      ("[client]\nconnection=host=%s;port=%s;user=root\n"):format(ADDRESS, far.port))
    for _, query in ipairs { "file=" .. file, "file=" .. file .. "&group=odd", "file=" .. connection } do
      local exit, err, sent = open_there(query)
      assert.equal(78, exit, err)
      assert.is_truthy(err:find("offers no TLS", 1, true), err)
      assert.is_nil(sent)
    end
    local exit, err, sent = open_there("file=" .. file .. "&tls=off")
    assert.equal(0, exit, err)
    assert.is_truthy(sent)
    -- a socket is of this machine, whatever host a file names
    local socket = url:match "unix_socket=([^&]*)"
    exit, err, sent = open_there("file=" .. file .. "&unix_socket=" .. socket)
    assert.equal(0, exit, err)
    assert.is_nil(sent)
  end)

  it("is off to this machine when only an option file names it", function()
    for _, named in ipairs { "127.0.0.1", "localhost", "127.9.9.9" } do
      local plain = proxy.start(db.shared(), "tcp:" .. (named == "localhost" and "127.0.0.1" or named))
      local _, database = db.fresh()
      local lines = ("[client]\nhost=%s\nport=%s\nuser=root\nprotocol=1\n"):format(named, plain.port)
      local handle <close> = assert(nightshift.open { file = fixture.file("my.cnf", lines), database = database })
      assert.equal("", cipher(handle))
    end
  end)

  it("is used by the listener as well", function()
    local handle <close> = assert(open { tls = "verify", ca = folder .. "/ca.pem" })
    local function accepted()
      return tonumber(handle:execute("SHOW GLOBAL STATUS LIKE 'Ssl_accepts'")[1].Value)
    end
    local before = accepted()
    eventually(function() -- a claim with a time that is over with its first look makes no listener
      assert.is_nil(handle:queue("q"):claim { wait = 0.2 })
      return accepted() > before
    end)
    assert.equal(before + 1, accepted())
  end)

  for _, tls in ipairs { "verify", "trust" } do
    it(tls .. " refuses a server that offers none", function()
      local url = db.fresh()
      local handle, message, code = nightshift.open(url .. "&tls=" .. tls)
      refused("TLS", handle, message, code)
    end)
  end
end)

-- What libmariadb reads from the environment by itself must not matter: a password that was not
-- given, option files, plugins to load.
describe("the environment", function()
  local TRY = [=[
local nightshift = require "nightshift"
local options = { socket = arg[1], user = arg[2], database = arg[3] }
if arg[4] ~= "" then options[arg[4]] = arg[5] end
local handle, message, code = nightshift.open(options)
print(handle and "open" or code, message or "")
]=]

  local url, name, user, program

  before_each(function()
    local root
    root, name = db.fresh()
    url, user = db.user(root, "ALL")
    program = fixture.file("try.lua", TRY)
  end)

  -- A foreign program with the module: what does open say?
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

-- The host has the URL with its password in memory, so it leaves no core behind,
-- however generous the limits of its starter are.
describe("a core dump", function()
  local function read(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read "a"
  end

  --- Soft and hard, in bytes. Of 1 the kernel makes nothing, see process/isolation.c.
  local function limits(pid)
    local soft, hard = read("/proc/" .. pid .. "/limits"):match "Max core file size%s+(%S+)%s+(%S+)"
    return { tonumber(soft), tonumber(hard) }
  end

  local function started(limit)
    local folder = fixture.dir()
    local p = proc.start { "sh", "-c", "ulimit -c " .. limit .. '; exec "$@"', "sh", proc.program, "work",
      fixture.file("jobs.lua", "return {}"), cwd = folder, env = { NIGHTSHIFT_URL = (db.fresh()) } }
    p:wait_line "host.ready"
    return p, folder
  end

  it("of the host is not written", function()
    local p, folder = started "$(ulimit -H -c)"
    assert.same({ 1, 1 }, limits(p.pid))
    assert(os.execute("kill -SEGV " .. p.pid))
    p:wait()
    assert.is_nil(io.popen("ls " .. folder):read "l")
  end)

  it("stays away where it was", function()
    local limit = limits(started("0").pid)
    assert.is_true(limit[1] <= 1 and limit[2] <= 1)
  end)
end)

-- What the compiler and the linker were asked for stands in what they made.
-- The sanitizers' builds have their own flags.
describe("the built", function()
  local PROGRAM = proc.build .. "/bin/nightshift"
  local MODULE = proc.build .. "/nightshift/core.so"

  local function read(command)
    local pipe <close> = assert(io.popen(command .. " 2>&1"))
    return pipe:read "a"
  end

  local has_readelf = read "command -v readelf" ~= ""

  if os.getenv "SAN" or not has_readelf then
    return pending "needs readelf and a build without sanitizers"
  end

  it("program is position independent", function()
    assert.is_truthy(read("readelf -hW " .. PROGRAM):find "Type: +DYN")
    assert.is_truthy(read("readelf -dW " .. PROGRAM):find "Flags:[^\n]*PIE")
  end)

  for name, file in pairs { program = PROGRAM, module = MODULE } do
    it(name .. " has no executable stack and no writable relocations", function()
      local segments, dynamic = read("readelf -lW " .. file), read("readelf -dW " .. file)
      assert.is_truthy(segments:find "GNU_STACK[^\n]* RW +0x")
      assert.is_truthy(segments:find "GNU_RELRO")
      assert.is_truthy(dynamic:find "NOW")
      assert.is_nil(dynamic:find "TEXTREL")
    end)

    it(name .. " guards its stack and its buffers", function()
      local symbols = read("nm -D " .. file)
      assert.is_truthy(symbols:find "__stack_chk_fail")
      assert.is_truthy(symbols:find "__memcpy_chk")
    end)
  end

  it("code marks where jumps may land (x86)", function()
    if not read "uname -m":find "x86_64" then return pending "another machine" end
    assert.is_truthy(read("readelf -nW " .. proc.build .. "/core/link/url.o"):find "IBT, SHSTK")
  end)
end)

-- ----- grants

local function printed(role, account)
  local status, out, err = proc.nightshift { "doctor", "--grants", role, "--user", account }
  assert.equal(0, status, err)
  return out
end

--- A new database and a user of it with what the doctor prints for a role.
local function installed(role)
  local root, name = db.fresh()
  local url, user = db.user(root, "")
  db.sql(printed(role, user .. "@localhost"), name)
  return { root = root, name = name, url = url, user = user }
end

local function denied(value, message, code)
  assert.is_nil(value)
  assert.equal("DENIED", code, message)
end

local verbs = {} -- role -> function(place) that does all it may do

function verbs.caller(place)
  local h <close> = assert(core.open { url = place.url, no_schema = true })
  assert(h:execute("CALL nightshift_push('mail', 'email.send', '{}', '{\"unique\":\"a\",\"delay\":1}')"))
  local id = assert(h:execute "SELECT @nightshift_id AS id")[1].id
  assert(h:execute("CALL nightshift_push('mail', 'email.send', '{}', ?)",
    ('{"after":[%d],"parent":%d}'):format(id, id)))
  assert(h:execute("CALL nightshift_signal(?, 'true', 'approved')", id))
  assert(h:execute("CALL nightshift_ring()"))
end

function verbs.pusher(place)
  local h <close> = assert(nightshift.open(place.url))
  local q = assert(h:queue "mail")
  assert(q:push("email.send", { to = "a" }, { unique = "a" }))
  assert.equal("DUPLICATE", select(3, q:push("email.send", { to = "a" }, { unique = "a" })))
  assert(q:push_many { { "a", 1, { delay = 60 } }, { "b", 2, { priority = 3 } } })
  assert(h:transaction(function(tx) assert(tx:queue("new"):push("c", 3)) end))
  local id = assert(q:push("a", 1))
  assert(q:push("after", 1, { after = { id }, parent = id }))
  assert(q:push("after", 1, { after = { place.done } }))
  assert(q:push("late", 1, { after = { id }, parent = place.parked }))
  assert(h:flow { name = "all", children = { { name = "a", as = "a" }, { name = "b", after = { "a" } } } })
  assert(h:queue("narrow"):push("a", 1))
  assert(h:signal(id, { yes = true }, "approved"))
  assert(h._handle:ring())
end

-- Jobs of every ending, and a host that works them.
local HANDLERS = [[return {
  plain = function(job) assert(job.tags[1] == "w"); job:progress(0.5, "half"); job:spawn("child", 1); return 1 end,
  child = function() end,
  poll = function(job) if job.polls == 0 then return job:again(0, { n = 1 }) end end,
  fails = function() error "no" end,
  gone = function(job) return job:discard "no" end,
  parent = function(job) if job.polls == 0 then job:spawn("child", 1); return job:again(0) end end,
  waits = function(job)
    if job.phase == 0 then job:spawn("child", 1); return job:wait { on_fail = "continue" } end
    if job.phase == 1 then assert(job.results[1].outcome == "done"); return job:wait { signal = "go" } end
    return job.signal
  end,
}]]

--- Claims of a limited queue, and the end of its limit.
local function claim_few(place, h)
  local few, names = h:queue "few", { "mine" }
  for _ = 1, 3 do assert(few:push("mine", 1)) end
  db.sql([[REPLACE INTO nightshift_limit (queue_id, rate, rate_span) SELECT id, 100, 1000000 FROM nightshift_queue
    WHERE name = 'few'; UPDATE nightshift_queue SET limited = TRUE WHERE name = 'few']], place.name)
  for _ = 1, 2 do assert(assert(few:claim { names = names }):ack()) end
  db.sql("UPDATE nightshift_limit SET lifted = TRUE", place.name)
  assert(assert(few:claim { names = names }):ack())
  assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_limit", place.name))
end

function verbs.worker(place)
  -- A round before may have ended in the middle of a limit; a host would try to go by it for ever.
  db.sql([[DELETE FROM nightshift_limit; DELETE FROM nightshift_backlog;
    UPDATE nightshift_queue SET limited = FALSE]], place.name)
  local h <close> = assert(nightshift.open(place.url))
  assert(h._handle:ring()) -- first: without these two all goes on, only later
  assert(h._handle:execute("@listen_nudge", 0, 0))
  assert(h._handle:execute("@listen_out"))
  assert(h._handle:execute("@wait_ring", "[]"))
  assert(h._handle:execute "@report_pushed") -- of the metrics
  claim_few(place, h) -- before a host is started, for that costs more
  local q = assert(h:queue "mail")
  place.turn = (place.turn or 0) + 1 -- a schedule that stays the same is no action
  assert(h:schedule { name = "nightly", cron = "0 3 1 1 *", push = { "plain", place.turn } })
  assert(q:push("plain", 1, { unique = "w", tags = { "w" } }))
  assert(h:queue("narrow"):push("plain", 1))
  for _, name in ipairs { "poll", "fails", "gone", "parent" } do assert(q:push(name, 1, { max_attempts = 1 })) end
  local waits = assert(q:push("waits", 1, { max_attempts = 1 }))
  assert(h:signal(waits, "gone", "go"))
  local status, log = host.drain(place.url, HANDLERS)
  assert.is_true(status == 0 or status == 3, log) -- 3: jobs of other names are left
  assert.is_nil(log:find("denied", 1, true), log)
  assert.equal("gone", db.sql("SELECT JSON_VALUE(CONCAT('[', result, ']'), '$[0]') FROM nightshift_finished WHERE id = "
    .. waits, place.name))
  assert(q:push("mine", 1))
  local names = { "mine" }
  local job = assert(q:claim { names = names })
  assert(job:touch())
  assert(job:release())
  assert(assert(q:claim { names = names, lease = 60 }):ack())
  assert.equal(1, (h:lock "worker" (function() return 1 end)))
  assert.equal(0, (proc.nightshift({ "rescue", "--wait", "0" }, place.url)))
  assert.is_nil(q:claim { names = names, wait = 0.01 })
end

function verbs.dashboard(place)
  local h <close> = assert(nightshift.open(place.url))
  assert(h:stats())
  assert.equal("cancel", assert(h:audit { verb = "cancel" })[1].verb)
  for _, state in ipairs { false, "scheduled", "ready", "running", "waiting", "done", "dead", "cancelled" } do
    assert(h:jobs { state = state or nil })
  end
  for _, row in ipairs(assert(h:jobs())) do assert.equal("table", type(assert(h:job(row.id)).payload)) end
  for _, view in ipairs { "nightshift_jobs", "nightshift_history" } do assert(h:execute("SELECT * FROM " .. view)) end
  assert.equal(0, (proc.nightshift({ "status" }, place.url)))
  for _, row in ipairs(assert(h:jobs())) do
    assert.equal(0, (proc.nightshift({ "show", tostring(row.id) }, place.url)))
    assert.equal(0, (proc.nightshift({ "why", tostring(row.id) }, place.url)))
  end
end

local function read_denied(h, ...)
  for _, sql in ipairs { ... } do denied(h:execute(sql)) end
end

local forbidden = {} -- role -> function(place) that tries what it may not do

function forbidden.caller(place)
  local h <close> = assert(core.open { url = place.url, no_schema = true })
  read_denied(h, "SELECT id FROM nightshift_job", "SELECT id FROM nightshift_queue", "SELECT 1 FROM nightshift_jobs",
    "SELECT 1 FROM nightshift_history", "INSERT INTO nightshift_queue (name, created) VALUES ('x', 1)",
    "SELECT 1 FROM spec_secret")
  denied(nightshift.open(place.url))
end

function forbidden.pusher(place)
  local h <close> = assert(nightshift.open(place.url))
  read_denied(h, "SELECT payload FROM nightshift_job", "SELECT * FROM nightshift_job",
    "SELECT payload FROM nightshift_finished", "SELECT result FROM nightshift_finished",
    "SELECT 1 FROM nightshift_ready", "SELECT 1 FROM nightshift_jobs", "SELECT 1 FROM nightshift_history",
    "SELECT 1 FROM spec_secret", "DELETE FROM nightshift_ready", "UPDATE nightshift_job SET payload = '2'",
    "DROP TABLE nightshift_job", "CALL nightshift_push('a', 'b', '1', '{}')")
  local id = assert(h:queue("mail"):push("a", { secret = true }))
  denied(h:queue("mail"):push("b", 1, { after = { place.dead } })) -- would have to end at once
  denied(h:reprioritise(id, 1))
  read_denied(h, "SELECT value FROM nightshift_signal", "DELETE FROM nightshift_edge", "SELECT 1 FROM nightshift_child")
  denied(h:queue("mail"):claim())
  denied(h:job(id))
  denied(h:jobs())
  denied(h:cancel(id))
  denied(h:run_now(id))
  denied(h:prune())
  denied(h._handle:pause("mail", true))
end

function forbidden.worker(place)
  local h <close> = assert(nightshift.open(place.url))
  read_denied(h, "SELECT 1 FROM spec_secret", "DROP TABLE nightshift_job", "ALTER TABLE nightshift_job ADD x INT",
    "CREATE TABLE x (x INT)", "TRUNCATE nightshift_job", "SELECT error FROM nightshift_attempt",
    "SELECT payload FROM nightshift_finished", "DELETE FROM nightshift_finished",
    "UPDATE nightshift_meta SET value = '0'", "UPDATE nightshift_queue SET paused = TRUE",
    "SELECT 1 FROM nightshift_jobs", "SELECT 1 FROM nightshift_history", "CALL nightshift_push('a', 'b', '1', '{}')",
    "SELECT account FROM nightshift_audit", "DELETE FROM nightshift_audit", "UPDATE nightshift_audit SET account = 'x'")
  denied(h:prune())
  denied(h:audit())
  denied(h._handle:pause("mail", true))
end

function forbidden.dashboard(place)
  local h <close> = assert(nightshift.open(place.url))
  read_denied(h, "SELECT 1 FROM spec_secret", "INSERT INTO nightshift_queue (name, created) VALUES ('x', 1)",
    "DELETE FROM nightshift_finished", "UPDATE nightshift_job SET payload = '2'",
    "DELETE FROM nightshift_lease", "CALL nightshift_push('a', 'b', '1', '{}')",
    "CALL nightshift_signal(1, '1', 'a')")
  local id = assert(h:jobs())[1].id
  denied(h:queue("mail"):push("a", 1))
  denied(h:queue("mail"):claim())
  denied(h:cancel(id))
  denied(h:prune { done = 0, dead = 0 })
  denied(h._handle:pause("mail", true))
  denied(h._handle:ring())
end

--- Something for those who look: a job of each kind, with a failure.
local function fill(place)
  local h <close> = assert(nightshift.open(place.root))
  local q = h:queue "mail"
  assert(q:push_many { { "a", { n = 1 } }, { "b", { n = 2 }, { delay = 60 } }, { "c", { n = 3 } } })
  assert(assert(q:claim()):fail "no")
  local done = assert(q:claim())
  assert(done:ack())
  place.done = done.id
  place.dead = assert(q:push("dead", { n = 5 }))
  assert(h:cancel(place.dead))
  local parked = h:queue "parked"
  place.parked = assert(parked:push("parked", { n = 7 }))
  local parent = assert(parked:claim())
  parent:spawn("child", { n = 6 })
  assert(parent:wait())
  assert(q:push("d", { n = 4 }))
  assert(h:queue("narrow"):limit { backlog = 1000 })
  db.sql("CREATE TABLE spec_secret (x INT)", place.name)
  db.sql(("CREATE TABLE spec_theirs (id INT PRIMARY KEY, state INT); GRANT SELECT ON spec_theirs TO %s@localhost")
    :format(place.user), place.name)
  local t = assert(h:adopt { table = "spec_theirs", status = { column = "state", open = 1, processing = 3, done = 2 } })
  assert(t:claim_many(1))
end

--- Each privilege of a role by itself: {revoke, grant}, statements.
local function single(role, account)
  local list = {}
  for _, item in ipairs(grants[role].tables) do
    for privilege, columns in (item[2] .. ","):gmatch " ?(%u+) ?(%b())," do
      for column in columns:gmatch "[%w_]+" do
        list[#list + 1] = { ("%s (%s) ON %s"):format(privilege, column, item[1]), item[1] }
      end
    end
    local rest = (", " .. item[2]):gsub(", %u+ %b()", "")
    for privilege in rest:gmatch "%u+" do list[#list + 1] = { ("%s ON %s"):format(privilege, item[1]), item[1] } end
  end
  for _, routine in ipairs(grants[role].routines) do
    list[#list + 1] = { "EXECUTE ON PROCEDURE " .. routine, routine }
  end
  for i, item in ipairs(list) do
    list[i] = { what = item[1], of = item[2], revoke = ("REVOKE %s FROM %s"):format(item[1], account),
      grant = ("GRANT %s TO %s"):format(item[1], account) }
  end
  return list
end

--- May the user still prepare every statement of the role? Or those that name a table or routine,
--- of which one that is refused is enough.
local function complete(place, role, of)
  local h = core.open { url = place.url }
  if not h then return false end
  local refused = {}
  for _, name in ipairs(core.statements()) do
    if grants[role].runs(name) and (not of or core.sql(name):find(of, 1, true)) then
      local _, message, code = h:may(name)
      if code == "DENIED" then refused[#refused + 1] = name .. ": " .. message end
      if of and refused[1] then break end
    end
  end
  h:close()
  return #refused == 0, table.concat(refused, "\n")
end

for _, role in ipairs(grants.names) do
  describe("the grants of a " .. role, function()
    it("are enough for all it does", function()
      local place = installed(role)
      fill(place)
      if role ~= "caller" then assert(complete(place, role)) end
      verbs[role](place)
    end)

    it("are enough for nothing else", function()
      local place = installed(role)
      fill(place)
      forbidden[role](place)
    end)

    it("are all needed", function()
      local place = installed(role)
      fill(place)
      local idle = {}
      for _, item in ipairs(single(role, place.user .. "@localhost")) do
        db.sql(item.revoke, place.name)
        local whole = role == "caller" or complete(place, role, item.of)
        if whole and pcall(verbs[role], place) and (role == "caller" or complete(place, role)) then
          idle[#idle + 1] = item.what
        end
        db.sql(item.grant, place.name)
      end
      assert.same({}, idle)
    end)
  end)
end

describe("doctor --grants", function()
  it("prints every role for users of its own, and needs no server", function()
    local status, out = proc.nightshift({ "doctor", "--grants" }, "mysql://u@127.0.0.1:1/x")
    assert.equal(0, status)
    for _, role in ipairs(grants.names) do
      assert.is_truthy(out:find(("TO 'nightshift_%s'@'%%';"):format(role), 1, true), out)
    end
  end)

  it("takes a user with and without a host, and refuses what would need quoting", function()
    assert.is_truthy(printed("pusher", "app@10.0.0.%"):find("TO 'app'@'10.0.0.%';", 1, true))
    assert.is_truthy(printed("pusher", "app"):find("TO 'app'@'%';", 1, true))
    assert.is_truthy(printed("pusher", "a@b@c"):find("TO 'a@b'@'c';", 1, true))
    for _, bad in ipairs { "a'b", "a\\b", "a`b", "@h", "a@", "", "a\nb" } do
      local status, out, err = proc.nightshift { "doctor", "--grants", "pusher", "--user", bad }
      assert.equal(2, status, out)
      assert.is_truthy(err:find("is not a user", 1, true), err)
    end
  end)
end)

describe("users of different rights", function()
  it("cannot act without a row in the audit", function()
    local place = installed "worker"
    db.sql(("REVOKE INSERT ON nightshift_audit FROM %s@localhost"):format(place.user), place.name)
    local h <close> = assert(nightshift.open(place.url))
    local ok, message, code = h:schedule { name = "nightly", cron = "0 3 1 1 *", push = { "plain", 1 } }
    assert.same({ nil, "DENIED" }, { ok, code })
    assert.matches("nothing was done, because the audit of actions cannot be written: .*nightshift_audit", message)
    assert.same({}, h:schedules())
    assert(h:queue "mail":push("plain", 1))
    assert(assert(h:queue "mail":claim()):ack())
  end)

  it("cannot have each other's queries ended", function()
    local place = installed "worker"
    local h <close> = assert(nightshift.open(place.url))
    read_denied(h, "INSERT INTO nightshift_listener (thread, kind) VALUES (1, 'x')",
      "UPDATE nightshift_listener SET thread = 1", "DELETE FROM nightshift_listener")
    assert(h._handle:execute("@listen_in", "[1]", 5))
    local thread = h:execute("SELECT CONNECTION_ID() AS id")[1].id
    assert.equal(("%d\t5"):format(thread), db.asleep(place.name))
    assert(h._handle:execute "@listen_out")
    assert.equal("", db.asleep(place.name))
  end)

  it("may wait for jobs even when they may not be rung", function()
    local place = installed "worker"
    db.sql(("REVOKE EXECUTE ON PROCEDURE nightshift_listen FROM %s@localhost"):format(place.user), place.name)
    local h <close> = assert(nightshift.open(place.url))
    local before = nightshift.clock()
    local none, message = h:queue("mail"):claim { wait = 0.3 }
    assert.same({ nil, nil, true }, { none, message, nightshift.clock() - before > 0.25 })
  end)

  it("wake each other: a caller's ring ends a worker's sleep", function()
    local place = installed "worker"
    local caller, name = db.user(place.root, "")
    db.sql(printed("caller", name .. "@localhost"), place.name)
    local path = fixture.file("claim.lua", [[
      local h = assert(require "nightshift".open(arg[1]))
      print "waits"
      io.stdout:flush()
      local before = require "nightshift".clock()
      local job = assert(h:queue("mail"):claim { wait = 60 })
      print("got " .. job.name, require "nightshift".clock() - before < 8)
      job:ack()
      h:close()
    ]])
    local p = proc.start { proc.lua, path, place.url }
    p:wait_line "waits"
    eventually(function() return db.sleepers(place.name) == 1 end)
    local h <close> = assert(core.open { url = caller, no_schema = true })
    assert(h:execute("CALL nightshift_push('mail', 'now', '1', NULL)"))
    assert(h:execute("CALL nightshift_ring()"))
    assert.equal("got now	true", (p:wait_line "^got.*"))
  end)
end)
