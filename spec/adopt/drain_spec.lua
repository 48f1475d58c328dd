-- `nightshift adopt --drain-into`: a table of mails, most of them sent long ago, without
-- an index but its key, becomes jobs and history. Whatever happens on the way, each row
-- is afterwards in our tables once and not in its own, or the other way round.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proxy"
local shared = require("spec.support.db").shared

local db, _, url
with_database(function(...) db, _, url = ... end)

local MAPPING = [[{
  table = "mails", name = "mail.send",
  status = { column = "sent", open = 0, done = 1, failed = 9 }, completed_at = "sent_at", time_zone = "+02:00",
}]]

local function all(sql, ...) return assert(db:execute(sql, ...)) end
local function one(sql, ...) return all(sql, ...)[1] end
local function count(what, ...) return one("SELECT COUNT(*) AS n FROM " .. what, ...).n end

--- A table with n rows: of five one is open, one has failed, the rest were sent.
local function create(n, engine)
  all "DROP TABLE IF EXISTS mails"
  all([[CREATE TABLE mails (
    id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    recipient VARCHAR(190) NOT NULL,
    subject VARCHAR(200) NULL,
    body TEXT NULL,
    sent TINYINT NOT NULL DEFAULT 0,
    created DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,
    sent_at DATETIME NULL) CHARACTER SET utf8mb4 ENGINE=]] .. (engine or "InnoDB"))
  if n == 0 then return end
  all(([[INSERT INTO mails (recipient, subject, body, sent, sent_at)
    SELECT CONCAT('to', seq, '@example.org'), IF(seq %% 3, CONCAT('Grüße, "', seq, '" \\ it''s 😀'), NULL),
      IF(seq %% 4, REPEAT('line\n', seq %% 50), NULL), ELT(seq %% 5 + 1, 0, 1, 1, 1, 9),
      IF(seq %% 5 IN (1, 2, 3), '2020-02-29 12:00:00' + INTERVAL seq SECOND, NULL)
    FROM seq_1_to_%d]]):format(n))
end

local function rows_by_id()
  local by = {}
  for _, row in ipairs(all "SELECT * FROM mails") do by[row.id] = row end
  return by
end

local function adopt(changes)
  local mapping = assert(load("return " .. MAPPING))()
  for key, value in pairs(changes or {}) do mapping[key] = value end
  return assert(db:adopt(mapping))
end

local function drain_args(more)
  return { "adopt", fixture.file("mails.lua", "return " .. MAPPING), "--drain-into", "post", "--yes", "--json",
    table.unpack(more or {}) }
end

local function cli(more)
  local status, out, err = proc.nightshift(drain_args(more), url)
  assert.equal(0, status, err)
  return nightshift.decode(out)[1]
end

local function start(more)
  local options = { proc.program, table.unpack(drain_args(more)) }
  options.env = { NIGHTSHIFT_URL = url }
  return proc.start(options)
end

--- All of `before` is in our tables, once and as it was.
local function is_moved(before)
  local seen = {}
  for _, row in ipairs(all [[SELECT payload, 'job' AS outcome, NULL AS finished_at, name FROM nightshift_job
      UNION ALL SELECT payload, outcome, finished_at, name FROM nightshift_finished]]) do
    local payload = nightshift.decode(row.payload)
    local was = before[payload.id]
    assert.is_nil(seen[payload.id], "twice: " .. payload.id)
    seen[payload.id] = true
    assert.same(was, payload)
    assert.equal("mail.send", row.name)
    assert.equal(({ [0] = "job", [1] = "done", [9] = "dead" })[was.sent], row.outcome)
    if was.sent == 1 then assert.equal((1582970400 + was.id) * 1000000, row.finished_at) end
  end
  for id in pairs(before) do assert.is_true(seen[id], "lost: " .. id) end
  assert.equal(0, count "nightshift_drained")
  assert.equal(count "nightshift_job", count "nightshift_ready WHERE job_id > 0")
end

for _, engine in ipairs { "InnoDB", "Aria", "MyISAM" } do
  it("moves every row once: " .. engine, function()
    create(300, engine)
    local before = rows_by_id()
    local result = cli { "--batch", "70" }
    assert.same({ 60, 240, 0, 0 }, { result.jobs, result.history, result.cleaned, result.left })
    assert.equal(0, count "mails")
    is_moved(before)
    all "INSERT INTO mails (id, recipient) VALUES (1, 'again')" -- an id is used again
    assert.equal(1, cli().jobs)
  end)
end

it("says what it would do, and does nothing without --yes", function()
  create(50)
  local file = fixture.file("mails.lua", "return " .. MAPPING)
  local status, _, err = proc.nightshift({ "adopt", file, "--drain-into", "post" }, url)
  assert.equal(2, status)
  assert.truthy(err:find("10 rows would become jobs of post, 40 history; 0 left; add --yes to do it", 1, true), err)
  status = proc.nightshift({ "adopt", file, "--drain-into", "post", "--dry-run" }, url)
  assert.equal(0, status)
  local out
  status, out = proc.nightshift({ "adopt", file }, url)
  assert.equal(0, status)
  assert.truthy(out:find "10 ready, 0 waiting, %d+ running, 30 done, 10 dead", out)
  assert.equal(50, count "mails")
  assert.equal(0, count "nightshift_queue WHERE name = 'post'")
end)

describe("t:drain", function()
  it("stops at its limit, and keeps to its rate", function()
    create(50)
    local t = adopt()
    local result = assert(t:drain { into = "post", limit = 12, batch = 5 })
    assert.equal(12, result.jobs + result.history)
    assert.equal(38, count "mails")
    local started = nightshift.clock()
    assert.equal(38, (function(r) return r.jobs + r.history end)(assert(t:drain { into = "post", rate = 60 })))
    assert.is_true(nightshift.clock() - started > 0.3)
  end)

  it("carries priority, attempts and the time over, as far as a job has room for them", function()
    create(0)
    all "ALTER TABLE mails ADD prio INT NULL, ADD tries INT NULL, ADD later DATETIME NULL"
    all [[INSERT INTO mails (id, recipient, prio, tries, later) VALUES (1, 'a', 7, 2, NULL), (2, 'b', -3, NULL, NULL),
      (3, 'c', 999, 9, UTC_TIMESTAMP() + INTERVAL 3 HOUR), (4, 'd', NULL, 0, '2000-01-01')]]
    local t = adopt { priority = { column = "prio", decay = 3 }, attempts = "tries", max_attempts = 4,
      retry_after = "later", time_zone = "+00:00" }
    assert.equal(4, assert(t:drain { into = "post" }).jobs)
    local jobs = all [[SELECT JSON_VALUE(payload, '$.id') AS id, priority, decay, attempts, max_attempts,
      ROUND((due - created) / 60000000) AS wait FROM nightshift_job ORDER BY 1]]
    local found = {}
    for i, j in ipairs(jobs) do
      found[i] = { j.priority, j.decay, j.attempts, j.max_attempts, math.tointeger(j.wait) }
    end
    assert.same({ { 7, 3, 2, 4, 0 }, { 0, 3, 0, 4, 0 }, { 255, 3, 3, 4, 180 }, { 100, 3, 0, 4, 0 } }, found)
    assert.equal(1, count "nightshift_scheduled")
    assert.equal(3, count "nightshift_ready WHERE job_id > 0")
  end)

  it("keeps the direction of a priority of which the lowest comes first", function()
    create(0)
    all "ALTER TABLE mails ADD prio INT NULL"
    all "INSERT INTO mails (recipient, prio) VALUES ('a', 1), ('b', 2), ('c', 1000)"
    assert(adopt { priority = { column = "prio", higher_first = false } }:drain { into = "post" })
    assert.same({ { p = 254 }, { p = 253 }, { p = 0 } }, all "SELECT priority AS p FROM nightshift_job ORDER BY id")
  end)

  it("reads times in whole seconds, and attempts that are counted down", function()
    create(0)
    all [[ALTER TABLE mails ADD ended BIGINT UNSIGNED NULL, ADD later INT NULL, ADD tries TINYINT NULL,
      ADD updated TIMESTAMP NULL]]
    all [[INSERT INTO mails (recipient, sent, ended, later, tries, updated) VALUES ('a', 1, 1500000000, NULL, 3, NULL),
      ('b', 9, NULL, NULL, 0, '2017-07-14 02:40:01'), ('c', 0, NULL, UNIX_TIMESTAMP() + 7200, 3, NULL),
      ('d', 0, 0, 1, 1, NULL), ('e', 1, 18446744073709551615, 0, 0, NULL)]]
    local t = adopt { completed_at = "ended", retry_after = "later", attempts_left = "tries", max_attempts = 5,
      updated = "updated", time_zone = "+00:00" }
    assert.same({ 2, 3 }, (function(r) return { r.jobs, r.history } end)(assert(t:drain { into = "post" })))
    local jobs = all [[SELECT attempts, max_attempts, ROUND((due - created) / 6e7) AS wait FROM nightshift_job
      ORDER BY id]]
    assert.same({ { attempts = 2, max_attempts = 5, wait = 120 }, { attempts = 4, max_attempts = 5, wait = 0 } }, jobs)
    local ends = all "SELECT finished_at DIV 1000000 AS at FROM nightshift_finished ORDER BY id"
    assert.same({ 1500000000, 1500000001 }, { ends[1].at, ends[2].at })
    assert.is_true(ends[3].at > 1600000000) -- not known: now
  end)

  it("takes rows whose attempts are spent for failed where no state says so", function()
    create(0)
    all "ALTER TABLE mails ADD tries INT NULL"
    all "INSERT INTO mails (recipient, tries) VALUES ('a', 3), ('b', 4), ('c', 1)"
    local t = adopt { status = { column = "sent", open = 0, done = 1 }, attempts = "tries", max_attempts = 4 }
    assert(assert(t:claim()):fail "no such mailbox")
    assert.same({ 1, 2 }, (function(r) return { r.jobs, r.history } end)(assert(t:drain { into = "post" })))
    local dead = all "SELECT outcome, reason, attempts, error FROM nightshift_finished ORDER BY id"
    assert.same({ { outcome = "dead", reason = "failed", attempts = 4, error = "no such mailbox" },
      { outcome = "dead", reason = "failed", attempts = 4, error = "row 2 of mails had failed" } }, dead)
  end)

  it("leaves what is claimed, in no known state, too big or not text, and says so", function()
    create(0)
    all "ALTER TABLE mails ADD data BLOB NULL, ADD deep JSON NULL, MODIFY body MEDIUMTEXT"
    local depth = 1 -- the most that the server takes; the payload has one more
    while one("SELECT JSON_VALID(?) AS v", ("["):rep(depth + 1) .. ("]"):rep(depth + 1)).v == 1 do depth = depth + 1 end
    all([[INSERT INTO mails (id, recipient, sent, data, body, deep) VALUES (1, 'claimed', 5, NULL, NULL, NULL),
      (2, 'unknown', 77, NULL, NULL, NULL), (3, 'no text', 0, UNHEX('ff00'), NULL, NULL),
      (4, 'big', 0, NULL, REPEAT('x', 2000000), NULL), (5, 'fine', 0, 'text', 'y', '[1]'),
      (6, 'deep', 0, NULL, NULL, ?), (7, 'fine', 0, 'text', 'y', '{"a":1}')]], ("["):rep(depth) .. ("]"):rep(depth))
    local t = adopt { status = { column = "sent", open = 0, processing = 5, done = 1, failed = 9 },
      strategy = "skip_locked" }
    assert(db:execute "DELETE FROM nightshift_holder")
    all "INSERT INTO nightshift_grip (tab, row_id, claimant, since) VALUES ('mails', 1, 'a program', 1)"
    local result = assert(t:drain { into = "post" })
    assert.same({ running = 1, unknown = 1, unfit = 3 }, result.kept)
    assert.same({ 2, 5 }, { result.jobs, result.left })
    assert.equal(5, count "mails")
    assert.equal(0, count "nightshift_drained")
  end)

  it("leaves a row that somebody has locked or changed, for the next time", function()
    create(20)
    local before = rows_by_id()
    local other <close> = assert(nightshift.open(url))
    assert(other._handle:begin())
    assert(other:execute "UPDATE mails SET sent = 1, sent_at = '2020-02-29 12:00:05' WHERE id = 5")
    local t = adopt()
    local result = assert(t:drain { into = "post" }) -- it reads 5 as open
    assert.same({ 3, 16, { changed = 1 } }, { result.jobs, result.history, result.kept })
    assert.equal(5, one "SELECT id FROM mails".id)
    assert(other._handle:commit())
    before[5] = rows_by_id()[5]
    assert.equal(1, assert(t:drain { into = "post" }).history)
    is_moved(before)
  end)

  for words, case in pairs {
    ["queue name"] = { {}, { into = "" } },
    ["parents"] = { { parent = "boss" }, { into = "post" } },
    ["limit must be"] = { {}, { into = "post", limit = 0 } },
  } do
    it("is refused: " .. words, function()
      create(5)
      all "ALTER TABLE mails ADD boss INT NULL"
      local result, message, code = adopt(case[1]):drain(case[2])
      assert.is_nil(result)
      assert.equal("INVALID", code)
      assert.truthy(message:find(words), message)
      assert.equal(5, count "mails")
    end)
  end

  it("moves rows that nobody can claim for their id, and leaves one that no job can be given", function()
    create(0)
    all "ALTER TABLE mails MODIFY id BIGINT UNSIGNED NOT NULL"
    all "INSERT INTO mails (id, recipient) VALUES (0, 'a'), (1, 'b'), (18446744073709551615, 'c')"
    local result = assert(adopt():drain { into = "post" })
    assert.same({ 2, { unfit = 1 } }, { result.jobs, result.kept })
    assert.equal("c", one "SELECT recipient FROM mails".recipient)
  end)

  it("is refused inside a transaction, and takes a queue for granted", function()
    create(5)
    local t = adopt()
    assert.has_error(function() t:drain {} end, "nightshift: drain: 'into' is missing")
    db:transaction(function()
      local _, _, code = t:drain { into = "post" }
      assert.equal("STATE", code)
    end)
  end)

  it("leaves everything in place when the table does not let go of its rows", function()
    create(5)
    all "CREATE TABLE holds (id INT UNSIGNED, FOREIGN KEY (id) REFERENCES mails (id))"
    all "INSERT INTO holds VALUES (2)"
    local before = rows_by_id()
    local result, _, code = adopt():drain { into = "post" }
    assert.is_nil(result)
    assert.equal("SQL", code)
    assert.same(before, rows_by_id())
    assert.same({ 0, 0, 0 }, { count "nightshift_drained", count "nightshift_job", count "nightshift_finished" })
  end)
end)

-- A drain is killed while it waits for a lock that we hold: nothing is left to chance.
local POINTS = {
  ["between its marks and the deletion"] = { lock = "mails", text = "DELETE t FROM%", left = 100 },
  ["between the deletion and the end of its marks"] = {
    lock = "nightshift_finished", text = "INSERT INTO nightshift_finished%", left = 50,
  },
}

--- The connection that waits for the lock, with a statement like this.
local function waiting(text)
  local row = one("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND state LIKE 'Waiting%' "
    .. "AND TRIM(REGEXP_REPLACE(info, '^SET STATEMENT.*? FOR ', '')) LIKE ?", text)
  return row and row.id
end

local function gone(id) return count("information_schema.processlist WHERE id = ?", id) == 0 end

--- Kills it there, and its session with it; 50 of 100 rows are on their way then.
local function kill_at(point)
  local locker <close> = assert(nightshift.open(url))
  assert(locker:execute(("LOCK TABLES %s READ"):format(point.lock)))
  local p = start { "--batch", "50" }
  local session = eventually(function() return waiting(point.text) end)
  p:signal "KILL"
  p:wait()
  all(("KILL CONNECTION %d"):format(session))
  eventually(function() return gone(session) end)
  assert(locker:execute "UNLOCK TABLES")
  assert.same({ 50, point.left, 0, 0 }, { count "nightshift_drained", count "mails", count "nightshift_job",
    count "nightshift_finished" })
end

local REPAIRS = {
  ["the next drain"] = function() return cli().cleaned end,
  ["t:rescue"] = function()
    local t = adopt()
    eventually(function() return t:rescue() and count "nightshift_drained" == 0 end)
    return 50
  end,
  ["nightshift rescue"] = function()
    eventually(function()
      assert.equal(0, (proc.nightshift({ "rescue" }, url)))
      return count "nightshift_drained" == 0
    end)
    return 50
  end,
  ["a host that serves the table"] = function()
    local h = host.start(url, "return {}", { "--adopt", fixture.file("mails.lua", "return " .. MAPPING) })
    eventually(function() return count "nightshift_drained" == 0 end)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
    return 50
  end,
}

for where, point in pairs(POINTS) do
  for _, engine in ipairs { "InnoDB", "Aria" } do
    for who, repair in pairs(REPAIRS) do
      if engine == "InnoDB" or who == "the next drain" then
        it(("that is killed %s is finished by %s: %s"):format(where, who, engine), function()
          create(100, engine)
          local before = rows_by_id()
          kill_at(point)
          assert.equal(50, repair())
          assert.equal(0, count "nightshift_drained")
          assert(cli())
          assert.equal(0, count "mails")
          is_moved(before)
        end)
      end
    end
  end
end

describe("after a crash", function()
  it("a row that has changed meanwhile stays, and its copy does not run", function()
    create(100)
    local before = rows_by_id()
    kill_at(POINTS["between its marks and the deletion"])
    all "UPDATE mails SET sent = 1, sent_at = '2020-02-29 12:00:05' WHERE id = 5" -- the application was faster
    before[5] = rows_by_id()[5]
    local t = adopt()
    eventually(function() return t:rescue() and count "nightshift_drained" == 0 end)
    assert.equal(51, count "mails")
    local copy = one "SELECT * FROM nightshift_finished WHERE outcome = 'cancelled'"
    assert.same({ "changed", 5 }, { copy.reason, nightshift.decode(copy.payload).id })
    all("DELETE FROM nightshift_finished WHERE id = ?", copy.id)
    assert(cli())
    is_moved(before)
  end)

  it("what cannot be finished is left for later, and told by doctor", function()
    create(100)
    local before = rows_by_id()
    kill_at(POINTS["between its marks and the deletion"])
    all "CREATE TABLE holds (id INT UNSIGNED, FOREIGN KEY (id) REFERENCES mails (id))"
    all "INSERT INTO holds VALUES (7)"
    local t = adopt()
    for _ = 1, 3 do assert(t:rescue()) end
    assert.same({ 50, 100 }, { count "nightshift_drained", count "mails" })
    local _, out = proc.nightshift({ "doctor" }, url)
    assert.truthy(out:find("their drain is over: 50 of mails", 1, true), out)
    all "DROP TABLE holds"
    assert.equal(50, cli().cleaned)
    is_moved(before)
  end)

  it("a new row that has the id of one that was moved is left alone, and nothing is lost", function()
    create(100)
    kill_at(POINTS["between the deletion and the end of its marks"])
    all "INSERT INTO mails (id, recipient) VALUES (5, 'another'), (6, 'another')"
    local t = adopt()
    eventually(function() return t:rescue() and count "nightshift_drained" == 0 end)
    assert.equal(2, count "mails WHERE recipient = 'another'")
    assert.equal(1, count "nightshift_finished WHERE outcome = 'cancelled' AND JSON_VALUE(payload, '$.id') = 5")
    assert.equal(1, count "nightshift_finished WHERE outcome = 'done' AND JSON_VALUE(payload, '$.id') = 6")
    assert.equal(50, count "nightshift_job" + count "nightshift_finished")
  end)
end)

it("is done by two at once", function()
  create(2000)
  local before = rows_by_id()
  local drains = { start { "--batch", "17" }, start { "--batch", "23" } }
  for _, p in ipairs(drains) do assert.equal(0, p:wait(120), p:transcript()) end
  cli()
  assert.equal(0, count "mails")
  is_moved(before)
end)

it("is worked on while it goes on", function()
  create(1000)
  local folder = fixture.dir()
  local h = host.start(url, ([[return { ["mail.send"] = function(job)
    local file <close> = assert(io.open(%q .. "/" .. job.payload.id, "a"))
    file:write("x")
  end }]]):format(folder), { "--queues", "post" })
  local result = cli { "--batch", "10" }
  assert.same({ 200, 800 }, { result.jobs, result.history })
  eventually(function() return count "nightshift_finished WHERE outcome = 'done'" == 800 end, 60)
  h:signal "TERM"
  assert.equal(0, h:wait(20))
  for id = 5, 1000, 5 do
    local file <close> = assert(io.open(folder .. "/" .. id))
    assert.equal("x", file:read "a")
  end
  assert.equal(0, count "nightshift_job")
end)

for _, moment in ipairs { "before", "after" } do
  it(("survives connections that are cut %s any of its commits"):format(moment), function()
    local p = proxy.start(shared())
    create(100)
    local before = rows_by_id()
    local cut = 0
    for i = 0, 24 do
      local other <close> = assert(nightshift.open(p:url(url)))
      local t = assert(other:adopt(assert(load("return " .. MAPPING))()))
      p:tell(("commit %s %d"):format(moment, i % 3 + 1)) -- of the marks, the deletion, the end of the marks
      assert(t:drain { into = "post", limit = 4 })
      if p:tell "fired" == "yes" then cut = cut + 1 end
      assert.equal(96 - 4 * i, count "mails")
    end
    assert.equal(25, cut)
    is_moved(before)
  end)
end
