-- A name is a name: queues, jobs, keys, signals, locks and tables are equal only if they agree
-- in every byte, wherever they are compared. And any database will do.

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
