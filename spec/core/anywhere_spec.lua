-- Any database will do: whatever it is called, whatever character sets it, the server and
-- those who call the procedures have for a default.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

-- A name; what is the database's default, and the server's: CHARACTER SET, COLLATE.
local PLACES <const> = {
  { "bühne-日本", "latin1", "latin1_german2_ci", "latin2", "latin2_croatian_ci" },
  { "bühne-日本", "utf8mb3", "utf8mb3_general_ci", "utf8mb3", "utf8mb3_turkish_ci" },
  { "bühne-日本", "utf8mb4", "utf8mb4_unicode_520_ci", "utf8mb4", "utf8mb4_uca1400_ai_ci" },
  { ("日"):rep(50), "utf16", "utf16_unicode_ci", "utf16", "utf16_bin" },
  { "it's `a` \\ % \" /?#@.x", "swe7", "swe7_swedish_ci", "cp1251", "cp1251_general_ci" },
  { "plain", "binary", "binary", "binary", "binary" },
}

-- What a client says first, and "ü" as it sends it.
local CLIENTS <const> = {
  { "SET NAMES latin1 COLLATE latin1_german2_ci", "\xFC" },
  { "SET NAMES utf8mb3 COLLATE utf8mb3_turkish_ci", "ü" },
  { "SET NAMES utf8mb4 COLLATE utf8mb4_unicode_520_ci", "ü" },
  { "SET NAMES utf8mb4 COLLATE utf8mb4_bin, collation_connection = utf16_general_ci", "ü" },
  { "SET NAMES cp1250, sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES'", "\xFC" },
  { "SET NAMES utf8mb4, character_set_results = NULL", "ü" },
}

-- Tables to be adopted: the type of the status, and what an open row has there.
local TABLES <const> = {
  orders = { "", "open" },
  ["aufträge 日"] = { "CHARACTER SET latin1 COLLATE latin1_german2_ci", "öffen" },
  ["`"] = { "CHARACTER SET utf16", "öffen 😀" },
  turkish = { "CHARACTER SET utf8mb4 COLLATE utf8mb4_turkish_ci", "öffen 😀" },
  bytes = { "CHARACTER SET binary", "öffen" },
}
local ADOPTS <const> = [[
  local db = assert(require "nightshift".open(%q))
  local t = assert(db:adopt { table = %q, name = "x", allow_alter = true, claimed_by = "claimed_by",
    claimed_at = "claimed_at", status = { column = "status", open = %q, processing = "busy", done = "ok" } })
  for job in t:jobs{ wait = 60 } do
    assert(job:ack())
    if job.payload.note == "last" then break end
  end]]
local ASLEEP <const> = [[SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE
  ID = IS_USED_LOCK(CONCAT('nightshift-ear:', MD5(DATABASE()), MD5('%s'), ':0')) AND STATE LIKE 'User %%']]

local function quoted(name) return "`" .. name:gsub("`", "``") .. "`" end

local function escaped(name)
  return (name:gsub("[^%w]", function(c) return ("%%%02X"):format(c:byte()) end))
end

local server

--- How many queries have been ended by others.
local function kills()
  return math.tointeger(tonumber((server:sql "SHOW GLOBAL STATUS LIKE 'Com_kill'":match "%d+")))
end

setup(function() server = db.server() end)

describe("a database", function()
  for _, place in ipairs(PLACES) do
    local name, set, collation, servers_set, servers_collation = table.unpack(place)

    describe(("%.20s of %s on a server of %s"):format(name, collation, servers_collation), function()
      local url, handle

      setup(function()
        server:sql(("SET GLOBAL character_set_server = %s; SET GLOBAL collation_server = %s"):format(servers_set,
          servers_collation))
        server:sql(("CREATE OR REPLACE DATABASE %s CHARACTER SET %s COLLATE %s"):format(quoted(name), set, collation))
        url = server:url(escaped(name))
        local exit, _, err = proc.nightshift({ "init" }, url)
        assert.same({ 0, "" }, { exit, err })
        handle = assert(nightshift.open(url))
      end)
      teardown(function() handle:close() end)

      it("passes doctor", function()
        local exit, out = proc.nightshift({ "doctor", "--json" }, url)
        assert.equal(0, exit, out)
        for _, check in ipairs(nightshift.decode(out).checks) do
          local spared = check.name == "durability" or db.odd and check.name == "settings"
          if not spared then assert.equal("ok", check.level, check.name .. ": " .. check.found) end
        end
      end)

      it("gives jobs with all their texts", function()
        local q = handle:queue "emoji 😀"
        local id = assert(q:push("smile 😀", { text = "ü 😀" }, { unique = "key 😀" }))
        assert.equal("DUPLICATE", select(3, q:push("smile 😀", 1, { unique = "key 😀" })))
        local parent = assert(q:push("parent 😀", 1))
        local status, log = host.drain(url, [[return {
          ["smile 😀"] = function(job)
            job:log "log 😀"
            job:progress(0.5, "status 😀")
            if job.attempts == 0 then return job:fail("error 😀", { retry_in = 0 }) end
            return { was = job.payload.text, row = job:db():execute("SELECT '😀' AS s")[1].s }
          end,
          ["parent 😀"] = function(job)
            if job.phase == 0 then
              job:spawn("child 😀", "😀")
              return job:wait {}
            end
            local results = {}
            for i, child in ipairs(job.results) do results[i] = child.name .. child.result end
            return results
          end,
          ["child 😀"] = function(job) return job.payload .. "!" end,
        }]])
        assert.equal(0, status, log)
        local info = assert(handle:job(id))
        assert.same({ "done", "smile 😀", "emoji 😀", "key 😀" }, { info.state, info.name, info.queue, info.unique })
        assert.same({ was = "ü 😀", row = "😀" }, info.result)
        local exit, out, err = proc.nightshift({ "show", tostring(id) }, url)
        assert.same({ 0, "" }, { exit, err })
        for _, text in ipairs { "error 😀", "log 😀" } do assert.is_truthy(out:find(text, 1, true), out) end
        assert.equal(id, assert(handle:jobs { name = "smile 😀", queue = "emoji 😀", state = "done" })[1].id)
        assert.same({ "child 😀😀!" }, handle:job(parent).result)
      end)

      it("is asked and changed by all verbs", function()
        for _, args in ipairs { { "status" }, { "jobs" }, { "rescue" }, { "status", "--json" },
          { "pause", "--queue", "emoji 😀" }, { "resume", "--queue", "emoji 😀" },
          { "prune", "--done", "0", "--yes" } } do
          local exit, out, err = proc.nightshift(args, url)
          assert.same({ 0, "" }, { exit, err }, args[1] .. ": " .. out)
        end
        local q = handle:queue "verbs 😀"
        local ids = assert(q:push_many { { "a 😀", 1 }, { "b 😀", 2, { delay = 60 } }, { "c 😀", 3 } })
        local job = assert(q:claim { names = { "a 😀" } })
        assert(job:wait { signal = "signal 😀", state = { s = "😀" } })
        assert(handle:why(ids[1]))
        assert(handle:signal(ids[1], "value 😀", "signal 😀"))
        job = assert(q:claim { names = { "a 😀" } })
        assert.equal("value 😀", job.signal)
        assert(job:progress(0.5, "half 😀"))
        assert(handle:run_now(ids[2]))
        assert(handle:reprioritise(ids[2], 200))
        assert(handle:pause(ids[3]))
        assert.equal("b 😀", assert(q:claim()).name)
        assert(handle:resume(ids[3]))
        assert(handle:cancel(ids[3], { reason = "why 😀" }))
        assert.equal("why 😀", handle:job(ids[3]).reason)
        assert(handle:retry(ids[3], { tree = true }))
        assert(handle:cancel(ids[3], { tree = true }))
        assert(handle:flow { name = "top 😀", queue = "flow 😀", children = { { name = "low 😀" } } })
        handle:lock "lock 😀" (function() assert.equal("lock 😀", handle:slots()[1].name) end)
        assert(job:discard "no 😀")
      end)

      it("adopts tables of any character set, whose triggers ring", function()
        for table_name, column in pairs(TABLES) do
          local type, open = table.unpack(column)
          local into, hex = quoted(table_name), open:gsub(".", function(c) return ("%02X"):format(c:byte()) end)
          server:sql(("CREATE TABLE %s (id INT AUTO_INCREMENT PRIMARY KEY, status VARCHAR(20) %s NOT NULL,"
            .. " claimed_by VARCHAR(64) %s NULL, claimed_at DATETIME NULL, note VARCHAR(20) CHARACTER SET utf8mb4,"
            .. " KEY (status))"):format(into, type, set == "binary" and "CHARACTER SET ascii" or ""), name)
          if table_name:find "日" then -- for those who cannot say its name
            server:sql(("CREATE VIEW its_view AS SELECT * FROM %s"):format(into), name)
            into = "its_view"
          end
          local waiting = proc.start { proc.lua, "-e", ADOPTS:format(url, table_name, open) }
          for i, client in ipairs(CLIENTS) do
            local tries, rung = 0
            repeat -- it may be awake, to look by itself
              eventually(function()
                return waiting:ended() or server:sql(ASLEEP:format(table_name), name) == "1"
              end)
              tries, rung = tries + 1, kills()
              server:sql(("%s; INSERT INTO %s (status, note) VALUES (_utf8mb4 X'%s', '%s')"):format(client[1], into,
                hex, client[2]), name)
            until kills() > rung or tries == 10
            assert.is_true(tries < 10, client[1])
            if i == #CLIENTS then
              server:sql(("INSERT INTO %s (status, note) VALUES ('%s', 'last')"):format(into, open), name)
            end
          end
          assert.equal(0, waiting:wait(30))
          assert.equal("0", server:sql("SELECT COUNT(*) FROM " .. into
            .. " WHERE status <> 'ok' OR note NOT IN ('ü', 'last')", name))
        end
      end)

      it("is pushed to by triggers of tables of any character set", function()
        for table_name, type in pairs {
          plain = set == "binary" and "CHARACTER SET ascii" or "",
          german = "CHARACTER SET latin1 COLLATE latin1_german2_ci",
          wide = "CHARACTER SET utf16 COLLATE utf16_bin", turkish = "CHARACTER SET utf8mb4 COLLATE utf8mb4_turkish_ci",
        } do
          local made = [[CREATE TABLE pushes_TABLE (id INT, queue VARCHAR(20) TYPE, name TEXT TYPE, text TEXT TYPE);
            CREATE TRIGGER pushes_TABLE AFTER INSERT ON pushes_TABLE FOR EACH ROW
              CALL nightshift_push(NEW.queue, CONCAT(NEW.name, '.', NEW.id),
                JSON_OBJECT('text', CONVERT(NEW.text USING utf8mb4)),
                JSON_OBJECT('unique', CONVERT(NEW.name USING utf8mb4), 'priority', 7))]]
          server:sql(made:gsub("_TABLE", "_" .. table_name):gsub("TYPE", type), name)
          for i, client in ipairs(CLIENTS) do
            local u, is = client[2], "ü"
            if table_name == "plain" then u, is = "u", "u" end -- whose character set may have no more
            server:sql(("%s; INSERT INTO pushes_%s VALUES (%d, 'tr%s', 'n%s', 't%s')"):format(client[1], table_name, i,
              u, u, u), name)
            local job = assert(handle:queue("tr" .. is):claim())
            assert.same({ "n" .. is .. "." .. i, "t" .. is, 7 }, { job.name, job.payload.text, job.priority })
            assert.equal("n" .. is, handle:job(job.id).unique)
            assert(job:ack())
          end
        end
      end)

      for _, client in ipairs(CLIENTS) do
        local first, u = table.unpack(client)

        -- Statements in the character set of the client; ~text~ in quotes.
        local function call(text)
          return (server:sql(first .. "; " .. text:gsub("ü", u):gsub("~([^~]*)~", "'%1'"), name))
        end

        it("is pushed to, rung and read by a session of " .. first, function()
          local waiting = proc.start { proc.lua, "-e", ([[
            local db = assert(require "nightshift".open(%q))
            for job in db:queue %q:jobs{ wait = 60 } do
              assert(job:ack(job.payload))
              if job.name == %q then break end
            end]]):format(url, "bü", "last ü") }
          eventually(function() return server:sleepers(name) == 1 end)
          local rung = kills()
          eventually(function() -- it may be awake for a moment
            call "CALL nightshift_ring()"
            return kills() > rung
          end)
          eventually(function() return server:sleepers(name) == 1 end)
          call [[CALL nightshift_push(~bü~, ~first ü~, ~{"u":"ü"}~, ~{"unique":"ü","priority":3}~)]]
          call [[CALL nightshift_push(~bü~, ~last ü~, ~["ü"]~, ~{"priority":1}~); CALL nightshift_ring()]]
          assert.equal(0, waiting:wait(30))
          local jobs = assert(handle:jobs { queue = "bü", state = "done" })
          table.sort(jobs, function(a, b) return a.id < b.id end)
          jobs = table.move(jobs, #jobs - 1, #jobs, 1, {})
          assert.same({ "first ü", "last ü" }, { jobs[1].name, jobs[2].name })
          assert.same({ { u = "ü" }, { "ü" } }, { handle:job(jobs[1].id).result, handle:job(jobs[2].id).result })
          for _, where in ipairs { "name = ~first ü~", "queue = ~bü~ AND state = ~done~ AND name LIKE ~first %~" } do
            assert.equal(tostring(jobs[1].id), call("SELECT MAX(id) FROM nightshift_history WHERE " .. where))
          end
        end)

        it("is signalled, and its live jobs read, by a session of " .. first, function()
          local q = handle:queue("bü")
          local id = assert(q:push("waits ü"))
          assert(assert(q:claim()):wait { signal = "sü" })
          local look = "SELECT id FROM nightshift_jobs WHERE state = ~waiting~ AND awaits = ~sü~ AND queue = ~bü~"
          assert.equal(tostring(id), call(look))
          call(("CALL nightshift_signal(%d, ~{\"u\":\"ü\"}~, ~sü~)"):format(id))
          assert.equal(tostring(id), call "SELECT id FROM nightshift_jobs WHERE name = ~waits ü~ AND state = ~ready~")
          local job = assert(q:claim())
          assert.equal("ü", job.signal.u)
          assert(job:ack())
        end)
      end
    end)
  end

  it("may be filled by what init prints, whatever the client", function()
    local script = fixture.file("tables.sql", (select(2, proc.nightshift { "init", "--print" })))
    for i, first in ipairs { "--default-character-set=latin1", "--init-command=SET sql_mode=''",
      "--init-command=SET collation_connection=utf16_general_ci, sql_mode='ANSI'" } do
      server:sql(("CREATE OR REPLACE DATABASE printed%d CHARACTER SET latin1 COLLATE latin1_german2_ci"):format(i))
      local url = server:url("printed" .. i)
      local exit, _, err = proc.run { "sh", "-c", ([[exec mariadb --no-defaults --socket=%s -uroot "%s" printed%d <%s]])
        :format(server.socket, first, i, script) }
      assert.same({ 0, "" }, { exit, err })
      assert.equal("utf8mb4 utf8mb4_general_ci 1", server:sql(([[SELECT DISTINCT CHARACTER_SET_CLIENT,
        COLLATION_CONNECTION, SQL_MODE LIKE 'STRICT%%' FROM information_schema.ROUTINES
        WHERE ROUTINE_SCHEMA = 'printed%d']]):format(i)):gsub("\t", " "))
      exit, err = proc.nightshift({ "doctor" }, url)
      assert.equal(0, exit, err)
      server:sql("CALL nightshift_push('bühne 😀', 'n 😀', '\"😀\"', NULL)", "printed" .. i)
      local handle <close> = assert(nightshift.open(url))
      assert.equal("😀", handle:queue("bühne 😀"):claim().payload)
    end
  end)

  it("is another than one whose name is nearly the same", function()
    local names, urls, handles = { "bühne", "buhne", "BÜHNE", "bu\u{308}hne" }, {}, {}
    for i, each in ipairs(names) do
      server:sql(("CREATE OR REPLACE DATABASE `%s`"):format(each))
      urls[i] = server:url(escaped(each))
      assert.equal(0, (proc.nightshift({ "init" }, urls[i])))
      handles[i] = assert(nightshift.open(urls[i]))
    end
    local ids = {}
    for i, handle in ipairs(handles) do
      assert(handle:lock("one"):acquire(0))
      ids[i] = assert(handle:queue "q":push("n", i, { unique = "k" }))
    end
    server:sql("DROP PROCEDURE nightshift_ring; DROP VIEW nightshift_jobs", names[2])
    for i, each in ipairs(urls) do
      local exit, out = proc.nightshift({ "doctor" }, each)
      assert.equal(i == 2 and 1 or 0, exit, out)
    end
    -- Whoever sleeps in one is not rung in another.
    local waiting = proc.start { proc.lua, "-e", ([[
      assert(require "nightshift".open(%q):queue "none":claim{ wait = 60 })]]):format(urls[1]) }
    eventually(function() return server:sleepers(names[1]) == 1 end)
    local rung = kills()
    server:sql("CALL nightshift_ring()", names[3])
    assert.equal(0, kills() - rung)
    waiting:signal "TERM"
    for i, handle in ipairs(handles) do
      local job = assert(handle:queue "q":claim())
      assert.same({ ids[i], i }, { job.id, job.payload })
      assert(job:ack())
      handle:close()
    end
  end)
end)
