-- Values travel as parameters, never as SQL text; passwords stay where they were put.

local core = require "nightshift.core"
local db = require "spec.support.db"
local handlers = require "nightshift.handlers"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

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
      -- the ranges of a claim's lanes, the numbers of its names, and the ids of queues: of a
      -- listener, and of a drain that looks ahead; numbers of verdicts, in a comment
      local allowed = { ["src/core/claim/statement.c"] = true, ["src/core/wake/listener.c"] = true,
        ["src/core/claim/promote.c"] = true, ["src/base/buf.c"] = true,
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
            or first == '"@report_counts_" .. statement'
            or first == "sql" -- db:execute itself
            or first == "statement" -- of report.lua, a name
            or first:find "^plans%.question%(" -- an EXPLAIN
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
          or sql:find "^SET STATEMENT [%w_=]+ FOR CREATE OR REPLACE TRIGGER .* FOR EACH ROW%s+BEGIN .*%sEND%s*$"
          or sql:find "^FOR %l_%w+ IN %S+ DO%s.*%sEND FOR%s*$" -- part of a trigger
        assert.is_true(whole ~= nil or not sql:find ";%s*%S", name)
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
      for _, text in ipairs(NASTY) do
        local mine = assert(handle:queue(text))
        local id = assert(mine:push(text, 1))
        assert(mine:pause())
        assert.is_nil((mine:claim()))
        assert(mine:resume())
        for _, row in ipairs(assert(handle:jobs { queue = text, name = text, limit = 100 })) do
          assert.same({ text, text }, { row.queue, row.name })
        end
        assert(handle:cancel(id, { reason = text }))
        assert(handle:retry(id))
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
      for i = 1, #NASTY, 4 do
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

-- Passwords stay where they were put: not in what `ps` shows, not in the
-- environment of workers or of what they start, not in logs and messages.
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
        assert.is_truthy(arguments:find("@localhost/" .. name, 1, true), arguments)
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
    for _, address in ipairs(bad) do
      for _, argv in ipairs { { "status" }, { "doctor" }, { "work", fixture.file("jobs.lua", LOOK) } } do
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
