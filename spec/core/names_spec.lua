-- A name is a name: queues, jobs, keys, signals, locks and tables are equal only if they agree
-- in every byte, wherever they are compared. And any database will do. Claims of some names, and
-- hosts of different scripts: each leaves the jobs of other programs alone, and is not slowed down
-- by them.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

describe("names:", function()
  -- Some or other collation takes each for another of its line.
  local LIKE <const> = {
    { "foo", "foo ", "foo  ", " foo", "Foo", "FOO", "fóo", "fo\u{301}o", "fo\u{301}o ", "ｆｏｏ", "fo\u{200b}o",
      "foo\u{a0}", "foo\u{2003}", "foo\u{ad}", "f_o", "f%" },
    { "ss", "SS", "ß", "ẞ", "s", "S", "ſ", "ss " },
    { "k", "K", "\u{212a}" }, { "i", "I", "ı", "İ", "i\u{307}" },
    { "😀", "😁", "\u{10fffd}", "日", "日 " }, { "'", '"', "\\", "\\\\", "/", "\\/" }, { "1", "1.0", "01", "１" },
  }
  local NAMES <const> = {}
  for _, line in ipairs(LIKE) do table.move(line, 1, #line, #NAMES + 1, NAMES) end

  local function quoted(text) return "'" .. text:gsub("['\\]", "\\%0") .. "'" end

  local function sorted(list)
    table.sort(list)
    return list
  end

  local function names_of(jobs)
    local list = {}
    for i, job in ipairs(jobs) do list[i] = job.name end
    return list
  end

  local handle, q, url, name
  with_database(function(...) handle, q, url, name = ... end)

  local function push_all()
    local items = {}
    for i, each in ipairs(NAMES) do items[i] = { each, i } end
    return assert(q:push_many(items))
  end

  describe("a queue's name", function()
    it("is one queue, for programs and for SQL", function()
      for i, each in ipairs(NAMES) do
        assert(handle:queue(each):push("n", i))
        db.sql(("CALL nightshift_push(%s, 'n', '%d', NULL)"):format(quoted(each), -i), name)
      end
      for i, each in ipairs(NAMES) do
        assert.equal(2, #assert(handle:jobs { queue = each }), each)
        assert.equal("2", db.sql("SELECT COUNT(*) FROM nightshift_jobs WHERE queue = " .. quoted(each), name), each)
        local one, two = handle:queue(each):claim(), handle:queue(each):claim()
        assert.same({ i, -i }, { one.payload, two.payload }, each)
        assert.is_nil(handle:queue(each):claim())
        assert.equal(2, assert(handle:queue(each):stats()).running, each)
      end
    end)

    it("is paused and resumed alone", function()
      for i, each in ipairs(NAMES) do assert(handle:queue(each):push("n", i)) end
      for _, line in ipairs(LIKE) do
        assert(handle:queue(line[1]):pause())
        assert.equal(0, (proc.nightshift({ "pause", "--queue", line[2] }, url)))
        for i, each in ipairs(line) do assert.equal(i > 2, handle:queue(each):claim() ~= nil, each) end
        assert.equal(0, (proc.nightshift({ "resume", "--queue", line[2] }, url)))
        assert.is_nil(handle:queue(line[1]):claim())
        assert.is_truthy(handle:queue(line[2]):claim())
      end
      assert.same({ nil, "NOT_FOUND" }, { handle:queue("fOo"):resume(), select(3, handle:queue("fOo"):resume()) })
    end)

    it("is what a host serves, alone", function()
      for i, each in ipairs(NAMES) do assert(handle:queue(each):push("n", i)) end
      local status, log = host.drain(url, "return { n = function(job) return job.queue end }",
        { "--queues", "foo ,Foo=2", "--reserve", "Foo=1", "--drain" })
      assert.equal(0, status, log)
      local served = {}
      for _, job in ipairs(handle:jobs { state = "done" }) do served[#served + 1] = job.queue end
      assert.same({ "Foo", "foo " }, sorted(served))
    end)
  end)

  describe("a job's name", function()
    -- Every listing has its own statement.
    for state, bring in pairs {
      ready = function() end,
      scheduled = function(jobs) for _, job in ipairs(jobs) do assert(job:again(60)) end end,
      running = function(jobs) for _, job in ipairs(jobs) do assert(job:touch()) end end,
      done = function(jobs) for _, job in ipairs(jobs) do assert(job:ack()) end end,
      dead = function(jobs) for _, job in ipairs(jobs) do assert(job:discard "no") end end,
      waiting = function(jobs) for _, job in ipairs(jobs) do assert(job:wait { signal = job.name }) end end,
    } do
      it("finds " .. state .. " jobs of this name only", function()
        local ids = push_all()
        if state ~= "ready" then bring(assert(q:claim_many(#NAMES))) end
        for i, each in ipairs(NAMES) do
          local ended = state == "done" or state == "dead" -- `after` is then a job of that state
          for _, filter in ipairs { { name = each, state = state }, { name = each }, { name = each, queue = "q" },
            { name = each, state = not ended and state or nil, after = math.maxinteger } } do
            local jobs = assert(handle:jobs(filter))
            assert.same({ 1, ids[i] }, { #jobs, jobs[1] and jobs[1].id }, each)
          end
          local view = ended and "history" or "jobs"
          local text = "SELECT id FROM nightshift_%s WHERE name = %s AND state = '%s'"
          assert.equal(tostring(ids[i]), db.sql(text:format(view, quoted(each), state), name), each)
        end
      end)
    end

    it("finds jobs that wait for others, and paused ones", function()
      local first = assert(q:push("first", 0))
      local items = {}
      for i, each in ipairs(NAMES) do items[i] = { each, i, { after = { first } } } end
      local ids = assert(q:push_many(items))
      local paused = push_all()
      for _, id in ipairs(paused) do assert(handle:pause(id)) end
      for i, each in ipairs(NAMES) do
        local jobs = assert(handle:jobs { name = each, state = "waiting" })
        assert.same({ ids[i], paused[i] }, sorted { jobs[1].id, jobs[2].id, jobs[3] and jobs[3].id }, each)
      end
    end)

    it("is cancelled, and run again, alone", function()
      local ids = push_all()
      for _, i in ipairs { 1, 2, 5, 18, 19 } do
        local exit, out, err = proc.nightshift({ "cancel", "--name", NAMES[i], "--yes" }, url)
        assert.same({ 0, "1 job cancelled\n", "" }, { exit, out, err })
        assert.equal("cancelled", handle:job(ids[i]).state)
      end
      for _, i in ipairs { 2, 18 } do
        local exit, out, err = proc.nightshift({ "retry", "--state", "cancelled", "--name", NAMES[i], "--yes" }, url)
        assert.same({ 0, "1 job retried\n", "" }, { exit, out, err })
        assert.equal("ready", handle:job(ids[i]).state)
        local list
        exit, list = proc.nightshift({ "jobs", "--name", NAMES[i], "--json" }, url)
        list = nightshift.decode(list)
        assert.same({ 0, 1, ids[i] }, { exit, #list, list[1].id })
      end
      assert.equal(#NAMES - 3, #assert(handle:jobs { state = "ready" }))
    end)

    it("is claimed alone", function()
      local ids = push_all()
      for i, each in ipairs(NAMES) do
        assert.same({ each }, names_of(assert(q:claim_many(10, { names = { each } }))))
        assert.is_nil(q:claim { names = { each } })
        assert.equal("running", handle:job(ids[i]).state)
      end
    end)

    it("is its handler's, and no other's", function()
      local ids = push_all()
      local script, left = { "return {" }, {}
      for i, each in ipairs(NAMES) do
        if i % 2 == 1 then
          script[#script + 1] = ("[%q] = function(job) assert(job.name == %q) return %d end,"):format(each, each, i)
        else
          left[#left + 1] = each
        end
      end
      script[#script + 1] = "}"
      local status, log = host.drain(url, table.concat(script, "\n"))
      assert.equal(3, status, log) -- jobs are left
      for i, id in ipairs(ids) do
        local job = handle:job(id)
        assert.same({ i % 2 == 1 and "done" or "ready", i % 2 == 1 and i or nil }, { job.state, job.result }, job.name)
      end
      assert.same(sorted(left), sorted(names_of(handle:jobs { state = "ready" })))
      status, log = host.drain(url, 'return { ["foo "] = print, ["Foo"] = print, ["foo"] = print, ["FOO"] = print }',
        { "--only", "foo ,FOO", "--drain" })
      assert.equal(3, status, log)
      assert.equal(2, #left - #handle:jobs { state = "ready" })
    end)
  end)

  describe("a unique key", function()
    it("is held alone, for programs and for SQL", function()
      local keys = table.move(NAMES, 1, #NAMES, 1, { })
      for _, more in ipairs { "foo\t", "foo\n", "\tfoo", "foo\0", "\0foo", "a\0b",
        "a\0c" } do keys[#keys + 1] = more end
      local ids, options = {}, {}
      for i, key in ipairs(keys) do
        options[i] = { unique = key }
        ids[i] = assert(q:push("n", i, options[i]))
      end
      for i, key in ipairs(keys) do
        local none, message, code = q:push("n", i, options[i])
        assert.same({ nil, "DUPLICATE" }, { none, code }, key)
        assert.is_truthy(message:find(tostring(ids[i]), 1, true), message)
        local call = ("CALL nightshift_push('q', 'n', '1', %s)"):format(quoted(core.encode(options[i])))
        assert.is_false((pcall(db.sql, call, name)))
      end
      local job = assert(q:claim())
      assert(job:ack())
      assert.equal(ids[1], job.id)
      db.sql(("CALL nightshift_push('q', 'n', '1', %s)"):format(quoted(core.encode(options[1]))), name)
      for i = 2, #keys do assert.equal(keys[i], handle:job(ids[i]).unique) end
    end)
  end)

  describe("a signal's name", function()
    for how, send in pairs {
      ["a program's"] = function(id, value, signal) assert(handle:signal(id, value, signal)) end,
      ["SQL's"] = function(id, value, signal)
        db.sql(("CALL nightshift_signal(%d, '%d', %s)"):format(id, value, quoted(signal)), name)
      end,
    } do
      it("wakes who waits for it, and nobody else: " .. how, function()
        for _, line in ipairs(LIKE) do
          for i, each in ipairs(line) do
            local id = assert(q:push("n", 1))
            assert(q:claim():wait { signal = each })
            for j, other in ipairs(line) do if j ~= i then send(id, j, other) end end
            assert.equal("waiting", handle:job(id).state)
            assert.is_nil(q:claim())
            send(id, i, each)
            local job = assert(q:claim(), each)
            assert.same({ id, i }, { job.id, job.signal }, each)
            assert(job:ack())
          end
        end
      end)
    end
  end)

  describe("a lock's name", function()
    it("is held alone", function()
      local locks, held = {}, {}
      for i, each in ipairs(NAMES) do
        locks[i] = handle:lock(each)
        assert(locks[i]:acquire(0))
      end
      local other <close> = assert(nightshift.open(url))
      for i, each in ipairs(NAMES) do
        assert.equal("BUSY", select(3, other:lock(each):acquire(0)))
        assert(locks[i]:release())
        assert(other:lock(each):acquire(0))
      end
      for i, row in ipairs(assert(handle:slots())) do held[i] = row.name end
      assert.same(sorted(held), sorted(table.move(NAMES, 1, #NAMES, 1, {})))
    end)
  end)

  describe("a table's name", function()
    it("is that of one adopted table", function()
      for _, each in ipairs { "tasks", "Tasks" } do
        db.sql(("CREATE TABLE %s (id INT PRIMARY KEY AUTO_INCREMENT, status VARCHAR(9) NOT NULL, KEY (status));" ..
          "INSERT INTO %s (status) VALUES ('new'), ('new')"):format(each, each), name)
      end
      local function adopt(each)
        return assert(handle:adopt { table = each, name = "x",
          status = { column = "status", open = "new", processing = "busy", done = "ok" } })
      end
      local small, large = adopt "tasks", adopt "Tasks"
      assert(large:pause())
      assert.is_nil(large:claim())
      assert(assert(small:claim()):ack())
      assert.equal(0, (proc.nightshift({ "resume", "--queue", "Tasks" }, url)))
      assert(assert(large:claim()):ack())
      assert.same({ 1, 1 }, { small:stats().done, large:stats().done })
      assert.equal("Tasks,tasks", db.sql("SELECT GROUP_CONCAT(tab ORDER BY tab) FROM nightshift_source", name))
    end)
  end)

  describe("SQL", function()
    local function refused(call, why)
      local ok, message = pcall(db.sql, call, name)
      assert.is_false(ok, call)
      assert.is_truthy(tostring(message):find(why, 1, true), tostring(message))
    end

    it("refuses options that are nearly some", function()
      for _, option in ipairs { "Delay", "delay ", "DELAY", "dełay", "délay", "delay" .. (" "):rep(90) } do
        refused(('CALL nightshift_push("q", "n", "1", \'{"%s": 5}\')'):format(option), "unknown option")
      end
      for _, value in ipairs { "Run", "run ", "CANCEL", "cancel ", "" } do
        refused(('CALL nightshift_push("q", "n", "1", \'{"on_fail": "%s"}\')'):format(value), "out of range: on_fail")
      end
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
    end)

    it("takes no name for another that is longer by blanks", function()
      for _, mode in ipairs { "STRICT_TRANS_TABLES", "" } do
        local function call(text, ...) return ("SET sql_mode = '%s'; CALL "):format(mode) .. text:format(...) end
        local queue, job, key = ("q"):rep(64), ("n"):rep(100), ("k"):rep(190)
        local push = "nightshift_push('%s', '%s', '1', '{\"unique\": \"%s\"}')"
        refused(call(push, queue .. " ", job, key), "the queue has 65 bytes")
        refused(call(push, queue .. "   ", job, key), "the queue has 65 bytes")
        refused(call(push, queue, job .. " ", key), "the job name has 101 bytes")
        refused(call(push, queue, job .. (" "):rep(200), key), "the job name has 101 bytes")
        refused(call(push, queue, job, key .. " "), "characters, the limit is 190")
        refused(call(push, queue, job, key .. (" "):rep(300)), "characters, the limit is 190")
        db.sql(call(push, queue, job, key) , name)
        local job_id = assert(handle:queue(queue):claim { names = { job } }).id
        refused(call("nightshift_signal(%d, '1', '%s ')", job_id, job), "more than 100 characters")
        db.sql(call("nightshift_signal(%d, '1', '%s')", job_id, job), name)
        assert(handle:cancel(job_id))
      end
    end)

    it("finds no state by a word that is nearly one", function()
      assert(q:push("n", 1))
      for _, word in ipairs { "READY", "ready ", "réady" } do
        assert.equal("0", db.sql(("SELECT COUNT(*) FROM nightshift_jobs WHERE state = '%s'"):format(word), name))
        assert.equal("0", db.sql(("SELECT COUNT(*) FROM nightshift_history WHERE state <=> '%s'"):format(word), name))
      end
      assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_jobs WHERE state = 'ready'", name))
    end)
  end)

  describe("every text of ours", function()
    -- Not names, and made of ASCII: the tokens of a claim, and hashes.
    local ASCII <const> = { ["nightshift_lease.jobs"] = true, ["nightshift_listener.kind"] = true }

    it("is in a column that tells all bytes apart", function()
      local seen = 0
      for row in db.sql(([[SELECT CONCAT(TABLE_NAME, '.', COLUMN_NAME), COLLATION_NAME FROM information_schema.COLUMNS
        WHERE TABLE_SCHEMA = '%s' AND COLLATION_NAME IS NOT NULL]]):format(name), name):gmatch "[^\n]+" do
        local column, collation = row:match "^(.*)\t(.*)$"
        assert.equal(ASCII[column] and "ascii_bin" or "utf8mb4_nopad_bin", collation, column)
        seen = seen + 1
      end
      assert.is_true(seen > 40)
      assert.equal("utf8mb4_nopad_bin", (db.sql(([[SELECT DISTINCT TABLE_COLLATION FROM information_schema.TABLES
      WHERE TABLE_SCHEMA = '%s' AND TABLE_TYPE = 'BASE TABLE']]):format(name), name)))
    end)

    it("is a parameter that does, too", function()
      assert.equal("utf8mb4_nopad_bin", (db.sql(([[SELECT DISTINCT COLLATION_NAME FROM information_schema.PARAMETERS
      WHERE SPECIFIC_SCHEMA = '%s' AND COLLATION_NAME IS NOT NULL]]):format(name), name)))
    end)

    -- The name of a database is of another character set. It is compared with such, or shown,
    -- and in the name of a lock it is {here}.
    local SHOWN <const> = { ["@@datadir, DATABASE()"] = 1, ["VERSION() AS version, DATABASE() AS db"] = 1,
      ["@@version_comment AS comment, DATABASE() AS db"] = 1, ["HEX(DATABASE())"] = 1,
      ["SELECT DATABASE() AS name"] = 1 }

    it("names its collation where statements declare it", function()
      local seen = 0
      for path in io.popen("ls sql/query/*.sql sql/schema/routines.sql"):lines() do
        local text = ""
        for line in io.lines(path) do
          local code = line:gsub("%-%-.*", ""):gsub("[%a_]+_[sS][cC][hH][eE][mM][aA] = DATABASE%(%)", "")
          code = code:gsub("BINARY DATABASE%(%)", "")
          for known in pairs(SHOWN) do if code:find(known, 1, true) then code = "" end end
          assert.is_nil(code:find("DATABASE()", 1, true), path .. ": write {here}: " .. line)
          text = text .. code .. "\n"
        end
        text = text:gsub("'[^'\n]*'", "''")
        for _, kind in ipairs { "VARCHAR%b()", "CHAR%b()", "TEXT", "MEDIUMTEXT", "LONGTEXT", "AS CHAR", "ENUM%b()" } do
          for found, behind in text:gmatch("[^%a_](" .. kind .. ")(%f[^%a_)][^\n]*\n)") do
            seen = seen + 1
            assert.is_truthy(behind:find "^ {bytes}" or behind:find "^ CHARACTER SET ascii COLLATE ascii_bin",
              path .. ": " .. found .. behind)
          end
        end
      end
      assert.is_true(seen > 20)
    end)
  end)
end)

-- Any database will do: whatever it is called, whatever character sets it, the server and
-- those who call the procedures have for a default.
describe("a database", function()
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
  local t = assert(db:adopt { table = %q, name = "x", claimed_by = "claimed_by",
    claimed_at = "claimed_at", status = { column = "status", open = %q, processing = "busy", done = "ok" } })
  for job in t:jobs{ wait = 60 } do
    assert(job:ack())
    if job.payload.note == "last" then break end
  end]]
  local function quoted(name) return "`" .. name:gsub("`", "``") .. "`" end

  local function escaped(name)
    return (name:gsub("[^%w]", function(c) return ("%%%02X"):format(c:byte()) end))
  end

  local server

  --- How many queries have been ended by other sessions.
  local function kills()
    return math.tointeger(tonumber((server:sql "SHOW GLOBAL STATUS LIKE 'Com_kill'":match "%d+")))
  end

  setup(function() server = db.server() end)

  for at, place in ipairs(PLACES) do
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
        assert.equal(4, exit, out)
        for _, check in ipairs(nightshift.decode(out).findings) do
          local spared = check.name == "durability" or check.name == "deadlocks" or db.odd and check.name == "settings"
          if not spared then assert.equal("ok", check.status, check.name .. ": " .. check.says) end
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

      it("adopts tables of any character set, whatever that of those who add rows", function()
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
            server:sql(("%s; INSERT INTO %s (status, note) VALUES (_utf8mb4 X'%s', '%s')"):format(client[1], into,
              hex, client[2]), name)
            if i == #CLIENTS then
              server:sql(("INSERT INTO %s (status, note) VALUES ('%s', 'last')"):format(into, open), name)
            end
          end
          assert.equal(0, waiting:wait(30), select(2, waiting:text()))
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
            if table_name == "plain" then u, is = "u", "u" end -- with a character set that may have no more
            server:sql(("%s; INSERT INTO pushes_%s VALUES (%d, 'tr%s', 'n%s', 't%s')"):format(client[1], table_name, i,
              u, u, u), name)
            local job = assert(handle:queue("tr" .. is):claim())
            assert.same({ "n" .. is .. "." .. i, "t" .. is, 7 }, { job.name, job.payload.text, job.priority })
            assert.equal("n" .. is, handle:job(job.id).unique)
            assert(job:ack())
          end
        end
      end)

      for k = at % 2 + 1, #CLIENTS, 2 do -- each place meets half of them, each of them half of the places
        local first, u = table.unpack(CLIENTS[k])

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
          assert.equal(0, waiting:wait(30), select(2, waiting:text()))
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
      assert.equal(4, exit, err)
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
      assert.equal(i == 2 and 1 or 4, exit, out)
    end
    -- A sleeper in one is not rung in another.
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

-- ----- names that are claimed

-- A row in ready or scheduled says which name it is of, whatever wrote it: a claim of
-- some names reads no job to know. Rows that did not say so were open to every claim.
describe("a row of what may be claimed says the kind of its job", function()
  local handle, q, name

  with_database(function(opened, queue, _, at) handle, q, name = opened, queue, at end)

  -- Rows that say something else than their job, and how many there are.
  local function wrong(where)
    local text = db.sql([[SELECT COUNT(*), COALESCE(SUM(r.kind <> CRC32(j.name)), 0) FROM
    (SELECT job_id, kind FROM nightshift_ready WHERE job_id > 0
     UNION ALL SELECT job_id, kind FROM nightshift_scheduled) r
    JOIN nightshift_job j ON j.id = r.job_id]], name)
    local rows, bad = text:match "(%d+)%s+(%d+)"
    assert.is_true(tonumber(rows) > 0, where .. ": there is no row")
    assert.equal("0", bad, where)
  end

  it("when it is pushed", function()
    for i, options in ipairs { {}, { delay = 60 }, { unique = "k" }, { unique = "l", delay = 60 }, { priority = 3 } } do
      assert(q:push("grüße." .. i, i, options))
    end
    assert(q:push_many { { "a", 1 }, { "b", 2, { delay = 60 } }, { "c", 3, { unique = "m" } }, { "d", 4 } })
    wrong "push"
    db.sql([[CALL nightshift_push('default', 'sql.grüße', '1', NULL);
      CALL nightshift_push('default', 'later', '1', '{"delay":60}')]], name)
    wrong "CALL nightshift_push"
  end)

  it("when it comes back", function()
    local ids = {}
    for i, verb in ipairs { "release", "fail", "again", "wait" } do
      ids[i] = assert(q:push("back." .. verb, i, { backoff = 60 }))
      local job = assert(q:claim())
      assert(job[verb](job, verb == "again" and 60 or verb == "wait" and { signal = "s" } or "why"))
      wrong(verb)
      if verb == "release" then assert(q:claim():ack()) end
    end
    assert(handle:run_now(ids[2]))
    wrong "run_now"
    assert(handle:reprioritise(ids[3], 7))
    assert(handle:reprioritise(ids[2], 8))
    wrong "reprioritise"
    assert(handle:signal(ids[4], 1, "s"))
    wrong "signal"
    assert(handle:pause(ids[4]))
    assert(handle:resume(ids[4]))
    wrong "resume"
    db.sql("UPDATE nightshift_scheduled SET run_at = 1", name)
    assert(q:claim()) -- promotes
    wrong "promotion"
  end)

  it("when it is of a tree", function()
    local first = assert(q:push("first", 1))
    assert(q:push("second", 2, { after = { first } }))
    assert(q:claim():ack())
    wrong "after"
    assert(q:claim():ack())
    local parent = assert(q:push("parent", 1))
    local job = assert(q:claim())
    for i = 1, 3 do assert(job:spawn("kid." .. i, i, { delay = i == 3 and 60 or nil })) end
    assert(job:wait { on_fail = "continue" })
    wrong "children"
    for _ = 1, 2 do assert(q:claim():discard "so") end
    assert(handle:run_now(handle:execute("SELECT job_id FROM nightshift_scheduled")[1].job_id))
    assert(q:claim():ack())
    wrong "the parent, whose children have ended"
    assert(q:claim():discard "so")
    assert(handle:retry(parent, { tree = true }))
    assert.is_true(handle:job(parent).id == parent)
    wrong "retry of a tree"
  end)
end)

-- A claim took jobs of all names. What it could not run it gave back, and that came again after
-- 1, 2, 4 ... s. Programs with different handlers on one queue slowed each other, and a name
-- that no program knew was claimed again and again.
describe("names that a claim asks for:", function()
  local handle, q, url, name

  with_database(function(...) handle, q, url, name = ... end)

  local function names(jobs)
    local list = {}
    for i, job in ipairs(jobs) do list[i] = job.name end
    return list
  end

  -- Rows of a name that is not served, written as a foreign INSERT would.
  local function unserved(n, ready_at)
    db.sql(([[INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes,
      backoff,
      timeout, created, due, nonce)
    SELECT 10000000 + seq, 1, 'nobodys', '1', 100, 155, 1, 1, 1, 1000000, 1, 1, 1 FROM seq_1_to_%d;
    INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
    SELECT 1, 155, %s, 10000000 + seq, 1, CRC32('nobodys') FROM seq_1_to_%d]]):format(n, ready_at, n), name)
  end

  describe("a claim of some names", function()
    it("leaves jobs of other names as they are, ready", function()
      local ids = assert(q:push_many { { "a", 1 }, { "b", 2 }, { "c", 3 }, { "a", 4 }, { "b", 5, { priority = 255 } } })
      assert.same({ "a", "a" }, names(assert(q:claim_many(10, { names = { "a" } }))))
      assert.is_nil(q:claim { names = { "a" } })
      for _, i in ipairs { 2, 3, 5 } do
        local job = handle:job(ids[i])
        assert.same({ "ready", 1 }, { job.state, job.run })
      end
      local found = {} -- a claim that met other names looks at the next priority for 3 ms at most
      while #found < 3 do
        local more = assert(q:claim_many(10, { names = { "c", "b" }, wait = 20 }))
        table.move(names(more), 1, #more, #found + 1, found)
      end
      assert.same({ "b", "b", "c" }, found)
    end)

    it("is followed by one of all, or of others, that sees all", function()
      assert(q:push_many { { "a", 1 }, { "b", 2 }, { "a", 3 }, { "c", 4 } })
      assert.same({ "a", "a" }, names(assert(q:claim_many(10, { names = { "a" } }))))
      assert.same({ "c" }, names(assert(q:claim_many(10, { names = { "c" } }))))
      assert.same({ "b" }, names(assert(q:claim_many(10))))
    end)

    it("takes what comes back, is due, is signalled, and is pushed from SQL", function()
      local only = { names = { "a" }, wait = 20 }
      assert(q:push("b", 0))
      assert(q:push("a", 1, { backoff = 0.05, delay = 0.05 }))
      assert(q:claim(only)):fail "once"
      assert(q:claim(only)):release()
      local job = assert(q:claim(only))
      assert(job:wait { signal = "s" })
      assert(handle:signal(job.id, 1, "s"))
      assert(q:claim(only)):ack()
      db.sql("CALL nightshift_push('q', 'b', '1', NULL); CALL nightshift_push('q', 'a', '1', NULL)", name)
      assert(q:claim(only)):ack()
    end)

    it("wakes for those, and sleeps on for others", function()
      assert(q:push("b", 0))
      local other <close> = assert(nightshift.open(url))
      local sleeper = proc.start { proc.lua, "-e", ([[
      local q = require "nightshift".open(%q):queue "q"
      io.stderr:write "ready\n"
      local job = assert(q:claim{wait = 20, names = {"a"}})
      io.stderr:write("got ", job.name, "\n")
      job:ack()]]):format(url) }
      sleeper:wait_line("ready", 20)
      eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_listener", name) == "1" end, 20)
      assert(other:queue("q"):push("b", 1))
      assert(other:queue("q"):push("a", 1))
      sleeper:wait_line("got a", 20)
      assert.equal(0, sleeper:wait(20))
    end)

    it("gives a job back whose name has the same number", function()
      local twin = "codding" -- CRC32 is that of "gnu"
      assert.equal("1", db.sql(("SELECT CRC32('%s') = CRC32('gnu')"):format(twin), name))
      local id = assert(q:push(twin, 1))
      assert(q:push("gnu", 1))
      assert.same({ "gnu" }, names(assert(q:claim_many(10, { names = { "gnu" } }))))
      assert.equal("scheduled", handle:job(id).state)
    end)

    it("refuses what are no names", function()
      assert.same({ nil, "INVALID" }, { q:claim { names = {} }, select(3, q:claim { names = {} }) })
      assert.equal("INVALID", select(3, q:claim { names = { "a\nb" } }))
      assert.has_error(function() q:claim { names = "a" } end)
      assert.has_error(function() q:claim { names = { 1 } } end)
    end)
  end)

  -- Rows that a handle's session has read.
  local function reads(h)
    local n = 0
    for _, row in ipairs(assert(h:execute "SHOW SESSION STATUS LIKE 'Handler_read_%'")) do n = n + row.Value end
    return n
  end

  -- 500,000 with NIGHTSHIFT_LONG.
  local MANY = os.getenv "NIGHTSHIFT_LONG" and 500000 or 30000

  describe("behind many jobs that nobody serves", function()
    for _, at in ipairs { "seq", "7" } do
      local when = at == "7" and ", all of one instant" or ""

      it("a claim finds its own, and reads the others once" .. when, function()
        local id = assert(q:push("a", 0, { delay = 3600 }))
        unserved(MANY, at)
        local h2 <close> = assert(nightshift.open(url))
        local q2 = h2:queue "q"
        assert(q:push("a", 1))
        assert(q2:claim { names = { "a" } }):ack()
        local before = reads(h2)
        for i = 1, 20 do
          assert(q:push("a", i))
          assert(q2:claim { names = { "a" } }):ack()
        end
        local read = reads(h2) - before
        assert.is_true(read < 2 * MANY, read .. " rows read by 20 claims")
        -- one that is before all of them
        db.sql(([[DELETE FROM nightshift_scheduled WHERE job_id = %d; UPDATE nightshift_job SET due = 1 WHERE id = %d;
        INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
        VALUES (1, 155, 3, %d, 1, CRC32('a'))]]):format(id, id, id), name)
        assert.equal(id, assert(q2:claim { names = { "a" } }).id)
      end)
    end
  end)
end)

-- A host claimed every job of its queues. What it had no handler for came back after 1, 2, 4
-- ... 60 s and was dead after ten minutes. Two hosts with different scripts on one database
-- delayed each other's jobs by seconds, a host without handlers those of all hosts.
describe("scripts that differ:", function()
  local handle, q, url, name

  with_database(function(...) handle, q, url, name = ... end)

  local function ends(h)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end

  local function live(of)
    return tonumber((db.sql(("SELECT COUNT(*) FROM nightshift_job WHERE name = '%s'"):format(of), name)))
  end

  describe("hosts of one database with different scripts", function()
    it("leave each other's jobs alone", function()
      local a = host.start(url, "return { a = function() end }")
      local b = host.start(url, "return { b = function() end }")
      local none = host.start(url, "return {}")
      for i = 1, 20 do assert(q:push(i % 2 == 0 and "a" or "b", i)) end
      eventually(function() return live "a" + live "b" == 0 end)
      assert.equal("0\t1", (db.sql("SELECT MAX(missed), MAX(f.run) FROM nightshift_finished f "
        .. "LEFT JOIN nightshift_job j "
        .. "ON j.id = f.id", name):gsub("NULL", "0")))
      for _, h in ipairs { a, b, none } do
        ends(h)
        assert.is_nil(select(2, h:text()):find("job.no_handler", 1, true))
      end
    end)

    it("leave what nobody can run ready, and status, why and doctor say so", function()
      local id = assert(q:push("helo.say", 1))
      local h = host.start(url, "return { ['hello.say'] = function() end }")
      assert(q:push("hello.say", 1))
      eventually(function() return live "hello.say" == 0 end)
      local job = handle:job(id)
      assert.same({ "ready", 1 }, { job.state, job.run })
      local text = "no live host has a handler for 'helo.say' (1 in queue 'q'; did you mean 'hello.say'?)"
      eventually(function()
        return select(2, proc.nightshift({ "status" }, url)):find(text, 1, true) ~= nil
      end)
      assert.is_truthy(select(2, proc.nightshift({ "doctor" }, url)):find(text, 1, true))
      assert.is_truthy(select(2, proc.nightshift({ "why", id }, url)):find(
        "no live host that serves 'q' has a handler 'helo.say'; known: hello.say", 1, true))
      ends(h)
    end)

    it("leave what nobody can run when it is due, and status says so before", function()
      local h = host.start(url, "return { hello = function() end }")
      assert(q:push("helo", 1, { delay = 3600 }))
      assert(q:push("hello", 1, { delay = 3600 }))
      assert(q:push("bye", 1))
      assert(q:push("bye", 1, { delay = "200d" }))
      local asks = assert(q:push "ask")
      assert(q:claim { names = { "ask" } }):wait { signal = "ok" } -- due never
      assert.equal("waiting", handle:job(asks).state)
      local _, status = proc.nightshift({ "status" }, url)
      assert.is_truthy(status:find("for 'bye' (2 in queue 'q', 1 of them due later)\n", 1, true), status)
      assert.is_truthy(status:find("for 'helo' (1 in queue 'q', due later; did you mean 'hello'?)\n", 1, true), status)
      assert.equal(2, select(2, status:gsub("\nno live host has a handler for", "")))
      local rows = assert(handle:stats()).unserved
      assert.same({ { "bye", 2, 1 }, { "helo", 1, 1 } }, { { rows[1].name, rows[1].n, rows[1].later },
        { rows[2].name, rows[2].n, rows[2].later } })
      assert.same({ true, 0.0 }, { rows[1].waited > 0, rows[2].waited })
      local _, doctor = proc.nightshift({ "doctor" }, url)
      assert.is_nil(doctor:find("'helo'", 1, true)) -- nothing waits yet
      ends(h)
    end)

    it("say nothing of a name whose host ended within a minute", function()
      local a = host.start(url, "return { a = function() end }")
      local b = host.start(url, "return { b = function() end }")
      eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_served", name) == "2" end)
      ends(a)
      assert(q:push("a", 1))
      local stats = assert(handle:stats())
      assert.same({}, stats.unserved)
      db.sql("UPDATE nightshift_served SET ended = ended - 60000000", name)
      assert.equal("a", assert(handle:stats()).unserved[1].name)
      ends(b)
    end)

    it("claim what they have come to know with a reload, and no more what they have forgotten", function()
      local h = host.start(url, "return { a = function() end }")
      local id = assert(q:push("b", 1))
      assert(q:push("a", 1))
      eventually(function() return live "a" == 0 end)
      local file <close> = assert(io.open(h.script, "w"))
      file:write "return { b = function() end }"
      file:close()
      h:signal "HUP"
      eventually(function() return handle:job(id).state == "done" end)
      local other = assert(q:push("a", 1))
      assert(q:push("b", 1))
      eventually(function() return live "b" == 0 end)
      assert.equal("ready", handle:job(other).state)
      ends(h)
    end)

    it("claim only what --only names", function()
      local other = assert(q:push("b", 1))
      local h = host.start(url, "return { a = function() end, b = function() end }", { "--only", "a,nosuch" })
      assert(q:push("a", 1))
      eventually(function() return live "a" == 0 end)
      assert.equal("ready", handle:job(other).state)
      ends(h)
      assert.equal("nosuch", host.events(select(2, h:text()), "only.no_handler")[1].name)
    end)

    it("write one line a minute about a name that was claimed all the same", function()
      for i = 1, 100 do assert(q:push("nosuch", i)) end
      db.sql("UPDATE nightshift_ready SET kind = 0", name) -- as a program of before writes them
      local h = host.start(url, "return { a = function() end }")
      eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_job WHERE missed = 1", name) == "100" end)
      ends(h)
      assert.equal(1, #host.events(select(2, h:text()), "job.no_handler"))
    end)
  end)

  -- 500,000 with NIGHTSHIFT_LONG.
  local MANY = os.getenv "NIGHTSHIFT_LONG" and 500000 or 50000

  describe("behind many jobs that nobody serves", function()
    it("a host works as without them", function()
      db.sql(([[INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes,
        backoff, timeout, created, due, nonce)
      SELECT 10000000 + seq, 1, 'nobodys', '1', 100, 155, 1, 1, 1, 1000000, 1, 1, 1 FROM seq_1_to_%d;
      INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run, kind)
      SELECT 1, 155, seq, 10000000 + seq, 1, CRC32('nobodys') FROM seq_1_to_%d]]):format(MANY, MANY), name)
      local h = host.start(url, "return { a = function() end }")
      for _ = 1, 20 do
        local items = {}
        for i = 1, 100 do items[i] = { "a", i } end
        assert(q:push_many(items))
      end
      eventually(function() return live "a" == 0 end, 60)
      assert.equal(tostring(MANY), (db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", name)))
      ends(h)
    end)
  end)
end)

-- `work --drain` with a job with a name that no script has waited for its death, minutes, and
-- ended with 0. And a drain of an adopted table ended while rows were open. A claim had read
-- before they were due, and the look at due rows came after that.
describe("a drain that leaves jobs which no script can run", function()
  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  local function drain(script, args)
    local h = host.spawn(url, script, args or { "--drain" })
    local code = h:wait(20)
    local _, err = h:text()
    return code, err
  end

  it("ends at once, names them and the nearest known name, and exits with 3", function()
    for i = 1, 3 do assert(q:push("helo.say", i)) end
    assert(q:push("hello.say", 1))
    local code, err = drain "return { ['hello.say'] = function() end, other = function() end }"
    assert.equal(3, code)
    assert.is_truthy(err:find("jobs are left that no script here can run: 'helo.say' (3 in queue 'q'; "
      .. "did you mean 'hello.say'?)", 1, true), err)
    assert.is_truthy(err:find("known here: hello.say, other", 1, true), err)
    assert.equal(3, #assert(handle:jobs { state = "ready" }))
  end)

  it("does so without any handler, and with --only", function()
    assert(q:push("a", 1))
    local code, err = drain "return {}"
    assert.equal(3, code)
    assert.is_truthy(err:find("'a' (1 in queue 'q')", 1, true), err)
    code = drain("return { a = function() end, b = function() end }", { "--drain", "--only", "b" })
    assert.equal(3, code)
  end)

  it("exits with 0 when all is done, or what is left is in other or paused queues", function()
    assert(q:push("a", 1))
    assert(handle:queue("other"):push("b", 1))
    assert(handle:queue("still"):push("b", 1))
    assert(handle:queue("still"):pause())
    assert.equal(0, (drain("return { a = function() end }", { "--drain", "--queues", "q,still" })))
    assert.equal(3, (drain "return { a = function() end }"))
  end)
end)

-- A claim of some names looks ahead a few thousand rows, so that it never goes through all that
-- lies there for other programs. While many jobs of one instant were worked off it looked
-- further and further ahead. And the claim behind the last of them went through it all. With
-- nothing but rows of other names ahead a claim failed with BUSY, and looked below them all
-- again and again.
describe("far behind one instant", function()
  local handle, q
  with_database(function(...) handle, q = ... end)

  local OWN <const>, OTHERS <const> = 20000, 20000

  local function reads()
    return tonumber(assert(handle:execute "SHOW SESSION STATUS LIKE 'Handler_read_next'")[1].Value)
  end

  it("jobs of one instant are claimed without a look at all that lies behind them", function()
    local items = {}
    for i = 1, 1000 do items[i] = { "own" } end
    for _ = 1, OWN // #items do assert(q:push_many(items)) end
    assert(handle:execute "UPDATE nightshift_ready SET ready_at = 1000 WHERE job_id > 0")
    assert(handle:execute(([[INSERT INTO nightshift_ready (queue_id, `rank`, ready_at, job_id, run, kind)
    SELECT queue_id, `rank`, 1000 + seq, %d + seq, 1, 4711 FROM seq_1_to_%d,
      (SELECT DISTINCT queue_id, `rank` FROM nightshift_ready WHERE job_id > 0) v]]):format(1 << 40, OTHERS)))
    local claimed, looks, last = 0, 0
    local pauses, began = 0, nightshift.clock()
    repeat
      local before, earlier = reads(), began
      began = nightshift.clock()
      local jobs = assert(q:claim_many(1000, { names = { "own" } }))
      last = reads() - before
      looks = looks + (last > 4000 and 1 or 0)
      pauses = pauses + (nightshift.clock() - earlier > 1 and 1 or 0) -- it looks again after a second
      claimed = claimed + #jobs
    until #jobs == 0
    assert.equal(OWN, claimed)
    assert.is_true(looks <= 3 + pauses, looks) -- two, and the one that found no more
    assert.is_true(last <= 5 * OTHERS, last)
  end)
end)
