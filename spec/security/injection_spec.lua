-- Values travel as parameters, never as SQL text: the sources are searched for
-- text that is put together, and nasty strings go through every verb.

local core = require "nightshift.core"
local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local NASTY = {
  "x'; DROP TABLE nightshift_job; -- ", "' OR '1'='1", '" OR ""="', "`; DROP TABLE nightshift_queue; `", "\\", "\\'",
  "\\\\' OR 1=1 -- ", "'", "''", "'''", '"', "`", "``", ";", "--", "-- ", "#", "/*", "*/",
  "/*! DROP TABLE nightshift_job */", "?", "??", ":name", "@nightshift_id", "@@version", "%", "_", "%s%d%n", "{now}",
  "{end}", "(queues)", "/*lanes*/", "NULL", "null", "nil", "0", "-1", "1e309", "0x41", "CHAR(39)", "SLEEP(10)",
  "x' AND SLEEP(10) AND 'x", "\u{BF}'", "縗' OR 1=1", "\u{202E}abc", "\u{FEFF}bom", "e\u{301}", "\u{1F4A3}", "a b", " a",
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
      ["src/core/claim/promote.c"] = true, ["src/base/ns_buf.c"] = true,
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
