-- A name is a name: no two of queues, jobs, keys, signals, locks and tables are equal that
-- differ in any byte, wherever they are compared.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

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
    assert.same({ nil, "NOT_FOUND" }, { handle:queue("fOo"):pause(), select(3, handle:queue("fOo"):pause()) })
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
        for _, filter in ipairs { { name = each, state = state }, { name = each }, { name = each, queue = "q" },
          { name = each, state = state, after = math.maxinteger } } do
          local jobs = assert(handle:jobs(filter))
          assert.same({ 1, ids[i] }, { #jobs, jobs[1] and jobs[1].id }, each)
        end
        local view = (state == "done" or state == "dead") and "history" or "jobs"
        assert.equal(tostring(ids[i]), db.sql(("SELECT id FROM nightshift_%s WHERE name = %s AND state = '%s'"):format(
          view, quoted(each), state), name), each)
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
    for _, more in ipairs { "foo\t", "foo\n", "\tfoo", "foo\0", "\0foo", "a\0b", "a\0c" } do keys[#keys + 1] = more end
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
      return assert(handle:adopt { table = each, name = "x", allow_alter = true,
        status = { column = "status", open = "new", processing = "busy", done = "ok" } })
    end
    local small, large = adopt "tasks", adopt "Tasks"
    assert(large:pause())
    assert.is_nil(large:claim())
    assert(assert(small:claim()):ack())
    assert.equal(0, (proc.nightshift({ "resume", "--queue", "Tasks" }, url)))
    assert(assert(large:claim()):ack())
    assert.same({ 1, 1 }, { small:stats().done, large:stats().done })
    assert.equal("Tasks,tasks", db.sql("SELECT GROUP_CONCAT(tab ORDER BY tab) FROM nightshift_adopted", name))
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

  -- The name of a database is of another character set: it is compared with such, or
  -- shown, and in the name of a lock it is {here}.
  local SHOWN <const> = { ["@@datadir, DATABASE()"] = 1, ["VERSION() AS version, DATABASE() AS db"] = 1,
    ["@@version_comment AS comment, DATABASE() AS db"] = 1, ["HEX(DATABASE())"] = 1 }

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
